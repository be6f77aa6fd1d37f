"""lm-eval's generation and scoring on the engine."""

from __future__ import annotations

import json
from typing import Any

from parity.proof.foreign.engines import engine, sampling_defaults

DEFAULT_MAX_GEN_TOKS = 256


def generate_until(
    model_path: str,
    dtype: str,
    requests: list[dict[str, Any]],
    max_length: int | None = None,
    torch_seed: int | None = None,
) -> list[str]:
    """Answers in the order of the requests; those of equal settings share a call."""
    answers = [""] * len(requests)
    for indices in equal_settings(requests):
        contexts = [requests[index]["context"] for index in indices]
        options = hf_options(model_path, requests[indices[0]]["gen_kwargs"])
        if torch_seed is not None:
            options["seed"] = torch_seed
        if max_length is not None:
            options["max_prompt_tokens"] = max_length - options["max_new_tokens"]
            options["truncate_prompt"] = True
        prompts = [{"prompt": context} for context in contexts]
        results = engine(model_path, dtype).generate_text_batch(prompts, options)
        for index, result in zip(indices, results, strict=True):
            answers[index] = result.text
    return answers


def equal_settings(requests: list[dict[str, Any]]) -> list[list[int]]:
    """Indices of the requests, those with equal gen_kwargs together."""
    groups: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        key = json.dumps(request["gen_kwargs"], sort_keys=True)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def hf_options(model_path: str, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What HFLM hands to `generate`, with what that takes from the checkpoint."""
    defaults = sampling_defaults(model_path)
    options: dict[str, Any] = {
        "max_new_tokens": gen_kwargs.get("max_gen_toks", DEFAULT_MAX_GEN_TOKS),
        "repetition_penalty": defaults.repetition_penalty,
        "stop": gen_kwargs["until"],
    }
    if gen_kwargs.get("do_sample"):
        options["temperature"] = gen_kwargs["temperature"]
        options["top_k"] = gen_kwargs.get("top_k", defaults.top_k)
        options["top_p"] = gen_kwargs.get("top_p", defaults.top_p)
    return options


def chat_until(
    model_path: str, dtype: str, chats: list[list[dict[str, str]]], gen_kwargs: dict[str, Any]
) -> list[str]:
    """lm-eval says nothing of thinking, so the template's own default holds: to think."""
    requests = [{"messages": chat, "chat": {"enable_thinking": True}} for chat in chats]
    options = hf_options(model_path, gen_kwargs)
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    return [result.text for result in results]


def encode_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Ids of both parts of a pair, split where the context's own ids end."""
    if not context:
        ids = tokenizer.encode(continuation, add_special_tokens=False)
        prefix = tokenizer.bos_token_id
        if prefix is None:
            prefix = tokenizer.eos_token_id
        return ([prefix], ids) if ids[0] != prefix else (ids[:1], ids[1:])
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    context_ids = tokenizer.encode(stripped)
    whole = tokenizer.encode(stripped + continuation)
    return context_ids, whole[len(context_ids) :]


def loglikelihood(
    model_path: str,
    dtype: str,
    pairs: list[list[str]],
    softmax_dtype: str | None = "float32",
) -> list[tuple[float, bool]]:
    model = engine(model_path, dtype)
    items = [encode_pair(model.tokenizer, context, said) for context, said in pairs]
    answers = []
    for score in model.score_batch(items, logits=True):
        logprobs = score.logprobs
        if softmax_dtype is None:
            logprobs = logprobs_in(dtype, score)
        total = float(sum(logprobs))
        best = score.logits.argmax(-1).tolist()
        answers.append((total, best == list(score.token_ids)))
    return answers


def logprobs_in(dtype: str, score: Any) -> list[float]:
    """HFLM's log-softmax is in the model's dtype where no softmax_dtype is given."""
    import torch

    logprobs = score.logits.to(getattr(torch, dtype)).log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(score.token_ids).unsqueeze(1))
    return [float(chosen.sum())]


def vllm_generate_until(model_path: str, dtype: str, requests: list[dict[str, Any]]) -> list[str]:
    answers = [""] * len(requests)
    for indices in equal_settings(requests):
        prompts = [{"prompt": requests[index]["context"]} for index in indices]
        options = vllm_options(requests[indices[0]]["gen_kwargs"])
        results = engine(model_path, dtype).generate_text_batch(prompts, options)
        for index, result in zip(indices, results, strict=True):
            answers[index] = result.text
    return answers


def vllm_options(gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What lm-eval's VLLM class hands to SamplingParams. Where nothing is said, it samples at 1."""
    temperature = gen_kwargs.get("temperature", 1.0)
    if gen_kwargs.get("do_sample") is False:
        temperature = 0.0
    return {
        "max_new_tokens": gen_kwargs.get("max_gen_toks", DEFAULT_MAX_GEN_TOKS),
        "temperature": temperature,
        "top_p": gen_kwargs.get("top_p", 1.0),
        "seed": gen_kwargs.get("seed"),
        "stop": gen_kwargs["until"],
        "decode": {"skip_special_tokens": False},
    }


def vllm_loglikelihood(
    model_path: str, dtype: str, pairs: list[list[str]]
) -> list[tuple[float, bool]]:
    return loglikelihood(model_path, dtype, pairs)
