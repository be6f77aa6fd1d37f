"""Readings that are kept between checks: what is trusted of them, and what is read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from parity.judge.numerics import cache
from parity.judge.numerics.cache import Shelf, folder_digest
from parity.judge.numerics.reading import Scored, token_row

KEY = {"checkpoint": "abc", "dtype": "bfloat16"}
ROWS = [token_row([1, 2, 3], [4, 5]), token_row([1, 2], [7], others=((2, 8),))]
SCORES = [Scored((-1.0, -2.5, -0.1, -3.0)), Scored((-1.0, None), (-0.5,), (2.0,))]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    return tmp_path


def filled() -> Path:
    shelf = Shelf(KEY)
    shelf.facts["adapter"] = "1f"
    shelf.keep(ROWS, SCORES)
    assert shelf.file is not None
    return shelf.file


def test_shelf_gives_another_process_what_was_kept() -> None:
    filled()
    again = Shelf(KEY)
    assert again.get(ROWS) == SCORES and again.lacks(ROWS) == [] and again.facts == {"adapter": "1f"}


def test_shelf_lacks_rows_that_ask_for_other_candidates_and_each_once() -> None:
    filled()
    other = dataclasses.replace(ROWS[1], others=((2, 9),))
    assert Shelf(KEY).lacks([ROWS[0], other, other]) == [other]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:-9], "cannot be read"),
        (lambda text: text.replace("-2.5", "-2.4"), "checksum"),
        (lambda text: text.replace('"1f"', '"2e"'), "checksum"),
        (lambda text: json.dumps({"rows": {}}), "cannot be read"),
        (lambda text: text.replace('"abc"', '"abd"'), "of another path"),
    ],
)
def test_shelf_of_a_damaged_or_foreign_file_is_empty_and_says_so(
    damage: object, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = filled()
    file.write_text(damage(file.read_text()))  # type: ignore[operator]
    shelf = Shelf(KEY)
    assert shelf.lacks(ROWS) == ROWS and says in capsys.readouterr().err
    shelf.keep(ROWS, SCORES)
    assert Shelf(KEY).get(ROWS) == SCORES


def test_shelf_of_another_key_has_nothing_of_this_one() -> None:
    filled()
    assert Shelf({**KEY, "dtype": "float32"}).lacks(ROWS) == ROWS


def test_no_folder_keeps_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PARITY_CACHE", "")
    shelf = Shelf(KEY)
    shelf.keep(ROWS, SCORES)
    assert shelf.get(ROWS) == SCORES and not list(folder.iterdir())


def test_folder_that_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("PARITY_CACHE", str(folder / "file"))
    shelf = Shelf(KEY)
    shelf.keep(ROWS, SCORES)
    assert shelf.get(ROWS) == SCORES and "not kept" in capsys.readouterr().err


def test_old_files_go_first(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(cache, "MOST_FILES", 2)
    for name in "abcd":
        Shelf({"checkpoint": name}).keep(ROWS, SCORES)
    assert len(list(folder.glob("*.json"))) == 2


def test_checkpoint_whose_bytes_change_is_another_one(tmp_path: Path) -> None:
    """Also in the middle of a file, where the fingerprint of a golden does not look."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    weights = bytearray(1 << 20)
    (model / "model.safetensors").write_bytes(weights)
    before = folder_digest(str(model))
    weights[1 << 19] = 1
    (model / "model.safetensors").write_bytes(weights)
    assert folder_digest(str(model)) != before
