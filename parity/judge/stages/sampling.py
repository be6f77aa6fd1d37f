"""Sampling: settings, seeds, forms of structured output."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from parity.goldens.store import GoldenError
from parity.goldens.verdict import Difference, brief, equal
from parity.judge.row import (
    Row,
    drew,
    end_ids,
    entry,
    has_beams,
    images_in,
    is_drawn,
    min_tokens,
    prompt_of,
    recorded_seed,
    request_of,
    seed_source,
    seeds_of,
)
from parity.judge.stages.stage import (
    KEPT,
    Broken,
    Compared,
    Invariant,
    Kept,
    Stage,
    Tools,
)
from parity.record.rows import (
    CHOSEN_BY_ITSELF,
    MASKS,
    NEUTRAL,
    PENALTIES,
    PLUGIN_SETTINGS,
    STRUCTURED,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it has no public successor
    import sre_parse

ONLY_DRAWN = {"temperature", "top_p", "top_k", "min_p"}


OF_LOGITS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "processors",
)


def done_to_logits(row: Row) -> list[str]:
    """What is done to a row's logits before a token is chosen, by the settings' names."""
    done = []
    for name in OF_LOGITS:
        if entry(row, "sampling", name) not in (NEUTRAL[name], 0, [], None):
            done.append(name)
    return done


def sampling_differences(old: Row, new: Row) -> Iterator[Difference]:
    if old.get("scored") and new.get("scored"):
        yield from score_differences(old, new)
    if not old.get("sampling") or not new.get("sampling"):
        return
    yield from mode_differences(old, new)
    for name in sorted({*old["sampling"], *new["sampling"]} - {"seed"}):
        if is_other_setting(name, old, new):
            before = entry(old, "sampling", name)
            after = entry(new, "sampling", name)
            yield Difference("sampling", name, before, after)
    for form, (before, after) in both_structures(old, new).items():
        if before != after:
            yield Difference("sampling", form, before, after)


def score_differences(old: Row, new: Row) -> Iterator[Difference]:
    """At which temperature responses are scored: code of one's own may divide logits unseen."""
    before, after = (request_of(row).get("temperature", 1.0) for row in (old, new))
    if before != after:
        yield Difference("sampling", "temperature", before, after, counts=False)


def mode_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Greedy on one side alone; or a loop that takes other tokens than the likeliest."""
    is_greedy = not is_drawn(new) and not done_to_logits(new) and not min_tokens(new)
    if old.get("loop") in CHOSEN_BY_ITSELF and is_greedy:
        name = "mode" if drew(old) else "processors"
        yield Difference("sampling", name, "other tokens than the likeliest", "the likeliest")
    if is_drawn(old) != is_drawn(new):
        before = "drawn" if is_drawn(old) else "greedy"
        after = "drawn" if is_drawn(new) else "greedy"
        yield Difference("sampling", "mode", before, after)


def is_other_setting(name: str, old: Row, new: Row) -> bool:
    """Whether a setting is another one, and says so by itself."""
    before = entry(old, "sampling", name)
    after = entry(new, "sampling", name)
    has_as_many = len(processors(old)) == len(processors(new))
    if name == "processors":
        return not has_as_many and bool(before != after)
    if name in ONLY_DRAWN and not (is_drawn(old) and is_drawn(new)):
        return False
    if has_as_many and is_hidden(name, old, new):
        return False
    return not is_same_setting(name, before, after)


def is_hidden(name: str, old: Row, new: Row) -> bool:
    """Whether a setting that a row does not name may be what one of its processors does: only the
    ids can tell."""
    if name not in PLUGIN_SETTINGS:
        return False
    told = {*MASKS, "penalties", STRUCTURED} - {name}
    for row in (old, new):
        done = entry(row, "sampling", "processors") or ()
        if entry(row, "sampling", name) is None and not told.issuperset(done):
            return True
    return False


def is_same_setting(name: str, before: Any, after: Any) -> bool:
    is_off = name == "top_k" and {before, after} <= {0, -1, None}
    return is_off or equal(before, after, 1e-9)


def processors(row: Row) -> list[str]:
    """Names of what else is done to the logits; all penalties and bans are as one, which a
    processor may be."""
    names = entry(row, "sampling", "processors") or ()
    others = [name for name in names if name not in (*MASKS, "penalties")]
    is_penalised = any(entry(row, "sampling", name) for name in PENALTIES)
    return others if not is_penalised and len(others) == len(names) else [*others, "penalties"]


def both_structures(old: Row, new: Row) -> dict[str, tuple[Any, Any]]:
    """Forms that both sides ask for, where they are the same in kind."""
    mine = request_of(old).get("structure") or {}
    theirs = request_of(new).get("structure") or {}
    found = {}
    for form in mine:
        if form in theirs:
            found[form] = as_meant(form, mine[form]), as_meant(form, theirs[form])
    return found


def as_meant(form: str, value: Any) -> Any:
    """What a form asks for, however it is written: a schema as data, choices without an order, a
    regular expression as what it is parsed to."""
    if form == "json" and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    if form == "choice":
        return sorted(value)
    if form == "regex":
        return parsed_regex(value)
    return value.strip() if form == "grammar" else value


def parsed_regex(pattern: str) -> str:
    """What an expression matches, without its groups: "((a|b))" is "(a|b)". One that is not
    Python's stands for itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = sre_parse.parse(pattern)
    except re.error:
        return pattern
    refers_to_group = "GROUPREF" in str(parsed)
    return str(parsed if refers_to_group else ungrouped(parsed))


def ungrouped(parsed: Any) -> Any:
    """A parsed expression in which groups that only group are their contents."""
    if isinstance(parsed, sre_parse.SubPattern):
        parsed = parsed.data
    if isinstance(parsed, tuple):
        return tuple(ungrouped(part) for part in parsed)
    if not isinstance(parsed, list):
        return parsed
    items: list[Any] = []
    for part in parsed:
        is_plain = (
            isinstance(part, tuple) and str(part[0]) == "SUBPATTERN" and not any(part[1][1:3])
        )
        items += ungrouped(part[1][3]) if is_plain else [ungrouped(part)]
    return items


def seed_differences(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Difference]:
    """Other seeds, one that comes, one that goes. A seed of the process is of a whole call, whose
    first row alone has it to itself: it stands for the rows after it, too, whatever their own seeds
    are on the other side. An engine's samples of a prompt have seeds one behind the other, so that
    those of n begin at n times the process's."""
    known: tuple[set[int], set[int]] = set(), set()
    copies = Counter(asked_by(old) for old, _ in pairs)
    for number, (old, new) in enumerate(pairs):
        if not (old.get("sampling") and new.get("sampling")):
            continue
        if not (is_drawn(old) and is_drawn(new)):
            continue
        mine = seeds_of(old)
        theirs = seeds_of(new)
        known[0].update(mine)
        known[1].update(theirs)
        if not mine and not theirs:
            continue
        if "script" in (seed_source(old), seed_source(new)):
            continue  # it says nothing of the call
        if not is_same_seed(old, new, known, copies[asked_by(old)]):
            before = min(mine, default=None)
            after = min(theirs, default=None)
            yield Difference("sampling", "seed", before, after, number)


def asked_by(row: Row) -> Any:
    """What samples of one run have in common: their prompt, and the seed before it."""
    return prompt_of(row), recorded_seed(row)


def is_same_seed(old: Row, new: Row, known: tuple[set[int], set[int]], copies: int) -> bool:
    """known: seeds of the rows so far, old and new.   copies: samples of this run."""
    mine = seeds_of(old)
    theirs = seeds_of(new)
    of_process = [seed_source(row) == "process" for row in (old, new)]
    if of_process == [True, False]:
        theirs = known[1]
        mine = mine | {seed * copies for seed in mine}
    elif of_process == [False, True]:
        mine = known[0]
    return bool(mine & theirs)


def structure(row: Row, tools: Tools) -> Kept:
    """Where the request says its form: a regular expression, one of some strings, or JSON (which is
    only parsed)."""
    asked = request_of(row).get("structure")
    if not asked or tools.decode is None:
        return None
    ids = row["output_ids"]
    if not ids or ids[-1] not in end_ids(row):
        return KEPT  # cut short: its form is not whole
    [(form, value)] = ((form, value) for form, value in asked.items() if form != "after")
    said = tools.decode(ids[:-1], True, False)
    if marker := asked.get("after"):  # it stands behind a thought
        said = said.partition(marker)[2].lstrip("\n")
    if form not in HAS_FORM:
        return KEPT
    has_form = HAS_FORM[form](said, value)
    if has_form is None:
        return None
    broken = f"{brief(said)} has not the form that was asked for, {form}"
    return KEPT if has_form else ("sampling.structured", broken)


def is_form_lost(before: Kept, found: tuple[str, str], old: Row, new: Row) -> bool:
    """Also where the old side says its form in its own way: what it gave is the golden."""
    return before in (None, KEPT)


def has_regex(text: str, pattern: str) -> bool | None:
    """None: a grammar's expressions are not all Python's."""
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return None


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


HAS_FORM: Mapping[str, Callable[[str, Any], bool | None]] = {
    "choice": lambda text, choices: text in choices,
    "regex": has_regex,
    "json": lambda text, schema: is_json(text),
}


def seeds(rows: Sequence[Row]) -> tuple[int, int] | None:
    """Two rows of one prompt, one seed and one setting that were sampled otherwise: a seed is a
    request's own."""
    known: dict[str, int] = {}
    for number, row in enumerate(rows):
        seed = request_of(row).get("seed")
        if seed is None or not is_drawn(row):
            continue
        settings = {**row["sampling"], "seed": None, "n": None}
        pictures = [picture.get("sha256") for picture in images_in(row)]
        asked = [row["prompt_ids"], pictures, seed, settings, row["stop"], row["model"].get("path")]
        key = json.dumps(asked, sort_keys=True)
        first = known.setdefault(key, number)
        if rows[first]["output_ids"] != row["output_ids"]:
            return first, number
    return None


# == Put back ==


def old_sampling(options: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """The row's sampling settings as GenerationOptions. Raises GoldenError where these cannot say
    them."""
    if has_beams(row):
        raise GoldenError("the old code searched with beams, which GenerationOptions cannot say")
    names = ("temperature", "top_p", "min_p", "repetition_penalty")
    values = {name: entry(row, "sampling", name) for name in names}
    or_none = {
        name: entry(row, "sampling", name) or None for name in ("top_k", "no_repeat_ngram_size")
    }
    return {**options, **values, **or_none}


def old_seed(options: Mapping[str, Any], row: Row) -> dict[str, Any]:
    return {**options, "seed": entry(row, "sampling", "seed")}


# == The stage ==


def weigh_samples(difference: Difference, comparison: Compared) -> Difference | None:
    """n samples of one request are n requests: where a prompt has as many rows, nothing differs."""
    if difference.field != "n" or difference.row is None:
        return difference
    prompt = prompt_of(comparison.pairs[difference.row][0])
    counts = [Counter(map(prompt_of, case.rows)) for case in (comparison.old, comparison.new)]
    return None if counts[0][prompt] == counts[1][prompt] else difference


def seeds_across(comparison: Compared) -> Iterator[Broken]:
    if (broken := seeds(comparison.new.rows)) is not None:
        said = (
            f"rows {broken[0]} and {broken[1]} have one prompt, seed and setting, and other draws"
        )
        yield Broken("draws", "sampling.seed", said, broken[1], "output_ids")


STAGE = Stage(
    fields=("sampling",),
    compare=sampling_differences,
    compare_all=lambda case: seed_differences(case.pairs),
    weigh=weigh_samples,
    invariants=(Invariant("structure", "output_ids", structure, is_form_lost),),
    across=seeds_across,
    restore={"sampling": old_sampling, "seed": old_seed},
)
