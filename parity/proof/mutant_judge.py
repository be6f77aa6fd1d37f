"""Judges mutants of gen_engine.py by the goldens alone: each in a fork, until the first golden
fails.

    for result in judge_mutants(store, trials, "hf"):
        ...

A golden judges a mutant if its recorded run passes the changed lines (parity.proof.reach). The
engine's own tests have no part in it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from parity.goldens.acceptance import with_acceptances
from parity.goldens.store import Store
from parity.goldens.verdict import Check, Outcome
from parity.judge.check import Job
from parity.judge.session import MOST_ENGINES, Session
from parity.judge.site import Pending, check_site
from parity.judge.worker import Worker
from parity.proof.forks import Died, engine_source, forked, job_of, prepare
from parity.proof.reach import Passage, Reach, cases_for, reach_of

How = Literal["named", "unnamed", "crash", "hang", "survived", "unreached"]
CAUGHT: tuple[How, ...] = ("named", "unnamed", "crash", "hang")

# Seconds that a golden may take under a mutation: this, and ten times what it takes without one.
PATIENCE = 60
SLOWER = 10
MEMORY = 8 << 30  # bytes that a mutant may take beside what the process has: two run at a time
SILENCE = 3600  # seconds until a worker that says nothing is ended; each golden has its own limit


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant to be judged. lines: those whose passing makes a golden its judge."""

    number: int
    source: str
    lines: frozenset[int]
    in_call: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant on a backend.

    how: "named": a golden fails, and the check names a cause; "unnamed": it names none; "crash":
    the engine raised, or its process died; "hang": it took too long; "survived": all goldens that
    pass it agree; "unreached": none passes it.
    golden: the one that failed, "site/case".   cause: its cause.   sentence: the check's own words.
    goldens: how many pass the changed lines.   tried: how many of them were run.
    seconds: on the clock.   cpu: seconds of a processor; 0 where the process died.
    """

    number: int
    backend: str
    how: How
    golden: str = ""
    cause: str = ""
    sentence: str = ""
    goldens: int = 0
    tried: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def is_caught(self) -> bool:
        return self.how in CAUGHT


def judge_mutants(store: Store, trials: Sequence[Trial], backend: str) -> Iterator[Result]:
    """In a process of its own, which ends with them: what was loaded for them goes with it."""
    with Worker() as worker:
        job = str(store.root), tuple(trials), backend
        yield from worker.run(JUDGED, job, limit=SILENCE)


# == In that process ==


def judged(job: tuple[str, tuple[Trial, ...], str]) -> Iterator[Result]:
    root, trials, backend = job
    store = Store(root)
    prepare(store, cases_for(store, backend), backend)
    reach = reach_of(store, backend)
    for passage in reach.passages:
        if not passage.passes:
            said = f"{backend}: {passage.case} is left out: it fails without a mutation"
            print(f"{said} ({', '.join(passage.verdicts)})", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        tempfile.tempdir = folder  # a fork that is ended by a signal leaves its files there
        yield from judged_by(store, reach, trials, backend)


def judged_by(
    store: Store,
    reach: Reach,
    trials: Sequence[Trial],
    backend: str,
) -> Iterator[Result]:
    jobs: dict[int, Any] = {}
    judges: dict[int, list[Passage]] = {}
    for trial in trials:
        passages = judges_of(reach, trial)
        if passages:
            judges[trial.number] = passages
            job = functools.partial(judge_mutant, store, trial.source, passages, backend)
            jobs[trial.number] = job
        else:
            yield Result(trial.number, backend, "unreached")
    for number, found, seconds in forked(jobs):
        result = result_of(found)
        goldens = len(judges[number])
        yield replace(result, number=number, backend=backend, goldens=goldens, seconds=seconds)


def judges_of(reach: Reach, trial: Trial) -> list[Passage]:
    """The goldens that pass a mutant; all of them where it changes what importing the file
    makes."""
    return reach.passing(trial.lines) if trial.in_call else reach.usable()


# == In a fork ==


@dataclass(frozen=True, slots=True)
class Tried:
    """failing: the first outcome that fails the check.   tried: goldens that were run.   cpu:
    seconds."""

    failing: Outcome | None
    tried: int
    cpu: float


def judge_mutant(store: Store, source: str, passages: Sequence[Passage], backend: str) -> Tried:
    limit_memory()
    with engine_source(source):
        return Judging(store, passages, backend).first_failure()


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Judging:
    """Judges goldens as `check` does, those of a site together, and ends at the first failure."""

    def __init__(self, store: Store, passages: Sequence[Passage], backend: str) -> None:
        self.store = store
        self.backend = backend
        self.job = job_of(store, [passage.case for passage in passages], backend)
        self.seconds = {passage.case: passage.seconds for passage in passages}
        self.pending = Pending.of(store)
        self.outcomes = list[Outcome]()
        self.tried = 0

    def first_failure(self) -> Tried:
        with contextlib.ExitStack() as stack:
            factories = factories_of(self.job)
            session = stack.enter_context(Session(self.store, self.job.functions, factories))
            for site, names in by_site(self.job):
                failing = self.failure_at(session, site, names)
                if failing is not None:
                    stack.pop_all()  # the fork ends now, and its engines with it
                    return self.result(failing)
        return self.result(self.last_failure())

    def failure_at(self, session: Session, site: str, names: list[str]) -> Outcome | None:
        """The first outcome of a site that fails for good."""
        if len(session.observer.opened) > MOST_ENGINES:
            session.forget()
        settings = self.job.settings[site]
        found = check_site(session, site, names, self.backend, settings, self.pending)
        for outcome in timed(found, [self.seconds[f"{site}/{name}"] for name in names]):
            self.tried += 1
            self.outcomes.append(outcome)
            if self.fails(outcome) and not self.is_open(outcome):
                return outcome
        return None

    def is_open(self, outcome: Outcome) -> bool:
        """Whether the numerics of its site may still change a verdict."""
        case = outcome.site, outcome.case
        asked = [question.old for question in self.pending.numerics.open]
        return any((old.site, old.case) == case for old in asked)

    def last_failure(self) -> Outcome | None:
        """When all have run: what the numerics say, and the samples of a site together."""
        self.pending.numerics.judge()
        return next(filter(self.fails, self.pending.settle(self.outcomes)), None)

    def fails(self, outcome: Outcome) -> bool:
        final, _ = with_acceptances([outcome], self.store.accepted(), datetime.date.today())
        return fails(final[0])

    def result(self, failing: Outcome | None) -> Tried:
        found = None if failing is None else slim(failing)
        return Tried(found, self.tried, time.process_time())


def factories_of(job: Job) -> dict[str, Any]:
    return {site: own.get("arguments", {}) for site, own in job.settings.items()}


def by_site(job: Job) -> Iterator[tuple[str, list[str]]]:
    """(site, its cases): the site of the first case first."""
    sites = list(dict.fromkeys(site for _, site, _ in job.items))
    items = sorted(job.items, key=lambda item: sites.index(item[1]))
    for site, own in itertools.groupby(items, key=lambda item: item[1]):
        yield site, [name for _, _, name in own]


def timed(outcomes: Iterator[Outcome], seconds: Sequence[float]) -> Iterator[Outcome]:
    """The outcomes; a signal ends the process where one of them takes too long."""
    for each in seconds:
        signal.alarm(int(PATIENCE + SLOWER * each))
        yield next(outcomes)
    signal.alarm(int(PATIENCE + SLOWER * sum(seconds)))  # what is read of a whole site
    yield from outcomes


def fails(outcome: Outcome) -> bool:
    return bool(Check((outcome,)).failing())


def slim(outcome: Outcome) -> Outcome:
    """Without the recordings, which may be long."""
    return replace(outcome, old=None, new=None, differences=())


def result_of(found: Tried | Died) -> Result:
    if isinstance(found, Died):
        how: How = "hang" if found.is_hang else "crash"
        return Result(0, "", how, sentence=f"its process ended with exit code {found.exit_code}")
    if found.failing is None:
        return Result(0, "", "survived", tried=found.tried, cpu=found.cpu)
    cause = found.failing.cause
    name, sentence = (cause.name, cause.sentence) if cause else ("", "")
    how = how_caught(found.failing)
    return Result(0, "", how, found.failing.label, name, sentence, tried=found.tried, cpu=found.cpu)


def how_caught(outcome: Outcome) -> How:
    if outcome.verdict not in ("DRIFT", "LATENT") or outcome.cause is None:
        return "crash"
    if outcome.cause.name == "error":
        return "crash"
    return "unnamed" if outcome.cause.certainty == "unattributed" else "named"


JUDGED = f"{judged.__module__}:{judged.__qualname__}"
