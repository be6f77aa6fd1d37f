"""Stage B reflection: ask for a JSON object, dig it out of the answer, mend it or ask again."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@lru_cache(maxsize=2)
def _load(model_path: str) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype="auto", attn_implementation="sdpa")
    model.eval()
    return model, tokenizer


def _answer_of(decoded: str) -> str:
    """The decoded sequence holds the prompt too: what follows the last role line is the answer."""
    answer = decoded.split("assistant\n")[-1]
    return answer.split("</think>")[-1].strip()


def _ask(
    model_path: str, chats: list[list[dict[str, str]]], max_new_tokens: int, thinking: bool, clean_up: bool
) -> list[str]:
    model, tokenizer = _load(model_path)
    texts = [
        tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True, enable_thinking=thinking)
        for m in chats
    ]
    inputs = tokenizer(texts, padding=True, return_tensors="pt").to(model.device)
    with torch.no_grad():
        output = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
    whole = tokenizer.batch_decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up)
    return [_answer_of(text) for text in whole]


def _parse(answer: str) -> Any | None:
    """The object from the first brace to the last; a truncated one loses its last, unfinished pair."""
    match = re.search(r"\{.*\}", answer, re.DOTALL)
    candidates = [match.group(0)] if match else []
    if "{" in answer and "," in answer:
        candidates.append(answer[answer.index("{") :].rsplit(",", 1)[0] + "}")
    for candidate in candidates:
        try:
            return json.loads(candidate)
        except json.JSONDecodeError:
            continue
    return None


def reflect(
    model_path: str,
    question: str,
    system: str | None = None,
    max_new_tokens: int = 64,
    retries: int = 1,
    nudge: str | None = None,
    thinking: bool = False,
    clean_up: bool = False,
) -> dict[str, Any]:
    """Ask until there is an object: each time with twice the budget, and with `nudge` as a further turn."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": question})
    answers: list[str] = []
    for attempt in range(retries + 1):
        [answer] = _ask(model_path, [messages], max_new_tokens * 2**attempt, thinking, clean_up)
        answers.append(answer)
        data = _parse(answer)
        if data is not None:
            return {"ok": True, "data": data, "answers": answers}
        if nudge is not None:
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": nudge}]
    return {"ok": False, "data": None, "answers": answers}


def reflect_batch(
    model_path: str, questions: list[str], max_new_tokens: int = 64, retries: int = 1, thinking: bool = False
) -> list[dict[str, Any]]:
    """All of them at once, then those without an object one by one with twice the budget."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    results = []
    for question, answer in zip(questions, _ask(model_path, chats, max_new_tokens, thinking, False)):
        data = _parse(answer)
        if data is None and retries:
            results.append(reflect(model_path, question, None, max_new_tokens * 2, retries - 1, None, thinking))
        else:
            results.append({"ok": data is not None, "data": data, "answers": [answer]})
    return results
