"""A process that asks hostile or generated requests and says in JSON lines what it begins.

Where it does not end in time, or ends the process, the request that it began is the failure, and
another child goes on behind it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

PATIENCE = {"hf": 90.0, "vllm": 180.0}  # seconds for one call on a busy machine; the longest took 9
STARTING = 600.0  # seconds until a child makes its first call
SMALL = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
MARK = "child: "  # at the start of what a child says; libraries print too


def tell(what: str, **about: Any) -> None:
    """In the child: say a thing to the parent."""
    print(MARK + json.dumps({"what": what, **about}), flush=True)


class Child:
    """In the parent: the process, what it says, and the last lines of its stderr."""

    def __init__(self, command: Sequence[str]) -> None:
        """command: the words behind `python -m`."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**SMALL, **os.environ},
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.last_words: list[str] = []
        assert self.process.stdout is not None and self.process.stderr is not None
        self._start(self._read_stdout, self.process.stdout)
        self._start(self._read_stderr, self.process.stderr)

    def _start(self, read: Callable[[IO[str]], None], stream: IO[str]) -> None:
        threading.Thread(target=read, args=[stream], daemon=True).start()

    def _read_stdout(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.put(line)
        self.lines.put(None)

    def _read_stderr(self, stream: IO[str]) -> None:
        for line in stream:
            self.last_words = [*self.last_words[-9:], line.strip()]

    def next(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None where it has ended. Raises queue.Empty after so long."""
        while (line := self.lines.get(timeout=seconds)) is not None:
            if line.startswith(MARK):
                said: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return said
        return None

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
