"""Structured output: the same grammar engine, the same text on both backends, also mixed in one ragged batch."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gen_engine import GenerationEngine, OptionError, RequestError, StructuredOptions, build

from ..conftest import TEXT, Load, chat

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"regex": r"[a-c]{3}-\d{2}"},
    {"json": PERSON},
    {"json": json.dumps(PERSON)},
    {"choice": ["yes", "no", 'may "be"\n']},
    {"grammar": 'root ::= "<" [x-z] [x-z]? ">"'},
]
QUESTIONS = ["What is the capital of France?", "Give me a JSON object for Anna, 31, from Paris.", "Is 17 even?"]


def fits(form: dict[str, Any], text: str) -> bool:
    [(kind, value)] = form.items()
    if kind == "json":
        return set(json.loads(text)) == {"name", "age"}
    if kind == "choice":
        return text in value
    return bool(re.fullmatch(value if kind == "regex" else "<[x-z]{1,2}>", text))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_the_text_has_the_form_and_is_the_same_on_both(shared: Load, form: dict[str, Any]) -> None:
    requests = [chat(question, structured=form) for question in QUESTIONS]
    options = {"max_new_tokens": 60, "repetition_penalty": 1.3}  # so that an endless repetition comes to an end
    hf, vllm = (shared(TEXT, backend).generate_text_batch(requests, options) for backend in ("hf", "vllm"))
    assert [r.token_ids for r in hf] == [r.token_ids for r in vllm]
    finished = [r for r in hf if r.finish_reason == "eos"]
    assert finished and all(fits(form, r.text) for r in finished)


def test_one_ragged_batch_mixes_forms_and_free_rows(shared: Load) -> None:
    requests = [
        chat(QUESTIONS[k % 3], **({"structured": form} if form else {})) for k, form in enumerate([*FORMS, None])
    ]
    options = {"max_new_tokens": 60, "repetition_penalty": 1.3}
    hf, vllm = (shared(TEXT, backend).generate_text_batch(requests, options) for backend in ("hf", "vllm"))
    assert [r.token_ids for r in hf] == [r.token_ids for r in vllm]
    alone = [shared(TEXT, "hf").generate_text_batch([request], options)[0] for request in requests]
    assert hf == alone


def test_any_json_object(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([chat(QUESTIONS[1], structured={"json_object": True})])
    assert isinstance(json.loads(result.text), dict)
    assert '": ' not in result.text  # one way to write it: without white space


def test_a_stop_string_may_end_a_structured_row_early(text: GenerationEngine) -> None:
    request = chat(QUESTIONS[0], structured={"regex": "[ab]{4}c"})
    [result] = text.generate_text_batch([request], {"stop": ["aa", "ab", "ba", "bb"]})
    assert (result.text, result.finish_reason) == ("", "stop")  # two letters in, one of the four is complete


@pytest.mark.parametrize("form", [{"regex": "(["}, {"grammar": "nonsense"}, {"json": "{"}], ids=repr)
def test_a_form_that_cannot_be_compiled_is_refused_with_the_index(text: GenerationEngine, form: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="request 1: "):
        text.generate_text_batch([chat("a"), chat("b", structured=form)])
    assert text.generate_text_batch([chat(QUESTIONS[0])])[0].text == "The capital of France is Paris."


@pytest.mark.parametrize(
    "form", [{}, {"regex": "a", "choice": ["b"]}, {"choice": []}, {"regex": ""}, {"jsn": {}}], ids=repr
)
def test_exactly_one_form(form: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        build(StructuredOptions, form)


@pytest.mark.parametrize(
    "word", [{"type": "integer", "multipleOf": 5}, {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}]
)
def test_what_a_grammar_cannot_see_to_is_refused_not_ignored(text: GenerationEngine, word: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": word}, "required": ["a"]}
    with pytest.raises(RequestError, match="request 0: xgrammar would not see to '(multipleOf|uniqueItems)'"):
        text.generate_text_batch([chat("x", structured={"json": schema})])
    named = {"type": "object", "properties": {"multipleOf": {"const": 5}}, "required": ["multipleOf"]}
    [result] = text.generate_text_batch([chat("x", structured={"json": named})])
    assert result.text == '{"multipleOf":5}'
