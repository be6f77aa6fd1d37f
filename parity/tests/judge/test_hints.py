"""Hints: what usually makes a difference like this one."""

from __future__ import annotations

from typing import Any

import pytest

from parity.goldens.store import Case
from parity.goldens.verdict import Cause
from parity.judge.comparison import Comparison
from parity.judge.hints import hints_of

from .test_laws import row


def hints(name: str, old: Case, new: Case) -> str:
    return "; ".join(hints_of(Comparison(old, new), Cause(name, "likely", "")))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ({"prompt_ids": [1, 2]}, {"prompt_ids": [1, 1, 2]}, "id 1 stands twice at the beginning"),
        ({"prompt_ids": [1, 2, 3]}, {"prompt_ids": [2, 3]}, "the end of the longer one"),
        ({"prompt_ids": [1, 2, 3]}, {"prompt_ids": [1, 2]}, "of 2 ids, is the beginning of the longer one"),
        ({"prompt_ids": [1, 2]}, {"prompt_ids": [0, 0, 0, 1, 2]}, "3 times id 0: padding"),
        ({"prompt_ids": [1, 2, 0, 0]}, {"prompt_ids": [1, 2]}, "2 times id 0: padding"),
        (
            {"prompt_ids": [1], "prompt_text": "On 2026-01-02: a"},
            {"prompt_ids": [2], "prompt_text": "On 2026-11-28: a"},
            "a date or a time alone",
        ),
        (
            {"prompt_ids": [1], "prompt_text": "a b"},
            {"prompt_ids": [2], "prompt_text": "a  b"},
            "differ in blanks alone",
        ),
        ({"prompt_ids": [4, 5, 6]}, {"prompt_ids": [7, 8]}, ""),
        (  # nothing was cut
            {"prompt_ids": [1, 2], "prompt_text": "a b"},
            {"prompt_ids": [1, 2, 3], "prompt_text": "a b\n"},
            "differ in blanks alone",
        ),
    ],
)
def test_hints_of_two_prompts(old: Any, new: Any, hint: str) -> None:
    sides = [Case("s", "c", rows=(row(**one),)) for one in (old, new)]
    found = hints("prompt.ids", *sides)
    assert hint in found and bool(hint) == bool(found)
    assert ";" not in found


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("a", "a \n", "blanks at their ends alone"),
        (["a", "b"], ["a<|end|>", "b<|end|></s>"], "ends with special tokens"),
        ("a", "a\ufffd", "U+FFFD"),
        ("abc", "ab", "one text holds the other"),
        (["a", "b"], ["b", "a"], "the same parts stand in another order"),
        ("a", "b", ""),
        ("a", 1, ""),
    ],
)
def test_hints_of_two_values(old: Any, new: Any, hint: str) -> None:
    found = hints("value", Case("s", "c", value=old), Case("s", "c", value=new))
    assert hint in found and bool(hint) == bool(found)
