"""Copies of gen_engine.py and its companions in other repositories: make them, say if they are current, behind, edited.

    make vendor DEST=../acme/llm WITH="tool_calls answer_cache"   copy it and these companions into a folder
    make vendor DEST=../acme/llm/engine.py                        copy it alone, under any name
    python -m parity vendor ../acme/llm                           0 current, 1 behind or edited, 2 usage, 3 cannot judge

A copy says its version itself; a companion's is that of the engine that it belongs to. Copies are copies: no line is
rewritten, so a companion keeps its name, and the engine beside it is called gen_engine.py. Whether one was edited is
known from digests of the released versions (versions.json, written by `make release`) and, in a checkout, from every
state of the file in git's history; the nearest state of the same version is what edited lines are told against. Line
ends do not count: git may have changed them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

NAME = "gen_engine.py"
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / NAME if (ROOT / NAME).is_file() else ROOT / "gen_engine/__init__.py"  # of a clone, of the package
COMPANIONS = Path(__file__).parents[1] / "companions"
VERSIONS = Path(__file__).with_name("versions.json")
MOST_LINES = 40  # of a diff that are shown

State = Literal["current", "behind", "edited", "ahead", "unknown"]
EXIT: dict[State, int] = {"current": 0, "behind": 1, "edited": 1, "ahead": 3, "unknown": 3}


class VendorError(Exception):
    """A copy cannot be made or found. Says where, what is wrong, and what to do."""


# == What there is to copy ==


def companions() -> dict[str, Path]:
    """The companions by name."""
    return {path.stem: path for path in sorted(COMPANIONS.glob("[!_]*.py"))}


def name_of(source: Path) -> str:
    """What a copy of this file is called: the engine is another file in the package than in a clone."""
    return NAME if source == SOURCE else source.name


def named_with(companion: Path) -> list[str]:
    """The companions in the line of its docstring that copies it: those that it cannot do without."""
    found = re.search(r'make vendor DEST=\S+ WITH="([^"]+)"', " ".join(text_of(companion).split()))
    return found[1].split() if found else [companion.stem]


def needed(names: Sequence[str]) -> list[str]:
    """These companions, each with those that it cannot do without, those that these cannot do without, ..."""
    known = companions()
    found: dict[str, None] = {}
    left = list(reversed(names))
    while left:
        name = left.pop()
        if name not in found:
            found[name] = None
            left += reversed(named_with(known[name]))
    return list(found)


def chosen(names: Sequence[str]) -> list[Path]:
    """gen_engine.py, the companions that were named, and what they cannot do without. Raises VendorError for a name
    that is none."""
    known = companions()
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise VendorError(f"there is no companion {name!r}; {guess}known: {', '.join(known) or 'none'}")
    return [SOURCE, *(known[name] for name in needed(names))]


# == Reading a copy ==


def text_of(path: Path) -> str:
    """The file with line feeds only. Raises VendorError."""
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise VendorError(f"there is no {path}; name the copied file, or make the copy with --copy") from error
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


def distance(a: str, b: str) -> int:
    """How many lines two texts do not share: enough to find the nearest of many."""
    mine, theirs = Counter(a.splitlines()), Counter(b.splitlines())
    return sum(((mine - theirs) + (theirs - mine)).values())


def unlike(a: str, b: str) -> float:
    """The part of two texts' lines that they do not share, 0 to 1; a short file is not near for being short."""
    return distance(a, b) / max(1, len(a.splitlines()) + len(b.splitlines()))


def original_of(path: Path, text: str) -> Path:
    """Which of our files this is a copy of: the one of its name, the one whose release it is, else the one that shares
    the largest part of both."""
    ours = {name_of(source): source for source in (SOURCE, *companions().values())}
    if path.name in ours:
        return ours[path.name]
    digest = digest_of(text)
    for files in released().values():
        for name, known in files.items():
            if known == digest and name in ours:
                return ours[name]
    return min(ours.values(), key=lambda source: unlike(text_of(source), text))


def released() -> dict[str, dict[str, str]]:
    """version -> the sha256 of each file, by its name."""
    return dict(json.loads(VERSIONS.read_text(encoding="utf-8"))) if VERSIONS.exists() else {}


def same_code(a: str, b: str) -> bool:
    """Whether two texts differ in nothing but layout, as a formatter makes another one."""
    try:
        return ast.dump(ast.parse(a)) == ast.dump(ast.parse(b)) and comments(a) == comments(b)
    except SyntaxError:
        return False


def comments(text: str) -> list[str]:
    """The comments of a file that Python can read."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]


# == What git remembers ==


@dataclass(frozen=True, slots=True)
class Known:
    """One state of a file of ours: where it is known from, and its text."""

    where: str
    text: str


def git(folder: Path, *arguments: str) -> str | None:
    """What git says in this folder; None where there is no git, or no checkout."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.decode("utf-8", "replace").replace("\r\n", "\n") if done.returncode == 0 else None


def history(source: Path) -> list[Known]:
    """The states of a file in git's history, newest first; none outside a checkout of this project."""
    folder, name = source.parent, source.name
    if not git(folder, "ls-files", name):
        return []
    commits = (git(folder, "log", "--all", "--format=%h", "--", name) or "").split()
    shown = ((commit, git(folder, "show", f"{commit}:./{name}")) for commit in commits)
    return [Known(f"commit {commit}", text) for commit, text in shown if text is not None]


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


def laid_out(path: Path, copy: str, source: Path, states: Sequence[Known]) -> Status | None:
    """A copy that a formatter laid out anew; None if more than the layout is another."""
    mine = text_of(source)
    version, ours = version_of(copy) or "?", version_of(mine) or "?"
    if same_code(mine, copy):
        return Status(path, "current", version, ours, note="only its layout is another")
    base = next((state for state in states if same_code(state.text, copy)), None)
    if base is None:
        return None
    return Status(path, "behind", version, ours, against=base.where, note="only its layout is another", behind=True)


def edited(path: Path, copy: str, source: Path, states: Sequence[Known]) -> Status:
    """An edited copy, told against the nearest known state of its own version."""
    mine = text_of(source)
    version, ours = version_of(copy) or "?", version_of(mine) or "?"
    current = Known(f"{name_of(source)} {ours}, which is here", mine)
    same = [state for state in (current, *states) if version_of(state.text) == version]
    base = min(same, key=lambda state: distance(state.text, copy), default=current)
    note = ""
    if not same:
        note = f"the text of {version} is not known here, so this is told against {ours}: not all of it is an edit"
    lines = tuple(edited_lines(base.text, copy))
    behind = order_of(version) < order_of(ours)
    return Status(path, "edited", version, ours, lines, base.where, note, behind)


def status(path: Path) -> Status:
    """What the copy at `path` is: of the engine under any name, or of a companion. Raises VendorError."""
    copy = text_of(path)
    version = version_of(copy)
    if not SOURCE.exists():
        fix = "run this from a checkout or an installation"
        return Status(path, "unknown", version, "?", note=f"there is no {NAME} beside parity/ to compare with; {fix}")
    source = original_of(path, copy)
    mine = text_of(source)
    ours = version_of(mine) or "?"
    if version is None:
        return Status(path, "unknown", None, ours, note=f"it names no __version__; is it a copy of {name_of(source)}?")
    if copy == mine:
        return Status(path, "current", version, ours)
    if order_of(version) > order_of(ours):
        return Status(path, "ahead", version, ours, note="it is newer than what is here; update this checkout")
    if released().get(version, {}).get(name_of(source)) == digest_of(copy) and version != ours:
        return Status(path, "behind", version, ours, against="the released version", behind=True)
    states = history(source)
    exact = next((state for state in states if state.text == copy), None)
    if exact is not None:
        return Status(path, "behind", version, ours, against=exact.where, behind=True)
    return laid_out(path, copy, source, states) or edited(path, copy, source, states)


def statuses(path: Path) -> list[Status]:
    """Of one file, or of what a folder holds of ours: by name, or by the first line. Raises VendorError."""
    if not path.is_dir():
        return [status(path)]
    names = [NAME, *(f"{name}.py" for name in companions())]
    copies = [path / name for name in names if (path / name).exists()]
    copies += [file for file in sorted(path.glob("*.py")) if file.name not in names and is_ours(file)]
    if not copies:
        raise VendorError(f"{path} holds none of {', '.join(names)}; name the copied file")
    return [status(copy) for copy in copies]


def is_ours(file: Path) -> bool:
    """Whether a file says so in its first lines: an engine under another name."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        return "the gen_engine authors" in stream.read(400)


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


def targets(dest: Path, sources: Sequence[Path]) -> dict[Path, Path]:
    """source -> where it goes: a .py file for the engine alone, or a folder, which is made."""
    single = dest.suffix == ".py" and not dest.is_dir()
    if dest.suffix and not single and not dest.is_dir():
        raise VendorError(f"{dest} is no folder and no .py file; make the folder first, or name the file")
    if single and len(sources) > 1:
        raise VendorError(f"{dest} is one file; companions go beside {NAME}, so name a folder")
    return {source: dest if single else dest / name_of(source) for source in sources}


def refuse_loss(source: Path, target: Path, force: bool) -> None:
    """Raises VendorError where a copy would cost somebody's work."""
    if target.resolve() == source.resolve():
        raise VendorError(f"{target} is {name_of(source)} itself; name another place")
    if target.exists() and not force and (found := status(target)).state not in ("current", "behind"):
        raise VendorError(f"{describe(found)}\n{target} was left as it is; keep what you need of it, then use --force")


def put(content: str, target: Path) -> None:
    """First beside it, then in its place: whoever imports it meanwhile sees the old file or the new one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VendorError(f"{target.parent} cannot be made: {error}; name another place") from error
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content.encode())
    os.chmod(beside, 0o644)
    os.replace(beside, target)


def copy_to(dest: Path, names: Sequence[str] = (), *, force: bool = False) -> list[Path]:
    """Copy gen_engine.py to a file, or with the companions `names` into a folder. With `force` also over edited copies;
    without it one of them keeps all from being copied."""
    whither = targets(dest, chosen(names))
    for source, target in whither.items():
        refuse_loss(source, target, force)
    for source, target in whither.items():
        put(text_of(source), target)
    return list(whither.values())


def excluded(copies: Sequence[Path]) -> list[str]:
    """The copies as a formatter's settings name them: from the folder that has these."""
    folder = copies[0].resolve().parent
    root = next(
        (f for f in (folder, *folder.parents) if (f / "pyproject.toml").exists() or (f / ".git").exists()), folder
    )
    return [path.resolve().relative_to(root).as_posix() for path in copies]


def record_release() -> str:
    """Add this version's digests to versions.json. A released version does not change: raises VendorError."""
    texts = {name_of(source): text_of(source) for source in chosen([*companions()])}
    version, known = version_of(texts[NAME]) or "?", released()
    digests = {name: digest_of(text) for name, text in texts.items()}
    for name, text in texts.items():
        if version_of(text) != version:
            raise VendorError(f"{name} is of version {version_of(text)}, {NAME} of {version}; make them one")
    if known.get(version, digests) != digests:
        raise VendorError(f"{version} is released and files were changed since; raise __version__ first")
    ordered = dict(sorted({**known, version: digests}.items(), key=lambda entry: order_of(entry[0])))
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
        copies = copy_to(args.path, args.companions, force=args.force)
        for source, target in zip(chosen(args.companions), copies):
            print(f"{name_of(source)} {version_of(text_of(target))} → {target}")
        print(f"keep formatters off, in pyproject.toml: [tool.ruff] extend-exclude = {json.dumps(excluded(copies))}")
        return 0
    found = statuses(args.path)
    print(*map(describe, found), sep="\n")
    return max(one.exit_code for one in found)


def run(args: argparse.Namespace) -> int:
    """0 current (or done), 1 behind or edited, 2 usage, 3 cannot judge."""
    try:
        return carry_out(args)
    except VendorError as error:
        print(f"parity vendor: {error}", file=sys.stderr)
        return 2


def fill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help="the copy, or the folder that holds copies")
    parser.add_argument("--copy", action="store_true", help="make the copy, or bring it up to date")
    which = "with --copy into a folder: this companion too; may be given again"
    parser.add_argument("--with", dest="companions", action="append", default=[], metavar="NAME", help=which)
    parser.add_argument("--force", action="store_true", help="with --copy: also over edited copies")
    parser.add_argument("--release", action="store_true", help="write this version's digests to versions.json")
    parser.set_defaults(run=run)


ABOUT = {
    "description": f"Say whether copies of {NAME} and its companions are current (0), behind or edited (1), or "
    "cannot be judged (3).",
    "epilog": "example: python -m parity vendor --copy ../acme/llm --with tool_calls",
}


def add_vendor(subparsers: Any) -> None:
    fill(subparsers.add_parser("vendor", help=f"make or judge copies of {NAME} and its companions", **ABOUT))


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m parity.environment.vendor`: for make, with nothing installed."""
    parser = argparse.ArgumentParser(prog="python -m parity.environment.vendor", **ABOUT)  # type: ignore[arg-type]
    fill(parser)
    args = parser.parse_args(argv)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
