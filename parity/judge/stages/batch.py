"""The batch: padding, masks, positions and the other tensors that reach the model's forward; and
which request of it an answer belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parity.goldens.verdict import Difference
from parity.judge.row import (
    Row,
    is_drawn,
    prompt_of,
    prompt_with_pictures,
    request_of,
    seeds_of,
    shared_start,
)
from parity.judge.stages.stage import KEPT, Invariant, Kept, Stage, Tools
from parity.record.rows import by_itself

NO_PADDING = {"side": "none", "masked": True}
NOT_THE_SAME_SIDE = ({"left", "right"}, {"none", "right"})


def batch_differences(old: Row, new: Row) -> Iterator[Difference]:
    """How a row was padded. No padding and masked padding on the left are the same thing to it."""
    padded = {**NO_PADDING, **old.get("batch", {})}
    new_padded = {**NO_PADDING, **new.get("batch", {})}
    side = padded["side"]
    new_side = new_padded["side"]
    if {side, new_side} in NOT_THE_SAME_SIDE:
        yield Difference("batch", "side", side, new_side)
    if padded["masked"] != new_padded["masked"]:
        yield Difference("batch", "masked", padded["masked"], new_padded["masked"])


def unencoded(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    """Names of the tensors of a forward. `generate` of newer releases encodes images beforehand; a
    loop of one's own gives the forward what they are encoded from."""
    if "mm_encoder_outputs" not in keys or "mm_encoder_outputs" in others:
        return sorted(keys)
    return sorted({*keys, "pixel_values", "image_grid_thw"} - {"mm_encoder_outputs"})


def input_differences(old: Row, new: Row) -> Iterator[Difference]:
    """What reached the model's forward beside the ids, where both were seen."""
    inputs = old.get("inputs")
    new_inputs = new.get("inputs")
    if inputs is None or new_inputs is None:
        return
    keys = inputs["keys"]
    new_keys = new_inputs["keys"]
    names = ["positions"]
    if keys == new_keys:  # marks of other tensors are others
        names = ["marks", "positions"]
    elif by_itself(old) == by_itself(new) or unencoded(keys, new_keys) != unencoded(new_keys, keys):
        yield Difference("batch", "keys", keys, new_keys)
    if old["prompt_ids"] != new["prompt_ids"]:
        return
    for name in names:
        before = inputs.get(name)
        after = new_inputs.get(name)
        if None not in (before, after) and before != after:
            yield Difference("batch", name, before, after)


def padding(row: Row, tools: Tools) -> Kept:
    padded = row.get("batch")
    inputs = row.get("inputs")
    if padded is None and inputs is None:
        return None
    return broken_padding(padded or {}) or broken_inputs(inputs or {}) or KEPT


def broken_padding(padded: Mapping[str, Any]) -> Kept:
    if padded.get("masked") is False:
        return "batch.mask", f"{padded.get('pads')} pads are not masked"
    if padded.get("side") == "right":
        return "batch.side", f"{padded.get('pads')} pads stand behind the prompt"
    return None


def broken_inputs(inputs: Mapping[str, Any]) -> Kept:
    if hidden := inputs.get("hidden"):
        return "batch.marks", f"{hidden} of the row's own tokens are masked"
    counted = inputs.get("positions", "from 0")
    if counted.startswith("from ") and counted != "from 0":
        return "batch.positions", f"positions of the row's own tokens count {counted}"
    return None


def compare_batch(old: Row, new: Row) -> Iterator[Difference]:
    yield from batch_differences(old, new)
    yield from input_differences(old, new)


# == Whose answer it is ==


def order_differences(old: Sequence[Row], new: Sequence[Row]) -> Iterator[Difference]:
    """Answers that are another request's, and equal prompts whose answers stand elsewhere."""
    for number, row in enumerate(new):
        if request_of(row).get("answers") == "another":
            yield Difference("batch", "order", "its own request", "another request", number)
    moved = moved_answers(old, new)
    if moved:
        in_order = list(range(len(old)))
        yield Difference("batch", "order", in_order, moved, shared_start(in_order, moved))


def moved_answers(old: Sequence[Row], new: Sequence[Row]) -> list[int]:
    """Of equal prompts: where each old answer stands on the new side, if all are there and one
    stands elsewhere; else nothing."""
    if list(map(prompt_with_pictures, old)) != list(map(prompt_with_pictures, new)):
        return []
    answers = list(map(output_of, old))
    new_answers = list(map(output_of, new))
    if answers == new_answers or sorted(answers) != sorted(new_answers):
        return []
    if is_by_chance(list(zip(old, new))):
        return []
    return [new_answers.index(ids) for ids in answers]


def output_of(row: Row) -> tuple[int, ...]:
    return tuple(row["output_ids"])


def is_by_chance(pairs: Sequence[tuple[Row, Row]]) -> bool:
    """Of what is drawn without seeds, or with others, one prompt's answers have no order."""
    for old, new in pairs:
        if not is_drawn(new) or (seeds_of(new) and seeds_of(old) == seeds_of(new)):
            return False
    answers = Counter((prompt_of(old), output_of(old)) for old, _ in pairs)
    new_answers = Counter((prompt_of(new), output_of(new)) for _, new in pairs)
    return answers == new_answers


def identity(row: Row, tools: Tools) -> Kept:
    said = row.get("request")
    if said is None:
        return None
    if said.get("answers") == "another":
        return "order", "the answer is another request's"
    return KEPT


STAGE = Stage(
    fields=("batch",),
    compare=compare_batch,
    compare_all=lambda case: order_differences(case.old.rows, case.new.rows),
    invariants=(Invariant("batch", "batch", padding), Invariant("identity", "batch", identity)),
)
