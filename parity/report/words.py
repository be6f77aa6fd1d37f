"""What every report says of a check in the same words."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from parity.goldens.safe_text import printable
from parity.goldens.verdict import Change, Check, Outcome, Verdict, place_name
from parity.record.source import source_digest

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
ENDINGS = {
    0: "within policy",
    1: "drift",
    3: "could not judge",
    4: "missing or unused",
    5: "nothing was compared",
}
Row = Mapping[str, Any]
MOST_LINES = 20  # of one kind; a repository that records all goldens again has thousands


def groups(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """(site, backend) -> its outcomes, in order."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.site, outcome.backend), []).append(outcome)
    return found


def counted(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Verdict -> how many, gravest last, none left out that is there."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}


def counts_line(outcomes: Iterable[Outcome]) -> str:
    counts = [f"{count} {verdict}" for verdict, count in counted(outcomes).items()]
    return ", ".join(counts) or "no case"


def sentence(outcome: Outcome) -> str:
    """One sentence with both values."""
    if outcome.cause is not None and outcome.cause.sentence:
        return outcome.cause.sentence
    telling = sorted(outcome.differences, key=lambda d: not d.counts)
    if telling:
        return telling[0].sentence()
    alone = {
        "MISSING": "there is no golden of this case",
        "UNUSED": "the golden was not used by any call",
        "ERROR": "it could not be judged",
        "UNSTABLE": "the old code does not repeat itself",
    }
    return "; ".join(outcome.notes) or alone.get(outcome.verdict, "nothing differs")


def steps_to_cause(outcome: Outcome) -> list[str]:
    """How the cause was found, and the cause; it may come from all cases of a site together."""
    cause = outcome.cause
    last = [f"cause: {cause}: {cause.proof or cause.sentence}"] if cause else []
    return [*outcome.steps, *last]


def explain_command(outcome: Outcome, asked_with: str = "") -> str:
    """asked_with: of the check that found it."""
    case = shlex.quote(printable(outcome.label))
    command = f"python -m parity explain {case} --backend {outcome.backend}"
    return f"{command} {printable(asked_with)}" if asked_with else command


def final_line(check: Check) -> str:
    """The verdict of the whole; always that of the exit code."""
    failing, code = check.failing(), check.exit_code
    word = "PASSED" if code == 0 else "FAILED"
    cases = f"{len(check.outcomes)} cases"
    if failing:
        cases = f"{len(failing)} of {cases} fail: {counts_line(failing)}"
    return f"{word} (exit {code}, {ENDINGS[code]}): {cases}; {check.seconds:.1f} s"


def accepted_lines(check: Check) -> list[str]:
    """Each accepted case with its reason, and acceptances that cover nothing."""
    accepted = (o for o in check.outcomes if o.verdict == "ACCEPTED")
    lines = [
        f"ACCEPTED {o.label} on {o.backend}: {o.cause and o.cause.name}: {o.accepted}"
        for o in accepted
    ]
    return lines + [f"unused acceptance {line}" for line in check.unused_acceptances]


def uncompared_lines(check: Check) -> list[str]:
    """Each case with parts of its value that are marked as others in each run."""
    lines: dict[str, None] = {}
    for outcome in check.outcomes:
        parts = (outcome.old or {}).get("changing", ())
        if parts:
            places = ", ".join(changing_places(parts))
            lines[f"NOT COMPARED in {outcome.label}, marked as changing: {places}"] = None
    return [*lines, *value_alone_lines(check), *settings_alone_lines(check)]


def settings_alone_lines(check: Check) -> list[str]:
    """Of each site, how many cases pass by their settings alone, and what the first one lacks."""
    lines = []
    for (site, backend), outcomes in groups(check.outcomes).items():
        found = [outcome for outcome in outcomes if outcome.verdict == "SAME-SETTINGS"]
        if found:
            why = "; ".join(found[0].notes) or sentence(found[0])
            lines.append(
                f"SETTINGS ALONE, no samples, decided {len(found)} cases of {site} on {backend}, "
                f"the first is {found[0].case}: {why}"
            )
    return lines


def value_alone_lines(check: Check) -> list[str]:
    """Of each site, how many cases pass without a model call on either side."""
    cases: dict[str, dict[str, None]] = {}
    for outcome in check.outcomes:
        old, new = outcome.old or {}, outcome.new or {}
        has_calls = old.get("rows") or new.get("rows")
        if old and not has_calls and not old.get("raised") and check.passes(outcome):
            cases.setdefault(outcome.site, {})[outcome.case] = None
    return [
        f"NO MODEL CALL was seen in {len(names)} cases of {site}, the first is "
        f"{next(iter(names))}: of these the value alone is compared"
        for site, names in cases.items()
    ]


def only_old_lines(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Of each site where the recorded function itself ran, and is not known to be edited in place:
    that it did. Where the code was moved, the old code was compared with itself."""
    digest = functools.cache(source_digest)
    ran: dict[tuple[str, bool], dict[str, None]] = {}
    for outcome in outcomes:
        old = outcome.old or {}
        function = old.get("function")
        if not function or function != (outcome.new or {}).get("function"):
            continue
        recorded = old.get("source", "")
        if not recorded or recorded == digest(function):
            ran.setdefault((outcome.site, bool(recorded)), {})[function] = None
    return tuple(only_old_line(*key, list(functions)) for key, functions in ran.items())


def only_old_line(site: str, is_known: bool, functions: Sequence[str]) -> str:
    """is_known: whether the goldens hold the source, which is that of now."""
    first, *others = functions
    names = f"{first} and {len(others)} more" if others else first
    module = first.rpartition(":")[0]
    where = f'give --moved {module}=NEW.MODULE, or write "moved" into sites.json'
    if is_known:
        return (
            f"THE RECORDED CODE ITSELF of {site} ran again ({names}): its source is the one that "
            f"was recorded. For code that was moved, {where}"
        )
    return (
        f"ONLY THE OLD CODE of {site} was run again ({names}): nothing says where it was moved. "
        f"That is right for code that was edited in place; for code that was moved, {where}"
    )


def changing_places(parts: Iterable[Any]) -> list[str]:
    """Where in a value the parts stand that are marked as others in each run: "value[0].text"."""
    places = []
    for part in parts:
        steps = part.get("at") if isinstance(part, Mapping) else None
        places.append(place_name(steps if isinstance(steps, list) else ()))
    return places


def change_lines(changes: Sequence[Change]) -> list[str]:
    """All that can hide a drift, then some of the others, and how many of these there are."""
    routine = [change.line for change in changes if not change.can_hide]
    return [change.line for change in changes if change.can_hide] + capped(routine)


def capped(lines: Sequence[str], most: int = MOST_LINES) -> list[str]:
    """The first lines, and how many more there are."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[:most], f"and {len(lines) - most} more"]
