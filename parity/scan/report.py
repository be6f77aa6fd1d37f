"""A scan for people at a terminal: how many blocks, what differs, what is worst, what is next."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

from parity.goldens.safe_text import log_safe, printable
from parity.scan.findings import Finding
from parity.scan.groups import Group
from parity.scan.scan import Scan
from parity.scan.site import ScannedBlock

PAINT = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "dim": 2, "bold": 1}
WORST = 8  # findings that are shown without --all
SHOWN_BLOCKS = 12
SHOWN_GROUPS = 3
SHOWN_FACTS = 10
MATRIX_COLUMNS = (
    5  # blocks beside each other; of larger groups the usual value and the odd ones are shown
)
NOTHING_SAID = {"score": "reads probabilities, and sets nothing"}
NO_BLOCKS = (
    "no block found: nothing here generates or scores with a local model. Name the folder that "
    "holds the code; --json lists what looked like one"
)


class Console:
    """Text for a terminal of some width.   colour: whether it may be painted. is_full: whether
    nothing is left out. has_next: whether it says what to do next."""

    def __init__(
        self,
        *,
        colour: bool = False,
        is_full: bool = False,
        has_next: bool = True,
        width: int = 0,
    ) -> None:
        self.colour = colour
        self.is_full = is_full
        self.has_next = has_next
        self.width = width or max(72, min(120, shutil.get_terminal_size((100, 24)).columns))

    def paint(self, text: str, how: str) -> str:
        return f"\x1b[{PAINT[how]}m{text}\x1b[0m" if self.colour and text else text

    def text(self, scan: Scan) -> str:
        lines = self.lines(scan) if self.colour else map(printable, self.lines(scan))
        return log_safe("\n".join(lines))

    def lines(self, scan: Scan) -> Iterator[str]:
        yield from self.head(scan)
        if not scan.blocks:
            yield ""
            yield NO_BLOCKS
            return
        yield from self.findings(scan)
        yield from self.group_tables(scan)
        yield from self.block_table(scan)
        if self.has_next:
            yield from self.next_steps(scan)

    # == Head ==

    def head(self, scan: Scan) -> Iterator[str]:
        files = len({block.file for block in scan.blocks})
        kinds = ", ".join(f"{name} {count}" for name, count in scan.libraries.most_common())
        title = f"{counted(len(scan.blocks), 'block')} in {counted(files, 'file')}"
        yield self.paint(title, "bold") + (f": {kinds}" if kinds else "")
        parts = [f"{scan.line_count:,} lines in {counted(scan.file_count, 'file')} read"]
        if scan.groups:
            siblings = sum(len(group.blocks) for group in scan.groups)
            parts.append(f"{siblings} blocks are siblings, in {counted(len(scan.groups), 'group')}")
        if scan.look_alikes:
            parts.append(f"{counted(len(scan.look_alikes), 'look-alike')} left out")
        yield self.paint("; ".join(parts), "dim")
        if scan.skipped:
            names = ", ".join(scan.skipped[:4]) + (", …" if len(scan.skipped) > 4 else "")
            yield self.paint(f"skipped: {names}", "dim")
        for source in scan.problems:
            yield self.paint(f"not read: {source.path}: {printable(source.problem)}", "yellow")
        for failure in scan.failures:
            place = f"{failure.file}:{failure.line} {failure.function or '<module>'}"
            text = f"not analysed: {place}: {printable(failure.reason)}; please report this"
            yield self.paint(text, "yellow")

    # == Findings ==

    def findings(self, scan: Scan) -> Iterator[str]:
        if not scan.findings:
            return
        yield ""
        yield self.paint("What may change results, the worst first", "bold")
        shown = scan.findings if self.is_full else scan.findings[:WORST]
        for number, finding in enumerate(shown, 1):
            yield from self.finding(number, finding)
        if len(shown) < len(scan.findings):
            yield self.paint(f"    … {len(scan.findings) - len(shown)} more (--all)", "dim")

    def finding(self, number: int, finding: Finding) -> Iterator[str]:
        hue = "red" if finding.harm >= 70 else "yellow" if finding.harm >= 45 else "cyan"
        text = wrap(f"{finding.message}", self.width - 5)
        yield f"{self.paint(f'{number:>3}', hue)}  {text[0]}"
        for line in text[1:]:
            yield f"     {line}"
        limit = len(finding.places) if self.is_full else 3
        places = ", ".join(finding.places[:limit])
        more = f", … {len(finding.places) - limit} more" if len(finding.places) > limit else ""
        for line in wrap(f"{places}{more}", self.width - 5):
            yield self.paint(f"     {line}", "dim")
        if not finding.group:
            yield self.paint(f"     → {finding.fix}", "green")

    # == Groups ==

    def group_tables(self, scan: Scan) -> Iterator[str]:
        groups = [group for group in scan.groups if group.differing]
        shown = groups if self.is_full else groups[:SHOWN_GROUPS]
        for group in shown:
            yield ""
            count = counted(len(group.differing), "fact")
            title = f"Siblings {group.name}: {len(group.blocks)} blocks differ in {count}"
            yield self.paint(title, "bold")
            yield from (
                self.matrix(group) if len(group.blocks) <= MATRIX_COLUMNS else self.majority(group)
            )
        if len(shown) < len(groups):
            yield self.paint(
                f"… {counted(len(groups) - len(shown), 'group')} more (--all, or --html)", "dim"
            )

    def matrix(self, group: Group) -> Iterator[str]:
        """Facts in rows, blocks in columns; what is not the usual value is marked."""
        facts = group.differing if self.is_full else group.differing[: SHOWN_FACTS + 2]
        room = (self.width - 24) // len(group.blocks) - 2
        heads = [short_place(block, group.blocks) for block in group.blocks]
        rows = [["", *heads]]
        for fact in facts:
            rows.append([fact] + [cell(block, group, fact) for block in group.blocks])
        yield from self.columns(rows, group, facts, room)

    def columns(
        self, rows: Sequence[Sequence[str]], group: Group, facts: Sequence[str], room: int
    ) -> Iterator[str]:
        widths = [
            min(room, max(len(row[index]) for row in rows)) for index in range(1, len(rows[0]))
        ]
        for number, row in enumerate(rows):
            cells = [fit(text, width, at_end=number == 0) for text, width in zip(row[1:], widths)]
            painted = list(cells)
            if number:
                for index, block in enumerate(group.blocks):
                    if group.is_odd(block, facts[number - 1]):
                        painted[index] = self.paint(cells[index], "yellow")
            yield f"  {row[0]:<22}" + "  ".join(painted).rstrip()

    def majority(self, group: Group) -> Iterator[str]:
        """One line for each fact: what most do, and how many do what else."""
        facts = group.differing if self.is_full else group.differing[:SHOWN_FACTS]
        for fact in facts:
            counts = group.values(fact).most_common()
            usual, count = counts[0]
            others = ", ".join(f"{value} ×{times}" for value, times in counts[1:5])
            more = f", … {len(counts) - 5} more" if len(counts) > 5 else ""
            first, *rest = wrap(f"{others}{more}", self.width - 52)
            yield f"  {fact:<22}{fit(f'{usual} ×{count}', 26)}  {first}".rstrip()
            for line in rest:
                yield " " * 52 + line
        if len(facts) < len(group.differing):
            yield self.paint(
                f"  … {len(group.differing) - len(facts)} more facts (--all, or --html)", "dim"
            )

    # == Blocks ==

    def block_table(self, scan: Scan) -> Iterator[str]:
        yield ""
        yield self.paint("Blocks", "bold")
        shown = scan.blocks if self.is_full else scan.blocks[:SHOWN_BLOCKS]
        for block in shown:
            yield from self.block_lines(block)
        if len(shown) < len(scan.blocks):
            yield self.paint(f"  … {len(scan.blocks) - len(shown)} more (--all)", "dim")

    def block_lines(self, block: ScannedBlock) -> Iterator[str]:
        what = f"{block.library}, {block.kind}" if block.kind != "text" else block.library
        name = block.function or "<module>"
        yield f"  {self.paint(block.place, 'cyan')}  {name}  {self.paint(what, 'dim')}"
        for line in wrap(summary(block), self.width - 6):
            yield f"      {line}"
        if self.is_full:
            if block.callers:
                yield self.paint(f"      called at {', '.join(block.callers[:4])}", "dim")
            yield self.paint(f"      {block.record}", "dim")
            if block.note:
                yield self.paint(f"      ({block.note})", "dim")

    # == What to do ==

    def next_steps(self, scan: Scan) -> Iterator[str]:
        yield ""
        yield self.paint("Next", "bold")
        first = next((block for block in scan.blocks if block.target), scan.blocks[0])
        yield "  record what a block does before you move it, for example:"
        yield f"    {first.record}"
        yield "  all blocks, each with its record line: --all; a page: --html scan.html"
        yield "  in CI: --write-baseline once, then --fail-on new"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        printable(text), width, break_long_words=False, break_on_hyphens=False
    ) or [""]


def fit(text: str, width: int, *, at_end: bool = False) -> str:
    """A text in a column.   at_end: keep its end, as of a path."""
    if len(text) > width:
        text = f"…{text[len(text) - width + 1 :]}" if at_end else f"{text[: width - 1]}…"
    return f"{text:<{width}}"


def short_place(block: ScannedBlock, blocks: Sequence[ScannedBlock]) -> str:
    """A place without the folders that all of a group share."""
    folders = [other.file.split("/")[:-1] for other in blocks]
    shared = 0
    while all(len(folder) > shared and folder[shared] == folders[0][shared] for folder in folders):
        shared += 1
    return "/".join(block.file.split("/")[shared:]) + f":{block.line}"


def cell(block: ScannedBlock, group: Group, fact: str) -> str:
    mark = "*" if group.is_odd(block, fact) else ""
    return f"{block.facts[fact]}{mark}"


def summary(block: ScannedBlock) -> str:
    """The facts that decide most, in a line."""
    facts = block.facts
    parts = list[str]()
    for name in (
        "dtype",
        "padding_side",
        "template",
        "do_sample",
        "temperature",
        "max_new_tokens",
        "prompt_slice",
        "logprobs",
        "prompt_logprobs",
    ):
        fact = facts[name]
        if fact.is_said and str(fact) not in ("none", "False"):
            parts.append(f"{name} {fact}")
    if not facts["do_sample"].is_said and block.library in ("transformers", "pipeline"):
        parts.append("do_sample not said")
    return " · ".join(parts) or NOTHING_SAID.get(block.library, "sets nothing")
