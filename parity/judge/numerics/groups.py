"""The rows of a site's goldens on one checkpoint, and what each path reads of them.

MEMORY. The new path is read with the engine that ran. Before the reference is loaded the session
has ended, which closes the engines that it loaded and those that the code under test opened through
gen_engine. What that code holds otherwise (a model of plain transformers in a global, another
process) cannot be closed from here and stays in memory.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.goldens.store import Case, GoldenError, Store
from parity.judge.numerics import reading, referee
from parity.judge.numerics.errors import Reading
from parity.judge.numerics.golden_rows import is_recorded_here, readable_row
from parity.judge.numerics.made import Made, MovedPath, engine_path, make_rows, unsure_tokens
from parity.judge.numerics.noise import Parting, penalised
from parity.judge.numerics.questions import FURTHER_SECONDS, Question, Step, Steps, steps_of
from parity.judge.numerics.reading import CannotJudge, Reader, Scored, TokenRow, parting_of
from parity.judge.numerics.references import References
from parity.judge.numerics.vllm_reading import vllm_path
from parity.judge.numerics.vllm_weights import other_weight
from parity.judge.numerics.weights import NO_ADAPTER, adapters_of
from parity.judge.replay import adapter_named, readable
from parity.judge.row import Row
from parity.judge.tools import checkpoint_of, model_of

CANNOT_READ = (GoldenError, OSError, ImportError, LookupError, ValueError, RuntimeError)

NO_CHECKPOINT = "the golden does not say which checkpoint it was"
NO_TOKENS = (
    "its rows choose and score no token, so its rounding cannot be measured; record calls that do"
)
MOST_SITES = 4  # whose time may go by in all
# Unsure tokens of which "holds" is believed though a probe is not surely inside its margin: on
# SmolLM2 attention x 1.01 is seen in 10 of 10 sites then, in none if the first "holds" counts.
SETTLED_TOKENS = 1200
SPARE = 1.25  # times the tokens that a verdict asks for: its own estimate is uncertain
FEWEST_MADE = 4  # rows that are worth loading a model for
QUANTIZED = "the golden's weights are quantized: there is no float32 of them to compare with"


@dataclass
class Group:
    """All goldens' rows of a site on one checkpoint, for one backend, and what each path makes of
    them.

    steps: where rows part.   adapters: what its rows say of theirs, adapter: the folder.
    places: (case, row) -> index among `rows`.
    moved: checkpoint and model of the new path, where no engine of ours ran.
    why: why the numerics could not be judged.
    here: cases that were recorded with the libraries of here.
    apart: how far the new path reads some rows otherwise alone, nats.
    read_adapter: the fingerprint of `adapter`, where the reference was read with it.
    seconds: that it may take for tokens beyond the golden's.   is_late: the time that all sites may
    take is over.   made: these.   cases: its goldens.
    numbers: cases of which nothing but numbers differs, the old side and the new one.
    other_weight: a tensor of the checkpoint that the new path's vLLM does not run.
    """

    site: str
    backend: str
    path: str
    model: Row
    steps: Steps
    adapters: tuple[str, ...] = ()
    adapter: str = ""
    rows: list[TokenRow] = field(default_factory=list)
    places: dict[tuple[str, int], int] = field(default_factory=dict)
    new: list[Scored] = field(default_factory=list)
    moved: tuple[str | None, Row] | None = None
    why: str = ""
    here: Collection[str] = ()
    truth: list[Scored] = field(default_factory=list)
    old: list[Scored] = field(default_factory=list)
    apart: float = 0.0
    read_adapter: str = ""
    verdict: referee.Verdict | None = None
    against: str = ""
    readings: list[Reading] = field(default_factory=list)
    seconds: float = FURTHER_SECONDS
    is_late: bool = False
    made: Made = field(default_factory=Made)
    cases: set[str] = field(default_factory=set)
    numbers: Sequence[tuple[Case, Case]] = ()
    other_weight: str = ""

    @property
    def dtype(self) -> str:
        return str(self.model.get("dtype", "float32"))

    @property
    def source(self) -> tuple[str, str, str | None, str]:
        """What one reading of the reference has in common."""
        return self.path, self.dtype, self.model.get("attention"), self.adapter

    @property
    def read_so_far(self) -> list[TokenRow]:
        """What the reference reads: the golden's rows, and of those that were made some."""
        return [*self.rows, *self.made.rows[: self.made.used]]

    def steps_of(self, name: str) -> list[Step]:
        """Where a case's rows part."""
        return [step for (case, _), step in self.steps.items() if case == name]

    def fill(self, store: Store) -> None:
        """Take the rows of all the site's goldens. One that cannot be read says so in its turn."""
        cases, _ = store.read_all([self.site])
        known: set[Any] = set()
        for case in cases:
            for index, row in enumerate(case.rows):
                if self.is_of(case, index):
                    self.take((case.case, index), row, store, known)

    def is_of(self, case: Case, index: int) -> bool:
        dtype = model_of(case, index).get("dtype", "float32")
        adapters = adapters_of(case.rows[index])
        if (dtype, adapters) != (self.dtype, self.adapters):
            return False
        return checkpoint_of(case, index) == self.path

    def take(self, key: tuple[str, int], row: Row, store: Store, known: set[Any]) -> None:
        """Rows that are equal are not read again, unless they part."""
        step = self.steps.get(key)
        others = [] if step is None else [(step.position, token) for token in step.ids]
        read = readable_row(row, store, tuple(others))
        if read is None:
            return
        content = (read.ids, read.start)
        if step is None and content in known:
            return
        known.add(content)
        self.cases.add(key[0])
        self.places[key] = len(self.rows)
        self.rows.append(read)


def group_of(
    questions: Sequence[Question], store: Store, seconds: float = FURTHER_SECONDS
) -> Group:
    """questions: of one site, backend and checkpoint.   seconds: for tokens beyond the golden's."""
    first = questions[0]
    weights = first.weights
    steps: dict[tuple[str, int], Step] = {}
    for question in questions:
        for step in steps_of(question.old, question.new):
            steps[question.old.case, step.row] = step
    group = Group(
        first.old.site,
        first.backend,
        weights.path or "",
        model_of(first.old, first.place),
        steps,
        adapters_of(first.old.rows[first.place]),
        weights.adapter or "",
        why=NO_ADAPTER if weights.adapter is None else "",
        here={q.old.case for q in questions if is_recorded_here(q.old, store)},
        seconds=seconds,
        numbers=[(q.old, q.new) for q in questions if q.kind == "floats"],
    )
    group.fill(store)
    return group


# == The new path ==


def read_moved(group: Group, engine: Any, engines: Any) -> None:
    """What the engine that ran makes of the rows."""
    errors = sys.modules[type(engine).__module__].GenEngineError
    try:
        engine = readable(engine, engines, hooked=bool(group.adapter))
        adapter = adapter_named(engine, group.adapter) if group.adapter else None
        group.new = reading.read_engine(engine, group.rows, adapter=adapter)
        by_length = sorted(zip(group.rows, group.new), key=lambda pair: len(pair[0].ids))
        some = by_length[:2] + by_length[-1:]  # the short ones are padded beside the long one
        rows = [row for row, _ in some]
        alone = reading.read_engine(engine, rows, at_once=1, adapter=adapter)
        for (_, beside_others), scored in zip(some, alone):
            apart = reading.furthest(beside_others, scored)
            group.apart = max(group.apart, apart)
        read_further(group, engine_path(engine, adapter, errors))
        if engine.backend.name == "vllm" and group.backend == "vllm":
            group.other_weight = other_weight(engine, group.path)
    except (*CANNOT_READ, errors) as error:
        group.why = f"the moved path could not be read: {error}"


def read_further(group: Group, path: MovedPath) -> None:
    group.made = make_rows(group.rows, group.new, path, group.dtype, group.seconds)


def read_foreign(group: Group) -> None:
    """New code whose engine is not here, as its recording says that it was: of a script that has
    ended, or without gen_engine."""
    path, model = group.moved or (None, {})
    backend = model.get("backend") or "unknown"
    can_load = backend in ("hf", "vllm") and not model.get("quantization")
    if path is None or not can_load:
        lacks = f"its model ({backend}) cannot be loaded from its recording"
        group.why = f"no engine of the moved code is left to ask, and {lacks}"
        return
    dtype = str(model["dtype"])
    try:
        if backend == "vllm":
            read_by_vllm(group, path, dtype)
        else:
            read_by_transformers(group, path, dtype, model.get("attention"))
    except CANNOT_READ as error:
        group.why = f"the moved path could not be read: {error}"


def read_by_vllm(group: Group, path: str, dtype: str) -> None:
    if group.adapter:
        raise CannotJudge("its engine has ended, and adapters are not given to another one")
    with vllm_path(path, dtype) as moved:
        group.new = moved.read(group.rows)
        read_further(group, moved)


def read_by_transformers(group: Group, path: str, dtype: str, attention: str | None) -> None:
    with Reader(path, dtype, attention=attention, adapter=group.adapter) as reader:

        def read(rows: Sequence[TokenRow]) -> list[Scored]:
            return reader.read_as_old(rows, "moved code")

        group.new = read(group.rows)
        read_further(group, MovedPath(read, reader.tokenizer, reader.window))


# == The reference ==


def read_references(groups: Sequence[Group]) -> None:
    """Load each reference once. Call it when the engines of the new code are closed."""
    for group in groups:
        group.why = why_not_read(group)
        if not (group.new or group.why):
            read_foreign(group)
    ready = [group for group in groups if not group.why]
    for source in dict.fromkeys(group.source for group in ready):
        own = [group for group in ready if group.source == source]
        spent = sum(group.made.seconds for group in groups)
        for group in own:
            group.is_late = group.seconds * (MOST_SITES - 1) < spent
        read_groups(own)


def why_not_read(group: Group) -> str:
    if not group.path:
        return NO_CHECKPOINT
    if group.why:
        return group.why
    return "" if group.rows else NO_TOKENS


def read_groups(groups: Sequence[Group]) -> None:
    """Groups of one source, until each is decided, has no rows left, or its time is over."""
    path, dtype, attention, adapter = groups[0].source
    try:
        if groups[0].model.get("quantization"):
            raise CannotJudge(QUANTIZED)
        references = References(path, dtype, attention, adapter)
        seconds = read_rows(groups, references)
        while more := [group for group in groups if wants_more(group, seconds)]:
            seconds = read_rows(more, references)
    except CANNOT_READ as error:
        for group in groups:
            group.why = str(error)
        return
    for group in groups:
        note_made(group)


def read_rows(groups: Sequence[Group], references: References) -> float:
    """What the reference makes of the groups' rows, and their verdicts.   Returns the seconds that
    a row took."""
    rows: list[TokenRow] = []
    for group in groups:
        rows += group.read_so_far
    began = time.monotonic()
    read = references.read(rows)
    spent = time.monotonic() - began
    start = 0
    for group in groups:
        used = group.read_so_far
        stop = start + len(used)
        own = read.part(start, stop)
        start = stop
        count = len(group.rows)
        new = [*group.new, *group.made.new[: group.made.used]]
        group.truth = own.truth[:count]
        group.old = own.old[:count]
        group.read_adapter = read.adapter
        group.readings = reading.readings(own, new, used)
        group.against = own.source.note
        exact = own.source.exact
        group.verdict = referee.judge(group.readings, dtype=group.dtype, exact=exact)
        if group.made.used:
            group.made.seconds += spent
    return spent / max(1, len(rows))


def wants_more(group: Group, seconds: float) -> bool:
    """Choose the next of the rows that were made, as many as decide.   seconds: a row takes."""
    found = group.verdict
    made = group.made
    if found is None or is_settled(found) or made.used == len(made.rows):
        return False
    left = 0.0 if group.is_late else group.seconds - made.seconds
    affordable = int(left / seconds) if seconds > 0 else len(made.rows)
    wanted = found.more * SPARE if found.outcome == "cannot tell" else found.noise.tokens
    count = 0
    for scored in made.new[made.used :]:
        if wanted <= 0:
            break
        wanted -= unsure_tokens(scored)
        count += 1
    count = min(max(count, FEWEST_MADE), affordable, len(made.rows) - made.used)
    if count < min(FEWEST_MADE, len(made.rows) - made.used):
        return False
    made.used += count
    return True


def is_settled(found: referee.Verdict) -> bool:
    """Whether further tokens would not change a verdict. Few that hold say nothing of a fault of
    one percent, which shows along a probe only."""
    if found.outcome == "holds" and found.noise.tokens < SETTLED_TOKENS:
        return found.is_sure
    return found.outcome != "cannot tell"


# == What is said of further tokens ==


def note_made(group: Group) -> None:
    """Say what was read beyond the golden, and where that was too little, what is missing."""
    found = group.verdict
    if found is None:
        return
    beyond = str(group.made)
    missing = missing_of(group, found) if found.outcome == "cannot tell" else ""
    group.verdict = dataclasses.replace(found, beyond=beyond, missing=missing)


def missing_of(group: Group, found: referee.Verdict) -> str:
    """What decides it, in calls that can be recorded, and what was tried."""
    each = max(1.0, sum(map(unsure_tokens, group.new)) / max(1, len(group.cases)))
    calls = math.ceil(found.more / each)
    decides = f"{found.more:,} more answer tokens decide it: record about {calls:,} more calls"
    made = group.made
    if made.why:
        return f"{decides}; {made.why}"
    longer = math.ceil(group.seconds * 3)
    if group.is_late:
        over = f"the {MOST_SITES * group.seconds:.0f} s for further tokens of all sites were over"
        return f"{decides}, give `--numerics-seconds {longer}`, or check this site alone; {over}"
    if made.used < len(made.rows) or made.seconds >= group.seconds * 0.9:
        over = f"the {group.seconds:.0f} s for further tokens were over"
        return f"{decides}, or give `--numerics-seconds {longer}`; {over}"
    return f"{decides}; all {len(made.rows)} rows that were made say no more"


# == Partings ==


def parting_at(group: Group, place: int, step: Step) -> Parting:
    """The candidates of a step on three paths, penalised as they were chosen. Raises
    CannotJudge."""
    truth = group.truth[place]
    paths = (truth, group.old[place], group.new[place])
    parting = parting_of(*paths)
    if step.penalty == 1:
        return parting
    pairs = (parting.reference, parting.old, parting.new)
    penalised_pairs = []
    for pair, path in zip(pairs, paths):
        penalised_pairs.append(penalised_pair(pair, path, truth, step))
    return Parting(*penalised_pairs)


def penalised_pair(
    pair: tuple[float, float], path: Scored, truth: Scored, step: Step
) -> tuple[float, float]:
    """truth: whose normalizers stand for those that a path does not report."""
    values = []
    for k, token in enumerate(step.ids):
        value = pair[k]
        if token in step.seen:
            normalizer = path.normalizers[k]
            if normalizer is None:
                normalizer = truth.normalizers[k] or 0.0
            value = penalised(value, normalizer, step.penalty)
        values.append(value)
    return values[0], values[1]
