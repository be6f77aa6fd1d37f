"""Identity: which request an answer belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from parity.judge.row import Row, is_drawn, prompt_with_pictures, seeds_of
from parity.judge.stages.stage import KEPT, Compared, Invariant, Kept, Stage, Tools
from parity.verdict import Difference


def order_differences(old: Sequence[Row], new: Sequence[Row]) -> Iterator[Difference]:
    """Answers in another order. Of what is drawn without seeds, or with others, one prompt's answers have none."""
    for number, row in enumerate(new):
        if (row.get("request") or {}).get("answers") == "another":
            yield Difference("batch", "order", "its own request", "another request", number)
    if len(old) != len(new) or any(prompt_with_pictures(a) != prompt_with_pictures(b) for a, b in zip(old, new)):
        return
    mine, theirs = ([tuple(row["output_ids"]) for row in rows] for rows in (old, new))
    sets = [Counter((tuple(row["prompt_ids"]), tuple(row["output_ids"])) for row in rows) for rows in (old, new)]
    others = all(is_drawn(b) and (not seeds_of(b) or seeds_of(a) != seeds_of(b)) for a, b in zip(old, new))
    by_chance = sets[0] == sets[1] and others
    if mine != theirs and sorted(mine) == sorted(theirs) and not by_chance:
        moved = [theirs.index(ids) for ids in mine]
        yield Difference(
            "batch", "order", list(range(len(mine))), moved, next(k for k, m in enumerate(moved) if m != k)
        )


def identity(row: Row, tools: Tools) -> Kept:
    said = row.get("request")
    if said is None:
        return None
    return ("batch.order", "the answer is another request's") if said.get("answers") == "another" else KEPT


def compare_order(comparison: Compared) -> Iterator[Difference]:
    return order_differences(comparison.old.rows, comparison.new.rows)


STAGE = Stage("identity", fields=(), compare_all=compare_order, invariants=(Invariant("identity", "batch", identity),))
