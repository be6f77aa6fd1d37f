"""A folder of goldens that a stranger sent: no command reads, lists, writes or deletes outside of it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.folder import GoldenError, GoldenFolder
from parity.goldens.store import Case, Store

CASE = Case("site", "case", "os:getcwd", value="x")
COMMANDS = (
    ["list", "--cases"],
    ["prune"],
    ["prune", "--yes"],
    ["prune", "site/case", "--yes"],
    ["prune", "site", "--yes"],
    ["rename", "site", "other"],
    ["check"],
    ["check", "site/case"],
    ["check", "--name", "site", "--", "python", "-c", "pass"],
    ["explain", "site/case"],
    ["accept", "site/case", "--reason", "wanted"],
    ["accept", "site/case", "--withdraw"],
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/a.json").write_text('{"mine": 1}')
    store = Store("golden")
    store.write(CASE)
    store.set_site("site", functions=["os:getcwd"])
    return store


def link_at(name: str, target: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.rename(root.parent / "was-there")
        path.symlink_to(target)

    return make


def make_socket(root: Path) -> None:
    """Bound by a short path: the one of a test's folder is too long."""
    here = os.getcwd()
    os.chdir(root)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket.json")
    os.chdir(here)


def make_root_a_link(root: Path) -> None:
    root.rename(root.parent / "elsewhere")
    root.symlink_to("elsewhere")


HOSTILE: dict[str, Callable[[Path], None]] = {
    "golden": make_root_a_link,
    "golden/blobs": link_at("blobs", "../precious"),
    "golden/environments": link_at("environments", "../precious"),
    "golden/site": link_at("site", "../precious"),
    "golden/site/case.json": link_at("site/case.json", "/dev/zero"),
    "golden/sites.json": link_at("sites.json", "/dev/stdin"),
    "golden/accepted.json": link_at("accepted.json", "../precious/a.json"),
    "golden/blobs/unused.png": link_at("blobs/unused.png", "/etc/passwd"),
    "golden/models/m/config.json": link_at("models/m/config.json", "/etc/passwd"),
    "golden/site/deep/er/link": link_at("site/deep/er/link", "nowhere"),
    "golden/pipe.json": lambda root: os.mkfifo(root / "pipe.json"),
    "golden/site/socket.json": lambda root: make_socket(root / "site"),
}


def make_hostile(name: str, root: Path) -> None:
    HOSTILE[name](root)


def files_below(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_command_follows_a_link_out_of_the_goldens(
    name: str, command: list[str], store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """`prune --yes` deleted what golden/blobs -> ../precious held."""
    make_hostile(name, store.root)
    before = files_below(Path("precious"))
    code = main(command)
    said = capfd.readouterr()
    assert code in (2, 3)
    assert f"{name} is a " in said.out + said.err
    assert files_below(Path("precious")) == before


@pytest.mark.parametrize("name", ["golden/blobs", "golden/environments", "golden/site", "golden/sites.json"])
def test_no_golden_is_written_through_a_link(name: str, store: Store) -> None:
    make_hostile(name, store.root)
    before = files_below(Path("precious"))
    written = Store(store.root)
    for write in (
        lambda: written.put_blob(b"x", ".png"),
        lambda: written.put_environment({"python": "3"}),
        lambda: written.write(CASE),
        lambda: written.set_site("site", functions=[]),
    ):
        with pytest.raises(GoldenError, match=f"{name} is a link to"):
            write()
            written.folder.place(*name.split("/")[1:])
    assert files_below(Path("precious")) == before


def test_a_link_that_comes_later_is_refused_where_it_stands(store: Store) -> None:
    """Moved code, or another process, may write while a check runs."""
    assert store.read("site", "case") == CASE
    make_hostile("golden/site", store.root)
    for use in (lambda: store.read("site", "a"), lambda: store.names("site"), lambda: store.folder.remove("site", "a")):
        with pytest.raises(GoldenError, match="golden/site is a link"):
            use()


@pytest.mark.parametrize("name", ["..", "", ".", "a/b", "/etc", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, store: Store) -> None:
    with pytest.raises(GoldenError, match="is no name of a file in golden"):
        GoldenFolder("golden").files(name)


EVIL = "\x1b[2J\x1b]0;pwned\x07\n::error file=a::pwned\n##[command]x\n##vso[task.setvariable]\u202e\r"


def test_no_text_of_a_file_is_obeyed_where_it_is_printed(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    """`list` printed the reason of an acceptance as it stood."""
    entry = {"cause": EVIL, "changes": [EVIL], "gives": EVIL, "reason": EVIL, "until": "2999-01-01"}
    entries = [{**entry, "site": site, "case": EVIL, "backend": EVIL} for site in ("site", EVIL)]
    (store.root / "accepted.json").write_text(json.dumps(entries))
    store.write(Case("site", "evil", EVIL, value=EVIL))
    (store.root / "site/a\n::warning::b\x1b[2J.json").write_text("{")
    for command in (["list", "--cases"], ["prune"], ["accept", "site", "--withdraw", "--dry-run"], ["check"]):
        main(command)
        said = capfd.readouterr()
        lines = (said.out + said.err).split("\n")
        assert not any(line.lstrip().startswith("::") or "##[" in line or "##vso" in line for line in lines)
        assert not any(sign in said.out + said.err for sign in "\x1b\x07\r\u202e")
