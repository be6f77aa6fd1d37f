"""The judge on a real model: a faithful move must pass, and each mistake must fail by its name.

    rows = judge_all(store, ("hf", "vllm"), MISTAKES)      one Row per move and backend; record(store) comes first

The goldens are recorded afresh from plain transformers: bfloat16 answers belong to the machine that computed them.
Every move is checked in a process of its own, as `python -m parity check` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.environment.output_paths import file_to_write
from parity.goldens.causes import stage_of
from parity.goldens.store import Store
from parity.goldens.verdict import Check
from parity.judge.check import check_sites
from parity.judge.worker import Worker
from parity.models import real_model
from parity.record import recorder
from parity.record.observe import Site

GOLDENS = Path(__file__).parents[3] / "build/real/golden"
OLD = "parity.proof.real.old"
MOVED = "parity.proof.real.moved"
WRITTEN = 4  # exit code of a run that wrote goldens
ANSWERS = "chats"
SAMPLES = "samples"
LOAD = {
    "vllm": {
        "max_model_len": 1024,
        "vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 16, "gpu_memory_utilization": 0.2},
    }
}


@dataclass(frozen=True, slots=True)
class Move:
    """A move of one site.   function: of mistakes.py, "" for the faithful one.   causes: names that are right, the
    plainest first.."""

    name: str
    site: str = ANSWERS
    function: str = ""
    causes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("hf", "vllm")

    @property
    def moved(self) -> dict[str, str]:
        if not self.function:
            return {}
        door = "answer" if self.site == ANSWERS else "sample"
        return {f"{OLD}:{door}": f"parity.proof.real.mistakes:{self.function}"}


MOVES = (
    Move("faithful"),
    Move("faithful", SAMPLES),
    Move("attention scale x 1.01", function="attention_scale", causes=("numeric",)),
    Move("int8 weights", function="int8_weights", causes=("model", "numeric")),
    Move("float16 for bfloat16", function="float16", causes=("model",)),
    Move("system message lost", function="lost_system_prompt", causes=("prompt",)),
    Move("half of the tokens", function="shorter", causes=("stop",)),
    Move("seed lost", SAMPLES, "no_seed", ("rng",)),
    Move("temperature 1.2 for 0.8", SAMPLES, "hotter", ("sampling",)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a move on a backend."""

    move: Move
    backend: str
    check: Check

    @property
    def failing(self) -> list[Any]:
        return self.check.failing()

    @property
    def is_right(self) -> bool:
        """A faithful move passes; a mistake fails, and every failing case names a right cause."""
        if not self.move.causes:
            return not self.failing and self.check.exit_code == 0
        return bool(self.failing) and all(o.cause and stage_of(o.cause.name) in self.move.causes for o in self.failing)

    @property
    def is_wrong_and_confirmed(self) -> bool:
        causes = [o.cause for o in self.failing if o.cause is not None]
        return any(c.certainty == "confirmed" and stage_of(c.name) not in self.move.causes for c in causes)

    def line(self) -> str:
        verdicts: dict[str, int] = {}
        for outcome in self.check.outcomes:
            told = outcome.verdict if outcome.cause is None else f"{outcome.verdict} {outcome.cause}"
            verdicts[told] = verdicts.get(told, 0) + 1
        said = ", ".join(f"{count} {told}" for told, count in verdicts.items())
        mark = "right" if self.is_right else "WRONG"
        return f"{self.move.site:8} {self.move.name:24} {self.backend:5} {mark:6} {said}  ({self.check.seconds:.0f} s)"

    def to_json(self) -> dict[str, Any]:
        outcomes = [
            {"case": o.label, "verdict": o.verdict, "cause": str(o.cause) if o.cause else "", "also": list(o.also)}
            for o in self.check.outcomes
        ]
        return {"move": self.move.name, "backend": self.backend, "right": self.is_right, "outcomes": outcomes}


def record(store: Store) -> None:
    """Goldens of plain transformers' answers, in place of those that are there."""
    sites = [Site(ANSWERS, f"{OLD}:answer"), Site(SAMPLES, f"{OLD}:sample")]
    command = [sys.executable, "-m", "parity.proof.real.script"]
    done = recorder.record(command, store, sites=sites, overwrite=True)
    if done.exit_code not in (0, WRITTEN) or done.refused:
        raise RuntimeError(f"recording the real model failed with exit code {done.exit_code}: {done.seen.failures}")
    for site in (ANSWERS, SAMPLES):
        store.set_site(site, moved={OLD: MOVED}, backends=["hf", "vllm"], load=LOAD)


def judge_all(store: Store, backends: Sequence[str], moves: Sequence[Move]) -> Iterator[Row]:
    for move in moves:
        for backend in backends:
            if backend in move.backends:
                with Worker() as worker:  # an engine with a fault must not answer for the next move
                    check = check_sites(store, sites=[move.site], backends=[backend], moved=move.moved, worker=worker)
                yield Row(move, backend, check)


def run(args: argparse.Namespace) -> int:
    try:
        real_model.folder()
    except real_model.BuildError as error:
        print(f"real: {error}", file=sys.stderr)
        return 3
    store = Store(args.into)
    moves = [move for move in MOVES if args.only in move.name]
    began = time.monotonic()
    if not args.keep:
        print("recording plain transformers ...", file=sys.stderr, flush=True)
        record(store)
    rows = []
    for row in judge_all(store, args.backend.split(","), moves):
        print(row.line(), flush=True)
        for measured in row.check.numerics:
            print(f"    {measured.line}", flush=True)
        rows.append(row)
    right, confirmed = sum(row.is_right for row in rows), sum(row.is_wrong_and_confirmed for row in rows)
    minutes = (time.monotonic() - began) / 60
    print(f"{right} of {len(rows)} right, {confirmed} wrong and confirmed, {minutes:.0f} minutes")
    if args.json:
        args.json.write_text(json.dumps([row.to_json() for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0 if rows and right == len(rows) else 1


def add_real(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "real",
        help="a real model in bfloat16: faithful moves must pass, mistakes must fail by name",
        epilog="example: python -m parity.proof real --only faithful --backend vllm",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="moves whose name contains this")
    parser.add_argument("--backend", default="hf,vllm", help="hf, vllm or both, separated by a comma")
    parser.add_argument("--keep", action="store_true", help="use the goldens that an earlier run recorded")
    parser.add_argument("--into", default=str(GOLDENS), metavar="DIR", help="where goldens are recorded")
    parser.add_argument("--json", type=file_to_write, metavar="PATH", help="also write every outcome")
    parser.set_defaults(run=run)
