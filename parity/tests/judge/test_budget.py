"""What parity/judge and parity/record ask of a reader: tokens, tokens per code line, columns,
branches, comprehensions that are loops, and names that mean two things. The figures are those of
today: a change may lower them, and whoever lowers one writes the new one down here."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..engine.test_budget import Density, density

ROOMS = ("judge", "record")


@dataclass(frozen=True, slots=True)
class Budget:
    """branchy: functions of more than 10 branches, boolean operators and comprehensions counted.
    wide: lines of more than 100 columns."""

    tokens: int
    per_line: float
    branchy: int
    wide: int


BUDGETS = {
    "judge": Budget(tokens=82_341, per_line=9.5, branchy=0, wide=0),
    "record": Budget(tokens=37_975, per_line=9.31, branchy=0, wide=0),
}
MOST_SHARED_NAMES = 0  # at the top level of two modules of these rooms

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
EACH_HAS_ONE = {"STAGE", "TAPS", "__all__"}  # by the form of its room


def modules(room: str) -> list[Path]:
    return sorted((ROOT / "parity" / room).rglob("*.py"))


def measured(room: str) -> tuple[Budget, list[str]]:
    """A room's figures, and its branchy functions."""
    found: list[Density] = [density(path.read_text(encoding="utf-8")) for path in modules(room)]
    tokens = sum(one.tokens for one in found)
    lines = sum(one.code_lines for one in found)
    branchy = [name for one in found for name in one.branchy]
    wide = sum(len(one.wide) for one in found)
    return Budget(tokens, round(tokens / lines, 2), len(branchy), wide), branchy


def folded_loops(path: Path) -> Iterator[str]:
    """Comprehensions with more than one `for` or one condition, or with another one inside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, COMPREHENSIONS):
            continue
        conditions = [condition for loop in node.generators for condition in loop.ifs]
        inner = [one for one in ast.walk(node) if isinstance(one, COMPREHENSIONS)]
        is_and_or = any(isinstance(condition, ast.BoolOp) for condition in conditions)
        if len(node.generators) > 1 or len(conditions) > 1 or len(inner) > 1 or is_and_or:
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def top_level_names(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("room", ROOMS)
def test_budget_of_a_room_is_not_exceeded(room: str) -> None:
    found, branchy = measured(room)
    print(f"{room}: {found}; {', '.join(branchy)}")
    most = BUDGETS[room]
    assert found.tokens <= most.tokens
    assert found.per_line <= most.per_line
    assert found.branchy <= most.branchy, branchy
    assert found.wide <= most.wide


@pytest.mark.parametrize("room", ROOMS)
def test_a_comprehension_of_a_room_is_one_loop(room: str) -> None:
    assert [place for path in modules(room) for place in folded_loops(path)] == []


def test_names_of_both_rooms_mean_one_thing() -> None:
    names = Counter(name for room in ROOMS for path in modules(room) for name in {*top_level_names(path)})
    shared = sorted(name for name, count in names.items() if count > 1 and name not in EACH_HAS_ONE)
    print(f"{len(shared)}: {', '.join(shared)}")
    assert len(shared) <= MOST_SHARED_NAMES, shared
