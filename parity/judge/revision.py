"""The code as it was at a git revision, beside the code as it is: for functions that were changed in place.

with checked_out("HEAD~1") as old:
    old.path(sys.path)      # a sys.path on which imports give the old code
"""

from __future__ import annotations

import contextlib
import subprocess
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
        return self.worktree / whole.relative_to(self.top) if inside else Path(path)

    def path(self, entries: Sequence[str]) -> list[str]:
        """A sys.path on which the repository's modules are the old ones."""
        return [str(self.place(entry or ".")) for entry in entries]


def git(*words: str, folder: Path | None = None) -> str:
    """What git says. Raises ValueError with its complaint."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ValueError("--old takes code from a git revision, and there is no git; install it") from None
    if done.returncode:
        raise ValueError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def checked_out(name: str) -> Iterator[Revision]:
    """The repository of the working directory at a revision, in a temporary folder that is gone afterwards.

    Raises ValueError where there is no such revision, or its Python files are those of now.
    """
    top = Path(git("rev-parse", "--show-toplevel")).resolve()
    try:
        commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except ValueError:
        raise ValueError(f"--old {name!r} is no revision of {top}") from None
    if not git("diff", "--name-only", commit, "--", "*.py", folder=top):
        raise ValueError(f"--old {name}: no Python file of {top} differs from it; name a revision before the change")
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        worktree = Path(folder).resolve() / "old"
        git("worktree", "add", "--quiet", "--detach", "--force", str(worktree), commit, folder=top)
        try:
            yield Revision(name, top, worktree)
        finally:
            git("worktree", "remove", "--force", str(worktree), folder=top)
