"""Chats as scripts have them: plain transformers, a batch at a time, padded on the left, bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@functools.cache
def loaded(model_path: str) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16)
    return tokenizer, model.eval()


def answer(model_path: str, questions: Sequence[str], system: str = "", max_new_tokens: int = 40) -> list[str]:
    """One answer to each question, greedy.   system: "" leaves the template's own system message."""
    tokenizer, model = loaded(model_path)
    head = [{"role": "system", "content": system}] if system else []
    chats = [[*head, {"role": "user", "content": question}] for question in questions]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.strip() for text in texts]


def sample(model_path: str, question: str, count: int = 4, seed: int = 0, max_new_tokens: int = 32) -> list[str]:
    """Several sampled answers to one question."""
    tokenizer, model = loaded(model_path)
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template([chat], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    torch.manual_seed(seed)
    with torch.no_grad():
        output = model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=True,
            temperature=0.8,
            top_p=0.95,
            top_k=0,
            num_return_sequences=count,
        )
    texts: list[str] = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return texts
