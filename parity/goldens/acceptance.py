"""Differences that someone wants: what an acceptance binds, and which outcomes it covers.

An acceptance covers one change of one case on one backend, until a day: the settings that changed, as old and new
value, what the golden holds and what the new code gives. Of these it keeps a digest, and each number by itself: numbers
are the same where a check says so, to the digits that a golden holds. Another value on either side voids it, and so
does a setting that is not among them. Nothing here reads a file or runs a model.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.goldens.verdict import Difference, Outcome, equal

OPEN = ("DRIFT", "LATENT")  # verdicts that an acceptance can cover
SHOWN = 60  # characters of a value; a longer one is told by its ends and its digest
MOST_CHANGES = 12  # told one by one; of more, the rest is one digest
DIGITS = 2  # of a number among observed inputs: rounding, which is another on each machine, moves later ones
STORED_DIGITS = 6  # of a number in a golden, and here
MADE = ("output_ids", "decode", "text", "value")  # stages that both digests cover
SETTINGS = ("model", "sampling", "stop")  # stages of what somebody said: no rounding moves it


@dataclass(frozen=True, slots=True)
class Accepted:
    """One difference that is wanted.   changes: each setting or input that differs, as "field: old -> new".
    was, gives: digests of what the golden holds and of what the new code gives, without their numbers; older releases
    wrote no `was`.   numbers: those of both, under the same two names.   until: the last day, YYYY-MM-DD."""

    site: str
    case: str
    backend: str
    cause: str
    changes: tuple[str, ...]
    gives: str
    reason: str
    until: str
    was: str = ""
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        datetime.date.fromisoformat(self.until)
        if not self.gives or "*" in (self.site, self.case, self.backend):
            raise ValueError("an acceptance covers one value of one case; accept it again")

    @property
    def place(self) -> tuple[str, str, str]:
        return self.site, self.case, self.backend

    def to_json(self) -> dict[str, Any]:
        said = {**dataclasses.asdict(self), "changes": list(self.changes)}
        return {name: entry for name, entry in said.items() if entry or name not in ("was", "numbers")}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Accepted:
        """Raises TypeError or ValueError for what is no acceptance."""
        if "gives" not in entry:
            name = f"{entry.get('site')}/{entry.get('case')}"
            raise ValueError(f"{name} on {entry.get('backend')} binds no value; remove the entry, and accept it again")
        return cls(**{**entry, "changes": tuple(entry.get("changes", ()))})

    def why_void(self, outcome: Outcome, today: datetime.date) -> str:
        """Why this does not cover an open outcome of its case; "" if it does."""
        cause = outcome.cause.name if outcome.cause else "no cause"
        if cause != self.cause:
            return f"it is for {self.cause}, and this is {cause}"
        changes = changes_of(outcome)
        if not set(changes) <= set(self.changes):  # a release may not show one of them
            now = "; ".join(changes) or "nothing declared"
            return f"it is for {'; '.join(self.changes) or 'nothing declared'}, and this is {now}"
        if not self.has_golden(outcome.old):
            return "its golden was recorded again, with another value"
        if not self.holds("gives", outcome.new):
            return "the new code gives another value than the accepted one"
        return "" if today <= datetime.date.fromisoformat(self.until) else f"it ended on {self.until}"

    def has_golden(self, golden: Mapping[str, Any] | None) -> bool:
        """Whether a golden is the one that was there when this was accepted."""
        return not self.was or self.holds("was", golden)

    def holds(self, side: str, recording: Mapping[str, Any] | None) -> bool:
        """Whether a recording gives what this binds of the side "was" or "gives"."""
        digest, numbers = digest_of(recording)
        return digest == getattr(self, side) and equal(self.numbers.get(side, []), numbers)


def acceptance_of(outcome: Outcome, reason: str, until: str) -> Accepted:
    """What accepts an open outcome, and no other value."""
    assert outcome.cause is not None
    place = outcome.site, outcome.case, outcome.backend
    was, old_numbers = digest_of(outcome.old)
    gives, new_numbers = digest_of(outcome.new)
    sides = {"was": old_numbers, "gives": new_numbers}
    numbers = {name: own for name, own in sides.items() if own}
    return Accepted(*place, outcome.cause.name, changes_of(outcome), gives, reason, until, was, numbers)


def changes_of(outcome: Outcome) -> tuple[str, ...]:
    """What was declared, asked or loaded otherwise, each once."""
    counted = (d for d in outcome.differences if d.counts and d.stage not in MADE)
    lines = list(dict.fromkeys(line_of(difference) for difference in counted))
    if len(lines) > MOST_CHANGES:
        rest = lines[MOST_CHANGES:]
        lines = [*lines[:MOST_CHANGES], f"and {len(rest)} more, {sha_of(rest)}"]
    return tuple(lines)


def line_of(difference: Difference) -> str:
    name = f"{difference.stage}.{difference.field}" if difference.field else difference.stage
    told = float if difference.stage in SETTINGS else rounded
    return f"{name}: {shown(plain(difference.old, told))} -> {shown(plain(difference.new, told))}"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}… {sha_of(text)}"


def digest_of(recording: Mapping[str, Any] | None) -> tuple[str, list[float]]:
    """Of what code gives (ids, value, exception): a digest of all but its numbers, and these."""
    said = recording or {}
    ids = [row["output_ids"] for row in said.get("rows", ())]
    numbers = list[float]()

    def placed(number: float) -> str:
        numbers.append(float(f"{number:.{STORED_DIGITS}g}"))
        return "a number"

    digest = sha_of(plain([ids, said.get("value"), said.get("raised")], placed))
    return digest, numbers


def sha_of(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def rounded(number: float) -> str:
    return f"{number:.{DIGITS}g}"


def plain(value: Any, told: Callable[[float], Any] = rounded) -> Any:
    """A value as JSON has it.   told: a float in it; by default without what rounding may move."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry, told) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry, told) for entry in value]
    return told(value) if isinstance(value, float) else value


# == A whole check ==


def with_acceptances(
    outcomes: Sequence[Outcome], entries: Sequence[Accepted], today: datetime.date
) -> tuple[tuple[Outcome, ...], tuple[str, ...]]:
    """(the outcomes, accepted ones as ACCEPTED; what is said of acceptances of these cases that cover nothing)."""
    known = {entry.place: entry for entry in entries}
    final = []
    unused = []
    for outcome in outcomes:
        entry = known.get((outcome.site, outcome.case, outcome.backend))
        if entry is None:
            final.append(outcome)
            continue
        is_open = outcome.verdict in OPEN
        why = entry.why_void(outcome, today) if is_open else f"the case is {outcome.verdict}"
        final.append(judged_with(outcome, entry, why))
        if why:
            unused.append(f"{name_of(entry)}: {why}")
    return tuple(final), tuple(unused)


def judged_with(outcome: Outcome, entry: Accepted, why: str) -> Outcome:
    if not why:
        reason = f"{entry.reason} (until {entry.until})"
        return dataclasses.replace(outcome, verdict="ACCEPTED", accepted=reason)
    if outcome.verdict not in OPEN:
        return outcome
    note = f"an acceptance does not cover this: {why}"
    return dataclasses.replace(outcome, notes=(*outcome.notes, note))


def name_of(entry: Accepted) -> str:
    return f"{entry.site}/{entry.case} on {entry.backend}: {entry.cause}"


Recording = Mapping[str, Any]


def idle_acceptances(
    entries: Sequence[Accepted],
    goldens: Mapping[str, Sequence[str]],
    today: datetime.date,
    read: Callable[[Accepted], Recording | None] = lambda entry: None,
) -> Iterator[tuple[Accepted, str]]:
    """(an acceptance that can cover nothing, why).   goldens: site -> its cases.   read: gives the golden of an
    acceptance, None where it cannot be read."""
    for entry in entries:
        if entry.case not in goldens.get(entry.site, ()):
            yield entry, "there is no such golden"
        elif (golden := read(entry)) is not None and not entry.has_golden(golden):
            yield entry, "its golden was recorded again, with another value"
        elif today > datetime.date.fromisoformat(entry.until):
            yield entry, f"it ended on {entry.until}"
