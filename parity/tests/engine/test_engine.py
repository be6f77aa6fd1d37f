"""What an engine says of itself; fallback, automatic choice, errors in place, threads, memory."""

from __future__ import annotations

import gc
import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from gen_engine import (
    GenerationEngine,
    GenerationOptions,
    LoadError,
    OptionError,
    PromptTooLongError,
    RequestError,
    UnsupportedError,
    load,
)
from parity.companions import fallback
from parity.models.tasks import drawing, text_tasks, vision_tasks

from ..conftest import SMALL, TEXT, VL, WINDOW, Load, chat, of_task, open_engine, spy
from .test_lora import make_adapter

COUNT = chat("Count to 12.")


def test_effective_names_every_option_and_its_source(text: GenerationEngine) -> None:
    said = text.effective({"temperature": 0.5, "stop": ["x\n", ","], "max_new_tokens": 9})
    assert said["temperature"] == {"value": 0.5, "from": "caller"}
    assert said["top_p"] == {"value": 1.0, "from": "default"}
    assert said["stop_strings"] == {"value": ("x\n", ","), "from": "caller"}
    assert said["stop_token_ids"] == {"value": [text.tokenizer.convert_tokens_to_ids(",")], "from": "caller"}
    assert said["eos_token_ids"] == {"value": sorted(text.checkpoint.eos_ids), "from": "checkpoint"}
    assert said["max_model_len"] == {"value": WINDOW, "from": "caller"}
    assert said["skip_special_tokens"] == {"value": True, "from": "default"}
    plain = set(GenerationOptions.__dataclass_fields__) - {"stop", "decode"}
    assert plain <= set(said)


def test_effective_window_is_the_checkpoints_unless_the_caller_lowers_it(shared: Load) -> None:
    own, lowered = shared(TEXT, "hf", max_model_len=None), shared(TEXT, "hf")
    assert own.effective()["max_model_len"] == {"value": 2048, "from": "checkpoint"}
    assert lowered.effective()["max_model_len"] == {"value": WINDOW, "from": "caller"}


LINEAR = {"rope_type": "linear", "factor": 2.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 16,
        "original_max_position_embeddings": 64}  # fmt: skip
WINDOWS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    # of config.json, settings -> tokens
    ("linear", {"max_position_embeddings": 64, "rope_scaling": LINEAR}, {}, 128),
    ("linear, set", {"max_position_embeddings": 64, "rope_scaling": LINEAR}, {"max_model_len": 128}, 128),
    ("longrope", {"rope_scaling": LONG, "original_max_position_embeddings": 64}, {}, 64),
    ("model_max_length", {"model_max_length": 64}, {}, 64),
]


@pytest.mark.parametrize(("config", "settings", "window"), [c[1:] for c in WINDOWS], ids=[c[0] for c in WINDOWS])
def test_the_window_on_vllm_is_vllms(
    config: dict[str, Any], settings: dict[str, Any], window: int, edited: Callable[..., Path]
) -> None:
    model = edited(TEXT, {"config.json": config})
    with open_engine(model, "vllm", **{"max_model_len": None, **settings}) as engine:
        options = {"max_new_tokens": window - 2, "stop": {"ignore_eos": True}}
        [full] = engine.generate_text_batch([{"prompt_token_ids": [5, 6]}], options)
        assert (full.finish_reason, full.completion_tokens) == ("length", window - 2)
        assert full.effective["max_model_len"]["value"] == engine.describe()["max_model_len"] == window
        with pytest.raises(PromptTooLongError, match=f"the window of {window} "):
            engine.generate_text_batch([{"prompt_token_ids": [5, 6, 7]}], options)


@pytest.mark.parametrize("name", ["eos_token_id", "max_position_embeddings", "num_hidden_layers", "use_cache"])
def test_a_keyword_that_would_change_the_checkpoints_config_is_refused_at_load(name: str, backend: str) -> None:
    """The model followed it, and what is read from the checkpoint did not: an end, the window, cached answers."""
    given = {"max_position_embeddings": 64, "eos_token_id": [5], "num_hidden_layers": 1, "use_cache": False}
    where, own = "hf_kwargs", {name: given[name]}
    kwargs: dict[str, Any] = {"hf_kwargs": own}
    if backend == "vllm":
        where, kwargs = "hf_overrides", {"vllm_kwargs": {**SMALL["vllm"]["vllm_kwargs"], "hf_overrides": own}}
    with pytest.raises(OptionError, match=f"{where} sets '{name}', which the checkpoint's config.json says"):
        open_engine(TEXT, backend, **kwargs)


def test_a_function_that_would_change_the_checkpoints_config_is_refused_at_load() -> None:
    with pytest.raises(OptionError, match="hf_overrides is .*function"):
        open_engine(TEXT, "vllm", vllm_kwargs={"hf_overrides": lambda config: config})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("progress", "counted"), [(True, "2/2"), (False, "")])
def test_progress_draws_a_bar_of_samples_on_a_terminal_only_where_wanted(
    monkeypatch: pytest.MonkeyPatch, progress: bool, counted: str
) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with open_engine(TEXT, "hf", progress=progress) as engine:
        engine.generate_text_batch([COUNT], {"n": 2, "temperature": 1.0, "max_new_tokens": 2})
    assert counted in stderr.getvalue() and bool(stderr.getvalue()) == progress


def test_progress_draws_nothing_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bars = importlib.import_module("transformers.utils.logging")
    with open_engine(TEXT, "hf") as engine:
        engine.generate_text_batch([COUNT], {"max_new_tokens": 2})
    assert capsys.readouterr().err == "" and bars.is_progress_bar_enabled()


def test_effective_says_what_the_caller_ignores_and_plugs_in(text: GenerationEngine) -> None:
    found = text.effective({"stop": {"ignore_eos": True}}, plugins=[AtOnce()])
    assert found["eos_token_ids"] == {"value": [], "from": "caller"}
    assert found["plugins"] == {"value": ["plugin"], "from": "caller"}
    assert text.effective()["plugins"] == {"value": [], "from": "default"}


def test_every_result_carries_the_effective_options(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([COUNT], {"top_k": 3, "max_new_tokens": 2})
    assert result.effective == text.effective({"top_k": 3, "max_new_tokens": 2})


def test_effective_seed_is_that_of_the_sample(text: GenerationEngine) -> None:
    requests: list[dict[str, Any]] = [{"prompt": "The capital", "seed": 40}, {"prompt": "The capital"}]
    own, other = text.generate_text_batch(requests, {"max_new_tokens": 2, "temperature": 1.0, "seed": 7, "n": 2})
    assert [sample.effective["seed"] for sample in (*own.samples, *other.samples)] == [
        {"value": seed, "from": "caller"} for seed in (40, 41, 7, 8)
    ]


def test_a_requests_seed_of_zero_goes_before_that_of_the_options(text: GenerationEngine) -> None:
    options = {"max_new_tokens": 2, "temperature": 1.0, "seed": 7}
    [result] = text.generate_text_batch([{"prompt": "The capital", "seed": 0}], options)
    assert result.effective["seed"] == {"value": 0, "from": "caller"}


def test_behind_the_largest_seed_comes_the_smallest(text: GenerationEngine) -> None:
    largest = 2**63 - 1
    options = {"max_new_tokens": 4, "temperature": 1.0, "n": 3}
    [last] = text.generate_text_batch([{"prompt": "The capital", "seed": largest}], options)
    [first] = text.generate_text_batch([{"prompt": "The capital", "seed": 0}], options)
    assert [sample.effective["seed"]["value"] for sample in last.samples] == [largest, 0, 1]
    assert last.samples[1:] == first.samples[:2]


def test_what_is_done_to_one_results_options_stays_there(text: GenerationEngine) -> None:
    requests = [{"prompt": "The capital"}]
    [first] = text.generate_text_batch(requests, {"max_new_tokens": 3})
    first.effective["max_new_tokens"]["value"] = 9
    first.effective["eos_token_ids"]["value"].append(5)
    [second] = text.generate_text_batch(requests, {"max_new_tokens": 3})
    assert second.effective["max_new_tokens"] == {"value": 3, "from": "caller"}
    assert second.effective["eos_token_ids"]["value"] == sorted(text.checkpoint.eos_ids)
    assert text.effective({"max_new_tokens": 3}) == second.effective


def test_a_hostile_checkpoint_shows_in_no_effective_value_but_the_ends(
    backend: str, edited: Callable[..., Path]
) -> None:
    hostile = {"temperature": 9.0, "top_k": 1, "repetition_penalty": 3.0, "max_new_tokens": 1, "eos_token_id": [7, 9]}
    with open_engine(edited(TEXT, {"generation_config.json": hostile}), backend) as engine:
        said = engine.effective()
    from_checkpoint = {name for name, entry in said.items() if entry["from"] == "checkpoint"}
    assert from_checkpoint == {"eos_token_ids"}
    assert {7, 9} < set(said["eos_token_ids"]["value"])
    assert said["temperature"]["value"] == 0.0 and said["repetition_penalty"]["value"] == 1.0


def test_capabilities_say_what_is_then_done_or_refused(shared: Load) -> None:
    for backend, hooks in (("hf", False), ("vllm", False), ("vllm", True)):
        engine = shared(TEXT, backend, **({"logits_hooks": True} if hooks else {}))
        can = engine.capabilities
        assert can.supports_logits == can.supports_logits_plugins == (backend == "hf" or hooks)
        assert can.supports_gradients == can.supports_hf_plugins == (backend == "hf")
        assert (can.supports_vlm, can.supports_lora, can.supports_structured) == (False, False, True)
        if can.supports_logits:
            assert engine.generate_text_batch([COUNT], {"logits": True, "max_new_tokens": 2})[0].logits is not None
        else:
            with pytest.raises(UnsupportedError):
                engine.generate_text_batch([COUNT], {"logits": True, "max_new_tokens": 2})
    assert shared(VL, "hf").capabilities.supports_vlm


# -- fallback and choice -----------------------------------------------------------------------------------------------


class AtOnce(gen_engine.Plugin):
    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return True


def test_a_configured_fallback_runs_there_warns_and_says_so(shared: Load, caplog: pytest.LogCaptureFixture) -> None:
    with open_engine(TEXT, "vllm", fallback_backend="hf") as engine:
        [fast] = engine.generate_text_batch([COUNT])
        with caplog.at_level(logging.WARNING, "gen_engine"):
            [safe] = engine.generate_text_batch([COUNT], {"logits": True})
        assert (fast.backend, fast.fallback_from) == ("vllm", None)
        assert (safe.backend, safe.fallback_from) == ("hf", "vllm")
        assert safe.token_ids == fast.token_ids
        assert ["falling back to hf" in record.message for record in caplog.records] == [True]
        again = engine.generate_text_batch([COUNT], {"temperature": 0.005, "seed": 1})
        assert again[0].fallback_from == "vllm"
        [ended] = engine.generate_text_batch([COUNT], {"logits": True}, plugins=(one for one in [AtOnce()]))  # type: ignore[arg-type]
        assert (ended.finish_reason, ended.fallback_from) == ("plugin", "vllm")


def test_without_a_configured_fallback_nothing_falls_back(shared: Load) -> None:
    with pytest.raises(UnsupportedError):
        shared(TEXT, "vllm").generate_text_batch([COUNT], {"logits": True})


def test_a_fallback_at_load_is_recorded_on_the_results(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "gen_engine"),
        load(TEXT, backend="vllm", device="cpu", fallback_backend="hf") as engine,
    ):
        [result] = engine.generate_text_batch([COUNT])
    assert (result.backend, result.fallback_from) == ("hf", "vllm")
    assert "falling back to hf" in caplog.text


@pytest.mark.parametrize("broken", [ImportError("renamed"), AttributeError("gone")], ids=repr)
def test_a_broken_vllm_is_never_read_as_unsupported(monkeypatch: pytest.MonkeyPatch, broken: Exception) -> None:
    def fail(*_: Any) -> Any:
        raise broken

    monkeypatch.setattr(gen_engine, "vllm_arguments", fail)
    with pytest.raises(LoadError) as raised:
        load(TEXT, backend="vllm", fallback_backend="hf")
    assert raised.value.__cause__ is broken


def test_auto_takes_vllm_where_it_can_and_says_which_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with load(TEXT, backend="auto", max_model_len=WINDOW, **SMALL["vllm"]) as engine:
        assert engine.describe()["backend"] == "vllm"
        assert "vllm is installed and runs on cpu" in engine.describe()["backend_why"]
    with load(TEXT, backend="auto", device="cpu") as engine:
        assert engine.describe()["backend"] == "hf"
        assert engine.describe()["backend_why"] == "auto: vllm cannot do device"
    with load(TEXT, backend="auto", device="cpu", fallback_backend="hf") as engine:
        assert engine.describe()["backend"] == "hf"
    monkeypatch.setattr(fallback, "find_spec", lambda name: None)
    with load(TEXT, backend="auto") as engine:
        assert (engine.describe()["backend"], engine.describe()["backend_why"]) == ("hf", "auto: vllm is not installed")


# -- errors in place ---------------------------------------------------------------------------------------------------


def test_on_error_return_answers_the_rest(text: GenerationEngine) -> None:
    good, bad = [of_task(task) for task in text_tasks(3)], [{"prompt": ""}, {"messages": []}, chat("x", adapter="none")]
    mixed: list[Any] = [bad[0], good[0], bad[1], good[1], good[2], bad[2]]
    results: list[Any] = text.generate_text_batch(mixed, on_error="return")
    expected = text.generate_text_batch(good)
    assert [results[1], results[3], results[4]] == expected
    assert [(type(results[k]), results[k].index) for k in (0, 2, 5)] == [(RequestError, k) for k in (0, 2, 5)]
    with pytest.raises(RequestError, match="request 0"):
        text.generate_text_batch(mixed)
    with pytest.raises(OptionError, match="on_error"):
        text.generate_text_batch(mixed, on_error="ignore")  # type: ignore[arg-type]


def test_a_prompt_that_only_the_backend_refuses_fails_alone_too(shared: Load) -> None:
    good = of_task(text_tasks(1)[0])
    bad = chat("b", structured={"regex": "(["})
    for backend in ("hf", "vllm"):
        results: list[Any] = shared(TEXT, backend).generate_text_batch([good, good, bad, good], on_error="return")
        assert [isinstance(r, RequestError) for r in results] == [False, False, True, False]
        assert results[2].index == 2
        assert results[0] == results[1] == results[3]


def test_a_bad_picture_fails_alone_where_asked(vl: GenerationEngine) -> None:
    tasks = [t for t in vision_tasks(20) if not isinstance(t.messages[-1]["content"], str)][:2]
    broken = {"messages": [{"role": "user", "content": [{"type": "image", "image": b"no"}]}]}
    results: list[Any] = vl.generate_vlm_batch([of_task(tasks[0]), broken, of_task(tasks[1])], on_error="return")
    assert [results[0].text, results[2].text] == [task.answer for task in tasks]
    assert isinstance(results[1], gen_engine.ImageError) and results[1].index == 1


# -- threads, memory ---------------------------------------------------------------------------------------------------


def test_eight_threads_get_what_one_gets(text: GenerationEngine) -> None:
    tasks = text_tasks(8)
    expected = [text.generate_text_batch([of_task(task)], {"max_new_tokens": 6})[0] for task in tasks]
    wrong: list[Any] = []

    def ask(task: Any, answer: Any) -> None:
        for _ in range(3):
            if text.generate_text_batch([of_task(task)], {"max_new_tokens": 6}) != [answer]:
                wrong.append(task)

    threads = [threading.Thread(target=ask, args=pair) for pair in zip(tasks, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def resident() -> float:
    """MiB of this process in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_close_gives_the_memory_back(backend: str) -> None:
    """Five engines one after the other take no more than one: the KV cache of each would be 100 MiB and more."""
    with open_engine(TEXT, backend) as engine:
        engine.generate_text_batch([COUNT])
    first = resident()
    for _ in range(4):
        with open_engine(TEXT, backend) as engine:
            engine.generate_text_batch([COUNT])
    assert resident() - first < 100


def test_five_hundred_equal_requests_are_one(vl: GenerationEngine) -> None:
    content = [{"type": "image", "image": drawing("red", "circle")}, {"type": "text", "text": "What do you see?"}]
    request = {"messages": [{"role": "user", "content": content}]}
    assert {r.text for r in vl.generate_vlm_batch([request] * 500)} == {"A red circle."}


# -- cache -------------------------------------------------------------------------------------------------------------


def test_determined_answers_come_from_the_cache_and_others_do_not(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [of_task(task) for task in text_tasks(4)]
    unsure = [{"prompt": "The"}]
    with open_engine(TEXT, backend, cache={}) as engine:
        seen = spy(engine, monkeypatch)
        first = engine.generate_text_batch(requests)
        again = engine.generate_text_batch([*requests[::-1], chat("Count to 3.")])
        assert (seen, again[:4]) == ([4, 1], first[::-1])
        assert [r.cached for r in again] == [True] * 4 + [False]
        seeded = {"temperature": 2.0, "max_new_tokens": 5}
        [a] = engine.generate_text_batch(unsure, {**seeded, "seed": 1})
        [b] = engine.generate_text_batch(unsure, {**seeded, "seed": 1})
        assert a == b and b.cached
        for options in ({**seeded, "seed": 2}, seeded, seeded, {"max_new_tokens": 4}, {"stop": ["a"]}):
            assert not engine.generate_text_batch(unsure, options)[0].cached
        assert not engine.generate_text_batch(requests[:1], cache=False)[0].cached
        assert engine.cache is not None
        engine.cache.clear()
        assert not engine.generate_text_batch(requests[:1])[0].cached


def test_a_cached_answer_decodes_as_each_call_asks(shared: Load) -> None:
    with open_engine(TEXT, "hf", cache={}) as engine:
        [plain] = engine.generate_text_batch([COUNT], {"logprobs": 2})
        [hit] = engine.generate_text_batch([COUNT], {"logprobs": 2})
        assert hit.cached and hit == plain
        shared_with_nobody: Any = hit.top_logprobs
        shared_with_nobody[0].clear()
        assert engine.generate_text_batch([COUNT], {"logprobs": 2}) == [plain]


def test_a_retrained_adapter_does_not_get_the_old_ones_answers(tmp_path: Path) -> None:
    store: dict[str, str] = {}
    for seed in (0, 1):
        adapter = make_adapter(tmp_path / "adapter", seed)
        with open_engine(TEXT, "hf", adapters={"a": adapter}, cache=store) as engine:
            assert [engine.generate_text_batch([{**COUNT, "adapter": "a"}])[0].cached for _ in range(2)] == [
                False,
                True,
            ]


def test_the_fallback_uses_the_same_store_with_keys_of_its_own() -> None:
    store: dict[str, str] = {}
    with open_engine(TEXT, "vllm", fallback_backend="hf", cache=store) as engine:
        engine.generate_text_batch([COUNT])
        engine.fall_back(gen_engine.UnsupportedError("as if")).generate_text_batch([COUNT])
        assert engine._fallback is not None and engine._fallback.cache is store
    assert len(store) == 2


def test_an_engine_that_is_closed_in_a_forked_child_is_still_the_parents(text: GenerationEngine) -> None:
    """vLLM's own shutdown ends the child with SIGSEGV, and is not the child's to call."""
    child = os.fork()
    if not child:
        try:
            text.close()
            with pytest.raises(gen_engine.EngineError, match="the engine is closed"):
                text.generate_text_batch([COUNT])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert text.generate_text_batch([COUNT])[0].text


def test_a_forked_child_closes_an_engine_that_a_thread_of_the_parent_holds(text: GenerationEngine) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with text.bare(read_only=True):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits for the lock
        text.close()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_bare_model_ends_as_the_checkpoint_says_and_what_is_set_there_changes_no_answer() -> None:
    """It ran on past the end, and an end that was set there filled answers that ignore it with padding."""
    torch = importlib.import_module("torch")
    requests = [chat("What is the capital of France?"), COUNT]
    beyond = {"max_new_tokens": 30, "stop": {"ignore_eos": True}}
    with open_engine(TEXT, "hf") as engine:
        before = engine.generate_text_batch(requests, beyond)
        [usual] = engine.generate_text_batch(requests[:1])
        prompt = torch.tensor([usual.prompt_token_ids])
        with engine.bare(read_only=True) as model:
            how = {"max_new_tokens": 60, "do_sample": False, "repetition_penalty": 1.0}
            ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), **how)
            assert tuple(ids[0, prompt.shape[1] :].tolist()) == usual.token_ids
            own = model.generation_config
            own.eos_token_id = list(engine.checkpoint.eos_ids)
            own.repetition_penalty = 5.0
        assert engine.generate_text_batch(requests, beyond) == before
        assert engine.model.generation_config is own


def test_bare_on_vllm_is_vllms_llm_and_what_it_left_running_is_aborted(shared: Load) -> None:
    params = importlib.import_module("vllm").SamplingParams(temperature=0, max_tokens=60)
    engine = shared(TEXT, "vllm")
    [usual] = engine.generate_text_batch([COUNT], {"max_new_tokens": 60})
    prompt = {"prompt_token_ids": list(usual.prompt_token_ids)}
    with engine.bare(read_only=True) as llm:
        [output] = llm.generate([prompt], params, use_tqdm=False)
        assert tuple(output.outputs[0].token_ids) == usual.token_ids
        llm.llm_engine.add_request("left", prompt, params)
    assert not llm.llm_engine.has_unfinished_requests()
    assert engine.generate_text_batch([COUNT], {"max_new_tokens": 60}) == [usual]


def test_equal_requests_have_logits_of_their_own(hooked: GenerationEngine) -> None:
    first, second = hooked.generate_text_batch([{"prompt": "The"}] * 2, {"max_new_tokens": 2, "logits": True})
    first.logits.zero_()
    assert second.logits.abs().sum() > 0


def test_a_closed_engine_scores_nothing_even_with_a_fallback() -> None:
    engine = open_engine(TEXT, "vllm", fallback_backend="hf")
    engine.close()
    with pytest.raises(gen_engine.EngineError, match="the engine is closed"):
        engine.score_batch([("a", "b")], logits=True)


def test_a_decoder_that_calls_itself_empty_is_asked_all_the_same() -> None:
    class Empty:
        refusals = ()

        def __len__(self) -> int:
            return 0

        def ready(self, *given: object) -> None:
            raise RuntimeError("this decoder was asked")

    with pytest.raises(gen_engine.LoadError, match="this decoder was asked"):
        open_engine(TEXT, "hf", decoder=Empty())
