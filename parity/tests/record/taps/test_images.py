"""Image processors and their pixel budgets."""

from __future__ import annotations

from parity.record.taps.images import budget_of


def test_budget_of_a_processor_that_does_not_resize_is_zero() -> None:
    class Processor:
        do_resize = False
        size = {"shortest_edge": 4, "longest_edge": 16}  # noqa: RUF012

    assert budget_of(Processor(), {}) == [0, 0]
    assert budget_of(Processor(), {"do_resize": True}) == [4, 16]
