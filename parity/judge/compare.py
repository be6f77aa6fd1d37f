"""Two recordings of one case -> what differs, in causal order, and the suspects.

Pure functions of plain data: no model, no file, no clock. explain.py takes it from here.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.causes import cause_of_field
from parity.golden import Case
from parity.record.rows import CHOSEN_BY_ITSELF, NEUTRAL, by_itself, collapsed, given_no_ids, runs, string_lists
from parity.verdict import STAGES, Difference, equal

Row = Mapping[str, Any]


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


def whole_prompt(row: Row) -> Any:
    return tuple(row["prompt_ids"])


def prompt_with_pictures(row: Row) -> Any:
    pictures = tuple(picture.get("sha256") for picture in row.get("images", ()))
    return collapsed(row["prompt_ids"], placeholder_in(row)), pictures


def prompt_around_pictures(row: Row) -> Any:
    return collapsed(row["prompt_ids"], placeholder_in(row))


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


def unseen(old: Row, new: Row) -> bool:
    """Whether only one side's answer was seen: the other one only read the prompt."""
    return bool(old.get("scored")) != bool(new.get("scored"))


def same_prompt(old: Row, new: Row) -> bool:
    """Whether two rows were asked the same, pictures as one id or as many; of embeddings as far as is known."""
    if old["prompt_ids"] == new["prompt_ids"] or given_no_ids(old) or given_no_ids(new):
        return True
    return collapsed(old["prompt_ids"], placeholder_in(old)) == collapsed(new["prompt_ids"], placeholder_in(new))


def reads_what_is_asked(one: Row, other: Row) -> bool:
    """Whether one side reads behind a prompt the single token that the other asks the model for: of both, what counts
    is what the model says before it."""
    alone = not other.get("scored") and entry(other, "stop", "max_new_tokens") == 1
    return bool(one.get("scored")) and alone and one["prompt_ids"][:-1] == other["prompt_ids"]


Answers = list[tuple[int, Row, Row]]  # the number of a pair, and its rows


def followers(old: Sequence[Row], new: Sequence[Row]) -> dict[int, dict[int, tuple[str, str]]]:
    """Numbers of the pairs whose prompts hold answers to the prompts before them, and differ as those answers do: a
    code that asks on with what it was told. Whatever made the first answer another one, the prompts are not it.
    Behind an answer that was asked for otherwise, and is another one, any prompt may follow from it.
    With it, by their own numbers, answers that the old code had cut by hand: what it held of them, and the new one."""
    found, others = dict[int, dict[int, tuple[str, str]]](), Answers()
    rendered: list[Any] = []  # by which pairs of templates equal prompts came
    told = Answers()  # by the call that is being looked at, whose other prompts were there before
    led = False  # by an answer that was asked for otherwise
    for number, (mine, theirs) in enumerate(paired(old, new)):
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


def begins_call(row: Row) -> bool:
    """Whether a row is the first of a call of the model, or of a loop, of which each row is one."""
    request = row.get("request") or {}
    return not request.get("number") and not request.get("sample")


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


def shared_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def is_prefix(one: Sequence[int], other: Sequence[int]) -> bool:
    short, long = sorted((list(one), list(other)), key=len)
    return long[: len(short)] == short


def placeholder_in(row: Row) -> int | None:
    """The id that stands for pictures in a row's prompt: the one whose runs are as long as the pictures have tokens."""
    tokens = [picture.get("tokens") for picture in row.get("images", ())]
    if not tokens:
        return None
    return next((i for i in dict.fromkeys(row["prompt_ids"]) if runs(row["prompt_ids"], i) == tokens), None)


# == Stages ==

PROMPT_STAGES = ("messages", "template", "prompt_text", "prompt_ids")


def prompt_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Another prompt; where the ids are the same, whatever led to them is only told."""
    differs = not same_prompt(old, new)
    for stage in ("messages", "template", "prompt_text"):
        if old.get(stage) is not None and new.get(stage) is not None and old[stage] != new[stage]:
            if stage == "template":
                yield from template_differences(old[stage], new[stage], differs)
            else:
                yield Difference(stage, "", old[stage], new[stage], counts=differs)
    if differs:
        yield Difference("prompt_ids", "", old["prompt_ids"], new["prompt_ids"])


def template_differences(old: Row, new: Row, counts: bool) -> Iterator[Difference]:
    if old["sha256"] != new["sha256"]:
        yield Difference("template", "sha256", old["sha256"][:12], new["sha256"][:12], counts=counts)
    for name in sorted({*old["arguments"], *new["arguments"]}):
        before, after = old["arguments"].get(name), new["arguments"].get(name)
        if before != after:
            yield Difference("template", name, before, after, counts=counts)


def backends_of(*rows: Row) -> set[Any]:
    return {row.get("model", {}).get("backend") for row in rows}


def same_backend(old: Row, new: Row) -> bool:
    return len(backends_of(old, new)) == 1


def image_differences(old: Row, new: Row) -> Iterator[Difference]:
    mine, theirs = old.get("images", []), new.get("images", [])
    # vLLM normalises inside the model, so what its processor gives says nothing there.
    names = ["sha256", "budget", "tokens", *(["values"] if same_backend(old, new) else [])]
    if len(mine) != len(theirs):
        yield Difference("images", "count", len(mine), len(theirs))
    for a, b in zip(mine, theirs):
        for name in names:
            if a.get(name) is None or b.get(name) is None:
                continue
            same = equal(a[name], b[name], 2e-3) if name == "values" else a[name] == b[name]
            if not same:
                yield Difference("images", name, a[name], b[name])


def batch_differences(old: Row, new: Row) -> Iterator[Difference]:
    """How a row was padded. No padding and masked padding on the left are the same thing to it."""
    mine, theirs = ({"side": "none", "masked": True, "positions": None, **row.get("batch", {})} for row in (old, new))
    if {mine["side"], theirs["side"]} in ({"left", "right"}, {"none", "right"}):
        yield Difference("batch", "side", mine["side"], theirs["side"])
    if mine["masked"] != theirs["masked"]:
        yield Difference("batch", "masked", mine["masked"], theirs["masked"])


def model_differences(old: Row, new: Row) -> Iterator[Difference]:
    mine, theirs = old.get("model", {}), new.get("model", {})
    for name in ("class", "dtype", "quantization", "attention", "buffers"):
        if name in ("attention", "buffers") and (name not in mine or name not in theirs):
            continue  # vLLM chooses its own attention, and makes its tables by itself
        if mine.get(name) != theirs.get(name):
            yield Difference("model", name, mine.get(name), theirs.get(name))
    name = "weights" if "weights" in mine and "weights" in theirs else "files"
    same_kind = mine.get("dtype") == theirs.get("dtype") and mine.get("quantization") == theirs.get("quantization")
    if same_kind and name in mine and name in theirs and mine[name] != theirs[name]:
        yield Difference("model", name, mine[name], theirs[name])


ONLY_DRAWN = {"temperature", "top_p", "top_k", "min_p"}


def entry(row: Row, stage: str, name: str) -> Any:
    said = row.get(stage, {}).get(name)
    return NEUTRAL.get(name) if said is None else said["value"]


def is_drawn(row: Row) -> bool:
    return bool(row.get("sampling") and entry(row, "sampling", "temperature"))


def drew(row: Row) -> bool:
    """Whether random numbers were taken while a loop of one's own chose."""
    return bool((row.get("request") or {}).get("process"))


def told_stops(case: Case) -> set[str]:
    """Stop strings that a case's library was told."""
    return {stop for row in case.rows for stop in entry(row, "stop", "strings") or ()}


OF_LOGITS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "no_repeat_ngram_size", "processors")


def done_to_logits(row: Row) -> list[str]:
    """What is done to a row's logits before a token is chosen, by the settings' names."""
    idle: dict[str, tuple[Any, ...]] = {name: (NEUTRAL[name], 0, [], None) for name in OF_LOGITS}
    return [name for name in OF_LOGITS if entry(row, "sampling", name) not in idle[name]]


def sampling_differences(old: Row, new: Row) -> Iterator[Difference]:
    if not old.get("sampling") or not new.get("sampling"):
        return
    drawn = is_drawn(old), is_drawn(new)
    held_back = done_to_logits(new) or entry(new, "stop", "min_new_tokens")
    if old.get("loop") in CHOSEN_BY_ITSELF and not drawn[1] and not held_back:
        yield Difference(
            "sampling", "mode" if drew(old) else "processors", "other tokens than the likeliest", "the likeliest"
        )
    if drawn[0] != drawn[1]:
        before, after = (("drawn" if one else "greedy") for one in drawn)
        yield Difference("sampling", "mode", before, after)
    as_many = len(processors(old)) == len(processors(new))
    for name in sorted({*old["sampling"], *new["sampling"]} - {"seed"}):
        if name in ONLY_DRAWN and not all(drawn):
            continue
        before, after = entry(old, "sampling", name), entry(new, "sampling", name)
        if name == "processors":
            if not as_many and before != after:
                yield Difference("sampling", name, before, after)
        elif name in PENALTIES and as_many and None in (before, after):
            continue  # one that is written as a processor: only the ids can tell
        elif not equal(before, after, 1e-9) and not (name == "top_k" and {before, after} <= {0, -1, None}):
            yield Difference("sampling", name, before, after)
    for form, (before, after) in both_structures(old, new).items():
        if before != after:
            yield Difference("sampling", form, before, after)


PENALTIES = ("presence_penalty", "frequency_penalty")  # vLLM's own


def processors(row: Row) -> list[str]:
    """Names of what else is done to the logits; all penalties are as one, which a processor may be."""
    penalised = any(entry(row, "sampling", name) for name in PENALTIES)
    return [*(entry(row, "sampling", "processors") or ()), *(["penalties"] if penalised else [])]


def both_structures(old: Row, new: Row) -> dict[str, tuple[Any, Any]]:
    """Forms that both sides ask for, where they are the same in kind: a schema as data, choices without an order."""
    mine, theirs = ((row.get("request") or {}).get("structure") or {} for row in (old, new))

    def plain(form: str, value: Any) -> Any:
        if form == "json" and isinstance(value, str):
            with contextlib.suppress(ValueError):
                return json.loads(value)
        if form == "choice":
            return sorted(value)
        return value.strip() if form == "grammar" else value

    return {form: (plain(form, mine[form]), plain(form, theirs[form])) for form in mine if form in theirs}


def stop_differences(old: Row, new: Row) -> Iterator[Difference]:
    if not old.get("stop") or not new.get("stop"):
        return
    before, after = entry(old, "stop", "end_ids"), entry(new, "stop", "end_ids")
    either = {*(entry(old, "stop", "string_ids") or ()), *(entry(new, "stop", "string_ids") or ())}
    # Ids may stand in a criterion's place, or in a part of it: only those that are chosen can tell.
    instead = bool(entry(old, "stop", "criteria")) and {*before} < {*after}
    if ({*before} ^ {*after}) - either:
        yield Difference("stop", "end_ids", before, after, counts=not instead)
    for name in ("max_new_tokens", "min_new_tokens"):
        before, after = entry(old, "stop", name), entry(new, "stop", name)
        if before != after:
            yield Difference("stop", name, before, after)
    before, after = strings_looked_for(old), strings_looked_for(new)
    said = [{*(entry(row, "stop", "strings") or ())} for row in (old, new)]
    if set(before) != set(after) and said[0] != said[1]:
        # Code that cut by hand, after decoding, names no strings to the library: only its value can tell.
        yield Difference("stop", "strings", before, after, counts=bool(before))
    before, after = entry(old, "stop", "criteria") or [], entry(new, "stop", "criteria") or []
    if bool(before) != bool(after):
        # A criterion says nothing of what it does: where stops stand in its place, only the ids can tell.
        instead = bool(entry(new, "stop", "strings")) or len(entry(new, "stop", "end_ids")) > len(
            entry(old, "stop", "end_ids")
        )
        yield Difference("stop", "criteria", before, after, counts=may_end_by_criterion(old) and not instead)


def may_end_by_criterion(row: Row) -> bool:
    """Whether a stopping criterion of the code's own ended a row by itself, or may have, where that was not recorded.
    One that called it done only when an end id, a stop string or the length did too is that end."""
    own = entry(row, "stop", "criteria") or ()
    if not own or "finish" not in row:
        return bool(own)
    done = row["finish"]["criteria"]
    by_itself = [count for name, count in done.items() if name in own]
    by_library = [count for name, count in done.items() if name not in own]
    return bool(by_itself) and (not by_library or min(by_itself) < min(by_library))


def strings_looked_for(row: Row) -> list[str]:
    """Stop strings that can stand in a row's text."""
    never = entry(row, "stop", "never_text") or ()
    return [text for text in entry(row, "stop", "strings") or () if text not in never]


def answer_differences(old: Row, new: Row) -> Iterator[Difference]:
    """What came out of the model, and how it became text. These follow from the rest, or the value tells them."""
    if unseen(old, new):
        return
    if old["output_ids"] != new["output_ids"]:
        yield Difference("output_ids", "", old["output_ids"], new["output_ids"], counts=False)
    for number, (mine, theirs) in enumerate(zip(decodes_of(old), decodes_of(new))):
        for name in ("skip_special_tokens", "clean_up"):
            before, after = mine.get(name), theirs.get(name)
            if None not in (before, after) and before != after:
                yield Difference("decode", name, before, after, counts=False)
        texts = mine.get("text"), theirs.get("text")
        if None not in texts and texts[0] != texts[1]:
            yield Difference("text", f"decode {number + 1}" if number else "", *texts, counts=False)


def seeds_of(row: Row) -> set[int]:
    """The seed that a row was given: that of its request, or, of one of several samples, its own."""
    said = row["sampling"].get("seed") or {}
    found = [(row.get("request") or {}).get("seed"), said.get("value") if said.get("from") != "nobody" else None]
    return {seed for seed in found if seed is not None}


def seed_differences(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Difference]:
    """Other seeds, one that comes, one that goes. A seed of the process is of a whole call, whose first row alone has
    it to itself: it stands for the rows after it, too, whatever their own seeds are on the other side. What a script
    gave before a call says nothing of the call, and in older goldens 0 may be the recorder's."""
    known: tuple[set[int], set[int]] = set(), set()
    for number, (old, new) in enumerate(pairs):
        if not (old.get("sampling") and new.get("sampling") and is_drawn(old) and is_drawn(new)):
            continue
        mine, theirs = seeds_of(old), seeds_of(new)
        known[0].update(mine)
        known[1].update(theirs)
        sources = [(row["sampling"].get("seed") or {}).get("from") for row in (old, new)]
        same = mine & theirs
        if sources.count("process") == 1:
            same = mine & known[1] if sources[0] == "process" else known[0] & theirs
        unsure = "script" in sources or (not theirs and sources[0] == "process" and mine == {0})
        if (mine or theirs) and not same and not unsure:
            yield Difference("sampling", "seed", min(mine, default=None), min(theirs, default=None), number)


def unencoded(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    """Names of the tensors of a forward. `generate` of newer releases encodes pictures beforehand; a loop of one's own
    gives the forward what they are encoded from."""
    if "mm_encoder_outputs" not in keys or "mm_encoder_outputs" in others:
        return sorted(keys)
    return sorted({*keys, "pixel_values", "image_grid_thw"} - {"mm_encoder_outputs"})


def input_differences(old: Row, new: Row) -> Iterator[Difference]:
    """What reached the model's forward beside the ids, where both were seen."""
    mine, theirs = old.get("inputs"), new.get("inputs")
    if mine is None or theirs is None:
        return
    keys = mine["keys"], theirs["keys"]
    if by_itself(old) != by_itself(new):
        keys = unencoded(*keys), unencoded(*reversed(keys))
    if keys[0] != keys[1]:
        yield Difference("batch", "keys", mine["keys"], theirs["keys"])
    if old["prompt_ids"] != new["prompt_ids"]:
        return
    marks = mine.get("marks"), theirs.get("marks")
    if None not in marks and marks[0] != marks[1] and mine["keys"] == theirs["keys"]:
        yield Difference("batch", "marks", *marks)
    places = mine.get("positions"), theirs.get("positions")
    if None not in places and places[0] != places[1]:
        yield Difference("batch", "positions", *places)
    sums = mine.get("pictures"), theirs.get("pictures")
    if None not in sums and not equal(*sums, 2e-3):
        yield Difference("images", "tensors", *sums)


def tells_its_adapter(row: Row) -> bool:
    """Of plain code on hf only that there is one, and not which."""
    bare = "inputs" in row and not row["inputs"].get("adapters")
    return bare or row.get("model", {}).get("backend") == "vllm" or "adapter" in (row.get("request") or {})


def adapter_differences(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Difference]:
    """Other adapters: of vLLM's requests, or of an engine's, than were asked for; on hf, of all rows with one prompt
    together, because which of them had which is not to be seen."""
    found: dict[tuple[int, ...], tuple[int, set[str], set[str]]] = {}
    for number, (old, new) in enumerate(pairs):
        named = [(row.get("request") or {}).get("adapter") for row in (old, new)]
        if named[1] == "another":
            yield Difference("model", "adapters", "the one asked for", "another", number)
        elif "inputs" in old and "inputs" in new:
            _, mine, theirs = found.setdefault(tuple(old["prompt_ids"]), (number, set(), set()))
            mine.update(old["inputs"].get("adapters", [""]))
            theirs.update(new["inputs"].get("adapters", [""]))
        elif named[0] != named[1] and all(map(tells_its_adapter, (old, new))):
            yield Difference("model", "adapters", named[0], named[1], number)
    for number, mine, theirs in found.values():
        if mine != theirs:
            yield Difference("model", "adapters", sorted(mine), sorted(theirs), number)


def order_differences(old: Sequence[Row], new: Sequence[Row]) -> Iterator[Difference]:
    """Answers in another order. Of what is drawn without seeds, or with others, one prompt's answers have none."""
    for number, row in enumerate(new):
        if (row.get("request") or {}).get("answers") == "another":
            yield Difference("batch", "order", "its own request", "another request", number)
    if len(old) != len(new) or any(prompt_with_pictures(a) != prompt_with_pictures(b) for a, b in zip(old, new)):
        return
    mine, theirs = ([tuple(row["output_ids"]) for row in rows] for rows in (old, new))
    sets = [Counter((tuple(row["prompt_ids"]), tuple(row["output_ids"])) for row in rows) for rows in (old, new)]
    others = all(is_drawn(b) and (not seeds_of(b) or seeds_of(a) != seeds_of(b)) for a, b in zip(old, new))
    by_chance = sets[0] == sets[1] and others
    if mine != theirs and sorted(mine) == sorted(theirs) and not by_chance:
        moved = [theirs.index(ids) for ids in mine]
        yield Difference(
            "batch", "order", list(range(len(mine))), moved, next(k for k, m in enumerate(moved) if m != k)
        )


def decodes_of(row: Row) -> list[Mapping[str, Any]]:
    """Each time that a row's ids became text."""
    found: list[Mapping[str, Any]] = row.get("decodes") or [{**row.get("decode", {}), "text": row.get("text")}]
    return found


OF_ROWS = (
    prompt_differences, image_differences, batch_differences, input_differences, model_differences,
    sampling_differences, stop_differences, answer_differences,
)  # fmt: skip


def differences(old: Case, new: Case) -> tuple[Difference, ...]:
    """Everything that differs, in causal order."""
    found: list[Difference] = []
    pairs, follow, told = paired(old.rows, new.rows), followers(old.rows, new.rows), told_stops(old)
    by_numbers = equal(old.value, new.value) and holds_numbers(old.value)  # which the last id that is read would move
    for number, (mine, theirs) in enumerate(pairs):
        read = by_numbers and (reads_what_is_asked(mine, theirs) or reads_what_is_asked(theirs, mine))
        for compare in OF_ROWS:
            for d in compare(mine, theirs):
                counts = d.counts and not ((number in follow or read) and d.stage in PROMPT_STAGES)
                # What the old code tells its library for other rows, it does not cut by hand in this one.
                counts |= (d.stage, d.field) == ("stop", "strings") and {*d.new} <= told
                found.append(Difference(d.stage, d.field, d.old, d.new, number, counts))
    found += [*adapter_differences(pairs), *seed_differences(pairs), *order_differences(old.rows, new.rows)]
    found = [d for d in found if not said_otherwise(d, old, new)]
    if len(old.rows) != len(new.rows):
        found.append(Difference("output_ids", "rows", len(old.rows), len(new.rows), counts=False))
    if (old.raised is None) != (new.raised is None) or (old.raised or "").split(":")[0] != (new.raised or "").split(
        ":"
    )[0]:
        found.append(Difference("value", "raised", old.raised, new.raised))
    elif not equal(old.value, new.value):
        found.append(Difference("value", "", old.value, new.value))
    calls = list(itertools.accumulate(begins_call(mine) and begins_call(theirs) for mine, theirs in pairs))

    def order(d: Difference) -> tuple[int, int, int]:
        """By stage, then by row; prompts by the call that they are of, as later ones may hold earlier answers."""
        place = STAGES.index(d.stage)
        return (0, calls[d.row], place) if d.stage in PROMPT_STAGES and d.row is not None else (place, d.row or 0, 0)

    return tuple(sorted(found, key=order))


def holds_numbers(value: Any) -> bool:
    """Whether a value holds numbers such as a model says."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return (isinstance(value, float) and not value.is_integer()) or any(map(holds_numbers, parts))


def said_otherwise(difference: Difference, old: Case, new: Case) -> bool:
    """Whether a difference is only one of who says it: n samples of one request are n requests, and stops that code
    cuts at by itself are among its arguments."""
    if (difference.stage, difference.field) == ("sampling", "n"):
        same_prompt = max(Counter(tuple(row["prompt_ids"]) for row in old.rows).values())
        return len(old.rows) == len(new.rows) or same_prompt == max(difference.old, difference.new)
    if (difference.stage, difference.field) == ("stop", "strings") and not difference.old:
        return any(set(strings) == set(difference.new) for strings in string_lists(old.arguments))
    return False


def same_ids(old: Case, new: Case) -> bool:
    """As far as they were seen."""
    return len(old.rows) == len(new.rows) and all(
        a["output_ids"] == b["output_ids"] or unseen(a, b) for a, b in paired(old.rows, new.rows)
    )


# == Suspects ==

CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d|\b(19|20)\d\d\b|(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w*\b")

MARKER = re.compile(r"<\|[^<|>]+\|>|</?\w+>|\[/?[A-Z]+\]")  # of a chat's parts, in the templates of the field


def without_clock(text: str) -> str:
    return CLOCK.sub("", text)


def prompt_cause(old: Row, new: Row) -> str:
    """Why two prompts differ, from what led to them, their text and their ids."""
    before, after = old.get("prompt_text"), new.get("prompt_text")
    short, long = sorted((old["prompt_ids"], new["prompt_ids"]), key=len)
    first = long[: len(long) - len(short)]
    if first and long[len(first) :] == short and set(long[: max(2, len(first))]) == {long[0]}:
        return "prompt.double_bos"
    if before == after and long[: len(short)] == short and {*long[len(short) :]} == {*long[:1]}:
        return "prompt.double_bos"  # of what was put behind it
    cuts = [(row.get("request") or {}).get("cut", "").partition(" of ") for row in (old, new)]
    if cuts[0] != cuts[1] and cuts[0][2] == cuts[1][2] != "":  # two parts of as long a text
        return "prompt.truncation"
    if before is not None and after is not None and before != after:
        if without_clock(before) == without_clock(after):
            return "prompt.clock"
        written_by_hand = (old.get("template") is None) != (new.get("template") is None)
        if written_by_hand and opens_an_answer(before, after):
            return "prompt.template"
        if old.get("messages") != new.get("messages"):
            return "prompt.messages"
        if old.get("template") != new.get("template") or before.split() == after.split():
            return "prompt.template" if old.get("template") else "prompt.messages"  # blanks: who joined the text?
        if opens_an_answer(before, after):
            return "prompt.template"
        if long[-len(short) :] == short and MARKER.match(before) and MARKER.match(after):
            return "prompt.messages"  # the first ones
    if None in (before, after) and None not in (was := template_of(old), now := template_of(new)) and was != now:
        return "prompt.template"  # cut prompts of two templates
    if (before == after or None in (before, after)) and without(long[:1], long) == without(long[:1], short):
        return "prompt.tokenization"  # the tokenizer's own first id is missing, here or in a later turn
    behind = [(row.get("request") or {}).get("behind") for row in (old, new)]
    if before == after and behind[0] != behind[1]:
        return "prompt.messages"  # ids that were put behind a text
    if short and (long[-len(short) :] == short or long[: len(short)] == short):
        if before is None or after is None or before == after or old.get("template"):
            return "prompt.truncation"
        few = abs(len(before) - len(after)) < LEAST_CUT and long[: len(short)] == short
        return "prompt.messages" if few or written_so(before, after) else "prompt.truncation"
    if len(short) > 1 and long[0] == short[0] and long[1 - len(short) :] == short[1:] and before == after:
        return "prompt.truncation"  # behind a first id that was kept
    cut_alike = None in (before, after) and len(short) == len(long)  # ids that are no whole text
    if cut_alike and max(shared_ends(short, long), overlap(short, long)) * 2 >= len(short):
        last = new["prompt_ids"][-1]
        ended = last != old["prompt_ids"][-1] and last in (entry(new, "stop", "end_ids") or ())
        return "prompt.tokenization" if ended else "prompt.truncation"
    if before is None and after is None and (moved := moved_run(short, long)) is not None:
        return "prompt.truncation" if moved else "prompt.messages"
    if before == after:
        return "prompt.tokenization"
    return "prompt.template" if old.get("template") or new.get("template") else "prompt.messages"


def opens_an_answer(before: str, after: str) -> bool:
    """Whether all that one prompt text has more is markers at its end, such as those of an empty thought: a switch of a
    template, not a message."""
    less, more = sorted((before, after), key=len)
    return more.startswith(less) and MARKER.match(more[len(less) :]) is not None


def without(some: Sequence[int], ids: Sequence[int]) -> list[int]:
    return [i for i in ids if i not in some]


def may_be_written(name: str, old: Row, new: Row) -> bool:
    """Whether a prompt that was called cut may have been written so: nobody said that it was cut, and its text, as far
    as it is known, is the shorter one."""
    texts = old.get("prompt_text"), new.get("prompt_text")
    said = any((row.get("request") or {}).get("cut") for row in (old, new))
    return name == "prompt.truncation" and not said and (None in texts or texts[0] != texts[1])


SEAM = re.compile(r".*(\n|[.:!?] ?)", re.DOTALL)  # where a part of a text ends that somebody wrote as a part


def written_so(before: str, after: str) -> bool:
    """Whether of two texts, one the beginning or the end of the other, the new one has more than the old, or lacks a
    whole part: whoever cuts a text to its length cuts anywhere."""
    if not (after.startswith(before) or after.endswith(before)):
        first = before[: -len(after)] if before.endswith(after) else after
        return SEAM.fullmatch(first) is not None or before[len(first) :].startswith(("\n", "[", "<"))
    return True


LEAST_CUT = 8  # characters: what lacks fewer at its end was written otherwise, and not cut


def template_of(row: Row) -> str | None:
    name: str | None = (row.get("template") or {}).get("sha256")
    return name


def shared_ends(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two prompts share at their beginning, or at their end."""
    return max(shared_start(one, other), shared_start(one[::-1], other[::-1]))


def moved_run(one: Sequence[int], other: Sequence[int]) -> bool | None:
    """Whether the longest run that two prompts share stands elsewhere in each, as in two windows of one text, behind
    which the same was put; None where they share less than half."""
    found = difflib.SequenceMatcher(None, one, other, autojunk=False).find_longest_match()
    return found.a != found.b if found.size * 2 >= len(one) else None


def overlap(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids the end of one shares with the beginning of the other, as two windows of one text do."""
    sizes = range(min(len(one), len(other)), 0, -1)
    ways = ((one, other), (other, one))
    return next((n for n in sizes for a, b in ways if a[-n] == b[0] and a[-n:] == b[:n]), 0)


def leaks(difference: Difference, old: Row, new: Row) -> bool:
    """Whether a sampling setting comes from the checkpoint on one side and is not set on the other."""

    def neutral(row: Row, name: str) -> bool:
        return bool(row["sampling"].get(name, {}).get("value", NEUTRAL.get(name)) == NEUTRAL.get(name))

    name, names = difference.field, {*old["sampling"], *new["sampling"]} - {"seed"}
    for here, there in ((old, new), (new, old)):
        source = here["sampling"].get(name, {}).get("from")
        if source not in ("checkpoint", "below the engine") or neutral(here, name) or not neutral(there, name):
            continue
        # What was set there and is not here came in as this: another word for it, and no leak.
        moved = source == "below the engine" and any(neutral(here, n) and not neutral(there, n) for n in names)
        return not moved
    return False


def cause_name(difference: Difference, old: Row, new: Row) -> str:
    """The cause that a difference stands for. old, new: the rows it was found in."""
    if difference.stage in PROMPT_STAGES:
        return prompt_cause(old, new)
    known = cause_of_field(difference.stage, difference.field) or "post.other"
    is_setting = difference.stage == "sampling" and difference.field not in ("mode", "processors", "seed")
    return "sampling.leak" if is_setting and leaks(difference, old, new) else known


def suspects(old: Case, new: Case, found: Sequence[Difference]) -> list[tuple[str, Difference]]:
    """(cause, first difference that stands for it) in causal order; stages up to the model's ids only."""
    pairs = paired(old.rows, new.rows)
    named: dict[str, Difference] = {}
    for difference in found:
        if difference.row is None or difference.stage in ("output_ids", "decode", "text", "value"):
            continue
        if not difference.counts and difference.stage in PROMPT_STAGES:
            continue
        named.setdefault(cause_name(difference, *pairs[difference.row]), difference)
    return list(named.items())
