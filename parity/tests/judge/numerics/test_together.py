"""Numbers of a site together: a direction that no single number shows, and means of many tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from parity.goldens.store import Case
from parity.judge.numerics.noise import Noise
from parity.judge.numerics.reading import Scored
from parity.judge.numerics.together import mean_allowance, moved_numbers, why_not_rounding

SIZE = 0.07
NOISE = Noise(SIZE, SIZE, 0.35, 1000)


def sides(numbers: Any, change: Any, per_case: int = 8, seed: int = 0) -> list[tuple[Case, Case]]:
    """Cases whose values are lists of numbers; the new ones are changed, and rounded otherwise."""
    draw = np.random.default_rng(seed)
    found = []
    for k in range(0, len(numbers), per_case):
        old = [float(value) for value in numbers[k : k + per_case]]
        new = [float(change(value) + draw.normal(0, SIZE)) for value in old]
        found.append((Case("s", f"c{k}", value=old), Case("s", f"c{k}", value=new)))
    return found


def log_probabilities(count: int, seed: int = 1) -> Any:
    return -np.random.default_rng(seed).exponential(3.0, count) - 0.2


def test_clean_numbers_have_no_direction() -> None:
    for seed in range(200):
        numbers = log_probabilities(int(6 + seed % 60), seed)
        cases = sides(numbers, lambda value: value, per_case=1 + seed % 9, seed=seed + 1000)
        assert why_not_rounding(moved_numbers(cases), NOISE) == ""


def test_temperature_of_three_percent_moves_numbers_in_proportion() -> None:
    """Each lies within what one number may move by."""
    numbers = np.maximum(log_probabilities(80), -8)
    cases = sides(numbers, lambda value: value / 1.03 - 0.09)
    assert max(abs(one.moved) for one in moved_numbers(cases)) < NOISE.of_number
    assert "in proportion" in why_not_rounding(moved_numbers(cases), NOISE)


def test_numbers_that_all_lie_lower_are_no_rounding() -> None:
    cases = sides(log_probabilities(48), lambda value: value - 0.08, per_case=4)
    assert "lie lower" in why_not_rounding(moved_numbers(cases), NOISE)


def test_lists_of_few_numbers_that_err_together_are_one_each() -> None:
    """Labels of one prompt: their prefix is one, and so is much of their error."""
    draw = np.random.default_rng(3)
    alarms = 0
    for _ in range(200):
        cases = []
        for k in range(5):
            together = draw.normal(0, SIZE)
            old = [float(value) for value in log_probabilities(6, k)]
            new = [value + together + float(draw.normal(0, SIZE / 5)) for value in old]
            cases.append((Case("s", f"c{k}", value=old), Case("s", f"c{k}", value=new)))
        alarms += why_not_rounding(moved_numbers(cases), NOISE) != ""
    assert alarms <= 1


def means_of(counts: list[int], change: float) -> tuple[list[tuple[Case, Case]], dict[str, Any]]:
    cases = []
    read = {}
    for k, count in enumerate(counts):
        words = log_probabilities(count, 50 + k)
        mean = float(words.mean())
        cases.append((Case("s", f"c{k}", value=mean), Case("s", f"c{k}", value=mean + change)))
        read[f"c{k}"] = [Scored((-9.0, *words.tolist()))]
    return cases, read


def test_mean_of_many_tokens_has_a_smaller_allowance_than_a_token() -> None:
    cases, read = means_of([20, 30, 40, 25], 0.34)
    share = mean_allowance(cases, read, NOISE)
    assert share < 0.6 and share * NOISE.of_number < 0.34 < NOISE.of_number


def test_perplexities_are_means_too() -> None:
    cases, read = means_of([20, 30, 40], 0.0)
    exp = [(Case("s", old.case, value=math.exp(-old.value)), new) for old, new in cases]
    cases = [(old, Case("s", new.case, value=math.exp(-new.value))) for old, new in exp]
    assert mean_allowance(cases, read, NOISE) < 0.6


@pytest.mark.parametrize("counts", [[20, 30], [2, 3, 4, 2]], ids=["two alone", "of few tokens"])
def test_numbers_that_may_be_means_by_chance_keep_their_allowance(counts: list[int]) -> None:
    cases, read = means_of(counts, 0.0)
    assert mean_allowance(cases, read, NOISE) == 1.0


def test_numbers_that_are_no_means_keep_their_allowance() -> None:
    cases, read = means_of([20, 30, 40], 0.0)
    cases.append((Case("s", "d", value=-50.0), Case("s", "d", value=-50.1)))
    assert mean_allowance(cases, read, NOISE) == 1.0
