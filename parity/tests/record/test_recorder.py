"""The recorder and whoever stands above it: what is to happen before each call is named, and found in the processes."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.__main__ import main
from parity.goldens.store import Case, Store
from parity.judge.script import REPLAYS, Replays
from parity.record.commands import never_reached, site_lines
from parity.record.events import Template, Tokens
from parity.record.observe import SEED, Site, load_function
from parity.record.recorder import is_same_golden, run_observed
from parity.record.taps.text import chat_stages, without_mark
from parity.record.taps.vllm import vllm_sampling

ABOVE = """
class Announced:
    def __init__(self, observer, word):
        self.word = word

    def __call__(self, call):
        print(self.word, call.site, call.case, flush=True)
"""
SCRIPT = """
def shout(text):
    print(text.upper(), flush=True)

if __name__ == "__main__":
    shout("a")
    shout("b")
"""


def test_what_is_named_is_called_before_each_call_of_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "above.py").write_text(ABOVE)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen = run_observed(
        [sys.executable, "script.py"],
        tmp_path / "seen",
        sites=[Site("shouts", "script.py:shout")],
        loose=None,
        seed=SEED,
        starting=("above:Announced", {"word": "now"}),
    )
    assert [case.case for case in seen.cases] == ["shout-001", "shout-002"] and not seen.failures
    assert capfd.readouterr().out.split("\n") == ["now shouts shout-001", "A", "now shouts shout-002", "B", ""]


CUTS = """
def answer(text, stop="\\n", until=("a", "b"), size=3, end=None):
    return text

if __name__ == "__main__":
    answer("a")
    answer("b", "c", end="d")
"""


def test_stop_strings_of_parameters_that_a_call_leaves_out_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no arguments: the moved function is called without them. A golden that has none is the same golden."""
    (tmp_path / "script.py").write_text(CUTS)
    monkeypatch.chdir(tmp_path)
    site = Site("answers", "script.py:answer")
    seen = run_observed([sys.executable, "script.py"], tmp_path / "seen", sites=[site], loose=None, seed=SEED)
    kept = [(case.arguments, case.defaults) for case in seen.cases]
    assert kept == [
        ({"text": "a"}, {"stop": "\n", "until": ["a", "b"]}),
        ({"text": "b", "stop": "c", "end": "d"}, {"until": ["a", "b"]}),
    ]
    assert seen.cases[0].stated == {"text": "a", "stop": "\n", "until": ["a", "b"]}
    store = Store(tmp_path / "golden")
    store.write(replace(seen.cases[0], defaults={}))
    assert is_same_golden(store, seen.cases[0])


def test_the_judge_is_found_by_the_name_that_it_gives() -> None:
    assert load_function(REPLAYS) is Replays


@pytest.mark.parametrize("mask", [{"allowed_token_ids": [5, 6]}, {"bad_words": ["no"]}, {"logit_bias": {5: -9.0}}])
def test_what_vllm_masks_besides_a_structure_is_a_processor(mask: dict[str, Any]) -> None:
    params = importlib.import_module("vllm").SamplingParams
    assert vllm_sampling(params(**mask))["processors"] == {"value": [*mask], "from": "caller"}
    assert vllm_sampling(params())["processors"] == {"value": [], "from": "default"}


def test_a_mark_of_the_engine_is_no_part_of_a_chat() -> None:
    chat = [{"role": "user", "content": "a<4fb"}]
    marked = Template([chat], ["[user] a<4fb"], "0", {})
    plain = without_mark(marked, "4f")
    assert plain == Template([[{"role": "user", "content": "a<b"}]], ["[user] a<b"], "0", {})
    read = Tokens(["a<"], [[5]])
    assert without_mark(read, "4f") is read
    assert chat_stages([plain, read])["prompt_text"] == "[user] a<b"


def stopping(stops: list[str], **answer: Any) -> Case:
    stop = {"strings": stops, "end_ids": [2], "max_new_tokens": 4}
    row = {"stop": {name: {"value": value, "from": "caller"} for name, value in stop.items()}, **answer}
    return Case("site", "one", rows=(row,))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (stopping(["\n"], output_ids=[5, 2], text="a"), True),  # an end of text
        (stopping(["\n"], output_ids=[5, 5, 5, 5], text="aaaa"), True),  # the budget
        (stopping(["\n"], output_ids=[5, 6], text="a"), False),  # vLLM leaves the stop out
        (stopping([], output_ids=[5, 2], text="a"), False),  # no stops
        (stopping(["<|im_end|>"], output_ids=[5, 2], text="a"), False),  # an end in other words
        (Case("site", "one", arguments={"until": ["Q:"]}, rows=({"output_ids": [5, 2], "text": "a"},)), True),
        (Case("site", "one", arguments={"until": ["Q:"]}, rows=({"output_ids": [5, 2], "text": "a Q: b"},)), False),
    ],
)
def test_record_says_that_no_answer_comes_to_a_stop(case: Case, said: bool) -> None:
    assert any("no answer comes to a stop" in line for line in never_reached([case])) == said
    rows = tuple({**row, "output_ids": [5, 6], "text": "a Q:"} for row in case.rows)
    assert not [*never_reached([case, replace(case, case="other", rows=rows)])]


def test_record_says_which_of_a_sites_stops_no_answer_comes_to() -> None:
    cases = stopping(["\n"], output_ids=[5, 6], text="a"), stopping(["Verdict:", "\n"], output_ids=[5, 2], text="b")
    [line] = never_reached(cases)
    assert "no answer comes to one of its stops ('Verdict:')" in line
    given = Case("site", "one", arguments={"of": ["yes", "no"]}, rows=({"output_ids": [5, 2], "text": "yes"},))
    assert not [*never_reached([given])], "texts that are no stops"


@pytest.mark.parametrize(
    "command",
    [
        "python app.py a; python app.py b",
        "python -B -W ignore -Wignore::UserWarning app.py a && cd sub && python ../app.py b",
        "python starts.py a b",
    ],
    ids=["twice", "with options, and from another folder", "from a script of its own"],
)
def test_record_of_a_command_line_sees_the_sites_of_the_scripts_in_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "app.py").write_text(
        "import sys\n\n\ndef shout(text):\n    return text.upper()\n\n\n"
        'if __name__ == "__main__":\n    print(sys.argv, __file__, shout(sys.argv[1]))\n'
    )
    (tmp_path / "starts.py").write_text(
        "import subprocess\nimport sys\n\nfor word in sys.argv[1:]:\n"
        '    subprocess.run([sys.executable, "app.py", word], check=True)\n'
    )
    monkeypatch.chdir(tmp_path)
    line = command.replace("python ", f"{sys.executable} ")
    assert main(["record", "--site", "shouts=app.py:shout", "--", "sh", "-c", line]) == 4
    goldens, broken = Store("golden").read_all(["shouts"])
    assert sorted(golden.value for golden in goldens) == ["A", "B"] and not broken
    assert {golden.function for golden in goldens} == {"app.py:shout"} and all(golden.source for golden in goldens)
    assert f"['app.py', 'a'] {tmp_path / 'app.py'} A" in capfd.readouterr().out, "as without the recorder"


MODEL = {"$object": "torch.nn.Linear"}


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([{"path": "m", "word": "a"}, {"path": "m", "word": "b"}], "path"),
        ([{"path": "m", "stop": ["."]}, {"path": "m", "stop": ["."]}], "path, stop"),
        ([{"path": "m"}, {"path": "m", "stop": None}], "path"),
        ([{"word": "a"}, {"word": "b"}], None),
        ([{"path": "m"}], "path"),
        ([{"model": MODEL}, {"model": MODEL}], None),
    ],
    ids=["one varies", "none varies", "one is left out once", "all vary", "a single call", "an object"],
)
def test_record_says_which_arguments_were_equal_in_all_calls(calls: list[dict[str, Any]], said: str | None) -> None:
    cases = [Case("site", f"c-{n}", "m:f", arguments, value="v") for n, arguments in enumerate(calls)]
    lines = [line for line in site_lines("site", cases) if "what another value does" in line]
    assert len(lines) == (said is not None)
    assert all(f": {said}; " in line for line in lines)


ARGUED = """
import sys

WORD = sys.argv[1]
sys.argv.pop()

def shout(text):
    return WORD + text

if __name__ == "__main__":
    shout("a")
"""


def recorded_argv(tmp_path: Path, *commands: str) -> list[str]:
    """What sites.json holds after these commands, recorded one after the other."""
    for command in commands:
        main(["record", "--site", "shouts=script.py:shout", "--overwrite", "--", "sh", "-c", command])
    found: list[str] = Store(tmp_path / "golden").settings()["shouts"].get("argv", [])
    return found


def test_the_arguments_of_the_script_are_kept_as_it_was_started_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path below the working directory as a relative one; recorded anew, they are new."""
    (tmp_path / "script.py").write_text(ARGUED)
    monkeypatch.chdir(tmp_path)
    run = f"{sys.executable} {{}}script.py"
    assert recorded_argv(tmp_path, f"{run.format('')} {tmp_path}/script.py 'b c'") == ["script.py", "b c"]
    assert recorded_argv(tmp_path, f"{run.format('-X utf8 ')} d") == ["d"]


def test_a_site_of_two_command_lines_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text(ARGUED)
    monkeypatch.chdir(tmp_path)
    run = f"{sys.executable} script.py"
    assert recorded_argv(tmp_path, f"{run} a; {run} b") == ["a"]
    said = capsys.readouterr().out
    assert "recorded with the arguments 'b', too; a check takes 'a'" in said


def test_a_script_that_is_started_in_another_folder_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    run = ["record", "--site", "shouts=sub/script.py:shout", "--"]
    main([*run, sys.executable, "sub/script.py"])
    assert "was started in" not in capsys.readouterr().out
    main([*run, "sh", "-c", f"cd sub; {sys.executable} script.py"])
    assert "shouts: its script was started in sub," in capsys.readouterr().out
