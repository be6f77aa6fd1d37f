"""What a type checker makes of `load`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..conftest import ROOT

CALLS = {
    "load('m', backend='vllm', dtype='float16', max_model_len=9)": "",
    "load('m', bakend='vllm')": 'Unexpected keyword argument "bakend"',
    "load('m', max_model_len='9')": 'Argument "max_model_len" to "load" has incompatible type',
}


@pytest.mark.parametrize("call", CALLS)
def test_load_is_checked_by_mypy(call: str) -> None:
    code = f"from gen_engine import load\n{call}\n"
    command = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert CALLS[call] in done.stdout and (done.returncode == 0) == (CALLS[call] == ""), done.stdout
