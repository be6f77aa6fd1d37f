"""Which sets of packages are tried, and what is named. Packages are names and requirements here."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest

from parity.upgrade.bisection import closed, differing, fewest
from parity.upgrade.packages import Package

Wanted = Mapping[str, tuple[str, ...]]


def world(version: str, requires: Wanted) -> dict[str, Package]:
    names = ("a", "b", "c", "d", "tokenizers", "transformers")
    return {name: Package(name, version, "", (), requires.get(name, ()), "") for name in names}


HERE = world("1", {"transformers": ("tokenizers<2",)})
THERE = world("2", {"transformers": ("tokenizers>=2", "absent; extra == 'x'")})


def test_differing_counts_builds_and_what_is_in_one_only() -> None:
    here = {"same": Package("same", "1", "", (), (), "x"), "built": Package("built", "1", "", (), (), "x")}
    there = {"same": here["same"], "built": Package("built", "1", "", (), (), "y"), "new": here["same"]}
    assert differing(here, there) == ["built", "new"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"a"}, {"a"}),
        ({"transformers"}, {"transformers", "tokenizers"}),
        ({"tokenizers"}, {"transformers", "tokenizers"}),
    ],
)
def test_closed_takes_along_what_requirements_ask_for(names: set[str], found: set[str]) -> None:
    assert closed(HERE, THERE, frozenset(names)) == found


def test_closed_requirement_that_both_break_is_no_reason() -> None:
    here = world("1", {"a": ("b>=3",)})
    there = world("2", {"a": ("b>=3",)})
    assert closed(here, there, frozenset({"a"})) == {"a"}


@pytest.mark.parametrize("guilty", [{"c"}, {"a", "d"}, {"b", "c", "tokenizers"}])
def test_fewest_finds_what_is_needed_and_no_more(guilty: set[str]) -> None:
    close = functools.partial(closed, HERE, THERE)
    found = fewest(frozenset(HERE), lambda names: guilty <= names, close)
    assert close(found) == close(frozenset(guilty))
    assert len(found) <= len(guilty)


def test_fewest_names_what_came_along_where_it_is_enough() -> None:
    here = world("1", {})
    there = world("2", {"a": ("d>=2",)})
    found = fewest(frozenset({"a", "d"}), lambda names: "d" in names, functools.partial(closed, here, there))
    assert found == {"d"}
