"""Streamed answers: whole, cut at stops wherever their tokens end, half characters, lines, several at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODEL = "golden/models/tiny-qwen3"
DIFFERS: dict[str, str] = {}
SAMPLED: frozenset[str] = frozenset()


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    def one(name: str, question: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "answer", {"model_path": MODEL, "question": question, **arguments}

    def lines(name: str, question: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "answer_lines", {"model_path": MODEL, "question": question, **arguments}

    def several(name: str, questions: list[str], **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "answer_all", {"model_path": MODEL, "questions": questions, **arguments}

    return [
        one("capital", "What is the capital of France?"),
        one("accents", "What is the capital of Costa Rica?"),
        one("emoji", "Draw a smile."),
        one("family", "Draw a family."),
        one("half-a-character", "Draw a smile.", max_new_tokens=11),
        one("system", "What is the capital of Spain?", system="Answer with the name only."),
        one("cut-by-length", "Count to 12.", max_new_tokens=7),
        one("one-token", "Count to 5.", max_new_tokens=1),
        one("stop", "Count to 12.", stop=[", 7"]),
        one("two-stops", "Count to 12.", stop=["9, ", ", 5"]),
        one("stop-inside-a-token", "What is the capital of Japan?", stop=["okyo"]),
        one("stop-that-never-comes", "What is 23 + 42?", stop=["\n\n"]),
        one("thinking", "Is 76 even?", thinking=True),
        lines("lines", "Name two fruits."),
        lines("lines-of-thought", "Is 28 even?", thinking=True),
        lines("blank-lines", "Is 12 even?"),
        several("three-at-once", ["Count to 12.", "Draw a tree.", "What is the capital of Japan?"]),
        several("equal-questions", ["Count to 5.", "Count to 5."]),
    ]
