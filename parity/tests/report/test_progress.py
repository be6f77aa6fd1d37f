"""How a long check tells how far it is."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest

from parity.goldens.verdict import Outcome, Policy
from parity.report.progress import CheckProgress, duration


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def told(*, rewrites: bool, each: float, cases: int = 12, loading: float = 0.0) -> str:
    """What is written while 12 cases are judged, `each` seconds apart, the last but one a drift."""
    stream = io.StringIO()
    clock = Clock()
    progress = CheckProgress(stream, Policy(), rewrites=rewrites, clock=clock)
    progress.begin(cases)
    clock.now += loading
    for number in range(cases):
        clock.now += each
        verdict = "DRIFT" if number == cases - 2 else "IDENTICAL"
        progress.judged(Outcome("site", f"case{number}", "hf", verdict))  # type: ignore[arg-type]
    progress.end()
    return stream.getvalue()


def test_progress_without_a_terminal_is_a_line_a_minute() -> None:
    lines = told(rewrites=False, each=20.0).splitlines()
    assert lines == [
        "0 of 12 cases; loading the libraries",
        "3 of 12 cases; site/case2 on hf",
        "6 of 12 cases, about 2 min left; site/case5 on hf",
        "9 of 12 cases, about 60 s left; site/case8 on hf",
        "12 of 12 cases, 1 differ before acceptances; site/case11 on hf",
    ]


def test_progress_on_a_terminal_is_one_line_that_is_gone_at_the_end() -> None:
    written = told(rewrites=True, each=1.0)
    assert "\n" not in written
    assert written.endswith("\r\033[K")
    assert "11 of 12 cases, 1 differ before acceptances, about 1 s left; site/case10 on hf" in written


def test_progress_does_not_expect_every_case_to_load_the_libraries() -> None:
    assert "6 of 12 cases, about 6 s left" in told(rewrites=True, each=1.0, loading=600.0)


def test_progress_passes_no_terminal_escape_of_a_name() -> None:
    stream = io.StringIO()
    progress = CheckProgress(stream, Policy(), rewrites=True)
    progress.begin(1)
    progress.judged(Outcome("site", "a\x1b[31m\n::error", "hf", "IDENTICAL"))
    assert "\x1b[31m" not in stream.getvalue() and "\n" not in stream.getvalue()


@pytest.mark.parametrize(("seconds", "words"), [(4, "4 s"), (89, "89 s"), (150, "2 min"), (4200, "1 h 10 min")])
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words
