"""LoRA adapters: loaded once, named per request, mixed in a batch, the same on both backends and as in PEFT."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gen_engine import (
    Asked,
    GenerationEngine,
    LoadError,
    ModelLoadConfig,
    OptionError,
    Plugin,
    RequestError,
    UnsupportedError,
    installed,
    load,
    refusal_of,
)
from parity.models.tasks import text_tasks

from ..conftest import TEXT, Load, of_task, open_engine

TASKS = text_tasks(6)
OPTIONS = {"max_new_tokens": 16, "logprobs": 0}


def make_adapter(folder: Path, seed: int, rank: int = 4, saved: Sequence[str] = ()) -> str:
    """A random adapter, large enough to change what the model says."""
    torch, peft = importlib.import_module("torch"), importlib.import_module("peft")
    transformers = importlib.import_module("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        targets = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": list(saved) or None}
        config = peft.LoraConfig(r=rank, lora_alpha=16, task_type="CAUSAL_LM", **targets)
        model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(TEXT), config)
        for name, weights in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                torch.nn.init.normal_(weights, std=0.15)
        model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(folder / name, seed) for seed, name in enumerate(("one", "two"))}


def mixed() -> list[Any]:
    names = [None, "one", "two"]
    return [{**of_task(task), "adapter": names[k % 3]} for k, task in enumerate(TASKS)]


def test_a_batch_mixes_adapters_alike_on_both_and_as_peft_has_it(adapters: dict[str, str], shared: Load) -> None:
    peft, torch = importlib.import_module("peft"), importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    answers = []
    for backend in ("hf", "vllm"):
        with open_engine(TEXT, backend, adapters=adapters) as engine:
            assert engine.capabilities.supports_lora
            answers.append(engine.generate_text_batch(mixed(), OPTIONS))
            alone = [engine.generate_text_batch([request], OPTIONS)[0].token_ids for request in mixed()]
            assert alone == [result.token_ids for result in answers[-1]]
    assert [r.token_ids for r in answers[0]] == [r.token_ids for r in answers[1]]
    bare = shared(TEXT, "hf").generate_text_batch([of_task(task) for task in TASKS], OPTIONS)
    assert [a.token_ids == b.token_ids for a, b in zip(answers[0], bare)][::3] == [True, True]
    assert not all(a.token_ids == b.token_ids for a, b in zip(answers[0], bare))
    adapted = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(TEXT), adapters["one"])
    result = answers[0][1]
    with torch.no_grad():
        logits = adapted(torch.tensor([result.prompt_token_ids + result.token_ids])).logits[0].log_softmax(-1)
    rows = range(len(result.prompt_token_ids) - 1, len(result.prompt_token_ids) + len(result.token_ids) - 1)
    assert logits[list(rows), list(result.token_ids)].tolist() == pytest.approx(result.logprobs, abs=1e-4)


def test_a_plugin_that_asks_its_own_engine_leaves_the_adapter_as_it_is(adapters: dict[str, str]) -> None:
    class Asks(Plugin):
        asked, inner = 0, ""

        def should_stop(self, token_ids: Any, text: str) -> bool:
            self.asked += 1
            if self.asked == 3:
                engine.generate_text_batch([{**of_task(TASKS[0]), "adapter": self.inner}], {"max_new_tokens": 2})
                engine.score_batch([({**of_task(TASKS[0]), "adapter": self.inner}, [5])])
            return False

    with open_engine(TEXT, "hf", adapters=adapters) as engine:
        for outer, inner in ((None, "one"), ("two", "one"), ("one", "two")):
            request = {**of_task(TASKS[1]), "adapter": outer}
            [plain] = engine.generate_text_batch([request], {"max_new_tokens": 24})
            asks = Asks()
            asks.inner = inner
            [asking] = engine.generate_text_batch([request], {"max_new_tokens": 24}, plugins=[asks])
            assert asking.token_ids == plain.token_ids


def test_adapters_are_added_and_removed_while_the_engine_lives(backend: str, adapters: dict[str, str]) -> None:
    request = of_task(TASKS[0])
    named = {**request, "adapter": "policy"}
    store: dict[str, str] = {}

    def ask(engine: GenerationEngine, asked: Any = named) -> Any:
        [result] = engine.generate_text_batch([asked], OPTIONS)
        return result

    with open_engine(TEXT, backend, adapters=adapters) as engine:
        expected = [ask(engine, {**request, "adapter": name}).token_ids for name in ("one", "two", None)]
    with open_engine(TEXT, backend, adapters={"policy": adapters["one"]}, cache=store) as engine:
        assert ask(engine).token_ids == expected[0] and ask(engine).cached
        engine.remove_adapter("policy")
        with pytest.raises(RequestError, match="no adapter 'policy' is loaded"):
            ask(engine)
        engine.add_adapter("policy", Path(adapters["two"]))
        again = ask(engine)
        assert (again.token_ids, again.cached) == (expected[1], False), "under the same name"
        assert ask(engine, request).token_ids == expected[2]
        engine.remove_adapter("policy")
        engine.add_adapter("policy", adapters["one"])
        again = ask(engine)
        assert (again.token_ids, again.cached) == (expected[0], True), "the same adapter as at first"


def test_adapters_come_and_go_under_the_weight_version_that_was_set(adapters: dict[str, str]) -> None:
    with open_engine(TEXT, "hf") as engine:
        engine.update_weights({"model.norm.weight": engine.model.model.norm.weight.detach().clone()}, version="step 7")
        engine.add_adapter("one", adapters["one"])
        added = engine.generate_text_batch([mixed()[1]], OPTIONS)[0].weight_version
        engine.remove_adapter("one")
        removed = engine.generate_text_batch([{"prompt": "a"}], OPTIONS)[0].weight_version
        assert (added, removed) == ("step 7", "step 7")


def test_add_adapter_leaves_the_bare_model_without_it(adapters: dict[str, str]) -> None:
    torch = importlib.import_module("torch")
    with open_engine(TEXT, "hf") as engine, torch.no_grad():
        ids = torch.tensor([engine.tokenizer.encode("The capital of France")])
        before = engine.model(ids).logits
        engine.add_adapter("one", adapters["one"])
        with engine.bare(read_only=True) as model:
            assert torch.equal(model(ids).logits, before)


def test_adapters_that_cannot_be_added_leave_the_engine_as_it_is(
    backend: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    wide = make_adapter(tmp_path / "wide", 3, rank=32)
    with open_engine(TEXT, backend, adapters={"one": adapters["one"]}) as engine:
        [before] = engine.generate_text_batch([mixed()[1]], OPTIONS)
        with pytest.raises(OptionError, match="the adapter 'one' is loaded already. Remove it first"):
            engine.add_adapter("one", adapters["two"])
        with pytest.raises(LoadError, match="no adapter at '/no/such'"):
            engine.add_adapter("two", "/no/such")
        with pytest.raises(OptionError, match="no adapter 'on' is loaded. Did you mean 'one'?"):
            engine.remove_adapter("on")
        if backend == "vllm":
            with pytest.raises(UnsupportedError, match="vllm has no room for the adapter 'two'. Load with as many"):
                engine.add_adapter("two", adapters["two"])
            engine.remove_adapter("one")
            with pytest.raises(UnsupportedError, match="vllm has room for rank 8, the adapter 'wide' has 32"):
                engine.add_adapter("wide", wide)
            engine.add_adapter("one", adapters["one"])
        assert engine.generate_text_batch([mixed()[1]], OPTIONS) == [before]


def test_an_adapter_of_another_model_is_not_half_there(adapters: dict[str, str], tmp_path: Path) -> None:
    stray = Path(shutil.copytree(adapters["one"], tmp_path / "stray"))
    with_names(stray, renamed("self_attn", "selfattn"))
    with open_engine(TEXT, "hf") as engine:
        [before] = engine.generate_text_batch([of_task(TASKS[0])], OPTIONS)
        for _ in range(2):
            with pytest.raises(LoadError, match="12 weights of adapter 'bad' fit nowhere"):
                engine.add_adapter("bad", stray)
        engine.add_adapter("bad", adapters["one"])
        assert engine.generate_text_batch([of_task(TASKS[0])], OPTIONS) == [before]


def test_modules_that_an_adapter_saves_whole_stay_its_own(tmp_path: Path, shared: Load) -> None:
    """Also behind a call without it; and the bare model is none of the adapters."""
    torch, folder = importlib.import_module("torch"), make_adapter(tmp_path / "head", 3, saved=["down_proj"])
    request = of_task(TASKS[0])
    with open_engine(TEXT, "hf", adapters={"head": folder}) as engine:
        ids = torch.tensor([engine.generate_text_batch([request], OPTIONS)[0].prompt_token_ids])
        [first] = engine.generate_text_batch([{**request, "adapter": "head"}], OPTIONS)
        bare = engine.generate_text_batch([request], OPTIONS)
        assert engine.generate_text_batch([{**request, "adapter": "head"}], OPTIONS) == [first] != bare
    with (
        open_engine(TEXT, "hf", adapters={"head": folder}) as engine,
        open_engine(TEXT, "hf") as plain,
        torch.no_grad(),
    ):
        assert torch.equal(engine.model(ids).logits, plain.model(ids).logits)
        [fresh] = engine.generate_text_batch([{**request, "adapter": "head"}], OPTIONS)
        assert fresh == first


def test_an_adapter_of_any_rank_is_taken_by_both(tmp_path: Path) -> None:
    """vLLM makes room for powers of two only."""
    folder, answers = make_adapter(tmp_path / "odd", 3, rank=12), []
    for backend in ("hf", "vllm"):
        with open_engine(TEXT, backend, adapters={"odd": folder}) as engine:
            answers += engine.generate_text_batch([{**of_task(TASKS[0]), "adapter": "odd"}], OPTIONS)
    assert answers[0].token_ids == answers[1].token_ids


def test_an_unknown_adapter_is_refused_with_the_index(backend: str, adapters: dict[str, str], shared: Load) -> None:
    with pytest.raises(RequestError, match="request 0: no adapter 'one' is loaded. Load with adapters"):
        shared(TEXT, backend).generate_text_batch([{**of_task(TASKS[0]), "adapter": "one"}])


def test_a_missing_adapter_is_a_load_error(backend: Any) -> None:
    with pytest.raises(LoadError, match="no adapter at '/no/such'"):
        load(TEXT, backend=backend, adapters={"one": "/no/such"})


def test_scores_use_the_adapter_of_each_request(backend: str, adapters: dict[str, str]) -> None:
    items = [(request, task.answer) for request, task in zip(mixed(), TASKS)]
    with open_engine(TEXT, backend, adapters=adapters, logits_hooks=True) as engine:
        together = engine.score_batch(items)
        alone = [engine.score_batch([item])[0] for item in items]
        bare = engine.score_batch([(of_task(task), task.answer) for task in TASKS])
    for a, b in zip(together, alone):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert [a.logprobs == pytest.approx(b.logprobs, abs=1e-4) for a, b in zip(together, bare)] == [
        True,
        False,
        False,
    ] * 2


def test_scores_beside_adapters_need_the_hook_on_vllm(adapters: dict[str, str]) -> None:
    with (
        open_engine(TEXT, "vllm", adapters=adapters) as engine,
        pytest.raises(UnsupportedError, match="logits_hooks=True"),
    ):
        engine.score_batch([("a", "b")])


def configure(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another kind": (configure(peft_type="IA3"), "its peft_type is 'IA3'"),
    "no kind": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "no adapter at"),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "no adapter at"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "cannot load"),
    "broken weights": (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x" * 100), "no adapter at"),
    "another rank": (configure(r=2), "its config says rank 2, .*lora_A.weight has 4"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_adapter_is_a_load_error(name: str, backend: str, adapters: dict[str, str], tmp_path: Path) -> None:
    damage, words = DAMAGE[name]
    damage(Path(shutil.copytree(adapters["one"], tmp_path / "bad")))
    with pytest.raises(LoadError, match=words):
        open_engine(TEXT, backend, adapters={"good": adapters["two"], "bad": str(tmp_path / "bad")})


def renamed(old: str, new: str) -> Callable[[str], str | None]:
    return lambda name: name.replace(old, new)


MISFITS: dict[str, tuple[Callable[[str], str | None], str]] = {  # a weight's name -> its other name, or None: left out
    "names of another model": (renamed("self_attn", "selfattn"), "12 weights of adapter 'bad' fit nowhere: .*selfattn"),
    "another prefix": (renamed("base_model.model.", "base_model.model._orig_mod."), "12 weights .* fit nowhere"),
    "a layer that does not exist": (renamed("layers.0.", "layers.99."), "4 weights .* fit nowhere: .*layers.99"),
    "a part is missing": (lambda name: None if "layers.0." in name else name, "4 weights .* are missing: .*layers.0"),
    "half of each pair": (lambda name: None if "lora_B" in name else name, "weights .* are missing: .*lora_B"),
}


def with_names(folder: Path, change: Callable[[str], str | None]) -> str:
    torch, file = importlib.import_module("safetensors.torch"), folder / "adapter_model.safetensors"
    changed = {change(name): weights for name, weights in torch.load_file(file).items()}
    changed.pop(None, None)
    torch.save_file(changed, file, {"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("name", MISFITS)
def test_an_adapter_that_does_not_fit_is_refused_at_load(
    name: str, backend: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    """vLLM left out what fits nowhere, and served the rest, or the base model, under the adapter's name."""
    if installed("transformers<5.10"):
        return  # transformers only warns
    change, words = MISFITS[name]
    bad = with_names(Path(shutil.copytree(adapters["one"], tmp_path / "bad")), change)
    with pytest.raises(LoadError, match=words):
        open_engine(TEXT, backend, adapters={"good": adapters["two"], "bad": bad})


NOT_ADDITIVE: list[dict[str, Any]] = [
    {"init_lora_weights": "pissa"},
    {"init_lora_weights": "pissa_niter_16"},
    {"init_lora_weights": "olora"},
    {"init_lora_weights": "OLoRA"},
    {"init_lora_weights": "corda"},
    {"init_lora_weights": "loftq"},
    {"init_lora_weights": "a new way"},
    {"bias": "all"},
    {"bias": "lora_only"},
    {"layer_replication": [[0, 2], [1, 3]]},
    {"trainable_token_indices": [5]},
    {"alora_invocation_tokens": [5]},
]


@pytest.mark.parametrize("changes", NOT_ADDITIVE, ids=str)
def test_an_adapter_that_changes_more_than_its_own_rows_is_refused_at_load(
    changes: dict[str, Any], backend: Any, adapters: dict[str, str], tmp_path: Path
) -> None:
    """hf computed every row of PiSSA and OLoRA with other base weights; vLLM refused them at the first answer."""
    folder = Path(shutil.copytree(adapters["one"], tmp_path / "other"))
    configure(**changes)(folder)
    with pytest.raises(LoadError, match=next(iter(changes))):
        load(TEXT, backend=backend, adapters={"other": str(folder)})


@pytest.mark.parametrize("start", ["gaussian", "orthogonal"])
def test_an_adapter_of_another_start_changes_only_the_rows_that_name_it(
    start: str, backend: str, adapters: dict[str, str], tmp_path: Path, shared: Load
) -> None:
    folder = Path(shutil.copytree(adapters["one"], tmp_path / "other"))
    configure(init_lora_weights=start)(folder)
    request = of_task(TASKS[0])
    [expected] = shared(TEXT, backend).generate_text_batch([request], OPTIONS)
    with open_engine(TEXT, backend, adapters={"other": str(folder)}) as engine:
        own, bare = engine.generate_text_batch([{**request, "adapter": "other"}, request], OPTIONS)
    assert bare.token_ids == expected.token_ids
    assert bare.logprobs == pytest.approx(expected.logprobs, abs=1e-4) != own.logprobs


def test_an_adapter_that_does_not_fit_is_not_added(backend: str, adapters: dict[str, str], tmp_path: Path) -> None:
    request = of_task(TASKS[0])
    bad = with_names(Path(shutil.copytree(adapters["one"], tmp_path / "bad")), MISFITS["another prefix"][0])
    base = Path(shutil.copytree(adapters["one"], tmp_path / "pissa"))
    configure(init_lora_weights="pissa")(base)
    with open_engine(TEXT, backend, adapters=adapters) as engine:
        [before] = engine.generate_text_batch([request], OPTIONS)
        engine.remove_adapter("two")
        for folder in (bad, str(base)):
            with pytest.raises(LoadError):
                engine.add_adapter("two", folder)
        engine.add_adapter("two", adapters["two"])
        assert engine.generate_text_batch([request], OPTIONS) == [before]


def test_an_adapter_of_another_rank_than_its_config_says_is_a_load_error(
    backend: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    """vLLM answered without a word."""
    configure(r=8)(Path(shutil.copytree(adapters["one"], tmp_path / "bad")))
    with pytest.raises(LoadError, match="its config says rank 8, .* has 4"):
        open_engine(TEXT, backend, adapters={"bad": str(tmp_path / "bad")})


BEYOND_LORA: list[dict[str, Any]] = [
    {"use_dora": True},
    {"lora_bias": True},
    {"modules_to_save": ["lm_head"]},
    {"rank_pattern": {"q_proj": 4}},
]


@pytest.mark.parametrize("changes", BEYOND_LORA, ids=lambda changes: next(iter(changes)))
def test_an_adapter_that_vllm_cannot_serve_is_refused_at_load(
    changes: dict[str, Any], adapters: dict[str, str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(adapters["one"], tmp_path / "other"))
    configure(**changes)(folder)
    with pytest.raises(UnsupportedError, match="vllm cannot do adapters with DoRA"):
        load(TEXT, backend="vllm", adapters={"other": str(folder)})
    assert refusal_of(Asked(ModelLoadConfig(str(TEXT), adapters={"other": str(folder)}))) is None
