"""Which cases hang on their site's numerics, and where their ids part. Plain data: no model, and no
numpy.

Reading a checkpoint twice takes longer than most sites, so a site's numerics are judged where
something hangs on them: a greedy answer parts from the golden's at some step and no declared
setting explains it; the model's dtype or weights differ; log-probabilities among the values of a
half-precision golden differ. Where every id and value is equal there is no question, whatever the
dtype; `check --numerics` asks all the same, of every site. In bfloat16 long answers of real models
do part now and then, so such a site is judged nearly always, and over all tokens of all its
goldens, not only those of cases that part or that were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from parity.goldens.store import Case
from parity.goldens.verdict import Cause, Verdict
from parity.judge.align import paired, same_ids
from parity.judge.comparison import Comparison
from parity.judge.numerics.numbers import number_gap
from parity.judge.numerics.processed import why_not_greedy
from parity.judge.numerics.weights import Weights, models_of, new_index, weights_of
from parity.judge.row import Row, entry, is_drawn, parting_step, same_prompt, unseen
from parity.judge.tools import model_of
from parity.record.rows import STRUCTURED

Judged = tuple[Verdict, Cause | None, tuple[str, ...]]  # verdict, cause, notes
Kind = Literal["parted", "floats", "model", "passing"]
Steps = Mapping[tuple[str, int], "Step"]  # (case, row) -> where it parts

FURTHER_SECONDS = 90.0  # that a site may take for tokens beyond its goldens' (made.py)
OF_NUMBERS = ("value", "order")
OF_EQUAL = ("IDENTICAL", "TEXT-IDENTICAL", "SAME-DISTRIBUTION")


class Beside(NamedTuple):
    """What differs beside ids that part.   apart: if not 0, it is numbers alone, and this is how
    far they are apart at the golden's own ids, which rounding may explain, too."""

    cause: Cause | None = None
    apart: float = 0.0

    def counts(self, allowed: float) -> bool:
        """allowed: how far apart rounding moves numbers."""
        return self.cause is not None and not 0 < self.apart <= allowed


NOTHING_BESIDE = Beside()


@dataclass(frozen=True, slots=True)
class Question:
    """A case whose verdict hangs on its site's numerics.

    kind: "parted", its ids part and nothing declared explains it; "floats", its ids are equal and
    numbers among its values are not; "model", its model differs as declared; "passing", it passes,
    and would not if numerics shifted.
    otherwise: its verdict where the numerics say nothing.
    company: the cause, if each row alone gives the old answer.
    beside: what differs, too, and is the cause where rounding explains that the ids part.
    place: index of the row whose model it is about, for a case may ask several.
    """

    old: Case
    new: Case
    backend: str
    kind: Kind
    otherwise: Judged
    company: Cause | None = None
    beside: Beside = NOTHING_BESIDE
    place: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.old.site, self.old.case, self.backend

    @property
    def weights(self) -> Weights:
        return weights_of(self.old, self.new, self.place)

    @property
    def new_place(self) -> int:
        """The row's index among the new rows."""
        return new_index(self.old, self.new, self.place)

    @property
    def new_model(self) -> Row:
        return model_of(self.new, self.new_place)


@dataclass(frozen=True, slots=True)
class Step:
    """The first step at which a greedy row parts.

    position: among prompt and answer.   ids: the old one, and the new one.
    penalty: a repetition penalty that stood between the model and the choice, on the ids seen.
    odd: why that choice cannot be computed again.
    masked: by structured output, which takes away what the model prefers.
    """

    row: int
    step: int
    position: int
    ids: tuple[int, int]
    penalty: float = 1.0
    seen: frozenset[int] = frozenset()
    odd: str = ""
    masked: bool = False


def steps_of(old: Case, new: Case) -> list[Step]:
    """Where the rows of a case part."""
    indices = {id(row): k for k, row in enumerate(old.rows)}
    steps = []
    for golden, row in paired(old.rows, new.rows):
        step = step_of(indices[id(golden)], golden, row)
        if step is not None:
            steps.append(step)
    return steps


def step_of(index: int, old: Row, new: Row) -> Step | None:
    """A row that is the beginning of the other one does not part: no other id was chosen."""
    before = old["output_ids"]
    after = new["output_ids"]
    step = parting_step(before, after)
    if step is None or not same_prompt(old, new):
        return None
    prompt = old["prompt_ids"]
    penalty = float(entry(old, "sampling", "repetition_penalty") or 1)
    seen = () if penalty == 1 else (*prompt, *before[:step])
    return Step(
        index,
        step,
        len(prompt) + step,
        (before[step], after[step]),
        penalty,
        frozenset(seen),
        why_not_greedy(old),
        STRUCTURED in (entry(old, "sampling", "processors") or ()),
    )


def ends_elsewhere(old: Case, new: Case) -> bool:
    """Whether a row is the beginning of its other side: the model chose the same ids, and something
    else the end. What a criterion of the old code's own let a row go on with until all had ended is
    no end."""
    unequal = [pair for pair in paired(old.rows, new.rows) if is_unequal(*pair)]
    return len(unequal) > len(steps_of(old, new))


def is_unequal(old: Row, new: Row) -> bool:
    if not same_prompt(old, new) or unseen(old, new):
        return False
    return old["output_ids"] != new["output_ids"] and not is_kept_on(old, new)


def is_kept_on(old: Row, new: Row) -> bool:
    """Whether a criterion kept an old row behind the end of the new one."""
    ids = new["output_ids"]
    return bool(entry(old, "stop", "criteria")) and old["output_ids"][: len(ids)] == ids


# == When to ask ==


def kind_of(old: Case, new: Case, judged: Judged, always: bool) -> Kind | None:
    """What a verdict asks of the site's numerics; None if nothing."""
    verdict, cause, _ = judged
    if verdict in OF_EQUAL:
        return "passing" if always or has_other_choice(verdict, old, new) else None
    if cause is None:
        return None
    if cause.name.startswith("model."):
        return None if cause.certainty == "confirmed" else "model"
    is_of_numbers = verdict == "DRIFT" and cause.name in OF_NUMBERS
    return "floats" if is_of_numbers and have_other_numbers(old, new) else None


def has_other_choice(verdict: Verdict, old: Case, new: Case) -> bool:
    """Whether equal texts have other ids; a sampled id is no choice of the model's."""
    if verdict != "TEXT-IDENTICAL" or any(map(is_drawn, old.rows)):
        return False
    return bool(steps_of(old, new))


def have_other_numbers(old: Case, new: Case) -> bool:
    """Whether values differ in numbers alone, with equal ids and settings."""
    if not same_ids(old, new) or not number_gap(old.value, new.value):
        return False
    return not Comparison(old, new).counted


def place_of(old: Case, new: Case, kind: Kind) -> int | None:
    """Index of the row whose model a question is about; None where it is about several models,
    which have no numerics in common."""
    indices = [step.row for step in steps_of(old, new)] or [*range(len(old.rows))]
    if kind in ("model", "passing"):
        return indices[0]
    has_one_model = len(models_of(old, indices)) == 1
    return indices[0] if has_one_model else None


def could_not(why: str) -> Judged:
    return "ERROR", Cause("error", "unattributed", f"could not judge: {why}"), ()
