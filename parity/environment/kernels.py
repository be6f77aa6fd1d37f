"""Kernels that are known to be biased where they should round, and whether they are in use here:
`doctor`, `check` and `diff` name them.

known_biases("vllm", "bfloat16")    a clause each: what, and what is without it; () where none is
old_path_defects(folder, "sdpa")    what the old code's own library leaves out of a model
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BACKEND, DTYPE = "vllm", "bfloat16"  # of all that are known
ELSEWHERE = "float16, float32 and hf are not touched by it"
BLOCK = 128  # of vLLM on a CPU, where nobody sets another


@dataclass(frozen=True, slots=True)
class Bias:
    """is_here: whether such kernels are in use.   what: they do.   brief: the same for a table."""

    is_here: Callable[[], bool]
    what: str
    brief: str

    def __str__(self) -> str:
        return f"{self.what}: {ELSEWHERE}"


def cuts_bfloat16() -> bool:
    """Whether vLLM's kernels here cut bits off where they should round: on a CPU without
    AVX512-BF16, and on any before 0.17. All log-probabilities move one way then. Seen of 1/√5,
    which lies between 0.4453 and 0.4473; not of a build that has no such kernel."""
    import torch

    if not is_on_cpu():
        return False
    importlib.import_module("vllm._custom_ops")  # loads the kernels
    if not hasattr(torch.ops._C, "rms_norm"):
        return False
    values = torch.tensor([[1.0, 3.0] * 8], dtype=torch.bfloat16)
    normed = torch.empty_like(values)
    torch.ops._C.rms_norm(normed, values, torch.ones_like(values[0]), 0.0)
    return float(normed[0, 0]) < 0.446


def attends_with_amx() -> bool:
    """Whether vLLM's attention takes its kernels for AMX here, by its own choice. On SmolLM2 they
    move the scale of attention by half a percent (parity/judge/rounding.md)."""
    import torch

    if not is_on_cpu():
        return False
    attention = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
    choose = getattr(attention, "_get_attn_isa", None)  # releases before it have no such kernels
    return choose is not None and choose(torch.bfloat16, BLOCK) == "amx"


def is_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


BIASES = (
    Bias(
        cuts_bfloat16,
        "vLLM's kernels cut bfloat16 off on this CPU, and do not round",
        "bfloat16 is cut off, not rounded",
    ),
    Bias(
        attends_with_amx,
        "vLLM's attention uses AMX on this CPU, which in bfloat16 moves its scale by about 0.5 %",
        "bfloat16 attention is biased (AMX)",
    ),
)


def biases(backend: str, dtype: str | None) -> list[Bias]:
    """Those in use for a path. Imports vLLM, for its paths in bfloat16 only."""
    if (backend, dtype) != (BACKEND, DTYPE):
        return []
    return [bias for bias in BIASES if bias.is_here()]


def known_biases(backend: str, dtype: str | None) -> tuple[str, ...]:
    return tuple(map(str, biases(backend, dtype)))


# == What the old path leaves out ==


def old_path_defects(folder: str, attention: str | None) -> tuple[str, ...]:
    """Of plain transformers on a checkpoint.   attention: that the golden names.

    transformers' sdpa has no place for the cap that Gemma 2 puts on attention logits, and leaves it
    out without a word; its eager attention and vLLM have it. So old and new differ, by 0.05 nats of
    logit, and the old code is the one that is wrong."""
    file = Path(folder, "config.json")
    if attention not in (None, "sdpa") or not file.is_file():
        return ()
    config = json.loads(file.read_text(encoding="utf-8"))
    cap = config.get("text_config", config).get("attn_logit_softcapping")
    if not cap:
        return ()
    told = f"the old code's attention (sdpa) leaves out this model's attn_logit_softcapping ({cap})"
    return (f"{told}, which eager and vLLM apply: record it with attn_implementation='eager'",)
