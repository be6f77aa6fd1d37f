"""The values that a benchmark is made of: what was answered, how fast, and what that is against what."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.bench.workloads import Ids, Work

DIFFER = 1  # the exit code of a run whose answers differ by more than rounding
INTERRUPTED = 130  # of a run that was stopped by Ctrl-C, as shells have it
OURS = ("hf", "vllm", "hf guessing")

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
class Answered:
    """What one call gave.   first, last: when this process held the first and the last token of each
    request, seconds since the call began; in any order, empty where that cannot be seen."""

    answers: list[Answer]
    first: list[float]
    last: list[float]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading a backend cost. seconds: without the libraries' import.   memory: bytes that came with it."""

    backend: str
    seconds: float
    import_seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a contender over a workload's requests.   seconds: of its calls.   first, last: see Answered.
    memory: bytes that were in use at its peak and not before it."""

    answers: tuple[Answer, ...]
    seconds: float
    first: tuple[float, ...]
    last: tuple[float, ...]
    memory: int

    @property
    def tokens(self) -> int:
        return sum(len(answer.ids) for answer in self.answers)

    @property
    def speed(self) -> float:
        """Answer tokens a second, the prompts' time included."""
        return self.tokens / self.seconds


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of them do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(slots=True)
class Measured:
    """One contender on one workload.   loaded: bytes that loading its backend took.   room: bytes of the peak of
    the small run, or of its engine's warm-up: what a process took once it often keeps."""

    contender: str
    runs: list[Run] = field(default_factory=list)
    loaded: int = 0
    room: int = 0

    @property
    def answers(self) -> tuple[Answer, ...]:
        return self.runs[0].answers

    @property
    def same(self) -> bool:
        """Whether its runs agree."""
        return all([a.ids for a in run.answers] == [a.ids for a in self.answers] for run in self.runs)

    @property
    def tokens(self) -> int:
        return self.runs[0].tokens

    @property
    def speeds(self) -> list[float]:
        return [run.speed for run in self.runs]

    @property
    def memory(self) -> int:
        """Bytes of its backend: loaded, and at the highest peak of a run."""
        return self.loaded + max(self.room, *(run.memory for run in self.runs))

    def first_token(self, share: float) -> float | None:
        """A percentile of seconds to the first token, over the requests of all runs."""
        return percentile([seconds for run in self.runs for seconds in run.first], share)

    def whole(self, share: float) -> float | None:
        """A percentile of seconds to the last token."""
        return percentile([seconds for run in self.runs for seconds in run.last], share)


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

    @property
    def parted(self) -> str:
        return f"{self.rows - self.equal} of {self.rows}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """contender's tokens a second ÷ against's, run by run; empty where the answers differ by a fault.
    tokens: what either gave. Where answers part their lengths may, too: each is counted by its own tokens."""

    contender: str
    against: str
    verdict: Verdict
    values: tuple[float, ...]
    tokens: tuple[int, int] = (0, 0)

    @property
    def row(self) -> str:
        """The contender beside which a table has it: each has one at most."""
        return self.contender if self.against in OURS else self.against

    @property
    def has_winner(self) -> bool:
        """Whether all runs agree which of the two is faster."""
        return bool(self.values) and not min(self.values) <= 1 <= max(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def coverage(repeats: int) -> float:
    """How probably the range of so many ratios holds their true median: all lie on one side of it by chance else."""
    return 1 - 0.5 ** (repeats - 1)


@dataclass(frozen=True, slots=True)
class Result:
    """One workload at one load on one model."""

    model: str
    work: Work
    measured: tuple[Measured, ...]
    ratios: tuple[Ratio, ...]

    @property
    def differs(self) -> bool:
        return any(ratio.verdict.is_fault for ratio in self.ratios) or any(not m.same for m in self.measured)

    def ratio_beside(self, contender: str) -> Ratio | None:
        return next((ratio for ratio in self.ratios if ratio.row == contender), None)


@dataclass(frozen=True, slots=True)
class Bench:
    """A whole run, for the reports.   on_accelerator: whose memory it is, the process's else."""

    results: tuple[Result, ...]
    loads: tuple[tuple[str, Loaded], ...]  # (model, what loading it cost)
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    clock: str = "wall"
    on_accelerator: bool = False
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return DIFFER if any(result.differs for result in self.results) else 0
