"""The laws of stop strings: plain predicates about a cutter (text, stops) -> text, tried on any function by Hypothesis.

    python -m parity laws                                                       gen_engine's own cutter
    python -m parity laws --cutter acme.llm.engine:truncate_at_stops            that of a vendored copy
    python -m parity laws --cutter pkg.old:trim_at_stops                        the one that a repository has now

A cutter that breaks a law gives other texts than gen_engine does: the counterexample is what to look for in goldens.
Each past bug is pinned as an example, so that it is tried whatever Hypothesis draws.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from parity.record.observe import load_function

Cutter = Callable[[str, list[str]], str]

# Few letters, so that stops meet, overlap and hold each other; a line feed and two characters beyond ASCII, one of them
# two UTF-16 units long, because code that counts bytes or units cuts beside the mark.
ALPHABET = "ab\nXé😀"


@dataclass(frozen=True, slots=True)
class Sample:
    """What a law is tried on. shuffled: the same stops in another order.   more: text that comes afterwards."""

    text: str
    stops: list[str]
    more: str = ""
    shuffled: list[str] | None = None

    @property
    def other_order(self) -> list[str]:
        return self.stops[::-1] if self.shuffled is None else self.shuffled


# == The laws ==


def cut_by_scanning(text: str, stops: list[str]) -> str:
    """The law, literally: read characters left to right until some stop is complete; the longest such stop goes."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def first_complete(cut: Cutter, s: Sample) -> bool:
    return cut(s.text, s.stops) == cut_by_scanning(s.text, s.stops)


def start_counts(cut: Cutter, s: Sample) -> bool:
    return cut(s.stops[0] + s.text, s.stops[:1]) == ""


def prefix(cut: Cutter, s: Sample) -> bool:
    return s.text.startswith(cut(s.text, s.stops))


def twice_is_once(cut: Cutter, s: Sample) -> bool:
    once = cut(s.text, s.stops)
    return cut(once, s.stops) == once


def none_survives(cut: Cutter, s: Sample) -> bool:
    once = cut(s.text, s.stops)
    return not any(stop in once for stop in s.stops)


def order_is_nothing(cut: Cutter, s: Sample) -> bool:
    return cut(s.text, s.other_order) == cut(s.text, s.stops)


def later_is_nothing(cut: Cutter, s: Sample) -> bool:
    stopped = s.text + s.stops[0]
    return cut(stopped + s.more, s.stops) == cut(stopped, s.stops)


def untouched(cut: Cutter, s: Sample) -> bool:
    """Without a stop in it a text stays as it is, blanks at its ends included."""
    absent = [stop for stop in s.stops if stop not in s.text]
    return cut(s.text, absent) == s.text


@dataclass(frozen=True, slots=True)
class Law:
    """One predicate. pins: past bugs, tried before anything that is drawn."""

    name: str
    sentence: str
    holds: Callable[[Cutter, Sample], bool]
    pins: tuple[Sample, ...]


NESTED = Sample("abc", ["abc", "b"])  # a short stop completes inside a long one
OVERLAPPING = Sample("abXYZ", ["XYZ", "Y"])
TOGETHER = Sample("xab", ["b", "ab"])  # both end at one character: the longer goes, no piece of it stays
IN_LIST_ORDER = Sample("a X b", ["b", "X"])  # code that takes the first of the list, not of the text
AT_START = Sample("", ["X"])  # `if pos > 0`
OUTGROWN = Sample("a", ["b", "abX"], more="X")  # a stop that starts earlier completes after the text had ended
LEFT_BY_CUT = Sample("aXb", ["b", "X"])  # cut at one stop, another one before it stays
BLANKS = Sample(" a\n", ["X"])  # a strip() beside the cut

LAWS = (
    Law(
        "first-complete",
        "the stop that completes first cuts, the longest of those that end together",
        first_complete,
        (NESTED, OVERLAPPING, TOGETHER, IN_LIST_ORDER),
    ),
    Law("start-counts", "a stop at the very start leaves nothing", start_counts, (AT_START,)),
    Law("prefix", "what is left is how the text began", prefix, (NESTED, BLANKS)),
    Law("twice-is-once", "cutting twice is cutting once", twice_is_once, (LEFT_BY_CUT, IN_LIST_ORDER)),
    Law("none-survives", "no stop is left in the text", none_survives, (LEFT_BY_CUT, TOGETHER, OVERLAPPING)),
    Law("order-is-nothing", "the order of the stops does not matter", order_is_nothing, (IN_LIST_ORDER, NESTED)),
    Law(
        "later-is-nothing",
        "what comes after the stop does not matter",
        later_is_nothing,
        (OUTGROWN, Sample("a", ["X", "b"], more="b")),
    ),
    Law("untouched", "a text without a stop stays as it is", untouched, (BLANKS, Sample("", ["a"]))),
)


# == Trying them ==


class Watched:
    """A cutter and every call of it, so that a counterexample is told in calls that one can repeat."""

    def __init__(self, cut: Cutter) -> None:
        self.cut = cut
        self.calls: list[str] = []

    def __call__(self, text: str, stops: list[str]) -> str:
        call = f"cut({text!r}, {stops!r})"
        try:
            gave = self.cut(text, stops)
        except Exception as error:
            self.calls.append(f"{call} raises {type(error).__name__}: {error}")
            raise
        lawful = cut_by_scanning(text, stops)
        self.calls.append(f"{call} is {gave!r}" + ("" if gave == lawful else f", should be {lawful!r}"))
        return gave


def breaks(law: Law, cut: Cutter, sample: Sample) -> bool:
    try:
        return not law.holds(lambda text, stops: cut(text, list(stops)), sample)  # a cutter may sort its list in place
    except Exception:  # noqa: BLE001 - the cutter is the caller's: whatever it raises is the finding
        return True


def calls_of(law: Law, cut: Cutter, sample: Sample) -> list[str]:
    """What the cutter was asked and gave while a law was tried."""
    watched = Watched(cut)
    breaks(law, watched, sample)
    return list(dict.fromkeys(watched.calls))


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one law. broken: the smallest sample found that breaks it; calls: what the cutter made of it."""

    law: Law
    examples: int
    broken: Sample | None = None
    calls: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.broken is None:
            return f"holds   {self.law.name:17} {self.law.sentence} ({self.examples} examples)"
        return f"BROKEN  {self.law.name:17} {self.law.sentence}: {'; '.join(self.calls)}"


def samples() -> Any:
    """The Hypothesis strategy that samples are drawn from."""
    from hypothesis import strategies as st

    texts = st.text(alphabet=ALPHABET, max_size=30)
    stop_lists = st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=4), min_size=1, max_size=5)
    return stop_lists.flatmap(lambda stops: st.builds(Sample, texts, st.just(stops), texts, st.permutations(stops)))


def try_law(law: Law, cut: Cutter, *, examples: int = 500, seed: int = 0) -> Trial:
    """Pins first, then what Hypothesis draws, made as small as it can."""
    from hypothesis import find, settings
    from hypothesis.errors import NoSuchExample

    tried: list[Sample] = list(law.pins)
    pinned = next((sample for sample in law.pins if breaks(law, cut, sample)), None)

    def wanted(sample: Sample) -> bool:
        tried.append(sample)
        return breaks(law, cut, sample)

    how = settings(max_examples=examples, deadline=None, database=None)
    try:
        broken = find(samples(), wanted, settings=how, random=random.Random(seed))
    except NoSuchExample:
        if pinned is None:
            return Trial(law, len(tried))
        broken = pinned
    return Trial(law, len(tried), broken, tuple(calls_of(law, cut, broken)))


def try_laws(cut: Cutter, *, examples: int = 500, seed: int = 0) -> list[Trial]:
    return [try_law(law, cut, examples=examples, seed=seed) for law in LAWS]


# == The command ==


OWN = "gen_engine:truncate_at_stops"


def run(args: argparse.Namespace) -> int:
    """0 all laws hold, 1 one is broken, 2 there is no such cutter, or no Hypothesis."""
    if find_spec("hypothesis") is None:
        print("parity laws: hypothesis is not installed; run: pip install hypothesis", file=sys.stderr)
        return 2
    if args.examples < 1:
        print(f"parity laws: --examples is {args.examples}; it must be 1 or more", file=sys.stderr)
        return 2
    try:
        cut: Cutter = load_function(args.cutter)
    except (ImportError, LookupError, ValueError) as error:
        print(f"parity laws: --cutter: {error}; name a function (text, stops) -> text", file=sys.stderr)
        return 2
    trials = try_laws(cut, examples=args.examples, seed=args.seed)
    for trial in trials:
        print(trial)
    return int(any(trial.broken for trial in trials))


def add_laws(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "laws",
        help="try the laws of stop strings on a cutter",
        description="Try the laws of stop strings on a cutter: a function (text, stops) -> text.",
        epilog="example: python -m parity laws --cutter mypackage.text:trim_at_stops --examples 2000",
    )
    parser.add_argument("--cutter", default=OWN, metavar="pkg.mod:func", help=f"default {OWN}")
    parser.add_argument("--examples", type=int, default=500, metavar="N", help="drawn for each law (default 500)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draw (default 0)")
    parser.set_defaults(run=run)
