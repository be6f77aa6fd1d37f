"""What the facts of a block are read from: its settings, and what stands around it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from parity.scan.blocks import Block, function_text
from parity.scan.evaluator import SETTINGS, Evaluator, merged, source_text
from parity.scan.flow import Flow, Outcome
from parity.scan.index import Scope, called_name, dotted_name, start_of
from parity.scan.kinds import Kinds, Thing
from parity.scan.origins import Fact, fact_of, fact_of_rest, not_said
from parity.scan.values import (
    ABSENT,
    Absent,
    Argument,
    Call,
    Changed,
    ClassValue,
    Dict,
    Element,
    Function,
    Item,
    Literal,
    Member,
    Option,
    Symbol,
    Unknown,
    Value,
    choose,
    joined,
    options_of,
    plain,
)

GENERATION_CONFIG = not_said("the checkpoint's generation_config.json")
TENSORS = re.compile(r"input|encod|batch|tensor|image|video|audio|feature|prompt|media|visual")
ITEMS = {"__getitem__", "__call__", "__iter__", "collate_fn", "collate", "tokenize"}
PREPARES = {"__init__", *ITEMS}


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
        around += self.block.scope.nested if self.block.scope.qualname else []
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

    @cached_property
    def item_makers(self) -> list[Scope]:
        """What prepares the items of data sets and collators that the callers make."""
        seen = {id(self.block.scope)}
        found = list[Scope]()
        for scope in self.callers[:3]:
            found += self.callees(scope, 1, seen)
        return [scope for scope in found if scope.owner is not None and scope.name in ITEMS]

    def calls(
        self, scopes: Sequence[Scope], accepts: Callable[[ast.Call], bool]
    ) -> Iterator[tuple[ast.Call, Scope]]:
        for scope in scopes:
            for call in sorted(scope.calls, key=start_of):
                if accepts(call):
                    yield call, scope


class Context:
    """One block, with all that its facts are read from."""

    def __init__(self, block: Block, evaluator: Evaluator, kinds: Kinds) -> None:
        self.block = block
        self.evaluator = evaluator
        self.kinds = kinds
        self.around = Surroundings(block, evaluator, kinds)
        self.has_sampling_params = False
        self.settings = self.all_settings()
        self.outcome: Outcome = Flow(block, evaluator, kinds).follow()

    def all_settings(self) -> Dict:
        """The settings of a call: keywords over its configuration object over what was set on the
        model."""
        block = self.block
        given = block.settings
        if block.library == "vllm":
            return self.sampling_params(given)
        config = given.entries.get("generation_config") or given.entries.get("generate_kwargs")
        if config is None and block.form in ("generate", "chat"):
            config = self.positional_config()
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
        return self.config_of(value) if value is not None else Dict({}, given.rest)

    def positional_config(self) -> Value | None:
        """The settings among positional arguments: `model.generate(ids, config)`,
        `model.chat(tokenizer, pixels, question, config)`."""
        frame = self.evaluator.frame(self.block.scope)
        for node in self.block.node.args[1 : 5 if self.block.is_remote else 2]:
            value = self.evaluator.value(node, frame)
            inner = plain(value)
            is_config = isinstance(inner, Dict) or (
                isinstance(inner, Call) and is_config_call(inner)
            )
            if is_config or SETTINGS.search(dotted_name(node).lower()):
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
        later = attributes_of(value)
        options = options_of(plain(value))
        return joined([self.one_config(Changed(option, later)) for option in options])

    def one_config(self, value: Value) -> Dict:
        set_later = attributes_of(value)
        inner = plain(value)
        if isinstance(inner, Dict):
            table = inner
        elif isinstance(inner, Call) and is_config_call(inner):
            table = self.evaluator.keywords(inner.node, inner.frame)
            if called_name(inner.node) == "from_dict" and inner.node.args:
                given = self.evaluator.value(inner.node.args[0], inner.frame)
                table = merged(merged(Dict({}), given), table)
        elif isinstance(inner, Literal):
            table = Dict({})
        else:
            table = Dict({}, (value,))
        rest = tuple(one for one in table.rest if not self.is_checkpoint_config(plain(one)))
        entries = dict(table.entries)
        for key, item in set_later.items():
            before = entries.get(key) or (Item(rest[0], key) if rest else ABSENT)
            entries[key] = choose(
                [before if isinstance(option, Absent) else option for option in options_of(item)]
            )
        return Dict(entries, rest)

    def is_checkpoint_config(self, value: Value) -> bool:
        """Whether a value is `model.generation_config`: the checkpoint decides what it holds."""
        if not isinstance(value, Member) or value.name != "generation_config":
            return False
        return self.kinds.of(value.base).kind == "model"

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
            if id(rest) not in self.inputs and not self.is_input(rest):
                return fact_of_rest(rest)
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
            if TENSORS.search(str(name)) and not SETTINGS.search(str(name)):
                continue
            if not self.kinds.is_encoded(inner) and not is_named_as_input(inner):
                return False
        return True


def is_named_as_input(value: Value) -> bool:
    """Whether a value is not known, and what makes it is called so that it makes tensors."""
    while isinstance(value, (Member, Item, Element)):
        value = plain(value.base)
    if isinstance(value, Unknown):
        return re.search(r"input|encod|\.to\(", value.text) is not None
    name = source_text(value.node.func, 200) if isinstance(value, Call) else ""
    is_named = re.search(r"processor|tokeniz|encode|prepare|collat|inputs", name) is not None
    return is_named and not SETTINGS.search(name)


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
