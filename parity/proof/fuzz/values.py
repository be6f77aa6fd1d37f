"""Generated calls as JSON, so that each can be stored, read and asked again; and what stands for
values that JSON does not have."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from PIL import Image

Json = Any

SPECIALS: dict[str, Callable[[], Any]] = {
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "bytes": lambda: b"\xff\x00",
    "object": object,
    "type": lambda: dict,
    "set": lambda: {1, "a"},
    "tuple": lambda: (1, "a"),
    "array": lambda: numpy.arange(3),
    "int64": lambda: numpy.int64(3),
    "float32": lambda: numpy.float32(0.5),
    "array of objects": lambda: numpy.array([None, "a"], dtype=object),
    "many digits": lambda: 10**5000,
}


def special(name: str) -> Json:
    return {"$special": name}


@dataclass(frozen=True)
class Case:
    """One call. verb: "text" or "vlm".   requests, options: with stand-ins."""

    verb: str
    requests: tuple[Json, ...]
    options: Json

    def dumps(self) -> str:
        record = {"verb": self.verb, "requests": self.requests, "options": self.options}
        return json.dumps(record, sort_keys=True)

    @classmethod
    def loads(cls, record: Mapping[str, Any]) -> Case:
        return cls(record["verb"], tuple(record["requests"]), record["options"])


def make_image(spec: Mapping[str, Any]) -> Any:
    """The image that a stand-in describes. form: how it is given, or what is wrong with it."""
    form = spec["form"]
    if form == "missing":
        return "no/such/image.png"
    if form == "remote":
        return "http://localhost:9/image.png"
    image = Image.new(spec["mode"], tuple(spec["size"]), spec["color"])
    if form == "pil":
        return image
    stream = io.BytesIO()
    image.save(stream, "TIFF" if spec["mode"] in ("CMYK", "F", "I") else "PNG")
    data = stream.getvalue()
    if form == "cut":
        return data[: len(data) * 2 // 3]
    if form == "url":
        return "data:image/png;base64," + base64.b64encode(data).decode()
    return data


def materialize(value: Json) -> Any:
    """The value that a generated one stands for."""
    if isinstance(value, list):
        return [materialize(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if "$special" in value:
        return SPECIALS[value["$special"]]()
    if "$image" in value:
        return make_image(value["$image"])
    return {name: materialize(part) for name, part in value.items()}
