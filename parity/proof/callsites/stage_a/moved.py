"""Stage A on the engine."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from gen_engine import GenerationEngine, load

MIN_PIXELS = 64 * 64
MAX_PIXELS = 128 * 128


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path)


def _request(
    image_path: str, question: str, system: str | None, min_pixels: int, max_pixels: int, thinking: bool
) -> dict[str, Any]:
    content = [{"type": "image", "image": Path(image_path)}, {"type": "text", "text": question}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {
        "messages": messages,
        "chat": {"enable_thinking": thinking},
        "vlm": {"min_pixels": min_pixels, "max_pixels": max_pixels, "background": None},
    }


def _without_thoughts(text: str) -> str:
    return text.split("</think>")[-1].strip()


def summarize_image(
    model_path: str,
    image_path: str,
    question: str = "What do you see?",
    system: str | None = None,
    max_new_tokens: int = 64,
    min_pixels: int = MIN_PIXELS,
    max_pixels: int = MAX_PIXELS,
    thinking: bool = False,
) -> str:
    request = _request(image_path, question, system, min_pixels, max_pixels, thinking)
    options = {"max_new_tokens": max_new_tokens, "repetition_penalty": 1.05}  # it came from the checkpoint, unasked
    [result] = engine(model_path).generate_vlm_batch([request], options)
    return _without_thoughts(result.text)


def summarize_batch(
    model_path: str,
    image_paths: list[str],
    questions: list[str],
    system: str | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 4,
    min_pixels: int = MIN_PIXELS,
    max_pixels: int = MAX_PIXELS,
    thinking: bool = False,
) -> list[str]:
    """`batch_size` is left in the signature for the callers; the engine makes its own batches."""
    model = engine(model_path)
    requests = [
        _request(path, question, system, min_pixels, max_pixels, thinking)
        for path, question in zip(image_paths, questions)
    ]
    stop = {"ignore_eos": True, "token_ids": [model.tokenizer.eos_token_id]}  # the turn's end only, as it was
    results = model.generate_vlm_batch(requests, {"max_new_tokens": max_new_tokens, "stop": stop})
    return [_without_thoughts(result.text) for result in results]
