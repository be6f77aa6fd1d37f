"""Companions for a vendored copy of gen_engine.py that stands alone, while the harness asks its engine: the judge reads
log-probabilities and forces ids, which the copy's own repository may never do.

    lender = Lender()
    lender.serve(copy)         the copy finds companions here that are not beside it
    lender.active = False      as long as its own code runs: what is missing in production is missing here
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from parity.environment import vendor
from parity.environment.vendor import companions, version_of

__all__ = ["Lender"]


def lent_package(copy: Any) -> str:
    """The name of a package that holds the companions of this parity, and the copy as their engine."""
    name = f"{copy.__name__.replace('.', '_')}_lent"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(vendor.COMPANIONS)]
        vars(package)["gen_engine"] = copy  # what `from . import gen_engine` gives a companion
        sys.modules[name] = package
    return name


class LentCompanions:
    """The companions of a copy, with those that a lender has where the copy has none."""

    def __init__(self, lender: Lender, copy: Any) -> None:
        self.lender = lender
        self.copy = copy
        self.original = copy.companions

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.original, name)
        except self.copy.BackendMissing:
            file = companions().get(name) if self.lender.active else None
            if file is None or version_of(file.read_text(encoding="utf-8")) != self.copy.__version__:
                raise
        return importlib.import_module(f"{lent_package(self.copy)}.{name}")


class Lender:
    """Lends companions to copies of gen_engine.py of their version.   active: whether it does so now."""

    def __init__(self) -> None:
        self.active = False
        self.served: list[LentCompanions] = []

    def serve(self, copy: Any) -> None:
        """From now on; a second time does nothing. Copies of older versions have no companions to be lent."""
        if not hasattr(copy, "companions") or any(copy is lent.copy for lent in self.served):
            return
        copy.companions = LentCompanions(self, copy)
        self.served.append(copy.companions)

    def end(self) -> None:
        """Leave the copies as they were."""
        while self.served:
            lent = self.served.pop()
            lent.copy.companions = lent.original
