"""The stop: where ids end, and why."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import Difference, brief
from parity.judge.row import (
    Row,
    TokenIds,
    criteria,
    end_ids,
    entry,
    has_beams,
    is_drawn,
    max_tokens,
    min_tokens,
    stop_strings,
    string_ids,
    text_of,
)
from parity.judge.stages.stage import KEPT, Broken, Compared, Invariant, Kept, Stage, Tools, merged
from parity.judge.values import texts_in
from parity.record.rows import BUT_THE_LAST, string_lists


def told_stops(case: Case) -> set[str]:
    """Stop strings that a case's library was told."""
    return set(itertools.chain.from_iterable(map(stop_strings, case.rows)))


# == What differs ==


def stop_differences(old: Row, new: Row) -> Iterator[Difference]:
    if not old.get("stop") or not new.get("stop"):
        return
    yield from end_differences(old, new)
    for name in ("max_new_tokens", "min_new_tokens"):
        before = entry(old, "stop", name)
        after = entry(new, "stop", name)
        if before != after:
            yield Difference("stop", name, before, after)
    yield from string_differences(old, new)
    yield from criteria_differences(old, new)
    yield from answer_string_differences(old, new)


def end_differences(old: Row, new: Row) -> Iterator[Difference]:
    before = entry(old, "stop", "end_ids")
    after = entry(new, "stop", "end_ids")
    of_strings = {*string_ids(old), *string_ids(new)}
    # Ids may stand in a criterion's place, or in a part of it: only those that are chosen can tell.
    # Not those that nobody gave, where it ended nothing.
    is_given = may_end_by_criterion(old) or new["stop"]["end_ids"]["from"] == "caller"
    is_instead = bool(criteria(old)) and is_given and {*before} < {*after}
    changed = {*before} ^ {*after}
    if changed - of_strings:
        yield Difference("stop", "end_ids", before, after, counts=not is_instead)


def string_differences(old: Row, new: Row) -> Iterator[Difference]:
    before = strings_looked_for(old)
    after = strings_looked_for(new)
    if set(before) != set(after) and {*stop_strings(old)} != {*stop_strings(new)}:
        # Code that cut by hand, after decoding, names no strings to the library: only its value
        # can tell.
        yield Difference("stop", "strings", before, after, counts=bool(before))


def answer_string_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Of strings that end an answer, not its thought; where one side names none, only the ids can
    tell."""
    before = entry(old, "stop", "answer_strings")
    after = entry(new, "stop", "answer_strings")
    if before is None or after is None:
        return
    if set(before) != set(after):
        yield Difference("stop", "answer_strings", before, after)


def criteria_differences(old: Row, new: Row) -> Iterator[Difference]:
    """A criterion says nothing of what it does: where stops stand in its place, only the ids can
    tell."""
    before = entry(old, "stop", "criteria") or []
    after = entry(new, "stop", "criteria") or []
    if bool(before) == bool(after):
        return
    is_instead = bool(stop_strings(new)) or len(end_ids(new)) > len(end_ids(old))
    counts = may_end_by_criterion(old) and not is_instead
    yield Difference("stop", "criteria", before, after, counts=counts)


def may_end_by_criterion(row: Row) -> bool:
    """Whether a stopping criterion of the code's own ended a row by itself, or may have, where
    that was not recorded. One that called it done only when an end id, a stop string or the length
    did too is that end."""
    own = criteria(row)
    if not own or "finish" not in row:
        return bool(own)
    done = row["finish"]["criteria"]
    by_itself = [count for name, count in done.items() if name in own]
    by_library = [count for name, count in done.items() if name not in own]
    return bool(by_itself) and (not by_library or min(by_itself) < min(by_library))


def strings_looked_for(row: Row) -> list[str]:
    """Stop strings that can stand in a row's text."""
    never = entry(row, "stop", "never_text") or ()
    return [text for text in stop_strings(row) if text not in never]


# == Invariants ==


def end(row: Row, tools: Tools) -> Kept:
    """Where ids end, and why."""
    if "stop" not in row or has_beams(row):
        return None
    if broken := ends_too_soon(row) or goes_on_behind_end(row) or exceeds_length(row):
        return broken
    if stop_strings(row) and tools.decode is None:
        return None
    stopped = first_completed(row, tools)
    return ends_by_itself(row) if stopped is None else ends_at_stop(row, stopped)


def ends_at_stop(row: Row, stopped: int) -> Kept:
    """stopped: after how many tokens a stop was complete."""
    count = len(row["output_ids"])
    if stopped == count:
        return KEPT
    went_on = f"and the row went on to {count}"
    return "stop", f"a stop was complete after {stopped} tokens, {went_on}"


def ends_by_itself(row: Row) -> Kept:
    """An end that is none of the stop strings."""
    if is_at_end(row) or may_end_by_criterion(row):
        return KEPT
    ended = f"ended after {len(row['output_ids'])} tokens without an end id or a stop"
    return "stop", f"{ended}, where {max_tokens(row)} are allowed"


def ending_ids(row: Row) -> set[int]:
    """Ids that end a row: of its end, or of stop strings that are one token."""
    return {*end_ids(row), *string_ids(row)}


def is_at_end(row: Row) -> bool:
    """Whether a row ends with an id that ends it, or with the last token that is allowed."""
    most = max_tokens(row)
    return most is None or len(row["output_ids"]) == most or has_end_id(row)


def has_end_id(row: Row) -> bool:
    ids = row["output_ids"]
    return bool(ids) and ids[-1] in ending_ids(row)


def ends_too_soon(row: Row) -> Kept:
    count = len(row["output_ids"])
    least = min_tokens(row)
    if count >= least or count == max_tokens(row):
        return None
    return "stop.min_new_tokens", f"ended after {count} tokens, {least} were asked for at least"


def goes_on_behind_end(row: Row) -> Kept:
    ids = row["output_ids"]
    ends = ending_ids(row)
    for position, i in enumerate(ids[:-1]):
        if i in ends:
            said = f"token {position} of {len(ids)} ends the text, and the row went on"
            return "stop.end_ids", said
    return None


def exceeds_length(row: Row) -> Kept:
    count = len(row["output_ids"])
    most = max_tokens(row)
    if most is None or count <= most:
        return None
    return "stop.max_new_tokens", f"{count} tokens, where {most} are allowed"


def first_completed(row: Row, tools: Tools) -> int | None:
    """After how many tokens a row's first stop string is complete."""
    if tools.decode is None:
        return None
    return completed(row["output_ids"], stop_strings(row), tools.decode, min_tokens(row))


def completed(
    ids: TokenIds, strings: Sequence[str], decode: Callable[..., str], least: int = 0
) -> int | None:
    """After how many tokens the first stop is complete, in text without special tokens; behind the
    least number."""
    since = len(decode(ids[:least], True, False))

    def stops(count: int) -> bool:
        made = decode(ids[:count], True, False)
        for stop in strings:
            begin = max(0, since - len(stop) + 1)  # it may begin before the least number
            if made.find(stop, begin) >= 0:
                return True
        return False

    if not stops(len(ids)):
        return None
    counts = range(least + 1, len(ids) + 1)
    return next(filter(stops, counts), None)


# == Of samples, whose ids are others: would the new stops end an old answer elsewhere? ==

BEHIND = 8  # characters that tell whether a text goes on
LONG = 8  # tokens: that several shorter answers end at one length may be chance

OtherEnd = tuple[str, str]  # a cause's name, and what it says here


def other_end(old: Row, new: Row, held: Sequence[str], tools: Tools) -> OtherEnd | None:
    """Of an old sample, by the new settings.   held: texts of the old value."""
    if "stop" not in new or not (is_drawn(old) and is_drawn(new)):
        return None
    if old["output_ids"] == new["output_ids"]:
        return None
    found = ends_sooner(old, new, held, tools)
    return found or ends_later(old, new, tools)


def ends_sooner(old: Row, new: Row, held: Sequence[str], tools: Tools) -> OtherEnd | None:
    """Where the value holds what came behind the new end: else the old code cut there by hand."""
    ids = old["output_ids"]
    most = max_tokens(new)
    if most is not None and chosen(old) > most:
        return "stop.max_new_tokens", f"the old answer has {chosen(old)} tokens, {most} are allowed"
    if tools.decode is None:
        return None
    ends = {*end_ids(new)}
    for position, i in enumerate(ids[:-1]):
        if i in ends and position + 1 >= min_tokens(new):
            is_seen = stands_in(tools.decode(ids[position + 1 :], True, False), held)
            said = f"the old answer goes on behind id {i}, which ends an answer now"
            return ("stop.end_ids", said) if is_seen else None
    added = {*stop_strings(new)} - {*stop_strings(old)}
    count = completed(ids, [*added], tools.decode, min_tokens(new)) if added else None
    if count is None:
        return None
    before = tools.decode(ids[:count], True, False)
    whole = tools.decode(ids, True, False)[: len(before) + BEHIND].strip()
    if whole == before.strip() or not stands_in(whole, held):
        return None
    went_on = f"after {count} of {len(ids)} tokens, and the old code let it go on"
    return "stop.strings", f"one of {sorted(added)} would end it {went_on}"


def ends_later(old: Row, new: Row, tools: Tools) -> OtherEnd | None:
    """Where nothing of the new settings ends an answer that was seen to end before its length."""
    ids = old["output_ids"]
    if tools.decode is None or not ids or criteria(new) or not ends_by_stop(old, new):
        return None
    most = max_tokens(new)
    is_long = most is not None and chosen(old) >= most
    if is_long or completed(ids, stop_strings(new), tools.decode) is not None:
        return None
    last = brief(tools.decode(ids, True, False)[-12:])
    said = f"an old answer ends at {last} after {chosen(old)} tokens, where nothing ends one now"
    return "stop", said


def ends_by_stop(old: Row, new: Row) -> bool:
    """Whether an old answer may have ended by a string, a criterion or a loop's own rule, and by
    no id that ends one."""
    if old["output_ids"][-1] in {*end_ids(old), *ending_ids(new)}:
        return False
    if old.get("loop") == BUT_THE_LAST and end_ids(new) and chosen(old) < LONG:
        return False  # its last id, which was not seen, may be such an end
    return bool(old.get("loop") or may_end_by_criterion(old) or stop_strings(old))


def chosen(row: Row) -> int:
    """How many tokens were chosen: of some loops the last one was not seen."""
    return len(row["output_ids"]) + int(row.get("loop") == BUT_THE_LAST)


def stands_in(text: str, texts: Sequence[str]) -> bool:
    bare = text.strip()
    return bool(bare) and any(bare in one for one in texts)


# == Put back ==


def old_end_ids(options: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Only the old ids end the text."""
    return merged(options, "stop", {"ignore_eos": True, "token_ids": end_ids(row)})


def old_strings(options: Mapping[str, Any], row: Row) -> dict[str, Any]:
    return merged(options, "stop", {"strings": stop_strings(row)})


def old_length(options: Mapping[str, Any], row: Row) -> dict[str, Any]:
    lengths = {name: entry(row, "stop", name) for name in ("max_new_tokens", "min_new_tokens")}
    return {**options, **lengths}


# == The stage ==


def weigh_strings(difference: Difference, comparison: Compared) -> Difference | None:
    """New stops may stand in place of a cut by hand, which names none to the library: only the
    value can tell. But those that the old code tells its library for other rows it does not cut at
    by hand; and where no answer reaches one that its call does not name, no value tells it. Nor do
    those count that stand in a criterion's place."""
    if difference.field != "strings" or difference.counts:
        return difference
    if all(map(criteria, comparison.old.rows)):
        return difference
    given = {*difference.new}
    if given <= told_stops(comparison.old):
        return replace(difference, counts=True)
    named = {*itertools.chain.from_iterable(string_lists(comparison.old.stated))}
    if is_told_instead(given, named, comparison):
        return replace(difference, old=sorted(named), counts=True)
    texts = [text_of(row) for row in comparison.old.rows]
    unreached = [stop for stop in given - named if not any(stop in text for text in texts)]
    return replace(difference, counts=bool(unreached) and comparison.has_same_value)


def is_told_instead(given: set[str], named: set[str], comparison: Compared) -> bool:
    """Whether the old code was seen to cut by hand at stops that its call names, where others, that
    are told in their place, begin in all answers, too: elsewhere they may not."""
    if named & given or not comparison.has_same_value:
        return False
    texts = [text_of(row) for row in comparison.old.rows]
    heads = [head_before(text, named) for text in texts]
    if heads != [head_before(text, given) for text in texts]:
        return False  # where they begin elsewhere, the new code cuts by hand, too
    whole = {text.strip() for text in texts}
    cut = {head.strip() for head in heads} - whole - {""}
    return not cut.isdisjoint(text.strip() for text in texts_in(comparison.old.value))


def head_before(text: str, stops: set[str]) -> str:
    """A text up to the first of some stops."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=None)]


def ends_across(comparison: Compared) -> Iterator[Broken]:
    """The first sample that the new settings would have ended elsewhere."""
    held = texts_in(comparison.old.value)
    for number, (old, new) in enumerate(comparison.pairs):
        if old.get("loop") and comparison.has_same_value:
            continue  # it may choose ids that nothing is made of
        if found := other_end(old, new, held, comparison.tools):
            yield Broken("end", *found, number, "output_ids")
            return


STAGE = Stage(
    fields=("stop",),
    compare=stop_differences,
    weigh=weigh_strings,
    invariants=(Invariant("end", "output_ids", end),),
    across=ends_across,
    restore={"end_ids": old_end_ids, "strings": old_strings, "length": old_length},
)
