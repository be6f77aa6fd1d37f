"""The stop: where ids end, and why."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import Difference, brief
from parity.judge.endings import is_within_some, spans, texts_in
from parity.judge.options import merged
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
from parity.judge.stages.stage import KEPT, Broken, Compared, Invariant, Kept, Stage, Tools
from parity.record.rows import string_lists


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
    return "stop.rule", f"a stop was complete after {stopped} tokens, {went_on}"


def ends_by_itself(row: Row) -> Kept:
    """An end that is none of the stop strings."""
    if is_at_end(row) or may_end_by_criterion(row):
        return KEPT
    name = "stop.rule" if stop_strings(row) else "stop.length"
    ended = f"ended after {len(row['output_ids'])} tokens without an end id or a stop"
    return name, f"{ended}, where {max_tokens(row)} are allowed"


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
    name = "stop.length" if has_end_id(row) else "stop.rule"
    return name, f"ended after {count} tokens, where {least} were asked for at least"


def goes_on_behind_end(row: Row) -> Kept:
    ids = row["output_ids"]
    ends = ending_ids(row)
    for position, i in enumerate(ids[:-1]):
        if i in ends:
            said = f"token {position} of {len(ids)} ends the text, and the row went on"
            return "stop.eos_set", said
    return None


def exceeds_length(row: Row) -> Kept:
    count = len(row["output_ids"])
    most = max_tokens(row)
    if most is None or count <= most:
        return None
    return "stop.length", f"{count} tokens, where {most} are allowed"


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


# == Of samples, whose ids are others ==

BEHIND = 8  # characters that tell whether a text goes on


def ends_early(old: Row, new: Row, held: Sequence[str], tools: Tools) -> str:
    """Whether a new stop would end an old answer, where texts of the old value hold what came
    behind it: so nobody had cut there by hand."""
    added = {*stop_strings(new)} - {*stop_strings(old)}
    if not added or tools.decode is None or not (is_drawn(old) and is_drawn(new)):
        return ""
    ids = old["output_ids"]
    count = completed(ids, [*added], tools.decode, min_tokens(new))
    if count is None:
        return ""
    before = tools.decode(ids[:count], True, False)
    whole = tools.decode(ids, True, False)[: len(before) + BEHIND].strip()
    if whole == before.strip() or not is_within_some(whole, held):
        return ""
    went_on = f"after {count} of {len(ids)} tokens, and the old code let it go on"
    return f"one of {sorted(added)} would end it {went_on}"


def goes_on(old: Row, new: Row, tools: Tools) -> str:
    """Whether the new stops would let an old answer go on that a stop had ended."""
    ids = old["output_ids"]
    if tools.decode is None or criteria(new) or ids == new["output_ids"]:
        return ""
    if not (is_stopped_sample(old, new) and (may_end_by_criterion(old) or stop_strings(old))):
        return ""
    stops = stop_strings(new)
    if completed(ids, stops, tools.decode) is not None:
        return ""
    last = brief(tools.decode(ids, True, False)[-12:])
    return f"a stop ended it at {last}, which is none of {list(stops)}"


def is_stopped_sample(old: Row, new: Row) -> bool:
    """Whether an old sample ended before its length, and with no id that ends a row."""
    ids = old["output_ids"]
    if "stop" not in old or "stop" not in new or not (is_drawn(old) and is_drawn(new)):
        return False
    ends = {*end_ids(old), *ending_ids(new)}
    return bool(ids) and len(ids) < (max_tokens(old) or 0) and ids[-1] not in ends


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
    """Stops that the old code tells its library for other rows it does not cut at by hand in this
    one: they count. So do those that are told in place of what its call names."""
    if difference.field != "strings":
        return difference
    given = {*difference.new}
    named = set(itertools.chain.from_iterable(string_lists(comparison.old.stated)))
    if not difference.old and is_told_instead(given, named, comparison):
        return replace(difference, old=sorted(named), counts=True)
    return replace(difference, counts=difference.counts or given <= told_stops(comparison.old))


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
    of_value = {text.strip() for text in texts_in(comparison.old.value)}
    return not cut.isdisjoint(of_value)


def head_before(text: str, stops: Collection[str]) -> str:
    """A text up to the first of some stops."""
    return text[: min([span[0] for span in spans(text, [*stops])], default=None)]


def ends_across(comparison: Compared) -> Iterator[Broken]:
    """Of samples: the first row that the new stops would have ended elsewhere."""
    tools = comparison.tools
    held = texts_in(comparison.old.value)
    for number, (old, new) in enumerate(comparison.pairs):
        if said := ends_early(old, new, held, tools):
            yield Broken("end", "stop.strings", said, number, "output_ids")
            return
        if said := goes_on(old, new, tools):
            stops = {*stop_strings(old)}
            # Of the same stops, the one that ended it began in the prompt.
            is_rule = stops and stops == {*stop_strings(new)}
            name = "stop.rule" if is_rule else "stop.strings"
            yield Broken("end", name, said, number, "output_ids")
            return


STAGE = Stage(
    fields=("stop",),
    compare=stop_differences,
    weigh=weigh_strings,
    invariants=(Invariant("end", "output_ids", end),),
    across=ends_across,
    restore={"end_ids": old_end_ids, "strings": old_strings, "length": old_length},
)
