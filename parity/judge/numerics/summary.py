"""What reports show of a site's numerics."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from parity.goldens import verdict
from parity.judge.numerics.errors import FLOOR, errors_of
from parity.judge.numerics.groups import Group, parting_at
from parity.judge.numerics.reading import CannotJudge
from parity.judge.numerics.referee import Verdict

BINS = 41  # of the histogram
WIDE = 4.0  # sizes: it goes from -WIDE to WIDE


def summary_of(group: Group) -> verdict.Numerics:
    found = group.verdict
    of_group = (group.site, group.backend, group.path or "an unknown checkpoint", group.dtype)
    if found is None:
        why = f"could not be judged: {group.why}"
        return verdict.Numerics(*of_group, "could not judge", why)
    sentence = str(found)
    return verdict.Numerics(
        *of_group,
        found.outcome,
        sentence,
        found.cause,
        group.against,
        statistics_of(found),
        histogram_of(group, found),
    )


def statistics_of(found: Verdict) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "tokens": found.noise.tokens,
        "old": found.noise.old,
        "new": found.noise.new,
        "sees": found.sees,
        "more": found.more,
        "like": found.like,
        "exact": found.exact,
        "statistics": [dataclasses.asdict(estimate) for estimate in found.estimates],
    }


def histogram_of(group: Group, found: Verdict) -> dict[str, Any]:
    """Both error distributions, over unsure tokens; errors beyond the ends count in the last
    bins."""
    import numpy as np

    if not found.estimates:
        return {}
    errors = errors_of(group.readings)
    noise = found.noise
    size = found.estimates[0]
    reach = WIDE * max(noise.old, min(noise.new, 3 * noise.old), FLOOR)
    edges = np.linspace(-reach, reach, BINS + 1)

    def counts(side: Any) -> list[int]:
        clipped = np.clip(side[errors.is_open], -reach, reach)
        return [int(count) for count in np.histogram(clipped, edges)[0]]

    return {
        "edges": edges.tolist(),
        "old": counts(errors.old),
        "new": counts(errors.new),
        "size": noise.old,
        "least": size.least * noise.old,
        "most": size.most * noise.old,
        "now": noise.new,
        "gaps": list(gaps_of(group)),
        "allowed": noise.of_gap,
    }


def gaps_of(group: Group) -> Iterator[float]:
    """By how much the reference prefers an id at each step where rows part, nats."""
    for key, step in group.steps.items():
        if key not in group.places:
            continue
        try:
            first, second = parting_at(group, group.places[key], step).reference
        except CannotJudge:
            continue
        yield abs(first - second)
