"""What `check` needs of a draft: that importing it runs nothing, and what makes its objects."""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from parity.draft.expressions import NamesIn
from parity.draft.roles import code_of, dotted

DEFINITIONS = (cst.FunctionDef, cst.ClassDef)
# What calls an engine: its methods, and functions of companions.
ENGINE_CALLS = (".generate_text_batch", ".generate_vlm_batch", ".score_batch", "stream", "decide")
GENERATES = (".generate", *ENGINE_CALLS)
GUARD = '\n\nif __name__ == "__main__":\n    pass\n'


def equals(left: Any, right: Any) -> m.Comparison:
    comparison = m.ComparisonTarget(operator=m.Equal(), comparator=right)
    return m.Comparison(left=left, comparisons=[comparison])


NAME = m.Name("__name__")
MAIN = m.OneOf(m.SimpleString('"__main__"'), m.SimpleString("'__main__'"))
IS_GUARD = m.If(test=m.OneOf(equals(NAME, MAIN), equals(MAIN, NAME)))


def is_guard(statement: cst.CSTNode) -> bool:
    """Whether a statement is `if __name__ == "__main__":`."""
    return m.matches(statement, IS_GUARD)


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


def guarded(body: Sequence[Any], called: set[str]) -> Guarded:
    """What runs a module as a script, from the first statement that generates on, put under
    `if __name__ == "__main__":`. Definitions and imports stay outside.   called: functions and
    classes that are used by who imports it."""
    foreign = foreign_names(body)
    running = running_functions(body, foreign)
    runs = (k for k, one in enumerate(body) if is_running(one, running, foreign))
    first = next(runs, len(body))
    if first == len(body):
        return Guarded(body)
    outside = list(body[:first])
    script: list[cst.BaseStatement] = []
    for statement in body[first:]:
        if isinstance(statement, DEFINITIONS) or is_import(statement):
            outside.append(statement)
        else:
            script.append(statement)
    asking = {one.name.value for one in body if isinstance(one, DEFINITIONS) and asks(one, running)}
    blocked = sorted(names_bound(script) & names_read(used(outside, called | asking)))
    if blocked:
        return Guarded(body, blocked=blocked[0])
    return Guarded([*outside, one_guard(script)], moved=len(script))


def asks(definition: cst.FunctionDef | cst.ClassDef, running: set[str]) -> bool:
    """Whether a function, or a method of a class, generates."""
    return any(name in running for name, _ in functions_of([definition]))


def used(body: Sequence[Any], called: set[str]) -> list[Any]:
    """Statements of a module, of its functions those alone that are called, or that these use."""
    functions = {one.name.value: one for one in body if isinstance(one, DEFINITIONS)}
    waiting = [*called & functions.keys()]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting += (names_read([functions[name]]) & functions.keys()) - reached
    left = [one for one in body if isinstance(one, DEFINITIONS) and one.name.value not in reached]
    heads = {id(one): head_of(one) for one in left if isinstance(one, cst.FunctionDef)}
    return [heads.get(id(one), one) for one in body]


def head_of(function: cst.FunctionDef) -> cst.FunctionDef:
    """A function of which only what its definition runs is left."""
    return function.with_changes(body=cst.SimpleStatementSuite([cst.Pass()]))


def one_guard(script: Sequence[cst.BaseStatement]) -> cst.If:
    """Statements under `if __name__ == "__main__":`: that of the script, where it has one."""
    guard = cst.ensure_type(cst.parse_statement(GUARD), cst.If)
    inside = list(script)
    for place, statement in enumerate(script):
        if isinstance(statement, cst.If) and is_guard(statement):
            guard = statement
            inside[place : place + 1] = statements_of(statement.body)
            break
    block = guard.body if isinstance(guard.body, cst.IndentedBlock) else cst.IndentedBlock([])
    return guard.with_changes(body=block.with_changes(body=without_blanks(inside)))


def without_blanks(body: Sequence[Any]) -> list[Any]:
    """Statements of which the first has no blank lines before it, and no blank line a blank."""
    bare = [with_bare_blanks(statement) for statement in body]
    lines = list(getattr(bare[0], "leading_lines", ()))
    while lines and lines[0].comment is None:
        lines.pop(0)
    return [bare[0].with_changes(leading_lines=lines), *bare[1:]]


def with_bare_blanks(statement: Any) -> Any:
    lines = getattr(statement, "leading_lines", ())
    bare = [line if line.comment else line.with_changes(indent=False) for line in lines]
    return statement.with_changes(leading_lines=bare) if lines else statement


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


def model_from_elsewhere(module: cst.Module) -> str:
    """The function of another module that makes the model on which a module generates, as
    "MODULE.FUNCTION"; "" where none does."""
    imported = {}
    for one in m.findall(module, m.ImportFrom(names=[m.AtLeastN(m.ImportAlias(), n=1)])):
        found = cst.ensure_type(one, cst.ImportFrom)
        origin = "." * len(found.relative) + (dotted(found.module) if found.module else "")
        for alias in found.names if not isinstance(found.names, cst.ImportStar) else ():
            name = alias.evaluated_alias or alias.evaluated_name
            imported[name] = f"{origin}.{alias.evaluated_name}"
    owners = {
        dotted(cst.ensure_type(call, cst.Call).func).rpartition(".")[0]
        for call in m.findall(module, m.Call(m.Attribute(attr=m.Name("generate"))))
    }
    for one in m.findall(module, m.Assign(value=m.Call())):
        found_assign = cst.ensure_type(one, cst.Assign)
        target = found_assign.targets[0].target
        parts = target.elements if isinstance(target, cst.Tuple) else [cst.Element(target)]
        maker = dotted(cst.ensure_type(found_assign.value, cst.Call).func)
        if maker in imported and owners & {dotted(part.value) for part in parts}:
            return imported[maker]
    return ""


def table_of(statements: Sequence[Any]) -> symtable.SymbolTable:
    """Python's own table of the names of statements."""
    return symtable.symtable(cst.Module(list(statements)).code, "draft", "exec")


def names_bound(statements: Sequence[Any]) -> set[str]:
    symbols = table_of(statements).get_symbols()
    return {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}


def names_read(statements: Sequence[Any]) -> set[str]:
    """Names of a module that statements read, or change in their functions."""
    table = table_of(statements)
    found = {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    waiting = table.get_children()
    while waiting:
        inner = waiting.pop()
        waiting += inner.get_children()
        found |= {one.get_name() for one in inner.get_symbols() if one.is_global()}
    return found


def local_names(function: cst.FunctionDef) -> set[str]:
    """A function's parameters, of every kind, and variables."""
    bare = cst.FunctionDef(
        function.name, function.params, function.body, asynchronous=function.asynchronous
    )
    for table in table_of([bare]).get_children():
        if isinstance(table, symtable.Function):
            return set(table.get_locals())
    return set()


# == Objects that the script made ==


def made_as_script(body: Sequence[cst.CSTNode], class_name: str) -> list[str] | None:
    """The lines that make an object of a class as the script does: statements before the call that
    its arguments need, and the call itself, last. None where that is not seen: an argument of a
    function, a loop's variable, a name that a branch binds."""
    outside = [one for one in body if not is_guard(one)]
    known = names_bound(outside) | {*dir(builtins), "__file__"}
    for block, local in blocks_that_run(body):
        for call, before in calls_in(block, class_name, []):
            lines = needed_lines(NamesIn.of(call), before, known - local)
            if lines is not None:
                return [*lines, code_of(call)]
    return None


def blocks_that_run(body: Sequence[cst.CSTNode]) -> Iterator[tuple[list[Any], set[str]]]:
    """Functions of a module and its other statements, each with the names that it alone has."""
    for statement in body:
        if isinstance(statement, cst.FunctionDef):
            yield statements_of(statement.body), local_names(statement)
        else:
            yield [statement], set()


def statements_of(suite: cst.BaseSuite) -> list[cst.BaseStatement]:
    """The statements of a block, also of one that stands behind the colon."""
    if isinstance(suite, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([one]) for one in suite.body]
    return [one for one in suite.body if isinstance(one, cst.BaseStatement)]


class Suites(cst.CSTTransformer):
    """Takes the blocks out of a compound statement.   found: they are."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.BaseSuite] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.BaseSuite)

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if not isinstance(original_node, cst.BaseSuite):
            return updated_node
        self.found.append(original_node)
        return cst.IndentedBlock([])


def calls_in(
    block: Sequence[cst.CSTNode], class_name: str, before: Sequence[cst.CSTNode]
) -> Iterator[tuple[cst.Call, Sequence[cst.CSTNode]]]:
    """Calls of a class in statements and their blocks, each with the statements before it."""
    for statement in block:
        if isinstance(statement, DEFINITIONS):
            continue
        suites = Suites()
        head = statement.visit(suites)
        assert isinstance(head, cst.CSTNode)
        for call in m.findall(head, m.Call(func=m.Name(class_name))):
            assert isinstance(call, cst.Call)
            yield call, before
        for suite in suites.found:
            yield from calls_in(statements_of(suite), class_name, [*before, head])
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
        left = (left - binds) | (names_read([statement]) - binds - known - bound)
    return None if left else lines


def method_owner(statement: cst.CSTNode) -> set[str]:
    """The name whose method an expression statement calls, as in `parser.add_argument(...)`."""
    one = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(one, cst.Expr) or not isinstance(one.value, cst.Call):
        return set()
    func = one.value.func
    return {dotted(func).partition(".")[0]} if isinstance(func, cst.Attribute) else set()
