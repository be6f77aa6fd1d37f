"""What an expression may be, as far as the source says: the domain of the evaluator."""

from __future__ import annotations

import ast
from collections.abc import Mapping as Dictionary
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.scan.index import Class, Module, Scope


@dataclass(frozen=True, eq=False)
class Value:
    """Base of all."""


@dataclass(frozen=True, eq=False)
class Literal(Value):
    """A constant of the source, or a list or dictionary of such."""

    value: Any


@dataclass(frozen=True, eq=False)
class Unknown(Value):
    """Computed, in a way that is not followed.   parts: what it is computed from."""

    text: str = ""
    parts: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Symbol(Value):
    """A name from outside the repository, dotted: "transformers.AutoModel"."""

    name: str


@dataclass(frozen=True, eq=False)
class Argument(Value):
    """A parameter of a function.   rest: `*args` or `**kwargs`."""

    scope: Scope
    name: str
    default: Value | None = None
    is_rest: bool = False


@dataclass(frozen=True, eq=False)
class Option(Value):
    """An option of a command line, or a field of a settings object that is filled elsewhere."""

    name: str
    default: Value | None = None
    is_argument: bool = True  # False: of a configuration


@dataclass(frozen=True, eq=False)
class Member(Value):
    """An attribute of a value that is not known.   default: what its class says."""

    base: Value
    name: str
    default: Value | None = None


@dataclass(frozen=True, eq=False)
class Item(Value):
    """`base[key]`.   key: None where it is not known."""

    base: Value
    key: Any
    default: Value | None = None


@dataclass(frozen=True, eq=False)
class Element(Value):
    """One element of something that is iterated over."""

    base: Value


@dataclass(frozen=True, eq=False)
class Call(Value):
    """The result of a call that is not followed."""

    callee: Value
    node: ast.Call
    frame: Frame


@dataclass(frozen=True, eq=False)
class Dict(Value):
    """rest: mappings of which the keys are not known, in order."""

    entries: Dictionary[str, Value]
    rest: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Items(Value):
    """A list or a tuple."""

    items: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Instance(Value):
    """An object of a class of the repository.   node: the call that made it; None for `self`."""

    cls: Class
    node: ast.Call | None = None
    frame: Frame | None = None


@dataclass(frozen=True, eq=False)
class Function(Value):
    scope: Scope
    bound: Value | None = None


@dataclass(frozen=True, eq=False)
class ClassValue(Value):
    cls: Class


@dataclass(frozen=True, eq=False)
class ModuleValue(Value):
    module: Module


@dataclass(frozen=True, eq=False)
class Choice(Value):
    """One of several, by a branch."""

    options: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Fallback(Value):
    """A value where it is given, else the default: `x or d`, `d.get(k, v)`, `if k not in d: d[k] =
    v`."""

    value: Value
    default: Value


@dataclass(frozen=True, eq=False)
class Absent(Value):
    """The key or the attribute is not set."""


ABSENT = Absent()


@dataclass(frozen=True, eq=False)
class Effect:
    """A method that was called on an object for what it does to it: `model.half()`."""

    method: str
    node: ast.Call
    frame: Frame


@dataclass(frozen=True, eq=False)
class Changed(Value):
    """A value with attributes that were set on it, dotted ("tokenizer.padding_side"), and methods
    called on it."""

    base: Value
    attributes: Dictionary[str, Value] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, eq=False)
class Frame:
    """A scope, and what its parameters are where its caller is known.   depth: of calls that were
    followed."""

    scope: Scope
    values: Dictionary[str, Value | tuple[ast.expr, Frame]] = field(default_factory=dict)
    depth: int = 0


def is_literal(value: Value | None, *constants: Any) -> bool:
    """Whether a value is one of these constants."""
    inner = plain(value) if value is not None else None
    return isinstance(inner, Literal) and any(inner.value is constant for constant in constants)


def table_of(value: Value | None) -> Dict:
    """A value as a dictionary; an empty one where it is none."""
    inner = plain(value) if value is not None else None
    return inner if isinstance(inner, Dict) else Dict({})


def symbol_name(value: Value) -> str:
    """The dotted name of what is from outside the repository; "" of anything else."""
    inner = plain(value)
    return inner.name if isinstance(inner, Symbol) else ""


def options_of(value: Value) -> list[Value]:
    """The alternatives of a value, flat."""
    if isinstance(value, Choice):
        flat = list[Value]()
        for option in value.options:
            flat += options_of(option)
        return flat
    if isinstance(value, Fallback):
        return [*options_of(value.value), *options_of(value.default)]
    return [value]


def plain(value: Value) -> Value:
    """A value without what was set on it."""
    while isinstance(value, Changed):
        value = value.base
    return value


def is_same(one: Value, other: Value) -> bool:
    """Whether two values are surely equal."""
    if one is other:
        return True
    if isinstance(one, Literal) and isinstance(other, Literal):
        return type(one.value) is type(other.value) and bool(one.value == other.value)
    if isinstance(one, Symbol) and isinstance(other, Symbol):
        return one.name == other.name
    if isinstance(one, Argument) and isinstance(other, Argument):
        return one.scope is other.scope and one.name == other.name
    return False


def choose(options: list[Value]) -> Value:
    """One value of several: the value itself where all are the same."""
    different = list[Value]()
    for option in options:
        if not any(is_same(option, other) for other in different):
            different.append(option)
    if not different:
        return Unknown()
    return different[0] if len(different) == 1 else Choice(tuple(different))


def joined(tables: Sequence[Dict]) -> Dict:
    """One of several dictionaries, by a branch, as one: of each entry one of several values."""
    if len(tables) == 1:
        return tables[0]
    keys = {key for table in tables for key in table.entries}
    entries = {}
    for key in sorted(keys):
        entries[key] = choose([table.entries.get(key, ABSENT) for table in tables])
    return Dict(entries, tuple(rest for table in tables for rest in table.rest))


def literal_of(value: Value) -> tuple[bool, Any]:
    """(True, the constant) of a value that is known in full; else (False, None)."""
    value = plain(value)
    if isinstance(value, Literal):
        return True, value.value
    if isinstance(value, Items):
        found = []
        for item in value.items:
            is_known, constant = literal_of(item)
            if not is_known:
                return False, None
            found.append(constant)
        return True, found
    if isinstance(value, Dict) and not value.rest:
        entries = {}
        for key, item in value.entries.items():
            is_known, constant = literal_of(item)
            if not is_known:
                return False, None
            entries[key] = constant
        return True, entries
    return False, None
