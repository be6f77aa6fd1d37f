"""What was done with ids after the model: names of the value's causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from parity.goldens.verdict import Cause

from .inquiries import cause_of, differences, inquiry_of
from .test_company import case
from .test_laws import TOOLS, row

ENDS_WITH_E = [4, 5, 9]  # "de", and the end


def caused(old: dict[str, Any], new: dict[str, Any], value: Any, now: Any) -> Cause:
    before, after = case(old, value=value), case(new, value=now)
    found = cause_of(inquiry_of(before, after, differences(before, after), tools=TOOLS))
    assert found is not None
    return found


@pytest.mark.parametrize("stops", [[], ["."], ["e"], [".f"]])
@pytest.mark.parametrize("told", ["old and new", "new"])
def test_after_decoding_an_appended_character_is_no_stop(stops: Sequence[str], told: str) -> None:
    """Whatever stops there are: neither side's ids become the character that was appended."""
    new = row(output_ids=ENDS_WITH_E, stop={"strings": stops})
    old = new if told == "old and new" else row(output_ids=ENDS_WITH_E)
    cause = caused(old, new, "de", "de.")
    assert cause.name == "value", cause


def test_after_decoding_a_stop_that_was_appended_to_equal_texts_is_no_stop() -> None:
    """The library cut the text at its stop on both sides; the new code puts it back by itself."""
    stopped = row(output_ids=[4, 5], stop={"strings": ["e"]}, text="d", decode={"ids": "cut"})
    assert caused(stopped, stopped, "d", "de").name == "value"


def test_fields_of_one_request_that_are_exchanged_are_no_order_of_answers() -> None:
    only = row(output_ids=ENDS_WITH_E)
    swapped = [{"photo": "a.png", "colour": "e", "item": "d"}]
    assert caused(only, only, [{"photo": "a.png", "colour": "d", "item": "e"}], swapped).name == "value"


@pytest.mark.parametrize(
    ("was", "now", "name"),
    [
        ("bin0.png", "bin0", "value"),  # a file's name
        ("d", "f88d3d38", "value"),  # a folder's, of a digest that holds the letter
        ("bin0 ", "bin0", "value"),
        ("D: e!", "D: e", "value"),  # the answer "de", rewritten
        ("said: de", "de", "value"),  # a label that the code puts before it
        ("de", "d", "value"),
    ],
)
def test_only_a_text_of_an_answer_is_cut_or_stripped(was: str, now: str, name: str) -> None:
    only = row(output_ids=ENDS_WITH_E)
    assert caused(only, only, {"at": was, "and": ["x", "y"]}, {"at": now, "and": ["x", "y"]}).name == name


@pytest.mark.parametrize(("dtype", "certainty"), [("bfloat16", "likely"), ("float32", "confirmed")])
def test_an_order_of_scores_may_be_moved_by_rounding(dtype: str, certainty: str) -> None:
    rows = [row(output_ids=[], scored=True, model={"dtype": dtype}, prompt_ids=[k]) for k in (4, 5)]
    before, after = case(*rows, value=["d", "e"]), case(*rows, value=["e", "d"])
    found = cause_of(inquiry_of(before, after, differences(before, after), tools=TOOLS))
    assert found is not None and (found.name, found.certainty) == ("order", certainty)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("def", "def#", "decode.skip_special_tokens; confirmed"),
        ("so: def#", "so: def", "decode.skip_special_tokens; confirmed"),
        ("d", "def", "stop; likely"),
        ("def", "d", "stop; likely"),
        ("de", "def", "value; likely"),  # of one letter: an argument, and no stop
        ("d", "def.", "value; confirmed"),
        ("", "def", "value; confirmed"),
    ],
)
def test_a_value_may_hold_special_tokens_or_an_answer_that_is_cut_on_one_side_only(
    was: str, now: str, said: str
) -> None:
    """The result has both texts, whichever the code takes; and the old code cut at a stop by hand."""
    only = row(output_ids=[4, 5, 6, 9], text="def")
    before = replace(case(only, value=was), arguments={"until": ["x", "ef"], "mode": "f"})
    after = case(only, value=now)
    found = cause_of(inquiry_of(before, after, differences(before, after), tools=TOOLS))
    assert str(found) == said


def test_an_answer_that_is_stripped_behind_its_cut_ends_at_the_stop_too() -> None:
    only = row(output_ids=ENDS_WITH_E, text="d\nef")
    before, after = replace(case(only, value="d"), arguments={"stop": "ef"}), case(only, value="d\nef")
    found = cause_of(inquiry_of(before, after, differences(before, after), tools=TOOLS))
    assert str(found) == "stop; likely"


def test_what_cuts_an_answer_is_not_known_where_no_stop_stands_there() -> None:
    only = row(output_ids=ENDS_WITH_E, text="de")
    assert str(caused(only, only, "d", "de")) == "value; likely"


@pytest.mark.parametrize(("dtype", "certainty"), [("bfloat16", "likely"), ("float32", "confirmed")])
def test_a_choice_by_numbers_may_be_moved_by_rounding(dtype: str, certainty: str) -> None:
    """Two labels are as likely: which one is said hangs on the last bit of their log-probabilities."""
    read = row(output_ids=[], scored=True, model={"dtype": dtype})
    value = {"choice": "C", "probabilities": [0.3, 0.3, 0.4]}
    assert str(caused(read, read, value, {**value, "choice": "D"})) == f"value; {certainty}"


@pytest.mark.parametrize(("prints", "certainty"), [(["f5"], "confirmed"), ([], "likely")])
def test_a_value_is_not_sure_where_the_adapters_cannot_be_compared(prints: list[str], certainty: str) -> None:
    """hf sees an adapter's weights, vLLM its folder."""
    read = {"output_ids": [], "scored": True}
    old = row(**read, inputs={"keys": [], "adapters": ["f5"]})
    new = row(**read, inputs={"keys": [], "adapters": prints}, request={"adapter": "acme/one"})
    found = inquiry_of(case(old, value=[-1.0]), case(new, value=[-2.0]), (), tools=TOOLS)
    assert str(cause_of(found)) == f"value; {certainty}"
