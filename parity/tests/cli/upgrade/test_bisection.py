"""Which sets of packages are tried, and what is named. Packages are names and requirements here."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest

from parity.cli.upgrade.bisection import SUSPECTS, bundles_of, closed, differing, fewest, heads_of
from parity.cli.upgrade.packages import Package

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


@pytest.mark.parametrize("guilty", [{"c"}, {"a", "d"}, {"b", "c", "tokenizers"}, {"transformers"}])
def test_fewest_finds_what_is_needed_and_no_more(guilty: set[str]) -> None:
    close = functools.partial(closed, HERE, THERE)
    found = fewest(frozenset(HERE), lambda names: guilty <= names, close)
    assert found == close(frozenset(guilty))


def test_fewest_names_what_came_along_where_it_is_enough() -> None:
    here = world("1", {})
    there = world("2", {"a": ("d>=2",)})
    found = fewest(frozenset({"a", "d"}), lambda names: "d" in names, functools.partial(closed, here, there))
    assert found == {"d"}


def test_requirement_whose_marker_does_not_hold_is_none() -> None:
    old = ("b>=3; python_version < '3'", "c>=3; sys_platform == 'none'")
    assert closed(world("1", {}), world("2", {"a": old}), frozenset({"a"})) == {"a"}
    assert closed(world("1", {}), world("2", {"a": ("b>=2; python_version > '3'",)}), frozenset({"a"})) == {"a", "b"}


def test_bundles_hold_what_takes_each_other_along() -> None:
    found = bundles_of(HERE, functools.partial(closed, HERE, THERE))
    assert found == [{"a"}, {"b"}, {"c"}, {"d"}, {"tokenizers", "transformers"}]


def test_package_that_requires_the_others_of_a_bundle_is_its_head() -> None:
    """huggingface-hub comes first in the alphabet, and nothing changes by it."""
    here = world("1", {"transformers": ("a<2", "tokenizers<2")})
    there = world("2", {"transformers": ("a>=2", "tokenizers>=2"), "a": ("b",)})
    group = closed(here, there, frozenset({"a"}))
    assert group == {"a", "tokenizers", "transformers"}
    assert heads_of(group, here, there) == ["transformers"]
    assert heads_of(frozenset({"c", "d"}), here, there) == ["c", "d"]


def test_suspect_is_found_in_two_runs_among_many() -> None:
    """transformers takes two others along, and 40 packages differ: halves took 21 runs."""
    names = [f"p{k:02}" for k in range(40)]
    wanted = {"transformers": ("tokenizers<2", "huggingface-hub<2")}
    here = {n: Package(n, "1", "", (), wanted.get(n, ()), "") for n in [*names, *SUSPECTS, "huggingface-hub"]}
    wanted = {"transformers": ("tokenizers>=2", "huggingface-hub>=2")}
    there = {n: Package(n, "2", "", (), wanted.get(n, ()), "") for n in here}
    runs = []

    def fails(tried: frozenset[str]) -> bool:
        runs.append(tried)
        return "transformers" in tried

    found = fewest(frozenset(here), fails, functools.partial(closed, here, there))
    assert found == {"transformers", "tokenizers", "huggingface-hub"}
    assert heads_of(found, here, there) == ["transformers"]
    assert len(runs) <= 2
