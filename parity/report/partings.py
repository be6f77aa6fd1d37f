"""Where two recordings of one case part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parity.goldens.causes import stage_of
from parity.goldens.safe_text import printable
from parity.goldens.verdict import Outcome, brief, first_divergence
from parity.judge.align import paired
from parity.judge.row import is_drawn, parting_step
from parity.judge.stages.prompt import has_whole_text
from parity.judge.values import first_parting
from parity.report.words import Row

AROUND = 36  # characters shown on each side of the place where two texts part
IDS_AROUND = 6


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts, or two lists of ids, part. what: "value, from character 3 on", "output ids
    of row 2, from 7 on".

    old, new: each in two pieces, the common part before the place and what follows.
    """

    what: str
    old: tuple[str, str]
    new: tuple[str, str]


def text_parting(what: str, old: str, new: str) -> Parting | None:
    place = first_divergence(old, new)
    if place is None:
        return None
    before = ("…" if place > AROUND else "") + printable(old[max(0, place - AROUND) : place])

    def after(text: str) -> str:
        rest = printable(text[place : place + AROUND])
        return (rest + "…" if len(text) > place + AROUND else rest) or "(end)"

    return Parting(f"{what}, from character {place} on", (before, after(old)), (before, after(new)))


def ids_parting(what: str, old: Sequence[int], new: Sequence[int]) -> Parting | None:
    place = first_divergence(old, new)
    if place is None:
        return None
    shown = [str(i) for i in old[max(0, place - IDS_AROUND) : place]]
    before = " ".join([*(["…"] if place > IDS_AROUND else []), *shown, ""])

    def after(ids: Sequence[int]) -> str:
        rest = [str(i) for i in ids[place : place + IDS_AROUND]]
        return " ".join(rest + (["…"] if len(ids) > place + IDS_AROUND else [])) or "(end)"

    return Parting(f"{what}, from {place} on", (before, after(old)), (before, after(new)))


def parting(what: str, old: Any, new: Any) -> Parting | None:
    """The first place where two values part, floats by more than rounding."""
    found = first_parting(old, new)
    if found is None:
        return None
    path, a, b = found
    what += "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    if isinstance(a, str) and isinstance(b, str):
        return text_parting(what, a, b)
    return Parting(what, ("", printable(brief(a))), ("", printable(brief(b))))


def row_partings(number: int, old: Row, new: Row) -> Iterator[Parting | None]:
    prompts = old.get("prompt_text"), new.get("prompt_text")
    ids = old.get("prompt_ids", []), new.get("prompt_ids", [])
    if None in prompts or prompts[0] == prompts[1] or not has_whole_text(old, new):
        yield ids_parting(f"prompt ids of row {number}", *ids)
    else:
        yield text_parting(f"prompt of row {number}", *map(str, prompts))
    yield ids_parting(
        f"output ids of row {number}", old.get("output_ids", []), new.get("output_ids", [])
    )


def pairs_of(outcome: Outcome) -> list[tuple[Row, Row]]:
    """Rows side by side, numbered as the differences are."""
    if outcome.old is None or outcome.new is None:
        return []
    return paired(outcome.old.get("rows", ()), outcome.new.get("rows", ()))


def is_other_answer(old: Row, new: Row) -> bool:
    """Whether other ids were chosen; of what is drawn, also where one ends before the other."""
    ids = old["output_ids"], new["output_ids"]
    return ids[0] != ids[1] and (is_drawn(old) or parting_step(*ids) is not None)


def partings(outcome: Outcome) -> list[Parting]:
    """The first place inside the rows, and the first inside the value. Of a cause behind decoding
    the value alone; none where an answer is another one, too, which the value may show first: the
    cause's sentence says what was made of the golden's own ids."""
    if outcome.old is None or outcome.new is None:
        return []
    pairs = pairs_of(outcome)
    found = [parting("value", outcome.old.get("value"), outcome.new.get("value"))]
    raised = outcome.old.get("raised"), outcome.new.get("raised")
    if None not in raised:
        found = [text_parting("exception", *map(str, raised))]
    if outcome.cause is None or stage_of(outcome.cause.name) not in ("value", "decode"):
        rows = (p for number, pair in enumerate(pairs) for p in row_partings(number, *pair) if p)
        found.insert(0, next(rows, None))
    elif any(is_other_answer(*pair) for pair in pairs):
        return []
    return [one for one in found if one]
