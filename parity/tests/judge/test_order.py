"""Old code that sorts its batch, and moved code that does not: rows belong to their prompts, not to their places."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from parity.environment.kernels import known_biases
from parity.goldens.store import Store, environment
from parity.judge.check import check_sites
from parity.record.observe import Observer, Site, case, load_function
from parity.tests.conftest import ROOT, SMALL

pytestmark = pytest.mark.usefixtures("forked_python")

UNSURE = ROOT / "golden/models/random-llama"  # never sure of the next token
PROMPTS = [
    "Name three red things, and say why.",
    "The",
    "Draw a house.",
    "One two",
    "red red red red red",
    "Count to seven.",
    "A list of metals: iron,",
    "What is the capital of Peru, and of Chile?",
    "Anna is",
    "Say it again, and again.",
    "Five planets",
    "Once upon a time there was a small horse",
]
OLD = """
import torch, transformers

def ask(model_path, prompts, dtype, warm):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, dtype))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path, padding_side="left")
    order = sorted(range(len(prompts)), key=lambda place: -len(prompts[place]))
    given = tokenizer([prompts[place] for place in order], return_tensors="pt", padding=True)
    how = {"do_sample": warm, "top_k": 0} if warm else {"do_sample": False}
    ids = model.generate(**given, **how, max_new_tokens=24)
    texts = tokenizer.batch_decode(ids[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text for _, text in sorted(zip(order, texts))]
"""
NEW = """
from gen_engine import load

LOADED = {}

def ask(model_path, prompts, dtype, warm):
    if dtype not in LOADED:
        LOADED[dtype] = load(model_path, dtype=dtype, max_model_len=512)
    how = {"temperature": float(warm), "max_new_tokens": 24}
    return [one.text for one in LOADED[dtype].generate_text_batch([{"prompt": p} for p in prompts], how)]
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, code in {"sorting_old": OLD, "sorting_new": NEW}.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    store, found, site = Store(tmp_path / "golden"), list[Any](), Site("sorts", "sorting_old:ask")
    with Observer(sites=[site], sink=found.append, store=store):
        ask = load_function(site.function)
        for name, dtype, warm in (("drawn", "float32", True), ("half", "bfloat16", False)):
            with case(name):
                ask(str(UNSURE), PROMPTS, dtype, warm)
    fingerprint = store.put_environment(environment())
    for one in found:
        store.write(dataclasses.replace(one, environment=fingerprint))
    moved = {"sorting_old": "sorting_new"}
    store.set_site("sorts", functions=[site.function], moved=moved, load={"vllm": SMALL["vllm"]})
    return store


def test_a_sorted_batch_is_no_other_order(store: Store, backend: str) -> None:
    found = {o.case: o for o in check_sites(store, backends=(backend,)).outcomes}
    assert found["drawn"].verdict in ("SAME-DISTRIBUTION", "SAME-SETTINGS"), found["drawn"]
    half = found["half"]
    if known_biases(backend, "bfloat16"):  # vLLM's kernels do not round here: their shift is found, and no other order
        assert half.cause is None or half.cause.name.startswith(("model.", "numeric.")), half
    else:
        assert half.verdict in ("TEXT-IDENTICAL", "NEAR-TIE", "IDENTICAL"), half
