"""Faults that are planted into a loaded model's weights, to show what a comparison sees."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def matrices(model: Any) -> Iterator[Any]:
    """What a quantizer would take: matrices of the layers, not embedding, head and router."""
    for name, weight in model.named_parameters():
        if "layers." in name and weight.dim() >= 2 and "mlp.gate.weight" not in name:
            yield weight


@contextlib.contextmanager
def rewritten(model: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    import torch

    old = [(weight, weight.detach().clone()) for weight in matrices(model)]
    with torch.no_grad():
        for weight, value in old:
            weight.copy_(change(value.float()).to(weight.dtype))
    yield
    with torch.no_grad():
        for weight, value in old:
            weight.copy_(value)


def int8(value: Any) -> Any:
    """Symmetric, one scale per output channel."""
    scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (value / scale).round() * scale


def fp8(value: Any) -> Any:
    """float8_e4m3fn, one scale per output channel."""
    import torch

    scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (value / scale).to(torch.float8_e4m3fn).float() * scale
