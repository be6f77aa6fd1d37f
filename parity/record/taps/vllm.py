"""Taps on vLLM: LLM.generate and LLM.chat, and requests to an LLMEngine that code steps itself."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parity.record.calls import Listener, ListenerTap, model_tap, tap_loading
from parity.record.events import Adapter, Event, Ids, ModelCall, Output, Params
from parity.record.patching import Invocation
from parity.record.rows import MASKS, NEUTRAL, PENALTIES, STRUCTURED, by_caller, sourced
from parity.record.taps.images import as_rgb, pictures_of, pixel_digest
from parity.record.taps.models import model_stage, placeholder_of, shown_path

# == Settings ==

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n")
STRUCTURES = ("json", "regex", "choice", "grammar", "json_object")


def structure_params(params: Any) -> Any:
    """The structured output of SamplingParams, by its name of this release or before; or None."""
    newer = getattr(params, "structured_outputs", None)
    return newer or getattr(params, "guided_decoding", None)


def asked_structure(params: Any) -> dict[str, Any]:
    """The structured output that vLLM is asked for, before it rewrites it."""
    asked = structure_params(params)
    forms = {form: getattr(asked, form, None) for form in STRUCTURES}
    return {form: value for form, value in forms.items() if value not in (None, False)}


def vllm_sampling(params: Any) -> dict[str, Any]:
    values = NEUTRAL | {name: getattr(params, name) for name in SAMPLING}
    values["top_k"] = max(0, values["top_k"])
    structured = [STRUCTURED] if structure_params(params) else []
    values["processors"] = structured + [name for name in MASKS if getattr(params, name, None)]
    for name in PENALTIES:
        if getattr(params, name):
            values[name] = getattr(params, name)
    if params.seed is not None:
        values["seed"] = params.seed
    return {
        name: sourced(value, "default" if value == NEUTRAL.get(name) else "caller")
        for name, value in values.items()
    }


def never_text(
    strings: Sequence[str], tokenizer: Any, skip_special: bool, ends: Collection[int] = ()
) -> dict[str, Any]:
    """Of stop strings, those that never end a row: they hold a special token, which the searched
    text leaves out, or are the text of an id that ends the row by itself."""
    added = getattr(tokenizer, "added_tokens_decoder", {}) if strings else {}
    special = [token.content for token in added.values() if token.special and skip_special]
    of_ends = {added[token].content for token in ends if token in added}
    found = [text for text in strings if text in of_ends or any(token in text for token in special)]
    return {"never_text": sourced(found, "caller")} if found else {}


@dataclass(frozen=True, slots=True)
class StepEngine:
    """What an LLMEngine says of all its requests. ends: ids that end text by default."""

    ends: list[int]
    tokenizer: Any
    window: int
    placeholder: int | None
    model: dict[str, Any]

    @classmethod
    def read(cls, engine: Any) -> StepEngine:
        config = engine.vllm_config.model_config
        return cls(
            vllm_ends(engine),
            getattr(engine, "tokenizer", None),
            config.max_model_len,
            placeholder_of(config.hf_config),
            model_stage(engine),
        )


def vllm_ends(engine: Any) -> list[int]:
    """The ids that end text in this vLLM engine unless it is told otherwise."""
    generation = engine.vllm_config.model_config.try_get_generation_config()
    ends = generation.get("eos_token_id", [])
    own = engine.get_tokenizer().eos_token_id
    found = {ends} if isinstance(ends, int) else {*ends}
    return sorted(found if own is None else found | {own})


def vllm_stop(
    params: Any, ends: Sequence[int], tokenizer: Any, room: int | None = None
) -> dict[str, Any]:
    """room: tokens that fit behind the prompt, where vLLM ends a row that was allowed more."""
    limits = [count for count in (params.max_tokens, room) if count is not None]
    ids = {*(params.stop_token_ids or ())}
    strings = list(params.stop or ())
    all_ids = ids if params.ignore_eos else ids | {*ends}
    return {
        **never_text(strings, tokenizer, params.skip_special_tokens, all_ids),
        "end_ids": sourced(sorted(all_ids), "caller" if ids else "checkpoint"),
        "strings": by_caller(strings),
        "max_new_tokens": sourced(min(limits, default=None), "caller"),
        "min_new_tokens": by_caller(params.min_tokens),
        "criteria": sourced([], "default"),
    }


# == Requests ==


def read_request(request: Any, params: Any, request_id: str, lora: Any = None) -> Params:
    """A request as vLLM's engine is given it: a text, ids, or a mapping with images."""
    given = request if isinstance(request, dict) else {}
    images = (given.get("multi_modal_data") or {}).get("image")
    if not isinstance(images, (list, tuple)):
        images = [images]
    return Params(
        params,
        request_id,
        tuple(given.get("prompt_token_ids") or ()),
        tuple(pixel_digest(as_rgb(image)) for image in images if hasattr(image, "tobytes")),
        Adapter(lora.lora_int_id, str(lora.lora_path)) if lora else None,
        image_names(request),
        asked_structure(params),
    )


def image_names(request: Any) -> tuple[str | None, ...]:
    """What vLLM knows a request's images by: names that it was given, or made of their content."""
    if not isinstance(request, dict):  # of older releases, already processed
        features = getattr(request, "mm_features", None) or ()
        features = sorted(features, key=lambda feature: feature.mm_position.offset)
        return tuple(one.identifier for one in features if one.modality == "image")
    names = (request.get("multi_modal_uuids") or request.get("mm_hashes") or {}).get("image") or ()
    return (names,) if isinstance(names, str) else tuple(names)


class Llms:
    """What came first under each name that a vllm.LLM was given: vLLM goes by the names.

    pictures: what its image processor made of an image.   digests, folders: the images by their
    uuids, and the adapters by their numbers.
    """

    def __init__(self) -> None:
        self.pictures = dict[str | None, dict[str, Any]]()
        self.digests = dict[str, str]()
        self.folders = dict[int, str]()


_llms: weakref.WeakKeyDictionary[Any, Llms] = weakref.WeakKeyDictionary()


def names_of(llm: Any) -> Llms:
    return _llms.setdefault(llm, Llms())


def params_of(events: Sequence[Event]) -> list[Params]:
    return [event for event in events if isinstance(event, Params)]


def received_folder(llm: Any, adapter: Adapter | None) -> str:
    """The folder of the adapter that vLLM uses, "" for none: the first one of its number."""
    if adapter is None:
        return ""
    return names_of(llm).folders.setdefault(adapter.number, adapter.folder)


def received_pictures(
    llm: Any, requests: Sequence[Params], events: Sequence[Event]
) -> list[list[dict[str, Any]]]:
    """The images of each request, also those that vLLM knows and does not process again."""
    fresh = pictures_of(events)
    known = names_of(llm).pictures
    every = [name for request in requests for name in request.uuids]
    for order in (every, unknown_names(requests, known)):  # all of them, where vLLM keeps none
        if len(order) == len(fresh):
            known.update(zip(order, fresh))
            break
    return [[known.get(name, {}) for name in request.uuids] for request in requests]


def unknown_names(requests: Sequence[Params], known: Collection[str | None]) -> list[str | None]:
    """The images that are new with their request; one that stands in it twice counts twice."""
    found = list[str | None]()
    before = {*known}
    for request in requests:
        found += [name for name in request.uuids if name not in before]
        before.update(request.uuids)
    return found


# == Calls ==


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion of vLLM. number: of its request.   prompt: its text, or None."""

    params: Any
    number: int
    prompt: str | None
    prompt_ids: Sequence[int]
    ids: Sequence[int]
    text: str


def read_llm_call(call: Invocation, events: Sequence[Event], outputs: Sequence[Any]) -> ModelCall:
    """A call of LLM.generate or LLM.chat."""
    llm = call.owner
    requests = params_of(events)
    pictures = received_pictures(llm, requests, events)
    params = params_by_output(call, [request.params for request in requests], len(outputs))
    answers = [
        Answer(used, number, output.prompt, output.prompt_token_ids, answer.token_ids, answer.text)
        for number, (used, output) in enumerate(zip(params, outputs))
        for answer in output.outputs
    ]
    first = params[0] if params else llm.get_default_sampling_params()
    made = model_call(llm.llm_engine, first, answers)
    if len(requests) != len(outputs):
        return made
    for output in made.outputs:
        number = output.request["number"]
        request = requests[number]
        output.reported["images"] = pictures[number] or None
        if request.structure:
            output.request["structure"] = request.structure
        if request.adapter:
            output.request["adapter"] = shown_path(received_folder(llm, request.adapter))
    return made


def params_by_output(call: Invocation, seen: list[Any], count: int) -> list[Any]:
    """The parameters of each output; what the call gave, where they were not seen one by one."""
    if len(seen) == count:
        return seen
    given = call.arguments.get("sampling_params") or call.owner.get_default_sampling_params()
    if isinstance(given, (list, tuple)):
        return list(given)
    return (seen[:1] or [given]) * count


def model_call(engine: Any, first: Any, answers: Sequence[Answer]) -> ModelCall:
    """first: the parameters that stand for the whole call."""
    step_engine = StepEngine.read(engine)
    samples = Counter[int]()
    outputs = []
    for answer in answers:
        sample = samples[answer.number]
        samples[answer.number] += 1
        outputs.append(read_answer(step_engine, answer, sample))
    return ModelCall(
        outputs,
        step_engine.model,
        vllm_sampling(first),
        vllm_stop(first, step_engine.ends, step_engine.tokenizer),
        step_engine.placeholder,
    )


def read_answer(engine: StepEngine, answer: Answer, sample: int) -> Output:
    params = answer.params
    prompt_ids = list(answer.prompt_ids or ())
    ids = list(answer.ids)
    how = {
        "ids": "ended",
        "skip_special_tokens": params.skip_special_tokens,
        "clean_up": False,
    }
    request = {"number": answer.number, "sample": sample}
    if params.seed is not None and params.temperature:
        request["seed"] = params.seed + sample
    return Output(
        prompt_ids,
        ids,
        ids,
        ids,
        reported={"prompt_text": answer.prompt, "decode": how, "text": answer.text or None},
        request=request,
        sampling=vllm_sampling(params),
        stop=vllm_stop(params, engine.ends, engine.tokenizer, engine.window - len(prompt_ids)),
    )


@model_tap
def tap_llm(listener: Listener, call: Invocation) -> Any:
    """LLM.generate and LLM.chat; chat calls generate's inner parts, not generate."""
    mark = listener.mark()
    with listener.inside("vllm") as outermost:
        outputs = call.run()
    if outermost:
        with listener.guarded("a call of vLLM"):
            events = listener.events_since(mark)
            listener.note_model_call(read_llm_call(call, events, outputs))
    return outputs


# == An engine that code steps itself ==


class Stepped:
    """Requests to an LLMEngine that code steps itself, as rollout workers do.

    params: by request.   parts: (request, sample) -> its ids and text so far.
    """

    def __init__(self) -> None:
        self.params = dict[str, Any]()
        self.parts = dict[tuple[str, int], tuple[list[int], str]]()

    def take(self, engine: Any, outputs: Sequence[Any]) -> Iterator[ModelCall]:
        """The requests that a step has finished."""
        for output in outputs:
            if output.request_id not in self.params:
                continue
            self._collect(output)
            if output.finished:
                yield self._finish(engine, output)

    def _collect(self, output: Any) -> None:
        is_delta = self.params[output.request_id].output_kind.name == "DELTA"
        for answer in output.outputs:
            key = output.request_id, answer.index
            ids, text = self.parts.get(key, ([], "")) if is_delta else ([], "")
            self.parts[key] = [*ids, *answer.token_ids], text + answer.text

    def _finish(self, engine: Any, output: Any) -> ModelCall:
        params = self.params.pop(output.request_id)
        keys = sorted(key for key in self.parts if key[0] == output.request_id)
        parts = [self.parts.pop(key) for key in keys]
        answers = [
            Answer(params, 0, output.prompt, output.prompt_token_ids, ids, text)
            for ids, text in parts
        ]
        return model_call(engine, params, answers)


def is_stepped(listener: Listener) -> bool:
    return not listener.within("vllm", "engine")


def tap_add_request(listener: Listener, call: Invocation) -> Any:
    with listener.guarded("a request to vLLM"):
        given = call.arguments
        request_id = given["request_id"]
        params = given["params"]
        lora = given.get("lora_request")
        listener.note(read_request(given.get("prompt"), params, str(request_id), lora))
        if is_stepped(listener):
            listener.memory.of(Stepped).params[request_id] = params
    return call.run()


def tap_step(listener: Listener, call: Invocation) -> Any:
    outputs = call.run()
    stepped = listener.memory.of(Stepped)
    if stepped.params and is_stepped(listener):
        with listener.guarded("a step of vLLM"):
            for event in stepped.take(call.owner, outputs):
                listener.note_model_call(event)
    return outputs


# == What reached vLLM below an engine ==


def pictures_received(llm: Any, events: Sequence[Event]) -> dict[Ids, list[tuple[str, ...]]]:
    """sha256 of the images that vLLM shows with a prompt, as often as it received it."""
    known = names_of(llm).digests
    received = dict[Ids, list[tuple[str, ...]]]()
    for request in params_of(events):
        if not request.pictures:
            continue
        pairs = itertools.zip_longest(request.pictures, request.uuids[: len(request.pictures)])
        shown = [known.setdefault(uuid, digest) if uuid else digest for digest, uuid in pairs]
        received.setdefault(request.prompt_ids, []).append(tuple(shown))
    return received


def adapters_received(llm: Any, events: Sequence[Event]) -> dict[Ids, set[str]]:
    """The folders of the adapters that vLLM used for each prompt's requests, "" for none."""
    used = dict[Ids, set[str]]()
    for request in params_of(events):
        used.setdefault(request.prompt_ids, set()).add(received_folder(llm, request.adapter))
    return used


def seeds_received(events: Sequence[Event]) -> dict[Ids, list[int]]:
    """The seeds with which vLLM sampled for each prompt, in the order in which it was asked."""
    found = dict[Ids, list[int]]()
    for request in params_of(events):
        if request.params.seed is not None:
            found.setdefault(request.prompt_ids, []).append(request.params.seed)
    return found


TAPS: dict[str, dict[str, ListenerTap]] = {
    "vllm.entrypoints.llm": {
        "LLM.__init__": tap_loading,
        "LLM.generate": tap_llm,
        "LLM.chat": tap_llm,
    },
    "vllm.v1.engine.llm_engine": {
        "LLMEngine.add_request": tap_add_request,
        "LLMEngine.step": tap_step,
    },
}
