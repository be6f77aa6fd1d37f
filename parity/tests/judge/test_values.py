"""What a recorded value holds, and where two of them part."""

from __future__ import annotations

from typing import Any

import pytest

from parity.judge.values import first_parting

PARTINGS: list[tuple[Any, Any, Any]] = [
    ([1, 2], [1, 2], None),
    ({"a": [1, 2]}, {"a": [1, 3]}, "(('a', 1), 2, 3)"),
    ({"a": ["x", "y"]}, {"a": ["x"]}, "(('a', 1), 'y', (nothing))"),
    ([{"a": 1}], [{"a": 1, "b": 2}], "((0, 'b'), (nothing), 2)"),
    ("x", ["x"], "((), 'x', ['x'])"),
]


@pytest.mark.parametrize(("old", "new", "place"), PARTINGS)
def test_first_parting_is_the_first_place_that_only_one_has_or_that_differs(
    old: Any, new: Any, place: str | None
) -> None:
    found = first_parting(old, new)
    assert (found and repr(found)) == place
