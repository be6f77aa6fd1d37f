"""Two paths, one verdict: prompts first, then numerics, each model by itself.

found = compare(a, b, model, prompts)
found.sentence      one line
found.outcome       "equal", "rounding", "differs", "cannot tell"
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parity.companions.rollout import Mismatch, mismatch_of
from parity.diff.files import file_notes
from parity.diff.instruments import (
    Answers,
    CannotJudge,
    Given,
    Judged,
    Scored,
    judge_paths,
    likeness,
    parting_steps,
    read_truth,
    rows_between,
)
from parity.diff.path import EnginePath
from parity.diff.prompts import Prompt
from parity.diff.worker import Job, visit

Outcome = Literal["equal", "rounding", "differs", "cannot tell"]
STEPS = 4  # visits to A, B, A again, and the reference


@dataclass(frozen=True, slots=True)
class Comparison:
    """outcome, sentence: the verdict.   partings: of each row, the first step at which it parts.
    mismatch: B's log-probabilities of answers against A's; None where the prompts differ.
    worst: the text around the token that moved most, that token in [[ ]].   deltas: B - A, nats.
    proof: the referee's words, "" where nothing was to be judged.
    notes: what differs between the checkpoints' files; kernels in use by A or B that are known to
        be biased.
    """

    outcome: Outcome
    sentence: str
    partings: tuple[int | None, ...] = ()
    mismatch: Mismatch | None = None
    worst: str = ""
    deltas: tuple[float, ...] = ()
    proof: str = ""
    notes: tuple[str, ...] = ()


class Progress:
    """A line on stderr for each visit, with the time that is left by those before."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0
        self.began = time.monotonic()

    def step(self, what: str) -> None:
        spent = time.monotonic() - self.began
        left = spent / self.done * (self.steps - self.done) if self.done else 0.0
        bar = "#" * self.done + "." * (self.steps - self.done)
        about = f", about {left:.0f} s left" if self.done else ""
        print(f"[{bar}] {what} ({spent:.0f} s{about})", file=sys.stderr, flush=True)
        self.done += 1


def compare(
    a: EnginePath, b: EnginePath, model: str, prompts: Sequence[Prompt], tokens: int = 48
) -> Comparison:
    """Never two models at once."""
    progress = Progress(STEPS)
    files = file_notes(a.model or model, b.model or model)
    for note in files:  # before minutes of generating
        print(f"note: {note}", file=sys.stderr, flush=True)
    progress.step(f"{a.text} answers")
    began = visit(Job(a, model, prompts, tokens))
    first = began.answers
    progress.step(f"{b.text} answers, and reads A's answers")
    other = visit(Job(b, model, prompts, tokens, first))
    if why := prompt_difference(first, other.answers):
        sentence = f"differs before the model: {why}; numerics were not compared"
        return Comparison("differs", sentence, notes=files)
    progress.step(f"{a.text} reads B's answers")
    again = visit(Job(a, model, prompts, tokens, first, other.answers))
    rows = rows_between(first, other.answers)
    read = again.scores, other.scores
    folder = a.model or model
    steps = tuple(parting_steps(first, other.answers))
    mismatch, deltas = measure(rows, *read)
    worst = context_of(folder, rows, mismatch)
    if again.scores == other.scores and not any(step is not None for step in steps):
        sentence = f"equal: {mismatch.tokens} tokens, bit by bit"
        return Comparison("equal", sentence, steps, mismatch, worst, deltas, notes=files)
    progress.step("float32 reads all answers, as they are and with 1 % faults")
    outcome, sentence, proof = judge(a, folder, first, other.answers, rows, read)
    known = began.notes, other.notes
    notes = files + dtypes_of(first, other.answers)
    if outcome != "rounding":
        notes += notes_of((a, b), known)
    return Comparison(outcome, sentence, steps, mismatch, worst, deltas, proof, notes)


def dtypes_of(a: Answers, b: Answers) -> tuple[str, ...]:
    if a.dtype == b.dtype:
        return ()
    return (f"A computes in {a.dtype}, B in {b.dtype}; give both one to see whether more differs",)


def notes_of(paths: Sequence[EnginePath], known: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What is known of the kernels of one path only: both would have it in common."""
    found = []
    for path, own, others in zip(paths, known, reversed(known)):
        found += [f"{path.text}: {note}" for note in own if note not in others]
    return tuple(found)


def prompt_difference(a: Answers, b: Answers) -> str:
    """What differs before the model's first step, or ""."""
    for k, (old, new) in enumerate(zip(a.texts, b.texts)):
        if old != new:
            return f"another chat template (prompt {k}: {shown(old, new)})"
    for k, (before, now) in enumerate(zip(a.prompts, b.prompts)):
        if before != now:
            return f"another tokenizer (prompt {k} is {len(before)} ids and {len(now)})"
    if a.eos != b.eos:
        return f"another end of text (ids {list(a.eos)} and {list(b.eos)})"
    return ""


def shown(old: str, new: str) -> str:
    """Both texts from a little before the first character that differs."""
    shortest = min(len(old), len(new))
    first = next((k for k in range(shortest) if old[k] != new[k]), shortest)
    start = max(0, first - 10)
    return f"{old[start : first + 20]!r} and {new[start : first + 20]!r}"


def measure(
    rows: Sequence[Given], old: Sequence[Scored], new: Sequence[Scored]
) -> tuple[Mismatch, tuple[float, ...]]:
    """Over answers' tokens that both read; positions count from the answer's first."""
    before: list[list[float]] = []
    after: list[list[float]] = []
    for row, one, other in zip(rows, old, new):
        skip = row.answer - row.start
        pairs = zip(one.logprobs[skip:], other.logprobs[skip:])
        both = [(x, y) for x, y in pairs if x is not None and y is not None]
        before.append([x for x, _ in both])
        after.append([y for _, y in both])
    gaps = [y - x for some, others in zip(before, after) for x, y in zip(some, others)]
    return mismatch_of(before, after), tuple(gaps)


def context_of(folder: str, rows: Sequence[Given], found: Mismatch) -> str:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    row = rows[found.worst_row]
    place = row.answer + found.worst_step
    pieces = (
        row.ids[max(0, place - 12) : place],
        row.ids[place : place + 1],
        row.ids[place + 1 :][:4],
    )
    before, token, after = (tokenizer.decode(list(ids)) for ids in pieces)
    return f"{before}[[{token}]]{after}"


def judge(
    a: EnginePath,
    folder: str,
    first: Answers,
    other: Answers,
    rows: Sequence[Given],
    read: tuple[list[Scored], list[Scored]],
) -> tuple[Outcome, str, str]:
    try:
        truth = read_truth(folder, first.dtype, rows, a.adapter)
    except CannotJudge as error:
        return "cannot tell", f"cannot tell: {error}", ""
    found = judge_paths(first, other, rows, read, truth)
    if found.outcome == "rounding":
        seen = f"a fault of {found.sees:.1e} nats or more would have been seen"
        return (
            "rounding",
            f"the same within rounding ({found.rounding:.1e} nats; {seen})",
            found.said,
        )
    if found.outcome == "cannot tell":
        return "cannot tell", f"cannot tell: {found.open}", found.said
    like = found.like
    if found.is_shift and truth.dtype == "float32":
        like = likeness(folder, rows, truth, read, like, a.adapter)
    if not like and first.dtype != other.dtype:
        like = f"{first.dtype} and {other.dtype} do"
    named = f", like {like}" if like else f": {reason(found)}"
    return "differs", f"differs{named}", found.said


def reason(found: Judged) -> str:
    return "like no fault that has a name here" if found.is_shift else found.said
