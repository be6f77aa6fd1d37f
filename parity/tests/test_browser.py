"""A machine without a browser: the tests of the page are not looked at, say so in red at the end, and pass; where one
is required, they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .browser import NO_BROWSER
from .conftest import ROOT

OPENS = """
from parity.tests.browser import Browser
from parity.tests.conftest import pytest_terminal_summary

def test_of_the_page():
    with Browser() as browser:
        browser.open("about:blank")

def test_of_something_else():
    pass
"""


def run(folder: Path, **environment: str) -> tuple[int, list[str]]:
    (folder / "conftest.py").write_text("from parity.tests.conftest import pytest_terminal_summary\n")
    (folder / "test_page.py").write_text(OPENS)
    own = {"PATH", "PARITY_BROWSER", "PYTEST_ADDOPTS"}
    usual = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "test_page.py"],
        env={**usual, "PATH": str(folder), "PYTHONPATH": str(ROOT), **environment},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def test_without_a_browser_the_tests_pass_and_say_loudly_what_was_not_seen(tmp_path: Path) -> None:
    code, said = run(tmp_path)
    assert code == 0, said
    assert f"{NO_BROWSER} (1 tests of the page)" in said and "1 passed, 1 skipped" in said[-1]
    assert said.index(f"{NO_BROWSER} (1 tests of the page)") >= len(said) - 2, "it is the last thing that is said"


@pytest.mark.parametrize("named", ["required", "/no/such/browser"])
def test_where_a_browser_is_required_or_named_its_absence_fails(tmp_path: Path, named: str) -> None:
    code, said = run(tmp_path, PARITY_BROWSER=named)
    assert code == 1 and "1 failed, 1 passed" in said[-1], said
    assert named != "required" or any(NO_BROWSER in line for line in said)
