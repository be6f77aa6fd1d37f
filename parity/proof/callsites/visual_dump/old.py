"""Dump what the model says of a picture as JSON, for looking through by eye.

objects: whatever parses.  text: what was said.  size: of the picture, in pixels.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

_cache: dict[str, Any] = {}


def _load(model_path: str) -> tuple[Any, Any]:
    if model_path not in _cache:
        model = AutoModelForImageTextToText.from_pretrained(model_path, dtype="auto", device_map=None)
        _cache[model_path] = (model.eval(), AutoProcessor.from_pretrained(model_path, padding_side="left"))
    pair: tuple[Any, Any] = _cache[model_path]
    return pair


def balanced(text: str) -> bool:
    """Whether an opened brace or bracket has been closed again; braces inside strings do not count."""
    depth, seen, in_string, escaped = 0, False, False, False
    for char in text:
        if in_string:
            escaped, in_string = char == "\\" and not escaped, char != '"' or escaped
        elif char == '"':
            in_string = seen  # quotes before the first brace are prose
        elif char in "{[":
            depth, seen = depth + 1, True
        elif char in "}]" and seen:
            depth -= 1
            if depth == 0:
                return True
    return False


class StopOnBalancedJson(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, tokenizer: Any, prompt_length: int) -> None:
        self.tokenizer, self.prompt_length = tokenizer, prompt_length

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        texts = self.tokenizer.batch_decode(input_ids[:, self.prompt_length :], skip_special_tokens=True)
        return torch.tensor([balanced(text) for text in texts], device=input_ids.device)


class SuppressDuplicates(LogitsProcessor):  # type: ignore[misc]
    """No n tokens in a row twice, in what was generated. (no_repeat_ngram_size would look at the prompt as well.)"""

    def __init__(self, size: int, prompt_length: int) -> None:
        self.size, self.prompt_length = size, prompt_length

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        for row, ids in enumerate(input_ids[:, self.prompt_length :].tolist()):
            tail = ids[len(ids) - self.size + 1 :]
            for start in range(len(ids) - self.size + 1):
                if ids[start : start + self.size - 1] == tail:
                    scores[row, ids[start + self.size - 1]] = -float("inf")
        return scores


def _objects(text: str) -> list[Any]:
    start = min((text.find(c) for c in "{[" if c in text), default=-1)
    try:
        value = json.loads(text[start:]) if start >= 0 else []
    except json.JSONDecodeError:
        return []
    return value if isinstance(value, list) else [value]


def dump(
    model_path: str,
    image_paths: list[str],
    question: str = "What is in the picture? Answer in JSON.",
    system: str | None = None,
    max_new_tokens: int = 64,
    no_repeat: int = 0,
) -> dict[str, Any]:
    model, processor = _load(model_path)
    images = [Image.open(path).convert("RGB") for path in image_paths]
    content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": question}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    inputs = processor.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    prompt_length = inputs["input_ids"].shape[1]
    processors = [SuppressDuplicates(no_repeat, prompt_length)] if no_repeat else []
    with torch.inference_mode():
        output = model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([StopOnBalancedJson(processor.tokenizer, prompt_length)]),
            logits_processor=LogitsProcessorList(processors),
        )
    text = processor.decode(output[0][prompt_length:], skip_special_tokens=True)
    return {
        "images": [{"name": os.path.basename(p), "size": list(i.size)} for p, i in zip(image_paths, images)],
        "objects": _objects(text),
        "text": text,
    }


def dump_each(model_path: str, image_paths: list[str], **options: Any) -> str:
    """One JSON line per picture."""
    return "\n".join(json.dumps(dump(model_path, [path], **options), sort_keys=True) for path in image_paths)
