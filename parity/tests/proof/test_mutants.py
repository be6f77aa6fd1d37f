"""Mutants: what is mutated, which goldens judge it, how a result is counted, and what is
printed."""

from __future__ import annotations

import ast
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from parity.goldens.store import Store
from parity.goldens.verdict import Cause, Outcome
from parity.proof import mutants, reach
from parity.proof.__main__ import main
from parity.proof.forks import ENGINE, Died, forked
from parity.proof.mutant_judge import How, Result, Trial, Tried, how_caught, judges_of, result_of
from parity.proof.mutants import Judged, key_of, report, score_of
from parity.proof.operators import Mutant, all_mutants, sample
from parity.proof.reach import NOTE, Note, Passage, Reach, noting

SOURCE = '''"""A file."""
__version__ = "1.0"
LIMITS = {"short": 3, "long": lambda: 5}


def first(text: "str", most: int = 7) -> str:
    """What stands first."""
    if len(text) > 4:
        log.warning("it is long: %s", 1)
        raise ValueError("too long", 2)
    for part in text:
        if part == "a":
            break
    return text[:most]
'''


@pytest.fixture(scope="module")
def made() -> list[Mutant]:
    return all_mutants(SOURCE)


def test_mutants_compile_and_each_changes_its_statement_only(made: list[Mutant]) -> None:
    for mutant in made:
        before, after = ast.parse(SOURCE), ast.parse(mutant.source())
        assert ast.dump(before) != ast.dump(after)
        assert mutant.original() in ast.unparse(before) or "..." in mutant.original()


def test_texts_for_people_annotations_and_versions_are_left_out(made: list[Mutant]) -> None:
    sources = "".join(mutant.mutated() for mutant in made)
    assert "too long" not in sources and "it is long" not in sources
    assert not any(mutant.original().startswith("__version__") for mutant in made)
    assert not any("XXstrXX" in mutant.mutated() for mutant in made)


def test_sentences_are_left_out_and_what_texts_are_compared_with_is_not() -> None:
    source = """
PLACES = {"key": "load it with more room"}
FULL = re.compile("out of memory|no room")
IS_FULL = "not enough room" in told
"""
    mutated = "".join(mutant.mutated() for mutant in all_mutants(source))
    assert "XXkeyXX" in mutated and "XXload it" not in mutated
    assert "XXout of memory|no roomXX" in mutated and "XXnot enough roomXX" in mutated


def test_the_slots_of_dataclasses_are_left_out() -> None:
    source = "@dataclass(frozen=True, slots=True)\nclass Row:\n    ids: tuple = ()\n"
    heads = {mutant.mutated().splitlines()[0] for mutant in all_mutants(source)}
    assert "@dataclass(frozen=False, slots=True)" in heads
    assert not [head for head in heads if head.endswith(("(frozen=True)", "slots=None)", "slots=False)"))]


def test_mutants_know_where_they_are(made: list[Mutant]) -> None:
    [limit] = [one for one in made if one.mutated() == "LIMITS = {'short': 4, 'long': lambda: 5}"]
    [inner] = [one for one in made if one.mutated() == "LIMITS = {'short': 3, 'long': lambda: 6}"]
    [loop] = [one for one in made if one.operator == "keywords" and one.original() == "break"]
    assert (limit.function, limit.in_call, limit.line) == ("module", False, 3)
    assert (inner.function, inner.in_call, inner.lines) == ("module", True, (3, 3))
    assert (loop.function, loop.in_call, loop.lines) == ("first", True, (13, 13))


def test_a_sample_is_repeated_by_its_seed_and_begins_a_longer_one(made: list[Mutant]) -> None:
    numbers = [one.number for one in sample(made, 5, seed=1)]
    assert numbers == [one.number for one in sample(made, 9, seed=1)][:5]
    assert numbers != [one.number for one in sample(made, 5, seed=2)]
    assert len(sample(made, 10_000, seed=1)) <= len(made)


def test_a_mark_outlives_edits_elsewhere(made: list[Mutant]) -> None:
    source = SOURCE.replace("LIMITS", "\n\nBOUNDS").replace("text[:most]", "text[ :most ]")
    moved = all_mutants(source)
    keys = {key_of(one) for one in made if one.function == "first"}
    assert keys == {key_of(one) for one in moved if one.function == "first"}


# == Which goldens judge a mutant ==


def test_noting_tells_calls_from_the_import() -> None:
    note = Note()
    scope: dict[str, object] = {NOTE: note}
    exec(compile(noting(SOURCE + "\nfirst('b')\n"), "noted", "exec"), scope)
    assert note.at_import == {7, 8, 11, 12, 14} and note.called == set()
    limits = scope["LIMITS"]
    assert isinstance(limits, dict)
    limits["long"]()
    assert note.called == {3}


def passage(case: str, seconds: float, *lines: int, passes: bool = True) -> Passage:
    return Passage(case, seconds, passes, ("IDENTICAL",), frozenset(lines))


def trial(*lines: int, in_call: bool = True) -> Trial:
    return Trial(0, "", frozenset(lines), in_call)


def test_goldens_that_pass_the_lines_judge_and_the_quickest_with_most_lines_is_first() -> None:
    slow, quick = passage("s/slow", 2.0, 1, 2, 3), passage("s/quick", 0.5, 1, 2)
    other, broken = passage("s/other", 1.0, 3, 9), passage("s/broken", 0.1, 1, passes=False)
    found = Reach(reach.ordered([slow, other, quick, broken]), frozenset({30}))
    assert judges_of(found, trial(1)) == [quick, slow]
    assert judges_of(found, trial(3, 4)) == [other, slow]
    assert judges_of(found, trial(4)) == []
    assert len(judges_of(found, trial(30))) == len(judges_of(found, trial(4, in_call=False))) == 3


# == What became of a mutant ==


def outcome(verdict: str, name: str = "stop.rule", certainty: str = "confirmed") -> Outcome:
    cause = Cause(name, certainty, "said")  # type: ignore[arg-type]
    return Outcome("s", "c", "hf", verdict, cause=cause)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "how"),
    [
        (outcome("DRIFT"), "named"),
        (outcome("LATENT", certainty="likely"), "named"),
        (outcome("DRIFT", certainty="unattributed"), "unnamed"),
        (outcome("DRIFT", "error"), "crash"),
        (outcome("ERROR", "error"), "crash"),
    ],
)
def test_a_crash_is_told_from_a_named_cause(found: Outcome, how: str) -> None:
    assert how_caught(found) == how
    assert result_of(Tried(found, 1, 0.0)).is_caught


def test_a_fork_that_hangs_and_one_that_dies_are_caught() -> None:
    jobs = {0: lambda: os._exit(3), 1: lambda: os.kill(os.getpid(), signal.SIGALRM)}
    hows = {}
    for number, died, _ in forked(jobs):
        assert isinstance(died, Died)
        hows[number] = result_of(died).how
    assert hows == {0: "crash", 1: "hang"}


def test_a_mutant_that_no_golden_tells_apart_survived() -> None:
    assert result_of(Tried(None, 3, 0.5)) == Result(0, "", "survived", tried=3, cpu=0.5)


# == The report ==


def judged(mutant: Mutant, *hows: How, equivalent: str = "") -> Judged:
    results = [Result(mutant.number, name, how) for name, how in zip(("hf", "vllm"), hows)]
    return Judged(mutant, "Stops", tuple(results), equivalent)


def test_one_backend_is_enough_and_marked_ones_do_not_count(made: list[Mutant]) -> None:
    found = [
        judged(made[0], "survived", "named"),
        judged(made[1], "crash"),
        judged(made[2], "unreached", "survived"),
        judged(made[3], "survived", "survived", equivalent="nobody sees it"),
    ]
    assert score_of(found) == pytest.approx(2 / 3)
    lines = "\n".join(report(found, ["hf", "vllm"]))
    assert lines.count("SURVIVED") == 1
    assert f"SURVIVED {made[2].function}, line {made[2].line}" in lines
    assert "+++ mutant" in lines
    assert "66.7% of 3 mutants caught: 1 by a named cause" in lines and "1 by a crash" in lines


def test_a_backend_judges_what_the_one_before_has_not_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = list[tuple[str, int]]()

    def judge(store: Store, trials: Sequence[Trial], backend: str) -> Iterator[Result]:
        for one in trials:
            asked.append((backend, one.number))
            yield Result(one.number, backend, "crash" if one.number % 2 else "survived")

    monkeypatch.setattr(mutants, "judge_mutants", judge)
    chosen = sample(all_mutants(SOURCE), 6, seed=1)
    found = list(mutants.run_mutants(Store(tmp_path), chosen, ["hf", "vllm"]))
    even = {one.number for one in chosen if one.number % 2 == 0}
    assert {number for backend, number in asked if backend == "vllm"} == even
    assert {one.mutant.number for one in found if not one.is_caught} == even


def test_a_mark_of_a_mutant_that_is_caught_is_reported(made: list[Mutant]) -> None:
    lines = "\n".join(report([judged(made[0], "named", equivalent="nobody sees it")], ["hf"]))
    assert "MARKED EQUIVALENT BUT CAUGHT" in lines


def test_every_mark_has_a_reason_and_its_function_is_there() -> None:
    names = {name for name, _ in mutants_scopes()} | {"module"}
    for (function, original, mutated), reason in mutants.marks().items():
        assert function in names, f"{function} is gone: {original}"
        assert reason and original != mutated


def mutants_scopes() -> list[tuple[str, ast.AST]]:
    from parity.proof.syntax import named_scopes

    return list(named_scopes(ast.parse(ENGINE.read_text()), ""))


def test_sections_are_those_of_the_file() -> None:
    sections = set(mutants.sections_of(ENGINE.read_text()).values())
    assert {"Errors", "Stops", "Backend: hf", "Backend: vllm", "Engine"} <= sections


def test_an_unknown_backend_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "--backend", "hf,vlm"]) == 2
    assert "Did you mean 'vllm'?" in capsys.readouterr().err


def test_kept_lines_survive_an_interrupted_write(tmp_path: Path) -> None:
    kept = tmp_path / "reach.jsonl"
    kept.write_text(json.dumps({"key": "a"}) + "\n" + '{"key": "b", "li')
    assert reach.read_rows(kept) == {"a": {"key": "a"}}
