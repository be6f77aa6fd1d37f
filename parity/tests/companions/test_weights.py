"""`update_weights`, whatever is sent: right answers or a refusal, on both backends.

Right is what a fresh load of the saved checkpoint answers, id by id."""

from __future__ import annotations

import functools
import importlib
import json
import random
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gen_engine import EngineError, GenerationEngine, OptionError, Plugin, UnsupportedError
from parity.models.tasks import drawing

from ..conftest import ROOT, TEXT, VL, chat, open_engine

FILE = "model.safetensors"
QUESTIONS = ["Count to 12.", "Name three fruits."]
OPTIONS = {"max_new_tokens": 8, "logprobs": 0}
EMBEDDING = "model.embed_tokens.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"


def tensors_of(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module("safetensors.torch").load_file(model / FILE)
    return found


def saved(model: Path, folder: Path, weights: dict[str, Any]) -> Path:
    """The checkpoint with these weights; one with a head of its own is not tied."""
    target = folder / f"{model.name}-{len(list(folder.iterdir()))}"
    shutil.copytree(model, target)
    importlib.import_module("safetensors.torch").save_file(weights, target / FILE, {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        part["tie_word_embeddings"] = "lm_head.weight" not in weights
    (target / "config.json").write_text(json.dumps(config))
    return target


def trained(weights: dict[str, Any], seed: int = 1) -> dict[str, Any]:
    """The weights after a step that moved each of them."""
    torch = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for name, tensor in weights.items():
        noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std().nan_to_num(0.1)
        moved[name] = (tensor + 0.2 * noise).to(tensor.dtype).contiguous()
    return moved


def untied(weights: dict[str, Any]) -> dict[str, Any]:
    return {**weights, "lm_head.weight": weights[EMBEDDING].flip(0).contiguous() * 0.5}


def answers(engine: GenerationEngine) -> list[tuple[Any, Any]]:
    results = engine.generate_text_batch([chat(question) for question in QUESTIONS], OPTIONS)
    return [(result.token_ids, result.logprobs) for result in results]


def see(size: int = 64) -> dict[str, Any]:
    image = drawing("red", "circle", width=size)
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is in the picture?"}]
    return {"messages": [{"role": "user", "content": parts}]}


def image_answers(engine: GenerationEngine, *sizes: int) -> list[tuple[Any, Any]]:
    results = engine.generate_vlm_batch([see(size) for size in sizes], OPTIONS)
    return [(result.token_ids, result.logprobs) for result in results]


def as_file(model: Path) -> Any:
    return tensors_of(model)


def as_state_dict(model: Path) -> Any:
    auto = importlib.import_module("transformers").AutoModelForCausalLM
    return auto.from_pretrained(model, dtype="float32").state_dict()


def as_named_parameters(model: Path) -> Any:
    auto = importlib.import_module("transformers").AutoModelForCausalLM
    return auto.from_pretrained(model, dtype="float32").named_parameters()


def as_function(model: Path) -> Any:
    return lambda: iter(tensors_of(model).items())


def as_one_buffer(model: Path) -> Iterator[tuple[str, Any]]:
    """Each tensor is written over the one before it, as a receiver of a broadcast does it."""
    torch = importlib.import_module("torch")
    weights = tensors_of(model)
    buffer = torch.empty(max(tensor.numel() for tensor in weights.values()))
    for name, tensor in weights.items():
        yield name, buffer[: tensor.numel()].copy_(tensor.reshape(-1)).view(tensor.shape)


def as_shuffled(model: Path) -> Any:
    pairs = list(tensors_of(model).items())
    random.Random(3).shuffle(pairs)
    return pairs


FORMS = [as_file, as_state_dict, as_named_parameters, as_function, as_one_buffer, as_shuffled]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_update_weights_of_a_whole_model_answers_like_a_fresh_load(
    backend: str, is_tied: bool, dtype: str, tmp_path: Path
) -> None:
    weights = tensors_of(TEXT) if is_tied else untied(tensors_of(TEXT))
    old, new = saved(TEXT, tmp_path, weights), saved(TEXT, tmp_path, trained(weights))
    with open_engine(new, backend, dtype=dtype) as engine:
        expected = answers(engine)
    with open_engine(old, backend, dtype=dtype) as engine:
        before = answers(engine)
        for form in FORMS:
            engine.update_weights(form(new), version=form.__name__)
            assert answers(engine) == expected != before, form.__name__
            engine.update_weights(form(old))
            assert answers(engine) == before, form.__name__


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_update_weights_of_a_model_that_sees_answers_images_of_before_anew(
    backend: str, dtype: str, tmp_path: Path
) -> None:
    new = saved(VL, tmp_path, trained(tensors_of(VL)))
    with open_engine(new, backend, dtype=dtype) as engine:
        expected = image_answers(engine, 64, 96)
    with open_engine(VL, backend, dtype=dtype) as engine:
        before = image_answers(engine, 64)
        engine.update_weights(tensors_of(new))
        assert image_answers(engine, 64, 96) == expected
        assert expected[:1] != before


def test_bare_that_wrote_vision_weights_leaves_no_image_of_before() -> None:
    def scale(worker: Any) -> None:
        with importlib.import_module("torch").no_grad():
            for name, weight in worker.model_runner.model.named_parameters():
                if "visual" in name and "norm" in name:
                    weight.mul_(3.0)

    with open_engine(VL, "vllm") as engine:
        with engine.bare() as llm:
            llm.collective_rpc(scale)
        expected = image_answers(engine, 64)
    with open_engine(VL, "vllm") as engine:
        before = image_answers(engine, 64)
        with engine.bare() as llm:
            llm.collective_rpc(scale)
        assert image_answers(engine, 64) == expected != before


SUBSETS: dict[str, list[str]] = {
    "a norm": [NORM],
    "q, k and v": [QUERY, QUERY.replace("q_proj", "k_proj"), QUERY.replace("q_proj", "v_proj")],
    "a layer": ["model.layers.1."],
    "the embedding": [EMBEDDING],
}


def test_update_weights_of_some_weights_leaves_the_others(backend: str, tmp_path: Path) -> None:
    old = tensors_of(TEXT)
    sent: dict[str, Any] = {}
    with open_engine(TEXT, backend) as engine:
        for prefixes in SUBSETS.values():
            part = {name: own for name, own in trained(old).items() if name.startswith(tuple(prefixes))}
            engine.update_weights(part)
            sent.update(part)
        after = answers(engine)
    with open_engine(saved(TEXT, tmp_path, {**old, **sent}), backend) as engine:
        assert answers(engine) == after


def test_update_weights_of_a_part_of_fused_weights_is_right_or_names_the_others(backend: str) -> None:
    others = {"q_proj": "k_proj.weight', '.*v_proj.weight'", "gate_proj": "up_proj.weight'"}
    with open_engine(TEXT, backend) as engine:
        before = answers(engine)
        for part, words in others.items():
            own = {name: one for name, one in tensors_of(TEXT).items() if "layers.0." in name and part in name}
            for weights in (own, iter(own.items())):
                if backend == "vllm":
                    with pytest.raises(OptionError, match=words):
                        engine.update_weights(weights)
                else:
                    engine.update_weights(weights)
                assert answers(engine) == before


Change = Callable[[dict[str, Any]], Any]


def renamed(prefix: str) -> Change:
    return lambda weights: {prefix + name: tensor for name, tensor in weights.items()}


def with_weight(name: str, make: Callable[[Any], Any]) -> Change:
    return lambda weights: {**weights, name: make(weights.get(name))}


def not_a_number(tensor: Any) -> Any:
    broken = tensor.clone()
    broken.view(-1)[-1] = float("nan")
    return broken


def tied_apart(weights: dict[str, Any]) -> dict[str, Any]:
    return untied(weights)


def of_peft(weights: dict[str, Any]) -> dict[str, Any]:
    return {f"base_model.model.{name.replace('_proj.', '_proj.base_layer.')}": own for name, own in weights.items()}


def with_lora(weights: dict[str, Any]) -> dict[str, Any]:
    return {**weights, "model.layers.0.self_attn.q_proj.lora_A.weight": weights[QUERY]}


WRONG: dict[str, tuple[Change, str]] = {
    "nothing": (lambda weights: {}, "no weights"),
    "no pairs": (lambda weights: [("a",)], "a weight is"),
    "no tensor": (lambda weights: {NORM: 5}, "a weight is"),
    "a model": (lambda weights: importlib.import_module("torch").nn.Linear(1, 1), "model.state_dict"),
    "a path": (lambda weights: 5, "the weights are 5"),
    "another name": (with_weight("model.norms.weight", lambda old: importlib.import_module("torch").zeros(64)),
                     "no weight 'model.norms.weight'.*[Dd]id you mean 'model.norm.weight'"),
    "transposed": (with_weight("model.layers.0.mlp.down_proj.weight", lambda old: old.T.contiguous()),
                   r"down_proj.weight' has the shape .*must be \(64, 192\)"),
    "flat": (with_weight(QUERY, lambda old: old.view(-1)), "q_proj.weight' has the shape"),
    "empty": (with_weight(QUERY, lambda old: old[:0, :0]), "has the shape.*[Gg]ather"),
    "whole numbers": (with_weight(NORM, lambda old: old.int()), "norm.weight' is torch.int32"),
    "NaN": (with_weight(NORM, not_a_number), "norm.weight' .*NaN"),
    "infinite": (with_weight(NORM, lambda old: old / 0), "norm.weight' .*infinite"),
    "infinite in the engine's type": (with_weight(NORM, lambda old: old.double() * 1e300),
                                      "norm.weight' .*beyond torch.float32"),
    "no data": (with_weight(NORM, lambda old: old.to("meta")), "norm.weight' is on the meta device"),
    "DDP": (renamed("module."), "35 names.*'module.'"),
    "compiled": (renamed("_orig_mod."), "35 names.*'_orig_mod.'"),
    "PEFT": (of_peft, "35 names.*'base_model.model.'.*'.base_layer'"),
    "an adapter": (with_lora, "lora_A.*add_adapter"),
    "twice": (lambda weights: [*weights.items(), (NORM, weights[NORM])], "norm.weight' .*twice"),
    "tied apart": (tied_apart, "lm_head.weight.*tied"),
}  # fmt: skip


def test_update_weights_of_wrong_ones_is_refused_and_the_engine_answers_as_before(backend: str) -> None:
    weights = trained(tensors_of(TEXT))
    with open_engine(TEXT, backend) as engine:
        before = answers(engine)
        for name, (change, words) in WRONG.items():
            with pytest.raises(OptionError, match=f"(?s){words}"):
                engine.update_weights(change(weights), version=name)
            assert answers(engine) == before, name
            assert engine.weight_version is None, name


def test_update_weights_of_a_generator_that_ends_wrong_answers_nothing_until_it_is_whole(backend: str) -> None:
    old = tensors_of(TEXT)
    new = trained(old)

    def pairs() -> Iterator[tuple[str, Any]]:
        yield from new.items()
        raise KeyError("the trainer's own")

    with open_engine(TEXT, backend) as engine:
        before = answers(engine)
        with pytest.raises(OptionError, match="no weight 'no.such'"):
            engine.update_weights(iter([("no.such", new[NORM]), *new.items()]))
        assert answers(engine) == before, "nothing had been written"
        ends: list[tuple[Iterator[Any], type[Exception], str]] = [
            (pairs(), KeyError, "the trainer's own"),
            (iter([*new.items(), ("no.such", new[NORM])]), OptionError, "no weight 'no.such'"),
        ]
        for wrong, kind, words in ends:
            with pytest.raises(kind, match=words):
                engine.update_weights(wrong)
            for use in (answers, lambda engine: engine.score_batch([("a", "b")])):
                with pytest.raises(EngineError, match="weights are not whole.*[Ss]end all of them"):
                    use(engine)
            with pytest.raises(OptionError, match="35 weights are missing"):
                engine.update_weights({})
            with pytest.raises(OptionError, match="34 weights are missing"):
                engine.update_weights({NORM: old[NORM]})
            engine.update_weights(old)
            assert answers(engine) == before


@pytest.mark.parametrize("order", [sorted, as_shuffled], ids=["sorted", "shuffled"])
def test_update_weights_in_buckets_answers_like_a_fresh_load(
    backend: str, order: Callable[[Any], Any], tmp_path: Path
) -> None:
    new = saved(TEXT, tmp_path, trained(tensors_of(TEXT)))
    pairs = as_shuffled(new) if order is as_shuffled else sorted(tensors_of(new).items())
    with open_engine(new, backend) as engine:
        expected = answers(engine)
    with open_engine(TEXT, backend) as engine:
        for k in range(0, len(pairs), 4):
            bucket = {name: tensor.clone() for name, tensor in pairs[k : k + 4]}
            engine.update_weights(bucket, partial=True)
            for tensor in bucket.values():
                tensor.zero_()  # a bucket's memory is used again
            with pytest.raises(EngineError, match="an update of the weights is not finished"):
                answers(engine)
        engine.update_weights({}, version="step 1")
        assert answers(engine) == expected
        assert engine.weight_version == "step 1"


def test_update_weights_in_buckets_refuses_a_wrong_bucket_and_goes_on(backend: str, tmp_path: Path) -> None:
    new = saved(TEXT, tmp_path, trained(tensors_of(TEXT)))
    weights = tensors_of(new)
    with open_engine(new, backend) as engine:
        expected = answers(engine)
    with open_engine(TEXT, backend) as engine:
        engine.update_weights({QUERY: weights.pop(QUERY)}, partial=True)
        with pytest.raises(OptionError, match="version"):
            engine.update_weights(weights, partial=True, version="early")
        with pytest.raises(OptionError, match="NaN"):
            engine.update_weights({NORM: not_a_number(weights[NORM])}, partial=True)
        if backend == "vllm":
            with pytest.raises(OptionError, match="k_proj.weight"):
                engine.update_weights({})
        engine.update_weights(weights)
        assert answers(engine) == expected


def test_update_weights_of_all_weights_begins_anew_where_buckets_were_left_unfinished(
    backend: str, tmp_path: Path
) -> None:
    new = saved(TEXT, tmp_path, trained(tensors_of(TEXT)))
    weights = tensors_of(new)
    stale = trained(weights, seed=2)
    with open_engine(new, backend) as engine:
        expected = answers(engine)
    with open_engine(TEXT, backend) as engine:
        for whole in (weights, list(weights.items()), lambda: iter(weights.items())):
            engine.update_weights({name: stale[name] for name in (QUERY, NORM, EMBEDDING)}, partial=True)
            with pytest.raises(OptionError, match="twice.*all of them in one call"):
                engine.update_weights({NORM: weights[NORM]})
            with pytest.raises(OptionError, match="NaN"):
                engine.update_weights({**weights, NORM: not_a_number(weights[NORM])})
            with pytest.raises(EngineError, match="not finished"):
                answers(engine)
            engine.update_weights(whole)
            assert answers(engine) == expected


def test_update_weights_refuses_calls_of_the_engine_from_its_own_pairs(backend: str, tmp_path: Path) -> None:
    new = saved(TEXT, tmp_path, trained(tensors_of(TEXT)))
    weights = tensors_of(new)
    with open_engine(new, backend) as engine:
        expected = answers(engine)

    def asking(engine: GenerationEngine, use: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
        for place, pair in enumerate(weights.items()):
            if place == len(weights) // 2:
                use()
            yield pair

    with open_engine(TEXT, backend) as engine:
        before = answers(engine)
        uses: list[Callable[[], Any]] = [
            lambda: answers(engine),
            lambda: engine.score_batch([("a", "b")]),
            lambda: engine.update_weights({NORM: weights[NORM]}),
            lambda: engine.add_adapter("one", "nowhere"),
        ]
        for use in uses:
            with pytest.raises(EngineError, match="from within its own update"):
                engine.update_weights(functools.partial(asking, engine, use))
            assert answers(engine) == before, "a function is read whole before anything is written"
            with pytest.raises(EngineError, match="from within its own update"):
                engine.update_weights(asking(engine, use))
            with pytest.raises(EngineError, match="not whole"):
                answers(engine)
            engine.update_weights(weights)
            assert answers(engine) == expected
            engine.update_weights(tensors_of(TEXT))


def test_update_weights_from_within_a_call_is_refused_so_that_no_answer_spans_two_versions(backend: str) -> None:
    new = trained(tensors_of(TEXT))

    class Trains(Plugin):
        name = "trains"

        def should_stop(self, token_ids: Any, text: str) -> bool:
            if len(token_ids) == 2:
                engine.update_weights(new)
            return False

    with open_engine(TEXT, backend) as engine:
        before = answers(engine)
        with pytest.raises(OptionError, match="plugin 'trains'.*from within a call"):
            engine.generate_text_batch([chat(QUESTIONS[0])], OPTIONS, plugins=[Trains()])
        assert answers(engine) == before
        with engine.bare(read_only=True), pytest.raises(EngineError, match="from within a call"):
            engine.update_weights(new)
        assert answers(engine) == before


def test_update_weights_of_the_engines_own_tensors_under_other_names_is_refused() -> None:
    with open_engine(TEXT, "hf") as engine:
        before = answers(engine)
        own = engine.model.state_dict()
        one, other = (f"model.layers.{layer}.input_layernorm.weight" for layer in (0, 1))
        swapped = {**own, one: own[other], other: own[one]}
        for weights in (swapped, lambda: iter(swapped.items()), iter([(one, own[other])])):
            with pytest.raises(OptionError, match="own model.*clone"):
                engine.update_weights(weights)
            assert answers(engine) == before
        engine.update_weights(own)
        assert answers(engine) == before
        engine.update_weights({one: own[other].clone(), other: own[one].clone()})
        assert answers(engine) != before


def test_update_weights_of_values_beyond_the_engines_type_is_refused_whatever_the_files_have(backend: str) -> None:
    torch = importlib.import_module("torch")
    with open_engine(TEXT, backend, dtype="bfloat16") as engine:
        before = answers(engine)
        with pytest.raises(OptionError, match="norm.weight' has values beyond torch.bfloat16"):
            engine.update_weights({NORM: torch.full((64,), 3.4e38)})  # finite in float32
        assert answers(engine) == before


@pytest.mark.parametrize("version", [3, "", b"step"])
def test_update_weights_refuses_a_version_that_is_no_text(version: Any) -> None:
    with open_engine(TEXT, "hf") as engine:
        with pytest.raises(OptionError, match="version"):
            engine.update_weights({NORM: trained(tensors_of(TEXT))[NORM]}, version=version)
        assert engine.weight_version is None


def test_update_weights_of_a_generator_holds_few_of_its_tensors(backend: str) -> None:
    new = trained(tensors_of(TEXT))
    alive: list[Any] = []
    most = 0

    def pairs() -> Iterator[tuple[str, Any]]:
        nonlocal most
        for name in sorted(new):
            tensor = new[name].clone()
            alive.append(weakref.ref(tensor))
            yield name, tensor
            del tensor
            most = max(most, sum(one() is not None for one in alive))

    with open_engine(TEXT, backend) as engine:
        engine.update_weights(pairs())
    assert most <= 8, "of 35: a fused weight and what the backend reads"


def test_training_in_place_on_the_engines_model_moves_the_version_and_meets_no_cached_answer() -> None:
    torch = importlib.import_module("torch")
    with open_engine(TEXT, "hf", cache={}) as engine:
        ask = functools.partial(engine.generate_text_batch, [chat(QUESTIONS[0])], OPTIONS)
        [before] = ask()
        assert ask()[0].cached
        optimizer = torch.optim.AdamW(engine.model.parameters(), lr=0.01)
        [score] = engine.score_batch([("The capital", " of France")], grad=True)
        (-score.logprobs.sum()).backward()
        optimizer.step()
        [after] = ask()
        assert not after.cached and after.logprobs != before.logprobs
        assert after.weight_version is not None
        [same] = ask()
        assert same.cached and same.weight_version == after.weight_version


def test_update_weights_beside_adapters_is_refused_with_what_to_do(backend: str) -> None:
    adapters = {"one": str(next((ROOT / "golden/models/random-adapters").iterdir()))}
    with (
        open_engine(TEXT, backend, adapters=adapters) as engine,
        pytest.raises(UnsupportedError, match="beside adapters.*add_adapter"),
    ):
        engine.update_weights({NORM: importlib.import_module("torch").ones(64)})
