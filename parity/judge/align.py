"""Rows of two recordings beside each other."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from parity.goldens.store import Case
from parity.judge.row import (
    Pairs,
    Row,
    prompt_around_pictures,
    prompt_of,
    prompt_with_pictures,
    shared_ends,
    unseen,
)

MOST_COMPARED = 10_000  # prompts with prompts: of more, the order has to do


def paired(old: Sequence[Row], new: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows side by side: in order, or, where the same prompts come in another order or some are
    missing, by prompt and images; of other images, by prompt; of other prompts, by messages, or by
    what the user says in them. Where one side has more rows, or half of those out of place are more
    like that of another index, by likeness of the prompts."""
    in_order = list(zip(old, new))
    for name_of in NAMES:
        names = list(map(name_of, old))
        new_names = list(map(name_of, new))
        if names == new_names:
            return in_order
        fewer, more = sorted((Counter(names), Counter(new_names)), key=Counter.total)
        if fewer and fewer <= more:
            return paired_by_name(old, new, names, new_names)
    texts = list(map(user_text, old))
    new_texts = list(map(user_text, new))
    if len({*texts}) == len(old) == len(new) and {*texts} == {*new_texts}:
        return paired_by_name(old, new, texts, new_texts)
    if len(old) * len(new) > MOST_COMPARED:
        return in_order
    if is_of_other_kind(old, new) or in_another_order(old, new):
        return by_likeness(old, new)
    return in_order


def messages(row: Row) -> Hashable:
    """No row is the same as one of no chat."""
    chat = row.get("messages")
    return (json.dumps(chat, ensure_ascii=False), bool(row.get("images"))) if chat else object()


def user_text(row: Row) -> Hashable:
    """What the user says in a chat, or a prompt that is none; no row without a text is like any."""
    chat = row.get("messages")
    if not chat:
        text = row.get("prompt_text")
        return object() if text is None else (text, bool(row.get("images")))
    turns = [turn for turn in chat if isinstance(turn, Mapping) and turn.get("role") == "user"]
    text = "".join(itertools.chain.from_iterable(map(texts_of, turns)))
    return (text, bool(row.get("images"))) if text else object()


def texts_of(turn: Mapping[str, Any]) -> list[str]:
    content = turn.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part]


NAMES: tuple[Callable[[Row], Any], ...] = (
    prompt_with_pictures,
    prompt_of,
    prompt_around_pictures,
    messages,
)


def is_of_other_kind(old: Sequence[Row], new: Sequence[Row]) -> bool:
    """Whether one side has more rows, or images in other rows."""
    if len(old) != len(new):
        return True
    return any(bool(a.get("images")) != bool(b.get("images")) for a, b in zip(old, new))


def by_likeness(old: Sequence[Row], new: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Each row of the side that has fewer, and the row of the other whose prompt is its own, or
    most like it."""
    fewer, more = (old, new) if len(old) < len(new) else (new, old)
    left = list(range(len(more)))
    chosen = dict[int, int]()
    for is_exact in (True, False):
        for number, row in enumerate(fewer):
            if number in chosen:
                continue
            likest = most_like(row, more, left, is_exact=is_exact)
            if likest is not None:
                chosen[number] = likest
                left.remove(likest)
    pairs = list(chosen.items())
    if fewer is not old:
        pairs = [(other, one) for one, other in pairs]
    return [(old[one], new[other]) for one, other in sorted(pairs)]


def most_like(row: Row, rows: Sequence[Row], left: Sequence[int], *, is_exact: bool) -> int | None:
    """The index, of those that are left, whose prompt is most like a row's.   is_exact: only one
    that is the same."""
    if is_exact:
        left = [k for k in left if rows[k]["prompt_ids"] == row["prompt_ids"]]
    return max(left, key=lambda k: shared_count(row, rows[k]), default=None)


def in_another_order(old: Sequence[Row], new: Sequence[Row]) -> bool:
    """Whether two prompts or more, and half of those that are not in their place unchanged, are
    more like the prompt of another index than like that of their own."""
    elsewhere = moved = 0
    for row, own in zip(old, new):
        if row["prompt_ids"] == own["prompt_ids"]:
            continue
        moved += 1
        most = max(shared_count(row, other) for other in new)
        elsewhere += most > shared_count(row, own)
    return elsewhere > 1 and elsewhere * 2 >= moved


def shared_count(one: Row, other: Row) -> tuple[int, int]:
    """How many ids two prompts share, less those of the longer one: 0 where they are the same, the
    less the less they are alike; of as many, how many they begin and end with."""
    ids = one["prompt_ids"]
    other_ids = other["prompt_ids"]
    shared = counts_of(prompt_of(one)) & counts_of(prompt_of(other))
    return shared.total() - max(len(ids), len(other_ids)), sum(shared_ends(ids, other_ids))


@functools.lru_cache(1024)
def counts_of(ids: tuple[int, ...]) -> Counter[int]:
    return Counter(ids)


def paired_by_name(
    old: Sequence[Row], new: Sequence[Row], names: Sequence[Any], new_names: Sequence[Any]
) -> list[tuple[Row, Row]]:
    left = list(range(len(new)))
    found = []
    for row, name in zip(old, names):
        index = next((k for k in left if new_names[k] == name), None)
        if index is not None:
            left.remove(index)
            found.append((row, new[index]))
    return found


def has_same_ids(pairs: Pairs) -> bool:
    """As far as they were seen."""
    for old, new in pairs:
        if old["output_ids"] != new["output_ids"] and not unseen(old, new):
            return False
    return True


def same_ids(old: Case, new: Case) -> bool:
    if len(old.rows) != len(new.rows):
        return False
    return has_same_ids(paired(old.rows, new.rows))
