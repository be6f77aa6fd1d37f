"""The visual dump tool on the engine: the criterion and the processor are one plugin each."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from typing import Any

from gen_engine import GenerationEngine, Plugin, load, load_image


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path, logits_hooks=True)


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


class StopOnBalancedJson(Plugin):
    name = "balanced-json"

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return balanced(text)


class SuppressDuplicates(Plugin):
    """No `size` tokens in a row twice, in what was generated."""

    name = "suppress-duplicates"

    def __init__(self, size: int) -> None:
        self.size = size

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        tail = token_ids[len(token_ids) - self.size + 1 :]
        for start in range(len(token_ids) - self.size + 1):
            if token_ids[start : start + self.size - 1] == tail:
                logits[token_ids[start + self.size - 1]] = -float("inf")
        return logits


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
    # Upright, as EXIF says; the old tool let them lie. Alpha is dropped, as it was.
    images = [load_image(path, background=None) for path in image_paths]
    content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": question}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    request = {"messages": messages, "chat": {"enable_thinking": True}}  # nobody had switched it off
    options = {"max_new_tokens": max_new_tokens, "repetition_penalty": 1.05}  # from the checkpoint, unasked
    plugins = [StopOnBalancedJson(), *([SuppressDuplicates(no_repeat)] if no_repeat else [])]
    [result] = engine(model_path).generate_vlm_batch([request], options, plugins=plugins)
    return {
        "images": [{"name": os.path.basename(p), "size": list(i.size)} for p, i in zip(image_paths, images)],
        "objects": _objects(result.text),
        "text": result.text,
    }


def dump_each(model_path: str, image_paths: list[str], **options: Any) -> str:
    """One JSON line per picture."""
    return "\n".join(json.dumps(dump(model_path, [path], **options), sort_keys=True) for path in image_paths)
