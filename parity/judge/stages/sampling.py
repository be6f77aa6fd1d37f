"""Sampling: settings, seeds, forms of structured output."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from parity.judge.row import Row, drew, entry, is_drawn, seeds_of
from parity.judge.stages.stage import KEPT, Broken, Compared, Invariant, Kept, Stage, Tools, cause_of_table
from parity.record.rows import CHOSEN_BY_ITSELF, NEUTRAL
from parity.verdict import Difference, brief, equal

ONLY_DRAWN = {"temperature", "top_p", "top_k", "min_p"}


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


def structure(row: Row, tools: Tools) -> Kept:
    """Where the request says its form: a regular expression, one of some strings, or JSON (which is only parsed)."""
    asked = (row.get("request") or {}).get("structure")
    if not asked or tools.decode is None:
        return None
    ids, ends = row["output_ids"], entry(row, "stop", "end_ids") or ()
    if not ids or ids[-1] not in ends:
        return KEPT  # cut short: its form is not whole
    [(form, value)], said = asked.items(), tools.decode(ids[:-1], True, False)
    if form == "choice":
        kept = said in value
    elif form == "regex":
        try:
            kept = re.fullmatch(value, said) is not None
        except re.error:  # a grammar's expressions are not all Python's
            return None
    else:
        kept = is_json(said) if form == "json" else True
    return KEPT if kept else ("sampling.processors", f"{brief(said)} has not the form that was asked for, {form}")


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def seeds(rows: Sequence[Row]) -> tuple[int, int] | None:
    """Two rows of one prompt, one seed and one setting that were drawn otherwise: a seed is a request's own."""
    known: dict[str, int] = {}
    for number, row in enumerate(rows):
        seed = (row.get("request") or {}).get("seed")
        if seed is None or not is_drawn(row):
            continue
        settings = {**row["sampling"], "seed": None, "n": None}
        pictures = [picture.get("sha256") for picture in row.get("images", ())]
        asked = [row["prompt_ids"], pictures, seed, settings, row["stop"], row["model"].get("path")]
        key = json.dumps(asked, sort_keys=True)
        first = known.setdefault(key, number)
        if rows[first]["output_ids"] != row["output_ids"]:
            return first, number
    return None


# == The stage ==


def compare_seeds(comparison: Compared) -> Iterator[Difference]:
    return seed_differences(comparison.pairs)


def weigh_samples(difference: Difference, comparison: Compared) -> Difference | None:
    """n samples of one request are n requests: where the rows are as many, nothing differs."""
    if difference.field != "n":
        return difference
    old, new = comparison.old, comparison.new
    same_prompt = max(Counter(tuple(row["prompt_ids"]) for row in old.rows).values())
    same = len(old.rows) == len(new.rows) or same_prompt == max(difference.old, difference.new)
    return None if same else difference


def seeds_across(comparison: Compared) -> Iterator[Broken]:
    if (broken := seeds(comparison.new.rows)) is not None:
        said = f"rows {broken[0]} and {broken[1]} have one prompt, seed and setting, and other draws"
        yield Broken("draws", "rng", broken[1], said, "output_ids")


def cause_of_sampling(difference: Difference, old: Row, new: Row) -> str:
    is_setting = difference.field not in ("mode", "processors", "seed")
    if is_setting and leaks(difference, old, new):
        return "sampling.leak"
    return cause_of_table(difference, old, new)


STAGE = Stage(
    "sampling",
    fields=("sampling",),
    compare=sampling_differences,
    compare_all=compare_seeds,
    weigh=weigh_samples,
    invariants=(Invariant("structure", "output_ids", structure),),
    across=seeds_across,
    cause=cause_of_sampling,
)
