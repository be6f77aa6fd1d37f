"""Answers that somebody reads while they are written, on the engine and its companion streaming.py."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from gen_engine import GenerationEngine, load
from parity.companions.streaming import stream


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path)


def _request(question: str, system: str | None = None, thinking: bool = False) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages, "chat": {"enable_thinking": thinking}}


def _options(max_new_tokens: int, stop: list[str] | None = None) -> dict[str, Any]:
    # the penalty came from the checkpoint, unasked
    return {"max_new_tokens": max_new_tokens, "repetition_penalty": 1.05, "stop": stop or []}


def _pieces(model_path: str, request: dict[str, Any], options: dict[str, Any]) -> Iterator[str]:
    for piece in stream(engine(model_path), [request], options):
        yield piece.text


def answer(
    model_path: str,
    question: str,
    system: str | None = None,
    thinking: bool = False,
    max_new_tokens: int = 64,
    stop: list[str] | None = None,
) -> str:
    text = ""
    for piece in _pieces(model_path, _request(question, system, thinking), _options(max_new_tokens, stop)):
        print(piece, end="", flush=True)
        text += piece
    print()
    return text


def answer_lines(model_path: str, question: str, thinking: bool = False, max_new_tokens: int = 64) -> list[str]:
    lines = []
    rest = ""
    for piece in _pieces(model_path, _request(question, None, thinking), _options(max_new_tokens)):
        *whole, rest = (rest + piece).split("\n")
        lines += whole
    return [*lines, rest]


def answer_all(model_path: str, questions: list[str], max_new_tokens: int = 64) -> list[str]:
    """All at once; their pieces come as they are written."""
    texts = [""] * len(questions)
    requests = [_request(question) for question in questions]
    for piece in stream(engine(model_path), requests, _options(max_new_tokens)):
        texts[piece.index] += piece.text
    return texts
