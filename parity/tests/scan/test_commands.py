"""The command: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.scan.facts import NAMES
from parity.tests.scan.test_groups import ASK, copies


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for path, text in copies("do_sample=False", "do_sample=False", "do_sample=True").items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    return tmp_path


def add_copy(settings: str, name: str = "new") -> None:
    Path(f"app/{name}.py").write_text(ASK.format(name="ask", settings=settings))


def test_run_scan_shows_blocks_drift_and_what_to_do_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "app"]) == 0
    text = capsys.readouterr().out
    assert "3 blocks in 3 files: transformers 3" in text
    assert "do_sample differs among 3 siblings of ask: False in 2, True in 1" in text
    assert "True*" in text
    assert "python -m parity record --site a0-ask=" in text


def test_run_scan_json_has_the_promised_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "app", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    block = found["blocks"][0]
    assert {"file", "line", "function", "library", "kind", "facts", "group"} <= set(block)
    assert tuple(block["facts"]) == NAMES
    assert all({"value", "from"} <= set(fact) for fact in block["facts"].values())
    assert [group["name"] for group in found["groups"]] == [block["group"]] == ["ask"]
    assert found["findings"][0]["places"]


def test_run_scan_nothing_found_exits_with_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("x = 1\n")
    Path("b.py").write_text("def f(:\n")
    assert main(["scan"]) == 5
    text = capsys.readouterr().out
    assert "no block found" in text and "not read: b.py: line 1" in text


def test_run_scan_path_that_is_not_there_is_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_run_scan_a_baseline_that_nothing_reads_is_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "app", "--baseline", "other.json"]) == 2
    assert "read by --fail-on and written by --write-baseline" in capsys.readouterr().err


def test_run_scan_matrix_of_many_siblings_shows_each_value_whole(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [f"the_end_of_kind_{kind}" for kind in "abcd"]
    for number, end in enumerate(ends):
        add_copy(f"stop_strings=[{end!r}]", f"b{number}")
    assert main(["scan", "app"]) == 0
    table = capsys.readouterr().out.partition("Siblings ask")[2].partition("\nBlocks\n")[0]
    assert all(f"['{end}'] ×1" in " ".join(table.split()) for end in ends), table


def test_run_scan_a_folder_for_json_is_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["scan", "--json", "app"])
    assert "'app' is a folder" in capsys.readouterr().err


def test_run_scan_fail_on_new_without_a_baseline_is_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "app", "--fail-on", "new"]) == 2
    assert "--write-baseline" in capsys.readouterr().err


def test_run_scan_fail_on_new_fails_for_a_new_block_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "app", "--write-baseline"]) == 0
    capsys.readouterr()
    assert main(["scan", "app", "--fail-on", "new"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("no new block\n") and "before you move it" not in said
    moved = Path("app/a0.py")
    moved.write_text("\n\n" + moved.read_text())
    assert main(["scan", "app", "--fail-on", "new"]) == 0
    add_copy("do_sample=False")
    capsys.readouterr()
    assert main(["scan", "app", "--fail-on", "new"]) == 1
    assert "new block: app/new.py:10 ask" in capsys.readouterr().out


def test_run_scan_fail_on_drift_fails_for_drift_that_the_baseline_has_not(folder: Path) -> None:
    assert main(["scan", "app", "--fail-on", "drift"]) == 1
    assert main(["scan", "app", "--write-baseline"]) == 0
    assert main(["scan", "app", "--fail-on", "drift"]) == 0
    Path("app/a2.py").write_text(ASK.format(name="ask", settings="do_sample=True, temperature=0.5"))
    assert main(["scan", "app", "--fail-on", "drift"]) == 1


def test_run_scan_a_baseline_that_is_none_is_usage(folder: Path) -> None:
    Path("other.json").write_text("[]")
    assert main(["scan", "app", "--fail-on", "new", "--baseline", "other.json"]) == 2


@pytest.mark.parametrize("name", ["scan.json", "sites.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_run_scan_leaves_the_folder_of_goldens_by_no_file(
    name: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline that was a link was followed, and one that was a pipe was waited for."""
    assert main(["scan", "app", "--write-baseline"]) == 0
    outside = Path("golden/scan.json").rename("outside.json")
    place = Path("golden", name)
    place.symlink_to("../outside.json") if kind == "link" else os.mkfifo(place)
    for words in (["--fail-on", "new"], ["--write-baseline"], ["--write"]):
        assert main(["scan", "app", *words]) == 3
        assert str(place) in capsys.readouterr().err
    assert outside.read_text()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"site": 1}', '{"site": {"functions": 5}}'])
def test_run_scan_write_refuses_a_sites_json_that_cannot_be_read(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("golden").mkdir()
    Path("golden/sites.json").write_text(text)
    assert main(["scan", "app", "--write"]) == 2
    assert "sites.json" in capsys.readouterr().err
    assert Path("golden/sites.json").read_text() == text


def test_run_scan_a_baseline_nested_too_deep_is_usage(folder: Path) -> None:
    Path("other.json").write_text("[" * 100_000)
    assert main(["scan", "app", "--fail-on", "new", "--baseline", "other.json"]) == 2


def test_run_scan_write_adds_sites_and_keeps_those_that_are_there(folder: Path) -> None:
    Path("golden").mkdir()
    own = {"mine": {"functions": ["app.a0:ask"], "backends": ["hf"]}}
    Path("golden/sites.json").write_text(json.dumps(own))
    assert main(["scan", "app", "--write"]) == 0
    sites = json.loads(Path("golden/sites.json").read_text())
    assert sites["mine"] == own["mine"]
    assert sites["a1-ask"] == {"functions": ["a1:ask"]}


def test_run_scan_obeys_nothing_that_stands_in_names_and_literals(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file's name was printed raw, and a record line ran what a name held once it was pasted."""
    add_copy("do_sample='##[error]x <script>'")
    Path("app/\x1b[31m\u202e::error::<script>.py").write_text("def (")
    Path("app/a;touch pwned;.py").write_text(Path("app/new.py").read_text())
    assert main(["scan", "app", "--all", "--html", "scan.html"]) == 0
    text = capsys.readouterr().out
    assert "not read" in text
    assert not set("\x1b\u202e") & {*text, *Path("scan.html").read_text()}
    assert "error]x" in text and "##[" not in text and "<script>" not in Path("scan.html").read_text()
    [line] = [line for line in text.splitlines() if "record" in line and "touch" in line]
    assert "a;touch pwned;:ask" in shlex.split(line)[5].partition("=")[2]


def test_run_scan_html_is_one_page_without_scripts(folder: Path) -> None:
    Path("app/a1.py").write_text(ASK.format(name="ask", settings="stop_strings=['<script>alert(1)</script>']"))
    assert main(["scan", "app", "--html", "out.html"]) == 0
    page = Path("out.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "class='odd'" in page
    assert str(folder / "app") in page, "what was scanned"


def test_run_scan_shows_each_fact_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"args.the_number_of_tokens_of_kind_{kind}" for kind in "abcdef"]
    for number, name in enumerate(names):
        settings = f"do_sample=True, temperature=args.the_temperature, max_new_tokens={name}"
        text = ASK.format(name="ask", settings=settings)
        Path(f"app/b{number}.py").write_text(f"import args\n{text}")
    assert main(["scan", "app"]) == 0
    words = capsys.readouterr().out.split()
    assert set(names) <= set(words)
