"""Follows an expression to its value: through assignments in order, branches, dictionaries,
arguments,
attributes, imports and the repository's own functions. Nothing is run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parity.scan.index import (
    BASES,
    END,
    Arm,
    Binding,
    Class,
    Module,
    Position,
    Repository,
    Scope,
    dotted_name,
    is_failed_import,
    start_of,
)
from parity.scan.values import (
    ABSENT,
    Absent,
    Argument,
    Call,
    Changed,
    Choice,
    ClassValue,
    Dict,
    Effect,
    Element,
    Fallback,
    Frame,
    Function,
    Instance,
    Item,
    Items,
    Literal,
    Member,
    ModuleValue,
    Option,
    Symbol,
    Unknown,
    Value,
    choose,
    joined,
    literal_of,
    options_of,
    plain,
)

MAX_CALLS = 5  # functions within functions that are followed
MAX_NESTING = 80  # evaluations within evaluations
MAX_REPEATS = 100_000  # characters or items of a product that is computed
MAX_STEPS = 5000  # evaluations for one question
ITEMS = ("item", "update", "pop", "setdefault")
SETTINGS = re.compile(r"(config|cfg|conf|args|kwargs|params|settings|options|hparams)$")
CASTS = {"int": int, "float": float, "bool": bool, "str": str}
SAME = {  # functions that give back what they are given
    "copy.copy", "copy.deepcopy", "deepcopy", "tuple", "list", "typing.cast", "ast.literal_eval",
    "itertools.chain", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm",
}  # fmt: skip
KNOWN = (Literal, Items, Dict, Argument, Call, Instance, Symbol)  # an entry that is surely there
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


def repeats(a: Any, b: Any) -> int:
    """How long a product of a text or a list and a number is; 0 of numbers."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, (str, bytes, list)) and isinstance(other, int):
            return len(one) * other
    return 0


def source_text(node: ast.AST, limit: int = 60) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class Reaching:
    """Which bindings of a name a use at a position may see."""

    def __init__(self, scope: Scope, position: Position) -> None:
        self.scope = scope
        self.position = position
        self.around = scope.arms_at(position)

    def condition(self, binding: Binding) -> list[Arm] | None:
        """The arms that must have run for a binding to be seen; None where it cannot be seen."""
        if binding.owner is not self.scope:
            return []  # of a `global` statement
        needed = list[Arm]()
        for arm in self.scope.arms_at(binding.position):
            if arm in self.around:
                continue
            if any(other.branch is arm.branch for other in self.around) or arm.exits:
                return None
            needed.append(arm)
        return needed

    def find(self, bindings: Sequence[Binding]) -> list[tuple[Binding, list[Arm]]]:
        """Bindings that may be seen, the latest first, until one that always is."""
        found = list[tuple[Binding, list[Arm]]]()
        arms_seen: dict[ast.AST, set[int]] = {}
        before = [binding for binding in bindings if binding.position <= self.position]
        for binding in sorted(before, key=lambda binding: binding.position, reverse=True):
            needed = self.condition(binding)
            if needed is None:
                continue
            if len(needed) == 1:
                seen = arms_seen.setdefault(needed[0].branch, set())
                if needed[0].number in seen:
                    continue  # hidden by a later one in the same arm
                seen.add(needed[0].number)
            found.append((binding, needed))
            if not needed or self.is_complete(needed, arms_seen):
                return found
        return found + self.carried(bindings, found)

    def is_complete(self, needed: list[Arm], arms_seen: dict[ast.AST, set[int]]) -> bool:
        """Whether each arm of a branch binds the name, or leaves."""
        if len(needed) != 1 or not needed[0].arms:
            return False
        branch = needed[0].branch
        leaving = {arm.number for arm in self.scope.arms if arm.branch is branch and arm.exits}
        return len(arms_seen[branch] | leaving) >= needed[0].arms

    def carried(
        self, bindings: Sequence[Binding], found: list[Any]
    ) -> list[tuple[Binding, list[Arm]]]:
        """Bindings further down in a loop around the use, where nothing above it binds the name."""
        if found:
            return []
        later = list[tuple[Binding, list[Arm]]]()
        for start, end in self.scope.loops:
            if start <= self.position <= end:
                later += [(b, []) for b in bindings if self.position < b.position <= end]
        return later


class Evaluator:
    """Evaluates expressions of a repository. Results are kept."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.frames: dict[int, Frame] = {}
        self.kept: dict[tuple[Any, ...], tuple[Value, Frame]] = {}
        self.done: dict[tuple[int, str], list[Binding]] = {}
        self.cuts = 0
        self.steps = 0
        self.active: set[tuple[Any, ...]] = set()
        self.options: dict[int, dict[str, Option]] = {}
        self.nesting = 0

    def frame(self, scope: Scope) -> Frame:
        """The frame of a scope of which no caller is known."""
        return self.frames.setdefault(id(scope), Frame(scope))

    def value(self, node: ast.expr, frame: Frame) -> Value:
        """What an expression is where it stands."""
        visit = getattr(self, f"value_{type(node).__name__}", None)
        if visit is None:
            return Unknown(source_text(node))
        return self.once(("value", id(node), id(frame)), frame, lambda: visit(node, frame))

    def once(self, key: tuple[Any, ...], frame: Frame, compute: Callable[[], Value]) -> Value:
        """A result that is kept. Where it needs itself, or is nested too deep, it is unknown
        there, and what was
        computed from that is not kept."""
        kept = self.kept.get(key)
        if kept is not None:
            return kept[0]
        if self.nesting == 0:
            self.steps = 0
        self.steps += 1
        if key in self.active or self.nesting > MAX_NESTING or self.steps > MAX_STEPS:
            self.cuts += 1
            return Unknown("a value that depends on itself")
        self.active.add(key)
        self.nesting += 1
        cuts = self.cuts
        try:
            found = compute()
        finally:
            self.nesting -= 1
            self.active.discard(key)
        if self.cuts == cuts or self.nesting == 0:
            self.kept[key] = found, frame
        return found

    # == Expressions ==

    def value_Constant(self, node: ast.Constant, frame: Frame) -> Value:
        return Literal(node.value)

    def value_Name(self, node: ast.Name, frame: Frame) -> Value:
        return self.named(node.id, frame, start_of(node))

    def value_Attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        name = dotted_name(node)
        if name:
            return self.named(name, frame, start_of(node))
        return self.attribute(self.value(node.value, frame), node.attr)

    def value_Subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        base = self.value(node.value, frame)
        is_known, key = literal_of(self.value(node.slice, frame))
        if isinstance(node.slice, ast.Slice):
            return Unknown(source_text(node), (base,))
        return self.item(base, key if is_known else None, source_text(node))

    def value_Await(self, node: ast.Await, frame: Frame) -> Value:
        return self.value(node.value, frame)

    def value_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Value:
        return self.value(node.value, frame)

    def value_Starred(self, node: ast.Starred, frame: Frame) -> Value:
        return Unknown(source_text(node), (self.value(node.value, frame),))

    def value_List(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Value:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return Unknown(source_text(node), tuple(self.value(item, frame) for item in node.elts))
        return Items(tuple(self.value(item, frame) for item in node.elts))

    value_Tuple = value_List  # noqa: N815 - named by ast
    value_Set = value_List  # noqa: N815 - named by ast

    def value_Dict(self, node: ast.Dict, frame: Frame) -> Value:
        found = Dict({})
        for key, item in zip(node.keys, node.values):
            value = self.value(item, frame)
            if key is None:
                found = merged(found, value)
                continue
            is_known, name = literal_of(self.value(key, frame))
            if is_known:
                found = Dict({**found.entries, str(name): value}, found.rest)
            else:
                found = Dict(found.entries, (*found.rest, Unknown(source_text(node))))
        return found

    def value_ListComp(self, node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> Value:
        return Unknown(source_text(node), (self.value(node.elt, frame),))

    value_GeneratorExp = value_ListComp  # noqa: N815 - named by ast

    def value_DictComp(self, node: ast.DictComp, frame: Frame) -> Value:
        """`{k: v for k, v in d.items() if v is not None}` is d: None is what was not given."""
        first = node.generators[0]
        pair = [dotted_name(node.key), dotted_name(node.value)]
        targets = [dotted_name(part) for part in getattr(first.target, "elts", ())]
        is_filtered = any(not is_none_test(test, pair[1]) for test in first.ifs)
        items = first.iter.func if isinstance(first.iter, ast.Call) else None
        parts: tuple[Value, ...] = ()
        if isinstance(items, ast.Attribute) and items.attr == "items":
            parts = (self.value(items.value, frame),)
        if len(node.generators) > 1 or is_filtered or not parts or targets != pair:
            return Unknown(source_text(node), parts)
        return parts[0]

    def value_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Value:
        parts = [
            self.value(part.value, frame)
            for part in node.values
            if isinstance(part, ast.FormattedValue)
        ]
        return Unknown(source_text(node), tuple(parts))

    def value_IfExp(self, node: ast.IfExp, frame: Frame) -> Value:
        is_known, test = literal_of(self.value(node.test, frame))
        if is_known and not isinstance(node.test, ast.Name):
            return self.value(node.body if test else node.orelse, frame)
        body, other = self.value(node.body, frame), self.value(node.orelse, frame)
        if is_given_test(node.test, dotted_name(node.body)):
            return Fallback(body, other)
        if is_given_test(node.test, dotted_name(node.orelse)):
            return Fallback(other, body)
        return choose([body, other])

    def value_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Value:
        values = [self.value(item, frame) for item in node.values]
        if isinstance(node.op, ast.And):
            return Unknown(source_text(node), tuple(values))
        found = values[-1]
        for value in reversed(values[:-1]):
            is_known, constant = literal_of(value)
            if not is_known:
                found = Fallback(value, found)
            elif constant:
                found = value
        return found

    def value_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Value:
        value = self.value(node.operand, frame)
        is_known, constant = literal_of(value)
        if is_known and isinstance(node.op, ast.USub) and isinstance(constant, (int, float)):
            return Literal(-constant)
        if is_known and isinstance(node.op, ast.Not):
            return Literal(not constant)
        return Unknown(source_text(node), (value,))

    def value_BinOp(self, node: ast.BinOp, frame: Frame) -> Value:
        left, right = self.value(node.left, frame), self.value(node.right, frame)
        if isinstance(node.op, ast.BitOr) and isinstance(plain(left), Dict):
            return merged(merged(Dict({}), left), right)
        if isinstance(left, Items) and isinstance(right, Items) and isinstance(node.op, ast.Add):
            return Items(left.items + right.items)
        known_left, a = literal_of(left)
        known_right, b = literal_of(right)
        compute = OPERATORS.get(type(node.op))
        is_long = isinstance(node.op, ast.Mult) and repeats(a, b) > MAX_REPEATS
        if known_left and known_right and compute is not None and not is_long:
            try:
                return Literal(compute(a, b))
            except (TypeError, ValueError, ArithmeticError):
                return Unknown(source_text(node))
        return Unknown(source_text(node), (left, right))

    def value_Compare(self, node: ast.Compare, frame: Frame) -> Value:
        left = self.value(node.left, frame)
        right = self.value(node.comparators[0], frame)
        known_left, a = literal_of(left)
        known_right, b = literal_of(right)
        compare = COMPARISONS.get(type(node.ops[0]))
        if known_left and known_right and compare is not None and len(node.ops) == 1:
            try:
                return Literal(bool(compare(a, b)))
            except TypeError:
                return Unknown(source_text(node))
        return Unknown(source_text(node), (left, right))

    # == Names ==

    def named(self, name: str, frame: Frame, position: Position) -> Value:
        """A dotted name where it is used, with all that was set on it before."""
        return self.once(
            ("name", name, id(frame), position), frame, lambda: self.changed(name, frame, position)
        )

    def changed(self, name: str, frame: Frame, position: Position) -> Value:
        scope = frame.scope
        found = Reaching(scope, position).find(self.bases(scope, name))
        if found:
            value = settings_by_name(self.chosen(found, name, frame, position), name)
            since = min(binding.position for binding, _ in found)
        else:
            value = self.outer(name, frame, position)
            since = (0, 0)
        return self.with_effects(value, name, frame, (since, position))

    @staticmethod
    def bases(scope: Scope, name: str) -> list[Binding]:
        if name not in scope.bindings or is_failed_import(scope, name):
            return []
        return [binding for binding in scope.bindings[name] if binding.kind in BASES]

    def chosen(
        self, found: list[tuple[Binding, list[Arm]]], name: str, frame: Frame, position: Position
    ) -> Value:
        """The value of reaching bindings, the latest first; what is bound where it was not given
        is a default."""
        values = [self.bound(binding, frame) for binding, _ in found]
        if found[-1][1] and name in frame.scope.parameters:
            values.append(self.outer(name, frame, position))
        if len(values) == 2 and found[0][1]:
            arm = found[0][1][0]
            if len(found[0][1]) == 1 and arm.test is not None and is_missing_test(arm.test, name):
                return Fallback(values[1], values[0])
        return choose(values)

    def bound(self, binding: Binding, frame: Frame) -> Value:
        """The value of one binding."""
        inside = frame if binding.owner is frame.scope else self.frame(binding.owner or frame.scope)
        if binding.value is None:
            return Unknown(binding.name)
        if binding.kind == "augment":
            before = self.named(binding.name, inside, start_of(binding.value))
            text = f"{binding.name} changed by {source_text(binding.value)}"
            return Unknown(text, (before, self.value(binding.value, inside)))
        value = self.value(binding.value, inside)
        if binding.kind == "element":
            return self.element(value)
        if binding.kind == "unpack":
            for index in binding.key:  # type: ignore[union-attr]
                value = self.item(value, index, binding.name)
        return value

    def element(self, value: Value) -> Value:
        if isinstance(value, Items) and value.items:
            return choose(list(value.items))
        return Element(value)

    def outer(self, name: str, frame: Frame, position: Position) -> Value:
        """A name that its scope does not bind: an attribute, a parameter, or a name from around."""
        head, dot, last = name.rpartition(".")
        if dot:
            if head == frame.scope.self_name and frame.scope.self_class is not None:
                behind = f"{head}.{self.property_target(frame.scope.self_class, last)}"
                if behind != name and self.bases(frame.scope, behind):
                    return self.named(behind, frame, position)
                return self.attribute(self.named(head, frame, position), last, frame.scope)
            return self.attribute(self.named(head, frame, position), last)
        return self.undotted_outer(name, frame)

    def undotted_outer(self, name: str, frame: Frame) -> Value:
        """A name that its scope does not bind: a parameter, the scope's own import, or from
        around."""
        scope = frame.scope
        if name in scope.parameters:
            return self.parameter(name, frame)
        for inner in scope.nested if scope.qualname else ():
            if inner.name == name and inner.owner is None:
                return Function(inner)
        if scope.qualname and name in scope.imports:
            target = scope.imports[name]
            local = self.repository.find(target, scope.module)
            return Symbol(target) if local is None else self.definition(local, scope.module, name)
        if scope.parent is not None:
            around = scope.parent
            if around.owner is None or around.node is not scope.node:
                return self.named(name, self.frame(around), END)
        return self.global_name(name, scope.module)

    def property_target(self, cls: Class, name: str) -> str:
        """The attribute that a property gives back, as `model` does `self._model`; "" of anything
        else."""
        for own in self.ancestors(cls):
            method = own.methods.get(name)
            if method is None or "property" not in method.decorators:
                continue
            for node in method.returns:
                for part in ast.walk(node):
                    head, _, last = dotted_name(part).rpartition(".")
                    if head == method.self_name and last.startswith("_"):
                        return last
        return ""

    def parameter(self, name: str, frame: Frame) -> Value:
        scope = frame.scope
        given = frame.values.get(name)
        if isinstance(given, tuple):
            return self.value(given[0], given[1])
        if given is not None:
            return given
        if name == scope.self_name and scope.is_method and scope.owner is not None:
            if "classmethod" in scope.decorators:
                return ClassValue(scope.owner)
            return Instance(scope.owner)
        default = scope.defaults.get(name)
        around = self.frame(scope.parent) if scope.parent is not None else frame
        arguments = scope.arguments
        is_rest = arguments is not None and name in (
            getattr(arguments.vararg, "arg", ""),
            getattr(arguments.kwarg, "arg", ""),
        )
        return Argument(
            scope, name, self.value(default, around) if default is not None else None, is_rest
        )

    def global_name(self, name: str, module: Module) -> Value:
        found = self.repository.member(module, name)
        if found is None and name not in module.imports and SETTINGS.search(name):
            return Option(name, None, is_argument=False)
        if found is None:
            return Symbol(module.imports.get(name, name))
        return self.definition(found, module, name)

    def definition(self, found: Any, module: Module, name: str) -> Value:
        if isinstance(found, Scope):
            return Function(found)
        if isinstance(found, Class):
            return ClassValue(found)
        if isinstance(found, Module):
            return ModuleValue(found)
        other, variable = found
        frame = self.frame(other.scope)
        key = ("global", variable, id(other))
        return self.once(key, frame, lambda: self.named(variable, frame, END))

    # == What is done to an object ==

    def with_effects(
        self, value: Value, name: str, frame: Frame, span: tuple[Position, Position]
    ) -> Value:
        """A value with what a scope does to it by this name, within a span of positions."""
        scope = frame.scope
        if name not in scope.bindings and name not in scope.below:
            return value
        reaching = Reaching(scope, span[1])
        attributes: dict[str, Value] = {}
        effects = list[Effect]()
        for binding in self.effects(scope, name):
            if not span[0] <= binding.position <= span[1]:
                continue
            needed = reaching.condition(binding)
            if needed is None:
                continue
            attribute = binding.name[len(name) + 1 :]
            if attribute:
                self.set_attribute(attributes, value, attribute, (binding, needed, frame))
            elif binding.kind in ITEMS:
                value = self.with_item(value, binding, frame, needed)
            elif binding.kind == "call" and isinstance(binding.value, ast.Call):
                effects.append(
                    Effect(getattr(binding.value.func, "attr", ""), binding.value, frame)
                )
        if attributes or effects:
            return Changed(value, attributes, tuple(effects))
        return value

    def set_attribute(
        self,
        attributes: dict[str, Value],
        value: Value,
        name: str,
        change: tuple[Binding, list[Arm], Frame],
    ) -> None:
        """What a binding does to an attribute of a value: it sets it, or an item of it."""
        binding, needed, frame = change
        if binding.kind in BASES:
            new = self.bound(binding, frame)
            attributes[name] = self.conditional(attributes.get(name), new, needed, binding.name)
        elif not isinstance(plain(value), Instance):  # of which all methods are followed
            old = attributes.get(name) or self.attribute(value, name)
            attributes[name] = self.with_item(old, binding, frame, needed)

    def effects(self, scope: Scope, name: str) -> list[Binding]:
        """What a scope does to a name and to its attributes, in order."""
        key = id(scope), name
        if key not in self.done:
            self.done[key] = self.find_effects(scope, name)
        return self.done[key]

    @staticmethod
    def find_effects(scope: Scope, name: str) -> list[Binding]:
        found = list[Binding]()
        if name in scope.bindings:
            found += [binding for binding in scope.bindings[name] if binding.kind not in BASES]
        for other in scope.below.get(name, ()):
            found += [binding for binding in scope.bindings[other] if binding.kind != "call"]
        return sorted(found, key=lambda binding: binding.position)

    @staticmethod
    def conditional(old: Value | None, new: Value, needed: list[Arm], name: str) -> Value:
        """A value that is set in an arm only."""
        if not needed:
            return new
        if needed[0].test is not None and is_missing_test(needed[0].test, name):
            return Fallback(old or ABSENT, new)
        return choose([new, old or ABSENT])

    def with_item(self, value: Value, binding: Binding, frame: Frame, needed: list[Arm]) -> Value:
        """A dictionary after `d[k] = v`, `d.update(...)`, `d.pop(k)`, `d.setdefault(k, v)`."""
        options = [plain(option) for option in options_of(plain(value))]
        tables = [option for option in options if isinstance(option, Dict)]
        table = joined(tables) if len(tables) == len(options) else Dict({}, (value,))
        if binding.kind == "update":
            return merged(table, self.updated(binding, frame), is_sure=not needed)
        is_known, key = (
            literal_of(self.value(binding.key, frame))
            if isinstance(binding.key, ast.expr)
            else (False, 0)
        )
        if not is_known:
            if binding.kind == "pop":
                return table
            parts = [self.value(binding.value, frame)] if binding.value is not None else []
            return Dict(table.entries, (*table.rest, Unknown(binding.name, tuple(parts))))
        key = str(key)
        old = self.item(table, key, key)
        stored = self.value(binding.value, frame) if binding.value is not None else ABSENT
        new = self.stored_item(binding, key, old, stored, needed)
        return Dict({**table.entries, key: new}, table.rest)

    @staticmethod
    def stored_item(
        binding: Binding, key: str, old: Value, stored: Value, needed: list[Arm]
    ) -> Value:
        """An entry after it was set, popped or given a default."""
        if binding.kind == "setdefault" and isinstance(plain(old), KNOWN):
            return old
        test = needed[0].test if len(needed) == 1 else None
        is_default = test is not None and is_missing_test(test, key)
        if binding.kind == "setdefault" or is_default:
            return stored if isinstance(old, Absent) else Fallback(old, stored)
        return choose([stored, old]) if needed else stored

    def updated(self, binding: Binding, frame: Frame) -> Value:
        """What `d.update(...)` or `d |= ...` adds."""
        node = binding.value
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "update":
            return self.value(node, frame) if node is not None else Unknown()
        found = Dict({})
        for argument in node.args:
            found = merged(found, self.value(argument, frame))
        return merged(found, self.keywords(node, frame))

    # == Attributes ==

    def attribute(self, base: Value, name: str, inside: Scope | None = None) -> Value:
        """An attribute of a value.   inside: the method that reads it of its own object."""
        if isinstance(base, Changed):
            return self.attribute_of_changed(base, name, inside)
        if isinstance(base, Choice):
            return choose([self.attribute(option, name, inside) for option in base.options])
        if isinstance(base, Fallback):
            return choose(
                [self.attribute(option, name, inside) for option in (base.value, base.default)]
            )
        visit = getattr(self, f"attribute_of_{type(base).__name__}", None)
        if visit is not None:
            found: Value = visit(base, name)
            return found
        return Member(base, name)

    def attribute_of_changed(self, base: Changed, name: str, inside: Scope | None) -> Value:
        value = self.attribute(base.base, name, inside)
        if name in base.attributes:
            own = base.attributes[name]
            value = choose([value if isinstance(o, Absent) else o for o in options_of(own)])
        nested = {
            key[len(name) + 1 :]: item
            for key, item in base.attributes.items()
            if key.startswith(f"{name}.")
        }
        return Changed(value, nested) if nested else value

    def attribute_of_Symbol(self, base: Symbol, name: str) -> Value:
        return Symbol(f"{base.name}.{name}")

    def attribute_of_ModuleValue(self, base: ModuleValue, name: str) -> Value:
        found = self.repository.member(base.module, name)
        if found is None:
            inner = self.repository.find_module(f"{base.module.name}.{name}", base.module)
            if inner is not None:
                return ModuleValue(inner)
            return Symbol(base.module.imports.get(name, f"{base.module.name}.{name}"))
        return self.definition(found, base.module, name)

    def attribute_of_Instance(self, base: Instance | ClassValue, name: str) -> Value:
        found = self.class_attribute(base.cls, name, base)
        return Member(base, name) if found is None else found

    attribute_of_ClassValue = attribute_of_Instance  # noqa: N815 - named by classes of values

    def attribute_of_Argument(self, base: Argument, name: str) -> Value:
        cls = self.annotated_class(base)
        found = self.class_attribute(cls, name, Instance(cls)) if cls is not None else None
        if isinstance(found, Function):
            return found
        if found is None and cls is None:
            option = self.option_of(base.scope.module, name)
            if option is not None and base.name in (
                "args",
                "opt",
                "opts",
                "options",
                "params",
                "parsed_args",
                "flags",
            ):
                return option
        return Member(base, name, found)

    def attribute_of_Call(self, base: Call, name: str) -> Value:
        callee = base.callee
        if isinstance(callee, Member) and callee.name in ("parse_args", "parse_known_args"):
            return self.option_of(base.frame.scope.module, name) or Option(name)
        return Member(base, name)

    def attribute_of_Item(self, base: Item, name: str) -> Value:
        callee = base.base.callee if isinstance(base.base, Call) else None
        if (
            isinstance(callee, Member)
            and callee.name.startswith("parse_")
            and isinstance(base.base, Call)
        ):
            module = base.base.frame.scope.module
            return (
                self.option_of(module, name)
                or self.parsed_field(callee, base, name)
                or Option(name)
            )
        return Member(base, name)

    def parsed_field(self, callee: Member, base: Item, name: str) -> Value | None:
        """A field of a dataclass that a command line fills: HfArgumentParser((A, B))."""
        parser = plain(callee.base)
        if not isinstance(parser, Call) or not parser.node.args:
            return None
        classes = self.value(parser.node.args[0], parser.frame)
        if isinstance(classes, Items):
            classes = self.item(classes, base.key, name)
        if not isinstance(classes, ClassValue):
            return None
        default = self.class_attribute(classes.cls, name, Instance(classes.cls))
        return Option(name, default)

    def annotated_class(self, argument: Argument) -> Class | None:
        """The class of the repository that an argument is annotated with."""
        annotation = argument.scope.parameters[argument.name].annotation
        for part in annotation_names(annotation):
            found = self.named(part, self.frame(argument.scope.module.scope), END)
            if isinstance(found, ClassValue):
                return found.cls
        return None

    def ancestors(self, cls: Class, depth: int = 0) -> Iterator[Class]:
        """A class and its bases within the repository."""
        yield cls
        for base in cls.node.bases if depth < 6 else ():
            value = self.value(base, self.frame(cls.module.scope))
            if isinstance(value, ClassValue) and value.cls is not cls:
                yield from self.ancestors(value.cls, depth + 1)

    def outer_bases(self, cls: Class) -> list[str]:
        """Names of bases from outside the repository."""
        found = list[str]()
        for own in self.ancestors(cls):
            for base in own.node.bases:
                value = self.value(base, self.frame(own.module.scope))
                if isinstance(value, Symbol):
                    found.append(value.name)
                elif not isinstance(value, ClassValue):
                    found.append(dotted_name(base))
        return found

    def class_attribute(self, cls: Class, name: str, owner: Value) -> Value | None:
        """An attribute as methods and class say; None where they do not."""
        key = ("attribute", id(cls), name)
        if key in self.active:
            self.cuts += 1
            return Unknown(name)
        self.active.add(key)
        try:
            found = self.defined_attribute(list(self.ancestors(cls)), name, owner)
            if found is not None and not is_placeholder(found):
                return found
            below = self.repository.subclasses.get(cls.name, ())
            values = [self.defined_attribute([sub], name, Instance(sub)) for sub in below]
            some = [value for value in values if value is not None and not is_placeholder(value)]
            return choose(some) if some and len(some) <= 8 else found
        finally:
            self.active.discard(key)

    def defined_attribute(self, lineage: Sequence[Class], name: str, owner: Value) -> Value | None:
        for cls in lineage:
            method = cls.methods.get(name)
            if method is not None and "property" in [
                word.rpartition(".")[2] for word in method.decorators
            ]:
                return self.returned(method, {method.self_name: owner}, 0)
            if method is not None and "cached_property" in " ".join(method.decorators):
                return self.returned(method, {method.self_name: owner}, 0)
            if method is not None:
                return Function(method, owner)
        stored = [self.stored_attribute(cls, name, owner) for cls in lineage]
        values = [value for value in stored if value is not None]
        fields = [self.field_value(cls, name, owner) for cls in lineage if name in cls.fields]
        real = [value for value in (*values, *fields) if not is_placeholder(value)]
        return next(iter([*real, *values, *fields]), None)

    def field_value(self, cls: Class, name: str, owner: Value) -> Value:
        """A class attribute; of an object, what its constructor was given."""
        default = cls.fields[name][1]
        value = self.value(default, self.frame(cls.module.scope)) if default is not None else None
        if isinstance(value, Call) and value.node.keywords:
            given = self.keywords(
                value.node, value.frame
            ).entries  # of dataclasses.field, pydantic.Field
            value = given.get("default")
        if not cls.is_dataclass and not any(
            "Model" in base or "Settings" in base for base in self.outer_bases(cls)
        ):
            return value if value is not None else Option(name, None, is_argument=False)
        if isinstance(owner, Instance) and owner.node is not None and owner.frame is not None:
            given = self.keywords(owner.node, owner.frame).entries
            if name in given:
                return given[name]
            index = list(cls.fields).index(name)
            if index < len(owner.node.args):
                return self.value(owner.node.args[index], owner.frame)
        return Option(name, value, is_argument=False)

    def stored_attribute(self, cls: Class, name: str, owner: Value) -> Value | None:
        """What the methods of a class assign to `self.name`, that of `__init__` first."""
        values = list[Value]()
        for method in sorted(cls.methods.values(), key=lambda method: method.name != "__init__"):
            dotted = f"{method.self_name}.{name}"
            if not self.bases(method, dotted):
                continue
            frame = self.method_frame(method, owner)
            bindings = self.bases(method, dotted)
            found = Reaching(method, END).find(bindings)
            if not found:  # each is in an arm that leaves; the attribute stays after a return
                found = [(binding, []) for binding in reversed(bindings)]
            values.append(self.chosen(found, dotted, frame, END))
            if method.name == "__init__" and not literal_of(values[-1])[0]:
                break  # what it is given, or makes, stays
        real = [value for value in values if not is_placeholder(value)] or values
        if not real:
            return None
        return self.with_method_effects(choose(real), cls, name, owner)

    def method_frame(self, method: Scope, owner: Value) -> Frame:
        """The frame of a method; of `__init__`, with what the constructor was given."""
        if method.name != "__init__" or not isinstance(owner, Instance) or owner.node is None:
            return self.frame(method)
        if owner.frame is None or owner.frame.depth >= MAX_CALLS:
            return self.frame(method)
        values = self.bind_arguments(method, owner.node, owner.frame, owner)
        return Frame(method, values, owner.frame.depth + 1)

    def with_method_effects(self, value: Value, cls: Class, name: str, owner: Value) -> Value:
        """A value with what the methods of a class do to `self.name`."""
        for method in sorted(cls.methods.values(), key=lambda method: method.name != "__init__"):
            if method.name == "__del__":
                continue
            dotted = f"{method.self_name}.{name}"
            value = self.with_effects(value, dotted, self.frame(method), ((0, 0), END))
        return value

    # == Items ==

    def item(self, base: Value, key: Any, text: str) -> Value:
        """`base[key]`.   key: None where it is not known."""
        inner = plain(base)
        options = options_of(inner)
        if len(options) > 1:
            return choose([self.item(option, key, text) for option in options])
        if isinstance(inner, Dict):
            return self.item_of_dict(inner, key, text)
        if isinstance(inner, Items):
            return item_of_list(inner, key, text)
        if isinstance(inner, Argument) and inner.is_rest and isinstance(key, str):
            return Option(key)
        if isinstance(inner, Symbol) and key == 0:
            return inner  # LLM, is_there = optional_import("vllm", "LLM")
        return Item(base, key)

    def item_of_dict(self, base: Dict, key: Any, text: str) -> Value:
        if key is not None and str(key) in base.entries:
            return base.entries[str(key)]
        stored = [part for rest in base.rest if isinstance(rest, Unknown) for part in rest.parts]
        if key is None or stored:
            values = [*(base.entries.values() if key is None else ()), *stored]
            return choose(values) if values else Unknown(text)
        if not base.rest:
            return ABSENT
        return self.item(base.rest[-1], key, text) if len(base.rest) == 1 else Item(base, key)

    # == Calls ==

    def value_Call(self, node: ast.Call, frame: Frame) -> Value:
        callee = self.value(node.func, frame)
        if isinstance(callee, Symbol):
            found = self.known_function(callee.name, node, frame)
            if found is not None:
                return found
        if "import" in dotted_name(node.func).rpartition(".")[2]:
            found = self.imported(node, frame)
            if found is not None:
                return found
        if isinstance(node.func, ast.Attribute):
            found = self.dictionary_method(node, frame)
            if found is not None:
                return found
        if isinstance(callee, ClassValue):
            return Instance(callee.cls, node, frame)
        if isinstance(callee, Function):
            return self.called(callee, node, frame)
        return Call(callee, node, frame)

    def known_function(self, name: str, node: ast.Call, frame: Frame) -> Value | None:
        if name in CASTS and len(node.args) == 1:
            return self.cast(name, self.value(node.args[0], frame), node)
        if name in ("dict", "collections.OrderedDict", "OrderedDict", "types.SimpleNamespace"):
            found = Dict({})
            for argument in node.args:
                found = merged(found, self.value(argument, frame))
            return merged(found, self.keywords(node, frame))
        if name in SAME and node.args:
            return self.value(node.args[-1 if name == "typing.cast" else 0], frame)
        if name == "getattr" and len(node.args) > 1:
            return self.got_attribute(node, frame)
        if name in ("vars", "asdict", "dataclasses.asdict") and len(node.args) == 1:
            return Element(self.value(node.args[0], frame))
        return None

    def imported(self, node: ast.Call, frame: Frame) -> Value | None:
        """`import_module("vllm")`, `optional_import("vllm", "LLM")`."""
        words = [literal_of(self.value(argument, frame))[1] for argument in node.args[:2]]
        if not words or not all(isinstance(word, str) for word in words):
            return None
        name = ".".join(words)
        module = frame.scope.module
        found = self.repository.find(name, module)
        return Symbol(name) if found is None else self.definition(found, module, name)

    def cast(self, name: str, value: Value, node: ast.Call) -> Value:
        is_known, constant = literal_of(value)
        if not is_known:
            return value
        try:
            return Literal(CASTS[name](constant))
        except (TypeError, ValueError):
            return Unknown(source_text(node))

    def got_attribute(self, node: ast.Call, frame: Frame) -> Value:
        base = self.value(node.args[0], frame)
        is_known, name = literal_of(self.value(node.args[1], frame))
        if not is_known:
            return Call(Symbol("getattr"), node, frame)
        value = self.attribute(base, str(name))
        if len(node.args) == 3:
            return Fallback(value, self.value(node.args[2], frame))
        return value

    def dictionary_method(self, node: ast.Call, frame: Frame) -> Value | None:
        """`d.get(k, v)`, `d.pop(k, v)`, `d.copy()`, `params.clone()`."""
        assert isinstance(node.func, ast.Attribute)
        method = node.func.attr
        if method in ("copy", "clone") and not node.args:
            return self.value(node.func.value, frame)
        if method not in ("get", "pop", "setdefault") or not node.args:
            return None
        is_known, key = literal_of(self.value(node.args[0], frame))
        base = self.value(node.func.value, frame)
        if not is_known or isinstance(plain(base), (Symbol, Call, Instance)):
            return None
        value = self.item(base, key, str(key))
        default = self.value(node.args[1], frame) if len(node.args) > 1 else Literal(None)
        if isinstance(value, Absent):
            return default
        if isinstance(value, Literal):
            return value
        return Fallback(value, default)

    def called(self, callee: Function, node: ast.Call, frame: Frame) -> Value:
        """What a function of the repository returns; the call itself where that is not known."""
        scope = callee.scope
        if scope.is_generator or not scope.returns or frame.depth >= MAX_CALLS:
            return Call(callee, node, frame)
        values = self.bind_arguments(scope, node, frame, callee.bound)
        found = self.returned(scope, values, frame.depth + 1)
        return Call(callee, node, frame) if isinstance(plain(found), Unknown) else found

    def returned(self, scope: Scope, values: dict[str, Any], depth: int) -> Value:
        key = ("returned", id(scope))
        if key in self.active:
            self.cuts += 1
            return Unknown(scope.qualname)
        self.active.add(key)
        try:
            inside = Frame(scope, values, depth)
            results = [self.value(node, inside) for node in scope.returns]
            return choose([result for result in results if not is_placeholder(result)] or results)
        finally:
            self.active.discard(key)

    def bind_arguments(
        self, scope: Scope, node: ast.Call, frame: Frame, bound: Value | None
    ) -> dict[str, Any]:
        """Which parameter is given what by a call."""
        found: dict[str, Any] = {}
        positional = list(scope.positional)
        if scope.is_method and positional and scope.owner is not None:
            found[positional.pop(0)] = bound if bound is not None else Instance(scope.owner)
        for name, argument in zip(positional, node.args):
            if isinstance(argument, ast.Starred):
                break
            found[name] = (argument, frame)
        for keyword in node.keywords:
            if keyword.arg in scope.parameters:
                found[keyword.arg] = (keyword.value, frame)
        given = self.keywords(node, frame)
        extra = {name: value for name, value in given.entries.items() if name not in found}
        found.update({name: value for name, value in extra.items() if name in scope.parameters})
        if not given.rest:
            self.bind_defaults(scope, found)
        if scope.keyword_rest:
            kept = {name: value for name, value in extra.items() if name not in scope.parameters}
            found[scope.keyword_rest] = Dict(kept, given.rest)
        return found

    def bind_defaults(self, scope: Scope, found: dict[str, Any]) -> None:
        around = self.frame(scope.parent or scope)
        for name, default in scope.defaults.items():
            found.setdefault(name, (default, around))

    def keywords(self, node: ast.Call, frame: Frame) -> Dict:
        """The keyword arguments of a call, `**` expanded. What is named cannot be among those of
        `**`."""
        found = Dict({})
        named: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is None:
                found = merged(found, value)
            else:
                named[keyword.arg] = value
        return Dict({**found.entries, **named}, found.rest)

    # == Command lines ==

    def option_of(self, module: Module, name: str) -> Option | None:
        """An option of a module's command line, or of one that it imports."""
        found = self.module_options(module).get(name)
        if found is not None:
            return found
        for dotted in (*module.imports.values(), *module.stars):
            other = self.repository.find(dotted, module)
            inner = other.module if isinstance(other, (Scope, Class)) else other
            if isinstance(inner, Module) and inner is not module:
                found = self.module_options(inner).get(name)
                if found is not None:
                    return found
        return None

    def module_options(self, module: Module) -> dict[str, Option]:
        if id(module) not in self.options:
            self.options[id(module)] = {}
            for scope in module.scopes:
                for call in scope.calls:
                    self.read_option(call, scope, self.options[id(module)])
        return self.options[id(module)]

    def read_option(self, call: ast.Call, scope: Scope, options: dict[str, Option]) -> None:
        """`add_argument("--name", default=...)`, `flags.DEFINE_float("name", 0.0, ...)`."""
        function = dotted_name(call.func) or getattr(call.func, "attr", "")
        last = function.rpartition(".")[2]
        names = [
            arg.value
            for arg in call.args
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
        if last.startswith("DEFINE_") and names and len(call.args) > 1:
            options[names[0]] = Option(names[0], self.value(call.args[1], self.frame(scope)))
            return
        if last not in ("add_argument", "add_option") or not names:
            return
        given = self.keywords(call, self.frame(scope)).entries
        long = [name for name in names if name.startswith("--")] or names
        is_known, dest = literal_of(given.get("dest", ABSENT))
        name = str(dest) if is_known else long[0].lstrip("-").replace("-", "_")
        default = given.get("default")
        if default is None:
            action = literal_of(given.get("action", ABSENT))[1]
            default = {"store_true": Literal(False), "store_false": Literal(True)}.get(action)
        options.setdefault(name, Option(name, default))


def item_of_list(base: Items, key: Any, text: str) -> Value:
    if isinstance(key, int) and -len(base.items) <= key < len(base.items):
        return base.items[key]
    return choose(list(base.items)) if key is None and base.items else Unknown(text)


def settings_by_name(value: Value, name: str) -> Value:
    """A value that is not known, but called settings: it is a configuration by that name."""
    if not SETTINGS.search(name.rpartition(".")[2]):
        return value
    root = value
    while isinstance(root, (Item, Element)):
        root = root.base
    is_parsed = (
        isinstance(root, Call)
        and isinstance(root.callee, Member)
        and root.callee.name.startswith("parse")
    )
    if isinstance(value, (Item, Element, Unknown)) and not is_parsed:
        return Option(name, None, is_argument=False)
    return value


def is_placeholder(value: Value) -> bool:
    return isinstance(value, Absent) or (isinstance(value, Literal) and value.value is None)


def merged(table: Dict, value: Value, *, is_sure: bool = True) -> Dict:
    """A dictionary after `{**table, **value}`.   is_sure: False where that may not happen."""
    options = [option for option in options_of(value) if not is_placeholder(option)]
    if len(options) > 1 and any(isinstance(plain(option), Dict) for option in options):
        is_sure = False
    for option in reversed(options):
        inner = plain(option)
        if not isinstance(inner, Dict):
            table = Dict(with_overrides(table, inner), (*table.rest, option))
            continue
        entries = dict(table.entries)
        if inner.rest:
            entries = with_overrides(table, inner.rest[0])
        for key, item in inner.entries.items():
            old = entries.get(key, ABSENT)
            entries[key] = item if is_sure else choose([item, old])
        table = Dict(entries, (*table.rest, *inner.rest))
    return table


def with_overrides(table: Dict, rest: Value) -> dict[str, Value]:
    """Entries that a mapping of unknown keys may replace."""
    entries: dict[str, Value] = {}
    for key, value in table.entries.items():
        if isinstance(rest, Argument) and rest.is_rest:
            entries[key] = Fallback(Option(key), value)
        else:
            entries[key] = Fallback(Item(rest, key), value)
    return entries


def annotation_names(annotation: ast.expr | None) -> list[str]:
    """The class names of an annotation: of `Optional[pkg.A]`, `A | None`, `"A"`."""
    if annotation is None:
        return []
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return annotation_names(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            return []
    if isinstance(annotation, ast.BinOp):
        return annotation_names(annotation.left) + annotation_names(annotation.right)
    if isinstance(annotation, ast.Subscript):
        inner = (
            annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        )
        found = list[str]()
        for part in inner:
            found += annotation_names(part)
        return found
    name = dotted_name(annotation)
    return [name] if name else []


def is_missing_test(test: ast.expr, name: str) -> bool:
    """Whether a test holds where a value was not given: `x is None`, `not x`, `"k" not in d`, `not
    hasattr(...)`."""
    if isinstance(test, ast.BoolOp):
        return any(is_missing_test(part, name) for part in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return mentions(test.operand, name)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], ast.NotIn):
            return mentions(test.left, name)
        if isinstance(test.ops[0], (ast.Is, ast.Eq)):
            other = test.comparators[0]
            return (
                isinstance(other, ast.Constant)
                and other.value is None
                and mentions(test.left, name)
            )
    return False


def is_given_test(test: ast.expr, name: str) -> bool:
    """Whether a test holds where a value was given: `x`, `x is not None`."""
    return bool(name) and (dotted_name(test) == name or is_none_test(test, name))


def is_none_test(test: ast.expr, name: str) -> bool:
    """`x is not None`"""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.IsNot):
        return False
    other = test.comparators[0]
    is_none = isinstance(other, ast.Constant) and other.value is None
    return is_none and len(test.ops) == 1 and dotted_name(test.left) == name


def mentions(node: ast.AST, name: str) -> bool:
    last = name.rpartition(".")[2]
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and part.value == last:
            return True
        if dotted_name(part) == name:
            return True
    return False
