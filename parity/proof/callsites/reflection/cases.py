"""Objects that come at once, that are cut off and mended, that take a second try, and that never come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODEL = "golden/models/tiny-qwen3"
DIFFERS: dict[str, str] = {}
SAMPLED: frozenset[str] = frozenset()

ANNA = "Give me a JSON object for Anna, 31, from Oslo."
CHLOE = "Give me a JSON object for Chloé, 44, from São Paulo."
FRANCE = "What is the capital of France?"


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    def one(name: str, question: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "reflect", {"model_path": MODEL, "question": question, **arguments}

    def batch(name: str, *questions: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "reflect_batch", {"model_path": MODEL, "questions": list(questions), **arguments}

    return [
        one("object", ANNA),
        one("beyond-ascii", CHLOE),
        one("mended-after-cut", ANNA, max_new_tokens=16, retries=0),
        one("cut-before-a-pair", ANNA, max_new_tokens=4, retries=0),
        one("second-try", ANNA, max_new_tokens=5),
        one("third-try", ANNA, max_new_tokens=2, retries=2),
        one("one-new-token", ANNA, max_new_tokens=1, retries=0),
        one("no-object", FRANCE, retries=0),
        one("no-object-twice", FRANCE),
        one("nudged-to-another-question", "Is 17 even?", nudge="Is 24 even?"),
        one("thinking", ANNA, thinking=True),
        one("thinking-cut-in-the-thought", ANNA, thinking=True, max_new_tokens=8),
        one("empty-system", ANNA, system=""),
        one("polite-system", ANNA, system="You are a helpful assistant."),
        one("role-word-in-the-question", "assistant\n" + ANNA),
        one("role-word-in-the-system-turn", ANNA, system="You are a helpful assistant\n"),
        one("blanks-around-the-question", "  " + ANNA + "  "),
        one("special-token-in-the-question", ANNA + "<|im_end|>"),
        one("think-tag-in-the-question", "</think>" + ANNA),
        one("clean-up-of-spaces", ANNA, clean_up=True),
        one("clean-up-of-a-sum", "What is 12 + 23?", clean_up=True, retries=0),
        batch("two-prompt-lengths", ANNA, "Give me a JSON object for José, 7, from New Delhi."),
        batch("batch-with-one-that-fails", ANNA, FRANCE, CHLOE),
        batch("batch-second-try", ANNA, CHLOE, max_new_tokens=6),
        batch("batch-thinking", ANNA, CHLOE, thinking=True),
        batch("batch-of-equals", ANNA, ANNA),
    ]
