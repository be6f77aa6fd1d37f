"""`make demo`: what it is asked reaches it, what it prints fits the terminal, and a fault is loud."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenerationResult
from parity.__main__ import main
from parity.bench import workloads
from parity.cli import demo
from parity.diff import partings
from parity.environment.kernels import known_biases
from parity.judge.numerics.noise import Parted
from parity.models import real_model
from parity.tests.conftest import ROOT

Capture = pytest.CaptureFixture[str]
ASKED = ('What\'s "5 $HOME" in café?', "$(shell echo x) `date` $$ 日本", "--tiny", "100 % \\ 'quoted'")
WITHIN = partings.PairResult(5, Parted(True, 0.11, 0.66))
BEYOND = partings.PairResult(5, Parted(False, 2.5, 0.66, "model"))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A stand-in for .venv, whose python prints what it is given, one argument a line."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    (tmp_path / ".ready").touch()
    return tmp_path


@pytest.mark.parametrize("question", ASKED)
def test_a_question_goes_through_make_as_it_was_typed(made: Path, question: str) -> None:
    command = ["make", "--no-print-directory", f"VENV={made}", "demo", f"ASK={question}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-m", "parity", "demo", f"--ask={question}"]


def test_without_a_question_there_is_no_flag(made: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ASK"}
    command = ["make", "--no-print-directory", f"VENV={made}", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["-m", "parity", "demo"]


def answer(text: str) -> GenerationResult:
    return GenerationResult(
        text=text,
        raw_text=text,
        token_ids=tuple(text.encode()),
        prompt_token_ids=(1,),
        finish_reason="eos",
        stop_reason=None,
        backend="hf",
    )


def compared(row: partings.PairResult, outcome: partings.PairsOutcome, new: str) -> demo.Compared:
    found = partings.PairsJudged(outcome, (row,))
    return demo.Compared(
        ("Where was the light?",), [answer("It was on the old tower by the sea.")], [answer(new)], found
    )


def test_an_answer_that_parts_by_rounding_says_where_and_how_far() -> None:
    told = demo.describe_real(compared(WITHIN, "rounding", "It was on the old pier, far away."), None)
    assert told.splitlines() == [
        "",
        "▸ Where was the light?",
        "  It was on the old",
        "    hf   │ tower by the sea.",
        "    vllm │ pier, far away.",
        "  parts at token 6 by rounding: float32 prefers one token by 0.11 nats, rounding explains 0.66",
        "",
        "1 answers: 0 the same, 1 part by rounding",
    ]


def test_an_answer_that_parts_by_a_fault_is_loud() -> None:
    told = demo.describe_real(compared(BEYOND, "fault", "It was on the old pier, far away."), None)
    assert "  !! parts at token 6: float32 prefers one token by 2.50 nats, and rounding explains 0.66" in told
    assert told.splitlines()[-1].startswith("!! 1 answers: 0 the same, 1 part, AND ROUNDING DOES NOT EXPLAIN IT: row 0")


@pytest.mark.parametrize("columns", ["72", "100", "120"])
def test_answers_fit_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    long = "word " * 200
    told = demo.describe_real(demo.Compared((long,), [answer(long)], [answer(long)], None), None)
    assert max(map(len, told.splitlines())) <= int(columns) + 2  # " …" stands behind a line
    assert len(told.splitlines()) < 30


def test_the_demo_goes_on_without_the_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(demo, "ask_tiny", lambda: True)
    folder = real_model.folder
    monkeypatch.setattr(real_model, "folder", lambda: folder(tmp_path))
    assert main(["demo"]) == 0
    assert logging.root.manager.disable == logging.NOTSET, "who runs it in a process of theirs has their log"
    [line] = capsys.readouterr().out.split("\n")[1:-1]
    assert line.startswith("!! THE REAL MODEL WAS NOT ASKED: ") and line.endswith("Run `make real-model`.")


@pytest.mark.parametrize(
    ("is_good", "outcome", "code"), [(True, "rounding", 0), (False, "rounding", 1), (True, "fault", 1)]
)
def test_a_fault_of_either_model_is_exit_1(
    is_good: bool, outcome: Any, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "ask_tiny", lambda: is_good)
    monkeypatch.setattr(real_model, "folder", lambda: tmp_path)
    row = BEYOND if outcome == "fault" else WITHIN
    monkeypatch.setattr(demo, "ask_real", lambda *_: compared(row, outcome, "It was on the old pier."))
    assert main(["demo"]) == code


def test_both_backends_and_the_referee_are_asked(tmp_path: Path) -> None:
    """On random weights in bfloat16, where answers part at once."""
    model = workloads.make_random_model(tmp_path / "model", layers=2)
    found = demo.ask_real(model, demo.REAL_QUESTIONS)
    assert found.found is not None
    told = demo.describe_real(found, None)
    if known_biases("vllm", "bfloat16"):  # vLLM's kernels do not round here: more than rounding is right, too
        assert found.is_fault == ("!!" in told), told
        return
    assert not found.is_fault, found.found
    assert "by rounding: float32 prefers one token by 0.0" in told and "!!" not in told
