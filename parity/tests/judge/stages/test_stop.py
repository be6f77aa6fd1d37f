"""The stop's stage: stops that stand in a plugin, and stops in the place of those that old code cuts at by hand."""

from __future__ import annotations

from typing import Any

import pytest

from parity.goldens.store import Case
from parity.judge.comparison import Comparison
from parity.judge.equal import of_seen
from parity.judge.stages.stop import stop_differences


def stopped(strings: list[str] | None, criteria: list[str]) -> dict[str, Any]:
    """A row whose thought's plugin ends its answer at these strings."""
    stop: dict[str, Any] = {
        "end_ids": {"value": [0], "from": "checkpoint"},
        "criteria": {"value": criteria, "from": "caller"},
    }
    if strings is not None:
        stop["answer_strings"] = {"value": strings, "from": "caller"}
    return {"stop": stop, "output_ids": [65, 0]}


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        (stopped(["a", "b"], ["thinking"]), stopped(["b", "a"], ["thinking"]), []),
        (stopped(["a"], ["thinking"]), stopped(["b"], ["thinking"]), ["answer_strings"]),
        (stopped(None, ["MyCriterion"]), stopped(["a"], ["thinking"]), []),
        (stopped(["a"], ["thinking"]), stopped(None, []), ["criteria"]),
    ],
)
def test_stop_differences_of_strings_that_end_an_answer(
    old: dict[str, Any], new: dict[str, Any], fields: list[str]
) -> None:
    assert [difference.field for difference in stop_differences(old, new)] == fields


def cut_by_hand(text: str, told: list[str], new_value: str = "a", **call: Any) -> Comparison:
    """Old code whose call names stops and that gives its model none; moved code that tells an engine some."""

    def case(strings: list[str], value: str, **more: Any) -> Case:
        stop = {"end_ids": [0], "strings": strings}
        entries = {name: {"value": entry, "from": "caller"} for name, entry in stop.items()}
        row = {"prompt_ids": [1], "output_ids": [2, 3], "text": text, "stop": entries}
        return Case("s", "c", rows=(row,), value=[value], **more)

    return Comparison(case([], "a", **call), case(told, new_value))


@pytest.mark.parametrize(
    ("text", "told", "call"),
    [
        (" a\n\nTicket", ["\n\n"], {"arguments": {"stop": "\n"}}),
        (" a\n\nTicket", ["\n\n"], {"defaults": {"stop": "\n"}}),  # the caller gave none
        ("a###b", ["##"], {"arguments": {"until": ["###", "END"]}}),
    ],
)
def test_stops_in_the_place_of_those_that_are_cut_at_by_hand_are_latent(
    text: str, told: list[str], call: dict[str, Any]
) -> None:
    """Values were equal, and it passed."""
    found = of_seen(cut_by_hand(text, told, **call))
    assert found is not None and (found.name, found.certainty) == ("stop.strings", "likely")
    [named] = call.values()
    assert f"was {sorted(next(iter(named.values())))!r}, is {told!r}" in found.sentence


@pytest.mark.parametrize(
    ("text", "told", "call"),
    [
        (" a\n\nTicket", ["\n"], {"arguments": {"stop": "\n"}}),
        (" a\n\nTicket", ["\n", "\n\n"], {"defaults": {"stop": "\n"}}),
        ("a\nb\n\nTicket", ["\n\n"], {"defaults": {"stop": "\n"}}),  # a value that is cut shows that it is by hand
        (" a\n\nTicket", ["\n\n"], {"arguments": {"stop": "###"}}),  # no answer comes to it
        (" a, b\n\nTicket", ["\n\n"], {"arguments": {"delimiter": ","}, "new_value": "b"}),
        (" b\n\nTicket", ["\n\n"], {"arguments": {"stop": "\n"}}),  # the value is not what stands before it
    ],
)
def test_stops_that_cut_where_old_code_does_are_no_difference_that_counts(
    text: str, told: list[str], call: dict[str, Any]
) -> None:
    assert of_seen(cut_by_hand(text, told, **call)) is None


@pytest.mark.parametrize(("text", "call"), [("a", {}), ("a", {"arguments": {"stop": "#"}})])
def test_a_stop_that_no_answer_reaches_and_no_call_names_is_latent(text: str, call: dict[str, Any]) -> None:
    """It passed as IDENTICAL, with no line about it."""
    found = of_seen(cut_by_hand(text, ["\n\n"], **call))
    assert found is not None and (found.name, found.certainty) == ("stop.strings", "likely")
    assert of_seen(cut_by_hand(text, ["\n\n"], arguments={"stop": "\n\n"})) is None


def test_stops_in_the_place_of_a_criterion_are_no_difference_that_counts() -> None:
    """A criterion says nothing of what it stops at."""
    told = cut_by_hand("a", ["\n\n"])
    told.old.rows[0]["stop"]["criteria"] = {"value": ["AtBlankLines"], "from": "default"}
    assert of_seen(told) is None
