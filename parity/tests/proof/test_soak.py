"""What the soak calls growth, and that wrong answers and calls that do not end are reported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gen_engine import OptionError
from parity.proof import soak
from parity.proof.soak import GivenUp, Job, Soak, Usage, growth_problems, make_jobs, process_tree, table_of, usage


def steady(count: int = 100, /, **changes: Callable[[int], int]) -> list[Usage]:
    """Samples of a run in which only what `changes` names changes."""
    samples = []
    for index in range(count):
        values = {"memory": 1 << 30, "files": 20, "threads": 9}
        values |= {name: values[name] + change(index) for name, change in changes.items()}
        samples.append(Usage(float(index), index, **values))
    return samples


def test_growth_problems_of_a_flat_run_are_none() -> None:
    assert growth_problems(steady()) == []


def test_growth_problems_of_a_warm_up_and_of_peaks_are_none() -> None:
    samples = steady(
        memory=lambda index: min(index, 20) << 24,
        files=lambda index: 30 * (index % 10 == 0),
    )
    assert growth_problems(samples) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("memory", lambda index: index << 20),
        ("files", lambda index: index // 10),
        ("threads", lambda index: index // 10),
    ],
)
def test_growth_problems_of_a_leak_name_it(name: str, change: Callable[[int], int]) -> None:
    [problem] = growth_problems(steady(**{name: change}))
    assert problem.startswith(f"{name} grew from")


def test_usage_counts_this_process() -> None:
    found = usage(1.0, 5)
    assert found.memory > 1 << 20
    assert found.files >= 3 and found.threads >= 1


def test_table_has_a_row_for_each_part_of_the_time() -> None:
    assert len(table_of(steady(120)).splitlines()) == 13


Answer = Callable[[], Any]


def run_soak(monkeypatch: pytest.MonkeyPatch, answer: Answer, seconds: float = 0.5) -> Soak:
    """A soak of one job whose outcome alone was [1]."""
    monkeypatch.setattr(soak, "essence", lambda outcome: outcome)
    engine: Any = SimpleNamespace(generate_text_batch=lambda *given, **how: answer())
    work = Soak(engine, [Job("job", ["x"])], [[1]], seed=0)
    work.run(seconds)
    return work


def test_soak_with_right_answers_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = run_soak(monkeypatch, lambda: [1])
    assert work.problems == [] and work.counts["job"] > 8


def test_soak_with_a_wrong_answer_ends_and_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    work = run_soak(monkeypatch, lambda: [2], seconds=60)
    assert work.problems[0].startswith("job: [2] is not what it was alone: [1]")


def test_soak_with_a_raw_error_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    work = run_soak(monkeypatch, lambda: 1 // 0, seconds=60)
    assert work.problems[0].startswith("job: ZeroDivisionError")


def test_soak_with_a_call_that_does_not_end_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "PATIENCE", 0.3)
    work = run_soak(monkeypatch, lambda: time.sleep(3), seconds=60)
    assert work.problems[0] == "no call ended in 0.3 s"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OptionError("no", fix="yes"), ("OptionError", "no. Yes.")),
        (GivenUp(), "given up"),
    ],
)
def test_job_whose_call_ends_early_gives_what_ended_it(error: BaseException, expected: Any) -> None:
    def raises(*given: Any, **how: Any) -> None:
        raise error

    engine: Any = SimpleNamespace(generate_text_batch=raises)
    assert Job("job", ["x"]).run(engine) == expected


def test_jobs_are_of_each_kind() -> None:
    names = {job.name for job in make_jobs()}
    assert {"adapters", "cached", "given up", "refused rows", "scores", "structures"} <= names


def test_process_tree_holds_child_processes() -> None:
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        assert {os.getpid(), child} <= set(process_tree(os.getpid()))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
