"""What taps note while a call runs, in order; assemble.py makes rows of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template was rendered: one chat and one text per conversation."""

    chats: list[Any]
    texts: list[str]
    sha256: str
    arguments: dict[str, Any]

    @property
    def stage(self) -> dict[str, Any]:
        """As it stands in a row."""
        return {"sha256": self.sha256, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Texts became ids, padding left out."""

    texts: list[str]
    ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class Images:
    """Images went through an image processor."""

    pictures: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Decode:
    """Ids became text."""

    ids: list[list[int]]
    texts: list[str]
    how: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Params:
    """One request as vLLM received it.

    pictures: sha256 of each image that vLLM shows, in order.   folder: of the adapter that vLLM
    uses, "" for none.   uuids: the names of its images, the caller's or vLLM's own.   structure:
    the structured output that is asked for.
    """

    params: Any
    prompt_ids: Ids = ()
    pictures: tuple[str, ...] = ()
    folder: str = ""
    uuids: tuple[str | None, ...] = ()
    structure: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForwardRow:
    """A row of what a model's forward is given.

    ids: without what the mask hides.   inputs: what came with them, as a row keeps it.   adapter: a
    fingerprint of the adapters that it went through.   whole: all ids, where the mask hides some.
    """

    ids: Ids
    inputs: dict[str, Any]
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
    batch: dict[str, Any] = field(default_factory=dict)
    reported: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    stop: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a model. nested: inside an engine's call, which tells the rest."""

    outputs: list[Output]
    model: dict[str, Any]
    sampling: dict[str, Any]
    stop: dict[str, Any]
    placeholder: int | None
    nested: bool = False


Event = Template | Tokens | Images | Decode | Params | Forward | ModelCall


def is_model_call(event: Event) -> bool:
    """Whether an event becomes rows."""
    return isinstance(event, ModelCall) and not event.nested
