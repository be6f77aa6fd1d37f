"""The values that a benchmark is made of: what was answered, how fast, and what that is against what."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.bench.workloads import Ids, Work

DIFFER = 1  # the exit code of a run whose answers differ


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got. prompt_ids: what the model was given, None where a contender does not say."""

    prompt_ids: Ids | None
    ids: Ids
    text: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading a backend cost. seconds: without the libraries' import.   memory: bytes of RSS that came with it."""

    backend: str
    seconds: float
    import_seconds: float
    memory: int


@dataclass(slots=True)
class Measured:
    """One contender on one workload. full, first: seconds of each repeat, with all tokens and with one.

    peak: bytes of RSS of the whole process, other backends included.   same: whether its own repeats agree.
    """

    contender: str
    answers: list[Answer] = field(default_factory=list)
    full: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    peak: int = 0
    same: bool = True

    @property
    def tokens(self) -> int:
        return sum(len(answer.ids) for answer in self.answers)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(answer.prompt_ids or ()) for answer in self.answers)

    @property
    def speeds(self) -> list[float]:
        """Tokens a second of each repeat, prefill included."""
        return [self.tokens / seconds for seconds in self.full]

    @property
    def prefill_speed(self) -> float:
        return self.prompt_tokens / statistics.median(self.first)

    @property
    def decode_speed(self) -> float | None:
        """Tokens after the first a second, or None where there are none, or too few to be seen."""
        seconds = statistics.median(self.full) - statistics.median(self.first)
        later = self.tokens - len(self.answers)
        return later / seconds if later and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two contenders answered the same.   equal: rows with the same ids.   why: the first difference."""

    name: str
    equal: int
    rows: int
    why: str = ""

    @property
    def passes(self) -> bool:
        return self.name in ("IDENTICAL", "NEAR-TIE")


@dataclass(frozen=True, slots=True)
class Ratio:
    """contender's tokens a second ÷ against's, repeat by repeat; empty where the answers differ."""

    contender: str
    against: str
    verdict: Verdict
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One workload on one model."""

    model: str
    work: Work
    measured: tuple[Measured, ...]
    ratios: tuple[Ratio, ...]

    @property
    def differs(self) -> bool:
        return any(not ratio.verdict.passes for ratio in self.ratios) or any(not m.same for m in self.measured)


@dataclass(frozen=True, slots=True)
class Bench:
    """A whole run, for the reports."""

    results: tuple[Result, ...]
    loads: tuple[tuple[str, Loaded], ...]  # (model, what loading it cost)
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    clock: str = "wall"

    @property
    def exit_code(self) -> int:
        return DIFFER if any(result.differs for result in self.results) else 0
