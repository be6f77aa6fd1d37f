"""Structured output: the same grammar engine, the same text on both backends, also mixed in one ragged batch."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gen_engine import (
    GenerationEngine,
    OptionError,
    Plugin,
    RequestError,
    UnsupportedError,
    build,
)  # fmt: skip
from parity.companions import structured
from parity.companions.structured import Grammars, StructuredOptions, grammar_of
from parity.proof.fuzz.schemas import is_valid

from ..conftest import TEXT, Load, chat, open_engine

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


OBJECTS = {
    '{"a":[1,-2.5e+3,{}],"":"\\n\\u00e9é","b":null}': True,
    "{}": True,
    "[]": False,
    '{"a": 1}': False,
    '{"a":01}': False,
    '{"a":.5}': False,
    '{"a":1,}': False,
    '{"a":"\t"}': False,
    '{"a":"\\x"}': False,
    "{a:1}": False,
}


@pytest.mark.parametrize(("answer", "expected"), OBJECTS.items())
def test_any_json_object_is_the_same_language_on_every_release(
    text: GenerationEngine, answer: str, expected: bool
) -> None:
    ebnf = grammar_of(StructuredOptions(json_object=True))
    matcher = Grammars(text.checkpoint).matcher(ebnf).matcher
    [end] = text.checkpoint.eos_ids[:1]
    assert (matcher.accept_string(answer) and matcher.accept_token(end)) == expected


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
    "form",
    [{}, {"regex": "a", "choice": ["b"]}, {"choice": []}, {"choice": [""]}, {"regex": ""}, {"json": 3}, {"jsn": {}}],
    ids=repr,
)
def test_exactly_one_form(form: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        build(StructuredOptions, form)


BEYOND = [
    ("multipleOf", {"type": "integer", "multipleOf": 5}),
    ("uniqueItems", {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}),
    ("contains", {"type": "array", "contains": {"type": "integer"}}),
    ("minContains", {"type": "array", "minContains": 1}),
    ("maxContains", {"type": "array", "maxContains": 1}),
    ("dependentSchemas", {"type": "object", "dependentSchemas": {"a": {"type": "string"}}}),
    ("not", {"not": {"type": "integer"}}),
    ("if", {"if": {"type": "integer"}, "then": {"minimum": 3}}),
    ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    ("allOf", {"allOf": [{"type": "integer"}, {"minimum": 3}]}),
    ("minimum", {"minimum": 3}),
    ("minimum", {"type": "integer", "enum": [1, 5], "minimum": 3}),
    ("maxLength", {"type": "string", "pattern": "^a+$", "maxLength": 2}),
    ("maxLength", {"type": "string", "format": "email", "maxLength": 2}),
    ("minProperties", {"minProperties": 1}),
    ("maxProperties", {"maxProperties": 1}),
    ("maximum", {"maximum": 1}),
    ("exclusiveMinimum", {"exclusiveMinimum": 1}),
    ("exclusiveMaximum", {"exclusiveMaximum": 1}),
    ("pattern", {"pattern": "a"}),
    ("items", {"oneOf": [{"type": "array"}], "items": {"type": "integer"}}),
    ("required", {"allOf": [{"type": "object"}], "required": []}),
    ("additionalProperties", {"anyOf": [{"type": "object"}], "additionalProperties": False}),
    ("maxItems", {"anyOf": [{"type": "array"}], "maxItems": 1}),
    # a keyword that it ignores, at each place where a schema can stand
    *(
        ("multipleOf", within)
        for within in (
            {"type": "object", "patternProperties": {"a": {"type": "number", "multipleOf": 2}}},
            {"type": "object", "additionalProperties": {"type": "number", "multipleOf": 2}},
            {"type": "array", "items": {"type": "number", "multipleOf": 2}},
            {"type": "array", "prefixItems": [{"type": "number", "multipleOf": 2}]},
            {"oneOf": [{"type": "string"}, {"type": "number", "multipleOf": 2}]},
            {"allOf": [{"type": "number", "multipleOf": 2}]},
        )
    ),
    ("minimum", {"$ref": "#/properties/n", "type": "integer", "minimum": 5}),
    ("minItems", {"type": "array", "minItems": 2, "anyOf": [{}]}),
    ("properties", {"type": "object", "properties": {"n": {}}, "oneOf": [{"type": "object"}]}),
    ("n", {"type": "object", "properties": {"m": {}}, "required": ["n"]}),
    ("n", {"type": "object", "anyOf": [{"type": "object", "required": ["n"]}]}),
    ("type", {"type": "object", "anyOf": [{}, {"type": "object"}]}),  # it would write a 1
    ("type", {"type": "string", "enum": ["a", 1]}),
    ("type", {"type": "integer", "enum": [1, 1.5]}),
    ("type", {"type": "string", "$ref": "#/properties/a"}),
    ("anyOf", {"anyOf": [{}], "oneOf": [{"type": "null"}]}),
    ("oneOf", {"oneOf": [{"type": "integer"}, {"type": "number"}]}),  # it would take it for anyOf
    ("oneOf", {"oneOf": [{"type": "object", "properties": {"k": {"const": 1}}}, {"type": "object"}]}),
    ("oneOf", {"oneOf": [{"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in (1, 1.0)]}),
    ("if", {"if": False, "else": {"const": 1}}),
    ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
    # Of a name that follows two schemas it sees one.
    ("patternProperties", {"type": "object", "properties": {"x-y": {}}, "patternProperties": {"^x": {"type": "null"}}}),
    ("patternProperties", {"type": "object", "patternProperties": {"^xy": {}, "y": {"type": "integer"}}}),
    ("$ref", {"$ref": "other.json"}),
    ("$ref", {"$ref": "#anchor"}),
    ("$dynamicRef", {"$dynamicRef": "#a"}),
    ('a"b', {"type": "object", "properties": {'a"b': {}}}),  # releases before 0.2 do not escape it
]


@pytest.mark.parametrize(("word", "schema"), BEYOND, ids=str)
def test_what_a_grammar_cannot_see_to_is_refused_not_ignored(shared: Load, word: str, schema: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, schema]}}, "required": ["a"]}
    for form in (schema, json.dumps(schema).replace(": ", " : ")):
        with pytest.raises(RequestError, match=f"request 0: xgrammar ignores the schema keyword '{re.escape(word)}'"):
            shared(TEXT, "hf").generate_text_batch([chat("x", structured={"json": form})])


UNREADABLE: list[tuple[str, dict[str, Any]]] = [
    ("nothing satisfies an empty 'anyOf'", {"json": {"anyOf": []}}),
    ("nothing satisfies an empty 'enum'", {"json": {"items": {"enum": []}, "type": "array"}}),
    ("nothing satisfies an empty 'type'", {"json": {"items": {"type": []}, "type": "array"}}),
    ("the choice has a NUL", {"choice": ["a", "a\0b"]}),
    ("the regex has a NUL", {"regex": r"a\x00b"}),
    ("the regex has a NUL", {"regex": r"a[\x00]"}),
    ("the grammar has a NUL", {"grammar": r'root ::= "a\u0000"'}),
]


@pytest.mark.parametrize(("problem", "form"), UNREADABLE, ids=str)
def test_what_xgrammar_reads_otherwise_is_refused(text: GenerationEngine, problem: str, form: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"request 1: {problem}"):
        text.generate_text_batch([chat("a"), chat("b", structured=form)])


SPELLED: list[tuple[str, dict[str, Any]]] = [
    ("a<|vision_start|>b", {"choice": ["a<|vision_start|>b"]}),
    ('"a<|vision_start|>b"', {"json": {"enum": ["a<|vision_start|>b"]}}),
    ("<|im_end|>a", {"regex": "<[|]im_end[|]>a"}),
    ("\\0", {"regex": r"\\0"}),
    ('"a\\u0000"', {"json": {"const": "a\0"}}),
]


@pytest.mark.parametrize(("wanted", "form"), SPELLED, ids=str)
def test_a_structure_is_of_text_and_its_special_tokens_are_spelled(
    text: GenerationEngine, wanted: str, form: dict[str, Any]
) -> None:
    """Of a special token there would be nothing in the answer's text."""
    [result] = text.generate_text_batch([chat("a", structured=form)], {"max_new_tokens": 40})
    assert (result.text, result.finish_reason) == (wanted, "eos")


UNREAD = ("(?=a)a", "a(?!b)", "(a)\\1", "\\Aa", "a\\Z", "\\Qa", "a^b", "(^a)", "a$b", "\\p{L}", "\\0")
UNESCAPED = ('^"a"$', "^\\\\$", "\\t", "[\\n]", "\\x1f", "\\cA", "\\u0001")


@pytest.mark.parametrize("pattern", UNREAD, ids=repr)
def test_a_pattern_that_xgrammar_does_not_follow_is_refused(text: GenerationEngine, pattern: str) -> None:
    for form in ({"regex": pattern}, {"json": {"type": "string", "pattern": pattern}}):
        with pytest.raises(RequestError, match="request 0: xgrammar cannot follow"):
            text.generate_text_batch([chat("x", structured=form)])


@pytest.mark.parametrize("pattern", UNESCAPED, ids=repr)
def test_a_pattern_of_what_json_escapes_is_refused_in_a_schema_only(text: GenerationEngine, pattern: str) -> None:
    assert grammar_of(StructuredOptions(regex=pattern))
    for schema in ({"type": "string", "pattern": pattern}, {"type": "object", "patternProperties": {pattern: {}}}):
        with pytest.raises(RequestError, match="request 0: xgrammar cannot follow"):
            text.generate_text_batch([chat("x", structured={"json": schema})])


WIDE = [".", "[^a-c]{1,3}", "a|b", r"\S\D", r"a\W", r"[a\s]", r"[\D.]"]
NARROW = ["(a|b)", "[|]", r"\|", "[.]a", r"\.", r"[\w.-]+", r"\[\^", "[a^]", r"\d\w"]


@pytest.mark.parametrize("pattern", [*WIDE, *NARROW])
def test_a_pattern_writes_what_a_json_string_holds_or_is_refused(text: GenerationEngine, pattern: str) -> None:
    structure = {"json": {"type": "string", "pattern": f"^{pattern}$"}}
    requests = [chat("x", structured=structure, seed=seed) for seed in range(8)]
    for result in text.generate_text_batch(requests, {"temperature": 1.0, "max_new_tokens": 40}, on_error="return"):
        if isinstance(result, RequestError):
            assert pattern in WIDE and "xgrammar cannot follow" in str(result)
        else:
            assert result.finish_reason != "eos" or isinstance(json.loads(result.text), str)


@pytest.mark.parametrize("pattern", [*WIDE, *NARROW])
def test_a_release_that_writes_patterns_as_they_are_refuses_wide_ones(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr(structured, "escapes_patterns", lambda: False)
    is_refused = pytest.raises(RequestError, match="xgrammar cannot follow")
    with is_refused if pattern in WIDE else contextlib.nullcontext():
        grammar_of(StructuredOptions(json={"type": "string", "pattern": f"^{pattern}y$"}))


FOLLOWED: list[Any] = [
    {"type": "string", "pattern": "^([a-c]{1,3}|x[$^])$"},
    {"type": ["string", "null"], "enum": ["a", None]},
    {"type": "number", "enum": [1, 2.5]},
    {"type": "object", "anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    {"oneOf": [{"type": "boolean"}, {"oneOf": [{"type": "integer"}, {"type": "null"}]}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"enum": ["b", "c"]}}, "required": ["k"]},
        ]
    },
]


@pytest.mark.parametrize("schema", FOLLOWED, ids=str)
def test_a_schema_that_xgrammar_follows_is_answered(text: GenerationEngine, schema: Any) -> None:
    requests = [chat("x", structured={"json": schema}, seed=seed) for seed in range(8)]
    for result in text.generate_text_batch(requests, {"temperature": 1.0, "max_new_tokens": 40}):
        assert result.finish_reason != "eos" or is_valid(schema, result.text), result.text


def test_a_string_with_a_length_is_json_and_may_have_escapes(text: GenerationEngine) -> None:
    ebnf = grammar_of(StructuredOptions(json={"type": "string", "minLength": 1, "maxLength": 1}))
    matchers = {answer: Grammars(text.checkpoint).matcher(ebnf).matcher for answer in ('"a"', '"\t"', '"\\t"', '"\\""')}
    accepted = {answer: matcher.accept_string(answer) for answer, matcher in matchers.items()}
    assert accepted == {'"a"': True, '"\t"': False, '"\\t"': True, '"\\""': True}


def test_what_is_only_called_so_is_no_keyword(text: GenerationEngine) -> None:
    named: dict[str, Any] = {"multipleOf": {"const": 5}, "not": {"enum": ["if"], "default": {"multipleOf": 3}}}
    named["a"] = {"type": "array", "uniqueItems": False, "minItems": 1, "maxItems": 1, "items": {"const": 0}}
    schema = {"type": "object", "properties": named, "required": [*named], "additionalProperties": False}
    [result] = text.generate_text_batch([chat("x", structured={"json": schema})])
    assert result.text == '{"multipleOf":5,"not":"if","a":[0]}'


WORDS = ["Straße", "Médecin", "éab", "a\x7fb", "\x01a", "\u0100ab", "日本a", "a\\xdfe"]


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_a_character_before_hexadecimal_digits_is_that_character(shared: Load, word: str) -> None:
    """xgrammar writes a grammar with \\xNN, and reads such a one on over the digits behind it."""
    forms: list[Any] = [{"choice": [word]}, {"json": {"enum": [word]}}, {"regex": re.escape(word)}]
    name = word if json.dumps(word, ensure_ascii=False) == f'"{word}"' else "ß"
    forms += [{"json": {"type": "object", "properties": {name: {"const": 1}}, "required": [name]}}]
    forms += [{"grammar": "root ::= " + json.dumps(word, ensure_ascii=False)}]
    wanted = [word, json.dumps(word, ensure_ascii=False), word, json.dumps({name: 1}, ensure_ascii=False), word]
    for backend in ("hf", "vllm"):
        got = shared(TEXT.parent / "random-llama", backend, max_model_len=512).generate_text_batch(
            [{"prompt": "The", "structured": form} for form in forms], {"max_new_tokens": 48}
        )
        said = [result.text if k % 2 == 0 else json.loads(result.text) for k, result in enumerate(got)]
        assert said == [text if k % 2 == 0 else json.loads(text) for k, text in enumerate(wanted)]


def test_a_checkpoint_without_an_end_refuses_a_structure_and_answers_its_neighbour(backend: str, edited: Any) -> None:
    ends = {"eos_token_id": None, "eos_token": None}
    model = edited(TEXT.parent / "random-llama", dict.fromkeys(("config.json", "tokenizer_config.json"), ends))
    (model / "generation_config.json").unlink(missing_ok=True)
    with open_engine(model, backend, max_model_len=512) as engine:
        assert engine.checkpoint.eos_ids == ()
        requests: list[Any] = [{"prompt": "The", "structured": {"choice": ["a"]}}, {"prompt": "The"}]
        error, answer = engine.generate_text_batch(requests, {"max_new_tokens": 3}, on_error="return")
    assert isinstance(error, UnsupportedError) and error.index == 0 and "end-of-text" in str(error)
    assert len(answer.token_ids) == 3


def test_a_plugin_that_leaves_a_structure_no_choice_costs_its_row(shared: Load) -> None:
    class Five(Plugin):
        def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
            return torch.full_like(logits, -5.0).index_fill(0, torch.tensor([5]), 9.0)

    requests: list[Any] = [chat(QUESTIONS[0], structured={"choice": ["Paris", "Rome"]}), chat(QUESTIONS[0])]
    for backend in ("hf", "vllm"):
        engine = shared(TEXT, backend, logits_hooks=True)
        error, free = engine.generate_text_batch(requests, {"max_new_tokens": 4}, plugins=[Five()], on_error="return")
        assert isinstance(error, RequestError) and error.index == 0
        assert free.token_ids == (5, 5, 5, 5)
