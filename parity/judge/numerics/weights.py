"""What answered a row of a golden: its checkpoint, its dtype and its adapter, and where they are.

Plain data: no model, and no numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.goldens.store import Case
from parity.judge.align import paired
from parity.judge.row import Row, adapters_in, is_float32, request_of
from parity.judge.tools import checkpoint_of, located, model_of

NO_ADAPTER = "its rows went through an adapter, and where that is cannot be seen"
OF_SEVERAL = "what differs is of several models, whose numerics are not one"


@dataclass(frozen=True, slots=True)
class Weights:
    """What answered a golden's row.   path: of the checkpoint.   adapter: its folder, "" where
    there is none, None where it is not known."""

    path: str | None
    dtype: str | None
    adapter: str | None


def in_float32(*cases: Case) -> bool:
    return all(all(map(is_float32, case.rows)) for case in cases)


NEAR = 0.25  # nats: no two numbers of half precision that are further apart are one, rounded


def most_rounding(*cases: Case) -> float:
    """How far apart two numbers may be and be one but for rounding, nats."""
    from parity.judge.numerics.errors import FLOOR  # numpy

    return FLOOR if in_float32(*cases) else NEAR


def adapters_of(row: Row) -> tuple[str, ...]:
    """What a row says of its adapters: their fingerprints, or the folder that it asked for."""
    fingerprints = adapters_in(row)
    asked = request_of(row).get("adapter")
    if fingerprints or not asked or asked == "another":
        return tuple(sorted(fingerprints))
    return (asked,)


def weights_of(old: Case, new: Case, index: int) -> Weights:
    dtype = model_of(old, index).get("dtype")
    return Weights(checkpoint_of(old, index), dtype, adapter_folder(old, new, index))


def adapter_folder(old: Case, new: Case, index: int) -> str | None:
    """A golden names the adapters of transformers by fingerprints; the new code says where they
    are."""
    golden = old.rows[index]
    rows = [golden]
    if new.rows:
        rows = [new.rows[new_index(old, new, index)], golden]
    if not any(map(adapters_of, rows)):
        return ""
    if len(adapters_of(golden)) > 1:
        return None
    for row in rows:
        asked = request_of(row).get("adapter")
        if asked:
            folder = located(new, asked)
            return folder if folder and Path(folder).is_dir() else None
    return None


def lends_adapter(old: Case, new: Case) -> bool:
    """Whether all rows of a golden are read under adapters that the new code alone names, which
    may be others than the golden's."""
    is_named = any(request_of(row).get("adapter") for row in new.rows)
    return is_named and all(
        adapters_of(row) and not request_of(row).get("adapter") for row in old.rows
    )


def new_index(old: Case, new: Case, index: int) -> int:
    """The index of a golden's row among the new rows; of one that is not there, 0."""
    golden = old.rows[index]
    indices = {id(row): k for k, row in enumerate(new.rows)}
    for one, row in paired(old.rows, new.rows):
        if one is golden:
            return indices[id(row)]
    return 0


def models_of(case: Case, indices: Iterable[int]) -> set[Any]:
    """What tells the models of some rows apart, as the golden says it."""
    models = set()
    for index in indices:
        model = model_of(case, index)
        adapters = adapters_of(case.rows[index])
        models.add((model.get("path"), model.get("dtype"), adapters))
    return models
