"""Mutations of moved call sites: faults that migrations really make, put from outside into moved code that is right.

A mutation changes what a moved call site hands to its engine (`requests`, `options`, `results`),
how it loads it (`load`), or what the engine does inside (`inside`). Nothing of it is a flag of
gen_engine.py, and the checker is not told. Each names the cause that the checker ought to find by
itself, and the golden cases on which the fault can show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gen_engine
from parity.judge.stages.stage import as_fields, merged

Change = Callable[[Any], Any]
# Owner, or the name of a module that a session imports anew; name; original -> replacement.
Patch = tuple[Any, str, Callable[[Any], Any]]

DOORS = ("generate_text_batch", "generate_vlm_batch")


@dataclass(frozen=True)
class SiteMutation:
    """One fault. causes: names that are right; the first is the plainest.   cases: "site/case".

    requests, options, results, plugins: applied to every call of the engine.   load: fields of ModelLoadConfig that the
    call site passes on.   inside: patches of the engine's own parts.
    """

    name: str
    causes: tuple[str, ...]
    cases: tuple[str, ...]
    requests: Change | None = None
    options: Change | None = None
    results: Change | None = None
    plugins: Change | None = None
    load: Mapping[str, Any] | None = None
    inside: tuple[Patch, ...] = ()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The fault is there. To be entered when the observer is: what a call site does wrong is to be seen."""
        with contextlib.ExitStack() as stack:
            for owner, name, change in self.inside:
                if isinstance(owner, str):
                    owner = importlib.import_module(owner)
                stack.enter_context(replaced(owner, name, change(getattr(owner, name))))
            for door in DOORS:
                original = getattr(gen_engine.GenerationEngine, door)
                stack.enter_context(replaced(gen_engine.GenerationEngine, door, self.wrap(original)))
            yield

    def wrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(engine: Any, requests: Any, options: Any = None, **how: Any) -> Any:
            if self.requests:
                requests = [self.requests(as_request(request)) for request in requests]
            if self.options:
                options = self.options(as_fields(options))
            if self.plugins:
                how["plugins"] = self.plugins(list(how.get("plugins", ())))
            results = original(engine, requests, options, **how)
            return self.results(results) if self.results else results

        return call


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def as_request(request: Any) -> dict[str, Any]:
    return (
        dict(request)
        if isinstance(request, Mapping)
        else {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
    )


# == What a call site gets wrong ==


def setting(**changes: Any) -> Change:
    return lambda options: {**options, **changes}


def stop(**changes: Any) -> Change:
    return lambda options: merged(options, "stop", changes)


def decoding(**changes: Any) -> Change:
    return lambda options: merged(options, "decode", changes)


def dropped(*names: str) -> Change:
    return lambda options: {key: value for key, value in options.items() if key not in names}


def other_stops(change: Callable[[list[str]], list[str]]) -> Change:
    def changed(options: dict[str, Any]) -> dict[str, Any]:
        part = options.get("stop")
        strings = list(part) if isinstance(part, (list, tuple)) else list(as_fields(part).get("strings", ()))
        return merged(options, "stop", {"strings": change(strings)})

    return changed


def chat(**changes: Any) -> Change:
    return lambda request: {**request, "chat": {**as_fields(request.get("chat")), **changes}}


def said(change: Callable[[str], str]) -> Change:
    """Every text of the last message changed."""

    def text(part: Any) -> Any:
        if isinstance(part, str):
            return change(part)
        return {**part, "text": change(part["text"])} if part.get("type") == "text" else part

    def changed(request: dict[str, Any]) -> dict[str, Any]:
        *head, last = request["messages"]
        content = last["content"]
        content = text(content) if isinstance(content, str) else [text(part) for part in content]
        return {**request, "messages": [*head, {**last, "content": content}]}

    return changed


def system(text: str) -> Change:
    def changed(request: dict[str, Any]) -> dict[str, Any]:
        rest = [message for message in request["messages"] if message["role"] != "system"]
        return {**request, "messages": [{"role": "system", "content": text}, *rest]}

    return changed


BARE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
TERSE = "You are terse. Name three fruits."


def without_system(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "messages": [m for m in request["messages"] if m["role"] != "system"]}


def budget(**fields: Any) -> Change:
    return lambda request: {**request, "vlm": fields}


def pictures_reversed(request: dict[str, Any]) -> dict[str, Any]:
    *head, last = request["messages"]
    images = [part for part in last["content"] if part["type"] == "image"]
    rest = [part for part in last["content"] if part["type"] != "image"]
    return {**request, "messages": [*head, {**last, "content": [*reversed(images), *rest]}]}


def videos(change: Callable[[list[Any]], list[Any]]) -> Change:
    """The video parts of a message changed."""

    def changed(request: dict[str, Any]) -> dict[str, Any]:
        *head, last = request["messages"]
        clips = [part for part in last["content"] if part["type"] == "video"]
        rest = [part for part in last["content"] if part["type"] != "video"]
        return {**request, "messages": [*head, {**last, "content": [*change(clips), *rest]}]}

    return changed


def frames(change: Callable[[Any], Any]) -> Change:
    """The frames of each video changed, which are given as a list."""
    return videos(lambda clips: [{**clip, "video": change(clip["video"])} for clip in clips])


def streamed(
    requests: Change = lambda own: own,
    options: Change = lambda own: own,
    pieces: Change = lambda own: own,
) -> tuple[Patch, ...]:
    """What the streaming call site gives to, or makes of, `stream`."""

    def change(original: Any) -> Any:
        def stream(engine: Any, given: Sequence[Any], how: Any) -> Any:
            return pieces(original(engine, [requests(one) for one in given], options(how)))

        return stream

    return (("parity.proof.callsites.live_answers.moved", "stream", change),)


def numbered_from_behind(pieces: Any) -> Iterator[Any]:
    return (piece._replace(index=-1 - piece.index) for piece in pieces)


def without_the_first(pieces: Any) -> Iterator[Any]:
    next(pieces)
    yield from pieces


def text_of(change: Callable[[Any], str]) -> Change:
    return lambda results: [dataclasses.replace(result, text=change(result)) for result in results]


@functools.cache
def tokenizer_of_probes() -> Any:
    return importlib.import_module("transformers").AutoTokenizer.from_pretrained("golden/models/tiny-qwen3")


def prompt_and_answer(result: Any) -> str:
    ids = [*result.prompt_token_ids, *result.token_ids]
    return str(tokenizer_of_probes().decode(ids, skip_special_tokens=True))


# == What an engine gets wrong ==


def cut_rule(find: Callable[[str, Sequence[str], int], tuple[int, int, str] | None]) -> Callable[[Any], Any]:
    """Another rule in place of gen_engine.first_stop."""
    return lambda original: lambda text, stops, *, since=0: find(text, stops, since)


def by_list(text: str, stops: Sequence[str], since: int) -> tuple[int, int, str] | None:
    return next(((at, at + len(s), s) for s in stops if (at := text.find(s)) >= 0 and at + len(s) > since), None)


def by_list_inside(text: str, stops: Sequence[str], since: int) -> tuple[int, int, str] | None:
    return next(((at, at + len(s), s) for s in stops if (at := text.find(s)) > 0 and at + len(s) > since), None)


def right_padding(original: Any) -> Any:
    return lambda rows, checkpoint, device, *, side="left": original(rows, checkpoint, device, side="right")


def unmasked_padding(original: Any) -> Any:
    """Padding with the pad id, and a mask of ones."""

    def collate(rows: Sequence[Any], checkpoint: Any, device: Any, *, side: str = "left") -> Any:
        tensors = original(rows, checkpoint, device, side=side)
        pad = PAD_ID
        hidden = tensors["attention_mask"] == 0
        tensors["input_ids"][hidden] = pad
        tensors["attention_mask"][hidden] = 1
        return tensors

    return collate


PAD_ID = 550  # of the tiny checkpoints


def leaking(name: str, value: float) -> Callable[[Any], Any]:
    """A processor of transformers that nobody asked for, as if a checkpoint's generation config were read."""

    def change(original: Any) -> Any:
        def processors(*args: Any, **kwargs: Any) -> Any:
            from transformers.generation import logits_process as kit

            chain = original(*args, **kwargs)
            chain.append(getattr(kit, name)(value))
            return chain

        return processors

    return change


def neighbours(original: Any) -> Any:
    """A row's scores take something from the other rows of its batch."""

    def choose(self: Any, scores: Any) -> Any:
        return original(self, scores + 4 * (scores.mean(0) - scores) if len(scores) > 1 else scores)

    return choose


def shifted(original: Any) -> Any:
    """Logits that are wrong by more than rounding: an output head with a bias that no weight shows."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)

        def bias(module: Any, given: Any, output: Any) -> Any:
            output.logits = output.logits + 12 * (output.logits.argsort(-1).argsort(-1) == output.logits.shape[-1] - 2)
            return output

        self.model.register_forward_hook(bias)

    return init


def ids_changed(change: Callable[[tuple[int, ...], Any, str], tuple[int, ...]]) -> Callable[[Any], Any]:
    """What gen_engine.encode gives, changed."""

    def wrap(original: Any) -> Any:
        return lambda checkpoint, text, special: change(original(checkpoint, text, special), checkpoint, text)

    return wrap


def by_character(ids: tuple[int, ...], checkpoint: Any, text: str) -> tuple[int, ...]:
    """The last word of the question spelled out."""
    head, mark, tail = text.rpartition("<|im_end|>")
    word = head[-6:]
    tokenizer = checkpoint.tokenizer
    parts = [head[:-6], *word, mark + tail]
    return tuple(i for part in parts for i in tokenizer(part, add_special_tokens=False)["input_ids"])


def lying(original: Any) -> Any:
    """Pictures as they are stored, whatever EXIF says."""

    def load(source: Any, **how: Any) -> Any:
        from PIL import Image

        return Image.open(source).convert("RGB") if isinstance(source, (str, Path)) else original(source, **how)

    return load


def bgr(original: Any) -> Any:
    def load(source: Any, **how: Any) -> Any:
        from PIL import Image

        red, green, blue = original(source, **how).split()
        return Image.merge("RGB", (blue, green, red))

    return load


def brighter(original: Any) -> Any:
    """Normalised by another mean."""

    def expand(images: Any, kwargs: Any, checkpoint: Any) -> Any:
        return original(images, {**kwargs, "image_mean": [0.1, 0.1, 0.1]}, checkpoint)

    return expand


def halved(original: Any) -> Any:
    def load(source: Any, **how: Any) -> Any:
        image = original(source, **how)
        return image.resize((max(32, image.width // 2), max(32, image.height // 2)))

    return load


E = gen_engine
ROLLOUTS = ("rollout/one-prompt", "rollout/ragged-batch")
MIXED = ("rollout/two-prompt-lengths", "probe/ragged")

SITE_MUTATIONS: tuple[SiteMutation, ...] = (
    # the prompt
    SiteMutation("thinking back on", ("prompt",), ("stage_a/circle", *ROLLOUTS), requests=chat(enable_thinking=True)),
    SiteMutation(
        "thinking off where the old code had it on",
        ("prompt",),
        ("visual_dump/object",),
        requests=chat(enable_thinking=False),
    ),
    SiteMutation(
        "no generation prompt",
        ("prompt",),
        ("rollout/one-prompt",),
        requests=chat(add_generation_prompt=False),
    ),
    SiteMutation(
        "another template",
        ("prompt",),
        ("rollout/one-prompt",),
        requests=chat(template=BARE),
    ),
    SiteMutation(
        "tools not rendered",
        ("prompt",),
        ("probe/tools", "inference_module/tool-call"),
        requests=lambda r: {**r, "tools": None},
    ),
    SiteMutation("a system turn put in", ("prompt",), ("rollout/one-prompt", "stage_a/circle"), requests=system(TERSE)),
    SiteMutation(
        "the system turn lost",
        ("prompt",),
        ("rollout/system-turn", "runner/polite-system"),
        requests=without_system,
    ),
    SiteMutation(
        "the question stripped",
        ("prompt",),
        ("stage_a/blanks-around-question", "rollout/blanks-around-the-prompt"),
        requests=said(str.strip),
    ),
    SiteMutation(
        "the question in lower case",
        ("prompt",),
        ("runner/three-rules", "rollout/one-prompt"),
        requests=said(str.lower),
    ),
    SiteMutation(
        "today's date", ("prompt",), ("probe/dated",), requests=system("Today is 2026-11-21. Answer briefly.")
    ),
    SiteMutation(
        "the first id twice",
        ("prompt",),
        ("rollout/one-prompt", "probe/plain"),
        inside=((E, "encode", ids_changed(lambda ids, *_: (ids[0], *ids))),),
    ),
    SiteMutation(
        "spelled out in other tokens",
        ("prompt",),
        ("rollout/one-prompt", "probe/plain"),
        inside=((E, "encode", ids_changed(by_character)),),
    ),
    SiteMutation(
        "prompt cut on the left",
        ("prompt",),
        ("rollout/one-prompt", "probe/plain"),
        options=setting(max_prompt_tokens=20, truncate_prompt=True),
    ),
    SiteMutation(
        "prompt cut on the right",
        ("prompt",),
        ("rollout/one-prompt", "probe/plain"),
        inside=((E, "encode", ids_changed(lambda ids, *_: ids[:-6])),),
    ),
    # the batch
    SiteMutation(
        "padded on the right",
        ("batch",),
        MIXED,
        inside=((E, "collate", right_padding),),
    ),
    SiteMutation(
        "padding not masked",
        ("batch",),
        MIXED,
        inside=((E, "collate", unmasked_padding),),
    ),
    SiteMutation(
        "rows that see their neighbours",
        ("sampling", "batch"),
        MIXED,
        inside=((E.DecodeLoop, "_choose", neighbours),),
    ),
    # pictures
    SiteMutation(
        "pixel budget dropped",
        ("image",),
        ("stage_a/small-budget", "stage_a/batch-small-budget"),
        requests=lambda r: {**r, "vlm": {}},
    ),
    SiteMutation(
        "pixel budget halved",
        ("image",),
        ("stage_a/photograph", "stage_a/huge"),
        requests=budget(min_pixels=64 * 64, max_pixels=64 * 64),
    ),
    SiteMutation(
        "pixel floor raised",
        ("image",),
        ("stage_a/tiny",),
        requests=budget(min_pixels=96 * 96, max_pixels=128 * 128),
    ),
    SiteMutation(
        "EXIF not honoured",
        ("image",),
        ("stage_a/exif-turned",),
        inside=((gen_engine, "load_image", lying),),
    ),
    SiteMutation(
        "red and blue swapped",
        ("image",),
        ("stage_a/circle", "stage_a/square-json"),
        inside=((gen_engine, "load_image", bgr),),
    ),
    SiteMutation(
        "pictures shrunk beforehand",
        ("image",),
        ("stage_a/photograph", "stage_a/square-json"),
        inside=((gen_engine, "load_image", halved),),
    ),
    SiteMutation("pictures in another order", ("image",), ("visual_dump/two-pictures",), requests=pictures_reversed),
    # videos
    SiteMutation(
        "another frame rate",
        ("image",),
        ("clips/frames-end", "clips/frames", "clips/slow", "clips/fast"),
        requests=videos(lambda clips: [{**clip, "fps": clip["fps"] * 2} for clip in clips]),
    ),
    SiteMutation("frames in the other order", ("image",), ("clips/frames",), requests=frames(lambda own: own[::-1])),
    SiteMutation(
        "a frame dropped",
        ("image",),
        ("clips/frames", "clips/frames-end"),
        requests=frames(lambda own: own[:3] + own[4:]),
    ),
    SiteMutation(
        "the video ignored",  # and refused, where nothing else is to be seen
        ("prompt", "error"),
        ("clips/file", "clips/frames", "clips/picture-and-clip"),
        requests=videos(lambda clips: []),
    ),
    SiteMutation(
        "the second clip in place of the first",
        ("image",),
        ("clips/two-clips",),
        requests=videos(lambda clips: [clips[-1]] * len(clips)),
    ),
    # streams
    SiteMutation(
        "a stream without its stops",
        ("stop",),
        ("live_answers/stop", "live_answers/stop-inside-a-token"),
        inside=streamed(options=stop(strings=[])),
    ),
    SiteMutation(
        "a stream of fewer tokens",
        ("stop",),
        ("live_answers/capital", "live_answers/lines"),
        inside=streamed(options=setting(max_new_tokens=4)),
    ),
    SiteMutation(
        "a stream whose template is told to think",
        ("prompt",),
        ("live_answers/capital", "live_answers/three-at-once"),
        inside=streamed(requests=chat(enable_thinking=True)),
    ),
    SiteMutation(
        "pieces put to another answer",
        ("order",),
        ("live_answers/three-at-once",),
        inside=streamed(pieces=numbered_from_behind),
    ),
    SiteMutation(
        "the first piece of a stream lost",
        (
            "value",
            "decode",
        ),
        ("live_answers/capital", "live_answers/stop"),
        inside=streamed(pieces=without_the_first),
    ),
    SiteMutation(
        "normalised by another mean",
        ("image",),
        ("stage_a/circle", "stage_a/sizes-mixed"),
        inside=((gen_engine, "expand_image", brighter),),
    ),
    # the model
    SiteMutation("half precision", ("model",), ("rollout/one-prompt", "stage_a/circle"), load={"dtype": "bfloat16"}),
    SiteMutation(
        "eager attention",
        ("model",),
        ("rollout/one-prompt", "stage_a/circle"),
        load={"attn_implementation": "eager"},
    ),
    SiteMutation(
        "other weights",
        ("model",),
        ("rollout/one-prompt", "probe/ragged"),
        load={"model": "golden/models/tiny-qwen3-draft"},
    ),
    SiteMutation("quantized weights", ("model",), ("rollout/one-prompt", "probe/plain"), load={"hf_kwargs": "int8"}),
    SiteMutation(
        "logits off by more than rounding",
        ("numeric",),
        ("probe/plain", "stage_a/circle"),
        load={},
        inside=((E.HfBackend, "__init__", shifted),),
    ),
    # sampling
    SiteMutation(
        "drawn instead of greedy",
        ("sampling",),
        ("rollout/one-prompt", "stage_a/circle"),
        options=setting(temperature=1.5, seed=3),
    ),
    SiteMutation(
        "greedy instead of drawn",
        ("sampling",),
        ("inference_module/sampled", "probe/drawn"),
        options=setting(temperature=0.0),
    ),
    SiteMutation(
        "the checkpoint's penalty forgotten",
        ("sampling",),
        ("stage_a/circle", "rollout/one-prompt"),
        options=setting(repetition_penalty=1.0),
    ),
    SiteMutation(
        "a penalty that nobody asked for",
        ("sampling",),
        ("probe/ragged", "runner/three-rules"),
        options=setting(repetition_penalty=1.5),
    ),
    SiteMutation(
        "top_k leaked from the checkpoint",
        ("sampling",),
        ("probe/drawn",),
        inside=((E, "logits_processors", leaking("TopKLogitsWarper", 2)),),
    ),
    SiteMutation(
        "penalty leaked from the checkpoint",
        ("sampling",),
        ("probe/plain", "runner/three-rules"),
        inside=((E, "logits_processors", leaking("RepetitionPenaltyLogitsProcessor", 1.05)),),
    ),
    SiteMutation(
        "top_p forgotten",
        ("sampling",),
        ("probe/drawn-cut",),
        options=dropped("top_p"),
    ),
    SiteMutation(
        "another temperature",
        ("sampling",),
        ("probe/drawn", "inference_module/sampled"),
        options=setting(temperature=0.3),
    ),
    SiteMutation("fewer samples", ("sampling",), ("inference_module/several-samples",), options=setting(n=1)),
    SiteMutation(
        "the seed moved",
        ("sampling",),
        ("probe/drawn", "rollout/sampled-with-seed"),
        options=setting(seed=99),
        requests=lambda r: {**r, "seed": None},
    ),
    SiteMutation(
        "the seed lost",
        ("sampling",),
        ("probe/drawn", "rollout/sampled-with-seed"),
        options=setting(seed=None),
        requests=lambda r: {**r, "seed": None},
    ),
    SiteMutation(
        "logits processor lost",
        ("sampling",),
        ("visual_dump/no-repeat-of-one-token",),
        plugins=lambda given: [p for p in given if not getattr(p, "logits", None)],
    ),
    SiteMutation(
        "stopping criterion lost",
        (
            "stop",
            "decode",
        ),
        ("visual_dump/object",),
        plugins=lambda given: [p for p in given if not getattr(p, "should_stop", None)],
    ),
    # stops
    SiteMutation(
        "the turn's end lost from the eos set",
        ("stop",),
        ("stage_a/circle", "rollout/one-prompt", "runner/three-rules"),
        options=stop(ignore_eos=True, token_ids=[550]),
    ),
    SiteMutation(
        "no eos at all",
        ("stop",),
        ("stage_a/circle", "probe/plain"),
        options=stop(ignore_eos=True, token_ids=[]),
    ),
    SiteMutation(
        "an ordinary id ends the text",
        ("stop",),
        ("rollout/one-prompt", "probe/ragged"),
        options=stop(ignore_eos=True, token_ids=[552, 13, 11]),
    ),
    SiteMutation(
        "stop strings lost",
        ("stop",),
        ("probe/two-stops", "runner/stop-in-the-middle"),
        options=other_stops(lambda strings: []),
    ),
    SiteMutation(
        "the earlier of two stops lost",
        ("stop",),
        ("probe/two-stops",),
        options=other_stops(lambda strings: strings[:1]),
    ),
    SiteMutation(
        "a stop string added",
        ("stop",),
        ("probe/ragged", "rollout/one-prompt"),
        options=other_stops(lambda strings: [*strings, ", 3", "Paris", "capital"]),
    ),
    SiteMutation(
        "first of the list cuts",
        (
            "stop",
            "decode",
        ),
        ("probe/stops-at-once",),
        inside=((E, "first_stop", cut_rule(by_list)),),
    ),
    SiteMutation(
        "a stop at position 0 does not cut",
        (
            "stop",
            "decode",
        ),
        ("probe/stop-first",),
        inside=((E, "first_stop", cut_rule(by_list_inside)),),
    ),
    SiteMutation(
        "the stop is kept in the text",
        (
            "stop",
            "decode",
        ),
        ("probe/two-stops", "probe/blank-at-end"),
        options=stop(include_stop=True),
    ),
    SiteMutation(
        "half the tokens allowed",
        ("stop",),
        ("rollout/ragged-batch", "stage_a/circle"),
        options=setting(max_new_tokens=4),
    ),
    SiteMutation(
        "the library's default length",
        ("stop",),
        ("probe/ragged", "reflection/object"),
        options=setting(max_new_tokens=10),
    ),
    SiteMutation(
        "a minimum length put in",
        ("stop",),
        ("stage_a/circle", "probe/plain"),
        options=setting(min_new_tokens=20),
    ),
    # decoding and after
    SiteMutation(
        "special tokens kept",
        ("decode",),
        ("stage_a/circle", "probe/ragged"),
        options=decoding(skip_special_tokens=False),
        results=text_of(lambda r: r.raw_text),
    ),
    SiteMutation(
        "raw text returned",
        ("decode",),
        ("probe/plain", "probe/ragged"),
        results=text_of(lambda r: r.raw_text),
    ),
    SiteMutation(
        "stripped",
        (
            "value",
            "decode",
        ),
        ("probe/blank-at-end",),
        options=decoding(strip=True),
    ),
    SiteMutation(
        "a line feed put behind",
        (
            "value",
            "decode",
        ),
        ("probe/plain", "probe/lines"),
        results=text_of(lambda r: r.text + "\n"),
    ),
    SiteMutation(
        "first line only",
        (
            "value",
            "decode",
        ),
        ("probe/lines",),
        results=text_of(lambda r: r.text.split("\n")[0]),
    ),
    SiteMutation(
        "the prompt not sliced off",
        (
            "value",
            "decode",
        ),
        ("probe/plain",),
        results=text_of(prompt_and_answer),
    ),
    SiteMutation(
        "lower case",
        (
            "value",
            "calls",
        ),
        ("probe/plain", "rollout/one-prompt"),
        results=text_of(lambda r: r.text.lower()),
    ),
    SiteMutation("results in another order", ("order",), ("probe/ragged",), results=lambda results: results[::-1]),
    SiteMutation(
        "padding counted as tokens",
        (
            "value",
            "calls",
        ),
        ("rollout/two-prompt-lengths",),
        results=lambda rs: [dataclasses.replace(r, token_ids=(*r.token_ids, PAD_ID)) for r in rs],
    ),
    SiteMutation(
        "an option that is not there", ("error",), ("probe/plain", "rollout/one-prompt"), options=setting(max_tokens=5)
    ),
)
