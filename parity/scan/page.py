"""A scan as one page: findings, the matrix of each group, all blocks. No script, nothing from
outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape as escape_markup
from pathlib import Path

from parity.goldens.safe_text import printable_lines
from parity.scan.findings import Finding
from parity.scan.groups import Group
from parity.scan.report import counted, short_place
from parity.scan.scan import Scan
from parity.scan.site import ScannedBlock

WIDE = 7  # blocks beside each other; of larger groups the blocks are the rows
WORST = 8  # findings that are shown at first
LEGEND = (
    "<p class='soft'><span class='harm high'></span> changes answers "
    "<span class='harm mid'></span> changes some <span class='harm'></span> may change some. "
    "In tables, – is what the code does not say, and arg NAME=VALUE an argument and its "
    "default.</p>"
)
STYLE = Path(__file__).with_name("page.css")


def escape(text: str) -> str:
    """Text of files on the page: no markup, and no character that turns or hides others."""
    return escape_markup(printable_lines(text))


def page(scan: Scan, scanned: str) -> str:
    """scanned: what was scanned, for people."""
    return "\n".join(parts(scan, scanned))


def parts(scan: Scan, scanned: str) -> Iterator[str]:
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    style = STYLE.read_text(encoding="utf-8")
    title = f"parity scan: {escape(scanned)}"
    yield f"<title>{title}</title><style>{style}</style></head><body><main>"
    yield from head(scan, scanned)
    yield from findings(scan.findings)
    for group in scan.groups:
        if group.differing:
            yield from matrix(group)
    yield from blocks(scan.blocks)
    yield from left_out(scan)
    yield "</main></body></html>"


def head(scan: Scan, scanned: str) -> Iterator[str]:
    files = len({block.file for block in scan.blocks})
    yield f"<h1>{counted(len(scan.blocks), 'block')} in {counted(files, 'file')}</h1>"
    kinds = " · ".join(f"{escape(name)} {count}" for name, count in scan.libraries.most_common())
    siblings = sum(len(group.blocks) for group in scan.groups)
    yield f"<p class='soft'><b>{escape(scanned)}</b> · {kinds}</p>"
    read = f"{scan.line_count:,} lines in {counted(scan.file_count, 'file')} read"
    like = f"{siblings} blocks are siblings, in {counted(len(scan.groups), 'group')}"
    left = f"{counted(len(scan.look_alikes), 'look-alike')} left out"
    yield f"<p class='soft'>{read}; {like}; {left}</p>"
    for source in scan.problems:
        yield f"<p class='soft'>not read: {escape(source.path)}: {escape(source.problem)}</p>"
    for failure in scan.failures:
        place = f"{failure.file}:{failure.line} {failure.function or '<module>'}"
        yield f"<p class='soft'>not analysed: {escape(place)}: {escape(failure.reason)}</p>"


def findings(found: Sequence[Finding]) -> Iterator[str]:
    if not found:
        return
    yield "<h2>What may change results <small>the worst first</small></h2>"
    yield LEGEND
    yield "<div class='card'><ol>"
    for finding in found[:WORST]:
        yield from finding_item(finding)
    yield "</ol>"
    if len(found) > WORST:
        yield f"<details><summary>{len(found) - WORST} more</summary><ol>"
        for finding in found[WORST:]:
            yield from finding_item(finding)
        yield "</ol></details>"
    yield "</div>"


def finding_item(finding: Finding) -> Iterator[str]:
    level = "high" if finding.harm >= 70 else "mid" if finding.harm >= 45 else ""
    yield f"<li><span class='harm {level}'></span><div>{escape(finding.message)}"
    if not finding.group:
        yield f" <span class='fix'>→ {escape(finding.fix)}</span>"
    shown = ", ".join(map(escape, finding.places[:4]))
    yield f"<div class='places'>{shown}</div>"
    if len(finding.places) > 4:
        more = ", ".join(map(escape, finding.places[4:]))
        yield f"<details><summary>{len(finding.places) - 4} more</summary>"
        yield f"<div class='places'>{more}</div></details>"
    yield "</div></li>"


def matrix(group: Group) -> Iterator[str]:
    title = f"{len(group.blocks)} siblings differ in {counted(len(group.differing), 'fact')}"
    name = escape(group.name)
    yield f"<h2>{name} <small>{title}; what the others do not do is marked</small></h2>"
    yield "<div class='scroll'><table class='matrix'>"
    places = [short_place(block, group.blocks) for block in group.blocks]
    if len(group.blocks) <= WIDE:
        yield header(["", *places])
        for fact in group.differing:
            cells = "".join(cell(block, group, fact) for block in group.blocks)
            yield f"<tr><th>{escape(fact)}</th>{cells}</tr>"
    else:
        yield header(["", *group.differing])
        for block, place in zip(group.blocks, places):
            cells = "".join(cell(block, group, fact) for fact in group.differing)
            yield f"<tr><th>{escape(place)}</th>{cells}</tr>"
    yield "</tbody></table></div>"


def header(names: Sequence[str]) -> str:
    return (
        "<thead><tr>"
        + "".join(f"<th>{escape(name)}</th>" for name in names)
        + "</tr></thead><tbody>"
    )


def cell(block: ScannedBlock, group: Group, fact: str) -> str:
    own = block.facts[fact]
    kinds = [
        name
        for name, holds in (("odd", group.is_odd(block, fact)), ("unsaid", not own.is_said))
        if holds
    ]
    title = escape(own.source)
    return f"<td class='{' '.join(kinds)}' title='{title}'>{escape(str(own))}</td>"


def blocks(found: Sequence[ScannedBlock]) -> Iterator[str]:
    if not found:
        return
    yield "<h2>All blocks</h2><div class='scroll'><table>"
    yield header(["block", "function", "library", "class", "facts", "record"])
    for block in found:
        said = "<br>".join(
            f"{escape(name)}: {escape(str(fact))}"
            for name, fact in block.facts.items()
            if fact.is_said
        )
        unsaid = "<br>".join(
            f"{escape(name)}: {escape(fact.source)}"
            for name, fact in block.facts.items()
            if not fact.is_said
        )
        note = f"<p class='soft'>{escape(block.note)}</p>" if block.note else ""
        yield (
            f"<tr><th>{breakable(block.place)}</th><td>{escape(block.function or '<module>')}</td>"
            f"<td>{escape(block.library)}, {escape(block.kind)}</td>"
            f"<td>{escape(block.block.thing.name)}</td>"
            f"<td><details><summary>facts</summary>{said}<p class='soft'>{unsaid}</p>"
            f"</details></td>"
            f"<td class='wrap'><code>{escape(block.record)}</code>{note}</td></tr>"
        )
    yield "</tbody></table></div>"


def breakable(place: str) -> str:
    """A path that may be broken behind its folders."""
    return escape(place).replace("/", "/<wbr>")


def left_out(scan: Scan) -> Iterator[str]:
    if not scan.look_alikes:
        return
    count = counted(len(scan.look_alikes), "call")
    yield f"<h2>Left out <small>{count} that look like a block</small></h2>"
    yield "<details class='card'><summary>show</summary><div class='places'>"
    for other in scan.look_alikes:
        yield f"{escape(other.file)}:{other.line} {escape(other.call)}: {escape(other.reason)}<br>"
    yield "</div></details>"
