# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""LoRA adapters in PEFT's format, on both backends: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="adapters"`, and write

    engine = load("Qwen/Qwen3-8B", adapters={"law": "adapters/law"})
    engine.generate_text_batch([{"messages": chat, "adapter": "law"}])

gen_engine finds this file beside itself. Adapters are read when the engine is loaded, or later by
`engine.add_adapter("law", "adapters/law")`; requests of one call may name different ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = [
    "add",
    "remove",
    "check_adapters",
    "load_hf",
    "switch_hf",
    "train_hf",
    "vllm_arguments",
    "vllm_requests",
]

log = logging.getLogger("gen_engine")

WEIGHTS = "adapter_model.safetensors"

# == What is on disk ==


def adapter_config(path: str) -> Any:
    return json.loads(Path(path, "adapter_config.json").read_bytes())


def check_rank(path: str, config: Mapping[str, Any]) -> None:
    """Raise ValueError for weights of another rank than the config says: vLLM would read the wrong
    part of them."""
    if config.get("rank_pattern") or not Path(path, WEIGHTS).is_file():
        return
    read = ge.lazy_import("transformers.modeling_utils").load_state_dict
    for name, weight in read(str(Path(path, WEIGHTS)), map_location="meta").items():
        if name.endswith("lora_A.weight") and weight.shape[0] != config["r"]:
            raise ValueError(f"its config says rank {config['r']}, {name} has {weight.shape[0]}")


# These starts leave the base weights as they are. Others (PiSSA, OLoRA, CorDA, LoftQ) change them
# at each load, for every row.
ADDITIVE_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
NOT_ONLY_ITS_OWN = {  # of PEFT's config -> what it does to rows that do not name the adapter
    "bias": "it replaces the base model's biases",
    "layer_replication": "it repeats layers of the base model",
    "trainable_token_indices": "it replaces rows of the embeddings",
    "alora_invocation_tokens": "it begins in the middle of a row",
}


def check_additive(config: Mapping[str, Any]) -> None:
    """Raise ValueError for an adapter that changes more than what it adds to rows that name it."""
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in ADDITIVE_STARTS:
        problem = f"init_lora_weights {ge.short_repr(start)} changes the base weights at load"
        fix = "convert it with PEFT's path_initial_model_for_weight_conversion"
        raise ge.LoadError(problem, fix=fix)
    for name, why in NOT_ONLY_ITS_OWN.items():
        value = config.get(name)
        if value and value != "none":
            problem = f"its config sets {name!r}: {why}, for rows without the adapter, too"
            raise ge.LoadError(problem, fix="merge it into the checkpoint")


def check_adapters(adapters: Mapping[str, str]) -> None:
    """Raise LoadError for what is no LoRA adapter, contradicts its own config, or changes rows that
    do not name it."""
    for path in adapters.values():
        fix = "give a directory where PEFT saved LoRA weights"
        with ge.wrapping_errors(ge.LoadError, f"no adapter at {ge.short_repr(path)}", fix):
            config = adapter_config(path)
            kind = config["peft_type"]
            if kind != "LORA":
                raise ValueError(f"its peft_type is {ge.short_repr(kind)}")
            check_additive(config)
            check_rank(path, config)


def is_beyond_lora(path: str) -> bool:
    """Whether an adapter holds more than LoRA weights of one rank."""
    try:
        config = adapter_config(path)
    except (OSError, ValueError):  # an error of the load itself
        return False
    names = ("use_dora", "modules_to_save", "rank_pattern", "lora_bias", "use_qalora", "use_bdlora")
    return any(config.get(name) for name in names)


def loads_beyond_lora(asked: ge.Asked) -> bool:
    """Whether this is a load, of adapters that vLLM cannot serve."""
    if asked.prompts or asked.scoring:
        return False
    return any(map(is_beyond_lora, asked.config.adapters.values()))


REFUSALS = (
    ge.Refusal(
        "hf",
        "adapters with this peft",
        lambda asked: ge.installed("peft<0.22"),
        "install peft>=0.22, or transformers<5.24",
        "transformers>=5.24",
    ),
    ge.Refusal(
        "vllm",
        "adapters with DoRA, lora_bias, modules_to_save or rank_pattern",
        loads_beyond_lora,
        "use backend='hf', or merge the adapter into the checkpoint",
    ),
    ge.Refusal(
        "vllm",
        "scores beside adapters without its hook",  # LoRA breaks its prompt_logprobs
        lambda asked: asked.scoring and not asked.config.logits_hooks,
        ge.WITH_HOOK,
    ),
)

# == transformers ==


def load_hf(model: Any, adapters: Mapping[str, str]) -> None:
    """Load adapters into a transformers model. Raises LoadError for one of another model: each of
    its weights must have a place, and each place a weight."""
    with warnings.catch_warnings():  # PEFT warns of every adapter after the first
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        for name, path in adapters.items():
            info = model.load_adapter(path, adapter_name=name)  # None before 5.x
            check_names(name, "fit nowhere", getattr(info, "unexpected_keys", ()))
            # It names those of the adapters before, too.
            own = re.compile(rf"\.(lora_\w+|modules_to_save)\.{re.escape(name)}(\.|$)")
            missing = filter(own.search, getattr(info, "missing_keys", ()))
            check_names(name, "are missing", missing)


def check_names(adapter: str, what: str, names: Iterable[str]) -> None:
    """Raise LoadError where there are names of an adapter's weights."""
    wrong = sorted(names)
    if wrong:
        problem = f"{len(wrong)} weights of adapter {adapter!r} {what}: {ge.short_repr(wrong)}"
        raise ge.LoadError(problem, fix="see which model it was made for")


def switch_hf(model: Any, name: str | None) -> None:
    """Switch the model to an adapter, or to none. Which weights are trained stays as it is: a
    graph of before must still reach them."""
    layer = ge.lazy_import("peft.tuners.tuners_utils").BaseTunerLayer
    saved = ge.lazy_import("peft.utils").ModulesToSaveWrapper
    trained = [(own, own.requires_grad) for own in model.parameters()]
    for module in model.modules():
        if isinstance(module, (layer, saved)):  # transformers' own leaves out the second
            module.enable_adapters(name is not None)
    if name is not None:
        model.set_adapter(name)
    for own, is_trained in trained:
        own.requires_grad_(is_trained)


def train_hf(model: Any, name: str) -> None:
    """Let gradients reach the weights of an adapter, from now on."""
    for own_name, own in model.named_parameters():
        if f".{name}." in own_name:
            own.requires_grad_(True)


# == vLLM ==


def check_fit(adapters: Mapping[str, str], checkpoint: ge.Checkpoint) -> None:
    """Raise LoadError for an adapter of another model: vLLM reads it at its first request, and
    leaves out what fits nowhere. transformers compares the names, without the model's weights."""
    auto = ge.auto_class(checkpoint)
    if type(checkpoint.config) not in auto._model_mapping or ge.installed("transformers<5.10"):
        log.warning("transformers cannot tell whether adapters fit this model; vLLM will not say")
        return
    ge.lazy_import("peft")
    code = checkpoint.settings.trust_remote_code
    with ge.lazy_import("torch").device("meta"):
        model = auto.from_config(checkpoint.config, trust_remote_code=code)
    load_hf(model, adapters)


def vllm_arguments(adapters: Mapping[str, str], checkpoint: ge.Checkpoint) -> dict[str, Any]:
    """vllm.LLM's keywords for adapters. Raises LoadError for one of another model."""
    check_fit(adapters, checkpoint)
    longest = max(8, *(adapter_config(path)["r"] for path in adapters.values()))
    return {
        "enable_lora": True,
        # On a CPU, vLLM 0.32 computes rows without an adapter with the last slot's: one is spare.
        "max_loras": len(adapters) + 1,
        "max_lora_rank": 1 << (longest - 1).bit_length(),  # it takes powers of two
    }


numbers = itertools.count(1)  # of adapters in this process: vLLM keeps what it loads by number


def vllm_requests(adapters: Mapping[str, str]) -> dict[str, Any]:
    """Adapters as vLLM's requests name them."""
    lora = ge.lazy_import("vllm.lora.request").LoRARequest
    return {name: lora(name, next(numbers), path) for name, path in adapters.items()}


# == A loaded engine ==


def add(backend: Any, name: str, path: str) -> None:
    """Load an adapter into an engine's backend. Raises as `GenerationEngine.add_adapter` says."""
    settings = backend.checkpoint.settings
    if name in settings.adapters:
        raise ge.OptionError(f"the adapter {name!r} is loaded already", fix="remove it first")
    adapters = {**settings.adapters, name: path}
    refused = ge.refusal_of(ge.Asked(dataclasses.replace(settings, adapters=adapters)))
    if refused is not None:
        raise refused
    check_adapters({name: path})
    adds = {"hf": add_hf, "vllm": add_vllm}
    with ge.wrapping_errors(ge.LoadError, f"cannot load the adapter {name!r}", "see what it says"):
        adds[backend.name](backend, name, path)
    settings.adapters[name] = path


def add_hf(backend: Any, name: str, path: str) -> None:
    try:
        load_hf(backend.model, {name: path})
    except BaseException:
        with contextlib.suppress(ValueError):  # it was not begun
            delete_hf(backend.model, name)
        raise
    finally:
        switch_hf(backend.model, backend.adapter)


def delete_hf(model: Any, name: str) -> None:
    with warnings.catch_warnings():  # where it was switched to last, or loaded last
        warnings.filterwarnings("ignore", message="Adapter .* was active")
        model.delete_adapter(name)


def add_vllm(backend: Any, name: str, path: str) -> None:
    room = backend.model.llm_engine.vllm_config.lora_config
    fix = "load with as many adapters as there will be at a time, one of the highest rank"
    if room is None or len(backend.adapters) + 2 > room.max_loras:
        raise ge.UnsupportedError(f"vllm has no room for the adapter {name!r}", fix=fix)
    rank = adapter_config(path)["r"]
    if rank > room.max_lora_rank:
        problem = f"vllm has room for rank {room.max_lora_rank}, the adapter {name!r} has {rank}"
        raise ge.UnsupportedError(problem, fix=fix)
    check_fit({name: path}, backend.checkpoint)
    own = vllm_requests({name: path})
    with backend.healthy() as engine:
        engine.add_lora(own[name])
    backend.adapters.update(own)


def remove(backend: Any, name: str) -> None:
    """Unload an adapter from an engine's backend. Raises OptionError for one that is not loaded."""
    adapters = backend.checkpoint.settings.adapters
    if name not in adapters:
        raise ge.OptionError(f"no adapter {name!r} is loaded", fix=ge.did_you_mean(name, adapters))
    if backend.name == "hf":
        delete_hf(backend.model, name)
        switch_hf(backend.model, backend.adapter)
    else:
        with backend.healthy() as engine:
            engine.remove_lora(backend.adapters.pop(name).lora_int_id)
    del adapters[name]
