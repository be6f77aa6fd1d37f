"""`parity diff` on tiny checkpoints, with real engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from parity.__main__ import main
from parity.tests.conftest import ROOT

LLAMA = str(ROOT / "golden/models/random-llama")
QWEN = str(ROOT / "golden/models/tiny-qwen3")


def diff(*words: str) -> int:
    return main(["diff", *words, "--model", LLAMA, "--tokens", "16"])


def test_diff_same_path_is_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff("hf", "hf") == 0
    assert capsys.readouterr().out.startswith("equal: ")


def test_diff_planted_attention_scale_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html"))
    assert diff("hf:bfloat16", "hf:bfloat16,attention=1.01", *files) == 1
    assert capsys.readouterr().out.startswith("differs, like attention scale x 1.01")
    found: dict[str, Any] = json.loads((tmp_path / "a.json").read_text())
    assert found["outcome"] == "differs"
    assert len(found["deltas"]) == found["mismatch"]["tokens"]
    assert "Δ log p" in (tmp_path / "a.html").read_text()


def test_diff_int8_weights_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff("hf:bfloat16", "hf:bfloat16,int8") == 1
    assert capsys.readouterr().out.startswith("differs, like int8 weights")


def test_diff_temperature_of_one_side_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Of huggingface/trl#4159: raw log-probabilities against those after temperature 0.6."""
    assert diff("hf:float32", "hf:float32,logits=1.6667") == 1
    said = capsys.readouterr().out
    assert said.startswith("differs, like logits x 1.66") and "as temperature 0.60 does" in said


def test_diff_of_two_dtypes_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Of vllm-project/vllm#18352: transformers in its default of old, vLLM in the checkpoint's dtype."""
    assert diff("hf:float32", "hf:bfloat16") == 1
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "differs, like float32 and bfloat16 do"
    assert second.startswith("note: A computes in float32, B in bfloat16")


def test_diff_other_tokenizer_is_not_called_numerics(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff("hf", f"hf@{QWEN}") == 1
    assert "numerics were not compared" in capsys.readouterr().out


def test_diff_gate_beyond_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff("hf:bfloat16", "hf:float32", "--gate", "tmpe=1.000001") == 1
    assert "gate tmpe" in capsys.readouterr().out


def test_diff_layers_changed_matrix_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff("hf:bfloat16", "hf:bfloat16,matrix=1", "--layers") == 1
    assert capsys.readouterr().out.startswith("differs first in layer 1\n")


def test_diff_layers_same_path_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff("hf:bfloat16", "hf:bfloat16", "--layers") == 0
    assert "no layer is beyond rounding" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("hf",), ("hf", "hf", "--gate", "tpme=1"), ("hf", "vllm", "--layers")])
def test_diff_wrong_arguments_are_usage_errors(words: tuple[str, ...]) -> None:
    assert diff(*words) == 2


@pytest.mark.parametrize("flag", ["--json", "--html", "--gate"])
def test_diff_layers_unused_flag_is_refused(flag: str) -> None:
    value = "tmpe=1.05" if flag == "--gate" else "out"
    assert diff("hf", "hf", "--layers", flag, value) == 2


def test_no_tokens_at_all_are_refused_and_not_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["hf", "hf"], ["hf", "hf", "--layers"], ["--invariance", "hf"]):
        assert main(["diff", *words, "--model", QWEN, "--tokens", "0"]) == 2
        assert "--tokens is 0" in capsys.readouterr().err


def python_elsewhere(folder: Path, body: str) -> Path:
    """A program that notes that it ran, and goes on as `body` says."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {folder}/ran\n{body}\n')
    python.chmod(0o755)
    return python


def test_diff_in_another_environment_answers_and_reads_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """This interpreter by another name: each visit of a path goes through its files."""
    python = python_elsewhere(tmp_path, f'exec {sys.executable} "$@"')
    assert diff("hf:bfloat16", f"env:{python},hf:bfloat16") == 0
    assert capsys.readouterr().out.startswith("equal: ")
    assert [line.split()[:2] for line in (tmp_path / "ran").read_text().splitlines()] == [["-m", "parity.diff.worker"]]


def test_diff_fault_in_another_environment_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    python = python_elsewhere(tmp_path, f'exec {sys.executable} "$@"')
    assert diff(f"env:{python},hf:bfloat16,attention=1.01", "hf:bfloat16") == 1
    assert capsys.readouterr().out.startswith("differs, like attention scale x 0.9")
    assert len((tmp_path / "ran").read_text().splitlines()) == 2


def test_diff_environment_that_fails_says_its_last_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    python = python_elsewhere(tmp_path, "echo the last words >&2; exit 1")
    assert diff(f"env:{python}", "hf") == 3
    assert "the last words" in capsys.readouterr().err


def test_diff_of_a_model_that_is_not_there_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "hf", "vllm", "--model", "models/nothere"]) == 3
    said = capsys.readouterr().err
    assert "cannot read the checkpoint 'models/nothere'" in said and "Traceback" not in said
