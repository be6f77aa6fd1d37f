"""Blocks that are copies of one another, and what differs among them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parity.scan.index import called_name
from parity.scan.origins import Fact
from parity.scan.site import ScannedBlock

LIKENESS = 0.45  # of the names that two functions call; copies in lmms-eval have 0.5 to 0.9
UNDECIDED = (  # of these nothing follows for the comparison
    "whoever", "this repository", "nothing is decoded", "no chat template", "pads nothing",
)  # fmt: skip
LIKENESS_OF_NAMESAKES = 0.25  # where the functions have the same name as well
COMMON = {
    "print",
    "len",
    "range",
    "str",
    "int",
    "append",
    "join",
    "format",
    "info",
    "isinstance",
    "list",
    "zip",
    "enumerate",
}


@dataclass
class Group:
    """Siblings.   name: what most of their functions are called. differing: facts that differ, in
    order."""

    name: str
    blocks: list[ScannedBlock] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)

    def values(self, fact: str) -> Counter[str]:
        return Counter(str(block.facts[fact]) for block in self.blocks)

    def usual(self, fact: str) -> str:
        """What most blocks of the group do; "" where no value has a majority."""
        [(value, count)] = self.values(fact).most_common(1)
        return value if count * 2 > len(self.blocks) else ""

    def is_odd(self, block: ScannedBlock, fact: str) -> bool:
        usual = self.usual(fact)
        return len(self.blocks) > 2 and usual != "" and str(block.facts[fact]) != usual


def features(block: ScannedBlock) -> frozenset[str]:
    """The names that a function calls, and the keywords that it gives."""
    found = set[str]()
    for call in block.block.scope.calls:
        name = called_name(call)
        if name and name not in COMMON:
            found.add(name)
            found.update(f"{name}({keyword.arg}=)" for keyword in call.keywords if keyword.arg)
    return frozenset(found)


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    union = len(one | other)
    return len(one & other) / union if union else 0.0


def is_encoder_decoder(block: ScannedBlock) -> bool:
    return block.kind in ("seq2seq", "audio")


def is_sibling(block: ScannedBlock, group: Group, known: dict[int, frozenset[str]]) -> bool:
    """Whether a block is like the blocks of a group, on average over some of them."""
    first = group.blocks[0]
    if first.library != block.library or is_encoder_decoder(first) != is_encoder_decoder(block):
        return False
    some = group.blocks[:8]
    total = sum(likeness(known[id(block)], known[id(other)]) for other in some) / len(some)
    last = block.function.rpartition(".")[2]
    is_namesake = bool(last) and last == first.function.rpartition(".")[2]
    return total >= (LIKENESS_OF_NAMESAKES if is_namesake else LIKENESS)


def comparable(fact: Fact) -> str | None:
    """A fact as it is compared among siblings; None where its value is not known."""
    if fact.is_literal or fact.value is not None:
        is_number = isinstance(fact.value, int) and not isinstance(fact.value, bool)
        return repr(float(fact.value) if is_number else fact.value)
    if any(words in fact.source for words in UNDECIDED):
        return None
    if fact.source.startswith("not said"):
        _, opened, default = fact.source.rpartition(" (")
        known = {"True)": "True", "False)": "False", "1)": "1.0", "1.0)": "1.0"}
        return known.get(default, "not said") if opened else "not said"
    return None


def differs(facts: Iterable[Fact]) -> bool:
    known = {text for text in map(comparable, facts) if text is not None}
    return len(known) > 1


def group_name(blocks: Sequence[ScannedBlock]) -> str:
    """What the functions are called, the usual name first; outside functions, the folder."""
    folder = os.path.basename(os.path.dirname(blocks[0].file)) or "scripts"
    names = Counter(block.function.rpartition(".")[2] or folder for block in blocks)
    first, *others = [name for name, _ in names.most_common()]
    if len(others) > 2:
        return f"{first} and {len(others)} other names"
    return ", ".join([first, *others])


def make_groups(blocks: Sequence[ScannedBlock]) -> list[Group]:
    """Groups of at least two blocks, the largest first."""
    known = {id(block): features(block) for block in blocks}
    groups = list[Group]()
    for block in blocks:
        home = next((group for group in groups if is_sibling(block, group, known)), None)
        if home is None:
            home = Group("")
            groups.append(home)
        home.blocks.append(block)
    groups = sorted(
        (group for group in groups if len(group.blocks) > 1), key=lambda group: -len(group.blocks)
    )
    used = Counter[str]()
    for group in groups:
        name = group_name(group.blocks)
        used[name] += 1
        group.name = name if used[name] == 1 else f"{name}-{used[name]}"
        for fact in group.blocks[0].facts:
            if differs(block.facts[fact] for block in group.blocks):
                group.differing.append(fact)
        for block in group.blocks:
            block.group = group.name
    return groups
