"""The commands around a draft: what is written where, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.__main__ import main
from parity.draft import decisions as decision_module
from parity.draft import proving, running, skill
from parity.draft.decisions import Decision, Decisions
from parity.draft.observed import DraftError, observe
from parity.goldens.store import Case, Store
from parity.record.recorder import Recorded, Seen
from parity.record.source import source_digest
from parity.tests.conftest import TEXT

from .drafts import row


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
    assert proving.new_module(old, Path.cwd() / out) == name  # sites.json is right in a copy, too


def test_site_settings_name_the_draft_and_its_factories() -> None:
    entry = {"functions": ["old.py:f"], "arguments": {"image": "setup:make"}}
    settings = proving.site_settings(entry, "old.py", "new.py", {"engine": "make_engine"})
    assert settings["moved"] == {"old.py": "new.py"}
    assert settings["arguments"] == {"image": "setup:make", "engine": "new.py:make_engine"}


@pytest.mark.parametrize(("codes", "code"), [([0, 0], 0), ([3, 1], 1), ([4, 3], 3), ([0, 5], 5), ([4, 5], 5), ([], 0)])
def test_gravest_of_several_exit_codes_is_the_drift(codes: list[int], code: int) -> None:
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
    assert asked == ["Keep it? [keep/drop, Enter: keep] "]


@pytest.mark.parametrize(("answers", "choice"), [(["\n"], "keep"), (["K\n"], "keep"), (["maybe\n", "d\n"], "drop")])
def test_a_question_shows_its_default_and_is_asked_until_it_is_answered(
    answers: list[str], choice: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(answers)))
    decisions = Decisions(read=decision_module.ask_person)
    assert decisions.choose(Decision("inherited", "Keep it?", ("keep", "drop"))) == choice
    said = capfd.readouterr()
    assert (said.out, said.err.count("Enter: keep")) == ("", len(answers))
    assert ("'maybe' is none of them" in said.err) == (len(answers) == 2)


def test_an_input_that_ends_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D was said to be a fault of parity itself."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ValueError, match="a question was not answered. --yes answers"):
        decision_module.ask_person("Keep it? ")


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
    with pytest.raises(DraftError, match="generates in no function that can be recorded"):
        running.found_sites(["python", "old.py"])


def test_draft_never_writes_over_a_file(tmp_path: Path) -> None:
    there = tmp_path / "new.py"
    there.write_text("mine")
    with pytest.raises(DraftError, match="is there already"), running.refusing_existing(there):
        there.open("x")
    assert there.read_text() == "mine"


# == The command on a project ==

OLD = """import sys
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(PATH)
tok = AutoTokenizer.from_pretrained(PATH)


def answer(question):
    inputs = tok(question, return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""
LOAD_LINE = 4


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder


def put_golden(path: str = "", argv: list[str] | None = None, source: str = "", **arguments: Any) -> None:
    """A golden of old.py:answer.   path: of its checkpoint, as goldens have it."""
    one = {**row(), "output_ids": [4, 5], "model": {"class": "Qwen3ForCausalLM", "path": path}}
    store = Store("golden")
    store.write(Case("answers", "a", "old.py:answer", arguments or {"question": "x"}, (one,), source=source))
    store.set_site("answers", functions=["old.py:answer"], argv=argv)


def drafted_code(capfdbinary: pytest.CaptureFixture[bytes], *words: str) -> tuple[int, bytes, str]:
    """Exit code, stdout and stderr of a draft."""
    code = main(["draft", "answers", "--yes", *words])
    said = capfdbinary.readouterr()
    return code, said.out, said.err.decode()


@pytest.mark.parametrize("change", [
    lambda text: text,
    lambda text: text.replace("\n", "\r\n"),
    lambda text: "\ufeff" + text,
    lambda text: text.replace("\n\n\n", "\n\f\n# a\u2028b\n", 1),
    lambda text: text.rstrip(),
    lambda text: text.replace("    ", "\t"),
    lambda text: "# -*- coding: latin-1 -*-\n# caf\xe9\n" + text,
], ids=["plain", "windows", "mark", "form feed", "no last newline", "tabs", "latin-1"])  # fmt: skip
def test_a_patch_applies_and_gives_what_in_place_gives(
    change: Any, project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = change(OLD.replace("PATH", '"m"'))
    old = text.encode("latin-1" if "latin-1" in text else "utf-8")
    Path("old.py").write_bytes(old)
    put_golden()
    code, patch, _ = drafted_code(capfdbinary, "--diff")
    assert code == 0 and Path("old.py").read_bytes() == old
    subprocess.run(["git", "apply", "-"], input=patch, check=True)
    patched = Path("old.py").read_bytes()
    Path("old.py").write_bytes(old)
    code, _, said = drafted_code(capfdbinary, "--in-place")
    assert code == 0 and "old.py" in said
    assert Path("old.py").read_bytes() == patched != old
    assert Path("old_before.py").read_bytes() == old
    assert patched.count(b"\n") - patched.count(b"\r\n") in (0, patched.count(b"\n"))


def test_a_site_that_generates_through_another_file_says_that_and_not_that_it_is_moved(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("old.py").write_text("import backend\n\ndef answer(question):\n    return backend.complete(question)\n")
    put_golden(source=source_digest("old.py:answer"))
    code, _, said = drafted_code(capfdbinary, "--out", "new.py")
    assert code == 2 and "old.py: nothing in this file generates" in said and "parity scan" in said
    assert "nothing is left" not in said and not Path("new.py").exists()


@pytest.mark.parametrize("made", ["model, tok = get_model(question)", "model = get_model(question)"])
def test_a_site_whose_model_another_file_loads_says_which_function_makes_it(
    made: str, project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = f"from utils import get_model\n\ndef answer(question):\n    {made}\n    return model.generate(question)\n"
    Path("old.py").write_text(code)
    put_golden(source=source_digest("old.py:answer"))
    code_, _, said = drafted_code(capfdbinary, "--out", "new.py")
    assert code_ == 2 and "old.py generates, on a model that utils.get_model makes, in another file" in said
    assert "nothing in this file generates" not in said and "put what loads the model into this one" in said


def test_in_place_a_second_time_has_nothing_to_move_and_keeps_the_old_code(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("old.py").write_text(OLD.replace("PATH", '"m"'))
    put_golden(source=source_digest("old.py:answer"))
    code, _, said = drafted_code(capfdbinary, "--in-place")
    assert code == 0 and "changed since" not in said
    new = Path("old.py").read_bytes()
    code, _, said = drafted_code(capfdbinary, "--in-place")
    assert code == 2 and "nothing is left to move" in said
    assert Path("old.py").read_bytes() == new and "from_pretrained" in Path("old_before.py").read_text()


def test_a_draft_that_is_written_is_named_in_sites_json_with_its_factories(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Then `check` needs no further step."""
    source = OLD.replace("PATH", '"m"').replace("answer(question)", "answer(model, tok, question)")
    Path("old.py").write_text(source)
    put_golden("", None, "", model={"$object": "x.Qwen3ForCausalLM"}, tok={"$object": "x.Qwen2Tokenizer"})
    code, _, said = drafted_code(capfdbinary, "--out", "new.py")
    settings = Store("golden").settings()["answers"]
    assert (code, settings["moved"]) == (0, {"old.py": "new.py"})
    assert settings["arguments"] == {"engine": "new.py:make_engine"}
    assert "golden/sites.json: answers: " in said and "next: `parity check answers`" in said
    assert "def make_engine" in Path("new.py").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["draft", "answers", "--yes", "--backend", "hf"], "--backend says where --check runs"),
        (["skill", "there", "--agents"], "--agents: not allowed with argument DIR"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    words: list[str], says: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("old.py").write_text(OLD.replace("PATH", '"m"'))
    put_golden()
    with contextlib.suppress(SystemExit):
        assert main(words) == 2
    assert says in capfd.readouterr().err


def test_a_patch_of_a_file_in_another_folder_applies_here(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = project / "pkg" / "old.py"
    place.parent.mkdir()
    place.write_text(OLD.replace("PATH", '"m"'))
    one = {**row(), "output_ids": [4, 5], "model": {"class": "Qwen3ForCausalLM", "path": ""}}
    for function in ("pkg/old.py:answer", f"{place}:answer"):
        store = Store("golden")
        store.write(Case("answers", "a", function, {"question": "x"}, (one,)))
        store.set_site("answers", functions=[function])
        code, patch, _ = drafted_code(capfdbinary, "--diff")
        assert code == 0 and patch.startswith(b"--- a/pkg/old.py\n+++ b/pkg/old.py\n")
        subprocess.run(["git", "apply", "--check", "-"], input=patch, check=True)


def test_a_patch_cannot_be_checked(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What was checked was the old code, which passed."""
    Path("old.py").write_text(OLD.replace("PATH", '"m"'))
    put_golden()
    assert main(["draft", "answers", "--yes", "--diff", "--check"]) == 2
    assert "--diff writes no file that could be checked" in capfd.readouterr().err


def test_a_file_that_changed_since_it_was_recorded_is_said(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("old.py").write_text(OLD.replace("PATH", '"m"'))
    put_golden(source="0123456789abcdef")
    _, _, said = drafted_code(capfdbinary, "--diff")
    assert "old.py: answer changed since it was recorded" in said


@pytest.mark.parametrize("where", ["source", "argv", "argument", "field", "settings", "settings of argv"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_checkpoint_outside_the_project_is_found_or_named(
    where: str, is_there: bool, project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A golden holds the name of its folder alone."""
    folder = project.parent / "models" / "mine"
    shutil.copytree(TEXT, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    name, value = ("no_repeat_ngram_size", 2) if where == "source" else ("repetition_penalty", 1.3)
    (folder / "generation_config.json").write_text(json.dumps({name: value}))
    paths = {"source": repr(str(folder)), "argv": "sys.argv[1]", "settings": "open('run.yaml').read()[7:-1]"}
    Path("old.py").write_text(OLD.replace("PATH", paths.get(where, "question")))
    Path("run.yaml").write_text(f"model: {folder}\n" if where.startswith("settings") else "model: other\n")
    argv = {"argv": [f"--model={folder}"], "settings of argv": ["run.yaml"]}.get(where)
    field = {"$record": "__main__.Config", "fields": {"inner": {"model": str(folder)}}}
    put_golden("mine", argv, question={"argument": str(folder), "field": field}.get(where, "x"))
    if not is_there:
        shutil.rmtree(folder)
    code, out, said = drafted_code(capfdbinary)
    text = out.decode()
    assert "huggingface" not in said
    if is_there:
        taken = str(value) if where == "source" else f'settings["{name}"]'
        assert (code, said) == (0, "") and f'"{name}": {taken}' in text
        return
    places = {"source": "old.py:4", "argv": "argv in golden/sites.json"}
    places |= dict.fromkeys(("argument", "field"), "argument question of golden")
    places |= dict.fromkeys(("settings", "settings of argv"), "run.yaml:1")
    assert code == 3 and f"the checkpoint {folder} ({places[where]}" in said
    assert f"line {LOAD_LINE}: " in said and "put it back" in said
    [todo] = [k for k, line in enumerate(text.splitlines()) if "# TODO parity: " in line]
    assert "load(" in text.splitlines()[todo + 1]


@pytest.mark.parametrize(
    ("source", "line", "problem"),
    [(b"print 1\n", 1, "Missing parentheses"), (b"x = 1\n# \xff\n", 2, "decode"), (b"x = (\n", 1, "never closed")],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(
    source: bytes, line: int, problem: str, project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("old.py").write_bytes(source)
    put_golden()
    code, _, said = drafted_code(capfdbinary)
    assert code == 2 and f"old.py:{line}: " in said and problem in said
    assert main(["migrate", "--yes", "--", "python", "old.py"]) == 2
    assert f"old.py:{line}: " in capfdbinary.readouterr().err.decode()


@pytest.mark.parametrize("kind", ["file", "link", "page that is a link"])
def test_skill_writes_into_a_folder_alone(kind: str, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = project / "there"
    outside = project / "outside.md"
    if kind == "page that is a link":
        folder.mkdir()
        (folder / "SKILL.md").symlink_to(outside)
    elif kind == "link":
        folder.symlink_to(outside)
    else:
        folder.write_text("mine")
    with pytest.raises(SystemExit) if kind != "page that is a link" else contextlib.nullcontext():
        assert main(["skill", str(folder)]) == 2
    assert str(folder) in capfd.readouterr().err and not outside.exists()


@pytest.mark.parametrize(
    ("checks", "failures", "script", "code"),
    [
        ({"hf": 0, "vllm": 0}, (), 0, 0),
        ({"hf": 4, "vllm": 3}, (), 0, 3),
        ({"hf": 3, "vllm": 1}, (), 0, 1),
        ({"hf": 0, "vllm": 0}, ("a call was not seen",), 0, 3),
        ({"hf": 0, "vllm": 0}, (), 7, 7),
        (None, (), 0, 5),
    ],
)
def test_migrate_ends_with_the_gravest_of_its_steps(
    checks: dict[str, int] | None, failures: tuple[str, ...], script: int, code: int,
    project: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """checks: exit codes by backend; None where the script called nothing."""
    Path("old.py").write_text(OLD.replace("PATH", '"m"'))
    one = {**row(), "output_ids": [4, 5], "model": {"class": "Qwen3ForCausalLM", "path": ""}}
    case = Case("old_answer", "a", "old.py:answer", {"question": "x"}, (one,))

    def record(command: list[str], store: Store, **said: Any) -> Recorded:
        cases = () if checks is None else (case,)
        for each in cases:
            store.write(each)
        store.set_site("old_answer", functions=["old.py:answer"])
        return Recorded(Seen(cases, Path("blobs"), failures, {}, script, (0, 0)), list(cases))

    monkeypatch.setattr(running, "record", record)
    monkeypatch.setattr(proving, "check_draft", lambda *words: checks)
    assert main(["migrate", "--yes", "--", "python", "old.py"]) == code
    assert Path("old_moved.py").exists() == (checks is not None)


MANY = """
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("m")
model = AutoModelForCausalLM.from_pretrained("m")

def asked(q):
    return tok.decode(model.generate(**tok(q, return_tensors="pt"), max_new_tokens=4)[0])

async def later(q):
    return tok.decode(model.generate(**tok(q, return_tensors="pt"), max_new_tokens=4)[0])

def stream(q):
    yield tok.decode(model.generate(**tok(q, return_tensors="pt"), max_new_tokens=4)[0])

def outer(q):
    def inner():
        return tok.decode(model.generate(**tok(q, return_tensors="pt"), max_new_tokens=4)[0])
    return inner()

class Kept:
    def ask(self, q):
        return tok.decode(model.generate(**tok(q, return_tensors="pt"), max_new_tokens=4)[0])
"""


def test_found_sites_are_those_that_give_goldens_and_the_others_are_said(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.py").write_text(MANY)
    names = [site.function for site in running.found_sites(["python", "old.py"])]
    assert names == ["old.py:asked", "old.py:outer", "old.py:Kept.ask"]
    said = capsys.readouterr().out
    assert "later is async" in said and "stream is a generator" in said


TWO = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer

class One:
    def __init__(self, path):
        self.tok = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path)

    def ask(self, q):
        inputs = self.tok(q, return_tensors="pt")
        out = self.model.generate(**inputs, max_new_tokens=5, do_sample=False)
        return self.tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

class Other(One):
    def tell(self, q):
        inputs = self.tok(q, return_tensors="pt")
        out = self.model.generate(**inputs, max_new_tokens=6, do_sample=False)
        return self.tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

def answer(model, tok, q):
    inputs = tok(q, return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=7, do_sample=False)
    return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

if __name__ == "__main__":
    One("a").ask("x")
    other = Other("b")
    other.tell("x")
    answer(other.model, other.tok, "x")
"""


@pytest.mark.parametrize("owner", ["One", "Other"])
def test_sites_of_one_file_are_one_draft_and_each_has_its_own_factories(
    owner: str, project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("old.py").write_text(TWO)
    objects = {"model": {"$object": "x.Qwen3ForCausalLM"}, "tok": {"$object": "x.Qwen2Tokenizer"}}
    arguments: dict[str, dict[str, Any]] = {
        "One.ask": {"self": {"$object": f"__main__.{owner}"}},
        "Other.tell": {"self": {"$object": "__main__.Other"}},
        "answer": objects,
    }
    one = {**row(), "output_ids": [4, 5], "model": {"class": "Qwen3ForCausalLM", "path": ""}}
    store = Store("golden")
    for function, given in arguments.items():
        site = function.partition(".")[0].lower()
        name = f"old.py:{function}"
        store.write(Case(site, "a", name, {**given, "q": "x"}, (one,)))
        store.set_site(site, functions=[name])
    for site in ("one", "other", "answer"):
        assert main(["draft", site, "--yes", "--out", "new.py"]) == 0, capfdbinary.readouterr().err
    settings = store.settings()
    made = {site: settings[site]["arguments"] for site in ("one", "other", "answer")}
    assert made == {
        "one": {"self": f"new.py:make_{owner if owner == 'One' else 'self'}"},
        "other": {"self": "new.py:make_Other" if owner == "One" else "new.py:make_self"},
        "answer": {"engine": "new.py:make_engine"},
    }
    code = Path("new.py").read_text()
    assert 'return Other("b")' in code and ('return One("a")' in code) == (owner == "One")
