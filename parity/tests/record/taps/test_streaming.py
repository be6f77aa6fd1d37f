"""Answers of streams: rows of the batch verb, also where the engine is older than a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from gen_engine import GenEngineError, GenerationEngine, GenerationResult

from parity.companions import streaming
from parity.companions.reasoning import Thinking
from parity.companions.streaming import Live
from parity.goldens import store as golden
from parity.models.tasks import drawing
from parity.record.observe import Observer, Site
from parity.tests.conftest import VL, Load, chat

QUESTIONS = ("What is the capital of France?", "Count to 12.", "Is 28 even?")
REQUESTS = [{**chat(question), "seed": k} for k, question in enumerate(QUESTIONS)]
OPTIONS = {"max_new_tokens": 24, "stop": [", 7"], "temperature": 0.7, "logprobs": 1}

Ask = Callable[[GenerationEngine, list[Any], Any, list[Any]], list[str]]


def by_batch(
    engine: GenerationEngine, requests: list[Any], options: Any, plugins: list[Any]
) -> list[str]:
    has_images = isinstance(requests[0]["messages"][0]["content"], list)
    verb = engine.generate_vlm_batch if has_images else engine.generate_text_batch
    return [result.text for result in verb(requests, options, plugins=plugins)]


def by_stream(
    engine: GenerationEngine, requests: list[Any], options: Any, plugins: list[Any]
) -> list[str]:
    found = {}
    for index, _, _, result in streaming.stream(engine, requests, options, plugins=plugins):
        if isinstance(result, GenerationResult):
            found[index] = result.text
    return [found[index] for index in range(len(requests))]


async def submitted(live: Live, requests: list[Any], options: Any, plugins: list[Any]) -> list[str]:
    answers = [await live.submit(request, options, plugins=plugins) for request in requests]
    return [(await answer.result()).text for answer in answers]


def by_submit(
    engine: GenerationEngine, requests: list[Any], options: Any, plugins: list[Any]
) -> list[str]:
    async def ask() -> list[str]:
        async with Live(engine) as live:
            return await submitted(live, requests, options, plugins)

    return asyncio.run(ask())


@contextmanager
def observed(*names: str) -> Iterator[list[golden.Case]]:
    found: list[golden.Case] = []
    sites = [Site(name, f"{__name__}:{name}") for name in names]
    with Observer(sink=found.append, sites=sites) as observer:
        yield found
    assert observer.failures == []


def rows_by(name: str, *args: Any) -> list[Any]:
    with observed(name) as found:
        globals()[name](*args)
    return [dict(row) for row in found[0].rows]


@pytest.mark.parametrize("name", ["by_stream", "by_submit"])
def test_rows_of_streams_are_those_of_the_batch_verb(text: GenerationEngine, name: str) -> None:
    plugins = [Thinking(text, stop=["xyz"])]
    expected = rows_by("by_batch", text, REQUESTS, OPTIONS, plugins)
    found = rows_by(name, text, REQUESTS, OPTIONS, plugins)
    assert len(found) == len(expected) == len(QUESTIONS)
    for row, known in zip(found, expected):
        assert row.keys() == known.keys()
        by_arrival = {"batch", "inputs"} if name == "by_submit" else set[str]()
        for stage in known.keys() - by_arrival:
            assert row[stage] == known[stage], stage


def test_rows_of_streams_with_images_are_those_of_the_batch_verb(
    shared: Load, backend: str
) -> None:
    engine = shared(VL, backend)
    content = [
        {"type": "image", "image": drawing("red", "circle")},
        {"type": "text", "text": "What do you see?"},
    ]
    request = {"messages": [{"role": "user", "content": content}]}
    by_batch(engine, [request], {"max_new_tokens": 16}, [])  # vLLM processes an image once only
    [expected] = rows_by("by_batch", engine, [request], {"max_new_tokens": 16}, [])
    [found] = rows_by("by_stream", engine, [request], {"max_new_tokens": 16}, [])
    assert {stage: found.get(stage) for stage in expected} == expected


LIVE: list[Live] = []


def ask_live(loop: Any, requests: list[Any]) -> list[str]:
    found: list[str] = loop.run_until_complete(submitted(LIVE[0], requests, OPTIONS, []))
    return found


def test_rows_of_an_engine_that_lives_longer_than_a_call_belong_to_their_calls(
    text: GenerationEngine,
) -> None:
    loop = asyncio.new_event_loop()
    with observed("ask_live") as found:

        async def begin() -> None:
            LIVE[:] = [Live(text)]

        loop.run_until_complete(begin())
        ask_live(loop, REQUESTS[:2])
        ask_live(loop, REQUESTS[2:])
        loop.run_until_complete(LIVE[0].__aexit__())
    loop.close()
    first, second = found
    assert [row["request"]["number"] for case in found for row in case.rows] == [0, 1, 0]
    assert [row["text"] for row in (*first.rows, *second.rows)] == [*first.value, *second.value]


def stream_twice(engine: GenerationEngine) -> list[str]:
    return [
        *by_stream(engine, REQUESTS[:2], OPTIONS, []),
        *by_stream(engine, REQUESTS, OPTIONS, []),
    ]


def test_rows_of_two_streams_of_one_call_are_numbered_apart(text: GenerationEngine) -> None:
    rows = rows_by("stream_twice", text)
    assert [row["request"]["number"] for row in rows] == [0, 1, 0, 1, 2]


def stop_early(engine: GenerationEngine) -> str:
    for _, text, _, _ in streaming.stream(engine, REQUESTS, OPTIONS):
        return text
    return ""


def refused(engine: GenerationEngine) -> str:
    try:
        streaming.stream(engine, [REQUESTS[0], {"prompt": ""}], OPTIONS)
    except GenEngineError as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("name", ["stop_early", "refused"])
def test_a_stream_that_is_dropped_leaves_a_call_that_ends(
    text: GenerationEngine, name: str
) -> None:
    with observed(name) as found:
        globals()[name](text)
    assert len(found) == 1
