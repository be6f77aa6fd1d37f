"""The commands around a draft: what is written where, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.draft import proving, running, skill
from parity.draft.decisions import Decision, Decisions
from parity.draft.observed import DraftError, observe
from parity.goldens.store import Store


@pytest.mark.parametrize(
    ("old", "out", "name"),
    [
        ("old.py", "acme/new.py", "acme/new.py"),
        ("pkg.old", "pkg/old_moved.py", "pkg.old_moved"),
        ("old", "old_moved.py", "old_moved"),
        ("pkg.old", "elsewhere/new.py", "elsewhere/new.py"),
    ],
)
def test_new_module_beside_a_module_is_one_too(old: str, out: str, name: str) -> None:
    assert proving.new_module(old, Path(out)) == name


def test_site_settings_name_the_draft_and_its_factories() -> None:
    entry = {"functions": ["old.py:f"], "arguments": {"image": "setup:make"}}
    settings = proving.site_settings(entry, "old.py", "new.py", {"engine": "make_engine"})
    assert settings["moved"] == {"old.py": "new.py"}
    assert settings["arguments"] == {"image": "setup:make", "engine": "new.py:make_engine"}


@pytest.mark.parametrize(
    ("codes", "code"),
    [({"hf": 0, "vllm": 0}, 0), ({"hf": 3, "vllm": 1}, 1), ({"hf": 4, "vllm": 3}, 3), ({"hf": 0, "vllm": 5}, 5)],
)
def test_gravest_of_several_exit_codes_is_the_drift(codes: dict[str, int], code: int) -> None:
    assert proving.gravest(codes) == code


def test_observe_without_goldens_says_how_to_record(tmp_path: Path) -> None:
    with pytest.raises(DraftError, match="no goldens in .* parity record --site answers="):
        observe(Store(tmp_path), "answers")


def test_decisions_ask_a_question_once_and_take_a_part_of_a_word() -> None:
    asked = []

    def read(question: str) -> str:
        asked.append(question)
        return "dr"

    decisions = Decisions(read=read)
    decision = Decision("inherited", "Keep it?", ("keep", "drop"))
    assert [decisions.choose(decision), decisions.choose(decision)] == ["drop", "drop"]
    assert asked == ["Keep it? [keep/drop] "]


def test_skill_is_one_page_with_the_head_that_agents_read() -> None:
    page = skill.page()
    assert page.startswith("---\nname: parity\ndescription: ")
    assert len(page.splitlines()) < 90
    for command in ("scan", "record", "draft", "check", "explain", "accept"):
        assert f"`parity {command}" in page
    assert "## Never" in page and skill.agents_section().startswith("## Move a call site")


def test_found_sites_are_the_functions_of_a_script_that_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.py").write_text(
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        'tok = AutoTokenizer.from_pretrained("m")\n'
        'model = AutoModelForCausalLM.from_pretrained("m")\n'
        "def answer(question):\n"
        '    inputs = tok(question, return_tensors="pt")\n'
        "    return tok.decode(model.generate(**inputs, max_new_tokens=5)[0])\n"
        "print(answer('Why?'))\n"
    )
    [site] = running.found_sites(["python", "old.py"])
    assert (site.name, site.function) == ("old_answer", "old.py:answer")


def test_found_sites_of_a_script_without_a_function_that_generates_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.py").write_text("print('hello')\n")
    with pytest.raises(DraftError, match="generates in no function"):
        running.found_sites(["python", "old.py"])


def test_draft_never_writes_over_a_file(tmp_path: Path) -> None:
    there = tmp_path / "new.py"
    there.write_text("mine")
    with pytest.raises(DraftError, match="is there already"), running.refusing_existing(there):
        there.open("x")
    assert there.read_text() == "mine"
