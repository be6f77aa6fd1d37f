"""Moved code in a process of its own: whatever ends it ends one case, is said everywhere, and the others go on."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from parity.__main__ import main
from parity.goldens.store import Case, Store
from parity.goldens.verdict import Outcome
from parity.judge.check import Job, Measured, Together, Waiting, check_sites, judged, shares
from parity.judge.worker import Died, Worker, output_into

from ..conftest import TEXT

MOVED = """
import ctypes, os, sys, time

def answer(word):
    if word == "exit":
        sys.exit(0)
    if word == "os._exit":
        os._exit(0)
    if word == "crash":
        ctypes.string_at(0)
    if word == "hang":
        time.sleep(1000)
    if word == "interrupt":
        raise KeyboardInterrupt
    return word.upper()

def later(word):
    return word.upper()
"""
ENDS = {
    "exit": "ended the process: sys.exit(0)",
    "os._exit": "ended its process with exit code 0",
    "crash": "SIGSEGV",
    "hang": "said nothing for 15 seconds",
    "interrupt": "KeyboardInterrupt",
}


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A repository with two sites, of which the first dies in many ways."""
    (tmp_path / "moved.py").write_text(MOVED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    store = Store(tmp_path / "golden")
    for k, word in enumerate(["first", *ENDS, "last"]):
        store.write(Case("answers", f"{k}-{word}", "moved:answer", {"word": word}, value=word.upper()))
        store.write(Case("later", f"{k}-{word}", "moved:later", {"word": word}, value=word.upper()))
    store.set_site("answers", functions=["moved:answer"])
    store.set_site("later", functions=["moved:later"])
    return store


@pytest.mark.parametrize("word", ENDS)
def test_each_end_is_named(word: str, acme: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for name in acme.names("answers"):
        if name[2:] not in (word, "first", "last"):
            acme.path("answers", name).unlink()
    limit = "15" if word == "hang" else "300"  # of a fresh interpreter on a busy machine, where it is not the point
    assert main(["check", "--time-limit", limit, "--junit", "parity.xml"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert ENDS[word] in said and "2 IDENTICAL 1 ERROR" in said and "7 IDENTICAL" in said, said
    errors = [case for case in ElementTree.parse("parity.xml").iter("testcase") if case.find("error") is not None]
    assert [str(case.get("name"))[2:] for case in errors] == [word]


def test_a_site_that_keeps_dying_is_left_and_the_others_go_on(acme: Store, capsys: pytest.CaptureFixture[str]) -> None:
    Path("moved.py").write_text(MOVED.replace('if word == "exit":\n        sys.exit(0)', "os._exit(7)"))
    assert main(["check"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "exit code 7" in said and "3 cases of this site in a row did not come back" in said
    assert "7 ERROR" in said and "7 IDENTICAL" in said


def test_a_library_that_is_broken_is_the_error_of_each_case(acme: Store, capsys: pytest.CaptureFixture[str]) -> None:
    Path("vllm").mkdir()
    Path("vllm/__init__.py").write_text("raise RuntimeError('another build of torch')")
    Path("moved.py").write_text(MOVED.replace("def answer(word):", "def answer(word):\n    import vllm"))
    assert main(["check", "--backend", "vllm"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "RuntimeError: another build of torch" in said and "7 DRIFT" in said and "7 IDENTICAL" in said, said


def test_an_exit_that_the_old_code_made_too_is_its_answer(acme: Store) -> None:
    acme.write(Case("answers", "exits", "moved:answer", {"word": "exit"}, raised="SystemExit: 0"))
    assert main(["check", "answers/exits"]) == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_ends_before_the_cases_are_judged_together_does_not_pass(when: str, acme: Store) -> None:
    """Rounding, and draws of several cases, are judged when all engines are closed."""

    class Dies(Worker):
        def run(self, task: str, job: Any, limit: float) -> Generator[Any, None, None]:
            for found in super().run(task, job, limit):
                if not isinstance(found, Measured) or when == "after":
                    yield found
            raise Died("it crashed its process: signal 11 (SIGSEGV)")

    with Dies() as worker:
        check = check_sites(acme, cases=["answers/0-first", "later/0-first"], sites=["answers", "later"], worker=worker)
    verdicts = {o.label: o.verdict for o in check.outcomes}
    lost = {"answers/*": "ERROR", "later/*": "ERROR"} if when == "before" else {}
    assert verdicts == {"answers/0-first": "IDENTICAL", "later/0-first": "IDENTICAL", **lost}
    assert check.exit_code == (3 if when == "before" else 0)


@pytest.mark.parametrize("when", ["another case", "reading"])
def test_verdicts_that_hang_on_a_process_that_ended_are_none(when: str, acme: Store) -> None:
    """What was said before all cases of a site are judged together may be a DRIFT that rounding explains."""
    limits = []

    class Dies(Worker):
        def run(self, task: str, job: Any, limit: float) -> Generator[Any, None, None]:
            if len(job.items) < 2:
                yield from super().run(task, job, limit)
                return
            yield Outcome("answers", "0-first", "hf", "DRIFT")
            yield Waiting()
            if when == "reading":
                yield Outcome("later", "0-first", "hf", "IDENTICAL")
                yield Together()
                limits.append(self.limit / limit)
            raise Died("it was killed")

    with Dies() as worker:
        check = check_sites(acme, cases=["answers/0-first", "later/0-first"], sites=["answers", "later"], worker=worker)
    found = {o.label: (o.verdict, str(o.cause and o.cause.sentence)) for o in check.outcomes}
    verdict, why = found["answers/0-first"]
    assert verdict == "ERROR" and "before the cases of its site were judged together: it was killed" in why
    assert found["later/0-first"][0] == ("IDENTICAL" if when == "reading" else "ERROR")
    assert limits == ([2.0] if when == "reading" else []) and check.exit_code == 3


DROPS = """
import gc, weakref
from gen_engine import load

LIVING = weakref.WeakSet()

def answer(word):
    engine = load(MODEL, max_model_len=256)
    LIVING.add(engine)
    engine.generate_text_batch([{"prompt": word}], {"max_new_tokens": 2})
    gc.collect()
    return len(LIVING) <= 2  # its own, and that of the call before it
"""


@pytest.mark.usefixtures("forked_python")
def test_engines_that_moved_code_drops_are_gone(acme: Store) -> None:
    """On some releases of vLLM each is a process, and a site of many cases would fill the memory."""
    Path("drops.py").write_text(f"MODEL = {str(TEXT)!r}\n{DROPS}")
    for name in acme.names("answers"):
        acme.write(dataclasses.replace(acme.read("answers", name), value=True))
    # Lenient, for the goldens hold no model call and the new code makes one; the value tells of the engines.
    assert main(["check", "answers", "--moved", "moved:answer=drops:answer", "--lenient"]) == 0


LEAVES = """
import gc
from gen_engine import load

HELD = []

def answer(word):
    HELD.append(load(MODEL, max_model_len=256))
    return word.upper()

def later(word):
    held = [one for one in gc.get_objects() if type(one).__name__ == "GenerationEngine"]
    return word.upper() if not any(one.backend.model is not None for one in held) else "engines are left open"
"""


@pytest.mark.usefixtures("forked_python")
def test_many_engines_that_a_site_leaves_open_are_closed_before_the_next(acme: Store) -> None:
    """On vLLM each takes its part of the memory, and the sites after it would find none."""
    Path("leaves.py").write_text(f"MODEL = {str(TEXT)!r}\n{LEAVES}")
    assert main(["check", "--moved", "moved=leaves"]) == 0


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "def answer(:", "1 / 0"])
def test_what_cannot_be_imported_could_not_be_judged(
    text: str, acme: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.py").write_text(text)
    assert main(["check", "answers/0-first", "later/0-first", "--moved", "moved:answer=broken:answer"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "1 ERROR" in said and "1 IDENTICAL" in said and "could not be imported" in said


def count(job: int) -> Iterator[int]:
    yield os.getpid()
    yield from range(job)


def test_a_process_is_kept_for_the_next_and_ends_with_its_worker() -> None:
    task = f"{count.__module__}:count"
    with Worker() as worker:
        pid, *numbers = worker.run(task, 3, 60)
        assert numbers == [0, 1, 2] and pid != os.getpid()
        assert next(iter(worker.run(task, 0, 60))) != -1
        with pytest.raises(Died, match="TypeError"):
            list(worker.run(task, None, 60))
        assert next(iter(worker.run(task, 0, 60))) != pid, "another one"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def prints(word: str) -> Generator[int]:
    os.system(f"echo {word} >&2")
    print(word)
    yield os.getpid()


def test_output_of_each_run_goes_into_its_file_and_the_process_stays(tmp_path: Path) -> None:
    with Worker() as worker:
        seen: set[int] = set()
        for name in ("a", "b", "a"):
            with output_into(tmp_path / name):
                seen.update(worker.run(f"{__name__}:prints", name, 60))
        seen.update(worker.run(f"{__name__}:prints", "neither", 60))
    assert len(seen) == 1
    assert [(tmp_path / name).read_text() for name in "ab"] == ["a\n" * 4, "b\n" * 2]


def test_sites_side_by_side_give_the_report_of_one_after_another(acme: Store) -> None:
    reports = []
    acme.path("answers", "4-hang").unlink()
    for jobs in "12":
        assert main(["check", "--jobs", jobs, "--time-limit", "300", "--json", "parity.json"]) == 3
        reports.append([{**one, "seconds": 0} for one in json.loads(Path("parity.json").read_text())["outcomes"]])
    assert reports[0] == reports[1] and len(reports[0]) == 13


@pytest.mark.parametrize("jobs", [1, 2])
def test_so_many_processes_judge(jobs: int, acme: Store) -> None:
    told = '    with open("pids", "a") as file:\n        print(os.getpid(), file=file)\n'
    Path("moved.py").write_text(MOVED.replace("(word):\n", f"(word):\n{told}"))
    assert main(["check", "answers/0-first", "later/0-first", "--jobs", str(jobs)]) == 0
    assert len(set(Path("pids").read_text().split())) == jobs


def test_a_site_of_a_backend_is_one_process_work() -> None:
    items = [("hf", "a", "1"), ("hf", "a", "2"), ("hf", "b", "1"), ("vllm", "a", "1"), ("vllm", "a", "2")]
    assert sorted(shares(items, 2)) == [(*items[:2], items[2]), tuple(items[3:])]
    assert shares(items, 1) == [tuple(items)] and len(shares(items, 9)) == 3 and shares([], 4) == [()]


def test_processes_have_about_as_much_to_do_as_each_other() -> None:
    items = [("hf", f"site-{k}", "1") for k in range(6)] + [("vllm", f"site-{k}", "1") for k in range(2)]
    for part in shares(items, 2):
        assert [backend for backend, _, _ in part] == ["hf", "hf", "hf", "vllm"]
    items[6:] = [("vllm", "large", str(k)) for k in range(3)]
    assert sorted(map(len, shares(items, 2))) == [3, 6], "a case of vLLM takes longer"


def test_shares_keep_the_order_of_sites() -> None:
    items = [("hf", "b", "1"), ("hf", "a", "1"), ("hf", "a", "2"), ("hf", "c", "1")]
    assert shares(items, 1) == [tuple(items)]
    small, large = sorted(shares(items, 2), key=len)
    assert {*small, *large} == {*items}
    for part in (small, large):
        assert list(part) == [item for item in items if item in part]


def test_a_script_is_one_process(acme: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "answers", "--jobs", "2", "--", "python", "new.py"]) == 2
    assert "leave --jobs out" in capsys.readouterr().err


LOADS = """
import gc
from gen_engine import load

def asks(model):
    engine = load(model, max_model_len=1024)
    gc.HELD_BY_A_LIBRARY = [[] for _ in range(200_000)]
    return engine.generate_text_batch([{"prompt": "One, two"}], {"max_new_tokens": 1})[0].finish_reason

def looks():
    return any(thing is gc.HELD_BY_A_LIBRARY for thing in gc.get_objects())
"""


def test_what_judged_code_imports_is_left_out_of_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loads.py").write_text(LOADS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    store = Store(tmp_path / "golden")
    store.write(Case("asks", "one", "loads:asks", {"model": str(TEXT)}, value="length"))
    store.write(Case("looks", "one", "loads:looks", {}, value=False))
    items = ("hf", "asks", "one"), ("hf", "looks", "one")
    functions = {"loads:asks": "asks", "loads:looks": "looks"}
    found = list(
        judged(Job(str(store.root), items, {site: {"moved": {}} for site in ("asks", "looks")}, functions, False))
    )
    vars(gc).pop("HELD_BY_A_LIBRARY")
    [looked] = [o for o in found if isinstance(o, Outcome) and o.site == "looks"]
    assert looked.verdict == "IDENTICAL", looked


LIBRARY = """
import functools
from gen_engine import load

@functools.cache
def engine(model):
    return load(model, max_model_len=256, progress=False)

def asks(model):
    [result] = engine(model).generate_text_batch([{"prompt": "The"}], {"max_new_tokens": 2})
    return result.finish_reason
"""


def test_an_engine_that_a_library_keeps_stays_open_when_the_code_under_test_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("library_that_stays")
    exec(LIBRARY, vars(library))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    (tmp_path / "uses.py").write_text("import library_that_stays\n\nasks = library_that_stays.asks\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("parity.judge.session.MOST_OBJECTS", 0)  # forgotten before each site
    store = Store(tmp_path / "golden")
    for site in ("one", "two"):
        store.write(Case(site, "case", "uses:asks", {"model": str(TEXT)}, value="length"))
    items = ("hf", "one", "case"), ("hf", "two", "case")
    settings: dict[str, Any] = {site: {"moved": {}} for site in ("one", "two")}
    found = [
        outcome
        for outcome in judged(Job(str(store.root), items, settings, {"uses:asks": "one"}, False))
        if isinstance(outcome, Outcome)
    ]
    assert [one.site for one in found] == ["one", "two"]
    for one in found:
        assert one.new is not None and "raised" not in one.new and one.new["value"] == "length", one
