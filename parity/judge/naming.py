"""Causes with their sentence out of the table of causes."""

from __future__ import annotations

from parity.judge.stages.stage import Broken
from parity.verdict import CAUSES, Cause, Certainty, Difference


def named_cause(name: str, certainty: Certainty, sentence: str, proof: str = "") -> Cause:
    """sentence: what was seen, behind the cause's own words."""
    return Cause(name, certainty, f"{CAUSES[name]}: {sentence}", proof)


def difference_cause(name: str, certainty: Certainty, difference: Difference, proof: str) -> Cause:
    """A cause that a difference shows."""
    return named_cause(name, certainty, difference.sentence(), proof)


def broken_cause(broken: Broken, where: str = "") -> Cause:
    """A cause that an invariant shows.   where: behind the proof."""
    proof = f"the invariant '{broken.law}' is broken by the new side alone{where}"
    return named_cause(broken.cause, "likely", f"row {broken.row}: {broken.sentence}", proof)
