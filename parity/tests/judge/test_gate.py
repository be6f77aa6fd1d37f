"""What a check may call, what it leaves out, what it refuses, and how both sides' exceptions are compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from parity.__main__ import main
from parity.goldens.acceptance import Accepted
from parity.goldens.store import Case, Store
from parity.goldens.verdict import equal
from parity.judge.numerics import reading
from parity.tests.conftest import ROOT, VL

MOVED = """
import os
from os import system

def answer(word):
    if word == "bad":
        raise ValueError("another word")
    return word.upper()
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    (tmp_path / "moved.py").write_text(MOVED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    store = Store("golden")
    store.write(Case("answers", "yes", "moved:answer", {"word": "yes"}, value="YES"))
    store.set_site("answers", functions=["moved:answer"])
    return store


def said_by(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    return " ".join((out + err).split())


@pytest.mark.parametrize("function", ["os:system", "moved:system", "moved:os.system", "moved:answer.__call__", ""])
def test_a_golden_does_not_choose_what_is_called(
    function: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write(Case("answers", "evil", function, {"command": "touch was-here"}, value=0))
    assert main(["check"]) == 3
    said = said_by(capsys)
    assert f"sites.json does not name '{function}'" in said and "1 IDENTICAL 1 ERROR" in said
    assert not Path("was-here").exists()
    assert main(["check", "--moved", "moved=moved"]) == 3, "a module alone names no function"
    assert main(["check", "--moved", "os:system=moved:answer"]) == 3
    assert not Path("was-here").exists()


def test_a_move_of_what_was_not_recorded_does_not_run_the_old_code(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would pass: nothing is moved, and the old code gives what it gave."""
    assert main(["check", "--moved", "moved.py=better"]) == 2
    assert "--moved 'moved.py': nothing was recorded there; name the place of one of these: moved:answer" in said_by(
        capsys
    )
    store.set_site("answers", moved={"mvoed": "better"})
    assert main(["check"]) == 2
    assert "sites.json: answers: moved 'mvoed'" in said_by(capsys)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested deeper"),
        ('{"format": 1, "site": "answers", "case": "broken", "value": {"$lines": 5}}', "$lines"),
        ('{"format": 1, "site": "answers", "case": "broken", "function": 5}', "function is not a text"),
        ('{"format": 1, "site": "answers", "case": "broken", "arguments": 5}', "arguments is not an object"),
        ('{"format": 1, "site": "answers", "case": "broken", "rows": [{"junk": 1}]}', "rows[0].junk"),
    ],
)
@pytest.mark.parametrize("words", [["check"], ["list"], ["explain", "answers/broken"]])
def test_a_malformed_golden_is_an_error_of_that_case_alone(
    words: list[str], text: str, says: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.path("answers", "broken").write_text(text)
    assert main(words) == 3
    said = said_by(capsys)
    assert says in said and "golden/answers/broken.json" in said and "Traceback" not in said
    assert words != ["check"] or "1 IDENTICAL 1 ERROR" in said
    assert words != ["list"] or "answers: 2 cases" in said


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        ("ValueError: another word", 0, "1 IDENTICAL"),
        (
            "ValueError: a bad word",
            1,
            "the old code raised ValueError: a bad word, the new code raises ValueError: another",
        ),
        ("KeyError: 'bad'", 1, "the old code raised KeyError: 'bad', the new code raises ValueError: another word"),
    ],
)
def test_exceptions_of_both_sides_are_compared(
    raised: str, code: int, says: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt_ids": [1], "output_ids": [2]}
    for rows in ((), (row,)):
        store.write(Case("answers", "bad", "moved:answer", {"word": "bad"}, rows=rows, raised=raised))
        assert main(["check", "answers/bad"]) == code or rows
    assert says in said_by(capsys)


def test_nothing_that_a_golden_names_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    for name in ("AutoConfig", "AutoProcessor", "AutoModelForImageTextToText"):
        auto = getattr(transformers, name)

        def from_pretrained(*args: Any, real: Any = auto.from_pretrained, **how: Any) -> Any:
            asked.append(how.get("local_files_only"))
            return real(*args, **how)

        monkeypatch.setattr(auto, "from_pretrained", from_pretrained)
    with reading.Reader(str(VL), "float32"):
        assert len(asked) >= 3 and all(asked)


def floats(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [f for entry in value for f in floats(entry)] if isinstance(value, list) else [value] * isinstance(value, float)
    )


def scaled(value: Any, by: float) -> Any:
    if isinstance(value, dict):
        return {key: scaled(entry, by) for key, entry in value.items()}
    if isinstance(value, list):
        return [scaled(entry, by) for entry in value]
    return value * by if isinstance(value, float) else value


@pytest.mark.parametrize("name", ["with-logprobs", "logprobs", "logits"])
def test_goldens_of_numbers_can_fail(name: str) -> None:
    """Log-probabilities of a sure model are within 5e-4 of 0: a tolerance of 1e-3 took any others for them."""
    value = Store(ROOT / "golden").read("inference_module", name).value
    assert floats(value)
    assert equal(value, scaled(value, 1 + 1e-5)) and not equal(value, scaled(value, 1.1))


def test_sites_that_are_not_for_a_backend_are_left_out_and_named(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write(Case("worker", "yes", "moved:answer", {"word": "yes"}, value="YES"))
    store.set_site("worker", functions=["moved:answer"], backends=["vllm"])
    assert main(["check", "--backend", "hf", "--json", "check.json"]) == 0
    assert "left out: worker on hf (sites.json: vllm)" in said_by(capsys)
    assert [o["site"] for o in json.loads(Path("check.json").read_text())["outcomes"]] == ["answers"]
    assert main(["check", "worker", "--backend", "hf"]) == 5
    assert "left out: worker on hf" in said_by(capsys)


def test_cases_that_are_not_for_a_backend_are_left_out_and_named(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.set_site("answers", cases={"ye*": ["vllm"]})
    assert main(["check", "--backend", "hf"]) == 5
    assert "left out: answers/yes on hf (sites.json: vllm)" in said_by(capsys)
    store.set_site("answers", cases={"ye*": ["hf"], "y*": ["vllm"]})
    assert main(["check", "--backend", "hf"]) == 0
    assert "left out" not in said_by(capsys)
    store.set_site("answers", cases={"answers-*": ["vllm"]})
    assert main(["check", "--backend", "hf"]) == 2
    assert "answers.cases: 'answers-*' fits no case" in said_by(capsys)


@pytest.mark.parametrize("words", [["explain", "answers/yes"], ["accept", "answers/yes", "--reason", "r"]])
def test_what_the_moved_code_prints_goes_into_a_log_beside_each_command(
    words: list[str], store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("moved.py").write_text("def answer(word):\n    print('of the moved code')\n    return word\n")
    assert main(words) in (0, 1)
    said = "".join(capfd.readouterr())
    assert "answers/yes on hf" in said and "of the moved code" not in said


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["check", "answer"], 2, "did you mean 'answers'?"),
        (["check", "answers/yess"], 2, "did you mean 'answers/yes'?"),
        (["check", "other/*"], 2, "no golden under golden matches 'other/*'"),
        (["explain", "answer/yes"], 2, "did you mean 'answers"),
        (["accept", "answer/*", "--reason", "r"], 2, "matches"),
        (["check", "--goldens", "golden"], 0, "PASSED"),
        (["--goldens", "golden", "check"], 0, "PASSED"),
        (["--goldens", "elsewhere", "check", "--goldens", "golden"], 0, "PASSED"),
        (["accept", "answer", "--reason", "r"], 2, "did you mean 'answers'?"),
        (["accept", "other", "--reason", "r"], 2, "no 'other' under golden; `python -m parity list --cases` shows"),
        (["explain", "answers/q"], 2, "no 'answers/q' under golden; `python -m parity list --cases` shows"),
        (["prune", "answer"], 2, "did you mean 'answers'?"),
        (["prune", "answers/yess"], 2, "did you mean 'answers/yes'?"),
        (["prune", "answrs/yes", "--yes"], 2, "did you mean 'answers/yes'?"),
        (["prune", "other"], 2, "no 'other' under golden; `python -m parity list --cases` shows"),
        (["prune", "other/*"], 2, "no golden under golden matches 'other/*'"),
        (["prune", "answers/y*"], 0, "would remove golden/answers/yes.json"),
        (["--goldens", "nowhere", "prune", "answers"], 2, "no 'answers' under nowhere; record the old code first: "),
        (["check", "other"], 4, "no golden under golden/other; record the old code first"),
        (["list", "--goldens", "nowhere"], 5, "no goldens under nowhere; record the old code first: python -m parity"),
        (["check", "--goldens", "nowhere"], 5, "python -m parity record --site"),
        (["check", "--goldens", "nowhere"], 5, "no goldens under nowhere"),
        (["check", "--moved", "movd=other"], 2, "--moved 'movd': nothing was recorded there"),
        (["explain", "answers"], 2, "write SITE/CASE, as `python -m parity list --cases` shows"),
        (["compare", "no.jsonl", "no.jsonl"], 2, "there is no file no.jsonl; check its path"),
        (["check", "answers/*"], 0, "1 IDENTICAL"),
    ],
)
def test_what_was_meant_is_guessed_and_flags_stand_anywhere(
    words: list[str], code: int, says: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert says in said_by(capsys)


def test_accepting_takes_patterns_and_says_what_it_covers(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        store.write(Case("answers", name, "moved:answer", {"word": "bad"}, raised="ValueError: old words"))
    store.write(Case("answers", "gone", "moved:gone", {"word": "x"}, value="X"))
    assert main(["accept", "answers/*", "--reason", "better words"]) == 0
    said = said_by(capsys)
    assert "accepted answers/a on hf: error" in said and "covers 2 of 4: 2 DRIFT error" in said
    assert "not covered, and fails: answers/gone on hf ERROR" in said
    assert [(e.site, e.case) for e in store.accepted()] == [("answers", "a"), ("answers", "b")]
    store.path("answers", "gone").unlink()
    assert main(["check"]) == 0


def accepted_entry(case: str, backend: str = "hf") -> Accepted:
    return Accepted("answers", case, backend, "error", (), "ab12", "better words", "2999-01-01")


@pytest.mark.parametrize(
    ("words", "code", "says", "left"),
    [
        (["answers/a"], 0, "answers/a on hf: error, until 2999-01-01: better words", ["gone hf"]),
        (["answers/a", "--dry-run"], 0, "nothing is written; without --dry-run 2", None),
        (["answers/a", "--backend", "hf"], 0, "withdrawn: 1 of 3", ["a vllm", "gone hf"]),
        (["answers/g*"], 0, "answers/gone on hf", ["a hf", "a vllm"]),
        (["answers"], 0, "withdrawn: 3 of 3", []),
        (["answrs"], 2, "nothing is accepted of 'answrs'; did you mean 'answers'?", None),
        (["answers/yes"], 2, "nothing is accepted of 'answers/yes'; ", None),
        (["answers/gone", "--backend", "vllm"], 2, "nothing is accepted of 'answers/gone' on vllm; ", None),
        (["answers/a", "--reason", "r"], 2, "leave --reason and --until out", None),
    ],
)
def test_accept_withdraw_shows_and_removes_acceptances(
    words: list[str], code: int, says: str, left: list[str] | None, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [accepted_entry("a"), accepted_entry("a", "vllm"), accepted_entry("gone")]
    store.set_accepted(whole)
    assert main(["accept", "--withdraw", *words]) == code
    assert says in said_by(capsys)
    expected = [f"{e.case} {e.backend}" for e in whole] if left is None else left
    assert [f"{e.case} {e.backend}" for e in store.accepted()] == expected


def test_accept_without_a_reason_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "answers/yes"]) == 2
    assert "--reason TEXT" in said_by(capsys)


def test_a_reader_that_goes_away_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

        def fileno(self) -> int:
            return 1

    monkeypatch.setattr(sys, "stdout", Gone())
    assert main(["list"]) == 141
    monkeypatch.undo()
    assert capfd.readouterr().err == ""
