"""Events -> rows: what is known of a prompt by its ids."""

from __future__ import annotations

import pytest

from parity.record.assemble import Before, complete_loop
from parity.record.events import Decode, Forward, ForwardRow, Output, Tokens
from parity.record.rows import CHOSEN, LIKELIEST, Placeholders


def test_inputs_of_rows_with_one_prompt_are_each_ones_own() -> None:
    given = [{"positions": name} for name in ("tall", "wide")]
    before = Before([Forward([ForwardRow((1, 7, 2), one) for one in given])], Placeholders(7))
    found = [before.inputs([1, 7, 2]) for _ in range(3)]
    assert found == [{"positions": name} for name in ("tall", "wide", "wide")]
    assert before.inputs([1]) is None


def test_text_of_a_text_whose_first_id_is_masked_is_known() -> None:
    before = Before([Tokens(["Dear"], [[0, 4, 5]])], Placeholders())
    texts = [before.text_of(ids).text for ids in ([0, 4, 5], [4, 5], [5])]
    assert texts == ["Dear", "Dear", None]


def test_text_of_the_beginning_of_a_text_is_cut_and_no_shorter_text() -> None:
    before = Before([Tokens(["Dear Ann and Bo", "Dear"], [[4, 5, 6, 7], [4]])], Placeholders())
    assert before.text_of([4, 5, 6]).text is None
    assert before.cut([4, 5, 6]) == "first 3 of 4"
    assert before.text_of([4, 9]).text == "Dear"  # and what stands behind it


@pytest.mark.parametrize(
    ("decoded", "last", "loop"),
    [
        ([[7, 9], [8, 2]], 2, CHOSEN),
        ([[8, 2], [8, 3]], 3, LIKELIEST),  # of another row, too
        ([[8], [9, 2], [8, 2, 4]], 3, LIKELIEST),
    ],
)
def test_the_last_id_of_a_loop_is_the_one_that_it_decodes_and_not_the_likeliest(
    decoded: list[list[int]], last: int, loop: str
) -> None:
    """No model reads it: a penalty may have made it another one."""
    output = Output([5], [8, 3], [8], reported={"loop": LIKELIEST})
    complete_loop(output, [Decode([ids], [""], {}) for ids in decoded])
    assert (output.output_ids, output.reported["loop"]) == ([8, last], loop)
