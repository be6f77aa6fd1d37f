"""The sheets as the engine fills them: doubles stand where libraries are called, to see what they are given."""

# mypy: disable-error-code="misc,arg-type,assignment,attr-defined,call-overload,func-returns-value,var-annotated"
# mypy: no-warn-unused-ignores

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import enum
import functools
import importlib
import importlib.machinery
import inspect
import io
import json
import logging
import math
import os
import pickle
import random
import re
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

import gen_engine as own

LLAMA, SURE, VL = (f"golden/models/{name}" for name in ("random-llama", "tiny-qwen3", "tiny-qwen3-vl"))
SHEETS: dict[str, Callable[[], Any]] = {}


def sheet(name: str) -> Any:
    return SHEETS[name]()


def fills(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        SHEETS[name] = function
        return function

    return register


# == How a sheet is written ==


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return leaf(value)


def leaf(value: Any) -> Any:
    if isinstance(value, own.GenEngineError):
        return told(value)
    if isinstance(value, Image.Image):
        return [value.mode, *value.size, plain(value.getpixel((0, 0)))]
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return f"<{type(value).__name__}>" if callable(value) else repr(value)


def told(error: own.GenEngineError) -> str:
    """An error without what a library says in its own words."""
    theirs = ""
    with contextlib.suppress(Exception):
        theirs = str(error.__cause__ or "")
    text = str(error).replace(f": {theirs}", ": [...]") if theirs else str(error)
    kind = type(error.__cause__).__name__
    what, is_elided, _ = error.problem.partition(f": {kind}: ")
    if theirs and theirs not in error.problem and is_elided:  # it was too long
        text = text.replace(error.problem, f"{what}: {kind}: [...]")
    return f"{type(error).__name__}: {text}"


def said(make: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a call gives, or what it raises."""
    try:
        return plain(make(*args, **named))
    except own.GenEngineError as error:
        return told(error)
    except (ValueError, LookupError, ImportError, OSError, ArithmeticError, RuntimeError) as error:
        return f"{type(error).__name__}, not ours"


def each(make: Callable[..., Any], *rows: Any) -> list[Any]:
    """What a call gives of each row of arguments."""
    return [said(make, *row) for row in rows]


@contextlib.contextmanager
def modules(**named: Any) -> Iterator[None]:
    """With these in the place of modules; a name has "__" for a dot."""
    wanted = {name.replace("__", "."): module for name, module in named.items()}
    before = {name: sys.modules.get(name) for name in wanted}
    sys.modules.update(wanted)
    own.installed.cache_clear()
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        own.installed.cache_clear()


def module(name: str, **fields: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(fields)
    return made


class Logged(logging.Handler):
    """Counts the lines of the engine's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def log_kept() -> Iterator[list[str]]:
    handler = Logged()
    own.log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        own.log.removeHandler(handler)


# == Errors ==


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


def raising(error: BaseException) -> Any:
    raise error


def wrapped(error: BaseException) -> Any:
    with own.wrapping_errors(own.LoadError, "reading it", "look there"):
        raise error


def placed(error: BaseException, *answers: Any) -> Any:
    with own.at_request(2, *answers):
        raise error


def cause_of(error: BaseException) -> Any:
    try:
        wrapped(error)
    except own.LoadError as raised:
        return [type(raised.__cause__).__name__, raised.problem, raised.fix, raised.index]
    return None


def fields_of_error(error: own.GenEngineError) -> list[Any]:
    return [error.problem, error.fix, error.index, str(error), list(map(str, error.args))]


@fills("errors")
def errors() -> Any:
    kinds = [
        own.OptionError,
        own.RequestError,
        own.ImageError,
        own.PromptTooLongError,
        own.LoadError,
        own.BackendMissing,
        own.UnsupportedError,
        own.EngineError,
    ]
    letters = "abcdefghij" * 101
    answers: list[Any] = [0, 1, 2, 3]
    placed(own.OptionError("odd"), answers)
    made = own.RequestError("a problem", fix="mend it", index=3)
    names = ["temperature", "top_p", "top_k"]
    return {
        "kinds": {kind.__name__: [one.__name__ for one in kind.__mro__[1:]] for kind in kinds},
        "texts": [
            str(own.GenEngineError("a problem")),
            str(own.GenEngineError("a problem", index=0)),
            str(own.GenEngineError("a problem", fix="do it")),
            str(own.GenEngineError("a problem", fix="really?", index=7)),
        ],
        "fields": fields_of_error(made),
        "copied": fields_of_error(copy.copy(made)),
        "pickled": fields_of_error(pickle.loads(pickle.dumps(made))),
        "elided": [own.elide_middle(letters[:n], 20) for n in (0, 19, 20, 21, 60)],
        "long": [len(own.GenEngineError(letters[:n], fix=letters[:n]).problem) for n in (1000, 1001)],
        "long fix": [len(own.GenEngineError("a", fix=letters[:n]).fix) for n in (500, 501)],
        "meant": [own.did_you_mean(name, names) for name in ("temprature", "top", "zzz", 3, None, "temperatur" * 9)],
        "meant of long": own.did_you_mean("a" * 100, ["a" * 80]),
        "meant of none": own.did_you_mean("a", []),
        "short": [own.short_repr(one) for one in ("a" * 100, 10**5000, list(range(99)), {"a": [[[[[[[1]]]]]]]}, 1.5)],
        "short object": own.short_repr(types.SimpleNamespace(a="b" * 200)),
        "wrapped": each(wrapped, [KeyError("a")], [own.OptionError("ours", fix="x")], [Mute()], [OSError("b")]),
        "causes": [cause_of(KeyError("a")), cause_of(Mute())],
        "placed": each(placed, [own.OptionError("odd")], [ValueError("b")], [own.EngineError("c", index=9)]),
        "answers": plain(answers),
    }


# == Imports ==


@fills("imports")
def imports() -> Any:
    inner = module("inner_one")
    broken = Path(tempfile.mkdtemp(), "broken_one.py")
    broken.write_text("import nothing_of_that_name\n", encoding="utf-8")
    sys.path.insert(0, str(broken.parent))
    try:
        with modules(transformers=None, PIL=None, vllm=None, nowhere=None, inner_one=inner, PIL__Image=None):
            names = ["transformers", "PIL", "vllm", "vllm.config", "nowhere", "nowhere.at.all", "PIL.Image"]
            return {
                "missing": {name: said(own.lazy_import, name) for name in names},
                "found": own.lazy_import("inner_one") is inner,
                "dotted": own.lazy_import("os.path").__name__ == os.path.__name__,
                "broken": said(own.lazy_import, "broken_one"),
                "part": said(own.lazy_import, "json.nothing"),
            }
    finally:
        sys.path.remove(str(broken.parent))
        shutil.rmtree(broken.parent)


def missing(engine: Any, name: str) -> str:
    try:
        return str(engine.companion(name).__name__)
    except ImportError as error:
        return str(error)


@fills("companions")
def companions() -> Any:
    """One that lies beside a copy of the engine, which is in a package or in none, and one that does not."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "acme_llm")
        package.mkdir()
        for place, name in ((Path(folder), "alone_engine"), (package, "gen_engine")):
            shutil.copy(str(own.__file__), place / f"{name}.py")
            (place / "beside_me.py").write_text(f"WHERE = {name!r}\n", encoding="utf-8")
        Path(folder, "lost_one.py").write_text("import a_library\n", encoding="utf-8")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            inside = importlib.import_module("acme_llm.gen_engine")
            alone = importlib.import_module("alone_engine")
            found = [inside.companion("beside_me"), alone.companion("beside_me")]
            names = [[one.WHERE, one.__name__] for one in found]
            not_beside = [missing(one, "forcing") for one in (inside, alone)]
            lost = said(alone.companion, "lost_one")
        finally:
            sys.path.remove(folder)
            for name in ("acme_llm.gen_engine", "acme_llm.beside_me", "acme_llm", "alone_engine", "beside_me"):
                sys.modules.pop(name, None)
    return {
        "found": names,
        "absent": [said(own.companion, "no_such_one"), *not_beside],
        "lost": lost,
        "forcing": own.companion("forcing").__name__.rpartition(".")[2],
    }


# == Versions, and calls whose form is another in another release ==


@fills("versions")
def versions() -> Any:
    found = {}
    for version in ("0.2.0", "0.10.9", "0.11.0", "0.20.0rc1", "0.22.9", "0.23", "0.1.dev3"):
        with modules(odd_library=module("odd_library", __version__=version)):
            asked = ("odd_library>=0.20,<0.23", "odd_library<0.11", "odd_library>=0.2,<0.11", "odd_library")
            found[version] = [own.installed(releases) for releases in asked]
    with modules(odd_library=None):
        found["none"] = [said(own.installed, "odd_library>=1")]
    return found


class Calls:
    """Notes the calls of its methods."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, what: str, *args: Any, **named: Any) -> None:
        self.seen.append([what, plain(args), plain(named)])


class OldModel(Calls):
    def _get_initial_cache_position(self, length: Any, device: Any, state: Any) -> dict[str, Any]:
        self.note("position", length, device, sorted(state))
        return {"cache_position": 0}

    def prepare_inputs_for_generation(self, ids: Any, **state: Any) -> dict[str, Any]:
        self.note("prepare", plain(ids.ids), **state)
        return {"prepared": 1}

    def __call__(self, **inputs: Any) -> str:
        self.note("call", **inputs)
        return "outputs"


class NewModel(OldModel):
    def _prefill(self, *args: Any, **named: Any) -> str:
        self.note("prefill", *(one.ids if isinstance(one, Ids) else one for one in args), **named)
        return "first outputs"


class Ids:
    """What has a shape and a device, as a tensor has."""

    device = "here"

    def __init__(self, ids: list[list[int]]) -> None:
        self.ids, self.shape = ids, (len(ids), len(ids[0]))


class Aborts(Calls):
    def abort_request(self, ids: Any) -> None:
        self.note("abort", ids)


class AbortsInside(Calls):
    def abort_request(self, ids: Any, internal: bool = False) -> None:
        self.note("abort", ids, internal=internal)


class AbortsAnything(Calls):
    def abort_request(self, ids: Any, **named: Any) -> None:
        self.note("abort", ids, **named)


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def bars(enabled: bool, wanted: bool, terminal: bool) -> list[bool]:
    """Whether transformers draws its bars inside, and afterwards."""
    library = importlib.import_module("transformers.utils.logging")
    before, stderr = library.is_progress_bar_enabled(), sys.stderr
    (library.enable_progress_bar if enabled else library.disable_progress_bar)()
    sys.stderr = Stream(terminal)
    try:
        with own.loading_bar(wanted):
            inside = library.is_progress_bar_enabled()
        return [bool(inside), bool(library.is_progress_bar_enabled())]
    finally:
        sys.stderr = stderr
        (library.enable_progress_bar if before else library.disable_progress_bar)()


def drawn() -> list[float]:
    import numpy
    import torch

    return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]


def untouched() -> bool:
    """Whether the process's next numbers are what they would have been."""
    import numpy
    import torch

    def seeded() -> None:
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)

    seeded()
    first = drawn()
    seeded()
    with own.rng_untouched():
        drawn()
    return first == drawn()


@fills("library-calls")
def library_calls() -> Any:
    ids, found = Ids([[5, 6, 7], [8, 9, 10]]), {}
    for model in (OldModel(), NewModel()):
        state: dict[str, Any] = {"a": 1}
        given = [own.forward_first(model, ids, state, "config"), own.forward_next(model, ids, {"b": 2}, 3)]
        found[type(model).__name__] = [given, state, model.seen]
    for engine in (Aborts(), AbortsInside(), AbortsAnything()):
        own.abort(engine, ["a", "b"])
        found[type(engine).__name__] = engine.seen
    asked = [(AbortsInside, "internal"), (AbortsInside, "other"), (Aborts, "internal"), (AbortsAnything, "other")]
    found["takes"] = [own.takes(kind, "abort_request", name) for kind, name in asked]
    both = (True, False)
    choices = [(enabled, wanted, terminal) for enabled in both for wanted in both for terminal in both]
    found["bars"] = {str(choice): bars(*choice) for choice in choices}
    found["untouched"] = untouched()
    return found


# == Contracts ==

MOST = sys.maxsize
FLAGS: list[Any] = [True, False, None, 0, 1, "yes"]
NAMED: list[Any] = ["a", "", "\ud800", 3, True, ["a"], {"a": "b"}, None, Path("a/b")]
BOUNDS: dict[str, list[Any]] = {
    "GenerationOptions.max_new_tokens": [0, 1, 256, MOST, MOST + 1, True, 2.5, "3", None],
    "GenerationOptions.min_new_tokens": [-1, 0, 1, 256, 257, False, 0.5],
    "GenerationOptions.temperature": [-0.1, 0, 1, 2.5, float("nan"), float("inf"), 10**400, True, "1", None],
    "GenerationOptions.top_p": [0, 1e-9, 1, 1.01, True],
    "GenerationOptions.top_k": [-1, 0, 1, None, 2.0, MOST, MOST + 1],
    "GenerationOptions.min_p": [-0.1, 0, 1, 1.01, "0"],
    "GenerationOptions.repetition_penalty": [0, 1e-9, 2, -1, None, -(10**400)],
    "GenerationOptions.no_repeat_ngram_size": [0, 1, None, 1.0],
    "GenerationOptions.seed": [-1, 0, 2**63 - 1, 2**63, None, 1.0],
    "GenerationOptions.n": [0, 1, 16_384, 16_385, None],
    "GenerationOptions.logprobs": [-1, 0, 1, None, True],
    "GenerationOptions.max_prompt_tokens": [0, 1, None],
    "GenerationOptions.logits": FLAGS,
    "GenerationOptions.truncate_prompt": FLAGS,
    "GenerationOptions.replay": [None, [], [[]], [[5], [6, 7]], [[5.0]], [5], "12", [[5], ()], [(1,)], {"a": [1]}],
    "GenerationOptions.stop": [None, "a", ["a", "b", "a"], ("a",), {"strings": "a"}, 3, {"string": "a"}],
    "GenerationOptions.decode": [None, {"strip": True}, 3, {"stripped": True}],
    "StopOptions.include_stop": FLAGS,
    "StopOptions.ignore_eos": FLAGS,
    "StopOptions.token_ids": [[], [0], [3, 3, 1], [-1], [True], [1.0], "12", {"1": 2}, 3, None, range(3)],
    "StopOptions.strings": [[], "ab", ["b", "a", "b"], [""], "", [3], 3, {"a": "b"}, None, b"ab", ["a\ufffd"]],
    "DecodeOptions.skip_special_tokens": FLAGS,
    "DecodeOptions.clean_up_tokenization_spaces": FLAGS,
    "DecodeOptions.strip": FLAGS,
    "ChatTemplateOptions.enable_thinking": FLAGS,
    "ChatTemplateOptions.add_generation_prompt": FLAGS,
    "ChatTemplateOptions.kwargs": [{}, {"a": 1}, {"enable_thinking": True}, [], "a", None],
    "ChatTemplateOptions.special_tokens": ["keep", "refuse", "escape", "escpe", "KEEP", 3, None],
    "ChatTemplateOptions.template": [None, "{{ a }}", "chat.jinja", "", 3],
    "VlmPreprocessOptions.min_pixels": [0, 1, None, True],
    "VlmPreprocessOptions.max_pixels": [0, 1, None, 1.5],
    "VlmPreprocessOptions.do_resize": FLAGS,
    "VlmPreprocessOptions.background": ["white", "#808080", None, "whitish", 3, "black"],
    "TextGenerationRequest.prompt": ["", "a", 3, ["a"], None],
    "TextGenerationRequest.seed": [-1, 0, 2**63 - 1, 2**63, None, 1.0],
    "TextGenerationRequest.adapter": NAMED,
    "TextGenerationRequest.continue_final": [False, 1, None],
    "TextGenerationRequest.tools": [None, [], "a", {"a": 1}, 3],
    "TextGenerationRequest.chat": [None, {}, 3, {"thinking": True}],
    "ModelLoadConfig.model": NAMED,
    "ModelLoadConfig.revision": NAMED,
    "ModelLoadConfig.attn_implementation": NAMED,
    "ModelLoadConfig.device": [None, "cpu", "", "meta", 3],
    "ModelLoadConfig.backend": ["hf", "vllm", "auto", "HF", "", 3, None],
    "ModelLoadConfig.dtype": ["float32", "bfloat16", "float16", "float", "int8", None, 3],
    "ModelLoadConfig.fallback_backend": ["hf", None, "vllm", "auto", 3],
    "ModelLoadConfig.max_model_len": [1, 2, None, "9"],
    "ModelLoadConfig.max_batch_tokens": [0, 1, None],
    "ModelLoadConfig.max_batch_size": [0, 1, None],
    "ModelLoadConfig.trust_remote_code": FLAGS,
    "ModelLoadConfig.logits_hooks": FLAGS,
    "ModelLoadConfig.progress": FLAGS,
    "ModelLoadConfig.adapters": [{}, {"a": "b"}, {"a": Path("b/c")}, {"": "b"}, {"a": 3}, {3: "a"}, ["a"], None],
    "ModelLoadConfig.cache": [None, {}, {"a": "b"}, {"a": 1}, {"a": "b", "c": 1}, [], "a"],
    "ModelLoadConfig.hf_kwargs": [{}, {"a": 1}, [], None, {"return_dict": False}, {"return_dict": True}],
    "ModelLoadConfig.vllm_kwargs": [{}, {"a": 1}, "a"],
}
CONTRACTS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        own.ModelLoadConfig,
        own.StopOptions,
        own.DecodeOptions,
        own.GenerationOptions,
        own.ChatTemplateOptions,
        own.VlmPreprocessOptions,
        own.TextGenerationRequest,
        own.VlmGenerationRequest,
    )
}
LEAST: dict[str, dict[str, Any]] = {
    "ModelLoadConfig": {"model": "m"},
    "TextGenerationRequest": {"prompt": "a"},
    "VlmGenerationRequest": {"prompt": "a"},
}


def understood(name: str, value: Any) -> Any:
    contract, _, field = name.partition(".")
    made = own.build(CONTRACTS[contract], {**LEAST.get(contract, {}), field: value})
    read = getattr(made, field)
    return [type(read).__name__, plain(read)]


class Listed:
    """What has a `tolist`, as arrays of numpy and torch have."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


@fills("bounds")
def bounds() -> Any:
    found = {name: each(functools.partial(understood, name), *([value] for value in BOUNDS[name])) for name in BOUNDS}
    rows = [("max_new_tokens", Listed(3)), ("temperature", Listed(0.5)), ("logits", Listed(1))]
    found["arrays"] = [said(understood, f"GenerationOptions.{name}", value) for name, value in rows]
    found["arrays of ids"] = said(understood, "StopOptions.token_ids", Listed([3, 4]))
    found["a class of arrays"] = said(understood, "ModelLoadConfig.model", Listed)
    return found


@dataclasses.dataclass
class Theirs:
    """The options of another copy."""

    temperature: float = 0.5
    top_k: int = 3


def defaults(kind: Any) -> dict[str, Any]:
    made = own.build(kind, LEAST.get(kind.__name__))
    return {field.name: plain(getattr(made, field.name)) for field in dataclasses.fields(kind)}


def frozen(value: Any) -> str:
    try:
        setattr(value, dataclasses.fields(value)[0].name, None)
    except dataclasses.FrozenInstanceError:
        return "frozen"
    return "open"


RESULT = {
    "text": "a",
    "raw_text": "a",
    "token_ids": (5, 6),
    "prompt_token_ids": (7, 8, 9),
    "finish_reason": "eos",
    "stop_reason": None,
    "backend": "hf",
}


def result_rules() -> dict[str, Any]:
    """Which fields make two results unlike, and which are printed."""
    made = own.GenerationResult(**RESULT)  # type: ignore[arg-type]
    score = own.ScoreResult((5,), (6,), (0.5,))
    others = {
        "logprobs": (0.5,),
        "top_logprobs": ({},),
        "logits": 3,
        "samples": (made,),
        "cached": True,
        "notes": ("a",),
    }
    others |= {"fallback_from": "vllm", "weight_version": "2", "effective": {"a": 1}}
    like = {name: made == dataclasses.replace(made, **{name: value}) for name, value in others.items()}
    return {
        "like": like,
        "printed": repr(made),
        "counts": [made.prompt_tokens, made.completion_tokens],
        "frozen": [frozen(made), frozen(score)],
        "score": [repr(score), score == dataclasses.replace(score, logits=3)],
    }


@fills("contracts")
def contracts() -> Any:
    options = own.GenerationOptions(temperature=1)
    config = own.ModelLoadConfig(model="m", cache={})
    builds = [
        [options],
        [None],
        [{"top_k": 2}],
        [Theirs()],
        [3],
        [{"temprature": 1}],
        [{3: 1}],
        ["a"],
        [own.StopOptions()],
    ]
    kinds = [own.Plan, own.Row, own.Checkpoint, own.Prompt, own.Completion, own.Call, own.Capabilities]
    kinds += [own.Ending, *CONTRACTS.values()]
    return {
        "defaults": {name: defaults(kind) for name, kind in CONTRACTS.items()},
        "built": each(functools.partial(own.build, own.GenerationOptions), *builds),
        "the same": own.build(own.GenerationOptions, options) is options,
        "frozen": [frozen(own.build(kind, LEAST.get(name))) for name, kind in CONTRACTS.items()],
        "dataclasses": {kind.__name__: repr_of_parameters(kind) for kind in kinds},
        "config": [repr(config), config == dataclasses.replace(config, cache=None)],
        "ids": each(own.are_ids, [[]], [[1, 2]], [[True]], [[1, 2.0]], ["a"]),
        "texts": [own.is_text(one) for one in ("a", "", 3, "\ud83d", "a\udfffb", "\ue000", "\ud7ff")],
        "sequences": [plain(own.as_sequence(one)) for one in (None, 3, [1], (2,), "ab")],
        "tuples": [plain(own.tuple_of(one)) for one in ("ab", b"ab".decode(), {"a": 1}, [1], iter((2, 3)), 4)],
        "batches": each(
            own.batch_of,
            [[1, 2], "items"],
            ["ab", "items"],
            [b"ab", "items"],
            [{"a": 1}, "items"],
            [3, "rows"],
            [iter((1,)), "items"],
        ),
        "together": each(
            functools.partial(own.build, own.GenerationOptions),
            [{"min_new_tokens": 3, "max_new_tokens": 2}],
            [{"min_new_tokens": 2, "max_new_tokens": 2}],
            [{"replay": [[5], [6]], "logprobs": 2}],
            [{"replay": [[5]]}],
        ),
        "pixels": each(
            functools.partial(own.build, own.VlmPreprocessOptions),
            [{"min_pixels": 3, "max_pixels": 2}],
            [{"min_pixels": 2, "max_pixels": 2}],
            [{"do_resize": False}],
            [{"do_resize": False, "min_pixels": 2}],
            [{"do_resize": False, "max_pixels": 2}],
        ),
        "results": result_rules(),
        "one of": each(
            own.check_name,
            ["a", "no thing", ["a", "b"]],
            ["c", "no thing", ["a", "b"]],
            [3, "no thing", ["a"]],
            ["A", "no", ["a"], own.RequestError],
        ),
    }


def repr_of_parameters(kind: Any) -> list[bool]:
    """Whether it is frozen, and compared by its fields."""
    parameters = kind.__dataclass_params__
    return [parameters.frozen, parameters.eq]


@fills("load-keywords")
def load_keywords() -> Any:
    def config(**fields: Any) -> Any:
        return own.ModelLoadConfig(model="m", **fields)

    found = {}
    for name in [*own.NOT_PASSED, "device_map", "a"]:
        found[name] = [said(lambda: config(**{kind: {name: 1}}) and None) for kind in ("hf_kwargs", "vllm_kwargs")]  # noqa: B023
    mine: dict[str, Any] = {"a": 1}
    made = config(hf_kwargs=mine, adapters={"a": Path("b")})
    mine["b"] = 2
    found["kept"] = plain([made.hf_kwargs, made.adapters])
    for kind in ("hf_kwargs", "vllm_kwargs"):
        found[f"device beside {kind}"] = said(lambda: config(device="cpu", **{kind: {"device_map": "auto"}}))  # noqa: B023
    return found


# == Requests ==

ONE, TWO = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Oslo"}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}
MESSAGES: list[Any] = [
    [ONE],
    (ONE, TWO),
    [],
    "Hello",
    ONE,
    None,
    3,
    ["Hello"],
    [ONE, ["user", "Hello"]],
    [{**ONE, "role": "usr"}],
    [{**ONE, "role": None}],
    [{**ONE, "role": ["user"]}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [CALLS],
    [{**CALLS, "tool_calls": []}],
    [{**CALLS, "tool_calls": "a"}],
    [{**CALLS, "tool_calls": ({"a": 1},)}],
    [{**CALLS, "content": 3}],
    *(
        [{"role": "user", "content": content}]
        for content in (
            "",
            3,
            {"type": "text"},
            ["Hello"],
            [],
            [{"text": "Hello"}],
            [{"type": "txt", "text": "a"}],
            [{"type": "video"}],
            [{"type": "text"}],
            [{"type": "text", "text": 3}],
            [{"type": "text", "text": ""}],
            [{"type": "image"}],
            ({"type": "image_url", "image_url": "a"}, {"type": "text", "text": "a"}),
            [{"type": 3}],
        )
    ),
    *([{"role": role, "content": "a"}] for role in ("system", "developer", "assistant", "tool", "function", "User")),
]
REQUESTS: list[Any] = [
    {},
    {"prompt": "a"},
    {"prompt": ""},
    {"prompt_token_ids": []},
    {"messages": []},
    {"prompt": "a", "messages": [ONE]},
    {"prompt": "a", "prompt_token_ids": [5]},
    {"prompt": "a", "prompt_token_ids": [5], "messages": [ONE]},
    {"prompt": "a", "tools": [1]},
    {"prompt": "a", "tools": []},
    {"prompt": "a", "continue_final": True},
    {"prompt": "a", "chat": {"enable_thinking": True}},
    {"prompt": "a", "chat": {}},
    {"prompt_token_ids": [5], "chat": {"add_generation_prompt": False}},
    {"prompt_token_ids": "12"},
    {"prompt_token_ids": [5.0]},
    {"prompt_token_ids": [-1]},
    {"messages": [ONE], "tools": [1]},
    "Hello",
    {"prompt": "a", "images": []},
    {"messages": [ONE], "image": "a.png"},
]
PICTURED = [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}]}]
PICTURES: list[Any] = [
    {"prompt": "a"},
    {"prompt": "a", "images": "a.png"},
    {"prompt": "a", "images": []},
    {"messages": PICTURED},
    {"messages": [ONE]},
    {"messages": [ONE], "images": ["a.png"]},
    {"prompt": "a", "images": ["a"], "vlm": {"pixels": 1}},
    {"prompt": "a", "images": {"a": 1}},
    {"prompt": "a", "images": None, "image_root": "b"},
]


@fills("requests")
def requests() -> Any:
    text, pictures = own.TextGenerationRequest, own.VlmGenerationRequest
    base = own.build(text, {"prompt": "a", "seed": 3})
    return {
        "text": [said(own.build, text, row) for row in REQUESTS],
        "pictures": [said(own.build, pictures, row) for row in PICTURES],
        "checked": [said(own.checked_request, row, text) for row in PICTURES if "vlm" not in row],
        "checked pictures": [said(own.checked_request, row, pictures) for row in [*PICTURES, {"prompt": "b"}]],
        "of another kind": said(own.checked_request, base, pictures),
        "holding": [own.holds_images(own.build(pictures, row)) for row in PICTURES[:6]],
    }


@fills("messages")
def messages() -> Any:
    return [said(own.checked_messages, row) for row in MESSAGES]


# == Pictures ==


def picture_file(image: Any, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()


def transparent(mode: str) -> Any:
    image = Image.new("RGBA", (2, 1), (200, 100, 50, 0)).convert(mode)
    if mode == "P":
        image = Image.new("P", (2, 1), 3)
        image.putpalette([9, 9, 9] * 256)
        image.info["transparency"] = 3
    return image


def pixels(image: Any) -> list[Any]:
    return [image.mode, *image.size, *map(list, (image.getpixel((0, 0)), image.getpixel((image.width - 1, 0))))]


def opened(source: Any, **how: Any) -> Any:
    try:
        return pixels(own.load_image(source, **how))
    except own.GenEngineError as error:
        return told(error)


def turned() -> Any:
    image = Image.new("RGB", (3, 2), (1, 2, 3))
    image.putpixel((0, 0), (250, 0, 0))
    exif = image.getexif()
    exif[0x0112] = 6
    return picture_file(image, "PNG", exif=exif)


@contextlib.contextmanager
def most_pixels(most: int | None) -> Iterator[None]:
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, most
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def formats_asked() -> list[str]:
    """Of a library that reads more than we do, and of one that reads less."""
    asked: list[str] = []

    def noting(source: Any, formats: Sequence[str]) -> Any:
        asked.extend([*formats, "|"])
        return Image.new("RGB", (1, 1))

    before = Image.open, dict(Image.OPEN)
    Image.open = noting  # type: ignore[assignment]
    try:
        Image.OPEN.update(dict.fromkeys([*own.FORMATS, "EPS", "ICO"], before[1]["PNG"]))
        own.load_image(b"a")
        del Image.OPEN["TIFF"]
        own.load_image(b"a")
    finally:
        Image.open = before[0]
        Image.OPEN.clear()
        Image.OPEN.update(before[1])
    return asked


def data_url(content: bytes, head: str = "data:image/png;base64") -> str:
    return f"{head},{base64.b64encode(content).decode()}"


def sources(folder: Path) -> dict[str, Any]:
    red = Image.new("RGB", (2, 1), (250, 0, 0))
    png = picture_file(red, "PNG")
    (folder / "a b.png").write_bytes(png)
    (folder / "in").mkdir()
    (folder / "in/a.png").write_bytes(png)
    inside = {"root": str(folder / "in")}
    url = (folder / "in/a.png").as_uri()
    rows: dict[str, list[Any]] = {
        "pil": [red],
        "bytes": [png],
        "bytearray": [bytearray(png)],
        "memory": [memoryview(png)],
        "path": [str(folder / "a b.png")],
        "pathlike": [folder / "a b.png"],
        "folder": [str(folder)],
        "no file": ["no/such.png"],
        "number": [3],
        "none": [None],
        "bad bytes": [b"abc"],
        "data": [data_url(png)],
        "data of percent": ["data:," + "".join(f"%{byte:02x}" for byte in png)],
        "data without a comma": ["data:image/png;base64"],
        "data of no base64": ["data:;base64,??"],
        "data of no picture": [data_url(b"abc")],
        "data in capitals": ["DATA:,a"],
        "remote": ["https://example.com/" + "a" * 90],
        "s3": ["S3+a.b-c://x"],
        "no remote": ["9a://x"],
        "loaded": ["https://a/b.png", {"loader": lambda url: png}],
        "loaded as a picture": ["http://a", {"loader": lambda url: red}],
        "loaded as a path": ["http://a", {"loader": lambda url: "http://b"}],
        "loader that breaks": ["http://" + "a" * 90, {"loader": lambda url: raising(KeyError("gone"))}],
        "loader that refuses": ["http://a", {"loader": lambda url: raising(own.ImageError("ours"))}],
        "file": [url, inside],
        "file in capitals": [url.replace("file:", "FILE:"), inside],
        "file without a root": [url],
        "file of a pathlike root": [url, {"root": folder / "in"}],
        "file outside": [(folder / "a b.png").as_uri(), inside],
        "file with a blank": [(folder / "a b.png").as_uri(), {"root": str(folder)}],
        "file that is not there": [url + "x", inside],
        "file and a loader": [url, {"loader": lambda url: png}],
        "turned": [turned()],
        "grey": [picture_file(red.convert("L"), "PNG")],
        "bits": [picture_file(red.convert("1"), "PNG")],
        "16 bits": [Image.new("I;16", (2, 1))],
        "32 bits": [Image.new("I", (2, 1))],
        "floats": [Image.new("F", (2, 1))],
        "without pixels": [Image.new("RGB", (0, 3))],
        "without lines": [Image.new("RGB", (3, 0))],
        "eps": [picture_file(red, "EPS")],
        "ico": [picture_file(red.resize((16, 16)), "ICO")],
        "gif": [picture_file(red, "GIF")],
        "bmp": [picture_file(red, "BMP")],
        "tiff": [picture_file(red, "TIFF")],
        "ppm": [picture_file(red, "PPM")],
        "webp": [picture_file(red, "WEBP", lossless=True)],
    }
    return {name: opened(row[0], **(row[1] if len(row) > 1 else {})) for name, row in rows.items()}


@fills("pictures")
def pictures() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        found = {name: written(one, folder) for name, one in sources(Path(folder)).items()}
    behind = {}
    for mode in ("RGBA", "LA", "La", "RGBa", "P", "RGB"):
        image = transparent(mode) if mode != "RGBa" else transparent("RGBA").convert("RGBa")
        image = transparent("LA").convert("La") if mode == "La" else image
        behind[mode] = [opened(image), *(opened(image, background=one) for one in ("white", "red", None))]
    limits = []
    for most in (5, 6, None):
        with most_pixels(most):
            limits.append(opened(Image.new("RGB", (3, 2))))
    return {"sources": found, "behind": behind, "limits": limits, "formats": formats_asked()}


def written(one: Any, folder: str) -> Any:
    return (
        one.replace(folder, "FOLDER").replace(Path(folder).resolve().as_posix(), "FOLDER")
        if isinstance(one, str)
        else one
    )


PARTS: list[Any] = [
    {"type": "image"},
    {"type": "image", "image": "a"},
    {"type": "image", "path": "b"},
    {"type": "image", "url": "c"},
    {"type": "image", "base64": "ZA=="},
    {"type": "image", "image": None},
    {"type": "image", "image": "a", "url": "c"},
    {"type": "image", "image": "a", "detail": "auto"},
    {"type": "image", "image": "a", "detail": "high"},
    {"type": "image", "image": "a", "detail": None},
    {"type": "image", "detail": "low"},
    {"type": "image_url", "image_url": {"url": "a"}},
    {"type": "image_url", "image_url": "a"},
    {"type": "image_url"},
    {"type": "image_url", "image_url": {}},
    {"type": "image_url", "image_url": {"url": "a", "detail": "auto"}},
    {"type": "image_url", "image_url": {"url": "a", "detail": "low"}},
    {"type": "image_url", "image_url": None},
    {"type": "image_url", "url": "a"},
    {"type": "image", "image": "a", "path": "b", "base64": "c"},
    {"type": "image_url", "image_url": None, "image": "a"},
    {"type": "image", "max_pixels": 3},
]


@fills("picture-parts")
def picture_parts() -> Any:
    talk = [ONE, CALLS, PICTURED[0], {"role": "user", "content": [{"type": "image_url"}, {"type": "image"}]}]
    return {
        "fields": [said(own.part_fields, part) for part in PARTS],
        "sources": [said(own.part_source, part) for part in PARTS],
        "in messages": [plain(own.image_parts(one)) for one in (None, [], talk)],
    }


# == Chats ==


class Owner:
    """A tokenizer with a template, which notes what it is asked for."""

    chat_template: Any = "{{ messages }} tools enable_thinking"

    def __init__(self, **fields: Any) -> None:
        self.seen: list[Any] = []
        vars(self).update(fields)

    def apply_chat_template(self, conversation: Any, **named: Any) -> str:
        self.seen.append([plain(conversation), plain(named)])
        return "rendered"


class StrictOwner(Owner):
    """One that takes no keyword but those it names."""

    def apply_chat_template(  # type: ignore[override]
        self,
        conversation: Any,
        tools: Any = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        chat_template: Any = None,
    ) -> str:
        named = {"tools": tools, "opens": add_generation_prompt, "goes on": continue_final_message}
        self.seen.append([plain(conversation), plain({**named, "tokenize": tokenize, "template": chat_template})])
        return "rendered"


class Mistral:
    """One whose library has no template."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def apply_chat_template(self, conversation: Any, **named: Any) -> str:
        self.seen.append([plain(conversation), plain(named)])
        return "rendered"


class Mood(str, enum.Enum):
    CALM = "calm"


def rendered(owner: Any, talk: Any, chat: Any = None, tools: Any = None, going_on: bool = False) -> Any:
    options = own.build(own.ChatTemplateOptions, chat)
    made = own.render_chat(owner, talk, options, tools, going_on)
    return [made.text, made.mark, list(made.notes), owner.seen[-1]]


def text_parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def called(function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [function]}


NAMED_TEMPLATES = {"default": "d enable_thinking", "tool_use": "t tools"}
ARGUMENTS = {"function": {"name": "a", "arguments": '{"b": 1}'}, "id": "x"}


@fills("chats")
def chats() -> Any:
    broken = {"function": {"arguments": "{"}}
    seeing = {"image_processor": 1}
    walking = "{% for part in message['content'] %}{{ part }}{% endfor %}"
    rows: dict[str, list[Any]] = {
        "usual": [Owner(), [ONE]],
        "all said": [
            Owner(),
            [ONE],
            {"enable_thinking": True, "add_generation_prompt": False, "kwargs": {"a": 1}},
            [7],
        ],
        "strict": [StrictOwner(), [ONE], {"enable_thinking": True, "kwargs": {"tools": 2}}, None],
        "strict tools": [StrictOwner(), [ONE], None, (7, 8)],
        "going on": [Owner(), [ONE, TWO], None, None, True],
        "going on with nothing": [Owner(), [TWO, ONE], None, None, True],
        "no messages": [Owner(), []],
        "own template": [Owner(), [ONE], {"template": "{{ a }} mood", "kwargs": {"mood": 1, "tone": 2}}],
        "named templates": [Owner(chat_template=NAMED_TEMPLATES), [ONE]],
        "named for tools": [Owner(chat_template=NAMED_TEMPLATES), [ONE], None, [7]],
        "named without tools": [Owner(chat_template={"default": "d"}), [ONE], None, [7]],
        "no default": [Owner(chat_template={"tool_use": "t"}), [ONE]],
        "no template": [Owner(chat_template=None), [ONE]],
        "no method": [Bare(), [ONE]],
        "mistral": [Mistral(), [ONE], None, [7]],
        "joined": [Owner(), [text_parts("a", "b"), text_parts("c")]],
        "joined once": [Owner(), [text_parts("c")]],
        "no parts": [Owner(), [text_parts()]],
        "walked": [Owner(chat_template=walking), [text_parts("a", "b")]],
        "a processor": [Owner(**seeing), [ONE, text_parts("a", "b")]],
        "a processor that asks": [Owner(chat_template="if content is string", **seeing), [ONE]],
        "pictures": [Owner(), PICTURED],
        "pictures of a processor": [Owner(**seeing), PICTURED],
        "a member of an enum": [Owner(), [{"role": "user", "content": Mood.CALM, Mood.CALM: [Mood.CALM, (1, None)]}]],
        "calls": [Owner(), [ONE, called(ARGUMENTS)]],
        "calls as text": [Owner(chat_template="if arguments is string"), [ONE, called(ARGUMENTS)]],
        "calls as text of an attribute": [Owner(chat_template="tool.arguments_x is mapping"), [called(ARGUMENTS)]],
        "calls that are broken": [Owner(), [ONE, called(broken)]],
        "calls of anything": [
            Owner(),
            [called("a"), called({"function": "b"}), called({"function": {"arguments": {"c": 1}}})],
        ],
        "calls and content": [Owner(), [{**called(ARGUMENTS), "content": "a"}]],
        "no content": [Owner(), [{**called(ARGUMENTS), "content": None}]],
        "no content, asked for": [Owner(chat_template="if content is none"), [called(ARGUMENTS)]],
        "refused": [
            Owner(added_tokens_decoder=ADDED),
            [{"role": "user", "content": "a<|b|>"}],
            {"special_tokens": "refuse"},
        ],
        "nothing refused": [Owner(added_tokens_decoder=ADDED), [ONE], {"special_tokens": "refuse"}],
        "a template that breaks": [Breaking(), [ONE]],
        "a template that refuses": [Refusing(), [ONE]],
    }
    with log_kept() as lines:
        found = {name: said(rendered, *row) for name, row in rows.items()}
        rendered(Owner(), [ONE], {"kwargs": {"once": 1}})
        rendered(Owner(), [ONE], {"kwargs": {"once": 1}})
    return {**found, "warned": [line for line in lines if "once" in line], "escaped": escaped()}


ADDED = {5: types.SimpleNamespace(content="<|b|>", special=True)}


class Bare:
    """No tokenizer of chats, though it has a template."""

    chat_template = "{{ a }}"


class Breaking(Owner):
    def apply_chat_template(self, conversation: Any, **named: Any) -> str:
        raise TypeError("inside the template")


class Refusing(Owner):
    def apply_chat_template(self, conversation: Any, **named: Any) -> str:
        raise own.RequestError("ours", fix="ours")


class Echo(Owner):
    def apply_chat_template(self, conversation: Any, **named: Any) -> str:
        return str(conversation[0]["content"])


def escaped() -> Any:
    """A marker is the same text with and without its mark, which is another each time."""
    owner = Echo(added_tokens_decoder=ADDED)
    talk = [{"role": "user", "content": "a<|b|>c"}]
    options = own.build(own.ChatTemplateOptions, {"special_tokens": "escape"})
    made = [own.render_chat(owner, talk, options, None, False) for _ in range(2)]
    texts = [own.render(owner, talk, chat={"special_tokens": way}) for way in ("escape", "keep")]
    return {
        "marks": [len(made[0].mark), made[0].mark == made[1].mark],
        "marked": made[0].text.replace(made[0].mark, "MARK"),
        "texts": texts,
        "refused": said(own.render, owner, talk, chat={"special_tokens": "refuse"}),
    }


def real_tokenizer(model: str) -> Any:
    return own.read_checkpoint(own.ModelLoadConfig(model=model)).tokenizer


@fills("templates")
def templates() -> Any:
    """Those of the checkpoints."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    talks = {"one": [ONE], "two": [ONE, TWO], "parts": [text_parts("a", "b")], "calls": [ONE, called(ARGUMENTS)]}
    found: dict[str, Any] = {}
    for model in (LLAMA, SURE):
        tokenizer = real_tokenizer(model)
        for name, talk in talks.items():
            found[f"{model} {name}"] = said(own.render, tokenizer, talk)
        found[f"{model} thinking"] = said(own.render, tokenizer, [ONE], chat={"enable_thinking": True}, tools=[tool])
        found[f"{model} on"] = said(own.render, tokenizer, [ONE, TWO], continue_final=True)
    engine = types.SimpleNamespace(checkpoint=types.SimpleNamespace(template_owner=tokenizer))
    found["of an engine"] = own.render(engine, [ONE], chat={"add_generation_prompt": False})
    return found


@fills("stops")
def stops() -> Any:
    texts = ["abc", "abXYZ", "xab", "aXYZY", "", "no", "aaXXbb", "abab"]
    sets: list[Any] = [["abc", "b"], ["XYZ", "Y"], ["b", "ab"], ["Y", "XYZ", "YX"], "a", ["XX"], ["ab", "a", "bab"], []]
    cuts = {f"{text}/{one}": own.truncate_at_stops(text, one) for text in texts for one in sets}
    kept = [own.truncate_at_stops("aXYZb", one, include_stop=True) for one in (["YZ"], "Q", ["Z", "XYZ"])]
    since = [plain(own.first_stop("abcabc", ["ab", "bc", "c"], since=n)) for n in range(7)]
    orders = [plain(own.first_stop("zabcz", one)) for one in (["c", "abc"], ["abc", "c"], ["b", "abc"], ["abc", "ab"])]
    wrong = [said(own.truncate_at_stops, "abc", one) for one in ("", [""], 3, [3], ["\ufffd"], {"a": 1}, None)]
    return {"cuts": cuts, "kept": kept, "since": since, "orders": orders, "wrong": wrong}


# == Checkpoints ==


def checkpoint_of(model: str, **fields: Any) -> own.Checkpoint:
    return own.read_checkpoint(own.ModelLoadConfig(model=model, **fields))


def config_of(**fields: Any) -> Any:
    return types.SimpleNamespace(**fields)


@contextlib.contextmanager
def changed(model: str, **files: Any) -> Iterator[str]:
    """A copy of a checkpoint with other values in some files; None takes a file away, text replaces it."""
    changes = {name.replace("__", "."): change for name, change in files.items()}
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(model).iterdir():
            if file.name not in changes:
                Path(folder, file.name).symlink_to(file.resolve())
        for name, change in changes.items():
            if isinstance(change, dict):
                fields = {**json.loads(Path(model, name).read_text("utf-8")), **change}
                change = json.dumps({key: value for key, value in fields.items() if value is not None})
            if change is not None:
                Path(folder, name).write_text(change, "utf-8")
        yield folder


def read(model: str, **files: Any) -> Any:
    with changed(model, **files) as folder:
        try:
            made = own.read_checkpoint(own.ModelLoadConfig(model=folder))
        except own.GenEngineError as error:
            return re.sub(r"\w+: \[\.\.\.\]", "[...]", told(error).replace(folder, "FOLDER"))
    tokenizer = made.tokenizer
    ids = [list(made.eos_ids), made.pad_id, tokenizer.pad_token_id, tokenizer.padding_side, tokenizer.truncation_side]
    return [*ids, made.dtype, made.window, made.vocabulary, made.processor is None]


@fills("checkpoint-files")
def checkpoint_files() -> Any:
    """What is read of a checkpoint whose files are others."""
    no_pad = {"tokenizer_config__json": {"pad_token": None}, "generation_config__json": {"pad_token_id": None}}
    rows: dict[str, dict[str, Any]] = {
        "as it is": {},
        "no generation config": {"generation_config__json": None},
        "a broken generation config": {"generation_config__json": "{"},
        "no JSON": {"config__json": "{"},
        "no config": {"config__json": None},
        "no tokenizer": {"tokenizer__json": None, "tokenizer_config__json": None},
        "other ends": {"generation_config__json": {"eos_token_id": [7, 9]}, "config__json": {"eos_token_id": 5}},
        "ends beyond": {"generation_config__json": {"eos_token_id": [900, 562, 563, -1]}},
        "pads of the generation": {
            "tokenizer_config__json": {"pad_token": None},
            "generation_config__json": {"pad_token_id": 8},
        },
        "pads of an end": no_pad,
        "a pad beyond": {**no_pad, "generation_config__json": {"pad_token_id": 900}},
        "no dtype": {"config__json": {"dtype": None, "torch_dtype": None}},
        "half": {"config__json": {"dtype": "float16"}},
        "double": {"config__json": {"dtype": "float64"}},
        "no limit": {"config__json": {"max_position_embeddings": 77}},
    }
    found = {name: read(LLAMA, **files) for name, files in rows.items()}
    found["pictures"] = read(VL)
    found["no preprocessor"] = str(read(VL, preprocessor_config__json=None))[:40]
    return found


@fills("checkpoints")
def checkpoints() -> Any:
    import torch

    text, pictures = checkpoint_of(LLAMA, dtype="bfloat16", max_model_len=99), checkpoint_of(VL)
    boi = dataclasses.replace(pictures, processor=config_of(boi_token="<|im_end|>", image_token="a"))
    places = ["no/such", "/no/such", "a b", LLAMA, "acme/no-such-model-here"]
    dtypes = [
        own.checkpoint_dtype(config_of(dtype=one), config_of(dtype=two), "nowhere")
        for one, two in ((None, None), (torch.float16, None), (None, "bfloat16"), ("float8_e4m3fn", "float32"), (0, 0))
    ]
    windows = [[config_of(max_position_embeddings=9), n] for n in (None, 2, 9, 10)]
    windows += [[config_of(), n] for n in (None, 5)] + [[config_of(max_position_embeddings=None), 5]]
    return {
        "text": [
            text.dtype,
            text.window,
            text.placeholder_id,
            said(lambda: text.vision),
            said(lambda: text.placeholder),
        ],
        "pictures": [
            pictures.placeholder,
            pictures.placeholder_id,
            pictures.vision is pictures.processor,
            pictures.template_owner is pictures.processor,
            text.template_owner is text.tokenizer,
        ],
        "another placeholder": [boi.placeholder, boi.placeholder_id],
        "merged": plain(
            [own.merge_ids(5, 3, None, [4, 0, 5, 3], (-1, 1)), own.merge_ids(3), own.merge_ids(3, [None, 2])]
        ),
        "dtypes": [*dtypes, own.checkpoint_dtype(config_of(), config_of(), LLAMA)],
        "saved": [str(own.saved_dtype(LLAMA)), own.saved_dtype("golden/models")],
        "places": [said(own.check_places, own.ModelLoadConfig(model=one)) for one in places],
        "loads": [said(checkpoint_of, one) for one in places[1:3]],
        "a long name": said(checkpoint_of, "a" * 300),
        "adapters": said(own.check_places, own.ModelLoadConfig(model=LLAMA, adapters={"a": "no/such"})),
        "windows": each(own.context_window, *windows),
        "beyond": said(checkpoint_of, LLAMA, max_model_len=513),
        "takes pictures": [
            own.takes_images(config_of(model_type=kind, **more))
            for kind, more in (("llama", {}), ("llama", {"vision_config": 1}), ("qwen3_vl", {}))
        ],
        "classes": [own.auto_class(one).__name__ for one in (text, pictures)],
    }


# == Plans ==


def plan_of(checkpoint: own.Checkpoint, plugins: Any = (), **options: Any) -> own.Plan:
    return own.make_plan(own.build(own.GenerationOptions, options), checkpoint, plugins)


class Upper(own.Plugin):
    name = "upper"

    def post_decode(self, text: str) -> str:
        return text.upper()


class Few(own.Plugin):
    name = "few"

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return len(token_ids) > 2


class Biased(own.Plugin):
    name, backends, kinds = "biased", ("hf",), ("text",)

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        return logits


class Criteria(own.Plugin):
    name = "criteria"

    def __init__(self) -> None:
        self.hf_stopping_criteria = [lambda ids, scores: [True] * len(ids)]


class Processors(own.Plugin):
    name = "processors"

    def __init__(self) -> None:
        self.hf_logits_processors = [lambda ids, scores: scores]


ALL_PLUGINS = (Upper, Few, Biased, Criteria, Processors)


def stops_of(checkpoint: own.Checkpoint, **options: Any) -> Any:
    plan = plan_of(checkpoint, **options)
    return plain([plan.eos_ids, plan.stop_ids, plan.end_ids, plan.changes_rows, len(list(plan.plugins))])


@fills("plans")
def plans() -> Any:
    checkpoint = checkpoint_of(LLAMA)
    end, newline = checkpoint.tokenizer.decode([checkpoint.eos_ids[0]]), checkpoint.tokenizer.decode([5])
    everything: dict[str, Any] = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 2,
        "seed": 1,
        "n": 2,
        "logprobs": 1,
        "logits": True,
        "stop": {"strings": ["a b", "zz"], "token_ids": [9, 7], "include_stop": True, "ignore_eos": True},
        "decode": {"skip_special_tokens": False, "clean_up_tokenization_spaces": True, "strip": True},
        "max_prompt_tokens": 3,
        "truncate_prompt": True,
    }
    rows: list[dict[str, Any]] = [
        {},
        {"stop": {"ignore_eos": True}},
        {"stop": {"token_ids": [9, 5, *checkpoint.eos_ids]}},
        {"stop": [newline]},
        {"stop": [newline], "min_new_tokens": 1},
        {"stop": [end]},
        {"stop": [end], "min_new_tokens": 1},
        {"stop": [f"a{end}"]},
        {"stop": [f"a{end}"], "decode": {"skip_special_tokens": False}},
        {"stop": {"token_ids": [562]}},
        {"stop": {"token_ids": [563]}},
        {"stop": {"token_ids": [5, 563, 900]}},
        {"logprobs": 563},
        {"logprobs": 564},
        {"no_repeat_ngram_size": 1},
        {"stop": ["ab", "zq"]},
        {"replay": [[5]]},
        {"replay": [[5]], "n": 2},
        {"stop": {"strings": [newline], "token_ids": [5]}},
    ]
    hooks = own.adopt_plugins([Upper(), Few()])
    small = dataclasses.replace(checkpoint, vocabulary=3)
    given = dataclasses.replace(checkpoint, settings=own.ModelLoadConfig(model="m", max_model_len=5), window=5)
    tokens = list(range(20, 32))
    shown = plan_of(checkpoint, decode={"skip_special_tokens": False})
    return {
        "stops": [said(lambda: stops_of(checkpoint, **row)) for row in rows],  # noqa: B023
        "usual": plan_of(checkpoint).effective(),
        "everything": plain(plan_of(given, hooks, **everything).effective()),
        "plugins": [plan_of(checkpoint, hooks).changes_rows, own.adopt_plugins([]), said(own.adopt_plugins, Upper())],
        "plugins and a replay": said(plan_of, checkpoint, hooks, replay=[[5]]),
        "stop tokens": [own.stop_token(one, checkpoint) for one in (newline, end, "ab zq", "")],
        "stop tokens of few": [own.stop_token(one, small) for one in (newline, end)],
        "decoded": [
            shown.decode([*tokens, *checkpoint.eos_ids]),
            plan_of(checkpoint).decode([*tokens, *checkpoint.eos_ids]),
        ],
        "decoded ids": own.decode_ids(checkpoint.tokenizer, (5, *checkpoint.eos_ids)),
        "flat": sorted(own.flat(own.GenerationOptions())),
        "hashed": len({plan_of(checkpoint), plan_of(checkpoint)}),
    }


class Cleaning:
    """A tokenizer that notes how it is asked to decode."""

    added_tokens_decoder = types.MappingProxyType({0: types.SimpleNamespace(content="<e>", special=True)})

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def decode(self, ids: Any, **named: Any) -> Any:
        self.seen.append([plain(ids), plain(named)])
        skip = named.get("skip_special_tokens")
        return "".join(chr(96 + i) if i else ("" if skip else "<e>") for i in ids)

    def encode(self, text: str, **named: Any) -> list[int]:
        self.seen.append([text, plain(named)])
        return [0] if text == "<e>" else [ord(letter) - 96 for letter in text]

    def __call__(self, text: str, **named: Any) -> dict[str, list[int]]:
        self.seen.append([text, plain(named)])
        return {"input_ids": [27, *self.encode(text)] if named.get("add_special_tokens") else self.encode(text)}


def letters(window: int | None = 20, **fields: Any) -> own.Checkpoint:
    """A checkpoint whose tokens are letters: a is 1, z is 26, and 0 ends."""
    settings = own.ModelLoadConfig(model="m", **fields)
    return own.Checkpoint(settings, config_of(), Cleaning(), None, (0,), 28, "float32", window, 30)


def ids_of(text: str) -> list[int]:
    return [0 if letter == "." else ord(letter) - 96 for letter in text]


# == Prompts ==


def prompt_made(checkpoint: own.Checkpoint, request: Mapping[str, Any], **options: Any) -> Any:
    kind = own.VlmGenerationRequest if "images" in request else own.TextGenerationRequest
    made = own.prompt_of(own.build(kind, request), plan_of(checkpoint, **options))
    notes = tuple(re.sub(r"^\w+'s", "Its", note) for note in made.notes)  # releases name the class in their own way
    return plain(dataclasses.replace(made, images=tuple(pixels(one) for one in made.images), notes=notes))


@fills("prompts")
def prompts() -> Any:
    checkpoint = letters(adapters={"law": "a", "med": "b"})
    rows: list[dict[str, Any]] = [
        {"prompt": "abc"},
        {"prompt": ""},
        {"prompt_token_ids": [1, 2]},
        {"prompt_token_ids": []},
        {"prompt": "a", "seed": 0},
        {"prompt_token_ids": [1, 30]},
        {"prompt_token_ids": [29, -1]},
        {"prompt": "a\ud800"},
        {"prompt": "a", "adapter": "law"},
        {"prompt": "a", "adapter": "lav"},
        {"prompt_token_ids": [1, 30, 31, 32, 33, 34, 35, 36]},
    ]
    known = [
        [[1, 29], checkpoint, "an id", "mend"],
        [[30], checkpoint, "an id", "mend"],
        [[-1, 0], checkpoint, "an id", "x"],
    ]
    vision = checkpoint_of(VL)
    place = vision.placeholder_id
    ids = [
        [[], (), checkpoint],
        [[1], (), checkpoint],
        [[1], (None,), checkpoint],
        [[99], (), checkpoint],
        [[5, place], (None,), vision],
        [[5, place], (), vision],
        [[place, place], (None,), vision],
        [[5], (None,), vision],
    ]
    talk = {"messages": [{"role": "user", "content": "a<|im_end|>b"}]}
    escaped = prompt_made(checkpoint_of(LLAMA), {**talk, "chat": {"special_tokens": "escape"}}, max_new_tokens=4)
    kept = prompt_made(checkpoint_of(LLAMA), talk, max_new_tokens=4)
    return {
        "made": [said(lambda: prompt_made(checkpoint, row, max_new_tokens=4, seed=7)) for row in rows],  # noqa: B023
        "no adapters": said(lambda: prompt_made(letters(), {"prompt": "a", "adapter": "law"}, max_new_tokens=4)),
        "asked": checkpoint.tokenizer.seen[:4],
        "known": each(own.check_known, *known),
        "ids": each(own.check_ids, *ids),
        "escaped": [escaped, kept],
        "structured": prompt_made(
            checkpoint_of(LLAMA), {"prompt": "a", "structured": {"choice": ["b"]}}, max_new_tokens=4
        ),
        "keys": keys(),
        "samples": samples(),
    }


def bare_prompt(**fields: Any) -> own.Prompt:
    usual: dict[str, Any] = {
        "token_ids": (1, 2),
        "images": (),
        "image_kwargs": {},
        "length": 2,
        "seed": None,
        "adapter": None,
        "structured": None,
        "notes": (),
        "messages": None,
    }
    return own.Prompt(**{**usual, **fields})


def keys() -> Any:
    plans = [plan_of(letters(), **options) for options in ({}, {"temperature": 0.5})]
    plugged = plan_of(letters(), own.adopt_plugins([Few()]))
    red, blue = (Image.new("RGB", (2, 1), name) for name in ("red", "blue"))
    made = [
        bare_prompt(),
        bare_prompt(seed=3),
        bare_prompt(seed=0),
        bare_prompt(adapter="a"),
        bare_prompt(structured="x"),
        bare_prompt(images=(red,)),
        bare_prompt(images=(blue,)),
        bare_prompt(images=(red,), image_kwargs={"a": 1}),
        bare_prompt(token_ids=(1,)),
        bare_prompt(images=(red.resize((1, 2)),)),
        bare_prompt(notes=("a",)),
    ]
    return {
        "keys": [[plain(one.key(plan)) for plan in (*plans, plugged)] for one in made],
        "seeds": [bare_prompt(seed=5).sampling_seed(), 0 <= bare_prompt().sampling_seed() < 2**32],
        "new seeds": len({bare_prompt().sampling_seed() for _ in range(9)}) > 1,
    }


def samples() -> Any:
    rows = []
    for options in ({"n": 3, "temperature": 1.0}, {"n": 2}, {"temperature": 1.0}):
        plan = plan_of(letters(), **options)
        for seed in (None, 4):
            made = own.samples_of(bare_prompt(seed=seed), plan)
            rows.append([[one.seed for _, one in made], len({key for key, _ in made})])
    return rows


@fills("windows")
def windows() -> Any:
    def fit(length: int, window: int | None, images: bool = False, **options: Any) -> Any:
        return own.fit_to_window(tuple(range(1, length + 1)), length, images, plan_of(letters(window), **options))

    rows: list[tuple[list[Any], dict[str, Any]]] = [
        ([6, 10], {"max_new_tokens": 4}),
        ([7, 10], {"max_new_tokens": 4}),
        ([99, None], {"max_new_tokens": 4}),
        ([7, 10], {"max_new_tokens": 4, "truncate_prompt": True}),
        ([7, 10, True], {"max_new_tokens": 4, "truncate_prompt": True}),
        ([7, 10, True], {"max_new_tokens": 4}),
        ([1, 10], {"max_new_tokens": 10}),
        ([1, 10], {"max_new_tokens": 11}),
        ([1, 10], {"max_new_tokens": 10, "truncate_prompt": True}),
        ([1, 10], {"max_new_tokens": 9}),
        ([3, 10], {"max_new_tokens": 4, "max_prompt_tokens": 3}),
        ([4, 10], {"max_new_tokens": 4, "max_prompt_tokens": 3}),
        ([4, 10], {"max_new_tokens": 4, "max_prompt_tokens": 3, "truncate_prompt": True}),
        ([7, 10], {"max_new_tokens": 4, "max_prompt_tokens": 6}),
        ([7, 10], {"max_new_tokens": 4, "max_prompt_tokens": 7}),
        ([4, None], {"max_prompt_tokens": 3}),
        ([2, 10], {"max_new_tokens": 9, "truncate_prompt": True}),
        ([2, 10, True], {"max_new_tokens": 12, "truncate_prompt": True}),
    ]
    return [said(fit, *row, **options) for row, options in rows]


class Patches:
    """An image processor that counts by arithmetic."""

    patch_size, merge_size = 2, 2
    size: Mapping[str, int] = {"shortest_edge": 16, "longest_edge": 256}

    def get_number_of_image_patches(self, height: int, width: int, budget: Mapping[str, int]) -> int:
        if width > 100:
            raise ValueError("too wide")
        return height * width * 4 + budget["min_pixels"] + budget["max_pixels"]


def seeing(processor: Any) -> own.Checkpoint:
    def vision(**named: Any) -> Any:
        vision.seen.append(plain(named))  # type: ignore[attr-defined]
        return {"input_ids": [[1] * 7]}

    vision.seen = []  # type: ignore[attr-defined]
    vision.image_processor, vision.image_token, vision.boi_token = processor, "<i>", None  # type: ignore[attr-defined]
    return dataclasses.replace(letters(), processor=vision)


@fills("picture-budgets")
def picture_budgets() -> Any:
    counting, other = seeing(Patches()), seeing(config_of(merge_size=2))
    budgets: list[dict[str, Any]] = [
        {},
        {"do_resize": False},
        {"min_pixels": 9},
        {"max_pixels": 9},
        {"max_pixels": 300},
        {"min_pixels": 400},
        {"min_pixels": 3, "max_pixels": 5},
        {"max_pixels": 16},
        {"max_pixels": 15},
        {"background": None},
    ]
    made = [own.VlmPreprocessOptions(**row) for row in budgets]
    image, odd, wide = (Image.new("RGB", size) for size in ((8, 4), (8, 6), (101, 4)))
    tokens: list[list[Any]] = [
        [image, {}],
        [image, {"size": {"shortest_edge": 0, "longest_edge": 64}}],
        [wide, {}],
        [image, {"do_resize": False}],
        [odd, {"do_resize": False}],
        [Image.new("RGB", (6, 4)), {"do_resize": False}],
    ]
    loose: list[dict[str, Any]] = [
        {"messages": PICTURED},
        {"prompt": "a", "images": [image, odd]},
        {"messages": BARE, "images": [image]},
        {"messages": BARE},
        {"messages": BARE, "images": [image, odd]},
        {"prompt": "a", "images": [image], "vlm": {"max_pixels": 20}},
        {"prompt": "a", "images": ["http://a"], "image_loader": lambda url: image},
        {"prompt": "a", "images": ["file:///a"]},
        {"prompt": "a", "images": ["file:///a"], "image_root": "/b"},
        {"prompt": "a", "images": [transparent("RGBA")], "vlm": {"background": "red"}},
    ]
    requests = [own.build(own.VlmGenerationRequest, row) for row in loose]
    expanded = own.expand_image(image, {"do_resize": False}, counting)
    return {
        "budgets": [said(own.pixel_budget, one, counting) for one in made],
        "no budgets": [said(own.pixel_budget, one, other) for one in made[:3]],
        "counted": [own.counts_patches(one) for one in (counting, other)],
        "tokens": [said(own.image_tokens, *row, counting) for row in tokens],
        "tokens of others": [said(own.image_tokens, *row, other) for row in tokens[:2]],
        "of requests": [said(lambda: images_read(one, counting)) for one in requests],  # noqa: B023
        "expanded": [plain(expanded), plain(counting.processor.seen), plain(other.processor.seen)],  # type: ignore[union-attr]
    }


BARE = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]


def images_read(request: Any, checkpoint: own.Checkpoint) -> Any:
    images, how = own.images_of(request, checkpoint)
    return [[pixels(one) for one in images], plain(how)]


# == Endings ==


def ending(text: str, **options: Any) -> Any:
    found = own.find_ending(ids_of(text), plan_of(letters(), **options))
    return plain(found) if found is None else [found.count, found.reason, found.stop_reason, plain(found.cut)]


ENDINGS: list[tuple[str, dict[str, Any]]] = [
    ("ab", {}),
    ("ab.", {}),
    ("ab.cd", {}),
    ("abc", {"max_new_tokens": 3}),
    ("abcd", {"max_new_tokens": 3}),
    ("abc", {"max_new_tokens": 4}),
    ("ab.", {"max_new_tokens": 3}),
    ("abcde", {"stop": ["cd"]}),
    ("abcde", {"stop": ["c"]}),
    ("abcde", {"stop": ["c"], "min_new_tokens": 1}),
    ("cabc", {"stop": ["c"], "min_new_tokens": 1}),
    ("cabcc", {"stop": ["ca"], "min_new_tokens": 2}),
    ("bcabc", {"stop": ["bc"], "min_new_tokens": 1}),
    ("ccabc", {"stop": ["ca"], "min_new_tokens": 3}),
    ("bcabc", {"stop": ["bc"], "min_new_tokens": 2}),
    ("abcde", {"stop": {"token_ids": [3]}}),
    ("abcde", {"stop": {"strings": ["bc"], "token_ids": [3]}}),
    ("abcde", {"stop": {"strings": ["c"], "token_ids": [3]}}),
    ("ab.c", {"stop": {"ignore_eos": True}}),
    ("ab.c", {"stop": ["b"]}),
    ("ab.c", {"stop": ["b<e>"], "decode": {"skip_special_tokens": False}}),
    ("ab.c", {"stop": ["<e>"]}),
    ("ab.c", {"stop": {"strings": ["<e>"], "ignore_eos": True}}),
    ("abcde", {"stop": ["de", "cd"]}),
    ("abcde", {"stop": ["de"], "max_new_tokens": 5}),
    ("abcde", {"stop": ["de"], "max_new_tokens": 4}),
    ("abababab", {"stop": ["bab"]}),
    ("", {}),
    ("aaaaaaaaaaaaz", {"stop": ["z"], "min_new_tokens": 1}),
]


@fills("endings")
def endings() -> Any:
    firsts = [
        plain(own.first_end_id(ids_of(text), plan_of(letters(), stop={"token_ids": [3]})))
        for text in ("ab", "acb.", ".c", "")
    ]
    strings = [said(own.string_end, ids_of(text), plan_of(letters(), **how)) for text, how in ENDINGS]
    return {"endings": [said(ending, text, **how) for text, how in ENDINGS], "firsts": firsts, "strings": strings}


def watched(text: str, **options: Any) -> Any:
    """After how many tokens a row is over, and how often its text was asked for."""
    checkpoint = letters()
    plugins = own.adopt_plugins([Few()]) if options.pop("few", False) else ()
    watch = own.RowWatch(plan_of(checkpoint, plugins, **options), bare_prompt(length=5))
    checkpoint.tokenizer.seen.clear()
    pushed = []
    for token_id in ids_of(text):
        pushed.append(watch.push(token_id))
        if watch.over:
            break
    decoded = [len(row[0]) for row in checkpoint.tokenizer.seen if isinstance(row[0], list)]
    return [pushed, plain(watch.ids), watch.over, plain(watch.plugin_end), decoded, watch.prompt_tokens]


@fills("watches")
def watches() -> Any:
    import torch

    watch = own.RowWatch(plan_of(letters(), logprobs=1, logits=True), bare_prompt(replay=(4, 5)))
    for token_id in (1, 2):
        watch.push(token_id)
        watch.logprobs.append(-0.5)
        watch.top_logprobs.append({1: -0.5})
        watch.logits.append(torch.tensor([0.0, float(token_id)]))
    watch.logits.append(torch.tensor([9.0, 9.0]))
    completion = watch.completion([7, 8])
    state = [watch.drafted, watch.matched, plain(watch.replay), watch.error]
    watch.fail(own.EngineError("broken"))
    failed = [watch.over, told(watch.completion([]).error)]  # type: ignore[arg-type]
    watch.drafted = watch.matched = 3
    watch.restart()
    again = [plain(watch.completion([])), watch.over, watch.drafted, watch.matched, plain(watch.logits)]
    none = own.RowWatch(plan_of(letters()), bare_prompt()).completion([7])
    chosen = own.RowWatch(plan_of(letters(), logprobs=0), bare_prompt()).completion([7])
    return {
        "pushed": [said(watched, text, **how) for text, how in ENDINGS],
        "with a plugin": [said(watched, text, few=True) for text in ("abcde", "a.b")],
        "completion": [plain(dataclasses.replace(completion, logits=None)), completion.logits.tolist()],
        "state": state,
        "failed": failed,
        "again": again,
        "nothing": plain(none),
        "chosen": plain(chosen),
        "special": said(watched, "ab..cde", stop={"strings": ["bc"], "ignore_eos": True}),
    }


def with_seed_alone(result: Any) -> Any:
    """A result in plain values; of its effective options the seed, which is the sample's own."""
    logits = None if result.logits is None else result.logits.tolist()
    return plain(dataclasses.replace(result, logits=logits, effective={"seed": result.effective["seed"]}))


def finished(text: str, plugin_end: Any = None, replay: Any = None, few: bool = False, **options: Any) -> Any:
    import torch

    plugins = own.adopt_plugins([Upper()]) if few else ()
    plan = plan_of(letters(), plugins, **options)
    ids = tuple(ids_of(text))
    tops = tuple({i: -1.0} for i in ids)
    logits = torch.arange(len(ids))
    completion = own.Completion(ids, (7, 8), (-0.5,) * len(ids), tops, logits, plugin_end)
    prompt = bare_prompt(notes=("noted",), replay=replay)
    made = own.finish(completion, prompt, plan, "hf", cached=True, fallback_from="vllm")
    return [with_seed_alone(made), made.top_logprobs[0] is tops[0] if made.top_logprobs else None]


@fills("results")
def results() -> Any:
    include = [(text, {**how, "stop": {"include_stop": True, **stop_of(how)}}) for text, how in ENDINGS]
    more: list[tuple[str, dict[str, Any]]] = [
        ("abcd", {"plugin_end": (2, "few")}),
        ("ab.d", {"plugin_end": (3, "few")}),
        ("ab.d", {"plugin_end": (2, None)}),
        ("ab.d", {"plugin_end": (4, "few")}),
        ("ab", {"plugin_end": (2, None), "replay": (1, 2)}),
        ("ab", {"replay": (1,)}),
        ("ab", {}),
        ("ab", {"plugin_end": (2, "few"), "few": True}),
        (" ab ".strip(), {"plugin_end": (2, "few"), "decode": {"strip": True}}),
    ]
    plan = plan_of(letters())
    error = own.RequestError("broken", fix="mend it", index=4)
    cause = ValueError("deep")
    error.__cause__ = cause
    try:
        own.finish(own.Completion((1,), (2,), error=error), bare_prompt(), plan, "hf")
    except own.RequestError as raised:
        copied = [raised is error, raised.__cause__ is cause, raised.index, str(raised)]
    least = own.finish(own.Completion((1, 0), (2,)), bare_prompt(), plan, "vllm")
    return {
        "usual": [said(text_of, text, **how) for text, how in ENDINGS],
        "include": [said(text_of, text, **how) for text, how in include],
        "whole": [said(finished, text, **how) for text, how in [*ENDINGS[:5], *more]],
        "copied": copied,
        "least": with_seed_alone(least),
        "no ending": told(own.no_ending("hf", "did so", 3)),
        "stripped": stripped(),
    }


def stop_of(how: Mapping[str, Any]) -> dict[str, Any]:
    stop = how.get("stop", {})
    return dict(stop) if isinstance(stop, dict) else {"strings": stop}


def text_of(text: str, **options: Any) -> Any:
    made = finished(text, **options)[0]
    return [made["text"], made["raw_text"], made["token_ids"], made["finish_reason"], made["stop_reason"]]


class Spaced(Cleaning):
    def decode(self, ids: Any, **named: Any) -> Any:
        return f" {super().decode(ids, **named)} "


def stripped() -> list[str]:
    checkpoint = dataclasses.replace(letters(), tokenizer=Spaced())
    texts = []
    for strip in (True, False):
        plan = plan_of(checkpoint, decode={"strip": strip})
        texts.append(own.finish(own.Completion((1, 2, 0), ()), bare_prompt(), plan, "hf").text)
    return texts


# == What is refused ==


def fake_vllm(version: str, cpu: bool = True, device: str = "cpu") -> dict[str, Any]:
    platform = config_of(is_cpu=lambda: cpu, device_type=device, dist_backend="gloo")
    return {
        "vllm": module("vllm", __version__=version),
        "vllm__platforms": module("vllm.platforms", current_platform=platform),
    }


def asked_of(backend: str, **how: Any) -> own.Asked:
    options = own.build(own.GenerationOptions, how.pop("options", None))
    plugins = own.adopt_plugins([kind() for kind in how.pop("plugins", ())])
    call = {name: how.pop(name) for name in ("scoring", "grad", "pictures", "prompts") if name in how}
    config = own.ModelLoadConfig(**{"model": LLAMA, "backend": backend, **how})
    return own.Asked(config, options, plugins, **call)


def refused(backend: str, **how: Any) -> Any:
    found = own.refusal_of(asked_of(backend, **how))
    return None if found is None else [told(found), found.problem, found.fix]


ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "hooks": {"logits_hooks": True},
    "device": {"device": "cpu"},
    "attention": {"attn_implementation": "eager"},
    "batch tokens": {"max_batch_tokens": 3},
    "batch size": {"max_batch_size": 3},
    "hf_kwargs": {"hf_kwargs": {"a": 1}},
    "vllm_kwargs": {"vllm_kwargs": {"a": 1}},
    "replay": {"options": {"replay": [[5]]}},
    "replay with a hook": {"options": {"replay": [[5]]}, "logits_hooks": True},
    "logits": {"options": {"logits": True}},
    "logits with a hook": {"options": {"logits": True}, "logits_hooks": True},
    "logits and a minimum": {"options": {"logits": True, "min_new_tokens": 1}, "logits_hooks": True},
    "ngrams": {"options": {"no_repeat_ngram_size": 2}},
    "ngrams with a hook": {"options": {"no_repeat_ngram_size": 2}, "logits_hooks": True},
    **{f"temperature {value}": {"options": {"temperature": value}} for value in (0, 0.009, 0.01, 1, 2, 2.01)},
    "a minimum and free ends": {"options": {"min_new_tokens": 1, "stop": {"ignore_eos": True, "token_ids": [5]}}},
    "a minimum and free texts": {"options": {"min_new_tokens": 1, "stop": {"ignore_eos": True, "strings": ["a"]}}},
    "a minimum without stops": {"options": {"min_new_tokens": 1, "stop": {"ignore_eos": True}}},
    "a minimum and stops": {"options": {"min_new_tokens": 1, "stop": {"token_ids": [5]}}},
    "free ends": {"options": {"stop": {"ignore_eos": True, "token_ids": [5]}}},
    "gradients": {"grad": True},
    "a plugin": {"plugins": [Few]},
    "a plugin of logits": {"plugins": [Biased]},
    "a plugin of logits with a hook": {"plugins": [Biased], "logits_hooks": True},
    "criteria": {"plugins": [Few, Criteria]},
    "processors": {"plugins": [Processors]},
    "a plugin of texts": {"plugins": [Biased], "pictures": True},
}


@fills("refusals")
def refusals() -> Any:
    """What each backend cannot do, with a vLLM of today on a GPU."""
    with modules(**fake_vllm("0.32.0", cpu=False)):
        found = {name: [refused(backend, **dict(how)) for backend in ("hf", "vllm")] for name, how in ASKED.items()}
    refusal = own.Refusal("both", "that", lambda asked: asked.scoring, "do this")
    decoder = config_of(refusals=(refusal,))
    found["of a decoder"] = [refused(backend, decoder=decoder, scoring=True) for backend in ("hf", "vllm")]
    with modules(**fake_vllm("0.32.0", cpu=False)):
        found["of a decoder's replay"] = refused("vllm", decoder=config_of(), options={"replay": [[5]]})
    found["words"] = [own.OTHER_VLLM, own.WITH_HOOK, refusal.releases]
    return found


@fills("releases")
def releases() -> Any:
    """What each release cannot do, on a CPU and on a GPU."""
    transformers = importlib.import_module("transformers")
    found: dict[str, Any] = {}
    versions = ("0.1.dev7", "0.2.0", "0.10.9", "0.11.0", "0.11.9", "0.12.0", "0.20.0", "0.22.9", "0.23.0")
    for version in versions:
        for cpu in (True, False):
            with modules(**fake_vllm(version, cpu)), changed(LLAMA, config__json={"sliding_window": 64}) as sliding:
                rows = [{}, {"logits_hooks": True}, {"model": sliding}]
                rows += [{"model": sliding, "scoring": True}, {"model": sliding, "prompts": [bare_prompt()]}]
                found[f"vllm {version} {cpu}"] = [refused("vllm", **dict(row)) for row in rows]
    before = transformers.__version__
    for version in ("4.56.2", "4.57.0", "4.99", "5.0.0", "5.2.9", "5.3.0", "5.24.0"):
        transformers.__version__ = version
        own.installed.cache_clear()
        try:
            with modules(**fake_vllm("0.32.0")):
                found[f"transformers {version}"] = [refused(backend) for backend in ("hf", "vllm")]
        finally:
            transformers.__version__ = before
            own.installed.cache_clear()
    return found


# == Transformers: batches and steps ==


class Watcher(own.Observer):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def arrived(self, backend: str, rows: Sequence[Any]) -> None:
        self.seen.append(["arrived", backend, len(rows)])

    def stepped(self) -> None:
        self.seen.append("stepped")

    def restarted(self, rows: Any) -> None:
        self.seen.append(["restarted", len(list(rows))])

    def answered(self, prompts: Sequence[Any], results: Sequence[Any]) -> None:
        self.seen.append(["answered", len(prompts), [type(one).__name__ for one in results]])

    def timed(self, what: str) -> Any:
        self.seen.append(["timed", what])
        return contextlib.nullcontext()


class Answers:
    """What a backend gives, by place."""

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}

    def __call__(self, place: int, completion: own.Completion) -> None:
        self.given[place] = completion

    def told(self) -> Any:
        return {
            place: [plain(one.token_ids), plain(one.prompt_token_ids), rounded(one.logprobs), plain(one.error)]
            for place, one in self.given.items()
        }


def call_of(plan: own.Plan, **fields: Any) -> tuple[own.Call, Answers, Watcher]:
    answers, watcher = Answers(), Watcher()
    return own.Call(plan, answers, fields.pop("observer", watcher), **fields), answers, watcher


def row_of(plan: own.Plan, ids: Sequence[int], place: int = 0, **fields: Any) -> own.Row:
    prompt = bare_prompt(token_ids=tuple(ids), length=len(ids))
    return own.Row(prompt, own.RowWatch(plan, prompt), place, ids=tuple(ids), **fields)


@fills("out-of-memory")
def out_of_memory() -> Any:
    import torch

    texts = [
        "CUDA out of memory.",
        "Out Of Memory",
        "not enough memory: you tried",
        "can't allocate memory",
        "cannot allocate memory",
        "cant allocate memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "status_alloc_failed",
        "Invalid buffer size: 3 GB",
        "a bug",
        "",
    ]
    errors: list[Exception] = [
        torch.cuda.OutOfMemoryError("a"),
        MemoryError("b"),
        KeyError("c"),
        *map(RuntimeError, texts),
    ]
    row = dataclasses.replace(row_of(plan_of(letters()), (1, 2), 4), response=(5, 6, 7))
    lack = own.oom_error(RuntimeError("all gone"), row)
    freed = Calls()
    before = own.gc.collect, torch.cuda.empty_cache
    own.gc.collect = lambda: freed.note("python") or 0  # type: ignore[assignment,func-returns-value]
    torch.cuda.empty_cache = lambda: freed.note("gpu")  # type: ignore[assignment]
    try:
        own.free_memory()
    finally:
        own.gc.collect, torch.cuda.empty_cache = before
    return {
        "known": [own.is_oom(error) for error in errors],
        "told": [told(lack), lack.index],
        "no token": [
            told(own.no_token(*flags)) for flags in ((True, False), (False, True), (False, False), (True, True))
        ],
        "freed": freed.seen,
    }


@fills("batches")
def batches() -> Any:
    """Rows as tensors, padded on either side, with pictures and without."""
    checkpoint = letters()
    plan = plan_of(checkpoint)
    rows = [row_of(plan, (1, 2, 3)), row_of(plan, (4,)), dataclasses.replace(row_of(plan, (5,)), response=(6, 7))]
    sides = {
        side: {name: one.tolist() for name, one in own.collate(rows, checkpoint, "cpu", side=side).items()}
        for side in ("left", "right")
    }
    usual = own.collate(rows, checkpoint, "meta")
    vision = checkpoint_of(VL)
    place = vision.placeholder_id
    assert place is not None
    red, blue = Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 96), "blue")
    seen = plan_of(vision)
    mixed = [row_of(seen, (5, place, 6)), row_of(seen, (7,)), row_of(seen, (place,)), row_of(seen, (8, place, place))]
    for row, images in zip(mixed, ((red,), (), (blue,), (red, blue))):
        row.prompt = dataclasses.replace(row.prompt, images=images)
    mixed[1].response = (9, 10)
    budget = {"size": {"shortest_edge": 1024, "longest_edge": 4096}}
    mixed[3].prompt = dataclasses.replace(mixed[3].prompt, image_kwargs=budget)
    made = own.collate(mixed, vision, "cpu")
    kinds = made.pop("mm_token_type_ids", made["input_ids"] == place)  # of newer releases
    alike = bool((kinds == ((made["input_ids"] == place) & made["attention_mask"].bool())).all())
    padding = [((place, 5), vision), ((place,), vision), ((), vision), ((1, 2), checkpoint), ((), checkpoint)]
    return {
        "sides": sides,
        "ids": [plain(row.ids) for row in rows],
        "elsewhere": {name: [one.device.type, list(one.shape)] for name, one in usual.items()},
        "usual": own.collate(rows, checkpoint, "cpu")["input_ids"].tolist(),
        "with pictures": {
            name: value.tolist() if value.dim() == 2 and "pixel" not in name else list(value.shape)
            for name, value in made.items()
        },
        "pixels": [round(float(made["pixel_values"].sum()), 2)],
        "kinds of tokens": alike,
        "their ids": [plain(row.ids) for row in mixed],
        "padding": [own.padding_id(bare_prompt(token_ids=ids), one) for ids, one in padding],
        "stacked": {
            name: [list(one.shape), str(one.dtype)] for name, one in own.stack_columns([{"a": [1, 2]}]).items()
        },
    }


CHAINS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.0, "top_k": 2},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.4},
    {"repetition_penalty": 2.0},
    {"min_new_tokens": 1},
    {"min_new_tokens": 2},
    {"min_new_tokens": 1, "stop": {"ignore_eos": True}},
    {"no_repeat_ngram_size": 1},
    {"top_k": 1, "top_p": 0.1, "min_p": 0.9},
    {
        "temperature": 2.0,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "min_new_tokens": 5,
        "no_repeat_ngram_size": 2,
    },
]


def small(window: int = 50, tokens: int = 6) -> own.Checkpoint:
    return dataclasses.replace(letters(window), vocabulary=tokens)


def chain_of(plugins: Any = (), **options: Any) -> Any:
    import torch

    plan = plan_of(small(), own.adopt_plugins(plugins), **options)
    rows = [row_of(plan, (1, 2, 1)), row_of(plan, (3,))]
    rows[1].watch.push(4)
    chain = own.logits_processors(plan, rows)
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.5, -1.0, 0.0], [0.0, 1.0, 2.0, 3.0, 2.5, -2.0]])
    before = scores.clone()
    changed_scores = chain(torch.tensor([[1, 2, 1], [3, 3, 4]]), scores)
    kinds = [type(one).__name__ for one in chain]
    values = [[None if v == -math.inf else round(v, 4) for v in row] for row in changed_scores.tolist()]
    return [kinds, values, bool((scores == before).all()), [told(row.watch.error) for row in rows if row.watch.error]]


class Less(own.Plugin):
    """Takes the first token away, and what the prompt begins with."""

    name = "less"

    def logits(self, token_ids: Sequence[int], logits: Any, prompt_token_ids: Sequence[int] = ()) -> Any:
        logits[[0, prompt_token_ids[0]]] = -math.inf
        return logits


@fills("processors")
def processors() -> Any:
    import torch

    plan = plan_of(letters(), no_repeat_ngram_size=1)
    watch = own.RowWatch(plan, bare_prompt())
    all_banned = own.own_logits(watch, (0, 1), (2,), torch.zeros(3))
    return {
        "chains": [chain_of(**options) for options in CHAINS],
        "plugins": [
            chain_of([Less()]),
            chain_of([Less()], repetition_penalty=2.0),
            chain_of([Processors()], temperature=0.5),
        ],
        "all banned": [[repr(v) for v in all_banned.tolist()], told(watch.error)],
    }


class Grammar:
    """Where a row is in its grammar."""

    def __init__(self, allowed: Sequence[int]) -> None:
        self.allowed, self.seen = allowed, list[int]()

    def accept(self, token: int) -> bool:
        self.seen.append(token)
        return token in self.allowed


def loop_of(plan: own.Plan, rows: Sequence[own.Row], **fields: Any) -> tuple[own.DecodeLoop, Answers, Watcher]:
    call, answers, watcher = call_of(plan, **fields)
    loop = own.DecodeLoop(None, rows, lambda width: max(1, 12 // width), call)
    return loop, answers, watcher


def step(options: dict[str, Any], logits: Any, plugins: Any = (), grammars: Any = (), seeds: Any = ()) -> Any:
    """One step of rows, by these logits."""
    import torch

    plan = plan_of(small(), own.adopt_plugins(plugins), **options)
    rows = [row_of(plan, (1, 2), place + 3) for place in range(len(logits))]
    for row, seed in zip(rows, seeds):
        row.generator = torch.Generator().manual_seed(seed)
    loop, answers, _ = loop_of(plan, ())
    loop.rows = list(rows)
    given = torch.tensor(logits, dtype=torch.float64)
    ids = torch.tensor([[1, 2]] * len(rows))
    for row, grammar in zip(rows, grammars):
        row.matcher = grammar
    chain = own.logits_processors(plan, loop.rows)
    if grammars:
        scores = chain(ids, given.float())
        kept = loop._push(loop._choose(loop._sound(given, scores)).tolist(), ids)
        made = ids
    else:
        made, kept = loop.decide(given, chain, ids)
    watches = [
        [
            plain(row.watch.ids),
            rounded(row.watch.logprobs),
            rounded(row.watch.top_logprobs),
            [one.tolist() for one in row.watch.logits],
            plain(row.watch.error),
        ]
        for row in rows
    ]
    return [made.tolist(), kept, watches, answers.told(), [row.place for row in loop.rows]]


def rounded(value: Any) -> Any:
    """Numbers as far as machines agree on them."""
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


@fills("steps")
def steps() -> Any:
    nan, low = float("nan"), -math.inf
    usual = [[0.0, 1.0, 5.0, 2.0, 0.0, 0.5], [4.0, 0.0, 1.0, 3.0, 2.0, 1.5]]
    flat_logits = [[0.0] * 6 for _ in range(3)]
    return {
        "greedy": step({"logprobs": 2, "logits": True}, usual),
        "chosen only": step({"logprobs": 0}, usual),
        "the last": step({"max_new_tokens": 1, "logprobs": 1}, usual),
        "sampled": step({"temperature": 1.0, "logprobs": 0}, flat_logits, seeds=(1, 2, 1)),
        "not numbers": step({"logprobs": 0}, [usual[0], [nan] * 6, [1.0, nan, 0.0, 0.0, 0.0, 0.0]]),
        "nothing left": step({}, [usual[0], [low] * 6]),
        "plugins": step({}, usual, plugins=[Less(), Few()]),
        "criteria": step({}, usual, plugins=[Criteria()]),
        "grammars": step({}, usual, grammars=(Grammar([2]), Grammar([5]))),
        "a grammar with nothing left": step({}, [usual[0], [low] * 6], grammars=(Grammar([2]), Grammar([5]))),
        "runs": runs(),
    }


class Script:
    """A batch whose rows say what is written for them."""

    def __init__(self, rows: Sequence[own.Row], seen: list[Any]) -> None:
        import torch

        self.rows, self.seen, self.time = list(rows), seen, 0
        self.processors = lambda ids, scores: scores
        self.ids = torch.tensor([[9]] * len(rows))
        self.logits: Any = None

    def forward(self) -> None:
        import torch

        wanted = [row.prompt.token_ids[min(len(row.watch.ids), len(row.prompt.token_ids) - 1)] for row in self.rows]
        self.logits = torch.nn.functional.one_hot(torch.tensor(wanted), 30).float()
        self.seen.append(["forward", len(self.rows), self.ids.shape[1]])

    def keep(self, kept: Sequence[int]) -> None:
        self.seen.append(["keep", list(kept)])
        self.rows = [self.rows[place] for place in kept]
        self.ids = self.ids[list(kept)]


def runs() -> Any:
    """Rows of a loop that leave, wait and join, each of which answers its own prompt."""
    plan = plan_of(letters(), max_new_tokens=3)
    texts = ["abcd", "a.", "bc.", "x.", "ccc"]
    later = [[row_of(plan, ids_of("hi."), 9)], []]
    call, answers, watcher = call_of(plan, more=lambda: later.pop(0) if later else [])
    rows = [row_of(plan, ids_of(text), place) for place, text in enumerate(texts)]
    seen: list[Any] = []

    class Loop(own.DecodeLoop):
        def prepare(self, rows: Sequence[own.Row]) -> Any:
            seen.append(["prepare", [row.place for row in rows]])
            return Script(rows, seen)

    loop = Loop(None, rows, lambda width: 21 // width, call)
    rooms = [loop.room()]
    loop.run()
    left = [len(loop.rows), len(loop.waiting)]
    return {"seen": seen, "rooms": plain(rooms), "answers": answers.told(), "observed": watcher.seen, "left": left}


def bare_backend(**fields: Any) -> own.HfBackend:
    backend = object.__new__(own.HfBackend)
    usual = {"checkpoint": letters(), "model": config_of(device="cpu"), "most_rows": sys.maxsize, "adapter": None}
    vars(backend).update({**usual, "budget": own.DEFAULT_BATCH_TOKENS, "grammars": None, **fields})
    return backend


def memory_of(fits: int, count: int, error: str = "CUDA out of memory\nmore", **fields: Any) -> Any:
    """What becomes of rows where only so many fit."""
    seen: list[Any] = []

    class Loop(own.DecodeLoop):
        def run(self) -> None:
            while self.waiting:
                self.start(self.room()[0])
                seen.append([len(self.rows), self.places(8)])
                if len(self.rows) > fits:
                    raise RuntimeError(error)
                for row in list(self.rows):
                    row.watch.push(0)
                self._take_out()

    plan = plan_of(letters(), max_new_tokens=4)
    call, answers, watcher = call_of(plan)
    backend = bare_backend(loop=Loop, **fields)
    with log_kept() as lines:
        result = said(backend._run, [row_of(plan, (1,) * (place + 1), place) for place in range(count)], call)
    return [result, seen, answers.told(), watcher.seen, lines]


class Adapting(own.HfBackend):
    """Notes which adapter runs with which rows."""

    def adapt(self, adapter: str | None) -> None:
        self.noted.append(adapter)  # type: ignore[attr-defined]
        self.adapter = adapter

    def _run(self, rows: Sequence[own.Row], call: own.Call) -> None:
        self.noted.append([row.place for row in rows])  # type: ignore[attr-defined]
        self.noted.append(len(list(call.more())))  # type: ignore[attr-defined]


def adapted() -> Any:
    backend = object.__new__(Adapting)
    vars(backend).update(checkpoint=letters(), model=config_of(device="cpu"), adapter="before", noted=[], grammars=None)
    more = [[bare_prompt()], [], []]
    call, _, watcher = call_of(plan_of(letters(), temperature=0.5), more=lambda: more.pop(0))
    names = ["law", None, "med", "law", None]
    backend.complete([bare_prompt(adapter=name, length=place) for place, name in enumerate(names)], call)
    row = row_of(plan_of(letters(), temperature=0.5), (1,))
    row.prompt = dataclasses.replace(row.prompt, seed=5)
    row.watch.push(3)
    backend._start(row)
    return [backend.noted, watcher.seen, row.generator.initial_seed(), row.watch.ids, row.matcher]  # type: ignore[attr-defined]


@fills("memory")
def memory() -> Any:
    backends = [bare_backend(), bare_backend(most_rows=3), bare_backend(budget=10)]
    return {
        "enough": memory_of(9, 3),
        "halved": memory_of(2, 5),
        "one at a time": memory_of(1, 3),
        "none": memory_of(0, 2),
        "another error": memory_of(1, 3, error="a bug"),
        "few places": memory_of(9, 3, most_rows=2),
        "few tokens": memory_of(9, 4, budget=24),
        "places": [[one._places(one.budget, width) for width in (1, 4, 10, 11, 50_000)] for one in backends],
        "adapters": adapted(),
        "nothing to forget": [bare_backend().forget(), type(bare_backend().healthy()).__name__],
    }


# == Transformers: loading ==


class Model(Calls):
    """A model of transformers that notes what is done with it."""

    device = "cpu"

    def to(self, device: Any) -> None:
        self.note("to", device)


def auto_of(info: Mapping[str, Any], made: list[Any], known: Sequence[type] = ()) -> Any:
    class Auto:
        _model_mapping = known

        @staticmethod
        def from_pretrained(name: str, **named: Any) -> Any:
            model = Model()
            model.note("load", name, **{key: str(value) for key, value in named.items()})
            made.append(model)
            return model, {"missing_keys": [], "mismatched_keys": [], **info}

    return Auto


@contextlib.contextmanager
def transformers_with(**named: Any) -> Iterator[None]:
    for part in ("modeling_utils", "models.auto.modeling_auto"):  # which import what stands in its place meanwhile
        importlib.import_module(f"transformers.{part}")
    for name in (*named, "AutoProcessor"):
        getattr(sys.modules["transformers"], name)  # the first look at a name may make the module anew
    library = sys.modules["transformers"]
    before = {name: getattr(library, name) for name in named}
    vars(library).update(named)
    try:
        yield
    finally:
        vars(library).update(before)


class Decoding:
    """Another way to decode."""

    refusals = ()

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __repr__(self) -> str:
        return "Decoding()"

    def ready(self, config: Any, checkpoint: Any) -> None:
        self.seen.append(["ready", config.model, checkpoint.vocabulary])

    def hf_loop(self, model: Any, config: Any, checkpoint: Any) -> Any:
        self.seen.append(["loop", type(model).__name__, config.model, checkpoint.vocabulary])
        return "a loop"

    def vllm_arguments(self) -> dict[str, Any]:
        return {"speculative_config": "ngram", "dtype": "theirs"}

    @contextlib.contextmanager
    def vllm_run(self, llm: Any, prompts: Mapping[str, Any]) -> Iterator[None]:
        self.seen.append(["run", type(llm).__name__, {name: plain(one.token_ids) for name, one in prompts.items()}])
        yield
        self.seen.append("over")


def loaded(info: Mapping[str, Any] = {}, cuda: bool = False, pictures: bool = False, **fields: Any) -> Any:
    import torch

    made: list[Any] = []
    checkpoint = letters(**fields)
    if pictures:
        checkpoint = dataclasses.replace(checkpoint, processor=1)
    auto, other = auto_of(info, made), auto_of({"missing_keys": ["of another class"]}, made)
    kinds = {"AutoModelForCausalLM": auto, "AutoModelForImageTextToText": other}
    if pictures:
        kinds = {"AutoModelForCausalLM": other, "AutoModelForImageTextToText": auto}
    before, torch.cuda.is_available = torch.cuda.is_available, lambda: cuda
    try:
        with transformers_with(**kinds):
            backend = own.HfBackend(checkpoint.settings, checkpoint)
    finally:
        torch.cuda.is_available = before
    generation = backend.model.generation_config
    seen = [backend.model.seen, generation.pad_token_id, bool(generation.do_sample), backend.most_rows, backend.budget]
    loop = backend.loop if isinstance(backend.loop, str) else backend.loop.__name__
    backend.close()
    return [
        *seen,
        loop,
        backend.grammars,
        backend.adapter,
        backend.name,
        [backend.model, backend.loop, backend.grammars],
    ]


@fills("hf-loads")
def hf_loads() -> Any:
    rows: dict[str, dict[str, Any]] = {
        "usual": {},
        "cuda": {"cuda": True},
        "device": {"cuda": True, "device": "cuda:1"},
        "attention": {"attn_implementation": "eager"},
        "hub": {"revision": "r1", "trust_remote_code": True},
        "map": {"cuda": True, "hf_kwargs": {"device_map": "auto", "a": 1}},
        "limits": {"max_batch_size": 3, "max_batch_tokens": 99},
        "pictures": {"pictures": True},
        "decoder": {"decoder": Decoding()},
        "missing": {"info": {"missing_keys": ["b", "a"], "mismatched_keys": [("c", 1)]}},
        "mismatched": {"info": {"mismatched_keys": ["c"]}},
        "many missing": {"info": {"missing_keys": [f"w{n}" for n in range(9)]}},
    }
    decoder = rows["decoder"]["decoder"]
    return {**{name: said(loaded, **dict(row)) for name, row in rows.items()}, "decoding": decoder.seen}


class Known:
    """A config of a model that transformers knows."""


def weights_checked(accelerate: bool = True, known: bool = True, missing: bool = False, **fields: Any) -> Any:
    made: list[Any] = []
    info = {"missing_keys": ["a.b"]} if missing else {}
    config = Known()
    vars(config).update(fields.pop("config", {}))
    checkpoint = dataclasses.replace(letters(**fields), config=config)
    auto = auto_of(info, made, (Known,) if known else ())
    spec = module("accelerate") if accelerate else None
    with transformers_with(AutoModelForCausalLM=auto), modules(accelerate=spec), log_kept() as lines:
        result = said(own.check_weights, checkpoint)
    return [result, [one.seen for one in made], lines]


# == vLLM: what it is given, and what is made of what it gives ==


class Params:
    """vLLM's SamplingParams, of a release that copies them."""

    def __init__(self, **named: Any) -> None:
        self.named = named


class ParamsOfToday(Params):
    skip_clone = False


KINDS_OF_OUTPUT = config_of(DELTA="delta", FINAL_ONLY="final")


class Structures:
    def __init__(self, **named: Any) -> None:
        self.named = named


def told_of(value: Any) -> Any:
    """What a call of vLLM was given."""
    if isinstance(value, (Structures, Params)):
        return {**plain({name: told_of(one) for name, one in value.named.items()}), **plain(own_fields(value))}
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, Mapping):
        return {name: told_of(one) for name, one in value.items()}
    return plain(value)


def own_fields(value: Any) -> dict[str, Any]:
    return {name: one for name, one in vars(value).items() if name != "named"}


class Output:
    """vLLM's of a row: new ids, and whether it is over."""

    def __init__(self, name: str, ids: Sequence[int], finished: bool, logprobs: Any = None) -> None:
        self.request_id, self.finished = name, finished
        self.prompt_token_ids = [7, 7]
        self.outputs = [config_of(token_ids=list(ids), logprobs=logprobs)]


class Llm(Calls):
    """vLLM's engine, which gives what is written.

    script: for each step what it gives, or an error.   refuses: ids of prompts.
    names: whether it returns its inner ids.
    """

    def __init__(self, script: Sequence[Any] = (), refuses: Any = (), names: bool = True, inside: bool = True) -> None:
        super().__init__()
        self.script, self.refuses, self.names = list(script), refuses, names
        self.output_processor = config_of(request_states={})
        self.scheduled: dict[str, Any] = {}
        core = config_of(scheduler=config_of(requests=self.scheduled)) if inside else None
        self.engine_core = config_of(engine_core=core, shutdown=lambda: self.note("shutdown"))
        self.llm_engine, self.vllm_config = self, "config"
        self.caches = [Cache(), Cache()]

    def add_request(self, name: str, inputs: Any, params: Any, lora_request: Any = None) -> Any:
        self.note("add", name, told_of(inputs), told_of(params), lora_request)
        if inputs["prompt_token_ids"] == self.refuses:
            raise ValueError("too odd")
        internal = f"{name}-inside"
        self.output_processor.request_states[internal] = name
        self.scheduled[internal] = config_of(num_nans_in_logits=0)
        return internal if self.names else None

    def has_unfinished_requests(self) -> bool:
        return bool(self.script)

    def step(self) -> list[Output]:
        given = self.script.pop(0)
        if isinstance(given, Exception):
            raise given
        for output in given:
            if output.outputs[0].token_ids == [29]:  # which stands for logits that are no numbers
                self.scheduled[f"{output.request_id}-inside"].num_nans_in_logits = 3
            if output.finished:
                self.output_processor.request_states.pop(f"{output.request_id}-inside", None)
        return list(given)

    def abort_request(self, ids: Any, internal: bool = False) -> None:
        self.note("abort", ids, internal=internal)
        for name in ids:
            self.output_processor.request_states.pop(name, None)

    def reset_prefix_cache(self) -> None:
        self.note("reset")

    def collective_rpc(self, function: Callable[[Any], Any]) -> list[Any]:
        worker = config_of(model_runner=config_of(kv_caches=self.caches))
        function(worker)
        self.note("rpc", [cache.zeroed for cache in self.caches])
        return []


class Cache:
    zeroed = 0

    def zero_(self) -> None:
        self.zeroed += 1


class Vllm(Calls):
    """The modules of a vLLM that is written here."""

    def __init__(self, llm: Llm | None = None, cpu: bool = True, params: type[Params] = ParamsOfToday) -> None:
        super().__init__()
        self.llm, self.cpu, self.params, self.grouped, self.config = llm or Llm(), cpu, params, True, None

    def made(self, **named: Any) -> Llm:
        settings = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_COMPUTE_NANS_IN_LOGITS", "VLLM_USE_V2_MODEL_RUNNER")
        self.note("LLM", told_of(named), {name: os.environ.get(name) for name in settings})
        return self.llm

    @contextlib.contextmanager
    def configured(self, config: Any) -> Iterator[None]:
        self.note("config", config)
        yield
        self.note("no config")

    def distributed(self, config: Any, rank: Any, address: str, local: Any, backend: Any) -> None:
        self.note(
            "groups", config, rank, address.rpartition(":")[0], address.rpartition(":")[2].isdigit(), local, backend
        )
        self.grouped = True

    def modules(self) -> dict[str, Any]:
        base = type("AdapterLogitsProcessor", (), {})
        return {
            **fake_vllm("0.32.0", self.cpu),
            "vllm": module("vllm", __version__="0.32.0", LLM=self.made),
            "vllm__config": module(
                "vllm.config",
                set_current_vllm_config=self.configured,
                get_current_vllm_config_or_none=lambda: self.config,
            ),
            "vllm__sampling_params": module(
                "vllm.sampling_params",
                SamplingParams=self.params,
                StructuredOutputsParams=Structures,
                RequestOutputKind=KINDS_OF_OUTPUT,
            ),
            "vllm__distributed__parallel_state": module(
                "vllm.distributed.parallel_state", model_parallel_is_initialized=lambda: self.grouped
            ),
            "vllm__v1__worker__gpu_worker": module(
                "vllm.v1.worker.gpu_worker", init_worker_distributed_environment=self.distributed
            ),
            "vllm__v1__sample__logits_processor": module(
                "vllm.v1.sample.logits_processor", AdapterLogitsProcessor=base
            ),
        }


def vllm_backend(library: Vllm, checkpoint: own.Checkpoint | None = None, **fields: Any) -> own.VllmBackend:
    checkpoint = checkpoint or letters(backend="vllm", **fields)
    return own.VllmBackend(
        checkpoint.settings, dataclasses.replace(checkpoint, config=config_of(quantization_config=1))
    )


def vllm_loaded(cpu: bool = True, environment: Mapping[str, str] = {}, terminal: bool = False, **fields: Any) -> Any:
    library, stderr = Vllm(cpu=cpu), sys.stderr
    before = {name: os.environ.pop(name, None) for name in (*environment, "VLLM_COMPUTE_NANS_IN_LOGITS")}
    os.environ.update(environment)
    sys.stderr = Stream(terminal)
    try:
        with modules(**library.modules()):
            backend = vllm_backend(library, **fields)
            left = sorted(
                name
                for name in os.environ
                if name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_COMPUTE_NANS_IN_LOGITS", "VLLM_USE_V2_MODEL_RUNNER")
            )
            parts = [backend.corrupt, backend.grouped, next(backend.names), plain(backend.adapters), backend.name]
            backend.forget()
            backend.close()
            backend.forget()
            backend.close()
        return [library.seen, parts, left, library.llm.seen, backend.model]
    finally:
        sys.stderr = stderr
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@fills("vllm-loads")
def vllm_loads() -> Any:
    rows: dict[str, dict[str, Any]] = {
        "usual": {},
        "gpu": {"cpu": False},
        "hooks": {"logits_hooks": True},
        "terminal": {"terminal": True},
        "no bar": {"terminal": True, "progress": False},
        "hub": {"revision": "r1", "trust_remote_code": True, "max_model_len": 9},
        "keywords": {"vllm_kwargs": {"max_num_seqs": 3, "enforce_eager": "theirs"}},
        "processors": {"vllm_kwargs": {"logits_processors": ["mine"]}, "logits_hooks": True},
        "processors without hooks": {"vllm_kwargs": {"logits_processors": ["mine"]}},
        "decoder": {"decoder": Decoding(), "vllm_kwargs": {"speculative": 1}},
        "environment": {"environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, "logits_hooks": True},
    }
    checks: dict[str, dict[str, Any]] = {
        "usual": {},
        "missing": {"missing": True},
        "unknown": {"missing": True, "known": False},
        "quantized": {"missing": True, "config": {"quantization_config": {}}},
        "not quantized": {"config": {"quantization_config": None}},
        "load_format": {"missing": True, "vllm_kwargs": {"load_format": "dummy"}},
        "no accelerate": {"accelerate": False, "missing": True},
        "hub": {"revision": "r1", "trust_remote_code": True},
    }
    return {
        **{name: said(vllm_loaded, **dict(row)) for name, row in rows.items()},
        "weights": {name: weights_checked(**dict(row)) for name, row in checks.items()},
        "patched classes": patched(),
    }


def patched() -> Any:
    """A class that vLLM patched asks for vLLM's config only while there is one."""
    seen: list[str] = []

    class Base:
        def __init__(self, *args: Any, **named: Any) -> None:
            seen.append(f"base {args} {named}")

    class Child(Base):
        def __init__(self, *args: Any, **named: Any) -> None:
            seen.append(f"child {args} {named}")

    class Grandchild(Child):
        pass

    def decorated(kind: Any) -> None:
        old_init = kind.__init__

        def init(self: Any, *args: Any, **named: Any) -> None:
            seen.append("asks vLLM")
            old_init(self, *args, **named)

        init.__module__ = "vllm.compilation.decorators"
        kind.__init__ = init

    decorated(Child)
    library = Vllm()
    with modules(**library.modules()):
        own.undo_vllm_class_patch(Base, sys.modules["vllm.config"])
        for library.config in (None, "a config"):
            Base(1)
            Child(2, a=3)
            Grandchild()
    return [seen, Base.do_not_compile]  # type: ignore[attr-defined]


PARAMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "everything": {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "seed": 4,
        "logprobs": 2,
        "stop": {"token_ids": [5]},
    },
    "strings": {"stop": ["ab"]},
    "no ends": {"min_new_tokens": 2, "stop": {"ignore_eos": True}},
    "ids": {"stop": {"token_ids": [3]}},
    "logits": {"logits": True},
    "ngrams": {"no_repeat_ngram_size": 2},
    "chosen": {"logprobs": 0},
}


def params_made(name: str, stepwise: bool = False, plugins: Any = (), kind: Any = ParamsOfToday, **fields: Any) -> Any:
    hooks = fields.pop("hooks", False)
    checkpoint = letters(logits_hooks=hooks)
    plan = plan_of(checkpoint, own.adopt_plugins(plugins), **PARAMS[name])
    prompt = bare_prompt(**{"seed": plan.options.seed, **fields})
    with modules(**Vllm(params=kind).modules()):
        made = own.sampling_params(plan, prompt, own.RowWatch(plan, prompt), stepwise=stepwise)
    said_all = told_of(made)
    extra = said_all.get("extra_args")
    return {**said_all, "extra_args": sorted(extra) if extra else extra}


def without_seed(params: dict[str, Any]) -> dict[str, Any]:
    seed = params["seed"]
    return {**params, "seed": isinstance(seed, int) and 0 <= seed < 2**32}


@fills("vllm-params")
def vllm_params() -> Any:
    red = Image.new("RGB", (2, 1), "red")
    entries = [
        {5: config_of(logprob=-0.5, rank=2), 3: config_of(logprob=-0.25, rank=1), 4: config_of(logprob=-2.0, rank=3)},
        {3: config_of(logprob=-0.125, rank=1)},
    ]
    recorded = []
    for count in (0, 1, 2, 3):
        watch = own.RowWatch(plan_of(letters(), logprobs=count), bare_prompt())
        own.record_logprobs(watch, entries)
        recorded.append([watch.logprobs, [list(map(list, top.items())) for top in watch.top_logprobs]])
    watched_rows = [
        ({}, {}, ()),
        ({"stop": ["ab"]}, {}, ()),
        ({}, {}, [Few()]),
        ({}, {"structured": "x"}, ()),
        ({"stop": {"token_ids": [3]}}, {"structured": "x"}, ()),
        ({"stop": {"token_ids": [3]}}, {}, ()),
    ]
    return {
        "params": {name: params_made(name) for name in PARAMS},
        "steps": params_made("usual", True),
        "a plugin": params_made("usual", plugins=[Few()]),
        "structured": params_made("ids", structured="root ::= x"),
        "structured and ignored": params_made("no ends", structured="root ::= x"),
        "a sample": without_seed(params_made("everything", seed=None)),
        "a replay": params_made("everything", replay=(5, 6)),
        "hooks": [params_made(name, hooks=True) for name in ("usual", "logits", "ngrams")],
        "older": params_made("usual", kind=Params),
        "inputs": [
            plain(own.vllm_inputs(bare_prompt(**how))) for how in ({}, {"images": (red,), "image_kwargs": {"a": 1}})
        ],
        "logprobs": recorded,
        "watched": [
            own.is_watched(plan_of(letters(), own.adopt_plugins(hooks), **how), bare_prompt(**more))
            for how, more, hooks in watched_rows
        ],
    }


def asked_vllm(
    llm: Llm,
    texts: Sequence[str],
    *,
    observer: Any = None,
    decoder: Any = None,
    broken: Any = None,
    adapters: Mapping[str, Any] | None = None,
    more: Any = None,
    structured: Any = None,
    plugins: Any = (),
    names: Sequence[Any] = (),
    **options: Any,
) -> Any:
    library = Vllm(llm)
    with modules(**library.modules()):
        backend = vllm_backend(library, decoder=decoder)
        backend.adapters = adapters or {}
        library.grouped = broken != "groups"
        plan = plan_of(letters(), own.adopt_plugins(plugins), **options)
        left = [[bare_prompt(token_ids=tuple(ids_of(text)))] for text in more or ()]
        call, answers, watcher = call_of(plan, more=lambda: left.pop(0) if left else [])
        if observer == "nobody":
            call = dataclasses.replace(call, observer=own.NOBODY)
        if broken == "busy":
            llm.output_processor.request_states["other"] = "other"
        given = [bare_prompt(token_ids=tuple(ids_of(text)), structured=structured) for text in texts]
        given = [dataclasses.replace(one, adapter=name) for one, name in zip(given, [*names, *[None] * len(given)])]
        result = said(backend.complete, given, call)
        states = sorted(llm.output_processor.request_states)
    kept = [[one[0], one[1] if one[0] != "add" else [*one[1][:2], one[1][3]], one[2]] for one in llm.seen]
    groups = [one for one in library.seen if one[0] not in ("LLM",)]
    return [result, answers.told(), kept, watcher.seen, states, backend.corrupt, groups]


@fills("vllm-runs")
def vllm_runs() -> Any:
    def out(name: int, ids: Sequence[int], finished: bool = False, **more: Any) -> Output:
        return Output(str(name), ids, finished, **more)

    logprobs = [{5: config_of(logprob=-0.5, rank=1)}, {0: config_of(logprob=-0.25, rank=1)}]
    decoder = Decoding()
    return {
        "two rows": asked_vllm(Llm([[out(0, [1, 2])], [out(1, [0], True), out(0, [3], True)]]), ["a", "b"]),
        "nobody": asked_vllm(Llm([[out(0, [1, 0], True)]]), ["a"], observer="nobody"),
        "a stop of ours": asked_vllm(Llm([[out(0, [1, 2, 3, 4])], [out(0, [5])]]), ["a"], stop=["bc"]),
        "an output of another": asked_vllm(Llm([[out(5, [1]), out(0, [0], True)]]), ["a"]),
        "logprobs": asked_vllm(Llm([[out(0, [5, 0], True, logprobs=logprobs)]]), ["a"], logprobs=1),
        "a step that breaks": asked_vllm(Llm([[out(0, [1])], RuntimeError("a bug")]), ["a", "b"]),
        "one that is refused": asked_vllm(Llm([[out(1, [0], True)]], refuses=[1]), ["a", "b"]),
        "older": asked_vllm(Llm([[out(0, [0], True)]], names=False), ["a"]),
        "no numbers": asked_vllm(Llm([[out(0, [29])], [out(1, [0], True)]]), ["a", "b"]),
        "joining": asked_vllm(Llm([[out(0, [1])], [out(0, [0], True)], [out(1, [0], True)]]), ["a"], more=["c"]),
        "left behind": asked_vllm(Llm([[out(0, [1])]]), ["a"]),
        "adapters": asked_vllm(
            Llm([[out(0, [0], True), out(1, [0], True)]]), ["a", "b"], adapters={"law": "LAW"}, names=["law", None]
        ),
        "decoder": [asked_vllm(Llm([[out(0, [0], True)]]), ["a"], decoder=decoder), decoder.seen],
        "groups": asked_vllm(Llm([[out(0, [0], True)]]), ["a"], broken="groups"),
        "busy": asked_vllm(Llm([]), ["a"], broken="busy"),
        "a plugin": asked_vllm(Llm([[out(0, [1, 2])], [out(0, [3])], [out(0, [4])]]), ["a"], plugins=[Few()]),
        "untouched": rng_of_run(out),
    }


def rng_of_run(out: Any) -> bool:
    import torch

    torch.manual_seed(3)
    first = float(torch.rand(()))
    torch.manual_seed(3)

    class Drawing(Llm):
        def step(self) -> list[Output]:
            torch.rand(5)
            return super().step()

    asked_vllm(Drawing([[out(0, [0], True)]]), ["a"])
    return first == float(torch.rand(()))


# == The engine ==


class Bar:
    """tqdm's, which notes."""

    made: ClassVar[list[Any]] = []

    def __init__(self, **named: Any) -> None:
        Bar.made.append({**plain(named), "updates": 0})

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def update(self) -> None:
        Bar.made[-1]["updates"] += 1


def engine_of(**fields: Any) -> own.GenerationEngine:
    return own.load(SURE, **{"dtype": "float32", **fields})


def answer_of(result: Any) -> Any:
    if isinstance(result, own.GenEngineError):
        return told(result)
    words = ["text", "finish_reason", "stop_reason", "backend", "cached", "fallback_from", "weight_version", "notes"]
    return [plain(getattr(result, name)) for name in words] + [
        result.prompt_tokens,
        result.completion_tokens,
        len(result.samples),
    ]


def answers_of(engine: own.GenerationEngine, requests: Any, options: Any = None, **how: Any) -> Any:
    try:
        return [answer_of(one) for one in engine.generate_text_batch(requests, options, **how)]
    except own.GenEngineError as error:
        return told(error)


PARIS = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
COUNT = {"messages": [{"role": "user", "content": "Count to 5."}]}
FEW_TOKENS: dict[str, Any] = {"max_new_tokens": 3, "stop": {"ignore_eos": True}}


@fills("engines")
def engines() -> Any:
    """What an engine tells of itself, and what it does with calls that cannot be."""
    engine = engine_of(progress=False)
    hello = [PARIS]
    found = {
        "described": {name: value for name, value in engine.describe().items() if name != "gen_engine"},
        "version": engine.describe()["gen_engine"] == own.__version__,
        "effective": [engine.effective()["max_new_tokens"], engine.effective({"top_k": 3}, plugins=[Few()])["plugins"]],
        "requests": [
            said(engine._generate, one, own.TextGenerationRequest, None, (), "raise", True)
            for one in ("Hello", COUNT, [], None)
        ],
        "on_error": [
            answers_of(engine, hello, FEW_TOKENS, on_error=one) for one in ("ignore", None, "return", "raise")
        ],
        "cache": [answers_of(engine, hello, FEW_TOKENS, cache=one) for one in (None, 1, "yes", False)],
        "mixed": answers_of(engine, [*hello, {}, {**COUNT, "seed": -1}, *hello], FEW_TOKENS, on_error="return"),
        "mixed, raised": answers_of(engine, [*hello, {}, {**COUNT, "seed": -1}], FEW_TOKENS),
        "samples": [
            [answer_of(sample) for sample in one.samples]
            for one in engine.generate_text_batch(hello, {**FEW_TOKENS, "n": 2, "temperature": 1.0, "seed": 3})
        ],
        "no pictures": said(engine.generate_vlm_batch, [{"prompt": "a", "images": ["a"]}]),
        "scores": [
            said(lambda: plain(engine.score_batch([["a", "b"]], boundary=one)[0].token_ids))  # noqa: B023
            for one in ("ids", "text", "words")
        ],
        "options": [answers_of(engine, hello, one) for one in ({"top_q": 1},)],
        "plugins": [answers_of(engine, hello, FEW_TOKENS, plugins=one) for one in ([Few()], [], Few(), [Criteria()])],
        "rendered": engine.render([ONE], chat={"add_generation_prompt": False}),
    }
    engine.close()
    calls: list[Any] = [
        lambda: engine.generate_text_batch(hello),
        lambda: engine.score_batch([("a", "b")]),
        lambda: engine.effective(),
        lambda: engine.update_weights({}),
        lambda: engine.__enter__(),
        lambda: engine.observed(own.NOBODY).__enter__(),
        lambda: engine.bare().__enter__(),
        lambda: engine.generate_vlm_batch([]),
        lambda: engine.close(),
    ]
    found["closed"] = [said(one) for one in calls]
    found["loads"] = loads_refused()
    return found


def loads_refused() -> Any:
    return [
        said(own.load, {"model": LLAMA, "backend": "hf", "vllm_kwargs": {"a": 1}}),
        said(own.load, own.ModelLoadConfig(model=LLAMA), vllm_kwargs={"a": 1}),
        said(own.load, Path(LLAMA), bakend="hf"),
        said(own.load, 3),
        said(own.load, None),
        said(own.load, "/no/such"),
        said(own.load, LLAMA, max_model_len=513),
    ]


@fills("events")
def events() -> Any:
    """What an observer is told, and a bar."""
    watcher, engine = Watcher(), engine_of(max_batch_size=1)
    requests = [PARIS, {}, COUNT, COUNT]
    with engine.observed(watcher):
        twice = said(lambda: engine.observed(own.NOBODY).__enter__())
        engine.generate_text_batch(requests, FEW_TOKENS, on_error="return")
    engine.generate_text_batch(requests[:1], FEW_TOKENS)
    Bar.made = []
    with modules(tqdm=module("tqdm", tqdm=Bar)):
        engine.generate_text_batch(requests, {**FEW_TOKENS, "n": 2}, on_error="return")
        engine.generate_text_batch([], FEW_TOKENS)
    made = list(Bar.made)
    try:
        with engine.observed(watcher):
            raise KeyError("theirs")
    except KeyError:
        again = engine.observer is own.NOBODY
    engine.close()
    return {"seen": watcher.seen, "twice": twice, "bars": made, "again": again, "silent": silent_bar()}


def silent_bar() -> Any:
    Bar.made = []
    with engine_of(progress=False) as engine, modules(tqdm=module("tqdm", tqdm=Bar)):
        engine.generate_text_batch([PARIS], FEW_TOKENS)
    return list(Bar.made)


def changed_weights(engine: own.GenerationEngine) -> dict[str, Any]:
    return {name: tensor * 0 for name, tensor in engine.model.state_dict().items() if "embed" in name}


@fills("weights")
def weights() -> Any:
    """Answers of a store before and after the weights change."""
    store: dict[str, str] = {}
    engine = engine_of(cache=store)
    hello, options = [PARIS], FEW_TOKENS
    forgotten = Calls()
    engine.backend.forget = lambda: forgotten.note("forget")
    found: dict[str, Any] = {"first": [answers_of(engine, hello, options) for _ in range(2)]}
    found["unread"] = answers_of(engine, hello, options, cache=False)
    with engine.bare(read_only=True) as model:
        found["bare"] = [model is engine.model, engine.model is engine.backend.model]
    found["read only"] = [answers_of(engine, hello, options)[0][4], len(forgotten.seen)]
    with engine.bare():
        pass
    [cached, fallback_from, version] = answers_of(engine, hello, options)[0][4:7]
    found["written"] = [cached, fallback_from, len(version), len(forgotten.seen)]
    engine.update_weights(changed_weights(engine), version="step 1")
    found["named"] = [answers_of(engine, hello, options) for _ in range(2)]
    engine.update_weights({})
    random_one = answers_of(engine, hello, options)[0][6]
    found["random"] = [
        len(random_one),
        random_one != "step 1",
        engine.weight_version == random_one,
        len(forgotten.seen),
    ]
    found["versions"] = len({own.random_version() for _ in range(3)})
    found["wrong"] = [
        said(engine.update_weights, one) for one in ({"no.such": changed_weights(engine).popitem()[1]}, [3])
    ]
    found["raised"] = raised_inside(engine, forgotten)
    found["samples"] = [one[4] for one in answers_of(engine, hello * 2, {**options, "temperature": 1.0})]
    found["stored"] = len(store)
    engine.close()
    return found


def raised_inside(engine: own.GenerationEngine, forgotten: Calls) -> list[Any]:
    before = len(forgotten.seen)
    with contextlib.suppress(KeyError), engine.bare():
        raise KeyError("theirs")
    return [len(forgotten.seen) - before, answers_of(engine, [PARIS], FEW_TOKENS)[0][4]]


class RefusingCalls:
    """A decoder whose rows an engine with a spare refuses, and the spare does not."""

    def __init__(self) -> None:
        self.refusals = (own.Refusal("hf", "that", self.asked, "do this"),)

    def asked(self, asked: own.Asked) -> bool:
        return asked.config.fallback_backend is not None and bool(asked.prompts)

    def ready(self, config: Any, checkpoint: Any) -> None:
        return None

    def hf_loop(self, model: Any, config: Any, checkpoint: Any) -> Any:
        return own.DecodeLoop


class RefusingLoads(RefusingCalls):
    def asked(self, asked: own.Asked) -> bool:
        return asked.config.fallback_backend is not None


class RefusingAll(RefusingCalls):
    def asked(self, asked: own.Asked) -> bool:
        return True


@fills("fallbacks")
def fallbacks() -> Any:
    hello = [PARIS]
    watcher = Watcher()
    with log_kept() as lines:
        engine = engine_of(decoder=RefusingCalls(), fallback_backend="hf")
        with engine.observed(watcher):
            found: dict[str, Any] = {"calls": [answers_of(engine, hello, FEW_TOKENS) for _ in range(2)]}
        found["vlm"] = said(engine.generate_vlm_batch, [])
        spare = engine._fallback
        assert spare is not None
        found["spare"] = [
            spare.describe()["backend_why"],
            spare.fallback_from,
            spare.config.fallback_backend,
            engine.describe()["backend_why"],
        ]
        engine.update_weights({}, version="2")
        found["with new weights"] = answers_of(engine, hello, FEW_TOKENS)
        engine.close()
        found["closed"] = [said(spare.effective), said(engine.effective)]
        with engine_of(decoder=RefusingLoads(), fallback_backend="hf") as other:
            found["at load"] = [
                other.describe()["backend_why"],
                other.fallback_from,
                answers_of(other, hello, FEW_TOKENS),
            ]
        found["nowhere"] = said(engine_of, decoder=RefusingAll(), fallback_backend="hf")
        found["no spare"] = said(engine_of, decoder=RefusingAll())
    return {**found, "seen": watcher.seen, "logged": lines, "auto": automatic()}


def automatic() -> Any:
    """Which backend is chosen, and why."""
    found: dict[str, Any] = {}
    rows: dict[str, Any] = {
        "not installed": {"vllm": None},
        "no device": fake_vllm("0.32.0", device=""),
        "too old": fake_vllm("0.10.0"),
    }
    for name, fakes in rows.items():
        with modules(**fakes), engine_of(backend="auto", vllm_kwargs={"a": 1}) as engine:
            said_so = engine.describe()
            found[name] = [
                said_so["backend"],
                said_so["backend_why"],
                engine.fallback_from,
                plain(engine.config.vllm_kwargs),
            ]
    return found


@fills("command")
def command() -> Any:
    """The file as a command."""
    import runpy

    stream, stdout = io.StringIO(), sys.stdout
    sys.stdout = stream
    try:
        runpy.run_path(str(own.__file__), run_name="__main__")
    finally:
        sys.stdout = stdout
    return {"said": stream.getvalue().replace(own.__version__, "VERSION")}


# == What is declared ==


def parameters_of(kind: Any) -> list[Any]:
    """Of each field whether it is printed, compared and an argument, and its default."""
    rows = []
    for one in dataclasses.fields(kind):
        default = None if one.default is dataclasses.MISSING else plain(one.default)
        rows.append([one.name, str(one.repr), str(one.compare), str(one.init), default])
    return rows


@fills("declared")
def declared() -> Any:
    """What whoever reads the declarations sees: fields, defaults, names."""
    contracts = [*CONTRACTS.values(), own.GenerationResult, own.ScoreResult, own.Capabilities, own.Checkpoint, own.Plan]
    contracts += [own.Prompt, own.Completion, own.Ending, own.Call, own.Row]
    named = [own.Rule, own.Rendered, own.Asked, own.Refusal]
    names = ("name", "backends", "kinds", "should_stop", "logits", "post_decode", "hf_stopping_criteria")
    return {
        "fields": {kind.__name__: parameters_of(kind) for kind in contracts},
        "defaults": {kind.__name__: {key: plain(one) for key, one in kind._field_defaults.items()} for kind in named},
        "plugin": {name: plain(getattr(own.Plugin, name)) for name in (*names, "hf_logits_processors")},
        "literals": {
            name: list(getattr(own, name).__args__) for name in ("FinishReason", "OnError", "Backend", "DType")
        },
        "logger": own.log.name,
        "remembered": [own.takes.cache_info().maxsize, own.warn_once.cache_info().maxsize],
        "backends": {name: kind.__name__ for name, kind in own.BACKENDS.items()},
        "observer": [
            type(own.NOBODY).__name__,
            type(own.NOBODY.timed("verify")).__name__,
            own.NOBODY.arrived("hf", ()),
        ],
        "verbs": [
            own.generate_text_batch.__name__,
            own.generate_vlm_batch.__name__,
            own.score_batch.__name__,
            own.GenerationEngine.render is own.render,
        ],
        "kinds": [own.DecodeLoop.batch_kind.__name__, own.HfBackend.name, own.VllmBackend.name],
        "words": {"ROLES": list(own.ROLES), "PART_TYPES": list(own.PART_TYPES), "IMAGE_FIELDS": list(own.IMAGE_FIELDS)},
        "inputs": [list(own.ALIGNED), list(own.IMAGE_INPUTS), list(own.COLUMN_INPUTS)],
    }


# == Readers of a checkpoint ==


class Reader(Calls):
    """One of transformers' classes that read a checkpoint."""

    def __init__(self, gives: Any) -> None:
        super().__init__()
        self.gives = gives

    def from_pretrained(self, name: str, **named: Any) -> Any:
        self.note("read", name, **named)
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


class Tokens:
    """A tokenizer without ids of its own."""

    pad_token_id = eos_token_id = None
    padding_side = truncation_side = "right"

    def __len__(self) -> int:
        return 7

    def get_vocab(self) -> dict[str, int]:
        return dict.fromkeys("abcdefg", 0)

    def get_added_vocab(self) -> dict[str, int]:
        return {}


@contextlib.contextmanager
def in_folder_with(file: str) -> Iterator[None]:
    """Work in a folder in which there is this file, empty."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, file)
        made.parent.mkdir()
        made.touch()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def readers_of(generation: Any = None, **config: Any) -> Any:
    inner = config_of(**config.pop("inner", {}))
    outer = config_of(model_type="llama", get_text_config=lambda: inner, **config)
    tokens = Tokens()
    known = {
        "AutoConfig": Reader(outer),
        "AutoTokenizer": Reader(tokens),
        "AutoProcessor": Reader(config_of(tokenizer=tokens)),
        "GenerationConfig": Reader(generation or OSError("none")),
    }
    settings = own.ModelLoadConfig(model="golden", revision="r1", trust_remote_code=True)
    with transformers_with(**known), in_folder_with("golden/config.json"):
        try:
            made = own.read_checkpoint(settings)
        except own.GenEngineError as error:
            return told(error)
    ends = [plain(made.eos_ids), made.pad_id, made.tokenizer.pad_token_id, made.dtype, made.window, made.vocabulary]
    sides = [made.tokenizer.padding_side, made.tokenizer.truncation_side, made.processor is None, made.config is outer]
    return [ends, sides, made.settings is settings, {name: one.seen for name, one in known.items()}]


@fills("readers")
def readers() -> Any:
    broken = OSError("no JSON")
    broken.__context__ = json.JSONDecodeError("a", "b", 0)
    undecoded = OSError("no text")
    undecoded.__context__ = UnicodeDecodeError("utf-8", b"a", 0, 1, "b")
    return {
        "nothing": readers_of(),
        "ends": readers_of(
            config_of(eos_token_id=[3, 9], pad_token_id=5), eos_token_id=1, inner={"eos_token_id": (2, 1)}
        ),
        "an end as a pad": readers_of(inner={"eos_token_id": 4, "vocab_size": 5}),
        "dtype": readers_of(dtype="float16", inner={"max_position_embeddings": 9}),
        "dtype inside": readers_of(inner={"dtype": "bfloat16", "vocab_size": 3}),
        "pictures": readers_of(vision_config=1),
        "broken": [readers_of(one) for one in (broken, undecoded, OSError("gone"))],
    }


# == Details ==


def kinds_in(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [kinds_in(one) for one in value]
    if isinstance(value, Mapping):
        return [[type(key).__name__, kinds_in(one)] for key, one in value.items()]
    return type(value).__name__


class Spelling(Cleaning):
    """Letters with a template, and a placeholder for images."""

    chat_template = "tools enable_thinking"

    def apply_chat_template(self, conversation: Any, **named: Any) -> str:
        self.seen.append([plain(conversation), plain(named)])
        return "ab" + "c" * len(named.get("tools", ()))

    def convert_tokens_to_ids(self, token: str) -> int:
        return {"<i>": 26}[token]


def spelled(request: Mapping[str, Any]) -> Any:
    checkpoint = dataclasses.replace(letters(), tokenizer=Spelling())
    made = prompt_made(checkpoint, request, max_new_tokens=4)
    return [made["token_ids"], made["notes"], plain(made["messages"]), checkpoint.tokenizer.seen[:1]]


def pictured(window: int, vlm: Mapping[str, Any], **options: Any) -> Any:
    """A prompt with two pictures, of 32 + 16 tokens by the arithmetic of `Patches`."""
    checkpoint = dataclasses.replace(seeing(Patches()), tokenizer=Spelling(), window=window)
    images = [Image.new("RGB", (8, 4)), Image.new("RGB", (4, 4))]
    request = {"prompt_token_ids": [1, 26, 2, 26], "images": images, "vlm": vlm}
    return said(prompt_made, checkpoint, request, **{"max_new_tokens": 4, **options})


def plugin_ended() -> Any:
    plan = plan_of(letters(), own.adopt_plugins([Few()]))
    watch = own.RowWatch(plan, bare_prompt())
    for token_id in (1, 2, 3):
        watch.push(token_id)
    return plain(watch.completion([7]))


def adapters_asked() -> Any:
    """Companions' refusals, beside the engine's own."""
    rows: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "use_dora": true}', "utf-8")
        adapters = {"adapters": {"law": folder}}
        both = {"prompts": [bare_prompt(), bare_prompt(structured="x")]}
        for version in ("0.13.0", "0.32.0"):
            with modules(**fake_vllm(version)):
                asked = [adapters, {**adapters, "device": "cpu"}, {**adapters, "scoring": True}, both]
                rows += [refused("vllm", **dict(one)) for one in (*asked, {**both, "device": "cpu"})]
    return rows


@fills("details")
def details() -> Any:
    cleaning, plan = Cleaning(), None
    own.decode_ids(cleaning, [1, 2])
    own.decode_ids(cleaning, (1,), True, True)
    plan = dataclasses.replace(plan_of(letters(), decode={"clean_up_tokenization_spaces": True}))
    plan.decode([1])
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with modules(PIL=None, PIL__ImageColor=None):
        colours = [said(own.build, own.VlmPreprocessOptions, one) for one in ({}, {"background": "red"})]
    versions = {}
    for version in ("0.21.0rc1", "0.23.0rc1"):
        with modules(odd_library=module("odd_library", __version__=version)):
            versions[version] = own.installed("odd_library>=0.20,<0.23")
    return {
        "decoded": [cleaning.seen, plan.checkpoint.tokenizer.seen],
        "joined and lost": said(rendered, StrictOwner(), [text_parts("a", "b")]),
        "no string but strings": kinds_in(own.plain_strings({Mood.CALM: [Mood.CALM, (Mood.CALM, 1)], "a": None})),
        "colours without a library": colours,
        "before a release": versions,
        "spelled": [
            said(spelled, {"messages": talk, "continue_final": True}),
            said(spelled, {"messages": talk, "tools": [7, 8], "chat": {"enable_thinking": True}}),
        ],
        "pictured": [
            pictured(99_999, {}),
            pictured(99_999, {"do_resize": False}),
            pictured(10, {"do_resize": False}, truncate_prompt=True),
            pictured(9, {"do_resize": False}),
            pictured(8, {"do_resize": False}, truncate_prompt=True),
        ],
        "ended by a plugin": plugin_ended(),
        "adapters": adapters_asked(),
    }


# == Companions, by doubles of them ==


class Companion(Calls):
    """A companion that notes what it is asked for."""

    REFUSALS = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def called(*args: Any, **named: Any) -> Any:
            self.note(name, *map(shown, args), **{key: shown(one) for key, one in named.items()})
            return {"Grammars": self, "matcher": "a matcher", "vllm_arguments": {"enable_lora": True}}.get(
                name, {"a": 1}
            )

        return called


def shown(value: Any) -> Any:
    return plain(value) if isinstance(value, (str, int, float, tuple, dict, type(None))) else type(value).__name__


@contextlib.contextmanager
def companions_as(**named: Any) -> Iterator[None]:
    place = own.companion("forcing").__name__.rpartition(".")[0]
    with modules(**{f"{place}.{name}": one for name, one in named.items()}):
        yield


def beside_hf() -> Any:
    adapters, structured, scoring, decoded = Companion(), Companion(), Companion(), Companion()
    plan = plan_of(small(), logprobs=0)
    with companions_as(adapters=adapters, structured=structured, scoring=scoring):
        loads = loaded(adapters={"law": "golden", "med": "golden"})[6:8]
        backend = bare_backend(checkpoint=letters(adapters={"law": "golden"}))
        backend.adapt("law")
        row = row_of(plan, (1,))
        row.prompt = dataclasses.replace(row.prompt, structured="root ::= x")
        backend._start(row)
        backend._start(row)
        scores = [backend.score([], "how"), backend.adapter]
    with companions_as(structured=decoded):
        import torch

        loop, _, _ = loop_of(plan, ())
        loop.rows = [row_of(plan, (1,)), row_of(plan, (2,), matcher=Grammar([0]))]
        loop.decide(torch.zeros(2, 6), lambda ids, scores: scores, torch.tensor([[1], [2]]))
    seen = [one.seen for one in (adapters, structured, scoring, decoded)]
    return [seen, loads, row.matcher, scores]


def beside_vllm() -> Any:
    adapters, structured, scoring = Companion(), Companion(), Companion()
    fields = {"adapters": {"law": "golden"}}
    out = Output("0", [1], True)
    with companions_as(adapters=adapters, structured=structured, scoring=scoring):
        loads = vllm_loaded(**fields)
        unended = asked_vllm(Llm([[out]]), ["a"], structured="root ::= x")
        free = asked_vllm(Llm([[out]]), ["a"])
        apart = asked_vllm(Llm([[Output("0", [29, 0], True)]], inside=False), ["a"], structured="root ::= x")
        backend = bare_backend()
        scores = own.VllmBackend.score(backend, [], "how")
    return [
        [one.seen for one in (adapters, structured, scoring)],
        loads[0],
        loads[1],
        unended[:3],
        free[1],
        apart[1],
        scores,
    ]


@fills("beside")
def beside() -> Any:
    return {"hf": beside_hf(), "vllm": beside_vllm()}


class Stepping:
    """A model of transformers 4.57 that keeps offsets of its positions, or of today."""

    def __init__(self, keeps: bool) -> None:
        import torch

        self.seen: list[Any] = []
        self.model = config_of(rope_deltas=torch.tensor([[1], [2], [3]])) if keeps else config_of()
        if not keeps:
            self._prefill = self.first

    def first(self, ids: Any, config: Any, state: Any, is_first_iteration: bool) -> Any:
        self.seen.append(["prefill", config, sorted(state), is_first_iteration])
        return self.outputs(ids)

    def outputs(self, ids: Any) -> Any:
        import torch

        return config_of(logits=torch.arange(float(ids.shape[0] * 8)).reshape(ids.shape[0], 2, 4))

    def _get_initial_cache_position(self, length: int, device: Any, state: Any) -> dict[str, Any]:
        return {"cache_position": length}

    def prepare_inputs_for_generation(self, ids: Any, **state: Any) -> dict[str, Any]:
        self.seen.append(["prepare", list(ids.shape), sorted(state), state.get("next_sequence_length")])
        return {"ids": ids}

    def __call__(self, ids: Any, return_dict: bool) -> Any:
        kept = getattr(self.model, "rope_deltas", None)
        self.seen.append(["call", return_dict, None if kept is None else kept.tolist()])
        return self.outputs(ids)

    def _update_model_kwargs_for_generation(self, outputs: Any, state: Any) -> Any:
        return {**state, "updated": True}


def batch_kept(keeps: bool, cache: str) -> Any:
    import torch

    held = Calls()
    held.reorder_cache = lambda places: held.note("reorder", places.tolist())
    state = {
        cache: held,
        "attention_mask": torch.arange(6).reshape(3, 2),
        "position_ids": torch.arange(12).reshape(2, 3, 2),
        "other": torch.arange(3),
        **dict.fromkeys([*own.IMAGE_INPUTS, "mm_token_type_ids"], "pixels"),
    }
    model = Stepping(keeps)
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    unused = {"stopping_criteria": 1, "synced_gpus": 2, "streamer": 3}
    batch = own.Batch(model, ids, "processors", "config", **state, **unused)
    first = [sorted(batch.state), batch.logits, batch.rope, batch.processors, batch.config]
    logits = [batch.forward().logits.shape[1], batch.logits.tolist()]
    model.model.rope_deltas = None
    batch.keep([0, 2])
    batch.forward(2)
    rest = {name: one.tolist() for name, one in batch.state.items() if torch.is_tensor(one)}
    rope = None if batch.rope is None else batch.rope.tolist()
    return [
        first,
        logits,
        sorted(batch.state),
        rest,
        rope,
        batch.ids.tolist(),
        held.seen,
        model.seen,
        batch.cache is held,
    ]


@fills("columns")
def columns() -> Any:
    return {
        f"{keeps} {cache}": batch_kept(keeps, cache)
        for keeps in (True, False)
        for cache in ("cache", "past_key_values")
    }


# == What a caller of the engine writes ==


def signature_of(function: Any) -> list[Any]:
    """The names of its parameters, and their defaults."""
    found = []
    for one in inspect.signature(function).parameters.values():
        default = "none" if one.default is inspect.Parameter.empty else repr(one.default)
        found.append([one.name, one.kind.description, default])
    return found


def public(kind: type) -> dict[str, Any]:
    return {name: one for name, one in vars(kind).items() if not name.startswith("_") and callable(one)}


class Elsewhere:
    """A decoder of which only its name is told."""

    refusals = ()

    def __repr__(self) -> str:
        return "Elsewhere()"

    def ready(self, config: Any, checkpoint: Any) -> None:
        raise RuntimeError(f"{type(config).__name__} of {Path(config.model).name}, {checkpoint.vocabulary} ids")


def living_adapters() -> list[Any]:
    """What the companion of adapters is asked for, and whether earlier answers are forgotten."""
    adapters = Companion()
    with engine_of(cache={}) as engine, companions_as(adapters=adapters):
        answers_of(engine, [PARIS], FEW_TOKENS)
        cached = [answers_of(engine, [PARIS], FEW_TOKENS)[0][4]]
        engine.add_adapter("law", Path("some/folder"))
        cached.append(answers_of(engine, [PARIS], FEW_TOKENS)[0][4])
        engine.remove_adapter("law")
    return [adapters.seen, cached]


@fills("verbs")
def verbs() -> Any:
    """What may be written where an engine is called, and what is handed on of it."""
    functions = [own.load, own.generate_text_batch, own.generate_vlm_batch, own.score_batch, own.render]
    with engine_of(decoder=Decoding()) as engine:
        decoding = [engine.describe()["decoder"], engine.config.decoder.seen]
    with engine_of() as engine:
        effective = engine.effective({"top_k": 3, "temperature": 0.5})
        plain_engine = engine.describe()["decoder"]
    return {
        "of the engine": {name: signature_of(one) for name, one in public(own.GenerationEngine).items()},
        "of the module": {one.__name__: signature_of(one) for one in functions},
        "of plugins": {name: signature_of(one) for name, one in public(own.Plugin).items()},
        "decoder": [decoding, plain_engine],
        "effective": {name: effective[name] for name in ("top_k", "temperature", "max_new_tokens")},
        "a load that breaks": said(engine_of, decoder=Elsewhere()),
        "adapters": living_adapters(),
    }
