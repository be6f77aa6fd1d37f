"""Functions in forks of this process, some at a time."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Died:
    """A fork that ended before it had a result. exit_code: negative for a signal.   error: what it
    raised."""

    exit_code: int
    error: str


def forked(jobs: Mapping[Key, Callable[[], Any]], processes: int) -> Iterator[tuple[Key, Any | Died, float]]:
    """(key, the job's result or Died, seconds) as they end. A result is what JSON can hold. What a
    job leaves running ends with it."""
    left = list(jobs)
    running = dict[int, tuple[Key, int, float]]()  # pidfd -> key, pid, start
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        while left or running:
            while left and len(running) < processes:
                key = left.pop(0)
                pid = os.fork()
                if not pid:
                    run_and_exit(jobs[key], Path(folder, f"{os.getpid()}"))
                running[os.pidfd_open(pid)] = key, pid, time.monotonic()
            ended, _, _ = select.select(list(running), [], [])
            for fd in ended:
                key, pid, started = running.pop(fd)
                os.close(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                kill_group(pid)
                file = Path(folder, f"{pid}")
                written = file.read_text() if file.exists() else ""
                result = json.loads(written) if code == 0 else Died(code, written)
                file.unlink(missing_ok=True)
                yield key, result, time.monotonic() - started


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_and_exit(job: Callable[[], Any], file: Path) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        if torch := sys.modules.get("torch"):
            # Makes its pool of threads anew: a fork has none of those that torch counts on. vLLM's
            # CPU worker replaces torch.set_num_threads, so the function below it is called.
            torch._C.set_num_threads(1)
        file.write_text(json.dumps(job()))
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        file.write_text(traceback.format_exc())
    finally:
        os._exit(code)  # torch's and vLLM's own endings are the parent's
