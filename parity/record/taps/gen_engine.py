"""Taps on a vendored gen_engine: what its generate and score calls were asked, and what they gave.

An engine tells its settings itself. What the library below it was seen to do corrects them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from parity.record.calls import Listener, ListenerTap, model_tap, tap_loading
from parity.record.events import Event, Events, Forward, ForwardRow, Ids, ModelCall, Output, Params
from parity.record.patching import Invocation
from parity.record.rows import (
    NEUTRAL,
    PLUGIN_SETTINGS,
    PLUGIN_STOPS,
    STRUCTURED,
    Fields,
    Placeholders,
    Row,
    by_caller,
    collapsed,
    sourced,
)
from parity.record.taps.images import budget_of, clip_picture, pictures_of, pixel_digest
from parity.record.taps.loops import scored_call, scored_output
from parity.record.taps.models import model_stage, placeholders_of, shown_path
from parity.record.taps.text import chat_stages, never_text, without_mark
from parity.record.taps.transformers import watched_forward
from parity.record.taps.vllm import vllm_sampling

ENGINE = ("GenerationEngine", "truncate_at_stops")  # by which a copy of gen_engine.py is known


def is_copy(module: ModuleType, *names: str) -> bool:
    """Whether a module defines the first of these names, and has the others: whether it is a copy
    of ours, whatever it is called."""
    inside = vars(module)
    if any(name not in inside for name in names):
        return False  # of thousands that are looked at, nearly all
    return getattr(inside[names[0]], "__module__", None) == module.__name__


def is_engine(module: ModuleType) -> bool:
    return is_copy(module, *ENGINE)


# == Settings ==


def listed_plugins(plugins: Any) -> Sequence[Any]:
    """The plugins that a call was given; none of what is no list of them, which the engine
    refuses."""
    return plugins if isinstance(plugins, (list, tuple)) else ()


def names_with_hook(plugins: Sequence[Any], *hooks: str) -> list[str]:
    """Names of the plugins that have one of these hooks."""
    names = []
    for plugin in plugins:
        if any(getattr(plugin, hook, None) for hook in hooks):
            names.append(getattr(plugin, "name", "plugin"))
    return names


def plugin_settings(plugins: Sequence[Any], names: Sequence[str]) -> Fields:
    """What plugins say of themselves under these names."""
    found = Fields()
    for plugin in plugins:
        own = getattr(plugin, "settings", None)
        if isinstance(own, Mapping):
            found |= {name: sourced(own[name], "caller") for name in names if name in own}
    return found


# Names of the processors that the engine hands down: its own, and a function, as up to 0.3.0.
OWN_STEPS = {"EngineProcessor", "<lambda>"}


def settings_below(events: Events) -> Fields:
    """Sampling settings that the library below the engine was given, by their values."""
    for event in events:
        if isinstance(event, ModelCall):
            if OWN_STEPS.isdisjoint(event.sampling["processors"]["value"]):
                return {}  # a decoder has the prompts computed, and does the rest by itself
            # The engine samples by itself, and tells the library neither temperature nor n.
            return values_without(event.sampling, "temperature", "n")
        if isinstance(event, Params):
            return values_without(vllm_sampling(event.params), "processors", "n")
    return {}


def values_without(settings: Row, *names: str) -> Fields:
    """Values but for these names, and those that the engine sees to in each request."""
    left_out = {*names, "no_repeat_ngram_size", "seed"}
    return {name: entry["value"] for name, entry in settings.items() if name not in left_out}


def engine_sampling(
    effective: Row, seed: Any, events: Events, plugins: Sequence[Any]
) -> Fields:
    """What the engine says, corrected by what the library below it was really given.

    seed: of the call's options; a request's own is told beside its answer."""
    settings = Fields()
    for name, neutral in NEUTRAL.items():
        entry = effective.get(name, sourced(neutral, "default"))
        if entry["value"] is None:
            entry = {**entry, "value": neutral}
        settings[name] = entry
    below = settings_below(events)
    processors = names_with_hook(plugins, "logits", "hf_logits_processors")
    # They do not say what they do.
    processors += [name for name in below.pop("processors", ()) if name not in OWN_STEPS]
    settings["processors"] = by_caller(processors)
    for name, value in below.items():
        if name not in settings or settings[name]["value"] != value:
            settings[name] = sourced(value, "below the engine")
    by_plugins = plugin_settings(plugins, PLUGIN_SETTINGS)
    if penalty := by_plugins.get("repetition_penalty"):  # each divides the logits
        penalty["value"] *= settings["repetition_penalty"]["value"]
    settings.update(by_plugins)
    if settings["temperature"]["value"] and seed is not None:
        settings["seed"] = sourced(seed, "caller")
    return settings


def engine_stop(
    effective: Row, tokenizer: Any, plugins: Sequence[Any]
) -> Fields:
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
    """A call under way. prompts: by the index of their request.   scored: prompts that the backend
    scores.   engine: that made the prompts."""

    prompts: dict[int, MadePrompt] = field(default_factory=dict)
    scored: list[Any] = field(default_factory=list)
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


def structure_of(request: Any) -> Fields:
    """The structured output that a request asks for, as it says it."""
    asked = field_of(request, "structured")
    is_contract = dataclasses.is_dataclass(asked) and not isinstance(asked, type)
    said = dataclasses.asdict(asked) if is_contract else asked or {}
    unsaid = (None, False, "", ())
    return {form: value for form, value in said.items() if value not in unsaid}


def is_frames(image: Any) -> bool:
    """Whether an image of a Prompt is a clip, of the companion video.py."""
    return hasattr(image, "frames")


def request_key(prompt: Any) -> str:
    """What makes a Prompt a request of its own."""
    images = [(image.size, is_frames(image), pixel_digest(image)) for image in prompt.images]
    names = ("image_kwargs", "seed", "adapter", "structured")
    others = [getattr(prompt, name, None) for name in names]
    return repr([tuple(prompt.token_ids), images, *others])


def is_answer_to(
    prompt: Any,
    ids: Sequence[int],
    placeholders: Placeholders,
    lengths: Sequence[tuple[int, int]],
) -> bool:
    """Whether these ids are a Prompt's own, images as one id or as many. Of another length they may
    be of its own images, unless prompts with these ids have got each other's.

    lengths: of the prompts with these ids, and of what each got.
    """
    if collapsed(prompt.token_ids, placeholders) != collapsed(ids, placeholders):
        return False
    expected = sorted(length for length, _ in lengths)
    actual = sorted(length for _, length in lengths)
    return len(ids) == prompt.length or expected != actual


# == What happened below ==


def masked_padding(row: ForwardRow, count: int) -> Fields:
    """How a row of a batch of `count` rows was padded, by what its mask hides."""
    pads = max(len(row.whole) - len(row.ids), 0)
    side = "none"
    if pads:
        side = "right" if row.whole[: len(row.ids)] == row.ids else "left"
    return {"rows": count, "side": side, "pads": pads, "masked": True}


class Below:
    """What the library below an engine was seen to do in a call.

    processed: what the image processor made of an image, by sha256 and tokens.   received: requests
    to vLLM by their prompts.   batches: how transformers got a prompt padded.   computed: how often
    a prompt was given to the library.
    """

    def __init__(self, engine: Any, events: Events) -> None:
        self.engine = engine
        checkpoint = engine.checkpoint
        clip = placeholders_of(checkpoint.config).clip
        self.placeholders = Placeholders(checkpoint.placeholder_id, clip)
        self.processed = {(one["sha256"], one.get("tokens")): one for one in pictures_of(events)}
        self.received = dict[Ids, list[Params]]()
        self.batches = dict[Ids, Fields]()
        self.computed = Counter[Ids]()
        for event in events:
            if isinstance(event, Params):
                self.received.setdefault(event.prompt_ids, []).append(event)
                self.computed[self.collapsed(event.prompt_ids)] += 1
            elif isinstance(event, ModelCall):
                for output in event.outputs:
                    self.batches[tuple(output.prompt_ids)] = output.batch
                    self.computed[self.collapsed(output.prompt_ids)] += 1
            elif isinstance(event, Forward):  # a stream's answer comes before its call has ended
                for row in event.rows:
                    self.batches.setdefault(row.ids, masked_padding(row, len(event.rows)))

    def collapsed(self, ids: Sequence[int]) -> Ids:
        return collapsed(ids, self.placeholders)

    def adapter_stage(self, prompt: Any) -> Fields:
        """What a request says of its adapter: its folder, or that vLLM was seen to use another."""
        folder = ""
        if prompt.adapter:
            folder = str(self.engine.config.adapters.get(prompt.adapter, prompt.adapter))
        received = self.received.get(tuple(prompt.token_ids))
        if received and folder not in [request.folder for request in received]:
            return {"adapter": "another"}
        return {"adapter": shown_path(folder)} if folder else {}

    def pictures(
        self, prompt: Any, ids: Sequence[int], received_ids: Ids
    ) -> list[Fields] | None:
        """A request's images, if any, and then its clips. Where vLLM received with its ids none
        that are these, the first are what the model saw."""
        if not prompt.images:
            return None
        images = sorted(prompt.images, key=is_frames)
        digests = [pixel_digest(image) for image in images]
        requests = self.received.get(received_ids, ())
        received = [request.pictures for request in requests if request.pictures]
        if received and tuple(digests) not in received:
            digests[: len(received[0])] = received[0]
        vision = self.engine.checkpoint.vision
        budget = budget_of(vision.image_processor, prompt.image_kwargs)
        places = self.placeholders.places(ids)
        places.sort(key=lambda one: one[0] == self.placeholders.clip)
        pictures = []
        for image, (_, place), digest in zip(images, places, digests):
            if is_frames(image):
                own_budget = budget_of(vision.video_processor, {})
                picture = clip_picture(image.frames, image.rate, image.indices, own_budget)
            else:
                picture = {"size": list(image.size), "tokens": len(place), "pixels": image}
                picture["budget"] = budget
            picture["sha256"] = digest
            processed = self.processed.get((digest, picture.get("tokens")), {})
            pictures.append({**processed, **picture})
        return pictures


# == Generate ==


class EngineReader:
    """Reads the answers of one call of generate_*_batch.

    given: its arguments by name.   answered: results by the number of their request.   lengths: of
    prompts with the same ids, and of what each got.   requested: how often unlike requests have
    these ids.
    """

    def __init__(
        self,
        engine: Any,
        given: Row,
        prompts: Mapping[int, MadePrompt],
        events: Events,
        results: Sequence[Any],
    ) -> None:
        self.engine = engine
        self.options = given.get("options")
        self.plugins = listed_plugins(given.get("plugins"))
        self.prompts = prompts
        self.events = events
        self.below = Below(engine, events)
        self.answered = dict[int, Any]()
        self.lengths = dict[Ids, list[tuple[int, int]]]()
        for number, result in enumerate(results):
            # The model was asked for these alone; one that was refused may hold another's answer.
            if hasattr(result, "finish_reason") and number in prompts:
                self.answered[number] = result
                prompt = prompts[number].prompt
                lengths = self.lengths.setdefault(tuple(prompt.token_ids), [])
                lengths.append((prompt.length, len(result.prompt_token_ids)))
        made = [one.prompt for one in prompts.values() if hasattr(one.prompt, "token_ids")]
        unlike = {request_key(prompt): tuple(prompt.token_ids) for prompt in made}
        self.requested = Counter(map(self.below.collapsed, unlike.values()))

    def call(self) -> ModelCall:
        samples = []
        for number, result in self.answered.items():
            for index, sample in enumerate(result.samples or (result,)):
                samples.append((number, index, sample))
        effective = samples[-1][2].effective if samples else self.engine.effective(self.options)
        seed = field_of(self.options, "seed")
        sampling = engine_sampling(effective, seed, self.events, self.plugins)
        return ModelCall(
            [self.output(*one, sampling) for one in samples],
            model_stage(self.engine.model),
            sampling,
            engine_stop(effective, self.engine.tokenizer, self.plugins),
            self.below.placeholders,
        )

    def output(self, number: int, index: int, sample: Any, sampling: Fields) -> Output:
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
        asked_ids = tuple(made.prompt.token_ids)
        images = self.below.pictures(made.prompt, prompt_ids, asked_ids)
        request = self.request(number, index, sample)
        return Output(
            prompt_ids,
            ids,
            ids,
            [*prompt_ids, *ids],
            self.below.batches.get(tuple(prompt_ids), {}),
            {"decode": how, "text": sample.text, "images": images, **chat_stages(made.events)},
            request,
            own_sampling(made, request, sampling),
        )

    def is_prompt_of_a_request(self, ids: Sequence[int]) -> bool:
        """Whether a request of this call has these prompt ids. Ids that match none come from a
        prompt that was rewritten before generation."""
        wanted = self.below.collapsed(ids)
        asked = (made.prompt.token_ids for made in self.prompts.values())
        return any(self.below.collapsed(own) == wanted for own in asked)

    def request(self, number: int, index: int, sample: Any) -> Fields:
        made = self.prompts[number]
        ids = tuple(made.prompt.token_ids)
        placeholders = self.below.placeholders
        request: Fields = {"number": number, "sample": index}
        answered = sample.prompt_token_ids
        is_own = is_answer_to(made.prompt, answered, placeholders, self.lengths[ids])
        if not is_own and self.is_prompt_of_a_request(answered):
            request["answers"] = "another"
        request |= self.below.adapter_stage(made.prompt)
        if structure := structure_of(made.request):
            request["structure"] = structure
        key = self.below.collapsed(ids)
        if 0 < self.below.computed[key] < self.requested[key]:
            request["shared"] = True
        is_cached = getattr(sample, "cached", False)
        if is_cached:
            request["cached"] = True
        seed = seed_of(made, self.options)
        samples = self.answered[number].samples or (sample,)
        # Of fewer samples than were asked for, it is not known which are there.
        is_known = len(samples) == sample.effective["n"]["value"]
        if seed is not None and is_known and sample.effective["temperature"]["value"]:
            received = [] if is_cached else self.below.received.get(ids, [])
            request["seed"] = seed_below(seed, index, received)
        return request


def own_sampling(made: MadePrompt, request: Row, sampling: Fields) -> Fields:
    """The sampling of one request, where it is not that of the whole call; {} where it is."""
    own = Fields()
    if "seed" in request:
        own["seed"] = sourced(request["seed"] - request["sample"], "caller")
    if getattr(made.prompt, "structured", None) is not None:
        own["processors"] = sourced([*sampling["processors"]["value"], STRUCTURED], "caller")
    return {**sampling, **own} if own else {}


def seed_below(seed: int, sample: int, received: Sequence[Params]) -> int:
    """The seed that a sample is drawn with: its own, or what vLLM received in its place."""
    own = seed + sample
    seeds = [one.params.seed for one in received if one.params.seed is not None]
    if not seeds or own in seeds:
        return own
    return int(seeds[min(sample, len(seeds) - 1)])


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
            reader = EngineReader(engine, call.arguments, running.prompts, events, results)
            listener.note_model_call(reader.call())
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
        number = index if replay is None else replay.asking.place(index)
        running.prompts[number] = MadePrompt(request, prompt, listener.events_since(mark))
    return prompt


def tap_render(listener: Listener, call: Invocation) -> Any:
    """Where an engine renders a chat, with a mark in special tokens that it escapes."""
    mark = listener.mark()
    rendered = call.run()
    with listener.guarded("a chat of gen_engine"):
        events = listener.running().events
        if rendered.mark:
            events[mark:] = [without_mark(event, rendered.mark) for event in events[mark:]]
    return rendered


# == Score ==


def seen_ids(ids: Sequence[int], response: Sequence[int], forwards: Sequence[Ids]) -> list[int]:
    """Of ids that an engine says it has read, those that reached a forward: these, or others with
    the same response."""
    if not forwards or tuple(ids) in forwards:
        return list(ids)
    tail = tuple(response)
    others = (read for read in forwards if read[len(read) - len(tail) :] == tail)
    return list(next(others, ids))


def read_scores(
    engine: Any, prompts: Sequence[Any], events: Events, scores: Sequence[Any], given: Row
) -> ModelCall:
    """prompts: of the scores, as far as they were seen.   given: arguments of the call."""
    read = list[Ids]()
    for event in events:
        if isinstance(event, Forward):
            read += [row.ids for row in event.rows]
    below = Below(engine, events)
    outputs = []
    for score, prompt in itertools.zip_longest(scores, prompts):
        whole = [*score.prompt_token_ids, *score.token_ids]
        ids = seen_ids(whole, score.token_ids, read)
        images = prompt and below.pictures(prompt, ids, below.collapsed(ids))
        request = below.adapter_stage(prompt) if prompt else {}
        request["response"] = len(score.token_ids)
        if (temperature := given.get("temperature", 1)) != 1:
            request["temperature"] = temperature
        outputs.append(scored_output(ids, images, request))
    return scored_call(engine.model, outputs, below.placeholders)


@model_tap
def tap_score(listener: Listener, call: Invocation) -> Any:
    """score_batch of a vendored gen_engine."""

    def made(engine: Any, running: Any, events: Events, scores: Any) -> ModelCall:
        return read_scores(engine, running.scored, events, scores, call.arguments)

    return noting_reads(listener, call, EngineCall, made)


Made = Callable[[Any, Any, Events, Any], ModelCall]  # engine, what ran, events, result -> the call


def noting_reads(listener: Listener, call: Invocation, running: type[Any], made: Made) -> Any:
    """A call of an engine that only reads.   running: of its kind, filled while it runs."""
    with listener.inside("engine") as outermost:
        if not outermost or not listener.in_site():
            return call.run()
        engine = call.owner
        run = call.original
        if listener.replay:
            engine = listener.replay.engine(engine)
            run = functools.partial(listener.replay.score, call.original)
        mark = listener.mark()
        state = listener.thread.memory.renew(running)
        with watched_forward(listener, engine.model, each=True):
            result = call.run_as(run, engine)
        with listener.guarded(f"what {call.original.__name__} reads"):
            listener.note(made(engine, state, listener.events_since(mark), result))
    return result


def tap_backend(listener: Listener, call: Invocation) -> Any:
    """Where an engine hands prompts and responses to its backend."""
    if listener.in_site():
        with listener.guarded("prompts that are scored"):
            running = listener.thread.memory.of(EngineCall)
            running.scored += [prompt for prompt, _ in call.arguments["pairs"]]
    return call.run()


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
    "HfBackend.score": tap_backend,
    "VllmBackend.score": tap_backend,
    "GenerationEngine._prompt": tap_prompt,
    "render_chat": tap_render,
    "GenerationEngine.__init__": tap_open,
}
