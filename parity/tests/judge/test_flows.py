"""What follows from what: later prompts from draws and ids; answers in other records; prompts that are only read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Case, Store
from parity.goldens.verdict import Cause
from parity.judge import case as check
from parity.judge import loops
from parity.judge.align import paired
from parity.judge.comparison import Comparison
from parity.judge.equal import asked_otherwise
from parity.judge.judge import of_another, sampled_part
from parity.judge.numerics import samples
from parity.judge.replay import ANSWERS, Engines, Replay
from parity.judge.stages.model import adapter_differences
from parity.judge.stages.stop import stop_differences

from .inquiries import cause_of, differences, inquiry_of
from .test_company import FIRST, OLD, SECOND, case
from .test_laws import TOOLS, decode, encode, row


def cause(old: Case, new: Case) -> Cause:
    found = cause_of(inquiry_of(old, new, differences(old, new), decode, tools=TOOLS))
    assert found is not None
    return found


@pytest.mark.parametrize("value", [["de", "de"], ["de", "xy"], ["de"], ["de", ""]])
def test_fewer_answers_than_the_old_code_has_are_other_calls(value: list[str]) -> None:
    """Kept by too small a key, kept from another case, or left out: a request does not reach the model."""
    found = cause(OLD, case(FIRST, value=value))
    assert str(found) == "calls; confirmed" and "the old code has 2 answers, the new code 1" in found.sentence


def test_a_history_that_is_changed_alone_is_another_prompt() -> None:
    """The model says the changed text again, so that the values hold it; but the first answer is kept in them."""
    one = {"number": 0, "sample": 0}
    first = row(output_ids=[3, 4, 5, 9], text="cde", request=one)

    def turns(text: str, answer: list[int]) -> Case:
        held = {"messages": ["b", text, "g"], "prompt_text": f"b{text}g", "prompt_ids": encode(f"b{text}g", True)}
        said = decode(answer, True, False)
        return case(first, row(output_ids=answer, text=said, request=one, **held), value=["cde", said])

    old, new = turns("cde", [3, 4, 5, 9]), turns("c", [3, 9])
    assert str(cause_of_whole(old, new, lambda load, parts: old)) == "prompt.messages; confirmed"
    elsewhere = replace(old, value=["cde!", "cde"])
    assert str(cause_of_whole(old, new, lambda load, parts: elsewhere)) == "prompt.messages; likely"


def cause_of_whole(old: Case, new: Case, rerun: Any) -> Cause:
    """Of the answers that later prompts only follow from."""
    inquiry = inquiry_of(old, new, differences(old, new), decode, rerun, TOOLS)
    found = cause_of(inquiry)
    assert found is not None
    return found


@pytest.mark.parametrize("kept", ["c", "ce", "gcde"])
def test_an_answer_that_is_changed_before_it_is_asked_on_with_is_likely_another_prompt(kept: str) -> None:
    """With the old prompt put back the second answer is the old one, and the first text is not."""
    one = {"number": 0, "sample": 0}
    first = row(output_ids=[3, 4, 5, 9], text="cde", request=one)

    def turns(text: str, answer: int) -> Case:
        held = {"messages": ["b", text, "g"], "prompt_text": f"b{text}g", "prompt_ids": encode(f"b{text}g", True)}
        return case(
            first,
            row(output_ids=[answer, 9], text=decode([answer], True, False), request=one, **held),
            value=[f"{text}\n", "x"],
        )

    old, new = turns("cde", 6), turns(kept, 7)
    back = turns("cde", 6)
    found = cause_of_whole(old, new, lambda load, parts: replace(back, value=new.value))
    assert str(found) == "prompt.messages; likely", found


def drawn(ids: list[int], number: int = 0, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": {"value": 1.0, "from": "caller"}, "processors": {"value": [], "from": "default"}}
    text = decode(ids, True, False)
    return row(output_ids=ids, text=text, request={"number": number, "sample": 0}, sampling=sampling, **more)


ASKED_ON: dict[str, Any] = {"prompt_ids": [2, 3, 4], "prompt_text": "bcd", "messages": ["b", "c", "d"]}
OTHERWISE: dict[str, Any] = {"prompt_ids": [2, 3, 7], "prompt_text": "bcg", "messages": ["b", "c", "g"]}
GOLDEN = case(drawn([4, 5, 9]), drawn([6, 9], **ASKED_ON), value=["de", "f"])


@pytest.mark.parametrize("turns", [[drawn([7, 9]), drawn([6, 9], **OTHERWISE)], [drawn([7, 9])]])
def test_what_is_asked_with_other_draws_is_no_difference(
    turns: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "tools_of", lambda old: TOOLS)
    asked = list[dict[str, Any]]()

    def judge(*_: Any, **how: Any) -> Any:
        asked.append(how)
        return "SAME-SETTINGS", None, ("few",)

    monkeypatch.setattr(samples.Samples, "judge", judge)
    new = case(*turns, value=["g"])
    parts = sampled_part(Comparison(GOLDEN, new))
    assert parts is not None and [len(part.rows) for part in parts] == [1, 1]
    fewer = replace(GOLDEN, rows=GOLDEN.rows[:1])
    forced = {"faithful": GOLDEN, "another value": replace(GOLDEN, value=["de", "F"]), "a call less": fewer}
    verdicts = {
        name: check.Judge(Store(tmp_path), "hf", lambda *_, again=again: again).outcome(GOLDEN, new).verdict
        for name, again in forced.items()
    }
    assert verdicts == {"faithful": "SAME-SETTINGS", "another value": "DRIFT", "a call less": "DRIFT"}
    assert asked == [{"count_copies": len(turns) == 2}] * 3, "fewer answers may be copies of one draw"


def test_what_differs_before_the_draws_is_one() -> None:
    assert sampled_part(Comparison(GOLDEN, case(drawn([7, 9], **OTHERWISE), drawn([6, 9])))) is None
    assert sampled_part(Comparison(GOLDEN, case(row(output_ids=[7, 9]), drawn([6, 9], **OTHERWISE)))) is None  # greedy
    beside = drawn([6, 9], 1, **OTHERWISE)  # of one call with the first
    assert sampled_part(Comparison(GOLDEN, case(drawn([7, 9]), beside))) is None


def test_rows_of_the_side_that_has_more_are_those_most_like_the_others() -> None:
    old = [{"prompt_ids": ids} for ids in ([4, 5, 6, 7], [4, 5, 8, 8])]
    new = [{"prompt_ids": ids} for ids in ([4, 5], [4, 5], [1, 4, 5, 8, 8], [1, 4, 5, 6, 7])]
    assert paired(old, new) == [(old[0], new[3]), (old[1], new[2])]
    assert paired(new, old) == [(new[2], old[1]), (new[3], old[0])]


def test_a_prompt_that_differs_comes_before_how_many_were_asked() -> None:
    other = {**FIRST, **OTHERWISE}
    assert cause(OLD, case(other, SECOND, SECOND, value=["x"])).name == "prompt.messages"
    assert cause(OLD, case(FIRST, SECOND, SECOND, value=["x"])).name == "calls"


def read(ids: list[int]) -> dict[str, Any]:
    return {"prompt_ids": ids, "output_ids": [], "scored": True, "model": FIRST.get("model", {})}


def test_what_was_only_read_may_be_read_as_a_beginning() -> None:
    old = Case("s", "c", rows=(read([2, 3]), read([2, 3, 4])))
    assert asked_otherwise(old, Case("s", "c", rows=(read([2, 3, 4]),))) == ""
    assert "1 did not reach" in asked_otherwise(old, Case("s", "c", rows=(read([2, 3]),)))


def test_what_is_only_read_says_all_the_first_time() -> None:
    """Of single tokens behind one prompt the old code reads the prompt once, the new code once for each."""
    of_one = {"request": {"response": 1}}
    old = Case("s", "c", rows=(read([2, 3]), read([5, 6])), value=[-1.0, -2.0, -3.0])
    new = replace(old, rows=tuple({**read(ids), **of_one} for ids in ([2, 3, 7], [2, 3, 8], [5, 6, 7], [5, 6])))
    kept = [one["prompt_ids"] for one in loops.of_one_kind(old, new)[1].rows]
    assert kept == [[2, 3], [5, 6]]
    other = Case("s", "c", rows=(read([4]), read([4]), {**read([2, 3]), "inputs": {"keys": [], "adapters": ["a"]}}))
    assert len(loops.of_one_kind(old, other)[1].rows) == 3, "another prompt, or model, is another question"


def test_what_reads_its_prompts_by_one_token_each_is_held_against_what_only_reads() -> None:
    once = row(prompt_ids=[2, 3], output_ids=[7], stop={"max_new_tokens": 1})
    old = Case("s", "c", rows=(once,))
    new = Case("s", "c", rows=(read([1, 2, 3]), row(prompt_ids=[1, 2], output_ids=[4, 5, 9])))
    assert len(loops.of_one_kind(old, new)[1].rows) == 2
    answered = Case("s", "c", rows=(row(prompt_ids=[2, 3], output_ids=[4, 5, 9]),))
    assert len(loops.of_one_kind(answered, new)[1].rows) == 1


def test_special_tokens_that_one_side_drops_are_latent_both_ways(tmp_path: Path) -> None:
    kept, dropped = (
        Case("s", "c", rows=(row(decode={"ids": "ended", "skip_special_tokens": skip, "clean_up": False}),), value="x")
        for skip in (False, True)
    )
    judge = check.Judge(Store(tmp_path), "hf", lambda *_: None)
    for old, new, certainty in ((kept, dropped, "likely"), (dropped, kept, "confirmed")):
        outcome = judge.outcome(old, new)
        assert (outcome.verdict, str(outcome.cause)) == ("LATENT", f"decode.skip_special_tokens; {certainty}")


@pytest.mark.parametrize(("before", "after", "differ"), [("one", None, 1), ("one", "two", 1), ("one", "one", 0)])
def test_an_adapter_that_vllm_is_not_told_of_is_a_difference(before: Any, after: Any, differ: int) -> None:
    pairs = [
        tuple({"prompt_ids": [2], "model": {"backend": "vllm"}, "request": {"adapter": one}} for one in (before, after))
    ]
    found = list(adapter_differences(pairs))  # type: ignore[arg-type]
    assert len(found) == differ and all(d.field == "adapters" for d in found)


def test_one_answer_has_no_order() -> None:
    """Its value is the same, though an id more was chosen."""
    old, new = case(row(output_ids=[4, 5, 4]), value=["de"]), case(row(output_ids=[4, 5]), value=["de"])
    found = cause_of(inquiry_of(old, new, differences(old, new), decode, tools=TOOLS))
    assert found is None or found.name != "order"


def stopping(ids: list[int], **said: Any) -> dict[str, Any]:
    return row(output_ids=ids, stop=said)


ENDS: dict[str, Any] = {"end_ids": [9], "strings": [], "max_new_tokens": 8, "min_new_tokens": 0, "criteria": []}
SPECIAL = {**ENDS, "strings": ["<end>", "Q:"]}


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        ({**SPECIAL, "never_text": ["<end>"]}, {**ENDS, "strings": ["Q:"]}, []),
        ({**SPECIAL, "never_text": ["<end>"]}, ENDS, [True]),
        (SPECIAL, {**ENDS, "strings": ["Q:"]}, [True]),  # special tokens are text there
        ({**ENDS, "criteria": ["Enough"]}, {**ENDS, "end_ids": [7, 9]}, [False, False]),
        ({**ENDS, "criteria": ["Enough"]}, {**ENDS, "end_ids": []}, [True, True]),
        (ENDS, {**ENDS, "end_ids": [7, 9]}, [True]),
    ],
)
def test_stops_that_cannot_show_and_ids_in_a_criterions_place_are_no_difference(
    before: Any, after: Any, counts: list[bool]
) -> None:
    found = stop_differences(stopping([4, 9], **before), stopping([4, 9], **after))
    assert [difference.counts for difference in found] == counts


def test_rows_with_pictures_are_held_against_rows_with_pictures() -> None:
    seen: dict[str, Any] = {"images": [{"sha256": "a", "tokens": 1}], "prompt_ids": [1, 2, 3]}
    old = [row(output_ids=[4], **seen), row(output_ids=[5], prompt_ids=[6, 7])]
    new = [row(output_ids=[5], prompt_ids=[6, 8]), row(output_ids=[4], **{**seen, "prompt_ids": [1, 2, 3, 3]})]
    assert [bool(a.get("images")) == bool(b.get("images")) for a, b in paired(old, new)] == [True, True]


# == From a stranger's fourth trial ==


def test_what_is_drawn_of_the_same_prompts_is_judged_wherever_it_stands() -> None:
    """Behind draws that led elsewhere, too: samples of one seed are seen there."""
    old = case(drawn([4, 9]), drawn([6, 9], **ASKED_ON), drawn([7, 9]), value=["d", "f", "g"])
    new = case(drawn([5, 9]), drawn([6, 9], **OTHERWISE), drawn([5, 9]), value=["e", "f", "e"])
    parts = sampled_part(Comparison(old, new))
    assert parts is not None and [[r["output_ids"] for r in part.rows] for part in parts] == [
        [[4, 9], [7, 9]],
        [[5, 9], [5, 9]],
    ]


def test_calls_that_were_added_and_change_nothing_are_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "tools_of", lambda old: TOOLS)
    monkeypatch.setattr(samples.Samples, "judge", lambda *_, **__: ("SAME-SETTINGS", None, ("few",)))
    new = case(drawn([7, 9]), drawn([6, 9], **OTHERWISE), read([2]), value=["g"])
    forced = replace(GOLDEN, rows=(*GOLDEN.rows, read([2])))
    assert check.Judge(Store(tmp_path), "hf", lambda *_: forced).outcome(GOLDEN, new).verdict == "SAME-SETTINGS"


def test_the_goldens_answers_are_put_back_without_what_it_only_read() -> None:
    answers = [row(output_ids=[4, 9]), read([2, 3]), row(output_ids=[5, 9])]
    replay, said = Replay(Engines(), put_back=frozenset({ANSWERS}), rows=answers), list[Any]()
    replay.ran["m", "float32"] = None

    def ask(engine: Any, requests: Any, options: Any, **how: Any) -> list[Any]:
        said.append(options["replay"])
        return list(requests)

    for _ in range(2):
        replay._answering(ask, [{"prompt": "bc"}], {}, {})
    assert said == [[[4, 9]], [[5, 9]]]


@pytest.mark.parametrize(("seeds", "verdict"), [([7, 8], "IDENTICAL"), ([7, 7], "LATENT")])
def test_seeds_that_the_new_code_draws_by_itself_are_none(seeds: list[int], verdict: str, tmp_path: Path) -> None:
    def seeded(seed: int | None) -> Case:
        one = drawn([4, 9])
        return case({**one, "request": {"number": 0, "sample": 0, "seed": seed}}, value=["d"])

    again = iter(seeds[1:])
    judge = check.Judge(Store(tmp_path), "hf", lambda *_: None, resample=lambda old, seed: seeded(next(again)))
    assert judge.outcome(seeded(None), seeded(seeds[0])).verdict == verdict


def test_a_token_that_is_only_read_is_that_of_which_the_other_side_asks() -> None:
    """Where numbers among the values, which it would move, are the same."""
    whole, once = read([2, 3, 4]), row(prompt_ids=[2, 3], output_ids=[7], stop={"max_new_tokens": 1})

    def counted(asked: Any, value: Any) -> bool:
        pair = (Case("s", "c", rows=(one,), value=value) for one in (whole, asked))
        return any(d.counts and d.stage == "prompt_ids" for d in differences(*pair))

    assert not counted(once, {"score": -1.25}) and counted(once, ["b"]) and counted(once, 1.0)
    assert counted({**once, "prompt_ids": [2, 7]}, -1.25)
    assert counted(row(prompt_ids=[2, 3], output_ids=[7]), -1.25)  # which goes on


def test_a_criterion_that_is_gone_is_likely_for_the_value_may_be_cut_by_hand(tmp_path: Path) -> None:
    old = Case("s", "c", rows=(stopping([4, 9], **{**ENDS, "criteria": ["Enough"]}),), value="d")
    found = check.Judge(Store(tmp_path), "hf", lambda *_: None).outcome(
        old, replace(old, rows=(stopping([4, 9], **ENDS),))
    )
    assert (found.verdict, str(found.cause)) == ("LATENT", "stop.criteria; likely")
    assert found.steps[-1] == "first difference: stop.criteria of row 0 was ['Enough'], is []"


def test_an_answer_of_other_settings_is_another_requests() -> None:
    def answered(top_k: int, ids: list[int], cached: bool) -> dict[str, Any]:
        one = drawn(ids)
        request = {"number": 0, "sample": 0, "seed": 3, "cached": cached}
        return {**one, "request": request, "sampling": {**one["sampling"], "top_k": {"value": top_k, "from": "caller"}}}

    new = case(answered(9, [4, 9], False), answered(2, [4, 9], True))
    own = case(answered(9, [4, 9], False), answered(2, [5, 9], False))
    assert of_another(new, own) == [1] and of_another(new, new) == []
    alike = case(answered(2, [4, 9], False), answered(2, [4, 9], True))
    assert of_another(alike, own) == []


def test_rounding_parts_one_row_and_another_ends_early_the_declared_end_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of the first row part where neither token is an end; the second row is the beginning of its old one."""

    def answer(ids: list[int], most: int) -> dict[str, Any]:
        return row(output_ids=ids, text=decode(ids, True, False), stop={**ENDS, "max_new_tokens": most})

    monkeypatch.setattr(check, "tools_of", lambda old: TOOLS)
    old = case(answer([4, 5, 6, 9], 8), answer([7, 5, 6, 9], 8), value=["efg", "hfg"])
    new = case(answer([4, 8], 2), answer([7, 5], 2), value=["ei", "hf"])
    found = check.Judge(Store(tmp_path), "hf", lambda *_, **__: None).outcome(old, new)
    assert (found.verdict, str(found.cause)) == ("DRIFT", "stop.max_new_tokens; likely")
