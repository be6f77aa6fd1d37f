"""What a decode loop of the code's own chose: the likeliest ids, and others."""

from __future__ import annotations

import pytest
import torch

from parity.record.events import Output
from parity.record.rows import CHOSEN, LIKELIEST
from parity.record.taps.loops import LoopReading


@pytest.mark.parametrize(("chosen", "loop"), [(2, LIKELIEST), (4, LIKELIEST), (1, CHOSEN)])
def test_choice_as_likely_as_the_likeliest_is_a_greedy_one(chosen: int, loop: str) -> None:
    """Of two equal logits topk and argmax may take different ones."""
    output = Output([5, 6], [], reported={"scored": True}, request={})
    reading = LoopReading(output, [5, 6], 2, frozenset(), frozenset())
    reading.expect(torch.tensor([0.0, 0.5, 3.0, 0.1, 3.0]))
    reading.read_on([chosen], 2, "choice")
    reading.expect(torch.tensor([0.0, 9.0, 3.0, 0.1, 3.0]))
    reading.read_on([1], 3, "choice")
    assert (output.reported["loop"] == LIKELIEST) == (loop == LIKELIEST)
