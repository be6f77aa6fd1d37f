"""Arguments and values as plain data, as a golden keeps them."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from parity import golden

TEMPORARY = Path(tempfile.gettempdir())
LARGEST_FILE = 32 << 20  # bytes of a file argument that a golden keeps
LONGEST_PATH = 4096


def keep(value: Any, blobs: golden.Store | None, *, paths: bool = False) -> Any:
    """A value as plain data; what is no data becomes {"$object": its type}.

    paths: a string that names a file becomes the file, so that another machine can replay the case.
    """
    if isinstance(value, (str, os.PathLike)):
        return keep_path(os.fspath(value), blobs) if paths else str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return keep_collection(value, functools.partial(keep, blobs=blobs, paths=paths))
    return keep_object(value, blobs, paths)


def keep_collection(value: Any, keep_one: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): keep_one(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [keep_one(entry) for entry in value]
    return {"$set": [keep_one(entry) for entry in sorted(value, key=repr)]}


def keep_object(value: Any, blobs: golden.Store | None, paths: bool) -> Any:
    kept = keep_fields(value, blobs, paths)
    if kept is not None:
        return kept
    if hasattr(value, "getexif") and blobs is not None:
        return {"$image": blobs.put_blob(golden.image_bytes(value), ".png")}
    if hasattr(value, "detach"):  # torch
        return keep(value.detach().cpu().float().tolist(), blobs)
    if hasattr(value, "tolist") and getattr(value, "size", 0) is not None:  # numpy
        return keep(value.tolist(), blobs)
    return object_name(value)


def keep_fields(value: Any, blobs: golden.Store | None, paths: bool) -> dict[str, Any] | None:
    """A dataclass; among arguments also a library's settings or a pydantic model. Else None."""
    if paths and (settings := keep_settings(value, blobs)) is not None:
        return settings
    if is_dataclass(value) and not isinstance(value, type):
        own = {name: getattr(value, name) for name in value.__dataclass_fields__}
    elif paths and golden.is_pydantic(type(value)):
        own = vars(value)
    else:
        return None
    fields = {name: keep(part, blobs, paths=paths) for name, part in own.items()}
    return {"$record": object_name(value)["$object"], "fields": fields} if paths else fields


def keep_settings(value: Any, blobs: golden.Store | None) -> dict[str, Any] | None:
    """A library's settings by the fields that are not the default. None for anything else, and
    where one of the fields, such as a function, is no data."""
    found = golden.settings_in(value)
    if found is None:
        return None
    name, own = found
    fields = {key: keep(entry, blobs, paths=True) for key, entry in own.items()}
    return None if golden.objects_in(fields) else {"$settings": name, "fields": fields}


def object_name(value: Any) -> dict[str, str]:
    """What a golden says of an object: its type alone."""
    return {"$object": f"{type(value).__module__}.{type(value).__qualname__}"}


# == Files ==


def keep_path(text: str, blobs: golden.Store | None) -> Any:
    """A path to a file as its content, one to a folder below the working directory as a relative
    one, one to a file that the code will write as its place in a temporary folder; other text as
    it is."""
    if not text or len(text) > LONGEST_PATH or "\0" in text or "\n" in text:
        return text
    path = Path(text)
    with contextlib.suppress(OSError):  # text that no file system takes as a name
        if blobs is not None and path.is_file() and path.stat().st_size <= LARGEST_FILE:
            return {"$file": blobs.put_blob(path.read_bytes(), path.suffix), "name": path.name}
        if path.is_absolute():
            return keep_absolute_path(path, text)
    return text


def keep_absolute_path(path: Path, text: str) -> Any:
    if path.is_dir() and path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    if path.is_relative_to(TEMPORARY) and not path.exists():
        inner = path.relative_to(TEMPORARY).parts[1:]
        if inner:
            return {"$scratch": Path(*inner).as_posix()}
    return text


def files_in(given: Any, kept: Any) -> Iterator[tuple[str, str]]:
    """(path, what stands for it) of each argument that was kept as a file, or as a place for one;
    also of its absolute path."""
    if isinstance(kept, Mapping) and isinstance(given, (str, os.PathLike)):
        text = os.fspath(given)
        if "$file" in kept:
            name = f"{kept['$file'][:12]}/{kept['name']}"
        else:
            name = Path(kept["$scratch"]).name
        yield from dict.fromkeys([(os.path.abspath(text), name), (text, name)])
    elif isinstance(kept, Mapping) and isinstance(given, Mapping):
        for key, entry in given.items():
            yield from files_in(entry, kept.get(str(key)))
    elif isinstance(kept, list) and isinstance(given, (list, tuple)):
        for entry, part in zip(given, kept):
            yield from files_in(entry, part)


def by_name(value: Any, files: Mapping[str, str]) -> Any:
    """A value in which files among the arguments are called by their content and name: a replay has
    them elsewhere. Within a longer text only a path with folders is one for sure."""
    if isinstance(value, str):
        return text_by_name(value, files)
    if isinstance(value, dict):
        return {by_name(key, files): by_name(entry, files) for key, entry in value.items()}
    if isinstance(value, list):
        return [by_name(entry, files) for entry in value]
    return value


def text_by_name(text: str, files: Mapping[str, str]) -> str:
    if text in files:
        return files[text]
    for path in sorted(files, key=len, reverse=True):
        if os.sep in path:
            text = text.replace(path, files[path])
    return text
