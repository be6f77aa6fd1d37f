"""What a package registry would hand out: a wheel has every room, the hook and the page, and works on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import ROOT

SCRIPT = """
def shout(text):
    return text.upper()

if __name__ == "__main__":
    print(shout("a"))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, built from a copy: building leaves folders behind."""
    copy, into = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("installed")
    for name in ("gen_engine.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, copy / name)
    shutil.copytree(ROOT / "parity", copy / "parity", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import setuptools.build_meta as backend; print(backend.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(copy / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(into)
    return into


def test_it_holds_every_file_of_every_room_that_a_user_needs(installed: Path) -> None:
    kept = ("*.py", "report.html", "versions.json")
    ours = {path.relative_to(ROOT) for kind in kept for path in (ROOT / "parity").rglob(kind)}
    theirs = {path.relative_to(installed) for path in (installed / "parity").rglob("*") if path.is_file()}
    assert theirs == {path for path in ours if path.parts[1] not in ("tests", "foreign")}


def test_it_records_and_checks_with_nothing_of_this_folder_on_the_path(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(SCRIPT)

    def parity(*words: str) -> tuple[int, str]:
        command, paths = [sys.executable, "-m", "parity", *words], {"PYTHONPATH": str(installed)}
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, said = parity("record", "--site", "shouts=old.py:shout", "--", "python", "old.py")
    assert code == 4 and "written  shouts: 1 cases" in said, said
    code, said = parity("check", "--html", "page.html")
    assert code == 0 and "1 IDENTICAL" in said, said
    assert "shout-001" in (tmp_path / "page.html").read_text(encoding="utf-8")
