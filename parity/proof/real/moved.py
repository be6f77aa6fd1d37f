"""The same on gen_engine, on either backend."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gen_engine


@functools.cache
def engine(model_path: str) -> gen_engine.GenerationEngine:
    return gen_engine.load(model_path, dtype="bfloat16")


def chats_of(questions: Sequence[str], system: str) -> list[dict[str, Any]]:
    head = [{"role": "system", "content": system}] if system else []
    return [{"messages": [*head, {"role": "user", "content": question}]} for question in questions]


def answer(model_path: str, questions: Sequence[str], system: str = "", max_new_tokens: int = 40) -> list[str]:
    options = {"max_new_tokens": max_new_tokens}
    results = engine(model_path).generate_text_batch(chats_of(questions, system), options)
    return [result.text.strip() for result in results]


def sample(model_path: str, question: str, count: int = 4, seed: int = 0, max_new_tokens: int = 32) -> list[str]:
    options = {"max_new_tokens": max_new_tokens, "temperature": 0.8, "top_p": 0.95, "seed": seed, "n": count}
    [result] = engine(model_path).generate_text_batch(chats_of([question], ""), options)
    return [one.text for one in result.samples]
