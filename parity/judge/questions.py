"""Which cases hang on their site's numerics, and where their ids part. Plain data: no model, and no numpy.

WHEN. Reading a checkpoint twice takes longer than most sites, so a site's numerics are judged where something hangs on
them: a greedy answer parts from the golden's at some step and no declared setting explains it; the model's dtype or
weights differ; log-probabilities among the values of a half-precision golden differ. Where every id and value is equal
there is no question, whatever the dtype; `check --numerics` asks all the same, of every site. In bfloat16 long answers
of real models do part now and then, so such a site is judged nearly always, and over all tokens of all its goldens,
not only those of cases that part or that were chosen.

Map: questions, partings, when to ask, lookups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from parity.golden import Case
from parity.judge.align import paired, same_ids
from parity.judge.comparison import Comparison
from parity.judge.endings import leaves
from parity.judge.row import entry, is_drawn, same_prompt, unseen
from parity.record.rows import CHOSEN_BY_ITSELF, STRUCTURED
from parity.verdict import Cause, Verdict, equal, first_divergence

Row = Mapping[str, Any]
Judged = tuple[Verdict, Cause | None, tuple[str, ...]]  # verdict, cause, notes
Kind = Literal["parted", "floats", "model", "passing"]


# == Questions ==


@dataclass(frozen=True, slots=True)
class Question:
    """A case whose verdict hangs on its site's numerics.

    kind: "parted", its ids part and nothing declared explains it; "floats", its ids are equal and numbers among its
    values are not; "model", its model differs as declared; "passing", it passes, and would not if numerics shifted.
    otherwise: its verdict where the numerics say nothing.   company: the cause, if each row alone gives the old answer.
    beside: what differs, too, and is the cause where rounding explains that the ids part.   apart: if not 0, it is
    numbers alone, and this is how far they are apart at the golden's own ids, which rounding may explain, too.
    place: of the row whose model it is about, for a case may ask several.
    """

    old: Case
    new: Case
    backend: str
    kind: Kind
    otherwise: Judged
    company: Cause | None = None
    beside: Cause | None = None
    apart: float = 0.0
    place: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.old.site, self.old.case, self.backend

    @property
    def weights(self) -> Weights:
        return weights_of(self.old, self.new, self.place)

    @property
    def there(self) -> int:
        """The place among the new rows."""
        return new_place(self.old, self.new, self.place)

    @property
    def moved(self) -> Row:
        """The model of the new code."""
        return model_of(self.new, self.there)


# == Partings ==


@dataclass(frozen=True, slots=True)
class Step:
    """The first step at which a greedy row parts.   position: among prompt and answer.   penalty: a repetition penalty
    that stood between the model and the choice, on the ids seen.   odd: why that choice cannot be computed again.
    masked: by a structure, which takes away what the model prefers."""

    row: int
    step: int
    position: int
    ids: tuple[int, int]
    penalty: float = 1.0
    seen: frozenset[int] = frozenset()
    odd: str = ""
    masked: bool = False


def steps_of(old: Case, new: Case) -> list[Step]:
    """Where the rows of a case part. A row that is the beginning of the other one does not: no other id was chosen."""
    found, places = [], {id(row): place for place, row in enumerate(old.rows)}
    for mine, theirs in paired(old.rows, new.rows):
        if not same_prompt(mine, theirs):
            continue
        before, after = mine["output_ids"], theirs["output_ids"]
        step = first_divergence(before, after)
        if step is None or step >= min(len(before), len(after)):
            continue
        penalty = float(entry(mine, "sampling", "repetition_penalty") or 1)
        seen = frozenset((*mine["prompt_ids"], *before[:step])) if penalty != 1 else frozenset[int]()
        position = len(mine["prompt_ids"]) + step
        masked = STRUCTURED in (entry(mine, "sampling", "processors") or ())
        ids = before[step], after[step]
        found.append(Step(places[id(mine)], step, position, ids, penalty, seen, oddity(mine), masked))
    return found


def ends_elsewhere(old: Case, new: Case) -> bool:
    """Whether a row is the beginning of its other side: the model chose the same ids, and something else the end. What
    a criterion of the old code's own let a row go on with until all had ended is no end."""
    asked = ((a, b) for a, b in paired(old.rows, new.rows) if same_prompt(a, b) and not unseen(a, b))
    unequal = [1 for a, b in asked if a["output_ids"] != b["output_ids"] and not kept_on(a, b)]
    return len(unequal) > len(steps_of(old, new))


def kept_on(old: Row, new: Row) -> bool:
    """Whether a criterion kept an old row behind the end of the new one."""
    ids = new["output_ids"]
    return bool(entry(old, "stop", "criteria")) and old["output_ids"][: len(ids)] == ids


def oddity(row: Row) -> str:
    """Why a row's choices cannot be computed again from its logits; "" if they can."""
    others = [name for name in entry(row, "sampling", "processors") or () if name != STRUCTURED]  # it only takes away
    if row.get("loop") in CHOSEN_BY_ITSELF and not row.get("sampling"):
        return "code of its own chose other tokens than the likeliest"
    if others:
        return f"{', '.join(others)} changed the logits, which cannot be computed again"
    return "beams were searched" if (entry(row, "sampling", "num_beams") or 1) > 1 else ""


# == When to ask ==


def kind_of(old: Case, new: Case, judged: Judged, always: bool) -> Kind | None:
    """What a verdict asks of the site's numerics; None if nothing."""
    verdict, cause, _ = judged
    if verdict in ("IDENTICAL", "TEXT-IDENTICAL", "SAME-DISTRIBUTION"):
        drawn = any(row.get("sampling") and is_drawn(row) for row in old.rows)  # whose ids are no choice of the model's
        chosen = verdict == "TEXT-IDENTICAL" and steps_of(old, new) and not drawn
        return "passing" if always or chosen else None
    if cause is not None and cause.name.startswith("model."):
        return None if cause.certainty == "confirmed" else "model"
    if verdict == "DRIFT" and cause is not None and cause.name in OF_NUMBERS and same_ids(old, new):
        declared = bool(Comparison(old, new).counted)
        return "floats" if number_gap(old.value, new.value) and not declared else None
    return None


OF_NUMBERS = ("post.other", "sampling.processors")


def place_of(old: Case, new: Case, kind: Kind) -> int | None:
    """Of the row whose model a question is about; None where it is about several models, which have no numerics in
    common."""
    places = [step.row for step in steps_of(old, new)] or [*range(len(old.rows))]
    return None if len(asked_models(old, places)) > 1 and kind in ("parted", "floats") else places[0]


def asked_models(case: Case, places: Iterable[int]) -> set[Any]:
    """What tells the models of some rows apart, as the golden says it."""
    models = ((place, model_of(case, place)) for place in places)
    return {(model.get("path"), model.get("dtype"), adapters_of(case.rows[place])) for place, model in models}


OF_SEVERAL = "what differs is of several models, whose numerics are not one"


def number_gap(old: Any, new: Any) -> float | None:
    """The largest difference of two values that differ in their floats only; None where anything else does."""
    if isinstance(old, float) and isinstance(new, float):
        return distance(old, new) if old == old and new == new else None
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        return largest(number_gap(old[key], new[key]) for key in old)
    before, after = candidates(old), candidates(new)
    if before is not None and after is not None and len(before) == len(after):
        others = len(before) > OF_ONE_STEP and not before.keys() & after.keys()
        return None if others else candidates_gap(before, after)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        return largest(number_gap(a, b) for a, b in zip(old, new))
    return 0.0 if type(old) is type(new) and old == new else None


def distance(old: float, new: float) -> float:
    """How far numbers are apart, in what rounding is measured in: as a log-probability's nats are nats, those of a
    probability, or of a perplexity, are a part of it, and near to zero those of both are."""
    apart, size = abs(old - new), max(abs(old), abs(new))
    if size < 1:
        return apart if equal(old, new) else apart / size
    return min(apart, abs(math.log(old / new))) if min(old, new) > 1 else apart


def candidates(value: Any) -> dict[Any, float] | None:
    """Best tokens with their log-probabilities, as a mapping or as pairs; None for anything else."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        return None
    found = {key: number for key, number in pairs if isinstance(key, (int, str)) and isinstance(number, float)}
    return found if found and len(found) == len(pairs) else None


OF_ONE_STEP = 2  # best tokens: no rounding puts others in the place of all of more than these


def candidates_gap(old: Mapping[Any, float], new: Mapping[Any, float]) -> float:
    """How far they moved at least, each and by rank: one that is among the best of one side only is no better on the
    other than the last one there."""
    gaps = [distance(old[key], new[key]) for key in old.keys() & new.keys()]
    gaps += [distance(here, there) for here, there in zip(old.values(), new.values())]
    gaps += [max(0.0, here[key] - min(there.values())) for here, there in ((old, new), (new, old))
             for key in here.keys() - there.keys()]  # fmt: skip
    return max(gaps)


def largest(gaps: Iterable[float | None]) -> float | None:
    found = list(gaps)
    known = [gap for gap in found if gap is not None]
    return max(known, default=0.0) if len(known) == len(found) else None


# == Lookups ==


LOADED: dict[str, set[str]] = {}  # name of a folder -> where the moved code loaded such a one, in this process


def checkpoint_of(case: Case, place: int = 0) -> str | None:
    """Where the checkpoint of a case's row is. Of a folder elsewhere a golden holds the name; an argument may hold it
    all, or the moved code has loaded the one folder of this name."""
    return located(case, model_of(case, place).get("path"))


def located(case: Case, path: str | None) -> str | None:
    said = (str(text) for _, text in leaves(dict(case.arguments)) if path and text.endswith(f"/{path}"))
    if (found := next((text for text in said if Path(text).is_dir()), None)) is not None:
        return found
    known = LOADED.get(path or "", ())
    return next(iter(known)) if len(known) == 1 and path and not Path(path).is_dir() else path


def model_of(case: Case, place: int = 0) -> Row:
    model: Row = case.rows[place].get("model", {}) if case.rows else {}
    return model


def adapters_of(row: Row) -> tuple[str, ...]:
    """What a row says of the adapters that it went through: their fingerprints, or the folder that it asked for."""
    prints = tuple(sorted({one for one in row.get("inputs", {}).get("adapters", ()) if one}))
    asked = (row.get("request") or {}).get("adapter")
    return prints or ((asked,) if asked and asked != "another" else ())


class Weights(NamedTuple):
    """What a golden's row was answered by.   path: of the checkpoint.   adapter: its folder, "" where there is none,
    None where it is not known."""

    path: str | None
    dtype: str | None
    adapter: str | None


def weights_of(old: Case, new: Case, place: int) -> Weights:
    """The golden names the adapters of transformers by fingerprints; where they are is known of the moved code."""
    rows = [old.rows[place], *([new.rows[new_place(old, new, place)]] if new.rows else [])]
    folder = next((asked for row in rows[::-1] if (asked := (row.get("request") or {}).get("adapter"))), None)
    adapter: str | None = ""
    if any(map(adapters_of, rows)):
        known = located(new, folder) if folder and len(adapters_of(rows[0])) < 2 else None
        adapter = known if known and Path(known).is_dir() else None
    return Weights(checkpoint_of(old, place), model_of(old, place).get("dtype"), adapter)


def new_place(old: Case, new: Case, place: int) -> int:
    """The place of a golden's row among the new rows; of one that is not there, the first."""
    mine = old.rows[place]
    theirs = [row for golden, row in paired(old.rows, new.rows) if golden is mine]
    return next((k for k, row in enumerate(new.rows) if theirs and row is theirs[0]), 0)


NO_ADAPTER = "its rows went through an adapter, and where that is cannot be seen"


def could_not(why: str, notes: tuple[str, ...] = ()) -> Judged:
    return "ERROR", Cause("error", "unattributed", f"could not judge: {why}"), notes
