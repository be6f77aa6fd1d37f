"""Stage laws as predicates of one row, and what they make of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Case, Store
from parity.goldens.verdict import Cause
from parity.judge import case as check
from parity.judge.stages import order
from parity.judge.stages.stage import KEPT, Tools
from parity.record import rows
from parity.record.assemble import Before
from parity.record.events import Forward, ForwardRow
from parity.record.rows import Placeholders
from parity.record.taps.models import model_stage

from ..conftest import TEXT
from .inquiries import broken_by_new, cause_of, differences, inquiry_of, named

INVARIANTS = {law.name: law.check for stage in order.ALL for law in stage.invariants}

LETTERS = "?abcdefg.#"  # id -> its letter; "#" is special and ends the text


def decode(ids: Any, skip: bool, clean: bool) -> str:
    return "".join(LETTERS[i] for i in ids if not (skip and LETTERS[i] == "#"))


def encode(text: str, special: bool) -> list[int]:
    return [1] * special + [LETTERS.index(letter) for letter in text]


TOOLS = Tools(decode, encode, lambda messages, arguments: "".join(messages), "sha")


def row(**changes: Any) -> dict[str, Any]:
    stop: dict[str, Any] = {"end_ids": [9], "strings": [], "max_new_tokens": 5, **changes.pop("stop", {})}
    return {
        "messages": ["b", "c"],
        "template": {"sha256": "sha", "arguments": {}},
        "prompt_text": "bc",
        "prompt_ids": [2, 3],
        "batch": {"rows": 1, "side": "none", "pads": 0, "masked": True},
        "output_ids": [4, 5, 9],
        "decode": {"ids": "ended", "skip_special_tokens": True, "clean_up": False},
        "text": "de",
        "stop": {name: {"value": value, "from": "caller"} for name, value in stop.items()},
        **changes,
    }


@pytest.mark.parametrize(
    ("law", "changes", "cause"),
    [
        ("template", {}, ""),
        ("template", {"messages": ["x"]}, "prompt.template"),
        ("template", {"template": {"sha256": "other", "arguments": {}}}, None),
        ("tokenization", {}, ""),
        ("tokenization", {"prompt_ids": [1, 2, 3]}, ""),
        ("tokenization", {"prompt_ids": [1, 1, 2, 3]}, "prompt.ids"),
        ("tokenization", {"prompt_ids": [3]}, "prompt.ids"),
        ("tokenization", {"prompt_text": "bcde", "prompt_ids": [2, 5]}, "prompt.ids"),  # the first and the last
        ("tokenization", {"prompt_ids": [2]}, "prompt.ids"),
        ("tokenization", {"prompt_ids": [7, 7]}, "prompt.ids"),
        ("batch", {}, ""),
        ("batch", {"batch": {"side": "right", "pads": 2}}, "batch.side"),
        ("batch", {"batch": {"side": "left", "pads": 2, "masked": False}}, "batch.mask"),
        ("batch", {"inputs": {"keys": [], "positions": "from 3"}}, "batch.positions"),
        ("batch", {"batch": None}, None),
        ("end", {}, ""),
        ("end", {"output_ids": [4, 5, 4, 5, 4]}, ""),
        ("end", {"output_ids": [4, 5, 4, 5]}, "stop"),
        ("end", {"output_ids": [4, 5, 4, 5, 4, 5]}, "stop.max_new_tokens"),
        ("end", {"output_ids": [4, 9, 5]}, "stop.end_ids"),
        ("end", {"output_ids": [4, 5], "stop": {"strings": ["e"]}}, ""),
        ("end", {"output_ids": [4, 5, 4], "stop": {"strings": ["e"]}}, "stop"),
        ("end", {"output_ids": [4, 5, 4], "stop": {"strings": ["e"], "min_new_tokens": 2}}, "stop"),
        ("end", {"output_ids": [4, 5, 4, 5], "stop": {"strings": ["e"], "min_new_tokens": 2}}, ""),
        ("end", {"output_ids": [4, 5, 6], "stop": {"strings": ["ef"], "min_new_tokens": 2}}, ""),  # across it
        ("end", {"output_ids": [4, 5], "stop": {"criteria": ["Mine"]}}, ""),
        ("text", {}, ""),
        ("text", {"text": "de#"}, "decode.skip_special_tokens"),
        ("text", {"text": None}, None),
        ("identity", {}, None),
        ("identity", {"request": {"number": 0}}, ""),
        ("identity", {"request": {"number": 0, "answers": "another"}}, "order"),
    ],
)  # fmt: skip
def test_each_law_on_one_row(law: str, changes: dict[str, Any], cause: str | None) -> None:
    found = INVARIANTS[law](row(**changes), TOOLS)
    assert (None if found is None else found[0]) == cause, found


def test_what_was_not_recorded_is_not_seen() -> None:
    bare = {"prompt_ids": [2], "output_ids": [4]}
    assert all(law(bare, TOOLS) is None for law in INVARIANTS.values())


def test_only_what_the_new_side_alone_breaks_is_a_finding() -> None:
    short = row(output_ids=[4, 5, 4, 5], text="dede")
    sides = [Case("s", "c", rows=(each,)) for each in (row(), short)]
    assert [b.cause for b in broken_by_new(sides[0], sides[1], TOOLS)] == ["stop"]
    assert list(broken_by_new(sides[1], sides[1], TOOLS)) == []


def test_a_law_that_the_new_side_alone_breaks_is_told_where_no_value_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "tools_of", lambda old: TOOLS)
    old, new = (
        Case("s", "c", rows=(row(output_ids=ids, text=decode(ids, True, False)),), value="de")  # the site cuts the text
        for ids in ([4, 5, 4, 5, 4], [4, 5, 4, 5])
    )
    outcome = check.Judge(Store(tmp_path), "hf", lambda *_: None).outcome(old, new)
    assert (outcome.verdict, str(outcome.cause)) == ("LATENT", "stop; likely")
    assert check.Judge(Store(tmp_path), "hf", lambda *_: None).outcome(old, old).verdict == "IDENTICAL"


# == Causes ==


def cause(old: dict[str, Any], new: dict[str, Any], **how: Any) -> Cause | None:
    sides = [Case("s", "c", arguments=how.get("arguments", {}), rows=(r,), value=r["text"]) for r in (old, new)]
    return cause_of(inquiry_of(sides[0], sides[1], differences(sides[0], sides[1]), decode, tools=TOOLS))


def test_one_token_too_few_is_a_length_and_no_stop() -> None:
    found = cause(row(output_ids=[4, 5, 4, 5, 4], text="deded"), row(output_ids=[4, 5, 4, 5], text="dede"))
    assert found is not None and found.name == "stop"


def test_another_word_is_not_laid_on_the_ends() -> None:
    new = row(output_ids=[6, 7, 9], text="fg", stop={"end_ids": [8, 9]})
    found = cause(row(), new)
    assert found is None or found.name != "stop.end_ids"


def test_answers_in_another_order_are_named() -> None:
    one, two = row(), row(prompt_ids=[3, 2], prompt_text="cb", messages=["c", "b"], output_ids=[6, 9], text="f")
    swapped = ({**one, "output_ids": [6, 9], "text": "f"}, {**two, "output_ids": [4, 5, 9], "text": "de"})
    sides = [Case("s", "c", rows=rs, value=[r["text"] for r in rs]) for rs in ((one, two), swapped)]
    found = cause_of(inquiry_of(sides[0], sides[1], differences(sides[0], sides[1]), decode, tools=TOOLS))
    assert str(found) == "order; confirmed"


def test_dropped_inputs_and_positions_are_named() -> None:
    old = row(inputs={"keys": ["mm_token_type_ids", "pixel_values"], "positions": "from 0"})
    for inputs, name in (
        ({"keys": ["pixel_values"], "positions": "abc"}, "batch.keys"),
        ({**old["inputs"], "positions": "from 3"}, "batch.positions"),
    ):
        found = cause(old, row(inputs=inputs, output_ids=[6, 9], text="f"))
        assert found is not None and found.name == name


def test_stops_that_old_code_cut_at_by_itself_are_the_same_setting() -> None:
    """Nested, too: decode.stop, and of each document of a list."""
    arguments = {"decode": {"stop": ["e", "d"]}}
    assert list(rows.string_lists(arguments)) == [("e", "d")]
    documents = [{"query": ["q"], "stop_sequences": ["e", "d"]}, {"query": ["r"], "until": "x"}]
    assert list(rows.string_lists({"docs": documents})) == [("e", "d"), ("x",)]
    sides = [
        Case("s", "c", arguments=arguments, rows=(r,), value="x") for r in (row(), row(stop={"strings": ["d", "e"]}))
    ]
    assert not [d for d in differences(*sides) if d.stage == "stop" and d.counts]


def test_every_decode_of_a_row_is_compared() -> None:
    first = {"ids": "new", "skip_special_tokens": True, "clean_up": False, "text": "de"}
    old = row(decodes=[first, {**first, "skip_special_tokens": False, "text": "de#"}])
    sides = [Case("s", "c", rows=(r,), value="x") for r in (old, row(decodes=[first, first]))]
    assert [(d.stage, d.field) for d in differences(*sides)] == [
        ("decode", "skip_special_tokens"),
        ("text", "decode 2"),
    ]


# == Observation ==


def test_a_token_of_the_row_that_is_masked_as_if_it_were_padding_is_told() -> None:
    inputs = {"keys": [], "positions": "from 0"}
    masked = Forward([ForwardRow((5, 6), inputs, whole=(0, 0, 5, 6))])
    before = Before([masked], Placeholders())
    seen, other, own = (before.inputs(ids) for ids in ([0, 5, 6], [1, 5, 6], [5, 6]))
    assert seen == {"keys": [], "positions": "from 0", "hidden": 1} and other is None
    assert own == {"keys": [], "positions": "from 0"}
    assert INVARIANTS["batch"]({"inputs": seen}, Tools()) == ("batch.marks", "1 of the row's own tokens are masked")
    assert INVARIANTS["batch"]({"inputs": own}, Tools()) == KEPT


def test_a_loop_of_n_seeds_is_n_samples_of_the_first() -> None:
    def drawn(seed: int, own: int | None = None, source: str = "caller") -> dict[str, Any]:
        said = {"temperature": {"value": 1.0, "from": "caller"}, "seed": {"value": seed, "from": source}}
        return {"prompt_ids": [2], "output_ids": [4], "sampling": said, **({"request": {"seed": own}} if own else {})}

    many = tuple(drawn(8, 8 + k) for k in range(3))
    for old in (tuple(drawn(8 + k) for k in range(3)), tuple(drawn(8, source="process") for _ in range(3))):
        assert differences(Case("s", "c", rows=old), Case("s", "c", rows=many)) == ()
    moved = differences(Case("s", "c", rows=(drawn(9),)), Case("s", "c", rows=many[:1]))
    assert [d.field for d in moved] == ["seed"]
    by_process = Case("s", "c", rows=tuple(drawn(8, source="process") for _ in range(3)))
    runs = Case("s", "c", rows=tuple(drawn(seed, source="process") for seed in (41, 41, 42, 42)))
    assert not differences(runs, Case("s", "c", rows=tuple(drawn(82, 82 + k) for k in range(4))))
    for first, fields in ((24, []), (16, ["seed"] * 3), (9, ["seed"] * 3)):  # as unsaid.md says to write it
        new = Case("s", "c", rows=tuple(drawn(first, first + k) for k in range(3)))
        assert [d.field for d in differences(by_process, new)] == fields


def drawn_by(seed: int | None, source: str) -> Case:
    said = {"temperature": {"value": 1.0, "from": "caller"}}
    given = {} if seed is None else {"seed": {"value": seed, "from": source}}
    return Case("s", "c", rows=({"prompt_ids": [2], "output_ids": [4], "sampling": {**said, **given}},))


@pytest.mark.parametrize("unseeded", [drawn_by(None, ""), drawn_by(0, "nobody")], ids=["vllm", "hf"])
def test_a_seed_that_comes_or_goes_differs_even_where_it_draws_the_same(unseeded: Case) -> None:
    for seeded in (drawn_by(0, "caller"), drawn_by(0, "process"), drawn_by(7, "process")):
        for old, new in ((unseeded, seeded), (seeded, unseeded)):
            [found] = differences(old, new)
            assert found.field == "seed" and None in (found.old, found.new)
    assert differences(unseeded, drawn_by(0, "nobody")) == ()
    for seed in (unseeded, drawn_by(7, "caller")):
        assert differences(drawn_by(0, "script"), seed) == () == differences(seed, drawn_by(0, "script"))


def test_half_of_everything_is_not_half_of_the_weights() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(TEXT, dtype=torch.float16)
    halved = AutoModelForCausalLM.from_pretrained(TEXT, dtype=torch.float32).half()
    old, new = (Case("s", "c", rows=({**row(), "model": model_stage(model)},)) for model in (halved, loaded))
    [found] = differences(old, new)
    assert (found.stage, found.field, found.old, found.new) == ("model", "buffers", "float16", "float32")
    assert [name for name, _ in named(old, new, (found,))] == ["model.buffers"]


def test_whose_seed_it_is_is_known() -> None:
    import torch

    from parity.record.seeds import process_seed, seed_everything

    seed_everything(0)
    assert process_seed() == {"value": 0, "from": "nobody"}
    mine = torch.rand(4)
    torch.manual_seed(0)
    assert process_seed() == {"value": 0, "from": "process"}
    assert torch.equal(mine, torch.rand(4))  # what was recorded with it is drawn again
