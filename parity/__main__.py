"""`python -m parity` and the console scripts. See parity.cli.command_line."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from parity.environment import libraries

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
ENDED = {"SIGTERM": "terminated", "SIGHUP": "hung up"}  # by a CI runner; by a terminal that is closed
FAULT = 3  # could not judge: Python's own code for an uncaught exception is 1, which is a drift


class Terminated(BaseException):
    """A signal of ENDED came."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.why = ENDED[name]
        self.exit_code = 128 + getattr(signal, name)


def start(program: str, argv: Sequence[str] | None) -> int:
    """Run a program. Ctrl-C, however often, SIGTERM and SIGHUP end it without a traceback, and its
    worker with it; a fault of ours is shown with one."""
    open_standard_streams()
    try:
        with terminated_by_exception():
            return run(program, argv)
    except BaseException as error:
        ended = ending_behind(error)
        if ended is not None:
            end_at_once()
            why, code = (ended.why, ended.exit_code) if isinstance(ended, Terminated) else ("interrupted", INTERRUPTED)
            with contextlib.suppress(OSError):
                print(f"{program}: {why}", file=sys.stderr)
            return code
        if not isinstance(error, Exception):
            raise
        with contextlib.suppress(OSError):
            traceback.print_exc()
            print(f"{program}: this is a fault of {program} itself; please report it", file=sys.stderr)
        return FAULT


def ending_behind(error: BaseException | None) -> Terminated | KeyboardInterrupt | None:
    """What ended the program, where it was raised as it is, or Python wrapped it: it does so in
    __set_name__, as of a dataclass that is imported."""
    while error is not None and not isinstance(error, (Terminated, KeyboardInterrupt)):
        error = error.__cause__
    return error


def open_standard_streams() -> None:
    """Give the process all three streams. Where one is closed (`parity check >&-`), the next file
    that is opened would take its place, and get what is printed."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest one that is free
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            stream = open(descriptor, mode, closefd=False)  # noqa: SIM115 - for the whole process
            setattr(sys, name, stream)


@contextlib.contextmanager
def terminated_by_exception() -> Iterator[None]:
    """Raise Terminated where a signal of ENDED comes: what is begun is undone, and processes are
    ended. One that whoever started us ignores, as `nohup` does, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated(signal.Signals(number).name)

    numbers = [getattr(signal, name) for name in ENDED if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: old for number, old in before.items() if old not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once() -> None:
    """End the process that judged code runs in; from here on Ctrl-C ends this one without a word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (worker := sys.modules.get("parity.judge.worker")) is not None:
        worker.Worker.shared().kill()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def import_own_engine() -> None:
    """Import the gen_engine that this parity came with: `python -m` puts the working directory before it, where a
    vendored copy may lie. The judged code takes its own, in another process."""
    home = str(Path(__file__).resolve().parent.parent)
    sys.path.insert(0, home)
    importlib.import_module("gen_engine")
    sys.path.remove(home)


def run(program: str, argv: Sequence[str] | None) -> int:
    """Run a program of parity.cli.command_line, which itself cannot be imported without numpy."""
    import_own_engine()
    if problem := libraries.problem_of(libraries.ALWAYS):
        print(f"{program}: {problem}", file=sys.stderr)
        return 3
    command_line = importlib.import_module("parity.cli.command_line")
    return int(command_line.run(command_line.PROGRAMS[program], argv))


def main(argv: Sequence[str] | None = None) -> int:
    """`parity`: all commands."""
    return start("parity", argv)


def main_of_engine(argv: Sequence[str] | None = None) -> int:
    """`gen-engine`: the commands for who uses the engine and proves nothing."""
    return start("gen-engine", argv)


if __name__ == "__main__":
    sys.exit(main())
