"""What `check` needs of a draft: that importing it runs nothing, and what makes its objects."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from parity.draft.expressions import NamesIn
from parity.draft.roles import code_of, dotted

DEFINITIONS = (cst.FunctionDef, cst.ClassDef)
GENERATES = (".generate", ".generate_text_batch", ".generate_vlm_batch")
GUARD = 'if __name__ == "__main__":\n    pass\n'


def is_guard(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.If) and "__name__" in code_of(statement.test)


def is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], (cst.Import, cst.ImportFrom)
    )


# == What runs when a module is imported ==


@dataclass(frozen=True)
class Guarded:
    """body: of a module.   moved: how many statements stand under the guard now.   blocked: the
    name that keeps them where they are, because functions read it; "" where none does."""

    body: Sequence[Any]
    moved: int = 0
    blocked: str = ""


def guarded(body: Sequence[Any]) -> Guarded:
    """What runs a module as a script, from the first statement that generates on, put under
    `if __name__ == "__main__":`. Definitions and imports stay outside."""
    foreign = foreign_names(body)
    running = running_functions(body, foreign)
    runs = (k for k, one in enumerate(body) if is_running(one, running, foreign))
    first = next(runs, len(body))
    if first == len(body):
        return Guarded(body)
    outside = list(body[:first])
    inside: list[cst.CSTNode] = []
    for statement in body[first:]:
        if isinstance(statement, DEFINITIONS) or is_import(statement):
            outside.append(statement)
        elif is_guard(statement) and statement.orelse is None:
            inside += statement.body.body
        else:
            inside.append(statement)
    needed: set[str] = set()
    for statement in outside:
        needed |= NamesIn.of(statement)
    blocked = sorted(names_bound(inside) & needed)
    if blocked:
        return Guarded(body, blocked=blocked[0])
    guard = cst.ensure_type(cst.parse_statement(GUARD), cst.If)
    blank = cst.EmptyLine(indent=False)
    guard = guard.with_changes(
        body=guard.body.with_changes(body=without_blanks(inside)), leading_lines=[blank, blank]
    )
    return Guarded([*outside, guard], moved=len(inside))


def without_blanks(body: Sequence[Any]) -> list[Any]:
    """Statements of which the first has no blank lines before it."""
    lines = list(getattr(body[0], "leading_lines", ()))
    while lines and lines[0].comment is None:
        lines.pop(0)
    return [body[0].with_changes(leading_lines=lines), *body[1:]]


def is_running(statement: cst.CSTNode, running: set[str], foreign: set[str]) -> bool:
    if isinstance(statement, DEFINITIONS) or is_guard(statement):
        return False
    return bool(called_names(statement, foreign) & {*running, *GENERATES})


def running_functions(body: Sequence[cst.CSTNode], foreign: set[str]) -> set[str]:
    """Functions and classes of a module that generate when they are called; a method is ".name"."""
    called: dict[str, set[str]] = {}
    for name, function in functions_of(body):
        called.setdefault(name, set()).update(called_names(function.body, foreign))
    running: set[str] = set()
    while True:
        more = {name for name, inner in called.items() if inner & {*running, *GENERATES}}
        if more <= running:
            return running
        running |= more


def functions_of(body: Sequence[cst.CSTNode]) -> Iterator[tuple[str, cst.FunctionDef]]:
    """Each with what its call is known by: a class's __init__ by the class."""
    for statement in body:
        if isinstance(statement, cst.FunctionDef):
            yield statement.name.value, statement
        elif isinstance(statement, cst.ClassDef):
            for one in statement.body.body:
                if isinstance(one, cst.FunctionDef):
                    is_init = one.name.value == "__init__"
                    yield statement.name.value if is_init else f".{one.name.value}", one


def foreign_names(body: Sequence[cst.CSTNode]) -> set[str]:
    """Names of a module whose methods are not its own classes': imports, and variables that none of
    its classes made, such as a dictionary with its `get`."""
    classes = {one.name.value for one in body if isinstance(one, cst.ClassDef)}
    found: set[str] = set()
    for statement in body:
        if not isinstance(statement, DEFINITIONS) and not called_names(statement, set()) & classes:
            found |= names_bound([statement])
    return found


def called_names(node: cst.CSTNode, foreign: set[str]) -> set[str]:
    """What is called: functions, and methods as ".name", but those of foreign names."""
    found = set()
    for call in m.findall(node, m.Call()):
        assert isinstance(call, cst.Call)
        if isinstance(call.func, cst.Name):
            found.add(call.func.value)
        elif isinstance(call.func, cst.Attribute):
            method = f".{call.func.attr.value}"
            if method in GENERATES or dotted(call.func).partition(".")[0] not in foreign:
                found.add(method)
    return found


class Bound(cst.CSTVisitor):
    """Names that statements bind."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def target(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            self.found.add(node.value)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self.target(element.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self.target(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self.target(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self.target(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.target(node.target)

    def visit_For(self, node: cst.For) -> None:
        self.target(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        self.target(node.name)

    def visit_ImportAlias(self, node: cst.ImportAlias) -> None:
        if node.asname is None:
            self.found.add(node.evaluated_name.partition(".")[0])

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self.found.add(node.name.value)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self.found.add(node.name.value)
        return False


def names_bound(statements: Sequence[cst.CSTNode]) -> set[str]:
    bound = Bound()
    for statement in statements:
        statement.visit(bound)
    return bound.found


# == Objects that the script made ==


def made_as_script(body: Sequence[cst.CSTNode], class_name: str) -> list[str] | None:
    """The lines that make an object of a class as the script does: statements before the call that
    its arguments need, and the call itself, last. None where that is not seen: an argument of a
    function, a loop's variable, a name that a branch binds."""
    outside = [one for one in body if not is_guard(one)]
    known = names_bound(outside) | {*dir(builtins), "__file__"}
    for call, before, local in calls_with_context(body, class_name):
        lines = needed_lines(NamesIn.of(call), before, known - local)
        if lines is not None:
            return [*lines, code_of(call)]
    return None


Context = tuple[cst.Call, list[cst.CSTNode], set[str]]


def calls_with_context(body: Sequence[cst.CSTNode], class_name: str) -> Iterator[Context]:
    """(a call of a class, the statements before it, the names that its function binds)."""
    for statement in body:
        if isinstance(statement, cst.FunctionDef):
            own = {p.name.value for p in statement.params.params}
            local = own | names_bound([statement.body])
            for call, before in calls_in(block_of(statement.body), class_name, []):
                yield call, before, local
        elif is_guard(statement):
            for call, before in calls_in(block_of(statement), class_name, []):
                yield call, before, set()
        elif not isinstance(statement, cst.ClassDef):
            for call, before in calls_in([statement], class_name, []):
                yield call, before, set()


def block_of(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements of a block, or of a compound statement's block."""
    inner = getattr(node, "body", ())
    if isinstance(inner, cst.BaseSuite):
        inner = inner.body
    return list(inner)


def calls_in(
    block: Sequence[cst.CSTNode], class_name: str, before: list[cst.CSTNode]
) -> Iterator[tuple[cst.Call, list[cst.CSTNode]]]:
    before = list(before)
    for statement in block:
        if isinstance(statement, cst.SimpleStatementLine):
            for call in m.findall(statement, m.Call(func=m.Name(class_name))):
                assert isinstance(call, cst.Call)
                yield call, before
        elif isinstance(statement, (cst.If, cst.For, cst.With, cst.Try, cst.While)):
            head = statement.with_changes(body=cst.IndentedBlock([]))
            yield from calls_in(block_of(statement), class_name, [*before, head])
        before = [*before, statement]


def needed_lines(
    needed: set[str], before: Sequence[cst.CSTNode], known: set[str]
) -> list[str] | None:
    """The statements among those before that bind names, or call their methods; None where one of
    the names stays unbound, or is bound by more than a plain statement."""
    lines: list[str] = []
    left = needed - known
    bound: set[str] = set()
    for statement in reversed(before):
        is_plain = isinstance(statement, cst.SimpleStatementLine)
        binds = names_bound([statement]) & (left | bound)
        if binds and not is_plain:
            return None
        if not is_plain or not (binds or method_owner(statement) & (left | bound)):
            continue
        lines.insert(0, code_of(statement).strip())
        bound |= binds
        left = (left - binds) | (NamesIn.of(statement) - binds - known - bound)
    return None if left else lines


def method_owner(statement: cst.CSTNode) -> set[str]:
    """The name whose method an expression statement calls, as in `parser.add_argument(...)`."""
    one = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(one, cst.Expr) or not isinstance(one.value, cst.Call):
        return set()
    func = one.value.func
    return {dotted(func).partition(".")[0]} if isinstance(func, cst.Attribute) else set()
