"""Image processors and their pixel budgets."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from parity.golden import Case, GoldenError
from parity.record.observe import Observer, Site
from parity.record.taps.gen_engine import request_key
from parity.record.taps.images import budget_of
from parity.record.taps.vllm import read_request
from parity.tasks import video_tasks
from parity.tests.companions.test_video import COLOURS, FRAMES, metadata, plain_prompt
from parity.tests.conftest import ROOT, Load, of_task


def test_budget_of_a_processor_that_does_not_resize_is_zero() -> None:
    class Processor:
        do_resize = False
        size = {"shortest_edge": 4, "longest_edge": 16}  # noqa: RUF012

    assert budget_of(Processor(), {}) == [0, 0]
    assert budget_of(Processor(), {"do_resize": True}) == [4, 16]


VIDEO = ROOT / "golden/models/tiny-qwen3-video"


def watched(ask: Callable[[], Any]) -> Observer:
    """An observer of one call of a site, while it runs and after."""
    module: Any = types.ModuleType("asks_a_video")
    module.ask = ask
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "asks_a_video", module)
        cases: list[Case] = []
        with Observer(sites=[Site("ask", "asks_a_video:ask")], sink=cases.append) as observer:
            module.ask()
    assert cases == [], "a golden without the video would let other answers pass"
    return observer


def test_a_video_is_said_to_be_unseen_and_never_taken_for_its_ids(
    shared: Load, backend: str
) -> None:
    engine = shared(VIDEO, backend)
    [task, *_] = video_tasks(1)
    observer = watched(lambda: engine.generate_vlm_batch([of_task(task)], {"max_new_tokens": 2}))
    assert observer.failures and "goldens hold no videos yet" in observer.failures[0]


def test_a_video_of_plain_transformers_is_said_to_be_unseen(shared: Load) -> None:
    engine = shared(VIDEO, "hf")
    frames = numpy.stack([numpy.asarray(frame) for frame in FRAMES])
    how = {"video_metadata": [metadata(frames, 8)], "do_sample_frames": False}
    _, inputs = plain_prompt(engine, frames, COLOURS, **how)
    with engine.bare(read_only=True) as model:
        observer = watched(lambda: model.generate(**inputs, max_new_tokens=2))
    assert observer.failures and "goldens hold no videos yet" in observer.failures[0]


class Llm:
    """vLLM's engine, by which its names are known."""


def test_a_video_is_refused_at_each_place_that_reads_pictures() -> None:
    for read in (
        lambda: read_request(Llm(), {"prompt": "", "multi_modal_data": {"video": []}}, None),
        lambda: request_key(types.SimpleNamespace(images=[types.SimpleNamespace(frames=1)])),
    ):
        with pytest.raises(GoldenError, match="goldens hold no videos yet"):
            read()
