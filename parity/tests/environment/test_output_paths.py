"""Paths of reports: found wrong before anything runs, by one rule for all commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.environment.output_paths import file_to_write, folder_to_write

CHECKS = [f"check --{kind}" for kind in ("json", "html", "junit", "markdown")]
FILES = [*CHECKS, "diff hf vllm --model M --json", "diff hf vllm --model M --html", "trace demo --png"]
FOLDERS = ["bench --model M --out", "schedule --out", "trace demo --out"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some_folder").mkdir()
    (tmp_path / "some_file").touch()
    return tmp_path


def refused(words: list[str]) -> bool:
    """Whether the command line refuses words, as usage."""
    try:
        main(words)
    except SystemExit as end:
        return end.code == 2
    return False


@pytest.mark.parametrize("path", ["-", "some_folder", "some_file/report", "/dev/null"])
@pytest.mark.parametrize("words", FILES)
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(
    words: str, path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(os.listdir(folder))
    assert refused([*words.split(), path])
    said = capsys.readouterr()
    assert said.out == "" and f"argument {words.split()[-1]}: " in said.err
    assert repr(path.removesuffix("/report")) in said.err
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("path", ["-", "some_file", "some_file/reports"])
@pytest.mark.parametrize("words", FOLDERS)
def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(
    words: str, path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused([*words.split(), path])
    assert f"argument {words.split()[-1]}: " in capsys.readouterr().err


@pytest.mark.parametrize("path", ["report.json", "new/folder/report.json", "some_file"])
def test_a_missing_folder_is_made_and_a_file_is_left_as_it_is(path: str, folder: Path) -> None:
    (folder / "some_file").write_text("old")
    assert file_to_write(path) == Path(path)
    assert Path(path).parent.is_dir()
    assert (folder / "some_file").read_text() == "old"
    assert folder_to_write("other/folder") == Path("other/folder")
    assert Path("other/folder").is_dir()
