"""A toy cause, added as parity/judge/README.md says: a line in the table, and a difference of its field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parity.goldens import causes, verdict
from parity.goldens.store import Store
from parity.goldens.verdict import Difference
from parity.judge import case as judge_case
from parity.judge.row import Row
from parity.judge.stages import order, sampling

from .test_company import case
from .test_laws import row


def compare_sampling(old: Row, new: Row) -> Iterator[Difference]:
    yield from sampling.sampling_differences(old, new)
    if old.get("loop") != new.get("loop"):
        yield Difference("sampling", "toy", old.get("loop"), new.get("loop"))


def test_a_cause_that_is_added_by_the_recipe_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = causes.entry("sampling.toy", "sampling", "a toy", "sampling.toy")
    monkeypatch.setattr(causes, "TABLE", (*causes.TABLE, toy))
    monkeypatch.setitem(verdict.CAUSES, toy.name, toy.sentence)
    stage = replace(sampling.STAGE, compare=compare_sampling)
    monkeypatch.setattr(order, "ALL", tuple(stage if old is sampling.STAGE else old for old in order.ALL))
    old, new = case(row()), case({**row(), "loop": "toy"})
    found = judge_case.Judge(Store(tmp_path), "hf", lambda *_: None).outcome(old, new)
    assert (found.verdict, str(found.cause)) == ("LATENT", "sampling.toy; confirmed")
    assert found.cause is not None
    assert found.cause.sentence == "a toy: sampling.toy of row 0 was None, is 'toy'"
