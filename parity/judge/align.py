"""Rows of two recordings beside each other, and prompts that follow from earlier answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from parity.golden import Case
from parity.judge.row import (
    Row,
    begins_call,
    decodes_of,
    is_drawn,
    prompt_around_pictures,
    prompt_with_pictures,
    same_prompt,
    shared_start,
    unseen,
    whole_prompt,
)
from parity.judge.stages.model import model_differences
from parity.judge.stages.sampling import sampling_differences
from parity.judge.stages.stop import stop_differences

Pairs = Sequence[tuple[Row, Row]]

# == Pairs ==


def paired(old: Sequence[Row], new: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows side by side: in order, or, where the same prompts come in another order or some are missing, by prompt and
    pictures; of other pictures, by prompt; of other prompts, by messages. Where one side has more rows, or most prompts
    are more like that of another place, by likeness of the prompts."""
    for name_of in (prompt_with_pictures, whole_prompt, prompt_around_pictures, messages):
        mine, theirs = ([name_of(row) for row in rows] for rows in (old, new))
        if mine == theirs:
            break
        fewer, more = sorted((Counter(mine), Counter(theirs)), key=Counter.total)
        if fewer and not fewer - more:
            return by_name(old, new, mine, theirs)
    elsewhere = len(old) != len(new) or any(bool(a.get("images")) != bool(b.get("images")) for a, b in zip(old, new))
    if len(old) * len(new) <= MOST_COMPARED and (elsewhere or in_another_order(old, new)):
        return by_likeness(old, new)
    return list(zip(old, new))


MOST_COMPARED = 10_000  # prompts with prompts: of more, the order has to do


def by_likeness(old: Sequence[Row], new: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Each row of the side that has fewer, and the row of the other whose prompt is its own, or most like it."""
    fewer, more = (old, new) if len(old) < len(new) else (new, old)
    left, chosen = list(range(len(more))), dict[int, int]()
    for exact in (True, False):
        for number, row in enumerate(fewer):
            places = [k for k in left if not exact or more[k]["prompt_ids"] == row["prompt_ids"]]
            if number not in chosen and places:
                chosen[number] = max(places, key=lambda k, row=row: likeness(row, more[k]))  # type: ignore[misc]
                left.remove(chosen[number])
    pairs = [(number, place) if fewer is old else (place, number) for number, place in chosen.items()]
    return [(old[one], new[other]) for one, other in sorted(pairs)]


def in_another_order(old: Sequence[Row], new: Sequence[Row]) -> bool:
    """Whether most prompts, all other ones, are more like the prompt of another place than like that of their own."""
    elsewhere = sum(max(likeness(a, other) for other in new) > likeness(a, b) for a, b in zip(old, new))
    return elsewhere * 2 > len(old)


def likeness(one: Row, other: Row) -> int:
    """How many ids two prompts share at their beginning and at their end."""
    mine, theirs = one["prompt_ids"], other["prompt_ids"]
    first = shared_start(mine, theirs)
    last = shared_start(mine[first:][::-1], theirs[first:][::-1])
    return first + last - max(len(mine), len(theirs))


def messages(row: Row) -> Any:
    return written(row["messages"]) if row.get("messages") else object()  # no row is the same as one of no chat


def by_name(
    old: Sequence[Row], new: Sequence[Row], mine: Sequence[Any], theirs: Sequence[Any]
) -> list[tuple[Row, Row]]:
    left, found = list(range(len(new))), []
    for row, name in zip(old, mine):
        place = next((k for k in left if theirs[k] == name), None)
        if place is not None:
            left.remove(place)
            found.append((row, new[place]))
    return found


def has_same_ids(pairs: Pairs) -> bool:
    """As far as they were seen."""
    return all(old["output_ids"] == new["output_ids"] or unseen(old, new) for old, new in pairs)


def same_ids(old: Case, new: Case) -> bool:
    return len(old.rows) == len(new.rows) and has_same_ids(paired(old.rows, new.rows))


# == Prompts that hold earlier answers ==


Answers = list[tuple[int, Row, Row]]  # the number of a pair, and its rows


def followers(pairs: Pairs) -> dict[int, dict[int, tuple[str, str]]]:
    """Numbers of the pairs whose prompts hold answers to the prompts before them, and differ as those answers do: a
    code that asks on with what it was told. Whatever made the first answer another one, the prompts are not it.
    Behind an answer that was asked for otherwise, and is another one, any prompt may follow from it.
    With it, by their own numbers, answers that the old code had cut by hand: what it held of them, and the new one."""
    found, others = dict[int, dict[int, tuple[str, str]]](), Answers()
    rendered: list[Any] = []  # by which pairs of templates equal prompts came
    told = Answers()  # by the call that is being looked at, whose other prompts were there before
    led = False  # by an answer that was asked for otherwise
    for number, (mine, theirs) in enumerate(pairs):
        if begins_call(mine):
            led = led or any(a["output_ids"] != b["output_ids"] and asked_otherwise((a, b)) for _, a, b in told)
            others, told = [*others, *told], Answers()
        ways = mine.get("template"), theirs.get("template")
        if same_prompt(mine, theirs):
            rendered.append(ways)
        elif led:
            found[number] = {}
        elif (held := follows_from(mine, theirs, others, alike=ways[0] == ways[1] or ways in rendered)) is not None:
            found[number] = held
        else:
            continue
        told.append((number, mine, theirs))
    return found


def follows_from(old: Row, new: Row, answers: Answers, *, alike: bool) -> dict[int, tuple[str, str]] | None:
    """Whether two prompts differ only where an answer stands in both, and what they hold of answers that were cut. Of
    an end of a prompt that was cut, the rest is to be within it; behind one that was asked for otherwise, anything may
    follow from it.   alike: their templates render alike."""
    before, after = old.get("prompt_text"), new.get("prompt_text")
    if not answers or (before is not None and before == after):
        return None
    told = [(a, b) for _, a, b in answers if a["output_ids"] != b["output_ids"] or a.get("text") != b.get("text")]
    texts = [pair for a, b in told for pair in as_decoded(a, b) if pair[0] != pair[1]]
    whole = [(number, *pair) for number, a, b in answers for pair in as_decoded(a, b)]
    if "messages" in old and "messages" in new and alike:
        before, after = written(old["messages"]), written(new["messages"])  # a template may leave parts of texts out
        texts = [(written(one)[1:-1], written(other)[1:-1]) for one, other in texts]
        whole = [(number, written(one)[1:-1], written(other)[1:-1]) for number, one, other in whole]
    elif before is None or after is None:  # ids that were put behind ids
        before, after = (words(row["prompt_ids"]) for row in (old, new))
        ids, whole = [(a["output_ids"], b["output_ids"]) for a, b in told], []
        texts = [(words(one[:end]), words(other[:end])) for one, other in ids for end in (None, -1)]  # the last, unread
    texts.sort(key=lambda pair: -min(map(len, pair)))
    texts += [(one, other) for one, _ in texts for _, other in texts]  # of another answer, where one is chosen
    otherwise, held = any(map(asked_otherwise, told)), dict[int, tuple[str, str]]()
    while before != after:
        first = shared_start(before, after)
        places = ((within(before, after, first, *pair), *pair) for pair in texts)
        at, one, other = next((found for found in places if found[0] >= 0), (-1, "", ""))
        if at >= 0 and otherwise:
            return held
        if at < 0 or before[at + len(one) :][:ALIKE] != after[at + len(other) :][:ALIKE]:
            cuts = ((cut_by_hand(before, after, first, *pair), pair[1], number) for number, *pair in whole)
            (at, one), other, number = next((c for c in cuts if c[0][0] >= 0), ((at, one), other, -1))
            held |= {number: (one, other)} if number >= 0 else {}
        if at < 0:
            break
        before, after = before[at + len(one) :], after[at + len(other) :]
    first = shared_start(before, after)
    last = shared_start(before[first:][::-1], after[first:][::-1])
    mine, theirs = (text[first : len(text) - last] for text in (before, after))
    cut = 0 in (first, last) and any(mine in one and theirs in other for one, other in texts if mine and theirs)
    return held if before == after or cut else None


def cut_by_hand(before: str, after: str, first: int, one: str, other: str) -> tuple[int, str]:
    """Where `after` holds a whole new answer around the first difference, and what `before` holds of the old one there:
    its beginning, behind which both go on alike; -1: nowhere."""
    at = after.find(other, max(0, first - len(other)), first + len(other)) if other else -1
    rest = after[at + len(other) :][:ALIKE]
    shared = shared_start(before[at:], one) if at >= 0 else -1
    lengths = (count for count in range(shared, -1, -1) if before[at + count :].startswith(rest) and rest)
    count = next(lengths, -1)
    return (at, one[:count]) if count >= 0 and one[:count] != other else (-1, "")


ALIKE = 12  # characters behind an answer


def asked_otherwise(pair: tuple[Row, Row]) -> bool:
    """Whether an answer is another one by what was declared for it."""
    compared = (model_differences, sampling_differences, stop_differences)
    return any(difference.counts for compare in compared for difference in compare(*pair))


def within(before: str, after: str, first: int, one: str, other: str) -> int:
    """Where one text stands in `before` and the other in `after`, around their first difference; -1: nowhere."""
    at = before.find(one, max(0, first - max(len(one), len(other)) + 1), first + len(one))
    while at >= 0 and not after.startswith(other, at):
        at = before.find(one, at + 1, first + len(one))
    return at


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def words(ids: Sequence[int]) -> str:
    return "".join(f"{i} " for i in ids)


def as_decoded(old: Row, new: Row) -> Iterator[tuple[str, str]]:
    """Texts of two answers, as they were decoded and without blanks around them."""
    for mine, theirs in zip(decodes_of(old), decodes_of(new)):
        one, other = mine.get("text") or "", theirs.get("text") or ""
        yield from dict.fromkeys([(one, other), (one.strip(), other.strip())])


def up_to_draws(old: Case, new: Case) -> tuple[Case, Case] | None:
    """Both up to the call in which the first draws are others, where nothing differs before, and something else is
    asked behind: what that is may be anything, for it follows from what was drawn. With what is drawn behind it of the
    same prompts."""
    pairs = list(zip(old.rows, new.rows))
    alike = (same_prompt(a, b) and a["output_ids"] == b["output_ids"] for a, b in pairs)
    first = next((place for place, same in enumerate(alike) if not same), len(pairs))
    last = first + 1
    while last < len(pairs) and not all(map(begins_call, pairs[last])):
        last += 1
    drawn = pairs[first:last] and all(is_drawn(a) and is_drawn(b) and same_prompt(a, b) for a, b in pairs[first:last])
    asked_alike = len(old.rows) == len(new.rows) and all(same_prompt(a, b) for a, b in pairs[last:])
    if not drawn or asked_alike:
        return None
    drawn_alike = (pair for pair in pairs[last:] if same_prompt(*pair) and all(map(is_drawn, pair)))
    kept = [*pairs[:last], *(drawn_alike if len(old.rows) == len(new.rows) else ())]
    return replace(old, rows=tuple(a for a, _ in kept)), replace(new, rows=tuple(b for _, b in kept))
