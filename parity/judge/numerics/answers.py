"""What `check` asks of the referee, and when; what a case's verdict becomes by the answer.

    numerics = Numerics(store)
    numerics.ask(Question(old, new, …))           while cases are judged: this one hangs on its site's numerics
    numerics.read(site, backend, engines)         at the end of a site, with the engines that ran: the moved path
    numerics.judge()                              when every engine is closed: the reference, once per checkpoint
    numerics.answer(outcome)                      the verdict, cause and notes of a case that was asked about

WHEN a site's numerics are asked for stands in questions.py.

Ids that part are a NEAR-TIE if the site's numerics hold and each step where they part lies within the noise measured
there. A site that cannot tell gives "could not judge" (exit 3) for cases whose ids part, never green and never DRIFT.

MEMORY. The moved path is read with the engine that ran. Before the reference is loaded the session has ended, which
closes the engines that it loaded and those that the code under test opened through gen_engine. What that code holds
otherwise (a model of plain transformers in a global, another process) cannot be closed from here and stays in memory.

Map: rows, the moved path, the reference, answers, what reports show.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity import verdict
from parity.golden import Case, GoldenError, Store, environment
from parity.judge.endings import leaves
from parity.judge.numerics import reading, referee
from parity.judge.numerics.errors import FLOOR, Reading, errors_of
from parity.judge.numerics.noise import Parted, Parting, penalised, within_noise
from parity.judge.questions import (
    NO_ADAPTER,
    Judged,
    Question,
    Row,
    Step,
    Weights,
    adapters_of,
    checkpoint_of,
    could_not,
    model_of,
    number_gap,
    steps_of,
)
from parity.judge.replay import adapter_named, loaded_from, pictures_of, readable
from parity.judge.row import placeholder_in
from parity.verdict import CAUSES, Cause, Outcome

CANNOT_READ = (
    GoldenError,
    reading.CannotJudge,
    OSError,
    ImportError,
    LookupError,
    ValueError,
    RuntimeError,
)


# == Rows ==


def given_row(row: Row, store: Store, step: Step | None) -> reading.TokenRow | None:
    """A golden's row as the referee reads it; None where there is nothing to read, or its pictures were not kept."""
    if len(row["prompt_ids"]) + len(row["output_ids"]) < 2 or not row["prompt_ids"]:
        return None
    others = () if step is None else tuple((step.position, i) for i in step.ids)
    if not row.get("images"):
        return reading.token_row(row["prompt_ids"], row["output_ids"], others=others)
    try:
        images = tuple(pictures_of(row, store))
    except GoldenError:
        return None
    budget, place = row["images"][0].get("budget"), placeholder_in(row)
    return None if not row["output_ids"] else reading.token_row(
        row["prompt_ids"], row["output_ids"], others=others, images=images, placeholder=place,
        budget=(budget[0], budget[1]) if budget else None,
    )  # fmt: skip


@dataclass
class Group:
    """All goldens' rows of a site on one checkpoint, for one backend, and what each path makes of them.

    adapters: what its rows say of theirs, adapter: the folder.
    places: (case, row) -> its number among `rows`.   moved: the new path's model, where no engine of ours ran.
    why: why the numerics could not be judged.   apart: how far the new path reads some rows otherwise alone, nats.
    """

    site: str
    backend: str
    path: str
    model: Row
    steps: Mapping[tuple[str, int], Step]
    adapters: tuple[str, ...] = ()
    adapter: str = ""
    rows: list[reading.TokenRow] = field(default_factory=list)
    places: dict[tuple[str, int], int] = field(default_factory=dict)
    new: list[reading.Scored] = field(default_factory=list)
    moved: tuple[str | None, Row] | None = None
    why: str = ""
    environments: Mapping[str, Row] = field(default_factory=dict)
    truth: list[reading.Scored] = field(default_factory=list)
    old: list[reading.Scored] = field(default_factory=list)
    apart: float = 0.0
    verdict: referee.Verdict | None = None
    against: str = ""
    readings: list[Reading] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        return str(self.model.get("dtype", "float32"))

    def elsewhere(self, case: Case) -> bool:
        """Whether a golden was recorded with other libraries than are here, or where that is not known."""
        here, there = environment(), self.environments.get(case.case, {})
        return (
            any(here.get(name) != version for name, version in there.items() if name in here)
            or not there
        )

    @property
    def source(self) -> tuple[str, str, str | None, str]:
        """What one reading of the reference has in common."""
        return self.path, self.dtype, self.model.get("attention"), self.adapter

    def fill(self, store: Store) -> None:
        for name in store.names(self.site):
            try:
                case = store.read(self.site, name)
            except GoldenError:
                continue  # said when its turn comes
            self.take(case, store)

    def take(self, case: Case, store: Store) -> None:
        """A case's rows of this model; equal ones of other cases are not read again, unless they part there."""
        known, paths = {(row.ids, row.start) for row in self.rows}, dict[Any, str | None]()
        for number, row in enumerate(case.rows):
            model = model_of(case, number)
            name = model.get("path")
            if name not in paths:
                paths[name] = checkpoint_of(case, number)
            mine = paths[name], model.get("dtype", "float32"), adapters_of(row)
            if mine != (self.path, self.dtype, self.adapters):
                continue
            step = self.steps.get((case.case, number))
            given = given_row(row, store, step)
            if given is not None and (step is not None or (given.ids, given.start) not in known):
                self.places[case.case, number] = len(self.rows)
                self.rows.append(given)
                known.add((given.ids, given.start))


# == The moved path ==


def read_moved(group: Group, engine: Any, engines: Any) -> None:
    """What the engine that ran makes of the rows."""
    failures = (*CANNOT_READ, sys.modules[type(engine).__module__].GenEngineError)
    try:
        engine = readable(engine, engines, hooked=bool(group.adapter))
        adapter = adapter_named(engine, group.adapter) if group.adapter else None
        group.new = reading.read_engine(engine, group.rows, adapter=adapter)
        by_length = sorted(range(len(group.rows)), key=lambda k: len(group.rows[k].ids))
        some = [*by_length[:2], *by_length[-1:]]  # the short ones are padded beside the long one
        alone = reading.read_engine(
            engine, [group.rows[k] for k in some], at_once=1, adapter=adapter
        )
        group.apart = max(
            (reading.furthest(group.new[k], one) for k, one in zip(some, alone)), default=0.0
        )
    except failures as error:
        group.why = f"the moved path could not be read: {error}"


def read_foreign(group: Group) -> None:
    """Moved code without gen_engine: plain transformers, as its recording says that it was."""
    path, model = group.moved or (None, {})
    if path is None or model.get("backend") != "hf" or model.get("quantization"):
        what = model.get("backend") or "unknown"
        group.why = f"the moved code does not use gen_engine, and its model ({what}) cannot be loaded from its recording"
        return
    try:
        attention, adapter = model.get("attention"), group.adapter
        with reading.Reader(
            path, str(model["dtype"]), attention=attention, adapter=adapter
        ) as reader:
            group.new = reader.read(
                group.rows, most_rows=reading.OLD_ROWS, side="left", what="moved code"
            )
    except CANNOT_READ as error:
        group.why = f"the moved path could not be read: {error}"


# == The reference ==


def read_reference(groups: Sequence[Group]) -> None:
    """Groups of one checkpoint: the reference and the old path, each loaded once."""
    path, dtype, attention, adapter = groups[0].source
    rows = [row for group in groups for row in group.rows]
    try:
        if groups[0].model.get("quantization"):
            raise reading.CannotJudge(
                "the golden's weights are quantized: there is no float32 of them to compare with"
            )
        read = reading.read_reference(path, dtype, rows, attention=attention, adapter=adapter)
    except CANNOT_READ as error:
        for group in groups:
            group.why = str(error)
        return
    new = [scored for group in groups for scored in group.new]
    made, start = reading.readings(read, new, rows), 0
    for group in groups:
        mine = slice(start, start + len(group.rows))
        group.truth, group.old, group.readings = read.truth[mine], read.old[mine], made[mine]
        group.against, start = read.source.note, mine.stop
        group.verdict = referee.judge(group.readings, dtype=dtype, exact=read.source.exact)


# == Answers ==


def parting_at(group: Group, place: int, step: Step) -> Parting:
    """The candidates of a step on three paths, penalised as they were chosen. Raises CannotJudge."""
    truth, old, new = group.truth[place], group.old[place], group.new[place]
    made = reading.parting(truth, old, new)
    if step.penalty == 1:
        return made

    def with_penalty(pair: tuple[float, float], scored: reading.Scored) -> tuple[float, float]:
        norms = [
            own if own is not None else exact or 0.0
            for own, exact in zip(scored.normalizers, truth.normalizers)
        ]
        first, second = (
            penalised(value, norm, step.penalty) if i in step.seen else value
            for value, norm, i in zip(pair, norms, step.ids)
        )
        return first, second

    return Parting(
        with_penalty(made.reference, truth),
        with_penalty(made.old, old),
        with_penalty(made.new, new),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """A step where a row parts, judged.   cause: what is wrong, None if noise explains it.   gap, allowed: nats."""

    step: Step
    gap: float
    allowed: float
    cause: Cause | None = None


def seen_at(group: Group, case: str, step: Step) -> Seen:
    """Raises CannotJudge."""
    place = group.places.get((case, step.row))
    if place is None or group.verdict is None:
        raise reading.CannotJudge(
            f"row {step.row} could not be read again: its pictures were not kept"
        )
    made = parting_at(group, place, step)
    parted = within_noise(made, group.verdict.noise)
    if step.odd and (not parted.within or "beams" in step.odd):
        if "beams" in step.odd or group.model.get("dtype") != "float32":
            raise reading.CannotJudge(step.odd)
        said = f"at step {step.step} of row {step.row} {step.odd}, and the model tells both ids apart by {parted.gap:.1e}"
        cause = Cause(
            "sampling.processors",
            "likely",
            f"{CAUSES['sampling.processors']}: {said} nats on both paths",
        )
        return Seen(step, parted.gap, parted.allowed, cause)
    if parted.within:
        return Seen(step, parted.gap, parted.allowed)
    return Seen(step, parted.gap, parted.allowed, cause_at(step, made, parted))


def cause_at(step: Step, made: Parting, parted: Parted) -> Cause:
    """Numerics hold over the site, and do not explain this step: which path does not choose what it chose?"""
    where = f"at step {step.step} of row {step.row}"
    if step.masked:
        said = f"{CAUSES['sampling.processors']}: {where} a structure, or what stands in its place, chose"
        return Cause("sampling.processors", "likely", said)
    if made.old[1] - made.old[0] > parted.allowed:
        said = f"the old path, run here, does not choose the golden's id {where}: this environment is another one"
        return Cause("env.version", "likely", said, "run `check --ab`")
    if made.new[0] - made.new[1] > parted.allowed:
        said = f"{where} the moved path, when it reads the golden, prefers the golden's id: its choice was another stage's"
        return Cause("sampling.processors", "likely", f"{CAUSES['sampling.processors']}: {said}")
    said = f"{where} the reference prefers one id by {parted.gap:.1e} nats, noise explains {parted.allowed:.1e}"
    return Cause(
        "numeric.shift",
        "likely",
        f"{CAUSES['numeric.shift']}: {said}; over the whole site numerics hold",
    )


def answer_of(group: Group, question: Question) -> Judged:
    """A case's verdict, by its site's numerics."""
    found, kind = group.verdict, question.kind
    steps = [step for (case, _), step in group.steps.items() if case == question.old.case]
    if group.why or found is None:
        return unread(question, group.why, steps)
    if found.outcome == "shifted":
        return by_shift(group, found, question)
    if kind == "floats":
        return by_numbers(found, question)
    if found.outcome == "cannot tell" or kind == "model":
        return unread(question, f"numerics of the site: {found}", steps)
    return by_steps(group, found, question, steps) if steps else question.otherwise


def unread(question: Question, why: str, steps: Sequence[Step]) -> Judged:
    """The numerics say nothing: what was declared stays, and so does what passes with equal ids; no other case does."""
    exact = question.kind == "floats" and question.weights.dtype == "float32"
    if question.kind == "model" or exact or (question.kind == "passing" and not steps):
        return with_note(question.otherwise, why)
    return could_not(why)


def with_note(judged: Judged, note: str) -> Judged:
    return judged[0], judged[1], (*judged[2], note)


def by_shift(group: Group, found: referee.Verdict, question: Question) -> Judged:
    before, declared, notes = question.otherwise
    if question.kind == "model" and declared is not None:
        proof = f"numerics of the site: {found}"
        return before, dataclasses.replace(declared, certainty="confirmed", proof=proof), notes
    cut = group.backend == "vllm" and question.moved.get("dtype") == "bfloat16" and cuts_bfloat16()
    said = f"{CAUSES[found.cause]}: numerics of the site {found}{CUT_OFF if cut else ''}"
    cause = Cause(found.cause, "confirmed", said)
    rounding = within_noise(SAME, dataclasses.replace(found.noise, new=found.noise.old)).allowed
    if group.apart > rounding:
        said = f"rows alone and beside others are read {group.apart:.1e} nats apart, rounding explains {rounding:.1e}"
        cause = Cause(
            "batch.composition",
            "confirmed",
            f"{CAUSES['batch.composition']}: {said}",
            cause.sentence,
        )
    if question.kind == "passing":
        return "LATENT", cause, (*notes, "on this case the value does not show it")
    return "DRIFT", question.company or cause, notes


CUT_OFF = "; vLLM's kernels cut bfloat16 off on this CPU, and do not round: move in float16 or float32, or on hf"


def cuts_bfloat16() -> bool:
    """Whether vLLM's kernels here cut bits off where they should round: on a CPU without AVX512-BF16, and on any before
    0.17. All log-probabilities move one way then. Seen of 1/√5, which lies between 0.4453 and 0.4473; not of a build
    that has no such kernel."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    importlib.import_module("vllm._custom_ops")  # loads the kernels
    if not hasattr(torch.ops._C, "rms_norm"):
        return False
    values = torch.tensor([[1.0, 3.0] * 8], dtype=torch.bfloat16)
    normed = torch.empty_like(values)
    torch.ops._C.rms_norm(normed, values, torch.ones_like(values[0]), 0.0)
    return float(normed[0, 0]) < 0.446


SAME = Parting((0, 0), (0, 0), (0, 0))


def by_numbers(found: referee.Verdict, question: Question) -> Judged:
    """Numbers among the values: log-probabilities may move as far as noise moves them, and where little is known of it
    a few times as far."""
    few, values = found.outcome == "cannot tell", (question.old.value, question.new.value)
    # How the old code padded, and what it took from the logits of unlikely tokens, the noise was not measured in.
    gap, allowed = number_gap(*values), max(found.noise.of_number * (FAR if few else 1), FLOOR)
    if gap is not None and (coarse := fewer_bits(*values)):
        return "DRIFT", coarse, ()
    if gap is None or gap > allowed or rounded_off(*values, of_few_digits):
        return question.otherwise
    if few:
        return unread(question, f"numerics of the site: {found}", [])
    said = f"the ids are equal, numbers among the values differ by {gap:.1e} at most, rounding explains {allowed:.1e}"
    return (
        "NEAR-TIE",
        Cause("numeric.near_tie", "confirmed", said, f"numerics of the site: {found}"),
        (),
    )


FAR = 5  # times what a few tokens say of noise


def fewer_bits(old: Any, new: Any) -> Cause | None:
    if not rounded_off(old, new, of_few_bits) or rounded_off(old, new, of_few_digits):
        return None
    said = f"{CAUSES['numeric.shift']}: numbers among the values hold fewer bits, as if computed in half precision"
    return Cause(
        "numeric.shift", "likely", said, "no rounding of a model takes bits from every number"
    )


def rounded_off(old: Any, new: Any, few: Callable[[float], bool]) -> bool:
    """Whether numbers came with all their digits, or bits, and come with few: what a code does, and no rounding of a
    model. Zeros and ones have few of both, whatever was done."""
    before, after = (
        [n for _, n in leaves(value, kind=float) if n not in (0, 1)] for value in (old, new)
    )
    return bool(after) and all(map(few, after)) and not all(map(few, before))


DIGITS = 4  # behind the point: what code rounds to
BITS = 11  # float16 holds as many, bfloat16 eight


def of_few_digits(number: float) -> bool:
    return round(number, DIGITS) == number


def of_few_bits(number: float) -> bool:
    return float.is_integer(math.frexp(number)[0] * 2**BITS)


UNKNOWN_STEP = CAUSES["sampling.processors"] + ": what chose at step {} was not the model alone"


def worst_of(seen: Sequence[Seen]) -> str:
    worst = max(seen, key=lambda one: one.gap)
    return f"{worst.step.step} of row {worst.step.row}"


def by_steps(
    group: Group, found: referee.Verdict, question: Question, steps: Sequence[Step]
) -> Judged:
    """The site's numerics hold: does noise explain each step where the case parts?"""
    try:
        seen = [seen_at(group, question.old.case, step) for step in steps]
    except reading.CannotJudge as error:
        passing = question.kind == "passing"
        return with_note(question.otherwise, str(error)) if passing else could_not(str(error))
    cause = next((one.cause for one in seen if one.cause is not None), None)
    if cause is not None and cause.name == "env.version" and not group.elsewhere(question.old):
        cause = Cause(
            "sampling.processors", "likely", UNKNOWN_STEP.format(worst_of(seen)), cause.sentence
        )
    if cause is not None and question.kind == "passing":
        return "LATENT", cause, ("on this case the value does not show it",)
    if cause is not None:
        return "DRIFT", question.company or cause, (f"numerics of the site: {found}",)
    if question.kind == "passing":
        return question.otherwise
    allowed = found.noise.of_number
    if question.beside is not None and not 0 < question.apart <= allowed:
        notes = [f"rounding explains where the ids part: {found}"]
        if question.apart:
            notes += [
                f"at the golden's own ids numbers are {question.apart:.1e} apart, rounding explains {allowed:.1e}"
            ]
        return "DRIFT", question.beside, tuple(notes)
    if (coarse := fewer_bits(question.old.value, question.new.value)) is not None:
        return "DRIFT", coarse, (f"rounding explains where the ids part: {found}",)
    worst = max(seen, key=lambda one: one.gap)
    said = (
        f"{CAUSES['numeric.near_tie']}: {len(seen)} rows part, the widest gap is {worst.gap:.1e} nats "
        f"(step {worst.step.step} of row {worst.step.row}), noise explains {worst.allowed:.1e}"
    )
    return (
        "NEAR-TIE",
        Cause("numeric.near_tie", "confirmed", said, f"numerics of the site: {found}"),
        (),
    )


# == All of a check ==


def engine_of(questions: Sequence[Question], engines: Mapping[str, Sequence[Any]]) -> Any:
    """The last engine that ran one of these cases with the model that is asked about, or None."""
    for question in questions:
        ran, model = engines.get(question.old.case, ()), question.moved
        wanted = Path(str(model.get("path"))).name, model.get("dtype")
        if found := [engine for engine in ran if len(ran) == 1 or loaded_from(engine) == wanted]:
            return found[-1]
    return None


@dataclass
class Numerics:
    """The questions of a check, and their answers.   always: ask of every site, also where all is equal."""

    store: Store
    always: bool = False
    open: list[Question] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    answers: dict[tuple[str, str, str], tuple[Group, Question]] = field(default_factory=dict)

    def ask(self, question: Question) -> None:
        self.open.append(question)

    def of(self, site: str, backend: str) -> dict[Weights, list[Question]]:
        """A site's open questions, by what was loaded."""
        found = dict[Weights, list[Question]]()
        for question in self.open:
            if (question.old.site, question.backend) == (site, backend):
                found.setdefault(question.weights, []).append(question)
        return found

    def wants(self, old: Case, backend: str, engines: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the engines that ran this case are to be kept until `read`: one for each model with a question."""
        asked = self.of(old.site, backend).values()
        return any(
            engine_of(same, engines) is None
            for same in asked
            if any(q.old.case == old.case for q in same)
        )

    def read(
        self, site: str, backend: str, engines: Mapping[str, Sequence[Any]], ours: Any = None
    ) -> None:
        """The moved path of a site's open questions.   engines: case -> those that ran it.   ours: where an engine
        that was closed is loaded again (`replay.Engines`)."""
        for same in self.of(site, backend).values():
            group = self.group_of(same)
            if group.why:
                continue
            engine = engine_of(same, engines)
            if engine is not None:
                read_moved(group, engine, ours)
            else:
                group.moved = checkpoint_of(same[-1].new, same[-1].there), same[-1].moved
        self.open = [q for q in self.open if (q.old.site, q.backend) != (site, backend)]

    def group_of(self, questions: Sequence[Question]) -> Group:
        first = questions[0]
        steps = {(q.old.case, step.row): step for q in questions for step in steps_of(q.old, q.new)}
        model = model_of(first.old, first.place)
        group = Group(first.old.site, first.backend, first.weights.path or "", model, steps)
        group.adapters = adapters_of(first.old.rows[first.place])
        group.adapter, group.why = (
            first.weights.adapter or "",
            NO_ADAPTER if first.weights.adapter is None else "",
        )
        group.environments = {q.old.case: self.store.environment_of(q.old) for q in questions}
        group.fill(self.store)
        self.groups.append(group)
        self.answers.update({q.key: (group, q) for q in questions})
        return group

    def judge(self) -> None:
        """Load the reference, once for each checkpoint. Call it when the engines of the moved code are closed."""
        for group in self.groups:
            if not group.path:
                group.why = "the golden does not say which checkpoint it was"
            if not group.rows and not group.why:
                group.why = "its rows choose and score no token, so its rounding cannot be measured; record calls that do"
            if not group.new and not group.why:
                read_foreign(group)
        ready = [group for group in self.groups if not group.why]
        for source in dict.fromkeys(group.source for group in ready):
            read_reference([group for group in ready if group.source == source])

    def answer(self, outcome: Outcome) -> Judged | None:
        """What an outcome becomes; None where nothing was asked."""
        found = self.answers.get((outcome.site, outcome.case, outcome.backend))
        return None if found is None else answer_of(*found)

    def told(self) -> tuple[verdict.Numerics, ...]:
        return tuple(told(group) for group in self.groups)


# == What reports show ==

BINS, WIDE = 41, 4.0  # of the picture; from -WIDE to WIDE sizes


def told(group: Group) -> verdict.Numerics:
    found, path = group.verdict, group.path or "an unknown checkpoint"
    if found is None:
        why = f"could not be judged: {group.why}"
        return verdict.Numerics(
            group.site, group.backend, path, group.dtype, "could not judge", why
        )
    gaps = [
        abs(one.reference[0] - one.reference[1])
        for key, step in group.steps.items()
        if key in group.places and (one := quietly(group, group.places[key], step)) is not None
    ]
    return verdict.Numerics(
        group.site, group.backend, path, group.dtype, found.outcome, str(found), found.cause, group.against,
        fields_of(found), picture_of(group, found, gaps),
    )  # fmt: skip


def quietly(group: Group, place: int, step: Step) -> Parting | None:
    try:
        return parting_at(group, place, step)
    except reading.CannotJudge:
        return None


def fields_of(found: referee.Verdict) -> dict[str, Any]:
    noise = found.noise
    said = {
        "rows": found.rows,
        "tokens": noise.tokens,
        "old": noise.old,
        "new": noise.new,
        "sees": found.sees,
    }
    more = {"more": found.more, "like": found.like, "exact": found.exact}
    return {
        **said,
        **more,
        "statistics": [dataclasses.asdict(estimate) for estimate in found.estimates],
    }


def picture_of(group: Group, found: referee.Verdict, gaps: Sequence[float]) -> dict[str, Any]:
    """Both error distributions, over unsure tokens; errors beyond the ends count in the last bins."""
    import numpy as np

    errors, noise = errors_of(group.readings), found.noise
    if not found.estimates:
        return {}
    reach = WIDE * max(noise.old, min(noise.new, 3 * noise.old), FLOOR)
    edges = np.linspace(-reach, reach, BINS + 1)
    counts = [
        np.histogram(np.clip(side[errors.is_open], -reach, reach), edges)[0].tolist()
        for side in (errors.old, errors.new)
    ]
    size = found.estimates[0]
    allowed = within_noise(Parting((0, 0), (0, 0), (0, 0)), noise).allowed
    return {
        "edges": [float(edge) for edge in edges], "old": counts[0], "new": counts[1], "size": noise.old,
        "least": size.least * noise.old, "most": size.most * noise.old, "now": noise.new,
        "gaps": list(gaps), "allowed": allowed,
    }  # fmt: skip
