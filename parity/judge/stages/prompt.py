"""The prompt: messages, template, text, ids. The first of them that differs is the cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parity.goldens.verdict import Difference, brief
from parity.judge.row import (
    Row,
    prompt_around_pictures,
    request_of,
    same_prompt,
    shared_ends,
    shared_start,
)
from parity.judge.stages.stage import KEPT, Compared, Invariant, Kept, Stage, Tools

PROMPT_STAGES = ("messages", "template", "prompt_text", "prompt_ids")
RESPONSE = "response"  # of a scored request: how many of its ids, the last ones
PARTS = ("cut", "behind", RESPONSE)  # of a request: its ids are not its text alone


# == What differs ==


def prompt_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Another prompt; where the ids, or the text, are the same, whatever led to them is only
    told."""
    differs = not same_prompt(old, new)
    text = old.get("prompt_text")
    led_to_other = differs and (text is None or text != new.get("prompt_text"))
    for stage in ("messages", "template", "prompt_text"):
        if old.get(stage) is None or new.get(stage) is None or old[stage] == new[stage]:
            continue
        if stage == "template":
            yield from template_differences(old[stage], new[stage], led_to_other)
        else:
            counts = led_to_other and (stage != "prompt_text" or has_whole_text(old, new))
            yield Difference(stage, "", old[stage], new[stage], counts=counts)
    if differs:
        yield Difference("prompt_ids", "", old["prompt_ids"], new["prompt_ids"])
    else:
        yield from response_differences(old, new)


def has_whole_text(old: Row, new: Row) -> bool:
    """Whether the texts of two rows are as much of their prompts: not with what is scored on one
    side, and without it on the other."""
    return (RESPONSE in request_of(old)) == (RESPONSE in request_of(new))


def response_differences(old: Row, new: Row) -> Iterator[Difference]:
    """How many of the same ids are the response that is scored, where both sides were seen to split
    them."""
    before = request_of(old).get(RESPONSE)
    after = request_of(new).get(RESPONSE)
    if before and after and before != after:
        yield Difference("prompt_ids", RESPONSE, before, after)


def template_differences(old: Row, new: Row, counts: bool) -> Iterator[Difference]:
    if old["sha256"] != new["sha256"]:
        digests = old["sha256"][:12], new["sha256"][:12]
        yield Difference("template", "sha256", *digests, counts=counts)
    for name in sorted({*old["arguments"], *new["arguments"]}):
        before = old["arguments"].get(name)
        after = new["arguments"].get(name)
        if before != after:
            yield Difference("template", name, before, after, counts=counts)


# == Invariants ==


def template(row: Row, tools: Tools) -> Kept:
    said = row.get("template")
    text = row.get("prompt_text")
    if said is None or text is None or tools.render is None or said["sha256"] != tools.template:
        return None
    if has_objects(said["arguments"]):
        return None
    wanted = tools.render(row["messages"], said["arguments"])
    if wanted == text:
        return KEPT
    return "prompt.template", f"the template gives {brief(wanted)}, not {brief(text)}"


def has_objects(arguments: Mapping[str, Any]) -> bool:
    """Whether an argument of a template is no data."""
    return any(str(value).startswith("<") for value in arguments.values())


def tokenization(row: Row, tools: Tools) -> Kept:
    text = row.get("prompt_text")
    if text is None or tools.encode is None or row.get("images") or row.get("scored"):
        return None
    if has_lone_surrogate(text):
        return None
    ids = list(prompt_around_pictures(row))
    wholes = ids_of_text(text, tools)
    if ids in wholes:
        return KEPT
    for whole in wholes:
        if broken := has_bos_twice(ids, whole) or lacks_ids(ids, whole):
            return broken
    made = f"the tokenizer makes {len(wholes[0])} ids of this text"
    return "prompt.ids", f"{made}, other {len(ids)} reached the model"


def ids_of_text(text: str, tools: Tools) -> list[list[int]]:
    """The ids of a text with, and without, special tokens."""
    if tools.encode is None or has_lone_surrogate(text):
        return []
    return [list(tools.encode(text, special)) for special in (True, False)]


def has_lone_surrogate(text: str) -> bool:
    """Whether a text contains half a character, which no tokenizer takes."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def has_bos_twice(ids: list[int], whole: list[int]) -> Kept:
    if len(ids) == len(whole) + 1 and ids[1:] == whole and ids[0] == ids[1]:
        return "prompt.ids", f"id {ids[0]} stands twice at the beginning"
    return None


def lacks_ids(ids: list[int], whole: list[int]) -> Kept:
    """Of a text's ids only the first, the last, or the first and the last reached the model."""
    kept = shared_start(ids, whole)
    lost = len(whole) - len(ids)
    if lost <= 0 or not ids or list(whole[kept + lost :]) != list(ids[kept:]):
        return None
    end = "first and last"
    if ids == whole[: len(ids)]:
        end = "first"
    elif ids == whole[-len(ids) :]:
        end = "last"
    return "prompt.ids", f"of {len(whole)} ids only the {end} {len(ids)} reached the model"


# == The stage ==


def weigh_prompt(difference: Difference, comparison: Compared) -> Difference | None:
    """A prompt behind an answer that differs may hold that answer, and one may differ by the id
    that is asked for: neither fails anything by itself."""
    row = difference.row or 0
    if (difference.stage, difference.field) == ("prompt_ids", ""):
        difference = as_read(difference, *comparison.pairs[row], comparison.tools)
    if (difference.stage, difference.field) == ("template", "sha256"):
        own = comparison.tools.template
        words = template_words(difference.old, own), template_words(difference.new, own)
        difference = replace(difference, words=words)
    is_excused = row in comparison.behind or row in comparison.read_for_asked
    if difference.counts and (is_excused or changes_no_prompt(difference, comparison)):
        return replace(difference, counts=False)
    return difference


def as_read(difference: Difference, old: Row, new: Row, tools: Tools) -> Difference:
    """Of ids whose whole text was not seen on both sides: what they say, where that is another
    text, and on neither side a part is missing alone."""
    if tools.decode is None or (is_whole_text(old) and is_whole_text(new)):
        return difference
    if request_of(old).get("cut") or request_of(new).get("cut"):
        return difference
    fewest = min(len(difference.old), len(difference.new))
    if sum(shared_ends(difference.old, difference.new)) == fewest:
        return difference
    before, after = (tools.decode(ids, True, False) for ids in (difference.old, difference.new))
    if before == after:
        return difference
    return replace(difference, stage="prompt_text", old=before, new=after)


def is_whole_text(row: Row) -> bool:
    """Whether a row's ids are all of its text: none was left out, and none stands behind it."""
    return row.get("prompt_text") is not None and request_of(row).keys().isdisjoint(PARTS)


def template_words(digest: str, own: str) -> str:
    """own: sha256 of the checkpoint's template, "" where that is not here."""
    if own.startswith(digest):
        return "the checkpoint's own template"
    return f"another template (sha256 {digest})" if own else f"the template of sha256 {digest}"


def changes_no_prompt(difference: Difference, comparison: Compared) -> bool:
    """Whether the template gives the new row the same text with the old value of one variable."""
    if difference.stage != "template" or comparison.tools.render is None:
        return False
    row = comparison.pairs[difference.row or 0][1]
    said = row["template"]
    if said["sha256"] != comparison.tools.template or has_objects(said["arguments"]):
        return False
    arguments = {**said["arguments"], difference.field: difference.old}
    if difference.old is None:
        del arguments[difference.field]
    if difference.field == "sha256" or has_objects(arguments):
        return False
    try:
        text = comparison.tools.render(row["messages"], arguments)
    except (TypeError, ValueError):  # the template takes no such value
        return False
    return text == comparison.tools.render(row["messages"], said["arguments"])


STAGE = Stage(
    fields=PROMPT_STAGES,
    compare=prompt_differences,
    weigh=weigh_prompt,
    invariants=(
        Invariant("template", "template", template),
        Invariant("tokenization", "prompt_ids", tokenization),
    ),
)
