"""A path: which engine answers, with which checkpoint, dtype and kernels. Parsed from one word.

hf   vllm   hf:bfloat16   vllm:float16   hf:bfloat16,eager   vllm:transformers
hf@DIR                          another checkpoint
hf+adapter=DIR                  with a LoRA adapter
vllm:quantization=fp8           one of vLLM's own settings
hf:int8   hf:attention=1.01     a planted fault: weights rounded, a factor on what it names
env:/path/to/python             the same in another environment; env:/path/to/python,vllm:float16
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = ("eager", "sdpa", "flash_attention_2", "flex_attention")
FACTORS = ("attention", "logits", "theta")  # planted: a factor on the attention scale, logits, rope
ROUNDED = ("int8", "fp8")  # planted: weights rounded to so many bits and back
SETTINGS = (  # of vLLM, as it names them; none changes what is asked
    "quantization",
    "kv_cache_dtype",
    "block_size",
    "attention_backend",
    "enforce_eager",
    "enable_prefix_caching",
    "max_num_batched_tokens",
    "tensor_parallel_size",
    "gpu_memory_utilization",
)
HF_WORDS = (*DTYPES, *ATTENTION, *ROUNDED, *(f"{name}=" for name in FACTORS), "matrix=")
VLLM_WORDS = (*DTYPES, "transformers", *(f"{name}=" for name in SETTINGS))
SHAPE = re.compile(r"(?P<backend>\w*)(?:@(?P<model>[^:+]+))?(?:\+adapter=(?P<adapter>[^:]+))?"
                   r"(?::(?P<words>.+))?")  # fmt: skip


@dataclass(frozen=True, slots=True)
class EnginePath:
    """One way to answer.   text: as given.   model, adapter: directories, "" for the command's own
    and for none.   fault: name of a planted fault, with its factor or its layer.
    python: of another environment, "" for this one.   settings: vLLM's own.
    """

    text: str
    backend: str
    model: str = ""
    adapter: str = ""
    dtype: str | None = None
    attention: str | None = None
    fault: str = ""
    amount: float = 0.0
    python: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def parse_path(text: str) -> EnginePath:
    """Raises ValueError for a word that no path has."""
    if text.startswith("env:"):
        python, _, inner = text.removeprefix("env:").partition(",")
        values = as_values(parse_path(inner or "hf"))
        return EnginePath(**{**values, "text": text, "python": python})
    match = SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"path {text!r}: expected BACKEND[@DIR][+adapter=DIR][:WORD,...]. See --help."
        )
    if "+adapter=" in (match["words"] or ""):
        problem = f"path {text!r}: expected the adapter before the words."
        raise ValueError(f"{problem} {order_advice(text)}")
    backend = match["backend"]
    if backend not in ("hf", "vllm"):
        raise ValueError(unknown_word(text, backend, ("hf", "vllm", "env:")))
    values = {"text": text, "backend": backend}
    values["model"] = match["model"] or ""
    values["adapter"] = match["adapter"] or ""
    for word in re.split("[:,]", match["words"] or ""):
        if word:
            add_word(values, word)
    return EnginePath(**values)


def order_advice(text: str) -> str:
    backend, colon, rest = text.partition(":")
    words, mark, adapter = rest.partition("+adapter=")
    return f"Write {backend + mark + adapter + colon + words!r}."


def as_values(path: EnginePath) -> dict[str, Any]:
    return {name: getattr(path, name) for name in EnginePath.__dataclass_fields__}


def add_word(values: dict[str, Any], word: str) -> None:
    """Put what a word says among a path's values. Raises ValueError for an unknown one."""
    name, equals, value = word.partition("=")
    known = HF_WORDS if values["backend"] == "hf" else VLLM_WORDS
    if name + equals not in known or (equals and not value):
        raise ValueError(unknown_word(values["text"], word, known))
    if name in SETTINGS:
        values["settings"] = {**values.get("settings", {}), name: setting_of(value)}
    elif name == "transformers":
        values["settings"] = {**values.get("settings", {}), "model_impl": name}
    elif name in DTYPES:
        set_once(values, "dtype", name)
    elif name in ATTENTION:
        set_once(values, "attention", name)
    else:
        set_once(values, "fault", name)
        values["amount"] = amount_of(values["text"], word, value)


def set_once(values: dict[str, Any], name: str, value: str) -> None:
    if name in values:
        raise ValueError(f"path {values['text']!r}: two of {name}, expected one. Leave one out.")
    values[name] = value


def setting_of(value: str) -> Any:
    """A number or true or false where it reads as one, else the text."""
    try:
        return json.loads(value.lower())
    except json.JSONDecodeError:
        return value


def amount_of(text: str, word: str, value: str) -> float:
    try:
        return float(value or 0)
    except ValueError:
        raise ValueError(f"path {text!r}: {word!r} needs a number. Write attention=1.01.") from None


def unknown_word(text: str, word: str, known: tuple[str, ...]) -> str:
    guesses = difflib.get_close_matches(word, known, 1)
    guess = f" Did you mean {guesses[0]!r}?" if guesses else ""
    return f"path {text!r}: unknown word {word!r}, expected one of {', '.join(known)}.{guess}"
