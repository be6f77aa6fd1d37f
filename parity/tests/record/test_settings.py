"""A call site whose arguments are settings of a library: each case has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from parity.goldens.store import Store
from parity.judge.check import check_sites
from parity.record.observe import Observer, Site, case, load_function
from parity.tests.conftest import TEXT

pytestmark = pytest.mark.usefixtures("forked_python")

OLD = """
import torch, transformers

def ask(model_path, prompt, config):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    given = tokenizer(prompt, return_tensors="pt")
    [ids] = model.generate(**given, generation_config=config)
    return tokenizer.decode(ids[given["input_ids"].shape[1] :], skip_special_tokens=True)
"""
NEW = """
from gen_engine import load

LOADED = []

def ask(model_path, prompt, config):
    if not LOADED:
        LOADED.append(load(model_path, dtype="float32", max_model_len=512))
    own = {"max_new_tokens": MOST, "repetition_penalty": config.repetition_penalty or 1.0}
    how = {**own, "stop": {"ignore_eos": True, "token_ids": config.eos_token_id}}
    return LOADED[0].generate_text_batch([{"prompt": prompt}], how)[0].text
"""


def test_settings_that_are_arguments_are_those_of_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings_old.py").write_text(OLD)
    (tmp_path / "settings_right.py").write_text(NEW.replace("MOST", "config.max_new_tokens"))
    (tmp_path / "settings_wrong.py").write_text(NEW.replace("MOST", "6"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    store, found, site = Store(tmp_path / "golden"), list[Any](), Site("asks", "settings_old:ask")
    with Observer(sites=[site], sink=found.append, store=store):
        ask = load_function(site.function)
        for count, penalty in ((4, 1.0), (9, 1.4)):
            own = {"max_new_tokens": count, "repetition_penalty": penalty, "eos_token_id": [552, 550]}
            config = transformers.GenerationConfig(do_sample=False, pad_token_id=550, **own)
            with case(f"at-most-{count}"):
                ask(str(TEXT), "Count to 12.", config)
    for one in found:
        store.write(one)
    for moved, verdicts in (("settings_right", ["IDENTICAL"] * 2), ("settings_wrong", ["DRIFT"] * 2)):
        store.set_site("asks", functions=[site.function], moved={"settings_old": moved})
        outcomes = check_sites(store, backends=("hf",)).outcomes
        assert [o.verdict for o in outcomes] == verdicts, [o.cause for o in outcomes]
