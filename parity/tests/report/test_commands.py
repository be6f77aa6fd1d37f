"""What `check` prints beside its report."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from parity.golden import Store
from parity.report.commands import reported
from parity.verdict import Cause, Check, Outcome

PLACE = "old.py=app.new file"


@pytest.mark.parametrize(
    ("verdict", "moved", "note"),
    [("DRIFT", [PLACE], True), ("DRIFT", None, False), ("IDENTICAL", [PLACE], False)],
)
def test_a_failing_check_repeats_moved_for_the_next_command(
    verdict: str,
    moved: list[str] | None,
    note: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = Outcome("answers", "one", "hf", verdict, (), Cause("post.strip", "likely", "blanks"))  # type: ignore[arg-type]
    args = argparse.Namespace(moved=moved, junit=None, markdown=None, json=None, html=None, since=None)
    reported(args, Check((outcome,)), Store(tmp_path))
    said = capsys.readouterr().out
    assert (f"explain answers/one --backend hf --moved '{PLACE}'\n" in said) == note
    assert (f"accept needs --moved '{PLACE}', too" in said) == note
