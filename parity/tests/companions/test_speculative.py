"""Guessed tokens change the speed and nothing else; what does not go with guessing is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gen_engine import (
    GenerationEngine,
    GenerationResult,
    LoadError,
    ModelLoadConfig,
    OptionError,
    Plugin,
    UnsupportedError,
    build,
    load,
)
from parity.companions.speculation import Speculation
from parity.tasks import text_tasks, vision_tasks

from ..conftest import ROOT, TEXT, VL, Load, chat, of_task, open_engine

DRAFT = ROOT / "golden/models/tiny-qwen3-draft"
SPECULATIVE = {
    "ngram": Speculation("ngram", num_tokens=3),
    "draft_model": Speculation("draft_model", num_tokens=3, model=str(DRAFT)),
}
TASKS = text_tasks(14, seed=3)
REQUESTS = [of_task(task) for task in TASKS]
COUNT = chat("Count to 25.")


@pytest.fixture(params=SPECULATIVE)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def guessing(shared: Load, backend: str, method: str) -> GenerationEngine:
    return shared(TEXT, backend, decoder=SPECULATIVE[method])


def ends(results: list[GenerationResult]) -> list[Any]:
    return [(r.token_ids, r.text, r.finish_reason, r.stop_reason) for r in results]


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 200},
        {"max_new_tokens": 40, "stop": [", 7", "\n\n", "ed "]},
        {"max_new_tokens": 31, "repetition_penalty": 1.2, "min_new_tokens": 9, "stop": {"token_ids": [11]}},
    ],
    ids=["plain", "stops", "penalty"],
)
def test_greedy_answers_are_those_without_guessing(
    guessing: GenerationEngine, text: GenerationEngine, options: dict[str, Any]
) -> None:
    expected = text.generate_text_batch(REQUESTS, options)
    assert ends(guessing.generate_text_batch(REQUESTS, options)) == ends(expected)
    if "stop" not in options:
        assert [r.text for r in expected] == [task.answer for task in TASKS]


def test_logprobs_are_those_without_guessing(guessing: GenerationEngine, text: GenerationEngine) -> None:
    options = {"max_new_tokens": 30, "logprobs": 2}
    for with_guesses, without in zip(
        guessing.generate_text_batch(REQUESTS[:6], options), text.generate_text_batch(REQUESTS[:6], options)
    ):
        assert with_guesses.logprobs == pytest.approx(without.logprobs, abs=1e-3)
        assert [list(top) for top in with_guesses.top_logprobs or ()] == [
            list(top) for top in without.top_logprobs or ()
        ]


def test_vllm_refuses_a_seed_which_would_not_give_the_same_sample_again(shared: Load, method: str) -> None:
    guessing = shared(TEXT, "vllm", decoder=SPECULATIVE[method])
    options = {"temperature": 1.0, "max_new_tokens": 20, "n": 2}
    with pytest.raises(UnsupportedError, match="a seed with speculation"):
        guessing.generate_text_batch([COUNT], {**options, "seed": 11})
    with pytest.raises(UnsupportedError, match="a seed with speculation"):
        guessing.generate_text_batch([COUNT, {**COUNT, "seed": 4}], options)
    assert guessing.generate_text_batch([COUNT], options)[0].samples


def test_on_hf_a_seed_gives_the_sample_that_it_gives_without_guessing(shared: Load, method: str) -> None:
    options = {"temperature": 1.3, "top_p": 0.95, "max_new_tokens": 30, "seed": 5}
    expected = shared(TEXT, "hf").generate_text_batch(REQUESTS[:3], options)
    assert ends(shared(TEXT, "hf", decoder=SPECULATIVE[method]).generate_text_batch(REQUESTS[:3], options)) == ends(
        expected
    )


def test_structured_answers_and_plugins_are_those_without_guessing(
    guessing: GenerationEngine, text: GenerationEngine, backend: str
) -> None:
    class AtComma(Plugin):
        def should_stop(self, token_ids: Any, so_far: str) -> bool:
            return ", 4" in so_far

    class NoFive(Plugin):
        def logits(self, token_ids: Any, logits: Any) -> Any:
            logits[text.tokenizer.convert_tokens_to_ids("5")] = float("-inf")
            return logits

    structured = [{**COUNT, "structured": {"choice": ["1, 2, 3", "3, 2, 1"]}}, COUNT]
    assert ends(guessing.generate_text_batch(structured)) == ends(text.generate_text_batch(structured))
    for plugin in [AtComma(), *([NoFive()] if backend == "hf" else [])]:
        with_guesses = guessing.generate_text_batch([COUNT], {"max_new_tokens": 60}, plugins=[plugin])
        assert ends(with_guesses) == ends(text.generate_text_batch([COUNT], {"max_new_tokens": 60}, plugins=[plugin]))


def test_pictures_go_with_guessing_on_hf(shared: Load, method: str) -> None:
    requests = [{"messages": t.messages} for t in vision_tasks(4) if not isinstance(t.messages[-1]["content"], str)]
    expected = shared(VL, "hf").generate_vlm_batch(requests)
    with open_engine(VL, "hf", decoder=SPECULATIVE[method]) as engine:
        assert ends(engine.generate_vlm_batch(requests)) == ends(expected)


def test_pictures_go_with_guessing_on_vllm(shared: Load) -> None:
    requests = [{"messages": t.messages} for t in vision_tasks(4) if not isinstance(t.messages[-1]["content"], str)]
    expected = shared(VL, "vllm").generate_vlm_batch(requests)
    with open_engine(VL, "vllm", decoder=SPECULATIVE["ngram"]) as engine:
        assert ends(engine.generate_vlm_batch(requests)) == ends(expected)


def test_what_does_not_go_with_guessing_is_refused(guessing: GenerationEngine, backend: str) -> None:
    class Same(Plugin):
        def logits(self, token_ids: Any, logits: Any) -> Any:
            return logits

    if backend == "hf":
        return
    with pytest.raises(UnsupportedError, match="top_k with speculation"):
        guessing.generate_text_batch([COUNT], {"temperature": 1.0, "top_k": 5})
    with pytest.raises(UnsupportedError, match="min_p with speculation"):
        guessing.generate_text_batch([COUNT], {"temperature": 1.0, "min_p": 0.1})
    with pytest.raises(UnsupportedError, match="logits plugins or full logits with speculation"):
        guessing.generate_text_batch([COUNT], plugins=[Same()])
    with pytest.raises(UnsupportedError, match="logits plugins or full logits with speculation"):
        guessing.generate_text_batch([COUNT], {"logits": True})


def test_a_load_that_cannot_be_is_refused_before_it_starts(tmp_path: Path, edited: Any) -> None:
    ngram = SPECULATIVE["ngram"]
    with pytest.raises(UnsupportedError, match="speculation with its logits hook"):
        load(TEXT, backend="vllm", decoder=ngram, logits_hooks=True)
    with pytest.raises(OptionError, match="vllm_kwargs sets 'speculative_config'. Use the field 'decoder'"):
        ModelLoadConfig("m", backend="vllm", decoder=ngram, vllm_kwargs={"speculative_config": {}})
    with pytest.raises(LoadError, match="cannot read the draft model"):
        load(TEXT, decoder=Speculation("draft_model", model=str(tmp_path)))
    other = edited(DRAFT, {"config.json": {"vocab_size": 99}})
    with pytest.raises(OptionError, match="a vocabulary of 99 tokens"):
        load(TEXT, decoder=Speculation("draft_model", model=other))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"method": "ngrams"}, "Did you mean .ngram."),
        ({"method": "ngram", "model": "m"}, "Ngram has none"),
        ({"method": "draft_model"}, "Ngram has none, draft_model one"),
        ({"method": "ngram", "num_tokens": 0}, "num_tokens is 0"),
        ({"method": "ngram", "lookup_min": 4}, "1 to lookup_max"),
        ({"method": "ngram", "tokens": 4}, "num_tokens"),
    ],
)
def test_options_without_meaning_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        build(Speculation, fields)


def test_describe_says_what_guesses(guessing: GenerationEngine, method: str) -> None:
    assert f"method='{method}'" in guessing.describe()["decoder"]
