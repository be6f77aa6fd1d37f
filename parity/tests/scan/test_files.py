"""Which files are read, and what becomes of those that cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from parity.scan.files import find_files, source_of
from parity.scan.scan import scan
from parity.tests.conftest import ROOT
from parity.tests.scan.material import LOAD, scan_texts


def notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# title"]}, *made]}, indent=1)


def test_find_files_vendored_folders_are_skipped_and_named(tmp_path: Path) -> None:
    for folder in ("src", ".venv/lib", "node_modules/x", "build", "pkg.egg-info", ".git"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("x = 1\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pyvenv.cfg").write_text("")
    found = find_files([str(tmp_path)])
    assert [Path(source.path).parent.name for source in found.sources] == ["src"]
    names = {Path(folder).name for folder in found.skipped}
    assert names == {".venv", "node_modules", "build", "pkg.egg-info", ".git", "mine"}


def test_find_files_a_vendored_copy_of_the_engine_is_no_call_site_unless_it_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "acme_engine.py"
    copy.write_text((ROOT / "gen_engine.py").read_text())
    (tmp_path / "mine.py").write_text("x = 1\n")
    found = find_files([str(tmp_path)])
    assert ([Path(source.path).name for source in found.sources], found.skipped) == (["mine.py"], [str(copy)])
    assert [source.path for source in find_files([str(copy)]).sources] == [str(copy)]


def test_find_files_path_that_is_not_there_raises() -> None:
    with pytest.raises(ValueError, match="there is no file or folder"):
        find_files(["no/such/folder"])


@pytest.mark.parametrize("cells", ["[1]", '[{"cell_type": "code"}, "x"]', "[" * 100_000, '{"a": 1}'])
def test_scan_notebook_of_another_shape_is_named_and_the_others_are_read(tmp_path: Path, cells: str) -> None:
    (tmp_path / "broken.ipynb").write_text(f'{{"cells": {cells}}}')
    (tmp_path / "good.py").write_text(LOAD + "model.generate(max_new_tokens=3)\n")
    found = scan([str(tmp_path)])
    assert len(found.blocks) == 1
    assert [(Path(source.path).name, bool(source.problem)) for source in found.problems] == [("broken.ipynb", True)]


def test_scan_a_pipe_and_a_device_are_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "device.py").symlink_to("/dev/zero")
    (tmp_path / "good.py").write_text(LOAD + "model.generate(max_new_tokens=3)\n")
    (tmp_path / "link.py").symlink_to("good.py")
    found = scan([str(tmp_path)])
    assert len(found.blocks) == 2
    assert {Path(source.path).name: source.problem for source in found.problems} == {
        "pipe.py": "it is not a regular file",
        "device.py": "it is not a regular file",
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"def f(:\n", "line 1: "), (b"x = '\x00'\n", "null bytes"), (b"print 'python 2'\n", "line 1: ")],
)
def test_scan_file_that_does_not_parse_is_named_and_the_others_are_read(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "broken.py").write_bytes(content)
    (tmp_path / "good.py").write_text(LOAD + "model.generate(max_new_tokens=3)\n")
    found = scan([str(tmp_path)])
    assert len(found.blocks) == 1
    [source] = found.problems
    assert source.path.endswith("broken.py") and problem in source.problem


def test_scan_files_notebook_line_is_the_line_of_its_file() -> None:
    text = notebook("!pip install x\n%matplotlib inline\n" + LOAD, "out = model.generate(**x, max_new_tokens=7)\n")
    [block] = scan_texts({"nb.ipynb": text}).blocks
    assert text.splitlines()[block.line - 1].strip().startswith('"out = model.generate(')
    assert block.facts["max_new_tokens"].value == 7
    assert block.block.module.source.cell(block.block.node.lineno) == 3


@pytest.mark.parametrize("cell", ["%%bash\nls -l | head", "def f(:\n  ?", "%%time\n!nvidia-smi\nx = 1"])
def test_scan_files_notebook_cell_that_is_no_python_costs_nothing_else(cell: str) -> None:
    text = notebook(cell, LOAD, "model.generate(**x, max_new_tokens=7)")
    assert len(scan_texts({"nb.ipynb": text}).blocks) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}'])
def test_source_of_what_is_no_notebook_is_named(text: str) -> None:
    assert source_of("nb.ipynb", text.encode()).problem
