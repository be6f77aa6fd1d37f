"""Copies of gen_engine.py: current, behind, edited, ahead, unknown; making one; and what a release writes down."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parity import vendor

from .conftest import ROOT

OLD = '"""One file."""\n\n__version__ = "0.1.0"\n\n\ndef answer():\n    return 41\n'
NEW = '"""One file."""\n\n__version__ = "0.2.0"\n\n\ndef answer():\n    return 42\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project at 0.2.0 whose 0.1.0 was released; no git."""
    folder = tmp_path / "project"
    (folder / "parity").mkdir(parents=True)
    (folder / "gen_engine.py").write_text(NEW)
    (folder / "parity/versions.json").write_text(json.dumps({"0.1.0": vendor.digest_of(OLD)}))
    monkeypatch.setattr(vendor, "SOURCE", folder / "gen_engine.py")
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
    assert vendor.status(project).state == "current"  # a folder: its gen_engine.py


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


def test_another_layout_of_the_same_code_says_so(project: Path, tmp_path: Path) -> None:
    found = vendor.status(copy(tmp_path, NEW.replace("return 42", "return (42)")))
    assert found.state == "edited" and "only layout" in found.note


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
    assert vendor.copy_to(tmp_path) == tmp_path / "gen_engine.py"
    assert vendor.copy_to(tmp_path / "engine.py").read_text() == NEW
    assert sorted(p.name for p in tmp_path.iterdir()) == ["engine.py", "gen_engine.py", "project"]


def test_a_copy_that_is_behind_is_brought_up_to_date(project: Path, tmp_path: Path) -> None:
    assert vendor.copy_to(copy(tmp_path, OLD)).read_text() == NEW


def test_an_edited_copy_is_not_overwritten_unasked(project: Path, tmp_path: Path) -> None:
    path = copy(tmp_path, NEW + "# ours\n")
    with pytest.raises(vendor.VendorError, match="left as it is"):
        vendor.copy_to(path)
    assert path.read_text() == NEW + "# ours\n"
    assert vendor.copy_to(path, force=True).read_text() == NEW


@pytest.mark.parametrize(
    ("place", "complaint"),
    [("nowhere/engine.py", "does not exist"), ("engine", "no .py file"), ("project/gen_engine.py", "itself")],
)
def test_places_that_are_refused(project: Path, tmp_path: Path, place: str, complaint: str) -> None:
    with pytest.raises(vendor.VendorError, match=complaint):
        vendor.copy_to(tmp_path / place)


def test_a_release_is_written_down_once(project: Path) -> None:
    assert vendor.record_release() == "0.2.0"
    assert vendor.record_release() == "0.2.0"
    assert list(vendor.released()) == ["0.1.0", "0.2.0"]
    (project / "gen_engine.py").write_text(NEW + "# more\n")
    with pytest.raises(vendor.VendorError, match="raise __version__ first"):
        vendor.record_release()


def test_the_command(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy(tmp_path, OLD)
    assert vendor.main([str(path)]) == 1
    assert vendor.main(["--copy", str(path)]) == 0
    assert vendor.main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"gen_engine.py 0.2.0 → {path}", f"{path}: current (0.2.0)"]
    assert vendor.main([]) == 2
    assert vendor.main([str(tmp_path / "nothing.py")]) == 2
    assert "name the copied file" in capsys.readouterr().err


# -- this project --


def test_a_released_version_was_not_changed() -> None:
    text = (ROOT / "gen_engine.py").read_text(encoding="utf-8")
    known = vendor.released()
    assert known.get(vendor.version_of(text) or "", vendor.digest_of(text)) == vendor.digest_of(text)
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in known.values())


def test_make_vendor_needs_nothing_installed(tmp_path: Path) -> None:
    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "-s", "-C", str(ROOT), "vendor", f"PYTHON={sys.executable}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = make(f"DEST={tmp_path / 'engine.py'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "engine.py").read_bytes() == (ROOT / "gen_engine.py").read_bytes()
    assert "DEST" in make().stderr
