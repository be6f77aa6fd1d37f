"""Taps on a vendored gen_engine: what its generate and score calls were asked, and what they gave.

An engine tells its settings itself. What the library below it was seen to do corrects them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from parity.record.calls import Listener, ListenerTap, model_tap, tap_loading
from parity.record.events import Event, Forward, Ids, ModelCall, Output
from parity.record.patching import Invocation
from parity.record.rows import (
    NEUTRAL,
    PLUGIN_SETTINGS,
    PLUGIN_STOPS,
    STRUCTURED,
    by_caller,
    collapsed,
    runs,
    sourced,
)
from parity.record.taps.images import budget_of, pictures_of, pixel_digest
from parity.record.taps.loops import scored_call, scored_output
from parity.record.taps.models import model_stage, shown_path
from parity.record.taps.text import chat_stages
from parity.record.taps.transformers import watched_forward
from parity.record.taps.vllm import (
    adapters_received,
    never_text,
    params_of,
    pictures_received,
    seeds_received,
    vllm_sampling,
)


def is_engine(module: ModuleType) -> bool:
    """Whether a module is a copy of gen_engine.py, whatever it is called."""
    inside = vars(module)
    if "GenerationEngine" not in inside or "truncate_at_stops" not in inside:
        return False  # of thousands that are looked at, nearly all
    return getattr(inside["GenerationEngine"], "__module__", None) == module.__name__


# == Settings ==


def listed_plugins(plugins: Any) -> Sequence[Any]:
    """The plugins that a call was given; none of what is no list of them, which the engine
    refuses."""
    return plugins if isinstance(plugins, (list, tuple)) else ()


def names_with_hook(plugins: Sequence[Any], *hooks: str) -> list[str]:
    """Names of the plugins that have one of these hooks."""
    hooked = (one for one in plugins if any(getattr(one, hook, None) for hook in hooks))
    return [getattr(one, "name", "plugin") for one in hooked]


def plugin_settings(plugins: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """What plugins say of themselves under these names."""
    found = dict[str, Any]()
    for plugin in plugins:
        own = getattr(plugin, "settings", None)
        if isinstance(own, Mapping):
            found |= {name: sourced(own[name], "caller") for name in names if name in own}
    return found


def settings_below(events: Sequence[Event]) -> dict[str, Any]:
    """Sampling settings that the library below the engine was given, by their values."""
    for event in events:
        if isinstance(event, ModelCall):
            # The engine samples by itself, and tells the library neither temperature nor n.
            return values_without(event.sampling, "temperature", "n")
    for request in params_of(events):
        return values_without(vllm_sampling(request.params), "n", "processors")
    return {}


def values_without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: entry["value"] for name, entry in settings.items() if name not in names}


def engine_sampling(
    effective: Mapping[str, Any], events: Sequence[Event], plugins: Sequence[Any]
) -> dict[str, Any]:
    """What the engine says, corrected by what the library below it was really given."""
    settings = dict[str, Any]()
    for name, neutral in NEUTRAL.items():
        entry = effective.get(name, sourced(neutral, "default"))
        settings[name] = entry if entry["value"] is not None else {**entry, "value": neutral}
    below = settings_below(events)
    processors = names_with_hook(plugins, "logits", "hf_logits_processors")
    # Handed down as functions, which do not say what they are.
    processors += [name for name in below.pop("processors", ()) if name != "<lambda>"]
    below.pop("no_repeat_ngram_size", None)
    below.pop("seed", None)
    settings["processors"] = by_caller(processors)
    for name, value in below.items():
        if name not in settings or settings[name]["value"] != value:
            settings[name] = sourced(value, "below the engine")
    settings.update(plugin_settings(plugins, PLUGIN_SETTINGS))
    if settings["temperature"]["value"] and effective["seed"]["value"] is not None:
        settings["seed"] = effective["seed"]
    return settings


def engine_stop(
    effective: Mapping[str, Any], tokenizer: Any, plugins: Sequence[Any]
) -> dict[str, Any]:
    """end_ids: those of the checkpoint and those named as ids.   string_ids: those of stop strings
    of one token."""
    strings = list(effective["stop_strings"]["value"])
    named = effective["stop_token_ids"]["value"]
    eos = effective["eos_token_ids"]
    string_ids = [token for token in named if tokenizer.decode([token]) in strings]
    ends = sorted({*eos["value"], *named} - {*string_ids})
    skip_special = effective["skip_special_tokens"]["value"]
    stop = {
        "end_ids": sourced(ends, "caller" if named else eos["from"]),
        "strings": sourced(strings, effective["stop_strings"]["from"]),
        "max_new_tokens": effective["max_new_tokens"],
        "min_new_tokens": effective["min_new_tokens"],
        "criteria": by_caller(names_with_hook(plugins, "should_stop", "hf_stopping_criteria")),
        **never_text(strings, tokenizer, skip_special, ends),
        **plugin_settings(plugins, PLUGIN_STOPS),
    }
    if effective["include_stop"]["value"]:
        stop["include_stop"] = effective["include_stop"]
    if string_ids:
        stop["string_ids"] = sourced(string_ids, "caller")
    return stop


# == Requests ==


@dataclass(frozen=True, slots=True)
class MadePrompt:
    """A request, the engine's Prompt of it, and what happened while it was made."""

    request: Any
    prompt: Any
    events: list[Event]


@dataclass(slots=True)
class EngineCall:
    """A call under way. prompts: by the index of their request.   engine: that made them."""

    prompts: dict[int, MadePrompt] = field(default_factory=dict)
    engine: Any = None


def field_of(given: Any, name: str) -> Any:
    """A field of a request or of options, which may be a mapping."""
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def seed_of(made: MadePrompt, options: Any) -> int | None:
    """The seed of a request, else of the options, else what the engine made of both."""
    for given in (made.request, options):
        seed = field_of(given, "seed")
        if seed is not None:
            return int(seed)
    found: int | None = getattr(made.prompt, "seed", None)
    return found


def structure_of(request: Any) -> dict[str, Any]:
    """The structured output that a request asks for, as it says it."""
    asked = field_of(request, "structured")
    is_contract = dataclasses.is_dataclass(asked) and not isinstance(asked, type)
    said = dataclasses.asdict(asked) if is_contract else asked or {}
    return {form: value for form, value in said.items() if value not in (None, False, "", ())}


def request_key(prompt: Any) -> str:
    """What makes a Prompt a request of its own."""
    images = [(image.size, image.mode, pixel_digest(image)) for image in prompt.images]
    names = ("image_kwargs", "seed", "adapter", "structured")
    others = [getattr(prompt, name, None) for name in names]
    return repr([tuple(prompt.token_ids), images, *others])


def is_answer_to(
    prompt: Any, ids: Sequence[int], placeholder: int | None, lengths: Sequence[tuple[int, int]]
) -> bool:
    """Whether these ids are a Prompt's own, images as one id or as many. Of another length they may
    be of its own images, unless prompts with these ids have got each other's.

    lengths: of the prompts with these ids, and of what each got.
    """
    if collapsed(prompt.token_ids, placeholder) != collapsed(ids, placeholder):
        return False
    expected = sorted(length for length, _ in lengths)
    actual = sorted(length for _, length in lengths)
    return len(ids) == prompt.length or expected != actual


def adapter_stage(engine: Any, prompt: Any, used: Mapping[Ids, set[str]]) -> dict[str, Any]:
    """What a request says of its adapter: its folder, or that vLLM was seen to use another one."""
    folder = ""
    if prompt.adapter:
        folder = str(engine.config.adapters.get(prompt.adapter, prompt.adapter))
    if folder not in used.get(tuple(prompt.token_ids), {folder}):
        return {"adapter": "another"}
    return {"adapter": shown_path(folder)} if folder else {}


def seed_below(seed: int, sample: int, received: Sequence[int]) -> int:
    """The seed that a sample is drawn with: its own, or what vLLM received in its place."""
    own = seed + sample
    return own if not received or own in received else received[min(sample, len(received) - 1)]


def engine_pictures(
    engine: Any,
    prompt: Any,
    ids: Sequence[int],
    processed: Mapping[Any, Mapping[str, Any]],
    received: Sequence[tuple[str, ...]],
) -> list[dict[str, Any]]:
    """A request's images.

    processed: what the image processor made of an image, by sha256 and tokens.   received: images
    that vLLM received with this prompt; where none are these, the first are what the model saw.
    """
    placeholder = engine.checkpoint.placeholder_id
    digests = [pixel_digest(image) for image in prompt.images]
    if received and tuple(digests) not in received:
        digests[: len(received[0])] = received[0]
    budget = budget_of(engine.checkpoint.vision.image_processor, prompt.image_kwargs)
    pictures = []
    for image, tokens, digest in zip(prompt.images, runs(ids, placeholder), digests):
        picture = {
            "sha256": digest,
            "size": list(image.size),
            "tokens": tokens,
            "budget": budget,
            "pixels": image,
        }
        pictures.append({**processed.get((digest, tokens), {}), **picture})
    return pictures


# == What happened below ==


@dataclass(frozen=True, slots=True)
class Below:
    """What the library below an engine was seen to do in a call.

    processed: what the image processor made of an image, by sha256 and tokens.   pictures,
    adapters, seeds: what vLLM received with a prompt.   batches: how transformers got a prompt
    padded.   computed: how often a prompt was given to the library.
    """

    processed: dict[tuple[str, Any], dict[str, Any]]
    pictures: dict[Ids, list[tuple[str, ...]]]
    adapters: dict[Ids, set[str]]
    seeds: dict[Ids, list[int]]
    batches: dict[Ids, dict[str, Any]]
    computed: Counter[Ids]

    @classmethod
    def read(cls, engine: Any, events: Sequence[Event]) -> Below:
        placeholder = engine.checkpoint.placeholder_id
        nested = list[Output]()
        for event in events:
            if isinstance(event, ModelCall) and event.nested:
                nested += event.outputs
        given = [output.prompt_ids for output in nested]
        given += [list(request.prompt_ids) for request in params_of(events)]
        return cls(
            {(one["sha256"], one.get("tokens")): one for one in pictures_of(events)},
            pictures_received(engine.model, events),
            adapters_received(engine.model, events),
            seeds_received(events),
            {tuple(output.prompt_ids): output.batch for output in nested},
            Counter(collapsed(ids, placeholder) for ids in given),
        )


# == Generate ==


@dataclass(frozen=True, slots=True)
class EngineReader:
    """Reads the answers of one call of generate_*_batch.

    lengths: of prompts with the same ids, and of what each got.   requested: how often unlike
    requests have these ids.
    """

    engine: Any
    options: Any
    prompts: Mapping[int, MadePrompt]
    below: Below
    sampling: dict[str, Any]
    lengths: Mapping[Ids, list[tuple[int, int]]]
    requested: Counter[Ids]

    def output(self, number: int, index: int, sample: Any) -> Output:
        """index: of the sample of request `number`."""
        made = self.prompts[number]
        effective = sample.effective
        how = {
            "ids": "ended",
            "skip_special_tokens": effective["skip_special_tokens"]["value"],
            "clean_up": effective["clean_up_tokenization_spaces"]["value"],
        }
        ids = list(sample.token_ids)
        prompt_ids = list(sample.prompt_token_ids)
        images = None
        if made.prompt.images:
            received = self.below.pictures.get(tuple(made.prompt.token_ids), [])
            processed = self.below.processed
            images = engine_pictures(self.engine, made.prompt, prompt_ids, processed, received)
        request = self.request(number, index, sample)
        return Output(
            prompt_ids,
            ids,
            ids,
            [*prompt_ids, *ids],
            self.below.batches.get(tuple(prompt_ids), {}),
            {"decode": how, "text": sample.text, "images": images, **chat_stages(made.events)},
            request,
            self.own_sampling(made, request),
        )

    def request(self, number: int, index: int, sample: Any) -> dict[str, Any]:
        made = self.prompts[number]
        ids = tuple(made.prompt.token_ids)
        placeholder = self.engine.checkpoint.placeholder_id
        request: dict[str, Any] = {"number": number, "sample": index}
        if not is_answer_to(made.prompt, sample.prompt_token_ids, placeholder, self.lengths[ids]):
            request["answers"] = "another"
        request |= adapter_stage(self.engine, made.prompt, self.below.adapters)
        if structure := structure_of(made.request):
            request["structure"] = structure
        key = collapsed(ids, placeholder)
        if 0 < self.below.computed[key] < self.requested[key]:
            request["shared"] = True
        is_cached = getattr(sample, "cached", False)
        if is_cached:
            request["cached"] = True
        seed = seed_of(made, self.options)
        if seed is not None and sample.effective["temperature"]["value"]:
            received = [] if is_cached else self.below.seeds.get(ids, [])
            request["seed"] = seed_below(seed, index, received)
        return request

    def own_sampling(self, made: MadePrompt, request: Mapping[str, Any]) -> dict[str, Any]:
        """The sampling of one request, where it is not that of the whole call; {} where it is."""
        own = dict[str, Any]()
        if "seed" in request:
            own["seed"] = sourced(request["seed"] - request["sample"], "caller")
        if getattr(made.prompt, "structured", None) is not None:
            processors = [*self.sampling["processors"]["value"], STRUCTURED]
            own["processors"] = sourced(processors, "caller")
        return {**self.sampling, **own} if own else {}


def read_engine_call(
    engine: Any,
    given: Mapping[str, Any],
    prompts: Mapping[int, MadePrompt],
    events: Sequence[Event],
    results: Sequence[Any],
) -> ModelCall:
    """A call of generate_*_batch. given: its arguments by name."""
    # Of these the model was asked; a request that was refused may hold another one's answer.
    answered = {
        number: result
        for number, result in enumerate(results)
        if hasattr(result, "finish_reason") and number in prompts
    }
    samples = [
        (number, index, sample)
        for number, result in answered.items()
        for index, sample in enumerate(result.samples or (result,))
    ]
    options = given.get("options")
    plugins = listed_plugins(given.get("plugins"))
    effective = samples[-1][2].effective if samples else engine.effective(options)
    sampling = engine_sampling(effective, events, plugins)
    lengths = dict[Ids, list[tuple[int, int]]]()
    for number, result in answered.items():
        prompt = prompts[number].prompt
        pair = prompt.length, len(result.prompt_token_ids)
        lengths.setdefault(tuple(prompt.token_ids), []).append(pair)
    reader = EngineReader(
        engine,
        options,
        prompts,
        Below.read(engine, events),
        sampling,
        lengths,
        count_requests(prompts.values(), engine.checkpoint.placeholder_id),
    )
    return ModelCall(
        [reader.output(*one) for one in samples],
        model_stage(engine.model),
        sampling,
        engine_stop(effective, engine.tokenizer, plugins),
        engine.checkpoint.placeholder_id,
    )


def count_requests(prompts: Any, placeholder: int | None) -> Counter[Ids]:
    """How many unlike requests there are for each prompt."""
    good = [made.prompt for made in prompts if hasattr(made.prompt, "token_ids")]
    unlike = {request_key(prompt): prompt for prompt in good}
    return Counter(collapsed(prompt.token_ids, placeholder) for prompt in unlike.values())


@model_tap
def tap_engine(listener: Listener, call: Invocation) -> Any:
    """generate_text_batch or generate_vlm_batch of a vendored gen_engine."""
    with listener.inside("engine") as outermost:
        if not outermost:
            with listener.inside("another engine"):
                return call.run()
        mark = listener.mark()
        running = listener.thread.memory.renew(EngineCall)
        run = call.original
        if listener.replay:
            run = functools.partial(listener.replay.call, call.original)
        results = call.run_as(run, call.owner)
        with listener.guarded("a call of gen_engine"):
            engine = running.engine or call.owner
            events = listener.events_since(mark)
            listener.note_model_call(
                read_engine_call(engine, call.arguments, running.prompts, events, results)
            )
    return results


def tap_prompt(listener: Listener, call: Invocation) -> Any:
    """Where an engine turns request `index` into a Prompt; one that a plugin asks has its own."""
    if listener.within("another engine"):
        return call.run()
    engine, index, request, *_ = call.args
    mark = listener.mark()
    prompt = call.run()
    replay = listener.replay
    if replay is not None:
        prompt = replay.prompt(engine, prompt)
    with listener.guarded("a prompt of gen_engine"):
        running = listener.thread.memory.of(EngineCall)
        running.engine = engine
        number = index if replay is None else replay.place(index)
        running.prompts[number] = MadePrompt(request, prompt, listener.events_since(mark))
    return prompt


# == Score ==


def seen_ids(ids: Sequence[int], response: Sequence[int], forwards: Sequence[Ids]) -> list[int]:
    """Of ids that an engine says it has read, those that reached a forward: these, or others with
    the same response."""
    if not forwards or tuple(ids) in forwards:
        return list(ids)
    tail = tuple(response)
    others = (read for read in forwards if read[len(read) - len(tail) :] == tail)
    return list(next(others, ids))


def scored_pictures(
    engine: Any, prompts: Sequence[Any], rows: Sequence[Sequence[int]], below: Below
) -> list[Any]:
    """Of each row that was scored, its images, also those that vLLM does not process again."""
    placeholder = engine.checkpoint.placeholder_id
    left = [prompt for prompt in prompts if prompt.images]
    found = list[Any]()
    for row in rows:
        ids = collapsed(row, placeholder)
        begins = [ids[: len(prompt.token_ids)] == tuple(prompt.token_ids) for prompt in left]
        if True not in begins:
            found.append(None)
            continue
        prompt = left.pop(begins.index(True))
        received = below.pictures.get(ids, [])
        found.append(engine_pictures(engine, prompt, row, below.processed, received))
    return found


@contextlib.contextmanager
def scored_prompts(backend: Any) -> Iterator[list[Any]]:
    """The prompts that an engine hands to its backend to score, as they come."""
    found = list[Any]()
    score = backend.score

    def score_seen(pairs: Any, *args: Any, **how: Any) -> Any:
        found.extend(prompt for prompt, _ in pairs)
        return score(pairs, *args, **how)

    backend.score = score_seen
    try:
        yield found
    finally:
        vars(backend).pop("score", None)  # of two calls at once, the first to end takes it away


def read_scores(
    engine: Any, prompts: Sequence[Any], events: Sequence[Event], scores: Sequence[Any]
) -> ModelCall:
    forwards = [event for event in events if isinstance(event, Forward)]
    read = [row.ids for event in forwards for row in event.rows]
    below = Below.read(engine, events)
    rows = []
    for score in scores:
        whole = [*score.prompt_token_ids, *score.token_ids]
        rows.append(seen_ids(whole, score.token_ids, read))
    pictures = scored_pictures(engine, prompts, rows, below)
    outputs = []
    for number, ids in enumerate(rows):
        request = dict[str, Any]()
        if number < len(prompts):
            request = adapter_stage(engine, prompts[number], below.adapters)
        request["response"] = len(scores[number].token_ids)
        outputs.append(scored_output(ids, pictures[number], request))
    return scored_call(engine.model, outputs, engine.checkpoint.placeholder_id)


@model_tap
def tap_score(listener: Listener, call: Invocation) -> Any:
    """score_batch of a vendored gen_engine."""
    with listener.inside("engine") as outermost:
        if not outermost or not listener.in_site():
            return call.run()
        engine = call.owner
        score = call.original
        if listener.replay:
            engine = listener.replay.engine(engine)
            score = functools.partial(listener.replay.score, call.original)
        mark = listener.mark()
        with contextlib.ExitStack() as stack:
            if hasattr(engine.model, "register_forward_pre_hook"):
                stack.enter_context(watched_forward(listener, engine.model, each=True))
            prompts = stack.enter_context(scored_prompts(engine.backend))
            scores = call.run_as(score, engine)
        with listener.guarded("scores of gen_engine"):
            events = listener.events_since(mark)
            listener.note(read_scores(engine, prompts, events, scores))
    return scores


# == Loading ==


def tap_open(listener: Listener, call: Invocation) -> None:
    """Where an engine is loaded: a replay on another backend need not load the first one too."""
    engine, *rest = call.args
    kwargs = dict(call.kwargs)
    config = rest.pop(0) if rest else kwargs.pop("config")
    if listener.replay is not None and not listener.within("engine"):
        config = listener.replay.opening(config)
        module = sys.modules[type(config).__module__]
        # `load` asked this of the other backend.
        if refused := module.refusal_of(module.Asked(config)):
            raise refused
    tap_loading(listener, Invocation(call.original, (engine, config, *rest), kwargs))
    if not listener.within("engine"):
        listener.opened.add(engine)


ENGINE_TAPS: dict[str, ListenerTap] = {
    "GenerationEngine.generate_text_batch": tap_engine,
    "GenerationEngine.generate_vlm_batch": tap_engine,
    "GenerationEngine.score_batch": tap_score,
    "generate_text_batch": tap_engine,  # the same functions under the module's name
    "generate_vlm_batch": tap_engine,
    "score_batch": tap_score,
    "GenerationEngine._prompt": tap_prompt,
    "GenerationEngine.__init__": tap_open,
}
