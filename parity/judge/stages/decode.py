"""Decoding: how ids became text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from parity.judge.row import Row, decodes_of, unseen
from parity.judge.stages.stage import KEPT, Invariant, Kept, Stage, Tools
from parity.verdict import Difference, brief


def answer_differences(old: Row, new: Row) -> Iterator[Difference]:
    """What came out of the model, and how it became text. These follow from the rest, or the value
    tells them."""
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


def text(row: Row, tools: Tools) -> Kept:
    """Each decode that was seen. Of a text that the engine had cut, the decode must begin with
    it."""
    if tools.decode is None or row.get("text") is None or "decode" not in row:
        return None
    for how in decodes_of(row):
        if how.get("ids") not in ("ended", "new") or how.get("text") is None:
            continue
        flags = bool(how.get("skip_special_tokens")), bool(how.get("clean_up"))
        wanted = tools.decode(row["output_ids"], *flags)
        if how["ids"] == "ended" and not wanted.strip().startswith(how["text"].strip()):
            other = tools.decode(row["output_ids"], not flags[0], flags[1])
            name = (
                "decode.skip_special"
                if other.strip().startswith(how["text"].strip())
                else "decode.cleanup"
            )
            return name, f"decoded is {brief(wanted)}, recorded {brief(how['text'])}"
    return KEPT


def own_text_problem(row: Row, tools: Tools) -> str:
    """Where a recorded text is not what the row's own ids decode to; "" where it is, or nobody can
    tell. A text may hold more (the prompt, the pads) or less (what an engine had cut), as `ids`
    says."""
    if tools.decode is None or "decode" not in row:
        return ""
    for how in decodes_of(row):
        text, holds = how.get("text"), HOLDS.get(how.get("ids"))
        if text is None or holds is None:
            continue
        flags = how.get("skip_special_tokens") or False, bool(how.get("clean_up"))
        wanted = tools.decode(row["output_ids"], *flags)
        if not holds(wanted, text):
            return f"its ids decode to {brief(wanted)}, its text is {brief(text)}"
    return ""


# What a decode was given -> whether a recorded text holds what the row's own ids decode to.
HOLDS: dict[Any, Callable[[str, str], bool]] = {
    "ended": lambda wanted, text: wanted == text,
    "new": lambda wanted, text: text.startswith(wanted),
    "part": lambda wanted, text: wanted.strip().startswith(text.strip()),
    "whole": lambda wanted, text: wanted in text,
}

STAGE = Stage(
    "decode",
    fields=("output_ids", "decode", "text"),
    compare=answer_differences,
    invariants=(Invariant("text", "decode", text),),
)
