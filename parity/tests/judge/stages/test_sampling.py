"""The sampling's stage: settings, seeds, forms of structured output."""

from __future__ import annotations

from typing import Any

import pytest

from parity.judge.stages.sampling import both_structures, sampling_differences, structure
from parity.judge.stages.stage import KEPT, Tools


def asking(form: str, value: Any) -> dict[str, Any]:
    return {"request": {"structure": {form: value}}, "output_ids": [65, 0], "stop": {"end_ids": {"value": [0]}}}


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("((a|b))", "(a|b)", True),
        ("(a)(b)", "ab", True),
        ("(a|b)+", "((a|b)+)", True),
        ("(a|b)+", "a|b+", False),
        (r"((a)b)\1", r"(a)b\1", False),
        ("(a|b)", "(a|c)", False),
        ("((", "(", False),
    ],
)
def test_both_structures_groups_that_only_group_are_no_difference(old: str, new: str, is_same: bool) -> None:
    before, after = both_structures(asking("regex", old), asking("regex", new))["regex"]
    assert (before == after) is is_same


@pytest.mark.parametrize(("form", "value", "is_kept"), [("regex", "[A-Z]", True), ("choice", ["B"], False)])
def test_structure_reads_the_text_before_the_end(form: str, value: Any, is_kept: bool) -> None:
    tools = Tools(decode=lambda ids, skip, clean: "".join(map(chr, ids)))
    assert (structure(asking(form, value), tools) == KEPT) is is_kept


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [("I think.</think>\n\nyes", True), ("yes", False), ("yes</think>I think", False)],
)
def test_structure_stands_behind_its_marker(text: str, is_kept: bool) -> None:
    row = asking("choice", ["yes", "no"])
    row["request"]["structure"]["after"] = "</think>"
    tools = Tools(decode=lambda ids, skip, clean: text)
    assert (structure(row, tools) == KEPT) is is_kept


def penalised(processors: list[str], **settings: Any) -> dict[str, Any]:
    """A greedy row with these settings."""
    named = {name: {"value": value, "from": "caller"} for name, value in settings.items()}
    return {"sampling": {"processors": {"value": processors, "from": "caller"}, **named}}


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        (penalised([], presence_penalty=1.5), penalised(["penalties"], presence_penalty=1.5), []),
        (
            penalised(["logit_bias"], presence_penalty=1.5),
            penalised(["penalties"], presence_penalty=1.5, logit_bias={"5": 1.0}),
            [],
        ),
        (
            penalised([], presence_penalty=1.5),
            penalised(["penalties"], presence_penalty=0.5),
            ["presence_penalty"],
        ),
        (  # forgotten among others
            penalised([], presence_penalty=1.5, frequency_penalty=0.5),
            penalised(["penalties"], presence_penalty=1.5),
            ["frequency_penalty"],
        ),
        (penalised([], frequency_penalty=0.5), penalised(["Damped"]), []),  # which may be it
        (penalised(["Damped"]), penalised([], frequency_penalty=0.5), []),
        (penalised(["bad_words"]), penalised([]), ["processors"]),
        (
            penalised(["thinking"], thinking_budget=40),
            penalised(["thinking"], thinking_budget=20),
            ["thinking_budget"],
        ),
    ],
)
def test_sampling_differences_of_penalties_and_budgets_wherever_they_are_set(
    old: dict[str, Any], new: dict[str, Any], fields: list[str]
) -> None:
    assert [difference.field for difference in sampling_differences(old, new)] == fields
