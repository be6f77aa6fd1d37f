"""The house: every file of parity/ stands in a room, rooms look down only, and no two files look at each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .conftest import ROOT

# Room -> the rooms that its files may import, from the ground up. A room is a folder of parity/.
DATA = "goldens environment models"
ROOMS: dict[str, str] = {
    "gen_engine": "",
    "companions": "gen_engine",
    "goldens": "",
    "environment": "",
    "models": "",
    "record": DATA,
    "judge": f"record {DATA}",
    "scan": DATA,
    "draft": f"scan record {DATA} gen_engine",
    "diff": f"judge record {DATA} companions gen_engine",
    "report": f"diff judge record {DATA}",
    "bench": f"diff judge record {DATA} companions gen_engine",
    "rollout": f"judge record {DATA} companions gen_engine",
    "cli": f"draft scan rollout bench report diff judge record {DATA} companions gen_engine",
    "proof": f"cli diff judge record {DATA} companions gen_engine",  # in a clone only: nothing imports it
    "tests": f"proof cli draft scan rollout bench report diff judge record {DATA} companions gen_engine",
}
DOORS = ("__init__", "__main__", "pytest_plugin")  # names that users type; they open "cli"

Tree = Mapping[str, str]  # path under the root -> source


def sources(root: Path) -> dict[str, str]:
    files = [root / "gen_engine.py", *sorted((root / "parity").rglob("*.py"))]
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}


def room_of(path: str) -> str | None:
    parts = path.removesuffix(".py").split("/")
    if parts[0] != "parity":
        return parts[0]
    if len(parts) == 2:
        return "cli" if parts[1] in DOORS else None
    return parts[1] if parts[1] in ROOMS else None


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def wanted(path: str, source: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every import, at any depth; name is "" where a whole module is meant."""
    here = path.removesuffix(".py").split("/")
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, "") for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = ".".join([*(here[:-level] if level else ()), *([module] if module else ())])
                yield from ((base, alias.name) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name, ""


def targets(path: str, tree: Tree) -> Iterator[tuple[str, str]]:
    """(file of the tree, name) of what a file imports, with the packages on the way there."""
    files = {module_of(other): other for other in tree}
    for module, name in wanted(path, tree[path]):
        if f"{module}.{name}" in files:
            module, name = f"{module}.{name}", ""
        words = module.split(".")
        for package in (".".join(words[:k]) for k in range(1, len(words))):
            if package in files:
                yield files[package], ""
        if module in files:
            yield files[module], name


def faults(tree: Tree) -> list[str]:
    """What is wrong with a house, one sentence each."""
    found = [f"{path} stands in no room" for path in tree if room_of(path) not in ROOMS]
    edges: dict[str, set[str]] = {}
    for path in tree:
        room = room_of(path)
        for target, name in targets(path, tree):
            edges.setdefault(path, set()).add(target)
            theirs = room_of(target)
            if target != "parity/__init__.py" and theirs not in (room, *ROOMS.get(room or "", "").split()):
                found.append(f"{path} imports {target}: {room} does not look at {theirs}")
            if name.startswith("_") and theirs != room:
                found.append(f"{path} imports {name}, which is private to {target}")
    try:
        list(TopologicalSorter(edges).static_order())
    except CycleError as circle:
        found.append(f"a circle: {' -> '.join(circle.args[1])}")
    return list(dict.fromkeys(found))


def test_the_rooms_look_down_only() -> None:
    assert faults(sources(ROOT)) == []


def test_the_table_itself_has_no_circle() -> None:
    assert list(TopologicalSorter({room: may.split() for room, may in ROOMS.items()}).static_order())[-1] == "tests"


HOUSE = {
    "gen_engine.py": "import sqlite3",
    "parity/__init__.py": "",
    "parity/goldens/__init__.py": "",
    "parity/goldens/store.py": "import json",
    "parity/record/__init__.py": "",
    "parity/record/observe.py": "from parity.goldens import store",
    "parity/record/rows.py": "def f():\n    from .observe import Site",
    "parity/judge/check.py": "from parity.record import observe\nfrom parity.goldens.store import Case",
    "parity/proof/callsites/probe.py": "from gen_engine import load",
}


def test_a_house_in_order_has_no_faults() -> None:
    assert faults(HOUSE) == []


@pytest.mark.parametrize(
    ("path", "source", "says"),
    [
        ("parity/record/rows.py", "from parity.judge.check import Judge", "record does not look at judge"),
        ("parity/record/rows.py", "from parity.judge import check", "record does not look at judge"),
        ("parity/record/rows.py", "from ..judge import check", "record does not look at judge"),
        ("parity/record/rows.py", "def f():\n    import parity.judge.check", "record does not look at judge"),
        ("parity/record/rows.py", "if TYPE_CHECKING:\n    from parity.judge import check", "record does not look"),
        ("parity/record/rows.py", "importlib.import_module('parity.judge.check')", "record does not look at judge"),
        ("parity/judge/numerics/reading.py", "from gen_engine import load", "judge does not look at gen_engine"),
        ("parity/judge/numerics/reading.py", "import parity.proof.callsites.probe", "judge does not look at proof"),
        ("parity/companions/cache.py", "from parity.goldens.store import Store", "companions does not look at goldens"),
        (
            "gen_engine.py",
            "def f():\n    from parity.goldens.store import Store",
            "gen_engine does not look at goldens",
        ),
        ("parity/record/observe.py", "from parity.record import rows", "a circle: "),
        ("parity/goldens/store.py", "from parity.record.observe import x", "a circle: "),
        ("parity/record/__init__.py", "from parity.record import rows", "a circle: "),
        (
            "parity/judge/check.py",
            "from parity.goldens.store import _coded",
            "_coded, which is private to parity/goldens/store.py",
        ),
        ("parity/cellar/wine.py", "", "parity/cellar/wine.py stands in no room"),
        ("parity/loose.py", "", "parity/loose.py stands in no room"),
    ],
)
def test_a_fault_in_a_house_is_found(path: str, source: str, says: str) -> None:
    found = faults({**HOUSE, path: source})
    assert any(says in fault for fault in found)


def test_files_that_look_at_each_other_are_a_circle() -> None:
    each = {"parity/bench/a.py": "from parity.bench import b", "parity/bench/b.py": "def f():\n    from . import a"}
    [fault] = faults({**HOUSE, **each})
    assert fault.startswith("a circle: ") and "bench/a.py" in fault and "bench/b.py" in fault
