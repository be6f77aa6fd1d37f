"""Where a command writes what it was asked for: types of argparse, so that a path that cannot be
written is found before anything runs."""

from __future__ import annotations

import tempfile
from argparse import ArgumentTypeError
from pathlib import Path


def file_to_write(text: str) -> Path:
    """A file, there or not, whose folder can be written; a folder that is missing is made. Raises
    ArgumentTypeError.

    Standard output is none, for it holds what is written for people."""
    path = Path(text)
    if text == "-":
        raise ArgumentTypeError("'-' is no file; standard output has the text. Name a file")
    if path.exists() and not path.is_file():
        raise ArgumentTypeError(f"{text!r} is a folder or a device; name a file")
    expect_writable(path.parent)
    return path


def folder_to_write(text: str) -> Path:
    """A folder that can be written; it is made where it is missing. Raises ArgumentTypeError."""
    path = Path(text)
    if text == "-":
        raise ArgumentTypeError("'-' is no folder; name one")
    expect_writable(path)
    return path


def expect_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        problem = f"nothing can be written into {str(folder)!r}: {error.strerror}"
        raise ArgumentTypeError(f"{problem}. Name another place") from error
