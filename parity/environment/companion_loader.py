"""Companions for a vendored copy of gen_engine.py that stands alone, while the harness asks its engine: the judge reads
log-probabilities and forces ids, which the copy's own repository may never do.

    lender = Lender()
    lender.serve(copy)         the copy finds companions here that are not beside it
    lender.active = False      as long as its own code runs: what is missing in production is missing here
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from parity.environment.vendor import companions, version_of

__all__ = ["Lender"]


def load_for(copy: Any, file: Path) -> ModuleType:
    """A companion's file as a module of its own, which takes what it imports of gen_engine from a copy."""
    name = f"{copy.__name__.replace('.', '_')}_lent_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before = sys.modules.get("gen_engine")
    sys.modules["gen_engine"] = copy
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["gen_engine"]
        if before is not None:
            sys.modules["gen_engine"] = before
    return module


class Lender:
    """Lends companions to copies of gen_engine.py of their version.   active: whether it does so now."""

    def __init__(self) -> None:
        self.active = False
        self.originals: list[tuple[Any, Callable[[str], Any]]] = []

    def serve(self, copy: Any) -> None:
        """From now on; a second time does nothing."""
        if any(copy is served for served, _ in self.originals):
            return
        original = copy.companion
        self.originals.append((copy, original))

        @functools.wraps(original)
        def companion(name: str) -> Any:
            try:
                return original(name)
            except copy.BackendMissing:
                file = companions().get(name) if self.active else None
                if file is None or version_of(file.read_text(encoding="utf-8")) != copy.__version__:
                    raise
            return load_for(copy, file)

        copy.companion = companion

    def end(self) -> None:
        """Leave the copies as they were."""
        while self.originals:
            copy, original = self.originals.pop()
            copy.companion = original
