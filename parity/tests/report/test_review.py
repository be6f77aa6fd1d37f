"""What `check --since REV` says of the goldens themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Check
from parity.report.console import console
from parity.report.markdown import markdown_summary, markdown_text
from parity.report.page import html_page
from parity.report.review import changes_since
from parity.report.words import change_lines

ROW = {"prompt_ids": [1], "output_ids": [2], "text": "yes"}
PART = {"at": [0, "text"], "before": "", "after": ""}


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A repository with two goldens, committed."""
    store = Store(tmp_path / "golden")
    for name in ("one", "two"):
        store.write(Case("site", name, "m:f", value=["yes"], rows=(ROW,)))
    store.set_site("site", functions=["m:f"], backends=["hf", "vllm"])
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "goldens")
    return store


def write_new(store: Store) -> None:
    store.write(Case("site", "new", "m:f", value=1, rows=(ROW,)))


def write_another_value(store: Store) -> None:
    store.write(Case("site", "one", "m:f", value=["no"], rows=({**ROW, "text": "no"},)))


def mark_as_changing(store: Store) -> None:
    store.write(Case("site", "one", "m:f", value=["yes"], rows=(ROW,), changing=(PART,)))


def take_the_digest_out(store: Store) -> None:
    path = store.path("site", "one")
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "digest": ""}))


def accept(store: Store) -> None:
    entry = {"site": "site", "case": "one", "backend": "hf", "cause": "sampling.seed", "reason": "wanted"}
    (store.root / "accepted.json").write_text(json.dumps([entry]))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (write_new, "new golden site/new"),
        (write_another_value, "changed golden site/one: value, rows.text"),
        (
            mark_as_changing,
            "changed golden site/one: changing; NOT COMPARED in it: value[0].text",
        ),
        (
            take_the_digest_out,
            "changed golden site/one: its digest is gone, so that edits are not seen",
        ),
        (lambda s: s.path("site", "two").unlink(), "removed golden site/two: no longer compared"),
        (
            lambda s: s.set_site("site", backends=["hf"]),
            'sites.json: site.backends has no "vllm" any more',
        ),
        (accept, "accepted.json: new: site/one on hf: 'sampling.seed': 'wanted', until None"),
    ],
)
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_change_of_the_goldens_is_a_line(
    change: Callable[[Store], None], line: str, is_committed: bool, store: Store
) -> None:
    assert changes_since("HEAD", store.root) == ()
    change(store)
    if is_committed:
        git(store.root, "add", "-A")
        git(store.root, "commit", "-qm", "change")
    [found] = changes_since("HEAD~1" if is_committed else "HEAD", store.root)
    assert (found.line, found.can_hide) == (line, not line.startswith("new golden"))


def test_a_revision_that_is_none_is_told_before_the_check(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    goldens = ("--goldens", str(store.root))
    assert main(["check", *goldens, "--since", "no-such-branch"]) == 2
    assert "--since 'no-such-branch' is no revision" in capsys.readouterr().err


def test_changes_since_the_lines_that_can_hide_a_drift_stand_first_and_whole(store: Store) -> None:
    """21 new goldens hid a changed value, sites.json and accepted.json behind "and 5 more"."""
    for number in range(40):
        store.write(Case("aa", f"new-{number:02}", "m:f", value=1, rows=(ROW,)))
    mark_as_changing(store)
    accept(store)
    store.set_site("site", functions=["m:f", "m:g"], backends=["hf"])
    store.path("site", "two").unlink()
    store.write(Case("zz", "empty", "m:f", value=1))
    changes = changes_since("HEAD", store.root)
    shown = change_lines(changes)
    expected = {
        "accepted.json: new: site/one on hf: 'sampling.seed': 'wanted', until None",
        'sites.json: site.backends has no "vllm" any more',
        'sites.json: site.functions has "m:g" now',
        "changed golden site/one: changing; NOT COMPARED in it: value[0].text",
        "removed golden site/two: no longer compared",
        "new golden zz/empty; NOT COMPARED in it: any call of the model",
    }
    assert set(shown[: len(expected)]) == expected
    assert shown[-1] == "and 20 more" and len(shown) == len(expected) + 21
    check = Check((), changes=changes)
    page = json.loads(html_page(check).partition('id="data">')[2].partition("</script>")[0])
    assert expected < set(page["changes"])
    text = console(check).replace("\n    ", " ")
    assert all(line in text for line in expected)
    assert all(markdown_text(line, 1000) in markdown_summary(check) for line in expected)


def test_changes_since_new_goldens_that_compare_little_stand_behind_what_is_no_longer_compared(store: Store) -> None:
    """New goldens of code that calls no model stood before a value that had changed."""
    for number in range(30):
        store.write(Case("aa", f"plain-{number}", "m:f", value=1))
    write_another_value(store)
    store.set_site("site", backends=["hf"])
    lines = change_lines(changes_since("HEAD", store.root))
    assert lines[:2] == [
        "changed golden site/one: value, rows.text",
        'sites.json: site.backends has no "vllm" any more',
    ]
    assert len(lines) == 32 and all("NOT COMPARED" in line for line in lines[2:])


def test_changes_since_shows_what_changed_in_the_middle_of_a_long_setting(store: Store) -> None:
    moved = {f"pkg.module_{number:03}": f"new.module_{number:03}" for number in range(50)}
    store.set_site("site", moved=moved)
    git(store.root, "add", "-A")
    git(store.root, "commit", "-qm", "moved")
    store.set_site("site", moved={**moved, "pkg.module_025": "os"})
    [found] = changes_since("HEAD", store.root)
    assert found.line == "sites.json: site.moved.pkg.module_025 was 'new.module_025', is 'os'"


@pytest.mark.parametrize("name", ["golden/sites.json", "golden/site/one.json", "golden/accepted.json", "golden/site"])
@pytest.mark.parametrize("target", ["../elsewhere.json", "/dev/zero", "/dev/stdin", "/nowhere"])
def test_changes_since_refuses_a_link_by_its_name(name: str, target: str, store: Store) -> None:
    """Of a link no later change of its target was told; to /dev/zero it took the memory."""
    path = store.root.parent / name
    if path.exists():
        path.rename(store.root.parent / "elsewhere.json")
    path.symlink_to(target)
    with pytest.raises(GoldenError, match=f"{path} is a link to '{target}'"):
        changes_since("HEAD", store.root)


def test_changes_since_names_a_repository_among_the_goldens(store: Store, tmp_path: Path) -> None:
    """A submodule, of which .gitmodules says that git shall say nothing."""
    git(store.root, "init", "-q", "inner")
    (store.root / "inner/a.json").write_text("{}")
    git(store.root / "inner", "add", "-A")
    git(store.root / "inner", "commit", "-qm", "inner")
    [untracked] = changes_since("HEAD", store.root)
    (tmp_path / ".gitmodules").write_text(
        '[submodule "inner"]\n\tpath = golden/inner\n\turl = ./golden/inner\n\tignore = all\n'
    )
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "submodule")
    [tracked] = changes_since("HEAD~1", store.root)
    for found in (untracked, tracked):
        assert found.can_hide and "inner" in found.line and "is another git repository" in found.line


@pytest.mark.parametrize(
    "content",
    [
        '{"rows": 5, "changing": 5}',
        '{"rows": [5], "changing": [5, {"at": 5}, {"at": [{}]}]}',
        "[" * 100_000,
        '{"rows": null, "value": 1e999}',
        "\\udcff",
    ],
)
def test_changes_since_a_golden_of_no_shape_is_a_line(content: str, store: Store) -> None:
    """A number of rows that is none ended the command with a traceback and exit code 1."""
    (store.root / "site/one.json").write_text(content)
    (store.root / " odd").mkdir()
    (store.root / " odd/new.json").write_text(content)
    lines = [change.line for change in changes_since("HEAD", store.root)]
    assert [line.partition(":")[0].partition(";")[0] for line in lines] == [
        "changed golden site/one", "new golden  odd/new",
    ]  # fmt: skip
