"""Acceptances bind a value: the settings that changed, what the new code gives, and a day."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.acceptance import Accepted, acceptance_of, idle_acceptances, with_acceptances
from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Cause, Difference, Outcome
from parity.record.inventory import idle_entries

DAY = datetime.date(2030, 1, 31)


def shorter(most: int = 16, ids: tuple[int, ...] = (4, 5), value: Any = "de") -> Outcome:
    """A budget of 64 tokens that became another one."""
    differences = (
        Difference("stop", "max_new_tokens", 64, most, 0),
        Difference("output_ids", "", [4, 5, 6], [*ids], 0, counts=False),
        Difference("value", "", "def", value),
    )
    new = {"rows": [{"output_ids": [*ids]}], "value": value}
    cause = Cause("stop.max_new_tokens", "confirmed", "another number of tokens is allowed")
    return Outcome("s", "c", "hf", "DRIFT", differences, cause, {}, new)


ENTRY = acceptance_of(shorter(), "sixteen are enough", DAY.isoformat())


def judged(outcome: Outcome, entry: Accepted = ENTRY, day: datetime.date = DAY) -> tuple[str, tuple[str, ...]]:
    [final], unused = with_acceptances([outcome], [entry], day)
    return final.verdict, unused


def test_an_acceptance_names_what_changed() -> None:
    assert ENTRY.changes == ("stop.max_new_tokens: 64 -> 16",)
    [final], unused = with_acceptances([shorter()], [ENTRY], DAY)
    assert (final.verdict, final.accepted, unused) == ("ACCEPTED", "sixteen are enough (until 2030-01-31)", ())


def test_what_a_release_does_not_show_of_it_takes_nothing_away() -> None:
    """Positions of images are seen on some releases only; the rest is what was accepted."""
    both = replace(shorter(), differences=(*shorter().differences, Difference("model", "dtype", "a", "b", 0)))
    entry = acceptance_of(both, "wanted", DAY.isoformat())
    assert judged(both, entry) == judged(shorter(), entry) == ("ACCEPTED", ())


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (shorter(2, (4,), "d"), "is for stop.max_new_tokens: 64 -> 16, and this is stop.max_new_tokens: 64 -> 2"),
        (shorter(ids=(4, 9), value="dx"), "gives another value"),
        (shorter(value="garbage"), "gives another value"),
        (replace(shorter(), cause=Cause("stop.end_ids", "confirmed", "")), "and this is stop.end_ids"),
        (replace(shorter(), differences=(*shorter().differences, Difference("decode", "x", 1, 2, 0))), ""),
        (replace(shorter(), differences=(*shorter().differences, Difference("model", "dtype", "a", "b", 0))), "model"),
    ],
)
def test_another_value_voids_it(outcome: Outcome, why: str) -> None:
    [final], unused = with_acceptances([outcome], [ENTRY], DAY)
    assert final.verdict == ("DRIFT" if why else "ACCEPTED")
    assert why in "".join(unused) and why in "".join(final.notes)


def test_it_ends_on_its_day_and_is_for_one_backend() -> None:
    assert judged(shorter(), day=DAY + datetime.timedelta(1))[0] == "DRIFT"
    assert judged(replace(shorter(), backend="vllm")) == ("DRIFT", ())
    assert judged(replace(shorter(), verdict="ERROR"))[0] == "ERROR"


def test_rounding_of_numbers_does_not_void_it() -> None:
    entry = acceptance_of(shorter(value=[-1.23456]), "r", DAY.isoformat())
    assert judged(shorter(value=[-1.23457]), entry)[0] == "ACCEPTED"
    assert judged(shorter(value=[-1.3]), entry)[0] == "DRIFT"


@pytest.mark.parametrize(
    ("accepted", "now"), [(0.946, 0.954), (101.0, 104.0), (1e-4, 2e-4), ([0.5] * 50 + [0.946], [0.5] * 50 + [0.954])]
)
def test_an_acceptance_of_a_number_covers_that_number_only(accepted: Any, now: Any) -> None:
    entry = acceptance_of(shorter(value=accepted), "r", DAY.isoformat())
    assert judged(shorter(value=accepted), entry) == ("ACCEPTED", ())
    verdict, [unused] = judged(shorter(value=now), entry)
    assert verdict == "DRIFT" and "gives another value" in unused


def with_old(value: Any) -> Outcome:
    return replace(shorter(), old={"rows": [], "value": value, "raised": None})


def test_an_acceptance_covers_a_change_from_the_recorded_value_only() -> None:
    entry = acceptance_of(with_old(0.946), "r", DAY.isoformat())
    assert judged(with_old(0.946), entry) == ("ACCEPTED", ())
    verdict, [unused] = judged(with_old(0.954), entry)
    assert verdict == "DRIFT" and "its golden was recorded again" in unused


def test_an_entry_of_an_older_release_covers_its_value_unless_that_holds_numbers() -> None:
    older = {name: entry for name, entry in ENTRY.to_json().items() if name not in ("was", "numbers")}
    assert judged(shorter(), Accepted.from_json(older))[0] == "ACCEPTED"
    assert judged(shorter(value=0.5), replace(ENTRY, was="", gives="5c2d8a1e4f60"))[0] == "DRIFT"


def test_an_acceptance_is_idle_when_its_golden_was_recorded_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    golden = Case("s", "c", "m:f", value=0.946)
    store.write(golden)
    entry = acceptance_of(replace(shorter(), old=store.read("s", "c").to_json()), "r", "2999-01-01")
    store.accept(entry)
    assert store.accepted() == [entry] and idle_entries(store) == []
    store.write(replace(golden, value=0.954))
    assert [why for _, why in idle_entries(store)] == ["its golden was recorded again, with another value"]


@pytest.mark.parametrize("now", [1.04, 1.011, 1.1])
def test_a_setting_is_exact(now: float) -> None:
    """1.01 and 1.04 are the same number in two digits, and no rounding makes one of the other."""

    def penalised(by: float) -> Outcome:
        difference = Difference("sampling", "repetition_penalty", 1.05, by, 0)
        return replace(shorter(), differences=(difference,), cause=Cause("sampling.leak", "confirmed", ""))

    entry = acceptance_of(penalised(1.01), "r", DAY.isoformat())
    assert entry.changes == ("sampling.repetition_penalty: 1.05 -> 1.01",)
    assert judged(penalised(1.01), entry)[0] == "ACCEPTED"
    assert judged(penalised(now), entry)[0] == "DRIFT"


def test_one_that_covers_nothing_is_unused() -> None:
    assert judged(replace(shorter(), verdict="IDENTICAL")) == (
        "IDENTICAL",
        ("s/c on hf: stop.max_new_tokens: the case is IDENTICAL",),
    )
    gone = [why for _, why in idle_acceptances([ENTRY], {"s": ["other"]}, DAY)]
    ended = [why for _, why in idle_acceptances([ENTRY], {"s": ["c"]}, DAY + datetime.timedelta(1))]
    assert gone == ["there is no such golden"] and ended == ["it ended on 2030-01-31"]
    assert list(idle_acceptances([ENTRY], {"s": ["c"]}, DAY)) == []


def test_a_store_keeps_one_for_each_case_and_backend(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.accept(ENTRY)
    store.accept(replace(ENTRY, reason="still wanted"))
    store.accept(replace(ENTRY, backend="vllm"))
    assert [(e.backend, e.reason) for e in store.accepted()] == [("hf", "still wanted"), ("vllm", "sixteen are enough")]
    assert store.accepted()[1] == replace(ENTRY, backend="vllm")


@pytest.mark.parametrize(
    ("change", "says"),
    [({"gives": None}, "binds no value"), ({"case": "*"}, "one case"), ({"until": "soon"}, "soon")],
)
def test_an_entry_that_binds_nothing_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    entry = {name: value for name, value in {**ENTRY.to_json(), **change}.items() if value is not None}
    (tmp_path / "accepted.json").write_text(json.dumps([entry]))
    with pytest.raises(GoldenError, match=says):
        Store(tmp_path).accepted()
