"""What taps note while a call runs, in order; assemble.py makes rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.record.rows import Fields, Placeholders

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template was rendered: one chat and one text per conversation."""

    chats: list[Any]
    texts: list[str]
    sha256: str
    arguments: Fields

    @property
    def stage(self) -> Fields:
        """As it stands in a row."""
        return {"sha256": self.sha256, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Texts became ids, padding left out."""

    texts: list[str]
    ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class Images:
    """Images went through an image processor, or clips through a video processor."""

    pictures: list[Fields]


@dataclass(frozen=True, slots=True)
class Decode:
    """Ids became text."""

    ids: list[list[int]]
    texts: list[str]
    how: Fields


@dataclass(frozen=True, slots=True)
class Params:
    """One request as vLLM received it.

    pictures: sha256 of each image that vLLM shows, in order, and of each clip.   folder: of the
    adapter that vLLM uses, "" for none.   uuids: of each of them the modality and the name, the
    caller's or vLLM's own.   structure: the structured output that is asked for.
    """

    params: Any
    prompt_ids: Ids = ()
    pictures: tuple[str, ...] = ()
    folder: str = ""
    uuids: tuple[tuple[str, str | None], ...] = ()
    structure: Fields = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForwardRow:
    """A row of what a model's forward is given.

    ids: without what the mask hides.   inputs: what came with them, as a row keeps it.   adapter: a
    fingerprint of the adapters that it went through.   whole: all ids, where the mask hides some.
    """

    ids: Ids
    inputs: Fields
    adapter: str = ""
    whole: Ids = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """What reached the model's forward in the first step of a batch."""

    rows: list[ForwardRow]


@dataclass(slots=True)
class Output:
    """A generated sequence before it is a row. Mutable: a custom decode loop goes on with it.

    whole: with its prompt and all padding, as decoding may get it.   reported: stages of the row
    that the library tells itself.   request: which request it answers, and that request's own seed.
    sampling, stop: where they are not those of the whole call.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    new_ids: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    batch: Fields = field(default_factory=dict)
    reported: Fields = field(default_factory=dict)
    request: Fields = field(default_factory=dict)
    sampling: Fields = field(default_factory=dict)
    stop: Fields = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a model. nested: inside an engine's call, which tells the rest."""

    outputs: list[Output]
    model: Fields
    sampling: Fields
    stop: Fields
    placeholders: Placeholders
    nested: bool = False


Event = Template | Tokens | Images | Decode | Params | Forward | ModelCall
Events = Sequence[Event]


def is_model_call(event: Event) -> bool:
    """Whether an event becomes rows."""
    return isinstance(event, ModelCall) and not event.nested
