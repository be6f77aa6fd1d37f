"""The table of causes: names of stages and fields, and what is put back can be put back."""

from __future__ import annotations

import pytest

from parity.goldens.causes import TABLE, cause_of_field, meaning, named, stage_of
from parity.goldens.store import Case
from parity.goldens.verdict import STAGES
from parity.judge.inquiry import old_load
from parity.judge.replay import PARTS


def test_each_cause_stands_once() -> None:
    assert len({entry.name for entry in TABLE}) == len(TABLE)


def test_what_is_put_back_is_known() -> None:
    parts = {part for entry in TABLE for part in entry.put_back}
    settings = {part for part in parts if part.startswith("load.")}
    assert settings == {f"load.{name}" for name in old_load(Case("site", "case"))}
    assert parts - settings <= PARTS and named("model.dtype").put_back == ("load.dtype",)


@pytest.mark.parametrize(
    ("stage", "field", "name", "put_back"),
    [
        ("sampling", "seed", "sampling.seed", ("seed",)),
        ("sampling", "top_p", "sampling.top_p", ("sampling",)),
        ("prompt_text", "", "prompt.text", ("prompts",)),
        ("images", "sha256", "image.pixels", ("pictures",)),
        ("images", "budget", "image.budget", ("pictures",)),
        ("batch", "masked", "batch.mask", ("load.max_batch_size",)),
        ("batch", "order", "order", ("load.max_batch_size",)),
        ("decode", "clean_up", "decode.clean_up", ()),
        ("value", "", "value", ()),
    ],
)
def test_a_difference_is_named_by_its_stage_and_field(
    stage: str, field: str, name: str, put_back: tuple[str, ...]
) -> None:
    assert cause_of_field(stage, field) == name
    assert named(name).put_back == put_back and meaning(name)


def test_each_stage_has_a_meaning_in_words() -> None:
    assert all(meaning(stage_of(cause_of_field(stage, ""))) for stage in STAGES)
    assert meaning("post.trim") == "", "of an older release"
