"""Goldens that a stranger emptied: equal values say nothing where nothing was compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Case, Store
from parity.judge.case import Judge
from parity.record.changing import as_recorded

from .test_company import FIRST, SECOND, case

ANSWER = "The capital of France is Paris."
ROW = {**FIRST, "text": ANSWER, "decode": {"ids": "ended"}}
NEW = case(ROW, value={"answer": ANSWER, "id": "run 7"})


def verdict(old: Case, new: Case, folder: Path) -> tuple[str, str, str]:
    """(verdict, cause, its sentence) of a golden against what the new code gives."""
    judge = Judge(Store(folder), "hf", lambda *_: None)
    outcome = judge.outcome(old, as_recorded(old, new))
    cause = outcome.cause
    return outcome.verdict, cause.name if cause else "", cause.sentence if cause else ""


def part(*at: str | int, before: str | None = "", after: str = "") -> dict[str, Any]:
    texts = {} if before is None else {"before": before, "after": after}
    return {"at": list(at), **texts}


HOLLOW = {"prompt_ids": [], "output_ids": [], "scored": True}


@pytest.mark.parametrize("rows", [(), (HOLLOW,), (HOLLOW, HOLLOW)])
def test_a_golden_without_a_model_call_is_latent_where_the_new_code_makes_one(rows: Any, tmp_path: Path) -> None:
    """`"rows": []` passed as TEXT-IDENTICAL."""
    found, name, said = verdict(replace(NEW, rows=rows), NEW, tmp_path)
    assert (found, name) == ("LATENT", "golden.empty")
    assert "the golden has no model call to compare; the new code makes 1 rows" in said
    nothing = replace(NEW, rows=())
    assert verdict(nothing, nothing, tmp_path)[0] == "IDENTICAL", "a function that asks no model"


@pytest.mark.parametrize(
    ("value", "changing", "says"),
    [
        (ANSWER, [part()], "nothing of the value is compared"),
        (ANSWER, [part(before=" ", after=".")], "nothing of the value is compared"),
        ([ANSWER, 0.5], [part(0), part(1, before=None)], "nothing of the value is compared"),
        ({"answer": ANSWER, "id": "x"}, [part("answer")], f"not compared: '{ANSWER}'"),
        ({"answer": f"It: {ANSWER}", "id": "x"}, [part("answer", before="It: ")], f"not compared: '{ANSWER}'"),
    ],
)
def test_changing_over_a_value_or_an_answer_is_latent(value: Any, changing: Any, says: str, tmp_path: Path) -> None:
    old = replace(NEW, value=value, changing=tuple(changing))
    found, name, said = verdict(old, replace(NEW, value=value), tmp_path)
    assert (found, name) == ("LATENT", "golden.empty") and says in said


@pytest.mark.parametrize(
    ("value", "again", "changing"),
    [
        ({"answer": ANSWER, "id": "run 7"}, {"answer": ANSWER, "id": "run 8"}, [part("id", before="run ")]),
        (f"{ANSWER} at 7", f"{ANSWER} at 8", [part(before=f"{ANSWER} at ")]),
        ([ANSWER, 1.5], [ANSWER, 2.5], [part(1, before=None)]),
    ],
)
def test_a_time_or_a_name_that_changes_passes(value: Any, again: Any, changing: Any, tmp_path: Path) -> None:
    old = replace(NEW, value=value, changing=tuple(changing))
    assert verdict(old, replace(NEW, value=again), tmp_path)[0] == "IDENTICAL"


def test_what_was_raised_is_a_value(tmp_path: Path) -> None:
    old = replace(NEW, value=None, raised="ValueError: at 7", changing=(part("raised"),))
    new = replace(old, raised="KeyError: other", changing=())
    assert verdict(old, new, tmp_path)[:2] == ("LATENT", "golden.empty")


def test_another_answer_is_drift_whatever_is_marked(tmp_path: Path) -> None:
    old = replace(NEW, rows=())
    assert verdict(old, replace(NEW, value={"answer": "Rome.", "id": "run 7"}), tmp_path)[0] == "DRIFT"
    other = case(SECOND, value=NEW.value)
    assert verdict(replace(NEW, changing=(part("answer"),)), other, tmp_path)[0] != "IDENTICAL"
