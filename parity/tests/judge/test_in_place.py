"""Code that is edited in place: `check` knows whether new code ran, and says so where none did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.acceptance import Accepted
from parity.goldens.store import Store

ANSWERS = """
from acme.words import shout

MARK = "!"


def ended(text):
    return text + MARK


def answer(word):
    return ended(shout(word))


if __name__ == "__main__":
    answer("yes")
    answer("no")
"""
WORDS = "def shout(word):\n    return word.upper()\n\n\ndef whisper(word):\n    return word.lower()\n"
RECORD = ["record", "--site", "answers=acme.answers:answer", "--", sys.executable, "-m", "acme.answers"]
OLD_CODE = "THE RECORDED CODE ITSELF of answers ran again (acme.answers:answer)"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A package with a call site, and its goldens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "acme").mkdir()
    for name, text in (("__init__", ""), ("answers", ANSWERS), ("words", WORDS)):
        (tmp_path / f"acme/{name}.py").write_text(text)
    assert main(RECORD) == 4
    return Store("golden")


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["check", *words])
    return code, " ".join(capsys.readouterr().out.split())


def edit(name: str, before: str, after: str) -> None:
    path = Path("acme", f"{name}.py")
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_check_of_code_that_was_not_edited_says_that_the_recorded_code_ran(
    recorded: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = checked(capsys)
    assert code == 0 and said.count(OLD_CODE) == 1
    edit("answers", "def ended", "# a remark\ndef ended")
    edit("words", "lower()", "title()")
    assert OLD_CODE in checked(capsys)[1], "neither a remark nor what it does not use is new code"


@pytest.mark.parametrize(
    ("name", "before", "after", "code"),
    [
        ("answers", "ended(shout(word))", "ended(shout(str(word)))", 0),
        ("answers", 'MARK = "!"', 'MARK = "?"', 1),
        ("words", "word.upper()", "str(word).upper()", 0),
    ],
    ids=["the function", "a constant of its file", "a helper in another file"],
)
def test_check_of_code_that_was_edited_in_place_judges_it_without_a_warning(
    name: str,
    before: str,
    after: str,
    code: int,
    recorded: Store,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit(name, before, after)
    found, said = checked(capsys)
    assert found == code
    assert "THE RECORDED CODE" not in said and "THE OLD CODE" not in said and "--moved" not in said


def test_check_of_goldens_without_a_source_says_what_it_cannot_know(
    recorded: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goldens of older releases."""
    for name in recorded.names("answers"):
        path = recorded.path("answers", name)
        said = json.loads(path.read_text())
        assert said.pop("source")
        del said["digest"]
        path.write_text(json.dumps(said))
    code, said = checked(capsys)
    assert code == 0 and "ONLY THE OLD CODE of answers was run again" in said


def test_record_again_after_an_edit_keeps_the_golden_and_overwrite_takes_the_source(
    recorded: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recorded.path("answers", "answer-001").read_text()
    edit("answers", "ended(shout(word))", "ended(shout(str(word)))")
    assert main(RECORD) == 0
    assert recorded.path("answers", "answer-001").read_text() == before
    assert main([*RECORD[:1], "--overwrite", *RECORD[1:]]) == 4
    assert OLD_CODE in checked(capsys)[1]


def test_record_over_an_accepted_golden_says_that_the_acceptance_covers_nothing_now(
    recorded: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for case in ("answer-001", "answer-002"):
        recorded.accept(Accepted("answers", case, "hf", "value", (), "0", "wanted", "2999-01-01"))
    edit("answers", "return ended(shout(word))", "return ended(shout(word)) if word == 'no' else word")
    assert main([*RECORD[:1], "--overwrite", *RECORD[1:]]) == 4
    said = capsys.readouterr().out
    assert said.count("parity accept --withdraw answers/answer-001") == 1
    assert "withdraw answers/answer-002" not in said, "it gives what it gave, and only its source was taken"


# == The old code is in git only ==

CALLS = "from acme.answers import answer\n\nanswer('yes')\n"


def git(*words: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, *words], check=True, capture_output=True)


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A repository whose call site was edited in place and committed before anything was recorded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    git("init", "-q")
    for mark in "!?":
        for name, text in (("__init__", ""), ("answers", ANSWERS), ("words", WORDS)):
            (tmp_path / "acme").mkdir(exist_ok=True)
            (tmp_path / f"acme/{name}.py").write_text(text.replace('MARK = "!"', f'MARK = "{mark}"'))
        git("add", "acme")
        git("commit", "-qm", mark)
    return Store("golden")


@pytest.mark.parametrize("script", ["", "untracked", "committed since"])
def test_record_of_a_revision_records_its_code(script: str, edited: Store, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["-m", "acme.answers"]
    if script:
        Path("calls.py").write_text(CALLS)
        command = ["calls.py"]
    if script == "committed since":
        git("add", "calls.py")
        git("commit", "-qm", "calls")
    old = "HEAD~2" if script == "committed since" else "HEAD~1"
    assert main([*RECORD[:1], "--old", old, *RECORD[1:4], sys.executable, *command]) == 4
    golden = edited.read("answers", "answer-001")
    assert golden.value == "YES!" and edited.names("answers")[0] == "answer-001"
    assert Path.cwd() == edited.root.absolute().parent
    assert main([*RECORD[:4], sys.executable, *command]) == 1, "the code of today gives another value"
    assert "was YES▸! is YES▸?" in checked(capsys)[1]


def test_record_of_a_revision_refuses_code_that_is_not_its_own(
    edited: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("calls.py").write_text(f"import sys\n\nsys.path.insert(0, {str(tmp_path)!r})\n{CALLS}")
    command = [*RECORD[:1], "--old", "HEAD~1", *RECORD[1:4], sys.executable, "calls.py"]
    assert main(command) == 5
    assert "not from the revision" in capsys.readouterr().out and not edited.names("answers")
    assert main([*command[:2], "nowhere", *command[3:]]) == 2
    assert "is no revision" in capsys.readouterr().err
