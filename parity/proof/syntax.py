"""Edits of Python source that are located by function and syntax tree, not by text.

    mutated = replaced(source, "RowWatch.push", find="self.over", replace="None", name="endless")

`find` is Python: an expression, or one statement or more that follow each other. It matches code
whose syntax tree is the same, so that white space, line breaks, quotes, trailing commas, comments
and superfluous parentheses do not matter. `...` stands for what is left as it is:

    if text.strip():          the head of a compound statement, whatever its blocks are
        ...
    call(..., most=3)         a call with this keyword, whatever its other arguments are

in `find`, and for these blocks or arguments in `replace`. An empty `replace` deletes a statement.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

MODULE = "module"  # in place of a qualified name: code outside functions and classes
DOTS = ast.Constant(...)
BLOCKS = ("body", "orelse", "handlers", "finalbody")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern was found: a field of `owner`; in a list, from `index` on."""

    owner: ast.AST
    field: str
    index: int | None = None


def replaced(source: str, where: str, *, find: str, replace: str, name: str) -> str:
    """The source with one place changed, as `ast.unparse` writes it.

    where: the qualified name of a function or class, or "module".   name: of the edit, for errors.
    Raises ValueError where `find` matches nothing or more than once.
    """
    code = Code(source)
    old, new = pair_of(find, replace)
    put(code.located(where, find=find, replace=replace, name=name), old, new)
    return ast.unparse(ast.fix_missing_locations(code.tree))


class Code:
    """A file's syntax tree. scopes: its functions and classes by qualified name, and itself."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.scopes: dict[str, list[ast.AST]] = {MODULE: [self.tree]}
        for name, scope in named_scopes(self.tree, ""):
            self.scopes.setdefault(name, []).append(scope)

    def located(self, where: str, *, find: str, replace: str, name: str) -> Match:
        """The one place that an edit changes. Raises ValueError as `replaced` does."""
        pattern, _ = pair_of(find, replace)
        scopes = self.scopes.get(where, [])
        matches = [match for scope in scopes for match in matches_in(scope, pattern)]
        if len(matches) != 1:
            problem = f"{name}: the pattern matches {len(matches)} times in {where!r}"
            raise ValueError(f"{problem}, expected once: {find!r}. Correct 'where' or 'find'.")
        return matches[0]


# == Patterns ==

Pattern = ast.expr | list[ast.stmt]


def pair_of(find: str, replace: str) -> tuple[Pattern, Pattern]:
    """What is found and what replaces it: two expressions, or two lists of statements."""
    old, new = parsed(find), parsed(replace or "pass")
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        return old, new
    return statements(find), statements(replace)


def parsed(text: str) -> Pattern:
    try:
        return ast.parse(f"(\n{text}\n)", mode="eval").body  # brackets: it may break its lines
    except SyntaxError:
        return statements(text)


def statements(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def is_head(statements: Sequence[ast.stmt]) -> bool:
    """Whether this is one compound statement whose body is `...`."""
    if len(statements) != 1 or not hasattr(statements[0], "body"):
        return False
    body = statements[0].body
    return len(body) == 1 and dump(body[0]) == dump(ast.Expr(DOTS))


def is_open(pattern: Any) -> TypeGuard[ast.Call]:
    """Whether this is a call with `...` for the arguments that are not named."""
    return isinstance(pattern, ast.Call) and [dump(one) for one in pattern.args] == [dump(DOTS)]


def head_of(statement: ast.stmt) -> ast.stmt:
    """A copy of a compound statement with the body `...` and no other blocks."""
    head = copy.copy(statement)
    for block in BLOCKS:
        if hasattr(head, block):
            setattr(head, block, [])
    head.body = [ast.Expr(DOTS)]  # type: ignore[attr-defined]  # a compound statement
    return head


def dump(node: ast.AST) -> str:
    """The tree as text, without whether a name is read or assigned: a pattern cannot tell."""
    text = ast.dump(node)
    return text.replace("ctx=Store()", "ctx=Load()").replace("ctx=Del()", "ctx=Load()")


# == Finding ==


def matches_in(scope: ast.AST, pattern: Pattern) -> Iterator[Match]:
    is_module = isinstance(scope, ast.Module)
    for owner in nodes_of(scope, is_module):
        if isinstance(pattern, ast.expr):
            yield from matching_expressions(owner, pattern)
        else:
            yield from matching_statements(owner, pattern)


def named_scopes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """(qualified name, definition) of every function and class."""
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            if isinstance(child, SCOPES):
                name = f"{prefix}{child.name}"
                yield name, child
                yield from named_scopes(child, f"{name}.")
            elif isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield from named_scopes(child, prefix)


def nodes_of(node: ast.AST, is_module: bool) -> Iterator[ast.AST]:
    """The node and all below it; of a module, without functions and classes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (is_module and isinstance(child, SCOPES)):
            yield from nodes_of(child, is_module)


def matching_expressions(owner: ast.AST, pattern: ast.expr) -> Iterator[Match]:
    for field, value in ast.iter_fields(owner):
        if isinstance(value, list):
            for index, part in enumerate(value):
                if is_same(part, pattern):
                    yield Match(owner, field, index)
        elif is_same(value, pattern):
            yield Match(owner, field)


def is_same(found: Any, pattern: ast.AST) -> bool:
    if is_open(pattern) and isinstance(found, ast.Call):
        return has_keywords(found, pattern)
    return type(found) is type(pattern) and dump(found) == dump(pattern)


def has_keywords(found: ast.Call, pattern: ast.Call) -> bool:
    known = {dump(keyword) for keyword in found.keywords}
    wanted = {dump(keyword) for keyword in pattern.keywords}
    return dump(found.func) == dump(pattern.func) and wanted <= known


def matching_statements(owner: ast.AST, pattern: Sequence[ast.stmt]) -> Iterator[Match]:
    for field in BLOCKS:
        block = getattr(owner, field, None)
        if isinstance(block, list):
            for index in range(len(block) - len(pattern) + 1):
                if is_match(block[index : index + len(pattern)], pattern):
                    yield Match(owner, field, index)


def is_match(found: Sequence[ast.stmt], pattern: Sequence[ast.stmt]) -> bool:
    if is_head(pattern) and type(found[0]) is type(pattern[0]):
        return is_same(head_of(found[0]), pattern[0])
    return all(map(is_same, found, pattern))


# == Replacing ==


def put(match: Match, old: Pattern, new: Any) -> None:
    if isinstance(old, ast.expr):
        put_expression(match, old, new)
        return
    block = getattr(match.owner, match.field)
    assert match.index is not None
    end = match.index + len(old)
    if is_head(old) and is_head(new):
        for name in BLOCKS:
            if hasattr(new[0], name):
                setattr(new[0], name, getattr(block[match.index], name))
    block[match.index : end] = new
    if not block and match.field == "body":
        block.append(ast.Pass())


def put_expression(match: Match, old: ast.expr, new: ast.expr) -> None:
    value = getattr(match.owner, match.field)
    if is_open(old) and is_open(new):
        found = value if match.index is None else value[match.index]
        new = ast.Call(found.func, found.args, other_keywords(found, old, new))
    if match.index is None:
        setattr(match.owner, match.field, new)
    else:
        value[match.index] = new


def other_keywords(found: ast.Call, old: ast.Call, new: ast.Call) -> list[ast.keyword]:
    """The keywords of a call, with those of `new` in the place of those of `old`, or at the end."""
    gone = {dump(keyword) for keyword in old.keywords}
    before = list[ast.keyword]()
    after = list[ast.keyword]()
    side = before
    for keyword in found.keywords:
        if dump(keyword) in gone:
            side = after
        else:
            side.append(keyword)
    return [*before, *new.keywords, *after]
