"""The judge's instruments, as parity.diff uses them: the one module here that imports parity.judge.

rows = rows_between(a, b)               A's greedy ids and B's, each forced on both paths
scores = read_rows(engine, rows)        what a loaded path makes of them
read_truth(folder, dtype, rows)         what float32 makes of them, and each direction a fault has
judge_paths(...)                        the referee's verdict
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.diff import partings
from parity.diff.plants import fp8, int8, rewritten
from parity.judge.numerics import probes, reading, referee
from parity.judge.numerics.errors import Errors, Reading, errors_of
from parity.judge.numerics.estimates import Estimate

Given = reading.TokenRow
Scored = reading.Scored
CannotJudge = reading.CannotJudge
Moved = Callable[[Any, float], contextlib.AbstractContextManager[Any]]

ALIKE = (
    0.6  # correlation of B - A with a fault's direction; one int8 run of the real model gave 0.79
)
FITS = 6  # readings of a probe, to find its factor
FARTHEST = 3.0  # logarithm of a factor that is looked for
SURE = 0.01  # 1 - p below it counts as it, as in the referee


@dataclass(frozen=True, slots=True)
class Answers:
    """What a path answered, greedily, a row per prompt.   texts: rendered prompts, "" where raw
    text was given.   prompts, ids: tokens.   eos: ids that end a row."""

    dtype: str
    eos: tuple[int, ...]
    texts: tuple[str, ...]
    prompts: tuple[tuple[int, ...], ...]
    ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """The reference of some rows.   dtype: float32, or the path's own where float32 does not fit.
    said: which, in words.   probes: the same with one thing moved by 1 %."""

    dtype: str
    said: str
    scores: list[Scored]
    probes: dict[str, list[Scored]]


@dataclass(frozen=True, slots=True)
class Judged:
    """outcome: "rounding", "fault" or "cannot tell".   said: why, one line.   like: which fault it
    looks like, or "".   sees: nats of logit, the smallest fault that would have been seen.
    rounding: nats of logit, how far A is from float32.   is_shift: seen over all tokens.
    open: where it cannot tell, what was seen and what would decide it."""

    outcome: str
    said: str
    like: str
    sees: float
    rounding: float
    is_shift: bool = False
    open: str = ""


def pairs_of(a: Answers, b: Answers) -> list[partings.Pair]:
    rows = zip(a.prompts, a.ids, b.ids)
    return [partings.Pair(prompt, old, new) for prompt, old, new in rows]


def parting_steps(a: Answers, b: Answers) -> list[int | None]:
    """The first greedy step at which each row parts; None for equal answers."""
    return [pair.step for pair in pairs_of(a, b)]


def rows_between(a: Answers, b: Answers) -> list[Given]:
    """A's answers behind their prompts, then those of B's that differ."""
    pairs = pairs_of(a, b)
    rows = [partings.given_pair(pair) for pair in pairs]
    rows += [reading.token_row(p.prompt, p.new) for p in pairs if p.step is not None]
    return rows


def read_rows(
    engine: Any, rows: Sequence[Given], what: str, adapter: str | None = None
) -> list[Scored]:
    return reading.read_engine(engine, rows, what=what, adapter=adapter)


@contextlib.contextmanager
def planted(model: Any, fault: str, amount: float) -> Iterator[None]:
    """A loaded transformers model with a fault, for as long as the block lasts. Raises ValueError
    where the model has nothing of that name."""
    if not fault:
        yield
    elif fault in ROUNDINGS:
        with rewritten(model, ROUNDINGS[fault]):
            yield
    elif fault == "matrix":
        with moved_matrix(model, int(amount)):
            yield
    else:
        with PROBES[fault](model, amount) as is_there:
            if not is_there:
                raise ValueError(f"hf:{fault}: this model has none to move. Plant another fault.")
            yield


def decoder_of(model: Any) -> Any:
    """The module that has `layers` and `norm`. Raises ValueError for a model built otherwise."""
    body = model.get_decoder()
    if not (hasattr(body, "layers") and hasattr(body, "norm")):
        kind = type(model).__name__
        raise ValueError(
            f"layers of {kind}: no decoder with layers and a norm. Compare without them."
        )
    return body


@contextlib.contextmanager
def moved_matrix(model: Any, layer: int) -> Iterator[None]:
    """The last matrix of one decoder layer x 1.05. Raises ValueError where there is none."""
    import torch

    layers = decoder_of(model).layers
    if not 0 <= layer < len(layers):
        raise ValueError(f"hf:matrix={layer}: this model has layers 0 to {len(layers) - 1}.")
    weight = [w for w in layers[layer].parameters() if w.dim() >= 2][-1]
    old = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1.05)
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(old)


ROUNDINGS = {"int8": int8, "fp8": fp8}
PROBES: Mapping[str, Moved] = {
    "attention": probes.moved_attention,
    "logits": probes.moved_logits,
    "theta": probes.moved_theta,
}


def read_truth(folder: str, dtype: str, rows: Sequence[Given], adapter: str = "") -> Truth:
    """Float32 where it fits, else transformers in `dtype`. Raises CannotJudge if none does."""
    source = reading.reference_source(folder, dtype)
    with reading.Reader(folder, source.dtype, adapter=adapter) as reader:
        scores = reader.read(rows)
        probes = reading.read_probes(reader, rows) if source.exact else {}
    return Truth(source.dtype, source.note, scores, probes)


def row_of(prompt: Sequence[int], ids: Sequence[int], others: Sequence[tuple[int, int]]) -> Given:
    """An answer behind its prompt.   others: (step, id) pairs that are read, too."""
    asked = tuple((len(prompt) + step, token) for step, token in others)
    return reading.token_row(prompt, ids, with_prompt=False, others=asked)


def read_exact(folder: str, rows: Sequence[Given]) -> list[Scored]:
    """By plain transformers in float32."""
    with reading.Reader(folder, "float32") as reader:
        return reader.read(rows)


def judge_paths(
    a: Answers,
    b: Answers,
    rows: Sequence[Given],
    read: tuple[list[Scored], list[Scored]],
    truth: Truth,
) -> Judged:
    """Is B - A rounding? A's own errors against the truth are the size of rounding."""
    old, new = read
    source = reading.Source(truth.dtype, truth.said)
    reference = reading.Reference(source, truth.scores, old, truth.probes)
    readings = reading.readings(reference, new, rows)
    verdict = referee.judge(readings, dtype=a.dtype, exact=source.exact)
    if not source.exact:
        said = f"{truth.said}; no noise floor of A is known"
        return Judged("cannot tell", said, "", verdict.sees, verdict.noise.old, open=said)
    found = tuple(partings.pair_results(pairs_of(a, b), reference, new, verdict.noise))
    outcome = partings.outcome_of(found, verdict)
    faults = [f"row {k} {row}" for k, row in enumerate(found) if row.is_fault]
    said = faults[0] if faults and verdict.outcome != "shifted" else str(verdict)
    return Judged(
        outcome,
        said,
        verdict.like,
        verdict.sees,
        verdict.noise.old,
        is_shift=verdict.outcome == "shifted",
        open=undecided(verdict, found, readings) if outcome == "cannot tell" else "",
    )


def undecided(
    verdict: referee.Verdict, rows: Sequence[partings.PairResult], readings: Sequence[Reading]
) -> str:
    """What a measurement that cannot tell has seen, and what would decide it."""
    if verdict.outcome != "cannot tell":
        unread = next(k for k, row in enumerate(rows) if row.is_unread)
        return f"row {unread} {rows[unread]}; give shorter prompts, or fewer --tokens"
    each = max(verdict.noise.tokens / len(rows), 1.0)
    prompts = math.ceil(verdict.more / each)
    more = f"about {prompts} more prompts like these would decide it"
    if not verdict.estimates:
        return f"only {verdict.noise.tokens} tokens at which the model is unsure; {more}"
    e = errors_of(readings)
    seen = [suspicion(x, e) for x in verdict.estimates if is_beyond(x)]
    if seen:
        return f"{seen[0]}, by a fault or by chance; {more}"
    if verdict.worst is not None:
        return f"all is inside what is allowed, but not surely: {verdict.worst}; {more}"
    sizes = f"{verdict.sees:.1e} nats, where rounding is {verdict.noise.old:.1e}"
    return f"nothing was seen, but only a fault of {sizes}, would have been; {more}"


def is_beyond(x: Estimate) -> bool:
    """Whether the value itself lies beyond its margin, however surely."""
    return x.outcome == "cannot tell" and not x.least <= x.value <= x.most


def suspicion(x: Estimate, e: Errors) -> str:
    """One statistic that lies beyond its margin, with what it looks like."""
    if x.least >= 0:
        size = f"{x.value:.2f} ({x.low:.2f} to {x.high:.2f})"
        return f"the {x.name} of errors is {size} where {x.least:g} to {x.most:g} are allowed"
    moved = f"{x.value:.2f} ({x.low:.2f} to {x.high:.2f}) of rounding"
    said = f"{x.name} is off by {moved} where {x.most:g} is allowed"
    if x.name not in e.probes:
        return said
    times = probes.PROBED ** referee.times_along(e, e.probes[x.name])
    return f"{said}, like {x.name} x {times:.3f}"


def likeness(
    folder: str,
    rows: Sequence[Given],
    truth: Truth,
    read: tuple[list[Scored], list[Scored]],
    like: str,
    adapter: str = "",
) -> str:
    """What a shift looks like: the fault whose direction B - A has, or what the referee names, or
    a probe that was moved further than the referee looks."""
    old, new = read
    base = logprobs_of(truth.scores)
    worth = np.hypot(-np.expm1(np.minimum(base, 0.0)), SURE)
    moved = (logprobs_of(new) - logprobs_of(old)) / worth
    best, name = ALIKE, like

    def direction_of(scores: Sequence[Scored]) -> Any:
        return (logprobs_of(scores) - base) / worth

    with reading.Reader(folder, "float32", adapter=adapter) as reader:
        for fault in ROUNDINGS:
            with planted(reader.model, fault, 0.0):
                direction = direction_of(reader.read(rows, what=f"fault: {fault}"))
            alike = correlation(moved, direction)
            if alike > best:
                best, name = alike, f"{fault} weights (correlation {alike:.2f})"
        if name:
            return name
        probed = {probe: direction_of(scores) for probe, scores in truth.probes.items()}
        probe = most_alike(moved, probed)
        if not probe:
            return ""

        def moved_by(factor: float) -> Any:
            with probes.PROBES[probe](reader.model, factor):
                return direction_of(reader.read(rows, what=f"{probe} x {factor:.3f}"))

        return named_factor(probe, fitted_factor(moved, probed[probe], moved_by))


def most_alike(moved: Any, directions: Mapping[str, Any]) -> str:
    """The probe that B - A goes along with, in either way, or ""."""
    alike = {name: abs(correlation(moved, way)) for name, way in directions.items()}
    best = max(alike, key=alike.__getitem__, default="")
    return best if best and alike[best] > ALIKE else ""


def fitted_factor(moved: Any, direction: Any, moved_by: Callable[[float], Any]) -> float:
    """By what factor a probe moves as far as B - A: what is far is not in proportion to 1 %."""
    factor = probes.PROBED
    for _ in range(FITS):
        keep = np.isfinite(moved) & np.isfinite(direction)
        square = float((direction[keep] ** 2).sum())
        times = float((moved[keep] * direction[keep]).sum()) / max(square, 1e-300)
        logarithm = math.log(factor) * times
        factor = math.exp(max(-FARTHEST, min(FARTHEST, logarithm)))
        direction = moved_by(factor)
    return factor


def named_factor(probe: str, factor: float) -> str:
    said = f"{probe} x {factor:.3f}"
    return f"{said}, as temperature {1 / factor:.2f} does" if probe == "logits" else said


def correlation(a: Any, b: Any) -> float:
    """Of two columns of errors, about zero; steps that a path did not read are left out."""
    keep = np.isfinite(a) & np.isfinite(b)
    size = float(np.sqrt((a[keep] ** 2).sum() * (b[keep] ** 2).sum()))
    return float((a[keep] * b[keep]).sum()) / size if size else 0.0


def logprobs_of(scores: Sequence[Scored]) -> Any:
    """All tokens' log-probabilities, [tokens], NaN where a step was not read."""
    values = [np.nan if v is None else v for one in scores for v in one.logprobs]
    return np.array(values, dtype=np.float64)
