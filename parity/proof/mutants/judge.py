"""What the unit tests say of a mutant: they run in a fork that imports it in place of the source."""

from __future__ import annotations

import resource
import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parity.proof.forks import Died, forked
from parity.proof.mutants.mutation import Mutant
from parity.proof.mutants.reach import OPTIONS, Project, Reach, import_anew

# How a mutant ended. RAISED: the test that failed shows that the lines ran, not what they must do.
ASSERTED, RAISED, HUNG, SURVIVED, UNREACHED = "asserted", "raised", "hung", "survived", "unreached"
# Seconds of processor, and times its measured seconds, that a test may take: on a busy machine a
# clock would call sound code endless. A test that waits for ever uses none.
PATIENCE, SLOWER = 60, 10
WAIT = 1800  # seconds by the clock, for all tests of a mutant
LONGEST = 60  # seconds of tests, the quickest first: what takes longer to see counts as survived
MEMORY = 8 << 30  # bytes that a mutant may take beside what the process has: two run at a time


@dataclass(frozen=True, slots=True)
class Outcome:
    """tests: how many judge it.   killer: the test that failed.   error: of that test."""

    how: str
    tests: int = 0
    killer: str = ""
    error: str = ""


def judge(reach: Reach, mutants: Mapping[int, Mutant], processes: int) -> Iterator[tuple[int, Outcome, float]]:
    """(number, outcome, seconds) as they end."""
    jobs = {}
    for number, mutant in mutants.items():
        tests = reach.killers(mutant.file, mutant.lines)
        if tests:
            chosen = within(LONGEST, {test: reach.seconds[test] for test in tests})
            jobs[number] = partial(run_tests, reach.project, mutant, chosen)
        else:
            yield number, Outcome(UNREACHED), 0.0
    for number, found, seconds in forked(jobs, processes):
        yield number, outcome(found, len(jobs[number].args[2])), seconds


def within(longest: float, tests: Mapping[str, float]) -> dict[str, float]:
    """The first of these tests, up to so many seconds; one at least."""
    chosen = dict[str, float]()
    for test, seconds in tests.items():
        if chosen and sum(chosen.values()) + seconds > longest:
            break
        chosen[test] = seconds
    return chosen


def outcome(found: Any, tests: int) -> Outcome:
    if not isinstance(found, Died):
        return Outcome(tests=tests, **found)
    if found.is_hang or found.exit_code == -signal.SIGPROF:
        return Outcome(HUNG, tests)
    return Outcome(ASSERTED, tests, error=f"its process ended with {found.exit_code}")


# == In a fork ==


def run_tests(project: Project, mutant: Mutant, tests: Mapping[str, float]) -> dict[str, str]:
    """Runs the tests against the mutant until one fails."""
    signal.alarm(WAIT)
    path = str(project.root / mutant.file)
    code = compile(mutant.text, path, "exec", dont_inherit=True)
    import_anew(project, {path: code}.get)
    limit_memory()
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    watch = Watch(tests, mutant, path)
    status = pytest.main([*OPTIONS, "-x", *files], plugins=[watch])
    if watch.failure:
        return watch.failure
    if status == pytest.ExitCode.OK:
        return {"how": SURVIVED}
    return {"how": RAISED, "error": f"pytest ended with {status!r}: the file cannot be imported"}


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Watch:
    """A plugin of pytest: chooses the tests, the quickest first, limits their time, and says how the
    first failure came."""

    def __init__(self, tests: Mapping[str, float], mutant: Mutant, path: str) -> None:
        self.tests = tests
        self.mutant = mutant
        self.file = path
        self.failure = dict[str, str]()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {test: at for at, test in enumerate(self.tests)}
        items[:] = [item for item in items if item.nodeid in order]
        items.sort(key=lambda item: order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        signal.setitimer(signal.ITIMER_PROF, PATIENCE + SLOWER * self.tests[item.nodeid])
        return (yield)

    def pytest_exception_interact(self, node: Any, call: pytest.CallInfo[Any], report: Any) -> None:
        if self.failure or call.excinfo is None:
            return
        error = call.excinfo.value
        is_import = isinstance(node, pytest.Collector)
        is_raising = is_import or is_raised(error, self.file, self.mutant.function)
        how = RAISED if is_raising else ASSERTED
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        self.failure = {"how": how, "killer": node.nodeid, "error": text}


def is_raised(error: BaseException, file: str, function: tuple[int, int]) -> bool:
    """Whether the error, or what caused it, is none of the project's own, and came from the mutated
    function: that tests run the function is enough to see it."""
    for one in causes(error):
        if isinstance(one, AssertionError) or is_own(one):
            continue
        lines = frame_lines(one, file)
        if lines and function[0] <= lines[-1] <= function[1]:
            return True
    return False


def is_own(error: BaseException) -> bool:
    """An error that says in words of this project what was refused, or one of pytest's."""
    return type(error).__module__.partition(".")[0] in ("gen_engine", "parity", "_pytest")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def frame_lines(error: BaseException, file: str) -> Sequence[int]:
    """The lines of a file that a traceback goes through, the outermost first."""
    found = []
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            found.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
