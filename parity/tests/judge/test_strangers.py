"""What strangers' call sites and faults showed that no case of ours had: each was judged wrongly once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parity.goldens.store import Case, Store
from parity.goldens.verdict import Cause, Outcome
from parity.judge import case as check
from parity.judge import loops, site
from parity.judge.numerics import samples
from parity.judge.stages.sampling import sampling_differences
from parity.judge.stages.stage import KEPT
from parity.judge.stages.stop import (
    end,
    ends_later,
    ends_sooner,
    may_end_by_criterion,
    stop_differences,
)
from parity.record.taps.text import never_text
from parity.record.taps.vllm import vllm_stop

from .inquiries import broken_by_new, cause_of, differences, inquiry_of
from .test_company import FIRST, case, drawn, found_with
from .test_laws import TOOLS, row


def caused(old: Case, new: Case) -> Cause | None:
    return cause_of(inquiry_of(old, new, differences(old, new), TOOLS.decode, None, TOOLS))


def stops(**said: Any) -> dict[str, Any]:
    return {name: {"value": value, "from": "caller"} for name, value in said.items()}


# == Order ==


def test_a_row_with_anothers_pixel_budget_is_no_other_rows_answer() -> None:
    pictures = [[{"sha256": "a", "tokens": count, "budget": [1, most]}] for count, most in ((4, 9), (30, 99))]
    first, second = ({**FIRST, "images": own, "output_ids": ids, "text": text}
                     for own, ids, text in zip(pictures, ([4, 5, 9], [6, 7, 9]), ("de", "fg")))  # fmt: skip
    mixed = {**second, "images": [{**pictures[0][0], "tokens": 30}]}
    found = found_with(case(mixed, second), "alone", case(first, second))
    assert found is not None and (found.name, found.certainty) == ("image.tokens", "confirmed")


OTHER = {
    **FIRST,
    "prompt_ids": [3, 3],
    "prompt_text": "cc",
    "messages": ["c", "c"],
    "output_ids": [6, 7, 9],
    "text": "fg",
}


@pytest.mark.parametrize(
    ("now", "name"),
    [
        ([{"ask": "b", "said": "fg", "words": 3}, {"ask": "c", "said": "de", "words": 3}], "order"),
        ([{"ask": "b", "said": "fg", "words": 2}, {"ask": "c", "said": "de", "words": 3}], "value"),
        ([{"ask": "b", "said": "fg", "words": 3}, {"ask": "c", "said": "d", "words": 3}], "value"),
    ],
)
def test_answers_that_are_exchanged_beside_what_was_asked_are_anothers(now: Any, name: str) -> None:
    """As where requests are sorted before they are asked, and their answers are not sorted back."""
    was = [{"ask": "b", "said": "de", "words": 3}, {"ask": "c", "said": "fg", "words": 3}]
    found = caused(case(FIRST, OTHER, value=was), case(FIRST, OTHER, value=now))
    assert found is not None and (found.name, found.certainty) == (name, "confirmed")


# == Other requests ==


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"mean": 0.5, "said": "de"}, "value; likely"),
        ({"mean": 0.25, "said": "fg"}, "calls; confirmed"),  # its answer shows
        ({"mean": 0.25, "said": "de", "more": 1}, "calls; confirmed"),
    ],
)
def test_what_is_asked_besides_is_the_cause_only_where_it_may_show(value: Any, name: str) -> None:
    old = case(FIRST, value={"mean": 0.25, "said": "de"})
    assert str(caused(old, case(FIRST, OTHER, value=value))) == name
    warm = {**drawn([6, 7, 9], None), "prompt_ids": [3, 3]}
    assert str(caused(old, case(FIRST, warm, value=value))) == "calls; confirmed", "a vote may count it"


def scored(ids: list[int], response: int) -> dict[str, Any]:
    return {"prompt_ids": ids, "output_ids": [], "scored": True, "request": {"response": response} if response else {}}


@pytest.mark.parametrize("more", [{"prompt_ids": [1, 2], "output_ids": [7]}, scored([1, 2], 0)])
def test_no_response_is_left_out_where_both_sides_score_responses(more: dict[str, Any]) -> None:
    """Whatever else reads the prompt alone, as a greedy call or a perplexity do."""
    rows = [scored([1, 2, 3], 1), scored([1, 2, 4], 1), scored([1, 2], 0)]
    others = [scored([1, 2, 5], 1), scored([1, 2, 6], 1), scored([1, 2], 0), more]
    old, new = loops.of_one_kind(Case("s", "c", rows=tuple(rows)), Case("s", "c", rows=tuple(others)))
    assert [one["prompt_ids"] for one in old.rows] == [[1, 2, 3], [1, 2, 4], [1, 2]]
    assert [one["prompt_ids"] for one in new.rows][:2] == [[1, 2, 5], [1, 2, 6]]


def test_ids_that_were_only_read_are_not_the_old_answer_that_comes_back() -> None:
    read = case(scored([1, 2, 3], 1), value=[0.25])
    new = case(scored([1, 2, 4], 1), scored([1, 2], 0), value=[0.5])
    inquiry = inquiry_of(read, new)
    assert not inquiry.restores(replace(read, value=[0.5])) and inquiry.restores(read)


# == Ends ==


def test_a_stop_that_is_kept_on_one_side_alone_is_named() -> None:
    """As where include_stop is lost."""
    kept, cut = ({**row(stop={"strings": ["e"]}), "output_ids": [4, 5], "text": text} for text in ("de", "d"))
    found = caused(case(kept, value=["de"]), case(cut, value=["d"]))
    assert found is not None and found.name == "stop" and found.sentence.endswith("is 'd', without the stop 'e'")


@pytest.mark.parametrize(
    ("told", "goes_on"),
    [
        ({"strings": ["e"]}, False),
        ({"strings": ["x"]}, True),
        ({"strings": []}, True),
        ({"strings": ["x"], "criteria": ["mine"]}, False),  # what that does is not seen
        ({"strings": ["x"], "end_ids": [9, 5]}, False),
    ],
)
def test_draws_that_a_criterion_ended_are_held_against_the_new_stops(told: dict[str, Any], goes_on: bool) -> None:
    old = {**drawn([4, 5], None), "stop": stops(end_ids=[9], strings=[], max_new_tokens=5, criteria=["theirs"])}
    new = {**drawn([6, 7, 4, 9], None), "stop": stops(**{"end_ids": [9], "max_new_tokens": 5, "criteria": [], **told})}
    assert (ends_later(old, new, TOOLS) is not None) == goes_on
    assert ends_later({**old, "output_ids": [4, 5, 6, 7, 8]}, new, TOOLS) is None  # its budget ended it
    broken = [one.cause for one in broken_by_new(case(old), case(new), TOOLS)]
    assert ("stop" in broken) == goes_on


@pytest.mark.parametrize(
    ("done", "own"),
    [
        (None, True),  # an older golden
        ({"EosTokenCriteria": 3, "theirs": 3}, False),
        ({"MaxLengthCriteria": 3}, False),
        ({"MaxLengthCriteria": 3, "theirs": 3}, False),
        ({"theirs": 3}, True),
        ({"theirs": 2, "MaxLengthCriteria": 3}, True),  # the row was kept until another had ended
        ({}, False),
    ],
)
def test_may_end_by_criterion_one_that_fires_with_the_librarys_is_that_end(done: Any, own: bool) -> None:
    old = row(output_ids=[4, 5, 6], stop={"criteria": ["theirs"]})
    old |= {} if done is None else {"finish": {"criteria": done}}
    assert may_end_by_criterion(old) is own
    [found] = [d for d in stop_differences(old, row(output_ids=[4, 5, 6])) if d.field == "criteria"]
    assert found.counts is own


def test_end_a_row_that_no_criterion_ended_breaks_its_invariant() -> None:
    short = row(output_ids=[4, 5], stop={"criteria": ["theirs"]})
    assert end(short, TOOLS) == KEPT
    assert end({**short, "finish": {"criteria": {"theirs": 2}}}, TOOLS) == KEPT
    assert end({**short, "finish": {"criteria": {}}}, TOOLS) != KEPT


def test_an_id_may_stand_for_a_part_of_a_criterion_beside_a_plugin() -> None:
    old = row(stop={"criteria": ["theirs"]})
    for criteria in ([], ["plugin"]):
        found = stop_differences(old, row(stop={"end_ids": [9, 5], "criteria": criteria}))
        assert [d.counts for d in found if d.field == "end_ids"] == [False]
    [end] = stop_differences(row(), row(stop={"end_ids": [9, 5]}))
    assert end.counts


@pytest.mark.parametrize(("source", "done", "counts"), [("checkpoint", {}, True), ("caller", {}, False),
                                                       ("checkpoint", {"theirs": 3}, False)])  # fmt: skip
def test_ids_that_nobody_gave_stand_for_no_criterion_that_ended_nothing(
    source: str, done: dict[str, int], counts: bool
) -> None:
    old, new = row(stop={"criteria": ["theirs"]}) | {"finish": {"criteria": done}}, row(stop={"end_ids": [9, 5]})
    new["stop"]["end_ids"]["from"] = source
    assert [d.counts for d in stop_differences(old, new) if d.field == "end_ids"] == [counts]


def test_a_difference_that_does_not_count_is_no_cause_of_what_is_done_with_the_text() -> None:
    """Here the ids part, where a criterion ended the old answer later; the value has another reason."""
    old = case(row(output_ids=[4, 5, 6], text="def", stop={"criteria": ["theirs"]}), value=["d"])
    new = case(row(output_ids=[4, 5], text="de", stop={"end_ids": [9, 5]}), value=["D"])
    found = caused(old, new)
    assert found is None or (found.name, found.certainty) != ("stop.end_ids", "confirmed")


@pytest.mark.parametrize(("most", "told"), [(1024, 476), (100, 100), (None, 476)])
def test_vllm_ends_a_row_where_its_window_does(most: int | None, told: int) -> None:
    params = SimpleNamespace(
        stop_token_ids=(), stop=(), skip_special_tokens=True, ignore_eos=False, max_tokens=most, min_tokens=0
    )
    assert vllm_stop(params, [9], None, room=476)["max_new_tokens"]["value"] == told


@pytest.mark.parametrize(
    ("ends", "skip", "never"),
    [([7], False, ["<end>"]), ([], False, []), ([], True, ["<end>", "x<end>"]), ([8], False, [])],
)
def test_a_stop_that_is_the_text_of_an_end_id_ends_nothing(ends: list[int], skip: bool, never: list[str]) -> None:
    token = SimpleNamespace(content="<end>", special=True)
    found = never_text(["<end>", "x<end>", "."], SimpleNamespace(added_tokens_decoder={7: token}), skip, ends)
    assert found.get("never_text", {"value": []})["value"] == never


def test_other_draws_that_may_end_elsewhere_are_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget is no luck; how the model attends may be."""
    monkeypatch.setattr(samples.Samples, "judge", lambda *_, **__: ("SAME-DISTRIBUTION", None, ()))
    judge = check.Judge(Store(tmp_path), "hf", lambda *_: None)
    old, new = (
        case(drawn([4, 5], None), value="de"),
        case({**drawn([6, 7], None), "stop": row(stop={"max_new_tokens": 2})["stop"]}, value="fg"),
    )
    found = judge.outcome(old, new)
    assert (found.verdict, found.cause and found.cause.name) == ("DRIFT", "stop.max_new_tokens")
    other = case({**drawn([6, 7], None), "model": {"path": "m", "dtype": "float32", "attention": "eager"}}, value="fg")
    seen = case({**drawn([4, 5], None), "model": {"path": "m", "dtype": "float32", "attention": "sdpa"}}, value="de")
    found = judge.outcome(seen, other)
    assert (found.verdict, found.cause and found.cause.name) == ("LATENT", "model.attention")


# == Seeds ==


def test_a_seed_in_every_call_is_none_that_a_script_gave_once() -> None:
    def seeded(seed: int, source: str) -> dict[str, Any]:
        made = drawn([4], None)
        return {**made, "sampling": {**made["sampling"], "seed": {"value": seed, "from": source}}}

    def repeated(*pairs: tuple[Any, Any], arguments: Any = None) -> list[str]:
        given = site.GivenSeeds()
        for number, (old, new) in enumerate(pairs):
            golden = replace(case(old), case=f"c{number}", arguments=arguments or {})
            given.add(Outcome("s", golden.case, "hf", "IDENTICAL"), golden, replace(case(new), case=golden.case))
        judge = cast(Any, SimpleNamespace(outcome=lambda old, new, seconds, more: (old.case, more[0].new)))
        return [name for name, _ in cast(Any, given.judge_repeated(judge))]

    old, mine, other = seeded(0, "script"), seeded(7, "caller"), seeded(8, "caller")
    assert repeated((old, mine)) == []
    assert repeated((old, mine), (old, mine)) == ["c0", "c1"], "in no order"
    assert repeated((old, mine), (old, other)) == []
    assert repeated((old, mine), (old, mine), arguments={"seed": 7}) == []
    assert repeated((mine, mine), (mine, mine)) == []


def test_draws_are_held_against_stops_that_the_old_code_had_not() -> None:
    old = {**drawn([4, 5, 6, 9], None), "stop": stops(end_ids=[9], strings=[], max_new_tokens=8, criteria=[])}
    new = {**drawn([6, 7, 9], None), "stop": stops(end_ids=[9], strings=["e"], max_new_tokens=8, criteria=[])}
    for value, cause in ((["def"], ["stop.strings"]), (["d"], []), (["d", "e and f"], [])):  # cut by hand, twice
        broken = [b for b in broken_by_new(case(old, value=value), case(new), TOOLS) if b.law == "end"]
        assert [b.cause for b in broken] == cause
    late = {**old, "output_ids": [4, 6, 7, 5]}
    assert ends_sooner(late, new, ["dfge"], TOOLS) is None  # with its last token


# == Settings ==


def test_a_penalty_of_vllms_may_be_written_as_a_processor() -> None:
    def asked(processors: list[str], **penalties: float) -> dict[str, Any]:
        return {**FIRST, "sampling": stops(temperature=0, processors=processors, **penalties)}

    def differ(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
        return [d.field for d in sampling_differences(old, new)]

    old = asked([], frequency_penalty=1.0, presence_penalty=0.5)
    assert differ(old, asked(["mine"])) == []
    assert differ(old, asked([])) == ["frequency_penalty", "presence_penalty"]
    assert differ(old, asked([], frequency_penalty=0.5, presence_penalty=0.5)) == ["frequency_penalty"]
    assert differ(old, asked(["mine"], frequency_penalty=1.0)) == ["presence_penalty", "processors"]
    assert differ(asked(["ours"]), asked([])) == ["processors"]


# == Texts ==


def test_a_replay_is_without_what_the_new_code_reads_beside_it(tmp_path: Path) -> None:
    """As where it asks the bare model for hidden states: a row that is only read is none of the golden's answers."""
    read = {**FIRST, "prompt_ids": [2, 3, 4, 5], "output_ids": [], "scored": True}
    judge = check.Judge(Store(tmp_path), "hf", lambda *_: case(FIRST, read, value=["de"]))
    again = judge.again(case(FIRST), case(FIRST), {}, frozenset())
    assert again is not None and [one["output_ids"] for one in again.rows] == [FIRST["output_ids"]]
