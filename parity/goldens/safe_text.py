"""Text that somebody else wrote, for a terminal or the log of a CI runner: neither obeys anything in it.

say(line)                print text of files
log_safe(report)         a report with our own colours; text of files in it went through `printable` first
"""

from __future__ import annotations

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
