"""`python -m parity.proof hostile`: hostile inputs, each beside good ones. Each shall end in a right answer or in an
error that says where, what and what to do, and cost its neighbours nothing.

The inputs stand in hostile_table.py. They are asked in a child process (child.py).
"""

from __future__ import annotations

import argparse
import datetime
import queue
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from parity.environment.libraries import settle
from parity.proof.fuzz.child import PATIENCE, STARTING, Child, tell
from parity.proof.matrix import README as README
from parity.proof.matrix import write_between

EXAMPLE = """example:
  python -m parity.proof hostile --quick
  python -m parity.proof hostile --backend vllm --only pictures
"""
BACKENDS = ("hf", "vllm")
OUTCOMES = ("right", "refused", "failed")
MARKS = "<!-- parity hostile: -->", "<!-- :parity hostile -->"


class Outcome(NamedTuple):
    """What became of one input. kind: of OUTCOMES.   said: the error's text, or what is wrong."""

    group: str
    name: str
    kind: str
    said: str


def ask(backend: str, only: str = "", quick: bool = False) -> Iterator[Outcome]:
    """The outcome of every input, in the order of the table."""
    from parity.proof.fuzz.hostile_table import chosen

    items, place = chosen(backend, only, quick), 0
    flags = ["--backend", backend, "--only", only, *(["--quick"] if quick else [])]
    while place < len(items):
        child, patience = Child(["parity.proof", "hostile", *flags, "--child", str(place)]), STARTING
        try:
            while place < len(items) and (said := child.next(patience)) is not None:
                patience = PATIENCE[backend]
                if said["what"] == "end":
                    yield Outcome(items[place].group, items[place].name, said["kind"], said["said"])
                    place += 1
            ended = "the process ended: " + " | ".join(child.last_words)
        except queue.Empty:
            ended = f"no answer within {patience:g} s"
        finally:
            child.end()
        if place < len(items):
            yield Outcome(items[place].group, items[place].name, "failed", ended)
            place += 1


def ask_from(backend: str, only: str, quick: bool, first: int) -> int:
    """The child's part: the inputs from `first` on, one after another."""
    from parity.proof.fuzz.hostile_room import Room
    from parity.proof.fuzz.hostile_table import chosen

    settle("transformers.generation", *(["vllm.entrypoints.llm"] if backend == "vllm" else []))
    with Room(backend) as room:
        room.engine()
        for item in chosen(backend, only, quick)[first:]:
            tell("begin")
            kind, said = room.outcome(item)
            tell("end", kind=kind, said=said)
    return 0


def table_of(outcomes: Sequence[Outcome]) -> str:
    """How many of each kind, by group."""
    counts = Counter((outcome.group, outcome.kind) for outcome in outcomes)
    groups = list(dict.fromkeys(outcome.group for outcome in outcomes))
    lines = [f"{'':<12}{'inputs':>8}" + "".join(f"{kind:>9}" for kind in OUTCOMES)]
    for group in (*groups, "all"):
        row = [sum(n for (g, k), n in counts.items() if group in (g, "all") and k == kind) for kind in OUTCOMES]
        lines.append(f"{group:<12}{sum(row):>8}" + "".join(f"{n:>9}" for n in row))
    return "\n".join(lines)


def in_short(seen: Mapping[str, Sequence[Outcome]], day: datetime.date) -> str:
    """README.md's table: how many of each kind, by backend."""
    lines = [f"| {day.isoformat()} | inputs | right | refused in our words | failed |", "|---|---|---|---|---|"]
    for backend, outcomes in seen.items():
        counts = Counter(outcome.kind for outcome in outcomes)
        lines.append(
            f"| {backend} | {len(outcomes):,} | " + " | ".join(f"{counts[kind]:,}" for kind in OUTCOMES) + " |"
        )
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """0 none failed, 1 some did, 5 nothing was asked."""
    if args.child is not None:
        return ask_from(args.backend, args.only, args.quick, args.child)
    seen: dict[str, list[Outcome]] = {}
    for backend in [args.backend] if args.backend else BACKENDS:
        outcomes = seen.setdefault(backend, [])
        for outcome in ask(backend, args.only, args.quick):
            outcomes.append(outcome)
            if args.verbose or outcome.kind == "failed":
                print(f"{backend} {outcome.group}: {outcome.name}: {outcome.kind}: {outcome.said}", flush=True)
        print(f"\n{backend}\n{table_of(outcomes)}", flush=True)
    if tuple(seen) == BACKENDS and not args.only and not args.quick:
        write_between(MARKS, in_short(seen, datetime.date.today()), README)
    every = [outcome for outcomes in seen.values() for outcome in outcomes]
    return 5 if not every else int(any(outcome.kind == "failed" for outcome in every))


def add_hostile(sub: Any) -> None:
    parser = sub.add_parser(
        "hostile",
        help="ask hostile inputs of every kind beside good ones: each is right or refused, and costs no neighbour; the "
        "whole of it writes the table of parity/proof/README.md",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="some of each kind on both backends; a minute")
    parser.add_argument("--backend", choices=BACKENDS, help="default: both")
    parser.add_argument("--only", default="", metavar="TEXT", help="inputs whose group or name holds TEXT")
    parser.add_argument("--verbose", action="store_true", help="every input, not only those that fail")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)
