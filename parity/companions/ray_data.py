# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Generation as a step of Ray Data, on as many machines as Ray has: a companion of gen_engine.py.

Copy both and request_forms.py into your repository,
`make vendor DEST=acme/llm WITH="ray_data request_forms"`, and

    rows = ray.data.read_parquet("questions/")
    rows = rows.map_batches(
        Generate,
        fn_constructor_args=["Qwen/Qwen3-8B", {"max_new_tokens": 64}],
        fn_constructor_kwargs={"load": {"backend": "vllm"}},
        batch_size=512, concurrency=4, num_gpus=1,
    )
    rows.write_parquet("answers/")

Ray deals the batches out, starts workers anew that died, and gives their batches to others; nothing
here does that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Generate", "without"]

REQUEST = (
    "messages",
    "prompt",
    "prompt_token_ids",
    "images",
    "tools",
    "chat",
    "continue_final",
    "seed",
    "adapter",
    "structured",
    "vlm",
    "options",
    "penalties",
    "thinking",
)
BODY = "body"  # of OpenAI's chat completions, in place of the others
ANSWER = ("text", "finish_reason", "prompt_tokens", "completion_tokens")


class Generate:
    """A callable class for `ray.data.Dataset.map_batches`: each row is a request, and gets columns
    with its answer.

    model, load: what each worker loads, once.   options: GenerationOptions.   columns: which of the
    answer's fields to add, for example also "token_ids"; a name that the rows have already is
    refused.
    Rows have `messages`, `prompt` or `prompt_token_ids`, and what else a request has: `images`
    (bytes, paths that every worker can read, data: URLs), `seed`, `chat`, `structured`, ..., and
    `options`, `penalties` and `thinking` of their own; or an OpenAI `body`, whose answer is the
    column "choices", as JSON text. Mappings and lists of them may be JSON text. A row that cannot
    be answered has the reason in `error`, which is None elsewhere. Greedy and seeded answers do not
    depend on the worker."""

    def __init__(
        self,
        model: str,
        options: ge.GenerationOptions | Mapping[str, Any] | None = None,
        *,
        load: Mapping[str, Any] | None = None,
        columns: Sequence[str] = ANSWER,
    ) -> None:
        if unknown := [name for name in columns if name not in FIELDS]:
            problem = f"no fields {unknown} in an answer"
            raise ge.OptionError(problem, fix="known: " + ", ".join(FIELDS))
        self.options = ge.build(ge.GenerationOptions, options)
        self.columns = tuple(columns)
        self.engine = open_engine(model, {"progress": False, **(load or {})})
        self.forms = ge.companions.request_forms
        self.replies: Any = self.forms.Replies(self.engine) if CHOICES in columns else None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Columns -> the same columns and those of the answers, row by row."""
        if taken := [name for name in (*self.columns, "error") if name in batch]:
            problem = f"the rows have columns {taken} already"
            raise ge.OptionError(problem, fix="drop or rename them first")
        rows = [dict(zip(batch, values)) for values in zip(*batch.values())]
        answers = self._answers([requested(row) for row in rows])
        added: dict[str, list[Any]] = {name: [] for name in (*self.columns, "error")}
        for answer in answers:
            error = None
            if isinstance(answer, ge.GenEngineError):
                error = f"{type(answer).__name__}: {said(answer)}"
            added["error"].append(error)
            for name in self.columns:
                added[name].append(self._column(answer, name) if error is None else None)
        return {**batch, **{name: typed(name, values) for name, values in added.items()}}

    def _column(self, answer: Answer, name: str) -> Any:
        if name == STOP_REASON:  # a text or an id
            reason = answer.result.stop_reason
            return reason if reason is None else str(reason)
        if name != CHOICES:
            return plain(getattr(answer.result, name))
        samples = answer.result.samples or (answer.result,)
        return json.dumps(self.replies.choices(samples, answer.tools), ensure_ascii=False)

    def _answers(self, rows: Sequence[Row | ge.GenEngineError]) -> list[Any]:
        """An Answer or an error for each row, in order. Rows with images and without, and those
        with options or plugins of their own, are calls of their own."""
        answers: list[Any] = list(rows)
        calls: dict[Any, list[int]] = {}
        for place, row in enumerate(rows):
            if isinstance(row, Row):
                try:
                    options, settings = self.forms.bind_options(row.wanted, self.options)
                except ge.GenEngineError as error:
                    answers[place] = error
                else:
                    key = type(row.request), options, json.dumps(settings, sort_keys=True)
                    calls.setdefault(key, []).append(place)
        for (kind, options, settings), places in calls.items():
            for place, answer in zip(places, self._call(kind, options, settings, places, rows)):
                answers[place] = answer
        return answers

    def _call(
        self,
        kind: type[ge.TextGenerationRequest],
        options: ge.GenerationOptions,
        settings: str,
        places: Sequence[int],
        rows: Sequence[Any],
    ) -> list[Any]:
        """What one call of the engine gives the rows at these places."""
        engine = self.engine
        has_images = kind is ge.VlmGenerationRequest
        verb = engine.generate_vlm_batch if has_images else engine.generate_text_batch
        bind_request = self.forms.bind_request
        try:
            plugins = self.forms.make_plugins(engine, json.loads(settings))
            requests = [bind_request(rows[at].wanted, engine, rows[at].request) for at in places]
            results = verb(requests, options, plugins=plugins, on_error="return")
        except ge.GenEngineError as error:  # of the options, not of one row
            results = [error] * len(places)
        answers: list[Any] = []
        for place, result in zip(places, results):
            is_error = isinstance(result, ge.GenEngineError)
            answers.append(result if is_error else Answer(result, rows[place].wanted.tools))
        return answers


@dataclass(frozen=True, eq=False)
class Row:
    """What one row asks for.   wanted: request_forms.Wanted."""

    request: ge.TextGenerationRequest
    wanted: Any


@dataclass(frozen=True, eq=False)
class Answer:
    """A result, and the tools whose calls may be in it."""

    result: ge.GenerationResult
    tools: Sequence[Any]


CHOICES = "choices"
STOP_REASON = "stop_reason"
FIELDS = (
    "text",
    "raw_text",
    "token_ids",
    "prompt_token_ids",
    "finish_reason",
    STOP_REASON,
    "logprobs",
    "notes",
    "prompt_tokens",
    "completion_tokens",
    CHOICES,
)


def typed(name: str, values: Sequence[Any]) -> Any:
    """A column as an Arrow array of one type. Ray would guess it from the values of each block, and
    find another one where all rows failed, or none did."""
    arrow = ge.lazy_import("pyarrow")
    ids = arrow.list_(arrow.int64())
    types = {
        "token_ids": ids,
        "prompt_token_ids": ids,
        "logprobs": arrow.list_(arrow.float64()),
        "notes": arrow.list_(arrow.string()),
        "prompt_tokens": arrow.int64(),
        "completion_tokens": arrow.int64(),
    }
    return arrow.array(values, types.get(name, arrow.string()))


def open_engine(model: str, settings: Mapping[str, Any]) -> Any:
    """The engine of one worker."""
    return ge.load(model, **settings)


def said(error: ge.GenEngineError) -> str:
    error.index = None  # a place in the batch, which says nothing to a reader
    return str(error)


def unpacked(value: Any) -> Any:
    """What Ray hands over, as plain values: arrays as lists, and without the None that fills
    Arrow's structs."""
    if hasattr(value, "tolist") and not isinstance(value, (bytes, str)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: unpacked(part) for name, part in value.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [unpacked(part) for part in value]
    return value


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))  # numpy's None


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def wanted_of_row(row: Mapping[str, Any]) -> Any:
    """request_forms.Wanted of a row. Raises GenEngineError."""
    forms = ge.companions.request_forms
    fields = {}
    for name in (*REQUEST, BODY):
        value = unpacked(row.get(name))
        if not missing(value):
            fields[name] = value
    if isinstance(fields.get("seed"), float) and fields["seed"].is_integer():
        # numpy makes floats of whole numbers where some are missing
        fields["seed"] = int(fields["seed"])
    if BODY not in fields:
        return forms.read_fields(fields)
    body = fields.pop(BODY)
    if fields:
        raise ge.RequestError(f"{', '.join(fields)} beside body", fix="put them into the body")
    return forms.read_body(forms.parse_column(BODY, body) if isinstance(body, str) else body)


def requested(row: Mapping[str, Any]) -> Row | ge.GenEngineError:
    """What a row asks for, or why it asks for nothing."""
    try:
        wanted = wanted_of_row(row)
        fields = dict(wanted.request)
        request = ge.build(ge.VlmGenerationRequest, fields)
        if ge.holds_images(request):
            return Row(request, wanted)
        fields.pop("images", None)
        return Row(ge.build(ge.TextGenerationRequest, fields), wanted)
    except ge.GenEngineError as error:
        return error


def without(rows: Any, done: Any, on: str = "id") -> Any:
    """The rows of one data set whose `on` is not in another: what is left to do after a run that
    was stopped."""
    seen = {row[on] for row in done.select_columns([on]).iter_rows()}

    def left(table: Any) -> Any:
        return table.filter([name not in seen for name in table.column(on).to_pylist()])

    return rows.map_batches(left, batch_format="pyarrow")
