"""The words of a row that the recorder writes and the judge reads.

A row is one sequence that a model generated, stage by stage; parity.goldens.store lists its keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# How a custom decode loop chose the ids of its row. The loop never feeds its last id to the model:
# that id is known only where all ids were the likeliest, or where all were decoded.
LIKELIEST = "likeliest"
CHOSEN = "chosen"
BUT_THE_LAST = "chosen, all but the last"
CHOSEN_BY_ITSELF = {CHOSEN, BUT_THE_LAST}

STRUCTURED = "structured"  # the logits processor of structured output, whichever library applies it

# Settings that change nothing.
NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "n": 1,
    "processors": [],
}

PENALTIES = ("presence_penalty", "frequency_penalty")  # vLLM's own
MASKS = ("allowed_token_ids", "bad_words", "logit_bias")  # likewise
# What a plugin may say of itself, and other code may do in another way.
PLUGIN_SETTINGS = (*PENALTIES, *MASKS, "repetition_penalty", "thinking_budget")
PLUGIN_STOPS = ("answer_strings",)  # likewise, of a row's stop

Row = Mapping[str, Any]
Fields = dict[str, Any]  # a part of a row


def sourced(value: Any, source: str) -> Fields:
    """A setting and who set it: caller, checkpoint or default."""
    return {"value": value, "from": source}


def by_caller(value: Any) -> Fields:
    """A setting that only a caller makes true."""
    return sourced(value, "caller" if value else "default")


def by_itself(row: Row) -> bool:
    """Whether the code called the model by itself, and not its `generate`."""
    return bool(row.get("loop") or row.get("scored"))


def given_no_ids(row: Row) -> bool:
    """Whether a model was given embeddings: which ids they stand for is not known."""
    return not row["prompt_ids"]


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The ids of image tokens and of video tokens; None where a model has none."""

    image: int | None = None
    clip: int | None = None

    def places(self, ids: Sequence[int]) -> list[tuple[int | None, range]]:
        """The token of each image and clip among ids, and which ids are its own."""
        found = [(self.image, place) for place in runs(ids, self.image)]
        found += [(self.clip, place) for place in clip_places(ids, self.clip)]
        return sorted(found, key=lambda one: one[1].start)


def collapsed(ids: Sequence[int], placeholders: Placeholders) -> tuple[int, ...]:
    """Ids with each image and each clip as one."""
    kept = list[Any]()
    begin = 0
    for token, place in placeholders.places(ids):
        kept += [*ids[begin : place.start], token]
        begin = place.stop
    return (*kept, *ids[begin:])


def runs(ids: Sequence[int], token: int | None) -> list[range]:
    """Where each run of a token stands."""
    found = list[range]()
    begin = 0
    for one, run in itertools.groupby(ids):
        end = begin + len([*run])
        if one == token:
            found.append(range(begin, end))
        begin = end
    return found


def clip_places(ids: Sequence[int], token: int | None) -> list[range]:
    """Where each clip stands: all between the outermost markers around its tokens, for Qwen3-VL
    writes the times of its frames between these, in markers of their own."""
    single = runs(ids, token)
    if not single or not single[0].start or single[-1].stop == len(ids):
        return single
    opens = ids[single[0].start - 1]
    closes = ids[single[0].stop]
    found = list[range]()
    begins = list[int]()
    for index, one in enumerate(ids):
        if one == opens:
            begins.append(index + 1)
        elif one == closes and begins:
            begin = begins.pop()
            if not begins and token in ids[begin:index]:
                found.append(range(begin, index))
    return found


STOP_WORDS = ("stop", "termin", "end", "until", "delim")


def string_lists(arguments: Any, name: str = "") -> Iterator[tuple[str, ...]]:
    """Arguments that may be stop strings, at any depth: strings or lists of strings whose name, or
    the name of what holds them, says so."""
    named = says_stop(name)
    if isinstance(arguments, Mapping):
        for key, value in arguments.items():
            inner = f"{name}.{key}" if named else str(key)
            yield from string_lists(value, inner)
        return
    strings = [arguments] if isinstance(arguments, str) else arguments
    if not isinstance(strings, (list, tuple)):
        return
    if named and are_texts(strings):
        yield tuple(strings)
        return
    for part in strings:
        if not isinstance(part, str):
            yield from string_lists(part, name)


def says_stop(name: str) -> bool:
    return any(word in name.lower() for word in STOP_WORDS)


def are_texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(text, str) and text for text in values)
