"""What a started Python has and does, a fork has and does, too; and where it cannot, a Python is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_python")

PYTHON = sys.executable  # before the fixture
TELLS = """
import json, os, sys
print("to stderr", file=sys.stderr)
state = dict(argv=sys.argv, path=sys.path[:2], folder=os.getcwd(), given=os.environ["GIVEN"], name=__name__)
print(json.dumps({**state, "input": sys.stdin.read(), "files": os.listdir("/proc/self/fd"), "main": dir()}))
"""


def run(python: str, *words: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIVEN": "x", **variables}
    return subprocess.run(
        [python, *words], input="in", capture_output=True, text=True, cwd=folder, env=environment, check=False
    )


def is_forked(*words: str, **variables: str) -> bool:
    done = run(sys.executable, *words, "-c", "import sys; print('torch' in sys.modules)", folder=None, **variables)
    return done.stdout == "True\n"


@pytest.mark.parametrize(
    "words", [["-c", TELLS], ["-m", "inner.tells"], ["inner/tells.py"]], ids=lambda words: words[0]
)
def test_fork_has_what_a_started_python_has(words: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/tells.py").write_text(TELLS)
    given = [run(one, *words, "a", "b c", folder=tmp_path, PYTHONPATH="/no/such") for one in (sys.executable, PYTHON)]
    assert [one.stderr for one in given] == ["to stderr\n"] * 2
    forked, started = (json.loads(one.stdout) for one in given)
    assert set(forked.pop("main")) <= set(started.pop("main")) | {"__file__"}
    assert forked == started and started["path"][1] == "/no/such"


ENDS = {
    "none": "pass",
    "code": "import sys; sys.exit(7)",
    "words": "import sys; sys.exit('so it ends')",
    "error": "import sys; sys.tracebacklimit = 0; raise ValueError('at the end')",
    "exit": "import os; os._exit(300 % 256)",
    "handlers": "import atexit; atexit.register(print, 'over')",
    "threads": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
    "crash": "import ctypes; ctypes.string_at(0)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "import os, signal, sys; sys.tracebacklimit = 0; os.kill(os.getpid(), signal.SIGINT)",
}


@pytest.mark.parametrize("end", ENDS)
def test_fork_ends_as_a_started_python_does(end: str) -> None:
    forked, started = (run(one, "-c", ENDS[end]) for one in (sys.executable, PYTHON))
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    if end != "crash":  # vLLM has Python tell where
        assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


WAITS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, "torch" in sys.modules, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("number", "left"), [(signal.SIGTERM, 1), (signal.SIGKILL, 0)])
def test_signal_to_the_client_ends_the_fork_and_what_kills_it_kills_its_children(number: int, left: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            *pids, forked = process.stdout.readline().split()
            assert forked == "True"
            process.send_signal(number)
            assert process.wait() == -number
        finally:
            process.kill()  # else a test that fails would wait for it
    until = time.monotonic() + 60
    while len(alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) > left:
        assert time.monotonic() < until, "still there"
        time.sleep(0.02)
    for pid in alive:
        os.kill(int(pid), signal.SIGKILL)


STARTS_BESIDE_AN_ENGINE = """
import os, subprocess, sys
from parity.tests.conftest import TEXT, open_engine
open_engine(TEXT, "vllm").close()
code = "import os, sys; print('torch' in sys.modules, os.environ['VLLM_DIST_IDENT'] == sys.argv[1])"
subprocess.run([sys.executable, "-c", code, os.environ["VLLM_DIST_IDENT"]], check=True)
"""


def test_what_engines_leave_in_the_environment_makes_no_other_process() -> None:
    done = run(sys.executable, "-c", STARTS_BESIDE_AN_ENGINE)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_file_that_is_handed_over_has_its_number() -> None:
    ours, theirs = os.pipe()
    code = "import os, sys; os.write(int(sys.argv[1]), str('torch' in sys.modules).encode())"
    subprocess.run([sys.executable, "-c", code, str(theirs)], pass_fds=[theirs], check=True)
    os.close(theirs)
    with open(ours) as file:
        assert file.read() == "True"


def test_what_a_fork_starts_is_a_fork() -> None:
    inner = "import sys; print('torch' in sys.modules, flush=True); sys.exit(7)"
    code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {inner!r}]))"
    done = run(sys.executable, "-c", code)
    assert (done.stdout, done.returncode) == ("True\n", 7)


def test_what_no_fork_can_be_is_started() -> None:
    assert not is_forked("-S") and not is_forked("-I")
    assert not is_forked(OMP_NUM_THREADS="3") and not is_forked(HF_HOME="/no/such")
    assert is_forked("-B", "-u", PYTHONPATH="/no/such", SOMETHING="else")


def test_forks_sample_differently() -> None:
    code = "import {0}; print({0}.random())"
    for module in ("random", "numpy.random"):
        told = {run(sys.executable, "-c", code.format(module)).stdout for _ in range(2)}
        assert len(told) == 2, module
