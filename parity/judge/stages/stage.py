"""What a stage of a call is to the judge: one object per stage, in the file of its name.

compare      what differs of one pair of rows
compare_all  what differs over all pairs of a case, such as seeds or the order of answers
weigh        a difference in the light of the whole case: with other `counts`, or None for none
invariants   what the output must be, by plain libraries
across       invariants that one row alone does not show
restore      name -> what a counterfactual run puts back among the options of a call
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parity.goldens.store import Case
from parity.goldens.verdict import Difference
from parity.judge.row import Row

Decoder = Callable[[Sequence[int], bool, bool], str]  # ids, skip_special_tokens, clean_up -> text

# (cause, sentence) where the invariant is broken, KEPT where it is kept, None where its input was
# not recorded: what was not seen is not kept.
Kept = tuple[str, str] | None
KEPT: Kept = ("", "")


@dataclass(frozen=True, slots=True)
class Tools:
    """The plain libraries on the golden's checkpoint. None: not here, so nothing is said."""

    decode: Decoder | None = None
    encode: Callable[[str, bool], Sequence[int]] | None = None  # text, add_special_tokens
    render: Callable[[Any, Mapping[str, Any]], str] | None = (
        None  # messages, arguments of the template
    )
    template: str = ""  # sha256 of the checkpoint's


NO_TOOLS = Tools()


class Compared(Protocol):
    """What a stage may ask of the whole comparison (parity/judge/comparison.py)."""

    @property
    def old(self) -> Case: ...
    @property
    def new(self) -> Case: ...
    @property
    def tools(self) -> Tools: ...
    @property
    def pairs(self) -> Sequence[tuple[Row, Row]]: ...
    @property
    def behind(self) -> frozenset[int]: ...
    @property
    def read_for_asked(self) -> frozenset[int]: ...
    @property
    def has_as_many_rows(self) -> bool: ...
    @property
    def has_same_value(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that the new side alone breaks.   cause: its name.   place: of the stage in
    verdict.STAGES."""

    law: str
    cause: str
    sentence: str
    row: int
    place: str


def was_kept(before: Kept, found: tuple[str, str], old: Row, new: Row) -> bool:
    return before == KEPT


@dataclass(frozen=True, slots=True)
class Invariant:
    """What holds of one row.   place: its name in verdict.STAGES.   check: of what was observed,
    computed by the plain libraries.   is_new: of what was found of the old row, and of what the new
    one breaks, whether only the new one does."""

    name: str
    place: str
    check: Callable[[Row, Tools], Kept]
    is_new: Callable[[Kept, tuple[str, str], Row, Row], bool] = was_kept


# == What a run puts back ==

Restore = Callable[[Mapping[str, Any], Row], dict[str, Any]]


def as_fields(options: Any) -> dict[str, Any]:
    """GenerationOptions, or a mapping of its fields, as a mapping."""
    if options is None:
        return {}
    if isinstance(options, Mapping):
        return dict(options)
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}


def merged(options: Mapping[str, Any], name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options with some fields of one of their parts (stop, decode) changed."""
    part = options.get(name)
    fields = {"strings": part} if isinstance(part, (str, list, tuple)) else as_fields(part)
    return {**options, name: {**fields, **changes}}


# == The stage ==


def nothing(*compared: Any) -> Iterator[Any]:
    return iter(())


def as_it_is(difference: Difference, comparison: Compared) -> Difference | None:
    return difference


@dataclass(frozen=True)
class Stage:
    """One stage.   fields: the names of verdict.STAGES that are its own."""

    fields: tuple[str, ...]
    compare: Callable[[Row, Row], Iterator[Difference]] = nothing
    compare_all: Callable[[Compared], Iterator[Difference]] = nothing
    weigh: Callable[[Difference, Compared], Difference | None] = as_it_is
    invariants: tuple[Invariant, ...] = ()
    across: Callable[[Compared], Iterator[Broken]] = nothing
    restore: Mapping[str, Restore] = field(default_factory=dict)
