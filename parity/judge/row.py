"""What one recorded row says, read in one place: settings, seeds, texts, ids of images.

A row is a mapping, as golden.py describes it; what may be absent is read here and nowhere else.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import first_divergence
from parity.record.rows import NEUTRAL, Placeholders, collapsed, given_no_ids, runs
from parity.record.rows import Row as Row

TokenIds = Sequence[int]
Pairs = Sequence[tuple[Row, Row]]


def entry(row: Row, stage: str, name: str) -> Any:
    said = row.get(stage, {}).get(name)
    return NEUTRAL.get(name) if said is None else said["value"]


def request_of(row: Row) -> Mapping[str, Any]:
    """What was observed of a row's request; nothing of code that makes none."""
    return row.get("request") or {}


def model_in(row: Row) -> Mapping[str, Any]:
    """What answered a row; nothing where that was not seen. The same of the next ones."""
    found: Mapping[str, Any] = row.get("model", {})
    return found


def images_in(row: Row) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = row.get("images", ())
    return found


def decoding_of(row: Row) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row.get("decode", {})
    return found


def text_of(row: Row) -> str:
    return row.get("text") or ""


def adapters_in(row: Row) -> set[str]:
    """Fingerprints of the adapters that a row's forward went through."""
    return {one for one in row.get("inputs", {}).get("adapters", ()) if one}


def is_float32(row: Row) -> bool:
    return bool(model_in(row).get("dtype", "float32") == "float32")


def end_ids(row: Row) -> tuple[int, ...]:
    return tuple(entry(row, "stop", "end_ids") or ())


def string_ids(row: Row) -> tuple[int, ...]:
    """Ids that each complete a stop string by themselves."""
    return tuple(entry(row, "stop", "string_ids") or ())


def stop_strings(row: Row) -> tuple[str, ...]:
    return tuple(entry(row, "stop", "strings") or ())


def criteria(row: Row) -> tuple[str, ...]:
    """Names of stopping criteria of the code's own."""
    return tuple(entry(row, "stop", "criteria") or ())


def max_tokens(row: Row) -> int | None:
    found: int | None = entry(row, "stop", "max_new_tokens")
    return found


def min_tokens(row: Row) -> int:
    return entry(row, "stop", "min_new_tokens") or 0


def has_beams(row: Row) -> bool:
    return (entry(row, "sampling", "num_beams") or 1) > 1


def is_drawn(row: Row) -> bool:
    return bool(row.get("sampling") and entry(row, "sampling", "temperature"))


def drew(row: Row) -> bool:
    """Whether random numbers were taken while a loop of one's own chose."""
    return bool(request_of(row).get("process"))


def seeds_of(row: Row) -> set[int]:
    """The seed that a row was given: that of its request, or, of one of several samples, its
    own."""
    seeds = [request_of(row).get("seed")]
    if seed_source(row) != "nobody":
        seeds.append(recorded_seed(row))
    return {seed for seed in seeds if seed is not None}


def recorded_seed(row: Row) -> int | None:
    """None where none was seen."""
    found: int | None = entry(row, "sampling", "seed")
    return found


def seed_source(row: Row) -> str | None:
    """Who gave it: "caller", "process", "script", or "nobody" but the recorder."""
    found: str | None = (row.get("sampling", {}).get("seed") or {}).get("from")
    return found


def is_drawn_anew(row: Row) -> bool:
    """Whether a row is sampled without any seed, not even the process's: each run gives others."""
    return is_drawn(row) and seed_source(row) is None and not seeds_of(row)


def script_seed(row: Row) -> int | None:
    """The seed that a script gave before a row's call, in whose place the recorder gave its own."""
    found: int | None = request_of(row).get("script_seed")
    return found


def decodes_of(row: Row) -> list[Mapping[str, Any]]:
    """Each time that a row's ids became text."""
    found: list[Mapping[str, Any]] = row.get("decodes") or [
        {**decoding_of(row), "text": row.get("text")}
    ]
    return found


def backends_of(*rows: Row) -> set[Any]:
    return {model_in(row).get("backend") for row in rows}


def same_backend(old: Row, new: Row) -> bool:
    return len(backends_of(old, new)) == 1


def unseen(old: Row, new: Row) -> bool:
    """Whether only one side's answer was seen: the other one only read the prompt."""
    return bool(old.get("scored")) != bool(new.get("scored"))


def same_prompt(old: Row, new: Row) -> bool:
    """Whether two rows were asked the same, pictures as one id or as many; of embeddings as far as
    is known."""
    if given_no_ids(old) or given_no_ids(new):
        return True
    if old["prompt_ids"] == new["prompt_ids"]:
        return True
    return bool(prompt_around_pictures(old) == prompt_around_pictures(new))


def reads_what_is_asked(one: Row, other: Row) -> bool:
    """Whether one side reads behind a prompt the single token that the other asks the model for: of
    both, what counts is what the model says before it."""
    if not one.get("scored") or other.get("scored") or max_tokens(other) != 1:
        return False
    return bool(one["prompt_ids"][:-1] == other["prompt_ids"])


def placeholders_in(row: Row) -> Placeholders:
    """The ids that stand for images and clips in a row's prompt: clips name theirs; that of images
    is the one whose runs are as long as these have tokens; of several, the last of the vocabulary,
    behind whose text such ids are added."""
    clip = None
    tokens = []  # of each image
    for image in images_in(row):
        if "placeholder" in image:
            clip = image["placeholder"]
        else:
            tokens.append(image.get("tokens"))
    if not tokens:
        return Placeholders(None, clip)
    ids = row["prompt_ids"]
    found = [i for i in {*ids} if list(map(len, runs(ids, i))) == tokens]
    return Placeholders(max(found, default=None), clip)


def picture_ids(row: Row) -> list[list[int]]:
    """The ids of each image and clip: its tokens, and the times of a clip's frames."""
    ids = row["prompt_ids"]
    places = placeholders_in(row).places(ids)
    return [ids[place.start : place.stop] for _, place in places]


# == Names of a prompt ==


def prompt_of(row: Row) -> tuple[int, ...]:
    return tuple(row["prompt_ids"])


def prompt_with_pictures(row: Row) -> Any:
    pictures = tuple(picture.get("sha256") for picture in images_in(row))
    return prompt_around_pictures(row), pictures


def prompt_around_pictures(row: Row) -> Any:
    return collapsed(row["prompt_ids"], placeholders_in(row))


# == Token ids ==


def shared_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many ids, or characters, two sequences begin with that are the same."""
    step = first_divergence(one, other)
    return len(one) if step is None else step


def shared_ends(one: Sequence[Any], other: Sequence[Any]) -> tuple[int, int]:
    """How many are the same at the beginning of two sequences, and at the end of what is left."""
    first = shared_start(one, other)
    return first, shared_start(one[first:][::-1], other[first:][::-1])


def parting_step(old: Sequence[int], new: Sequence[int]) -> int | None:
    """The first step at which two answers choose another id; None where one is the beginning of the
    other."""
    step = first_divergence(old, new)
    return None if step is None or step >= min(len(old), len(new)) else step


def is_prefix(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one answer, whichever it is, is the beginning of the other."""
    return parting_step(one, other) is None


def are_prefixes(pairs: Pairs) -> bool:
    """Whether of each pair one answer is the beginning of the other."""
    return all(is_prefix(old["output_ids"], new["output_ids"]) for old, new in pairs)


def begins_call(row: Row) -> bool:
    """Whether a row is the first of a call of the model, or of a loop, of which each row is one."""
    request = request_of(row)
    return not request.get("number") and not request.get("sample")


def calls_of(pairs: Pairs) -> list[int]:
    """The number of the call that each pair is of."""
    return list(itertools.accumulate(begins_call(a) and begins_call(b) for a, b in pairs))


# == The rows of a case ==


def has_loop(case: Case) -> bool:
    """Whether the code chose tokens by itself: by which settings was not seen."""
    return any(row.get("loop") for row in case.rows)


def is_sampled(case: Case) -> bool:
    return any(is_drawn(row) for row in case.rows)


def may_be_sampled(case: Case) -> bool:
    return is_sampled(case) or has_loop(case)
