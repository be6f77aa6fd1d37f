"""`check -- python new.py`: how the script ends counts, one that does not end is ended, and what cannot be read is the
error of its case alone."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.store import Store
from parity.tests.conftest import ROOT, TEXT

SCRIPT = """
import os, signal, subprocess, sys, time

def answer(word):
    return word.upper()

def later(word):
    return word.title()

if __name__ == "__main__":
    answer("one")
    answer("two")
    later("three")
"""
SITES = ["--site", "answers=script.py:answer", "--site", "later=script.py:later"]
CHECK = ["check", "answers", "later", "--json", "check.json"]
COMMAND = ["--", "python", "script.py"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Store:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("script.py").write_text(SCRIPT)
    assert main(["record", *SITES, *COMMAND]) == 4
    capfd.readouterr()
    return Store("golden")


def verdicts() -> dict[str, str]:
    found = json.loads(Path("check.json").read_text())["outcomes"]
    return {f"{o['site']}/{o['case']}": o["verdict"] for o in found}


def said_by(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join(capfd.readouterr().out.split())


GOOD = {"answers/answer-001": "IDENTICAL", "answers/answer-002": "IDENTICAL", "later/later-001": "IDENTICAL"}


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ("raise ValueError('after its last call')", "the script ended with exit code 1"),
        ("os._exit(3)", "the script ended with exit code 3"),
        ("sys.exit(2)", "the script ended with exit code 2"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the script ended by signal 11 (SIGSEGV)"),
    ],
)
def test_a_script_that_fails_after_its_last_call_does_not_pass(
    ends: str, says: str, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("script.py").write_text(f"{SCRIPT}    {ends}\n")
    assert main([*CHECK, *COMMAND]) == 3
    said = said_by(capfd)
    assert says in said and "and with 0 when it was recorded" in said, said
    assert verdicts() == {**GOOD, "answers/*": "ERROR", "later/*": "ERROR"}


def test_a_script_may_end_as_it_did_when_it_was_recorded(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(f"{SCRIPT}    sys.exit(7)\n")
    assert main([*CHECK, *COMMAND]) == 3
    assert '"answers": {"exit_code": 7}' in said_by(capfd), "what to say where that is right"
    assert main(["record", *SITES, *COMMAND]) == 7
    assert [store.settings()[site]["exit_code"] for site in ("answers", "later")] == [7, 7]
    assert main([*CHECK, *COMMAND]) == 0
    assert verdicts() == GOOD
    Path("script.py").write_text(f"{SCRIPT}    sys.exit(8)\n")
    assert main([*CHECK, *COMMAND]) == 3
    assert "the script ended with exit code 8, and with 7 when it was recorded" in said_by(capfd)
    Path("script.py").write_text(SCRIPT)
    assert main([*CHECK, *COMMAND]) == 0, "without an error"
    assert main(["record", *SITES, *COMMAND]) == 0 and "exit_code" not in store.settings()["answers"]


@pytest.mark.parametrize(
    "hangs", ["time.sleep(1000)", "while True: answer('again'); time.sleep(0.01)", "subprocess.run(CHILD)"]
)
def test_a_script_without_an_end_is_ended_with_its_children(
    hangs: str, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    tells = "    open('pids', 'a').write(f'{os.getpid()} ')\n"
    child = "import os, time; open('pids', 'a').write(f'{os.getpid()} '); time.sleep(1000)"
    Path("script.py").write_text(f"{SCRIPT}    CHILD = [sys.executable, '-S', '-c', {child!r}]\n{tells}    {hangs}\n")
    began = time.monotonic()
    assert main([*CHECK, "--time-limit", "4", *COMMAND]) == 3
    assert time.monotonic() - began < 300
    assert "--time-limit" in said_by(capfd)
    found = verdicts()
    assert GOOD.items() <= found.items() and found["answers/*"] == found["later/*"] == "ERROR"
    pids = Path("pids").read_text().split()
    assert len(pids) == 1 + ("CHILD" in hangs)
    until = time.monotonic() + 60  # init fetches what is left of a grandchild when it comes to it
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, "still there"
        time.sleep(0.05)


def test_a_call_that_hangs_is_no_answer(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(SCRIPT.replace("return word.title()", "time.sleep(1000)"))
    assert main([*CHECK, "--time-limit", "4", *COMMAND]) == 3
    assert {**verdicts(), "answers/*": "ERROR"} == {**GOOD, "later/later-001": "UNUSED", "answers/*": "ERROR",
                                                   "later/*": "ERROR"}  # fmt: skip


def test_what_could_not_be_observed_is_an_error(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    odd = "class Odd(dict):\n    def items(self):\n        raise RuntimeError('not for you')\n"
    Path("script.py").write_text(SCRIPT.replace("def later(word)", f"{odd}\ndef later(word, odd=Odd())").replace(
        'later("three")', 'later("three", Odd())'))  # fmt: skip
    assert main([*CHECK, *COMMAND]) == 3
    said = said_by(capfd)
    assert "not all could be observed: arguments of script.py:later: RuntimeError: not for you" in said, said


BROKEN = '{\n "format": 1,\n'


def test_a_broken_golden_is_the_error_of_its_case_alone(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    store.path("answers", "answer-001").write_text(BROKEN)
    store.path("later", "later-001").write_text(BROKEN)
    assert main([*CHECK, *COMMAND]) == 3
    assert "golden/answers/answer-001.json cannot be read" in said_by(capfd)
    assert verdicts() == {**GOOD, "answers/answer-001": "ERROR", "later/later-001": "ERROR"}


@pytest.mark.parametrize("content", [BROKEN, "[]"])
@pytest.mark.parametrize("command", [COMMAND, []], ids=["script", "functions"])
def test_a_broken_environment_is_the_error_of_its_cases_alone(
    command: list[str], content: str, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    store.write(dataclasses.replace(store.read("answers", "answer-001"), environment="0123456789ab"))
    (store.root / "environments/0123456789ab.json").write_text(content)
    assert main([*CHECK, *command]) == 3
    said = said_by(capfd)
    assert "golden/environments/0123456789ab.json" in said, said
    assert verdicts() == {**GOOD, "answers/answer-001": "ERROR"}


@pytest.mark.parametrize("content", [BROKEN, BROKEN + " }}"])
def test_prune_says_what_it_cannot_read_and_removes_nothing_that_it_may_use(
    content: str, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """What stands behind the place where a file was cut off nobody knows."""
    used, unused = store.put_blob(b"used", ".png"), store.put_blob(b"unused", ".png")
    store.path("answers", "answer-001").write_text(content.replace("1,", f'1, "{used}"'))
    assert main(["prune", "--yes"]) == 3
    said = capfd.readouterr().err
    assert "golden/answers/answer-001.json cannot be read" in said
    kept = set(store.folder.files("blobs"))
    assert kept == ({used, unused} if content == BROKEN else {used})
    assert ("nothing is removed" in said) == (content == BROKEN)
    assert main(["prune", "answers/answer-001", "--yes"]) == 0
    assert main(["prune", "--yes"]) == 0 and not store.folder.files("blobs")


ASKS = """
import sys
from gen_engine import load

def ask(word):
    with load(sys.argv[1], dtype="float32", backend=sys.argv[2], max_model_len=512) as engine:
        return engine.generate_text_batch([{"prompt": word}], {"max_new_tokens": 2})[0].text

if __name__ == "__main__":
    try:
        ask("one")
    except Exception:
        pass
"""


@pytest.mark.usefixtures("forked_python")
def test_a_scripts_calls_are_of_the_backend_they_ran_on_which_reads_their_numerics_if_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("asks.py").write_text(ASKS)
    site, words = ["--site", "asks=asks.py:ask"], ["--", "python", "asks.py", str(TEXT)]
    assert main(["record", *site, *words, "hf"]) == 4
    outcomes = {}
    for name, model, backend in (("hf", TEXT, "hf"), ("gone", tmp_path / "nowhere", "hf"), ("vllm", TEXT, "vllm")):
        command = ["--", "python", "asks.py", str(model), backend]
        main(["check", *site, "--numerics", "--json", "check.json", *command])
        found = json.loads(Path("check.json").read_text())
        [outcomes[name]] = found["outcomes"]
    assert {name: (o["verdict"], o["backend"]) for name, o in outcomes.items()} == {
        "hf": ("IDENTICAL", "hf"),
        "gone": ("ERROR", "hf"),
        "vllm": ("IDENTICAL", "vllm"),
    }
    assert "could not be run here: LoadError" in outcomes["gone"]["cause"]["sentence"]
    # vLLM's engine ended with its script, and a golden holds the name of its checkpoint's folder alone.
    [numerics] = found["numerics"]
    assert numerics["backend"] == "vllm"
    # It was read; whether the tokens that are made decide it, the machine says.
    assert numerics["outcome"] in ("holds", "cannot tell"), numerics
