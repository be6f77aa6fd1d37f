"""The rollout worker, moved onto the engine: what it answered before, alone and as a group of Ray actors."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.proof.callsites.rollout_worker import cases, moved, old
from parity.rollout.report import disagreements, read_workers, summary
from parity.tests.conftest import ROOT

MODEL = str(ROOT / cases.MODEL)
SOME = ("ngram", "fixed-while-guessing", "fixed-results")  # the other cases load more models


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module", autouse=True)
def emptied() -> Iterator[None]:
    yield
    for worker in old._workers.values():
        worker.llm.llm_engine.engine_core.shutdown()
    old._workers.clear()
    moved.worker.cache_clear()


@pytest.mark.parametrize("name", SOME)
def test_the_moved_worker_answers_as_the_old_one(name: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {case: kwargs for case, _, kwargs in cases.cases(tmp_path)}[name]
    before = old.rollout(**{**arguments, "out_dir": str(tmp_path / "old")})
    after = moved.rollout(**{**arguments, "out_dir": str(tmp_path / "moved")})
    if name in cases.DIFFERS:
        assert [row["token_ids"] for row in before] != cases.FIXED
        assert [row["token_ids"] for row in after] == cases.FIXED
    else:
        assert before == after
    assert [list(disagreements(worker)) for worker in read_workers(tmp_path / "moved")] == [[]]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = importlib.import_module("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def test_two_workers_on_ray_answer_in_order_and_report_stragglers(ray: Any, tmp_path: Path) -> None:
    prompts = [*cases.MANY, "Count to 12."]
    with moved.RolloutGroup(MODEL, workers=2, backend="hf", spec_tokens=3) as group:
        results = group.rollout(prompts, str(tmp_path / "free"))
        alone = group.rollout(cases.MANY[:1], str(tmp_path / "one"))
        fixed = [result["token_ids"][:4] for result in results]
        again = group.rollout(prompts, str(tmp_path / "fixed"), fixed=fixed)
    assert [result["text"] for result in results][2:4] == ["The capital of France is Paris.", results[3]["text"]]
    assert results[0]["text"].startswith("1, 2, 3") and alone == results[:1]
    assert [result["token_ids"] for result in again] == fixed
    workers = read_workers(tmp_path / "free")
    assert [len(worker.request) for worker in workers] == [5, 4]
    assert [fault for worker in workers for fault in disagreements(worker)] == []
    assert "straggler" in summary(workers) and "worker 1" in summary(workers)
