"""Judges one case: two recordings become an Outcome.

Where nothing differs it passes (equal.py). Else what differs is weighed by what the site says
(site_facts.py); why is asked where it is needed (inquiry.py); `judge` says the verdict (judge.py).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Cause, Difference, Outcome, Verdict, equal
from parity.judge import loops
from parity.judge.align import same_ids
from parity.judge.comparison import Comparison, agreement
from parity.judge.equal import is_identical
from parity.judge.hints import hints_of
from parity.judge.inquiry import Inquiry
from parity.judge.judge import Findings, judge
from parity.judge.numerics.samples import Ledgers, Samples
from parity.judge.session import Run
from parity.judge.site_facts import SiteFacts
from parity.judge.tools import refuse_edited, tools_of
from parity.record.changing import changing, place_name, unchanged

if TYPE_CHECKING:
    from parity.judge.numerics.answers import Numerics


@dataclass
class Judge:
    """Turns two recordings into an Outcome; asks the model again only where they differ.

    engine: gives the engine of the last run, on which logits can be had.
    resample: the new code again, with another seed of the process.
    """

    store: Store
    backend: str
    run: Run
    numerics: Numerics | None = None
    engine: Callable[[], Any] = lambda: None
    resample: Callable[[Case, int], Case] | None = None
    ledgers: Ledgers = dataclasses.field(default_factory=dict)
    samples: Samples = dataclasses.field(init=False)
    facts: SiteFacts = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.samples = Samples(self.store, self.backend, self.engine, self.resample, self.ledgers)
        self.facts = SiteFacts(self.store, self.resample)

    def outcome(
        self, old: Case, new: Case, seconds: float = 0.0, more: tuple[Difference, ...] = ()
    ) -> Outcome:
        """more: what differs over all cases of the site. Raises GoldenError for an edited one."""
        tools = tools_of(old)
        refuse_edited(old, self.store, tools)
        comparison = Comparison(old, new, tools)
        always_asks = self.numerics is not None and self.numerics.always
        if not more and not always_asks and is_identical(comparison):
            return self.made(comparison, "IDENTICAL", seconds)
        old, new = self.facts.alike(old, new)
        comparison = self.facts.weighed(Comparison(old, new, tools), more)
        inquiry = self.inquiry(comparison)
        findings = Findings(inquiry, self.samples, self.numerics, lambda: self.changing(old, new))
        verdict, cause, notes = judge(findings)
        outcome = self.made(comparison, verdict, seconds)
        also: tuple[str, ...] = ()
        notes = (*notes, *outcome.notes)
        if cause is not None and verdict in ("DRIFT", "LATENT"):
            also = also_differs(comparison, cause)
            notes = (*notes, *(f"hint: {hint}" for hint in hints_of(comparison, cause)))
        return dataclasses.replace(
            outcome, cause=cause, notes=notes, steps=tuple(inquiry.steps), also=also
        )

    def made(self, comparison: Comparison, verdict: Verdict, seconds: float) -> Outcome:
        """An outcome by what was compared alone."""
        old = comparison.old
        new = comparison.new
        notes: tuple[str, ...] = ()
        if old.changing:
            parts = ", ".join(place_name(part["at"]) for part in old.changing)
            notes = (f"not compared, for the old code gives another one each time: {parts}",)
        lost = [place for place in old.left if place not in new.left]
        if lost and new.raised is None:
            names = ", ".join(lost)
            notes = (*notes, f"not compared, for the moved object has no such attribute: {names}")
        return Outcome(
            old.site,
            old.case,
            self.backend,
            verdict,
            comparison.differences,
            old=old.to_json(),
            new=new.to_json(),
            notes=notes,
            seconds=seconds,
            steps=tuple(agreement(comparison)),
        )

    def inquiry(self, comparison: Comparison) -> Inquiry:
        old = comparison.old
        again = functools.partial(self.again, old)
        return Inquiry(comparison, again, agreement(comparison))

    def again(self, old: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case | None:
        """A replay, whose rows are of the golden's kind; None where it cannot be made."""
        try:
            made = self.run(old, load, parts)
        except GoldenError:
            return None
        return made and loops.of_one_kind(old, made)[1]

    def changing(self, old: Case, new: Case) -> list[str]:
        """Parts of the new value that are others when the new code is run again, if they are all
        that differs."""
        time.sleep(1)  # for a clock of whole seconds
        again = self.again(old, {}, frozenset())
        if again is None or not same_ids(new, again) or not same_ids(old, new):
            return []
        try:
            parts = changing([new.value, again.value])
        except ValueError:
            return []
        same = equal(old.value, unchanged(parts, old.value, new.value))
        return [place_name(part["at"]) for part in parts] if same else []


def also_differs(comparison: Comparison, cause: Cause) -> tuple[str, ...]:
    """Everything else that differs before the model's ids, with both values, or that the new side
    alone breaks; not what follows from the cause, as the text and the ids of other messages do."""
    named = {
        name: difference.sentence()
        for name, difference in comparison.counted
        if not follows(difference, cause)
    }
    for broken in comparison.broken:
        named.setdefault(broken.cause, f"row {broken.row}: {broken.sentence}")
    return tuple(f"{name}: {said}" for name, said in named.items() if name != cause.name)


def follows(difference: Difference, cause: Cause) -> bool:
    """Whether a prompt's text, or its ids, differ as what they are made of does."""
    made_of = {
        "prompt_text": ("prompt.messages", "prompt.template"),
        "prompt_ids": ("prompt.messages", "prompt.template", "prompt.text"),
    }
    is_whole = not difference.field
    return is_whole and cause.name in made_of.get(difference.stage, ())
