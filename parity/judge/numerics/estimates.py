"""Statistics of errors, each with its interval, its margin and its outcome.

Over all tokens of a site, with what a row does not share as one cluster, and each shared prefix as
another:

    size      root mean square of the new errors over that of the old ones
    typical   the same of the geometric mean: where few rows hold most of the squares
    late      size, over the last third of positions: what begins after a window
    row       the worst row's size: what befalls some rows only
    bias      mean of the new errors beyond the old ones, in units of the old size
    scale     what of them goes with the log-probability: logits times something; the same units
    probes    what of them goes with what the reference shows when one thing in it (rope theta,
              attention scale, logits) moves by 1 %. A fault of half the noise is lost in the size
              of 2,000 tokens, and plain along its probe

An alarm needs an effect that surely lies beyond a margin and is significant: with 100,000 tokens
every difference of two kernels is significant. The verdict gives effect and margin in nats.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parity.judge.numerics.errors import FLOOR, Array, Errors, robust_size

StatisticOutcome = Literal["holds", "shifted", "cannot tell"]
Sums = Array  # [quantities, clusters]: all that is kept of a cluster is sums
Statistic = Callable[[Sums], Any]  # [quantities, ...] -> [...]


@dataclass(frozen=True, slots=True)
class Margins:
    """How far a clean path may be from the old one.

    Clean figures are those of `python -m parity.proof referee`: four architectures, both backends.
    """

    least_size: float = 0.5  # clean 0.72 at least (Gemma 2 on vLLM); float16 for bfloat16 is 0.12
    size: float = 1.25  # clean 1.13 at most (eager); a fault of 3/4 of the noise makes it 1.25
    least_typical: float = 0.6  # clean 0.78 at least
    typical: float = 1.3  # clean 1.10 at most
    gross: float = 4.0  # of single tokens; clean rows of routed experts go there, and none beyond
    late: float = 1.35  # a third of the tokens; clean 1.22 at most
    row: float = 2.0  # clean rows of routed experts go to 4, but then the interval is wide
    bias: float = 0.25  # clean 0.09 at most; the choice of greedy tokens alone makes it 0.15
    along: float = 0.12  # of scale and probes. Clean: 0; 1 % of theta, logits, attention: 0.2-0.8


EXACT = Margins()
# Without float32 another attention of plain transformers is the noise. A path that equals the old
# one then has no errors at all, and one that is more exact cannot be seen: no least size.
INEXACT = Margins(least_size=0.0, least_typical=0.0, size=1.3, typical=1.5, late=1.5)

ALARM = 1e-3  # all statistics of a site together, if the truth lay ON a margin
STATISTICS = 9  # five, scale, three probes
LEVEL = ALARM / STATISTICS  # two-sided, of one statistic
HOLDS = 0.05  # one-sided: how sure "inside the margin" is
LEVERAGE = 3.0  # sizes: of an error, and of a direction along which errors are looked at
ROW_CLIP = 8.0  # sizes, in the worst row: a few flipped experts must not count, a whole row must
WEIGHT = 8  # tokens of clean size that each row is given, so that three tokens are no outlier
ROW_SPREAD = 0.15  # rows differ by this at least, in logs: even of equal paths one may flip
PRECISE = 1e-9  # relative: of a quantile
HIDDEN = 0.1  # of the noise: an error below it is as good as none


# == Quantiles ==

NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a, b >= 1/2: by Gauss and Legendre,
    over the angle whose squared sine is x."""
    end = math.asin(math.sqrt(x))
    angles = end / 2 * (NODES + 1)
    sines = (2 * a - 1) * np.log(np.sin(angles))
    cosines = (2 * b - 1) * np.log(np.cos(angles))
    constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    density = np.exp(sines + cosines + constant)
    return float(end * (WEIGHTS * density).sum())


def solve(tail: Callable[[float], float], level: float) -> float:
    """The point at which a falling tail probability is `level`."""
    low = 0.0
    high = 1.0
    while tail(high) > level and high < 1e12:
        high *= 2
    while high - low > PRECISE * high:
        middle = (low + high) / 2
        if tail(middle) > level:
            low = middle
        else:
            high = middle
    return high


@functools.cache
def t_quantile(level: float, df: float) -> float:
    """Student's t: P(|T| > t) = level."""

    def tail(t: float) -> float:
        return beta_share(df / (df + t * t), df / 2, 0.5)

    return solve(tail, level)


@functools.cache
def f_quantile(level: float, df: float) -> float:
    """F of df and df degrees: P(F > f or F < 1/f) = level."""

    def tail(f: float) -> float:
        return 2 * beta_share(1 / (1 + f), df / 2, df / 2)

    return solve(tail, level)


# == Intervals ==


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, 0 if nothing is wrong, with half of an interval's width at the level of an alarm,
    and at that of "holds". Both count: the margin says how large an effect matters, the level how
    often chance may pass for an effect."""

    value: float
    alarm: float
    holds: float

    @property
    def is_significant(self) -> bool:
        return abs(self.value) > self.alarm

    def outcome(self, least: float, most: float) -> StatisticOutcome:
        low = self.value - self.holds
        high = self.value + self.holds
        is_outside = low > most or high < least
        if is_outside and self.is_significant:
            return "shifted"
        is_inside = least < low and high < most
        return "holds" if is_inside else "cannot tell"


def sums_of(e: Errors, terms: Sequence[Array], chosen: Array | None = None) -> Sums:
    """Sums over the (chosen) steps of each cluster: their number, and the terms."""
    steps = len(e.cluster)
    keep = np.ones(steps, bool) if chosen is None else chosen
    cluster = e.cluster[keep]
    columns = []
    for term in (np.ones(steps), *terms):
        columns.append(np.bincount(cluster, weights=term[keep], minlength=len(e.rows)))
    return np.stack(columns)


def jackknife(s: Sums, statistic: Statistic) -> tuple[float, float, float]:
    """(value, standard error, degrees of freedom), each cluster with tokens left out in turn. The
    degrees are those of as many equal clusters as the unequal ones are worth."""
    used = s[:, s[0] > 0]
    whole = used.sum(1)
    count = used.shape[1]
    value = float(statistic(whole))
    if count < 2:
        return value, math.inf, 1.0
    left = statistic(whole[:, None] - used)
    moved = left - left.mean()
    power = float((moved**2).sum())
    if power < 1e-24:
        return value, 0.0, count - 1.0
    equal_clusters = 3 * power**2 / float((moved**4).sum())
    error = math.sqrt((count - 1) / count * power)
    return value, error, max(1.0, min(count, equal_clusters) - 1)


def interval(s: Sums, statistic: Statistic, *, is_ratio: bool = False) -> Interval:
    """Student's; for a ratio of squares also that of F, as if each row were ONE independent error,
    whichever is narrower. With it visible pads show in five rows, and fewer never hold."""
    value, error, df = jackknife(s, statistic)
    widths = []
    for level in (LEVEL, 2 * HOLDS):
        width = t_quantile(level, df) * error if math.isfinite(error) else math.inf
        if is_ratio:
            width = min(width, 0.5 * math.log(f_quantile(level, df + 1)))
        widths.append(width)
    return Interval(value, *widths)


def log_ratio(s: Sums) -> Any:
    """[tokens, old squares, new squares, those of the floor] -> log of the ratio of the root mean
    squares."""
    _, old, new, floor = s
    return 0.5 * np.log((new + floor) / (old + floor))


def mean(s: Sums) -> Any:
    """[tokens, values] -> their mean."""
    return s[1] / s[0]


def effect(s: Sums) -> Any:
    """[tokens, old squares, products with a direction, its squares] -> what of an error goes with
    that direction, root mean square, in old sizes; signed."""
    tokens, old, product, squares = s
    along = product / np.sqrt(np.maximum(squares * tokens, 1e-300))
    return along / np.sqrt(old / tokens + FLOOR**2)


# == Estimates ==


@dataclass(frozen=True, slots=True)
class Estimate:
    """One statistic.   low, high: between which it lies, 9 times in 10.
    least, most: the margins that it must lie between.   where: the row, of the worst one.
    rounding: nats of logit, the size of the old errors. A ratio (its `least` is not negative) is
    one of sizes to it; any other value is in units of it."""

    name: str
    value: float
    low: float
    high: float
    least: float
    most: float
    outcome: StatisticOutcome
    rounding: float
    where: int | None = None

    @property
    def effect(self) -> float:
        """Nats of logit: a shift of this size; of a ratio, a fault independent of rounding."""
        return self.in_nats(self.value)

    @property
    def margin(self) -> float:
        """The largest effect that is no alarm, nats of logit."""
        return self.in_nats(self.most)

    def in_nats(self, value: float) -> float:
        if self.least < 0:
            return value * self.rounding
        return self.rounding * math.sqrt(max(value**2 - 1, 0.0))

    def __str__(self) -> str:
        row = "" if self.where is None else f" of row {self.where}"
        margin = f"{self.least:.2f} to {self.most:.2f}"
        interval = f"({self.low:.2f} to {self.high:.2f}; allowed {margin})"
        text = f"{self.name}{row} {self.value:.2f} {interval}"
        if self.least >= 0 and self.value <= 1:
            return text
        return f"{text}, an effect of {self.effect:.1e} nats where {self.margin:.1e} are allowed"


@dataclass(frozen=True, slots=True)
class Estimates:
    """All of a site.   size: the ratio of sizes, with its interval in logs.   others: in the order
    of the table above."""

    size: Estimate
    interval: Interval
    others: tuple[Estimate, ...]

    @property
    def all(self) -> tuple[Estimate, ...]:
        return (self.size, *self.others)


def estimates_of(e: Errors, margins: Margins) -> Estimates:
    sizes = interval(squares_of(e), log_ratio, is_ratio=True)
    everywhere = np.ones(len(e.cluster))
    probes = [along(e, name, probe, margins.along) for name, probe in e.probes.items()]
    others = (
        typical(e, margins),
        late(e, margins),
        worst_row(e, margins.row),
        along(e, "bias", everywhere, margins.bias, is_needed=True),
        *probes,
        along(e, "scale", centred(e), margins.along),
    )
    size = ratio(e, "size", sizes, margins.least_size, margins.size)
    return Estimates(size, sizes, others)


def squares_of(e: Errors, chosen: Array | None = None) -> Sums:
    old = e.clipped(e.old)
    new = e.clipped(e.new)
    return sums_of(e, [old**2, new**2, e.floor**2], chosen)


def ratio(e: Errors, name: str, logs: Interval, least: float, most: float) -> Estimate:
    """A ratio of sizes, out of its logarithm."""
    log_least = math.log(least) if least else -math.inf
    outcome = logs.outcome(log_least, math.log(most))
    return Estimate(
        name,
        exp(logs.value),
        exp(logs.value - logs.holds),
        exp(logs.value + logs.holds),
        least,
        most,
        outcome,
        e.rounding,
    )


def exp(value: float) -> float:
    return math.exp(min(value, 700))


def only_alarm(estimate: Estimate) -> Estimate:
    """It need not be shown to hold."""
    if estimate.outcome != "cannot tell":
        return estimate
    return dataclasses.replace(estimate, outcome="holds")


def growth_of(e: Errors) -> Array:
    """By how much each step's error grew, in logs. One below HIDDEN is as good as none."""
    hidden = (HIDDEN * e.size) ** 2 + e.floor**2

    def logs(side: Array) -> Array:
        return np.log(np.minimum(side**2, 1e12) + hidden) / 2

    return logs(e.new) - logs(e.old)


def typical(e: Errors, margins: Margins) -> Estimate:
    means = interval(sums_of(e, [growth_of(e)], e.is_open), mean)
    return only_alarm(ratio(e, "typical", means, margins.least_typical, margins.typical))


def gross(e: Errors, margins: Margins) -> Estimate:
    """By how much errors grew, every token counted by itself, for a set of few rows.

    Tokens of a row may err together: it says nothing of a small effect, but no clean row goes as
    far as this margin."""
    grown = growth_of(e)[e.is_open]
    error = float(grown.std(ddof=1)) / math.sqrt(len(grown))
    widths = [t_quantile(level, len(grown) - 1) * error for level in (LEVEL, 2 * HOLDS)]
    logs = Interval(float(grown.mean()), *widths)
    return only_alarm(ratio(e, "gross", logs, 0.0, margins.gross))


def late(e: Errors, margins: Margins) -> Estimate:
    is_late = e.position >= np.quantile(e.position, 2 / 3)
    sizes = interval(squares_of(e, is_late), log_ratio, is_ratio=True)
    return only_alarm(ratio(e, "late", sizes, 0.0, margins.late))


def worst_row(e: Errors, most: float) -> Estimate:
    """The row whose errors grew most, against how much rows differ in that anyway. Where experts
    flip, they flip on the old path too, in other rows: what shrank as much in some row as it grew
    in this one is no fault."""
    before = e.clipped(e.old, ROW_CLIP)
    after = e.clipped(e.new, ROW_CLIP)
    tokens, old, new, floor = sums_of(e, [before**2, after**2, e.floor**2])
    used = np.flatnonzero(tokens > 0)
    usual = floor[used] + WEIGHT * (e.size**2 + FLOOR**2)
    grown = (new[used] + usual) / (old[used] + usual)
    logs = 0.5 * np.log(grown)
    deviations = np.abs(logs - np.median(logs))
    spread = max(ROW_SPREAD, 1.4826 * float(np.median(deviations)))
    df = max(1, len(used) - 1)
    width = spread * t_quantile(LEVEL / len(used), df)
    k = int(logs.argmax())
    largest = float(logs[k])
    is_beyond = largest - width > math.log(most)
    has_grown = is_beyond and largest > -1.2 * logs.min()
    worst = ratio(e, "row", Interval(largest, width, width), 0.0, most)
    return dataclasses.replace(
        worst,
        outcome="shifted" if has_grown else "holds",
        where=e.rows[int(used[k])],
    )


def along(
    e: Errors, name: str, direction: Array, most: float, *, is_needed: bool = False
) -> Estimate:
    """What of the new errors, beyond the old ones, goes with a direction [steps].

    Greedy tokens were chosen by the old path's rounding, which lies high on them, and the new one
    less so: a bias that is nobody's fault (0.15 sizes with flipping experts). So an effect must
    show in new - old AND in new - slope x old, where that choice cancels; the smaller one counts.
    Errors and direction are clipped, each by its own size: a few steps at which everything moves
    much would decide alone.   is_needed: it must be shown to hold.

    Nor does an effect below FLOOR count, whatever the old path's size: of a float32 path that is
    the reference's own kernel no rounding is measured, and every other kernel goes beyond it.
    """
    most = max(most, FLOOR / e.rounding)
    old = e.clipped(e.old, LEVERAGE)
    new = e.clipped(e.new, LEVERAGE)
    limit = LEVERAGE * robust_size(direction[e.is_open])
    direction = np.clip(direction, -limit, limit)
    squares = old**2
    slope = float((old * new).sum() / max(squares.sum(), 1e-300))
    intervals = []
    for part in (new - old, new - slope * old):
        terms = [squares, part * direction, direction**2]
        intervals.append(interval(sums_of(e, terms, e.is_open), effect))
    least = min(intervals, key=lambda one: abs(one.value))
    outcome = least_grave([one.outcome(-most, most) for one in intervals])
    value = least.value
    low = value - least.holds
    high = value + least.holds
    found = Estimate(name, value, low, high, -most, most, outcome, e.rounding)
    is_beyond = abs(value) >= most and least.is_significant
    return found if is_needed or is_beyond else only_alarm(found)


def least_grave(outcomes: Sequence[StatisticOutcome]) -> StatisticOutcome:
    order: tuple[StatisticOutcome, ...] = ("holds", "cannot tell", "shifted")
    return min(outcomes, key=order.index)


def centred(e: Errors) -> Array:
    """The log-probability, less its mean in prompts and in answers: greedy answers lie higher."""
    values = e.logprob.copy()
    for is_answer in (True, False):
        group = (e.is_answer == is_answer) & e.is_open
        if group.any():
            values[group] -= values[group].mean()
    return values
