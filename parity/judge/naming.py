"""Causes with their words."""

from __future__ import annotations

from parity.goldens.causes import meaning
from parity.goldens.verdict import Cause, Certainty, Difference
from parity.judge.stages.stage import Broken


def named_cause(name: str, certainty: Certainty, sentence: str, proof: str = "") -> Cause:
    """sentence: what was seen, behind the cause's own words."""
    return Cause(name, certainty, f"{meaning(name)}: {sentence}", proof)


def difference_cause(certainty: Certainty, difference: Difference, proof: str = "") -> Cause:
    """A cause that a difference is."""
    return named_cause(difference.name, certainty, difference.sentence(), proof)


def broken_cause(broken: Broken, where: str = "") -> Cause:
    """A cause that an invariant shows.   where: behind the proof."""
    proof = f"the invariant '{broken.law}' is broken by the new side alone{where}"
    return named_cause(broken.cause, "likely", f"row {broken.row}: {broken.sentence}", proof)
