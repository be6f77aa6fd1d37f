"""`rollout_mismatch`: a trainer's log-probabilities beside the rollout's."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest

import gen_engine
from parity.companions.rollout import mismatch_of, processed, rollout_mismatch, rollout_pair
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


MODES = [{"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.02}, {"temperature": 0.6}, {"temperature": 0.0}]


@pytest.mark.parametrize("options", MODES, ids=repr)
def test_processed_logprobs_of_the_rollout_are_those_of_a_second_pass(
    shared: Load, options: dict[str, Any], backend: str
) -> None:
    engine = shared(TEXT, backend, logprobs_mode="processed")
    request = [{"prompt": "The", "seed": 5}, {"prompt": "One", "seed": 6}]
    results = engine.generate_text_batch(request, {**options, "max_new_tokens": 12, "logprobs": 0})
    raw = shared(TEXT, "hf").score_batch([rollout_pair(one) for one in results], logits=True)
    for result, score in zip(results, raw):
        expected = processed([score], options)[0] if options["temperature"] else score
        assert list(result.logprobs or ()) == pytest.approx(list(map(float, expected.logprobs)), abs=1e-3)


def test_processed_logprobs_with_a_replay_are_refused(shared: Load, backend: str) -> None:
    engine = shared(TEXT, backend, logprobs_mode="processed")
    with pytest.raises(gen_engine.UnsupportedError, match="logprobs_mode='processed'"):
        engine.generate_text_batch([{"prompt": "The"}], {"replay": [[5, 6]]})
    [score], [raw] = (one.score_batch([("The", [5, 6])]) for one in (engine, shared(TEXT, backend)))
    assert score.logprobs == pytest.approx(raw.logprobs, abs=1e-4)


def test_entropies_are_those_of_the_softmax(shared: Load, backend: str) -> None:
    engine = shared(TEXT, backend, logits_hooks=True)
    [score] = engine.score_batch([("The", [5, 6, 7])], logits=True, entropy=True, temperature=0.7)
    chances = (score.logits / 0.7).softmax(-1)
    expected = -(chances * chances.clamp(min=1e-30).log()).sum(-1)
    assert score.entropies == pytest.approx(expected.tolist(), abs=1e-4)


def test_rollout_mismatch_says_what_rounding_gives(shared: Load) -> None:
    engine = shared(TEXT, "hf", dtype="bfloat16")
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3, "logprobs": 0}
    results = engine.generate_text_batch([{"prompt": "The"}, {"prompt": "One"}], options)
    own = [result.logprobs or () for result in results]
    found = rollout_mismatch(engine, results, logprobs=own, rounding=True)
    assert found.most == 0
    assert found.rounding is not None and found.rounding.mean < 0.1  # some processors round both alike


def test_rounding_is_between_the_results_own_numbers_and_a_second_reading(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3, "logprobs": 0}
    results = engine.generate_text_batch([{"prompt": "The"}, {"prompt": "One"}], options)
    moved = [replace(one, logprobs=tuple(p - 0.25 for p in one.logprobs or ())) for one in results]
    own = [result.logprobs or () for result in moved]
    found = rollout_mismatch(engine, moved, logprobs=own, rounding=True)
    assert found.most == 0
    assert found.rounding is not None and found.rounding.mean == pytest.approx(0.25, abs=1e-3)


def test_rollout_mismatch_of_answers_of_other_weights_is_refused() -> None:
    with gen_engine.load(ROOT / "golden/models/random-llama", progress=False) as engine:
        results = engine.generate_text_batch([{"prompt": "one"}], {"max_new_tokens": 3})
        with engine.bare():
            pass
        with pytest.raises(gen_engine.RequestError, match="the answer is of the weights None"):
            rollout_mismatch(engine, results, logprobs=[[-1.0] * 3])
