"""The call sites themselves, as code: that the moved way gives what the old way gave is what `make parity` shows."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.proof.callsites import drive

ROOT = Path(__file__).parents[4]
CALLSITES = ROOT / "parity/proof/callsites"


def site_module(site: str, name: str) -> Any:
    return importlib.import_module(f"parity.proof.callsites.{site}.{name}")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cases name the checkpoints relative to the repository. One thread: these models are too small for two."""
    monkeypatch.chdir(ROOT)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The rollout worker writes files into a folder that its cases name, and has tests of its own.
SITES = [site for site in drive.SITES if site != "rollout_worker"]
# Every setting there is, and each fault that a list of mutations of the engine found no golden for.
MOST = {"selftest": 245}
# Their own subject: what a caller does with torch and numpy beside the engine.
BESIDE = {"service": {"torch", "numpy"}}


@pytest.mark.parametrize("site", SITES)
def test_cases_are_plain_data_and_the_same_each_time(site: str, tmp_path: Path) -> None:
    first, second = (drive.cases_of(site, tmp_path / way) for way in drive.WAYS)
    assert 10 <= len(first) <= MOST.get(site, 30)
    assert len({name for name, _, _ in first}) == len(first)
    moved_paths = json.dumps(first).replace(str(tmp_path / "old"), str(tmp_path / "moved"))
    assert json.loads(moved_paths) == [list(case) for case in second]
    files = [{path.name: path.read_bytes() for path in (tmp_path / way).glob("*")} for way in drive.WAYS]
    assert files[0] == files[1]
    assert sum(map(len, files[0].values())) < 64_000
    assert {*site_module(site, "cases").DIFFERS, *site_module(site, "cases").SAMPLED} <= {name for name, _, _ in first}


@pytest.mark.parametrize("site", SITES)
def test_both_ways_have_the_same_functions(site: str, tmp_path: Path) -> None:
    old, moved = (site_module(site, way) for way in drive.WAYS)
    for function in {function for _, function, _ in drive.cases_of(site, tmp_path)}:
        assert inspect.signature(getattr(old, function)) == inspect.signature(getattr(moved, function))


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("site", SITES)
def test_the_old_way_knows_nothing_of_us_and_the_moved_way_the_engine_and_companions_only(site: str) -> None:
    assert not imported(CALLSITES / site / "old.py") & {"parity", "gen_engine"}
    moved = (CALLSITES / site / "moved.py").read_text(encoding="utf-8")
    known = sys.stdlib_module_names | {"parity", "PIL"} | BESIDE.get(site, set())
    assert imported(CALLSITES / site / "moved.py") - known == {"gen_engine"}
    assert moved.count("parity") == len(re.findall(r"^from parity\.companions\.\w+ import", moved, re.MULTILINE))


def test_the_driver_prints_each_case(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["drive", "runner", "old", "--only", "first-of-three"])
    assert drive.main() == 0
    assert capsys.readouterr().out == 'first-of-three "apple"\n'


def test_the_driver_refuses_a_case_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["drive", "runner", "old", "--only", "first-of-threee"])
    with pytest.raises(SystemExit):
        drive.main()
