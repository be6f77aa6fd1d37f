"""How far a long check is: one line that is rewritten on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from parity.goldens.safe_text import printable
from parity.goldens.verdict import Outcome, Policy

MINUTE = 60.0  # seconds between two lines where there is no terminal: a CI log shows that it lives
FEWEST = 5  # cases judged before a time left is given


def duration(seconds: float) -> str:
    """ "50 s", "3 min" or "1 h 10 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class CheckProgress:
    """Tells a stream how many cases were judged, and how long the others will take.

    `parity.judge.check` calls it, from several threads.
    """

    def __init__(
        self,
        stream: TextIO,
        policy: Policy,
        *,
        rewrites: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """policy: which outcomes fail.   rewrites: the stream is a terminal: one line is enough."""
        self.stream = stream
        self.policy = policy
        self.rewrites = rewrites
        self.clock = clock
        self.lock = threading.Lock()
        self.total = 0
        self.done = 0
        self.differing = 0
        self.told = clock()
        self.first = self.told  # when one case was judged: it loaded the libraries and a model

    def begin(self, total: int) -> None:
        """So many cases will be judged."""
        with self.lock:
            self.total = total
            self.told = self.clock()
            if total:
                self._show(f"0 of {total} cases; loading the libraries")

    def judged(self, outcome: Outcome) -> None:
        """One more case was judged."""
        with self.lock:
            self.done += 1
            if self.done == 1:
                self.first = self.clock()
            self.differing += not self.policy.passes(outcome)
            if self.rewrites or self.clock() - self.told >= MINUTE:
                self.told = self.clock()
                self._show(self._line(outcome))

    def together(self, waiting: int) -> None:
        """All cases were run; so many verdicts wait for what a reference reads."""
        with self.lock:
            self.told = self.clock()
            self._show(f"all cases were run; a reference reads for {waiting} verdicts")

    def end(self) -> None:
        """Take the line from the terminal."""
        if self.rewrites:
            self.stream.write("\r\033[K")
            self.stream.flush()

    def _line(self, outcome: Outcome) -> str:
        parts = [f"{self.done} of {self.total} cases"]
        if self.differing:
            parts.append(f"{self.differing} differ before acceptances")
        left = self.total - self.done
        if self.done >= FEWEST and left > 0:
            each = (self.clock() - self.first) / (self.done - 1)
            parts.append(f"about {duration(each * left)} left")
        return f"{', '.join(parts)}; {outcome.label} on {outcome.backend}"

    def _show(self, line: str) -> None:
        safe = printable(line)
        whole = f"\r\033[K{safe[:79]}" if self.rewrites else f"{safe}\n"
        with contextlib.suppress(OSError, UnicodeError):  # whoever read it is gone: judge on
            self.stream.write(whole)
            self.stream.flush()


@contextlib.contextmanager
def shown_progress(policy: Policy) -> Iterator[CheckProgress]:
    """Progress on stderr, for as long as the block runs."""
    progress = CheckProgress(sys.stderr, policy, rewrites=sys.stderr.isatty())
    try:
        yield progress
    finally:
        progress.end()
