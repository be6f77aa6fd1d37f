"""Identity: which request an answer belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from parity.judge.row import Row, is_drawn, prompt_with_pictures, request_of, seeds_of
from parity.judge.stages.stage import KEPT, Invariant, Kept, Stage, Tools
from parity.verdict import Difference


def order_differences(old: Sequence[Row], new: Sequence[Row]) -> Iterator[Difference]:
    """Answers that are another request's, and equal prompts whose answers stand elsewhere."""
    for number, row in enumerate(new):
        if request_of(row).get("answers") == "another":
            yield Difference("batch", "order", "its own request", "another request", number)
    moved = moved_answers(old, new)
    if moved:
        position = next(k for k, m in enumerate(moved) if m != k)
        yield Difference("batch", "order", list(range(len(old))), moved, position)


def moved_answers(old: Sequence[Row], new: Sequence[Row]) -> list[int]:
    """Of equal prompts: where each old answer stands on the new side, if all are there and one
    stands elsewhere; else nothing."""
    pairs = list(zip(old, new))
    if len(old) != len(new):
        return []
    if any(prompt_with_pictures(a) != prompt_with_pictures(b) for a, b in pairs):
        return []
    mine, theirs = ([tuple(row["output_ids"]) for row in rows] for rows in (old, new))
    if mine == theirs or sorted(mine) != sorted(theirs) or is_by_chance(pairs):
        return []
    return [theirs.index(ids) for ids in mine]


def is_by_chance(pairs: Sequence[tuple[Row, Row]]) -> bool:
    """Of what is drawn without seeds, or with others, one prompt's answers have no order."""
    for old, new in pairs:
        if not is_drawn(new) or (seeds_of(new) and seeds_of(old) == seeds_of(new)):
            return False
    before, after = (
        Counter(str((row["prompt_ids"], row["output_ids"])) for row in side) for side in zip(*pairs)
    )
    return before == after


def identity(row: Row, tools: Tools) -> Kept:
    said = row.get("request")
    if said is None:
        return None
    if said.get("answers") == "another":
        return "batch.order", "the answer is another request's"
    return KEPT


STAGE = Stage(
    fields=(),
    compare_all=lambda case: order_differences(case.old.rows, case.new.rows),
    invariants=(Invariant("identity", "batch", identity),),
)
