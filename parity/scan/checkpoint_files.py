"""What the files of a checkpoint that is a folder here say about its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parity.goldens.folder import read_regular

MOST_BYTES = 64 << 20  # of a tokenizer.json


def doubles_bos(folder: Path) -> bool | None:
    """Whether a chat that the template renders and the tokenizer tokenizes again begins with two
    BOS; None where the files do not say."""
    try:
        return begins_twice(folder)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None  # they are not there, or not in a form that is known


def begins_twice(folder: Path) -> bool | None:
    config = read_json(folder / "tokenizer_config.json")
    bos = config.get("bos_token")
    bos = bos["content"] if isinstance(bos, dict) else bos
    if not bos or config.get("add_bos_token") is False:
        return False
    template = template_of(folder, config)
    if "bos_token" not in template and bos not in template:
        return False
    return config.get("add_bos_token") is True or begins_with_special_token(
        read_json(folder / "tokenizer.json")["post_processor"]
    )


def template_of(folder: Path, config: dict[str, Any]) -> str:
    """The text of the chat template, or of all of them."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return read_regular(file, MOST_BYTES, follow=True).decode()
    return json.dumps(config["chat_template"], ensure_ascii=False)


def begins_with_special_token(processor: dict[str, Any] | None) -> bool:
    """Whether a post-processor of a tokenizer.json puts a special token before a text."""
    if processor is None:
        return False
    if processor["type"] == "Sequence":
        return any(map(begins_with_special_token, processor["processors"]))
    single = processor.get("single", [])
    return bool(single) and "SpecialToken" in single[0]


def read_json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_regular(file, MOST_BYTES, follow=True))
    return found
