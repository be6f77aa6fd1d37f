"""Engines of the moved call sites, and what old code took without saying so."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gen_engine import GenerationEngine, load

__all__ = ["PIPELINE", "as_generate", "as_vllm", "engine", "saved"]

# what `generate` and a text pipeline take where neither caller nor checkpoint says it
GENERATE: dict[str, Any] = {
    "max_new_tokens": 20,
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
}
PIPELINE = {"max_new_tokens": 256, "do_sample": True, "temperature": 0.7}


@functools.cache
def engine(model_path: str, dtype: Any) -> GenerationEngine:
    """The engine of a checkpoint. logits_hooks: scores need full logits on vLLM, too."""
    return load(model_path, dtype=dtype, logits_hooks=True, progress=False)


@functools.cache
def saved(model_path: str) -> Any:
    import transformers

    return transformers.GenerationConfig.from_pretrained(model_path)


def as_generate(
    model_path: str, defaults: Mapping[str, Any] = GENERATE, **said: Any
) -> dict[str, Any]:
    """Options of `generate(**said)`: what is not said is the checkpoint's, then the library's."""
    settings = {**GENERATE, **defaults}
    for name in settings:
        value = getattr(saved(model_path), name)
        settings[name] = settings[name] if value is None else value
    settings |= said
    if not settings.pop("do_sample"):
        settings |= {"temperature": 0.0, "top_k": None, "top_p": 1.0}
    settings["top_k"] = settings["top_k"] or None
    return settings


def as_vllm(**said: Any) -> dict[str, Any]:
    """Options of what `SamplingParams(**said)` says."""
    renamed = {
        "max_new_tokens": said.pop("max_tokens", 16),
        "temperature": said.pop("temperature", 1.0),
    }
    return {**renamed, **said}
