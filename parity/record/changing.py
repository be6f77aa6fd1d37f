"""Parts of a value that are others each time the code runs: times, ids, names of files. They are not compared.

A part is {"at": where it stands in the value}, of a text also {"before", "after"}: what it begins and ends with. What
was raised instead of a value stands at "raised"; addresses in it, and the folder of a file, are never compared.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parity.golden import Case
from parity.verdict import equal

Part = Mapping[str, Any]
WORD_ENDS = re.compile(r"[\s/\"'(),=\[\]{}]")
OF_THIS_RUN = re.compile(
    r"(?<=\bat )0x[0-9a-f]+|\b0x[0-9a-f]{9,16}\b"  # <object at 0x7f…>, and long ones elsewhere
    r"|(?<=<)[\w.]+\.(?=\w+ object at 0x)|(?<=<class ')[\w.]+\.(?=\w+'>)"  # the module, which may have moved
    r"|\b[0-9a-f]{12}/",  # the folder that a file of the arguments is called by (observe.by_name)
    re.IGNORECASE,
)
DAY_OR_HOUR = re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d(:\d\d)?")  # the same in two runs, and not tomorrow


def told(case: Case) -> Any:
    """A case's value, or what it raised."""
    return case.value if case.raised is None else {"raised": case.raised}


def as_recorded(old: Case, new: Case) -> Case:
    """The new case, with what changes from run to run as the old one has it, where both are of that form."""
    kept = unchanged(old.changing, told(old), told(new))
    if new.raised is None:
        return dataclasses.replace(new, value=kept)
    raised = kept["raised"]
    alike = old.raised is not None and OF_THIS_RUN.sub("", old.raised) == OF_THIS_RUN.sub("", raised)
    return dataclasses.replace(new, raised=old.raised if alike else raised)


def changing(values: Sequence[Any]) -> list[Part]:
    """Where the values of one code, run again, differ. Raises ValueError where they differ in more than texts and
    numbers."""
    return list(parts(values, ()))


def parts(values: Sequence[Any], at: tuple[str | int, ...]) -> Iterator[Part]:
    first, *others = values
    kinds = {kind_of(value) for value in values}
    if kinds == {dict} and all(other.keys() == first.keys() for other in others):
        for key in first:
            yield from parts([value[key] for value in values], (*at, key))
    elif kinds == {list} and all(len(other) == len(first) for other in others):
        for place in range(len(first)):
            yield from parts([value[place] for value in values], (*at, place))
    elif kinds == {float} and not all(
        other == first if isinstance(first, int) else equal(first, other, 1e-6, 1e-9) for other in others
    ):
        yield {"at": [*at]}
    elif kinds == {str} and len({*values}) > 1:
        before = shared_words(values)
        after = shared_words([text[len(before) :][::-1] for text in values])[::-1]
        yield {"at": [*at], "before": before, "after": after}
    elif len(kinds) > 1 or (kinds - {float, str} and not all(equal(first, other) for other in others)):
        raise ValueError(f"{place_name(at)} differs in shape")


def kind_of(value: Any) -> type:
    """dict, list, str, float for any number, or what else it is."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float
    return next((kind for kind in (dict, list, str) if isinstance(value, kind)), type(value))


def shared_words(texts: Sequence[str]) -> str:
    """The whole words that all texts begin with."""
    length = next((k for k, letters in enumerate(zip(*texts)) if len({*letters}) > 1), min(map(len, texts)))
    ends = [found.end() for found in WORD_ENDS.finditer(texts[0][:length])]
    return texts[0][: ends[-1]] if ends else ""


def place_name(at: Sequence[str | int]) -> str:
    return "value" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at)


def unchanged(known: Sequence[Part], old: Any, new: Any) -> Any:
    """The new value, with the old one's parts where both are of the form that such a part has."""
    for part in known:
        new = with_part(part, part["at"], old, new)
    return new


def with_part(part: Part, at: Sequence[str | int], old: Any, new: Any) -> Any:
    if not at:
        return old if alike(part, old) and alike(part, new) else new
    try:
        inner = with_part(part, at[1:], old[at[0]], new[at[0]])
    except (KeyError, IndexError, TypeError):
        return new  # of another shape, which is compared
    if isinstance(new, list):
        return [inner if place == at[0] else entry for place, entry in enumerate(new)]
    return {**new, at[0]: inner}


def alike(part: Part, value: Any) -> bool:
    if "before" not in part:
        return kind_of(value) is float
    before, after = (form_of(part[name]) for name in ("before", "after"))
    return isinstance(value, str) and bool(re.fullmatch(f"{before}.*{after}", value, re.S))


def form_of(text: str) -> str:
    """A pattern of this text on any day."""
    said, last = "", 0
    for found in DAY_OR_HOUR.finditer(text):
        said += re.escape(text[last : found.start()]) + re.sub(r"\d", r"\\d", found.group())
        last = found.end()
    return said + re.escape(text[last:])
