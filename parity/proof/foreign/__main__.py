"""Check moves of other people's generation code onto gen_engine, and mistakes in those moves.

    python -m parity.proof.foreign                              all libraries, backends and dtypes
    python -m parity.proof.foreign --library trl --backend hf   some of it
    python -m parity.proof.foreign --short                      some, if the environment is there

Exit code 0: every faithful move passed and every mistake was caught. 1: not so. 2: not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from parity.environment.output_paths import file_to_write
from parity.models import real_model
from parity.proof.foreign import environment
from parity.proof.foreign.drive import LIBRARIES
from parity.proof.foreign.material import BACKENDS, DTYPES
from parity.proof.foreign.run import Job, RunError, check, lay_out, record
from parity.proof.foreign.score import Score, as_json, exit_code, render_faults, render_table, score

SHORT_LIBRARIES = ("lm_eval", "trl")
COULD_NOT_RUN = 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m parity.proof.foreign",
        description="Check moves of other people's generation code, and mistakes in them.",
        epilog="example: python -m parity.proof.foreign --library lm_eval --backend hf",
    )
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="default: all")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="default: both")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: both")
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"{' and '.join(SHORT_LIBRARIES)} on hf in float32; nothing without an environment",
    )
    parser.add_argument(
        "--json", metavar="F", type=file_to_write, help="write all answers to this file"
    )
    return parser.parse_args(arguments)


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """In the order of libraries, then dtypes, so that each golden is recorded once."""
    libraries, backends, dtypes = asked.library, asked.backend, asked.dtype
    if asked.short:
        libraries, backends, dtypes = SHORT_LIBRARIES, ("hf",), ("float32",)
    jobs = []
    for library in libraries or LIBRARIES:
        for dtype in dtypes or DTYPES:
            jobs += [Job(library, backend, dtype) for backend in backends or BACKENDS]
    return jobs


def run_job(job: Job, recorded: set[Path]) -> Score:
    """Record (once for both backends), check, score. Raises RunError."""
    started = time.monotonic()
    python = environment.python()
    if job.goldens not in recorded:
        print(f"{job.library} {job.dtype}: recording ...", file=sys.stderr, flush=True)
        recorded.add(record(python, job))
    print(f"{job.library} {job.dtype} on {job.backend}: checking ...", file=sys.stderr, flush=True)
    lay_out(job)
    row = score(job, job.mistakes, check(python, job))
    print(
        f"{'  '.join(row.cells)}  ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True
    )
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parse(arguments)
    if asked.short and not environment.is_ready():
        print("FOREIGN LIBRARIES NOT CHECKED: no environment. `make foreign` builds it (7 GB).")
        return 0
    jobs = jobs_of(asked)
    recorded: set[Path] = set()
    try:
        environment.build()
        if any(job.dtype == "bfloat16" for job in jobs):
            real_model.build()
        scores = [run_job(job, recorded) for job in jobs]
    except (environment.EnvironmentMissing, real_model.BuildError, RunError) as error:
        print(f"foreign: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    print(render_table(scores))
    if faults := render_faults(scores):
        print(f"\n{faults}")
    if asked.json:
        asked.json.write_text(json.dumps(as_json(scores), indent=2) + "\n", encoding="utf-8")
    return exit_code(scores)


if __name__ == "__main__":
    sys.exit(main())
