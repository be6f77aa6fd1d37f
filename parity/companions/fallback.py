# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Another backend where one cannot do something: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="fallback"`, and write

    engine = load("Qwen/Qwen3-8B", backend="vllm", fallback_backend="hf")
    engine = load("Qwen/Qwen3-8B", backend="auto")

gen_engine finds this file beside itself. The first runs on transformers what vLLM cannot do, with a
warning and `fallback_from` on the result; the second is vLLM where it can run what is asked for.
"""

from __future__ import annotations

import dataclasses
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["choose", "choose_backend", "config_for", "instead"]

Choice = tuple[
    ge.ModelLoadConfig, str, str | None
]  # config, why, and the backend that it stands for

log = logging.getLogger("gen_engine")


def on_hf(config: ge.ModelLoadConfig) -> ge.ModelLoadConfig:
    """A config for transformers, without what is vLLM's alone."""
    return dataclasses.replace(
        config, backend="hf", fallback_backend=None, vllm_kwargs={}, logits_hooks=False
    )


def config_for(error: ge.UnsupportedError, config: ge.ModelLoadConfig) -> ge.ModelLoadConfig:
    """What to load in place of a config that cannot do something. Raises the error where
    transformers cannot do it either."""
    if ge.refusal_of(ge.Asked(on_hf(config))):
        raise error
    log.warning("%s; falling back to %s", error, config.fallback_backend)
    return on_hf(config)


def choose_backend(config: ge.ModelLoadConfig) -> tuple[ge.ModelLoadConfig, str]:
    """(config, why) for "auto": vLLM where it is installed, finds its device and can do what the
    config wants; else hf."""
    if find_spec("vllm") is None:
        return on_hf(config), "auto: vllm is not installed"
    device = ge.lazy_import("vllm.platforms").current_platform.device_type
    if not device:
        return on_hf(config), "auto: vllm finds no device that it was built for"
    fast = dataclasses.replace(config, backend="vllm")
    refused = ge.refusal_of(ge.Asked(fast))
    if refused is not None:
        return on_hf(config), f"auto: {refused.problem}"
    return fast, f"auto: vllm is installed and runs on {device}"


def instead(error: ge.UnsupportedError, config: ge.ModelLoadConfig) -> Choice:
    """What to load in place of a config that cannot do something, as GenerationEngine takes it."""
    return config_for(error, config), f"fallback: {error.problem}", config.backend


def choose(config: ge.ModelLoadConfig) -> Choice:
    """What to load for a config with "auto" or a fallback. Raises UnsupportedError where nothing
    can."""
    why = "asked for"
    if config.backend == "auto":
        config, why = choose_backend(config)
    refused = ge.refusal_of(ge.Asked(config))
    if refused is None:
        return config, why, None
    if config.fallback_backend is None:
        raise refused
    return instead(refused, config)
