"""What became of the model's ids: text, and of texts the value that the call site returned or
raised."""

from __future__ import annotations

from collections.abc import Iterator

from parity.goldens.verdict import Difference, brief, equal
from parity.judge.row import Row, decodes_of, unseen
from parity.judge.stages.stage import KEPT, Compared, Invariant, Kept, Stage, Tools


def answer_differences(old: Row, new: Row) -> Iterator[Difference]:
    """What came out of the model, and how it became text. These follow from the rest, or the value
    tells them."""
    if unseen(old, new):
        return
    if old["output_ids"] != new["output_ids"]:
        yield Difference("output_ids", "", old["output_ids"], new["output_ids"], counts=False)
    for number, (one, other) in enumerate(zip(decodes_of(old), decodes_of(new))):
        for name in ("skip_special_tokens", "clean_up", "text"):
            before = one.get(name)
            after = other.get(name)
            if None in (before, after) or before == after:
                continue
            if name == "text":
                which = f"decode {number + 1}" if number else ""
                yield Difference("text", which, before, after, counts=False)
            else:
                yield Difference("decode", name, before, after, counts=False)


def text(row: Row, tools: Tools) -> Kept:
    """Each decode that was seen. Of a text that the engine had cut, the decode must begin with
    it."""
    if tools.decode is None or row.get("text") is None or "decode" not in row:
        return None
    for how in decodes_of(row):
        recorded = how.get("text")
        if recorded is None or how.get("ids") != "ended":
            continue
        skip = bool(how.get("skip_special_tokens"))
        clean = bool(how.get("clean_up"))
        wanted = tools.decode(row["output_ids"], skip, clean)
        if begins(recorded, wanted):
            continue
        is_flag = begins(recorded, tools.decode(row["output_ids"], not skip, clean))
        name = "decode.skip_special_tokens" if is_flag else "decode.clean_up"
        return name, f"decoded is {brief(wanted)}, recorded {brief(recorded)}"
    return KEPT


def begins(text: str, whole: str) -> bool:
    return whole.strip().startswith(text.strip())


def compare_values(comparison: Compared) -> Iterator[Difference]:
    old = comparison.old
    new = comparison.new
    if not comparison.has_as_many_rows:
        yield Difference("output_ids", "rows", len(old.rows), len(new.rows), counts=False)
    if kind_of_error(old.raised) != kind_of_error(new.raised):
        yield Difference("value", "raised", old.raised, new.raised)
    elif not equal(old.value, new.value):
        yield Difference("value", "", old.value, new.value)


def kind_of_error(raised: str | None) -> str | None:
    """The type of an exception that was printed; None where none was raised."""
    return None if raised is None else raised.partition(":")[0]


STAGE = Stage(
    fields=("output_ids", "decode", "text", "value"),
    compare=answer_differences,
    compare_all=compare_values,
    invariants=(Invariant("text", "decode", text),),
)
