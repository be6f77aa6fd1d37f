"""What a library's folder is made of: cases of its old code, and mistakes in its moved code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["BACKENDS", "DTYPES", "Case", "Mistake", "MistakeError"]

BACKENDS = ("hf", "vllm")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a library's old code.
    function: its name in old.py and in moved.py.
    backends: what the moved code is checked on. The old code of a vLLM class is compared with vLLM
        only."""

    name: str
    function: str
    arguments: Mapping[str, Any]
    backends: tuple[str, ...] = BACKENDS


class MistakeError(ValueError):
    """A mistake that does not apply to the moved source."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One edit of moved.py that a migrating engineer could make by mistake.
    what: the engineer's mistake, as a sentence.
    find, replace: the edit; `find` stands in the source exactly once.
    right_causes: the cause names, any of which is right. Chosen from README before the harness was
        asked.
    cases: where it shows."""

    name: str
    what: str
    find: str
    replace: str
    right_causes: tuple[str, ...]
    cases: tuple[str, ...]
    backends: tuple[str, ...] = BACKENDS
    dtypes: tuple[str, ...] = DTYPES

    def apply(self, source: str) -> str:
        """The moved source with the mistake in it. Raises MistakeError."""
        count = source.count(self.find)
        if count != 1:
            raise MistakeError(
                f"mistake {self.name!r}: its text stands {count} times in the moved source, "
                "expected once. Bring `find` up to date."
            )
        return source.replace(self.find, self.replace)
