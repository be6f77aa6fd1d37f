"""Stage B: a batch of rollouts for the reward model. Greedy for evaluation, sampled for exploration."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TERMINATORS = ["<|im_end|>", "<|endoftext|>"]

_models: dict[str, Any] = {}
_tokenizers: dict[str, Any] = {}


def _load(model_path: str) -> tuple[Any, Any]:
    if model_path not in _models:
        tokenizer = AutoTokenizer.from_pretrained(model_path)
        tokenizer.padding_side = "left"
        tokenizer.truncation_side = "left"  # keep the question, lose the beginning
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        _tokenizers[model_path] = tokenizer
        _models[model_path] = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    return _models[model_path], _tokenizers[model_path]


def _terminator_ids(tokenizer: Any, terminators: list[str]) -> list[int]:
    """Terminators that are one token end generation; the others are cut afterwards."""
    ids = [tokenizer.encode(t, add_special_tokens=False) for t in terminators]
    return [i[0] for i in ids if len(i) == 1]


def _cut(text: str, terminators: list[str]) -> str:
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
    model, tokenizer = _load(model_path)
    terminators = TERMINATORS if terminators is None else terminators
    end_ids = _terminator_ids(tokenizer, terminators) or [tokenizer.eos_token_id]
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=thinking)
        for chat in chats
    ]
    limit: dict[str, Any] = {"truncation": True, "max_length": max_prompt_tokens} if max_prompt_tokens else {}
    batch = tokenizer(texts, return_tensors="pt", padding=True, **limit)

    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        torch.manual_seed(seed)
        sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p}
    with torch.inference_mode():
        output = model.generate(
            **batch,
            max_new_tokens=max_new_tokens,
            eos_token_id=end_ids,
            pad_token_id=tokenizer.pad_token_id,
            **sampling,
        )

    rollouts = []
    for row in output[:, batch["input_ids"].shape[1] :].tolist():
        ends = [place for place, token_id in enumerate(row) if token_id in end_ids]
        ids = row[: ends[0]] if ends else row
        response = _cut(tokenizer.decode(ids, skip_special_tokens=True), terminators)
        rollouts.append({"response": response, "length": len(ids), "finished": bool(ends)})
    return rollouts
