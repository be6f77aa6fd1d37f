"""How large a path's errors are, from the greedy tokens that it chose alone: for files of answers.

    read = read_choices(path, "bfloat16", pairs)   the old answers, read in float32 and bfloat16
    judged = judge_choices(read, pairs)            sizes of both paths' errors, in units of rounding

At each step float32 prefers one of two tokens by a margin of m nats of logit. A path whose errors
of that margin have the size s chooses that token with the probability Phi(m / s), and s is the
value under which its choices are likeliest (a probit regression without a constant). Errors of
rounding have the size that plain transformers has in that dtype; a fault adds to them. Where more
than two tokens compete the size comes out larger, so the margins are wider than the referee's.
SmolLM2-135M in bfloat16, 40 answers of 64 tokens, transformers first: 1.6 (1.2 to 1.8) times that
size of the first, then 1.2 (0.8 to 1.5) for vLLM and 2.6 (1.8 to 3.1) for int8 weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.diff.partings import Pair, PairResult, PairsOutcome
from parity.judge.numerics import reading, referee
from parity.judge.numerics.errors import FLOOR, Array, robust_size
from parity.judge.numerics.noise import Noise, Parting, within_noise
from parity.record.events import Ids

FAULT = 1.5  # times rounding, surely above it. Clean at least 0.8 to 1.2, int8 weights 1.8 to 2.1
ROUNDING = 2.0  # times rounding, surely below it. Clean at most 1.5 to 1.8, int8 weights 3.1
ALARM_DROP = 5.4  # of the log-likelihood, at the ends of an interval of 99.9 %: chi-square / 2
HOLDS_DROP = 1.35  # of 90 %: one-sided, 5 %
SMALLEST, LARGEST = 0.05, 20.0  # sizes that are tried, times rounding
TRIED = 240
NEAR = 20.0  # sizes: a margin counts as this large at most


# == What is read ==


@dataclass(frozen=True, slots=True)
class Choices:
    """The old answers, read again.

    margins: per answer [tokens], by how much float32 prefers the answer's token to the best other
    one, nats.   errors: the same, of plain transformers in the dtype, less those of float32.
    noise: of that dtype, over all tokens.
    partings: per answer, of the two tokens where the new one parts.
    """

    margins: tuple[Array, ...]
    errors: tuple[Array, ...]
    noise: Noise
    partings: tuple[Parting | None, ...]


def read_choices(path: str, dtype: str, pairs: Sequence[Pair]) -> Choices:
    """Load a checkpoint in float32, read, close, and again in `dtype`. Raises CannotJudge."""
    source = reading.reference_source(path, dtype)
    if not source.exact:
        raise reading.CannotJudge(
            f"{source.note}. Judging answers alone needs the model in float32"
        )
    with reading.Reader(path, "float32") as reader:
        refuse_pictures(reader, pairs)
        rows = [given_choices(pair, runners_up(reader, pair)) for pair in pairs]
        truth = reader.read(rows)
    with reading.Reader(path, dtype) as reader:
        old = reader.read_as_old(rows, dtype)
    return choices_of(pairs, rows, reading.Reference(source, truth, old, {}), dtype)


def choices_of(
    pairs: Sequence[Pair],
    rows: Sequence[reading.TokenRow],
    reference: reading.Reference,
    dtype: str,
) -> Choices:
    """rows: given_choices of each pair, as the reference read them."""
    readings = reading.readings(reference, reference.old, rows)
    margins = []
    errors = []
    partings = []
    for pair, truth, old in zip(pairs, reference.truth, reference.old):
        exact = margins_of(pair, truth)
        margins.append(exact)
        errors.append(margins_of(pair, old) - exact)
        partings.append(parting_by_reference(pair, truth, old))
    noise = referee.judge(readings, dtype=dtype).noise
    return Choices(tuple(margins), tuple(errors), noise, tuple(partings))


def refuse_pictures(reader: reading.Reader, pairs: Sequence[Pair]) -> None:
    placeholder = getattr(reader.model.config, "image_token_id", None)
    if placeholder is not None and any(placeholder in pair.prompt for pair in pairs):
        raise reading.CannotJudge("the prompts have pictures, which files of answers do not hold")


def runners_up(reader: reading.Reader, pair: Pair) -> Ids:
    """At each step of the old answer the best token that is not the answer's."""
    import torch

    ids = torch.tensor([[*pair.prompt, *pair.old]], device=reader.device)
    answer = ids[0, len(pair.prompt) :, None]  # [tokens, 1]
    with torch.inference_mode():
        logits = reader.model(input_ids=ids, use_cache=False).logits[0]
    before = logits[len(pair.prompt) - 1 : -1]  # [tokens, vocabulary]
    best = before.scatter(1, answer, -math.inf).argmax(-1)
    return tuple(best.tolist())


def given_choices(pair: Pair, others: Ids) -> reading.TokenRow:
    """others: of each step of the old answer. Behind them stand the two tokens where the new answer
    parts."""
    asked = list(enumerate(others, len(pair.prompt)))
    if pair.candidates is not None and pair.step is not None:
        position = len(pair.prompt) + pair.step
        asked += [(position, token) for token in pair.candidates]
    return reading.token_row(pair.prompt, pair.old, others=tuple(asked))


def margins_of(pair: Pair, scored: reading.Scored) -> Array:
    tokens = len(pair.old)
    chosen = np.array(scored.logprobs[-tokens:], dtype=np.float64)
    return chosen - np.array(scored.others[:tokens], dtype=np.float64)


def parting_by_reference(pair: Pair, truth: reading.Scored, old: reading.Scored) -> Parting | None:
    """What the new path makes of the step is not known: the reference stands for it."""
    if pair.candidates is None:
        return None
    first, second = truth.others[-2:]
    before, after = old.others[-2:]
    if first is None or second is None or before is None or after is None:
        return None
    return Parting((first, second), (before, after), (first, second))


# == Sizes ==


@dataclass(frozen=True, slots=True)
class Size:
    """Of a path's errors, in units of rounding.   low: surely above it (99.9 %).
    high: surely below it (95 %).   steps: choices that could have been others."""

    value: float
    low: float
    high: float
    steps: int

    @property
    def outcome(self) -> PairsOutcome:
        if self.low > FAULT:
            return "fault"
        return "rounding" if self.high < ROUNDING else "cannot tell"

    def __str__(self) -> str:
        beyond = ">" if self.high >= LARGEST * 0.99 else ""
        interval = f"({self.low:.1f} to {beyond}{self.high:.1f})"
        return f"{self.value:.1f} {interval} times as large as those of rounding"


def size_of(margins: Array, chosen: Array, unit: float) -> Size:
    """margins: of two tokens, nats.   chosen: whether the path took the one that a positive margin
    prefers.   unit: the size of rounding, nats."""
    import torch

    near = np.clip(margins / unit, -NEAR, NEAR)
    signed = torch.tensor(np.where(chosen, near, -near))
    tried = np.geomspace(SMALLEST, LARGEST, TRIED)
    scaled = signed[None] / torch.tensor(tried)[:, None]  # [sizes, steps]
    likelihoods = torch.special.log_ndtr(scaled).sum(1).numpy()
    best = int(likelihoods.argmax())
    alarm = tried[likelihoods > likelihoods[best] - ALARM_DROP]
    holds = tried[likelihoods > likelihoods[best] - HOLDS_DROP]
    steps = int((np.abs(near) < NEAR / 4).sum())
    low = float(alarm[0])
    high = float(holds[-1])
    return Size(float(tried[best]), low, high, steps)


# == The verdict ==


@dataclass(frozen=True, slots=True)
class ChoicesJudged:
    """old, new: the sizes of both paths' errors.   rows: one per pair.
    unit: the size of rounding, nats of logit."""

    outcome: PairsOutcome
    old: Size
    new: Size
    rows: tuple[PairResult, ...]
    unit: float


def judge_choices(read: Choices, pairs: Sequence[Pair]) -> ChoicesJudged:
    """A fault where either path's errors are surely larger than rounding, or an answer parts where
    no rounding of the measured size turns float32's choice. Of a few tokens no size is known, and
    nothing is said."""
    rows = tuple(judged_row(*each, read.noise) for each in zip(pairs, read.partings))
    margins = np.concatenate(read.margins)
    unit = rounding_of(read, margins)
    old = size_of(np.abs(margins), margins > 0, unit)
    shared = [common_steps(pair) for pair in pairs]
    followed = [margin[: len(same)] for margin, same in zip(read.margins, shared)]
    new = size_of(np.concatenate(followed), np.concatenate(shared), unit)
    is_measured = read.noise.tokens >= referee.LEAST
    outcome = outcome_of_choices(rows, old, new) if is_measured else "cannot tell"
    return ChoicesJudged(outcome, old, new, rows, unit)


def rounding_of(read: Choices, margins: Array) -> float:
    """The size of rounding at the steps where two tokens are close, nats of logit."""
    errors = np.concatenate(read.errors)
    reach = NEAR * max(read.noise.old, FLOOR)
    close = np.abs(margins) < reach
    return max(robust_size(errors[close]), FLOOR)


def judged_row(pair: Pair, parting: Parting | None, noise: Noise) -> PairResult:
    if pair.step is None or parting is None:
        return PairResult(pair.step, ends=pair.step is not None and pair.candidates is None)
    return PairResult(pair.step, within_noise(parting, noise))


def common_steps(pair: Pair) -> Array:
    """Whether the new path took the old one's token, at each step up to the one where they part."""
    if pair.candidates is None or pair.step is None:
        return np.ones(min(len(pair.old), len(pair.new)), bool)
    return np.append(np.ones(pair.step, bool), False)


def outcome_of_choices(rows: Sequence[PairResult], old: Size, new: Size) -> PairsOutcome:
    sizes = (old.outcome, new.outcome)
    if "fault" in sizes or any(row.is_fault for row in rows):
        return "fault"
    if "cannot tell" in sizes or any(row.is_unread for row in rows):
        return "cannot tell"
    return "rounding"
