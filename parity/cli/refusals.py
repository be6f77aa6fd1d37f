"""All that a backend, or a release of a library, refuses before anything runs: the engine's table and those of its
companions."""

from __future__ import annotations

from gen_engine import UNSUPPORTED
from parity.companions import adapters, continuous, decisions, forcing, plugin_hooks, speculation, structured, video

__all__ = ["REFUSALS"]

COMPANIONS = (adapters, continuous, decisions, forcing, plugin_hooks, structured, speculation, video)
REFUSALS = (*UNSUPPORTED, *(row for companion in COMPANIONS for row in companion.REFUSALS))
