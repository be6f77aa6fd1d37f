"""`python -m parity check`, `explain` and `accept`: judge, and say what was found."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import difflib
import fnmatch
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.environment.output_paths import file_to_write
from parity.environment.revision import checked_out
from parity.goldens.acceptance import OPEN, Accepted, acceptance_of, name_of
from parity.goldens.safe_text import log_safe, print_verdict, printable, say
from parity.goldens.store import GoldenError, Store, keep_offline, known_names, split_cases
from parity.goldens.verdict import Change, Check, Outcome, Policy
from parity.judge.ab import check_again
from parity.judge.check import TIME_LIMIT, check_sites
from parity.judge.numerics.questions import FURTHER_SECONDS
from parity.judge.row import is_drawn_anew
from parity.judge.script import check_script
from parity.judge.sites import new_function
from parity.judge.worker import output_into
from parity.record import observe
from parity.record.commands import command_of, sites_of
from parity.record.recorder import Seen, Starting, run_observed
from parity.report.console import case_text, console, numerics_text, parting_text
from parity.report.files import write_reports
from parity.report.partings import partings
from parity.report.progress import shown_progress
from parity.report.review import changes_since
from parity.report.words import only_old_lines, sentence, steps_to_cause

ACCEPTED_DAYS = 90


def colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


@contextlib.contextmanager
def engine_output(place: str | None) -> Iterator[Path | None]:
    """Send what the engines and the moved code print to a file, for as long as the block runs.

    place: the file; None for a temporary one; "-" to let it through (the file is None then).
    """
    if place == "-":
        yield None
        return
    if place is None:
        handle, name = tempfile.mkstemp(prefix="parity-", suffix=".log")
        os.close(handle)
    else:
        name = place
        Path(name).write_bytes(b"")
    with output_into(Path(name)):
        yield Path(name)


def with_log_named(code: int, log: Path | None, asked: bool) -> int:
    """The exit code, after the log was named where the check failed and it holds anything; nobody
    wants another one that was not asked for."""
    if log is None or asked:
        return code
    if code and log.stat().st_size:
        print_verdict(f"what the engines and the moved code printed: {log}")
    else:
        log.unlink()
    return code


def moved_of(args: argparse.Namespace) -> dict[str, str]:
    if wrong := [text for text in args.moved or () if "=" not in text]:
        raise ValueError(f"--moved {wrong[0]!r} says no new place; write pkg.old=pkg.new")
    return dict(text.split("=", 1) for text in args.moved or ())


def checked(
    args: argparse.Namespace,
    store: Store,
    names: Sequence[str],
    *,
    must_exist: bool = False,
    explains: bool = False,
) -> Check:
    """must_exist: whether a name without a golden is a mistake, and not MISSING."""
    policy = Policy(strict=not args.lenient)
    sites, cases = split_cases(known_names(store, names, must_exist=must_exist))
    with shown_progress(policy) as progress:
        return check_sites(
            store,
            sites=sites or None,
            cases=cases or None,
            backends=args.backend,
            policy=policy,
            moved=moved_of(args),
            numerics=args.numerics,
            numerics_seconds=args.numerics_seconds,
            progress=progress,
            time_limit=args.time_limit,
            jobs=args.jobs,
            explains=explains,
        )


def run_ab(args: argparse.Namespace, store: Store) -> int:
    """Old code now against new code now; with --old the old code is that of a git revision."""
    sites, cases = split_cases(known_names(store, args.cases))
    policy = Policy(strict=not args.lenient)
    with contextlib.ExitStack() as stack:
        old = (
            stack.enter_context(checked_out(args.old, store.root)) if args.old is not None else None
        )
        into = Store(stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-ab-")))
        progress = stack.enter_context(shown_progress(policy))
        check = check_again(
            store,
            into,
            sites=sites or None,
            cases=cases or None,
            backends=args.backend,
            policy=policy,
            numerics=args.numerics,
            numerics_seconds=args.numerics_seconds,
            moved=moved_of(args),
            progress=progress,
            time_limit=args.time_limit,
            old=old,
            jobs=args.jobs,
        )
        return reported(args, check, into)


def script_sites(args: argparse.Namespace, store: Store) -> list[observe.Site]:
    """What of a script is compared: --site, or the functions of the goldens' sites that were named,
    where they are now. Calls of a renamed function are named as the old one's."""
    named, moved = sites_of(args), moved_of(args)
    wanted = list(dict.fromkeys(site.name for site in named)) or known_names(store, args.cases)
    if whole := [name for name in wanted if "/" in name]:
        raise ValueError(
            f"{whole[0]!r} is a case; a script is compared as a whole: name the site alone"
        )
    goldens, broken = store.read_all(wanted)
    functions = {site: store.settings().get(site, {}).get("functions", ()) for site, _ in broken}
    old = [(golden.site, golden.function) for golden in goldens] + [
        (s, f) for s, some in functions.items() for f in some
    ]
    known = store.settings()
    places = {site: {**known.get(site, {}).get("moved", {}), **moved} for site, _ in old}
    now = {(site, new_function(f, places[site])): f.rpartition(":")[2] for site, f in old if f}
    if named:
        return [
            dataclasses.replace(site, stem=now.get((site.name, site.function), ""))
            for site in named
        ]
    if not now and not args.name:
        why = "; ".join(map(str, broken.values())) or "record the old code first"
        raise GoldenError(
            f"no golden under {store.root} says a function of {', '.join(wanted)}: {why}"
        )
    return [observe.Site(name, function, stem) for (name, function), stem in now.items()]


def script_check(args: argparse.Namespace, store: Store, command: list[str]) -> Check:
    sites = script_sites(args, store)
    loose = None if sites else args.name
    names = list(dict.fromkeys(site.name for site in sites)) or [args.name]
    limits = args.time_limit, args.time_limit * (1 + sum(len(store.names(name)) for name in names))

    def observed(starting: Starting) -> Seen:
        with tempfile.TemporaryDirectory(prefix="parity-") as folder:
            how: dict[str, Any] = {
                "sites": sites,
                "loose": loose,
                "seed": observe.SEED,
                "starting": starting,
            }
            return run_observed(command, Path(folder), limits=limits, **how)

    policy = Policy(strict=not args.lenient)
    how: dict[str, Any] = {
        "sites": names,
        "policy": policy,
        "numerics": args.numerics,
        "numerics_seconds": args.numerics_seconds,
    }
    checks = [
        check_script(store, observed, backend=backend, **how) for backend in args.backend or [None]
    ]
    outcomes = tuple(outcome for check in checks for outcome in check.outcomes)
    told = tuple(numerics for check in checks for numerics in check.numerics)
    unused = tuple(line for check in checks for line in check.unused_acceptances)
    left_out = tuple(line for check in checks for line in check.left_out)
    seconds = sum(check.seconds for check in checks)
    how = {"numerics": told, "unused_acceptances": unused, "left_out": left_out}
    return dataclasses.replace(checks[0], outcomes=outcomes, seconds=seconds, **how)


def no_use(args: argparse.Namespace, command: Sequence[str]) -> str:
    """What was said and would change nothing; "" if there is no such thing."""
    if command and args.name and (args.cases or args.moved):
        return (
            "SITE and --moved choose recorded functions; --name is for model calls outside any:"
            " leave one out"
        )
    if command and args.site and args.cases:
        return "SITE and --site both say what of the script is compared; leave one out"
    if command and args.jobs > 1:
        return "a script is run once, in one process; leave --jobs out"
    if not command and (args.site or args.name):
        return (
            "--site and --name say what of a script is compared; end with `-- python new_script.py`"
        )
    return (
        "--name is for model calls outside any site; leave it out beside --site"
        if args.site and args.name
        else ""
    )


def run_check(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    command = command_of(args) if args.command else []
    keep_offline()
    if args.since is not None:
        changes_since(args.since, store.root)  # a misspelt revision is told before the check
    if why := no_use(args, command):
        raise ValueError(why)
    if args.old is not None and not args.ab:
        raise ValueError(
            "--old says which revision's code is run again; write `check --ab --old REV`"
        )
    if not command:
        with engine_output(args.log) as log:
            if args.ab:
                code = run_ab(args, store)
            else:
                code = reported(args, checked(args, store, args.cases), store)
            return with_log_named(code, log, asked=args.log is not None)
    if args.ab:
        raise ValueError(
            "--ab runs recorded functions; for scripts, record the old one again into another"
            " --goldens folder"
        )
    if not args.site and not args.name and not args.cases:
        raise ValueError(
            "say what of the script is compared: SITE with --moved old.mod=new.mod, --site"
            " name=new.mod:func, or --name NAME for all model calls"
        )
    return reported(args, script_check(args, store, command), store)


def reported(args: argparse.Namespace, check: Check, store: Store) -> int:
    if args.since is not None:
        changes = changes_since(args.since, Path(args.goldens))
        changes = changes or (Change(f"none is new, changed or gone since {args.since}"),)
        check = dataclasses.replace(check, changes=changes)
    only_old = () if args.ab else only_old_lines(check.outcomes)  # --ab refuses that by itself
    check = dataclasses.replace(check, asked_with=moved_words(args), only_old=only_old)
    wanted = {
        "junit": args.junit,
        "markdown": args.markdown,
        "json_path": args.json,
        "html": args.html,
    }
    if any(wanted.values()):
        write_reports(check, store=store, **wanted)
    lines = [console(check, colour=colour())]
    if not check.outcomes and not store.sites():
        lines.append(f"no goldens under {store.root}")
    if check.failing() and args.moved:
        lines.append(
            f"accept needs {moved_words(args)}, too, until {store.root / 'sites.json'} says it"
        )
    print_verdict(log_safe("\n".join(lines)))
    return check.exit_code


def moved_words(args: argparse.Namespace) -> str:
    """--moved as it was given: a later command without it runs the old code."""
    return " ".join(f"--moved {shlex.quote(text)}" for text in args.moved or ())


def run_explain(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    keep_offline()
    if "/" not in args.case:
        raise ValueError(
            f"{args.case!r} is no case; write SITE/CASE, as `python -m parity list --cases` shows"
        )
    with engine_output(None) as log:
        check = checked(args, store, [args.case], must_exist=True, explains=True)
    for outcome in check.outcomes:
        print_verdict(case_text(outcome, asked_with=moved_words(args), colour=colour()))
        print_verdict(chain_text(outcome, store))
    if check.numerics:
        print_verdict(numerics_text(check, colour()))
    return with_log_named(check.exit_code, log, asked=False)


def chain_text(outcome: Outcome, store: Store) -> str:
    """How the cause was found, and how to see it again."""
    steps = map(printable, steps_to_cause(outcome))
    lines = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    function = (outcome.old or {}).get("function")
    if function:
        lines.append(
            f"  reproduce: {printable(function)} with the arguments in"
            f" {store.path(outcome.site, outcome.case)}"
        )
    return log_safe("\n".join(lines))


def until_of(args: argparse.Namespace) -> str:
    until = (
        args.until or (datetime.date.today() + datetime.timedelta(days=ACCEPTED_DAYS)).isoformat()
    )
    try:
        datetime.date.fromisoformat(until)
    except ValueError:
        raise ValueError(f"--until {until!r} is no day; write YYYY-MM-DD") from None
    return str(until)


def run_accept(args: argparse.Namespace) -> int:
    """Each case, backend and cause that is open becomes an entry of its own: what comes later is
    not covered."""
    if args.withdraw:
        return run_withdraw(args)
    if not args.reason:
        raise ValueError("accept: say why the difference is wanted, --reason TEXT")
    store, until = Store(args.goldens), until_of(args)
    keep_offline()
    with engine_output(None) as log:
        check = checked(args, store, args.cases, must_exist=True)
    open_ones = [o for o in check.outcomes if o.verdict in OPEN and o.cause is not None]
    if not open_ones:
        found = ", ".join(f"{o.backend} {o.verdict}" for o in check.outcomes)
        print(f"nothing to accept: {found or 'no such case'}")
        return with_log_named(2, log, asked=False)  # usage
    with_log_named(0, log, asked=False)
    anew = [o for o in open_ones if is_sampled_anew(o)]
    open_ones = [o for o in open_ones if o not in anew]
    for outcome in anew:
        say(f"{outcome.label} on {outcome.backend}: {NOT_HELD}")
    if not open_ones:
        return 2
    entries = [acceptance_of(outcome, args.reason, until) for outcome in open_ones]
    for outcome, entry in zip(open_ones, entries):
        say(would_cover(outcome, entry))
    if args.dry_run or not is_agreed("accept"):
        print(f"nothing is written; without --dry-run {len(entries)} would be")
        return 0
    for entry in entries:
        store.accept(entry)
        say(f"accepted {name_of(entry)}, until {until}: {args.reason}")
    say(covered_text(check, open_ones))
    return 2 if anew else 0


NOT_HELD = (
    "not accepted, for it is sampled without a seed: an acceptance covers one value, and the next"
    " check samples another. Pass each call a seed, or record the new code"
)


def is_sampled_anew(outcome: Outcome) -> bool:
    return any(map(is_drawn_anew, (outcome.new or {}).get("rows", ())))


def would_cover(outcome: Outcome, entry: Accepted) -> str:
    """What an acceptance binds: each change, and what the new code gives."""
    lines = [f"{outcome.label} on {outcome.backend}: {outcome.verdict} {entry.cause}"]
    lines += [f"  {change}" for change in entry.changes]
    lines.append(f"  {sentence(outcome)}")
    lines += [parting_text(found, False) for found in partings(outcome)]
    lines.append(f"  and this value alone, {entry.gives}")
    return "\n".join(lines)


def run_withdraw(args: argparse.Namespace) -> int:
    """Take acceptances away; nothing is run, and their cases may be gone."""
    if args.reason or args.until:
        raise ValueError("accept --withdraw takes acceptances away; leave --reason and --until out")
    store = Store(args.goldens)
    entries = store.accepted()
    chosen = chosen_acceptances(entries, args.cases, args.backend)
    for entry in chosen:
        say(f"{name_of(entry)}, until {entry.until}: {entry.reason}")
    if args.dry_run or not is_agreed("withdraw"):
        print(f"nothing is written; without --dry-run {len(chosen)} would be withdrawn")
        return 0
    store.set_accepted([entry for entry in entries if entry not in chosen])
    print(f"withdrawn: {len(chosen)} of {len(entries)}; `check` judges these cases anew")
    return 0


def chosen_acceptances(
    entries: Sequence[Accepted], names: Sequence[str], backends: Sequence[str] | None
) -> list[Accepted]:
    """Those of SITE[/CASE] words, which may be patterns, on the backends, or on any. Raises
    ValueError for a word that none is of."""
    there = [entry for entry in entries if not backends or entry.backend in backends]
    chosen: list[Accepted] = []
    for name in names:
        site, _, case = name.partition("/")
        whole = f"{site}/{case or '*'}"
        own = [e for e in there if fnmatch.fnmatchcase(f"{e.site}/{e.case}", whole)]
        if not own:
            known = [label for e in there for label in (e.site, f"{e.site}/{e.case}")]
            close = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {close[0]!r}?" if close else "`parity list` shows them"
            on = f" on {', '.join(backends)}" if backends else ""
            raise ValueError(f"nothing is accepted of {name!r}{on}; {guess}")
        chosen += [entry for entry in own if entry not in chosen]
    return chosen


def is_agreed(what: str) -> bool:
    """Whether to write; asked of somebody at a terminal, and taken for granted elsewhere."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return input(f"{what} these? [y/N] ").strip().lower() in ("y", "yes")


def covered_text(check: Check, accepted: Sequence[Outcome]) -> str:
    """How much was accepted under which cause, and what fails all the same."""
    causes = collections.Counter(f"{o.verdict} {o.cause.name}" for o in accepted if o.cause)
    lines = [
        f"covers {len(accepted)} of {len(check.outcomes)}: "
        + ", ".join(f"{n} {c}" for c, n in causes.items())
    ]
    left = [o for o in check.failing() if o not in accepted]
    lines += [f"not covered, and fails: {o.label} on {o.backend} {o.verdict}" for o in left]
    return "\n".join(lines)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= 1")
    return int(text)


def add_check_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        action="append",
        choices=("hf", "vllm"),
        help="default: what sites.json says, or hf",
    )
    parser.add_argument(
        "--moved",
        action="append",
        metavar="OLD=NEW",
        help="where recorded code is now: pkg.old=pkg.new",
    )
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="let LATENT pass (strict is the default while migrating)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=(
            "what one case may take, with loading its model, before its process is ended; of a"
            f" script, the time from call to call (default: {TIME_LIMIT:g})"
        ),
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        default=1,
        metavar="N",
        help="judge so many sites at a time, each in a process with its own engines (default: 1)",
    )
    parser.add_argument(
        "--numerics",
        action="store_true",
        help="measure each site's rounding, also where all ids are equal",
    )
    parser.add_argument(
        "--numerics-seconds",
        type=float,
        default=FURTHER_SECONDS,
        metavar="SECONDS",
        help=(
            "what a site may take for further tokens, where its goldens are too few to tell"
            f" rounding from a fault; 0: make none (default: {FURTHER_SECONDS:g})"
        ),
    )


def add_check(sub: Any) -> None:
    example = (
        "example: python -m parity check summaries --backend hf --backend vllm --html parity.html"
    )
    parser = sub.add_parser(
        "check", help="run the moved code on the goldens and judge", epilog=example
    )
    parser.add_argument("cases", nargs="*", metavar="SITE[/CASE]", help="default: all")
    add_check_flags(parser)
    parser.add_argument(
        "--ab",
        action="store_true",
        help="run the old functions now, too, instead of reading goldens",
    )
    parser.add_argument(
        "--old",
        metavar="REV",
        help="with --ab: the old code is that of a git revision (changed in place)",
    )
    parser.add_argument(
        "--site", action="append", metavar="NAME=MOD:FUNC", help="with a script: its call sites"
    )
    parser.add_argument(
        "--name", help="with a script: the golden site that all its model calls belong to"
    )
    parser.add_argument(
        "--since",
        metavar="REV",
        help="also say which goldens, settings and acceptances are new, changed or gone since a git"
        " revision, as for the review of a pull request: --since origin/main",
    )
    parser.add_argument(
        "--log",
        metavar="PATH",
        help="where the engines and the moved code print to; - for this terminal (default: a"
        " temporary file, named if the check fails)",
    )
    for kind in ("junit", "markdown", "json", "html"):
        parser.add_argument(
            f"--{kind}", type=file_to_write, metavar="PATH", help=f"write a {kind} report"
        )
    parser.set_defaults(run=run_check)


def add_explain(sub: Any) -> None:
    example = "example: python -m parity explain summaries/exif-turned --backend vllm"
    parser = sub.add_parser("explain", help="why a case differs, step by step", epilog=example)
    parser.add_argument("case", metavar="SITE/CASE")
    add_check_flags(parser)
    parser.set_defaults(run=run_explain)


def add_accept(sub: Any) -> None:
    example = (
        'example: python -m parity accept summaries/exif-turned --reason "the old code ignored'
        ' EXIF" --until 2027-06-30'
    )
    parser = sub.add_parser(
        "accept", help="say that a difference is wanted, why, and until when", epilog=example
    )
    parser.add_argument("cases", nargs="+", metavar="SITE/CASE", help="patterns too: 'summaries/*'")
    parser.add_argument("--reason", help="why the difference is wanted")
    parser.add_argument(
        "--withdraw", action="store_true", help="take the acceptances of these cases away instead"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be covered, and write nothing"
    )
    parser.add_argument("--until", help=f"YYYY-MM-DD; default: in {ACCEPTED_DAYS} days")
    add_check_flags(parser)
    parser.set_defaults(run=run_accept)
