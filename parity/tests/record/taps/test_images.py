"""Image and video processors, and their pixel budgets."""

from __future__ import annotations

import base64
import hashlib
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from parity.goldens.store import Case
from parity.models.tasks import drawing
from parity.record.observe import Observer, Site
from parity.record.rows import Placeholders, collapsed
from parity.record.taps.images import budget_of
from parity.tests.companions.test_video import (
    COLOURS,
    FRAMES,
    metadata,
    part,
    plain_prompt,
    watch,
    written,
)
from parity.tests.conftest import ROOT, Load


def test_budget_of_a_processor_that_does_not_resize_is_zero() -> None:
    class Processor:
        do_resize = False
        size = {"shortest_edge": 4, "longest_edge": 16}  # noqa: RUF012

    assert budget_of(Processor(), {}) == [0, 0]
    assert budget_of(Processor(), {"do_resize": True}) == [4, 16]


VIDEO = ROOT / "golden/models/tiny-qwen3-video"
FIRST = numpy.stack([numpy.asarray(frame) for frame in FRAMES[:7]])
AT_EIGHT = {"video_metadata": [metadata(FIRST, 8)], "do_sample_frames": False}


def watched(ask: Callable[[], Any], failure: str = "") -> list[Any]:
    """The rows of one call of a site; none, and why, where it is no golden."""
    module: Any = types.ModuleType("asks_a_video")
    module.ask = ask
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "asks_a_video", module)
        cases: list[Case] = []
        with Observer(sites=[Site("ask", "asks_a_video:ask")], sink=cases.append) as observer:
            module.ask()
    assert bool(failure) == bool(observer.failures), observer.failures
    if failure:
        assert failure in observer.failures[0] and not cases, observer.failures
        return []
    [case] = cases
    return list(case.rows)


def digest(frames: Any) -> str:
    return hashlib.sha256(numpy.stack([numpy.asarray(one) for one in frames]).tobytes()).hexdigest()


def test_clips_of_our_calls_are_seen_as_they_were_given(shared: Load, backend: str) -> None:
    engine = shared(VIDEO, backend)
    image = {"type": "image", "image": drawing("red", "circle")}
    asked = [watch(part(FRAMES)), watch(image, part(FRAMES[:6], 4), image)]
    engine.generate_vlm_batch(asked, {"max_new_tokens": 1})  # vLLM has them in its cache
    one, mixed = watched(lambda: engine.generate_vlm_batch(asked, {"max_new_tokens": 2}))
    [clip] = one["images"]
    assert clip["sha256"] == digest(FRAMES) and clip["size"] == [64, 64]
    assert (clip["fps"], clip["indices"], clip["grid"]) == (2, [*range(8)], [4, 2, 2])
    assert collapsed(one["prompt_ids"], Placeholders(None, clip["placeholder"])).count(556) == 1
    assert one["messages"][0]["content"][0] == {"type": "video"}
    assert one["prompt_text"].count("<|video_pad|>") == 1 and "seconds>" not in one["prompt_text"]
    *images, clip = mixed["images"]
    assert clip["sha256"] == digest(FRAMES[:6]) and clip["fps"] == 4
    assert [picture["tokens"] for picture in images] == [4, 4] and "fps" not in images[0]


def test_clips_of_our_scores_are_seen(shared: Load, backend: str) -> None:
    engine = shared(VIDEO, backend)
    [row] = watched(lambda: engine.score_batch([(watch(part(FRAMES)), [5, 6])]))
    assert row["images"][0]["sha256"] == digest(FRAMES) and row["scored"]
    if backend == "hf":
        assert len(row["inputs"]["pictures"]) == 1


def test_clips_of_plain_transformers_are_those_that_its_processor_samples(shared: Load) -> None:
    engine = shared(VIDEO, "hf")
    with engine.bare(read_only=True) as model:

        def ask(**how: Any) -> Any:
            _, inputs = plain_prompt(engine, FIRST, COLOURS, **how)
            return model.generate(**inputs, max_new_tokens=2, do_sample=False)

        [whole] = watched(lambda: ask(**AT_EIGHT))
        [sampled] = watched(lambda: ask(video_metadata=AT_EIGHT["video_metadata"], fps=4))
        how = {"num_return_sequences": 2, "do_sample": True, "max_new_tokens": 2}
        [one, other] = watched(
            lambda: model.generate(**plain_prompt(engine, FIRST, COLOURS, **AT_EIGHT)[1], **how)
        )
    assert whole["images"][0]["sha256"] == digest(FIRST)
    assert sampled["images"][0]["indices"] == [0, 2, 4, 6]
    assert sampled["images"][0]["sha256"] == digest(FIRST[::2])
    assert one["images"] == other["images"] == whole["images"]


def test_clips_of_plain_vllm_are_seen(shared: Load) -> None:
    engine = shared(VIDEO, "vllm")
    rendered, _ = plain_prompt(engine, FIRST, COLOURS, **AT_EIGHT)
    item = (FIRST, {**metadata(FIRST, 8), "do_sample_frames": False})
    plain = {"prompt": rendered, "multi_modal_data": {"video": [item]}}
    with engine.bare(read_only=True) as llm:
        params = importlib.import_module("vllm").SamplingParams(temperature=0, max_tokens=2)
        llm.generate(plain, params, use_tqdm=False)
        for _ in range(2):  # vLLM has it in its cache, also from before anyone watched
            [row] = watched(lambda: llm.generate(plain, params, use_tqdm=False))
            assert row["images"][0]["sha256"] == digest(FIRST)
            assert (row["images"][0]["fps"], row["images"][0]["indices"]) == (8, [*range(7)])


def test_a_chat_of_plain_vllm_shows_the_frames_that_it_decodes(
    shared: Load, tmp_path: Path
) -> None:
    content = written(tmp_path / "clip.mp4", FRAMES).read_bytes()
    url = "data:video/mp4;base64," + base64.b64encode(content).decode()
    parts = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": COLOURS}]
    chat = [{"role": "user", "content": parts}]
    with shared(VIDEO, "vllm").bare(read_only=True) as llm:
        params = importlib.import_module("vllm").SamplingParams(temperature=0, max_tokens=2)
        [row] = watched(lambda: llm.chat(chat, params, use_tqdm=False))
    assert row["images"][0]["fps"] == 8 and len(row["images"][0]["indices"]) >= 2
    assert row["messages"][0]["content"][0] == {"type": "video"}


def test_clips_that_no_prompt_takes_are_no_golden(shared: Load) -> None:
    """Whose frames a prompt has is not known then."""
    engine = shared(VIDEO, "hf")
    with engine.bare(read_only=True) as model:

        def ask() -> Any:
            plain_prompt(engine, FIRST[::-1].copy(), COLOURS, **AT_EIGHT)
            _, inputs = plain_prompt(engine, FIRST, COLOURS, **AT_EIGHT)
            return model.generate(**inputs, max_new_tokens=2)

        watched(ask, "1 videos more went through a processor than the prompts hold")
        _, made = plain_prompt(engine, FIRST, COLOURS, **AT_EIGHT)
        unseen = "a prompt holds 1 videos, and 0 were seen on their way to it"
        watched(lambda: model.generate(**made, max_new_tokens=2), unseen)


IMAGE, CLIP = 5, 9  # 7 opens, 8 closes


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 7, 9, 8, 2], [1, 7, 9, 8, 2]),
        ([1, 7, 9, 9, 9, 8, 2], [1, 7, 9, 8, 2]),
        ([1, 7, 3, 7, 9, 9, 8, 4, 4, 7, 9, 9, 8, 8, 2], [1, 7, 9, 8, 2]),
        ([7, 3, 7, 9, 8, 8, 2, 7, 3, 7, 9, 8, 4, 7, 9, 8, 8], [7, 9, 8, 2, 7, 9, 8]),
        ([7, 5, 5, 8, 7, 3, 7, 9, 8, 8, 7, 5, 8], [7, 5, 8, 7, 9, 8, 7, 5, 8]),
        ([8, 1, 7, 3, 7, 9, 8, 8, 8], [8, 1, 7, 9, 8, 8]),
        ([9, 9, 1], [9, 1]),
        ([1, 9, 9], [1, 9]),
        ([1, 2], [1, 2]),
    ],
)
def test_clips_are_folded_between_their_outermost_markers(
    ids: list[int], expected: list[int]
) -> None:
    assert list(collapsed(ids, Placeholders(IMAGE, CLIP))) == expected
