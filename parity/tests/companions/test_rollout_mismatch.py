"""`rollout_mismatch`: a trainer's log-probabilities beside the rollout's."""

from __future__ import annotations

import math

import pytest

import gen_engine
from parity.companions.rollout import mismatch_of, rollout_mismatch
from parity.tests.conftest import ROOT


def test_mismatch_of_known_gaps_gives_the_formulas() -> None:
    found = mismatch_of([[-1.0, -2.0], [-3.0]], [[-1.0, -1.5], [-3.25]])
    weights = [1.0, math.exp(0.5), math.exp(-0.25)]
    assert found.tokens == 3
    assert found.mean == pytest.approx(0.25)
    assert found.most == 0.5
    assert (found.worst_row, found.worst_step) == (0, 1)
    assert found.tmpe == pytest.approx((1 + math.exp(0.5) + math.exp(0.25)) / 3)
    assert found.k3 == pytest.approx((sum(weights) - 3 - 0.25) / 3)
    assert found.ess == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights) / 3)


@pytest.mark.parametrize(("old", "new"), [([[-1.0]], [[-1.0, -2.0]]), ([[]], [[]]), ([[-1.0]], [[math.nan]])])
def test_mismatch_of_other_tokens_is_refused(old: list[list[float]], new: list[list[float]]) -> None:
    with pytest.raises(gen_engine.RequestError):
        mismatch_of(old, new)


def test_rollout_mismatch_unread_results_are_read() -> None:
    with gen_engine.load(ROOT / "golden/models/random-llama", progress=False) as engine:
        requests = [{"prompt": "one"}, {"prompt": "two, three"}]
        read = engine.generate_text_batch(requests, {"max_new_tokens": 6, "logprobs": 0})
        bare = engine.generate_text_batch(requests, {"max_new_tokens": 6})
        found = rollout_mismatch(engine, bare, logprobs=[result.logprobs or () for result in read])
    assert found.tokens == 12
    assert found.most < 1e-4
