"""`python -m parity list` and `prune`: what goldens there are, what none of them uses, what is
broken."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from typing import Any

from parity.goldens.acceptance import Accepted, idle_acceptances, name_of
from parity.goldens.safe_text import say
from parity.goldens.store import (
    MOST_JSON,
    NEXT_STEP,
    SUFFIX,
    GoldenError,
    Store,
    chosen_cases,
    known_names,
    split_cases,
)


def run_list(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    sites = store.sites()
    if not sites:
        say(f"no goldens under {store.root}; {NEXT_STEP}")
    broken = list[GoldenError]()
    for site in sites:
        names = store.names(site)
        size = sum(store.size(site, name) for name in names)
        say(f"{site}: {len(names)} cases, {size / 1024:.0f} KiB")
        cases, faults = store.read_all([site])
        broken += faults.values()
        if args.cases:
            for case in cases:
                say(f"  {site}/{case.case}  {len(case.rows)} rows  {case.function}")
    for entry in store.accepted():
        say(f"accepted until {entry.until}: {name_of(entry)}: {entry.reason}")
    for entry, why in idle_entries(store):
        say(f"unused acceptance {name_of(entry)}: {why}; `prune --yes` removes it")
    for error in broken:
        say(str(error), sys.stderr)
    if broken:
        return 3
    return 0 if sites else 5


def idle_entries(store: Store) -> list[tuple[Accepted, str]]:
    """Acceptances that can cover nothing, and why."""
    goldens = {site: store.names(site) for site in store.sites()}
    return [*idle_acceptances(store.accepted(), goldens, datetime.date.today())]


def prune_acceptances(store: Store, really: bool) -> int:
    """How many acceptances can cover nothing; removed where that is really meant."""
    idle = idle_entries(store)
    for entry, why in idle:
        say(f"{'removed' if really else 'would remove'} the acceptance {name_of(entry)}: {why}")
    if really and idle:
        gone = {entry.place for entry, _ in idle}
        store.set_accepted([entry for entry in store.accepted() if entry.place not in gone])
    return len(idle)


def run_prune(args: argparse.Namespace) -> int:
    """Blobs and environments that no case refers to, or the cases that are named."""
    store = Store(args.goldens)
    if args.cases:
        unused = named_files(store, args.cases)
        broken = False
    else:
        unused, broken = unused_files(store)
    remove_files(store, unused, really=args.yes)
    idle = 0 if args.cases else prune_acceptances(store, args.yes)
    count = f"{len(unused)} files"
    if idle:
        count += f", {idle} acceptances"
    if (unused or idle) and not args.yes:
        count += "; --yes removes them"
    print(count)
    return 3 if broken else 0


Names = tuple[str, str]  # a folder and a file in it, below the folder of goldens


def remove_files(store: Store, files: Sequence[Names], *, really: bool) -> None:
    for names in files:
        say(f"{'removed' if really else 'would remove'} {store.folder.place(*names)}")
        if really:
            store.folder.remove(*names)


def named_files(store: Store, cases: Sequence[str]) -> list[Names]:
    known = known_names(store, cases, must_exist=True)
    chosen = chosen_cases(store, *split_cases(known))
    return [(site, f"{name}{SUFFIX}") for site, names in chosen.items() for name in names]


def unused_files(store: Store) -> tuple[list[Names], bool]:
    """Files that no case refers to, and whether a case is broken, which is told. One that is cut,
    or that cannot be read, may refer to any."""
    cases, broken = store.read_all(store.sites())
    texts = [text_of(store, *place) for place in broken]
    is_whole = all(text.rstrip().endswith("}") for text in texts)
    for error in broken.values():
        advice = "" if is_whole else "; until then nothing is removed, for it may use it"
        say(f"{error}{advice}", sys.stderr)
    if not is_whole:
        return [], True
    whole = "\n".join(texts)
    unused = [names for names in store.unused(cases) if names[1].partition(".")[0] not in whole]
    return unused, bool(broken)


def text_of(store: Store, site: str, name: str) -> str:
    """A broken golden as text; "" where it cannot be read."""
    try:
        return store.folder.read(site, f"{name}{SUFFIX}", most=MOST_JSON).decode("utf-8", "replace")
    except GoldenError:
        return ""


def add_list(sub: Any) -> None:
    example = "example: python -m parity list --cases"
    parser = sub.add_parser("list", help="goldens and what is accepted", epilog=example)
    parser.add_argument("--cases", action="store_true", help="every case")
    parser.set_defaults(run=run_list)


def add_prune(sub: Any) -> None:
    example = "example: python -m parity prune --yes"
    parser = sub.add_parser("prune", help="files that no golden uses", epilog=example)
    parser.add_argument(
        "cases", nargs="*", metavar="SITE[/CASE]", help="instead: remove these goldens"
    )
    parser.add_argument("--yes", action="store_true", help="really remove them")
    parser.set_defaults(run=run_prune)
