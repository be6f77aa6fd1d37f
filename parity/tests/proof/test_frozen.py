"""Frozen outcomes: what a run is compared with, and what counts as better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.goldens.verdict import Cause, Outcome
from parity.proof import frozen
from parity.proof.__main__ import main

WAS = {
    "goldens/a/b/hf": "IDENTICAL",
    "goldens/a/c/hf": "DRIFT stop; confirmed",
    "real/faithful/x/vllm": "NEAR-TIE",
}


def test_said_holds_verdict_cause_certainty_and_what_else_differs() -> None:
    cause = Cause("stop", "confirmed", "")
    outcome = Outcome("a", "b", "hf", "DRIFT", cause=cause, also=("stop.max_new_tokens", "value"))
    assert frozen.said(outcome) == "DRIFT stop; confirmed | also value, stop.max_new_tokens"
    assert frozen.said(Outcome("a", "b", "hf", "IDENTICAL")) == "IDENTICAL"


def test_compare_equal_run_holds() -> None:
    found = frozen.compare(WAS, WAS, {})
    assert found.holds and found.same == 3


@pytest.mark.parametrize("right", [None, ["LATENT value", "LATENT stop"]])
def test_compare_other_answer_is_changed_unless_it_is_a_right_one(right: list[str] | None) -> None:
    now = {**WAS, "goldens/a/c/hf": "LATENT stop; confirmed"}
    answers = {"goldens/a/c/hf": {"right": right, "why": "the value is equal"}} if right else {}
    found = frozen.compare(WAS, now, answers)
    assert found.holds == bool(right)
    assert found.mended == (("goldens/a/c/hf",) if right else ())
    assert ("was DRIFT stop; confirmed" in found.text()) == (not right)


def test_compare_outcome_that_is_gone_fails_and_a_new_one_is_said() -> None:
    now = {**{key: value for key, value in WAS.items() if key != "goldens/a/b/hf"}, "goldens/new/d/hf": "IDENTICAL"}
    found = frozen.compare(WAS, now, {})
    assert not found.holds and found.gone == ("goldens/a/b/hf",)
    assert found.new == ("goldens/new/d/hf",)


def test_frozen_unknown_part_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frozen", "--parts", "goldns"]) == 2
    assert "goldns" in capsys.readouterr().err


def test_frozen_answers_of_a_part_that_is_not_asked_for_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frozen", "--parts", "goldens", "--foreign", "run.json"]) == 2
    assert "add it to --parts" in capsys.readouterr().err


def test_written_outcomes_are_read_again_and_stand_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.json"
    frozen.write(file, WAS)
    assert frozen.read(file) == WAS
    assert len(file.read_text().splitlines()) == len(WAS) + 2


def test_reasons_belong_to_frozen_outcomes() -> None:
    outcomes = frozen.read(frozen.OUTCOMES)
    for key, answer in frozen.read(frozen.ANSWERS).items():
        assert key in outcomes, key
        assert answer.keys() == {"right", "why"} and answer["why"], key
        assert answer["right"] and frozen.head(outcomes[key]) not in answer["right"], key


def test_frozen_reads_what_a_run_of_foreign_libraries_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"site": "rushed", "case": "one", "verdict": "DRIFT", "cause": "sampling.seed", "certainty": "likely"}
    silent = {"site": "faithful", "case": "one", "verdict": "IDENTICAL", "cause": "", "certainty": ""}
    job = {"library": "trl", "dtype": "float32", "backend": "hf"}
    run = tmp_path / "run.json"
    run.write_text(json.dumps([{"job": job, "faithful": [silent], "found": [{"answers": [said]}]}]))
    held = tmp_path / "frozen.json"
    written = ["frozen", "--parts", "foreign", "--foreign", str(run), "--file", str(held)]
    assert main([*written, "--write"]) == 0
    place = "foreign/trl/float32/hf"
    assert frozen.read(held) == {f"{place}/faithful/one": "IDENTICAL", f"{place}/rushed/one": "DRIFT sampling.seed; likely"}
    assert main(written) == 0
    assert "2 the same" in capsys.readouterr().out
    kept = {"goldens/plain/hf/one": "IDENTICAL", "mutation/x/hf": "DRIFT sampling.seed; likely"}
    frozen.write(held, {**frozen.read(held), **kept, f"{place}/gone/one": "IDENTICAL"})
    assert main([*written, "--write"]) == 0
    after = frozen.read(held)
    assert kept.items() <= after.items(), "what another part froze stays"
    assert f"{place}/gone/one" not in after, "what this part no longer gives goes"
