"""`python -m parity upgrade --python NEW`: do the goldens hold there, and if not, why?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.cli.upgrade import packages as environments
from parity.cli.upgrade.bisection import Names, closed, differing, fewest, heads_of, mixed
from parity.cli.upgrade.packages import Installed, Package
from parity.diff.other_env import CannotRunThere, Ran, own_code, run_there
from parity.goldens.safe_text import say
from parity.goldens.store import Store, keep_offline
from parity.report.commands import add_check_flags

EPILOG = """example:
  uv venv /tmp/new && uv pip install --python /tmp/new/bin/python numpy torch transformers==5.24.0
  python -m parity upgrade --python /tmp/new/bin/python

The goldens are checked by NEW, in a process of its own. Where one holds here and not there,
packages that differ are tried: environments with some of them from there and all others from here,
made of links to both environments' files. Nothing is downloaded, and nothing is written into
either. They need the same Python here and there.

Exit codes are those of check in NEW: 0 all hold, 1 drift, 2 usage, 3 could not judge or could not
run there, 4 missing or unused, 5 nothing compared.
"""


def add_upgrade(sub: Any) -> None:
    command = sub.add_parser(
        "upgrade",
        help="check the goldens in another environment, and name the package that changes them",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("cases", nargs="*", metavar="SITE[/CASE]", help="default: all")
    command.add_argument("--python", required=True, metavar="NEW", help="its interpreter")
    add_check_flags(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    keep_offline()
    with own_code() as variables, tempfile.TemporaryDirectory(prefix="upgrade-") as folder:
        variables["PYTHONDONTWRITEBYTECODE"] = "1"  # neither environment is written into
        listing = Asking(Path(folder), variables, ())
        new = listing.installed(args.python)
        asking = dataclasses.replace(listing, flags=[*flags_of(args), *backend_flags(args, new)])
        note(f"checking the goldens in {args.python}")
        there = asking.check(args.python, args.cases, show=True)
        if there.failing:
            explain(asking, new, there)
        return there.code


def backend_flags(args: argparse.Namespace, there: Installed) -> list[str]:
    """The backends to ask: not vLLM's where it is not installed, for code that does not use it
    would pass there. Raises CannotRunThere where it is asked for by name."""
    asked = args.backend or ()
    if there.has_vllm:
        return [word for name in asked for word in ("--backend", name)]
    if "vllm" in asked:
        raise CannotRunThere(
            f"{args.python}: vLLM is not installed there. Leave --backend vllm out, or install it."
        )
    settings = Store(args.goldens).settings()
    if any("vllm" in own.get("backends", ()) for own in settings.values()):
        print("vLLM is not installed there: its backend is not checked", flush=True)
    return ["--backend", "hf"]


def flags_of(args: argparse.Namespace) -> list[str]:
    """The words of `check` that say the same, but for the backends."""
    words = ["--goldens", str(args.goldens), "--time-limit", str(args.time_limit)]
    words += ["--jobs", str(args.jobs), "--numerics-seconds", str(args.numerics_seconds)]
    words += [word for name in args.moved or () for word in ("--moved", name)]
    return words + [f"--{name}" for name in ("lenient", "numerics") if getattr(args, name)]


def note(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


# == Checks in other processes ==


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A golden on a backend."""

    label: str
    backend: str

    def __str__(self) -> str:
        return f"{self.label} ({self.backend})"


@dataclass(frozen=True, slots=True)
class Checked:
    """outcomes: verdict and cause of each.   failing: those that the policy does not let pass."""

    code: int
    outcomes: Mapping[Key, str]
    failing: frozenset[Key]


@dataclass(frozen=True, slots=True)
class Asking:
    """folder: for what lasts as long as the command.   flags: of `check`."""

    folder: Path
    variables: Mapping[str, str]
    flags: Sequence[str]

    def check(self, python: str | Path, cases: Iterable[str], *, show: bool = False) -> Checked:
        """show: print it as it comes. Raises CannotRunThere where no check comes about."""
        out = self.folder / "check.json"
        out.unlink(missing_ok=True)
        words = ["-B", "-m", "parity", "check", *sorted(set(cases)), *self.flags]
        ran = run_there(python, [*words, "--json", str(out)], self.variables, show=show)
        if not out.exists():
            raise CannotRunThere(f"{python}: cannot check there: {ran.last_words}")
        return checked_from(ran, json.loads(out.read_text(encoding="utf-8")))

    def installed(self, python: str | Path) -> Installed:
        words = ["-B", "-m", environments.__name__]
        ran = run_there(python, words, self.variables, folder=self.folder)
        if ran.code:
            raise CannotRunThere(f"{python}: cannot list its packages: {ran.last_words}")
        return environments.from_json(ran.said)


def checked_from(ran: Ran, value: Mapping[str, Any]) -> Checked:
    outcomes: dict[Key, str] = {}
    failing = []
    for outcome in value["outcomes"]:
        key = Key(f"{outcome['site']}/{outcome['case']}", outcome["backend"])
        cause = outcome["cause"]
        outcomes[key] = outcome["verdict"] + (f", {cause['name']}" if cause else "")
        if outcome["fails"] and outcome["verdict"] != "MISSING":  # which no package would bring
            failing.append(key)
    return Checked(ran.code, outcomes, frozenset(failing))


# == Why ==


def explain(asking: Asking, new: Installed, there: Checked) -> None:
    note(f"checking {len(there.failing)} of them here")
    here = asking.check(sys.executable, {key.label for key in there.failing})
    changed = {key: there.outcomes[key] for key in sorted(there.failing - here.failing)}
    if not changed:
        say(f"\nall {len(there.failing)} fail here, too: no package is looked for")
        return
    say(f"\n{len(changed)} hold here and not there: {', '.join(map(str, changed))}")
    old = asking.installed(sys.executable)
    say(f"\n{side_by_side(old, new)}")
    if (old.python, old.system) != (new.python, new.system):
        print(
            f"\nwhich of them it is was not tried: Python {old.python} on {old.system} here, "
            f"{new.python} on {new.system} there. Build NEW with the Python of here."
        )
        return
    for line in Search(asking, old.packages, new.packages, changed).lines():
        say(f"\n{line}")


def side_by_side(here: Installed, there: Installed) -> str:
    names = differing(here.packages, there.packages)
    rows = [("package", "here", "there"), ("python", here.python, there.python)]
    for name in names:
        old, new = (version_of(one.packages.get(name)) for one in (here, there))
        rows.append((name, old, new))
    widths = [max(len(row[k]) for row in rows) for k in range(2)]
    lines = [f"{name:{widths[0]}}  {old:{widths[1]}}  {new}" for name, old, new in rows]
    return "\n".join(lines)


def version_of(package: Package | None) -> str:
    return package.version if package else "-"


class Search:
    """Names the packages that make `changed` fail, each case until one is named for it."""

    def __init__(
        self,
        asking: Asking,
        here: Mapping[str, Package],
        there: Mapping[str, Package],
        changed: Mapping[Key, str],
    ) -> None:
        self.asking, self.here, self.there, self.changed = asking, here, there, changed
        self.close = functools.cache(functools.partial(closed, here, there))
        self.runs = 0
        self.known: dict[tuple[Names, Key], bool] = {}

    def lines(self) -> list[str]:
        every = frozenset(differing(self.here, self.there))
        left = dict(self.changed)
        found = []
        while left:
            key = next(iter(left))
            if not self.fails(every, key):
                found.append(f"{key} holds here with all packages from there: it is no package")
                del left[key]
                continue
            group = fewest(every, functools.partial(self.fails, key=key), self.close)
            del left[key]
            explained = self.failing(group, left) if left else set()
            found.append(self.line(group, key, sorted(explained | {key})))
            left = {other: said for other, said in left.items() if other not in explained}
        return found

    def fails(self, names: Names, key: Key) -> bool:
        """Whether a case fails as it does there, with these packages from there."""
        if (names, key) not in self.known:
            self.known[names, key] = key in self.failing(names, [key])
        return self.known[names, key]

    def failing(self, names: Names, keys: Iterable[Key]) -> set[Key]:
        """Those that fail as they do there; of an environment in which nothing runs, none."""
        if not names:
            return set()
        self.runs += 1
        note(
            f"run {self.runs}: {brief(names)} of {len(differing(self.here, self.there))} from there"
        )
        with tempfile.TemporaryDirectory(dir=self.asking.folder) as folder:
            chosen = mixed(self.here, self.there, names)
            python = environments.make_environment(Path(folder), chosen.values())
            try:
                ran = self.asking.check(python, [key.label for key in keys])
            except CannotRunThere as error:
                note(str(error))
                return set()
        return {key for key in keys if ran.outcomes.get(key) == self.changed[key]}

    def line(self, group: Names, key: Key, explained: Sequence[Key]) -> str:
        heads = heads_of(group, self.here, self.there)
        what = ", ".join(map(self.move, heads))
        if others := sorted(group - set(heads)):
            what += f", with what it cannot be tried without ({', '.join(map(self.move, others))})"
        said = f"{what}: makes {', '.join(map(str, explained))} {self.changed[key]}"
        rest = frozenset(differing(self.here, self.there)) - group
        if not rest or self.close(rest) != rest:
            return said
        if self.fails(rest, key):
            return f"{said}; the other packages together do so, too"
        return f"{said}; with all other packages from there it holds"

    def move(self, name: str) -> str:
        old, new = (version_of(packages.get(name)) for packages in (self.here, self.there))
        return f"{name} {old} -> {new}"


def brief(names: Names) -> str:
    few = sorted(names)
    return ", ".join(few) if len(few) <= 4 else f"{', '.join(few[:3])} and {len(few) - 3} more"
