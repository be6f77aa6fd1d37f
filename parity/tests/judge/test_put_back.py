"""Old values that are put back: the run takes place, or `explain` says why it did not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.causes import TABLE
from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Difference
from parity.judge.case import Judge
from parity.judge.inquiry import PutBack
from parity.judge.replay import Engines, Replay
from parity.judge.stages.sampling import old_sampling
from parity.tests.conftest import ROOT, Load

from .inquiries import cause_of, differences, inquiry_of
from .test_company import case
from .test_laws import TOOLS, row

UNSURE = ROOT / "golden/models/random-llama"


def settings(**values: Any) -> dict[str, Any]:
    return {name: {"value": value, "from": "caller"} for name, value in values.items()}


def test_sampling_that_is_put_back_is_what_the_model_is_asked_with(shared: Load) -> None:
    engine = shared(UNSURE, "hf", max_model_len=512)
    asked, plain = [{"prompt": "The"}], {"max_new_tokens": 12}
    own = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    [wanted] = engine.generate_text_batch(asked, {**plain, **own})
    assert wanted.token_ids != engine.generate_text_batch(asked, plain)[0].token_ids
    golden = {"prompt_ids": [0], "output_ids": [1], "sampling": settings(temperature=0, num_beams=1, **own)}
    with contextlib.closing(Engines()) as engines:
        replay = Replay(engines, put_back=frozenset({"sampling"}), rows=[golden])
        [result] = replay.call(type(engine).generate_text_batch, engine, asked, plain)
    assert result.token_ids == wanted.token_ids


def test_responses_are_scored_again_at_the_old_temperature(shared: Load) -> None:
    engine = shared(UNSURE, "hf", max_model_len=512)
    items = [("The", [5, 6])]
    wanted = engine.score_batch(items)
    golden = {"prompt_ids": [0, 5, 6], "output_ids": [], "scored": True}
    with contextlib.closing(Engines()) as engines:
        replay = Replay(engines, put_back=frozenset({"sampling"}), rows=[golden])
        found = replay.score(type(engine).score_batch, engine, items, temperature=0.5)
        golden["request"] = {"temperature": 0.5}
        warm = replay.score(type(engine).score_batch, engine, items)
        golden["request"] = {}
        [words] = replay.score(lambda engine, items, **how: [how], engine, items)
    assert found == wanted and words == {}, "a copy of an older engine may not take the word"
    assert warm == engine.score_batch(items, temperature=0.5) != wanted


@pytest.mark.parametrize(
    ("value", "again", "cause"),
    [
        ([-4.0, -2.0], [-2.00005, -1.0], "sampling.temperature; confirmed"),
        ([-4.0, -2.0], [-2.0, -3.0], "value; confirmed"),  # the temperature is not all
        ([-2.0, -1.0], [-2.0, -1.0], None),  # the old code divides by itself
    ],
)
def test_scores_at_another_temperature_are_named_so(value: Any, again: Any, cause: str | None) -> None:
    read = {**row(output_ids=[], text=None), "scored": True}
    warm = {**read, "request": {"temperature": 0.5}}
    old, new = case(read, value=[-2.0, -1.0]), case(warm, value=value)
    inquiry = inquiry_of(old, new, None, TOOLS.decode, lambda *_: case(read, value=again), TOOLS)
    found = cause_of(inquiry)
    assert (found and str(found)) == cause


def test_what_is_likely_another_order_is_behind_what_a_run_proves() -> None:
    """In half precision: asked in another order, and put back; the temperature is what differs."""
    half = {"model": {"path": "m", "dtype": "bfloat16", "backend": "hf"}, "scored": True}
    read = [{**row(output_ids=[], text=None, prompt_ids=ids), **half} for ids in ([1, 2], [1, 3])]
    warm = [{**one, "request": {"temperature": 0.9}} for one in read[::-1]]
    old, new = case(*read, value=[-2.0, -2.2]), case(*warm, value=[-2.26, -2.1])
    again = case(*read[::-1], value=[-2.0, -2.2])
    found = cause_of(inquiry_of(old, new, None, TOOLS.decode, lambda *_: again, TOOLS))
    assert found is not None and found.name == "sampling.temperature"


def test_beams_cannot_be_put_back() -> None:
    with pytest.raises(GoldenError, match="beams"):
        old_sampling({}, {"sampling": settings(temperature=0, num_beams=4)})


OLD = case({**row(output_ids=[4, 5, 9], text="de"), "sampling": settings(temperature=0, top_p=1.0, processors=[])})
NEW = case(
    {**row(output_ids=[6, 7, 9], text="fg"), "sampling": settings(temperature=0, repetition_penalty=1.3, processors=[])}
)
RAISED = "OptionError: no such field 'num_beams'"


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (NEW, "not sampling.repetition_penalty alone: putting it back alone does not bring the old answer back"),
        (
            replace(NEW, raised=RAISED),
            "putting sampling.repetition_penalty back was not tried, because the run with it ended",
        ),
        (None, "putting sampling.repetition_penalty back was not tried, because the case cannot be run again"),
    ],
)
def test_a_run_that_did_not_take_place_is_none(again: Case | None, said: str) -> None:
    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case | None:
        return again if parts == {"sampling"} else NEW

    inquiry = inquiry_of(OLD, NEW, differences(OLD, NEW), TOOLS.decode, rerun, TOOLS)
    found = cause_of(inquiry)
    assert found is not None and str(found) == "sampling.repetition_penalty; likely"
    assert any(step.startswith(said) for step in inquiry.steps), inquiry.steps
    assert ("was not tried, because" in found.proof) == (again is not NEW), found.proof


def test_what_cannot_be_run_again_was_not_tried() -> None:
    found = cause_of(inquiry_of(OLD, NEW, differences(OLD, NEW), TOOLS.decode, None, TOOLS))
    assert found is not None and found.proof.endswith("was not tried, because the case cannot be run again")


@pytest.mark.parametrize("new", [[-1.5, -2.0], [-1.5], -3.5, [-1.0, -0.51]])
def test_numbers_that_differ_are_no_text_after_decoding(new: Any) -> None:
    old, moved = (replace(OLD, value={"text": "de", "scores": scores}) for scores in ([-1.0, -0.5], new))
    found = cause_of(inquiry_of(old, moved, differences(old, moved), TOOLS.decode, None, TOOLS))
    assert found is not None and found.name == "value"
    assert "value.scores" in found.sentence


def test_a_stop_that_passes_elsewhere_and_brings_nothing_back_is_no_cause() -> None:
    """The old code cut its text by hand, the engine stops there; what is counted of the answers was made behind."""
    told = {"strings": {"value": ["f"], "from": "caller"}}
    old = case(row(output_ids=[4, 5, 6, 7], stop={}), value=[{"text": "de", "votes": 2}])
    new = case(row(output_ids=[4, 5, 6], text="de", stop=told), value=[{"text": "de", "votes": 1}])
    difference = Difference("stop", "strings", [], ["f"], row=0, counts=False)
    value = Difference("value", "[0].votes", 2, 1)

    def found(counts: bool) -> str:
        seen = [replace(difference, counts=counts), value]
        inquiry = inquiry_of(old, new, seen, TOOLS.decode, lambda load, parts: new, TOOLS)
        return str(cause_of(inquiry))

    assert found(counts=False) == "value; likely"
    assert found(counts=True) == "stop.strings; likely"


def test_draws_that_come_back_by_luck_say_nothing_of_what_differs_behind() -> None:
    """Drawn anew, the old answer comes back when the old stops do, which count for nothing by themselves."""
    drawn = settings(temperature=0.7, processors=[])
    told = {"strings": {"value": ["f"], "from": "caller"}}
    old = case({**row(output_ids=[4, 5, 9], text="de", stop={}), "sampling": {**drawn, **settings(top_p=0.8)}})
    moved = {**row(output_ids=[6, 7, 9], text="fg", stop=told), "sampling": {**drawn, **settings(top_p=1.0)}}
    new = case(moved)
    seen = [replace(one, counts=one.stage == "sampling") for one in differences(old, new) if one.stage != "value"]

    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        return new if "sampling" in parts else old

    found = cause_of(inquiry_of(old, new, seen, TOOLS.decode, rerun, TOOLS))
    assert str(found) == "sampling.top_p; likely"
    by_luck = cause_of(inquiry_of(old, new, seen, TOOLS.decode, lambda load, parts: old, TOOLS))
    assert by_luck is not None and str(by_luck) == "sampling.top_p; likely" and "may be luck" in by_luck.proof


@pytest.mark.parametrize(
    ("stage", "field", "name"),
    [
        ("messages", "", "prompt.messages; likely"),
        ("model", "adapters", "model.adapters; likely"),
        ("sampling", "repetition_penalty", "value; likely"),
        ("model", "attention", "value; likely"),
        ("batch", "side", "value; likely"),
    ],
)
def test_equal_ids_acquit_only_what_acts_by_the_ids(stage: str, field: str, name: str) -> None:
    """Another prompt, or adapter, is another request, though it is answered alike; a count beside it differs."""
    old = case(row(output_ids=[4, 5, 9], text="de"), value={"said": "de", "turns": 6})
    new = replace(old, value={"said": "de", "turns": 2})
    seen = [Difference(stage, field, "a", "b", row=0), Difference("value", "", old.value, new.value)]
    found = inquiry_of(old, new, seen, TOOLS.decode, lambda load, parts: new, TOOLS)
    assert str(cause_of(found)) == name


@pytest.mark.parametrize(
    ("was", "now", "name"),
    [
        (["de", "stop"], ["def", "length"], "stop"),
        (["de", "stop"], ["DEF", "length"], "value"),
        (["de", "fg"], ["def", "e"], "value"),
        (["de", "stop"], ["de", "length"], "value"),
    ],
)
def test_an_answer_with_the_word_for_its_end_ends_elsewhere(was: list[str], now: list[str], name: str) -> None:
    """A loop of the old code's own: where it stops was not seen. One word of a pair is no text of an answer."""
    more = row(output_ids=[6, 7])
    old = case(row(output_ids=[4, 5], text="de", stop={}, loop="likeliest"), more, value=was)
    new = case(row(output_ids=[4, 5, 6], text="def", stop={}), more, value=now)
    assert str(cause_of(inquiry_of(old, new, (), TOOLS.decode, None, TOOLS))) == f"{name}; likely"


def test_a_stop_of_both_sides_that_cuts_a_text_earlier_is_a_stop() -> None:
    """The old code cuts at the third "e", by hand; the new code cuts at the first."""
    arguments = {"stops": ["e"]}
    old = replace(
        case(row(output_ids=[4, 5, 6, 5, 7, 5, 8, 5, 4], text="defegehed", stop={}), value="defeg"), arguments=arguments
    )
    stop = {"strings": ["e"]}
    new = replace(case(row(output_ids=[4, 5, 6, 5], text="defe", stop=stop), value="d"), arguments=arguments)
    seen = [Difference("stop", "strings", [], ["e"], row=0, counts=False), Difference("value", "", "defeg", "d")]
    again = replace(new, value="defegehed")
    found = cause_of(inquiry_of(old, new, seen, TOOLS.decode, lambda load, parts: again, TOOLS))
    assert str(found) == "stop.strings; likely", found


def test_together_names_the_fewest_first_suspects_in_few_runs() -> None:
    old, new = case(row()), case(row(output_ids=[6, 9], text="f"))
    names = [known.name for known in TABLE][:8]
    known = [PutBack(name, Difference("sampling", name, 1, 2), {}, frozenset({name})) for name in names]
    runs = list[frozenset[str]]()

    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        runs.append(parts)
        return old if {*names[:6]} <= parts else new

    found = inquiry_of(old, new, rerun=rerun).together(known)
    assert found is not None and found.name == f"sampling.{names[0]}"
    assert found.proof.startswith(f"only {', '.join(names[:6])} together")
    assert len(runs) <= 4, "all of them, and a bisection of the other seven counts"


@pytest.mark.parametrize(
    ("second", "certainty", "is_said"),
    [(NEW, "confirmed", False), (OLD, "likely", True), (replace(NEW, rows=(*NEW.rows, *NEW.rows)), "confirmed", True)],
    ids=["does the same", "gives the old answer by itself", "asks more"],
)
def test_a_run_proves_nothing_that_another_call_gives_by_itself(
    second: Case, certainty: str, is_said: bool, tmp_path: Path
) -> None:
    """Code that keeps something from call to call."""

    def run(golden: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case:
        return OLD if parts else second

    outcome = Judge(Store(tmp_path), "hf", run).outcome(OLD, NEW)
    assert str(outcome.cause) == f"sampling.repetition_penalty; {certainty}"
    assert any("does something else" in note for note in outcome.notes) == is_said, outcome.notes


@pytest.mark.parametrize("explains", [False, True])
def test_explain_calls_code_again_that_passes(explains: bool, tmp_path: Path) -> None:
    """Alone the case passes, behind another one of its site it may not."""
    outcome = Judge(Store(tmp_path), "hf", lambda *given: NEW, explains=explains).outcome(OLD, OLD)
    assert outcome.verdict == "IDENTICAL"
    said = [note for note in outcome.notes if "sampling.repetition_penalty of row 0 was 1.0, is 1.3" in note]
    assert len(said) == len(outcome.notes) == explains


@pytest.mark.parametrize(("owner", "is_said"), [("script", True), ("nobody", False)])
def test_a_seed_of_the_script_that_the_moved_code_lost_is_said(owner: str, is_said: bool, tmp_path: Path) -> None:
    drawn = {**row(), "sampling": settings(temperature=1.0)}
    seeded = {**drawn, "sampling": {**drawn["sampling"], "seed": {"value": 0, "from": owner}}}
    outcome = Judge(Store(tmp_path), "hf", lambda *given: None).outcome(case(seeded), case(drawn))
    assert any("seeded the process" in note for note in outcome.notes) == is_said, outcome.notes
