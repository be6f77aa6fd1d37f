"""`python -m parity.proof.fuzz`: generated requests of all kinds beside good ones, on real engines.

Each must be answered, or refused in the engine's own words, and cost its neighbours nothing. The
calls are made by a child process, which says what it begins: where one does not end in time, or
ends the process, that is the failure, and another child goes on behind it. Failures are shrunk and
added to pinned.jsonl.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.proof.fuzz.child import PATIENCE, STARTING, Child, tell
from parity.proof.fuzz.laws import Asker, Failure
from parity.proof.fuzz.pinned import FILE, Pinned, pin, read_pinned
from parity.proof.fuzz.search import Found, Search
from parity.proof.fuzz.values import Case

EXAMPLE = """example:
  make fuzz FUZZ="--count 200 --backend hf"
exit codes: 0 nothing failed, 1 something did, 2 usage
"""
BACKENDS = ("hf", "vllm")
MINUTE = 60.0  # seconds between two lines of progress


# == The child ==


def tell_found(found: Found) -> None:
    failure = found.failure
    words = {"kind": failure.kind, "where": failure.where, "detail": failure.detail}
    tell("found", case=json.loads(found.case.dumps()), failure=words)


def ask_all(backend: str, seed: int, count: int) -> int:
    """Ask the pinned calls if `seed` is the first one's, then generated ones until the count."""
    from parity.environment.libraries import settle
    from parity.proof.fuzz.hostile_room import TEXT, VL, Room

    settle("transformers.generation", *(["vllm.entrypoints.llm"] if backend == "vllm" else []))
    with Room(backend) as room:
        room.engine(TEXT)
        room.engine(VL)
        asker = Asker(room)

        def ask(case: Case) -> Failure | None:
            tell("begin", case=json.loads(case.dumps()))
            return asker.failure(case)

        search = Search(ask)
        while asker.asked < count:
            asked = asker.asked
            for found in search.batch(seed):
                tell_found(found)
            tell("batch", asked=asker.asked - asked, outcomes=dict(asker.outcomes))
            asker.outcomes.clear()
            seed += 1
    return 0


def ask_pinned(backend: str, first: int) -> int:
    """Ask the calls that failed once, from the first-th on."""
    from parity.proof.fuzz.hostile_room import Room

    with Room(backend) as room:
        asker = Asker(room)
        for pinned in read_pinned()[first:]:
            tell("begin", case=json.loads(pinned.case.dumps()))
            failure = asker.failure(pinned.case)
            if failure is not None:
                tell_found(Found(pinned.case, failure))
            tell("batch", asked=len(pinned.case.requests), outcomes=dict(asker.outcomes))
            asker.outcomes.clear()
    return 0


# == The parent ==


@dataclass
class Tally:
    """What came of a backend's requests."""

    backend: str
    count: int
    asked: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    found: dict[str, Found] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)

    def add(self, found: Found) -> None:
        if found.failure.key in self.found:
            return
        self.found[found.failure.key] = found
        print(f"{self.backend}: {found.failure.key}\n  {found.case.dumps()}", flush=True)
        print("  " + found.failure.detail.strip().replace("\n", "\n  "), flush=True)

    def tell(self) -> None:
        """A line a minute."""
        now = time.monotonic()
        if now - self.told > MINUTE:
            self.told = now
            rate = self.asked / (now - self.began)
            of = f"{self.asked:,} of {self.count:,} requests"
            print(f"{self.backend}: {of}, {rate:.1f}/s, {len(self.found)} failures", flush=True)


def listen(child: Child, tally: Tally, batches: list[int]) -> Iterator[Found]:
    """The failures that a child reports, and that of its end where it has not ended well.
    batches: gets a number for each batch that is done."""
    patience = STARTING
    case = None
    try:
        while (said := child.next(patience)) is not None:
            patience = PATIENCE[tally.backend]
            if said["what"] == "begin":
                case = Case.loads(said["case"])
            elif said["what"] == "found":
                yield Found(Case.loads(said["case"]), Failure(**said["failure"]))
            else:
                tally.asked += said["asked"]
                tally.outcomes.update(said["outcomes"])
                batches.append(tally.asked)
            tally.tell()
    except queue.Empty:
        failure = Failure("hang", f"no answer within {patience:g} s", " | ".join(child.last_words))
    else:
        if child.process.wait() == 0:
            return
        words = " | ".join(child.last_words)
        failure = Failure("crash", f"the process ended with {child.process.returncode}", words)
    if case is None:
        raise RuntimeError(f"the child made no call: {failure.detail}")
    tally.asked += len(case.requests)
    yield Found(case, failure)


def fuzz(backend: str, seed: int, count: int) -> Tally:
    tally = Tally(backend, count)
    common = ["--backend", backend, "--child"]
    first = 0
    while first < len(read_pinned()):
        first += run_child([*common, "--pinned", str(first)], tally) + 1
    tell_mended(tally)
    while tally.asked < count:
        left = str(count - tally.asked)
        batches = run_child([*common, "--seed", str(seed), "--count", left], tally)
        seed += batches + 1  # behind the batch that did not end
    return tally


def run_child(flags: Sequence[str], tally: Tally) -> int:
    """Count what a child reports, until it ends. How many batches it has done."""
    batches: list[int] = []
    child = Child(["parity.proof.fuzz", *flags])
    try:
        for found in listen(child, tally, batches):
            tally.add(found)
    finally:
        child.end()
    return len(batches)


def tell_mended(tally: Tally) -> None:
    for pinned in read_pinned():
        is_ours = pinned.is_open and pinned.backend == tally.backend
        if is_ours and pinned.key not in tally.found:
            print(f'{tally.backend}: mended: {pinned.key}; set "open" to false in {FILE}')


def table_of(tallies: Sequence[Tally]) -> str:
    kinds = ("answered", "refused", "whole call refused")
    lines = [f"{'':<6}{'requests':>10}" + "".join(f"{kind:>20}" for kind in (*kinds, "failures"))]
    for tally in tallies:
        cells = [f"{tally.outcomes[kind]:>20,}" for kind in kinds]
        lines.append(f"{tally.backend:<6}{tally.asked:>10,}{''.join(cells)}{len(tally.found):>20}")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    if args.child:
        if args.pinned is not None:
            return ask_pinned(args.backend, args.pinned)
        return ask_all(args.backend, args.seed, args.count)
    tallies = []
    for backend in [args.backend] if args.backend else BACKENDS:
        tally = fuzz(backend, args.seed, args.count)
        tallies.append(tally)
        new = [Pinned(backend, key, one.case, True) for key, one in tally.found.items()]
        pinned = pin(new, args.pins)
        print(f"{backend}: {len(new)} failures, {pinned} of them new in {args.pins}", flush=True)
    print(table_of(tallies))
    return int(any(tally.found for tally in tallies))


def whole_count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("give a whole number above 0")
    return count


def main(argv: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    about: dict[str, Any] = {"description": __doc__, "epilog": EXAMPLE, "formatter_class": form}
    parser = argparse.ArgumentParser(prog="python -m parity.proof.fuzz", **about)
    add = parser.add_argument
    add("--count", type=whole_count, default=10_000, metavar="N", help="requests (default 10000)")
    add("--backend", choices=BACKENDS, help="default: both")
    add("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="default: the date")
    add("--pins", type=Path, default=FILE, metavar="FILE", help="where failures are added")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    add("--pinned", type=int, help=argparse.SUPPRESS)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
