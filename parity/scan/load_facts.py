"""How a block's model is loaded: dtype, attention, device, quantization, adapters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from parity.scan.blocks import Block
from parity.scan.context import Context
from parity.scan.evaluator import merged
from parity.scan.index import dotted_name
from parity.scan.kinds import Load
from parity.scan.origins import Fact, fact_of, fact_of_rest, literal, not_said
from parity.scan.values import (
    Call,
    Dict,
    Effect,
    Instance,
    Literal,
    Symbol,
    Value,
    is_literal,
    options_of,
    plain,
    table_of,
)

MODEL_KWARGS = ("model_kwargs", "model_init_kwargs")
DTYPE_METHODS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
SEQ2SEQ = re.compile(r"Seq2Seq|T5|Bart|Pegasus|Marian|M2M|NllbMoe|Whisper|EncoderDecoder|FiD")
DTYPE_FLAGS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DTYPE_NAMES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "half": "float16",
    "float": "float32",
}


class LoadFacts(Context):
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
            decides = unsaid
            if is_foreign(load):
                decides = not_said(f"{load.name}, which is not in this repository")
            elif self.block.thing.kind == "own" and isinstance(load.call, Instance):
                decides = not_said(f"{load.name}, a class of this repository")
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
        rest = list(load.settings.rest)
        for nested in MODEL_KWARGS:
            if nested in load.settings.entries:
                rest += merged(Dict({}), load.settings.entries[nested]).rest
        return fact_of_rest(rest[0]) if rest else None

    def from_load(self, load: Load, *names: str) -> Value | None:
        """A setting of a loader, also among `model_kwargs` of a pipeline."""
        for name in names:
            value = load.settings.entries.get(name)
            if value is not None and not is_literal(value, None):
                return value
        for nested in MODEL_KWARGS:
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
        for name, dtype in DTYPE_FLAGS.items():  # of remote code, as Qwen's
            flag = self.from_load(load, name) if value is None else None
            if flag is not None and not is_literal(flag, False):
                value = Literal(dtype) if is_literal(flag, True) else flag
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


def is_foreign(load: Load) -> bool:
    """Whether a function of another library loads, of which nobody here knows what it sets."""
    return load.name[:1].islower() and load.name != "pipeline"


def is_encoder_decoder(block: Block) -> bool:
    """Whether all classes that a block's model may be of have an encoder."""
    classes = [*(load.name for load in block.thing.loads), *block.thing.task.split()]
    return bool(classes) and all(map(SEQ2SEQ.search, classes))


def adapter_name(function: str) -> str:
    """ "PeftModel" of "peft.PeftModel.from_pretrained"."""
    return function.removesuffix(".from_pretrained").rpartition(".")[2]


def is_dtype(value: Value) -> bool:
    inner = plain(value)
    return (
        isinstance(inner, Symbol)
        and re.search(r"float\d+|bfloat16|half|int8", inner.name) is not None
    )
