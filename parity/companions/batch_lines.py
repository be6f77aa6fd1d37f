# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""One line of a file of requests: read, whatever it holds, and written; for batch_files.py.

It is copied with that, or alone, `make vendor DEST=acme/llm WITH="batch_lines request_forms"`.

    line --Reader--> Item --batch_files--> Item with results --Writer--> line

What is wrong with a line is its `error`. Images are read from one folder, a chat template that a
line brings is rendered in a child process with limits, and sizes are bounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import importlib
import itertools
import json
import os
import re
import select
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["ImageFolder", "Item", "LineForm", "Reader", "Writer"]

MOST_LINE = 64 << 20  # bytes
MOST_SAMPLES = 128
MOST_LOGPROBS = 1000
TEMPLATE_SECONDS = 10.0  # that a line's own chat template may run
TEMPLATE_BYTES = 1 << 30  # of memory that it may add to the process

OBJECT = "each line is a JSON object"


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
        return ge.load_image(source)

    def path_of(self, name: str) -> Path:
        """The file of this name. Raises ImageError for one outside the folder."""
        if name.startswith("file://"):
            name = unquote(name.removeprefix("file://"))
        try:
            path = (self.folder / name).resolve()
            inside = self.any_path or path.is_relative_to(self.folder.resolve())
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
            problem = f"image {name[:80]!r} is no path: {error}"
            raise ge.ImageError(problem, fix="give the path of a file") from error
        if not inside:
            problem = f"image {name[:80]!r} lies outside {self.folder}"
            raise ge.ImageError(problem, fix="move it into the folder, or use --any-path")
        return path

    def load_into(self, request: ge.VlmGenerationRequest) -> ge.VlmGenerationRequest:
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
            raise ge.RequestError(
                "a video in a line", fix="answer it from code: generate_vlm_batch"
            )
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


def loaded_images(request: ge.VlmGenerationRequest) -> list[Any]:
    """The images that `ImageFolder.load_into` has read."""
    images = list(request.images)
    for message in request.messages or ():
        for part in content_parts(message):
            if part.get("image") is not None:
                images.append(part["image"])
    return images


NO_PIXEL_BUDGET = ge.VlmGenerationRequest(prompt="").vlm


def make_request(fields: Mapping[str, Any], images: ImageFolder) -> ge.VlmGenerationRequest:
    """A request from a line's fields. Raises GenEngineError.
    Text requests are of the same kind as those with images; they have none."""
    if "image_loader" in fields:
        raise ge.RequestError("a line cannot bring an image_loader", fix="drop it")
    request = images.load_into(ge.build(ge.VlmGenerationRequest, fields))
    if request.vlm != NO_PIXEL_BUDGET and not loaded_images(request):
        raise ge.RequestError("vlm is given, but no image", fix="drop it")
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

REQUEST_FIELDS = {f.name for f in dataclasses.fields(ge.VlmGenerationRequest)}

Fields = dict[str, Any]


def line_fields() -> set[str]:
    """The fields of a line in our own form, without its id."""
    return {*REQUEST_FIELDS, *ge.companions.request_forms.LINE_FIELDS}


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
        return ge.companions.request_forms.read_fields(fields)

    def _map_prompt(self, fields: Fields, column: str) -> Fields:
        if column not in fields:
            problem = f"the line has no field {column!r}, which --prompt-field names"
            raise ge.RequestError(problem, fix=ge.did_you_mean(column, fields))
        prompt = fields.pop(column)
        known = {name: value for name, value in fields.items() if name in line_fields()}
        return {**known, "messages" if isinstance(prompt, list) else "prompt": prompt}

    def unread_columns(self, record: Mapping[str, Any]) -> list[str]:
        """Columns that --prompt-field leaves unread."""
        if self.prompt_field is None:
            return []
        return sorted(record.keys() - line_fields() - {"id", self.prompt_field})

    def is_openai(self, record: Mapping[str, Any]) -> bool:
        """Whether a line is OpenAI's. With --prompt-field, custom_id may be a column of others."""
        return "custom_id" in record and ("body" in record or self.prompt_field is None)

    def body(self, record: Mapping[str, Any]) -> Any:
        """request_forms.Wanted of an OpenAI batch line. What cannot be honoured is refused."""
        if "body" not in record:
            raise ge.RequestError(
                "a line with a custom_id has no body", fix="give it one, or an id"
            )
        url = record.get("url", COMPLETIONS)
        forms = ge.companions.request_forms
        if url == DECISIONS:
            return forms.read_decision_body(record["body"], self.models)
        if url != COMPLETIONS:
            fix = f"only bodies of {COMPLETIONS} and {DECISIONS} are answered here"
            raise ge.RequestError(f"url {url!r}", fix=fix)
        return forms.read_body(record["body"], self.models)


COMPLETIONS = "/v1/chat/completions"
DECISIONS = "/v1/decisions"


def line_digest(record: Any) -> int:
    """64 bits that tell a line or a row from others."""
    data = record if isinstance(record, bytes) else repr(record).encode("utf-8", "backslashreplace")
    data = data.strip()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


# == In: lines on their way ==


@dataclass(eq=False, slots=True)
class Item:
    """One line on its way.
    number: from 1.   digest: of the line.   name: its id.   size: bytes of its text and images.
    wanted: request_forms.Wanted.   request: of it, with its images read.
    unread: columns that are not read.   error: why it is not run.
    results: of each sample, or why there is none.   decisions: in place of results, where the line
        has questions."""

    number: int
    digest: int
    name: str | int
    is_openai: bool = False
    size: int = 0
    unread: Sequence[str] = ()
    wanted: Any = None
    request: ge.VlmGenerationRequest | None = None
    error: ge.GenEngineError | None = None
    results: dict[int, ge.GenerationResult | ge.GenEngineError] = field(default_factory=dict)
    samples: int = 1
    decisions: Sequence[Any] = ()

    @property
    def failure(self) -> ge.GenEngineError | None:
        """Why there is no answer: the line's error, or that of a sample."""
        for _, result in sorted(self.results.items()):
            if isinstance(result, ge.GenEngineError):
                return self.error or result
        return self.error

    @property
    def answers(self) -> list[ge.GenerationResult]:
        """The samples in their order."""
        found = [result for _, result in sorted(self.results.items())]
        return [result for result in found if isinstance(result, ge.GenerationResult)]


def given_name(number: int) -> str:
    """The id of a line that has none. No other line can have it: see `check_name`."""
    return f"line:{number}"


def check_name(value: Any, number: int) -> str | int:
    """A line's own id. Raises RequestError for one that cannot be an id, or is another line's."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        problem = f"the id is {type(value).__name__}"
        raise ge.RequestError(problem, fix="give a string or a whole number")
    if isinstance(value, str) and re.fullmatch(r"line:\d+", value) and value != given_name(number):
        problem = f"the id {value[:40]!r} is that of a line without an id"
        raise ge.RequestError(problem, fix="choose ids that do not begin with 'line:'")
    if isinstance(value, str) and not is_unicode(value):
        raise ge.RequestError("the id contains a lone surrogate", fix="see where it was cut")
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
        raise ge.RequestError(problem, fix="name images by their paths")
    try:
        value = json.loads(record.decode("utf-8-sig"), object_pairs_hook=object_of)
    except ge.RequestError:
        raise
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} is no UTF-8"
        raise not_json(record, problem, "write the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise not_json(record, json_problem(error), OBJECT) from error
    if not isinstance(value, dict):
        raise ge.RequestError(f"the line is {type(value).__name__}", fix=OBJECT)
    return value


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises RequestError for a name that stands in it twice: one of the two
    would be lost."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ge.RequestError(f"{name[:80]!r} stands twice in an object", fix="leave one out")
        fields[name] = value
    return fields


def is_torn(record: Any) -> bool:
    """Whether a line may have a rest: its producer was killed, or is still writing."""
    return isinstance(record, bytes) and not record.endswith(b"\n")


def not_json(record: bytes, problem: str, fix: str) -> ge.RequestError:
    if is_torn(record):
        problem = f"the input ends inside the line: {problem}"
        return ge.RequestError(problem, fix="the same command answers it when its rest is there")
    return ge.RequestError(f"the line is not JSON: {problem}", fix=fix)


@dataclass(frozen=True)
class Reader:
    """Reads lines as far as that goes without the model."""

    form: LineForm
    images: ImageFolder

    def item(self, number: int, record: Any) -> Item:
        """A line; what is wrong with it is its `error`."""
        item = Item(number, line_digest(record), given_name(number))
        try:
            fields = parse_record(record)
            item.size = text_size(fields)
            self._read_name(item, fields)
            if item.size > ge.MOST_TEXT:
                problem = f"the line has {item.size:,} characters without its images"
                raise ge.RequestError(problem, fix=f"{ge.MOST_TEXT:,} at most are answered")
            if item.is_openai:
                item.wanted = self.form.body(fields)
            else:
                item.wanted = self.form.own(fields)
                item.unread = self.form.unread_columns(fields)
            item.request = make_request(item.wanted.request, self.images)
            images = loaded_images(item.request)
            item.size += sum(3 * image.width * image.height for image in images)
        except ge.GenEngineError as error:
            item.error = error
        return item

    def deadly_item(self, number: int, record: Any, deaths: int, *, read_id: bool) -> Item:
        """A line that is not run, because so many processes died at it. Its id is not read if that
        may be what kills them."""
        item = Item(number, line_digest(record), given_name(number))
        problem = f"the process died {deaths} times while line {number} was in work"
        item.error = ge.EngineError(problem, fix="correct the line; --retry-errors tries it again")
        if read_id:
            with contextlib.suppress(ge.RequestError):
                self._read_name(item, parse_record(record))
        return item

    def _read_name(self, item: Item, fields: Mapping[str, Any]) -> None:
        item.is_openai = self.form.is_openai(fields)
        name = fields.get("custom_id" if item.is_openai else "id")
        if name is not None:
            item.name = check_name(name, item.number)


# == Lines out ==


def without_addresses(text: str) -> str:
    """A message without the addresses of objects, which say nothing and change with each run."""
    return re.sub(r" (object )?at 0x[0-9a-fA-F]+", "", text)


def message_of(error: ge.GenEngineError) -> str:
    """An error's text for the reader of a line."""
    error.index = None  # a position in a call
    return without_addresses(str(error))


@dataclass(frozen=True)
class Writer:
    """How answers become lines.
    ids: with token ids.   created: seconds since 1970, when the run was begun."""

    model: str
    ids: bool
    created: int

    def line(self, item: Item, choices: Sequence[Any] = ()) -> bytes:
        """The line that answers an item, without a line feed.   choices: of an OpenAI line."""
        if item.failure is not None:
            record = self._failed(item, item.failure)
        elif item.decisions:
            record = self._decided(item)
        elif item.is_openai:
            record = self._openai(item, choices)
        else:
            record = self._own(item)
        try:
            return json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate that an error quotes
            return json.dumps(record).encode()

    def _failed(self, item: Item, failure: ge.GenEngineError) -> dict[str, Any]:
        kind, message = type(failure).__name__, message_of(failure)
        if not item.is_openai:
            return {"id": item.name, "error": {"type": kind, "message": message}}
        error = {"code": kind, "message": message}
        request = f"batch_req_{item.number}"
        return {"id": request, "custom_id": item.name, "response": None, "error": error}

    def _own(self, item: Item) -> dict[str, Any]:
        results = item.answers
        record = {"id": item.name, **self._fields(results[0])}
        if len(results) > 1:
            record["samples"] = [self._fields(result) for result in results]
        return record

    def _decided(self, item: Item) -> dict[str, Any]:
        body = ge.companions.decisions.reply(item.decisions, self.model)
        if not item.is_openai:
            tokens = body["usage"]["input_tokens"]
            return {"id": item.name, "decisions": body["answers"], "prompt_tokens": tokens}
        return self._response(item, body)

    def _fields(self, result: ge.GenerationResult) -> dict[str, Any]:
        names = ["text", "finish_reason", "stop_reason", "prompt_tokens", "completion_tokens"]
        if self.ids:
            names += ["token_ids", "prompt_token_ids"]
        names += [name for name in ("logprobs", "top_logprobs", "notes") if getattr(result, name)]
        return {name: getattr(result, name) for name in names}

    def _openai(self, item: Item, choices: Sequence[Any]) -> dict[str, Any]:
        results = item.answers
        prompt = results[0].prompt_tokens
        completion = sum(result.completion_tokens for result in results)
        body = {
            "id": f"chatcmpl-{item.number}",
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }
        return self._response(item, body)

    def _response(self, item: Item, body: Mapping[str, Any]) -> dict[str, Any]:
        request = f"batch_req_{item.number}"
        response = {"status_code": 200, "request_id": request, "body": body}
        return {"id": request, "custom_id": item.name, "response": response, "error": None}


def id_text(answer: bytes, *, is_text: bool) -> str:
    """The id of a line of OUT, as JSON, or as the text that Parquet holds."""
    text = answer.decode()
    decoder = json.JSONDecoder()
    name, end = decoder.raw_decode(text, len('{"id": '))
    custom = ', "custom_id": '
    if text.startswith(custom, end):
        name, _ = decoder.raw_decode(text, end + len(custom))
    return str(name) if is_text else json.dumps(name, ensure_ascii=False)


# == Chat templates that a line brings ==


def render_apart(engine: ge.GenerationEngine, request: ge.VlmGenerationRequest) -> str:
    """The prompt text of a request with a chat template of its own, rendered in a forked child
    with limits of time, memory and size. Raises GenEngineError. The limit of memory needs /proc."""
    if not hasattr(os, "fork"):
        problem = "a line's own chat.template needs a system that can fork"
        raise ge.UnsupportedError(problem, fix="give the template to the checkpoint's tokenizer")
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
    engine: ge.GenerationEngine,
    request: ge.VlmGenerationRequest,
    sender: int,
) -> NoReturn:
    """Send the text, or the error as JSON; a child that dies has sent nothing."""
    try:
        gc.disable()  # what is collected here may belong to a device of the parent
        limit_memory(TEMPLATE_BYTES)
        try:
            text = ge.render(
                engine,
                request.messages or (),
                chat=request.chat,
                tools=request.tools,
                continue_final=request.continue_final,
            )
            data = b"=" + text[: ge.MOST_TEXT + 1].encode("utf-8", "surrogatepass")
        except ge.GenEngineError as error:
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
        raise ge.RequestError(problem, fix=fix)
    if not data:
        problem = f"the line's chat template needs more than {TEMPLATE_BYTES >> 20} MiB of memory"
        raise ge.RequestError(problem, fix=fix)
    if data.startswith(b"!"):
        problem, fix = json.loads(data[1:])
        raise ge.RequestError(problem, fix=fix)
    text = data[1:].decode("utf-8", "surrogatepass")
    if len(text) > ge.MOST_TEXT:
        problem = f"the line's chat template wrote more than {ge.MOST_TEXT:,} characters"
        raise ge.RequestError(problem, fix=fix)
    return text


def with_rendered_text(request: ge.VlmGenerationRequest, text: str) -> ge.VlmGenerationRequest:
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


def limit_template(
    engine: ge.GenerationEngine, request: ge.VlmGenerationRequest
) -> ge.VlmGenerationRequest:
    """The request, with a chat template of its own rendered already. Raises GenEngineError."""
    if request.messages is None or request.chat.template is None:
        return request
    if request.chat.special_tokens == "escape":
        problem = "chat.special_tokens 'escape' beside a chat.template of the line"
        raise ge.UnsupportedError(problem, fix="use 'refuse', or the checkpoint's own template")
    return with_rendered_text(request, render_apart(engine, request))


def bounded(options: ge.GenerationOptions) -> ge.GenerationOptions:
    """Refuse what a file of lines cannot hold, and work without bound."""
    for name in ("replay", "logits"):
        if getattr(options, name):
            raise ge.OptionError(f"{name} is not for files", fix="use generate_text_batch")
    for name, most in (("n", MOST_SAMPLES), ("logprobs", MOST_LOGPROBS)):
        value = getattr(options, name) or 0
        if value > most:
            raise ge.OptionError(f"{name} is {value}", fix=f"it is {most} at most for a line")
    return options
