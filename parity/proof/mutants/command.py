"""Mutation score of gen_engine.py and of the companions, by unit tests: python -m parity.proof mutants

A random sample of mutants (mutation.py) is judged by the unit tests that reach the mutated line
(reach.py), the quickest first, until one fails (judge.py). Outcomes are kept in build/mutants/: a run
that was interrupted goes on, and one after an edit begins anew. Mutants that no user could notice
are listed in equivalent.json, each with its reason.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import hashlib
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gen_engine import OptionError, load
from parity.environment.libraries import settle
from parity.proof.mutants.reach import Project, Reach, reach_of, this_project

if TYPE_CHECKING:  # libcst, mutmut and pytest are of development
    from parity.proof.mutants.judge import Outcome
    from parity.proof.mutants.mutation import Mutant

EQUIVALENT = Path(__file__).with_name("equivalent.json")
ENGINE = "gen_engine.py"
PARTS = ("engine", "companions")
LIBRARIES = ("torch", "transformers.generation", "vllm.entrypoints.llm", "xgrammar", "pytest")
VARIABLES = {  # as parity/tests/conftest.py has them; no fork can use a GPU
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # threads of more do not live through a fork
    "NUMBA_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}
# The share of mutants that a run must kill.
GOALS = {"engine": 0.92, "companions": 0.85}


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant and what became of it. reason: why it is equivalent, or ""."""

    part: str
    mutant: Mutant
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Score:
    """Of one part. counts: how a mutant that is not equivalent ended -> mutants."""

    equivalent: int
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def killed(self) -> float:
        """The share of all."""
        alive = self.counts.get("survived", 0) + self.counts.get("unreached", 0)
        return 1 - alive / max(self.total, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, of 95 %: what a larger sample may find."""
        count, square = max(self.total, 1), 1.96**2
        spread = math.sqrt(square * self.killed * (1 - self.killed) / count + (square / count / 2) ** 2)
        middle, scale = self.killed + square / count / 2, 1 + square / count
        return (middle - spread) / scale, (middle + spread) / scale

    @property
    def silent_killed(self) -> float:
        """The share of those that do not merely raise."""
        raised = self.counts.get("raised", 0)
        alive = self.counts.get("survived", 0) + self.counts.get("unreached", 0)
        return 1 - alive / max(self.total - raised, 1)


# == A run ==


def run(args: argparse.Namespace) -> int:
    if args.count < 1:
        raise OptionError(f"mutants: --count is {args.count}", fix="give a number >= 1")
    project = this_project()
    os.environ.update({name: os.environ.get(name, value) for name, value in VARIABLES.items()})
    settle(*LIBRARIES)
    load_once(project)
    os.chdir(project.root)  # mutmut reads the pyproject.toml of the working directory
    reach = reach_of(project, args.processes)
    judged = list(run_mutants(reach, parts_of(args), args))
    print("\n".join(report(project, judged)))
    scores = scores_of(judged)
    return 0 if all(score.killed >= GOALS[part] for part, score in scores.items()) else 1


def load_once(project: Project) -> None:
    """What a first load and call import is not imported again in each fork."""
    for name in ("tiny-qwen3", "tiny-qwen3-vl"):
        with load(project.root / "golden" / "models" / name, backend="hf", progress=False) as engine:
            engine.generate_text_batch([{"prompt": "a"}], {"max_new_tokens": 2})
    settle()


def parts_of(args: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """(part, how many of its mutants)"""
    parts = [args.only] if args.only else PARTS
    for at, part in enumerate(parts):
        yield part, args.count * (at + 1) // len(parts) - args.count * at // len(parts)


def run_mutants(reach: Reach, parts: Iterator[tuple[str, int]], args: argparse.Namespace) -> Iterator[Judged]:
    from parity.proof.mutants.judge import judge
    from parity.proof.mutants.mutation import sample

    mutants: list[tuple[str, Mutant]] = []
    for part, count in parts:
        files = [one for one in reach.project.sources if (one == ENGINE) == (part == "engine")]
        mutants += [(part, one) for one in sample(reach.project.root, files, count, args.seed)]
    kept = Kept(reach)
    left = {at: one for at, (_, one) in enumerate(mutants) if kept.outcome(one) is None}
    print(f"seed {args.seed}: {len(mutants)} mutants, {len(left)} to judge", file=sys.stderr)
    started = time.monotonic()
    for done, (at, outcome, seconds) in enumerate(judge(reach, left, args.processes), start=1):
        kept.add(left[at], outcome)
        minutes = (time.monotonic() - started) / 60
        line = f"{done} of {len(left)}, {minutes:.0f} minutes: {outcome.how}, {seconds:.0f} s, "
        print(f"{line}{left[at].file}:{left[at].lines[0]} {outcome.killer}", file=sys.stderr)
    reasons = equivalents()
    for part, mutant in mutants:
        kept_outcome = kept.outcome(mutant)
        assert kept_outcome is not None
        yield Judged(part, mutant, kept_outcome, reasons.get(mutant.key, ""))


class Kept:
    """Outcomes of mutants of the sources and tests as they are now, on disk."""

    def __init__(self, reach: Reach) -> None:
        state = reach.project.digest(*reach.project.tests)
        self.file = reach.project.kept / f"outcomes-{state}.jsonl"
        self.outcomes = dict[str, dict[str, Any]]()
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                row = json.loads(line)
                self.outcomes[row.pop("mutant")] = row

    def outcome(self, mutant: Mutant) -> Outcome | None:
        from parity.proof.mutants.judge import Outcome

        row = self.outcomes.get(digest_of(mutant))
        return Outcome(**row) if row else None

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        self.outcomes[digest_of(mutant)] = asdict(outcome)
        with self.file.open("a") as file:
            file.write(json.dumps({"mutant": digest_of(mutant), **asdict(outcome)}) + "\n")


def digest_of(mutant: Mutant) -> str:
    return hashlib.sha256(f"{mutant.file}\0{mutant.text}".encode()).hexdigest()[:16]


def equivalents(file: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """Of mutants that no user can notice: their key -> the reason."""
    rows = json.loads(file.read_text())
    return {(row["file"], row["original"], row["mutated"]): row["reason"] for row in rows}


# == The report ==


def scores_of(judged: Sequence[Judged]) -> dict[str, Score]:
    found = {}
    for part in dict.fromkeys(one.part for one in judged):
        own = [one for one in judged if one.part == part]
        counts = Counter(one.outcome.how for one in own if not one.reason)
        found[part] = Score(len(own) - counts.total(), counts)
    return found


def report(project: Project, judged: Sequence[Judged]) -> Iterator[str]:
    for one in judged:
        is_alive = one.outcome.how in ("survived", "unreached")
        if is_alive and not one.reason:
            yield f"{one.outcome.how.upper()}, {one.outcome.tests} tests judge it"
            yield from difference(project, one.mutant)
        if one.reason and not is_alive:
            yield f"LISTED AS EQUIVALENT BUT KILLED by {one.outcome.killer}: {one.mutant.key}"
    hows = ("asserted", "hung", "raised", "survived", "unreached")
    yield f"| | mutants | equivalent | {' | '.join(hows)} | killed | killed of the silent |"
    yield "|---" * 10 + "|"
    for part, score in scores_of(judged).items():
        counts = " | ".join(str(score.counts.get(how, 0)) for how in hows)
        low, high = score.interval
        shares = f"{score.killed:.0%} ({low:.0%} to {high:.0%}) | {score.silent_killed:.0%}"
        yield f"| {part} | {score.total} | {score.equivalent} | {counts} | {shares} |"


def difference(project: Project, mutant: Mutant) -> Iterator[str]:
    before = (project.root / mutant.file).read_text().splitlines()
    after = mutant.text.splitlines()
    yield from difflib.unified_diff(before, after, mutant.file, "mutant", n=2, lineterm="")
    yield ""


# == The command ==


def add_mutants(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "mutants",
        help="mutation score of gen_engine.py and the companions, by unit tests: a random sample",
        epilog="example: python -m parity.proof mutants --only engine --count 20 --seed 20261125",
    )
    today = int(datetime.date.today().strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, metavar="N", help="default: the date")
    parser.add_argument("--count", type=int, default=100, metavar="N", help="mutants (100)")
    parser.add_argument("--only", choices=PARTS, help="default: half of the mutants of each")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at a time (2)")
    parser.set_defaults(run=run)
