"""What outlines is asked: text, a year and labels by regular expression, a person as JSON."""

from __future__ import annotations

from typing import Any

from parity.proof.foreign.material import Case
from parity.proof.foreign.prompts import SYSTEM, chat, chats, checkpoint

VLLM = ("vllm",)
YEAR = {"regex": "(19|20)[0-9]{2}"}
LABEL = {"regex": "(Paris|Rome|Oslo|Madrid)"}
PERSON = {
    "json": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
    }
}
GREEDY = {"do_sample": False, "max_new_tokens": 40}


def cases(dtype: str) -> list[Case]:
    model = {"model_path": checkpoint(dtype), "dtype": dtype}
    return [*hf_cases(model), *vllm_cases(model)]


def hf_cases(model: dict[str, Any]) -> list[Case]:
    capitals = [chat(f"What is the capital of {name}?", SYSTEM) for name in ("France", "Italy")]
    capitals.append(
        chat("Name the capital of Norway. Say nothing else, please, than its name.", None)
    )
    people = [
        chat("Describe Ada, who is 36, as JSON.", None),
        chat("Describe Bo, 7, as JSON.", SYSTEM),
    ]
    year = "In which year did the second world war end? Answer with the year."
    sampled = {"do_sample": True, "temperature": 0.9, "max_new_tokens": 24}
    france = "What is the capital of France?"
    return [
        Case("unsaid", "ask", {**model, "prompt": france}),
        Case("text", "ask", {**model, "prompt": france, "settings": GREEDY}),
        Case(
            "texts",
            "ask_chats",
            {**model, "chats": chats(), "form": None, "settings": GREEDY},
        ),
        Case("year", "ask", {**model, "prompt": year, "form": YEAR, "settings": GREEDY}),
        Case(
            "labels",
            "ask_chats",
            {**model, "chats": capitals, "form": LABEL, "settings": GREEDY},
        ),
        Case(
            "people",
            "ask_chats",
            {**model, "chats": people, "form": PERSON, "settings": GREEDY},
        ),
        Case(
            "sampled",
            "ask_chats",
            {**model, "chats": chats(), "form": None, "settings": sampled},
        ),
        Case(
            "sampled-seeded",
            "ask",
            {**model, "prompt": france, "settings": sampled, "torch_seed": 5},
        ),
        Case(
            "sampled-years",
            "ask",
            {**model, "prompt": year, "form": YEAR, "settings": sampled},
        ),
    ]


def vllm_cases(model: dict[str, Any]) -> list[Case]:
    greedy = {"temperature": 0.0, "max_tokens": 32}
    seeded = {"temperature": 0.8, "max_tokens": 24, "seed": 3}
    common = {**model, "chats": chats()}
    return [
        Case("vllm-texts", "vllm_ask_chats", {**common, "form": None, "settings": greedy}, VLLM),
        Case("vllm-labels", "vllm_ask_chats", {**common, "form": LABEL, "settings": greedy}, VLLM),
        Case("vllm-seeded", "vllm_ask_chats", {**common, "form": None, "settings": seeded}, VLLM),
    ]
