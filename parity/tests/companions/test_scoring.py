"""`score_batch` for training: gradients of adapters, a reference without them, entropies."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from parity.companions.rollout import rollout_mismatch, rollout_pair

from ..conftest import ROOT, TEXT, open_engine

ADAPTERS = {name: str(ROOT / "golden/models/random-adapters" / name) for name in ("one", "two")}
PROMPT = "The capital of France"
OPTIONS = {"max_new_tokens": 8, "logprobs": 0}


def lora_of(model: Any, adapter: str) -> dict[str, Any]:
    return {name: own for name, own in model.named_parameters() if f".{adapter}." in name}


def test_score_batch_with_gradient_reaches_all_weights_of_the_adapter_as_peft_does(tmp_path: Path) -> None:
    peft, transformers = importlib.import_module("peft"), importlib.import_module("transformers")
    torch = importlib.import_module("torch")
    plain = transformers.AutoModelForCausalLM.from_pretrained(TEXT)
    reference = peft.PeftModel.from_pretrained(plain, ADAPTERS["one"], is_trainable=True)
    with open_engine(TEXT, "hf", adapters=ADAPTERS) as engine:
        request = {"prompt": PROMPT, "adapter": "one"}
        ids = (5, 6, 7)
        [score] = engine.score_batch([(request, ids)], grad=True)
        engine.score_batch([(PROMPT, ids), ({**request, "adapter": "two"}, ids)])
        score.logprobs.sum().backward()
        prompt = engine.tokenizer(PROMPT)["input_ids"]
        logits = reference(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        logits.gather(1, torch.tensor(ids)[:, None]).sum().backward()
        expected = [own.grad for name, own in reference.named_parameters() if "lora_" in name]
        own = lora_of(engine.model, "one")
        assert len(own) == len(expected) > 0
        for value, name in zip(expected, own):
            assert torch.allclose(own[name].grad, value, atol=1e-4), name
        others = [name for name, one in engine.model.named_parameters() if one.grad is not None]
        assert sorted(others) == sorted(own)
        optimizer = torch.optim.SGD(own.values(), lr=0.1)
        [before] = engine.score_batch([(request, ids)])
        reference_before = engine.score_batch([(PROMPT, ids)])[0].logprobs
        optimizer.step()
        [after] = engine.score_batch([(request, ids)])
        assert sum(after.logprobs) != pytest.approx(sum(before.logprobs), abs=1e-3)
        assert engine.score_batch([(PROMPT, ids)])[0].logprobs == reference_before


def test_results_and_rollout_mismatch_know_their_adapter(backend: str) -> None:
    with open_engine(TEXT, backend, adapters=ADAPTERS, logits_hooks=True) as engine:
        requests = [{"prompt": PROMPT, "adapter": name} for name in (None, "one", "two")]
        results = engine.generate_text_batch(requests, OPTIONS)
        assert [result.adapter for result in results] == [None, "one", "two"]
        bare = engine.generate_text_batch(requests, {"max_new_tokens": 8})
        trainer = [result.logprobs or () for result in results]
        assert rollout_mismatch(engine, bare, logprobs=trainer).most < 1e-4
        scores = engine.score_batch(list(map(rollout_pair, results)))
        assert [score.adapter for score in scores] == [None, "one", "two"]
        options = {"temperature": 0.7}
        cooled = [one.logprobs for one in engine.score_batch(list(map(rollout_pair, results)), temperature=0.7)]
        assert rollout_mismatch(engine, results, logprobs=cooled, options=options).most < 1e-3
