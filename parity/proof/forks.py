"""Runs of other sources of gen_engine.py, each in a fork of one process that has imported and
loaded everything.

    prepare(store, cases, "hf")
    for number, found, seconds in forked({0: functools.partial(judge_source, store, source, job)}):
        ...

Importing the libraries takes longer than a case, and loading vLLM longer than that. So one process
imports them, loads the engines that the call sites ask for, keeps vLLM's, and each source is judged
in a fork of it, two at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from parity.goldens.store import Store
from parity.goldens.verdict import Outcome
from parity.judge.check import Job, Measured, judged
from parity.judge.sites import merged_settings, named_function
from parity.judge.worker import settle
from parity.models.tasks import vision_tasks

ENGINE = Path(__file__).parents[2] / "gen_engine.py"
FROM_ENGINE = ("parity.proof.callsites", "parity.companions")
PROCESSES = 2
LIMIT = 300  # seconds that one fork may take on a machine that is busy

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Died:
    """A fork that ended before it had an answer. exit_code: negative for a signal."""

    exit_code: int | None

    @property
    def is_hang(self) -> bool:
        return self.exit_code == -signal.SIGALRM


# == In the process that is forked ==

_kept: list[Any] = []  # an engine that is closed, or forgotten, takes vLLM's with it


def prepare(store: Store, cases: Iterable[str], backend: Any) -> None:
    """Load what the sites of these cases load, and ask it once: what that imports and compiles no
    fork does again."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # No fork can use a GPU, and each load would look for one.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import torch
    import xgrammar  # noqa: F401

    import gen_engine

    torch.set_num_threads(1)  # a fork has none of the threads that torch counts on
    if backend == "vllm":
        lend_engines()
    for model, load in models_of(store, cases, backend):
        engine = gen_engine.load(model, backend=backend, **load)
        engine.generate_text_batch([{"prompt": "One, two"}], {"max_new_tokens": 2, "logprobs": 1})
        if engine.checkpoint.processor is not None:
            chat = vision_tasks(1)[0].messages
            engine.generate_vlm_batch([{"messages": chat}], {"max_new_tokens": 2})
        if backend == "vllm":
            _kept.append(engine)
        else:
            engine.close()
    settle()  # a collection in a fork would also copy each page that it looks at
    if backend == "vllm":
        replace_kernels()


def replace_kernels() -> None:
    """`settle` makes vLLM do this once a process: here, so that no fork does it again (a second
    each)."""
    import vllm.platforms

    vllm.platforms.current_platform.register_triton_kernel_overrides()


Load = Mapping[str, Any]  # keyword arguments of `gen_engine.load`


def models_of(store: Store, cases: Iterable[str], backend: str) -> Iterator[tuple[str, Load]]:
    """(model, load settings) of each pair of a site and a model that the cases name."""
    wanted = {}
    for case in dict.fromkeys(cases):
        site, _, name = case.partition("/")
        model = store.read(site, name).arguments.get("model_path")
        if model:
            wanted[site, model] = store.settings()[site].get("load", {}).get(backend, {})
    for (_, model), load in wanted.items():
        yield model, load


def lend_engines() -> None:
    """Who asks for one of vLLM's engines again, in a fork, is given the same."""
    import vllm

    original = vllm.LLM
    known = dict[str, Any]()

    def loading(**settings: Any) -> Any:
        key = repr(sorted(settings.items()))
        if key in known:
            return known[key]
        made = original(**settings)
        _kept.append(made)  # or its end would do the same
        # Of threads and groups that a fork does not have.
        made.llm_engine.engine_core.shutdown = lambda *a, **k: None
        # A class of gen_engine.py itself, another one in each fork; adapters, which it knows by
        # number.
        if not {"logits_processors", "enable_lora"} & settings.keys():
            known[key] = made
        return made

    vllm.LLM = loading


def job_of(store: Store, cases: Sequence[str], backend: str) -> Job:
    """Goldens, as "site/case", to be judged on a backend."""
    names = [(backend, *case.split("/", 1)) for case in cases]
    settings = merged_settings(store, list(dict.fromkeys(site for _, site, _ in names)), {})
    functions = {}
    for _, site, name in names:
        functions[named_function(store.read(site, name), settings[site])] = site
    items = tuple((backend, site, name) for _, site, name in names)
    return Job(str(store.root), items, settings, functions)


def forked(
    jobs: Mapping[int, Callable[[], Found]], processes: int = PROCESSES
) -> Iterator[tuple[int, Found | Died, float]]:
    """(number, what came of it, seconds) as they end. What a job leaves running ends with it."""
    context = multiprocessing.get_context("fork")
    left = list(jobs)
    running: dict[Connection, tuple[int, Any, float]] = {}
    try:
        while left or running:
            while left and len(running) < processes:
                number = left.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=in_fork, args=(jobs[number], theirs))
                process.start()
                theirs.close()
                running[ours] = number, process, time.perf_counter()
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                number, process, started = running.pop(pipe)
                found: Found | Died
                try:
                    found = pipe.recv()
                except EOFError:
                    process.join()
                    found = Died(process.exitcode)
                process.join()
                end_group(process.pid)
                pipe.close()
                yield number, found, time.perf_counter() - started
    finally:
        for _, process, _ in running.values():
            end_group(process.pid)


def end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


# == In a fork ==


def in_fork(job: Callable[[], Any], pipe: Connection) -> None:
    os.setpgid(0, 0)
    signal.alarm(LIMIT)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    if torch := sys.modules.get("torch"):
        # Makes its pool anew; of two threads that do so at once, one finds none. vLLM's CPU worker
        # makes nothing of the name under `torch`, so the function itself is called.
        torch._C.set_num_threads(1)
    pipe.send(job())
    pipe.close()
    os._exit(0)  # vLLM's and torch's own endings are the parent's


@dataclass(frozen=True, slots=True)
class Source:
    """The text of the engine's file, or of a companion that it finds, from the repository's root."""

    file: str
    text: str


@contextlib.contextmanager
def engine_source(source: str | Source) -> Iterator[None]:
    """Whoever imports gen_engine, or the companion that `source` is, from here on in this process
    gets this source."""
    if isinstance(source, str):
        source = Source(ENGINE.name, source)
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        # A mutated companion stands beside a sound engine, which looks there first.
        (Path(folder) / "parity").symlink_to(ENGINE.with_name("parity"))
        sound = ENGINE.read_text()
        (Path(folder) / ENGINE.name).write_text(sound)
        (Path(folder) / Path(source.file).name).write_text(source.text)
        old = [name for name in sys.modules if name == "gen_engine" or name.startswith(FROM_ENGINE)]
        for name in old:
            del sys.modules[name]
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        yield


def judge_source(store: Store, source: str | Source, job: Job) -> tuple[Outcome, ...]:
    """The outcomes of a job with this source of the engine."""
    outcomes: dict[tuple[str, str, str], Outcome] = {}
    with engine_source(source):
        for found in judged(job):
            if isinstance(found, Outcome):
                outcomes[found.backend, found.site, found.case] = found
            elif isinstance(found, Measured):
                outcomes.update(found.settled)
    return tuple(outcomes.values())
