# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Generation as a step of Ray Data, on as many machines as Ray has: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="ray_data"`, and

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
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import (
        GenEngineError,
        GenerationOptions,
        GenerationResult,
        OptionError,
        TextGenerationRequest,
        VlmGenerationRequest,
        build,
        load,
    )
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import (
        GenEngineError,
        GenerationOptions,
        GenerationResult,
        OptionError,
        TextGenerationRequest,
        VlmGenerationRequest,
        build,
        load,
    )

__version__ = "0.3.0"

__all__ = ["Generate", "without"]

REQUEST = (
    "messages",
    "prompt",
    "prompt_token_ids",
    "images",
    "tools",
    "seed",
    "adapter",
    "structured",
    "vlm",
)
AS_JSON = ("messages", "tools", "structured", "vlm")  # which a column may hold as JSON text
ANSWER = ("text", "finish_reason", "prompt_tokens", "completion_tokens")


class Generate:
    """A callable class for `ray.data.Dataset.map_batches`: each row is a request, and gets columns
    with its answer.

    model, load: what each worker loads, once.   options: GenerationOptions.   columns: which of the
    answer's fields to add, for example also "token_ids"; a name that the rows have already is
    refused.
    Rows have `messages`, `prompt` or `prompt_token_ids`, and what else a request has: `images`
    (bytes, paths that every worker can read, data: URLs), `seed`, `structured`, ... Lists of
    mappings may be JSON text. A row that cannot be answered has the reason in `error`, which is
    None elsewhere. Greedy and seeded answers do not depend on the worker."""

    def __init__(
        self,
        model: str,
        options: GenerationOptions | Mapping[str, Any] | None = None,
        *,
        load: Mapping[str, Any] | None = None,
        columns: Sequence[str] = ANSWER,
    ) -> None:
        if unknown := [name for name in columns if name not in FIELDS]:
            problem = f"no fields {unknown} in an answer"
            raise OptionError(problem, fix="known: " + ", ".join(FIELDS))
        self.options = build(GenerationOptions, options)
        self.columns = tuple(columns)
        self.engine = open_engine(model, {"progress": False, **(load or {})})

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Columns -> the same columns and those of the answers, row by row."""
        if taken := [name for name in (*self.columns, "error") if name in batch]:
            problem = f"the rows have columns {taken} already"
            raise OptionError(problem, fix="drop or rename them first")
        rows = [dict(zip(batch, values)) for values in zip(*batch.values())]
        answers = self._answers([requested(row) for row in rows])
        added: dict[str, list[Any]] = {name: [] for name in (*self.columns, "error")}
        for answer in answers:
            error = None
            if isinstance(answer, GenEngineError):
                error = f"{type(answer).__name__}: {said(answer)}"
            added["error"].append(error)
            for name in self.columns:
                added[name].append(plain(getattr(answer, name)) if error is None else None)
        return {**batch, **added}

    def _answers(self, requests: Sequence[Any]) -> list[GenerationResult | GenEngineError]:
        """Answers and errors, in order. Those with pictures and those without are two calls."""
        answers: list[Any] = list(requests)
        for kind, verb in (
            (TextGenerationRequest, self.engine.generate_text_batch),
            (VlmGenerationRequest, self.engine.generate_vlm_batch),
        ):
            places = [place for place, request in enumerate(requests) if type(request) is kind]
            results = verb([requests[place] for place in places], self.options, on_error="return")
            for place, result in zip(places, results):
                answers[place] = result
        return answers


FIELDS = (
    "text",
    "raw_text",
    "token_ids",
    "prompt_token_ids",
    "finish_reason",
    "stop_reason",
    "logprobs",
    "notes",
    "prompt_tokens",
    "completion_tokens",
)


def open_engine(model: str, settings: Mapping[str, Any]) -> Any:
    """Under a name of its own: `load` is a parameter above."""
    return load(model, **settings)


def said(error: GenEngineError) -> str:
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


def fields_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The request's fields in a row. Raises OptionError for a column that is not JSON."""
    fields = {}
    for name in REQUEST:
        value = unpacked(row.get(name))
        if missing(value):
            continue
        is_json = name in AS_JSON and isinstance(value, str)
        fields[name] = parse_column(value) if is_json else value
    if isinstance(fields.get("seed"), float) and fields["seed"].is_integer():
        # numpy makes floats of whole numbers where some are missing
        fields["seed"] = int(fields["seed"])
    return fields


def parse_column(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        problem = f"a column of the row is not JSON: {why}"
        raise OptionError(problem, fix="write it as json.dumps does") from error


def has_images(request: VlmGenerationRequest) -> bool:
    if request.images:
        return True
    for message in request.messages or ():
        for part in message.get("content") or ():
            if isinstance(part, Mapping) and part["type"] != "text":
                return True
    return False


def requested(
    row: Mapping[str, Any],
) -> TextGenerationRequest | VlmGenerationRequest | GenEngineError:
    """The request in a row, or why there is none."""
    try:
        fields = fields_of_row(row)
        request = build(VlmGenerationRequest, fields)
        if has_images(request):
            return request
        fields.pop("images", None)
        return build(TextGenerationRequest, fields)
    except GenEngineError as error:
        return error


def without(rows: Any, done: Any, on: str = "id") -> Any:
    """The rows of one data set whose `on` is not in another: what is left to do after a run that
    was stopped."""
    seen = {row[on] for row in done.select_columns([on]).iter_rows()}

    def left(table: Any) -> Any:
        return table.filter([name not in seen for name in table.column(on).to_pylist()])

    return rows.map_batches(left, batch_format="pyarrow")
