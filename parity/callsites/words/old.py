"""What callers are told, word for word, and what is made of what they write: a sheet for each part of the gateway.

The sheets, says.json, were read and approved by hand; a word that changes is seen by its readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHEETS: dict[str, Any] = json.loads(Path(__file__).with_name("says.json").read_text("utf-8"))


def sheet(name: str) -> Any:
    return SHEETS[name]
