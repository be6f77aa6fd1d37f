"""The documents of this repository, and the fenced blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def documents(root: Path) -> list[Path]:
    """Every document that a person wrote; tables that programs write are none."""
    written = {"parity/proof/matrix.md", "parity/proof/referee_table.md"}
    found = [*root.glob("*.md"), *root.glob("golden/*.md"), *(root / "parity").rglob("*.md")]
    return sorted(path for path in found if path.relative_to(root).as_posix() not in written)


def workflow_commands(node: Any) -> Iterator[str]:
    """Each `run` and `entry` of a workflow, of any depth."""
    if isinstance(node, list):
        for item in node:
            yield from workflow_commands(item)
    elif isinstance(node, dict):
        yield from (node[key] for key in ("run", "entry") if key in node)
        for value in node.values():
            yield from workflow_commands(value)


def blocks(document: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block, in order."""
    return FENCE.findall(document.read_text(encoding="utf-8"))
