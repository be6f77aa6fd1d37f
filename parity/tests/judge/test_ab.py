"""check --ab on code changed in place: the old code is that of a revision, and nothing is compared with itself."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.store import Case, Store

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
    assert "was  Y▸ES" in said and "is  Y▸es" in said and "scripts/a on hf: " in said and "stale" not in said
    Path("acme/words.py").write_text("# as it was\n" + WORDS)
    assert main(["check", "--ab", "--old", "HEAD"]) == 0
    assert git("worktree", "list").count("\n") == 1, "nothing is left of it"


def test_nothing_is_compared_with_itself(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--ab"]) == 2
    assert "`check --ab --old HEAD~1`" in capsys.readouterr().err
    assert main(["check", "--ab", "--old", "HEAD"]) == 2
    assert "no file of" in capsys.readouterr().err
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


READS = """
import os
from pathlib import Path

def answer(word, folder="photos"):
    said = {str(path): path.read_text() for path in sorted(Path(".").glob("*/**/*.txt"))}
    return [word, said, os.path.abspath("out"), sorted(os.listdir(folder)), sorted(os.listdir("models"))]
"""


@pytest.fixture
def reads(store: Store) -> Store:
    """Its old code reads files by relative paths: tracked ones, ignored ones beside them, and untracked folders."""
    Path("acme/answers.py").write_text(READS)
    files = {"prompts/p.txt": "old", "prompts/gone.txt": "there", "photos/a.txt": "a", ".gitignore": "*.bin\ncache/\n"}
    for name, text in {**files, "prompts/sub/q.txt": "q", "models/weights.bin": "1", "cache/c.txt": "c"}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    git("add", "acme", "prompts", "photos", ".gitignore")
    git("commit", "-qm", "prompts")
    Path("prompts/cached.bin").write_text("cached")
    store.path("scripts", "a").unlink()
    return store


def checked(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["check", "answers", "--ab", "--old", "HEAD"])
    assert git("worktree", "list").count("\n") == 1, "nothing is left of it"
    assert Path("models/weights.bin").read_text() == "1" and Path("cache/c.txt").read_text() == "c"
    return code, " ".join(capsys.readouterr().out.split())


def test_old_code_reads_the_files_of_its_revision(reads: Store, capsys: pytest.CaptureFixture[str]) -> None:
    Path("acme/words.py").write_text("# as it was\n" + WORDS)
    assert checked(capsys)[0] == 0, "and finds what git does not track, under the paths that there are now"
    for path, text in (("prompts/p.txt", "new"), ("prompts/sub/q.txt", "n")):
        before = Path(path).read_text()
        Path(path).write_text(text)
        code, said = checked(capsys)
        assert code == 1 and "DRIFT answers/a" in said, said
        Path(path).write_text(before)
    git("rm", "-q", "prompts/gone.txt")
    assert checked(capsys)[0] == 1, "a file that is gone was there"


def test_a_changed_file_of_another_kind_is_a_change(reads: Store, capsys: pytest.CaptureFixture[str]) -> None:
    Path("prompts/p.txt").write_text("new")
    assert checked(capsys)[0] == 1
    git("add", "golden")
    git("commit", "-qam", "and its goldens")
    reads.write(dataclasses.replace(reads.read("answers", "a"), case="b"))
    git("add", "golden")
    assert main(["check", "answers", "--ab", "--old", "HEAD"]) == 2, "goldens are no code"


def test_paths_among_arguments_are_found_where_the_old_code_runs(
    reads: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("acme/answers.py").write_text(READS.replace("*/**/*.txt", "p*/p*.txt"))
    git("commit", "-qam", "reads less")
    Path("later/deep/er").mkdir(parents=True)
    Path("later/deep/er/new.txt").write_text("tracked now, unknown then")
    git("add", "later")
    for case, folder in (("a", "models"), ("b", "later/deep"), ("c", "prompts")):
        reads.write(Case("answers", case, "acme.answers:answer", {"word": "w", "folder": folder}, value="stale"))
    assert checked(capsys)[0] == 0
    Path("prompts/new.txt").write_text("new")
    git("add", "prompts")
    code, said = checked(capsys)
    assert code == 1 and "2 IDENTICAL 1 DRIFT" in said, said
    monkeypatch.chdir("later")  # where both find no models
    assert main(["--goldens", "../golden", "check", "answers/c", "--ab", "--old", "HEAD"]) == 0


SPEAKS = (
    "class Speaker:\n    def say(self, word):\n        return word.upper()\n\n\ndef make():\n    return Speaker()\n"
)
SETUP = "from acme.words import Voice\n\n\ndef make():\n    return Voice({!r})\n"
VOICE = "class Voice:\n    def __init__(self, mark):\n        self.mark = mark\n"
TAKES = "def answer(word, voice):\n    return word + voice.mark\n"


@pytest.fixture
def voices(store: Store) -> Store:
    """A repository whose call site takes an object; what makes one was written later than the revision HEAD."""
    Path("acme/answers.py").write_text(TAKES)
    Path("acme/words.py").write_text(VOICE)
    git("commit", "-qam", "takes an object")
    store.path("scripts", "a").unlink()
    taken = {"word": "yes", "voice": {"$object": "acme.words.Voice"}}
    store.write(Case("answers", "a", "acme.answers:answer", taken, value="stale"))
    return store


def against_head(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["check", "--ab", "--old", "HEAD"])
    return code, " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("setting", "kind", "factory"),
    [
        ("arguments", "untracked", "acme.setup:make"),
        ("arguments", "staged", "acme.setup:make"),
        ("arguments", "another one then", "acme.setup:make"),
        ("arguments", "staged", "setup_voice.py:make"),
        ("old_arguments", "staged", "acme.setup:make"),
    ],
)
def test_factories_of_a_revisions_code_are_those_of_today(
    setting: str, kind: str, factory: str, voices: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    module = factory.partition(":")[0]
    place = Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    if kind == "another one then":
        place.write_text("def make():\n    raise RuntimeError('of then')\n")
        git("add", str(place))
        git("commit", "-qm", "setup")
    place.write_text(SETUP.format("!"))
    if kind == "staged":
        git("add", str(place))
    Path("setup_now.py").write_text(SETUP.format("!"))
    made = {"arguments": {"voice": "setup_now:make"}, setting: {"voice": factory}}
    voices.set_site("answers", **made)
    Path("acme/answers.py").write_text(TAKES.replace("word + voice.mark", "(word + voice.mark).title()"))
    code, said = against_head(capsys)
    assert code == 1 and "was ▸yes! is ▸Yes!" in said, said


def test_a_factory_in_the_file_of_the_recorded_function_is_the_revisions_own(
    voices: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("acme/answers.py").write_text(SPEAKS)
    git("commit", "-qam", "a method")
    taken = {"self": {"$object": "acme.answers.Speaker"}, "word": "yes"}
    voices.write(Case("answers", "a", "acme.answers:Speaker.say", taken, value="stale"))
    voices.set_site("answers", functions=["acme.answers:Speaker.say"], arguments={"self": "acme.answers:make"})
    Path("acme/answers.py").write_text(SPEAKS.replace("upper", "title"))
    code, said = against_head(capsys)
    assert code == 1 and "was Y▸ES is Y▸es" in said, said
