"""Do two paths differ by more than rounding? Rounding has a measured size: the old path's distance
from float32.

    verdict = judge(rows, dtype="bfloat16")   rows: errors.Reading, the same tokens on three paths
    verdict.outcome                           "holds", "shifted" or "cannot tell"

A path that only rounds in another way has errors of the same size and no bias. "holds" needs size
and bias surely inside their margins, no alarm anywhere, and enough rows for a fault of SEEN_TIMES
rounding to have been one. "cannot tell" says how many tokens it lacks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.judge.numerics.errors import FLOOR, Array, Errors, Reading, errors_of, robust_size
from parity.judge.numerics.estimates import (
    EXACT,
    HOLDS,
    INEXACT,
    LEVEL,
    Estimate,
    Estimates,
    Interval,
    Margins,
    StatisticOutcome,
    estimates_of,
    gross,
    solve,
    t_quantile,
)
from parity.judge.numerics.noise import Noise
from parity.judge.numerics.probes import PROBED

LEAST = 20  # unsure tokens, below which nothing is said
SEEN_TIMES = 2.0  # rounding: if not even such a fault would have been an alarm, nothing holds
MOST_TIMES = 100.0  # as many tokens as there are: more are never asked for
MANTISSA_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}  # with the implicit one
NAMED = 1 / 6  # of the new errors: a probe that explains less names nothing


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a site's numerics are.

    rows: clusters with unsure tokens.
    sees: the smallest fault that would have been an alarm, nats of logit, root mean square.
    more: tokens that are missing, for "cannot tell".
    like: what a shift looks like: a dtype, or a probe and by what factor it would have to move.
    exact: against float32, or only against plain transformers in the golden's own dtype.
    beyond: rows that were read beyond the golden's.   missing: what would decide it, in calls.
    """

    outcome: StatisticOutcome
    estimates: tuple[Estimate, ...]
    noise: Noise
    rows: int
    sees: float
    more: int = 0
    like: str = ""
    exact: bool = True
    beyond: str = ""
    missing: str = ""

    @property
    def worst(self) -> Estimate | None:
        """The statistic that decided, if it did not hold."""
        if self.outcome == "holds":
            return None
        return next((e for e in self.estimates if e.outcome == self.outcome), None)

    @property
    def seen(self) -> tuple[Estimate, ...]:
        """Every statistic that is an alarm."""
        return tuple(e for e in self.estimates if e.outcome == "shifted")

    @property
    def is_sure(self) -> bool:
        """Whether a bias, and what goes along a probe, lie surely inside their margins."""
        signed = [e for e in self.estimates if e.least < 0]
        return all(e.least < e.low and e.high < e.most for e in signed)

    @property
    def cause(self) -> str:
        """The cause of a shift, or "". Only a finer dtype makes errors smaller; larger ones may
        have a coarser one's size by chance, as int8 weights can: `like` says so, and it is no
        cause."""
        if self.outcome != "shifted":
            return ""
        is_finer = self.like in MANTISSA_BITS and self.noise.new < self.noise.old
        return "model.dtype" if is_finer else "numeric.shift"

    @property
    def why_blind(self) -> str:
        if math.isinf(self.sees):
            return f"at least {LEAST} unsure tokens, of two rows, are needed to say anything"
        return f"only a fault of {self.sees:.1e} nats would have been seen"

    def __str__(self) -> str:
        against = "" if self.exact else ", against plain transformers in the same dtype"
        beyond = f", with {self.beyond}" if self.beyond else ""
        tokens = f"{self.noise.tokens} unsure tokens of {self.rows} rows{beyond}{against}"
        rounding = f"rounding {nats(self.noise.old)} nats before, {nats(self.noise.new)} now"
        measured = f"{tokens}; {rounding}"
        if self.outcome == "holds":
            return (
                f"holds: {measured}; a fault of {self.sees:.1e} nats or more would have been seen"
            )
        if self.outcome == "cannot tell":
            return self._undecided(f"{self.rows} rows{beyond}{against}")
        like = f"; like {self.like}" if self.like else ""
        return f"shifted: {self.worst}; {measured}{like}"

    def _undecided(self, rows: str) -> str:
        count = f"{self.noise.tokens:,} tokens of {rows} were read at which the model is not sure"
        only = "only these show rounding"
        size = f"rounding moves a logit by {nats(self.noise.old)} (a unit of log-probability)"
        why = self.worst or self.why_blind
        missing = self.missing or f"{self.more} more answer tokens, of other rows, decide it"
        return f"cannot tell rounding from a fault: {missing}; {count} ({only}), {size}; {why}"


def nats(size: float) -> str:
    return f"{size:.1e}" if size > 1e-12 else "0"


def judge(rows: Sequence[Reading], *, dtype: str, exact: bool = True) -> Verdict:
    """A site's numerics, from all its tokens at once.

    dtype: the golden's.   exact: whether `reference` is float32; else it is plain transformers
    in that dtype, and `old` the same with another attention (see reading.reference_source).
    """
    return judge_errors(errors_of(rows), dtype=dtype, exact=exact)


def judge_errors(e: Errors, *, dtype: str, exact: bool = True) -> Verdict:
    """A site's numerics, from the errors of its tokens: by rows, and where they are too few, a
    gross fault by single tokens.   dtype, exact: see `judge`."""
    verdict = verdict_by_rows(e, dtype=dtype, exact=exact)
    if verdict.outcome != "cannot tell" or verdict.noise.tokens < LEAST:
        return verdict
    grown = gross(e, EXACT if exact else INEXACT)
    if grown.outcome != "shifted":
        return verdict
    like = dtype_of(verdict.noise, dtype if exact else "")
    seen = (grown, *verdict.estimates)
    return dataclasses.replace(verdict, outcome="shifted", estimates=seen, more=0, like=like)


def verdict_by_rows(e: Errors, *, dtype: str, exact: bool) -> Verdict:
    """From what every row says, for tokens of a row may err together."""
    allowed = EXACT if exact else INEXACT
    noise = noise_of(e)
    count = len(set(e.cluster[e.is_open].tolist()))
    if count < 2 or noise.tokens < LEAST:
        more = max(noise.tokens, 200)
        return Verdict("cannot tell", (), noise, count, math.inf, more, exact=exact)
    found = estimates_of(e, allowed)
    sees = smallest_seen(found.interval, allowed, noise)
    outcome = outcome_of_estimates(found, is_blind=sees > SEEN_TIMES * e.rounding)
    more = 0
    like = ""
    if outcome == "cannot tell":
        more = missing_tokens(found, noise.tokens, count)
    elif outcome == "shifted":
        like = resemblance(e, found, noise, dtype if exact else "")
    return Verdict(outcome, found.all, noise, count, sees, more, like, exact)


def noise_of(e: Errors) -> Noise:
    old = e.old[e.is_open]
    new = e.new[e.is_open]
    largest = float(np.quantile(np.abs(old), 0.999)) if len(old) else 0.0  # a single flip aside
    return Noise(robust_size(old), robust_size(new), largest, len(old))


def outcome_of_estimates(found: Estimates, *, is_blind: bool) -> StatisticOutcome:
    """is_blind: whether a fault of SEEN_TIMES times rounding would have passed."""
    outcomes = [estimate.outcome for estimate in found.all]
    if "shifted" in outcomes:
        return "shifted"
    return "cannot tell" if is_blind or "cannot tell" in outcomes else "holds"


def smallest_seen(size: Interval, margins: Margins, noise: Noise) -> float:
    """An independent fault of this root mean square, nats of logit, puts the ratio of sizes beyond
    its margin and its interval."""
    beyond = max(math.log(margins.size) + size.holds, size.alarm)
    rounding = math.hypot(noise.old, FLOOR)
    grown = math.expm1(min(2 * beyond, 100.0))  # the fault's square, in those of rounding
    return rounding * math.sqrt(grown)


def missing_tokens(found: Estimates, tokens: int, rows: int) -> int:
    """About how many more tokens decide, if the values stay: until one lies surely beyond its
    margin, where a value does, else until all lie surely inside."""
    size = found.size
    i = found.interval
    df = rows - 1
    seen = 0.5 * math.log1p(SEEN_TIMES**2)  # by how much such a fault grows the log of the ratio
    beyond = []
    inside = [growth(i.alarm / seen, LEVEL, df)]
    if size.outcome != "holds":
        outside = math.log(max(size.value / size.most, size.least / size.value))
        needed = growth(i.holds / abs(outside), 2 * HOLDS, df)
        if outside > 0:
            significant = growth(i.alarm / abs(i.value), LEVEL, df)
            beyond.append(max(needed, significant))
        inside.append(needed)
    for other in found.others:
        if other.least < 0 and other.outcome == "cannot tell":
            outside = abs(other.value) - other.most
            width = other.high - other.value
            needed = growth(width / abs(outside), 2 * HOLDS, df)
            if outside > 0:
                beyond.append(needed)
            inside.append(needed)
    times = min(beyond) if beyond else max(inside)
    return max(1, math.ceil(tokens * (times - 1)))


def growth(narrower: float, level: float, df: float) -> float:
    """How many times as many rows make Student's interval so many times narrower; of few rows the
    quantile falls, too."""

    def still_needed(times: float) -> float:
        quantile = t_quantile(level, df * times)
        width = narrower * quantile / t_quantile(level, df)
        return width**2 / times

    return min(solve(still_needed, 1.0), MOST_TIMES)


def resemblance(e: Errors, found: Estimates, noise: Noise, dtype: str) -> str:
    """What a shift looks like: the probe that explains most, and by what factor; else the dtype
    that has errors of this size."""
    shifted = [x for x in found.all if x.outcome == "shifted"]
    probed = [x for x in shifted if x.name in e.probes]
    best = max(probed, key=lambda x: abs(x.value), default=None)
    if best is not None and abs(best.value) * noise.old >= noise.new * NAMED:
        factor = PROBED ** times_along(e, e.probes[best.name])
        return f"{best.name} x {factor:.3f}"
    names = {x.name for x in shifted}
    if not names.isdisjoint({"size", "typical"}):
        return dtype_of(noise, dtype)
    return "logits multiplied by something" if names == {"scale"} else ""


def times_along(e: Errors, direction: Array) -> float:
    """How many times the probe's own step the new errors lie along it."""
    clipped = e.clipped(direction)
    moved = e.clipped(e.new) - e.clipped(e.old)
    return float((moved * clipped).sum() / (clipped**2).sum())


def dtype_of(noise: Noise, dtype: str) -> str:
    """The dtype that has errors of the new path's size where the golden's has those of the old
    one's, or "": sizes go with the mantissa, 8 times from float16 to bfloat16. Of a float32 golden
    any fault could have a size far above its own; the reference's own size is float32's."""
    if dtype not in MANTISSA_BITS or dtype == "float32":
        return ""
    if noise.new < FLOOR < noise.old:
        return "float32"
    times = max(noise.new, FLOOR) / max(noise.old, FLOOR)
    bits_lost = math.log2(times)
    for name, bits in MANTISSA_BITS.items():
        fewer = MANTISSA_BITS[dtype] - bits
        if name != dtype and abs(bits_lost - fewer) < 0.8:
            return name
    return ""
