"""Speed, told without a clock: how the work grows, counted. A busy machine counts the same as a quiet one.

The micro-benchmarks (`benchmark`) give times with `pytest parity/tests/engine/test_speed.py --benchmark-enable`, to be
compared by a person; in the suite each runs once and guards nothing but that the unit still runs.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cachetools import LRUCache

import gen_engine
from gen_engine import GenerationOptions, StopOptions, load, truncate_at_stops
from parity.companions import tool_calls
from parity.companions.tool_calls import parse_tool_calls

from ..conftest import PROMPT, ROOT, TEXT, Load, chat, open_engine

STOPS = [f"<stop {number:02}>" for number in range(64)]
WORDS = "a stop may stand here, or not; most text has none.\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"k": "v", "n": [1, 2, 3]}}\n</tool_call>\n'


def calls(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, are called meanwhile."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Searched(str):
    """A text that counts the characters which its searches look at."""

    looked_at = 0

    def find(self, sub: str, start: int | None = None, end: int | None = None, /) -> int:  # type: ignore[override]
        found = super().find(sub, start, end)
        last = (len(self) if end is None else end) if found < 0 else found + len(sub)
        self.looked_at += max(0, last - (start or 0))
        return found


class Scanned:
    """Stands in for the module re: counts the characters that its patterns look at, from where they begin."""

    Match = re.Match

    def __init__(self, pattern: re.Pattern[str] | None = None, total: list[int] | None = None) -> None:
        self.pattern, self.total = pattern, total if total is not None else [0]

    def compile(self, pattern: str) -> Scanned:
        return Scanned(re.compile(pattern), self.total)

    def match(self, text: str, at: int) -> re.Match[str] | None:
        assert self.pattern is not None
        found = self.pattern.match(text, at)
        self.total[0] += 1 + (found.end() - at if found else 0)
        return found

    def search(self, *given: Any) -> re.Match[str] | None:
        if self.pattern is None:  # of the module: a pattern and a text
            self.total[0] += len(given[1])
            return re.search(*given)
        text, at = given
        found = self.pattern.search(text, at)
        self.total[0] += 1 + (found.end() if found else len(text)) - at
        return found

    def finditer(self, pattern: str, text: str) -> Iterator[re.Match[str]]:
        self.total[0] += len(text)
        return re.finditer(pattern, text)


def fresh(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# == Pure functions ==


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(WORDS * 2_000, id="prose"),
        pytest.param("<stop " * 16_000, id="stops that almost match"),
        pytest.param(WORDS * 2_000 + STOPS[-1], id="a stop at the end"),
        pytest.param(STOPS[-1] + WORDS * 2_000, id="a stop at the beginning"),
    ],
)
def test_each_stop_is_looked_for_once(text: str) -> None:
    searched = Searched(text)
    assert truncate_at_stops(searched, STOPS) == truncate_at_stops(text, STOPS)
    assert searched.looked_at <= len(STOPS) * len(text)
    truncate_at_stops(behind := Searched(STOPS[0] + text), STOPS)
    assert behind.looked_at <= len(STOPS) * len(STOPS[0]), "what stands behind a stop is not looked at"


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(CALL, id="calls"),
        pytest.param('<tool_call>{"name": "f", "arguments": {"k": \n', id="broken calls"),
        pytest.param('so {"name": "f", "arguments": {"k": 1}} it is. ', id="bare JSON"),
        pytest.param("<function_calls><invoke name=", id="openings only"),
    ],
)
def test_the_tool_parser_is_linear_in_the_text(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    def work(size: int) -> tuple[int, int]:
        scanned, text = Scanned(), Searched(unit * size)
        monkeypatch.setattr(tool_calls, "re", scanned)
        return calls(lambda: parse_tool_calls(text)), scanned.total[0] + text.looked_at

    (few, short), (many, long) = work(25), work(200)
    assert (many < 1.1 * 8 * few, long < 1.1 * 8 * short) == (True, True)


# == Rows on transformers ==


def test_finished_rows_are_less_than_a_quarter_of_what_is_computed(shared: Load) -> None:
    """Whatever their share is: here, less than a half are over early."""
    engine = shared(TEXT, "hf")
    requests = [chat(f"Count to {n}.") for n in (1, 2, 3, 4, 5, 21, 22, 23, 24, 25, 26)]
    sizes: list[int] = []
    hook = engine.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        results = engine.generate_text_batch(requests, {"max_new_tokens": 40}, cache=False)
    finally:
        hook.remove()
    assert len(set(sizes)) > 2  # the batch became smaller more than once
    assert sum(sizes) < 4 / 3 * sum(result.completion_tokens for result in results)
    assert max(result.completion_tokens for result in results) > 3 * min(result.completion_tokens for result in results)


def test_looking_for_stops_reads_the_end_of_a_row_only(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the row has become: a stop of b bytes lies in its last b tokens."""
    engine = shared(TEXT, "hf")
    options = GenerationOptions(max_new_tokens=10_000, stop=StopOptions(("</answer>", "\n\nUser:", "###", "STOP HERE")))
    plan = gen_engine.make_plan(options, engine.checkpoint)
    read: list[int] = []
    decode = gen_engine.decode_ids

    def counted(tokenizer: Any, ids: Any, *rest: Any, **named: Any) -> str:
        read.append(len(ids))
        return decode(tokenizer, ids, *rest, **named)

    monkeypatch.setattr(gen_engine, "decode_ids", counted)
    watch = gen_engine.RowWatch(plan, PROMPT)
    tokens = engine.tokenizer("Count to twelve, and say the capital of France")["input_ids"]
    assert not any(watch.push(token) for token in tokens * 40)
    assert len(read) == len(watch.ids) and max(read) <= len("STOP HERE") + 5


# == Requests on vLLM ==


@pytest.mark.parametrize(("stop", "once"), [((), True), (("nowhere",), False)], ids=["ids end it", "a stop string"])
def test_vllm_reports_a_request_once_unless_its_text_is_watched(
    shared: Load, monkeypatch: pytest.MonkeyPatch, stop: tuple[str, ...], once: bool
) -> None:
    engine = shared(TEXT, "vllm")
    outputs: list[str] = []
    step = engine.model.llm_engine.step

    def counted() -> Any:
        found = step()
        outputs.extend(output.request_id for output in found)
        return found

    monkeypatch.setattr(engine.model.llm_engine, "step", counted)
    [result] = engine.generate_text_batch([chat("Count to 12.")], {"max_new_tokens": 20, "stop": {"strings": stop}})
    assert len(outputs) == (1 if once else result.completion_tokens) and result.completion_tokens == 20


# == The engine around them ==


@pytest.fixture
def echoing(monkeypatch: pytest.MonkeyPatch) -> Iterator[gen_engine.GenerationEngine]:
    """An engine whose backend answers at once, with eos: what is left is our own work."""
    with open_engine(TEXT, "hf", cache=LRUCache(300)) as engine:
        [end, *_] = engine.checkpoint.eos_ids

        def complete(prompts: Any, call: Any) -> None:
            for place, prompt in enumerate(prompts):
                call.done(place, gen_engine.Completion((5, 6, 7, end), prompt.token_ids))

        monkeypatch.setattr(engine.backend, "complete", complete)
        yield engine


def ids_requests(count: int) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": [1 + number % 500, 1 + number // 500 % 500, 9]} for number in range(count)]


def test_ten_times_as_many_requests_are_ten_times_the_work(echoing: gen_engine.GenerationEngine) -> None:
    few, many = ids_requests(100), ids_requests(1_000)
    echoing.generate_text_batch(few, cache=False)  # what happens once
    less = calls(lambda: echoing.generate_text_batch(few, cache=False))
    assert less < calls(lambda: echoing.generate_text_batch(many, cache=False)) < 1.1 * 10 * less


def test_memory_is_flat_over_thousands_of_small_calls(echoing: gen_engine.GenerationEngine) -> None:
    """With a cache that overflows."""
    requests = ids_requests(2_000)
    for request in requests[:500]:
        echoing.generate_text_batch([request])
    tracemalloc.start()
    try:
        for start in range(500, 2_000, 50):
            echoing.generate_text_batch(requests[start : start + 50])
            if start == 1_000:
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100_000  # bytes; 1,000 requests of 300 bytes each would be 300,000


def test_a_hit_asks_the_store_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Store(dict[str, str]):
        def __getitem__(self, key: str) -> str:
            asked.append(key)
            return super().__getitem__(key)

    with open_engine(TEXT, "hf", cache=Store()) as engine:
        requests, short = ids_requests(100), {"max_new_tokens": 1}
        answers = engine.generate_text_batch(requests, short)
        asked.clear()
        monkeypatch.setattr(engine.backend, "complete", None)  # nothing is generated
        again = engine.generate_text_batch(requests, short)
    assert [result.token_ids for result in again] == [result.token_ids for result in answers]
    assert len(asked) == len(set(asked)) == 100


# == Micro-benchmarks ==


def test_speed_of_import(benchmark: Any) -> None:
    benchmark.pedantic(fresh("import gen_engine"), rounds=5)


def test_speed_of_the_stop_cutter(benchmark: Any) -> None:
    assert benchmark(truncate_at_stops, WORDS * 20_000, STOPS) == WORDS * 20_000  # 1 MB


def test_speed_of_the_tool_parser(benchmark: Any) -> None:
    assert len(benchmark(parse_tool_calls, CALL * 50)) == 50


def test_speed_of_render(benchmark: Any, shared: Load) -> None:
    engine = shared(TEXT, "hf")
    assert "France" in benchmark(engine.render, [{"role": "user", "content": "What is the capital of France?"}])


def test_speed_of_a_result(benchmark: Any, shared: Load) -> None:
    engine = shared(TEXT, "hf")
    plan = gen_engine.make_plan(GenerationOptions(max_new_tokens=128), engine.checkpoint)
    ids = tuple(engine.tokenizer("one, two, " * 100)["input_ids"][:128])
    prompt = gen_engine.prompt_of(gen_engine.TextGenerationRequest(prompt="Count."), plan)
    result = benchmark(gen_engine.finish, gen_engine.Completion(ids, prompt.token_ids), prompt, plan, "hf")
    assert result.finish_reason == "length"


def test_speed_of_a_cache_hit(benchmark: Any) -> None:
    with load(TEXT, cache={}) as engine:
        request = [{"prompt_token_ids": list(range(1, 60))}]
        engine.generate_text_batch(request, {"max_new_tokens": 4})
        assert benchmark(engine.generate_text_batch, request, {"max_new_tokens": 4})[0].cached
