"""What becomes of a block's result: slices, decoding, strips and cuts, followed forwards through
its function, the
functions that it is handed to, and the callers that it is returned to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from parity.scan.blocks import GENERATE, Block
from parity.scan.evaluator import Evaluator, source_text
from parity.scan.index import (
    FUNCTIONS,
    Arm,
    Binding,
    Position,
    Scope,
    called_name,
    dotted_name,
    end_of,
    start_of,
)
from parity.scan.kinds import Kinds
from parity.scan.values import Frame, Function, options_of, plain

IDS, TEXT = "ids", "text"
DECODES = {
    "decode",
    "batch_decode",
    "decode_batch",
    "convert_tokens_to_string",
    "post_process_generation",
}
CHOICES = {"argmax", "multinomial", "sample", "choice"}  # of a decode loop: they give a token
STRIPS = {"strip", "rstrip", "lstrip"}
SPLITS = {"split", "rsplit", "partition", "rpartition"}
STRING_METHODS = STRIPS | {
    "split", "replace", "partition", "rpartition", "removeprefix", "removesuffix", "lower", "join",
    "rsplit", "splitlines", "upper",
}  # fmt: skip
KEEPS = {
    "tolist", "cpu", "numpy", "detach", "to", "clone", "squeeze", "list", "zip", "enumerate",
    "tuple", "sorted", "reversed", "copy", "flatten", "view", "reshape", "unsqueeze", "tqdm", "map",
    "next", "iter", "str", "append", "extend", "items", "values", "array", "strip", "get", "text",
    "ravel", "cast",
}  # fmt: skip
SEARCHES = {"find", "index", "rfind", "rindex", "start", "end"}
COUNTS = SEARCHES | {"len", "range", "isinstance", "print", "type", "max", "min", "sum", "count"}
PROMPTS = re.compile(
    r"prompt|input|question|query|text|context|instruction|message|source|template", re.IGNORECASE
)
TURNS = re.compile(r"assistant|\[/INST\]|model\n|<\|im_start\|>|start_header|GPT|bot", re.I)
ANSWERS = re.compile(r"Response|Answer", re.I)
TEXT_KEYS = ("generated_text", "text", "summary_text", "translation_text", "answer", "content")
MAX_HOPS = 3
READ = (ast.Call, ast.Subscript, ast.For, ast.ListComp, ast.GeneratorExp, ast.SetComp)


@dataclass
class Outcome:
    """What is done to a result.   decodes: the calls, with their scopes.   slices: "by_len",
    "by_text".
    strips: names of methods. cuts: what a text is cut at, as written."""

    decodes: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    slices: list[str] = field(default_factory=list)
    strips: list[str] = field(default_factory=list)
    is_strip_certain: bool = False
    cuts: list[str] = field(default_factory=list)
    is_indexed: bool = False
    is_looped: bool = False
    is_decoded_together: bool = False
    seen: set[int] = field(default_factory=set)


class Flow:
    """Follows the result of one block."""

    def __init__(self, block: Block, evaluator: Evaluator, kinds: Kinds) -> None:
        self.block = block
        self.evaluator = evaluator
        self.kinds = kinds
        self.outcome = Outcome()
        self.parts: dict[int, dict[str, str]] = {}  # call of a function that returns parts -> them

    def follow(self) -> Outcome:
        starts_as = TEXT if self.block.is_remote else IDS
        self.walk(self.block.scope, {}, (self.block.node, starts_as), 0)
        return self.outcome

    def walk(
        self, scope: Scope, names: dict[str, str], origin: tuple[ast.Call | None, str], hops: int
    ) -> None:
        """One function.   names: what its parameters hold. origin: the call whose result is
        followed."""
        if id(scope) in self.outcome.seen or hops > MAX_HOPS:
            return
        self.outcome.seen.add(id(scope))
        given = {name: {(0, 0): stage} for name, stage in names.items()}
        Body(self, scope, given, origin, hops).read()


@dataclass
class Body:
    """One function on the way.   names: dotted name -> position of a binding -> what it holds."""

    flow: Flow
    scope: Scope
    names: dict[str, dict[Position, str]]
    origin: tuple[ast.Call | None, str]
    hops: int

    def read(self) -> None:
        start = start_of(self.origin[0]) if self.origin[0] is not None else (0, 0)
        if self.scope is self.flow.block.scope and self.own_loops():
            start = min(begin for begin, _ in self.own_loops())
        self.bind_names(start)
        for node in self.nodes(start):
            self.read_node(node)
        self.leave()

    def bind_names(self, start: Position) -> None:
        """Names that hold the result, or a part of it, from where they are bound."""
        thread = self.streamer_name()
        if thread:
            self.keep(thread, TEXT, start)
        bindings = list[Binding]()
        for group in self.scope.bindings.values():
            bindings += [binding for binding in group if binding.position >= start]
        bindings.sort(key=lambda binding: binding.position)
        for _ in range(2):  # a loop may bring a later name to an earlier use
            for binding in bindings:
                self.bind(binding)

    def bind(self, binding: Binding) -> None:
        call = binding.value
        if call is None:
            return
        if binding.kind in ("call", "pop"):
            is_added = isinstance(call, ast.Call) and called_name(call) in ("append", "extend")
            if is_added and isinstance(call, ast.Call) and call.args and self.stage(call.args[0]):
                self.keep(binding.name, self.stage(call.args[0]), binding.position)
        else:
            self.bind_value(binding, call)

    def bind_value(self, binding: Binding, value: ast.expr) -> None:
        """What a name holds, and each part of it: of `text, ids = ...`, `{"ids": ids}`."""
        name, position = binding.name, binding.position
        parts = self.parts(value, position)
        if binding.kind == "item" and isinstance(binding.key, ast.Constant):
            self.keep(part_name(name, binding.key.value), self.stage(value), position)
        if binding.kind == "unpack" and parts and isinstance(binding.key, tuple):
            self.keep(name, parts.get(repr(binding.key[0]), ""), position)
            return
        self.keep(name, self.stage(value), position)
        for key, stage in parts.items() if binding.kind == "assign" else ():
            self.names.setdefault(f"{name}[{key}]", {})[position] = stage

    def parts(self, node: ast.expr, position: Position) -> dict[str, str]:
        """What the parts of a value hold, by key or index as written; empty where it has none."""
        if id(node) in self.flow.parts:
            return self.flow.parts[id(node)]
        if isinstance(node, ast.Tuple):
            return {repr(index): self.stage(part) for index, part in enumerate(node.elts)}
        if isinstance(node, ast.Dict):
            pairs = [(k.value, v) for k, v in zip(node.keys, node.values) if is_constant(k)]  # type: ignore[union-attr]
            return {repr(key): self.stage(value) for key, value in pairs}
        head = f"{dotted_name(node)}["
        names = [name for name in self.names if name.startswith(head)] if head != "[" else []
        return {name[len(head) : -1]: self.held(name, position) for name in names}

    def streamer_name(self) -> str:
        """The streamer that a thread writes its text to."""
        value = self.flow.block.settings.entries.get("streamer")
        if value is None or self.hops:
            return ""
        for node in ast.walk(self.flow.block.node):
            if isinstance(node, (ast.Name, ast.Attribute)) and "streamer" in dotted_name(node):
                return dotted_name(node)
        return "streamer"

    def keep(self, name: str, stage: str, position: Position) -> None:
        if stage or name in self.names:
            self.names.setdefault(name, {})[position] = stage

    def held(self, name: str, position: Position) -> str:
        """What a name holds where it is used: by the last binding before it, else by the first.
        What an arm
        that the use is not in puts in its place, as `except: out = ""`, does not count."""
        known = self.names.get(name, {})
        for bound in sorted(known, reverse=True):
            if bound <= position and (known[bound] or self.is_certain(bound, position)):
                return known[bound]
        return known[min(known)] if known and min(known) > position else ""

    def is_certain(self, bound: Position, position: Position) -> bool:
        return all(arm.contains(position) for arm in self.scope.arms_at(bound))

    def nodes(self, start: Position) -> Iterator[ast.AST]:
        todo = list(ast.iter_child_nodes(self.scope.node))
        found = list[ast.AST]()
        while todo:
            node = todo.pop()
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                continue
            if isinstance(node, READ) and end_of(node) >= start:
                found.append(node)
            todo.extend(ast.iter_child_nodes(node))
        yield from sorted(found, key=start_of)

    # == What an expression holds ==

    def stage(self, node: ast.AST) -> str:
        """IDS, TEXT or "" """
        if node is self.origin[0]:
            return self.origin[1]
        visit = getattr(self, f"stage_{type(node).__name__}", None)
        if visit is not None:
            found: str = visit(node)
            return found
        if isinstance(node, (ast.Compare, ast.Constant, ast.Lambda)):
            return ""
        return self.latest(*ast.iter_child_nodes(node))

    def latest(self, *nodes: ast.AST) -> str:
        stages = [self.stage(node) for node in nodes]
        return TEXT if TEXT in stages else IDS if IDS in stages else ""

    def stage_Name(self, node: ast.Name) -> str:
        return self.held(node.id, start_of(node))

    def stage_Attribute(self, node: ast.Attribute) -> str:
        name = dotted_name(node)
        if name in self.names:
            return self.held(name, start_of(node))
        if node.attr in ("shape", "device", "dtype", "logits", "loss", "scores"):
            return ""
        stage = self.stage(node.value)
        return TEXT if stage and node.attr in ("text", "generated_text", "completion") else stage

    def stage_Subscript(self, node: ast.Subscript) -> str:
        if isinstance(node.slice, ast.Constant):
            part = part_name(dotted_name(node.value), node.slice.value)
            if part in self.names:
                return self.held(part, start_of(node))
        stage = self.stage(node.value)
        is_text = isinstance(node.slice, ast.Constant) and node.slice.value in TEXT_KEYS
        return TEXT if stage and is_text else stage

    def stage_IfExp(self, node: ast.IfExp) -> str:
        return self.latest(node.body, node.orelse)

    def stage_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> str:
        for generator in node.generators:
            stage = self.stage(generator.iter)
            self.flow.outcome.is_looped |= bool(stage)
            for part in ast.walk(generator.target):
                if isinstance(part, ast.Name):
                    self.keep(part.id, stage, start_of(node))
        return self.stage(node.elt)

    stage_GeneratorExp = stage_ListComp  # noqa: N815 - named by ast
    stage_SetComp = stage_ListComp  # noqa: N815 - named by ast

    def stage_Call(self, node: ast.Call) -> str:
        name = called_name(node)
        if name in GENERATE or self.is_choice(node):
            return IDS if self.is_choice(node) else ""  # what another block generates is its own
        inside = self.latest(*node.args, *(keyword.value for keyword in node.keywords))
        if self.is_decode(node) or is_map_of_decode(node):
            return TEXT if inside else ""
        own = self.stage(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if own and name in STRING_METHODS:
            return TEXT
        if name in KEEPS or name == "join":
            return own or inside
        if name in COUNTS or not (inside or own):
            return ""
        return self.stage_of_function(node, inside or own)

    def is_choice(self, node: ast.Call) -> bool:
        """Whether a call chooses a token of the decode loop that is followed."""
        is_in_loop = self.scope is self.flow.block.scope and self.in_loop(start_of(node))
        return is_in_loop and called_name(node) in CHOICES

    def in_loop(self, position: Position) -> bool:
        """Whether a position is in a loop around a decode loop's forward pass."""
        return any(start <= position <= end for start, end in self.own_loops())

    def own_loops(self) -> list[tuple[Position, Position]]:
        """The loops around a decode loop's forward pass."""
        block = self.flow.block
        if block.library != "loop":
            return []
        at = start_of(block.node)
        return [loop for loop in block.scope.loops if loop[0] <= at <= loop[1]]

    def stage_of_function(self, node: ast.Call, stage: str) -> str:
        """What a function makes of a result: of the repository it is followed; of another its name
        decides."""
        own = self.own_function(node)
        if own is not None:
            self.enter(own, node, stage)
            return TEXT if any(called_name(call) in DECODES for call in own.calls) else stage
        return TEXT if "decode" in called_name(node) else stage

    def own_function(self, node: ast.Call) -> Scope | None:
        """The function of the repository that a call calls."""
        callee = self.flow.evaluator.value(node.func, self.flow.evaluator.frame(self.scope))
        functions = [plain(option) for option in options_of(callee)]
        return next((one.scope for one in functions if isinstance(one, Function)), None)

    def is_decode(self, node: ast.Call) -> bool:
        """Whether a call is a tokenizer's, and no function of the repository of that name."""
        return called_name(node) in DECODES and self.own_function(node) is None

    def enter(self, scope: Scope, node: ast.Call, stage: str) -> None:
        """Follow a result into a function of the repository."""
        values = self.flow.evaluator.bind_arguments(scope, node, Frame(self.scope), None)
        names = {}
        for name, given in values.items():
            inner = (
                self.stage(given[0])
                if isinstance(given, tuple) and given[1].scope is self.scope
                else ""
            )
            if inner:
                names[name] = inner
        if names:
            self.flow.walk(scope, names, (None, stage), self.hops + 1)

    def leave(self) -> None:
        """Follow a result that is returned to the callers, until something has decoded it."""
        self.leave_on_object()
        stages = [self.stage(node) for node in self.scope.returns]
        parts = self.returned_parts()
        stage = TEXT if TEXT in stages else IDS
        has_ids = IDS in parts.values() or (IDS in stages and stage == IDS)
        is_done = bool(self.flow.outcome.decodes) and not has_ids
        if self.hops >= MAX_HOPS or not any(stages) or is_done:
            return
        for count, (caller, call) in enumerate(self.flow.kinds.calls_of(self.scope, 4)):
            if count < 4:
                self.flow.parts[id(call)] = parts
                self.flow.walk(caller, {}, (call, stage), self.hops + 1)

    def returned_parts(self) -> dict[str, str]:
        """What the parts of the value hold that a function returns; empty where returns differ."""
        found = [self.parts(node, end_of(node)) for node in self.scope.returns]
        return found[0] if found and all(parts == found[0] for parts in found) else {}

    def leave_on_object(self) -> None:
        """Follow ids that are stored on the object to its other methods."""
        cls = self.scope.self_class
        if cls is None or self.hops >= MAX_HOPS:
            return
        stored = {}
        for name, stages in self.names.items():
            if name.startswith(f"{self.scope.self_name}.") and stages[max(stages)] == IDS:
                stored[name] = IDS
        for method in cls.methods.values() if stored else ():
            self.flow.walk(method, stored, (None, IDS), self.hops + 1)

    # == What is done ==

    def read_node(self, node: ast.AST) -> None:
        if isinstance(node, ast.Subscript):
            self.read_subscript(node)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            self.stage(node)
        elif isinstance(node, ast.For):
            if self.stage(node.iter):
                self.flow.outcome.is_looped = True
        elif isinstance(node, ast.Call):
            self.read_call(node)

    def read_call(self, node: ast.Call) -> None:
        outcome = self.flow.outcome
        name = called_name(node)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if self.is_decode(node) and self.latest(*arguments):
            outcome.decodes.append((node, self.scope))
            outcome.is_decoded_together |= name in ("batch_decode", "decode_batch")
        elif is_map_of_decode(node):
            outcome.decodes.append((node, self.scope))
        elif name == "narrow":
            self.read_narrow(node, arguments)
        elif isinstance(node.func, ast.Attribute) and self.stage(node.func.value):
            self.read_string_method(node, node.func)
        elif (
            dotted_name(node.func) in ("re.sub", "re.split")
            and len(node.args) > 1
            and self.latest(*node.args[1:]) == TEXT
        ):
            outcome.cuts.append(source_text(node.args[0], 40))
        if self.latest(*arguments):
            self.stage(node)  # enters functions of the repository

    def read_narrow(self, node: ast.Call, arguments: list[ast.expr]) -> None:
        """`ids.narrow(1, start, length)`, `torch.narrow(ids, 1, start, length)`"""
        stage = self.stage(node.func) or self.latest(*arguments[:1])
        if stage and len(arguments) > 2:
            self.read_bound(arguments[-2], stage, is_start=True)

    def read_string_method(self, node: ast.Call, function: ast.Attribute) -> None:
        outcome = self.flow.outcome
        name = function.attr
        if name in STRIPS and not node.args:
            outcome.strips.append(name)
            outcome.is_strip_certain |= not any(
                arm.test is not None and not self.has_origin(arm)
                for arm in self.scope.arms_at(start_of(node))
            )
        elif name in STRIPS:
            outcome.cuts.append(source_text(node.args[0], 40))
        elif name in ("replace", "removeprefix") and node.args:
            if is_prompt(node.args[0]):
                outcome.slices.append("by_text")
            else:
                outcome.cuts.append(source_text(node.args[0], 40))
        elif name == "removesuffix" and node.args:
            outcome.cuts.append(source_text(node.args[0], 40))

    def has_origin(self, arm: Arm) -> bool:
        """Whether an arm holds the call whose result is followed."""
        return self.origin[0] is not None and arm.contains(start_of(self.origin[0]))

    def read_subscript(self, node: ast.Subscript) -> None:
        """`ids[:, n:]`, `text[len(prompt):]`, `text.split(stop)[0]`, `text[:end]`."""
        if self.scope is self.flow.block.scope and self.in_loop(start_of(node)):
            return  # of what the model is given next
        outcome = self.flow.outcome
        inner = node.value
        if isinstance(inner, ast.Call) and called_name(inner) in SPLITS:
            if inner.args and self.stage(inner.func) and not is_number(inner.args[0]):
                self.read_split(node, inner)
            return
        stage = self.stage(inner)
        if not stage:
            return
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        last = parts[-1]
        if not isinstance(last, ast.Slice):
            outcome.is_indexed |= isinstance(last, ast.Constant) and last.value == 0
            return
        if stage == TEXT and self.is_list(inner):
            return  # of some of the texts
        self.read_bound(last.lower, stage, is_start=True)
        self.read_bound(last.upper, stage, is_start=False)

    def is_list(self, node: ast.expr) -> bool:
        """Whether a value is surely a list of texts."""
        if isinstance(node, ast.Call):
            return called_name(node) in ("batch_decode", "list", "sorted")
        values = [binding.value for binding in self.scope.bindings.get(dotted_name(node), ())]
        is_known = all(value is not None and dotted_name(value) == "" for value in values)
        if values and is_known:
            return all(value is not None and self.is_list(value) for value in values)
        return isinstance(node, (ast.List, ast.ListComp))

    def read_bound(self, bound: ast.expr | None, stage: str, *, is_start: bool) -> None:
        """`text[n:]` takes the prompt off where n is no number, as of `ids[1:]`, and was not
        searched for; what was searched for is cut by hand."""
        if bound is None or is_zero(bound):
            return
        outcome = self.flow.outcome
        markers = self.searches(bound)
        is_of_prompt = any(is_prompt(node) or TURNS.search(ast.unparse(node)) for node in markers)
        is_prompt_end = is_start and (is_of_prompt or not (markers or is_number(bound)))
        if is_prompt_end:
            outcome.slices.append("by_len" if stage == IDS else "by_text")
        if markers or (stage == TEXT and not is_prompt_end):
            outcome.cuts.append(source_text(bound, 40))

    def searches(self, bound: ast.expr) -> list[ast.expr]:
        """What is searched for to find a bound, or the object that was found: of `text.find(x)`,
        `match.end()`, and of names that hold such."""
        nodes = [bound]
        for part in ast.walk(bound):
            bindings = self.scope.bindings.get(dotted_name(part), ())
            nodes += [binding.value for binding in bindings if binding.value is not None]
        found = list[ast.expr]()
        for node in nodes:
            for part in ast.walk(node):
                if isinstance(part, ast.Call) and called_name(part) in SEARCHES:
                    found += part.args[:1] or [part.func]
        return found

    def read_split(self, node: ast.Subscript, call: ast.Call) -> None:
        outcome = self.flow.outcome
        index = node.slice
        is_first = is_zero(index)
        marker = source_text(call.args[0], 40)
        is_turn = TURNS.search(marker) or ANSWERS.search(marker)
        if not is_first and (is_prompt(call.args[0]) or is_turn):
            outcome.slices.append("by_text")
        else:
            outcome.cuts.append(marker)


def is_map_of_decode(node: ast.Call) -> bool:
    """`map(tokenizer.decode, ids)`"""
    is_map = called_name(node) == "map" and bool(node.args)
    return is_map and getattr(node.args[0], "attr", "") in DECODES


def is_constant(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant)


def part_name(name: str, key: object) -> str:
    """What a part of a value is known by: "both['ids']"."""
    return f"{name}[{key!r}]"


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def is_prompt(node: ast.expr) -> bool:
    return not isinstance(node, ast.Constant) and PROMPTS.search(ast.unparse(node)) is not None
