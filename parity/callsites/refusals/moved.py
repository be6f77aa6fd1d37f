"""The gateway's checks are the engine's."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gen_engine import (
    ChatTemplateOptions,
    DecodeOptions,
    GenEngineError,
    GenerationEngine,
    GenerationOptions,
    ModelLoadConfig,
    Plugin,
    StopOptions,
    TextGenerationRequest,
    VlmGenerationRequest,
    VlmPreprocessOptions,
    build,
    load,
)

CONTRACTS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        ModelLoadConfig,
        StopOptions,
        DecodeOptions,
        GenerationOptions,
        ChatTemplateOptions,
        VlmPreprocessOptions,
        TextGenerationRequest,
        VlmGenerationRequest,
    )
}
LEAST: dict[str, dict[str, Any]] = {  # without these there is none
    "ModelLoadConfig": {"model": "m"},
    "TextGenerationRequest": {"prompt": "a"},
    "VlmGenerationRequest": {"prompt": "a"},
}


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path, dtype="float32")


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


NEWER = ("background", "image_root")  # fields that came after these goldens


def defaults() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    base = {field.name for field in dataclasses.fields(TextGenerationRequest)}
    for name, kind in CONTRACTS.items():
        made = build(kind, LEAST.get(name))
        known = base if name == "VlmGenerationRequest" else LEAST.get(name, {}).keys()
        names = [field.name for field in dataclasses.fields(kind) if field.name not in (*known, *NEWER)]
        values = {field: plain(getattr(made, field)) for field in names}
        found[name] = {field: value for field, value in values.items() if not dataclasses.is_dataclass(value)}
    found["ModelLoadConfig"] = {"model": None, **found["ModelLoadConfig"]}  # it has none
    return found


def understood(name: str, value: Any, about: Sequence[str]) -> dict[str, Any]:
    contract, _, field = name.partition(".")
    try:
        made = build(CONTRACTS[contract], {**LEAST.get(contract, {}), field: value})
    except GenEngineError as error:
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        words = [word for word in (field, *about) if word in str(error)]
        return {"error": kind.__name__, "names": words}
    read = plain(getattr(made, field))
    return {"is": read, "type": type(read).__name__}


def bounds(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {field: [understood(field, value, row["about"]) for value in row["values"]] for field, row in fields.items()}


# == What is refused ==


class Ending(Plugin):
    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return False


class Odd(Plugin):
    """A plugin with these in place of its own."""

    name = "odd"

    def __init__(self, **fields: Any) -> None:
        self.should_stop = lambda token_ids, text: False
        for name, value in fields.items():
            setattr(self, name, value)


class Unreadable(Ending):
    name = "odd"

    @property
    def backends(self) -> Any:  # type: ignore[override]
        raise KeyError("no such field")


def on_one(wrong: Any) -> Any:
    """A hook of logits that is wrong for the prompt "Hello" alone."""

    def logits(token_ids: Any, logits: Any, prompt_token_ids: Any) -> Any:
        return wrong(logits) if len(prompt_token_ids) > 2 else logits

    return logits


def failing(*given: Any) -> Any:
    raise KeyError("the hook has a bug")


PLUGINS: dict[str, Any] = {
    "a class": [Ending],
    "no hook": [object()],
    "backends as text": [Odd(backends="hf")],
    "kinds as text": [Odd(kinds="text")],
    "criteria as one": [Odd(hf_stopping_criteria=failing)],
    "processors as one": [Odd(hf_logits_processors=failing)],
    "should_stop is text": [Odd(should_stop="yes")],
    "logits is a number": [Odd(logits=3)],
    "criterion is text": [Odd(hf_stopping_criteria=["yes"])],
    "field that raises": [Unreadable()],
    "beside a replay": [Ending()],
}
BROKEN: dict[str, dict[str, Any]] = {
    "logits of one": {"logits": on_one(lambda logits: logits[:1])},
    "logits of nothing": {"logits": on_one(lambda logits: None)},
    "logits of whole numbers": {"logits": on_one(lambda logits: logits.long())},
    "logits all banned": {"logits": on_one(lambda logits: logits * 0 - float("inf"))},
    "logits of NaN": {"logits": on_one(lambda logits: logits * float("nan"))},
}


def attempt(model_path: str, what: str, said: Any) -> Any:
    """Make the call that is refused."""
    few: dict[str, Any] = {"max_new_tokens": 4, "stop": {"ignore_eos": True}}
    if what in ("load", "other backend"):
        return load(model_path, **said).close()
    model = engine(model_path)
    two: Any = [{"prompt": "a"}, {"prompt": "Hello"}]
    if what == "options":
        return model.generate_text_batch(two, said, cache=False)
    if what == "pair":
        return model.score_batch([("a", "b"), tuple(said) if isinstance(said, list) else said])
    if what == "plugin":
        options = {"replay": [[5], [6]]} if said == "beside a replay" else few
        return model.generate_text_batch(two, options, plugins=PLUGINS[said])
    if what == "broken":
        answers = model.generate_text_batch(two, few, plugins=[Odd(**BROKEN[said])], on_error="return")
        return raise_the_only_error(answers)
    request = {"prompt": "a", "structured": {"json": said}} if what == "schema" else said
    return model.generate_text_batch([{"prompt": "a"}, request], {"max_new_tokens": 4})


def raise_the_only_error(answers: Sequence[Any]) -> None:
    [error] = (answer for answer in answers if isinstance(answer, GenEngineError))
    raise error


def refusal(model_path: str, what: str, call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        attempt(model_path, what, call["said"])
    except GenEngineError as error:
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        lacks = [word for word in call["about"] if word not in str(error)]
        return {"error": kind.__name__, "request": error.index, "names": [str(error)] if lacks else call["about"]}
    return {"error": None, "request": None, "names": []}


def refuse(model_path: str, what: str, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [refusal(model_path, what, call) for call in calls]


# == What is read from a checkpoint ==


def changed_copy(model_path: str, changes: Mapping[str, Mapping[str, Any]], folder: str) -> None:
    for file in Path(model_path).iterdir():
        if file.name not in changes:
            Path(folder, file.name).symlink_to(file.resolve())
            continue
        fields = {**json.loads(file.read_text("utf-8")), **changes[file.name]}
        kept = {name: value for name, value in fields.items() if value is not None}
        Path(folder, file.name).write_text(json.dumps(kept), "utf-8")


def checkpoint(model_path: str, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        changed_copy(model_path, changes, folder)
        with load(folder) as model:
            said = model.describe()
    return {name: said[name] for name in ("eos_token_ids", "pad_token_id", "max_model_len", "dtype")}


def checkpoints(model_path: str, changes: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return [checkpoint(model_path, change) for change in changes]
