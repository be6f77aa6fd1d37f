"""Which of the packages that two environments have in other versions makes a difference?

A set of packages is tried as an environment that has them from there and all others from here. A
set that its packages' own requirements rule out is never tried: `closed` adds what must come along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parity.upgrade.packages import Package, normalized

Names = frozenset[str]
Fails = Callable[[Names], bool]  # whether the difference shows with these from there
Close = Callable[[Names], Names]


def differing(here: Mapping[str, Package], there: Mapping[str, Package]) -> list[str]:
    """Names of packages that are of other versions or builds, or in one environment only."""
    return [n for n in sorted({*here, *there}) if build_of(here.get(n)) != build_of(there.get(n))]


def build_of(package: Package | None) -> tuple[str, str] | None:
    return (package.version, package.content) if package else None


def mixed(
    here: Mapping[str, Package], there: Mapping[str, Package], names: Names
) -> dict[str, Package]:
    """The packages of here, but for those of there that are named."""
    kept = {name: package for name, package in here.items() if name not in names}
    return {**kept, **{name: there[name] for name in names if name in there}}


def closed(here: Mapping[str, Package], there: Mapping[str, Package], names: Names) -> Names:
    """With what must come along, so that no requirement is broken that here and there both keep."""
    may = frozenset(differing(here, there))
    known = {*broken(here), *broken(there)}
    found = names & may
    while True:
        lost = {edge for edge in broken(mixed(here, there, found)) if edge not in known}
        more = {name for edge in lost for name in edge} & may - found
        if not more:
            return found
        found |= more


def broken(packages: Mapping[str, Package]) -> Iterator[tuple[str, str]]:
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
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append((normalized(requirement.name), requirement.specifier))
    return tuple(found)


def fewest(names: Names, fails: Fails, close: Close) -> Names:
    """A set of packages that makes the difference, of which none can be left out: delta debugging,
    in halves first. names: a set that does."""
    parts = 2
    current = sorted(names)
    while len(current) > 1:
        size = -(-len(current) // parts)
        pieces = [current[k : k + size] for k in range(0, len(current), size)]
        rests = [[n for n in current if n not in piece] for piece in pieces]
        smaller = [*pieces, *(rests if parts > 2 else [])]
        found = next((some for some in smaller if is_smaller(some, current, fails, close)), None)
        if found is not None:
            parts = max(parts - 1, 2) if found in rests else 2
            current = found
        elif parts >= len(current):
            break
        else:
            parts = min(parts * 2, len(current))
    return came_along(frozenset(current), fails, close)


def is_smaller(some: list[str], current: list[str], fails: Fails, close: Close) -> bool:
    group = close(frozenset(some))
    return group != close(frozenset(current)) and fails(group)


def came_along(names: Names, fails: Fails, close: Close) -> Names:
    """Instead of a package, the one that came along with it and makes the difference by itself."""
    group = close(names)
    for name in sorted(group):
        own = close(frozenset({name}))
        if own < group and fails(own):
            return came_along(frozenset({name}), fails, close)
    return without_followers(names, close)


def without_followers(names: Names, close: Close) -> Names:
    """Without those that the others take along anyway."""
    for name in sorted(names):
        if close(names - {name}) == close(names):
            return without_followers(names - {name}, close)
    return names
