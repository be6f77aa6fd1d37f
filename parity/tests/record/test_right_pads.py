"""Rows that are padded on the right without a mask, under causal attention: pads are no tokens of a prompt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity.goldens.store import Store, environment
from parity.judge.check import check_sites
from parity.record.events import Forward, ForwardRow
from parity.record.observe import Observer, Site, case, load_function
from parity.record.taps import loops
from parity.tests.conftest import SMALL, TEXT

pytestmark = pytest.mark.usefixtures("forked_python")

OLD = """
import torch, transformers

def score(model_path, question, choices):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    start = len(tokenizer.encode(question))
    whole = [tokenizer.encode(question + choice) for choice in choices]
    whole = sorted(whole, key=lambda ids: -len(ids))
    width = max(map(len, whole)) - 1
    batch = torch.tensor([ids[:-1] + [PAD] * (width - len(ids) + 1) for ids in whole])
    with torch.no_grad():
        logprobs = model(batch).logits.float().log_softmax(-1)
    sums = {}
    for row, ids in zip(logprobs, whole):
        own = row[start - 1 : len(ids) - 1].gather(1, torch.tensor(ids[start:])[:, None])
        sums[tokenizer.decode(ids[start:])] = float(own.sum())
    return [sums[choice] for choice in choices]
"""
NEW = """
from gen_engine import load

LOADED = []

def score(model_path, question, choices):
    if not LOADED:
        LOADED.append(load(model_path, dtype="float32", max_model_len=512))
    pairs = []
    encode = LOADED[0].tokenizer.encode
    start = len(encode(question))
    for choice in choices:
        ids = encode(question + choice)
        pairs.append(({"prompt_token_ids": ids[:start]}, ids[start:]))
    return [sum(one.logprobs) for one in LOADED[0].score_batch(pairs)]
"""


@pytest.fixture(params=["0", "550"])
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Store:
    (tmp_path / "padding_old.py").write_text(OLD.replace("PAD", request.param))
    (tmp_path / "padding_new.py").write_text(NEW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    store, found, site = Store(tmp_path / "golden"), list[Any](), Site("pads", "padding_old:score")
    with Observer(sites=[site], sink=found.append, store=store):
        score = load_function(site.function)
        with case("several"):
            score(str(TEXT), "What is red? Answer:", [" a house", " Oslo and the sea", " 12"])
        with case("one-token"):
            score(str(TEXT), "Is 4 even? Answer:", [" 1", " 2"])
    fingerprint = store.put_environment(environment())
    for one in found:
        store.write(dataclasses.replace(one, environment=fingerprint))
    moved = {"padding_old": "padding_new"}
    store.set_site("pads", functions=[site.function], moved=moved, load={"vllm": SMALL["vllm"]})
    monkeypatch.delitem(__import__("sys").modules, "padding_old")
    return store


def test_pads_behind_a_row_are_no_tokens_of_it(store: Store) -> None:
    found = {o.case: o for o in check_sites(store, backends=("hf",)).outcomes}
    assert {o.verdict for o in found.values()} <= {"IDENTICAL", "TEXT-IDENTICAL"}, [o.cause for o in found.values()]


@pytest.mark.parametrize("store", ["550"], indirect=True)
def test_a_choice_that_is_cut_is_seen(store: Store, tmp_path: Path) -> None:
    (tmp_path / "padding_cut.py").write_text(NEW.replace("ids[:start]}", "ids[1:start]}"))
    function = store.read("pads", "several").function
    store.set_site("pads", moved={function: "padding_cut:score"})
    [outcome] = check_sites(store, sites=["pads"], cases=["several"], backends=("hf",)).outcomes
    assert outcome.verdict == "DRIFT" and outcome.cause is not None and outcome.cause.name.startswith("prompt."), (
        outcome
    )


TEXTS = [(5, 6, 7, 8), (5, 9), (5, 6, 0, 0), (8,)]


@pytest.mark.parametrize(
    ("batch", "own", "why"),
    [
        ([[5, 6, 7], [5, 9, 0]], [3, 2], "the last id of a text may be left out"),
        ([[5, 6, 7], [5, 0, 0]], [3, 1], "one of two ids, whose last one nothing reads"),
        ([[5, 6, 0], [5, 6, 7]], [3, 3], "a text that has the pad in it"),
        ([[3, 5, 6, 7], [3, 5, 9, 0]], [4, 3], "behind an id that the code puts before each text"),
        ([[3, 5, 6, 7], [3, 0, 0, 0]], [4, 1], "before a text of one id, which nothing reads"),
        ([[5, 6, 7], [4, 9, 0]], [3, 3], "no text"),
        ([[5, 9, 0], [5, 9, 0]], [3, 3], "no row is the longest"),
        ([[5, 9, 0]], [3], "one row has no pads"),
        ([[5, 9, 0], [5, 9, 1], [5, 6, 7]], [3, 3, 3], "two ids"),
    ],
)
def test_which_ids_are_pads(batch: list[list[int]], own: list[int], why: str) -> None:
    seen = Forward([ForwardRow(tuple(ids), {}) for ids in batch])
    made = loops.without_right_pads(seen, {}, TEXTS)
    assert [len(row.ids) for row in made.rows] == own, why
    assert (made is not seen) == (own != [len(ids) for ids in batch])


def test_an_id_alone_stands_before_no_text_where_each_text_has_more() -> None:
    seen = Forward([ForwardRow(ids, {}) for ids in ((3, 5, 6), (3, 0, 0))])
    assert loops.without_right_pads(seen, {}, TEXTS[:-1]) is seen


def test_pads_are_tokens_to_a_model_that_looks_ahead() -> None:
    config = SimpleNamespace(is_encoder_decoder=False)
    assert loops.is_causal(SimpleNamespace(can_generate=lambda: True, config=config))
    assert not loops.is_causal(SimpleNamespace(can_generate=lambda: False, config=config))
