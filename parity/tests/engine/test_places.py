"""More requests than places on hf: rows that wait take the places of finished ones, and nothing else changes."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenerationEngine
from parity.bench.workloads import ragged_ends
from parity.companions.joining import Joining
from parity.models.tasks import drawing, text_tasks

from ..conftest import TEXT, VL, Load, chat, endings, of_task, open_engine
from .test_breadth import SIZE, TEXT_MODELS, qwen2_5_vl, save, vlm_checkpoint, vocabulary

JOINING = Joining()
TASKS = [of_task(task) for task in text_tasks(2)]
RAGGED = [chat(f"Count to {n}.") for n in (3, 10, 2, 6, 4, 12, 5, 7, 8)]
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalty": {"repetition_penalty": 1.3},
    "bonus": {"repetition_penalty": 0.02},  # what a row does not hold itself, and padding does, would be said at once
    "least": {"min_new_tokens": 12},
    "drawn": {"temperature": 1.0, "seed": 5, "top_k": 20, "n": 2},
    "stops": {"stop": [", 7", "2."]},
    "logprobs": {"logprobs": 2},
}


@contextlib.contextmanager
def forwards(engine: GenerationEngine) -> Iterator[list[tuple[int, int]]]:
    """(rows, columns) of each forward of the model."""
    seen: list[tuple[int, int]] = []
    hook = engine.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()


def prompts(seen: list[tuple[int, int]]) -> list[int]:
    return [rows for rows, columns in seen if columns > 1]


def told(result: Any) -> Any:
    """All that a result says, its numbers apart."""
    samples = result.samples or (result,)
    numbers = [number for sample in samples for number in sample.logprobs or ()]
    return [(s.token_ids, s.text, s.finish_reason, s.stop_reason, s.prompt_token_ids) for s in samples], numbers


@pytest.mark.parametrize("name", SETTINGS)
def test_a_row_that_joins_is_the_row_alone(shared: Load, name: str) -> None:
    few, many = shared(TEXT, "hf", max_batch_size=4, decoder=JOINING), shared(TEXT, "hf")
    options = {"max_new_tokens": 40, **SETTINGS[name]}
    with forwards(few) as seen:
        together = few.generate_text_batch(RAGGED + TASKS, options, cache=False)
    assert max(rows for rows, _ in seen) == 4
    assert len(prompts(seen)) > -(-sum(prompts(seen)) // 4)  # more often than if each batch were run to its end
    for request, result in zip(RAGGED + TASKS, together):
        [alone] = many.generate_text_batch([request], options, cache=False)
        (said, numbers), (expected, values) = told(result), told(alone)
        assert said == expected
        assert numbers == pytest.approx(values, abs=1e-4)


def test_structures_and_hooks_stay_with_their_rows(shared: Load) -> None:
    class Ends:
        name = "ends"

        def should_stop(self, token_ids: Any, text: str) -> bool:
            return "9" in text

        def logits(self, token_ids: Any, logits: Any) -> Any:
            return logits + len(token_ids)

    few, many = shared(TEXT, "hf", max_batch_size=2, decoder=JOINING), shared(TEXT, "hf")
    shaped = [{**chat("What is the capital of France?"), "structured": {"choice": ["Paris", "Rome, far away"]}}]
    shaped += [{**request, "structured": {"regex": f"(1, ){{{n}}}2"}} for n, request in enumerate(RAGGED[:5], 1)]
    mixed = [request for pair in zip(shaped, RAGGED[5:]) for request in pair]
    for requests, plugins in ((mixed, []), (RAGGED, [Ends()])):
        together = few.generate_text_batch(requests, {"max_new_tokens": 80}, plugins=plugins, cache=False)
        for request, result in zip(requests, together):
            [alone] = many.generate_text_batch([request], {"max_new_tokens": 80}, plugins=plugins, cache=False)
            assert told(result) == told(alone)


def test_rows_with_pictures_join_others(shared: Load) -> None:
    few, many = shared(VL, "hf", max_batch_size=3, decoder=JOINING), shared(VL, "hf")
    pictures = [drawing("red", "circle"), drawing("green", "square", width=160, height=96), drawing("blue", "circle")]
    requests = [
        {"messages": [{"role": "user", "content": [*({"type": "image", "image": one} for one in seen), text]}]}
        for text in ({"type": "text", "text": "What do you see?"}, {"type": "text", "text": "Count to 14."})
        for seen in ([pictures[0]], [pictures[1]], [pictures[2], pictures[0]], pictures)
    ]
    options = {"max_new_tokens": 60, "logprobs": 0}
    with forwards(few) as seen:
        together = few.generate_vlm_batch(requests, options, cache=False)
    assert len(prompts(seen)) > -(-len(requests) // 3)
    for request, result in zip(requests, together):
        [alone] = many.generate_vlm_batch([request], options, cache=False)
        assert told(result)[0] == told(alone)[0]
        assert told(result)[1] == pytest.approx(told(alone)[1], abs=1e-4)


def some_ends(engine: GenerationEngine, requests: Any) -> dict[str, Any]:
    """Options under which a random model's answers have many lengths."""
    options = {"max_new_tokens": 40, "logprobs": 0, "temperature": 1.0}
    free = engine.generate_text_batch(requests, {**options, "stop": {"ignore_eos": True}})
    known = len(engine.tokenizer)
    ends = ragged_ends([result.token_ids for result in free], frozenset(), 40)
    return {**options, "stop": {"ignore_eos": True, "token_ids": [token for token in ends if token < known]}}


@pytest.mark.parametrize("name", [*TEXT_MODELS, "qwen2_5_vl"])
def test_places_change_nothing_for_other_architectures(name: str, tmp_path: Path) -> None:
    """Those with a sliding window cannot be joined: what waits is the next batch."""
    transformers = importlib.import_module("transformers")
    if name in TEXT_MODELS:
        kind, differences = TEXT_MODELS[name]
        sizes = {**SIZE, **differences, "vocab_size": vocabulary(TEXT), "bos_token_id": None, "pad_token_id": None}
        sizes["tie_word_embeddings"] = False  # or a random Gemma says one token for ever
        model = save(tmp_path / name, getattr(transformers, kind)(**sizes), TEXT)
    else:
        model = vlm_checkpoint(qwen2_5_vl, tmp_path / name)
    requests = [{"prompt": f"Count to {n}." * (1 + n % 3), "seed": n} for n in range(8)]
    with open_engine(model, "hf", max_model_len=512) as engine:
        options = some_ends(engine, requests)
        alone = [engine.generate_text_batch([request], options)[0] for request in requests]
    assert len({result.completion_tokens for result in alone}) > 3
    settings = {"max_model_len": 512, "max_batch_size": 3, "decoder": JOINING}
    with open_engine(model, "hf", **settings) as engine, forwards(engine) as seen:
        together = engine.generate_text_batch(requests, options)
    assert (len(prompts(seen)) > 3) == (name not in ("gemma2", "gemma3"))
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    for result, expected in zip(together, alone):
        assert result.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_columns_stay_few_however_many_rows_pass(shared: Load) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=JOINING)
    widths: list[int] = []
    layer = next(module for module in engine.model.modules() if type(module).__name__ == "Qwen3Attention")
    hook = layer.register_forward_pre_hook(
        # since transformers 5.24 it is called `cache`
        lambda module, args, kwargs: widths.append(kwargs.get("cache", kwargs.get("past_key_values")).get_seq_length()),
        with_kwargs=True,
    )
    try:
        results = engine.generate_text_batch(RAGGED * 4, {"max_new_tokens": 120}, cache=False)
    finally:
        hook.remove()
    assert max(widths) < max(result.prompt_tokens + result.completion_tokens for result in results)


def test_what_was_written_for_the_librarys_loop_sees_no_row_join(shared: Load) -> None:
    class Watches:
        name = "watches"
        hf_logits_processors = (lambda ids, scores: scores,)

    engine = shared(TEXT, "hf", max_batch_size=4, decoder=JOINING)
    plain = engine.generate_text_batch(RAGGED, {"max_new_tokens": 120}, cache=False)
    with forwards(engine) as seen:
        found = engine.generate_text_batch(RAGGED, {"max_new_tokens": 120}, plugins=[Watches()], cache=False)
    assert [r.token_ids for r in found] == [r.token_ids for r in plain]
    assert prompts(seen) == [4, 4, 1]


def test_no_row_joins_where_the_model_counts_places_by_itself(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=JOINING)
    expected = engine.generate_text_batch(RAGGED, {"max_new_tokens": 120}, cache=False)
    forward = engine.model.forward
    monkeypatch.setattr(engine.model, "forward", lambda *args, **kwargs: forward(*args, **kwargs))
    with forwards(engine) as seen:
        assert engine.generate_text_batch(RAGGED, {"max_new_tokens": 120}, cache=False) == expected
    assert prompts(seen) == [4, 4, 1]


def test_memory_that_is_short_while_rows_join_loses_nothing(
    shared: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = shared(TEXT, "hf", max_batch_size=4, decoder=JOINING)
    expected = engine.generate_text_batch(RAGGED, {"max_new_tokens": 120}, cache=False)
    forward, joined = engine.model.forward, [0]
    after: list[int] = []  # rows of each forward since

    @functools.wraps(forward)  # transformers reads the signature
    def starved(*args: Any, **kwargs: Any) -> Any:
        joined[0] += kwargs["input_ids"].shape[1] > 1
        if joined[0] > 3:
            after.append(len(kwargs["input_ids"]))
        if joined[0] == 3:
            joined[0] += 1
            raise MemoryError("planted")
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine.model, "forward", starved)
    finished = endings(monkeypatch)
    again = engine.generate_text_batch(RAGGED, {"max_new_tokens": 120}, cache=False)
    assert again == expected
    assert max(after) == 2
    assert "halving" in caplog.text and len(finished) == len(RAGGED)
