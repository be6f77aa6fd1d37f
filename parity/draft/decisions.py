"""Questions that the old source does not answer: one each, with what the goldens showed first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Decision:
    """key: what it is about.   choices: the first is what the goldens showed."""

    key: str
    question: str
    choices: tuple[str, ...]


@dataclass
class Decisions:
    """Answers to decisions.

    yes: take the first choice of each.   read: asks a person; None without a terminal.
    answered: what was decided.   open: decisions that nobody took, for a TODO."""

    yes: bool = False
    read: Callable[[str], str] | None = None
    answered: dict[tuple[str, str], str] = field(default_factory=dict)
    fresh: list[Decision] = field(default_factory=list)

    def choose(self, decision: Decision) -> str:
        """A choice; the first one where nobody answers, and then the decision stays open."""
        key = (decision.key, decision.question)
        if key in self.answered:
            answer = self.answered[key]
        elif self.yes or self.read is None:
            answer = decision.choices[0]
        else:
            answer = self.asked(decision)
        self.answered[key] = answer
        self.fresh.append(decision)
        return answer

    def asked(self, decision: Decision) -> str:
        assert self.read is not None
        first = decision.choices[0]
        words = "/".join(decision.choices)
        question = f"{decision.question} [{words}, Enter: {first}] "
        while True:
            answer = self.read(question).strip().lower()
            if not answer:
                return first
            chosen = [choice for choice in decision.choices if choice.startswith(answer)]
            if len(chosen) == 1:
                return chosen[0]
            question = f"{answer!r} is none of them [{words}, Enter: {first}] "

    @property
    def is_open(self) -> bool:
        """Whether decisions were taken by nobody."""
        return not self.yes and self.read is None


def terminal() -> Callable[[str], str] | None:
    """What asks a person; None without one. Questions go to stderr: stdout may be a file."""
    return ask_person if sys.stdin.isatty() and sys.stderr.isatty() else None


def ask_person(question: str) -> str:
    """Raises ValueError where the input ends."""
    print(question, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        print(file=sys.stderr)
        raise ValueError("a question was not answered. --yes answers with what the goldens showed")
    return line
