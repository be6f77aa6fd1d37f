"""Three criteria on the same rows, and how many rows each needs."""

from __future__ import annotations

import pytest

from parity.proof import power


def row(*best: list[int]) -> power.Read:
    return power.Read([-1.0] * len(best), list(best))


@pytest.mark.parametrize(
    ("old", "new", "far"),
    [
        (row([1, 2], [3, 4]), row([1, 2], [3, 4]), False),  # they do not part
        (row([1, 2], [3, 4]), row([1, 2], [4, 3]), False),  # each is among the other's best
        (row([1, 2], [3, 4]), row([1, 2], [5, 3]), True),
        (row([1, 2], [3, 4]), row([2, 1], [5, 6]), False),  # only the first step at which they part counts
    ],
)
def test_is_far_at_parting_asks_for_each_among_the_others_best(old: power.Read, new: power.Read, far: bool) -> None:
    assert power.is_far_at_parting(old, new) is far


@pytest.mark.parametrize(
    ("curve", "clean", "rows"),
    [
        ([(2, 0.1), (4, 0.96), (8, 1.0)], [(2, 0.0), (4, 0.0), (8, 0.01)], 4),
        ([(2, 0.96), (4, 0.9), (8, 1.0)], [(2, 0.0), (4, 0.0), (8, 0.0)], 8),
        ([(2, 0.1), (4, 0.96), (8, 1.0)], [(2, 0.0), (4, 0.02), (8, 0.02)], None),  # alarms of a clean path
        ([(2, 0.1), (4, 0.5)], [(2, 0.0), (4, 0.0)], None),
    ],
)
def test_needed_is_where_the_fault_is_seen_and_a_clean_path_is_not(
    curve: list[tuple[int, float]], clean: list[tuple[int, float]], rows: int | None
) -> None:
    assert power.needed(curve, clean) == rows


def test_rows_that_are_sampled_again_share_the_system_message_alone() -> None:
    assert power.common_length([[1, 2, 3], [1, 2, 4], [1, 2, 5]]) == 2
