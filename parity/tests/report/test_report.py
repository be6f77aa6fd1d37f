"""Reports: what each says of the same check, that hostile outputs stay text in all of them, the
page in a browser."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from parity.goldens.store import Case, Store, image_bytes
from parity.goldens.verdict import Cause, Change, Check, Difference, Numerics, Outcome
from parity.report.commands import chain_text
from parity.report.console import case_text, console
from parity.report.data import json_text
from parity.report.files import write_reports
from parity.report.junit import junit_xml
from parity.report.markdown import markdown_summary
from parity.report.page import Diff, call_table, html_page, text_diff
from parity.report.partings import parting
from parity.report.words import final_line

from ..browser import Browser

EVIL = "</script><img src=x onerror=window.hacked=1><!-- & \x1b[31m\x00\ud800 | `code` *bold*\n]]> \u202eabc"
SAMPLING = {
    "temperature": {"value": 0.0, "from": "caller"},
    "top_k": {"value": 50, "from": "checkpoint"},
    "repetition_penalty": {"value": 1.0, "from": "default"},
}
STOP = {
    "end_ids": {"value": [151643, 151645], "from": "checkpoint"},
    "strings": {"value": ["\n\n"], "from": "caller"},
    "max_new_tokens": {"value": 64, "from": "caller"},
}


def row(**changes: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "Count."}],
        "template": {"sha256": "ab" * 32, "arguments": {"enable_thinking": False}},
        "prompt_text": "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n",
        "prompt_ids": [1, 2, 3],
        "model": {"class": "Qwen3ForCausalLM", "dtype": "float32"},
        "sampling": SAMPLING,
        "stop": STOP,
        "output_ids": [10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
        "decode": {"ids": "ended", "skip_special_tokens": True, "clean_up": False},
        "text": "one, two, three, four",
        **changes,
    }


def case(name: str, value: Any, **changes: Any) -> dict[str, Any]:
    return Case("summaries", name, value=value, rows=(row(**changes),)).to_json()


def babbler(name: str = "babbles", backend: str = "hf") -> Outcome:
    """The moved code lost an end-of-text id."""
    told = "the old code ended at [151643, 151645], the moved code ends at [151643]"
    stop = {**STOP, "end_ids": {"value": [151643], "from": "caller"}}
    long = "one, two, three, four, five, six and so on"
    return Outcome(
        "summaries", name, backend, "DRIFT",
        (
            Difference("stop", "end_ids", [151643, 151645], [151643], 0),
            Difference("output_ids", "", list(range(10, 20)), [*range(10, 19), 77, 78], 0, counts=False),
            Difference("value", "", "one, two, three, four", long),
        ),
        Cause("stop.end_ids", "confirmed", told, "with the old end ids the moved code gives the old ids"),
        case(name, "one, two, three, four"),
        case(name, long, stop=stop, output_ids=[*range(10, 19), 77, 78], text=long),
        seconds=0.4,
        steps=("the same on both sides: prompt", "first difference: stop.end_ids"),
    )  # fmt: skip


def picture_case(old_blob: str, new_blob: str) -> Outcome:
    def images(blob: str, tokens: int, budget: list[int]) -> list[dict[str, Any]]:
        return [
            {
                "sha256": blob[:64],
                "size": [640, 480],
                "tokens": tokens,
                "budget": budget,
                "blob": blob,
            }
        ]

    old, new = images(old_blob, 64, [3136, 65536]), images(new_blob, 300, [3136, 12845056])
    return Outcome(
        "stage_a", "large_photo", "vllm", "DRIFT",
        (
            Difference("images", "budget", [3136, 65536], [3136, 12845056], 0),
            Difference("images", "tokens", 64, 300, 0),
        ),
        Cause("image.budget", "likely", "pictures had at most 65536 pixels, now at most 12845056"),
        case("large_photo", {"summary": "A red circle.", "n": 1}, images=old),
        case("large_photo", {"summary": "A red disc.", "n": 1}, images=new),
    )  # fmt: skip


def quiet(name: str, site: str = "summaries", backend: str = "hf", value: Any = "fine") -> Outcome:
    said = case(name, value)
    return Outcome(site, name, backend, "IDENTICAL", old=said, new=said, seconds=0.1)


def evil_case() -> Outcome:
    why = Cause("value", "unattributed", f"value was {EVIL!r}, and raw: {EVIL}", EVIL)
    differences = (Difference("value", "", EVIL, EVIL + "!"),)
    sides = case("evil", EVIL), case("evil", EVIL + "!", text=EVIL, prompt_text=EVIL)
    return Outcome("summaries", "evil", "hf", "DRIFT", differences, why, *sides, notes=(EVIL,))


ALSO = (
    "prompt.template: template.sha256 of row 0 was 'ab', is 'cd'",
    "stop.max_new_tokens: stop.max_new_tokens of row 0 was 8, is 9",
)


def mixed(blobs: tuple[str, str] = ("0" * 64 + ".png", "1" * 64 + ".png")) -> Check:
    """One of each verdict."""
    latent = dataclasses.replace(babbler("latent"), verdict="LATENT", new=babbler().old, also=ALSO)
    accepted = dataclasses.replace(babbler("wanted"), verdict="ACCEPTED", accepted="the old stop was a bug")
    return Check(
        (
            quiet("plain"), quiet("other"), babbler(), latent, accepted, evil_case(), picture_case(*blobs),
            Outcome("stage_a", "tie", "vllm", "NEAR-TIE", notes=("gap 2.1e-4 of 1e-3 allowed",)),
            Outcome("stage_a", "gone", "hf", "MISSING"),
            Outcome("stage_a", "crash", "hf", "ERROR", cause=Cause("error", "confirmed", "it raised KeyError: 'x'")),
            Outcome("stage_a", "dice", "hf", "UNSTABLE"),
        ),
        environment={"transformers": "5.19.0", "torch": "2.9.1"},
        seconds=3.21,
    )  # fmt: skip


# == Console ==


def test_the_console_tells_a_failing_case_in_full() -> None:
    said = console(Check((quiet("plain"), babbler()), seconds=1.5))
    assert (
        said == "summaries  hf        0.5 s  1 IDENTICAL  1 DRIFT\n"
        "\n"
        "DRIFT  summaries/babbles on hf  stop.end_ids; confirmed\n"
        "  the old code ended at [151643, 151645], the moved code ends at [151643]\n"
        "  output ids of row 0, from 9 on:\n"
        "    was  … 13 14 15 16 17 18 ▸19\n"
        "     is  … 13 14 15 16 17 18 ▸77 78\n"
        "  value, from character 21 on:\n"
        "    was  one, two, three, four▸(end)\n"
        "     is  one, two, three, four▸, five, six and so on\n"
        "  proof: with the old end ids the moved code gives the old ids\n"
        "  python -m parity explain summaries/babbles --backend hf\n"
        "\n"
        "FAILED (exit 1, drift): 1 of 2 cases fail: 1 DRIFT; 1.5 s"
    )


def test_an_end_that_differs_is_seen_in_a_long_value() -> None:
    said = Difference("value", "", ["a" * 90 + "e", "z" * 90], ["a" * 90 + "e\ufffd", "z" * 90]).sentence()
    was, now = said.removeprefix("value was ").split(", is ")
    assert was != now and "\ufffd" in now and len(said) < 160, said


def test_of_an_answer_drawn_anew_the_console_shows_no_draw_where_the_cause_lies_after_decoding() -> None:
    drawn = {"temperature": {"value": 0.8, "from": "caller"}}
    old, new = (
        case("hot", "one ", sampling=drawn),
        case("hot", "two", sampling=drawn, output_ids=[1, 2]),
    )
    why = Cause("value", "confirmed", "value was 'one ', is 'one'")
    for cause, shown in ((why, False), (dataclasses.replace(why, name="stop.end_ids"), True)):
        said = case_text(Outcome("summaries", "hot", "hf", "DRIFT", cause=cause, old=old, new=new))
        assert ("▸" in said) == shown, said


def test_the_console_is_silent_about_what_passes() -> None:
    said = console(Check(tuple(quiet(f"case{k}") for k in range(30)), seconds=2))
    assert said.splitlines() == [
        "summaries  hf        3.0 s  30 IDENTICAL",
        "",
        "PASSED (exit 0, within policy): 30 cases; 2.0 s",
    ]


def test_cases_that_pass_by_their_settings_alone_say_what_they_lack() -> None:
    drawn = dataclasses.replace(
        quiet("drawn"), verdict="SAME-SETTINGS", notes=("cannot tell, needs about 90 more tokens",)
    )
    check = Check((quiet("plain"), drawn, dataclasses.replace(drawn, case="other")))
    line = "SETTINGS ALONE, no samples, decided 2 cases of summaries on hf, the first is drawn: cannot tell"
    for said in (console(check), markdown_summary(check), html_page(check)):
        assert line in " ".join(said.split())
    assert "SETTINGS ALONE" not in console(Check((quiet("plain"),)))


def test_no_terminal_escape_of_a_model_reaches_the_terminal() -> None:
    said = console(mixed(), colour=False)
    assert "\x1b" not in said and "\x00" not in said and "\u202e" not in said
    assert r"\x1b[31m" in said
    said.encode()  # nothing that UTF-8 cannot hold


def test_colour_only_where_it_is_asked_for() -> None:
    said = console(mixed(), colour=True)
    assert "\x1b[31mDRIFT\x1b[0m" in said
    assert "\x1b[36m1 NEAR-TIE" in said and "\x1b[33m1 LATENT" in said, "one passes, the other fails"
    plain = re.sub(r"\x1b\[\d+m", "", console(mixed(), colour=True))
    assert plain == console(mixed(), colour=False)


def test_ids_are_no_evidence_of_what_was_done_behind_decoding() -> None:
    ended = babbler()
    assert "output ids of row 0" in console(Check((ended,)))
    assert ended.old and ended.new
    same = {**ended.new, "rows": ended.old["rows"]}
    cause = Cause("value", "likely", "it is cut", "the ids are the same")
    said = console(Check((dataclasses.replace(ended, cause=cause, new=same),)))
    assert "output ids" not in said and "value, from character 21 on" in said
    said = console(Check((dataclasses.replace(ended, cause=cause),)))
    assert "it is cut" in said and "value, from" not in said, "it may part by the answer first"


def test_a_cause_is_one_block_with_its_sites_and_backends() -> None:
    hf = [babbler(f"case{k}") for k in range(40)]
    said = " ".join(console(Check((*hf, babbler("case0", "vllm")))).split())
    assert said.count("output ids of row 0") == 1
    assert said.count("stop.end_ids") == 1
    assert "41 cases: summaries on hf 40, summaries on vllm 1" in said
    assert all(f"summaries/case{k} on hf" in said for k in range(40))
    assert "and 40 more: summaries/case1 on hf, summaries/case2 on hf" in said


def test_other_sentences_of_a_cause_are_listed() -> None:
    other = babbler("other")
    assert other.cause is not None
    own = dataclasses.replace(other.cause, sentence="no end id is left", certainty="likely")
    said = console(Check((babbler(), dataclasses.replace(other, cause=own))))
    assert "  summaries/other on hf (likely): no end id is left\n" in said
    assert "stop.end_ids; 1 confirmed, 1 likely" in said


def test_which_of_a_causes_cases_are_only_likely_is_said() -> None:
    other = babbler("other")
    assert other.cause is not None
    likely = dataclasses.replace(other, cause=dataclasses.replace(other.cause, certainty="likely"))
    said = console(Check((babbler(), babbler("third"), likely)))
    assert "and 2 more: summaries/third (confirmed), summaries/other (likely)" in said
    assert "confirmed)" not in console(Check((babbler(), babbler("third"))))


def test_what_else_differs_in_a_case_is_not_hidden_behind_the_first_of_its_cause() -> None:
    other = dataclasses.replace(babbler("other"), also=("sampling.top_k: was 20, is 0",))
    said = console(Check((babbler(), babbler("third"), other)))
    assert "    also: sampling.top_k: was 20, is 0\n  and 1 more: summaries/third" in said


@pytest.mark.parametrize("attack", ["::stop-commands::pwn", "x ##[add-mask]y"])
@pytest.mark.parametrize("pad", range(60, 100, 5))
def test_no_line_of_a_report_is_a_command_of_a_ci_runner(attack: str, pad: int) -> None:
    """Where a line is wrapped, too."""
    told = "a" * pad + " " + attack
    cause = Cause("value", "likely", told, told)
    evil = dataclasses.replace(babbler(), cause=cause, notes=(told,), also=(told,))
    check = Check((evil,), left_out=(told,), unused_acceptances=(told,), changes=(Change(told),))
    said = console(check, colour=True) + "\n" + console(check) + "\n" + case_text(evil)
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in said.split("\n")]
    assert [line for line in lines if line.startswith("::") or "##[" in line] == []
    assert "stop-commands::pwn" in said or "add-mask]y" in said


@pytest.mark.parametrize("verdict", ["DRIFT", "LATENT"])
def test_explain_ends_its_steps_with_the_cause(verdict: Any, tmp_path: Path) -> None:
    said = chain_text(dataclasses.replace(babbler(), verdict=verdict), Store(tmp_path))
    assert said.split("\n") == [
        "  1. the same on both sides: prompt",
        "  2. first difference: stop.end_ids",
        "  3. cause: stop.end_ids; confirmed: with the old end ids the moved code gives the old ids",
    ]


def test_explain_writes_no_control_character_of_a_golden(tmp_path: Path) -> None:
    evil = dataclasses.replace(
        babbler(), steps=("a\x1b]0;x\x07\u202e\n::error::x",), old={"function": "m:f\n::error::y"}
    )
    said = chain_text(evil, Store(tmp_path))
    assert all(line.isprintable() and not line.strip().startswith("::") for line in said.split("\n"))
    assert len(said.split("\n")) == 3


def test_drift_stands_before_latent_and_errors_are_last() -> None:
    wanted = ["DRIFT", "LATENT", "ERROR", "UNSTABLE", "MISSING"]
    heads = [block.split()[0] for block in console(mixed()).split("\n\n")]
    assert [head for head in dict.fromkeys(heads) if head in wanted] == wanted


def test_one_error_is_told_once_wherever_it_is_met() -> None:
    cause = Cause("error", "unattributed", "could not judge: No module named 'acme.gone'")
    sites = ("a", "b")
    same = [Outcome(site, f"case{k}", "hf", "ERROR", cause=cause) for k in range(12) for site in sites]
    said = console(Check(tuple(same)))
    assert said.count("No module named") == 1
    assert "24 cases: a on hf 12, b on hf 12" in said
    assert "and 23 more: b/case0, a/case1" in said


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for line in console(mixed()).splitlines():
        assert len(line) <= width or "▸" in line or line.startswith(("FAILED", "  python -m"))


def test_what_was_left_out_is_said_and_an_empty_folder_gets_a_next_step() -> None:
    left = Check((quiet("a", "s"),), left_out=("worker on hf (sites.json: vllm)",))
    assert "left out: worker on hf (sites.json: vllm)" in console(left)
    assert "left out: worker on hf" in markdown_summary(left)
    assert json.loads(json_text(left))["left_out"] == list(left.left_out)
    assert "python -m parity record --site" in console(Check(()))


@pytest.mark.parametrize(
    ("outcomes", "last"),
    [
        ((), "FAILED (exit 5, nothing was compared): 0 cases; 0.0 s"),
        (
            (Outcome("s", "c", "hf", "MISSING"),),
            "FAILED (exit 4, missing or unused): 1 of 1 cases fail: 1 MISSING; 0.0 s",
        ),
        (
            (Outcome("s", "c", "hf", "ERROR"),),
            "FAILED (exit 3, could not judge): 1 of 1 cases fail: 1 ERROR; 0.0 s",
        ),
        ((babbler(),), "FAILED (exit 1, drift): 1 of 1 cases fail: 1 DRIFT; 0.0 s"),
    ],
)
def test_the_last_line_is_the_exit_code(outcomes: tuple[Outcome, ...], last: str) -> None:
    assert console(Check(outcomes)).splitlines()[-1] == last


@pytest.mark.parametrize(
    ("old", "new", "what", "was", "now"),
    [
        ("abc", "abX", "value, from character 2 on", ("ab", "c"), ("ab", "X")),
        ("abc", "abc\n", "value, from character 3 on", ("abc", "(end)"), ("abc", "\\n")),
        (["a", "b"], ["a", "c"], "value[1], from character 0 on", ("", "b"), ("", "c")),
        ({"k": {"n": 1}}, {"k": {"n": 2}}, "value.k.n", ("", "1"), ("", "2")),
        (["a"], ["a", "b"], "value[1]", ("", "(nothing)"), ("", "'b'")),
        (
            "x" * 80 + "old",
            "x" * 80 + "new",
            "value, from character 80 on",
            ("…" + "x" * 36, "old"),
            ("…" + "x" * 36, "new"),
        ),
    ],
)
def test_where_two_values_part(old: Any, new: Any, what: str, was: tuple[str, str], now: tuple[str, str]) -> None:
    found = parting("value", old, new)
    assert found is not None and (found.what, found.old, found.new) == (what, was, now)


def test_equal_values_do_not_part() -> None:
    assert parting("value", {"a": [1, "x"]}, {"a": [1, "x"]}) is None


# == JUnit ==


def test_junit_has_a_suite_for_each_site_and_backend() -> None:
    root = ElementTree.fromstring(junit_xml(mixed()))
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["summaries on hf", "stage_a on vllm", "stage_a on hf"]
    counts = {
        name: tuple(suite.get(k) for k in ("tests", "failures", "errors", "skipped")) for name, suite in suites.items()
    }
    assert counts == {
        "summaries on hf": ("6", "3", "0", "1"),
        "stage_a on vllm": ("2", "1", "0", "0"),
        "stage_a on hf": ("3", "1", "2", "0"),
    }
    failure = root.find(".//testcase[@name='babbles']/failure")
    assert failure is not None and failure.get("type") == "stop.end_ids"
    assert "python -m parity explain summaries/babbles" in (failure.text or "")


def test_junit_is_xml_whatever_a_model_wrote() -> None:
    text = junit_xml(mixed())
    evil = ElementTree.fromstring(text.encode()).find(".//testcase[@name='evil']/failure")
    assert evil is not None and r"\x00\ud800" in (evil.get("message") or "")
    # Nor can it turn the text around that a page of a CI system shows.
    assert all(character.isprintable() or character == "\n" for character in text)


# == Markdown ==


def test_markdown_groups_by_cause_and_escapes() -> None:
    said = markdown_summary(mixed())
    assert said.startswith("## ❌ parity: FAILED (exit 1, drift): 7 of 11 cases fail")
    assert "### stop.end&#95;ids: 2 (confirmed)\n\nother ids end the text\n" in said
    # the most frequent cause first
    assert said.index("### stop.end") < said.index("### value")
    table = [line for line in said.splitlines() if line.startswith("|")]
    assert all(line.count("|") == 5 for line in table)
    [latent] = [line for line in table if "/latent" in line]
    assert "; also differs: prompt.template: template.sha256 of row 0 was" in latent
    assert latent.endswith("is 9 |")
    assert said.count("also differs") == 1
    assert "<img" not in said and "`code`" not in said and "\x1b" not in said


def test_markdown_shows_where_two_long_prompts_part() -> None:
    old, new = ({"prompt_ids": [1], "output_ids": [], "prompt_text": "x" * 400 + end} for end in ("old", "new"))
    sides: dict[str, Any] = {"old": {"rows": [old], "value": 1}, "new": {"rows": [new], "value": 1}}
    digests = Cause("prompt.template", "confirmed", "template.sha256 was ab12, is cd34")
    also = tuple(f"{name}: {'y' * 200} {name}" for name in ("stop.a", "stop.b"))
    said = markdown_summary(Check((Outcome("s", "c", "hf", "DRIFT", cause=digests, also=also, **sides),)))
    assert "▸old, is …" in said and "▸new" in said
    assert "y stop.a; stop.b: y" in said and "y stop.b |" in said, "nothing is cut out of what else differs"


def test_markdown_is_capped() -> None:
    long = [
        dataclasses.replace(babbler(f"c{k}"), cause=Cause("stop.end_ids", "likely", "x" * 90_000)) for k in range(500)
    ]
    said = markdown_summary(Check(tuple(long)))
    assert len(said) < 20_000 and "… and 480 more." in said


def test_markdown_of_a_green_check() -> None:
    said = markdown_summary(Check((quiet("plain"),)))
    assert said.startswith("## ✅ parity: PASSED (exit 0") and "###" not in said


def test_the_summary_of_a_github_step_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    write_reports(mixed(), markdown=path)
    assert path.read_text().startswith("before\n## ❌")
    other = tmp_path / "other.md"
    for _ in range(2):
        write_reports(mixed(), markdown=other)
    assert other.read_text().count("## ❌") == 1


# == JSON ==


def test_json_holds_the_whole_outcome() -> None:
    check = mixed()
    said = json.loads(json_text(check))
    assert list(said) == [
        "format",
        "exit_code",
        "ending",
        "seconds",
        "policy",
        "environment",
        "left_out",
        "unused_acceptances",
        "only_old",
        "changes",
        "counts",
        "outcomes",
        "numerics",
    ]
    assert (said["format"], said["exit_code"], said["counts"]["DRIFT"]) == (2, check.exit_code, 3)
    first = said["outcomes"][2]
    assert list(first) == [
        "site", "case", "backend", "verdict", "fails", "sentence", "cause", "differences", "accepted", "notes",
        "also", "steps", "seconds", "old", "new",
    ]  # fmt: skip
    assert first["old"] == babbler().old and first["cause"]["name"] == "stop.end_ids" and first["fails"]
    assert first["differences"][0]["old"] == [151643, 151645]
    assert said["outcomes"][5]["new"]["value"] == EVIL + "!"


def test_json_writes_what_json_cannot_hold_as_goldens_do() -> None:
    odd = dataclasses.replace(quiet("nan"), new={"value": float("nan"), "rows": (), "path": Path("x")})
    said = json.loads(json_text(Check((odd,))), parse_constant=pytest.fail)
    assert said["outcomes"][0]["new"] == {"value": {"$float": "nan"}, "rows": [], "path": "x"}


# == Diffs ==


def joined(diff: Diff, sign: str) -> str:
    return "".join(text for kind, text in diff if kind in ("=", sign))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("a b", "a b"),
        ("a b c", "a x c"),
        ("", "a"),
        ("a", ""),
        ("aa a", "aa aa a"),
        (EVIL, "x"),
    ],
)
def test_a_diff_holds_both_texts(old: str, new: str) -> None:
    diff = text_diff(old, new)
    assert (joined(diff, "-"), joined(diff, "+")) == (old, new)


def test_a_diff_is_by_words_and_blanks() -> None:
    assert text_diff("one two three", "one  2 three") == [
        ["=", "one "], ["-", "two"], ["+", " 2"], ["=", " three"],
    ]  # fmt: skip


def test_an_escape_in_a_list_is_one_token() -> None:
    assert text_diff('"A"', '"\\n\\nA"') == [["=", '"'], ["+", "\\n\\n"], ["=", 'A"']]


def test_the_call_table_marks_differences_and_mere_inequalities() -> None:
    sampling = {
        **SAMPLING,
        "temperature": {"value": 0, "from": "default"},
        "top_k": {"value": 20, "from": "caller"},
    }
    stop = {
        **STOP,
        "max_new_tokens": {"value": 65, "from": "caller"},
        "criteria": {"value": ["X"], "from": "caller"},
    }
    table = call_table(row(), row(sampling=sampling, stop=stop), {("stop", "max_new_tokens")})
    states = {f"{stage}.{name}": state for stage, name, _, _, state in table}
    assert {name: state for name, state in states.items() if state} == {
        "sampling.top_k": 1, "stop.max_new_tokens": 2, "stop.criteria": 1,
    }  # fmt: skip
    assert ["stop", "criteria", [], ["['X']", "caller"], 1] in table


def test_two_long_texts_without_anything_in_common_are_soon_told() -> None:
    diff = text_diff("a b c d " * 4000, "x y " * 9000)
    assert [kind for kind, _ in diff if kind != "="] == ["-", "+"]


# == The page ==


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    store = Store(folder / "golden")
    red, blue = (stored_picture(store, colour) for colour in ("red", "blue"))
    write_reports(mixed((red, blue)), html=folder / "report.html", store=store)
    return folder / "report.html"


def stored_picture(store: Store, colour: str) -> str:
    return store.put_blob(image_bytes(Image.new("RGB", (640, 480), colour)), ".png")


def shown(browser: Browser) -> list[str]:
    script = "[...document.querySelectorAll('.case')].filter(n => n.checkVisibility()).map(n => n.dataset.label)"
    return list(browser.run(script))


def test_the_page_holds_what_else_differs() -> None:
    said = html_page(mixed())
    [payload] = re.findall(r'"also":(\["[^\]]+\])', said)
    assert json.loads(payload) == [*ALSO]
    assert "Also differs" in said and "c.also.length" in said


def test_a_card_tells_what_else_differs(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    open_case(browser, "summaries/babbles")
    assert browser.run("document.querySelectorAll('[data-label=\"summaries/babbles\"] .also').length") == 0
    said = open_case(browser, "summaries/latent")
    assert all(name in said for name in ALSO)
    content = "getComputedStyle(document.querySelector('.also'), '::before').content"
    assert browser.run(content) == '"Also differs  "'


def open_case(browser: Browser, label: str) -> str:
    """Open a case as a person does; the text that it shows."""
    node = f"document.querySelector('[data-label=\"{label}\"]')"
    browser.run(f"{node}.open || {node}.querySelector('summary').click()")
    browser.run("new Promise(r => setTimeout(r, 30))")
    return str(browser.run(f"{node}.innerText"))


def test_the_page_opens_from_disk_and_asks_for_nothing(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    assert browser.errors == []
    assert [url for url in browser.requested if not url.startswith(("data:", "about:"))] == [page.as_uri()]
    assert browser.run("document.querySelector('h1').innerText").endswith("7 of 11 cases fail")
    assert browser.run("document.querySelector('.under').innerText") == final_line(mixed())
    assert shown(browser) == [
        "summaries/babbles", "summaries/evil", "stage_a/large_photo", "summaries/latent", "stage_a/crash",
        "stage_a/dice", "stage_a/gone",
    ]  # fmt: skip


def test_the_page_shows_cause_stages_call_and_diff(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    said = open_case(browser, "summaries/babbles")
    for wanted in (
        "stop.end_ids",
        "confirmed",
        "the moved code ends at [151643]",
        "First unequal stage: stop.",
    ):
        assert wanted in said
    assert "How the cause was found: 3 steps" in said
    at = 'document.querySelector(\'[data-label="summaries/babbles"] '
    assert browser.run(at + ".strip .first').innerText") == "stop"
    assert browser.run(at + "tr.differs').innerText").split("\t") == [
        "stop.end_ids", "[151643, 151645]", "checkpoint", "[151643]", "caller",
    ]  # fmt: skip
    assert browser.run(at + ".new ins').innerText") == ",·five,·six·and·so·on"
    assert browser.run(at + ".old del').checkVisibility()") and "…" not in said.split("EFFECTIVE")[0]


def test_the_page_shows_pictures_small(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    open_case(browser, "stage_a/large_photo")
    sizes = browser.run("[...document.images].map(i => [i.naturalWidth, i.naturalHeight, i.checkVisibility()])")
    assert sizes == [[160, 120, True]] * 2
    marked = browser.run("[...document.querySelectorAll('figcaption b')].map(b => b.innerText)")
    assert "tokens 64" in marked and "tokens 300" in marked and "size [640, 480]" not in marked


def test_the_filter_works_from_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    browser.type("/")
    browser.type("babb")
    assert shown(browser) == ["summaries/babbles"]
    assert browser.run("document.getElementById('shown').innerText") == "1 of 11 cases"
    assert "text=babb" in browser.run("location.hash")
    browser.press("Escape")
    assert len(shown(browser)) == 7
    browser.type("jj")
    assert browser.run("document.activeElement.parentElement.dataset.label") == "summaries/evil"
    browser.type("e")
    assert browser.run("document.querySelectorAll('.case[open]').length") == 7


def test_the_page_is_filtered_by_verdict_cause_site_and_address(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    browser.run("document.querySelector('.chip[data-verdict=IDENTICAL]').click()")
    # what passes opens when it is asked for
    assert shown(browser) == ["summaries/plain", "summaries/other"]
    browser.open(page.as_uri())
    browser.run("[...document.querySelectorAll('.reason')].find(b => b.innerText.includes('image.')).click()")
    assert shown(browser) == ["stage_a/large_photo"]
    browser.open(page.as_uri() + "#site=stage_a&backend=hf")
    assert shown(browser) == ["stage_a/crash", "stage_a/dice", "stage_a/gone"]


def test_what_a_model_wrote_stays_text(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    said = open_case(browser, "summaries/evil")
    assert browser.run("window.hacked") is None and browser.errors == []
    assert "</script><img" in said and "onerror" in said
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert "U+001B" in said and "U+202E" in said


def test_the_page_opens_on_the_worst(browser: Browser, tmp_path: Path) -> None:
    latent, error, drift = (Outcome("s", v.lower(), "hf", v) for v in ("LATENT", "ERROR", "DRIFT"))
    write_reports(Check((latent, error, drift)), html=tmp_path / "report.html")
    browser.open((tmp_path / "report.html").as_uri())
    assert shown(browser) == ["s/drift", "s/latent", "s/error"]
    assert browser.run("[...document.querySelectorAll('.case[open]')].map(n => n.dataset.label)") == ["s/drift"]


# Words of the settings that stand on more than one line.
BROKEN_WORDS = """[...document.querySelectorAll('.call td.value')].filter(n => n.checkVisibility()).flatMap((node) => {
  const text = node.firstChild, words = [];
  for (const found of (text ? text.data : "").matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(text, found.index);
    range.setEnd(text, found.index + found[0].length);
    if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1) words.push(found[0]);
  }
  return words;
})"""


def test_the_page_fits_a_narrow_window_and_the_dark(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    open_case(browser, "summaries/babbles")
    for width in (1280, 420):
        browser.resize(width, 900)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run(BROKEN_WORDS) == []
    browser.resize(1280, 900)
    colours = []
    for dark in (False, True):
        browser.dark(dark)
        colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(246, 247, 249)", "rgb(18, 21, 26)"]


def test_five_hundred_cases_stay_small(browser: Browser, tmp_path: Path) -> None:
    text = "lorem ipsum dolor " * 300
    passing = [quiet(f"case{k}", f"site{k % 7}", value=text) for k in range(450)]
    failing = [babbler(f"bad{k}", "vllm") for k in range(50)]
    path = tmp_path / "big.html"
    write_reports(Check((*passing, *failing)), html=path)
    assert path.stat().st_size < 1_000_000
    browser.open(path.as_uri())
    assert len(shown(browser)) == 50
    # what is folded is not made yet
    assert browser.run("document.querySelectorAll('*').length") < 20_000


def test_pictures_of_cases_that_pass_are_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    failing = picture_case(stored_picture(store, "red"), "../a.png")
    passing = dataclasses.replace(failing, verdict="ACCEPTED")
    assert "data:image" in html_page(Check((failing,)), store)
    assert "data:image" not in html_page(Check((passing,)), store)
    assert "data:image" not in html_page(Check((failing,)), None)


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that says so of itself, and holds one row."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 4)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks:
        file += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return file


def test_a_picture_that_cannot_be_read_is_no_picture(tmp_path: Path) -> None:
    """One of 40 gigapixels ended the report with a traceback, after the check."""
    store = Store(tmp_path)
    for content in (b"no picture", png_of_size(200_000, 200_000), png_of_size(40, 30)):
        blob = store.put_blob(content, ".png")
        assert "data:image" not in html_page(Check((picture_case(blob, "b.png"),)), store)


# == Numerics ==

HELD = Numerics(
    "answers", "vllm", "models/x", "bfloat16", "holds", "holds: 90 unsure tokens | of 6 rows", against="float32",
    fields={"tokens": 90},
    picture={
        "edges": [-1.0, 0.0, 1.0], "old": [3, 4], "new": [4, 3], "size": 0.5, "least": 0.3, "most": 0.7, "now": 0.5,
        "gaps": [0.1, 2.0], "allowed": 0.4,
    },
)  # fmt: skip
UNREAD = Numerics(
    "answers",
    "hf",
    "<b>gone</b>",
    "bfloat16",
    "could not judge",
    "could not be judged: no <b>weights</b>",
)
MEASURED = Check((quiet("one", "answers", "vllm"),), numerics=(HELD, UNREAD))


def test_a_sites_numerics_are_one_line_everywhere() -> None:
    line = "answers vllm, numerics of models/x in bfloat16: holds: 90 unsure tokens | of 6 rows"
    assert line in console(MEASURED).replace("\n  ", " ")
    assert "holds: 90 unsure tokens &#124; of 6 rows" in markdown_summary(MEASURED)
    said = json.loads(json_text(MEASURED))["numerics"]
    assert [n["outcome"] for n in said] == ["holds", "could not judge"] and said[0]["fields"] == {"tokens": 90}


@pytest.mark.parametrize("width", [1200, 420])
def test_the_page_draws_what_was_measured(width: int, tmp_path: Path) -> None:
    write_reports(MEASURED, html=tmp_path / "page.html")
    with Browser(width) as browser:
        browser.open((tmp_path / "page.html").as_uri())
        assert browser.run("document.querySelectorAll('#numerics .panel').length") == 2
        before = "document.getElementById('failing').compareDocumentPosition(document.getElementById('numerics')) & 4"
        assert browser.run(before), "cases that fail are seen first"
        assert browser.run("document.querySelectorAll('svg.noise').length") == 1, "nothing was read on the other one"
        assert browser.run("document.querySelectorAll('svg.noise circle.far').length") == 1
        assert browser.run("document.querySelectorAll('svg.noise text').length") == 7
        assert browser.run("document.querySelectorAll('#numerics b').length") == 0, "text, never markup"
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.errors == []


def test_numbers_that_differ_by_rounding_are_not_what_is_shown() -> None:
    shown = parting("value", {"scores": [-0.00326255, -0.2]}, {"scores": [-0.0032625598, -0.3]})
    assert shown is not None and shown.what == "value.scores[1]"
    assert parting("value", [-0.00326255], [-0.0032625598]) is None
