"""Decoding: how ids became text."""

from __future__ import annotations

from collections.abc import Iterator

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
        if how.get("ids") != "ended" or how.get("text") is None:
            continue
        flags = bool(how.get("skip_special_tokens")), bool(how.get("clean_up"))
        wanted, said = tools.decode(row["output_ids"], *flags), how["text"].strip()
        if not wanted.strip().startswith(said):
            other = tools.decode(row["output_ids"], not flags[0], flags[1])
            is_flag = other.strip().startswith(said)
            name = "decode.skip_special" if is_flag else "decode.cleanup"
            return name, f"decoded is {brief(wanted)}, recorded {brief(how['text'])}"
    return KEPT


STAGE = Stage(
    fields=("output_ids", "decode", "text"),
    compare=answer_differences,
    invariants=(Invariant("text", "decode", text),),
)
