"""`python -m parity record`: run unmodified old code and keep what it does. Also how a command line names sites."""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.golden import Case, Store, objects_in
from parity.record import observe
from parity.record.changing import place_name
from parity.record.recorder import Recorded, functions_in, record
from parity.record.rows import CHOSEN_BY_ITSELF, given_no_ids, string_lists


def command_of(args: argparse.Namespace) -> list[str]:
    """What stands after `--`: a command, or with -m a module, or a bare script."""
    words: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if words[:1] == ["-m"] or (words and words[0].endswith(".py")):
        return [sys.executable, *words]
    return [sys.executable, *words[1:]] if words[:1] in (["python"], ["python3"]) else words


def sites_of(args: argparse.Namespace) -> list[observe.Site]:
    return [observe.Site.parse(text) for text in args.site or ()]


# == Misspelt sites, before anything runs ==


def source_file(module: str, command: Sequence[str]) -> Path | None:
    """The file of a module as the script will find it, without importing anything; None where it is not found."""
    if module.endswith(".py"):
        return Path(module) if Path(module).is_file() else None
    scripts = [Path(word).parent for word in command if word.endswith(".py")]
    around = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for folder in [*scripts, Path.cwd(), *around, *(Path(entry or ".") for entry in sys.path)]:
        for path in (folder / f"{module.replace('.', '/')}.py", folder / module.replace(".", "/") / "__init__.py"):
            if path.is_file():
                return path
    return None


def expect_function(site: observe.Site, command: Sequence[str]) -> None:
    """Raise ValueError, with a guess, for a site that is not there, as far as its source tells."""
    path = source_file(site.module, command)
    if path is None:
        folders = {Path.cwd(), *(Path(word).parent for word in command if word.endswith(".py"))}
        ending = ".py" if site.module.endswith(".py") else ""
        near = {f"{file.stem}{ending}" for folder in folders for file in folder.glob("*.py")}
        if close := difflib.get_close_matches(site.module, sorted(near), n=1):
            raise ValueError(f"there is no {site.module}; did you mean {close[0]}:{site.attribute}?")
        if ending:
            raise ValueError(f"there is no file {site.module}")
        return  # another interpreter may know it; what was not seen is said afterwards
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError:
        return  # Python will say it better
    names, others = dict(functions_in(tree.body)), bound_otherwise(tree)
    if site.attribute in names or {site.attribute.partition(".")[0], "*"} & others:
        return
    close = difflib.get_close_matches(site.attribute, list(names), n=1)
    guess = f"did you mean {site.module}:{close[0]}?" if close else f"it has {', '.join(names) or 'none'}"
    raise ValueError(f"{path} has no function {site.attribute}; {guess}")


def bound_otherwise(tree: ast.Module) -> set[str]:
    """Names that a module may hold beside its functions: imported, assigned, classes that inherit. "*" where
    it may be any, by a star import or a __getattr__."""
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


def unreplayable(done: Recorded, store: Store) -> list[str]:
    """Said at record time: arguments that no golden can hold, and what to do about each."""
    settings, kinds = store.settings(), dict[tuple[str, str], str]()
    for case in (*done.written, *done.same):
        for name, value in case.arguments.items():
            if found := objects_in(value):
                kinds.setdefault((case.site, name), found[0])
    return [
        f"{site}: the argument {name!r} is a {kind}, which no golden can hold; if the moved code still takes one, "
        f'{store.root / "sites.json"} says what makes it: "{site}": {{"arguments": {{"{name}": "pkg.setup:make"}}}}, '
        "a function without arguments"
        for (site, name), kind in kinds.items()
        if name not in settings.get(site, {}).get("arguments", {})
    ]


def never_reached(cases: Sequence[Case]) -> Iterator[str]:
    """Of each site that was told of stops: that no answer came to one, if so. What is done at a stop, and whether it is
    looked for at all, shows only there."""
    for site in sorted({case.site for case in cases}):
        stops, reached = dict[str, None](), False
        for case in [case for case in cases if case.site == site]:
            by_hand = [stop for stops in string_lists(case.arguments) for stop in stops]
            for row in case.rows:
                said = {name: entry["value"] for name, entry in row.get("stop", {}).items()}
                told = [stop for stop in said.get("strings", ()) if stop not in said.get("never_text", ())]
                ids, text = row["output_ids"], row.get("text") or ""
                of_model = not ids or ids[-1] in said.get("end_ids", ()) or len(ids) == said.get("max_new_tokens")
                reached |= any(stop in text for stop in by_hand) or (bool(told) and not of_model)
                stops |= dict.fromkeys(stop for stop in (*told, *by_hand) if not re.fullmatch(r"<.*>", stop))
        if stops and not reached:
            yield (
                f"{site}: no answer comes to a stop ({', '.join(map(repr, [*stops][:3]))}), so what is done there is "
                "not in these goldens; record a call that does"
            )


def run_record(args: argparse.Namespace) -> int:
    command, store = command_of(args), Store(args.goldens)
    if not command:
        raise ValueError("nothing to run; end with `-- python old_script.py`")
    if shutil.which(command[0]) is None:
        raise ValueError(f"there is no program {command[0]!r}")
    sites = sites_of(args)
    for site in sites:
        expect_function(site, command)
    if sites and args.name:
        raise ValueError("--name is for model calls outside any site; leave it out, or write --site NAME=MOD:FUNC")
    loose = None if sites else args.name or Path(command[-1] if len(command) == 1 else command[1]).stem.strip("-")
    done = record(
        command, store, sites=sites, loose=loose, seed=None if args.no_seed else observe.SEED,
        repeat=args.repeat, samples=args.samples, overwrite=args.overwrite,
    )  # fmt: skip
    for written in {case.site for case in done.written}:
        store.set_site(written)
    print(recorded_text(done, store))
    for text in unreplayable(done, store):
        print(text)
    called = {case.function for case in done.seen.cases}
    for unseen in [site for site in sites if site.function not in called]:
        name, file = unseen.module, unseen.module.endswith(".py")
        of_module = f"if it is imported, write {Path(name).stem}:{unseen.function.partition(':')[2]}"
        hint = of_module if file else "a function of the script itself is written script.py:func"
        print(f"nothing of {unseen.function} was recorded; {hint}")
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
    silent = {case.site for case in seen.cases if case.function and case.raised is None and case.value is None}
    for site in sorted(silent - {case.site for case in seen.cases if case.value is not None}):
        lines.append(
            f"{site} returns nothing: its prompts and tokens are compared, what it does with the answers is not; "
            "a function that returns them is the better site"
        )
    drawn = [case for case in done.written if any(row.get("loop") in CHOSEN_BY_ITSELF for row in case.rows)]
    for site in sorted({case.site for case in drawn}):
        names = ", ".join(case.case for case in drawn if case.site == site)
        lines.append(
            f"{site} chooses other tokens than the likeliest in a loop of its own ({names}), by settings that are not "
            "seen: they are held against those of the moved code, which takes some hundred tokens; or record it greedy"
        )
    for site in sorted({case.site for case in done.written if any(map(given_no_ids, case.rows))}):
        lines.append(
            f"{site} gives its model embeddings, not ids: of what it reads and chooses nothing is seen, and its model "
            "and its value are all that is held"
        )
    for site in sorted({case.site for case in done.written if case.changing}):
        parts = {place_name(part["at"]) for case in done.written if case.site == site for part in case.changing}
        lines.append(f"{site} gives another {', '.join(sorted(parts))} each time, which is not compared")
    lines += never_reached(seen.cases)
    unstable = [case.case for case in done.written if case.repeats is False]
    if unstable:
        lines.append(f"the old code does not repeat itself on: {', '.join(unstable)}")
    if seen.returncode:
        lines.append(f"the script itself ended with {seen.returncode}")
    if not seen.cases:
        lines.append("nothing was recorded: no call of a site was seen, nor, where none was named, of a model")
    elif done.refused:
        lines.append("goldens that differ are replaced with --overwrite only; calls of another script are another site")
    elif done.written:
        lines.append(
            f"goldens are in {store.root}: read and commit them; a run that wrote goldens does not pass (exit 4)"
        )
    return "\n".join(lines)


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
