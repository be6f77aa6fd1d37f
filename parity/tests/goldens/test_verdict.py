"""When two values are the same."""

from __future__ import annotations

from typing import Any

import pytest

from parity.goldens.verdict import equal

HUGE = 10**400  # no float holds it


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [(HUGE, HUGE, True), (HUGE, HUGE + 1, False), (HUGE, 1.0, False), ([HUGE], [1], False)],
)
def test_equal_takes_integers_beyond_the_floats(old: Any, new: Any, is_same: bool) -> None:
    assert equal(old, new) is is_same
