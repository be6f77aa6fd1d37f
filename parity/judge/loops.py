"""Loops over model(...) of the old code's own, whose settings and stops were not seen: their rows
are put beside those of the other side (`of_one_kind`), and have the settings that it declares
(`as_declared`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.goldens.store import Case
from parity.judge.align import paired
from parity.judge.row import (
    Row,
    has_loop,
    is_drawn,
    is_prefix,
    max_tokens,
    model_in,
    prompt_of,
    request_of,
)
from parity.judge.stages.prompt import RESPONSE, is_whole_text
from parity.record.rows import LIKELIEST, by_itself

# == Rows beside rows ==


def of_one_kind(old: Case, new: Case) -> tuple[Case, Case]:
    """Rows of ids that were only read say something where both sides have them, or where one side
    has nothing else: it reads prompts by itself and chooses what comes next. Beside rows of answers
    they are left out where the other side has none: it was recorded without, or reads another
    way."""
    old, new = on_both(of_same_models, old, new)
    if say_what_is_read(old, new):
        old, new = as_read(old, new), as_read(new, old, lacks_last=True)
    else:
        old, new = on_both(without_unasked, old, new)
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


Prompts = Collection[tuple[int, ...]]
OF_ALL_IDS = (
    "marks",
    "positions",
)  # of a forward: digests over its ids, which those of fewer ids do not equal


def is_end(some: Sequence[int], ids: Sequence[int]) -> bool:
    return bool(some) and len(some) < len(ids) and ids[-len(some) :] == some


def as_read(case: Case, other: Case, lacks_last: bool = False) -> Case:
    """To score a response, an engine reads it behind its prompt. Code of one's own may leave out
    the last id, which nothing follows, or read the prompt alone and pick the next id from its
    logits, or read what a draft guessed: so do its rows, then. Where both sides score responses,
    none is left out.   lacks_last: whether the other side may have left an id out; an engine does
    not."""
    known = {prompt_of(row) for row in other.rows}
    cut = {prompt_of(row) for row in other.rows if lacks_last and not is_whole_text(row)}
    cut -= set(map(prompt_of, case.rows))
    alone = set() if any(map(response_of, other.rows)) else known
    return replace(case, rows=tuple(read_as(row, known, cut, alone) for row in case.rows))


def response_of(row: Row) -> int:
    """How many ids of a prompt are a response that is scored."""
    return request_of(row).get(RESPONSE) or 0


def read_as(row: Row, known: Prompts, cut: Prompts, alone: Prompts) -> Row:
    """A row whose prompt is as the other side read it.   known: prompts of the other side.
    cut: those that may lack a last id.   alone: those that may lack a response."""
    ids = row["prompt_ids"]
    request = request_of(row)
    response = request.get(RESPONSE)
    if response is None or tuple(ids) in known:
        return row
    found = tuple(ids[:-1])
    if found not in cut:
        found = tuple(ids[: len(ids) - response])
        is_cut = any(is_end(found, prompt) for prompt in alone)
        if found not in alone and not is_cut:
            return row
    inputs = row.get("inputs")
    seen = {} if inputs is None else {"inputs": without_digests(inputs)}
    left = response - (len(ids) - len(found))
    return {**row, "prompt_ids": [*found], "request": {**request, RESPONSE: left}, **seen}


def without_digests(inputs: Row) -> Row:
    return {name: inputs[name] for name in inputs if name not in OF_ALL_IDS}


# == Settings ==


def as_declared(old: Case, new: Case, greedy: bool = False) -> tuple[Case, Case]:
    """Rows of a loop of the code's own have the settings that the other side declares for its
    requests, by which their ids are then judged; but where it took the likeliest, and the other
    side does too and parts, nothing changed them.   greedy: the loop never takes another one, so
    what is sampled on the other side is not what it does."""
    if has_loop(old) == has_loop(new):
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
