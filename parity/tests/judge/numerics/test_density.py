"""What parity/judge/numerics asks of a reader. The figures are those of today: a change may lower
them, and whoever lowers one writes the new one down here."""

from __future__ import annotations

from pathlib import Path

from ...conftest import ROOT
from ...engine.test_budget import density

MOST_TOKENS = 25_988
MOST_TOKENS_PER_LINE = 9.43


def test_density_of_numerics_stays_within_its_figures() -> None:
    files: list[Path] = sorted((ROOT / "parity/judge/numerics").glob("*.py"))
    found = [density(path.read_text(encoding="utf-8")) for path in files]
    tokens = sum(one.tokens for one in found)
    per_line = tokens / sum(one.code_lines for one in found)
    print(f"{tokens} tokens, {per_line:.2f} per code line")
    assert tokens <= MOST_TOKENS
    assert round(per_line, 2) <= MOST_TOKENS_PER_LINE
    assert [number for one in found for number in one.wide] == []
    assert [name for one in found for name in one.branchy] == []
