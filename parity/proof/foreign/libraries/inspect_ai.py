"""inspect-ai: its provider of local models, asked for several samples at once."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from parity.proof.foreign.engines import as_generate, engine
from parity.proof.foreign.material import Case, Mistake
from parity.proof.foreign.prompts import QUESTIONS, SYSTEM


@functools.cache
def loaded(model_path: str, dtype: str, do_sample: bool) -> Any:
    import torch
    from inspect_ai.model import get_model

    return get_model(
        "hf/local",
        model_path=model_path,
        device="cpu",
        dtype=getattr(torch, dtype),
        do_sample=do_sample,
        enable_thinking=False,
    )


def old_answers(
    model_path: str, dtype: str, questions: list[str], settings: dict[str, Any], do_sample: bool
) -> list[str]:
    """settings: of GenerateConfig. The thread that runs the model would outlive the call, and no
    recorder sees a model in a thread that is older than the call: it is ended by no request."""
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig
    from inspect_ai.model._providers import hf

    model = loaded(model_path, dtype, do_sample)
    config = GenerateConfig(**settings)

    async def ask(question: str) -> str:
        chat = [ChatMessageSystem(content=SYSTEM), ChatMessageUser(content=question)]
        completion: str = (await model.generate(chat, config=config)).completion
        return completion

    async def ask_all() -> list[str]:
        return await asyncio.gather(*[ask(question) for question in questions])

    completions = asyncio.run(ask_all())
    hf.batch_queue.put(None)
    hf.batch_thread.join()
    hf.batch_thread = None
    return completions


def answers(
    model_path: str, dtype: str, questions: list[str], settings: dict[str, Any], do_sample: bool
) -> list[str]:
    """Its stop strings stay in the text."""
    said = {**settings, "max_new_tokens": settings["max_tokens"], "do_sample": do_sample}
    said["stop"] = {"strings": said.pop("stop_seqs", []), "include_stop": True}
    del said["max_tokens"]
    requests = [
        {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]}
        for question in questions
    ]
    results = engine(model_path, dtype).generate_text_batch(
        requests, as_generate(model_path, **said)
    )
    return [result.text for result in results]


def cases(dtype: str) -> list[Case]:
    asked = {"questions": list(QUESTIONS)}
    greedy, warm = {"max_tokens": 40}, {"max_tokens": 40, "temperature": 0.8, "top_p": 0.9}
    stops = {"max_tokens": 40, "stop_seqs": [", 5", " is"]}
    return [
        Case("greedy", "answers", {**asked, "settings": greedy, "do_sample": False}),
        Case("stops", "answers", {**asked, "settings": stops, "do_sample": False}),
        Case("sampled", "answers", {**asked, "settings": warm, "do_sample": True}),
    ]


MISTAKES = (
    Mistake("stop-cut-off", "stops", "value stop decode", ', "include_stop": True'),
    Mistake("system-lost", "greedy", "prompt.messages", '{"role": "system", "content": SYSTEM}, '),
    Mistake(
        "greedy-after-all",
        "sampled",
        "sampling.mode",
        '"do_sample": do_sample}',
        '"do_sample": False}',
    ),
    Mistake(
        "stops-lost",
        "stops",
        "stop.strings",
        'said.pop("stop_seqs", [])',
        'said.pop("stop_seqs", [])[:0]',
    ),
)
