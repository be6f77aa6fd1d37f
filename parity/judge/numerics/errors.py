"""What three paths read of the same tokens, as errors in nats of logit.

The error of a step is a path's log-probability of the golden's token minus the reference's. Where
a token has the probability p, its log-probability moves by (1 - p) times what its logit moves by:
where a model is sure nothing shows. Dividing by (1 - p) makes trained and flat models comparable.

Rows that begin with the same ids (a system prompt, samples of one prompt) have the same errors
there, bit by bit: each distinct prefix counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray, float64
Logprobs = Sequence[float | None]  # nats, one per token; None where a path did not read it

SURE = 0.01  # 1 - p counts as this at least: below, a log-probability's own float32 error shows
FLOOR = 1e-4  # nats: float32 rounding of a path and of the reference lies below it
READ = 1e-5  # nats: some units in the last place of a log-probability that is read in float32
CLIP = 4.0  # sizes: an error counts as this large at most. An expert that flips moves a step by 100
HUBER = 2.5  # sizes: where the root mean square of a path's own errors is clipped


@dataclass(frozen=True, slots=True)
class Reading:
    """One row's tokens as three paths read them.

    start: how many ids stand before the first token that was read.
    prompt: how many of the tokens are the prompt's.
    probes: what the reference reads with one thing in it moved (reading.PROBED).
    ids: of the whole row, so that what rows share counts once. () if it shares nothing, as a row
    with images: the same ids may stand for other ones.
    """

    reference: Logprobs
    old: Logprobs
    new: Logprobs
    start: int = 1
    prompt: int = 0
    probes: Mapping[str, Logprobs] = field(default_factory=dict)
    ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not len(self.reference) == len(self.old) == len(self.new):
            raise ValueError("Reading: the paths read other numbers of tokens. Read the same rows.")
        length = self.start + len(self.reference)
        if self.ids and len(self.ids) != length:
            raise ValueError(
                f"Reading: {len(self.ids)} ids, expected {length}. Give all ids of the row."
            )


@dataclass(frozen=True, slots=True)
class Errors:
    """Every step that all paths read, those that rows share once. Arrays are [steps].

    cluster: steps whose errors may go together have the same number.
    rows: cluster -> the row that it was read in.
    position: in the row.   is_answer: of the answer, or of the prompt.
    logprob: the reference's, nats.   old, new, probes: errors, nats of logit.
    floor: what float32 makes of each error, nats of logit: more where the model is sure.
    is_open: whether the model is unsure enough for rounding to show.
    size: of the old errors, a few large ones aside, nats of logit.
    """

    cluster: Array
    rows: Sequence[int]
    position: Array
    is_answer: Array
    logprob: Array
    old: Array
    new: Array
    probes: Mapping[str, Array]
    floor: Array
    is_open: Array
    size: float

    @property
    def rounding(self) -> float:
        """The unit of effects, nats of logit."""
        return math.hypot(self.size, FLOOR)

    def clipped(self, errors: Array, clip: float = CLIP) -> Array:
        limit = clip * self.rounding
        return np.clip(errors, -limit, limit)


def errors_of(rows: Sequence[Reading]) -> Errors:
    """A new value that is not a number is an error without bound."""
    names = probed_everywhere(rows)
    origins: list[int] = []
    table = np.array(list(distinct_steps(rows, names, origins)), dtype=np.float64)
    table = table.reshape(-1, 6 + len(names))
    reference = table[:, 3]
    logprob = np.minimum(reference, 0.0)
    unsure = -np.expm1(logprob)
    shown = np.hypot(unsure, SURE)
    errors = (table.T[4:] - reference) / shown
    old, new, *probes = np.nan_to_num(errors, nan=np.inf)
    is_open = unsure > SURE
    return Errors(
        cluster=table[:, 0].astype(int),
        rows=origins,
        position=table[:, 1],
        is_answer=table[:, 2] > 0,
        logprob=logprob,
        old=old,
        new=new,
        probes=dict(zip(names, probes)),
        floor=np.maximum(FLOOR, READ / shown),
        is_open=is_open,
        size=robust_size(old[is_open]),
    )


def probed_everywhere(rows: Sequence[Reading]) -> list[str]:
    """Names of the probes that every row has."""
    names = [set(row.probes) for row in rows]
    return sorted(set.intersection(*names)) if names else []


def distinct_steps(
    rows: Sequence[Reading], names: Sequence[str], origins: list[int]
) -> Iterator[tuple[float, ...]]:
    """(cluster, position, whether of the answer, reference, old, new, *probes) of each step that
    all paths read, and that no earlier row has behind the same ids.

    Steps that a row shares with the same number of other rows are one cluster; `origins` gets the
    row of each.
    """
    columns = [read_steps(row, names) for row in rows]
    prefixes = prefixes_of(rows)
    readers = readers_of(columns, prefixes)
    clusters: dict[tuple[int, int], int] = {}
    for k, row in enumerate(rows):
        for step, prefix in enumerate(prefixes[k]):
            sharing = readers.get(prefix, [])
            if sharing[:1] == [k]:
                cluster = clusters.setdefault((k, len(sharing)), len(clusters))
                yield (cluster, row.start + step, step >= row.prompt, *columns[k][step])
    origins.extend(k for k, _ in clusters)


def read_steps(row: Reading, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """(reference, old, new, *probes) of each token of a row."""
    probes = [row.probes[name] for name in names]
    return list(zip(row.reference, row.old, row.new, *probes))


def readers_of(
    columns: Sequence[Sequence[tuple[Any, ...]]], prefixes: Sequence[Sequence[int]]
) -> dict[int, list[int]]:
    """Prefix -> the rows whose token at its end all paths read."""
    readers: dict[int, list[int]] = {}
    for k, steps in enumerate(columns):
        for prefix, read in zip(prefixes[k], steps):
            if None not in read and math.isfinite(read[0]):
                readers.setdefault(prefix, []).append(k)
    return readers


def prefixes_of(rows: Sequence[Reading]) -> list[list[int]]:
    """For each row, at each token that was read, the number of the prefix that ends there. Equal
    prefixes have equal numbers."""
    known: dict[tuple[int, object], int] = {}
    prefixes = []
    for k, row in enumerate(rows):
        own = [(k, position) for position in range(row.start + len(row.reference))]
        path = [-1]
        for token in row.ids or own:
            path.append(known.setdefault((path[-1], token), len(known)))
        prefixes.append(path[1 + row.start :])
    return prefixes


def robust_size(errors: Array) -> float:
    """Root mean square, errors above HUBER times itself counted as that (Huber's proposal 2)."""
    if not len(errors):
        return 0.0
    squares = np.minimum(errors**2, 1e12)
    size = float(np.sqrt(squares.mean()))
    for _ in range(200):
        smaller = float(np.sqrt(np.minimum(squares, (HUBER * size) ** 2).mean()))
        if smaller >= size * (1 - 1e-6):
            break
        size = smaller
    return size
