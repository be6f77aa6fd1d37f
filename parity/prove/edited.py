"""Faults inside gen_engine.py: source edits of a scratch copy, each judged by the goldens that exercise it.

engine_plants.json holds them, written by somebody who had not read the judge: what is edited, in which section of the
file, on which backends it shows, and the causes that are right, best first. `cases` are goldens that show it; an edit
that none shows is not caught: a golden is missing.

    for score in run_edits(store, edits(), "hf"):

Importing the libraries takes longer than a case, and loading vLLM longer than that. So one process imports them, loads
the engines that the call sites ask for, keeps vLLM's, and each edit is judged in a fork of it, two at a time.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from parity.golden import Store
from parity.judge.check import Job, Measured, judged, merged_settings, named_function
from parity.judge.worker import settle
from parity.prove.score import Score
from parity.tasks import vision_tasks
from parity.verdict import Cause, Outcome

ENGINE = Path(__file__).parents[2] / "gen_engine.py"
FILE = Path(__file__).with_name("engine_plants.json")
PROCESSES = 2
LIMIT = 300  # seconds that one edit may take on a machine that is busy; a hang is a fault, too


@dataclass(frozen=True, slots=True)
class Edit:
    """find stands once in gen_engine.py. causes: names that are right, the best first.   cases: "site/case"."""

    name: str
    section: str
    what: str
    find: str
    replace: str
    backends: tuple[str, ...]
    causes: tuple[str, ...]
    cases: tuple[str, ...] = ()

    def source(self, sound: str) -> str:
        """gen_engine.py with this fault. Raises ValueError where the place is not there, or not once."""
        if (count := sound.count(self.find)) != 1:
            raise ValueError(f"{self.name}: what it edits stands {count} times in {ENGINE.name}: {self.find!r}")
        return sound.replace(self.find, self.replace)


def edits(only: str | None = None) -> list[Edit]:
    found = []
    for one in json.loads(FILE.read_text()):
        backends, causes, cases = (tuple(one.pop(name)) for name in ("backends", "causes", "cases"))
        found.append(Edit(**one, backends=backends, causes=causes, cases=cases))
    return [edit for edit in found if only is None or only in edit.name or only == edit.section]


def sampled(chosen: Sequence[Edit], every: int, turn: int) -> list[Edit]:
    """One in `every` of each section, each on one of its backends: 2 * `every` turns hold all on both."""
    kept, seen = list[Edit](), Counter[str]()
    for edit in chosen:
        if seen[edit.section] % every == turn % every:
            kept.append(replace(edit, backends=(edit.backends[(len(kept) + turn // every) % len(edit.backends)],)))
        seen[edit.section] += 1
    return kept


def turn_of_sources() -> int:
    """A number that the sources make: over their changes each edit has its turn, and a red run can be repeated."""
    sources = [ENGINE, *sorted((ENGINE.parent / "parity/judge").glob("*.py"))]
    return zlib.crc32(b"".join(path.read_bytes() for path in sources))


def run_edits(store: Store, chosen: Sequence[Edit], backend: str) -> Iterator[Score]:
    """What became of each edit on a backend, as they end."""
    sound, jobs = ENGINE.read_text(), {}
    for number, edit in enumerate(chosen):
        jobs[number] = functools.partial(judge_edit, store, edit.source(sound), job_of(store, edit.cases, backend))
    prepare(store, [case for edit in chosen for case in edit.cases], backend)
    for number, outcomes, seconds in forked(jobs):
        edit = chosen[number]
        yield Score(f"{edit.name} ({backend})", edit.causes, outcomes, seconds, edit.section)


def job_of(store: Store, cases: Sequence[str], backend: str) -> Job:
    names = [(backend, *case.split("/", 1)) for case in cases]
    settings = merged_settings(store, list(dict.fromkeys(site for _, site, _ in names)), {})
    functions = {named_function(store.read(site, name), settings[site]): site for _, site, name in names}
    return Job(str(store.root), tuple((b, site, name) for b, site, name in names), settings, functions)


# == In the process that is forked ==

_kept: list[Any] = []  # an engine that is closed, or forgotten, takes vLLM's with it


def prepare(store: Store, cases: Iterable[str], backend: str) -> None:
    """Load what the sites of these cases load, and ask it once: what that imports and compiles no fork does again."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # no fork can use a GPU, and each load would look for one
    import torch
    import xgrammar  # noqa: F401

    import gen_engine

    torch.set_num_threads(1)  # a fork has none of the threads that torch counts on
    if backend == "vllm":
        lend_engines()
    wanted = {}
    for case in dict.fromkeys(cases):
        site, _, name = case.partition("/")
        if model := store.read(site, name).arguments.get("model_path"):
            wanted[site, model] = store.settings()[site].get("load", {}).get(backend, {})
    for (_, model), load in wanted.items():
        engine = gen_engine.load(model, backend=backend, **load)
        engine.generate_text_batch([{"prompt": "One, two"}], {"max_new_tokens": 2, "logprobs": 1})
        if engine.checkpoint.processor is not None:
            engine.generate_vlm_batch([{"messages": vision_tasks(1)[0].messages}], {"max_new_tokens": 2})
        _kept.append(engine) if backend == "vllm" else engine.close()
    settle()  # a collection in a fork would also copy each page that it looks at


def lend_engines() -> None:
    """Who asks for one of vLLM's engines again, in a fork, is given the same."""
    import vllm

    original, known = vllm.LLM, dict[str, Any]()

    def loading(**given: Any) -> Any:
        key = repr(sorted(given.items()))
        if key in known:
            return known[key]
        made = original(**given)
        _kept.append(made)  # or its end would do the same
        made.llm_engine.engine_core.shutdown = lambda *a, **k: None  # of threads and groups that a fork does not have
        # A class of gen_engine.py itself, another one in each fork; adapters, which it knows by number.
        if not {"logits_processors", "enable_lora"} & given.keys():
            known[key] = made
        return made

    vllm.LLM = loading


# == In a fork ==


def judge_edit(store: Store, source: str, job: Job) -> tuple[Outcome, ...]:
    """The outcomes of a job with this source as gen_engine.py."""
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        (Path(folder) / ENGINE.name).write_text(source)
        for name in [name for name in sys.modules if name == "gen_engine" or name.startswith(FROM_IT)]:
            del sys.modules[name]
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        outcomes: dict[tuple[str, str, str], Outcome] = {}
        for found in judged(job):
            if isinstance(found, Outcome):
                outcomes[found.backend, found.site, found.case] = found
            elif isinstance(found, Measured):
                outcomes.update(found.settled)
        return tuple(outcomes.values())


FROM_IT = ("parity.callsites", "parity.companions")


def forked(jobs: Mapping[int, Callable[[], tuple[Outcome, ...]]]) -> Iterator[tuple[int, tuple[Outcome, ...], float]]:
    """(number, what came of it, seconds) as they end. One that dies or hangs ends as an ERROR."""
    context, left = multiprocessing.get_context("fork"), list(jobs)
    running: dict[Connection, tuple[int, Any, float]] = {}
    while left or running:
        while left and len(running) < PROCESSES:
            number = left.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=in_fork, args=(jobs[number], theirs), daemon=True)
            process.start()
            theirs.close()
            running[ours] = number, process, time.perf_counter()
        for pipe in wait(list(running)):
            assert isinstance(pipe, Connection)
            number, process, started = running.pop(pipe)
            try:
                outcomes = pipe.recv()
            except EOFError:
                process.join()
                said = f"the edited engine ended its process: exit code {process.exitcode}"
                outcomes = (Outcome("*", "*", "*", "ERROR", cause=Cause("error", "confirmed", said)),)
            process.join()
            yield number, outcomes, time.perf_counter() - started


def in_fork(job: Callable[[], tuple[Outcome, ...]], pipe: Connection) -> None:
    signal.alarm(LIMIT)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    if torch := sys.modules.get("torch"):
        # Makes its pool anew; of two threads that do so at once, one finds none. vLLM's CPU worker makes nothing of the
        # name under `torch`, so the function itself is called.
        torch._C.set_num_threads(1)
    pipe.send(job())
    pipe.close()
    os._exit(0)  # vLLM's and torch's own endings are the parent's
