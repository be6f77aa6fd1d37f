"""A toy cause, added as parity/judge/README.md says: a difference of its field, and a line in the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parity.goldens import causes
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


@pytest.mark.parametrize("words", ["a toy", None])
def test_a_cause_that_is_added_by_the_recipe_is_named(
    words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a line in the table it has the words of its stage."""
    if words is not None:
        monkeypatch.setitem(causes.ENTRIES, "sampling.toy", causes.entry("sampling.toy", words))
    stage = replace(sampling.STAGE, compare=compare_sampling)
    stages = tuple(stage if old is sampling.STAGE else old for old in order.ALL)
    monkeypatch.setattr(order, "ALL", stages)
    old, new = case(row()), case({**row(), "loop": "toy"})
    found = judge_case.Judge(Store(tmp_path), "hf", lambda *_: None).outcome(old, new)
    assert (found.verdict, str(found.cause)) == ("LATENT", "sampling.toy; confirmed")
    assert found.cause is not None
    meaning = words or causes.meaning("sampling")
    assert found.cause.sentence == f"{meaning}: sampling.toy of row 0 was None, is 'toy'"
