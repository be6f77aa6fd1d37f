"""Rounding is not a fault, and a fault is not rounding: errors with a known truth, and small real models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.diff import plants
from parity.judge.numerics import reading, referee
from parity.judge.numerics.errors import Reading, errors_of
from parity.judge.numerics.estimates import f_quantile, t_quantile
from parity.judge.numerics.noise import Noise, Parting, penalised, within_noise
from parity.judge.numerics.referee import judge
from parity.proof import checkpoints
from parity.tests.conftest import TEXT, VL, Load

Array = Any
BFLOAT16, FLOAT16, FLOAT32 = 0.05, 0.05 / 8, 2e-6  # nats of logit, on a flat model


def drawn(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def site(
    draw: np.random.Generator,
    rows: int = 24,
    steps: int = 64,
    *,
    size: float = BFLOAT16,
    new_size: float | None = None,
    alike: float = 0.5,
    fault: Callable[[int, Array], Array] | None = None,
    sure: float = 0.0,
) -> list[Reading]:
    """A site whose truth is known. alike: correlation of the two paths' errors.   fault(row, errors): new errors of it.
    sure: the share of steps at which the model is all but certain."""
    made = []
    for number in range(rows):
        reference = np.where(draw.random(steps) < sure, -1e-5, -draw.exponential(3.0, steps) - 0.3)
        common, own, other = draw.normal(size=(3, steps))
        old = size * (math.sqrt(alike) * common + math.sqrt(1 - alike) * own)
        new = (new_size or size) * (math.sqrt(alike) * common + math.sqrt(1 - alike) * other)
        new = fault(number, new) if fault else new
        worth = -np.expm1(reference)
        before, now = (reference + errors * worth for errors in (old, new))
        made.append(Reading(reference.tolist(), before.tolist(), now.tolist(), prompt=steps // 3))
    return made


def added(size: float, seed: int = 7) -> Callable[[int, Array], Array]:
    draw = drawn(seed)
    return lambda row, errors: errors + draw.normal(scale=size, size=len(errors))


def alarms(verdict: referee.Verdict) -> set[str]:
    return {estimate.name for estimate in verdict.seen}


# == Clean paths ==


def test_errors_of_the_same_size_hold_and_the_verdict_says_what_would_have_been_seen() -> None:
    verdict = judge(site(drawn()), dtype="bfloat16")
    assert verdict.outcome == "holds" and verdict.cause == "" and verdict.more == 0
    assert BFLOAT16 / 2 < verdict.sees < 2 * BFLOAT16
    assert "would have been seen" in str(verdict)
    assert judge(site(drawn(1), fault=added(1.5 * verdict.sees)), dtype="bfloat16").outcome == "shifted"


def flips(draw: np.random.Generator) -> Callable[[int, Array], Array]:
    """Experts that flip: in some rows one step errs by twenty sizes, and those after it by three."""

    def fault(row: int, errors: Array) -> Array:
        if draw.random() < 0.3:
            step = draw.integers(len(errors))
            errors[step:] += draw.normal(scale=3 * BFLOAT16, size=len(errors) - step)
            errors[step] += 20 * BFLOAT16
        return errors

    return fault


def test_no_alarm_on_four_hundred_clean_sites_of_all_kinds() -> None:
    draw, found = drawn(3), []
    for _ in range(100):
        rows, steps = int(draw.integers(2, 40)), int(draw.integers(3, 90))
        kinds = (
            site(draw, rows, steps, alike=float(draw.random())),
            site(draw, rows, steps, sure=0.9, size=FLOAT16),
            site(draw, rows, steps, size=FLOAT32, new_size=2e-5),
            heavy(draw, rows, steps),
        )
        found += [judge(kind, dtype="bfloat16").outcome for kind in kinds]
    assert found.count("shifted") == 0
    assert found.count("holds") > 150  # the float32 ones at least, and most of more than 600 tokens


def heavy(draw: np.random.Generator, rows: int, steps: int) -> list[Reading]:
    """Both paths flip experts, neither the same ones."""
    made = site(draw, rows, steps)
    kinds = flips(draw), flips(draw)
    sides = [[kind(k, np.array(side)).tolist() for k, side in enumerate(values)]
             for kind, values in zip(kinds, ([r.old for r in made], [r.new for r in made]))]  # fmt: skip
    return [dataclasses.replace(row, old=old, new=new) for row, old, new in zip(made, *sides)]


def test_one_huge_error_is_no_alarm() -> None:
    made = site(drawn(5))
    made[3] = dataclasses.replace(made[3], new=[*made[3].new[:10], -40.0, *made[3].new[11:]])
    assert judge(made, dtype="bfloat16").outcome == "holds"


def test_float32_paths_are_not_held_to_the_size_of_their_rounding() -> None:
    assert judge(site(drawn(), size=0.0 + 1e-9, new_size=2e-5), dtype="float32").outcome == "holds"
    assert judge(site(drawn(), size=2e-6, fault=added(1e-3)), dtype="float32").outcome == "shifted"


def test_where_a_model_is_sure_the_last_places_of_a_log_probability_are_no_shift() -> None:
    """A few-shot prompt repeats itself: its last third is nearly certain, and what float32 rounds in such a
    log-probability is large beside what the logit moves it by. The old path is the reference's own kernel."""
    draw, rows = drawn(5), []
    for _ in range(11):
        reference = np.concatenate([-draw.exponential(3.0, 80) - 0.3, -draw.exponential(5e-3, 40)])
        new = reference + draw.normal(scale=FLOAT32, size=120)
        rows.append(Reading(reference.tolist(), reference.tolist(), new.tolist(), prompt=110))
    verdict = judge(rows, dtype="float32")
    assert verdict.outcome == "holds", str(verdict)
    beyond = [
        dataclasses.replace(row, new=[(value or 0.0) + 1e-3 * draw.normal() for value in row.new]) for row in rows
    ]
    assert judge(beyond, dtype="float32").outcome == "shifted"


@pytest.mark.parametrize("along", ["bias", "scale", "probe"])
def test_an_effect_below_float32s_own_rounding_is_no_shift(along: str) -> None:
    """The old path and the reference are one kernel, and equal to the bit: there is no noise to compare with."""

    def tilted(effect: float, draw: np.random.Generator) -> list[Reading]:
        made = []
        for row in site(draw, size=0.0, new_size=2e-5):
            reference = np.array(row.reference)
            ways = {"bias": np.ones(64), "scale": reference + 3.3, "probe": draw.normal(size=64)}
            way = ways[along] / math.sqrt((ways[along] ** 2).mean())
            worth = -np.expm1(reference)
            now = np.array(row.new) + effect * way * worth
            probes = {"logits": (reference + 0.1 * ways["probe"] * worth).tolist()}
            made.append(dataclasses.replace(row, new=now.tolist(), probes=probes))
        return made

    assert judge(tilted(4e-5, drawn(5)), dtype="float32").outcome == "holds"
    assert judge(tilted(4e-4, drawn(5)), dtype="float32").outcome == "shifted"


def test_tokens_that_the_old_path_chose_are_biased_and_that_is_no_alarm() -> None:
    """The best of eight tokens of about the same logit is best because of the old path's error. The new one, with
    errors of its own, lies lower on it."""
    draw, made = drawn(11), []
    for _ in range(24):
        reference = -4 + draw.normal(scale=0.15, size=(64, 8))
        common, own, other = draw.normal(scale=BFLOAT16, size=(3, 64, 8)) / math.sqrt(2)
        best = (reference + common + own).argmax(1)[:, None]
        sides = [np.take_along_axis(reference + e, best, 1)[:, 0].tolist() for e in (0, common + own, common + other)]
        made.append(Reading(*sides))
    e = errors_of(made)
    assert (e.new - e.old).mean() < -0.15 * BFLOAT16
    assert judge(made, dtype="bfloat16").outcome != "shifted"


# == Faults ==


def test_a_fault_as_large_as_the_noise_is_an_alarm() -> None:
    verdict = judge(site(drawn(), fault=added(BFLOAT16)), dtype="bfloat16")
    assert verdict.outcome == "shifted" and "size" in alarms(verdict) and verdict.cause == "numeric.shift"
    assert verdict.worst is not None and str(verdict).startswith("shifted: size 1.4")


def test_a_bias_is_an_alarm_though_errors_have_the_same_size() -> None:
    made = site(drawn(), fault=lambda row, errors: errors + 0.45 * BFLOAT16)
    assert "bias" in alarms(judge(made, dtype="bfloat16"))


def test_a_fault_in_one_row_is_an_alarm_and_names_the_row() -> None:
    made = site(drawn(), rows=40, fault=lambda row, errors: errors * 60 if row == 17 else errors)
    verdict = judge(made, dtype="bfloat16")
    [row] = [estimate for estimate in verdict.seen if estimate.name == "row"]
    assert row.where == 17 and "of row 17" in str(row)


def test_a_fault_at_late_positions_is_an_alarm() -> None:
    made = site(drawn(), fault=lambda row, errors: np.where(np.arange(len(errors)) > 44, errors * 2.2, errors))
    assert "late" in alarms(judge(made, dtype="bfloat16"))


@pytest.mark.parametrize(
    ("golden", "size", "new", "new_size", "cause"),
    [
        ("bfloat16", BFLOAT16, "float16", FLOAT16, "model.dtype"),
        ("bfloat16", BFLOAT16, "float32", FLOAT32, "model.dtype"),
        ("float16", FLOAT16, "bfloat16", BFLOAT16, "numeric.shift"),  # or anything else of that size
    ],
)
def test_another_dtypes_size_is_told(golden: str, size: float, new: str, new_size: float, cause: str) -> None:
    verdict = judge(site(drawn(), size=size, new_size=new_size), dtype=golden)
    assert (verdict.outcome, verdict.like, verdict.cause) == ("shifted", new, cause)


def test_a_fault_of_half_the_noise_is_seen_along_its_probe_only_and_named() -> None:
    draw = drawn(2)
    made, direction = site(draw), draw.normal(scale=0.5 * BFLOAT16, size=(24, 64))
    probed = []
    for row, moved in zip(made, direction):
        worth = -np.expm1(np.array(row.reference))
        new = (np.array(row.new) + moved * worth).tolist()
        probe = (np.array(row.reference) + moved * worth).tolist()
        probed.append(dataclasses.replace(row, new=new, probes={"rope theta": probe}))
    verdict = judge(probed, dtype="bfloat16")
    assert alarms(verdict) == {"rope theta"} and verdict.like == "rope theta x 1.010"
    without = [dataclasses.replace(row, probes={}) for row in probed]
    assert judge(without, dtype="bfloat16").outcome != "shifted"


def test_numbers_that_are_none_are_errors_without_bound() -> None:
    made = [dataclasses.replace(row, new=[math.nan] * 64) for row in site(drawn(), rows=8)]
    assert judge(made, dtype="bfloat16").outcome == "shifted"


def test_where_a_model_is_sure_nothing_shows_and_the_rest_is_judged() -> None:
    assert judge(site(drawn(), sure=0.9), dtype="bfloat16").outcome != "shifted"
    assert judge(site(drawn(), rows=60, sure=0.9, fault=added(2 * BFLOAT16)), dtype="bfloat16").outcome == "shifted"


# == Prefixes that rows share ==


def beginning_alike(made: list[Reading], shared: int) -> list[Reading]:
    """The same rows behind one system prompt: as many first tokens as `shared` are those of the first row, and so are
    their errors, on both paths."""
    first, alike = made[0], []
    for number, row in enumerate(made):
        reference, old, new = ([*getattr(first, name)[:shared], *getattr(row, name)[shared:]] for name in SIDES)
        ids = [1, *range(100, 100 + shared), *(1000 * (number + 1) + k for k in range(len(row.reference) - shared))]
        alike.append(Reading(reference, old, new, prompt=row.prompt, ids=ids))
    return alike


SIDES = ("reference", "old", "new")


def test_errors_of_a_shared_system_prompt_are_one_row_of_evidence() -> None:
    """24 rows of which 40 tokens in 45 are the same: their one accidental shift is no shift of 24 rows."""
    draw, counted, repeated = drawn(8), [], []
    for _ in range(60):
        made = beginning_alike(site(draw, rows=24, steps=45, alike=0.0), 40)
        counted.append(judge(made, dtype="bfloat16").outcome)
        repeated.append(judge([dataclasses.replace(row, ids=()) for row in made], dtype="bfloat16").outcome)
    assert counted.count("shifted") == 0
    assert repeated.count("shifted") > 6  # what was wrong: each row had been evidence of its own


def test_a_shared_prefix_is_read_once_and_what_follows_in_every_row() -> None:
    verdict = judge(beginning_alike(site(drawn(), rows=24, steps=45), 25), dtype="bfloat16")
    assert verdict.noise.tokens == 25 + 24 * 20
    assert verdict.rows == 25  # the prefix, and the rows


def test_samples_of_one_prompt_share_it_and_no_more() -> None:
    made = site(drawn(), rows=2, steps=60)
    ids = [[1, *range(20), *range(100 * k, 100 * k + 40)] for k in (1, 2)]
    rows = [dataclasses.replace(row, ids=own) for row, own in zip(made, ids)]
    errors = errors_of(rows)
    assert len(errors.cluster) == 20 + 2 * 40 and len(errors.rows) == 3
    assert errors.rows[errors.cluster[-1]] == 1


def test_rows_that_read_other_parts_share_what_both_read() -> None:
    """The second row reads its answer only, behind the same prompt: nothing of it has been read before."""
    made = site(drawn(), rows=2, steps=60)
    whole = dataclasses.replace(made[0], ids=[1, *range(60)])
    reference, old, new = (getattr(made[1], name)[40:] for name in SIDES)
    part = Reading(reference, old, new, start=41, ids=[1, *range(40), *range(500, 520)])
    assert len(errors_of([part, whole]).cluster) == 20 + 60


def test_a_fault_that_befalls_all_rows_behind_a_shared_prefix_is_an_alarm() -> None:
    made = site(drawn(), rows=24, steps=45, fault=lambda row, errors: errors + 0.5 * BFLOAT16)
    assert judge(beginning_alike(made, 25), dtype="bfloat16").outcome == "shifted"


def test_ids_of_another_number_than_the_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="3 ids, expected 2"):
        Reading([-1.0], [-1.0], [-1.0], ids=[1, 2, 3])


def test_an_alarm_tells_its_effect_and_the_margin_in_nats() -> None:
    made = site(drawn(), fault=lambda row, errors: errors + 0.5 * BFLOAT16)
    [bias] = [estimate for estimate in judge(made, dtype="bfloat16").seen if estimate.name == "bias"]
    assert bias.effect == pytest.approx(0.5 * BFLOAT16, rel=0.2)
    assert bias.margin == pytest.approx(0.25 * BFLOAT16, rel=0.1)
    assert "an effect of 2." in str(bias) and "nats where 1." in str(bias)


# == Too little to tell ==


def test_few_tokens_cannot_tell_and_as_many_as_it_asks_for_can() -> None:
    few = judge(site(drawn(4), rows=3, steps=8, alike=0.2), dtype="bfloat16")
    assert few.outcome == "cannot tell" and few.more > 24 and f"{few.more} more answer tokens" in str(few)
    rows = math.ceil(1.5 * (few.more + 24) / 8)
    assert judge(site(drawn(4), rows=rows, steps=8, alike=0.2), dtype="bfloat16").outcome == "holds"


def test_one_row_is_never_enough() -> None:
    assert judge(site(drawn(), rows=1, steps=900), dtype="bfloat16").outcome == "cannot tell"
    nothing = judge([], dtype="bfloat16")
    assert nothing.outcome == "cannot tell" and "inf" not in str(nothing)


def test_a_gross_fault_shows_in_twenty_tokens_and_never_holds() -> None:
    def verdict(rows: int, steps: int = 12) -> referee.Verdict:
        return judge(site(drawn(), rows, steps, fault=lambda row, errors: errors * 80), dtype="bfloat16")

    assert {verdict(rows).outcome for rows in (2, 3, 4, 5, 6)} == {"shifted"}
    assert verdict(1).outcome == "cannot tell"
    alone = verdict(1, 24)
    assert alone.outcome == "shifted" and str(alone).startswith("shifted: gross") and "of 1 rows" in str(alone)
    assert alone.cause == "numeric.shift"


def test_rows_whose_experts_flip_are_no_gross_fault() -> None:
    """On the new path alone, and in every row."""
    draw, found = drawn(17), []
    for _ in range(200):
        made = site(draw, int(draw.integers(1, 4)), 60)
        new = []
        for row in made:
            errors = np.array(row.new) - np.array(row.reference)
            step = draw.integers(0, 10)
            errors[step:] += draw.normal(scale=3 * BFLOAT16, size=60 - step) * -np.expm1(np.array(row.reference))[step:]
            new.append(dataclasses.replace(row, new=(np.array(row.reference) + errors).tolist()))
        found += [estimate.name for estimate in judge(new, dtype="bfloat16").seen]
    assert "gross" not in found


def test_two_rows_that_agree_do_not_hold_where_no_fault_would_have_been_seen() -> None:
    verdicts = [judge(site(drawn(seed), rows=2, steps=80), dtype="bfloat16") for seed in range(40)]
    held = [verdict for verdict in verdicts if verdict.outcome == "holds"]
    assert len(held) <= 4  # by chance, at a level of 5 %
    assert all(verdict.sees <= referee.SEEN_TIMES * 1.1 * verdict.noise.old for verdict in held)
    assert any("only a fault of" in str(verdict) for verdict in verdicts)


def test_a_row_is_one_cluster() -> None:
    """A thousand steps that all err alike are one error, and four such rows no proof of a bias."""
    draw = drawn(6)
    made = site(draw, rows=4, steps=400, fault=lambda row, errors: errors + draw.normal(scale=0.5 * BFLOAT16))
    assert "bias" not in alarms(judge(made, dtype="bfloat16"))


def test_steps_that_a_path_did_not_read_are_left_out() -> None:
    made = site(drawn())
    cut = [dataclasses.replace(row, new=[*row.new[:-4], None, None, None, None]) for row in made]
    assert judge(cut, dtype="bfloat16").noise.tokens == 24 * 60


def test_without_float32_a_path_equal_to_the_old_one_holds() -> None:
    made = [dataclasses.replace(row, new=row.reference) for row in site(drawn())]
    assert judge(made, dtype="bfloat16", exact=False).outcome == "holds"
    assert "in the same dtype" in str(judge(made, dtype="bfloat16", exact=False))


def test_quantiles_are_those_of_the_tables() -> None:
    assert t_quantile(0.05, 10) == pytest.approx(2.2281, abs=1e-4)
    assert t_quantile(0.05, 1) == pytest.approx(12.7062, abs=1e-3)
    assert f_quantile(0.05, 4) == pytest.approx(9.6045, abs=1e-3)


# == Parting steps ==

NOISE = Noise(old=0.05, new=0.05, largest=0.25, tokens=1500)


def test_answers_may_part_where_the_two_candidates_are_close() -> None:
    assert within_noise(Parting((-1.0, -1.1), (-1.0, -1.1), (-1.05, -1.02)), NOISE).within


@pytest.mark.parametrize(
    ("parting", "fault"),
    [
        (Parting((-1.0, -3.0), (-1.0, -3.0), (-3.0, -1.0)), "model"),
        (Parting((-1.0, -1.1), (-3.0, -1.0), (-1.1, -1.0)), "old"),
        (Parting((-1.0, -1.1), (-1.0, -1.1), (-1.0, -3.0)), "new"),
        (Parting((-1.0, math.nan), (-1.0, -1.1), (-1.0, -1.0)), "model"),
    ],
)
def test_a_parting_beyond_the_noise_says_whose_choice_is_odd(parting: Parting, fault: str) -> None:
    assert within_noise(parting, NOISE).fault == fault


def test_what_noise_allows_follows_the_site() -> None:
    parting = Parting((-1.0, -1.1), (-1.0, -1.1), (-1.05, -1.02))
    assert not within_noise(parting, Noise(old=0.001, new=0.001, largest=0.005, tokens=1500)).within


def test_a_penalty_is_put_on_the_logit() -> None:
    assert penalised(-1.0, 3.0, 1.25) == pytest.approx(2.0 / 1.25 - 3.0)
    assert penalised(-5.0, 3.0, 1.25) == pytest.approx(-2.0 * 1.25 - 3.0)


# == Real models ==

SMALL = checkpoints.Shape(
    "small",
    "Qwen3Config",
    {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32, "tie_word_embeddings": True},
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoints.make(SMALL, "bfloat16", tmp_path_factory.mktemp("small")))


def some_rows(count: int = 16, length: int = 40) -> list[reading.TokenRow]:
    draw = drawn(1)
    sizes = draw.integers(length // 2, length, count)
    return [reading.token_row(draw.integers(0, 540, size).tolist(), [3, 5, 8]) for size in sizes]


def logprobs(scores: list[reading.Scored]) -> list[float]:
    return [value for row in scores for value in row.logprobs if value is not None]


def test_a_real_bfloat16_model_holds_against_its_eager_self_and_not_against_rounded_weights(small: str) -> None:
    rows = some_rows()
    with reading.Reader(small, "float32", device="cpu") as reader:
        truth = reader.read(rows)
        probes = reading.read_probes(reader, rows)
    with reading.Reader(small, "bfloat16", device="cpu") as reader:
        old = reader.read(rows, most_rows=4, side="left")
        with plants.rewritten(reader.model, plants.fp8):
            fp8 = reader.read(rows, most_rows=4, side="left")
    with reading.Reader(small, "bfloat16", device="cpu", attention="eager") as reader:
        eager = reader.read(rows, most_rows=4, side="left")

    def verdict(new: list[reading.Scored]) -> referee.Verdict:
        return judge(
            [
                Reading(a.logprobs, b.logprobs, c.logprobs, probes={name: p[k].logprobs for name, p in probes.items()})
                for k, (a, b, c) in enumerate(zip(truth, old, new))
            ],
            dtype="bfloat16",
        )

    assert set(probes) == {"rope theta", "attention scale", "logits"}
    assert verdict(eager).outcome == "holds" and verdict(fp8).outcome == "shifted"


def test_batches_padding_and_pieces_do_not_change_what_is_read(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows(7)
    with reading.Reader(small, "float32", device="cpu") as reader:
        plain = logprobs(reader.read(rows, most_rows=1))
        assert reader.head is not None
        for how in ({"most_rows": 4, "side": "left"}, {"most_rows": 3}, {}):
            assert logprobs(reader.read(rows, **how)) == pytest.approx(plain, abs=1e-4)
        reader.piece = 5
        assert logprobs(reader.read(rows)) == pytest.approx(plain, abs=1e-4)
        reader.head = None  # an architecture whose head could not be shown to be plain
        assert logprobs(reader.read(rows)) == pytest.approx(plain, abs=1e-4)


def test_a_candidate_is_read_as_if_it_stood_there(small: str) -> None:
    row = some_rows(1)[0]
    position = len(row.ids) - 2
    other = dataclasses.replace(row, ids=(*row.ids[:position], 77))
    with reading.Reader(small, "float32", device="cpu") as reader:
        [asked, stood] = reader.read([dataclasses.replace(row, others=((position, 77),)), other], most_rows=1)
    assert asked.others[0] == pytest.approx(stood.logprobs[-1], abs=1e-4)
    assert asked.normalizers[0] is not None


def test_an_engine_reads_the_same_and_no_further_than_its_window(shared: Load, backend: str) -> None:
    row = reading.token_row(range(20, 60), [3, 5, 8], others=((41, 77),))
    with reading.Reader(str(TEXT), "float32", device="cpu") as reader:
        [truth] = reader.read([row])
    engine = shared(TEXT, backend)
    window = engine.checkpoint.window
    assert window is not None
    long = reading.token_row([7] * (window - 2), [9, 9])
    [read, cut] = reading.read_engine(engine, [row, long])
    assert read.logprobs == pytest.approx(truth.logprobs, abs=1e-3)
    assert read.others == pytest.approx(truth.others, abs=1e-3)
    assert (cut.logprobs[-1] is None) == (backend == "vllm") and cut.logprobs[-2] is not None


def test_rows_with_pictures_are_read_on_both_sides(shared: Load, backend: str) -> None:
    from parity.models.tasks import drawing

    engine, picture = shared(VL, backend), drawing("red", "circle")
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "What do you see?"}]
    [said] = engine.generate_vlm_batch([{"messages": [{"role": "user", "content": content}]}])
    place = engine.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    row = reading.token_row(said.prompt_token_ids, said.token_ids, images=(picture,), placeholder=place)
    assert row.start == len(said.prompt_token_ids)
    with reading.Reader(str(VL), "float32", device="cpu") as reader:
        [truth] = reader.read([row])
    [read] = reading.read_engine(engine, [row])
    assert read.logprobs == pytest.approx(truth.logprobs, abs=1e-3)


def test_a_reference_that_does_not_fit_is_read_in_the_goldens_dtype_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_room(free: int) -> reading.Source:
        monkeypatch.setattr(reading, "free_bytes", lambda device: free)
        return reading.reference_source(str(TEXT), "bfloat16")

    count = reading.parameter_count(str(TEXT))
    assert count == pytest.approx(222_000, rel=0.05)
    source = with_room(100 * count)
    assert source.exact and source.dtype == "float32" and "float32" in source.note
    source = with_room(3 * count)
    assert not source.exact and (source.dtype, source.other) == ("bfloat16", "eager") and "does not fit" in source.note
    with pytest.raises(reading.CannotJudge, match="does not fit"):
        with_room(count)


def test_missing_weights_cannot_be_judged(tmp_path: Path) -> None:
    with pytest.raises(reading.WeightsMissing, match="not on this machine"):
        reading.Reader("nobody/has-this-model", "float32")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(reading.WeightsMissing, match="no safetensors"):
        reading.reference_source(str(tmp_path), "bfloat16")


def test_a_site_is_judged_from_an_engine_and_a_checkpoint(shared: Load) -> None:
    """The order of a check: the moved code's engine first; then the reference and the old path, by themselves."""
    engine = shared(TEXT, "hf", dtype="bfloat16")
    chats = [[{"role": "user", "content": f"Count to {n}."}] for n in range(3, 15)]
    answers = engine.generate_text_batch([{"messages": chat} for chat in chats], {"max_new_tokens": 48})
    rows = [
        reading.token_row(said.prompt_token_ids, said.token_ids, others=((len(said.prompt_token_ids), 7),) * 2)
        for said in answers
    ]
    new = reading.read_engine(engine, rows)
    reference = reading.read_reference(str(TEXT), "bfloat16", rows)
    made = reading.readings(reference, new, rows)
    verdict = judge(made, dtype="bfloat16")
    assert verdict.outcome == "holds" and made[0].prompt == len(answers[0].prompt_token_ids) - 1
    step = reading.parting_of(reference.truth[0], reference.old[0], new[0])
    assert within_noise(step, verdict.noise).within
    cut = dataclasses.replace(new[0], others=(None, None))
    with pytest.raises(reading.CannotJudge, match="window"):
        reading.parting_of(reference.truth[0], reference.old[0], cut)
