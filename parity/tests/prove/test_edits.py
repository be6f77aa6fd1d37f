"""Faults inside gen_engine.py: they apply, they are shown by goldens, and what becomes of them is told."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.__main__ import main
from parity.callsites import probe
from parity.golden import Store
from parity.prove.edited import ENGINE, Edit, edits, forked, sampled
from parity.prove.score import Score, table
from parity.prove.selftest import judged_in_forks
from parity.verdict import CAUSES, Cause, Outcome, Verdict

from ..conftest import ROOT

EDITS = edits()


def test_every_edit_applies_once_and_names_causes_that_there_are() -> None:
    sound = ENGINE.read_text()
    assert all(edit.source(sound) != sound for edit in EDITS)
    assert {cause for edit in EDITS for cause in edit.causes} <= CAUSES.keys()
    assert len({edit.name for edit in EDITS}) == len(EDITS)


def test_every_case_of_an_edit_is_a_golden(tmp_path: Path) -> None:
    store = Store(ROOT / "golden")
    probes = {f"probe/{name}" for name, *_ in probe.cases(tmp_path)}
    goldens = {f"{site}/{name}" for site in store.sites() for name in store.names(site)}
    assert {case for edit in EDITS for case in edit.cases} <= goldens | probes


def test_every_edit_is_shown_by_some_golden_and_sections_and_backends_have_their_share() -> None:
    assert [edit.name for edit in EDITS if not edit.cases] == []
    assert min(Counter(edit.section for edit in EDITS).values()) >= 3
    assert sum("hf" in edit.backends for edit in EDITS) >= 80 and sum("vllm" in edit.backends for edit in EDITS) >= 80


def test_samples_hold_all_in_turn_and_each_some_of_every_section_and_backend() -> None:
    samples = [sampled(EDITS, 3, turn) for turn in range(6)]
    assert sorted(edit.name for sample in samples[:3] for edit in sample) == sorted(edit.name for edit in EDITS)
    held = {(edit.name, backend) for sample in samples for edit in sample for backend in edit.backends}
    assert held == {(edit.name, backend) for edit in EDITS for backend in edit.backends}
    for sample in samples:
        assert {edit.section for edit in sample} == {edit.section for edit in EDITS}
        counts = Counter(backend for edit in sample for backend in edit.backends)
        assert sum(counts.values()) == len(sample) >= 80 and min(counts["hf"], counts["vllm"]) >= 40


def test_a_plant_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--only", "contents-stripped"]) == 2
    assert "content-stripped" in capsys.readouterr().err


def test_an_edit_whose_place_is_gone_is_refused() -> None:
    gone = Edit("gone", "Stops", "", "no such line", "", ("hf",), ("stop.rule",))
    with pytest.raises(ValueError, match="stands 0 times"):
        gone.source("text")


def test_an_edited_engine_is_judged_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process of its own: this one has threads that a fork would wait for."""
    monkeypatch.chdir(ROOT)
    [score] = judged_in_forks(Store("golden"), "hf", "content-stripped")
    assert score.named, score.line()
    assert {(o.verdict, o.cause and o.cause.name) for o in score.outcomes} == {("DRIFT", "prompt.messages")}


def test_a_fork_that_dies_is_an_error_and_is_not_taken_for_caught() -> None:
    [(_, outcomes, _)] = forked({0: lambda: os._exit(3)})
    score = Score("dies", ("rng",), outcomes, 0.0)
    assert [o.verdict for o in outcomes] == ["ERROR"] and "exit code 3" in str(
        outcomes[0].cause and outcomes[0].cause.sentence
    )
    assert not score.caught and "NOT CAUGHT" in score.line() and "ERROR the edited engine ended" in score.line()


def test_a_fork_sets_its_threads_where_vllm_has_taken_the_name_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the threads that load a checkpoint in a fork race for torch's pool: once in 60 forks one found none."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    jobs: dict[int, Any] = {0: torch.get_num_threads}
    try:
        found = list(forked(jobs))
    finally:
        torch._C.set_num_threads(before)
    threads: list[Any] = [made for _, made, _ in found]
    assert threads == [1]


def test_the_table_counts_by_section_and_shows_what_was_surely_wrong() -> None:
    def score(name: str, cause: Cause | None, section: str) -> Score:
        verdict: Verdict = "DRIFT" if cause else "IDENTICAL"
        return Score(name, ("rng",), (Outcome("s", "c", "hf", verdict, cause=cause),), 0.0, section)

    right, wrong = Cause("rng", "likely", ""), Cause("post.trim", "confirmed", "")
    lines = table([score("a", right, "Stops"), score("b", wrong, "Stops"), score("c", None, "Chat")])
    assert [line.split() for line in lines[1:]] == [
        ["Stops", "2", "100%", "50%", "1"],
        ["Chat", "1", "0%", "0%", "0"],
        ["all", "3", "67%", "33%", "1"],
    ]
