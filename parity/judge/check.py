"""Runs the moved code on what the goldens hold, and judges. Writes nothing, ever.

    check_sites(Store("golden"), backends=("hf", "vllm"))    each golden's arguments through the
                                                             moved function
    check_script(Store("golden"), ["python", "new.py"], …)   a whole script, observed as the old one
                                                             was
    check_again(Store("golden"))                             --ab: the old function now against the
                                                             new function now

sites.json says which functions are called (a golden is data: it cannot choose), where the moved
code is (without it, the function that was recorded is called again: code that was changed in
place), what makes arguments that are no data, and how engines are loaded for a check:

    {"summaries": {"functions": ["pkg.old:summarize"],                   those that `record --site`
    was told of
                   "moved": {"pkg.old": "pkg.new"},                      module to module, or
                                                                         function to function
                   "arguments": {"model": "pkg.setup:load_model"},       functions without arguments
                   "backends": ["hf", "vllm"],
                   "load": {"vllm": {"max_model_len": 1024}}}}

Moved code runs in a process of its own (worker.py): an exit, a crash or a hang is an ERROR of one
case.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from parity.environment.libraries import settle
from parity.goldens.acceptance import with_acceptances
from parity.goldens.store import GoldenError, Store, chosen_cases, environment
from parity.goldens.verdict import Check, Outcome, Policy
from parity.goldens.verdict import Numerics as Measurement
from parity.judge.numerics.questions import FURTHER_SECONDS
from parity.judge.session import Session
from parity.judge.site import Pending, check_site, error_outcome, missing
from parity.judge.sites import (
    argv_of,
    expect_cases,
    for_backend,
    merged_settings,
    named_function,
    pairs_asked,
)
from parity.judge.worker import Died, Worker

Result = TypeVar("Result")


class Progress(Protocol):
    """Is told how far a check is, from several threads."""

    def begin(self, total: int) -> None: ...

    def judged(self, outcome: Outcome) -> None: ...

    def together(self, waiting: int) -> None: ...


Item = tuple[str, str, str]  # backend, site, case


def item_of(outcome: Outcome) -> Item:
    return outcome.backend, outcome.site, outcome.case


TIME_LIMIT = 600.0  # seconds that one case may take, with loading its model
# of processes in a row, by one site on one backend: its other cases are not tried any more
MOST_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to judge. items: those of one backend together.   functions: where the
    sites' functions are."""

    root: str
    items: tuple[Item, ...]
    settings: Mapping[str, Mapping[str, Any]]
    functions: Mapping[str, str]
    numerics: bool = False
    is_whole: bool = False
    numerics_seconds: float = FURTHER_SECONDS
    explains: bool = False


def check_sites(
    store: Store,
    *,
    sites: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
    policy: Policy | None = None,
    moved: Mapping[str, str] | None = None,
    numerics: bool = False,
    numerics_seconds: float = FURTHER_SECONDS,
    progress: Progress | None = None,
    time_limit: float = TIME_LIMIT,
    worker: Worker | None = None,
    jobs: int = 1,
    explains: bool = False,
) -> Check:
    """Every golden that was asked for, on each backend. moved: where recorded functions are now,
    over sites.json.

    backends: those of each site's settings where not given.   time_limit: seconds of one case.
    worker: the process that moved code runs in (None: the one that this process keeps).   jobs:
    such processes at a time.   numerics_seconds: that a site may take for tokens beyond its
    goldens'.   explains: call the new code again, to see whether it does the same.
    """
    started = time.perf_counter()
    chosen = chosen_cases(store, sites, cases)
    settings = merged_settings(store, list(chosen), moved or {})
    plan = plan_of(store, chosen, settings, backends)
    job = Job(
        str(store.root),
        (),
        settings,
        plan.functions,
        numerics,
        is_whole=True,
        numerics_seconds=numerics_seconds,
        explains=explains,
    )
    if progress:
        progress.begin(len(plan.items))
    found = judged_beside(job, shares(plan.items, jobs), worker, time_limit, progress)
    outcomes = sorted([*plan.refused, *found.outcomes], key=plan.place_of)
    seconds = time.perf_counter() - started
    final, unused = with_acceptances(outcomes, store.accepted(), datetime.date.today())
    left_out = tuple(plan.left_out)
    how = policy or Policy()
    return Check(final, how, found.machine, seconds, left_out, found.told, unused)


@dataclass
class Plan:
    """What is to be judged.   order: of outcomes.   functions: where the sites' functions are.
    refused: outcomes of goldens that nothing can be run for.   left_out: what sites.json says is
    for other backends."""

    items: list[Item] = field(default_factory=list)
    order: dict[Item, int] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    refused: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def place_of(self, outcome: Outcome) -> tuple[int, str]:
        return self.order[item_of(outcome)], outcome.case

    def add(self, store: Store, item: Item, settings: Mapping[str, Any]) -> None:
        backend, site, name = item
        refused = unfit(store, site, name, backend, settings, self.functions)
        if refused is None:
            self.items.append(item)
        else:
            self.refused.append(refused)


def plan_of(
    store: Store,
    chosen: Mapping[str, Sequence[str]],
    settings: Mapping[str, Mapping[str, Any]],
    backends: Sequence[str] | None,
) -> Plan:
    asked, left_out = pairs_asked(settings, backends)
    plan = Plan(left_out=left_out)
    for place, (site, backend) in enumerate(asked):
        for name in (*chosen[site], "*"):
            plan.order[backend, site, name] = place
        own = settings[site].get("cases", {})
        expect_cases(store, site, own)
        fitting, apart = for_backend(chosen[site], backend, own)
        for name, of in apart.items():
            plan.left_out.append(f"{site}/{name} on {backend} (sites.json: {', '.join(of)})")
        if not fitting and not apart:
            fitting = ["*"]
        for name in fitting:
            plan.add(store, (backend, site, name), settings[site])
    return plan


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of items.   machine: the environment that they ran in.   told: numerics."""

    outcomes: Sequence[Outcome]
    machine: dict[str, Any]
    told: tuple[Measurement, ...]


def judged_beside(
    job: Job,
    parts: Sequence[tuple[Item, ...]],
    worker: Worker | None,
    time_limit: float,
    progress: Progress | None,
) -> Ended:
    """Each part in a process of its own, side by side."""
    with contextlib.ExitStack() as stack:
        under_way = []
        for number, items in enumerate(parts):
            process = stack.enter_context(Worker()) if number else worker or Worker.shared()
            part = dataclasses.replace(job, items=items)
            under_way.append(beside(judged_apart, process, part, time_limit, progress))
        ended = [future.result() for future in under_way]
    outcomes = list(itertools.chain.from_iterable(one.outcomes for one in ended))
    told = tuple(itertools.chain.from_iterable(one.told for one in ended))
    return Ended(outcomes, max((one.machine for one in ended), key=len), told)


def shares(items: Sequence[Item], jobs: int) -> list[tuple[Item, ...]]:
    """Items for each of `jobs` processes, in their order, and about as long. A site's of one
    backend stay together: they share engines."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault(item[:2], []).append(item)
    count = max(1, min(jobs, len(groups)))
    parts: list[list[Item]] = [[] for _ in range(count)]
    for group in sorted(groups.values(), key=seconds_of, reverse=True):
        min(parts, key=seconds_of).extend(group)
    ranks = {group: rank for rank, group in enumerate(groups)}
    for part in parts:
        part.sort(key=lambda item: ranks[item[:2]])
    return list(map(tuple, parts))


# of a case, about, on tiny models: measured over this repository's goldens
SECONDS = {"hf": 0.12, "vllm": 0.3}


def seconds_of(items: Sequence[Item]) -> float:
    return sum(SECONDS[backend] for backend, _, _ in items)


def beside(work: Callable[..., Result], *given: Any) -> Future[Result]:
    """Work in a thread that does not keep an interrupted process from ending."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*given))
        except BaseException as error:  # noqa: BLE001 - `result` raises it again
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def unfit(
    store: Store,
    site: str,
    name: str,
    backend: str,
    settings: Mapping[str, Any],
    functions: dict[str, str],
) -> Outcome | None:
    """What is to be said of a golden that nothing can be run for; of others, the function is noted
    in `functions`."""
    if name == "*":
        why = f"no golden under {store.root / site}; record the old code first"
        if site in store.settings():
            why += f", or, if the call site is gone: python -m parity prune {site} --yes"
        return missing(site, "*", backend, why)
    if not store.exists(site, name):
        return missing(site, name, backend, f"there is no {store.path(site, name)}")
    try:
        functions[named_function(store.read(site, name), settings)] = site
    except GoldenError as error:
        return error_outcome(site, name, backend, error)
    return None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Of the outcome before it: it is not final until all cases of its site are judged together."""


@dataclass(frozen=True, slots=True)
class Together:
    """Behind the last outcome: cases are judged together now, which runs no code of anybody's and
    may take as long as all of them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """At the end of a worker's work: the site's numerics, what outcomes become by them, and the
    machine."""

    told: tuple[Measurement, ...] = ()
    settled: Mapping[Item, Outcome] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)


Found = Outcome | Waiting | Together | Measured


def judged(job: Job) -> Iterator[Found]:
    """In the worker: an outcome for each item, in order, and at the very end, when all engines are
    closed, what was measured."""
    store = Store(job.root)
    pending = Pending.of(
        store,
        always=job.numerics,
        is_whole=job.is_whole,
        explains=job.explains,
        seconds=job.numerics_seconds,
    )
    factories = {site: said.get("arguments", {}) for site, said in job.settings.items()}
    outcomes: list[Outcome] = []
    for backend in dict.fromkeys(backend for backend, _, _ in job.items):
        names = [(site, name) for b, site, name in job.items if b == backend]
        with Session(store, job.functions, factories, argv=argv_of(job.settings)) as session:
            for site, some in itertools.groupby(names, key=lambda item: item[0]):
                if session.is_full():
                    session.forget()
                    settle()  # here no engine is open: it would be left out of collections, too
                wanted = [name for _, name in some]
                for found in check_site(
                    session, site, wanted, backend, job.settings[site], pending
                ):
                    outcomes.append(found)
                    yield found
                    if pending.hangs(found):
                        yield Waiting()
    if pending.numerics.groups:
        yield Together()
    final = zip(outcomes, pending.settle(outcomes))
    settled = {item_of(new): new for old, new in final if new is not old}
    yield Measured(pending.told(), settled, environment())


JUDGED = f"{judged.__module__}:{judged.__qualname__}"  # workers import it by this name


def judged_apart(worker: Worker, job: Job, time_limit: float, progress: Progress | None) -> Ended:
    """An outcome for each item, whatever becomes of the processes that they run in; the machine;
    the numerics."""
    apart = Apart(list(job.items), progress)
    while apart.items:
        share = tuple(apart.items)
        apart.is_whole = False
        try:
            for found in worker.run(JUDGED, dataclasses.replace(job, items=share), time_limit):
                apart.take(found)
                if isinstance(found, Together):
                    worker.limit = time_limit * len(share)
        except Died as death:
            apart.bury(share, death)
    return apart.ended()


@dataclass
class Apart:
    """Items that are judged in processes which may end.   items: those that are left.   is_whole:
    the last process came to its end.   deaths: in a row, of a site on a backend.   waiting: places
    of outcomes that the living process has still to judge together."""

    items: list[Item]
    progress: Progress | None
    outcomes: list[Outcome] = field(default_factory=list)
    measured: Measured = field(default_factory=Measured)
    deaths: dict[tuple[str, str], int] = field(default_factory=dict)
    is_whole: bool = False
    waiting: list[int] = field(default_factory=list)

    def take(self, found: Found) -> None:
        """What a process yields."""
        self.is_whole = isinstance(found, Measured)
        if isinstance(found, Waiting):
            self.waiting.append(len(self.outcomes) - 1)
            return
        if isinstance(found, Together):
            if self.progress:
                self.progress.together(len(self.waiting))
            return
        if isinstance(found, Measured):
            self.waiting.clear()
            known = self.measured
            settled = {**known.settled, **found.settled}
            self.measured = Measured((*known.told, *found.told), settled, found.machine)
            return
        self.outcomes.append(found)
        self.deaths.pop(self.items.pop(0)[:2], None)
        if self.progress:
            self.progress.judged(found)

    def bury(self, share: Sequence[Item], death: Died) -> None:
        """The case that a process ended in is an error, and after some so are those behind it; so
        are those that it has not judged together."""
        for place in self.waiting:
            backend, site, name = item_of(self.outcomes[place])
            ended = f"the process ended before the cases of its site were judged together: {death}"
            said = f"{ended}; check this site alone"
            self.outcomes[place] = error_outcome(site, name, backend, said)
        self.waiting.clear()
        if not self.items:
            self.bury_sites(share, death)
            return
        backend, site, name = self.items.pop(0)
        said = f"the moved code did not come back: {death}"
        self.outcomes.append(error_outcome(site, name, backend, said))
        of_site = backend, site
        self.deaths[of_site] = self.deaths.get(of_site, 0) + 1
        if self.deaths[of_site] < MOST_DEATHS:
            return
        rest = [item for item in self.items if item[:2] == of_site]
        self.items = [item for item in self.items if item not in rest]
        said = f"not tried: {MOST_DEATHS} cases of this site in a row did not come back"
        self.outcomes += [error_outcome(site, name, backend, said) for _, _, name in rest]

    def bury_sites(self, share: Sequence[Item], death: Died) -> None:
        """A process that ended behind its last case, before they were judged together."""
        if self.is_whole:
            return
        ended = "the process of the moved code ended before its cases were judged together"
        for backend, site in dict.fromkeys(item[:2] for item in share):
            self.outcomes.append(error_outcome(site, "*", backend, f"{ended}: {death}"))

    def ended(self) -> Ended:
        settled = self.measured.settled
        final = [settled.get(item_of(outcome), outcome) for outcome in self.outcomes]
        return Ended(final, dict(self.measured.machine) or environment(), self.measured.told)
