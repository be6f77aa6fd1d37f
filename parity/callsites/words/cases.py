"""A case for each sheet of what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DIFFERS: dict[str, str] = {}
SAMPLED: frozenset[str] = frozenset()

NAMES = (
    "errors", "imports", "companions", "versions", "library-calls", "bounds", "contracts", "load-keywords", "requests",
    "messages", "pictures", "picture-parts", "chats", "templates", "stops", "checkpoints", "checkpoint-files", "plans",
    "prompts", "windows", "picture-budgets", "endings", "watches", "results", "releases", "refusals",
    "out-of-memory", "batches", "processors", "steps", "memory", "hf-loads", "vllm-loads", "vllm-params", "vllm-runs",
    "engines", "events", "weights", "fallbacks", "command", "declared", "readers", "details", "beside",
    "columns", "verbs",
)  # fmt: skip


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    return [(name, "sheet", {"name": name}) for name in NAMES]
