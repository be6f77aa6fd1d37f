"""What a library's file holds beside the code: cases, and mistakes in the moved functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["BACKENDS", "DTYPES", "REAL", "TINY", "Case", "Mistake", "MistakeError"]

BACKENDS = ("hf", "vllm")
DTYPES = ("float32", "bfloat16")
TINY, REAL = ("float32",), ("bfloat16",)  # the dtype of each checkpoint


@dataclass(frozen=True, slots=True)
class Case:
    """One call of `old_FUNCTION`, whose move is `FUNCTION`.
    arguments: beside model_path and dtype.
    backends: what the moved code is checked on. The old code of a vLLM class is compared with vLLM
        only."""

    name: str
    function: str
    arguments: Mapping[str, Any]
    backends: tuple[str, ...] = BACKENDS


class MistakeError(ValueError):
    """A mistake that does not apply to the source."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One edit of the moved code that a migrating engineer could make by mistake.
    cases: where it shows. Names with blanks between.
    right: causes or their stages, any of which is right, in this form, too. Chosen from README
        before the harness was asked.
    find, replace: the edit; `find` stands in the code exactly once."""

    name: str
    cases: str
    right: str
    find: str
    replace: str = ""
    backends: tuple[str, ...] = BACKENDS
    dtypes: tuple[str, ...] = DTYPES

    def apply(self, source: str) -> str:
        """The code of a library's file, up to its cases, with the mistake. Raises MistakeError."""
        code = source.partition("\ndef cases(")[0]
        count = code.count(self.find)
        if count != 1:
            raise MistakeError(
                f"mistake {self.name!r}: its text stands {count} times in the moved source, "
                "expected once. Bring `find` up to date."
            )
        return code.replace(self.find, self.replace)
