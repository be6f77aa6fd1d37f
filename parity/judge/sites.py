"""What sites.json and the command line say of sites: where their functions are now, and for which
backends they are.

A function that they name and that is nowhere is a wrong setting, which says nothing of the moved
code:

    raise_not_there("acme.label:classify", error)     NotThere, if that is why it is not loaded
    raise_of_settings(error, store, site, settings)   SettingsError, with the setting that named it
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from parity.goldens.store import Case, GoldenError, SettingsError, Store

# == Where functions are now, and for which backends ==


def new_function(function: str, moved: Mapping[str, str]) -> str:
    """Where a recorded function is now."""
    if function in moved:
        return moved[function]
    module, _, attribute = function.rpartition(":")
    return f"{moved.get(module, module)}:{attribute}"


def argv_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Site -> arguments of the script that it was recorded in, as far as sites.json holds them."""
    return {site: said["argv"] for site, said in settings.items() if "argv" in said}


def named_function(old: Case, settings: Mapping[str, Any]) -> str:
    """Where a golden's function is now. Raises GoldenError for one that neither sites.json nor
    --moved names: a golden is data that anybody may send, and does not choose what is called."""
    moved = settings.get("moved", {})
    if old.function not in settings.get("functions", ()) and old.function not in moved:
        said = f'"{old.site}": {{"functions": ["{old.function}"]}}'
        raise GoldenError(
            f"sites.json does not name {old.function!r}, so it is not called; if it is yours, add"
            f" {said}"
        )
    return new_function(old.function, moved)


def merged_settings(
    store: Store, sites: Sequence[str], moved: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """sites.json with what the command line says of moved code. Raises SettingsError where nothing
    was recorded of a module: the old code would be run, and pass."""
    recorded = store.settings()
    merged: dict[str, dict[str, Any]] = {}
    of_all_sites: set[str] = set()
    for site in sites:
        own = recorded.get(site, {})
        own_moved = own.get("moved", {})
        functions = set(own.get("functions", ()))
        refuse_unrecorded(f"sites.json: {site}: moved", own_moved, functions)
        of_all_sites |= functions
        merged[site] = {**own, "moved": {**own_moved, **moved}}
    refuse_unrecorded("--moved", moved, of_all_sites)
    return merged


def refuse_unrecorded(place: str, moved: Iterable[str], known: set[str]) -> None:
    """Raise SettingsError for a module that is moved and of which no function is known."""
    modules = {function.rpartition(":")[0] for function in known}
    for old in moved:
        if known and ":" not in old and old not in modules:
            problem = f"{place} {old!r}: nothing was recorded there"
            raise SettingsError(
                f"{problem}; name the place of one of these: {', '.join(sorted(known))}"
            )


def pairs_asked(
    settings: Mapping[str, Mapping[str, Any]], backends: Sequence[str] | None
) -> tuple[list[tuple[str, str]], list[str]]:
    """(site, backend) to be checked, and what is left out because sites.json says that a site is
    not for a backend."""
    asked = []
    left_out = []
    for site, said in settings.items():
        own = said.get("backends")
        for backend in backends or own or ["hf"]:
            if own and backend not in own:
                left_out.append(f"{site} on {backend} (sites.json: {', '.join(own)})")
            else:
                asked.append((site, backend))
    order = list(dict.fromkeys(backend for _, backend in asked))
    asked.sort(key=lambda pair: order.index(pair[1]))
    return asked, left_out


def for_backend(
    names: Sequence[str], backend: str, backends: Mapping[str, Sequence[str]]
) -> tuple[list[str], dict[str, Sequence[str]]]:
    """(a site's cases that are for a backend, the others with theirs). backends: of cases, by
    patterns of names."""
    fitting = []
    apart = {}
    for name in names:
        own = next((of for pattern, of in backends.items() if fnmatch(name, pattern)), None)
        if own is None or backend in own:
            fitting.append(name)
        else:
            apart[name] = own
    return fitting, apart


def expect_cases(store: Store, site: str, patterns: Iterable[str]) -> None:
    """Raise SettingsError for a pattern in `cases` that no golden of the site fits."""
    names = store.names(site)
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            problem = f"{site}.cases: {pattern!r} fits no case"
            raise SettingsError(
                f"{store.root / 'sites.json'}: {problem}; `parity list --cases` shows them"
            )


# == Functions that are nowhere ==


class NotThere(GoldenError):
    """A function whose module does not exist, or does not hold it.   named: "module" or
    "module:function", whichever is not there.   like: a name that may be meant, or ""."""

    def __init__(self, named: str, problem: str, like: str = "") -> None:
        guess = f"did you mean {like!r}?" if like else "correct it"
        super().__init__(f"{problem}; {guess}")
        self.named = named
        self.like = like


def raise_not_there(function: str, error: BaseException) -> None:
    """Raise NotThere where a function could not be loaded because it is nowhere, not because of
    what its code does."""
    module, _, attribute = function.rpartition(":")
    if module.endswith(".py") and not Path(module).exists():
        near = [str(Path(module).with_name(file.name)) for file in Path(module).parent.glob("*.py")]
        raise NotThere(module, f"there is no file {module}", closest(module, near)) from error
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        absent = str(error.name)
        like = closest(absent, modules_beside(absent))
        raise NotThere(module, f"there is no module {absent}", like) from error
    if type(error) is LookupError:
        like = closest(attribute, functions_of(module))
        raise NotThere(function, f"{module} has no function {attribute}", like) from error


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like one; "" if none is."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return close[0] if close else ""


def steps_of_absent(site: str, function: str, absent: NotThere) -> str:
    """What to do about a recorded function that is nowhere, and of which nothing says that it was
    moved."""
    module, _, attribute = function.rpartition(":")
    new = "NEW.MODULE:FUNCTION"
    if absent.like:
        is_function = absent.named == function
        new = f"{module}:{absent.like}" if is_function else f"{absent.like}:{attribute}"
    return (
        f"if it was renamed: python -m parity rename {function} {new}; if the call site is gone:"
        f" python -m parity prune {site} --yes"
    )


def modules_beside(name: str) -> Iterator[str]:
    """Modules of the package that a module was looked for in, by their full names."""
    package, dot, _ = name.rpartition(".")
    folders = getattr(importlib.import_module(package), "__path__", ()) if package else None
    return (f"{package}{dot}{found.name}" for found in pkgutil.iter_modules(folders))


def functions_of(module: str) -> list[str]:
    if module.endswith(".py"):
        return []
    return [name for name, _ in inspect.getmembers(importlib.import_module(module), callable)]


def raise_of_settings(
    error: BaseException, store: Store, site: str, settings: Mapping[str, Any]
) -> None:
    """Raise SettingsError where an error of a site is its settings': of a function that they name
    and that is not there. settings: sites.json with what the command line says."""
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
            place = (
                f"{store.root / 'sites.json'}: {site}.{name}: {key!r}"
                if is_written
                else f"--moved {key}={value}"
            )
            raise SettingsError(f"{place}: {absent}") from error
