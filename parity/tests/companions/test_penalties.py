"""Penalties: on both backends id by id what plain vLLM makes of the same settings, and plain transformers where it has
a processor for them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import pytest

from gen_engine import GenerationEngine, OptionError, UnsupportedError
from parity.companions.penalties import Penalties
from parity.models.tasks import drawing

from ..conftest import ROOT, TEXT, VL, Load, chat

RANDOM = ROOT / "golden/models/random-llama"
PROMPTS: list[dict[str, Any]] = [{"prompt_token_ids": [5 + k, 9, 30 + k, 7]} for k in range(6)]
FREE = {"max_new_tokens": 40, "stop": {"ignore_eos": True}}
SETTINGS: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -1.0, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.3, "presence_penalty": 1.5, "frequency_penalty": -0.2},
    {"logit_bias": {17: 3.5, 40: -100, 90: 2}},
    {"allowed_token_ids": [11, 12, 13, 14, 60, 61], "frequency_penalty": 2.0},
    {"logit_bias": {"12": 1.0}, "allowed_token_ids": [11, 12, 13], "presence_penalty": 0.5},
]


def ids_of(results: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(result.token_ids) for result in results]


def plain_vllm(engine: GenerationEngine, requests: list[dict[str, Any]], settings: dict[str, Any]) -> list[Any]:
    kit = importlib.import_module("vllm")
    params = kit.SamplingParams.from_optional(
        temperature=0, max_tokens=FREE["max_new_tokens"], ignore_eos=True, **settings
    )
    with engine.bare(read_only=True) as llm:
        return ids_of([one.outputs[0] for one in llm.generate(requests, params, use_tqdm=False)])


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_settings_give_plain_vllms_ids_on_both(shared: Load, settings: dict[str, Any]) -> None:
    fast, slow = (shared(RANDOM, backend, logits_hooks=True, max_model_len=512) for backend in ("vllm", "hf"))
    expected = plain_vllm(fast, PROMPTS, settings)
    assert expected != ids_of(fast.generate_text_batch(PROMPTS, FREE))  # or nothing is shown
    for engine in (fast, slow):
        results = engine.generate_text_batch(PROMPTS, FREE, plugins=[Penalties(engine, **settings)])
        assert ids_of(results) == expected


def test_penalties_divide_by_repetition_before_they_subtract_presence(shared: Load) -> None:
    """As vLLM does: 1.0 / 2 - 0.25, not (1.0 - 0.25) / 2."""
    torch = importlib.import_module("torch")
    plugin = Penalties(shared(TEXT, "hf"), repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.125)
    logits = plugin.logits([3, 3, 4], torch.tensor([0.0, 1.0, 1.0, 1.0, -1.0]), prompt_token_ids=[2, 3])
    assert logits.tolist() == [0.0, 1.0, 0.5, 0.5 - 0.25 - 2 * 0.125, -2.0 - 0.25 - 0.125]


def words_to_ban(engine: GenerationEngine) -> list[str]:
    """The first word, the first two, and the last of a count, which begin with and without a space."""
    [free] = engine.generate_text_batch([chat("Count to 25.")])
    return [free.text[:1], free.text[3:7], free.text[-3:]]


def test_bad_words_give_plain_vllms_ids_on_both(shared: Load) -> None:
    fast, slow = (shared(TEXT, backend, logits_hooks=True) for backend in ("vllm", "hf"))
    words = words_to_ban(slow)
    [free] = slow.generate_text_batch([chat("Count to 25.")])
    prompt = {"prompt_token_ids": list(free.prompt_token_ids)}
    for banned in (words[:1], words[1:2], words):
        expected = plain_vllm(fast, [prompt], {"bad_words": banned})
        assert expected != ids_of(fast.generate_text_batch([prompt], FREE))
        for engine in (fast, slow):
            results = engine.generate_text_batch([prompt], FREE, plugins=[Penalties(engine, bad_words=banned)])
            assert ids_of(results) == expected


def literal_penalties(presence: float, frequency: float, prompt: int) -> Any:
    """OpenAI's formula, word by word, as a processor of plain transformers."""

    def act(ids: Any, scores: Any) -> Any:
        for row, answer in enumerate(ids[:, prompt:].tolist()):
            for token in set(answer):
                scores[row, token] -= answer.count(token) * frequency + presence
        return scores

    return act


def test_on_hf_ids_are_those_of_plain_transformers(shared: Load) -> None:
    transformers = importlib.import_module("transformers")
    torch = importlib.import_module("torch")
    engine = shared(RANDOM, "hf", logits_hooks=True, max_model_len=512)
    model = transformers.AutoModelForCausalLM.from_pretrained(RANDOM, dtype=torch.float32)
    ids = torch.tensor([prompt["prompt_token_ids"] for prompt in PROMPTS])
    allowed = (11, 12, 13, 14, 60, 61)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"logit_bias": {17: 3.5, 90: 2}}, {"sequence_bias": {(17,): 3.5, (90,): 2.0}}),
        (
            {"allowed_token_ids": allowed},
            {"suppress_tokens": [i for i in range(engine.checkpoint.vocabulary) if i not in allowed]},
        ),
        (
            {"presence_penalty": 1.5, "frequency_penalty": 0.25},  # binary fractions: no rounding differs
            {"logits_processor": [literal_penalties(1.5, 0.25, ids.shape[1])]},
        ),
    ]
    for settings, how in cases:
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, eos_token_id=-1,
            pad_token_id=0, **how,
        )  # fmt: skip
        results = engine.generate_text_batch(PROMPTS, FREE, plugins=[Penalties(engine, **settings)])
        assert ids_of(results) == [tuple(row) for row in out[:, ids.shape[1] :].tolist()]


def test_a_row_has_the_same_answer_alone_and_samples_follow_its_seed(hooked: GenerationEngine) -> None:
    plugin = Penalties(hooked, presence_penalty=1.5, frequency_penalty=1)
    chats = [chat(f"Count to {n}.", seed=n) for n in (5, 12, 20)]
    for options in ({"max_new_tokens": 30}, {"max_new_tokens": 30, "temperature": 0.9}):
        together = hooked.generate_text_batch(chats, options, plugins=[plugin])
        alone = [hooked.generate_text_batch([one], options, plugins=[plugin])[0] for one in chats]
        assert ids_of(together) == ids_of(alone)


def test_images_are_penalized_too(shared: Load) -> None:
    content = [{"type": "image", "image": drawing("red", "circle")}, {"type": "text", "text": "What do you see?"}]
    request = {"messages": [{"role": "user", "content": content}]}
    answers = []
    for backend in ("hf", "vllm"):
        engine = shared(VL, backend, logits_hooks=True)
        plugin = Penalties(engine, repetition_penalty=1.2, presence_penalty=2.0, logit_bias={7: 1})
        answers.append(ids_of(engine.generate_vlm_batch([request], {"max_new_tokens": 12}, plugins=[plugin])))
    assert answers[0] == answers[1]


def test_logprobs_stay_raw(hooked: GenerationEngine) -> None:
    plugin = Penalties(hooked, allowed_token_ids=[11, 12])
    [result] = hooked.generate_text_batch([chat("Hi")], {"max_new_tokens": 3, "logprobs": 0}, plugins=[plugin])
    assert result.logprobs is not None and all(-math.inf < value < -1 for value in result.logprobs)


def test_ids_that_contradict_each_other_fail_the_row(hooked: GenerationEngine) -> None:
    plugin = Penalties(hooked, allowed_token_ids=[11], bad_words=[hooked.tokenizer.decode([11])])
    with pytest.raises(OptionError, match="request 0: plugin 'penalties': logits gave"):
        hooked.generate_text_batch([chat("Hi")], plugins=[plugin])


def test_vllm_without_its_hook_refuses(shared: Load) -> None:
    engine = shared(TEXT, "vllm")
    with pytest.raises(UnsupportedError, match="logits plugins without its hook. Load with logits_hooks=True"):
        engine.generate_text_batch([chat("Hi")], plugins=[Penalties(engine, presence_penalty=1)])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1. It must be a number, -2 to 2"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"frequency_penalty": "1"}, "frequency_penalty is '1'"),
        ({"presence_penalty": True}, "presence_penalty is True"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0. It must be a number, 0.01 to 100"),
        ({"logit_bias": {17: 101}}, "logit_bias of token 17 is 101. It must be a number, -100 to 100"),
        ({"logit_bias": {"x": 1}}, "logit_bias has the key 'x'. Its keys are token ids"),
        ({"logit_bias": {True: 1}}, "logit_bias has the key True"),
        ({"logit_bias": [1]}, "logit_bias is [1]. Map token ids to numbers"),
        ({"logit_bias": {1 << 20: 1}}, "logit_bias is outside the vocabulary of"),
        ({"allowed_token_ids": ()}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": (1 << 20,)}, "allowed_token_ids is outside the vocabulary of"),
        ({"bad_words": [""]}, "PenaltyOptions.bad_words is ('',)"),
        ({"bad_words": "sorry"}, "PenaltyOptions.bad_words is 'sorry'"),
        ({"presence_penalties": 1}, "no field 'presence_penalties'. Did you mean 'presence_penalty'?"),
    ],
)  # fmt: skip
def test_a_setting_that_is_invalid_is_refused(shared: Load, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        Penalties(shared(TEXT, "hf"), **settings)
    assert problem in str(caught.value)


def test_settings_are_those_that_change_something(shared: Load) -> None:
    """What a recorder notes of a call."""
    penalties = Penalties(shared(TEXT, "hf"), presence_penalty=1, repetition_penalty=1, logit_bias={7: -1})
    assert penalties.settings == {"presence_penalty": 1, "logit_bias": {"7": -1}}
