"""What a measurement that cannot tell says, on readings of the real model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parity.diff import comparison
from parity.diff.instruments import undecided
from parity.diff.partings import PairResult
from parity.diff.path import parse_path
from parity.judge.numerics.errors import Reading
from parity.judge.numerics.referee import judge
from parity.tests.judge.test_real_readings import reading, rows


def said(path: str, first: int) -> str:
    readings = [reading(row, path) for row in rows()[:first]]
    verdict = judge(readings, dtype="bfloat16")
    assert verdict.outcome == "cannot tell"
    return undecided(verdict, [PairResult()] * first, readings)


def shifted(clean: Reading, share: float) -> Reading:
    """With a share of what an attention scale of 1 % more makes."""
    new, base, probe = (
        np.array(side, dtype=float) for side in (clean.new, clean.reference, clean.probes["attention scale"])
    )
    return dataclasses.replace(clean, new=list(new + share * (probe - base)))


@pytest.mark.parametrize(
    ("path", "first", "begins"),
    [
        ("vLLM", 1, "only 58 tokens at which the model is unsure; about 4 more prompts"),
        ("vLLM", 2, "nothing was seen, but only a fault of 2.4e+00 nats, where rounding is 7.7e-02"),
        ("eager attention", 2, "all is inside what is allowed, but not surely: size 1.16 (1.03 to 1.30"),
        ("int8 weights", 4, "the size of errors is 1.86 (1.50 to 2.31) where 0.5 to 1.25 are allowed, by a fault or"),
    ],
)
def test_undecided_says_what_was_seen_and_what_is_needed(path: str, first: int, begins: str) -> None:
    found = said(path, first)
    assert found.startswith(begins)
    assert found.endswith("would decide it")


def test_undecided_probe_beyond_its_margin_is_named_with_its_factor() -> None:
    """As vLLM's attention with AMX is: off by less than the 1 % that the probe is."""
    mixed = [shifted(reading(row, "vLLM"), -0.4) for row in rows()]
    verdict = judge(mixed, dtype="bfloat16")
    assert verdict.outcome == "cannot tell"
    found = undecided(verdict, [PairResult()] * len(mixed), mixed)
    assert found.startswith("attention scale is off by -0.16 (-0.22 to -0.11) of rounding")
    assert "where 0.12 is allowed, like attention scale x 0.995" in found


def test_undecided_row_that_was_not_read_is_named() -> None:
    readings = [reading(row, "vLLM") for row in rows()]
    verdict = judge(readings, dtype="bfloat16")
    results = [PairResult(), PairResult(step=3)]
    assert undecided(verdict, results, readings).startswith("row 1 parts at token 4, beyond what could be read")


def test_notes_of_kernels_that_both_paths_have_are_left_out() -> None:
    a, b = parse_path("vllm:bfloat16"), parse_path("vllm:bfloat16,enforce_eager=true")
    assert comparison.notes_of((a, b), (("AMX",), ("AMX", "cut off"))) == ("vllm:bfloat16,enforce_eager=true: cut off",)
