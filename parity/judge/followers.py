"""Prompts that hold earlier answers, as those of code that asks on with what it was told.

Whatever made the first answer another one, such a prompt is not it: it only follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.golden import Case
from parity.judge.row import (
    Pairs,
    Row,
    begins_call,
    decodes_of,
    is_drawn,
    same_prompt,
    shared_start,
    text_of,
)
from parity.judge.stages.model import model_differences
from parity.judge.stages.sampling import sampling_differences
from parity.judge.stages.stop import stop_differences

Answers = list[tuple[int, Row, Row]]  # the number of a pair, and its rows
HeldTexts = dict[int, tuple[str, str]]  # number of a pair -> what both prompts hold of its answers

ALIKE = 12  # characters behind an answer


def followers(pairs: Pairs) -> dict[int, HeldTexts]:
    """Numbers of the pairs whose prompts hold answers to the prompts before them, and differ as
    those answers do. Behind an answer that was asked for otherwise, and is another one, any prompt
    may follow from it. With it, by their own numbers, answers that the old code had cut by hand:
    what it held of them, and the new one."""
    found = dict[int, HeldTexts]()
    others = Answers()
    rendered: list[Any] = []  # by which pairs of templates equal prompts came
    told = Answers()  # by the call that is being looked at, whose other prompts were there before
    is_led = False  # by an answer that was asked for otherwise
    for number, (old, new) in enumerate(pairs):
        if begins_call(old):
            is_led = is_led or any(is_led_by(a, b) for _, a, b in told)
            others, told = [*others, *told], Answers()
        ways = old.get("template"), new.get("template")
        if same_prompt(old, new):
            rendered.append(ways)
        elif is_led:
            found[number] = {}
        else:
            is_alike = ways[0] == ways[1] or ways in rendered
            held = follows_from(old, new, others, alike=is_alike)
            if held is None:
                continue
            found[number] = held
        told.append((number, old, new))
    return found


def is_led_by(old: Row, new: Row) -> bool:
    return old["output_ids"] != new["output_ids"] and is_asked_otherwise((old, new))


def is_asked_otherwise(pair: tuple[Row, Row]) -> bool:
    """Whether an answer is another one by what was declared for it."""
    for compare in (model_differences, sampling_differences, stop_differences):
        if any(difference.counts for difference in compare(*pair)):
            return True
    return False


# == One prompt ==


@dataclass(frozen=True, slots=True)
class Held:
    """Where two prompts hold an old and a new text.   number: of the pair, where it was cut."""

    at: int
    old: str
    new: str
    number: int = -1

    def behind(self, before: str, after: str) -> tuple[str, str]:
        return before[self.at + len(self.old) :], after[self.at + len(self.new) :]

    def goes_on_alike(self, before: str, after: str) -> bool:
        rest, other_rest = self.behind(before, after)
        return rest[:ALIKE] == other_rest[:ALIKE]


@dataclass(frozen=True, slots=True)
class Wording:
    """Two prompts as texts.   answers: that they may hold, and that differ, the longest first.
    wholes: all answers, by the numbers of their pairs."""

    before: str
    after: str
    answers: Sequence[tuple[str, str]]
    wholes: Sequence[tuple[int, str, str]]

    def next_answer(self, before: str, after: str) -> Held | None:
        """The answer that stands where two texts begin to differ."""
        first = shared_start(before, after)
        for old, new in self.answers:
            at = within(before, after, first, old, new)
            if at >= 0:
                return Held(at, old, new)
        return None

    def next_cut(self, before: str, after: str) -> Held | None:
        """The whole new answer there, of which the old prompt holds the beginning."""
        first = shared_start(before, after)
        for number, old, new in self.wholes:
            at, part = cut_by_hand(before, after, first, old, new)
            if at >= 0:
                return Held(at, part, new, number)
        return None

    def next_cut_instead(self, before: str, after: str, found: Held | None) -> Held | None:
        """An answer that was found, unless another was cut there and both go on alike behind
        it."""
        if found is not None and found.goes_on_alike(before, after):
            return found
        return self.next_cut(before, after) or found

    def held_texts(self, *, is_free: bool) -> HeldTexts | None:
        """What both hold of answers that were cut; None where something else differs.
        is_free: behind an answer, anything may follow from it."""
        before, after = self.before, self.after
        if before == after:
            return None  # no answer stands in what differs
        held = HeldTexts()
        while before != after:
            found = self.next_answer(before, after)
            if found is not None and is_free:
                return held
            found = self.next_cut_instead(before, after, found)
            if found is None:
                return held if self.is_cut_within(before, after) else None
            if found.number >= 0:
                held[found.number] = (found.old, found.new)
            before, after = found.behind(before, after)
        return held

    def is_cut_within(self, before: str, after: str) -> bool:
        """Whether what differs at an end of two texts is a part of an answer."""
        first = shared_start(before, after)
        last = shared_start(before[first:][::-1], after[first:][::-1])
        mine, theirs = (text[first : len(text) - last] for text in (before, after))
        if 0 not in (first, last) or not mine or not theirs:
            return False
        return any(mine in old and theirs in new for old, new in self.answers)


def follows_from(old: Row, new: Row, answers: Answers, *, alike: bool) -> HeldTexts | None:
    """Whether two prompts differ only where an answer stands in both, and what they hold of answers
    that were cut. Of an end of a prompt that was cut, the rest is to be within it; behind one that
    was asked for otherwise, anything may follow from it.   alike: their templates render alike."""
    text = old.get("prompt_text")
    if not answers or (text is not None and text == new.get("prompt_text")):
        return None
    told = [(a, b) for _, a, b in answers if is_other_answer(a, b)]
    wording = wording_of(old, new, answers, told, alike=alike)
    return wording.held_texts(is_free=any(map(is_asked_otherwise, told)))


def is_other_answer(old: Row, new: Row) -> bool:
    return old["output_ids"] != new["output_ids"] or old.get("text") != new.get("text")


def wording_of(old: Row, new: Row, answers: Answers, told: Pairs, *, alike: bool) -> Wording:
    """By messages, where a template may leave parts of texts out; by text; or, of ids that were put
    behind ids, by their numbers."""
    if "messages" in old and "messages" in new and alike:
        sides = written(old["messages"]), written(new["messages"])
        return wording_of_texts(*sides, answers, told, lambda text: written(text)[1:-1])
    before, after = old.get("prompt_text"), new.get("prompt_text")
    if before is None or after is None:
        return wording_of_ids(old, new, told)
    return wording_of_texts(before, after, answers, told, str)


def wording_of_texts(
    before: str, after: str, answers: Answers, told: Pairs, shown: Callable[[str], str]
) -> Wording:
    """shown: how an answer stands in the two texts."""
    other = [pair for a, b in told for pair in as_decoded(a, b) if pair[0] != pair[1]]
    texts = [(shown(a), shown(b)) for a, b in other]
    wholes = []
    for number, old, new in answers:
        wholes += [(number, shown(a), shown(b)) for a, b in as_decoded(old, new)]
    return Wording(before, after, with_chosen(texts), wholes)


def wording_of_ids(old: Row, new: Row, told: Pairs) -> Wording:
    texts = []
    for a, b in told:
        for end in (None, -1):  # the last id is unread
            texts.append((words(a["output_ids"][:end]), words(b["output_ids"][:end])))
    return Wording(words(old["prompt_ids"]), words(new["prompt_ids"]), with_chosen(texts), [])


def with_chosen(texts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The longest first; then those of another answer, where one is chosen."""
    ordered = sorted(texts, key=lambda pair: -min(map(len, pair)))
    return [*ordered, *((old, new) for old, _ in ordered for _, new in ordered)]


def cut_by_hand(before: str, after: str, first: int, one: str, other: str) -> tuple[int, str]:
    """Where `after` holds a whole new answer around the first difference, and what `before` holds
    of the old one there: its beginning, behind which both go on alike; -1: nowhere."""
    at = after.find(other, max(0, first - len(other)), first + len(other)) if other else -1
    rest = after[at + len(other) :][:ALIKE]
    if at < 0 or not rest:
        return -1, ""
    for count in range(shared_start(before[at:], one), -1, -1):
        if before[at + count :].startswith(rest):
            return (at, one[:count]) if one[:count] != other else (-1, "")
    return -1, ""


def within(before: str, after: str, first: int, one: str, other: str) -> int:
    """Where one text stands in `before` and the other in `after`, around their first difference;
    -1: nowhere."""
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
        one, other = text_of(mine), text_of(theirs)
        yield from dict.fromkeys([(one, other), (one.strip(), other.strip())])


# == A whole case ==


def up_to_draws(old: Case, new: Case) -> tuple[Case, Case] | None:
    """Both up to the call in which the first samples are others, where nothing differs before, and
    something else is asked behind: what that is may be anything, for it follows from what was
    sampled. With what is sampled behind it of the same prompts."""
    pairs = list(zip(old.rows, new.rows))
    first = next((k for k, pair in enumerate(pairs) if not is_same_row(*pair)), len(pairs))
    last = end_of_call(pairs, first)
    asked, behind = pairs[first:last], pairs[last:]
    if not asked or not all(is_sampled_alike(*pair) for pair in asked):
        return None
    kept = pairs[:last]
    if len(old.rows) == len(new.rows):
        if all(same_prompt(*pair) for pair in behind):
            return None
        kept += [pair for pair in behind if is_sampled_alike(*pair)]
    old_rows, new_rows = (tuple(rows) for rows in zip(*kept))
    return replace(old, rows=old_rows), replace(new, rows=new_rows)


def end_of_call(pairs: Pairs, first: int) -> int:
    """The index behind the last pair of the call that a pair is of."""
    for index in range(first + 1, len(pairs)):
        if all(map(begins_call, pairs[index])):
            return index
    return max(first + 1, len(pairs))


def is_same_row(old: Row, new: Row) -> bool:
    return same_prompt(old, new) and bool(old["output_ids"] == new["output_ids"])


def is_sampled_alike(old: Row, new: Row) -> bool:
    return is_drawn(old) and is_drawn(new) and same_prompt(old, new)
