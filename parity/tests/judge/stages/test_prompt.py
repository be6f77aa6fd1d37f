"""The prompt's stage: why two prompts differ, and what must hold of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parity.judge.stages.prompt import STAGE, may_be_written, prompt_cause, tokenization
from parity.judge.stages.stage import Tools

TEXT = "abcdefghijklmnop"


def encode(text: str, special: bool) -> Sequence[int]:
    return [*map(ord, text)]


def row(ids: Sequence[int], text: str | None = None) -> dict[str, Any]:
    return {"prompt_ids": list(ids), "prompt_text": text, "template": None, "messages": None}


@pytest.mark.parametrize("known", ["old", "new", "both"])
def test_prompt_cause_two_windows_of_one_text_are_a_truncation(known: str) -> None:
    ids = encode(TEXT, True)
    old = row(ids[-5:], TEXT if known != "new" else None)
    new = row(ids[:5], TEXT if known != "old" else None)
    assert prompt_cause(old, new, tools=Tools(encode=encode)) == "prompt.truncation"


def test_prompt_cause_of_another_text_is_no_window_of_the_known_one() -> None:
    old, new = row(encode(TEXT, True)[-5:], TEXT), row(encode("qrstu", True))
    assert prompt_cause(old, new, tools=Tools(encode=encode)) == "prompt.messages"


def test_may_be_written_a_cut_that_nobody_declared_is_not_certain() -> None:
    old, new = row(encode(TEXT, True)[-5:], TEXT), row(encode(TEXT, True)[:5])
    assert may_be_written("prompt.truncation", old, new)


def test_tokenization_of_half_a_character_is_not_seen() -> None:
    def refuse(text: str, special: bool) -> Sequence[int]:
        raise TypeError("a tokenizer takes no lone surrogate")

    assert tokenization(row([1, 2], "a\ud800"), Tools(encode=refuse)) is None


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [(1, 2, ["prompt.tokenization"]), (1, 1, []), (1, None, []), (None, 2, []), (1, 0, [])],
)
def test_prompt_of_the_same_ids_has_the_same_response(before: int | None, after: int | None, names: list[str]) -> None:
    old, new = ({**row([1, 2, 3]), "request": {"response": n}} for n in (before, after))
    found = [STAGE.cause(difference, old, new, Tools()) for difference in STAGE.compare(old, new)]
    assert found == names


def decode_characters(ids: Sequence[int], skip: Any, clean_up: bool) -> str:
    return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("answers", "scored", "cause"),
    [
        (("Paris", " Paris"), True, "prompt.messages"),  # it was the same text of other ids
        (("Paris", "Rome!"), True, "prompt.messages"),
        (("Paris", " Paris"), False, "prompt.tokenization"),  # ids that no text of the row explains
    ],
)
def test_prompt_cause_of_another_answer_that_is_read_is_no_tokenization(
    answers: tuple[str, str], scored: bool, cause: str
) -> None:
    old, new = ({**row(encode(f"abc{answer}", True), "abc"), "scored": scored} for answer in answers)
    assert prompt_cause(old, new, tools=Tools(encode=encode, decode=decode_characters)) == cause


def test_compare_what_led_to_the_same_text_is_told_and_fails_nothing() -> None:
    """A switch that README tells to give stood as the cause, where the answers that are read differ."""
    sides = []
    for ids, arguments in (("abcx", {}), ("abcy", {"enable_thinking": True})):
        template = {"sha256": "t", "arguments": arguments}
        sides.append({**row(encode(ids, True), "abc"), "template": template, "messages": [*arguments]})
    found = [(difference.stage, difference.counts) for difference in STAGE.compare(*sides)]
    assert found == [("messages", False), ("template", False), ("prompt_ids", True)]
