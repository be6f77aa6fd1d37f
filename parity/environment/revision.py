"""The code as it was at a git revision, beside the code as it is: for functions that were changed
in place.

with checked_out("HEAD~1") as old:
    old.path(sys.path)      # a sys.path on which imports give the old code
    old.folder()            # a working directory in which relative paths give the old files

What git does not track (models, caches, photos) has no revision: the worktree has links to it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Revision:
    """A worktree of a repository, as it was at `name`."""

    name: str
    top: Path
    worktree: Path

    def place(self, path: str | Path) -> Path:
        """Where a path of the repository lies in the worktree; any other path is itself."""
        whole = Path(path).resolve()
        inside = whole.is_relative_to(self.top) and not {"site-packages", "dist-packages"} & set(whole.parts)
        return self.worktree / whole.relative_to(self.top) if inside else Path(os.path.abspath(path))

    def path(self, entries: Sequence[str]) -> list[str]:
        """A sys.path on which the repository's modules are the old ones."""
        return [str(self.place(entry or ".")) for entry in entries]

    def folder(self) -> Path:
        """The working directory, as it was."""
        folder = self.place(".")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def copy(self, path: str) -> None:
        """Put a file that was not there then, such as a script of today, where a relative path
        names it. No link: Python looks for a script's modules beside the file itself."""
        place = self.place(path)
        is_later = place.is_symlink() or not place.exists()
        if is_later and Path(path).is_file() and place.is_relative_to(self.worktree):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            shutil.copyfile(path, place)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The working directory, and the path of the processes that are started, as they were."""
        before = os.getcwd()
        path = os.environ.get("PYTHONPATH")
        entries = path.split(os.pathsep) if path else []
        inside = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(before).resolve()]
        installed = [place for place in self.path(inside) if Path(place).is_relative_to(self.worktree)]
        os.environ["PYTHONPATH"] = os.pathsep.join([*self.path(entries), *installed])
        os.chdir(self.folder())
        try:
            yield
        finally:
            os.chdir(before)
            del os.environ["PYTHONPATH"]
            if path is not None:
                os.environ["PYTHONPATH"] = path

    def lend(self, path: str) -> None:
        """Link what a relative path names now and named nothing then, such as a golden's
        argument."""
        if not os.path.isabs(path) and os.path.lexists(path):
            place = self.place(path)
            if place.is_relative_to(self.worktree) and not os.path.lexists(place):
                link(Path(path).resolve(), place)


APART = {"__pycache__"}  # what was compiled of files as they are now


def link(source: Path, place: Path) -> None:
    """A link at `place`; where a folder is there already, in it. What is there stays."""
    if source.name in APART:
        return
    if not os.path.lexists(place):
        with contextlib.suppress(FileExistsError, NotADirectoryError):  # a file, where a folder is now
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source)
    elif all(path.is_dir() and not path.is_symlink() for path in (source, place)):
        for inner in source.iterdir():
            link(inner, place / inner.name)


def git(*words: str, folder: Path | None = None) -> str:
    """What git says, without blanks at its ends. Raises ValueError with its complaint."""
    return git_output(*words, folder=folder).strip()


def git_output(*words: str, folder: Path | None = None) -> str:
    """What git says; a path in it may begin with a blank. Raises ValueError with its complaint."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except FileNotFoundError:
        raise ValueError("a git revision was asked for, and there is no git here; install it") from None
    if done.returncode:
        raise ValueError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def checked_out(name: str, beside: Path) -> Iterator[Revision]:
    """The repository of the working directory at a revision, in a temporary folder that is gone
    afterwards.

    Raises ValueError where there is no such revision, or its files are those of now, but for those
    below `beside`.
    """
    top = Path(git("rev-parse", "--show-toplevel")).resolve()
    try:
        commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except ValueError:
        raise ValueError(f"--old {name!r} is no revision of {top}") from None
    differs = git("diff", "--name-only", "-z", commit, folder=top).split("\0")
    if all((top / path).is_relative_to(beside.resolve()) for path in differs if path):
        raise ValueError(f"--old {name}: no file of {top} differs from it; name a revision before the change")
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        worktree = Path(folder).resolve() / "old"
        git("worktree", "add", "--quiet", "--detach", "--force", str(worktree), commit, folder=top)
        try:
            for path in git("ls-files", "--others", "--directory", "-z", folder=top).split("\0"):
                if path:
                    link(top / path, worktree / path)
            yield Revision(name, top, worktree)
        finally:
            git("worktree", "remove", "--force", str(worktree), folder=top)
