"""Where old and new are the same backend, release, dtype and device, equal seeds give equal ids."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from parity.goldens.store import Case, Store, environment
from parity.goldens.verdict import Outcome
from parity.judge import case as check
from parity.judge.comparison import Comparison
from parity.judge.numerics import samples, seeds
from parity.judge.numerics.processed import declared_settings, processed_logits
from parity.judge.numerics.samples import settle_samples
from parity.judge.replay import Engines, Replay
from parity.judge.session import Session
from parity.judge.site import Pending, check_site
from parity.proof.site_mutations import replaced
from parity.record.assemble import with_script_seed
from parity.record.observe import Observer, Site, case, load_function
from parity.tests.conftest import ROOT, SMALL

from .test_draws import PROMPTS, row

UNSURE = ROOT / "golden/models/random-llama"  # never sure of the next token
OLD_HF = """
import torch, transformers

def ask(model_path, prompts, seed):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    texts = []
    for prompt in prompts:
        transformers.set_seed(seed)
        given = tokenizer(prompt, return_tensors="pt")
        how = {"do_sample": True, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
        [ids] = model.generate(**given, **how, max_new_tokens=16)
        texts.append(tokenizer.decode(ids[given["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts
"""
OLD_VLLM = """
import vllm

LOADED = {}

def ask(model_path, prompts, seed):
    if model_path not in LOADED:
        LOADED[model_path] = vllm.LLM(
            model_path, dtype="float32", max_model_len=512, num_gpu_blocks_override=96, max_num_seqs=64,
            enforce_eager=True, generation_config="vllm",
        )
    how = vllm.SamplingParams(temperature=1.5, seed=seed, max_tokens=16)
    return [one.outputs[0].text for one in LOADED[model_path].generate(prompts, how)]
"""
NEW = """
from gen_engine import load

LOADED = {}

def ask(model_path, prompts, seed):
    if model_path not in LOADED:
        LOADED[model_path] = load(model_path, dtype="float32", max_model_len=512)
    how = {"temperature": 1.5, "seed": seed, "max_new_tokens": 16}
    return [one.text for one in LOADED[model_path].generate_text_batch([{"prompt": p} for p in prompts], how)]
"""


@pytest.fixture
def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the old and the new code, which can be imported."""
    lost = NEW.replace('"seed": seed, ', "")
    for name, code in {"seeds_hf": OLD_HF, "seeds_vllm": OLD_VLLM, "seeds_new": NEW, "seeds_lost": lost}.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def recorded(module: str, backend: str, folder: Path, seed: int = 7) -> Store:
    """A golden of `ask` of one of these modules."""
    store, found, site = Store(folder / "golden"), list[Any](), Site("seeds", f"{module}:ask")
    with contextlib.closing(Engines()) as engines:
        replay = Replay(engines, {"backend": backend}, {backend: SMALL[backend]})
        with Observer(sites=[site], sink=found.append, store=store) as observer, case("one"):
            observer.replay = replay
            load_function(site.function)(str(UNSURE), PROMPTS[:4], seed)
            for engine in list(observer.opened):
                engine.close()
    fingerprint = store.put_environment(environment())
    for one in found:
        store.write(dataclasses.replace(one, environment=fingerprint))
    store.set_site("seeds", functions=[site.function], load={backend: SMALL[backend]})
    return store


def judged(store: Store, backend: str, moved: str = "seeds_new") -> Outcome:
    function = store.read("seeds", "one").function
    settings = {**store.settings()["seeds"], "moved": {function: f"{moved}:ask"}}
    with Session(store, {f"{moved}:ask": "seeds"}) as session:
        pending = Pending.of(store)
        found = list(check_site(session, "seeds", ["one"], backend, settings, pending))
        [outcome] = settle_samples(found, pending.ledgers)
    return outcome


@contextlib.contextmanager
def every_seed_moved() -> Iterator[None]:
    """Where no declared setting shows it."""
    original: Callable[[Any], int] = gen_engine.Prompt.sampling_seed
    with replaced(gen_engine.Prompt, "sampling_seed", lambda prompt: original(prompt) + 1000):
        yield


@pytest.mark.parametrize(
    ("module", "on"), [("seeds_hf", "hf"), ("seeds_new", "hf"), ("seeds_new", "vllm"), ("seeds_vllm", "vllm")]
)
def test_an_equal_seed_gives_equal_ids_on_one_backend(module: str, on: str, codes: Path) -> None:
    store = recorded(module, on, codes)
    assert judged(store, on).verdict == "IDENTICAL"
    with every_seed_moved():
        outcome = judged(store, on)
    assert (outcome.verdict, outcome.cause and outcome.cause.name) == ("DRIFT", "sampling.seed"), outcome


@pytest.mark.parametrize(("dtype", "is_owed"), [("float32", True), ("bfloat16", False)])
def test_in_half_precision_an_equal_seed_owes_no_equal_ids_on_vllm(
    dtype: str, is_owed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain vLLM gives n samples of a request and n requests other ids there."""
    monkeypatch.setattr(samples, "is_recorded_here", lambda *_: True)

    def drawn(ids: list[int]) -> Case:
        said = {"temperature": 0.7, "seed": 3}
        sampling = {name: {"value": value, "from": "caller"} for name, value in said.items()}
        model = {"backend": "vllm", "dtype": dtype}
        row = {"prompt_ids": [1], "output_ids": ids, "sampling": sampling, "model": model, "request": {"seed": 3}}
        return Case("s", "c", rows=(row,))

    judge = samples.Samples(Store("golden"), "vllm", lambda: None, None, {})
    assert (judge.off_seed(drawn([4, 5]), drawn([4, 6])) is not None) is is_owed


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_that_is_lost_is_named(seed: int, codes: Path) -> None:
    """0 is a seed like others, and the one that most code takes."""
    outcome = judged(recorded("seeds_hf", "hf", codes, seed), "hf", "seeds_lost")
    assert (outcome.verdict, outcome.cause and outcome.cause.name) == ("DRIFT", "sampling.seed"), outcome


def test_the_seed_that_reaches_vllm_is_compared_with_the_goldens(codes: Path) -> None:
    store = recorded("seeds_hf", "hf", codes)
    clean = judged(store, "vllm")
    assert clean.verdict in ("SAME-DISTRIBUTION", "SAME-SETTINGS"), clean
    with every_seed_moved():
        outcome = judged(store, "vllm")
    assert (outcome.verdict, outcome.cause and outcome.cause.name) == ("DRIFT", "sampling.seed"), outcome
    assert "is 1007" in str(outcome.cause and outcome.cause.sentence)


def test_ids_of_a_seed_are_computed_as_torch_takes_them() -> None:
    import torch

    logits = torch.randn(30, 40, generator=torch.Generator().manual_seed(1)) * 2
    for settings in ({}, {"temperature": 0.7}, {"top_k": 5, "top_p": 0.9}):
        taken, own = torch.Generator().manual_seed(3), row([], 3, **settings)
        for step in range(30):
            scores = processed_logits(logits[step : step + 1], own, declared_settings(own), step)
            own["output_ids"].append(int(torch.multinomial(scores.softmax(-1), 1, generator=taken)))
        assert seeds.first_off_seed(own, logits, 3) is None
        assert seeds.first_off_seed(own, logits, 4) in range(4)


@pytest.mark.parametrize(
    ("said", "asked", "seed"),
    [
        ({"value": 7, "from": "process"}, None, 7),
        ({"value": 7, "from": "caller"}, {"seed": 8}, 8),
        ({"value": 0, "from": "nobody"}, None, None),
        ({"value": 0, "from": "script"}, None, None),
    ],
)
def test_a_rows_own_seed(said: dict[str, Any], asked: dict[str, Any] | None, seed: int | None) -> None:
    assert seeds.own_seed({"sampling": {"seed": said}, "request": asked}) == seed


def of_script(given: int | None, name: str = "one") -> Case:
    """A row whose script had given a seed before its call."""
    own = row([4, 5], None)
    sampling = {**own["sampling"], "seed": {"value": 0, "from": "script"}}
    [made] = with_script_seed([{**own, "sampling": sampling}], given)
    return Case("s", name, rows=(made,))


def of_engine(seed: int | None) -> Case:
    return Case("s", "one", rows=(row([4, 6], seed),))


@pytest.mark.parametrize(
    ("seeds", "new", "lost"),
    [
        ((7, 8), of_engine(None), 7),
        ((7, 8), of_engine(9), 7),
        ((7, 8), of_engine(7), None),
        ((7, 8), of_script(7), None),  # the whole script again
        ((7,), of_engine(None), None),
        ((7, None), of_engine(None), None),  # once, for all calls
    ],
)
def test_a_seed_before_each_call_of_a_script_is_the_calls(
    seeds: tuple[int | None, ...], new: Case, lost: int | None, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    for name, seed in zip(("one", "two"), seeds):
        store.write(of_script(seed, name))
    judge = check.Judge(store, "hf", lambda *_: None)
    found = list(judge.facts.seeds_of_the_script(Comparison(store.read("s", "one"), new)))
    assert [d.old for d in found] == ([lost] if lost else [])
