"""What reaches transformers: padding, forwards, logits processors, adapters."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from parity.record.observe import Observer
from parity.record.rows import STRUCTURED
from parity.record.taps.models import adapter_print
from parity.record.taps.transformers import (
    Padding,
    Watches,
    positions_of,
    processor_settings,
    read_forward,
    watched_forward,
)


def test_strip_a_beginning_that_is_the_pad_id_is_kept() -> None:
    padding = Padding(pad=0, unmasked=True, bos=0)
    assert padding.strip([0, 5, 6], [1] * 3)[0] == [0, 5, 6]
    stripped = [0, 5], {"side": "left", "pads": 1, "masked": False}
    assert padding.strip([0, 0, 5], [1] * 3) == stripped
    known = Padding(pad=0, unmasked=True, known={(0, 5, 6)})
    assert known.strip([0, 5, 6], [1] * 3)[0] == [0, 5, 6]
    assert Padding(pad=0, unmasked=True).strip([0, 5, 6], [1] * 3)[0] == [5, 6]


def test_strip_padding_that_the_tokenizer_alone_knows_is_removed() -> None:
    """Its pad id was set by hand, the model's is another one."""
    known, unmasked = {(5, 6), (5, 6, 7, 8)}, {"side": "left", "pads": 2, "masked": False}
    for infers in (True, False):
        padding = Padding(9, infers, known, ragged=True)
        assert padding.strip([0, 0, 5, 6], [1] * 4) == ([5, 6], unmasked)
    padding = Padding(9, True, known, ragged=True)
    assert padding.strip([5, 6, 7, 8], [1] * 4)[0] == [5, 6, 7, 8]
    assert padding.strip([0, 1, 5, 6], [1] * 4)[0] == [0, 1, 5, 6], "no run of one id"
    beginning = Padding(9, True, known, bos=3, ragged=True)
    assert beginning.strip([3, 5, 6], [1] * 3)[0] == [3, 5, 6]


@pytest.mark.parametrize("model", [None, object()])
def test_watched_forward_of_what_is_no_model_disturbs_nothing(model: Any) -> None:
    """An engine that is closed has no model: what it says of that is its own."""
    observer = Observer(sink=lambda case: None)
    with watched_forward(observer, model, each=True):
        pass
    assert observer.failures == [] and not observer.thread.memory.of(Watches).running


def test_read_forward_padded_rows_have_their_own_inputs() -> None:
    import torch

    given = {
        "input_ids": torch.tensor([[0, 5, 6], [7, 8, 9]]),
        "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "position_ids": torch.tensor([[1, 0, 1], [0, 1, 2]]),
        "token_type_ids": torch.zeros(2, 3),  # all of the one kind, as where nothing is said
        "use_cache": True,
    }
    model = torch.nn.Identity()
    model.config = SimpleNamespace()
    event = read_forward(model, given)
    assert event is not None
    first, second = event.rows
    assert (first.ids, first.whole, second.ids, second.whole) == ((5, 6), (0, 5, 6), (7, 8, 9), ())
    assert first.inputs == second.inputs == {"keys": [], "positions": "from 0"}
    assert first.adapter == second.adapter == ""


def test_processor_settings_a_grammar_is_structured_whoever_applies_it() -> None:
    theirs = type("LogitsProcessor", (), {"__module__": "xgrammar.contrib.hf"})()
    assert processor_settings([theirs]) == {"processors": [STRUCTURED]}


def test_processor_settings_what_changes_neither_order_nor_odds_is_left_out() -> None:
    theirs = importlib.import_module("transformers.generation.logits_process")
    names = ("LogitNormalization", "InfNanRemoveLogitsProcessor")
    some = [getattr(theirs, name)() for name in names] + [theirs.EpsilonLogitsWarper(0.01)]
    assert processor_settings(some) == {"processors": ["EpsilonLogitsWarper"]}


def test_adapter_print_an_adapter_that_is_off_is_none() -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    layers = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model = get_peft_model(layers, LoraConfig(target_modules=["0"]))
    assert adapter_print(torch.nn.Linear(4, 4)) == "" != adapter_print(model)
    with model.disable_adapter():
        assert adapter_print(model) == ""


def test_positions_of_where_the_text_axis_begins_says_nothing() -> None:
    import torch

    rotary = torch.tensor([[[0, 0, 1, 2]], [[0, 0, 1, 1]], [[0, 0, 1, 1]]])  # [axes, B, S]
    texts = [torch.tensor([[[0, start, start + 1, start + 2]]]) for start in (0, 1)]
    first, second = (positions_of(torch.cat([text, rotary]), 0, [1, 2, 3]) for text in texts)
    assert first == second
    assert positions_of(torch.cat([texts[0], rotary + 1]), 0, [1, 2, 3]) != first
    assert positions_of(rotary, 0, [1, 2, 3]) != first
