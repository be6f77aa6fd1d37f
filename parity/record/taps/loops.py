"""Taps on models that code calls by itself: ids that are only read, and custom decode loops.

A forward without a past begins a sequence. One with the past of another, or with the same ids and
one more, goes on with it: the code chose that id, and the sequence becomes a row like one of
`generate`, as far as it can be seen. Its prompt ends where a tokenizer's text does. A past that
reads another text on top of an answer, such as the next question of a chat, begins a sequence whose
prompt is all of it. How ids were chosen cannot be seen, only whether each was the likeliest, and
whether random numbers were taken. The last id is never read: it is known only where all were the
likeliest, or all were decoded.
"""

from __future__ import annotations

import bisect
import functools
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from parity.record.calls import MODEL_CALLS, Listener
from parity.record.events import Events, Forward, ForwardRow, Ids, ModelCall, Output
from parity.record.patching import Arguments, Invocation
from parity.record.rows import BUT_THE_LAST, LIKELIEST, Fields, Placeholders, sourced
from parity.record.seeds import generator_states, process_seed
from parity.record.taps.models import model_stage, placeholders_of
from parity.record.taps.text import id_lists, joined_text, known_ids
from parity.record.taps.transformers import (
    forward_arguments,
    note_watched,
    read_forward,
    shown_columns,
)

NO_LABEL = -100  # torch's own, of the cross entropy


def scored_output(ids: Sequence[int], images: Any = None, request: Any = None) -> Output:
    """Ids that are only read."""
    reported = {"scored": True, "images": images}
    return Output([*ids], [], reported=reported, request=request or {})


def scored_call(model: Any, outputs: list[Output], placeholders: Placeholders) -> ModelCall:
    return ModelCall(outputs, model_stage(model), {}, {}, placeholders)


# == A sequence ==

LoopedIds = Literal["choice", "prompt", "text", "lost"]  # see `looped_ids`


@dataclass(eq=False, slots=True)
class LoopReading:
    """A sequence that a model reads; it keeps its output up to date.

    ids: all of it so far.   width: of its batch so far, pads included.   ends, pads: ids that end
    it, and that stand behind its end while others of the batch go on.   best: the likeliest next
    id.   likeliest: all that are as likely, which code may take as well.   is_likeliest: of each id
    that was chosen.   lost: what came after its beginning could not
    be followed.
    """

    output: Output
    ids: list[int]
    width: int
    ends: frozenset[int]
    pads: frozenset[int]
    best: int | None = None
    likeliest: frozenset[int] = frozenset()
    is_likeliest: list[bool] = field(default_factory=list)
    lost: bool = False

    def ids_in(self, width: int) -> list[int]:
        """Its ids in the first columns of its batch."""
        return self.ids[: len(self.ids) - self.width + width]

    def read_on(self, ids: Sequence[int], count: int, step: LoopedIds) -> None:
        """The model reads on.   count: columns that were kept of its batch."""
        self.ids = self.ids_in(count)
        self.width = count + len(ids)
        output = self.output
        if step == "choice":
            if not output.new_ids:
                output.prompt_ids = self.ids
            output.new_ids = [*output.new_ids, *ids]
            self.is_likeliest.append(ids[0] in self.likeliest)
        self.lost |= step not in ("choice", "prompt")
        self.ids = [*self.ids, *ids]
        self.update()

    def expect(self, logits: Any) -> None:
        """The likeliest next id is known.   logits: [vocabulary]."""
        self.best = int(logits.argmax())
        self.likeliest = frozenset((logits == logits[self.best]).nonzero()[:, 0].tolist())
        self.update()

    def update(self) -> None:
        output = self.output
        if self.lost:
            output.request["followed"] = "in part"
        if self.lost or not output.new_ids:
            output.output_ids = []
            output.reported |= {"scored": True, "loop": None}
            return
        own = self._without_pads(output.new_ids)
        output.output_ids = own
        loop = BUT_THE_LAST
        if all(self.is_likeliest[: len(own)]):
            loop = LIKELIEST
            if self.best is not None and own[-1] not in self.ends:
                output.output_ids = [*own, self.best]
        output.whole = [*output.prompt_ids, *output.output_ids]
        output.reported |= {"scored": None, "loop": loop}

    def _without_pads(self, ids: list[int]) -> list[int]:
        """Ids without what stands behind the end while others go on; all of them where the sequence
        itself goes on behind an end."""
        count = len(ids)
        while count and ids[count - 1] in self.ends | self.pads:
            count -= 1
        if self.ends.intersection(ids[:count]) or count == len(ids):
            return ids
        return ids[: count + 1] if ids[count] in self.ends else ids


@dataclass(frozen=True, slots=True)
class LoopStep:
    """One forward: the events that it is, and the sequences that it reads."""

    events: Events = ()
    readings: Sequence[LoopReading] = ()


def new_sequences(model: Any, rows: Sequence[Sequence[int]], width: int = 0) -> LoopStep:
    """A forward that begins sequences."""
    outputs = [scored_output(ids) for ids in rows]
    event = scored_call(model, outputs, placeholders_of(model.config))
    config = getattr(model, "generation_config", None)
    ends = config_ids(config, "eos_token_id")
    pads = config_ids(config, "pad_token_id")
    readings = [LoopReading(one, [*one.prompt_ids], width, ends, pads) for one in outputs]
    return LoopStep([event], readings)


def config_ids(config: Any, name: str) -> frozenset[int]:
    """One id or several that a model's config names, or none."""
    value = getattr(config, name, None)
    return frozenset() if value is None else frozenset(id_lists(value)[0])


# == All sequences of a call ==


class Pasts(weakref.WeakKeyDictionary[Any, tuple[list[LoopReading], "Loops"]]):
    """Caches that forwards gave, not a byte longer than the code wants them, which may keep one
    from call to call -> the sequences that each holds, and those of the call that read them."""


class Loops:
    """All that one call of a site has read.

    texts: sequences by their model and ids.   pasts: of all calls.   blind: models that were given
    no ids, or a past that no call gave.   states: of the process's generators, before anything was
    chosen.   seed: of what was sampled from, once something was.
    """

    def __init__(self) -> None:
        self.texts = dict[tuple[int, Ids], list[LoopReading]]()
        self.pasts = Pasts()
        self.blind = set[int]()
        self.states: list[bytes] | None = None
        self.seed: Fields | None = None

    def begin(self, model: Any, given: Arguments, before: Events) -> LoopStep:
        """A forward, before it. before: the events that led to it."""
        if self.states is None:
            self.states = generator_states()
        past = past_of(given.get)
        ids = given.get("input_ids")
        if past is None or not past.get_seq_length():
            seen = read_forward(model, given)
            if seen is not None:
                return self._fresh(model, given, seen, before)
            if given.get("inputs_embeds") is not None:
                return self._blind(model)
        elif past not in self.pasts:
            return self._blind(model)
        elif ids is not None:
            return self._continued(model, past, id_lists(ids), before)
        return LoopStep()

    def _blind(self, model: Any) -> LoopStep:
        """Of what is read nothing is known but the model."""
        if id(model) in self.blind:
            return LoopStep()
        self.blind.add(id(model))
        return LoopStep(new_sequences(model, [[]]).events)

    def _fresh(self, model: Any, given: Arguments, seen: Forward, before: Events) -> LoopStep:
        """A forward without a past: new sequences, and old ones with one id more."""
        trimmed = without_right_pads(seen, given, known_ids(before)) if is_causal(model) else seen
        is_padded = trimmed is not seen
        rows = {index: row.ids for index, row in enumerate(trimmed.rows)}
        readings = dict[int, LoopReading]()
        # What is read for its loss is no loop's next step, also where it is another text and one id
        # more. Nor is a batch with pads at its right: its last column does not tell what is next.
        if given.get("labels") is None and not is_padded:
            readings = self._longer_ones(model, rows)
        fresh = [index for index in rows if index not in readings]
        if not fresh:
            return LoopStep(readings=[*readings.values()])
        width = given["input_ids"].shape[1]
        made = new_sequences(model, [rows[index] for index in fresh], width)
        readings |= dict(zip(fresh, made.readings))
        mark_missing_labels(given, readings)
        if not is_padded:
            self._remember(model, made.readings)
        return LoopStep([trimmed, *made.events], [readings[index] for index in rows])

    def _longer_ones(self, model: Any, rows: Mapping[int, Ids]) -> dict[int, LoopReading]:
        """Of these rows, the sequences that were their ids but the last, and have not gone on by a
        past."""
        found = dict[int, LoopReading]()
        for index, ids in rows.items():
            key = (id(model), ids[:-1])
            known = self.texts.pop(key, [])
            fitting = (one for one in known if len(one.ids) == len(ids) - 1)
            reading = next(fitting, None)
            others = [one for one in known if one is not reading]
            if others:
                self.texts[key] = others
            if reading is not None:
                reading.read_on(ids[-1:], reading.width, "choice")
                self._remember(model, [reading])
                found[index] = reading
        return found

    def _continued(
        self, model: Any, past: Any, rows: Sequence[list[int]], before: Events
    ) -> LoopStep:
        """A forward with a past: its sequences go on, or another text begins on top of them."""
        readings, loops = self.pasts[past]
        if len(readings) != len(rows):
            return lose_all(readings)  # rows were taken out of it: which are left?
        count = past.get_seq_length()
        pairs = [*zip(readings, rows)]
        known = functools.cache(functools.partial(known_ids, before))
        steps = [looped_ids(*pair, count, known) for pair in pairs]
        if loops is not self or {*steps} == {"text"}:
            return read_on_top(model, pairs, count)
        for (reading, ids), step in zip(pairs, steps):
            reading.read_on(ids, count, step)
        return LoopStep(readings=readings)

    def _remember(self, model: Any, readings: Sequence[LoopReading]) -> None:
        for reading in readings:
            key = (id(model), tuple(reading.ids))
            self.texts.setdefault(key, []).append(reading)

    def sample_from(self, generator: Any = None) -> None:
        """Random numbers are taken: from a generator of the code's own, or the process's."""
        default = sys.modules["torch"].default_generator
        if generator is None or generator is default:
            self.seed = process_seed()
        else:
            self.seed = sourced(generator.initial_seed(), "process")

    def end(self, readings: Sequence[LoopReading], given: Arguments, result: Any) -> None:
        """The forward, after it: what it says of the next ids, and its past."""
        if self.seed is None and self.states != generator_states():
            self.sample_from()
        if self.seed is not None:
            for reading in readings:
                reading.output.request["process"] = self.seed
        past = past_of(lambda name: getattr(result, name, None))
        if past is not None and readings:
            self.pasts[past] = ([*readings], self)
        logits = getattr(result, "logits", None)
        if logits is not None and logits.ndim == 3:  # [B, S, V]
            expect_likeliest(readings, given, logits)


def read_on_top(model: Any, pairs: Sequence[tuple[LoopReading, list[int]]], count: int) -> LoopStep:
    """Another text on top of what each sequence has in its first `count` columns."""
    rows = [[*reading.ids_in(count), *ids] for reading, ids in pairs]
    return new_sequences(model, rows, count + len(pairs[0][1]))


def lose_all(readings: Sequence[LoopReading]) -> LoopStep:
    for reading in readings:
        reading.lost = True
        reading.update()
    return LoopStep()


def expect_likeliest(readings: Sequence[LoopReading], given: Arguments, logits: Any) -> None:
    if len(logits) != len(readings):
        return
    for row, reading in enumerate(readings):
        column = last_own_column(given, row, logits.shape[1])
        reading.expect(logits[row, column])


def past_of(get: Callable[[str], Any]) -> Any:
    """A forward's past, by its name since transformers 5.24, else by the one before; or None."""
    newer = get("cache")
    return newer if newer is not None else get("past_key_values")


def looped_ids(
    reading: LoopReading, ids: list[int], count: int, known: Callable[[], Collection[Ids]]
) -> LoopedIds:
    """What the ids of a forward with a past are to its sequence: one id behind all that was read is
    a choice, and several, before any was chosen, are the rest of the prompt; so is one that a text
    goes on with. Behind an answer, whose last choice may not have been read, a text may begin.

    count: the ids of the past.   known: ids that a tokenizer gave.
    """
    whole = (*reading.ids_in(count), *ids)
    is_whole = reading.width == count
    if not reading.output.new_ids:
        if not is_whole:
            return "lost"
        is_prompt = len(ids) != 1 or begins_a_text(whole, sorted(known()))
        return "prompt" if is_prompt else "choice"
    if is_whole and len(ids) == 1:
        return "choice"
    texts = dict.fromkeys(known(), "")
    if whole in texts or are_texts_joined(texts, ids) or are_texts_joined(texts, ids[1:]):
        return "text"
    return "lost"


def are_texts_joined(texts: Mapping[Ids, str], ids: Sequence[int]) -> bool:
    return bool(ids) and joined_text(texts, tuple(ids)) is not None


def last_own_column(given: Arguments, row: int, width: int) -> int:
    """The column of a row's last own id."""
    mask = given.get("attention_mask")
    if mask is None or mask.ndim != 2 or mask.shape[1] != width:
        return -1
    shown = shown_columns(mask[row].tolist())
    return shown[-1] if shown else -1


def mark_missing_labels(given: Arguments, readings: Mapping[int, LoopReading]) -> None:
    """Of rows that are read for their loss, those whose labels do not count: of one id, or cut."""
    labels = given.get("labels")  # [B, S]
    if labels is None or labels.ndim != 2:
        return
    for row, reading in readings.items():
        counts = labels[row, 1:] != NO_LABEL
        if not bool(counts.any()):
            reading.output.request["labels"] = "none"


# == Pads at the right ==


def is_causal(model: Any) -> bool:
    """Whether what stands behind a token says nothing to it."""
    return bool(model.can_generate()) and not model.config.is_encoder_decoder


def without_right_pads(seen: Forward, given: Arguments, known: Collection[Ids]) -> Forward:
    """A causal model's batch without unmasked pads at the right end of its rows, to which no token
    attends; the same object if there are none.

    A row has pads if it does not begin a text that a tokenizer gave, its end repeats one id, and
    without some of these ids it does begin one. A batch in which every row ends in that id has no
    longest row, and no pads.
    """
    mask = given.get("attention_mask")
    is_masked = mask is not None and not mask.all()
    lengths = {len(row.ids) for row in seen.rows}
    if is_masked or len(lengths) > 1:
        return seen
    texts = sorted(known)
    rows = list[ForwardRow]()
    pads = set[Ids]()  # the last id of each row that has pads
    for row in seen.rows:
        own = without_pads(row.ids, texts)
        rows.append(replace(row, ids=own))
        if own != row.ids:
            pads.add(row.ids[-1:])
    ends = {row.ids[-1:] for row in seen.rows}
    is_padded = len(pads) == 1 and ends != pads
    return Forward(rows) if is_padded else seen


def without_pads(ids: Ids, texts: Sequence[Ids]) -> Ids:
    """A row's own ids. Code may put an id, such as a beginning of text, before a text, and read
    nothing of a text of one id.

    texts: sorted.
    """
    least = len(ids)  # of a row that ends in equal ids: its other ids
    while least > 1 and ids[least - 1] == ids[-1]:
        least -= 1
    for count in range(len(ids), least - 1, -1):
        own = ids[:count]
        if begins_a_text(own, texts) or begins_a_text(own[1:], texts):
            return own
    has_text_of_one = 1 in map(len, texts)
    return ids[:1] if least == 1 and has_text_of_one else ids


def begins_a_text(ids: Ids, texts: Sequence[Ids]) -> bool:
    """Whether ids are the beginning of one of some texts, which are sorted."""
    place = bisect.bisect_left(texts, ids)
    if not ids or place == len(texts):
        return False
    return texts[place][: len(ids)] == ids


# == Taps ==


def is_own_code(listener: Listener) -> bool:
    """Whether a site's own code is running, and no library's or engine's."""
    return listener.in_site() and not listener.within(*MODEL_CALLS)


def tap_forward(listener: Listener, call: Invocation) -> Any:
    """A model that code calls by itself."""
    is_own = is_own_code(listener)
    listener.count_unseen()
    with listener.inside("forward"):
        if not is_own:
            return call.run()
        running = listener.running()
        loops = running.memory.of(Loops)
        loops.pasts = listener.memory.of(Pasts)
        model = call.owner
        step = LoopStep()
        given = Fields()
        with listener.guarded("a forward"):
            given = forward_arguments(call)
            step = loops.begin(model, given, running.events_so_far())
            listener.note(*step.events)
        result = call.run()
        with listener.guarded("what a forward gave"):
            loops.end(step.readings, given, result)
        return result


def tap_model_call(listener: Listener, call: Invocation) -> Any:
    """A model that anybody calls."""
    note_watched(listener, call)
    return tap_forward(listener, call)


def tap_model(listener: Listener, call: Invocation) -> None:
    """Where a model is made, its class is known."""
    with listener.guarded("a model"):
        listener.look_at_models()
    call.run()


def tap_sampling(listener: Listener, call: Invocation) -> Any:
    """A draw by the code itself, which may have a generator of its own."""
    if is_own_code(listener):
        with listener.guarded("a draw"):
            loops = listener.running().memory.of(Loops)
            loops.sample_from(call.kwargs.get("generator"))
    return call.run()


TAPS = {
    "transformers.modeling_utils": {
        "PreTrainedModel.__init__": tap_model,
        "PreTrainedModel.__call__": tap_model_call,
    },
    "torch": {"multinomial": tap_sampling, "Tensor.multinomial": tap_sampling},
}
