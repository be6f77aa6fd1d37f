"""What `check --since REV` says of the goldens themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.store import Case, Store
from parity.report.review import changes_since

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
    store.write(Case("site", "new", "m:f", value=1))


def write_another_value(store: Store) -> None:
    store.write(Case("site", "one", "m:f", value=["no"], rows=({**ROW, "text": "no"},)))


def mark_as_changing(store: Store) -> None:
    store.write(Case("site", "one", "m:f", value=["yes"], rows=(ROW,), changing=(PART,)))


def take_the_digest_out(store: Store) -> None:
    path = store.path("site", "one")
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "digest": ""}))


def accept(store: Store) -> None:
    entry = {"site": "site", "case": "one", "backend": "hf", "cause": "rng", "reason": "wanted"}
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
            'sites.json: site.backends was \'["hf", "vllm"]\', is \'["hf"]\'',
        ),
        (accept, "accepted.json: new: site/one on hf: rng: wanted"),
    ],
)
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_change_of_the_goldens_is_a_line(
    change: Callable[[Store], None], line: str, is_committed: bool, store: Store
) -> None:
    assert changes_since("HEAD", store.root) == []
    change(store)
    if is_committed:
        git(store.root, "add", "-A")
        git(store.root, "commit", "-qm", "change")
    assert changes_since("HEAD~1" if is_committed else "HEAD", store.root) == [line]


def test_a_revision_that_is_none_is_told_before_the_check(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    goldens = ("--goldens", str(store.root))
    assert main(["check", *goldens, "--since", "no-such-branch"]) == 2
    assert "--since 'no-such-branch' is no revision" in capsys.readouterr().err
