"""parity/diff/choices.py: the size of errors, from choices alone, where it is known what it is."""

from __future__ import annotations

import numpy as np
import pytest

from parity.diff import choices
from parity.diff.partings import Pair
from parity.judge.numerics.noise import Noise, Parting

UNIT = 0.1


def simulated(size: float, steps: int, seed: int) -> choices.Size:
    """Choices between two tokens whose margins lie evenly about 0, of a path with errors of `size` x UNIT."""
    draw = np.random.default_rng(seed)
    margins = draw.uniform(-1, 1, steps)
    chosen = margins + draw.normal(0, size * UNIT, steps) > 0
    return choices.size_of(margins, chosen, UNIT)


@pytest.mark.parametrize("size", [0.5, 1.0, 3.0])
def test_size_of_known_errors_lies_in_its_interval(size: float) -> None:
    found = [simulated(size, 400, seed) for seed in range(40)]
    assert sum(one.low < size for one in found) == 40
    assert sum(one.high > size for one in found) >= 33  # 38 are expected


@pytest.mark.parametrize(
    ("size", "steps", "outcome"), [(1, 1000, "rounding"), (3, 1000, "fault"), (1, 4, "cannot tell")]
)
def test_outcome_follows_from_the_interval(size: float, steps: int, outcome: str) -> None:
    assert {simulated(size, steps, seed).outcome for seed in range(8)} == {outcome}


def read_with(margins: list[float], noise: Noise) -> choices.Choices:
    array = np.array(margins)
    return choices.Choices((array,), (np.full(len(array), 0.01),), noise, (parting(margins[-1]),))


def parting(gap: float) -> Parting:
    return Parting((0.0, -gap), (0.0, -gap), (0.0, -gap))


def test_one_answer_beyond_rounding_is_a_fault() -> None:
    pair = Pair((1,), (5, 5, 5), (5, 5, 6))
    noise = Noise(0.01, 0.01, 0.03, 500)
    judged = choices.judge_choices(read_with([9.0, 9.0, 2.0], noise), [pair])
    assert judged.outcome == "fault" and judged.rows[0].is_fault


def test_without_noise_nothing_is_said() -> None:
    pair = Pair((1,), (5, 5, 5), (5, 5, 6))
    judged = choices.judge_choices(read_with([9.0, 9.0, 2.0], Noise(0, 0, 0, 3)), [pair])
    assert judged.outcome == "cannot tell"
