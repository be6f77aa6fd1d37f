"""The rollout worker, moved onto the engine: what it answered before. Groups of it: companions/test_decoupled.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.proof.callsites.rollout_worker import cases, moved, old
from parity.rollout.report import disagreements, read_workers
from parity.tests.conftest import ROOT

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
