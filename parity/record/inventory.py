"""`python -m parity list` and `prune`: what goldens there are, what none of them uses, what is broken."""

from __future__ import annotations

import argparse
import datetime
import sys
from typing import Any

from parity.acceptance import idle_acceptances, name_of
from parity.golden import GoldenError, Store, chosen_cases, split_cases


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
    for entry, why in idle_acceptances(store.accepted(), goldens_of(store), datetime.date.today()):
        print(f"unused acceptance {name_of(entry)}: {why}; `prune --yes` removes it")
    for text in broken:
        print(text, file=sys.stderr)
    return 3 if broken else 0 if total else 5


def goldens_of(store: Store) -> dict[str, list[str]]:
    return {site: store.names(site) for site in store.sites()}


def prune_acceptances(store: Store, really: bool) -> int:
    """How many acceptances can cover nothing; removed where that is really meant."""
    idle = list(idle_acceptances(store.accepted(), goldens_of(store), datetime.date.today()))
    for entry, why in idle:
        print(f"{'removed' if really else 'would remove'} the acceptance {name_of(entry)}: {why}")
    if really and idle:
        gone = {entry.place for entry, _ in idle}
        store.set_accepted([entry for entry in store.accepted() if entry.place not in gone])
    return len(idle)


def run_prune(args: argparse.Namespace) -> int:
    """Blobs and environments that no case refers to, and cases that are named."""
    store = Store(args.goldens)
    named = chosen_cases(store, *split_cases(args.cases)) if args.cases else {}
    unused = [path for site, names in named.items() for name in names if (path := store.path(site, name)).exists()]
    cases, broken = store.read_all([] if args.cases else store.sites())
    if not args.cases:
        texts = [store.path(*place).read_text("utf-8", "replace") for place in broken]
        whole = all(text.rstrip().endswith("}") for text in texts)  # else nobody knows what stood behind the cut
        unused = [p for p in store.unused(cases) if whole and not any(p.stem in text for text in texts)]
        for error in broken.values():
            print(error if whole else f"{error}; until then nothing is removed, for it may use it", file=sys.stderr)
    for path in unused:
        print(f"{'removed' if args.yes else 'would remove'} {path}")
        if args.yes:
            path.unlink()
    idle = 0 if args.cases else prune_acceptances(store, args.yes)
    count = f"{len(unused)} files" + (f", {idle} acceptances" if idle else "")
    print(count + ("" if args.yes or not (unused or idle) else "; --yes removes them"))
    return 3 if broken else 0


def add_list(sub: Any) -> None:
    parser = sub.add_parser(
        "list", help="goldens and what is accepted", epilog="example: python -m parity list --cases"
    )
    parser.add_argument("--cases", action="store_true", help="every case")
    parser.set_defaults(run=run_list)


def add_prune(sub: Any) -> None:
    parser = sub.add_parser("prune", help="files that no golden uses", epilog="example: python -m parity prune --yes")
    parser.add_argument("cases", nargs="*", metavar="SITE[/CASE]", help="instead: remove these goldens")
    parser.add_argument("--yes", action="store_true", help="really remove them")
    parser.set_defaults(run=run_prune)
