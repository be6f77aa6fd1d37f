"""What `parity draft` and `parity migrate` do."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.draft import proving
from parity.draft.decisions import Decisions, terminal
from parity.draft.module import Draft, draft_module
from parity.draft.observed import DraftError, Observed, observe
from parity.goldens.safe_text import say
from parity.goldens.store import Store
from parity.record import commands as recording
from parity.record.calls import Site
from parity.record.recorder import record
from parity.record.seeds import SEED
from parity.scan.scan import scan

TODO_LEFT = 3
NOTHING = 5
OLD_NAME = "{name}_before"


@dataclass(frozen=True)
class RecordedSource:
    """A site with its source.   module: as it was recorded."""

    seen: Observed
    module: str
    path: Path
    source: str


def source_of(seen: Observed) -> tuple[str, Path]:
    """(the module that was recorded, its file). Raises DraftError."""
    modules = sorted({function.rpartition(":")[0] for function in seen.functions})
    if not modules:
        problem = f"{seen.site}: its model calls belong to no function"
        raise DraftError(f"{problem}. Record one: --site {seen.site}=script.py:function")
    if len(modules) > 1:
        problem = f"{seen.site} holds functions of {', '.join(modules)}"
        raise DraftError(f"{problem}. Record each module as a site of its own")
    path = recording.source_file(modules[0], ())
    if path is None:
        raise DraftError(
            f"{seen.site}: the source of {modules[0]} is not found. Run it where the old code was "
            "recorded"
        )
    return modules[0], path


def site_of(store: Store, name: str) -> RecordedSource:
    seen = observe(store, name)
    module, path = source_of(seen)
    return RecordedSource(seen, module, path, path.read_text(encoding="utf-8"))


# == draft ==


def run_draft(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    site = site_of(store, args.site)
    draft = drafted(args, site)
    out = write_draft(args, draft, site)
    for line in todo_lines(draft, site.path):
        say(line, sys.stderr)
    if not draft.is_moved:
        return TODO_LEFT
    entry = settings_of(store, site, draft, out)
    if not args.check:
        if out is not None:
            say(next_step(args.site, entry), sys.stderr)
        return TODO_LEFT if draft.todos else 0
    codes = proving.check_draft(store, args.site, entry, args.backend or proving.BACKENDS)
    for line in proving.code_lines(codes):
        say(line)
    code = proving.gravest(codes)
    return code or (TODO_LEFT if draft.todos else 0)


def drafted(args: argparse.Namespace, site: RecordedSource) -> Draft:
    ask = Decisions(yes=args.yes, read=None if args.yes else terminal())
    return draft_module(site.source, site.seen, ask, args.engine, is_cut_moved=args.stops)


def settings_of(
    store: Store, site: RecordedSource, draft: Draft, out: Path | None
) -> dict[str, Any]:
    entry = store.settings().get(site.seen.site, {})
    new = site.module
    if out is not None and out != site.path:
        new = proving.new_module(site.module, out)
    return proving.site_settings(entry, site.module, new, draft.factories)


def next_step(name: str, entry: dict[str, Any]) -> str:
    """What to write into sites.json, and the check that reads it."""
    wanted = {key: entry[key] for key in ("moved", "arguments") if key in entry}
    said = json.dumps({name: wanted})
    return f"say in sites.json where the code is now: {said}; then `parity check {name}`"


def write_draft(args: argparse.Namespace, draft: Draft, site: RecordedSource) -> Path | None:
    """The file that was written, or None. Raises DraftError rather than write over one."""
    if args.diff:
        print(patch(site, draft.code), end="")
        return None
    if args.in_place:
        return edited_in_place(site, draft)
    out = Path(args.out) if args.out else None
    if out is None and args.check:
        out = site.path.with_name(f"{site.path.stem}_moved.py")
    if out is None:
        print(draft.code, end="")
        return None
    with refusing_existing(out), open(out, "x", encoding="utf-8") as file:
        file.write(draft.code)
    say(f"wrote {out}", sys.stderr)
    return out


@contextlib.contextmanager
def refusing_existing(out: Path) -> Any:
    try:
        yield
    except FileExistsError:
        raise DraftError(f"{out} is there already. Give another --out, or delete it") from None


def patch(site: RecordedSource, code: str) -> str:
    old = site.source.splitlines(keepends=True)
    new = code.splitlines(keepends=True)
    name = site.path.as_posix()
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def edited_in_place(site: RecordedSource, draft: Draft) -> Path:
    """The old module stays beside the draft, for `record`, unless git has it as it is."""
    if not draft.is_moved:
        raise DraftError(f"{site.path}: nothing was moved, so the file is left as it is")
    if not proving.is_committed(site.path):
        before = site.path.with_name(OLD_NAME.format(name=site.path.stem) + ".py")
        with refusing_existing(before), open(before, "x", encoding="utf-8") as file:
            file.write(site.source)
        say(f"the old code is in {before}", sys.stderr)
    else:
        say("git has the old code: `parity check --ab --old HEAD` runs it again", sys.stderr)
    site.path.write_text(draft.code, encoding="utf-8")
    say(f"edited {site.path}", sys.stderr)
    return site.path


def todo_lines(draft: Draft, path: Path) -> list[str]:
    if not draft.todos:
        return []
    lines = [f"{path}: {len(draft.todos)} left to you (exit 3)"]
    if not draft.is_moved:
        lines.append("the old code is left as it is, with a comment where it could not be moved")
    for todo in draft.todos:
        place = f"line {todo.line}: " if todo.line else ""
        lines.append(f"  {place}{' '.join(todo.text.split())}")
    return lines


# == migrate ==


def run_migrate(args: argparse.Namespace) -> int:
    """Scan the script, record its sites, draft, check; one report."""
    command = recording.command_of(args)
    recording.expect_program(command)
    store = Store(args.goldens)
    sites = found_sites(command)
    say("1. scan: " + (", ".join(f"{site.name} ({site.function})" for site in sites)))
    done = record(
        command, store, sites=sites, loose=None, seed=SEED, repeat=1, samples=0, overwrite=False
    )
    for name in recording.by_site(done.written):
        store.set_site(name)
    say("2. record:")
    say(recording.recorded_text(done, store))
    recorded = {case.site for case in (*done.written, *done.same)}
    codes = [migrated(args, store, site.name) for site in sites if site.name in recorded]
    for site in sites:
        if site.name not in recorded:
            say(f"{site.function} was not called by this script: record it with one that calls it")
    if not codes:
        return NOTHING
    return next((code for code in (1, 3) if code in codes), max(codes))


def found_sites(command: Sequence[str]) -> list[Site]:
    """A site for each function of the script that generates. Raises DraftError where none does."""
    scripts = recording.scripts_in(command)
    if not scripts:
        raise DraftError("migrate: name a script, as in `parity migrate -- python old.py`")
    script = scripts[0]
    found = scan([str(script)])
    sites = {}
    for block in found.blocks:
        if block.function and block.function != "<module>":
            name = f"{script.stem}_{block.function.replace('.', '_')}"
            sites[block.function] = Site(name, f"{script.as_posix()}:{block.function}")
    if not sites:
        raise DraftError(
            f"migrate: {script} generates in no function. Put the block into one, or record the "
            "script as a whole: parity record --name SITE -- ..."
        )
    return list(sites.values())


def migrated(args: argparse.Namespace, store: Store, name: str) -> int:
    say(f"3. draft: {name}")
    site = site_of(store, name)
    draft = drafted(args, site)
    for line in todo_lines(draft, site.path):
        say(line)
    if not draft.is_moved:
        return TODO_LEFT
    out = site.path.with_name(f"{site.path.stem}_moved.py")
    if not out.exists() or out.read_text(encoding="utf-8") != draft.code:
        with refusing_existing(out), open(out, "x", encoding="utf-8") as file:
            file.write(draft.code)
    entry = settings_of(store, site, draft, out)
    say(f"   wrote {out}")
    say(f"4. check: {name}")
    codes = proving.check_draft(store, name, entry, args.backend or proving.BACKENDS)
    for line in proving.code_lines(codes):
        say(line)
    store.set_site(name, **{key: entry[key] for key in ("moved", "arguments") if key in entry})
    return proving.gravest(codes) or (TODO_LEFT if draft.todos else 0)
