"""Events of libraries -> rows: one per sequence that a model generated, stage by stage (laid out as in parity.golden).

The same functions read the old code and the moved code, so that a difference between two rows is one of behaviour and
not of how it was looked at. What a library does not say is absent from a row, never guessed.

Map: events, small readers, chat and tokens, pictures, the model, sampling and stops, decoding, rows.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import sys
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity import golden

# What the row of a loop of the code's own says of its ids. The last one was never read: it is known where all were the
# likeliest, or where all were decoded.
LIKELIEST, CHOSEN, BUT_THE_LAST = "likeliest", "chosen", "chosen, all but the last"
CHOSEN_BY_ITSELF = {CHOSEN, BUT_THE_LAST}
LARGEST_IMAGE = 4 << 20  # pixels of a picture that a golden keeps as a blob


# == Events ==


@dataclass(slots=True)
class Template:
    """A chat template was rendered: chats and texts, one per conversation."""

    chats: list[Any]
    texts: list[str]
    sha256: str
    arguments: dict[str, Any]


@dataclass(slots=True)
class Tokens:
    """Texts became ids (padding left out)."""

    texts: list[str]
    ids: list[list[int]]


@dataclass(slots=True)
class Images:
    """Pictures went through an image processor."""

    pictures: list[dict[str, Any]]


@dataclass(slots=True)
class Decode:
    """Ids became text."""

    ids: list[list[int]]
    texts: list[str]
    how: dict[str, Any]


@dataclass(slots=True)
class Params:
    """One request as vLLM received it.   pictures: sha256 of each, in order.   uuids: their names, the caller's or
    vLLM's own.   adapter: (its number, its folder).   structure: the form that is asked for."""

    params: Any
    request_id: str = ""
    prompt_ids: tuple[int, ...] = ()
    pictures: tuple[str, ...] = ()
    adapter: tuple[int, str] | None = None
    uuids: tuple[str | None, ...] = ()
    structure: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Forward:
    """What reached the model's forward in the first step of a batch: per row, its ids without what the mask hides and
    what came with them."""

    rows: list[tuple[tuple[int, ...], dict[str, Any]]]


@dataclass(slots=True)
class Produced:
    """One generated sequence before it is a row. whole: with its prompt and all padding, as decoding may get it."""

    prompt_ids: list[int]
    output_ids: list[int]
    new_ids: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    batch: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)  # stages that the library told us itself
    request: dict[str, Any] = field(default_factory=dict)  # which request it answers, and that one's own seed
    sampling: dict[str, Any] = field(default_factory=dict)  # where it is not that of the whole call
    stop: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Generated:
    """A model call. nested: inside an engine's call, which tells the rest."""

    sequences: list[Produced]
    model: dict[str, Any]
    sampling: dict[str, Any]
    stop: dict[str, Any]
    placeholder: int | None
    nested: bool = False


Event = Template | Tokens | Images | Decode | Params | Forward | Generated
MODEL_EVENTS = Generated


# == Small readers ==


def lists(value: Any) -> list[list[int]]:
    """Ids in any shape as a list of lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, int):
        return [[value]]
    value = list(value)
    if value and isinstance(value[0], int):
        return [value]
    return [entry.tolist() if hasattr(entry, "tolist") else list(entry) for entry in value]


def collapsed(ids: Sequence[int], placeholder: int | None) -> tuple[int, ...]:
    """Ids with each run of image tokens as one."""
    if placeholder is None:
        return tuple(ids)
    return tuple(i for k, i in enumerate(ids) if i != placeholder or k == 0 or ids[k - 1] != placeholder)


def runs(ids: Sequence[int], placeholder: int | None) -> list[int]:
    """How long each run of image tokens is."""
    found: list[int] = []
    for k, i in enumerate(ids):
        if i == placeholder:
            if k and ids[k - 1] == placeholder:
                found[-1] += 1
            else:
                found.append(1)
    return found


def texts_of(text: Any) -> list[str]:
    given = [text] if isinstance(text, str) else list(text)
    return [entry if isinstance(entry, str) else " ".join(map(str, entry)) for entry in given]


def sourced(value: Any, source: str) -> dict[str, Any]:
    return {"value": value, "from": source}


# == Chat and tokens ==

NOT_THE_TEMPLATE = {
    "self", "conversation", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "tokenizer_kwargs", "chat_template", "return_assistant_tokens_mask", "kwargs", "processor_kwargs",
}  # fmt: skip


def plain_chat(chat: Any) -> list[Any]:
    """Messages as data: a picture inside becomes {"type": "image"}, whose pixels are in the row's images."""

    def part(entry: Any) -> Any:
        if isinstance(entry, Mapping) and str(entry.get("type", "")).startswith("image"):
            return {"type": "image"}
        return dict(entry) if isinstance(entry, Mapping) else entry

    def message(entry: Any) -> Any:
        content = entry.get("content")
        if isinstance(content, (list, tuple)):
            content = [part(p) for p in content]
            texts = [p["text"] for p in content if isinstance(p, Mapping) and p.get("type") == "text"]
            content = texts[0] if len(texts) == len(content) == 1 else content  # two ways to write the same
        return {**entry, "content": content}

    return [json.loads(json.dumps(message(entry), default=lambda v: f"<{type(v).__name__}>")) for entry in chat]


def template_event(owner: Any, chat: Any, given: Mapping[str, Any], result: Any, inner: Sequence[Event]) -> Template:
    """inner: what happened meanwhile; where the template's text went on to the tokenizer, that call has it."""
    batched = bool(chat) and isinstance(chat[0], (list, tuple))
    if isinstance(result, str) or (isinstance(result, list) and result and isinstance(result[0], str)):
        texts = texts_of(result)
    else:
        texts = [text for event in inner if isinstance(event, Tokens) for text in event.texts]
    source = given.get("chat_template") or owner.chat_template or ""
    source = source if isinstance(source, str) else json.dumps(source)
    said = {k: v for k, v in given.items() if k not in NOT_THE_TEMPLATE}
    arguments = {k: v for k, v in said.items() if v not in (None, False) or k in SWITCHES}
    named = json.loads(json.dumps(arguments, default=lambda v: f"<{type(v).__name__}>"))
    chats = [plain_chat(entry) for entry in (chat if batched else [chat])]
    return Template(chats, texts, hashlib.sha256(source.encode()).hexdigest(), named)


SWITCHES = {"enable_thinking"}  # where False says something that leaving it out does not


def tokens_event(text: Any, result: Any) -> Tokens:
    if hasattr(result, "keys"):
        ids = lists(result["input_ids"])
        if "attention_mask" in result:
            ids = [[i for i, m in zip(row, mask) if m] for row, mask in zip(ids, lists(result["attention_mask"]))]
    else:
        ids = lists(result)
    return Tokens(texts_of(text), ids)


# == Pictures ==


def flat(images: Any) -> Iterator[Any]:
    if isinstance(images, (list, tuple)):
        for entry in images:
            yield from flat(entry)
    else:
        yield images


def as_rgb(image: Any) -> Any:
    """A PIL image of whatever a processor takes."""
    if hasattr(image, "convert"):
        return image.convert("RGB")
    from PIL import Image

    array = image.permute(1, 2, 0).cpu().numpy() if hasattr(image, "permute") else image
    return Image.fromarray(array.astype("uint8")).convert("RGB")


def budget_of(processor: Any, kwargs: Mapping[str, Any]) -> list[int] | None:
    """[least, most] pixels that pictures are resized to, where the processor has such a budget."""
    kwargs = {**kwargs, **(kwargs.get("images_kwargs") or {})}
    resized = kwargs.get("do_resize")
    if (getattr(processor, "do_resize", True) if resized is None else resized) is False:
        return [0, 0]
    size = kwargs.get("size") or getattr(processor, "size", None) or {}
    least = kwargs.get("min_pixels") or size.get("shortest_edge")
    most = kwargs.get("max_pixels") or size.get("longest_edge")
    return [least, most] if least and most else None


def images_event(processor: Any, images: Any, kwargs: Mapping[str, Any], result: Any) -> Images:
    grids = lists(result["image_grid_thw"]) if "image_grid_thw" in result else []
    values, start, merge = result.get("pixel_values"), 0, getattr(processor, "merge_size", None)
    pictures = []
    for number, image in enumerate(flat(images)):
        rgb = as_rgb(image)
        said: dict[str, Any] = {"sha256": hashlib.sha256(rgb.tobytes()).hexdigest(), "size": list(rgb.size)}
        if number < len(grids):
            patches = functools.reduce(lambda a, b: a * b, grids[number])
            said["grid"] = grids[number]
            if hasattr(values, "float"):
                own = values[start : start + patches].float()
                said["values"] = [round(float(own.mean()), 4), round(float(own.std()), 4)]
            said["tokens"], start = patches // merge**2 if merge else None, start + patches
        said["budget"], said["pixels"] = budget_of(processor, kwargs), rgb
        pictures.append(said)
    return Images(pictures)


def kept_picture(picture: Mapping[str, Any], store: golden.Store | None) -> dict[str, Any]:
    """A picture as it stands in a row: its pixels are a blob."""
    said = {k: v for k, v in picture.items() if k != "pixels" and v is not None}
    pixels = picture.get("pixels")
    if store is not None and pixels is not None and pixels.width * pixels.height <= LARGEST_IMAGE:
        said["blob"] = store.put_blob(golden.image_bytes(pixels), ".png")
    return said


# == The model ==

_weights: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()


def weights_in_memory(model: Any) -> str:
    """A fingerprint of a torch module: 64 values of each parameter. In-place changes are seen."""
    version = sum(p._version for p in model.parameters())
    known = _weights.get(model)
    if known is None or known[0] != version:
        digest = hashlib.sha256()
        for name, p in sorted((own_name(name), p) for name, p in model.named_parameters()):
            if "lora_" in name:  # whose adapter a row has is its own
                continue
            values = p.detach().flatten()
            digest.update(f"{name}{tuple(p.shape)}".encode())
            digest.update(values[:: max(1, len(values) // 64)].float().cpu().numpy().tobytes())
        known = _weights[model] = version, digest.hexdigest()[:16]
    return known[1]


def own_name(name: str) -> str:
    """A parameter's name as it was before adapters were put around it."""
    return name.replace(".base_layer.", ".").removeprefix("base_model.model.")


@functools.lru_cache(maxsize=16)
def weights_on_disk(path: str) -> str | None:
    """A fingerprint of a checkpoint's weight files: names, sizes, first and last 64 KiB."""
    files = sorted(p for pattern in ("*.safetensors", "*.bin") for p in Path(path).glob(pattern))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(f"{file.name}{file.stat().st_size}".encode() + content.read(1 << 16))
            content.seek(max(0, file.stat().st_size - (1 << 16)))
            digest.update(content.read())
    return digest.hexdigest()[:16]


def shown_path(path: str) -> str:
    """A checkpoint's path as a golden may hold it: relative to the working directory, or only its name."""
    here = Path(path)
    if not here.is_absolute():
        return path
    return here.relative_to(Path.cwd()).as_posix() if here.is_relative_to(Path.cwd()) else here.name


def types_of_buffers(model: Any) -> str | None:
    """Of tables that are no weights, such as a rotary embedding's: what loads in half a precision leaves them float32,
    `.half()` does not."""
    types = {str(one.dtype).removeprefix("torch.") for one in model.buffers() if one.is_floating_point()}
    return " ".join(sorted(types)) or None


def model_of(model: Any) -> dict[str, Any]:
    """A transformers model, or a vllm.LLM, as data."""
    engine = getattr(model, "llm_engine", model)
    if hasattr(engine, "vllm_config"):
        config = engine.vllm_config.model_config
        said = {
            "class": config.hf_config.architectures[0],
            "dtype": str(config.dtype).removeprefix("torch."),
            "quantization": config.quantization,
            "files": weights_on_disk(str(config.model)),
            "path": shown_path(str(config.model)),
            "backend": "vllm",
        }
    else:
        config, path = model.config, str(getattr(model.config, "_name_or_path", ""))
        quantization = getattr(config, "quantization_config", None)
        said = {
            "class": type(model).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "buffers": types_of_buffers(model),
            "attention": getattr(config, "_attn_implementation", None),
            "quantization": quantization and str(getattr(quantization, "quant_method", quantization)),
            "weights": None
            if quantization
            else weights_in_memory(model),  # packed tensors do not let themselves be read
            "files": weights_on_disk(path),
            "path": shown_path(path),
            "backend": "hf",
        }
    return {key: value for key, value in said.items() if value is not None}


def placeholder_of(config: Any) -> int | None:
    return getattr(config, "image_token_id", None)


# == Sampling and stops ==

NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "n": 1,
    "processors": [],
}
# transformers' class -> (our name, its attribute)
PROCESSORS = {
    "TemperatureLogitsWarper": ("temperature", "temperature"),
    "TopKLogitsWarper": ("top_k", "top_k"),
    "TopPLogitsWarper": ("top_p", "top_p"),
    "MinPLogitsWarper": ("min_p", "min_p"),
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", "penalty"),
    "NoRepeatNGramLogitsProcessor": ("no_repeat_ngram_size", "ngram_size"),
}
LENGTHS = {"MinNewTokensLengthLogitsProcessor", "MinLengthLogitsProcessor"}
NO_CHOICE = {"LogitNormalization", "InfNanRemoveLogitsProcessor"}  # neither order nor odds of numbers change
GRAMMARS = {"xgrammar", "outlines", "outlines_core", "lmformatenforcer", "llguidance"}
STRUCTURED = "structured"  # what all of them do, whoever does it


def of_processors(processors: Sequence[Any]) -> dict[str, Any]:
    """The settings that a list of logits processors stands for; others by the name of their class."""
    said: dict[str, Any] = {}
    for processor in processors:
        kind = type(processor).__name__
        if kind in PROCESSORS:
            name, attribute = PROCESSORS[kind]
            said[name] = getattr(processor, attribute)
        elif kind not in LENGTHS | NO_CHOICE:
            grammar = type(processor).__module__.partition(".")[0] in GRAMMARS
            name = STRUCTURED if grammar else getattr(processor, "__name__", kind)
            said.setdefault("processors", []).append(name)
    return said


def source_in(given: Mapping[str, Any], config: Any, name: str, value: Any) -> str:
    """Who said so: the call (as a keyword, or in a GenerationConfig of its own), the checkpoint, or nobody."""
    if name in given:
        return "caller"
    own = given.get("generation_config")
    if own is not None and getattr(own, name, None) == value:
        return "caller"
    return "checkpoint" if getattr(config, name, None) == value else "default"


# Put into torch's seed to tell whose it is: generators on a CPU go by the lower 32 bits alone.
NOBODY, SCRIPT = 1 << 32, 1 << 33


def process_seed() -> dict[str, Any]:
    """The seed of the process's generator, and who gave it. The recorder's own, and one that torch took by chance, are
    nobody's; "script" is the recorder's where a script had given one of its own before the call."""
    seed = sys.modules["torch"].initial_seed()
    whose = "process" if seed < NOBODY else "script" if seed >> 32 << 32 == SCRIPT else "nobody"
    return sourced(seed % NOBODY, whose)


def hf_sampling(given: Mapping[str, Any], resolved: Mapping[str, Any], checkpoint: Any) -> dict[str, Any]:
    config = resolved["config"]
    values = {**NEUTRAL, **of_processors(resolved.get("processors", ()))}
    values["num_beams"], values["n"] = config.num_beams or 1, config.num_return_sequences or 1
    said = {name: sourced(value, source_in(given, checkpoint, name, value)) for name, value in values.items()}
    if config.do_sample:
        said["seed"] = process_seed()
    else:
        said["temperature"] = sourced(0, source_in(given, checkpoint, "do_sample", config.do_sample))
    return said


def hf_stop(given: Mapping[str, Any], resolved: Mapping[str, Any], checkpoint: Any, length: int) -> dict[str, Any]:
    config, strings, others, ends = resolved["config"], [], [], []
    for criterion in resolved.get("criteria", ()):
        kind = type(criterion).__name__
        if kind == "StopStringCriteria":
            strings += list(criterion.stop_strings)
        elif kind == "EosTokenCriteria":
            ends += criterion.eos_token_id.tolist()
        elif kind not in ("MaxLengthCriteria", "MaxTimeCriteria"):
            others.append(kind)
    budget = config.max_new_tokens if config.max_new_tokens is not None else config.max_length - length
    least = max(config.min_new_tokens or 0, (config.min_length or 0) - length)  # either way of saying it
    return {
        "end_ids": sourced(sorted(ends), source_in(given, checkpoint, "eos_token_id", config.eos_token_id)),
        "strings": sourced(strings, "caller" if strings else "default"),
        "max_new_tokens": sourced(budget, source_in(given, checkpoint, "max_new_tokens", config.max_new_tokens)),
        "min_new_tokens": sourced(least, "caller" if least else "default"),
        "criteria": sourced(others, "caller" if others else "default"),
    }


def vllm_ends(engine: Any) -> list[int]:
    """The ids that end text in this vLLM engine unless it is told otherwise."""
    config = engine.vllm_config.model_config
    generation = config.try_get_generation_config()
    ends = generation.get("eos_token_id", [])
    own = engine.get_tokenizer().eos_token_id
    return sorted({*([ends] if isinstance(ends, int) else ends), *([] if own is None else [own])})


def vllm_sampling(params: Any) -> dict[str, Any]:
    values = {**NEUTRAL}
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n"):
        values[name] = getattr(params, name)
    values["top_k"] = max(0, values["top_k"])
    structured = getattr(params, "structured_outputs", None) or getattr(params, "guided_decoding", None)
    masks = [name for name in ("allowed_token_ids", "bad_words", "logit_bias") if getattr(params, name, None)]
    values["processors"] = [*([STRUCTURED] if structured else []), *masks]
    values.update(
        {name: getattr(params, name) for name in ("presence_penalty", "frequency_penalty") if getattr(params, name)}
    )
    if params.seed is not None:
        values["seed"] = params.seed
    return {k: sourced(v, "default" if v == NEUTRAL.get(k) else "caller") for k, v in values.items()}


def never_text(
    strings: Sequence[str], tokenizer: Any, skip_special: bool, ends: Collection[int] = ()
) -> dict[str, Any]:
    """Of stop strings, those that never end a row: they hold a special token, which the text that
    is searched leaves out, or are the text of an id that ends the row by itself."""
    added = getattr(tokenizer, "added_tokens_decoder", {}) if strings else {}
    special = [token.content for token in added.values() if token.special and skip_special]
    of_ends = {added[i].content for i in ends if i in added}
    found = [text for text in strings if text in of_ends or any(token in text for token in special)]
    return {"never_text": sourced(found, "caller")} if found else {}


def string_lists(arguments: Any, name: str = "") -> Iterator[tuple[str, ...]]:
    """Arguments that may be stops, however deep: short strings, or lists of them, whose name (or that of what they are
    in) says so."""
    said = any(word in name.lower() for word in ("stop", "termin", "end", "until", "delim"))
    if isinstance(arguments, Mapping):
        for key, value in arguments.items():
            yield from string_lists(value, f"{name}.{key}" if said else str(key))
    elif said:
        strings = [arguments] if isinstance(arguments, str) else arguments
        if isinstance(strings, (list, tuple)) and strings and all(isinstance(s, str) and s for s in strings):
            yield tuple(strings)


def vllm_stop(params: Any, ends: Sequence[int], tokenizer: Any, room: int | None = None) -> dict[str, Any]:
    """room: tokens that fit behind the prompt, where vLLM ends a row that was allowed more."""
    most = [count for count in (params.max_tokens, room) if count is not None]
    ids, strings = set(params.stop_token_ids or ()), list(params.stop or ())
    all_ids = ids | (set() if params.ignore_eos else set(ends))
    return never_text(strings, tokenizer, params.skip_special_tokens, all_ids) | {
        "end_ids": sourced(sorted(all_ids), "caller" if ids else "checkpoint"),
        "strings": sourced(strings, "caller" if strings else "default"),
        "max_new_tokens": sourced(min(most, default=None), "caller"),
        "min_new_tokens": sourced(params.min_tokens, "caller" if params.min_tokens else "default"),
        "criteria": sourced([], "default"),
    }


# == Model calls ==


def padding(
    ids: Sequence[int],
    mask: Sequence[int],
    pad: int | None,
    unmasked: bool,
    known: Collection[tuple[int, ...]] = (),
    bos: int | None = None,
    ragged: bool = False,
) -> tuple[list[int], dict[str, Any]]:
    """A padded prompt -> its own ids, and how it was padded. Padding that the mask lets through is padding, too.

    known: ids that a tokenizer gave; a row that is one of them holds no padding. bos: where it is the pad id, the last
    of the pads before a text is its beginning. ragged: beside a row that is one of them, what stands before those of
    another is padding with whatever id, which the model may not know as its own.
    """
    inner = [k for k, m in enumerate(mask) if m]
    first, last = (inner[0], inner[-1] + 1) if inner else (0, len(ids))
    side, masked = ("left" if first else "right" if last < len(ids) else "none"), True
    own = [ids[k] for k in inner]
    if side == "none" and ragged and tuple(own) not in known and own:
        same = next((k for k, i in enumerate(own) if i != own[0]), len(own))
        if (pads := next((k for k in range(1, same + 1) if tuple(own[k:]) in known), 0)) and own[0] != bos:
            return own[pads:], {"side": "left", "pads": pads, "masked": False}
    if side == "none" and unmasked and pad is not None:
        while len(own) > 1 and own[0] == pad and tuple(own) not in known and (bos != pad or own[1] == pad):
            own, side, masked = own[1:], "left", False
        while len(own) > 1 and own[-1] == pad and tuple(own) not in known:
            own, side, masked = own[:-1], "right", False
    return own, {"side": side, "pads": len(ids) - len(own), "masked": masked}


UNSEEN_BY_ROWS = {"input_ids", "attention_mask", "position_ids", "cache_position", "labels", "logits_to_keep"}


def forward_event(model: Any, given: Mapping[str, Any]) -> Forward | None:
    """What a model's forward is given, row by row. None where it is given no ids."""
    placeholder, adapter = placeholder_of(model.config), adapter_print(model)
    ids, mask, positions = (given.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
    if ids is None:
        return None
    flat_mask = mask is not None and getattr(mask, "ndim", 0) == 2 and mask.shape == ids.shape
    # A mapping: what newer transformers make of the pictures before the forward.
    told = {name for name, value in given.items() if hasattr(value, "shape") or (isinstance(value, dict) and value)}
    tensors = sorted(told - UNSEEN_BY_ROWS - {"kwargs"})
    pictures, found = picture_sums(given), []
    # A number for each token, such as of which kind it is.
    marks = {name: given[name] for name in tensors if getattr(given[name], "shape", None) == ids.shape}
    for number, row in enumerate(lists(ids)):
        shown = lists(mask[number])[0] if flat_mask and mask is not None else [1] * len(row)
        own = [place for place, m in enumerate(shown) if m]
        own_marks = {name: [value[number].tolist()[place] for place in own] for name, value in marks.items()}
        own_marks = {name: values for name, values in own_marks.items() if any(values)}  # all of kind 0 is the default
        keys = [name for name in tensors if name not in marks or name in own_marks]
        said: dict[str, Any] = {"keys": keys, "adapter": adapter}
        if positions is not None and positions.shape[-1] == len(row):
            said["positions"] = counted(positions, number, own)
        if len(own) < len(row):
            said["whole"], said["own"] = row, len(own)
        row = [row[place] for place in own]
        count = len(runs(row, placeholder)) if placeholder is not None else 0
        if placeholder is not None and not count:  # beside a row with pictures, which are not its own
            said["keys"] = sorted(own_marks)
        if own_marks:
            said["marks"] = digest_of(own_marks)
        if pictures and count:
            said["pictures"], pictures = pictures[:count], pictures[count:]
        found.append((tuple(row), said))
    return Forward(found)


def adapter_print(model: Any) -> str:
    """A fingerprint of the adapters that a forward goes through, whatever they are called; "" for none."""
    layers = (module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "active_adapters"))
    on = ((layer, name) for layer in layers if not layer.disable_adapters for name in layer.active_adapters)
    parts = [part[name].weight for layer, name in on for part in (layer.lora_A, layer.lora_B) if name in part]
    digest = hashlib.sha256()
    for weight in parts:
        values = weight.detach().flatten()
        some = values[:: max(1, len(values) // 64)].bfloat16()  # of one width, whatever they were loaded in
        digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16] if parts else ""


def counted(positions: Any, number: int, own: Sequence[int]) -> str:
    """Positions of a row's own tokens: "from k" where they are k, k + 1, …, else a digest of them (several axes)."""
    axes = positions if positions.ndim == 3 else positions[None]  # [axes, rows, columns]
    values = [[int(axis[place]) for place in own] for axis in axes[:, min(number, axes.shape[1] - 1)]]
    first = values[0][0] if own else 0
    if all(axis == list(range(first, first + len(own))) for axis in values):
        return f"from {first}"
    return digest_of(values)


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def picture_sums(given: Mapping[str, Any]) -> list[list[float]]:
    """Of each picture's tensor: mean, deviation, and a mean that tells one order of patches from another."""
    values, grids = given.get("pixel_values"), given.get("image_grid_thw")
    if values is None:
        return []
    torch, start, found = sys.modules["torch"], 0, []
    sizes = [int(t * h * w) for t, h, w in lists(grids)] if grids is not None else [1] * len(values)
    for size in sizes:
        own, start = values[start : start + size].detach().float().flatten(), start + size
        weights = torch.linspace(-1, 1, len(own), device=own.device)
        found.append([round(float(v), 4) for v in (own.mean(), own.std(), (own * weights).mean())])
    return found


def ended(ids: Sequence[int], ends: Sequence[int], pad: int | None, most: int | None = None) -> list[int]:
    """Generated ids up to the one that ended them, without the padding.   most: where its criteria ended it."""
    if most is not None and all(i == pad for i in ids[most:]):  # else they were asked of more, as where others guess
        ids = ids[:most]
    for k, i in enumerate(ids):
        if i in ends:
            return list(ids[: k + 1])
    own = list(ids)
    while own and own[-1] == pad:
        own.pop()
    return own


def known_ids(events: Sequence[Event]) -> set[tuple[int, ...]]:
    """Ids that a tokenizer gave, without padding."""
    return {tuple(ids) for event in events if isinstance(event, Tokens) for ids in event.ids}


def first_id(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and value else value


def generate_event(
    model: Any,
    given: Mapping[str, Any],
    resolved: Mapping[str, Any],
    result: Any,
    *,
    nested: bool,
    known: Collection[tuple[int, ...]] = (),
) -> Generated:
    """A call of transformers' generate. given: its arguments by name. known: ids that a tokenizer gave before."""
    given = {**given, **given.get("kwargs", {})}
    inputs = given.get("input_ids", given.get("inputs"))
    if nested:  # an engine's own loop: rows come and go, and it tells what became of them itself
        whole = prompts = lists(inputs)
    else:
        whole = lists(result.sequences if hasattr(result, "sequences") else result)
        prompts = lists(inputs) if inputs is not None else [[] for _ in whole]
    length = 0 if inputs is None or model.config.is_encoder_decoder else len(prompts[0])
    config, checkpoint = resolved["config"], model.generation_config
    stop = hf_stop(given, resolved, checkpoint, length)
    pad = first_id(config.pad_token_id)
    mask = given.get("attention_mask") if inputs is not None else None  # with inputs_embeds it masks no ids
    inferred = mask is None and pad is not None and pad not in stop["end_ids"]["value"]
    masks = [[int(not inferred or i != pad) for i in row] for row in prompts] if mask is None else lists(mask)
    copies = max(1, len(whole) // max(1, len(prompts)))
    sequences, bos, ragged = [], first_id(config.bos_token_id), any(tuple(ids) in known for ids in prompts)
    ends = resolved.get("ends", {}) if (config.num_beams or 1) == 1 else {}  # beams change places
    for number, ids in enumerate(whole):
        asked = number // copies
        own, batch = padding(prompts[asked], masks[asked], pad, not inferred, known, bos, ragged)
        batch = {"rows": len(prompts), **batch}
        if given.get("position_ids") is not None:
            batch["positions"] = "given"
        new = ids[length:]
        request = {"number": asked, "sample": number % copies}
        most = ends[number] - length if number in ends else None
        mine = ended(new, stop["end_ids"]["value"], pad, most)
        sequences.append(Produced(own, mine, new, ids, batch, request=request))
    sampling = hf_sampling(given, resolved, checkpoint)
    return Generated(sequences, model_of(model), sampling, stop, placeholder_of(model.config), nested)


def request_event(request: Any, params: Any, request_id: str, lora: Any = None) -> Params:
    """A request as vLLM's engine is given it: a text, ids, or a mapping with pictures."""
    said = request if isinstance(request, dict) else {}
    images = (said.get("multi_modal_data") or {}).get("image")
    pictures = images if isinstance(images, (list, tuple)) else [images]
    digests = tuple(hashlib.sha256(as_rgb(p).tobytes()).hexdigest() for p in pictures if hasattr(p, "tobytes"))
    adapter = lora and (lora.lora_int_id, str(lora.lora_path))
    ids = tuple(said.get("prompt_token_ids") or ())
    return Params(params, request_id, ids, digests, adapter, picture_names(request), structure_asked(params))


def picture_names(request: Any) -> tuple[str | None, ...]:
    """By which vLLM knows a request's pictures: those that it was given, or made of their content, in order."""
    if not isinstance(request, dict):  # of older releases, already processed
        features = sorted(getattr(request, "mm_features", None) or (), key=lambda one: one.mm_position.offset)
        return tuple(one.identifier for one in features if one.modality == "image")
    names = (request.get("multi_modal_uuids") or request.get("mm_hashes") or {}).get("image") or ()
    return tuple([names] if isinstance(names, str) else names)


def structure_asked(params: Any) -> dict[str, Any]:
    """The form that vLLM is asked for, before it rewrites it."""
    said = getattr(params, "structured_outputs", None) or getattr(params, "guided_decoding", None)
    found = {form: getattr(said, form, None) for form in ("json", "regex", "choice", "grammar", "json_object")}
    return {form: value for form, value in found.items() if value not in (None, False)}


# LLM -> the name of a picture -> what its image processor made of it, which vLLM keeps.
_processed: weakref.WeakKeyDictionary[Any, dict[str | None, dict[str, Any]]] = weakref.WeakKeyDictionary()


def pictures_asked(llm: Any, inner: Sequence[Event]) -> list[list[dict[str, Any]]]:
    """The pictures of each request, also those that vLLM knows by their names and does not process again."""
    asked = [event.uuids for event in inner if isinstance(event, Params)]
    fresh = [picture for event in inner if isinstance(event, Images) for picture in event.pictures]
    known, missing, before = _processed.setdefault(llm, {}), list[str | None](), set[str | None]()
    for names in asked:
        missing += [name for name in names if name not in before and name not in known]
        before.update(names)
    for order in ([name for names in asked for name in names], missing):  # all of them, where it keeps none
        if len(order) == len(fresh):
            known.update(zip(order, fresh))
            break
    return [[known.get(name, {}) for name in names] for names in asked]


def vllm_event(llm: Any, given: Mapping[str, Any], inner: Sequence[Event], outputs: Sequence[Any]) -> Generated:
    """A call of LLM.generate or LLM.chat."""
    params, pictures = [event for event in inner if isinstance(event, Params)], pictures_asked(llm, inner)
    asked = [event.params for event in params]
    if len(asked) != len(outputs):  # what was asked is not to be had request by request
        said = given.get("sampling_params") or llm.get_default_sampling_params()
        asked = list(said) if isinstance(said, (list, tuple)) else [*(asked[:1] or [said])] * len(outputs)
    answers = [
        (used, number, output.prompt, output.prompt_token_ids, answer.token_ids, answer.text)
        for number, (used, output) in enumerate(zip(asked, outputs))
        for answer in output.outputs
    ]
    made = vllm_generated(llm.llm_engine, asked[0] if asked else llm.get_default_sampling_params(), answers)
    for sequence in made.sequences if len(params) == len(outputs) else ():
        number = sequence.request["number"]
        sequence.said["images"] = pictures[number] or None
        if params[number].structure:
            sequence.request["structure"] = params[number].structure
        if adapter := params[number].adapter:
            sequence.request["adapter"] = shown_path(_named.setdefault(llm, {}).setdefault(*adapter))
    return made


def vllm_generated(engine: Any, first: Any, answers: Sequence[tuple[Any, int, Any, Any, Any, str]]) -> Generated:
    """answers: (parameters, number of the request, prompt text or None, prompt ids, generated ids, text)."""
    sequences, ends, samples, tokenizer = [], vllm_ends(engine), dict[int, int](), getattr(engine, "tokenizer", None)
    window = engine.vllm_config.model_config.max_model_len
    for used, number, prompt, prompt_ids, token_ids, text in answers:
        how = {"ids": "ended", "skip_special_tokens": used.skip_special_tokens, "clean_up": False}
        ids, said = list(token_ids), {"prompt_text": prompt, "decode": how, "text": text or None}
        request: dict[str, Any] = {"number": number, "sample": samples.get(number, 0)}
        samples[number] = request["sample"] + 1
        if used.seed is not None and used.temperature:
            request["seed"] = used.seed + request["sample"]
        room = window - len(prompt_ids or ())
        own = {"sampling": vllm_sampling(used), "stop": vllm_stop(used, ends, tokenizer, room)}
        sequences.append(Produced(list(prompt_ids or ()), ids, ids, ids, {}, said, request, **own))
    config = engine.vllm_config.model_config.hf_config
    return Generated(
        sequences, model_of(engine), vllm_sampling(first), vllm_stop(first, ends, tokenizer), placeholder_of(config)
    )  # fmt: skip


@dataclass(slots=True)
class Stepped:
    """Requests that code gives to an LLMEngine and steps itself. parts: (request, sample) -> ids and text so far."""

    params: dict[str, Any] = field(default_factory=dict)
    parts: dict[tuple[str, int], tuple[list[int], str]] = field(default_factory=dict)

    def take(self, engine: Any, outputs: Sequence[Any]) -> list[Generated]:
        """What one step gave -> the requests that it finished, one event each."""
        found = []
        for output in outputs:
            used = self.params.get(output.request_id)
            if used is None:
                continue
            delta = used.output_kind.name == "DELTA"
            for answer in output.outputs:
                ids, text = self.parts.get((output.request_id, answer.index), ([], "")) if delta else ([], "")
                self.parts[output.request_id, answer.index] = [*ids, *answer.token_ids], text + answer.text
            if output.finished:
                del self.params[output.request_id]
                whole = [self.parts.pop(key) for key in sorted(self.parts) if key[0] == output.request_id]
                answers = [(used, 0, output.prompt, output.prompt_token_ids, ids, text) for ids, text in whole]
                found.append(vllm_generated(engine, used, answers))
        return found


# == Given ids that are read ==


def seen_ids(said: Sequence[int], response: Sequence[int], forwards: Sequence[tuple[int, ...]]) -> list[int]:
    """Of ids that an engine says it has read, those that reached a forward: these, or others with the same response."""
    others = (ids for ids in forwards if ids[len(ids) - len(response) :] == tuple(response))
    return list(said if not forwards or tuple(said) in forwards else next(others, said))


def scored_pictures(
    engine: Any, prompts: Sequence[Any], inner: Sequence[Event], ids: Sequence[Sequence[int]]
) -> list[Any]:
    """Of each row that was scored, its pictures, also those that vLLM keeps and does not process again."""
    seen, placeholder, found = pictures_by_budget(inner), engine.checkpoint.placeholder_id, []
    received = pictures_received(engine.model, inner)
    shown = [prompt for prompt in prompts if prompt.images]
    for row in ids:
        one = collapsed(row, placeholder)
        place = next((k for k, p in enumerate(shown) if one[: len(p.token_ids)] == tuple(p.token_ids)), None)
        given = received.get(one, ())
        found.append(None if place is None else engine_pictures(engine, shown.pop(place), row, seen, given))
    return found


def scored_event(
    model: Any,
    ids: Sequence[list[int]],
    placeholder: int | None,
    pictures: Sequence[Any] = (),
    requests: Sequence[dict[str, Any]] = (),
) -> Generated:
    each = itertools.zip_longest(ids, pictures, requests)
    sequences = [Produced(row, [], said={"scored": True, "images": own}, request=told or {}) for row, own, told in each]
    return Generated(sequences, model_of(model), {}, {}, placeholder)


# == An engine's calls ==


def having(plugins: Sequence[Any], *hooks: str) -> list[str]:
    """Names of the plugins that have one of these hooks."""
    return [plugin.name for plugin in plugins if any(getattr(plugin, hook, None) for hook in hooks)]


def engine_sampling(effective: Mapping[str, Any], inner: Sequence[Event], plugins: Sequence[Any]) -> dict[str, Any]:
    """What the engine says, corrected by what the library below it was really given."""
    said = {name: effective.get(name, sourced(value, "default")) for name, value in NEUTRAL.items()}
    said = {
        name: entry if entry["value"] is not None else {**entry, "value": NEUTRAL[name]} for name, entry in said.items()
    }
    names = having(plugins, "logits", "hf_logits_processors")
    nested = [event for event in inner if isinstance(event, Generated)]
    params = [event.params for event in inner if isinstance(event, Params)]
    if nested:
        below: dict[str, Any] = {name: entry["value"] for name, entry in nested[0].sampling.items()}
        del below["temperature"]  # the loop's own: it draws by itself and tells the library nothing
        below["n"] = said["n"]["value"]
        names += [p for p in below["processors"] if p != "<lambda>"]
    elif params:
        below = {name: entry["value"] for name, entry in vllm_sampling(params[0]).items() if name != "n"}
    else:
        below = {}
    said["processors"] = sourced(names, "caller" if names else "default")
    for ours in ("processors", "no_repeat_ngram_size"):  # handed down as functions, which do not say what they are
        below.pop(ours, None)
    for name, value in below.items():
        if said.get(name, {}).get("value") != value and name != "seed":
            said[name] = sourced(value, "below the engine")
    if said["temperature"]["value"] and effective["seed"]["value"] is not None:
        said["seed"] = effective["seed"]
    return said


def engine_stop(effective: Mapping[str, Any], tokenizer: Any, plugins: Sequence[Any]) -> dict[str, Any]:
    """end_ids are those of the checkpoint and those named as ids; string_ids, those of stop strings of one token."""
    strings = list(effective["stop_strings"]["value"])
    named = effective["stop_token_ids"]["value"]
    by_string = [i for i in named if tokenizer.decode([i]) in strings]
    ends = sorted({*effective["eos_token_ids"]["value"], *named} - set(by_string))
    criteria = having(plugins, "should_stop", "hf_stopping_criteria")
    said = {
        "end_ids": sourced(ends, "caller" if named else effective["eos_token_ids"]["from"]),
        "strings": sourced(strings, effective["stop_strings"]["from"]),
        "max_new_tokens": effective["max_new_tokens"],
        "min_new_tokens": effective["min_new_tokens"],
        "criteria": sourced(criteria, "caller" if criteria else "default"),
        **never_text(strings, tokenizer, effective["skip_special_tokens"]["value"], ends),
    }
    said |= {"include_stop": effective["include_stop"]} if effective["include_stop"]["value"] else {}
    return {**said, "string_ids": sourced(by_string, "caller")} if by_string else said


def engine_pictures(
    engine: Any, prompt: Any, ids: Sequence[int], seen: Mapping[str, Any], given: Sequence[tuple[str, ...]]
) -> list[dict[str, Any]]:
    """A request's pictures. seen: what the image processor made of a picture, by sha256 and tokens.   given: pictures
    with which vLLM received this prompt; where none are the engine's own, the first tell what the model saw."""
    pictures = []
    own = [hashlib.sha256(image.tobytes()).hexdigest() for image in prompt.images]
    digests = own if tuple(own) in given or not given else [*given[0], *own[len(given[0]) :]]
    for image, tokens, digest in zip(prompt.images, runs(ids, engine.checkpoint.placeholder_id), digests):
        budget = budget_of(engine.checkpoint.vision.image_processor, prompt.image_kwargs)
        said = {"sha256": digest, "size": list(image.size), "tokens": tokens, "budget": budget, "pixels": image}
        pictures.append({**seen.get(f"{digest}{tokens}", {}), **said})
    return pictures


def pictures_by_budget(inner: Sequence[Event]) -> dict[str, Any]:
    """What the image processor made of pictures, by sha256 and tokens."""
    pictures = [p for event in inner if isinstance(event, Images) for p in event.pictures]
    return {f"{p['sha256']}{p.get('tokens')}": p for p in pictures}


# LLM -> an adapter's number, or a picture's uuid -> what came under it first: vLLM goes by these.
_named: weakref.WeakKeyDictionary[Any, dict[Any, str]] = weakref.WeakKeyDictionary()


def pictures_received(llm: Any, inner: Sequence[Event]) -> dict[tuple[int, ...], list[tuple[str, ...]]]:
    """Pictures that vLLM shows with a prompt, as often as it received it."""
    received: dict[tuple[int, ...], list[tuple[str, ...]]] = {}
    for event in inner:
        if isinstance(event, Params) and event.pictures:
            known = _named.setdefault(llm, {})
            pairs = itertools.zip_longest(event.pictures, event.uuids[: len(event.pictures)])
            shown = tuple(known.setdefault(uuid, picture) if uuid else picture for picture, uuid in pairs)
            received.setdefault(event.prompt_ids, []).append(shown)
    return received


def adapters_received(llm: Any, inner: Sequence[Event]) -> dict[tuple[int, ...], set[str]]:
    """The adapters that vLLM used for each prompt's requests, by their folders, "" for none. Its word is the number."""
    used = dict[tuple[int, ...], set[str]]()
    for event in inner:
        if isinstance(event, Params):
            folder = _named.setdefault(llm, {}).setdefault(*event.adapter) if event.adapter else ""
            used.setdefault(event.prompt_ids, set()).add(folder)
    return used


def seeds_received(inner: Sequence[Event]) -> dict[tuple[int, ...], list[int]]:
    """The seeds with which vLLM drew for each prompt, in the order in which it was asked."""
    found: dict[tuple[int, ...], list[int]] = {}
    for event in inner:
        if isinstance(event, Params) and event.params.seed is not None:
            found.setdefault(event.prompt_ids, []).append(event.params.seed)
    return found


def seed_below(seed: int, number: int, received: Sequence[int]) -> int:
    """The seed that sample `number` of a request is drawn with: its own, or what vLLM received in its place."""
    own = seed + number
    return own if not received or own in received else received[min(number, len(received) - 1)]


def adapter_told(engine: Any, prompt: Any, used: Mapping[tuple[int, ...], set[str]]) -> dict[str, Any]:
    """What a request says of its adapter: its folder, or that vLLM was seen to use another one."""
    folder = str(engine.config.adapters.get(prompt.adapter, prompt.adapter)) if prompt.adapter else ""
    if folder not in used.get(tuple(prompt.token_ids), {folder}):
        return {"adapter": "another"}
    return {"adapter": shown_path(folder)} if folder else {}


def engine_event(
    engine: Any, given: Mapping[str, Any], prompts: Mapping[int, Any], inner: Sequence[Event], results: Sequence[Any]
) -> Generated:
    """A call of gen_engine's generate_*_batch. prompts: index -> (request, Prompt, events of making it)."""
    seen = pictures_by_budget(inner)
    padded = {tuple(s.prompt_ids): s.batch for e in inner if isinstance(e, Generated) and e.nested for s in e.sequences}
    placeholder = engine.checkpoint.placeholder_id
    asked_of = [prompt for _, prompt, _ in prompts.values() if hasattr(prompt, "token_ids")]
    received = pictures_received(engine.model, inner)
    adapters, seeds = adapters_received(engine.model, inner), seeds_received(inner)
    ran, unlike = Counter(computed(inner, placeholder)), {repr(own_request(prompt)): prompt for prompt in asked_of}
    wanted = Counter(collapsed(prompt.token_ids, placeholder) for prompt in unlike.values())
    sequences, effective = [], None
    # Of these the model was asked; a request that was refused may hold another one's answer.
    asked = {k: result for k, result in enumerate(results) if hasattr(result, "finish_reason") and k in prompts}
    lengths: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for index, result in asked.items():
        prompt = prompts[index][1]
        lengths.setdefault(tuple(prompt.token_ids), []).append((prompt.length, len(result.prompt_token_ids)))
    for index, result in asked.items():
        _, prompt, made = prompts[index]
        seed, given_ids = seed_of(prompts[index][0], given.get("options"), prompt), tuple(prompt.token_ids)
        for number, sample in enumerate(result.samples or (result,)):
            effective = sample.effective
            ids = list(sample.token_ids)
            said = {
                "decode": {
                    "ids": "ended",
                    "skip_special_tokens": effective["skip_special_tokens"]["value"],
                    "clean_up": effective["clean_up_tokenization_spaces"]["value"],
                },
                "text": sample.text,
                "images": engine_pictures(engine, prompt, sample.prompt_token_ids, seen, received.get(given_ids, ()))
                if prompt.images
                else None,
                **chat_of(made),
            }
            batch = padded.get(tuple(sample.prompt_token_ids), {})
            request: dict[str, Any] = {"number": index, "sample": number}
            if not asked_for(prompt, sample.prompt_token_ids, placeholder, lengths[given_ids]):
                request["answers"] = "another"
            request |= adapter_told(engine, prompt, adapters)
            if structure := structure_of(prompts[index][0]):
                request["structure"] = structure
            if 0 < ran[alone := collapsed(given_ids, placeholder)] < wanted[alone]:
                request["shared"] = True
            if getattr(sample, "cached", False):
                request["cached"] = True
            if seed is not None and effective["temperature"]["value"]:
                reached = [] if "cached" in request else seeds.get(given_ids, [])
                request["seed"] = seed_below(seed, number, reached)
            prompted = list(sample.prompt_token_ids)
            sequences.append(Produced(prompted, ids, ids, [*prompted, *ids], batch, said, request))
    if effective is None:
        effective = engine.effective(given.get("options"))
    plugins = given.get("plugins", ())
    sampling, stop = engine_sampling(effective, inner, plugins), engine_stop(effective, engine.tokenizer, plugins)
    for sequence in sequences:
        own: dict[str, Any] = {}
        if "seed" in sequence.request:
            own["seed"] = sourced(sequence.request["seed"] - sequence.request["sample"], "caller")
        if getattr(prompts[sequence.request["number"]][1], "structured", None) is not None:
            own["processors"] = sourced([*sampling["processors"]["value"], STRUCTURED], "caller")
        sequence.sampling = {**sampling, **own} if own else {}
    return Generated(sequences, model_of(engine.model), sampling, stop, engine.checkpoint.placeholder_id)


def structure_of(request: Any) -> dict[str, Any]:
    """The form that a request asks for, as it says it."""
    said: Any = request.get("structured") if isinstance(request, Mapping) else getattr(request, "structured", None)
    fields = said.given() if hasattr(said, "given") else said or {}
    return {form: value for form, value in fields.items() if value not in (None, False)}


def own_request(prompt: Any) -> list[Any]:
    """What makes a Prompt a request of its own."""
    pictures = [(image.size, image.mode, hashlib.sha256(image.tobytes()).hexdigest()) for image in prompt.images]
    names = ("image_kwargs", "seed", "adapter", "structured")
    return [tuple(prompt.token_ids), pictures, *(getattr(prompt, name, None) for name in names)]


def computed(inner: Sequence[Event], placeholder: int | None) -> Iterator[tuple[int, ...]]:
    """Prompts that an engine gave to its library, each as often as it did."""
    for event in inner:
        if isinstance(event, Generated) and event.nested:
            yield from (collapsed(sequence.prompt_ids, placeholder) for sequence in event.sequences)
        if isinstance(event, Params):
            yield collapsed(event.prompt_ids, placeholder)


def seed_of(request: Any, options: Any, prompt: Any) -> int | None:
    """The seed that a request was given, before that of the options; else what the engine made of both."""
    for given in (request, options):
        seed = given.get("seed") if isinstance(given, Mapping) else getattr(given, "seed", None)
        if seed is not None:
            return int(seed)
    found: int | None = getattr(prompt, "seed", None)
    return found


def asked_for(prompt: Any, ids: Sequence[int], placeholder: int | None, lengths: Sequence[tuple[int, int]]) -> bool:
    """Whether these ids are a Prompt's own, pictures as one id or as many. Of another length they may be of its own
    pictures, unless the prompts with these ids have got each other's.   lengths: theirs, and of what they got."""
    if collapsed(prompt.token_ids, placeholder) != collapsed(ids, placeholder):
        return False
    wanted, got = (sorted(column) for column in zip(*lengths))
    return len(ids) == prompt.length or wanted != got


def chat_of(made: Sequence[Event]) -> dict[str, Any]:
    """The chat stages of one request, from what happened while its prompt was made."""
    said: dict[str, Any] = {}
    parts = as_pieces([text for event in made if isinstance(event, Tokens) for text in event.texts])
    for event in made:
        if isinstance(event, Template) and event.texts:
            said["messages"], said["prompt_text"] = event.chats[0], event.texts[0]
            said["template"] = {"sha256": event.sha256, "arguments": event.arguments}
            if mark := mark_between(parts, event.texts[0]):
                said["messages"] = json.loads(json.dumps(said["messages"]).replace(mark, ""))
                said["prompt_text"] = "".join(parts)
    if parts and "prompt_text" not in said:
        said["prompt_text"] = parts[0]
    return said


def as_pieces(parts: Sequence[str]) -> list[str]:
    """Texts that were tokenized, without the line end that an engine puts before each piece but the first: it tokenizes
    that by itself, to take it off again."""
    first, led = list(parts[:1]), parts[2:]
    apart = parts[1:2] == ["\n"] and led and all(part.startswith("\n") for part in led)
    return [*first, *(part[1:] for part in led)] if apart else list(parts)


def mark_between(parts: Sequence[str], whole: str) -> str:
    """What a text has in several places and the parts of it that were tokenized have not; "" if that is not all."""
    joined = "".join(parts)
    more, same = len(whole) - len(joined), (one == other for one, other in zip(joined, whole))
    first = sum(1 for _ in itertools.takewhile(bool, same))
    sizes = (size for size in range(1, min(more, LONGEST_MARK) + 1) if more % size == 0)
    marks = (whole[begin : begin + size] for size in sizes for begin in range(first, max(-1, first - size), -1))
    return next((mark for mark in marks if whole.replace(mark, "") == joined), "")


LONGEST_MARK = 64


def pieced(texts: Mapping[tuple[int, ...], str], ids: tuple[int, ...]) -> str | None:
    """The text of ids that are those of some texts, one behind the other."""
    found, begin = list[str](), 0
    while begin < len(ids):
        part = max((one for one in texts if one and one == ids[begin : begin + len(one)]), key=len, default=())
        if not part:
            return None
        found.append(texts[part])
        begin += len(part)
    return "".join(found)


# == Decoding ==


def decode_event(tokenizer: Any, given: Mapping[str, Any], result: Any) -> Decode:
    ids = given.get("token_ids", given.get("sequences"))
    clean = given.get("clean_up_tokenization_spaces")
    clean = getattr(tokenizer, "clean_up_tokenization_spaces", False) if clean is None else clean
    how = {"skip_special_tokens": bool(given.get("skip_special_tokens", False)), "clean_up": bool(clean)}
    return Decode(lists(ids), texts_of(result), how)


def which_ids(ids: list[int], sequence: Produced) -> str | None:
    """Which part of a sequence was decoded, or None if none of it was."""
    if ids == sequence.whole:
        return "whole"
    if ids == sequence.output_ids:
        return "ended"
    if ids == sequence.new_ids:
        return "new"
    if ids and ids == sequence.new_ids[: len(ids)] and len(ids) > 1:
        return "part"
    return None


def decoded_as(sequence: Produced, later: Sequence[Event]) -> dict[str, Any]:
    """The decode calls after the model's that were given this sequence: the first one, and all where there are more."""
    found: list[dict[str, Any]] = []
    if "decode" in sequence.said:
        found.append({**sequence.said["decode"], "text": sequence.said.get("text")})
    for event in later:
        if isinstance(event, Decode):
            for place, ids in enumerate(event.ids):
                part = which_ids(ids, sequence)
                if part is not None and place < len(event.texts):
                    found.append({"ids": part, **event.how, "text": event.texts[place]})
                    break  # equal rows of one call have equal texts
    if sequence.said.get("loop"):  # which decodes what it has so far, again and again
        found = [how for how in found if how["ids"] != "part"]
        found = [how for how in found if how["ids"] == "ended"] or found
    if not found:
        return {}
    first = {"decode": {k: v for k, v in found[0].items() if k != "text"}, "text": found[0]["text"]}
    return {**first, "decodes": found} if len(found) > 1 else first


# == Rows ==


class Before:
    """What happened before a model call, to be asked for by the ids of a prompt."""

    def __init__(self, events: Sequence[Event], placeholder: int | None) -> None:
        self.placeholder = placeholder
        self.templates: list[Template] = []
        self.pictures = [p for event in events if isinstance(event, Images) for p in event.pictures]
        self.forwards: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for ids, said in (row for event in events if isinstance(event, Forward) for row in event.rows):
            self.forwards.setdefault(ids, []).append(said)
        self.padded = [said for row in self.forwards.values() for said in row if "whole" in said]
        self.turns = Counter[tuple[int, ...]]()  # how often these ids were asked for
        self.texts: dict[tuple[int, ...], str] = {}
        self.unmarked: dict[tuple[int, ...], str] = {}  # without the first id, which may be one that is masked as a pad
        self.know(events)

    def know(self, events: Sequence[Event]) -> None:
        """The texts of these events, too."""
        self.templates = [event for event in events if isinstance(event, Template)]
        for event in events:
            if isinstance(event, Tokens):
                known = (collapsed(ids, self.placeholder) for ids in event.ids)
                self.texts.update(said := dict(zip(known, event.texts)))
                self.unmarked |= {ids[1:]: text for ids, text in said.items()}

    def stages(self, prompt_ids: Sequence[int], read: bool = False) -> dict[str, Any]:
        """read: these ids are only read, a response behind its prompt, whose text is the prompt's.   behind: how many
        ids stand behind the text of a chat, put there by hand."""
        ids = collapsed(prompt_ids, self.placeholder)
        text, behind = self.texts.get(ids, self.unmarked.get(ids)), 0
        if text is None:  # of ids that are read, the text that they begin with
            begin = max((known for known in self.texts if known and known == ids[: len(known)]), key=len, default=())
            text = self.texts.get(begin)
            wholes = (folded(one) for event in self.templates for one in event.texts)
            if not read and folded(text or "") not in wholes:
                text = pieced(self.texts, ids) or text  # markers were tokenized apart from what stands between them
            elif not read:
                behind = len(ids) - len(begin)
        said: dict[str, Any] = {"prompt_text": text, "behind": behind}
        for event in reversed(self.templates):
            for chat, rendered in zip(event.chats, event.texts):
                if text is not None and folded(rendered) == folded(text):
                    template = {"sha256": event.sha256, "arguments": event.arguments}
                    return {**said, "messages": chat, "template": template, "prompt_text": rendered}
        return said

    def cut(self, prompt_ids: Sequence[int]) -> str:
        """Which part of a text these ids are, where they are its beginning or its end."""
        ids = collapsed(prompt_ids, self.placeholder)
        for text in self.texts if ids else ():
            for end, part in {"first": text[: len(ids)], "last": text[-len(ids) :]}.items():
                if part == ids:
                    return f"{end} {len(ids)} of {len(text)}"
        return ""

    def inputs(self, prompt_ids: Sequence[int]) -> dict[str, Any] | None:
        """Of rows with one prompt, which may have unlike pictures, each the next.   adapters: all that these ids went
        through, where there are any.   hidden: how many of these ids the model was given, and may not attend to."""
        ids = list(prompt_ids)
        found, turn = self.forwards.get(tuple(ids)), self.turns[tuple(ids)]
        if found is None:
            ends = ((said, (said["whole"][-len(ids) :], said["whole"][: len(ids)])) for said in self.padded)
            whole = next((said for said, both in ends if ids in both), None)
            if whole is None or not ids:
                return None
            found = [{**whole, "hidden": len(ids) - whole["own"]}]
        self.turns[tuple(ids)] += 1
        adapters = sorted({said["adapter"] for said in found})
        kept = ("keys", "positions", "marks", "pictures", "hidden")
        said = {name: value for name, value in found[min(turn, len(found) - 1)].items() if name in kept}
        return {**said, "adapters": adapters} if any(adapters) else said

    def take_pictures(self, prompt_ids: Sequence[int]) -> list[dict[str, Any]]:
        """The next pictures in order, one per run of image tokens."""
        count = len(runs(prompt_ids, self.placeholder))
        taken, self.pictures = self.pictures[:count], self.pictures[count:]
        return taken


def folded(text: str) -> str:
    """Text with each run of image tokens as one, whatever they are called."""
    for name in ("<|image_pad|>", "<image>", "<image_soft_token>"):
        while name * 2 in text:
            text = text.replace(name * 2, name)
    return text


def completed(sequence: Produced, later: Sequence[Event]) -> None:
    """Give a loop's row the last of its ids, where it was decoded with the others."""
    decoded = (ids for event in later if isinstance(event, Decode) for ids in event.ids)
    whole = next((ids for ids in decoded if len(ids) > 1 and ids[:-1] == sequence.output_ids), None)
    if sequence.said.get("loop") == BUT_THE_LAST and whole is not None:
        sequence.output_ids = sequence.new_ids = whole
        sequence.said["loop"] = CHOSEN


def by_itself(said: Mapping[str, Any]) -> bool:
    """Whether the code called the model by itself, and not its `generate`: of a row, or what a sequence says."""
    return bool(said.get("loop") or said.get("scored"))


def row_of(sequence: Produced, call: Generated, before: Before, later: Sequence[Event]) -> dict[str, Any]:
    completed(sequence, later)
    said = {**before.stages(sequence.prompt_ids, read=bool(sequence.said.get("scored"))), **decoded_as(sequence, later)}
    said.update({key: value for key, value in sequence.said.items() if value is not None})
    if said.get("prompt_text") is None and (cut := before.cut(sequence.prompt_ids)):
        sequence.request["cut"] = cut
    if (behind := said.pop("behind")) and "prompt_text" not in sequence.said:
        sequence.request["behind"] = behind
    pictures = said.pop("images", None) or before.take_pictures(sequence.prompt_ids)
    text = said.get("prompt_text")
    return {
        **said,
        "prompt_text": text if text is None else folded(text),
        "prompt_ids": sequence.prompt_ids,
        "images": pictures or None,
        "batch": sequence.batch or None,
        "model": call.model,
        "request": sequence.request or None,
        "inputs": before.inputs(sequence.prompt_ids),
        "sampling": sequence.sampling or call.sampling or None,
        "stop": sequence.stop or call.stop or None,
        "output_ids": sequence.output_ids,
    }


def behind_a_text(ids: Sequence[int], texts: Collection[tuple[int, ...]]) -> int:
    """How many ids stand behind the longest text that they begin with, such as an answer that is scored."""
    return min((len(ids) - len(text) for text in texts if text and text == tuple(ids[: len(text)])), default=0)


def given_no_ids(row: Mapping[str, Any]) -> bool:
    """Whether a model was given embeddings: which ids they stand for is not known."""
    return not row["prompt_ids"]


def rows_of(events: Sequence[Event], store: golden.Store | None) -> list[dict[str, Any]]:
    """All rows of one call, in the order in which the model was asked."""
    found = []
    since = 0
    for place, event in enumerate(events):
        if not isinstance(event, Generated) or event.nested:
            continue
        before = Before(events[since:place], event.placeholder)
        since, texts = place, known_ids(events[:place])
        if any(by_itself(one.said) for one in event.sequences):  # their texts may be older than what was read last
            before.know(events[:place])
        for sequence in event.sequences:
            if sequence.said.get("scored") and (response := behind_a_text(sequence.prompt_ids, texts)):
                sequence.request.setdefault("response", response)
            row = row_of(sequence, event, before, events[place:])
            row["images"] = row["images"] and [kept_picture(p, store) for p in row["images"]]
            found.append({key: row[key] for key in golden.ROW_KEYS if row.get(key) is not None})
    return found


def with_script_seed(found: Sequence[dict[str, Any]], seed: int | None) -> list[dict[str, Any]]:
    """Rows that would have been drawn with the seed that a script gave before their call, had the recorder not given
    its own: they name it."""
    return [
        {**row, "request": {**row.get("request", {}), "script_seed": seed}}
        if seed is not None and row.get("sampling", {}).get("seed", {}).get("from") == "script"
        else row
        for row in found
    ]


def split_calls(events: list[Event], keep: int) -> tuple[list[list[Event]], list[Event]]:
    """Events of many model calls -> one list per call (what led to it, and all decoding after it), and the rest, with
    the last `keep` calls."""
    places = [k for k, event in enumerate(events) if isinstance(event, Generated) and not event.nested]
    done = places[: len(places) - keep] if keep else places
    found, since = [], 0
    for place in done:
        later = [event for event in events[place + 1 :] if isinstance(event, Decode)]
        found.append([*events[since : place + 1], *later])
        since = place + 1
    return found, events[since:]
