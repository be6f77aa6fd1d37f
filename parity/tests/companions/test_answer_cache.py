"""AnswerCache: a plain LRU mapping of strings whose file survives crashes, is shared, never taken from others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gen_engine import EngineError, OptionError
from parity.companions import answer_cache
from parity.companions.answer_cache import AnswerCache

from ..conftest import ROOT, TEXT, chat, open_engine


def answer(number: int, length: int = 3) -> str:
    return str([*range(number, number + length)])


def open_cache(path: Path | None, size: int = 1000) -> AnswerCache:
    return AnswerCache(path, size)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


# -- the law: a plain LRU dictionary

steps = st.lists(
    st.tuples(st.just("get"), st.integers(0, 6))
    | st.tuples(st.just("put"), st.integers(0, 6))
    | st.tuples(st.sampled_from(["delete", "look"]), st.integers(0, 6))
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
    cache, model = open_cache(file, capacity), OrderedDict[str, str]()
    for moment, (step, number) in enumerate(steps):
        key, value = f"key {number}", answer(moment)
        if step == "put":
            cache[key] = model[key] = value
        elif step == "get":
            assert cache.get(key) == model.get(key)
        elif step == "delete":
            assert cache.pop(key, None) == model.pop(key, None)
        elif step == "look":
            assert (key in cache) == (key in model)
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
        assert len(cache) == len(model)
        assert list(cache) == list(model)
    assert dict(cache) == model
    cache.close()


def test_figures_are_told(file: Path) -> None:
    cache = open_cache(file, size=2)
    assert cache.get("a") is None
    for number, key in enumerate("abc"):
        cache[key] = answer(number)
    assert cache["c"] and "b" in cache and "a" not in cache  # to look is no use
    assert cache.statistics() == {"hits": 1, "misses": 1, "size": 2, "capacity": 2, "path": str(file)}
    cache.clear()
    assert cache.statistics() == {"hits": 0, "misses": 0, "size": 0, "capacity": 2, "path": str(file)}
    cache.close()
    cache.close()


def test_it_is_a_mapping_like_others(file: Path) -> None:
    with AnswerCache(file) as cache:
        cache.update(a="1", b="2", c="3")
        assert cache.popitem() == ("a", "1")  # the least recently used
        assert cache.setdefault("b", "9") == "2" and list(cache) == ["c", "b"]
        with pytest.raises(KeyError):
            del cache["nothing"]
        with pytest.raises(KeyError):
            cache["nothing"]
        assert cache == {"b": "2", "c": "3"}


@pytest.mark.parametrize(
    "values", [{"size": 0}, {"size": True}, {"size": "5"}, {"path": ""}, {"path": "a\0b"}, {"path": b"a"}]
)
def test_settings_without_meaning_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="AnswerCache's"):
        AnswerCache(**values)


def test_a_smaller_size_drops_the_oldest_at_opening(file: Path) -> None:
    cache = open_cache(file)
    for number in range(10):
        cache[str(number)] = answer(number)
    assert cache.get("0") == answer(0)  # the only one used again
    cache.close()
    cache = open_cache(file, size=2)
    assert list(cache) == ["9", "0"]
    cache.close()


def test_memory_is_a_name_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would take it for no file at all, and forget everything."""
    monkeypatch.chdir(tmp_path)
    cache = open_cache(Path(":memory:"))
    cache.close()
    assert (tmp_path / ":memory:").exists()


def test_a_hit_is_one_question_to_the_file_and_writes_nothing(file: Path) -> None:
    cache, asked = open_cache(file), list[str]()
    cache["k" * 64] = answer(0, length=4000)
    cache._db.set_trace_callback(asked.append)
    for _ in range(100):
        assert cache["k" * 64]
    cache._db.set_trace_callback(None)
    assert len(asked) == 100 and all(question.startswith("SELECT value FROM entries WHERE key") for question in asked)
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
        cache[f"key {number}"] = answer(number, length=200)
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
    "an older format": (after_filling("UPDATE about SET format = '1 token_ids'"), "another format"),
    "a table gone": (after_filling("DROP TABLE about"), "no such table"),
    "a row gone": (after_filling("DELETE FROM about"), "another format"),
    "a directory": (Path.mkdir, "unable to open"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_cache_is_refused_and_left_alone(case: str, file: Path) -> None:
    make, said = REFUSED[case]
    make(file)
    before = file.read_bytes() if file.is_file() else b""
    with pytest.raises(EngineError, match=said) as caught:
        open_cache(file)
    assert str(file) in str(caught.value)
    assert "give AnswerCache another path" in caught.value.fix
    assert file.is_dir() or file.read_bytes() == before
    if file.is_file():  # what the error names helps
        file.unlink()
        open_cache(file).close()


@pytest.mark.parametrize("place", [28_500, 88_500, 148_500])
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
from parity.companions import answer_cache
from parity.companions.answer_cache import AnswerCache

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
        cache = AnswerCache(sys.argv[1] + str(moment), 3)
        for number in range(5):
            cache[str(number)] = str(number) * 20_000
            cache.get("2")
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        print(moment)
        break
"""


def script(source: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_a_crash_at_any_statement_leaves_a_good_file(file: Path) -> None:
    process = script(CRASHES, str(file))
    moments = int(process.communicate()[0])
    assert moments > 30
    for moment in range(1, moments):
        cache = AnswerCache(str(file) + str(moment), 3)
        for number in range(5):
            assert cache.get(str(number)) in (None, str(number) * 20_000)
        cache["more"] = answer(1)
        assert cache.statistics()["size"] <= 3
        cache.close()


ENDLESS = """
import itertools, sys
from parity.companions import answer_cache
from parity.companions.answer_cache import AnswerCache

cache = AnswerCache(sys.argv[1], 100_000)
for number in itertools.count(int(sys.argv[2])):
    cache[str(number)] = str(number) * 300
    print(number, flush=True)
"""


def test_what_was_set_survives_kill_9(file: Path) -> None:
    last = -1
    for lines in (1, 37, 200):
        process = script(ENDLESS, str(file), str(last + 1))
        assert process.stdout
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
        process.communicate()
        last = int([line for line in said if line.endswith("\n")][-1])
        cache = AnswerCache(file, 100_000)
        assert [cache.get(str(n)) for n in range(last + 1)] == [str(n) * 300 for n in range(last + 1)]
        cache.close()


def work(path: str, worker: int) -> None:
    for turn in range(5):
        cache = AnswerCache(path, 40)
        for number in range(20):
            cache[f"{worker} {turn} {number}"] = answer(number)
            assert cache.get(f"shared {number}") in (None, answer(number))
            cache[f"shared {number}"] = answer(number)
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
    assert len(cache) == 40
    assert sum(cache.get(f"shared {n}") == answer(n) for n in range(20)) >= 10
    cache.close()


def test_a_new_file_that_another_writes_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and the change to SQLite's write-ahead mode, where SQLite itself waits for nobody."""
    original = answer_cache.write_ahead
    with contextlib.closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        release = threading.Timer(0.3, other.execute, ["COMMIT"])

        def beside_a_writer(db: sqlite3.Connection) -> None:
            other.execute("BEGIN IMMEDIATE")
            release.start()
            original(db)

        monkeypatch.setattr(answer_cache, "write_ahead", beside_a_writer)
        open_cache(file).close()
        release.join()


def test_a_process_sees_what_another_does(file: Path) -> None:
    one, other = open_cache(file), open_cache(file)
    one["k"] = answer(1)
    assert other.get("k") == answer(1)
    other.clear()
    assert one.get("k") is None
    one.close()
    other.close()


def test_threads_share_a_cache(file: Path) -> None:
    cache, wrong = open_cache(file, size=20), []

    def work(worker: int) -> None:
        for number in range(100):
            key = number * worker % 30
            cache[f"{key}"] = answer(key)
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
        cache["k"] = answer(1)
    other.execute("ROLLBACK")
    cache["k"] = answer(1)
    assert cache.get("k") == answer(1)
    other.close()
    cache.close()


def test_a_closed_cache_says_so(file: Path) -> None:
    cache = open_cache(file)
    cache.close()
    for use in (lambda: cache["k"], lambda: cache.update(k="v"), lambda: len(cache), cache.clear, lambda: list(cache)):
        with pytest.raises(EngineError, match="closed database"):
            use()


# -- under an engine


def test_a_file_serves_the_next_engine(file: Path) -> None:
    for turn in range(2):
        with AnswerCache(file) as store, open_engine(TEXT, "hf", cache=store) as engine:
            assert engine.generate_text_batch([chat("Count to 3.")])[0].cached == (turn == 1)


FULL_DISK = """
import logging, resource, sys
from gen_engine import load
from parity.companions import answer_cache
from parity.companions.answer_cache import AnswerCache

logging.basicConfig(format="%(message)s", stream=sys.stdout)
model, file = sys.argv[1:]
requests = [{"prompt": f"Count to {number}."} for number in range(40)]
with AnswerCache(file) as store, load(model, cache=store, progress=False) as engine:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for _ in range(3):
        print(len(engine.generate_text_batch(requests, {"max_new_tokens": 60})), "answers")
"""


def test_closing_on_a_full_disk_is_no_error_and_costs_the_order_of_the_last_hits(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = AnswerCache(file)
    cache["k"] = "v"
    assert cache["k"] == "v"  # a hit that the file does not know of yet
    told: list[Any] = []

    def full(*entries: Any) -> None:
        told.append(entries)
        raise EngineError("planted", fix="see to the disk")

    with monkeypatch.context() as patched:
        patched.setattr(cache, "_write", full)
        cache.close()
    assert told == [()]
    with pytest.raises(EngineError):
        cache["k"] = "w"
    with AnswerCache(file) as again:
        assert again["k"] == "v"


@pytest.mark.usefixtures("forked_python")
def test_a_full_disk_costs_a_warning_and_no_answer(file: Path) -> None:
    process = script(FULL_DISK, str(TEXT), str(file))
    said = process.communicate()[0].splitlines()
    assert process.returncode == 0, said
    told = [line for line in said if line.startswith("the cache fails: EngineError(")]
    assert [line for line in said if line not in told] == ["40 answers"] * 3
    assert len(told) == 1 and told[0].endswith("; answers go on uncached")
    with AnswerCache(file) as store:  # whole entries are there, and it can be used again
        assert len(store) < 40
        store["k"] = "v"


def test_a_damaged_file_costs_a_warning_and_no_answer(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    requests = [{"prompt": f"Count to {number}."} for number in range(30)]
    options = {"logprobs": 20, "max_new_tokens": 60}
    with AnswerCache(file) as store, open_engine(TEXT, "hf", cache=store) as engine:
        plain = engine.generate_text_batch(requests, options)
    with file.open("r+b") as stream:
        for place in range(20_480, file.stat().st_size - 2048, 4096):
            stream.seek(place)
            stream.write(b"\xa5" * 1000)
    with AnswerCache(file) as store, open_engine(TEXT, "hf", cache=store) as engine:
        assert engine.generate_text_batch(requests, options) == plain
    told = [record.getMessage() for record in caplog.records if record.name == "gen_engine"]
    assert 1 <= len(told) <= 2 and all(line.startswith("the cache ") for line in told)
