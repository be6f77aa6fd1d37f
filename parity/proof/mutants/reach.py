"""Which unit tests reach which statement of the sources, and how long each takes.

    reach = reach_of(this_project(), processes=2)
    reach.killers("gen_engine.py", (120, 121))      the quickest first

The tests run once, in one process that shares its engines, with a call in front of each statement
of each function that notes its line: what puts a mutant in the place of a source puts these calls
there, too. (Each file of tests in a process of its own loaded its engines anew: that never ended.)
What was found is kept in build/mutants/, one file for each file of tests, under a digest of it and
of the sources.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from parity.proof.forks import Died, forked

# pytest would warn that it cannot rewrite the plugins that this process has imported already.
LOADED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
OPTIONS = ("-q", "-p", "no:cacheprovider", *LOADED)
NOTE = "__note_line__"  # a builtin of the process that makes the map

# What starts processes of its own, where no line is noted and no mutant is, or waits for minutes.
NOT_ASKED = (
    "companions/test_ray_data.py::test_readmes_recipe_does_nothing_twice",
    "companions/test_batch_files.py::test_answer_file_sets_a_line_aside_at_which_the_process_died",
    "companions/test_decoupled.py::test_without_a_verifier_that_can_be_started_a_call_fails",
    "engine/test_file.py",
    "engine/test_typing.py",
    "engine/test_vlm.py::test_the_file_alone_takes_images",
    "engine/test_speed.py",
)


@dataclass(frozen=True, slots=True)
class Project:
    """A repository. sources: what is mutated.   tests: files of unit tests.   Both from root."""

    root: Path
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    not_asked: tuple[str, ...] = ()

    @property
    def kept(self) -> Path:
        return self.root / "build" / "mutants"

    def digest(self, *more: str) -> str:
        """Of the sources, of what all tests share, and of these files."""
        shared = [str(path.relative_to(self.root)) for path in self.root.glob("parity/tests/*.py")]
        content = hashlib.sha256()
        for file in sorted({*self.sources, *shared, *more}):
            content.update(f"{file}\0".encode() + (self.root / file).read_bytes())
        return content.hexdigest()[:16]


def this_project() -> Project:
    root = Path(__file__).parents[3]

    def files(pattern: str) -> list[str]:
        return sorted(str(path.relative_to(root)) for path in root.glob(pattern))

    tests = [*files("parity/tests/engine/test_*.py"), *files("parity/tests/companions/test_*.py")]
    sources = ("gen_engine.py", *files("parity/companions/*.py"))
    return Project(root, sources, tuple(tests), tuple(f"parity/tests/{one}" for one in NOT_ASKED))


# == What was found ==


@dataclass(frozen=True, slots=True)
class Reach:
    """seconds: of the processor, of each test that passes.   tests_at: (source, line of a statement) -> tests."""

    project: Project
    seconds: dict[str, float] = field(default_factory=dict)
    tests_at: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def killers(self, file: str, lines: tuple[int, int]) -> list[str]:
        """The tests that judge a change of these lines: those that pass them; of what runs when the
        file is imported, those that pass a line of any source, or are in a file, which names it,
        or what is defined by it."""
        text = self.text(file)
        found = self.passing(file, range(lines[0], lines[1] + 1))
        names = names_at_import(text, lines[0])
        for line in list(self.lines_with(file, word_of(names))) if names else ():
            names |= names_at_import(text, line)  # DTYPES = get_args(DType)
        if names:
            word = word_of(names)
            for source in self.project.sources:
                found |= self.passing(source, self.lines_with(source, word))
            naming = {test for test in self.project.tests if word.search(self.text(test))}
            found |= {test for test in self.seconds if test.partition("::")[0] in naming}
        return sorted(found, key=lambda test: (self.seconds[test], test))

    def text(self, file: str) -> str:
        return (self.project.root / file).read_text()

    def passing(self, file: str, lines: Iterable[int]) -> set[str]:
        found = set[str]()
        for line in lines:
            found |= self.tests_at.get((file, line), set())
        return found

    def lines_with(self, file: str, word: re.Pattern[str]) -> Iterator[int]:
        """The first lines of statements that hold a word."""
        statements = statement_lines(self.text(file))
        for number, line in enumerate(self.text(file).splitlines(), start=1):
            if number in statements and word.search(line):
                yield statements[number][0]


def word_of(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")


def names_at_import(source: str, line: int) -> set[str]:
    """What a line outside of functions defines: constants, fields and their class, or the function
    whose default or decorator it is. Nothing of a line in a function."""
    found = set[str]()
    body: list[ast.stmt] = parsed(source).body
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


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@functools.cache
def statement_lines(source: str) -> dict[int, tuple[int, int]]:
    """Line -> first and last line of the innermost statement, of a compound one of its head."""
    found = dict[int, tuple[int, int]]()
    for node in ast.walk(parsed(source)):  # outer ones first
        if isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            first = getattr(node, "lineno", 0) or node.body[0].lineno - 1  # type: ignore[union-attr]
            last = getattr(node, "end_lineno", None) or first
            body = getattr(node, "body", None)
            if body:
                last = max(first, body[0].lineno - 1)
            found.update(dict.fromkeys(range(first, last + 1), (first, last)))
    return found


# == One run of the tests ==


def reach_of(project: Project, processes: int) -> Reach:
    """Runs the test files that nothing is kept of, in forks of this process."""
    project.kept.mkdir(parents=True, exist_ok=True)
    kept = {test: kept_file(project, test) for test in project.tests}
    left = [test for test, file in kept.items() if not file.exists()]
    shares = [left[at::processes] for at in range(processes)]
    jobs = {
        at: functools.partial(note_tests, project, {test: kept[test] for test in share})
        for at, share in enumerate(shares)
        if share
    }
    for at, found, seconds in forked(jobs, processes):
        if isinstance(found, Died):
            raise RuntimeError(f"the tests of {shares[at]} ended with {found.exit_code}")
        print(f"{len(shares[at])} files of tests, {seconds:.0f} s", file=sys.stderr)
    return reach_from(project, [file for file in kept.values() if file.exists()])


def kept_file(project: Project, test: str) -> Path:
    name = test.removesuffix(".py").replace("/", ".")
    return project.kept / f"{name}-{project.digest(test)}.json"


def reach_from(project: Project, files: Iterable[Path]) -> Reach:
    reach = Reach(project)
    for file in files:
        for test, (seconds, lines) in json.loads(file.read_text()).items():
            reach.seconds[test] = seconds
            for number, line in lines:
                place = (project.sources[number], line)
                reach.tests_at.setdefault(place, set()).add(test)
    return reach


def note_tests(project: Project, kept: dict[str, Path]) -> None:
    """In a fork: runs these files of tests, and writes which lines each test reaches."""
    signal.alarm(0)  # `forked` limits a job, and this one takes a quarter of an hour
    noter = Noter(kept)
    setattr(builtins, NOTE, lambda source, line: noter.seen.add((source, line)))
    numbers = {str(project.root / file): number for number, file in enumerate(project.sources)}

    def code_of(path: str) -> CodeType | None:
        return noting_code(path, numbers[path]) if path in numbers else None

    import_anew(project, code_of)
    left_out = [f"--deselect={test}" for test in project.not_asked]
    pytest.main([*OPTIONS, *left_out, *kept], plugins=[noter])


class Noter:
    """A plugin of pytest: what each test reaches. All who use a fixture that tests share, or an
    engine of the fixture `shared`, reach what its setup does."""

    def __init__(self, kept: dict[str, Path]) -> None:
        self.kept = kept
        self.seen = set[tuple[int, int]]()
        self.of_setup = dict[str, set[tuple[int, int]]]()
        self.rows = dict[str, tuple[float, list[tuple[int, int]]]]()
        self.has_failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        self.seen.clear()
        self.has_failed = False
        started = processor_seconds()
        result = yield
        for name in getattr(item, "fixturenames", ()):
            self.seen |= self.of_setup.get(name, set())
        if not self.has_failed:
            self.rows[item.nodeid] = (round(processor_seconds() - started, 3), sorted(self.seen))
        file = item.nodeid.partition("::")[0]
        if nextitem is None or nextitem.nodeid.partition("::")[0] != file:
            self.kept[file].write_text(json.dumps(self.rows))
            self.rows.clear()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_failed = self.has_failed or report.outcome != "passed"

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = set(self.seen)
        self.seen.clear()
        value = yield
        self.of_setup[fixturedef.argname] = set(self.seen)
        self.seen |= before
        if fixturedef.argname == "shared":
            value = functools.partial(self.shared_engine, value)
            fixturedef.cached_result = (value, *fixturedef.cached_result[1:])
        return value

    def shared_engine(self, shared: Any, *model: Any, **settings: Any) -> Any:
        name = f"{model} {settings}"
        before = set(self.seen)
        self.seen.clear()
        engine = shared(*model, **settings)
        self.seen |= self.of_setup.setdefault(name, set(self.seen)) | before
        return engine


def processor_seconds() -> float:
    """Of this process and of its children that ended: on a busy machine a clock says too much."""
    return sum(os.times()[:4])


class NoteEachStatement(ast.NodeTransformer):
    """A call in front of each statement of a function."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.depth = 0

    def visit(self, node: ast.AST) -> ast.AST:
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        self.depth += is_function
        self.generic_visit(node)
        for name in ("body", "orelse", "finalbody") if self.depth else ():
            body = getattr(node, name, None)
            if isinstance(body, list) and not isinstance(node, ast.ClassDef):
                setattr(node, name, list(self.noted(body)))
        self.depth -= is_function
        return node

    def noted(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for at, statement in enumerate(body):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (is_text and at == 0):  # a docstring stays the first
                call = ast.parse(f"{NOTE}({self.number}, {statement.lineno})").body[0]
                for node in ast.walk(call):
                    ast.copy_location(node, statement)
                yield call
            yield statement


def noting_code(path: str, number: int) -> CodeType:
    tree = ast.parse(Path(path).read_text())
    NoteEachStatement(number).visit(tree)
    code: CodeType = compile(tree, path, "exec")
    return code


# == In a fork ==


def import_anew(project: Project, code_of: Callable[[str], CodeType | None]) -> None:
    """From here on this process is silent, and imports the project's modules again. code_of: the
    code of a file that is not to be what the file says."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    get_code = SourceFileLoader.get_code

    def get_other_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return code_of(os.path.abspath(loader.get_filename(name))) or get_code(loader, name)

    SourceFileLoader.get_code = get_other_code  # type: ignore[method-assign, assignment]
    environment = f"{project.root}/.venv"
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(f"{project.root}/") and not file.startswith(environment):
            del sys.modules[name]
    sys.path[:] = [str(project.root), *(one for one in sys.path if one != str(project.root))]
    os.chdir(project.root)
