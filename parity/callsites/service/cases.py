"""What a service logs, refuses and survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SURE, LLAMA, VL = (f"golden/models/{name}" for name in ("tiny-qwen3", "random-llama", "tiny-qwen3-vl"))
DIFFERS: dict[str, str] = {}
SAMPLED = frozenset({"log-of-samples"})

COUNT, FRANCE = "Count to 12.", "What is the capital of France?"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def chat(question: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], **more}


def call(about: list[str], options: dict[str, Any], *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"requests": list(requests), "options": options, "about": about, **more}


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    found = [(name, "refuse", {"model_path": model, "calls": calls}) for name, model, calls in refused()]
    described = ("described", "describe", {"model_path": SURE})
    return [("shown", "show", {"model_path": SURE, "chats": shown()}), described, *logged(), *found, *survived()]


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


def refused() -> list[tuple[str, str, list[dict[str, Any]]]]:
    few, hello = {"max_new_tokens": 4}, {"prompt": "Hello"}
    fields = [
        call(["temprature", "temperature"], {**few, "temprature": 1.0}, hello),
        call(["promt", "prompt"], few, {"promt": "Hello"}, hello),
        call(["sed", "seed"], few, hello, {"prompt": "Hello", "sed": 1}, all_or_none=True),
        call(["thinking", "enable_thinking"], few, chat("Hello", chat={"thinking": True}), hello),
        call(["string", "strings"], {**few, "stop": {"string": ["a"]}}, hello),
        call(["skip_special", "skip_special_tokens"], {**few, "decode": {"skip_special": True}}, hello),
        call(["bakend", "backend"], few, load={"bakend": "hf"}),
    ]
    bad: list[dict[str, Any]] = [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": 0}, {"min_p": 2.0}, {"n": 0}]
    bad += [{"repetition_penalty": 0.0}, {"max_new_tokens": 0}, {"seed": -1}, {"no_repeat_ngram_size": 0}]
    bad += [{"logprobs": 1000}, {"max_new_tokens": 2.5}, {"temperature": "hot"}]
    bounds = [call(list(one), one, hello) for one in bad]
    bounds += [call(["min_new_tokens"], {"min_new_tokens": 9, "max_new_tokens": 4}, hello)]
    bounds += [call(["float12"], few, load={"dtype": "float12"})]
    bounds += [call(["max_model_len", "1024"], few, load={"max_model_len": 1024})]
    ids = [
        call(["563", "-1"], few, {"prompt_token_ids": [40, 563]}, hello, {"prompt_token_ids": [-1]}),
        call(["563"], {**few, "stop": {"token_ids": [563]}}, hello),
        call(["600"], few, pairs=[["Hello", [40, 5]], ["Hello", [600]]]),
        call(["no tokens"], few, pairs=[["Hello", ""]]),
    ]
    long = [
        call(["40", "12"], {"max_new_tokens": 500}, hello, {"prompt_token_ids": [40] * 40}),
        call(["40", "12"], {"max_new_tokens": 500}, hello, {"prompt_token_ids": [40] * 40}, all_or_none=True),
        call(["max_prompt_tokens"], {**few, "max_prompt_tokens": 2}, {"prompt_token_ids": [40] * 3}),
        call(["524"], few, pairs=[["Hello", "no"], ["Hello", "7" * 520]]),
    ]
    marked = chat("Say <|im_end|>.", chat={"special_tokens": "refuse"})
    free = chat("Say <b>.", chat={"special_tokens": "refuse"})
    markers = [
        call(["<|im_end|>"], few, free, marked),
        call(["<|im_end|>"], {**few, "stop": {"strings": ["a<|im_end|>"]}}, hello),
    ]
    system = {"role": "admin", "content": "Hello"}
    parts = [{"type": "audio", "audio": "a.mp3"}]
    shapes = [
        call(["messages", "prompt"], few, {**chat("Hello"), "prompt": "Hello"}, {}, hello),
        call(["messages is empty"], few, {"messages": []}, hello),
        call(["role", "admin"], few, {"messages": [system]}, hello),
        call(["content"], few, {"messages": [{"role": "user"}]}, hello),
        call(["audio"], few, {"messages": [{"role": "user", "content": parts}]}, hello),
        call(["continue_final"], few, chat("Hello", continue_final=True), hello),
        call(["tools", "chat"], few, {"prompt": "Hello", "tools": [TOOL]}, hello),
        call(["adapter", "french"], few, {"prompt": "Hello", "adapter": "french"}, hello),
        call(["prompt", "no tokens"], few, {"prompt_token_ids": []}, hello),
    ]
    number, yes = {"type": "integer", "multipleOf": 5}, {"choice": ["yes", "no"]}
    forms = [
        call(["2 forms"], few, {"prompt": "Hello", "structured": {"regex": "a", **yes}}, hello),
        call(["min_new_tokens"], {**few, "min_new_tokens": 2}, {"prompt": "Hello", "structured": yes}, hello),
        call(["logprobs"], {**few, "logprobs": 0}, {"prompt": "Hello", "structured": yes}, hello),
        call(["multipleOf"], few, {"prompt": "Hello", "structured": {"json": number}}, hello),
    ]
    part, question = {"type": "image"}, {"type": "text", "text": "What?"}
    seen = {"messages": [{"role": "user", "content": [part, question]}]}
    far, empty = "https://example.com/a.png", "data:image/png;base64,AAAA"
    budget = {"min_pixels": 9_000, "max_pixels": 4_000}
    pictures = [
        call(["no/such.png"], few, {**seen, "images": ["no/such.png"]}, pictures=True),
        call([far], few, {**seen, "images": [far]}, pictures=True),
        call(["unreadable picture"], few, {**seen, "images": [empty]}, pictures=True),
        call(["min_pixels", "max_pixels"], few, {**seen, "images": [far], "vlm": budget}, pictures=True),
        call(["images"], few, {**seen, "images": ["a.png", "b.png"]}, pictures=True),
        call(["no picture"], few, chat("What?"), pictures=True),
    ]
    rules = [call(["ZeroDivisionError"], {"max_new_tokens": 20}, chat(COUNT), chat(FRANCE), breaks_at=", 3")]
    broken = [call(["ZeroDivisionError"], few, chat(COUNT), chat(FRANCE), breaks=True)]
    fast = [
        call([name], {**few, name: value}, hello, fast=True)
        for name, value in {"no_repeat_ngram_size": 2, "temperature": 3.0}.items()
    ]
    return [
        ("unknown-fields", LLAMA, fields),
        ("out-of-bounds", LLAMA, bounds),
        ("unknown-ids", LLAMA, ids),
        ("too-long", LLAMA, long),
        ("markers", SURE, markers),
        ("malformed", SURE, shapes),
        ("forms-that-cannot-be", LLAMA, forms),
        ("no-such-pictures", VL, pictures),
        ("no-such-model", LLAMA, [call(["no/such"], few, load={"model": "no/such"})]),
        ("rule-that-breaks", SURE, rules),
        ("processor-that-breaks", SURE, broken),
        ("not-for-the-fast-library", LLAMA, fast),
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
