"""What `record` says of the goldens that it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.goldens.store import Case
from parity.record.calls import Site
from parity.record.commands import expect_function, site_lines


def case(name: str, dtype: str, count: int) -> Case:
    row = {"model": {"dtype": dtype}, "prompt_ids": [1, 2], "output_ids": list(range(count))}
    return Case("s", name, function="m:f", rows=(row, row), value="x")


def test_few_tokens_in_half_precision_are_said_with_the_calls_that_are_missing() -> None:
    [line] = site_lines("s", [case("a", "bfloat16", 48), case("b", "bfloat16", 98)])
    assert "150 tokens" in line and "about 8 more calls" in line and "--numerics-seconds" in line


@pytest.mark.parametrize(("dtype", "count"), [("float32", 20), ("bfloat16", 900)])
def test_enough_tokens_or_float32_need_no_line(dtype: str, count: int) -> None:
    assert list(site_lines("s", [case("a", dtype, count)])) == []


SCRIPT = """
async def later(): ...

def stream():
    yield 1

def outer():
    def inner(): ...
    return [x for x in (lambda: (yield 1))()]

quick = lambda: 1

class Kept:
    async def ask(self): ...
"""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("later", "later is async"),
        ("Kept.ask", "Kept.ask is async"),
        ("stream", "stream is a generator"),
        ("inner", "in each call of outer. Name outer"),
        ("outer.inner", "in each call of outer. Name outer"),
        ("quick", "quick is assigned"),
        ("outr", "did you mean"),
    ],
)
def test_a_function_that_gives_no_goldens_is_refused_with_one_that_does(
    name: str, problem: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(ValueError, match=problem):
        expect_function(Site("s", f"{script}:{name}"), ["python", str(script)])


def test_a_function_with_a_generator_inside_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    expect_function(Site("s", f"{script}:outer"), ["python", str(script)])
