"""Samples, log-probabilities, full logits, and scores of given responses: the same figures on both backends."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from gen_engine import (
    GenerationEngine,
    OptionError,
    PromptTooLongError,
    RequestError,
    TextGenerationRequest,
    UnsupportedError,
    score_batch,
)
from parity.models.tasks import drawing, text_tasks, vision_tasks

from ..conftest import SMALL, TEXT, VL, Load, chat, of_task, open_engine

COUNT = chat("Count to 12.")
UNSURE = {"prompt": "The"}
TASKS = text_tasks(24)
CLOSE = 1e-4


def pairs() -> list[tuple[Any, str]]:
    return [(of_task(task), task.answer) for task in TASKS] + [("The capital", " is wrong, wholly"), ([5, 6, 7], "zz")]


def test_n_samples_are_the_seeds_from_seed_on(text: GenerationEngine) -> None:
    options = {"temperature": 2.0, "max_new_tokens": 8, "seed": 11}
    [result] = text.generate_text_batch([UNSURE], {**options, "n": 4})
    alone = [text.generate_text_batch([UNSURE], {**options, "seed": 11 + k})[0] for k in range(4)]
    assert list(result.samples) == alone
    assert (result.text, result.token_ids) == (alone[0].text, alone[0].token_ids)
    assert len({sample.token_ids for sample in result.samples}) > 1


def test_n_samples_of_several_requests_stay_with_their_request(text: GenerationEngine) -> None:
    options = {"temperature": 2.0, "max_new_tokens": 5, "n": 3}
    results = text.generate_text_batch([UNSURE, {"prompt": "Count"}], options)
    assert [[s.prompt_token_ids for s in r.samples] for r in results] == [[r.prompt_token_ids] * 3 for r in results]
    assert results[0].prompt_token_ids != results[1].prompt_token_ids
    [greedy] = text.generate_text_batch([COUNT], {"n": 3})
    assert len({sample.token_ids for sample in greedy.samples}) == 1


def test_logprobs_are_raw_and_the_same_on_both(shared: Load) -> None:
    options = {"max_new_tokens": 12, "logprobs": 3, "temperature": 0.0, "repetition_penalty": 1.4}
    hf, vllm = (shared(TEXT, b).generate_text_batch([COUNT, UNSURE], options) for b in ("hf", "vllm"))
    for a, b in zip(hf, vllm):
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=CLOSE)
        assert a.top_logprobs is not None and b.top_logprobs is not None
        assert len(a.top_logprobs) == len(a.token_ids) == a.completion_tokens
        for x, y in zip(a.top_logprobs, b.top_logprobs):
            assert list(x) == list(y) and len(x) == 3
            assert list(x.values()) == pytest.approx(list(y.values()), abs=CLOSE)


def test_an_end_that_is_held_back_keeps_its_raw_logprob(text: GenerationEngine) -> None:
    [free] = text.generate_text_batch([chat("Count to 3.")], {"max_new_tokens": 20})
    options = {"max_new_tokens": 20, "min_new_tokens": 20, "logprobs": 2}
    [held] = text.generate_text_batch([chat("Count to 3.")], options)
    end = free.completion_tokens - 1
    assert held.token_ids[:end] == free.token_ids[:end] and held.token_ids[end] != free.token_ids[end]
    assert held.top_logprobs is not None and held.top_logprobs[end][free.token_ids[end]] > -0.1


def test_logprobs_of_an_answer_are_its_score(hooked: GenerationEngine) -> None:
    [result] = hooked.generate_text_batch(
        [UNSURE], {"max_new_tokens": 10, "logprobs": 0, "temperature": 1.5, "seed": 1}
    )
    [score] = hooked.score_batch([("The", result.token_ids)])
    assert score.logprobs == pytest.approx(result.logprobs, abs=CLOSE)
    assert result.top_logprobs is None


def test_any_number_of_logprobs_can_be_asked_for(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([UNSURE], {"max_new_tokens": 2, "logprobs": 50})
    assert result.top_logprobs is not None and [len(top) for top in result.top_logprobs] == [50, 50]


def test_full_logits_are_those_of_the_model_on_both(shared: Load) -> None:
    options = {"max_new_tokens": 6, "logits": True, "logprobs": 0, "stop": {"ignore_eos": True}}
    hf, vllm = (
        shared(TEXT, b, logits_hooks=True).generate_text_batch([COUNT, UNSURE], options) for b in ("hf", "vllm")
    )
    for a, b in zip(hf, vllm):
        assert a.token_ids == b.token_ids
        assert a.logits.shape == b.logits.shape == (6, shared(TEXT, "hf").checkpoint.config.vocab_size)
        assert (a.logits - b.logits).abs().max() < CLOSE * 10
        chosen = a.logits.log_softmax(-1)[range(6), list(a.token_ids)].tolist()
        assert chosen == pytest.approx(a.logprobs, abs=CLOSE)


def test_full_logits_of_a_prompt_that_is_read_in_parts_are_of_its_answer(shared: Load) -> None:
    """vLLM calls its hook behind each part of a prompt that takes several steps."""
    options = {"max_new_tokens": 6, "logits": True, "stop": {"ignore_eos": True}}
    asked = [chat("You know this. " * 20 + "What is the capital of France?"), COUNT]
    whole = shared(TEXT, "hf").generate_text_batch(asked, options)
    few = {**SMALL["vllm"]["vllm_kwargs"], "max_num_seqs": 4, "max_num_batched_tokens": 48}
    with open_engine(TEXT, "vllm", logits_hooks=True, vllm_kwargs=few) as engine:
        parts = engine.generate_text_batch(asked, options)
    for a, b in zip(whole, parts):
        assert a.token_ids == b.token_ids and a.logits.shape == b.logits.shape
        assert (a.logits - b.logits).abs().max() < CLOSE * 10


def test_scores_agree_with_plain_transformers_and_with_each_other(shared: Load) -> None:
    transformers, torch = importlib.import_module("transformers"), importlib.import_module("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT)
    hf, vllm = (score_batch(shared(TEXT, b), pairs()) for b in ("hf", "vllm"))
    for a, b in zip(hf, vllm):
        assert (a.token_ids, a.prompt_token_ids) == (b.token_ids, b.prompt_token_ids)
        with torch.no_grad():
            logits = model(torch.tensor([a.prompt_token_ids + a.token_ids])).logits[0]
        rows = range(len(a.prompt_token_ids) - 1, len(a.prompt_token_ids) + len(a.token_ids) - 1)
        plain = logits.log_softmax(-1)[list(rows), list(a.token_ids)].tolist()
        assert a.logprobs == pytest.approx(plain, abs=CLOSE)
        assert b.logprobs == pytest.approx(plain, abs=CLOSE)


def test_scores_at_a_temperature_are_those_of_divided_logits_on_both(shared: Load) -> None:
    transformers, torch = importlib.import_module("transformers"), importlib.import_module("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT)
    hf, vllm = (shared(TEXT, b, logits_hooks=True).score_batch(pairs()[:4], temperature=0.6) for b in ("hf", "vllm"))
    for a, b in zip(hf, vllm):
        with torch.no_grad():
            logits = model(torch.tensor([a.prompt_token_ids + a.token_ids])).logits[0] / 0.6
        rows = range(len(a.prompt_token_ids) - 1, len(a.prompt_token_ids) + len(a.token_ids) - 1)
        plain = logits.log_softmax(-1)[list(rows), list(a.token_ids)].tolist()
        assert a.logprobs == pytest.approx(plain, abs=CLOSE)
        assert b.logprobs == pytest.approx(plain, abs=CLOSE)
        assert a.logits is None and b.logits is None
    [raw] = shared(TEXT, "hf").score_batch(pairs()[:1])
    [carried] = shared(TEXT, "hf").score_batch(pairs()[:1], temperature=0.6, grad=True)
    assert (
        carried.logprobs.tolist() == pytest.approx(hf[0].logprobs, abs=CLOSE) != pytest.approx(raw.logprobs, abs=CLOSE)
    )


def test_scores_at_a_temperature_need_the_hook_on_vllm(shared: Load) -> None:
    with pytest.raises(UnsupportedError, match="logits_hooks=True"):
        shared(TEXT, "vllm").score_batch(pairs()[:1], temperature=0.6)
    for bad in (0, -1, float("nan"), "1"):
        with pytest.raises(OptionError, match="temperature"):
            shared(TEXT, "hf").score_batch(pairs()[:1], temperature=bad)  # type: ignore[arg-type]


def test_score_logits_have_a_row_per_response_token_on_both(shared: Load) -> None:
    items = pairs()[:6]
    hf, vllm = (shared(TEXT, b, logits_hooks=True).score_batch(items, logits=True) for b in ("hf", "vllm"))
    for a, b in zip(hf, vllm):
        assert a.logits.shape == b.logits.shape == (len(a.token_ids), shared(TEXT, "hf").checkpoint.config.vocab_size)
        assert (a.logits.log_softmax(-1) - b.logits.log_softmax(-1)).abs().max() < CLOSE * 10
        assert a.logprobs == pytest.approx(b.logprobs, abs=CLOSE)


def test_responses_to_pictures_are_scored_alike_on_both(shared: Load) -> None:
    items = [(of_task(task), task.answer) for task in vision_tasks(12)]
    hf, vllm = (shared(VL, b).score_batch(items[:5]) for b in ("hf", "vllm"))
    for a, b in zip(hf, vllm):
        assert a.prompt_token_ids == b.prompt_token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=CLOSE)


def test_the_boundary_is_between_ids_and_never_retokenized(text: GenerationEngine) -> None:
    prompt, response = "The cap", "ital"
    assert len(text.tokenizer.encode(prompt + response)) < len(text.tokenizer.encode(prompt)) + len(
        text.tokenizer.encode(response)
    )
    [score] = text.score_batch([(prompt, response)])
    assert score.prompt_token_ids == tuple(text.tokenizer.encode(prompt))
    assert score.token_ids == tuple(text.tokenizer.encode(response))


def test_gradients_flow_through_scores_on_hf_only(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    scores = engine.score_batch(pairs()[:3], grad=True)
    loss = -sum(score.logprobs.sum() for score in scores)
    loss.backward()
    assert engine.model.model.embed_tokens.weight.grad.abs().sum() > 0
    engine.model.zero_grad(set_to_none=True)
    assert not shared(TEXT, "hf").score_batch(pairs()[:1], logits=True)[0].logits.requires_grad
    with pytest.raises(UnsupportedError, match="gradient"):
        shared(TEXT, "vllm").score_batch(pairs()[:1], grad=True)


def test_full_logits_need_the_hook_on_vllm(shared: Load) -> None:
    engine = shared(TEXT, "vllm")
    with pytest.raises(UnsupportedError, match="logits_hooks=True"):
        engine.generate_text_batch([COUNT], {"logits": True})
    with pytest.raises(UnsupportedError, match="logits_hooks=True"):
        engine.score_batch(pairs()[:1], logits=True)


def test_a_prompt_may_be_a_request_of_either_kind(text: GenerationEngine) -> None:
    asked = TextGenerationRequest(prompt="The capital")
    assert text.score_batch([(asked, " is")]) == text.score_batch([("The capital", " is")])
    with pytest.raises(RequestError, match="structured and seed are for generating"):
        text.score_batch([(TextGenerationRequest(prompt="The", seed=1), "x")])


def test_bad_pairs_are_named(text: GenerationEngine) -> None:
    for item, said in (
        ("no pair at all", "expected .prompt, response., got str"),
        ("ab", "expected .prompt, response., got str"),
        (("a", "b", "c"), "expected .prompt, response., got tuple"),
        (("x", [-1]), "outside the vocabulary"),
        (([], "y"), "messages is empty"),
        (("x", ""), "the response has no tokens"),
        (("x", [10**6]), "outside the vocabulary"),
        (([{"role": "usr", "content": "x"}], "y"), "no role 'usr'"),
    ):
        with pytest.raises(RequestError, match=f"request 1: .*{said}"):
            text.score_batch([("a", "b"), item])
    with pytest.raises(PromptTooLongError, match="the window has 102"):
        text.score_batch([("a", "b " * 2000)])
    for response in (b"bc", [2.5]):
        with pytest.raises(OptionError, match="request 0: the response is"):
            text.score_batch([("a", response)])
    with pytest.raises(RequestError, match="items is dict"):
        text.score_batch({"ab": 1})  # type: ignore[arg-type]
    assert text.score_batch([]) == []


def test_what_fills_the_window_can_be_scored(shared: Load, backend: str) -> None:
    """vLLM generates a token behind it, always."""
    engine = shared(TEXT, backend)
    room = 24 if backend == "hf" else 23
    assert len(engine.score_batch([([5] * 1000, [6] * room)])[0].logprobs) == room
    with pytest.raises(PromptTooLongError, match="request 0: prompt and response have 1025 tokens"):
        engine.score_batch([([5] * 1000, [6] * 25)])
    if backend == "vllm":
        with pytest.raises(PromptTooLongError, match="the window has 1023"):
            engine.score_batch([([5] * 1000, [6] * 24)])


def test_a_drawing_is_likelier_to_be_what_it_is(vl: GenerationEngine) -> None:
    content = [{"type": "image", "image": drawing("red", "circle")}, {"type": "text", "text": "What do you see?"}]
    request = {"messages": [{"role": "user", "content": content}]}
    right, wrong = vl.score_batch([(request, "A red circle."), (request, "A blue square.")])
    assert sum(right.logprobs) > sum(wrong.logprobs) + 5


def test_a_boundary_in_the_text_is_where_lm_eval_puts_it(text: GenerationEngine) -> None:
    pairs = [("The capital of France is", " Paris."), ("The capital of France is ", "Paris.")]
    one, other = text.score_batch(pairs, boundary="text")
    joined = text.tokenizer("The capital of France is Paris.")["input_ids"]
    prompt = text.tokenizer("The capital of France is")["input_ids"]
    assert list(one.token_ids) == joined[len(prompt) :]
    assert (one.token_ids, one.prompt_token_ids) == (other.token_ids, other.prompt_token_ids)
    with pytest.raises(RequestError, match="request 0: boundary='text' needs"):
        text.score_batch([([1, 2], "Paris.")], boundary="text")
    with pytest.raises(OptionError, match="no boundary 'txt'"):
        text.score_batch(pairs, boundary="txt")  # type: ignore[arg-type]


def test_logits_are_made_for_the_response_only(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf")
    shapes = []
    forward = engine.model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        shapes.append(output.logits.shape[1])
        return output

    counted.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(engine.model, "forward", counted)
    engine.score_batch([([5] * 300, [6, 7, 8]), ([5] * 20, [9, 9])])
    assert shapes == [5]
