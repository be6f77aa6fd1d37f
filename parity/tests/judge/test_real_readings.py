"""The referee on a real model: what SmolLM2-135M-Instruct gave for 24 chats that share its default system message.

real_readings.jsonl holds, a row each, the log-probabilities of prompt and greedy answer in float32 (the reference), in
bfloat16 as the old code ran it (batches of four), on clean paths, and on paths with a fault; read on a CPU with
AVX512-BF16, transformers 5.19, vLLM 0.32. Read once, so that what is judged here does not depend on the machine.
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from parity.judge.numerics import referee
from parity.judge.numerics.errors import Reading
from parity.judge.numerics.referee import judge

FILE = Path(__file__).with_name("real_readings.jsonl")
CLEAN = ("batches of eight", "rows alone", "eager attention", "vLLM")
FAULTS = {  # path -> what the verdict says that it looks like
    "attention scale x 1.01": "attention scale x 1.0",
    "logits x 1.01": "logits x 1.0",
    "int8 weights": "",
    "adapter of 1 %": "",
    "float16": "float16",
}


@functools.cache
def rows() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())


def reading(row: dict[str, Any], path: str, *, shared: bool = True) -> Reading:
    paths = row["paths"]
    ids = [*row["prompt"], *row["answer"]] if shared else ()
    return Reading(
        paths["reference"], paths["old"], paths[path], prompt=len(row["prompt"]) - 1, probes=row["probes"], ids=ids
    )


def verdict(path: str, **how: bool) -> referee.Verdict:
    return judge([reading(row, path, **how) for row in rows()], dtype="bfloat16")


@pytest.mark.parametrize("path", CLEAN)
def test_clean_path_holds(path: str) -> None:
    assert verdict(path).outcome == "holds"


def test_shared_system_message_counted_in_every_row_was_a_false_alarm() -> None:
    assert verdict("vLLM", shared=False).outcome == "shifted"


@pytest.mark.parametrize(("path", "like"), FAULTS.items())
def test_fault_is_seen_and_named(path: str, like: str) -> None:
    found = verdict(path)
    assert found.outcome == "shifted" and found.like.startswith(like)


def test_rope_theta_of_one_percent_more_cannot_be_seen_and_holds() -> None:
    """On these weights it moves logits by 0.003 nats, where rounding moves them by 0.07."""
    found = verdict("rope theta x 1.01")
    assert found.outcome == "holds" and found.sees > 0.003


def test_clean_subsets_raise_no_alarm() -> None:
    draw, outcomes = random.Random(0), []
    for _ in range(200):
        path = draw.choice(CLEAN)
        some = draw.sample(rows(), draw.randrange(4, 24))
        outcomes.append(judge([reading(row, path) for row in some], dtype="bfloat16").outcome)
    assert outcomes.count("shifted") <= 2  # 1 %
    assert outcomes.count("holds") > 150
