"""The weights that vLLM runs against the checkpoint's, joined and packed as vLLM does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from parity.judge.numerics.vllm_weights import first_other, other_weight
from parity.tests.conftest import TEXT, Load

EXPERTS, HIDDEN, INNER = 3, 8, 6


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    tensors = {"model.embed_tokens.weight": torch.randn(10, HIDDEN, generator=draw)}
    layer = "model.layers.0"
    for name in ("q_proj", "k_proj", "v_proj"):
        rows = HIDDEN if name == "q_proj" else HIDDEN // 2
        tensors[f"{layer}.self_attn.{name}.weight"] = torch.randn(rows, HIDDEN, generator=draw)
    tensors[f"{layer}.self_attn.o_proj.weight"] = torch.randn(HIDDEN, HIDDEN, generator=draw)
    for expert in range(EXPERTS):
        for name in ("gate_proj", "up_proj"):
            key = f"{layer}.mlp.experts.{expert}.{name}.weight"
            tensors[key] = torch.randn(INNER, HIDDEN, generator=draw)
        key = f"{layer}.mlp.experts.{expert}.down_proj.weight"
        tensors[key] = torch.randn(HIDDEN, INNER, generator=draw)
    save_file(tensors, folder / "model.safetensors")
    return tensors


def parameter(value: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(value, requires_grad=False)


def module(**tensors: torch.Tensor) -> Any:
    made = torch.nn.Module()
    for name, value in tensors.items():
        made.register_parameter(name, parameter(value.bfloat16()))
    return made


def as_vllm(tensors: dict[str, torch.Tensor]) -> Any:
    """One layer: q, k and v are one tensor, the output projection has none, experts are shuffled."""
    own = {name.removeprefix("model.layers.0."): value for name, value in tensors.items()}
    model, layer, attention = torch.nn.Module(), torch.nn.Module(), torch.nn.Module()
    joined = torch.cat([own[f"self_attn.{name}.weight"] for name in ("q_proj", "k_proj", "v_proj")])
    attention.qkv_proj = module(weight=joined)
    attention.o_proj = module(weight=torch.empty(0))
    packed = own["self_attn.o_proj.weight"].bfloat16()
    attention.o_proj.cpu_linear = lambda x, weight, bias: x @ packed.T
    gate, up, down = (
        torch.stack([own[f"mlp.experts.{k}.{name}.weight"] for k in range(EXPERTS)])
        for name in ("gate_proj", "up_proj", "down_proj")
    )
    mlp = torch.nn.Module()
    mlp.experts = module(w13_weight=torch.cat([gate.flip(2), up.flip(2)], 1), w2_weight=down.flip(1))
    layer.self_attn, layer.mlp = attention, mlp
    padded = torch.cat([tensors["model.embed_tokens.weight"], torch.zeros(6, HIDDEN)])
    model.model = torch.nn.Module()
    model.model.embed_tokens = module(weight=padded)
    model.model.layers = torch.nn.ModuleList([layer])
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return model


def test_weights_of_the_checkpoint_are_no_other_ones(tmp_path: Path) -> None:
    assert first_other(as_vllm(checkpoint(tmp_path)), str(tmp_path)) == ""


def scaled(get: Callable[[Any], Any], factor: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        get(model.model.layers[0]).mul_(factor)

    return change


def other_output(model: Any) -> None:
    output = model.model.layers[0].self_attn.o_proj
    linear = output.cpu_linear
    output.cpu_linear = lambda x, weight, bias: linear(x, weight, bias) * 1.02


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (scaled(lambda layer: layer.mlp.experts.w13_weight[1, INNER:], 1.2), "experts.1.up_proj"),
        (scaled(lambda layer: layer.mlp.experts.w2_weight[2], 1.02), "experts.2.down_proj"),
        (scaled(lambda layer: layer.self_attn.qkv_proj.weight[HIDDEN : HIDDEN + 4], 1.01), "k_proj"),
        (other_output, "o_proj"),
        (lambda model: model.model.embed_tokens.weight[:10].mul_(1.01), "embed_tokens"),
    ],
)
def test_first_other_names_the_tensor(tmp_path: Path, change: Callable[[Any], None], name: str) -> None:
    model = as_vllm(checkpoint(tmp_path))
    change(model)
    assert name in first_other(model, str(tmp_path))


def test_float32_that_was_rounded_before_is_no_other(tmp_path: Path) -> None:
    """As some kernels hold a bias."""
    model = as_vllm(checkpoint(tmp_path))
    joined = model.model.layers[0].self_attn.qkv_proj
    joined.weight = parameter(joined.weight.float())
    assert first_other(model, str(tmp_path)) == ""


def test_quantized_weights_are_not_compared(tmp_path: Path) -> None:
    parts = SimpleNamespace(parallel_config=SimpleNamespace(world_size=1))
    running = SimpleNamespace(
        model_config=SimpleNamespace(quantization="fp8"),
        vllm_config=parts,
        engine_core=SimpleNamespace(engine_core=object()),
    )
    engine = SimpleNamespace(backend=SimpleNamespace(model=SimpleNamespace(llm_engine=running)))
    assert other_weight(engine, str(tmp_path)) == ""


def test_loaded_vllm_runs_its_checkpoint_until_a_tensor_is_moved(shared: Load) -> None:
    engine = shared(TEXT, "vllm")
    assert other_weight(engine, str(TEXT)) == ""

    def moved_by(factor: float) -> None:
        def change(model: Any) -> None:
            model.model.layers[1].input_layernorm.weight.data.mul_(factor)

        engine.backend.model.apply_model(change)

    moved_by(2.0)
    try:
        assert other_weight(engine, str(TEXT)) == "model.layers.1.input_layernorm.weight"
    finally:
        moved_by(0.5)
    assert other_weight(engine, str(TEXT)) == ""
