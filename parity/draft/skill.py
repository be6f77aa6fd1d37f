"""SKILL.md: one page from which a coding agent moves a call site."""

from __future__ import annotations

from pathlib import Path

HEAD = """---
name: parity
description: Move code that generates with transformers or vLLM onto gen_engine, and prove with \
recorded goldens that nothing changed. Use it when asked to migrate, centralise or check LLM \
generation call sites.
---
"""


def page() -> str:
    """The page in the form that agents read: a head with name and description, then the text."""
    return HEAD + "\n" + text()


def text() -> str:
    return (Path(__file__).parent / "skill.md").read_text(encoding="utf-8")


def agents_section() -> str:
    """A section for AGENTS.md."""
    return text().replace("\n## ", "\n### ").replace("# Move a call site", "## Move a call site", 1)
