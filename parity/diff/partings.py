"""Greedy answers of two paths: equal, parted by rounding, or by a fault? The referee decides.

    rows = [given_pair(pair) for pair in pairs]    the old answers, forced; both tokens at a parting
    new = reading.read_engine(engine, rows)        the new path, while its engine is loaded
    engine.close()                                 one model at a time
    reference = reading.read_reference(path, dtype, rows)
    judge_pairs(pairs, rows, reference, new, dtype=dtype).outcome     one of PairsOutcome

Rounding explains a set of answers where the referee finds no shift over all their tokens and every
step at which two answers part lies within the noise that was measured there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parity.goldens.verdict import first_divergence
from parity.judge.numerics import reading, referee
from parity.judge.numerics.noise import Noise, Parted, within_noise
from parity.judge.row import parting_step
from parity.record.events import Ids

PairsOutcome = Literal["same", "rounding", "fault", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of one prompt and of its two greedy answers.   images, placeholder: see
    reading.TokenRow."""

    prompt: Ids
    old: Ids
    new: Ids
    images: tuple[Any, ...] = ()
    placeholder: int | None = None

    @property
    def step(self) -> int | None:
        """The index of the first token that differs, or at which one answer has ended; None for
        equal answers."""
        return first_divergence(self.old, self.new)

    @property
    def candidates(self) -> tuple[int, int] | None:
        """The two tokens at that step; None for equal answers, and where one is the beginning of
        the other."""
        step = parting_step(self.old, self.new)
        return None if step is None else (self.old[step], self.new[step])


@dataclass(frozen=True, slots=True)
class PairResult:
    """What was found of one pair.   step: where it parts.   parted: why, None where that could not
    be read.   ends: one answer is the beginning of the other, which no rounding makes."""

    step: int | None = None
    parted: Parted | None = None
    ends: bool = False

    @property
    def is_fault(self) -> bool:
        return self.ends or (self.parted is not None and not self.parted.within)

    @property
    def is_unread(self) -> bool:
        return self.step is not None and not self.ends and self.parted is None

    def __str__(self) -> str:
        if self.step is None:
            return "same"
        at = f"parts at token {self.step + 1}"
        if self.ends:
            return f"{at}, where one answer ends and the other goes on from the same tokens"
        if self.parted is None:
            return f"{at}, beyond what could be read"
        if self.parted.within:
            return f"{at} by rounding"
        return f"{at}: {FAULTS[self.parted.fault].format(self.parted)}"


FAULTS = {
    "model": "float32 prefers one token by {0.gap:.2f} nats, and rounding explains {0.allowed:.2f}",
    "old": "the model, reading the old answer again, would not have chosen its token",
    "new": "the model, reading the old answer again, would not have chosen the new token",
}


@dataclass(frozen=True, slots=True)
class PairsJudged:
    """Of a set of pairs.   rows: one per pair.   verdict: the referee's, None where nothing
    parts."""

    outcome: PairsOutcome
    rows: tuple[PairResult, ...]
    verdict: referee.Verdict | None = None

    @property
    def why(self) -> str:
        """One sentence: the row that is a fault, or else the referee's words."""
        faults = (f"row {number} {row}" for number, row in enumerate(self.rows) if row.is_fault)
        return next(faults, str(self.verdict or "every token is the same"))


def given_pair(pair: Pair) -> reading.TokenRow:
    """The old answer behind its prompt, with both candidates of the step at which the new one parts
    from it."""
    asked: tuple[tuple[int, int], ...] = ()
    if pair.candidates is not None and pair.step is not None:
        position = len(pair.prompt) + pair.step
        asked = tuple((position, token) for token in pair.candidates)
    return reading.token_row(
        pair.prompt, pair.old, others=asked, images=pair.images, placeholder=pair.placeholder
    )


def judge_pairs(
    pairs: Sequence[Pair],
    rows: Sequence[reading.TokenRow],
    reference: reading.Reference,
    new: Sequence[reading.Scored],
    *,
    dtype: str,
) -> PairsJudged:
    """rows: given_pair of each pair.   reference, new: what was read of them.   dtype: the old
    path's."""
    if all(pair.step is None for pair in pairs):
        return PairsJudged("same", (PairResult(),) * len(pairs))
    readings = reading.readings(reference, new, rows)
    verdict = referee.judge(readings, dtype=dtype, exact=reference.source.exact)
    found = tuple(pair_results(pairs, reference, new, verdict.noise))
    return PairsJudged(outcome_of(found, verdict), found, verdict)


def pair_results(
    pairs: Sequence[Pair], reference: reading.Reference, new: Sequence[reading.Scored], noise: Noise
) -> Iterator[PairResult]:
    for pair, truth, old, scored in zip(pairs, reference.truth, reference.old, new):
        if pair.step is None:
            yield PairResult()
        elif pair.candidates is None:
            yield PairResult(pair.step, ends=True)
        else:
            yield PairResult(pair.step, parted_at(truth, old, scored, noise))


def parted_at(
    truth: reading.Scored, old: reading.Scored, new: reading.Scored, noise: Noise
) -> Parted | None:
    """None where the step lies beyond the engine's window."""
    try:
        return within_noise(reading.parting_of(truth, old, new), noise)
    except reading.CannotJudge:
        return None


def outcome_of(rows: Sequence[PairResult], verdict: referee.Verdict) -> PairsOutcome:
    """A referee that measured nothing (no estimates) has no noise that a step could be beyond."""
    if any(row.ends for row in rows) or verdict.outcome == "shifted":
        return "fault"
    if verdict.estimates and any(row.is_fault for row in rows):
        return "fault"
    if verdict.outcome == "cannot tell" or any(row.is_unread for row in rows):
        return "cannot tell"
    return "rounding"
