"""`python -m parity.proof campaign`: hostile inputs, each beside good ones. Each shall end in a right answer or in an
error that says where, what and what to do, and cost its neighbours nothing.

The inputs stand in campaign_table.py. They are asked in a child process, which says what it begins: where one does not
end in time, or ends the process, that is what is reported of it, and another child goes on behind it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from parity.judge.worker import settle
from parity.proof.matrix import README as README
from parity.proof.matrix import write_between

EXAMPLE = """example:
  python -m parity.proof campaign --quick
  python -m parity.proof campaign --backend vllm --only pictures
"""
BACKENDS = ("hf", "vllm")
PATIENCE = {"hf": 60, "vllm": 150}  # s for one input, on a busy machine; loading a vLLM engine is one
STARTING = 300  # s until a child asks its first
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
OUTCOMES = ("right", "refused", "failed")
MARKS = "<!-- parity campaign: -->", "<!-- :parity campaign -->"


class Outcome(NamedTuple):
    """What became of one input. kind: of OUTCOMES.   said: the error's text, or what is wrong."""

    group: str
    name: str
    kind: str
    said: str


class Child:
    """A process that asks the inputs from `first` on, one after another."""

    def __init__(self, backend: str, only: str, quick: bool, first: int) -> None:
        flags = ["--backend", backend, "--only", only, "--child", str(first), *(["--quick"] if quick else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "parity.proof", "campaign", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**SMALL, **os.environ},
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.last_words: list[str] = []
        for stream, keep in ((self.process.stdout, self.lines.put), (self.process.stderr, self._overhear)):
            threading.Thread(target=self._read, args=(stream, keep), daemon=True).start()

    def _read(self, stream: IO[str], keep: Any) -> None:
        for line in stream:
            keep(line)
        if stream is self.process.stdout:
            self.lines.put(None)

    def _overhear(self, line: str) -> None:
        self.last_words = [*self.last_words[-4:], line.strip()]

    def next(self, patience: float) -> list[Any] | None:
        """What it says next, or None where it has ended. Raises queue.Empty where it says nothing for so long."""
        while (line := self.lines.get(timeout=patience)) is not None:
            if line.startswith("campaign "):  # libraries print too
                said: list[Any] = json.loads(line.removeprefix("campaign "))
                return said
        return None

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def campaign(backend: str, only: str = "", quick: bool = False) -> Iterator[Outcome]:
    """The outcome of every input, in the order of the table."""
    from parity.proof.fuzz.campaign_table import chosen

    items, place = chosen(backend, only, quick), 0
    while place < len(items):
        child, begun = Child(backend, only, quick, place), False
        try:
            while place < len(items):
                said = child.next(PATIENCE[backend] if begun else STARTING)
                if said is None:
                    break
                begun = True
                if said[0] == "end":
                    yield Outcome(items[place].group, items[place].name, said[1], said[2])
                    place += 1
            ended = "the process ended: " + " | ".join(child.last_words) if place < len(items) else ""
        except queue.Empty:
            ended = f"no answer within {PATIENCE[backend]} s"
        finally:
            child.end()
        if ended:
            yield Outcome(items[place].group, items[place].name, "failed", ended)
            place += 1


def tell(*said: Any) -> None:
    print("campaign " + json.dumps(said), flush=True)


def ask_all(backend: str, only: str, quick: bool, first: int) -> int:
    """The child's part."""
    from parity.proof.fuzz.campaign_room import Room
    from parity.proof.fuzz.campaign_table import chosen

    settle("transformers.generation", *(["vllm.entrypoints.llm"] if backend == "vllm" else []))
    with Room(backend) as room:
        room.engine()
        for item in chosen(backend, only, quick)[first:]:
            tell("begin")
            tell("end", *room.outcome(item))
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
        return ask_all(args.backend, args.only, args.quick, args.child)
    seen: dict[str, list[Outcome]] = {}
    for backend in [args.backend] if args.backend else BACKENDS:
        outcomes = seen.setdefault(backend, [])
        for outcome in campaign(backend, args.only, args.quick):
            outcomes.append(outcome)
            if args.verbose or outcome.kind == "failed":
                print(f"{backend} {outcome.group}: {outcome.name}: {outcome.kind}: {outcome.said}", flush=True)
        print(f"\n{backend}\n{table_of(outcomes)}", flush=True)
    if tuple(seen) == BACKENDS and not args.only and not args.quick:
        write_between(MARKS, in_short(seen, datetime.date.today()), README)
    every = [outcome for outcomes in seen.values() for outcome in outcomes]
    return 5 if not every else int(any(outcome.kind == "failed" for outcome in every))


def add_campaign(sub: Any) -> None:
    parser = sub.add_parser(
        "campaign",
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
