"""txtai: its LLM pipeline, with texts, chats and a length that counts the prompt."""

from __future__ import annotations

import functools
import re
from typing import Any

from parity.proof.foreign.engines import as_generate, engine
from parity.proof.foreign.material import Case, Mistake
from parity.proof.foreign.prompts import chats, contexts


@functools.cache
def loaded(model_path: str, dtype: str) -> Any:
    from txtai.pipeline import LLM

    return LLM(
        model_path, method="transformers", gpu=False, dtype=dtype, task="language-generation"
    )


def old_texts(model_path: str, dtype: str, prompts: list[str], length: int) -> list[str]:
    """Texts as they are."""
    llm = loaded(model_path, dtype)
    answers: list[str] = llm(prompts, maxlength=length, defaultrole="prompt", do_sample=False)
    return answers


def texts(model_path: str, dtype: str, prompts: list[str], length: int) -> list[str]:
    model = engine(model_path, dtype)
    answers = []
    for prompt in prompts:
        budget = length - len(model.tokenizer(prompt).input_ids)
        options = as_generate(model_path, max_new_tokens=budget, do_sample=False)
        [result] = model.generate_text_batch([{"prompt": prompt}], options)
        answers.append(cleaned(result.text))
    return answers


def cleaned(text: str) -> str:
    """Thoughts are taken away."""
    return re.sub(r"(?s)<think>.+?</think>", "", text).replace("$=", "<=").strip()


def old_talk(model_path: str, dtype: str, chats: list[Any], settings: dict[str, Any]) -> list[str]:
    answers: list[str] = loaded(model_path, dtype)(chats, maxlength=160, **settings)
    return answers


def talk(model_path: str, dtype: str, chats: list[Any], settings: dict[str, Any]) -> list[str]:
    model = engine(model_path, dtype)
    answers = []
    for chat in chats:
        request = {"messages": chat, "chat": {"enable_thinking": True}}
        budget = 160 - len(model.tokenizer(model.render(chat, chat=request["chat"])).input_ids)
        options = as_generate(model_path, max_new_tokens=budget, **settings)
        [result] = model.generate_text_batch([request], options)
        answers.append(cleaned(result.text))
    return answers


def cases(dtype: str) -> list[Case]:
    greedy = {"do_sample": False}
    warm = {"do_sample": True, "temperature": 0.8}
    return [
        Case("texts", "texts", {"prompts": contexts(dtype), "length": 112}),
        Case("chats", "talk", {"chats": chats(), "settings": greedy}),
        Case("sampled", "talk", {"chats": chats(), "settings": warm}),
    ]


MISTAKES = (
    Mistake(
        "length-for-budget",
        "texts",
        "stop.max_new_tokens",
        "length - len(model.tokenizer(prompt).input_ids)",
        "length",
    ),
    Mistake(
        "not-stripped",
        "texts",
        "value",
        '.replace("$=", "<=").strip()',
        '.replace("$=", "<=") + " "',
    ),
    Mistake(
        "top-k-lost",
        "sampled",
        "sampling.top_k",
        "max_new_tokens=budget, **settings",
        'max_new_tokens=budget, **{**settings, "top_k": 0}',
    ),
    Mistake(
        "last-turn-only",
        "chats",
        "prompt.messages",
        '{"messages": chat, "chat"',
        '{"messages": chat[-1:], "chat"',
    ),
)
