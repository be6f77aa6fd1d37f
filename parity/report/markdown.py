"""A check as Markdown, grouped by cause, for $GITHUB_STEP_SUMMARY."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parity.goldens.causes import meaning
from parity.goldens.safe_text import printable
from parity.goldens.verdict import Check, Outcome
from parity.report.partings import partings
from parity.report.words import (
    accepted_lines,
    capped,
    change_lines,
    counts_line,
    explain_command,
    final_line,
    groups,
    sentence,
    uncompared_lines,
)

LIVE = re.compile(r"[\\`*_{}\[\]<>|~&#!@$]")
MOST_LINE = 10_000  # characters of a line that says what is not compared
MOST_CASES = 20  # told per cause


def markdown_text(text: str, most: int = 300) -> str:
    """Text that means nothing in Markdown, on one line, at most so long."""
    text = text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-most // 4 :]}"
    return LIVE.sub(lambda m: f"&#{ord(m[0])};", printable(text.replace("\n", " ⏎ ")))


def markdown_cause(name: str, outcomes: Sequence[Outcome], asked_with: str) -> str:
    certainty = ", ".join(sorted({o.cause.certainty for o in outcomes if o.cause}))
    told = f" ({certainty})" if certainty else ""
    lines = [f"### {markdown_text(name)}: {len(outcomes)}{told}", "", meaning(name), ""]
    lines += ["| case | backend | verdict | what |", "|---|---|---|---|"]
    for o in outcomes[:MOST_CASES]:
        cells = [markdown_text(text) for text in (o.label, o.backend, o.verdict, sentence(o))]
        also = f"; also differs: {'; '.join(map(markdown_text, o.also))}" if o.also else ""
        lines.append("| " + " | ".join(cells) + also + " |")
    if len(outcomes) > MOST_CASES:
        lines.append(f"\n… and {len(outcomes) - MOST_CASES} more.")
    shown = [
        f"{one.what}: was {'▸'.join(one.old)}, is {'▸'.join(one.new)}"
        for one in partings(outcomes[0])
    ]
    lines += ["", *(f"- {markdown_text(f'{outcomes[0].label}, {one}')}" for one in shown)]
    command = explain_command(outcomes[0], asked_with).replace("`", "")
    return "\n".join([*lines, "", f"`{command}`", ""])


def markdown_summary(check: Check) -> str:
    """The verdict, a table of sites, and the failing cases by cause."""
    sign = "✅" if check.exit_code == 0 else "❌"
    lines = [f"## {sign} parity: {markdown_text(final_line(check))}", ""]
    lines += ["| site | backend | verdicts | seconds |", "|---|---|---|---:|"]
    for (site, backend), outcomes in groups(check.outcomes).items():
        seconds = f"{sum(o.seconds for o in outcomes):.1f}"
        lines.append(
            f"| {markdown_text(site)} | {markdown_text(backend)} | {counts_line(outcomes)} |"
            f" {seconds} |"
        )
    if check.left_out:
        lines += ["", markdown_text(f"left out: {'; '.join(check.left_out)}")]
    if named := accepted_lines(check):
        lines += ["", *(f"- {markdown_text(line)}" for line in named)]
    if check.only_old:
        lines += ["", *(f"- {markdown_text(line, 600)}" for line in capped(check.only_old))]
    if unseen := uncompared_lines(check):
        lines += ["", *(f"- {markdown_text(line)}" for line in capped(unseen))]
    if check.changes:
        lines += ["", "### The goldens themselves", ""]
        lines += [f"- {markdown_text(line, MOST_LINE)}" for line in change_lines(check.changes)]
    if check.numerics:
        lines += ["", "| site | backend | numerics |", "|---|---|---|"]
    lines += [
        f"| {markdown_text(n.site)} | {n.backend} | {markdown_text(n.said, 600)} |"
        for n in check.numerics
    ]
    causes: dict[str, list[Outcome]] = {}
    for outcome in check.failing():
        causes.setdefault(outcome.cause.name if outcome.cause else outcome.verdict, []).append(
            outcome
        )
    by_size = sorted(causes.items(), key=lambda entry: -len(entry[1]))
    causes_told = (markdown_cause(name, some, check.asked_with) for name, some in by_size)
    return "\n".join([*lines, "", *causes_told])
