"""Do two paths differ by more than rounding? Rounding has a measured size: how far the old path is from float32.

    verdict = judge(rows, dtype="bfloat16")     rows: Reading, each the same tokens read by reference, old and new path
    verdict.outcome                             "holds", "shifted" or "cannot tell"
    within_noise(parting, verdict.noise)        is this parting of two greedy answers explained by that noise?

The error of a step is a path's log-probability of the golden's token minus the reference's. Nats of log-probability are
turned into nats of logit: log p moves by (1 - p) times what its logit moves by, so where a model is sure nothing shows,
and a trained model and a flat one become comparable.

Rows that begin with the same ids (a system prompt, the samples of one prompt) have the same errors there, bit by bit:
each distinct prefix counts once. Then, over all tokens of a site, with what a row does not share as one cluster, and
each shared prefix as another:

    size      root mean square of the new errors over that of the old ones
    typical   the same of the typical (geometric mean) error: where few rows hold most of the squares (flipped experts)
    late      size, over the last third of positions: what begins after a window
    row       the worst row's size: what befalls some rows only
    bias      mean of the new errors beyond the old ones, in units of the old size
    scale     what of them goes with the log-probability: logits multiplied by something; in the same units
    probes    what of them goes with what the reference shows when one thing in it (rope theta, attention scale, logits)
              is moved by 1 %. A fault of half the noise is lost in the size of 2,000 tokens, and plain along its probe

Greedy tokens were chosen by the old path's rounding, which therefore lies high on them, and the new one less so: a bias
that is nobody's fault (0.15 sizes with flipping experts). A bias, a scale or a probe is an alarm only if it shows in
new - old AND in new - slope x old, where that choice cancels; of the two the smaller one is told.

An alarm rests on the size of an effect, not on its significance alone: with 100,000 tokens every difference of two
kernels is significant. It must surely (19 in 20) lie beyond a margin, which is a part of the rounding that was measured
(`Margins`), and the verdict gives both in nats of logit.

"holds" needs size and bias surely inside their margins, no alarm anywhere, and enough rows for a fault of SEEN times
rounding to have been one; it says what would have been seen.
"cannot tell" says how many tokens it lacks. Nothing here loads a model.

Map: what goes in, what comes out, margins, quantiles, errors, estimates, the verdict, parting steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Outcome = Literal["holds", "shifted", "cannot tell"]
Array = Any  # numpy.ndarray, float64


# == What goes in ==


@dataclass(frozen=True, slots=True)
class Reading:
    """One row's tokens as three paths see them.

    reference, old, new: log-probabilities, nats, one per token; None where a path did not read that token.
    start: how many ids stand before the first one.   prompt: how many of the tokens are the prompt's, not the answer's.
    probes: what the reference says of the same tokens with one thing in it moved by PROBED.
    ids: of the whole row, those before `start` too, so that what rows share counts once; () if it shares nothing, as a
    row with images: the same ids may stand for other ones.
    """

    reference: Sequence[float | None]
    old: Sequence[float | None]
    new: Sequence[float | None]
    start: int = 1
    prompt: int = 0
    probes: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not len(self.reference) == len(self.old) == len(self.new):
            raise ValueError("reference, old and new must have read the same tokens")
        length = self.start + len(self.reference)
        if self.ids and len(self.ids) != length:
            raise ValueError(f"Reading: {len(self.ids)} ids, expected {length}. Give all ids of the row.")


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step at which two greedy answers part: log-probabilities, nats, of (the old id, the new id) there.

    Where a penalty stood between the model and the choice, give penalised values.
    """

    reference: tuple[float, float]
    old: tuple[float, float]
    new: tuple[float, float]


# == What comes out ==


@dataclass(frozen=True, slots=True)
class Estimate:
    """One statistic.   low, high: between which it lies, 9 times in 10.   least, most: the margins it must lie between.
    rounding: nats of logit, the size of the old errors. A ratio (its `least` is not negative) is one of sizes to it,
    any other value is in units of it.   where: the row, for the worst one."""

    name: str
    value: float
    low: float
    high: float
    least: float
    most: float
    outcome: Outcome
    rounding: float
    where: int | None = None

    @property
    def effect(self) -> float:
        """Nats of logit: a shift of this size; for a ratio, a fault that is independent of rounding."""
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
        said = f"{self.name}{row} {self.value:.2f} ({self.low:.2f} to {self.high:.2f}; allowed {margin})"
        if self.least >= 0 and self.value <= 1:
            return said
        return f"{said}, an effect of {self.effect:.1e} nats where {self.margin:.1e} are allowed"


@dataclass(frozen=True, slots=True)
class Noise:
    """How large rounding is at a site, in nats of logit: of either path, and the largest of the old path's errors.
    tokens: those at which the model is unsure enough for it to show."""

    old: float
    new: float
    largest: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a site's numerics are.

    sees: the smallest fault that would have been an alarm, nats of logit (root mean square over tokens).
    more: tokens that are lacking, for "cannot tell".   like: what a shift looks like: a dtype whose size the new errors
    have, or a probe and how far it would have to be moved.   exact: against float32, or only against plain transformers
    in the golden's own dtype.
    """

    outcome: Outcome
    estimates: tuple[Estimate, ...]
    noise: Noise
    rows: int
    sees: float
    more: int = 0
    like: str = ""
    exact: bool = True

    @property
    def worst(self) -> Estimate | None:
        """The statistic that decided, if it did not hold."""
        return next((e for e in self.estimates if e.outcome == self.outcome != "holds"), None)

    @property
    def seen(self) -> tuple[Estimate, ...]:
        """Every statistic that is an alarm."""
        return tuple(e for e in self.estimates if e.outcome == "shifted")

    @property
    def cause(self) -> str:
        """The cause's name, for a site that shifted; "" otherwise. Nothing but a finer dtype makes errors smaller;
        larger ones may have a coarser one's size by chance (int8 weights can): that is told, and not named."""
        if self.outcome != "shifted":
            return ""
        return "model.dtype" if self.like in BITS and self.noise.new < self.noise.old else "numeric.shift"

    def __str__(self) -> str:
        n = self.noise
        against = "" if self.exact else ", against plain transformers in the same dtype"
        before, now = (f"{size:.1e}" if size > 1e-12 else "0" for size in (n.old, n.new))
        base = f"{n.tokens} unsure tokens of {self.rows} rows{against}; rounding {before} nats before, {now} now"
        if self.outcome == "holds":
            return f"holds: {base}; a fault of {self.sees:.1e} nats or more would have been seen"
        if self.outcome == "cannot tell":
            why = f"; {self.worst or f'only a fault of {self.sees:.1e} nats would have been seen'}"
            return f"cannot tell: {base}{why}; {self.more} more tokens are needed, in other rows"
        named = f"; like {self.like}" if self.like else ""
        return f"shifted: {self.worst}; {base}{named}"


# == Margins ==


@dataclass(frozen=True, slots=True)
class Margins:
    """How far a clean path may be from the old one. Clean figures are of `python -m parity dev referee`."""

    least_size: float = 0.5  # clean 0.72 at least (Gemma 2 on vLLM); float16 for bfloat16 is 0.12
    size: float = 1.25  # clean 1.13 at most (eager attention); an independent fault of 3/4 of the noise is 1.25
    least_typical: float = 0.6  # clean 0.78 at least
    typical: float = 1.3  # clean 1.10 at most
    late: float = 1.35  # a third of the tokens; clean 1.22 at most
    row: float = 2.0  # 30 to 100 tokens; clean rows of routed experts go to 4, but then the interval is wide
    bias: float = 0.25  # clean 0.09 at most (flipping experts; the choice of greedy tokens makes it 0.15)
    along: float = 0.12  # of scale and probes; clean is noise around 0. 1 % of theta, logits or attention: 0.2 to 0.8


EXACT = Margins()
# Against plain transformers in the golden's dtype, another of its attention implementations is the noise. A path that
# is the same as the old one then has no errors at all, and one that is more exact cannot be told: no least size.
INEXACT = Margins(least_size=0.0, least_typical=0.0, size=1.3, typical=1.5, late=1.5)

ALARM = 1e-3  # all statistics of a site together, if the truth lay ON a margin; clean paths lie well inside
HOLDS = 0.05  # one-sided: how sure "inside the margin" is
STATISTICS = 9  # five, scale, three probes
SEEN = 2.0  # times rounding: where not even such a fault would have been an alarm, nothing holds
SURE = 0.01  # 1 - p is not taken for smaller than this: below, a log-probability's own float32 rounding would be read
FLOOR = 1e-4  # nats: float32 rounding of either path and of the reference is below it, and so is what nobody can see
FLOAT32 = 2e-6  # nats: its own rounding, of a path that has none beside it
LEVERAGE = 3.0  # sizes, of an error and of a direction along which it is looked at
CLIP = 4.0  # sizes: an error counts as this large at most. An expert that flips moves one step by 100
ROW_CLIP = 8.0  # the same, in the worst row, where a few flips must not and a whole row must count
LEAST = 20  # unsure tokens, below which nothing is said
WEIGHT = 8  # tokens of clean size that each row is given, so that a row of three tokens is no outlier
ROW_SPREAD = 0.15  # rows differ by this at least, in logs: of two all but equal paths, one row may flip an expert
PROBED = 1.01  # probes move one thing by this factor
BITS = {"bfloat16": 8, "float16": 11, "float32": 24}  # of the mantissa, with the implicit one


# == Quantiles ==


def beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_share(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    total = d
    for m in range(1, 400):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + numerator * d or tiny), 1 + numerator / c or tiny
            total *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * total / a


def solve(tail: Callable[[float], float], level: float) -> float:
    """The point at which a falling tail probability is `level`."""
    low, high = 0.0, 1.0
    while tail(high) > level and high < 1e12:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > level else (low, middle)
    return high


@functools.cache
def t_quantile(level: float, df: float) -> float:
    """Student's t: P(|T| > t) = level."""
    return solve(lambda t: beta_share(df / (df + t * t), df / 2, 0.5), level)


@functools.cache
def f_quantile(level: float, df: float) -> float:
    """F of df and df degrees: P(F > f or F < 1/f) = level."""
    return solve(lambda f: 2 * beta_share(1 / (1 + f), df / 2, df / 2), level)


# == Errors ==


@dataclass(frozen=True, slots=True)
class Errors:
    """All steps of a site that three paths read, one entry each; those that rows share stand here once.

    cluster: steps whose errors may go together have the same number.   rows: cluster -> the row it was read in.
    position: in the row.   answer: of the answer, or of the prompt.   logprob: the reference's.   probes: as errors.
    old, new: errors, nats of logit.   open: where the model is unsure enough for rounding to show. Other steps count
    in `size` and `row` only: a fault may make them unsure.   scale: the old errors' size, few large ones aside.
    """

    cluster: Array
    rows: Sequence[int]
    position: Array
    answer: Array
    logprob: Array
    old: Array
    new: Array
    probes: Mapping[str, Array]
    open: Array
    scale: float

    @property
    def rounding(self) -> float:
        """What effects are measured in, nats of logit."""
        return math.hypot(self.scale, FLOOR)

    def clipped(self, errors: Array, clip: float = CLIP) -> Array:
        limit = clip * self.rounding
        return np.clip(errors, -limit, limit)


def errors_of(rows: Sequence[Reading]) -> Errors:
    """Steps with errors in nats of logit. A value that is no number on the new path is an error without bound."""
    names = sorted(set.intersection(*(set(row.probes) for row in rows))) if rows else []
    columns = [[row.reference, row.old, row.new, *(row.probes[name] for name in names)] for row in rows]
    readable = [[is_readable(values) for values in zip(*sides)] for sides in columns]
    clusters, origins = clusters_of(rows, readable)
    steps: list[tuple[float, ...]] = []
    for row, sides, numbers in zip(rows, columns, clusters):
        for step, values in enumerate(zip(*sides)):
            number = numbers[step]
            if number is not None:
                steps.append((number, row.start + step, step >= row.prompt, *values))
    table = np.array(steps, dtype=np.float64).reshape(-1, 6 + len(names))
    logprob = np.minimum(table[:, 3], 0.0)
    unsure = -np.expm1(logprob)
    is_open = unsure > SURE
    worth = np.hypot(unsure, SURE)
    old, new, *probes = (np.nan_to_num((column - table[:, 3]) / worth, nan=np.inf) for column in table.T[4:])
    cluster, position, answer = table[:, 0].astype(int), table[:, 1], table[:, 2] > 0
    size = robust_size(old[is_open])
    return Errors(cluster, origins, position, answer, logprob, old, new, dict(zip(names, probes)), is_open, size)


def is_readable(values: Sequence[float | None]) -> bool:
    """Whether every path read a step.   values: the reference's first."""
    return None not in values and math.isfinite(values[0] or 0.0)


def clusters_of(
    rows: Sequence[Reading], readable: Sequence[Sequence[bool]]
) -> tuple[list[list[int | None]], list[int]]:
    """(for each row the cluster of each step, for each cluster the row that it was read in).

    A step is left out (None) if a path did not read it, or if an earlier row has it behind the same ids. The steps that
    one row shares with the same other rows are a cluster, and so are those that it shares with none.
    """
    paths = prefixes_of(rows)
    first: dict[int, int] = {}  # prefix -> the row that reads it first
    sharers: dict[int, int] = {}  # prefix -> how many rows read it
    for k, row in enumerate(rows):
        for prefix, is_read in zip(paths[k][row.start :], readable[k]):
            if is_read:
                first.setdefault(prefix, k)
                sharers[prefix] = sharers.get(prefix, 0) + 1
    numbers: dict[tuple[int, int], int] = {}
    clusters: list[list[int | None]] = []
    for k, row in enumerate(rows):
        own: list[int | None] = []
        for prefix in paths[k][row.start :]:
            is_mine = first.get(prefix) == k
            own.append(numbers.setdefault((k, sharers[prefix]), len(numbers)) if is_mine else None)
        clusters.append(own)
    return clusters, [row for row, _ in numbers]


def prefixes_of(rows: Sequence[Reading]) -> list[list[int]]:
    """For each row, at each position, the number of the prefix that ends there; equal prefixes have equal numbers."""
    known: dict[tuple[int, object], int] = {}
    paths = []
    for k, row in enumerate(rows):
        ids: Sequence[object] = row.ids or [(k, position) for position in range(row.start + len(row.reference))]
        path, before = [], -1
        for token in ids:
            before = known.setdefault((before, token), len(known))
            path.append(before)
        paths.append(path)
    return paths


def robust_size(errors: Array, clip: float = 2.5) -> float:
    """Root mean square with errors above `clip` times itself counted as that (Huber's proposal 2)."""
    if not len(errors):
        return 0.0
    squares = np.minimum(errors**2, 1e12)
    size = float(np.sqrt(squares.mean()))
    for _ in range(200):
        smaller = float(np.sqrt(np.minimum(squares, (clip * size) ** 2).mean()))
        if smaller >= size * (1 - 1e-6):
            break
        size = smaller
    return size


# == Estimates ==

Sums = Array  # [quantities, clusters]: all that is kept of a cluster is sums
Statistic = Callable[[Sums], Array]  # [quantities, ...] -> [...]


def sums_of(e: Errors, terms: Sequence[Array], chosen: Array | None = None) -> Sums:
    """Sums over each cluster's (chosen) steps: their number, and the terms."""
    keep = np.ones(len(e.cluster), bool) if chosen is None else chosen
    columns = (np.ones(len(e.cluster)), *terms)
    return np.stack([np.bincount(e.cluster[keep], weights=term[keep], minlength=len(e.rows)) for term in columns])


def log_size(s: Sums) -> Array:
    """[tokens, old squares, new squares] -> log of the ratio of root mean squares, the floor added to both."""
    tokens, old, new = s
    return 0.5 * np.log((new + tokens * FLOOR**2) / (old + tokens * FLOOR**2))


def mean(s: Sums) -> Array:
    """[tokens, values] -> their mean."""
    return s[1] / s[0]


def effect(s: Sums) -> Array:
    """[tokens, old squares, products with a direction, its squares] -> what of an error goes with that direction, root
    mean square, in old sizes; signed."""
    tokens, old, product, squares = s
    return product / np.sqrt(np.maximum(squares * tokens, 1e-300)) / np.sqrt(old / tokens + FLOOR**2)


def jackknife(s: Sums, statistic: Statistic) -> tuple[float, float, float]:
    """(value, standard error, degrees of freedom), each cluster with tokens left out in turn.

    The degrees are those of as many equal clusters as the unequal ones are worth: of one that says everything, 2.
    """
    used = s[:, s[0] > 0]
    whole, count = used.sum(1), used.shape[1]
    value = float(statistic(whole))
    if count < 2:
        return value, math.inf, 1.0
    left = statistic(whole[:, None] - used)
    moved = left - left.mean()
    power = float((moved**2).sum())
    if power < 1e-24:
        return value, 0.0, count - 1.0
    alike = 3 * power**2 / float((moved**4).sum())
    return value, math.sqrt((count - 1) / count * power), max(1.0, min(count, alike) - 1)


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, 0 if nothing is wrong, with half an interval's width at the level of an alarm, and at that of "holds".

    Both count: the margin says how large an effect matters, and the level how often chance may pass for an effect.
    """

    value: float
    alarm: float
    holds: float

    @property
    def is_significant(self) -> bool:
        """Whether no effect at all, 0, lies outside of the interval at the level of an alarm."""
        return abs(self.value) > self.alarm

    def outcome(self, least: float, most: float) -> Outcome:
        """Beyond a margin surely, and significant; inside both margins surely; or neither."""
        low, high = self.value - self.holds, self.value + self.holds
        if (low > most or high < least) and self.is_significant:
            return "shifted"
        return "holds" if least < low and high < most else "cannot tell"


def interval(s: Sums, statistic: Statistic, *, ratio: bool = False) -> Interval:
    """For a ratio of squares there is a second interval, narrower with very few rows: that of F, as if each row were
    ONE independent error. With it, pads that are visible show in five rows, and fewer never hold."""
    value, error, df = jackknife(s, statistic)
    widths = []
    for level in (ALARM / STATISTICS, 2 * HOLDS):
        width = t_quantile(level, df) * error if math.isfinite(error) else math.inf
        widths.append(min(width, 0.5 * math.log(f_quantile(level, df + 1))) if ratio else width)
    return Interval(value, *widths)


def in_logs(e: Errors, name: str, i: Interval, least: float, most: float, *, needed: bool = False) -> Estimate:
    """A ratio. needed: it must be shown to hold; any other can only be an alarm."""
    outcome = i.outcome(math.log(least) if least else -math.inf, math.log(most))
    outcome = "holds" if outcome == "cannot tell" and not needed else outcome
    value, low, high = (math.exp(min(x, 700)) for x in (i.value, i.value - i.holds, i.value + i.holds))
    return Estimate(name, value, low, high, least, most, outcome, e.rounding)


def size_of(e: Errors, margins: Margins) -> tuple[Estimate, Interval]:
    """The ratio of sizes, with its interval in logs."""
    i = interval(sums_of(e, [e.clipped(e.old) ** 2, e.clipped(e.new) ** 2]), log_size, ratio=True)
    return in_logs(e, "size", i, margins.least_size, margins.size, needed=True), i


def typical(e: Errors, margins: Margins) -> Estimate:
    least = (0.1 * e.scale) ** 2 + FLOOR**2  # below a tenth of the noise an error is as good as none
    old, new = (np.log(np.minimum(side**2, 1e12) + least) / 2 for side in (e.old, e.new))
    i = interval(sums_of(e, [new - old], e.open), mean)
    return in_logs(e, "typical", i, margins.least_typical, margins.typical)


def late(e: Errors, margins: Margins) -> Estimate:
    after = e.position >= np.quantile(e.position, 2 / 3)
    s = sums_of(e, [e.clipped(e.old) ** 2, e.clipped(e.new) ** 2], after)
    return in_logs(e, "late", interval(s, log_size, ratio=True), 0.0, margins.late)


def worst_row(e: Errors, margins: Margins) -> Estimate:
    """The row whose errors grew most, against how much rows differ in that anyway. Where experts flip, they flip on
    the old path too, in other rows: what shrank as much in some row as it grew in this one is no fault."""
    tokens, old, new = sums_of(e, [e.clipped(e.old, ROW_CLIP) ** 2, e.clipped(e.new, ROW_CLIP) ** 2])
    used = np.flatnonzero(tokens > 0)
    usual = WEIGHT * (e.scale**2 + FLOOR**2)
    logs = 0.5 * np.log((new[used] + usual) / (old[used] + usual))
    spread = max(ROW_SPREAD, 1.4826 * float(np.median(np.abs(logs - np.median(logs)))))
    k = int(logs.argmax())
    width = spread * t_quantile(ALARM / STATISTICS / len(used), max(1, len(used) - 1))
    grown = logs[k] - width > math.log(margins.row) and logs[k] > -1.2 * logs.min()
    outcome: Outcome = "shifted" if grown else "holds"
    value, low, high = (math.exp(min(x, 700)) for x in (logs[k], logs[k] - width, logs[k] + width))
    return Estimate("row", value, low, high, 0.0, margins.row, outcome, e.rounding, e.rows[int(used[k])])


def along(e: Errors, name: str, direction: Array, most: float, *, needed: bool = False) -> Estimate:
    """What of the new errors, beyond the old ones, goes with a direction [steps]. See the top for why twice.

    Both are clipped, each by its own size: a few steps at which everything moves much would decide alone."""
    old, new = e.clipped(e.old, LEVERAGE), e.clipped(e.new, LEVERAGE)
    limit = LEVERAGE * robust_size(direction[e.open])
    direction = np.clip(direction, -limit, limit)
    shared = float((old * new).sum() / max(float((old**2).sum()), 1e-300))
    found = []
    for part in (new - old, new - shared * old):
        s = sums_of(e, [old**2, part * direction, direction**2], e.open)
        found.append(interval(s, effect))
    i = min(found, key=lambda i: abs(i.value))
    ranked = [i.outcome(-most, most) for i in found]
    outcome: Outcome = next(o for o in ("holds", "cannot tell", "shifted") if o in ranked)
    if not needed and outcome == "cannot tell" and (abs(i.value) < most or not i.is_significant):
        outcome = "holds"  # neither beyond the margin nor surely there
    return Estimate(name, i.value, i.value - i.holds, i.value + i.holds, -most, most, outcome, e.rounding)


def centred(e: Errors) -> Array:
    """The log-probability, in prompts and in answers apart: greedy answers lie higher than prompts."""
    values = e.logprob.copy()
    for kind in (True, False):
        group = (e.answer == kind) & e.open
        values[group] -= values[group].mean() if group.any() else 0.0
    return values


# == The verdict ==


def judge(rows: Sequence[Reading], *, dtype: str, exact: bool = True, margins: Margins | None = None) -> Verdict:
    """A site's numerics, from all its tokens at once.

    dtype: the golden's.   exact: whether `reference` is float32; otherwise it is plain transformers in that dtype, and
    `old` the same with another attention implementation (see `parity.judge.scoring.plan_of`).
    """
    allowed = margins or (EXACT if exact else INEXACT)
    e = errors_of(rows)
    count, steps = len(set(e.cluster[e.open].tolist())), int(e.open.sum())
    noise = Noise(robust_size(e.old[e.open]), robust_size(e.new[e.open]), largest_of(e.old[e.open]), steps)
    if count < 2 or steps < LEAST:
        return Verdict("cannot tell", (), noise, count, math.inf, more=max(steps, 200), exact=exact)
    size, i = size_of(e, allowed)
    bias = along(e, "bias", np.ones(len(e.cluster)), allowed.bias, needed=True)
    others = [along(e, name, probe, allowed.along) for name, probe in e.probes.items()]
    others.append(along(e, "scale", centred(e), allowed.along))
    estimates = (size, typical(e, allowed), late(e, allowed), worst_row(e, allowed), bias, *others)
    outcomes = [estimate.outcome for estimate in estimates]
    outcome: Outcome = next(o for o in ("shifted", "cannot tell", "holds") if o in outcomes)
    sees = smallest_seen(i, allowed, noise)
    if outcome == "holds" and sees > SEEN * e.rounding:
        outcome = "cannot tell"
    like = likeness(e, estimates, noise, dtype if exact else "") if outcome == "shifted" else ""
    more = lacking(i, size, (bias, *others), noise.tokens) if outcome == "cannot tell" else 0
    return Verdict(outcome, estimates, noise, count, sees, more, like, exact)


def largest_of(errors: Array) -> float:
    """All but one error in a thousand are smaller."""
    return float(np.quantile(np.abs(errors), 0.999)) if len(errors) else 0.0


def smallest_seen(i: Interval, margins: Margins, noise: Noise) -> float:
    """An independent fault of this root mean square, nats of logit, puts the size beyond its margin and interval."""
    beyond = 2 * max(math.log(margins.size) + i.holds, i.alarm)
    return math.hypot(noise.old, FLOOR) * math.sqrt(math.expm1(min(beyond, 100.0)))


def lacking(i: Interval, size: Estimate, centred: Iterable[Estimate], tokens: int) -> int:
    """How many more tokens would narrow the intervals into the margins, if the values stayed; at most 99 times as many
    (a value outside its margin never gets there: then more tokens make it an alarm)."""
    room = math.inf if size.outcome == "holds" else max(1e-9, abs(math.log(size.most) - i.value))
    if size.least and size.outcome != "holds":
        room = min(room, max(1e-9, abs(i.value - math.log(size.least))))
    times = max((i.holds / room) ** 2, (i.alarm / (0.5 * math.log1p(SEEN**2))) ** 2)
    if i.value > math.log(size.most):
        times = max(times, (i.alarm / i.value) ** 2)
    for x in (x for x in centred if x.outcome == "cannot tell"):
        times = max(times, ((x.high - x.value) / max(1e-9, abs(x.most - abs(x.value)))) ** 2)
    return max(1, math.ceil(tokens * (min(max(times, 1.05), 100.0) - 1)))


def likeness(e: Errors, estimates: Iterable[Estimate], noise: Noise, dtype: str) -> str:
    """What a shift looks like: the probe that explains most, and by what factor; else another dtype's size.

    A probe that is less than a sixth of the new errors names nothing: something else is wrong, and touches it."""
    seen = {x.name: x for x in estimates if x.outcome == "shifted"}
    probed = max((x for x in seen.values() if x.name in e.probes), key=lambda x: abs(x.value), default=None)
    if probed is None or abs(probed.value) * noise.old < noise.new / 6:
        by_size = {"size", "typical"} & set(seen)
        return dtype_of(noise, dtype) if by_size else "logits multiplied by something" if set(seen) == {"scale"} else ""
    direction = e.clipped(e.probes[probed.name])
    times = float(((e.clipped(e.new) - e.clipped(e.old)) * direction).sum() / (direction**2).sum())
    return f"{probed.name} x {PROBED**times:.3f}"


def dtype_of(noise: Noise, dtype: str) -> str:
    """The dtype that has errors of the new path's size, where the golden's own has those of the old one's; "" if none,
    or if the golden is float32: any fault could have a size that is far above its own.

    Sizes go with the mantissa: 8 times from float16 to bfloat16. The reference's own size is float32's.
    """
    if dtype not in BITS or dtype == "float32":
        return ""
    if noise.new < FLOOR < noise.old:
        return "float32"
    times = math.log2(max(noise.new, FLOOR) / max(noise.old, FLOOR))
    fits = (name for name, bits in BITS.items() if name != dtype and abs(times - (BITS[dtype] - bits)) < 0.8)
    return next(fits, "")


# == Parting steps ==


@dataclass(frozen=True, slots=True)
class Parted:
    """Whether noise explains that two greedy answers part here.

    gap: nats by which the reference prefers one of the two.   allowed: what noise may move a gap by.
    fault: "" if it does; "model": the reference is too sure for one of the choices; "old", "new": that path, when it
    reads the golden, would not choose what it chose, so another stage chose (or the environment is another one).
    """

    within: bool
    gap: float
    allowed: float
    fault: str = ""


def within_noise(parting: Parting, noise: Noise) -> Parted:
    """Whether a parting step lies within what the site itself measured. No constant decides: a gap of two logits moves
    by the root of two sizes; among n steps that could part the largest is as many sizes as a normal one would be, or
    as the old path's largest errors were."""
    allowed = explained(noise, FLOOR)
    faults = {
        "model": abs(parting.reference[0] - parting.reference[1]),
        "old": parting.old[1] - parting.old[0],
        "new": parting.new[0] - parting.new[1],
    }
    fault = next((name for name, over in faults.items() if not over <= allowed), "")
    return Parted(not fault, faults["model"], allowed, fault)


def within_numbers(noise: Noise) -> float:
    """How far noise moves a log-probability, nats, or a probability as a part of it."""
    return explained(noise, FLOAT32)


def explained(noise: Noise, least: float) -> float:
    """The largest error of so many tokens.   least: of either path, nats."""
    size = max(math.hypot(noise.old, least), math.hypot(noise.new, least))
    reach = math.sqrt(2 * math.log(max(noise.tokens, 20) / 1e-3))  # in sizes
    return math.sqrt(2) * max(size * reach, noise.largest)


def penalised(logprob: float, normalizer: float, penalty: float) -> float:
    """A log-probability after a repetition penalty on its logit (up to the step's own constant). For a backend that
    does not say its normalizer the reference's does: they differ by rounding."""
    logit = logprob + normalizer
    return (logit / penalty if logit > 0 else logit * penalty) - normalizer
