"""What a golden holds, typed: a call, its rows, and of each row its prompt, settings and answer.

    old = Recording.of(store.read(site, case))       JSON becomes types here, and nowhere else
    old.rows[0].sampling.value("temperature")        as declared, or its neutral value
    old.to_json()                                    and back, for reports

Absent is None: what no library was seen to say. A name that a golden must not have is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from parity.golden import Case, GoldenError

Part = TypeVar("Part")
Json = Mapping[str, Any]

# What a setting is where nobody gave one.
NEUTRAL: Json = {
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
# How a loop of the code's own chose: the likeliest token, another one, another one whose last was never read.
LIKELIEST, CHOSEN, BUT_THE_LAST = "likeliest", "chosen", "chosen, all but the last"
STRUCTURED = "structured"  # the processor of any library for structured output
RENAMED = {"class": "architecture", "from": "source"}  # words of Python's own
BACK = {ours: theirs for theirs, ours in RENAMED.items()}


# == Parts of a row ==


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and who gave it: caller, checkpoint, default, process, script, nobody, below the engine."""

    value: Any
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a stage, by name. Of one that was not recorded, nothing is declared."""

    declared: Mapping[str, Setting] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.declared)

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def value(self, name: str) -> Any:
        """As declared; else the neutral value, None where a setting has none."""
        found = self.declared.get(name)
        return NEUTRAL.get(name) if found is None else found.value

    def values(self, name: str) -> tuple[Any, ...]:
        """The entries of a setting that is a list."""
        return tuple(self.value(name) or ())

    def source(self, name: str) -> str | None:
        found = self.declared.get(name)
        return None if found is None else found.source

    def is_neutral(self, name: str) -> bool:
        return bool(self.value(name) == NEUTRAL.get(name))

    def replace(self, **changes: Setting | None) -> Settings:
        """None takes a setting away."""
        kept = {**self.declared, **changes}
        return Settings({name: setting for name, setting in kept.items() if setting is not None})

    def to_json(self) -> dict[str, Any]:
        return {name: json_of(setting) for name, setting in self.declared.items()}


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template, and what it was given beside the chat."""

    sha256: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a prompt.   sha256: of its RGB pixels.   budget: (least, most) pixels.   values: sums of what the
    processor made.   blob: where its pixels are kept."""

    sha256: str | None = None
    size: Sequence[int] | None = None
    grid: Sequence[int] | None = None
    tokens: int | None = None
    budget: Sequence[int] | None = None
    values: Sequence[float] | None = None
    blob: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """Which request of its call a row answers, and what that one asked for by itself.

    number, sample: of the request, and of its samples.   response: how many ids are one that is scored.
    cut: which part of a text the ids are.   behind: how many stand behind it.   structure: form -> value.
    script_seed: that the script gave before this call.   process: the seed of random numbers that a loop took.
    answers: "another" where the answer is another request's.   cached: by a cache.   shared: computed once for two.
    labels: "none" where a loss was asked for of which no token counts.
    """

    number: int | None = None
    sample: int | None = None
    seed: int | None = None
    response: int | None = None
    cut: str | None = None
    behind: int | None = None
    structure: Json | None = None
    script_seed: int | None = None
    process: Setting | None = None
    answers: str | None = None
    cached: bool | None = None
    shared: bool | None = None
    adapter: str | None = None
    labels: str | None = None

    @property
    def is_anothers(self) -> bool:
        return self.answers == "another"


@dataclass(frozen=True, slots=True)
class Batch:
    """How a row was padded.   side: none, left or right.   pads: of this row."""

    rows: int | None = None
    side: str = "none"
    pads: int | None = None
    masked: bool = True


@dataclass(frozen=True, slots=True)
class Inputs:
    """What reached the model's forward with the ids.   marks: of token types.   hidden: own tokens that are masked."""

    keys: Sequence[str] = ()
    marks: str | None = None
    positions: str | None = None
    pictures: Sequence[Any] | None = None
    adapters: Sequence[str] | None = None
    hidden: int | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """What answered.   architecture: its class.   weights: of tensors in memory.   files: of those on disk."""

    architecture: str | None = None
    dtype: str | None = None
    buffers: str | None = None
    attention: str | None = None
    quantization: Any = None
    weights: str | None = None
    files: str | None = None
    path: str | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """How ids became text.   ids: which: "new", "ended" (without the one that ended it), "whole" (with the prompt)."""

    ids: str | None = None
    skip_special_tokens: bool | None = None
    clean_up: bool | None = None
    text: str | None = None


# == Rows ==


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence that a model generated or read, stage by stage. See parity.golden for each name."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    messages: Sequence[Json] | None = None
    template: Template | None = None
    prompt_text: str | None = None
    images: tuple[Image, ...] = ()
    request: Request = Request()
    scored: bool = False
    loop: str | None = None
    batch: Batch | None = None
    inputs: Inputs | None = None
    model: Model = Model()
    sampling: Settings = Settings()
    stop: Settings = Settings()
    decode: Decode | None = None
    text: str | None = None
    decodes: tuple[Decode, ...] = ()

    @classmethod
    def of(cls, row: Json) -> Row:
        """Raises GoldenError for a name that no row has."""
        known = {name: value for name, value in row.items() if value is not None}
        return part(cls, {name: READ[name](value) if name in READ else value for name, value in known.items()})

    def to_json(self) -> dict[str, Any]:
        return json_of(self)

    # -- what follows from these --

    @property
    def is_sampled(self) -> bool:
        """Whether tokens were sampled, and not the likeliest taken."""
        return bool(self.sampling and self.sampling.value("temperature"))

    @property
    def is_own_loop(self) -> bool:
        """Whether the code called the model by itself, and not its `generate`."""
        return bool(self.loop or self.scored)

    @property
    def has_no_ids(self) -> bool:
        """Whether a model was given embeddings: which ids they stand for is not known."""
        return not self.prompt_ids

    @property
    def begins_call(self) -> bool:
        """Whether a row is the first of a call of the model, or of a loop, of which each row is one."""
        return not self.request.number and not self.request.sample

    @property
    def texts(self) -> tuple[Decode, ...]:
        """Each time that the row's ids became text."""
        if self.decodes:
            return self.decodes
        return (dataclasses.replace(self.decode or Decode(), text=self.text),)

    @property
    def seeds(self) -> set[int]:
        """The seed that a row was given: that of its request, or, of one of several samples, its own."""
        own = self.sampling.value("seed") if self.sampling.source("seed") != "nobody" else None
        return {seed for seed in (self.request.seed, own) if seed is not None}

    @property
    def processors(self) -> tuple[str, ...]:
        """What else is done to the logits, by name."""
        return self.sampling.values("processors")

    @property
    def adapters(self) -> tuple[str, ...]:
        """What a row says of its adapters: their fingerprints, or the folder that it asked for."""
        prints = self.inputs.adapters or () if self.inputs else ()
        known = tuple(sorted({one for one in prints if one}))
        asked = self.request.adapter
        return known or ((asked,) if asked and asked != "another" else ())

    @property
    def placeholder(self) -> int | None:
        """The id that stands for images: the one whose runs are as long as the images have tokens."""
        tokens = [image.tokens for image in self.images]
        if not tokens:
            return None
        return next((i for i in dict.fromkeys(self.prompt_ids) if runs(self.prompt_ids, i) == tokens), None)

    @property
    def prompt(self) -> tuple[int, ...]:
        """The ids of the prompt, each image as one."""
        return collapsed(self.prompt_ids, self.placeholder)

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[str | None, ...]]:
        """What a row is asked: prompt and images."""
        return self.prompt, tuple(image.sha256 for image in self.images)


def collapsed(ids: Sequence[int], placeholder: int | None) -> tuple[int, ...]:
    """Ids with each run of image tokens as one."""
    if placeholder is None:
        return tuple(ids)
    return tuple(i for k, i in enumerate(ids) if i != placeholder or k == 0 or ids[k - 1] != placeholder)


def runs(ids: Sequence[int], placeholder: int) -> list[int]:
    """How long each run of image tokens is."""
    found: list[int] = []
    for k, i in enumerate(ids):
        if i != placeholder:
            continue
        if k and ids[k - 1] == placeholder:
            found[-1] += 1
        else:
            found.append(1)
    return found


# == JSON ==


def part(kind: type[Part], entries: Json) -> Part:
    """A typed part of a row. Raises GoldenError for a name that it has not."""
    named = {RENAMED.get(name, name): value for name, value in entries.items()}
    known = {own.name for own in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if strange := sorted(named.keys() - known):
        raise GoldenError(f"{kind.__name__.lower()}: {strange[0]!r} is nothing that it has; record it again")
    return kind(**named)


def settings_of(entries: Json) -> Settings:
    return Settings({name: part(Setting, entry) for name, entry in entries.items() if entry is not None})


def request_of(entries: Json) -> Request:
    process = entries.get("process")
    return part(Request, entries if process is None else {**entries, "process": part(Setting, process)})


READ: dict[str, Any] = {
    "template": lambda entries: part(Template, entries),
    "images": lambda entries: tuple(part(Image, entry) for entry in entries),
    "request": request_of,
    "batch": lambda entries: part(Batch, entries),
    "inputs": lambda entries: part(Inputs, entries),
    "model": lambda entries: part(Model, entries),
    "sampling": settings_of,
    "stop": settings_of,
    "decode": lambda entries: part(Decode, entries),
    "decodes": lambda entries: tuple(part(Decode, entry) for entry in entries),
}


def json_of(value: Any) -> Any:
    """A typed part as a golden holds it: without what is absent."""
    if isinstance(value, Settings):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        own = ((f.name, json_of(getattr(value, f.name))) for f in dataclasses.fields(value))
        return {BACK.get(name, name): entry for name, entry in own if not is_absent(name, entry)}
    return [json_of(entry) for entry in value] if isinstance(value, tuple) else value


def is_absent(name: str, entry: Any) -> bool:
    """Whether a part of a row says nothing; a setting that is nothing says so, and so do ids."""
    if name in ("value", "prompt_ids", "output_ids"):
        return False
    return entry is None or entry is False and name == "scored" or (entry in ([], {}) and name in READ)


# == A call ==


@dataclass(frozen=True)
class Recording:
    """One call of a call site: its arguments, its rows, and what it returned or raised. See golden.Case."""

    site: str
    case: str
    function: str = ""
    arguments: Json = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    value: Any = None
    raised: str | None = None
    repeats: bool | None = None
    changing: tuple[Json, ...] = ()
    samples: tuple[Any, ...] = ()
    environment: str = ""

    @classmethod
    def of(cls, case: Case) -> Recording:
        """Raises GoldenError for what is no recording."""
        own = {f.name: getattr(case, f.name) for f in dataclasses.fields(case)}
        return cls(**{**own, "rows": tuple(Row.of(row) for row in case.rows)})

    def to_json(self) -> dict[str, Any]:
        """As a golden's file holds it."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Case(**{**own, "rows": tuple(row.to_json() for row in self.rows)}).to_json()

    @property
    def is_sampled(self) -> bool:
        return any(row.is_sampled for row in self.rows)

    @property
    def has_own_loop(self) -> bool:
        """Whether the code chose tokens by itself: by which settings was not seen."""
        return any(row.loop for row in self.rows)

    @property
    def backend(self) -> str:
        return str(self.rows[0].model.backend or "hf") if self.rows else "hf"

    @property
    def stop_strings(self) -> set[str]:
        """Stop strings that the library was given."""
        return {text for row in self.rows for text in row.stop.values("strings")}

    @property
    def raised_type(self) -> str | None:
        return None if self.raised is None else self.raised.partition(":")[0]
