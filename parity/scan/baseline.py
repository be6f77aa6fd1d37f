"""The committed baseline of `--fail-on`, and the sites that `--write` begins with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.goldens.folder import GoldenFolder, read_regular, write_whole
from parity.goldens.store import SITES_JSON, Store
from parity.scan.findings import Finding
from parity.scan.scan import Scan
from parity.scan.site import ScannedBlock

VERSION = 1
MOST = 64 << 20  # bytes of a baseline


@dataclass(frozen=True)
class Baseline:
    """What was there when it was written.   blocks: keys. drifts: keys of drift findings."""

    blocks: frozenset[str]
    drifts: frozenset[str]

    def new_blocks(self, scan: Scan) -> list[ScannedBlock]:
        return [block for block in scan.blocks if block.key not in self.blocks]

    def new_drifts(self, scan: Scan) -> list[Finding]:
        return [finding for finding in scan.drifts if finding.key not in self.drifts]


def refuse_link_in_goldens(path: Path, goldens: str) -> None:
    """Raise GoldenError for a baseline among the goldens if a link or a pipe stands there."""
    if path.parent.resolve() == Path(goldens).resolve():
        GoldenFolder(goldens).place(path.name)


def read_baseline(path: Path) -> Baseline:
    """Raises ValueError for a file that is no baseline."""
    try:
        found = json.loads(read_regular(path, MOST, follow=True).decode())
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}, expected {VERSION}")
        return Baseline(frozenset(found["blocks"]), frozenset(found["drifts"]))
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
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

    Raises GoldenError where the file cannot be read, or is not an object of sites."""
    store = Store(goldens)
    known = store.settings()
    functions = {name for entry in known.values() for name in entry.get("functions", ())}
    added = dict[str, Any]()
    for block in blocks:
        if block.target and block.target not in functions and block.site not in known:
            added.setdefault(block.site, {"functions": [block.target]})
    if added:
        store.write_json({**known, **added}, SITES_JSON)
    return len(added), len(functions)
