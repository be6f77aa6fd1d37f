"""Committed mutations of call sites: goldens show them, and what became of them is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.goldens.causes import TABLE, stage_of
from parity.goldens.store import Store
from parity.goldens.verdict import Cause, Outcome
from parity.proof.__main__ import main
from parity.proof.callsites import probe
from parity.proof.forks import Died, forked
from parity.proof.selftest import Result, Score, judged_in_forks, outcomes_of
from parity.proof.site_mutations import SITE_MUTATIONS
from parity.tests.conftest import ROOT


def test_every_mutation_names_goldens_and_causes_that_there_are(tmp_path: Path) -> None:
    store = Store(ROOT / "golden")
    probes = {f"probe/{name}" for name, *_ in probe.cases(tmp_path)}
    goldens = {f"{site}/{name}" for site in store.sites() for name in store.names(site)}
    assert {case for one in SITE_MUTATIONS for case in one.cases} <= goldens | probes
    stages = {stage_of(entry.name) for entry in TABLE}
    assert {stage for one in SITE_MUTATIONS for stage in one.causes} <= stages
    assert len({one.name for one in SITE_MUTATIONS}) == len(SITE_MUTATIONS)


def test_a_mutation_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--only", "todays date"]) == 2
    assert "today's date" in capsys.readouterr().err


@pytest.mark.usefixtures("forked_python")
def test_a_mutation_is_judged_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process of its own: this one has threads that a fork would wait for."""
    monkeypatch.chdir(ROOT)
    [score] = judged_in_forks(Store("golden"), "no generation prompt")
    assert score.named, score.line()


def test_a_fork_that_dies_is_an_error_and_is_not_taken_for_caught() -> None:
    [(_, died, _)] = forked({0: lambda: os._exit(3)})
    assert died == Died(3)
    score = Score("dies", ("sampling",), outcomes_of(died))
    assert [o.verdict for o in score.outcomes] == ["ERROR"]
    assert not score.caught
    assert "NOT CAUGHT" in score.line()
    assert "ERROR the mutated code ended its process: exit code 3" in score.line()


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


def test_a_result_counts_what_was_caught_and_named_and_what_was_surely_wrong() -> None:
    def score(name: str, cause: Cause | None) -> Score:
        found = Outcome("s", "c", "hf", "DRIFT" if cause else "IDENTICAL", cause=cause)
        return Score(name, ("sampling",), (found,))

    right, wrong = Cause("sampling.seed", "likely", ""), Cause("value", "confirmed", "")
    result = Result((score("a", right), score("b", wrong), score("c", None)), ())
    assert "3 mutations: 2 caught, 1 named, 1 wrong and confirmed" in result.text()
    clean = (Outcome("s", "c", "hf", "IDENTICAL"),) * 200
    assert Result((score("a", right),) * 50, clean).passes
    assert not Result((score("a", right),) * 50, clean[1:]).passes
    assert not Result((*[score("a", right)] * 50, score("b", wrong)), clean).passes
    assert not Result((*[score("a", right)] * 40, score("c", None)), clean).passes
