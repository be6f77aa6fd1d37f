"""Code that calls a model by itself: ids that are read, and loops that read on with what they chose.

A forward without a past begins a sequence. One that is given the past of another, or the same ids and one more, goes on
with it: what it is given then was chosen, and the sequence becomes a row like one of `generate`, as far as it can be
seen. Its prompt ends where a tokenizer's text does. A past that reads another text on top of an answer, such as the
next question of a chat, begins a sequence whose prompt is all of it. How ids were chosen cannot be seen, only whether
each was the likeliest, and whether random numbers were taken; the last one was never read, and is known only where all
were, or all were decoded.
"""

from __future__ import annotations

import bisect
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.record.rows import (
    BUT_THE_LAST,
    LIKELIEST,
    Event,
    Forward,
    Generated,
    Produced,
    forward_event,
    known_ids,
    lists,
    pieced,
    placeholder_of,
    process_seed,
    scored_event,
    sourced,
)


@dataclass(eq=False)
class Reading:
    """A sequence that a model reads. ids: all of it so far.   width: of its batch, so far.   ends, pads: ids that end
    it, and that stand behind its end while others of the batch go on.   best: the likeliest next one.   lost: what came
    after its beginning could not be followed."""

    sequence: Produced
    ids: list[int]
    width: int
    ends: frozenset[int]
    pads: frozenset[int]
    best: int | None = None
    likeliest: list[bool] = field(default_factory=list)  # of each id that was chosen
    lost: bool = False

    def up_to(self, width: int) -> list[int]:
        """Its ids in the first columns of its batch."""
        return self.ids[: len(self.ids) - (self.width - width)]

    def go_on(self, ids: Sequence[int], known: Collection[tuple[int, ...]] = ()) -> None:
        """The model reads on. Several ids at once, before any was chosen, may be the rest of the prompt: they are where
        a choice follows. So is one that a text goes on with.   known: ids that a tokenizer gave."""
        said, whole = self.sequence, (*self.ids, *ids)
        if len(ids) != 1 or (not said.new_ids and any(text[: len(whole)] == whole for text in known)):
            self.lost |= bool(said.new_ids)
        else:
            said.prompt_ids = said.prompt_ids if said.new_ids else [*self.ids]
            said.new_ids = [*said.new_ids, ids[0]]
            self.likeliest.append(ids[0] == self.best)
        self.ids += ids
        self.width += len(ids)
        self._tell()

    def expect(self, best: int) -> None:
        self.best = best
        self._tell()

    def lose(self) -> None:
        self.lost = True
        self._tell()

    def _tell(self) -> None:
        said = self.sequence
        if self.lost or not said.new_ids:
            said.output_ids, said.said = [], {**said.said, "scored": True, "loop": None}
            return
        own = self._ended(said.new_ids)
        always = all(self.likeliest[: len(own)])
        last = [self.best] if always and self.best is not None and own[-1] not in self.ends else []
        said.output_ids = [*own, *last]
        said.whole = [*said.prompt_ids, *said.output_ids]
        said.said = {**said.said, "scored": None, "loop": LIKELIEST if always else BUT_THE_LAST}

    def _ended(self, ids: list[int]) -> list[int]:
        """Ids without what stands behind the end while others go on; all of them where it goes on behind an end."""
        count = len(ids)
        while count and ids[count - 1] in self.ends | self.pads:
            count -= 1
        if self.ends.intersection(ids[:count]):
            return ids
        return ids[: count + 1] if ids[count : count + 1] and ids[count] in self.ends else ids


@dataclass
class Loops:
    """All that one call of a site has read. texts: by the model and the ids that it read.   pasts: by what it gave
    back."""

    texts: dict[tuple[int, tuple[int, ...]], list[Reading]] = field(default_factory=dict)
    pasts: list[tuple[Any, list[Reading]]] = field(default_factory=list)
    blind: set[int] = field(default_factory=set)  # models that were given no ids
    state: Any = None  # of the process's generators, before anything was chosen
    drew: dict[str, Any] | None = None  # the seed of what was drawn from, once something was

    def begin(
        self, model: Any, given: Mapping[str, Any], before: Sequence[Event] = ()
    ) -> tuple[list[Event], list[Reading]]:
        """A forward, before it: the events that it is, and the sequences that it reads.   before: what led to it."""
        ids, past = given.get("input_ids"), past_of(given.get)
        self.state = generator_states() if self.state is None else self.state
        if (count := read_by(past)) > 0:
            return ([], []) if ids is None else self._on(model, past, count, lists(ids), before)
        seen = forward_event(model, given)
        if seen is None:
            new = id(model) not in self.blind and given.get("inputs_embeds") is not None
            self.blind.add(id(model))
            return ([begun(model, [[]])[0]] if new else []), []
        padded = is_causal(model) and without_right_pads(seen, given, before)
        # What is read for its loss is no loop's next step, also where it is another text and one id more. Nor is a
        # batch with pads at its right: what comes next is not said in its last column.
        of_loss = given.get("labels") is not None or padded
        readings = [None if of_loss else self._longer(model, ids) for ids, _ in seen.rows]
        if all(readings):
            return [], [reading for reading in readings if reading]
        fresh = [number for number, old in enumerate(readings) if old is None]
        event, found = begun(model, [list(seen.rows[number][0]) for number in fresh], given["input_ids"].shape[1])
        for number, reading in zip(fresh, found):
            if in_vain(given, number):
                reading.sequence.request["labels"] = "none"
            if padded:
                continue
            self.texts.setdefault((id(model), tuple(reading.ids)), []).append(reading)
        left = iter(found)
        return [seen, event], [old or next(left) for old in readings]

    def _on(
        self, model: Any, past: Any, count: int, rows: Sequence[list[int]], before: Sequence[Event]
    ) -> tuple[list[Event], list[Reading]]:
        readings = next((those for one, those in self.pasts if one() is past), [])
        pairs, cropped = list(zip(readings, rows)), any(reading.width != count for reading in readings)
        if len(readings) == len(rows):
            plain = all(reading.sequence.new_ids and len(ids) == 1 for reading, ids in pairs) and not cropped
            known = set[tuple[int, ...]]() if plain else known_ids(before)
            if not plain and all(another_text(reading, ids, count, known) for reading, ids in pairs):
                event, found = begun(model, [[*one.up_to(count), *ids] for one, ids in pairs], count + len(rows[0]))
                return [event], found
            if not cropped:
                for reading, ids in pairs:
                    reading.go_on(ids, known)
                return [], readings
        for reading in readings:  # rows were taken out of it (which are left?), or ids were taken back
            reading.lose()
        return [], []

    def _longer(self, model: Any, ids: tuple[int, ...]) -> Reading | None:
        """The sequence that was these ids but the last, and has not gone on by a past."""
        known = self.texts.get((id(model), ids[:-1]), [])
        reading = next((one for one in known if len(one.ids) == len(ids) - 1), None)
        if reading is not None:
            known.remove(reading)
            if not known:
                del self.texts[id(model), ids[:-1]]
            reading.go_on(ids[-1:])
            self.texts.setdefault((id(model), ids), []).append(reading)
        return reading

    def draws(self, generator: Any = None) -> None:
        """Random numbers are taken: from a generator of the code's own, or the process's."""
        own = generator is not None and generator is not sys.modules["torch"].default_generator
        self.drew = sourced(generator.initial_seed(), "process") if own else process_seed()

    def end(self, readings: Sequence[Reading], given: Mapping[str, Any], result: Any) -> None:
        """The forward, after it: what it says of the next ids, and its past."""
        past, logits = past_of(lambda name: getattr(result, name, None)), getattr(result, "logits", None)
        if self.drew is None and self.state != generator_states():
            self.draws()
        if self.drew is not None:
            for reading in readings:
                reading.sequence.request["process"] = self.drew
        if past is not None and readings:
            # Not a byte longer than they are wanted; the tuples of old releases have no weak references, one is kept.
            weak = not isinstance(past, tuple)
            self.pasts = [(one, who) for one, who in self.pasts if isinstance(one, weakref.ref) and one() is not past]
            self.pasts.append((weakref.ref(past) if weak else lambda: past, list(readings)))
        if logits is not None and logits.ndim == 3 and len(readings) == len(logits):
            for number, reading in enumerate(readings):
                reading.expect(int(logits[number, last_own(given, number, logits.shape[1])].argmax()))


def is_causal(model: Any) -> bool:
    """Whether what stands behind a token says nothing to it."""
    return bool(model.can_generate()) and not model.config.is_encoder_decoder


def without_right_pads(seen: Forward, given: Mapping[str, Any], before: Sequence[Event]) -> bool:
    """Take unmasked pads at the right end off the rows of a causal model's batch: no token attends
    to them. Returns whether there were any.

    A row has pads if it does not begin a text that a tokenizer gave, its end repeats one id, and
    without some of these ids it does begin one. A batch in which every row ends in that id has no
    longest row, and no pads.
    """
    mask, widths = given.get("attention_mask"), {len(ids) for ids, _ in seen.rows}
    if len(seen.rows) < 2 or len(widths) > 1 or (mask is not None and not bool(mask.all())):
        return False
    texts = sorted(known_ids(before))
    own = [own_ids(ids, texts) for ids, _ in seen.rows]
    pads = {ids[-1] for (ids, _), count in zip(seen.rows, own) if count < len(ids)}
    if len(pads) != 1 or all(ids[-1] in pads for ids, _ in seen.rows):
        return False
    seen.rows = [(ids[:count], said) for (ids, said), count in zip(seen.rows, own)]
    return True


def own_ids(ids: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> int:
    """How many of a row's ids are its own. Code may put an id, such as a beginning of text, before
    a text.   texts: sorted."""
    last = next((place for place in range(len(ids), 0, -1) if ids[place - 1] != ids[-1]), 0)
    counts = range(len(ids), max(1, last) - 1, -1)
    led = (count for count in counts if begins_one(ids[:count], texts) or begins_one(ids[1:count], texts))
    return next(led, len(ids))


def begins_one(ids: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> bool:
    """Whether ids are the beginning of one of some texts, which are sorted."""
    place = bisect.bisect_left(texts, ids)
    return bool(ids) and place < len(texts) and texts[place][: len(ids)] == ids


def in_vain(given: Mapping[str, Any], number: int) -> bool:
    """Whether a row is read for its loss, and none of its labels counts: of one id, or cut before the first."""
    labels = given.get("labels")
    return labels is not None and labels.ndim == 2 and not bool((labels[number, 1:] != NO_LABEL).any())


NO_LABEL = -100  # torch's own, of the cross entropy


def past_of(get: Callable[[str], Any]) -> Any:
    """A forward's past, by its name since transformers 5.24, and before."""
    return next((past for name in ("cache", "past_key_values") if (past := get(name)) is not None), None)


def begun(model: Any, rows: Sequence[list[int]], width: int = 0) -> tuple[Generated, list[Reading]]:
    """Sequences that begin with these ids."""
    event, config = scored_event(model, rows, placeholder_of(model.config)), getattr(model, "generation_config", None)
    ends, pads = (ids_in(config, f"{name}_token_id") for name in ("eos", "pad"))
    return event, [Reading(one, [*one.prompt_ids], width, ends, pads) for one in event.sequences]


def another_text(reading: Reading, ids: list[int], count: int, known: Collection[tuple[int, ...]]) -> bool:
    """Whether ids are no choice but a text, or some, on top of an answer, whose last choice may not have been read.
    count: the ids of the past.   known: those that a tokenizer gave."""
    if not reading.sequence.new_ids or (reading.width == count and len(ids) == 1):
        return False
    parts = dict.fromkeys(known, "")
    told = any(part and pieced(parts, tuple(part)) is not None for part in (ids, ids[1:]))
    return told or (*reading.up_to(count), *ids) in known


def generator_states() -> list[bytes]:
    """Of the generators that draws are taken from where nothing else is said."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy.random")
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    others = [random.getstate(), *([numpy.get_state()] if numpy else [])]
    return [*(bytes(state.numpy()) for state in (torch.get_rng_state(), *cuda)), *map(pickle.dumps, others)]


def last_own(given: Mapping[str, Any], row: int, width: int) -> int:
    """The column of a row's last own id."""
    mask = given.get("attention_mask")
    if getattr(mask, "ndim", 0) != 2 or mask is None or mask.shape[1] != width:
        return -1
    return max((place for place, m in enumerate(mask[row].tolist()) if m), default=-1)


def read_by(past: Any) -> int:
    """How many ids of each row a cache holds: those of this release, or the tuples of old ones."""
    if hasattr(past, "get_seq_length"):
        return int(past.get_seq_length())
    return int(past[0][0].shape[-2]) if past else 0


def ids_in(config: Any, name: str) -> frozenset[int]:
    """One id or several that a model's config names, or none."""
    said = getattr(config, name, None)
    return frozenset(() if said is None else lists(said)[0])
