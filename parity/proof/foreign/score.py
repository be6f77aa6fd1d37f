"""The harness's verdicts held against what is right: false alarms, mistakes caught and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parity.goldens.causes import stage_of
from parity.proof.foreign.material import Mistake
from parity.proof.foreign.run import FAITHFUL, Answer, Job

__all__ = ["Found", "Score", "as_json", "exit_code", "render_faults", "render_table", "score"]

CAUGHT = ("DRIFT", "LATENT")
ERROR = "error"  # the cause where the moved code raised
ALARMS = ("DRIFT", "LATENT", "ERROR", "UNSTABLE", "MISSING")
HEADERS = ("library", "backend", "dtype", "faithful silent", "caught", "named", "wrong, confirmed")


@dataclass(frozen=True, slots=True)
class Found:
    """What the harness said of one mistake, over all cases where it shows."""

    mistake: str
    right: tuple[str, ...]
    answers: tuple[Answer, ...]

    @property
    def alarms(self) -> tuple[Answer, ...]:
        return tuple(each for each in self.answers if each.verdict in CAUGHT)

    @property
    def is_broken(self) -> bool:
        """Whether the edited code raised, though that is not what the mistake is about."""
        return any(each.cause == ERROR and ERROR not in self.right for each in self.answers)

    @property
    def is_caught(self) -> bool:
        """Whether there is an alarm about what the mistake did. A crash of the edit is none."""
        return bool(self.alarms) and not self.is_broken

    @property
    def wrong_names(self) -> tuple[Answer, ...]:
        """Alarms whose first cause is none of the right ones."""
        return tuple(
            each
            for each in self.alarms
            if each.cause not in self.right and stage_of(each.cause) not in self.right
        )

    @property
    def is_named(self) -> bool:
        return self.is_caught and not self.wrong_names

    @property
    def is_wrong_and_confirmed(self) -> bool:
        return any(each.certainty == "confirmed" for each in self.wrong_names)


@dataclass(frozen=True, slots=True)
class Score:
    """One row of the table."""

    job: Job
    faithful: tuple[Answer, ...]
    found: tuple[Found, ...]

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Of the faithful move, then of each mistake."""
        about = list(self.faithful)
        for each in self.found:
            about += each.answers
        return tuple(about)

    @property
    def false_alarms(self) -> tuple[Answer, ...]:
        return tuple(each for each in self.faithful if each.verdict in ALARMS)

    @property
    def missed(self) -> tuple[Found, ...]:
        return tuple(each for each in self.found if not each.is_caught)

    @property
    def silence(self) -> str:
        """ "yes", or how many of the faithful cases were alarmed about."""
        if not self.faithful:
            return "no: nothing compared"
        if self.false_alarms:
            return f"no: {len(self.false_alarms)} of {len(self.faithful)}"
        return "yes"

    @property
    def cells(self) -> tuple[str, ...]:
        total = len(self.found)
        return (
            self.job.library,
            self.job.backend,
            self.job.dtype,
            self.silence,
            f"{total - len(self.missed)}/{total}",
            f"{sum(each.is_named for each in self.found)}/{total}",
            str(sum(each.is_wrong_and_confirmed for each in self.found)),
        )


def score(job: Job, mistakes: Sequence[Mistake], answers: Sequence[Answer]) -> Score:
    """Sort the harness's answers by what they are about."""
    found = []
    for mistake in mistakes:
        about = tuple(each for each in answers if each.site == job.site(mistake.name))
        found.append(Found(mistake.name, tuple(mistake.right.split()), about))
    faithful = tuple(each for each in answers if each.site == job.site(FAITHFUL))
    return Score(job, faithful, tuple(found))


def exit_code(scores: Sequence[Score]) -> int:
    """1 where a faithful move was alarmed about or a mistake was missed, else 0."""
    return int(any(each.silence != "yes" or each.missed for each in scores))


def render_table(scores: Sequence[Score]) -> str:
    """One row for each library, backend and dtype, as plain text."""
    rows = [HEADERS, *(each.cells for each in scores)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def render_faults(scores: Sequence[Score]) -> str:
    """Each false alarm, miss and wrong name, with what the harness said."""
    lines: list[str] = []
    for each in scores:
        place = " ".join(each.cells[:3])
        for alarm in each.false_alarms:
            lines.append(f"FALSE ALARM  {place}  {alarm.case}: {said(alarm)}")
        for found in each.found:
            lines += fault_lines(place, found)
    return "\n".join(lines)


def fault_lines(place: str, found: Found) -> list[str]:
    """A mistake that was not caught, or its wrong names."""
    if not found.is_caught:
        return [missed_line(place, found)]
    right = " or ".join(found.right)
    return [
        f"WRONG NAME   {place}  {found.mistake}/{each.case}: right is {right}; {said(each)}"
        for each in found.wrong_names
    ]


def missed_line(place: str, found: Found) -> str:
    """A mistake that was not caught, and why not."""
    verdicts = ", ".join(f"{each.case} {each.verdict}" for each in found.answers) or "none"
    return f"{missed_kind(found):11}  {place}  {found.mistake}: {verdicts}"


def missed_kind(found: Found) -> str:
    """BROKEN: the edit raised. UNDECIDED: the harness could not judge; its gate fails then."""
    if found.is_broken and found.alarms:
        return "BROKEN"
    if any(each.verdict == "ERROR" for each in found.answers):
        return "UNDECIDED"
    return "MISSED"


def said(answer: Answer) -> str:
    cause = f"{answer.cause}; {answer.certainty}" if answer.cause else "no cause"
    return f"{answer.verdict} {cause}: {answer.sentence}"


def as_json(scores: Sequence[Score]) -> list[dict[str, Any]]:
    rows = []
    for each in scores:
        row = asdict(each)
        row |= dict(zip(HEADERS[3:], each.cells[3:], strict=True))
        rows.append(row)
    return rows
