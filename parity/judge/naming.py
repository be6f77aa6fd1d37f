"""What names a cause: the first rule that answers, and its sentence in the table of causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from parity.goldens.verdict import CAUSES, Cause, Certainty, Difference
from parity.judge.stages.stage import Broken

Subject = TypeVar("Subject")
Answer = TypeVar("Answer")


def first_answer(
    rules: Iterable[Callable[[Subject], Answer | None]], subject: Subject
) -> Answer | None:
    """Of the first rule that has one; the rules behind it are not asked."""
    answers = (rule(subject) for rule in rules)
    return next((answer for answer in answers if answer is not None), None)


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
