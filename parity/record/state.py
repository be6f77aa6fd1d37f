"""What a call finds and leaves in its object, and in lists and mappings that it is given.

A chat class keeps its conversation in `self`: what a call gives depends on the calls before it,
and what it leaves there is a part of what it gives. A golden holds both: `state` is what those
attributes were that change from call to call, and the value of a call that leaves something is
{"returned": ..., "self.history": ...}.

    before = Held.of(given, first)     before the call
    before.state()                     place -> what was there, of an attribute that changes
    before.left(value, asked=None)     place -> what is there now
    before.not_held()                  place -> its type, of what changed and is no state

Places are "self.history", or an argument's name. State is made of texts, whole numbers, images and
lists, sets, queues, mappings and dataclasses of them. What holds anything else, such as a tensor or
a time, is none: it is neither put back nor compared.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

MOST = 20_000  # values in one place; a larger one is a data set, no state of a conversation
RETURNED = "returned"  # the key of what the function itself gave, beside what it left

Shape = list[Any]
Outline = tuple[int, int]  # identity and length: tells most changes of what is no state


def shape_of(value: Any) -> Shape | None:
    """Equal for equal states; None for what is no state. Images are told apart by identity."""
    found = Shape()
    rest = [value]
    while rest:
        one = rest.pop()
        if len(found) > MOST:
            return None
        if one is None or isinstance(one, (str, bool, int)):
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
    """What a list, a set, a mapping or a dataclass holds; None for anything else."""
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


class FirstSeen:
    """Shapes of the attributes of objects, as a first call found them."""

    def __init__(self) -> None:
        self._kept = dict[int, tuple[weakref.ref[Any], dict[str, Shape | None]]]()

    def of(self, value: Any, shapes: dict[str, Shape | None]) -> dict[str, Shape | None]:
        """Those of this object; these ones, where it was not seen before."""
        kept = self._kept.get(id(value))
        if kept is None or kept[0]() is not value:
            kept = weakref.ref(value), shapes
            self._kept[id(value)] = kept
        return kept[1]


@dataclass(slots=True)
class Held:
    """What a call finds. arguments: its lists and mappings.   kept: attributes of its object."""

    receiver: Any = None
    arguments: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, Shape | None] = field(default_factory=dict)
    first: Mapping[str, Shape | None] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    outlines: dict[str, Outline] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any], first: FirstSeen, keep: Callable[[Any], Any]) -> Held:
        """given: the arguments of a call by name.   keep: makes plain data of a value."""
        held = cls(given.get("self"))
        held.arguments = {
            name: value for name, value in given.items() if isinstance(value, (list, dict))
        }
        held.shapes = {place: shape_of(value) for place, value in held.places()}
        own = {place: shape for place, shape in held.shapes.items() if is_attribute(place)}
        none = {place for place, shape in own.items() if shape is None}
        held.outlines = {place: outline_of(v) for place, v in held.places() if place in none}
        if own:
            held.first = first.of(held.receiver, own)
        values = dict(held.places())
        held.kept = {place: keep(values[place]) for place in own if own[place] is not None}
        return held

    def places(self) -> Iterator[tuple[str, Any]]:
        """(place, value) of all that may be state."""
        yield from self.arguments.items()
        for name, value in attributes_of(self.receiver).items():
            yield f"self.{name}", value

    def changed(self, returned: Any) -> list[str]:
        """Places where the call left something else, and does not return it."""
        found = []
        given_back = set(containers_in(returned))
        for place, value in self.places():
            before = self.shapes.get(place)
            after = shape_of(value)
            own = {id(value), *map(id, content_of(value) or ())}
            is_other = before is not None and after is not None and before != after
            if is_other and given_back.isdisjoint(own):
                found.append(place)
        return sorted(found)

    def state(self, changed: Iterable[str]) -> dict[str, Any]:
        """What those attributes were that this call, or one before it, changed."""
        apart = {place for place in self.kept if self.shapes[place] != self.first.get(place)}
        apart.update(place for place in changed if place in self.kept)
        return {place: self.kept[place] for place in sorted(apart)}

    def left(self, wanted: Iterable[str]) -> dict[str, Any]:
        """What is in these places now, as far as they are there."""
        values = dict(self.places())
        return {place: values[place] for place in wanted if place in values}

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


def is_attribute(place: str) -> bool:
    return place.startswith("self.")


def attributes_of(receiver: Any) -> dict[str, Any]:
    """Of an object of the observed code; a model's are no state of a conversation."""
    is_model = receiver is None or hasattr(receiver, "named_parameters")
    return {} if is_model else dict(getattr(receiver, "__dict__", {}))


def put_back(receiver: Any, state: Mapping[str, Any]) -> None:
    """Let the attributes of an object be what they were, those that it has."""
    has = attributes_of(receiver)
    for place, value in state.items():
        name = place.partition(".")[2]
        if name in has:
            setattr(receiver, name, filled(has[name], value))


def filled(own: Any, value: Any) -> Any:
    """What was held, in a container of the kind that the object has, such as a queue."""
    is_row = isinstance(own, (list, deque)) and isinstance(value, list)
    if not is_row and not any(
        isinstance(own, kind) and isinstance(value, kind) for kind in (dict, set)
    ):
        return value
    made = copy.copy(own)  # keeps a length, or a default
    made.clear()
    (made.extend if is_row else made.update)(value)
    return made
