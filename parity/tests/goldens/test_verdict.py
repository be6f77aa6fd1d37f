"""When two values are the same."""

from __future__ import annotations

from typing import Any

import pytest

from parity.goldens.verdict import Difference, equal

HUGE = 10**400  # no float holds it


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [(HUGE, HUGE, True), (HUGE, HUGE + 1, False), (HUGE, 1.0, False), ([HUGE], [1], False)],
)
def test_equal_takes_integers_beyond_the_floats(old: Any, new: Any, is_same: bool) -> None:
    assert equal(old, new) is is_same


LONG = "x" * 400


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LONG + "old" + LONG, LONG + "new" + LONG),
        ("a" + LONG + "old" + LONG + "b", "a" + LONG + "new" + LONG + "c"),  # their ends differ, too
        (["y", LONG + "old" + LONG], ["y", LONG + "new" + LONG]),
        (LONG + "old", LONG + "new" + LONG),
    ],
)
def test_a_sentence_shows_where_two_long_values_part(old: Any, new: Any) -> None:
    said = Difference("prompt_text", "", old, new, 0).sentence()
    assert "xxold" in said and "xxnew" in said and len(said) < 200
