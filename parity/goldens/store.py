"""Goldens: what the old code did, one readable file per case. Reading is strict, writing is deterministic.

    golden/<site>/<case>.json        one case (the layout is that of `Case`)
    golden/sites.json                site -> the old function, the new function, how the goldens were made
    golden/accepted.json             differences that someone wants (parity/goldens/acceptance.py)
    golden/blobs/<sha256>.<ext>      pictures and files that cases refer to
    golden/environments/<id>.json    versions and machine, referred to by cases, never compared

A file is written for the one who reviews it: fixed order of keys, UTF-8, text as an array of lines, numbers of one list
on one line, floats to 6 digits, no times, no host names. A value that JSON has no word for is an object with one key
that begins with `$`:

    {"$lines": ["a", "b"]}   a string of several lines        {"$file": "ab12….jpg", "name": "in/x.jpg"}   a file's path
    {"$image": "ab12….png"}  a PIL image, as pixels           {"$object": "torch.device"}  nothing that can be replayed
    {"$record": "pkg.Request", "fields": {...}}    a dataclass or pydantic model that the code has imported
    {"$settings": "vllm.SamplingParams", "fields": {...}}    settings of a library (SETTINGS_CLASSES), what is not its
                             default
    {"$scratch": "out/a"}    a path in a temporary folder      {"$bytes": "…"}           base64
    {"$float": "nan"}        what JSON cannot write            {"$set": […]}             a set, sorted
    {"$pairs": [[1, "a"]]}   a mapping of other keys than texts; a key that is a list was a tuple

A case holds one row per sequence that the model generated:

    messages      the chat as it was given to the template
    template      {"sha256", "arguments"}: the template and what it was told beside the chat
    prompt_text   the prompt as text, each picture as one placeholder
    prompt_ids    the ids that the model saw, without padding, pictures as their image tokens
    images        [{"sha256" of the RGB pixels, "size" [width, height], "grid", "tokens", "budget", "values", "blob"}];
                  then videos, which have "fps", "indices" of the frames that the model saw and "placeholder"; the
                  frames are one picture, one below the other
    request       {"number", "sample", "seed"}: which request of the call the row answers, and that one's own seed; of
                  what an engine scores {"response"}: how many of the ids are the response; {"cut", "behind"}: which
                  part of a text the ids are, or how many stand behind it; {"structure"}: the form asked for;
                  {"script_seed"}: the seed that the script gave before this call, in whose place the recorder gave its
                  own
    scored        true: ids that were only read
    loop          of code that chooses by itself: "likeliest", "chosen" or "chosen, all but the last"
    batch         {"rows", "side" of the padding, "pads" of this row, "masked"}
    inputs        what reached the model's forward with the ids: {"keys" of other tensors, "marks" of its tokens,
                  "positions", "pictures", "adapters"}
    model         {"class", "dtype", "attention", "quantization", "weights", "files", "tensors", "config", "path",
                  "backend"}
    sampling      each setting as {"value", "from"}: caller, checkpoint or default
    stop          likewise: end_ids, strings, max_new_tokens, min_new_tokens, criteria; include_stop where it is on
    output_ids    what was generated, with the id that ended it, without padding
    finish        of code with stopping criteria of its own: {"criteria": {class: after how many ids it first called the
                  row done}}, the library's own criteria among them
    decode        {"ids", "skip_special_tokens", "clean_up"}: which ids became text, and how
    text          what decoding gave
    decodes       where these ids were decoded more than once: what `decode` and `text` say, each time

`request`, `inputs`, `finish` and `decodes` are younger than this format and may be absent: nothing was seen of them.
`source` and `digest` are younger, too: a file that has a digest, and was edited, is not
read.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import fnmatch
import hashlib
import importlib
import inspect
import io
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from parity.goldens.acceptance import Accepted
from parity.goldens.folder import RESTORE, GoldenFolder, is_base_name
from parity.goldens.folder import GoldenError as GoldenError  # users take it from here

FORMAT = 1
BLOBS, ENVIRONMENTS = "blobs", "environments"  # folders
RESERVED = {"models", BLOBS, ENVIRONMENTS}
SITES_JSON, ACCEPTED_JSON = "sites.json", "accepted.json"
SUFFIX = ".json"
ROW_KEYS = (
    "messages", "template", "prompt_text", "prompt_ids", "images", "request", "scored", "loop", "batch", "inputs",
    "model", "sampling", "stop", "output_ids", "finish", "decode", "text", "decodes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded call of a call site: arguments, rows, and what it finally returned or raised.

    repeats: False where the old code gave something else when it was run again, None where that was not tried.
    changing: parts of the value that were others each time, with the same rows (parity/record/changing.py).
    samples: values of further runs with other seeds, for comparing distributions.
    defaults: stop strings of the function's own, of parameters that the call left out; absent in older goldens.
    source: digest of the source that was recorded (parity/record/source.py); "" in older goldens, and of calls outside
    any function.
    state: what attributes of the object were that change from call to call.   left: places whose content after the call
    stands in the value, beside "returned" (parity/record/state.py).
    digest: that of the file which it was read from; "" in one that older releases wrote.
    """

    site: str
    case: str
    function: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    value: Any = None
    raised: str | None = None
    repeats: bool | None = None
    changing: tuple[Mapping[str, Any], ...] = ()
    samples: tuple[Any, ...] = ()
    environment: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False)
    source: str = field(default="", compare=False)
    state: Mapping[str, Any] = field(default_factory=dict, compare=False)
    left: tuple[str, ...] = field(default=(), compare=False)
    digest: str = field(default="", compare=False)

    @property
    def stated(self) -> dict[str, Any]:
        """The arguments, and the defaults of those that were not given."""
        return {**self.defaults, **self.arguments}

    def to_json(self) -> dict[str, Any]:
        """Plain values in the order of the file."""
        said = {
            "format": FORMAT,
            **{
                f.name: getattr(self, f.name)
                for f in dataclasses.fields(self)
                if f.name not in ("rows", "changing", "samples", "left", "digest")
            },
            "changing": list(self.changing),
            "rows": [{key: row[key] for key in ROW_KEYS if row.get(key) is not None} for row in self.rows],
            "samples": list(self.samples),
            "left": list(self.left),
        }
        return {key: value for key, value in said.items() if value not in (None, [], {}, "") or key == "value"}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Case:
        """Raises TypeError for what is no case, and says where in it."""
        for place, problem in case_faults(said):
            raise TypeError(f"{place} {problem}")
        rest = {key: value for key, value in said.items() if key != "format"}
        return cls(**{**rest, **{name: tuple(rest.get(name, ())) for name in ("rows", "changing", "samples", "left")}})


# == What a case may hold ==

KINDS: dict[type, str] = {
    str: "a text", dict: "an object", list: "a list", bool: "true or false", int: "a whole number",
}  # fmt: skip
CASE_TYPES: dict[str, type] = {
    "site": str, "case": str, "function": str, "arguments": dict, "rows": list, "raised": str, "repeats": bool,
    "changing": list, "samples": list, "environment": str, "defaults": dict, "source": str, "state": dict,
    "left": list, "digest": str,
}  # fmt: skip
ROW_TYPES: dict[str, type] = {
    "messages": list, "template": dict, "prompt_text": str, "prompt_ids": list, "images": list, "batch": dict,
    "model": dict, "sampling": dict, "stop": dict, "output_ids": list, "finish": dict, "decode": dict, "text": str,
    "request": dict, "scored": bool, "loop": str, "inputs": dict, "decodes": list,
}  # fmt: skip
IDS = ("prompt_ids", "output_ids")  # what every row has
BLOB = re.compile(r"[0-9a-f]{64}(\.[^/\\\0]{1,32})?")
Fault = tuple[str, str]  # place, problem


def keep_offline() -> None:
    """No golden makes this process, or one that it starts, ask a hub: what it names is here or is
    refused. HF_HUB_OFFLINE=0 in the environment allows it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def case_faults(said: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with a case. Of another shape it would not be compared as it should, and might pass."""
    for name, kind in CASE_TYPES.items():
        if name in said and not isinstance(said[name], kind):
            yield name, f"is not {KINDS[kind]}"
            return
    if "environment" in said and not is_base_name(said["environment"]):
        yield "environment", "is not the name of a file alone"
    for number, row in enumerate(said.get("rows", ())):
        yield from ((f"rows[{number}]{place}", problem) for place, problem in row_faults(row))
    for number, part in enumerate(said.get("changing", ())):
        if not is_changing_part(part):
            yield f"changing[{number}]", "does not say where in the value it stands"
    yield from object_faults(said.get("arguments", {}), "arguments")
    yield from object_faults(said.get("state", {}), "state")
    yield from left_faults(said)


def left_faults(said: Mapping[str, Any]) -> Iterator[Fault]:
    """The places that are named are those that the value has."""
    places, value = said.get("left", []), said.get("value")
    if not all(isinstance(place, str) for place in places):
        yield "left", "is not a list of texts"
    elif places and not (isinstance(value, dict) and value.keys() == {"returned", *places}):
        yield "left", "names other places than the value has"


def is_changing_part(part: Any) -> bool:
    """Whether an entry says where in the value it stands, and of a text both its ends."""
    if not isinstance(part, dict) or not isinstance(part.get("at"), list):
        return False
    texts = [part[name] for name in ("before", "after") if name in part]
    is_place = all(isinstance(step, (str, int)) for step in part["at"])
    return is_place and len(texts) != 1 and all(isinstance(text, str) for text in texts)


def row_faults(row: Any) -> Iterator[Fault]:
    if not isinstance(row, dict):
        yield "", "is not an object"
        return
    for name in sorted({*row, *IDS}):
        kind = ROW_TYPES.get(name)
        if name not in ROW_KEYS:
            yield f".{name}", "is nothing that a row has"
        elif name not in row or (kind is not None and not isinstance(row[name], kind)):
            yield f".{name}", f"is not {KINDS[kind or list]}"
        elif name in IDS and not all(type(i) is int for i in row[name]):
            yield f".{name}", "is not a list of ids"
        elif name in ("messages", "images") and not all(isinstance(entry, dict) for entry in row[name]):
            yield f".{name}", "is not a list of objects"
        elif name == "images" and not all(is_blob_name(entry.get("blob", "0" * 64)) for entry in row[name]):
            yield f".{name}", "holds something that is no name of a blob"
        elif name in ("sampling", "stop"):
            bad = [key for key, entry in row[name].items() if not isinstance(entry, dict) or "value" not in entry]
            yield from ((f".{name}.{key}", "has no value and source") for key in bad)
    template = row.get("template")
    if isinstance(template, dict) and not (
        isinstance(template.get("sha256"), str) and isinstance(template.get("arguments"), dict)
    ):
        yield ".template", "has no sha256 and arguments"
    if isinstance(row.get("finish"), dict) and not is_finish(row["finish"]):
        yield ".finish", "has no criteria with a number of ids each"


def is_finish(said: Mapping[str, Any]) -> bool:
    criteria = said.get("criteria")
    return isinstance(criteria, dict) and all(type(count) is int for count in criteria.values())


def is_case_file(name: str) -> bool:
    """Whether a file of a site's folder is a golden."""
    return name.endswith(SUFFIX) and name != SUFFIX


def is_below(path: Any) -> bool:
    """Whether a path stays in the folder that it is put under."""
    parts = path.split("/") if isinstance(path, str) else [""]
    return all(is_base_name(part) for part in parts)


def is_blob_name(name: Any) -> bool:
    return isinstance(name, str) and BLOB.fullmatch(name) is not None


def is_base64(text: Any) -> bool:
    try:
        return base64.b64decode(text, validate=True) is not None
    except (TypeError, ValueError):
        return False


def is_settings(value: Mapping[str, Any]) -> bool:
    known = isinstance(value["$settings"], str) and value["$settings"] in SETTINGS_CLASSES
    return known and isinstance(value.get("fields"), dict)


def is_set(value: Any) -> bool:
    """Whether all that a list holds may stand in a set; tuples are written as lists."""
    entries = value if isinstance(value, list) else [{}]
    flat = [inner for entry in entries for inner in (entry if isinstance(entry, list) else [entry])]
    return not any(isinstance(inner, (dict, list)) for inner in flat)


def is_pairs(value: Any) -> bool:
    """Whether a list holds keys with a value each."""
    pairs: list[Any] = value if isinstance(value, list) else [None]
    return all(isinstance(pair, list) and len(pair) == 2 for pair in pairs) and is_set([pair[0] for pair in pairs])


def has_other_keys(value: Mapping[Any, Any]) -> bool:
    """Whether the keys of a mapping are plain, and not texts alone."""
    flat = [inner for key in value for inner in (key if isinstance(key, tuple) else (key,))]
    is_plain = all(inner is None or isinstance(inner, (str, int, float)) for inner in flat)
    return is_plain and not all(isinstance(key, str) for key in value)


def hashable(entry: Any) -> Any:
    return tuple(entry) if isinstance(entry, list) else entry


# $-object -> what its value must be, and how that is said.
OBJECTS: dict[str, tuple[Any, str]] = {
    "$file": (is_blob_name, "is no name of a blob"),
    "$image": (is_blob_name, "is no name of a blob"),
    "$scratch": (is_below, "is no path below the scratch folder"),
    "$bytes": (is_base64, "is no base64"),
    "$set": (is_set, "is not a list of plain values"),
    "$pairs": (is_pairs, "is not a list of plain keys with a value each"),
    "$object": (lambda v: isinstance(v, str), "is no name of a type"),
}


def object_faults(value: Any, place: str) -> Iterator[Fault]:
    """What is wrong with the $-objects in recorded arguments. Files keep where they lay below the working directory,
    or their base name, and nothing else of a path."""
    if isinstance(value, dict):
        for key, entry in value.items():
            fits, problem = OBJECTS.get(key, (lambda v: True, ""))
            if (len(value) == 1 or value.keys() == {"$file", "name"}) and not fits(entry):
                yield f"{place}.{key}", f"{problem}: {str(entry)[:60]!r}"
        if value.keys() == {"$file", "name"} and not is_below(value["name"]):
            yield f"{place}.name", f"is no path below the folder it is put in: {str(value['name'])[:60]!r}"
        if value.keys() == {"$record", "fields"} and not (
            isinstance(value["$record"], str) and isinstance(value["fields"], dict)
        ):
            yield f"{place}.$record", "is no name of a dataclass with its fields"
        if "$settings" in value and value.keys() <= {"$settings", "fields"} and not is_settings(value):
            yield f"{place}.$settings", f"is none of {', '.join(SETTINGS_CLASSES)} with its fields"
        for key, entry in value.items():
            yield from object_faults(entry, f"{place}.{key}")
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from object_faults(entry, f"{place}[{number}]")


def by_base_names(value: Any) -> Any:
    """Recorded arguments in which files have their base names alone, as goldens of older releases have them."""
    if isinstance(value, Mapping):
        if value.keys() == {"$file", "name"}:
            return {**value, "name": value["name"].rpartition("/")[2]}
        return {key: by_base_names(entry) for key, entry in value.items()}
    return [by_base_names(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def objects_in(value: Any, key: str = "$object") -> list[str]:
    """Types of what in a recorded argument is no data; with "$record", of its dataclasses."""
    if isinstance(value, Mapping):
        own = [str(value[key])] if key in value and value.keys() <= {key, "fields"} else []
        return own + [name for entry in value.values() for name in objects_in(entry, key)]
    return [name for entry in value for name in objects_in(entry, key)] if isinstance(value, (list, tuple)) else []


# Classes of libraries and of Python whose instances are plain settings: module and class. A golden can name no
# other one, and nothing but these modules is imported for it.
SETTINGS_CLASSES: dict[str, tuple[str, str]] = {
    "transformers.GenerationConfig": ("transformers.generation.configuration_utils", "GenerationConfig"),
    "vllm.SamplingParams": ("vllm.sampling_params", "SamplingParams"),
    "vllm.StructuredOutputsParams": ("vllm.sampling_params", "StructuredOutputsParams"),
    "argparse.Namespace": ("argparse", "Namespace"),
    "types.SimpleNamespace": ("types", "SimpleNamespace"),
}
OF_ANY_FIELDS = {"argparse.Namespace", "types.SimpleNamespace"}  # none has a default
NOT_MOVED: Mapping[str, str] = {}
BY_ID = {"logit_bias"}  # fields whose keys are token ids, which JSON writes as text


def settings_in(value: Any) -> tuple[str, dict[str, Any]] | None:
    """(name in SETTINGS_CLASSES, the fields that differ from the default) of a library's settings;
    None for anything else."""
    kind = type(value)
    place = kind.__module__, kind.__qualname__
    name = next((name for name, known in SETTINGS_CLASSES.items() if known == place), None)
    if name is None:
        return None
    if name in OF_ANY_FIELDS:
        return name, dict(vars(value))
    fields, default = public_fields(value), defaults_of(kind)
    return name, {key: entry for key, entry in fields.items() if entry != default[key]}


def public_fields(settings: Any) -> dict[str, Any]:
    """The fields of a library's settings; those of a GenerationConfig as it writes them itself."""
    if hasattr(settings, "to_dict"):
        fields = settings.to_dict()
    else:
        fields = {name: getattr(settings, name) for name in field_names(type(settings))}
    return {n: v for n, v in fields.items() if not n.startswith("_") and n != "transformers_version"}


def field_names(kind: Any) -> Iterable[str]:
    names: Iterable[str] = getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__
    return names


def defaults_of(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):  # of which none may be made without any field
        own = {f.name: f.default for f in dataclasses.fields(kind)}
        return {name: value for name, value in own.items() if not name.startswith("_")}
    return public_fields(kind())


def settings_from(name: str, fields: Mapping[str, Any]) -> Any:
    """A library's settings as they were.   fields: restored.

    Raises GoldenError where the library is not here, or its class has not these fields."""
    module, attribute = SETTINGS_CLASSES[name]
    try:
        kind = getattr(importlib.import_module(module), attribute)
        known = fields if name in OF_ANY_FIELDS else defaults_of(kind)
        if strange := sorted(fields.keys() - known.keys()):
            raise TypeError(f"it has no {', '.join(strange)} here")
        typed = {n: {int(k): v for k, v in fields[n].items()} for n in BY_ID & fields.keys()}
        return kind(**{**fields, **typed})
    except Exception as error:  # the library's own kinds among them
        raise GoldenError(f"an argument was a {name}, which cannot be made: {error}") from error


def record_of(name: str, fields: Mapping[str, Any], moved: Mapping[str, str]) -> Any:
    """An instance of a dataclass or of a pydantic model as it was. No code of it runs, neither now nor when it is gone:
    the class must be one that is imported already, and has none for that.   moved: module -> where its classes are now,
    if they are not where they were.

    Raises GoldenError where it is not, or has not these fields."""
    places = [f"{new}{name[len(old) :]}" for old, new in moved.items() if name.startswith(f"{old}.")]
    kind: Any = next(filter(None, map(class_at, [*places, name])), None)
    known = fields_declared(kind) if kind is not None else None
    parts = [*fields, *(PYDANTIC_STATE if is_pydantic(kind) else ())]
    why = "which the moved code does not import" if known is None or {*known} != {*fields} else code_in(kind, parts)
    if not why:
        try:
            made = object.__new__(kind)
            if is_pydantic(kind):
                return filled_model(made, fields)
            for own, value in fields.items():
                object.__setattr__(made, own, value)
            return made
        except (TypeError, AttributeError) as error:  # a kind of what C has made, or without a place for a field
            why = f"which cannot be made of them: {error}"
    raise GoldenError(
        f"an argument was a {name}, a class of the fields {', '.join(fields)}, {why}; say in sites.json what makes "
        'that argument, "arguments": {"NAME": "pkg.setup:make"}'
    )


def class_at(place: str) -> type | None:
    """A class of a module that is imported already, by the names of both."""
    module = max((known for known in sys.modules if place.startswith(f"{known}.")), key=len, default="")
    found: Any = sys.modules.get(module)
    for part in place[len(module) + 1 :].split("."):
        found = vars(found).get(part) if isinstance(found, (type, ModuleType)) else None
    return found if isinstance(found, type) else None


def is_pydantic(kind: Any) -> bool:
    """Whether a class is a pydantic model (2.x), as its metaclass made it."""
    names = ("__pydantic_fields__", "__pydantic_validator__")
    return all(inspect.getattr_static(kind, name, None) is not None for name in names)


def fields_declared(kind: Any) -> Any:
    """The fields of a dataclass or a pydantic model by their names; None for any other class."""
    name = "__pydantic_fields__" if is_pydantic(kind) else "__dataclass_fields__"
    return inspect.getattr_static(kind, name, None)


PYDANTIC_STATE = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


def filled_model(made: Any, fields: Mapping[str, Any]) -> Any:
    """A pydantic model with these fields, past its validators."""
    for name, value in zip(PYDANTIC_STATE, (dict(fields), set(fields), None, None)):
        object.__setattr__(made, name, value)
    return made


def code_in(kind: type, fields: Iterable[str]) -> str:
    """What of a class would run when an instance of these fields is made, or is gone; "" if nothing."""
    for name in ("__del__", *fields):
        found = inspect.getattr_static(kind, name, None)
        if name == "__del__" and found is not None:
            return "which has a __del__"
        if hasattr(type(found), "__set__") and not isinstance(found, (MemberDescriptorType, GetSetDescriptorType)):
            return f"whose field {name} is a {type(found).__name__}"
    return ""


# == Writing and reading one file ==


def coded(value: Any) -> Any:
    """A plain value as it stands in a file."""
    if isinstance(value, str):
        return {"$lines": value.split("\n")} if "\n" in value else value
    if isinstance(value, float):
        return as_written(value) if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Mapping):
        return {str(key): coded(entry) for key, entry in value.items()}
    return [coded(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def as_written(number: float) -> float:
    """A number with the digits that a golden holds of it."""
    return float(f"{number:.6g}")


def decoded(value: Any) -> Any:
    """The plain value that stands in a file. Blobs stay what they are: `Store.restore` opens them."""
    if isinstance(value, dict):
        if value.keys() == {"$lines"}:
            lines = value["$lines"]
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise ValueError(f'"$lines" is not a list of texts: {str(lines)[:60]}')
            return "\n".join(lines)
        if value.keys() == {"$float"}:
            if not isinstance(value["$float"], str):
                raise ValueError(f'"$float" is not a text: {str(value["$float"])[:60]}')
            return float(value["$float"])
        return {k: decoded(v) for k, v in value.items()}
    return [decoded(entry) for entry in value] if isinstance(value, list) else value


def dump(value: Any, depth: int = 0) -> str:
    """JSON for a reader: numbers of one list on one line, everything else on lines of its own."""
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict) and value:
        line = json.dumps(value, ensure_ascii=False)
        if (
            depth
            and len(line) <= 100
            and "$lines" not in value
            and not any(isinstance(entry, dict) for entry in value.values())
        ):
            return line
        body = (f"{pad}{json.dumps(key, ensure_ascii=False)}: {dump(entry, depth + 1)}" for key, entry in value.items())
        return "{\n" + ",\n".join(body) + f"\n{end}}}"
    if isinstance(value, list) and value and not all(isinstance(entry, (int, float)) for entry in value):
        return "[\n" + ",\n".join(pad + dump(entry, depth + 1) for entry in value) + f"\n{end}]"
    return json.dumps(value, ensure_ascii=False)


SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: no UTF-8, and an escape in JSON


def digest_of(said: Mapping[str, Any]) -> str:
    """Tells a golden from one that somebody edited, whatever its layout and order of keys.   said: as it is read."""
    content = coded({key: entry for key, entry in said.items() if key != "digest"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST]


def json_bytes(value: Any) -> bytes:
    """A value as a file holds it."""
    text = SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", dump(coded(value)))
    return f"{text}\n".encode()


DEEPEST = 200  # objects in objects; no case has a tenth of it, and every walk over a golden ends


def depth_of(value: Any) -> int:
    depth, layer = 0, [value]
    while layer and depth <= DEEPEST:
        depth += 1
        nested = (entry.values() if isinstance(entry, dict) else entry for entry in layer)
        layer = [inner for entries in nested for inner in entries if isinstance(inner, (dict, list))]
    return depth


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for a name that stands in it twice: a reader would take the first, and
    Python takes the last."""
    entries = dict[str, Any]()
    for name, entry in pairs:
        if name in entries:
            raise ValueError(f"{name[:80]!r} stands twice in an object")
        entries[name] = entry
    return entries


def parsed(text: str) -> Any:
    """JSON, no deeper than DEEPEST, each name once in its object. Raises ValueError."""
    deep = f"it is nested deeper than {DEEPEST} levels"
    try:
        value = json.loads(text, object_pairs_hook=object_of)
    except RecursionError:
        raise ValueError(deep) from None
    if isinstance(value, (dict, list)) and depth_of(value) > DEEPEST:
        raise ValueError(deep)
    return decoded(value)


DIGEST = 32  # hexadecimal digits of a sha256: against a slip of a hand, and short in a review
MOST_JSON = 64 << 20  # bytes; no golden of a call site is a tenth as large
MOST_BLOB = 512 << 20


def image_bytes(image: Any) -> bytes:
    """A picture as PNG, with its EXIF, so that it comes back as it was."""
    file = io.BytesIO()
    image.save(file, "PNG", exif=image.getexif().tobytes() if image.getexif() else b"")
    return file.getvalue()


# == A folder of goldens ==


SETTINGS: dict[str, type] = {
    "moved": dict, "functions": list, "arguments": dict, "old_arguments": dict, "backends": list, "cases": dict,
    "load": dict, "exit_code": int, "argv": list,
}  # fmt: skip


OF_TEXTS = ("moved", "arguments", "old_arguments")  # settings whose values are texts
LOAD_FIELDS = (  # of the engine's ModelLoadConfig
    "model", "backend", "dtype", "device", "attn_implementation", "trust_remote_code", "revision", "max_model_len",
    "max_batch_tokens", "max_batch_size", "adapters", "logits_hooks", "decoder", "cache", "fallback_backend",
    "logprobs_mode",
    "progress", "hf_kwargs", "vllm_kwargs",
)  # fmt: skip
BACKENDS = ("hf", "vllm")


class SettingsError(GoldenError):
    """sites.json or the command line is wrong, which says nothing of any golden."""


def unknown_settings(site: str, entry: Mapping[str, Any]) -> Iterator[Fault]:
    """Names, and backends, that nothing reads."""
    yield from unknown_names(site, entry, SETTINGS, "setting")
    asked = entry.get("backends")
    strange = [one for one in asked if one not in BACKENDS] if isinstance(asked, list) else []
    if strange:
        yield f"{site}.backends", f"holds {strange[0]!r}, which is neither hf nor vllm"
    load = entry.get("load")
    if isinstance(load, dict):
        yield from unknown_names(f"{site}.load", load, BACKENDS, "backend")
        for backend, fields in load.items():
            if isinstance(fields, dict):
                yield from unknown_names(f"{site}.load.{backend}", fields, LOAD_FIELDS, "field of ModelLoadConfig")
            else:
                yield f"{site}.load.{backend}", f"is not {KINDS[dict]}"


def unknown_names(place: str, entry: Mapping[str, Any], known: Iterable[str], kind: str) -> Iterator[Fault]:
    for name in sorted(entry.keys() - {*known}):
        close = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        yield f"{place}.{name}", f"is no {kind}; {guess}"


def settings_faults(said: Any) -> Iterator[Fault]:
    """What is wrong with a sites.json."""
    if not isinstance(said, dict) or not all(isinstance(entry, dict) for entry in said.values()):
        yield "it", "is not an object of objects, one per site"
        return
    for site, entry in said.items():
        yield from unknown_settings(site, entry)
        for name, kind in SETTINGS.items():
            found = entry.get(name, kind())
            inner = found.values() if name in OF_TEXTS and isinstance(found, dict) else found
            if name == "cases" and isinstance(found, dict):
                inner = [text for own in found.values() for text in (own if isinstance(own, list) else [None])]
            if not isinstance(found, kind):
                yield f"{site}.{name}", f"is not {KINDS[kind]}"
            elif name not in ("load", "exit_code") and not all(isinstance(text, str) for text in inner):
                yield f"{site}.{name}", "holds something that is not a text"


class Store:
    """The folder of goldens."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.folder = GoldenFolder(root)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def read_json(self, *names: str) -> Any:
        """What a file of JSON says. Raises GoldenError."""
        content = self.folder.read(*names, most=MOST_JSON)
        try:
            return parsed(content.decode())
        except ValueError as error:
            raise GoldenError(f"{self.folder.place(*names)} cannot be read: {error}; {RESTORE}") from error

    def write_json(self, value: Any, *names: str) -> Path:
        return self.folder.write(json_bytes(value), *names)

    def sites(self) -> list[str]:
        """Names of the folders that hold cases, sorted."""
        return [name for name in self.folder.folders() if name not in RESERVED and self.names(name)]

    def settings(self) -> dict[str, dict[str, Any]]:
        """sites.json: what belongs to a site beside its cases."""
        try:
            said = self.read_json(SITES_JSON) if self.folder.exists(SITES_JSON) else {}
        except GoldenError as error:
            raise SettingsError(str(error)) from error
        for place, problem in settings_faults(said):
            raise SettingsError(f"{self.root / SITES_JSON}: {place} {problem}; correct it")
        return dict(said)

    def set_site(self, site: str, **changes: Any) -> None:
        """Change what belongs to a site; None takes a name away."""
        said = self.settings()
        said[site] = {name: entry for name, entry in {**said.get(site, {}), **changes}.items() if entry is not None}
        self.write_json(dict(sorted(said.items())), SITES_JSON)

    def drop_site(self, site: str) -> None:
        """Forget what belongs to a site beside its cases."""
        said = self.settings()
        if said.pop(site, None) is not None:
            self.write_json(said, SITES_JSON)

    def rename_site(self, old: str, new: str) -> None:
        """Give the cases and settings of a site to one that is not there yet; one without a digest stays so."""
        if new in RESERVED or not is_base_name(new) or not new.isprintable():
            raise ValueError(f"{new!r} cannot be the name of a site; choose another")
        for name in self.names(old):
            file = f"{name}{SUFFIX}"
            said = {**self.read_json(old, file), "site": new}
            if "digest" in said:
                said["digest"] = digest_of(said)
            self.write_json(said, new, file)
        for name in self.names(old):
            self.folder.remove(old, f"{name}{SUFFIX}")
        settings = self.settings()
        if old in settings:
            self.drop_site(old)
            self.set_site(new, **settings[old])

    def path(self, site: str, case: str) -> Path:
        return self.folder.place(site, f"{case}{SUFFIX}")

    def exists(self, site: str, case: str) -> bool:
        return self.folder.exists(site, f"{case}{SUFFIX}")

    def size(self, site: str, case: str) -> int:
        """Bytes of a golden's file."""
        return self.folder.size(site, f"{case}{SUFFIX}")

    def names(self, site: str) -> list[str]:
        return [name.removesuffix(SUFFIX) for name in self.folder.files(site) if is_case_file(name)]

    def read(self, site: str, case: str) -> Case:
        """One golden. Raises GoldenError for one that is broken, of another format, or in the wrong place."""
        path = self.path(site, case)
        if not f"{site}{case}".isprintable():
            raise GoldenError(f"{str(path)!r}: its name holds characters that do not print; rename it")
        said = self.read_json(site, path.name)
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            found = said.get("format") if isinstance(said, dict) else type(said).__name__
            raise GoldenError(f"{path} has format {found!r}, this version reads {FORMAT}; record it again")
        try:
            golden = Case.from_json(said)
        except TypeError as error:
            raise GoldenError(f"{path} is no case: {error}; record it again") from error
        if golden.digest and golden.digest != digest_of(said):
            raise GoldenError(
                f"{path} was edited: its content is not what its digest was made of; restore it from version control, "
                "or record it again"
            )
        if (golden.site, golden.case) != (site, case):
            raise GoldenError(f"{path} says it is {golden.site}/{golden.case}; it was moved by hand, move it back")
        return golden

    def read_all(self, sites: Sequence[str]) -> tuple[list[Case], dict[tuple[str, str], GoldenError]]:
        """The goldens of some sites, and (site, case) -> what is wrong with one that cannot be read."""
        found, broken = list[Case](), dict[tuple[str, str], GoldenError]()
        for site, name in ((each, name) for each in sites for name in self.names(each)):
            try:
                found.append(self.read(site, name))
            except GoldenError as error:
                broken[site, name] = error
        return found, broken

    def write(self, case: Case) -> Path:
        name = case.site + case.case
        if case.site in RESERVED or "/" in name or case.case.startswith(".") or not name.isprintable():
            label = f"{case.site}/{case.case}"
            raise GoldenError(
                f"{label if name.isprintable() else repr(label)} cannot be a golden's name; choose another"
            )
        said = case.to_json()
        whole = {**said, "digest": digest_of(decoded(coded(said)))}
        return self.write_json(whole, case.site, f"{case.case}{SUFFIX}")

    # -- blobs --

    def put_blob(self, content: bytes, suffix: str) -> str:
        name = hashlib.sha256(content).hexdigest() + suffix.lower()
        if not self.folder.exists(BLOBS, name):
            self.folder.write(content, BLOBS, name)
        return name

    def blob(self, name: str) -> bytes:
        """What a blob holds. Raises GoldenError where it is not there, or is not what its name says."""
        if not BLOB.fullmatch(name):
            raise GoldenError(f"{name[:80]!r} is no name of a blob; restore the golden from version control")
        path = self.folder.place(BLOBS, name)
        if not path.exists():
            raise GoldenError(f"{path} is missing; {RESTORE}")
        content = self.folder.read(BLOBS, name, most=MOST_BLOB)
        if hashlib.sha256(content).hexdigest() != name.partition(".")[0]:
            raise GoldenError(f"{path} was changed: its content has another sha256; {RESTORE}")
        return content

    def restore(self, value: Any, folder: Path | None = None, moved: Mapping[str, str] = NOT_MOVED) -> Any:
        """A recorded argument as it was given; files are copied into `folder` under their own names.
        moved: module -> where its classes are now.

        Raises GoldenError for what is no data.
        """
        if isinstance(value, list):
            return [self.restore(entry, folder, moved) for entry in value]
        if not isinstance(value, dict):
            return value
        for place, problem in object_faults(value, "an argument"):
            raise GoldenError(f"{place} {problem}; restore the golden from version control")
        if value.keys() == {"$file", "name"} and folder is not None:
            return str(self.restored_file(value["$file"], folder, value["name"]))
        if value.keys() == {"$scratch"} and folder is not None:
            return str(folder / "scratch" / value["$scratch"])
        if value.keys() == {"$image"}:
            from PIL import Image

            with Image.open(io.BytesIO(self.blob(value["$image"])), formats=["PNG"]) as image:
                image.load()
                return image
        if value.keys() == {"$set"}:
            return set(map(hashable, self.restore(value["$set"], folder, moved)))
        if value.keys() == {"$pairs"}:
            pairs = self.restore(value["$pairs"], folder, moved)
            return {hashable(key): entry for key, entry in pairs}
        if value.keys() == {"$bytes"}:
            return base64.b64decode(value["$bytes"])
        if value.keys() == {"$object"}:
            raise GoldenError(
                f"an argument was a {value['$object']}, which is no data; say in sites.json what makes one, "
                '"arguments": {"NAME": "pkg.setup:make"}, or check this site with `check -- python script`'
            )
        if value.keys() == {"$settings", "fields"}:
            return settings_from(value["$settings"], self.restore(value["fields"], folder, moved))
        if value.keys() == {"$record", "fields"}:
            fields = {name: self.restore(v, folder, moved) for name, v in value["fields"].items()}
            return record_of(value["$record"], fields, moved)
        return {key: self.restore(entry, folder, moved) for key, entry in value.items()}

    def restored_file(self, blob: str, folder: Path, name: str) -> Path:
        """A copy of a file in `folder`, where it lay below the working directory, so that files sort and are grouped
        as they were; in a folder of its own where another one lies there already."""
        content, place = self.blob(blob), folder / name
        is_other = place.is_file() and place.read_bytes() != content
        if is_other or place.is_dir() or any(map(Path.is_file, place.parents)):
            place = folder / blob[:12] / Path(name).name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return place

    def unused(self, cases: Sequence[Case]) -> list[tuple[str, str]]:
        """(folder, file) of blobs and environments that none of these cases refers to."""
        used = {name for case in cases for name in (f"{case.environment}{SUFFIX}", *blob_names(case))}
        found = [(folder, name) for folder in (BLOBS, ENVIRONMENTS) for name in self.folder.files(folder)]
        return [(folder, name) for folder, name in found if name not in used]

    # -- what is accepted --

    def accepted(self) -> list[Accepted]:
        if not self.folder.exists(ACCEPTED_JSON):
            return []
        try:
            entries = [Accepted.from_json(entry) for entry in self.read_json(ACCEPTED_JSON)]
        except (TypeError, ValueError, AttributeError) as error:
            path = self.root / ACCEPTED_JSON
            raise GoldenError(f"{path} holds an entry that cannot be read: {error}; correct it") from error
        return entries

    def accept(self, entry: Accepted) -> None:
        """Add an entry; one of the same case and backend is replaced."""
        self.set_accepted([*(e for e in self.accepted() if e.place != entry.place), entry])

    def set_accepted(self, entries: Sequence[Accepted]) -> None:
        whole = sorted(entries, key=lambda entry: entry.place)
        self.write_json([entry.to_json() for entry in whole], ACCEPTED_JSON)

    # -- environments --

    def put_environment(self, environment: Mapping[str, Any]) -> str:
        name = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:12]
        self.write_json(dict(environment), ENVIRONMENTS, f"{name}{SUFFIX}")
        return name

    def environment_of(self, case: Case) -> dict[str, Any]:
        """Where a case was recorded; {} where that is not known. Raises GoldenError."""
        name = f"{case.environment}{SUFFIX}"
        said = self.read_json(ENVIRONMENTS, name) if self.folder.exists(ENVIRONMENTS, name) else {}
        if not isinstance(said, dict):
            raise GoldenError(f"{self.folder.place(ENVIRONMENTS, name)} is no object of versions; {RESTORE}")
        return said


def blob_names(case: Case) -> Iterator[str]:
    """Every blob that a case refers to."""

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, Mapping):
            for key, entry in value.items():
                if key in ("$file", "$image", "blob") and isinstance(entry, str):
                    yield entry
                yield from walk(entry)
        elif isinstance(value, (list, tuple)):
            for entry in value:
                yield from walk(entry)

    yield from walk(case.to_json())


# == Which of them are meant ==

NEXT_STEP = "record the old code first: python -m parity record --site NAME=pkg.mod:func -- python old_script.py"


def known_names(store: Store, names: Sequence[str], *, must_exist: bool = False) -> list[str]:
    """SITE[/CASE] words with patterns spelt out. Raises ValueError for one that is like a known one, and says which.

    must_exist: also for one that is like none."""
    sites = sorted({*store.sites(), *store.settings()})
    found: list[str] = []
    for name in names:
        if set(name) & set("*?["):
            found += matching(store, name, sites)
        else:
            expect_name(store, name, sites, must_exist)
            found.append(name)
    return list(dict.fromkeys(found))


def matching(store: Store, pattern: str, sites: Sequence[str]) -> list[str]:
    """The sites, or cases, that a pattern of SITE[/CASE] matches. Raises ValueError for none."""
    site, _, case = pattern.partition("/")
    found = fnmatch.filter(sites, site)
    if case not in ("", "*"):
        found = [f"{one}/{name}" for one in found for name in fnmatch.filter(store.names(one), case)]
    if not found:
        raise ValueError(f"no golden under {store.root} matches {pattern!r}")
    return found


def expect_name(store: Store, name: str, sites: Sequence[str], must_exist: bool) -> None:
    """Raise ValueError for a misspelt name of a site or case; for any that is not there with must_exist."""
    site, _, case = name.partition("/")
    if name in sites or (case and case in store.names(site)):
        return
    close = difflib.get_close_matches(name, sites, n=1)
    if case and site in sites:  # all its cases begin alike
        close = [f"{site}/{other}" for other in difflib.get_close_matches(case, store.names(site), n=1)]
    elif case:
        labels = [f"{one}/{other}" for one in sites for other in store.names(one)]
        close = difflib.get_close_matches(name, labels, n=1)
    if close or must_exist:
        there = "`python -m parity list --cases` shows what is there" if sites else NEXT_STEP
        guess = f"did you mean {close[0]!r}?" if close else there
        raise ValueError(f"there is no {name!r} under {store.root}; {guess}")


def guess_of(name: str, known: Sequence[str]) -> str:
    """What may be meant by a misspelt name."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"


def split_cases(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """SITE and SITE/CASE arguments -> sites, and those that name a case."""
    sites = list(dict.fromkeys(name.partition("/")[0] for name in names))
    return sites, [name for name in names if "/" in name]


def chosen_cases(store: Store, sites: Sequence[str] | None, cases: Sequence[str] | None) -> dict[str, list[str]]:
    """site -> its cases that were asked for. cases: names, or SITE/CASE; a site that none of them is of has all."""
    names = list(sites) if sites else sorted({*store.sites(), *store.settings()})
    return {site: cases_of(site, store.names(site), cases or ()) for site in names}


def cases_of(site: str, known: Sequence[str], cases: Sequence[str]) -> list[str]:
    """A SITE/CASE that is not known stays, so that it is found missing."""
    asked = [(owner, case) for owner, _, case in (name.rpartition("/") for name in cases) if owner in ("", site)]
    return [case for owner, case in asked if owner or case in known] if asked else list(known)


# == The machine ==


def environment() -> dict[str, Any]:
    """Versions and machine. Referred to by goldens, never compared."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "transformers", "tokenizers", "vllm", "PIL", "numpy"):
        if (module := sys.modules.get(name)) is not None and hasattr(module, "__version__"):
            found[name] = str(module.__version__)
    torch = sys.modules.get("torch")
    if torch is not None:
        found["device"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return found
