"""What `parity draft` and `parity migrate` do."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import io
import json
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst

from parity.draft import importing, proving
from parity.draft.decisions import Decisions, terminal
from parity.draft.module import Draft, draft_module
from parity.draft.observed import DraftError, Mention, Observed, observe, with_checkpoint
from parity.goldens.safe_text import say
from parity.goldens.store import SITES_JSON, Store
from parity.record import commands as recording
from parity.record.calls import Site
from parity.record.recorder import record
from parity.record.seeds import SEED
from parity.record.source import source_digest
from parity.scan.scan import scan

TODO_LEFT = 3
NOTHING = 5
WROTE = 4  # a recording that wrote goldens, which is what migrate wants of it
SETTINGS_FILES = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg")
MOST_SETTINGS = 1 << 20  # bytes: more is data
A_PATH = re.compile(r"""[~/][^\s"'#,\]})]+""")
OLD_NAME = "{name}_before"


@dataclass(frozen=True)
class SourceText:
    """code: with its own line ends.   encoding: of the file."""

    code: str
    encoding: str = "utf-8"

    def encoded(self, code: str) -> bytes:
        """Another code as this file would hold it."""
        return code.encode(self.encoding)


@dataclass(frozen=True)
class RecordedSource:
    """A site with its source.   module: as it was recorded."""

    seen: Observed
    module: str
    path: Path
    text: SourceText


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
    """A site with its source, and the goldens of the other sites of that: a draft is of a file."""
    seen = observe(store, name)
    module, path = source_of(seen)
    for other, entry in store.settings().items():
        modules = {function.rpartition(":")[0] for function in entry.get("functions", ())}
        if other != name and modules == {module} and store.names(other):
            seen = seen.beside(observe(store, other))
    text, tree = source_text(path)
    argv = store.settings().get(name, {}).get("argv", [])
    mentions = [*texts_of_source(tree, path), *texts_of_call(store, argv, seen)]
    mentions += texts_of_settings([*mentions], path.parent)
    return RecordedSource(with_checkpoint(seen, mentions), module, path, text)


def source_text(path: Path) -> tuple[SourceText, ast.Module]:
    """Raises DraftError for a file that is no source, with the line."""
    content = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        source = content.decode(encoding)
        tree = ast.parse(content, str(path))
        libcst.parse_module(source)
    except SyntaxError as error:
        raise unreadable(path, error.lineno, error.msg) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise unreadable(path, line, str(error)) from None
    except libcst.ParserSyntaxError as error:
        raise unreadable(path, error.raw_line, error.message) from None
    return SourceText(source, encoding), tree


def unreadable(path: Path, line: int | None, problem: str) -> DraftError:
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    return DraftError(
        f"{path}:{line or 1}: {version} or libcst cannot read it: {problem}. Run draft with the "
        "Python that runs the script and a libcst of its age, or mend the file"
    )


def texts_of_source(tree: ast.Module, path: Path) -> Iterator[Mention]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Mention(node.value, f"{path}:{node.lineno}")


def texts_of_call(store: Store, argv: Sequence[str], seen: Observed) -> Iterator[Mention]:
    """Words of the script's command line, and texts in the arguments of the site."""
    for word in argv:
        yield Mention(word.rpartition("=")[2], f"argv in {store.root / SITES_JSON}")
    for case in seen.cases:
        for name, value in case.arguments.items():
            for text in texts_in(value):
                yield Mention(text, f"argument {name} of {store.path(case.site, case.case)}")


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, Mapping)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(inner)


def texts_of_settings(mentions: Sequence[Mention], folder: Path) -> Iterator[Mention]:
    """Paths in the settings files that the source or the command line names.   folder: of the
    source."""
    names = {one.text for one in mentions if one.text.endswith(SETTINGS_FILES)}
    for name in sorted(names):
        for path in dict.fromkeys((Path(name), folder / name)):
            if not path.is_file() or path.stat().st_size > MOST_SETTINGS:
                continue
            for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
                for text in A_PATH.findall(line):
                    yield Mention(text, f"{path}:{number}")


# == draft ==


def run_draft(args: argparse.Namespace) -> int:
    store = Store(args.goldens)
    site = site_of(store, args.site)
    draft = drafted(args, site, decisions_of(args))
    changes = change_lines(draft, site)  # before the file is edited
    out = write_draft(args, draft, site)
    for line in (*changes, *todo_lines(draft, site.path)):
        say(line, sys.stderr)
    if not draft.is_moved or out is None:
        return TODO_LEFT if draft.todos else 0
    entry = settings_of(store, site, draft, out)
    code = checked(args, store, args.site, entry) if args.check else 0
    say(put_settings(store, args.site, entry), sys.stderr)
    return code or (TODO_LEFT if draft.todos else 0)


def checked(args: argparse.Namespace, store: Store, name: str, entry: dict[str, Any]) -> int:
    """The gravest exit code of a draft's checks, whose reports are printed."""
    codes = proving.check_draft(store, name, entry, args.backend or proving.BACKENDS)
    for line in proving.code_lines(codes):
        say(line)
    return proving.gravest(codes.values())


def decisions_of(args: argparse.Namespace) -> Decisions:
    return Decisions(yes=args.yes, read=None if args.yes else terminal())


def drafted(args: argparse.Namespace, site: RecordedSource, ask: Decisions) -> Draft:
    """Raises DraftError where the source holds nothing to move."""
    draft = draft_module(site.text.code, site.seen, ask, args.engine, is_cut_moved=args.stops)
    if draft.is_moved and draft.code == site.text.code:
        module = libcst.parse_module(draft.code)
        maker = importing.model_from_elsewhere(module)
        if maker:
            problem = f"{site.path} generates, on a model that {maker} makes, in another file"
            fix = "a draft is of one file: put what loads the model into this one, and record again"
            raise DraftError(f"{problem}; {fix}")
        called = importing.called_names(module, set())
        if not called.intersection(importing.ENGINE_CALLS):
            problem = f"{site.path}: nothing in this file generates; what it calls does"
            fix = "`parity scan` names that place and its record line: record and draft it there"
            raise DraftError(f"{problem}. {fix}")
        problem = f"{site.path}: nothing is left to move"
        raise DraftError(f"{problem}. `parity check {site.seen.site}` says whether it is right")
    return draft


def settings_of(
    store: Store, site: RecordedSource, draft: Draft, out: Path | None
) -> dict[str, Any]:
    name = site.seen.site
    entry = store.settings().get(name, {})
    made: dict[str, str] = {}
    for case in site.seen.cases:
        if case.site == name:
            made |= draft.factories.get(case.function.rpartition(":")[2], {})
    new = site.module
    if out is not None and out != site.path:
        new = proving.new_module(site.module, out)
    return proving.site_settings(entry, site.module, new, made)


def put_settings(store: Store, name: str, entry: dict[str, Any]) -> str:
    """Write into sites.json where the code is now, and what makes its arguments; says so."""
    wanted = {key: entry.get(key) or None for key in ("moved", "arguments")}
    store.set_site(name, **wanted)
    said = {key: value for key, value in wanted.items() if value}
    written = f"{store.root / SITES_JSON}: {name}: {json.dumps(said)}; " if said else ""
    return f"{written}next: `parity check {name}`"


def write_draft(args: argparse.Namespace, draft: Draft, site: RecordedSource) -> Path | None:
    """The file that was written, or None. Raises DraftError rather than write over one."""
    if args.diff:
        write_out(patch(site, draft.code))
        return None
    if args.in_place:
        return edited_in_place(site, draft)
    out: Path | None = args.out
    if out is None and args.check:
        out = site.path.with_name(f"{site.path.stem}_moved.py")
    if out is None:
        write_out(site.text.encoded(draft.code))
        return None
    write_new(out, site.text.encoded(draft.code))
    say(f"wrote {out}", sys.stderr)
    return out


def write_out(content: bytes) -> None:
    """To stdout as a file would hold it: with its line ends and in its encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.flush()


def write_new(out: Path, content: bytes) -> None:
    """Raises DraftError where another file is there already."""
    if out.is_file() and out.read_bytes() == content:
        return  # another site of the same file was drafted
    with refusing_existing(out), open(out, "xb") as file:
        file.write(content)


@contextlib.contextmanager
def refusing_existing(out: Path) -> Any:
    try:
        yield
    except FileExistsError:
        raise DraftError(f"{out} is there already. Give another --out, or delete it") from None


def patch(site: RecordedSource, code: str) -> bytes:
    """A patch that `git apply` takes, run where this runs."""
    path = Path(os.path.relpath(site.path)).as_posix().encode()
    old, new = (io.BytesIO(site.text.encoded(text)).readlines() for text in (site.text.code, code))
    lines = difflib.diff_bytes(difflib.unified_diff, old, new, b"a/" + path, b"b/" + path)
    return b"".join(line if line.endswith(b"\n") else line + NO_NEWLINE for line in lines)


NO_NEWLINE = b"\n\\ No newline at end of file\n"


def edited_in_place(site: RecordedSource, draft: Draft) -> Path | None:
    """The old module stays beside the draft, for `record`, unless git has it as it is."""
    if not draft.is_moved:
        say(f"{site.path} is left as it is", sys.stderr)
        return None
    if not proving.is_committed(site.path.resolve()):
        before = site.path.with_name(OLD_NAME.format(name=site.path.stem) + ".py")
        write_new(before, site.text.encoded(site.text.code))
        say(f"the old code is in {before}", sys.stderr)
    else:
        say("git has the old code: `parity check --ab --old HEAD` runs it again", sys.stderr)
    site.path.write_bytes(site.text.encoded(draft.code))
    say(f"edited {site.path}", sys.stderr)
    return site.path


def change_lines(draft: Draft, site: RecordedSource) -> list[str]:
    """What the draft changed beside the calls; functions that are not what was recorded."""
    lines = [f"{site.path}: {change}" for change in draft.changes]
    recorded = {case.function: case.source for case in site.seen.cases if case.source}
    for function, digest in recorded.items():
        if digest != source_digest(function):
            name = function.rpartition(":")[2]
            lines.append(
                f"{site.path}: {name} changed since it was recorded (or what it uses): the draft "
                "is of the file as it is, the goldens are not"
            )
    return lines


def todo_lines(draft: Draft, path: Path) -> list[str]:
    if not draft.todos:
        return []
    lines = [f"{path}: {len(draft.todos)} left to you (exit 3)"]
    if not draft.is_moved:
        lines.append("nothing is moved; in the draft a comment stands where it could not be")
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
    ask = decisions_of(args)  # of all sites: a file is drafted once for each
    codes = [migrated(args, store, site.name, ask) for site in sites if site.name in recorded]
    known = {case.site for case in done.refused}
    for site in sites:
        if site.name not in recorded | known:
            say(f"{site.function} was not called by this script: record it with one that calls it")
    ended = 0 if done.exit_code == WROTE else done.exit_code
    return proving.gravest([*codes, ended]) or (0 if codes else NOTHING)


def found_sites(command: Sequence[str]) -> list[Site]:
    """A site for each function of the script that generates. Raises DraftError where none does."""
    scripts = recording.scripts_in(command)
    if not scripts:
        raise DraftError("migrate: name a script, as in `parity migrate -- python old.py`")
    script = scripts[0]
    source_text(script)  # raises DraftError for a file that cannot be read
    sites = {}
    for block in scan([str(script)]).blocks:
        function = block.target.rpartition(":")[2]
        if function:
            name = f"{script.stem}_{function.replace('.', '_')}"
            sites[function] = Site(name, f"{script.as_posix()}:{function}")
        elif block.note:
            say(f"{script}: {block.note}")
    if not sites:
        raise DraftError(
            f"migrate: {script} generates in no function that can be recorded. Put the block into "
            "one that returns its value, or record the script as a whole: parity record --name SITE"
            " -- ..."
        )
    return list(sites.values())


def migrated(args: argparse.Namespace, store: Store, name: str, ask: Decisions) -> int:
    say(f"3. draft: {name}")
    site = site_of(store, name)
    draft = drafted(args, site, ask)
    for line in (*change_lines(draft, site), *todo_lines(draft, site.path)):
        say(line)
    if not draft.is_moved:
        return TODO_LEFT
    out = site.path.with_name(f"{site.path.stem}_moved.py")
    content = site.text.encoded(draft.code)
    write_new(out, content)
    entry = settings_of(store, site, draft, out)
    say(f"   wrote {out}")
    say(f"4. check: {name}")
    code = checked(args, store, name, entry)
    say(put_settings(store, name, entry))
    return code or (TODO_LEFT if draft.todos else 0)
