"""Lines of the judge's table that no other test of toy recordings holds by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from parity.goldens.store import Case
from parity.judge.inquiry import Inquiry
from parity.judge.judge import Findings, from_other_ids, of_same_value
from parity.judge.replay import ANSWERS

from .inquiries import cause_of, inquiry_of
from .test_company import case
from .test_laws import TOOLS, row

FIRST = {"number": 0, "sample": 0}  # of a call
SECOND: dict[str, Any] = {"messages": ["c"], "prompt_text": "c", "prompt_ids": [3]}
OTHER: dict[str, Any] = {"messages": ["d"], "prompt_text": "d", "prompt_ids": [4]}


def inquiry(old: Case, new: Case, rerun: Any = None) -> Inquiry:
    return inquiry_of(old, new, rerun=rerun, tools=TOOLS)


def settings(**said: Any) -> dict[str, Any]:
    given = {"temperature": 0, "processors": [], **said}
    return {name: {"value": value, "from": "caller"} for name, value in given.items()}


def two_calls(first: list[int], later: Mapping[str, Any], value: Any, **more: Any) -> Case:
    """A case that asks on, with a prompt of its own."""
    return case(
        row(output_ids=first, request=FIRST, **more),
        row(output_ids=[6, 9], text="f", request=FIRST, **later),
        value=value,
    )


def test_an_invariant_that_the_new_side_alone_breaks_is_the_cause_where_nothing_else_differs() -> None:
    old = case(row())
    new = case(row(output_ids=[4, 6, 9], text="df", inputs={"keys": [], "positions": "from 3"}))
    found = cause_of(inquiry(old, new))
    assert found is not None and str(found) == "batch.positions; likely"
    assert found.proof == "the invariant 'batch' is broken by the new side alone"


@pytest.mark.parametrize(
    ("text", "value", "name"),
    [
        ("de#", ["de#"], "decode.skip_special_tokens; confirmed"),  # the text is what the value became
        ("de#", ["D"], "value; likely"),
        ("de", ["D"], "value; confirmed"),
        (None, ["D"], "value; likely"),  # the new text was not seen
    ],
)
def test_of_equal_ids_it_is_the_text_or_what_is_made_of_it(text: str | None, value: Any, name: str) -> None:
    flags = {"ids": "ended", "skip_special_tokens": text != "de#", "clean_up": False}
    old = case(row(), value=["de"])
    found = cause_of(inquiry(old, case(row(text=text, decode=flags), value=value)))
    assert str(found) == name


@pytest.mark.parametrize(("later", "name"), [(SECOND, None), (OTHER, "prompt.messages; confirmed")])
def test_a_later_prompt_that_differs_under_force_too_is_the_cause(later: Any, name: str | None) -> None:
    """Where it follows from the first answer only, it is none."""
    old = two_calls([4, 5, 9], SECOND, ["de", "f"])
    new = two_calls([4, 6, 9], OTHER, ["df", "f"], text="df")

    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        assert parts == {ANSWERS}
        return two_calls([4, 5, 9], later, ["de", "f"])

    cause, _ = from_other_ids(inquiry(old, new, rerun))
    assert (cause and str(cause)) == name


@pytest.mark.parametrize(("later", "verdict"), [(SECOND, "TEXT-IDENTICAL"), (OTHER, "LATENT")])
def test_a_later_prompt_that_differs_by_itself_is_latent_where_values_are_equal(later: Any, verdict: str) -> None:
    old = two_calls([4, 5, 9], SECOND, "same")
    new = two_calls([4, 6, 9], OTHER, "same", text="df")
    asked = inquiry(old, new, lambda *_: two_calls([4, 5, 9], later, "same"))
    samples: Any = SimpleNamespace(backend="hf")
    found = of_same_value(Findings(asked, samples, None, list))
    assert found is not None and found[0] == verdict


def test_a_setting_that_restores_the_first_call_is_confirmed_whatever_comes_behind() -> None:
    old = two_calls([4, 5, 9], SECOND, ["de", "f"], sampling=settings(top_k=1))
    new = two_calls([4, 6, 9], SECOND, ["df", "g"], text="df", sampling=settings(repetition_penalty=2.0))
    back = replace(old, rows=(old.rows[0], {**old.rows[1], "output_ids": [7, 9]}), value=["de", "g"])
    found = cause_of(inquiry(old, new, lambda load, parts: back if parts == {"sampling"} else new))
    assert found is not None and str(found) == "sampling.repetition_penalty; confirmed"
    assert found.proof.endswith("the old ids come back, and not the value")


def test_two_settings_that_only_together_restore_the_answer_are_named_so() -> None:
    old = case(row(), value="de")
    new = case(
        row(output_ids=[6, 9], text="f", sampling=settings(repetition_penalty=2.0), stop={"max_new_tokens": 9}),
        value="f",
    )

    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        return old if {"sampling", "prompts"} <= parts else new

    new = replace(new, rows=({**new.rows[0], **OTHER},))
    found = cause_of(inquiry(old, new, rerun))
    assert found is not None and str(found) == "prompt.messages; confirmed"
    assert found.proof.startswith("only prompt.messages, sampling.repetition_penalty together")


def test_a_prompt_that_is_only_read_is_not_put_back() -> None:
    """Its reading would be the same with the old ids, which proves nothing of them."""
    read = {"scored": True, "output_ids": []}
    old = case(row(**read), value=[-1.0])
    new = case(row(**read, **OTHER), value=["x"])
    found = cause_of(inquiry(old, new, lambda *_: new))
    assert found is not None and str(found) == "prompt.messages; likely"
    assert "a prompt that is only read cannot be put back" in found.proof
