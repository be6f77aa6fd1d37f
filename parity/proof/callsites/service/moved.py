"""The service's helpers on the engine."""

from __future__ import annotations

import contextlib
import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy
import torch

from gen_engine import GenEngineError, GenerationEngine, load

SETTINGS = (
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n",
    "logprobs", "max_prompt_tokens", "truncate_prompt", "include_stop", "ignore_eos", "stop_strings",
    "skip_special_tokens", "strip", "eos_token_ids", "stop_token_ids", "max_model_len",
)  # fmt: skip
HERE = {"stop_strings": "strings"}  # as the service calls it


ANSWERS: dict[str, str] = {}  # of all engines; only `record` reads and writes it


@functools.cache
def engine(model_path: str, spare: Literal["hf"] | None = None) -> GenerationEngine:
    return load(model_path, dtype="float32", fallback_backend=spare, cache=ANSWERS)


def failure(error: GenEngineError, about: Sequence[str]) -> dict[str, Any]:
    kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return {"error": next(kinds), "request": error.index, "names": [word for word in about if word in str(error)]}


# == What is shown and kept ==

KNOWN = (
    "model", "architecture", "dtype", "max_model_len", "pad_token_id", "supports_vlm", "supports_gradients",
    "supports_hf_plugins", "backend",
)  # fmt: skip


def show(model_path: str, chats: list[dict[str, Any]]) -> list[str]:
    model = engine(model_path)
    return [model.render(**chat) for chat in chats]


def describe(model_path: str) -> dict[str, Any]:
    said = engine(model_path).describe()
    return {**{name: said[name] for name in KNOWN}, "eos_token_ids": sorted(said["eos_token_ids"])}


def settings_of(effective: Mapping[str, Any]) -> dict[str, list[Any]]:
    said = {HERE.get(name, name): effective[name] for name in SETTINGS}
    values = {name: entry["value"] for name, entry in said.items()}
    values["strings"] = list(values["strings"])
    return {name: [values[name], entry["from"]] for name, entry in said.items()}


def record_of(result: Any, spare: bool) -> dict[str, Any]:
    said = {
        "text": result.text,
        "reason": result.finish_reason,
        "stop": result.stop_reason,
        "raw": result.raw_text,
        "ids": list(result.token_ids),
        "prompt_ids": list(result.prompt_token_ids),
        "counts": [result.prompt_tokens, result.completion_tokens],
        "notes": [re.findall(r"knows no (\w+) switch", note)[0] for note in result.notes],
        "settings": settings_of(result.effective),
        "cached": result.cached,
    }
    return {**said, "by": result.backend, "instead_of": result.fallback_from} if spare else said


def record(model_path: str, calls: list[dict[str, Any]], spare: bool = False) -> list[list[dict[str, Any]]]:
    ANSWERS.clear()
    model = engine(model_path, "hf" if spare else None)
    asked = [model.generate_text_batch(call["requests"], call["options"]) for call in calls]
    return [[record_of(result, spare) for result in results] for results in asked]


# == Memory, gradients, random numbers ==


@contextlib.contextmanager
def little_memory(model: Any, most: int) -> Iterator[None]:
    """As on a device where a forward of more than `most` tokens (rows times columns) runs out of memory."""
    forward = model.forward

    @functools.wraps(forward)
    def limited(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].numel() > most:
            raise torch.OutOfMemoryError("out of memory, for a test")
        return forward(*args, **kwargs)

    model.forward = limited
    try:
        yield
    finally:
        del model.forward


def within_memory(model_path: str, prompts: list[str], max_new_tokens: int, most: int) -> list[Any]:
    model, requests = engine(model_path), [{"prompt": prompt} for prompt in prompts]
    with little_memory(model.model, most):
        options = {"max_new_tokens": max_new_tokens}
        found: list[Any] = model.generate_text_batch(requests, options, on_error="return", cache=False)
    about = ["out of memory"]
    return [failure(one, about) if isinstance(one, GenEngineError) else one.text for one in found]


def learn(model_path: str, pairs: list[list[str]], spare: bool = False) -> dict[str, Any]:
    model = engine(model_path, "hf" if spare else None)
    scores = model.score_batch([tuple(pair) for pair in pairs], grad=True)
    loss = -torch.stack([score.logprobs.sum() for score in scores]).sum()
    said: dict[str, Any] = {"loss": float(loss.detach()), "learns": loss.requires_grad}
    if spare:
        return {**said, "instead_of": scores[0].fallback_from}
    return {**said, "norm": norm_of(loss, model.model)}


def norm_of(loss: Any, model: Any) -> float:
    """Of the gradient of the embeddings, 0 where nothing can be learned."""
    if not loss.requires_grad:
        return 0.0
    loss.backward()
    norm = float(model.get_input_embeddings().weight.grad.norm())
    model.zero_grad()
    return norm


def draw_beside(model_path: str, prompts: list[str], options: dict[str, Any], seed: int) -> dict[str, Any]:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    requests = [{"prompt": prompt} for prompt in prompts]
    results = engine(model_path).generate_text_batch(requests, options, cache=False)
    texts = [result.text for result in results]
    return {"texts": texts, "next": [random.random(), float(numpy.random.rand()), float(torch.rand(()))]}
