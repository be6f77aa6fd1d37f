"""Draws judged by themselves: exact on made-up distributions, and on real draws of both backends, right and wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gen_engine
from parity.goldens.store import Case, Store
from parity.goldens.verdict import Outcome
from parity.judge.check import check_sites
from parity.judge.numerics import surprise
from parity.judge.numerics.processed import SORTED, cut_top_k, cut_top_p, declared_settings, processed_logits
from parity.judge.numerics.samples import Samples, judge_golden, settle_samples
from parity.judge.numerics.weights import lends_adapter
from parity.judge.replay import ANSWERS, Engines, Replay
from parity.judge.session import Session
from parity.judge.site import Pending, check_site
from parity.proof.callsites.inference_module import old as old_way
from parity.proof.site_mutations import replaced
from parity.record.observe import Observer, Site, case
from parity.tests.conftest import ROOT, TEXT, Load

VOCABULARY = 40


def row(ids: list[int], seed: int | None = 0, **sampling: Any) -> dict[str, Any]:
    said = {"temperature": 1.0, **sampling}
    values = {name: {"value": value, "from": "caller"} for name, value in said.items()}
    own = {"seed": {"value": seed, "from": "caller"}} if seed is not None else {}
    return {"prompt_ids": [1, 2], "output_ids": ids, "sampling": {**values, **own}, "model": {"dtype": "float32"}}


def made(count: int, *, tokens: int = 60, sure: float = 2.0, factor: float = 1.0, **sampling: Any) -> list[Any]:
    """Rows that are drawn from logits times `factor`, judged as if it were 1."""
    import torch

    torch.manual_seed(0)
    found = []
    for seed in range(count):
        logits = sure * torch.randn(tokens, VOCABULARY)
        own = row([], seed, **sampling)
        for step in range(tokens):
            scores = processed_logits(logits[step : step + 1] * factor, own, declared_settings(own), step)
            own["output_ids"].append(int(torch.multinomial(scores.softmax(-1), 1)))
        found.append(surprise.sample_of(own, logits, ("request", seed)))
    return found


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.7}, {"top_k": 5, "top_p": 0.9}, {"repetition_penalty": 1.2}]
)
def test_clean_draws_hold_and_power_is_said(sampling: dict[str, Any]) -> None:
    found = surprise.evidence_of(made(16, **sampling))
    assert not found.is_fault and abs(found.z) < 3.5
    assert found.can_tell and 1 < found.power < 1.5 and f"wrong by {found.power:.2f}×" in found.sentence()


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_a_wrong_temperature_is_seen_and_the_one_that_fits_is_named(factor: float) -> None:
    found = surprise.evidence_of(made(16, factor=factor))
    assert found.is_fault and abs(found.z) > 5 and found.fault.startswith("temperature")


def test_one_seed_for_all_rows_is_one_draw_and_not_many() -> None:
    samples = [dataclasses.replace(sample, stream=("request", 7)) for sample in made(16, factor=1.5)]
    assert surprise.evidence_of(samples).power > surprise.evidence_of(made(16, factor=1.5)).power


def test_clean_draws_of_a_sure_model_raise_no_alarm_and_tell_nothing() -> None:
    found = [surprise.evidence_of(made(4, tokens=20, sure=30.0 + k)) for k in range(20)]
    assert not any(evidence.is_fault for evidence in found)
    assert not any(evidence.can_tell for evidence in found)
    assert "cannot tell, needs about " in found[0].sentence()


def test_a_rare_token_is_no_fault_though_its_z_is_large() -> None:
    """One token of probability 1e-4 in 40: z is 14, and by chance that is one run in 250."""
    import torch

    logits = torch.zeros(40, 2)
    logits[:, 1] = math.log(1e-4)
    sample = surprise.sample_of(row([0] * 39 + [1]), logits, ("request", 0))
    evidence = surprise.evidence_of([sample])
    assert evidence.z > 10 and not evidence.is_fault


def test_what_cannot_be_drawn_is_a_fault_at_once_and_rounding_is_not() -> None:
    import torch

    logits = torch.tensor([[3.0, 2.0, 1.0, 1.0 - 1e-5]])
    of = {k: surprise.evidence_of([surprise.sample_of(row([k], top_k=3), logits, ("request", 0))]) for k in range(4)}
    assert not any(of[k].is_fault for k in (0, 1, 2, 3))  # 2 and 3 are equal but for rounding
    wrong = surprise.evidence_of([surprise.sample_of(row([3], top_k=2), logits, ("request", 0))])
    assert wrong.is_fault and "cannot be sampled" in wrong.sentence()


def test_early_ends_that_were_held_back_have_no_chance() -> None:
    import torch

    asked = {
        **row([0, 0]),
        "stop": {"end_ids": {"value": [1], "from": "caller"}, "min_new_tokens": {"value": 2, "from": "caller"}},
    }
    scores = processed_logits(torch.zeros(2, 4), asked, declared_settings(asked))
    assert scores[:, 1].tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])  # nearly even: more tokens than are sorted at first
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_cut_top_p_keeps_what_transformers_keeps(spread: float, share: float) -> None:
    import torch
    from transformers.generation.logits_process import TopPLogitsWarper

    scores = spread * torch.randn(8, 2 * SORTED, generator=torch.Generator().manual_seed(3))
    ours = cut_top_p(scores, share)
    theirs = TopPLogitsWarper(share)(None, scores)
    apart = (ours != theirs) * scores.softmax(-1)
    assert apart.sum(-1).max() < 1e-4  # at the share itself sums round by processor


def test_cut_top_p_treats_equal_chances_alike() -> None:
    import torch

    [kept] = cut_top_p(torch.tensor([[3.0, 1.0, 1.0, 1.0, -9.0]]), 0.85).isfinite().tolist()
    assert kept == [True, True, True, True, False]


def test_a_leaked_cut_is_seen_though_surprise_hardly_moves() -> None:
    import torch

    torch.manual_seed(1)
    samples = []
    for seed in range(16):
        logits = 1.5 * torch.randn(40, 200)
        cut = cut_top_k(logits, 50, 0.0).softmax(-1)
        asked = row(torch.multinomial(cut, 1)[:, 0].tolist(), seed)
        samples.append(surprise.sample_of(asked, logits, ("request", seed)))
    found = surprise.evidence_of(samples)
    assert found.is_fault and found.fault == "top_k 50"


def test_one_sample_given_n_times_is_a_fault_and_sure_samples_may_be_equal() -> None:
    [sample, *_] = made(1)
    copies = [dataclasses.replace(sample, stream=("request", k)) for k in range(3)]
    assert surprise.evidence_of(copies).is_fault and surprise.evidence_of(copies).fault == surprise.COPY
    assert surprise.evidence_of(copies, count_copies=False).fault != surprise.COPY
    [sure, *_] = made(1, sure=200.0)
    assert not surprise.evidence_of([dataclasses.replace(sure, stream=("request", k)) for k in range(20)]).is_fault


@pytest.mark.parametrize(
    ("golden_is_copied", "count_copies", "is_fault"),
    [
        (False, True, True),
        (False, False, False),  # fewer answers are given, to a prompt that may be asked several times with one seed
        (True, True, False),  # the old code gave copies, too
    ],
)
def test_samples_judge_copies_of_one_draw(
    golden_is_copied: bool, count_copies: bool, is_fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = made(3)
    copies = [dataclasses.replace(drawn[0], stream=("request", k)) for k in range(3)]
    old, new = (Case("s", name, rows=(row([1]), row([1]), row([1]))) for name in ("old", "new"))
    known = {"old": copies if golden_is_copied else drawn, "new": copies}
    samples = Samples(Store(tmp_path), "hf", lambda: None, None, {})
    monkeypatch.setattr(samples, "samples_of", lambda old, new, case: known[case.case])
    monkeypatch.setattr(samples, "judge_following", lambda *_: ("SAME-SETTINGS", None, ()))
    verdict, cause, _ = samples.judge(old, new, count_copies=count_copies)
    assert (verdict == "DRIFT") is is_fault
    assert cause is None or (cause.name == "sampling.seed" and "copies" in cause.sentence)


def test_a_level_is_kept_over_many_clean_runs() -> None:
    alarms = 0
    import torch

    for run in range(60):
        torch.manual_seed(run)
        logits = 2 * torch.randn(30, VOCABULARY)
        ids = torch.multinomial(logits.softmax(-1), 1)[:, 0].tolist()
        alarms += surprise.evidence_of([surprise.sample_of(row(ids), logits, ("request", 0))]).is_fault
    assert alarms == 0


def test_cases_of_a_site_are_judged_together_once_each() -> None:
    ledger = surprise.Ledger(4)
    samples = made(16, tokens=12, factor=1.35)
    for k in range(4):
        ledger.samples[f"case-{k}"] = samples[4 * k : 4 * k + 4]
    whole = ledger.together()
    assert whole is not None and whole.tokens == 16 * 12
    ledger.samples["the same again"] = samples[:4]
    assert ledger.together() == whole
    assert abs(whole.z) > max(abs(surprise.evidence_of(s, ledger.alpha).z) for s in list(ledger.samples.values())[:1])


# == Real draws ==

PROMPTS = [f"Name {k} things that are {how}." for k in range(2, 6) for how in ("red", "old")]
MOVED = "parity.proof.callsites.inference_module.moved"
ASKED = {"max_new_tokens": 24, "num_samples": 2, "seed": 5}


@pytest.fixture(scope="module")
def unsure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with random weights: entropy of some nats at every step."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("models") / "unsure"
    shutil.copytree(TEXT, folder)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(TEXT, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_(0, 1.0)
        model.get_output_embeddings().weight.normal_(0, 0.25)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [552, 550]}))
    return folder


@pytest.fixture(scope="module")
def goldens(unsure: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("goldens"))
    found: list[Case] = []
    site = Site("samples", "parity.proof.callsites.inference_module.old:generate")
    with Observer(sites=[site], sink=found.append, store=store):
        for temperature in (0.7, 1.0):
            with case(f"at-{temperature}"):
                old_way.generate(str(unsure), PROMPTS, temperature=temperature, **ASKED)
        with case("one-each"):
            old_way.generate(str(unsure), PROMPTS, temperature=1.0, **{**ASKED, "num_samples": 1})
    for one in found:
        store.write(one)
    whole = Store(ROOT / "golden").settings()["inference_module"]
    store.set_site("samples", **{**whole, "moved": {site.module: MOVED}})
    return store


@contextlib.contextmanager
def scores_changed(change: Any) -> Iterator[None]:
    """On both backends, where no declared setting shows it: transformers' logits before the processors, vLLM's too."""
    from vllm.v1.sample.sampler import Sampler

    original, apply = gen_engine.DecodeLoop._choose, Sampler.apply_temperature

    def choose(loop: Any, scores: Any) -> Any:
        return original(loop, change(scores, loop.options.temperature or 1.0))

    def tempered(logits: Any, temperature: Any, *rest: Any) -> Any:
        return change(apply(logits, temperature, *rest), float(temperature[0]))

    with (
        replaced(gen_engine.DecodeLoop, "_choose", choose),
        replaced(Sampler, "apply_temperature", staticmethod(tempered)),
    ):
        yield


def top_50(scores: Any, _: float) -> Any:
    return scores.masked_fill(scores < scores.topk(50).values[:, -1:], -math.inf)


FAULTS = {
    "temperature applied twice": lambda scores, t: scores / t,
    "softmax(1.5 x)": lambda scores, t: scores * 1.5,
    "leaked top_k": top_50,
}


def judged(store: Store, backend: str, case: str, moved: str = MOVED) -> Outcome:
    settings = {**store.settings()["samples"], "moved": {old_way.__name__: moved}}
    with Session(store, {f"{moved}:generate": "samples"}) as session:
        pending = Pending.of(store)
        found = list(check_site(session, "samples", [case], backend, settings, pending))
        [outcome] = settle_samples(found, pending.ledgers)
    print(outcome.case, backend, outcome.verdict, outcome.cause and outcome.cause.sentence, outcome.notes)
    return outcome


@pytest.mark.parametrize("name", ["at-0.7", "at-1.0", "one-each"])
def test_clean_draws_of_both_backends_pass(name: str, goldens: Store, backend: str) -> None:
    outcome = judged(goldens, backend, name)
    assert outcome.verdict == "SAME-DISTRIBUTION", outcome
    assert "they follow the declared settings" in outcome.notes[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_draws_of_both_backends_are_drift(fault: str, goldens: Store, backend: str) -> None:
    with scores_changed(FAULTS[fault]):
        outcome = judged(goldens, backend, "at-0.7")
    assert outcome.verdict == "DRIFT" and outcome.cause is not None
    assert str(outcome.cause) == "sampling.draws; confirmed", outcome.cause


def test_one_sample_given_n_times_is_named(goldens: Store, backend: str) -> None:
    original = gen_engine.samples_of
    with replaced(gen_engine, "samples_of", lambda prompt, plan: original(prompt, plan)[:1] * plan.options.n):
        outcome = judged(goldens, backend, "at-1.0")
    assert outcome.verdict == "DRIFT" and outcome.cause is not None and outcome.cause.name == "sampling.seed", outcome


CUTTING = """
from parity.proof.callsites.inference_module import moved

def generate(*given, **named):
    answer = moved.generate(*given, **named)
    return {**answer, "texts": [text[:-1] for text in answer["texts"]]}
"""


CLOSING = """
from parity.proof.callsites.inference_module import moved

def generate(model_path, prompts, **options):
    module = moved.create_inference_module(model_path)
    answer = module.generate(prompts, **options)
    module.engine.close()
    moved.engine.cache_clear()
    return answer
"""


def test_draws_of_an_engine_that_the_moved_code_has_closed_are_judged(
    goldens: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closing.py").write_text(CLOSING)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = judged(goldens, "hf", "at-1.0", moved="closing")
    assert outcome.verdict == "SAME-DISTRIBUTION", outcome


def test_what_becomes_of_other_draws_is_seen_on_the_goldens_own_ids(
    goldens: Store, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cutting.py").write_text(CUTTING)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = judged(goldens, backend, "one-each", moved="cutting")
    assert outcome.verdict == "DRIFT" and str(outcome.cause) == "value; likely", outcome
    assert "the golden's ids were forced, to see what the new code makes of them" in outcome.steps


def test_a_golden_that_could_not_have_been_drawn_cannot_be_judged(goldens: Store, tmp_path: Path) -> None:
    store = Store(tmp_path / "golden")
    old = goldens.read("samples", "at-1.0")
    rows = [{**row, "sampling": {**row["sampling"], "top_k": {"value": 1, "from": "caller"}}} for row in old.rows]
    store.write(dataclasses.replace(old, rows=tuple(rows), arguments={**old.arguments, "top_k": 1}))
    store.set_site("samples", **goldens.settings()["samples"])
    check = check_sites(store, backends=("hf",))
    assert [o.verdict for o in check.outcomes] == ["ERROR"] and check.exit_code == 3
    assert "cannot be sampled" in str(check.outcomes[0].cause and check.outcomes[0].cause.sentence)


@pytest.mark.parametrize(
    ("golden", "new", "is_lent"),
    [
        ({"inputs": {"adapters": ["f2ebaeb6"]}}, {"request": {"adapter": "adapters/one"}}, True),
        ({"inputs": {"adapters": ["f2ebaeb6"]}}, {}, False),
        ({"request": {"adapter": "adapters/two"}}, {"request": {"adapter": "adapters/one"}}, False),
        ({}, {"request": {"adapter": "adapters/one"}}, False),
    ],
)
def test_a_golden_under_an_adapter_that_only_the_new_code_names_is_not_blamed(
    golden: dict[str, Any], new: dict[str, Any], is_lent: bool
) -> None:
    """A stranger's adapter, exchanged for another, was `error; confirmed: ... record it again`."""
    cases = [Case("s", "c", "f:f", {}, rows=(row([5]) | one,)) for one in (golden, new)]
    assert lends_adapter(*cases) == is_lent
    beside = dataclasses.replace(cases[0], rows=(*cases[0].rows, row([6])))
    assert not lends_adapter(beside, cases[1]), "a row without an adapter may be the one that cannot be"
    evidence: Any = SimpleNamespace(sentence=lambda: "token 1 of row 0 cannot be sampled")
    verdict, cause, _ = judge_golden(evidence, is_loop=False, has_lent_adapter=is_lent)
    assert cause is not None and "token 1 of row 0" in cause.sentence
    expected = ("DRIFT", "model.adapters", "likely") if is_lent else ("ERROR", "error", "confirmed")
    assert (verdict, cause.name, cause.certainty) == expected


def test_ids_are_forced_up_to_the_new_stop_where_a_criterion_kept_the_row(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    asked = [{"prompt": "The"}], {"max_new_tokens": 24, "stop": ["."], "temperature": 1.0}
    ids = tuple(engine.tokenizer.encode("1, 2. 3, 4"))
    answer = {"prompt_ids": [0], "output_ids": list(ids)}
    own = {**answer, "stop": {"criteria": {"value": ["Own"], "from": "caller"}}}
    with contextlib.closing(Engines()) as engines:
        replay = Replay(engines, put_back=frozenset({ANSWERS}), rows=[own])
        [result] = replay.call(type(engine).generate_text_batch, engine, *asked)
        assert (result.text, result.stop_reason) == ("1, 2", ".") and ids[: len(result.token_ids)] == result.token_ids
        replay = Replay(engines, put_back=frozenset({ANSWERS}), rows=[{**answer, "stop": {}}])
        with pytest.raises(gen_engine.RequestError, match="the options end a replay"):
            replay.call(type(engine).generate_text_batch, engine, *asked)
