"""`python -m parity record`: run unmodified old code and keep what it does. Also how a command line names sites."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from parity.golden import Store
from parity.record import observe
from parity.record.recorder import Recorded, record


def command_of(args: argparse.Namespace) -> list[str]:
    """What stands after `--`: a command, or with -m a module, or a bare script."""
    words: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if words[:1] == ["-m"] or (words and words[0].endswith(".py")):
        return [sys.executable, *words]
    return [sys.executable, *words[1:]] if words[:1] in (["python"], ["python3"]) else words


def sites_of(args: argparse.Namespace) -> list[observe.Site]:
    return [observe.Site.parse(text) for text in args.site or ()]


def run_record(args: argparse.Namespace) -> int:
    command, store = command_of(args), Store(args.goldens)
    if not command:
        raise ValueError("nothing to run; end with `-- python old_script.py`")
    if shutil.which(command[0]) is None:
        raise ValueError(f"there is no program {command[0]!r}")
    sites = sites_of(args)
    if sites and args.name:
        raise ValueError("--name is for model calls outside any site; leave it out, or write --site NAME=MOD:FUNC")
    loose = None if sites else args.name or Path(command[-1] if len(command) == 1 else command[1]).stem.strip("-")
    done = record(
        command, store, sites=sites, loose=loose, seed=None if args.no_seed else observe.SEED,
        repeat=args.repeat, samples=args.samples, overwrite=args.overwrite,
    )  # fmt: skip
    for site in {case.site for case in done.written}:
        store.set_site(site)
    print(recorded_text(done, store))
    called = {case.function for case in done.seen.cases}
    for unseen in [site for site in sites if site.function not in called]:
        hint = "" if unseen.module.endswith(".py") else "; a function of the script itself is written script.py:func"
        print(f"nothing of {unseen.function} was recorded{hint}")
    return done.exit_code


def recorded_text(done: Recorded, store: Store) -> str:
    seen, lines = done.seen, []
    for kind, cases in (("written", done.written), ("unchanged", done.same), ("NOT replaced", done.refused)):
        for site in sorted({case.site for case in cases}):
            mine = [case for case in cases if case.site == site]
            rows = sum(len(case.rows) for case in mine)
            lines.append(f"{kind:>12}  {site}: {len(mine)} cases, {rows} model rows")
    own, whole = seen.overhead
    lines.append(f"recorder: {own:.2f} s of {whole:.2f} s ({100 * own / whole if whole else 0:.1f} %)")
    lines += [f"recorder failure (the script was not disturbed): {text}" for text in dict.fromkeys(seen.failures)]
    unstable = [case.case for case in done.written if case.repeats is False]
    if unstable:
        lines.append(f"the old code does not repeat itself on: {', '.join(unstable)}")
    if seen.returncode:
        lines.append(f"the script itself ended with {seen.returncode}")
    if not seen.cases:
        lines.append("nothing was recorded: no call of a site, and no model call, was seen")
    elif done.refused:
        lines.append("goldens that differ are replaced with --overwrite only")
    elif done.written:
        lines.append(
            f"goldens are in {store.root}: read and commit them; a run that wrote goldens does not pass (exit 4)"
        )
    return "\n".join(lines)


def add_record(sub: Any) -> None:
    example = "example: python -m parity record --site app.summaries:summarize -- python -m app.main photo.jpg"
    parser = sub.add_parser("record", help="run unmodified old code and keep what it does", epilog=example)
    parser.add_argument("--site", action="append", metavar="[NAME=]MOD:FUNC", help="a call site; MOD may be script.py")
    parser.add_argument(
        "--name", help="without --site: what the model calls are filed under (default: the script's name)"
    )
    parser.add_argument("--no-seed", action="store_true", help="leave random generators as the script has them")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run N times, to find what does not repeat")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="N more runs with other seeds, values kept")
    parser.add_argument("--overwrite", action="store_true", help="replace goldens that differ")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- python script.py …, -- -m pkg.mod …")
    parser.set_defaults(run=run_record)
