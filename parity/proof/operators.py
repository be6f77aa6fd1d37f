"""Mutants of a Python source file, made by mutmut's operators.

    mutants = all_mutants(source)
    chosen = sample(mutants, 200, seed=20261125)

Why mutmut: it is the most used mutation tester for Python, and it is maintained (3.8.1, October
2026). Each of its operators is a plain function from a libcst node to the mutated nodes, so that
they work without its runner, and libcst leaves the rest of the file as it is. cosmic-ray is
maintained, too, but two thirds of its mutants exchange a comparison or an arithmetic operator for
each of the others, and none touches an argument, and what gen_engine.py asks of the libraries are
arguments. The operators, and the calls that are never mutated (`len`, `isinstance`), are mutmut's,
unchanged. mutmut's runner is not used: it mutates functions only, and starts pytest.

What is left out, by syntax: annotations, docstrings, assignments to `__all__` and `__version__`, the
`slots` of dataclasses, and texts for people: calls of `log.*` and `warnings.warn`, what stands in a
`raise` statement, and string literals of several words that nothing is compared with or searched
for.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import NEVER_MUTATE_FUNCTION_CALLS
from mutmut.mutation.mutators import mutation_operators

UNTESTED_NAMES = {"__all__", "__version__"}
MESSAGE_CALLS = {"warnings.warn"}
MESSAGE_OBJECTS = {"log"}
MODULE = "module"
WORDS = re.compile(r"[A-Za-z,;:] [A-Za-z]")  # a blank between words: a sentence, or a part of one

Operator = Callable[[Any], Iterable[cst.CSTNode]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a source file.

    number: its position among all mutants of the file, in the order of the file.
    operator: the name of mutmut's operator.
    function: the qualified name of the function or class that it is in, or "module".
    in_call: whether the changed code runs in a call, and not when the module is imported.
    line: the first line of the changed code.
    lines: the first and the last line of the statement around it (of a compound statement, of its
    head), or of the
        body of the lambda around it.
    head: that statement without the statements inside it.
    node, changed: what is replaced, and by what.
    file, part: the file in parts, one for each of its top statements, and which of them this is in.
    """

    number: int
    operator: str
    function: str
    in_call: bool
    line: int
    lines: tuple[int, int]
    head: cst.CSTNode = field(repr=False)
    node: cst.CSTNode = field(repr=False)
    changed: cst.CSTNode = field(repr=False)
    file: File = field(repr=False)
    part: cst.CSTNode = field(repr=False)

    def source(self) -> str:
        """The whole file with this change."""
        return self.file.with_part(self.part, self.part.deep_replace(self.node, self.changed))

    def original(self) -> str:
        """The statement as it was, on one line where Python can write it so."""
        return normalized(self.head)

    def mutated(self) -> str:
        """The statement with this change, written alike."""
        return normalized(self.head.deep_replace(self.node, self.changed))


class File:
    """A file in parts, so that one of them can be written anew without the others."""

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        head = module.with_changes(body=(), footer=()).code
        self.texts = [head, *map(module.code_for_node, module.body)]
        self.texts.append(module.code[len("".join(self.texts)) :])
        self.numbers = dict[cst.CSTNode, int](zip(module.body, itertools.count(1)))

    def with_part(self, part: cst.CSTNode, new: Any) -> str:
        texts = list(self.texts)
        texts[self.numbers[part]] = self.module.code_for_node(new)
        return "".join(texts)


def all_mutants(source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of the file."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    collector = Collector(wrapper.module)
    wrapper.visit(collector)
    return collector.mutants


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them, each with the same chance; those that are no Python, or change nothing, have
    none."""
    order = random.Random(seed).sample(range(len(mutants)), len(mutants))
    chosen = list[Mutant]()
    for number in order:
        if len(chosen) == count:
            break
        if changes_something(mutants[number]):
            chosen.append(mutants[number])
    return chosen


def changes_something(mutant: Mutant) -> bool:
    try:
        return mutant.original() != mutant.mutated()
    except SyntaxError:
        return False


class Collector(cst.CSTVisitor):
    """Asks every operator for the mutants of every node that is not left out."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.file = File(module)
        self.mutants = list[Mutant]()
        self.path = list[cst.CSTNode]()  # from the module down to the node that is visited

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.path.append(node)
        if is_left_out(node) or is_sentence(self.path):
            return False
        for name, mutated in mutated_nodes(node):
            self.mutants.append(self.mutant(name, node, mutated))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self.path.pop()

    def mutant(self, operator: str, node: cst.CSTNode, mutated: cst.CSTNode) -> Mutant:
        statement = next(part for part in reversed(self.path) if is_statement(part))
        return Mutant(
            number=len(self.mutants),
            operator=operator.removeprefix("operator_"),
            function=qualified_name(self.path),
            in_call=is_in_call(self.path),
            line=self.lines(node)[0],
            lines=self.lines_around(statement),
            head=head_of(statement),
            node=node,
            changed=mutated,
            file=self.file,
            part=self.path[1],
        )

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Of the node, or of the nearest one around it whose position libcst knows."""
        for part in (node, *reversed(self.path)):
            position = self.get_metadata(PositionProvider, part, None)
            if position is not None:
                return position.start.line, position.end.line
        raise AssertionError("libcst knows the position of every module")

    def lines_around(self, statement: cst.CSTNode) -> tuple[int, int]:
        inner = self.path[self.path.index(statement) :]
        for outer, body in itertools.pairwise(reversed(inner)):
            if isinstance(body, cst.Lambda) and outer is body.body:
                return self.lines(outer)
        first, last = self.lines(statement)
        suite = getattr(statement, "body", None)
        if isinstance(suite, cst.BaseSuite):
            last = max(first, self.lines(suite)[0] - 1)
        return first, last


def mutated_nodes(node: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            for mutated in operator(node):
                if not is_layout_only(node, mutated):
                    yield operator.__name__, mutated


# == What is left out ==


def is_left_out(node: cst.CSTNode) -> bool:
    if isinstance(node, (cst.Annotation, cst.Raise)):
        return True
    if isinstance(node, cst.Expr):
        return isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString))
    if isinstance(node, cst.Arg):
        return is_slots(node)
    if isinstance(node, cst.Assign):
        return any(dotted(target.target) in UNTESTED_NAMES for target in node.targets)
    if isinstance(node, cst.Call):
        name = dotted(node.func)
        is_message = name in MESSAGE_CALLS or name.partition(".")[0] in MESSAGE_OBJECTS
        return is_message or name in NEVER_MUTATE_FUNCTION_CALLS
    return False


def is_sentence(path: Sequence[cst.CSTNode]) -> bool:
    """Whether the last node of a path is a string of several words that people read: nothing is
    compared with it, and no regular expression is made of it."""
    node = path[-1]
    if not isinstance(node, cst.SimpleString) or not WORDS.search(str(node.evaluated_value)):
        return False
    for outer in reversed(path):
        if isinstance(outer, cst.Comparison):
            return False
        if isinstance(outer, cst.Call) and dotted(outer.func).startswith("re."):
            return False
    return True


def is_slots(argument: cst.Arg) -> bool:
    """How a dataclass keeps its fields in memory."""
    return argument.keyword is not None and argument.keyword.value == "slots"


def is_layout_only(node: cst.CSTNode, mutated: cst.CSTNode) -> bool:
    """Whether two calls differ in `slots` alone."""
    if not isinstance(node, cst.Call) or not isinstance(mutated, cst.Call):
        return False
    before, after = ([arg for arg in one.args if not is_slots(arg)] for one in (node, mutated))
    return (
        len(before) == len(after)
        and all(map(cst.CSTNode.deep_equals, before, after))
        and (node.func.deep_equals(mutated.func))
    )


def dotted(node: cst.CSTNode) -> str:
    """`a.b.c` of names and attributes; "" of anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr.value}" if owner else ""
    return ""


# == Where a node is ==


def is_statement(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement))


def qualified_name(path: Sequence[cst.CSTNode]) -> str:
    scopes = [node for node in path if isinstance(node, (cst.FunctionDef, cst.ClassDef))]
    return ".".join(scope.name.value for scope in scopes) or MODULE


def is_in_call(path: Sequence[cst.CSTNode]) -> bool:
    """Whether the last node of a path is in the body of a function; defaults and decorators are
    not."""
    for outer, inner in itertools.pairwise(path):
        if isinstance(outer, (cst.FunctionDef, cst.Lambda)) and inner is outer.body:
            return True
    return False


def head_of(statement: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    """A statement without the statements inside it."""
    if isinstance(statement, cst.BaseSmallStatement):
        return cst.SimpleStatementLine([statement])
    assert isinstance(statement, cst.BaseCompoundStatement)
    if isinstance(statement, cst.Match):
        return statement
    changes: dict[str, Any] = {"body": EMPTY, "leading_lines": ()}
    if isinstance(statement, (cst.If, cst.For, cst.While, cst.Try)):
        changes["orelse"] = None
    if isinstance(statement, cst.Try):
        changes["handlers"] = [part.with_changes(body=EMPTY) for part in statement.handlers]
        if statement.handlers:
            changes["finalbody"] = None
    return statement.with_changes(**changes)


EMPTY = cst.SimpleStatementSuite([cst.Expr(cst.Ellipsis())])


def normalized(statement: Any) -> str:
    """A statement as `ast.unparse` writes it: quotes, line breaks and brackets say nothing."""
    return ast.unparse(ast.parse(cst.Module([statement]).code))
