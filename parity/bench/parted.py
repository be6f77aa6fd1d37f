"""Where the answers of two contenders part: is it rounding? The referee reads them (parity.diff.partings).

    question_of(works, rows, new, old)      for each two whose answers part at some load; while engines are loaded
    read_new(question, engine)              the baseline's answers, forced through the contender's engine
    judge_questions(asked, path, dtype)     when every engine is closed: plain transformers, also in float32

A workload's loads are judged together. Nothing is read where all answers are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parity.bench import workloads
from parity.bench.values import DIFFERENT, PARTED, ROUNDING, UNREAD, Measured, Verdict
from parity.bench.workloads import Work, engine_module
from parity.diff import partings
from parity.diff.partings import Pair
from parity.judge.numerics import reading

Key = tuple[str, str, str]  # workload, contender, baseline
NAMES: Mapping[partings.PairsOutcome, str] = {"rounding": ROUNDING, "fault": DIFFERENT, "cannot tell": PARTED}
FEWEST_ROWS = 2  # of which anything can be said


@dataclass(slots=True)
class Question:
    """Two contenders whose answers part.   pairs: the baseline's answers are the old ones; those that are read.
    of: how many there are.   rows: what is read.   new: as the contender's engine reads them.   why_not: why that
    could not be read."""

    key: Key
    pairs: list[Pair]
    of: int
    rows: list[reading.TokenRow] = field(default_factory=list)
    new: list[reading.Scored] = field(default_factory=list)
    why_not: str = ""

    @property
    def contender(self) -> str:
        return self.key[1]

    def verdict(self, name: str, why: str) -> Verdict:
        parted = sum(pair.step is not None for pair in self.pairs)
        return Verdict(name, len(self.pairs) - parted, len(self.pairs), why)


def pairs_of(work: Work, contender: Measured, against: Measured, placeholder: int | None) -> Iterator[Pair]:
    """placeholder: the id of image tokens. Raises CannotJudge where a contender does not say what it was given."""
    for request, new, old in zip(work.requests, contender.answers, against.answers):
        if old.prompt_ids is None:
            raise reading.CannotJudge(f"{against.contender} does not say which token ids it was given")
        images = tuple(engine_module().load_image(image) for image in workloads.images_of(request))
        yield Pair(old.prompt_ids, old.ids, new.ids, images, placeholder if images else None)


def pairs_to_read(numbered: Sequence[tuple[int, Pair]], tokens: int) -> list[Pair]:
    """Of pairs with the number of their request, those that are worth reading first, as far as so many tokens go: where
    answers part, before others; of each request one, before a second."""
    chosen: list[Pair] = []
    numbers: set[int] = set()
    seconds: list[Pair] = []
    for number, pair in sorted(numbered, key=lambda item: item[1].step is None):
        (seconds if number in numbers else chosen).append(pair)
        numbers.add(number)
    read: list[Pair] = []
    for pair in chosen + seconds:
        tokens -= len(pair.prompt) + len(pair.old)
        if tokens < 0 and len(read) >= FEWEST_ROWS:
            break
        read.append(pair)
    return read


def question_of(
    works: Sequence[Work], sides: Sequence[tuple[Measured, Measured]], placeholder: int | None, tokens: int
) -> Question:
    """works: one workload at each load.   sides: contender and baseline there.   tokens: that may be read."""
    contender, against = sides[0]
    key = (works[0].name, contender.contender, against.contender)
    try:
        numbered = [
            numbered
            for work, (new, old) in zip(works, sides)
            for numbered in enumerate(pairs_of(work, new, old, placeholder))
        ]
    except reading.CannotJudge as error:
        return Question(key, [], 0, why_not=str(error))
    pairs = pairs_to_read(numbered, tokens)
    return Question(key, pairs, len(numbered), [partings.given_pair(pair) for pair in pairs])


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
        verdict = question.verdict(NAMES[judged.outcome], judged.why)
        found[question.key] = replace(verdict, why=f"{len(question.pairs)} of {question.of} answers read; {judged.why}")
        start = stop
    return found
