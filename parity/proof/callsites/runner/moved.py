"""Stage B runner on the engine."""

from __future__ import annotations

import functools
from typing import Any

from gen_engine import GenerationEngine, load

END_OF_TURN = "<|im_end|>"


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path)


def _rules(text: str, stop: list[str], max_rules: int | None) -> list[str]:
    text = text.split(END_OF_TURN)[0]
    for s in stop:
        text = text.split(s)[0]
    lines = [line.strip().lstrip("-*").strip() for line in text.split("\n")]
    rules = [line for line in lines if line]
    return rules if max_rules is None else rules[:max_rules]


def propose_rules(
    model_path: str,
    prompts: list[str],
    system: str | None = None,
    stop: list[str] | None = None,
    max_new_tokens: int = 64,
    max_rules: int | None = None,
    thinking: bool = False,
) -> list[list[str]]:
    model = engine(model_path)
    head = [] if system is None else [{"role": "system", "content": system}]
    requests = [
        {
            "messages": [*head, {"role": "user", "content": prompt.strip()}],
            "chat": {"enable_thinking": thinking},
        }
        for prompt in prompts
    ]
    options = {
        "max_new_tokens": max_new_tokens,
        # the turn's end only, as it was; stops are kept in the text, where the old cut looks for them
        "stop": {
            "strings": stop or [],
            "token_ids": [model.tokenizer.eos_token_id],
            "ignore_eos": True,
            "include_stop": True,
        },
        "decode": {"skip_special_tokens": False},
    }
    results = model.generate_text_batch(requests, options)
    pad = model.tokenizer.pad_token
    return [_rules(result.text.replace(pad, ""), stop or [], max_rules) for result in results]


def propose_one(model_path: str, prompt: str, **options: Any) -> str:
    """The first rule, or an empty string."""
    [rules] = propose_rules(model_path, [prompt], max_rules=1, **options)
    return rules[0] if rules else ""
