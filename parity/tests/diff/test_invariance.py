"""The audit's rule: what is exact, what rounding explains. The real audit is `--invariance`."""

from __future__ import annotations

import pytest

from parity.diff.invariance import Answered, many_prompts, variant

ALONE = Answered((1, 2), (3, 4, 5), (-0.1, -0.2, -0.3))
LARGEST = 0.01  # nats, the rows' own rounding


def test_variant_same_answers_is_exact() -> None:
    found = variant("same", [ALONE], [ALONE], [{}], LARGEST)
    assert (found.exact, found.within, found.parted, found.most) == (True, True, (), 0.0)


@pytest.mark.parametrize(("moved", "within"), [(0.015, True), (0.03, False)])
def test_variant_moved_logprob_is_held_against_rounding(moved: float, within: bool) -> None:
    other = Answered((1, 2), (3, 4, 5), (-0.1, -0.2 - moved, -0.3))
    found = variant("moved", [ALONE], [other], [{}], LARGEST)
    assert (found.exact, found.within) == (False, within)


@pytest.mark.parametrize(("gap", "within"), [(0.015, True), (0.5, False)])
def test_variant_parted_ids_need_a_near_tie(gap: float, within: bool) -> None:
    other = Answered((1, 2), (3, 9, 5), (-0.1, -0.2, -0.3))
    exact: dict[tuple[int, int], float | None] = {(1, 4): -0.7, (1, 9): -0.7 - gap}
    found = variant("parted", [ALONE], [other], [exact], LARGEST)
    assert (found.parted, found.within) == (((0, 1),), within)


def test_variant_answer_that_goes_on_is_no_rounding() -> None:
    other = Answered((1, 2), (3, 4), (-0.1, -0.2))
    assert not variant("shorter", [ALONE], [other], [{}], LARGEST).within


def test_many_prompts_are_distinct() -> None:
    texts = [prompt["prompt"] for prompt in many_prompts([{"prompt": "a"}, {"prompt": "b"}], "begin ")]
    assert len(set(texts)) == 64
