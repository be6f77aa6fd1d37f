"""One case whose value or ids differ, and what is found out about it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import brief, equal
from parity.judge.align import same_ids
from parity.judge.comparison import Comparison, Named
from parity.judge.endings import Decoder, TextPair, leaves, texts_apart
from parity.judge.followers import HeldTexts
from parity.judge.row import Pairs, Row, is_drawn, prompt_of

Parts = frozenset[str]
Rerun = Callable[[Mapping[str, Any], Parts], Case | None]  # load settings, parts put back -> what
# comes out; None where the case cannot be run so

BESIDE = ("request", "inputs", "decodes")  # which invariants read; no stages for a reader


@dataclass
class Inquiry:
    """steps: for `explain`, one line each.   company: how far the rest of its batch moves the
    model's log-probabilities, in nats.   narrowed: to the answers that later prompts hold.
    untried: cause -> why no run with its old value took place.   suspects: those of the comparison
    that can be the cause."""

    comparison: Comparison
    rerun: Rerun | None = None
    steps: list[str] = field(default_factory=list)
    company: Callable[[], float | None] = lambda: None
    narrowed: bool = False
    untried: dict[str, str] = field(default_factory=dict)
    runs: dict[tuple[str, Parts], Case | None] = field(default_factory=dict)
    suspects: Sequence[Named] = ()

    @property
    def old(self) -> Case:
        return self.comparison.old

    @property
    def new(self) -> Case:
        return self.comparison.new

    @property
    def decode(self) -> Decoder | None:
        return self.comparison.tools.decode

    @property
    def pairs(self) -> Pairs:
        return self.comparison.pairs

    @property
    def counted(self) -> list[Named]:
        """Suspects that fail a strict check by themselves."""
        return [(name, difference) for name, difference in self.suspects if difference.counts]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Of both sides."""
        return *self.old.rows, *self.new.rows

    @property
    def other_answers(self) -> list[Row]:
        """New rows whose ids are not those of the old ones."""
        return [new for old, new in self.pairs if old["output_ids"] != new["output_ids"]]

    @property
    def value_sentence(self) -> str:
        """How the values differ."""
        found = self.comparison.differences
        return next(difference.sentence() for difference in found if difference.stage == "value")

    @property
    def other_texts(self) -> list[TextPair]:
        """Texts of the value that differ, old and new."""
        return texts_apart(self.old.value, self.new.value)

    def run(self, load: Mapping[str, Any], parts: Iterable[str]) -> Case | None:
        """A counterfactual run, once for all that ask for it."""
        if self.rerun is None:
            return None
        key = repr(sorted(load.items())), frozenset(parts)
        if key not in self.runs:
            self.runs[key] = self.rerun(load, key[1])
        return self.runs[key]

    def beside(self, old: Case, new: Case) -> Inquiry:
        """The same inquiry of two other recordings."""
        comparison = Comparison(old, new, self.comparison.tools)
        return dataclasses.replace(self, comparison=comparison)

    def realigned(self, again: Case | None, by_ids: bool = True) -> bool:
        """Whether a run gives the old answer.   by_ids: the old ids are proof enough; what is done
        with them after the model may differ, too."""
        if again is None or again.raised is not None:
            return False
        if by_ids and not same_ids(self.old, self.new) and same_ids(self.old, again):
            return True
        return equal(self.old.value, again.value)

    def note_agreement(self) -> None:
        """Note what is the same and what is the first difference."""
        found = self.comparison.differences
        left_out = {*BESIDE, *(difference.stage for difference in found)}
        present = dict.fromkeys(itertools.chain.from_iterable(old for old, _ in self.pairs))
        same = [key for key in present if key not in left_out]
        if same:
            self.steps.append(f"the same on both sides: {', '.join(same)}")
        counted = [difference for difference in found if difference.counts] or found
        if counted:
            self.steps.append(f"first difference: {counted[0].sentence()}")


def are_other_samples(old: Case, new: Case) -> bool:
    """Whether the same prompts are sampled from, and another number of times."""
    if set(map(prompt_of, old.rows)) != set(map(prompt_of, new.rows)):
        return False
    return all(map(is_drawn, (*old.rows, *new.rows)))


def name_of_other_number(old: Case, new: Case) -> str:
    """The cause where another number of answers is asked for."""
    if are_other_samples(old, new):
        return "sampling.processors"
    return "cache.key" if are_answers_reused(old, new) else "post.other"


def are_answers_reused(old: Case, new: Case) -> bool:
    """Whether fewer answers fill as many texts: some were given before, or are given twice."""
    new_texts = dict(leaves(new.value))
    filled = 0
    for path, text in leaves(old.value):
        if text and not new_texts.get(path):
            return False
        filled += bool(text)
    return len(new.rows) < len(old.rows) <= filled


def up_to_followers(inquiry: Inquiry) -> Inquiry:
    """Where prompts follow from answers that are other ones: the inquiry of those answers, which
    have the cause. Their texts, or ids where not all became text, stand for the value."""
    follow = inquiry.comparison.followers
    if not follow:
        return inquiry
    kept = [k for k in range(len(inquiry.pairs)) if k not in follow]
    rows = itertools.chain.from_iterable(inquiry.pairs[k] for k in kept)
    is_text = all("text" in row for row in rows)
    narrow = functools.partial(narrowed, kept, "text" if is_text else "output_ids")
    held = HeldTexts()
    for texts in follow.values():
        held |= texts

    def rerun(load: Mapping[str, Any], parts: Parts) -> Case | None:
        again = inquiry.run(load, parts)
        return again and narrow({}, 0, again)

    count = f"{len(follow)} of {len(inquiry.pairs)}"
    inquiry.steps.append(f"{count} prompts hold answers that differ: those are judged")
    again = rerun if inquiry.rerun else None
    old = narrow(held, 0, inquiry.old)
    beside = inquiry.beside(old, narrow(held, 1, inquiry.new))
    return dataclasses.replace(beside, rerun=again, narrowed=True, runs={})


def narrowed(kept: Sequence[int], name: str, held: HeldTexts, side: int, case: Case) -> Case:
    """A case of these rows alone, whose value is what they have by this name.   held: what later
    prompts hold of answers instead.   side: 0 of the old prompts, 1 of the new ones."""
    rows = []
    value = []
    for k in kept:
        if k < len(case.rows):
            row = case.rows[k]
            rows.append(row)
            value.append(held[k][side] if k in held else row.get(name))
    return dataclasses.replace(case, rows=tuple(rows), value=value)


def no_run(again: Case | None, inquiry: Inquiry) -> str:
    """Why a run says nothing: it did not take place, or ended in an error that putting a value back
    made."""
    if again is None:
        return "the case cannot be run again with it"
    is_made = again.raised not in (None, inquiry.old.raised, inquiry.new.raised)
    return f"the run with it ended in {brief(again.raised)}" if is_made else ""
