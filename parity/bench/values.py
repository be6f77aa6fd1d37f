"""The values that a benchmark is made of: what was answered, how fast, and what that is against what."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.bench.workloads import Ids, Work

DIFFER = 1  # the exit code of a run whose answers differ by more than rounding

# Names of verdicts.
IDENTICAL = "IDENTICAL"
ROUNDING = "SAME WITHIN ROUNDING"
PARTED = "ANSWERS PART, TOO FEW TOKENS TO TELL WHY"
UNREAD = "ANSWERS PART, COULD NOT BE JUDGED"
DIFFERENT = "DIFFERENT"
OTHER_PROMPTS = "DIFFERENT PROMPTS"
FAULTS = (DIFFERENT, OTHER_PROMPTS)


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
    """Whether two contenders did the same work.   equal: rows with the same ids.   why: one sentence."""

    name: str
    equal: int
    rows: int
    why: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether a ratio would compare different work. Rounding, and what cannot be told, is no fault."""
        return self.name in FAULTS

    def __str__(self) -> str:
        if self.name == IDENTICAL:
            return f"{self.name}, {self.rows} of {self.rows} rows"
        parted = f"{self.name}, {self.rows - self.equal} of {self.rows} rows part"
        return parted if self.name in (ROUNDING, PARTED) or not self.why else f"{parted}; {self.why}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """contender's tokens a second ÷ against's, repeat by repeat; empty where the answers differ by a fault.
    tokens: what either gave. Where answers part their lengths may, too: each is counted by its own tokens."""

    contender: str
    against: str
    verdict: Verdict
    values: tuple[float, ...]
    tokens: tuple[int, int] = (0, 0)

    @property
    def has_winner(self) -> bool:
        """Whether all repeats agree which of the two is faster."""
        return bool(self.values) and not min(self.values) <= 1 <= max(self.values)


@dataclass(frozen=True, slots=True)
class Result:
    """One workload on one model."""

    model: str
    work: Work
    measured: tuple[Measured, ...]
    ratios: tuple[Ratio, ...]

    @property
    def differs(self) -> bool:
        return any(ratio.verdict.is_fault for ratio in self.ratios) or any(not m.same for m in self.measured)


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
