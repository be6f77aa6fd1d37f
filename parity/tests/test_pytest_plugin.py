"""The `parity` fixture, in a second repository that has vendored gen_engine.py under another package path.

A `check_sites` that answers from a table is put there: these tests are about the plugin. test_migration.py runs it on a
real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.environment import vendor
from parity.goldens.store import Case, Store

from .conftest import ROOT

CONFTEST = """
import sys, types
from parity.goldens.verdict import Cause, Check, Difference, Outcome

def check_sites(store, *, sites, backends, policy, cases=None):
    outcomes = []
    for site in sites:
        for case in cases or store.names(site):
            golden = store.read(site, case).to_json()
            for backend in backends or ('hf',):
                moved = {**golden, "value": golden["value"].replace("Paris", "Rome")}
                same = moved == golden
                why = None if same else Cause("model.weights", "likely", "value was 'Paris.', is 'Rome.'")
                found = () if same else (Difference("value", "", golden["value"], moved["value"]),)
                verdict = "IDENTICAL" if same else "DRIFT"
                outcomes.append(Outcome(site, case, backend, verdict, found, why, golden, moved))
    return Check(tuple(outcomes), policy)

sys.modules["parity.judge.check"] = types.SimpleNamespace(check_sites=check_sites)
"""

TESTS = """
import pytest
from acme.llm.engine import truncate_at_stops
from parity.pytest_plugin import parity_cases

def test_the_vendored_file_is_there():
    assert truncate_at_stops("a X", ["X"]) == "a "

def test_site(parity):
    assert len(parity.check("capitals").outcomes) == len(parity.backends or ['hf'])

def test_drift(parity):
    parity.check("summaries")

@pytest.mark.parametrize("case", parity_cases("golden", "summaries"))
def test_case(parity, case):
    parity.case("summaries", case)

def test_no_hub_is_asked(parity):
    import os
    parity.check("capitals")
    assert os.environ["HF_HUB_OFFLINE"] == "1"

def test_missing_case(parity):
    parity.case("summaries", "franc")

def test_missing_site(parity):
    parity.check("nowhere")

def test_broken(parity):
    parity.check("broken")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository `acme` with the engine as acme/llm/engine.py and the parity folder in tools/."""
    folder = tmp_path / "acme-repo"
    for package in ("acme", "acme/llm"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    vendor.copy_to(folder / "acme/llm/engine.py")
    (folder / "tools").mkdir()
    (folder / "tools/parity").symlink_to(ROOT / "parity")
    store = Store(folder / "golden")
    for site, case, value in (
        ("capitals", "oslo", "Oslo."),
        ("summaries", "france", "Paris."),
        ("summaries", "it", "?"),
    ):
        store.write(Case(site, case, value=value))
    (folder / "golden/broken").mkdir()
    (folder / "golden/broken/old.json").write_text('{"format": 0}')
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_parity.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = test_parity.py\n")
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """pytest there, with nothing of this project on the path but tools/parity."""
    inherited = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment = {**inherited, "PYTHONPATH": f"{folder}/tools{os.pathsep}{folder}", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "parity.pytest_plugin", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_it_passes_and_fails_with_the_console_text(repository: Path) -> None:
    code, said = run(repository, "-v", "--color=no")
    assert code == 1
    verdicts = dict(line.split()[:2] for line in said.splitlines() if line.startswith("test_parity.py::"))
    assert {name.partition("::")[2]: verdict for name, verdict in verdicts.items()} == {
        "test_the_vendored_file_is_there": "PASSED",
        "test_site": "PASSED",
        "test_no_hub_is_asked": "PASSED",
        "test_drift": "FAILED",
        "test_case[france]": "FAILED",
        "test_case[it]": "PASSED",
        "test_missing_case": "FAILED",
        "test_missing_site": "FAILED",
        "test_broken": "FAILED",
    }
    for wanted in (
        "DRIFT  summaries/france on hf  model.weights; likely",
        "     is  ▸Rome.",
        "python -m parity explain summaries/france --backend hf",
        "FAILED (exit 1, drift): 1 of 2 cases fail",
        "has no golden 'franc' under",
        "did you mean 'france'? record it from the old code with `python -m parity record`",
        "there are no goldens of the site 'nowhere'",
        "old.json has format 0, this version reads 1; record it again",
    ):
        assert wanted in said
    assert "test_parity.py:1" not in said.partition("FAILURES")[2].partition("short test summary")[0]  # no traceback
    assert "capitals   hf" in said.partition("= parity =")[2]


def test_backends_goldens_and_the_page_are_options(repository: Path) -> None:
    (repository / "golden").rename(repository / "elsewhere")
    (repository / "golden").mkdir()
    code, said = run(repository, "-k", "test_site", "--parity-goldens=elsewhere", "--parity-backend=hf",
                     "--parity-backend=vllm", "--parity-html=page.html")  # fmt: skip
    assert code == 0, said
    assert "parity page: page.html" in said
    page = (repository / "page.html").read_text()
    assert page.count('"verdict":"IDENTICAL"') == 2 and '"backend":"vllm"' in page


def test_the_workers_of_xdist_make_one_page_and_one_summary(repository: Path) -> None:
    """The page that the terminal named said "0 cases", and there was no summary."""
    pytest.importorskip("xdist")
    options = ("-n", "2", "-p", "xdist", "--parity-html=page.html", "-k", "test_site or test_case")
    code, said = run(repository, *options)
    assert code == 1, said
    summary = said.partition("= parity =")[2]
    assert "capitals   hf" in summary and "summaries  hf" in summary and "parity page: page.html" in summary
    page = (repository / "page.html").read_text()
    assert page.count('"verdict":"IDENTICAL"') == 2 and page.count('"verdict":"DRIFT"') == 1
    assert [path.name for path in repository.glob("page*.html")] == ["page.html"]


def test_the_summary_says_what_is_not_compared_and_obeys_no_file(repository: Path) -> None:
    store = Store(repository / "golden")
    part = {"at": [], "before": "Os", "after": ""}
    store.write(Case("capitals", "oslo", value="Oslo.", changing=(part,)))
    (repository / "golden/broken/old.json").write_text('{"format": "\\n::error::pwned\\u001b[2J"}')
    code, said = run(repository, "-k", "test_site or test_broken", "--color=no")
    assert code == 1
    assert "NOT COMPARED in capitals/oslo, marked as changing: value" in said.partition("= parity =")[2]
    assert not any(line.strip(" E").startswith("::") for line in said.split("\n")) and "\x1b" not in said


def test_a_link_among_the_goldens_fails_the_test(repository: Path) -> None:
    (repository / "golden/capitals/link.json").symlink_to("/dev/zero")
    code, said = run(repository, "-k", "test_site")
    assert code != 0 and "link.json is a link to" in said and "INTERNALERROR" not in said


def test_an_unknown_backend_is_refused(repository: Path) -> None:
    code, said = run(repository, "--parity-backend=tgi")
    assert code == 4 and "invalid choice: 'tgi'" in said


def test_without_goldens_nothing_passes(repository: Path) -> None:
    code, said = run(repository, "-k", "test_site", "--parity-goldens=nothing")
    assert code == 1 and "there are no goldens of the site 'capitals' under nothing" in said


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    heavy = "{'torch', 'transformers', 'vllm', 'PIL', 'gen_engine', 'hypothesis'}"
    script = f"import parity.pytest_plugin, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
