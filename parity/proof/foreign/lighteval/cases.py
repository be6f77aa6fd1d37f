"""What lighteval is asked: chats with few-shot turns, plain text with stops, and samples.

One sample of a document: with more, lighteval's criterion looks at the first rows of the batch only
and cuts the others where those have ended, which no move can give.
"""

from __future__ import annotations

from typing import Any

from parity.proof.foreign.material import Case
from parity.proof.foreign.prompts import QUESTIONS, SYSTEM, checkpoint, contexts

SHOTS = [
    {"query": "What is the capital of Norway?", "choices": ["Oslo."]},
    {"query": "What is 12 + 30?", "choices": ["42."]},
]
STOPS = [", 7", " is", "apple", ". "]


def documents(questions: list[str], **fields: Any) -> list[dict[str, Any]]:
    return [{"query": question, "generation_size": 32, **fields} for question in questions]


def cases(dtype: str) -> list[Case]:
    model = {"model_path": checkpoint(dtype), "dtype": dtype}
    questions, texts = list(QUESTIONS), contexts(dtype)
    instruction = "Answer in one word. "
    shots = documents(questions[:2], fewshot_samples=SHOTS, instruction=instruction)
    shots += documents(questions[2:], fewshot_samples=SHOTS[:1], instruction=instruction)
    stops = documents(texts, stop_sequences=STOPS)
    greedy: dict[str, Any] = {}
    warm = {"temperature": 0.7}
    return [
        Case(
            "chats", "greedy_until", {**model, "docs": documents(questions), "parameters": greedy}
        ),
        Case("few-shot", "greedy_until", {**model, "docs": shots, "parameters": greedy}),
        Case(
            "system",
            "greedy_until",
            {**model, "docs": documents(questions), "parameters": greedy, "system": SYSTEM},
        ),
        Case(
            "plain",
            "greedy_until",
            {**model, "docs": stops, "parameters": greedy, "chat": False},
        ),
        Case(
            "penalty",
            "greedy_until",
            {**model, "docs": documents(questions), "parameters": {"repetition_penalty": 1.2}},
        ),
        Case(
            "samples", "greedy_until", {**model, "docs": documents(questions), "parameters": warm}
        ),
        Case(
            "seeded",
            "greedy_until",
            {**model, "docs": documents(questions[1:2]), "parameters": warm, "torch_seed": 9},
        ),
    ]
