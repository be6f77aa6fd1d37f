"""check --ab on code changed in place: the old code is that of a revision, and nothing is compared with itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.golden import Case, Store

OLD = "from acme.words import shout\n\ndef answer(word):\n    return shout(word)\n"
WORDS = "def shout(word):\n    return word.upper()\n"


def git(*words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *author, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A repository with one commit; its golden is stale: the environment was another one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "acme").mkdir()
    for name, text in (("__init__", ""), ("answers", OLD), ("words", WORDS)):
        (tmp_path / f"acme/{name}.py").write_text(text)
    (tmp_path / "script.py").write_text(OLD)
    git("init", "-q")
    git("add", "acme", "script.py")
    git("commit", "-qm", "old")
    store = Store("golden")
    store.write(Case("answers", "a", "acme.answers:answer", {"word": "yes"}, value="stale"))
    store.write(Case("scripts", "a", "script.py:answer", {"word": "no"}, value="stale"))
    store.set_site("answers", functions=["acme.answers:answer"])
    store.set_site("scripts", functions=["script.py:answer"])
    return store


def test_a_function_changed_in_place_is_compared_with_its_revision(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("acme/words.py").write_text(WORDS.replace("upper", "title"))
    assert main(["check", "--ab", "--old", "HEAD"]) == 1
    said = capsys.readouterr().out
    assert "was  Y▸ES" in said and "is  Y▸es" in said and "was  N▸O" in said and "stale" not in said
    Path("acme/words.py").write_text("# as it was\n" + WORDS)
    assert main(["check", "--ab", "--old", "HEAD"]) == 0
    assert git("worktree", "list").count("\n") == 1, "nothing is left of it"


def test_nothing_is_compared_with_itself(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--ab"]) == 2
    assert "`check --ab --old HEAD~1`" in capsys.readouterr().err
    assert main(["check", "--ab", "--old", "HEAD"]) == 2
    assert "no Python file of" in capsys.readouterr().err
    assert main(["check", "--ab", "--old", "nowhere"]) == 2
    assert "is no revision" in capsys.readouterr().err
    assert main(["check", "--old", "HEAD"]) == 2
    Path("acme/again.py").write_text("from acme.answers import answer\n")
    assert main(["check", "answers", "--ab", "--moved", "acme.answers=acme.again"]) == 3
    assert "with itself" in " ".join(capsys.readouterr().out.split())


def test_old_code_that_ends_the_process_is_an_error_of_its_cases(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("acme/new.py").write_text(OLD)
    Path("acme/answers.py").write_text(OLD.replace("return", "import os; os._exit(0)\n    return"))
    assert main(["check", "answers", "--ab", "--moved", "acme.answers=acme.new"]) == 3
    assert "the old code: it did not come back" in " ".join(capsys.readouterr().out.split())
