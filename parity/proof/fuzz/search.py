"""Generate calls, and shrink those that fail: what a child process of `make fuzz` does."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky, HypothesisWarning

from parity.proof.fuzz.laws import Failure
from parity.proof.fuzz.strategies import CASES
from parity.proof.fuzz.values import Case

BATCH = 40  # calls from one seed; what is shrunk is found again from its seed
MOST_SHRINKS = 250  # calls that are asked to shrink one failure

Ask = Callable[[Case], Failure | None]


@dataclass(frozen=True)
class Found:
    """A failure, and the smallest call that shows it."""

    case: Case
    failure: Failure


class Shrinkable(Exception):
    """The failure that is being shrunk was seen."""


def run_hypothesis(body: Callable[[Case], None], seed: int, phases: list[Phase]) -> None:
    """Give generated calls to `body`; from the same seed the same ones."""
    decorate = settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )

    def test(case: Case) -> None:
        body(case)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)
        decorate(hypothesis.seed(seed)(hypothesis.given(case=CASES)(test)))()


@dataclass
class Search:
    """Asks batches of generated calls. known: keys of failures that need not be shrunk again."""

    ask: Ask
    known: set[str] = field(default_factory=set)

    def batch(self, seed: int) -> Iterator[Found]:
        """The new failures of a batch, each shrunk."""
        found: dict[str, Found] = {}

        def body(case: Case) -> None:
            failure = self.ask(case)
            if failure is not None:
                found.setdefault(failure.key, Found(case, failure))

        run_hypothesis(body, seed, [Phase.generate])
        for key, first in found.items():
            if key not in self.known:
                self.known.add(key)
                yield self._shrunk(seed, first)

    def _shrunk(self, seed: int, first: Found) -> Found:
        smallest = first
        left = MOST_SHRINKS

        def body(case: Case) -> None:
            nonlocal smallest, left
            left -= 1
            failure = self.ask(case) if left > 0 else None
            if failure is not None and failure.key == first.failure.key:
                if len(case.dumps()) <= len(smallest.case.dumps()):
                    smallest = Found(case, failure)
                raise Shrinkable

        with contextlib.suppress(Shrinkable, Flaky):
            run_hypothesis(body, seed, [Phase.generate, Phase.shrink])
        return smallest
