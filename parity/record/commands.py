"""`python -m parity record`: run unmodified old code and keep what it does."""

from __future__ import annotations

import argparse
import ast
import difflib
import itertools
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.environment.output_paths import folder_to_write
from parity.environment.revision import checked_out
from parity.goldens.acceptance import name_of
from parity.goldens.functions import functions_in, unrecordable
from parity.goldens.safe_text import say
from parity.goldens.store import Case, Store, objects_in
from parity.goldens.verdict import place_name
from parity.record.calls import Site
from parity.record.recorder import Recorded, other_arguments, record
from parity.record.rows import CHOSEN_BY_ITSELF, Row, given_no_ids, string_lists
from parity.record.seeds import SEED

HALVES = ("bfloat16", "float16")
ENOUGH_TOKENS = 700  # that tell rounding from a fault, of prompts and answers: 200 to 700 were seen


def command_of(args: argparse.Namespace) -> list[str]:
    """What stands after `--`: a command, or with -m a module, or a bare script."""
    words: list[str] = args.command
    if words[:1] == ["--"]:
        words = words[1:]
    first = words[0] if words else ""
    if first == "-m" or first.endswith(".py"):
        return [sys.executable, *words]
    if first in ("python", "python3"):
        return [sys.executable, *words[1:]]
    return words


def sites_of(args: argparse.Namespace) -> list[Site]:
    return [Site.parse(text) for text in args.site or ()]


# == Misspelt sites, before anything runs ==


def expect_program(command: Sequence[str]) -> None:
    if not command:
        raise ValueError("nothing to run; end with `-- python old_script.py`")
    if shutil.which(command[0]) is None:
        raise ValueError(f"there is no program {command[0]!r}")


def expect_writable_goldens(folder: str) -> None:
    try:
        folder_to_write(folder)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--goldens: {error}") from None


def scripts_in(command: Sequence[str]) -> list[Path]:
    return [Path(word) for word in command if word.endswith(".py")]


def source_file(module: str, command: Sequence[str]) -> Path | None:
    """The file of a module as the script will find it; None where it is not found. Nothing is
    imported."""
    if module.endswith(".py"):
        return Path(module) if Path(module).is_file() else None
    around = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [script.parent for script in scripts_in(command)]
    folders.append(Path.cwd())
    folders += map(Path, (*around, *sys.path))
    name = module.replace(".", "/")
    for folder in folders:
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.is_file():
                return path
    return None


def expect_function(site: Site, command: Sequence[str]) -> None:
    """Raise ValueError, with a guess, for a site that is not there, as far as its source tells."""
    path = source_file(site.module, command)
    if path is None:
        expect_file(site, command)
        return  # another interpreter may know it; what was not seen is said afterwards
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError:
        return  # Python will say it better
    if problem := unrecordable(tree, site.attribute, is_script=site.module.endswith(".py")):
        raise ValueError(f"{path}: {problem}")
    functions = dict(functions_in(tree.body))
    if site.attribute in functions:
        return
    if {site.attribute.partition(".")[0], "*"} & other_names(tree):
        return
    guess = f"it has {', '.join(functions) or 'none'}"
    if close := difflib.get_close_matches(site.attribute, list(functions), n=1):
        guess = f"did you mean {site.module}:{close[0]}?"
    raise ValueError(f"{path} has no function {site.attribute}; {guess}")


def expect_file(site: Site, command: Sequence[str]) -> None:
    """Raise ValueError where a module that was not found is misspelt, or a file is not there."""
    folders = {Path.cwd(), *(script.parent for script in scripts_in(command))}
    ending = ".py" if site.module.endswith(".py") else ""
    near = set[str]()
    for folder in folders:
        near.update(f"{file.stem}{ending}" for file in folder.glob("*.py"))
    if close := difflib.get_close_matches(site.module, sorted(near), n=1, cutoff=0.7):
        guess = f"{close[0]}:{site.attribute}"
        raise ValueError(f"there is no {site.module}; did you mean {guess}?")
    if ending:
        raise ValueError(f"there is no file {site.module}")


def other_names(tree: ast.Module) -> set[str]:
    """Names that a module may hold beside its functions: imported, assigned, classes that inherit.
    "*" where it may be any, by a star import or a __getattr__."""
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.ClassDef(name=name, bases=[_, *_]):
                found.add(name)
            case ast.FunctionDef(name="__getattr__"):
                found.add("*")
    return found


# == What a recording tells ==


def by_site(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Cases by their sites, which are sorted."""
    found = dict[str, list[Case]]()
    for case in sorted(cases, key=lambda case: case.site):
        found.setdefault(case.site, []).append(case)
    return found


MOST_NAMES = 5  # of cases in one line


def count_lines(done: Recorded) -> Iterator[str]:
    kinds = {"written": done.written, "unchanged": done.same, "NOT replaced": done.refused}
    for kind, cases in kinds.items():
        for site, own in by_site(cases).items():
            rows = sum(len(case.rows) for case in own)
            line = f"{kind:>12}  {site}: {len(own)} cases, {rows} model rows"
            if cases is done.refused:
                line += ": " + ", ".join(sorted(case.case for case in own))
            yield line


def recorder_lines(done: Recorded) -> Iterator[str]:
    own, whole = done.seen.overhead
    percent = 100 * own / whole if whole else 0
    yield f"recorder: {own:.2f} s of {whole:.2f} s ({percent:.1f} %)"
    for text in dict.fromkeys(done.seen.failures):
        yield f"recorder failure (the script was not disturbed): {text}"
    for site, place, kind in done.seen.not_held:
        yield (
            f"{site} changes {place}, a {kind}, from call to call, and no golden holds it: it is"
            " neither put back nor compared; a case whose answer it decides cannot stand alone"
        )


def site_lines(site: str, cases: Sequence[Case]) -> Iterator[str]:
    """What the goldens of a site do not hold."""
    if is_silent(cases):
        yield (
            f"{site} returns nothing: its prompts and tokens are compared, what it does with "
            "the answers is not; a function that returns them is the better site"
        )
    rows = list[Row]()
    sampled = list[str]()
    parts = set[str]()
    for case in cases:
        rows += case.rows
        if any(row.get("loop") in CHOSEN_BY_ITSELF for row in case.rows):
            sampled.append(case.case)
        parts.update(place_name(part["at"]) for part in case.changing)
    if sampled:
        yield (
            f"{site} chooses other tokens than the likeliest in a loop of its own "
            f"({', '.join(sampled)}), by settings that are not seen: they are held against "
            "those of the moved code, which takes some hundred tokens; or record it greedy"
        )
    yield from unfollowed_lines(site, rows)
    if same := equal_arguments(cases):
        count = sum(bool(case.function) for case in cases)
        calls = f"equal in all {count} calls" if count > 1 else "one call alone, of one value each"
        yield (
            f"{site}: {calls}: {', '.join(same)}; what another value does is not in these goldens"
        )
    without = [case.case for case in cases if not case.rows and not case.raised]
    if without:
        some = ", ".join(without[:MOST_NAMES])
        yield (
            f"{site}: no call of a model was seen in {len(without)} of {len(cases)} calls ({some}):"
            " of these the value alone is compared"
        )
    yield from few_tokens_lines(site, rows, len(cases))
    yield from state_lines(site, cases)
    if any(row.get("sampling", {}).get("seed", {}).get("from") == "script" for row in rows):
        yield (
            f"{site} samples after the script seeded the process: each recorded call begins with"
            " the recorder's seed, so that its samples are others than those of a plain run"
            " (--no-seed leaves the script's). The engine takes no seed from the process: pass each"
            " call its own"
        )
    if parts:
        yield f"{site} gives another {', '.join(sorted(parts))} each time, which is not compared"


def state_lines(site: str, cases: Sequence[Case]) -> Iterator[str]:
    """What a site keeps from call to call, and what it changes in place."""
    state = sorted({place for case in cases for place in case.state})
    if state:
        yield (
            f"{site} changes {', '.join(state)} from call to call: check puts back what was there"
            " before each call"
        )
    left = sorted({place for case in cases for place in case.left})
    if left:
        yield f"{site} leaves its work in {', '.join(left)}, too: that is compared"


def equal_arguments(cases: Sequence[Case]) -> list[str]:
    """Arguments that were the same in all calls of a site; but for objects."""
    calls = [case.arguments for case in cases if case.function]
    if not calls:
        return []
    first, *others = calls
    return [
        name
        for name, value in first.items()
        if not objects_in(value) and all(name in one and one[name] == value for one in others)
    ]


def few_tokens_lines(site: str, rows: Sequence[Row], calls: int) -> Iterator[str]:
    """Whether a check on another backend will need further tokens, in half precision. Rows of equal
    ids count once."""
    halves = [row for row in rows if row.get("model", {}).get("dtype") in HALVES]
    read = {(*row["prompt_ids"], *row["output_ids"]) for row in halves if "output_ids" in row}
    tokens = sum(map(len, read))
    if not 0 < tokens < ENOUGH_TOKENS:
        return
    more = math.ceil((ENOUGH_TOKENS - tokens) * calls / tokens)
    yield (
        f"{site} holds {tokens} tokens in half precision; to tell rounding from a fault on another "
        f"backend takes about {ENOUGH_TOKENS}: check reads further ones by itself "
        f"(--numerics-seconds says how long), or record about {more} more calls"
    )


def unfollowed_lines(site: str, rows: Sequence[Row]) -> Iterator[str]:
    """What is not seen of code that calls its model by itself."""
    if any(map(given_no_ids, rows)):
        yield (
            f"{site} gives its model embeddings, not ids, or a cache that no call of a site "
            "filled: of what it reads and chooses nothing is seen, and its model and its value "
            "are all that is held"
        )
    if any(row.get("request", {}).get("followed") for row in rows):
        yield (
            f"{site} takes ids or rows out of its cache, or reads several ids behind an answer: "
            "its prompts and its value are held, what it chooses is not"
        )


def is_silent(cases: Sequence[Case]) -> bool:
    calls = [case for case in cases if case.function]
    return any(case.raised is None for case in calls) and all(case.value is None for case in calls)


def end_lines(done: Recorded, store: Store) -> Iterator[str]:
    unstable = [case.case for case in done.written if case.repeats is False]
    if unstable:
        yield f"the old code does not repeat itself on: {', '.join(unstable)}"
    if done.seen.returncode:
        yield f"the script itself ended with {done.seen.returncode}"
    if not done.seen.cases:
        yield (
            "nothing was recorded: no call of a site was seen, nor, where none was named, of a "
            "model"
        )
    elif done.refused:
        yield (
            "goldens that differ are replaced with --overwrite only; record other calls in one run "
            "with these: -- sh -c 'python app.py a.txt; python app.py b.txt'"
        )
    elif done.written:
        yield (
            f"goldens are in {store.root}: read and commit them; a run that wrote goldens does not "
            f"pass (exit {done.exit_code})"
        )


def recorded_text(done: Recorded, store: Store) -> str:
    lines = [*count_lines(done), *recorder_lines(done)]
    for site, cases in by_site([*done.written, *done.same, *done.refused]).items():
        lines += site_lines(site, cases)
    lines += [*never_reached(done.seen.cases), *end_lines(done, store)]
    return "\n".join(lines)


def object_lines(done: Recorded, store: Store) -> Iterator[str]:
    """Arguments that no golden can hold, and what to do about each."""
    settings = store.settings()
    kinds = dict[tuple[str, str], str]()
    for case in (*done.written, *done.same):
        made = settings.get(case.site, {}).get("arguments", {})
        for name, value in case.arguments.items():
            if name in made:
                continue
            for kind in objects_in(value):
                kinds.setdefault((case.site, name), kind)
    for (site, name), kind in kinds.items():
        example = f'"{site}": {{"arguments": {{"{name}": "pkg.setup:make"}}}}'
        yield (
            f"{site}: the argument {name!r} is a {kind}, which no golden can hold; if the moved "
            f"code still takes one, {store.root / 'sites.json'} says what makes it: {example}, "
            "a function without arguments"
        )


def acceptance_lines(done: Recorded, store: Store) -> Iterator[str]:
    """Acceptances of goldens that were replaced, and how to remove them."""
    replaced = {(case.site, case.case) for case in done.replaced}
    for entry in store.accepted():
        if (entry.site, entry.case) in replaced:
            label = f"{entry.site}/{entry.case}"
            yield (
                f"the acceptance {name_of(entry)} is of a golden that was replaced; remove it:"
                f" python -m parity accept --withdraw {label} --backend {entry.backend}"
            )


def argv_lines(done: Recorded, store: Store) -> Iterator[str]:
    """Sites of which a check knows one command line of several."""
    for site, (kept, other) in other_arguments(store, done.seen).items():
        yield (
            f"{site}: recorded with the arguments {shlex.join(other)!r}, too; a check takes "
            f"{shlex.join(kept)!r} (argv in {store.root / 'sites.json'}): if the code reads "
            "sys.argv, make each command line a site of its own"
        )
    for site, folder in done.seen.started_in.items():
        yield (
            f"{site}: its script was started in {folder}, and a check calls it here: relative paths"
            f" of its own name other files. Record it there: cd {shlex.quote(folder)}"
        )


def unseen_lines(done: Recorded, sites: Sequence[Site]) -> Iterator[str]:
    called = {case.function for case in done.seen.cases}
    for site in sites:
        if site.function in called:
            continue
        hint = "a function of the script itself is written script.py:func"
        if site.module.endswith(".py"):
            hint = f"if it is imported, write {Path(site.module).stem}:{site.attribute}"
        yield f"nothing of {site.function} was recorded; {hint}"


# == Stops that no answer comes to ==


def stop_settings(row: Row) -> dict[str, Any]:
    return {name: entry["value"] for name, entry in row.get("stop", {}).items()}


def declared_stops(row: Row) -> list[str]:
    settings = stop_settings(row)
    never = settings.get("never_text", ())
    return [stop for stop in settings.get("strings", ()) if stop not in never]


def reached_stops(row: Row, by_hand: Sequence[str]) -> set[str]:
    """Those that may have ended a row: which of several did is not told.   by_hand: stops that the
    code may look for itself."""
    settings = stop_settings(row)
    ids = row["output_ids"]
    text = row.get("text") or ""
    found = {stop for stop in by_hand if stop in text}
    is_end_of_text = not ids or ids[-1] in settings.get("end_ids", ())
    is_end_of_model = is_end_of_text or len(ids) == settings.get("max_new_tokens")
    return found if is_end_of_model else found.union(declared_stops(row))


def never_reached(cases: Sequence[Case]) -> Iterator[str]:
    """Of each site: the stop strings that no answer comes to; of texts that its code may look for
    itself, only where it comes to none. What is done at a stop, and whether it is looked for at
    all, shows only there."""
    for site, own in by_site(cases).items():
        declared = list[str]()
        looked_for = list[str]()
        reached = set[str]()
        for case in own:
            by_hand = [*itertools.chain.from_iterable(string_lists(case.arguments))]
            for row in case.rows:
                declared += shown_stops(declared_stops(row))
                looked_for += shown_stops(by_hand)
                reached |= reached_stops(row, by_hand)
        left = [stop for stop in dict.fromkeys(declared) if stop not in reached]
        if reached.isdisjoint([*declared, *looked_for]):
            left = [*dict.fromkeys([*declared, *looked_for])]
        if left:
            which = "a stop" if reached.isdisjoint(declared) else "one of its stops"
            some = ", ".join(map(repr, left[:3]))
            yield (
                f"{site}: no answer comes to {which} ({some}), so what is done there is not in "
                "these goldens; record a call that does"
            )


def shown_stops(texts: Sequence[str]) -> list[str]:
    """But for special tokens."""
    return [text for text in texts if not re.fullmatch(r"<.*>", text)]


# == The command ==


def run_record(args: argparse.Namespace) -> int:
    if args.old is None:
        return run_recording(args, Store(args.goldens))
    store = Store(Path(args.goldens).absolute())
    with checked_out(args.old, store.root) as old:
        for word in command_of(args):
            old.copy(word)
        with old.entered():
            return run_recording(args, store, (str(old.worktree), str(old.top)))


def run_recording(
    args: argparse.Namespace, store: Store, old: tuple[str, str] | None = None
) -> int:
    """old: the folder of a revision, which is entered, and the one that this stands for."""
    command = command_of(args)
    expect_program(command)
    sites = sites_of(args)
    for site in sites:
        expect_function(site, command)
    if sites and args.name:
        raise ValueError(
            "--name is for model calls outside any site; leave it out, or write "
            "--site NAME=MOD:FUNC"
        )
    expect_writable_goldens(str(store.root))
    done = record(
        command,
        store,
        sites=sites,
        loose=None if sites else args.name or script_name(command),
        seed=None if args.no_seed else SEED,
        repeat=args.repeat,
        samples=args.samples,
        overwrite=args.overwrite,
        old=old,
    )
    for name in by_site(done.written):
        store.set_site(name)
    say(recorded_text(done, store))
    lines = [*object_lines(done, store), *argv_lines(done, store), *unseen_lines(done, sites)]
    for line in (*lines, *acceptance_lines(done, store)):
        say(line)
    return done.exit_code


def script_name(command: Sequence[str]) -> str:
    """What model calls outside any site are filed under."""
    return Path(command[-1] if len(command) == 1 else command[1]).stem.strip("-")


def add_record(sub: Any) -> None:
    parser = sub.add_parser(
        "record",
        help="run unmodified old code and keep what it does",
        epilog="example: python -m parity record --site app.summaries:summarize "
        "-- python -m app.main photo.jpg; exit code 4: goldens were written, 0: none was new, "
        "1: some differ and were not replaced",
    )
    add = parser.add_argument
    site_help = "a call site; MOD may be script.py"
    name_help = "without --site: what the model calls are filed under (default: the script's name)"
    repeat_help = "run N times, to find what does not repeat"
    old_help = (
        "run the command in the files of a git revision: for code that was edited before it "
        "was recorded; a script that the revision has not is today's"
    )
    samples_help = "N more runs with other seeds, values kept"
    add("--site", action="append", metavar="[NAME=]MOD:FUNC", help=site_help)
    add("--name", help=name_help)
    add("--no-seed", action="store_true", help="leave random generators as the script has them")
    add("--repeat", type=int, default=1, metavar="N", help=repeat_help)
    add("--samples", type=int, default=0, metavar="N", help=samples_help)
    add("--old", metavar="REV", help=old_help)
    add("--overwrite", action="store_true", help="replace goldens that differ")
    add("command", nargs=argparse.REMAINDER, help="-- python script.py …, -- -m pkg.mod …")
    parser.set_defaults(run=run_record)
