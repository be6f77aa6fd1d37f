"""Copies of gen_engine.py in other repositories: make one, and say whether one is current, behind or edited.

    make vendor DEST=../acme/llm/engine.py          copy it (any file name, or a folder)
    python -m parity vendor ../acme/llm/engine.py   0 current, 1 behind or edited, 2 usage, 3 cannot judge

A copy says its version itself. Whether it was edited is known from digests of the released versions (versions.json,
written by `make release`) and, in a checkout, from every state of the file in git's history; the nearest state of the
same version is what edited lines are told against. Line ends do not count: git may have changed them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

NAME = "gen_engine.py"
SOURCE = Path(__file__).parents[1] / NAME
VERSIONS = Path(__file__).with_name("versions.json")
MOST_LINES = 40  # of a diff that are shown

State = Literal["current", "behind", "edited", "ahead", "unknown"]
EXIT: dict[State, int] = {"current": 0, "behind": 1, "edited": 1, "ahead": 3, "unknown": 3}


class VendorError(Exception):
    """A copy cannot be made or found. Says where, what is wrong, and what to do."""


# == Reading a copy ==


def text_of(path: Path) -> str:
    """The file with line feeds only. Raises VendorError."""
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise VendorError(f"{path} cannot be read: {error}; name the copied file") from error


def version_of(text: str) -> str | None:
    found = re.search(r'^__version__ = "([^"\n]+)"$', text, re.MULTILINE)
    return found[1] if found else None


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def order_of(version: str) -> tuple[int, ...]:
    """Versions as numbers, so that 0.10.0 comes after 0.9.0."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def released() -> dict[str, str]:
    """version -> sha256 of each released gen_engine.py."""
    return dict(json.loads(VERSIONS.read_text(encoding="utf-8"))) if VERSIONS.exists() else {}


def same_code(a: str, b: str) -> bool:
    """Whether two texts differ in nothing but layout and comments."""
    try:
        return ast.dump(ast.parse(a)) == ast.dump(ast.parse(b))
    except SyntaxError:
        return False


# == What git remembers ==


@dataclass(frozen=True, slots=True)
class Known:
    """One state of gen_engine.py: where it is known from, and its text."""

    where: str
    text: str


def git(*arguments: str) -> str | None:
    """What git says in this checkout; None where there is no git, or no checkout of this project."""
    command = ["git", "-C", str(SOURCE.parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.decode("utf-8", "replace").replace("\r\n", "\n") if done.returncode == 0 else None


def history() -> list[Known]:
    """The states of gen_engine.py in git's history, newest first; none outside a checkout of this project."""
    if not git("ls-files", NAME):
        return []
    commits = (git("log", "--all", "--format=%h", "--", NAME) or "").split()
    shown = ((commit, git("show", f"{commit}:./{NAME}")) for commit in commits)
    return [Known(f"commit {commit}", text) for commit, text in shown if text is not None]


def distance(a: str, b: str) -> int:
    """How many lines two texts do not share: enough to find the nearest of many."""
    mine, theirs = Counter(a.splitlines()), Counter(b.splitlines())
    return sum(((mine - theirs) + (theirs - mine)).values())


# == Judging it ==


@dataclass(frozen=True, slots=True)
class Status:
    """What a copy is. diff: edited lines, as (line number in the copy, "-" or "+", line).   against: what they were
    compared with.   behind: whether ours is newer, which an edited copy may be too."""

    path: Path
    state: State
    version: str | None
    ours: str
    diff: tuple[tuple[int, str, str], ...] = ()
    against: str = ""
    note: str = ""
    behind: bool = False

    @property
    def exit_code(self) -> int:
        return EXIT[self.state]


def edited_lines(base: str, copy: str) -> list[tuple[int, str, str]]:
    """(line number in the copy, "-" or "+", line). The number of a line that is gone is where it stood."""
    old, new = base.splitlines(), copy.splitlines()
    found = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            found += [(c + 1, "-", line) for line in old[a:b]]
            found += [(c + 1 + k, "+", line) for k, line in enumerate(new[c:d])]
    return found


def edited(path: Path, copy: str, version: str, ours: str, states: Sequence[Known]) -> Status:
    """An edited copy, told against the nearest known state of its own version."""
    current = Known(f"{NAME} {ours}, which is here", text_of(SOURCE))
    same = [state for state in (current, *states) if version_of(state.text) == version]
    base = min(same, key=lambda state: distance(state.text, copy), default=current)
    note = ""
    if not same:
        note = f"the text of {version} is not known here, so this is told against {ours}: not all of it is an edit"
    elif same_code(base.text, copy):
        note = "the code is the same; only layout or comments were changed"
    lines = tuple(edited_lines(base.text, copy))
    behind = order_of(version) < order_of(ours)
    return Status(path, "edited", version, ours, lines, base.where, note, behind)


def status(path: Path) -> Status:
    """What the copy at `path` (a file, or a folder that holds gen_engine.py) is. Raises VendorError."""
    path = path / NAME if path.is_dir() else path
    copy = text_of(path)
    version = version_of(copy)
    if not SOURCE.exists():
        fix = "run this from a checkout or an installation"
        return Status(path, "unknown", version, "?", note=f"there is no {NAME} beside parity/ to compare with; {fix}")
    mine = text_of(SOURCE)
    ours = version_of(mine) or "?"
    if version is None:
        return Status(path, "unknown", None, ours, note=f"it names no __version__; is it a copy of {NAME}?")
    if copy == mine:
        return Status(path, "current", version, ours)
    if order_of(version) > order_of(ours):
        return Status(path, "ahead", version, ours, note="it is newer than what is here; update this checkout")
    if released().get(version) == digest_of(copy) and version != ours:
        return Status(path, "behind", version, ours, against="the released version", behind=True)
    states = history()
    exact = next((state for state in states if state.text == copy), None)
    if exact is not None:
        return Status(path, "behind", version, ours, against=exact.where, behind=True)
    return edited(path, copy, version, ours, states)


def describe(s: Status) -> str:
    """The status as it is printed."""
    step = f"{s.version} → {s.ours}" if s.version != s.ours else f"an earlier {s.version}"
    words = {
        "current": f"current ({s.version})",
        "behind": f"behind: {step} ({s.against})",
        "edited": f"edited: {sum(sign == '+' for _, sign, _ in s.diff)} lines added, "
        f"{sum(sign == '-' for _, sign, _ in s.diff)} removed, against {s.against}"
        + (f"; and behind: {step}" if s.behind else ""),
        "ahead": f"ahead: {s.version}, here is {s.ours}",
        "unknown": "cannot be judged",
    }
    lines = [f"{s.path}: {words[s.state]}", *([f"  {s.note}"] if s.note else [])]
    lines += [f"  {number:5} {sign} {line}" for number, sign, line in s.diff[:MOST_LINES]]
    if len(s.diff) > MOST_LINES:
        lines.append(f"  … and {len(s.diff) - MOST_LINES} more")
    return "\n".join(lines)


# == Making a copy, and a release ==


def copy_to(dest: Path, *, force: bool = False) -> Path:
    """Copy gen_engine.py to a file, or into a folder. An edited copy is overwritten only with `force`."""
    target = dest / NAME if dest.is_dir() else dest
    if target.suffix != ".py":
        raise VendorError(f"{dest} is no folder and no .py file; make the folder first, or name the file")
    if not target.parent.is_dir():
        raise VendorError(f"{target.parent} does not exist; make it first")
    if target.resolve() == SOURCE.resolve():
        raise VendorError(f"{target} is {NAME} itself; name another place")
    content = text_of(SOURCE)
    if target.exists() and not force and (found := status(target)).state not in ("current", "behind"):
        raise VendorError(f"{describe(found)}\n{target} was left as it is; keep what you need of it, then use --force")
    # First beside it, then in its place: whoever imports it meanwhile sees the old file or the new one.
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content.encode())
    os.chmod(beside, 0o644)
    os.replace(beside, target)
    return target


def record_release() -> str:
    """Add this version's digest to versions.json. A released version does not change: raises VendorError."""
    text = text_of(SOURCE)
    version, known = version_of(text) or "?", released()
    if known.get(version, digest_of(text)) != digest_of(text):
        raise VendorError(f"{version} is released and {NAME} was changed since; raise __version__ first")
    whole = {**known, version: digest_of(text)}
    ordered = dict(sorted(whole.items(), key=lambda entry: order_of(entry[0])))
    VERSIONS.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
    return version


# == The command ==


def carry_out(args: argparse.Namespace) -> int:
    if args.release:
        print(f"parity/{VERSIONS.name} holds {record_release()}")
        return 0
    if args.path is None:
        raise VendorError("no path given; name the copied file, or the folder that holds it")
    if args.copy:
        print(f"{NAME} {version_of(text_of(SOURCE))} → {copy_to(args.path, force=args.force)}")
        return 0
    found = status(args.path)
    print(describe(found))
    return found.exit_code


def run(args: argparse.Namespace) -> int:
    """0 current (or done), 1 behind or edited, 2 usage, 3 cannot judge."""
    try:
        return carry_out(args)
    except VendorError as error:
        print(f"parity vendor: {error}", file=sys.stderr)
        return 2


def fill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help=f"the copy, or a folder with {NAME} in it")
    parser.add_argument("--copy", action="store_true", help="make the copy, or bring it up to date")
    parser.add_argument("--force", action="store_true", help="with --copy: also over an edited copy")
    parser.add_argument("--release", action="store_true", help="write this version's digest to parity/versions.json")
    parser.set_defaults(run=run)


ABOUT = {
    "description": f"Say whether a copy of {NAME} is current (0), behind or edited (1), or cannot be judged (3).",
    "epilog": "example: python -m parity vendor ../acme/llm/engine.py",
}


def add_vendor(subparsers: Any) -> None:
    fill(subparsers.add_parser("vendor", help=f"make or judge a copy of {NAME}", **ABOUT))


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m parity.vendor`: for make, with nothing installed."""
    parser = argparse.ArgumentParser(prog="python -m parity.vendor", **ABOUT)  # type: ignore[arg-type]
    fill(parser)
    args = parser.parse_args(argv)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
