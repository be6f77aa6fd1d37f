"""parity/diff/partings.py: where two answers part, and what follows from a set of them."""

from __future__ import annotations

import pytest

from parity.diff.partings import Pair, PairResult, PairsOutcome, given_pair, outcome_of
from parity.judge.numerics import estimates, referee
from parity.judge.numerics.estimates import Estimate
from parity.judge.numerics.noise import Noise, Parted
from parity.record.events import Ids

NOISE = Noise(0.1, 0.1, 0.3, 500)
ESTIMATE = Estimate("size", 1.0, 0.9, 1.1, 0.5, 1.25, "holds", 0.1)
WITHIN = PairResult(3, Parted(True, 0.1, 0.6))
BEYOND = PairResult(3, Parted(False, 2.0, 0.6, "model"))
UNREAD = PairResult(3)
ENDS = PairResult(3, ends=True)


@pytest.mark.parametrize(
    ("old", "new", "step", "candidates"),
    [
        ((5, 6), (5, 6), None, None),
        ((5, 6, 7), (5, 9, 7), 1, (6, 9)),
        ((5, 6), (5, 6, 7), 2, None),
        ((), (5,), 0, None),
    ],
)
def test_pair_parts_at_the_first_other_token(
    old: Ids, new: Ids, step: int | None, candidates: tuple[int, int] | None
) -> None:
    pair = Pair((1, 2), old, new)
    assert (pair.step, pair.candidates) == (step, candidates)


def test_given_pair_asks_for_both_candidates() -> None:
    given = given_pair(Pair((1, 2), (5, 6, 7), (5, 9, 7)))
    assert given.ids == (1, 2, 5, 6, 7) and given.others == ((3, 6), (3, 9))


@pytest.mark.parametrize(
    ("rows", "outcome", "measured", "expected"),
    [
        ([PairResult(), WITHIN], "holds", True, "rounding"),
        ([PairResult(), WITHIN], "shifted", True, "fault"),
        ([PairResult(), WITHIN], "cannot tell", True, "cannot tell"),
        ([PairResult(), BEYOND], "holds", True, "fault"),
        ([PairResult(), BEYOND], "cannot tell", True, "fault"),
        ([PairResult(), BEYOND], "cannot tell", False, "cannot tell"),
        ([PairResult(), UNREAD], "holds", True, "cannot tell"),
        ([PairResult(), ENDS], "cannot tell", False, "fault"),
    ],
)
def test_outcome_of_rows(
    rows: list[PairResult], outcome: estimates.StatisticOutcome, measured: bool, expected: PairsOutcome
) -> None:
    estimates = (ESTIMATE,) if measured else ()
    verdict = referee.Verdict(outcome, estimates, NOISE, 2, 0.1)
    assert outcome_of(rows, verdict) == expected


def test_rows_say_where_and_why() -> None:
    assert str(PairResult()) == "same" and str(WITHIN) == "parts at token 4 by rounding"
    assert str(BEYOND) == "parts at token 4: float32 prefers one token by 2.00 nats, and rounding explains 0.60"
    assert str(ENDS) == "parts at token 4, where one answer ends and the other goes on from the same tokens"
