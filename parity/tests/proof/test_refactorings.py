"""The refactorings still apply to the engine: each changes something, and what it makes can be imported."""

from __future__ import annotations

import ast
import sys
import types

import pytest

from parity.proof import refactorings
from parity.proof.refactorings import REFACTORINGS, NothingToChange, Refactoring

from ..conftest import ROOT

SOURCE = (ROOT / "gen_engine.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("refactoring", REFACTORINGS, ids=lambda refactoring: refactoring.name)
def test_refactoring_of_the_engine_changes_something_and_imports(
    refactoring: Refactoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, places = refactoring.apply(SOURCE)
    assert places and ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
    module = types.ModuleType("refactored")
    module.__file__ = str(ROOT / "gen_engine.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    exec(compile(changed, "refactored", "exec"), vars(module))
    assert all(hasattr(module, name) for name in module.__all__)


EXAMPLES = {
    "branches": ("if a:\n    b()\nelse:\n    c()", "if not a:\n    c()\nelse:\n    b()"),
    "conditional-expressions": ("a = b if not c else d", "a = d if c else b"),
    "nested-conditions": ("if a and b and c:\n    d()", "if a:\n    if b and c:\n        d()"),
    "comparisons": ("a = b < c", "a = c > b"),
    "sequences": ("a = b in (1, 2)", "a = b in [1, 2]"),
    "comprehensions": ("a = [b for b in c]", "a = list((b for b in c))"),
    "keyword-order": ("a(b=1, c=2)\na(b=1, **c)", "a(c=2, b=1)\na(b=1, **c)"),
    "named-returns": ("def a():\n    return b()", "def a():\n    given_back = b()\n    return given_back"),
    "local-names": ("def a(b):\n    c = b\n    return c", "def a(b):\n    c_anew = b\n    return c_anew"),
    "method-order": (
        "class A:\n    x = 1\n\n    def a(self):\n        pass\n\n    def b(self):\n        pass",
        "class A:\n    x = 1\n\n    def b(self):\n        pass\n\n    def a(self):\n        pass",
    ),
    "inlined-methods": (
        "class A:\n\n    def a(self, b):\n        c = self._odd(b)\n        return c\n\n"
        "    def _odd(self, b):\n        d = b\n        return d + 1",
        "class A:\n\n    def a(self, b):\n        d = b\n        c = d + 1\n        return c",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_refactoring_of_an_example_is_its_other_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refactorings, "words_elsewhere", set)
    [refactoring] = [one for one in REFACTORINGS if one.name == name]
    before, after = EXAMPLES[name]
    assert refactoring.apply(before)[0].strip() == after


def test_refactoring_that_finds_nothing_is_an_error() -> None:
    [refactoring] = [one for one in REFACTORINGS if one.name == "branches"]
    with pytest.raises(NothingToChange, match="branches: nothing in gen_engine.py is of this form"):
        refactoring.apply("a = 1")
