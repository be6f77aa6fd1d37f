"""What old code gives another of each time: found by a second run, told, and not compared. All else is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parity.golden import GoldenError, Store
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


def test_a_part_that_says_no_place_is_no_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, _ = recorded(tmp_path, 2)
    path = store.path("clock", store.names("clock")[0])
    path.write_text(path.read_text().replace('"at": ', '"where": ', 1))
    with pytest.raises(GoldenError, match=r"changing\[\d\] does not say where"):
        store.read("clock", path.stem)
