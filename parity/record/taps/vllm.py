"""Taps on vLLM: LLM.generate and LLM.chat, and requests to an LLMEngine that code steps itself."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from parity.record.calls import Listener, ListenerTap, model_tap, tap_loading
from parity.record.events import Events, ModelCall, Output, Params
from parity.record.patching import Invocation
from parity.record.rows import (
    MASKS,
    NEUTRAL,
    PENALTIES,
    STRUCTURED,
    Fields,
    Row,
    by_caller,
    sourced,
)
from parity.record.taps.images import as_rgb, is_clip, pictures_of, pixel_digest
from parity.record.taps.models import model_stage, placeholders_of, shown_path
from parity.record.taps.text import never_text

# == Settings ==

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n")
STRUCTURES = ("json", "regex", "choice", "grammar", "json_object")


def structure_params(params: Any) -> Any:
    """The structured output of SamplingParams, by its name of this release or before; or None."""
    newer = getattr(params, "structured_outputs", None)
    return newer or getattr(params, "guided_decoding", None)


def asked_structure(params: Any) -> Fields:
    """The structured output that vLLM is asked for, before it rewrites it."""
    asked = structure_params(params)
    forms = {form: getattr(asked, form, False) for form in STRUCTURES}
    return {form: value for form, value in forms.items() if value not in (None, False)}


def vllm_sampling(params: Any) -> Fields:
    values = NEUTRAL | {name: getattr(params, name) for name in SAMPLING}
    values["top_k"] = max(0, values["top_k"])
    structured = [STRUCTURED] if structure_params(params) else []
    values["processors"] = structured + [name for name in MASKS if getattr(params, name, None)]
    for name in PENALTIES:
        if value := getattr(params, name):
            values[name] = value
    if params.seed is not None:
        values["seed"] = params.seed
    return {
        name: sourced(value, "default" if value == NEUTRAL.get(name) else "caller")
        for name, value in values.items()
    }


def vllm_ends(engine: Any) -> list[int]:
    """The ids that end text in this vLLM engine unless it is told otherwise."""
    generation = engine.vllm_config.model_config.try_get_generation_config()
    ends = generation.get("eos_token_id", [])
    own = engine.get_tokenizer().eos_token_id
    found = [ends] if isinstance(ends, int) else ends
    return sorted({*found, own} - {None})


def vllm_stop(params: Any, ends: Sequence[int], tokenizer: Any, room: int) -> Fields:
    """room: tokens that fit behind the prompt, where vLLM ends a row that was allowed more."""
    most = room if params.max_tokens is None else min(params.max_tokens, room)
    ids = set(params.stop_token_ids or ())
    strings = list(params.stop or ())
    all_ids = ids if params.ignore_eos else ids | {*ends}
    return {
        **never_text(strings, tokenizer, params.skip_special_tokens, all_ids),
        "end_ids": sourced(sorted(all_ids), "caller" if ids else "checkpoint"),
        "strings": by_caller(strings),
        "max_new_tokens": sourced(most, "caller"),
        "min_new_tokens": by_caller(params.min_tokens),
        "criteria": sourced([], "default"),
    }


# == Requests ==


Uuid = tuple[str, str | None]  # modality, name
MODALITIES = ("image", "video")


class Names:
    """What came first under each name that an LLMEngine was given, as vLLM goes by the names.

    pictures: what its processors made of an image or a clip.   given: the digests of these by
    their modality and uuid, the folders of adapters by their numbers.
    """

    def __init__(self) -> None:
        self.pictures = dict[Uuid, Fields]()
        self.given = dict[Uuid | int, str]()


class KnownEngines(weakref.WeakKeyDictionary[Any, Names]):
    """The LLMEngines that a listener has met, each with what it knows by name."""

    def meet(self, engine: Any) -> Names:
        """The first time, an engine that is idle loses what it processed before anyone listened:
        what it finds in its cache goes through no processor, and would not be seen."""
        if engine not in self:
            self[engine] = Names()
            if not engine.has_unfinished_requests():
                engine.reset_mm_cache()
        return self[engine]


def read_request(known: Names, request: Any, params: Any, lora: Any = None) -> Params:
    """A request as vLLM's engine is given it: a text, ids, or a mapping with images."""
    given = request if isinstance(request, dict) else {}
    digests = shown_digests(given.get("multi_modal_data") or {})
    uuids = picture_names(request)
    pictures = []
    for digest, uuid in itertools.zip_longest(digests, uuids[: len(digests)]):
        has_name = uuid is not None and uuid[1]
        pictures.append(known.given.setdefault(uuid, digest) if has_name else digest)
    folder = ""
    if lora:
        folder = known.given.setdefault(lora.lora_int_id, str(lora.lora_path))
    return Params(
        params,
        tuple(given.get("prompt_token_ids") or ()),
        tuple(pictures),
        folder,
        uuids,
        asked_structure(params),
    )


def shown_digests(shown: Row) -> list[str]:
    """sha256 of the images and clips that a request shows; of clips, as an engine gives them."""
    images = shown.get("image")
    if not isinstance(images, (list, tuple)):
        images = [images]
    videos = shown.get("video") or ()
    pixels = [as_rgb(image) for image in images if hasattr(image, "tobytes")]
    pixels += [video[0] for video in videos if isinstance(video, tuple)]
    return list(map(pixel_digest, pixels))


def picture_names(request: Any) -> tuple[Uuid, ...]:
    """What vLLM knows a request's images, then its clips, by: names that it was given, or made of
    their content."""
    if not isinstance(request, dict):  # of older releases, already processed
        features = getattr(request, "mm_features", None) or ()
        features = sorted(features, key=lambda one: (one.modality, one.mm_position.offset))
        return tuple((one.modality, one.identifier) for one in features)
    given = request.get("multi_modal_uuids") or request.get("mm_hashes") or {}
    found = list[Uuid]()
    for kind in MODALITIES:
        names = given.get(kind) or ()
        if isinstance(names, str):
            names = [names]
        found += [(kind, name) for name in names]
    return tuple(found)


def received_pictures(
    known: dict[Uuid, Fields], requests: Sequence[Params], events: Events
) -> list[list[Fields]]:
    """The images and clips of each request, also those that vLLM knows and does not process
    again."""
    every = list[Uuid]()
    for request in requests:
        every += request.uuids
    unknown = unknown_names(requests, known)
    for kind in MODALITIES:
        fresh = [one for one in pictures_of(events) if is_clip(one) == (kind == "video")]
        for names in (every, unknown):  # all of them, where vLLM keeps none
            order = [name for name in names if name[0] == kind]
            if len(order) == len(fresh):
                known.update(zip(order, fresh))
                break
    found = []
    for request in requests:
        found.append([known.get(name, {}) for name in request.uuids])
    return found


def unknown_names(requests: Sequence[Params], known: Collection[Uuid]) -> list[Uuid]:
    """The images that are new with their request; one that stands in it twice counts twice."""
    found = list[Uuid]()
    before = {*known}
    for request in requests:
        found += [name for name in request.uuids if name not in before]
        before.update(request.uuids)
    return found


# == Calls ==


class VllmReader:
    """Reads what an LLMEngine answered."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.ends = vllm_ends(engine)
        self.tokenizer = getattr(engine, "tokenizer", None)

    def call(self, outputs: list[Output]) -> ModelCall:
        """Each output has settings of its own."""
        placeholders = placeholders_of(self.engine.vllm_config.model_config.hf_config)
        return ModelCall(outputs, model_stage(self.engine), {}, {}, placeholders)

    def samples(
        self, number: int, params: Any, output: Any, parts: Iterable[tuple[Sequence[int], str]]
    ) -> Iterator[Output]:
        """What request `number` got. output: vLLM's own.   parts: ids and text of each sample."""
        prompt_ids = list(output.prompt_token_ids or ())
        room = self.engine.vllm_config.model_config.max_model_len - len(prompt_ids)
        how = {
            "ids": "ended",
            "skip_special_tokens": params.skip_special_tokens,
            "clean_up": False,
        }
        for sample, (token_ids, text) in enumerate(parts):
            ids = list(token_ids)
            request = {"number": number, "sample": sample}
            if params.seed is not None and params.temperature:
                request["seed"] = params.seed + sample
            yield Output(
                prompt_ids,
                ids,
                ids,
                ids,
                reported={"prompt_text": output.prompt, "decode": how, "text": text or None},
                request=request,
                sampling=vllm_sampling(params),
                stop=vllm_stop(params, self.ends, self.tokenizer, room),
            )


def read_llm_call(engine: Any, known: Names, events: Events, outputs: Sequence[Any]) -> ModelCall:
    """A call of LLM.generate or LLM.chat, whose outputs are in the order of its requests."""
    reader = VllmReader(engine)
    requests = [event for event in events if isinstance(event, Params)]
    pictures = received_pictures(known.pictures, requests, events)
    found = list[Output]()
    for number, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        parts = [(answer.token_ids, answer.text) for answer in output.outputs]
        for made in reader.samples(number, request.params, output, parts):
            made.reported["images"] = pictures[number] or None
            if request.structure:
                made.request["structure"] = request.structure
            if request.folder:
                made.request["adapter"] = shown_path(request.folder)
            found.append(made)
    return reader.call(found)


@model_tap
def tap_llm(listener: Listener, call: Invocation) -> Any:
    """LLM.generate and LLM.chat; chat calls generate's inner parts, not generate."""
    mark = listener.mark()
    engine = call.owner.llm_engine
    known = listener.memory.of(KnownEngines).meet(engine)
    with listener.inside("vllm") as outermost:
        outputs = call.run()
    if outermost:
        with listener.guarded("a call of vLLM"):
            made = read_llm_call(engine, known, listener.events_since(mark), outputs)
            listener.note_model_call(made)
    return outputs


# == An engine that code steps itself ==


class Stepped:
    """Requests to an LLMEngine that code steps itself, as rollout workers do.

    params: by request.   parts: request -> sample -> its ids and text so far.
    """

    def __init__(self) -> None:
        self.params = Fields()
        self.parts = dict[str, dict[int, tuple[list[int], str]]]()

    def take(self, engine: Any, outputs: Sequence[Any]) -> Iterator[ModelCall]:
        """The requests that a step has finished."""
        for output in outputs:
            name = output.request_id
            if name not in self.params:
                continue
            params = self.params[name]
            parts = self.parts.setdefault(name, {})
            before = parts if params.output_kind.name == "DELTA" else {}
            for answer in output.outputs:
                ids, text = before.get(answer.index, ([], ""))
                parts[answer.index] = ([*ids, *answer.token_ids], text + answer.text)
            if output.finished:
                reader = VllmReader(engine)
                in_order = [parts[index] for index in sorted(parts)]
                yield reader.call([*reader.samples(0, params, output, in_order)])
                del self.params[name], self.parts[name]


def is_stepped(listener: Listener) -> bool:
    return not listener.within("vllm", "engine")


def tap_add_request(listener: Listener, call: Invocation) -> Any:
    with listener.guarded("a request to vLLM"):
        given = call.arguments
        params = given["params"]
        lora = given.get("lora_request")
        known = listener.memory.of(KnownEngines).meet(call.owner)
        listener.note(read_request(known, given.get("prompt"), params, lora))
        if is_stepped(listener):
            listener.memory.of(Stepped).params[given["request_id"]] = params
    return call.run()


def tap_step(listener: Listener, call: Invocation) -> Any:
    outputs = call.run()
    stepped = listener.memory.of(Stepped)
    if stepped.params and is_stepped(listener):
        with listener.guarded("a step of vLLM"):
            for event in stepped.take(call.owner, outputs):
                listener.note_model_call(event)
    return outputs


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
