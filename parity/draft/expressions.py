"""Translates expressions: each old value to what stands in its place in the draft.

Whoever derives from `Expressions` adds calls (calls.py) and statements (statements.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import libcst as cst
import libcst.matchers as m

from parity.draft.roles import (
    PLACES,
    Demote,
    Unsure,
    Value,
    code_of,
    constant,
    dotted,
    is_short,
    parse,
)

# Methods that change what they are called on.
CHANGES = ("append", "extend", "insert", "pop", "clear", "remove", "reverse", "sort", "update",
           "setdefault")  # fmt: skip
ROW_OF = {"results": "result", "new": "new_row", "ids": "ids_row", "outputs": "output"}


@dataclass
class Scope:
    """Names of one function, or of the module.

    env: variable, or "self.attribute", -> value.   outer: that of the module, or of the class.
    function: qualified name; "" of the module.   pending: statements that stand before the current
    one.   loops, branches: how deep the current statement is in them.   seed: of the next generate.
    lazy: how deep the current expression is in ones that may not be evaluated.   calls: translated.
    target: variable that the current statement assigns.   whole: all that it assigns or returns.
    """

    function: str = ""
    env: dict[str, Value] = field(default_factory=dict)
    outer: Scope | None = None
    pending: list[cst.BaseStatement] = field(default_factory=list)
    loops: int = 0
    branches: int = 0
    seed: cst.BaseExpression | None = None
    seed_depth: int = 0
    is_seed_used: bool = False
    is_inline: bool = False
    returned: Value | None = None
    class_name: str = ""
    engine: cst.BaseExpression | None = None
    target: str = ""
    whole: cst.BaseExpression | None = None
    lazy: int = 0
    calls: dict[cst.Call, Value] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether a statement before the current one is run where this expression is."""
        return not self.is_inline and not self.lazy

    @contextlib.contextmanager
    def lazily(self) -> Iterator[None]:
        self.lazy += 1
        try:
            yield
        finally:
            self.lazy -= 1

    def find(self, name: str) -> Value | None:
        if name in self.env:
            return self.env[name]
        return self.outer.find(name) if self.outer else None

    def find_engine(self) -> cst.BaseExpression | None:
        if self.engine is not None:
            return self.engine
        return self.outer.find_engine() if self.outer else None

    def inner(self) -> Scope:
        """The scope of a comprehension."""
        return Scope(
            self.function,
            outer=self,
            is_inline=True,
            class_name=self.class_name,
            loops=self.loops + 1,
        )


Part = TypeVar("Part", bound=cst.CSTNode)


class Children(cst.CSTTransformer):
    """Replaces the outermost expressions below a node. The keyword of an argument is none."""

    def __init__(self, root: cst.CSTNode, change: Callable[[cst.BaseExpression], cst.CSTNode]):
        super().__init__()
        self.root = root
        self.change = change
        self.keywords: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Arg) and node.keyword is not None:
            self.keywords.add(node.keyword)
        return node is self.root or not isinstance(node, cst.BaseExpression)

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if original_node is self.root or original_node in self.keywords:
            return updated_node
        if not isinstance(original_node, cst.BaseExpression):
            return updated_node
        return self.change(original_node)


def plain(node: cst.BaseExpression, kind: str = "") -> Value:
    return Value(node, kind=kind)


class Expressions:
    """Translation of expressions, by the kind of node."""

    demoted: set[str]

    def translate(self, node: cst.BaseExpression, scope: Scope) -> Value:
        """Raises Unsure, Demote."""
        rules: dict[type[cst.CSTNode], Callable[[Any, Scope], Value]] = {
            cst.Name: self.name,
            cst.Attribute: self.attribute,
            cst.Subscript: self.subscript,
            cst.Call: self.call,
            cst.ListComp: self.comprehension,
            cst.GeneratorExp: self.comprehension,
            cst.SetComp: self.collected,
            cst.DictComp: self.collected,
            cst.Tuple: self.display,
            cst.List: self.display,
            cst.IfExp: self.conditional,
            cst.BooleanOperation: self.either,
            cst.Comparison: self.compared,
            cst.Lambda: self.closed,
        }
        return rules.get(type(node), self.others)(node, scope)

    def call(self, node: cst.Call, scope: Scope) -> Value:
        raise NotImplementedError

    def word(self, name: str) -> str:
        raise NotImplementedError

    # == Plain values ==

    def others(self, node: cst.BaseExpression, scope: Scope) -> Value:
        """Expressions that do nothing of their own with what they hold."""
        return plain(self.with_plain(node, scope), kind_of(node))

    def with_plain(self, node: Part, scope: Scope) -> Part:
        """A node with the expressions below it translated, as plain ones."""
        changed = node.visit(Children(node, lambda child: self.plain_node(child, scope)))
        assert isinstance(changed, type(node))
        return changed

    def closed(self, node: cst.BaseExpression, scope: Scope) -> Value:
        """A function without a name: left alone where it uses nothing that changes."""
        names = NamesIn.of(node)
        for name in names:
            value = scope.find(name)
            if value is not None and value.role != "plain":
                what = f"`{name}` is used in {code_of(node)}"
                raise Unsure(what, "a function without a name is not translated")
        return plain(node)

    def plain_node(self, node: cst.BaseExpression, scope: Scope) -> cst.BaseExpression:
        return self.as_plain(self.translate(node, scope), node, scope)

    def as_plain(self, value: Value, old: cst.BaseExpression, scope: Scope) -> cst.BaseExpression:
        """A value where code of the old function uses it that nobody translates."""
        if value.role == "plain" and value.node is not None:
            return value.node
        if value.role == "engine" and value.kind in ("tokenizer", "processor"):
            return self.tokenizer_node(value)
        if value.role in ("request", "request_list"):
            return self.as_text(value)
        if value.role == "length" and value.count is not None:
            return value.count
        if value.role == "settings" and value.node is not None:
            return value.node
        if value.role == "pipe_message" and value.node is not None:
            return parse('{"role": "assistant", "content": {row}.text}', row=value.node)
        if value.role == "pipe_chat" and value.node is not None and "chat" in value.details:
            message = self.as_plain(replace(value, role="pipe_message"), old, scope)
            return parse("[*{chat}, {message}]", chat=value.details["chat"], message=message)
        text = code_of(old).strip()
        why = f"{NOUNS[value.role]} stays no tensor" if value.role in NOUNS else ANOTHER
        raise Unsure(f"`{text}` is used here", why)

    def as_text(self, value: Value) -> cst.BaseExpression:
        """A rendered prompt as the text that it was."""
        if value.name:
            raise Demote(value.name)
        if value.old is None:
            raise Unsure("a rendered prompt is used as text", "its text is not made here")
        return value.old

    def tokenizer_node(self, value: Value) -> cst.BaseExpression:
        if value.node is None:
            what = "the tokenizer is used"
            raise Unsure(what, "no model is loaded from the same checkpoint here")
        part = "processor" if value.kind == "processor" else "tokenizer"
        if value.details.get("bare"):
            return value.node
        return parse("{engine}." + part, engine=value.node)

    # == Names, attributes ==

    def name(self, node: cst.Name, scope: Scope) -> Value:
        value = scope.find(node.value)
        return value if value is not None else plain(node)

    def attribute(self, node: cst.Attribute, scope: Scope) -> Value:
        known = scope.find(dotted(node)) if dotted(node) else None
        if known is not None:
            return known
        base = self.translate(node.value, scope)
        name = node.attr.value
        if base.role == "engine":
            return self.engine_attribute(base, name, node)
        if base.role == "inputs" and name in ("input_ids", "attention_mask", "pixel_values"):
            return self.tensor_of(base, name)
        if base.role in ("ids", "ids_row", "mask") and name in ("shape", "device", "size"):
            return replace(base, role="shape")
        if base.role == "results" and name in ("sequences", "scores", "logits"):
            base = replace(base, role="outputs")  # a config of run time asked for a mapping
        if base.role == "outputs":
            return self.output_attribute(base, name, node)
        found = self.vllm_attribute(base, name, scope) or self.object_attribute(base, name)
        if found is not None:
            return found
        return plain(node.with_changes(value=self.as_plain(base, node.value, scope)))

    def object_attribute(self, base: Value, name: str) -> Value | None:
        raise NotImplementedError

    def engine_attribute(self, base: Value, name: str, node: cst.Attribute) -> Value:
        if base.kind == "processor" and name == "tokenizer":
            return replace(base, kind="tokenizer")
        if base.kind == "pipeline" and name in ("tokenizer", "model"):
            return replace(base, kind=name)
        if base.kind in ("tokenizer", "processor"):
            owner = self.tokenizer_node(base)
            return plain(cst.Attribute(owner, cst.Name(name)))
        if name in ("device", "dtype"):
            return Value(None, "device")
        raise Unsure(f"`{code_of(node)}` is used", "the model itself is out of reach on vLLM")

    def tensor_of(self, base: Value, name: str) -> Value:
        role = "ids" if name == "input_ids" else "mask"
        return replace(base, role=role)

    def output_attribute(self, base: Value, name: str, node: cst.Attribute) -> Value:
        if name == "sequences":
            return replace(base, role="results")
        if name in ("scores", "logits"):
            return replace(base, role="scores")
        raise Unsure(f"`{code_of(node)}` is read", "results do not hold it", "engine.bare()")

    def vllm_attribute(self, base: Value, name: str, scope: Scope) -> Value | None:
        node = base.node
        if node is None:
            return None
        if base.role == "vllm_output":
            if name == "outputs":
                return replace(base, role="completions")
            if name == "prompt_token_ids":
                return plain(parse("list({node}.prompt_token_ids)", node=node), "list")
        if base.role == "completion":
            return completion_attribute(node, name)
        return None

    # == Subscripts ==

    def subscript(self, node: cst.Subscript, scope: Scope) -> Value:
        first = self.cut_by_hand(node, scope) or self.first_of_all(node, scope)
        if first is not None:
            return first
        base = self.translate(node.value, scope)
        index = [element.slice for element in node.slice]
        if base.role == "plain":
            return self.plain_subscript(node, base, scope)
        found = self.part(base, index, scope)
        if found is None:
            text = code_of(node).strip()
            raise Unsure(f"`{text}` is used here", "such a part of the old value is not known")
        return found

    def plain_subscript(self, node: cst.Subscript, base: Value, scope: Scope) -> Value:
        elements = [self.with_plain(element, scope) for element in node.slice]
        assert base.node is not None
        changed = node.with_changes(value=base.node, slice=elements)
        is_slice = isinstance(node.slice[0].slice, cst.Slice)
        return plain(changed, base.kind if is_slice else "")

    def first_of_all(self, node: cst.Subscript, scope: Scope) -> Value | None:
        """`batch_decode(rows)[0]`, without decoding all of them."""
        inner = node.value
        index = node.slice[0].slice
        if not isinstance(index, cst.Index) or constant(index.value) != 0:
            return None
        if not isinstance(inner, cst.Call) or len(node.slice) != 1:
            return None
        if not isinstance(inner.func, cst.Attribute) or inner.func.attr.value != "batch_decode":
            return None
        owner = self.translate(inner.func.value, scope)
        if owner.role != "engine":
            return None
        rows = self.translate(inner.args[0].value, scope)
        if rows.role not in ("new", "results"):
            return None
        row = self.row_at(rows, index.value)
        return self.decoded(owner, row, inner, scope)

    def cut_by_hand(self, node: cst.Subscript, scope: Scope) -> Value | None:
        raise NotImplementedError

    def decoded(self, owner: Value, row: Value, call: cst.Call, scope: Scope) -> Value:
        raise NotImplementedError

    def row_at(self, base: Value, index: cst.BaseExpression) -> Value:
        assert base.node is not None
        node = parse("{base}[{index}]", base=base.node, index=index)
        return replace(base, node=node, role=ROW_OF[base.role], name="")

    def part(self, base: Value, index: list[cst.BaseSlice], scope: Scope) -> Value | None:
        first = index[0]
        at = first.value if isinstance(first, cst.Index) else None
        if base.role == "inputs" and at is not None:
            return self.input_named(base, constant(at))
        if base.role == "shape" and at is not None and constant(at) in (1, -1):
            return replace(base, role="length")
        if base.role == "engine" and base.kind == "tuple" and isinstance(constant(at), int):
            return base.items[int(str(constant(at)))]
        if base.role in ("results", "new") and len(index) == 2:
            return self.cut_rows(base, index, scope)
        if base.role in ROW_OF and at is not None:
            return self.row_at(base, self.plain_node(at, scope))
        if base.role in ("result", "new_row") and isinstance(first, cst.Slice):
            return self.cut_row(base, first, scope)
        if base.role == "outputs" and at is not None and constant(at) in (0, "sequences"):
            return replace(base, role="results")
        return self.vllm_part(base, at, scope) or self.pipeline_part(base, at, scope)

    def input_named(self, base: Value, name: object) -> Value | None:
        if name == "input_ids":
            return replace(base, role="ids")
        if name in ("attention_mask", "pixel_values", "image_grid_thw"):
            return replace(base, role="mask")
        return None

    def cut_rows(self, base: Value, index: list[cst.BaseSlice], scope: Scope) -> Value | None:
        """`[:, n:]` of all rows, `[0, n:]` of one."""
        rows, columns = index
        if not isinstance(columns, cst.Slice):
            return None
        if isinstance(rows, cst.Slice):
            if rows.lower is not None or rows.upper is not None:
                return None
            return self.cut_row(base, columns, scope)
        assert isinstance(rows, cst.Index)
        row = self.row_at(base, self.plain_node(rows.value, scope))
        return self.cut_row(row, columns, scope)

    def cut_row(self, base: Value, cut: cst.Slice, scope: Scope) -> Value | None:
        """Rows without their prompts."""
        if cut.upper is not None or cut.step is not None or cut.lower is None:
            return None
        lower = self.translate(cut.lower, scope)
        if lower.role != "length":
            return None
        role = {"results": "new", "result": "new_row"}.get(base.role)
        return replace(base, role=role) if role else None

    def vllm_part(self, base: Value, at: cst.BaseExpression | None, scope: Scope) -> Value | None:
        if base.node is None or at is None:
            return None
        index = self.plain_node(at, scope)
        if base.role == "vllm_outputs":
            return Value(parse("{base}[{index}]", base=base.node, index=index), "vllm_output")
        if base.role == "completions":
            if constant(at) == 0:
                return Value(base.node, "completion")
            samples = self.samples_of(base.node)
            return Value(parse("({samples})[{index}]", samples=samples, index=index), "completion")
        return None

    def samples_of(self, node: cst.BaseExpression) -> cst.BaseExpression:
        if not is_short(node):  # written twice it would be asked twice
            return parse(self.word("samples_of") + "({node})", node=node)
        return parse("{node}.samples or ({node},)", node=node)

    def pipeline_part(
        self, base: Value, at: cst.BaseExpression | None, scope: Scope
    ) -> Value | None:
        """`out[0]["generated_text"][-1]["content"]`, step by step."""
        said = constant(at)
        if base.node is None or at is None:
            return None
        if base.role == "pipe_outputs" and said == 0:
            return replace(base, role="pipe_output", node=parse("{n}[0]", n=base.node))
        if base.role == "pipe_batch":
            row = parse("{n}[{at}]", n=base.node, at=self.plain_node(at, scope))
            return replace(base, role="pipe_row", node=row)
        if base.role == "pipe_row" and said == 0:
            return replace(base, role="pipe_output")
        if base.role == "pipe_output" and said == "generated_text":
            return self.pipeline_text(base)
        if base.role == "pipe_chat" and said == -1:
            return replace(base, role="pipe_message")
        if base.role == "pipe_message" and said == "content":
            return plain(parse("{n}.text", n=base.node), "text")
        return None

    def pipeline_text(self, base: Value) -> Value:
        assert base.node is not None
        if base.kind == "chat":
            return replace(base, role="pipe_chat")
        text = parse("{n}.text", n=base.node)
        prompt = base.details.get("prompt")
        if prompt is not None:
            text = parse("{prompt} + {text}", prompt=prompt, text=text)
        return plain(text, "text")

    # == Displays, conditionals, comprehensions ==

    def display(self, node: cst.Tuple | cst.List, scope: Scope) -> Value:
        if any(isinstance(element, cst.StarredElement) for element in node.elements):
            return self.others(node, scope)
        items = tuple(self.translate(element.value, scope) for element in node.elements)
        if items and isinstance(node, cst.List) and all(i.role == "request" for i in items):
            nodes = [i.node for i in items if i.node is not None]
            elements = [cst.Element(n) for n in nodes]
            return Value(
                cst.List(elements),
                "request_list",
                items=items,
                is_single=len(items) == 1,
                old=old_display(items),
            )
        if items and isinstance(node, cst.Tuple) and all(i.role == "engine" for i in items):
            return Value(engine_node(items), "engine", "tuple", items)
        made = []
        for element, item in zip(node.elements, items):
            value = self.as_plain(item, element.value, scope)
            made.append(element.with_changes(value=value))
        return Value(node.with_changes(elements=made), kind=kind_of(node), items=items)

    def conditional(self, node: cst.IfExp, scope: Scope) -> Value:
        test = self.plain_node(node.test, scope)
        with scope.lazily():
            body = self.translate(node.body, scope)
            orelse = self.translate(node.orelse, scope)
        if body.role == orelse.role == "request" and body.node and orelse.node:
            node = node.with_changes(test=test, body=body.node, orelse=orelse.node)
            return Value(node, "request")
        branches = {
            "body": self.as_plain(body, node.body, scope),
            "orelse": self.as_plain(orelse, node.orelse, scope),
        }
        return plain(node.with_changes(test=test, **branches), kind_of(node))

    def compared(self, node: cst.Comparison, scope: Scope) -> Value:
        """`ids != pad` is a mask."""
        left = self.translate(node.left, scope)
        is_mask = left.role == "ids" and isinstance(node.comparisons[0].operator, cst.NotEqual)
        return replace(left, role="mask") if is_mask else self.others(node, scope)

    def either(self, node: cst.BooleanOperation, scope: Scope) -> Value:
        left = self.plain_node(node.left, scope)
        with scope.lazily():
            right = self.plain_node(node.right, scope)
        return plain(node.with_changes(left=left, right=right))

    def comprehension(self, node: cst.ListComp | cst.GeneratorExp, scope: Scope) -> Value:
        inner = scope.inner()
        loop, is_whole = self.comp_for(node.for_in, inner)
        element = self.translate(node.elt, inner)
        if loop is None:
            raise Unsure(f"`{code_of(node)}`", "nothing of what it goes over is left")
        over = loop.iter
        if element.role in ("new_row", "result") and is_whole:
            is_same = element.node is not None and code_of(element.node) == code_of(loop.target)
            if is_same:
                role = "new" if element.role == "new_row" else "results"
                return Value(over, role, details=element.details)
        if element.role == "request" and element.node is not None:
            made = node.with_changes(elt=element.node, for_in=loop)
            old = None if element.old is None else node.with_changes(elt=element.old)
            return Value(as_list(made), "request_list", old=old)
        made = node.with_changes(elt=self.as_plain(element, node.elt, inner), for_in=loop)
        return plain(made, "list" if isinstance(node, cst.ListComp) else "")

    def collected(self, node: cst.SetComp | cst.DictComp, scope: Scope) -> Value:
        """A set or a dictionary of plain values; a model's inputs, moved one by one."""
        if (whole := moved_mapping(node)) is not None:
            value = self.translate(whole, scope)
            if value.role == "inputs":
                return value
        inner = scope.inner()
        loop, _ = self.comp_for(node.for_in, inner)
        if loop is None:
            raise Unsure(f"`{code_of(node)}`", "nothing of what it goes over is left")
        names = ("elt",) if isinstance(node, cst.SetComp) else ("key", "value")
        parts = {name: self.plain_node(getattr(node, name), inner) for name in names}
        return plain(node.with_changes(for_in=loop, **parts))

    def comp_for(self, loop: cst.CompFor, inner: Scope) -> tuple[cst.CompFor | None, bool]:
        """The loop of a comprehension, and whether it goes over all elements once."""
        assert inner.outer is not None
        target, over = self.bind_loop(loop.target, loop.iter, inner, inner.outer)
        ifs = [one.with_changes(test=self.plain_node(one.test, inner)) for one in loop.ifs]
        is_whole = not ifs and loop.inner_for_in is None
        further = None
        if loop.inner_for_in is not None:
            deeper = Scope(inner.function, outer=inner, is_inline=True)
            further, _ = self.comp_for(loop.inner_for_in, deeper)
            inner.env.update(deeper.env)
        if target is None or over is None:
            return None, False
        changed = loop.with_changes(target=target, iter=over, ifs=ifs, inner_for_in=further)
        return changed, is_whole

    def bind_loop(
        self,
        target: cst.BaseExpression,
        over: cst.BaseExpression,
        inner: Scope,
        outer: Scope,
    ) -> tuple[cst.BaseExpression | None, cst.BaseExpression | None]:
        """The target and the iterable of a loop in the draft; its variables are bound."""
        if isinstance(over, cst.Call) and dotted(over.func) == "zip":
            if not isinstance(target, cst.Tuple):
                raise Unsure(f"`{code_of(over)}`", "its rows are not unpacked")
            return self.bind_zip(target, over, inner, outer)
        if isinstance(over, cst.Call) and dotted(over.func) in ("enumerate", "tqdm", "list"):
            return self.bind_wrapped(target, over, inner, outer)
        value = self.translate(over, outer)
        item = element_of(value, target)
        if item is None:
            return target, self.as_plain(value, over, outer)
        self.bind(target, item, inner)
        if item.node is None:
            return None, None
        if value.role == "completions" and value.node is not None:
            return target, self.samples_of(value.node)
        return target, value.node

    def bind_wrapped(
        self, target: cst.BaseExpression, over: cst.Call, inner: Scope, outer: Scope
    ) -> tuple[cst.BaseExpression | None, cst.BaseExpression | None]:
        first = over.args[0].value
        if dotted(over.func) == "enumerate":
            if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
                return target, self.plain_node(over, outer)
            inside = target.elements[1].value
            new, iterable = self.bind_loop(inside, first, inner, outer)
            if new is None or iterable is None:
                raise Unsure(f"`{code_of(over)}`", "nothing of what it goes over is left")
            elements = [target.elements[0], target.elements[1].with_changes(value=new)]
            target = target.with_changes(elements=elements)
        else:
            new, iterable = self.bind_loop(target, first, inner, outer)
            if new is None or iterable is None:
                return None, None
            target = new
        args = [over.args[0].with_changes(value=iterable)]
        args += [a.with_changes(value=self.plain_node(a.value, outer)) for a in over.args[1:]]
        return target, over.with_changes(args=args)

    def bind_zip(
        self, target: cst.Tuple, over: cst.Call, inner: Scope, outer: Scope
    ) -> tuple[cst.BaseExpression | None, cst.BaseExpression | None]:
        kept: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
        for element, arg in zip(target.elements, over.args):
            new, iterable = self.bind_loop(element.value, arg.value, inner, outer)
            if new is not None and iterable is not None:
                kept.append((new, iterable))
        if not kept:
            return None, None
        if len(kept) == 1:
            return kept[0]
        new_target = cst.parse_expression(", ".join(code_of(one) for one, _ in kept))
        iterables = ", ".join(code_of(one) for _, one in kept)
        return new_target, cst.parse_expression(f"zip({iterables})")

    def bind(self, target: cst.BaseExpression, value: Value, scope: Scope) -> None:
        if isinstance(target, cst.Name):
            scope.env[target.value] = replace(value, name=target.value)
            return
        raise Unsure(f"`{code_of(target)}` takes rows apart", "a row is a result in the draft")


ANOTHER = "results of the engine have another form"
NOUNS = {
    "engine": "the model",
    "inputs": "what the tokenizer returns",
    "ids": "input ids: what the tokenizer returns",
    "ids_row": "a row of input ids",
    "results": "what generate returns",
    "new": "what generate returns",
    "result": "a generated row",
    "new_row": "a generated row",
    "scores": "what the scores are",
    "mask": "the attention mask",
    "keywords": "what it holds for generate",
    "device": "the device",
}


ENTRIES = m.CompFor(
    m.Tuple([m.Element(m.Name()), m.Element(m.Name())]),
    m.Call(m.Attribute(m.Name(), m.Name("items")), args=[]),
    ifs=[],
    inner_for_in=None,
)


def moved_mapping(node: cst.SetComp | cst.DictComp) -> cst.BaseExpression | None:
    """x of `{k: v.to(device) for k, v in x.items()}`; None of anything else."""
    loop = node.for_in
    if not isinstance(node, cst.DictComp) or not m.matches(loop, ENTRIES):
        return None
    key, name = (element.value.value for element in loop.target.elements)  # type: ignore[attr-defined]
    value = node.value
    if isinstance(value, cst.IfExp) and code_of(value.orelse) == name:
        value = value.body
    if isinstance(value, cst.Call) and m.matches(value.func, m.Attribute(m.Name())):
        moved = cst.ensure_type(value.func, cst.Attribute)
        value = moved.value if moved.attr.value in PLACES else value
    is_same = (code_of(node.key), code_of(value)) == (key, name)
    return loop.iter.func.value if is_same else None  # type: ignore[attr-defined]


def kind_of(node: cst.BaseExpression) -> str:
    if isinstance(node, (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)):
        return "text"
    if isinstance(node, (cst.List, cst.ListComp)):
        return "list"
    if isinstance(node, cst.BinaryOperation):
        return kind_of(node.left) or kind_of(node.right)
    return ""


def as_list(node: cst.BaseExpression) -> cst.BaseExpression:
    """A comprehension as a list."""
    if isinstance(node, cst.GeneratorExp):
        return cst.ListComp(node.elt, node.for_in)
    return node


def old_display(items: tuple[Value, ...]) -> cst.BaseExpression | None:
    olds = [item.old for item in items if item.old is not None]
    if len(olds) != len(items):
        return None
    return cst.List([cst.Element(old) for old in olds])


def engine_node(items: tuple[Value, ...]) -> cst.BaseExpression | None:
    return next((item.node for item in items if item.node is not None), None)


def element_of(value: Value, target: cst.BaseExpression) -> Value | None:
    """What a loop over a value binds to its variable; None for plain values."""
    roles = {
        "results": "result", "new": "new_row", "request_list": "request",
        "vllm_outputs": "vllm_output", "completions": "completion",
    }  # fmt: skip
    if value.role in roles:
        return Value(target, roles[value.role], details=value.details)
    if value.role in ("ids", "mask"):
        return Value(None, f"{value.role}_row", count=None)
    if value.role in ("pipe_outputs", "pipe_batch"):
        role = "pipe_output" if value.role == "pipe_outputs" else "pipe_row"
        return replace(value, node=target, role=role)
    return None


def completion_attribute(node: cst.BaseExpression, name: str) -> Value | None:
    if name == "text":
        return plain(parse("{n}.text", n=node), "text")
    if name == "token_ids":
        return Value(parse("list({n}.token_ids)", n=node), "plain", "list", details={"row": node})
    if name == "finish_reason":
        return plain(parse('"length" if {n}.finish_reason == "length" else "stop"', n=node))
    if name == "cumulative_logprob":
        return plain(parse("sum({n}.logprobs)", n=node))
    raise Unsure(f"`.{name}` of a completion is read", "results have no such field")


class NamesIn(cst.CSTVisitor):
    """Names that an expression reads; of attributes the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.found.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    @classmethod
    def of(cls, node: cst.CSTNode) -> set[str]:
        visitor = cls()
        node.visit(visitor)
        return visitor.found
