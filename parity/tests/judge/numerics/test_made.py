"""Tokens beyond a golden's: what is made of them, and how many are read until a site is decided."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity.judge.numerics import groups, made
from parity.judge.numerics.groups import Group, read_groups
from parity.judge.numerics.made import Made, MovedPath, engine_path, make_rows, prompts_of
from parity.judge.numerics.own_texts import own_rows
from parity.judge.numerics.reading import Reference, Scored, Source, TokenRow, token_row
from parity.tests.conftest import TEXT, Load

SIZE = 0.05  # nats of logit: rounding of both paths


def tokenizer(text: str) -> dict[str, list[int]]:
    return {"input_ids": [1 + ord(letter) % 500 for letter in text]}


def truth_of(row: TokenRow) -> Any:
    draw = np.random.default_rng(hash(row.ids) % 2**32)
    return -draw.exponential(2.0, len(row.ids) - row.start) - 0.1


def read_with(size: float, seed: int) -> Any:
    """A path whose errors have a size."""

    def read(rows: Sequence[TokenRow]) -> list[Scored]:
        found = []
        for row in rows:
            draw = np.random.default_rng((hash(row.ids) + seed) % 2**32)
            truth = truth_of(row)
            values = truth + draw.normal(0, size, len(truth)) * -np.expm1(truth)
            found.append(Scored(tuple(values.tolist())))
        return found

    return read


class References:
    """What plain transformers would read, without a model."""

    source = Source("float32", "reference")

    def __init__(self, *source: Any) -> None:
        self.rows = 0

    def read(self, rows: Sequence[TokenRow]) -> Reference:
        self.rows += len(rows)
        return Reference(self.source, read_with(0, 0)(rows), read_with(SIZE, 1)(rows), {})


def moved_path(size: float = SIZE) -> MovedPath:
    return MovedPath(read_with(size, 2), lambda: tokenizer, math.inf)


def small_site(size: float = SIZE, seconds: float = 60.0) -> Group:
    """Two short answers, of two calls."""
    rows = [token_row([5, 6, 7], [k, 8, 9]) for k in (1, 2)]
    group = Group("s", "vllm", "m", {"dtype": "bfloat16"}, {}, rows=rows, seconds=seconds)
    group.cases = {"a", "b"}
    path = moved_path(size)
    group.new = path.read(rows)
    group.made = make_rows(rows, group.new, path, "bfloat16", seconds)
    return group


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "References", References)


def test_site_of_two_calls_is_decided_by_rows_that_were_made() -> None:
    group = small_site()
    read_groups([group])
    assert group.verdict is not None and group.verdict.outcome == "holds"
    assert "of our own texts" in str(group.verdict)
    assert 0 < group.made.used < len(group.made.rows), "as many as decide, and no more"


def test_fault_as_large_as_rounding_is_seen_by_rows_that_were_made() -> None:
    group = small_site(2 * SIZE)
    read_groups([group])
    assert group.verdict is not None and group.verdict.outcome == "shifted"


def test_without_time_nothing_is_made_and_what_is_missing_is_said_in_calls() -> None:
    group = small_site(seconds=0)
    read_groups([group])
    assert group.made.rows == [] and group.verdict is not None
    said = str(group.verdict)
    assert said.startswith("cannot tell") and "more answer tokens decide it: record about" in said
    assert "more calls" in said and "--numerics-seconds" in said


def test_sites_whose_time_others_took_say_so() -> None:
    """It said: the -184 s for further tokens were over, give `--numerics-seconds -552`."""
    late, other = small_site(), small_site()
    other.made.seconds = 300.0
    groups.read_references([other, late])
    assert late.made.used == 0 and late.verdict is not None
    said = str(late.verdict)
    assert "give `--numerics-seconds 180`, or check this site alone; the 240 s for further tokens of all sites" in said


def test_time_that_is_over_stops_the_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 40))
    monkeypatch.setattr(groups, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    group = small_site()
    read_groups([group])
    assert group.verdict is not None and group.verdict.outcome == "cannot tell"
    assert "were over" in str(group.verdict)


def test_site_with_tokens_enough_makes_none() -> None:
    rows = [token_row([5], range(k, k + 60)) for k in range(100)]
    read = moved_path().read(rows)
    assert make_rows(rows, read, moved_path(), "bfloat16", 60.0).rows == []


def test_float32_needs_fewer_further_tokens() -> None:
    rows = [token_row([5], [6])]
    counts = [
        len(make_rows(rows, moved_path().read(rows), moved_path(), dtype, 60.0).rows)
        for dtype in ("float32", "bfloat16")
    ]
    assert 0 < counts[0] < counts[1]


def test_path_that_cannot_read_further_rows_says_why() -> None:
    def read(rows: Sequence[TokenRow]) -> list[Scored]:
        raise RuntimeError("out of memory")

    found = make_rows([], [], dataclasses.replace(moved_path(), read=read), "bfloat16", 60.0)
    assert found.rows == [] and "out of memory" in found.why


def test_goldens_prompts_are_continued_by_samples_first() -> None:
    asked: list[Any] = []

    class Engine:
        backend, checkpoint = SimpleNamespace(name="hf"), SimpleNamespace(window=2000)

        def tokenizer(self, text: str) -> Any:
            return tokenizer(text)

        def generate_text_batch(self, requests: Any, options: Any, **how: Any) -> list[Any]:
            asked.extend(requests)
            assert options["temperature"] == 1.0 and options["seed"] is not None
            return [SimpleNamespace(token_ids=[30 + k] * 4) for k in range(len(requests))]

        def score_batch(self, items: Any) -> list[Any]:
            return [SimpleNamespace(logprobs=[-1.0] * len(answer)) for _, answer in items]

    rows = [token_row([5, 6, 7], [1]), token_row([5, 6, 7], [2]), token_row([8], [3])]
    path = engine_path(Engine(), None, ValueError)
    found = make_rows(rows, path.read(rows), path, "bfloat16", 60.0)
    assert found.continued == 2 and [row.ids for row in found.rows[:2]] == [
        (8, 30, 30, 30, 30),
        (5, 6, 7, 31, 31, 31, 31),
    ]
    assert [row.start for row in found.rows[:2]] == [1, 3], "of the prompt nothing is read again"
    assert [tuple(one["prompt_token_ids"]) for one in asked] == [(8,), (5, 6, 7)]


def test_prompts_without_room_behind_them_are_not_continued() -> None:
    rows = [token_row(range(1, 90), [1]), token_row([4], [1])]
    assert [row.answer for row in prompts_of(rows, 100)] == [1]


def test_own_rows_are_the_same_each_time_and_no_longer_than_a_window() -> None:
    rows = list(own_rows(tokenizer, math.inf))
    assert rows == list(own_rows(tokenizer, math.inf)) and len(rows) > 60
    assert len({row.ids for row in rows}) == len(rows)
    assert max(len(row.ids) for row in own_rows(tokenizer, 10)) == 10


def test_made_says_what_the_reference_read() -> None:
    assert str(Made(continued=3, used=0)) == ""
    assert str(Made(continued=3, used=5, seconds=2.0)) == (
        "3 that continue its prompts and 2 of our own texts (in 2 s)"
    )


def test_unsure_tokens_are_those_that_show_rounding() -> None:
    assert made.unsure_tokens(Scored((-1.0, -1e-6, None, -3.0, -math.inf))) == 2


def test_loaded_engine_continues_prompts_and_reads_texts_of_our_own(shared: Load, backend: str) -> None:
    engine = shared(TEXT, backend)
    rows = [token_row([5, 6, 7], [8]), token_row([9, 10], [11])]
    path = engine_path(engine, None, ValueError)
    found = make_rows(rows, path.read(rows), path, "float32", 60.0)
    assert (found.why, found.continued) == ("", 2) and len(found.rows) > 2
    assert [len(row.ids) - row.answer for row in found.rows[:2]] == [made.NEW_TOKENS] * 2
    assert all(len(new.logprobs) == len(row.ids) - row.start for row, new in zip(found.rows, found.new))
