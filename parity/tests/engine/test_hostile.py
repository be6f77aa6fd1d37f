"""What costs a row costs that row alone, and is said: hostile input whose cause the campaign does not look at."""

from __future__ import annotations

import base64
import dataclasses
import gc
import importlib
import itertools
import json
import math
import pickle
import re
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from gen_engine import (
    EngineError,
    GenEngineError,
    GenerationEngine,
    GenerationOptions,
    ImageError,
    LoadError,
    OptionError,
    Plugin,
    RequestError,
    load,
    load_image,
)
from parity.companions.structured import StructuredOptions, grammar_of
from parity.proof.fuzz.hostile_table import circle, nested

from ..conftest import TEXT, VL, Load, chat, open_engine

FRANCE, PERU, COUNT = chat("What is the capital of France?"), chat("What is the capital of Peru?"), chat("Count to 12.")
HALF = "a\ud800b"


def beside(engine: GenerationEngine, bad: Any, options: Any = None, **how: Any) -> Any:
    """The error that stands between two good answers, which are as they are without it."""
    expected = engine.generate_text_batch([FRANCE, PERU], options, **how)
    first, error, last = engine.generate_text_batch([FRANCE, bad, PERU], options, on_error="return", **how)
    assert [first, last] == expected
    assert isinstance(error, GenEngineError) and error.index == 1
    with pytest.raises(type(error), match="request 1: "):
        engine.generate_text_batch([FRANCE, bad, PERU], options, **how)
    return error


@pytest.mark.parametrize("bad", [chat(HALF), {"prompt": HALF}, chat("x", structured={"regex": HALF})], ids=str)
def test_half_a_character_costs_its_row(text: GenerationEngine, bad: Any) -> None:
    assert "a lone surrogate" in str(beside(text, bad)) or "of whole characters" in str(beside(text, bad))
    with pytest.raises(OptionError, match="of whole characters"):
        text.generate_text_batch([FRANCE], {"stop": [HALF]})


@pytest.mark.parametrize("bad", [{"prompt": "a" * 5001}, chat("x", chat={"template": "{{ 'a' * 5001 }}"})], ids=str)
def test_a_text_whose_tokens_would_fill_the_memory_costs_its_row(
    text: GenerationEngine, bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gen_engine.MOST_TEXT == 8 << 20
    monkeypatch.setattr(gen_engine, "MOST_TEXT", 5000)
    error = beside(text, bad, {"truncate_prompt": True})  # which cuts behind the tokenizer
    assert "the text has 5,001 characters. At most 5,000 are tokenized" in str(error)


UNSATISFIABLE = [
    {"json": {"$ref": "#"}},
    {"grammar": 'root ::= root "a"'},
    {"grammar": 'root ::= "a" x\nx ::= x "b"'},
]


@pytest.mark.parametrize("form", UNSATISFIABLE, ids=str)
def test_a_structure_that_nothing_satisfies_costs_its_row_wherever_it_ends(text: GenerationEngine, form: Any) -> None:
    assert isinstance(beside(text, chat("x", structured=form), {"max_new_tokens": 16}), RequestError)


ARRAYS = '{"type":"array","items":'
DEEP = [
    {"json": ARRAYS * 100_000 + "{}" + "}" * 100_000},
    {"json": ARRAYS * 1000 + "{}" + "}" * 1000},  # xgrammar would take minutes, and hours for more
    {"json": '{"anyOf":[' * 1000 + '{"type":"null"}' + "]}" * 1000},
    {"json": json.loads(ARRAYS * 300 + "{}" + "}" * 300)},
    {"json": "[" * 100_000},
    {"grammar": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000},
    {"regex": "(" * 10_000 + "a" + ")" * 10_000},
]


@pytest.mark.parametrize("form", DEEP, ids=lambda form: str(form)[:40])
def test_a_structure_too_deep_for_its_engine_is_refused_in_few_words(shared: Load, form: Any) -> None:
    engine = shared(TEXT, "hf")
    [error] = engine.generate_text_batch([chat("x", structured=form)], on_error="return")
    assert isinstance(error, RequestError) and "xgrammar" in str(error) and len(str(error)) < 2000
    brackets = '"[[[[{{{{\\"[[[['  # in a string they are text
    fine = {"json": {"enum": [brackets * 50]}}
    assert engine.generate_text_batch([chat("x", structured=fine)], {"max_new_tokens": 2})


def test_a_schema_is_taken_up_to_a_hundred_brackets_deep_and_a_grammar_up_to_its_bound() -> None:
    def asked(**form: Any) -> str:
        return grammar_of(gen_engine.build(StructuredOptions, form))

    null = '{"anyOf":[', '{"type":"null"}', "]}"
    assert "null" in asked(json=null[0] * 49 + null[1] + null[2] * 49)
    with pytest.raises(RequestError, match="xgrammar would take minutes for a schema more than 100 deep"):
        asked(json=null[0] * 51 + null[1] + null[2] * 51)
    properties = {f"p{number}": {"type": "string"} for number in range(3000)}
    with pytest.raises(RequestError, match="xgrammar would take minutes for the json, [0-9]+ characters of EBNF"):
        asked(json={"properties": properties})


def test_the_grammars_that_are_kept_have_a_bound(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    for number in range(70):
        engine.generate_text_batch([chat("x", structured={"choice": [str(number)]})], {"max_new_tokens": 2})
    compiler = engine.backend.grammars.compiler.text
    assert 0 < compiler.get_cache_size_bytes() <= compiler.cache_limit_bytes == 32 << 20


class Fails(Plugin):
    """Fails on rows that do not begin as a chat does."""

    name = "fails"

    def __init__(self, what: Any) -> None:
        self.what = what

    def logits(self, token_ids: Sequence[int], logits: Any, *, prompt_token_ids: Sequence[int]) -> Any:
        return logits if len(prompt_token_ids) > 4 else self.what(logits)


@pytest.mark.parametrize("what", [
    lambda logits: 1 / 0, lambda logits: None, lambda logits: logits * math.nan, lambda logits: logits - math.inf,
    lambda logits: logits.numpy(), lambda logits: logits > 0, lambda logits: logits.long(),
    lambda logits: logits.cfloat(), lambda logits: logits.to("meta"), lambda logits: logits.to_sparse(),
    lambda logits: logits.numpy().astype(object), lambda logits: logits[:1],
], ids=["raises", "None", "nan", "-inf", "numpy", "bool", "int", "complex", "meta", "sparse", "objects",
        "one"])  # fmt: skip
def test_a_failing_logits_plugin_is_named_and_costs_its_row(hooked: GenerationEngine, what: Any) -> None:
    error = beside(hooked, {"prompt": "ab"}, {"max_new_tokens": 4}, plugins=[Fails(what)])
    assert isinstance(error, OptionError) and "plugin 'fails': logits" in str(error)


@pytest.mark.parametrize("hook", ["should_stop", "post_decode"])
def test_another_failing_hook_is_named_and_costs_its_row(text: GenerationEngine, hook: str) -> None:
    def picky(*given: Any) -> Any:
        if given[-1].startswith("1"):
            raise ZeroDivisionError("planted")
        return given[-1] if hook == "post_decode" else False

    plugin = Plugin()
    plugin.name = "picky"
    setattr(plugin, hook, picky)
    error = beside(text, COUNT, {"max_new_tokens": 8}, plugins=[plugin])
    assert f"plugin 'picky': {hook} raised ZeroDivisionError" in str(error)


def planted(**members: Any) -> Plugin:
    plugin = Plugin()
    plugin.name = "planted"
    for name, value in members.items():
        setattr(plugin, name, value)
    return plugin


def nonsense(given: Any, *_: Any) -> Any:
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize("hook", ["hf_stopping_criteria", "hf_logits_processors"])
def test_a_failing_object_of_transformers_costs_the_rows_that_it_saw(hook: str) -> None:
    """Those that are done keep their answers, and it sees the whole batch."""
    with open_engine(TEXT, "hf", max_batch_size=2) as engine:
        [expected] = engine.generate_text_batch([FRANCE])

        def late(ids: Any, scores: Any) -> Any:
            if len(ids) == 1:  # the first two are done with
                raise ZeroDivisionError("planted")
            return scores if hook == "hf_logits_processors" else ids[:, -1] < 0

        requests = [FRANCE, FRANCE | {"seed": 1}, {"prompt": "1, 2, 3,"}]
        picky, always = planted(**{hook: [late]}), planted(**{hook: [nonsense]})
        results: list[Any] = engine.generate_text_batch(requests, plugins=[picky], on_error="return")
        assert [getattr(result, "text", None) for result in results] == [expected.text, expected.text, None]
        assert isinstance(results[2], OptionError) and results[2].index == 2
        assert "plugin 'planted'" in str(results[2]) and isinstance(results[2].__cause__, ZeroDivisionError)
        every: list[Any] = engine.generate_text_batch(requests, plugins=[always], on_error="return")
        assert [error.index for error in every] == [0, 1, 2]
        with pytest.raises(OptionError, match="request 0: plugin 'planted'"):
            engine.generate_text_batch(requests, plugins=[always])
        assert engine.generate_text_batch([FRANCE]) == [expected]


@pytest.mark.parametrize("two", ["numpy", "torch"])
def test_an_answer_of_should_stop_that_is_neither_yes_nor_no_costs_its_row(text: GenerationEngine, two: str) -> None:
    make = {"numpy": "array", "torch": "tensor"}[two]
    answers = getattr(importlib.import_module(two), make)([True, False])
    picky = planted(should_stop=lambda ids, said: answers if said.startswith("1") else answers[1])
    error = beside(text, COUNT, {"max_new_tokens": 8}, plugins=[picky])
    assert isinstance(error, OptionError) and "plugin 'planted': should_stop" in str(error)


ODD_FLAGS: dict[str, Any] = {
    "no axis": lambda ids: ids[0, 0] < 0, "too few": lambda ids: ids[:-1, 0] < 0, "none": lambda ids: [],
    "two axes": lambda ids: ids < 0, "yes": lambda ids: True, "without data": lambda ids: (ids[:, 0] < 0).to("meta"),
}  # fmt: skip


@pytest.mark.parametrize("flags", ODD_FLAGS.values(), ids=ODD_FLAGS)
def test_a_criterion_that_gives_not_one_answer_a_row_is_named(shared: Load, flags: Any) -> None:
    engine = shared(TEXT, "hf")
    plugin = planted(hf_stopping_criteria=[lambda ids, scores: flags(ids)])
    errors: list[Any] = engine.generate_text_batch([FRANCE, PERU], plugins=[plugin], on_error="return")
    assert all(isinstance(error, OptionError) for error in errors) and [error.index for error in errors] == [0, 1]
    assert "plugin 'planted': hf_stopping_criteria raised" in str(errors[0])
    second: Any = [lambda ids, scores: (ids[:, -1] < 0).numpy(), lambda ids, scores: [0, 1] if len(ids) > 1 else [0]]
    fine = planted(hf_stopping_criteria=second)
    first, last = engine.generate_text_batch([FRANCE, PERU], plugins=[fine])
    assert (first.finish_reason, last.finish_reason, last.completion_tokens) == ("eos", "plugin", 1)


@pytest.mark.parametrize("what", ["numpy", "long", "bool"])
def test_what_a_logits_processor_gives_is_named(shared: Load, what: str) -> None:
    plugin = planted(hf_logits_processors=[lambda ids, scores: getattr(scores, what)()])
    for options in ({}, {"temperature": 1.0, "seed": 3}):
        with pytest.raises(OptionError, match="request 0: plugin 'planted': hf_logits_processors gave"):
            shared(TEXT, "hf").generate_text_batch([FRANCE, PERU], options, plugins=[plugin])


def test_a_plugin_whose_property_raises_is_named(text: GenerationEngine) -> None:
    class Raises:
        name = "raises"
        logits = property(nonsense)

    with pytest.raises(OptionError, match="plugin 'raises': logits raised ZeroDivisionError"):
        text.generate_text_batch([FRANCE], plugins=[Raises()])


def test_logits_of_another_precision_are_taken_as_they_are_meant(shared: Load) -> None:
    answers = []
    for backend in ("hf", "vllm"):
        engine = shared(TEXT, backend, logits_hooks=True)
        ways = (planted(logits=lambda ids, given, to=to: getattr(given, to)()) for to in ("float", "double", "half"))
        answers.append([engine.generate_text_batch([FRANCE, PERU], plugins=[way]) for way in ways])
    assert answers[0][0] == answers[0][1]
    assert [[r.token_ids for r in some] for some in answers[0]] == [[r.token_ids for r in some] for some in answers[1]]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this has no text")

    __repr__ = __str__


def test_an_error_that_cannot_be_printed_costs_its_row(vl: GenerationEngine) -> None:
    def loader(url: str) -> Any:
        raise Unprintable

    content = [{"type": "image", "image": "http://127.0.0.1/a.png"}]
    request = {"messages": [{"role": "user", "content": content}], "image_loader": loader}
    [error] = vl.generate_vlm_batch([request], on_error="return")
    assert isinstance(error, ImageError) and "image_loader failed" in str(error) and "Unprintable" in str(error)


def test_a_store_whose_error_cannot_be_printed_costs_a_miss(caplog: Any) -> None:
    class Store(dict[str, str]):
        def __getitem__(self, key: str) -> str:
            raise Unprintable

    with open_engine(TEXT, "hf", cache=Store()) as engine:
        [result] = engine.generate_text_batch([FRANCE])
    assert result.text == "The capital of France is Paris." and "the cache fails" in caplog.text


def test_a_logits_plugin_sees_the_prompt_on_both_backends(shared: Load) -> None:
    shown: list[Any] = []

    class Sees(Plugin):
        def logits(self, token_ids: Sequence[int], logits: Any, *, prompt_token_ids: Sequence[int]) -> Any:
            shown[-1].add(prompt_token_ids)
            return logits

    for backend in ("hf", "vllm"):
        shown.append(set())
        results = shared(TEXT, backend, logits_hooks=True).generate_text_batch(
            [FRANCE, COUNT], {"max_new_tokens": 3}, plugins=[Sees()]
        )
        assert shown[-1] == {result.prompt_token_ids for result in results}
    assert shown[0] == shown[1]


def test_logits_that_are_not_numbers_are_an_error_that_says_so(backend: str, edited: Any) -> None:
    torch = importlib.import_module("safetensors.torch")
    model = edited(TEXT, {})
    weights = torch.load_file(model / "model.safetensors")
    weights["model.norm.weight"] *= math.nan
    torch.save_file(weights, model / "model.safetensors", {"format": "pt"})
    with open_engine(model, backend) as engine:
        for options in ({"max_new_tokens": 4}, {"max_new_tokens": 1, "logprobs": 0}, {"temperature": 1.0}):
            with pytest.raises(EngineError, match="request 0: the model's logits are not numbers"):
                engine.generate_text_batch([FRANCE, COUNT], options)
        with pytest.raises(EngineError, match="request 0: the model's logits are not numbers"):
            engine.score_batch([("The capital", " of France"), ("a", " b")])


def test_logits_that_are_not_numbers_are_seen_when_another_engine_was_closed(edited: Any) -> None:
    """vLLM forgets then what its environment was when it was loaded."""
    with open_engine(edited(TEXT, {}), "vllm") as engine:
        with open_engine(TEXT, "vllm") as other:
            other.generate_text_batch([FRANCE], {"max_new_tokens": 2})
        with engine.bare() as llm:
            llm.apply_model(lambda model: model.model.norm.weight.data.fill_(math.nan) is None)
        with pytest.raises(EngineError, match="request 0: the model's logits are not numbers"):
            engine.generate_text_batch([FRANCE], {"max_new_tokens": 4})


def test_a_row_whose_logits_are_no_numbers_costs_itself_and_nothing_later(backend: str, edited: Any) -> None:
    """What it leaves in vLLM's cache would make other rows' logits NaN, in this call and in all later ones."""
    tensors = importlib.import_module("safetensors.torch")
    model = edited(TEXT.parent / "random-llama", {"config.json": {"tie_word_embeddings": False}})
    weights = tensors.load_file(model / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][300] = math.nan
    tensors.save_file(weights, model / "model.safetensors", {"format": "pt"})
    good, bad = [{"prompt": f"good {k} " * (k + 1)} for k in range(4)], {"prompt_token_ids": [5, 300, 7] * 12}
    with open_engine(model, backend, max_model_len=512) as engine:
        wanted = engine.generate_text_batch(good, {"max_new_tokens": 20})
        for _ in range(2):
            error = engine.generate_text_batch([bad, good[0]], {"max_new_tokens": 20}, on_error="return")[0]
            assert isinstance(error, EngineError) and "not numbers" in str(error)
            assert engine.generate_text_batch(good, {"max_new_tokens": 20}) == wanted
        with pytest.raises(EngineError, match="request 0: the model's logits are not numbers"):
            engine.score_batch([(bad, [5])])
        assert engine.generate_text_batch(good, {"max_new_tokens": 20}) == wanted


class Apart:
    """vLLM's client of an engine core in another process, which does not show it."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        if name == "engine_core":
            raise AttributeError(name)
        return getattr(self.client, name)


def test_rows_of_a_vllm_in_another_process_are_answered(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sees there whether a row's logits are numbers."""
    engine = shared(TEXT, "vllm")
    expected = engine.generate_text_batch([FRANCE, COUNT])
    inner = engine.model.llm_engine
    monkeypatch.setattr(inner, "engine_core", Apart(inner.engine_core))
    assert engine.generate_text_batch([FRANCE, COUNT]) == expected


def test_a_score_that_is_no_number_is_an_error_with_its_index(hooked: GenerationEngine, monkeypatch: Any) -> None:
    """Also where a backend sees none in the tokens that it chooses itself."""
    pairs, score = [("The capital", " of France"), ("a", " b")], hooked.backend.score

    def spoilt(*given: Any, **named: Any) -> Any:
        first, last = score(*given, **named)
        return [first, dataclasses.replace(last, logprobs=(*last.logprobs[:-1], math.nan))]

    monkeypatch.setattr(hooked.backend, "score", spoilt)
    with pytest.raises(EngineError, match="request 1: the model's logits are not numbers"):
        hooked.score_batch(pairs)


WORDS = ["CUDA error: out of memory", "MPS backend out of memory (9 GB)", "DefaultCPUAllocator: can't allocate memory",
         "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
         "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "Invalid buffer size: 17.25 GiB"]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("not enough memory: you tried to allocate 9 GB"), True),
        (RuntimeError("Cannot allocate memory"), True),
        (RuntimeError("the sizes of tensors must match"), False),
        (ValueError(""), False),
    ],
    ids=str,
)
def test_is_oom_knows_memory_that_ran_out_from_other_errors(error: Exception, expected: bool) -> None:
    assert gen_engine.is_oom(error) == expected


@pytest.mark.parametrize("words", WORDS)
def test_a_row_that_is_too_large_alone_costs_itself(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    with open_engine(TEXT, "hf") as engine:
        forward = engine.model.forward

        def starved(*given: Any, **named: Any) -> Any:
            if named["input_ids"].shape[1] > 60:
                raise RuntimeError(words)
            return forward(*given, **named)

        monkeypatch.setattr(engine.model, "forward", starved)
        error = beside(engine, chat("long " * 60), {"max_new_tokens": 8})
        assert isinstance(error, EngineError) and words in str(error) and "Shorten it" in str(error)


def planted_memory(
    engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch, fits: Callable[[Any, Any], bool]
) -> list[Any]:
    """Forwards raise where the batch does not fit. Returns the shapes of those that did."""
    forward, shapes = engine.model.forward, list[Any]()

    def starved(*given: Any, **named: Any) -> Any:
        mask = named.get("attention_mask")
        shape = (len(named["input_ids"]), named["input_ids"].shape[1] if mask is None else mask.shape[-1])
        if not fits(shape, mask):
            raise RuntimeError("CUDA error: out of memory")
        shapes.append(shape)
        return forward(*given, **named)

    monkeypatch.setattr(engine.model, "forward", starved)
    return shapes


def test_behind_a_row_that_is_too_large_alone_the_others_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [chat(f"What is {k} + {k}?") for k in range(1, 7)]
    with open_engine(TEXT, "hf") as engine:
        options = {"max_new_tokens": 8}
        expected = engine.generate_text_batch(tasks, options)
        shapes = planted_memory(engine, monkeypatch, lambda shape, mask: shape[0] * shape[1] <= 200)
        error, *answers = engine.generate_text_batch([chat("long " * 150), *tasks], options, on_error="return")
        assert isinstance(error, EngineError) and answers == expected
        assert max(rows for rows, _ in shapes) > 2


def test_a_short_row_that_fails_in_the_padding_of_a_long_one_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = chat("Be brief. " * 20 + "What is the capital of France?"), COUNT
    with open_engine(TEXT, "hf") as engine:
        options = {"max_new_tokens": 40, "stop": ["."]}
        expected = [engine.generate_text_batch([one], options)[0] for one in (long, short)]
        planted_memory(engine, monkeypatch, lambda shape, mask: shape[0] > 1 or mask is None or bool((mask != 0).all()))
        assert engine.generate_text_batch([long, short], options) == expected


@pytest.mark.parametrize(
    "bad", [{"prompt": HALF, "images": [{}]}, {"prompt": "x", "images": [b"no image"]}], ids=["odd", "picture"]
)
def test_an_error_that_is_kept_holds_nothing_of_its_call(vl: GenerationEngine, bad: Any) -> None:
    picture = importlib.import_module("PIL.Image").new("RGB", (28, 28))
    held = weakref.ref(picture)
    message = {"role": "user", "content": [{"type": "image", "image": picture}]}
    good = {"messages": [message]}
    _, error = vl.generate_vlm_batch([good, bad], {"max_new_tokens": 2}, on_error="return")
    del picture, message, good
    gc.collect()
    assert isinstance(error, GenEngineError) and error.index == 1 and held() is None


def test_an_error_that_is_its_own_cause_is_kept_like_any_other(text: GenerationEngine) -> None:
    class Loops(Plugin):
        def should_stop(self, token_ids: Any, so_far: str) -> bool:
            error = ValueError("planted")
            raise error from error

    [error] = text.generate_text_batch([FRANCE], {"max_new_tokens": 4}, plugins=[Loops()], on_error="return")
    assert isinstance(error, OptionError) and "planted" in str(error)


def test_scores_are_halved_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_engine(TEXT, "hf") as engine:
        pairs = [("The capital of", f" land {k}") for k in range(7)]
        expected, forward, sizes = engine.score_batch(pairs), engine.model.forward, list[int]()

        def starved(*given: Any, **named: Any) -> Any:
            sizes.append(len(named["input_ids"]))
            if sizes[-1] > 2 or named["input_ids"].shape[1] > 60:
                raise RuntimeError("MPS backend out of memory")
            return forward(*given, **named)

        monkeypatch.setattr(engine.model, "forward", starved)
        scores = engine.score_batch(pairs)
        assert [score.token_ids for score in scores] == [score.token_ids for score in expected]
        assert all(abs(a - b) < 1e-5 for x, y in zip(scores, expected) for a, b in zip(x.logprobs, y.logprobs))
        assert sizes[0] == 7 and max(sizes[-4:]) <= 2
        with pytest.raises(EngineError, match="request 1: out of memory with one prompt"):
            engine.score_batch([pairs[0], ("long " * 80, "x")])


ODD_IDS: dict[str, Any] = {
    "numpy": lambda: importlib.import_module("numpy").array([11, 12]),
    "torch": lambda: importlib.import_module("torch").tensor([11, 12]),
    "an iterator": lambda: iter([11, 12]),
}


@pytest.mark.parametrize("make", ODD_IDS.values(), ids=ODD_IDS)
def test_the_ids_of_a_response_may_be_an_array(text: GenerationEngine, make: Any) -> None:
    assert text.score_batch([("a", make())]) == text.score_batch([("a", [11, 12])])


@pytest.mark.parametrize("nothing", [lambda: iter([]), lambda: importlib.import_module("numpy").array([], int), tuple,
                                     str, lambda: None], ids=["iterator", "numpy", "tuple", "str", "None"])  # fmt: skip
def test_a_response_without_tokens_is_refused_whatever_it_is(text: GenerationEngine, nothing: Any) -> None:
    with pytest.raises(RequestError, match="request 1: the response has no tokens"):
        text.score_batch([("a", "b"), ("Count to 5.", nothing())])


@pytest.mark.parametrize("switch", [1, 0, None, "no", [True], importlib.import_module("numpy").array([1, 0])], ids=str)
def test_a_switch_of_a_call_is_true_or_false(text: GenerationEngine, switch: Any) -> None:
    with pytest.raises(OptionError, match="grad is .*It must be True or False"):
        text.score_batch([("a", "b")], grad=switch)
    with pytest.raises(OptionError, match="cache is .*It must be True or False"):
        text.generate_text_batch([FRANCE], cache=switch)


def test_an_on_error_that_is_no_name_is_refused(text: GenerationEngine) -> None:
    numpy = importlib.import_module("numpy")
    odd_ones: list[Any] = [numpy.array(["raise", "return"]), numpy.array(["raise"]), ["raise"], "Raise", None]
    for odd in odd_ones:
        with pytest.raises(OptionError, match="no on_error .*raise"):
            text.generate_text_batch([FRANCE], on_error=odd)


def test_names_of_adapters_are_text_and_none_vanishes() -> None:
    wrong: list[Any] = [(1, "1"), ("",), (HALF,), (None,)]
    for names in wrong:
        with pytest.raises(OptionError, match="ModelLoadConfig.adapters is .*a mapping of names to directories"):
            load(TEXT, adapters=dict.fromkeys(names, "/nowhere"))


def test_the_switches_of_numpy_are_switches(shared: Load) -> None:
    engine, true = shared(TEXT, "hf"), importlib.import_module("numpy").True_
    assert engine.score_batch([("a", "b")], grad=true)[0].logprobs.requires_grad
    assert engine.generate_text_batch([FRANCE], cache=true) == engine.generate_text_batch([FRANCE])


# -- vLLM itself -------------------------------------------------------------------------------------------------------


def starve(engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch, error: BaseException, at: int) -> None:
    """Of the steps that vLLM takes from now on, one fails."""
    executor, steps = engine.model.llm_engine.engine_core.engine_core.model_executor, itertools.count(1)
    execute = executor.execute_model

    def fails_once(*given: Any, **named: Any) -> Any:
        if next(steps) == at:
            raise error
        return execute(*given, **named)

    monkeypatch.setattr(executor, "execute_model", fails_once)


@pytest.mark.parametrize("done", [False, True])
def test_where_vllm_fails_the_rows_that_run_are_errors_and_those_that_are_done_are_kept(
    shared: Load, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    engine = shared(TEXT, "vllm", logits_hooks=True)
    inner = engine.model.llm_engine
    expected = engine.generate_text_batch([FRANCE, COUNT])
    at = expected[0].completion_tokens + 5 if done else 1
    starve(engine, monkeypatch, RuntimeError("CUDA error: out of memory"), at)
    first, last = engine.generate_text_batch([FRANCE, COUNT], on_error="return")  # type: Any, Any
    assert first == expected[0] if done else isinstance(first, EngineError)
    assert isinstance(last, EngineError) and last.index == 1 and isinstance(last.__cause__, RuntimeError)
    assert "vLLM failed" in str(last) and "CUDA error: out of memory" in str(last) and last.fix
    assert not inner.output_processor.request_states and not inner.engine_core.engine_core.scheduler.requests
    assert engine.generate_text_batch([FRANCE, COUNT]) == expected
    starve(engine, monkeypatch, RuntimeError("CUDA error: out of memory"), at)
    with pytest.raises(EngineError, match="request [01]: vLLM failed"):
        engine.generate_text_batch([FRANCE, COUNT])
    starve(engine, monkeypatch, RuntimeError("CUDA error: out of memory"), 1)
    with pytest.raises(EngineError, match="request [01]: vLLM failed"):
        engine.score_batch([("The capital", " of France"), ("a", " b")])
    assert not inner.output_processor.request_states
    assert engine.generate_text_batch([FRANCE, COUNT]) == expected


def test_an_interrupt_inside_vllm_is_the_callers(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "vllm")
    expected = engine.generate_text_batch([FRANCE, COUNT])
    starve(engine, monkeypatch, KeyboardInterrupt(), 3)
    with pytest.raises(KeyboardInterrupt):
        engine.generate_text_batch([FRANCE, COUNT], on_error="return")
    assert not engine.model.llm_engine.output_processor.request_states
    assert engine.generate_text_batch([FRANCE, COUNT]) == expected


def test_what_only_vllm_refuses_costs_its_row(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "vllm")
    inner = engine.model.llm_engine
    add = inner.add_request

    def picky(name: str, inputs: Any, *given: Any, **named: Any) -> Any:
        if len(inputs["prompt_token_ids"]) < 4:
            raise ValueError("planted")
        return add(name, inputs, *given, **named)

    monkeypatch.setattr(inner, "add_request", picky)
    error = beside(engine, {"prompt": "ab"})
    assert isinstance(error, RequestError) and "vLLM refused it" in str(error) and "planted" in str(error)
    with pytest.raises(RequestError, match="request 1: vLLM refused it"):
        engine.score_batch([("The capital of France is", " Paris"), ("a", "b")])
    assert not inner.output_processor.request_states


def test_what_vllm_refuses_half_way_is_not_left_behind(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its front has taken the request in when its core says no."""
    engine = shared(TEXT, "vllm")
    core = engine.model.llm_engine.engine_core
    add = core.add_request

    def picky(request: Any) -> None:
        if len(request.prompt_token_ids) < 4:
            raise ValueError("planted")
        add(request)

    with monkeypatch.context() as patch:
        patch.setattr(core, "add_request", picky)
        assert "planted" in str(beside(engine, {"prompt": "ab"}))
    assert not engine.model.llm_engine.output_processor.request_states
    assert beside(engine, chat("x", chat={"template": "{{ nothing.at.all }}"})).index == 1


def test_equal_requests_that_fail_have_an_index_each(text: GenerationEngine) -> None:
    bad = chat("x", structured=UNSATISFIABLE[1])
    errors = text.generate_text_batch([bad, FRANCE, bad], {"max_new_tokens": 4}, on_error="return")
    assert [error.index for error in (errors[0], errors[2])] == [0, 2]  # type: ignore[attr-defined]


def test_a_thousand_bad_rows_are_a_thousand_errors(shared: Load) -> None:
    forms = [chat("x", structured={"grammar": f'root ::= root "{k}"'}) for k in range(120)]
    answers: list[Any] = shared(TEXT, "hf").generate_text_batch([*forms, FRANCE], on_error="return")
    assert [answer.index for answer in answers[:-1]] == list(range(120))
    assert answers[-1].text == "The capital of France is Paris."


@pytest.mark.parametrize("options", [{}, {"max_prompt_tokens": 40}])
def test_a_text_that_no_tokens_of_the_window_hold_is_not_tokenized(
    text: GenerationEngine, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 MB against a window of 2,048 tokens took 43 s, in which other requests waited."""
    tokenized: list[int] = []
    encode = gen_engine.encode

    def noted(checkpoint: Any, text: str, special: bool) -> Any:
        tokenized.append(len(text))
        return encode(checkpoint, text, special)

    monkeypatch.setattr(gen_engine, "encode", noted)
    large = "a " * (4 << 20)
    longest = max(map(len, text.tokenizer.get_vocab()))
    for request in ({"prompt": large}, {"messages": [{"role": "user", "content": large}]}):
        [error, answer] = text.generate_text_batch(
            [request, {"prompt": "Hi"}], {"max_new_tokens": 4, **options}, on_error="return"
        )
        assert isinstance(error, gen_engine.PromptTooLongError)
        assert re.search(rf"has 8,388,\d+ characters, at most {longest} in a token", str(error))
        assert answer.token_ids
    assert max(tokenized) < 1000
    fitting = "a " * 20  # more characters than tokens that are allowed
    assert text.generate_text_batch([{"prompt": fitting}], {"max_new_tokens": 4, **options})
    cut = {"max_new_tokens": 4, "truncate_prompt": True, **options}
    assert text.generate_text_batch([{"prompt": "a " * 20_000}], cut), "its end is what is asked for"


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_no_script_is_run_and_no_pipe_or_device_opened_for_a_picture(tmp_path: Path, monkeypatch: Any) -> None:
    os, eps = importlib.import_module("os"), importlib.import_module("PIL.EpsImagePlugin")
    os.mkfifo(tmp_path / "pipe")
    started: list[Any] = []
    monkeypatch.setattr(eps, "Ghostscript", lambda *given, **named: started.append(given))
    monkeypatch.setattr(eps, "has_ghostscript", lambda: True)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n"
    for source in (script, str(tmp_path / "pipe"), tmp_path / "pipe", "/dev/zero", "/no/such.png"):
        with pytest.raises(ImageError):
            load_image(source)
    with pytest.raises(ImageError):
        load_image("data:image/png;base64," + base64.b64encode(script).decode())
    assert started == []  # with or without a Ghostscript on this machine


# -- loading -----------------------------------------------------------------------------------------------------------

DAMAGE = {
    "config.json": b"{",
    "tokenizer.json": b"[]",
    "model.safetensors": b"\xff" * 16,
    "generation_config.json": b"{",
}


@pytest.mark.parametrize("name", list(DAMAGE))
def test_a_damaged_file_is_a_load_error(edited: Any, name: str) -> None:
    model = edited(TEXT, {})
    (model / name).write_bytes(DAMAGE[name])
    with pytest.raises(LoadError) as caught:
        load(model)
    assert caught.value.fix and caught.value.__cause__ is not None


def test_a_checkpoint_that_lacks_its_config_is_a_load_error(tmp_path: Path) -> None:
    """transformers 4.57 makes a config of a model that the path names."""
    broken = shutil.copytree(TEXT, tmp_path / "llama-gpt2")
    (broken / "config.json").unlink()
    with pytest.raises(LoadError, match="it has no config.json"):
        load(broken)


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",)], ids=["nothing", "its config"])
@pytest.mark.parametrize("model", [TEXT, VL], ids=["text", "vision"])
def test_a_checkpoint_that_lacks_its_tokenizer_is_a_load_error(edited: Any, model: Path, kept: tuple[str, ...]) -> None:
    """transformers 5 makes a tokenizer of the added tokens alone: all other text of a prompt would be lost."""
    broken = edited(model, {})
    for file in broken.glob("*token*"):
        if file.name not in kept:
            file.unlink()
    with pytest.raises(LoadError):
        load(broken)


def test_a_checkpoint_without_a_generation_config_loads(edited: Any, backend: str) -> None:
    model = edited(TEXT, {})
    (model / "generation_config.json").unlink()
    with open_engine(model, backend) as engine:
        assert engine.generate_text_batch([FRANCE])[0].text == "The capital of France is Paris."


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("bad", [551.0, 1.5, "x"], ids=str)
def test_an_end_that_is_no_token_is_a_load_error(edited: Any, backend: str, name: str, bad: Any) -> None:
    """vLLM would refuse every request. What is no number at all, a release of transformers may refuse itself."""
    with pytest.raises(LoadError, match="interpreted as an integer|Validation error|not supported between"):
        open_engine(edited(TEXT, {name: {"eos_token_id": bad}}), backend)


def test_an_end_that_the_model_does_not_have_ends_nothing(edited: Any, backend: str) -> None:
    """A config written for more tokens: vLLM would refuse every request."""
    with open_engine(edited(TEXT, {"generation_config.json": {"eos_token_id": [552, 99_999]}}), backend) as engine:
        assert 552 in engine.checkpoint.eos_ids and 99_999 not in engine.checkpoint.eos_ids
        assert engine.generate_text_batch([FRANCE])[0].finish_reason == "eos"


def test_a_token_beyond_the_model_costs_its_row(edited: Any, backend: str) -> None:
    """Of a tokenizer that knows more than the model was made for."""
    model = edited(TEXT, {})
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens([f"<new{k}>" for k in range(60)])
    tokenizer.save_pretrained(model)
    beyond = tokenizer.convert_tokens_to_ids("<new59>")
    with open_engine(model, backend, logits_hooks=True) as engine:
        for bad in ({"prompt": "a <new59>"}, chat("<new59>"), {"prompt_token_ids": [5, beyond]}):
            assert "a token id is outside the vocabulary of 576" in str(beside(engine, bad, {"max_new_tokens": 4}))
        with pytest.raises(RequestError, match="request 0: a token id to replay is outside the vocabulary of 576"):
            engine.generate_text_batch([FRANCE], {"replay": [[beyond]]})
        for pair in (("<new59>", "a"), ("a", "<new59>"), ("a", [beyond])):
            with pytest.raises(RequestError, match="request 1: a token id is outside the vocabulary of 576"):
                engine.score_batch([("a", "b"), pair])
        for options in ({"stop": {"token_ids": [beyond]}}, {"logprobs": 577}):
            with pytest.raises(OptionError, match="576"):
                engine.generate_text_batch([FRANCE], options)
        expected = engine.generate_text_batch([FRANCE])
        [result] = engine.generate_text_batch([FRANCE], {"stop": ["<new59>"]})  # text, of whichever tokens
        assert [result.text] == [one.text for one in expected]


def kept_weights(model: Path, name_of: Callable[[str], str | None]) -> Path:
    """Its weights under other names, and none where that is None."""
    torch, file = importlib.import_module("safetensors.torch"), model / "model.safetensors"
    torch.save_file(
        {new: w for old, w in torch.load_file(file).items() if (new := name_of(old))}, file, {"format": "pt"}
    )
    return model


@pytest.mark.parametrize(
    "model, lacking",
    [
        (TEXT, r"layers\.2\."),
        (TEXT, "."),
        (VL, "visual"),
        (TEXT, r"layers\.1\.mlp\.down_proj"),  # vLLM itself finds norms and the like only
        (TEXT, r"layers\.1\.self_attn\.k_proj"),
        (TEXT, "embed_tokens"),
    ],
    ids=["a layer", "all", "what sees", "a matrix", "a part of a matrix", "embeddings"],
)
def test_weights_that_a_checkpoint_lacks_are_a_load_error(edited: Any, backend: str, model: Path, lacking: str) -> None:
    broken = kept_weights(edited(model, {}), lambda name: f"x{name}" if re.search(lacking, name) else name)
    with pytest.raises(LoadError, match="the checkpoint is missing [0-9]+ weights"):
        open_engine(broken, backend)


def test_a_config_of_more_layers_is_a_load_error(edited: Any, backend: str) -> None:
    layers = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
    with pytest.raises(LoadError, match=r"model\.layers\.3\."):
        open_engine(edited(TEXT, {"config.json": layers}), backend)


class Owns:
    """Runs code where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.touch, (self.folder / "owned",)


def test_weights_that_are_a_pickle_are_read_and_no_code_of_theirs_runs(
    edited: Any, tmp_path: Path, backend: str
) -> None:
    model, torch = edited(TEXT, {}), importlib.import_module("torch")
    weights = importlib.import_module("safetensors.torch").load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin")
    with open_engine(model, backend) as engine:  # such a file is read
        assert engine.generate_text_batch([FRANCE])[0].text == "The capital of France is Paris."
    torch.save({**weights, "owns": Owns(tmp_path)}, model / "pytorch_model.bin")
    with pytest.raises(LoadError) as caught:
        open_engine(model, backend)
    assert not (tmp_path / "owned").exists(), caught.value
    torch.load(model / "pytorch_model.bin", weights_only=False)  # as it would have been
    assert (tmp_path / "owned").exists()


def test_a_mistyped_path_is_said_in_our_words() -> None:
    for path in ("golden/models/tiny-qwen33", "./x", "~/models/x", "models--Qwen--Qwen3-0.6B", "tiny-qwen3-", "a..b",
                 "x" * 97, "-x/y", "x.git"):  # fmt: skip
        with pytest.raises(LoadError, match="there is no such directory"):
            load(path)
    with pytest.raises(OptionError, match="ModelLoadConfig.model is ''. It must be a non-empty string"):
        load(None)  # type: ignore[arg-type]


def test_a_fallback_to_hf_may_be_asked_for_on_either_backend() -> None:
    with load(TEXT, fallback_backend="hf") as engine:
        assert engine.backend.name == "hf"


# -- words -------------------------------------------------------------------------------------------------------------


def test_errors_are_short_and_guess_well(text: GenerationEngine) -> None:
    with pytest.raises(OptionError) as caught:
        text.generate_text_batch([{"prompt_token_ids": [2.5] * 300_000}])
    assert len(str(caught.value)) < 300
    with pytest.raises(OptionError, match="no field 'temprature'. Known: "):
        text.generate_text_batch([{"prompt": "a", "temprature": 1}])
    with pytest.raises(OptionError, match=r"Did you mean 'vllm'\?$"):
        load(TEXT, backend="vlm")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="less max_new_tokens 1000000000 leaves 0"):
        text.generate_text_batch([FRANCE], {"max_new_tokens": 10**9})
    with pytest.raises(OptionError, match="n is a huge int"):
        GenerationOptions(n=10**5000)


LONG = "begins here " + "x" * 1_000_000 + " ends here"


def test_no_error_is_long_and_both_of_its_ends_can_be_read(text: GenerationEngine) -> None:
    unknown = {"stop": {"token_ids": list(range(10**6, 10**6 + 300_000))}}
    cases: dict[Any, tuple[str, ...]] = {
        lambda: text.effective(unknown): ("stop token ids [1000000, ", "outside the vocabulary", "Check them."),
        lambda: text.effective({"stop": ["<|im_end|>" + LONG]}): ("begins here", "ends here", "special token"),
        lambda: load(TEXT, fallback_backend=LONG): ("fallback_backend", "Known: hf"),  # type: ignore[arg-type]
        lambda: load(TEXT, backend=LONG): ("no backend", "'begins"),  # type: ignore[arg-type]
        lambda: text.generate_text_batch([FRANCE | {"adapter": LONG}]): ("no adapter 'begins here", "ends here"),
        lambda: text.effective(plugins=[planted(name=LONG, logits=5)]): ("plugin 'begins here", "cannot be called"),
        lambda: text.effective(plugins=[planted(name=LONG)]): ("no hook of a plugin",),
        lambda: load(TEXT, adapters={LONG: "/nowhere"}): ("no adapter",),
    }
    for call, words in cases.items():
        with pytest.raises(GenEngineError) as caught:
            call()
        assert len(str(caught.value)) < 2000 and len(repr(caught.value)) < 2000
        assert all(word in str(caught.value) for word in words), str(caught.value)
    error = pickle.loads(pickle.dumps(RequestError(LONG, fix=LONG, index=3)))
    assert str(error).startswith("request 3: begins here xxx") and str(error).endswith("ends here.")
    assert RequestError("x" * 900).problem == "x" * 900


def test_samples_without_end_are_refused() -> None:
    assert GenerationOptions(n=1 << 14).n == 16_384
    for number in ((1 << 14) + 1, 10**9):  # options alone: no engine shall begin with them
        with pytest.raises(OptionError, match=f"n is {number}. It must be a whole number >= 1 and <= 16384"):
            GenerationOptions(n=number)


def asking(arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "sunny"}]
    return {"messages": [*FRANCE["messages"], *turns]}


NO_JSON = {
    "arguments 5,000 deep": asking(nested(5000)),
    "arguments of a set": asking({"a": {1}}),
    "a schema of a set": chat("x", structured={"json": {"enum": {1, 2}}}),
    "a schema of bytes": chat("x", structured={"json": {"const": b"x"}}),
    "a schema in a circle": chat("x", structured={"json": {"enum": circle()}}),
    "a schema 5,000 deep": chat("x", structured={"json": nested(5000)}),
}


@pytest.mark.parametrize("bad", NO_JSON.values(), ids=NO_JSON)
def test_what_no_json_can_say_costs_its_row(text: GenerationEngine, bad: Any) -> None:
    error = beside(text, bad, {"max_new_tokens": 4})
    assert "chat template failed" in str(error) or "a JSON schema as a mapping or a string" in str(error)


def test_numbers_of_other_libraries_are_numbers() -> None:
    numpy, torch = importlib.import_module("numpy"), importlib.import_module("torch")
    options = GenerationOptions(max_new_tokens=numpy.int64(7), temperature=numpy.float32(0.5), top_k=torch.tensor(3))
    assert (options.max_new_tokens, options.temperature, options.top_k) == (7, 0.5, 3)
    assert {type(options.max_new_tokens), type(options.top_k)} == {int}


def odd_arrays() -> list[Any]:
    numpy = importlib.import_module("numpy")

    class NoList:
        dtype = "float32"

    return [numpy.float32, numpy.ndarray, NoList, numpy.array([1, 0])]


@pytest.mark.parametrize("value", odd_arrays(), ids=lambda value: str(value)[:30])
def test_what_only_looks_like_an_array_is_refused(text: GenerationEngine, value: Any) -> None:
    for name in ("dtype", "max_model_len", "device", "backend"):
        with pytest.raises(OptionError, match="ModelLoadConfig|no dtype|no backend"):
            load(TEXT, **{"backend": "hf", name: value})
    with pytest.raises(OptionError, match="GenerationOptions"):
        text.generate_text_batch([FRANCE], {"temperature": value})
    for name in ("prompt", "prompt_token_ids", "messages"):
        if type(value).__name__ != "ndarray" or name != "prompt_token_ids":
            beside(text, {name: value})


def test_a_wrong_dtype_of_numpy_is_told_the_right_ones() -> None:
    with pytest.raises(OptionError, match="no dtype <class 'numpy.float32'>. Known: bfloat16, float16, float32"):
        load(TEXT, dtype=importlib.import_module("numpy").float32)


# -- requests that raise as they are read ------------------------------------------------------------------------------


class Torn(dict[str, Any]):
    """Raises where its keys are asked for."""

    def __iter__(self) -> Any:
        raise RuntimeError("planted")

    keys = items = __iter__


class Endless:
    def __iter__(self) -> Any:
        raise ZeroDivisionError("planted")


def unlike(**message: Any) -> Any:
    return {"messages": [{"role": "user", "content": "x", **message}]}


@pytest.mark.parametrize("odd", [
    lambda array: unlike(role=array(["user", "system"])),
    lambda array: unlike(role=array(["user"])),
    lambda array: unlike(content=[{"type": array(["text", "image"]), "text": "x"}]),
    lambda array: unlike(content=[{"type": array(["text"]), "text": "x"}]),
    lambda array: unlike(role="assistant", content=None, tool_calls=array([1, 2])),
    lambda array: unlike(role="assistant", tool_calls=array([1, 2])),
    lambda array: Torn(prompt="x"),
    lambda array: {"messages": [Torn(role="user", content="x")]},
    lambda array: {"messages": Endless()},
    lambda array: {"prompt_token_ids": Endless()},
    lambda array: {"prompt": "x", "structured": Torn(regex="a")},
])  # fmt: skip
def test_what_raises_as_it_is_read_costs_its_row(text: GenerationEngine, odd: Any) -> None:
    beside(text, odd(importlib.import_module("numpy").array))


@pytest.mark.parametrize("template", [5, {"default": 5}, [{"name": "default", "template": 5}]], ids=str)
def test_a_chat_template_that_is_no_text_costs_the_chats(edited: Any, template: Any) -> None:
    model = edited(TEXT, {"tokenizer_config.json": {"chat_template": template}})
    (model / "chat_template.jinja").unlink()
    try:
        engine = load(model)
    except LoadError:
        return
    with engine:
        error, answer = engine.generate_text_batch([FRANCE, {"prompt": "1, 2, 3,"}], on_error="return")  # type: Any, Any
        assert isinstance(error, RequestError) and error.index == 0 and "no chat template" in str(error)
        assert answer.text


# -- n-grams -----------------------------------------------------------------------------------------------------------


def test_where_no_token_is_left_the_row_is_an_error(hooked: GenerationEngine) -> None:
    """vLLM by itself would go on with the first token of its vocabulary."""
    options = {"no_repeat_ngram_size": 1, "max_new_tokens": 10, "stop": {"ignore_eos": True}}
    request = {"prompt_token_ids": [*range(hooked.checkpoint.vocabulary - 5)]}
    [error] = hooked.generate_text_batch([request], options, on_error="return")
    assert isinstance(error, OptionError) and "no token is left to choose" in str(error)


def test_no_n_gram_stands_twice_as_transformers_means_it(shared: Load) -> None:
    requests = [COUNT, FRANCE, chat("Repeat after me: one two one two one two")]
    options = {"max_new_tokens": 40, "no_repeat_ngram_size": 2, "stop": {"ignore_eos": True}}
    hf, vllm = (shared(TEXT, b, logits_hooks=True).generate_text_batch(requests, options) for b in ("hf", "vllm"))
    assert [result.token_ids for result in hf] == [result.token_ids for result in vllm]
    engine, torch = shared(TEXT, "hf"), importlib.import_module("torch")
    for result in hf:
        prompt = torch.tensor([result.prompt_token_ids])
        how = {"max_new_tokens": 40, "do_sample": False, "no_repeat_ngram_size": 2}
        with engine.backend.isolated():  # without the checkpoint's EOS
            ids = engine.model.generate(prompt, attention_mask=torch.ones_like(prompt), **how)
        assert tuple(ids[0, prompt.shape[1] :].tolist()) == result.token_ids
        pairs = list(zip(ids[0].tolist()[prompt.shape[1] - 1 :], result.token_ids))
        assert len(pairs) == len(set(pairs))
    free = engine.generate_text_batch(requests, {**options, "no_repeat_ngram_size": None})
    assert [result.token_ids for result in free] != [result.token_ids for result in hf]
