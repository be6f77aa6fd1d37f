"""Which model it is: its class, its settings, and fingerprints of its weights."""

from __future__ import annotations

import functools
import hashlib
import json
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from parity.record.rows import Fields, Placeholders

SAMPLED = 64  # values of each parameter that a fingerprint reads
ENDS = 1 << 16  # bytes of each end of a file that a fingerprint reads
FOLDERS: dict[str, set[str]] = {}  # name of a checkpoint's folder -> where this process had one


def fingerprint(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def short_digest(value: Any) -> str:
    """A fingerprint of plain data."""
    return fingerprint([json.dumps(value).encode()])


def sampled(weight: Any) -> Any:
    values = weight.detach().flatten()
    return values[:: max(1, len(values) // SAMPLED)]


def value_bytes(values: Any) -> bytes:
    content: bytes = values.float().cpu().numpy().tobytes()
    return content


_weights: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()


def weights_in_memory(model: Any) -> str:
    """A fingerprint of a torch module. In-place changes are seen."""
    version = sum(weight._version for weight in model.parameters())
    known = _weights.get(model)
    if known is not None and known[0] == version:
        return known[1]
    found = fingerprint(weight_bytes(model))
    _weights[model] = (version, found)
    return found


def weight_bytes(model: Any) -> Iterator[bytes]:
    """A model's weights as they were before adapters were put around them: whose adapter a row has
    is its own."""
    named = dict[str, Any]()
    for name, weight in model.named_parameters():
        named[name.replace(".base_layer.", ".").removeprefix("base_model.model.")] = weight
    for name in sorted(named):
        if "lora_" not in name:
            weight = named[name]
            yield f"{name}{tuple(weight.shape)}".encode()
            yield value_bytes(sampled(weight))


@functools.lru_cache(maxsize=16)
def weights_on_disk(path: str) -> str | None:
    """A fingerprint of a checkpoint's weight files: their names, sizes and ends."""
    folder = Path(path)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    if not files:
        return None
    return fingerprint(map(file_bytes, sorted(files)))


def file_bytes(file: Path) -> bytes:
    """A file's name, its size, and what it begins and ends with."""
    size = file.stat().st_size
    with file.open("rb") as content:
        begin = content.read(ENDS)
        content.seek(max(0, size - ENDS))
        return f"{file.name}{size}".encode() + begin + content.read()


def tensors_in(folder: str) -> Iterator[tuple[str, Any]]:
    """Names and torch tensors of a checkpoint's safetensors files. A file is mapped: what is not
    looked at is not read. Raises safetensors.SafetensorError for a file of another kind."""
    from safetensors import safe_open

    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(str(file), "pt") as content:
            for name in content.keys():  # noqa: SIM118 - it is no mapping
                yield name, content.get_tensor(name)


@functools.lru_cache(maxsize=16)
def tensors_on_disk(path: str) -> str | None:
    """A fingerprint of each tensor of a checkpoint's safetensors files, in whichever file it is."""
    from safetensors import SafetensorError

    try:
        found = {name: tensor_bytes(tensor) for name, tensor in tensors_in(path)}
    except SafetensorError:
        return None
    return fingerprint(name.encode() + found[name] for name in sorted(found)) if found else None


def tensor_bytes(tensor: Any) -> bytes:
    """Its type, its shape, and some of its values, in whichever type."""
    import torch

    values: bytes = sampled(tensor).contiguous().view(torch.uint8).numpy().tobytes()
    return f" {tensor.dtype} {tuple(tensor.shape)}".encode() + values


# Of a config.json: who wrote it and how, what the tokenizer and the call decide, and what other
# fields of a row say.
OF_NO_MODEL = {
    "transformers_version", "_name_or_path", "_commit_hash", "torch_dtype", "dtype", "use_cache",
    "architectures", "auto_map", "attn_implementation", "_attn_implementation",
    "quantization_config", "pad_token_id", "bos_token_id", "eos_token_id", "id2label", "label2id",
}  # fmt: skip


@functools.lru_cache(maxsize=16)
def config_on_disk(path: str) -> str | None:
    """A fingerprint of what a checkpoint's config.json says of its model: equal weights may be run
    otherwise."""
    file = Path(path, "config.json")
    if not path or not file.is_file():
        return None
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return short_digest(of_model(said)) if isinstance(said, dict) else None


def of_model(said: Any) -> Any:
    """What a part of a config.json says of the model, in one order."""
    if not isinstance(said, dict):
        return said
    return {name: of_model(said[name]) for name in sorted(said.keys() - OF_NO_MODEL)}


def note_folder(path: str) -> None:
    folder = Path(path)
    if folder.is_dir():
        FOLDERS.setdefault(folder.name, set()).add(str(folder.resolve()))


def shown_path(path: str) -> str:
    """A checkpoint's path as a golden holds it: relative to the working directory, or its name.
    Where it is stands in FOLDERS."""
    note_folder(path)
    checkpoint = Path(path)
    if not checkpoint.is_absolute():
        return path
    here = Path.cwd()
    if checkpoint.is_relative_to(here):
        return checkpoint.relative_to(here).as_posix()
    return checkpoint.name


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def types_of_buffers(model: Any) -> str | None:
    """Types of tables that are no weights, such as a rotary embedding's: loading in half precision
    leaves them float32, `.half()` does not."""
    types = {dtype_name(one.dtype) for one in model.buffers() if one.is_floating_point()}
    return " ".join(sorted(types)) or None


def model_stage(model: Any) -> Fields:
    """A transformers model, or a vllm.LLM or its engine, as it stands in a row."""
    engine = getattr(model, "llm_engine", model)
    is_vllm = hasattr(engine, "vllm_config")
    stage = vllm_model(engine.vllm_config.model_config) if is_vllm else transformers_model(model)
    return {key: value for key, value in stage.items() if value is not None}


def vllm_model(config: Any) -> Fields:
    return {
        "class": config.hf_config.architectures[0],
        "dtype": dtype_name(config.dtype),
        "quantization": config.quantization,
        "files": weights_on_disk(str(config.model)),
        "tensors": tensors_on_disk(str(config.model)),
        "config": config_on_disk(str(config.model)),
        "path": shown_path(str(config.model)),
        "backend": "vllm",
    }


def transformers_model(model: Any) -> Fields:
    config = model.config
    path = str(getattr(config, "_name_or_path", ""))
    quantization = getattr(config, "quantization_config", None)
    method = quantization and str(getattr(quantization, "quant_method", quantization))
    return {
        "class": type(model).__name__,
        "dtype": dtype_name(model.dtype),
        "buffers": types_of_buffers(model),
        "attention": getattr(config, "_attn_implementation", None),
        "quantization": method,
        # Packed tensors do not let themselves be read.
        "weights": None if quantization else weights_in_memory(model),
        "files": weights_on_disk(path),
        "tensors": tensors_on_disk(path),
        "config": config_on_disk(path),
        "path": shown_path(path),
        "backend": "hf",
    }


def placeholders_of(config: Any) -> Placeholders:
    image = getattr(config, "image_token_id", None)
    clip = getattr(config, "video_token_id", None)
    return Placeholders(image, clip)


def adapter_print(model: Any) -> str:
    """A fingerprint of the adapters that a forward goes through, whatever they are called; "" for
    none."""
    weights = adapter_weights(model.modules())
    # In one type, in whichever they were loaded.
    values = [value_bytes(sampled(weight).bfloat16()) for weight in weights]
    return fingerprint(values) if values else ""


def adapter_weights(modules: Iterable[Any]) -> Iterator[Any]:
    for layer in modules:
        if not hasattr(layer, "lora_A") or not hasattr(layer, "active_adapters"):
            continue
        if layer.disable_adapters:
            continue
        for name in layer.active_adapters:
            for part in (layer.lora_A, layer.lora_B):
                if name in part:
                    yield part[name].weight
