"""All numbers of a site together: what one number's rounding hides shows in many that move one way.

    numbers = moved_numbers(questions)     each with how far it moved, nats, signed
    why_not_rounding(numbers, noise)       "" or a clause: all of them lie lower, or move in
                                           proportion to their size, as a temperature moves them
    mean_allowance(...)                    a mean of n tokens rounds less than one token

Rounding has no direction: over a site's numbers its mean is zero, and it does not grow with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.goldens.store import Case
from parity.judge.numerics.errors import FLOOR, Array
from parity.judge.numerics.estimates import Interval, interval
from parity.judge.numerics.noise import Noise
from parity.judge.numerics.numbers import float_pairs
from parity.judge.numerics.reading import Scored

LEAST_NUMBERS = 6  # fewer show no direction
FEWEST_GROUPS = 4  # lists of numbers that stand for clusters; below, each number stands alone
ONE_WAY = 0.25  # sizes: as the referee's margin of a bias
CLIP = 8.0  # sizes: one number that moved further counts as this
FEWEST_TOKENS = 8  # a mean of fewer is not told from chance
FEWEST_MEANS = 3  # numbers that all have to be means: one may be so by chance
SPARE = 1.5  # errors within a row are not quite independent
LEAST_SHARE = 1 / 4  # of one token's allowance, for however many tokens


@dataclass(frozen=True, slots=True)
class MovedNumber:
    """place: of the list that it stands in.   size: its own, nats, where it is a log-probability
    or becomes one.   moved: nats, signed."""

    place: tuple[Any, ...]
    size: float
    moved: float


def moved_numbers(cases: Sequence[tuple[Case, Case]]) -> list[MovedNumber]:
    found = []
    for old, new in cases:
        for path, before, after in float_pairs(old.value, new.value):
            one = in_nats(before)
            other = in_nats(after)
            if one is not None and other is not None and math.isfinite(other - one):
                found.append(MovedNumber((old.case, *path[:-1]), one, other - one))
    return found


def in_nats(number: float) -> float | None:
    """A log-probability, or what is taken for one: of a probability its log-odds, of a perplexity
    the mean that it is made of."""
    if number <= 0:
        return number
    if number < 1:
        return math.log(number / (1 - number))
    return -math.log(number) if math.isfinite(number) else None


# == One way ==


def why_not_rounding(numbers: Sequence[MovedNumber], noise: Noise) -> str:
    """A clause, or ""."""
    if len(numbers) < LEAST_NUMBERS:
        return ""
    unit = math.hypot(max(noise.old, noise.new), FLOOR)
    moved = np.clip(np.array([one.moved for one in numbers]) / unit, -CLIP, CLIP)
    sizes = np.array([one.size for one in numbers])
    cluster = clusters_of(numbers)
    shift = direction(moved, np.ones(len(moved)), cluster)
    most = max(ONE_WAY, FLOOR / unit)
    if is_beyond(shift, most):
        way = "higher" if shift.value > 0 else "lower"
        effect = abs(shift.value) * unit
        return f"{len(numbers)} numbers of the site lie {way} by {effect:.1e} nats on the whole"
    spread = float(sizes.std())
    if spread == 0:
        return ""
    slope = direction(moved - moved.mean(), (sizes - sizes.mean()) / spread, cluster)
    if is_beyond(slope, most):
        factor = 1 + slope.value * unit / spread
        return f"{len(numbers)} numbers of the site move in proportion, as if x {factor:.3f}"
    return ""


def clusters_of(numbers: Sequence[MovedNumber]) -> Array:
    """Numbers of one list may err together."""
    places = {place: k for k, place in enumerate(dict.fromkeys(one.place for one in numbers))}
    if len(places) < FEWEST_GROUPS:
        return np.arange(len(numbers))
    return np.array([places[one.place] for one in numbers])


def direction(moved: Array, way: Array, cluster: Array) -> Interval:
    """How much of what moved goes along a way of unit size, in sizes of rounding."""
    columns = []
    for term in (np.ones(len(moved)), moved * way, way**2):
        columns.append(np.bincount(cluster, weights=term))
    return interval(np.stack(columns), lambda s: s[1] / np.maximum(s[2], 1e-300))


def is_beyond(found: Interval, most: float) -> bool:
    return found.outcome(-most, most) == "shifted"


# == Means ==


def mean_allowance(
    cases: Sequence[tuple[Case, Case]], read: Mapping[str, Sequence[Scored]], noise: Noise
) -> float:
    """How far each number may move as a part of what one token may, 1 where they are no means.
    read: case -> what the old path reads of its rows.

    Each number of the site has to be the mean over a row's last tokens, as the old path reads them.
    """
    shares = []
    for old, new in cases:
        for _, before, _ in float_pairs(old.value, new.value):
            count = tokens_of_mean(before, read.get(old.case, ()), noise)
            if not count:
                return 1.0
            shares.append(SPARE / math.sqrt(count))
    if len(shares) < FEWEST_MEANS:
        return 1.0
    return min(1.0, max(LEAST_SHARE, *shares))


def tokens_of_mean(number: float, rows: Sequence[Scored], noise: Noise) -> int:
    """Of how many tokens a number is the mean, 0 where of none: the fewest that fit."""
    mean = number if number <= 0 else -abs(math.log(number))
    for row in rows:
        for count, value in suffix_means(row):
            error = 2 * noise.old / math.sqrt(count) + FLOOR
            if abs(value - mean) <= error:
                return count
    return 0


def suffix_means(row: Scored) -> Iterator[tuple[int, float]]:
    total = 0.0
    for count, logprob in enumerate(reversed(row.logprobs), 1):
        if logprob is None:
            return
        total += logprob
        if count >= FEWEST_TOKENS:
            yield count, total / count
