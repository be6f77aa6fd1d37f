"""Stage B rollout on the engine."""

from __future__ import annotations

import functools
from typing import Any

from gen_engine import GenerationEngine, load

TERMINATORS = ["<|im_end|>", "<|endoftext|>"]


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path)


def _terminator_ids(tokenizer: Any, terminators: list[str]) -> list[int]:
    """Terminators that are one token; and always the turn's end, without which a row babbles on to its limit."""
    ids = [tokenizer.encode(t, add_special_tokens=False) for t in terminators]
    return [*(i[0] for i in ids if len(i) == 1), tokenizer.eos_token_id]


def _cut(text: str, terminators: list[str]) -> str:
    """The old rule: the first of the list that is found cuts, and one at the very beginning does not."""
    for terminator in terminators:
        pos = text.find(terminator)
        if pos > 0:
            return text[:pos]
    return text


def rollout(
    model_path: str,
    prompts: list[str],
    terminators: list[str] | None = None,
    system: str | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    samples: int = 1,
    max_prompt_tokens: int | None = None,
    thinking: bool = False,
) -> list[dict[str, Any]]:
    head = [] if system is None else [{"role": "system", "content": system}]
    chats = [[*head, {"role": "user", "content": prompt}] for prompt in prompts for _ in range(samples)]
    return rollout_chats(
        model_path, chats, terminators, max_new_tokens, temperature, top_p, seed, max_prompt_tokens, thinking
    )


def rollout_chats(
    model_path: str,
    chats: list[list[dict[str, str]]],
    terminators: list[str] | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    thinking: bool = False,
) -> list[dict[str, Any]]:
    model = engine(model_path)
    terminators = TERMINATORS if terminators is None else terminators
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "repetition_penalty": 1.05,  # this and top_k came from the checkpoint, unasked
        "stop": {"token_ids": _terminator_ids(model.tokenizer, terminators), "ignore_eos": True},
        "max_prompt_tokens": max_prompt_tokens,
        "truncate_prompt": max_prompt_tokens is not None,
    }
    if temperature > 0:
        options |= {"temperature": temperature, "top_p": top_p, "top_k": 20}
    requests = [
        {"messages": chat, "chat": {"enable_thinking": thinking}, "seed": seed + place}
        for place, chat in enumerate(chats)
    ]
    rollouts = []
    for result in model.generate_text_batch(requests, options):
        finished = result.finish_reason != "length"
        length = result.completion_tokens - finished
        rollouts.append({"response": _cut(result.text, terminators), "length": length, "finished": finished})
    return rollouts
