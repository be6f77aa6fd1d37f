"""`python -m parity.proof.fuzz`: what is reported of a child that finds, hangs or dies."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity.proof.fuzz import __main__ as command
from parity.proof.fuzz.__main__ import Tally, listen, main, table_of
from parity.proof.fuzz.pinned import Pinned, read_pinned
from parity.proof.fuzz.values import Case

pytestmark = pytest.mark.usefixtures("forked_python")

CASE = {"verb": "text", "requests": [{"prompt": "a"}], "options": {}}
BEGIN = {"what": "begin", "case": CASE}
BATCH = {"what": "batch", "asked": 3, "outcomes": {"answered": 2, "refused": 1}}
WORDS = {"kind": "raw error", "where": "KeyError in a.py, b", "detail": "Traceback"}
FOUND = {"what": "found", "case": CASE, "failure": WORDS}


class FakeChild:
    """Says these things; "hang": says nothing more."""

    def __init__(self, says: list[Any], code: int = 0) -> None:
        self.says = iter(says)
        self.last_words = ["last", "words"]
        self.process = SimpleNamespace(wait=lambda: code, returncode=code)

    def next(self, seconds: float) -> Any:
        said = next(self.says, None)
        if said == "hang":
            raise queue.Empty
        return said

    def end(self) -> None: ...


def keys_of(child: Any, tally: Tally) -> list[str]:
    return [found.failure.key for found in listen(child, tally, [])]


def test_listen_to_a_child_that_finds_something_counts_and_reports() -> None:
    tally = Tally("hf", 100)
    child = FakeChild([BEGIN, FOUND, BATCH])
    assert keys_of(child, tally) == ["raw error: KeyError in a.py, b"]
    assert tally.asked == 3
    assert tally.outcomes == {"answered": 2, "refused": 1}


@pytest.mark.parametrize(
    ("says", "code", "key"),
    [
        ([BEGIN, "hang"], 0, "hang: no answer within 90 s"),
        ([BEGIN], -11, "crash: the process ended with -11"),
    ],
)
def test_listen_to_a_child_that_does_not_end_reports_the_call(
    says: list[Any],
    code: int,
    key: str,
) -> None:
    tally = Tally("hf", 100)
    [found] = listen(FakeChild(says, code), tally, [])  # type: ignore[arg-type]
    assert found.failure.key == key
    assert found.failure.detail == "last | words"
    assert found.case == Case.loads(CASE)
    assert tally.asked == 1  # or a child that hangs at once would be started for ever


def children(*says: list[Any]) -> tuple[list[list[str]], Callable[[Any], FakeChild]]:
    flags: list[list[str]] = []
    left: Iterator[list[Any]] = iter(says)

    def start(given: list[str]) -> FakeChild:
        flags.append(given)
        return FakeChild(next(left))

    return flags, start


def test_main_goes_on_behind_a_hang_pins_what_failed_and_exits_with_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pins = tmp_path / "pins.jsonl"
    flags, start = children([BATCH, BEGIN, "hang"], [BATCH, FOUND, BATCH])
    monkeypatch.setattr(command, "Child", start)
    monkeypatch.setattr(command, "read_pinned", list)
    run = ["--backend", "hf", "--count", "8", "--seed", "5", "--pins", str(pins)]
    assert main(run) == 1
    assert [given[given.index("--seed") + 1] for given in flags] == ["5", "7"]
    assert {pinned.key for pinned in read_pinned(pins)} == {
        "hang: no answer within 90 s",
        "raw error: KeyError in a.py, b",
    }
    assert "hf: 2 failures, 2 of them new" in capsys.readouterr().out


def test_main_without_a_failure_exits_with_0(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, start = children([BATCH], [BATCH])
    monkeypatch.setattr(command, "Child", start)
    monkeypatch.setattr(command, "read_pinned", list)
    assert main(["--count", "3", "--pins", str(tmp_path / "pins.jsonl")]) == 0


def test_main_asks_the_pinned_calls_behind_one_that_hangs_and_tells_of_mended_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pinned = [Pinned("hf", f"raw error: {name}", Case.loads(CASE), True) for name in "abc"]
    flags, start = children([BATCH, BEGIN, "hang"], [BATCH], [BATCH])
    monkeypatch.setattr(command, "Child", start)
    monkeypatch.setattr(command, "read_pinned", lambda: pinned)
    run = ["--backend", "hf", "--count", "9", "--pins", str(tmp_path / "pins.jsonl")]
    assert main(run) == 1
    assert [given[given.index("--pinned") + 1] for given in flags[:2]] == ["0", "2"]
    assert "hf: mended: raw error: a" in capsys.readouterr().out


def test_main_on_a_real_engine_asks_the_pinned_calls_and_generated_ones(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pins = tmp_path / "pins.jsonl"
    assert main(["--backend", "hf", "--count", "8", "--seed", "3", "--pins", str(pins)]) in (0, 1)
    assert "requests            answered" in capsys.readouterr().out


def test_main_with_a_count_below_1_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--count", "0"])


def test_table_shows_each_backend_with_its_outcomes() -> None:
    tally = Tally("hf", 9, asked=9)
    tally.outcomes.update({"answered": 4, "refused": 3, "whole call refused": 2})
    assert table_of([tally]).splitlines()[1].split() == ["hf", "9", "4", "3", "2", "0"]
