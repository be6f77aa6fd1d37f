"""Functions that sites.json or the command line names and that are nowhere: then the setting is wrong, which says
nothing of the moved code.

    raise_not_there("acme.label:classify", error)       NotThere, if that is why it could not be loaded
    raise_of_settings(error, store, site, settings)     SettingsError, with the setting that named it
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.golden import GoldenError, SettingsError, Store


class NotThere(GoldenError):
    """A function whose module does not exist, or does not hold it.   named: "module" or "module:function", whichever
    is not there."""

    def __init__(self, named: str, problem: str) -> None:
        super().__init__(problem)
        self.named = named


def raise_not_there(function: str, error: BaseException) -> None:
    """Raise NotThere where a function could not be loaded because it is nowhere, not because of what its code does."""
    module, _, attribute = function.rpartition(":")
    if module.endswith(".py") and not Path(module).exists():
        near = [str(Path(module).with_name(file.name)) for file in Path(module).parent.glob("*.py")]
        raise NotThere(module, f"there is no file {module}{guessed(module, near)}") from error
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        absent = str(error.name)
        raise NotThere(module, f"there is no module {absent}{guessed(absent, modules_beside(absent))}") from error
    if type(error) is LookupError:
        guess = guessed(attribute, functions_of(module))
        raise NotThere(function, f"{module} has no function {attribute}{guess}") from error


def guessed(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]!r}?" if close else "; correct it"


def modules_beside(name: str) -> Iterator[str]:
    """Modules of the package that a module was looked for in, by their full names."""
    package, dot, _ = name.rpartition(".")
    folders = getattr(importlib.import_module(package), "__path__", ()) if package else None
    return (f"{package}{dot}{found.name}" for found in pkgutil.iter_modules(folders))


def functions_of(module: str) -> list[str]:
    if module.endswith(".py"):
        return []
    return [name for name, _ in inspect.getmembers(importlib.import_module(module), callable)]


def raise_of_settings(error: BaseException, store: Store, site: str, settings: Mapping[str, Any]) -> None:
    """Raise SettingsError where an error of a site is its settings': of a function that they name and that is not
    there. settings: sites.json with what the command line says."""
    if isinstance(error, SettingsError):
        raise error
    absent = error if isinstance(error, NotThere) else error.__cause__
    if not isinstance(absent, NotThere):
        return
    written = store.settings().get(site, {})
    for name in ("moved", "arguments"):
        for key, value in settings.get(name, {}).items():
            if value != absent.named and not value.startswith(f"{absent.named}:"):
                continue
            is_written = written.get(name, {}).get(key) == value
            place = f"{store.root / 'sites.json'}: {site}.{name}: {key!r}" if is_written else f"--moved {key}={value}"
            raise SettingsError(f"{place}: {absent}") from error
