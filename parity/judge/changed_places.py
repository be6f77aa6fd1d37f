"""Values whose parts have changed places: whole answers, or parts of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import Cause, equal
from parity.judge.endings import leaves, texts_apart, texts_in
from parity.judge.inquiry import Inquiry
from parity.judge.naming import named_cause
from parity.judge.row import text_of

IN_ORDER = "put back in order, the values are the same"


def permuted(old: Any, new: Any) -> list[int] | None:
    """Where the parts of a list come from, if they are the same in another order; of a value that
    holds such lists, the first one's. None where anything else differs."""
    if is_equally_long(old, new):
        places = places_of(old, new)
        if places is not None:
            return places
        fields = exchanged(old, new)
        if fields is not None:
            return permuted(*fields)
        if len(old) != 1:  # an order within an answer is not one of answers
            return None
    found = [permuted(*pair) for pair in unequal_parts(old, new)]
    return found[0] if found and None not in found else None


def unequal_parts(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """Parts that stand at the same place of two values, and differ; none of other kinds."""
    pairs: list[tuple[Any, Any]] = []
    if is_equally_long(old, new):
        pairs = list(zip(old, new))
    elif has_same_keys(old, new):
        pairs = [(old[key], new[key]) for key in old]
    return [pair for pair in pairs if not equal(*pair)]


def is_equally_long(old: Any, new: Any) -> bool:
    return isinstance(old, list) and isinstance(new, list) and len(old) == len(new)


def has_same_keys(old: Any, new: Any) -> bool:
    is_mapping = isinstance(old, Mapping) and isinstance(new, Mapping)
    return is_mapping and old.keys() == new.keys()


def places_of(old: Sequence[Any], new: Sequence[Any]) -> list[int] | None:
    """Where each part of `new` stands in `old`; None where one is not there."""
    left = list(range(len(old)))
    places = []
    for part in new:
        place = next((k for k in left if equal(old[k], part)), None)
        if place is None:
            return None
        left.remove(place)
        places.append(place)
    return places


def exchanged(old: Sequence[Any], new: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """Of records that stand in their order, the fields that differ, if others are the same: answers
    may have been put into the wrong ones."""
    if not old or not all(has_same_keys(old[0], part) for part in (*old, *new)):
        return None
    names = [name for name in old[0] if is_other_field(name, old, new)]
    if not 0 < len(names) < len(old[0]):
        return None
    before = [picked_fields(part, names) for part in old]
    after = [picked_fields(part, names) for part in new]
    return before, after


def is_other_field(name: Any, old: Sequence[Any], new: Sequence[Any]) -> bool:
    return any(not equal(a[name], b[name]) for a, b in zip(old, new))


def picked_fields(record: Mapping[Any, Any], names: Sequence[Any]) -> list[Any]:
    return [record[name] for name in names]


def shuffled(old: Any, new: Any) -> bool:
    """Whether the texts and numbers of a list are all there, and some stand in another of its
    parts."""
    if has_same_keys(old, new):
        pairs = unequal_parts(old, new)
        return bool(pairs) and all(shuffled(*pair) for pair in pairs)
    if not is_equally_long(old, new) or len(old) < 2:
        return False
    if not equal(parts_of(old), parts_of(new)):
        return False
    return any(not equal(parts_of(a), parts_of(b)) for a, b in zip(old, new))


def parts_of(value: Any) -> list[Any]:
    """The texts and the numbers of a value, without an order."""
    numbers = [number for _, number in leaves(value, kind=float)]
    return [sorted(texts_in(value)), sorted(numbers)]


def answers_moved(old: Case, new: Case) -> bool:
    """Whether all texts that differ, however deep, stand at another's place, and each is how some
    answer begins: parts of one answer are not, but for its first."""
    moved = texts_apart(old.value, new.value)
    texts = [text for text, _ in moved]
    new_texts = [text for _, text in moved]
    answers = [text_of(row).lstrip() for row in old.rows]
    if not moved or not all(begins_some(text, answers) for text in texts):
        return False
    return sorted(texts) == sorted(new_texts)


def begins_some(text: str, answers: Sequence[str]) -> bool:
    bare = text.strip()
    return bool(bare) and any(answer.startswith(bare) for answer in answers)


def order_of_answers(old: Case, new: Case) -> list[int] | None:
    """Where whole answers come from. Of one request there is no order."""
    return None if len(old.rows) == 1 else permuted(old.value, new.value)


def of_order(places: Sequence[int] | None, proof: str) -> Cause:
    return named_cause("batch.order", "confirmed", f"they come as {places}", proof)


def in_other_places(inquiry: Inquiry) -> Cause | None:
    """Parts of answers that stand in other ones."""
    old = inquiry.old
    new = inquiry.new
    if len(old.rows) < 2:
        return None
    if not shuffled(old.value, new.value) and not answers_moved(old, new):
        return None
    proof = "all that the value held is there, and stands elsewhere"
    return named_cause("batch.order", "likely", "parts of the value have changed places", proof)
