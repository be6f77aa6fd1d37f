"""What a call does in threads of its own is the call's: answers that stream, rows that a pool answers side by side."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Case, Store
from parity.goldens.verdict import Outcome
from parity.judge.numerics.samples import settle_samples
from parity.judge.session import Session
from parity.judge.site import Pending, check_site
from parity.record.observe import Observer, Site
from parity.tests.conftest import TEXT

OLD = """
import functools
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import transformers

POOL = ThreadPoolExecutor(3)  # its threads outlive a call


@functools.cache
def loaded(path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval(), tokenizer


def inputs_of(tokenizer, question):
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return tokenizer(text, return_tensors="pt")


def streamed(path, question, stop):
    model, tokenizer = loaded(path)
    streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    how = dict(streamer=streamer, max_new_tokens=40, do_sample=False)
    Thread(target=model.generate, kwargs={**inputs_of(tokenizer, question), **how}).start()
    said = ""
    for piece in streamer:
        said += piece
        if stop in said:
            return said[: said.index(stop)]  # while the model goes on
    return said


def pooled(path, questions):
    model, tokenizer = loaded(path)

    def one(question):
        inputs = inputs_of(tokenizer, question)
        ids = model.generate(**inputs, max_new_tokens=16, do_sample=False)
        return tokenizer.decode(ids[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)

    return list(POOL.map(one, questions))
"""
MOVED = """
import functools

import gen_engine

engine = functools.cache(gen_engine.load)


def asked(path, questions, **options):
    requests = [{"messages": [{"role": "user", "content": question}]} for question in questions]
    options["repetition_penalty"] = 1.05
    return [result.text for result in engine(path).generate_text_batch(requests, options)]


def streamed(path, question, stop):
    return asked(path, [question], max_new_tokens=40, stop=[stop])[0]


def pooled(path, questions):
    return asked(path, questions, max_new_tokens=16)
"""
QUESTIONS = [f"Count to {n}." for n in range(3, 13)] + ["What is the capital of France?", "List three fruits."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """old_threads.py, and what it gave."""
    folder = tmp_path_factory.mktemp("threads")
    (folder / "old_threads.py").write_text(OLD)
    store, found = Store(folder / "golden"), list[Case]()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        sites = [Site(name, f"old_threads:{name}") for name in ("streamed", "pooled")]
        with Observer(sites=sites, sink=found.append, store=store) as observer:
            old = importlib.import_module("old_threads")
            old.streamed(str(TEXT), "Count to 12.", ", 7")
            old.pooled(str(TEXT), QUESTIONS)
            old.pooled(str(TEXT), QUESTIONS[:2])
        assert observer.failures == []
        for one in found:
            store.write(one)
        for name in ("streamed", "pooled"):
            store.set_site(name, functions=[f"old_threads:{name}"])
        yield folder


def judged(folder: Path, place: Path, site: str, name: str, *edits: tuple[str, str]) -> Outcome:
    """The outcome with these edits of the moved code."""
    code = MOVED
    for before, after in edits:
        assert before in code
        code = code.replace(before, after)
    (place / "new_threads.py").write_text(code)
    importlib.invalidate_caches()
    store = Store(folder / "golden")
    pending = Pending.of(store)
    settings = {**store.settings()[site], "moved": {"old_threads": "new_threads"}}
    with Session(store, {f"new_threads:{site}": site}) as session:
        found = list(check_site(session, site, [name], "hf", settings, pending))
    [outcome] = settle_samples(found, pending.ledgers)
    return outcome


def test_what_threads_ask_stands_with_their_call(folder: Path) -> None:
    """Also where nobody waits for the thread, and in the order in which a pool was given its work."""
    store = Store(folder / "golden")
    [row] = store.read("streamed", "streamed-001").rows
    assert row["stop"]["max_new_tokens"]["value"] == 40 and len(row["output_ids"]) > len("1, 2, 3, 4, 5, 6")
    for name, questions in (("pooled-001", QUESTIONS), ("pooled-002", QUESTIONS[:2])):
        rows = store.read("pooled", name).rows
        assert [one["messages"][0]["content"] for one in rows] == questions
        assert all(one["inputs"]["positions"] == "from 0" for one in rows), "what reached the forward of each"


@pytest.mark.parametrize(
    ("site", "name", "edit", "cause"),
    [
        ("streamed", "streamed-001", None, None),
        ("pooled", "pooled-001", None, None),
        ("streamed", "streamed-001", ('"content": question', '"content": question + " "'), "prompt.messages"),
        ("streamed", "streamed-001", ('= 1.05', '= 1.05; options["temperature"] = 0.4'), "sampling.mode"),
        ("pooled", "pooled-001", ("max_new_tokens=16)", "max_new_tokens=16)[::-1]"), "order"),
        ("pooled", "pooled-002", ("max_new_tokens=16", "max_new_tokens=8"), "stop.max_new_tokens"),
    ],
)  # fmt: skip
def test_it_is_judged_as_what_one_thread_asks(
    site: str, name: str, edit: Any, cause: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    outcome = judged(folder, tmp_path, site, name, *([edit] if edit else []))
    if cause is None:
        assert outcome.verdict in ("IDENTICAL", "TEXT-IDENTICAL")
    else:
        assert outcome.verdict in ("DRIFT", "LATENT") and outcome.cause and outcome.cause.name == cause


# == A thread that outlives the call ==

SERVED = """
import functools
import queue
from threading import Thread

import transformers

asked, answered = queue.Queue(), queue.Queue()


@functools.cache
def loaded(path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval(), tokenizer


def serve():
    while True:
        path, question, by_hand = asked.get()
        model, tokenizer = loaded(path)
        inputs = tokenizer(question, return_tensors="pt")
        if by_hand:
            answered.put(int(model(**inputs).logits[0, -1].argmax()))
        else:
            ids = model.generate(**inputs, max_new_tokens=4, do_sample=False)
            answered.put(tokenizer.decode(ids[0, inputs.input_ids.shape[1] :]))


@functools.cache
def server():
    Thread(target=serve, daemon=True).start()


def ask(path, question, by_hand=False):
    server()
    asked.put((path, question, by_hand))
    return answered.get()


@functools.cache
def cached(question):
    return "nothing was asked"
"""


def test_a_call_whose_model_runs_in_a_thread_that_outlives_calls_is_no_golden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served.py").write_text(SERVED)
    monkeypatch.syspath_prepend(tmp_path)
    found = list[Case]()
    sites = [Site(name, f"served:{name}") for name in ("ask", "cached")]
    with Observer(sites=sites, sink=found.append) as observer:
        served = importlib.import_module("served")
        served.ask(str(TEXT), "a")
        assert [(case.case, len(case.rows)) for case in found] == [("ask-001", 1)] and not observer.failures
        served.ask(str(TEXT), "b")
        served.ask(str(TEXT), "c", by_hand=True)
        served.cached("d")
    assert [case.case for case in found[1:]] == ["cached-001"]
    assert [line.split(":")[0] for line in observer.failures] == [f"ask/ask-00{n} is no golden" for n in (2, 3)]
    assert all("thread" in line for line in observer.failures)


def test_a_check_of_code_whose_model_runs_in_a_thread_that_outlives_calls_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served.py").write_text(SERVED)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    store = Store(tmp_path / "golden")
    for number, value in ((1, " is"), (2, " is")):
        arguments = {"path": str(TEXT), "question": "a"}
        store.write(Case("ask", f"ask-{number}", "served:ask", arguments, value=value))
    settings = {"functions": ["served:ask"], "moved": {}}
    with Session(store, {"served:ask": "ask"}) as session:
        found = list(check_site(session, "ask", ["ask-1", "ask-2"], "hf", settings, Pending.of(store)))
    assert found[1].verdict == "ERROR" and found[1].cause is not None and "thread" in found[1].cause.sentence
