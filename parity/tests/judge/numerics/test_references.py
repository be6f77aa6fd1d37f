"""What plain transformers reads of a checkpoint, once, and kept for the next check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parity.judge.numerics import reading, references
from parity.judge.numerics.references import References
from parity.tests.conftest import TEXT

ROWS = [reading.token_row(range(20, 40), [3, 5, 8]), reading.token_row([7, 9, 30], [4, 4])]


def test_rows_are_read_once_for_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    first = References(str(TEXT), "bfloat16").read([*ROWS, ROWS[0]])
    plain = reading.read_reference(str(TEXT), "bfloat16", ROWS)
    for kept, own in ((first.truth, plain.truth), (first.old, plain.old)):
        for row, other in zip(kept, own):
            assert row.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert first.probes.keys() == plain.probes.keys() and first.truth[2] == first.truth[0]

    def no_model(*args: Any, **more: Any) -> Any:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(references, "Reader", no_model)
    again = References(str(TEXT), "bfloat16").read(ROWS)
    assert (again.truth, again.old) == (first.truth[:2], first.old[:2])
    with pytest.raises(AssertionError, match="a model is loaded"):
        References(str(TEXT), "float32").read(ROWS)
