"""fschat: generate_stream, the decode loop behind FastChat's workers."""

from __future__ import annotations

import functools
from typing import Any

from parity.proof.foreign.engines import engine
from parity.proof.foreign.material import Case, Mistake
from parity.proof.foreign.prompts import contexts


@functools.cache
def loaded(model_path: str, dtype: str) -> Any:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype)
    )
    return model.eval(), transformers.AutoTokenizer.from_pretrained(model_path)


def old_answer(model_path: str, dtype: str, prompt: str, settings: dict[str, Any]) -> list[Any]:
    """The last of the stream's pieces: its text, and why it ended."""
    from fastchat.serve.inference import generate_stream

    model, tokenizer = loaded(model_path, dtype)
    params = {"prompt": prompt, "echo": False, **settings}
    *_, last = generate_stream(model, tokenizer, params, "cpu", context_len=1024)
    return [last["text"], last["finish_reason"]]


def answer(model_path: str, dtype: str, prompt: str, settings: dict[str, Any]) -> list[Any]:
    """One id ends a row: the tokenizer's."""
    model = engine(model_path, dtype)
    options = {
        "max_new_tokens": settings["max_new_tokens"],
        "temperature": settings["temperature"],
        "top_p": settings.get("top_p", 1.0),
        "repetition_penalty": settings.get("repetition_penalty", 1.0),
        "stop": {
            "strings": settings.get("stop", []),
            "token_ids": [model.tokenizer.eos_token_id],
            "ignore_eos": True,
        },
    }
    [result] = model.generate_text_batch([{"prompt": prompt}], options)
    return [result.text, "length" if result.finish_reason == "length" else "stop"]


def cases(dtype: str) -> list[Case]:
    greedy = {"temperature": 0.0, "max_new_tokens": 32}
    # It looks at every second token, and cuts at the last of equal stops: at one that comes once.
    ends = {"float32": "\n", "bfloat16": "\n\nQ"}
    stops = {**greedy, "stop": [", 7", ends[dtype]]}
    penalty = {**greedy, "repetition_penalty": 2.0}
    how = {"greedy": greedy, "stops": stops, "penalty": penalty}
    return [
        Case(f"{name}-{n}", "answer", {"prompt": prompt, "settings": settings})
        for name, settings in how.items()
        for n, prompt in enumerate(contexts(dtype))
    ]


MISTAKES = (
    Mistake(
        "stops-lost", "stops-1", "stop", '"strings": settings.get("stop", [])', '"strings": []'
    ),
    Mistake(
        "penalty-lost",
        "penalty-1",
        "sampling",
        'settings.get("repetition_penalty", 1.0)',
        "1.0",
    ),
    Mistake(
        "engine-budget", "greedy-1", "stop.max_new_tokens stop", 'settings["max_new_tokens"]', "256"
    ),
    Mistake(
        "chat-again",
        "greedy-0 greedy-1",
        "prompt.messages prompt.text prompt.ids",
        '[{"prompt": prompt}]',
        '[{"messages": [{"role": "user", "content": prompt}]}]',
    ),
)
