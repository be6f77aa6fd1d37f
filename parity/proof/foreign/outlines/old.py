"""outlines' two local model classes: text, a regular expression and a JSON schema."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch
import transformers
from outlines.inputs import Chat
from outlines.types import JsonSchema, Regex

import outlines


@functools.cache
def hf_model(model_path: str, dtype: str) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype)
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    return outlines.from_transformers(model.eval(), tokenizer)


@functools.cache
def vllm_model(model_path: str, dtype: str) -> Any:
    from vllm import LLM

    model = LLM(
        model=model_path,
        dtype=dtype,
        max_model_len=1024,
        max_num_seqs=16,
        num_gpu_blocks_override=96,
        gpu_memory_utilization=0.1,
        enforce_eager=True,
    )
    return outlines.from_vllm_offline(model)


def output_type(form: dict[str, Any] | None) -> Any:
    """form: None, {"regex": str} or {"json": schema}."""
    if form is None:
        return None
    if "regex" in form:
        return Regex(form["regex"])
    return JsonSchema(json.dumps(form["json"]))


def ask(
    model_path: str,
    dtype: str,
    prompt: str,
    form: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    torch_seed: int | None = None,
) -> str:
    model = hf_model(model_path, dtype)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    answer: str = model(prompt, output_type(form), **(settings or {}))
    return answer


def ask_chats(
    model_path: str,
    dtype: str,
    chats: list[list[dict[str, str]]],
    form: dict[str, Any] | None,
    settings: dict[str, Any],
) -> list[str]:
    model = hf_model(model_path, dtype)
    answers: list[str] = model.batch([Chat(chat) for chat in chats], output_type(form), **settings)
    return answers


def vllm_ask_chats(
    model_path: str,
    dtype: str,
    chats: list[list[dict[str, str]]],
    form: dict[str, Any] | None,
    settings: dict[str, Any],
) -> list[list[str]]:
    """settings: of vLLM's SamplingParams."""
    from vllm import SamplingParams

    model = vllm_model(model_path, dtype)
    parameters = SamplingParams(**settings)
    answers: list[list[str]] = model.batch(
        [Chat(chat) for chat in chats], output_type(form), sampling_params=parameters
    )
    return answers
