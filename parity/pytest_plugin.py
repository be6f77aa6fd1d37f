"""A `parity` fixture for repositories that live in pytest: goldens are checked by tests like any others.

    def test_summaries(parity):
        parity.check("summaries")                  # every golden of the site, on each backend asked for

    @pytest.mark.parametrize("case", parity_cases("golden", "summaries"))
    def test_summary(parity, case):
        parity.case("summaries", case)             # one golden

A failure shows what `python -m parity check` prints of it. A golden that is missing fails; nothing is recorded here.

    pytest --parity-goldens golden --parity-backend hf --parity-backend vllm --parity-html parity.html

Loaded by itself where the project is installed, else by `-p parity.pytest_plugin`. Importing it costs nothing.
"""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from parity.environment.output_paths import file_to_write

if TYPE_CHECKING:
    from parity.goldens.store import Store
    from parity.goldens.verdict import Check, Numerics, Outcome, Policy

BACKENDS = ("hf", "vllm")


def parity_cases(goldens: str, site: str) -> list[str]:
    """Names of the goldens of a site, for parametrize. goldens: the folder, as the test run sees it."""
    from parity.goldens.safe_text import log_safe, printable
    from parity.goldens.store import GoldenError, Store

    try:
        return Store(goldens).names(site)
    except GoldenError as error:
        raise pytest.UsageError(log_safe(printable(str(error)))) from None


@dataclass
class Parity:
    """What the fixture is. backends: None for those that sites.json names.   outcomes, numerics: of all its checks."""

    store: Store
    backends: tuple[str, ...] | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    numerics: list[Numerics] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)  # acceptances that cover nothing

    def check(self, site: str, *, backends: tuple[str, ...] | None = None, policy: Policy | None = None) -> Check:
        """Check every golden of a site; the test fails unless all are within the policy."""
        return self._run(site, None, backends, policy)

    def case(
        self, site: str, case: str, *, backends: tuple[str, ...] | None = None, policy: Policy | None = None
    ) -> Check:
        """Check one golden."""
        return self._run(site, [case], backends, policy)

    @property
    def found(self) -> tuple[list[Outcome], list[Numerics], list[str]]:
        return self.outcomes, self.numerics, self.unused

    def add(self, outcomes: Iterable[Outcome], numerics: Iterable[Numerics], unused: Iterable[str]) -> None:
        self.outcomes.extend(outcomes)
        self.numerics.extend(numerics)
        self.unused.extend(unused)

    def _expect(self, name: str, known: list[str], problem: str) -> None:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            fix = "record it from the old code with `python -m parity record`, or say --parity-goldens"
            fail(f"MISSING  {problem} under {self.store.root}; {guess}{fix}")

    def _run(
        self, site: str, cases: list[str] | None, backends: tuple[str, ...] | None, policy: Policy | None
    ) -> Check:
        from parity.goldens.store import GoldenError, keep_offline
        from parity.goldens.verdict import Policy
        from parity.judge.check import check_sites
        from parity.report.console import console

        keep_offline()
        backends = backends or self.backends
        try:
            self._expect(site, self.store.sites(), f"there are no goldens of the site {site!r}")
            for case in cases or ():
                self._expect(case, self.store.names(site), f"the site {site!r} has no golden {case!r}")
            check = check_sites(self.store, sites=[site], cases=cases, backends=backends, policy=policy or Policy())
        except GoldenError as error:
            fail(f"ERROR  {error}")
        self.add(check.outcomes, check.numerics, check.unused_acceptances)
        if check.exit_code:
            pytest.fail(console(check), pytrace=False)
        return check


def fail(text: str) -> NoReturn:
    """Fail the test without a traceback; nothing in the text is obeyed."""
    from parity.goldens.safe_text import log_safe, printable

    pytest.fail(log_safe(printable(text)), pytrace=False)


KEY = pytest.StashKey[Parity]()
TOLD = "parity"  # under which a worker of pytest-xdist tells what it found


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parity", "goldens of call sites that were moved onto gen_engine.py")
    group.addoption("--parity-goldens", metavar="DIR", help="the folder of goldens (default: golden under the rootdir)")
    group.addoption(
        "--parity-backend",
        action="append",
        choices=BACKENDS,
        metavar="NAME",
        help="hf or vllm; repeatable (default: as in sites.json)",
    )
    group.addoption(
        "--parity-html", type=file_to_write, metavar="PATH", help="write one page of every check of this run"
    )


def pytest_configure(config: pytest.Config) -> None:
    from parity.goldens.store import Store

    folder = config.getoption("--parity-goldens") or config.rootpath / "golden"
    backends = tuple(dict.fromkeys(config.getoption("--parity-backend") or ()))
    config.stash[KEY] = Parity(Store(folder), backends or None)


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Parity:
    """Checks goldens: `parity.check(site)`, `parity.case(site, case)`."""
    return request.config.stash[KEY]


def whole_run(config: pytest.Config) -> Check:
    from parity.goldens.verdict import Check
    from parity.report.words import only_old_lines

    mine = config.stash[KEY]
    outcomes = tuple(mine.outcomes)
    seconds = sum(o.seconds for o in outcomes)
    return Check(
        outcomes,
        seconds=seconds,
        numerics=tuple(mine.numerics),
        unused_acceptances=tuple(mine.unused),
        only_old=only_old_lines(outcomes),
    )


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a process of pytest-xdist, which tells its results to the one that shows them."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """What a worker of pytest-xdist found; one that crashed told nothing, which xdist itself says."""
    told = getattr(node, "workeroutput", {}).get(TOLD)
    if told is not None:
        node.config.stash[KEY].add(*pickle.loads(told))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    mine = config.stash[KEY]
    if is_worker(config):
        config.workeroutput[TOLD] = pickle.dumps(mine.found)  # type: ignore[attr-defined]
        return
    path = config.getoption("--parity-html")
    if path is not None:
        from parity.report.files import write_reports

        write_reports(whole_run(config), html=path, store=mine.store)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    from parity.goldens.safe_text import log_safe, printable
    from parity.report.console import sites_text
    from parity.report.words import accepted_lines, uncompared_lines

    check = whole_run(config)
    if check.outcomes:
        terminalreporter.section("parity")
        terminalreporter.write_line(log_safe(sites_text(check, terminalreporter.hasmarkup)))
        for line in (*accepted_lines(check), *check.only_old, *uncompared_lines(check)):
            terminalreporter.write_line(log_safe(printable(line)))
    if path := config.getoption("--parity-html"):
        terminalreporter.write_line(f"parity page: {path}")
