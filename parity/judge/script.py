"""Judges a whole script: it runs once, observed as the old one was; its calls are paired with the
goldens."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.acceptance import with_acceptances
from parity.golden import Case, GoldenError, Store, environment, objects_in
from parity.judge.case import Judge
from parity.judge.counterfactual import backend_of
from parity.judge.replay import Engines, Replay
from parity.judge.session import refuse_not_run
from parity.judge.site import GivenSeeds, Pending, error_outcome, missing, of_one_case
from parity.record import observe
from parity.record.changing import as_recorded
from parity.record.recorder import Seen, Starting
from parity.verdict import Check, Outcome, Policy


class Replays:
    """In an observed script: before each call of a site, set up the replay that belongs to its
    golden."""

    def __init__(
        self,
        observer: observe.Observer,
        *,
        goldens: str,
        backend: str | None,
        load: Any,
        parts: Any,
        per_backend: Any,
    ) -> None:
        self.observer, self.store = observer, Store(goldens)
        self.load = {**load, **({"backend": backend} if backend else {})}
        self.parts, self.per_backend, self.engines = frozenset(parts), per_backend, Engines()
        observer.replay = Replay(self.engines, self.load, per_backend)

    def __call__(self, call: observe.Call) -> None:
        rows: Sequence[Mapping[str, Any]] = ()
        with contextlib.suppress(GoldenError):  # a call without a golden runs as it is
            rows = self.store.read(call.site, call.case).rows
        settings = self.per_backend.get(call.site, {})
        self.observer.replay = Replay(
            self.engines, self.load, settings, self.parts, rows, self.store
        )


REPLAYS = (  # the observed processes import it by this name
    f"{Replays.__module__}:{Replays.__qualname__}"
)


def data_of(case: Case) -> dict[str, Any]:
    """The arguments that are data: objects may be others now, and are no reason not to pair two
    calls."""
    return {name: value for name, value in case.arguments.items() if not objects_in(value)}


def paired_cases(
    goldens: Sequence[Case], found: Sequence[Case]
) -> list[tuple[Case | None, Case | None]]:
    """Goldens and calls that belong together: by arguments, else by name."""
    left = {(case.site, case.case): case for case in found}
    by_arguments = {}
    for old in goldens if any(case.arguments for case in found) else ():
        key = key_of_arguments(old, left)
        if key is not None:
            by_arguments[old.site, old.case] = left.pop(key)
    pairs: list[tuple[Case | None, Case | None]] = []
    for old in goldens:
        key = old.site, old.case
        pairs.append((old, by_arguments[key] if key in by_arguments else left.pop(key, None)))
    return [*pairs, *((None, new) for new in left.values())]


def key_of_arguments(old: Case, left: Mapping[tuple[str, str], Case]) -> tuple[str, str] | None:
    """A call of equal arguments; of several, the one of the golden's name."""
    data = data_of(old)
    same = [key for key, case in left.items() if key[0] == old.site and data_of(case) == data]
    return min(same, key=lambda key: key[1] != old.case, default=None)


def check_script(
    store: Store,
    observed: Callable[[Starting], Seen],
    *,
    sites: Sequence[str],
    backend: str | None = None,
    policy: Policy | None = None,
    numerics: bool = False,
) -> Check:
    """A whole script. observed: runs it, with what is called before each call, and reports what it
    did.

    The script runs once: what it does beside asking models is not done again to prove a cause. One
    that ended with an error that was not there when it was recorded, or was not wholly seen, is an
    ERROR of each site beside its cases. A golden that the script did not reach is UNUSED, a call
    that has no golden is MISSING. Its engines are in another process: where a site's numerics are
    asked for, plain transformers stands for a script that used them. Sites that sites.json keeps
    from `backend` are left out.
    """
    started = time.perf_counter()
    settings = store.settings()
    wanted, left_out = sites_for(settings, sites, backend)
    base: dict[str, Any] = {
        "goldens": str(store.root),
        "backend": backend,
        "load": {},
        "parts": [],
        "per_backend": {site: own.get("load", {}) for site, own in settings.items()},
    }
    seen = observed((REPLAYS, base))
    run = ScriptRun(store, Pending.of(store, always=numerics), backend)
    for site in wanted:
        expected = settings.get(site, {}).get("exit_code", 0)
        for fault in script_faults(seen, site, expected):
            run.outcomes.append(error_outcome(site, "*", run.label, fault))
    run.judge_all(seen.cases, wanted)
    outcomes = run.settled()
    final, unused = with_acceptances(outcomes, store.accepted(), datetime.date.today())
    seconds = time.perf_counter() - started
    measured = run.pending.numerics.told()
    return Check(final, policy or Policy(), environment(), seconds, left_out, measured, unused)


def sites_for(
    settings: Mapping[str, Mapping[str, Any]], sites: Sequence[str], backend: str | None
) -> tuple[list[str], tuple[str, ...]]:
    """(the sites that are for a backend, what is said of the others)."""
    wanted = []
    left_out = []
    for site in sites:
        own = settings.get(site, {}).get("backends")
        if backend and own and backend not in own:
            left_out.append(f"{site} on {backend} (sites.json: {', '.join(own)})")
        else:
            wanted.append(site)
    return wanted, tuple(left_out)


@dataclass
class ScriptRun:
    """The cases of one run of a script.   backend: that was asked for; None: whatever the script
    loads."""

    store: Store
    pending: Pending
    backend: str | None
    outcomes: list[Outcome] = field(default_factory=list)
    judges: dict[str, Judge] = field(default_factory=dict)
    seeds: dict[tuple[str, str], GivenSeeds] = field(
        default_factory=dict
    )  # (site, backend) -> of its cases

    @property
    def label(self) -> str:
        """The backend of what did not run: the one that did, if there is one."""
        return self.backend or next(iter(self.judges), "hf")

    def judge_of(self, backend: str) -> Judge:
        if backend not in self.judges:
            pending = self.pending
            self.judges[backend] = Judge(  # a script runs once
                self.store, backend, lambda *_: None, pending.numerics, ledgers=pending.ledgers
            )
        return self.judges[backend]

    def judge_all(self, cases: Sequence[Case], sites: Sequence[str]) -> None:
        goldens, broken = self.store.read_all(sites)
        unreached = []
        for old, new in paired_cases(goldens, cases):
            if new is None:
                unreached.append(old)
            elif old is not None:
                self.judge_case(old, new)
            elif (new.site, new.case) not in broken and new.site in sites:
                said = "the script made a call that has no golden"
                self.outcomes.append(
                    missing(new.site, new.case, self.backend or backend_of(new), said)
                )
        for golden in unreached:
            assert golden is not None
            notes = ("the script did not reach it",)
            self.outcomes.append(
                Outcome(golden.site, golden.case, self.label, "UNUSED", notes=notes)
            )
        for place, error in broken.items():
            self.outcomes.append(error_outcome(*place, self.label, error))

    def judge_case(self, old: Case, new: Case) -> None:
        backend = self.backend or backend_of(new)
        judge = self.judge_of(backend)
        try:
            refuse_not_run(old, new)
            made = dataclasses.replace(as_recorded(old, new), case=old.case)
            outcome = judge.outcome(old, made)
            self.seeds.setdefault((old.site, backend), GivenSeeds()).add(outcome, old, made)
        except Exception as error:  # noqa: BLE001 - a fault of one case ends one case, not the others
            outcome = error_outcome(old.site, old.case, backend, of_one_case(error))
        self.outcomes.append(outcome)

    def settled(self) -> list[Outcome]:
        """The outcomes, when the script has ended and with it its engines."""
        for (site, backend), seeds in self.seeds.items():
            for outcome in seeds.judge_repeated(self.judges[backend]):
                self.pending.again[site, outcome.case, backend] = outcome
            self.pending.numerics.read(site, backend, {})
        self.pending.numerics.judge()
        return self.pending.settle(self.outcomes)


def script_faults(seen: Seen, site: str, expected: int) -> Iterator[str]:
    """Why what was seen of a script is not all that there was to see, or ended in an error.
    expected: its exit code."""
    code = seen.returncode
    if seen.stopped:
        yield (
            f"the script {seen.stopped} and was ended with its children; --time-limit says another"
            " time"
        )
    elif code not in (0, expected):
        how = (
            f"with exit code {code}"
            if code > 0
            else f"by signal {-code} ({signal.Signals(-code).name})"
        )
        yield (
            f"the script ended {how}, and with {expected} when it was recorded; it may have said"
            " why above. If it is "
            f'to end so, write into sites.json: "{site}": {{"exit_code": {code}}}'
        )
    if seen.failures:
        yield f"not all could be observed: {'; '.join(dict.fromkeys(seen.failures))}"
