"""What a package registry would hand out: the rooms that users need, the hook, the page and the types."""

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
    for name in ("gen_engine.py", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, copy / name)
    shutil.copytree(ROOT / "parity", copy / "parity", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import setuptools.build_meta as backend; print(backend.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(copy / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(into)
    return into


def test_it_holds_every_file_of_every_room_that_a_user_needs(installed: Path) -> None:
    kept = ("*.py", "page.html", "page.css", "versions.json", "skill.md")
    developers = ("tests", "proof")
    ours = {path.relative_to(ROOT) for kind in kept for path in (ROOT / "parity").rglob(kind)}
    theirs = {path.relative_to(installed) for path in (installed / "parity").rglob("*") if path.is_file()}
    needed = {path for path in ours if path.parts[1] not in developers}
    assert theirs == needed | {Path("parity/py.typed")}


def test_wheel_engine_is_the_file_as_a_typed_package(installed: Path, tmp_path: Path) -> None:
    package = installed / "gen_engine"
    assert (package / "__init__.py").read_bytes() == (ROOT / "gen_engine.py").read_bytes()
    assert (package / "py.typed").is_file() and not (installed / "gen_engine.py").exists()
    script = tmp_path / "script.py"
    script.write_text('from gen_engine import load\n\nload("m", bakend="hf").generate_txt_batch([])\n')
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert '"GenerationEngine" has no attribute "generate_txt_batch"' in done.stdout, done.stdout
    assert 'Unexpected keyword argument "bakend"' in done.stdout, done.stdout


@pytest.mark.parametrize("dest, companion", [("llm.py", []), ("llm", ["--with", "tool_calls"])])
def test_wheel_vendor_copies_and_knows_its_copies(
    dest: str, companion: list[str], installed: Path, tmp_path: Path
) -> None:
    def vendor(*words: str) -> str:
        command = [sys.executable, "-m", "parity.environment.vendor", dest, *words]
        paths = {**os.environ, "PYTHONPATH": str(installed)}
        done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert vendor("--copy", *companion).startswith("gen_engine.py ")
    assert vendor().count(": current ") == (2 if companion else 1)
    engine = tmp_path / dest if not companion else tmp_path / dest / "gen_engine.py"
    assert "class GenerationEngine" in engine.read_text(encoding="utf-8")


def test_wheel_holds_nothing_of_the_proof(installed: Path) -> None:
    assert (installed / "parity/judge").is_dir()
    assert not (installed / "parity/proof").exists() and not (installed / "parity/tests").exists()


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("command", ["demo", "trace demo", "schedule", "bench --model random-25m --backends hf"])
def test_wheel_says_that_a_command_needs_a_clone(command: str, installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parity", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "is not here, for a wheel leaves it out. Run this in a clone" in done.stderr


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
