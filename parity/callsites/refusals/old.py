"""A gateway's own checks: what callers may say, and how a refusal is logged. No model runs.

defaults      what each setting is where nobody says it
bounds        of each value of a setting: how it is understood, or that it is refused
refuse        the log of tables of refusals (cases.py): the kind of error, whose fault, and the words of each
checkpoints   what is read from the files of a checkpoint, changed in some places
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

USUAL: dict[str, dict[str, Any]] = {
    "ModelLoadConfig": {
        "model": None,
        "backend": "hf",
        "dtype": None,
        "device": None,
        "attn_implementation": None,
        "trust_remote_code": False,
        "revision": None,
        "max_model_len": None,
        "max_batch_tokens": None,
        "max_batch_size": None,
        "adapters": {},
        "logits_hooks": False,
        "decoder": None,
        "cache": None,
        "fallback_backend": None,
        "progress": True,
        "hf_kwargs": {},
        "vllm_kwargs": {},
    },
    "StopOptions": {"strings": [], "token_ids": [], "include_stop": False, "ignore_eos": False},
    "DecodeOptions": {
        "skip_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "strip": False,
    },
    "GenerationOptions": {
        "max_new_tokens": 256,
        "min_new_tokens": 0,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": None,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": None,
        "seed": None,
        "n": 1,
        "logprobs": None,
        "logits": False,
        "replay": None,
        "max_prompt_tokens": None,
        "truncate_prompt": False,
    },
    "ChatTemplateOptions": {
        "enable_thinking": False,
        "add_generation_prompt": True,
        "template": None,
        "kwargs": {},
        "special_tokens": "keep",
    },
    "VlmPreprocessOptions": {"min_pixels": None, "max_pixels": None, "do_resize": True},
    "TextGenerationRequest": {
        "messages": None,
        "prompt_token_ids": None,
        "tools": None,
        "continue_final": False,
        "seed": None,
        "adapter": None,
        "structured": None,
    },
    "VlmGenerationRequest": {"images": [], "image_loader": None},
}


def defaults() -> dict[str, dict[str, Any]]:
    return USUAL


# == How a value is understood ==

REFUSED = object()
Check = Callable[[Any], Any]  # a value -> what it is understood as, or REFUSED


def whole(least: int, most: int = sys.maxsize, optional: bool = False) -> Check:
    def check(value: Any) -> Any:
        if value is None:
            return None if optional else REFUSED
        return value if type(value) is int and least <= value <= most else REFUSED

    return check


def number(holds: Callable[[float], bool]) -> Check:
    def check(value: Any) -> Any:
        if type(value) not in (int, float) or value > sys.float_info.max:
            return REFUSED
        return float(value) if math.isfinite(value) and holds(value) else REFUSED

    return check


def one_of(*names: Any) -> Check:
    return lambda value: value if value in names and type(value) is not bool else REFUSED


def flag(value: Any) -> Any:
    return value if isinstance(value, bool) else REFUSED


def mapping(value: Any) -> Any:
    return value if isinstance(value, dict) else REFUSED


def text(value: Any) -> Any:
    return value if isinstance(value, str) and value else REFUSED


def name(value: Any) -> Any:
    return None if value is None else text(value)


def template(value: Any) -> Any:
    return value if value is None or (isinstance(value, str) and "{" in value) else REFUSED


def folders(value: Any) -> Any:
    right = isinstance(value, dict) and all(key and type(path) is str for key, path in value.items())
    return value if right else REFUSED


def unique_ids(value: Any) -> Any:
    if not isinstance(value, list) or any(type(i) is not int or i < 0 for i in value):
        return REFUSED
    return list(dict.fromkeys(value))


def unique_texts(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or any(text(one) is REFUSED for one in texts):
        return REFUSED
    return list(dict.fromkeys(texts))


CHECKS: dict[str, Check] = {
    "max_new_tokens": whole(1),
    "min_new_tokens": whole(0, 256),
    "temperature": number(lambda value: value >= 0),
    "top_p": number(lambda value: 0 < value <= 1),
    "min_p": number(lambda value: 0 <= value <= 1),
    "repetition_penalty": number(lambda value: value > 0),
    "n": whole(1, 16_384),
    "seed": whole(0, 2**63 - 1, optional=True),
    "logprobs": whole(0, optional=True),
    "max_model_len": whole(2, optional=True),
    "token_ids": unique_ids,
    "strings": unique_texts,
    "special_tokens": one_of("keep", "refuse", "escape"),
    "backend": one_of("hf", "vllm", "auto"),
    "dtype": one_of("float32", "bfloat16", "float16", None),
    "fallback_backend": one_of("hf", None),
    "prompt": lambda value: value if isinstance(value, str) else REFUSED,
    "model": text,
    "template": template,
    "adapters": folders,
}
FROM_ONE = {
    "top_k", "no_repeat_ngram_size", "max_prompt_tokens", "min_pixels", "max_pixels",
    "max_batch_tokens", "max_batch_size",
}  # fmt: skip
CHECKS |= dict.fromkeys(FROM_ONE, whole(1, optional=True))
CHECKS |= dict.fromkeys(("kwargs", "hf_kwargs", "vllm_kwargs"), mapping)
CHECKS |= dict.fromkeys(("adapter", "revision", "attn_implementation"), name)


def understood(field: str, value: Any, about: Sequence[str]) -> dict[str, Any]:
    _, _, last = field.partition(".")
    made = CHECKS.get(last, flag)(value)
    if made is REFUSED:
        return {"error": "ValueError", "names": [last, *about]}
    return {"is": made, "type": type(made).__name__}


def bounds(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {field: [understood(field, value, row["about"]) for value in row["values"]] for field, row in fields.items()}


# == How refusals are logged ==

BEHIND_ANOTHER = 1  # the request at fault is the second, where one is
PLACES: dict[str, int | None] = {"request": BEHIND_ANOTHER, "pair": BEHIND_ANOTHER}
PLACES |= {"schema": BEHIND_ANOTHER, "broken": BEHIND_ANOTHER}
KINDS = {"other backend": "NotImplementedError"}


def refuse(model_path: str, what: str, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each call the log of its refusal.   what: what it is that is refused.   about: its words."""
    kind, place = KINDS.get(what, "ValueError"), PLACES.get(what)
    return [{"error": kind, "request": place, "names": call["about"]} for call in calls]


# == What is read from a checkpoint ==


def read(model_path: str, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    names = ("config.json", "generation_config.json", "tokenizer_config.json")
    files = {name: json.loads(Path(model_path, name).read_text("utf-8")) for name in names}
    for name, values in changes.items():
        files[name] |= values
    return files


def several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def checkpoint(model_path: str, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    config, generation, tokenizer = read(model_path, changes).values()
    added = json.loads(Path(model_path, "tokenizer.json").read_text("utf-8"))["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    ends = [ids[tokenizer["eos_token"]], *several(generation.get("eos_token_id"))]
    ends += several(config["eos_token_id"])
    ends = [i for i in dict.fromkeys(ends) if i < config["vocab_size"]]
    own = tokenizer["pad_token"]
    pad = ids[own] if own else generation["pad_token_id"]
    pad = ends[0] if pad is None else pad
    return {
        "eos_token_ids": ends,
        "pad_token_id": pad,
        "max_model_len": config["max_position_embeddings"],
        "dtype": config["dtype"] or "float32",  # as its weights are
    }


def checkpoints(model_path: str, changes: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return [checkpoint(model_path, change) for change in changes]
