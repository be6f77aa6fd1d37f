"""One case, and what further runs of the new code say of it, each with one thing changed.

    inquiry.forced()                 the golden's ids are forced
    inquiry.run({}, {ALONE})         each request by itself;  {UNCACHED}: nothing from a cache
    inquiry.by_put_back()            one setting, or one input, as it was

A run takes place once, for all that ask for it. What it restores it proves: "the old ids come
back" is said of the call in which they differ first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.goldens.causes import named as entry_of
from parity.goldens.store import Case
from parity.goldens.verdict import Cause, Certainty, Difference, brief, equal
from parity.judge.align import has_same_ids, paired, same_ids
from parity.judge.comparison import Comparison, Named
from parity.judge.naming import difference_cause
from parity.judge.numerics.numbers import number_gap
from parity.judge.numerics.weights import in_float32, most_rounding
from parity.judge.replay import ANSWERS
from parity.judge.row import (
    Pairs,
    calls_of,
    end_ids,
    entry,
    is_drawn,
    model_in,
    parting_step,
    prompt_of,
    seeds_of,
)
from parity.judge.stages.stage import Decoder
from parity.judge.tools import checkpoint_of
from parity.record.rows import BUT_THE_LAST

Parts = frozenset[str]
Rerun = Callable[[Mapping[str, Any], Parts], Case | None]  # load settings, parts put back -> what
# comes out; None where the case cannot be run so

ON_BOTH = {"dtype", "model"}  # load settings that every backend has
FEWEST_TIMES = 4  # what rounding may do: further than this from the golden's, numbers are others
REMEMBERS = "the new code gives out answers that it kept"
NOT_BACK = "putting it back alone does not bring the old answer back"


@dataclass(frozen=True)
class PutBack:
    """What would undo one difference alone.   load: load settings.   parts: of requests."""

    name: str
    difference: Difference
    load: Mapping[str, Any]
    parts: Parts

    @property
    def what(self) -> str:
        return " and ".join(sorted(self.parts)) or ", ".join(self.load)


@dataclass
class Inquiry:
    """steps: for `explain`, one line each.   untried: cause -> why no run with its old value took
    place.   runs: those that took place."""

    comparison: Comparison
    rerun: Rerun | None = None
    steps: list[str] = field(default_factory=list)
    untried: dict[str, str] = field(default_factory=dict)
    runs: dict[tuple[str, Parts], Case | None] = field(default_factory=dict)

    @property
    def old(self) -> Case:
        return self.comparison.old

    @property
    def new(self) -> Case:
        return self.comparison.new

    @property
    def decode(self) -> Decoder | None:
        return self.comparison.tools.decode

    @property
    def pairs(self) -> Pairs:
        return self.comparison.pairs

    def run(self, load: Mapping[str, Any], parts: Iterable[str]) -> Case | None:
        if self.rerun is None:
            return None
        key = repr(sorted(load.items())), frozenset(parts)
        if key not in self.runs:
            again = self.rerun(load, key[1])
            is_changed = bool(load or key[1])
            if again is not None and is_changed and self.is_from_memory(again):
                changed = ", ".join([*sorted(key[1]), *load])
                self.steps.append(f"a run with the old {changed} says nothing: {REMEMBERS}")
                again = None
            self.runs[key] = again
        return self.runs[key]

    def is_from_memory(self, again: Case) -> bool:
        """Whether a run gives what the first run of the same code gave, and asks but a part of what
        that one asked: its answers were kept, and the run shows them."""
        asked, asked_again = (set(map(prompt_of, case.rows)) for case in (self.new, again))
        return asked_again < asked and equal(again.value, self.new.value)

    def forced(self) -> Case | None:
        """The new code, given the golden's ids; None where that cannot be done."""
        if any(row.get("loop") == BUT_THE_LAST for row in self.old.rows):
            return None
        found = self.run({}, {ANSWERS})
        if found is None or found.raised is not None:
            return None
        is_given = all(is_given_part(old, new) for old, new in paired(self.old.rows, found.rows))
        return found if is_given else None

    def restores(self, again: Case | None, by_ids: bool = True) -> bool:
        """Whether a run gives the old value, or the old ids up to the call in which they differ
        first.   by_ids: not of stops that the old code may have cut at by hand, where equal ids
        prove nothing."""
        if again is None or again.raised is not None:
            return False
        if equal(self.old.value, again.value) or self._is_nearer(again):
            return True
        is_answered = any(row["output_ids"] for row in self.old.rows)
        if not by_ids or not is_answered or self.comparison.has_same_ids:
            return False
        return same_ids(self.old, again) or self._restores_first_call(again)

    def _is_nearer(self, again: Case) -> bool:
        """Whether a run's numbers, which alone differ, are the golden's but for rounding, and those
        of the first run are not."""
        most = most_rounding(self.old, again)
        gap = number_gap(self.old.value, again.value)
        if gap is None or gap > most:
            return False
        before = number_gap(self.old.value, self.new.value)
        return before is None or before > FEWEST_TIMES * max(gap, most)

    def _restores_first_call(self, again: Case) -> bool:
        differ = (
            call
            for call, (old, new) in zip(self.comparison.calls, self.pairs)
            if old["output_ids"] != new["output_ids"]
        )
        first = min(differ, default=None)
        if first is None:
            return False
        pairs = paired(self.old.rows, again.rows)
        head = [pair for call, pair in zip(calls_of(pairs), pairs) if call <= first]
        return len(head) < len(pairs) and has_same_ids(head)

    @property
    def may_be_luck(self) -> bool:
        """Whether answers that differ are drawn without a seed: that the old ones come back may be
        luck, which says nothing of a difference behind the first."""
        apart = [pair for pair in self.pairs if pair[0]["output_ids"] != pair[1]["output_ids"]]
        rows = [row for pair in apart or self.pairs for row in pair]
        return any(is_drawn(row) and not seeds_of(row) for row in rows)

    # -- one old value at a time --

    def by_put_back(self) -> Cause | None:
        """The first difference whose old value alone brings the old answer back; or the fewest that
        do together."""
        if self.rerun is None or not self.new.rows:
            return None
        possible = []
        for name, difference in self.comparison.named:
            if is_of_read_prompt(difference, self.pairs):
                self.untried[name] = "a prompt that is only read cannot be put back"
            elif self.is_possible(difference):
                possible.append((name, difference))
        if self.may_be_luck:
            possible = [(name, one) for name, one in possible if one.counts][:1]
        known = put_backs(possible, self.old, backend_of(self.new))
        for one in known:
            again = self.run(one.load, one.parts)
            if self.restores(again, by_ids=one.difference.counts):
                certainty, proof = self.proof_of(one, again)
                return difference_cause(certainty, one.difference, proof)
            self.note_failure(one, again)
        return self.together(known)

    def proof_of(self, one: PutBack, again: Case | None) -> tuple[Certainty, str]:
        """A later prompt may only hold what was made of an earlier answer: where the value differs
        still, it is likely."""
        back = f"with the old {one.what} put back"
        if self.may_be_luck:
            return "likely", f"{back}, the old answer comes back, which may be luck"
        if again is None or equal(self.old.value, again.value):
            return "confirmed", f"{back}, the old answer comes back"
        if self._is_nearer(again):
            sure: Certainty = "confirmed" if in_float32(self.old, self.new) else "likely"
            return sure, f"{back}, the old numbers come back, but for rounding"
        call = self.comparison.calls[one.difference.row or 0]
        is_later = bool(call) and one.name.startswith("prompt.")
        found: Certainty = "likely" if is_later else "confirmed"
        return found, f"{back}, the old ids come back, and not the value"

    def note_failure(self, one: PutBack, again: Case | None) -> None:
        if why := no_run(again, self):
            self.untried[one.name] = why
            self.steps.append(f"putting {one.name} back was not tried, because {why}")
        else:
            self.steps.append(f"not {one.name} alone: {NOT_BACK}")

    def together(self, known: Sequence[PutBack]) -> Cause | None:
        """Those that only together bring the old answer back: the first k, for the least k."""
        if len(known) < 2 or not self.is_back(known):
            return None
        counts = range(2, len(known) + 1)
        least = counts[bisect_left(counts, True, key=lambda k: self.is_back(known[:k]))]
        names = ", ".join(one.name for one in known[:least])
        proof = f"only {names} together, put back, bring the old answer back"
        return difference_cause("confirmed", known[0].difference, proof)

    def is_back(self, known: Sequence[PutBack]) -> bool:
        load: dict[str, Any] = {}
        parts: set[str] = set()
        for one in known:
            load.update(one.load)
            parts.update(one.parts)
        by_ids = all(one.difference.counts for one in known)
        return self.restores(self.run(load, parts), by_ids)

    def why_untried(self, name: str) -> str:
        """Why no run with a difference's old value took place; "" if one did."""
        if self.rerun is None:
            return "the case cannot be run again"
        if name in self.untried:
            return self.untried[name]
        of_any = Difference("value", "", None, None)
        known = put_backs([(name, of_any)], self.old, backend_of(self.new))
        return "" if known else "nothing does so"

    def is_possible(self, difference: Difference) -> bool:
        """Whether a difference can be the cause at all: other ends can't make a model choose
        another word at a step where neither side ends; but samples part there by chance."""
        if difference.stage != "stop":
            return True
        for old, new in self.pairs:
            if is_drawn(old) and is_drawn(new) and seeds_of(old).isdisjoint(seeds_of(new)):
                continue
            before = old["output_ids"]
            after = new["output_ids"]
            step = parting_step(before, after)
            # An end may be held back by a least number of tokens.
            ends = {*end_ids(old), *end_ids(new)}
            if step is not None and ends.isdisjoint((before[step], after[step])):
                where = f"at step {step}, where the ids part, neither token is an end"
                self.steps.append(f"not {difference.name}: {where}")
                return False
        return True


def is_of_read_prompt(difference: Difference, pairs: Pairs) -> bool:
    is_prompt = difference.name.startswith("prompt.")
    return is_prompt and bool(pairs[difference.row or 0][0].get("scored"))


def backend_of(case: Case) -> str:
    return str(model_in(case.rows[0]).get("backend", "hf")) if case.rows else "hf"


def old_load(old: Case) -> dict[str, Any]:
    """Load settings of the old code, by what the table of causes calls them behind "load."."""
    model = model_in(old.rows[0]) if old.rows else {}
    return {
        "dtype": model.get("dtype"),
        "model": checkpoint_of(old),
        "hf_kwargs": {},
        "attn_implementation": model.get("attention"),
        "max_batch_size": 1,
    }


def put_backs(named: Sequence[Named], old: Case, backend: str) -> list[PutBack]:
    """Of differences that one run would undo, one."""
    settings = old_load(old)
    found: dict[Any, PutBack] = {}
    for name, difference in named:
        load = {}
        parts = set()
        for part in entry_of(name).put_back:
            if part.startswith("load."):
                key = part.removeprefix("load.")
                load[key] = settings[key]
            else:
                parts.add(part)
        can_be_loaded = backend == "hf" or load.keys() <= ON_BOTH
        if can_be_loaded and (load or parts):
            run = repr(load), frozenset(parts)
            found.setdefault(run, PutBack(name, difference, load, frozenset(parts)))
    return list(found.values())


def is_given_part(old: Mapping[str, Any], forced: Mapping[str, Any]) -> bool:
    """Whether a row's forced ids are the golden's: whole, or as far as the new stops let them go
    where a criterion of the old code's own kept rows until all had ended."""
    ids = forced["output_ids"]
    wanted = old["output_ids"]
    if entry(dict(old), "stop", "criteria"):
        wanted = wanted[: len(ids)]
    return bool(ids == wanted)


def no_run(again: Case | None, inquiry: Inquiry) -> str:
    """Why a run says nothing: it did not take place, or ended in an error that putting a value back
    made."""
    if again is None:
        return "the case cannot be run again with it"
    is_made = again.raised not in (None, inquiry.old.raised, inquiry.new.raised)
    return f"the run with it ended in {brief(again.raised)}" if is_made else ""
