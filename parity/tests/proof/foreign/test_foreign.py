"""What needs none of the foreign libraries: the edits, the score, the table, and what the command says without them."""

from __future__ import annotations

import builtins
import dis
import inspect
import json
from dataclasses import replace
from pathlib import Path
from types import CodeType

import pytest

from parity.goldens.causes import TABLE, stage_of
from parity.goldens.store import Case, Store
from parity.proof.foreign import __main__ as command
from parity.proof.foreign import environment, run
from parity.proof.foreign.drive import LIBRARIES, module_of
from parity.proof.foreign.material import BACKENDS, DTYPES, Mistake, MistakeError
from parity.proof.foreign.run import Answer, Job, answers_of
from parity.proof.foreign.score import as_json, exit_code, render_faults, render_table, score

STAGES = {stage_of(entry.name) for entry in TABLE}
JOB = Job("lm_eval", "hf", "float32")
LOST = Mistake("lost", "one", "stop", "a", "b")


def answer(site: str, verdict: str, cause: str = "", certainty: str = "likely") -> Answer:
    return Answer(f"lm_eval.{site}", "one", verdict, cause, certainty, "")


def source_of(library: str) -> str:
    return Path(str(module_of(library).__file__)).read_text(encoding="utf-8")


def global_names(code: CodeType) -> set[str]:
    """The global names that a code object, or a function inside it, reads."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


@pytest.mark.parametrize("library", LIBRARIES)
def test_mistakes_apply_and_read_no_name_that_is_not_there(library: str) -> None:
    for mistake in module_of(library).MISTAKES:
        module = compile(mistake.apply(source_of(library)), mistake.name, "exec")
        known = set(module.co_names) | set(dir(builtins))
        assert global_names(module) <= known, mistake.name


def test_score_of_a_mistake_that_raises_is_broken_not_caught() -> None:
    answers = [answer("faithful", "IDENTICAL"), answer("lost", "DRIFT", "error", "confirmed")]
    row = score(JOB, [LOST], answers)
    assert row.cells[4:6] == ("0/1", "0/1")
    assert exit_code([row]) == 1
    assert render_faults([row]).startswith("BROKEN")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_mistakes_have_known_cases_and_causes(library: str, dtype: str, backend: str) -> None:
    job = Job(library, backend, dtype)
    cases = {case.name for case in job.cases}
    assert len({each.name for each in job.mistakes}) == len(job.mistakes) >= 2
    for each in job.mistakes:
        assert set(each.cases.split()) <= cases
        assert {stage_of(right) for right in each.right.split()} <= STAGES


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_case_has_an_old_and_a_moved_function_of_equal_parameters(library: str) -> None:
    module = module_of(library)
    for function in {case.function for case in module.cases("float32")}:
        old, moved = getattr(module, f"old_{function}"), getattr(module, function)
        assert inspect.signature(old) == inspect.signature(moved)


def test_apply_of_a_text_that_is_not_there_raises() -> None:
    with pytest.raises(MistakeError, match="stands 0 times"):
        LOST.apply("xyz")


def test_score_of_a_named_mistake_beside_a_silent_move_is_clean() -> None:
    answers = [answer("faithful", "IDENTICAL"), answer("lost", "DRIFT", "stop.strings")]
    row = score(JOB, [LOST], answers)
    assert row.cells == ("lm_eval", "hf", "float32", "yes", "1/1", "1/1", "0")
    assert exit_code([row]) == 0
    assert render_faults([row]) == ""


@pytest.mark.parametrize("verdict", ["DRIFT", "LATENT", "ERROR", "UNSTABLE", "MISSING"])
def test_score_of_an_alarm_about_the_move_is_a_failure(verdict: str) -> None:
    answers = [answer("faithful", verdict, "sampling.seed"), answer("lost", "DRIFT", "stop.strings")]
    row = score(JOB, [LOST], answers)
    assert row.cells[3] == "no: 1 of 1"
    assert exit_code([row]) == 1
    assert render_faults([row]).startswith("FALSE ALARM  lm_eval hf float32  one")


@pytest.mark.parametrize("verdict", ["IDENTICAL", "NEAR-TIE", "SAME-SETTINGS", "ERROR"])
def test_score_of_a_mistake_without_an_alarm_is_a_miss(verdict: str) -> None:
    row = score(JOB, [LOST], [answer("faithful", "IDENTICAL"), answer("lost", verdict)])
    assert row.cells[4:6] == ("0/1", "0/1")
    assert exit_code([row]) == 1
    assert render_faults([row]).startswith("UNDECIDED" if verdict == "ERROR" else "MISSED")


def test_score_of_a_wrong_name_passes_and_is_listed() -> None:
    answers = [answer("faithful", "NEAR-TIE"), answer("lost", "DRIFT", "sampling.seed", "confirmed")]
    row = score(JOB, [LOST], answers)
    assert row.cells[4:] == ("1/1", "0/1", "1")
    assert exit_code([row]) == 0
    assert "right is stop; DRIFT sampling.seed; confirmed" in render_faults([row])


def test_score_without_any_answer_is_not_silent() -> None:
    row = score(JOB, [LOST], [])
    assert row.cells[3] == "no: nothing compared"
    assert exit_code([row]) == 1


def test_render_table_aligns_its_columns() -> None:
    row = score(JOB, [LOST], [answer("faithful", "IDENTICAL"), answer("lost", "DRIFT", "sampling.seed")])
    header, line = render_table([row]).splitlines()
    assert header.index("caught") == line.index("1/1")


def test_as_json_holds_every_answer() -> None:
    row = score(JOB, [LOST], [answer("faithful", "IDENTICAL"), answer("lost", "DRIFT", "sampling.seed")])
    [stored] = json.loads(json.dumps(as_json([row])))
    assert stored["found"][0]["answers"][0]["cause"] == "sampling.seed"
    assert stored["caught"] == "1/1"


def test_answers_of_a_report_take_an_outcome_without_a_cause() -> None:
    outcome = {"site": "faithful", "case": "one", "verdict": "IDENTICAL", "cause": None}
    assert answers_of({"outcomes": [outcome]}) == [Answer("faithful", "one", "IDENTICAL", "", "", "")]


def test_short_without_an_environment_says_so_and_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "is_ready", lambda: False)
    assert command.main(["--short"]) == 0
    assert "FOREIGN LIBRARIES NOT CHECKED" in capsys.readouterr().out


def test_build_without_a_registry_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(environment.EnvironmentMissing, match="package registry"):
        environment.run(["false"])


def test_a_golden_is_laid_out_whole_under_the_name_of_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WORK", tmp_path)
    job = run.Job("trl", "hf", "float32")
    recorded = Store(job.goldens)
    row = {"prompt_ids": [1], "output_ids": [2], "text": "b"}
    recorded.write(Case(run.FAITHFUL, "one-float32", function="m:f", arguments={"n": 1}, value="a", rows=(row,)))
    recorded.set_site(run.FAITHFUL, functions=["m:f"])
    run.site(job, "rushed", "n", ["one"])
    golden = recorded.read(run.FAITHFUL, "one-float32")
    laid_out = Store(job.store).read("trl.rushed", "one")
    assert laid_out == replace(golden, site="trl.rushed", case="one")
