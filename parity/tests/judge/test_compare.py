"""Stages, suspects, endings and samples: pure functions of recorded values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from parity.goldens.store import Case
from parity.goldens.verdict import Check, Outcome, Policy, equal
from parity.judge.align import paired
from parity.judge.judge import made_of_ids
from parity.judge.numerics.samples import unlike
from parity.judge.numerics.surprise import permutation_p
from parity.judge.row import placeholders_in
from parity.record.rows import Placeholders
from parity.report.partings import partings

from .inquiries import cause_of, differences, inquiry_of, named


def said(value: Any, source: str = "caller") -> dict[str, Any]:
    return {"value": value, "from": source}


ROW: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "template": {"sha256": "ab", "arguments": {"add_generation_prompt": True}},
    "prompt_text": "<user>Hi",
    "prompt_ids": [7, 8, 9],
    "batch": {"rows": 2, "side": "left", "pads": 3, "masked": True},
    "model": {"class": "M", "dtype": "float32", "weights": "w", "files": "f", "backend": "hf", "attention": "sdpa"},
    "sampling": {"temperature": said(0), "top_k": said(0), "repetition_penalty": said(1.0)},
    "stop": {"end_ids": said([2]), "strings": said([]), "max_new_tokens": said(8), "min_new_tokens": said(0)},
    "output_ids": [10, 11, 2],
    "text": "ab",
}


def changed(path: str, value: Any, **more: Any) -> Case:
    """A case whose row differs in one place."""
    row = copy.deepcopy(ROW)
    *parents, last = path.split(".")
    part = row
    for parent in parents:
        part = part[parent]
    part[last] = value
    return Case("s", "c", rows=({**row, **more},), value="ab")


OLD = Case("s", "c", rows=(ROW,), value="ab")


def test_stops_that_were_meant_for_other_rows_are_a_difference() -> None:
    """A row that names none may be cut by hand, but not at what its code tells the library."""
    stops = [
        {**ROW, "prompt_ids": [7, 8, k], "stop": {**ROW["stop"], "strings": said(s)}} for k, s in ((1, [","]), (2, []))
    ]
    old = Case("s", "c", rows=tuple(stops), value="ab")

    def counted(strings: list[str]) -> bool:
        other = {**stops[1], "stop": {**ROW["stop"], "strings": said(strings)}}
        [found] = differences(old, Case("s", "c", rows=(stops[0], other), value="ab"))
        return found.counts

    assert counted([","]) and not counted(["b"]) and counted(["."]), "no answer holds it"


@pytest.mark.parametrize(
    ("path", "value", "cause"),
    [
        ("prompt_ids", [7, 7, 8, 9], "prompt.ids"),
        ("prompt_ids", [9], "prompt.ids"),
        ("prompt_ids", [7, 88, 99, 9], "prompt.ids"),
        ("batch.side", "right", "batch.side"),
        ("batch.masked", False, "batch.mask"),
        ("model.dtype", "bfloat16", "model.dtype"),
        ("model.weights", "x", "model.weights"),
        ("model.attention", "eager", "model.attention"),
        ("sampling.temperature", said(0.7), "sampling.mode"),
        ("sampling.repetition_penalty", said(1.05, "checkpoint"), "sampling.repetition_penalty"),
        ("sampling.repetition_penalty", said(1.3), "sampling.repetition_penalty"),
        ("stop.end_ids", said([2, 3]), "stop.end_ids"),
        ("stop.max_new_tokens", said(4), "stop.max_new_tokens"),
    ],
)
def test_each_stage_names_its_cause(path: str, value: Any, cause: str) -> None:
    new = changed(path, value)
    assert [name for name, _ in named(OLD, new, differences(OLD, new))] == [cause]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("batch.side", "none"),  # no padding is masked padding on the left
        ("batch.rows", 9),
        ("sampling.top_k", said(50)),  # says nothing where the choice is greedy
        ("model.backend", "vllm"),
        ("template.arguments", {"add_generation_prompt": True, "enable_thinking": False}),  # the same prompt came of it
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]),
    ],
)
def test_what_changes_nothing_is_no_suspect(path: str, value: Any) -> None:
    assert named(OLD, changed(path, value), differences(OLD, changed(path, value))) == []


def of(*rows: Any) -> Case:
    return Case("s", "c", rows=rows, value="x")


@pytest.mark.parametrize("field", ["files", "tensors"])  # older goldens have no tensors
def test_other_weights_on_disk_are_named_where_none_are_read_in_memory(field: str) -> None:
    vllm = {"class": "M", "dtype": "float32", "backend": "vllm"}
    old, new = ({**ROW, "model": {**vllm, "path": path, field: path[::-1]}} for path in ("m/a1", "m/b2"))
    [found] = differences(of(old), of(new))
    assert (found.name, found.counts) == ("model.weights", True)
    assert found.sentence().endswith("was 1a/m of m/a1, is 2b/m of m/b2")


@pytest.mark.parametrize("ids", [[4, 5], [4, 6]])
def test_another_config_counts_where_the_answers_differ(ids: list[int]) -> None:
    """Written by another release, or by hand: of equal weights that answer alike it is no matter."""
    model = {"class": "M", "dtype": "float32", "weights": "w"}
    old = {**ROW, "output_ids": [4, 5], "model": {**model, "config": "c1"}}
    new = {**ROW, "output_ids": ids, "model": {**model, "config": "c2"}}
    [found] = [one for one in differences(of(old), of(new)) if one.stage == "model"]
    assert (found.name, found.counts) == ("model.config", ids == [4, 6])
    assert not [one for one in differences(of(old), of({**new, "model": model})) if one.stage == "model"]


def test_a_prompt_and_one_with_what_is_scored_behind_it_are_compared_by_their_ids() -> None:
    old = {"prompt_ids": [1, 2, 3], "output_ids": [], "scored": True, "prompt_text": "abc"}
    new = {**old, "prompt_text": "ab", "request": {"response": 1}}
    assert not [found for found in differences(of(old), of(new)) if found.counts]
    found = differences(of(old), of({**new, "prompt_ids": [1, 2, 4]}))
    assert [one.name for one in found if one.counts] == ["prompt.ids"]
    outcome = Outcome(
        "s", "c", "hf", "DRIFT", old={"rows": [old, old]}, new={"rows": [new, {**new, "prompt_ids": [1, 2, 4]}]}
    )
    assert [one.what for one in partings(outcome)] == ["prompt ids of row 1, from 2 on"]


def test_settings_are_equal_up_to_how_they_were_computed() -> None:
    drawn = {**ROW, "sampling": {"temperature": said(1.3)}}
    times = {**ROW, "sampling": {"temperature": said(0.7 + 0.6)}}
    assert 0.7 + 0.6 != 1.3 and not differences(of(drawn), of(times))
    assert differences(of(drawn), of({**ROW, "sampling": {"temperature": said(1.31)}}))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ({"regex": "a+"}, {"regex": "a*"}, False),
        ({"choice": ["yes", "no"]}, {"choice": ["no", "yes"]}, True),
        ({"choice": ["yes", "no"]}, {"choice": ["yes"]}, False),
        ({"json": '{"type": "object"}'}, {"json": {"type": "object"}}, True),
        ({"grammar": "root ::= a\n"}, {"grammar": "root ::= a"}, True),
        ({"choice": ["yes", "no"]}, {"regex": "yes|no"}, True),  # two words for it, of which nothing is said
        ({}, {"regex": "a+"}, True),
    ],
)
def test_a_form_that_both_sides_ask_for_is_a_setting(old: Any, new: Any, same: bool) -> None:
    mine, theirs = (of({**ROW, "request": {"number": 0, "structure": form}}) for form in (old, new))
    found = named(mine, theirs, differences(mine, theirs))
    assert [name for name, _ in found] == ([] if same else [f"sampling.{next(iter(old))}"])


def test_what_is_drawn_without_a_seed_for_one_prompt_has_no_order() -> None:
    """Two samples, as likely in the one order as in the other."""
    drawn = {**ROW, "sampling": {"temperature": said(1.0)}}
    one, other = {**drawn, "output_ids": [1, 2]}, {**drawn, "output_ids": [3, 2]}
    assert not [d for d in differences(of(one, other), of(other, one)) if d.field == "order"]
    mine, theirs = ([{**row, "prompt_ids": [k]} for k, row in enumerate(rows)] for rows in ((one, other), (other, one)))
    assert [d for d in differences(of(*mine), of(*theirs)) if d.field == "order"], "these are two prompts"


def test_what_is_drawn_with_other_seeds_for_one_prompt_has_no_order() -> None:
    """A seed for all in place of one for each; with equal seeds the order is one."""

    def drawn(seed: int, *ids: int) -> dict[str, Any]:
        return {**ROW, "sampling": {"temperature": said(1.0), "seed": said(seed)}, "output_ids": list(ids)}

    def orders(*rows: dict[str, Any]) -> list[Any]:
        return [d for d in differences(of(drawn(1, 1, 2), drawn(2, 3, 2)), of(*rows)) if d.field == "order"]

    assert not orders(drawn(7, 3, 2), drawn(7, 1, 2)) and orders(drawn(1, 3, 2), drawn(2, 1, 2))


def test_of_prompts_that_hold_answers_the_first_call_comes_first() -> None:
    """Its template is told otherwise; the next call's chat differs, too, as it holds the answer."""
    call = {**ROW, "request": {"number": 0}}
    told = {"sha256": "ab", "arguments": {"enable_thinking": True}}
    old = [call, {**call, "messages": [{"role": "user", "content": "Why 5?"}], "prompt_ids": [1, 2]}]
    new = [
        {**call, "template": told, "prompt_text": "<think>Hi", "prompt_ids": [7, 1]},
        {**old[1], "template": told, "messages": [{"role": "user", "content": "Why 6?"}], "prompt_ids": [1, 3]},
    ]
    assert named(of(*old), of(*new), differences(of(*old), of(*new)))[0][0] == "prompt.template"
    new[1] = {**new[1], "request": {"number": 1}}  # asked side by side: it cannot hold the answer
    assert differences(of(*old), of(*new))[0].stage == "messages"


def test_other_prompts_in_another_order_are_paired_by_likeness() -> None:
    """Rows come as they end: under another template, none has its old prompt, nor its old place."""
    old = [{**ROW, "messages": None, "prompt_ids": [1, word, word, 8, 9]} for word in (4, 5, 6)]
    new = [{**ROW, "messages": None, "prompt_ids": [1, word, word, 7]} for word in (6, 4, 5)]
    assert [(a["prompt_ids"][1], b["prompt_ids"][1]) for a, b in paired(old, new)] == [(4, 4), (5, 5), (6, 6)]
    unlike = [{**row, "prompt_ids": [2, 2]} for row in new]
    assert paired(old, unlike) == list(zip(old, unlike)), "nothing says another order"


@pytest.mark.parametrize(
    ("order", "changed"),
    [((0, 1, 3, 2, 4), {2}), ((0, 2, 1, 3), {0, 1, 2, 3})],  # one is cut at its beginning; all lost their system turn
)
def test_prompts_in_the_order_of_their_length_are_paired_though_some_changed(
    order: tuple[int, ...], changed: set[int]
) -> None:
    """A stranger's old code asked the longest first."""
    prompts = [[1, 2, word, word, word, 9] for word in range(10, 10 + len(order))]
    old = [{**ROW, "messages": None, "prompt_ids": prompts[k]} for k in order]
    new = [{**ROW, "messages": None, "prompt_ids": ids[2 * (k in changed) :]} for k, ids in enumerate(prompts)]
    assert [(a["prompt_ids"][-2], b["prompt_ids"][-2]) for a, b in paired(old, new)] == [
        (prompts[k][-2], prompts[k][-2]) for k in order
    ]


def test_prompts_in_another_order_that_changed_at_both_ends_are_paired_by_what_is_between() -> None:
    """Shown were two articles, each as what had become of the other."""
    articles = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    old = [{**ROW, "messages": None, "prompt_ids": [1, 2, *article, 3]} for article in articles]
    new = [{**ROW, "messages": None, "prompt_ids": [5, *article, 6, 7]} for article in articles]
    assert paired(old, [new[2], new[0], new[1]]) == list(zip(old, new))


def chat(system: str, user: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


@pytest.mark.parametrize("kind", ["raw", "another system turn", "parts", "raw to a chat"])
def test_prompts_in_another_order_are_paired_by_the_text_of_the_user(kind: str) -> None:
    """Whatever their ids became."""
    texts = ["a cat", "a dog", "an owl"]

    def row(side: int, text: str) -> dict[str, Any]:
        ids = {"prompt_ids": [side, side, texts.index(text) * (1 - 2 * side)]}
        if kind == "raw" or (kind == "raw to a chat" and not side):
            return {**ROW, "messages": None, "prompt_text": text, **ids}
        user: Any = [{"type": "text", "text": text}] if kind == "parts" and side else text
        return {**ROW, "messages": chat("be brief" if side else "", user), "prompt_text": f"<{side}>{text}", **ids}

    old, new = ([row(side, text) for text in texts] for side in (0, 1))
    assert paired(old, new[::-1]) == list(zip(old, new))


def test_prompts_of_one_text_are_not_paired_by_it() -> None:
    systems = ["be brief", "be long"]
    old = [{**ROW, "messages": chat(system, "hi"), "prompt_ids": [k, k, k, 9]} for k, system in enumerate(systems)]
    new = [{**row, "messages": chat("", "hi"), "prompt_ids": row["prompt_ids"][:-1]} for row in old]
    assert paired(old, new[::-1]) == list(zip(old, new))


def test_rows_are_paired_by_prompt_where_their_order_changed() -> None:
    other = {**ROW, "prompt_ids": [1, 2], "output_ids": [5, 2]}
    old, new = Case("s", "c", rows=(ROW, other), value=1), Case("s", "c", rows=(other, ROW), value=1)
    assert differences(old, new) == ()


def test_rows_of_pictures_in_another_size_are_paired_by_picture() -> None:
    def seen(picture: str, tokens: int) -> dict[str, Any]:
        return {**ROW, "prompt_ids": [7, *[5] * tokens, 9], "images": [{"sha256": picture, "tokens": tokens}]}

    old, new = [seen("a", 2), seen("b", 3)], [seen("b", 4), seen("a", 4)]
    assert paired(old, new) == [(old[0], new[1]), (old[1], new[0])]
    assert paired(old, new[::-1]) == list(zip(old, new[::-1]))
    large, small = ([seen(*one) for one in zip("abc", tokens)] for tokens in ((9, 6, 6), (4, 2, 2)))
    assert paired(large, small) == list(zip(large, small)), "however like another the shorter prompts are"
    found = differences(Case("s", "c", rows=tuple(old)), Case("s", "c", rows=tuple(new)))
    assert {d.field for d in found if d.stage == "images"} == {"tokens"}


def test_rows_of_one_prompt_are_paired_by_their_pictures() -> None:
    """Asked in turned order and put back; with the pictures in their order, these answers are those of others."""

    def seen(picture: str, answer: int) -> dict[str, Any]:
        return {**ROW, "prompt_ids": [7, 5, 9], "images": [{"sha256": picture, "tokens": 1}], "output_ids": [answer, 2]}

    old, new = of(seen("a", 10), seen("b", 11)), of(seen("b", 11), seen("a", 10))
    assert paired(old.rows, new.rows) == [(old.rows[0], new.rows[1]), (old.rows[1], new.rows[0])]
    assert differences(old, new) == ()
    turned = differences(old, of(seen("a", 11), seen("b", 10)))
    assert [d.field for d in turned if d.stage == "batch"] == ["order"]


def test_pictures_that_generate_encodes_beforehand_are_those_of_a_forward() -> None:
    def given(*keys: str, **how: str) -> Case:
        return Case("s", "c", rows=({**ROW, "inputs": {"keys": list(keys)}, **how},))

    encoded, raw = given("mm_encoder_outputs"), given("image_grid_thw", "pixel_values", loop="likeliest")
    assert differences(encoded, raw) == differences(raw, encoded) == ()
    assert {d.field for d in differences(given("pixel_values", loop="likeliest"), encoded)} == {"keys"}
    assert {d.field for d in differences(given("image_grid_thw", "pixel_values"), encoded)} == {"keys"}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (1.0, 1.00001, True),
        (1.0, 1.0004, False),  # unless rounding is as large at its site
        (-16.6354, -16.6340, False),  # a token left out of a sum
        (-1e-6, -2e-6, True),
        (4e-5, 1e-9, False),
        (0.0, 1e-9, False),
        (1.0, 1.1, False),
        (True, 1, False),
        ([1], (1,), True),
        ({"a": 1}, {"b": 1}, False),
        ("1", 1, False),
    ],
)
def test_values_are_equal_up_to_rounding_only(old: Any, new: Any, same: bool) -> None:
    assert equal(old, new) is same


# == Samples ==


def logits(*rows: Sequence[float]) -> Any:
    return torch.tensor(rows, dtype=torch.float32)


TWO = {**ROW, "prompt_ids": [0], "output_ids": [0, 1]}


def test_other_logits_are_another_distribution_and_a_token_at_the_end_of_a_cut_is_none() -> None:
    drawn = {**TWO, "sampling": {"temperature": said(1.0), "top_p": said(0.6), "top_k": said(2), "min_p": said(0)}}
    flat = logits([1, 1.1, 1.2], [1, 1.1, 1.2])
    assert not unlike(drawn, flat, flat + 3)
    assert unlike(drawn, flat, flat * 2)
    even = logits([1, 1, 1], [1, 1, 1])  # which two are left hangs on the last bit
    assert not unlike(drawn, even, even + logits([1e-6, 0, 0], [0, 0, 1e-6]))


def test_the_permutation_test_tells_two_distributions_apart() -> None:
    same = [["a", "b"] * 10] * 10
    assert permutation_p(same, same, rounds=200) > 0.5
    assert permutation_p(same, [["a"] * 20] * 10, rounds=200) < 0.01


# == Verdicts to exit codes ==


def outcome(verdict: Any, site: str = "s") -> Outcome:
    return Outcome(site, "c", "hf", verdict)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["IDENTICAL", "TEXT-IDENTICAL", "ACCEPTED", "SAME-DISTRIBUTION"], 0),
        (["IDENTICAL", "DRIFT", "MISSING"], 1),
        (["LATENT"], 1),
        (["IDENTICAL", "ERROR"], 3),
        (["UNSTABLE", "MISSING"], 3),
        (["IDENTICAL", "UNUSED"], 4),
        (["MISSING"], 4),
        ([], 5),
    ],
)
def test_the_gravest_verdict_decides_the_exit_code(verdicts: list[Any], code: int) -> None:
    assert Check(tuple(map(outcome, verdicts))).exit_code == code


def test_near_ties_have_no_budget() -> None:
    assert Check((*[outcome("NEAR-TIE")] * 30, outcome("IDENTICAL"))).exit_code == 0


def test_latent_passes_where_it_is_let_pass() -> None:
    assert Check((outcome("LATENT"),), Policy(strict=False)).exit_code == 0


def test_placeholders_in_of_several_ids_the_added_one() -> None:
    """A letter that is doubled has a run as long as a small image."""
    row: dict[str, Any] = {"prompt_ids": [3, 5, 5, 4, 90, 90, 91], "output_ids": []}
    row["images"] = [{"sha256": "a", "tokens": 2}]
    assert placeholders_in(row) == Placeholders(90)
    assert placeholders_in({**row, "images": []}) == Placeholders()
    clip = {"sha256": "b", "tokens": 1, "placeholder": 4, "indices": [0, 1]}
    assert placeholders_in({**row, "images": [*row["images"], clip]}) == Placeholders(90, 4)


def test_a_forgotten_number_of_samples_is_named_with_both_values() -> None:
    """It was "calls were added, dropped or cached"."""
    drawn = {**ROW, "sampling": {"temperature": said(1.0), "n": said(4)}}
    rows = [{**drawn, "output_ids": [k, 2]} for k in range(4)]
    once = {**rows[0], "sampling": {**drawn["sampling"], "n": said(1)}}
    old, new = Case("s", "c", rows=tuple(rows), value=["a"] * 4), Case("s", "c", rows=(once,), value=["a"])
    found = cause_of(inquiry_of(old, new))
    assert found is not None and str(found) == "sampling.n; likely" and "was 4, is 1" in found.sentence
    requests = [{**row, "sampling": once["sampling"]} for row in rows]
    assert not [d for d in differences(old, Case("s", "c", rows=tuple(requests))) if d.field == "n"]


@pytest.mark.parametrize(
    ("old", "new", "more", "certainty"),
    [
        (["ab", 0.53], ["ab", 0.49], {}, "likely"),  # drawn beside the answer, perhaps
        (["ab", 0.53], ["ab", 0.49], {"scored": {"tokens": 3}}, "confirmed"),
        (["ab", 4], ["ab", 5], {}, "confirmed"),
        ("AB", "Ab", {}, "confirmed"),
    ],
)
def test_a_fraction_that_comes_from_no_score_is_not_surely_made_of_the_answer(
    old: Any, new: Any, more: dict[str, Any], certainty: str
) -> None:
    one, other = (Case("s", "c", rows=({**ROW, **more},), value=value) for value in (old, new))
    cause = made_of_ids(inquiry_of(one, other).comparison)
    assert (cause.name, cause.certainty) == ("value", certainty)
