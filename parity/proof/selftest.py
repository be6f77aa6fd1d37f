"""Does the checker catch what it should, name it right, and stay silent otherwise? python -m parity.proof selftest

Mutation testing with committed mutations: each of site_mutations.py is put into moved code that is right, and the
goldens on which it can show are checked. Then everything is checked without any mutation. The gate stands at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen_engine import OptionError, did_you_mean
from parity.environment.output_paths import file_to_write
from parity.goldens.causes import stage_of
from parity.goldens.store import Case, Store
from parity.goldens.verdict import Cause, Check, Outcome
from parity.judge.check import check_sites
from parity.judge.session import Session
from parity.judge.site import Pending, check_site
from parity.judge.sites import new_function
from parity.judge.worker import Worker
from parity.proof.callsites import probe
from parity.proof.callsites.record import FEW, LOADS
from parity.proof.forks import LIMIT, PROCESSES, Died, forked, prepare
from parity.proof.site_mutations import SITE_MUTATIONS, SiteMutation
from parity.record import observe

CAUGHT = 0.98
NAMED_RIGHT = 0.95
CLEAN_RUNS = 200
PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Score:
    """causes: the stages that are right, the plainest first."""

    name: str
    causes: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def caught(self) -> list[Outcome]:
        """What could not be judged is not caught: a process that dies dies of anything."""
        return [o for o in self.outcomes if o.verdict in ("DRIFT", "LATENT")]

    @property
    def named(self) -> bool:
        """Whether every outcome that caught it names a right cause."""
        return bool(self.caught) and not self.wrong

    @property
    def wrong(self) -> list[Outcome]:
        return [o for o in self.caught if o.cause is None or stage_of(o.cause.name) not in self.causes]

    @property
    def wrong_confirmed(self) -> list[Outcome]:
        """The gravest fault of the judge: it says that it is sure, and is wrong."""
        return [o for o in self.wrong if o.cause is not None and o.cause.certainty == "confirmed"]

    def to_json(self) -> dict[str, Any]:
        found = [{"case": o.label, "verdict": o.verdict, "cause": str(o.cause)} for o in self.outcomes]
        return {"mutation": self.name, "causes": self.causes, "named": self.named, "outcomes": found}

    def line(self) -> str:
        mark = "NOT CAUGHT" if not self.caught else "right" if self.named else f"WRONG, is {self.causes[0]}"
        causes = ", ".join(sorted({str(o.cause) for o in self.caught}))
        if not self.caught:  # a process that died is another matter than a case where nothing is seen
            causes = ", ".join(f"{o.verdict} {o.cause.sentence if o.cause else ''}".strip() for o in self.outcomes)
        return f"{self.name:48} {len(self.caught)} of {len(self.outcomes)}  {mark:28} {causes}"


@dataclass(frozen=True, slots=True)
class Result:
    scores: tuple[Score, ...]
    clean: tuple[Outcome, ...]

    @property
    def alarms(self) -> list[Outcome]:
        return Check(self.clean).failing()

    @property
    def caught(self) -> int:
        return sum(bool(score.caught) for score in self.scores)

    @property
    def named(self) -> int:
        return sum(score.named for score in self.scores)

    @property
    def wrong_confirmed(self) -> int:
        return sum(bool(score.wrong_confirmed) for score in self.scores)

    @property
    def passes(self) -> bool:
        count = len(self.scores)
        enough = self.caught >= CAUGHT * count and self.named >= NAMED_RIGHT * count
        return enough and not self.wrong_confirmed and not self.alarms and len(self.clean) >= CLEAN_RUNS

    def text(self) -> str:
        likely = sorted(
            {o.cause.name for s in self.scores for o in s.caught if o.cause and o.cause.certainty == "likely"}
        )
        lines = [score.line() for score in self.scores]
        lines += [f"FALSE ALARM  {o.label}: {o.verdict} {o.cause}" for o in self.alarms]
        lines += [
            "",
            f"{len(self.scores)} mutations: {self.caught} caught, {self.named} named, "
            f"{self.wrong_confirmed} wrong and confirmed",
            f"{len(self.clean)} clean runs: {len(self.alarms)} false alarms",
            f"causes that were only likely somewhere: {', '.join(likely) or 'none'}",
        ]
        return "\n".join(lines)

    def gate(self) -> str:
        named = f"{CAUGHT:.0%} caught and {NAMED_RIGHT:.0%} named right"
        needed = f"{named}, none wrong and confirmed, no false alarm in {CLEAN_RUNS} clean runs"
        return f"{'PASSED' if self.passes else 'FAILED'} (needed: {needed})"


def copied(store: Store, into: Path) -> Store:
    """A folder of goldens that the probe can be added to; nothing is accepted in it."""
    for name in ("blobs", "environments", *store.sites()):
        if (store.root / name).is_dir():
            shutil.copytree(store.root / name, into / name)
    shutil.copyfile(store.root / "sites.json", into / "sites.json")
    return Store(into)


def add_probe(store: Store, folder: Path) -> None:
    """Goldens of the probe, from its own clean run: it has no old way."""
    found, cases = list[Case](), list(probe.cases(folder))
    sites = [
        observe.Site(PROBE, f"parity.proof.callsites.probe:{name}") for name in sorted({name for _, name, _ in cases})
    ]
    with observe.Observer(sites=sites, sink=found.append, store=store):
        for name, function, arguments in cases:
            with observe.case(name):
                getattr(probe, function)(**arguments)
    for case in found:
        store.write(case)
    store.set_site(PROBE, functions=[site.function for site in sites], load=LOADS["selftest"])


@contextlib.contextmanager
def loading(load: Mapping[str, Any] | None, modules: Sequence[Any]) -> Iterator[None]:
    """The call sites load their engines with other settings; engines that they have are put aside meanwhile."""
    if load is None:
        yield
        return
    if load.get("hf_kwargs") == "int8":
        from torchao.quantization import Int8WeightOnlyConfig
        from transformers import TorchAoConfig

        load = {"hf_kwargs": {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig())}}
    before = [(module, module.load) for module in modules]
    for module, original in before:
        module.load = lambda model, original=original, **how: original(model, **{**how, **load})
        module.engine.cache_clear()
    if "model" in load:
        for module, original in before:
            module.load = lambda model, original=original, **how: original(load["model"], **how)
    try:
        yield
    finally:
        for module, original in before:
            module.load = original
            module.engine.cache_clear()


def run_site_mutation(store: Store, mutation: SiteMutation) -> tuple[Outcome, ...]:
    wanted: dict[str, list[str]] = {}
    for name in mutation.cases:
        wanted.setdefault(name.partition("/")[0], []).append(name.partition("/")[2])
    outcomes, settings, pending = list[Outcome](), store.settings(), Pending.of(store)
    for site, names in wanted.items():
        moved = settings[site].get("moved", {})
        functions = {new_function(store.read(site, name).function, moved): site for name in names}
        with Session(store, functions) as session:
            modules = list(dict.fromkeys(importlib.import_module(f.partition(":")[0]) for f in functions))
            with loading(mutation.load, modules), mutation.applied():
                outcomes += check_site(session, site, names, "hf", {"moved": moved}, pending)
    return tuple(pending.settle(outcomes))


# What changes nothing: how many rows run at a time, a cache, the backend.
SHAPES: dict[str, tuple[dict[str, Any], ...]] = {
    "hf": ({"max_batch_size": 2, "cache": {}}, {"max_batch_size": 1}, {"max_batch_size": 64}),
    "vllm": ({"vllm_kwargs": {**FEW, "max_num_seqs": 2, "enable_prefix_caching": False}},),
}


class CleanProgress:
    """Tells of each case that was judged in a clean run."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell

    def begin(self, total: int) -> None:
        self.tell(f"{total} clean runs")

    def judged(self, outcome: Outcome) -> None:
        self.tell(f"{outcome.backend} {outcome.label} {outcome.verdict}")

    def together(self, waiting: int) -> None:
        self.tell(f"{waiting} are judged together")


def names_to_run(store: Store, site: str, apart: set[str]) -> list[str]:
    return [name for name in store.names(site) if f"{site}/{name}" not in apart][::-1]


def run_clean(store: Store, apart: set[str], progress: CleanProgress) -> tuple[Outcome, ...]:
    """Goldens without any mutation, the last ones first and in another shape; as they are, `make parity` checks them.
    Those whose difference is accepted are left out. Every second one on hf, an eighth of the largest site's on vLLM."""
    settings, found = store.settings(), list[Outcome]()
    names = {site: names_to_run(store, site, apart) for site in settings}
    largest = max(names, key=lambda site: len(names[site]))
    for backend in SHAPES:
        fitting = [site for site in names if backend in settings[site].get("backends", ["hf"])]
        chosen = {site: names[site][::2] for site in fitting}
        chosen = {largest: names[largest][1::8]} if backend == "vllm" else chosen
        for shape, site in zip(itertools.cycle(SHAPES[backend]), (site for site in chosen if site != PROBE)):
            load = settings[site].get("load", {}).get(backend, {})
            store.set_site(site, load={backend: {**load, **shape}})
        cases, kind = [f"{site}/{name}" for site, own in chosen.items() for name in own], (backend,)
        check = check_sites(store, sites=list(chosen), cases=cases, backends=kind, progress=progress, jobs=PROCESSES)
        found += check.outcomes
    return tuple(found)


def selftest(store: Store, only: str | None = None, progress: Callable[[str], None] = lambda text: None) -> Result:
    apart = {f"{entry.site}/{entry.case}" for entry in store.accepted()}
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        scratch = copied(store, Path(name) / "golden")
        add_probe(scratch, Path(name))
        scores = []
        for score in judged_in_forks(scratch, only):
            progress(score.line())
            scores.append(score)
        clean = run_clean(scratch, apart, CleanProgress(progress)) if only is None else ()
    return Result(tuple(scores), clean)


def judged_in_forks(store: Store, only: str | None) -> Iterator[Score]:
    """In a process that ends with them: what was loaded for them goes with it."""
    with Worker() as worker:
        yield from worker.run(SCORED, (str(store.root), only), limit=LIMIT * PROCESSES)


def scored(job: tuple[str, str | None]) -> Iterator[Score]:
    """In that process."""
    root, only = job
    store = Store(root)
    chosen = [one for one in SITE_MUTATIONS if only is None or only in one.name]
    prepare(store, [case for one in chosen for case in one.cases])
    jobs = {}
    for number, mutation in enumerate(chosen):
        jobs[number] = functools.partial(run_site_mutation, store, mutation)
    for number, found, _ in forked(jobs):
        mutation = chosen[number]
        yield Score(mutation.name, mutation.causes, outcomes_of(found))


def outcomes_of(found: tuple[Outcome, ...] | Died) -> tuple[Outcome, ...]:
    """Of a fork; one that died is an ERROR."""
    if not isinstance(found, Died):
        return found
    said = f"the mutated code ended its process: exit code {found.exit_code}"
    return (Outcome("*", "*", "*", "ERROR", cause=Cause("error", "confirmed", said)),)


SCORED = f"{scored.__module__}:{scored.__qualname__}"


def run(args: argparse.Namespace) -> int:
    names = [mutation.name for mutation in SITE_MUTATIONS]
    if args.only and not any(args.only in name for name in names):
        fix = did_you_mean(args.only, names)
        raise OptionError(f"no mutation's name holds {args.only!r}", fix=fix)
    tell: Callable[[str], None] = lambda text: None  # noqa: E731
    if sys.stderr.isatty():
        tell = lambda text: print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)  # noqa: E731
    result = selftest(Store(args.goldens), args.only, tell)
    print(result.text())
    if not args.only:
        print(result.gate())
    if args.json:
        args.json.write_text(json.dumps([score.to_json() for score in result.scores], indent=1))
    return 0 if result.passes or (args.only and result.scores and all(s.named for s in result.scores)) else 1


def add_selftest(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "selftest",
        help="mutation testing with committed mutations: is each caught and named?",
        epilog="example: python -m parity.proof selftest --only padding",
    )
    parser.add_argument("--only", metavar="TEXT", help="mutations whose name holds this; no clean runs")
    parser.add_argument("--json", type=file_to_write, metavar="PATH", help="also write what each mutation gave")
    parser.set_defaults(run=run)
