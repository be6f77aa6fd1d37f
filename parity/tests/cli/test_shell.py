"""`parity doctor` and `generate`: what a person sees, and exit codes that a script can trust."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import termios
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.cli import shell
from parity.cli.refusals import REFUSALS
from parity.models.tasks import drawing
from parity.tests.conftest import TEXT, VL

pytestmark = pytest.mark.usefixtures("forked_python")

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["generate", "--help"], ["doctor", "--help"]], ids=" ".join)
def test_help_shows_an_example_and_no_command_is_usage(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr()
    assert stop.value.code == (0 if arguments else 2)
    assert re.search("usage: (python -m )?parity", said.out + said.err)
    if arguments[1:]:
        assert f"example: python -m parity {arguments[0]}" in said.out


def test_generate_prints_the_answer_and_the_figures(capsys: Capture) -> None:
    assert main(["generate", "--model", str(TEXT), "--backend", "hf", "What is the capital of France?"]) == 0
    said = capsys.readouterr()
    assert said.out == "The capital of France is Paris.\n"
    assert re.search(r"\[hf: \d+ prompt tokens, \d+ generated in [\d.]+ s, ended by eos\]", said.err)


def test_generate_looks_at_pictures_and_takes_every_option(capsys: Capture, tmp_path: Path) -> None:
    drawing("red", "circle").save(tmp_path / "shape.png")
    arguments = ["--image", str(tmp_path / "shape.png"), "--json", "--max-new-tokens", "30", "--stop", '", "shape']
    assert main(["generate", "--model", str(VL), *arguments, "What is in the picture? Answer in JSON."]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["text"], said["finish_reason"], said["stop_reason"]) == ('{"color": "red', "stop", '", "shape')


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model", "/no/such", "x"], 1, "LoadError: cannot read the checkpoint"),
        (["--model", str(TEXT), "--temperature", "-1", "x"], 2, "OptionError: GenerationOptions.temperature is -1.0"),
        (["--model", str(TEXT), "--image", "/no/such.png", "x"], 1, "UnsupportedError"),
        (["--model", str(TEXT), "--n", "0", "x"], 2, "OptionError: GenerationOptions.n is 0"),
        (["--model", str(VL), "--image", "/no/such.png", "x"], 1, "ImageError: request 0: there is no file"),
    ],
)
def test_a_failing_generate_says_why_and_exits_with_it(
    arguments: list[str], code: int, said: str, capsys: Capture
) -> None:
    assert main(["generate", *arguments]) == code
    assert said in capsys.readouterr().err


def test_doctor_tells_what_works_here_by_trying(capsys: Capture) -> None:
    assert main(["doctor", "--model", str(TEXT)]) == 0
    said = capsys.readouterr().out
    for library in ("torch", "transformers", "PIL", "vllm"):
        assert re.search(rf"^{library} +\d+\.\d+", said, re.MULTILINE)
    assert re.search(r"^backend hf +works +generated with", said, re.MULTILINE)
    assert all(refusal.what in said and refusal.fix in said for refusal in REFUSALS)
    assert re.search(r"^backend vllm +works +generated with", said, re.MULTILINE)


def test_columns_are_as_wide_as_their_longest_name() -> None:
    rows = [
        ("torch", "2.9", "cpu"),
        ("a-library-with-a-very-long-name", "2026.11.24.dev1234", "cpu"),
        ("x", "", "y" * 200),
    ]
    lines = shell.table(rows).splitlines()
    assert [line[33:].split("  ")[0].strip() for line in lines] == ["2.9", "2026.11.24.dev1234", ""]
    assert [line[53:] for line in lines] == ["cpu", "cpu", "y" * 200]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that are there are not imported for it; another test sees that they would be."""
    says = "import sys; print(sys.version_info.major, '|')"
    monkeypatch.setattr(shell, "PROBES", {name: (backends, says) for name, (backends, _) in shell.PROBES.items()})


@pytest.mark.usefixtures("quick")
def test_doctor_says_why_a_backend_does_not_work(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shell.PROBES, "vllm", ("vllm", "import a_library_that_is_not_there"))
    assert main(["doctor"]) == 1
    assert "No module named 'a_library_that_is_not_there'" in capsys.readouterr().out
    assert main(["doctor", "--backend", "hf"]) == 0


def test_doctor_knows_no_other_backend(capsys: Capture) -> None:
    assert main(["doctor", "--backend", "foo"]) == 2
    assert "no backend 'foo'" in capsys.readouterr().err


def test_generate_prints_every_sample(capsys: Capture) -> None:
    assert main(["generate", "--model", str(TEXT), "--n", "3", "What is the capital of France?"]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n" * 3


@pytest.mark.usefixtures("quick")
def test_doctor_tries_a_checkpoint_and_reports_its_failure(capsys: Capture, tmp_path: Path) -> None:
    assert main(["doctor", "--backend", "hf", "--model", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"backend hf +does not work +parity: LoadError", said)
    assert re.search("^transformers ", said, re.MULTILINE) and not re.search("^vllm ", said, re.MULTILINE), "not asked"


def shown_on_a_terminal(*words: str) -> str:
    """What a command writes where it has a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    written: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while piece := os.read(ours, 4096):
                written.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w") as terminal, redirect_stdout(terminal), redirect_stderr(terminal):
        code = main([*words])
    reader.join()
    os.close(ours)
    assert code == 0
    return b"".join(written).decode()


def test_progress_is_shown_on_a_terminal_and_nowhere_else(capfd: pytest.CaptureFixture[str]) -> None:
    command = ("generate", "--model", str(TEXT), "Count to 5.")
    shown = shown_on_a_terminal(*command)
    assert re.search(r"generate: 100%.*1/1", shown)
    assert "1, 2, 3, 4, 5." in shown
    capfd.readouterr()
    assert main([*command]) == 0
    piped = capfd.readouterr()
    assert piped.out == "1, 2, 3, 4, 5.\n"
    assert "%" not in piped.err
