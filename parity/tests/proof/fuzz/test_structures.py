"""Whether an answer is what its structure allows."""

from __future__ import annotations

from typing import Any

import pytest

from parity.proof.fuzz.structures import follows, words_of

NUMBERS = {"type": "array", "items": {"type": "integer"}, "maxItems": 2}


@pytest.mark.parametrize(
    ("structured", "text", "expected"),
    [
        ({"json": NUMBERS}, "[1,2]", True),
        ({"json": NUMBERS}, "[1,2,3]", False),
        ({"json": NUMBERS}, '["a"]', False),
        ({"json": NUMBERS}, "[1,", False),
        ({"json": '{"type": "null"}'}, "null", True),
        ({"json": {"type": "string"}}, '"a\nb"', False),
        ({"json": {"type": "odd"}}, "1", True),
        ({"json": {"$ref": "other.json"}}, "1", True),
        ({"json": True}, "1", True),
        ({"json_object": True}, '{"a":1}', True),
        ({"json_object": True}, "[1]", False),
        ({"regex": "[0-9]{2}"}, "12", True),
        ({"regex": "[0-9]{2}"}, "123", False),
        ({"regex": "a."}, "a\n", True),
        ({"regex": "\\p{L}"}, "a", True),
        ({"choice": ["a", "b"]}, "b", True),
        ({"choice": ["a", "b"]}, "ab", False),
        ({"grammar": 'root ::= "a"'}, "b", True),
        ({"json": None, "choice": ["a"]}, "a", True),
    ],
)
def test_follows_tells_answers_from_others(
    structured: dict[str, Any],
    text: str,
    expected: bool,
) -> None:
    assert follows(structured, text) == expected


def test_words_of_a_structure_are_its_names() -> None:
    schema = {"anyOf": [{"type": "object", "properties": {"a": True}}]}
    assert words_of({"json": schema}) == ["a", "anyOf", "json", "properties", "type"]
