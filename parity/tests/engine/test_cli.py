"""`python gen_engine.py`: which copy it is."""

from __future__ import annotations

import subprocess
import sys

import gen_engine

from ..conftest import ROOT


def test_a_copy_says_its_version() -> None:
    for arguments in ([], ["--version"]):
        command = [sys.executable, "gen_engine.py", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        assert (done.stdout, done.stderr) == (f"gen_engine {gen_engine.__version__}\n", "")
