"""Call sites that are deleted or renamed: goldens, settings and acceptances follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.acceptance import Accepted
from parity.goldens.store import Case, Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two sites of two cases each; one case of each is accepted."""
    monkeypatch.chdir(tmp_path)
    store = Store("golden")
    for site in ("answers", "labels"):
        for case in ("a", "b"):
            store.write(Case(site, case, f"acme.{site}:ask", {"word": case}, value=case))
        store.set_site(site, functions=[f"acme.{site}:ask"], backends=["hf"])
        store.accept(Accepted(site, "a", "hf", "value", (), "0", "wanted", "2999-01-01"))
    return store


def accepted_labels(store: Store) -> list[str]:
    return [f"{entry.site}/{entry.case}" for entry in store.accepted()]


@pytest.mark.parametrize("text", ["{", "[]", '{"answers": {"backend": ["hf"]}}'])
def test_list_names_a_sites_json_that_check_refuses(
    text: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """`list`, and `doctor` with it, said that all was well."""
    Path("golden/sites.json").write_text(text)
    assert main(["list"]) == 3
    said = capsys.readouterr()
    assert "answers: 2 cases" in said.out and "sites.json" in said.err


def test_prune_of_a_site_takes_its_settings_and_acceptances_too(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in Path("golden").rglob("*.json")}
    assert main(["prune", "answers"]) == 0
    said = capsys.readouterr().out
    assert "sites.json: answers" in said and "acceptance answers/a" in said and "--yes" in said
    assert {path: path.read_bytes() for path in Path("golden").rglob("*.json")} == before
    assert main(["prune", "answers", "--yes"]) == 0
    assert store.sites() == ["labels"] and [*store.settings()] == ["labels"]
    assert accepted_labels(store) == ["labels/a"]


def test_prune_of_a_case_takes_its_acceptance_and_no_setting(store: Store) -> None:
    assert main(["prune", "answers/a", "--yes"]) == 0
    assert store.names("answers") == ["b"] and "answers" in store.settings()
    assert accepted_labels(store) == ["labels/a"]


def test_prune_of_a_site_whose_goldens_are_gone_takes_its_settings(store: Store) -> None:
    for case in ("a", "b"):
        store.path("answers", case).unlink()
    assert main(["prune", "answers", "--yes"]) == 0
    assert [*store.settings()] == ["labels"] and accepted_labels(store) == ["labels/a"]


def test_rename_of_a_site_takes_all_that_belongs_to_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    settings = store.settings()["answers"]
    path = store.path("answers", "b")
    said = json.loads(path.read_text())
    del said["digest"]
    path.write_text(json.dumps(said))  # as an older release wrote it
    assert main(["rename", "answers", "replies"]) == 0
    assert store.sites() == ["labels", "replies"] and store.names("replies") == ["a", "b"]
    assert store.read("replies", "a").value == "a" and store.read("replies", "a").digest
    assert not store.read("replies", "b").digest, "nobody can say that it was not edited"
    assert store.settings()["replies"] == settings and "answers" not in store.settings()
    assert accepted_labels(store) == ["labels/a", "replies/a"]
    assert "2 goldens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("answer", "replies", "did you mean 'answers'?"),
        ("answers", "labels", "is a site already"),
        ("answers", "models", "cannot be the name of a site"),
        ("answers", "a/b", "cannot be the name of a site"),
        ("answers", "acme.replies:ask", "name of a site and a function"),
        ("acme.answer:ask", "acme.replies:ask", "did you mean 'acme.answers:ask'?"),
    ],
)
def test_rename_refuses_what_it_cannot_do(
    old: str, new: str, why: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rename", old, new]) == 2
    assert why in capsys.readouterr().err
    assert store.sites() == ["answers", "labels"] and len(store.settings()) == 2


def test_rename_of_a_site_with_an_edited_golden_changes_nothing(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.path("answers", "b")
    path.write_text(path.read_text().replace('"value": "b"', '"value": "c"'))
    assert main(["rename", "answers", "replies"]) == 3
    assert "was edited" in capsys.readouterr().err and store.sites() == ["answers", "labels"]


def test_rename_of_a_function_writes_where_it_is_now(store: Store) -> None:
    assert main(["rename", "acme.answers:ask", "acme.replies:reply"]) == 0
    moved = {"acme.answers:ask": "acme.replies:reply"}
    assert store.settings()["answers"]["moved"] == moved and "moved" not in store.settings()["labels"]
    assert main(["rename", "acme.answers:ask", "acme.replies:again"]) == 0
    assert store.settings()["answers"]["moved"] == {"acme.answers:ask": "acme.replies:again"}
