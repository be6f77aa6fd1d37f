"""Engines of the moved call sites: one for each checkpoint and dtype, kept for the process."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from gen_engine import DType, GenerationEngine, load

__all__ = ["SamplingDefaults", "SavedSampling", "engine", "sampling_defaults", "saved_sampling"]

TOP_K_OF_TRANSFORMERS = (
    50  # what `generate` takes where do_sample is set and neither caller nor checkpoint says top_k
)


@functools.cache
def engine(model_path: str, dtype: DType) -> GenerationEngine:
    """The engine of a checkpoint. logits_hooks: scores need full logits on vLLM, too."""
    return load(model_path, dtype=dtype, logits_hooks=True, progress=False)


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What `generate` takes from the checkpoint where the caller does not say it."""

    repetition_penalty: float
    top_k: int | None
    top_p: float


@functools.cache
def sampling_defaults(model_path: str) -> SamplingDefaults:
    import transformers

    saved: Any = transformers.GenerationConfig.from_pretrained(model_path)
    top_k = TOP_K_OF_TRANSFORMERS if saved.top_k is None else saved.top_k
    return SamplingDefaults(
        repetition_penalty=saved.repetition_penalty or 1.0,
        top_k=top_k or None,
        top_p=1.0 if saved.top_p is None else saved.top_p,
    )


@dataclass(frozen=True, slots=True)
class SavedSampling:
    """Whether and how hot a checkpoint's generation_config.json wants to be sampled."""

    do_sample: bool
    temperature: float


@functools.cache
def saved_sampling(model_path: str) -> SavedSampling:
    import transformers

    saved: Any = transformers.GenerationConfig.from_pretrained(model_path)
    warm = 1.0 if saved.temperature is None else saved.temperature
    return SavedSampling(do_sample=bool(saved.do_sample), temperature=warm)
