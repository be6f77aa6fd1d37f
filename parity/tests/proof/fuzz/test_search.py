"""Generated calls are the same from the same seed, and what fails is shrunk."""

from __future__ import annotations

from parity.proof.fuzz.laws import Failure
from parity.proof.fuzz.search import Found, Search
from parity.proof.fuzz.values import Case


def test_search_from_the_same_seed_asks_the_same_calls() -> None:
    asked: list[list[str]] = []
    for seed in (1, 1, 2):
        calls: list[str] = []

        def ask(case: Case, calls: list[str] = calls) -> None:
            calls.append(case.dumps())

        assert list(Search(ask).batch(seed)) == []
        asked.append(calls)
    assert asked[0] == asked[1] != asked[2]
    assert len(asked[0]) > 20


def test_search_that_finds_a_failure_shrinks_it() -> None:
    def ask(case: Case) -> Failure | None:
        is_bad = any(isinstance(one, dict) and one.get("seed") for one in case.requests)
        return Failure("raw error", "a seed", case.dumps()) if is_bad else None

    search = Search(ask)
    found: list[Found] = []
    for seed in range(9):
        found += search.batch(seed)
    [only] = found  # one failure is shrunk once
    [request] = only.case.requests
    assert len(request) == 2 and request["seed"]
    assert only.case.options == {"max_new_tokens": 6}
    assert only.failure.detail == only.case.dumps()


def test_search_with_two_failures_in_a_batch_reports_both() -> None:
    def ask(case: Case) -> Failure | None:
        return Failure("raw error", case.verb, "")

    assert {found.failure.where for found in Search(ask).batch(1)} == {"text", "vlm"}
