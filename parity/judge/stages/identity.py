"""Identity: which request an answer belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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
    fields=(),
    compare_all=lambda case: order_differences(case.old.rows, case.new.rows),
    invariants=(Invariant("identity", "batch", identity),),
)
