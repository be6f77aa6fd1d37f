"""What a session keeps from case to case and from site to site, and what it forgets."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Case, GoldenError, Store
from parity.judge.session import Session

MOVED = """
from functools import cache

@cache
def engine():
    return object()

def answer(word, tool):
    return [id(engine()), id(tool)]
"""
SETUP = "def make():\n    return object()\n"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Of a function that keeps its engine, and is given an object that a factory makes."""
    (tmp_path / "acme_kept.py").write_text(MOVED)
    (tmp_path / "acme_setup.py").write_text(SETUP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    factories = {"answers": {"tool": "acme_setup:make"}}
    return Session(Store(tmp_path / "golden"), {"acme_kept:answer": "answers"}, factories)


def answered(session: Session) -> list[int]:
    """What was kept: the code's own cache, and the factory's object."""
    old = Case("answers", "a", "acme_kept:answer", {"word": "x"})
    found: list[int] = session.call(old, "acme_kept:answer", {}, {}, frozenset()).value
    return found


def test_forget_empties_caches_of_the_code_and_objects_of_factories(session: Session) -> None:
    with session:
        first = answered(session)
        kept = [sys.modules["acme_kept"], *session.objects.values()]  # no other object takes their places
        assert answered(session) == first, "within a site both are kept"
        session.forget()
        assert session.engine() is None and "acme_kept" not in sys.modules
        assert not {*answered(session)} & {*first}
        assert len(kept) == 2
    assert "acme_kept" not in sys.modules


def test_code_that_was_loaded_before_comes_back_with_its_cache(session: Session) -> None:
    mine = importlib.import_module("acme_kept")
    before = mine.engine()
    with session:
        assert answered(session)[0] != id(before)
    assert sys.modules.pop("acme_kept") is mine and mine.engine() is before


MEMO = """
import itertools
import threading
from dataclasses import dataclass

@dataclass
class Config:
    name: str = "a"
    def __post_init__(self):
        self.lock = threading.Lock()

class Names(dict):
    __getattr__ = dict.__getitem__

kept = [Config()]
names = {"a": Names(a=1)}
done = {}
answers = itertools.count()

def answer(word):
    if word not in done:
        done[word] = next(answers)
    return done[word]
"""


def test_what_code_keeps_in_its_module_is_put_back_before_a_run_with_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_memo.py").write_text(MEMO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    functions = {"acme_memo:answer": "memo"}
    with Session(Store(tmp_path / "golden"), functions, {}) as session:

        def call(word: str, *parts: str) -> Any:
            old = Case("memo", word, "acme_memo:answer", {"word": word})
            return session.call(old, "acme_memo:answer", {}, {}, frozenset(parts)).value

        assert [call("a"), call("b")] == [0, 1]
        assert [call("b", "alone"), call("b", "prompts")] == [2, 3], "it asks as the first run did"
        assert [call("b"), call("a")] == [1, 0], "and what was answered then is in no memory"


PARSED = """
import argparse
import sys

parser = argparse.ArgumentParser()
parser.add_argument("word")
parser.add_argument("--times", type=int, default=1)
args = parser.parse_args()

def answer():
    return [args.word] * args.times + sys.argv[1:]
"""


def test_code_that_reads_the_command_line_has_the_one_of_its_own_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sites of one module, recorded with other arguments: it is imported for each."""
    (tmp_path / "acme_parsed.py").write_text(PARSED)
    monkeypatch.chdir(tmp_path)
    before = sys.argv
    argv = {"one": ["a", "--times", "2"], "other": ["b"]}
    values = {}
    with Session(Store(tmp_path / "golden"), {"acme_parsed.py:answer": "one"}, argv=argv) as session:
        for site in argv:
            old = Case(site, "a", "acme_parsed.py:answer")
            values[site] = session.call(old, "acme_parsed.py:answer", {}, {}, frozenset()).value
    assert values == {"one": ["a", "a", "a", "--times", "2"], "other": ["b", "b"]}
    assert sys.argv is before


def test_a_module_that_ends_the_process_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_parsed.py").write_text(PARSED)
    monkeypatch.chdir(tmp_path)
    said = r"acme_parsed.py:answer could not be imported: it ended the process, sys.exit\(2\).*__main__.*`argv` in"
    name = "acme_parsed.py:answer"
    session = Session(Store(tmp_path / "golden"), {}, argv={"s": ["a", "--tmes", "2"]})
    with session, pytest.raises(GoldenError, match=said):
        session.call(Case("s", "a", name), name, {}, {}, frozenset())


WITH_CLASS = """
from dataclasses import dataclass

@dataclass
class Config:
    budget: int

def answer(config):
    return [type(config).__module__, type(config) is Config, config.budget]
"""


@pytest.mark.parametrize(
    ("recorded", "old", "new"),
    [
        pytest.param("__main__", "acme_script.py", "acme_moved.py", id="a script that was moved"),
        pytest.param("__main__", "acme_script.py", "acme_script.py", id="a script as it was"),
        pytest.param("acme_script", "acme_script", "acme_moved", id="a module that was moved"),
    ],
)
def test_a_class_of_the_recorded_code_is_that_of_the_moved_code(
    recorded: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acme_script.py", "acme_moved.py"):
        (tmp_path / name).write_text(WITH_CLASS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"$record": f"{recorded}.Config", "fields": {"budget": 5}}
    case = Case("s", "a", f"{old}:answer", {"config": config})
    with Session(Store(tmp_path / "golden"), {f"{new}:answer": "s"}) as session:
        value = session.call(case, f"{new}:answer", {}, {}, frozenset()).value
    assert value == [new, True, 5]
