"""What a recorded value holds: texts and numbers, and where they stand."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from parity.goldens.verdict import equal

Path = tuple[Any, ...]
TextPair = tuple[str, str]  # an old one and the new one in its place
Parting = tuple[Path, Any, Any]  # where two values part, and what each holds there
Same = Callable[[Any, Any], bool]
NOT_FLOATS = (str, int, bool, type(None))


def leaves(value: Any, path: Path = (), kind: type = str) -> Iterator[tuple[Path, Any]]:
    """Every string in a value, or what else it holds of this kind, and where it stands."""
    if type(value) is kind:
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, (*path, key), kind)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from leaves(part, (*path, place), kind)


def texts_in(value: Any) -> list[str]:
    return [text for _, text in leaves(value)]


def numbers_in(value: Any) -> set[int]:
    return {number for _, number in leaves(value, kind=int)}


def partings(old: Any, new: Any, path: Path = (), same: Same = equal) -> Iterator[Parting]:
    """Every place where two values part: the deepest that both have."""
    if same(old, new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        for key in old:
            yield from partings(old[key], new[key], (*path, key), same)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new)):
            yield from partings(one, other, (*path, place), same)
    else:
        yield path, old, new


class Absent:
    """Stands where one of two values has nothing."""

    def __repr__(self) -> str:
        return "(nothing)"


ABSENT = Absent()


def first_parting(old: Any, new: Any, path: Path = ()) -> Parting | None:
    """The first place where two values part, for a reader: also within lists of other lengths and
    mappings of other keys."""
    if equal(old, new):
        return None
    found: Iterator[Parting | None] = iter(())
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        found = (
            first_parting(old.get(key, ABSENT), new.get(key, ABSENT), (*path, key)) for key in keys
        )
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        pairs = enumerate(itertools.zip_longest(old, new, fillvalue=ABSENT))
        found = (first_parting(one, other, (*path, place)) for place, (one, other) in pairs)
    return next((one for one in found if one is not None), (path, old, new))


def texts_apart(old: Any, new: Any) -> list[TextPair] | None:
    """The texts that differ, where nothing else does; None where something else differs, too."""
    found = []
    for _, one, other in partings(old, new):
        if not (isinstance(one, str) and isinstance(other, str)):
            return None
        found.append((one, other))
    return found


def moved_parts(old: Any, new: Any, same: Same = equal) -> list[Any]:
    """What stands in another entry of a list, or of a mapping, where that is all that differs:
    whole entries, or of each the same fields, such as the answer beside what was asked. Nothing
    where no one order of the entries makes one value the other."""
    found = list(partings(old, new, (), same))
    place = entry_place([path for path, _, _ in found])
    fields: dict[Path, dict[Path, tuple[Any, Any]]] = {}
    for path, *values in found:
        fields.setdefault(path[: place + 1], {})[path[place + 1 :]] = tuple(values)
    entries = [(value_at(old, path), value_at(new, path)) for path in fields]
    parts = [list(zip(*of_entry.values())) for of_entry in fields.values()]
    is_of_same_fields = len({tuple(of_entry) for of_entry in fields.values()}) == 1
    for pairs in (entries, parts if is_of_same_fields else []):
        before, after = ([list_of(pair[side]) for pair in pairs] for side in (0, 1))
        if has_same_parts(before, after, same):
            return before
    return []


def entry_place(paths: Sequence[Path]) -> int:
    """Which key of a path names the entry: the first index; without one the last key."""
    for path in paths:
        for place, key in enumerate(path):
            if isinstance(key, int):
                return place
    return max(0, min(map(len, paths), default=1) - 1)


def value_at(value: Any, path: Path) -> Any:
    return functools.reduce(operator.getitem, path, value)


def list_of(part: Any) -> Any:
    return list(part) if isinstance(part, tuple) else part


def has_same_parts(old: Any, new: Any, same: Same = equal) -> bool:
    """Whether two lists hold the same parts, in whatever order: those of one name by size."""
    if not (isinstance(old, list) and isinstance(new, list)) or len(old) != len(new):
        return False
    return len(old) > 1 and all(map(same, sorted(old, key=content), sorted(new, key=content)))


def content(thing: Any) -> tuple[str, list[float]]:
    """What a thing holds beside its floats, as its name, and those."""
    floats = list(leaves(thing, kind=float))
    others = [leaf for kind in NOT_FLOATS for leaf in leaves(thing, (), kind)]
    return repr([others, [path for path, _ in floats]]), [number for _, number in floats]


def lists_apart(old: Any, new: Any, path: Path = ()) -> Iterator[Parting]:
    """Every pair of lists of one length at one place of two values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        for key in old:
            yield from lists_apart(old[key], new[key], (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        yield path, old, new
        for place, (one, other) in enumerate(zip(old, new)):
            yield from lists_apart(one, other, (*path, place))


def stand_as(places: Sequence[int], old: list[Any], new: list[Any], same: Same = equal) -> bool:
    """Whether what a list holds stands elsewhere on the new side: at these places."""
    if len(places) != len(old) or all(map(same, old, new)):
        return False
    return all(same(part, new[place]) for part, place in zip(old, places))


def resembles(one: str, other: str) -> bool:
    """Whether of two texts one is the beginning of the other, but for blanks around them."""
    one = one.strip()
    other = other.strip()
    return one.startswith(other) or other.startswith(one)
