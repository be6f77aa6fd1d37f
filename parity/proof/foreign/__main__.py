"""Check moves of other people's generation code onto gen_engine, and mistakes in those moves.

    python -m parity.proof.foreign                              all libraries, backends and dtypes
    python -m parity.proof.foreign --library trl --backend hf   some of it
    python -m parity.proof.foreign --short                      some, if the environment is there
    python -m parity.proof.foreign --recorded                   record only what no earlier run has

Exit code 0: every faithful move passed and every mistake was caught. 1: not so. 2: not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

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
        "--recorded", action="store_true", help="record only what no earlier run has recorded"
    )
    parser.add_argument(
        "--json", metavar="F", type=file_to_write, help="write all answers to this file"
    )
    return parser.parse_args(arguments)


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """In the order of dtypes, then backends, then libraries."""
    libraries, backends, dtypes = asked.library, asked.backend, asked.dtype
    if asked.short:
        libraries, backends, dtypes = SHORT_LIBRARIES, ("hf",), ("float32",)
    return [
        Job(library, backend, dtype)
        for dtype in dtypes or DTYPES
        for backend in backends or BACKENDS
        for library in libraries or LIBRARIES
    ]


def tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def run_all(jobs: Sequence[Job], *, record_anew: bool = True) -> list[Score]:
    """Record each library, check each backend and dtype, score. Raises RunError."""
    python = environment.python()
    for library in sorted({job.library for job in jobs}):
        own = [job for job in jobs if job.library == library]
        if record_anew or not all(job.is_recorded for job in own):
            tell(f"{library}: recording")
            record(python, own)
    scores = []
    for store in dict.fromkeys(job.store for job in jobs):
        alike = [job for job in jobs if job.store == store]
        tell(f"{alike[0].dtype} on {alike[0].backend}: checking")
        lay_out(alike)
        answers = check(python, alike[0])
        scores += [score(job, job.mistakes, answers) for job in alike]
        print(render_table(scores[-len(alike) :]), file=sys.stderr, flush=True)
    return sorted(scores, key=lambda each: each.cells[:3])


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parse(arguments)
    if asked.short and not environment.is_ready():
        print("FOREIGN LIBRARIES NOT CHECKED: no environment. `make foreign` builds it (7 GB).")
        return 0
    jobs = jobs_of(asked)
    try:
        environment.build()
        if any(job.dtype == "bfloat16" for job in jobs):
            real_model.build()
        scores = run_all(jobs, record_anew=not asked.recorded)
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
