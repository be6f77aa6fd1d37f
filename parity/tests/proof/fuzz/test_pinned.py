"""Failures that were found once do not come back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity.proof.fuzz.laws import Asker
from parity.proof.fuzz.pinned import Pinned, pin, read_pinned
from parity.proof.fuzz.values import Case
from parity.tests.conftest import BACKENDS, Load

CASE = Case("text", ({"prompt": "a"},), {"max_new_tokens": 1})


def test_pin_adds_what_is_new_and_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "pinned.jsonl"
    assert read_pinned(file) == []
    first = Pinned("hf", "raw error: a", CASE, True)
    second = Pinned("vllm", "raw error: a", CASE, False)
    assert pin([first], file) == 1
    assert pin([first, second], file) == 1
    assert read_pinned(file) == [first, second]


@pytest.mark.parametrize("backend", BACKENDS)
def test_pinned_calls_that_are_mended_do_not_fail_again(backend: str, shared: Load) -> None:
    room: Any = SimpleNamespace(engine=lambda model: shared(model, backend))
    asker = Asker(room)
    for pinned in read_pinned():
        if not pinned.is_open:
            assert asker.failure(pinned.case) is None, pinned.key
