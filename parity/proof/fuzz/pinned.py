"""Failures that `make fuzz` has found, each as its smallest call: asked before anything generated,
and by the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.proof.fuzz.values import Case

FILE = Path(__file__).with_name("pinned.jsonl")


@dataclass(frozen=True)
class Pinned:
    """backend: where it was found.   key: what the failure was.   is_open: it is not mended yet."""

    backend: str
    key: str
    case: Case
    is_open: bool

    def dumps(self) -> str:
        case = json.loads(self.case.dumps())
        record = {"backend": self.backend, "key": self.key, "open": self.is_open, "case": case}
        return json.dumps(record)

    @classmethod
    def loads(cls, record: Mapping[str, Any]) -> Pinned:
        case = Case.loads(record["case"])
        return cls(record["backend"], record["key"], case, record["open"])


def read_pinned(file: Path = FILE) -> list[Pinned]:
    if not file.exists():
        return []
    return [Pinned.loads(json.loads(line)) for line in file.read_text().splitlines()]


def pin(found: Sequence[Pinned], file: Path = FILE) -> int:
    """Add failures that are not there yet; returns how many."""
    known = {(old.backend, old.key) for old in read_pinned(file)}
    new = [one for one in found if (one.backend, one.key) not in known]
    with file.open("a") as stream:
        stream.writelines(one.dumps() + "\n" for one in new)
    return len(new)
