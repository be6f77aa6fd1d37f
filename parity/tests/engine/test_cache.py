"""The cache: keys that only equal requests share, entries read back exactly or not at all, any mapping as the store."""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st

import gen_engine
from gen_engine import Completion, GenerationOptions, ModelLoadConfig, OptionError, StopOptions
from parity.companions.answer_cache import (
    AnswerCache,
    Answers,
    cache_key,
    fingerprint,
    from_entry,
    loaded_model,
    sealed,
    to_entry,
)
from parity.companions.speculation import Speculation

from ..conftest import TEXT, chat, open_engine

# -- keys and fingerprints

atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(atoms, inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type too, at every depth; -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = [(k, v) for k, v in one.items() if any(same(k, there) for there in other)]
        return len(one) == len(other) == len(pairs) and all(same(value, other[key]) for key, value in pairs)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


def test_near_values_have_keys_of_their_own() -> None:
    near: list[tuple[Any, ...]] = [
        (1,), (1.0,), (True,), ("1",), (b"1",), (None,), ("None",), (0.0,), (-0.0,), (), ((),), ([],), ({},), ((1,),),
        ([1],), (1, 2), ((1, 2),), ((1,), 2), (1, (2,)), ("1, 2",), ({1: 2},), ({"1": 2},), ("a", "b"), ("ab",),
        ("a', 'b",), ("é",), ("\\xe9",), ("e\u0301",), (GenerationOptions(),), (GenerationOptions(temperature=1),),
        (StopOptions(strings=("1",)),), (StopOptions(token_ids=(1,)),), (StopOptions(),),
        ({f: getattr(StopOptions(), f) for f in ("strings", "token_ids", "include_stop", "ignore_eos")},),
    ]  # fmt: skip
    assert len({cache_key(*parts) for parts in near}) == len(near)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors", "README.md"):
        (directory / name).write_text(name)
    return directory


def known(model: Path) -> str:
    return fingerprint(str(model))


def test_a_checkpoint_is_known_by_its_files_wherever_it_stands(checkpoint: Path) -> None:
    before = known(checkpoint)
    moved = checkpoint.rename(checkpoint.with_name("moved"))
    (moved / "README.md").write_text("new")
    (moved / "model.safetensors").touch()
    assert known(moved) == before
    for name in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
        (moved / name).write_text(name.upper())
        before, changed = known(moved), before
        assert before != changed


def test_large_weights_are_known_by_their_edges_size_and_time(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    size = (64 << 20) + 1

    def state(place: int, content: bytes, length: int = size, time: int = 10**18) -> str:
        with weights.open("wb") as stream:
            stream.truncate(length)  # sparse: takes no room
            stream.seek(place)
            stream.write(content)
        os.utime(weights, ns=(time, time))
        return known(checkpoint)

    same_file = state(0, b"x")
    assert state(0, b"x") == same_file
    others = [state(0, b"y"), state(size - 1, b"x"), state(0, b"x", size + 1), state(0, b"x", time=10**18 + 1)]
    assert len({same_file, *others}) == 5


def test_a_hub_name_is_known_with_its_revision() -> None:
    assert len({fingerprint(name, revision) for name in ("a/b", "a/c") for revision in (None, "1", "2")}) == 6


def test_the_same_checkpoint_loaded_otherwise_has_keys_of_its_own(
    text: gen_engine.GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[dict[str, Any]] = [
        {}, {"device": "cuda:1"}, {"attn_implementation": "eager"}, {"hf_kwargs": {"a": 1}}, {"vllm_kwargs": {"a": 1}},
        {"backend": "vllm"}, {"decoder": Speculation("ngram")},
    ]  # fmt: skip
    found = {loaded_model(ModelLoadConfig(str(TEXT), **way), text.checkpoint) for way in ways}
    assert len(found) == len(ways)
    there = importlib.import_module("torch").cuda.is_available()
    monkeypatch.setattr("torch.cuda.is_available", lambda: not there)  # a store that machines share
    assert loaded_model(ModelLoadConfig(str(TEXT)), text.checkpoint) not in found


# -- entries

numbers = st.floats(allow_nan=False)


@given(
    st.lists(st.integers(0, 1 << 70)).map(tuple),
    st.none() | st.lists(numbers).map(tuple),
    st.none() | st.lists(st.dictionaries(st.integers(0, 99), numbers)).map(tuple),
)
def test_a_completion_is_read_back_exactly(ids: Any, logprobs: Any, top_logprobs: Any) -> None:
    given = Completion(ids, ids[::-1], logprobs, top_logprobs)
    assert repr(from_entry("k", to_entry("k", given))) == repr(given)  # types and order too


ENTRY = to_entry("k", Completion((1, 2, 5), (7,), (-0.1, -math.inf, 0.0), ({7: -0.1, 3: -2.5}, {}, {})))


@given(st.integers(0, len(ENTRY) - 1), st.characters())
def test_a_changed_character_makes_no_answer(place: int, character: str) -> None:
    changed = ENTRY[:place] + character + ENTRY[place + 1 :]
    assert changed == ENTRY or from_entry("k", changed) is None


@pytest.mark.parametrize(
    "entry", ["", "{}", ENTRY[:-1], ENTRY + " ", "\ud800", "5" * 999, None, 5, ENTRY.encode(), [1]]
)
def test_what_is_no_entry_of_this_key_makes_no_answer(entry: Any) -> None:
    assert from_entry("k", entry) is None
    assert from_entry("k", ENTRY) is not None and from_entry("another", ENTRY) is None


# What somebody who knows how entries are made may put in place of an answer, by its parts.
FALSE: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "a number": lambda ids, prompt, own, tops: 5,
    "three parts": lambda ids, prompt, own, tops: [ids, prompt, own],
    "no ids": lambda ids, prompt, own, tops: [None, prompt, own, tops],
    "texts": lambda ids, prompt, own, tops: [["a"] * 3, prompt, own, tops],
    "true": lambda ids, prompt, own, tops: [[True] * 3, prompt, own, tops],
    "an id beyond the model": lambda ids, prompt, own, tops: [[10**6] * 3, prompt, own, tops],
    "a negative id": lambda ids, prompt, own, tops: [[-1] * 3, prompt, own, tops],
    "nothing": lambda ids, prompt, own, tops: [[], prompt, [], []],
    "a row without an end": lambda ids, prompt, own, tops: [ids[:2], prompt, own[:2], tops[:2]],
    "another prompt": lambda ids, prompt, own, tops: [ids, [5], own, tops],
    "no logprobs": lambda ids, prompt, own, tops: [ids, prompt, None, None],
    "too few logprobs": lambda ids, prompt, own, tops: [ids, prompt, own[:2], tops],
    "logprobs that are texts": lambda ids, prompt, own, tops: [ids, prompt, ["a"] * 3, tops],
    "best tokens that are numbers": lambda ids, prompt, own, tops: [ids, prompt, own, [5, 5, 5]],
}


@pytest.mark.parametrize("kind", FALSE)
def test_a_false_entry_with_a_right_checksum_is_a_miss(kind: str, shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf")
    store: dict[str, str] = {}
    answers = Answers(replace(engine.config, cache=store), engine.checkpoint)
    monkeypatch.setattr(engine, "_answers", answers)
    requests = [{"prompt": "Hi"}, {"prompt": "Ho"}]
    options = {"max_new_tokens": 3, "logprobs": 1}
    plain = engine.generate_text_batch(requests, options)
    key = next(iter(store))
    parts = json.loads(store[key][64:])
    store[key] = sealed(key, json.dumps(FALSE[kind](*parts)))
    again = engine.generate_text_batch(requests, options)
    assert [result.cached for result in again] == [False, True]
    assert [result.token_ids for result in again] == [result.token_ids for result in plain]
    assert json.loads(store[key][64:])[:2] == parts[:2]  # it is made anew


# -- stores

COUNT = chat("Count to 3.")


class OwnLRU(OrderedDict[str, str]):
    """Ten lines of anybody's: only [] counts as use."""

    def __getitem__(self, key: str) -> str:
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        if len(self) > 2:
            self.popitem(last=False)


class Failing(MutableMapping[str, str]):
    """Raises in the methods that it is told, until told otherwise."""

    def __init__(self, *failing: str, error: Exception) -> None:
        self.kept: dict[str, str] = {}
        self.failing, self.error, self.asked = failing, error, 0

    def _do(self, name: str) -> None:
        self.asked += 1
        if name in self.failing:
            raise self.error

    def __getitem__(self, key: str) -> str:
        self._do("get")
        return self.kept[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._do("set")
        self.kept[key] = value

    def __delitem__(self, key: str) -> None:
        del self.kept[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)


STORES: dict[str, Callable[[], MutableMapping[str, str]]] = {
    "an empty dict": dict[str, str],
    "a dict in use": lambda: {"not": "ours"},
    "cachetools": lambda: LRUCache(9),
    "one's own": OwnLRU,
    "ours": AnswerCache,
}


@pytest.mark.parametrize("kind", STORES)
def test_any_mapping_keeps_answers(kind: str) -> None:
    store = STORES[kind]()
    with open_engine(TEXT, "hf", cache=store) as engine:
        assert engine.cache is store
        [first] = engine.generate_text_batch([COUNT])
        [again] = engine.generate_text_batch([COUNT])
        assert (first.cached, again.cached) == (False, True) and first == again
        engine.cache.clear()
        assert not engine.generate_text_batch([COUNT])[0].cached
    assert len(store) == 1  # the engine has closed nothing
    with open_engine(TEXT, "hf", cache=store) as engine:
        assert engine.generate_text_batch([COUNT])[0].cached


def test_the_last_used_answer_stays_in_an_lru() -> None:
    with open_engine(TEXT, "hf", cache=OwnLRU()) as engine:
        for prompt in ("a", "b", "a", "c"):
            engine.generate_text_batch([{"prompt": prompt}], {"max_new_tokens": 1})
        kept = [engine.generate_text_batch([{"prompt": p}], {"max_new_tokens": 1})[0].cached for p in ("a", "b")]
    assert kept == [True, False]


def test_one_store_serves_several_engines() -> None:
    store: dict[str, str] = {}
    for length in (512, 1024):  # the window has no say in an answer that fits
        with open_engine(TEXT, "hf", cache=store, max_model_len=length) as engine:
            assert engine.generate_text_batch([COUNT])[0].cached == (length == 1024)
    with open_engine(TEXT, "hf", cache=store, dtype="bfloat16") as engine:
        assert not engine.generate_text_batch([COUNT])[0].cached
    assert len(store) == 2


@pytest.mark.parametrize("given", [{"size": 1000}, [], "answers.sqlite", 5, True, object()])
def test_what_is_no_store_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="ModelLoadConfig.cache is .* MutableMapping of str to str"):
        ModelLoadConfig("m", cache=given)


def test_a_store_is_not_shown_with_its_answers() -> None:
    config = ModelLoadConfig("m", cache={"key": "answer"})
    assert "answer" not in repr(config) and config == ModelLoadConfig("m")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Ours: the libraries have some of their own."""
    return [record.getMessage() for record in caplog.records if record.name == "gen_engine"]


ERRORS = [OSError(28, "No space left on device"), RuntimeError("down"), KeyError("odd"), gen_engine.EngineError("shut")]


@pytest.mark.parametrize("failing", [("get",), ("set",), ("get", "set")])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_store_that_raises_costs_one_warning_and_no_answer(
    failing: tuple[str, ...], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store, short = Failing(*failing, error=error), {"max_new_tokens": 3}
    requests = [COUNT, chat("Count to 5."), chat("Count to 6.")]
    with open_engine(TEXT, "hf", cache=store) as engine, caplog.at_level(logging.WARNING, "gen_engine"):
        plain = engine.generate_text_batch(requests, short, cache=False)
        for _ in range(3):
            assert engine.generate_text_batch(requests, short) == plain
        quiet = failing == ("get",) and isinstance(error, KeyError)  # that is a miss
        told = [] if quiet else [f"the cache fails: {error!r}; answers go on uncached"]
        assert warnings_in(caplog) == told
        store.failing = ()
        engine.generate_text_batch(requests, short)
        assert [r.cached for r in engine.generate_text_batch(requests, short)] == [True] * 3  # it is well again


def test_a_failing_store_is_not_asked_for_every_row() -> None:
    """A lock may take half a minute to fail."""
    store = Failing("get", "set", error=OSError("locked"))
    with open_engine(TEXT, "hf", cache=store) as engine:
        engine.generate_text_batch([{"prompt": letter} for letter in "abcdefgh"], {"max_new_tokens": 1})
    assert store.asked == 2


def test_damaged_entries_are_misses_told_once_and_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    store: dict[str, str] = {}
    requests = [COUNT, chat("Count to 5."), chat("Count to 6.")]
    with open_engine(TEXT, "hf", cache=store) as engine, caplog.at_level(logging.WARNING, "gen_engine"):
        plain = engine.generate_text_batch(requests)
        (one, value), (two, other), _ = store.items()
        store[one], store[two] = value.replace("5", "6"), value  # the second is right, in another place
        again = engine.generate_text_batch(requests)
        assert again == plain and [r.cached for r in again] == [False, False, True]
        assert (store[one], store[two]) == (value, other)
        store[one] = "again"
        engine.generate_text_batch(requests)
    [told] = warnings_in(caplog)
    assert told == f"the cache holds a damaged entry: {one}; such entries are made anew"
