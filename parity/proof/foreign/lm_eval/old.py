"""lm-eval's two model classes, called as its evaluator calls them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

VLLM_WINDOW = 1024


@functools.cache
def hf_model(
    model_path: str, dtype: str, max_length: int | None, softmax_dtype: str | None
) -> HFLM:
    return HFLM(
        pretrained=model_path,
        dtype=dtype,
        device="cpu",
        batch_size=4,
        max_length=max_length,
        softmax_dtype=softmax_dtype,
    )


@functools.cache
def vllm_model(model_path: str, dtype: str) -> Any:
    from lm_eval.models.vllm_causallms import VLLM

    return VLLM(
        pretrained=model_path,
        dtype=dtype,
        max_model_len=VLLM_WINDOW,
        max_num_seqs=16,
        num_gpu_blocks_override=96,
        gpu_memory_utilization=0.1,
        enforce_eager=True,
        max_logprobs=20,
    )


def instances(kind: Any, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


def generation_requests(requests: list[dict[str, Any]]) -> list[Instance]:
    pairs = [(request["context"], request["gen_kwargs"]) for request in requests]
    return instances("generate_until", pairs)


def generate_until(
    model_path: str,
    dtype: str,
    requests: list[dict[str, Any]],
    max_length: int | None = None,
    torch_seed: int | None = None,
) -> list[str]:
    """requests: {"context": str, "gen_kwargs": ...}. torch_seed: as the evaluator sets it, once."""
    model = hf_model(model_path, dtype, max_length, None)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    answers: list[str] = model.generate_until(generation_requests(requests), disable_tqdm=True)
    return answers


def chat_until(
    model_path: str, dtype: str, chats: list[list[dict[str, str]]], gen_kwargs: dict[str, Any]
) -> list[str]:
    model = hf_model(model_path, dtype, None, None)
    requests = [(model.apply_chat_template(chat), gen_kwargs) for chat in chats]
    given = instances("generate_until", requests)
    answers: list[str] = model.generate_until(given, disable_tqdm=True)
    return answers


def loglikelihood(
    model_path: str,
    dtype: str,
    pairs: list[list[str]],
    softmax_dtype: str | None = "float32",
) -> list[tuple[float, bool]]:
    """pairs: [context, continuation]."""
    model = hf_model(model_path, dtype, None, softmax_dtype)
    requests = instances("loglikelihood", [tuple(pair) for pair in pairs])
    scores: list[tuple[float, bool]] = model.loglikelihood(requests, disable_tqdm=True)
    return scores


def vllm_generate_until(model_path: str, dtype: str, requests: list[dict[str, Any]]) -> list[str]:
    model = vllm_model(model_path, dtype)
    answers: list[str] = model.generate_until(generation_requests(requests), disable_tqdm=True)
    return answers


def vllm_loglikelihood(
    model_path: str, dtype: str, pairs: list[list[str]]
) -> list[tuple[float, bool]]:
    model = vllm_model(model_path, dtype)
    requests = instances("loglikelihood", [tuple(pair) for pair in pairs])
    scores: list[tuple[float, bool]] = model.loglikelihood(requests, disable_tqdm=True)
    return scores
