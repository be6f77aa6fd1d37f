"""ms-swift's inference engine for transformers: chats in batches, with and without an image."""

from __future__ import annotations

import functools
from typing import Any

import torch
from swift.infer_engine import InferRequest, RequestConfig, TransformersEngine

MODEL_TYPES = {"qwen3": "qwen3", "chatml": "llama", "qwen3_vl": "qwen3_vl"}


@functools.cache
def loaded(model_path: str, dtype: str, template: str) -> Any:
    engine = TransformersEngine(
        model_path,
        model_type=MODEL_TYPES[template],
        template_type=template,
        torch_dtype=getattr(torch, dtype),
        max_batch_size=4,
        device_map="cpu",
    )
    if template == "qwen3_vl":  # its class holds the number that Qwen's own vocabulary has
        engine.template.image_token_id = engine.model.config.image_token_id
    return engine


def infer(
    model_path: str,
    dtype: str,
    template: str,
    chats: list[list[dict[str, Any]]],
    config: dict[str, Any],
    images: list[list[str]] | None = None,
    torch_seed: int | None = None,
) -> list[dict[str, Any]]:
    """config: fields of RequestConfig. images: paths for each chat, for its <image> tags."""
    engine = loaded(model_path, dtype, template)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    requests = []
    for index, chat in enumerate(chats):
        pictures = images[index] if images else []
        requests.append(InferRequest(messages=chat, images=pictures))
    responses = engine.infer(requests, RequestConfig(**config), use_tqdm=False)
    answers = []
    for response in responses:
        [choice] = response.choices
        answers.append({"content": choice.message.content, "finish_reason": choice.finish_reason})
    return answers
