"""What an object is: `.generate` alone says nothing, the class that was loaded does."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parity.scan.evaluator import Evaluator, annotation_names, is_placeholder
from parity.scan.index import END, Class, Scope
from parity.scan.values import (
    Argument,
    Call,
    Changed,
    ClassValue,
    Dict,
    Effect,
    Element,
    Function,
    Instance,
    Item,
    Member,
    Symbol,
    Value,
    literal_of,
    options_of,
    plain,
    symbol_name,
)

GENERATES = re.compile(
    r"(ForCausalLM|CausalLM|ForConditionalGeneration|ForSeq2SeqLM|Seq2SeqLM|ForVision2Seq"
    r"|ForImageTextToText"
    r"|ForMultimodalLM|LMHeadModel|WithLMHead|ForSpeechSeq2Seq|ForCausalLMWithValueHead"
    r"|WithValueHead"
    r"|ForGeneration|ForTextToWaveform|EncoderDecoderModel|GPTQModel|AWQModel|FastLanguageModel"
    r"|FastVisionModel"
    r"|FastModel|ForCausalInference)$"
)
CLASSIFIES = re.compile(
    r"(ForSequenceClassification|ForTokenClassification|ForQuestionAnswering|ForMultipleChoice"
    r"|ForImageClassification|RewardModel|ForMaskedLM|ForPreTraining|CLIPModel|SiglipModel"
    r"|ForNextSentencePrediction"
    r"|ForObjectDetection|ForAudioClassification|ForCTC|ForRewardModel|CrossEncoder)$"
)
LOADS_CLASSIFIER = re.compile(
    r"(^|_)(load|get|make|build|create|init)_\w*(reward|critic|classifi|sequence_regression)\w*$"
)
ENCODES = re.compile(
    r"(SentenceTransformer|FlagModel|FlagReranker|EmbeddingModel|BGEM3FlagModel|InstructorModel)$"
)
TOKENIZES = re.compile(r"(Tokenizer|TokenizerFast|TokenizerBase|TokenizerWrapper|get_tokenizer)$")
PROCESSES = re.compile(r"(Processor|FeatureExtractor|ProcessorMixin)$")
SAMPLES = re.compile(r"(SamplingParams|BeamSearchParams)$")
NETWORKS = re.compile(r"(^|\.)(PreTrainedModel|GenerationMixin|PushToHubMixin|\w+PreTrainedModel)$")
CALLS_API = re.compile(
    r"^(openai|anthropic|litellm|google|vertexai|cohere|mistralai|together|groq|huggingface_hub"
    r"|ollama|boto3|replicate"
    r"|dashscope|zhipuai|requests|httpx|aiohttp|reka|azure|langchain_openai|langchain_anthropic"
    r"|langchain_google\w*|dspy"
    r"|portkey\w*|fireworks|xai_sdk|grpc|gradio_client|autogen|text_generation)(\.|$)"
)
OTHER_ENGINES = re.compile(
    r"^(sglang|mlx_lm|mlx_vlm|mlx|llama_cpp|ctranslate2|exllama\w*|lmdeploy|tensorrt_llm"
    r"|onnxruntime\w*|mii|deepspeed\.mii"
    r"|dashinfer|lightllm|fastertransformer|gpt4all|ctransformers|rwkv|xfastertransformer|nemo"
    r"|megatron\w*)(\.|$)"
)
VLLM = re.compile(r"^vllm\.(.*\.)?(LLM|LLMEngine|AsyncLLMEngine|AsyncLLM|AsyncEngine)$")
DRAWS = re.compile(r"^diffusers(\.|$)")
LANGCHAIN = re.compile(r"(^|\.)(HuggingFacePipeline|ChatHuggingFace|VLLM|HuggingFaceLLM)$")
LANGCHAIN_CHAINS = re.compile(
    r"(^|\.)(LLMChain|RetrievalQA|ConversationalRetrievalChain|ConversationChain"
    r"|StuffDocumentsChain|load_qa_chain"
    r"|create_stuff_documents_chain|create_retrieval_chain|create_history_aware_retriever"
    r"|ChatHuggingFace)(\.|$)"
)
WRITING_TASKS = {
    "text-generation", "text2text-generation", "image-text-to-text", "image-to-text", "any-to-any",
    "summarization", "translation", "conversational", "visual-question-answering",
    "table-question-answering",
}  # fmt: skip
PASSES = {  # methods that give back the model, moved or cast
    "to", "eval", "half", "cuda", "float", "bfloat16", "cpu", "train", "requires_grad_",
    "merge_and_unload",
    "double", "type", "to_empty", "bfloat", "npu", "xpu", "to_bettertransformer",
    "reverse_bettertransformer",
    "merge_adapter", "unload", "with_structured_output", "bind", "get_base_model",
    "prepare_for_inference",
    "share_memory", "unwrap_model", "for_inference", "remote", "options",
}  # fmt: skip
PIPELINES = {
    "transformers.pipeline", "pipeline", "transformers.pipelines.pipeline",
    "optimum.pipelines.pipeline",
}  # fmt: skip
GIVES_BACK = {  # methods that give back the model that they are given
    "prepare", "prepare_model", "unwrap_model", "_prepare_deepspeed", "prepare_deepspeed",
    "for_inference",
}  # fmt: skip
WRAPS = re.compile(  # functions that give back the model they are given
    r"(get_peft_model|prepare_model\w*|PeftModel\w*\.from_pretrained|torch\.compile|DataParallel"
    r"|DistributedDataParallel|FullyShardedDataParallel|init_inference|dispatch_model"
    r"|load_checkpoint_and_dispatch"
    r"|BetterTransformer\.transform|ipex\.optimize|optimize_model|unwrap_model\w*|prepare"
    r"|extract_model\w*"
    r"|load_adapter|for_inference|setup_model|HookedTransformer|deepcopy|wrap_model"
    r"|simple_dispatch_model"
    r"|set_peft_model_state_dict|convert|tensor_parallel|quantize_?\w*|apply_liger\w*|FSDP|DDP)$"
)
WRAPPED = ("model", "classifier", "vllm", "pipeline", "langchain")  # what a wrapper is given
LOADERS = {  # functions of other libraries that load several things at once
    "load_pretrained_model": ("tokenizer", "model", "processor"),
    "FastLanguageModel.from_pretrained": ("model", "tokenizer"),
    "FastVisionModel.from_pretrained": ("model", "tokenizer"),
    "FastModel.from_pretrained": ("model", "tokenizer"),
    "fastchat.model.load_model": ("model", "tokenizer"),
    "fastchat.model.model_adapter.load_model": ("model", "tokenizer"),
    "mlx_lm.load": ("mlx model", "tokenizer"),
}
PARTS = {  # attributes of a model that are models themselves
    "module", "language_model", "llm", "llama_model", "base_model", "model", "pretrained_model",
    "mistral_model",
    "lm", "text_model", "llm_model", "opt_model", "t5_model", "_orig_mod", "model_wrapped",
    "policy_model",
    "policy", "thinker", "internlm_model", "language_decoder", "lang_encoder", "vicuna_model",
}  # fmt: skip
TOKENIZERS = re.compile(r"^_?(\w*tokenizer|\w*processor|tok)$")
MODEL_INPUTS = ("input_ids", "input_features", "pixel_values")
ADAPTER_METHODS = {"load_adapter", "load_lora_weights", "add_adapter", "set_adapter"}
MAX_DEPTH = 40
RANK = (
    "model", "vllm", "params", "pipeline", "langchain", "tokenizer", "processor", "classifier",
    "encoder", "diffusers",
    "engine", "api", "network", "own",
)  # fmt: skip


@dataclass(frozen=True)
class Load:
    """One way in which an object is made.   name: the class.   settings: what the loader is given.
    effects: methods called on it afterwards, in order.   attributes: what was set on it, dotted."""

    name: str
    call: Call | Instance | None = None
    settings: Dict = field(default_factory=lambda: Dict({}))
    effects: tuple[Effect, ...] = ()
    attributes: dict[str, Value] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Thing:
    """What an object is.   kind: one of RANK, or "unknown".   loads: the ways it may have been
    made.
    argument: the name of the parameter that it comes in by. own: a class of the repository.
    others: what else it may be, by a branch."""

    kind: str
    loads: tuple[Load, ...] = ()
    argument: str = ""
    own: Class | None = None
    task: str = ""
    others: tuple[Thing, ...] = ()

    @property
    def name(self) -> str:
        """The class; all of them, where a condition chooses."""
        names = dict.fromkeys(load.name for load in self.loads if load.name)
        return " or ".join(names) or (self.own.name if self.own else "")

    def may_be(self, kind: str) -> bool:
        return kind in (self.kind, *(other.kind for other in self.others))

    def only(self, kind: str) -> Thing:
        """What it is where it is of this kind."""
        for thing in (self, *self.others):
            if thing.kind == kind:
                return replace(thing, argument=self.argument, others=())
        return Thing("unknown", argument=self.argument)

    def with_loads(self, change: Callable[[Load], Load]) -> Thing:
        others = tuple(other.with_loads(change) for other in self.others)
        return replace(self, loads=tuple(map(change, self.loads)), others=others)


UNKNOWN = Thing("unknown")


def class_kind(name: str) -> str:
    """The kind of a class by its dotted name; "" where that says nothing."""
    last = name.rpartition(".")[2]
    for kind, pattern in (
        ("diffusers", DRAWS),
        ("api", CALLS_API),
        ("engine", OTHER_ENGINES),
        ("vllm", VLLM),
    ):
        if pattern.search(name):
            return kind
    tables = (
        ("langchain", LANGCHAIN), ("classifier", CLASSIFIES), ("encoder", ENCODES),
        ("model", GENERATES), ("tokenizer", TOKENIZES), ("processor", PROCESSES),
        ("params", SAMPLES),
    )  # fmt: skip
    for kind, pattern in tables:
        if pattern.search(last):
            return kind
    if last in ("AutoModel", "PreTrainedModel"):
        return "model"
    if re.search(r"(Diffusion|Flux|Img2Img|Text2Image)\w*Pipeline$", last):
        return "diffusers"
    return ""


def best(things: Sequence[Thing]) -> Thing:
    """The likeliest of several, with the loads of all of its kind."""
    if any(thing.kind == "unknown" for thing in things):
        things = [thing for thing in things if thing.kind not in ("own", "network")]
    every = list[Thing]()
    for thing in things:
        every += [replace(thing, others=()), *thing.others]
    found = list[Thing]()
    for kind in RANK:
        same = [thing for thing in every if thing.kind == kind]
        if same:
            found.append(united(same))
    if not found:
        return things[0] if things else UNKNOWN
    return replace(found[0], others=tuple(found[1:]))


def united(same: Sequence[Thing]) -> Thing:
    """Things of one kind as one, with the loads of all."""
    loads = list[Load]()
    for thing in same:
        calls = [load.call for load in loads]
        loads += [load for load in thing.loads if load.call is None or load.call not in calls]
    argument = next((thing.argument for thing in same if thing.argument), "")
    return replace(same[0], loads=tuple(loads), argument=argument)


class Kinds:
    """Says what values are. Follows parameters to the calls that fill them."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.active: set[tuple[str, int, str]] = set()
        self.kept: dict[int, tuple[Value, Thing]] = {}

    def of(self, value: Value) -> Thing:
        kept = self.kept.get(id(value))
        if kept is not None and kept[0] is value:
            return kept[1]
        key = (
            ("call", id(value.node), "")
            if isinstance(value, Call)
            else ("depth", len(self.active), "")
        )
        if key in self.active or len(self.active) > MAX_DEPTH:
            return UNKNOWN
        self.active.add(key)
        try:
            found = self.describe(value)
        finally:
            self.active.discard(key)
        if not self.active:
            self.kept[id(value)] = value, found
        return found

    def describe(self, value: Value) -> Thing:
        options = [o for o in options_of(value) if not is_placeholder(o)] or options_of(value)
        if len(options) > 1:
            return best([self.of(option) for option in options])
        value = options[0]
        visit = getattr(self, f"of_{type(value).__name__}", None)
        if visit is None:
            return UNKNOWN
        found: Thing = visit(value)
        return found

    def of_Changed(self, value: Changed) -> Thing:
        thing = self.of(value.base)
        adapters = [e.method for e in value.effects if e.method in ADAPTER_METHODS]

        def changed(load: Load) -> Load:
            return replace(
                load,
                effects=(*load.effects, *value.effects),
                attributes={**load.attributes, **value.attributes},
                adapters=(*load.adapters, *adapters),
            )

        return replace(thing, loads=thing.loads or (Load(""),)).with_loads(changed)

    def of_Element(self, value: Element) -> Thing:
        base = plain(value.base)
        if (
            isinstance(base, Call)
            and isinstance(base.callee, Member)
            and base.callee.name in ("values", "items")
        ):
            return self.of(self.evaluator.item(base.callee.base, None, ""))
        return UNKNOWN

    def of_Symbol(self, value: Symbol) -> Thing:
        if CALLS_API.search(value.name) or OTHER_ENGINES.search(value.name):
            return Thing("api" if CALLS_API.search(value.name) else "engine", (Load(value.name),))
        return UNKNOWN

    def of_Instance(self, value: Instance) -> Thing:
        return self.of_class(value.cls, value)

    def of_class(self, cls: Class, call: Call | Instance | None) -> Thing:
        """An object of a class of the repository, by the bases from outside."""
        bases = self.evaluator.outer_bases(cls)
        node = call.node if call is not None else None
        settings = Dict({})
        if call is not None and node is not None and call.frame is not None:
            settings = self.evaluator.keywords(node, call.frame)
        load = Load(cls.name, call, settings)
        kinds = [class_kind(base) for base in bases]
        for kind in ("classifier", "tokenizer", "processor", "diffusers", "vllm"):
            if kind in kinds:
                return Thing(kind, (load,), own=cls)
        if "model" in kinds or any(NETWORKS.search(base) for base in bases):
            kind = "classifier" if CLASSIFIES.search(cls.name) else "model"
            return Thing(kind, (load,), own=cls)
        if any(base.endswith("nn.Module") for base in bases):
            kind = "model" if GENERATES.search(cls.name) else "network"
            return Thing(kind, (load,), own=cls)
        inner = self.wrapped_by(call)
        if inner.kind != "model":
            return Thing("own", (load,), own=cls)
        return Thing("own", tuple(replace(one, name=cls.name) for one in inner.loads), own=cls)

    def wrapped_by(self, call: Call | Instance | None) -> Thing:
        """The model that a wrapper is given, where that is what is asked for."""
        return self.argument_thing(call) if len(self.active) == 1 else UNKNOWN

    # == Calls ==

    def of_Call(self, value: Call) -> Thing:
        several = options_of(value.callee)
        if len(several) > 1:  # model_class = A if ... else B
            return best([self.of_Call(Call(option, value.node, value.frame)) for option in several])
        callee = plain(several[0])
        if isinstance(callee, Symbol):
            return self.of_symbol_call(callee.name, value)
        if isinstance(callee, Member):
            return self.of_method_call(callee, value)
        if isinstance(callee, Call) and isinstance(callee.callee, Member):
            return self.of(callee.callee.base)  # ray: Worker.options(...).remote(...)
        if isinstance(callee, Function):
            return self.of_function(callee.scope)
        return UNKNOWN

    def of_function(self, scope: Scope) -> Thing:
        """What a function of the repository is annotated to return."""
        returns = getattr(scope.node, "returns", None)
        return self.of_annotation(returns, scope)

    def load_of(self, name: str, value: Call) -> Load:
        return Load(name, value, self.evaluator.keywords(value.node, value.frame))

    def argument_thing(self, value: Call | Instance | None) -> Thing:
        """What the first argument of a call is that is a model, a pipeline or an engine."""
        if value is None or value.node is None or value.frame is None:
            return UNKNOWN
        nodes = [*value.node.args, *(keyword.value for keyword in value.node.keywords)]
        things = []
        for node in nodes[:6]:
            if not isinstance(node, (ast.Constant, ast.Starred)):
                things.append(self.of(self.evaluator.value(node, value.frame)))
        return best([thing for thing in things if thing.kind in WRAPPED])

    def of_symbol_call(self, name: str, value: Call) -> Thing:
        """What a function or a class of another library makes."""
        is_class = name.endswith("Pipeline") and "transformers" in name and not class_kind(name)
        if name in PIPELINES or is_class:
            return self.of_pipeline(value)
        if LANGCHAIN_CHAINS.search(name):
            inner = self.argument_thing(value)
            is_local = inner.kind in ("langchain", "pipeline")
            return replace(inner, kind="langchain") if is_local else UNKNOWN
        if WRAPS.search(name):
            inner = self.of_wrapped(name, value)
            if inner.kind != "unknown":
                return inner
        return self.of_loader(name, value)

    def of_wrapped(self, name: str, value: Call) -> Thing:
        """The model that a function is given and gives back."""
        inner = self.argument_thing(value)
        if "Peft" not in name and not name.endswith("get_peft_model"):
            return inner
        return inner.with_loads(lambda load: replace(load, adapters=(*load.adapters, name)))

    def of_loader(self, name: str, value: Call) -> Thing:
        """`Class.from_pretrained(...)`, `Class(...)`."""
        owner, _, last = name.rpartition(".")
        is_loader = last.startswith("from_") or last in ("load", "init", "load_model")
        kind = class_kind(owner) if is_loader else ""
        if kind:
            shown = owner if kind == "api" else owner.rpartition(".")[2]
            load = self.with_engine_args(self.load_of(shown, value), value)
            return Thing(kind, (load,))
        kind = class_kind(name) or ("classifier" if LOADS_CLASSIFIER.search(last) else "")
        return Thing(kind, (self.load_of(last, value),)) if kind else UNKNOWN

    def with_engine_args(self, load: Load, value: Call) -> Load:
        """A load with the settings of the EngineArgs that it is given."""
        nodes = [
            *value.node.args,
            *(keyword.value for keyword in value.node.keywords if keyword.arg == "engine_args"),
        ]
        for node in nodes[:1]:
            inner = plain(self.evaluator.value(node, value.frame))
            name = symbol_name(inner.callee) if isinstance(inner, Call) else ""
            if isinstance(inner, Call) and name.endswith("EngineArgs"):
                settings = self.evaluator.keywords(inner.node, inner.frame)
                return replace(load, settings=settings)
        return load

    def of_pipeline(self, value: Call) -> Thing:
        settings = self.evaluator.keywords(value.node, value.frame)
        task_value = settings.entries.get("task")
        if task_value is None and value.node.args:
            task_value = self.evaluator.value(value.node.args[0], value.frame)
        is_known, task = literal_of(task_value) if task_value is not None else (False, "")
        task = str(task) if is_known else ""
        if task and task not in WRITING_TASKS and not task.startswith("translation"):
            return Thing("classifier", (Load(f"pipeline({task!r})", value, settings),), task=task)
        return Thing("pipeline", (Load("pipeline", value, settings),), task=task)

    def of_method_call(self, callee: Member, value: Call) -> Thing:
        """A method of an object that is not of the repository."""
        base = plain(callee.base)
        name = callee.name
        if isinstance(base, ClassValue):
            makes = name.startswith("from_") or name in ("remote", "options")
            return self.of_class(base.cls, value) if makes else UNKNOWN
        if name in GIVES_BACK and value.node.args:
            return self.argument_thing(value)
        if name in PASSES:
            effect = Effect(name, value.node, value.frame)
            thing = self.of(callee.base)
            return thing.with_loads(lambda load: replace(load, effects=(*load.effects, effect)))
        if name in ("get_tokenizer", "_get_tokenizer"):
            return Thing("tokenizer", self.of(callee.base).loads)
        if name == "from_pretrained":  # of a class that is chosen at run time
            return Thing("unknown", (self.load_of("", value),))
        return UNKNOWN

    # == Parts ==

    def of_Member(self, value: Member) -> Thing:
        """A part of an object: what its class says, the model of a trainer, a tokenizer, ..."""
        if value.default is not None:
            thing = self.of(value.default)
            if thing.kind != "unknown":
                return thing
        trainer = plain(value.base)
        if isinstance(trainer, Call) and symbol_name(trainer.callee).endswith("Trainer"):
            return self.argument_thing(trainer) if value.name.startswith("model") else UNKNOWN
        base = self.of(value.base)
        if base.kind in ("api", "engine"):
            return base
        if isinstance(plain(value.base), Argument) and base.kind in ("unknown", "own"):
            return self.of_part(
                value.base, lambda given: self.evaluator.attribute(given, value.name)
            )
        kind = part_kind(base.kind, value.name)
        if base.kind != "processor" or kind != "tokenizer":
            return replace(base, kind=kind) if kind else UNKNOWN
        loads = list[Load]()
        for load in base.loads:
            loads.append(replace(load, attributes=nested(load.attributes, "tokenizer")))
        return replace(base, kind=kind, loads=tuple(loads))

    def of_Item(self, value: Item) -> Thing:
        base = plain(value.base)
        if isinstance(base, Call):
            return self.of_item_of_call(base, value.key)
        return self.of_part(base, lambda given: self.evaluator.item(given, value.key, ""))

    def of_part(self, base: Value, part: Callable[[Value], Value]) -> Thing:
        """What a part of a parameter is, by the calls that fill the parameter."""
        base = plain(base)
        if not isinstance(base, Argument):
            return UNKNOWN
        key = ("part", 0, "")
        if key in self.active:
            return UNKNOWN  # a part of a part: what callers of callers give is not followed
        self.active.add(key)
        try:
            things = [self.of(part(given)) for given in self.given(base.scope, base.name)]
        finally:
            self.active.discard(key)
        known = [thing for thing in things if thing.kind != "unknown"]
        return best(known) if known else UNKNOWN

    def of_item_of_call(self, base: Call, key: Any) -> Thing:
        callee = plain(base.callee)
        name = callee.name if isinstance(callee, (Symbol, Member)) else ""
        for loader, parts in LOADERS.items():
            if name == loader or name.endswith(f".{loader}"):
                part = parts[key] if isinstance(key, int) and key < len(parts) else ""
                shown = name.removesuffix(".from_pretrained").rpartition(".")[2]
                return Thing(part, (self.load_of(shown, base),)) if part in RANK else UNKNOWN
        last = name.rpartition(".")[2]
        if last in ("prepare", "initialize") and isinstance(key, int) and key < len(base.node.args):
            return self.of(self.evaluator.value(base.node.args[key], base.frame))
        if isinstance(callee, Function):
            returns = getattr(callee.scope.node, "returns", None)
            return self.of_annotation(nth_annotation(returns, key), callee.scope)
        return UNKNOWN

    def is_encoded(self, value: Value, depth: int = 0) -> bool:
        """Whether a value comes out of a tokenizer or a processor."""
        if depth > 6:
            return False
        for option in map(plain, options_of(value)):
            if isinstance(option, Call):
                callee = plain(option.callee)
                is_named = isinstance(callee, (Argument, Member)) and TOKENIZERS.search(callee.name)
                if is_named or self.of(callee).kind in ("tokenizer", "processor"):
                    return True
                base = callee.base if isinstance(callee, Member) else None
            else:
                base = getattr(option, "base", None)
            if isinstance(option, Member) and option.name in MODEL_INPUTS:
                return True
            if base is not None and self.is_encoded(base, depth + 1):
                return True
        return False

    # == Parameters ==

    def of_Argument(self, value: Argument) -> Thing:
        key = ("argument", id(value.scope), value.name)
        if key in self.active:
            return UNKNOWN
        self.active.add(key)
        try:
            annotation = value.scope.parameters[value.name].annotation
            hinted = self.of_annotation(annotation, value.scope)
            given = [self.of(option) for option in self.given(value.scope, value.name)]
        finally:
            self.active.discard(key)
        known = [thing for thing in given if thing.kind != "unknown" or thing.loads]
        if not known and value.default is not None:
            known = [thing for thing in [self.of(value.default)] if thing.kind != "unknown"]
        if hinted.kind not in ("unknown", "own", "network"):
            same = [thing for thing in known if thing.kind == hinted.kind]
            return replace(best(same) if same else hinted, argument=value.name)
        return replace(best(known) if known else hinted, argument=value.name)

    def of_annotation(self, annotation: ast.expr | None, scope: Scope) -> Thing:
        things = []
        for name in annotation_names(annotation):
            found = self.evaluator.named(name, self.evaluator.frame(scope.module.scope), END)
            if isinstance(found, ClassValue):
                things.append(self.of_class(found.cls, None))
            elif isinstance(found, Symbol):
                kind = class_kind(found.name)
                if not kind and NETWORKS.search(found.name):
                    kind = "model"
                if found.name.endswith("Pipeline") and kind == "":
                    kind = "pipeline"
                if kind:
                    things.append(Thing(kind))
        return best(things) if things else UNKNOWN

    def calls_of(self, scope: Scope, limit: int = 12) -> Iterator[tuple[Scope, ast.Call]]:
        """The calls of a function within the repository."""
        is_constructor = scope.name == "__init__" and scope.owner is not None
        name = scope.owner.name if is_constructor and scope.owner is not None else scope.name
        count = 0
        for caller, call in self.evaluator.repository.callers(name):
            if count >= limit:
                return
            if self.is_call_of(scope, caller, call):
                count += 1
                yield caller, call

    def is_call_of(self, scope: Scope, caller: Scope, call: ast.Call) -> bool:
        callee = self.evaluator.value(call.func, self.evaluator.frame(caller))
        for option in options_of(callee):
            if isinstance(option, Function) and option.scope is scope:
                return True
            if isinstance(option, ClassValue) and scope.owner is not None:
                return scope.owner is option.cls or scope.owner in list(
                    self.evaluator.ancestors(option.cls)
                )
        return False

    def given(self, scope: Scope, name: str) -> list[Value]:
        """What the calls of a function give a parameter."""
        found = list[Value]()
        for caller, call in self.calls_of(scope):
            values = self.evaluator.bind_arguments(scope, call, self.evaluator.frame(caller), None)
            given = values.get(name)
            if isinstance(given, tuple):
                found.append(self.evaluator.value(given[0], given[1]))
            elif given is not None:
                found.append(given)
        return found


def nth_annotation(node: ast.expr | None, index: Any) -> ast.expr | None:
    """`B` of `tuple[A, B]` and 1."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return None
    parts = node.slice.elts
    return parts[index] if isinstance(index, int) and index < len(parts) else None


def part_kind(kind: str, name: str) -> str:
    """What an attribute of a thing is; "" where that is not known."""
    if kind == "model":
        return "model" if name in PARTS else ""
    parts = {"pipeline": ("model", "tokenizer"), "processor": ("tokenizer",)}
    return name if name in parts.get(kind, ()) else ""


def nested(attributes: dict[str, Value], name: str) -> dict[str, Value]:
    """Attributes of an attribute."""
    return {
        key[len(name) + 1 :]: value
        for key, value in attributes.items()
        if key.startswith(f"{name}.")
    }
