"""Python processes of tests that need not import the libraries: forks of one process that has imported them.

Importing torch, transformers and vLLM costs ten seconds of processor, and a hundred tests start processes that do it;
xdist's workers are such processes, too. With the fixture `forked_python` (conftest.py), `sys.executable` and the
`python` on PATH are a client: it hands its arguments, folder, environment and open files to a server, which is one for
the whole run and imports the libraries at the first request; a fork of the server runs the program as Python would, and
the client ends as the fork ends. What a fork starts with `sys.executable` is a fork, too.

A process is a real one all the same where it has flags, or variables that libraries read at import other than the
server has. A test stays without the fixture where the start of a process is its subject: what is imported when, a
library that is missing, broken or shadowed, a vendored copy alone, processes that are killed with what they started.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib
import importlib.util
import itertools
import json
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

LIBRARIES = (
    "torch",
    "transformers.generation",
    "vllm.entrypoints.llm",
    # What the first engine of a process imports: two of the three seconds that it takes.
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3_vl",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "transformers.models.qwen3.modeling_qwen3",
)
# Variables that Python or a library may read when it is imported begin so.
READ_AT_IMPORT = (
    "CUDA",
    "HF_",
    "MKL_",
    "NUMBA_",
    "OMP_",
    "PYTHON",
    "TOKENIZERS_",
    "TORCH_",
    "TRANSFORMERS_",
    # vLLM reads its others where it uses them, and its engines leave some behind in the environment.
    "VLLM_CONFIGURE_LOGGING",
    "VLLM_LOGGING_",
    "VLLM_PLUGINS",
    "VLLM_TARGET_DEVICE",
)
# `become` sees to the first two; nothing is downloaded here.
OF_NO_CONCERN = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "HF_HUB_DISABLE_PROGRESS_BARS"}
SETTLES = Path(__file__).parents[1] / "environment/libraries.py"
ADDRESS, CLIENT = "socket", "python"  # in the server's folder
MANY = 64  # files that a client may hand over
HIGH = 500  # descriptors from here on are free in a fork

CLIENT_SOURCE = """#!{python} -IS
import json, os, signal, socket, sys

connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
files = [int(name) for name in os.listdir("/proc/self/fd")]
files = [fd for fd in files if fd != connection.fileno() and os.path.exists(f"/proc/self/fd/{{fd}}")]
socket.send_fds(connection, [b" "], files)
request = {{"words": sys.argv[1:], "files": files, "folder": os.getcwd(), "variables": dict(os.environ)}}
connection.sendall(json.dumps(request).encode() + b"\\n")
answers = connection.makefile()
pid = int(answers.readline())
if not pid:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(answers.readline() or -signal.SIGKILL)  # the server has ended
if code < 0:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client was started with. words: behind the name of Python.   files: its descriptors."""

    words: Sequence[str]
    files: Sequence[int]
    folder: str
    variables: Mapping[str, str]

    @property
    def flags(self) -> Sequence[str]:
        """Those that a fork can have."""
        return list(itertools.takewhile(("-B", "-u").__contains__, self.words))

    @property
    def program(self) -> Sequence[str]:
        """The words behind them."""
        return self.words[len(self.flags) :]


# == In the process that runs the tests ==


@contextlib.contextmanager
def running_server() -> Iterator[Path]:
    """The folder in which `python` is the client."""
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    client = folder / CLIENT
    client.write_text(CLIENT_SOURCE.format(python=sys.executable, address=str(folder / ADDRESS)))
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / ADDRESS))
        listener.listen()
        number = listener.fileno()
        command = [sys.executable, __file__, str(number), str(client)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[number], start_new_session=True)
    try:
        yield folder
    finally:
        server.communicate()  # closes its input: its end
        shutil.rmtree(folder)


# == In the server ==


def load_settle() -> Callable[..., None]:
    """Of the harness, but none of its modules is to be in a fork."""
    spec = importlib.util.spec_from_file_location("_libraries", SETTLES)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Callable[..., None], module.settle)


def do_once() -> None:
    """What vLLM's first engine of a process does that stays: kernels replaced, and the one compiled that ranks
    log-probabilities, of two vocabularies: of any from then on."""
    torch: Any = importlib.import_module("torch")
    platforms, sampler = map(importlib.import_module, ("vllm.platforms", "vllm.v1.sample.sampler"))
    platforms.current_platform.register_triton_kernel_overrides()
    config: Any = importlib.import_module("torch._inductor.config")
    config.compile_threads = 1  # others would be processes of the server
    for vocabulary in (100, 101):
        sampler.Sampler.gather_logprobs(torch.zeros(2, vocabulary), 1, torch.zeros(2, dtype=torch.int64))


class Server:
    """One thread: a fork has no other."""

    def __init__(self, listener: socket.socket, client: str) -> None:
        self.listener, self.client = listener, client
        self.variables = dict(os.environ)
        self.running = set[int]()
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.selector.register(0, selectors.EVENT_READ, self.end)

    @functools.cached_property
    def variables_of_libraries(self) -> dict[str, str]:
        """What the libraries set when they are imported."""
        settle = load_settle()
        settle(*LIBRARIES)
        with contextlib.suppress(ImportError, AttributeError):  # no vLLM, or another release
            do_once()
        settle()  # a collection in a fork would copy each page that it looks at
        return {name: value for name, value in os.environ.items() if self.variables.get(name) != value}

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def end(self) -> None:
        """The tests are over."""
        for pid in self.running:
            os.killpg(pid, signal.SIGKILL)
        sys.exit()

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        _, files, _, _ = socket.recv_fds(connection, 1, MANY)
        line = connection.makefile().readline()
        request = Request(**json.loads(line)) if line else None  # None: a client that was killed at once
        if request is not None and self.is_like_here(request):
            self.fork(request, files, connection)
        else:
            answer(connection, 0)
            connection.close()
        for fd in files:
            os.close(fd)

    def is_like_here(self, request: Request) -> bool:
        """Whether a fork can be what was asked for."""
        read = [
            {name: value for name, value in variables.items() if name.startswith(READ_AT_IMPORT)}
            for variables in (self.variables, request.variables)
        ]
        for variables in read:
            for name in (*OF_NO_CONCERN, *self.variables_of_libraries):
                variables.pop(name, None)
        first = next(iter(request.program), "-")
        return read[0] == read[1] and (first in ("-c", "-m") or not first.startswith("-"))

    def fork(self, request: Request, files: Sequence[int], connection: socket.socket) -> None:
        pid = os.fork()
        if not pid:
            os._exit(become(request, files, self.client, self.variables_of_libraries))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # as the fork does: whoever is first
        self.running.add(pid)
        answer(connection, pid)
        ended = os.pidfd_open(pid)
        self.selector.register(connection, selectors.EVENT_READ, functools.partial(self.kill, pid, connection))
        self.selector.register(ended, selectors.EVENT_READ, functools.partial(self.bury, pid, ended, connection))

    def kill(self, pid: int, connection: socket.socket) -> None:
        """A client is no more."""
        if pid in self.running:
            self.selector.unregister(connection)
            os.killpg(pid, signal.SIGKILL)

    def bury(self, pid: int, ended: int, connection: socket.socket) -> None:
        _, status = os.waitpid(pid, 0)
        self.running.remove(pid)
        self.selector.unregister(ended)
        os.close(ended)
        with contextlib.suppress(KeyError):
            self.selector.unregister(connection)
        answer(connection, os.waitstatus_to_exitcode(status))
        connection.close()


def answer(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client is no more
        connection.sendall(f"{number}\n".encode())


# == In a fork ==


def become(request: Request, files: Sequence[int], client: str, variables: Mapping[str, str]) -> int:
    """Be the process that was asked for; returns its exit code."""
    os.setpgid(0, 0)
    take_files(files, request.files)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(variables)
    os.environ.update(request.variables)
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ or "-B" in request.flags
    sys.stdout.reconfigure(write_through="-u" in request.flags)  # type: ignore[union-attr]
    sys.executable = client
    sys.orig_argv = [client, *request.words]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # or all forks would sample the same
    try:
        return exit_code(request.program)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def take_files(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Have these files as these descriptors, and no others."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for fd in files]
    os.closerange(0, HIGH)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    errors = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = errors  # type: ignore[misc]


def exit_code(words: Sequence[str]) -> int:
    """Run a program as Python does, and say how it ended."""
    try:
        run_program(*words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def run_program(first: str, *others: str) -> None:
    """`-c code`, `-m module` or a script, each with arguments."""
    kind, words = (first, others) if first in ("-c", "-m") else ("", (first, *others))
    begin = {"-c": "", "-m": os.getcwd(), "": str(Path(words[0]).resolve().parent)}[kind]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [begin, *filter(None, named), *sys.path[1:]]
    sys.argv[:] = [kind, *words[1:]] if kind else list(words)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if kind == "-m":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if kind:
        source, name = words[0], "<string>"
    else:
        source, name = Path(words[0]).read_text(encoding="utf-8"), words[0]
        main.__file__ = name
    exec(compile(source, name, "exec"), vars(main))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a GB for each crash that a test makes
    Server(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]).serve()
