"""Mutation score: what is mutated, which tests judge a mutant, how its end is counted, what is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from parity.proof.__main__ import main
from parity.proof.mutants import command
from parity.proof.mutants.command import Judged, report
from parity.proof.mutants.judge import Outcome, is_raised, judge
from parity.proof.mutants.mutation import Mutant, Source, sample
from parity.proof.mutants.reach import Project, Reach, names_at_import, reach_of, statement_lines, this_project

SOURCE = '''"""A file."""

__all__ = ["halved"]
MOST = 7
LIMIT = MOST


class Refused(Exception):
    pass


def halved(value: "int", times=1) -> int:
    if value < 0:
        raise Refused("less than nothing", 2)
    label = "one label of it"
    for _ in range(times):
        value = value // 2
    return min(value, LIMIT)


def named(
    value,
):
    return str(
        value,
    ).upper()


def unused():
    return 1
'''
TESTS = """
import sample_source
import pytest


@pytest.fixture(scope="module")
def name():
    return sample_source.named("a")


def test_halves_eight():
    assert sample_source.halved(8) == 4


def test_refuses_negative():
    with pytest.raises(sample_source.Refused):
        sample_source.halved(-1)


def test_first_of_name(name):
    assert name


def test_name_is_upper(name):
    assert name == "A"


def test_that_fails():
    assert sample_source.halved(8) == 5
"""
FILE = "sample_source.py"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    (root / FILE).write_text(SOURCE)
    (root / "test_it.py").write_text(TESTS)
    return Project(root, (FILE,), ("test_it.py",))


@pytest.fixture(scope="module")
def reach(project: Project) -> Reach:
    return reach_of(project, processes=1)


@pytest.fixture(scope="module")
def source(project: Project) -> Iterator[Source]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(this_project().root)
        yield Source(project.root, FILE)


@pytest.fixture(scope="module")
def mutants(source: Source) -> list[Mutant]:
    found = [source.mutant(mutation) for mutation in source.mutations]
    return [one for one in found if one is not None]


# == Mutants ==


def test_mutants_operators_and_arguments_are_changed(mutants: list[Mutant]) -> None:
    changes = {(one.original, one.mutated) for one in mutants}
    assert ("value = value // 2", "value = value / 2") in changes
    assert ("return min(value, LIMIT)", "return min(LIMIT)") in changes
    assert ("MOST = 7", "MOST = 8") in changes


@pytest.mark.parametrize("left_out", ["raise", "__all__", "one label", '"""A file', "def halved(value: N"])
def test_mutants_raises_texts_and_annotations_are_left_out(mutants: list[Mutant], left_out: str) -> None:
    changed = [one for one in mutants if left_out in one.original and one.mutated != "label = None"]
    assert changed == []


def test_mutants_each_differs_in_its_statement_only(mutants: list[Mutant]) -> None:
    for one in mutants:
        first, last = one.lines
        assert one.text.splitlines()[: first - 1] == SOURCE.splitlines()[: first - 1]
        assert one.text.endswith("".join(SOURCE.splitlines(keepends=True)[last:]))


def test_sample_same_seed_same_mutants(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(this_project().root)
    one, same, other = (sample(project.root, [FILE], 5, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert len({mutant.text for mutant in one}) == 5


# == Which tests judge it ==


def test_killers_are_the_passing_tests_that_run_the_line(reach: Reach) -> None:
    line = SOURCE.splitlines().index("        value = value // 2") + 1
    assert reach.killers(FILE, (line, line)) == ["test_it.py::test_halves_eight"]


def test_killers_of_a_shared_fixture_are_all_who_use_it(reach: Reach) -> None:
    line = SOURCE.splitlines().index("    return str(") + 1
    assert set(reach.killers(FILE, (line, line))) == {
        "test_it.py::test_first_of_name",
        "test_it.py::test_name_is_upper",
    }


def test_killers_of_a_constant_are_tests_of_lines_that_name_it_or_what_it_defines(reach: Reach) -> None:
    line = SOURCE.splitlines().index("MOST = 7") + 1
    assert reach.killers(FILE, (line, line)) == ["test_it.py::test_halves_eight"]


def test_killers_of_what_a_test_file_names_are_all_its_tests(reach: Reach) -> None:
    line = SOURCE.splitlines().index("class Refused(Exception):") + 1
    assert set(reach.killers(FILE, (line, line))) == set(reach.seconds)


def test_reach_unchanged_sources_are_not_run_again(
    project: Project, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parity.proof.mutants.reach.note_tests", None)
    assert reach_of(project, processes=1) == reach


@pytest.mark.parametrize(
    ("source", "line", "names"),
    [
        ("A = 1\nB = 2", 2, {"B"}),
        ("class A:\n    b: int = 1\n    c: int = 2", 2, {"A", "b"}),
        ("def f(\n    a=1,\n):\n    return a", 2, {"f"}),
        ("@g(1)\ndef f():\n    return 2", 1, {"f"}),
        ("def f():\n    return 2", 2, set()),
    ],
)
def test_names_at_import_of_a_line(source: str, line: int, names: set[str]) -> None:
    assert names_at_import(source, line) == names


def test_statement_lines_of_a_compound_one_are_its_head() -> None:
    assert statement_lines("if (\n  a\n):\n  f(\n    b\n  )") == {
        1: (1, 3),
        2: (1, 3),
        3: (1, 3),
        4: (4, 6),
        5: (4, 6),
        6: (4, 6),
    }


# == How it ends ==


def mutant(project: Project, old: str, new: str) -> Mutant:
    text = SOURCE.replace(old, new)
    line = SOURCE[: SOURCE.index(old)].count("\n") + 1
    lines = statement_lines(SOURCE)[line]
    function = (12, 18) if line < 20 else (21, 26)
    return Mutant(FILE, text, old, new, lines, function)


@pytest.mark.parametrize(
    ("old", "new", "how"),
    [
        ("value // 2", "value // 3", "asserted"),
        (".upper()", ".lower()", "asserted"),
        ("value < 0", "value < None", "raised"),
        ("MOST = 7", "MOST = undefined", "raised"),
        ("value < 0", "value <= 0", "survived"),
        ("return 1", "return 2", "unreached"),
    ],
)
def test_judge_mutant_ends(project: Project, reach: Reach, old: str, new: str, how: str) -> None:
    ((number, outcome, _),) = judge(reach, {3: mutant(project, old, new)}, processes=1)
    assert (number, outcome.how) == (3, how), outcome
    assert (project.root / FILE).read_text() == SOURCE


def test_judge_endless_mutant_is_hung(project: Project, reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.proof.mutants.judge.PATIENCE", 1)
    endless = mutant(project, "value = value // 2", "while True: pass")
    ((_, outcome, _),) = judge(reach, {0: endless}, processes=1)
    assert outcome.how == "hung"


def fail_in_a_function() -> None:
    None + 1  # type: ignore[operator]  # noqa: B018


def test_is_raised_error_of_another_function_is_not() -> None:
    with pytest.raises(TypeError) as caught:
        fail_in_a_function()
    line = caught.traceback[-1].lineno + 1
    assert is_raised(caught.value, __file__, (line - 1, line))
    assert not is_raised(caught.value, __file__, (1, 2))
    assert not is_raised(AssertionError(), __file__, (line - 1, line))


# == The report ==


def test_report_counts_raising_apart_and_equivalent_ones_not(project: Project) -> None:
    one = mutant(project, "value // 2", "value // 3")
    ends = [("asserted", ""), ("raised", ""), ("survived", ""), ("survived", "no user sees it")]
    judged = [Judged("engine", one, Outcome(how, 1), reason) for how, reason in ends]
    lines = list(report(project, judged))
    assert lines[-1] == "| engine | 3 | 1 | 1 | 0 | 1 | 1 | 0 | 67% (21% to 94%) | 50% |"
    assert "+        value = value // 3" in lines
    assert sum(line.startswith("SURVIVED") for line in lines) == 1


def test_report_equivalent_one_that_is_killed_is_named(project: Project) -> None:
    one = mutant(project, "value // 2", "value // 3")
    judged = [Judged("engine", one, Outcome("asserted", 1, "test_it.py::test_a"), "a wrong reason")]
    assert any("LISTED AS EQUIVALENT BUT KILLED" in line for line in report(project, judged))


def test_equivalents_each_original_is_in_its_file() -> None:
    rows = json.loads(command.EQUIVALENT.read_text())
    for row in rows:
        lines = (this_project().root / row["file"]).read_text().splitlines()
        source = " ".join(line.strip() for line in lines)
        assert row["original"] in source, row
        assert row["reason"]


def test_mutants_count_of_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "--count", "0"]) == 2
    assert "Give a number >= 1" in capsys.readouterr().err
