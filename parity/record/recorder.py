"""Runs an unmodified script and all its child processes under observation, and makes goldens.

    record(["python", "old.py"], store, sites=[Site.parse("summaries=pkg.old:summarize")])

The script is started as it is, with one folder more on PYTHONPATH: `hook/sitecustomize.py` starts
an observer in every Python process below it (process.py). The lines that these write are put
together when all is over: by rank (RANK, LOCAL_RANK, SLURM_PROCID), then by time. A script that
dies has lost nothing that was finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.goldens import store as golden
from parity.goldens.store import Case, Store, environment
from parity.goldens.verdict import equal
from parity.record.calls import Site
from parity.record.changing import Part, as_recorded, changing, value_or_error
from parity.record.process import VARIABLE, Line, Setup, Starting
from parity.record.seeds import SEED
from parity.record.values import with_places

__all__ = ["HOOK", "Recorded", "Seen", "Starting", "record", "run_observed"]

HOOK = Path(__file__).resolve().parent / "hook"

# == Running ==

PATIENCE = 5.0  # seconds for ending when it is asked to
GRACE = 1.0  # likewise, where we are ended ourselves
TICK = 0.2  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run of a script gave.

    overhead: the recorder's own time and that of the whole, in seconds.   stopped: why it was
    ended; "" where it ended by itself.   folders: of the checkpoints that answered.   argv: of each
    site, the different arguments of the scripts that called it.   started_in: of each site, another
    folder than the recording's that its script was started in.   not_held: (site, attribute, type)
    of what its calls change and no golden holds.
    """

    cases: tuple[Case, ...]
    blobs: Path
    failures: tuple[str, ...]
    environment: Mapping[str, Any]
    returncode: int
    overhead: tuple[float, float]
    stopped: str = ""
    folders: tuple[str, ...] = ()
    argv: Mapping[str, Sequence[list[str]]] = field(default_factory=dict)
    started_in: Mapping[str, str] = field(default_factory=dict)
    not_held: Sequence[tuple[str, str, str]] = ()


def run_observed(
    command: Sequence[str],
    folder: Path,
    *,
    sites: Sequence[Site],
    loose: str | None,
    seed: int | None,
    starting: Starting | None = None,
    limits: tuple[float, float] | None = None,
    inside: str = "",
) -> Seen:
    """Run a command with an observer in every Python process below it. Its output and input are its
    own.

    limits: seconds without a call, and in all, after which it is ended with its children.
    inside: the folder that the functions of the sites must come from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    setup = Setup(str(folder), sites, loose, seed, starting, inside, base=os.getcwd())
    environ = observed_environ(setup)
    if limits is not None:
        return run_limited(command, environ, folder, limits)
    return collect(folder, run_to_its_end(command, environ))


def run_to_its_end(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code of a command. Where we are ended first, so is it. Its children are ended by the
    terminal, which sends Ctrl-C to all; without one by us, as a group of their own. What is left:
    children of a command at a terminal, where another signal ends us alone."""
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    process = subprocess.Popen(command, env=environ, start_new_session=not has_terminal)
    try:
        return process.wait()
    except BaseException:
        if has_terminal:
            process.terminate()
        else:
            kill_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        if has_terminal:
            process.kill()
        else:
            kill_group(process, signal.SIGKILL)
        process.wait()
        raise


def observed_environ(setup: Setup) -> dict[str, str]:
    path = str(HOOK)
    if before := os.environ.get("PYTHONPATH"):
        path += os.pathsep + before
    return {**os.environ, "PYTHONPATH": path, VARIABLE: setup.to_json()}


def run_limited(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, limits: tuple[float, float]
) -> Seen:
    process = subprocess.Popen(command, env=environ, start_new_session=True)
    stopped = ""
    try:
        stopped = wait_for(process, folder, *limits)
        stopped_at = time.time_ns()
        if stopped:  # its calls outside any site are told when Python ends
            with contextlib.suppress(subprocess.TimeoutExpired):
                kill_group(process, signal.SIGINT)
                process.wait(PATIENCE)
    finally:
        if stopped or process.poll() is None:
            kill_group(process, signal.SIGKILL)
            process.wait()
    seen = collect(folder, process.returncode, stopped_at if stopped else None)
    return dataclasses.replace(seen, stopped=stopped)


def kill_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def wait_for(process: subprocess.Popen[bytes], folder: Path, silence: float, most: float) -> str:
    """Wait for the end of a process; "" when it comes, or why it is not waited for any more."""
    began = last = time.monotonic()
    written = 0
    while process.poll() is None:
        now = time.monotonic()
        size = sum(file.stat().st_size for file in folder.glob("*.jsonl"))
        if size != written:
            last = now
            written = size
        if now - last >= silence:
            return f"made no call for {silence:g} seconds"
        if now - began >= most:
            return f"had no end after {most:g} seconds, time for each golden and one more"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TICK)
    return ""


# == Putting lines together ==


def collect(folder: Path, returncode: int, before: int | None = None) -> Seen:
    """Every process's lines, by rank and time. before: when it was interrupted; no site's call is
    over then."""
    lines = read_lines(folder)
    if before is not None:
        lines = [line for line in lines if is_whole_call(line, before)]
    several = len({line.rank for line in lines}) > 1
    cases = list[Case]()
    failures = list[str]()
    environments = list[dict[str, Any]]()
    folders = set[str]()
    argv = dict[str, list[list[str]]]()
    started_in = dict[str, str]()
    not_held = set[tuple[str, str, str]]()
    own = whole = 0.0
    for line in lines:
        if line.kind == "case":
            cases.append(read_case(line, several))
        elif line.kind == "argv":
            known = argv.setdefault(line.content["site"], [])
            if line.content["argv"] not in known:
                known.append(line.content["argv"])
            if line.content["folder"] != ".":
                started_in[line.content["site"]] = line.content["folder"]
        elif line.kind == "process":
            failures += line.content["failures"]
            folders.update(line.content["folders"])
            not_held.update(map(tuple, line.content["not_held"]))
            environments.append(line.content["environment"])
            own += line.content["own"]
            whole = max(whole, line.content["whole"])
    return Seen(
        tuple(with_unique_names(cases)),
        folder / "blobs",
        tuple(failures),
        max(environments or [environment()], key=len),
        returncode,
        (own, whole),
        folders=tuple(folders),
        argv=argv,
        started_in=started_in,
        not_held=sorted(not_held),
    )


def is_whole_call(line: Line, before: int) -> bool:
    """Whether a line stands though its process was interrupted: a site's call that ended later does
    not."""
    return line.at < before or not line.content.get("function")


def read_lines(folder: Path) -> list[Line]:
    """The last line of a process that was killed may be cut."""
    lines = list[Line]()
    for file in sorted(folder.glob("*.jsonl")):
        text = file.read_text("utf-8")
        whole = text[: text.rfind("\n") + 1]
        lines += [Line(**json.loads(line)) for line in whole.splitlines()]
    return sorted(lines, key=lambda line: (line.rank, line.at))


def read_case(line: Line, several: bool) -> Case:
    """several: there are several ranks, which count from 1 each."""
    case = Case.from_json(line.content)
    if not several:
        return case
    return dataclasses.replace(case, case=f"r{line.rank}-{case.case}")


def with_unique_names(cases: Sequence[Case]) -> Iterator[Case]:
    """Several processes of one rank count from 1 each; names stay apart."""
    seen = Counter[tuple[str, str]]()
    for case in cases:
        seen[case.site, case.case] += 1
        count = seen[case.site, case.case]
        if count > 1:
            case = dataclasses.replace(case, case=f"{case.case}-p{count}")
        yield case


# == Goldens ==


@dataclass(slots=True)
class Recorded:
    """What a recording did to the goldens.   replaced: of the written ones, those that differ."""

    seen: Seen
    written: list[Case] = field(default_factory=list)
    replaced: list[Case] = field(default_factory=list)
    same: list[Case] = field(default_factory=list)
    refused: list[Case] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """A run that wrote goldens does not pass (4), nor one that did not see all (3); one that
        found all as they are does (0)."""
        if self.seen.returncode:
            return self.seen.returncode
        if not self.seen.cases:
            return 5
        if self.refused:
            return 1
        if self.seen.failures:
            return 3
        return 4 if self.written else 0


def record(
    command: Sequence[str],
    store: Store,
    *,
    sites: Sequence[Site] = (),
    loose: str | None = None,
    seed: int | None = SEED,
    repeat: int = 1,
    samples: int = 0,
    overwrite: bool = False,
    old: tuple[str, str] | None = None,
) -> Recorded:
    """Record a command.

    repeat: run it so often in all, to find what does not repeat itself.   samples: further runs
    with other seeds, whose values are kept.   overwrite: replace goldens that differ.   old: the
    folder of a revision that the code must come from, and the one that this stands for.
    """
    how: dict[str, Any] = {"sites": sites, "loose": loose, "inside": old[0] if old else ""}
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:

        def run(name: str, seed: int | None) -> Seen:
            return run_observed(command, Path(scratch, name), seed=seed, **how)

        first = run("0", seed)
        again = []
        for number in range(1, repeat):
            time.sleep(1)  # for a clock of whole seconds to say something else
            again.append(run(str(number), seed))
        others = []
        for number in range(1, samples + 1):
            others.append(run(f"s{number}", (seed or 0) + number))
        cases = [with_other_runs(case, again, others) for case in first.cases]
        if old is not None:
            cases = [with_places(case, dict([old])) for case in cases]
        return put_goldens(first, cases, store, overwrite)


def with_other_runs(case: Case, again: Sequence[Seen], others: Sequence[Seen]) -> Case:
    """A case with what further runs tell. again: with the same seed.   others: with other ones."""
    samples = tuple(other.value for other in same_cases(case, others))
    case = dataclasses.replace(case, samples=samples)
    if not again:
        return case
    repeated = [as_recorded(case, other) for other in same_cases(case, again)]
    value = value_or_error(case)
    repeats = all(equal(value, value_or_error(other), 1e-6) for other in repeated)
    known = list[Part]()
    if all(output_ids(other) == output_ids(case) for other in repeated):
        with contextlib.suppress(ValueError):
            known = changing([value, *map(value_or_error, repeated)])
            repeats = True
    return dataclasses.replace(case, repeats=repeats, changing=tuple(known))


def same_cases(case: Case, runs: Sequence[Seen]) -> list[Case]:
    """This case in other runs, as far as they have it."""
    name = (case.site, case.case)
    found = list[Case]()
    for run in runs:
        found += [other for other in run.cases if (other.site, other.case) == name]
    return found


def output_ids(case: Case) -> list[Any]:
    return [row["output_ids"] for row in case.rows]


def put_goldens(seen: Seen, cases: Sequence[Case], store: Store, overwrite: bool) -> Recorded:
    done = Recorded(seen)
    fingerprint = store.put_environment(seen.environment) if cases else ""
    for case in cases:
        case = dataclasses.replace(case, environment=fingerprint)
        exists = store.exists(case.site, case.case)
        if exists and is_known(store, case, overwrite):
            done.same.append(case)
        elif exists and not overwrite:
            done.refused.append(case)
        else:
            if exists and not is_same_golden(store, case):
                done.replaced.append(case)
            for blob in golden.blob_names(case):
                store.put_blob((seen.blobs / blob).read_bytes(), Path(blob).suffix)
            store.write(case)
            done.written.append(case)
    for site in sorted({case.site for case in (*done.written, *done.same)}):
        update_site(store, site, cases, seen)
    return done


def update_site(store: Store, site: str, cases: Sequence[Case], seen: Seen) -> None:
    """sites.json names what a check may call, goldens alone do not; the script's arguments, which
    its code may read; and its exit code."""
    settings = store.settings().get(site, {})
    named = {*settings.get("functions", [])}
    functions = {case.function for case in cases if case.site == site} - {""}
    if not functions <= named:
        store.set_site(site, functions=sorted(named | functions))
    if settings.get("exit_code", 0) != seen.returncode:
        store.set_site(site, exit_code=seen.returncode or None)
    names = {case.case for case in cases if case.site == site}
    is_of_all = names >= {*store.names(site)}  # other goldens may be of other arguments
    if "argv" not in settings or is_of_all:
        argv = seen.argv.get(site, [[]])[0]
        if argv != settings.get("argv", []):
            store.set_site(site, argv=argv or None)


def other_arguments(store: Store, seen: Seen) -> dict[str, tuple[list[str], list[str]]]:
    """Site -> (the arguments that sites.json holds, the first others that it was called with)."""
    settings = store.settings()
    found = {}
    for site, argv in seen.argv.items():
        kept = settings.get(site, {}).get("argv", [])
        others = [one for one in argv if one != kept]
        if others:
            found[site] = kept, others[0]
    return found


OF_THE_RECORDING = {  # not of what the code does
    "environment", "defaults", "repeats", "changing", "samples", "source", "state", "left",
}  # fmt: skip


def is_same_golden(store: Store, case: Case) -> bool:
    """Whether a golden already says this, wherever it was recorded."""
    try:
        old = store.read(case.site, case.case)
    except golden.GoldenError:
        return False
    return equal(comparable(old), comparable(as_recorded(old, case)), 1e-5)


def is_known(store: Store, case: Case, overwrite: bool) -> bool:
    """Whether a golden says this; where it may be replaced, also what older releases left out."""
    return is_same_golden(store, case) and not (overwrite and says_more(store, case))


def says_more(store: Store, case: Case) -> bool:
    """Whether a recording says what its golden does not: where files lay, defaults, which source
    gives the same by now, what an object held."""
    old = fields_of(store.read(case.site, case.case))
    new = fields_of(case)
    names = ("arguments", "defaults", "source", "state", "left")
    return any(old.get(name) != new.get(name) for name in names)


def fields_of(case: Case) -> dict[str, Any]:
    """A case as its file holds it."""
    fields: dict[str, Any] = golden.decoded(golden.coded(case.to_json()))
    return fields


def comparable(case: Case) -> dict[str, Any]:
    fields = fields_of(case)
    said = {name: value for name, value in fields.items() if name not in OF_THE_RECORDING}
    return {**said, "arguments": golden.by_base_names(fields.get("arguments", {}))}
