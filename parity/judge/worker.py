"""A process of its own for code under test: an exit, a crash or a hang of it ends this process and
nothing else.

    for outcome in Worker.shared().run("parity.judge.check:judged", job, limit=600):
        ...

`run` names a generator function; what it yields comes back one by one, pickled. When the process
ends, or says nothing for `limit` seconds (`worker.limit` is another one for what comes next),
`Died` says so, and the next run starts another. A fresh
interpreter, never a fork: torch and CUDA do not live through one. It is started once and kept,
because importing torch takes seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from parity.goldens.store import SettingsError
from parity.record.calls import words_and_place

PACKAGE = Path(__file__).resolve().parents[1]
# parity comes from beside this file, whatever else is on the path that the observed code is to see.
START = """
import importlib.util, sys
places = [{package!r}]
spec = importlib.util.spec_from_file_location("parity", {init!r}, submodule_search_locations=places)
sys.modules["parity"] = importlib.util.module_from_spec(spec)
sys.path[:] = {path!r}
from parity.judge.worker import serve
serve({fd})
"""
WORKER_PATIENCE = 10.0  # seconds that an idle process may take to end
STANDARD = (1, 2)  # descriptors of stdout and stderr
# seconds between two looks at whether the process lives: a child of it may hold the pipe open
WORKER_TICK = 0.5


_output: Path | None = None  # where processes write; None: where this one does


@contextlib.contextmanager
def output_into(path: Path) -> Iterator[None]:
    """While the block runs, what processes print goes to a file: progress bars and warnings of
    libraries, and what the moved code prints. One that is there already is started anew."""
    global _output
    before = _output
    _output = path
    try:
        yield
    finally:
        _output = before


class Died(Exception):
    """The process ended, or was ended, before its work was done. Says how."""


class Worker:
    """One process, started when it is needed. path: what sys.path is there.   folder: its working
    directory (None: as here)."""

    _shared: Worker | None = None

    def __init__(self, path: Sequence[str] | None = None, folder: Path | None = None) -> None:
        self.path = path
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._setting: Any = None
        self.limit = 0.0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        if any(exc):  # nobody waits for it any more
            self.kill()
        self.close()

    @classmethod
    def shared(cls) -> Worker:
        """The one of this process; it ends with it."""
        if cls._shared is None:
            cls._shared = cls()
            atexit.register(cls._shared.close)
        return cls._shared

    def run(self, task: str, job: Any, limit: float) -> Generator[Any, None, None]:
        """What `task` ("pkg.mod:generator function") yields for `job`. Raises Died, and
        SettingsError."""
        self._start()
        assert self._pipe is not None
        self.limit = limit
        over = False
        try:
            with contextlib.suppress(
                BrokenPipeError
            ):  # it has died meanwhile, and receiving says how
                self._pipe.send((task, job, _output))
            while not over:
                kind, content = self._receive(self.limit)
                if kind == "raised":
                    raise content
                if over := kind == "over":
                    return
                yield content
        finally:
            if not over:  # it died, or nobody wants the rest
                self.kill()

    def close(self) -> None:
        """Let it end; if it does not, end it."""
        if self._process is None:
            return
        assert self._pipe is not None
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(WORKER_PATIENCE)
        self.kill()

    def _start(self) -> None:
        """A living process that sees the folder, the path and the environment of now."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        path = list(dict.fromkeys(sys.path if self.path is None else self.path))
        setting = os.getpid(), os.getcwd(), path, environment, sys.dont_write_bytecode
        if self._process is not None and self._setting == setting and self._process.poll() is None:
            return
        self.close()
        ours, theirs = Pipe()
        init = str(PACKAGE / "__init__.py")
        code = START.format(init=init, package=str(PACKAGE), path=path, fd=theirs.fileno())
        flags = ["-B"] if sys.dont_write_bytecode else []
        command = [sys.executable, *flags, "-c", code]
        # A session of its own: what it leaves behind is ended with it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd=self.folder,
        )
        theirs.close()
        self._pipe = ours
        self._setting = setting

    def _receive(self, limit: float) -> tuple[str, Any]:
        assert self._pipe is not None and self._process is not None
        until = time.monotonic() + limit
        while not wait([self._pipe], min(WORKER_TICK, max(0.0, until - time.monotonic()))):
            if self._process.poll() is not None and not self._pipe.poll():
                raise Died(self._ended())
            if time.monotonic() >= until:
                raise Died(
                    f"it said nothing for {limit:g} seconds and was ended; --time-limit says"
                    " another time"
                )
        try:
            kind, content = self._pipe.recv()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(WORKER_PATIENCE)
            raise Died(self._ended()) from None
        return kind, content

    def _ended(self) -> str:
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return "it closed the pipe of its process"
        if code < 0:
            return f"it crashed its process: signal {-code} ({signal.Signals(-code).name})"
        return f"it ended its process with exit code {code} (os._exit?)"

    def kill(self) -> None:
        """The process and what it started, whatever they are at."""
        process = self._process
        self._process = None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._pipe is not None:
            self._pipe.close()


# == Inside ==


def serve(descriptor: int) -> None:
    """Do what is asked until nobody asks any more."""
    pipe: Connection[Any, Any] = Connection(descriptor)
    end_with_parent()
    started = [os.dup(descriptor) for descriptor in STANDARD]
    while True:
        try:
            task, job, output = pipe.recv()
        except (EOFError, OSError):
            return
        write_into(output, started)
        try:
            for found in named(task)(job):
                pipe.send_bytes(pickle.dumps(("found", found)))
            pipe.send(("over", None))
        except BaseException as error:  # noqa: BLE001 - also an exit: it is told, and ends
            is_told = isinstance(error, SettingsError)
            pipe.send(("raised", error if is_told else Died(words_and_place(error))))
            return


def end_with_parent() -> None:
    """End this process, and what it started, when the one that it works for is gone: one that is
    killed cannot end its worker, which would go on with its case."""
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        return  # a group of its own is what may be ended

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WORKER_TICK)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def write_into(output: Path | None, started: Sequence[int]) -> None:
    """Let this process write to the end of a file or, of None, to where it wrote when it was
    started."""
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, before in zip(STANDARD, started):
        if output is None:
            os.dup2(before, descriptor)
        else:
            with output.open("ab") as file:
                os.dup2(file.fileno(), descriptor)


def named(task: str) -> Callable[[Any], Iterator[Any]]:
    module, _, name = task.partition(":")
    __import__(module)
    found: Callable[[Any], Iterator[Any]] = getattr(sys.modules[module], name)
    return found
