"""Options of a generate call as mappings, so that some of their fields can be changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def as_fields(options: Any) -> dict[str, Any]:
    """GenerationOptions, or a mapping of its fields, as a mapping."""
    if options is None:
        return {}
    if isinstance(options, Mapping):
        return dict(options)
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}


def merged(options: Mapping[str, Any], name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options with some fields of one of their parts (stop, decode) changed."""
    part = options.get(name)
    fields = {"strings": part} if isinstance(part, (str, list, tuple)) else as_fields(part)
    return {**options, name: {**fields, **changes}}
