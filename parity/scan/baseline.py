"""The committed baseline of `--fail-on`, and the sites that `--write` begins with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.goldens.folder import GoldenFolder, write_whole
from parity.scan.findings import Finding
from parity.scan.scan import Scan
from parity.scan.site import ScannedBlock

VERSION = 1
SITES = "sites.json"
MOST = 10_000_000  # bytes of a sites.json


@dataclass(frozen=True)
class Baseline:
    """What was there when it was written.   blocks: keys. drifts: keys of drift findings."""

    blocks: frozenset[str]
    drifts: frozenset[str]

    def new_blocks(self, scan: Scan) -> list[ScannedBlock]:
        return [block for block in scan.blocks if block.key not in self.blocks]

    def new_drifts(self, scan: Scan) -> list[Finding]:
        return [finding for finding in scan.drifts if finding.key not in self.drifts]


def read_baseline(path: Path) -> Baseline:
    """Raises ValueError for a file that is no baseline."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}, expected {VERSION}")
        return Baseline(frozenset(found["blocks"]), frozenset(found["drifts"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no baseline of parity scan ({error}). Write it with --write-baseline"
        ) from error


def write_baseline(path: Path, scan: Scan) -> None:
    content = {
        "version": VERSION,
        "blocks": sorted(block.key for block in scan.blocks),
        "drifts": sorted(finding.key for finding in scan.drifts),
    }
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def write_sites(goldens: str, blocks: Sequence[ScannedBlock]) -> tuple[int, int]:
    """Add the sites of blocks to sites.json; what is in it stays. Returns how many were added and
    how many functions were there.

    Raises ValueError where the file is not an object."""
    folder = GoldenFolder(goldens)
    known: dict[str, Any] = {}
    if folder.exists(SITES):
        known = json.loads(folder.read(SITES, most=MOST))
        if not isinstance(known, dict):
            raise ValueError(f"{goldens}/{SITES}: expected an object of sites. Mend it or move it")
    functions = {name for entry in known.values() for name in entry.get("functions", ())}
    added = dict[str, Any]()
    for block in blocks:
        if block.target and block.target not in functions and block.site not in known:
            added.setdefault(block.site, {"functions": [block.target]})
    if added:
        folder.write((json.dumps({**known, **added}, indent=2) + "\n").encode(), SITES)
    return len(added), len(functions)
