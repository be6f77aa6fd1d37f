"""The batch: padding, masks, positions and the other tensors that reach the model's forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.judge.row import Row
from parity.judge.stages.stage import KEPT, Invariant, Kept, Stage, Tools
from parity.record.rows import by_itself
from parity.verdict import Difference


def batch_differences(old: Row, new: Row) -> Iterator[Difference]:
    """How a row was padded. No padding and masked padding on the left are the same thing to it."""
    mine, theirs = ({"side": "none", "masked": True, "positions": None, **row.get("batch", {})} for row in (old, new))
    if {mine["side"], theirs["side"]} in ({"left", "right"}, {"none", "right"}):
        yield Difference("batch", "side", mine["side"], theirs["side"])
    if mine["masked"] != theirs["masked"]:
        yield Difference("batch", "masked", mine["masked"], theirs["masked"])


def unencoded(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    """Names of the tensors of a forward. `generate` of newer releases encodes pictures beforehand; a loop of one's own
    gives the forward what they are encoded from."""
    if "mm_encoder_outputs" not in keys or "mm_encoder_outputs" in others:
        return sorted(keys)
    return sorted({*keys, "pixel_values", "image_grid_thw"} - {"mm_encoder_outputs"})


def input_differences(old: Row, new: Row) -> Iterator[Difference]:
    """What reached the model's forward beside the ids, where both were seen."""
    mine, theirs = old.get("inputs"), new.get("inputs")
    if mine is None or theirs is None:
        return
    keys = mine["keys"], theirs["keys"]
    if by_itself(old) != by_itself(new):
        keys = unencoded(*keys), unencoded(*reversed(keys))
    if keys[0] != keys[1]:
        yield Difference("batch", "keys", mine["keys"], theirs["keys"])
    if old["prompt_ids"] != new["prompt_ids"]:
        return
    marks = mine.get("marks"), theirs.get("marks")
    if None not in marks and marks[0] != marks[1] and mine["keys"] == theirs["keys"]:
        yield Difference("batch", "marks", *marks)
    places = mine.get("positions"), theirs.get("positions")
    if None not in places and places[0] != places[1]:
        yield Difference("batch", "positions", *places)


def padding(row: Row, tools: Tools) -> Kept:
    padded, inputs = row.get("batch"), row.get("inputs")
    if padded is None and inputs is None:
        return None
    padded = padded or {}
    if padded.get("masked") is False:
        return "batch.pad_unmasked", f"{padded.get('pads')} pads are not masked"
    if padded.get("side") == "right":
        return "batch.padding_side", f"{padded.get('pads')} pads stand behind the prompt"
    if hidden := (inputs or {}).get("hidden"):
        return "batch.inputs", f"{hidden} of the row's own tokens are masked"
    places = (inputs or {}).get("positions", "from 0")
    if places.startswith("from ") and places != "from 0":
        return "batch.position_ids", f"positions of the row's own tokens count {places}"
    return KEPT


def compare_batch(old: Row, new: Row) -> Iterator[Difference]:
    yield from batch_differences(old, new)
    yield from input_differences(old, new)


STAGE = Stage("batch", fields=("batch",), compare=compare_batch, invariants=(Invariant("batch", "batch", padding),))
