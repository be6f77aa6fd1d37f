"""`python -m parity check`, `explain` and `accept`: judge, and say what was found."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.golden import Accepted, Case, Store, split_cases
from parity.judge.check import check_script, check_sites, record_again
from parity.record import observe
from parity.record.commands import command_of, sites_of
from parity.record.recorder import Starting, run_observed
from parity.report import report
from parity.verdict import Check, Outcome, Policy

ACCEPTED_DAYS = 90


def colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None] | None]:
    """One line on a terminal that says where a long check is."""
    if not sys.stderr.isatty():
        yield None
        return
    yield lambda text: print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)
    print("\r\033[K", end="", file=sys.stderr, flush=True)


def checked(args: argparse.Namespace, store: Store, names: Sequence[str]) -> Check:
    policy = Policy(strict=not args.lenient)
    sites, cases = split_cases(names)
    if wrong := [text for text in args.moved or () if "=" not in text]:
        raise ValueError(f"--moved {wrong[0]!r} says no new place; write pkg.old=pkg.new")
    moved = dict(text.split("=", 1) for text in args.moved or ())
    with progress() as tell:
        return check_sites(
            store, sites=sites or None, cases=cases or None, backends=args.backend, policy=policy,
            moved=moved, numerics=args.numerics, progress=tell,
        )  # fmt: skip


def script_check(args: argparse.Namespace, store: Store, command: list[str]) -> Check:
    sites = sites_of(args)
    loose = None if sites else args.name
    names = [site.name for site in sites] or [args.name]

    def observed(starting: Starting) -> Sequence[Case]:
        with tempfile.TemporaryDirectory(prefix="parity-") as folder:
            into = Path(folder)
            return run_observed(command, into, sites=sites, loose=loose, seed=observe.SEED, starting=starting).cases

    policy = Policy(strict=not args.lenient)
    how: dict[str, Any] = {"sites": names, "policy": policy, "numerics": args.numerics}
    checks = [check_script(store, observed, backend=backend, **how) for backend in args.backend or [None]]
    outcomes = tuple(outcome for check in checks for outcome in check.outcomes)
    told = tuple(numerics for check in checks for numerics in check.numerics)
    return dataclasses.replace(
        checks[0], outcomes=outcomes, seconds=sum(check.seconds for check in checks), numerics=told
    )


def no_use(args: argparse.Namespace, command: Sequence[str]) -> str:
    """What was said and would change nothing; "" if there is no such thing."""
    if command and (args.cases or args.moved):
        return "SITE[/CASE] and --moved choose recorded functions; a script is compared as a whole: leave them out"
    if not command and (args.site or args.name):
        return "--site and --name say what of a script is compared; end with `-- python new_script.py`"
    return "--name is for model calls outside any site; leave it out beside --site" if args.site and args.name else ""


def run_check(args: argparse.Namespace) -> int:
    store, command = Store(args.goldens), command_of(args)
    if why := no_use(args, command):
        raise ValueError(why)
    if not command:
        if args.ab:
            with tempfile.TemporaryDirectory(prefix="parity-") as folder:
                fresh = Store(folder)
                record_again(store, fresh, *(split_cases(args.cases)[k] or None for k in (0, 1)))
                return reported(args, checked(args, fresh, args.cases), fresh)
        return reported(args, checked(args, store, args.cases), store)
    if args.ab:
        raise ValueError(
            "--ab runs recorded functions; for scripts, record the old one again into another --goldens folder"
        )
    if not args.site and not args.name:
        raise ValueError(
            "say what of the script is compared: --site name=new.mod:func, or --name NAME for all model calls"
        )
    return reported(args, script_check(args, store, command), store)


def reported(args: argparse.Namespace, check: Check, store: Store) -> int:
    print(report.console(check, colour=colour()))
    report.write_reports(
        check, junit=args.junit, markdown=args.markdown, json_path=args.json, html=args.html, blobs=store.blobs()
    )
    return check.exit_code


def run_explain(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    if "/" not in args.case:
        raise ValueError(f"{args.case!r} is no case; write SITE/CASE, as `python -m parity list` shows them")
    check = checked(args, store, [args.case])
    for outcome in check.outcomes:
        print(report.case_text(outcome, colour=colour()))
        print(chain_text(outcome, store))
    if check.numerics:
        print(report.numerics_text(check, colour()))
    return check.exit_code


def chain_text(outcome: Outcome, store: Store) -> str:
    """How the cause was found, and how to see it again."""
    lines = [f"  {number}. {step}" for number, step in enumerate(outcome.steps, 1)]
    function = (outcome.old or {}).get("function")
    if function:
        lines.append(f"  reproduce: {function} with the arguments in {store.path(outcome.site, outcome.case)}")
    return "\n".join(lines)


def run_accept(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    site, _, case = args.case.partition("/")
    until = args.until or (datetime.date.today() + datetime.timedelta(days=ACCEPTED_DAYS)).isoformat()
    try:
        datetime.date.fromisoformat(until)
    except ValueError:
        raise ValueError(f"--until {until!r} is no day; write YYYY-MM-DD") from None
    check = checked(args, store, [args.case])
    open_ones = [o for o in check.outcomes if o.verdict in ("DRIFT", "LATENT") and o.cause is not None]
    if not open_ones:
        print(f"nothing to accept: {', '.join(f'{o.backend} {o.verdict}' for o in check.outcomes) or 'no such case'}")
        return 2  # usage
    for o in open_ones:
        assert o.cause is not None
        store.accept(Accepted(site, case, o.backend, o.cause.name, args.reason, until))
        print(f"accepted {o.label} on {o.backend}: {o.cause.name}, until {until}: {args.reason}")
    return 0


def add_check_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", action="append", choices=("hf", "vllm"), help="default: what sites.json says, or hf"
    )
    parser.add_argument(
        "--moved", action="append", metavar="OLD=NEW", help="where recorded code is now: pkg.old=pkg.new"
    )
    parser.add_argument(
        "--lenient", action="store_true", help="let LATENT pass (strict is the default while migrating)"
    )
    parser.add_argument(
        "--numerics", action="store_true", help="measure each site's rounding, also where all ids are equal"
    )


def add_check(sub: Any) -> None:
    example = "example: python -m parity check summaries --backend hf --backend vllm --html parity.html"
    parser = sub.add_parser("check", help="run the moved code on the goldens and judge", epilog=example)
    parser.add_argument("cases", nargs="*", metavar="SITE[/CASE]", help="default: all")
    add_check_flags(parser)
    parser.add_argument("--ab", action="store_true", help="run the old functions now, too, instead of reading goldens")
    parser.add_argument("--site", action="append", metavar="NAME=MOD:FUNC", help="with a script: its call sites")
    parser.add_argument("--name", help="with a script: the golden site that all its model calls belong to")
    for kind in ("junit", "markdown", "json", "html"):
        parser.add_argument(f"--{kind}", type=Path, metavar="PATH", help=f"write a {kind} report")
    parser.set_defaults(run=run_check)


def add_explain(sub: Any) -> None:
    example = "example: python -m parity explain summaries/exif-turned --backend vllm"
    parser = sub.add_parser("explain", help="why a case differs, step by step", epilog=example)
    parser.add_argument("case", metavar="SITE/CASE")
    add_check_flags(parser)
    parser.set_defaults(run=run_explain)


def add_accept(sub: Any) -> None:
    example = (
        'example: python -m parity accept summaries/exif-turned --reason "the old code ignored EXIF" --until 2027-06-30'
    )
    parser = sub.add_parser("accept", help="say that a difference is wanted, why, and until when", epilog=example)
    parser.add_argument("case", metavar="SITE/CASE")
    parser.add_argument("--reason", required=True)
    parser.add_argument("--until", help=f"YYYY-MM-DD; default: in {ACCEPTED_DAYS} days")
    add_check_flags(parser)
    parser.set_defaults(run=run_accept)
