"""What is called a failure of a generated call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gen_engine import GenerationEngine, OptionError, RequestError
from parity.proof.fuzz.laws import Asker
from parity.proof.fuzz.values import Case, special
from parity.tests.conftest import TEXT, Load, chat

GOOD = chat("What is the capital of Peru?")
SHORT = {"max_new_tokens": 6}
Change = Callable[[list[Any]], Any]


@pytest.fixture
def engine(shared: Load) -> GenerationEngine:
    return shared(TEXT, "hf")


def asker_of(engine: Any) -> Asker:
    room: Any = SimpleNamespace(engine=lambda model: engine)
    return Asker(room)


def changed(engine: GenerationEngine, change: Change) -> Asker:
    """An engine whose results of calls with more than the two good requests are changed."""

    def ask(requests: Any, options: Any, on_error: Any) -> Any:
        results: Any = engine.generate_text_batch(requests, options, on_error=on_error)
        return change(results) if len(requests) > 2 else results

    return asker_of(SimpleNamespace(generate_text_batch=ask, tokenizer=engine.tokenizer))


def test_asker_with_good_and_bad_requests_finds_nothing_wrong(engine: GenerationEngine) -> None:
    asker = asker_of(engine)
    bad = [{"prompt": ""}, None, special("object"), {"prompt_token_ids": [-1]}]
    assert asker.failure(Case("text", (GOOD, *bad), SHORT)) is None
    assert asker.failure(Case("text", (GOOD,), {"max_new_tokens": 0})) is None
    assert asker.asked == 6
    assert asker.outcomes == {"answered": 1, "refused": 4, "whole call refused": 1}


def raise_raw(results: list[Any]) -> Any:
    raise ZeroDivisionError("planted")


def raise_refusal(results: list[Any]) -> Any:
    raise OptionError("planted", fix="mend it")


def raise_without_words(results: list[Any]) -> Any:
    raise RequestError("", fix="")


def without_index(results: list[Any]) -> Any:
    error = RequestError("planted", fix="mend it")
    return [results[0], error, results[-1]]


CHANGES: dict[str, tuple[Change, str]] = {
    "raw": (raise_raw, "raw error: ZeroDivisionError in test_laws.py, raise_raw"),
    "whole call": (raise_refusal, "neighbour: the whole call is refused"),
    "words": (raise_without_words, "error: RequestError"),
    "index": (without_index, "error: the error of request _ names None"),
    "lost row": (lambda results: results[:-1], "result: _ results of _ requests"),
    "neighbour": (lambda results: [results[1], *results[1:]], "neighbour: a good answer changed"),
    "refused neighbour": (
        lambda results: [OptionError("planted", fix="mend it"), *results[1:]],
        "neighbour: a good request is refused",
    ),
    "result": (lambda results: [results[0], "x", results[-1]], "result: _ is no result"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_asker_names_what_is_wrong(name: str, engine: GenerationEngine) -> None:
    change, key = CHANGES[name]
    failure = changed(engine, change).failure(Case("text", (GOOD,), SHORT))
    assert failure is not None
    assert failure.key.startswith(key)
