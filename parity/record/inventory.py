"""`python -m parity list` and `prune`: what goldens there are, what none of them uses, what is
broken."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Sequence
from typing import Any

from parity.goldens.acceptance import Accepted, idle_acceptances, name_of
from parity.goldens.safe_text import say
from parity.goldens.store import (
    MOST_JSON,
    NEXT_STEP,
    SITES_JSON,
    SUFFIX,
    GoldenError,
    SettingsError,
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
    try:
        store.settings()
    except SettingsError as fault:
        broken.append(fault)
    for error in broken:
        say(str(error), sys.stderr)
    if broken:
        return 3
    return 0 if sites else 5


def idle_entries(store: Store) -> list[tuple[Accepted, str]]:
    """Acceptances that can cover nothing, and why."""
    goldens = {site: store.names(site) for site in store.sites()}

    def read(entry: Accepted) -> dict[str, Any] | None:
        with contextlib.suppress(GoldenError):  # which is told where goldens are listed
            return store.read(entry.site, entry.case).to_json()
        return None

    return [*idle_acceptances(store.accepted(), goldens, datetime.date.today(), read)]


Idle = Sequence[tuple[Accepted, str]]  # an acceptance, and why it goes


def remove_acceptances(store: Store, idle: Idle, *, really: bool) -> None:
    for entry, why in idle:
        say(f"{'removed' if really else 'would remove'} the acceptance {name_of(entry)}: {why}")
    if really and idle:
        gone = {entry.place for entry, _ in idle}
        store.set_accepted([entry for entry in store.accepted() if entry.place not in gone])


def remove_settings(store: Store, sites: Sequence[str], *, really: bool) -> None:
    for site in sites:
        say(f"{'removed' if really else 'would remove'} from {store.root / SITES_JSON}: {site}")
        if really:
            store.drop_site(site)


def run_prune(args: argparse.Namespace) -> int:
    """What no case refers to; or the sites and cases that are named, with all that is theirs."""
    store = Store(args.goldens)
    broken = False
    idle: Idle
    sites: Sequence[str] = ()
    if args.cases:
        names = known_names(store, args.cases, must_exist=True)
        unused = named_files(store, names)
        sites = [name for name in names if name in store.settings()]
        idle = acceptances_of(store, names)
    else:
        unused, broken = unused_files(store)
        idle = idle_entries(store)
    remove_files(store, unused, really=args.yes)
    remove_settings(store, sites, really=args.yes)
    remove_acceptances(store, idle, really=args.yes)
    print(count_text(len(unused), len(sites), len(idle), is_done=args.yes))
    return 3 if broken else 0


def count_text(files: int, sites: int, acceptances: int, *, is_done: bool) -> str:
    counts = [f"{files} files"]
    if sites:
        counts.append(f"{sites} sites")
    if acceptances:
        counts.append(f"{acceptances} acceptances")
    if (files or sites or acceptances) and not is_done:
        counts[-1] += "; --yes removes them"
    return ", ".join(counts)


def acceptances_of(store: Store, names: Sequence[str]) -> Idle:
    """Those of SITE[/CASE] words."""
    entries = store.accepted()
    own = [e for e in entries if e.site in names or f"{e.site}/{e.case}" in names]
    return [(entry, "its golden goes") for entry in own]


Names = tuple[str, str]  # a folder and a file in it, below the folder of goldens


def remove_files(store: Store, files: Sequence[Names], *, really: bool) -> None:
    for names in files:
        say(f"{'removed' if really else 'would remove'} {store.folder.place(*names)}")
        if really:
            store.folder.remove(*names)


def named_files(store: Store, names: Sequence[str]) -> list[Names]:
    chosen = chosen_cases(store, *split_cases(names))
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
        "cases",
        nargs="*",
        metavar="SITE[/CASE]",
        help="instead: remove these goldens, and of a site all that belongs to it",
    )
    parser.add_argument("--yes", action="store_true", help="really remove them")
    parser.set_defaults(run=run_prune)
