"""Another interpreter, with its own libraries, runs this parity: `env:` paths, `parity upgrade`.

with own_code() as variables:
    ran = run_there(python, ["-m", "parity", "check"], variables)
"""

from __future__ import annotations

import codecs
import concurrent.futures
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from parity.goldens.store import GoldenError

PACKAGE = Path(__file__).resolve().parents[1]
ENGINES = ("gen_engine.py", "gen_engine")  # in a clone, and as it is installed


class CannotRunThere(GoldenError):
    """An interpreter is not there, or cannot do what it was asked. A command exits with 3."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A process that has ended.   said: what it printed to stdout.   complained: to stderr."""

    code: int
    said: str
    complained: str

    @property
    def last_words(self) -> str:
        """The last line of what it complained of, or said: of a traceback, the error."""
        lines = [*self.said.splitlines(), *self.complained.splitlines()]
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


@contextlib.contextmanager
def own_code() -> Iterator[dict[str, str]]:
    """Variables of a process that is to import parity and gen_engine from here, and all else from
    where it is. An installed parity lies among its own environment's libraries: the folder that is
    named holds nothing but the two."""
    with tempfile.TemporaryDirectory(prefix="parity-code-") as folder:
        beside = [PACKAGE.with_name(name) for name in ENGINES]
        for own in (PACKAGE, *filter(Path.exists, beside)):
            Path(folder, own.name).symlink_to(own)
        others = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, (folder, others)))
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        yield {**variables, "PYTHONPATH": path}


def run_there(
    python: str | Path,
    words: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: str | Path | None = None,
    show: bool = False,
) -> Ran:
    """folder: where it runs, None for here.   show: print what it prints as it comes, too. Raises
    CannotRunThere where there is no such interpreter."""
    command = [str(python), *words]
    try:
        started = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        inside = Path(python, "bin/python")
        fix = f"Did you mean {inside}?" if inside.exists() else "Give the path of a Python."
        raise CannotRunThere(f"{python}: {error.strerror or error}. {fix}") from error
    with started, concurrent.futures.ThreadPoolExecutor(2) as threads:
        said = threads.submit(everything_of, started.stdout, sys.stdout if show else None)
        complained = threads.submit(everything_of, started.stderr, sys.stderr if show else None)
        return Ran(started.wait(), said.result(), complained.result())


def everything_of(pipe: Any, shown: TextIO | None) -> str:
    """All that comes through a pipe, as it comes: bars end with a carriage return."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts = []
    while piece := pipe.read1():
        text = decoder.decode(piece)
        parts.append(text)
        if shown is not None:
            print(text, end="", file=shown, flush=True)
    return "".join(parts)
