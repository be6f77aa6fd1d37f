"""Runs a moved call site again with one thing as it was: another backend, or one stage value out of
the golden.

A `Replay` stands between a call site and its engine (`Observer(replay=...)`): it changes how an
engine is loaded, the options of its calls, or the prompts that it makes. The call site's code is
not touched, and knows nothing of it.

    Replay(engines, load={"backend": "vllm"})                          every engine on vLLM
    Replay(engines, put_back=frozenset({"prompts"}), rows=old.rows)    the old prompt ids
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from parity.environment.libraries import settle
from parity.goldens import store as golden
from parity.judge.faults import own_fault
from parity.judge.row import (
    Row,
    entry,
    images_in,
    is_prefix,
    prompt_around_pictures,
    prompt_of,
    prompt_with_pictures,
    request_of,
)
from parity.judge.stages import order
from parity.judge.stages.stage import Restore, as_fields
from parity.record.taps.gen_engine import is_frames, listed_plugins
from parity.record.taps.images import is_clip

Returned = TypeVar("Returned")
Given = ParamSpec("Given")

ENGINE_LIBRARIES = {
    "hf": ("torch", "transformers.models.auto.modeling_auto"),
    "vllm": ("vllm.entrypoints.llm",),
}
settle_once = functools.cache(settle)

HF_ONLY: dict[str, Any] = {
    "device": None,
    "attn_implementation": None,
    "max_batch_tokens": None,
    "max_batch_size": None,
    "hf_kwargs": {},
}
VLLM_ONLY: dict[str, Any] = {"vllm_kwargs": {}, "logits_hooks": False}
MOST_LOADED = 3  # engines of replays at a time


def noting_faults(method: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """A method that the moved code calls without knowing it, and whose errors it may catch: those
    that are the harness's are noted in the object's `faults`."""

    @functools.wraps(method)
    def noted(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            owner: Any = args[0]
            if fault := own_fault(error):
                owner.faults.append(fault)
            raise

    return noted


class PartedAlone(Exception):
    """Ends a call whose requests are asked one by one, when it is known that they do not give the
    old answer."""


class Engines:
    """Engines that replays loaded, kept while a check runs: loading is what takes time."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def get(self, module: Any, config: Any) -> Any:
        key = f"{module.__name__}{config!r}"
        if key not in self._open:
            while len(self._open) >= MOST_LOADED:
                self._open.pop(next(iter(self._open))).close()
            self._open[key] = module.load(config)
        return self._open[key]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


@dataclass(frozen=True, slots=True)
class Asking:
    """How one call is asked.   first: of which of the call site's requests its first one is, where
    each is asked alone.   copies: of each request, where its samples are asked one by one.
    fields: options of a call that gives answers."""

    first: int = 0
    copies: int = 1
    fields: Mapping[str, Any] = field(default_factory=dict)

    def place(self, index: int) -> int:
        """Of which of the call site's requests a prompt is."""
        return index // self.copies + self.first


@dataclass
class Replay:
    """What is put back. load: fields of ModelLoadConfig.   put_back: names out of PARTS, taken from
    `rows`, which are those of the golden in its order.   per_backend: load settings that belong to
    a backend.
    """

    engines: Engines
    load: Mapping[str, Any] = field(default_factory=dict)
    per_backend: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    put_back: frozenset[str] = frozenset()
    rows: Sequence[Row] = ()
    store: golden.Store | None = None
    faults: list[str] = field(default_factory=list)  # of ours, which the moved code may catch
    refused: str = ""  # what `per_backend` says and no engine takes
    # The last engine of each model, as they were asked.
    ran: dict[tuple[str, str], Any] = field(default_factory=dict)
    asking: Asking = field(default_factory=Asking)
    asked: int = 0  # requests, in all calls
    answered: int = 0  # of the rows that are answers, where those are put back
    # Indices of those that were put back by their prompts.
    given: set[int] = field(default_factory=set)

    @functools.cached_property
    def requested(self) -> Sequence[Row]:
        """The rows, one per request: samples of one prompt are one request."""
        count = entry(self.rows[0], "sampling", "n") if self.rows else 1
        return self.rows[:: max(1, int(count or 1))]

    @property
    def used(self) -> Any:
        """The engine of the last call, or None."""
        return next(reversed(self.ran.values()), None)

    def asks(self, engine: Any) -> Any:
        """This engine, which is about to be asked."""
        self.asking = Asking()
        self.ran.pop(loaded_from(engine), None)
        self.ran[loaded_from(engine)] = engine
        return engine

    def config(self, config: Any) -> Any:
        """A ModelLoadConfig as this replay wants it."""
        backend = self.load.get("backend", config.backend)
        own = self.per_backend.get(backend, {})
        if backend == "vllm":
            wanted = {**HF_ONLY, **own, **self.load}
        else:
            wanted = {**own, **self.load, **VLLM_ONLY}
        try:
            return dataclasses.replace(config, **wanted)
        except (TypeError, ValueError) as error:
            if any(name in str(error) for name in own):
                self.refused = f"load.{backend}: {error}"
            raise

    @noting_faults
    def opening(self, config: Any) -> Any:
        """config() of an engine that is about to be loaded, whose libraries are not to be looked
        through each time."""
        wanted = self.config(config)
        settle_once(*ENGINE_LIBRARIES[wanted.backend])
        return wanted

    @noting_faults
    def engine(self, engine: Any, *, hooked: bool = False) -> Any:
        """This engine, or one like it that is loaded as this replay wants it."""
        config = self.config(engine.config)
        if config.backend == "vllm" and (hooked or engine.config.logits_hooks):
            config = dataclasses.replace(config, logits_hooks=True)
        if config == engine.config:
            return engine
        return self.engines.get(sys.modules[type(engine).__module__], config)

    @noting_faults
    def call(
        self, original: Any, engine: Any, requests: Any, options: Any = None, **how: Any
    ) -> Any:
        """generate_*_batch, changed."""
        fields = as_fields(options)
        hooked = self.needs_hook(fields, listed_plugins(how.get("plugins")))
        self.asks(self.engine(engine, hooked=hooked))
        if hasattr(engine, "observer"):  # since 0.3; the code may ask what it saw
            self.used.observer = engine.observer
        restored = sorted(self.put_back & OPTIONS.keys())
        if restored and self.asked < len(self.requested):
            options = fields = self.restored(fields, restored)
        if UNCACHED in self.put_back:
            how["cache"] = False
        if ANSWERS in self.put_back:
            return self._answering(original, requests, fields, how)
        if ALONE in self.put_back:
            return self._one_by_one(original, requests, options, how)
        return original(self.used, list(requests), options, **how)

    def needs_hook(self, fields: Mapping[str, Any], plugins: Sequence[Any]) -> bool:
        """Whether a call needs an engine with its hook for logits."""
        is_asked = bool(fields.get("logits")) or ANSWERS in self.put_back
        return is_asked or any(getattr(plugin, "logits", None) for plugin in plugins)

    def restored(self, fields: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
        """Options with these parts out of the row of the request that is asked next."""
        row = self.requested[self.asked]
        changed = dict(fields)
        for part in parts:
            changed = OPTIONS[part](changed, row)
        return changed

    def _one_by_one(
        self, original: Any, requests: Any, options: Any, how: Mapping[str, Any]
    ) -> Any:
        """Each request by itself. Raises PartedAlone."""
        found = []
        for number, request in enumerate(requests):
            self.asking = Asking(number)
            found += original(self.used, [request], options, **{**how, "cache": False})
            if self.parted(found[-1]):
                raise PartedAlone(
                    "a request by itself parts from the golden, too: the others need not be asked"
                )
        return found

    def _answering(
        self, original: Any, requests: Any, fields: Mapping[str, Any], how: Mapping[str, Any]
    ) -> Any:
        """A call that gives the golden's answers; each sample of a request is asked by itself.
        Which row a request gets is known when its prompt is made (`_with_answer`); until then it is
        that of its place."""
        number = fields.get("n") or 1
        count = len(requests) * number
        rows = self.answers[self.answered :][:count]
        self.answered += len(rows)
        if len(rows) < count:  # the golden has no more
            return original(self.used, list(requests), fields, **how)
        self.asking = Asking(copies=number, fields=fields)
        each: list[Any] = []
        for request in requests:
            each += [request] * number
        ids = [self._said(row, fields) for row in rows]
        own_fields = {**fields, "n": 1, "replay": ids}
        own_how = {**how, "cache": False}
        found = original(self.used, each, own_fields, **own_how)
        if number == 1:
            return found
        groups = [tuple(found[k : k + number]) for k in range(0, len(found), number)]
        return [dataclasses.replace(group[0], samples=group) for group in groups]

    @property
    def answers(self) -> Sequence[Row]:
        """The rows that are answers."""
        return [row for row in self.rows if not row.get("scored")]

    def _with_answer(self, made: Any) -> Any:
        """A Prompt with the ids of the next golden row that has its prompt and pictures: the old
        code may have asked in another order. Where none has them, those of its place."""
        images = sorted(made.images, key=is_frames)
        pictures = tuple(hashlib.sha256(image.tobytes()).hexdigest() for image in images)
        wanted = tuple(made.token_ids), pictures
        for number, row in enumerate(self.answers):
            if number not in self.given and prompt_with_pictures(row) == wanted:
                self.given.add(number)
                ids = self._said(row, self.asking.fields)
                return dataclasses.replace(made, replay=tuple(ids))
        return made

    def _said(self, row: Row, fields: Mapping[str, Any]) -> Sequence[int]:
        """A row's ids; behind an end of a criterion, which keeps each row until all have ended, as
        far as the new options let them go."""
        ids: Sequence[int] = row["output_ids"]
        if not entry(row, "stop", "criteria"):
            return ids
        module = sys.modules[type(self.used).__module__]
        options = module.build(module.GenerationOptions, {**fields, "n": 1})
        ending = module.find_ending(ids, module.make_plan(options, self.used.checkpoint))
        return ids if ending is None else ids[: ending.count]

    def parted(self, result: Any) -> bool:
        """Whether an answer parts from all that the golden has for its prompt. An end elsewhere is
        no parting: the old code may have cut by hand."""
        ids = getattr(result, "token_ids", ())
        prompt = getattr(result, "prompt_token_ids", None)
        answers = [row["output_ids"] for row in self.rows if prompt_of(row) == prompt]
        known = [answer for answer in answers if answer]
        return bool(known) and not any(is_prefix(answer, ids) for answer in known)

    @noting_faults
    def score(self, original: Any, engine: Any, items: Any, **how: Any) -> Any:
        """score_batch, changed."""
        self.asks(engine)
        if "sampling" in self.put_back:
            how = self.with_temperature(how)
        if ALONE not in self.put_back:
            return list(original(engine, items, **how))
        scores: list[Any] = []
        for item in items:
            scores += original(engine, [item], **how)
        return scores

    def with_temperature(self, how: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a score with the golden's temperature. Raises GoldenError."""
        scored = [row for row in self.rows if row.get("scored")]
        asked = {request_of(row).get("temperature", 1.0) for row in scored} or {1.0}
        if len(asked) > 1:
            raise golden.GoldenError("the golden's responses were scored at several temperatures")
        [temperature] = asked
        if temperature == how.get("temperature", 1.0):
            return dict(how)  # without the word, which a copy of an older engine may not take
        return {**how, "temperature": temperature}

    @noting_faults
    def prompt(self, engine: Any, made: Any) -> Any:
        """A Prompt, changed. made may be the error that stands in its place."""
        place = self.asked
        self.asked += 1
        if not hasattr(made, "token_ids") or place >= len(self.requested):
            return made
        if ANSWERS in self.put_back and getattr(made, "replay", None) is not None:
            return self._with_answer(made)
        row = self.requested[place]
        if "pictures" in self.put_back:
            made = self._with_pictures(engine, made, row)
        if "prompts" in self.put_back:
            ids = prompt_around_pictures(row)
            made = dataclasses.replace(made, token_ids=ids, length=len(row["prompt_ids"]))
        return made

    def _with_pictures(self, engine: Any, made: Any, row: Row) -> Any:
        """The old pixels, where the golden kept them, and the old pixel budget."""
        old = images_in(row)
        images = made.images
        module = sys.modules[type(engine).__module__]
        checkpoint = engine.checkpoint
        if self.store is not None and old and all("blob" in picture for picture in old):
            pixels = stored_pixels(row, self.store)
            restored = map(functools.partial(as_given, module, checkpoint), old, pixels)
            images = in_prompt_order(restored, prompt_around_pictures(row), checkpoint)
        kwargs = budget_kwargs(row) or made.image_kwargs
        tokens = sum(module.image_tokens(image, kwargs, checkpoint) for image in images)
        text = sum(i not in checkpoint.placeholder_ids for i in made.token_ids)
        return dataclasses.replace(made, images=images, image_kwargs=kwargs, length=text + tokens)


def readable(engine: Any, engines: Engines, hooked: bool) -> Any:
    """An engine that ran, or, where the moved code has closed it, one like it.   engines: those of
    replays.   hooked: with its hook for logits, without which vLLM scores nothing beside
    adapters."""
    module = sys.modules[type(engine).__module__]
    if hooked and engine.backend.name == "vllm" and not engine.config.logits_hooks:
        return engines.get(module, dataclasses.replace(engine.config, logits_hooks=True))
    try:
        engine.score_batch([])
    except module.EngineError:
        return engines.get(module, engine.config)
    return engine


def loaded_from(engine: Any) -> tuple[str, str]:
    """What tells models of one case apart: name of the checkpoint, dtype."""
    return Path(engine.config.model).name, engine.checkpoint.dtype


def adapter_named(engine: Any, folder: str) -> str:
    """What an engine calls the adapter of this folder. Raises GoldenError."""
    known = {
        str(name)
        for name, path in engine.config.adapters.items()
        if Path(path).resolve() == Path(folder).resolve()
    }
    if not known:
        raise golden.GoldenError(f"the moved code loaded no adapter from {folder}")
    return min(known)


def as_given(module: Any, checkpoint: Any, picture: Row, pixels: Any) -> Any:
    """An image of a row as an engine has it; a clip, out of its frames one below the other.
    module: the engine's."""
    if not is_clip(picture):
        return pixels
    import numpy

    width, height = picture["size"]
    frames = numpy.asarray(pixels).reshape(-1, height, width, 3)
    indices = tuple(picture["indices"])
    video = module.companions.video
    clip = video.Clip(frames, indices, len(indices), picture["fps"], picture["placeholder"])
    return dataclasses.replace(clip, tokens=video.count_tokens(clip, checkpoint))


def in_prompt_order(images: Iterable[Any], ids: Sequence[int], checkpoint: Any) -> tuple[Any, ...]:
    """Images, and clips behind them, in the order of their tokens.   ids: of a prompt, each as
    one."""
    tokens = [i for i in ids if i in checkpoint.placeholder_ids]
    by_kind = sorted(range(len(tokens)), key=lambda k: tokens[k] != checkpoint.placeholder_id)
    placed = dict(zip(by_kind, images))
    return tuple(placed[k] for k in sorted(placed))


def stored_pictures(row: Row, store: golden.Store) -> list[Any]:
    """A row's pictures out of the blobs. Raises GoldenError where the golden did not keep them."""
    if any(map(is_clip, row["images"])):
        raise golden.GoldenError("a case with videos cannot be read again, to compare its logits")
    if any("blob" not in picture for picture in row["images"]):
        raise golden.GoldenError(
            "a picture of this case was too large to keep; its logits cannot be compared"
        )
    return stored_pixels(row, store)


def stored_pixels(row: Row, store: golden.Store) -> list[Any]:
    """Of each image, and of each clip its frames, one below the other."""
    return [store.restore({"$image": picture["blob"]}).convert("RGB") for picture in row["images"]]


def budget_kwargs(row: Row) -> dict[str, Any]:
    """The pixel budget of a row's pictures as keywords of its processor."""
    old = [image for image in images_in(row) if not is_clip(image)]
    if not old or not old[0].get("budget"):
        return {}
    least, most = old[0]["budget"]
    return (
        {"size": {"shortest_edge": least, "longest_edge": most}} if most else {"do_resize": False}
    )


OPTIONS: dict[str, Restore] = {}
for _stage in order.ALL:
    OPTIONS.update(_stage.restore)
ALONE = "alone"  # each request by itself, and nothing from a cache
UNCACHED = "uncached"  # nothing from a cache
ANSWERS = "answers"  # the old ids, whatever the model says
PARTS = frozenset({"prompts", "pictures", ALONE, UNCACHED, ANSWERS, *OPTIONS})
