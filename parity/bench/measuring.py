"""Runs and what they took: seconds, when tokens came, memory."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parity.bench.contenders import Contender, Stopwatch
from parity.bench.planning import FEW, Trial
from parity.bench.values import Answer, Measured, Run
from parity.bench.workloads import Work

# == Memory ==


def accelerator() -> Any:
    """torch.cuda where there is one, else None."""
    cuda = importlib.import_module("torch").cuda
    return cuda if cuda.is_available() else None


def memory_now() -> int:
    """Bytes that are in use: the accelerator's, as torch has them; without one those of this process."""
    cuda = accelerator()
    return resident_now() if cuda is None else int(cuda.memory_allocated())


def resident_now() -> int:
    """Bytes of this process that are in memory. 0 where the system does not say: only Linux has /proc."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


class Peak:
    """Bytes that came into use inside a with block, at most: as torch counts them on an accelerator, else looked at
    every 20 ms."""

    def __enter__(self) -> Peak:
        self.before = self.highest = memory_now()
        self.cuda = accelerator()
        if self.cuda is not None:
            self.cuda.reset_peak_memory_stats()
            return self
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.02):  # 10 µs each: 0.05 % of a processor
            self.highest = max(self.highest, resident_now())

    def __exit__(self, *exc: object) -> None:
        if self.cuda is not None:
            self.highest = int(self.cuda.max_memory_allocated())
            return
        self._over.set()
        self._thread.join()
        self.highest = max(self.highest, resident_now())

    @property
    def bytes(self) -> int:
        return self.highest - self.before


# == Runs ==


def run_once(contender: Contender, work: Work, clock: str) -> Run:
    """All of a workload's calls, one after the other."""
    contender.forget()
    seconds = 0.0
    answers: list[Answer] = []
    first: list[float] = []
    last: list[float] = []
    with Peak() as peak:
        for call in work.calls():
            now = Stopwatch(clock)
            answered = contender.run(call, work.max_new_tokens, now)
            seconds += now()
            answers += answered.answers
            first += answered.first
            last += answered.last
    return Run(tuple(answers), seconds, tuple(first), tuple(last), peak.bytes)


def try_once(contender: Contender, work: Work) -> tuple[Trial, Run]:
    """The small run: one call of FEW tokens, by the wall's clock. Where no token's time can be seen, each takes the
    same."""
    few = min(FEW, work.max_new_tokens)
    call = next(work.with_length(few).calls())
    run = run_once(contender, call, "wall")
    first = max(run.first, default=run.seconds / few)
    return Trial(first, (run.seconds - first) / max(1, few - 1)), run


def measure(
    group: Sequence[Contender],
    work: Work,
    rows: Sequence[Measured],
    clock: str,
    step: Callable[[Measured], object] = lambda row: None,
) -> None:
    """One run of each contender in turn, added to its row. step: called after each."""
    for contender, row in zip(group, rows):
        row.runs.append(run_once(contender, work, clock))
        step(row)
