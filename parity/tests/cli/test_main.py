"""The command line as a whole: names, guesses, the version, interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import gen_engine
from parity.__main__ import main, main_of_engine
from parity.cli import command_line
from parity.tests.conftest import ROOT


def ending(words: list[str]) -> Any:
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("chek", "did you mean 'check'?"),
        ("zzz", "known: accept"),
    ],
)
def test_main_mistyped_command_exits_2_with_a_guess(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending([word, "--backend", "hf"]) == 2
    error = capsys.readouterr().err
    assert said in error and "usage" not in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "--backand", "hf"], "unrecognized arguments: --backand; did you mean --backend?"),
        (["generate", "--max-tokens=5", "--model", "m", "Hi"], "did you mean --max-new-tokens?"),
        (["list", "--zzz"], "unrecognized arguments: --zzz"),
    ],
)
def test_main_mistyped_option_exits_2_with_a_guess(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(words) == 2
    error = capsys.readouterr().err
    assert said in error and f"parity {words[0]}" in error


def test_main_version_is_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"parity {gen_engine.__version__}"


def test_main_help_lists_what_users_run_and_hides_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ending(["--help"]) == 0
    said = capsys.readouterr().out
    assert "record" in said and "selftest" not in said


def test_main_of_engine_has_the_commands_of_the_engine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main_of_engine(["--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0 and "generate" in said and "batch" in said
    assert "record" not in said and "--goldens" not in said
    with pytest.raises(SystemExit) as end:
        main_of_engine(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"gen-engine {gen_engine.__version__}\n")


def without_libraries(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m parity` of a Python that has the standard library and what lies under `path`."""
    command = [sys.executable, "-S", "-m", "parity", *words]
    environment = {"PYTHONPATH": str(path or "")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_main_without_libraries_names_one_command_that_installs_them() -> None:
    done = without_libraries("check")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("parity: numpy is not installed. Run: pip install '")
    assert "[hf]'" in done.stderr and "Traceback" not in done.stderr


def test_main_takes_its_own_engine_where_a_vendored_copy_lies_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "gen_engine.py").write_text("raise RuntimeError('the copy was imported')")
    command = [sys.executable, "-m", "parity", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"parity {gen_engine.__version__}"), done.stderr


@pytest.mark.parametrize("words", [["check"], ["generate", "--model", "m", "Hello"], ["demo"]], ids=" ".join)
def test_main_without_a_models_libraries_names_all_of_them(words: list[str], tmp_path: Path) -> None:
    lost = {"packaging", "torch", "transformers", "jinja2", "PIL"}
    packages = Path(numpy.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        (tmp_path / name).symlink_to(packages / name)
    done = without_libraries(*words, path=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"parity {words[0]}: ") and " are not installed. Run: pip install '" in done.stderr
    assert {*done.stderr.split(": ")[1].removesuffix(" are not installed. Run").split(", ")} == lost


def test_main_needs_no_library_for_images_where_none_are_asked_for(tmp_path: Path) -> None:
    packages = Path(numpy.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        (tmp_path / name).symlink_to(packages / name)
    for name in ("packaging", "torch", "transformers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    done = without_libraries("check", "--goldens", str(tmp_path / "none"), path=tmp_path)
    assert (done.returncode, done.stderr) == (5, ""), "nothing to compare"


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C means after a test what it meant before."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("name", ["run", "Parsers"], ids=["while loading", "while parsing"])
def test_main_interrupted_exits_130_without_a_traceback(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, name, stopped)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["list"]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err == "parity: interrupted\n"


WAITS = """
import contextlib, signal, sys, time
from parity.__main__ import main
from parity.cli import command_line
from parity.judge import worker

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
worker.WORKER_PATIENCE = 600

def run(program, argv):
    with {"own": worker.Worker(), "shared": contextlib.nullcontext(worker.Worker.shared())}[sys.argv[1]] as used:
        for _ in used.run(sys.argv[2], None, 60):
            print("started", flush=True)
        time.sleep(60)

command_line.run = run
raise SystemExit(main([]))
"""
SLOW = """
import threading, time

def work(job):
    yield
    time.sleep(60)

def stay(job):  # an engine whose threads take their time to end
    yield
    threading.Thread(target=time.sleep, args=(60,)).start()
"""


@pytest.mark.parametrize("worker", ["own", "shared"])
@pytest.mark.parametrize("task", ["slow:work", "slow:stay"])
@pytest.mark.parametrize("times", [1, 5])
def test_main_interrupted_again_ends_at_once_without_a_traceback(
    worker: str, task: str, times: int, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command, pipe = [sys.executable, "-c", WAITS, worker, task], subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.2)  # what yielded goes on
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, complaint = process.communicate(timeout=45)  # it waits for no worker
    assert process.returncode in (130, -signal.SIGINT)
    assert complaint == "parity: interrupted\n"


def test_a_site_without_its_option_is_not_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "answers=script.py:answer", "--", "python", "script.py"]) == command_line.USAGE
    assert "write --site answers=script.py:answer, or the whole command behind" in capsys.readouterr().err


def test_a_folder_of_goldens_may_have_the_name_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--goldens", "check", "list"]) == 5
    assert "no goldens under check" in "".join(capsys.readouterr())


def test_a_command_imports_no_other_commands() -> None:
    others = "[name for name in sys.modules if name.startswith(('parity.bench', 'parity.scan'))]"
    code = f"import sys; from parity.__main__ import main; main(['list']); print({others})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
