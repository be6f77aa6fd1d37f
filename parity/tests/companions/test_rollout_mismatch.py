"""`rollout_mismatch`: a trainer's log-probabilities beside the rollout's."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

import gen_engine
from parity.companions.rollout import mismatch_of, processed, rollout_mismatch
from parity.tests.conftest import ROOT, TEXT, Load


def test_mismatch_of_known_gaps_gives_the_formulas() -> None:
    found = mismatch_of([[-1.0, -2.0], [-3.0]], [[-1.0, -1.5], [-3.25]])
    weights = [1.0, math.exp(0.5), math.exp(-0.25)]
    assert found.tokens == 3
    assert found.mean == pytest.approx(0.25)
    assert found.most == 0.5
    assert (found.worst_row, found.worst_step) == (0, 1)
    assert found.tmpe == pytest.approx((1 + math.exp(0.5) + math.exp(0.25)) / 3)
    assert found.k3 == pytest.approx((sum(weights) - 3 - 0.25) / 3)
    assert found.ess == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights) / 3)


@pytest.mark.parametrize(("old", "new"), [([[-1.0]], [[-1.0, -2.0]]), ([[]], [[]]), ([[-1.0]], [[math.nan]])])
def test_mismatch_of_other_tokens_is_refused(old: list[list[float]], new: list[list[float]]) -> None:
    with pytest.raises(gen_engine.RequestError):
        mismatch_of(old, new)


def test_rollout_mismatch_unread_results_are_read() -> None:
    with gen_engine.load(ROOT / "golden/models/random-llama", progress=False) as engine:
        requests = [{"prompt": "one"}, {"prompt": "two, three"}]
        read = engine.generate_text_batch(requests, {"max_new_tokens": 6, "logprobs": 0})
        bare = engine.generate_text_batch(requests, {"max_new_tokens": 6})
        found = rollout_mismatch(engine, bare, logprobs=[result.logprobs or () for result in read])
    assert found.tokens == 12
    assert found.most < 1e-4


OPTIONS = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.02}


@pytest.mark.parametrize("options", [OPTIONS, {"temperature": 0.6}, {"temperature": 1.0, "top_p": 0.7}], ids=repr)
def test_processed_is_what_transformers_sampled_from(shared: Load, options: dict[str, Any], backend: str) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    engine = shared(TEXT, backend, logits_hooks=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT)
    prompt = engine.tokenizer("The", return_tensors="pt")
    torch.manual_seed(0)
    made = model.generate(
        **prompt, do_sample=True, max_new_tokens=12, output_scores=True,
        return_dict_in_generate=True, eos_token_id=575, repetition_penalty=1.0,
        **{"top_k": 0, "top_p": 1.0, **options},
    )  # fmt: skip
    ids = made.sequences[0, prompt["input_ids"].shape[1] :].tolist()
    [found] = processed(engine.score_batch([("The", ids)], logits=True), options)
    plain = model.compute_transition_scores(made.sequences, made.scores, normalize_logits=True)[0]
    assert found.logprobs.tolist() == pytest.approx(plain.tolist(), abs=1e-3)
    assert (found.kept.sum(-1) == (torch.cat(made.scores) > -math.inf).sum(-1)).all()
    cooled = engine.score_batch([("The", ids)], temperature=options["temperature"])[0].logprobs
    assert cooled == pytest.approx((found.logprobs + found.mass.log()).tolist(), abs=1e-3)


def test_processed_of_what_was_cut_is_minus_infinity(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    [score] = engine.score_batch([("The", [7])], logits=True)
    [found] = processed([score], {"temperature": 1.0, "top_k": 1})
    assert found.kept.sum() == 1 and found.logprobs.tolist() == [-math.inf] and 0 < float(found.mass) < 1


@pytest.mark.parametrize(
    ("options", "word"),
    [({}, "greedy"), ({"temperature": 1, "repetition_penalty": 1.1}, "penalties"), ({"temperature": 1}, "logits")],
)
def test_processed_of_what_it_cannot_know_is_refused(shared: Load, options: dict[str, Any], word: str) -> None:
    scores = shared(TEXT, "hf").score_batch([("The", " capital")], logits=word != "logits")
    with pytest.raises(gen_engine.GenEngineError, match=word):
        processed(scores, options)


def test_rollout_mismatch_of_a_trainer_at_the_samples_temperature(shared: Load) -> None:
    """Of huggingface/trl#4159 and #6789: after temperature and cuts there is nothing between them, raw there is."""
    engine = shared(TEXT, "hf")
    options = {"temperature": 0.6, "top_p": 0.9, "seed": 1, "max_new_tokens": 12, "logprobs": 0}
    results = engine.generate_text_batch([{"prompt": "The"}, {"prompt": "One"}], options)
    pairs = [({"prompt_token_ids": one.prompt_token_ids}, one.token_ids) for one in results]
    trainer = [one.logprobs.tolist() for one in processed(engine.score_batch(pairs, logits=True), options)]
    assert rollout_mismatch(engine, results, logprobs=trainer, options=options).most < 1e-4
    assert rollout_mismatch(engine, results, logprobs=trainer).most > 0.01
