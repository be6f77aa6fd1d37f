"""What differs between the files of two checkpoints, before a model is loaded.

for note in file_notes("checkpoint-a", "checkpoint-b"): print(note)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
NOT_READ = ("_from_model_config", "eos_token_id", "transformers_version")


def read_json(folder: Path, name: str) -> Mapping[str, Any]:
    """The keys of a file; none where the folder has no such file, or it holds no object."""
    try:
        content = json.loads((folder / name).read_bytes())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def end_ids(folder: Path) -> list[int]:
    """The ids that end an answer, as the configs have them."""
    config = read_json(folder, CONFIG)
    found: set[int] = set()
    for keys in (config, config.get("text_config") or {}, read_json(folder, GENERATION)):
        ids = keys.get("eos_token_id")
        found.update(ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else [])
    return sorted(found)


def sampling_notes(a: Path, b: Path) -> Iterator[str]:
    old, new = read_json(a, GENERATION), read_json(b, GENERATION)
    names = [name for name in sorted({*old, *new} - {*NOT_READ}) if old.get(name) != new.get(name)]
    if names:
        values = ", ".join(f"{name} {old.get(name)!r} and {new.get(name)!r}" for name in names)
        yield (
            f"{GENERATION} differs ({values}): without effect here, each call sets all sampling "
            "options; code that lets transformers fill them in samples otherwise"
        )


def tokenizer_notes(a: Path, b: Path) -> Iterator[str]:
    old, new = (read_json(folder, TOKENIZER) for folder in (a, b))
    if not old or not new or old == new:
        return
    parts = []
    for part in ("vocab", "merges"):
        if old.get("model", {}).get(part) != new.get("model", {}).get(part):
            parts.append(part)
    others = {*old, *new} - {"model"}
    parts += [name for name in sorted(others) if old.get(name) != new.get(name)]
    yield (
        f"{TOKENIZER} differs ({', '.join(parts) or 'model'}): the prompts' ids are compared; "
        "other texts may be tokenized otherwise"
    )


def file_notes(a: str, b: str) -> tuple[str, ...]:
    """A line for each difference of two folders that matters, or might seem to."""
    if a == b or not (Path(a).is_dir() and Path(b).is_dir()):
        return ()
    folders = Path(a), Path(b)
    notes = []
    old, new = map(end_ids, folders)
    if old != new:
        notes.append(f"answers end at other ids: A at {old}, B at {new}; their lengths will differ")
    old_token, new_token = (read_json(one, TOKENIZER_CONFIG).get("eos_token") for one in folders)
    if old_token != new_token:
        notes.append(f"answers end at another EOS token: A at {old_token!r}, B at {new_token!r}")
    notes += sampling_notes(*folders)
    notes += tokenizer_notes(*folders)
    return tuple(notes)
