"""Answers that somebody reads while they are written. Plain transformers: generate in a thread, its text by a
streamer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

_LOADED: dict[str, tuple[Any, Any]] = {}


def _load(model_path: str) -> tuple[Any, Any]:
    if model_path not in _LOADED:
        tokenizer = AutoTokenizer.from_pretrained(model_path)
        model = AutoModelForCausalLM.from_pretrained(model_path, dtype="auto")
        _LOADED[model_path] = model.eval(), tokenizer
    return _LOADED[model_path]


def _pieces(
    model_path: str, question: str, system: str | None, thinking: bool, max_new_tokens: int, stop: list[str]
) -> Iterator[str]:
    """New text, as it comes; of a stop, too, which nobody knows for one until it is whole."""
    model, tokenizer = _load(model_path)
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=thinking, return_dict=True, return_tensors="pt"
    )
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    how: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False, "streamer": streamer}
    if stop:
        how |= {"stop_strings": stop, "tokenizer": tokenizer}
    thread = threading.Thread(target=model.generate, kwargs={**inputs, **how})
    thread.start()
    yield from streamer
    thread.join()


def answer(
    model_path: str,
    question: str,
    system: str | None = None,
    thinking: bool = False,
    max_new_tokens: int = 64,
    stop: list[str] | None = None,
) -> str:
    """Printed as it comes, and given back up to the first stop."""
    text = ""
    for piece in _pieces(model_path, question, system, thinking, max_new_tokens, stop or []):
        print(piece, end="", flush=True)
        text += piece
    print()
    ends = [text.find(one) for one in stop or [] if one in text]
    return text[: min(ends, default=len(text))]


def answer_lines(model_path: str, question: str, thinking: bool = False, max_new_tokens: int = 64) -> list[str]:
    """Each line as soon as it is whole, as a page that is sent events gets them."""
    lines = []
    rest = ""
    for piece in _pieces(model_path, question, None, thinking, max_new_tokens, []):
        *whole, rest = (rest + piece).split("\n")
        lines += whole
    return [*lines, rest]


def answer_all(model_path: str, questions: list[str], max_new_tokens: int = 64) -> list[str]:
    """One after the other: a streamer takes one answer at a time."""
    return ["".join(_pieces(model_path, question, None, False, max_new_tokens, [])) for question in questions]
