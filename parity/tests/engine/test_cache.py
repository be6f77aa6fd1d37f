"""The cache of completions: a plain LRU of exact values whose file survives crashes and is never trusted blindly."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import math
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import timeit
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gen_engine
from gen_engine import (
    CacheOptions,
    Completion,
    CompletionCache,
    EngineError,
    GenerationOptions,
    OptionError,
    StopOptions,
    cache_key,
    canonical,
    fingerprint,
    from_json,
    to_json,
)

MODEL = "a model's fingerprint"


def answer(number: int, length: int = 3) -> Completion:
    return Completion(tuple(range(number, number + length)), (number, 1 << 40))


def open_cache(path: Path | None, size: int = 1000, model: str = MODEL) -> CompletionCache:
    return CompletionCache(CacheOptions(size, str(path) if path else None), model)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


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


@given(values)
def test_a_value_can_be_read_back_from_what_its_key_is_made_of(value: Any) -> None:
    """So no two values share it."""
    assert same(ast.literal_eval(canonical(value).replace("inf", "1e999")), value) or "inf" in repr(value)


@given(values, values)
def test_keys_are_equal_for_equal_values_only(one: Any, other: Any) -> None:
    assert (cache_key(one) == cache_key(other)) == same(one, other)


def test_near_values_have_keys_of_their_own() -> None:
    near: list[tuple[Any, ...]] = [
        (1,), (1.0,), (True,), ("1",), (b"1",), (None,), ("None",), (0.0,), (-0.0,), (), ((),), ([],), ({},), ((1,),),
        ([1],), (1, 2), ((1, 2),), ((1,), 2), (1, (2,)), ("1, 2",), ({1: 2},), ({"1": 2},), ("a", "b"), ("ab",),
        ("a', 'b",), ("é",), ("\\xe9",), ("e\u0301",), (GenerationOptions(),), (GenerationOptions(temperature=1),),
        (StopOptions(strings=("1",)),), (StopOptions(token_ids=(1,)),), (StopOptions(),),
        ({f: getattr(StopOptions(), f) for f in ("strings", "token_ids", "include_stop", "ignore_eos")},),
    ]  # fmt: skip
    assert len({cache_key(*parts) for parts in near}) == len(near)
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [object(), {1, 2}, signal.SIGTERM, StopOptions, (1, (object(),))])
def test_what_has_no_certain_text_makes_no_key(value: Any) -> None:
    with pytest.raises(OptionError, match="no cache key can be made of"):
        cache_key(value)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors", "README.md"):
        (directory / name).write_text(name)
    return directory


def known(model: Path, *more: Any, backend: str = "hf") -> str:
    return fingerprint(str(model), None, "float32", backend, *more)


def test_a_checkpoint_is_known_by_its_files_wherever_it_stands(checkpoint: Path) -> None:
    before = known(checkpoint)
    moved = checkpoint.rename(checkpoint.with_name("moved"))
    (moved / "README.md").write_text("new")
    (moved / "model.safetensors").touch()
    assert known(moved) == before
    assert len({before, known(moved, backend="vllm"), known(moved, "torch 2.9")}) == 3
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
    assert len({fingerprint(name, rev, "float32", "hf") for name in ("a/b", "a/c") for rev in (None, "1", "2")}) == 6


# -- the law: a plain LRU dictionary

steps = st.lists(
    st.tuples(st.just("get"), st.integers(0, 6))
    | st.tuples(st.just("put"), st.integers(0, 6))
    | st.tuples(st.sampled_from(["clear", "reopen"]), st.just(0)),
    max_size=40,
)


@pytest.mark.parametrize("kept", ["in memory", "in a file"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(capacity=st.integers(1, 4), steps=steps)
def test_the_cache_is_an_lru_dictionary_across_restarts_too(
    tmp_path_factory: pytest.TempPathFactory, kept: str, capacity: int, steps: list[tuple[str, int]]
) -> None:
    file = tmp_path_factory.mktemp("law") / "cache" if kept == "in a file" else None
    cache, model = open_cache(file, capacity), OrderedDict[str, Completion]()
    for moment, (step, number) in enumerate(steps):
        key, value = f"key {number}", answer(moment)
        if step == "put":
            cache.put(key, value)
            model[key] = value
        elif step == "get":
            assert cache.get(key) == model.get(key)
        elif step == "clear":
            cache.clear()
            model.clear()
        elif file:
            cache.close()
            cache = open_cache(file, capacity)
        if key in model and step in ("put", "get"):
            model.move_to_end(key)
        if len(model) > capacity:
            model.popitem(last=False)
        assert cache.statistics()["size"] == len(model)
    assert {key: cache.get(key) for key in model} == model
    cache.close()


numbers = st.floats(allow_nan=False)


@given(
    st.lists(st.integers(0, 1 << 70)).map(tuple),
    st.none() | st.lists(numbers).map(tuple),
    st.none() | st.lists(st.dictionaries(st.integers(0, 99), numbers)).map(tuple),
    st.none() | st.tuples(st.integers(0, 99), st.text()),
)
def test_a_completion_is_read_back_exactly(ids: Any, logprobs: Any, top_logprobs: Any, plugin_end: Any) -> None:
    given = Completion(ids, ids[::-1], logprobs, top_logprobs, None, plugin_end)
    stored = tuple(getattr(given, f.name) for f in dataclasses.fields(given))
    assert repr(from_json(json.loads(json.dumps(to_json(stored))))) == repr(stored)  # types and order too


def test_what_a_file_cannot_hold_exactly_is_not_kept(file: Path) -> None:
    cache = open_cache(file)
    with pytest.raises(TypeError):
        cache.put("k", dataclasses.replace(answer(1), logits=object()))
    assert cache.get("k") is None
    rich = dataclasses.replace(answer(1), logprobs=(-0.1, -math.inf), top_logprobs=({7: -0.1, 3: -2.5}, {}))
    cache.put("k", rich)
    cache.close()
    cache = open_cache(file)
    assert repr(cache.get("k")) == repr(rich)
    cache.close()


def test_size_zero_keeps_nothing_and_figures_are_told(file: Path) -> None:
    off = open_cache(None, size=0)
    off.put("k", answer(1))
    assert off.get("k") is None
    cache = open_cache(file, size=2)
    assert cache.get("a") is None
    for number, key in enumerate("abc"):
        cache.put(key, answer(number))
    assert cache.get("c") is not None
    assert cache.statistics() == {"hits": 1, "misses": 1, "size": 2, "capacity": 2, "path": str(file)}
    cache.clear()
    assert cache.statistics() == {"hits": 0, "misses": 0, "size": 0, "capacity": 2, "path": str(file)}
    cache.close()
    cache.close()


@pytest.mark.parametrize("values", [{"size": -1}, {"size": True}, {"size": 5, "path": ""}, {"path": "somewhere"}])
def test_options_without_meaning_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="CacheOptions"):
        CacheOptions(**values)


def test_a_smaller_size_drops_the_oldest_at_opening(file: Path) -> None:
    cache = open_cache(file)
    for number in range(10):
        cache.put(str(number), answer(number))
    assert cache.get("0") == answer(0)  # the only one used again
    cache.close()
    cache = open_cache(file, size=2)
    assert [key for key in map(str, range(10)) if cache.get(key)] == ["0", "9"]
    cache.close()


def test_memory_is_a_name_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would take it for no file at all, and forget everything."""
    monkeypatch.chdir(tmp_path)
    cache = open_cache(Path(":memory:"))
    cache.close()
    assert (tmp_path / ":memory:").exists()


def test_a_hit_costs_less_than_50_microseconds(file: Path) -> None:
    cache, key = open_cache(file), cache_key("k")
    cache.put(key, answer(0, length=4000))
    assert min(timeit.repeat(lambda: cache.get(key), number=100, repeat=20)) / 100 < 50e-6
    cache.close()


# -- the file: refused, never trusted or deleted


def sql(file: Path, *statements: str) -> None:
    db = sqlite3.connect(file)
    with db:
        for statement in statements:
            db.execute(statement)
    db.close()


def filled(file: Path) -> None:
    cache = open_cache(file)
    for number in range(200):
        cache.put(f"key {number}", answer(number, length=200))
    cache.close()


def overwritten(place: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        filled(file)
        with file.open("r+b") as stream:
            stream.seek(place)
            stream.write(b"\xa5" * 3000)

    return damage


def truncated(file: Path) -> None:
    filled(file)
    os.truncate(file, file.stat().st_size // 2)


def after_filling(*statements: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        filled(file)
        sql(file, *statements)

    return change


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "not SQLite": (lambda file: file.write_bytes(b"my thesis " * 999), "file is not a database"),
    "one byte": (lambda file: file.write_text("x"), "is not a cache file"),  # an empty file, to SQLite
    "a damaged header": (overwritten(0), "file is not a database"),
    "another program's": (lambda file: sql(file, "CREATE TABLE notes (t)"), "is not a cache file"),
    "marked by another": (lambda file: sql(file, "PRAGMA application_id = 5"), "is not a cache file"),
    "cut off": (truncated, "malformed"),
    "an older format": (after_filling("UPDATE about SET format = '0 token_ids'"), "another format"),
    "a table gone": (after_filling("DROP TABLE about"), "no such table"),
    "a row gone": (after_filling("DELETE FROM about"), "another format"),
    "another model's": (after_filling("UPDATE about SET model = 'x'"), "another model's answers"),
    "a directory": (Path.mkdir, "unable to open"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_cache_of_this_model_is_refused_and_left_alone(case: str, file: Path) -> None:
    make, said = REFUSED[case]
    make(file)
    before = file.read_bytes() if file.is_file() else b""
    with pytest.raises(EngineError, match=said) as caught:
        open_cache(file)
    assert str(file) in str(caught.value)
    assert "point CacheOptions.path elsewhere" in caught.value.fix
    assert file.is_dir() or file.read_bytes() == before
    if file.is_file():  # what the error names helps
        file.unlink()
        open_cache(file).close()


TAMPERED = {
    "a changed answer": "UPDATE entries SET body = replace(body, '5', '6')",
    "a changed checksum": "UPDATE entries SET checksum = 'x'",
    "no answer": "UPDATE entries SET body = NULL",
    "a moved answer": "UPDATE entries SET body = (SELECT body FROM entries WHERE key = 'key 7'), "
    "checksum = (SELECT checksum FROM entries WHERE key = 'key 7') WHERE key = 'key 5'",
}


@pytest.mark.parametrize("change", TAMPERED)
def test_an_entry_that_was_changed_is_an_error_not_an_answer(change: str, file: Path) -> None:
    after_filling(TAMPERED[change])(file)
    cache = open_cache(file)
    with pytest.raises(EngineError, match=r"damaged: entry key 5 was changed\. Delete it, or point"):
        cache.get("key 5")
    cache.close()


@pytest.mark.parametrize("place", [28_500, 88_500, 228_500])
def test_damage_anywhere_gives_errors_or_right_answers(place: int, file: Path) -> None:
    overwritten(place)(file)
    refused = 0
    with contextlib.suppress(EngineError), contextlib.closing(open_cache(file)) as cache:
        for number in range(200):
            try:
                assert cache.get(f"key {number}") in (answer(number, length=200), None)
            except EngineError:
                refused += 1
        assert refused


# -- crashes, threads, processes

CRASHES = """
import os, sys
from gen_engine import CacheOptions, Completion, CompletionCache

def crash_at(countdown):  # each line that SQLite runs, from opening on
    def statement(text):
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            os._exit(9)
    return statement

import sqlite3
connect = sqlite3.connect

for moment in range(1, 100):
    child = os.fork()
    if child == 0:
        def traced(*args, **named):
            db = connect(*args, **named)
            db.set_trace_callback(crash_at(moment))
            return db
        sqlite3.connect = traced
        cache = CompletionCache(CacheOptions(3, sys.argv[1] + str(moment)), "m")
        for number in range(5):
            cache.put(str(number), Completion((number,) * 5000, ()))
            cache.get("2")
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        print(moment)
        break
"""


def script(source: str, *arguments: str) -> subprocess.Popen[str]:
    beside = Path(gen_engine.__file__).parent
    return subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, text=True, cwd=beside)


def test_a_crash_at_any_statement_leaves_a_good_file(file: Path) -> None:
    process = script(CRASHES, str(file))
    moments = int(process.communicate(timeout=120)[0])
    assert moments > 30
    for moment in range(1, moments):
        cache = CompletionCache(CacheOptions(3, str(file) + str(moment)), "m")
        for number in range(5):
            assert cache.get(str(number)) in (None, Completion((number,) * 5000, ()))
        cache.put("more", answer(1))
        assert cache.statistics()["size"] <= 3
        cache.close()


ENDLESS = """
import itertools, sys
from gen_engine import CacheOptions, Completion, CompletionCache

cache = CompletionCache(CacheOptions(100_000, sys.argv[1]), "m")
for number in itertools.count(int(sys.argv[2])):
    cache.put(str(number), Completion((number,) * 300, ()))
    print(number, flush=True)
"""


def test_what_put_returned_from_survives_kill_9(file: Path) -> None:
    last = -1
    for lines in (1, 37, 200):
        process = script(ENDLESS, str(file), str(last + 1))
        assert process.stdout
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
        process.communicate()
        last = int([line for line in said if line.endswith("\n")][-1])
        cache = CompletionCache(CacheOptions(100_000, str(file)), "m")
        assert [cache.get(str(n)) for n in range(last + 1)] == [Completion((n,) * 300, ()) for n in range(last + 1)]
        cache.close()


def work(path: str, worker: int) -> None:
    for turn in range(5):
        cache = CompletionCache(CacheOptions(40, path), MODEL)
        for number in range(20):
            cache.put(f"{worker} {turn} {number}", answer(number))
            assert cache.get(f"shared {number}") in (None, answer(number))
            cache.put(f"shared {number}", answer(number))
        cache.close()


@pytest.mark.parametrize("attempt", range(3))
def test_processes_share_a_file_from_its_making_on(file: Path, attempt: int) -> None:
    workers = [
        multiprocessing.get_context("fork").Process(target=work, args=(str(file), worker)) for worker in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    cache = open_cache(file, size=40)
    assert cache.statistics()["size"] == 40
    assert sum(cache.get(f"shared {n}") == answer(n) for n in range(20)) >= 10
    cache.close()


def test_a_process_sees_what_another_has_put(file: Path) -> None:
    one, other = open_cache(file), open_cache(file)
    one.put("k", answer(1))
    assert other.get("k") == answer(1)
    one.close()
    other.close()


def test_threads_share_a_cache(file: Path) -> None:
    cache, wrong = open_cache(file, size=20), []

    def work(worker: int) -> None:
        for number in range(100):
            key = number * worker % 30
            cache.put(f"{key}", answer(key))
            if cache.get(f"{key}") not in (None, answer(key)):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures = cache.statistics()
    assert (wrong, figures["size"], figures["hits"] + figures["misses"]) == ([], 20, 400)
    cache.close()


def test_a_file_that_is_locked_for_good_is_an_error_that_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(file)
    cache._db.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineError, match=r"database is locked\. See to the lock"):
        cache.put("k", answer(1))
    other.execute("ROLLBACK")
    cache.put("k", answer(1))
    assert cache.get("k") == answer(1)
    other.close()
    cache.close()
