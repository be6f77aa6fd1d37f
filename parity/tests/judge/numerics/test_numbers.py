"""Numbers among values: which lost bits or digits on the way."""

from __future__ import annotations

from typing import Any

import pytest

from parity.goldens.store import as_written
from parity.judge.numerics.numbers import fewer_bits, fewer_digits, number_gap, part_of

# what a model says in bfloat16, and in float32
BFLOAT16 = [-0.984375, -1.609375, -1.234375, -24.375]
FLOAT32 = [-0.9843811, -1.6093902, -1.2344105, -24.3804193]


def test_numbers_of_half_precision_that_were_of_float32_are_named() -> None:
    cause = fewer_bits([as_written(number) for number in FLOAT32], BFLOAT16)
    assert cause is not None and cause.name == "numeric.shift" and "fewer bits" in cause.sentence


@pytest.mark.parametrize("old", [BFLOAT16, FLOAT32], ids=["of few bits", "of many"])
def test_a_golden_that_cut_digits_off_says_nothing_of_bits(old: list[float]) -> None:
    new = BFLOAT16[::-1] if old is BFLOAT16 else [number + 1e-5 for number in FLOAT32]
    assert fewer_bits([as_written(number) for number in old], new) is None


def test_numbers_that_code_rounds_lost_digits_and_no_bits() -> None:
    rounded = [round(number, 3) for number in FLOAT32]
    assert fewer_digits(FLOAT32, rounded) and fewer_bits(FLOAT32, rounded) is None
    assert not fewer_digits(rounded, FLOAT32)
    assert not fewer_digits(rounded, rounded), "the old code rounded, too"
    assert not fewer_digits([0.0, 1.0, 0.12345678], [0.0, 1.0]), "zeros and ones tell nothing"
    assert not fewer_digits([*FLOAT32, 0.25], [*FLOAT32[1:], 0.25]), "one short number among long ones"


def ranking(**scores: float) -> list[dict[str, Any]]:
    return [{"passage": name, "score": score} for name, score in scores.items()]


def votes(**numbers: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"answer": name, "votes": share, "confidence": sure} for name, (share, sure) in numbers.items()]


@pytest.mark.parametrize(
    ("old", "new", "gap"),
    [
        (ranking(a=-1.0, b=-1.5, c=-4.0), ranking(b=-1.25, a=-1.375, c=-4.0), 0.625),  # both together
        (ranking(a=-1.0, b=-1.5), ranking(b=-1.0, a=-1.5), 1.0),
        (ranking(a=-1.0, b=-1.5), ranking(a=-1.25, b=-1.625), 0.25),  # in one order
        (ranking(a=-1.0, b=-1.5), ranking(b=-1.5, a=-1.0), None),  # now in no order, or the other one
        (ranking(a=-1.0, b=-1.5), ranking(c=-1.0, a=-1.5), None),
        (ranking(a=-1.0, b=-4.0, c=-2.0), ranking(b=-4.0, a=-1.0, c=-2.0), None),
        (["a", "b"], ["b", "a"], None),
        ([{"s": -1.0, "right": True}], [{"s": -1.0, "right": False}], None),
        ([{"yes": 0.5, "no": 0.25}], [{"ja": 0.5, "nein": 0.25}], pytest.approx(1.1, abs=0.1)),
        ([{"n": "a", "s": -1.0, "t": -2.0}], [{"n": "a", "s": -1.0, "t": None}], None),  # fewer numbers
        (votes(a=(1.0, 0.9), b=(1.0, 0.4)), votes(b=(1.0, 0.4), a=(1.0, 0.9)), None),  # as many votes say no order
        (votes(a=(1.0, 0.4), b=(0.5, 0.9)), votes(b=(0.5, 0.9), a=(1.0, 0.4)), None),  # each side in another one's
    ],
)
def test_number_gap_of_a_ranking_is_that_of_each_thing(old: Any, new: Any, gap: float | None) -> None:
    assert number_gap(old, new) == gap


@pytest.mark.parametrize(
    ("old", "new", "gap"),
    [
        ([[19.25, 0.9], [0.2]], [[19.25, 0.85], [0.2]], 0.05),
        ([[0.9], [0.2, 19.25]], [[0.85], [0.2, 19.25]], 0.05),
        ([0.9, 0.2], [0.85, 0.2], 0.46),
        ({"length": 19.25, "chance": [0.9]}, {"length": 19.25, "chance": [0.85]}, 0.46),
    ],
)
def test_what_stands_in_a_list_with_numbers_above_1_is_no_probability(old: Any, new: Any, gap: float) -> None:
    """As surprisals, some of which are small."""
    assert number_gap(old, new) == pytest.approx(gap, abs=0.01)


@pytest.mark.parametrize(
    ("old", "new", "is_within"),
    [
        ([-18.7397], [-18.7398], True),
        ([-0.000717823], [-0.000797581], False),  # by characters, and not by bytes
        ([-0.000717823], [-0.000720823], True),  # what a logit is rounded to
        ({"ppl": 1.000717}, {"ppl": 1.000797}, False),
        ([2.5, 0.000717], [2.5, 0.000797], False),  # beside a surprisal
        ([-0.0003], [-0.00032], True),  # as the difference of two log-probabilities
        ([0.25], [0.25001], True),
        ([-0.5, "a"], [-0.5, "b"], False),
    ],
)
def test_rounding_moves_a_small_number_by_less(old: Any, new: Any, is_within: bool) -> None:
    most = number_gap(old, new, part_of(1.4e-5))
    assert (most is not None and most <= 1) is is_within
