"""lighteval's transformers model, asked for documents as its pipeline asks."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from typing import Any

import torch
from lighteval.models.model_input import GenerationParameters
from lighteval.models.transformers.transformers_model import (
    TransformersModel,
    TransformersModelConfig,
)
from lighteval.tasks.requests import Doc


@functools.cache
def loaded(model_path: str, dtype: str, parameters: str, chat: bool, system: str | None) -> Any:
    """parameters: GenerationParameters as JSON. Answers are kept in a folder of this process."""
    config = TransformersModelConfig(
        model_name=model_path,
        dtype=dtype,
        batch_size=4,
        override_chat_template=chat,
        system_prompt=system,
        cache_dir=tempfile.mkdtemp(prefix="lighteval-"),
        generation_parameters=GenerationParameters(**json.loads(parameters)),
    )
    return TransformersModel(config)


def document(fields: dict[str, Any], call: str) -> Doc:
    """A document whose id names it and its call: lighteval answers equal ids from its cache."""
    name = hashlib.sha256(f"{call} {fields}".encode()).hexdigest()
    shots = [Doc(**shot, gold_index=0) for shot in fields.get("fewshot_samples", [])]
    given = {**fields, "fewshot_samples": shots}
    return Doc(**given, choices=[], gold_index=0, id=name, task_name="task|0")


def greedy_until(
    model_path: str,
    dtype: str,
    docs: list[dict[str, Any]],
    parameters: dict[str, Any],
    chat: bool = True,
    system: str | None = None,
    torch_seed: int | None = None,
) -> list[list[str]]:
    """The samples of each document. docs: fields of Doc. parameters: of GenerationParameters."""
    model = loaded(model_path, dtype, json.dumps(parameters), chat, system)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    call = f"{parameters} {chat} {system} {torch_seed}"
    responses = model.greedy_until([document(fields, call) for fields in docs])
    return [response.text for response in responses]
