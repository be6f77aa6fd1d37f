"""The verdict of one case: the first of `DECISIONS` that answers.

    decide(findings)        ("DRIFT", Cause(...), notes)

A decision reads what was found of the case and says its verdict, or None, where it has none to say.
What costs a run of the new code, or a reading of the model, is found out when a decision asks for
it, and once. What one case alone cannot say is put to the site's numerics or samples
(numerics/questions.py, numerics/samples.py); the verdict that stands meanwhile says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parity.goldens.store import Case
from parity.goldens.verdict import Cause, Verdict
from parity.judge import own_loops
from parity.judge.comparison import Comparison
from parity.judge.counterfactual import (
    beside_rounding,
    by_cache,
    by_company,
    from_followed_ids,
    from_other_ids,
)
from parity.judge.explain import cause_of, declared_end
from parity.judge.followers import up_to_draws
from parity.judge.inquiry import Inquiry, up_to_followers
from parity.judge.latent import SEEN_WITHOUT_VALUE
from parity.judge.naming import difference_cause, first_answer
from parity.judge.numerics.questions import (
    Beside,
    Judged,
    Question,
    could_not,
    ends_elsewhere,
    kind_of,
    place_of,
    steps_of,
)
from parity.judge.numerics.samples import FOLLOWS_SETTINGS, Samples
from parity.judge.numerics.weights import OF_SEVERAL, in_float32
from parity.judge.row import criteria, stop_strings, unseen
from parity.judge.stages.value import kind_of_error

if TYPE_CHECKING:
    from parity.judge.numerics.answers import Numerics


@dataclass
class Findings:
    """What is found of one case.

    inquiry: into the whole case, with runs that put old values back.
    samples, numerics: what is asked over all cases of the site.
    changing: parts of the new value that are others when the new code is run again, if they are all
    that differs.
    """

    inquiry: Inquiry
    samples: Samples
    numerics: Numerics | None
    changing: Callable[[], Sequence[str]]

    @property
    def comparison(self) -> Comparison:
        return self.inquiry.comparison

    @property
    def old(self) -> Case:
        return self.inquiry.old

    @property
    def new(self) -> Case:
        return self.inquiry.new

    @property
    def has_other_value(self) -> bool:
        return any(difference.stage == "value" for difference in self.comparison.differences)

    @functools.cached_property
    def has_other_draws_alone(self) -> bool:
        """Whether there are other draws under equal settings and seeds, nothing else that differs,
        and no invariant that the new side breaks."""
        return is_only_drawn(self.comparison) and not self.comparison.broken

    @functools.cached_property
    def first(self) -> Inquiry:
        """Of the answers that later prompts only follow from."""
        return up_to_followers(self.inquiry)

    def made_of(self, judged: Judged, made: Beside) -> Judged:
        """What samples say, unless the new code makes something else of the golden's own ids."""
        allowed = 0.0 if in_float32(self.old, self.new) else math.inf
        if not made.counts(allowed):
            return judged
        notes = judged[2]
        return "DRIFT", made.cause, notes


def decide(findings: Findings) -> Judged:
    judged = first_answer(DECISIONS, findings) or of_rounding(findings)
    return ask_numerics(findings, judged)


# == Decisions ==


def unstable(findings: Findings) -> Judged | None:
    if findings.old.repeats is not False:
        return None
    said = "the old code gave another value when it was recorded twice"
    return "UNSTABLE", Cause("nondeterminism", "confirmed", said), ()


def of_two_errors(findings: Findings) -> Judged | None:
    """Both sides raise, and not the same: by type and message, as they are printed."""
    old = findings.old.raised
    new = findings.new.raised
    if old is None or new is None or old == new:
        return None
    what = "message" if kind_of_error(old) == kind_of_error(new) else "exception"
    findings.inquiry.steps.append(f"both sides raise; the {what} is another one")
    said = f"the old code raised {old}, the new code raises {new}"
    return "DRIFT", Cause("error", "confirmed", said, "seen directly"), ()


def of_followed_draws(findings: Findings) -> Judged | None:
    """Draws that are others, where more was asked with what they gave: those draws are judged, and
    of the golden's own ones the new code is to ask for, and to make, what the old code did."""
    if (parts := up_to_draws(findings.old, findings.new)) is None:
        return None
    asked = Comparison(*parts, findings.comparison.tools)
    if not is_only_drawn(asked) or asked.broken:
        return None
    has_as_many = findings.comparison.has_as_many_rows
    verdict, cause, notes = findings.samples.judge(*parts, count_copies=has_as_many)
    if verdict not in FOLLOWS_SETTINGS:
        return verdict, cause, notes
    told = f"of {len(asked.old.rows)} rows nothing but draws differs"
    findings.inquiry.steps.append(f"{told}, and the rest follows from them")
    return findings.made_of((verdict, None, notes), from_followed_ids(findings.inquiry))


def of_same_value(findings: Findings) -> Judged | None:
    """What differs all the same; else whether ids are equal, too."""
    comparison = findings.comparison
    if findings.has_other_value:
        return None
    if cause := first_answer(SEEN_WITHOUT_VALUE, comparison):
        return "LATENT", cause, ()
    if is_only_drawn(comparison):
        return of_same_value_of_draws(findings)
    has_unseen = any(unseen(*pair) for pair in comparison.pairs)
    is_identical = comparison.has_same_ids and not has_unseen
    return ("IDENTICAL" if is_identical else "TEXT-IDENTICAL"), None, ()


def of_same_value_of_draws(findings: Findings) -> Judged:
    _, cause, notes = findings.samples.judge(findings.old, findings.new)
    is_wrong = cause is not None and cause.certainty == "confirmed"
    if is_wrong:
        return "LATENT", cause, notes
    return "TEXT-IDENTICAL", None, notes


def of_other_draws(findings: Findings) -> Judged | None:
    """Other samples, and nothing else that differs."""
    if not findings.has_other_draws_alone:
        return None
    inquiry = findings.inquiry
    ended = by_cache(inquiry) or own_loops.own_ends(inquiry)
    if ended is not None:
        return "DRIFT", ended, ()
    judged = findings.samples.judge(inquiry.old, inquiry.new)
    if judged[0] not in FOLLOWS_SETTINGS:
        return judged
    return findings.made_of(judged, from_other_ids(inquiry))


def of_differences_beside_draws(findings: Findings) -> Judged | None:
    """Other draws, and differences that are no settings of drawing: where the draws follow the
    settings, whether a value shows more than them is luck, so such a difference is LATENT whatever
    the luck; but where a row ends is no matter of luck, and changes values."""
    comparison = findings.comparison
    named = comparison.counted
    if not is_other_samples(comparison) or not named or comparison.broken:
        return None
    if any(not name.startswith(("model.attn", "batch.", "stop.")) for name, _ in named):
        return None
    verdict, _, notes = findings.samples.judge(comparison.old, comparison.new)
    if verdict not in FOLLOWS_SETTINGS:
        return None
    name, difference = named[0]
    proof = "seen directly; the draws follow the golden's settings"
    is_end = name.startswith("stop.")
    found: Verdict = "DRIFT" if is_end else "LATENT"
    return found, difference_cause(name, "confirmed", difference, proof), notes


def of_cause(findings: Findings) -> Judged | None:
    cause = cause_of(findings.first)
    if cause is None:
        return None
    if cause.name == "post.other" and (parts := findings.changing()):
        return could_not(
            f"the new code gives another {', '.join(parts)} each time that it is run, and of the"
            " old code that is not known; record it with --repeat 2"
        )
    return "DRIFT", cause, ()


def of_rounding(findings: Findings) -> Judged:
    """Nothing but arithmetic is left: the site's numerics decide, when all cases were run; until
    then, no one."""
    first = findings.first
    whole = findings.inquiry
    old = first.old
    new = first.new
    if ends_elsewhere(old, new) or not steps_of(old, new):
        return "DRIFT", why_it_ends(first, whole), ()
    if (place := place_of(old, new, "parted")) is None:
        return could_not(OF_SEVERAL)
    judged = could_not("the numerics of its site were not read")
    if findings.numerics is None:
        return judged
    company = by_company(first)
    beside = beside_rounding(whole)
    question = Question(
        old, new, findings.samples.backend, "parted", judged, company, beside, place
    )
    findings.numerics.ask(question)
    return judged


DECISIONS: tuple[Callable[[Findings], Judged | None], ...] = (
    unstable,
    of_two_errors,
    of_followed_draws,
    of_same_value,
    of_other_draws,
    of_differences_beside_draws,
    of_cause,
)


def ask_numerics(findings: Findings, judged: Judged) -> Judged:
    """Ask for the site's numerics where this verdict hangs on them, beside what `of_rounding`
    asks."""
    numerics = findings.numerics
    old = findings.old
    new = findings.new
    if numerics is None or not old.rows or not new.rows:
        return judged
    kind = kind_of(old, new, judged, numerics.always)
    if kind is None:
        return judged
    if (place := place_of(old, new, kind)) is None:
        return could_not(OF_SEVERAL)
    numerics.ask(Question(old, new, findings.samples.backend, kind, judged, place=place))
    return judged


# == What they ask ==


def is_other_samples(comparison: Comparison) -> bool:
    """Whether both sides sample, as many rows, and other ids."""
    if comparison.has_same_ids or not comparison.has_as_many_rows:
        return False
    return own_loops.is_sampled(comparison.old) and own_loops.is_sampled(comparison.new)


def is_only_drawn(comparison: Comparison) -> bool:
    return is_other_samples(comparison) and not comparison.counted


def why_it_ends(inquiry: Inquiry, whole: Inquiry) -> Cause:
    """Why one answer is the beginning of the other.   whole: with what follows from the answers
    that part."""
    cause = own_loops.ended_by(inquiry) or declared_end(whole) or by_company(inquiry)
    if cause is not None:
        return cause
    said = "one answer is the beginning of the other: where it ends was not the model's choice"
    has_stops = any(stop_strings(row) or criteria(row) for row in inquiry.old.rows)
    return Cause("stop.rule", "likely" if has_stops else "unattributed", said)
