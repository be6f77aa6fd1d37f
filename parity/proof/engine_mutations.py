"""Mutations of the engine that are committed: each is judged by the goldens that it is to be
shown by.

engine_mutations.json holds them, written by somebody who had not read the judge. They are
regression tests of the judge.

    for score in run_mutations(store, mutations(), "hf"):
        ...
"""

from __future__ import annotations

import functools
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.goldens.store import Store
from parity.goldens.verdict import Cause, Outcome
from parity.proof.forks import ENGINE, Died, Source, forked, job_of, judge_source, prepare
from parity.proof.score import Score
from parity.proof.syntax import replaced

FILE = Path(__file__).with_name("engine_mutations.json")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of the engine, located by function and syntax (parity.proof.syntax).

    file: that it changes, gen_engine.py or a companion, from the root of the repository.
    section: of gen_engine.py, for the table.   what: the fault, in words.
    where: the qualified name of a function or class, or "module".
    find, replace: Python source of what is there, and of what is put in its place.
    backends: those on which it shows.   causes: names that are right, the best first.
    cases: goldens that show it, as "site/case"; one that none shows is not caught: a golden is
    missing.
    """

    name: str
    section: str
    what: str
    where: str
    find: str
    replace: str
    backends: tuple[str, ...]
    causes: tuple[str, ...]
    cases: tuple[str, ...] = ()
    file: str = ENGINE.name

    def mutated(self) -> Source:
        """Its file with this mutation. Raises ValueError where the pattern does not match once."""
        return Source(self.file, self.source((ENGINE.parent / self.file).read_text()))

    def source(self, sound: str) -> str:
        """The text of its file with this mutation. Raises ValueError where the pattern does not match
        once."""
        how = {"find": self.find, "replace": self.replace, "name": self.name}
        return replaced(sound, self.where, **how)


def mutations(only: str | None = None) -> list[Mutation]:
    """All of them, or those whose name holds `only`, or of the section `only`."""
    found = [mutation_of(row) for row in json.loads(FILE.read_text())]
    return [one for one in found if only is None or only in one.name or only == one.section]


def mutation_of(row: Mapping[str, Any]) -> Mutation:
    return Mutation(
        name=row["name"],
        section=row["section"],
        what=row["what"],
        where=row["where"],
        find=joined(row["find"]),
        replace=joined(row["replace"]),
        backends=tuple(row["backends"]),
        causes=tuple(row["causes"]),
        cases=tuple(row["cases"]),
        file=row.get("file", ENGINE.name),
    )


def joined(text: str | list[str]) -> str:
    """Source of several lines is a list in the file."""
    return text if isinstance(text, str) else "\n".join(text)


def sampled(chosen: Sequence[Mutation], every: int, turn: int) -> list[Mutation]:
    """One in `every` of each section, each on one of its backends: 2 * `every` turns hold all on
    both."""
    kept = list[Mutation]()
    seen = Counter[str]()
    for mutation in chosen:
        if seen[mutation.section] % every == turn % every:
            number = (len(kept) + turn // every) % len(mutation.backends)
            kept.append(replace(mutation, backends=(mutation.backends[number],)))
        seen[mutation.section] += 1
    return kept


def turn_of_sources() -> int:
    """A number made from the sources: each mutation has its turn as they change, and a red run can
    be repeated."""
    sources = [ENGINE, *sorted((ENGINE.parent / "parity/judge").glob("*.py"))]
    return zlib.crc32(b"".join(path.read_bytes() for path in sources))


def run_mutations(store: Store, chosen: Sequence[Mutation], backend: str) -> Iterator[Score]:
    """What became of each mutation on a backend, as they end."""
    jobs = {}
    for number, mutation in enumerate(chosen):
        job = job_of(store, mutation.cases, backend)
        jobs[number] = functools.partial(judge_source, store, mutation.mutated(), job)
    prepare(store, [case for mutation in chosen for case in mutation.cases], backend)
    for number, found, seconds in forked(jobs):
        mutation = chosen[number]
        name = f"{mutation.name} ({backend})"
        yield Score(name, mutation.causes, outcomes_of(found), seconds, mutation.section)


def outcomes_of(found: tuple[Outcome, ...] | Died) -> tuple[Outcome, ...]:
    """Of a fork; one that died is an ERROR."""
    if not isinstance(found, Died):
        return found
    said = f"the mutated engine ended its process: exit code {found.exit_code}"
    return (Outcome("*", "*", "*", "ERROR", cause=Cause("error", "confirmed", said)),)
