"""Numbers among values: which lost bits or digits on the way."""

from __future__ import annotations

import pytest

from parity.golden import as_written
from parity.judge.numerics.numbers import fewer_bits

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
