"""What an expression of old code stands for, and what stands in its place in the draft.

Old code passes tensors from step to step; the draft passes requests and results. Each step of the
old code is translated by itself, so that loops, helpers and classes keep their shape:

    role             old value                                new value
    plain            anything that has nothing to do with it  the same expression
    engine           model, tokenizer, processor, or a tuple  the engine that holds them
    request          a rendered chat                          a request, as a mapping
    request_list     several of them                          a list of requests
    inputs           what a tokenizer returns                 a list of requests
    ids, ids_row     input ids, of a batch or of one row      (only counted)
    length           how long the prompt is                   (only cut off)
    results          what generate returns                    a list of results
    new              the same without the prompts             the same list of results
    result, new_row  one row of these                         one result
    settings         GenerationConfig, SamplingParams         options
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

PLACES = ("to", "cuda", "cpu")  # methods that move a model or a tensor


@dataclass(frozen=True)
class Value:
    """The translation of an expression.

    node: in the draft; None where the draft has nothing in its place.   role: see above.
    kind: of a plain value "text" or "list" where that is sure, else ""; of an engine its part:
        "model", "tokenizer", "processor", "llm", "pipeline" or "tuple".
    items: of a tuple.   name: of the variable that holds it in the old code.
    count: an expression of the draft for the number of its tokens.
    details: what the role needs to know further.
    """

    node: cst.BaseExpression | None
    role: str = "plain"
    kind: str = ""
    items: tuple[Value, ...] = ()
    name: str = ""
    count: cst.BaseExpression | None = None
    details: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    is_single: bool = False
    old: cst.BaseExpression | None = None


class Unsure(Exception):
    """Old code that is not translated.   what: it is.   why: it is not.   possible: instead."""

    def __init__(self, what: str, why: str, possible: str = "") -> None:
        super().__init__(f"{what}, because {why}")
        self.what = what
        self.why = why
        self.possible = possible

    @property
    def text(self) -> str:
        more = f" ({self.possible})" if self.possible else ""
        return f"{self.what}, because {self.why}{more}"


class Demote(Exception):
    """A variable with a rendered prompt that is used as a text, too, and so stays one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


EVERY_TEXT = "*"  # in place of a variable's name: rendered prompts of the whole module


class Copy(Exception):
    """Messages that are changed between rendering and generating, and so are copied."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def code_of(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def parse(text: str, /, **nodes: cst.BaseExpression) -> cst.BaseExpression:
    """An expression from text; `{name}` stands for one of the nodes."""
    names = "|".join(nodes)
    filled = re.sub(f"{{({names})}}", lambda found: code_of(nodes[found[1]]), text)
    return cst.parse_expression(filled)


def assignment(target: cst.BaseExpression, value: cst.BaseExpression) -> cst.Assign:
    """`target = value`."""
    assert isinstance(target, cst.BaseAssignTargetExpression)
    return cst.Assign([cst.AssignTarget(target)], value)


def constant(node: cst.BaseExpression | None) -> object:
    """The value of a literal; NotImplemented for anything else."""
    import ast

    if node is None:
        return NotImplemented
    try:
        return ast.literal_eval(code_of(node).strip())
    except (ValueError, SyntaxError):
        return NotImplemented


def is_of_self(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute) and dotted(node).startswith("self.")


def is_short(node: cst.BaseExpression) -> bool:
    """Whether an expression is written again at each use: names, and parts of one."""
    if isinstance(node, (cst.Name, cst.Attribute)):
        return True
    if isinstance(node, cst.List):
        return len(node.elements) == 1 and isinstance(node.elements[0].value, cst.Name)
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice
        is_simple = isinstance(index, cst.Index) and isinstance(index.value, cst.Integer)
        return is_simple and is_short(node.value)
    return False


def dotted(node: cst.BaseExpression) -> str:
    """`a.b.c` of names and attributes; "" for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def parameter_names(node: cst.FunctionDef) -> list[str]:
    every = [*node.params.posonly_params, *node.params.params, *node.params.kwonly_params]
    return [parameter.name.value for parameter in every]


def bound_arguments(
    call: cst.Call, node: cst.FunctionDef, is_method: bool
) -> dict[str, cst.BaseExpression] | None:
    """Arguments by parameter; None where stars hide them."""
    names = parameter_names(node)[1 if is_method else 0 :]
    found: dict[str, cst.BaseExpression] = {}
    position = 0
    for arg in call.args:
        if arg.star:
            return None
        if arg.keyword is not None:
            found[arg.keyword.value] = arg.value
        elif position < len(names):
            found[names[position]] = arg.value
            position += 1
        else:
            return None
    return found
