"""The contracts: typed, frozen, from a mapping too; whatever has no meaning is refused before any work."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib.util
import math
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from gen_engine import (
    BackendMissing,
    ChatTemplateOptions,
    DecodeOptions,
    EngineError,
    GenEngineError,
    GenerationEngine,
    GenerationOptions,
    ImageError,
    LoadError,
    ModelLoadConfig,
    OptionError,
    PromptTooLongError,
    RequestError,
    StopOptions,
    TextGenerationRequest,
    UnsupportedError,
    VlmGenerationRequest,
    VlmPreprocessOptions,
    load,
)
from parity.companions.structured import StructuredOptions

from ..conftest import ROOT, TEXT, Load, chat, open_engine

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (GenerationOptions, {"max_tokens": 5}, "no field 'max_tokens'. Did you mean 'max_new_tokens'?"),
    (GenerationOptions, {"do_sample": True}, "no field 'do_sample'"),
    (GenerationOptions, {"max_new_tokens": 0}, "max_new_tokens is 0"),
    (GenerationOptions, {"max_new_tokens": True}, "max_new_tokens is True"),
    (GenerationOptions, {"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
    (GenerationOptions, {"max_new_tokens": None}, "max_new_tokens is None"),
    (GenerationOptions, {"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens is 9"),
    (GenerationOptions, {"temperature": math.nan}, "temperature is nan"),
    (GenerationOptions, {"temperature": math.inf}, "temperature is inf"),
    (GenerationOptions, {"temperature": -0.1}, "temperature is -0.1"),
    (GenerationOptions, {"temperature": "0.7"}, "temperature is '0.7'"),
    (GenerationOptions, {"top_p": 0}, "top_p is 0"),
    (GenerationOptions, {"top_p": 1.1}, "top_p is 1.1"),
    (GenerationOptions, {"top_k": 0}, "top_k is 0"),
    (GenerationOptions, {"top_k": -1}, "top_k is -1"),
    (GenerationOptions, {"min_p": -0.5}, "min_p is -0.5"),
    (GenerationOptions, {"repetition_penalty": 0}, "repetition_penalty is 0"),
    (GenerationOptions, {"no_repeat_ngram_size": 0}, "no_repeat_ngram_size is 0"),
    (GenerationOptions, {"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size is 1.5"),
    (GenerationOptions, {"seed": -1}, "seed is -1"),
    (GenerationOptions, {"seed": 2**63}, f"seed is {2**63}"),
    (GenerationOptions, {"stop": {"string": ["x"]}}, "no field 'string'. Did you mean 'strings'?"),
    (GenerationOptions, {"stop": [""]}, "StopOptions.strings is"),
    (GenerationOptions, {"stop": 5}, "StopOptions cannot be made from int"),
    (GenerationOptions, {"min_new_tokens": -1}, "min_new_tokens is -1"),
    (GenerationOptions, {"min_p": 1.01}, "min_p is 1.01"),
    (GenerationOptions, {"n": 0}, "n is 0"),
    (GenerationOptions, {"logprobs": -1}, "logprobs is -1"),
    (GenerationOptions, {"max_prompt_tokens": 0}, "max_prompt_tokens is 0"),
    (GenerationOptions, {"decode": "strip"}, "DecodeOptions cannot be made from str"),
    (StopOptions, {"token_ids": 5}, "token_ids is 5"),
    (StopOptions, {"token_ids": "12"}, "token_ids is '12'"),
    (StopOptions, {"token_ids": [True]}, "token_ids is (True,)"),
    (StopOptions, {"strings": None}, "strings is None"),
    (StopOptions, {"strings": ["\ufffd"]}, "U+FFFD"),
    (StructuredOptions, {"choice": "Paris"}, "choice is 'Paris'"),
    (
        TextGenerationRequest,
        {"messages": [{"role": "user", "content": "x"}], "tools": {"type": "function"}},
        "tools is {",
    ),
    (TextGenerationRequest, {"prompt_token_ids": b"abc"}, "prompt_token_ids is b'abc'"),
    (TextGenerationRequest, {"prompt_token_ids": 5}, "prompt_token_ids is 5"),
    (ModelLoadConfig, {"model": "m", "device": "meta"}, "cannot answer"),
    (ModelLoadConfig, {"model": "m", "hf_kwargs": {"return_dict": False}}, "cannot answer"),
    (ModelLoadConfig, {"model": "m", "adapters": {"a": 5}}, "adapters is {'a': 5}"),
    (ModelLoadConfig, {"model": "m", "device": "cpu", "hf_kwargs": {"device_map": "auto"}}, "beside device 'cpu'"),
    (StopOptions, {"token_ids": [-1]}, "token_ids is (-1,)"),
    (StopOptions, {"token_ids": ["a"]}, "token_ids is ('a',)"),
    (StopOptions, {"ignore_eos": 1}, "ignore_eos is 1"),
    (DecodeOptions, {"strip": None}, "strip is None"),
    (ChatTemplateOptions, {"kwargs": {"enable_thinking": True}}, "use the field enable_thinking"),
    (VlmPreprocessOptions, {"min_pixels": 10, "max_pixels": 5}, "min_pixels 10 is above max_pixels 5"),
    (VlmPreprocessOptions, {"max_pixels": 5, "do_resize": False}, "do_resize=False"),
    (ModelLoadConfig, {"model": "m", "backend": "vlm"}, "no backend 'vlm'. Did you mean 'vllm'?"),
    (ModelLoadConfig, {"model": "m", "dtype": "fp16"}, "no dtype 'fp16'"),
    (ModelLoadConfig, {"model": "m", "dtype": "auto"}, "dtype is 'auto'. Leave it out: the checkpoint's own"),
    (GenerationOptions, {"truncate_prompt": "middle"}, "truncate_prompt is 'middle'"),
    (TextGenerationRequest, {"prompt": "x", "tools": 5}, "tools is 5"),
    (ModelLoadConfig, {"model": ""}, "model is ''"),
    (ModelLoadConfig, {"bakend": "hf"}, "no field 'bakend'. Did you mean 'backend'?"),
    (ModelLoadConfig, {"model": "m", "fallback_backend": "vllm"}, "no fallback_backend 'vllm'"),
    (ModelLoadConfig, {"model": "m", "max_model_len": 1}, "max_model_len is 1"),
    (ModelLoadConfig, {"model": "m", "max_batch_tokens": 0}, "max_batch_tokens is 0"),
    (ModelLoadConfig, {"model": "m", "max_batch_size": 0}, "max_batch_size is 0"),
    (ModelLoadConfig, {"model": "m", "cache": {"a": 1}}, "a MutableMapping of str to str"),
    (ModelLoadConfig, {"model": "m", "cache": []}, "a MutableMapping of str to str"),
    (ModelLoadConfig, {"model": "m", "hf_kwargs": []}, "hf_kwargs is []"),
    (ModelLoadConfig, {"model": "m", "adapters": ["a"]}, "a mapping of names to directories"),
    (ChatTemplateOptions, {"special_tokens": "escpe"}, "Did you mean 'escape'?"),
    (ChatTemplateOptions, {"kwargs": []}, "kwargs is []"),
    (VlmPreprocessOptions, {"min_pixels": 0}, "min_pixels is 0"),
    (TextGenerationRequest, {"prompt": "x", "seed": -1}, "seed is -1"),
    (TextGenerationRequest, {"prompt": "x", "adapter": ""}, "adapter is ''"),
    (TextGenerationRequest, {"prompt": "x", "continue_final": True}, "act on messages"),
    (ModelLoadConfig, {"model": "m", "hf_kwargs": {"torch_dtype": "x"}}, "hf_kwargs sets 'torch_dtype'. Use the field"),
    (ModelLoadConfig, {"model": "m", "vllm_kwargs": {"max_model_len": 5}}, "vllm_kwargs sets 'max_model_len'"),
    (TextGenerationRequest, {}, "none of them given"),
    (TextGenerationRequest, {"prompt": "x", "prompt_token_ids": [1]}, "prompt and prompt_token_ids given"),
    (TextGenerationRequest, {"prompt": "x", "tools": [{}]}, "act on messages"),
    (TextGenerationRequest, {"prompt": "x", "chat": {"enable_thinking": True}}, "act on messages"),
    (TextGenerationRequest, {"prompt": "x", "images": ["y"]}, "no field 'images'"),
    (TextGenerationRequest, {"prompt": 5}, "prompt is 5"),
]


@pytest.mark.parametrize(("kind", "values", "said"), REFUSED, ids=[f"{k.__name__} {v}"[:70] for k, v, _ in REFUSED])
def test_what_has_no_meaning_is_refused(kind: type[Any], values: dict[str, Any], said: str) -> None:
    with pytest.raises((OptionError, RequestError)) as caught:
        gen_engine.build(kind, values)
    assert said.lower() in str(caught.value).lower()


class Spelling(ast.NodeTransformer):
    """Spells the annotations of a file's classes in another way."""

    def __init__(self, spelling: str) -> None:
        self.spelling = spelling

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        text = ast.unparse(node.annotation)
        if self.spelling == "Optional[X]" and text.endswith(" | None"):
            text = f"Optional[{text.removesuffix(' | None')}]"
        node.annotation = ast.parse(text, mode="eval").body
        if self.spelling == "'X | None'" or "GenerationResult" in text:  # a class is no name inside itself
            node.annotation = ast.Constant(text)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Functions keep theirs as texts, as the future import has them."""
        arguments = node.args
        extra = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra):
            if one.annotation is not None:
                one.annotation = ast.Constant(ast.unparse(one.annotation))
        if node.returns is not None:
            node.returns = ast.Constant(ast.unparse(node.returns))
        self.generic_visit(node)
        return node


SPELLINGS = ("Optional[X]", "'X | None'", "without the future import")


@pytest.fixture(params=SPELLINGS)
def spelled(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A copy of gen_engine.py whose fields are annotated in another way."""
    text = (ROOT / "gen_engine.py").read_text(encoding="utf-8")
    if request.param != "Optional[X]":
        text = text.replace("from __future__ import annotations\n", "")
    text = text.replace("from typing import ", "from typing import Optional, ", 1)
    path = tmp_path / "spelled_copy.py"
    path.write_text(ast.unparse(Spelling(request.param).visit(ast.parse(text))), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("spelled_copy", path)
    assert spec and spec.loader
    copied = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "spelled_copy", copied)
    spec.loader.exec_module(copied)
    return copied


def test_contracts_refuse_the_same_however_a_field_is_annotated(spelled: Any) -> None:
    own = [(kind, values) for kind, values, _ in REFUSED if kind.__module__ == "gen_engine"]
    own += [(kind, {**LEAST.get(kind, {}), name: "yes"}) for kind, names in SWITCHES.items() for name in names]
    for kind, values in own:
        with pytest.raises(GenEngineError) as expected:
            gen_engine.build(kind, values)
        with pytest.raises(spelled.GenEngineError) as caught:
            spelled.build(getattr(spelled, kind.__name__), values)
        assert str(caught.value) == str(expected.value), (kind, values)


KINDS = (
    ModelLoadConfig,
    StopOptions,
    DecodeOptions,
    GenerationOptions,
    ChatTemplateOptions,
    VlmPreprocessOptions,
    TextGenerationRequest,
    VlmGenerationRequest,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_contract_refuses_an_object_of_no_meaning(kind: type[Any]) -> None:
    least = {"prompt": "x"} if issubclass(kind, TextGenerationRequest) else LEAST.get(kind, {})
    for field in dataclasses.fields(kind):
        if field.name in ("decoder", "structured", "images"):  # their companions, or the reader of images, check them
            continue
        with pytest.raises(
            (OptionError, RequestError), match=f"{field.name} is|no {field.name}|no way|made from object"
        ):
            kind(**{**least, field.name: object()})


SWITCHES = {
    GenerationOptions: ("logits", "truncate_prompt"),
    StopOptions: ("include_stop", "ignore_eos"),
    DecodeOptions: ("skip_special_tokens", "clean_up_tokenization_spaces", "strip"),
    ChatTemplateOptions: ("enable_thinking", "add_generation_prompt"),
    VlmPreprocessOptions: ("do_resize",),
    ModelLoadConfig: ("trust_remote_code", "logits_hooks", "progress"),
    TextGenerationRequest: ("continue_final",),
}
LEAST: dict[type[Any], dict[str, Any]] = {
    ModelLoadConfig: {"model": "m"},
    TextGenerationRequest: {"messages": [{"role": "user", "content": "x"}]},
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in SWITCHES.items() for name in names])
@pytest.mark.parametrize("value", [1, 0, "yes", None], ids=repr)
def test_a_switch_takes_true_and_false_only(kind: type[Any], name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{name} is {value!r}. It must be True or False"):
        gen_engine.build(kind, {**LEAST.get(kind, {}), name: value})


BOUNDS: list[tuple[type[Any], str, list[Any]]] = [
    (GenerationOptions, "max_new_tokens", [1, sys.maxsize]),
    (GenerationOptions, "min_new_tokens", [0, 256]),
    (GenerationOptions, "temperature", [0.0, 1e300]),
    (GenerationOptions, "top_p", [1e-9, 1.0]),
    (GenerationOptions, "top_k", [1, None]),
    (GenerationOptions, "min_p", [0.0, 1.0]),
    (GenerationOptions, "repetition_penalty", [0.1]),
    (GenerationOptions, "no_repeat_ngram_size", [1, None]),
    (GenerationOptions, "seed", [0, 2**63 - 1, None]),
    (GenerationOptions, "logprobs", [0, None]),
    (GenerationOptions, "max_prompt_tokens", [1, None]),
    (VlmPreprocessOptions, "min_pixels", [1, None]),
    (VlmPreprocessOptions, "background", ["#808080", None]),
    (ModelLoadConfig, "max_model_len", [2, None]),
    (ModelLoadConfig, "max_batch_tokens", [1, None]),
    (ModelLoadConfig, "max_batch_size", [1, None]),
    (ModelLoadConfig, "backend", ["hf", "vllm", "auto"]),
    (ModelLoadConfig, "dtype", ["float32", "bfloat16", "float16", None]),
]


@pytest.mark.parametrize(("kind", "name", "values"), BOUNDS, ids=[name for _, name, _ in BOUNDS])
def test_build_takes_the_values_at_the_bounds_of_a_field(kind: type[Any], name: str, values: list[Any]) -> None:
    for value in values:
        built = getattr(gen_engine.build(kind, {**LEAST.get(kind, {}), name: value}), name)
        assert built == value and type(built) is type(value)


def test_stops_that_are_named_twice_are_one() -> None:
    stop = StopOptions(strings=("b", "a", "b"), token_ids=(3, 3, 1))
    assert (stop.strings, stop.token_ids) == (("b", "a"), (3, 1))


DEFAULTS: dict[type[Any], dict[str, Any]] = {  # as the docstrings say
    GenerationOptions: {
        "max_new_tokens": 256, "min_new_tokens": 0, "temperature": 0.0, "top_p": 1.0, "top_k": None, "min_p": 0.0,
        "repetition_penalty": 1.0, "no_repeat_ngram_size": None, "seed": None, "n": 1, "logprobs": None,
        "logits": False, "replay": None, "max_prompt_tokens": None, "truncate_prompt": False,
    },
    StopOptions: {"strings": (), "token_ids": (), "include_stop": False, "ignore_eos": False},
    DecodeOptions: {"skip_special_tokens": True, "clean_up_tokenization_spaces": False, "strip": False},
    ChatTemplateOptions: {
        "enable_thinking": False, "add_generation_prompt": True, "template": None, "kwargs": {},
        "special_tokens": "keep",
    },
    VlmPreprocessOptions: {"min_pixels": None, "max_pixels": None, "do_resize": True, "background": "white"},
    ModelLoadConfig: {
        "backend": "hf", "dtype": None, "device": None, "attn_implementation": None, "trust_remote_code": False,
        "revision": None, "max_model_len": None, "max_batch_tokens": None, "max_batch_size": None, "adapters": {},
        "logits_hooks": False, "decoder": None, "cache": None, "fallback_backend": None, "progress": True,
        "hf_kwargs": {}, "vllm_kwargs": {},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_build_without_fields_gives_the_documented_defaults(kind: type[Any]) -> None:
    built = gen_engine.build(kind, LEAST.get(kind))
    assert {name: getattr(built, name) for name in DEFAULTS[kind]} == DEFAULTS[kind]


def test_load_config_keeps_a_copy_of_the_callers_mappings() -> None:
    kwargs: dict[str, Any] = {"a": 1}
    config = ModelLoadConfig("m", hf_kwargs=kwargs, adapters={"law": Path("b/c")})  # type: ignore[dict-item]
    kwargs["b"] = 2
    assert (config.hf_kwargs, config.adapters) == ({"a": 1}, {"law": "b/c"})


def test_contracts_are_frozen_and_alike_from_mappings_and_values() -> None:
    options = GenerationOptions(stop=StopOptions(strings=("x",)), temperature=0.5)
    assert gen_engine.build(GenerationOptions, {"stop": {"strings": ["x"]}, "temperature": 0.5}) == options
    assert gen_engine.build(GenerationOptions, {"stop": ["x"], "temperature": 0.5}) == options
    assert GenerationOptions(stop="x", temperature=0.5) == options  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.temperature = 1.0  # type: ignore[misc]


def test_two_vendored_copies_work_in_one_process(text: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("vendored_copy", ROOT / "gen_engine.py")
    assert spec and spec.loader
    other = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "vendored_copy", other)
    spec.loader.exec_module(other)
    theirs = other.TextGenerationRequest(prompt="The capital", chat=other.ChatTemplateOptions())
    options = other.GenerationOptions(max_new_tokens=4, stop=other.StopOptions(strings=("z",)))
    ours = TextGenerationRequest(prompt="The capital")
    assert text.generate_text_batch([theirs], options) == text.generate_text_batch(
        [ours], {"max_new_tokens": 4, "stop": ["z"]}
    )
    assert other.render(text, [{"role": "user", "content": "x"}]) == text.render([{"role": "user", "content": "x"}])


def test_a_checkpoint_that_is_not_there_is_said_to_be_none_of_this_machine(tmp_path: Path) -> None:
    """What was heard of a mistyped folder was that huggingface.co could not be reached."""
    for missing in ("models/tiny-qwen", str(tmp_path / "models")):
        with pytest.raises(LoadError, match="which is no directory here: "):
            load(missing)


def test_errors_survive_pickling_and_copying() -> None:
    error = RequestError("bad", fix="mend it", index=3)
    for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (str(other), other.index, other.fix) == ("request 3: bad. Mend it.", 3, "mend it")


@pytest.mark.parametrize(
    ("fix", "said"),
    [("mend it", "Mend it"), ("vLLM would raise", "vLLM would raise"), ("max_tokens is another name", "max_tokens is")],
)
def test_errors_leave_names_as_they_are_spelt(fix: str, said: str) -> None:
    assert f"bad. {said}" in str(RequestError("bad", fix=fix))


def test_whole_numbers_do_where_numbers_are_meant(text: GenerationEngine) -> None:
    options = {"repetition_penalty": 2, "temperature": 1, "top_p": 1, "min_p": 1, "max_new_tokens": 2}
    assert text.generate_text_batch([chat("a")], options)[0].completion_tokens == 2


def test_errors_are_the_builtin_ones_too() -> None:
    for error, builtin in (
        (OptionError, ValueError), (RequestError, ValueError), (LoadError, RuntimeError), (EngineError, RuntimeError),
        (BackendMissing, ImportError), (UnsupportedError, NotImplementedError), (PromptTooLongError, RequestError),
        (ImageError, RequestError),
    ):  # fmt: skip
        assert issubclass(error, builtin) and issubclass(error, GenEngineError)


# -- before any work ---------------------------------------------------------------------------------------------------

CALLS: list[tuple[Any, Any, str]] = [
    ("Hello", None, "requests is str"),
    (chat("Hello"), None, "requests is dict"),
    (["Hello"], None, "request 0: TextGenerationRequest cannot be made from str"),
    (
        [chat("a"), {"mesages": []}],
        None,
        "request 1: TextGenerationRequest has no field 'mesages'. Did you mean 'messages'?",
    ),
    ([{"prompt": ""}], None, "request 0: the prompt has no tokens"),
    ([{"prompt_token_ids": []}], None, "request 0: the prompt has no tokens"),
    ([{"prompt_token_ids": [10**6]}], None, "request 0: a token id is outside the vocabulary"),
    ([{"prompt_token_ids": [-3]}], None, "request 0: a token id is outside the vocabulary"),
    ([chat("a"), chat("long " * 1000)], None, "request 1: the prompt has"),
    ([chat("a")], {"max_new_tokens": 1024}, "the window of 1024 less max_new_tokens 1024 leaves 0"),
    ([chat("a")], {"max_prompt_tokens": 3}, "max_prompt_tokens is 3"),
    ([chat("a")], {"stop": {"token_ids": [10**6]}}, "outside the vocabulary"),
    ([chat("a")], {"logprobs": 5000}, "more than the"),
    ([chat("a", structured={"regex": "a"})], {"min_new_tokens": 2}, "request 0: min_new_tokens or ignore_eos"),
    ([chat("a", structured={"regex": "a"})], {"logprobs": 0}, "request 0: replay, logprobs and logits of a structure"),
    ([chat("a")], {"nonsense": 1}, "no field 'nonsense'"),
]


@pytest.mark.parametrize(("requests", "options", "said"), CALLS, ids=[said for *_, said in CALLS])
def test_a_bad_call_is_refused_before_any_work(
    text: GenerationEngine, requests: Any, options: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text.backend, "complete", None)
    with pytest.raises(GenEngineError) as caught:
        text.generate_text_batch(requests, options)
    assert said in str(caught.value)


def test_a_long_prompt_loses_its_beginning_if_asked(text: GenerationEngine) -> None:
    ids = text.tokenizer.encode("one two three four five six seven")
    [result] = text.generate_text_batch(
        [{"prompt_token_ids": ids}], {"max_prompt_tokens": 5, "truncate_prompt": True, "max_new_tokens": 2}
    )
    assert result.prompt_token_ids == tuple(ids[-5:])
    assert result.notes == (f"the first {len(ids) - 5} tokens of the prompt were cut",)
    [result] = text.generate_text_batch(
        [{"prompt_token_ids": ids * 100}], {"truncate_prompt": True, "max_new_tokens": 24}
    )
    assert result.prompt_tokens == 1000 and result.completion_tokens > 0
    [result] = text.generate_text_batch([{"prompt_token_ids": ids}], {"truncate_prompt": True, "max_new_tokens": 2})
    assert result.notes == ()


def test_a_long_chat_keeps_the_system_if_asked(text: GenerationEngine) -> None:
    """True dropped the BOS and cut into the first header."""
    system = {"role": "system", "content": "Be brief."}
    words = "one two three four five six seven eight nine ten " * 20
    asked = {"messages": [system, {"role": "user", "content": words + "THE END"}]}
    options = {"max_prompt_tokens": 40, "truncate_prompt": "keep_system", "max_new_tokens": 2}
    [result] = text.generate_text_batch([asked], options)
    shown = text.tokenizer.decode(list(result.prompt_token_ids))
    whole = text.render(asked["messages"])
    begin = whole[: whole.index("one two")]
    assert result.prompt_tokens == 40 and shown.startswith(begin) and shown.endswith(whole[-20:])
    assert [note for note in result.notes if note.endswith("tokens of the prompt were cut behind the system's")]
    [uncut] = text.generate_text_batch([chat("Hi")], {"truncate_prompt": "keep_system", "max_new_tokens": 2})
    assert uncut.notes == ()
    with pytest.raises(PromptTooLongError, match="request 0: the .* tokens up to the system's end do not fit"):
        text.generate_text_batch([asked], {**options, "max_prompt_tokens": 4})


TRIMMED = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
ALIKE: list[tuple[str, Any, dict[str, Any]]] = [
    ("parts", [{"type": "text", "text": "a a a a " * 20}], {}),
    ("trimmed", "  " + "a a a a " * 20, {"template": TRIMMED}),
    ("plain", "b b b b " * 20, {}),
]


@pytest.mark.parametrize(("content", "how"), [case[1:] for case in ALIKE], ids=[case[0] for case in ALIKE])
def test_keep_system_keeps_no_token_of_the_users_text(content: Any, how: dict[str, Any], shared: Load) -> None:
    engine = shared(TEXT, "hf")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    options = {"max_prompt_tokens": 40, "truncate_prompt": "keep_system", "max_new_tokens": 2}
    [result] = engine.generate_text_batch([{"messages": messages, "chat": how}], options)
    ids = engine.tokenizer(engine.render(messages, chat=how), add_special_tokens=False)["input_ids"]
    begin = engine.tokenizer("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")["input_ids"]
    kept = len(begin) - (ids[len(begin) - 1] != begin[-1])  # the line end may be one token with the text
    assert result.prompt_token_ids == (*ids[:kept], *ids[kept - 40 :])


def test_a_long_raw_prompt_keeps_its_bos_if_asked(backend: str, shared: Load) -> None:
    engine = shared(TEXT.parent / "random-llama", backend, max_model_len=512)
    bos = engine.tokenizer.bos_token_id
    request = {"prompt": "one two three four five six"}
    options = {"max_prompt_tokens": 6, "max_new_tokens": 2}
    [cut] = engine.generate_text_batch([request], {**options, "truncate_prompt": True})
    [kept] = engine.generate_text_batch([request], {**options, "truncate_prompt": "keep_system"})
    assert bos not in cut.prompt_token_ids
    assert kept.prompt_token_ids == (bos, *cut.prompt_token_ids[1:])


ROOM: list[tuple[int, dict[str, Any], Any]] = [
    # tokens of a prompt, options, what is kept of them in a window of 10, or the error
    (6, {"max_new_tokens": 4}, 6),
    (7, {"max_new_tokens": 4}, "the window of 10 less max_new_tokens 4 leaves 6"),
    (7, {"max_new_tokens": 4, "truncate_prompt": True}, 6),
    (1, {"max_new_tokens": 9}, 1),
    (1, {"max_new_tokens": 10, "truncate_prompt": True}, "Lower max_new_tokens"),
    (3, {"max_new_tokens": 4, "max_prompt_tokens": 3}, 3),
    (4, {"max_new_tokens": 4, "max_prompt_tokens": 3}, "max_prompt_tokens is 3"),
    (4, {"max_new_tokens": 4, "max_prompt_tokens": 3, "truncate_prompt": True}, 3),
    (7, {"max_new_tokens": 4, "max_prompt_tokens": 6}, "the window of 10 less max_new_tokens 4 leaves 6"),
]


@pytest.mark.parametrize(("tokens", "options", "kept"), ROOM, ids=repr)
def test_prompt_of_keeps_what_leaves_room_for_the_answer(tokens: int, options: dict[str, Any], kept: Any) -> None:
    checkpoint = gen_engine.read_checkpoint(ModelLoadConfig(str(TEXT), max_model_len=10))
    plan = gen_engine.make_plan(GenerationOptions(**options), checkpoint)
    request = TextGenerationRequest(prompt_token_ids=tuple(range(20, 20 + tokens)))
    if isinstance(kept, str):
        with pytest.raises(PromptTooLongError, match=kept):
            gen_engine.prompt_of(request, plan)
    else:
        prompt = gen_engine.prompt_of(request, plan)
        assert prompt.token_ids == request.prompt_token_ids[-kept:] and prompt.length == kept  # type: ignore[index]


LAST_IDS = [
    ({"logprobs": 576}, {"logprobs": 577}),
    ({"stop": {"token_ids": [575]}}, {"stop": {"token_ids": [576]}}),
]


@pytest.mark.parametrize(("options", "beyond"), LAST_IDS, ids=["logprobs", "stop"])
def test_make_plan_takes_the_last_id_of_the_vocabulary_and_refuses_the_next(options: Any, beyond: Any) -> None:
    checkpoint = gen_engine.read_checkpoint(ModelLoadConfig(str(TEXT)))
    assert gen_engine.make_plan(GenerationOptions(**options), checkpoint)
    with pytest.raises(OptionError, match="576"):
        gen_engine.make_plan(GenerationOptions(**beyond), checkpoint)


def test_what_a_library_cannot_load_is_a_load_error(backend: Any, tmp_path: Path) -> None:
    shutil.copytree(TEXT, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(LoadError, match=f"{backend} cannot load"):
        load(tmp_path / "empty", backend=backend)
    with pytest.raises(OptionError, match="cannot be made from int"):
        load(5, backend=backend)  # type: ignore[arg-type]


def test_an_unknown_device_is_a_load_error() -> None:
    with pytest.raises(LoadError, match="hf cannot load .*cpuu"):
        load(TEXT, device="cpuu")


def test_a_missing_checkpoint_is_a_load_error(backend: Any) -> None:
    with pytest.raises(LoadError, match="cannot read the checkpoint '/no/such/model'"):
        load("/no/such/model", backend=backend)


def test_a_window_wider_than_the_checkpoints_is_refused(backend: Any) -> None:
    said = {
        "hf": "max_model_len 1000000 is above the checkpoint's 2048",
        "vllm": r"max_model_len \(1000000\) is greater than .*2048",
    }
    with pytest.raises(OptionError if backend == "hf" else LoadError, match=said[backend]):
        load(TEXT, backend=backend, max_model_len=1_000_000)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"backend": "vllm", "device": "cpu"}, "vllm cannot do device"),
        ({"backend": "vllm", "attn_implementation": "sdpa"}, "attention_backend"),
        ({"backend": "vllm", "max_batch_tokens": 100}, "max_num_batched_tokens"),
        ({"backend": "vllm", "hf_kwargs": {"a": 1}}, "vllm cannot do hf_kwargs"),
        ({"backend": "hf", "vllm_kwargs": {"a": 1}}, "hf cannot do vllm_kwargs"),
    ],
)
def test_what_a_backend_cannot_do_is_refused_at_load(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        load(TEXT, **settings)


def test_temperatures_that_vllm_would_change_are_refused_there(shared: Any) -> None:
    for temperature in (0.001, 2.5):
        shared(TEXT, "hf").generate_text_batch([chat("a")], {"temperature": temperature, "max_new_tokens": 2})
        with pytest.raises(UnsupportedError, match="temperature"):
            shared(TEXT, "vllm").generate_text_batch([chat("a")], {"temperature": temperature})


@pytest.mark.parametrize(("module", "backend", "install"), [
    ("vllm", "vllm", "pip install vllm"),
    ("transformers", "hf", "pip install 'transformers"),
    ("torch", "hf", "pip install torch"),
])  # fmt: skip
def test_a_missing_library_names_its_install_line(
    module: str, backend: Any, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what import then raises is what a missing module raises
    with pytest.raises(BackendMissing, match=f"{module} is not installed.*{install}"):
        load(TEXT, backend=backend)


def test_a_missing_pillow_is_called_by_the_name_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(BackendMissing, match="PIL is not installed. Run: pip install pillow"):
        gen_engine.lazy_import("PIL")


def test_a_broken_library_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "broken_library.py").write_text("import a_module_that_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_it_needs") as caught:
        gen_engine.lazy_import("broken_library")
    assert not isinstance(caught.value, BackendMissing)


def test_a_closed_engine_says_so(backend: str) -> None:
    engine = open_engine(TEXT, backend)
    engine.close()
    engine.close()
    uses: tuple[Callable[[], object], ...] = (
        lambda: engine.generate_text_batch([chat("a")]),
        engine.effective,
        engine.describe,
        engine.__enter__,
        engine.observed(gen_engine.NOBODY).__enter__,
        engine.bare().__enter__,
        lambda: engine.generate_vlm_batch([]),
        lambda: engine.score_batch([("a", "b")]),
        lambda: engine.update_weights({}),
        lambda: engine.add_adapter("a", "b"),
        lambda: engine.remove_adapter("a"),
    )
    for use in uses:
        with pytest.raises(EngineError, match="the engine is closed"):
            use()


class Unlistable:
    dtype = "float32"

    def tolist(self) -> list[float]:
        raise TypeError("no list of it")


def test_an_array_that_gives_no_list_is_refused() -> None:
    with pytest.raises(OptionError, match=r"GenerationOptions.max_new_tokens cannot be read: .*no list of it"):
        GenerationOptions(max_new_tokens=Unlistable())  # type: ignore[arg-type]
