"""Does the checker catch what it should, name it right, and stay silent otherwise? python -m parity.proof selftest

Mutation testing with committed mutations: each of site_mutations.py is put into moved code that is right, each of
engine_mutations.json into a scratch copy of gen_engine.py, on hf and on vLLM, and the goldens on which they can show
are checked. Then everything is checked without any mutation. Printed per section; the gate stands at the end.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen_engine import OptionError, did_you_mean
from parity.environment.output_paths import file_to_write
from parity.goldens.store import Case, Store
from parity.goldens.verdict import Check, Outcome
from parity.judge.check import check_sites
from parity.judge.session import Session
from parity.judge.site import Pending, check_site
from parity.judge.sites import new_function
from parity.judge.worker import Worker
from parity.proof.callsites import probe
from parity.proof.callsites.record import FEW, LOADS
from parity.proof.engine_mutations import mutations, outcomes_of, run_mutations, sampled, turn_of_sources
from parity.proof.forks import LIMIT, PROCESSES, forked, prepare
from parity.proof.score import CALL_SITES, Score, table
from parity.proof.site_mutations import SITE_MUTATIONS, SiteMutation
from parity.record import observe

CAUGHT = 0.98
NAMED_RIGHT = 0.95
CLEAN_RUNS = 200
PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Result:
    scores: tuple[Score, ...]
    clean: tuple[Outcome, ...]

    @property
    def alarms(self) -> list[Outcome]:
        return Check(self.clean).failing()

    @property
    def passes(self) -> bool:
        """Edits inside the engine are its unit tests' to kill: of those nothing may be confirmed
        that is wrong."""
        outside = [s for s in self.scores if s.section == CALL_SITES]
        enough = sum(bool(s.caught) for s in outside) >= CAUGHT * len(outside)
        enough &= sum(s.named for s in outside) >= NAMED_RIGHT * len(outside)
        enough &= not any(s.wrong_confirmed for s in self.scores)
        return enough and not self.alarms and len(self.clean) >= CLEAN_RUNS

    def text(self) -> str:
        likely = sorted(
            {o.cause.name for s in self.scores for o in s.caught if o.cause and o.cause.certainty == "likely"}
        )
        lines = [score.line() for score in self.scores]
        lines += [f"FALSE ALARM  {o.label}: {o.verdict} {o.cause}" for o in self.alarms]
        lines += [
            "",
            *table(self.scores),
            "",
            f"{len(self.clean)} clean runs: {len(self.alarms)} false alarms",
            f"causes that were only likely somewhere: {', '.join(likely) or 'none'}",
        ]
        return "\n".join(lines)

    def gate(self) -> str:
        named = f"{CAUGHT:.0%} caught and {NAMED_RIGHT:.0%} named right at call sites"
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


def run_clean(
    store: Store, apart: set[str], progress: CleanProgress, backends: Iterable[str] = tuple(SHAPES)
) -> tuple[Outcome, ...]:
    """Goldens without any mutation, the last ones first and in another shape; as they are, `make parity` checks them.
    Those whose difference is accepted are left out. Every second one on hf, an eighth of the largest site's on vLLM."""
    settings, found = store.settings(), list[Outcome]()
    names = {site: names_to_run(store, site, apart) for site in settings}
    largest = max(names, key=lambda site: len(names[site]))
    for backend in backends:
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


def selftest(
    store: Store, only: str | None = None, progress: Callable[[str], None] = lambda text: None, sample: int = 0
) -> Result:
    """sample: one of the engine's mutations in so many of each section, on one of its backends, and clean runs on hf
    alone; 0 is all on both."""
    apart = {f"{entry.site}/{entry.case}" for entry in store.accepted()}
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        scratch = copied(store, Path(name) / "golden")
        add_probe(scratch, Path(name))
        scores = []
        for kind in (None, "hf", "vllm"):
            for score in judged_in_forks(scratch, kind, only, sample):
                progress(score.line())
                scores.append(score)
        backends = ["hf"] if sample else list(SHAPES)
        clean = run_clean(scratch, apart, CleanProgress(progress), backends) if only is None else ()
    return Result(tuple(scores), clean)


def judged_in_forks(store: Store, kind: str | None, only: str | None, sample: int = 0) -> Iterator[Score]:
    """Mutations of call sites (None), or of the engine for a backend, in a process that ends with them: what was
    loaded for them goes with it."""
    with Worker() as worker:
        job = str(store.root), kind, only, sample
        yield from worker.run(SCORED, job, limit=LIMIT * PROCESSES)


def scored(job: tuple[str, str | None, str | None, int]) -> Iterator[Score]:
    """In that process."""
    root, backend, only, sample = job
    store = Store(root)
    if backend is not None:
        chosen = mutations(only)
        if sample:
            chosen = sampled(chosen, sample, turn_of_sources())
        own = [mutation for mutation in chosen if backend in mutation.backends]
        yield from run_mutations(store, own, backend)
        return
    chosen_sites = [one for one in SITE_MUTATIONS if only is None or only in one.name]
    prepare(store, [case for one in chosen_sites for case in one.cases], "hf")
    jobs = {}
    for number, mutation in enumerate(chosen_sites):
        jobs[number] = functools.partial(run_site_mutation, store, mutation)
    for number, found, seconds in forked(jobs):
        mutation = chosen_sites[number]
        yield Score(mutation.name, mutation.causes, outcomes_of(found), seconds)


SCORED = f"{scored.__module__}:{scored.__qualname__}"


def names_of_mutations() -> list[str]:
    names = [mutation.name for mutation in SITE_MUTATIONS]
    for mutation in mutations():
        names += [mutation.name, mutation.section]
    return names


def run(args: argparse.Namespace) -> int:
    is_known = args.only and any(args.only in name for name in names_of_mutations())
    if args.only and not is_known:
        fix = did_you_mean(args.only, names_of_mutations())
        raise OptionError(f"no mutation's name holds {args.only!r}", fix=fix)
    tell: Callable[[str], None] = lambda text: None  # noqa: E731
    if sys.stderr.isatty():
        tell = lambda text: print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)  # noqa: E731
    result = selftest(Store(args.goldens), args.only, tell, args.sample)
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
    parser.add_argument(
        "--sample", type=int, choices=range(1, 31), default=0, metavar="N",
        help="of the engine's mutations one in N of each section, on one backend; the sources say which",
    )  # fmt: skip
    parser.add_argument("--json", type=file_to_write, metavar="PATH", help="also write what each mutation gave")
    parser.set_defaults(run=run)
