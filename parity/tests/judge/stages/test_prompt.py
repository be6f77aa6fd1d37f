"""The prompt's stage: why two prompts differ, and what must hold of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parity.judge.stages.prompt import STAGE, tokenization
from parity.judge.stages.stage import Tools

TEXT = "abcdefghijklmnop"


def encode(text: str, special: bool) -> Sequence[int]:
    return [*map(ord, text)]


def row(ids: Sequence[int], text: str | None = None) -> dict[str, Any]:
    return {"prompt_ids": list(ids), "prompt_text": text, "template": None, "messages": None}


def test_tokenization_of_half_a_character_is_not_seen() -> None:
    def refuse(text: str, special: bool) -> Sequence[int]:
        raise TypeError("a tokenizer takes no lone surrogate")

    assert tokenization(row([1, 2], "a\ud800"), Tools(encode=refuse)) is None


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [(1, 2, ["prompt.ids"]), (1, 1, []), (1, None, []), (None, 2, []), (1, 0, [])],
)
def test_prompt_of_the_same_ids_has_the_same_response(before: int | None, after: int | None, names: list[str]) -> None:
    old, new = ({**row([1, 2, 3]), "request": {"response": n}} for n in (before, after))
    found = [difference.name for difference in STAGE.compare(old, new)]
    assert found == names


def test_compare_what_led_to_the_same_text_is_told_and_fails_nothing() -> None:
    """A switch that README tells to give stood as the cause, where the answers that are read differ."""
    sides = []
    for ids, arguments in (("abcx", {}), ("abcy", {"enable_thinking": True})):
        template = {"sha256": "t", "arguments": arguments}
        sides.append({**row(encode(ids, True), "abc"), "template": template, "messages": [*arguments]})
    found = [(difference.stage, difference.counts) for difference in STAGE.compare(*sides)]
    assert found == [("messages", False), ("template", False), ("prompt_ids", True)]
