"""What gen_engine.py and the companions that it finds by itself ask of a reader: tokens, tokens per
code line, columns and branches. Printed with `pytest -s`; held so that what a change adds in one
place is taken away in another, or goes into a companion."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from dataclasses import dataclass

import pytest

from ..conftest import ROOT

CORE = "gen_engine.py"
FOUND_BY_ENGINE = (
    "adapters",
    "answer_cache",
    "escaping",
    "fallback",
    "forcing",
    "image_urls",
    "joining",
    "plugin_hooks",
    "scoring",
    "structured",
    "video",
    "vllm_hooks",
    "weights",
)
PLAIN = (  # of those that callers import, some
    "continuous",
    "penalties",
    "reasoning",
    "request_forms",
    "rollout",
    "streaming",
)
FILES = (CORE, *(f"parity/companions/{name}.py" for name in (*FOUND_BY_ENGINE, *PLAIN)))

MOST_TOKENS = 23_034  # of the core
MOST_TOKENS_PER_LINE = 10.0
COLUMNS = 100
MOST_BRANCHES = 10

COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.IfExp,
    ast.ExceptHandler,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True, slots=True)
class Density:
    """tokens: of code, without comments and docstrings.   code_lines: lines that hold some.
    wide: numbers of the lines beyond 100 columns.   branchy: functions with too many branches."""

    tokens: int
    code_lines: int
    wide: list[int]
    branchy: list[str]

    @property
    def per_line(self) -> float:
        return self.tokens / self.code_lines


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or 0) + 1))
    return lines


def complexity(function: Function) -> int:
    """Cyclomatic complexity, with boolean operators and comprehensions; functions inside count for
    themselves."""
    total = 1
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function):
            continue
        total += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        waiting += ast.iter_child_nodes(node)
    return total


def density(source: str) -> Density:
    tree = ast.parse(source)
    docstrings = docstring_lines(tree)
    tokens = 0
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in COUNTED and token.start[0] not in docstrings:
            tokens += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
    numbered = enumerate(source.splitlines(), start=1)
    wide = [number for number, line in numbered if len(line) > COLUMNS]
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    branchy = [f"{one.name}: {complexity(one)}" for one in functions if complexity(one) > MOST_BRANCHES]
    return Density(tokens, len(code_lines), wide, branchy)


@pytest.mark.parametrize("name", FILES)
def test_density_of_a_file_stays_within_the_budget(name: str) -> None:
    found = density((ROOT / name).read_text(encoding="utf-8"))
    print(f"{name}: {found.tokens} tokens, {found.per_line:.1f} per code line")
    assert found.per_line <= MOST_TOKENS_PER_LINE
    assert found.wide == []
    assert found.branchy == []
    assert name != CORE or found.tokens <= MOST_TOKENS


@pytest.mark.parametrize("name", FILES)
def test_layout_of_a_file_is_ruffs_at_100_columns(name: str) -> None:
    command = [sys.executable, "-m", "ruff", "format", "--check", "--no-cache", "--line-length", "100", name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_density_counts_code_only() -> None:
    found = density('"""Docs."""\n\n# note\ndef f(a):\n    """Docs."""\n    return a if a else 0  # c\n')
    assert (found.tokens, found.code_lines, found.wide, found.branchy) == (12, 2, [], [])


def test_complexity_counts_branches_of_a_function_alone() -> None:
    tree = ast.parse("def f(a):\n    def g():\n        if a: pass\n    return [b for b in a if b and a or b]\n")
    outer = tree.body[0]
    assert isinstance(outer, ast.FunctionDef) and complexity(outer) == 4
