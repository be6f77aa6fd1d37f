"""`python gen_engine.py`: which copy it is, and its own map."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import gen_engine
from gen_engine import main

from ..conftest import ROOT

Capture = pytest.CaptureFixture[str]


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"gen_engine {gen_engine.__version__}\n")


def test_outline_names_every_public_thing_at_its_line(capsys: Capture) -> None:
    assert main(["outline"]) == 0
    said = capsys.readouterr().out
    lines = (ROOT / "gen_engine.py").read_text().splitlines()
    named = dict(re.findall(r"^ *(\d+) {8}(\w+)$", said, re.MULTILINE))
    assert set(named.values()) == set(gen_engine.__all__)
    assert all(re.match(rf"((class|def) )?{name}\b", lines[int(number) - 1]) for number, name in named.items())


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=" ".join)
def test_help_shows_an_example_and_no_command_is_usage(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr()
    assert stop.value.code == (0 if arguments else 2)
    assert "usage: gen_engine.py" in said.out + said.err
    assert not arguments or "example: python gen_engine.py outline" in said.out


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} gen_engine.py outline | head -2",
        shell=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert "1. Errors" in done.stdout and done.stderr == ""
