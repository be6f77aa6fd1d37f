"""What `check` asks of the referee, and when; what a case's verdict becomes by the answer.

    numerics = Numerics(store)
    numerics.ask(Question(old, new, …))         while cases are judged: this one hangs on its site
    numerics.read(site, backend, engines)       at the end of a site, by the engines that ran
    numerics.judge()                            when every engine is closed: the reference
    numerics.answer(outcome)                    the verdict of a case that was asked about

Ids that part are a NEAR-TIE if the site's numerics hold and each step where they part lies within
the noise measured there. A site that cannot tell gives "could not judge" (exit 3) for cases whose
ids part, never green and never DRIFT.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.environment.kernels import known_biases, old_path_defects
from parity.goldens import verdict
from parity.goldens.causes import meaning
from parity.goldens.store import Case, Store
from parity.goldens.verdict import Cause, Outcome
from parity.judge.equal import NOT_SHOWN
from parity.judge.naming import named_cause
from parity.judge.numerics.errors import FLOOR
from parity.judge.numerics.groups import (
    Group,
    group_of,
    parting_at,
    read_moved,
    read_references,
)
from parity.judge.numerics.noise import FEWEST_STEPS, Parted, Parting, within_noise
from parity.judge.numerics.numbers import fewer_bits, fewer_digits, number_gap, part_of
from parity.judge.numerics.processed import BEAMS
from parity.judge.numerics.questions import (
    FURTHER_SECONDS,
    Judged,
    Question,
    Step,
    could_not,
)
from parity.judge.numerics.reading import CannotJudge, Scored
from parity.judge.numerics.referee import Verdict
from parity.judge.numerics.summary import summary_of
from parity.judge.numerics.together import mean_allowance, moved_numbers, why_not_rounding
from parity.judge.numerics.weights import Weights
from parity.judge.replay import loaded_from
from parity.judge.row import adapters_in
from parity.judge.tools import checkpoint_of

RanEngines = Mapping[str, Sequence[Any]]  # case -> the engines that ran it
CaseKey = tuple[str, str, str]  # site, case, backend

FAR = 5  # times what a few tokens say of noise


# == All of a check ==


@dataclass
class Numerics:
    """The questions of a check, and their answers.   always: ask of every site, also where all is
    equal.   seconds: that a site may take for tokens beyond its goldens'."""

    store: Store
    always: bool = False
    seconds: float = FURTHER_SECONDS
    open: list[Question] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    answers: dict[CaseKey, tuple[Group, Question]] = field(default_factory=dict)

    def ask(self, question: Question) -> None:
        self.open.append(question)

    def hangs(self, outcome: Outcome) -> bool:
        """Whether a case of a site that is being judged was asked about."""
        key = (outcome.site, outcome.case, outcome.backend)
        return any(question.key == key for question in self.open)

    def of(self, site: str, backend: str) -> dict[Weights, list[Question]]:
        """A site's open questions, by what was loaded."""
        by_weights: dict[Weights, list[Question]] = {}
        for question in self.open:
            if (question.old.site, question.backend) == (site, backend):
                by_weights.setdefault(question.weights, []).append(question)
        return by_weights

    def wants(self, old: Case, backend: str, engines: RanEngines) -> bool:
        """Whether the engines that ran this case are to be kept until `read`: one for each model
        with a question."""
        for questions in self.of(old.site, backend).values():
            is_asked = any(question.old.case == old.case for question in questions)
            if is_asked and engine_of(questions, engines) is None:
                return True
        return False

    def read(self, site: str, backend: str, engines: RanEngines, ours: Any = None) -> None:
        """The new path of a site's open questions.
        ours: where an engine that was closed is loaded again (`replay.Engines`)."""
        for questions in self.of(site, backend).values():
            group = group_of(questions, self.store, self.seconds)
            self.groups.append(group)
            for question in questions:
                self.answers[question.key] = (group, question)
            engine = engine_of(questions, engines)
            if engine is None:
                last = questions[-1]
                checkpoint = checkpoint_of(last.new, last.new_place)
                group.moved = (checkpoint, last.new_model)
            elif not group.why:
                read_moved(group, engine, ours)
        self.open = [q for q in self.open if (q.old.site, q.backend) != (site, backend)]

    def judge(self) -> None:
        """Call it when the engines of the new code are closed."""
        read_references(self.groups)

    def answer(self, outcome: Outcome) -> Judged | None:
        """What an outcome becomes; None where nothing was asked."""
        answer = self.answers.get((outcome.site, outcome.case, outcome.backend))
        return None if answer is None else answer_of(*answer)

    def told(self) -> tuple[verdict.Numerics, ...]:
        """What reports show."""
        return tuple(map(summary_of, self.groups))


def engine_of(questions: Sequence[Question], engines: RanEngines) -> Any:
    """The last engine that ran one of these cases with the model that is asked about, or None."""
    for question in questions:
        ran = engines.get(question.old.case, ())
        model = question.new_model
        wanted = (Path(str(model.get("path"))).name, model.get("dtype"))
        for engine in reversed(ran):
            if len(ran) == 1 or loaded_from(engine) == wanted:
                return engine
    return None


# == A case ==


def answer_of(group: Group, question: Question) -> Judged:
    """A case's verdict, by its site's numerics."""
    found = group.verdict
    steps = group.steps_of(question.old.case)
    if group.why or found is None:
        return without_numerics(question, group.why, steps)
    if found.outcome == "cannot tell" and (known := known_causes(group, question)):
        found = dataclasses.replace(found, missing="; ".join((found.missing, *known)))
    if found.outcome == "shifted":
        return by_shift(group, found, question)
    if group.other_weight and question.kind != "model":
        return by_weights(group, question)
    if question.kind == "floats":
        return by_numbers(group, found, question)
    judged = by_steps(group, found, question, steps) if steps else question.otherwise
    is_settled = found.outcome != "cannot tell" or is_of_another_stage(judged)
    if is_settled and question.kind != "model":
        return judged
    return without_numerics(question, of_site(found), steps)


def is_of_another_stage(judged: Judged) -> bool:
    """A few tokens say nothing of a shift, but all of a choice that was surely not the model's."""
    _, cause, _ = judged
    return cause is not None and cause.name == "sampling.processors"


def of_site(found: Verdict) -> str:
    return f"numerics of the site: {found}"


def without_numerics(question: Question, why: str, steps: Sequence[Step]) -> Judged:
    """The numerics say nothing: what was declared stays, and so do what passes with equal ids and
    what differs beside the ids that part; no other case does."""
    if question.beside.counts(math.inf):
        return "DRIFT", question.beside.cause, (why,)
    is_exact = question.kind == "floats" and question.weights.dtype == "float32"
    passes = question.kind == "passing" and not steps
    if question.kind == "model" or is_exact or passes:
        return with_note(question.otherwise, why)
    return could_not(why)


def with_note(judged: Judged, note: str) -> Judged:
    name, cause, notes = judged
    return name, cause, (*notes, note)


def near_tie(sentence: str, found: Verdict) -> Judged:
    cause = Cause("numeric.near_tie", "confirmed", sentence, of_site(found))
    return "NEAR-TIE", cause, ()


# == The site's numerics are shifted ==


def by_shift(group: Group, found: Verdict, question: Question) -> Judged:
    before, declared, notes = question.otherwise
    if question.kind == "model" and declared is not None:
        proven = dataclasses.replace(declared, certainty="confirmed", proof=of_site(found))
        return before, proven, notes
    cause = cause_of_shift(group, found, question)
    if question.kind == "passing":
        return "LATENT", cause, (*notes, NOT_SHOWN)
    return "DRIFT", question.company or cause, notes


def cause_of_shift(group: Group, found: Verdict, question: Question) -> Cause:
    known = known_causes(group, question)
    if group.other_weight:
        known = (f"vLLM does not run the checkpoint's {group.other_weight}", *known)
    shift = "; ".join((f"numerics of the site {found}", *known))
    cause = named_cause(found.cause, "confirmed", shift)
    rounding = dataclasses.replace(found.noise, new=found.noise.old).of_gap
    if group.apart <= rounding:
        return cause
    apart = f"rows alone and beside others are read {group.apart:.1e} nats apart"
    sentence = f"{apart}, rounding explains {rounding:.1e}"
    return named_cause("batch", "confirmed", sentence, cause.sentence)


def known_causes(group: Group, question: Question) -> tuple[str, ...]:
    """What either path is known to do otherwise than a plain reading of the model."""
    biases = known_biases(group.backend, question.new_model.get("dtype"))
    return (*biases, *old_path_defects(group.path, group.model.get("attention")))


def by_weights(group: Group, question: Question) -> Judged:
    """A fault in few weights hides among rounding, and is seen in the weights themselves."""
    runs = f"vLLM does not run the checkpoint's {group.other_weight}"
    cause = named_cause("model.weights", "confirmed", runs, f"compared with {group.path}")
    if question.kind == "passing":
        return "LATENT", cause, (*question.otherwise[2], NOT_SHOWN)
    return "DRIFT", cause, ()


# == Numbers among the values ==


def by_numbers(group: Group, found: Verdict, question: Question) -> Judged:
    """Log-probabilities may move as far as noise moves them, means of many less far, and where
    little is known of it a few times as far; all together they may not move one way. How the old
    code padded, and what it took from the logits of unlikely tokens, the noise was not measured in:
    `part_of` has a floor."""
    old = question.old.value
    new = question.new.value
    are_few = found.outcome == "cannot tell"
    gap = number_gap(old, new)
    if gap is None:
        return question.otherwise
    if coarse := fewer_bits(old, new):
        return "DRIFT", coarse, ()
    times = FAR if are_few else 1
    share = 1.0 if are_few else mean_allowance(group.numbers, read_of_cases(group), found.noise)
    noise = times * share * found.noise.of_number
    most = number_gap(old, new, part_of(noise))
    if most is None or most > 1 or fewer_digits(old, new):
        return question.otherwise
    one_way = "" if are_few else why_not_rounding(moved_numbers(group.numbers), found.noise)
    if one_way:
        return with_note(question.otherwise, f"{one_way}, which no rounding does: {found}")
    gaps = f"numbers among the values differ by {gap:.1e} at most"
    if are_few:
        if gap <= found.noise.of_number:
            said = f"{gaps}; both paths' own readings of the golden are as far apart"
            shift = named_cause("numeric.shift", "likely", said)
            question = dataclasses.replace(question, otherwise=("DRIFT", shift, ()))
        return without_numerics(question, of_site(found), [])
    return near_tie(f"the ids are equal, {gaps}, rounding explains {max(noise, FLOOR):.1e}", found)


def read_of_cases(group: Group) -> dict[str, list[Scored]]:
    """What the old path reads of each case's rows."""
    found: dict[str, list[Scored]] = {}
    for (case, _), place in group.places.items():
        if place < len(group.old):
            found.setdefault(case, []).append(group.old[place])
    return found


# == The site's numerics hold, and ids part ==


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step where a row parts.   cause: what is wrong, None if noise explains it."""

    step: Step
    parted: Parted
    cause: Cause | None = None

    def __str__(self) -> str:
        return f"step {self.step.step} of row {self.step.row}"


def by_steps(group: Group, found: Verdict, question: Question, steps: Sequence[Step]) -> Judged:
    """Does noise explain each step where the case parts?"""
    is_passing = question.kind == "passing"
    try:
        judged = [judge_step(group, question.old.case, step) for step in steps]
    except CannotJudge as error:
        why = str(error)
        return with_note(question.otherwise, why) if is_passing else could_not(why)
    cause = cause_of_steps(group, question, judged)
    if is_passing:
        return question.otherwise if cause is None else ("LATENT", cause, (NOT_SHOWN,))
    if cause is not None:
        return "DRIFT", question.company or cause, (of_site(found),)
    return by_rounding(found, question, judged)


def cause_of_steps(group: Group, question: Question, judged: Sequence[JudgedStep]) -> Cause | None:
    """The first one's; an environment that did not change is no cause."""
    cause = next((one.cause for one in judged if one.cause is not None), None)
    if cause is None or cause.name != "model.version":
        return cause
    if question.old.case not in group.here:
        return cause
    prints = adapters_in(question.old.rows[question.place])
    if prints and group.read_adapter not in {"", *prints}:
        loaded = f"the moved code's adapter {group.adapter} is not the golden's"
        return named_cause("model.weights", "likely", loaded, "its fingerprint is another one")
    chose = f"what chose at {worst_of(judged)} was not the model alone"
    return named_cause("sampling.processors", "likely", chose, cause.sentence)


def worst_of(judged: Sequence[JudgedStep]) -> JudgedStep:
    return max(judged, key=lambda one: one.parted.gap)


def by_rounding(found: Verdict, question: Question, judged: Sequence[JudgedStep]) -> Judged:
    """Noise explains where the ids part."""
    notes = [f"rounding explains where the ids part: {found}"]
    allowed = found.noise.of_number
    if question.beside.counts(allowed):
        cause, apart = question.beside
        if apart:
            numbers = f"at the golden's own ids numbers are {apart:.1e} apart"
            notes.append(f"{numbers}, rounding explains {allowed:.1e}")
        return "DRIFT", cause, tuple(notes)
    coarse = fewer_bits(question.old.value, question.new.value)
    if coarse is not None:
        return "DRIFT", coarse, tuple(notes)
    worst = worst_of(judged)
    gap = f"the widest gap is {worst.parted.gap:.1e} nats ({worst})"
    sentence = f"{len(judged)} rows part, {gap}, noise explains {worst.parted.allowed:.1e}"
    return near_tie(f"{meaning('numeric.near_tie')}: {sentence}", found)


def judge_step(group: Group, case: str, step: Step) -> JudgedStep:
    """Raises CannotJudge."""
    place = group.places.get((case, step.row))
    if place is None or group.verdict is None:
        raise CannotJudge(f"row {step.row} could not be read again: its pictures were not kept")
    parting = parting_at(group, place, step)
    found = group.verdict
    are_few = found.outcome == "cannot tell"
    if are_few and found.noise.tokens < FEWEST_STEPS:
        raise CannotJudge(of_site(found))
    parted = within_noise(parting, found.noise, FAR if are_few else 1)
    if step.odd == BEAMS:
        raise CannotJudge(step.odd)
    if parted.within:
        return JudgedStep(step, parted)
    if not step.odd:
        return JudgedStep(step, parted, cause_at(step, parting, parted))
    if group.dtype != "float32":
        raise CannotJudge(step.odd)
    odd = f"at step {step.step} of row {step.row} {step.odd}"
    sentence = f"{odd}, and the model tells both ids apart by {parted.gap:.1e} nats on both paths"
    return JudgedStep(step, parted, named_cause("sampling.processors", "likely", sentence))


def cause_at(step: Step, parting: Parting, parted: Parted) -> Cause:
    """Noise does not explain this step: which path does not choose what it chose?"""
    where = f"at step {step.step} of row {step.row}"
    if step.masked:
        sentence = f"{where} a structure, or what stands in its place, chose"
        return named_cause("sampling.processors", "likely", sentence)
    if parting.old[1] - parting.old[0] > parted.allowed:
        chose = f"the old path, run here, does not choose the golden's id {where}"
        sentence = f"{chose}: this environment is another one"
        return Cause("model.version", "likely", sentence, "run `check --ab`")
    if parting.new[0] - parting.new[1] > parted.allowed:
        prefers = "the moved path, when it reads the golden, prefers the golden's id"
        sentence = f"{where} {prefers}: its choice was another stage's"
        return named_cause("sampling.processors", "likely", sentence)
    prefers = f"{where} the reference prefers one id by {parted.gap:.1e} nats"
    explains = f"noise explains {parted.allowed:.1e}; over the whole site numerics hold"
    return named_cause("numeric.shift", "likely", f"{prefers}, {explains}")
