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
from parity.goldens.verdict import Cause, Difference, Outcome, Verdict, equal, place_name
from parity.judge import loops
from parity.judge.align import same_ids
from parity.judge.comparison import Comparison, agreement
from parity.judge.equal import is_identical
from parity.judge.hints import hints_of
from parity.judge.inquiry import Inquiry
from parity.judge.judge import Findings, judge, value_sentence
from parity.judge.numerics.questions import could_not
from parity.judge.numerics.samples import Ledgers, Samples
from parity.judge.row import is_drawn, is_drawn_anew, may_be_sampled, seed_source
from parity.judge.session import Run
from parity.judge.site_facts import SiteFacts
from parity.judge.tools import refuse_edited, tools_of
from parity.record.changing import changing, unchanged

if TYPE_CHECKING:
    from parity.judge.numerics.answers import Numerics


@dataclass
class Judge:
    """Turns two recordings into an Outcome; asks the model again only where they differ.

    engine: gives the engine of the last run, on which logits can be had.
    resample: the new code again, with another seed of the process.
    explains: call the new code again also where it passes, to see whether it does the same.
    """

    store: Store
    backend: str
    run: Run
    numerics: Numerics | None = None
    engine: Callable[[], Any] = lambda: None
    resample: Callable[[Case, int], Case] | None = None
    ledgers: Ledgers = dataclasses.field(default_factory=dict)
    explains: bool = False
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
        is_done = not more and not always_asks and not self.explains
        if is_done and is_identical(comparison):
            return self.made(comparison, "IDENTICAL", seconds)
        golden = old
        old, new = self.facts.alike(old, new)
        comparison = self.facts.weighed(Comparison(old, new, tools), more)
        inquiry = self.inquiry(comparison, golden)
        parts_that_change = functools.partial(self.changing, old, new, golden)
        findings = Findings(inquiry, self.samples, self.numerics, parts_that_change)
        verdict, cause, notes = judge(findings)
        notes = (*notes, *lost_seeds(comparison))
        if said := self.other_again(inquiry, verdict):
            notes = (*notes, said)
            cause = cause and without_proof(cause, inquiry)
        kept = [place for place in lost_places(old, new) if old.state.get(place)]
        if verdict == "DRIFT" and kept:
            verdict, cause, _ = could_not(KEPT_ELSEWHERE.format(", ".join(kept)))
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
        if lost := lost_places(old, new):
            names = ", ".join(lost)
            notes = (*notes, f"not compared, for the moved code sets no such attribute: {names}")
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

    def inquiry(self, comparison: Comparison, golden: Case) -> Inquiry:
        again = functools.partial(self.again, comparison.old, golden)
        return Inquiry(comparison, again, agreement(comparison))

    def again(
        self, old: Case, golden: Case, load: Mapping[str, Any], parts: frozenset[str]
    ) -> Case | None:
        """A replay, whose rows are of the golden's kind; None where it cannot be made."""
        try:
            made = self.run(old, load, parts)
        except GoldenError:
            return None
        return made and loops.of_one_kind(golden, made)[1]

    def other_again(self, inquiry: Inquiry, verdict: Verdict) -> str:
        """What the new code does otherwise when it is called again with the same arguments; "" if
        nothing, or where it samples. Asked where runs of it are to prove something."""
        new = inquiry.new
        is_asked = self.explains or (verdict in ("DRIFT", "LATENT") and bool(inquiry.runs))
        if not is_asked or may_be_sampled(new):
            return ""
        again = inquiry.run({}, ())
        return "" if again is None else said_of_repeat(Comparison(new, again))

    def changing(self, old: Case, new: Case, golden: Case) -> list[str]:
        """Parts of the new value that are others when the new code is run again, if they are all
        that differs."""
        time.sleep(1)  # for a clock of whole seconds
        again = self.again(old, golden, {}, frozenset())
        if again is None or not same_ids(new, again) or not same_ids(old, new):
            return []
        try:
            parts = changing([new.value, again.value])
        except ValueError:
            return []
        same = equal(old.value, unchanged(parts, old.value, new.value))
        return [place_name(part["at"]) for part in parts] if same else []


def said_of_repeat(repeat: Comparison) -> str:
    """repeat: of two calls of the new code."""
    first, again = repeat.old, repeat.new
    if repeat.counted:
        said = repeat.counted[0][1].sentence()
    elif first.raised != again.raised:
        said = f"it raised {first.raised}, and raises {again.raised}"
    elif not repeat.has_as_many_rows:
        said = f"the model was asked {len(first.rows)} times, and {len(again.rows)} times"
    elif repeat.has_same_ids and not repeat.has_same_value:
        said = value_sentence(repeat)
    else:
        return ""
    return (
        f"called again with the same arguments, the new code does something else: {said}. What it"
        " keeps from call to call (in its module, a default, a cache) is there in the next case, so"
        " that what it gives hangs on the cases that ran before"
    )


def without_proof(cause: Cause, inquiry: Inquiry) -> Cause:
    """A cause that a run is said to confirm, where another call does as much by itself."""
    if cause.certainty != "confirmed" or not inquiry.restores(inquiry.run({}, ())):
        return cause
    proof = "seen directly; called again, the new code gives the old answer by itself"
    return dataclasses.replace(cause, certainty="likely", proof=proof)


def lost_seeds(comparison: Comparison) -> list[str]:
    """The seed of a script that samples of the new code do not come from."""
    for old, new in comparison.pairs:
        if is_drawn(old) and is_drawn_anew(new) and seed_source(old) == "script":
            return [SCRIPT_SEEDED]
    return []


SCRIPT_SEEDED = (
    "the old script seeded the process before it sampled (set_seed, torch.manual_seed), and the"
    " moved code samples without a seed: each run gives others. Pass each call a seed of its own"
)


KEPT_ELSEWHERE = (
    "the old code kept {} from call to call, and the moved object has no such attribute in which it"
    " could be put back: give it this name, or check the script as a whole: `check -- python ...`"
)


def lost_places(old: Case, new: Case) -> list[str]:
    """Where the old call left something, and the moved code has no such place."""
    return [place for place in old.left if place not in new.left and new.raised is None]


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
