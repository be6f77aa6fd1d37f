"""Prompts that hold earlier answers, as those of code that asks on with what it was told.

Whatever made the first answer another one, such a prompt is not it: it only follows.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from parity.goldens.store import Case
from parity.judge.endings import TextPair
from parity.judge.row import (
    Pairs,
    Row,
    calls_of,
    decodes_of,
    is_drawn,
    same_prompt,
    shared_ends,
    shared_start,
    text_of,
)
from parity.judge.stages.model import model_differences
from parity.judge.stages.sampling import sampling_differences
from parity.judge.stages.stop import stop_differences

HeldTexts = dict[int, TextPair]  # number of a pair -> what both prompts hold of its answers

ALIKE = 12  # characters behind an answer


class EarlierAnswer(NamedTuple):
    """number: of its pair of rows.   made: texts of the values, that differ and are made of it."""

    number: int
    old: Row
    new: Row
    made: Sequence[TextPair]


def followers(pairs: Pairs, values: Sequence[TextPair] = ()) -> dict[int, HeldTexts]:
    """Numbers of the pairs whose prompts hold answers to the prompts before them, and differ as
    those answers do. Behind an answer that was asked for otherwise, and is another one, any prompt
    may follow from it. With it, by their own numbers, answers that were cut or changed by hand:
    what both sides hold of them.   values: texts of the values that differ."""
    found = dict[int, HeldTexts]()
    rendered = [templates(*pair) for pair in pairs if same_prompt(*pair)]
    # By calls before, but for those whose prompts differ by themselves.
    told: list[EarlierAnswer] = []
    is_led = False  # by one of these that was asked for otherwise
    calls = calls_of(pairs)
    for _, call in itertools.groupby(enumerate(pairs), lambda pair: calls[pair[0]]):
        own: list[EarlierAnswer] = []
        for number, (old, new) in call:
            if not same_prompt(old, new):
                is_alike = old.get("template") == new.get("template")
                is_alike = is_alike or templates(old, new) in rendered
                held = {} if is_led else follows_from(old, new, told, alike=is_alike)
                if held is None:
                    continue
                found[number] = held
            own.append(EarlierAnswer(number, old, new, made_of_answer(old, values)))
        told += own
        is_led = is_led or any(is_led_by(answer.old, answer.new) for answer in own)
    return found


def made_of_answer(old: Row, values: Sequence[TextPair]) -> list[TextPair]:
    """Texts of the values whose old one stands in an answer; without blanks around them, too."""
    answers = [text_of(how) for how in decodes_of(old)]
    found = []
    for one, other in values:
        bare = one.strip()
        if bare and any(bare in answer for answer in answers):
            found += both_with_blanks(one, other)
    return found


def templates(old: Row, new: Row) -> tuple[Any, Any]:
    return old.get("template"), new.get("template")


def is_led_by(old: Row, new: Row) -> bool:
    """Whether an answer is another one by what was declared for it."""
    if not is_other_answer(old, new):
        return False
    declared = itertools.chain(
        model_differences(old, new), sampling_differences(old, new), stop_differences(old, new)
    )
    return any(difference.counts for difference in declared)


def is_other_answer(old: Row, new: Row) -> bool:
    return old["output_ids"] != new["output_ids"] or old.get("text") != new.get("text")


# == One prompt ==


@dataclass(frozen=True, slots=True)
class Held:
    """Where two prompts hold an old and a new text.   number: of the pair whose answer was cut, or
    changed, by hand; None: of whole answers."""

    at: int
    old: str
    new: str
    number: int | None = None

    def behind(self, before: str, after: str) -> tuple[str, str]:
        rest = before[self.at + len(self.old) :]
        other_rest = after[self.at + len(self.new) :]
        return rest, other_rest

    def goes_on_alike(self, before: str, after: str) -> bool:
        rest, other_rest = self.behind(before, after)
        return rest[:ALIKE] == other_rest[:ALIKE]


@dataclass(frozen=True, slots=True)
class Wording:
    """Two prompts as texts.   answers: that they may hold, and that differ, the longest first.
    wholes: all answers, by the numbers of their pairs.   made: what values hold of them.
    plain: a part of the two texts as it was before it was put there."""

    before: str
    after: str
    answers: Sequence[TextPair]
    wholes: Sequence[tuple[int, str, str]] = ()
    made: Sequence[tuple[int, str, str]] = ()
    plain: Callable[[str], str] = str

    def next_held(self, before: str, after: str) -> Held | None:
        """What stands where two texts begin to differ: an answer; but one that was cut, where only
        behind that both go on alike."""
        first = shared_start(before, after)
        answers = (held_whole(before, after, first, *texts) for texts in self.answers)
        made = (held_made(before, after, first, *texts) for texts in self.made)
        cuts = (held_cut(before, after, first, *texts) for texts in self.wholes)
        found = next(filter(None, itertools.chain(answers, made)), None)
        if found is not None and found.goes_on_alike(before, after):
            return found
        return next(filter(None, cuts), found)

    def held_texts(self) -> HeldTexts | None:
        """What both hold of answers that were cut; None where something else differs."""
        before = self.before
        after = self.after
        if before == after:
            return None  # no answer stands in what differs
        held = HeldTexts()
        while before != after:
            found = self.next_held(before, after)
            if found is None:
                return held if self.is_cut_within(before, after) else None
            if found.number is not None:
                held[found.number] = self.plain(found.old), self.plain(found.new)
            before, after = found.behind(before, after)
        return held

    def is_cut_within(self, before: str, after: str) -> bool:
        """Whether what differs at an end of two texts is a part of an answer."""
        first, last = shared_ends(before, after)
        part = before[first : len(before) - last]
        new_part = after[first : len(after) - last]
        is_between = first and last
        if is_between or not part or not new_part:
            return False
        return any(part in old and new_part in new for old, new in self.answers)


def held_whole(before: str, after: str, first: int, old: str, new: str) -> Held | None:
    """One text in `before` and the other in `after`, around their first difference."""
    last = first + len(old)
    longest = max(len(old), len(new))
    at = before.find(old, max(0, first - longest + 1), last)
    while at >= 0:
        if after.startswith(new, at):
            return Held(at, old, new)
        at = before.find(old, at + 1, last)
    return None


def held_made(before: str, after: str, first: int, number: int, old: str, new: str) -> Held | None:
    """The same of what was made of an answer."""
    found = held_whole(before, after, first, old, new)
    return found and replace(found, number=number)


def held_cut(before: str, after: str, first: int, number: int, old: str, new: str) -> Held | None:
    """A whole new answer in `after` around the first difference, and in `before` the beginning of
    the old one, behind which both go on alike."""
    count = len(new)
    at = after.find(new, max(0, first - count), first + count)
    rest = after[at + count :][:ALIKE]
    if at < 0 or not new or not rest:
        return None
    last = at + shared_start(before[at:], old)
    end = before.rfind(rest, at, last + len(rest))
    part = before[at:end]
    if end < 0 or part == new:
        return None
    return Held(at, part, new, number)


def follows_from(
    old: Row, new: Row, answers: Sequence[EarlierAnswer], *, alike: bool
) -> HeldTexts | None:
    """Whether two prompts differ only where an answer stands in both, and what they hold of answers
    that were cut. Of an end of a prompt that was cut, the rest is to be within it.
    alike: their templates render alike."""
    text = old.get("prompt_text")
    is_one_text = text is not None and text == new.get("prompt_text")
    if is_one_text or not answers:
        return None
    return wording_of(old, new, answers, alike=alike).held_texts()


def wording_of(old: Row, new: Row, answers: Sequence[EarlierAnswer], *, alike: bool) -> Wording:
    """By messages, where a template may leave parts of texts out; by text; or, of ids that were put
    behind ids, by their numbers."""
    if "messages" in old and "messages" in new and alike:
        sides = written(old["messages"]), written(new["messages"])
        wording = wording_of_texts(*sides, answers, lambda text: written(text)[1:-1])
        return replace(wording, plain=read_back)
    before = old.get("prompt_text")
    after = new.get("prompt_text")
    if before is None or after is None:
        return wording_of_ids(old, new, answers)
    return wording_of_texts(before, after, answers, str)


def wording_of_texts(
    before: str, after: str, answers: Sequence[EarlierAnswer], shown: Callable[[str], str]
) -> Wording:
    """shown: how an answer stands in the two texts."""
    texts = []
    wholes = []
    made = []
    for answer in answers:
        for one, other in as_decoded(answer.old, answer.new):
            wholes.append((answer.number, shown(one), shown(other)))
            if one != other:
                texts.append((shown(one), shown(other)))
        for one, other in answer.made:
            made.append((answer.number, shown(one), shown(other)))
    return Wording(before, after, with_chosen(texts), wholes, made)


def wording_of_ids(old: Row, new: Row, answers: Sequence[EarlierAnswer]) -> Wording:
    texts = []
    for answer in answers:
        if is_other_answer(answer.old, answer.new):
            ids = answer.old["output_ids"]
            new_ids = answer.new["output_ids"]
            texts.append((words(ids), words(new_ids)))
            texts.append((words(ids[:-1]), words(new_ids[:-1])))  # the last id may be unread
    return Wording(words(old["prompt_ids"]), words(new["prompt_ids"]), with_chosen(texts))


def with_chosen(texts: Sequence[TextPair]) -> list[TextPair]:
    """The longest first; then those of another answer, where one is chosen."""
    ordered = sorted(texts, key=lambda pair: -min(map(len, pair)))
    old_texts = [old for old, _ in ordered]
    new_texts = [new for _, new in ordered]
    return [*ordered, *itertools.product(old_texts, new_texts)]


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_back(text: str) -> str:
    """A part of a written text, as it was before; one that ends within an escape, as it is."""
    try:
        return str(json.loads(f'"{text}"'))
    except json.JSONDecodeError:
        return text


def words(ids: Sequence[int]) -> str:
    return "".join(f"{i} " for i in ids)


def as_decoded(old: Row, new: Row) -> Iterator[TextPair]:
    """Texts of two answers, as they were decoded and without blanks around them."""
    for mine, theirs in zip(decodes_of(old), decodes_of(new)):
        yield from both_with_blanks(text_of(mine), text_of(theirs))


def both_with_blanks(one: str, other: str) -> list[TextPair]:
    """Two texts as they are, and without blanks around them."""
    return list(dict.fromkeys([(one, other), (one.strip(), other.strip())]))


# == A whole case ==


def up_to_draws(old: Case, new: Case) -> tuple[Case, Case] | None:
    """Both up to the call in which the first samples are others, where nothing differs before, and
    something else is asked behind: what that is may be anything, for it follows from what was
    sampled. With what is sampled behind it of the same prompts."""
    pairs = list(zip(old.rows, new.rows))
    calls = calls_of(pairs)
    first = next((k for k, pair in enumerate(pairs) if not is_same_row(*pair)), None)
    if first is None:
        return None
    last = bisect.bisect_right(calls, calls[first])
    if not all(is_sampled_alike(*pair) for pair in pairs[first:last]):
        return None
    kept = pairs[:last]
    behind = pairs[last:]
    if len(old.rows) == len(new.rows):
        if all(same_prompt(*pair) for pair in behind):
            return None
        kept += [pair for pair in behind if is_sampled_alike(*pair)]
    old_rows, new_rows = zip(*kept)
    return replace(old, rows=old_rows), replace(new, rows=new_rows)


def is_same_row(old: Row, new: Row) -> bool:
    return same_prompt(old, new) and bool(old["output_ids"] == new["output_ids"])


def is_sampled_alike(old: Row, new: Row) -> bool:
    return is_drawn(old) and is_drawn(new) and same_prompt(old, new)
