"""smolagents: the two local models that its agents ask."""

from __future__ import annotations

import functools
from typing import Any

from parity.proof.foreign.engines import as_generate, as_vllm, engine
from parity.proof.foreign.material import Case, Mistake
from parity.proof.foreign.prompts import QUESTIONS, SYSTEM, VLLM_ROOM


@functools.cache
def loaded(kind: str, model_path: str, dtype: str) -> Any:
    import smolagents

    if kind == "vllm":
        return smolagents.VLLMModel(model_path, model_kwargs={"dtype": dtype, **VLLM_ROOM})
    return smolagents.TransformersModel(
        model_path, device_map="cpu", torch_dtype=dtype, max_new_tokens=48
    )


def old_ask(
    model_path: str, dtype: str, messages: list[Any], stops: list[str], settings: dict[str, Any]
) -> str:
    model = loaded("hf", model_path, dtype)
    answer: str = model.generate(messages, stop_sequences=stops, **settings).content
    return answer


def ask(
    model_path: str, dtype: str, messages: list[Any], stops: list[str], settings: dict[str, Any]
) -> str:
    options = as_generate(model_path, **{"max_new_tokens": 48, **settings})
    options["stop"] = stops
    [result] = engine(model_path, dtype).generate_text_batch([request_of(messages)], options)
    return result.text


def request_of(messages: list[Any]) -> dict[str, Any]:
    """smolagents joins turns of one role. It says nothing of thinking: the template thinks."""
    turns: list[dict[str, str]] = []
    for message in messages:
        text = message["content"][0]["text"]
        if turns and turns[-1]["role"] == message["role"]:
            turns[-1]["content"] += "\n" + text
        else:
            turns.append({"role": message["role"], "content": text})
    return {"messages": turns, "chat": {"enable_thinking": True}}


def old_vllm_ask(model_path: str, dtype: str, messages: list[Any], stops: list[str]) -> str:
    model = loaded("vllm", model_path, dtype)
    answer: str = model.generate(messages, stop_sequences=stops, max_tokens=48).content
    return answer


def vllm_ask(model_path: str, dtype: str, messages: list[Any], stops: list[str]) -> str:
    options = as_vllm(temperature=0.0, max_tokens=48, stop=stops)
    [result] = engine(model_path, dtype).generate_text_batch([request_of(messages)], options)
    return result.text


def turns(*texts: str) -> list[dict[str, Any]]:
    """A system turn, and user turns."""
    roles = ["system", *["user"] * (len(texts) - 1)]
    return [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in zip(roles, texts, strict=True)
    ]


def cases(dtype: str) -> list[Case]:
    greedy = {"do_sample": False}
    asked = [turns(SYSTEM, question) for question in QUESTIONS]
    observed = turns(SYSTEM, "Observation: nothing yet.", QUESTIONS[1])
    return [
        *(
            Case(f"greedy-{n}", "ask", {"messages": each, "stops": [], "settings": greedy})
            for n, each in enumerate(asked)
        ),
        Case("stops", "ask", {"messages": asked[1], "stops": ["5", "7"], "settings": greedy}),
        Case("joined", "ask", {"messages": observed, "stops": [], "settings": greedy}),
        Case("unsaid", "ask", {"messages": asked[0], "stops": [], "settings": {}}),
        Case("vllm-stops", "vllm_ask", {"messages": asked[1], "stops": ["5", "7"]}, ("vllm",)),
        Case("vllm", "vllm_ask", {"messages": asked[2], "stops": []}, ("vllm",)),
    ]


MISTAKES = (
    Mistake("stops-lost", "stops", "stop.strings", '    options["stop"] = stops\n'),
    Mistake(
        "turns-lost",
        "joined",
        "prompt.messages",
        'turns[-1]["content"] += "\\n" + text',
        'turns[-1]["content"] = text',
    ),
    Mistake(
        "thinking-off",
        "greedy-0",
        "prompt.template",
        '"chat": {"enable_thinking": True}',
        '"chat": {}',
        dtypes=("float32",),
    ),
    Mistake(
        "vllm-default-temperature", "vllm", "sampling.mode", "temperature=0.0, ", backends=("vllm",)
    ),
)
