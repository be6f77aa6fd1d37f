"""Moved code that streams is judged as code that waits: on both backends, also in runs that prove a cause."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.causes import stage_of
from parity.goldens.store import Store, environment
from parity.goldens.verdict import Outcome
from parity.judge.replay import Engines, Replay
from parity.judge.session import Session
from parity.judge.site import Pending, check_site
from parity.record.observe import Observer, Site, case, load_function
from parity.tests.conftest import SMALL, TEXT

HEAD = """
import asyncio

from gen_engine import load
from parity.companions.penalties import Penalties
from parity.companions.reasoning import Thinking
from parity.companions.streaming import Live, stream

LOADED = {}

def asked(model_path, questions, penalty, budget):
    if model_path not in LOADED:
        LOADED[model_path] = load(model_path, dtype="float32", max_model_len=512, logits_hooks=True)
    engine = LOADED[model_path]
    requests = [
        {"messages": [{"role": "user", "content": question}], "chat": {"enable_thinking": True}}
        for question in questions
    ]
    plugins = [Penalties(engine, presence_penalty=penalty), Thinking(engine, budget=budget)]
    return engine, requests, {"max_new_tokens": 40, "stop": ["zz"]}, plugins
"""
BATCH = """
def ask(model_path, questions, penalty, budget):
    engine, requests, options, plugins = asked(model_path, questions, penalty, budget)
    return [result.text for result in engine.generate_text_batch(requests, options, plugins=plugins)]
"""
STREAM = """
def ask(model_path, questions, penalty, budget):
    engine, requests, options, plugins = asked(model_path, questions, PENALTY, BUDGET)
    pieces = list(stream(engine, requests, options, plugins=plugins))
    return ["".join(piece.text for piece in pieces if piece.index == k) for k in range(len(requests))]
"""
SUBMIT = """
def ask(model_path, questions, penalty, budget):
    engine, requests, options, plugins = asked(model_path, questions, PENALTY, BUDGET)

    async def answers():
        async with Live(engine) as live:
            begun = [await live.submit(request, options, plugins=plugins) for request in requests]
            return [(await answer.result()).text for answer in begun]

    return asyncio.run(answers())
"""
QUESTIONS = ["What is the capital of France?", "Count to 5.", "Is 28 even?"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "streams_old.py").write_text(HEAD + BATCH)
    monkeypatch.delitem(sys.modules, "streams_old", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def recorded(folder: Path, backend: str) -> Store:
    """A golden of the old code."""
    store, found, site = Store(folder / "golden"), list[Any](), Site("streams", "streams_old:ask")
    with contextlib.closing(Engines()) as engines:
        replay = Replay(engines, {"backend": backend}, {backend: SMALL[backend]})
        with Observer(sites=[site], sink=found.append, store=store) as observer, case("one"):
            observer.replay = replay
            load_function(site.function)(str(TEXT), QUESTIONS, 0.5, 6)
            for engine in list(observer.opened):
                engine.close()
    fingerprint = store.put_environment(environment())
    for one in found:
        store.write(dataclasses.replace(one, environment=fingerprint))
    store.set_site("streams", functions=[site.function], load={backend: SMALL[backend]})
    return store


def judged(store: Store, backend: str, moved: str) -> Outcome:
    settings = {**store.settings()["streams"], "moved": {"streams_old:ask": f"{moved}:ask"}}
    with Session(store, {f"{moved}:ask": "streams"}) as session:
        pending = Pending.of(store)
        [outcome] = list(check_site(session, "streams", ["one"], backend, settings, pending))
    return outcome


def test_streaming_code_is_judged_as_code_that_waits(folder: Path, backend: str) -> None:
    store = recorded(folder, backend)
    [kept] = [store.read("streams", name) for name in ["one"]]
    assert kept.rows[0]["sampling"]["presence_penalty"] == {"value": 0.5, "from": "caller"}
    assert kept.rows[0]["sampling"]["thinking_budget"] == {"value": 6, "from": "caller"}
    codes = {"stream": STREAM, "submit": SUBMIT}
    wrong = {"penalty": ("-2.0", "budget"), "budget": ("penalty", "2")}
    for name, code in codes.items():
        right = code.replace("PENALTY", "penalty").replace("BUDGET", "budget")
        (folder / f"streams_{name}_{backend}.py").write_text(HEAD + right)
        assert judged(store, backend, f"streams_{name}_{backend}").verdict == "IDENTICAL"
    for name, (penalty, budget) in wrong.items():
        code = STREAM.replace("PENALTY", penalty).replace("BUDGET", budget)
        (folder / f"streams_{name}_{backend}.py").write_text(HEAD + code)
        outcome = judged(store, backend, f"streams_{name}_{backend}")
        assert outcome.verdict == "DRIFT", outcome
        assert outcome.cause is not None and stage_of(outcome.cause.name) == "sampling", outcome


def test_streaming_code_that_was_written_for_hf_is_judged_on_vllm_with_its_hook(folder: Path) -> None:
    head = HEAD.replace(", logits_hooks=True", "")
    (folder / "streams_old.py").write_text(head + BATCH)
    store = recorded(folder, "vllm")
    right = STREAM.replace("PENALTY", "penalty").replace("BUDGET", "budget")
    (folder / "streams_unhooked.py").write_text(head + right)
    outcome = judged(store, "vllm", "streams_unhooked")
    assert outcome.verdict == "IDENTICAL", outcome
