"""The command line as a whole: names, guesses, the version, interruption."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest

import gen_engine
from parity import __main__ as command_line


def ending(words: list[str]) -> Any:
    with pytest.raises(SystemExit) as end:
        command_line.main(words)
    return end.value.code


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("chek", "did you mean 'check'?"),
        ("selftest", "parity dev selftest"),
        ("zzz", "known: accept"),
    ],
)
def test_main_mistyped_command_exits_2_with_a_guess(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending([word, "--backend", "hf"]) == 2
    error = capsys.readouterr().err
    assert said in error and "usage" not in error


def test_main_version_is_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"parity {gen_engine.__version__}"


def test_main_help_lists_what_users_run_and_hides_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ending(["--help"]) == 0
    said = capsys.readouterr().out
    assert "record" in said and "selftest" not in said
    assert ending(["dev", "--help"]) == 0
    assert "selftest" in capsys.readouterr().out


def test_main_interrupted_exits_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(args: Namespace) -> int:
        raise KeyboardInterrupt

    def add_stopped(subparsers: Any) -> None:
        subparsers.add_parser("stopped").set_defaults(run=stopped)

    commands: tuple[Callable[[Any], None], ...] = (add_stopped,)
    monkeypatch.setattr(command_line, "COMMANDS", commands)
    assert command_line.main(["stopped"]) == 130
    assert capsys.readouterr().err == "parity: interrupted\n"
