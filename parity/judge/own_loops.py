"""Loops over model(...) of the old code's own, whose settings and stops were not seen: what to hold
them against.

Their rows are put beside those of the other side (`of_one_kind`), have the settings that it
declares (`as_declared`), and end where its stops let them; else the ids, or the value's texts, show
why not (`own_ends`, `ended_by`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import Cause
from parity.judge.align import paired
from parity.judge.endings import (
    Decoder,
    decoded_both_ways,
    is_within_some,
    numbers_in,
    texts_in,
)
from parity.judge.inquiry import Inquiry
from parity.judge.naming import named_cause
from parity.judge.row import (
    Pairs,
    Row,
    criteria,
    end_ids,
    is_drawn,
    is_prefix,
    max_tokens,
    min_tokens,
    model_in,
    prompt_of,
    request_of,
    same_prompt,
    stop_strings,
    text_of,
)
from parity.judge.stages.prompt import RESPONSE
from parity.judge.stages.stop import told_stops
from parity.record.rows import BUT_THE_LAST, LIKELIEST, by_itself

# == Rows beside rows ==


def of_one_kind(old: Case, new: Case) -> tuple[Case, Case]:
    """Rows of ids that were only read say something where both sides have them, or where one side
    has nothing else: it reads prompts by itself and chooses what comes next. Beside rows of answers
    they are left out where the other side has none: it was recorded without, or reads another
    way."""
    old, new = on_both(of_same_models, old, new)
    change = as_read if say_what_is_read(old, new) else without_unasked
    old, new = on_both(change, old, new)
    return on_both(said_once, old, new)


def on_both(change: Callable[[Case, Case], Case], old: Case, new: Case) -> tuple[Case, Case]:
    """change: a case, held against the other side."""
    return change(old, new), change(new, old)


def say_what_is_read(old: Case, new: Case) -> bool:
    """Whether rows of ids that were only read say something."""
    if has_scored(old) and has_scored(new):
        return True
    if not old.rows or not new.rows:
        return False
    return is_all_by_itself(old) or is_all_by_itself(new)


def has_scored(case: Case) -> bool:
    return any(row.get("scored") for row in case.rows)


def is_all_by_itself(case: Case) -> bool:
    return all(map(by_itself, case.rows))


def without_unasked(case: Case, other: Case) -> Case:
    """Without rows that were only read, unless the other side has as many, or may have asked for
    what comes next instead: for a single token each of prompts that this side has not."""
    known = [row["prompt_ids"] for row in case.rows]
    strangers = [row for row in other.rows if row["prompt_ids"] not in known]
    may_ask = bool(strangers) and all(max_tokens(row) == 1 for row in strangers)
    if may_ask or len(case.rows) == len(other.rows):
        return case
    answers = [row for row in case.rows if not row.get("scored")]
    return replace(case, rows=tuple(answers))


def of_same_models(case: Case, other: Case) -> Case:
    """Without what a code's own loop had another model read beside the one that both sides use,
    such as a draft, which only guesses what that one says."""
    models = {weights_in(row) for row in other.rows}
    rows = []
    for row in case.rows:
        if not by_itself(row) or weights_in(row) in models:
            rows.append(row)
    return replace(case, rows=tuple(rows)) if rows else case


def said_once(case: Case, other: Case) -> Case:
    """What a code's own loop reads, or answers by the words of several, more often than the other
    side asks for it says all the first time."""
    asked = Counter(map(prompt_of, other.rows))
    said = Counter[Any]()
    rows = []
    for row in case.rows:
        prompt = prompt_of(row)
        name = prompt, tuple(row["output_ids"])
        said[name] += by_itself(row)
        is_other_question = row.get("scored") and not asked[prompt]
        if is_other_question or said[name] <= max(1, asked[prompt]):
            rows.append(row)
    return replace(case, rows=tuple(rows))


def weights_in(row: Row) -> Any:
    model = model_in(row)
    return model.get("files") or model.get("path")


OF_ALL_IDS = (
    "marks",
    "positions",
)  # of a forward: digests over its ids, which those of fewer ids do not equal


def is_end(some: Sequence[int], ids: Sequence[int]) -> bool:
    return bool(some) and len(some) < len(ids) and ids[-len(some) :] == some


def as_read(case: Case, other: Case) -> Case:
    """To score a response, an engine reads it behind its prompt. Code of one's own may leave out
    the last id, which nothing follows, or read the prompt alone and pick the next id from its
    logits, or read what a draft guessed: so do its rows, then."""
    known = {prompt_of(row) for row in other.rows}
    return replace(case, rows=tuple(read_as(row, known) for row in case.rows))


def read_as(row: Row, known: Collection[tuple[int, ...]]) -> Row:
    """A row whose prompt is as the other side read it.   known: prompts of the other side."""
    ids = row["prompt_ids"]
    request = request_of(row)
    response = request.get(RESPONSE)
    if response is None or tuple(ids) in known:
        return row
    found = tuple(ids[:-1])
    if found not in known:
        found = tuple(ids[: len(ids) - response])
        is_cut = any(is_end(found, prompt) for prompt in known)
        if found not in known and not is_cut:
            return row
    inputs = row.get("inputs")
    seen = {} if inputs is None else {"inputs": without_digests(inputs)}
    left = response - (len(ids) - len(found))
    return {**row, "prompt_ids": [*found], "request": {**request, RESPONSE: left}, **seen}


def without_digests(inputs: Row) -> Row:
    return {name: inputs[name] for name in inputs if name not in OF_ALL_IDS}


# == Settings ==


def of_own_loop(case: Case) -> bool:
    """Whether the code chose tokens by itself: by which settings was not seen."""
    return any(row.get("loop") for row in case.rows)


def is_sampled(case: Case) -> bool:
    return any(is_drawn(row) for row in case.rows)


def may_be_sampled(case: Case) -> bool:
    return is_sampled(case) or of_own_loop(case)


def as_declared(old: Case, new: Case, greedy: bool = False) -> tuple[Case, Case]:
    """Rows of a loop of the code's own have the settings that the other side declares for its
    requests, by which their ids are then judged; but where it took the likeliest, and the other
    side does too and parts, nothing changed them.   greedy: the loop never takes another one, so
    what is sampled on the other side is not what it does."""
    if of_own_loop(old) == of_own_loop(new):
        return old, new
    beside: dict[int, Row] = {}
    for one, other in paired(old.rows, new.rows):
        beside[id(one)] = other
        beside[id(other)] = one
    return declared(old, beside, greedy), declared(new, beside, greedy)


def declared(case: Case, beside: Mapping[int, Row], greedy: bool) -> Case:
    """beside: id of a row -> the other side's."""
    rows = []
    for row in case.rows:
        other = beside.get(id(row))
        if row.get("loop") and other is not None:
            row = {**row, "sampling": settings_as_declared(row, other, greedy)}
        rows.append(row)
    return replace(case, rows=tuple(rows))


CHOSE_THE_LIKELIEST = {"temperature": {"value": 0, "from": "default"}}


def settings_as_declared(row: Row, other: Row, greedy: bool) -> dict[str, Any]:
    is_parted = greedy if is_drawn(other) else not is_prefix(row["output_ids"], other["output_ids"])
    if row["loop"] == LIKELIEST and is_parted:
        return CHOSE_THE_LIKELIEST
    return settings_of(row, other)


def settings_of(row: Row, other: Row) -> dict[str, Any]:
    """The other side's, with the seed that a loop's own draws came from, or none, where that was
    seen; a script's may have been meant for them."""
    settings = dict(other.get("sampling", {}))
    seed = request_of(row).get("process")
    if seed is None or seed["from"] == "script" or not is_drawn(other):
        return settings
    settings.pop("seed", None)
    if seed["from"] == "process":
        settings["seed"] = seed
    return settings


# == Ends ==

Reason = tuple[str, str]  # a cause's name, and what it says here


@dataclass(frozen=True)
class Ends:
    """Where answers of one prompt end on both sides.   stops: that the new code was told."""

    inquiry: Inquiry

    @functools.cached_property
    def pairs(self) -> Pairs:
        return [pair for pair in self.inquiry.pairs if same_prompt(*pair)]

    @functools.cached_property
    def stops(self) -> set[str]:
        return told_stops(self.inquiry.new)

    @property
    def decode(self) -> Decoder | None:
        return self.inquiry.decode

    def text(self, ids: Sequence[int]) -> str:
        return self.decode(ids, True, False) if self.decode else ""

    # -- of answers that both sides choose alike --

    def reason(self, old: Row, new: Row) -> Reason | None:
        """Why the longer of two answers goes on."""
        before = old["output_ids"]
        after = new["output_ids"]
        if not before or not after or not is_prefix(before, after):
            return None
        if len(after) < len(before):
            return self.reason_of_new_end(old, new)
        return self.reason_of_old_end(old, new) if old.get("loop") else None

    def reason_of_new_end(self, old: Row, new: Row) -> Reason | None:
        before = old["output_ids"]
        after = new["output_ids"]
        most = max_tokens(new)
        if len(after) == most:
            return "stop.length", f"{most} tokens are allowed, the old answer has {len(before)}"
        if not old.get("loop"):
            return None
        if after[-1] in end_ids(new):
            return "stop.eos_set", goes_on_behind(after[-1])
        text = self.text(after)
        for stop in self.stops:
            if stop in text:
                return "stop.strings", f"the old loop goes on behind {stop!r}"
        return None

    def reason_of_old_end(self, old: Row, new: Row) -> Reason | None:
        ids = old["output_ids"]
        if ids[-1] in end_ids(new) or any(stop in text_of(old) for stop in self.stops):
            return None
        if self.decode and not self.text(ids[-1:]):
            behind = f"the old loop ends at id {ids[-1]}, behind which the new answer goes on"
            return "stop.eos_set", behind
        ended = f"the old loop ended after {len(ids)} tokens"
        is_argument = len(ids) in numbers_in(self.inquiry.old.arguments)
        if self.stops and not is_argument:
            return "stop.strings", f"{ended}, where no stop of the new code is"
        return "stop.length", f"{ended}, {max_tokens(new)} are allowed"

    # -- of samples --

    @functools.cached_property
    def loops(self) -> Pairs:
        """Rows of a loop whose other side declares where it ends."""
        loops = [(old, new) for old, new in self.pairs if old.get("loop")]
        return [(old, new) for old, new in loops if new.get("stop")]

    def passes_new_end(self, old: Row, new: Row) -> Reason | None:
        """Behind an id that ends the new answers, and to be seen in a text of the value: rows of a
        batch whose others go on are cut afterwards."""
        if min_tokens(new):
            return None
        ids = old["output_ids"]
        ends = end_ids(new)
        for position, i in enumerate(ids[:-1]):
            if i in ends:
                is_seen = self.stand_in_texts(ids[position + 1 :], self.inquiry.old)
                return ("stop.eos_set", goes_on_behind(i)) if is_seen else None
        return None

    def is_cut_short(self, old: Row, new: Row) -> bool:
        """Whether a loop ended where nothing that the new code declares would end it, and the new
        code cuts nothing off."""
        ids = old["output_ids"]
        if not ids or self.decode is None or ids[-1] in end_ids(new) or criteria(new):
            return False
        most = max_tokens(new)
        is_long = most is None or chosen(old) >= most
        if is_long or any(stop in self.text(ids) for stop in stop_strings(new)):
            return False
        return self.stand_in_texts(new["output_ids"], self.inquiry.new)

    def stand_in_texts(self, ids: Sequence[int], case: Case) -> bool:
        """Whether some text of a value holds these ids, with or without special tokens."""
        if self.decode is None:
            return False
        wholes = [text.strip() for text in decoded_both_ways(ids, self.decode)]
        texts = texts_in(case.value)
        return any(whole and is_within_some(whole, texts) for whole in wholes)


def ended_by(inquiry: Inquiry) -> Cause | None:
    """Why each answer that goes on on one side alone ends on the other, as far as it is declared or
    a loop's ids show it."""
    ends = Ends(inquiry)
    reasons = []
    for old, new in ends.pairs:
        if old["output_ids"] == new["output_ids"]:
            continue
        reason = ends.reason(old, new)
        if reason is None:
            return None
        reasons.append(reason)
    if not reasons:
        return None
    name, said = reasons[0]
    return named_cause(name, "likely", said, "one answer is the beginning of the other")


def own_ends(inquiry: Inquiry) -> Cause | None:
    """Why answers that are sampled end elsewhere than the new settings let them, where ids or texts
    show it."""
    ends = Ends(inquiry)
    reasons = [ends.passes_new_end(*pair) or too_long(*pair) for pair in ends.loops]
    told = [reason for reason in reasons if reason is not None]
    if not told and ends.loops and all(ends.is_cut_short(*pair) for pair in ends.loops):
        told = by_counts(ends.loops)
    if not told:
        return None
    name, said = told[0]
    return named_cause(name, "likely", said, "the golden's ids and the new settings say so")


def goes_on_behind(end: int) -> str:
    return f"the old loop goes on behind id {end}, which ends an answer now"


def by_counts(pairs: Pairs) -> list[Reason]:
    """Why answers end that nothing of the new settings ends: by a length of their own, or by an id,
    which may be the last one of a loop, that was not seen."""
    old, new = pairs[0]
    said = f"the old loop chose {chosen(old)} tokens"
    allowed = f"{max_tokens(new)} are allowed"
    if all(max_tokens(b) == chosen(a) + 1 for a, b in pairs):
        return [("stop.length", f"{said}, {allowed}")]
    hides_last = old["loop"] == BUT_THE_LAST
    if not end_ids(new) and (hides_last or not has_one_length(pairs)):
        return [("stop.eos_set", f"{said}, where no id ends an answer now and {allowed}")]
    is_long = len(pairs) > 1 and chosen(old) >= LONG
    if not has_one_length(pairs) or (hides_last and not is_long):
        return []
    return [("stop.length", f"{said} and ended nowhere else, {allowed}")]


def has_one_length(pairs: Pairs) -> bool:
    return len({chosen(old) for old, _ in pairs}) == 1


LONG = 8  # tokens: that several shorter answers end at one length may be chance


def chosen(row: Row) -> int:
    """How many tokens a loop chose."""
    return len(row["output_ids"]) + int(row["loop"] == BUT_THE_LAST)


def too_long(old: Row, new: Row) -> Reason | None:
    most = max_tokens(new)
    if most is None or chosen(old) <= most:
        return None
    return "stop.length", f"the old loop chose {chosen(old)} tokens, {most} are allowed"
