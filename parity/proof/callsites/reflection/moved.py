"""Stage B reflection on the engine."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from gen_engine import GenerationEngine, load


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path)


def _ask(
    model_path: str, chats: list[list[dict[str, str]]], max_new_tokens: int, thinking: bool, clean_up: bool
) -> list[str]:
    model = engine(model_path)
    options = {
        "max_new_tokens": max_new_tokens,
        "repetition_penalty": 1.05,  # it came from the checkpoint, unasked
        "stop": {"ignore_eos": True, "token_ids": [model.tokenizer.eos_token_id]},  # the turn's end only, as it was
        "decode": {"clean_up_tokenization_spaces": clean_up},
    }
    requests = [{"messages": chat, "chat": {"enable_thinking": thinking}} for chat in chats]
    # "assistant\n": the old code split there to get rid of the prompt, and of whatever stood before it in an answer
    answers = [result.text.split("assistant\n")[-1] for result in model.generate_text_batch(requests, options)]
    return [answer.split("</think>")[-1].strip() for answer in answers]


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
