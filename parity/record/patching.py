"""Puts a tap on a function, a method or a property, also where its module is loaded later.

A tap is called instead of what it is on, with an `Invocation` that it may run.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

Function = Callable[..., Any]
Arguments = Mapping[str, Any]  # by name


def bind_arguments(function: Function, args: Sequence[Any], kwargs: Arguments) -> dict[str, Any]:
    """Arguments by name; *args under its own name, and each keyword of **kwargs by its own."""
    signature = inspect.signature(function)
    flat = dict[str, Any]()
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(value)
        else:
            flat[name] = value
    return flat


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of something tapped: what it is on, and what the caller gave, an object first."""

    original: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return self.original(*self.args, **self.kwargs)

    def run_as(self, function: Function, owner: Any) -> Any:
        """The same call of another function, with another owner."""
        if self.args:
            return function(owner, *self.args[1:], **self.kwargs)
        rest = dict(self.kwargs)
        del rest[self._first_name()]
        return function(owner, **rest)

    @property
    def owner(self) -> Any:
        """The object of a method; of a function its first argument."""
        return self.args[0] if self.args else self.kwargs[self._first_name()]

    def _first_name(self) -> str:
        return next(iter(inspect.signature(self.original).parameters))

    @property
    def arguments(self) -> dict[str, Any]:
        """By name, without `self`."""
        return {
            name: value
            for name, value in bind_arguments(self.original, self.args, self.kwargs).items()
            if name != "self"
        }


Tap = Callable[[Invocation], Any]


# == On an attribute ==


class Tapped:
    """A callable that is no plain function, as of lru_cache: all but the call is its own."""

    def __init__(self, original: Any, tap: Tap) -> None:
        self.__wrapped__ = original
        self._tap = tap
        self.__doc__ = original.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tap(Invocation(self.__wrapped__, args, kwargs))

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None or not hasattr(type(self.__wrapped__), "__get__"):
            return self
        return Tapped(self.__wrapped__.__get__(owner, kind), self._tap)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def tap_function(original: Function, tap: Tap) -> Function:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return tap(Invocation(original, args, kwargs))

    return wrapper


def tap_attribute(static: Any, tap: Tap) -> Any:
    """What stands for `static`, an attribute as it lies in its class or module: its kind, too."""
    if isinstance(static, property):
        return static.getter(tap_function(static.fget, tap)) if static.fget else static
    if isinstance(static, staticmethod):
        return staticmethod(tap_attribute(static.__func__, tap))
    if isinstance(static, classmethod):
        inner = static.__func__

        @functools.wraps(inner)
        def of_class(kind: Any, *args: Any, **kwargs: Any) -> Any:
            return tap(Invocation(inner.__get__(kind), args, kwargs))

        return classmethod(of_class)
    if inspect.isfunction(static) or inspect.isbuiltin(static) or inspect.ismethod(static):
        return tap_function(static, tap)
    return Tapped(static, tap)


class NotTappable(Exception):
    """What cannot be tapped; says why."""


class Patches:
    """Attributes that were replaced, to be put back."""

    def __init__(self) -> None:
        # (id of the owner, name) -> owner, what its vars() had there
        self.replaced = dict[tuple[int, str], tuple[Any, Any]]()

    def add(self, module: ModuleType | type, path: str, tap: Tap) -> None:
        """Tap `path` ("Class.method" or "function"), once. Raises NotTappable."""
        owner: Any = module
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        static = inspect.getattr_static(owner, name, getattr(owner, name, None))
        if static is None:
            raise NotTappable(f"has no {path}")
        if inspect.isclass(static):
            raise NotTappable(f"has a class {path}: name a method of it")
        key = (id(owner), name)
        if key in self.replaced:
            return
        self.replaced[key] = (owner, vars(owner).get(name))
        if inspect.isclass(owner) or inspect.ismodule(owner):
            setattr(owner, name, tap_attribute(static, tap))
        else:  # an object, whose methods are bound already
            setattr(owner, name, tap_function(getattr(owner, name), tap))

    def undo(self) -> None:
        for (_, name), (owner, original) in reversed(self.replaced.items()):
            if original is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self.replaced.clear()


# == In modules that are loaded later ==


class Watcher(Protocol):
    """Who looks at modules. module_names: those that it looks at in any case."""

    @property
    def module_names(self) -> set[str]: ...

    main_code: Callable[[str, Any], CodeType | None]

    def look_at(self, module: ModuleType) -> None: ...


ACTIVE: list[Any] = []  # watchers, for scripts that are loaded by path, past the import system
LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
STANDARD_LIBRARY = str(Path(os.__file__).parent)


class Finder:
    """On sys.meta_path: lets the others find a module, and shows it to a watcher when it ran."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def wanted(self, name: str, origin: str | None) -> bool:
        """Whether the watcher names a module, or it belongs to neither a library nor Python."""
        if name in self.watcher.module_names:
            return True
        if origin is None or not origin.endswith(".py") or origin.startswith(STANDARD_LIBRARY):
            return False
        return not any(part in origin for part in LIBRARIES)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        for finder in sys.meta_path:
            if isinstance(finder, Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return self._watched(spec)
        return None

    def _watched(self, spec: Any) -> Any:
        loads = spec.loader is not None and hasattr(spec.loader, "exec_module")
        if loads and self.wanted(spec.name, spec.origin):
            spec.loader = WatchedLoader(spec.loader, self.watcher)
        return spec


class WatchedLoader:
    """A loader that shows each module to a watcher when it ran; all else is the loader's own."""

    def __init__(self, loader: Any, watcher: Watcher) -> None:
        self._loader = loader
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._watcher.look_at(module)

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m name`, which runs it as __main__ and does not call `exec_module`."""
        return self._watcher.main_code(name, self._loader)


def load_file(path: Path) -> ModuleType:
    """A script as a module named after its path: its `if __name__ == "__main__"` does not run."""
    name = str(path)
    if name in sys.modules:
        return sys.modules[name]
    spec: Any = importlib.util.spec_from_file_location(name, path)
    if spec is None or not path.exists():
        raise LookupError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a script
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # else the next call would find half of it
        raise
    for watcher in ACTIVE:
        watcher.look_at(module)
    return module
