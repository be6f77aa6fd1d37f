"""Plugins: explicit, checked before anything starts, the same on both backends."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import pytest

from gen_engine import GenEngineError, GenerationEngine, OptionError, Plugin, UnsupportedError
from parity.models.tasks import drawing, text_tasks
from parity.proof.callsites.plugins import StopAtBalancedJson, SuppressRepeatedObject

from ..conftest import SMALL, TEXT, VL, Load, chat, of_task, open_engine

COUNT, SHORT = chat("Count to 12."), {"max_new_tokens": 12}
TASKS = text_tasks(60)
JSON = [task for task in TASKS if task.kind == "json"][:3]
MIXED = [*JSON, *[task for task in TASKS if task.kind != "json"][:6]]


class StopAfter(Plugin):
    """Stops a row after so many tokens, and keeps what it was shown."""

    name = "stop-after"

    def __init__(self, tokens: int) -> None:
        self.tokens, self.seen = tokens, []  # type: int, list[tuple[tuple[int, ...], str]]

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        self.seen.append((tuple(token_ids), text))
        return len(token_ids) >= self.tokens


def test_should_stop_may_say_why(text: GenerationEngine) -> None:
    class AtFive(Plugin):
        def should_stop(self, token_ids: Sequence[int], text: str) -> str:
            return "five" if "5" in text else ""

    [result] = text.generate_text_batch([COUNT], plugins=[AtFive()])
    assert (result.finish_reason, result.stop_reason) == ("plugin", "five") and result.text.endswith("5")


def test_should_stop_ends_a_row_with_its_name(text: GenerationEngine) -> None:
    plugin = StopAfter(7)
    [free] = text.generate_text_batch([COUNT])
    [result] = text.generate_text_batch([COUNT], plugins=[plugin])
    assert (result.finish_reason, result.stop_reason, result.completion_tokens) == ("plugin", "stop-after", 7)
    assert result.token_ids == free.token_ids[:7]
    assert plugin.seen == [(free.token_ids[:k], text.tokenizer.decode(free.token_ids[:k])) for k in range(1, 8)]


def test_hooks_see_generated_tokens_only_in_a_ragged_batch(text: GenerationEngine) -> None:
    plugin = StopAfter(100)
    results = text.generate_text_batch([of_task(task) for task in MIXED], {"max_new_tokens": 9}, plugins=[plugin])
    shown = {ids for ids, _ in plugin.seen}
    for result in results:
        unfinished = result.token_ids if result.finish_reason == "length" else result.token_ids[:-1]
        assert all(unfinished[:k] in shown for k in range(1, min(9, len(unfinished) + 1)))
    assert all(any(ids == result.token_ids[: len(ids)] for result in results) for ids in shown)


def test_an_end_at_the_same_token_goes_before_the_plugin(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([COUNT], {"stop": [", 2"]}, plugins=[StopAfter(4)])
    assert (result.finish_reason, result.completion_tokens) == ("stop", 4)


def test_plugins_wait_for_min_new_tokens(text: GenerationEngine) -> None:
    [result] = text.generate_text_batch([COUNT], {"min_new_tokens": 9}, plugins=[StopAfter(4)])
    assert (result.finish_reason, result.completion_tokens) == ("plugin", 9)


def test_balanced_json_stops_each_row_at_its_first_value(text: GenerationEngine) -> None:
    options = {"stop": {"ignore_eos": True}, "max_new_tokens": 80}
    results = text.generate_text_batch([of_task(task) for task in JSON], options, plugins=[StopAtBalancedJson()])
    assert [(r.text, r.finish_reason) for r in results] == [(task.answer, "plugin") for task in JSON]


class Forbid(Plugin):
    name = "forbid"

    def __init__(self, token: int) -> None:
        self.token = token

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        logits[self.token] = float("-inf")
        return logits


def test_logits_hooks_change_what_is_said_and_are_the_same_on_both(shared: Load) -> None:
    requests = [of_task(task) for task in MIXED]
    results = []
    for backend in ("hf", "vllm"):
        engine = shared(TEXT, backend, logits_hooks=True)
        comma = engine.tokenizer.convert_tokens_to_ids(",")
        plugins = [SuppressRepeatedObject(engine.tokenizer), Forbid(comma)]
        options = {"stop": {"ignore_eos": True}, "max_new_tokens": 70}
        results.append(engine.generate_text_batch(requests, options, plugins=plugins))
        free = engine.generate_text_batch(requests, options)
        assert any(a.token_ids != b.token_ids for a, b in zip(free, results[-1]))
        assert all(comma not in result.token_ids for result in results[-1])
    assert [r.token_ids for r in results[0]] == [r.token_ids for r in results[1]]


def test_a_plugin_that_asks_its_own_engine_is_answered_or_refused_in_our_words(shared: Load) -> None:
    """As guidance by another prompt does, where a second model would be too much."""

    class Guided(Plugin):
        name = "guided"

        def __init__(self, engine: GenerationEngine) -> None:
            self.engine = engine

        def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
            [other] = self.engine.score_batch([([7, *token_ids], [0])], logits=True)
            return logits.log_softmax(-1) + 3 * other.logits[0].log_softmax(-1)

    hf, vllm = (shared(TEXT, backend, logits_hooks=True) for backend in ("hf", "vllm"))
    [plain], [guided] = (hf.generate_text_batch([COUNT], SHORT, plugins=some) for some in ([], [Guided(hf)]))
    assert plain.token_ids != guided.token_ids
    with pytest.raises(GenEngineError, match="a plugin called its own engine; vLLM is not re-entrant"):
        vllm.generate_text_batch([COUNT], SHORT, plugins=[Guided(vllm)])
    assert vllm.generate_text_batch([COUNT], SHORT)[0].token_ids == plain.token_ids, "it answers the next call"
    [other] = vllm.generate_text_batch([COUNT], SHORT, plugins=[Guided(hf)])
    assert other.token_ids == guided.token_ids


def test_a_second_object_is_suppressed_and_the_first_is_not(hooked: GenerationEngine) -> None:
    plugin, encode = SuppressRepeatedObject(hooked.tokenizer), hooked.tokenizer.encode
    begun = '[{"name": "Anna"},'
    opening = encode(' {"')[0]
    asked: list[Any] = []

    class TwoObjects(Plugin):
        """Writes one object, then wants nothing but another."""

        def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
            script = encode(begun)
            wanted = script[len(token_ids)] if len(token_ids) < len(script) else opening
            logits[wanted] = 100.0
            changed = plugin.logits(token_ids, logits)
            asked.append((len(token_ids), bool(changed[wanted] == float("-inf"))))
            return changed

    [result] = hooked.generate_text_batch([COUNT], {"max_new_tokens": 30}, plugins=[TwoObjects()])
    assert result.raw_text.startswith(begun)
    assert result.raw_text.count("{") == 1
    assert asked[0] == (0, False) and asked[-1][1]


def test_a_logits_hook_acts_on_its_own_copy_and_under_penalties(hooked: GenerationEngine) -> None:
    comma = hooked.tokenizer.convert_tokens_to_ids(",")
    options = {"max_new_tokens": 12, "logprobs": 0, "repetition_penalty": 1.2}
    [result] = hooked.generate_text_batch([COUNT], options, plugins=[Forbid(comma)])
    assert comma not in result.token_ids
    assert result.logprobs is not None and min(result.logprobs) > float("-inf")


def test_post_decode_has_the_last_word_on_text(text: GenerationEngine) -> None:
    class Shout(Plugin):
        post_decode = staticmethod(str.upper)

    [result] = text.generate_text_batch([chat("What is the capital of France?")], plugins=[Shout()])
    assert result.text == "THE CAPITAL OF FRANCE IS PARIS."
    assert "Paris" in result.raw_text


def test_transformers_own_objects_run_on_hf_and_are_refused_on_vllm(shared: Load) -> None:
    generation = importlib.import_module("transformers.generation")

    class AtLength(generation.StoppingCriteria):  # type: ignore[misc,name-defined]
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return importlib.import_module("torch").tensor([input_ids[k, -1] == comma for k in range(len(input_ids))])

    class Native(Plugin):
        name = "native"
        hf_stopping_criteria = (AtLength(),)
        hf_logits_processors = (generation.SuppressTokensLogitsProcessor([0]),)

    engine = shared(TEXT, "hf")
    comma = engine.tokenizer.convert_tokens_to_ids(",")
    [count, other] = engine.generate_text_batch([COUNT, chat("What is the capital of France?")], plugins=[Native()])
    assert (count.text, count.finish_reason, count.stop_reason) == ("1,", "plugin", "native")
    assert other.finish_reason == "eos"
    with pytest.raises(UnsupportedError, match="vllm cannot do plugins that hold transformers objects"):
        shared(TEXT, "vllm").generate_text_batch([COUNT], plugins=[Native()])


def test_transformers_own_processors_may_write_into_what_they_are_given(shared: Load) -> None:
    class Silent(Plugin):
        name = "silent"

        def __init__(self, copies: bool) -> None:
            self.hf_logits_processors = (lambda ids, scores: banned(scores.clone() if copies else scores),)

    def banned(scores: Any) -> Any:
        scores[:, 1::2] = -math.inf
        return scores

    answers = [
        shared(TEXT, "hf").generate_text_batch([COUNT], {"max_new_tokens": 4, "logprobs": 3}, plugins=[Silent(copies)])
        for copies in (True, False)
    ]
    assert answers[0] == answers[1] and any(i % 2 for step in answers[0][0].top_logprobs or () for i in step)


def with_fields(**fields: Any) -> Plugin:
    plugin = StopAfter(1)
    vars(plugin).update(fields)
    return plugin


def test_what_cannot_work_is_refused_before_anything_starts(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyHf(StopAfter):
        backends = ("hf",)

    class OnlyText(StopAfter):
        kinds = ("text",)

    class Wrong(Plugin):
        should_stop = 5  # type: ignore[assignment]

    for backend in ("hf", "vllm"):
        monkeypatch.setattr(shared(TEXT, backend).backend, "complete", None)
        for plugin, said in (
            (Plugin(), "no hook"),
            (object(), "no hook"),
            (Wrong, "is a class"),
            (Wrong(), "should_stop cannot be called"),
            (with_fields(logits=3), "logits cannot be called"),
            (with_fields(backends="hf"), "backends is no list"),
            (with_fields(kinds="text"), "kinds is no list"),
            (with_fields(hf_stopping_criteria=len), "hf_stopping_criteria is no list"),
            (with_fields(hf_logits_processors=["yes"]), "hf_logits_processors cannot be called"),
        ):
            with pytest.raises(OptionError, match=said):
                shared(TEXT, backend).generate_text_batch([COUNT], plugins=[plugin])
    with pytest.raises(UnsupportedError, match=r"plugin 'stop-after' is not for vllm. It is for \('hf',\)"):
        shared(TEXT, "vllm").generate_text_batch([COUNT], plugins=[OnlyHf(1)])
    with pytest.raises(UnsupportedError, match="logits plugins without its hook. Load with logits_hooks=True"):
        shared(TEXT, "vllm").generate_text_batch([COUNT], plugins=[Forbid(1)])
    picture = {"messages": [{"role": "user", "content": [{"type": "image", "image": drawing("red", "circle")}]}]}
    with pytest.raises(UnsupportedError, match="is not for vlm"):
        shared(VL, "hf").generate_vlm_batch([picture], plugins=[OnlyText(1)])


def test_a_hook_that_gives_back_nonsense_is_named(hooked: GenerationEngine) -> None:
    class Nothing(Plugin):
        name = "nothing"

        def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
            return None

    class Number(Plugin):
        name = "number"

        def post_decode(self, text: str) -> Any:
            return 5

    for plugin in (Nothing(), Number()):
        with pytest.raises(OptionError, match=f"plugin '{plugin.name}'"):
            hooked.generate_text_batch([COUNT], {"max_new_tokens": 3}, plugins=[plugin])
    assert hooked.generate_text_batch([COUNT])[0].text.endswith("12.")


def test_the_callers_own_vllm_logits_processors_stand_beside_the_hook() -> None:
    own = {**SMALL["vllm"]["vllm_kwargs"], "logits_processors": []}
    with open_engine(TEXT, "vllm", logits_hooks=True, vllm_kwargs=own) as engine:
        comma = engine.tokenizer.convert_tokens_to_ids(",")
        [result] = engine.generate_text_batch([COUNT], {"max_new_tokens": 9}, plugins=[Forbid(comma)])
    assert comma not in result.token_ids


@pytest.mark.parametrize("hook", ["should_stop", "logits"])
def test_after_a_raising_plugin_the_next_call_is_right(hooked: GenerationEngine, hook: str) -> None:
    def fail(token_ids: Sequence[int], _: Any) -> Any:
        if len(token_ids) > 4:
            raise ZeroDivisionError("planted")
        return False if hook == "should_stop" else _

    plugin = Plugin()
    setattr(plugin, hook, fail)
    [expected] = hooked.generate_text_batch([COUNT])
    said = rf"request 0: plugin 'plugin': {hook} raised ZeroDivisionError\('planted'\)"
    with pytest.raises(OptionError, match=said) as caught:
        hooked.generate_text_batch([COUNT, chat("What is 3 + 4?")], plugins=[plugin])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert hooked.generate_text_batch([COUNT]) == [expected]
