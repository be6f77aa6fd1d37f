"""What both paths are asked: our own small set, or a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.judge.numerics.own_texts import QUESTIONS

Prompt = Mapping[str, Any]  # {"messages": [...]} or {"prompt": "..."}


def own_prompts() -> list[Prompt]:
    return [{"messages": [{"role": "user", "content": text}]} for text in QUESTIONS]


def read_prompts(file: Path) -> list[Prompt]:
    """Raises ValueError for a line that is neither a chat nor a text."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [read_line(f"{file}:{k}", line) for k, line in enumerate(lines, 1) if line.strip()]


def read_line(where: str, line: str) -> Prompt:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: no JSON ({error}). Write one object a line.") from None
    if not isinstance(value, dict) or set(value) not in ({"messages"}, {"prompt"}):
        raise ValueError(f'{where}: expected {{"messages": [...]}} or {{"prompt": "..."}}.')
    return value
