"""Do the weights that a loaded vLLM runs come from the checkpoint? As hf's do by their digest.

A fault in few weights, such as one expert of one layer, moves few tokens and hides among rounding.
vLLM joins tensors (q, k and v; all experts) and packs them for its kernels, some so that no tensor
is left. So each of the checkpoint's tensors is compared by sums that no packing changes, and a
linear layer whose tensor is gone by what it makes of random inputs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.judge.numerics.processed import Tensor
from parity.judge.numerics.reading import local_path
from parity.record.taps.models import tensors_in

SUMS_APART = 1e-5  # relative: both are of the same values, added in another order
SLOPE_APART = {"float32": 1e-4}  # of a layer's outputs; clean: its rounding
SLOPE_APART_ELSE = 8e-3  # bfloat16 and float16, also where kernels cut bits off
INPUTS = 16  # random rows that a packed layer is asked
EXPERT = re.compile(r"(.*experts)\.(\d+)\.(\w+)\.weight")
HALVES = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1}  # of a fused expert's rows


def other_weight(engine: Any, path: str) -> str:
    """The first tensor of the checkpoint that a gen_engine on vLLM does not run, or "" where none
    was seen; also where its model is in another process, quantized or in parts."""
    model = getattr(engine.backend, "model", None)
    running = getattr(model, "llm_engine", None)
    if model is None or running is None or not is_readable(running):
        return ""
    compare = functools.partial(first_other, folder=local_path(path))
    [found] = model.apply_model(compare)
    return str(found)


def is_readable(running: Any) -> bool:
    """Whether the model is in this process, whole and not quantized."""
    is_here = getattr(running.engine_core, "engine_core", None) is not None
    parts = running.vllm_config.parallel_config.world_size
    return is_here and parts == 1 and not running.model_config.quantization


def first_other(model: Any, folder: str) -> str:
    running = Running.of(model)
    shapes = {name: list(tensor.shape) for name, tensor in tensors_in(folder)}
    for name, tensor in tensors_in(folder):
        if running.has_other(name, tensor, shapes):
            return name
    return ""


def short_name(name: str) -> str:
    """From the list of layers on: libraries put other names before it."""
    parts = name.replace(".base_layer", "").split(".")
    numbers = [k for k, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[max(0, numbers[0] - 1) :] if numbers else parts[-2:])


# == What runs ==


@dataclass
class Running:
    """A model that vLLM has loaded.   parameters: by short name; None where two share it.
    packed: name of a joined module -> those that it is joined of.   modules: by short name."""

    parameters: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, Any] = field(default_factory=dict)
    packed: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any) -> Running:
        running = cls(packed=dict(getattr(model, "packed_modules_mapping", None) or {}))
        for name, parameter in model.named_parameters():
            short = short_name(name)
            running.parameters[short] = None if short in running.parameters else parameter
        for name, module in model.named_modules():
            running.modules[short_name(f"{name}.weight")] = module
        return running

    def has_other(self, name: str, tensor: Tensor, shapes: Mapping[str, list[int]]) -> bool:
        """Whether something else runs in a tensor's place; no where its place is not found."""
        expert = EXPERT.fullmatch(short_name(name))
        if expert is not None:
            return self._has_other_expert(expert, tensor)
        short, first = self._place_of(name, shapes)
        parameter = self.parameters.get(short)
        if parameter is None or tensor.ndim == 0:
            return False
        if parameter.numel() == 0:
            return self._computes_other(short, first, tensor)
        rows = tensor.shape[0]
        if parameter.ndim == tensor.ndim and parameter.shape[0] >= first + rows:
            own = parameter.detach()[first : first + rows]
            return own.shape == tensor.shape and has_other_sums(own, tensor)
        return False

    def _place_of(self, name: str, shapes: Mapping[str, list[int]]) -> tuple[str, int]:
        """Short name of the parameter that holds a tensor, and its first row there."""
        short = short_name(name)
        if self.parameters.get(short) is not None:
            return short, 0
        for joined, parts in self.packed.items():
            for k, part in enumerate(parts):
                if f".{part}." not in f".{name}" or part == joined:
                    continue
                siblings = [name.replace(f"{part}.", f"{other}.") for other in parts[:k]]
                first = sum(shapes[one][0] for one in siblings if one in shapes)
                return short.replace(f"{part}.", f"{joined}."), first
        return short, 0

    def _has_other_expert(self, expert: re.Match[str], tensor: Tensor) -> bool:
        prefix, number, part = expert.groups()
        kind = "w13_weight" if part in HALVES else "w2_weight"
        for short, parameter in self.parameters.items():
            if short.startswith(prefix) and short.endswith(kind) and parameter is not None:
                return self._differs_in_expert(parameter, int(number), part, tensor)
        return False

    def _differs_in_expert(self, parameter: Tensor, number: int, part: str, tensor: Tensor) -> bool:
        """Packing moves values within a half of an expert's rows, or within the whole of it."""
        if number >= parameter.shape[0]:
            return False
        own = parameter.detach()[number]
        if part not in HALVES:
            return has_other_sums(own, tensor)
        half = own.shape[0] // 2
        first = HALVES[part] * half
        return has_other_sums(own[first : first + half], tensor)

    def _computes_other(self, short: str, first: int, tensor: Tensor) -> bool:
        """Of a linear layer whose tensor is gone: do its outputs go with the checkpoint's?"""
        import torch

        module = self.modules.get(short)
        linear = getattr(module, "cpu_linear", None)
        if linear is None or tensor.ndim != 2:
            return False
        dtype = module.weight.dtype  # type: ignore[union-attr]
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(INPUTS, tensor.shape[1], generator=generator).to(dtype)
        made = linear(inputs, module.weight, None).float()  # type: ignore[union-attr]
        made = made[:, first : first + tensor.shape[0]]
        expected = inputs.float() @ tensor.to(dtype).float().T
        slope = float((made * expected).sum() / (expected**2).sum().clamp(min=1e-30))
        name = str(dtype).removeprefix("torch.")
        return abs(slope - 1) > SLOPE_APART.get(name, SLOPE_APART_ELSE)


def has_other_sums(own: Tensor, tensor: Tensor) -> bool:
    """Of values and of their squares, in the type that runs. Some kernels of half precision hold a
    bias in float32 that was rounded before."""
    import torch

    if own.dtype != torch.float32:
        return has_sums_apart(own, tensor)
    types = (torch.float32, torch.bfloat16, torch.float16)
    return all(has_sums_apart(own, tensor.to(dtype)) for dtype in types)


def has_sums_apart(own: Tensor, tensor: Tensor) -> bool:
    values = own.double()
    expected = tensor.to(own.dtype).double()
    size = float(expected.abs().sum())
    squares = float((expected**2).sum())
    moved = abs(float(values.sum() - expected.sum().to(values.device)))
    grown = abs(float((values**2).sum()) - squares)
    return moved > SUMS_APART * size or grown > SUMS_APART * squares
