"""Short ways into the judge's inner parts, for the tests: two cases in, what they say out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import Cause, Difference
from parity.judge.comparison import Comparison
from parity.judge.inquiry import Inquiry, Rerun
from parity.judge.judge import TABLE, Findings
from parity.judge.stages.stage import NO_TOOLS, Broken, Decoder, Tools


def differences(old: Case, new: Case) -> tuple[Difference, ...]:
    return Comparison(old, new).differences


def named(old: Case, new: Case, found: Iterable[Difference]) -> list[tuple[str, Difference]]:
    return Comparison(old, new, found=tuple(found)).named


def broken_by_new(old: Case, new: Case, tools: Tools) -> list[Broken]:
    return Comparison(old, new, tools).broken


def inquiry_of(
    old: Case,
    new: Case,
    found: Sequence[Difference] | None = None,
    decode: Decoder | None = None,
    rerun: Rerun | None = None,
    tools: Tools = NO_TOOLS,
) -> Inquiry:
    """found: the differences, whatever a comparison would find."""
    tools = replace(tools, decode=decode or tools.decode)
    given = None if found is None else tuple(found)
    return Inquiry(Comparison(old, new, tools, found=given), rerun)


def cause_of(inquiry: Inquiry) -> Cause | None:
    """What the judge's table says of other values, but for samples; None where nothing but
    arithmetic is left."""
    follow: Any = SimpleNamespace(judge=lambda *_, **__: ("SAME-SETTINGS", None, ()), backend="hf")
    findings = Findings(inquiry, follow, None, list)
    for line in TABLE:
        judged = line(findings)
        if judged is not None:
            return judged[1]
    return None
