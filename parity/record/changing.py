"""Parts of a value that change each time the code runs: times, ids, names of files.

They are not compared. A part is {"at": its place in the value}; of a text also {"before", "after"}:
what it begins and ends with. What was raised instead of a value stands at "raised". Addresses in
it, and the folder of a file, are never compared.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import equal, place_name
from parity.record.state import RETURNED

Part = Mapping[str, Any]
Place = tuple[str | int, ...]
WORD_ENDS = re.compile(r"[\s/\"'(),=\[\]{}]")
OF_THIS_RUN = re.compile(
    r"(?<=\bat )0x[0-9a-f]+|\b0x[0-9a-f]{9,16}\b"  # <object at 0x7f…>, and long ones elsewhere
    r"|(?<=<)[\w.]+\.(?=\w+ object at 0x)"  # a module, which may have moved
    r"|(?<=<class ')[\w.]+\.(?=\w+'>)"
    r"|\b[0-9a-f]{12}/",  # the folder that a file of the arguments is called by (values.by_name)
    re.IGNORECASE,
)
DAY_OR_HOUR = re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d(:\d\d)?")  # equal in two runs, but not later


def value_or_error(case: Case) -> Any:
    return case.value if case.raised is None else {"raised": case.raised}


def as_recorded(old: Case, new: Case) -> Case:
    """The new case, with what changes from run to run as in the old one, if it has that form; and
    with what the old call left where the new code has no such place."""
    new = with_places_of(old, new)
    kept = unchanged(old.changing, value_or_error(old), value_or_error(new))
    if new.raised is None:
        return dataclasses.replace(new, value=kept)
    raised = kept["raised"]
    if old.raised is not None and without_run(old.raised) == without_run(raised):
        raised = old.raised
    return dataclasses.replace(new, raised=raised)


def with_places_of(old: Case, new: Case) -> Case:
    """A new value in the form of the old one: "returned" beside the same places."""
    if new.raised is not None or not (old.left or new.left):
        return new
    made = new.value if new.left else {RETURNED: new.value}
    if not old.left:
        return dataclasses.replace(new, value=made[RETURNED])
    left = {place: made.get(place, old.value[place]) for place in old.left}
    return dataclasses.replace(new, value={RETURNED: made[RETURNED], **left})


def without_run(raised: str) -> str:
    """What was raised, without what is of one run alone."""
    return OF_THIS_RUN.sub("", raised)


# == Finding them ==


def changing(values: Sequence[Any]) -> list[Part]:
    """Where the values of one code, run again, differ. Raises ValueError where they differ in more
    than texts and numbers."""
    return list(parts_at(values, ()))


def parts_at(values: Sequence[Any], at: Place) -> Iterator[Part]:
    first = values[0]
    kind = common_kind(values)
    if kind is dict and all(value.keys() == first.keys() for value in values):
        keys = list(first)
    elif kind is list and len({len(value) for value in values}) == 1:
        keys = list(range(len(first)))
    else:
        yield from leaf_parts(values, kind, at)
        return
    for key in keys:
        yield from parts_at([value[key] for value in values], (*at, key))


def leaf_parts(values: Sequence[Any], kind: type | None, at: Place) -> Iterator[Part]:
    first, *others = values
    if kind is float:
        if not all(is_same_number(first, other) for other in others):
            yield {"at": [*at]}
    elif kind is str:
        if len({*values}) > 1:
            before = shared_words(values)
            backwards = [text[len(before) :][::-1] for text in values]
            after = shared_words(backwards)[::-1]
            yield {"at": [*at], "before": before, "after": after}
    elif kind is None or not all(equal(first, other) for other in others):
        raise ValueError(f"{place_name(at)} differs in shape")


def is_same_number(first: Any, other: Any) -> bool:
    """Whole numbers, such as a time in seconds, differ by their last digit already."""
    if isinstance(first, int):
        return bool(other == first)
    return equal(first, other, 1e-6, 1e-9)


def common_kind(values: Sequence[Any]) -> type | None:
    """The kind of all these values, if it is one."""
    kinds = {kind_of_part(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else None


def kind_of_part(value: Any) -> type:
    """dict, list, str, float for any number, or what else it is."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float
    for kind in (dict, list, str):
        if isinstance(value, kind):
            return kind
    return type(value)


def shared_words(texts: Sequence[str]) -> str:
    """The whole words that all texts begin with."""
    length = 0
    for characters in zip(*texts):
        if len({*characters}) > 1:
            break
        length += 1
    shared = texts[0][:length]
    ends = [found.end() for found in WORD_ENDS.finditer(shared)]
    return shared[: ends[-1]] if ends else ""


# == What they cover ==


def leaves_at(value: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """(place, value) of everything in a value that holds nothing else."""
    entries: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, (list, tuple)):
        entries = enumerate(value)
    else:
        yield at, value
    for key, entry in entries:
        yield from leaves_at(entry, (*at, key))


def covers_all(parts: Sequence[Part], value: Any) -> bool:
    """Whether no leaf of a value is compared, nor a word of one."""
    whole = {tuple(part["at"]) for part in parts if not has_words(part)}
    leaves = [place for place, _ in leaves_at(value)]
    return bool(leaves) and whole.issuperset(leaves)


def has_words(part: Part) -> bool:
    """Whether something of a part is compared: words that stand before or behind what changes."""
    return any(c.isalnum() for c in part.get("before", "") + part.get("after", ""))


def covered_texts(parts: Sequence[Part], value: Any) -> Iterator[str]:
    """What of the texts of a value is not compared."""
    leaves = dict(leaves_at(value))
    for part in parts:
        text = leaves.get(tuple(part["at"]))
        if isinstance(text, str):
            yield text[len(part.get("before", "")) : len(text) - len(part.get("after", ""))]


# == Leaving them out ==


def unchanged(known: Sequence[Part], old: Any, new: Any) -> Any:
    """The new value, with the old one's parts where both have the form of such a part."""
    for part in known:
        new = with_part(part, part["at"], old, new)
    return new


def with_part(part: Part, at: Sequence[str | int], old: Any, new: Any) -> Any:
    if not at:
        is_changing = has_form(part, old) and has_form(part, new)
        return old if is_changing else new
    key, *rest = at
    try:
        inner = with_part(part, rest, old[key], new[key])
    except (KeyError, IndexError, TypeError):
        return new  # of another shape, which is compared
    copy: Any = dict(new) if isinstance(new, dict) else list(new)
    copy[key] = inner
    return copy


def has_form(part: Part, value: Any) -> bool:
    if "before" not in part:
        return kind_of_part(value) is float
    if not isinstance(value, str):
        return False
    form = pattern_of(part["before"]) + ".*" + pattern_of(part["after"])
    return re.fullmatch(form, value, re.DOTALL) is not None


def pattern_of(text: str) -> str:
    """A pattern of this text on any day."""
    pattern = ""
    last = 0
    for found in DAY_OR_HOUR.finditer(text):
        pattern += re.escape(text[last : found.start()])
        pattern += re.sub(r"\d", r"\\d", found.group())
        last = found.end()
    return pattern + re.escape(text[last:])
