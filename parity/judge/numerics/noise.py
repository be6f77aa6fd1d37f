"""Whether rounding of a measured size explains one step at which answers part, or one number.

No constant decides: a gap of two logits moves by the root of two sizes, and among n steps that
could part the largest is as many sizes as a normal one would be, or as the old path's largest were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from parity.judge.numerics.errors import FLOOR

FLOAT32 = 2e-6  # nats: float32's own rounding, of a path that has no other
FEWEST_STEPS = 20  # steps: noise of fewer is taken for that of so many
BEYOND = 1e-3  # how often the largest error of all steps may lie further out, were it normal

TokenPair = tuple[float, float]  # nats: log-probabilities of (the old id, the new id)


@dataclass(frozen=True, slots=True)
class Noise:
    """How large rounding is at a site, nats of logit: of either path, and the largest of the old
    path's errors.   tokens: those at which the model is unsure enough for it to show."""

    old: float
    new: float
    largest: float
    tokens: int

    def reach(self, least: float) -> float:
        """The largest gap of two logits that it explains, nats.   least: size of either path."""
        size = math.hypot(max(self.old, self.new), least)
        steps = max(self.tokens, FEWEST_STEPS)
        sizes = math.sqrt(2 * math.log(steps / BEYOND))
        return math.sqrt(2) * max(size * sizes, self.largest)

    @property
    def of_gap(self) -> float:
        """How far it moves the gap of two tokens, nats."""
        return self.reach(FLOOR)

    @property
    def of_number(self) -> float:
        """How far it moves a log-probability, nats, or a probability as a part of it."""
        return self.reach(FLOAT32)


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step at which two greedy answers part, as three paths read it. Where a penalty
    stood between the model and the choice, give penalised values."""

    reference: TokenPair
    old: TokenPair
    new: TokenPair


@dataclass(frozen=True, slots=True)
class Parted:
    """Whether noise explains that two greedy answers part here.

    gap: nats by which the reference prefers one of the two.   allowed: what noise may move it by.
    fault: "" if it does. "model": the reference is too sure for one of the choices. "old", "new":
    that path, reading the golden, would not choose what it chose: another stage chose, or the
    environment is another one.
    """

    within: bool
    gap: float
    allowed: float
    fault: Literal["", "model", "old", "new"] = ""


def within_noise(parting: Parting, noise: Noise, times: float = 1) -> Parted:
    """times: as much as is known of it, where that is little."""
    allowed = times * noise.of_gap
    gap = abs(parting.reference[0] - parting.reference[1])
    fault: Literal["", "model", "old", "new"] = ""
    if not gap <= allowed:  # nor if it is not a number
        fault = "model"
    elif not parting.old[1] - parting.old[0] <= allowed:
        fault = "old"
    elif not parting.new[0] - parting.new[1] <= allowed:
        fault = "new"
    return Parted(not fault, gap, allowed, fault)


def penalised(logprob: float, normalizer: float, penalty: float) -> float:
    """A log-probability after a repetition penalty on its logit, up to the step's own constant.
    normalizer: see reading.Scored."""
    logit = logprob + normalizer
    lowered = logit / penalty if logit > 0 else logit * penalty
    return lowered - normalizer
