"""Where the answers of two contenders part: is it rounding? The referee reads them (parity.diff.partings).

    asked = questions_of(work, rows)        for each ratio whose answers part; while the engines are loaded
    read_new(question, engine)              the baseline's answers, forced through the contender's engine
    judge_questions(asked, path, dtype)     when every engine is closed: plain transformers, also in float32

Nothing is read where all answers are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.bench import workloads
from parity.bench.values import DIFFERENT, PARTED, ROUNDING, UNREAD, Measured, Verdict
from parity.bench.workloads import Work, engine_module
from parity.diff import partings
from parity.diff.partings import Pair
from parity.judge.numerics import reading

Key = tuple[str, str, str]  # workload, contender, baseline
NAMES: Mapping[partings.PairsOutcome, str] = {"rounding": ROUNDING, "fault": DIFFERENT, "cannot tell": PARTED}


@dataclass(slots=True)
class Question:
    """One ratio whose answers part.   pairs: the baseline's answers are the old ones.   rows: what is read of them.
    new: as the contender's engine reads them.   why_not: why that could not be read."""

    key: Key
    pairs: list[Pair]
    rows: list[reading.TokenRow] = field(default_factory=list)
    new: list[reading.Scored] = field(default_factory=list)
    why_not: str = ""

    @property
    def contender(self) -> str:
        return self.key[1]

    @property
    def parted(self) -> int:
        return sum(pair.step is not None for pair in self.pairs)

    def verdict(self, name: str, why: str) -> Verdict:
        return Verdict(name, len(self.pairs) - self.parted, len(self.pairs), why)


def pairs_of(work: Work, contender: Measured, against: Measured, placeholder: int | None) -> Iterator[Pair]:
    """placeholder: the id of image tokens. Raises CannotJudge where a contender does not say what it was given."""
    for request, new, old in zip(work.requests, contender.answers, against.answers):
        if old.prompt_ids is None:
            raise reading.CannotJudge(f"{against.contender} does not say which token ids it was given")
        images = tuple(engine_module().load_image(image) for image in workloads.pictures_of(request))
        yield Pair(old.prompt_ids, old.ids, new.ids, images, placeholder if images else None)


def question_of(work: Work, contender: Measured, against: Measured, placeholder: int | None) -> Question:
    key = (work.name, contender.contender, against.contender)
    try:
        pairs = list(pairs_of(work, contender, against, placeholder))
    except reading.CannotJudge as error:
        bare = [Pair((), old.ids, new.ids) for new, old in zip(contender.answers, against.answers)]
        return Question(key, bare, why_not=str(error))
    return Question(key, pairs, [partings.given_pair(pair) for pair in pairs])


def read_new(question: Question, engine: Any) -> None:
    """Force the baseline's answers through the contender's engine."""
    if question.why_not:
        return
    try:
        question.new = reading.read_engine(engine, question.rows, what=f"{question.contender} reads")
    except engine_module().GenEngineError as error:
        question.why_not = f"{question.contender} cannot score them: {error}"


def judge_questions(questions: Sequence[Question], path: str, dtype: str) -> dict[Key, Verdict]:
    """path, dtype: of the checkpoint. No engine may be loaded: plain transformers is, twice, one after the other."""
    read = [question for question in questions if question.new]
    rows = [row for question in read for row in question.rows]
    found = {q.key: q.verdict(UNREAD, q.why_not) for q in questions if not q.new}
    if not rows:
        return found
    try:
        reference = reading.read_reference(path, dtype, rows)
    except (reading.CannotJudge, ImportError, OSError, ValueError) as error:
        return {question.key: question.verdict(UNREAD, str(error)) for question in questions}
    start = 0
    for question in read:
        stop = start + len(question.rows)
        some = reference.part(start, stop)
        judged = partings.judge_pairs(question.pairs, question.rows, some, question.new, dtype=dtype)
        found[question.key] = question.verdict(NAMES[judged.outcome], judged.why)
        start = stop
    return found
