"""Arguments and values as plain data, as a golden keeps them."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from parity.goldens import store as golden

TEMPORARY = Path(tempfile.gettempdir())
LARGEST_FILE = 32 << 20  # bytes of a file argument that a golden keeps
LONGEST_PATH = 4096


def object_name(value: Any) -> dict[str, str]:
    """What a golden says of an object: its type alone."""
    return {"$object": f"{type(value).__module__}.{type(value).__qualname__}"}


@dataclass(frozen=True, slots=True)
class Keeper:
    """Makes plain data of values; what is no data becomes {"$object": its type}.

    paths: of arguments: a string that names a file becomes the file, and an object's fields say
    whose they are, so that another machine can replay the case.
    files: path -> what stands for it, of each file among the arguments that was kept or will be
    written; also of its absolute path. In texts of a value it stands for it.
    """

    store: golden.Store | None
    paths: bool = False
    files: dict[str, str] = field(default_factory=dict)

    def keep(self, value: Any) -> Any:
        if isinstance(value, (str, os.PathLike)):
            return self._path(os.fspath(value)) if self.paths else self._text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping):
            if self.paths and golden.has_other_keys(value):
                told = Keeper(self.store).keep  # a key that names a file is a text
                return {"$pairs": [[told(key), self.keep(entry)] for key, entry in value.items()]}
            return {self._text(key): self.keep(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple, deque)):
            return [self.keep(entry) for entry in value]
        return self._object(value)

    def _text(self, value: Any) -> str:
        return str(value) if self.paths else text_by_name(str(value), self.files)

    def _object(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, (set, frozenset)):
            return {"$set": [self.keep(entry) for entry in sorted(value, key=repr)]}
        if (fields := self._fields(value)) is not None:
            return fields
        if hasattr(value, "getexif") and self.store is not None:
            png = golden.image_bytes(value)
            return {"$image": self.store.put_blob(png, ".png")}
        if hasattr(value, "detach"):  # torch
            value = value.detach().cpu().float()
        if hasattr(value, "tolist") and getattr(value, "size", 0) is not None:  # numpy, too
            return self._array(value.tolist())
        return object_name(value)

    def _array(self, values: Any) -> Any:
        """Texts among the arguments stay as they are."""
        files = {} if self.paths else self.files
        return Keeper(self.store, files=files).keep(values)

    def _fields(self, value: Any) -> dict[str, Any] | None:
        """A dataclass; among arguments also a library's settings or a pydantic model. Else None."""
        if self.paths and (settings := self._settings(value)) is not None:
            return settings
        if is_dataclass(value) and not isinstance(value, type):
            own = {name: getattr(value, name) for name in value.__dataclass_fields__}
        elif self.paths and golden.is_pydantic(type(value)):
            own = vars(value)
        else:
            return None
        fields: dict[str, Any] = self.keep(own)
        if not self.paths:
            return fields
        return {"$record": object_name(value)["$object"], "fields": fields}

    def _settings(self, value: Any) -> dict[str, Any] | None:
        """A library's settings by the fields that are not the default. None for anything else, and
        where one of the fields, such as a function, is no data."""
        found = golden.settings_in(value)
        if found is None:
            return None
        name, own = found
        fields = self.keep(own)
        return None if golden.objects_in(fields) else {"$settings": name, "fields": fields}

    def _path(self, text: str) -> Any:
        """A path to a file as its content, one to a folder below the working directory as a
        relative one, one to a file that the code will write as its place in a temporary folder;
        other text as it is."""
        if not text or len(text) > LONGEST_PATH or "\0" in text or "\n" in text:
            return text
        path = Path(text)
        with contextlib.suppress(OSError):  # text that no file system takes as a name
            if self.store and path.is_file() and path.stat().st_size <= LARGEST_FILE:
                blob = self.store.put_blob(path.read_bytes(), path.suffix)
                self._name(text, f"{blob[:12]}/{path.name}")
                return {"$file": blob, "name": place_of_file(path)}
            if path.is_absolute():
                return self._absolute_path(path, text)
        return text

    def _absolute_path(self, path: Path, text: str) -> Any:
        if path.is_dir():
            here = Path.cwd()
            if path.is_relative_to(here):
                return path.relative_to(here).as_posix()
        if path.is_relative_to(TEMPORARY) and not path.exists():
            inner = path.relative_to(TEMPORARY).parts[1:]
            if inner:
                self._name(text, path.name)
                return {"$scratch": Path(*inner).as_posix()}
        return text

    def _name(self, text: str, name: str) -> None:
        self.files[os.path.abspath(text)] = name
        self.files[text] = name


def with_places(case: golden.Case, places: Mapping[str, str]) -> golden.Case:
    """A recording in which folders have other names.   places: a folder -> what it stands for."""
    told = Keeper(None, files=dict(places)).keep
    rows = tuple(told(dict(row)) for row in case.rows)
    return replace(case, rows=rows, value=told(case.value), raised=told(case.raised))


def place_of_file(path: Path) -> str:
    """Where a file lies below the working directory; of one elsewhere its name alone."""
    whole = Path(os.path.abspath(path))
    here = Path.cwd()
    if not whole.is_relative_to(here):
        return path.name
    return whole.relative_to(here).as_posix()


def text_by_name(text: str, files: Mapping[str, str]) -> str:
    """A text in which files among the arguments are called by their content and name: a replay has
    them elsewhere. Within a longer text only a path with folders is one for sure."""
    if text in files:
        return files[text]
    for path in sorted(files, key=len, reverse=True):
        if os.sep in path:
            text = text.replace(path, files[path])
    return text
