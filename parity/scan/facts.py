"""What a block sets, what it leaves to others, and who they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from parity.scan.blocks import Block, function_text
from parity.scan.evaluator import Evaluator, source_text
from parity.scan.flow import Flow, Outcome
from parity.scan.index import Scope, called_name, dotted_name, end_of, start_of
from parity.scan.kinds import Kinds, Load, Thing
from parity.scan.origins import REMOTE, Fact, fact_of, literal, not_said
from parity.scan.values import (
    ABSENT,
    Absent,
    Argument,
    Call,
    Changed,
    Choice,
    ClassValue,
    Dict,
    Effect,
    Element,
    Fallback,
    Function,
    Item,
    Items,
    Literal,
    Member,
    Option,
    Symbol,
    Unknown,
    Value,
    choose,
    is_literal,
    options_of,
    plain,
    table_of,
)

NAMES = (
    "dtype", "attn", "device", "trust_remote_code", "quantization", "adapters", "padding_side",
    "pad_token",
    "truncation", "template", "add_generation_prompt", "enable_thinking", "do_sample",
    "temperature", "top_p", "top_k",
    "max_new_tokens", "num_beams", "n", "seed", "repetition_penalty", "stop",
    "skip_special_tokens", "prompt_slice",
    "strip", "cuts_by_hand", "batch",
)  # fmt: skip
GENERATION_CONFIG = not_said("the checkpoint's generation_config.json")
TOKENIZER_CONFIG = not_said("the checkpoint's tokenizer_config.json")
NOTHING_GENERATED = not_said("nothing, no token is chosen here")
HAND_WRITTEN = re.compile(
    r"<\|im_start\|>|\[INST\]|### ?(Instruction|Response|Human|Assistant|Input)|USER:|ASSISTANT:"
    r"|Human:|Assistant:|<\|user\|>|<\|assistant\|>|<start_of_turn>|<\|start_header_id\|>|<s>"
    r"|<image>|<\|begin_of_text\|>|<\|image|get_conversation_template|conv_templates"
    r"|\.get_prompt\(|append_message|get_conv_template|Conversation\(|PromptTemplate"
    r"|DEFAULT_IMAGE_TOKEN|IMAGE_TOKEN"
)
SEEDS = re.compile(
    r"(^|\.)(manual_seed|manual_seed_all|set_seed|seed_everything|seed_all|fix_seed|setup_seed)$"
)
VLM = re.compile(
    r"Vision|VL|Llava|LLaVA|ImageText|Idefics|Video|Multimodal|Image|Qwen2_5_VL|Mllama"
    r"|Gemma3ForCond|Fuyu|Blip|Kosmos"
)
SEQ2SEQ = re.compile(r"Seq2Seq|T5|Bart|Pegasus|Marian|M2M|NllbMoe|Whisper|EncoderDecoder|FiD")
PREPARES = {"__init__", "__getitem__", "__call__", "__iter__", "collate_fn", "collate", "tokenize"}
ENCODES = {"encode", "batch_encode_plus", "encode_plus", "apply_chat_template", "__call__"}
DTYPE_METHODS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
DTYPE_NAMES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "half": "float16",
    "float": "float32",
}


@dataclass(frozen=True)
class Encoding:
    """A call of a tokenizer or processor near a block."""

    node: ast.Call
    scope: Scope
    thing: Thing
    settings: Dict


class Surroundings:
    """What stands around a block: its function, those that it calls, and those that call it."""

    def __init__(self, block: Block, evaluator: Evaluator, kinds: Kinds) -> None:
        self.block = block
        self.evaluator = evaluator
        self.kinds = kinds

    def callees(self, scope: Scope, depth: int, seen: set[int]) -> Iterator[Scope]:
        """The functions of the repository that a function calls, the nearest first."""
        found = list[Scope]()
        for call in scope.calls:
            given: list[ast.expr] = []
            given += [node for node in call.args if isinstance(node, (ast.Name, ast.Attribute))]
            given += [k.value for k in call.keywords if (k.arg or "").endswith(("fn", "function"))]
            for node in (call.func, *given):
                for inner in self.functions(node, scope):
                    if id(inner) not in seen:
                        seen.add(id(inner))
                        found.append(inner)
        for inner_scope in found[:25]:
            yield inner_scope
            if depth > 1:
                yield from self.callees(inner_scope, depth - 1, seen)

    def functions(self, node: ast.expr, scope: Scope) -> Iterator[Scope]:
        """The functions that an expression names; of a class, what prepares its items."""
        for option in options_of(self.evaluator.value(node, self.evaluator.frame(scope))):
            inner = plain(option)
            if isinstance(inner, Function):
                yield inner.scope
            elif isinstance(inner, ClassValue):
                yield from (m for name, m in inner.cls.methods.items() if name in PREPARES)

    @cached_property
    def near(self) -> list[Scope]:
        """The block's function, the functions around it, and what it calls."""
        own = self.block.scope
        around = [own]
        while own.parent is not None and own.parent.qualname:
            own = own.parent
            around.append(own)
        around += self.block.scope.nested
        return [*around, *self.callees(self.block.scope, 2, {id(scope) for scope in around})]

    @cached_property
    def callers(self) -> list[Scope]:
        found = list[Scope]()
        level = [self.block.scope]
        for _ in range(2):
            above = list[Scope]()
            for scope in level:
                above += [
                    caller for caller, _ in self.kinds.calls_of(scope, 4) if caller not in found
                ]
            found += above
            level = above
        return found[:8]

    def calls(
        self, scopes: Sequence[Scope], accepts: Callable[[ast.Call], bool]
    ) -> Iterator[tuple[ast.Call, Scope]]:
        for scope in scopes:
            for call in sorted(scope.calls, key=start_of):
                if accepts(call):
                    yield call, scope


class Facts:
    """Collects the facts of one block."""

    def __init__(self, block: Block, evaluator: Evaluator, kinds: Kinds) -> None:
        self.block = block
        self.evaluator = evaluator
        self.kinds = kinds
        self.around = Surroundings(block, evaluator, kinds)
        self.has_sampling_params = False
        self.settings = self.all_settings()
        self.outcome: Outcome = Flow(block, evaluator, kinds).follow()

    def collect(self) -> dict[str, Fact]:
        return {name: getattr(self, f"read_{name}")() for name in NAMES}

    # == Settings of the call ==

    def all_settings(self) -> Dict:
        """The settings of a call: keywords over its configuration object over what was set on the
        model."""
        block = self.block
        given = block.settings
        if block.library == "vllm":
            return self.sampling_params(given)
        config = given.entries.get("generation_config") or given.entries.get("generate_kwargs")
        if config is None and block.is_remote:
            config = self.remote_config()
        table = self.model_config()
        if block.library == "pipeline":
            for load in block.thing.loads[:1]:
                table = layered(table, load.settings)
                inner = load.settings.entries.get("generation_config") or load.settings.entries.get(
                    "pipeline_kwargs"
                )
                table = layered(table, self.config_of(inner)) if inner is not None else table
        if config is not None:
            table = layered(table, self.config_of(config))
        return layered(table, given)

    def sampling_params(self, given: Dict) -> Dict:
        value = given.entries.get("sampling_params") or given.entries.get("params")
        position = 1 if self.block.form != "thread" else 0
        if value is None and len(self.block.node.args) > position:
            value = self.evaluator.value(
                self.block.node.args[position], self.evaluator.frame(self.block.scope)
            )
        self.has_sampling_params = value is not None
        return self.config_of(value) if value is not None else Dict({})

    def remote_config(self) -> Value | None:
        """The generation settings among the positional arguments of `model.chat(tokenizer, pixels,
        question, config)`."""
        frame = self.evaluator.frame(self.block.scope)
        for node in self.block.node.args[1:5]:
            value = self.evaluator.value(node, frame)
            inner = plain(value)
            if (
                isinstance(inner, Dict)
                or "config" in dotted_name(node)
                or "kwargs" in dotted_name(node)
            ):
                return value
        return None

    def config_of(self, value: Value) -> Dict:
        """The settings of a GenerationConfig, a SamplingParams or a dictionary, with what was set
        on it."""
        inner = plain(value)
        if (
            isinstance(inner, Argument)
            and not inner.is_rest
            and re.search(r"sampling|generation|config", inner.name)
        ):
            given = self.kinds.given(inner.scope, inner.name)
            if len(given) == 1 and isinstance(plain(given[0]), Call):
                value = Changed(given[0], getattr(value, "attributes", {}))
        tables = [self.one_config(option) for option in options_of(value)]
        if len(tables) == 1:
            return tables[0]
        keys = {key for table in tables for key in table.entries}
        entries = {
            key: choose([table.entries.get(key, ABSENT) for table in tables])
            for key in sorted(keys)
        }
        rest = tuple(rest for table in tables for rest in table.rest)
        return Dict(entries, rest)

    def one_config(self, value: Value) -> Dict:
        set_later = attributes_of(value)
        inner = plain(value)
        if isinstance(inner, Dict):
            table = inner
        elif isinstance(inner, Call) and is_config_call(inner):
            table = self.evaluator.keywords(inner.node, inner.frame)
        elif isinstance(inner, Literal):
            table = Dict({})
        else:
            table = Dict({}, (value,))
        entries = dict(table.entries)
        for key, item in set_later.items():
            before = entries.get(key) or (Item(table.rest[0], key) if table.rest else ABSENT)
            entries[key] = choose(
                [before if isinstance(option, Absent) else option for option in options_of(item)]
            )
        return Dict(entries, table.rest)

    def model_config(self) -> Dict:
        """What was set on `model.generation_config`."""
        entries: dict[str, Value] = {}
        table = Dict({})
        for load in self.block.thing.loads[:1]:
            whole = load.attributes.get("generation_config")
            if whole is not None:
                table = self.config_of(whole)
            for key, value in load.attributes.items():
                prefix, _, name = key.rpartition(".")
                if prefix in ("generation_config", "model.generation_config"):
                    entries[name] = value
        return Dict({**table.entries, **entries}, table.rest)

    def setting(self, unsaid: Fact, *names: str) -> Fact:
        """The fact of a setting by any of its names."""
        for name in names:
            if name in self.settings.entries:
                fact = fact_of(self.settings.entries[name], unsaid)
                if fact.is_literal and fact.value is None and name != "eos_token_id":
                    return unsaid  # None is what was not given
                return self.as_written(fact, name)
        return self.rest_fact() or unsaid

    def as_written(self, fact: Fact, name: str) -> Fact:
        """A computed fact with the text of the call, where the call says it."""
        if fact.source != "computed" or "…" not in fact.text:
            return fact
        for keyword in self.block.node.keywords:
            if keyword.arg == name and not isinstance(keyword.value, ast.Name):
                return Fact(None, "computed", source_text(keyword.value, 60))
        return fact

    def rest_fact(self) -> Fact | None:
        """What stands for a setting that may be among `**kwargs`; None where no such are taken."""
        for rest in self.settings.rest:
            inner = plain(rest)
            if id(rest) in self.inputs or self.is_input(rest):
                continue
            if isinstance(inner, Argument):
                return Fact(None, f"arg {inner.name}", f"**{inner.name}")
            if isinstance(inner, Option):
                return Fact(
                    None, f"arg {inner.name}" if inner.is_argument else "config", f"**{inner.name}"
                )
            fact = fact_of(inner, GENERATION_CONFIG)
            return Fact(None, "config" if fact.source == "config" else "computed", f"**{fact.text}")
        return None

    @cached_property
    def inputs(self) -> set[int]:
        """Mappings that the function uses as tensors: `**x` beside `x["input_ids"]`."""
        found = set[int]()
        text = function_text(self.block.scope)
        for keyword in self.block.node.keywords:
            name = dotted_name(keyword.value) if keyword.arg is None else ""
            uses = rf"\b{re.escape(name)}(\.|\[.)(input_ids|attention_mask|pixel_values)"
            if name and re.search(uses, text):
                value = self.evaluator.value(keyword.value, self.evaluator.frame(self.block.scope))
                found.update(id(option) for option in options_of(value))
        return found

    def is_input(self, value: Value) -> bool:
        """Whether a mapping holds tensors, not settings."""
        for option in options_of(value):
            inner = plain(option)
            name = inner.name if isinstance(inner, (Argument, Option, Symbol)) else ""
            if re.search(
                r"input|encod|batch|tensor|image|video|audio|feature|prompt|media|visual", str(name)
            ):
                continue
            if isinstance(inner, (Call, Element, Unknown)) and self.is_encoded(inner):
                continue
            return False
        return True

    def is_encoded(self, value: Value, depth: int = 0) -> bool:
        """Whether a value is what a tokenizer or a processor made."""
        inner = plain(value)
        if isinstance(inner, Call):
            return self.is_encoding_call(inner, depth)
        if isinstance(inner, Unknown):
            return re.search(r"input|encod|\.to\(", inner.text) is not None
        if isinstance(inner, (Member, Item, Element)) and depth < 6:
            return self.is_encoded(inner.base, depth + 1)
        return False

    def is_encoding_call(self, call: Call, depth: int) -> bool:
        callee = plain(call.callee)
        if self.kinds.of(callee).kind in ("tokenizer", "processor"):
            return True
        if isinstance(callee, Member) and depth < 6:
            is_rendered = callee.name == "apply_chat_template"
            if is_rendered or self.is_encoded(callee.base, depth + 1):
                return True
        text = source_text(call.node, 200)
        return re.search(r"processor|tokeniz|encode|prepare|collat|inputs", text) is not None

    # == Load ==

    @property
    def loads(self) -> Sequence[Load]:
        return self.block.thing.loads

    def load_fact(self, read: Callable[[Load], Value | Fact | None], unsaid: Fact) -> Fact:
        """A fact of how the model is loaded, over all ways in which it may be."""
        known = [load for load in self.loads if load.call is not None or load.effects]
        if not known:
            argument = self.block.thing.argument
            return not_said(
                f"whoever makes the argument {argument}" if argument else "whoever loads the model"
            )
        facts = []
        for load in known:
            found = read(load)
            decides = (
                not_said(f"{load.name}, which is not in this repository")
                if is_foreign(load)
                else unsaid
            )
            facts.append(
                found
                if isinstance(found, Fact)
                else fact_of(found, self.load_rest(load) or decides)
            )
        if all(fact == facts[0] for fact in facts):
            return facts[0]
        texts = list(dict.fromkeys(str(fact) for fact in facts))
        return Fact(None, "computed", " or ".join(texts[:3]))

    @staticmethod
    def load_rest(load: Load) -> Fact | None:
        """What stands for a setting that may be among the loader's `**kwargs`."""
        for rest in load.settings.rest:
            inner = plain(rest)
            if isinstance(inner, Argument):
                return Fact(None, f"arg {inner.name}", f"**{inner.name}")
            fact = fact_of(inner, GENERATION_CONFIG)
            return Fact(
                None,
                fact.source if fact.is_said and not fact.is_literal else "computed",
                f"**{fact.text}",
            )
        return None

    def from_load(self, load: Load, *names: str) -> Value | None:
        """A setting of a loader, also among `model_kwargs` of a pipeline."""
        for name in names:
            value = load.settings.entries.get(name)
            if value is not None and not is_literal(value, None):
                return value
        for nested in ("model_kwargs", "model_init_kwargs"):
            table = table_of(load.settings.entries.get(nested))
            for name in names:
                if name in table.entries:
                    return table.entries[name]
        if self.block.library == "pipeline" and "model" in load.settings.entries:
            for own in self.kinds.of(load.settings.entries["model"]).loads:
                if own is not load:
                    return self.from_load(own, *names)
        return None

    def read_dtype(self) -> Fact:
        unsaid = not_said(
            "the library (float32 before transformers 5, then the checkpoint's config.json)"
        )
        if self.block.library == "vllm":
            unsaid = not_said("the checkpoint's config.json")
        return self.load_fact(self.dtype_of, unsaid)

    def dtype_of(self, load: Load) -> Value | Fact | None:
        """The dtype as it holds in the end: a cast after the load wins."""
        value = self.from_load(load, "torch_dtype", "dtype", "precision")
        for effect in load.effects:
            cast = self.cast_of(effect)
            if cast is not None:
                value = cast
        if value is not None and isinstance(plain(value), Literal):
            name = plain(value).value  # type: ignore[attr-defined]
            return literal(
                DTYPE_NAMES.get(name, str(name).removeprefix("torch."))
                if name is not None
                else None
            )
        return value

    def cast_of(self, effect: Effect) -> Value | None:
        if effect.method in DTYPE_METHODS and not effect.node.args:
            return Literal(DTYPE_METHODS[effect.method])
        if effect.method not in ("to", "type"):
            return None
        for keyword in effect.node.keywords:
            if keyword.arg in ("dtype", "torch_dtype"):
                return self.evaluator.value(keyword.value, effect.frame)
        for node in effect.node.args:
            value = self.evaluator.value(node, effect.frame)
            for option in options_of(value):
                inner = plain(option)
                if isinstance(inner, Symbol) and re.search(
                    r"(float|bfloat)\d+|\.half$|int8", inner.name
                ):
                    return value
            if "dtype" in dotted_name(node):
                return value
        return None

    def read_attn(self) -> Fact:
        return self.load_fact(self.attention_of, not_said("the library"))

    def attention_of(self, load: Load) -> Value | Fact | None:
        value = self.from_load(load, "attn_implementation", "_attn_implementation")
        if value is not None:
            return value
        flash = self.from_load(load, "use_flash_attention_2", "use_flash_attn")
        if flash is not None:
            fact = fact_of(flash, not_said("the library"))
            if fact.is_literal:
                return literal("flash_attention_2") if fact.value else not_said("the library")
            return fact
        return None

    def read_device(self) -> Fact:
        if self.block.library == "vllm":
            return self.load_fact(lambda load: self.from_load(load, "device"), not_said("vLLM"))
        return self.load_fact(self.device_of, not_said("the library (the CPU)"))

    def device_of(self, load: Load) -> Value | Fact | None:
        value = self.from_load(load, "device_map", "device")
        for effect in load.effects:
            if effect.method == "cuda":
                value = Literal("cuda")
            elif effect.method == "cpu":
                value = Literal("cpu")
            elif effect.method == "to":
                moved = self.moved_to(effect)
                value = moved if moved is not None else value
        return value

    def moved_to(self, effect: Effect) -> Value | None:
        nodes = [keyword.value for keyword in effect.node.keywords if keyword.arg == "device"]
        for node in (*nodes, *effect.node.args):
            value = self.evaluator.value(node, effect.frame)
            if "dtype" in dotted_name(node) or is_dtype(value):
                continue
            return value
        return None

    def read_trust_remote_code(self) -> Fact:
        return self.load_fact(
            lambda load: self.from_load(load, "trust_remote_code"), not_said("the library (False)")
        )

    def read_quantization(self) -> Fact:
        return self.load_fact(self.quantization_of, not_said("the checkpoint's config.json"))

    def quantization_of(self, load: Load) -> Value | Fact | None:
        config = self.from_load(load, "quantization_config")
        if config is not None:
            facts = [self.bits_of(option) for option in options_of(config)]
            if all(fact == facts[0] for fact in facts):
                return facts[0]
            return Fact(None, "computed", " or ".join(dict.fromkeys(str(fact) for fact in facts)))
        for name in ("load_in_4bit", "load_in_8bit", "load_4bit", "load_8bit"):
            value = self.from_load(load, name)
            if value is not None:
                fact = fact_of(value, not_said("the library"))
                if fact.is_literal:
                    return literal(name) if fact.value else not_said("the library")
                return fact
        return self.from_load(load, "quantization")

    def bits_of(self, config: Value) -> Fact:
        """What a quantization config asks for."""
        unsaid = not_said("the checkpoint's config.json")
        inner = plain(config)
        settings = (
            self.evaluator.keywords(inner.node, inner.frame).entries
            if isinstance(inner, Call)
            else {}
        )
        for name in ("load_in_4bit", "load_in_8bit", "bits"):
            if name in settings:
                fact = fact_of(settings[name], unsaid)
                return Fact(
                    name if fact.value is True else fact.value, fact.source, f"{name}: {fact}"
                )
        fact = fact_of(config, unsaid)
        return unsaid if fact.is_literal and fact.value is None else fact

    def read_adapters(self) -> Fact:
        def adapters_of(load: Load) -> Value | Fact | None:
            if load.adapters:
                return literal(list(dict.fromkeys(adapter_name(name) for name in load.adapters)))
            return self.from_load(load, "enable_lora")

        return self.load_fact(adapters_of, not_said("nobody: no adapter is loaded"))

    # == Tokenizer ==

    def is_encoding(self, call: ast.Call, scope: Scope) -> Thing | None:
        name = dotted_name(call.func).rpartition(".")[2] or called_name(call)
        if not re.search(r"tok|proc|encode|apply_chat_template", name, re.IGNORECASE):
            return None
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in ENCODES:
            function = function.value
        thing = self.kinds.of(self.evaluator.value(function, self.evaluator.frame(scope)))
        if thing.kind in ("tokenizer", "processor"):
            return thing
        last = dotted_name(function).rpartition(".")[2]
        if thing.kind == "unknown" and re.search(r"^_?(\w*tokenizer|\w*processor|tok)$", last):
            return thing
        return None

    @cached_property
    def encodings(self) -> list[Encoding]:
        """Calls of tokenizers and processors near the block, the nearest first; those before it
        only."""
        found = self.encodings_in(self.around.near)
        return found or self.encodings_in(self.around.callers)

    def encodings_in(self, scopes: Sequence[Scope]) -> list[Encoding]:
        found = list[Encoding]()
        for scope in scopes:
            calls = sorted(scope.calls, key=start_of, reverse=True)
            for call in calls:
                if scope is self.block.scope and start_of(call) > end_of(self.block.node):
                    continue
                thing = self.is_encoding(call, scope)
                if thing is not None:
                    frame = self.evaluator.frame(scope)
                    found.append(Encoding(call, scope, thing, self.evaluator.keywords(call, frame)))
        return found

    @cached_property
    def tokenizer(self) -> Thing:
        """The tokenizer or processor of the block; of kind "unknown" where it cannot be said."""
        things = [encoding.thing for encoding in self.encodings]
        for call, scope in self.outcome.decodes:
            if isinstance(call.func, ast.Attribute):
                things.append(
                    self.kinds.of(
                        self.evaluator.value(call.func.value, self.evaluator.frame(scope))
                    )
                )
        for load in self.loads[:1]:
            if self.block.library == "pipeline" and "tokenizer" in load.settings.entries:
                things.append(self.kinds.of(load.settings.entries["tokenizer"]))
        for thing in things:
            if thing.kind in ("tokenizer", "processor") and thing.loads:
                return thing
        for thing in things:
            if thing.argument:
                return thing
        return Thing("unknown")

    def tokenizer_fact(self, read: Callable[[Load], Value | None], unsaid: Fact) -> Fact:
        thing = self.tokenizer
        if not thing.loads:
            return unsaid
        facts = [fact_of(read(load), self.load_rest(load) or unsaid) for load in thing.loads]
        if all(fact == facts[0] for fact in facts):
            return facts[0]
        return Fact(None, "computed", " or ".join(dict.fromkeys(str(fact) for fact in facts)))

    def encoding_setting(self, *names: str) -> Value | None:
        """A setting of the nearest call of a tokenizer that has it."""
        for encoding in self.encodings:
            for name in names:
                if name in encoding.settings.entries:
                    return encoding.settings.entries[name]
        return None

    def read_padding_side(self) -> Fact:
        if self.block.library == "vllm":
            return not_said("vLLM, which pads nothing")
        if self.block.is_remote:
            return REMOTE
        given = self.encoding_setting("padding_side")
        if given is not None:
            return fact_of(given, TOKENIZER_CONFIG)
        for scope in self.around.near:
            own = self.set_in(scope, "padding_side")
            if own is not None:
                return fact_of(own, TOKENIZER_CONFIG)
        fact = self.tokenizer_fact(
            lambda load: attribute_of(load, "padding_side"), TOKENIZER_CONFIG
        )
        if not fact.is_said and self.block.library == "pipeline":
            return self.pipeline_padding(fact)
        return fact

    def pipeline_padding(self, unsaid: Fact) -> Fact:
        for load in self.loads[:1]:
            for key, value in load.attributes.items():
                if key == "tokenizer.padding_side":
                    return fact_of(value, unsaid)
        return unsaid

    def set_in(self, scope: Scope, attribute: str) -> Value | None:
        """What a function sets on some tokenizer before the block."""
        for name, bindings in scope.bindings.items():
            if not name.endswith(f".{attribute}") or not re.search(
                r"tok|proc", name, re.IGNORECASE
            ):
                continue
            for binding in reversed(bindings):
                is_late = scope is self.block.scope and binding.position > end_of(self.block.node)
                if binding.value is not None and not is_late and binding.owner is scope:
                    return self.evaluator.value(binding.value, self.evaluator.frame(scope))
        return None

    def read_pad_token(self) -> Fact:
        if self.block.library == "vllm":
            return not_said("vLLM, which pads nothing")
        if "pad_token_id" in self.settings.entries:
            fact = fact_of(self.settings.entries["pad_token_id"], TOKENIZER_CONFIG)
            return Fact(fact.value, fact.source, fact.text or str(fact))
        for scope in self.around.near:
            own = self.set_in(scope, "pad_token") or self.set_in(scope, "pad_token_id")
            if own is not None:
                return fact_of(own, TOKENIZER_CONFIG)
        return self.tokenizer_fact(
            lambda load: attribute_of(load, "pad_token") or attribute_of(load, "pad_token_id"),
            TOKENIZER_CONFIG,
        )

    def read_truncation(self) -> Fact:
        if self.block.is_remote:
            return REMOTE
        given = self.encoding_setting("truncation")
        return fact_of(given, not_said("the library (False)"))

    # == Template ==

    @cached_property
    def template_call(self) -> tuple[ast.Call, Scope] | None:
        def renders(call: ast.Call) -> bool:
            return called_name(call) in (
                "apply_chat_template",
                "apply_chat_template_batch",
                "render_chat",
            )

        for scopes in (self.around.near, self.around.callers, self.caller_helpers):
            for call, scope in self.around.calls(scopes, renders):
                return call, scope
        return None

    @cached_property
    def caller_helpers(self) -> list[Scope]:
        """What the callers call, where the prompt of the block is an argument."""
        if not self.is_prompt_argument:
            return []
        found = list[Scope]()
        for scope in self.around.callers[:3]:
            found += list(self.around.callees(scope, 1, set()))
        return found[:20]

    @property
    def is_prompt_argument(self) -> bool:
        names = set(self.block.scope.parameters)
        return any(re.search(r"prompt|text|input|message|query|question", name) for name in names)

    def read_template(self) -> Fact:
        if self.block.is_remote:
            return REMOTE
        if self.is_vllm_chat:
            return literal("apply_chat_template", "inside vLLM's chat")
        if self.template_call is not None:
            return literal("apply_chat_template")
        if self.block.library == "pipeline" and self.is_given_messages():
            return literal("apply_chat_template", "inside the pipeline")
        return literal("hand-written" if self.is_hand_written() else "none")

    @property
    def is_vllm_chat(self) -> bool:
        return self.block.library == "vllm" and self.block.form == "chat"

    def is_hand_written(self) -> bool:
        scopes = [scope for scope in self.around.near if scope.qualname]
        scopes += [scope for scope in self.around.callers if scope.qualname]
        if not self.block.scope.qualname:
            scopes.append(self.block.scope)
        has_marker = any(HAND_WRITTEN.search(function_text(scope)) for scope in scopes)
        return has_marker or self.is_composed()

    def is_given_messages(self) -> bool:
        """Whether a pipeline is given a list of messages."""
        frame = self.evaluator.frame(self.block.scope)
        for node in self.block.node.args[:1]:
            for option in options_of(self.evaluator.value(node, frame)):
                inner = plain(option)
                first = inner.items[0] if isinstance(inner, Items) and inner.items else inner
                first = plain(first)
                if isinstance(first, Items) and first.items:
                    first = plain(first.items[0])
                if isinstance(first, Dict) and "role" in first.entries:
                    return True
            if re.search(r"message|chat|conversation", ast.unparse(node)):
                return True
        return False

    def is_composed(self) -> bool:
        """Whether the prompt is composed of words around an input, in the block's own functions."""
        frame = self.evaluator.frame(self.block.scope)
        nodes = list(self.block.node.args[:1])
        nodes += [encoding.node.args[0] for encoding in self.encodings[:3] if encoding.node.args]
        for node in nodes:
            for option in options_of(self.evaluator.value(node, frame)):
                if has_words(option, 0):
                    return True
        return False

    def template_setting(self, name: str, unsaid: Fact) -> Fact:
        """A switch of the chat template, given to it or among chat_template_kwargs."""
        if self.block.is_remote:
            return REMOTE
        if self.is_vllm_chat:
            settings = self.block.settings
        elif self.template_call is None:
            return not_said("nobody: no chat template is rendered")
        else:
            call, scope = self.template_call
            settings = self.evaluator.keywords(call, self.evaluator.frame(scope))
        inner = table_of(settings.entries.get("chat_template_kwargs"))
        value = settings.entries.get(name, inner.entries.get(name))
        if value is not None or not settings.rest or self.is_vllm_chat:
            return fact_of(value, unsaid)
        rest = fact_of(settings.rest[0], unsaid)
        source = rest.source if rest.source.startswith("arg ") else "config"
        return Fact(None, source, f"**{rest.text}")

    def read_add_generation_prompt(self) -> Fact:
        default = "vLLM (True)" if self.is_vllm_chat else "the library (False)"
        return self.template_setting("add_generation_prompt", not_said(default))

    def read_enable_thinking(self) -> Fact:
        return self.template_setting("enable_thinking", not_said("the chat template"))

    # == Sampling and budget ==

    @property
    def unsaid_setting(self) -> Fact:
        block = self.block
        if block.library == "score":
            return NOTHING_GENERATED
        if block.library == "loop":
            return not_said("the loop, which has none")
        return (
            REMOTE
            if block.is_remote and not self.settings.entries and not self.settings.rest
            else GENERATION_CONFIG
        )

    def vllm_default(self, default: str) -> Fact:
        """Without SamplingParams vLLM takes those of the checkpoint, with them its defaults."""
        return not_said(f"vLLM ({default})") if self.has_sampling_params else GENERATION_CONFIG

    def sampling(self, default: str, *names: str) -> Fact:
        if self.block.library == "score":
            return NOTHING_GENERATED
        if self.block.library == "loop":
            return self.loop_setting(names[0])
        if self.block.library == "vllm":
            return self.setting(self.vllm_default(default), *names)
        return self.setting(self.unsaid_setting, *names)

    def loop_setting(self, name: str) -> Fact:
        """A setting of a decode loop: a name of its own function."""
        scope = self.block.scope
        if name in scope.parameters or name in scope.bindings:
            value = self.evaluator.named(
                name, self.evaluator.frame(scope), start_of(self.block.node)
            )
            return fact_of(value, self.unsaid_setting)
        return self.unsaid_setting

    def read_do_sample(self) -> Fact:
        block = self.block
        if block.library == "vllm":
            return self.sampled_by_temperature()
        if block.library == "loop":
            return self.sampled_by_loop()
        return self.sampling("", "do_sample")

    def sampled_by_temperature(self) -> Fact:
        if self.block.form == "beam_search":
            return literal(False)
        temperature = self.read_temperature()
        if temperature.is_literal and isinstance(temperature.value, (int, float)):
            return literal(temperature.value > 0, f"by temperature {temperature.value}")
        if temperature.is_said:
            return Fact(None, "computed", "by temperature")
        if temperature.source == "not said: vLLM (1.0)":
            return not_said("vLLM (samples: temperature 1.0)")
        return temperature

    def sampled_by_loop(self) -> Fact:
        text = function_text(self.block.scope)
        has_sample = re.search(r"multinomial|Categorical|\.sample\(|sample_token", text) is not None
        has_greedy = re.search(r"argmax|topk\([^)]*,\s*1|\.max\(", text) is not None
        if has_sample and has_greedy:
            return Fact(None, "computed", "argmax or multinomial")
        return (
            literal(has_sample)
            if has_sample or has_greedy
            else Fact(None, "computed", "a sampler of its own")
        )

    def read_temperature(self) -> Fact:
        return self.sampling("1.0", "temperature")

    def read_top_p(self) -> Fact:
        return self.sampling("1.0", "top_p")

    def read_top_k(self) -> Fact:
        return self.sampling("none", "top_k")

    def read_repetition_penalty(self) -> Fact:
        return self.sampling("1.0", "repetition_penalty")

    def read_max_new_tokens(self) -> Fact:
        block = self.block
        if block.library == "vllm":
            default = "16" if block.form != "beam_search" else "none"
            return self.setting(self.vllm_default(default), "max_tokens")
        if block.library == "loop":
            return self.loop_budget()
        fact = self.sampling("", "max_new_tokens", "max_new_token")
        if not fact.is_said and "max_length" in self.settings.entries:
            whole = fact_of(self.settings.entries["max_length"], fact)
            if whole.is_said:
                return Fact(None, "computed", f"max_length {whole}, prompt included")
        return fact

    def loop_budget(self) -> Fact:
        for name in (
            "max_new_tokens",
            "max_tokens",
            "max_steps",
            "max_gen_len",
            "max_new_token",
            "max_length",
            "steps",
        ):
            fact = self.loop_setting(name)
            if fact.is_said:
                return fact
        return self.unsaid_setting

    def read_num_beams(self) -> Fact:
        if self.block.library == "vllm":
            return self.setting(not_said("vLLM, which has no beams here"), "beam_width")
        return self.sampling("", "num_beams")

    def read_n(self) -> Fact:
        default = not_said("the library (1)")
        if self.block.library in ("score", "loop"):
            return NOTHING_GENERATED if self.block.library == "score" else default
        name = "n" if self.block.library == "vllm" else "num_return_sequences"
        return self.setting(default, name)

    def read_seed(self) -> Fact:
        if self.block.library == "vllm":
            if "seed" in self.settings.entries:
                return self.setting(not_said("vLLM"), "seed")
            fact = self.load_fact(lambda load: load.settings.entries.get("seed"), not_said("vLLM"))
            if fact.is_said and fact.source != "computed":
                return fact
        scopes = [*self.around.near, *self.around.callers]
        cls = self.block.scope.self_class
        if cls is not None:
            scopes += list(cls.methods.values())
        scopes += [
            scope
            for scope in self.block.module.scopes
            if scope.name in ("", "main", "setup", "run", "__init__")
        ]
        for call, scope in self.around.calls(
            scopes, lambda call: bool(SEEDS.search(dotted_name(call.func)))
        ):
            if call.args or call.keywords:
                node = call.args[0] if call.args else call.keywords[0].value
                return fact_of(
                    self.evaluator.value(node, self.evaluator.frame(scope)), not_said("nobody")
                )
        return not_said("nobody: the global generator as it stands")

    def read_stop(self) -> Fact:
        block = self.block
        if block.library == "score":
            return NOTHING_GENERATED
        if block.library == "vllm":
            unsaid = not_said("the checkpoint's EOS")
            texts = self.setting(unsaid, "stop")
            return texts if texts.is_said else self.setting(unsaid, "stop_token_ids")
        if block.library == "loop":
            return self.loop_stop()
        for name in (
            "stop_strings",
            "stopping_criteria",
            "stop_sequence",
            "eos_token_id",
            "forced_eos_token_id",
        ):
            if name in self.settings.entries:
                fact = self.setting(self.unsaid_setting, name)
                if fact.is_said:
                    return Fact(fact.value, fact.source, f"{name}: {fact}")
        return self.rest_fact() or self.unsaid_setting

    def loop_stop(self) -> Fact:
        text = function_text(self.block.scope)
        if re.search(r"eos_token|stop|<eos>|eos_id", text):
            return Fact(None, "computed", "checked in the loop")
        return not_said("nobody: the loop ends with its budget")

    # == Behind the model ==

    def decode_setting(self, name: str) -> Fact | None:
        for call, scope in self.outcome.decodes:
            settings = self.evaluator.keywords(call, self.evaluator.frame(scope))
            if name in settings.entries:
                return fact_of(settings.entries[name], not_said("the library (False)"))
            if settings.rest:
                return fact_of(settings.rest[0], not_said("the library (False)"))
        return None

    def read_skip_special_tokens(self) -> Fact:
        library = self.block.library
        if self.block.is_remote:
            return REMOTE
        if library == "vllm":
            return self.setting(not_said("vLLM (True)"), "skip_special_tokens")
        said = self.streamer_setting("skip_special_tokens")
        said = said or self.decode_setting("skip_special_tokens")
        if said is not None:
            return said
        if library == "pipeline":
            return self.setting(not_said("the pipeline (True)"), "skip_special_tokens")
        is_decoded = bool(self.outcome.decodes)
        return not_said("the library (False)" if is_decoded else "nobody: nothing is decoded here")

    def streamer_setting(self, name: str) -> Fact | None:
        value = self.block.settings.entries.get("streamer")
        for option in options_of(value) if value is not None else ():
            inner = plain(option)
            if isinstance(inner, Call):
                settings = self.evaluator.keywords(inner.node, inner.frame)
                default = not_said("the library (False)")
                if (
                    name == "skip_prompt"
                    and name not in settings.entries
                    and len(inner.node.args) > 1
                ):
                    return fact_of(self.evaluator.value(inner.node.args[1], inner.frame), default)
                return fact_of(settings.entries.get(name), default)
        return None

    def read_prompt_slice(self) -> Fact:
        block = self.block
        if block.is_remote:
            return REMOTE
        if block.library in ("vllm", "score"):
            return literal("none")
        if block.library == "pipeline":
            return self.pipeline_slice()
        skipped = self.streamer_setting("skip_prompt")
        if skipped is not None and skipped.value is True:
            return literal("by_len", "by the streamer")
        if "by_len" in self.outcome.slices:
            return literal("by_len")
        return literal("by_text" if self.outcome.slices else "none")

    def pipeline_slice(self) -> Fact:
        full = self.setting(not_said("the pipeline (True)"), "return_full_text")
        if full.is_literal and full.value is False:
            return literal("by_text", "by the pipeline")
        return literal("by_text" if self.outcome.slices else "none")

    def read_strip(self) -> Fact:
        if self.block.library == "score":
            return literal(False)
        return literal(bool(self.outcome.strips))

    def read_cuts_by_hand(self) -> Fact:
        cuts = list(dict.fromkeys(self.outcome.cuts))
        if not cuts or self.block.library == "score":
            return literal(False)
        return literal(True, ", ".join(cuts[:3]))

    # == Batch ==

    def read_batch(self) -> Fact:
        size = self.batch_size()
        if size is not None:
            return size
        if self.block.library == "vllm":
            return self.batch_of_prompts()
        padding = self.encoding_setting("padding")
        is_padded = padding is not None and not is_literal(padding, False, None)
        if self.takes_list() and (is_padded or self.outcome.is_looped):
            return Fact(None, "computed", "many")
        if self.outcome.is_indexed and not self.outcome.is_looped:
            return literal(1)
        return Fact(None, "computed", "as many as are given")

    def batch_size(self) -> Fact | None:
        for name in ("batch_size",):
            if self.block.library == "pipeline" and name in self.settings.entries:
                return self.setting(not_said("the pipeline (1)"), name)
        scope: Scope | None = self.block.scope
        pattern = re.compile(r"(^|[._])(batch_size|batch_size_per_gpu|bs|bsz|batchsize)$")
        while scope is not None and scope.qualname:
            names = {
                dotted_name(node)
                for node in ast.walk(scope.node)
                if isinstance(node, (ast.Name, ast.Attribute))
            }
            for name in sorted(names):
                if pattern.search(name):
                    value = self.evaluator.named(
                        name, self.evaluator.frame(scope), start_of(self.block.node)
                    )
                    fact = fact_of(value, not_said("nobody"))
                    if fact.is_said and (fact.value is not None or fact.source != "computed"):
                        return fact
            scope = scope.parent
        return None

    def batch_of_prompts(self) -> Fact:
        nodes = [*self.block.node.args[:1]]
        nodes += [
            keyword.value
            for keyword in self.block.node.keywords
            if keyword.arg in ("prompts", "messages", "inputs")
        ]
        for node in nodes:
            value = plain(self.evaluator.value(node, self.evaluator.frame(self.block.scope)))
            if (
                isinstance(value, Items)
                and len(value.items) == 1
                and not is_message(value.items[0])
            ):
                return literal(1)
        return Fact(None, "computed", "as many as are given")

    def takes_list(self) -> bool:
        """Whether what is encoded is a list of several."""
        for encoding in self.encodings[:1]:
            nodes = [*encoding.node.args[:1]]
            nodes += [
                k.value
                for k in encoding.node.keywords
                if k.arg in ("text", "texts", "images", "prompt")
            ]
            for node in nodes:
                value = plain(self.evaluator.value(node, self.evaluator.frame(encoding.scope)))
                if isinstance(value, Items):
                    return len(value.items) > 1
                if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
                    return True
                if re.search(
                    r"(prompts|texts|inputs|questions|batch\w*|contexts|sentences|examples|chats)$",
                    dotted_name(node),
                ):
                    return True
        return False


def is_foreign(load: Load) -> bool:
    """Whether a function of another library loads, of which nobody here knows what it sets."""
    return load.name[:1].islower() and load.name != "pipeline"


def adapter_name(function: str) -> str:
    """ "PeftModel" of "peft.PeftModel.from_pretrained"."""
    return function.removesuffix(".from_pretrained").rpartition(".")[2]


def is_message(value: Value) -> bool:
    inner = plain(value)
    return isinstance(inner, Dict) and "role" in inner.entries


def attributes_of(value: Value) -> dict[str, Value]:
    """What was set on a value, directly."""
    found: dict[str, Value] = {}
    while isinstance(value, Changed):
        for key, item in value.attributes.items():
            if "." not in key:
                found.setdefault(key, item)
        value = value.base
    return found


def layered(under: Dict, over: Dict) -> Dict:
    return Dict({**under.entries, **over.entries}, (*under.rest, *over.rest))


def is_config_call(value: Call) -> bool:
    callee = plain(value.callee)
    name = callee.name if isinstance(callee, (Symbol, Member)) else ""
    if isinstance(callee, Symbol) and name.rpartition(".")[2].startswith("from_"):
        return True
    return name.rpartition(".")[2].endswith(
        ("Config", "Params", "from_pretrained", "from_optional")
    )


def is_dtype(value: Value) -> bool:
    inner = plain(value)
    return (
        isinstance(inner, Symbol)
        and re.search(r"float\d+|bfloat16|half|int8", inner.name) is not None
    )


def attribute_of(load: Load, name: str) -> Value | None:
    """An attribute of a tokenizer: set on it, on its tokenizer, or given to its loader."""
    for key in (name, f"tokenizer.{name}"):
        if key in load.attributes:
            return load.attributes[key]
    return load.settings.entries.get(name)


def has_words(value: Value, depth: int) -> bool:
    """Whether a value is a text with words around something that is put in."""
    inner = plain(value)
    parts = list[Value]()
    if isinstance(inner, Unknown):
        is_text = re.match(r"^[fF]?[rR]?['\"]", inner.text) is not None or "format" in inner.text
        if is_text and re.search(r"[A-Za-z]{3,}.*[{%]|[}].*[A-Za-z]{3,}", inner.text):
            return True
        parts = list(inner.parts)
    elif isinstance(inner, Items):
        parts = list(inner.items[:2])
    elif isinstance(inner, Call):
        callee = plain(inner.callee)
        return isinstance(callee, Member) and callee.name == "format"
    elif isinstance(inner, (Fallback, Choice)):
        parts = options_of(inner)
    return depth < 4 and any(has_words(part, depth + 1) for part in parts)


def kind_of(block: Block) -> str:
    """ "text", "vlm", "seq2seq" or "audio"."""
    names = " ".join([load.name for load in block.thing.loads] + [block.thing.task])
    if re.search(r"Whisper|Audio|Speech", names):
        return "audio"
    settings = set(block.settings.entries)
    is_vlm = VLM.search(names) or settings & {
        "pixel_values",
        "images",
        "image_sizes",
        "pixel_values_videos",
    }
    if is_vlm or "image" in block.thing.task:
        return "vlm"
    text = function_text(block.scope) if block.scope.qualname else ""
    if re.search(r"pixel_values|images=|process_vision_info|videos=|image_sizes", text):
        return "vlm"
    return "seq2seq" if SEQ2SEQ.search(names) else "text"
