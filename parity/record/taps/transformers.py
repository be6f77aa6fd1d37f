"""Taps on transformers' generate: padded prompts, settings as it resolves them, and what it gave.

Also on the model's forward in the first step: what really reaches the model with a row's ids.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.record.calls import Listener, ListenerTap, model_tap
from parity.record.events import Forward, ForwardRow, Ids, ModelCall, Output
from parity.record.patching import Invocation, bind_arguments
from parity.record.rows import NEUTRAL, STRUCTURED, by_caller, runs, sourced
from parity.record.seeds import process_seed
from parity.record.taps.models import adapter_print, model_stage, placeholder_of, short_digest
from parity.record.taps.text import id_lists, known_ids

# == The first forward ==

UNSEEN_BY_ROWS = {
    "input_ids", "attention_mask", "position_ids", "cache_position", "labels", "logits_to_keep",
    "kwargs",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model's forward is given, to be read row by row."""

    given: Mapping[str, Any]
    placeholder: int | None

    @property
    def ids(self) -> Any:
        return self.given["input_ids"]  # [B, S]

    @property
    def tensor_names(self) -> list[str]:
        """Inputs beside the ids. A mapping is what newer transformers make of images before the
        forward."""
        names = {
            name
            for name, value in self.given.items()
            if hasattr(value, "shape") or (isinstance(value, dict) and value)
        }
        return sorted(names - UNSEEN_BY_ROWS)

    def has_shape_of_ids(self, name: str) -> bool:
        """Whether an input is a number for each token, such as of which kind it is."""
        return bool(getattr(self.given.get(name), "shape", None) == self.ids.shape)

    def own_columns(self, row: int) -> list[int]:
        """The columns of a row that the mask shows."""
        if not self.has_shape_of_ids("attention_mask"):
            return [*range(self.ids.shape[-1])]
        mask = self.given["attention_mask"][row].tolist()
        return [column for column, shown in enumerate(mask) if shown]

    def marks(self, row: int, own: Sequence[int]) -> dict[str, list[Any]]:
        """The numbers of a row's own tokens, where they are not all 0, the default."""
        found = dict[str, list[Any]]()
        for name in filter(self.has_shape_of_ids, self.tensor_names):
            values = self.given[name][row].tolist()
            found[name] = [values[column] for column in own]
        return {name: values for name, values in found.items() if any(values)}

    def inputs(self, row: int, own: Sequence[int], has_images: bool) -> dict[str, Any]:
        """What came with a row's ids. Images beside a row without any are not its own."""
        marks = self.marks(row, own)
        if has_images or self.placeholder is None:
            shared = {name for name in self.tensor_names if not self.has_shape_of_ids(name)}
            inputs: dict[str, Any] = {"keys": sorted(shared | marks.keys())}
        else:
            inputs = {"keys": sorted(marks)}
        positions = self.given.get("position_ids")
        if positions is not None and positions.shape[-1] == self.ids.shape[-1]:
            inputs["positions"] = positions_of(positions, row, own)
        if marks:
            inputs["marks"] = short_digest(marks)
        return inputs


def read_forward(model: Any, given: Mapping[str, Any]) -> Forward | None:
    """What a model's forward is given, row by row. None where it is given no ids."""
    if given.get("input_ids") is None:
        return None
    batch = Batch(given, placeholder_of(model.config))
    adapter = adapter_print(model)
    pictures = picture_sums(given)
    rows = []
    for index, whole in enumerate(id_lists(batch.ids)):
        own = batch.own_columns(index)
        ids = tuple(whole[column] for column in own)
        count = len(runs(ids, batch.placeholder))
        inputs = batch.inputs(index, own, has_images=count > 0)
        if pictures and count:
            inputs["pictures"] = pictures[:count]
            pictures = pictures[count:]
        padded = tuple(whole) if len(ids) < len(whole) else ()
        rows.append(ForwardRow(ids, inputs, adapter, padded))
    return Forward(rows)


TEXT_AND_ROTARY_AXES = 4  # of Qwen's image models


def positions_of(positions: Any, row: int, own: Sequence[int]) -> str:
    """Positions of a row's own tokens: "from k" for k, k + 1, …, else a digest of them.

    Of four axes (text, time, height, width) no rotation reads the first: it tells sequences apart
    that are packed into one row, wherever it begins.
    """
    axes = positions if positions.ndim == 3 else positions[None]  # [axes, B, S]
    own_axes = axes[:, min(row, axes.shape[1] - 1)]
    values = [[int(axis[column]) for column in own] for axis in own_axes]
    if own and len(values) == TEXT_AND_ROTARY_AXES:
        values[0] = [value - values[0][0] for value in values[0]]
    first = values[0][0] if own else 0
    plain = [*range(first, first + len(own))]
    return f"from {first}" if all(axis == plain for axis in values) else short_digest(values)


def picture_sums(given: Mapping[str, Any]) -> list[list[float]]:
    """Of each image's tensor: mean, deviation, and a mean that depends on the order of patches."""
    values = given.get("pixel_values")
    grids = given.get("image_grid_thw")
    if values is None:
        return []
    sizes = [1] * len(values)
    if grids is not None:
        sizes = [int(t * h * w) for t, h, w in id_lists(grids)]
    found = []
    start = 0
    for size in sizes:
        own = values[start : start + size].detach().float().flatten()
        start += size
        weights = sys.modules["torch"].linspace(-1, 1, len(own), device=own.device)
        sums = own.mean(), own.std(), (own * weights).mean()
        found.append([round(float(value), 4) for value in sums])
    return found


# == Watching the forward ==

Look = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class Looks:
    """Who is to be told of a model's forward in one thread."""

    def __init__(self) -> None:
        self.by_model: weakref.WeakKeyDictionary[Any, list[Look]] = weakref.WeakKeyDictionary()


class ForwardHooks:
    """One hook on each model that is watched, in whatever thread: torch adds and removes no hook
    while another thread is in the model's forward."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = dict[int, tuple[Any, int]]()

    def hold(self, model: Any, hook: Any) -> None:
        """The model keeps its hook until `let_go`."""
        with self._lock:
            handle, count = self._held.get(id(model), (None, 0))
            handle = handle or model.register_forward_pre_hook(hook, with_kwargs=True)
            self._held[id(model)] = handle, count + 1

    def let_go(self, model: Any) -> None:
        with self._lock:
            handle, count = self._held.pop(id(model), (None, 0))
            if count > 1:
                self._held[id(model)] = handle, count - 1
            elif handle is not None:
                handle.remove()

    def close(self) -> None:
        for handle, _ in self._held.values():
            handle.remove()
        self._held.clear()


def call_looks(listener: Listener, model: Any, args: Any, kwargs: Any = None) -> None:
    """The hook. torch calls it without kwargs when another thread is about to remove it."""
    looks = listener.thread.memory.of(Looks).by_model.get(model, ())
    for look in () if kwargs is None else [*looks]:
        look(model, args, kwargs)


@contextlib.contextmanager
def watched_forward(
    listener: Listener, model: Any, *, stays: bool = False, each: bool = False
) -> Iterator[None]:
    """Note what reaches the model's forward in the first step of this thread.

    stays: an engine makes the step after the block, for which `generate` prepares the batch.
    each: every forward is a first step.
    """
    hooks = listener.memory.of(ForwardHooks)
    looks = list[Look]()

    def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not each:
            leave()
        with listener.guarded("a forward"):
            given = bind_arguments(module.forward, args, kwargs)
            event = read_forward(model, {**given, **kwargs})
            if event is not None:
                listener.note(event)

    def leave() -> None:
        if look in looks:
            looks.remove(look)
            if stays:
                hooks.let_go(model)

    with listener.guarded("watching the forward"):
        hooks.hold(model, functools.partial(call_looks, listener))
        looks = listener.thread.memory.of(Looks).by_model.setdefault(model, [])
        looks.append(look)
    try:
        yield
    finally:
        if not stays:
            leave()
            hooks.let_go(model)


# == Settings ==


@dataclass(slots=True)
class Resolved:
    """What generate makes of its arguments. done: row -> the class of each criterion that called it
    done -> the width at which it first did."""

    config: Any = None
    processors: list[Any] = field(default_factory=list)
    criteria: list[Any] = field(default_factory=list)
    done: dict[int, dict[str, int]] = field(default_factory=dict)

    def first_done(self, row: int, length: int) -> dict[str, int]:
        """After how many new ids each criterion first called a row done. length: columns of the
        prompts. Nothing of beams, which change places."""
        if (self.config.num_beams or 1) > 1:
            return {}
        return {kind: width - length for kind, width in self.done.get(row, {}).items()}


LIBRARY_CRITERIA = {
    "MaxLengthCriteria", "MaxTimeCriteria", "EosTokenCriteria", "StopStringCriteria",
}  # fmt: skip
# transformers' class -> (our name, its attribute)
PROCESSORS = {
    "TemperatureLogitsWarper": ("temperature", "temperature"),
    "TopKLogitsWarper": ("top_k", "top_k"),
    "TopPLogitsWarper": ("top_p", "top_p"),
    "MinPLogitsWarper": ("min_p", "min_p"),
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", "penalty"),
    "NoRepeatNGramLogitsProcessor": ("no_repeat_ngram_size", "ngram_size"),
}
NO_SETTING = {
    "MinNewTokensLengthLogitsProcessor", "MinLengthLogitsProcessor",  # told as a stop
    "LogitNormalization", "InfNanRemoveLogitsProcessor",  # change neither order nor odds
}  # fmt: skip
GRAMMARS = {"xgrammar", "outlines", "outlines_core", "lmformatenforcer", "llguidance"}


def processor_settings(processors: Sequence[Any]) -> dict[str, Any]:
    """The settings that logits processors stand for; others by the name of their class."""
    settings = dict[str, Any]()
    for processor in processors:
        kind = type(processor)
        if kind.__name__ in PROCESSORS:
            name, attribute = PROCESSORS[kind.__name__]
            settings[name] = getattr(processor, attribute)
        elif kind.__name__ not in NO_SETTING:
            is_grammar = kind.__module__.partition(".")[0] in GRAMMARS
            name = STRUCTURED if is_grammar else getattr(processor, "__name__", kind.__name__)
            settings.setdefault("processors", []).append(name)
    return settings


@dataclass(frozen=True, slots=True)
class GenerateSettings:
    """A call of generate. given: its arguments by name.   checkpoint: the model's own config."""

    given: Mapping[str, Any]
    resolved: Resolved
    checkpoint: Any

    def source(self, name: str, value: Any) -> str:
        """Who set a value: the call (by keyword, or in a config of its own), the checkpoint or
        nobody."""
        if name in self.given:
            return "caller"
        own = self.given.get("generation_config")
        if own is not None and getattr(own, name, None) == value:
            return "caller"
        return "checkpoint" if getattr(self.checkpoint, name, None) == value else "default"

    def sampling(self) -> dict[str, Any]:
        config = self.resolved.config
        values = {
            **NEUTRAL,
            **processor_settings(self.resolved.processors),
            "num_beams": config.num_beams or 1,
            "n": config.num_return_sequences or 1,
        }
        sampling = {
            name: sourced(value, self.source(name, value)) for name, value in values.items()
        }
        if config.do_sample:
            sampling["seed"] = process_seed()
        else:
            sampling["temperature"] = sourced(0, self.source("do_sample", config.do_sample))
        return sampling

    def stop(self, length: int) -> dict[str, Any]:
        """length: columns of the prompts."""
        config = self.resolved.config
        ends, strings, others = list[int](), list[str](), list[str]()
        for criterion in self.resolved.criteria:
            kind = type(criterion).__name__
            if kind == "StopStringCriteria":
                strings += criterion.stop_strings
            elif kind == "EosTokenCriteria":
                ends += criterion.eos_token_id.tolist()
            elif kind not in LIBRARY_CRITERIA:
                others.append(kind)
        most = config.max_new_tokens
        most_source = self.source("max_new_tokens", most)
        if most is None:
            most = config.max_length - length
        least = max(config.min_new_tokens or 0, (config.min_length or 0) - length)
        return {
            "end_ids": sourced(sorted(ends), self.source("eos_token_id", config.eos_token_id)),
            "strings": by_caller(strings),
            "max_new_tokens": sourced(most, most_source),
            "min_new_tokens": by_caller(least),
            "criteria": by_caller(others),
        }


# == Padding ==


@dataclass(frozen=True, slots=True)
class Padding:
    """How the prompts of a batch may be padded.

    pad: the pad id.   unmasked: it may be padding also where the mask shows it.   known: ids that a
    tokenizer gave; a row that is one of them has no padding.   bos: where it is the pad id, too,
    the last of the pads before a text is its beginning.   ragged: one row is known; what stands
    before a known text in another row is padding with whatever id.
    """

    pad: int | None
    unmasked: bool
    known: Collection[Ids] = ()
    bos: int | None = None
    ragged: bool = False

    def strip(self, ids: Sequence[int], mask: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
        """A padded prompt -> its own ids, and how it was padded."""
        shown = [column for column, visible in enumerate(mask) if visible]
        own = [ids[column] for column in shown]
        side = "none"
        if shown and shown[0]:
            side = "left"
        elif shown and shown[-1] + 1 < len(ids):
            side = "right"
        begin, end = (0, len(own)) if side != "none" else self._own_range(own)
        if end < len(own):
            side = "right"
        elif begin:
            side = "left"
        masked = end - begin == len(own)
        own = own[begin:end]
        return own, {"side": side, "pads": len(ids) - len(own), "masked": masked}

    def _own_range(self, ids: list[int]) -> tuple[int, int]:
        """Where the own ids of a row begin and end that the mask shows whole."""
        if pads := self._pads_before_known(ids):
            return pads, len(ids)
        begin, end = 0, len(ids)
        if not self.unmasked or self.pad is None:
            return begin, end
        while self._is_padded(ids[begin:]) and self._is_left_pad(ids[begin:]):
            begin += 1
        while self._is_padded(ids[begin:end]) and ids[end - 1] == self.pad:
            end -= 1
        return begin, end

    def _is_padded(self, ids: list[int]) -> bool:
        return len(ids) > 1 and tuple(ids) not in self.known

    def _is_left_pad(self, ids: list[int]) -> bool:
        return ids[0] == self.pad and (self.bos != self.pad or ids[1] == self.pad)

    def _pads_before_known(self, ids: list[int]) -> int:
        """How many equal ids stand before a known text."""
        if not self.ragged or not ids or ids[0] == self.bos or tuple(ids) in self.known:
            return 0
        for count in range(1, len(ids) + 1):
            if ids[count - 1] != ids[0]:
                break
            if tuple(ids[count:]) in self.known:
                return count
        return 0


# == A call ==


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a call of generate, [B, S]. mask: None where the call gave none."""

    ids: list[list[int]]
    mask: Any
    length: int

    def masks(self, pad: int | None, ends: Collection[int]) -> list[list[int]]:
        """Where there is none, generate hides the pad id, unless it is an end."""
        if self.mask is not None:
            return id_lists(self.mask)
        if not self.hides_pads(pad, ends):
            return [[1] * len(row) for row in self.ids]
        return [[int(token != pad) for token in row] for row in self.ids]

    def hides_pads(self, pad: int | None, ends: Collection[int]) -> bool:
        return self.mask is None and pad is not None and pad not in ends


def read_prompts(model: Any, given: Mapping[str, Any], count: int) -> Prompts:
    """count: how many sequences were generated."""
    inputs = given.get("input_ids", given.get("inputs"))
    if inputs is None:  # embeddings, whose mask hides no ids
        return Prompts([[] for _ in range(count)], None, 0)
    ids = id_lists(inputs)
    length = 0 if model.config.is_encoder_decoder else len(ids[0])
    return Prompts(ids, given.get("attention_mask"), length)


def read_generate(
    call: Invocation, resolved: Resolved, result: Any, known: Collection[Ids]
) -> ModelCall:
    """A call of generate. result: None inside an engine's own loop, which tells itself what
    becomes of the rows.   known: ids that a tokenizer gave before."""
    model = call.owner
    given = call.arguments
    if result is None:
        generated = id_lists(given.get("input_ids", given.get("inputs")))
    else:
        generated = id_lists(getattr(result, "sequences", result))
    settings = GenerateSettings(given, resolved, model.generation_config)
    prompts = read_prompts(model, given, len(generated))
    stop = settings.stop(prompts.length)
    ends = stop["end_ids"]["value"]
    pad = first_id(resolved.config.pad_token_id)
    padding = Padding(
        pad,
        unmasked=not prompts.hides_pads(pad, ends),
        known=known,
        bos=first_id(resolved.config.bos_token_id),
        ragged=any(tuple(ids) in known for ids in prompts.ids),
    )
    stripped = [*map(padding.strip, prompts.ids, prompts.masks(pad, ends))]
    copies = max(1, len(generated) // max(1, len(stripped)))
    outputs = []
    for index, whole in enumerate(generated):
        number, sample = divmod(index, copies)
        own, side = stripped[number]
        batch = {"rows": len(stripped), **side}
        if given.get("position_ids") is not None:
            batch["positions"] = "given"
        new = whole[prompts.length :]
        done = resolved.first_done(index, prompts.length)
        answer = cut_at_end(new, ends, pad, min(done.values(), default=None))
        reported = {}
        if stop["criteria"]["value"] and (resolved.config.num_beams or 1) == 1:
            reported["finish"] = finish_stage(done, len(answer))
        request = {"number": number, "sample": sample}
        outputs.append(Output(own, answer, new, whole, batch, reported, request))
    return ModelCall(
        outputs,
        model_stage(model),
        settings.sampling(),
        stop,
        placeholder_of(model.config),
        nested=result is None,
    )


def first_id(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and value else value


def finish_stage(done: Mapping[str, int], count: int) -> dict[str, Any]:
    """Which criteria called a row of `count` ids done, and after how many of them. What they say
    of the padding behind it is nothing about the row."""
    return {"criteria": {kind: place for kind, place in done.items() if place <= count}}


def cut_at_end(
    ids: Sequence[int], ends: Collection[int], pad: int | None, most: int | None = None
) -> list[int]:
    """Generated ids up to the one that ended them, without padding. most: where criteria ended
    them; not if more follows, as of criteria that are asked of draft tokens."""
    own = list(ids)
    if most is not None and all(token == pad for token in own[most:]):
        own = own[:most]
    for index, token in enumerate(own):
        if token in ends:
            return own[: index + 1]
    while own and own[-1] == pad:
        own.pop()
    return own


# == Taps ==


@model_tap
def tap_generate(listener: Listener, call: Invocation) -> Any:
    with listener.inside("generate") as outermost:
        if not outermost:
            return call.run()
        resolved = listener.thread.memory.renew(Resolved)
        nested = listener.within("engine")
        with watched_forward(listener, call.owner, stays=nested):
            result = call.run()
    with listener.guarded("a call of generate"):
        known = known_ids(listener.running().events_so_far())
        seen = None if nested else result
        listener.note_model_call(read_generate(call, resolved, seen, known))
    return result


def tap_resolved(name: str, listener: Listener, call: Invocation) -> Any:
    """The whole list of logits processors, or of stopping criteria."""
    result = call.run()
    if listener.depth("generate") == 1:  # and not of a model that drafts for it
        with listener.guarded(f"resolved {name}"):
            resolved = listener.thread.memory.of(Resolved)
            setattr(resolved, name, list(result))
            resolved.config = call.arguments["generation_config"]
    return result


def watched(criterion: Any, listener: Listener) -> Callable[..., Any]:
    """A stopping criterion that notes which rows it calls done, and at which width first."""

    def called(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        done = criterion(input_ids, *args, **kwargs)
        with listener.guarded("a criterion of generate"):
            resolved = listener.thread.memory.of(Resolved)
            rows, width = input_ids.shape
            for row in rows_done(done, rows):
                resolved.done.setdefault(row, {}).setdefault(type(criterion).__name__, width)
        return done

    return called


def rows_done(done: Any, rows: int) -> list[int]:
    """The rows that a criterion calls done: each by itself, or all by one word for the batch."""
    words = done.tolist() if hasattr(done, "tolist") else done
    each = words if isinstance(words, list) else [words] * rows
    return [row for row, is_done in enumerate(each) if is_done]


def tap_criteria(listener: Listener, call: Invocation) -> Any:
    """Where each criterion ends each row: padding follows, also where the pad id is an end."""
    if listener.depth("generate") != 1:
        return call.run()
    module = sys.modules["transformers.generation.stopping_criteria"]
    seen = module.StoppingCriteriaList(watched(criterion, listener) for criterion in call.owner)
    return call.run_as(call.original, seen)


def tap_model(listener: Listener, call: Invocation) -> None:
    """Where a model is made, its class is known."""
    with listener.guarded("a model"):
        listener.look_at_models()
    call.run()


TAPS: dict[str, dict[str, ListenerTap]] = {
    "transformers.generation.utils": {
        "GenerationMixin.generate": tap_generate,
        "GenerationMixin._get_logits_processor": functools.partial(tap_resolved, "processors"),
        "GenerationMixin._get_stopping_criteria": functools.partial(tap_resolved, "criteria"),
    },
    "transformers.generation.stopping_criteria": {"StoppingCriteriaList.__call__": tap_criteria},
    "transformers.modeling_utils": {"PreTrainedModel.__init__": tap_model},
}
