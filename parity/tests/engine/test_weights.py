"""Weights that change under a loaded engine: `update_weights` and `bare` on both backends, and what was
cached before."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenerationEngine, OptionError, UnsupportedError
from parity.companions import beams
from parity.companions.batch_files import answer_file
from parity.companions.decisions import decide

from ..companions.test_decisions import ASKED
from ..conftest import TEXT, Load, chat, open_engine

COUNT, SHORT = chat("Count to 12."), {"max_new_tokens": 24}
LONG = chat("You know this. " * 20 + "What is the capital of France?")
FILE = "model.safetensors"


def weights_of(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module("safetensors.torch").load_file(model / FILE)
    return found


@pytest.fixture
def other(edited: Any) -> Path:
    """The checkpoint with a first layer that adds nothing: another model, as training makes one."""
    model: Path = edited(TEXT, {})
    weights = weights_of(model)
    for name, tensor in weights.items():
        if "layers.0." in name and name.endswith(("down_proj.weight", "o_proj.weight")):
            tensor.zero_()
    importlib.import_module("safetensors.torch").save_file(weights, model / FILE, {"format": "pt"})
    return model


def test_updated_weights_answer_like_a_checkpoint_that_has_them(backend: str, other: Path) -> None:
    store: dict[str, str] = {}
    with open_engine(other, backend) as engine:
        [expected] = engine.generate_text_batch([COUNT], SHORT)
    with open_engine(TEXT, backend, cache=store) as engine:
        [before] = engine.generate_text_batch([COUNT], SHORT)
        assert before.weight_version is None and before.token_ids != expected.token_ids
        engine.update_weights(weights_of(other), version="one")
        [after] = engine.generate_text_batch([COUNT], SHORT)
        assert (after.token_ids, after.cached, after.weight_version) == (expected.token_ids, False, "one")
        [again] = engine.generate_text_batch([COUNT], SHORT)
        assert again.cached and again.token_ids == expected.token_ids
        engine.update_weights(iter(weights_of(TEXT).items()))
        [back] = engine.generate_text_batch([COUNT], SHORT)
        assert back.token_ids == before.token_ids and not back.cached
        assert back.weight_version not in (None, "one")


def test_answers_and_scores_in_train_mode_are_those_of_eval_mode(edited: Callable[..., Path]) -> None:
    """Dropout chose other tokens, and gradient checkpointing left out the cache."""
    with open_engine(edited(TEXT, {"config.json": {"attention_dropout": 0.5}}), "hf") as engine:
        pair = ("The capital", " of France is Paris.")

        def answers() -> Any:
            return (
                engine.generate_text_batch([COUNT], {"max_new_tokens": 24}),
                engine.score_batch([pair]),
                beams.beam_search(engine, [COUNT], num_beams=2, max_new_tokens=8),
                decide(engine, [LONG], [{**ASKED, "instructions": f"Which of these {k}?"} for k in range(4)]),
            )

        expected = answers()
        engine.model.train()
        engine.model.gradient_checkpointing_enable()
        engine.model.model.layers[0].eval()
        modes = [module.training for module in engine.model.modules()]
        assert answers() == expected
        assert [module.training for module in engine.model.modules()] == modes
        one, other = (engine.score_batch([pair], grad=True)[0].logprobs.tolist() for _ in range(2))
        assert one != other, "the trainer's mode"


def test_a_callers_autocast_reaches_no_answer_and_no_score(text: GenerationEngine) -> None:
    torch = importlib.import_module("torch")
    pair = ("The capital", " of France is Paris.")

    def logprobs() -> list[float]:
        [result] = text.generate_text_batch([COUNT], {"max_new_tokens": 8, "logprobs": 0}, cache=False)
        [score] = text.score_batch([pair])
        return [*result.logprobs, *score.logprobs]  # type: ignore[misc]

    expected = logprobs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert logprobs() == pytest.approx(expected, abs=1e-4)


def test_a_trainers_autocast_stays_for_scores_with_gradient(shared: Load) -> None:
    torch = importlib.import_module("torch")
    engine, pair = shared(TEXT, "hf"), ("The capital", " of France is Paris.")
    [plain] = engine.score_batch([pair], grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        [rounded] = engine.score_batch([pair], grad=True)
    assert not torch.allclose(plain.logprobs, rounded.logprobs, atol=1e-4)


def test_weights_written_through_bare_meet_no_cached_answer(other: Path) -> None:
    with open_engine(TEXT, "hf", cache={}) as engine:
        [before] = engine.generate_text_batch([COUNT])
        with engine.bare(read_only=True):
            pass
        assert engine.generate_text_batch([COUNT])[0].cached
        with engine.bare() as model:
            model.load_state_dict(weights_of(other), strict=False)
        [after] = engine.generate_text_batch([COUNT])
        assert not after.cached and after.token_ids != before.token_ids


def test_answers_of_weights_that_are_being_written_are_in_no_cache(other: Path) -> None:
    store: dict[str, str] = {}
    new = {"prompt": "Count to 4."}
    with open_engine(TEXT, "hf", cache=store) as engine:
        [before] = engine.generate_text_batch([COUNT], SHORT)
        with engine.bare() as model:
            model.load_state_dict(weights_of(other), strict=False)
            [inside, _] = engine.generate_text_batch([COUNT, new], SHORT)
        assert not inside.cached and inside.token_ids != before.token_ids
    with open_engine(TEXT, "hf", cache=store) as engine:
        [same, own] = engine.generate_text_batch([COUNT, new], SHORT)
        assert same.cached and not own.cached


def test_vllm_keeps_no_state_of_a_prompt_while_its_weights_are_being_written(tmp_path: Path) -> None:
    """A prompt of whole blocks: what is known of it is of the weights before."""
    request = {"prompt": "The capital of France is Paris. " * 40}
    options = {"max_new_tokens": 1, "logprobs": 0}
    (tmp_path / "in.jsonl").write_text(json.dumps(request) + "\n")

    def halve(worker: Any) -> None:
        worker.model_runner.model.model.embed_tokens.weight.data.mul_(0.5)

    with open_engine(TEXT, "vllm") as engine:
        with engine.bare() as llm:
            engine.generate_text_batch([request], options)
            llm.collective_rpc(halve)
            answer_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", engine, options)
            [inside] = engine.generate_text_batch([request], options)
        [after] = engine.generate_text_batch([request], options)
        assert inside.logprobs == after.logprobs
        assert json.loads((tmp_path / "out.jsonl").read_text())["logprobs"] == list(after.logprobs or ())


@pytest.mark.parametrize("raised", [None, KeyError("the caller's own")], ids=["left", "raised"])
def test_bare_that_is_over_lets_vllm_use_its_prefix_cache_again(
    shared: Load, monkeypatch: pytest.MonkeyPatch, raised: Exception | None
) -> None:
    engine = shared(TEXT, "vllm")
    forgotten: list[None] = []
    monkeypatch.setattr(engine.backend, "forget", lambda: forgotten.append(None))
    with contextlib.suppress(KeyError), engine.bare():
        with engine.bare():
            pass
        forgotten.clear()
        engine.generate_text_batch([COUNT])
        assert forgotten, "the outer block may still write"
        if raised is not None:
            raise raised
    forgotten.clear()
    engine.generate_text_batch([COUNT])
    assert forgotten == []


def test_answers_of_before_are_forgotten_where_bare_ends_in_an_error() -> None:
    with open_engine(TEXT, "hf", cache={}) as engine:
        engine.generate_text_batch([COUNT])
        with pytest.raises(KeyError), engine.bare():
            raise KeyError("the caller's own")
        assert not engine.generate_text_batch([COUNT])[0].cached


def test_weights_that_do_not_fit_are_refused(backend: str) -> None:
    torch: Any = importlib.import_module("torch")
    wrong: list[Any] = [{"no.such.weight": torch.zeros(2)}, [("a",)], {"model.norm.weight": 5}]
    with open_engine(TEXT, backend) as engine:
        for weights in wrong:
            with pytest.raises(OptionError):
                engine.update_weights(weights)


@pytest.mark.parametrize("shape", [(64, 192), (12_288,), (1, 192, 64)], ids=str)
def test_update_weights_of_as_many_numbers_in_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    name = "model.layers.0.mlp.gate_proj.weight"
    with open_engine(TEXT, "hf") as engine:
        [before] = engine.generate_text_batch([COUNT])
        with pytest.raises(OptionError, match=r"has the shape .*must be \(192, 64\)"):
            engine.update_weights({name: weights_of(TEXT)[name].reshape(shape)})
        assert engine.generate_text_batch([COUNT])[0].token_ids == before.token_ids


def test_a_fallback_with_the_checkpoints_weights_is_refused(other: Path) -> None:
    with open_engine(TEXT, "vllm", fallback_backend="hf") as engine:
        assert engine.generate_text_batch([COUNT], {"temperature": 3.0})[0].fallback_from == "vllm"
        engine.update_weights(weights_of(other))
        with pytest.raises(UnsupportedError, match="a temperature that is not"):
            engine.generate_text_batch([COUNT], {"temperature": 3.0})
