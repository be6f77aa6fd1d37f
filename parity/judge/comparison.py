"""Two recordings of one case, compared: pairs, differences, broken invariants, each derived once.

comparison = Comparison(old, new, tools_of(old))
comparison.differences      everything that differs, in the order of time
comparison.named            the first difference of each cause, up to the model's ids
comparison.broken           invariants that the new side breaks and the old side keeps

Time is the order of the calls of a case, and within a call that of the stages. A prompt behind an
answer that differs may hold that answer: it counts only where the golden's ids are forced on the
new code, so that no answer differs any more.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from parity.goldens.store import Case
from parity.goldens.verdict import STAGES, Difference, equal
from parity.judge.align import has_same_ids, paired
from parity.judge.row import Pairs, Row, calls_of, reads_what_is_asked, same_prompt, unseen
from parity.judge.stages import order
from parity.judge.stages.batch import identity
from parity.judge.stages.prompt import STAGE as PROMPT
from parity.judge.stages.stage import KEPT, NO_TOOLS, Broken, Invariant, Stage, Tools
from parity.judge.values import leaves

Named = tuple[str, Difference]  # a cause, and the first difference of that name

AFTER_THE_MODEL = ("output_ids", "decode", "text", "value")
BESIDE = ("request", "inputs", "decodes")  # which invariants read; no stages for a reader
OF_PROMPTS = {invariant.name for invariant in PROMPT.invariants}


@dataclass(frozen=True)
class Comparison:
    """Two recordings of one case.   found: differences that stand in place of those that are
    computed.   is_forced: the new side was given the golden's ids."""

    old: Case
    new: Case
    tools: Tools = NO_TOOLS
    found: tuple[Difference, ...] | None = None
    is_forced: bool = False

    @functools.cached_property
    def pairs(self) -> Pairs:
        return paired(self.old.rows, self.new.rows)

    @functools.cached_property
    def calls(self) -> list[int]:
        """The number of the call that each pair is of."""
        return calls_of(self.pairs)

    @functools.cached_property
    def first_call(self) -> int | None:
        """Of the calls in which an answer differs the first."""
        differ = (call for call, pair in zip(self.calls, self.pairs) if is_other_answer(*pair))
        return min(differ, default=None)

    @functools.cached_property
    def behind(self) -> frozenset[int]:
        """Numbers of the pairs whose prompts differ, and may follow from an answer that differs."""
        if self.is_forced or self.first_call is None:
            return frozenset()
        found = set()
        for number, pair in enumerate(self.pairs):
            if self.calls[number] > self.first_call and not same_prompt(*pair):
                found.add(number)
        return frozenset(found)

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
        numbers = (number for _, number in leaves(self.old.value, kind=float))
        if not self.has_same_value or all(number.is_integer() for number in numbers):
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
            if self.is_forced and "sampling" in stage.fields:
                continue  # forced ids are not sampled, whatever the settings
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

    def _order(self, difference: Difference) -> tuple[int, int, int]:
        """By call, stage and row; what is of no row comes last."""
        place = STAGES.index(difference.stage)
        if difference.row is None or difference.row >= len(self.calls):
            return len(self.calls), place, 0
        return self.calls[difference.row], place, difference.row

    @functools.cached_property
    def named(self) -> list[Named]:
        """In the order of time; of stages up to the model's ids only. What does not count is named
        behind what does."""
        found: dict[str, Difference] = {}
        for counts in (True, False):
            for difference in self.differences:
                is_upstream = difference.row is not None and is_before_ids(difference)
                if is_upstream and difference.counts == counts:
                    found.setdefault(difference.name, difference)
        return [(name, one) for name, one in found.items() if one.counts or can_be_cause(one)]

    @functools.cached_property
    def counted(self) -> list[Named]:
        """Those that fail a strict check by themselves."""
        return [(name, difference) for name, difference in self.named if difference.counts]

    @functools.cached_property
    def broken(self) -> list[Broken]:
        """What the new side breaks and the old side keeps, in the order of the stages."""
        found: list[Broken] = []
        for stage in order.ALL:
            for law in stage.invariants:
                found += self._broken(law)
        for stage in order.ALL:
            found += stage.across(self)
        return sorted(found, key=lambda one: STAGES.index(one.place))

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


def agreement(comparison: Comparison) -> list[str]:
    """What is the same, and the first difference: for `explain`, one line each."""
    lines = []
    found = comparison.differences
    left_out = {*BESIDE, *(difference.stage for difference in found)}
    present = dict.fromkeys(key for old, _ in comparison.pairs for key in old)
    same = [key for key in present if key not in left_out]
    if same:
        lines.append(f"the same on both sides: {', '.join(same)}")
    counted = [difference for difference in found if difference.counts] or found
    if counted:
        lines.append(f"first difference: {counted[0].sentence()}")
    return lines


def is_before_ids(difference: Difference) -> bool:
    return difference.stage not in AFTER_THE_MODEL


def can_be_cause(difference: Difference) -> bool:
    """Of one that fails nothing by itself: a prompt that led to the same ids is none."""
    return difference.stage not in PROMPT.fields


def is_other_answer(old: Row, new: Row) -> bool:
    """Whether what a call answered is seen, and differs: its ids, or what they became."""
    if unseen(old, new):
        return False
    return old["output_ids"] != new["output_ids"] or old.get("text") != new.get("text")
