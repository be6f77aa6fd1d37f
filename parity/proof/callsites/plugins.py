"""Two plugins of the kind that call sites really carry, as examples and for the tests.

engine.generate_text_batch(requests, plugins=[StopAtBalancedJson(), SuppressRepeatedObject(engine.tokenizer)])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def first_json(text: str) -> tuple[int, int] | None:
    """Where the first whole JSON object or array of `text` begins and ends; None while there is none."""
    decoder = json.JSONDecoder()
    for start, character in enumerate(text):
        if character in "{[":
            try:
                return start, decoder.raw_decode(text, start)[1]
            except json.JSONDecodeError:
                continue
    return None


class StopAtBalancedJson:
    """End a row at its first whole JSON value, and give back that value alone."""

    name = "balanced-json"

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return first_json(text) is not None

    def post_decode(self, text: str) -> str:
        found = first_json(text)
        return text[slice(*found)] if found else text


class SuppressRepeatedObject:
    """Once an object has been written, the token that would begin another is taken away.

    Models that list what they see tend to list the same thing again until their budget is gone.
    """

    name = "suppress-repeated-object"

    def __init__(self, tokenizer: Any) -> None:
        vocabulary = range(len(tokenizer))
        self.openings = [i for i in vocabulary if tokenizer.decode([i]).lstrip(" ,\n").startswith("{")]
        self.closings = {i for i in vocabulary if "}" in tokenizer.decode([i])}

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        if self.closings.intersection(token_ids):
            logits[self.openings] = float("-inf")
        return logits
