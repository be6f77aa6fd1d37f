"""Mistakes of a migration, each in place of `moved.answer` or `moved.sample`; and faults of what was loaded.

`real_ground.MISTAKES` says which causes are right for each, and on which backends it can be made.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gen_engine
from parity.proof.real.moved import chats_of, engine

SCALE = 1.01


def texts(loaded: gen_engine.GenerationEngine, requests: list[dict[str, Any]], **options: Any) -> list[str]:
    return [result.text.strip() for result in loaded.generate_text_batch(requests, options)]


# == Of the call site ==


def lost_system_prompt(
    model_path: str, questions: Sequence[str], system: str = "", max_new_tokens: int = 40
) -> list[str]:
    """The system message is not passed on: the template puts its own there."""
    return texts(engine(model_path), chats_of(questions, ""), max_new_tokens=max_new_tokens)


def shorter(model_path: str, questions: Sequence[str], system: str = "", max_new_tokens: int = 40) -> list[str]:
    """Half of the tokens."""
    return texts(engine(model_path), chats_of(questions, system), max_new_tokens=max_new_tokens // 2)


def no_seed(model_path: str, question: str, count: int = 4, seed: int = 0, max_new_tokens: int = 32) -> list[str]:
    """The seed that the caller gave is not passed on."""
    options = {"max_new_tokens": max_new_tokens, "temperature": 0.8, "top_p": 0.95, "n": count}
    [result] = engine(model_path).generate_text_batch(chats_of([question], ""), options)
    return [one.text for one in result.samples]


def hotter(model_path: str, question: str, count: int = 4, seed: int = 0, max_new_tokens: int = 32) -> list[str]:
    """Another temperature."""
    options = {"max_new_tokens": max_new_tokens, "temperature": 1.2, "top_p": 0.95, "seed": seed, "n": count}
    [result] = engine(model_path).generate_text_batch(chats_of([question], ""), options)
    return [one.text for one in result.samples]


# == Of what was loaded ==


def scale_attention(model: Any) -> None:
    """Attention scores x SCALE, of plain transformers' modules or of vLLM's."""
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), float):
            module.scaling *= SCALE
        implementation: Any = getattr(module, "impl", None)
        if isinstance(getattr(implementation, "scale", None), float):
            implementation.scale *= SCALE


@functools.cache
def scaled_engine(model_path: str) -> gen_engine.GenerationEngine:
    loaded = gen_engine.load(model_path, dtype="bfloat16")
    with loaded.bare() as model:
        if loaded.backend.name == "vllm":
            model.apply_model(scale_attention)
        else:
            scale_attention(model)
    return loaded


def attention_scale(model_path: str, questions: Sequence[str], system: str = "", max_new_tokens: int = 40) -> list[str]:
    """Attention scores x 1.01: a wrong softmax scale."""
    return texts(scaled_engine(model_path), chats_of(questions, system), max_new_tokens=max_new_tokens)


def round_to_int8(value: Any) -> Any:
    """Symmetric, one scale per output channel."""
    scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (value / scale).round() * scale


@functools.cache
def changed_checkpoint(model_path: str, change: Callable[[Any], Any]) -> str:
    """A copy, of the same name, whose matrices in the layers were changed. Lasts as long as the process."""
    from safetensors import torch as safetensors

    folder = Path(tempfile.mkdtemp(prefix="parity-real-"), Path(model_path).name)
    shutil.copytree(model_path, folder)
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    for name, tensor in tensors.items():
        if "layers." in name and tensor.dim() == 2:
            tensors[name] = change(tensor.float()).to(tensor.dtype).contiguous()
    safetensors.save_file(tensors, file, metadata={"format": "pt"})
    return str(folder)


def int8_weights(model_path: str, questions: Sequence[str], system: str = "", max_new_tokens: int = 40) -> list[str]:
    """Weights that were rounded to int8, per output channel."""
    copy = changed_checkpoint(model_path, round_to_int8)
    return texts(engine(copy), chats_of(questions, system), max_new_tokens=max_new_tokens)


@functools.cache
def float16_engine(model_path: str) -> gen_engine.GenerationEngine:
    return gen_engine.load(model_path, dtype="float16")


def float16(model_path: str, questions: Sequence[str], system: str = "", max_new_tokens: int = 40) -> list[str]:
    """float16 for bfloat16."""
    return texts(float16_engine(model_path), chats_of(questions, system), max_new_tokens=max_new_tokens)
