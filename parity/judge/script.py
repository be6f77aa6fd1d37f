"""Judges a whole script: it runs once, observed as the old one was; its calls are paired with the
goldens."""

from __future__ import annotations

import dataclasses
import datetime
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.goldens.acceptance import with_acceptances
from parity.goldens.store import Case, Store, by_base_names, environment, objects_in
from parity.goldens.verdict import Check, Outcome, Policy
from parity.judge.case import Judge
from parity.judge.inquiry import backend_of
from parity.judge.numerics.questions import FURTHER_SECONDS
from parity.judge.replay import Engines, Replay
from parity.judge.session import refuse_not_run
from parity.judge.site import GivenSeeds, Pending, error_outcome, missing, of_one_case
from parity.judge.sites import pairs_asked
from parity.record import observe
from parity.record.changing import as_recorded
from parity.record.recorder import Seen, Starting
from parity.record.taps.models import note_folder


class Replays:
    """In an observed script: before each call of a site, its engines are to be loaded as sites.json
    says, on the backend that was asked for."""

    def __init__(
        self, observer: observe.Observer, *, backend: str | None, loads: Mapping[str, Any]
    ) -> None:
        """loads: site -> backend -> load settings."""
        self.observer = observer
        self.load = {"backend": backend} if backend else {}
        self.loads = loads
        self.engines = Engines()
        observer.replay = Replay(self.engines, self.load)

    def __call__(self, call: observe.Call) -> None:
        self.observer.replay = Replay(self.engines, self.load, self.loads.get(call.site, {}))


REPLAYS = (  # the observed processes import it by this name
    f"{Replays.__module__}:{Replays.__qualname__}"
)


def data_of(case: Case) -> dict[str, Any]:
    """The arguments that are data: objects may be others now, and are no reason not to pair two
    calls; nor is where a file lies."""
    given = by_base_names(case.arguments)
    return {name: value for name, value in given.items() if not objects_in(value)}


def paired_cases(
    goldens: Sequence[Case], found: Sequence[Case]
) -> tuple[list[tuple[Case, Case]], list[Case], list[Case]]:
    """Goldens and calls that belong together, by arguments, else by name; goldens and calls that
    are left."""
    left = {(case.site, case.case): case for case in found}
    partners = {}
    has_arguments = any(case.arguments for case in found)
    for old in goldens if has_arguments else ():
        key = key_of_arguments(old, left)
        if key is not None:
            partners[old.site, old.case] = left.pop(key)
    pairs = []
    unreached = []
    for old in goldens:
        key = old.site, old.case
        new = partners.get(key) or left.pop(key, None)
        if new is None:
            unreached.append(old)
        else:
            pairs.append((old, new))
    return pairs, unreached, list(left.values())


def key_of_arguments(old: Case, left: Mapping[tuple[str, str], Case]) -> tuple[str, str] | None:
    """A call of equal arguments; of several, the one of the golden's name."""
    data = data_of(old)
    found = None
    for key, case in left.items():
        if case.site != old.site or data_of(case) != data:
            continue
        if key[1] == old.case:
            return key
        found = found or key
    return found


def check_script(  # noqa: PLR0913
    store: Store,
    observed: Callable[[Starting], Seen],
    *,
    sites: Sequence[str],
    backend: str | None = None,
    policy: Policy | None = None,
    numerics: bool = False,
    numerics_seconds: float = FURTHER_SECONDS,
) -> Check:
    """A whole script. observed: runs it, with what is called before each call, and reports what it
    did.

    The script runs once: what it does beside asking models is not done again to prove a cause. One
    that ended with an error that was not there when it was recorded, or was not wholly seen, is an
    ERROR of each site beside its cases. A golden that the script did not reach is UNUSED, a call
    that has no golden is MISSING. Its engines are in another process: where a site's numerics are
    asked for, the model is loaded anew, by the library that the script used. Sites that sites.json
    keeps from `backend` are left out.
    """
    started = time.perf_counter()
    settings = store.settings()
    chosen = {site: settings.get(site, {}) for site in sites}
    asked, left_out = pairs_asked(chosen, [backend] if backend else None)
    wanted = list(dict.fromkeys(site for site, _ in asked))
    loads = {site: own.get("load", {}) for site, own in settings.items()}
    seen = observed((REPLAYS, {"backend": backend, "loads": loads}))
    for folder in seen.folders:
        note_folder(folder)
    pending = Pending.of(store, always=numerics, seconds=numerics_seconds)
    run = ScriptRun(store, pending, backend)
    for site in wanted:
        expected = settings.get(site, {}).get("exit_code", 0)
        for fault in script_faults(seen, site, expected):
            run.outcomes.append(error_outcome(site, "*", run.label, fault))
    run.judge_all(seen.cases, wanted)
    outcomes = run.settled()
    final, unused = with_acceptances(outcomes, store.accepted(), datetime.date.today())
    seconds = time.perf_counter() - started
    measured = run.pending.told()
    return Check(
        final, policy or Policy(), environment(), seconds, tuple(left_out), measured, unused
    )


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
        pairs, unreached, left = paired_cases(goldens, cases)
        for old, new in pairs:
            self.judge_case(old, new)
        for new in left:
            if (new.site, new.case) not in broken and new.site in sites:
                said = "the script made a call that has no golden"
                backend = self.backend or backend_of(new)
                self.outcomes.append(missing(new.site, new.case, backend, said))
        notes = ("the script did not reach it",)
        for old in unreached:
            unused = Outcome(old.site, old.case, self.label, "UNUSED", notes=notes)
            self.outcomes.append(unused)
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
        except Exception as error:  # noqa: BLE001 - it ends one case, not the others
            outcome = error_outcome(old.site, old.case, backend, of_one_case(error))
        self.outcomes.append(outcome)

    def settled(self) -> list[Outcome]:
        """The outcomes, when the script has ended and with it its engines."""
        for (site, backend), seeds in self.seeds.items():
            for outcome in seeds.judge_repeated(self.judges[backend]):
                self.pending.again[site, outcome.case, backend] = outcome
            self.pending.numerics.read(site, backend, {})
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
        how = f"with exit code {code}"
        if code < 0:
            how = f"by signal {-code} ({signal.Signals(-code).name})"
        yield (
            f"the script ended {how}, and with {expected} when it was recorded; it may have said"
            " why above. If it is to end so, write into sites.json:"
            f' "{site}": {{"exit_code": {code}}}'
        )
    if seen.failures:
        yield f"not all could be observed: {'; '.join(dict.fromkeys(seen.failures))}"
