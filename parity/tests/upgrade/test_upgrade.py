"""`parity upgrade` between two real environments, made of links to this one's libraries, in which two small packages
have other versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from parity.elsewhere import Ran, own_code, run_there
from parity.upgrade.packages import Package, installed_here, make_environment

SCRIPT = """
import shout

def loud(text):
    return shout.loud(text)

if __name__ == "__main__":
    print(loud("what"))
"""
LOUD = {"1.0": "def loud(text): return text + '!'\n", "2.0": "def loud(text): return text.upper() + '!'\n"}


def wheel(folder: Path, name: str, version: str, source: str, requires: str = "") -> Package:
    """A package as an installer would have left it."""
    site = folder / f"{name}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    files = {f"{name}.py": source, f"{name}-{version}.dist-info/METADATA": metadata}
    record = "".join(f"{file},sha256={hashlib.sha256(text.encode()).hexdigest()},\n" for file, text in files.items())
    files[f"{name}-{version}.dist-info/RECORD"] = record
    for file, text in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
    return Package(name, version, str(site), tuple(files), (requires,) if requires else (), record)


@pytest.fixture(scope="module")
def variables() -> Iterator[Mapping[str, str]]:
    with own_code() as variables:
        yield variables


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, variables: Mapping[str, str]) -> Path:
    """old/ and new/ with a site of code whose golden the old one recorded."""
    folder = tmp_path_factory.mktemp("world")
    common = [package for package in installed_here().packages.values() if package.name != "gen-engine"]
    for name, version in (("old", "1.0"), ("new", "2.0")):
        mine = wheel(folder, "shout", version, LOUD[version])
        quiet = wheel(folder, "quiet", version, "")
        make_environment(folder / name, [*common, mine, quiet])
    (folder / "work").mkdir()
    (folder / "work/speak.py").write_text(SCRIPT)
    words = ["-m", "parity", "record", "--site", "loud=speak.py:loud", "--", "python", "speak.py"]
    ran = run_there(folder / "old/bin/python", words, variables, folder=folder / "work")
    assert ran.code == 4, ran.said + ran.complained
    return folder


def upgrade(world: Path, variables: Mapping[str, str], python: str) -> Ran:
    words = ["-m", "parity", "upgrade", "--python", python]
    return run_there(world / "old/bin/python", words, variables, folder=world / "work")


def files_of(folder: Path) -> dict[str, float]:
    return {str(path): path.lstat().st_mtime for path in folder.rglob("*")}


def test_upgrade_package_that_changes_a_golden_is_named(world: Path, variables: Mapping[str, str]) -> None:
    before = files_of(world)
    ran = upgrade(world, variables, str(world / "new/bin/python"))
    assert ran.code == 1, ran.complained
    assert "1 hold here and not there: loud/loud-001 (hf)" in ran.said
    assert "quiet    1.0   2.0" in ran.said
    assert "shout 1.0 -> 2.0: makes loud/loud-001 (hf) DRIFT" in ran.said
    assert "with all other packages from there it holds" in ran.said
    assert files_of(world) == before


def test_upgrade_environment_without_numpy_says_what_it_lacks(world: Path, variables: Mapping[str, str]) -> None:
    python = make_environment(world / "empty", [])
    ran = upgrade(world, variables, str(python))
    assert ran.code == 3
    assert "cannot check there: parity: numpy is not installed" in ran.complained


def test_upgrade_interpreter_that_is_not_there_is_said(world: Path, variables: Mapping[str, str]) -> None:
    ran = upgrade(world, variables, str(world / "new"))
    assert ran.code == 3
    assert f"Did you mean {world / 'new/bin/python'}?" in ran.complained


def test_own_code_holds_parity_and_the_engine_alone(variables: Mapping[str, str]) -> None:
    folder = variables["PYTHONPATH"].split(":")[0]
    assert {path.name for path in Path(folder).iterdir()} - {"__pycache__"} == {"parity", "gen_engine.py"}
