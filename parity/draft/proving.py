"""Runs `parity check` on a draft, as a command, on goldens whose settings name it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.goldens.store import BLOBS, ENVIRONMENTS, Store

BACKENDS = ("hf", "vllm")
VERDICTS = {
    0: "the draft gives what the old code gave",
    1: "the draft differs from the old code",
    2: "the check could not be started",
    3: "the check could not judge",
    4: "goldens are missing or unused",
    5: "nothing was compared",
}


def new_module(old: str, out: Path) -> str:
    """What `--moved` calls a draft: a module where the old one is one and the draft lies beside it,
    else its file; from the working directory, so that it is right in a copy of the project."""
    if out.is_absolute() and out.is_relative_to(Path.cwd()):
        out = out.relative_to(Path.cwd())
    if old.endswith(".py"):
        return out.as_posix()
    package = old.rpartition(".")[0]
    folder = Path(*package.split(".")) if package else Path()
    if out.parent == folder:
        return f"{package}.{out.stem}" if package else out.stem
    return out.as_posix()


def site_settings(
    entry: Mapping[str, Any], old: str, new: str, factories: Mapping[str, str]
) -> dict[str, Any]:
    """A site's entry of sites.json with where its code is now, and what makes its arguments."""
    moved = {name: place for name, place in entry.get("moved", {}).items() if name != old}
    if new != old:
        moved[old] = new
    settings: dict[str, Any] = {**entry, "moved": moved}
    if factories:
        made = {name: f"{new}:{function}" for name, function in factories.items()}
        settings["arguments"] = {**entry.get("arguments", {}), **made}
    return settings


@contextlib.contextmanager
def goldens_of(store: Store, site: str, settings: Mapping[str, Any]) -> Iterator[Path]:
    """A folder with the goldens of one site, and with settings of its own."""
    with tempfile.TemporaryDirectory(prefix="parity-draft-") as folder:
        root = Path(folder) / "golden"
        for name in (site, BLOBS, ENVIRONMENTS):
            source = Path(store.root) / name
            if source.is_dir():
                shutil.copytree(source, root / name)
        Store(root).set_site(site, **settings)
        yield root


def check_draft(
    store: Store, site: str, settings: Mapping[str, Any], backends: Sequence[str]
) -> dict[str, int]:
    """Exit code of `check` on each backend; its report is printed."""
    codes = {}
    wanted = {**settings, "backends": list(backends)}
    with goldens_of(store, site, wanted) as root:
        for backend in backends:
            words = ["check", site, "--goldens", str(root), "--backend", backend]
            done = subprocess.run([sys.executable, "-m", "parity", *words], check=False)
            codes[backend] = done.returncode
    return codes


def gravest(codes: Collection[int]) -> int:
    """The exit code for several: 1, then 3, then the highest."""
    return next((code for code in (1, 3) if code in codes), max(codes, default=0))


def code_lines(codes: Mapping[str, int]) -> list[str]:
    return [
        f"{backend}: {VERDICTS.get(code, 'check ended')} (exit {code})"
        for backend, code in codes.items()
    ]


def is_committed(path: Path) -> bool:
    """Whether git holds a file as it is now."""
    words = ["git", "-C", str(path.parent or Path()), "status", "--porcelain", "--", path.name]
    known = ["git", "-C", str(path.parent or Path()), "ls-files", "--error-unmatch", path.name]
    if shutil.which("git") is None:
        return False
    for command in (known, words):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or (command is words and done.stdout.strip()):
            return False
    return True
