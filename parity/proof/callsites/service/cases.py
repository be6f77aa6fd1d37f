"""What a service logs and survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SURE, LLAMA = "golden/models/tiny-qwen3", "golden/models/random-llama"
DIFFERS: dict[str, str] = {}
SAMPLED = frozenset({"log-of-samples"})

COUNT, FRANCE = "Count to 12.", "What is the capital of France?"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def chat(question: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], **more}


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    described = ("described", "describe", {"model_path": SURE})
    return [("shown", "show", {"model_path": SURE, "chats": shown()}), described, *logged(), *survived()]


def shown() -> list[dict[str, Any]]:
    began = [{"role": "user", "content": COUNT}, {"role": "assistant", "content": "1, 2"}]
    mood = "{% for m in messages %}{{ mood }}: {{ m.content }}\n{% endfor %}"
    return [
        chat(FRANCE),
        chat(FRANCE, chat={"enable_thinking": True}, tools=[TOOL]),
        chat(FRANCE, chat={"add_generation_prompt": False}),
        {"messages": began, "continue_final": True},
        chat(FRANCE, chat={"template": mood, "kwargs": {"mood": "calm"}}),
    ]


def logged() -> list[tuple[str, str, dict[str, Any]]]:
    def case(name: str, model: str, *calls: Any, **more: Any) -> tuple[str, str, dict[str, Any]]:
        said = [{"requests": requests, "options": options} for requests, options in calls]
        return name, "record", {"model_path": model, "calls": said, **more}

    usual, few = {"max_new_tokens": 32}, {"max_new_tokens": 6}
    stops = {"strings": [", 4"], "token_ids": [13], "include_stop": False}
    named = {"max_new_tokens": 24, "min_new_tokens": 2, "repetition_penalty": 1.1, "stop": stops, "logprobs": 0}
    named |= {"max_prompt_tokens": 40, "truncate_prompt": True, "decode": {"strip": True}}
    alone = {"max_new_tokens": 20, "stop": {"ignore_eos": True}}
    warm = {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "seed": 3, "max_new_tokens": 6}
    told = chat("Hello", tools=[TOOL], chat={"kwargs": {"mood": "calm"}})
    return [
        case("log", SURE, ([chat(FRANCE)], usual)),
        case("log-of-settings", SURE, ([chat(COUNT), chat(FRANCE)], named), ([chat(FRANCE)], alone)),
        case("log-of-lost-switches", LLAMA, ([told, chat("Hello"), {"prompt": "The"}], few)),
        case("log-of-samples", LLAMA, ([{"prompt": "The"}, {"prompt": "a", "seed": 5}], warm)),
        case("log-of-a-store", LLAMA, ([{"prompt": "The"}], few), ([{"prompt": "a"}, {"prompt": "The"}], few)),
        case("log-of-the-spare", LLAMA, ([{"prompt": "The"}], {**few, "no_repeat_ngram_size": 2}), spare=True),
    ]


def survived() -> list[tuple[str, str, dict[str, Any]]]:
    prompts = ["The", "One two three four five", "a", "Oslo is the", "red red red red"]
    pairs = [["The", " capital"], ["One, two", ", three"]]
    few = {"max_new_tokens": 4}
    return [
        ("halved", "within_memory", {"model_path": LLAMA, "prompts": prompts, "max_new_tokens": 6, "most": 40}),
        ("one-too-large", "within_memory",
         {"model_path": LLAMA, "prompts": [*prompts, "Draw " * 20], "max_new_tokens": 6, "most": 40}),
        ("gradient", "learn", {"model_path": LLAMA, "pairs": pairs}),
        ("gradient-by-the-spare", "learn", {"model_path": LLAMA, "pairs": pairs, "spare": True}),
        ("random-numbers-beside", "draw_beside",
         {"model_path": LLAMA, "prompts": prompts[:2], "options": few, "seed": 7}),
        ("random-numbers-beside-samples", "draw_beside",
         {"model_path": LLAMA, "prompts": prompts[:2], "options": {**few, "temperature": 0.01, "seed": 5}, "seed": 7}),
    ]  # fmt: skip
