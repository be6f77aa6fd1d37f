"""What a case asks of its site's numerics, and what it becomes by each answer: no model is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity.goldens.store import Case, Store
from parity.goldens.verdict import Cause, Check, Outcome, equal
from parity.judge import tools
from parity.judge.comparison import Comparison
from parity.judge.equal import asked_otherwise, drawn_otherwise
from parity.judge.judge import ask_numerics
from parity.judge.numerics import questions, referee, weights
from parity.judge.numerics.answers import Numerics, answer_of
from parity.judge.numerics.errors import Reading
from parity.judge.numerics.groups import Group
from parity.judge.numerics.numbers import number_gap
from parity.judge.numerics.questions import (
    Beside,
    Kind,
    Question,
    could_not,
    ends_elsewhere,
    kind_of,
    place_of,
    steps_of,
)
from parity.judge.numerics.reading import Scored
from parity.judge.numerics.summary import summary_of
from parity.judge.numerics.weights import weights_of
from parity.judge.site import Pending
from parity.record.taps import models


def case(*answers: list[int], value: Any = "x", **sampling: Any) -> Case:
    settings = {name: {"value": setting, "from": "caller"} for name, setting in sampling.items()}
    rows = tuple({"prompt_ids": [5, 6], "output_ids": ids, "sampling": settings} for ids in answers)
    return Case("s", "c", rows=rows, value=value)


def test_a_row_parts_where_another_id_was_chosen() -> None:
    [step] = steps_of(case([1, 2, 3], [7]), case([1, 9, 9], [7]))
    assert (step.row, step.step, step.position, step.ids) == (0, 1, 3, (2, 9))


def test_a_folder_that_the_golden_only_names_is_where_the_moved_code_loaded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.FOLDERS, "tiny", set())
    named = Case("s", "c", rows=({"model": {"path": "tiny"}},), value="x")
    assert tools.checkpoint_of(named) == "tiny"
    for folder in (tmp_path / "one/tiny", tmp_path / "other/tiny"):
        folder.mkdir(parents=True)
        assert models.shown_path(str(folder)) == "tiny"
        alone = len(models.FOLDERS["tiny"]) == 1
        assert tools.checkpoint_of(named) == (str(folder) if alone else "tiny"), "of two, none is the one"


def test_rows_that_a_criterion_kept_behind_their_stops_ended_nowhere_else() -> None:
    """Those of a batch go on until all have ended; another row of it parts, which may be a near tie."""

    def asked(ids: list[list[int]], criteria: list[str]) -> Case:
        stop = {"criteria": {"value": criteria, "from": "caller"}}
        made = ({"prompt_ids": [k], "output_ids": own, "stop": stop} for k, own in enumerate(ids))
        return Case("s", "c", rows=tuple(made))

    new = asked([[4, 5], [6, 9]], [])
    assert not questions.ends_elsewhere(asked([[4, 5, 6, 7], [6, 7]], ["theirs"]), new)
    assert questions.ends_elsewhere(asked([[4, 5, 6, 7], [6, 7]], []), new)
    assert questions.ends_elsewhere(asked([[4], [6, 7]], ["theirs"]), new)


def test_a_row_that_is_the_beginning_of_the_other_was_ended_elsewhere() -> None:
    assert steps_of(case([1, 2]), case([1, 2, 3])) == [] and ends_elsewhere(case([1, 2]), case([1, 2, 3]))
    assert not ends_elsewhere(case([1, 2]), case([1, 3]))
    only_read = Case("s", "c", rows=tuple({**row, "scored": True, "output_ids": []} for row in case([1, 2]).rows))
    assert not ends_elsewhere(case([1]), only_read), "an answer that one side alone had"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ([[1, 2, 3]], [[1, 2, 3], [1, 2]], ""),  # read whole, and then asked from within
        ([[1, 2, 3]], [[1, 2, 3], [1, 4]], "1 prompts reached the model that had not"),
        ([[1, 2, 3], [4]], [[1, 2, 3]], "of 2 prompts 1 did not reach the model"),
        ([[1, 2, 3], [1, 2, 3]], [[1, 2, 3]], ""),  # asked twice, answered once
    ],
)
def test_prompts_that_one_side_alone_asks_for(old: list[list[int]], new: list[list[int]], says: str) -> None:
    sides = [Case("s", "c", rows=tuple({"prompt_ids": ids, "output_ids": []} for ids in side)) for side in (old, new)]
    assert asked_otherwise(*sides) == says


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ([[5], [6], [7]], [[5], [6]], "3 samples were drawn, are 2"),
        ([[5], [6]], [[5], [6], [7]], "2 samples were drawn, are 3"),
        ([[5], [6], [7]], [[5], [8]], ""),  # how many there are may hang on what was drawn
        ([[5], [6]], [[5], [6]], ""),
    ],
)
def test_samples_that_are_not_drawn_any_more_are_seen(old: list[list[int]], new: list[list[int]], says: str) -> None:
    warm = {"sampling": {"temperature": {"value": 0.7, "from": "caller"}}}

    def drawn(side: list[list[int]]) -> Case:
        rows = tuple({"prompt_ids": [1], "output_ids": ids, **warm} for ids in side)
        return Case("s", "c", rows=rows, value="a")

    assert drawn_otherwise(Comparison(drawn(old), drawn(new))) == says


@pytest.mark.parametrize(
    ("old", "new", "gap"),
    [
        ([-0.5, "a"], [-1.0, "a"], 0.5),
        ([0.59], [1.0], pytest.approx(2.57, abs=0.01)),  # of a probability that became certain, too
        ([0.004], [0.005], pytest.approx(0.224, abs=1e-3)),  # of a small number, a part of it
        ([0.922], [0.77], pytest.approx(1.16, abs=0.01)),  # of a probability, what its logit moved by
        ([100.0], [101.0], pytest.approx(0.00995, abs=1e-5)),  # of a perplexity, too
        ([-100.0], [-101.0], 1.0),  # and of a sum of log-probabilities what it is
        ([-7.5e-05], [-7.75e-05], pytest.approx(2.5e-06)),  # of one of a sure token, too: a step of its logit
        ([0.0], [1e-6], 1e-6),  # as near to zero as float32 tells
        ([[[7, -1.0], [8, -1.5]]], [[[8, -1.25], [7, -1.25]]], 0.25),  # best tokens, in another order
        ({"a": -1.0, "b": -1.5}, {"a": -1.125, "c": -1.5}, 0.125),  # b was no better than c is
        ([("a", -1.0), ("b", -1.5)], [("a", -1.0), ("c", -2.0)], 0.5),  # b fell at least so far
        ([["a", -1.0], ["b", -3.5]], [["b", -3.5], ["a", -1.0]], 2.5),  # worst first
        ({5: -3.0, 7: -0.2, 8: -2.9}, {5: -3.0, 7: -0.2, 9: -2.9}, pytest.approx(0.1)),  # the sampled one first
        ([["a", -0.1], ["b", -0.2]], [["a", -0.1], ["c", -0.2]], None),  # of one step a model is not sure of each
        ([["a", -1.0], ["b", -1.5]], [["a", -1.0]], None),
        ([["a", -1.0], ["b", -1.5], ["c", -2.0]], [["Ga", -1.0], ["Gb", -1.5], ["Gc", -2.0]], None),
        ({"p": [-1.0, -2.0]}, {"p": [-1.0, -2.5]}, 0.5),
        ([0.5, "a"], [0.75, "b"], None),
        ([0.5], [0.5, 0.5], None),
        (float("nan"), 0.0, None),
        (1, 2, None),
    ],
)
def test_only_floats_may_move(old: Any, new: Any, gap: float | None) -> None:
    assert number_gap(old, new) == gap


def test_numbers_of_either_sign_are_as_exact_as_the_largest() -> None:
    state = [6.5, -0.002, 1.0, -2.0, 3.0, 0.5, -0.25, 0.75]
    assert equal(state, [number + 6e-6 for number in state]) and not equal(state, [number + 6e-4 for number in state])
    odds = [abs(number) for number in state]
    assert not equal(odds, [number + 6e-6 for number in odds])


@pytest.mark.parametrize(("penalty", "kind"), [(1.0, "floats"), (1.5, None)])
def test_of_numbers_of_tokens_too_rounding_is_asked(penalty: float, kind: str | None) -> None:
    """But not where something is declared otherwise, which moves them."""
    said = Cause("value", "likely", "numbers")
    old, new = (case([1, 2], value=[v], repetition_penalty=p) for v, p in ((-1.0, 1.0), (-1.01, penalty)))
    assert kind_of(old, new, ("DRIFT", said, ()), False) == kind


def test_nothing_is_asked_where_every_id_is_equal_unless_it_is_asked_for() -> None:
    old, judged = case([1, 2]), ("IDENTICAL", None, ())
    assert kind_of(old, old, judged, False) is None and kind_of(old, old, judged, True) == "passing"  # type: ignore[arg-type]
    assert kind_of(old, case([1, 3]), ("TEXT-IDENTICAL", None, ()), False) == "passing"
    assert kind_of(old, case([1, 2, 3]), ("TEXT-IDENTICAL", None, ()), False) is None
    drawn = case([1, 2], temperature=1.0)  # an id that was drawn is no choice of the model's
    assert kind_of(drawn, case([1, 3], temperature=1.0), ("TEXT-IDENTICAL", None, ()), False) is None


# == Answers ==


def group(change: Callable[[Any], Any] = lambda e: e, rows: int = 24, gap: float = 0.01, **answers: Any) -> Group:
    """A site in bfloat16 whose one case parts at a step where the reference prefers one id by `gap`."""
    draw, readings = np.random.default_rng(0), []
    for _ in range(rows):
        truth = -draw.exponential(2, 80) - 0.1
        old, new = truth + draw.normal(0, 0.03, 80), truth + change(draw.normal(0, 0.03, 80))
        readings.append(Reading(truth.tolist(), old.tolist(), new.tolist()))
    made = Group("s", "vllm", "m", {"dtype": "bfloat16"}, {("c", 0): steps_of(OLD, NEW)[0]}, places={("c", 0): 0})
    made.readings, made.verdict = readings, referee.judge(readings, dtype="bfloat16")
    sides = {"truth": (-1.0, -1.0 - gap), "old": (-1.0, -1.02), "new": (-1.02, -1.0), **answers}
    for name, pair in sides.items():
        setattr(made, name, [Scored((), pair, (3.0, 3.0))])
    return made


OLD, NEW = case([1, 2, 3]), case([1, 9, 9])


def ask(kind: Kind = "parted", judged: Any = None, old: Case = OLD, new: Case = NEW) -> Question:
    return Question(old, new, "vllm", kind, judged or could_not("not read"))


def verdict_of(made: Group, question: Question) -> tuple[str, str, str]:
    verdict, cause, _ = answer_of(made, question)
    return verdict, cause.name if cause else "", cause.sentence if cause else ""


def test_where_numerics_hold_a_close_step_is_a_near_tie() -> None:
    made = group()
    assert verdict_of(made, ask())[:2] == ("NEAR-TIE", "numeric.near_tie")
    assert summary_of(made).picture["gaps"] == [pytest.approx(0.01)] and summary_of(made).outcome == "holds"


@pytest.mark.parametrize(
    ("sides", "cause"),
    [
        ({"gap": 5.0, "new": (-6.0, -1.0)}, "numeric.shift"),
        ({"gap": 5.0, "new": (-1.0, -6.0)}, "sampling.processors"),
        ({"gap": -5.0, "old": (-6.0, -1.0)}, "model.version"),
    ],
)
def test_a_step_beyond_the_noise_names_the_path_that_does_not_choose_what_it_chose(sides: Any, cause: str) -> None:
    assert verdict_of(group(**sides), ask())[:2] == ("DRIFT", cause)


@pytest.mark.parametrize(
    ("sides", "verdict"),
    [
        ({"gap": 5.0, "new": (-1.0, -6.0)}, ("DRIFT", "sampling.processors")),
        ({"gap": 0.5, "new": (-1.0, -1.5)}, ("ERROR", "error")),  # a few times the noise may be noise
        ({"gap": 5.0, "new": (-6.0, -1.0)}, ("ERROR", "error")),  # or a shift, which a few tokens do not show
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_of_a_few_tokens_a_choice_that_is_surely_not_the_models_is_drift(
    rows: int, sides: Any, verdict: tuple[str, str]
) -> None:
    assert verdict_of(group(rows=rows, **sides), ask())[:2] == verdict


@pytest.mark.parametrize(("is_elsewhere", "cause"), [(False, "sampling.processors"), (True, "model.version")])
def test_another_version_is_blamed_only_where_there_is_another_one(is_elsewhere: bool, cause: str) -> None:
    """The environment that recorded is not one that can differ from itself."""
    made = group(gap=-5.0, old=(-6.0, -1.0))
    made.here = () if is_elsewhere else ("c",)
    assert verdict_of(made, ask())[:2] == ("DRIFT", cause)


@pytest.mark.parametrize(
    ("recorded", "loaded", "cause"),
    [
        (["1f"], "2e", "model.weights"),
        (["1f"], "1f", "sampling.processors"),
        (["1f"], "", "sampling.processors"),  # it was not read
        ([], "2e", "sampling.processors"),  # of vLLM: by its folder
    ],
)
def test_another_adapter_is_blamed_where_its_fingerprint_is_another_one(
    recorded: list[str], loaded: str, cause: str
) -> None:
    """The old path was run with the adapter that the moved code loads, and "this environment is another one"."""
    made = group(gap=-5.0, old=(-6.0, -1.0))
    made.here, made.read_adapter = ("c",), loaded
    rows = tuple({**row, "inputs": {"keys": [], "adapters": recorded}} for row in OLD.rows)
    assert verdict_of(made, ask(old=dataclasses.replace(OLD, rows=rows)))[:2] == ("DRIFT", cause)


@pytest.mark.parametrize(
    ("dtype", "gap", "verdict"),
    [
        ("float32", 5.0, ("DRIFT", "sampling.processors")),  # no rounding turns such a step, whatever the processor did
        ("float32", 0.01, ("NEAR-TIE", "numeric.near_tie")),
        ("bfloat16", 5.0, ("ERROR", "error")),  # the processor may have made it a tie
    ],
)
def test_a_step_that_a_foreign_processor_chose(dtype: str, gap: float, verdict: tuple[str, str]) -> None:
    made = group(gap=gap, old=(-1.0, -1.0 - gap), new=(-1.0, -1.0 - gap))
    steps = {
        key: dataclasses.replace(step, odd="its own processor changed the logits") for key, step in made.steps.items()
    }
    made = dataclasses.replace(made, model={"dtype": dtype}, steps=steps)
    assert verdict_of(made, ask())[:2] == verdict


def test_a_step_that_a_structure_chose_says_nothing_of_the_environment() -> None:
    made = group(gap=-5.0, old=(-6.0, -1.0))
    steps = {key: dataclasses.replace(step, masked=True) for key, step in made.steps.items()}
    assert verdict_of(dataclasses.replace(made, steps=steps), ask())[:2] == ("DRIFT", "sampling.processors")
    assert [step.masked for step in steps_of(case([1, 2], processors=["structured"]), case([1, 3]))] == [True]


def test_what_differs_beside_a_near_tie_is_drift() -> None:
    stop = Cause("stop.max_new_tokens", "likely", "other")
    question = dataclasses.replace(ask(), beside=Beside(stop))
    verdict, cause, notes = answer_of(group(), question)
    assert (verdict, cause) == ("DRIFT", stop) and "rounding explains where the ids part" in notes[0]
    within = dataclasses.replace(question, beside=Beside(stop, 0.05))  # numbers, within rounding
    assert verdict_of(group(), within)[0] == "NEAR-TIE"
    verdict, _, notes = answer_of(group(), dataclasses.replace(question, beside=Beside(stop, 2.0)))
    assert verdict == "DRIFT" and "at the golden's own ids numbers are 2.0e+00 apart" in notes[1]
    few = group(rows=2)  # which cannot tell: it differs whatever moved the ids
    assert verdict_of(few, question)[:2] == ("DRIFT", "stop.max_new_tokens")
    assert verdict_of(few, dataclasses.replace(question, beside=Beside(stop, 2.0)))[0] == "ERROR"
    shifted = group(gap=5.0, new=(-6.0, -1.0))
    assert verdict_of(shifted, question)[:2] == ("DRIFT", "numeric.shift")  # which comes first


def test_a_shift_is_drift_and_of_a_case_that_passes_latent() -> None:
    made = group(lambda e: e * 3)
    assert verdict_of(made, ask())[:2] == ("DRIFT", "numeric.shift")
    assert verdict_of(made, ask("passing", ("IDENTICAL", None, ())))[:2] == ("LATENT", "numeric.shift")
    declared = ("DRIFT", Cause("model.dtype", "likely", "bfloat16, is float16"), ())
    _, cause, _ = answer_of(made, ask("model", declared))
    assert cause is not None and (cause.name, cause.certainty) == ("model.dtype", "confirmed")


def test_weights_that_are_not_the_checkpoints_are_drift_where_rounding_hides_them() -> None:
    made = group()
    made.other_weight = "layers.0.mlp.experts.1.up_proj.weight"
    assert verdict_of(made, ask())[:2] == ("DRIFT", "model.weights")
    assert verdict_of(made, ask("passing", ("IDENTICAL", None, ())))[:2] == ("LATENT", "model.weights")
    shifted = group(lambda e: e * 3)
    shifted.other_weight = made.other_weight
    name, cause, said = verdict_of(shifted, ask())
    assert (name, cause) == ("DRIFT", "numeric.shift") and made.other_weight in said


def test_what_the_old_path_is_known_to_leave_out_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"attn_logit_softcapping": 50.0}')
    for decided in (group(lambda e: e * 3), group(rows=2)):
        made = dataclasses.replace(decided, path=str(tmp_path), backend="hf")
        made.model = {"dtype": "bfloat16", "attention": "sdpa"}
        assert "attn_logit_softcapping" in verdict_of(made, ask())[2]


def test_numbers_that_all_move_one_way_are_drift_though_each_is_within_rounding() -> None:
    otherwise = ("DRIFT", Cause("post.other", "likely", "value"), ())
    draw = np.random.default_rng(0)
    old = [float(value) for value in -draw.exponential(2, 40) - 0.2]
    made = group()
    for far, verdict in ((0.0, "NEAR-TIE"), (0.06, "DRIFT")):
        new = [value - far + float(draw.normal(0, 0.02)) for value in old]
        question = ask("floats", otherwise, case([1], value=old), case([1], value=new))
        made.numbers = [(question.old, question.new)]
        assert verdict_of(made, question)[0] == verdict


def test_too_few_tokens_are_no_verdict_and_say_how_many_are_lacking() -> None:
    verdict, cause, said = verdict_of(group(rows=2), ask())
    assert (verdict, cause) == ("ERROR", "error") and "cannot tell" in said
    assert "more answer tokens, of other rows, decide it" in said
    assert Check((Outcome("s", "c", "vllm", "ERROR"),)).exit_code == 3
    passing = ("IDENTICAL", None, ())
    alone = dataclasses.replace(group(rows=2), steps={})
    assert verdict_of(alone, ask("passing", passing))[0] == "IDENTICAL", "its ids are equal"


def test_log_probabilities_among_the_values_may_move_as_far_as_noise_does() -> None:
    otherwise = ("DRIFT", Cause("value", "likely", "value"), ())
    for far, verdict in ((0.05, "NEAR-TIE"), (2.0, "DRIFT")):
        question = ask("floats", otherwise, case([1], value=[-1.0]), case([1], value=[-1.0 - far]))
        assert verdict_of(group(), question)[0] == verdict
    exact, draw = group(), np.random.default_rng(0)
    truths = [draw.exponential(2, 80) + 0.1 for _ in range(24)]
    paths = [[(-truth + draw.normal(0, 1e-6, 80)).tolist() for _ in "on"] for truth in truths]
    small = [Reading((-truth).tolist(), *pair) for truth, pair in zip(truths, paths)]
    exact.verdict = referee.judge(small, dtype="float32")
    # How the old code padded moves float32 by more than noise.
    for far, verdict in ((9e-5, "NEAR-TIE"), (2e-4, "DRIFT")):
        question = ask("floats", otherwise, case([1], value=[-1.0]), case([1], value=[-1.0 - far]))
        assert verdict_of(exact, question)[0] == verdict
    for far, verdict in ((0.05, "ERROR"), (0.5, "ERROR"), (4.0, "DRIFT")):  # too few tokens, and yet no rounding
        question = ask("floats", otherwise, case([1], value=[-1.0]), case([1], value=[-1.0 - far]))
        assert verdict_of(group(rows=2), question)[0] == verdict
    for numbers in ([-1.012, -2.012], [-1.0078125, -2.015625]):  # as bfloat16 holds them
        rounded = case([1], value=[-1.0123456, -2.0123456, 1.0]), case([1], value=[*numbers, 1.0])
        cause = "value" if numbers[0] == -1.012 else "numeric.shift"
        assert verdict_of(group(), ask("floats", otherwise, *rounded))[:2] == ("DRIFT", cause), "by the code"
        rounded = rounded[::-1]
        assert verdict_of(group(), ask("floats", otherwise, *rounded))[0] == "NEAR-TIE", "more digits were lost by none"


@pytest.mark.parametrize(("far", "name"), [(0.05, "numeric.shift"), (1.0, "value")])
def test_float32_numbers_that_part_as_far_as_the_paths_do_are_the_models(far: float, name: str) -> None:
    """Of so few tokens the site cannot tell."""
    otherwise = ("DRIFT", Cause("value", "likely", "value"), ())
    row = {**OLD.rows[0], "model": {"path": "m", "dtype": "float32"}}
    sides = [Case("s", "c", rows=(row,), value=[value]) for value in (-1.0, -1.0 - far)]
    assert verdict_of(group(rows=2), ask("floats", otherwise, *sides))[:2] == ("DRIFT", name)


def test_a_near_tie_does_not_hide_numbers_that_lost_their_bits() -> None:
    made, old = group(gap=0.01), dataclasses.replace(OLD, value=[-1.0123456, "a"])
    for number, verdict in ((-1.0123999, "NEAR-TIE"), (-1.0078125, "DRIFT")):  # as bfloat16 holds it
        assert verdict_of(made, ask(old=old, new=dataclasses.replace(NEW, value=[number, "b"])))[0] == verdict


def test_a_penalty_is_put_on_the_ids_that_it_was_on() -> None:
    """Id 2 stood in the prompt: after the penalty, what the raw gap forbids is a tie."""
    old, new = (dataclasses.replace(c, rows=({**c.rows[0], "prompt_ids": [5, 2]},)) for c in (OLD, NEW))
    made = group(gap=1.5, old=(-1.0, -2.5), new=(-1.0, -2.5))
    [step] = steps_of(old, new)
    penalty = dataclasses.replace(step, penalty=4.0, seen=frozenset({5, 2, 1}))  # logits 2 and 0.5
    assert verdict_of(dataclasses.replace(made, steps={("c", 0): step}), ask(old=old, new=new))[0] == "DRIFT"
    assert verdict_of(dataclasses.replace(made, steps={("c", 0): penalty}), ask(old=old, new=new))[0] == "NEAR-TIE"


def test_all_rows_of_a_site_are_read_and_equal_ones_once(tmp_path: Path) -> None:
    store, model = Store(tmp_path), {"path": "m", "dtype": "bfloat16"}
    for name, ids in (("a", [1, 2]), ("b", [1, 2]), ("c", [3, 4])):
        rows = tuple({"prompt_ids": [5, 6], "output_ids": ids, "model": model} for _ in range(2))
        store.write(Case("s", name, rows=rows, value="x"))
    made = Group("s", "hf", "m", model, {})
    made.fill(store)
    assert [row.ids for row in made.rows] == [(5, 6, 1, 2), (5, 6, 3, 4)]


def test_without_the_weights_nothing_is_judged(tmp_path: Path) -> None:
    """A golden from another machine: exit 3, and it says which checkpoint is missing."""
    store, model = Store(tmp_path), {"path": "models/gone", "dtype": "bfloat16", "backend": "hf"}
    old, new = (dataclasses.replace(c, rows=({**c.rows[0], "model": model},)) for c in (OLD, NEW))
    store.write(old)
    asked = Numerics(store)
    asked.ask(ask(old=old, new=new))
    asked.read("s", "vllm", {"c": [Reads()]})
    [outcome], [numerics] = Pending(store, asked).settle([Outcome("s", "c", "vllm", "ERROR")]), asked.told()
    assert Check((outcome,)).exit_code == 3 and outcome.cause is not None
    assert "'models/gone' is not on this machine" in outcome.cause.sentence
    assert numerics.outcome == "could not judge" and numerics.picture == {}


def test_a_foreign_engine_that_no_recording_can_load_again_is_said(tmp_path: Path) -> None:
    model = {"path": "m", "dtype": "bfloat16", "backend": "vllm", "quantization": "awq"}
    store = Store(tmp_path)
    old, new = (dataclasses.replace(c, rows=({**c.rows[0], "model": model},)) for c in (OLD, NEW))
    store.write(old)
    asked = Numerics(store)
    asked.ask(ask(old=old, new=new))
    asked.read("s", "vllm", {})
    [outcome] = Pending(store, asked).settle([Outcome("s", "c", "vllm", "ERROR")])
    assert outcome.verdict == "ERROR" and outcome.cause is not None
    assert "no engine of the moved code is left to ask" in outcome.cause.sentence


class GenEngineError(Exception): ...


class EngineError(GenEngineError): ...


class Reads:
    """An engine as far as it is read here; `GenEngineError` stands beside it, as in gen_engine.py."""

    backend, config = SimpleNamespace(name="vllm"), SimpleNamespace(model="models/m")

    def __init__(self, dtype: str = "bfloat16") -> None:
        self.checkpoint, self.asked = SimpleNamespace(window=None, dtype=dtype), list[Any]()

    def score_batch(self, items: Any) -> list[Any]:
        self.asked += items
        return [SimpleNamespace(logprobs=[-1.0] * len(answer)) for _, answer in items]

    def generate_text_batch(self, requests: Any, options: Any, **how: Any) -> list[Any]:
        return [SimpleNamespace(token_ids=[9] * options["max_new_tokens"]) for _ in requests]

    def tokenizer(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1 + ord(letter) % 500 for letter in text]}


def test_rows_that_only_read_their_prompts_say_why_nothing_is_measured(tmp_path: Path) -> None:
    numerics = Numerics(Store(tmp_path))
    numerics.groups.append(Group("s", "hf", "m", {"dtype": "bfloat16"}, {}))
    numerics.judge()
    assert "choose and score no token" in numerics.groups[0].why


def test_of_a_case_that_asks_two_models_the_one_whose_rows_part_is_read(tmp_path: Path) -> None:
    """By the engine that ran it, and over rows of that model alone."""
    store, exact, half = Store(tmp_path), {"path": "m", "dtype": "float32"}, {"path": "m", "dtype": "bfloat16"}
    sides = []
    for ids in ([1, 2, 3], [1, 9, 9]):
        first, second = case([1, 2, 3], ids).rows
        sides.append(dataclasses.replace(OLD, rows=({**first, "model": exact}, {**second, "model": half})))
    old, new = sides
    store.write(old)
    place = place_of(old, new, "parted")
    assert place == 1 and place_of(old, old, "floats") is None, "of equal ids the numbers may be any model's"
    numerics = Numerics(store)
    numerics.ask(dataclasses.replace(ask(old=old, new=new), place=1))
    engines = [Reads("float32"), Reads("bfloat16"), Reads("float32")]
    assert numerics.wants(old, "vllm", {}) and not numerics.wants(old, "vllm", {"c": engines})
    numerics.read("s", "vllm", {"c": engines})
    [made] = numerics.groups
    assert made.dtype == "bfloat16" and [*made.places] == [("c", 1)] and made.why == ""
    assert [len(engine.asked) > 0 for engine in engines] == [False, True, False]


def test_where_a_goldens_adapter_is_is_known_of_the_moved_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden holds its fingerprint; the moved code, the folder that its request asked for."""
    monkeypatch.setitem(models.FOLDERS, "tuned", {str(tmp_path)})
    [plain], went, asked = OLD.rows, {"inputs": {"adapters": ["1f"]}}, {"request": {"adapter": "tuned"}}

    def side(*said: Any) -> Case:
        model = {"path": "m", "dtype": "bfloat16"}
        return dataclasses.replace(OLD, rows=tuple({**plain, "model": model, **one} for one in said))

    def adapters(old: Any, new: Any) -> str | None:
        return weights_of(side(old), side(new), 0).adapter

    assert adapters({}, {}) == "" and adapters(went, asked) == adapters(asked, asked) == str(tmp_path)
    assert adapters(went, went) is None, "code without gen_engine"
    assert adapters({"inputs": {"adapters": ["1f", "2e"]}}, asked) is None, "of two it is not known which"
    assert adapters(went, {"request": {"adapter": "gone"}}) is None
    assert place_of(side({}, went), side({}, {**went, "output_ids": [9]}), "parted") == 1
    assert place_of(side({}, went), side({"output_ids": [9]}, {"output_ids": [9]}), "parted") is None
    store, old, new = Store(tmp_path), side({}, went), side({}, {**went, "output_ids": [1, 9, 9]})
    store.write(old)
    for side_of_new, why in ((new, weights.NO_ADAPTER), (side({}, {**new.rows[1], **asked}), "")):
        numerics = Numerics(store)
        numerics.ask(dataclasses.replace(ask(old=old, new=side_of_new), place=1))
        numerics.read("s", "vllm", {})
        [made] = numerics.groups
        assert (made.why, made.adapter, [*made.places]) == (why, "" if why else str(tmp_path), [("c", 1)])


@pytest.mark.parametrize(
    ("dtype", "now", "verdict"),
    [
        ("float32", [-1.25], "DRIFT"),
        ("float32", [-1.0003], "ERROR"),  # as far as a sum of four tokens may round
        ("bfloat16", [-1.25], "ERROR"),
    ],
)
def test_numbers_of_several_models_are_judged_beyond_any_rounding_of_float32(
    dtype: str, now: list[float], verdict: str
) -> None:
    """A policy and its reference have no numerics in common; what is read of neither explains a quarter of a nat."""
    model = {"path": "m", "dtype": dtype}
    read = {"prompt_ids": [1, 2], "output_ids": [], "scored": True, "model": model}
    rows = (read, {**read, "inputs": {"keys": [], "adapters": ["f5"]}})
    old, new = (Case("s", "c", rows=rows, value=value) for value in ([-1.0], now))
    numerics, samples_of = SimpleNamespace(always=False), SimpleNamespace(backend="hf")
    findings: Any = SimpleNamespace(numerics=numerics, old=old, new=new, samples=samples_of)
    judged: Any = ("DRIFT", Cause("value", "confirmed", ""), ())
    assert ask_numerics(findings, judged)[0] == verdict
