"""The batch: padding, masks, positions and the other tensors that reach the model's forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parity.judge.row import Row
from parity.judge.stages.stage import KEPT, Invariant, Kept, Stage, Tools
from parity.record.rows import by_itself
from parity.verdict import Difference

NO_PADDING = {"side": "none", "masked": True}
NOT_THE_SAME_SIDE = ({"left", "right"}, {"none", "right"})


def batch_differences(old: Row, new: Row) -> Iterator[Difference]:
    """How a row was padded. No padding and masked padding on the left are the same thing to it."""
    mine, theirs = ({**NO_PADDING, **row.get("batch", {})} for row in (old, new))
    if {mine["side"], theirs["side"]} in NOT_THE_SAME_SIDE:
        yield Difference("batch", "side", mine["side"], theirs["side"])
    if mine["masked"] != theirs["masked"]:
        yield Difference("batch", "masked", mine["masked"], theirs["masked"])


def unencoded(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    """Names of the tensors of a forward. `generate` of newer releases encodes images beforehand; a
    loop of one's own gives the forward what they are encoded from."""
    if "mm_encoder_outputs" not in keys or "mm_encoder_outputs" in others:
        return sorted(keys)
    return sorted({*keys, "pixel_values", "image_grid_thw"} - {"mm_encoder_outputs"})


def input_differences(old: Row, new: Row) -> Iterator[Difference]:
    """What reached the model's forward beside the ids, where both were seen."""
    mine, theirs = old.get("inputs"), new.get("inputs")
    if mine is None or theirs is None:
        return
    keys, other_keys = mine["keys"], theirs["keys"]
    names = ["positions"] if keys != other_keys else ["marks", "positions"]
    if by_itself(old) != by_itself(new):
        keys, other_keys = unencoded(keys, other_keys), unencoded(other_keys, keys)
    if keys != other_keys:
        yield Difference("batch", "keys", mine["keys"], theirs["keys"])
    if old["prompt_ids"] != new["prompt_ids"]:
        return
    for name in names:  # marks of other tensors are others
        before, after = mine.get(name), theirs.get(name)
        if None not in (before, after) and before != after:
            yield Difference("batch", name, before, after)


def padding(row: Row, tools: Tools) -> Kept:
    if row.get("batch") is None and row.get("inputs") is None:
        return None
    return broken_padding(row.get("batch") or {}) or broken_inputs(row.get("inputs") or {}) or KEPT


def broken_padding(padded: Mapping[str, Any]) -> Kept:
    if padded.get("masked") is False:
        return "batch.pad_unmasked", f"{padded.get('pads')} pads are not masked"
    if padded.get("side") == "right":
        return "batch.padding_side", f"{padded.get('pads')} pads stand behind the prompt"
    return None


def broken_inputs(inputs: Mapping[str, Any]) -> Kept:
    if hidden := inputs.get("hidden"):
        return "batch.inputs", f"{hidden} of the row's own tokens are masked"
    counted = inputs.get("positions", "from 0")
    if counted.startswith("from ") and counted != "from 0":
        return "batch.position_ids", f"positions of the row's own tokens count {counted}"
    return None


def compare_batch(old: Row, new: Row) -> Iterator[Difference]:
    yield from batch_differences(old, new)
    yield from input_differences(old, new)


STAGE = Stage(
    fields=("batch",),
    compare=compare_batch,
    invariants=(Invariant("batch", "batch", padding),),
)
