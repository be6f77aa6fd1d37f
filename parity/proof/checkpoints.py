"""Checkpoints made on the spot, and what can be wrong with them: what the referee is proved on.

Random weights, drawn wide: such models are unsure at every step (flat), which is where rounding shows most. They have
the tiny checkpoint's tokenizer, so gen_engine loads them like any other.

Map: shapes, rows, faults of a loaded model, faults of a checkpoint's files.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.diff.plants import fp8, int8, matrices, rewritten
from parity.judge.numerics.probes import moved_attention, moved_logits

TOKENIZER = Path(__file__).parents[2] / "golden/models/tiny-qwen3"
WINDOW = 48  # tokens of the sliding window: prompts are shorter, prompts with answers longer

COMMON: Mapping[str, Any] = {
    "vocab_size": 576,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """An architecture. config: the class in transformers.   own: fields beside COMMON.   spread: of the weights.
    embedding: a factor on the embedding's; Gemma multiplies it by the root of the width, and would repeat its input."""

    name: str
    config: str
    own: Mapping[str, Any]
    spread: float = 0.1
    embedding: float = 1.0


SHAPES = (
    Shape("qwen3", "Qwen3Config", {"tie_word_embeddings": True}),
    Shape("llama", "LlamaConfig", {"tie_word_embeddings": False}),
    Shape("gemma2", "Gemma2Config", {"sliding_window": WINDOW, "query_pre_attn_scalar": 64}, embedding=0.3),
    Shape(
        "moe",
        "Qwen3MoeConfig",
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "num_hidden_layers": 6,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
        },
    ),
)


def make(shape: Shape, dtype: str, folder: Path, *, seed: int = 0) -> Path:
    """A checkpoint of about 25 M random weights, saved in `dtype`."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    fields = {**COMMON, **shape.own, **ends, "initializer_range": shape.spread}
    config = getattr(transformers, shape.config)(**fields)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.get_input_embeddings().weight.data.mul_(shape.embedding)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# == Faults of a loaded model ==


@contextlib.contextmanager
def norm_eps(model: Any, eps: float) -> Iterator[None]:
    norms = [
        (m, name)
        for m in model.modules()
        for name in ("variance_epsilon", "eps")
        if isinstance(getattr(m, name, None), float)
    ]
    old = [getattr(module, name) for module, name in norms]
    for module, name in norms:
        setattr(module, name, eps)
    yield
    for (module, name), value in zip(norms, old):
        setattr(module, name, value)


@contextlib.contextmanager
def pads_visible(model: Any, rows: float) -> Iterator[None]:
    """The first share `rows` of each batch is read without its mask, positions counted from the padding's first."""
    import torch

    def unmask(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        mask, positions = kwargs["attention_mask"].clone(), kwargs["position_ids"].clone()
        some = max(1, round(rows * len(mask)))
        mask[:some], positions[:some] = 1, torch.arange(mask.shape[1])
        return args, {**kwargs, "attention_mask": mask, "position_ids": positions}

    hook = model.base_model.register_forward_pre_hook(unmask, with_kwargs=True)
    yield
    hook.remove()


def low_rank(value: Any) -> Any:
    """A matrix of rank 8 added to each, 1 % of its norm: as a trained adapter changes a model."""
    import torch

    generator = torch.Generator().manual_seed(value.shape[-2] * value.shape[-1])
    left = torch.randn(*value.shape[:-1], 8, generator=generator)
    right = torch.randn(*value.shape[:-2], 8, value.shape[-1], generator=generator)
    change = left @ right
    return value + change * (0.01 * value.norm() / change.norm())


@contextlib.contextmanager
def one_row(model: Any, factor: float) -> Iterator[None]:
    """One row of one matrix in the middle of the model."""
    import torch

    weight = list(matrices(model))[len(list(matrices(model))) // 2]
    row = weight[..., 3, :] if weight.dim() == 2 else weight[0, 3, :]
    with torch.no_grad():
        old = row.clone()
        row.mul_(factor)
        yield
        row.copy_(old)


@contextlib.contextmanager
def swapped_experts(model: Any, layer: float) -> Iterator[None]:
    """Experts 0 and 1 of one layer change places."""
    import torch

    experts = model.base_model.layers[int(layer)].mlp.experts
    pairs = [weight for weight in experts.parameters() if weight.dim() == 3]

    def swap() -> None:
        with torch.no_grad():
            for weight in pairs:
                weight[[0, 1]] = weight[[1, 0]]

    swap()
    yield
    swap()


@dataclass(frozen=True, slots=True)
class Fault:
    """plant: makes it in a loaded model, while the context lasts.   small: expected below the margin.
    only: the shape that can have it.   never: one that cannot."""

    name: str
    plant: Callable[[Any], contextlib.AbstractContextManager[Any]]
    small: bool = False
    only: str = ""
    never: str = ""

    def fits(self, name: str) -> bool:
        return self.only in ("", name) and self.never != name


LOADED = (
    Fault("attention scale x 1.01", lambda m: moved_attention(m, 1.01)),
    Fault("head x 1.01", lambda m: moved_logits(m, 1.01)),
    Fault("pads visible", lambda m: pads_visible(m, 1.0)),
    Fault("pads visible, one row of 4", lambda m: pads_visible(m, 0.25)),
    Fault("int8 weights per channel", lambda m: rewritten(m, int8)),
    Fault("fp8 weights per channel", lambda m: rewritten(m, fp8)),
    Fault("experts 0 and 1 of a layer swapped", lambda m: swapped_experts(m, 2), only="moe"),
    Fault("one row of one matrix x 1.5", lambda m: one_row(m, 1.5), small=True),
    Fault("weights + a low-rank 1 %", lambda m: rewritten(m, low_rank)),
    Fault("norm eps 1e-6 to 1e-5", lambda m: norm_eps(m, 1e-5), small=True, never="smollm2"),  # which has 1e-5
)


# == Faults of a checkpoint's files ==


def other_theta(config: dict[str, Any], factor: float) -> None:
    place = config.get("rope_parameters") or config
    place["rope_theta"] = place.get("rope_theta", 10000.0) * factor


def other_window(config: dict[str, Any]) -> None:
    """Half the window where there is one; where there is none, one."""
    if config["model_type"] == "gemma2":
        config["sliding_window"] = WINDOW // 2
    else:
        layers = config["num_hidden_layers"]
        config.update(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0)
        config["layer_types"] = ["sliding_attention"] * layers


FILES: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "rope theta x 1.01": lambda config: other_theta(config, 1.01),
    "rope theta x 1.001": lambda config: other_theta(config, 1.001),
    "a wrong sliding window": other_window,
}


def copy_with(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A checkpoint's files with another config."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    change(config)
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


def can_have(fault: str, name: str) -> bool:
    """Llama has no window in its config; the real model is one."""
    return not ("window" in fault and name in ("llama", "smollm2"))
