"""Which lines of gen_engine.py each golden passes, and how long it takes: one run of each, in a
fork.

    found = reach_of(store, "hf")
    found.passing({120, 121})      the quickest likely catcher first

The runs use a copy of gen_engine.py that notes each statement and each body of a lambda as it is
reached; a trace function takes three times as long. What was found is kept in build/mutants/, a
line for each golden, under a digest of gen_engine.py and the call sites: a new golden is run, and
those that are as they were are not.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.goldens.store import Store
from parity.goldens.verdict import Check
from parity.judge.sites import for_backend, merged_settings, pairs_asked
from parity.proof.forks import ENGINE, Died, forked, job_of, judge_source

KEPT = ENGINE.parent / "build" / "mutants"
LOST = "no outcome: its process ended"


@dataclass(frozen=True, slots=True)
class Passage:
    """One golden on the sound engine.

    case: "site/case".   seconds: of a run in a process of its own.
    passes: whether the check passes; a golden that fails without a mutation proves nothing.
    verdicts: what was found, for the reader.
    lines: those that its calls pass; not what only the import of gen_engine.py passes.
    """

    case: str
    seconds: float
    passes: bool
    verdicts: tuple[str, ...]
    lines: frozenset[int]


@dataclass(frozen=True, slots=True)
class Reach:
    """All goldens of a backend.

    at_import: lines of functions that run when gen_engine.py is imported: every golden passes them.
    """

    passages: tuple[Passage, ...]
    at_import: frozenset[int]

    def passing(self, lines: Iterable[int]) -> list[Passage]:
        """The goldens that judge a change of these lines, in order of `ordered`."""
        wanted = frozenset(lines)
        everywhere = bool(wanted & self.at_import)
        return [one for one in self.usable() if everywhere or wanted & one.lines]

    def usable(self) -> list[Passage]:
        return [one for one in self.passages if one.passes]


def ordered(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """The one first that passes the most new lines a second, and so on; then the rest, the quickest
    first."""
    left, chosen, seen = list(passages), list[Passage](), set[int]()
    while left:
        best = max(left, key=lambda one: len(one.lines - seen) / one.seconds)
        if best.lines <= seen:
            break
        left.remove(best)
        chosen.append(best)
        seen |= best.lines
    return (*chosen, *sorted(left, key=lambda one: one.seconds))


# == One run of each golden ==


def reach_of(store: Store, backend: str) -> Reach:
    """Runs the goldens that no kept line is about.

    The process must have been made ready by `prepare`, for it is forked.
    """
    kept = kept_file(backend)
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows = read_rows(kept)
    settings = store.settings()
    keys = {case: key_of(store, settings, case) for case in cases_for(store, backend)}
    left = [case for case in keys if keys[case] not in rows]
    with kept.open("a") as file:
        for done, row in enumerate(noted_goldens(store, left, backend), start=1):
            row["key"] = keys[row["case"]]
            rows[row["key"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{backend}: {done} of {len(left)} goldens run alone", file=sys.stderr)
    return reach_from([rows[key] for key in keys.values()])


def read_rows(kept: Path) -> dict[str, dict[str, Any]]:
    """What is kept, by key. A last line that was not written to its end is left out."""
    lines = kept.read_text().splitlines(keepends=True) if kept.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return {row["key"]: row for row in rows}


def kept_file(backend: str) -> Path:
    """Of the engine and the call sites as they are now."""
    files = [ENGINE, *sorted((ENGINE.parent / "parity" / "callsites").rglob("*.py"))]
    return KEPT / f"reach-{backend}-{digest(file.read_bytes() for file in files)}.jsonl"


def key_of(store: Store, settings: Mapping[str, Any], case: str) -> str:
    """Of a golden as it is now, and of how its site loads engines."""
    site, _, name = case.partition("/")
    how = [settings[site].get(part) for part in ("moved", "load")]
    content = [store.path(site, name).read_bytes(), json.dumps(how, sort_keys=True).encode()]
    return f"{case} {digest(content)}"


def digest(parts: Iterable[bytes]) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(part)
    return content.hexdigest()[:16]


def cases_for(store: Store, backend: str) -> list[str]:
    """Every golden that sites.json wants checked on a backend, as "site/case"."""
    settings = merged_settings(store, store.sites(), {})
    asked, _ = pairs_asked(settings, None)
    found = []
    for site, own in asked:
        if own == backend:
            fitting, _ = for_backend(store.names(site), backend, settings[site].get("cases", {}))
            found += [f"{site}/{name}" for name in fitting]
    return found


def noted_goldens(store: Store, cases: Sequence[str], backend: str) -> Iterator[dict[str, Any]]:
    source = noting(ENGINE.read_text())
    jobs: dict[int, Any] = {}
    for number, case in enumerate(cases):
        jobs[number] = functools.partial(noted_golden, store, source, case, backend)
    for number, found, seconds in forked(jobs):
        row = {"verdicts": [LOST], "passes": False, "lines": [], "at_import": []}
        row = row if isinstance(found, Died) else found
        yield {"case": cases[number], "seconds": seconds, **row}


def noted_golden(store: Store, source: str, case: str, backend: str) -> dict[str, Any]:
    """In a fork: judge one golden on the sound engine, and note the lines."""
    note = Note()
    setattr(builtins, NOTE, note)
    outcomes = judge_source(store, source, job_of(store, [case], backend))
    return {
        "verdicts": [outcome.verdict for outcome in outcomes],
        "passes": not Check(outcomes).failing(),
        "lines": sorted(note.called),
        "at_import": sorted(note.at_import),
    }


def reach_from(rows: Sequence[Mapping[str, Any]]) -> Reach:
    passages, at_import = list[Passage](), frozenset[int]()
    for row in rows:
        lines, verdicts = frozenset(row["lines"]), tuple(row["verdicts"])
        passages.append(Passage(row["case"], row["seconds"], row["passes"], verdicts, lines))
        at_import |= frozenset(row["at_import"])
    return Reach(ordered(passages), at_import)


# == A source that notes what is reached ==

NOTE = "__parity_note__"  # among the builtins of the fork


class Note:
    """Notes lines as they are reached; while gen_engine.py is imported, apart."""

    def __init__(self) -> None:
        self.called = set[int]()
        self.at_import = set[int]()
        self.is_imported = False

    def __call__(self, line: int) -> None:
        if line == IMPORTED:
            self.is_imported = True
        elif self.is_imported:
            self.called.add(line)
        else:
            self.at_import.add(line)


IMPORTED = 0  # noted in the place of a line when the import ends


def noting(source: str) -> str:
    """The source, noting the first line of each statement in a function and of each body of a
    lambda."""
    tree = Noting().visit(ast.parse(source))
    tree.body.append(note_of(IMPORTED))
    return ast.unparse(ast.fix_missing_locations(tree))


def note_of(line: int) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(line)], []))


class Noting(ast.NodeTransformer):
    depth = 0  # of functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.generic_visit(node)
        both = ast.Tuple([note_of(node.body.lineno).value, node.body], ast.Load())
        node.body = ast.Subscript(both, ast.Constant(1), ast.Load())
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if self.depth and isinstance(statements, list) and not isinstance(node, ast.ClassDef):
                setattr(node, name, list(with_notes(statements)))
        return node


def with_notes(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield note_of(statement.lineno)
        yield statement
