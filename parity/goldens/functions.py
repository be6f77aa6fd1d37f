"""The functions of a source file, and which of them a site can name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

VALUE = "a function that returns the value, such as one that calls it"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def functions_in(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("function" or "Class.method", its node) of what stands at the top of a file, and in its
    classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions_in(node.body, f"{prefix}{node.name}.")


def unrecordable(tree: ast.Module, name: str, *, is_script: bool) -> str:
    """Why a function that is there gives no goldens, and what to name in its place; "" where it
    does, or is not there.   name: "function" or "Class.method"."""
    node = dict(functions_in(tree.body)).get(name)
    if node is not None:
        if node.decorator_list or not is_generator(node):
            return ""
        return f"{name} is a generator, whose work is done after the call. Name {VALUE}"
    last = name.rpartition(".")[2]
    for inner in ast.walk(tree):
        if isinstance(inner, ast.AsyncFunctionDef) and inner.name == last:
            return f"{name} is async, and its work is done after the call. Name {VALUE}"
    for outer, node in functions_in(tree.body):
        if any(isinstance(n, ast.FunctionDef) and n.name == last for n in ast.walk(node)):
            return f"{name} is made anew in each call of {outer}. Name {outer}"
    if is_script and name in names_assigned(tree):
        return f"{name} is assigned, and of a script only a `def` is seen. Write it as one"
    return ""


def names_assigned(tree: ast.Module) -> set[str]:
    """Names that plain assignments at the top of a file bind."""
    found = set[str]()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def is_generator(node: ast.AST) -> bool:
    """Whether a function itself yields, not one inside it."""
    inner = ast.iter_child_nodes(node)
    own = [one for one in inner if not isinstance(one, (*FUNCTIONS, ast.ClassDef))]
    return any(isinstance(one, (ast.Yield, ast.YieldFrom)) or is_generator(one) for one in own)
