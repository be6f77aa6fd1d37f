"""All that a backend, or a release of a library, refuses before anything runs: the engine's table and those of its
companions."""

from __future__ import annotations

from gen_engine import UNSUPPORTED
from parity.companions import adapters, speculation, structured

__all__ = ["REFUSALS"]

REFUSALS = (*UNSUPPORTED, *adapters.REFUSALS, *structured.REFUSALS, *speculation.REFUSALS)
