"""Which unit tests reach which line, and how long each takes: one run of every test under coverage.

    reach = reach_of(this_project(), processes=2)
    reach.killers("gen_engine.py", (120, 121))      the quickest first

Each test file runs in a fork of one process that has imported the libraries. What was found is kept
in build/mutants/, one file per test file, under a digest of it and of the sources.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.proof.mutants.forks import Died, forked

# pytest would warn that it cannot rewrite the plugins that this process has imported already.
LOADED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
OPTIONS = ("-q", "-p", "no:cacheprovider", *LOADED)
NOT_COPIED = ("build", "bench", "__pycache__")  # and what begins with a dot


@dataclass(frozen=True, slots=True)
class Project:
    """A repository. sources: what is mutated.   tests: files of unit tests.   Both from root."""

    root: Path
    sources: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def kept(self) -> Path:
        return self.root / "build" / "mutants"

    def digest(self, *more: str) -> str:
        """Of the sources, of what all tests share, and of these files."""
        shared = [str(path.relative_to(self.root)) for path in self.root.rglob("conftest.py")]
        files = sorted({*self.sources, *filter(is_ours, shared), *more})
        content = hashlib.sha256()
        for file in files:
            content.update(f"{file}\0".encode() + (self.root / file).read_bytes())
        return content.hexdigest()[:16]


def is_ours(file: str) -> bool:
    """Whether a path from the root is no part of an environment or of a build."""
    first = file.partition("/")[0]
    return first not in NOT_COPIED and not first.startswith(".")


def this_project() -> Project:
    root = Path(__file__).parents[3]

    def files(pattern: str) -> list[str]:
        return sorted(str(path.relative_to(root)) for path in root.glob(pattern))

    tests = [*files("parity/tests/engine/test_*.py"), *files("parity/tests/companions/test_*.py")]
    return Project(root, ("gen_engine.py", *files("parity/companions/*.py")), tuple(tests))


# == What was found ==


@dataclass(frozen=True, slots=True)
class Reach:
    """seconds: of each test that passes.   tests_at: (source, line) -> tests whose calls pass it."""

    project: Project
    seconds: dict[str, float] = field(default_factory=dict)
    tests_at: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def killers(self, file: str, lines: tuple[int, int]) -> list[str]:
        """The tests that judge a change of these lines: those that pass them; of what runs when the
        file is imported, those that pass a line of any source which names it."""
        found = self.passing(file, range(lines[0], lines[1] + 1))
        if not found:
            names = names_at_import((self.project.root / file).read_text(), lines[0])
            for source in self.project.sources if names else ():
                found |= self.passing(source, self.lines_with(source, names))
        return sorted(found, key=lambda test: (self.seconds[test], test))

    def passing(self, file: str, lines: Iterable[int]) -> set[str]:
        found = set[str]()
        for line in lines:
            found |= self.tests_at.get((file, line), set())
        return found

    def lines_with(self, file: str, names: Iterable[str]) -> Iterator[int]:
        word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        text = (self.project.root / file).read_text()
        for number, line in enumerate(text.splitlines(), start=1):
            if word.search(line):
                yield number

    def without(self, tests: Iterable[str]) -> Reach:
        left_out = set(tests)
        seconds = {test: value for test, value in self.seconds.items() if test not in left_out}
        tests_at = {place: tests - left_out for place, tests in self.tests_at.items()}
        return Reach(self.project, seconds, tests_at)


def names_at_import(source: str, line: int) -> set[str]:
    """What a line outside of functions defines: constants, fields and their class, or the function
    whose default or decorator it is. Nothing of a line in a function."""
    found = set[str]()
    body: list[ast.stmt] = ast.parse(source).body
    while body:
        around = [one for one in body if first_line(one) <= line <= (one.end_lineno or one.lineno)]
        body = []
        for statement in around:
            found |= names_bound(statement)
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                is_inside = line >= statement.body[0].lineno
                return set() if is_inside else {statement.name}
            body = [one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.stmt)]
    return found


def first_line(statement: ast.stmt) -> int:
    lines: list[int] = [one.lineno for one in getattr(statement, "decorator_list", [])]
    return min([statement.lineno, *lines])


def names_bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.ClassDef):
        return {statement.name}
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return {one.id for one in targets if isinstance(one, ast.Name)}


def statement_lines(source: str) -> dict[int, tuple[int, int]]:
    """Line -> first and last line of the innermost statement, of a compound one of its head."""
    found = dict[int, tuple[int, int]]()
    for node in ast.walk(ast.parse(source)):  # outer ones first
        if isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            first = getattr(node, "lineno", 0) or node.body[0].lineno - 1  # type: ignore[union-attr]
            last = getattr(node, "end_lineno", None) or first
            body = getattr(node, "body", None)
            if body:
                last = max(first, body[0].lineno - 1)
            found.update(dict.fromkeys(range(first, last + 1), (first, last)))
    return found


# == One run of each test file ==


def reach_of(project: Project, processes: int) -> Reach:
    """Runs the test files that nothing is kept of, each in a fork."""
    project.kept.mkdir(parents=True, exist_ok=True)
    kept = {test: kept_file(project, test) for test in project.tests}
    left = [test for test, file in kept.items() if not file.exists()]
    jobs = {at: functools.partial(noted_run, project, test) for at, test in enumerate(left)}
    for at, found, seconds in forked(jobs, processes):
        if isinstance(found, Died):
            raise RuntimeError(f"{left[at]} ended with {found.exit_code}. {found.error}")
        for old in project.kept.glob(f"{kept[left[at]].name.rpartition('-')[0]}-*.json"):
            old.unlink()
        kept[left[at]].write_text(json.dumps(found))
        print(f"{left[at]}: {len(found['seconds'])} tests, {seconds:.0f} s", file=sys.stderr)
    return reach_from(project, [file for file in kept.values() if file.exists()])


def kept_file(project: Project, test: str) -> Path:
    name = test.removesuffix(".py").replace("/", ".")
    return project.kept / f"{name}-{project.digest(test)}.json"


def reach_from(project: Project, files: Iterable[Path]) -> Reach:
    reach = Reach(project)
    for file in files:
        row = json.loads(file.read_text())
        reach.seconds.update(row["seconds"])
        for source, lines in row["lines"].items():
            for line, tests in lines.items():
                passing = [test for test in tests if test in row["seconds"]]
                reach.tests_at.setdefault((source, int(line)), set()).update(passing)
    return reach


def noted_run(project: Project, test: str) -> dict[str, Any]:
    """In a fork: the lines that each test of a file passes, and its seconds."""
    import coverage
    import pytest

    become(project.root, project.root)
    include = [str(project.root / source) for source in project.sources]
    noted = coverage.Coverage(data_file=None, config_file=False, include=include)
    noter = Noter(noted)
    noted.start()
    pytest.main([*OPTIONS, test], plugins=[noter])
    noted.stop()
    data = noted.get_data()
    lines = {}
    for source in project.sources:
        contexts = data.contexts_by_lineno(str(project.root / source))
        lines[source] = {line: noter.tests_of(names) for line, names in contexts.items()}
    return {"seconds": noter.seconds, "lines": lines}


class Noter:
    """A plugin of pytest: each test is a context of coverage. So is each fixture that several tests
    share, and each engine of the fixture `shared`: all who use it pass the lines of its setup."""

    def __init__(self, noted: Any) -> None:
        self.noted = noted
        self.test = ""
        self.seconds = dict[str, float]()
        self.failed = set[str]()
        self.users = dict[str, set[str]]()  # context of something shared -> tests

    def tests_of(self, contexts: Iterable[str]) -> list[str]:
        found = set[str]()
        for context in contexts:
            found |= self.users.get(context, {context} if context else set())
        return sorted(found)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid
        self.noted.switch_context(nodeid)

    def pytest_runtest_setup(self, item: Any) -> None:
        for name in item.fixturenames:
            self.users.setdefault(f"fixture {name}", set()).add(item.nodeid)

    @contextlib.contextmanager
    def setting_up(self, context: str) -> Iterator[None]:
        self.noted.switch_context(context)
        try:
            yield
        finally:
            self.noted.switch_context(self.test)

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if fixturedef.scope == "function":
            return None
        from _pytest.fixtures import pytest_fixture_setup

        with self.setting_up(f"fixture {fixturedef.argname}"):
            value = pytest_fixture_setup(fixturedef, request)
        if fixturedef.argname == "shared":
            value = functools.partial(self.shared_engine, value)
            fixturedef.cached_result = (value, *fixturedef.cached_result[1:])
        return value

    def shared_engine(self, shared: Any, *model: Any, **settings: Any) -> Any:
        context = f"engine {model} {settings}"
        self.users.setdefault(context, set()).add(self.test)
        with self.setting_up(context):
            return shared(*model, **settings)

    def pytest_runtest_logreport(self, report: Any) -> None:
        seconds = self.seconds.get(report.nodeid, 0.0) + report.duration
        self.seconds[report.nodeid] = round(seconds, 3)
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        for test in self.failed:
            self.seconds.pop(test, None)


# == In a fork ==


def become(root: Path, copy: Path) -> None:
    """From here on this process is silent, and imports the project's files from its copy."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.startswith(f"{root}/") and is_ours(os.path.relpath(file, root)):
            del sys.modules[name]
    sys.path[:] = [str(copy), *(one for one in sys.path if one not in ("", str(root)))]
    os.chdir(copy)


def copy_project(project: Project, target: Path) -> None:
    """The files of a project, as hard links: what writes anew leaves the original alone."""
    target.mkdir()
    for entry in project.root.iterdir():
        if entry.name in NOT_COPIED or entry.name.startswith("."):
            continue
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name, copy_function=os.link)
        else:
            os.link(entry, target / entry.name)
    models = project.root / "build" / "models"
    if models.exists():
        (target / "build").mkdir()
        (target / "build" / "models").symlink_to(models)
