"""How a command lives and ends in CI: closed streams, full disks, SIGTERM, and exit codes that say what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.cli import shell
from parity.goldens.store import Case, Store

from ..conftest import ROOT

ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
SLOW = """
import os, pathlib, subprocess, sys, time

def answer():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path("pids.part").write_text(f"{os.getpid()} {child.pid}")
    os.rename("pids.part", "pids")
    time.sleep(600)
"""


def in_shell(command: str, folder: Path) -> tuple[int, str]:
    words = command.replace("parity", f"{sys.executable} -m parity", 1)
    done = subprocess.run(["bash", "-c", words], cwd=folder, env=ENVIRON, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def goldens(tmp_path: Path) -> Path:
    store = Store(tmp_path / "golden")
    store.write(Case("site", "case", "moved:answer", value="x"))
    store.set_site("site", functions=["moved:answer"])
    (tmp_path / "moved.py").write_text(SLOW)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("parity list >&-", 0),
        ("parity list <&- >&- 2>&-", 0),
        ("parity --goldens nothing check >&-", 5),
        ("parity --goldens nothing check <&- >&- 2>&-", 5),
        ("parity check site/other >&-", 4),
        ("parity check --junit golden >&-", 2),
        ("parity accept site --withdraw <&- >&-", 2),
        ("parity list >/dev/full", 3),
        ("parity rename site site >/dev/full 2>&1", 2),
        ("parity list --cases | true", 0),
    ],
)
def test_a_closed_stream_changes_no_exit_code(command: str, code: int, goldens: Path) -> None:
    """`check >&-` ended with a traceback and exit code 1, which is a drift."""
    ended, said = in_shell(command, goldens)
    assert ended == code, said
    assert "Traceback" not in said and "Exception ignored" not in said


def test_nothing_that_is_printed_lands_in_a_file_of_the_command(goldens: Path) -> None:
    """The descriptor of a closed stdout was given to the next file that was opened."""
    ended, _ = in_shell("parity check site/other --json out.json --html out.html >&-", goldens)
    assert ended == 4
    assert (goldens / "out.json").read_text().startswith("{")
    assert (goldens / "out.html").read_text().startswith("<!")


@pytest.mark.parametrize("reader", [">/dev/full", ">/dev/full 2>&1", "| true; exit ${PIPESTATUS[0]}"])
def test_a_check_that_nobody_can_read_has_its_verdict_and_its_reports(reader: str, goldens: Path) -> None:
    """`check --html` into a pipe whose reader was gone ended with 141, on a full disk with 3, and wrote no page."""
    reports = "--json out.json --html out.html --junit out.xml --markdown out.md"
    ended, said = in_shell(f"parity check site/other {reports} {reader}", goldens)
    assert ended == 4, said
    assert "Traceback" not in said and "Exception ignored" not in said
    assert len(list(goldens.glob("out.*"))) == 4


def test_a_fault_of_the_program_is_no_drift(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(args: object) -> int:
        raise AttributeError("a fault")

    monkeypatch.setattr("parity.record.inventory.run_list", broken)
    assert main(["list"]) == 3
    said = capsys.readouterr().err
    assert "AttributeError: a fault" in said and "this is a fault of parity itself" in said


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(is_so: object, seconds: float) -> bool:
    assert callable(is_so)
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.1)
    return bool(is_so())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9), (signal.SIGINT, 130)]
)
def test_the_worker_of_a_check_that_is_ended_ends(number: signal.Signals, code: int, goldens: Path) -> None:
    """SIGTERM, as of a CI runner that cancels a job, left the worker and its children running."""
    command = [sys.executable, "-m", "parity", "check"]
    with subprocess.Popen(
        command,
        cwd=goldens,
        env=ENVIRON,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also where pytest runs under nohup
    ) as process:
        assert wait_until((goldens / "pids").exists, 120)
        pids = [int(word) for word in (goldens / "pids").read_text().split()]
        assert all(map(is_alive, pids))
        process.send_signal(number)
        said = process.communicate(timeout=30)[0]
    assert process.returncode == code and "Traceback" not in said
    assert wait_until(lambda: not any(map(is_alive, pids)), 10)


SCRIPT = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
open("pids.new", "w").write(f"{os.getpid()} {child.pid}")
os.rename("pids.new", "pids")
time.sleep(600)
"""


@pytest.mark.parametrize("command", ["record --name old", "check --name old"])
def test_a_script_ends_with_its_children_where_its_observer_is_ended(command: str, goldens: Path) -> None:
    """After SIGTERM to `record` what the old script had started ran on."""
    (goldens / "old.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "parity", *command.split(), "--", sys.executable, "old.py"]
    with subprocess.Popen(words, cwd=goldens, env=ENVIRON, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert wait_until((goldens / "pids").exists, 60)
        pids = [int(word) for word in (goldens / "pids").read_text().split()]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143
    assert wait_until(lambda: not any(map(is_alive, pids)), 10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_while_a_class_is_made_is_no_fault(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python wraps what is raised in __set_name__ into a RuntimeError: SIGTERM during an import ended with 3."""

    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(number)

    monkeypatch.setattr("parity.record.inventory.run_list", lambda args: type("Owner", (), {"field": Field()}) and 0)
    monkeypatch.setattr("parity.__main__.end_at_once", lambda: None)
    assert main(["list"]) == code
    assert "fault" not in capsys.readouterr().err


def test_doctor_prints_as_it_goes_and_bounds_its_tries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With --model it printed nothing for minutes, and a library that hangs held it for ever."""
    quick = "print('1.0 | cpu')"
    probes = {"torch": ("hf vllm", quick), "vllm": ("vllm", "import subprocess; subprocess.run(['sleep', '600'])")}
    monkeypatch.setattr(shell, "PROBES", probes)
    tried = shell.try_backend
    seen: list[str] = []

    def noted(*given: object) -> shell.Tried:
        seen.append(capsys.readouterr().out)
        return tried(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(shell, "try_backend", noted)
    began = time.monotonic()
    assert main(["doctor", "--time-limit", "1.5", "--goldens", str(tmp_path)]) == 1
    assert time.monotonic() - began < 60
    said = capsys.readouterr()
    assert seen[0].startswith("gen_engine") and "torch" in seen[1] and "backend hf" in seen[1]
    assert "does not work   vllm: not done after 1.5 s; --time-limit gives it more" in said.out
    assert "backend vllm: vllm ..." in said.err
