"""What was done with ids after the model: names of the value's causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parity.goldens.verdict import Cause
from parity.judge.after_model import goes_on_with_stop
from parity.judge.explain import cause_of

from .inquiries import differences, inquiry_of
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
    assert cause.name.startswith("post."), cause


def test_after_decoding_a_stop_that_was_appended_to_equal_texts_is_no_stop() -> None:
    """The library cut the text at its stop on both sides; the new code puts it back by itself."""
    stopped = row(output_ids=[4, 5], stop={"strings": ["e"]}, text="d", decode={"ids": "cut"})
    assert caused(stopped, stopped, "d", "de").name.startswith("post.")


@pytest.mark.parametrize(("kept", "name"), [("d", "stop.strings"), ("", "post.trim")])
def test_after_decoding_a_text_that_no_told_stop_cuts_is_trimmed(kept: str, name: str) -> None:
    """The old code stops by a criterion of its own, whose strings nobody sees; the new one is told "e"."""
    ids = [3, 4, 5]
    old = row(output_ids=ids, text="cde", stop={"criteria": ["StopOnStrings"]})
    new = row(output_ids=ids, text="cde", stop={"strings": ["e"]})
    assert caused(old, new, "cde", f"c{kept}").name == name


@pytest.mark.parametrize(
    ("shorter", "longer", "goes_on"),
    [("a", "a.b", True), ("a", "a \n.b", True), ("a", "ab.", False), ("b", "a.b", False), ("a.", "a.b", False)],
)
def test_goes_on_with_stop_after_blanks_that_were_stripped(shorter: str, longer: str, goes_on: bool) -> None:
    assert goes_on_with_stop(shorter, longer, {"."}) == goes_on


def test_fields_of_one_request_that_are_exchanged_are_no_order_of_answers() -> None:
    only = row(output_ids=ENDS_WITH_E)
    swapped = [{"photo": "a.png", "colour": "e", "item": "d"}]
    assert caused(only, only, [{"photo": "a.png", "colour": "d", "item": "e"}], swapped).name == "post.other"


@pytest.mark.parametrize(
    ("was", "now", "name"),
    [
        ("bin0.png", "bin0", "post.other"),  # a file's name
        ("d", "f88d3d38", "post.other"),  # a folder's, of a digest that holds the letter
        ("bin0 ", "bin0", "post.other"),
        ("D: e!", "D: e", "post.trim"),  # the answer "de", rewritten
        ("said: de", "de", "post.other"),  # a label that the code puts before it
        ("de", "d", "post.trim"),
    ],
)
def test_only_a_text_of_an_answer_is_cut_or_stripped(was: str, now: str, name: str) -> None:
    only = row(output_ids=ENDS_WITH_E)
    assert caused(only, only, {"at": was, "and": ["x", "y"]}, {"at": now, "and": ["x", "y"]}).name == name


def test_an_end_that_is_decoded_no_more_is_told_in_words() -> None:
    only = row(output_ids=[4, 5], stop={"end_ids": [5]})
    cause = caused(only, only, "de", "d")
    assert cause.name == "post.trim"
    assert "the id that ended the row is decoded, too: True became False" in cause.sentence


@pytest.mark.parametrize(("dtype", "certainty"), [("bfloat16", "likely"), ("float32", "confirmed")])
def test_an_order_of_scores_may_be_moved_by_rounding(dtype: str, certainty: str) -> None:
    rows = [row(output_ids=[], scored=True, model={"dtype": dtype}, prompt_ids=[k]) for k in (4, 5)]
    before, after = case(*rows, value=["d", "e"]), case(*rows, value=["e", "d"])
    found = cause_of(inquiry_of(before, after, differences(before, after), tools=TOOLS))
    assert found is not None and (found.name, found.certainty) == ("batch.order", certainty)
