"""Quantized loading: the libraries' own, reached through hf_kwargs and vllm_kwargs."""

from __future__ import annotations

import importlib
import json
from typing import Any

from parity.models.tasks import text_tasks

from ..conftest import SMALL, TEXT, of_task, open_engine

TASKS = text_tasks(20)


def int8(backend: str) -> dict[str, Any]:
    """Weights in int8, by torchao, as each library wants to be told."""
    config = importlib.import_module("torchao.quantization").Int8WeightOnlyConfig()
    if backend == "hf":
        return {"hf_kwargs": {"quantization_config": importlib.import_module("transformers").TorchAoConfig(config)}}
    said = json.dumps(importlib.import_module("torchao.core.config").config_to_dict(config))
    how = {"quantization": "torchao", "hf_overrides": {"quantization_config_dict_json": said}}
    return {"vllm_kwargs": {**SMALL["vllm"]["vllm_kwargs"], **how}}


def quantized(engine: Any) -> bool:
    if engine.backend.name == "hf":
        return "Int8" in type(engine.model.model.layers[0].mlp.up_proj.weight).__name__
    [kind] = engine.model.apply_model(lambda model: type(model.model.layers[0].mlp.gate_up_proj.weight).__name__)
    return "Int8" in kind


def test_an_int8_model_is_int8_and_still_answers_right(backend: str) -> None:
    with open_engine(TEXT, backend, **int8(backend)) as engine:
        assert quantized(engine)
        results = engine.generate_text_batch([of_task(task) for task in TASKS])
    assert [result.text for result in results] == [task.answer for task in TASKS]
