"""`python -m parity` and the console scripts. See parity.cli.command_line."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from parity.environment import libraries

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def start(program: str, argv: Sequence[str] | None) -> int:
    """Run a program, and end without a traceback where Ctrl-C is pressed, however often."""
    try:
        return run(program, argv)
    except KeyboardInterrupt:
        end_at_once()
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED


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
