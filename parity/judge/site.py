"""What one case alone cannot say: asked over all cases of a site, and answered once, whatever their
order.

    pending = Pending.of(store)
    for outcome in check_site(session, site, names, backend, settings, pending):
        ...                            verdicts, some of them open
    pending.settle(outcomes)           the final ones, when every engine is closed

Three questions are open until all cases of a site were run: how large its rounding is (numerics),
whether its samples follow their settings together (samples), and whether its new code gives one
seed in call after call (`GivenSeeds`). Where only some cases were chosen, the samples and seeds of
the others are asked for all the same (`is_whole`), so that a verdict is the same in `check
SITE/CASE` and in `check SITE`. Acceptances come last, once, over a whole check
(parity/goldens/acceptance.py).
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Cause, Difference, Outcome
from parity.goldens.verdict import Numerics as Measurement
from parity.judge.align import paired
from parity.judge.case import Judge
from parity.judge.faults import COULD_NOT_JUDGE, HarnessFault, own_fault
from parity.judge.numerics.questions import FURTHER_SECONDS
from parity.judge.numerics.samples import Ledgers, settle_samples
from parity.judge.row import is_drawn, may_be_sampled, seed_source, seeds_of
from parity.judge.session import Session
from parity.judge.sites import new_function, raise_of_settings
from parity.judge.values import numbers_in
from parity.record.calls import words_and_place

if TYPE_CHECKING:
    from parity.judge.numerics.answers import Numerics


Key = tuple[str, str, str]  # site, case, backend


@dataclass
class Pending:
    """The open questions of a check.   is_whole: ask for the samples and seeds of a site's other
    cases, too."""

    store: Store
    numerics: Numerics
    ledgers: Ledgers = field(default_factory=dict)
    again: dict[Key, Outcome] = field(
        default_factory=dict
    )  # of cases whose seed is another case's, too
    is_whole: bool = False
    explains: bool = False

    @classmethod
    def of(
        cls,
        store: Store,
        *,
        always: bool = False,
        is_whole: bool = False,
        explains: bool = False,
        seconds: float = FURTHER_SECONDS,
    ) -> Pending:
        """always: measure the numerics of every site.   explains: of `Judge`.   seconds: that a
        site may take for tokens beyond its goldens'."""
        from parity.judge.numerics.answers import (
            Numerics,  # numpy, which `record` and `list` do without
        )

        return cls(store, Numerics(store, always, seconds), is_whole=is_whole, explains=explains)

    def settle(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes, their open questions answered, when every engine is closed: first what
        samples say, then what numerics say."""
        found = [self.again.get((o.site, o.case, o.backend), o) for o in outcomes]
        if self.ledgers:
            found = settle_samples(found, self.ledgers)
        if self.numerics.groups:
            self.numerics.judge()
            found = [self.with_numerics(outcome) for outcome in found]
        return found

    def hangs(self, outcome: Outcome) -> bool:
        """Whether an outcome is not final before `settle`."""
        ledger = self.ledgers.get((outcome.site, outcome.backend))
        is_sampled = ledger is not None and outcome.case in ledger.samples
        return is_sampled or self.numerics.hangs(outcome)

    def told(self) -> tuple[Measurement, ...]:
        """What was measured, behind `settle`."""
        return self.numerics.told() if self.numerics.groups else ()

    def with_numerics(self, outcome: Outcome) -> Outcome:
        answer = self.numerics.answer(outcome)
        if answer is None:
            return outcome
        verdict, cause, notes = answer
        return dataclasses.replace(outcome, verdict=verdict, cause=cause, notes=notes)


@dataclass
class GivenSeeds:
    """The seeds that a site's new code gives where a script had seeded the process: case -> its
    recordings, its seeds.

    A seed that comes in call after call makes equal samples where the old code made others. A seed
    that is an argument is the caller's."""

    cases: dict[str, tuple[Outcome, Case, Case, set[int]]] = field(default_factory=dict)

    def add(self, outcome: Outcome, old: Case, new: Case) -> None:
        given: set[int] = set()
        for row, other in paired(old.rows, new.rows):
            is_sampled = is_drawn(row) and is_drawn(other)
            if is_sampled and (seed_source(row), seed_source(other)) == ("script", "caller"):
                given |= seeds_of(other)
        if given:
            given -= numbers_in(old.arguments)
        if given:
            self.cases[old.case] = outcome, old, new, given

    def judge_repeated(self, judge: Judge) -> Iterator[Outcome]:
        """Cases all of whose seeds are given in another case, too: judged again, with that as a
        difference."""
        counts = Counter[int]()  # of the cases that a seed is given in
        for *_, given in self.cases.values():
            counts.update(given)
        for outcome, old, new, given in self.cases.values():
            if all(counts[seed] > 1 for seed in given):
                again = Difference("sampling", "seed", "what the script had seeded", min(given), 0)
                yield judge.outcome(old, new, outcome.seconds, (again,))


@dataclass
class SiteCheck:
    """One site on one backend, while its engines are loaded."""

    session: Session
    site: str
    backend: str
    settings: Mapping[str, Any]
    pending: Pending
    judge: Judge = field(init=False)
    seeds: GivenSeeds = field(default_factory=GivenSeeds)
    engines: dict[str, list[Any]] = field(
        default_factory=dict
    )  # case -> those that are read for numerics

    def __post_init__(self) -> None:
        self.judge = Judge(
            self.session.store,
            self.backend,
            self.run,
            self.pending.numerics,
            self.session.engine,
            self.resample,
            self.pending.ledgers,
            self.pending.explains,
        )

    def run(self, old: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        function = new_function(old.function, self.settings["moved"])
        wanted = {"backend": self.backend, **load}
        load_settings = self.settings.get("load", {})
        return self.session.call(old, function, wanted, load_settings, parts)

    def resample(self, old: Case, seed: int) -> Case:
        return self.session.resample(self.run, old, seed)

    def judged(self, name: str) -> Outcome:
        """The outcome of one golden, open questions noted."""
        started = time.perf_counter()
        try:
            old = self.session.store.read(self.site, name)
            new = self.run(old, {}, frozenset())
            seconds = time.perf_counter() - started
            ran = self.session.ran()
            outcome = self.judge.outcome(old, new, seconds)
            self.seeds.add(outcome, old, new)
            numerics = self.pending.numerics
            if numerics.open and numerics.wants(old, self.backend, self.engines):
                self.engines[name] = ran
        except Exception as error:  # noqa: BLE001 - it ends one case, not the others
            raise_of_settings(error, self.session.store, self.site, self.settings)
            return error_outcome(self.site, name, self.backend, of_one_case(error))
        return outcome

    def run_others(self, names: Sequence[str]) -> None:
        """Run the site's other goldens with samples, where a verdict hangs on them, and keep no
        outcome."""
        waits = bool(self.seeds.cases) or (self.site, self.backend) in self.pending.ledgers
        if not (waits and self.pending.is_whole):
            return
        store = self.session.store
        asked = self.pending.numerics.open
        questions = list(asked)
        for name in store.names(self.site):
            if name in names:
                continue
            try:
                golden = store.read(self.site, name)
            except GoldenError:
                continue  # it is reported where it is chosen
            if may_be_sampled(golden):
                self.judged(name)
        asked[:] = questions


def check_site(
    session: Session,
    site: str,
    names: Sequence[str],
    backend: str,
    settings: Mapping[str, Any],
    pending: Pending,
) -> Iterator[Outcome]:
    """An outcome for each golden, in order; `pending.settle` makes the final ones of them. Behind
    the last one, what the site's numerics need of the engines that ran is read."""
    check = SiteCheck(session, site, backend, settings, pending)
    for name in names:
        yield check.judged(name)
    check.run_others(names)
    for outcome in check.seeds.judge_repeated(check.judge):
        pending.again[site, outcome.case, backend] = outcome
    if pending.numerics.open:
        session.lend()
        pending.numerics.read(site, backend, check.engines, session.engines)


def missing(site: str, case: str, backend: str, why: str) -> Outcome:
    return Outcome(site, case, backend, "MISSING", notes=(why,))


def error_outcome(site: str, case: str, backend: str, error: BaseException | str) -> Outcome:
    cause = Cause("error", "unattributed", f"could not judge: {error}")
    return Outcome(site, case, backend, "ERROR", cause=cause)


def of_one_case(error: Exception) -> str:
    """What is said of an error that ends one case: its words where they are meant for this, else
    also where it was."""
    is_meant = isinstance(error, (*COULD_NOT_JUDGE, HarnessFault)) and not own_fault(error)
    return str(error) if is_meant else words_and_place(error)
