# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Answers of equal requests, kept in a store: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="answer_cache"`, and

    from acme.llm.answer_cache import AnswerCache
    from acme.llm.gen_engine import load

    with AnswerCache("answers.sqlite") as store, load("Qwen/Qwen3-0.6B", cache=store) as engine:
        ...

`load(cache=...)` takes any MutableMapping of str to str, and needs this file for it. AnswerCache is
such a mapping, in memory or in an SQLite file. `Answers`, which the engine uses, makes the keys,
puts a checksum into each entry, and goes on without a store that fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["AnswerCache", "Answers", "cache_key", "fingerprint"]

log = logging.getLogger("gen_engine")

# == The store: strings by key ==

MARK = 0x67656E43  # "genC", in the header of our SQLite files


FORMAT = "2"  # of the tables; what the entries hold is not ours to know


NEXT_USE = (
    "(SELECT coalesce(max(used), 0) + 1 FROM entries)"  # a count, not a clock: clocks go backwards
)


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
        fix = "see to the lock or the disk if it names one, else " + ELSEWHERE
        raise ge.EngineError(
            f"the cache file {path[:300]} cannot be used: {error}", fix=fix
        ) from error


def claim(db: sqlite3.Connection, path: str) -> None:
    """Make an empty file ours; refuse, untouched, what is not a cache in this format."""
    # By size: SQLite takes a file of one byte for an empty one and would write over it. Not by
    # reading the file: closing it would drop every lock that this process has on it (POSIX).
    if path == ":memory:" or os.path.getsize(path) == 0:
        db.execute(f"PRAGMA application_id = {MARK}")
        db.execute("CREATE TABLE about (format TEXT)")
        db.execute("INSERT INTO about VALUES (?)", (FORMAT,))
        db.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, used INTEGER, value TEXT)")
        db.execute("CREATE INDEX by_use ON entries (used)")
    if db.execute("PRAGMA application_id").fetchone() != (MARK,):
        raise ge.EngineError(f"{path} is not a cache file", fix="give AnswerCache another path")
    if db.execute("SELECT format FROM about").fetchone() != (FORMAT,):
        raise ge.EngineError(f"the cache file {path} has another format", fix=ELSEWHERE)


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
    """The file, checked. A process that is killed leaves whole entries; several may share it."""
    with file_errors(path):
        # No check of threads: AnswerCache's lock lets in one at a time.
        db = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
        try:
            with db:
                db.execute("BEGIN IMMEDIATE")
                claim(db, path)
            write_ahead(db)
            db.execute(
                "PRAGMA synchronous = NORMAL"
            )  # a power cut may lose the last entries, a crash none
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
    """Strings by key, the least recently used forgotten first; iterated in that order.

    path: a file that outlives the process, shared by processes and models; None is memory.
    size: entries kept.
    Safe to call from several threads, not across a fork. Every method raises EngineError where the
    file cannot be used: locked for half a minute, on a full disk, damaged, closed. A file that is
    not ours is refused and left as it is.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, size: int = USUAL_SIZE) -> None:
        if type(size) is not int or not 1 <= size <= sys.maxsize:
            raise ge.OptionError(
                f"AnswerCache's size is {ge.short_repr(size)}", fix="it must be a whole number >= 1"
            )
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        if path is not None and not is_name(name):
            raise ge.OptionError(
                f"AnswerCache's path is {ge.short_repr(path)}",
                fix="it must be a file's name or None",
            )
        self.path, self.size = name, size
        self._file = (
            os.path.abspath(name) if name else ":memory:"
        )  # a file may be called :memory: too
        self._touched: dict[str, None] = {}  # hits that the file does not know of, the latest last
        self._hits, self._misses, self._lock = 0, 0, threading.Lock()
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
            return iter(
                [
                    key
                    for [key] in self._db.execute(
                        "SELECT key FROM entries ORDER BY used"
                    ).fetchall()
                ]
            )

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
        """Write the last hits to the file, if possible, and close it. May be called again."""
        with self._lock, contextlib.closing(self._db), contextlib.suppress(ge.EngineError):
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
            db.executemany(
                f"UPDATE entries SET used = {NEXT_USE} WHERE key = ?",
                [(key,) for key in self._touched],
            )
            db.executemany(f"INSERT OR REPLACE INTO entries VALUES (?, {NEXT_USE}, ?)", entries)
            db.execute(f"DELETE FROM entries WHERE key IN ({OLDEST})", (self.size,))
        self._touched.clear()


# == Keys and entries: what an engine keeps in a store ==

MODEL_FILES = (
    ".json",
    ".txt",
    ".jinja",
    ".model",
    ".tiktoken",
    ".py",
    ".safetensors",
    ".bin",
    ".pt",
    ".gguf",
)
EDGE = 32 << 20  # bytes
ENTRY_FORMAT = "2 token_ids prompt_token_ids logprobs top_logprobs"
DIGEST = 64  # characters of a sha256


def cache_key(*parts: Any) -> str:
    """Equal for equal parts only; 1 and 1.0 differ, which costs a miss and never gives a wrong hit.

    parts: plain values, tuples, mappings and contracts of them. By ascii, not by repr, which
    depends on Python's Unicode tables."""
    return hashlib.sha256(ascii(parts).encode("ascii")).hexdigest()


def file_digest(file: Path, size: int) -> str:
    """The sha256 of a file's first and last 32 MiB."""
    with file.open("rb") as stream:
        ends = stream.read(EDGE)
        stream.seek(max(len(ends), size - EDGE))
        ends += stream.read()
    return hashlib.sha256(ends).hexdigest()


def fingerprint(model: str, revision: str | None = None) -> str:
    """Tells a checkpoint from others: a hub name by itself and its revision, so pin that; a
    directory by its files, wherever it stands: name, size and sha256.

    Of a large file only its two ends are read, which training changes too, and the time that it was
    written, which shows an edit in between: a miss is safe, a wrong hit is not."""
    if not Path(model).is_dir():
        return cache_key("hub", model, revision)
    files = []
    for file in sorted(Path(model).iterdir()):
        if file.suffix in MODEL_FILES and file.is_file():
            size = file.stat().st_size
            written = file.stat().st_mtime_ns
            digest = file_digest(file, size)
            files.append((file.name, size, digest, written if size > 2 * EDGE else 0))
    return cache_key("files", files)


def loaded_model(config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint) -> str:
    """Tells a model as it is loaded from all others: another dtype, device or library may answer
    otherwise."""
    libraries = ["torch", "transformers"]
    if config.backend == "vllm":
        libraries.append("vllm")
    versions = [str(ge.lazy_import(name).__version__) for name in libraries]
    adapters = {name: fingerprint(path) for name, path in config.adapters.items()}
    how = (
        config.device or ge.lazy_import("torch").cuda.is_available(),
        config.attn_implementation,
        repr(config.hf_kwargs),
        repr(config.vllm_kwargs),
        repr(config.decoder),
        config.logprobs_mode,
    )
    model = fingerprint(config.model, config.revision)
    return cache_key(ENTRY_FORMAT, model, checkpoint.dtype, config.backend, versions, adapters, how)


def plan_key(plan: ge.Plan) -> str:
    """The same for all plans under which equal prompts have equal answers."""
    options = replace(plan.options, n=1, seed=None)
    return cache_key(options, sorted(plan.eos_ids), plan.stop_ids)


def sealed(key: str, body: str) -> str:
    """An entry: a checksum of the body under this key, and the body."""
    return hashlib.sha256(f"{key} {body}".encode()).hexdigest() + body


def to_entry(key: str, done: ge.Completion) -> str:
    """A completion as an entry: ids, not text."""
    tops = None
    if done.top_logprobs is not None:
        tops = [list(top.items()) for top in done.top_logprobs]  # JSON's own keys are strings
    return sealed(key, json.dumps([done.token_ids, done.prompt_token_ids, done.logprobs, tops]))


def from_entry(key: str, entry: Any) -> ge.Completion | None:
    """The completion, or None for an entry that is not as `to_entry` made it."""
    if not isinstance(entry, str) or not entry.isascii():
        return None
    body = entry[DIGEST:]
    if entry != sealed(key, body):
        return None
    try:
        ids, prompt_ids, logprobs, tops = json.loads(body)
        return ge.Completion(
            token_ids=tuple(ids),
            prompt_token_ids=tuple(prompt_ids),
            logprobs=None if logprobs is None else tuple(logprobs),
            top_logprobs=None if tops is None else tuple(map(dict, tops)),
        )
    except (TypeError, ValueError, RecursionError):  # sealed by another hand
        return None


def is_answer(done: ge.Completion, prompt_key: Sequence[Any], plan: ge.Plan) -> bool:
    """Whether a completion may be this prompt's: whoever writes to a store can seal anything."""
    ids = done.token_ids
    vocabulary = plan.checkpoint.vocabulary
    if not all(type(one) is int and 0 <= one < vocabulary for one in ids):
        return False
    token_ids, pixels = prompt_key[:2]  # with images, the prompt has more ids than the request
    if not pixels and done.prompt_token_ids != token_ids:
        return False
    return has_numbers(done, plan) and ge.find_ending(ids, plan) is not None


def has_numbers(done: ge.Completion, plan: ge.Plan) -> bool:
    """Whether each token has the log-probabilities that were asked for."""
    count = plan.options.logprobs
    own, tops = done.logprobs or (), done.top_logprobs or ()
    size = len(done.token_ids)
    if (len(own), len(tops)) != (0 if count is None else size, size if count else 0):
        return False
    numbers = [*own, *(value for top in tops for value in top.values())]
    return all(isinstance(value, float) for value in numbers)


class Answers:
    """A caller's store as an engine uses it: its failure costs a miss and one warning, never an
    answer."""

    def __init__(self, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint) -> None:
        self.store: Any = config.cache
        self.model = loaded_model(config, checkpoint)
        self._warned: set[str] = set()

    def set_model(
        self, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint, version: str | None
    ) -> None:
        """Use answers of these adapters and of weights of this version only, from now on."""
        self.model = loaded_model(config, checkpoint)
        if version is not None:
            self.model = cache_key(self.model, version)

    def complete(
        self,
        work: Mapping[Any, Any],
        plan: ge.Plan,
        complete: Callable[..., Mapping[Any, ge.Completion]],
    ) -> tuple[dict[Any, ge.Completion], frozenset[Any]]:
        """(the completion of each prompt by its key, the keys that the store had). The others are
        made by `complete`, and kept."""
        read = self.read(work, plan)
        left = {key: prompt for key, prompt in work.items() if key not in read}
        fresh = complete(left, plan)
        self.write(fresh, plan)
        return {**read, **fresh}, frozenset(read)

    def read(self, prompt_keys: Iterable[Any], plan: ge.Plan) -> dict[Any, ge.Completion]:
        """The answers that the store has, by the key of their prompt."""
        answers = {}
        with self._tolerating():
            for prompt_key, key in self._keys(prompt_keys, plan):
                with contextlib.suppress(KeyError):
                    # Not get(): an LRU may count only this as a use.
                    answer = from_entry(key, self.store[key])
                    if answer is None or not is_answer(answer, prompt_key, plan):
                        detail = f"{key}; such entries are made anew"
                        self._warn("holds a damaged entry", detail)
                    else:
                        answers[prompt_key] = answer
        return answers

    def write(self, answers: Mapping[Any, ge.Completion], plan: ge.Plan) -> None:
        """Keep answers, but those that are errors."""
        with self._tolerating():
            for prompt_key, key in self._keys(answers, plan):
                if answers[prompt_key].error is None:
                    self.store[key] = to_entry(key, answers[prompt_key])

    def _keys(self, prompt_keys: Iterable[Any], plan: ge.Plan) -> list[tuple[Any, str]]:
        """(key of a prompt, key in the store), where answers are determined and have no
        tensors."""
        if plan.options.logits:
            return []
        own = [key for key in prompt_keys if isinstance(key, tuple)]
        return [(key, cache_key(self.model, plan_key(plan), key)) for key in own]

    @contextlib.contextmanager
    def _tolerating(self) -> Iterator[None]:
        """Go on without a store that fails: the rest of this call does without it, the next call
        tries again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the store is the caller's code
            self._warn("fails", f"{ge.short_repr(error)}; answers go on uncached")

    def _warn(self, what: str, detail: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("the cache %s: %s", what, detail)
