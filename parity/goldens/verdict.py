"""The values that a check is made of: what was compared, what differs, why, and what that means for the exit code.

A check is a list of `Outcome`s, one per golden case and backend; every report is computed from that list afterwards.
Nothing here reads a file, runs a model or prints.

    Difference   one field of one stage of one row, with both values
    Cause        a name of goldens/causes.py, how sure we are of it, and one sentence with both values
    Outcome      case x backend -> verdict, differences, cause
    exit_code    the one place where verdicts become a number
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from parity.goldens.causes import cause_of_field

Verdict = Literal[
    "IDENTICAL",  # same value, same ids, same stages
    "TEXT-IDENTICAL",  # same value, other ids
    "LATENT",  # same value, but a stage before it differs: it will show one day
    "NEAR-TIE",  # other ids, and the rounding that was measured at its site explains every one of them
    "SAME-DISTRIBUTION",  # drawn, other draws, and they follow the golden's settings: a wrong temperature would be seen
    "SAME-SETTINGS",  # drawn, other draws, equal settings; too few or too sure to say more (the note says how many)
    "ACCEPTED",  # differs, and someone said why that is wanted
    "DRIFT",
    "UNSTABLE",  # the old code does not repeat itself, so there is nothing to compare with
    "ERROR",
    "MISSING",
    "UNUSED",
]

PASSING = {"IDENTICAL", "TEXT-IDENTICAL", "NEAR-TIE", "SAME-DISTRIBUTION", "SAME-SETTINGS", "ACCEPTED"}

# Stages in causal order. The first unequal one is the suspect.
STAGES = (
    "messages",
    "template",
    "prompt_text",
    "prompt_ids",
    "images",
    "batch",
    "model",
    "sampling",
    "stop",
    "output_ids",
    "decode",
    "text",
    "value",
)

Certainty = Literal["confirmed", "likely", "unattributed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is unequal. row: number of the model call's row within the case, None for the case's value.

    counts: whether it may fail a strict check by itself; a stage that the next one absorbed does not (another way to
    write messages that render to the same text).   words: what a person reads in place of old and new, where these are
    digests.
    """

    stage: str
    field: str
    old: Any
    new: Any
    row: int | None = None
    counts: bool = True
    words: tuple[str, str] | None = dataclasses.field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The cause that it is: "sampling.top_p"."""
        return cause_of_field(self.stage, self.field)

    def sentence(self) -> str:
        where = "" if self.row is None else f" of row {self.row}"
        if self.words is not None:
            return f"{self.name}{where} was {self.words[0]}, is {self.words[1]}"
        name = self.stage if not self.field else f"{self.stage}.{self.field}"
        was, now = excerpts(self.old, self.new)
        return f"{name}{where} was {was}, is {now}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why. proof: what was done to know it ("with the old eos set the new path gives the old ids")."""

    name: str
    certainty: Certainty
    sentence: str
    proof: str = ""

    def __str__(self) -> str:
        return f"{self.name}; {self.certainty}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case on one backend.

    old, new: the two recordings (golden.Case.to_json(), or None where there is none), for reports that show them side
    by side.   seconds: how long the new code took.   notes: what a reader should know, such as the sampled level.
    steps: how the cause was found, for `explain`.   also: causes of whatever else differs.
    """

    site: str
    case: str
    backend: str
    verdict: Verdict
    differences: tuple[Difference, ...] = ()
    cause: Cause | None = None
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None
    accepted: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    steps: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.site}/{self.case}"


@dataclass(frozen=True, slots=True)
class Numerics:
    """How large rounding is at a site on a backend, measured by the referee (parity.judge.numerics); one checkpoint.

    outcome: "holds", "shifted", "cannot tell", or "could not judge" where nothing could be read.   said: one line.
    cause: of a shift.   against: what was taken for the truth.   fields: the numbers, for programs.
    picture: {"edges": of the bins, nats of logit, "old", "new": counts of errors in them, "size": of the old errors,
    "least", "most": between which the size of the new ones may lie, "gaps": of parting steps, "allowed": how large a
    gap may be}; {} where there is nothing to draw.
    """

    site: str
    backend: str
    checkpoint: str
    dtype: str
    outcome: str
    said: str
    cause: str = ""
    against: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    picture: Mapping[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        return f"{self.site} {self.backend}, numerics of {self.checkpoint} in {self.dtype}: {self.said}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What passes. strict: LATENT fails."""

    strict: bool = True

    def passes(self, outcome: Outcome) -> bool:
        return outcome.verdict in PASSING or (outcome.verdict == "LATENT" and not self.strict)


@dataclass(frozen=True, slots=True)
class Change:
    """What has become of a golden or of a setting since a git revision.   can_hide: whether it can hide a drift; such
    a line stands first, and no report cuts it."""

    line: str
    can_hide: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """A whole run: outcomes, how they are judged, what was used (versions, model), and numerics that were measured.

    left_out: sites that are not for a backend that was asked for, and why.   unused_acceptances: those of these cases
    that cover nothing, and why.   changes: what has become of the goldens since a git revision, if that was asked for.
    asked_with: words that `explain` and `accept` need as this check did, such as "--moved old=new".   only_old: a line
    for each site where the recorded function itself ran, since nothing says where it was moved.
    """

    outcomes: tuple[Outcome, ...]
    policy: Policy = Policy()
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()
    numerics: tuple[Numerics, ...] = ()
    unused_acceptances: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    asked_with: str = ""
    only_old: tuple[str, ...] = ()

    def failing(self) -> list[Outcome]:
        """Outcomes that this policy does not let pass, in order."""
        return [o for o in self.outcomes if not self.passes(o)]

    def passes(self, outcome: Outcome) -> bool:
        return self.policy.passes(outcome)

    @property
    def exit_code(self) -> int:
        """0 all within policy, 1 drift, 3 could not judge, 4 missing or unused, 5 nothing compared.

        The gravest wins: what differs, then what could not be judged, then what is not there.
        """
        compared = [o for o in self.outcomes if o.verdict not in ("MISSING", "UNUSED")]
        bad = {o.verdict for o in self.failing()}
        if bad & {"DRIFT", "LATENT"}:
            return 1
        if bad & {"ERROR", "UNSTABLE"}:
            return 3
        if bad:
            return 4
        return 0 if compared else 5


def brief(value: Any, width: int = 60) -> str:
    """A value for one line: long text loses its middle."""
    text = value if isinstance(value, str) else str(value)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= width else f"{text[: width // 2]} … {text[-width // 3 :]}"


def excerpts(old: Any, new: Any, width: int = 60) -> tuple[str, str]:
    """Two values for one line; where one is longer, what both hold around the place where they part."""
    pair = [repr(value) if isinstance(value, str) else str(value) for value in (old, new)]
    start = 0
    if max(map(len, pair)) > width:
        start = max(0, (first_divergence(*pair) or 0) - width // 2)
    was, now = (cut(text, start, start + width) for text in pair)
    return was, now


def place_name(at: Iterable[Any]) -> str:
    """Where in a value something stands, by keys and places in lists: "value.items[3].text"."""
    keys = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in at]
    return "value" + "".join(keys)


def cut(text: str, start: int, stop: int) -> str:
    return ("… " if start else "") + text[start:stop] + (" …" if len(text) > stop else "")


def first_divergence(old: Sequence[Any], new: Sequence[Any]) -> int | None:
    """The first place where two sequences differ; the shorter one's end counts. None if they are equal."""
    for place, (a, b) in enumerate(zip(old, new)):
        if a != b:
            return place
    return None if len(old) == len(new) else min(len(old), len(new))


VALUE_TOLERANCE = 2e-5  # of numbers among the values, as a part of their size: what float32 leaves of a sum
NEAR_ZERO = 2e-6  # and what it is at least: a log-probability is a difference of logits, and has their rounding
LEAST_LOGPROB = 5e-8  # float32 has none nearer to zero: below it stand probabilities, whose rounding goes by their size


LEAST_VECTOR = 8


def is_vector(value: Any) -> bool:
    """Whether a list is one of numbers of either sign, such as a hidden state or logits, which are all as exact as its
    largest. Probabilities and their logarithms are each as exact as they are large."""
    numbers = len(value) >= LEAST_VECTOR and all(type(part) is float for part in value)
    return numbers and min(value) < 0 < max(value)


def is_close(old: float, new: float, tolerance: float, near_zero: float) -> bool:
    """Whether two numbers are the same up to rounding; integers beyond the floats are exact."""
    try:
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=near_zero)
    except OverflowError:
        return old == new


def equal(old: Any, new: Any, tolerance: float = VALUE_TOLERANCE, near_zero: float | None = None) -> bool:
    """Whether two values are the same; floats up to rounding. near_zero: the least that counts (NEAR_ZERO, or the
    tolerance where one is given)."""
    if near_zero is None:
        near_zero = NEAR_ZERO if tolerance == VALUE_TOLERANCE else tolerance
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        if any(0 < number < LEAST_LOGPROB for number in (old, new)):
            tolerance, near_zero = max(tolerance, 1e-3), 0.0
        return is_close(old, new, tolerance, near_zero) or (old != old and new != new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(equal(old[k], new[k], tolerance, near_zero) for k in old)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        size = max(map(abs, old)) if is_vector(old) and is_vector(new) else 0.0
        near_zero = max(near_zero, tolerance * size)
        return len(old) == len(new) and all(equal(a, b, tolerance, near_zero) for a, b in zip(old, new))
    return bool(old == new)
