"""What a call finds and leaves in its object, and in lists and mappings that it is given.

A chat class keeps its conversation in `self`: what a call gives depends on the calls before it,
and what it leaves there is a part of what it gives. A golden holds both: `state` is what those
attributes were that are others than at the first call of any object of its class, or that the call
changes, and the value of a call that leaves something is {"returned": ..., "self.history": ...}.

    before = Held.of(given, first)     before the call
    before.state(changed)              place -> what was there
    before.left(changed)               place -> what is there now; None where it is gone
    before.not_held()                  place -> its type, of what changed and is no state

Places are "self.history", or an argument's name. State is made of texts, whole numbers, images and
lists, queues, mappings, sets and dataclasses of them. What holds anything else, such as a tensor or
a time, is none: it is neither put back nor compared. Arguments may hold numbers with fractions,
too: scores, which a call writes into rows.

A check has one object for all runs, which `AsMade` makes what it was before each of them. Lists and
mappings of modules are no part of a golden; `ModuleState` lets a check run a case again as it was.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

MOST = 20_000  # values in one place; a larger one is a data set, no state of a conversation
RETURNED = "returned"  # the key of what the function itself gave, beside what it left
SELF = "self."

Shape = list[Any]
NOTHING: Shape = [[]]  # the shape of a place that is not there
Outline = tuple[int, int]  # identity and length: tells most changes of what is no state


def shape_of(value: Any, has_fractions: bool = False) -> Shape | None:
    """Equal for equal states; None for what is no state. Images are told apart by identity.
    has_fractions: whether it may hold numbers with fractions."""
    found = Shape()
    rest = [value]
    kinds = (str, bool, int, float) if has_fractions else (str, bool, int)
    while rest:
        one = rest.pop()
        if len(found) > MOST:
            return None
        if one is None or isinstance(one, kinds):
            found.append(one)
        elif (inner := content_of(one)) is not None:
            found += [type(one), len(inner)]
            rest += inner
        elif hasattr(one, "getexif"):
            found.append(id(one))
        else:
            return None
    return found


def content_of(value: Any) -> list[Any] | None:
    """What a list, a mapping, a set or a dataclass holds; None for anything else."""
    if isinstance(value, Mapping):
        return [inner for entry in value.items() for inner in entry]
    if isinstance(value, (list, tuple, deque)):
        return list(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, name, None) for name in value.__dataclass_fields__]
    return None


def containers_in(value: Any) -> Iterator[int]:
    """Identities of the lists, mappings and dataclasses that a value is made of."""
    rest = [value]
    count = 0
    while rest and count < MOST:
        one = rest.pop()
        count += 1
        inner = content_of(one)
        if inner is not None:
            yield id(one)
            rest += inner


@dataclass(slots=True)
class Held:
    """What a call finds. arguments: its lists and mappings.   first: the shapes that attributes had
    at the first call of its class.   kept: attributes of its object.   lent: places that the object
    has from `AsMade.become` alone."""

    receiver: Any = None
    arguments: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, Shape | None] = field(default_factory=dict)
    first: Mapping[str, Shape | None] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    outlines: dict[str, Outline] = field(default_factory=dict)
    lent: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any],
        first: dict[type, dict[str, Shape | None]],
        keep: Callable[[Any], Any],
        lent: frozenset[str] = frozenset(),
    ) -> Held:
        """given: the arguments of a call by name.   first: class -> shapes of its attributes, which
        this call adds where there are none.   keep: makes plain data of a value."""
        held = cls(given.get("self"), lent=lent)
        held.arguments = {
            name: value for name, value in given.items() if isinstance(value, (list, dict))
        }
        values = dict(held.places())
        held.shapes = {place: held.shape_at(place, value) for place, value in values.items()}
        own = {place: shape for place, shape in held.shapes.items() if place.startswith(SELF)}
        held.first = first.setdefault(type(held.receiver), own)
        held.kept = {place: keep(values[place]) for place in own if own[place] is not None}
        none = [place for place in own if own[place] is None]
        held.outlines = {place: outline_of(values[place]) for place in none}
        return held

    def places(self) -> Iterator[tuple[str, Any]]:
        """(place, value) of all that may be state."""
        yield from self.arguments.items()
        for name, value in attributes_of(self.receiver).items():
            yield SELF + name, value

    def shape_at(self, place: str, value: Any) -> Shape | None:
        return shape_of(value, has_fractions=place in self.arguments)

    def changed(self, returned: Any) -> list[str]:
        """Places that hold something else behind the call, all of which it does not return; that it
        made, or took away."""
        values = dict(self.places())
        given_back = set(containers_in(returned))
        gone = self.shapes.keys() - values.keys()
        found = [place for place in gone if self.shapes[place] is not None]
        for place, value in values.items():
            before = self.shapes.get(place, NOTHING)
            after = self.shape_at(place, value)
            is_other = before is not None and after is not None and before != after
            if is_other and not is_given_back(value, given_back):
                found.append(place)
        return sorted(found)

    def state(self, changed: Iterable[str]) -> dict[str, Any]:
        """What those attributes were that this call, or one before it, changed."""
        apart = {place for place in self.kept if self.shapes[place] != self.first.get(place)}
        apart.update(place for place in changed if place in self.kept)
        return {place: self.kept[place] for place in sorted(apart)}

    def left(self, wanted: Iterable[str]) -> dict[str, Any]:
        """What is in these places now. Not of places that the object never had, nor of one that was
        lent to it and left as it was: its class has no such attribute."""
        values = dict(self.places())
        found = {}
        for place in wanted:
            is_own = place in self.shapes and place not in self.lent
            now = shape_of(values[place]) if place in values else NOTHING
            if is_own or self.shapes.get(place, NOTHING) != now:
                found[place] = values.get(place)
        return found

    def not_held(self) -> dict[str, str]:
        """Types of the attributes that this call changed, and no golden holds."""
        return {
            place: type(value).__name__
            for place, value in self.places()
            if place in self.outlines and self.outlines[place] != outline_of(value)
        }


def outline_of(value: Any) -> Outline:
    is_sized = isinstance(value, (list, tuple, deque, set, dict))
    return id(value), len(value) if is_sized else 0


def is_given_back(value: Any, given_back: set[int]) -> bool:
    """Whether a value, or each of the parts that it is made of, is among what a call returns."""
    parts = [part for part in content_of(value) or () if content_of(part) is not None]
    are_given_back = bool(parts) and given_back.issuperset(map(id, parts))
    return id(value) in given_back or are_given_back


def attributes_of(receiver: Any) -> dict[str, Any]:
    """Of an object of the observed code; a model's are no state of a conversation."""
    if receiver is None or hasattr(receiver, "named_parameters"):
        return {}
    found = dict(getattr(receiver, "__dict__", {}))
    for kind in type(receiver).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(receiver, name):
                found[name] = getattr(receiver, name)
    return found


class AsMade:
    """An object as its factory made it: its names, and the content of its containers, which stay
    the same ones, since other objects may share them."""

    def __init__(self, receiver: Any) -> None:
        self.receiver = receiver
        self.names = set(attributes_of(receiver))
        self.values = {
            name: (value, copy.deepcopy(value))
            for name, value in attributes_of(receiver).items()
            if shape_of(value) is not None
        }
        self.ours = set[str]()  # names that a golden had us set

    def become(self, state: Mapping[str, Any], left: Sequence[str] = ()) -> frozenset[str]:
        """Let the object be what it was when a case was recorded; returns the places that it has
        from here alone. Texts and numbers that no golden names stay: they may say that a model is
        loaded.   left: places that the call left something in; those without a state it made."""
        wanted = {place.removeprefix(SELF): value for place, value in state.items()}
        made = {place.removeprefix(SELF) for place in left} - wanted.keys()
        self.ours |= wanted.keys()
        for name, now in attributes_of(self.receiver).items():
            is_new = name not in self.names and shape_of(now) is not None
            if is_new and (name in self.ours | made or content_of(now) is not None):
                object.__delattr__(self.receiver, name)
        # What it keeps under another name is what the calls before this one left, or is lost.
        has_other_names = any(wanted[name] for name in wanted.keys() - self.names)
        for name, (value, content) in self.values.items():
            now = attributes_of(self.receiver).get(name, NOTHING)
            is_container = content_of(content) is not None and not has_other_names
            is_free = is_container or name in self.ours or now is NOTHING
            if name in wanted or (is_free and shape_of(now) is not None):
                self.set(name, filled(value, wanted.pop(name, content)))
        lent = set()
        for name, value in wanted.items():
            if callable(getattr(type(self.receiver), name, None)):
                continue  # a method of this name, now
            with contextlib.suppress(AttributeError):  # a class of fixed slots, or a property
                self.set(name, value)
                lent.add(SELF + name)
        return frozenset(lent - {SELF + name for name in self.names})

    def set(self, name: str, value: Any) -> None:
        object.__setattr__(self.receiver, name, value)


class ModuleState:
    """What modules keep in lists, mappings and sets of plain data, each container once. `recall`
    puts it back in place; a number, an object or a cache of functools stays as it is."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self.kept: dict[int, tuple[Any, Any]] = {}
        for module in modules:
            for name, value in list(vars(module).items()):
                is_container = type(value) in (list, deque, dict, set)
                if is_container and not name.startswith("__") and is_plain(value):
                    self.kept[id(value)] = value, copy.deepcopy(value)

    def recall(self) -> None:
        for container, content in self.kept.values():
            filled(container, content)


def is_plain(value: Any) -> bool:
    """Whether a value is of texts, numbers and Python's own containers alone: to look at it, and to
    copy it, runs nobody's code."""
    rest = [value]
    count = 0
    while rest:
        one = rest.pop()
        count += 1
        if count > MOST:
            return False
        if type(one) in (list, tuple, deque, dict, set, frozenset):
            rest += content_of(one) or []
        elif type(one) not in (str, bytes, bool, int, float, type(None)):
            return False
    return True


def filled(container: Any, content: Any) -> Any:
    """The container with this content; a copy of the content, where it is of another kind."""
    content = copy.deepcopy(content)
    is_row = isinstance(container, (list, deque)) and isinstance(content, (list, deque))
    if is_row or any(isinstance(container, k) and isinstance(content, k) for k in (dict, set)):
        container.clear()
        (container.extend if is_row else container.update)(content)
        return container
    is_tuple = type(container) is tuple and isinstance(content, list)
    return tuple(content) if is_tuple else content
