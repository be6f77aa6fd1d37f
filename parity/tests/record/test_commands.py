"""What `record` says of the goldens that it wrote."""

from __future__ import annotations

import pytest

from parity.goldens.store import Case
from parity.record.commands import site_lines


def case(name: str, dtype: str, count: int) -> Case:
    row = {"model": {"dtype": dtype}, "prompt_ids": [1, 2], "output_ids": list(range(count))}
    return Case("s", name, function="m:f", rows=(row, row), value="x")


def test_few_tokens_in_half_precision_are_said_with_the_calls_that_are_missing() -> None:
    [line] = site_lines("s", [case("a", "bfloat16", 48), case("b", "bfloat16", 98)])
    assert "150 tokens" in line and "about 8 more calls" in line and "--numerics-seconds" in line


@pytest.mark.parametrize(("dtype", "count"), [("float32", 20), ("bfloat16", 900)])
def test_enough_tokens_or_float32_need_no_line(dtype: str, count: int) -> None:
    assert list(site_lines("s", [case("a", dtype, count)])) == []
