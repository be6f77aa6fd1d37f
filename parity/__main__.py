"""python -m parity: prove that a moved call site still gives what it gave.

    python -m parity record --site pkg.old:summarize -- python old_script.py     what the old code does, as goldens
    python -m parity check                                                       the moved code, against them
    python -m parity explain summarize/summarize-001                             why a case differs, step by step

Exit codes: 0 all within policy, 1 drift, 2 usage, 3 could not judge, 4 missing or unused (or goldens were just
written), 5 nothing compared.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parity import bench, laws, observe, report, schedule, selftest, trace, vendor
from parity.check import check_script, check_sites, chosen_cases, environment, record_again
from parity.golden import Accepted, Case, GoldenError, Store
from parity.record import Recorded, record, run_observed
from parity.verdict import Check, Outcome, Policy

USAGE = 2
ACCEPTED_DAYS = 90
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # vLLM logs to stdout, where the report is


def fail(message: str) -> int:
    print(f"parity: {message}", file=sys.stderr)
    return USAGE


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


def command_of(args: argparse.Namespace) -> list[str]:
    """What stands after `--`: a command, or with -m a module, or a bare script."""
    words: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if words[:1] == ["-m"] or (words and words[0].endswith(".py")):
        return [sys.executable, *words]
    return [sys.executable, *words[1:]] if words[:1] in (["python"], ["python3"]) else words


def sites_of(args: argparse.Namespace) -> list[observe.Site]:
    return [observe.Site.parse(text) for text in args.site or ()]


# == record ==


def run_record(args: argparse.Namespace) -> int:
    command, store = command_of(args), Store(args.goldens)
    if not command:
        return fail("nothing to run; end with `-- python old_script.py`")
    if shutil.which(command[0]) is None:
        return fail(f"there is no program {command[0]!r}")
    sites = sites_of(args)
    if sites and args.name:
        return fail("--name is for model calls outside any site; leave it out, or write --site NAME=MOD:FUNC")
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


# == check, explain, accept ==


def split_cases(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """SITE and SITE/CASE arguments -> sites, and those that name a case."""
    sites = list(dict.fromkeys(name.partition("/")[0] for name in names))
    return sites, [name for name in names if "/" in name]


def checked(args: argparse.Namespace, store: Store, names: Sequence[str]) -> Check:
    policy = Policy(strict=not args.lenient, near_ties=args.near_ties)
    sites, cases = split_cases(names)
    if wrong := [text for text in args.moved or () if "=" not in text]:
        raise ValueError(f"--moved {wrong[0]!r} says no new place; write pkg.old=pkg.new")
    moved = dict(text.split("=", 1) for text in args.moved or ())
    with progress() as tell:
        return check_sites(
            store, sites=sites or None, cases=cases or None, backends=args.backend, policy=policy, tau=args.tau,
            moved=moved, progress=tell,
        )  # fmt: skip


def script_check(args: argparse.Namespace, store: Store, command: list[str]) -> Check:
    sites = sites_of(args)
    loose = None if sites else args.name
    names = [site.name for site in sites] or [args.name]

    def observed(replay: Mapping[str, Any] | None) -> Sequence[Case]:
        with tempfile.TemporaryDirectory(prefix="parity-") as folder:
            into = Path(folder)
            return run_observed(command, into, sites=sites, loose=loose, seed=observe.SEED, replay=replay).cases

    policy = Policy(strict=not args.lenient, near_ties=args.near_ties)
    how: dict[str, Any] = {"sites": names, "policy": policy, "tau": args.tau}
    checks = [check_script(store, observed, backend=backend, **how) for backend in args.backend or [None]]
    outcomes = tuple(outcome for check in checks for outcome in check.outcomes)
    return dataclasses.replace(checks[0], outcomes=outcomes, seconds=sum(check.seconds for check in checks))


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
        return fail(why)
    if not command:
        if args.ab:
            with tempfile.TemporaryDirectory(prefix="parity-") as folder:
                fresh = Store(folder)
                record_again(store, fresh, *(split_cases(args.cases)[k] or None for k in (0, 1)))
                return reported(args, checked(args, fresh, args.cases), fresh)
        return reported(args, checked(args, store, args.cases), store)
    if args.ab:
        return fail("--ab runs recorded functions; for scripts, record the old one again into another --goldens folder")
    if not args.site and not args.name:
        return fail("say what of the script is compared: --site name=new.mod:func, or --name NAME for all model calls")
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
        return fail(f"{args.case!r} is no case; write SITE/CASE, as `python -m parity list` shows them")
    check = checked(args, store, [args.case])
    for outcome in check.outcomes:
        print(report.case_text(outcome, colour=colour(), check=check))
        print(chain_text(outcome, store))
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
        return fail(f"--until {until!r} is no day; write YYYY-MM-DD")
    check = checked(args, store, [args.case])
    open_ones = [o for o in check.outcomes if o.verdict in ("DRIFT", "LATENT", "NEAR-TIE") and o.cause is not None]
    if not open_ones:
        print(f"nothing to accept: {', '.join(f'{o.backend} {o.verdict}' for o in check.outcomes) or 'no such case'}")
        return USAGE
    for o in open_ones:
        assert o.cause is not None
        store.accept(Accepted(site, case, o.backend, o.cause.name, args.reason, until))
        print(f"accepted {o.label} on {o.backend}: {o.cause.name}, until {until}: {args.reason}")
    return 0


# == list, prune, doctor, calibrate ==


def run_list(args: argparse.Namespace) -> int:
    store, total = Store(args.goldens), 0
    broken = []
    for site in store.sites():
        names = store.names(site)
        total += len(names)
        size = sum(store.path(site, name).stat().st_size for name in names)
        print(f"{site}: {len(names)} cases, {size / 1024:.0f} KiB")
        for name in names:
            try:
                case = store.read(site, name)
            except GoldenError as error:
                broken.append(str(error))
                continue
            if args.cases:
                print(f"  {site}/{name}  {len(case.rows)} rows  {case.function}")
    for entry in store.accepted():
        print(
            f"accepted until {entry.until}: {entry.site}/{entry.case} on {entry.backend}: {entry.cause}: {entry.reason}"
        )
    for text in broken:
        print(text, file=sys.stderr)
    return 3 if broken else 0 if total else 5


def run_prune(args: argparse.Namespace) -> int:
    """Blobs and environments that no case refers to, and cases that are named."""
    store = Store(args.goldens)
    named = chosen_cases(store, *split_cases(args.cases)) if args.cases else {}
    unused = [path for site, names in named.items() for name in names if (path := store.path(site, name)).exists()]
    if not args.cases:
        used = {store.read(site, name).environment for site in store.sites() for name in store.names(site)}
        folder = store.root / "environments"
        unused = [*store.unused_blobs(), *(p for p in sorted(folder.glob("*.json")) if p.stem not in used)]
    for path in unused:
        print(f"{'removed' if args.yes else 'would remove'} {path}")
        if args.yes:
            path.unlink()
    print(f"{len(unused)} files" + ("" if args.yes or not unused else "; --yes removes them"))
    return 0


def run_doctor(args: argparse.Namespace) -> int:
    for name in ("torch", "transformers"):
        with contextlib.suppress(ImportError):
            __import__(name)
    for key, value in environment().items():
        print(f"{key:>14}  {value}")
    return run_list(args)


def run_calibrate(args: argparse.Namespace) -> int:
    from gen_engine import load
    from parity.ties import calibrate

    prompts = Path(args.prompts).read_text(encoding="utf-8").splitlines() if args.prompts else list(CALIBRATION)
    hooks = {"logits_hooks": True} if args.on == "vllm" else {}
    with load(args.model, backend=args.on, max_model_len=args.max_model_len, **hooks) as engine:
        ids = [engine.tokenizer(text)["input_ids"] for text in prompts if text]
        found = calibrate(engine, ids)
    print(f"{args.on}: tau {found['tau']:.2e} from {found['steps']:.0f} steps, in one batch against one by one")
    print(f"use it with: python -m parity check --tau {found['tau']:.2e}")
    return 0


CALIBRATION = (
    "The capital of France is",
    "Count to five: one, two,",
    "A list of colours: red, green, blue,",
    "def add(a, b):",
    "Once upon a time there was a small house at the edge of a wood, and in the house there lived",
    "2 + 2 =",
)


# == The parser ==


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
    parser.add_argument("--near-ties", type=float, default=Policy().near_ties, help="share of cases that may be one")
    parser.add_argument("--tau", type=float, help="what rounding may move a logit gap by (see calibrate)")


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


def add_others(sub: Any) -> None:
    example = "example: python -m parity explain summaries/exif-turned --backend vllm"
    parser = sub.add_parser("explain", help="why a case differs, step by step", epilog=example)
    parser.add_argument("case", metavar="SITE/CASE")
    add_check_flags(parser)
    parser.set_defaults(run=run_explain)
    example = (
        'example: python -m parity accept summaries/exif-turned --reason "the old code ignored EXIF" --until 2027-06-30'
    )
    parser = sub.add_parser("accept", help="say that a difference is wanted, why, and until when", epilog=example)
    parser.add_argument("case", metavar="SITE/CASE")
    parser.add_argument("--reason", required=True)
    parser.add_argument("--until", help=f"YYYY-MM-DD; default: in {ACCEPTED_DAYS} days")
    add_check_flags(parser)
    parser.set_defaults(run=run_accept)
    parser = sub.add_parser(
        "list", help="goldens and what is accepted", epilog="example: python -m parity list --cases"
    )
    parser.add_argument("--cases", action="store_true", help="every case")
    parser.set_defaults(run=run_list)
    parser = sub.add_parser("prune", help="files that no golden uses", epilog="example: python -m parity prune --yes")
    parser.add_argument("cases", nargs="*", metavar="SITE[/CASE]", help="instead: remove these goldens")
    parser.add_argument("--yes", action="store_true", help="really remove them")
    parser.set_defaults(run=run_prune)
    parser = sub.add_parser(
        "doctor", help="versions, goldens, what is broken", epilog="example: python -m parity doctor"
    )
    parser.set_defaults(run=run_doctor, cases=False)


def add_calibrate(sub: Any) -> None:
    example = "example: python -m parity calibrate --model Qwen/Qwen3-0.6B --on vllm"
    parser = sub.add_parser("calibrate", help="measure how far an engine is from itself", epilog=example)
    parser.add_argument("--model", required=True)
    parser.add_argument("--on", choices=("hf", "vllm"), default="hf", help="the backend")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--prompts", metavar="FILE", help="a prompt per line")
    parser.set_defaults(run=run_calibrate)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--goldens", default="golden", metavar="DIR", help="default: golden")
    sub = parser.add_subparsers(metavar="COMMAND", required=True)
    add_record(sub)
    add_check(sub)
    add_others(sub)
    add_calibrate(sub)
    for module in (selftest, bench, laws, vendor, trace, schedule):
        module.add_parser(sub)
    return parser


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words, and the command after `--`."""
    words = list(words)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def main(argv: Sequence[str] | None = None) -> int:
    mine, command = split_at_dashes(sys.argv[1:] if argv is None else argv)
    args = make_parser().parse_args(mine)
    args.command = command or getattr(args, "command", [])
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    sys.path.insert(0, os.getcwd())  # as `python -m` does, also under an installed command
    try:
        return int(args.run(args))
    except (GoldenError, ValueError, LookupError) as error:
        print(f"parity: {error}", file=sys.stderr)
        return USAGE if isinstance(error, (ValueError, LookupError)) else 3
    except OSError as error:
        print(f"parity: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
