"""What `check` prints beside its report."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Store
from parity.goldens.verdict import Cause, Check, Outcome
from parity.report import commands
from parity.report.commands import reported, run_accept

PLACE = "old.py=app.new file"
NOTHING_ASKED = dict.fromkeys(("moved", "junit", "markdown", "json", "html", "since"))


def asked(**words: Any) -> argparse.Namespace:
    """The arguments of a `check`."""
    return argparse.Namespace(**{**NOTHING_ASKED, "ab": False, **words})


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
    outcome = Outcome("answers", "one", "hf", verdict, (), Cause("value", "likely", "blanks"))  # type: ignore[arg-type]
    reported(asked(moved=moved), Check((outcome,)), Store(tmp_path))
    said = capsys.readouterr().out
    assert (f"explain answers/one --backend hf --moved '{PLACE}'\n" in said) == note
    assert (f"accept needs --moved '{PLACE}', too" in said) == note


@pytest.mark.parametrize(
    ("new", "ab", "is_said"),
    [
        ("old.py:answer", False, True),
        ("app.new:answer", False, False),
        ("old.py:answer", True, False),
    ],
    ids=["not moved", "moved", "against a revision"],
)
def test_a_check_that_ran_the_recorded_function_itself_says_so_once_for_a_site(
    new: str, ab: bool, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = list[Outcome]()
    for case, backend in itertools.product("ab", ("hf", "vllm")):
        same = Outcome("answers", case, backend, "IDENTICAL")
        was, now = {"function": "old.py:answer"}, {"function": new}
        outcomes.append(dataclasses.replace(same, old=was, new=now))
    page, data = tmp_path / "summary.md", tmp_path / "check.json"
    reported(asked(ab=ab, markdown=page, json=data), Check(tuple(outcomes)), Store(tmp_path))
    said = " ".join(capsys.readouterr().out.split())
    lines = json.loads(data.read_text())["only_old"]
    assert len(lines) == is_said
    assert said.count("ONLY THE OLD CODE of answers was run again (old.py:answer)") == is_said
    assert ("--moved old.py=NEW.MODULE" in said) == is_said
    assert page.read_text().count("ONLY THE OLD CODE") == is_said


@pytest.mark.parametrize(
    ("seed", "code"), [(None, 2), ({"value": 7, "from": "caller"}, 0), ({"value": 0, "from": "nobody"}, 0)]
)
def test_accept_refuses_a_value_that_no_later_check_gives(
    seed: Any, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples without a seed are others in each check; those of the process's generator are not."""
    sampling = {"temperature": {"value": 1.0, "from": "caller"}, **({"seed": seed} if seed else {})}
    new = {"rows": [{"prompt_ids": [1], "output_ids": [2], "sampling": sampling}], "value": "b"}
    cause = Cause("sampling.temperature", "likely", "temperature was 1.2, is 1.0")
    outcome = Outcome("answers", "one", "hf", "DRIFT", cause=cause, old={**new, "value": "a"}, new=new)
    monkeypatch.setattr(commands, "checked", lambda *given, **how: Check((outcome,)))
    words = {"withdraw": False, "reason": "cooler", "goldens": tmp_path, "cases": ["answers/*"], "until": None}
    assert run_accept(argparse.Namespace(**words, dry_run=False)) == code
    assert len(Store(tmp_path).accepted()) == (code == 0)
    assert ("Pass each call a seed" in capsys.readouterr().out) == (code == 2)
