"""Whose answer it is, what company does to it, what a cache makes of it, and what one text says of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Cause, Difference
from parity.judge import case as check
from parity.judge import loops
from parity.judge.align import paired
from parity.judge.comparison import Comparison
from parity.judge.inquiry import REMEMBERS, put_backs
from parity.judge.judge import (
    Findings,
    answers_of_others,
    asked_under_force,
    beside_rounding,
    by_cache,
    from_other_ids,
    from_own_ids,
    of_draws,
)
from parity.judge.numerics import groups, samples, surprise
from parity.judge.replay import ALONE, ANSWERS, UNCACHED, Engines, PartedAlone, Replay
from parity.judge.stages.batch import input_differences
from parity.judge.stages.model import adapter_differences
from parity.judge.stages.sampling import seeds, structure
from parity.judge.stages.stop import end
from parity.judge.values import moved_parts
from parity.record import rows
from parity.record.taps.gen_engine import Below
from parity.record.taps.transformers import read_forward
from parity.record.taps.vllm import Names, read_request

from .inquiries import broken_by_new, cause_of, differences, inquiry_of
from .test_laws import TOOLS, row


def case(*given: Mapping[str, Any], value: Any = None) -> Case:
    model = {"path": "m", "dtype": "float32", "backend": "hf"}
    sampling = {"temperature": {"value": 0, "from": "caller"}, "processors": {"value": [], "from": "default"}}
    made = tuple({"model": model, "sampling": sampling, **one} for one in given)
    return Case("s", "c", rows=made, value=[one["text"] for one in made] if value is None else value)


FIRST, SECOND = row(), row(prompt_ids=[3, 3], prompt_text="cc", messages=["c", "c"], output_ids=[6, 7, 9], text="fg")
OLD = case(FIRST, SECOND)
SWAPPED = case({**FIRST, "output_ids": [6, 7, 9], "text": "fg"}, {**SECOND, "output_ids": [4, 5, 9], "text": "de"})


def found_with(new: Case, undone_by: str, old: Case = OLD) -> Cause | None:
    """The cause, where the old answer comes back when this part is put back."""

    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        return old if undone_by in parts else new

    found = differences(old, new)
    return cause_of(inquiry_of(old, new, found, TOOLS.decode, rerun, TOOLS))


def test_an_answer_that_another_request_gets_alone_is_an_answer_of_that_one() -> None:
    wrong = case({**FIRST, "output_ids": [6, 7, 9], "text": "fg"}, SECOND)
    cause = found_with(wrong, ALONE)
    assert cause is not None and (cause.name, cause.certainty) == ("order", "confirmed")
    assert "row 0 got row 1's" in cause.sentence


def test_answers_that_go_round_among_equal_requests_too_are_those_of_others() -> None:
    """Equal requests are answered once, so of what goes round one answer stands twice and one nowhere."""
    alone = [FIRST, SECOND, FIRST]
    taken = {name: SECOND[name] for name in ("prompt_ids", "output_ids", "text")}
    together = [{**FIRST, **taken}, SECOND, {**FIRST, **taken}]
    assert answers_of_others([{**FIRST, "prompt_ids": [3, 3, 3]}], [FIRST]) is None
    assert answers_of_others([*together[:2], FIRST], alone) == (0, 1)
    longer = {**SECOND, "prompt_ids": [3, 3, 3]}
    assert answers_of_others([longer, longer, FIRST], [FIRST, longer, FIRST]) == (0, 1)


def test_prompts_that_came_with_the_answers_of_others_say_nothing_of_their_own_stages() -> None:
    """Of three unlike answers that go round among four rows, one stands twice and one nowhere."""
    third = row(prompt_ids=[5, 5, 5], output_ids=[8, 9], text="gh")
    old, seen = case(FIRST, SECOND, FIRST, third), {"request": {"answers": "another"}}
    new = case(*({**one, **seen} for one in (SECOND, third, SECOND, FIRST)))
    cause = found_with(new, ALONE, old)
    assert cause is not None and (cause.name, cause.certainty) == ("order", "confirmed")
    unseen = found_with(case(SECOND, third, SECOND, FIRST), ALONE, old)  # as seen, each is its own request's
    assert unseen is not None and unseen.name != "order"


@pytest.mark.parametrize(
    ("held", "made", "name"),
    [
        ("de", "de", None),
        ("defg", "de", None),  # the old code kept what its row went on with
        ("de", "aa", "value"),
        ("de", "d", "value"),
        ("defg", "d", "value"),
        (" defg \n", " de", None),
        (" defg", "de", "value"),  # it strips, besides
        (" de", "de", "value"),
        ("de ", "de", "value"),
    ],
)
def test_ids_behind_the_end_of_a_criterion_are_forced_as_far_as_the_new_stops_go(
    held: str, made: str, name: str | None
) -> None:
    """Its rows run on until all have ended. Such draws passed with any text."""
    own = row(output_ids=[4, 5, 6, 7], text="defg", stop={"criteria": ["Own"]})
    old, forced = case(own, value=[held]), case({**own, "output_ids": [4, 5]}, value=[made])
    new = case({**own, "output_ids": [6, 5]}, value=["fe"])
    rerun = lambda load, parts: forced if ANSWERS in parts else new  # noqa: E731
    cause, _ = from_other_ids(inquiry_of(old, new, differences(old, new), TOOLS.decode, rerun, TOOLS))
    assert (cause and cause.name) == name and (cause is None or cause.certainty == "likely")


@pytest.mark.parametrize(
    ("new_text", "new_prompt", "stops", "cause"),
    [
        ("defg;", "defg; 7", [";"], "stop; confirmed"),  # the stop string stays in the text
        ("defg;", "defg; 8", [";"], "stop; likely"),  # and what is made of it is in the prompt, too
        ("defgh", "defgh 7", ["z"], "stop.strings; confirmed"),
        ("defgh", "defgh 8", ["z"], "stop.strings; likely"),
        ("defgh", "defgh 7", [";"], "decode; confirmed"),
        ("defg", "defg 8", [";"], "prompt.text; confirmed"),  # the prompt is another one by itself
        ("defgh", "xy 8", [";"], "prompt.text; confirmed"),
    ],
)
def test_a_prompt_that_holds_another_text_of_an_earlier_answers_own_ids_is_not_to_blame(
    new_text: str, new_prompt: str, stops: list[str], cause: str
) -> None:
    def asked(text: str, prompt: str, strings: list[str]) -> Case:
        said = {"request": {"number": 0}, "stop": {"strings": strings}}
        first = row(**said, output_ids=[4, 5], text=text)
        ids = [ord(letter) for letter in prompt]
        return case(first, row(**said, prompt_ids=ids, prompt_text=prompt, messages=None, output_ids=[6], text="f"))

    made = Comparison(asked("defg", "defg 7", [";"]), asked(new_text, new_prompt, stops), is_forced=True)
    assert str(asked_under_force(made)) == cause


def test_a_template_that_is_told_something_else_comes_before_the_laws_of_prompts() -> None:
    thinks, cut = ({**FIRST, "template": {"sha256": "sha", "arguments": {"enable_thinking": told}}, "prompt_ids": ids}
                   for told, ids in ((False, [2, 3]), (None, [2, 5])))  # fmt: skip
    old, new = case(thinks, SECOND), case({**cut, "prompt_text": "b", "output_ids": [6, 7, 9], "text": "fg"}, SECOND)
    found = differences(old, new)
    inquiry = inquiry_of(old, new, found, TOOLS.decode, lambda *_: old, replace(TOOLS, render=None))
    assert [broken.cause for broken in inquiry.comparison.broken] == ["prompt.ids"]
    cause = cause_of(inquiry)
    assert cause is not None and cause.name == "prompt.template"


def test_an_answer_that_nobody_gets_alone_is_the_company_of_the_batch() -> None:
    wrong = case({**FIRST, "output_ids": [8, 8, 9], "text": ".."}, SECOND)
    cause = found_with(wrong, ALONE)
    assert cause is not None and (cause.name, cause.certainty) == ("batch", "confirmed")


def test_a_picture_that_neighbours_change_is_named_before_the_batch() -> None:
    pictures = [[{"sha256": "a", "tokens": count, "budget": [1, 9]}] for count in (4, 30)]
    old, new = (case({**FIRST, "images": own}, SECOND) for own in pictures)
    found = found_with(case({**new.rows[0], "output_ids": [8, 8, 9], "text": ".."}, SECOND), ALONE, old)
    assert found is not None and (found.name, found.certainty) == ("image.tokens", "confirmed")


def test_in_half_precision_company_is_not_asked_before_the_numerics() -> None:
    half = [replace(one, rows=tuple({**r, "model": {**r["model"], "dtype": "bfloat16"}} for r in one.rows)) for one in (
        OLD, case({**FIRST, "output_ids": [8, 8, 9], "text": ".."}, SECOND))]  # fmt: skip
    cause = found_with(half[1], ALONE, half[0])
    assert cause is None or cause.name != "batch"


def test_an_answer_out_of_a_cache_that_the_model_would_not_give_is_the_caches() -> None:
    wrong = case(FIRST, {**SECOND, "output_ids": [4, 5, 9], "text": "de", "request": {"number": 1, "cached": True}})
    cause = found_with(wrong, UNCACHED)
    assert cause is not None and (cause.name, cause.certainty) == ("cache", "confirmed")


@pytest.mark.parametrize(("before", "own", "cause"), [([4, 8], [4, 5], "cache"), ([4, 8], [4, 8], None),
                                                    ([4, 7], [4, 5], None)])  # fmt: skip
def test_an_answer_out_of_a_cache_that_another_model_gave_is_the_caches(
    before: list[int], own: list[int], cause: str | None
) -> None:
    """Though rounding may explain it: the old code's is not what comes without the cache."""
    half = {"model": {"path": "m", "dtype": "bfloat16"}, "text": "d"}
    old = case({**FIRST, "output_ids": before}, {**FIRST, **half, "output_ids": [4, 6]})
    cached, alone = (
        {**half, "output_ids": ids, "request": {"number": 1, "cached": out}}
        for ids, out in (([4, 8], True), (own, False))
    )
    sides = [case({**FIRST, "output_ids": before}, {**FIRST, **one}, value="d!") for one in (cached, alone)]
    asked = inquiry_of(old, sides[0], differences(old, sides[0]), TOOLS.decode, lambda *_: sides[1], TOOLS)
    found = by_cache(asked)
    assert (found and found.name) == cause


def test_an_answer_that_changes_by_itself_is_not_the_caches() -> None:
    """A run without the cache is a proof only where what no cache gave stays as it was."""
    own = {**FIRST, "sampling": {"temperature": {"value": 1.0, "from": "caller"}}, "request": {"number": 0, "seed": 7}}
    other = {**own, "model": {"path": "m", "dtype": "bfloat16"}, "request": {"number": 1, "seed": 7, "cached": True}}
    old = case({**own, "output_ids": [4, 6]}, {**other, "output_ids": [4, 7]})
    new = case({**own, "output_ids": [4, 8]}, {**other, "output_ids": [4, 8]}, value="d!")

    def cause(*ids: list[int]) -> str | None:
        later = {**other, "output_ids": ids[1]}
        again = case({**own, "output_ids": ids[0]}, *[later] * (len(new.rows) - 1), value="d!")
        found = by_cache(inquiry_of(old, new, differences(old, new), TOOLS.decode, lambda *_: again, TOOLS))
        return found.name if found else None

    assert cause([4, 8], [4, 9]) == "cache"
    assert cause([4, 9], [4, 9]) is None
    computed = {**other, "output_ids": [4, 8], "request": {"number": 1, "seed": 7}}
    old = case(*old.rows, old.rows[1])
    new = case(new.rows[0], computed, new.rows[1], value="d!")
    assert cause([4, 8], [4, 9]) is None, "no cache gave the second one"


def test_a_row_of_another_requests_ids_breaks_no_law_of_prompts() -> None:
    new = case({**FIRST, "prompt_ids": [3, 3], "request": {"answers": "another"}}, SECOND)
    asked = [{**one, "request": {"number": number}} for number, one in enumerate((FIRST, SECOND))]
    broken = list(broken_by_new(case(*asked), new, TOOLS))
    assert [b.cause for b in broken] == ["order"]


def test_rows_are_paired_by_prompt_where_some_are_missing() -> None:
    assert paired([FIRST, SECOND, FIRST], [SECOND, FIRST]) == [(FIRST, FIRST), (SECOND, SECOND)]
    assert paired([FIRST, SECOND], [SECOND, FIRST]) == [(FIRST, FIRST), (SECOND, SECOND)]
    other = {**FIRST, "prompt_ids": [5], "messages": ["z"]}
    assert paired([FIRST, SECOND], [SECOND, other]) == [(FIRST, SECOND), (SECOND, other)]


def test_rows_of_another_order_that_all_changed_are_paired_by_what_is_left_of_them() -> None:
    """A template, or pictures, that are others in every row say nothing of the messages."""
    mine = [{**FIRST, "messages": [name]} for name in "ab"]
    theirs = [{**one, "prompt_ids": [7, 7, place]} for place, one in enumerate(mine)]
    assert paired(mine, theirs[::-1]) == list(zip(mine, theirs))
    shown = [{**FIRST, "prompt_ids": [k, 5, 5], "images": [{"sha256": "x", "tokens": 2}]} for k in range(2)]
    fewer = [{**one, "prompt_ids": [k, 5], "images": [{"sha256": "y", "tokens": 1}]} for k, one in enumerate(shown)]
    assert paired(shown, fewer[::-1]) == list(zip(shown, fewer))


def test_ids_that_are_only_read_count_where_both_sides_have_them() -> None:
    read = {**FIRST, "output_ids": [], "scored": True}
    assert [len(one.rows) for one in loops.of_one_kind(case(FIRST), case(FIRST, read))] == [1, 1]
    assert [len(one.rows) for one in loops.of_one_kind(case(FIRST, read), case(FIRST, read))] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"stop": {"min_new_tokens": 3}}, ""),
        ({"stop": {"min_new_tokens": 4}}, "stop.min_new_tokens"),
        ({"stop": {"min_new_tokens": 4, "strings": ["f"]}, "output_ids": [4, 6]}, "stop.min_new_tokens"),
        ({"stop": {"strings": ["g"]}, "output_ids": [4, 6]}, "stop"),
    ],
)
def test_a_row_has_its_least_number_of_tokens_and_ends_for_a_reason(changes: dict[str, Any], cause: str) -> None:
    assert (end(row(**changes), TOOLS) or ("unseen",))[0] == cause


def drawn(ids: list[int], seed: int | None) -> dict[str, Any]:
    request = {} if seed is None else {"seed": seed}
    return {**case({**FIRST, "output_ids": ids, "request": request}).rows[0], "sampling": {
        name: {"value": value, "from": "caller"} for name, value in {"temperature": 1.0, "processors": []}.items()
    }}  # fmt: skip


def test_equal_requests_with_one_seed_are_drawn_alike() -> None:
    assert seeds([drawn([4], 1), drawn([5], 2), drawn([4], 1)]) is None
    assert seeds([drawn([4], None), drawn([5], None)]) is None
    assert seeds([drawn([4], 1), drawn([5], 2), drawn([6], 1)]) == (0, 2)
    about = [{**drawn(ids, 1), "images": [{"sha256": name}]} for ids, name in (([4], "red"), ([5], "blue"))]
    assert seeds(about) is None


def test_unlike_requests_that_were_computed_once_got_one_answer() -> None:
    """As where a key leaves something out that makes two requests differ."""
    second = {**FIRST, "output_ids": [6, 7, 9], "text": "fg"}
    wrong = case(*({**FIRST, "request": {"number": number, "shared": True}} for number in (0, 1)))
    cause = found_with(wrong, ALONE, case(FIRST, second))
    assert cause is not None and (cause.name, cause.certainty) == ("cache", "confirmed")
    assert "computed once" in cause.sentence


def test_to_answer_as_a_neighbour_with_the_same_prompt_does_is_company() -> None:
    second = {**FIRST, "output_ids": [6, 7, 9], "text": "fg"}
    cause = found_with(case(FIRST, FIRST), ALONE, case(FIRST, second))
    assert cause is not None and (cause.name, cause.certainty) == ("batch", "confirmed")


def test_values_that_come_in_another_order_are_named_so() -> None:
    cause = found_with(case(FIRST, SECOND, value=["fg", "de"]), "nothing")
    assert cause is not None and (cause.name, cause.certainty) == ("order", "confirmed")
    inside = {"answers": [["x"], ["y"]], "n": 2}
    old, new = (case(FIRST, SECOND, value={**inside, "answers": said}) for said in ([["x"], ["y"]], [["y"], ["x"]]))
    assert (found_with(new, "nothing", old) or Cause("", "likely", "")).name == "order"
    assert moved_parts({"a": inside}, {"a": {**inside, "answers": [["y"], ["x"]]}})
    assert not moved_parts([["x", "y"], ["z"]], [["y", "x"], ["z"]])  # an order within an answer


def test_records_in_another_order_are_named_so_though_their_numbers_are_rounded() -> None:
    told: list[dict[str, Any]] = [{"said": "de", "votes": 1.0, "sure": 0.5}, {"said": "fg", "votes": 1.0, "sure": 0.25}]
    moved = [{**one, "sure": one["sure"] + 1.5e-5} for one in told]
    cause = found_with(case(FIRST, SECOND, value=moved[::-1]), "nothing", case(FIRST, SECOND, value=told))
    assert cause is not None and (cause.name, cause.certainty) == ("order", "confirmed")
    swapped = [{**one, "said": other["said"]} for one, other in zip(moved, told[::-1])]
    cause = found_with(case(FIRST, SECOND, value=swapped), "nothing", case(FIRST, SECOND, value=told))
    assert cause is not None and cause.name == "order"


def test_scores_that_stand_as_their_requests_are_asked_now_are_named_so_whatever_is_made_of_them() -> None:
    """Sorted by length before they are scored, and not put back."""
    read = [{**one, "scored": True, "output_ids": [], "text": None} for one in (FIRST, SECOND)]
    old = case(*read, value={"best": 0, "sums": [-1.0, -8.0], "means": [-0.5, -2.0]})
    wrong = {"best": 1, "sums": [-8.000001, -1.0], "means": [-4.0, -0.25]}
    cause = found_with(case(*read[::-1], value=wrong), "nothing", old)
    assert cause is not None and (cause.name, cause.certainty) == ("order", "confirmed")
    assert "value.sums" in cause.sentence
    bare, new = case(*read, value=[-1.0, -8.5]), case(*read[::-1], value=[-8.5001, -1.00005])
    cause = found_with(new, "nothing", bare)
    assert cause is not None and (cause.name, cause.certainty) == ("order", "confirmed")
    cause = found_with(case(*read, value=wrong), "nothing", old)
    assert cause is not None and cause.name == "value", "no request is asked in another place"


def records(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{"question": question, name: value} for question, value in zip("bcd", values)]


@pytest.mark.parametrize(
    ("told", "now", "cause"),
    [
        (records("said", "de", "fg"), records("said", "fg", "de"), "order; confirmed"),
        ({"b": "de", "c": "fg"}, {"b": "fg", "c": "de"}, "order; confirmed"),
        (records("label", "A", "B"), records("label", "B", "A"), "order; likely"),
        (records("is_right", True, False), records("is_right", False, True), "value; confirmed"),
        (records("rank", 1, 2), records("rank", 2, 1), "value; confirmed"),
        (
            records("said", ["de", 1], ["fg", 2], ["x", 3]),
            records("said", ["fg", 1], ["de", 3], ["x", 2]),  # in no one order
            "value; confirmed",
        ),
    ],
)
def test_only_what_an_answer_is_or_a_number_says_is_another_entrys(told: Any, now: Any, cause: str) -> None:
    """A flag, a rank or a label that two entries exchange may be another one in each."""
    found = found_with(case(FIRST, SECOND, value=now), "nothing", case(FIRST, SECOND, value=told))
    assert str(found) == cause


def test_a_prompt_that_differs_beside_scored_rows_is_before_the_order() -> None:
    read = [{**one, "scored": True, "output_ids": [], "text": None} for one in (FIRST, SECOND)]
    cut = [{**one, "prompt_ids": one["prompt_ids"][:-1], "prompt_text": None, "messages": None} for one in read]
    old, new = case(*read, value=[-1.5, -8.5]), case(*cut, value=[-8.5, -1.5])
    found = found_with(new, "nothing", old)
    assert found is not None and found.name == "prompt.ids"


@pytest.mark.parametrize("new", [[], [["x"]], [["x"], ["z"]], {"n": 2}, None])
def test_what_was_lost_or_changed_is_no_other_order(new: Any) -> None:
    assert not moved_parts([["x"], ["y"]], new) and not moved_parts([["x"]], [])


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [([["a"], []], False), ([[], ["a"]], False), ([["a"], ["a"]], True), ([["a"], ["b"]], True), ([[], []], True)],
)
def test_adapters_are_those_of_all_rows_with_one_prompt(theirs: list[list[str]], differs: bool) -> None:
    def through(adapters: list[str]) -> dict[str, Any]:
        return {**FIRST, "inputs": {"keys": [], **({"adapters": adapters} if adapters else {})}}

    old, new = (case(*map(through, given)) for given in ([["a"], []], theirs))
    found = [d for d in differences(old, new) if d.stage == "model"]
    assert bool(found) is differs
    assert {d.name for d in found} <= {"model.adapters"}


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [
        ({"request": {"adapter": "a"}, "inputs": {"adapters": ["1f"]}}, False),
        ({"request": {"adapter": "b"}, "inputs": {"adapters": ["1f"]}}, True),
        ({"request": {}, "inputs": {}}, True),  # none is on
        ({"request": {}, "inputs": {"adapters": ["1f"]}}, False),  # plain code, which does not say which
        ({"request": {}}, False),
    ],
)
def test_an_adapter_of_vllms_is_held_against_one_of_hf(theirs: dict[str, Any], differs: bool) -> None:
    old = {**FIRST, "request": {"adapter": "a"}, "model": {"backend": "vllm"}}
    new = {**FIRST, "model": {"backend": "hf"}, **theirs}
    assert bool([*adapter_differences([(old, new)])]) is differs


@pytest.mark.parametrize(
    ("adapters", "request_of_new", "differs"),
    [
        (["1f"], {}, True),  # the moved code asks for none
        (["1f"], {"adapter": "a"}, False),  # by what it is called, nothing says which one it is
        (["", "1f"], {}, False),  # it is not known which of the rows had one
        ([], {"adapter": "a"}, True),
        ([], {}, False),
    ],
)
def test_an_adapter_of_plain_code_is_held_against_none_of_vllms(
    adapters: list[str], request_of_new: dict[str, Any], differs: bool
) -> None:
    """It was an ERROR: where the adapter is was not to be seen."""
    inputs = {"keys": [], **({"adapters": adapters} if adapters else {})}
    old = {**FIRST, "request": {}, "inputs": inputs, "model": {"backend": "hf"}}
    new = {**FIRST, "request": request_of_new, "model": {"backend": "vllm"}}
    found = [*adapter_differences([(old, new)])]
    assert bool(found) is differs and {d.name for d in found} <= {"model.adapters"}


def test_adapters_are_shown_by_their_folders_not_by_digests() -> None:
    """A stranger saw two fingerprints, and could not tell which adapter was which."""

    def through(adapter: str, folder: str | None, prompt: int) -> dict[str, Any]:
        request = {} if folder is None else {"request": {"adapter": folder}}
        inputs = {"keys": [], **({"adapters": [adapter]} if adapter else {})}
        return {**FIRST, "prompt_ids": [prompt], "messages": [str(prompt)], "inputs": inputs, **request}

    old = [through("1f", None, 1), through("2e", None, 2), through("3d", None, 3)]
    new = [through("2e", "adapters/french", 1), through("1f", "adapters/german", 2), through("", "", 3)]
    found = [d.sentence() for d in adapter_differences(list(zip(old, new)))]
    assert found == [
        "model.adapters of row 0 was adapters/german, is adapters/french",
        "model.adapters of row 1 was adapters/french, is adapters/german",
        "model.adapters of row 2 was an adapter whose folder was not seen (weights 3d), is no adapter",
    ]


def test_what_stands_beside_each_token_is_seen_and_pictures_of_other_rows_are_not() -> None:
    import torch

    model = torch.nn.Identity()
    model.config = SimpleNamespace(image_token_id=7)

    def seen(ids: list[list[int]], kinds: list[list[int]]) -> list[dict[str, Any]]:
        given = {"input_ids": torch.tensor(ids), "mm_token_type_ids": torch.tensor(kinds)}
        event = read_forward(model, {**given, "pixel_values": torch.ones(1, 3)})
        assert event is not None
        return [row.inputs for row in event.rows]

    [picture, text], [wrong] = seen([[1, 7], [1, 2]], [[0, 1], [0, 0]]), seen([[1, 7]], [[1, 0]])
    assert text["keys"] == [] and "marks" not in text
    assert picture["keys"] == wrong["keys"] and picture["marks"] != wrong["marks"]
    old, new = ({**FIRST, "inputs": said} for said in (picture, wrong))
    [found] = input_differences(old, new)
    assert found.name == "batch.marks"


def test_vllm_goes_by_the_names_that_it_is_given() -> None:
    """A picture under another's uuid, an adapter under another's number, are the first ones."""
    from PIL import Image

    known, red, blue = Names(), Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    events = [
        read_request(
            known,
            {"prompt_token_ids": [k], "multi_modal_data": {"image": [picture]}, "multi_modal_uuids": {"image": uuids}},
            None, SimpleNamespace(lora_int_id=number, lora_path=folder),
        )
        for k, (picture, uuids, number, folder) in enumerate(
            [(red, ["0.0"], 1, "a"), (blue, ["0.0"], 1, "b"), (blue, [None], 2, "b")]
        )
    ]  # fmt: skip
    [first], [second], [third] = (request.pictures for request in events)
    assert first == second != third
    assert [request.folder for request in events] == ["a", "a", "b"]
    checkpoint = SimpleNamespace(placeholder_id=None, config=None)
    config = SimpleNamespace(adapters={"one": "a", "two": Path("b")})
    below = Below(SimpleNamespace(config=config, checkpoint=checkpoint), events)
    told = [
        below.adapter_stage(SimpleNamespace(adapter=name, token_ids=ids))
        for name, ids in (("one", [0]), ("two", [1]), ("two", [2]), (None, [2]), (None, [3]))
    ]
    assert told == [{"adapter": "a"}, {"adapter": "another"}, {"adapter": "b"}, {"adapter": "another"}, {}]
    found = differences(case(FIRST), case({**FIRST, "request": told[1]}))
    assert [d.name for d in found] == ["model.adapters"]


def test_a_site_of_which_no_row_can_be_read_again_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EngineError", "GenEngineError"):
        monkeypatch.setitem(globals(), name, RuntimeError)

    class Engine:
        backend, checkpoint = SimpleNamespace(name="hf"), SimpleNamespace(window=None)
        score_batch: Any = list
        tokenizer: Any = staticmethod(lambda text: {"input_ids": []})

    group = groups.Group("s", "hf", "m", {}, {})
    groups.read_moved(group, Engine(), None)
    assert (group.new, group.apart, group.why) == ([], 0.0, "")


def an_engine(dtype: str = "float32") -> Any:
    return SimpleNamespace(config=SimpleNamespace(model="models/tiny"), checkpoint=SimpleNamespace(dtype=dtype))


def test_scores_are_asked_alone_too() -> None:
    together, alone = (Replay(Engines(), put_back=parts) for parts in (frozenset[str](), frozenset({ALONE})))
    for replay, wanted in ((together, [2, 2]), (alone, [1, 1])):
        assert replay.score(lambda engine, items: [len(items)] * len(items), an_engine(), ["a", "b"]) == wanted


@pytest.mark.parametrize(
    ("first", "asked"),
    [
        ([4, 8, 9], 1),  # it parts from the golden by itself: the second need not be asked
        ([4, 5, 9], 2),
        ([4, 5], 2),  # an end elsewhere is no parting
        ([4, 5, 9, 7], 2),
    ],
)
def test_requests_are_asked_alone_until_one_parts_from_the_golden(
    first: list[int], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [SimpleNamespace(token_ids=(*ids,), prompt_token_ids=(*one["prompt_ids"],))
            for ids, one in ((first, FIRST), (SECOND["output_ids"], SECOND))]  # fmt: skip
    seen: list[str] = []

    def answer(engine: Any, requests: list[Any], options: Any, **how: Any) -> list[Any]:
        seen.append(requests[0])
        return [told[int(request)] for request in requests]

    monkeypatch.setattr(Replay, "engine", lambda replay, engine, **how: engine)
    with contextlib.suppress(PartedAlone):
        replay = Replay(Engines(), put_back=frozenset({ALONE}), rows=OLD.rows)
        assert replay.call(answer, an_engine(), ["0", "1"]) == told
    assert len(seen) == asked


def test_an_answer_of_the_same_question_about_another_picture_is_another_requests() -> None:
    def about(picture: str, ids: list[int], length: int = 2) -> dict[str, Any]:
        return row(images=[{"sha256": picture}], output_ids=ids, prompt_ids=[2] * length)

    alone = [about("red", [4]), about("blue", [5])]
    assert answers_of_others([about("red", [5]), about("blue", [4])], alone) == (0, 1)
    assert answers_of_others([about("red", [5], 3), about("blue", [4])], alone) is None  # no mere exchange


STOPPED = {"strings": ["e", "de"], "end_ids": [9]}


@pytest.mark.parametrize(
    ("asked", "ids", "cause"),
    [
        ({"choice": ["de", "fg"]}, [4, 5, 9], ""),
        ({"choice": ["fg"]}, [4, 5, 9], "sampling.structured"),
        ({"choice": ["fg"]}, [4, 5], ""),  # cut short: it may still have become one
        ({"regex": "[d-f]+"}, [4, 5, 9], ""),
        ({"regex": "d"}, [4, 5, 9], "sampling.structured"),
        ({"json": {}}, [4, 5, 9], "sampling.structured"),
        ({"regex": "(?<n"}, [4, 5, 9], "unseen"),  # a grammar may know it, Python does not
        (None, [4, 5, 9], "unseen"),
    ],
)
def test_an_answer_has_the_form_that_was_asked_for(asked: Any, ids: list[int], cause: str) -> None:
    own = row(output_ids=ids, request={"number": 0, **({"structure": asked} if asked else {})})
    assert (structure(own, TOOLS) or ("unseen",))[0] == cause


def test_a_lost_form_shows_though_the_old_code_said_its_own_in_another_way() -> None:
    new = case({**FIRST, "request": {"number": 0, "structure": {"choice": ["fg"]}}})
    assert [b.cause for b in broken_by_new(case(FIRST), new, TOOLS)] == ["sampling.structured"]


@pytest.mark.parametrize("first", [4, 6], ids=["all rows are drawn", "one row is drawn"])
def test_draws_that_come_back_by_luck_say_nothing_of_company(first: int) -> None:
    """Something is declared otherwise, and each row by itself happens to draw the old ids."""

    def asked(ids: list[int], top_p: float) -> Case:
        rows = [drawn([first], None), drawn(ids, None)]
        for one in rows:
            one["sampling"] |= {"top_p": {"value": top_p, "from": "caller"}}
        if first == 6:
            rows[0]["sampling"] = {"temperature": {"value": 0, "from": "caller"}}
        return Case("s", "c", rows=tuple(rows), value=[one["output_ids"] for one in rows])

    old, new = asked([5], 1.0), asked([7], 0.5)
    cause = found_with(new, ALONE, old)
    assert cause is not None and cause.name == "sampling.top_p"


def test_texts_in_another_order_are_that_though_the_old_answers_go_on() -> None:
    """As those of a batch do until its last row ends."""
    longer = [{**one, "output_ids": [*one["output_ids"], 0, 0]} for one in (FIRST, SECOND)]
    old, new = case(*longer, value=["de", "fg"]), case(FIRST, SECOND, value=["fg", "de"])
    cause = cause_of(inquiry_of(old, new, differences(old, new), TOOLS.decode, None, TOOLS))
    assert cause is not None and (cause.name, cause.certainty) == ("order", "confirmed")


def test_an_answer_that_several_models_chose_together_is_one() -> None:
    chosen = {**FIRST, "loop": rows.CHOSEN}
    for count, others in ((1, [FIRST]), (2, [FIRST, FIRST]), (1, [SECOND])):
        assert len(loops.of_one_kind(case(chosen, chosen), case(*others))[0].rows) == count
    assert len(loops.of_one_kind(case(FIRST, FIRST), case(FIRST))[0].rows) == 2


@pytest.mark.parametrize(("seeds", "cause"), [((3, 3), "sampling.processors"), ((3, None), "error")])
def test_other_draws_of_equal_seeds_come_of_what_a_processor_does(seeds: Any, cause: str, tmp_path: Path) -> None:
    made = [{**drawn([4 + place], seed), "model": OLD.rows[0]["model"]} for place, seed in enumerate(seeds)]
    for one in made:
        one["sampling"] |= {"processors": {"value": ["Green"], "from": "caller"}}
    old, new = (Case("s", "c", rows=(one,), value=one["output_ids"]) for one in made)
    verdict, found, _ = check.Judge(Store(tmp_path), "hf", lambda *_: None).samples.judge_texts(old, new, "why")
    assert verdict == ("DRIFT" if cause != "error" else "ERROR") and found is not None and found.name == cause


def test_a_replay_that_cannot_load_is_no_error_of_the_case(tmp_path: Path) -> None:
    def run(old: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        raise GoldenError("no such model")

    new = case({**FIRST, "output_ids": [8, 8, 9], "text": ".."}, SECOND)
    new = replace(new, rows=tuple({**one, "model": {**one["model"], "dtype": "float64"}} for one in new.rows))
    outcome = check.Judge(Store(tmp_path), "hf", run).outcome(OLD, new)
    assert outcome.verdict == "DRIFT" and str(outcome.cause) == "model.dtype; likely"


def test_fewer_samples_of_one_prompt_are_another_number() -> None:
    old, new = (Case("s", "c", rows=(drawn([4], None),) * number, value=["d"] * number) for number in (4, 2))
    cause = cause_of(inquiry_of(old, new, differences(old, new)))
    assert cause is not None and cause.name == "calls"


@pytest.mark.parametrize(("stop", "counts"), [({}, True), ({"strings": ["x"]}, False), ({"end_ids": [7, 9]}, False)])
def test_a_criterion_that_stops_took_the_place_of_is_judged_by_the_ids(stop: dict[str, Any], counts: bool) -> None:
    old, new = case(row(stop={"criteria": ["Mine"]})), case(row(stop=stop))
    [found] = [d for d in differences(old, new) if d.field == "criteria"]
    assert found.counts is counts


def test_what_fails_a_check_is_named_before_what_only_the_ids_can_tell() -> None:
    ended = row(output_ids=[4, 5], text="de", stop={"criteria": ["Mine"], "max_new_tokens": 3})
    longer = row(output_ids=[4, 5, 6, 9], text="def", stop={"strings": ["x"], "max_new_tokens": 5})
    first = [
        {**SECOND, **row(prompt_ids=[3, 3], stop={"criteria": own, "strings": s})}
        for own, s in ((["Mine"], []), ([], ["x"]))
    ]
    old, new = case(first[0], {**ended, "finish": {"criteria": {"Mine": 2}}}), case(first[1], longer)
    cause = cause_of(inquiry_of(old, new, differences(old, new)))
    assert cause is not None and (cause.name, cause.certainty) == ("stop.max_new_tokens", "likely")


def test_no_stop_makes_a_model_choose_another_word() -> None:
    old, far, near = (row(output_ids=ids) for ids in ([4, 5, 9], [4, 6, 9], [4, 9]))
    for new, can_be in ((far, False), (near, True)):
        inquiry = inquiry_of(case(old), case(new), ())
        assert inquiry.is_possible(Difference("stop", "strings", [], ["x"])) == can_be
        assert inquiry.is_possible(Difference("sampling", "mode", "greedy", "drawn"))


@pytest.mark.parametrize(("seeds", "can_be"), [((None, None), True), ((1, 2), True), ((1, 1), False)])
def test_samples_part_by_chance_and_a_stop_may_be_the_cause(seeds: tuple[int | None, int | None], can_be: bool) -> None:
    """The first step where they part tells of draws, and nothing of a budget."""
    said = [{"temperature": 0.7} | ({} if seed is None else {"seed": seed}) for seed in seeds]
    drawn = [{name: {"value": value, "from": "caller"} for name, value in one.items()} for one in said]
    old, new = (row(sampling=one, output_ids=ids) for one, ids in zip(drawn, ([4, 5, 9], [4, 6])))
    difference = Difference("stop", "max_new_tokens", 3, 2)
    assert inquiry_of(case(old), case(new), ()).is_possible(difference) is can_be


def test_a_batch_of_one_puts_back_no_other_tensors() -> None:
    names = ["batch.keys", "batch.side"]
    nothing = Difference("batch", "", None, None)
    assert [one.name for one in put_backs([(name, nothing) for name in names], OLD, "hf")] == names[1:]


@pytest.mark.parametrize(("cached", "cause"), [(False, "sampling.seed"), (True, "cache")])
def test_copies_of_one_draw_out_of_a_cache_are_the_caches(cached: bool, cause: str) -> None:
    evidence = SimpleNamespace(fault=surprise.COPY, impossible=None, alpha=0.001, sentence=lambda: "copies")
    assert samples.cause_of_samples(cast(Any, evidence), cached).name == cause


@pytest.mark.parametrize(
    ("changes", "drawn_as", "verdict"),
    [
        ({"attention": "eager"}, "SAME-DISTRIBUTION", "LATENT"),
        ({"attention": "eager"}, "DRIFT", None),
        ({"dtype": "bfloat16"}, "SAME-DISTRIBUTION", None),
    ],
)
def test_what_other_draws_show_beside_an_unlike_setting_is_no_luck(
    changes: dict[str, str], drawn_as: str, verdict: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {**drawn([4], None), "model": {**drawn([4], None)["model"], "attention": "sdpa"}}
    other = {**one, "output_ids": [5], "model": {**one["model"], **changes}}
    old, new = (Case("s", "c", rows=(r,), value=v) for r, v in ((one, "d"), (other, "e")))
    judge = check.Judge(Store(tmp_path), "hf", lambda *_: None)
    monkeypatch.setattr(samples.Samples, "judge", lambda *_, **__: (drawn_as, None, ()))
    findings = Findings(judge.inquiry(Comparison(old, new), old), judge.samples, None, list)
    found = of_draws(findings)
    assert (found and found[0]) == verdict


# == Texts of other ids ==

LONG = {
    "output_ids": [4, 5, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 9],
    "text": "deabcdefgabcdefgabcde",
}
PARTED = {
    "output_ids": [4, 5, 6, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 9],
    "text": "defbcdefgabcdefgabcde",
}


@pytest.mark.parametrize(
    ("change", "strange"),
    [
        (lambda text: text, False),
        (lambda text: text[:3], False),  # cut, as the old answer may have been had it held what the new one holds
        (lambda text: "", True),
        (str.upper, True),
        (lambda text: "bc" * 40 + text, True),  # with its prompt
    ],
)
def test_where_ids_cannot_be_forced_each_text_is_its_answers(change: Any, strange: bool) -> None:
    """As it does where they part by rounding, and where they are drawn: neither hides what is done after decoding."""
    value = {"n": 2, "texts": [change(PARTED["text"]), "fg"]}
    old = replace(case(row(**LONG), SECOND), value={"n": 2, "texts": [LONG["text"], "fg"]})
    new = replace(case(row(**PARTED), SECOND), value=value)
    inquiry = inquiry_of(old, new, differences(old, new), TOOLS.decode, None, TOOLS)
    found, _ = beside_rounding(inquiry)
    assert found == from_own_ids(inquiry)
    assert (found is not None) == strange and (found is None or found.name == "value")


@pytest.mark.parametrize(
    ("value", "cause", "apart"),
    [
        ([LONG["text"], -0.5], None, 0.0),
        (["", -0.5], "value", 0.0),
        ([f"Answer: {LONG['text']}", -0.5], "value", 0.0),
        ([LONG["text"][:-1], -0.5], "value", 0.0),
        ([LONG["text"], -1.0], "value", 0.5),  # which rounding may explain
    ],
)
def test_the_goldens_own_ids_are_forced_and_become_the_goldens_value(
    value: list[Any], cause: str | None, apart: float
) -> None:
    old, new = case(row(**LONG), value=[LONG["text"], -0.5]), case(row(**PARTED), value=["whatever", -0.25])

    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        assert parts == {ANSWERS}
        return replace(old, value=value)

    found, gap = beside_rounding(inquiry_of(old, new, differences(old, new), TOOLS.decode, rerun, TOOLS))
    assert ((found and found.name), gap) == (cause, apart)


def test_a_run_that_is_answered_out_of_the_memory_of_the_first_one_says_nothing() -> None:
    """Code may keep answers (a memo): when it is called again, it asks for less."""
    old, new = case(row(**LONG), SECOND), case(row(**PARTED), SECOND)
    inquiry = inquiry_of(old, new, differences(old, new), TOOLS.decode, lambda *_: case(value=new.value), TOOLS)
    assert beside_rounding(inquiry).cause is None
    assert inquiry.run({}, {ALONE}) is None and inquiry.run({}, ()) is not None
    assert REMEMBERS in "".join(inquiry.steps)
    other = case(row(**LONG), {**SECOND, "prompt_ids": [3, 3, 3]})  # as behind another answer
    inquiry = inquiry_of(old, new, differences(old, new), TOOLS.decode, lambda *_: other, TOOLS)
    assert inquiry.run({}, {ALONE}) is other
    once = case(row(**LONG), value=["another"])  # a good answer, which nobody asks for again
    inquiry = inquiry_of(old, new, differences(old, new), TOOLS.decode, lambda *_: once, TOOLS)
    assert inquiry.run({}, {ALONE}) is once


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ([LONG["text"], "fg"], "calls"),  # one does not reach the model any more
        ([LONG["text"]], "calls"),
        ([LONG["text"], LONG["text"]], "calls"),  # the other request got this one's answer
    ],
)
def test_fewer_answers_beside_ids_that_part_are_to_become_the_goldens_value(value: list[str], name: str | None) -> None:
    old = case(row(**LONG), SECOND, value=[LONG["text"], "fg"])
    new, forced = case(row(**PARTED), value=["whatever"]), case(row(**LONG), value=value)
    rerun = lambda load, parts: forced  # noqa: E731
    found, _ = beside_rounding(inquiry_of(old, new, differences(old, new), TOOLS.decode, rerun, TOOLS))
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("left_out", "name"),
    [
        (SECOND, "calls"),
        ({**row(**LONG), "output_ids": [8, 9]}, None),  # an equal prompt is asked
        ({**SECOND, "prompt_ids": [3, *LONG["output_ids"], 3]}, None),  # holds an answer, and follows from it
    ],
)
def test_a_prompt_that_is_not_asked_any_more_is_no_near_tie_where_nothing_can_be_forced(
    left_out: dict[str, Any], name: str | None
) -> None:
    old, new = case(row(**LONG), left_out), case(row(**PARTED))
    found, _ = beside_rounding(inquiry_of(old, new, differences(old, new), TOOLS.decode, None, TOOLS))
    assert (found and found.name) == name


def test_numbers_that_are_made_of_fewer_answers_may_be_rounded() -> None:
    old = case(row(**LONG), row(**LONG), value=[LONG["text"], "fg", -0.5])
    new, forced = case(row(**PARTED), value=["whatever"]), case(row(**LONG), value=[LONG["text"], "fg", -0.501])
    rerun = lambda load, parts: forced  # noqa: E731
    found = beside_rounding(inquiry_of(old, new, differences(old, new), TOOLS.decode, rerun, TOOLS))
    assert found.counts(1e-4) and not found.counts(1e-2)


def test_a_stop_that_differs_is_told_though_the_ids_part_before_it() -> None:
    old, new = case(row(**LONG)), case(row(**PARTED, stop={"max_new_tokens": 4}))
    inquiry = inquiry_of(old, new, differences(old, new), TOOLS.decode, None, TOOLS)
    assert cause_of(inquiry) is None  # it did not make them part: the numerics are asked
    found, _ = beside_rounding(inquiry)
    assert found is not None and found.name == "stop.max_new_tokens"


def judged(old: Case, new: Case, tmp_path: Path) -> tuple[str, str]:
    judge = check.Judge(Store(tmp_path), "hf", lambda *given: None)
    outcome = judge.outcome(old, new)
    return outcome.verdict, outcome.cause.name if outcome.cause else ""


def test_a_request_that_was_never_sent_is_told_where_no_value_shows_it(tmp_path: Path) -> None:
    old, new = replace(OLD, value=None), replace(case(FIRST), value=None)
    assert judged(old, new, tmp_path) == ("LATENT", "calls")
    twice = replace(case(FIRST, FIRST), value=None)
    assert judged(twice, new, tmp_path) == ("TEXT-IDENTICAL", "")  # asked for twice, and answered once


def test_special_tokens_that_are_kept_are_told_where_there_are_none(tmp_path: Path) -> None:
    kept = {"decode": {"ids": "ended", "skip_special_tokens": False, "clean_up": False}}
    old = replace(case(row(output_ids=[4, 5, 4, 5, 4], text="deded")), value=None)
    new = replace(case(row(output_ids=[4, 5, 4, 5, 4], text="deded", **kept)), value=None)
    assert judged(old, new, tmp_path) == ("LATENT", "decode.skip_special_tokens")
    twice = row(output_ids=[4, 5, 4, 5, 4], text="deded", decodes=[{"skip_special_tokens": True}, {}])
    assert judged(replace(case(twice), value=None), new, tmp_path)[0] == "IDENTICAL"  # any of both may be the value's


def test_of_code_that_only_scores_the_engine_is_known_too() -> None:
    """Its numerics can be read, then."""
    engine, replay = an_engine(), Replay(Engines())
    assert replay.score(lambda used, items: [used] * len(items), engine, [("a", [1])]) == [engine]
    assert replay.used is engine


def test_the_last_engine_of_each_model_is_known() -> None:
    replay, engines = Replay(Engines()), [an_engine(), an_engine("bfloat16"), an_engine()]
    for engine in engines:
        replay.asks(engine)
    assert [*replay.ran.values()] == engines[1:] and replay.used is engines[2]
