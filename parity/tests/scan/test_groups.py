"""Which blocks are siblings, and what differs among them."""

from __future__ import annotations

import pytest

from parity.scan.groups import comparable, make_groups
from parity.scan.origins import Fact, literal, not_said
from parity.tests.scan.material import LOAD, scan_texts

ASK = (
    LOAD
    + """
def {name}(question):
    text = tokenizer.apply_chat_template([question], tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False).to(model.device)
    output = model.generate(**inputs, {settings})
    return tokenizer.decode(output[0, inputs.input_ids.shape[1]:], skip_special_tokens=True)
"""
)
OTHER = LOAD + "def other(rows):\n    for row in rows:\n        save(row, model.generate(load(row)), path=3)\n"


def copies(*settings: str) -> dict[str, str]:
    return {f"app/a{n}.py": ASK.format(name="ask", settings=own) for n, own in enumerate(settings)}


def test_make_groups_copies_are_siblings_and_others_are_not() -> None:
    found = scan_texts({**copies("do_sample=False", "do_sample=False"), "app/other.py": OTHER})
    [group] = found.groups
    assert [block.file for block in group.blocks] == ["app/a0.py", "app/a1.py"]
    assert group.differing == []
    assert found.drifts == []


def test_make_groups_the_odd_one_is_marked() -> None:
    found = scan_texts(copies("do_sample=False", "do_sample=False", "do_sample=True"))
    [group] = found.groups
    assert group.differing == ["do_sample"]
    assert [group.is_odd(block, "do_sample") for block in group.blocks] == [False, False, True]


def test_make_groups_renamed_copies_are_siblings() -> None:
    files = {f"app/{name}.py": ASK.format(name=name, settings="") for name in ("ask", "answer_question")}
    [group] = scan_texts(files).groups
    assert len(group.blocks) == 2 and group.name == "ask, answer_question"


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (literal(False), not_said("the library (False)"), True),
        (literal(True), not_said("the library (False)"), False),
        (literal(0), literal(False), False),
        (literal(1), literal(1.0), True),
        (Fact(0.7, "arg temperature"), literal(0.7), True),
        (Fact(0.7, "arg temperature"), Fact(0.2, "arg temperature"), False),
        (literal(True), not_said("the checkpoint's generation_config.json"), False),
    ],
)
def test_comparable_a_default_is_what_it_is(one: Fact, other: Fact, is_equal: bool) -> None:
    assert (comparable(one) == comparable(other)) is is_equal


def test_comparable_what_is_not_known_differs_from_nothing() -> None:
    assert comparable(Fact(None, "computed", "f(x)")) is None


def test_make_groups_of_nothing() -> None:
    assert make_groups([]) == []
