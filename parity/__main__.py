"""`python -m parity` and the console scripts. See parity.command_line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from parity import libraries


def start(program: str, argv: Sequence[str] | None) -> int:
    """Run a program of parity.command_line, which itself cannot be imported without numpy."""
    if problem := libraries.problem_of(libraries.ALWAYS):
        print(f"{program}: {problem}", file=sys.stderr)
        return 3
    command_line = importlib.import_module("parity.command_line")
    return int(command_line.run(command_line.PROGRAMS[program], argv))


def main(argv: Sequence[str] | None = None) -> int:
    """`parity`: all commands."""
    return start("parity", argv)


def main_of_engine(argv: Sequence[str] | None = None) -> int:
    """`gen-engine`: the commands for who uses the engine and proves nothing."""
    return start("gen-engine", argv)


if __name__ == "__main__":
    sys.exit(main())
