"""A scan as one page: findings, the matrix of each group, all blocks. No script, nothing from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from parity.scan.findings import Finding
from parity.scan.groups import Group
from parity.scan.report import counted, short_place
from parity.scan.scan import Scan
from parity.scan.site import ScannedBlock

WIDE = 7  # blocks beside each other; of larger groups the blocks are the rows
STYLE = """
:root { --back:#f6f7f9; --card:#fff; --line:#dde1e7; --text:#1c2129; --soft:#5d6675; --faint:#8b94a3; --red:#c5283d;
  --amber:#a86400; --blue:#1f6fc4; --odd:#ffe9b8; --odd-text:#7a4a00; --head:#eef1f5;
  --mono:ui-monospace,"SF Mono","Cascadia Code",Menlo,Consolas,"DejaVu Sans Mono",monospace; }
@media (prefers-color-scheme: dark) { :root { --back:#12151a; --card:#1a1f26; --line:#2e3641; --text:#e4e8ee;
  --soft:#a3adbb; --faint:#75808f; --red:#ff7b86; --amber:#eab04c; --blue:#6fb1ff; --odd:#4a3a12; --odd-text:#ffd884;
  --head:#212831; } }
* { box-sizing:border-box }
body { margin:0; background:var(--back); color:var(--text); font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif }
main { max-width:1240px; margin:0 auto; padding:26px 24px 60px }
h1 { font-size:24px; margin:0; letter-spacing:-.01em } h2 { font-size:17px; margin:34px 0 10px }
h2 small, .soft { color:var(--soft); font-weight:400 } p { margin:4px 0 }
.card { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:12px 16px; margin:10px 0 }
ol { list-style:none; margin:0; padding:0 } ol li { display:grid; grid-template-columns:34px 1fr; padding:7px 0;
  border-top:1px solid var(--line) } ol li:first-child { border-top:0 }
.harm { align-self:start; width:24px; height:8px; border-radius:4px; margin-top:8px; background:var(--blue) }
.harm.high { background:var(--red) } .harm.mid { background:var(--amber) }
.places { font:12px/1.6 var(--mono); color:var(--soft); overflow-wrap:anywhere }
summary { cursor:pointer; color:var(--blue) } .fix { color:var(--soft) }
.scroll { overflow-x:auto; border:1px solid var(--line); border-radius:10px; background:var(--card) }
table { border-collapse:separate; border-spacing:0; font:12px/1.45 var(--mono); width:100% }
th, td { padding:5px 10px; text-align:left; border-bottom:1px solid var(--line); vertical-align:top; white-space:nowrap;
  max-width:260px; overflow:hidden; text-overflow:ellipsis }
tr:last-child td, tr:last-child th { border-bottom:0 } thead th { background:var(--head); color:var(--soft); font-weight:600 }
tbody th { position:sticky; left:0; background:var(--card); font-weight:600 } td.odd { background:var(--odd); color:var(--odd-text) }
td.unsaid { color:var(--faint) } td.wrap { white-space:normal; min-width:320px; max-width:none }
code { font:12px var(--mono); user-select:all }
"""


def page(scan: Scan) -> str:
    return "\n".join(parts(scan))


def parts(scan: Scan) -> Iterator[str]:
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    yield f"<title>parity scan</title><style>{STYLE}</style></head><body><main>"
    yield from head(scan)
    yield from findings(scan.findings)
    for group in scan.groups:
        if group.differing:
            yield from matrix(group)
    yield from blocks(scan.blocks)
    yield from left_out(scan)
    yield "</main></body></html>"


def head(scan: Scan) -> Iterator[str]:
    files = len({block.file for block in scan.blocks})
    yield f"<h1>{counted(len(scan.blocks), 'block')} in {counted(files, 'file')}</h1>"
    kinds = " · ".join(f"{escape(name)} {count}" for name, count in scan.libraries.most_common())
    siblings = sum(len(group.blocks) for group in scan.groups)
    yield f"<p class='soft'>{kinds}</p>"
    yield f"<p class='soft'>{scan.line_count:,} lines in {counted(scan.file_count, 'file')} read; {siblings} blocks are "
    yield f"siblings, in {counted(len(scan.groups), 'group')}; {counted(len(scan.look_alikes), 'look-alike')} left out</p>"
    for source in scan.problems:
        yield f"<p class='soft'>not read: {escape(source.path)}: {escape(source.problem)}</p>"


def findings(found: Sequence[Finding]) -> Iterator[str]:
    if not found:
        return
    yield "<h2>What may change results <small>the worst first</small></h2><div class='card'><ol>"
    for finding in found:
        level = "high" if finding.harm >= 70 else "mid" if finding.harm >= 45 else ""
        yield f"<li><span class='harm {level}'></span><div>{escape(finding.message)}"
        if not finding.group:
            yield f" <span class='fix'>→ {escape(finding.fix)}</span>"
        shown = ", ".join(map(escape, finding.places[:4]))
        yield f"<div class='places'>{shown}</div>"
        if len(finding.places) > 4:
            more = ", ".join(map(escape, finding.places[4:]))
            yield f"<details><summary>{len(finding.places) - 4} more</summary><div class='places'>{more}</div></details>"
        yield "</div></li>"
    yield "</ol></div>"


def matrix(group: Group) -> Iterator[str]:
    title = f"{len(group.blocks)} siblings differ in {counted(len(group.differing), 'fact')}"
    yield f"<h2>{escape(group.name)} <small>{title}; what the others do not do is marked</small></h2>"
    yield "<div class='scroll'><table>"
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
    return "<thead><tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr></thead><tbody>"


def cell(block: ScannedBlock, group: Group, fact: str) -> str:
    own = block.facts[fact]
    kinds = [name for name, holds in (("odd", group.is_odd(block, fact)), ("unsaid", not own.is_said)) if holds]
    return f"<td class='{' '.join(kinds)}' title='{escape(own.source, quote=True)}'>{escape(str(own))}</td>"


def blocks(found: Sequence[ScannedBlock]) -> Iterator[str]:
    if not found:
        return
    yield "<h2>All blocks</h2><div class='scroll'><table>"
    yield header(["block", "function", "library", "class", "facts", "record"])
    for block in found:
        said = "<br>".join(f"{escape(name)}: {escape(str(fact))}" for name, fact in block.facts.items() if fact.is_said)
        unsaid = "<br>".join(
            f"{escape(name)}: {escape(fact.source)}" for name, fact in block.facts.items() if not fact.is_said
        )
        note = f"<p class='soft'>{escape(block.note)}</p>" if block.note else ""
        yield (
            f"<tr><th>{escape(block.place)}</th><td>{escape(block.function or '<module>')}</td>"
            f"<td>{escape(block.library)}, {escape(block.kind)}</td><td>{escape(block.block.thing.name)}</td>"
            f"<td><details><summary>facts</summary>{said}<p class='soft'>{unsaid}</p></details></td>"
            f"<td class='wrap'><code>{escape(block.record)}</code>{note}</td></tr>"
        )
    yield "</tbody></table></div>"


def left_out(scan: Scan) -> Iterator[str]:
    if not scan.look_alikes:
        return
    yield f"<h2>Left out <small>{counted(len(scan.look_alikes), 'call')} that look like a block</small></h2>"
    yield "<details class='card'><summary>show</summary><div class='places'>"
    for other in scan.look_alikes:
        yield f"{escape(other.file)}:{other.line} {escape(other.call)}: {escape(other.reason)}<br>"
    yield "</div></details>"
