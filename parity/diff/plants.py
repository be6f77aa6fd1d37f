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
            changed = change(value.float())
            weight.copy_(changed)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in old:
                weight.copy_(value)


def int8(value: Any) -> Any:
    """Symmetric, one scale per output channel."""
    scale = scale_of(value, 127)
    return (value / scale).round() * scale


def fp8(value: Any) -> Any:
    """float8_e4m3fn, one scale per output channel."""
    import torch

    scale = scale_of(value, 448)
    eight = (value / scale).to(torch.float8_e4m3fn)
    return eight.float() * scale


def int4(value: Any) -> Any:
    """Symmetric, one scale for each 32 weights of a channel."""
    groups = value.reshape(-1, 32)
    scale = scale_of(groups, 7)
    rounded = (groups / scale).round() * scale
    return rounded.reshape(value.shape)


def scale_of(value: Any, most: float) -> Any:
    """One per row: what the row's largest weight is divided by to become `most`."""
    largest = value.abs().amax(-1, keepdim=True)
    return largest.clamp(min=1e-12) / most
