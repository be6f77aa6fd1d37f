"""Requests in our own form and in OpenAI's: the same answers from a line of a file, a row of Ray and a call."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gen_engine import (
    GenEngineError,
    GenerationEngine,
    GenerationOptions,
    OptionError,
    TextGenerationRequest,
    UnsupportedError,
    build,
)
from parity.companions import ray_data
from parity.companions.batch_files import answer_file
from parity.companions.penalties import Penalties
from parity.companions.ray_data import Generate
from parity.companions.request_forms import (
    Replies,
    bind_options,
    bind_request,
    read_body,
    read_fields,
    token_bytes,
)
from parity.models.tasks import TOOLS

from ..conftest import TEXT, Load, chat

CAPITAL = "What is the capital of France?"
THINK = {"chat_template_kwargs": {"enable_thinking": True}}
BODIES: dict[str, dict[str, Any]] = {
    "plain": chat(CAPITAL),
    "tools": {**chat("What is the weather in Oslo?"), "tools": TOOLS},
    "tools, none to be called": {**chat("What is the weather in Oslo?"), "tools": TOOLS, "tool_choice": "none"},
    "thought": {**chat("Is 28 even?"), **THINK},
    "thought, bounded": {**chat("Count to 12."), **THINK, "thinking_token_budget": 4},
    "structure behind the thought": {
        **chat(CAPITAL),
        **THINK,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}},
        },
    },
    "penalties": {**chat("Count to 5."), "presence_penalty": 1.5, "logit_bias": {"300": -5}, "bad_words": ["3"]},
    "goes on": {
        "messages": [*chat(CAPITAL)["messages"], {"role": "assistant", "content": "The capital of"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "limits": {**chat("Count to 12."), "max_tokens": 12, "max_completion_tokens": 3, "logprobs": True},
}


@pytest.fixture
def engine(hooked: GenerationEngine) -> GenerationEngine:
    return hooked


def file_choices(engine: GenerationEngine, folder: Path, bodies: Sequence[Any]) -> list[dict[str, Any]]:
    """The first choice of each body, from a file."""
    asked = [{"custom_id": str(k), "body": {"model": TEXT.name, **body}} for k, body in enumerate(bodies)]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    answer_file(folder / "in.jsonl", folder / "out.jsonl", engine, {"max_new_tokens": 96}, progress=False)
    lines = map(json.loads, (folder / "out.jsonl").read_text().splitlines())
    return [line["response"]["body"]["choices"][0] for line in lines]


def test_bodies_are_answered_alike_in_files_and_rows(
    engine: GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict(zip(BODIES, file_choices(engine, tmp_path, list(BODIES.values()))))
    messages = {name: choice["message"] for name, choice in found.items()}
    assert messages["plain"] == {"role": "assistant", "content": "The capital of France is Paris."}
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    call = {"id": "call_0", "type": "function", "function": function}
    assert messages["tools"] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert found["tools"]["finish_reason"] == "tool_calls"
    assert "tool_calls" not in messages["tools, none to be called"]
    assert messages["thought"]["reasoning"] == "\nI look at the last digit.\n"
    assert messages["thought"]["content"] == "\n\n28 is even.\nVerdict: yes"
    assert len(messages["thought, bounded"]["reasoning"]) < len("\nI go up one by one.\n")
    structured = messages["structure behind the thought"]
    assert json.loads(structured["content"]) == {"a": 1} and structured["reasoning"] == "\nI know this country.\n"
    penalised = {"presence_penalty": 1.5, "logit_bias": {300: -5}, "bad_words": ["3"]}
    [expected] = engine.generate_text_batch([chat("Count to 5.")], plugins=[Penalties(engine, **penalised)])
    assert messages["penalties"]["content"] == expected.text != "1, 2, 3, 4, 5."
    [expected] = engine.generate_text_batch(
        [{"messages": BODIES["goes on"]["messages"], "continue_final": True}], {"max_new_tokens": 96}
    )
    assert (
        expected.text.startswith(" France is Paris.")
        and messages["goes on"] == Replies(engine).choices([expected])[0]["message"]
    )
    assert len(found["limits"]["logprobs"]["content"]) == 3

    monkeypatch.setattr(ray_data, "open_engine", lambda model, settings: engine)
    worker = Generate("any", {"max_new_tokens": 96}, columns=["choices", "text"])
    rows = worker({"body": [json.dumps(body) if k % 2 else body for k, body in enumerate(BODIES.values())]})
    assert rows["error"].to_pylist() == [None] * len(BODIES)
    for name, row in zip(BODIES, rows["choices"].to_pylist()):
        [choice] = json.loads(row)
        assert choice["message"] == messages[name]


def test_rows_have_columns_of_their_own_for_chat_options_and_plugins(
    engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_data, "open_engine", lambda model, settings: engine)
    begun = [*chat(CAPITAL)["messages"], {"role": "assistant", "content": "The capital of"}]
    asked: list[dict[str, Any]] = [
        {**chat("Is 28 even?"), "chat": {"enable_thinking": True}, "options": {"max_new_tokens": 96}},
        {"messages": begun, "continue_final": True},
        {**chat("Count to 5."), "penalties": {"bad_words": ["3"]}},
        {**chat("Count to 12."), "options": '{"max_new_tokens": 3}'},
        {**chat(CAPITAL), "penalties": {"bad_wrds": ["3"]}},
        {**chat(CAPITAL), "body": {}},
    ]
    names = {name for row in asked for name in row}
    columns = Generate("any", {"max_new_tokens": 24})({name: [row.get(name) for row in asked] for name in names})
    rows = {name: columns[name].to_pylist() for name in ("text", "completion_tokens", "error")}
    assert rows["text"][0].startswith("<think>\nI look at the last digit.")
    assert rows["text"][1].startswith(" France is Paris.")
    assert rows["text"][2].startswith("1, 2, ") and "3" not in rows["text"][2]
    assert rows["completion_tokens"][3] == 3
    assert "Did you mean 'bad_words'" in rows["error"][4]
    assert "messages beside body" in rows["error"][5]


def test_lines_have_fields_of_their_own_for_plugins(engine: GenerationEngine, tmp_path: Path) -> None:
    thinking = {**chat("Count to 12."), "chat": {"enable_thinking": True}, "thinking": {"budget": 4}}
    asked = [{**chat("Count to 5."), "penalties": {"bad_words": ["3"]}}, thinking]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    answer_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine, {"max_new_tokens": 96}, progress=False)
    banned, bounded = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert "3" not in banned["text"] and banned["text"].startswith("1, 2, ")
    assert "</think>" in bounded["text"] and "one by one" not in bounded["text"]


def test_plugins_without_logits_hooks_are_refused_by_line(shared: Load, tmp_path: Path) -> None:
    fast = shared(TEXT, "vllm")
    asked = [{**chat("Count to 5."), "penalties": {"bad_words": ["3"]}}, chat(CAPITAL)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    answer_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", fast, {"max_new_tokens": 24}, progress=False)
    refused, good = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert "logits_hooks" in refused["error"]["message"] and good["text"] == "The capital of France is Paris."


def test_a_repetition_penalty_beside_others_acts_before_them_as_in_vllm() -> None:
    wanted = read_body({**chat("a"), "repetition_penalty": 1.2, "presence_penalty": 1})
    options, plugins = bind_options(wanted, GenerationOptions())
    assert options.repetition_penalty == 1 and plugins["penalties"]["repetition_penalty"] == 1.2
    both = read_fields({"prompt": "a", "penalties": {"repetition_penalty": 1.1}})
    with pytest.raises(OptionError, match="in the options and in penalties"):
        bind_options(both, GenerationOptions(repetition_penalty=1.2))


@pytest.mark.parametrize(
    ("piece", "text", "expected"),
    [
        ("Ġhi", " hi", b" hi"),
        ("▁hi", "hi", b" hi"),
        ("<0xE4>", "\ufffd", b"\xe4"),
        ("ä½", "\ufffd", b"\xe4\xbd"),
        ("é", "\ufffd", b"\xe9"),
        ("\ufffd", "\ufffd", "\ufffd".encode()),
        ("<|im_end|>", "<|im_end|>", b"<|im_end|>"),
    ],
)
def test_token_bytes_of_words_and_of_parts_of_characters(piece: str, text: str, expected: bytes) -> None:
    assert token_bytes(piece, text) == expected


def test_logprobs_of_parts_of_characters_join_to_the_text(text: GenerationEngine) -> None:
    sentence = "Grüße, 日本 🙂 " + "".join(map(chr, range(0xA1, 0x180)))  # each byte of two that go on
    ids = text.tokenizer.encode(sentence, add_special_tokens=False)
    replies = Replies(text)
    assert b"".join(bytes(replies.token(i)["bytes"]) for i in ids).decode() == sentence
    assert any("\ufffd" in replies.token(i)["token"] for i in ids)


@pytest.mark.parametrize("field", ["reasoning_effort", "documents", "structured_outputs", "best_of"])
def test_a_field_that_is_not_carried_is_refused_with_its_name(field: str) -> None:
    with pytest.raises(UnsupportedError, match=f"body.{field} is "):
        read_body({**chat("a"), field: "high"})


def test_reasoning_effort_is_refused_with_what_templates_read() -> None:
    with pytest.raises(UnsupportedError, match="give theirs in chat_template_kwargs, or bound the thought"):
        read_body({**chat("a"), "reasoning_effort": "high"})


WEATHER = "What is the weather in Oslo?"
NAMED = {"type": "function", "function": {"name": "add"}}
CHOICES: list[tuple[dict[str, Any], Any]] = [
    ({"tool_choice": "required"}, list),
    ({"tool_choice": "required", "parallel_tool_calls": False}, dict),
    ({"tool_choice": NAMED}, dict),
    ({"tool_choice": NAMED, "chat_template_kwargs": {"enable_thinking": True}}, dict),
]


@pytest.mark.parametrize(("fields", "kind"), CHOICES, ids=["required", "single", "named", "behind a thought"])
def test_an_answer_that_must_be_a_call_is_one_and_alike_on_both_backends(
    both: Callable[[Path], list[GenerationEngine]], fields: dict[str, Any], kind: type
) -> None:
    body = {**chat(WEATHER), "tools": TOOLS, "max_tokens": 160, "temperature": 0, **fields}
    found = []
    for engine in both(TEXT):
        wanted = read_body(body)
        request = bind_request(wanted, engine, build(TextGenerationRequest, wanted.request))
        options, _ = bind_options(wanted, GenerationOptions())
        [result] = engine.generate_text_batch([request], options)
        [choice] = Replies(engine).choices([result], wanted.tools)
        if kind is list:  # which this model was never shown, and does not end
            assert result.text.startswith('[{"name":"get_weather","arguments":{"city":')
        else:
            assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
            assert isinstance(json.loads(result.text.rpartition("</think>")[2]), kind)
            [call] = choice["message"]["tool_calls"]
            asked = fields["tool_choice"]
            assert call["function"]["name"] == ("get_weather" if asked == "required" else "add")
        found.append((result.token_ids, choice["message"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("fields", "problem", "fix"),
    [
        ({"tool_choice": "some"}, "body.tool_choice is 'some'", "known: none, auto, required"),
        ({"tool_choice": {"type": "function", "function": {"name": "ad"}}}, "is 'ad', which is none", "add"),
        ({"tool_choice": "required", "tools": []}, "a call of no tools", "give tools"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "beside a body.tool_choice", "one"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls is false", "take the first"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls is 1", "true or false"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "chat_template_kwargs"),
    ],
)
def test_what_a_choice_of_tools_cannot_say_is_refused_with_what_to_do(
    fields: dict[str, Any], problem: str, fix: str
) -> None:
    with pytest.raises(GenEngineError) as refused:
        read_body({**chat("a"), "tools": TOOLS, **fields})
    assert problem in str(refused.value) and fix in str(refused.value.fix)


def test_what_schemas_of_tools_define_is_defined_for_the_whole_answer() -> None:
    own = {"type": "object", "properties": {"at": {"$ref": "#/$defs/place"}}, "$defs": {"place": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "go", "parameters": own}}
    schema = read_body({**chat("a"), "tools": [tool], "tool_choice": "required"}).request["structured"]["json"]
    assert schema["$defs"] == own["$defs"] and "$defs" in own
    assert schema["items"]["properties"]["arguments"] == {key: own[key] for key in ("type", "properties")}


def test_a_malformed_call_is_no_call_and_is_named(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([chat(CAPITAL)], {"max_new_tokens": 24})
    broken = dataclasses.replace(result, text='So: <tool_call>{"name": "add", "argu')
    whole = dataclasses.replace(
        result, text='So:\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    )
    first, second = Replies(text).choices([broken, whole], TOOLS)
    assert first["message"]["content"] == broken.text and first["finish_reason"] == "stop"
    assert len(first["message"]["tool_call_errors"]) == 1 and "tool_calls" not in first["message"]
    assert second["message"]["content"] == "So:"
    assert second["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 1, "b": 2}'
