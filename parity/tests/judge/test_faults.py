"""A fault of the harness itself says nothing of the moved code: it is an ERROR of its case, also in a counterfactual
run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Case, GoldenError, Store
from parity.judge.case import Judge
from parity.judge.faults import HarnessFault, own_fault, skip_unjudgeable
from parity.judge.session import Session

MOVED = """
hook = None

def answer(text):
    try:
        hook()
    except Exception:
        pass  # as code that goes on after any error
    return text
"""


def run_moved(folder: Path, monkeypatch: pytest.MonkeyPatch, hook: Callable[[Session], Any]) -> Case:
    (folder / "moved_for_faults.py").write_text(MOVED)
    monkeypatch.syspath_prepend(folder)
    old = Case("site", "a", "moved_for_faults:answer", {"text": "hi"}, value="hi")
    with Session(Store(folder / "golden"), {old.function: "site"}) as session:
        moved: Any = importlib.import_module("moved_for_faults")
        moved.hook = lambda: hook(session)
        return session.call(old, old.function, {}, {}, frozenset({"alone"}))


def test_fault_of_a_replay_is_raised_where_the_moved_code_catches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(session: Session) -> None:
        assert session.replay is not None
        session.replay.call(None, object(), [])  # no engine: AttributeError

    with pytest.raises(HarnessFault, match=r"AttributeError: .*config.* \(replay.py:\d+\)"):
        run_moved(tmp_path, monkeypatch, ask)


def test_fault_of_the_recorder_in_a_counterfactual_run_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: Session) -> None:
        with session.observer.guarded("rows"):
            raise TypeError("no such key")

    with pytest.raises(HarnessFault, match="rows: TypeError: no such key"):
        run_moved(tmp_path, monkeypatch, fail)


def test_error_of_the_moved_code_is_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(session: Session) -> None:
        raise TypeError("theirs")

    assert run_moved(tmp_path, monkeypatch, fail).value == "hi"


def test_judge_passes_a_harness_fault_on_and_a_golden_error_not(tmp_path: Path) -> None:
    old = Case("site", "a")

    def judge_with(error: Exception) -> Case | None:
        def run(*given: Any) -> Case:
            raise error

        return Judge(Store(tmp_path), "hf", run).again(old, old, {}, frozenset())

    assert judge_with(GoldenError("cannot be put back")) is None
    with pytest.raises(HarnessFault):
        judge_with(HarnessFault("ours"))


@pytest.mark.parametrize("error", [GoldenError("no adapter"), OSError("no file"), LookupError("no function")])
def test_what_cannot_be_judged_is_skipped(error: Exception) -> None:
    with skip_unjudgeable():
        raise error


def test_own_fault_is_told_by_where_it_was_raised() -> None:
    with pytest.raises(AttributeError) as theirs:
        _ = object().missing  # type: ignore[attr-defined]
    assert own_fault(theirs.value) == ""  # raised in a test, which is no room of the harness
    with pytest.raises(AttributeError) as ours:
        Judge(Store("nowhere"), "hf", lambda *given: None).outcome(None, None)  # type: ignore[arg-type]
    assert "AttributeError" in own_fault(ours.value)
