"""Short ways into the judge's inner parts, for the tests: two cases in, what they say out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import Difference
from parity.judge import followers as follow
from parity.judge.align import paired
from parity.judge.comparison import Comparison
from parity.judge.endings import Decoder
from parity.judge.inquiry import Inquiry, Rerun
from parity.judge.row import Row
from parity.judge.stages.order import OF_FIELD
from parity.judge.stages.stage import NO_TOOLS, Broken, Tools


def differences(old: Case, new: Case) -> tuple[Difference, ...]:
    return Comparison(old, new).differences


def suspects(old: Case, new: Case, found: Iterable[Difference]) -> list[tuple[str, Difference]]:
    return Comparison(old, new, found=tuple(found)).suspects


def cause_name(difference: Difference, old: Row, new: Row) -> str:
    return OF_FIELD[difference.stage].cause(difference, old, new, NO_TOOLS)


def broken_by_new(old: Case, new: Case, tools: Tools) -> list[Broken]:
    return Comparison(old, new, tools).broken


def followers(old: Sequence[Row], new: Sequence[Row]) -> dict[int, dict[int, tuple[str, str]]]:
    return follow.followers(paired(old, new))


def inquiry_of(
    old: Case,
    new: Case,
    found: Sequence[Difference] = (),
    decode: Decoder | None = None,
    rerun: Rerun | None = None,
    tools: Tools = NO_TOOLS,
    company: Callable[[], float | None] = lambda: None,
    **rest: Any,
) -> Inquiry:
    """found: the differences, whatever a comparison would find."""
    comparison = Comparison(old, new, replace(tools, decode=decode or tools.decode), found=tuple(found))
    return Inquiry(comparison, rerun, company=company, **rest)
