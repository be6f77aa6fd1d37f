"""outlines' calls on the engine. Its own expression of a schema is kept: it allows blanks."""

from __future__ import annotations

import json
from typing import Any

from parity.proof.foreign.engines import engine, sampling_defaults, saved_sampling

TOKENS_OF_TRANSFORMERS = 20  # what `generate` gives where no budget is said
TOKENS_OF_VLLM = 16


def ask(
    model_path: str,
    dtype: str,
    prompt: str,
    form: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    torch_seed: int | None = None,
) -> str:
    """outlines makes a chat of a bare string where the tokenizer has a template."""
    chat = [{"role": "user", "content": prompt}]
    [answer] = answers(model_path, dtype, [chat], form, settings or {}, torch_seed)
    return answer


def ask_chats(
    model_path: str,
    dtype: str,
    chats: list[list[dict[str, str]]],
    form: dict[str, Any] | None,
    settings: dict[str, Any],
) -> list[str]:
    return answers(model_path, dtype, chats, form, settings, None)


def answers(
    model_path: str,
    dtype: str,
    chats: list[list[dict[str, str]]],
    form: dict[str, Any] | None,
    settings: dict[str, Any],
    seed: int | None,
) -> list[str]:
    structured = at_once(structure_of(form))
    requests = [
        {"messages": chat, "chat": {"enable_thinking": True}, "structured": structured}
        for chat in chats
    ]
    options = hf_options(model_path, settings)
    options["seed"] = seed
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    return [result.text for result in results]


def at_once(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """outlines' structures begin with the answer, also where the template lets the model think."""
    return form and {**form, "after": ""}


def structure_of(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None:
        return None
    if "regex" in form:
        return {"regex": form["regex"]}
    from outlines_core.json_schema import build_regex_from_schema

    return {"regex": build_regex_from_schema(json.dumps(form["json"]))}


def hf_options(model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
    """outlines says nothing by itself: what the caller does not say is the checkpoint's."""
    defaults = sampling_defaults(model_path)
    saved = saved_sampling(model_path)
    options: dict[str, Any] = {
        "max_new_tokens": settings.get("max_new_tokens", TOKENS_OF_TRANSFORMERS),
        "repetition_penalty": defaults.repetition_penalty,
    }
    if settings.get("do_sample", saved.do_sample):
        options["temperature"] = settings.get("temperature", saved.temperature)
        options["top_k"] = settings.get("top_k", defaults.top_k)
        options["top_p"] = settings.get("top_p", defaults.top_p)
    return options


def vllm_ask_chats(
    model_path: str,
    dtype: str,
    chats: list[list[dict[str, str]]],
    form: dict[str, Any] | None,
    settings: dict[str, Any],
) -> list[list[str]]:
    form = at_once(form)
    requests = [
        {"messages": chat, "chat": {"enable_thinking": True}, "structured": form} for chat in chats
    ]
    options = {
        "max_new_tokens": settings.get("max_tokens", TOKENS_OF_VLLM),
        "temperature": settings.get("temperature", 1.0),
        "seed": settings.get("seed"),
        "stop": settings.get("stop", []),
    }
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    return [[result.text] for result in results]
