"""Refactorings of gen_engine.py that change nothing: no test of behaviour and no golden may
report one.

    python -m parity.proof.refactorings          all at once; if one is reported, each by itself
    python -m parity.proof.refactorings --each   each by itself (half an hour)
    python -m parity.proof.refactorings --only prompt-fields

A test that reports one holds the engine as it is written, not what it does: it makes each edit
expensive, and says nothing to a user. Take it away, or write down what a caller would notice.

Each refactoring is an edit of the file's syntax tree, so that it still applies after the file was
edited; one that finds nothing to change is an error.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ANEW = "_anew"  # the end of a new name
ENGINE = "gen_engine.py"
TESTS = (  # of the engine, those that take seconds on hf
    "test_contracts.py",
    "test_chat.py",
    "test_stops.py",
    "test_plugins.py",
    "test_versions.py",
    "test_engine.py",
    "test_vlm.py",
)
SLOW = ("vllm", "both", "cutter", "file_alone", "threads", "memory_back")
SITES = ("service", "visual_dump")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class NothingToChange(Exception):
    """A refactoring finds nothing in the file that it could change."""


# == Edits of a syntax tree: each returns how many places it changed ==


def words_elsewhere() -> set[str]:
    """Of all other code that may use a name of the engine."""
    found: set[str] = set()
    for file in (ROOT / "parity").rglob("*.py"):
        if file != Path(__file__):
            found.update(re.findall(r"\w+", file.read_text("utf-8")))
    return found


def classes_of(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def rename(tree: ast.AST, names: Mapping[str, str]) -> int:
    """Give names, attributes and methods other names."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
        elif isinstance(node, ast.Attribute) and node.attr in names:
            node.attr = names[node.attr]
        elif isinstance(node, FUNCTION) and node.name in names:
            node.name = names[node.name]
        else:
            continue
        count += 1
    return count


def functions_of(body: Sequence[ast.stmt]) -> list[ast.FunctionDef]:
    return [node for node in body if isinstance(node, ast.FunctionDef)]


def unknown_elsewhere(names: Iterable[str]) -> dict[str, str]:
    """New names for those that no other file has a word of."""
    return {name: name + ANEW for name in set(names) - words_elsewhere()}


def private_methods(tree: ast.Module) -> int:
    """Private methods have other names."""
    methods = [method for kind in classes_of(tree) for method in functions_of(kind.body)]
    private = {method.name for method in methods if re.match("_[a-z]", method.name)}
    return rename(tree, unknown_elsewhere(private))


def private_helpers(tree: ast.Module) -> int:
    """Functions of the module that it does not offer have other names."""
    taken = set()  # by what is no use of the function
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            taken.add(node.value)  # in __all__
        elif isinstance(node, ast.arg):
            taken.add(node.arg)
        elif isinstance(node, ast.Attribute):
            taken.add(node.attr)
    helpers = {function.name for function in functions_of(tree.body)}
    return rename(tree, unknown_elsewhere(helpers - taken))


def prompt_fields(tree: ast.Module) -> int:
    """The fields of Prompt that have no default stand in the opposite order."""
    [prompt] = [kind for kind in classes_of(tree) if kind.name == "Prompt"]
    places = []
    for place, node in enumerate(prompt.body):
        if isinstance(node, ast.AnnAssign) and node.value is None:
            places.append(place)
    fields = [prompt.body[place] for place in places]
    for place, field in zip(places, reversed(fields)):
        prompt.body[place] = field
    return len(fields)


def keyword_order(tree: ast.Module) -> int:
    """Keywords of a call stand in the opposite order, but those that make a mapping."""
    count = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.keywords) < 2:
            continue
        makes_mapping = ast.unparse(node.func) in ("dict", "fields.update")
        if not makes_mapping and all(keyword.arg for keyword in node.keywords):
            node.keywords.reverse()
            count += 1
    return count


def method_order(tree: ast.Module) -> int:
    """Methods of a class stand in the opposite order."""
    count = 0
    for kind in classes_of(tree):
        methods = [node for node in kind.body if isinstance(node, FUNCTION)]
        if len(methods) > 1:
            rest = [node for node in kind.body if not isinstance(node, FUNCTION)]
            kind.body = [*rest, *reversed(methods)]
            count += 1
    return count


def negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def branches(tree: ast.Module) -> int:
    """`if c: A else: B` is `if not c: B else: A`."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse:
            node.test = negated(node.test)
            node.body, node.orelse = node.orelse, node.body
            count += 1
    return count


def conditional_expressions(tree: ast.Module) -> int:
    """`a if c else b` is `b if not c else a`."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.IfExp)]
    for node in found:
        node.test = negated(node.test)
        node.body, node.orelse = node.orelse, node.body
    return len(found)


def comparisons(tree: ast.Module) -> int:
    """`a < b` is `b > a`."""
    turned: dict[type[ast.cmpop], type[ast.cmpop]] = {
        ast.Lt: ast.Gt,
        ast.Gt: ast.Lt,
        ast.LtE: ast.GtE,
        ast.GtE: ast.LtE,
    }
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in turned:
            node.ops = [turned[type(node.ops[0])]()]
            node.left, node.comparators = node.comparators[0], [node.left]
            count += 1
    return count


def other_sequence(node: ast.expr) -> ast.expr:
    """A tuple as a list and the reverse; anything else as it is."""
    if isinstance(node, ast.Tuple):
        return ast.List(node.elts, ast.Load())
    return ast.Tuple(node.elts, ast.Load()) if isinstance(node, ast.List) else node


def sequences(tree: ast.Module) -> int:
    """What is only walked over, or looked into, is a list in place of a tuple and the reverse."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            old, node.iter = node.iter, other_sequence(node.iter)
            count += old is not node.iter
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            old, node.comparators[0] = node.comparators[0], other_sequence(node.comparators[0])
            count += old is not node.comparators[0]
    return count


def nested_conditions(tree: ast.Module) -> int:
    """`if a and b: A` is `if a: if b: A`."""
    count = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.If) or node.orelse:
            continue
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
            first, *rest = node.test.values
            inner = rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)
            node.test, node.body = first, [ast.If(inner, node.body, [])]
            count += 1
    return count


class Comprehensions(ast.NodeTransformer):
    count = 0

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        self.generic_visit(node)
        self.count += 1
        generator = ast.GeneratorExp(node.elt, node.generators)
        return ast.Call(ast.Name("list", ast.Load()), [generator], [])


def comprehensions(tree: ast.Module) -> int:
    """A list comprehension is a list of a generator."""
    rewriter = Comprehensions()
    rewriter.visit(tree)
    return rewriter.count


class Returns(ast.NodeTransformer):
    count = 0

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.stmt]:
        if node.value is None or isinstance(node.value, (ast.Name, ast.Constant)):
            return node
        self.count += 1
        given = ast.Assign([ast.Name("given_back", ast.Store())], node.value)
        return [given, ast.Return(ast.Name("given_back", ast.Load()))]


def named_returns(tree: ast.Module) -> int:
    """What a function returns has a name first."""
    rewriter = Returns()
    rewriter.visit(tree)
    return rewriter.count


def taken_names(function: ast.AST) -> set[str]:
    """Names inside a function that are not its variables alone."""
    taken = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            taken.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            taken.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            taken.update(node.names)
    return taken


def local_names(tree: ast.Module) -> int:
    """Variables of a function have other names."""
    count = 0
    for function in ast.walk(tree):
        if not isinstance(function, FUNCTION):
            continue
        found = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        stored = {node.id for node in found if isinstance(node.ctx, ast.Store)}
        names = {name for name in stored - taken_names(function) if not name.endswith(ANEW)}
        for node in found:
            if node.id in names:
                node.id += ANEW
                count += 1
    return count


def neighbours(tree: ast.Module) -> int:
    """Two plain functions of the module that stand side by side change places."""
    count = place = 0
    while place + 1 < len(tree.body):
        pair = tree.body[place : place + 2]
        if all(isinstance(node, ast.FunctionDef) and not node.decorator_list for node in pair):
            tree.body[place : place + 2] = reversed(pair)
            count += 1
            place += 1
        place += 1
    return count


def single_use_methods(
    kind: ast.ClassDef,
) -> Iterator[tuple[ast.FunctionDef, ast.Assign, list[ast.stmt]]]:
    """(method, the statement that calls it, the body where that stands) of private methods that
    give their last line back, and are called once as `x = self._m(a)`, with their own names."""
    methods = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
    for caller in methods.values():
        for statement in caller.body:
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
                continue
            method = methods.get(ast.unparse(statement.value.func).removeprefix("self."))
            if method is None or not method.name.startswith("_") or method.decorator_list:
                continue
            own = [argument.arg for argument in method.args.args[1:]]
            is_last = isinstance(method.body[-1], ast.Return)
            returns = [node for node in ast.walk(method) if isinstance(node, ast.Return)]
            if own == list(map(ast.unparse, statement.value.args)) and is_last and len(returns) == 1:
                yield method, statement, caller.body


def inlined_methods(tree: ast.Module) -> int:
    """A private method that is called once stands where it is called."""
    elsewhere = words_elsewhere()
    count = 0
    for kind in classes_of(tree):
        for method, statement, body in list(single_use_methods(kind)):
            uses = len(re.findall(rf"\b{method.name}\b", ast.unparse(tree)))
            if uses != 2 or method.name in elsewhere:
                continue
            *lines, last = method.body
            assert isinstance(last, ast.Return) and last.value is not None
            place = body.index(statement)
            inlined = ast.copy_location(ast.Assign(statement.targets, last.value), statement)
            body[place : place + 1] = [*lines, inlined]
            kind.body.remove(method)
            count += 1
    return count


@dataclass(frozen=True)
class Refactoring:
    """name: for --only.   rewrite: edits a syntax tree, returns how many places it changed."""

    name: str
    rewrite: Callable[[ast.Module], int]

    def apply(self, source: str) -> tuple[str, int]:
        """(the source as it is afterwards, the number of places). Raises NothingToChange."""
        tree = ast.parse(source)
        count = self.rewrite(tree)
        if not count:
            raise NothingToChange(f"{self.name}: nothing in {ENGINE} is of this form. Mend or drop it")
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n", count


REFACTORINGS = (
    Refactoring("private-methods", private_methods),
    Refactoring("private-helpers", private_helpers),
    Refactoring("prompt-fields", prompt_fields),
    Refactoring("keyword-order", keyword_order),
    Refactoring("method-order", method_order),
    Refactoring("neighbours", neighbours),
    Refactoring("branches", branches),
    Refactoring("conditional-expressions", conditional_expressions),
    Refactoring("nested-conditions", nested_conditions),
    Refactoring("comparisons", comparisons),
    Refactoring("sequences", sequences),
    Refactoring("comprehensions", comprehensions),
    Refactoring("named-returns", named_returns),
    Refactoring("local-names", local_names),
    Refactoring("inlined-methods", inlined_methods),
)

# == The command ==


def copy_tree(folder: Path) -> None:
    """The files of this checkout that git knows."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True)
    for name in listed.stdout.splitlines():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, target)


def commands() -> list[list[str]]:
    tests = [f"parity/tests/engine/{name}" for name in TESTS]
    wanted = " and ".join(f"not {word}" for word in SLOW)
    python = [sys.executable, "-m"]
    return [
        [*python, "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, "-k", wanted],
        [*python, "parity", "check", *SITES, "--backend", "hf"],
    ]


def reports(folder: Path) -> list[str]:
    """What the tests and the goldens report of the engine in a folder."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    found = []
    for command in commands():
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            found.append("\n".join([" ".join(command[1:4]), *lines[-25:]]))
    return found


def is_reported(refactorings: Sequence[Refactoring], folder: Path) -> bool:
    """Whether the engine after these is reported; writes a line of it, with what is reported."""
    source = (ROOT / ENGINE).read_text("utf-8")
    places = 0
    for refactoring in refactorings:
        source, count = refactoring.apply(source)
        places += count
    (folder / ENGINE).write_text(source, "utf-8")
    found = reports(folder)
    name = refactorings[0].name if len(refactorings) == 1 else "all together"
    verdict = "\n".join(["REPORTED", *found]) if found else "nothing is reported"
    sys.stdout.write(f"{name}: {places} places, {verdict}\n")
    sys.stdout.flush()
    return bool(found)


def read_flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m parity.proof.refactorings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [refactoring.name for refactoring in REFACTORINGS]
    parser.add_argument("--only", action="append", choices=names, help="default: all of them")
    parser.add_argument("--each", action="store_true", help="each in a file of its own")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    flags = read_flags(arguments)
    wanted = [one for one in REFACTORINGS if flags.only is None or one.name in flags.only]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tree(folder)
        if not flags.each and not is_reported(wanted, folder):
            return 0
        reported = [one.name for one in wanted if is_reported([one], folder)]
    if reported:
        sys.stdout.write(f"reported, though nothing changed: {', '.join(reported)}\n")
    return 1 if reported or not flags.each else 0


if __name__ == "__main__":
    sys.exit(main())
