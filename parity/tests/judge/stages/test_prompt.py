"""The prompt's stage: why two prompts differ, and what must hold of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parity.goldens.store import Case
from parity.goldens.verdict import Cause
from parity.judge.case import also_differs
from parity.judge.comparison import Comparison
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


def rendered(messages: Any, arguments: Any) -> str:
    """A template that knows no enable_thinking."""
    return f"{messages}{arguments.get('tools', '')}"


@pytest.mark.parametrize(
    ("arguments", "also"),
    [
        ({"enable_thinking": False}, []),
        ({"tools": "t"}, ["prompt.template"]),
        ({"enable_thinking": True, "tools": "t"}, ["prompt.template"]),
    ],
)
def test_a_variable_that_changes_no_prompt_is_not_told_beside_the_cause(arguments: Any, also: list[str]) -> None:
    """Other messages were the cause, and "also: enable_thinking", of a template that has no such switch."""
    sides = []
    for messages, own in (("old", {}), ("new", arguments)):
        template: dict[str, Any] = {"sha256": "t", "arguments": own}
        text = rendered(messages, own)
        sides.append({**row(encode(text, True), text), "template": template, "messages": messages, "output_ids": []})
    old, new = (Case("s", "c", rows=(side,)) for side in sides)
    comparison = Comparison(old, new, Tools(render=rendered, template="t"))
    cause = Cause("prompt.messages", "likely", "")
    assert [said.partition(":")[0] for said in also_differs(comparison, cause)] == also


def test_what_follows_from_other_messages_is_not_told_beside_them() -> None:
    """Their text, and its ids, are others because the messages are."""
    sides = [{**row(encode(text, True), text), "messages": [text], "output_ids": []} for text in ("old", "new")]
    old, new = (Case("s", "c", rows=(side,)) for side in sides)
    assert also_differs(Comparison(old, new), Cause("prompt.messages", "likely", "")) == ()


def test_another_template_says_which_is_the_checkpoints_own() -> None:
    sides = []
    for text, sha in (("old", "t" * 64), ("new", "u" * 64)):
        template = {"sha256": sha, "arguments": {}}
        sides.append({**row(encode(text, True), text), "template": template, "messages": ["hi"], "output_ids": []})
    old, new = (Case("s", "c", rows=(side,)) for side in sides)
    first = Comparison(old, new, Tools(template="t" * 64)).differences[0]
    assert first.sentence() == (
        "prompt.template of row 0 was the checkpoint's own template, is another template (sha256 uuuuuuuuuuuu)"
    )


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("Capital: Oslo", "Capital: oslo", "prompt.text"),  # as scored with its response
        ("Capital: Oslo", "Capital: Os", "prompt.ids"),  # cut
        ("Capital: Oslo", "pital: Oslo", "prompt.ids"),
        ("Capital: Oslo", "Cap: Oslo", "prompt.ids"),  # cut behind a beginning, or before a response
        ("<Capital: Oslo", "Capital>: Oslo", "prompt.ids"),  # special tokens elsewhere
    ],
)
def test_ids_whose_text_was_not_seen_are_read(old: str, new: str, name: str) -> None:
    def decode(ids: Sequence[int], skip: bool, clean: bool) -> str:
        return "".join(chr(i) for i in ids if not (skip and chr(i) in "<>"))

    sides = [Case("s", "c", rows=({**row(encode(text, True)), "output_ids": []},)) for text in (old, new)]
    tools = Tools(decode=decode)
    [found] = Comparison(sides[0], sides[1], tools).differences
    assert found.name == name
    scored = [
        Case("s", "c", rows=({**one.rows[0], "prompt_text": "<Cap", "request": {"response": 5}},)) for one in sides
    ]
    [found] = Comparison(scored[0], scored[1], tools).differences
    assert found.name == name, "the text is the prompt's alone"
    cut = Case("s", "c", rows=({**sides[1].rows[0], "request": {"cut": 4}},))
    assert {one.name for one in Comparison(sides[0], cut, tools).differences} == {"prompt.ids"}
