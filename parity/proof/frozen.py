"""All outcomes of the harness, frozen, and a command that compares a run with them: python -m parity.proof frozen

A judge that is rebuilt must say what it said, or better. `frozen_outcomes.json` holds, one line each, the verdict, the
cause, its certainty and what else differs, of every golden, every mutation, every clean run, the real model's moves
and other people's libraries. `frozen_answers.json` holds the right answers where a frozen one is wrong, and why: a run
that gives one of them has mended it.

    frozen goldens/selftest/zero/hf      "IDENTICAL"
    frozen mutations/NAME/SITE/CASE   "DRIFT stop.eos_set; confirmed | also stop.length"
    frozen foreign/trl/float32/hf/SITE/CASE   "DRIFT rng; likely"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.goldens.store import Store
from parity.goldens.verdict import Outcome
from parity.judge.check import check_sites
from parity.proof import selftest
from parity.proof.real import ground

OUTCOMES = Path(__file__).with_name("frozen_outcomes.json")
ANSWERS = Path(__file__).with_name("frozen_answers.json")
BACKENDS = ("hf", "vllm")

Outcomes = dict[str, str]  # "part/…" -> what was said


def said(outcome: Outcome) -> str:
    """A verdict in one line: "DRIFT stop.eos_set; confirmed | also stop.length"."""
    cause = f" {outcome.cause}" if outcome.cause is not None else ""
    also = f" | also {', '.join(sorted(outcome.also))}" if outcome.also else ""
    return f"{outcome.verdict}{cause}{also}"


# == The parts: each yields (key, outcome) ==


def goldens(store: Store) -> Iterator[tuple[str, str]]:
    """Every golden of the moved call sites, on both backends."""
    for outcome in check_sites(store, backends=BACKENDS, jobs=2).outcomes:
        yield f"goldens/{outcome.label}/{outcome.backend}", said(outcome)


def mutations(store: Store) -> Iterator[tuple[str, str]]:
    """Every committed mutation, on the goldens that show it, and the clean runs beside them."""
    result = selftest.selftest(store)
    for score in result.scores:
        for outcome in score.outcomes:
            yield f"mutations/{score.name}/{outcome.label}", said(outcome)
    for outcome in result.clean:
        yield f"clean/{outcome.label}/{outcome.backend}", said(outcome)


def real(store: Store) -> Iterator[tuple[str, str]]:
    """The moves of the real model; its goldens are recorded first."""
    recorded = Store(ground.GOLDENS)
    ground.record(recorded)
    for row in ground.judge_all(recorded, BACKENDS, ground.MOVES):
        for outcome in row.check.outcomes:
            yield f"real/{row.move.name}/{outcome.label}/{outcome.backend}", said(outcome)


def foreign(store: Store) -> Iterator[tuple[str, str]]:
    """Other people's libraries, moved and moved wrongly; their goldens are recorded first."""
    from parity.models import real_model  # the foreign room is no part of the package
    from parity.proof.foreign import environment
    from parity.proof.foreign.__main__ import jobs_of, parse, run_job
    from parity.proof.foreign.score import as_json

    environment.build()
    real_model.build()
    recorded: set[Path] = set()
    for job in jobs_of(parse([])):
        yield from foreign_answers(as_json([run_job(job, recorded)]))


def foreign_answers(scores: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Of what `python -m parity.proof.foreign --json FILE` writes."""
    for score in scores:
        job = score["job"]
        place = f"foreign/{job['library']}/{job['dtype']}/{job['backend']}"
        answers = [*score["faithful"], *(one for found in score["found"] for one in found["answers"])]
        for answer in answers:
            cause = f" {answer['cause']}; {answer['certainty']}" if answer["cause"] else ""
            yield f"{place}/{answer['site']}/{answer['case']}", f"{answer['verdict']}{cause}"


PARTS: Mapping[str, Callable[[Store], Iterator[tuple[str, str]]]] = {
    "goldens": goldens,
    "mutations": mutations,
    "real": real,
    "foreign": foreign,
}
KINDS = {
    "goldens": ("goldens",),
    "mutations": ("mutations", "clean"),
    "real": ("real",),
    "foreign": ("foreign",),
}


# == Comparing ==


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside the frozen outcomes.   changed: key -> (frozen, now), without a reason.   mended: keys that now have
    the right answer.   gone: frozen keys that the run did not give.   new: keys that were not frozen."""

    same: int
    changed: Mapping[str, tuple[str, str]]
    mended: tuple[str, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not (self.changed or self.gone)

    def text(self) -> str:
        lines = [f"{key}\n    was {old}\n    is  {now}" for key, (old, now) in self.changed.items()]
        lines += [f"{key}: mended" for key in self.mended]
        lines += [f"{key}: was frozen, and this run does not have it" for key in self.gone]
        lines += [f"{key}: is new" for key in self.new]
        counts = f"{self.same} the same, {len(self.changed)} changed, {len(self.mended)} mended"
        return "\n".join([*lines, f"{counts}, {len(self.gone)} gone, {len(self.new)} new"])


def head(said: str) -> str:
    """Verdict and cause, without its certainty and what else differs: "DRIFT stop.rule"."""
    return said.partition(" | ")[0].partition(";")[0]


def compare(frozen: Mapping[str, str], now: Mapping[str, str], answers: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """answers: key -> {"right": the heads of the right answers, "why": the reason}."""
    changed: dict[str, tuple[str, str]] = {}
    mended = []
    for key in frozen.keys() & now.keys():
        if frozen[key] == now[key]:
            continue
        if head(now[key]) in answers.get(key, {}).get("right", ()):
            mended.append(key)
        else:
            changed[key] = frozen[key], now[key]
    both = frozen.keys() & now.keys()
    return Comparison(
        same=len(both) - len(changed) - len(mended),
        changed=dict(sorted(changed.items())),
        mended=tuple(sorted(mended)),
        gone=tuple(sorted(frozen.keys() - now.keys())),
        new=tuple(sorted(now.keys() - frozen.keys())),
    )


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return loaded


def write(path: Path, outcomes: Mapping[str, str]) -> None:
    """A line for each, so that a review shows what changed."""
    path.write_text(json.dumps(dict(sorted(outcomes.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# == The command ==


def outcomes_of(part: str, args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    if part == "foreign" and args.foreign is not None:
        return foreign_answers(json.loads(args.foreign.read_text(encoding="utf-8")))
    return PARTS[part](Store(args.goldens))


def parts_of(args: argparse.Namespace) -> list[str]:
    """Raises ValueError."""
    parts: list[str] = args.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"--parts {unknown[0]}: expected some of {', '.join(PARTS)}")
    if args.foreign is not None and "foreign" not in parts:
        raise ValueError("--foreign: these are answers of the part foreign; add it to --parts")
    return parts


def run(args: argparse.Namespace) -> int:
    parts = parts_of(args)
    now: Outcomes = {}
    for part in parts:
        print(f"{part} ...", file=sys.stderr, flush=True)
        now.update(outcomes_of(part, args))
    kinds = {kind for part in parts for kind in KINDS[part]}
    before = read(args.file)
    mine = {key: value for key, value in before.items() if key.partition("/")[0] in kinds}
    if args.write:
        others = {key: value for key, value in before.items() if key not in mine}
        write(args.file, {**others, **now})
        print(f"{len(now)} outcomes of {', '.join(parts)} written to {args.file}")
        return 0
    found = compare(mine, now, read(ANSWERS))
    print(found.text())
    return 0 if found.holds else 1


def add_frozen(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "frozen",
        help="compare all outcomes of the harness with those that were frozen",
        epilog="example: python -m parity.proof frozen --parts goldens",
    )
    parser.add_argument(
        "--parts", default="goldens,mutations", help=f"some of {', '.join(PARTS)}; default: %(default)s"
    )
    parser.add_argument("--write", action="store_true", help="freeze what this run gives")
    parser.add_argument(
        "--foreign", type=Path, metavar="FILE", help="what `make foreign FOREIGN='--json FILE'` wrote: no second run"
    )
    parser.add_argument(
        "--file", type=Path, default=OUTCOMES, metavar="FILE", help="default: parity/proof/frozen_outcomes.json"
    )
    parser.set_defaults(run=run)
