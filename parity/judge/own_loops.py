"""Loops over model(...) of the old code's own, whose settings and stops were not seen: what to hold
them against.

Their rows are put beside those of the other side (`of_one_kind`), have the settings that it
declares (`as_declared`), and end where its stops let them; else the ids, or the value's texts, show
why not (`own_ends`, `ended_by`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from parity.golden import Case
from parity.judge.align import paired
from parity.judge.endings import Decode, leaves
from parity.judge.row import (
    Row,
    criteria,
    end_ids,
    is_drawn,
    is_prefix,
    max_tokens,
    min_tokens,
    request_of,
    same_prompt,
    stop_strings,
)
from parity.judge.stages.stop import told_stops
from parity.record.rows import BUT_THE_LAST, LIKELIEST, by_itself
from parity.verdict import CAUSES, Cause

# == Rows beside rows ==


def of_one_kind(old: Case, new: Case) -> tuple[Case, Case]:
    """Rows of ids that were only read say something where both sides have them, or where one side
    has nothing else: it reads prompts by itself and chooses what comes next. Beside rows of answers
    they are left out where the other side has none: it was recorded without, or reads another
    way."""
    old, new = without_guesses(old, new), without_guesses(new, old)
    is_read = all(any(row.get("scored") for row in case.rows) for case in (old, new))
    if is_read or (old.rows and new.rows and (is_all_by_itself(old) or is_all_by_itself(new))):
        return as_read(old, new), as_read(new, old)
    return without_unasked(old, new), without_unasked(new, old)


def is_all_by_itself(case: Case) -> bool:
    return all(map(by_itself, case.rows))


def without_unasked(case: Case, other: Case) -> Case:
    """Without rows that were only read, and are not asked for on the other side."""
    rows = (row for row in case.rows if not row.get("scored") or asked_alone(row, case, other))
    return replace(case, rows=tuple(rows))


def asked_alone(row: Row, case: Case, other: Case) -> bool:
    """Whether a prompt that is read on this side is answered on the other alone, which asked for
    what may come next; or may be one of those, if the other asked for a single token each of
    prompts that this side has not."""
    if len(case.rows) == len(other.rows):
        return True
    known = [one["prompt_ids"] for one in case.rows]
    strangers = [one for one in other.rows if one["prompt_ids"] not in known]
    if strangers and all(max_tokens(one) == 1 for one in strangers):
        return True
    prompt = tuple(row["prompt_ids"])
    return prompt in answered_prompts(other) and prompt not in answered_prompts(case)


def answered_prompts(case: Case) -> set[tuple[int, ...]]:
    return {tuple(row["prompt_ids"]) for row in case.rows if not row.get("scored")}


def without_guesses(case: Case, other: Case) -> Case:
    """Without what a code's own loop had another model read beside the one that both sides use,
    such as a draft, which only guesses what that one says; and an answer once, though a loop chose
    it by the words of several."""
    models = {weights_in(row) for row in other.rows}
    known = [row for row in case.rows if not by_itself(row) or weights_in(row) in models]
    answers, asked = Counter[Any](), Counter(tuple(row["prompt_ids"]) for row in other.rows)
    rows = []
    for row in known:
        name = prompt, _ = tuple(row["prompt_ids"]), tuple(row["output_ids"])
        answers[name] += bool(row.get("loop"))
        if answers[name] <= max(1, asked[prompt]):
            rows.append(row)
    return replace(case, rows=tuple(rows)) if rows else case


def weights_in(row: Row) -> Any:
    model = row.get("model", {})
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
    logits, or read what a draft guessed: so do its rows, then. What is read more often than on the
    other side says all the first time."""
    asked = Counter(tuple(row["prompt_ids"]) for row in other.rows)
    seen, rows = Counter[Any](), []
    for row in case.rows:
        made = read_as(row, asked)
        prompt = tuple(made["prompt_ids"])
        seen[prompt] += 1
        if not made.get("scored") or not 0 < asked[prompt] < seen[prompt]:
            rows.append(made)
    return replace(case, rows=tuple(rows))


def read_as(row: Row, known: Collection[tuple[int, ...]]) -> Row:
    """A row whose prompt is as the other side read it.   known: prompts of the other side."""
    response = request_of(row).get("response")
    ids = row["prompt_ids"]
    if response is None or tuple(ids) in known:
        return row
    shorter = [tuple(ids[: len(ids) - count]) for count in dict.fromkeys((1, response))]
    found = next((some for some in shorter if some in known), None)
    if found is None and any(is_end(shorter[-1], prompt) for prompt in known):
        found = shorter[-1]  # of one that was cut
    if found is None:
        return row
    inputs = row.get("inputs")
    seen = {} if inputs is None else {"inputs": without_digests(inputs)}
    return {**row, "prompt_ids": [*found], **seen}


def without_digests(inputs: Row) -> Row:
    return {name: inputs[name] for name in inputs if name not in OF_ALL_IDS}


# == Settings ==


def of_own_loop(case: Case) -> bool:
    """Whether the code chose tokens by itself: by which settings was not seen."""
    return any(row.get("loop") for row in case.rows)


def as_declared(old: Case, new: Case, greedy: bool = False) -> tuple[Case, Case]:
    """Rows of a loop of the code's own have the settings that the other side declares for its
    requests, by which their ids are then judged; but where it took the likeliest, and the other
    side does too and parts, nothing changed them.   greedy: the loop never takes another one, so
    what is sampled on the other side is not what it does."""
    if of_own_loop(old) == of_own_loop(new):
        return old, new
    beside: dict[int, Row] = {}
    for one, other in paired(old.rows, new.rows):
        beside[id(one)], beside[id(other)] = other, one

    def declared(row: Row) -> Row:
        other = beside.get(id(row))
        if not row.get("loop") or other is None:
            return row
        is_parted = greedy if is_drawn(other) else parted(row, other)
        is_plain = row["loop"] == LIKELIEST and is_parted
        settings = CHOSE_THE_LIKELIEST if is_plain else settings_of(row, other)
        return {**row, "sampling": settings}

    rows, new_rows = (tuple(map(declared, case.rows)) for case in (old, new))
    return replace(old, rows=rows), replace(new, rows=new_rows)


def parted(old: Row, new: Row) -> bool:
    """Whether another id was chosen somewhere; one answer may be the beginning of the other."""
    return any(one != other for one, other in zip(old["output_ids"], new["output_ids"]))


CHOSE_THE_LIKELIEST = {"temperature": {"value": 0, "from": "default"}}


def settings_of(row: Row, other: Row) -> dict[str, Any]:
    """The other side's, with the seed that a loop's own draws came from, or none, where that was
    seen; a script's may have been meant for them."""
    settings, seed = {**other.get("sampling", {})}, request_of(row).get("process")
    if is_drawn(other) and seed is not None and seed["from"] != "script":
        settings.pop("seed", None)
        settings |= {"seed": seed} if seed["from"] == "process" else {}
    return settings


# == Ends ==

Reason = tuple[str, str]  # a cause's name, and what it says here


def ended_by(old: Case, new: Case, decode: Decode | None) -> Cause | None:
    """Why each answer that goes on on one side alone ends on the other, as far as it is declared or
    a loop's ids show it."""
    apart = [
        (a, b)
        for a, b in paired(old.rows, new.rows)
        if same_prompt(a, b) and a["output_ids"] != b["output_ids"]
    ]
    given = {number for _, number in leaves(dict(old.arguments), kind=int)}
    found = [reason_to_end(a, b, told_stops(new), decode, given) for a, b in apart]
    if not found or found[0] is None or None in found:
        return None
    return likely(found[0], "one answer is the beginning of the other")


def likely(reason: Reason, proof: str) -> Cause:
    name, said = reason
    return Cause(name, "likely", f"{CAUSES[name]}: {said}", proof)


def reason_to_end(
    old: Row, new: Row, stops: Collection[str], decode: Decode | None, given: Collection[int]
) -> Reason | None:
    """stops: that the new code was told.   given: numbers among the arguments."""
    mine, theirs = old["output_ids"], new["output_ids"]
    if not mine or not theirs or not is_prefix(mine, theirs):
        return None
    if len(theirs) < len(mine):
        return reason_of_new_end(old, new, stops, decode)
    is_at_stop = any(stop in (old.get("text") or "") for stop in stops)
    if not old.get("loop") or mine[-1] in end_ids(new) or is_at_stop:
        return None
    if decode and not decode(mine[-1:], True, False):
        behind = f"the old loop ends at id {mine[-1]}, behind which the new answer goes on"
        return "stop.eos_set", behind
    ended = f"the old loop ended after {len(mine)} tokens"
    if stops and len(mine) not in given:
        return "stop.strings", f"{ended}, where no stop of the new code is"
    return "stop.length", f"{ended}, {max_tokens(new)} are allowed"


def reason_of_new_end(
    old: Row, new: Row, stops: Collection[str], decode: Decode | None
) -> Reason | None:
    """Why a new answer ends where the old one goes on."""
    mine, theirs = old["output_ids"], new["output_ids"]
    most = max_tokens(new)
    if len(theirs) == most:
        return "stop.length", f"{most} tokens are allowed, the old answer has {len(mine)}"
    if not old.get("loop"):
        return None
    if theirs[-1] in end_ids(new):
        return "stop.eos_set", goes_on_behind(theirs[-1])
    text = decode(theirs, True, False) if decode else ""
    stopped = next((stop for stop in stops if stop in text), None)
    return ("stop.strings", f"the old loop goes on behind {stopped!r}") if stopped else None


def goes_on_behind(end: int) -> str:
    return f"the old loop goes on behind id {end}, which ends an answer now"


def own_ends(old: Case, new: Case, decode: Decode | None) -> Cause | None:
    """Why answers that are sampled end elsewhere than the new settings let them, where ids or texts
    show it."""
    pairs = paired(old.rows, new.rows)
    rows = [(a, b) for a, b in pairs if a.get("loop") and same_prompt(a, b) and b.get("stop")]
    texts, new_texts = ([text for _, text in leaves(case.value)] for case in (old, new))
    reasons = [passes_new_end(a, b, texts, decode) or too_long(a, b) for a, b in rows]
    told = [reason for reason in reasons if reason is not None]
    if not told and rows and all(cut_short(a, b, new_texts, decode) for a, b in rows):
        told = by_counts(rows)
    return likely(told[0], "the golden's ids and the new settings say so") if told else None


def by_counts(rows: Sequence[tuple[Row, Row]]) -> list[Reason]:
    """Why answers end that nothing of the new settings ends: by a length of their own, or by an id,
    which may be the last one of a loop, that was not seen."""
    old, new = rows[0]
    counts = {chosen(a) for a, _ in rows}
    said = f"the old loop chose {chosen(old)} tokens"
    allowed = f"{max_tokens(new)} are allowed"
    hides_last = old["loop"] == BUT_THE_LAST
    if all(max_tokens(b) == chosen(a) + 1 for a, b in rows):
        return [("stop.length", f"{said}, {allowed}")]
    if not end_ids(new) and (len(counts) > 1 or hides_last):
        return [("stop.eos_set", f"{said}, where no id ends an answer now and {allowed}")]
    is_long = len(rows) > 1 and chosen(old) >= LONG
    if len(counts) > 1 or (hides_last and not is_long):
        return []
    return [("stop.length", f"{said} and ended nowhere else, {allowed}")]


LONG = 8  # tokens: that several shorter answers end at one length may be chance


def chosen(row: Row) -> int:
    """How many tokens a loop chose."""
    return len(row["output_ids"]) + int(row["loop"] == BUT_THE_LAST)


def too_long(old: Row, new: Row) -> Reason | None:
    most = max_tokens(new)
    if most is None or chosen(old) <= most:
        return None
    return "stop.length", f"the old loop chose {chosen(old)} tokens, {most} are allowed"


def passes_new_end(
    old: Row, new: Row, texts: Sequence[str], decode: Decode | None
) -> Reason | None:
    """Behind an id that ends the new answers, and to be seen in a text of the value: rows of a
    batch whose others go on are cut afterwards."""
    ids, ends = old["output_ids"], end_ids(new)
    if decode is None or min_tokens(new):
        return None
    for position, i in enumerate(ids[:-1]):
        if i in ends:
            is_seen = stand_in_texts(ids[position + 1 :], texts, decode)
            return ("stop.eos_set", goes_on_behind(i)) if is_seen else None
    return None


def cut_short(old: Row, new: Row, texts: Sequence[str], decode: Decode | None) -> bool:
    """Whether a loop ended where nothing that the new code declares would end it, and the new code
    cuts nothing off."""
    ids, most = old["output_ids"], max_tokens(new)
    if not ids or decode is None or ids[-1] in end_ids(new) or criteria(new):
        return False
    text = decode(ids, True, False)
    if most is None or chosen(old) >= most or any(stop in text for stop in stop_strings(new)):
        return False
    return stand_in_texts(new["output_ids"], texts, decode)


def stand_in_texts(ids: Sequence[int], texts: Sequence[str], decode: Decode) -> bool:
    """Whether some text holds these ids, with or without its special tokens."""
    wholes = [decode(ids, skip, False).strip() for skip in (True, False)]
    return any(whole and whole in text for whole in wholes for text in texts)
