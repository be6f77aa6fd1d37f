"""A check for people at a terminal: a line per site, then a block per cause, the gravest first."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from parity.goldens.safe_text import log_safe, printable
from parity.goldens.store import NEXT_STEP
from parity.goldens.verdict import Check, Outcome
from parity.report.partings import Parting, partings
from parity.report.words import (
    accepted_lines,
    capped,
    change_lines,
    counted,
    explain_command,
    final_line,
    groups,
    sentence,
    uncompared_lines,
)

WIDTH = 100  # where there is no terminal; one that is wider is not filled, lines would be too long
NARROWEST = 60
LISTED = 8  # of the other cases of one cause, each with its sentence; the rest are named
GOOD = {"IDENTICAL", "TEXT-IDENTICAL", "SAME-DISTRIBUTION", "SAME-SETTINGS", "ACCEPTED"}
# As exit codes do: what differs, then what could not be judged, then what is not there.
GRAVEST_FIRST = ("DRIFT", "LATENT", "ERROR", "UNSTABLE", "MISSING", "UNUSED")
PAINT = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "dim": 2, "bold": 1}


def terminal_width() -> int:
    """Columns of the terminal, from NARROWEST to WIDTH."""
    return max(NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def paint(text: str, how: str, colour: bool) -> str:
    return f"\x1b[{PAINT[how]}m{text}\x1b[0m" if colour and text else text


def hue(verdict: str) -> str:
    if verdict in GOOD:
        return "green"
    return {"LATENT": "yellow", "NEAR-TIE": "cyan"}.get(verdict, "red")  # the second passes


def wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(
        printable(text),
        terminal_width(),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )


def elided(text: str, indent: str = "  ") -> str:
    """One line, cut at the width of the terminal."""
    whole = indent + printable(text)
    width = terminal_width()
    return whole if len(whole) <= width else whole[: width - 1] + "…"


# == One case ==


def parting_text(found: Parting, colour: bool) -> str:
    """Both sides under each other, equal text above equal text; ▸ stands where they part."""
    lines = [f"  {found.what}:"]
    for side, (before, after), how in (("was", found.old, "red"), ("is", found.new, "green")):
        before = paint(before, "dim", colour)
        lines.append(f"    {side:>3}  {before}▸{paint(after, how, colour)}")
    return "\n".join(lines)


def evidence_text(outcome: Outcome, colour: bool) -> str:
    """One sentence with both values, where the recordings part, the proof, and notes."""
    lines = [wrapped(sentence(outcome))]
    lines += [parting_text(found, colour) for found in partings(outcome)]
    if outcome.cause and outcome.cause.proof:
        lines.append(wrapped(f"proof: {outcome.cause.proof}"))
    if sentence(outcome) != "; ".join(outcome.notes):
        lines += [wrapped(f"note: {note}") for note in outcome.notes]
    if outcome.also:
        lines += [wrapped(f"also: {one}") for one in outcome.also]
    return "\n".join(lines)


def verdict_text(outcome: Outcome, colour: bool) -> str:
    return paint(outcome.verdict, hue(outcome.verdict), colour)


def explain_line(outcome: Outcome, asked_with: str, colour: bool) -> list[str]:
    if outcome.verdict in ("MISSING", "UNUSED"):
        return []
    return ["  " + paint(explain_command(outcome, asked_with), "dim", colour)]


def case_text(outcome: Outcome, *, asked_with: str = "", colour: bool = False) -> str:
    """One case: verdict and cause, the evidence, and the command that explains it."""
    name = paint(printable(outcome.label), "bold", colour)
    cause = f"  {outcome.cause}" if outcome.cause else ""
    head = f"{verdict_text(outcome, colour)}  {name} on {outcome.backend}{cause}"
    lines = [head, evidence_text(outcome, colour)]
    return log_safe("\n".join([*lines, *explain_line(outcome, asked_with, colour)]))


# == One cause ==


def by_cause(failing: Iterable[Outcome]) -> list[list[Outcome]]:
    """Failing outcomes of one verdict and cause together, the gravest first, then the most
    frequent.

    An error has no cause that says much: equal sentences are one error.
    """
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in failing:
        name = outcome.cause.name if outcome.cause else ""
        key = sentence(outcome) if outcome.verdict == "ERROR" else name
        found.setdefault((outcome.verdict, key), []).append(outcome)
    return sorted(found.values(), key=lambda some: (rank(some[0].verdict), -len(some)))


def rank(verdict: str) -> int:
    return GRAVEST_FIRST.index(verdict) if verdict in GRAVEST_FIRST else len(GRAVEST_FIRST)


def cause_of_all(same: Sequence[Outcome]) -> str:
    """ "stop.end_ids; 3 confirmed, 1 likely" """
    causes = [outcome.cause for outcome in same if outcome.cause]
    if not causes:
        return ""
    counts = Counter(cause.certainty for cause in causes)
    if len(counts) == 1:
        return str(causes[0])
    return f"{causes[0].name}; " + ", ".join(f"{n} {sure}" for sure, n in counts.items())


def certainty(outcome: Outcome) -> str:
    return outcome.cause.certainty if outcome.cause else ""


def places_text(same: Sequence[Outcome]) -> str:
    """ "12 cases: summaries on hf 8, on vllm 4" """
    counts = [f"{site} on {backend} {len(some)}" for (site, backend), some in groups(same).items()]
    return f"{len(same)} cases: {', '.join(counts)}"


def others_text(same: Sequence[Outcome]) -> str:
    """The other cases of a cause: those of other sentences, or where more differs, with these; all
    named."""
    first, *others = same
    shown = sentence(first), first.also
    own = [o for o in others if (sentence(o), o.also) != shown][:LISTED]
    mixed = len({certainty(o) for o in same}) > 1
    lines = []
    for outcome in own:
        sure = f" ({certainty(outcome)})" if mixed else ""
        lines.append(elided(f"{outcome.label} on {outcome.backend}{sure}: {sentence(outcome)}"))
        if outcome.also:
            lines += [wrapped(f"also: {one}", "    ") for one in outcome.also]
    if named := [o for o in others if o not in own]:
        several = len({o.backend for o in same}) > 1
        names = [f"{o.label} on {o.backend}" if several else o.label for o in named]
        if mixed:
            names = [f"{name} ({certainty(o)})" for name, o in zip(names, named)]
        lines.append(wrapped(f"and {len(named)} more: {', '.join(names)}"))
    return "\n".join(lines)


def cause_text(same: Sequence[Outcome], asked_with: str, colour: bool) -> str:
    """All failing cases of one verdict and cause: the first in full, the others in a line."""
    first = same[0]
    if len(same) == 1:
        return case_text(first, asked_with=asked_with, colour=colour)
    lines = [f"{verdict_text(first, colour)}  {cause_of_all(same)}", wrapped(places_text(same))]
    name = paint(printable(first.label), "bold", colour)
    lines.append(f"  {name} on {first.backend}:")
    lines += [evidence_text(first, colour), *explain_line(first, asked_with, colour)]
    lines.append(others_text(same))
    return "\n".join(lines)


# == The whole check ==


def numerics_text(check: Check, colour: bool) -> str:
    """One line for each site whose rounding was measured."""
    how = {"holds": "green", "shifted": "red"}
    lines = [(n.line, how.get(n.outcome, "yellow")) for n in check.numerics]
    return "\n".join(paint(wrapped(line, ""), hue, colour) for line, hue in lines)


def sites_text(check: Check, colour: bool) -> str:
    """One line per site and backend."""
    table = groups(check.outcomes)
    width = max((len(site) for site, _ in table), default=0)
    lines = []
    for (site, backend), outcomes in table.items():
        counts = [paint(f"{n} {v}", hue(v), colour) for v, n in counted(outcomes).items()]
        seconds = sum(outcome.seconds for outcome in outcomes)
        name = printable(site).ljust(width)
        lines.append(f"{name}  {backend:5} {seconds:7.1f} s  {'  '.join(counts)}")
    return "\n".join(lines)


def console(check: Check, *, colour: bool = False) -> str:
    """The whole check for a terminal."""
    parts = [sites_text(check, colour)] if check.outcomes else []
    if check.numerics:
        parts.append(numerics_text(check, colour))
    parts += [cause_text(same, check.asked_with, colour) for same in by_cause(check.failing())]
    if named := accepted_lines(check):
        parts.append("\n".join(wrapped(line, "") for line in named))
    if check.only_old:
        parts.append("\n".join(wrapped(line, "") for line in capped(check.only_old)))
    if unseen := uncompared_lines(check):
        parts.append("\n".join(wrapped(line, "") for line in capped(unseen)))
    if check.changes:
        lines = [wrapped(line) for line in change_lines(check.changes)]
        parts.append("\n".join(["the goldens themselves:", *lines]))
    if check.left_out:
        parts.append(wrapped(f"left out: {'; '.join(check.left_out)}", ""))
    if not check.outcomes and not check.left_out:
        parts.append(NEXT_STEP)
    how = "green" if check.exit_code == 0 else "red"
    return log_safe("\n\n".join([*parts, paint(final_line(check), how, colour)]))
