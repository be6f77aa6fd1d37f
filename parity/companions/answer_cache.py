# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""A store of answers, in memory or in an SQLite file: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="answer_cache"`, and

    from acme.llm.answer_cache import AnswerCache
    from acme.llm.gen_engine import load

    with AnswerCache("answers.sqlite") as store, load("Qwen/Qwen3-0.6B", cache=store) as engine:
        ...

It maps strings to strings and knows nothing of answers: gen_engine makes the keys, puts a checksum
into each entry, and goes on without a store that fails.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import EngineError, OptionError, brief
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import EngineError, OptionError, brief

__version__ = "0.2.0"

__all__ = ["AnswerCache"]

MARK = 0x67656E43  # "genC", in the header of our SQLite files
FORMAT = "2"  # of the tables; what the entries hold is not ours to know
NEXT_USE = "(SELECT coalesce(max(used), 0) + 1 FROM entries)"  # a count: clocks go backwards
OLDEST = "SELECT key FROM entries ORDER BY used LIMIT max((SELECT count(*) FROM entries) - ?, 0)"
USUAL_SIZE = 10_000  # some 100 MB, of answers of a thousand tokens
WAIT = 30.0  # seconds, for other processes' locks
ELSEWHERE = "delete it, or give AnswerCache another path"


@contextlib.contextmanager
def file_errors(path: str) -> Iterator[None]:
    """What SQLite raises, as an EngineError."""
    try:
        yield
    except sqlite3.Error as error:
        problem = f"the cache file {path[:300]} cannot be used: {error}"
        fix = "see to the lock or the disk if it names one, else " + ELSEWHERE
        raise EngineError(problem, fix=fix) from error


def claim(db: sqlite3.Connection, path: str) -> None:
    """Make an empty file ours; refuse, untouched, what is not a cache in this format."""
    # By size: SQLite takes a file of one byte for an empty one and would write over it. Not by
    # reading the file: to close it would drop every lock that this process has on it (POSIX),
    # another cache's too.
    if path == ":memory:" or os.path.getsize(path) == 0:
        db.execute(f"PRAGMA application_id = {MARK}")
        db.execute("CREATE TABLE about (format TEXT)")
        db.execute("INSERT INTO about VALUES (?)", (FORMAT,))
        db.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, used INTEGER, value TEXT)")
        db.execute("CREATE INDEX by_use ON entries (used)")
    if db.execute("PRAGMA application_id").fetchone() != (MARK,):
        raise EngineError(f"{path} is not a cache file", fix="give AnswerCache another path")
    if db.execute("SELECT format FROM about").fetchone() != (FORMAT,):
        raise EngineError(f"the cache file {path} has another format", fix=ELSEWHERE)


def write_ahead(db: sqlite3.Connection) -> None:
    """One process writes while others read. For a writer SQLite waits everywhere but here."""
    until = time.monotonic() + WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def open_file(path: str) -> sqlite3.Connection:
    """The file, checked. A process that is killed at any moment leaves whole entries; several
    processes may share the file."""
    with file_errors(path):
        # No check of threads: AnswerCache's lock lets in one at a time; SQLite asks for no more.
        db = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
        try:
            with db:
                db.execute("BEGIN IMMEDIATE")
                claim(db, path)
            write_ahead(db)
            # A power cut may lose the last entries, a crash none.
            db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
        return db


def is_name(name: Any) -> bool:
    """Whether a file may be called so, and no pipe or device is."""
    try:
        usual = isinstance(name, str) and bool(name) and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half a character
        return False
    return usual and (os.path.isfile(name) or not os.path.exists(name) or os.path.isdir(name))


class AnswerCache(MutableMapping[str, str]):
    """Strings by key, the least recently used forgotten first; iterated in that order. For
    `load(..., cache=...)`.

    path: a file that outlives the process, shared by as many processes and models as like; None is
    memory.   size: entries kept.
    Safe to call from several threads, not across a fork. Every method raises EngineError where the
    file cannot be used: locked for half a minute, on a full disk, damaged, closed. A file that is
    not ours is refused and left as it is."""

    def __init__(self, path: str | os.PathLike[str] | None = None, size: int = USUAL_SIZE) -> None:
        if type(size) is not int or not 1 <= size <= sys.maxsize:
            problem = f"AnswerCache's size is {brief(size)}"
            raise OptionError(problem, fix="it must be a whole number >= 1")
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        if path is not None and not is_name(name):
            problem = f"AnswerCache's path is {brief(path)}"
            raise OptionError(problem, fix="it must be a file's name or None")
        self.path = name
        self.size = size
        # The whole path, since a file may be called :memory:, too.
        self._file = os.path.abspath(name) if name else ":memory:"
        self._touched: dict[str, None] = {}  # hits that the file does not know of, the latest last
        self._hits = 0
        self._misses = 0
        self._lock = threading.Lock()
        self._db = open_file(self._file)
        self._write()  # the file may have been made with a larger size

    def __getitem__(self, key: str) -> str:
        """The file learns of a hit at the next write or `close`; a crash loses only that."""
        with self._lock:
            found = self._row("SELECT value FROM entries WHERE key = ?", key)
            if found is None:
                self._misses += 1
                raise KeyError(key)
            self._hits += 1
            self._touched.pop(key, None)
            self._touched[key] = None
            return str(found[0])

    def __setitem__(self, key: str, value: str) -> None:
        with self._lock:
            self._write((key, value))

    def __delitem__(self, key: str) -> None:
        with self._lock, file_errors(self._file):
            if not self._db.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount:
                raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Without using it, and without counting."""
        with self._lock:
            return self._row("SELECT 1 FROM entries WHERE key = ?", key) is not None

    def __iter__(self) -> Iterator[str]:
        with self._lock, file_errors(self._file):
            if self._touched:
                self._write()
            rows = self._db.execute("SELECT key FROM entries ORDER BY used").fetchall()
            return iter([key for [key] in rows])

    def __len__(self) -> int:
        """Entries now, other processes' on the same file too."""
        with self._lock:
            return int(self._row("SELECT count(*) FROM entries")[0])

    def clear(self) -> None:
        """Forget every entry, the file's too, and the figures."""
        with self._lock, file_errors(self._file):
            self._db.execute("DELETE FROM entries")
            self._touched.clear()
            self._hits = self._misses = 0

    def statistics(self) -> dict[str, Any]:
        """hits and misses, here; size: entries now; capacity; path."""
        size = len(self)
        return {
            "hits": self._hits,
            "misses": self._misses,
            "size": size,
            "capacity": self.size,
            "path": self.path,
        }

    def close(self) -> None:
        """Tell the file of the last hits, if it can be told, and let go of it; again, too."""
        with self._lock, contextlib.closing(self._db), contextlib.suppress(EngineError):
            if self._touched:
                self._write()

    def __enter__(self) -> AnswerCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _row(self, query: str, *values: object) -> Any:
        with file_errors(self._file):
            return self._db.execute(query, values).fetchone()

    def _write(self, *entries: tuple[str, str]) -> None:
        """One transaction: the order of the last hits, then new entries, then the oldest go."""
        with file_errors(self._file), self._db as db:  # which commits, or rolls back
            db.execute("BEGIN IMMEDIATE")
            touched = [(key,) for key in self._touched]
            db.executemany(f"UPDATE entries SET used = {NEXT_USE} WHERE key = ?", touched)
            db.executemany(f"INSERT OR REPLACE INTO entries VALUES (?, {NEXT_USE}, ?)", entries)
            db.execute(f"DELETE FROM entries WHERE key IN ({OLDEST})", (self.size,))
        self._touched.clear()
