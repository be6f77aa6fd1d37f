"""outlines: its two local model classes, with text, a regular expression and a JSON schema."""

from __future__ import annotations

import functools
import json
from typing import Any

from parity.proof.foreign.engines import as_generate, as_vllm, engine
from parity.proof.foreign.material import REAL, TINY, Case, Mistake
from parity.proof.foreign.prompts import SYSTEM, VLLM_ROOM, chat, chats


@functools.cache
def loaded(kind: str, model_path: str, dtype: str) -> Any:
    import outlines
    import torch
    import transformers

    if kind == "vllm":
        from vllm import LLM

        return outlines.from_vllm_offline(LLM(model_path, dtype=dtype, **VLLM_ROOM))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype)
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    return outlines.from_transformers(model.eval(), tokenizer)


def output_type(form: dict[str, Any] | None) -> Any:
    """form: None, {"regex": str} or {"json": schema}."""
    from outlines.types import JsonSchema, Regex

    if form is None:
        return None
    if "regex" in form:
        return Regex(form["regex"])
    return JsonSchema(json.dumps(form["json"]))


def old_ask(
    model_path: str,
    dtype: str,
    prompt: str,
    form: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    torch_seed: int | None = None,
) -> str:
    import torch

    model = loaded("hf", model_path, dtype)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    answer: str = model(prompt, output_type(form), **(settings or {}))
    return answer


def ask(
    model_path: str,
    dtype: str,
    prompt: str,
    form: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    torch_seed: int | None = None,
) -> str:
    """outlines makes a chat of a bare string where the tokenizer has a template."""
    options = {**as_generate(model_path, **(settings or {})), "seed": torch_seed}
    chat = [{"role": "user", "content": prompt}]
    [answer] = answers(model_path, dtype, [chat], structure_of(form), options)
    return answer


def old_ask_chats(
    model_path: str, dtype: str, chats: list[Any], form: Any, settings: dict[str, Any]
) -> list[str]:
    from outlines.inputs import Chat

    model = loaded("hf", model_path, dtype)
    answers: list[str] = model.batch([Chat(chat) for chat in chats], output_type(form), **settings)
    return answers


def ask_chats(
    model_path: str, dtype: str, chats: list[Any], form: Any, settings: dict[str, Any]
) -> list[str]:
    options = as_generate(model_path, **settings)
    return answers(model_path, dtype, chats, structure_of(form), options)


def structure_of(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """outlines' own expression of a schema, which allows blanks."""
    from outlines_core.json_schema import build_regex_from_schema

    if form and "json" in form:
        return {"regex": build_regex_from_schema(json.dumps(form["json"]))}
    return form


def answers(
    model_path: str, dtype: str, chats: list[Any], form: Any, options: dict[str, Any]
) -> list[str]:
    """A structure begins with the answer, also where the template lets the model think."""
    structured = form and {**form, "after": ""}
    requests = [
        {"messages": chat, "chat": {"enable_thinking": True}, "structured": structured}
        for chat in chats
    ]
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    return [result.text for result in results]


def old_vllm_ask_chats(
    model_path: str, dtype: str, chats: list[Any], form: Any, settings: dict[str, Any]
) -> list[list[str]]:
    """settings: of vLLM's SamplingParams."""
    from outlines.inputs import Chat
    from vllm import SamplingParams

    answers: list[list[str]] = loaded("vllm", model_path, dtype).batch(
        [Chat(chat) for chat in chats],
        output_type(form),
        sampling_params=SamplingParams(**settings),
    )
    return answers


def vllm_ask_chats(
    model_path: str, dtype: str, chats: list[Any], form: Any, settings: dict[str, Any]
) -> list[list[str]]:
    return [[text] for text in answers(model_path, dtype, chats, form, as_vllm(**settings))]


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


def cases(dtype: str) -> list[Case]:
    year, label = {"regex": "(19|20)[0-9]{2}"}, {"regex": "(Paris|Rome|Oslo|Madrid)"}
    greedy = {"do_sample": False, "max_new_tokens": 40}
    sampled = {"do_sample": True, "temperature": 0.9, "max_new_tokens": 24}
    capitals = [chat(f"What is the capital of {name}?", SYSTEM) for name in ("France", "Italy")]
    capitals.append(
        chat("Name the capital of Norway. Say nothing else, please, than its name.", None)
    )
    people = [
        chat("Describe Ada, who is 36, as JSON.", None),
        chat("Describe Bo, 7, as JSON.", SYSTEM),
    ]
    france = {"prompt": "What is the capital of France?"}
    war = "In which year did the second world war end? Answer with the year."
    ended = {"prompt": war, "form": year}
    texts: dict[str, Any] = {"chats": chats(), "form": None}
    seeded = {"temperature": 0.8, "max_tokens": 24, "seed": 3}
    cold = {"temperature": 0.0, "max_tokens": 32}
    labelled = {"chats": chats(), "form": label, "settings": cold}
    return [
        Case("unsaid", "ask", france),
        Case("text", "ask", {**france, "settings": greedy}),
        Case("texts", "ask_chats", {**texts, "settings": greedy}),
        Case("year", "ask", {**ended, "settings": greedy}),
        Case("labels", "ask_chats", {"chats": capitals, "form": label, "settings": greedy}),
        Case("people", "ask_chats", {"chats": people, "form": PERSON, "settings": greedy}),
        Case("sampled", "ask_chats", {**texts, "settings": sampled}),
        Case("sampled-seeded", "ask", {**france, "settings": sampled, "torch_seed": 5}),
        Case("sampled-years", "ask", {**ended, "settings": sampled}),
        Case("vllm-texts", "vllm_ask_chats", {**texts, "settings": cold}, ("vllm",)),
        Case("vllm-labels", "vllm_ask_chats", labelled, ("vllm",)),
        Case("vllm-seeded", "vllm_ask_chats", {**texts, "settings": seeded}, ("vllm",)),
    ]


ONE = "{**as_generate(model_path, **(settings or {})),"
MANY = "as_generate(model_path, **settings)"
CHAT = '{"messages": chat, "chat": {"enable_thinking": True}, "structured"'
TEXTS = "[result.text for result in results]"
MISTAKES = (
    Mistake("structure-lost", "labels", "sampling", 'form and {**form, "after": ""}', "None"),
    Mistake(
        "looser-regex",
        "year",
        "sampling",
        '{**form, "after": ""}',
        '{"regex": form["regex"].replace("{2}", "{2,}"), "after": ""}',
    ),
    Mistake(
        "own-json",
        "people",
        "sampling",
        '{"regex": build_regex_from_schema(json.dumps(form["json"]))}',
        "form",
    ),
    Mistake("no-chat", "text", "prompt", CHAT, '{"prompt": chat[-1]["content"], "structured"'),
    Mistake("system-lost", "texts", "prompt", CHAT, CHAT.replace("chat,", "chat[-1:],")),
    Mistake("thinking-off", "text", "prompt", CHAT, CHAT.replace("True", "False"), dtypes=TINY),
    Mistake("engine-budget", "unsaid", "stop", ONE, f'{ONE} "max_new_tokens": 256,', dtypes=REAL),
    Mistake(
        "penalty-lost",
        "texts",
        "sampling",
        MANY,
        f'{MANY} | {{"repetition_penalty": 1.0}}',
        dtypes=TINY,
    ),
    Mistake(
        "greedy-by-default", "unsaid", "sampling", ONE, f'{ONE} "temperature": 0.0,', dtypes=TINY
    ),
    Mistake("top-k-lost", "sampled", "sampling", MANY, f'{MANY} | {{"top_k": None}}', dtypes=REAL),
    Mistake("seed-given", "sampled", "sampling", MANY, f'{MANY} | {{"seed": 42}}', dtypes=REAL),
    Mistake("raw-text", "texts", "decode", TEXTS, TEXTS.replace("text", "raw_text")),
    Mistake(
        "first-line",
        "texts",
        "value decode calls",
        TEXTS,
        TEXTS.replace("text", 'text.split("\\n")[0]'),
    ),
)
