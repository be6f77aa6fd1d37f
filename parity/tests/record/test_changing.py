"""What old code gives another of each time: found by a second run, told, and not compared. All else is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.store import GoldenError, Store
from parity.judge.check import check_sites
from parity.record.changing import changing, unchanged
from parity.record.observe import Site
from parity.record.recorder import Recorded, record

OLD = """
import tempfile, time, uuid


def answer(text):
    started = time.perf_counter()
    folder = tempfile.mkdtemp()
    said = {"id": str(uuid.uuid4()), "created": int(time.time()), "file": f"{folder}/out.json"}
    return {**said, "texts": [text.upper(), text], "seconds": time.perf_counter() - started}


if __name__ == "__main__":
    answer("a house")
"""


@pytest.mark.parametrize(
    ("first", "second", "parts"),
    [
        ({"text": "a", "n": 3, "ok": True, "none": None}, {"text": "a", "n": 3, "ok": True, "none": None}, []),
        ({"s": 0.12, "n": 3}, {"s": 0.34, "n": 3}, [{"at": ["s"]}]),
        ([1_700_000_000], [1_700_000_001], [{"at": [0]}]),  # equal, but for its last digit
        ("/tmp/a1/out", "/tmp/b2/out", [{"at": [], "before": "/tmp/", "after": "/out"}]),
        (["took 0.3 s in all"], ["took 0.4 s in all"], [{"at": [0], "before": "took ", "after": " s in all"}]),
        ("a a", "a a a", [{"at": [], "before": "a ", "after": ""}]),
        ([1.7e-4, 0.5], [1.705e-4, 0.5], [{"at": [0]}]),  # seconds, which may be few
    ],
)
def test_texts_and_numbers_that_change_are_found(first: object, second: object, parts: list[object]) -> None:
    assert changing([first, second]) == parts
    assert unchanged(changing([first, second]), first, second) == first


@pytest.mark.parametrize("second", [{"a": [1, 2]}, {"a": None}, {"b": [1]}, {"a": ["1"]}])
def test_another_shape_is_no_part(second: object) -> None:
    with pytest.raises(ValueError, match="differs in shape"):
        changing([{"a": [1]}, second])


def test_a_part_is_compared_as_far_as_it_is_the_same_each_time() -> None:
    parts = changing(["2026-01-01 09:59 took 0.3 s", "2026-01-01 09:59 took 0.4 s"])
    old = "2026-01-01 09:59 took 0.3 s"
    assert unchanged(parts, old, "2027-12-31 10:00 took 9 s") == old, "on another day, too"
    for other in ("2026-01-01 09:59 needed 0.3 s", "2026-01-01 09:59 took 0.3", 5):
        assert unchanged(parts, old, other) == other
    assert unchanged([{"at": ["s"]}], {"s": 1.0}, {"s": "1"}) == {"s": "1"}
    assert unchanged([{"at": ["s"]}], {"s": 1.0}, [1.0]) == [1.0]


def recorded(folder: Path, repeat: int) -> tuple[Store, Recorded]:
    (folder / "old_clock.py").write_text(OLD)
    store = Store(folder / f"golden-{repeat}")
    site = Site("clock", "old_clock.py:answer")
    return store, record([sys.executable, "old_clock.py"], store, sites=[site], repeat=repeat)


@pytest.mark.parametrize(
    ("edit", "once", "twice"),
    [
        (("a house", "a house"), "ERROR", "IDENTICAL"),
        (("text.upper()", "text.title()"), "DRIFT", "DRIFT"),
        (("/out.json", "/out.txt"), "DRIFT", "DRIFT"),
        (('"seconds": time.perf_counter() - started', '"seconds": None'), "DRIFT", "DRIFT"),
    ],
    ids=["nothing else", "a text", "the end of a name", "another kind"],
)
def test_only_what_was_seen_to_change_is_left_out(
    edit: tuple[str, str], once: str, twice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for repeat, verdict in ((1, once), (2, twice)):
        store, done = recorded(tmp_path, repeat)
        assert done.exit_code == 4 and record(
            [sys.executable, "old_clock.py"], store, sites=[Site("clock", "old_clock.py:answer")]
        ).exit_code == (0 if repeat == 2 else 1)
        (tmp_path / "new_clock.py").write_text(OLD.replace(*edit))
        [outcome] = check_sites(store, backends=("hf",), moved={"old_clock.py": "new_clock.py"}).outcomes
        assert outcome.verdict == verdict, outcome.cause
        if verdict == "ERROR":
            assert outcome.cause and "value.id, value.created, value.file, value.seconds" in outcome.cause.sentence
            assert "--repeat 2" in outcome.cause.sentence
        if verdict == "IDENTICAL":
            assert "not compared" in " ".join(outcome.notes) and "value.seconds" in " ".join(outcome.notes)


RAISES = """
import os, tempfile, time

class Thing:
    pass

def answer(text):
    if text == "address":
        raise ValueError(f"no {Thing()} and no {Thing}, 0x7f3a2c1d5e80")
    if text == "folder":
        raise ValueError(f"nothing in {tempfile.mkdtemp()}/out")
    if text == "clock":
        raise ValueError(f"too late at {time.time()}")
    raise ValueError(f"cannot read '{text}', which is {os.path.abspath(text)}, with status 0x1f")

if __name__ == "__main__":
    for text in ("address", "folder", "clock", "photos/a.jpg", "b.jpg"):
        try:
            answer(text)
        except ValueError:
            pass
"""


def drifts_of(report: Path) -> set[str]:
    """site/case of each DRIFT in a JSON report."""
    outcomes = json.loads(report.read_text())["outcomes"]
    return {f"{o['site']}/{o['case']}" for o in outcomes if o["verdict"] == "DRIFT"}


@pytest.mark.parametrize("repeat", ["1", "2"])
def test_what_an_exception_says_of_this_run_is_not_compared(
    repeat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Addresses, and where a file of the arguments lies; with a second run also what else was another one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "photos").mkdir()
    for name in ("photos/a.jpg", "b.jpg"):
        (tmp_path / name).write_text(name)
    script, command = tmp_path / "raises.py", ["--", "python", "raises.py"]
    script.write_text(RAISES)
    record_it = ["record", "--repeat", repeat, "--site", "r=raises.py:answer", *command]
    assert main(record_it) == 4
    assert ("gives another value.raised each time, which is not compared" in capfd.readouterr().out) == (repeat == "2")
    changing_ones, report = {"r/answer-002", "r/answer-003"}, ["--json", "report.json"]
    for words in (["check", *report], ["check", *report, "r", *command]):
        code = main(words)
        assert (code == 0) == (repeat == "2"), capfd.readouterr().out
        assert drifts_of(Path("report.json")) == (changing_ones if repeat == "1" else set())
    assert main(record_it) == (0 if repeat == "2" else 1)
    for edit in (("no {Thing}", "not {Thing}"), ("/out", "/in"), ("too late", "late"), ("0x1f", "0x2f")):
        script.write_text(RAISES.replace(*edit))
        assert main(["check", *report]) == 1
        drifts = drifts_of(Path("report.json"))
        assert drifts - (changing_ones if repeat == "1" else set()) or edit[0] in ("/out", "too late"), edit


def test_a_value_that_changes_is_not_compared_in_a_script_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clock.py").write_text(OLD)
    command = ["--", "python", "clock.py"]
    assert main(["record", "--repeat", "2", "--site", "clock=clock.py:answer", *command]) == 4
    assert main(["check", "clock", *command]) == 0, capfd.readouterr().out


def test_a_part_that_says_no_place_is_no_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, _ = recorded(tmp_path, 2)
    path = store.path("clock", store.names("clock")[0])
    path.write_text(path.read_text().replace('"at": ', '"where": ', 1))
    with pytest.raises(GoldenError, match=r"changing\[\d\] does not say where"):
        store.read("clock", path.stem)
