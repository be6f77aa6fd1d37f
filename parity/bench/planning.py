"""How much can be measured in the time that there is, from a small run of everything.

Each contender answers one call of each load with a few tokens. That warms it up, and says how long its first token and
a further one take: a run of any length is first + (tokens − 1) × further for each of its calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.bench.workloads import Work

FEW = 4  # answer tokens of the small run
LENGTHS = (128, 64, 32, 16)  # of answers, the longest that leave time for ENOUGH repeats
ENOUGH = 5  # repeats: their range holds the median in 94 of 100
MOST = 10
LEAST = 3
JUDGING = 0.15  # of all the time, for judging answers that part
PASSES = 10  # times what a prompt token takes on the way to a first token is what judging a token takes: float32 and
# three probes of it, every token's logits, twice in the model's own dtype (an estimate, from SmolLM2 on a CPU)
GROWTH = 2.0  # of the small run's time, when the load grows four times

Key = tuple[str, str]  # a workload's label, a contender


@dataclass(frozen=True, slots=True)
class Trial:
    """One call with FEW tokens.   first, further: seconds to the first tokens and to one more each."""

    first: float
    further: float

    def seconds(self, calls: int, tokens: int) -> float:
        return calls * (self.first + (tokens - 1) * self.further)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be measured.   seconds: of one round, in which every contender runs each workload once.
    judging: seconds that judging may take.   judged_tokens: how many it reads in them.
    asked: whether the number of repeats was, which no clock cuts short."""

    works: tuple[Work, ...]
    repeats: int
    seconds: float
    judging: float
    judged_tokens: int
    asked: bool = False

    @property
    def tokens(self) -> int:
        return self.works[0].max_new_tokens


def calls_of(work: Work) -> int:
    return len(work.requests) // work.load


def round_seconds(works: Sequence[Work], trials: Mapping[Key, Trial], tokens: int) -> float:
    by_label = {work.label: work for work in works}
    return sum(
        trial.seconds(calls_of(by_label[label]), tokens) for (label, _), trial in trials.items() if label in by_label
    )


def loads_that_fit(works: Sequence[Work], trials: Mapping[Key, Trial], left: float, lengths: Sequence[int]) -> int:
    """The greatest load up to which LEAST repeats of the shortest answers fit; the smallest one where none does."""
    loads = sorted({work.load for work in works})
    fits = [
        load
        for load in loads
        if LEAST * round_seconds([work for work in works if work.load <= load], trials, min(lengths)) <= left
    ]
    return fits[-1] if fits else loads[0]


def make_plan(
    works: Sequence[Work],
    trials: Mapping[Key, Trial],
    left: float,
    *,
    tokens: int | None,
    repeats: int | None,
    judging: float,
    judged_tokens: int,
) -> Plan:
    """left: seconds for measuring.   tokens, repeats: those that were asked for, which no clock changes."""
    lengths = (tokens,) if tokens else LENGTHS
    if not repeats:
        most = loads_that_fit(works, trials, left, lengths)
        works = [work for work in works if work.load <= most]

    def repeats_in_time(length: int) -> int:
        return int(min(MOST, left / max(1e-9, round_seconds(works, trials, length))))

    length = next((length for length in lengths if repeats_in_time(length) >= (repeats or ENOUGH)), lengths[-1])
    chosen = repeats or max(LEAST, repeats_in_time(length))
    sized = tuple(work.with_length(length) for work in works)
    seconds = round_seconds(works, trials, length)
    return Plan(sized, chosen, seconds, judging, judged_tokens, asked=repeats is not None)


def next_trial_seconds(tried: float, load: int, then: int) -> float:
    """What the small run of the next load takes, at most."""
    return tried * math.pow(GROWTH, math.log(then / load, 4))
