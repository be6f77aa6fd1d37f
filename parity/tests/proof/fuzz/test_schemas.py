"""Answers under generated JSON schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenerationEngine, RequestError
from parity.proof.fuzz.schemas import Tally, ask, generated, is_valid, main, suite_schemas


def test_generated_schemas_are_those_of_their_seed() -> None:
    assert generated(3, 40) == generated(3, 40) != generated(4, 40)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "integer"}, "1", True),
        ({"type": "integer"}, '"a"', False),
        ({"type": "string"}, '"\t"', False),
        ({"type": "string", "format": "date"}, '"2026-02-31"', True),
        ({"$ref": "other.json"}, "1", True),
        (False, "1", False),
    ],
)
def test_is_valid_tells_answers_from_others(schema: Any, text: str, expected: bool) -> None:
    assert is_valid(schema, text) == expected


def test_suite_schemas_are_those_of_all_groups(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "draft2020-12" / "optional"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps([{"schema": True}, {"schema": {"type": "null"}}]))
    assert suite_schemas(tmp_path) == [True, {"type": "null"}]


def test_ask_of_a_real_engine_finds_no_invalid_answer(text: GenerationEngine) -> None:
    tally = ask(text, generated(5, 48), samples=2)
    assert tally.invalid == []
    assert tally.counts["refused"] + tally.counts["answered"] == 48 and tally.counts["ended"] > 30


def test_tally_counts_refused_cut_and_invalid_answers(text: GenerationEngine) -> None:
    tally = Tally()
    tally.add(True, RequestError("xgrammar ignores the schema keyword 'not'"))
    request = {"prompt": "a", "structured": {"json": {"type": "integer", "minimum": 3, "maximum": 4}}}
    [result] = text.generate_text_batch([request])
    tally.add({"type": "integer"}, result)
    tally.add({"type": "string"}, result)
    [cut] = text.generate_text_batch(
        [{**request, "structured": {"json": {"const": "a long one"}}}], {"max_new_tokens": 1}
    )
    tally.add(True, cut)
    assert tally.counts == {"refused": 1, "answered": 3, "ended": 2, "invalid": 1, "cut": 1}
    assert tally.invalid == [({"type": "string"}, result.text)]


def test_main_exits_with_0_where_all_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "4", "--samples", "1", "--backend", "hf", "--seed", "2"]) == 0
    assert "hf: 4 schemas:" in capsys.readouterr().out
