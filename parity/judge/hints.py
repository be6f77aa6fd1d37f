"""Notes beside a difference: what usually makes one like it. A hint never decides a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from parity.goldens.causes import stage_of
from parity.goldens.verdict import Cause
from parity.judge.comparison import Comparison
from parity.judge.row import Row
from parity.judge.values import TextPair, has_same_parts, partings

MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
CLOCK = re.compile(rf"\d{{4}}-\d\d-\d\d|\d\d?:\d\d|\b(19|20)\d\d\b|({MONTHS})\w*\b")


def hints_of(comparison: Comparison, cause: Cause) -> tuple[str, ...]:
    """What is known of differences like the one that is the cause."""
    stage = stage_of(cause.name)
    if stage == "prompt":
        pair = next(filter(has_other_prompt, comparison.pairs), None)
        return () if pair is None else tuple(of_prompt(*pair))
    if stage in ("value", "decode"):
        return tuple(of_values(comparison))
    return ()


# == Prompts ==


def has_other_prompt(pair: tuple[Row, Row]) -> bool:
    return bool(pair[0]["prompt_ids"] != pair[1]["prompt_ids"])


def of_prompt(old: Row, new: Row) -> Iterator[str]:
    before = old.get("prompt_text") or ""
    after = new.get("prompt_text") or ""
    is_other_text = "" not in (before, after) and before != after
    if is_other_text and before.split() == after.split():
        yield "the two prompts differ in blanks alone"
        return
    yield from of_ids(old["prompt_ids"], new["prompt_ids"])
    if is_other_text and CLOCK.sub("", before) == CLOCK.sub("", after):
        yield "the two prompts differ in a date or a time alone: pass it in as an argument"


def of_ids(old: Sequence[int], new: Sequence[int]) -> Iterator[str]:
    short, long = sorted((list(old), list(new)), key=len)
    more = len(long) - len(short)
    if not short or not more:
        return
    if long[more:] == short and {*long[: more + 1]} == {short[0]}:
        yield f"id {short[0]} stands twice at the beginning: a BOS before a text that has one"
        return
    if long[: len(short)] == short:
        kept, added = "beginning", long[len(short) :]
    elif long[more:] == short:
        kept, added = "end", long[:more]
    else:
        return
    if more > 1 and len(set(added)) == 1:
        yield f"the longer prompt is the other one and {more} times id {added[0]}: padding"
    else:
        yield f"the shorter prompt, of {len(short)} ids, is the {kept} of the longer one"


# == Values ==


def of_values(comparison: Comparison) -> Iterator[str]:
    old = comparison.old.value
    new = comparison.new.value
    if has_same_parts(old, new):
        yield "the same parts stand in another order: compare how they are sorted"
    apart = [(a, b) for _, a, b in partings(old, new)]
    texts = [(a, b) for a, b in apart if isinstance(a, str) and isinstance(b, str)]
    for rule in TEXT_RULES:
        if texts and all(rule(pair) for pair in texts):
            yield TEXT_RULES[rule]
            return


def has_same_bare_text(pair: TextPair) -> bool:
    return pair[0].strip() == pair[1].strip()


def ends_with_marker(pair: TextPair) -> bool:
    short, long = sorted(pair, key=len)
    rest = long.removeprefix(short).strip()
    return long.startswith(short) and bool(re.fullmatch(r"(<[^<> ]+>\s*)+", rest))


def is_unfinished(pair: TextPair) -> bool:
    return pair[0] == pair[1].rstrip("\ufffd")


def holds_other(pair: TextPair) -> bool:
    short, long = sorted(pair, key=len)
    return bool(short) and short in long


TEXT_RULES: dict[Callable[[TextPair], bool], str] = {
    has_same_bare_text: "the texts differ in blanks at their ends alone: strip, or decode.strip",
    is_unfinished: (
        "the new text ends within a character: vLLM's own text leaves out what a tokenizer decodes"
        " as U+FFFD"
    ),
    ends_with_marker: "one text ends with special tokens: skip_special_tokens, or the raw text",
    holds_other: "one text holds the other: compare where each is cut",
}
