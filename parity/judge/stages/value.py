"""The value: what the call site returned or raised."""

from __future__ import annotations

from collections.abc import Iterator

from parity.goldens.verdict import Difference, equal
from parity.judge.stages.stage import Compared, Stage


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


STAGE = Stage(fields=("value",), compare_all=compare_values)
