"""Copies of gen_engine.py and companions: current, behind, edited, ahead, unknown; making them; releases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parity.environment import vendor
from parity.tests.conftest import ROOT

OLD = '"""One file."""\n\n__version__ = "0.1.0"\n\n\ndef answer():\n    return 41\n'
TOOL = '"""A companion."""\n\n__version__ = "0.2.0"\n\n\ndef call():\n    return 1\n'
NEW = '"""One file."""\n\n__version__ = "0.2.0"\n\n\ndef answer():\n    return 42\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project at 0.2.0 whose 0.1.0 was released; no git."""
    folder = tmp_path / "project"
    (folder / "parity/companions").mkdir(parents=True)
    (folder / "parity/companions/__init__.py").touch()
    for name in ("tool_calls", "answer_cache"):
        (folder / f"parity/companions/{name}.py").write_text(TOOL.replace("call", name))
    (folder / "gen_engine.py").write_text(NEW)
    (folder / "parity/versions.json").write_text(json.dumps({"0.1.0": {"gen_engine.py": vendor.digest_of(OLD)}}))
    monkeypatch.setattr(vendor, "SOURCE", folder / "gen_engine.py")
    monkeypatch.setattr(vendor, "COMPANIONS", folder / "parity/companions")
    monkeypatch.setattr(vendor, "VERSIONS", folder / "parity/versions.json")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


def commit(folder: Path, *texts: str) -> None:
    """A git history of gen_engine.py, oldest first."""
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run([*git, "init", "-q"], check=True)
    for text in texts:
        (folder / "gen_engine.py").write_text(text)
        subprocess.run([*git, "add", "gen_engine.py"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)


def copy(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "engine.py"
    path.write_bytes(text.encode())
    return path


def test_a_copy_is_current(project: Path, tmp_path: Path) -> None:
    assert vendor.status(copy(tmp_path, NEW)).state == "current"
    assert [found.state for found in vendor.statuses(project)] == ["current"]  # a folder: what it holds of ours


def test_line_ends_are_no_edit(project: Path, tmp_path: Path) -> None:
    assert vendor.status(copy(tmp_path, NEW.replace("\n", "\r\n"))).state == "current"


def test_a_released_version_is_behind(project: Path, tmp_path: Path) -> None:
    found = vendor.status(copy(tmp_path, OLD))
    assert (found.state, found.exit_code) == ("behind", 1)
    assert "behind: 0.1.0 → 0.2.0" in vendor.describe(found)


def test_a_state_between_releases_is_behind_not_edited(project: Path, tmp_path: Path) -> None:
    between = NEW.replace("42", "41.5")
    commit(project, OLD, between, NEW)
    found = vendor.status(copy(tmp_path, between))
    assert found.state == "behind" and "behind: an earlier 0.2.0 (commit " in vendor.describe(found)


def test_edited_lines_are_told_with_their_numbers(project: Path, tmp_path: Path) -> None:
    found = vendor.status(copy(tmp_path, NEW.replace("return 42", "return 43  # ours") + "\nX = 1\n"))
    assert (found.state, found.exit_code, found.behind) == ("edited", 1, False)
    assert vendor.describe(found).splitlines()[1:] == [
        "      7 -     return 42",
        "      7 +     return 43  # ours",
        "      8 + ",
        "      9 + X = 1",
    ]


def test_an_edited_old_copy_is_told_against_its_own_version_where_git_has_it(project: Path, tmp_path: Path) -> None:
    commit(project, OLD.replace("41", "40"), OLD, NEW)
    found = vendor.status(copy(tmp_path, OLD + "# ours\n"))
    assert found.state == "edited" and found.behind and found.against.startswith("commit ")
    assert found.diff == ((8, "+", "# ours"),)
    assert "and behind: 0.1.0 → 0.2.0" in vendor.describe(found)


def test_without_its_own_version_it_is_told_against_ours_with_a_note(project: Path, tmp_path: Path) -> None:
    found = vendor.status(copy(tmp_path, OLD + "# ours\n"))
    assert found.state == "edited" and len(found.diff) == 5
    assert "the text of 0.1.0 is not known here" in vendor.describe(found)


def test_a_copy_of_another_name_is_of_the_file_that_shares_most_of_it(project: Path, tmp_path: Path) -> None:
    """Not of a companion that is merely short."""
    long = NEW + "\n".join(f"x{k} = {k}" for k in range(300))
    (project / "gen_engine.py").write_text(long)
    rewritten = long.replace("x1", "y1")
    assert vendor.original_of(copy(tmp_path, rewritten), rewritten).name == "gen_engine.py"
    assert vendor.original_of(copy(tmp_path, OLD), OLD).name == "gen_engine.py"  # released


def test_another_layout_of_the_same_code_is_no_edit(project: Path, tmp_path: Path) -> None:
    path = copy(tmp_path, NEW.replace("return 42", "return (42)"))
    found = vendor.status(path)
    assert (found.state, found.exit_code) == ("current", 0) and "only its layout" in vendor.describe(found)
    assert vendor.copy_to(path)[0].read_text() == NEW


def test_another_layout_of_an_earlier_state_is_behind(project: Path, tmp_path: Path) -> None:
    commit(project, OLD, NEW)
    found = vendor.status(copy(tmp_path, OLD.replace("return 41", "return (41)")))
    assert found.state == "behind" and "only its layout" in vendor.describe(found)


def test_a_long_edit_is_capped(project: Path, tmp_path: Path) -> None:
    said = vendor.describe(vendor.status(copy(tmp_path, NEW + "x = 1\n" * 500)))
    assert len(said.splitlines()) == 42 and "… and 460 more" in said


@pytest.mark.parametrize(
    ("text", "state"), [(NEW.replace("0.2.0", "0.10.0"), "ahead"), ("print('something else')\n", "unknown")]
)
def test_what_cannot_be_judged(project: Path, tmp_path: Path, text: str, state: str) -> None:
    found = vendor.status(copy(tmp_path, text))
    assert (found.state, found.exit_code) == (state, 3) and found.note


def test_parity_alone_cannot_judge(project: Path, tmp_path: Path) -> None:
    (project / "gen_engine.py").unlink()
    found = vendor.status(copy(tmp_path, NEW))
    assert found.exit_code == 3 and "beside parity/" in vendor.describe(found)


def test_a_copy_is_made_in_a_folder_or_under_another_name(project: Path, tmp_path: Path) -> None:
    assert vendor.copy_to(tmp_path) == [tmp_path / "gen_engine.py"]
    [named] = vendor.copy_to(tmp_path / "engine.py")
    assert named.read_text() == NEW
    assert sorted(p.name for p in tmp_path.iterdir()) == ["engine.py", "gen_engine.py", "project"]


@pytest.mark.parametrize("place", ["acme/llm", "acme/llm/engine.py"])
def test_folders_are_made(project: Path, tmp_path: Path, place: str) -> None:
    [made] = vendor.copy_to(tmp_path / place)
    assert made == tmp_path / (place if place.endswith(".py") else "acme/llm/gen_engine.py") and made.exists()


def test_companions_go_beside_it_and_each_has_its_own_state(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "acme/llm"
    vendor.copy_to(folder, ["tool_calls", "answer_cache", "tool_calls"])
    assert sorted(p.name for p in folder.iterdir()) == ["answer_cache.py", "gen_engine.py", "tool_calls.py"]
    assert [found.state for found in vendor.statuses(folder)] == ["current"] * 3
    (folder / "gen_engine.py").write_text(OLD)
    (folder / "tool_calls.py").write_text((folder / "tool_calls.py").read_text() + "# ours\n")
    (folder / "other.py").write_text("not ours")
    told = {found.path.name: found.state for found in vendor.statuses(folder)}
    assert told == {"gen_engine.py": "behind", "tool_calls.py": "edited", "answer_cache.py": "current"}
    assert vendor.main([str(folder)]) == 1 and vendor.main([str(folder / "answer_cache.py")]) == 0
    with pytest.raises(vendor.VendorError, match="tool_calls.py was left as it is"):
        vendor.copy_to(folder, ["tool_calls"])
    assert (folder / "gen_engine.py").read_text() == OLD  # all or nothing
    vendor.copy_to(folder, ["tool_calls"], force=True)
    assert [found.state for found in vendor.statuses(folder)] == ["current"] * 3


def test_a_renamed_engine_is_found_in_its_folder(project: Path, tmp_path: Path) -> None:
    """It was passed over where a companion lay beside it."""
    folder = tmp_path / "bot"
    vendor.copy_to(folder, ["tool_calls"])
    (folder / "gen_engine.py").unlink()
    (folder / "engine.py").write_text(f"# Copyright (c) 2026 the gen_engine authors.\n{NEW}edited = 1\n")
    assert {found.path.name: found.state for found in vendor.statuses(folder)} == {
        "tool_calls.py": "current",
        "engine.py": "edited",
    }


def test_a_companion_under_another_name_is_known_by_its_lines(project: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "calls_of_tools.py"
    renamed.write_text((project / "parity/companions/tool_calls.py").read_text())
    assert vendor.status(renamed).state == "current"


def test_a_companion_has_a_history_of_its_own(project: Path, tmp_path: Path) -> None:
    source = project / "parity/companions/tool_calls.py"
    commit(project, NEW)
    git = ("git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    [target] = vendor.copy_to(tmp_path / "llm", ["tool_calls"])[1:]
    source.write_text(source.read_text() + "# more\n")
    assert vendor.status(target).state == "behind"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tool_call", "no companion 'tool_call'; did you mean 'tool_calls'? known: answer_cache, tool_calls"),
        ("../x", "no companion '../x'; known: answer_cache, tool_calls"),
    ],
)
def test_an_unknown_companion_is_refused_with_a_guess(project: Path, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(vendor.VendorError, match=re.escape(said)):
        vendor.copy_to(tmp_path / "llm", [name])
    assert not (tmp_path / "llm").exists()


def test_companions_need_a_folder(project: Path, tmp_path: Path) -> None:
    with pytest.raises(vendor.VendorError, match="name a folder"):
        vendor.copy_to(tmp_path / "engine.py", ["tool_calls"])


def test_a_folder_with_nothing_of_ours_says_what_was_looked_for(project: Path, tmp_path: Path) -> None:
    with pytest.raises(vendor.VendorError, match="none of gen_engine.py, answer_cache.py, tool_calls.py"):
        vendor.statuses(tmp_path)


def test_a_copy_that_is_behind_is_brought_up_to_date(project: Path, tmp_path: Path) -> None:
    assert vendor.copy_to(copy(tmp_path, OLD))[0].read_text() == NEW


def test_an_edited_copy_is_not_overwritten_unasked(project: Path, tmp_path: Path) -> None:
    path = copy(tmp_path, NEW + "# ours\n")
    with pytest.raises(vendor.VendorError, match="left as it is"):
        vendor.copy_to(path)
    assert path.read_text() == NEW + "# ours\n"
    assert vendor.copy_to(path, force=True)[0].read_text() == NEW


@pytest.mark.parametrize(
    ("place", "complaint"),
    [("a_file/engine.py", "cannot be made"), ("engine.txt", "no .py file"), ("project/gen_engine.py", "itself")],
)
def test_places_that_are_refused(project: Path, tmp_path: Path, place: str, complaint: str) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(vendor.VendorError, match=complaint):
        vendor.copy_to(tmp_path / place)


def test_a_release_is_written_down_once(project: Path) -> None:
    assert vendor.record_release() == "0.2.0"
    assert vendor.record_release() == "0.2.0"
    assert list(vendor.released()) == ["0.1.0", "0.2.0"]
    assert sorted(vendor.released()["0.2.0"]) == ["answer_cache.py", "gen_engine.py", "tool_calls.py"]
    tool = project / "parity/companions/tool_calls.py"
    tool.write_text(tool.read_text() + "# more\n")
    with pytest.raises(vendor.VendorError, match="raise __version__ first"):
        vendor.record_release()
    (project / "gen_engine.py").write_text(NEW.replace("0.2.0", "0.3.0"))
    with pytest.raises(vendor.VendorError, match=r"answer_cache.py is of version 0.2.0, gen_engine.py of 0.3.0"):
        vendor.record_release()


def test_the_command(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy(tmp_path, OLD)
    assert vendor.main([str(path)]) == 1
    assert vendor.main(["--copy", str(path)]) == 0
    assert vendor.main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"gen_engine.py 0.2.0 → {path}",
        'keep formatters off, in pyproject.toml: [tool.ruff] extend-exclude = ["engine.py"]',
        f"{path}: current (0.2.0)",
    ]
    assert vendor.main([]) == 2
    assert vendor.main([str(tmp_path / "nothing.py")]) == 2
    assert "name the copied file" in capsys.readouterr().err


# -- this project --


def test_a_released_version_was_not_changed() -> None:
    for source in vendor.chosen([*vendor.companions()]):
        text = vendor.text_of(source)
        known = vendor.released().get(vendor.version_of(text) or "", {})
        assert known.get(source.name, vendor.digest_of(text)) == vendor.digest_of(text)
    digests = [digest for files in vendor.released().values() for digest in files.values()]
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)


def test_make_vendor_needs_nothing_installed(tmp_path: Path) -> None:
    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "-s", "-C", str(ROOT), "vendor", f"PYTHON={sys.executable}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = make(f"DEST={tmp_path / 'engine.py'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "engine.py").read_bytes() == (ROOT / "gen_engine.py").read_bytes()
    assert make(f"DEST={tmp_path / 'acme/llm'}", "WITH=tool_calls answer_cache").returncode == 0
    assert len(vendor.statuses(tmp_path / "acme/llm")) == 3
    assert "did you mean 'tool_calls'?" in make(f"DEST={tmp_path / 'acme/llm'}", "WITH=tool_call").stderr
    assert "DEST" in make().stderr


def test_a_companion_is_copied_with_what_it_cannot_do_without(tmp_path: Path) -> None:
    copies = vendor.copy_to(tmp_path / "llm", ["penalties", "speculation"])
    assert [path.stem for path in copies] == ["gen_engine", "penalties", "plugin_hooks", "speculation", "joining"]
    known = vendor.companions()
    for name, path in known.items():
        assert name in vendor.named_with(path) and set(vendor.named_with(path)) <= known.keys(), name
