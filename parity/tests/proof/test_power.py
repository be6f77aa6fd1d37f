"""Six checks on the same rows: what each computes, and that a path with a fault is read as the fault says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.judge.numerics import referee
from parity.proof import power

Array = Any


def steps(*best: list[int], scores: list[float] | None = None) -> power.Read:
    """A path whose likeliest tokens at each step are these; with scores all the same."""
    values = scores or [-1.0 - rank for rank in range(len(best[0]))]
    return power.Read([-1.0] * len(best), np.array(best), np.array([values] * len(best)))


# == What others use ==

SIX = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("new", "scores", "far", "far_untied"),
    [
        ([1, 2, 3, 4, 5, 6], None, False, False),  # they do not part
        ([5, 2, 3, 4, 1, 6], None, False, False),  # each is among the other's five best
        ([6, 2, 3, 4, 5, 1], None, True, True),
        ([7, 2, 3, 4, 5, 1], None, True, True),  # not among the likeliest at all
        ([6, 2, 3, 4, 5, 1], [-1.0, -1.1, -1.1, -1.2, -1.2, -1.3], True, False),  # a near tie
    ],
)
def test_is_far_asks_for_each_token_among_the_others_best(
    new: list[int], scores: list[float] | None, far: bool, far_untied: bool
) -> None:
    old = steps(SIX, SIX, scores=scores)
    other = steps(SIX, new, scores=scores)
    assert power.is_far(old, other, 0.0) is far
    assert power.is_far(old, other, power.TIE) is far_untied


def test_is_far_looks_at_the_first_step_only_at_which_answers_part() -> None:
    assert not power.is_far(steps(SIX, SIX), steps([2, 1, 3, 4, 5, 6], [9, 8, 7, 12, 11, 10]), 0.0)


def test_margins_are_zero_for_the_same_scores_and_at_most_clip() -> None:
    noise = np.random.default_rng(0).gumbel(size=(2, 10))
    old = steps(SIX, SIX)
    assert power.margins(old, old, noise).tolist() == [0.0, 0.0]
    other = steps([9, 8, 7], [9, 8, 7])
    assert power.margins(old, other, noise).tolist() == [power.CLIP] * 2


def test_margins_say_by_how_much_the_noised_best_is_missed() -> None:
    noise = np.zeros((1, 10))
    old = steps([1, 2], scores=[-0.6, -0.8])
    new = steps([2, 1], scores=[-0.6, -0.8])
    assert power.margins(old, new, noise) == pytest.approx([0.2])


def test_changed_answers_count_steps_that_are_right_on_one_path_only() -> None:
    exact = steps([1], [2], [3], [4])
    old = steps([1], [2], [9], [9])
    new = steps([1], [9], [3], [8])
    assert power.changed_answers(exact, old, new) == (1, 1)


def test_least_spoilt_is_where_mcnemar_rejects() -> None:
    needed = power.least_spoilt(20)
    assert needed[6] == 7  # 1/64 is more than 1 %: never
    assert needed[7] == 7  # 1/128
    assert needed[20] == 16  # 0.6 %; 15 or more: 2.1 %


# == Power ==


@pytest.mark.parametrize(
    ("shares", "clean", "rows"),
    [
        ({2: 0.1, 4: 0.96, 8: 1.0}, {8: 0.01}, 4),
        ({2: 0.96, 4: 0.9, 8: 1.0}, {}, 8),
        ({2: 0.1, 4: 0.96, 8: 1.0}, {4: 0.02, 8: 0.02}, None),  # alarms of a clean path
        ({2: 0.1, 4: 0.5}, {}, None),
    ],
)
def test_rows_needed_is_where_the_fault_is_seen_and_a_clean_path_is_not(
    monkeypatch: pytest.MonkeyPatch, shares: dict[int, float], clean: dict[int, float], rows: int | None
) -> None:
    monkeypatch.setattr(power, "SIZES", tuple(shares))
    assert power.rows_needed(shares, {size: clean.get(size, 0.0) for size in shares}) == rows


# == A small model, all paths ==


@pytest.fixture(scope="module")
def rows() -> power.Rows:
    """Three random layers in float32: paths that only round differ by nothing that shows."""
    import torch
    import transformers

    torch.manual_seed(0)
    shape = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = transformers.LlamaConfig(**shape, initializer_range=0.2, rms_norm_eps=1e-5, eos_token_id=2)
    model = transformers.LlamaForCausalLM(config).eval()
    draw = random.Random(0)
    prompts = [[1, 5, 6, *(draw.randrange(3, 300) for _ in range(draw.randrange(5, 20)))] for _ in range(12)]
    made = power.Rows(prompts, power.answers_of(model, prompts), {}, {})
    power.read_loaded(model, made)
    model.set_attn_implementation("eager")
    power.read_moved(model, made)
    power.read_exact(model, made)
    return made


def gap(rows: power.Rows, path: str, beside: str = "old") -> Array:
    """[tokens] of the first row, NaN where it was not read."""
    one, other = (np.array(rows.paths[name][0].logprobs, dtype=float) for name in (beside, path))
    return np.abs(one - other)


@pytest.mark.parametrize("path", [*power.CLEAN, "exact"])
def test_clean_paths_read_the_same(rows: power.Rows, path: str) -> None:
    for old, new in zip(rows.paths["old"], rows.paths[path]):
        assert new.logprobs == pytest.approx(old.logprobs, abs=1e-3)
        assert new.best[:, 0].tolist() == old.best[:, 0].tolist()


def test_answers_are_the_likeliest_tokens(rows: power.Rows) -> None:
    assert [read.best[:, 0].tolist() for read in rows.paths["old"]] == rows.answers


@pytest.mark.parametrize("path", power.FAULTS)
def test_faults_move_what_they_name(rows: power.Rows, path: str) -> None:
    moved = gap(rows, path, power.CLEAN[0])  # the same path without the fault
    start = len(rows.prompts[0]) - 1  # of the answer's first token
    if path == "position off by one":
        assert moved[: start + 1].max() < 1e-5 and moved[start + 1 :].max() > 1e-3
    elif path == "lost BOS":
        assert np.isnan(moved[0]) and not np.isnan(moved[1:]).any() and moved[1:].max() > 1e-3
    else:
        assert moved.max() > 1e-5


def test_faults_are_taken_out_again(rows: power.Rows) -> None:
    """The last path was read after them all."""
    assert gap(rows, "exact").max() < 1e-3


def test_a_set_is_judged_as_its_readings_are(rows: power.Rows) -> None:
    every = power.readings(rows, "KV cache fp8")
    errors = power.measured(rows, "KV cache fp8")
    for chosen in ([3, 1, 7, 9], [0, 5, 2, 11, 10]):
        expected = referee.judge([every[k] for k in chosen], dtype="bfloat16")
        assert referee.judge_errors(errors.of_set(chosen), dtype="bfloat16") == expected


def test_a_row_that_is_sampled_again_shares_the_system_message_alone(rows: power.Rows) -> None:
    errors = power.measured(rows, "KV cache fp8")
    once = len(errors.of_set([0]).cluster)
    assert errors.shared == 3
    assert len(errors.of_set([0, 0]).cluster) == 2 * once - 2  # the two ids behind the first that all rows have


def test_the_table_and_the_picture_show_all_faults(
    rows: power.Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "SIZES", (2, 4))
    monkeypatch.setattr(power, "JUDGED", 3)
    found = power.shares_of(rows)
    lines = power.lines_of(rows, found)
    table = power.markdown(rows, found, lines)
    assert all(fault in table and entry.source in table for fault, entry in power.FAULTS.items())
    power.draw(rows, lines, tmp_path / "power.png")
    assert (tmp_path / "power.png").stat().st_size > 10_000
