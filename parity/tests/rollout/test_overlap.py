"""When guessing apart pays: the simulator where its answers are known, and costs read from a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.rollout.overlap import Line, Setting, fitted, measured, simulate

from .test_trace_command import recorded  # noqa: F401 - a fixture

FREE = Line(0.0, 0.0)
PLAIN, IN_TURN, OVERLAP = range(3)
# 8 answers of 100 tokens, all at once; a step costs by the token: 8 rows with 4 guesses each take 40 ms to judge.
EVEN = Setting(verify=Line(0.0, 1.0), draft=FREE, guesses=4, accepted=0.0, delay=0.0, rows=8, lengths=(100,) * 32)
BY_STEP = replace(EVEN, verify=Line(10.0, 0.0))


def ms(setting: Setting, way: int) -> float:
    """Of all 4 waves of 8 answers."""
    return 1e3 * simulate(setting, way).seconds


def test_free_guesses_that_never_hold_cost_what_judging_them_does() -> None:
    assert ms(EVEN, PLAIN) == pytest.approx(4 * 100 * 8)
    assert ms(EVEN, IN_TURN) == ms(EVEN, OVERLAP) == pytest.approx(4 * 100 * 8 * 5)
    assert simulate(EVEN, IN_TURN).idle == simulate(EVEN, OVERLAP).idle == 0
    assert (ms(BY_STEP, PLAIN), ms(BY_STEP, IN_TURN)) == pytest.approx((4000, 4000))
    assert ms(BY_STEP, OVERLAP) == pytest.approx(8000)  # each half's step costs as much as that of all


def test_guesses_that_always_hold_give_five_tokens_a_round() -> None:
    sure = replace(BY_STEP, accepted=1.0)
    assert simulate(sure, IN_TURN).rounds == 4 * 20 and ms(sure, IN_TURN) == pytest.approx(ms(BY_STEP, PLAIN) / 5)


def test_a_draft_as_dear_as_judging_is_hidden_altogether() -> None:
    dear = replace(EVEN, draft=Line(0.0, 5.0))
    assert simulate(dear, IN_TURN).idle == pytest.approx(0.5)
    assert ms(dear, IN_TURN) / ms(dear, OVERLAP) == pytest.approx(2, rel=0.02)  # but for the first draft
    assert simulate(dear, OVERLAP).idle < 0.02


def test_a_much_dearer_draft_is_all_that_counts() -> None:
    dear = replace(EVEN, draft=Line(0.0, 500.0))
    for way in (IN_TURN, OVERLAP):
        assert ms(dear, way) == pytest.approx(4 * 100 * 8 * 500, rel=0.02) and simulate(dear, way).idle > 0.98
    halved = replace(dear, drafters=2)
    assert ms(halved, IN_TURN) == pytest.approx(ms(dear, IN_TURN) / 2, rel=0.02)
    assert ms(halved, OVERLAP) == pytest.approx(ms(dear, OVERLAP) / 2, rel=0.02)


def test_a_long_way_to_the_drafters_is_all_that_counts() -> None:
    far = replace(EVEN, delay=1000.0)
    assert ms(far, IN_TURN) == pytest.approx(4 * 100 * 2000, rel=0.03)
    assert ms(far, OVERLAP) == pytest.approx(ms(far, IN_TURN), rel=0.03)  # both halves are on their way at once


def test_waves_of_answers_fill_up_what_others_left() -> None:
    ragged = replace(EVEN, lengths=(10, 100) * 16)
    assert simulate(ragged, PLAIN).tokens == 16 * 110 and ms(ragged, PLAIN) == pytest.approx(16 * 110)


def test_a_line_is_fitted_through_steps() -> None:
    assert fitted([(1, 12.0), (2, 14.0), (4, 18.0)]) == pytest.approx((10, 2))
    assert fitted([(3, 5.0), (3, 7.0)]) == (6, 0) and fitted([(1, 9.0), (2, 3.0)]) == (6, 0)


def test_costs_come_from_a_trace(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    found = measured(recorded, Setting())
    assert found.guesses == 3 and 0 < found.accepted < 1 and found.verify.of(4) > 0 and found.lengths
    assert main(["schedule", "--decoupled", "--costs", str(recorded), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "simulated, costs measured" in said and "overlap / in turn" in said
    assert (tmp_path / "decoupled.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_simulated_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "--decoupled", "--costs", str(tmp_path)]) == 3
    assert "no worker_<id>_perf.csv" in capsys.readouterr().err
    assert main(["schedule", "--costs", str(tmp_path)]) == 2
