"""The one way to a path below the folder of goldens: whoever sent it cannot lead a command out of it.

    folder = GoldenFolder("golden")
    folder.files("answers")                        base names of the files in golden/answers/, sorted
    folder.read("answers", "a.json", most=1000)    the bytes of one
    folder.write(b"{}", "answers", "a.json")       there whole or not at all
    folder.remove("answers", "a.json")

Every operation looks at each step of its path before it opens anything. A link anywhere in the folder, a
pipe, a socket and a device are a GoldenError that names it: through a link, `prune` would delete files of
somebody else, and a review would not see what the link's target becomes.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

RESTORE = "restore it from version control"


class GoldenError(Exception):
    """A golden that cannot be read, or cannot be used. Says which file, what is wrong, and what to do."""


def is_base_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


class GoldenFolder:
    """A folder that anybody may have sent."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._is_walked = False

    def place(self, *names: str) -> Path:
        """Where a file or folder lies, which need not be there. Raises GoldenError."""
        if not self._is_walked:
            self._is_walked = True
            self._refuse_special_files()
        path = self.root
        refuse_special(path)
        for name in names:
            if not is_base_name(name):
                raise GoldenError(f"{name!r} is no name of a file in {self.root}; write a base name")
            path = path / name
            refuse_special(path)
        return path

    def _refuse_special_files(self) -> None:
        """Raise GoldenError for any link, pipe or device in the folder, used or not."""
        refuse_special(self.root)
        for folder, folders, files in os.walk(self.root):
            for name in sorted((*folders, *files)):
                refuse_special(Path(folder, name))

    def exists(self, *names: str) -> bool:
        return self.place(*names).exists()

    def folders(self) -> list[str]:
        """Names of the folders in it, sorted."""
        return self._entries(self.place(), is_folder=True)

    def files(self, *names: str) -> list[str]:
        """Names of the files in a folder below it, sorted; [] where there is no such folder."""
        return self._entries(self.place(*names), is_folder=False)

    def _entries(self, path: Path, *, is_folder: bool) -> list[str]:
        if not path.is_dir():
            return []
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) == is_folder)

    def size(self, *names: str) -> int:
        """Bytes of a file."""
        return self.place(*names).lstat().st_size

    def read(self, *names: str, most: int) -> bytes:
        """A file of at most so many bytes. Raises GoldenError."""
        path = self.place(*names)
        try:
            return read_regular(path, most)
        except OSError as error:
            raise GoldenError(f"{path} cannot be read: {error}; {RESTORE}") from error

    def write(self, content: bytes, *names: str) -> Path:
        path = self.place(*names)
        write_whole(path, content)
        return path

    def remove(self, *names: str) -> None:
        self.place(*names).unlink()


def refuse_special(path: Path) -> None:
    """Raise GoldenError for what is there and is neither a file nor a folder."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(mode):
        raise GoldenError(
            f"{path} is a link to {os.readlink(path)!r}, and goldens are read, written and deleted in their own "
            "folder only; put what it points to in its place, or remove it"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise GoldenError(f"{path} is a pipe, a socket or a device; remove it")


def read_regular(path: Path, most: int, *, follow: bool = False) -> bytes:
    """The bytes of a regular file. Raises OSError for anything else, and for more than `most` bytes.
    follow: it may be a link to one."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"it has more than {most:,} bytes")
    return content


def write_whole(path: Path, content: bytes) -> None:
    """The file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(beside, 0o644)
    os.replace(beside, path)
