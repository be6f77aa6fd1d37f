"""The stop's stage: stops that stand in a plugin."""

from __future__ import annotations

from typing import Any

import pytest

from parity.causes import cause_of_field
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
    assert cause_of_field("stop", "answer_strings") == "stop.strings"
