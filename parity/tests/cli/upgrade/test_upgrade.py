"""`parity upgrade` between two real environments, made of links to this one's packages, in which two small packages
have other versions."""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from parity.cli.upgrade import commands
from parity.cli.upgrade.packages import Installed, Package, installed_here, make_environment, package_of
from parity.diff.other_env import CannotRunThere, Ran, own_code, run_there
from parity.goldens.store import Store

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
    stubs = [wheel(folder, name, "0", "") for name in ("torch", "transformers")]  # no code here calls them
    installed = installed_here().packages.values()
    common = [package for package in installed if package.name not in ("gen-engine", "torch", "transformers")] + stubs
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
    """Its report is printed once, and its progress before it ends."""
    before = files_of(world)
    ran = upgrade(world, variables, str(world / "new/bin/python"))
    assert ran.code == 1, ran.complained
    assert "1 hold here and not there: loud/loud-001 (hf)" in ran.said
    assert "quiet    1.0   2.0" in ran.said
    assert "shout 1.0 -> 2.0: makes loud/loud-001 (hf) DRIFT" in ran.said
    assert "with all other packages from there it holds" in ran.said
    assert files_of(world) == before
    assert ran.said.count("FAILED (exit 1, drift)") == 1
    assert "0 of 1 cases" in ran.complained


def test_upgrade_environment_without_numpy_says_what_it_lacks(world: Path, variables: Mapping[str, str]) -> None:
    python = make_environment(world / "empty", [])
    ran = upgrade(world, variables, str(python))
    assert ran.code == 3
    assert "cannot check there: parity: numpy is not installed" in ran.complained


def test_upgrade_interpreter_that_is_not_there_is_said(world: Path, variables: Mapping[str, str]) -> None:
    ran = upgrade(world, variables, str(world / "new"))
    assert ran.code == 3
    assert f"Did you mean {world / 'new/bin/python'}?" in ran.complained


def test_run_there_shows_a_line_before_the_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()  # pytest's own capture loses what is written while it is read
    monkeypatch.setattr(sys, "stdout", shown)
    go = tmp_path / "go"
    code = "import pathlib, sys, time; print('begun', flush=True)\n"
    code += "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        running = threads.submit(run_there, sys.executable, ["-c", code, str(go)], os.environ, show=True)
        while "begun" not in shown.getvalue() and not running.done():
            time.sleep(0.01)
        assert not running.done()
        go.touch()
        assert running.result() == Ran(0, "begun\n", "")


def test_vllm_that_is_not_there_is_not_claimed(
    world: Path, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code that asks no engine would be IDENTICAL on a backend that is not installed."""
    goldens = world / "work/golden"
    args = argparse.Namespace(python="NEW", goldens=goldens, backend=None)
    there = Installed("3.11", "Linux", False, {})
    monkeypatch.setattr(Store, "settings", lambda self: {"loud": {"backends": ["hf", "vllm"]}})
    assert commands.backend_flags(args, there) == ["--backend", "hf"]
    assert "vLLM is not installed there" in capsys.readouterr().out
    args.backend = ["vllm"]
    with pytest.raises(CannotRunThere, match="vLLM is not installed there"):
        commands.backend_flags(args, there)
    assert commands.backend_flags(args, dataclasses.replace(there, has_vllm=True)) == ["--backend", "vllm"]


def test_other_python_there_is_said_and_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = commands.Key("loud/loud-001", "hf")
    failing = commands.Checked(1, {key: "DRIFT"}, frozenset({key}))
    monkeypatch.setattr(commands.Asking, "check", lambda *words, **more: commands.Checked(0, {}, frozenset()))
    monkeypatch.setattr(commands.Asking, "installed", lambda *words: Installed("3.11", "Linux", True, {}))
    monkeypatch.setattr(commands, "Search", None)  # which would be called
    commands.explain(commands.Asking(tmp_path, {}, ()), Installed("3.12", "Linux", True, {}), failing)
    assert "was not tried: Python 3.11 on Linux here, 3.12 on Linux there" in capsys.readouterr().out


def test_content_tells_two_builds_of_one_version_apart(tmp_path: Path) -> None:
    def digest(name: str, source: str, installer: str) -> str:
        made = wheel(tmp_path / name, "shout", "1.0", source)
        info = Path(made.folder, "shout-1.0.dist-info")
        with (info / "RECORD").open("a") as record:
            record.write(f"shout-1.0.dist-info/INSTALLER,sha256={installer},\n")
        return package_of("shout", importlib.metadata.Distribution.at(info)).content

    one = digest("one", "a = 1\n", "pip")
    assert digest("same", "a = 1\n", "uv") == one
    assert digest("other", "a = 2\n", "pip") != one


def test_folder_of_one_package_is_one_link_and_a_shared_one_is_none(tmp_path: Path) -> None:
    """A package may read files that its installer's list does not hold; two may share a namespace."""
    site = tmp_path / "site"
    for file in ("own/a.py", "own/unlisted.txt", "shared/b.py", "shared/c.py"):
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()
    one = Package("one", "1", str(site), ("own/a.py", "shared/b.py"), (), "")
    two = Package("two", "1", str(site), ("shared/c.py",), (), "")
    [linked] = make_environment(tmp_path / "made", [one, two]).parents[1].glob("lib/python*/site-packages")
    assert (linked / "own").is_symlink() and (linked / "own/unlisted.txt").exists()
    assert not (linked / "shared").is_symlink()
    assert {file.name for file in (linked / "shared").iterdir() if file.is_symlink()} == {"b.py", "c.py"}


def test_own_code_leaves_the_home_of_this_python_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with own_code() as variables:
        assert "PYTHONHOME" not in variables


def test_own_code_holds_parity_and_the_engine_alone(variables: Mapping[str, str]) -> None:
    folder = variables["PYTHONPATH"].split(":")[0]
    assert {path.name for path in Path(folder).iterdir()} - {"__pycache__"} == {"parity", "gen_engine.py"}
