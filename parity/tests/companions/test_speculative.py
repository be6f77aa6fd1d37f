"""Guessed tokens change the speed and nothing else; what does not go with guessing is refused."""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gen_engine import (
    GenerationEngine,
    GenerationResult,
    LoadError,
    ModelLoadConfig,
    OptionError,
    Plugin,
    Row,
    UnsupportedError,
    build,
    load,
)
from parity.companions.speculation import Ngrams, Speculation, SpeculativeLoop
from parity.models.tasks import text_tasks, vision_tasks

from ..conftest import PROMPT, ROOT, TEXT, VL, Load, chat, of_task, open_engine

DRAFT = ROOT / "golden/models/tiny-qwen3-draft"
SPECULATIVE = {
    "ngram": Speculation("ngram", num_tokens=3),
    "draft_model": Speculation("draft_model", num_tokens=3, model=str(DRAFT)),
}
TASKS = text_tasks(14, seed=3)[::2]
REQUESTS = [of_task(task) for task in TASKS]
COUNT = chat("Count to 12.")


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


# == Whole batches on transformers ==

MODELS = ("random-llama", "random-gpt2", "random-mistral")  # Mistral's window is 8 tokens, most prompts are longer
WORDS = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "the", "lazy", "dog", "sleeps"]
RAGGED: list[dict[str, Any]] = [
    {"prompt": " ".join((WORDS * 4)[count : 3 * count + 1])} for count in (9, 1, 4, 14, 2, 7, 11)
]
ANSWERS = {
    "greedy": {"max_new_tokens": 24},
    "seeded": {"max_new_tokens": 24, "temperature": 1.1, "seed": 3, "top_p": 0.9},
    "stops": {"max_new_tokens": 40, "stop": ["e", " a"], "min_new_tokens": 4},
    "penalties": {"max_new_tokens": 24, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "samples": {"max_new_tokens": 12, "temperature": 1.0, "seed": 8, "n": 3},
}


@dataclass(eq=False)
class Planted:
    """A decoder whose guesses are right with a certain chance and as many as chance has it: up to `most`."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    right: float = 0.5
    most: int = 5
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)  # place in the call -> what will be said
    refusals = ()

    def ready(self, config: Any, checkpoint: Any) -> None: ...

    def hf_loop(self, model: Any, config: Any, checkpoint: Any) -> Any:
        return functools.partial(SpeculativeLoop, drafter=lambda rows, most: self.guess(rows, most))

    def guess(self, rows: Any, most: Any) -> list[list[int]]:
        return [self.of_row(row, min(limit, self.rng.randint(0, self.most))) for row, limit in zip(rows, most)]

    def of_row(self, row: Any, count: int) -> list[int]:
        begin = len(row.watch.ids)
        known = self.answers.get(row.place, ())[begin : begin + count]
        return [token if self.rng.random() < self.right else self.rng.randrange(500) for token in known]

    def expect(self, results: list[GenerationResult]) -> None:
        samples = [sample for result in results for sample in result.samples or (result,)]
        self.answers = {place: sample.token_ids for place, sample in enumerate(samples)}


def said(results: list[GenerationResult]) -> list[Any]:
    return [ends(list(result.samples or (result,))) for result in results]


@pytest.fixture(scope="module")
def pair() -> Iterator[Callable[..., tuple[GenerationEngine, GenerationEngine]]]:
    """`pair(model, decoder)`: an engine that does not guess, and one that does; three rows at a time."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def loaded(model: Path, decoder: Any) -> GenerationEngine:
            settings = {"max_model_len": 512, "max_batch_size": 3, "decoder": decoder}
            return stack.enter_context(open_engine(model, "hf", **settings))

        def engines(model: Path, decoder: Any) -> tuple[GenerationEngine, GenerationEngine]:
            records = hasattr(importlib.import_module("transformers").DynamicCache, "activate_past_recording")
            if not records and "mistral" in f"{model} {getattr(decoder, 'model', '')}":
                pytest.xfail("this transformers takes nothing back out of a sliding window, and it is refused")
            both = loaded(model, None), loaded(model, decoder)
            both[1].backend.most_rows = 3  # a test may have set it
            return both

        yield engines


@pytest.fixture(scope="module")
def expected_of() -> Callable[..., list[GenerationResult]]:
    """`expected_of(engine, requests, options)`: what an engine that does not guess answers, asked once."""
    known: dict[str, list[GenerationResult]] = {}

    def ask(engine: GenerationEngine, requests: Any, options: dict[str, Any]) -> list[GenerationResult]:
        key = f"{engine.config.model} {requests} {options}"
        if key not in known:
            known[key] = engine.generate_text_batch(requests, options)
        return known[key]

    return ask


PLANTED = {model: Planted() for model in (*MODELS, "tiny-qwen3", "tiny-qwen3-vl")}


GUESSES = ("ngram", "draft_model", "itself")
# Each model with each guess and with each kind of answer, each guess with each kind of answer.
PAIRS = [
    (MODELS[(turn + place) % 3], guess, name)
    for place, guess in enumerate(GUESSES)
    for turn, name in enumerate(ANSWERS)
]


@pytest.mark.parametrize(("model", "guess", "name"), PAIRS)
def test_a_ragged_batch_answers_as_without_guessing(
    pair: Any, expected_of: Any, model: str, guess: str, name: str
) -> None:
    """The draft model of one is the next one, or the model itself, whose guesses are all right."""
    options = ANSWERS[name]
    other = model if guess == "itself" else MODELS[MODELS.index(model) - 1]
    draft = None if guess == "ngram" else str(ROOT / "golden/models" / other)
    decoder = Speculation("draft_model" if draft else "ngram", num_tokens=3, model=draft)
    without, guessing = pair(ROOT / "golden/models" / model, decoder)
    expected = expected_of(without, RAGGED, options)
    assert said(guessing.generate_text_batch(RAGGED, options)) == said(expected)


@pytest.mark.parametrize("model", [*MODELS, "tiny-qwen3"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 999),
    right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    most=st.integers(0, 7),
    places=st.integers(1, 7),
    options=st.sampled_from([*ANSWERS.values()]),
    structured=st.booleans(),
)
def test_no_guess_changes_an_answer(
    pair: Any, expected_of: Any, model: str, seed: int, right: float, most: int, places: int, options: dict[str, Any],
    structured: bool,
) -> None:  # fmt: skip
    planted = PLANTED[model]
    without, guessing = pair(ROOT / "golden/models" / model, planted)
    requests: list[dict[str, Any]] = list(RAGGED)
    if structured and "min_new_tokens" not in options:
        requests[1:3] = [{**request, "structured": {"regex": "[a-c]{3,9}"}} for request in requests[1:3]]
    expected = expected_of(without, requests, options)
    planted.rng, planted.right, planted.most = random.Random(seed), right, most
    planted.expect(expected)
    guessing.backend.most_rows = places
    assert said(guessing.generate_text_batch(requests, options)) == said(expected)


@pytest.mark.parametrize("model", [*MODELS, "tiny-qwen3"])
def test_logprobs_and_a_replay_in_a_batch_are_those_without_guessing(pair: Any, model: str) -> None:
    planted = PLANTED[model]
    without, guessing = pair(ROOT / "golden/models" / model, planted)
    options: dict[str, Any] = {"max_new_tokens": 16, "logprobs": 2, "stop": {"ignore_eos": True}}
    expected = without.generate_text_batch(RAGGED, options)
    planted.expect(expected)
    for with_guesses, alone in zip(guessing.generate_text_batch(RAGGED, options), expected):
        assert with_guesses.token_ids == alone.token_ids
        assert with_guesses.logprobs == pytest.approx(alone.logprobs, abs=1e-3)
    plan: dict[str, Any] = {**options, "replay": [[*range(40, 40 + count)] for count in (5, 9, 2, 16, 1, 7, 3)]}
    replayed = guessing.generate_text_batch(RAGGED, plan)
    assert [list(result.token_ids) for result in replayed] == plan["replay"]
    for with_guesses, alone in zip(replayed, without.generate_text_batch(RAGGED, plan)):
        assert with_guesses.logprobs == pytest.approx(alone.logprobs, abs=1e-3)


@pytest.mark.parametrize("guess", ["planted", "ngram", "draft_model"])
def test_pictures_and_text_in_one_batch_answer_as_without_guessing(pair: Any, guess: str) -> None:
    planted = PLANTED["tiny-qwen3-vl"]
    without, guessing = pair(VL, planted if guess == "planted" else SPECULATIVE[guess])
    requests = [{"messages": task.messages} for task in vision_tasks(12)]
    pictures = [request for request in requests if not isinstance(request["messages"][-1]["content"], str)]
    for options in ({"max_new_tokens": 24}, {"max_new_tokens": 16, "temperature": 1.5, "seed": 2}):
        expected = without.generate_vlm_batch(pictures, options)
        planted.expect(expected)
        assert said(guessing.generate_vlm_batch(pictures, options)) == said(expected)


@pytest.mark.parametrize("model", ["random-llama", "random-mistral"])
def test_transformers_objects_of_a_plugin_see_the_columns_that_they_see_without_guessing(pair: Any, model: str) -> None:
    class Watcher(Plugin):
        name = "watcher"

        def __init__(self) -> None:
            self.seen: set[tuple[int, ...]] = set()
            self.hf_stopping_criteria = [self.stops]

        def stops(self, ids: Any, scores: Any) -> Any:
            self.seen |= {tuple(row) for row in ids.tolist()}
            return ids[:, -1] % 5 == 0

    planted = PLANTED[model]
    without, guessing = pair(ROOT / "golden/models" / model, planted)
    options, watchers = {"max_new_tokens": 20}, (Watcher(), Watcher())
    expected = without.generate_text_batch(RAGGED[:3], options, plugins=[watchers[0]])
    planted.expect(expected)
    assert said(guessing.generate_text_batch(RAGGED[:3], options, plugins=[watchers[1]])) == said(expected)
    assert watchers[0].seen == watchers[1].seen


def test_a_batch_takes_as_few_forwards_as_its_guesses_allow(pair: Any) -> None:
    planted = PLANTED["random-llama"]
    without, guessing = pair(ROOT / "golden/models/random-llama", planted)
    options = {"max_new_tokens": 21, "stop": {"ignore_eos": True}}
    planted.expect(without.generate_text_batch(RAGGED[:3], options))
    forwards: list[int] = []
    hook = guessing.model.register_forward_pre_hook(lambda *given: forwards.append(1))
    guessing.backend.most_rows = 3
    planted.right, guess = 1.0, planted.guess
    planted.guess = lambda rows, most: [planted.of_row(row, min(limit, 4)) for row, limit in zip(rows, most)]  # type: ignore[method-assign]
    try:
        guessing.generate_text_batch(RAGGED[:3], options)
    finally:
        planted.guess = guess  # type: ignore[method-assign]
        hook.remove()
    assert len(forwards) == 1 + 4  # one token each of the prompts, then five a round


def test_guesses_stay_within_the_positions_that_a_model_has(pair: Any) -> None:
    """GPT-2 looks positions up in a table: no place of a neighbour's guesses may lie beyond it."""
    planted = PLANTED["random-gpt2"]
    without, guessing = pair(ROOT / "golden/models/random-gpt2", planted)
    requests = [{"prompt_token_ids": [7 + k] * (512 - 40 - 30 * k)} for k in range(3)]
    options = {"max_new_tokens": 40, "stop": {"ignore_eos": True}}
    expected = without.generate_text_batch(requests, options)
    planted.expect(expected)
    planted.rng, planted.right, planted.most, guessing.backend.most_rows = random.Random(1), 0.8, 7, 3
    assert said(guessing.generate_text_batch(requests, options)) == said(expected)


@pytest.mark.parametrize(
    ("fields", "ids", "guess"),
    [
        ({}, [1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3], [4, 9, 3]),  # the longest run, where it first stood
        ({}, [5, 6, 5], [6, 5]),
        ({"lookup_min": 2}, [5, 6, 5], []),
        ({}, [5, 6, 7], []),
        ({"lookup_max": 1}, [1, 2, 9, 2, 3, 1, 2], [9, 2, 3]),  # of the last one alone, the first time
        ({}, [256, 1, 0, 1], [0, 1]),  # ids, not bytes: 256 is 0 and 1
    ],
)
def test_ngrams_guess_what_followed(fields: dict[str, Any], ids: list[int], guess: list[int]) -> None:
    row = Row(PROMPT, SimpleNamespace(ids=[]), ids=tuple(ids[:2]))
    ngrams = Ngrams(Speculation("ngram", num_tokens=3, **fields))
    for token in ids[2:]:
        ngrams([row], [3])
        row.watch.ids.append(token)
    assert ngrams([row], [3]) == [guess]
    assert ngrams([row], [1]) == [guess[:1]]


def test_a_cache_that_cannot_take_guesses_back_is_refused(tmp_path: Path) -> None:
    """A recurrent state has no columns: what was guessed wrong would stay in it."""
    transformers = importlib.import_module("transformers")
    config = transformers.MambaConfig(vocab_size=576, hidden_size=16, num_hidden_layers=1, state_size=4)
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(TEXT).save_pretrained(tmp_path)
    refused = pytest.raises(UnsupportedError, match="cannot take back what was guessed wrong")
    with load(tmp_path, decoder=SPECULATIVE["ngram"]) as engine, refused:
        engine.generate_text_batch([{"prompt": "a"}], {"max_new_tokens": 4})
