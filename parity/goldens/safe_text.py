"""Text that somebody else wrote, for a terminal or the log of a CI runner: neither obeys anything in it.

say(line)                print text of files
log_safe(report)         a report with our own colours; text of files in it went through `printable` first
print_verdict(report)    print one whose exit code and files stand whether anybody can read it or not
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TextIO

COLOUR = re.compile(r"(\x1b\[(?:[0-2]|3[1-36])m)")  # those of the console's `paint`
RUNNER_COMMAND = re.compile(r"##(?=\w*\[)")  # ##[error], ##vso[task.setvariable], ##teamcity[...]


def printable(text: str) -> str:
    """Text that does nothing to a terminal or a log: what does not print is written as its escape."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return "".join(escaped)


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines of which nothing is obeyed."""
    lines = [safe_line(printable(line)) for line in text.split("\n")]
    print("\n".join(lines), file=file or sys.stdout)


def log_safe(text: str) -> str:
    """Text of which a terminal and a CI log obey nothing but our colours: other control characters
    are written as their escapes, and no line is a command of a runner."""
    return "\n".join(map(safe_line, text.split("\n")))


def safe_line(line: str) -> str:
    pieces = COLOUR.split(line)
    shown = "".join(p if COLOUR.fullmatch(p) else printable(p) for p in pieces)
    shown = RUNNER_COMMAND.sub(r"#\\x23", shown)
    if COLOUR.sub("", shown).lstrip().startswith("::"):
        return shown.replace("::", "\\x3a:", 1)
    return shown


def printable_lines(text: str) -> str:
    """Lines that do nothing to a terminal, a page or a file of results; their ends stay."""
    return "\n".join(map(printable, text.split("\n")))


def print_verdict(text: str) -> None:
    """Print what the exit code says, too. Where standard output is a pipe that nobody reads, or a full
    disk, the rest is not printed: that changes no verdict."""
    try:
        print(text, flush=True)
    except OSError as error:
        forget_stdout()
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                print(f"standard output: {error.strerror}; the rest is not printed", file=sys.stderr, flush=True)


def forget_stdout() -> None:
    """Where nothing can be written: Python flushes it once more when it ends, and would end with
    another exit code."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
