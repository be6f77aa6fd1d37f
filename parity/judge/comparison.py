"""Two recordings of one case, compared: pairs, differences, broken invariants, each derived once.

comparison = Comparison(old, new, tools_of(old))
comparison.differences      everything that differs, in causal order
comparison.suspects         (cause, first difference that stands for it)
comparison.broken           invariants that the new side breaks and the old side keeps
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import STAGES, Difference, equal
from parity.judge.align import has_same_ids, paired
from parity.judge.endings import is_within_some, leaves, texts_apart, texts_kept
from parity.judge.followers import HeldTexts, followers
from parity.judge.row import Pairs, calls_of, reads_what_is_asked
from parity.judge.stages import order
from parity.judge.stages.identity import identity
from parity.judge.stages.prompt import PROMPT_STAGES
from parity.judge.stages.prompt import STAGE as PROMPT
from parity.judge.stages.stage import KEPT, NO_TOOLS, Broken, Invariant, Stage, Tools

Named = tuple[str, Difference]  # a cause, and the first difference that stands for it

AFTER_THE_MODEL = ("output_ids", "decode", "text", "value")
OF_PROMPTS = {invariant.name for invariant in PROMPT.invariants}


@dataclass(frozen=True)
class Comparison:
    """Two recordings of one case.   found: differences that stand in place of those that are
    computed."""

    old: Case
    new: Case
    tools: Tools = NO_TOOLS
    found: tuple[Difference, ...] | None = None

    @functools.cached_property
    def pairs(self) -> Pairs:
        return paired(self.old.rows, self.new.rows)

    @functools.cached_property
    def followers(self) -> dict[int, HeldTexts]:
        kept = texts_kept(self.old.value, self.new.value)
        changed = []
        for old, new in texts_apart(self.old.value, self.new.value):
            if not is_within_some(old.strip(), kept):  # else the old one may be what was asked with
                changed.append((old, new))
        return followers(self.pairs, changed)

    @property
    def has_as_many_rows(self) -> bool:
        return len(self.old.rows) == len(self.new.rows)

    @functools.cached_property
    def has_same_ids(self) -> bool:
        return self.has_as_many_rows and has_same_ids(self.pairs)

    @functools.cached_property
    def has_same_value(self) -> bool:
        return equal(self.old.value, self.new.value)

    @functools.cached_property
    def read_for_asked(self) -> frozenset[int]:
        """Pairs of which one side reads the token that the other asks for, where numbers among the
        values, which that token would move, are equal."""
        if not self.has_same_value or not holds_numbers(self.old.value):
            return frozenset()
        found = set()
        for number, (old, new) in enumerate(self.pairs):
            if reads_what_is_asked(old, new) or reads_what_is_asked(new, old):
                found.add(number)
        return frozenset(found)

    @functools.cached_property
    def differences(self) -> tuple[Difference, ...]:
        if self.found is not None:
            return self.found
        return tuple(sorted(self._compared(), key=self._order))

    def _compared(self) -> Iterator[Difference]:
        for stage in order.ALL:
            for difference in self._compared_by(stage):
                weighed = stage.weigh(difference, self)
                if weighed is not None:
                    yield weighed

    def _compared_by(self, stage: Stage) -> Iterator[Difference]:
        """What differs of each pair, then what differs over all of them."""
        for number, pair in enumerate(self.pairs):
            for difference in stage.compare(*pair):
                yield replace(difference, row=number)
        yield from stage.compare_all(self)

    @functools.cached_property
    def _calls(self) -> list[int]:
        return calls_of(self.pairs)

    def _order(self, difference: Difference) -> tuple[int, int, int]:
        """By stage, then by row; prompts by the call that they are of, as later ones may hold
        earlier answers."""
        place = STAGES.index(difference.stage)
        if difference.stage in PROMPT_STAGES and difference.row is not None:
            return 0, self._calls[difference.row], place
        return place, difference.row or 0, 0

    @functools.cached_property
    def suspects(self) -> list[Named]:
        """In causal order; stages up to the model's ids only."""
        named: dict[str, Difference] = {}
        for difference in self.differences:
            if difference.row is None or difference.stage in AFTER_THE_MODEL:
                continue
            if not difference.counts and difference.stage in PROMPT_STAGES:
                continue
            stage = order.OF_FIELD[difference.stage]
            pair = self.pairs[difference.row]
            named.setdefault(stage.cause(difference, *pair, self.tools), difference)
        return list(named.items())

    @functools.cached_property
    def counted(self) -> list[Named]:
        """Suspects that fail a strict check by themselves."""
        return [(name, difference) for name, difference in self.suspects if difference.counts]

    @functools.cached_property
    def broken(self) -> list[Broken]:
        """What the new side breaks and the old side keeps, in the order of the stages."""
        found: list[Broken] = []
        for stage in order.ALL:
            for law in stage.invariants:
                found += self._broken(law)
        for stage in order.ALL:
            found += stage.across(self)
        return found

    def _broken(self, law: Invariant) -> Iterator[Broken]:
        """The first row that breaks it."""
        for number, (old, new) in enumerate(self.pairs):
            if law.name in OF_PROMPTS and identity(new, self.tools) not in (None, KEPT):
                continue  # its stages are those of one request, its ids those of another
            found = law.check(new, self.tools)
            if found in (None, KEPT):
                continue
            if law.is_new(law.check(old, self.tools), found, old, new):
                yield Broken(law.name, *found, number, law.place)
                return


def holds_numbers(value: Any) -> bool:
    """Whether a value holds numbers such as a model says."""
    return any(not number.is_integer() for _, number in leaves(value, kind=float))
