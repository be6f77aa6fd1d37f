"""Loads of old code, `from_pretrained`, `LLM(...)`, `pipeline(...)`, as a call of `load`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m

from parity.draft.observed import Observed
from parity.draft.roles import Unsure, code_of, constant, dotted, parse

DTYPES = ("float32", "bfloat16", "float16")
ALIASES = {"float": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16"}
# Classes of transformers whose checkpoints the engine does not run, and what is possible.
REFUSED = {
    "Seq2Seq": "an encoder-decoder model",
    "T5": "an encoder-decoder model",
    "Bart": "an encoder-decoder model",
    "MarianMT": "an encoder-decoder model",
    "Whisper": "an audio model",
    "Speech": "an audio model",
    "Audio": "an audio model",
    "SequenceClassification": "a classifier",
    "TokenClassification": "a classifier",
    "MaskedLM": "an encoder",
}
POSSIBLE = "leave it on transformers: gen_engine runs decoder-only text and vision-language models"
TOKENIZERS = ("Tokenizer", "TokenizerFast")
OF_TORCH = m.Call(m.Name("getattr"), [m.Arg(m.Name("torch")), m.ZeroOrMore()])  # never "auto"
# Keywords of from_pretrained that place or fetch a model and do not change what it computes: left
# to `load`, which the draft says.
DROPPED = {
    "device_map", "low_cpu_mem_usage", "use_safetensors", "use_cache", "use_fast", "cache_dir",
    "token", "use_auth_token", "local_files_only", "max_memory", "offload_folder",
    "padding_side", "truncation_side", "legacy", "tensor_parallel_size", "framework", "task",
    "disable_log_stats", "use_tqdm_on_load", "device", "resume_download", "force_download",
}  # fmt: skip
CODE = "trust_remote_code"
PASSED = {"attn_implementation", "revision", CODE}
# Keywords of LLM that say how vLLM runs, not what it answers: vLLM's own only.
VLLM_DROPPED = DROPPED - {"tensor_parallel_size"}
TOKENIZER_DROPPED = DROPPED | {"revision", "trust_remote_code", "pad_token", "model_max_length"}


@dataclass(frozen=True)
class Load:
    """One model that old code loads.   path: an expression.   keywords: of `load`.   comments: by
    keyword, of those that the old code did not say.   left: what it said, and load decides."""

    path: cst.BaseExpression
    keywords: Mapping[str, cst.BaseExpression]
    comments: Mapping[str, str]
    left: tuple[str, ...] = ()

    @property
    def is_hashable(self) -> bool:
        return not any(isinstance(node, cst.Dict) for node in self.keywords.values())


def part_of(class_name: str) -> str:
    """Which part of an engine a class of transformers loads; "" for a class that is none.

    Raises Unsure for one that the engine does not run."""
    for word, kind in REFUSED.items():
        if word in class_name and not class_name.endswith(TOKENIZERS):
            what = f"{class_name} is {kind}"
            raise Unsure(what, "gen_engine does not run it", POSSIBLE)
    if class_name.endswith(TOKENIZERS):
        return "tokenizer"
    if class_name.endswith(("Processor", "ImageProcessor")):
        return "processor"
    is_model = class_name.startswith("AutoModel") or "For" in class_name or "LMHead" in class_name
    return "model" if is_model else ""


def keywords_of(call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Keyword arguments. Raises Unsure for ones that are in a mapping."""
    found = {}
    for arg in call.args:
        if arg.star == "**":
            what = f"the load takes {code_of(arg).strip(', ')}"
            raise Unsure(what, "what it holds is not seen here", "write the keywords out")
        if arg.keyword is not None:
            found[arg.keyword.value] = arg.value
    return found


def dtype_value(node: cst.BaseExpression, word: str) -> cst.BaseExpression | None:
    """The engine's dtype; None for the checkpoint's own.   word: the draft's function that makes it
    at run time of what may be "auto"."""
    said = constant(node)
    if said in ("auto", None):
        return None
    name = str(said) if isinstance(said, str) else dotted(node).rpartition(".")[2]
    is_torch = dotted(node).startswith("torch.") or isinstance(said, str)
    name = ALIASES.get(name, name)
    if is_torch and name in DTYPES:
        return cst.SimpleString(f'"{name}"')
    if is_torch or m.matches(node, OF_TORCH):
        return parse('str({node}).removeprefix("torch.")', node=node)
    return parse(f"{word}({{node}})", node=node)


def transformers_load(call: cst.Call, seen: Observed, dtype_word: str) -> Load:
    """`Class.from_pretrained(path, ...)` of a model. Raises Unsure.   dtype_word: as `dtype_value`
    has it."""
    said = keywords_of(call)
    positional = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    path = positional[0] if positional else said.pop("pretrained_model_name_or_path", None)
    if path is None:
        raise Unsure("a model is loaded", "the name of its checkpoint is not seen")
    return model_load(path, said, seen, dtype_word)


def left_to_load(said: Mapping[str, cst.BaseExpression], names: Set[str]) -> tuple[str, ...]:
    """Those of some keywords that the old code said: `name=value`."""
    return tuple(
        f"{name}={code_of(node)}"
        for name, node in said.items()
        if name in names and constant(node) is not None
    )


def model_load(
    path: cst.BaseExpression,
    said: dict[str, cst.BaseExpression],
    seen: Observed,
    dtype_word: str,
) -> Load:
    keywords: dict[str, cst.BaseExpression] = {}
    comments: dict[str, str] = {}
    dtype = said.pop("dtype", None) or said.pop("torch_dtype", None)
    value = None if dtype is None else dtype_value(dtype, dtype_word)
    if value is not None:
        keywords["dtype"] = value
    elif dtype is None:
        add_recorded_dtype(keywords, comments, seen)
    refuse_8bit(said)
    for name in ("device", "device_map"):
        if name in said and constant(said[name]) == "cpu":
            keywords["device"] = said.pop(name)
    for name, node in said.items():
        if name in DROPPED or constant(node) is None:
            continue
        if name not in PASSED:
            raise Unsure(f"the load says {name}", "load() has no such field", "see hf_kwargs")
        if constant(node) is False or (name == "attn_implementation" and constant(node) == "sdpa"):
            continue  # what load() does by itself
        keywords[name] = node
    return Load(path, keywords, comments, left_to_load(said, DROPPED))


def add_recorded_dtype(
    keywords: dict[str, cst.BaseExpression], comments: dict[str, str], seen: Observed
) -> None:
    observed = seen.dtype()
    if observed in DTYPES and observed != seen.default_dtype():
        keywords["dtype"] = cst.SimpleString(f'"{observed}"')
        comments["dtype"] = "as the goldens were recorded"


def refuse_8bit(said: Mapping[str, cst.BaseExpression]) -> None:
    for name in ("load_in_8bit", "load_in_4bit", "quantization_config"):
        if name in said and constant(said[name]) not in (False, None):
            what = f"the load says {name}"
            why = "a quantized load is not written by itself"
            raise Unsure(what, why, f'load(..., hf_kwargs={{"{name}": ...}})')


def vllm_load(call: cst.Call, seen: Observed, dtype_word: str, is_free: bool) -> Load:
    """`LLM(model=path, ...)`. Raises Unsure.

    dtype_word: the draft's function that asks vLLM for a dtype at run time.   is_free: whether run
    time decides the checkpoint, and so what "auto" is."""
    said = keywords_of(call)
    positional = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    path = said.pop("model", None) or (positional[0] if positional else None)
    if path is None:
        raise Unsure("a model is loaded", "the name of its checkpoint is not seen")
    keywords: dict[str, cst.BaseExpression] = {"backend": cst.SimpleString('"vllm"')}
    comments: dict[str, str] = {}
    dtype = said.pop("dtype", cst.SimpleString('"auto"'))
    named = {name: said.pop(name, None) for name in ("max_model_len", "revision", CODE)}
    words = {
        name: node
        for name, node in named.items()
        if node is not None and constant(node) not in (None, False)
    }
    value = dtype_value(dtype, dtype_word)
    if isinstance(value, cst.SimpleString):
        keywords["dtype"] = value
    elif value is None and not is_free:
        add_recorded_dtype(keywords, comments, seen)
    else:
        asked = {"dtype": dtype} if value is not None else {}
        asked |= {name: node for name, node in words.items() if name != "max_model_len"}
        text = "".join(f", {name}={code_of(node)}" for name, node in asked.items())
        keywords["dtype"] = parse(f"{dtype_word}({{path}}{text})", path=path)
    keywords |= words
    own = {name: node for name, node in said.items() if name not in VLLM_DROPPED}
    if own:
        elements = [
            cst.DictElement(cst.SimpleString(f'"{name}"'), node) for name, node in own.items()
        ]
        keywords["vllm_kwargs"] = cst.Dict(elements)
    return Load(path, keywords, comments, left_to_load(said, VLLM_DROPPED))


# == Which checkpoints a module loads ==


def loads_only(module: cst.Module, models: Sequence[str]) -> bool:
    """Whether a module names each checkpoint that it loads, and these are the ones of the goldens,
    `models`. Another one may say something else in its generation_config.json."""
    paths = {path_in(module, node) for node in loads_in(module)}
    if None in paths or may_rename(module):
        return False
    known = {*models, *(Path(model).name for model in models)}
    if len(paths) == 1:  # outside the project a golden has the name of its folder alone
        [path] = paths
        return path in known or Path(str(path)).name in known
    return bool(paths) and paths <= {*models}


def may_rename(module: cst.Module) -> bool:
    """Whether a module may change its constants, or the folder in which a path is, by other means
    than assignments that are seen."""
    names = {
        dotted(cst.ensure_type(found, cst.Call).func).rpartition(".")[2]
        for found in m.findall(module, m.Call())
    }
    return not names.isdisjoint(("exec", "globals", "vars", "chdir"))


def loads_in(module: cst.Module) -> Iterator[cst.BaseExpression]:
    """Of each call that loads a model: the expression of its path."""
    for found in m.findall(module, m.Call()):
        node = cst.ensure_type(found, cst.Call)
        owner, _, last = dotted(node.func).rpartition(".")
        is_other = owner.endswith((*TOKENIZERS, "Processor", "Config"))
        if last == "from_pretrained" and not is_other:
            word, place = "pretrained_model_name_or_path", 0
        elif last in ("LLM", "pipeline"):
            word, place = "model", 0 if last == "LLM" else 1
        else:
            continue
        said = [arg.value for arg in node.args if arg.keyword and arg.keyword.value == word]
        positional = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
        yield (said or positional[place:] or [node])[0]


def path_in(module: cst.Module, node: cst.BaseExpression) -> str | None:
    """What a path is, where it is written out, or is a constant of the module."""
    if isinstance(node, cst.Name):
        name = m.Name(node.value)
        targets = m.findall(module, m.AssignTarget(target=name) | m.AnnAssign(target=name))
        if m.findall(module, m.Param(name=name)) or len(targets) != 1:
            return None
        values = [value_given(statement, name) for statement in module.body]
        node = next((value for value in values if value is not None), node)
    said = constant(node)
    return said if isinstance(said, str) else None


def value_given(statement: cst.CSTNode, name: m.Name) -> cst.BaseExpression | None:
    """What a statement of a module assigns to a name."""
    one = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(one, cst.Assign) and m.matches(one.targets[0].target, name):
        return one.value
    if isinstance(one, cst.AnnAssign) and m.matches(one.target, name):
        return one.value
    return None
