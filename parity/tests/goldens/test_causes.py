"""The table of causes: each field stands for one cause, and what is put back can be put back."""

from __future__ import annotations

from parity.goldens.causes import TABLE, cause_of_field, named
from parity.goldens.store import Case
from parity.goldens.verdict import CAUSES
from parity.judge.comparison import AFTER_THE_MODEL
from parity.judge.counterfactual import old_load
from parity.judge.replay import PARTS
from parity.judge.stages.prompt import PROMPT_STAGES


def test_each_cause_and_each_field_stands_once() -> None:
    fields = [own for entry in TABLE for own in entry.fields]
    assert len({entry.name for entry in TABLE}) == len(TABLE) == len(CAUSES)
    assert len(set(fields)) == len(fields)


def test_what_is_put_back_is_known() -> None:
    parts = {part for entry in TABLE for part in entry.put_back}
    settings = {part for part in parts if part.startswith("load.")}
    assert settings == {f"load.{name}" for name in old_load(Case("site", "case"))}
    assert parts - settings <= PARTS and named("model.dtype").put_back == ("load.dtype",)


def test_fields_of_prompts_and_behind_the_model_name_nothing() -> None:
    """Rules name those (PROMPT_RULES, VALUE_RULES); a field in the table would never be asked for."""
    by_rules = {*PROMPT_STAGES, *AFTER_THE_MODEL}
    assert not [own for entry in TABLE for own in entry.fields if own.partition(".")[0] in by_rules]


def test_a_field_comes_before_its_stage() -> None:
    assert cause_of_field("sampling", "seed") == "rng"
    assert cause_of_field("sampling", "top_p") == "sampling.processors"
    assert cause_of_field("text", "") is None
