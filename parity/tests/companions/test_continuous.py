"""transformers' own continuous batching as the decoder: the same answers, or a refusal."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gen_engine import EngineError, GenerationEngine, UnsupportedError
from parity.companions.continuous import Continuous, ContinuousLoop
from parity.companions.streaming import Live, stream

from ..conftest import TEXT, VL, Load, chat, of_task, open_engine
from ..engine.test_breadth import SIZE, TEXT_MODELS, save, vocabulary
from ..engine.test_lora import TASKS, make_adapter
from ..engine.test_places import RAGGED, told

CONTINUOUS = Continuous()
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "stops": {"stop": [", 7", "2."]},
    "stop kept": {"stop": {"strings": ["10"], "include_stop": True}, "decode": {"strip": True}},
    "no EOS": {"max_new_tokens": 9, "stop": {"ignore_eos": True}},
    "one token": {"max_new_tokens": 1},
}


def threads() -> set[threading.Thread]:
    """Those that a process waits for at its end, as the library's own one is."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_those_of_the_engines_own_loop(shared: Load, name: str) -> None:
    few, many = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS), shared(TEXT, "hf")
    options = {"max_new_tokens": 120, **SETTINGS[name]}
    requests = [*RAGGED, *map(of_task, TASKS)]
    before = threads()
    found = few.generate_text_batch(requests, options, cache=False)
    assert threads() <= before
    expected = many.generate_text_batch(requests, options, cache=False)
    assert list(map(told, found)) == list(map(told, expected))


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "qwen3_moe"])
def test_answers_of_other_architectures_are_those_of_the_engines_own_loop(name: str, tmp_path: Path) -> None:
    """Windows that slide, positions that are learned, experts."""
    kind, differences = TEXT_MODELS[name]
    sizes = {**SIZE, **differences, "vocab_size": vocabulary(TEXT), "bos_token_id": None, "pad_token_id": None}
    sizes["tie_word_embeddings"] = False  # or a random Gemma says one token for ever
    model = save(tmp_path / name, getattr(importlib.import_module("transformers"), kind)(**sizes), TEXT)
    requests = [{"prompt": f"Count to {n}." * (1 + n % 3)} for n in range(12)]
    options = {"max_new_tokens": 40, "stop": {"ignore_eos": True}}
    found = []
    for settings in ({}, {"max_batch_size": 3, "decoder": CONTINUOUS}):
        with open_engine(model, "hf", max_model_len=512, **settings) as engine:
            found.append([result.token_ids for result in engine.generate_text_batch(requests, options)])
    assert found[0] == found[1]
    assert len(set(found[0])) > 6


def test_text_of_a_model_that_sees_and_adapters_go_with_it(shared: Load, tmp_path: Path) -> None:
    texts = [chat(f"Count to {n}.") for n in (5, 9)]
    plain, own = shared(VL, "hf"), shared(VL, "hf", max_batch_size=4, decoder=CONTINUOUS)
    options = {"max_new_tokens": 30}
    assert own.generate_text_batch(texts, options) == plain.generate_text_batch(texts, options)
    adapters = {"one": make_adapter(tmp_path / "one", 1)}
    mixed = [{**request, "adapter": adapter} for request in RAGGED[:4] for adapter in (None, "one")]
    found = []
    for settings in ({}, {"decoder": CONTINUOUS}):
        with open_engine(TEXT, "hf", adapters=adapters, **settings) as engine:
            found.append([result.token_ids for result in engine.generate_text_batch(mixed, options)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_streams_and_requests_that_join_are_answered(shared: Load) -> None:
    """Also one that is longer than the cache of those that run."""
    engine, plain = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS), shared(TEXT, "hf")
    options = {"max_new_tokens": 60, "stop": ["9"]}
    expected = plain.generate_text_batch(RAGGED, options, cache=False)
    texts = dict.fromkeys(range(len(RAGGED)), "")
    pieces = 0
    ids: dict[int, tuple[int, ...]] = dict.fromkeys(texts, ())
    for index, text, new_ids, _ in stream(engine, RAGGED, options):
        texts[index] += text
        ids[index] += new_ids
        pieces += 1
    assert [ids[index] for index in texts] == [result.token_ids for result in expected]
    assert [texts[index] for index in texts] == [result.text for result in expected]
    assert pieces > 2 * len(RAGGED)


def test_a_request_that_is_longer_than_those_that_run_joins_live(shared: Load) -> None:
    engine, plain = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS), shared(TEXT, "hf")
    long = chat("Count to 3. " * 12)
    options = {"max_new_tokens": 80}

    async def both() -> list[Any]:
        async with Live(engine) as live:
            first = await live.submit(RAGGED[5], options)
            begun = await anext(aiter(first))
            assert begun
            second = await live.submit(long, options)
            return [await first.result(), await second.result()]

    expected = plain.generate_text_batch([RAGGED[5], long], options, cache=False)
    assert [result.token_ids for result in asyncio.run(both())] == [result.token_ids for result in expected]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sampling": ({}, {"temperature": 1.0}),
    "logprobs": ({}, {"logprobs": 0}),
    "logits": ({}, {"logits": True}),
    "penalties": ({}, {"repetition_penalty": 1.1}),
    "min_new_tokens": ({}, {"min_new_tokens": 1}),
    "forced decoding": ({}, {"replay": [[1, 2]]}),
    "structured output": ({"structured": {"choice": ["a", "b"]}}, {}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_cannot_do_is_refused(shared: Load, what: str) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS)
    request, options = REFUSED[what]
    with pytest.raises(UnsupportedError, match=what):
        engine.generate_text_batch([{**chat("Hi"), **request}], {"max_new_tokens": 2, **options})


def test_vllm_refuses_it() -> None:
    with pytest.raises(UnsupportedError, match="vLLM does so itself"):
        open_engine(TEXT, "vllm", decoder=CONTINUOUS)


def with_forward(
    engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[int, Any], Any]
) -> list[int]:
    """The model's forward, whose outputs go through `spoil` with its number. Returns how many tokens each was given."""
    forward, sizes = engine.model.forward, list[int]()

    def spoilt(*given: Any, **named: Any) -> Any:
        sizes.append(named["input_ids"].shape[-1])
        return spoil(len(sizes), forward(*given, **named))

    monkeypatch.setattr(engine.model, "forward", spoilt)
    return sizes


def test_out_of_memory_loses_nothing(
    shared: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS)
    expected = engine.generate_text_batch(RAGGED, {"max_new_tokens": 60}, cache=False)

    def third_fails(number: int, outputs: Any) -> Any:
        if number == 3:
            raise RuntimeError("CUDA error: out of memory")
        return outputs

    with_forward(engine, monkeypatch, third_fails)
    before = threads()
    assert engine.generate_text_batch(RAGGED, {"max_new_tokens": 60}, cache=False) == expected
    assert "halving" in caplog.text
    assert threads() <= before


def test_an_error_of_its_thread_ends_the_call_and_not_the_engine(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS)
    expected = engine.generate_text_batch(RAGGED[:2], {"max_new_tokens": 9}, cache=False)

    def second_fails(number: int, outputs: Any) -> Any:
        if number == 2:
            raise ZeroDivisionError("planted")
        return outputs

    before = threads()
    with monkeypatch.context() as patch:
        with_forward(engine, patch, second_fails)
        with pytest.raises(Exception, match="planted"):
            engine.generate_text_batch(RAGGED, {"max_new_tokens": 9}, cache=False)
    assert threads() <= before
    assert engine.generate_text_batch(RAGGED[:2], {"max_new_tokens": 9}, cache=False) == expected


def test_logits_that_are_not_numbers_fail_their_rows(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS)

    def nan_later(number: int, outputs: Any) -> Any:
        if number > 2:
            outputs.logits[:] = float("nan")
        return outputs

    with_forward(engine, monkeypatch, nan_later)
    found = engine.generate_text_batch(RAGGED[:2], {"max_new_tokens": 9}, cache=False, on_error="return")
    assert all(isinstance(error, EngineError) and "NaN" in str(error) for error in found)


def test_a_call_that_is_interrupted_leaves_nothing_running(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=CONTINUOUS)
    take, taken = ContinuousLoop._take, [0]

    def interrupted(loop: Any, manager: Any, result: Any) -> None:
        taken[0] += 1
        if taken[0] == 2:
            raise KeyboardInterrupt
        take(loop, manager, result)

    before = threads()
    with monkeypatch.context() as patch:
        patch.setattr(ContinuousLoop, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate_text_batch(RAGGED, {"max_new_tokens": 200}, cache=False)
    assert threads() <= before
    assert engine.model.config._attn_implementation == "sdpa"
    assert engine.generate_text_batch(RAGGED[:1], {"max_new_tokens": 3}, cache=False)[0].completion_tokens == 3
