"""Generation: the same ids on both backends, rows that do not know their neighbours, exact endings and counts."""

from __future__ import annotations

import functools
import http.server
import importlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from gen_engine import (
    EngineError,
    GenerationEngine,
    GenerationOptions,
    GenerationResult,
    LoadError,
    ModelLoadConfig,
    RowWatch,
    UnsupportedError,
    generate_text_batch,
    read_checkpoint,
    truncate_at_stops,
)
from parity.models.tasks import text_tasks

from ..conftest import ROOT, SMALL, TEXT, WINDOW, Load, chat, endings, of_task, open_engine, spy

TASKS = text_tasks(200)
RAGGED = [TASKS[place] for place in (0, 2, 6, 7, 9, 11)]  # prompts of 25 to 257 tokens, answers of 3 to 37
FULL = {"max_new_tokens": 256}
Both = Callable[[Path], list[GenerationEngine]]


def ids(results: list[Any]) -> list[tuple[int, ...]]:
    return [result.token_ids for result in results]


def test_200_prompts_give_the_same_ids_on_both_backends_and_the_right_answers(both: Both) -> None:
    hf, vllm = (engine.generate_text_batch([of_task(task) for task in TASKS], FULL) for engine in both(TEXT))
    assert ids(hf) == ids(vllm)
    assert [result.text for result in hf] == [task.answer for task in TASKS]
    assert {result.finish_reason for result in hf} == {"eos"}


def test_ids_are_those_of_plain_transformers(shared: Load) -> None:
    """One prompt at a time through the library's own generate, every sampling default of the checkpoint undone."""
    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TEXT)
    plain = []
    for task in RAGGED:
        prompt = tokenizer.apply_chat_template(
            task.messages, tools=task.tools, add_generation_prompt=True, enable_thinking=task.enable_thinking,
            return_tensors="pt", return_dict=True,
        )  # fmt: skip
        out = model.generate(**prompt, max_new_tokens=256, do_sample=False, repetition_penalty=1.0)
        plain.append(tuple(out[0, prompt["input_ids"].shape[1] :].tolist()))
    ours = shared(TEXT, "hf").generate_text_batch([of_task(task) for task in RAGGED], FULL)
    assert ids(ours) == plain


def test_a_row_alone_is_the_row_in_a_ragged_batch(text: GenerationEngine) -> None:
    requests = [of_task(task) for task in RAGGED]
    options = {"max_new_tokens": 48, "repetition_penalty": 1.3}  # reads the ids: padding must not look like text
    together = text.generate_text_batch(requests, options)
    alone = [text.generate_text_batch([request], options)[0] for request in requests]
    assert together == alone


def test_small_batches_give_what_one_batch_gives_in_request_order() -> None:
    requests = [of_task(task) for task in RAGGED]
    with open_engine(TEXT, "hf", max_batch_tokens=700) as small, open_engine(TEXT, "hf") as large:
        assert small.generate_text_batch(requests, FULL) == large.generate_text_batch(requests, FULL)


def test_padding_is_never_counted(text: GenerationEngine) -> None:
    short, long = text.generate_text_batch([chat("Hi"), chat("What is 3 + 4? " * 20)], {"max_new_tokens": 5})
    [alone] = text.generate_text_batch([chat("Hi")], {"max_new_tokens": 5})
    assert short.prompt_tokens == alone.prompt_tokens < long.prompt_tokens
    assert text.checkpoint.pad_id not in short.token_ids
    assert short.completion_tokens == len(short.token_ids) == 5


# -- endings -----------------------------------------------------------------------------------------------------------

COUNT, FURTHER = chat("Count to 12."), chat("Count to 20.")  # 39 tokens, 71
STOPS = [
    ["9"],
    ["1"],
    ["11"],
    ["4, 5", "5"],
    [", 1", "0"],
    ["\n"],
    ["3"],
    ["nothing"],
    ["12", "12."],
    ["8, 9, 1"],
    ["2."],
]


def oracle(tokens: tuple[int, ...], stops: list[str], decode: Callable[[tuple[int, ...]], str]) -> tuple[Any, ...]:
    """What the contract says of a free-running answer, token by token."""
    for count in range(1, len(tokens) + 1):
        text = decode(tokens[:count])
        if any(stop in text for stop in stops):
            return truncate_at_stops(text, stops), tokens[:count], "stop"
    return decode(tokens[:-1]), tokens, "eos"


STOPPED = [COUNT, *map(of_task, TASKS[:4])]


@functools.cache
def free_running(engine: GenerationEngine) -> list[GenerationResult]:
    return engine.generate_text_batch(STOPPED)


@pytest.mark.parametrize("stops", STOPS, ids=repr)
def test_stop_strings_end_a_row_at_the_token_that_completes_them_on_both(both: Both, stops: list[str]) -> None:
    reasons = []
    for engine in both(TEXT):
        decode = functools.partial(engine.tokenizer.decode, skip_special_tokens=True)
        found = engine.generate_text_batch(STOPPED, {"stop": stops})
        for free, stopped in zip(free_running(engine), found, strict=True):
            assert (stopped.text, stopped.token_ids, stopped.finish_reason) == oracle(free.token_ids, stops, decode)
            assert stopped.stop_reason in (stops if stopped.finish_reason == "stop" else [None])
        reasons.append([stopped.stop_reason for stopped in found])
    assert reasons[0] == reasons[1]


def test_rows_stop_one_by_one_each_at_its_own_stop(text: GenerationEngine) -> None:
    stops = {"stop": [" is", "4", "\n"]}
    results = text.generate_text_batch([of_task(task) for task in RAGGED], stops)
    assert [result.text for result in results] == [truncate_at_stops(task.answer, stops["stop"]) for task in RAGGED]
    alone = [text.generate_text_batch([of_task(task)], stops)[0] for task in RAGGED]
    assert results == alone


def test_a_stop_is_not_looked_for_across_the_prompt_boundary(text: GenerationEngine) -> None:
    begun = text.render(chat("Count to 6.")["messages"]) + "1, 2, 3, 4"
    [result] = text.generate_text_batch([{"prompt": begun}], {"stop": ["4, 5"]})
    assert result.text == ", 5, 6."
    assert result.finish_reason == "eos"


def test_a_stop_that_is_one_ordinary_token_cuts_the_text_before_it(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([COUNT], {"stop": [","]})
    assert (result.text, result.finish_reason, result.stop_reason) == ("1", "stop", ",")
    assert result.token_ids[-1] == text.tokenizer.convert_tokens_to_ids(",")


def test_a_stop_id_ends_the_row_and_is_not_text(text: GenerationEngine) -> None:
    comma = text.tokenizer.convert_tokens_to_ids(",")
    [cut] = text.generate_text_batch([COUNT], {"stop": {"token_ids": [comma]}})
    [kept] = text.generate_text_batch([COUNT], {"stop": {"token_ids": [comma], "include_stop": True}})
    assert (cut.text, cut.stop_reason, cut.raw_text) == ("1", comma, "1,")
    assert (kept.text, kept.token_ids) == ("1,", cut.token_ids)


def test_a_kept_stop_id_is_the_text_that_it_is_behind_others(edited: Callable[..., Path]) -> None:
    """By itself it would lose its blank: SentencePiece's decoder takes one off the beginning of a text."""
    pieces = {"type": "Metaspace", "replacement": "\u0120", "prepend_scheme": "always", "split": True}
    model = edited(ROOT / "golden/models/random-llama", {"tokenizer.json": {"decoder": pieces}})
    with open_engine(model, "hf", max_model_len=512) as llama:
        blank = next(i for i in range(llama.checkpoint.vocabulary) if llama.tokenizer.decode([5, i])[1:2] == " ")
        request, stop = {"prompt": "The end"}, {"token_ids": [blank], "include_stop": True}
        bare = {"max_new_tokens": 4, "min_new_tokens": 4, "stop": {"ignore_eos": True}}
        ids = llama.generate_text_batch([request], bare)[0].token_ids
        [kept] = llama.generate_text_batch([request], {"replay": [[*ids, blank]], "max_new_tokens": 5, "stop": stop})
        assert kept.text == llama.tokenizer.decode([*ids, blank]) and kept.text.count(" ")
        assert kept.stop_reason == blank and not kept.text.endswith(llama.tokenizer.decode([*ids]))


def test_include_stop_keeps_the_string_and_nothing_after(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([COUNT], {"stop": {"strings": ["4, 5"], "include_stop": True}})
    assert result.text == "1, 2, 3, 4, 5"


def test_strip_takes_the_blanks_of_a_text_and_not_of_its_raw_text(text: GenerationEngine) -> None:
    for strip, cut in ((True, "1, 2,"), (False, "1, 2, ")):
        [result] = text.generate_text_batch([COUNT], {"stop": ["3"], "decode": {"strip": strip}})
        assert (result.text, result.raw_text) == (cut, "1, 2, 3")


def test_a_stop_id_that_is_an_eos_id_is_an_eos(text: GenerationEngine) -> None:
    eos = list(text.checkpoint.eos_ids)
    [named] = text.generate_text_batch([COUNT], {"stop": {"token_ids": eos, "include_stop": True}})
    [free] = text.generate_text_batch([COUNT])
    assert (named.text, named.finish_reason, named.stop_reason) == (free.text, "eos", None)
    [own] = text.generate_text_batch([COUNT], {"stop": {"token_ids": eos, "ignore_eos": True}})
    assert (own.finish_reason, own.stop_reason) == ("stop", free.token_ids[-1])


def test_raw_text_has_the_blanks_before_punctuation(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    ids = engine.tokenizer.encode("Is it so ? No , it 's not .")
    [result] = engine.generate_text_batch([{"prompt": "a"}], {"max_new_tokens": len(ids), "replay": [ids]})
    assert result.raw_text == "Is it so ? No , it 's not ."


def test_eos_ends_a_row_and_is_in_the_ids_and_raw_text_only(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([COUNT])
    assert (result.finish_reason, result.stop_reason) == ("eos", None)
    assert result.token_ids[-1] == text.tokenizer.eos_token_id
    assert result.raw_text == result.text + text.tokenizer.eos_token


def test_length_is_exact(text: GenerationEngine) -> None:
    for budget in (1, 2, 7):
        [result] = text.generate_text_batch([COUNT], {"max_new_tokens": budget})
        assert (result.finish_reason, result.completion_tokens) == ("length", budget)


def test_an_end_at_the_last_token_of_the_budget_is_that_end_and_not_length(text: GenerationEngine) -> None:
    [free] = text.generate_text_batch([COUNT])
    [eos] = text.generate_text_batch([COUNT], {"max_new_tokens": free.completion_tokens})
    [stop] = text.generate_text_batch([COUNT], {"stop": ["2."]})
    [tight] = text.generate_text_batch([COUNT], {"stop": ["2."], "max_new_tokens": stop.completion_tokens})
    assert (eos.finish_reason, tight.finish_reason, tight.stop_reason) == ("eos", "stop", "2.")


def test_ignore_eos_goes_on_to_the_budget_and_stops_still_stop(text: GenerationEngine) -> None:
    [free] = text.generate_text_batch([COUNT])
    length = free.completion_tokens + 9
    [on] = text.generate_text_batch([COUNT], {"max_new_tokens": length, "stop": {"ignore_eos": True}})
    assert (on.finish_reason, on.completion_tokens) == ("length", length)
    assert on.token_ids[: free.completion_tokens] == free.token_ids
    [stopped] = text.generate_text_batch([COUNT], {"stop": {"ignore_eos": True, "strings": ["9"]}})
    assert stopped.finish_reason == "stop"


def test_min_new_tokens_holds_back_every_end(text: GenerationEngine) -> None:
    [free] = text.generate_text_batch([COUNT])
    least = free.completion_tokens + 4
    [result] = text.generate_text_batch([COUNT], {"min_new_tokens": least, "max_new_tokens": least + 40})
    assert result.completion_tokens >= least
    assert not set(result.token_ids[:least]) & set(text.checkpoint.eos_ids)
    [stopped] = text.generate_text_batch([FURTHER], {"min_new_tokens": 12, "stop": [", 2"]})  # the first is in token 4
    assert stopped.text == ", ".join(map(str, range(1, 20)))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", ", 2")


def test_min_new_tokens_does_not_hold_back_an_ignored_end(both: Both) -> None:
    short, options = chat("Count to 5."), {"max_new_tokens": 40, "min_new_tokens": 30, "stop": {"ignore_eos": True}}
    hf, vllm = (engine.generate_text_batch([short], options)[0] for engine in both(TEXT))
    assert hf.token_ids == vllm.token_ids
    assert both(TEXT)[0].tokenizer.eos_token_id in hf.token_ids[:20]
    with pytest.raises(UnsupportedError, match="min_new_tokens with ignore_eos and stops"):
        both(TEXT)[1].generate_text_batch([short], {**options, "stop": {"ignore_eos": True, "token_ids": [5]}})


def test_min_new_tokens_gives_the_same_on_both(both: Both) -> None:
    longer, later = {"min_new_tokens": 50, "max_new_tokens": 70}, {"min_new_tokens": 12, "stop": [", 2"]}
    for request, options in ((COUNT, longer), (FURTHER, later)):
        hf, vllm = (engine.generate_text_batch([request], options)[0] for engine in both(TEXT))
        assert (hf.token_ids, hf.text, hf.finish_reason, hf.stop_reason) == (
            vllm.token_ids, vllm.text, vllm.finish_reason, vllm.stop_reason,
        )  # fmt: skip


def test_every_eos_id_of_the_checkpoint_ends_a_row(backend: str, edited: Callable[..., Path], shared: Load) -> None:
    tokenizer = shared(TEXT, "hf").tokenizer
    comma, end = tokenizer.convert_tokens_to_ids(","), tokenizer.eos_token_id
    model = edited(TEXT, {"generation_config.json": {"eos_token_id": [end, comma]}})
    with open_engine(model, backend) as engine:
        [result] = engine.generate_text_batch([COUNT])
        assert (result.text, result.finish_reason, result.stop_reason) == ("1", "eos", None)
        [result] = engine.generate_text_batch([COUNT], {"stop": {"ignore_eos": True}, "max_new_tokens": 9})
        assert result.finish_reason == "length"


# -- sampling ----------------------------------------------------------------------------------------------------------


def test_sampling_defaults_of_a_checkpoint_do_not_leak(backend: str, edited: Callable[..., Path], shared: Load) -> None:
    eos = shared(TEXT, "hf").checkpoint.eos_ids
    hostile = {"do_sample": True, "temperature": 5.0, "top_k": 2, "top_p": 0.1, "repetition_penalty": 9.0,
               "max_new_tokens": 3, "min_new_tokens": 2, "no_repeat_ngram_size": 1, "eos_token_id": eos}  # fmt: skip
    requests = [of_task(task) for task in RAGGED]
    with open_engine(edited(TEXT, {"generation_config.json": hostile}), backend) as engine:
        assert engine.generate_text_batch(requests, FULL) == shared(TEXT, backend).generate_text_batch(requests, FULL)
        sampled = {"temperature": 1.5, "seed": 5, "max_new_tokens": 20}
        assert engine.generate_text_batch(requests, sampled) == shared(TEXT, backend).generate_text_batch(
            requests, sampled
        )


def test_a_seeded_row_is_the_same_alone_and_in_any_batch(text: GenerationEngine) -> None:
    options = {"temperature": 1.5, "max_new_tokens": 24}
    requests = [{**of_task(task), "seed": 100 + place} for place, task in enumerate(RAGGED)]
    together = text.generate_text_batch(requests, options)
    assert text.generate_text_batch(requests[::-1], options) == together[::-1]
    assert [text.generate_text_batch([request], options)[0] for request in requests] == together


UNSURE = {"prompt": "The"}  # no chat: the model has many ways to go on


ALONE: dict[str, dict[str, Any]] = {  # as engine.md says it
    "hf": {"max_batch_size": 1},
    "vllm": {
        "vllm_kwargs": {**SMALL["vllm"].get("vllm_kwargs", {}), "max_num_seqs": 1, "enable_prefix_caching": False}
    },
}


def test_rows_that_are_computed_alone_do_not_depend_on_their_batch_in_bfloat16(backend: str) -> None:
    options = {"temperature": 1.5, "max_new_tokens": 24}
    requests = [{**of_task(task), "seed": 100 + place} for place, task in enumerate(RAGGED)]
    with open_engine(TEXT, backend, dtype="bfloat16", **ALONE[backend]) as engine:
        together = engine.generate_text_batch(requests, options)
        assert engine.generate_text_batch(requests[::-1], options) == together[::-1]
        assert [engine.generate_text_batch([request], options)[0] for request in requests] == together


def test_samples_are_the_same_however_many_prompts_come_at_once(text: GenerationEngine) -> None:
    """vLLM computed one of the prompts in two parts, and failed every row: a CPU's generators cannot be turned back."""
    words = text.tokenizer.encode("one two three four five six seven eight nine ten")
    long = (words * 15)[:150]
    requests = [{"prompt_token_ids": [*long[place:], *long[:place]], "seed": place} for place in range(60)]
    options = {"temperature": 1.0, "max_new_tokens": 2}
    together = text.generate_text_batch(requests, options)
    assert ids(together[25:30]) == [ids(text.generate_text_batch([one], options))[0] for one in requests[25:30]]


def test_the_seed_of_the_options_is_every_requests_own(text: GenerationEngine) -> None:
    options = {"temperature": 2.0, "max_new_tokens": 12}
    first, second = text.generate_text_batch([UNSURE, UNSURE], {**options, "seed": 3})
    other, own = text.generate_text_batch([UNSURE, {**UNSURE, "seed": 3}], {**options, "seed": 4})
    assert first == second == own != other


def test_samples_have_the_seeds_that_follow_also_from_zero(text: GenerationEngine) -> None:
    options = {"temperature": 2.0, "max_new_tokens": 12}
    [several] = text.generate_text_batch([{**UNSURE, "seed": 0}], {**options, "n": 3})
    alone = [text.generate_text_batch([{**UNSURE, "seed": seed}], options)[0].token_ids for seed in range(3)]
    assert [sample.token_ids for sample in several.samples] == alone and len(set(alone)) == 3


def test_unseeded_samples_differ(text: GenerationEngine) -> None:
    results = text.generate_text_batch([UNSURE] * 8, {"temperature": 2.0, "max_new_tokens": 12})
    assert len({result.token_ids for result in results}) > 1


def test_generating_leaves_the_global_generators_alone(text: GenerationEngine) -> None:
    torch, random = importlib.import_module("torch"), importlib.import_module("random")
    before = torch.random.get_rng_state(), random.getstate()
    text.generate_text_batch([COUNT] * 3, {"temperature": 1.0, "seed": 1, "max_new_tokens": 4})
    text.generate_text_batch([COUNT] * 3, {"temperature": 1.0, "max_new_tokens": 4})
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()


SAMPLED = [
    {"temperature": 3.0 / 2},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 2.0, "top_p": 0.6},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 2.0, "min_p": 0.05, "top_p": 0.7, "top_k": 12},
    {"temperature": 1.0, "repetition_penalty": 5.0},
]


@pytest.mark.parametrize("options", SAMPLED, ids=repr)
def test_sampling_draws_from_the_distribution_that_the_options_say(text: GenerationEngine, options: Any) -> None:
    """Against a distribution computed here, in numpy, from plain logits: support exactly, frequencies roughly."""
    prompt = text.tokenizer.encode("The")  # an unnatural prompt: the model is unsure, so there is something to draw
    expected = expected_distribution(prompt, GenerationOptions(**options))
    draws = 600
    requests = [{"prompt_token_ids": prompt, "seed": seed} for seed in range(draws)]
    results = text.generate_text_batch(requests, {**options, "max_new_tokens": 1, "stop": {"ignore_eos": True}})
    counts: dict[int, int] = {}
    for result in results:
        counts[result.token_ids[0]] = counts.get(result.token_ids[0], 0) + 1
    assert all(expected.get(token, 0) > 0 for token in counts)
    distance = sum(abs(p - counts.get(token, 0) / draws) for token, p in expected.items()) / 2
    noise = sum((p * (1 - p) / draws) ** 0.5 for p in expected.values()) / 2
    assert distance < 2 * noise + 0.02


def expected_distribution(prompt: list[int], options: GenerationOptions) -> dict[int, float]:
    numpy, torch = importlib.import_module("numpy"), importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    with torch.no_grad():
        logits = (
            transformers.AutoModelForCausalLM.from_pretrained(TEXT)(torch.tensor([prompt]))
            .logits[0, -1]
            .double()
            .numpy()
        )
    for token in set(prompt):
        logits[token] *= options.repetition_penalty if logits[token] < 0 else 1 / options.repetition_penalty

    def normal(weights: Any) -> Any:
        return weights / weights.sum()

    chances = normal(numpy.exp(logits / options.temperature - (logits / options.temperature).max()))
    chances = normal(numpy.where(chances >= options.min_p * chances.max(), chances, 0))
    order = numpy.argsort(-chances)
    keep = order[: options.top_k or len(order)]
    chances = normal(numpy.where(numpy.isin(numpy.arange(len(chances)), keep), chances, 0))
    before = numpy.cumsum(chances[order]) - chances[order]  # mass in front of each token: the one that crosses stays
    chances = normal(numpy.where(numpy.isin(numpy.arange(len(chances)), order[before < options.top_p]), chances, 0))
    return {token: float(p) for token, p in enumerate(chances) if p > 0}


# -- batches -----------------------------------------------------------------------------------------------------------


def test_equal_greedy_requests_are_generated_once(text: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy(text, monkeypatch)
    results = text.generate_text_batch([COUNT, chat("What is 3 + 4?"), COUNT, COUNT])
    assert seen == [2]
    assert results[0] == results[2] == results[3] != results[1]
    text.generate_text_batch([COUNT, COUNT], {"temperature": 1.0, "max_new_tokens": 2})
    assert seen == [2, 2]


def test_no_requests_no_results(text: GenerationEngine) -> None:
    assert generate_text_batch(text, []) == []


def test_out_of_memory_halves_the_batch_and_keeps_finished_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first, a middle and the last batch, at its first step and later: nothing lost, nothing done twice."""
    torch, requests = importlib.import_module("torch"), [of_task(task) for task in RAGGED]
    with open_engine(TEXT, "hf", max_batch_size=2) as engine:
        forward = engine.model.forward
        plant = [0]
        calls: list[int] = []

        def starved(*args: Any, **kwargs: Any) -> Any:
            calls.append(kwargs["input_ids"].shape[1])
            if len(calls) == plant[0]:
                raise torch.OutOfMemoryError("planted")
            return forward(*args, **kwargs)

        monkeypatch.setattr(engine.model, "forward", starved)
        finished = endings(monkeypatch)
        expected = engine.generate_text_batch(requests, FULL)
        starts = [step for step, width in enumerate(calls, start=1) if width > 1]
        assert len(starts) == 3
        for plant[0] in (*starts, *(start + 5 for start in starts)):
            calls.clear()
            finished.clear()
            assert engine.generate_text_batch(requests, FULL) == expected
            assert len(finished) == len(requests)  # each row was brought to its end once


def test_one_request_that_does_not_fit_in_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = importlib.import_module("torch")
    with open_engine(TEXT, "hf") as engine:

        def starved(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("planted")

        monkeypatch.setattr(engine.model, "forward", starved)
        with pytest.raises(EngineError, match="out of memory with one prompt of .* tokens: planted"):
            engine.generate_text_batch([COUNT])


# -- after a failure ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interruption", [RuntimeError("planted"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_after_an_interrupted_call_the_next_one_is_right(
    text: GenerationEngine, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    requests = [of_task(task) for task in RAGGED]
    expected = text.generate_text_batch(requests, FULL)
    push, pushed = RowWatch.push, []

    def interrupted(watch: RowWatch, token: int) -> bool:
        pushed.append(token)
        if len(pushed) == 20:
            raise interruption
        return push(watch, token)

    with monkeypatch.context() as planted, pytest.raises(type(interruption)):
        planted.setattr(RowWatch, "push", interrupted)
        text.generate_text_batch(requests, FULL)
    assert text.generate_text_batch(requests, FULL) == expected


# -- loading -----------------------------------------------------------------------------------------------------------


def random_states() -> list[Any]:
    numpy, torch, random = (importlib.import_module(name) for name in ("numpy", "torch", "random"))
    name, keys, *rest = numpy.random.get_state()
    return [random.getstate(), (name, keys.tolist(), *rest), torch.random.get_rng_state().tolist()]


def test_loading_leaves_the_global_generators_alone(backend: str) -> None:
    importlib.import_module("random").seed(123)
    importlib.import_module("numpy").random.seed(123)
    importlib.import_module("torch").manual_seed(123)
    before = random_states()
    with open_engine(TEXT, backend):
        assert random_states() == before


def test_loading_and_answering_read_no_generator_of_cuda_that_is_not_in_use(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading one starts CUDA on its device."""
    torch = importlib.import_module("torch")
    devices: list[int] = []
    with monkeypatch.context() as with_two:
        with_two.setattr(torch.cuda, "get_rng_state", devices.append)
        with_two.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
        with_two.setattr(torch.cuda, "device_count", lambda: 2)
        with_two.setattr(torch.cuda, "is_available", lambda: False)  # vLLM has it asked of device_count
        with open_engine(TEXT, backend) as engine:
            engine.generate_text_batch([COUNT], {"max_new_tokens": 2})
        assert devices == []
        with_two.setattr(torch.cuda, "is_initialized", lambda: True)
        with gen_engine.rng_untouched():
            assert devices == [0, 1]


@pytest.mark.parametrize("wanted", [True, False])
def test_loading_leaves_progress_bars_of_the_hub_as_they_were(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bars, hub = (importlib.import_module(name) for name in ("transformers.utils.logging", "huggingface_hub.utils"))
    variable = "HF_HUB_DISABLE_PROGRESS_BARS"  # which a command that another test ran may have set
    monkeypatch.setattr(importlib.import_module("huggingface_hub.utils.tqdm"), variable, None)
    monkeypatch.setattr(bars, "_tqdm_active", True)
    hub.enable_progress_bars()
    if not wanted:
        hub.disable_progress_bars()
    try:
        with open_engine(TEXT, "hf"):
            assert bars.is_progress_bar_enabled() and hub.are_progress_bars_disabled() is not wanted
    finally:
        hub.enable_progress_bars()


def test_closing_one_engine_frees_it_and_leaves_the_others_working(backend: str, text: GenerationEngine) -> None:
    expected = text.generate_text_batch([COUNT])
    for _ in range(2):
        with open_engine(TEXT, backend) as another:
            assert another.generate_text_batch([COUNT]) == expected
        assert another.model is None
        assert text.generate_text_batch([COUNT]) == expected


def loaded_dtype(engine: GenerationEngine) -> str:
    model = engine.model
    return str(model.dtype if engine.backend.name == "hf" else model.llm_engine.model_config.dtype)


def test_dtype_is_the_checkpoints_own_unless_given(backend: str, text: GenerationEngine, tmp_path: Path) -> None:
    assert loaded_dtype(text) == "torch.float32"
    torch, safetensors = importlib.import_module("torch"), importlib.import_module("safetensors.torch")
    shutil.copytree(TEXT, tmp_path / "half")
    weights = safetensors.load_file(tmp_path / "half/model.safetensors")
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    safetensors.save_file(halved, tmp_path / "half/model.safetensors", {"format": "pt"})
    config = (tmp_path / "half/config.json").read_text()
    (tmp_path / "half/config.json").write_text(config.replace('"float32"', '"bfloat16"'))
    with open_engine(tmp_path / "half", backend) as engine:
        assert loaded_dtype(engine) == "torch.bfloat16"
    (tmp_path / "half/config.json").write_text(config.replace('"torch_dtype": "float32",', ""))
    with open_engine(tmp_path / "half", backend) as engine:  # said by no config: read off the weights
        assert loaded_dtype(engine) == "torch.bfloat16"
    with open_engine(tmp_path / "half", backend, dtype="float32") as engine:
        assert loaded_dtype(engine) == "torch.float32"


PADS: list[tuple[dict[str, Any], int]] = [
    # pad token of the tokenizer, pad id of generation_config.json -> pad id of the checkpoint
    ({"tokenizer_config.json": {"pad_token": "<|endoftext|>"}, "generation_config.json": {"pad_token_id": 8}}, 550),
    ({"tokenizer_config.json": {"pad_token": None}, "generation_config.json": {"pad_token_id": 8}}, 8),
    ({"tokenizer_config.json": {"pad_token": None}, "generation_config.json": {"pad_token_id": None}}, 552),
    ({"tokenizer_config.json": {"pad_token": None}, "generation_config.json": {"pad_token_id": 9999}}, 552),
]


@pytest.mark.parametrize(("changes", "pad_id"), PADS, ids=[str(pad_id) for _, pad_id in PADS])
def test_read_checkpoint_pads_with_the_tokenizers_pad_else_the_generations_else_an_eos_id(
    edited: Callable[..., Path], changes: dict[str, Any], pad_id: int
) -> None:
    checkpoint = read_checkpoint(ModelLoadConfig(str(edited(TEXT, changes))))
    assert (checkpoint.pad_id, checkpoint.tokenizer.pad_token_id) == (pad_id, pad_id)
    assert (checkpoint.tokenizer.padding_side, checkpoint.tokenizer.truncation_side) == ("left", "left")


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves TEXT as any repository of a hub; the status of its generation_config.json is the name's number."""

    def do_HEAD(self) -> None:
        status, body = 200, b"{}"
        if "/resolve/" in self.path:
            repository, _, name = self.path.partition("/resolve/main/")
            status = int(repository.rpartition("-")[2]) if name == "generation_config.json" else 200
            file = TEXT / name
            status = status if file.is_file() else 404
            body = file.read_bytes() if status == 200 else b""
        self.send_response(status)
        codes = {404: {"X-Error-Code": "EntryNotFound"}}
        headers = {"X-Repo-Commit": "1" * 40, "ETag": f'"{len(body)}"', "Content-Length": str(len(body))}
        for name, value in {**headers, **codes.get(status, {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


READ = """
import sys, time
from gen_engine import LoadError, ModelLoadConfig, read_checkpoint

time.sleep = lambda seconds: None  # between tries that the hub's library makes
for name in sys.argv[1:]:
    try:
        checkpoint = read_checkpoint(ModelLoadConfig(name))
        print(checkpoint.eos_ids, checkpoint.dtype)
    except LoadError as error:
        print("LoadError", "generation_config.json" in str(error) or "503" in str(error))
"""


def test_eos_ids_and_dtype_of_a_hubs_checkpoint(tmp_path: Path) -> None:
    """Ids that it does not send are a load error; the dtype is that of the weights where its config names none."""
    torch, safetensors = importlib.import_module("torch"), importlib.import_module("safetensors.torch")
    cached = tmp_path / "hub/models--acme--tiny/snapshots" / ("a" * 40)
    shutil.copytree(TEXT, cached)
    (tmp_path / "hub/models--acme--tiny/refs").mkdir()
    (tmp_path / "hub/models--acme--tiny/refs/main").write_text("a" * 40)
    config = (cached / "config.json").read_text()
    (cached / "config.json").write_text(config.replace('"torch_dtype": "float32",', ""))
    weights = safetensors.load_file(cached / "model.safetensors")
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    safetensors.save_file(halved, cached / "model.safetensors", {"format": "pt"})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path)}

        def read(*names: str, offline: str) -> list[str]:
            command = [sys.executable, "-c", READ, *names]
            environment = {**os.environ, **hub, "HF_HUB_OFFLINE": offline}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        own, all_of_them = "(552,)", str(read_checkpoint(ModelLoadConfig(str(TEXT))).eos_ids)
        assert all_of_them != own
        names = ("org/model-200", "org/model-404", "org/model-503")
        assert read(*names, offline="0") == [f"{all_of_them} float32", f"{own} float32", "LoadError True"]
        assert read("org/model-404", "acme/tiny", offline="1") == [f"{own} float32", f"{all_of_them} bfloat16"]
        server.shutdown()


def test_a_generation_config_that_cannot_be_opened_is_a_load_error(edited: Callable[..., Path]) -> None:
    model = edited(TEXT, {})
    (model / "generation_config.json").unlink()
    assert read_checkpoint(ModelLoadConfig(str(model))).eos_ids == (552,)
    (model / "generation_config.json").symlink_to("blobs/lost")  # as where links of a hub's cache are copied alone
    with pytest.raises(LoadError, match="generation_config.json"):
        read_checkpoint(ModelLoadConfig(str(model)))


def test_load_reads_everything_at_the_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = importlib.import_module("transformers")
    revisions: list[tuple[str, Any]] = []
    for name in ("AutoConfig", "AutoTokenizer", "GenerationConfig", "AutoModelForCausalLM"):
        reader = getattr(transformers, name)

        def read(*args: Any, name: str = name, original: Any = reader.from_pretrained, **kwargs: Any) -> Any:
            revisions.append((name, kwargs.get("revision")))
            return original(*args, **kwargs)

        monkeypatch.setattr(reader, "from_pretrained", read)
    with open_engine(TEXT, "hf", revision="main"):
        pass
    assert set(revisions) == {
        ("AutoConfig", "main"), ("AutoTokenizer", "main"), ("GenerationConfig", "main"),
        ("AutoModelForCausalLM", "main"),
    }  # fmt: skip


OWN_CODE = """
import os
from pathlib import Path
from transformers import Qwen3Config

Path(os.environ["HAS_RUN"]).touch()

class OwnConfig(Qwen3Config):
    model_type = "own"
"""


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_checkpoint_runs_only_where_it_is_trusted(
    edited: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    for module in list(sys.modules.values()):  # transformers, and Intel's extension, which vLLM 0.11 imports
        if "HF_MODULES_CACHE" in vars(module):
            monkeypatch.setattr(module, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("HAS_RUN", str(tmp_path / "has_run"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own_code.OwnConfig"}}
    model = edited(TEXT, {"config.json": own})
    (model / "own_code.py").write_text(OWN_CODE)
    with pytest.raises(LoadError):  # for no class of transformers is of that config
        open_engine(model, "hf", trust_remote_code=trusted)
    assert (tmp_path / "has_run").exists() == trusted


def test_describe_says_what_is_loaded(text: GenerationEngine, backend: str) -> None:
    said = text.describe()
    assert (said["gen_engine"], said["backend_why"]) == (gen_engine.__version__, "asked for")
    assert (said["backend"], said["architecture"], said["dtype"]) == (backend, "Qwen3ForCausalLM", "float32")
    assert (said["max_model_len"], said["supports_vlm"]) == (WINDOW, False)
    assert len(said["eos_token_ids"]) == 2


def test_a_dtype_is_not_read_off_an_adapter_that_lies_beside_the_weights(edited: Any) -> None:
    torch, safetensors = importlib.import_module("torch"), importlib.import_module("safetensors.torch")
    model = edited(TEXT, {"config.json": {"torch_dtype": None}})
    adapter = {"adapter": torch.zeros(2, dtype=torch.float16)}
    safetensors.save_file(adapter, model / "adapter_model.safetensors", {"format": "pt"})
    assert read_checkpoint(ModelLoadConfig(model=str(model))).dtype == "float32"


def test_a_checkpoint_of_doubles_is_computed_in_single_precision(edited: Any) -> None:
    """In bfloat16 three digits of each weight were lost without a word."""
    with open_engine(edited(TEXT, {"config.json": {"torch_dtype": "float64"}}), "hf") as engine:
        assert loaded_dtype(engine) == "torch.float32"


def test_rows_of_one_length_are_one_call_of_generate(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch goes on from its cache only once enough of it is over: each call prepares anew."""
    engine = shared(TEXT, "hf")
    generate = engine.model.generate
    calls = []

    def counted(**given: Any) -> Any:
        calls.append(given)
        return generate(**given)

    monkeypatch.setattr(engine.model, "generate", counted)
    requests = [{"prompt": f"{count} words"} for count in range(4)]
    engine.generate_text_batch(requests, {"max_new_tokens": 6, "stop": {"ignore_eos": True}})
    assert len(calls) == 1
