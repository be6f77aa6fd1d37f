"""Whether an expression is a message, one chat or several, by what is put into its variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import libcst as cst
import libcst.matchers as m

from parity.draft.importing import DEFINITIONS
from parity.draft.observed import Observed
from parity.draft.roles import bound_arguments, code_of, constant, dotted, parameter_names

CHAT, CHATS = 1, 2  # how many lists lie around a message
COPIES = ("list", "tuple", "sorted", "copy", "copy.copy", "deepcopy", "copy.deepcopy")
BINDS = m.OneOf(
    m.Assign(), m.AnnAssign(), m.AugAssign(), m.NamedExpr(), m.For(), m.CompFor(), m.Call()
)
Part = tuple[cst.BaseExpression, int]  # an expression, and how many more lists lie around it


class Depths:
    """How many lists lie around a message in an expression: 0 is a message itself.

    functions: of the module; one of a class is "Class.name"."""

    def __init__(
        self, module: cst.Module, functions: Mapping[str, cst.FunctionDef], seen: Observed
    ) -> None:
        outside = [one for one in module.body if not isinstance(one, DEFINITIONS)]
        self.module = module
        self.roots: dict[str, cst.CSTNode] = {"": cst.Module(outside), **functions}
        self.functions = functions
        self.seen = seen
        self.open: set[tuple[str, str]] = set()

    def of(self, node: cst.BaseExpression, function: str) -> int | None:
        """None where that is not seen, or differs.   function: that the expression stands in."""
        key = (code_of(node), function)
        if key in self.open:
            return None
        self.open.add(key)
        found = {depth for depth in self.each(node, function) if depth is not None}
        self.open.discard(key)
        return found.pop() if len(found) == 1 else None

    def each(self, node: cst.BaseExpression, function: str) -> Iterator[int | None]:
        if is_message(node):
            yield 0
            return
        yield from self.deeper(parts_of(node), function)
        if dotted(node):
            yield from self.held(dotted(node), function)
        if isinstance(node, cst.Call) and dotted(node.func) in self.functions:
            name = dotted(node.func)
            for one in m.findall(self.functions[name], m.Return(value=m.DoNotCare())):
                value = cst.ensure_type(one, cst.Return).value
                yield self.of(value, name) if value is not None else None

    def deeper(self, parts: Iterator[Part], function: str) -> Iterator[int | None]:
        for part, more in parts:
            depth = self.of(part, function)
            yield None if depth is None else depth + more

    def held(self, name: str, function: str) -> Iterator[int | None]:
        """Of a variable: what is put into it where it is known."""
        root = self.module if "." in name else self.roots.get(function, self.module)
        bound = list(bindings(root, name))
        yield from self.deeper(iter(bound), function)
        node = self.functions.get(function)
        if node is not None and name in parameter_names(node):
            yield from self.given(name, function, node)
        elif node is not None and not bound:
            yield from self.held(name, "")

    def given(self, name: str, function: str, node: cst.FunctionDef) -> Iterator[int | None]:
        """Of a parameter: what the goldens and the callers give it."""
        for case in self.seen.cases:
            if case.function.endswith(f":{function}"):
                yield depth_of(case.arguments.get(name))
        owner, _, method = function.rpartition(".")
        called = m.Attribute(attr=m.Name(method)) if owner else m.Name(method)
        for caller, root in self.roots.items():
            for call in m.findall(root, m.Call(func=called)):
                given = bound_arguments(cst.ensure_type(call, cst.Call), node, bool(owner)) or {}
                yield self.of(given[name], caller) if name in given else None


def depth_of(value: Any) -> int | None:
    """That of an argument of a golden."""
    if isinstance(value, Mapping):
        return 0 if "role" in value else None
    inner = depth_of(value[0]) if isinstance(value, list) and value else None
    return None if inner is None else inner + 1


def is_message(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Dict):
        keys = [one.key for one in node.elements if isinstance(one, cst.DictElement)]
        return any(constant(key) == "role" for key in keys)
    return (
        m.matches(node, m.Call(func=m.Name("dict")))
        and m.findall(node, m.Arg(keyword=m.Name("role"))) != []
    )


def parts_of(node: cst.BaseExpression) -> Iterator[Part]:
    """The expressions that say how deep messages lie in another one."""
    if isinstance(node, (cst.List, cst.Tuple)):
        for element in node.elements:
            yield element.value, 0 if isinstance(element, cst.StarredElement) else 1
    elif isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        yield node.elt, 1
    elif isinstance(node, cst.BinaryOperation):
        yield node.left, 0
        yield node.right, 0
    elif isinstance(node, cst.IfExp):
        yield node.body, 0
        yield node.orelse, 0
    elif isinstance(node, cst.Subscript):
        yield node.value, 0 if isinstance(node.slice[0].slice, cst.Slice) else -1
    elif isinstance(node, cst.Call) and dotted(node.func) in COPIES and node.args:
        yield node.args[0].value, 0
    elif isinstance(node, cst.Call) and m.matches(node.func, m.Attribute(attr=m.Name("copy"))):
        yield cst.ensure_type(node.func, cst.Attribute).value, 0


def bindings(root: cst.CSTNode, name: str) -> Iterator[Part]:
    """What is put into a variable: assigned, gone over, or added to it."""
    for one in m.findall(root, BINDS):
        if isinstance(one, cst.Call):
            yield from added(one, name)
        elif isinstance(one, (cst.For, cst.CompFor)):
            if dotted(one.target) == name:
                yield one.iter, -1
        elif isinstance(one, (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            targets = (
                [t.target for t in one.targets] if isinstance(one, cst.Assign) else [one.target]
            )
            if one.value is not None and name in map(dotted, targets):
                yield one.value, 0


def added(call: cst.Call, name: str) -> Iterator[Part]:
    func = call.func
    if isinstance(func, cst.Attribute) and dotted(func.value) == name and call.args:
        if func.attr.value in ("append", "insert"):
            yield call.args[-1].value, 1
        elif func.attr.value == "extend":
            yield call.args[0].value, 0
