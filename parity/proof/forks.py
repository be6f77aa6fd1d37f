"""Work in forks of one process that has imported and loaded everything.

    prepare(store, cases)
    for number, found, seconds in forked({0: functools.partial(run_site_mutation, store, mutation)}):
        ...

Importing the libraries takes longer than a case. So one process imports them, loads the models that
the call sites ask for, and each job runs in a fork of it, two at a time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from parity.environment.libraries import settle
from parity.goldens.store import Store
from parity.models.tasks import vision_tasks

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


def prepare(store: Store, cases: Iterable[str]) -> None:
    """Load what the sites of these cases load on hf, and ask it once: what that imports and
    compiles no fork does again."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # No fork can use a GPU, and each load would look for one.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import torch
    import xgrammar  # noqa: F401

    import gen_engine

    torch.set_num_threads(1)  # a fork has none of the threads that torch counts on
    for model, load in models_of(store, cases):
        with gen_engine.load(model, **load) as engine:
            engine.generate_text_batch([{"prompt": "One, two"}], {"max_new_tokens": 2, "logprobs": 1})
            if engine.checkpoint.processor is not None:
                chat = vision_tasks(1)[0].messages
                engine.generate_vlm_batch([{"messages": chat}], {"max_new_tokens": 2})
    settle()  # a collection in a fork would also copy each page that it looks at


Load = Mapping[str, Any]  # keyword arguments of `gen_engine.load`


def models_of(store: Store, cases: Iterable[str]) -> Iterator[tuple[str, Load]]:
    """(model, load settings) of each pair of a site and a model that the cases name."""
    wanted = {}
    for case in dict.fromkeys(cases):
        site, _, name = case.partition("/")
        model = store.read(site, name).arguments.get("model_path")
        if model:
            wanted[site, model] = store.settings()[site].get("load", {}).get("hf", {})
    for (_, model), load in wanted.items():
        yield model, load


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
    os._exit(0)  # the libraries' own endings are the parent's
