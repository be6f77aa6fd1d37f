"""What the tap of vLLM keeps of an engine."""

from __future__ import annotations

import pytest

from parity.record.taps.vllm import KnownEngines


class Engine:
    """Of an LLMEngine, what a first meeting asks."""

    def __init__(self, is_busy: bool) -> None:
        self.is_busy, self.resets = is_busy, 0

    def has_unfinished_requests(self) -> bool:
        return self.is_busy

    def reset_mm_cache(self) -> None:
        self.resets += 1


@pytest.mark.parametrize(("is_busy", "resets"), [(False, 1), (True, 0)])
def test_meet_empties_the_cache_of_an_idle_engine_once(is_busy: bool, resets: int) -> None:
    """What an engine finds there goes through no processor, and would not be seen."""
    known, engine = KnownEngines(), Engine(is_busy)
    assert known.meet(engine) is known.meet(engine)
    assert engine.resets == resets
