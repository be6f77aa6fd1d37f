"""Values whose parts have changed places: whole answers, or parts of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parity.golden import Case
from parity.judge.endings import leaves
from parity.judge.inquiry import Inquiry
from parity.judge.naming import named_cause
from parity.judge.row import text_of
from parity.verdict import Cause, equal

IN_ORDER = "put back in order, the values are the same"


def permuted(old: Any, new: Any) -> list[int] | None:
    """Where the parts of a list come from, if they are the same in another order; of a value that
    holds such lists, the first one's. None where anything else differs."""
    pairs: list[tuple[Any, Any]] = []
    if is_equally_long(old, new):
        if (places := places_of(old, new)) is not None:
            return places
        if (fields := exchanged(old, new)) is not None:
            return permuted(*fields)
        # An order within an answer is not one of answers.
        pairs = list(zip(old, new)) if len(old) == 1 else []
    elif has_same_keys(old, new):
        pairs = [(old[key], new[key]) for key in old]
    found = [permuted(one, other) for one, other in pairs if not equal(one, other)]
    return found[0] if found and None not in found else None


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
    pairs = list(zip(old, new))
    names = [name for name in old[0] if not all(equal(a[name], b[name]) for a, b in pairs)]
    if not 0 < len(names) < len(old[0]):
        return None
    mine, theirs = ([[part[name] for name in names] for part in side] for side in (old, new))
    return mine, theirs


def shuffled(old: Any, new: Any) -> bool:
    """Whether the texts and numbers of a list are all there, and some stand in another of its
    parts."""
    if has_same_keys(old, new):
        pairs = [(old[key], new[key]) for key in old if not equal(old[key], new[key])]
        return bool(pairs) and all(shuffled(*pair) for pair in pairs)
    if not is_equally_long(old, new) or len(old) < 2 or not equal(parts_of(old), parts_of(new)):
        return False
    return any(not equal(parts_of(a), parts_of(b)) for a, b in zip(old, new))


def parts_of(value: Any) -> list[Any]:
    """The texts and the numbers of a value, without an order."""
    return [sorted(part for _, part in leaves(value, kind=kind)) for kind in (str, float)]


def answers_moved(old: Case, new: Case) -> bool:
    """Whether all texts that differ, however deep, stand at another's place, and each is how some
    answer begins: parts of one answer are not, but for its first."""
    mine, theirs = (dict(leaves(case.value)) for case in (old, new))
    moved = [(text, theirs[path]) for path, text in mine.items() if theirs.get(path, text) != text]
    told = [text_of(row).lstrip() for row in old.rows]
    if not moved or not all(begins_some(text, told) for text, _ in moved):
        return False
    return sorted(a for a, _ in moved) == sorted(b for _, b in moved)


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
    old, new = inquiry.old, inquiry.new
    if len(old.rows) < 2 or not (shuffled(old.value, new.value) or answers_moved(old, new)):
        return None
    proof = "all that the value held is there, and stands elsewhere"
    return named_cause("batch.order", "likely", "parts of the value have changed places", proof)
