"""`python -m parity rename OLD NEW`: a call site, or its function, has another name from now on."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from parity.goldens.safe_text import say
from parity.goldens.store import SITES_JSON, Store, expect_name, guess_of


def run_rename(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    are_functions = [":" in name for name in (args.old, args.new)]
    if all(are_functions):
        rename_function(store, args.old, args.new)
    elif any(are_functions):
        raise ValueError(
            f"{args.old!r} and {args.new!r}: the name of a site and a function; write OLD NEW, or"
            " pkg.mod:old pkg.mod:new"
        )
    else:
        rename_site(store, args.old, args.new)
    return 0


def rename_site(store: Store, old: str, new: str) -> None:
    """Goldens, settings and acceptances of a site come under another name. Raises GoldenError where
    a golden cannot be read, before anything is written."""
    sites = sorted({*store.sites(), *store.settings()})
    expect_name(store, old, sites, must_exist=True)
    if new in sites:
        raise ValueError(f"{new!r} is a site already; choose another name, or prune it first")
    names = store.names(old)
    for name in names:
        store.read(old, name)
    store.rename_site(old, new)
    entries = store.accepted()
    renamed = [dataclasses.replace(e, site=new) if e.site == old else e for e in entries]
    count = sum(entry.site == old for entry in entries)
    if count:
        store.set_accepted(renamed)
    say(
        f"{old} is {new} now: {len(names)} goldens, its settings and {count} acceptances. Record it"
        f" as --site {new}=... from now on"
    )


def rename_function(store: Store, old: str, new: str) -> None:
    """Write into sites.json where a recorded function is now."""
    settings = store.settings()
    sites = [site for site, said in settings.items() if old in said.get("functions", ())]
    if not sites:
        known = sorted({function for said in settings.values() for function in said["functions"]})
        raise ValueError(f"no site has a function {old!r}; {guess_of(old, known)}")
    for site in sites:
        store.set_site(site, moved={**settings[site].get("moved", {}), old: new})
        say(f'{store.root / SITES_JSON}: {site}: "moved": {{"{old}": "{new}"}}')


def add_rename(sub: Any) -> None:
    example = "example: python -m parity rename acme.answers:answer acme.answers:reply"
    parser = sub.add_parser(
        "rename", help="a call site, or its function, has another name now", epilog=example
    )
    parser.add_argument("old", metavar="OLD", help="a site, or a recorded function MOD:FUNC")
    parser.add_argument("new", metavar="NEW", help="its name now")
    parser.set_defaults(run=run_rename)
