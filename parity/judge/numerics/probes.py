"""One thing in a loaded transformers model, moved for as long as a block lasts.

Each yields whether the model has it. The reference with one of them moved by PROBED gives the
directions that faults have (reading.read_probes).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

PROBED = 1.01  # probes move one thing by this factor


@contextlib.contextmanager
def moved_theta(model: Any, factor: float) -> Iterator[bool]:
    """The base of the rotary embedding times `factor`."""
    frequencies = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    before = [buffer.clone() for buffer in frequencies]
    for buffer in frequencies:
        size = len(buffer)
        buffer.mul_(buffer.new_tensor([factor ** -(k / size) for k in range(size)]))
    try:
        yield bool(frequencies)
    finally:
        for buffer, value in zip(frequencies, before):
            buffer.copy_(value)


@contextlib.contextmanager
def moved_attention(model: Any, factor: float) -> Iterator[bool]:
    """The scale of attention times `factor`."""
    scaled = [m for m in model.modules() if isinstance(getattr(m, "scaling", None), float)]
    before = [module.scaling for module in scaled]
    for module in scaled:
        module.scaling *= factor
    try:
        yield bool(scaled)
    finally:
        for module, value in zip(scaled, before):
            module.scaling = value


@contextlib.contextmanager
def moved_logits(model: Any, factor: float) -> Iterator[bool]:
    """The head's output times `factor`."""
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, inputs, logits: logits * factor)
    try:
        yield True
    finally:
        hook.remove()


PROBES = {"rope theta": moved_theta, "attention scale": moved_attention, "logits": moved_logits}
