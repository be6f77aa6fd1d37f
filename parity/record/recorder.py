"""Runs an unmodified script under observation, with all its child processes, and makes goldens of what it did.

    record(["python", "old.py"], store, sites=[Site.parse("summaries=pkg.old:summarize")])

The script is started as it is, with one folder more on PYTHONPATH: `hook/sitecustomize.py` starts an observer in
every Python process below it, which writes a line per call to a file of its own. They are put together when all is
over: by rank (RANK, LOCAL_RANK, SLURM_PROCID), then by time. A script that dies has lost nothing that was finished.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from parity import golden
from parity.golden import Case, Store, environment
from parity.record import observe
from parity.record.changing import Part, as_recorded, changing, told
from parity.verdict import equal

VARIABLE = "PARITY_OBSERVE"
HOOK = Path(__file__).resolve().parent / "hook"

# "pkg.mod:func" and keyword arguments: func(observer, **arguments) gives what is called before each call of a site. It
# is named, not imported: a judge that puts old values back stands above the recorder.
Starting = tuple[str, Mapping[str, Any]]


# == In the observed process ==


def observe_this_process() -> None:
    """Start the observer that the environment describes; what it finds goes to a file of this process."""
    said = json.loads(os.environ[VARIABLE])
    sites = [observe.Site(*words) for words in said["sites"]]
    folder = Path(said["folder"])
    file = folder / f"{os.getpid()}-{time.time_ns()}.jsonl"
    began = time.perf_counter()

    def line(kind: str, content: Any) -> None:
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"kind": kind, "at": time.time_ns(), "rank": rank(), "content": content}) + "\n")

    def sink(case: Case) -> None:
        line("case", {**case.to_json(), "value": case.value})

    observer = observe.Observer(sites=sites, sink=sink, store=Store(folder), loose=said["loose"], seed=said["seed"])
    if said["starting"]:
        maker, settings = said["starting"]
        observer.starting = observe.load_function(maker)(observer, **settings)
    observer.asked = lambda: line("asked", {})  # a case of it comes later: what watches sees that something goes on
    ACTIVE_SITES[:] = sites
    observer.main_code = module_code

    def close() -> None:
        observer.uninstall()
        seen = {"failures": observer.failures, "own": observer.own_seconds, "whole": time.perf_counter() - began}
        if "torch" in sys.modules or observer.failures:
            line("process", {**seen, "environment": environment()})

    atexit.register(close)
    observer.install()


def rank() -> int:
    found = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK"))
    return next((int(value) for value in found if value and value.isdigit()), 0)


def run_script() -> None:
    """`python run_script.py script.py …`: what `python script.py …` does, where the script itself defines a site.

    Its source is read as Python reads it; a decorator goes onto the sites' functions. Line numbers stay.
    """
    sys.argv = sys.argv[1:]
    path = Path(sys.argv[0])
    sys.path[0] = str(path.resolve().parent)
    module = ModuleType("__main__")
    module.__dict__.update({"__file__": str(path)})
    sys.modules["__main__"] = module
    names = {site.attribute for site in ACTIVE_SITES if Path(site.module).resolve() == path.resolve()}
    exec(code_with_sites(path, names), module.__dict__)


def module_code(name: str, loader: Any) -> CodeType | None:
    """What `python -m name` executes, where module `name` defines a site itself."""
    names = {site.attribute for site in ACTIVE_SITES if site.module == name}
    if not names:
        return loader.get_code(name)  # type: ignore[no-any-return]
    return code_with_sites(Path(loader.get_filename(name)), names)


def code_with_sites(path: Path, names: Collection[str]) -> CodeType:
    tree = ast.parse(path.read_bytes(), str(path))
    for name, node in functions_in(tree.body):
        if name in names:
            decorator = ast.Name(DECORATOR, ast.Load())
            node.decorator_list.append(ast.copy_location(decorator, node))  # it stands on the line of its function
    vars(builtins)[DECORATOR] = decorated
    return compile(tree, str(path), "exec")


def functions_in(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """("function" or "Class.method", its node) of what stands at the top of a file, and in its classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions_in(node.body, f"{prefix}{node.name}.")


DECORATOR = "__parity_site__"
ACTIVE_SITES: list[observe.Site] = []


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    site = next(site for site in ACTIVE_SITES if site.attribute == function.__qualname__)
    return observe.wrapper_of(function, functools.partial(observe.tap_site, observe.ACTIVE[0], site))


# == Around it ==


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run of a script gave. overhead: the recorder's own time and that of the whole, in seconds.
    stopped: why it was ended; "" where it ended by itself."""

    cases: tuple[Case, ...]
    blobs: Path
    failures: tuple[str, ...]
    environment: Mapping[str, Any]
    returncode: int
    overhead: tuple[float, float]
    stopped: str = ""


def run_observed(
    command: Sequence[str],
    folder: Path,
    *,
    sites: Sequence[observe.Site],
    loose: str | None,
    seed: int | None,
    starting: Starting | None = None,
    limits: tuple[float, float] | None = None,
) -> Seen:
    """Run a command with the observer in every Python process below it. Its output and input are its own.

    limits: seconds without a call, and in all, after which it is ended with its children."""
    folder.mkdir(parents=True, exist_ok=True)
    command = with_main(list(command), sites)
    said = {
        "folder": str(folder),
        "sites": [(site.name, site.function, site.stem) for site in sites],
        "loose": loose,
        "seed": seed,
        "starting": starting,
    }
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(HOOK), *([before] if before else [])])
    environ = {**os.environ, "PYTHONPATH": path, VARIABLE: json.dumps(said)}
    if limits is None:
        return collected(folder, subprocess.run(command, env=environ, check=False).returncode)
    process, stopped = subprocess.Popen(command, env=environ, start_new_session=True), ""
    try:
        stopped = watched(process, folder, *limits)
        at = time.time_ns()
        if stopped:  # its calls outside any site are told when Python ends
            with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT)
                process.wait(PATIENCE)
    finally:
        if process.poll() is None or stopped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seen = collected(folder, process.returncode, before=at if stopped else None)
    return dataclasses.replace(seen, stopped=stopped)


PATIENCE, TICK = 5.0, 0.2  # seconds: for ending when it is asked to; between two looks


def watched(process: subprocess.Popen[bytes], folder: Path, silence: float, whole: float) -> str:
    """Wait for the end of a process; "" when it comes, or why it is not waited for any more."""
    began = last = time.monotonic()
    written = 0
    while process.poll() is None:
        now, size = time.monotonic(), sum(file.stat().st_size for file in folder.glob("*.jsonl"))
        last, written = (now, size) if size != written else (last, written)
        if now - last >= silence:
            return f"made no call for {silence:g} seconds"
        if now - began >= whole:
            return f"had no end after {whole:g} seconds, time for each golden and one more"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TICK)
    return ""


def with_main(command: list[str], sites: Sequence[observe.Site]) -> list[str]:
    """A command whose script defines a site itself goes through `run_script`."""
    scripts = {Path(site.module).resolve() for site in sites if site.module.endswith(".py")}
    for place, word in enumerate(command):
        if word.endswith(".py") and Path(word).resolve() in scripts:
            return [*command[:place], str(HOOK / "run_script.py"), *command[place:]]
    return command


def collected(folder: Path, returncode: int, before: int | None = None) -> Seen:
    """Every process's lines, by rank and time. before: when it was interrupted; no site's call is over then."""
    texts = [file.read_text("utf-8") for file in sorted(folder.glob("*.jsonl"))]
    whole = [text[: text.rfind("\n") + 1] for text in texts]  # the last line of a process that was killed may be cut
    lines = [json.loads(line) for text in whole for line in text.splitlines()]
    if before is not None:
        lines = [line for line in lines if line["at"] < before or not line["content"].get("function")]
    lines.sort(key=lambda line: (line["rank"], line["at"]))
    said = [line["content"] for line in lines if line["kind"] == "process"]
    ranks = {line["rank"] for line in lines}
    cases = [named(line, len(ranks) > 1) for line in lines if line["kind"] == "case"]
    found = environment() if not said else max((s["environment"] for s in said), key=len)
    overhead = sum(s["own"] for s in said), max((s["whole"] for s in said), default=0.0)
    failures = tuple(failure for s in said for failure in s["failures"])
    return Seen(tuple(unique(cases)), folder / "blobs", failures, found, returncode, overhead)


def named(line: Mapping[str, Any], several: bool) -> Case:
    case = Case.from_json(line["content"])
    return dataclasses.replace(case, case=f"r{line['rank']}-{case.case}") if several else case


def unique(cases: Sequence[Case]) -> Iterator[Case]:
    """Several processes of one rank count from 1 each; names stay apart."""
    seen: Counter[tuple[str, str]] = Counter()
    for case in cases:
        seen[case.site, case.case] += 1
        count = seen[case.site, case.case]
        yield case if count == 1 else dataclasses.replace(case, case=f"{case.case}-p{count}")


# == Goldens out of it ==


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording did to the goldens."""

    seen: Seen
    written: tuple[Case, ...]
    same: tuple[Case, ...]
    refused: tuple[Case, ...]

    @property
    def exit_code(self) -> int:
        """A run that wrote goldens does not pass (4), one that found all as they are does (0)."""
        if self.seen.returncode:
            return self.seen.returncode
        if not self.seen.cases:
            return 5
        return 1 if self.refused else 4 if self.written else 0


def record(
    command: Sequence[str],
    store: Store,
    *,
    sites: Sequence[observe.Site] = (),
    loose: str | None = None,
    seed: int | None = observe.SEED,
    repeat: int = 1,
    samples: int = 0,
    overwrite: bool = False,
    folder: Path | None = None,
) -> Recorded:
    """Record a command. repeat: run it so often in all, to find what does not repeat itself. samples: further runs with
    other seeds, whose values are kept. Goldens that differ are only replaced with overwrite."""
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        base = folder or Path(scratch)
        how: dict[str, Any] = {"sites": sites, "loose": loose}
        seen = run_observed(command, base / "0", seed=seed, **how)
        again = [run_later(command, base / str(k), seed=seed, **how) for k in range(1, repeat)]
        drawn = [run_observed(command, base / f"s{k}", seed=(seed or 0) + k, **how) for k in range(1, samples + 1)]
        cases = [completed(case, again, drawn) for case in seen.cases]
        return put(seen, cases, store, overwrite)


def run_later(command: Sequence[str], folder: Path, **how: Any) -> Seen:
    """run_observed(), when a clock of whole seconds says something else."""
    time.sleep(1)
    return run_observed(command, folder, **how)


def completed(case: Case, again: Sequence[Seen], drawn: Sequence[Seen]) -> Case:
    def same_case(runs: Sequence[Seen]) -> list[Case]:
        found = ({(c.site, c.case): c for c in run.cases}.get((case.site, case.case)) for run in runs)
        return [other for other in found if other is not None]

    samples = tuple(other.value for other in same_case(drawn))
    if not again:
        return dataclasses.replace(case, samples=samples)
    others, known = same_case(again), list[Part]()
    repeats = all(equal(told(case), told(as_recorded(case, other)), 1e-6) for other in others)
    if all([row["output_ids"] for row in case.rows] == [row["output_ids"] for row in other.rows] for other in others):
        with contextlib.suppress(ValueError):
            known, repeats = changing([told(as_recorded(case, other)) for other in (case, *others)]), True
    return dataclasses.replace(case, repeats=repeats, changing=tuple(known), samples=samples)


def put(seen: Seen, cases: Sequence[Case], store: Store, overwrite: bool) -> Recorded:
    written, same, refused = [], [], []
    fingerprint = store.put_environment(seen.environment) if cases else ""
    for case in cases:
        case = dataclasses.replace(case, environment=fingerprint)
        if store.path(case.site, case.case).exists():
            if same_golden(store, case):
                same.append(case)
                continue
            if not overwrite:
                refused.append(case)
                continue
        for blob in golden.blob_names(case):
            (store.blobs()).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(seen.blobs / blob, store.blobs() / blob)
        store.write(case)
        written.append(case)
    for site in sorted({case.site for case in (*written, *same)}):
        name_functions(store, site, {case.function for case in cases if case.site == site} - {""})
        if store.settings().get(site, {}).get("exit_code", 0) != seen.returncode:
            store.set_site(site, exit_code=seen.returncode or None)
    return Recorded(seen, tuple(written), tuple(same), tuple(refused))


def name_functions(store: Store, site: str, functions: Collection[str]) -> None:
    """sites.json names what a check may call; goldens alone do not."""
    named = store.settings().get(site, {}).get("functions", [])
    if not {*functions} <= {*named}:
        store.set_site(site, functions=sorted({*functions, *named}))


def same_golden(store: Store, case: Case) -> bool:
    """Whether a golden already says this, wherever it was recorded."""
    try:
        old = store.read(case.site, case.case)
    except golden.GoldenError:
        return False
    apart = {"environment", "repeats", "changing", "samples"}  # of the recording, not of the code
    case = as_recorded(old, case)
    mine, theirs = (golden.decoded(golden.coded(c.to_json())) for c in (old, case))
    before, after = ({k: v for k, v in said.items() if k not in apart} for said in (mine, theirs))
    return equal(before, after, 1e-5)
