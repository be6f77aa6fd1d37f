"""Mutation testing of gen_engine.py by the goldens alone, with operators of a library: python -m
parity dev mutants

A random sample of the mutants that mutmut's operators make (parity.proof.operators) is judged by
the goldens that pass the changed lines (parity.proof.mutant_judge), on hf, and what survives there
on vLLM. Nobody who wrote the goldens or the judge chose the
faults, and each day has other ones: what share is caught says something about the next fault, as
the committed list of `python -m parity.proof selftest` does not.

Mutants that no user could notice are marked by hand in equivalent_mutants.json, each with its
reason, and do not count.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gen_engine import OptionError, did_you_mean
from parity.environment.output_paths import file_to_write
from parity.goldens.store import Store
from parity.proof.forks import ENGINE
from parity.proof.mutant_judge import Result, Trial, judge_mutants

if TYPE_CHECKING:
    from parity.proof.operators import Mutant

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
GOAL = 0.9  # of the mutants that are not equivalent: ours, for a report that a reader can rely on
BACKENDS = ("hf", "vllm")
SECTION = re.compile(r"# == \d+\. (Backend: \w+|[^:]+):")


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant, and what became of it on each backend that judged it. equivalent: the reason of its
    mark, or ""."""

    mutant: Mutant
    section: str
    results: tuple[Result, ...]
    equivalent: str = ""

    @property
    def is_caught(self) -> bool:
        return any(result.is_caught for result in self.results)

    @property
    def how(self) -> str:
        """How it was caught, by the backend that says most; else why it survived."""
        order = ("named", "unnamed", "crash", "hang", "survived", "unreached")
        return min((result.how for result in self.results), key=order.index)


# == Marks of equivalent mutants ==

Key = tuple[str, str, str]  # function, original statement, mutated statement


def marks(file: Path = EQUIVALENT) -> dict[Key, str]:
    """Of mutants that no user can notice: key -> reason. An edit elsewhere in gen_engine.py keeps
    them valid."""
    found = {}
    for row in json.loads(file.read_text()):
        found[row["function"], row["original"], row["mutated"]] = row["reason"]
    return found


def key_of(mutant: Mutant) -> Key:
    return mutant.function, mutant.original(), mutant.mutated()


# == A run ==


def run_mutants(
    store: Store,
    mutants: Sequence[Mutant],
    backends: Sequence[str],
) -> Iterator[Judged]:
    """Each backend judges the mutants that the ones before it have not caught."""
    results: dict[int, list[Result]] = {mutant.number: [] for mutant in mutants}
    left = [trial_of(mutant) for mutant in mutants]
    for backend in backends:
        if not left:
            break
        progress = Progress(backend, len(left))
        for result in judge_mutants(store, left, backend):
            results[result.number].append(result)
            progress.tell(result)
        left = [trial for trial in left if not any(one.is_caught for one in results[trial.number])]
    reasons = marks()
    sections = sections_of(ENGINE.read_text())
    for mutant in sorted(mutants, key=lambda one: one.number):
        reason = reasons.get(key_of(mutant), "")
        found = tuple(results[mutant.number])
        yield Judged(mutant, sections[mutant.line], found, reason)


def trial_of(mutant: Mutant) -> Trial:
    first, last = mutant.lines
    lines = frozenset(range(first, last + 1))
    return Trial(mutant.number, mutant.source(), lines, mutant.in_call)


def sections_of(source: str) -> dict[int, str]:
    """Line -> name of the section of the file that it is in."""
    found, section = {}, "Head"
    for number, line in enumerate(source.splitlines(), start=1):
        heading = SECTION.match(line)
        section = heading[1] if heading else section
        found[number] = section
    return found


class Progress:
    """Counts what has ended on a backend, and prints it with the time that is left there."""

    def __init__(self, backend: str, total: int) -> None:
        self.backend = backend
        self.total = total
        self.counts = Counter[str]()
        self.started = time.monotonic()

    def tell(self, result: Result) -> None:
        self.counts[result.how] += 1
        done = self.counts.total()
        left = (time.monotonic() - self.started) / done * (self.total - done)
        counts = ", ".join(f"{number} {how}" for how, number in self.counts.items())
        line = f"{self.backend}: {done} of {self.total}: {counts}; {left / 60:.0f} minutes left"
        start, end = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)


# == The report ==


def report(judged: Sequence[Judged], backends: Sequence[str]) -> list[str]:
    lines = list[str]()
    for one in judged:
        if not one.is_caught and not one.equivalent:
            lines += [*survivor(one), ""]
    for one in judged:
        if one.is_caught and one.equivalent:
            lines.append(f"MARKED EQUIVALENT BUT CAUGHT, remove the mark: {key_of(one.mutant)}")
    lines += [*table(judged), "", *by_backend(judged, backends), "", summary(judged)]
    return lines


def survivor(one: Judged) -> list[str]:
    mutant = one.mutant
    passed = [f"{result.goldens} goldens on {result.backend}" for result in one.results]
    why = "no golden reaches it" if one.how == "unreached" else f"passed by {' and '.join(passed)}"
    head = f"SURVIVED {mutant.function}, line {mutant.line}, {mutant.operator}: {why}"
    return [head, *difference(mutant)]


def difference(mutant: Mutant) -> list[str]:
    """The change as a unified diff."""
    before = ENGINE.read_text().splitlines()
    after = mutant.source().splitlines()
    found = difflib.unified_diff(before, after, ENGINE.name, "mutant", n=2, lineterm="")
    return list(found)


def table(judged: Sequence[Judged]) -> list[str]:
    """One line per section of the file, and one for all."""
    lines = [f"{'section':16} mutants  caught  survived  equivalent  score"]
    for section in [*dict.fromkeys(one.section for one in judged), "all"]:
        own = [one for one in judged if section in (one.section, "all")]
        counted = [one for one in own if not one.equivalent]
        caught = sum(one.is_caught for one in counted)
        score = f"{caught / len(counted):6.0%}" if counted else "     -"
        survived, equivalent = len(counted) - caught, len(own) - len(counted)
        lines.append(f"{section:16} {len(own):7} {caught:7} {survived:9} {equivalent:11} {score}")
    return lines


def by_backend(judged: Sequence[Judged], backends: Sequence[str]) -> Iterator[str]:
    """What each backend caught of the mutants that the ones before it had not."""
    for backend in backends:
        own = [result for one in judged for result in one.results if result.backend == backend]
        if own:
            counts = Counter(result.how for result in own)
            caught = sum(result.is_caught for result in own)
            seconds = sum(result.seconds for result in own)
            each = ", ".join(f"{number} {how}" for how, number in counts.most_common())
            mean = f"{seconds / len(own):.1f} s each"
            yield f"{backend}: {caught} of {len(own)} caught ({each}); {mean}"


def summary(judged: Sequence[Judged]) -> str:
    counted = [one for one in judged if not one.equivalent]
    hows = Counter(one.how for one in counted if one.is_caught)
    return (
        f"{score_of(judged):.1%} of {len(counted)} mutants caught: "
        f"{hows['named']} by a named cause, {hows['unnamed']} by a difference without one, "
        f"{hows['crash']} by a crash, {hows['hang']} by a hang (needed: {GOAL:.0%})"
    )


def score_of(judged: Sequence[Judged]) -> float:
    """Share of caught ones among those that are not marked as equivalent."""
    counted = [one for one in judged if not one.equivalent]
    return sum(one.is_caught for one in counted) / len(counted) if counted else 1.0


def to_json(one: Judged) -> Mapping[str, Any]:
    mutant = one.mutant
    return {
        "number": mutant.number,
        "operator": mutant.operator,
        "function": mutant.function,
        "section": one.section,
        "line": mutant.line,
        "original": mutant.original(),
        "mutated": mutant.mutated(),
        "equivalent": one.equivalent,
        "diff": "\n".join(difference(mutant)),
        "results": [asdict(result) for result in one.results],
    }


# == The command ==


def run(args: argparse.Namespace) -> int:
    from parity.proof.operators import all_mutants, sample  # libcst and mutmut, for development

    backends = args.backend.split(",")
    unknown = [name for name in backends if name not in BACKENDS]
    if unknown:
        raise OptionError(f"mutants: no backend {unknown[0]!r}", fix=did_you_mean(unknown[0], BACKENDS))
    if args.count < 1:
        raise OptionError(f"mutants: --count is {args.count}", fix="give a number >= 1")
    mutants = all_mutants(ENGINE.read_text())
    chosen = sample(mutants, args.count, args.seed)
    print(f"seed {args.seed}: {len(chosen)} of {len(mutants)} mutants, on {', '.join(backends)}")
    judged = list(run_mutants(Store(args.goldens), chosen, backends))
    print("\n".join(report(judged, backends)))
    if args.json:
        rows = [to_json(one) for one in judged]
        args.json.write_text(json.dumps(rows, indent=1))
    return 0 if score_of(judged) >= GOAL else 1


def add_mutants(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "mutants",
        help="mutation testing: a random sample of mutants of gen_engine.py against the goldens",
        epilog="example: python -m parity.proof mutants --count 20 --backend hf --seed 20261125",
    )
    today = int(datetime.date.today().strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, metavar="N", help="default: the date")
    parser.add_argument("--count", type=int, default=200, metavar="N", help="mutants (200)")
    parser.add_argument("--backend", default="hf,vllm", metavar="LIST", help="default: hf,vllm")
    parser.add_argument("--json", type=file_to_write, metavar="PATH", help="also write what became of each mutant")
    parser.set_defaults(run=run)
