"""What became of a mutation, and of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parity.goldens.causes import stage_of
from parity.goldens.verdict import Outcome

CALL_SITES = "Call sites"


@dataclass(frozen=True, slots=True)
class Score:
    """causes: the stages that are right, the plainest first.   section: where the fault is, for the table."""

    name: str
    causes: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    seconds: float
    section: str = CALL_SITES

    @property
    def caught(self) -> list[Outcome]:
        """What could not be judged is not caught: a process that dies dies of anything."""
        return [o for o in self.outcomes if o.verdict in ("DRIFT", "LATENT")]

    @property
    def named(self) -> bool:
        """Whether every outcome that caught it names a right cause."""
        return bool(self.caught) and not self.wrong

    @property
    def wrong(self) -> list[Outcome]:
        return [o for o in self.caught if o.cause is None or stage_of(o.cause.name) not in self.causes]

    @property
    def wrong_confirmed(self) -> list[Outcome]:
        """The gravest fault of the judge: it says that it is sure, and is wrong."""
        return [o for o in self.wrong if o.cause is not None and o.cause.certainty == "confirmed"]

    def to_json(self) -> dict[str, Any]:
        found = [{"case": o.label, "verdict": o.verdict, "cause": str(o.cause)} for o in self.outcomes]
        return {"mutation": self.name, "causes": self.causes, "named": self.named, "outcomes": found}

    def line(self) -> str:
        mark = "NOT CAUGHT" if not self.caught else "right" if self.named else f"WRONG, is {self.causes[0]}"
        causes = ", ".join(sorted({str(o.cause) for o in self.caught}))
        if not self.caught:  # a process that died is another matter than a case where nothing is seen
            causes = ", ".join(f"{o.verdict} {o.cause.sentence if o.cause else ''}".strip() for o in self.outcomes)
        return f"{self.name:48} {len(self.caught)} of {len(self.outcomes)}  {mark:28} {causes}"


def table(scores: Sequence[Score]) -> list[str]:
    """One line per section, and one for all."""
    sections = list(dict.fromkeys(score.section for score in scores))
    lines = [f"{'section':18} mutations  caught   named   wrong but confirmed"]
    for section in [*sections, "all"]:
        own = [score for score in scores if section in (score.section, "all")]
        caught, named = sum(bool(s.caught) for s in own), sum(s.named for s in own)
        wrong = sum(bool(s.wrong_confirmed) for s in own)
        lines.append(f"{section:18} {len(own):9}  {caught / len(own):6.0%}  {named / len(own):6.0%}   {wrong:5}")
    return lines
