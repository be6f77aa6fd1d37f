"""A scan from files to findings."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.scan.blocks import (
    ANALYSIS_ERRORS,
    Block,
    Failure,
    Finder,
    LookAlike,
    Sinks,
    failure_of,
)
from parity.scan.evaluator import Evaluator
from parity.scan.facts import Facts, kind_of
from parity.scan.files import Found, Source, find_files, parse
from parity.scan.findings import Finding, find_all
from parity.scan.groups import Group, make_groups
from parity.scan.index import Repository
from parity.scan.kinds import Kinds
from parity.scan.site import Recording, ScannedBlock


@dataclass
class Scan:
    """The inventory.   problems: files that could not be read. failures: functions and blocks that
    could not be analysed. skipped: folders that were not entered."""

    blocks: list[ScannedBlock] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    look_alikes: list[LookAlike] = field(default_factory=list)
    problems: list[Source] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    file_count: int = 0
    line_count: int = 0

    @property
    def libraries(self) -> Counter[str]:
        return Counter(block.library for block in self.blocks)

    @property
    def drifts(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.group]

    def as_json(self) -> dict[str, Any]:
        return {
            "blocks": [block_json(block) for block in self.blocks],
            "groups": [group_json(group) for group in self.groups],
            "findings": [finding_json(finding) for finding in self.findings],
            "look_alikes": [vars(look_alike) for look_alike in self.look_alikes],
            "unreadable": [
                {"file": source.path, "problem": source.problem} for source in self.problems
            ],
            "not_analysed": [vars(failure) for failure in self.failures],
            "skipped": self.skipped,
            "files": self.file_count,
            "lines": self.line_count,
        }


def block_json(block: ScannedBlock) -> dict[str, Any]:
    facts = {
        name: {"value": fact.value, "from": fact.source, "text": str(fact)}
        for name, fact in block.facts.items()
    }
    found = {
        "file": block.file, "line": block.line, "function": block.function,
        "library": block.library, "kind": block.kind, "class": block.block.thing.name,
        "facts": facts, "group": block.group,
        "callers": block.callers, "record": block.record,
    }  # fmt: skip
    cell = block.block.module.source.cell(block.block.node.lineno)
    if cell:
        found["cell"] = cell
    if block.note:
        found["note"] = block.note
    return found


def group_json(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "blocks": [block.place for block in group.blocks],
        "differing": {
            fact: {block.place: str(block.facts[fact]) for block in group.blocks}
            for fact in group.differing
        },
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule, "harm": finding.harm, "message": finding.message, "fix": finding.fix,
        "places": finding.places, "group": finding.group or None,
    }  # fmt: skip


def scan(paths: Sequence[str]) -> Scan:
    """Scan files and folders. Nothing of them is imported or run."""
    was_enabled = gc.isenabled()
    gc.disable()  # a tree has a million objects and no garbage: collecting takes half of the time
    try:
        return scan_files(find_files(paths))
    finally:
        if was_enabled:
            gc.enable()


def scan_files(found: Found) -> Scan:
    repository = Repository(found.sources)
    evaluator = Evaluator(repository)
    kinds = Kinds(evaluator)
    sinks = Finder(repository, evaluator, kinds).find()
    recording = Recording(repository, kinds)
    pairs = describe_all(sinks, evaluator, kinds, recording)
    blocks = [block for block, _ in pairs]
    name_blocks(blocks)
    unique_sites(blocks)
    groups = make_groups(blocks)
    for source in found.sources:
        parse(source)
    return Scan(
        blocks=blocks,
        groups=groups,
        findings=find_all(pairs, groups),
        look_alikes=sinks.look_alikes,
        problems=[source for source in found.sources if source.problem],
        failures=sinks.failures,
        skipped=found.skipped,
        file_count=len(found.sources),
        line_count=found.line_count,
    )


def describe_all(
    sinks: Sinks, evaluator: Evaluator, kinds: Kinds, recording: Recording
) -> list[tuple[ScannedBlock, Facts]]:
    """The facts of all blocks. A block that cannot be analysed becomes one of `sinks.failures`."""
    pairs = list[tuple[ScannedBlock, Facts]]()
    for block in sinks.blocks:
        try:
            scanned, facts = describe(block, evaluator, kinds)
            recording.describe(scanned)
            scanned.callers = callers_of(block, kinds)
        except ANALYSIS_ERRORS as error:
            sinks.failures.append(failure_of(error, block.scope, block.line))
            continue
        pairs.append((scanned, facts))
    return pairs


def describe(block: Block, evaluator: Evaluator, kinds: Kinds) -> tuple[ScannedBlock, Facts]:
    facts = Facts(block, evaluator, kinds)
    values = facts.collect()
    return ScannedBlock(block, kind_of(block), values), facts


def callers_of(block: Block, kinds: Kinds) -> list[str]:
    """The places within the repository that call the function of a block."""
    found = list[str]()
    for caller, call in kinds.calls_of(block.scope, 8):
        source = caller.module.source
        found.append(f"{caller.module.path}:{source.line(call.lineno)}")
    return found


def name_blocks(blocks: Sequence[ScannedBlock]) -> None:
    """Give each block a name that stays when lines move: file, function, library and number among
    these."""
    counts = Counter[str]()
    for block in blocks:
        base = f"{block.file}::{block.function or '<module>'}::{block.library}"
        counts[base] += 1
        block.key = base if counts[base] == 1 else f"{base}::{counts[base]}"


def unique_sites(blocks: Sequence[ScannedBlock]) -> None:
    """Blocks of one function are one site; two functions that would have the same name get another
    one."""
    targets: dict[str, str] = {}
    for block in blocks:
        target = f"{block.file} {block.target}"
        name = block.site
        number = 2
        while targets.setdefault(name, target) != target:
            name = f"{block.site}-{number}"
            number += 1
        block.record = block.record.replace(f" {block.site}=", f" {name}=").replace(
            f"--name {block.site} ", f"--name {name} "
        )
        block.site = name
