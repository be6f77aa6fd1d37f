"""Taps on transformers' generate: padded prompts, settings as it resolves them, and what it gave.

Also on the model's forward in the first step: what really reaches the model with a row's ids.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.record.calls import Listener, ListenerTap, model_tap
from parity.record.events import Forward, ForwardRow, Ids, ModelCall, Output
from parity.record.patching import Arguments, Invocation, bind_arguments
from parity.record.rows import NEUTRAL, STRUCTURED, Fields, Placeholders, by_caller, sourced
from parity.record.seeds import process_seed
from parity.record.taps.images import patches_of_images, take_next
from parity.record.taps.models import adapter_print, model_stage, placeholders_of, short_digest
from parity.record.taps.text import id_lists, known_ids

# == The first forward ==

UNSEEN_BY_ROWS = {
    "input_ids", "attention_mask", "position_ids", "cache_position", "labels", "logits_to_keep",
    "kwargs",
}  # fmt: skip


def shown_columns(mask: Sequence[int]) -> list[int]:
    """The columns that one row of an attention mask shows."""
    return [column for column, is_shown in enumerate(mask) if is_shown]


class Batch:
    """What a model's forward is given, to be read row by row.

    names: inputs beside the ids; a mapping is what newer transformers make of images before the
    forward.   per_token: those that are a number for each token, such as of which kind it is.
    mask: None where it is none of the ids.
    """

    def __init__(self, given: Arguments, placeholders: Placeholders) -> None:
        self.given = given
        self.ids = given["input_ids"]  # [B, S]
        self.placeholders = placeholders
        names = set[str]()
        like_ids = set[str]()
        for name, value in given.items():
            if hasattr(value, "shape"):
                names.add(name)
                if value.shape == self.ids.shape:
                    like_ids.add(name)
            elif isinstance(value, dict) and value:
                names.add(name)
        self.names = names - UNSEEN_BY_ROWS
        self.per_token = sorted(self.names & like_ids)
        self.mask = given["attention_mask"] if "attention_mask" in like_ids else None

    def own_columns(self, row: int) -> list[int]:
        """The columns of a row that the mask shows."""
        if self.mask is None:
            return [*range(self.ids.shape[-1])]
        return shown_columns(self.mask[row].tolist())

    def inputs(self, row: int, own: Sequence[int], has_images: bool) -> Fields:
        """What came with a row's ids. marks: the numbers of its own tokens, where they are not all
        0, the default. Images beside a row without any are not its own."""
        marks = dict[str, list[Any]]()
        for name in self.per_token:
            values = self.given[name][row].tolist()
            if any(values[column] for column in own):
                marks[name] = [values[column] for column in own]
        keys = {*marks}
        if has_images or self.placeholders.image is None:
            keys |= self.names.difference(self.per_token)
        inputs: Fields = {"keys": sorted(keys)}
        positions = self.given.get("position_ids")
        if positions is not None and positions.shape[-1] == self.ids.shape[-1]:
            inputs["positions"] = positions_of(positions, row, own)
        if marks:
            inputs["marks"] = short_digest(marks)
        return inputs


def read_forward(model: Any, given: Arguments) -> Forward | None:
    """What a model's forward is given, row by row. None where it is given no ids."""
    if given.get("input_ids") is None:
        return None
    batch = Batch(given, placeholders_of(model.config))
    adapter = adapter_print(model)
    sums = {
        batch.placeholders.image: picture_sums(given, "pixel_values", "image_grid_thw"),
        batch.placeholders.clip: picture_sums(given, "pixel_values_videos", "video_grid_thw"),
    }
    rows = []
    for index, whole in enumerate(id_lists(batch.ids)):
        own = batch.own_columns(index)
        shown = tuple(whole[column] for column in own)
        tokens = [token for token, _ in batch.placeholders.places(shown)]
        inputs = batch.inputs(index, own, has_images=bool(tokens))
        if pictures := take_next(sums, tokens):
            inputs["pictures"] = pictures
        padded = tuple(whole) if len(own) < len(whole) else ()
        rows.append(ForwardRow(shown, inputs, adapter, padded))
    return Forward(rows)


TEXT_AND_ROTARY_AXES = 4  # of Qwen's image models


def positions_of(positions: Any, row: int, own: Sequence[int]) -> str:
    """Positions of a row's own tokens: "from k" for k, k + 1, …, else a digest of them.

    Of four axes (text, time, height, width) no rotation reads the first: it tells sequences apart
    that are packed into one row, wherever it begins.
    """
    axes = positions if positions.ndim == 3 else positions[None]  # [axes, B, S]
    values = []
    for axis in axes[:, min(row, axes.shape[1] - 1)]:
        values.append([int(axis[column]) for column in own])
    if own and len(values) == TEXT_AND_ROTARY_AXES:
        begin = values[0][0]
        values[0] = [value - begin for value in values[0]]
    first = values[0][0] if own else 0
    plain = [*range(first, first + len(own))]
    is_plain = all(axis == plain for axis in values)
    return f"from {first}" if is_plain else short_digest(values)


def picture_sums(given: Arguments, name: str, grid: str) -> list[list[float]]:
    """Of the tensor of each image, or clip: mean, deviation, and a mean that depends on the order
    of patches."""
    values = given.get(name)
    grids = given.get(grid)
    if values is None:
        return []
    images = values if grids is None else patches_of_images(values, id_lists(grids))
    found = []
    for image in images:
        own = image.detach().float().flatten()
        torch = sys.modules["torch"]
        weights = torch.linspace(-1, 1, len(own), device=own.device)
        sums = (own.mean(), own.std(), (own * weights).mean())
        found.append([round(float(value), 4) for value in sums])
    return found


# == Watching the forward ==


@dataclass(frozen=True, eq=False, slots=True)
class Watch:
    """A model whose forward is to be noted. each: every one, not the next alone."""

    model: weakref.ref[Any]
    each: bool


class Watches:
    """The models that are watched in one thread."""

    def __init__(self) -> None:
        self.running = list[Watch]()

    def end(self, watch: Watch | None) -> None:
        if watch in self.running:
            self.running.remove(watch)


@contextlib.contextmanager
def watched_forward(
    listener: Listener, model: Any, *, stays: bool = False, each: bool = False
) -> Iterator[None]:
    """Note what reaches the model's forward in the first step of this thread.

    stays: an engine makes the step after the block, for which `generate` prepares the batch.
    each: every forward is a first step.
    """
    watches = listener.thread.memory.of(Watches)
    watch = None
    with listener.guarded("watching the forward"):
        if hasattr(model, "forward"):  # an engine that is closed has none, and vLLM's is not seen
            watch = Watch(weakref.ref(model), each)
            watches.running.append(watch)
    try:
        yield
    finally:
        if not stays:
            watches.end(watch)


def note_watched(listener: Listener, call: Invocation) -> None:
    """A model is called."""
    watches = listener.thread.memory.of(Watches)
    model = call.owner
    for watch in [one for one in watches.running if one.model() is model]:
        if not watch.each:
            watches.end(watch)
        with listener.guarded("a forward"):
            event = read_forward(model, forward_arguments(call))
            if event is not None:
                listener.note(event)


def forward_arguments(call: Invocation) -> Fields:
    """What a model's forward is given, by name."""
    return bind_arguments(call.owner.forward, call.args[1:], call.kwargs) | call.kwargs


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
        widths = self.done.get(row, {})
        return {kind: width - length for kind, width in widths.items()}


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


def processor_settings(processors: Sequence[Any]) -> Fields:
    """The settings that logits processors stand for; others by the name of their class."""
    settings = Fields()
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

    given: Arguments
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

    def sampling(self) -> Fields:
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

    def stop(self, length: int) -> Fields:
        """length: columns of the prompts."""
        config = self.resolved.config
        ends = list[int]()
        strings = list[str]()
        others = list[str]()
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
        min_length = config.min_length or 0
        least = max(config.min_new_tokens or 0, min_length - length)
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

    def strip(self, ids: Sequence[int], mask: Sequence[int]) -> tuple[list[int], Fields]:
        """A padded prompt -> its own ids, and how it was padded."""
        shown = shown_columns(mask)
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
        begin = 0
        end = len(ids)
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
        if not self.ragged or not ids:
            return 0
        if ids[0] == self.bos or tuple(ids) in self.known:
            return 0
        for count in range(1, len(ids) + 1):
            if ids[count - 1] != ids[0]:
                break
            if tuple(ids[count:]) in self.known:
                return count
        return 0


# == A call ==


def strip_prompts(
    given: Arguments,
    prompts: Sequence[list[int]],
    config: Any,
    ends: Collection[int],
    known: Collection[Ids],
) -> list[tuple[list[int], Fields]]:
    """Padded prompts -> their own ids, and how each was padded. Where the call gave no mask,
    generate hides the pad id, unless it is an end."""
    pad = first_id(config.pad_token_id)
    hidden = None
    mask = given.get("attention_mask")
    if mask is not None and any(prompts):  # that of embeddings hides no ids
        masks = id_lists(mask)
    else:
        hidden = None if pad in ends else pad
        masks = []
        for ids in prompts:
            masks.append([int(token != hidden) for token in ids])
    ragged = any(tuple(ids) in known for ids in prompts)
    padding = Padding(pad, hidden is None, known, first_id(config.bos_token_id), ragged)
    return [*map(padding.strip, prompts, masks)]


def read_generate(
    call: Invocation, resolved: Resolved, result: Any, known: Collection[Ids]
) -> ModelCall:
    """A call of generate. result: None inside an engine's own loop, which tells itself what
    becomes of the rows.   known: ids that a tokenizer gave before."""
    model = call.owner
    given = call.arguments
    config = resolved.config
    inputs = given.get("input_ids", given.get("inputs"))
    sequences = inputs if result is None else getattr(result, "sequences", result)
    generated = id_lists(sequences)
    prompts = [[]] * len(generated) if inputs is None else id_lists(inputs)
    length = 0 if model.config.is_encoder_decoder else len(prompts[0])
    settings = GenerateSettings(given, resolved, model.generation_config)
    stop = settings.stop(length)
    ends = stop["end_ids"]["value"]
    stripped = strip_prompts(given, prompts, config, ends, known)
    copies = max(1, len(generated) // max(1, len(stripped)))
    outputs = []
    for index, whole in enumerate(generated):
        number, sample = divmod(index, copies)
        own, side = stripped[number]
        batch = {"rows": len(stripped), **side}
        if given.get("position_ids") is not None:
            batch["positions"] = "given"
        new = whole[length:]
        done = resolved.first_done(index, length)
        pad = first_id(config.pad_token_id)
        answer = cut_at_end(new, ends, pad, min(done.values(), default=None))
        reported = {}
        if stop["criteria"]["value"] and (config.num_beams or 1) == 1:
            # What they say of the padding behind a row is nothing about it.
            own_done = {kind: count for kind, count in done.items() if count <= len(answer)}
            reported["finish"] = {"criteria": own_done}
        request = {"number": number, "sample": sample}
        outputs.append(Output(own, answer, new, whole, batch, reported, request))
    return ModelCall(
        outputs,
        model_stage(model),
        settings.sampling(),
        stop,
        placeholders_of(model.config),
        nested=result is None,
    )


def first_id(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and value else value


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

CACHES = {"past_key_values", "cache"}  # arguments of generate: "cache" since transformers 5.24


@model_tap
def tap_generate(listener: Listener, call: Invocation) -> Any:
    with listener.inside("generate") as outermost:
        if not outermost:
            return call.run()
        nested = listener.within("engine")
        if nested and (call.arguments.keys() & CACHES):
            return call.run()  # the engine goes on with some rows of a call that was noted
        resolved = listener.thread.memory.renew(Resolved)
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
                widths = resolved.done.setdefault(row, {})
                widths.setdefault(type(criterion).__name__, width)
        return done

    return called


def rows_done(done: Any, rows: int) -> list[int]:
    """The rows that a criterion calls done: each by itself, or all by one word for the batch."""
    words = done.tolist() if hasattr(done, "tolist") else done
    each = words if isinstance(words, list) else [words] * rows
    return [row for row, is_done in enumerate(each) if is_done]


def tap_criteria(listener: Listener, call: Invocation) -> Any:
    """Which criteria are asked, some of which a library may add behind generate's own list; and
    where each ends each row: padding follows, also where the pad id is an end."""
    if listener.depth("generate") != 1:
        return call.run()
    with listener.guarded("the criteria of generate"):
        listener.thread.memory.of(Resolved).criteria = list(call.owner)
    module = sys.modules["transformers.generation.stopping_criteria"]
    seen = module.StoppingCriteriaList(watched(criterion, listener) for criterion in call.owner)
    return call.run_as(call.original, seen)


TAPS: dict[str, dict[str, ListenerTap]] = {
    "transformers.generation.utils": {
        "GenerationMixin.generate": tap_generate,
        "GenerationMixin._get_logits_processor": functools.partial(tap_resolved, "processors"),
        "GenerationMixin._get_stopping_criteria": functools.partial(tap_resolved, "criteria"),
    },
    "transformers.generation.stopping_criteria": {"StoppingCriteriaList.__call__": tap_criteria},
}
