"""Edits located by function and syntax: what a pattern matches, what it does not, and what is said
then."""

from __future__ import annotations

import ast

import pytest

from parity.proof.syntax import replaced

SOURCE = '''
LIMIT = 3


class Row:
    size: int = 4

    def push(self, token, *, most=2):
        """Add one token."""
        self.ids.append(token)  # kept
        if token in self.ends:
            self.over = True
        else:
            self.over = len(self.ids) >= most
        return self.over


def push(token):
    return token
'''


def edited(where: str, find: str, replace: str) -> str:
    return replaced(SOURCE, where, find=find, replace=replace, name="test")


@pytest.mark.parametrize(
    ("where", "find", "replace", "line"),
    [
        ("Row.push", "len(self.ids) >= most", "len(self.ids) > most", "len(self.ids) > most"),
        ("Row.push", "(len(self.ids)\n >=\n most)", "False", "self.over = False"),
        ("Row.push", "self.ids.append(token)", "", "def push(self, token, *, most=2):"),
        ("Row.push", "if token in self.ends:\n    ...", "if token:\n    ...", "if token:"),
        ("Row", "def push(self, token, *, most=2):\n    ...", "def push(self):\n    ...", "push(self):"),
        ("Row", "size: int = 4", "size: int = 5", "size: int = 5"),
        ("push", "return token", "return -token", "return -token"),
        ("module", "LIMIT = 3", "LIMIT = 4", "LIMIT = 4"),
    ],
)  # fmt: skip
def test_replaced_changes_the_one_place(where: str, find: str, replace: str, line: str) -> None:
    result = edited(where, find, replace)
    assert line in result
    assert ast.dump(ast.parse(result)) != ast.dump(ast.parse(SOURCE))


def test_a_head_keeps_all_blocks_of_its_statement() -> None:
    result = edited("Row.push", "if token in self.ends:\n    ...", "if token:\n    ...")
    assert result.count("self.over = ") == 2


@pytest.mark.parametrize(
    ("find", "replace", "call"),
    [
        ("f(..., b=2)", "f(...)", "f(0, a=1, c=3)"),
        ("f(..., b=2)", "f(..., b=4)", "f(0, a=1, b=4, c=3)"),
        ("f(..., b=2, c=3)", "f(..., d=5)", "f(0, a=1, d=5)"),
        ("f(..., a=1)", "g(0)", "g(0)"),
        ("f(...)", "f(..., d=5)", "f(0, a=1, b=2, c=3, d=5)"),
    ],
)
def test_dots_in_a_call_stand_for_its_other_arguments(find: str, replace: str, call: str) -> None:
    source = "x = f(0, a=1, b=2, c=3)"
    assert replaced(source, "module", find=find, replace=replace, name="test") == f"x = {call}"


def test_layout_and_quotes_do_not_matter() -> None:
    source = "def f():\n    return call('a',\n        key=(1),  # one\n    )\n"
    result = replaced(source, "f", find='call("a", key=1)', replace="None", name="test")
    assert result == "def f():\n    return None"


@pytest.mark.parametrize(
    ("where", "find", "times"),
    [
        ("Row.push", "self.under", 0),
        ("Row.pop", "self.over", 0),
        ("Row.push", "self.over", 3),
        ("module", "return token", 0),
    ],
)
def test_a_pattern_that_does_not_match_once_is_refused(where: str, find: str, times: int) -> None:
    words = f"^test: the pattern matches {times} times in '{where}', expected once"
    with pytest.raises(ValueError, match=words) as refused:
        edited(where, find, "None")
    assert repr(find) in str(refused.value)
