"""Pieces of a draft: load calls, cached loaders, imports, helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst
import libcst.matchers as m

from parity.draft.expressions import CHANGES, NamesIn, Scope
from parity.draft.importing import is_guard, is_import, names_bound
from parity.draft.loads import Load
from parity.draft.roles import Unsure, Value, assignment, code_of, dotted, parameter_names
from parity.draft.run_time import THINKS_UNASKED

if TYPE_CHECKING:
    from parity.draft.statements import Statements


def load_call(load: Load, name: str) -> cst.BaseExpression:
    """`load(path, dtype="float32")`; a line each where one has a comment."""
    words = [(code_of(load.path), "")]
    words += [(f"{k}={code_of(v)}", load.comments.get(k, "")) for k, v in load.keywords.items()]
    if not any(comment for _, comment in words):
        return cst.parse_expression(f"{name}({', '.join(text for text, _ in words)})")
    lines = [f"    {text},{f'  # {comment}' if comment else ''}" for text, comment in words]
    return cst.parse_expression(f"{name}(\n" + "\n".join(lines) + "\n)")


def module_of(body: Iterable[Any]) -> cst.Module:
    return cst.Module(list(body))


class Loader:
    """Whether a function only loads a model and keeps it, and what it returns."""

    def __init__(self, owner: Statements, node: cst.FunctionDef) -> None:
        self.owner = owner
        self.node = node
        self.stored: dict[str, Value] = {}
        self.kept: list[cst.BaseStatement] = []
        self.returned: Value | None = None

    def found(self, scope: Scope) -> tuple[Value, list[cst.BaseStatement]] | None:
        """(what it returns, statements that its arguments need); None where it does more."""
        text = code_of(self.node.body)
        if not any(word in text for word in ("from_pretrained", "LLM(", "pipeline(")):
            return None
        if not isinstance(self.node.body, cst.IndentedBlock) or "generate(" in text:
            return None
        if not self.walk(self.node.body.body, scope) or self.returned is None:
            return None
        return self.returned, self.needed()

    def needed(self) -> list[cst.BaseStatement]:
        assert self.returned is not None
        names = NamesIn.of(self.returned.node) if self.returned.node is not None else set()
        kept: list[cst.BaseStatement] = []
        for statement in reversed(self.kept):
            if assigned_names([statement]) & names:
                kept.insert(0, statement)
                names |= NamesIn.of(statement)
        return kept

    def walk(self, body: Sequence[cst.CSTNode], scope: Scope) -> bool:
        return all(self.statement(one, scope) for one in body)

    def statement(self, statement: cst.CSTNode, scope: Scope) -> bool:
        if isinstance(statement, cst.If):
            scope = replace(scope, branches=scope.branches + 1)
            inside = self.walk(statement.body.body, scope)
            other = statement.orelse
            if isinstance(other, cst.If):
                return inside and self.statement(other, scope)
            return inside and (other is None or self.walk(other.body.body, scope))
        if isinstance(statement, cst.SimpleStatementLine):
            return all(self.line(one, statement, scope) for one in statement.body)
        return False

    def line(
        self, one: cst.BaseSmallStatement, statement: cst.SimpleStatementLine, scope: Scope
    ) -> bool:
        if isinstance(one, (cst.Global, cst.Pass, cst.Import, cst.ImportFrom)):
            return True
        if isinstance(one, cst.Expr):
            return self.expression(one, scope)
        if isinstance(one, cst.Return):
            return one.value is not None and self.returns(one.value, scope)
        if isinstance(one, cst.AnnAssign) and one.value is not None:
            one = assignment(one.target, one.value)
        if isinstance(one, cst.Assign):
            return self.assign(one, statement, scope)
        return False

    def expression(self, one: cst.Expr, scope: Scope) -> bool:
        if isinstance(one.value, (cst.SimpleString, cst.ConcatenatedString)):
            return True
        if isinstance(one.value, cst.Call):
            name = dotted(one.value.func)
            is_log = name == "print" or name.startswith(("logger.", "logging.", "log."))
            if is_log or self.owner.only_pads(one.value, scope):
                return True
        return self.owner.translate(one.value, scope).role == "engine"

    def assign(self, one: cst.Assign, statement: cst.SimpleStatementLine, scope: Scope) -> bool:
        target = one.targets[0].target
        if isinstance(target, cst.Attribute) and self.owner.sets_engine(target, one, scope):
            return True
        values = self.assigned(one, scope)
        for place, value in values:
            if value.role == "engine":
                self.stored[base_of(place)] = value
                if isinstance(place, cst.Name):
                    scope.env[place.value] = value
            elif isinstance(place, cst.Name) and value.role == "plain":
                scope.env.setdefault(place.value, Value(place))
                self.kept.append(statement)
            else:
                return isinstance(place, cst.Name)
        return True

    def assigned(self, one: cst.Assign, scope: Scope) -> list[tuple[cst.BaseExpression, Value]]:
        target = one.targets[0].target
        value = self.value(one.value, scope)
        if isinstance(target, cst.Tuple) and len(value.items) == len(target.elements):
            return list(zip((e.value for e in target.elements), value.items))
        return [(t.target, value) for t in one.targets]

    def value(self, node: cst.BaseExpression, scope: Scope) -> Value:
        if isinstance(node, cst.Tuple):
            items = tuple(self.value(element.value, scope) for element in node.elements)
            if items and all(item.role == "engine" for item in items):
                engine = next((i.node for i in items if i.node is not None), None)
                return Value(engine, "engine", "tuple", items)
        known = self.stored.get(base_of(node))
        if known is not None:
            return known
        return self.owner.translate(node, scope)

    def returns(self, node: cst.BaseExpression, scope: Scope) -> bool:
        value = self.value(node, scope)
        if value.role != "engine":
            return False
        before = self.returned.node if self.returned is not None else None
        nodes = [node for node in (before, value.node) if node is not None]
        if len({code_of(node) for node in nodes}) > 1:
            raise Unsure(f"{self.node.name.value} loads in two ways", "the draft writes one")
        if value.node is None:
            value = Value(
                None, "engine", value.kind, value.items, details={"bare": cst.Name("True")}
            )
        self.returned = value
        return True


def base_of(node: cst.BaseExpression) -> str:
    """The container of `CACHE[key]` or `a.b`, or the name itself."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return code_of(node)


def cached(
    node: cst.FunctionDef,
    kept: Sequence[cst.BaseStatement],
    call: cst.BaseExpression,
    word: Callable[[str], str],
) -> cst.FunctionDef:
    """A loader as `@functools.cache def name(...): return load(...)`; of one that takes an object,
    which may have no hash, what it loads is the key.   word: what the draft calls these."""
    assert isinstance(call, cst.Call)
    is_key = not takes_objects(node)
    text = code_of(call.with_changes(func=cst.Name(word("load" if is_key else "load_engine"))))
    body: list[cst.BaseStatement] = [*kept, cst.parse_statement(f"return {text}\n")]
    first = node.body.body[0]
    if m.matches(first, m.SimpleStatementLine(body=[m.Expr(value=m.SimpleString())])):
        body.insert(0, cst.ensure_type(first, cst.SimpleStatementLine))
    # As many models as the old cache had room for.
    bounded = [one for one in node.decorators if is_bounded(one)]
    cache = cst.Decorator(cst.parse_expression(f"{word('functools')}.cache"))
    decorators = (bounded or [cache]) if is_key else []
    return node.with_changes(decorators=decorators, body=cst.IndentedBlock(body), returns=None)


def is_cache(decorator: cst.Decorator) -> bool:
    """Whether it keeps what a function returns, as the draft's own does, and changes no more."""
    node = decorator.decorator
    name = dotted(node.func if isinstance(node, cst.Call) else node).rpartition(".")[2]
    return name in ("cache", "lru_cache", "cache_resource", "no_grad", "inference_mode")


def is_bounded(decorator: cst.Decorator) -> bool:
    """Whether it is an `lru_cache` that says how much it keeps."""
    call = decorator.decorator
    return isinstance(call, cst.Call) and dotted(call.func).endswith("lru_cache")


def takes_objects(node: cst.FunctionDef) -> bool:
    """Whether a function reads parts of its parameters."""
    given = m.OneOf(*(m.Name(name) for name in parameter_names(node) if name != "self"), m.Name(""))
    parts = m.OneOf(m.Attribute(value=given), m.Subscript(value=given))
    return bool(m.findall(node.body, parts))


def with_parameters(
    node: cst.FunctionDef, gone: set[str], renamed: Mapping[str, str]
) -> cst.FunctionDef:
    kept = []
    for parameter in node.params.params:
        name = parameter.name.value
        if name in gone:
            continue
        if name in renamed:
            parameter = parameter.with_changes(name=cst.Name(renamed[name]), annotation=None)
        kept.append(parameter)
    if kept and gone:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(params=node.params.with_changes(params=kept))


# == What is not used ==


def assigned_names(body: Sequence[Any]) -> set[str]:
    """Names that simple statements assign."""
    found = set()
    for statement in body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for one in statement.body:
            targets = one.targets if isinstance(one, cst.Assign) else ()
            found |= {t.target.value for t in targets if isinstance(t.target, cst.Name)}
            if isinstance(one, cst.AnnAssign) and isinstance(one.target, cst.Name):
                found.add(one.target.value)
    return found


class Uses(NamesIn):
    """Names that are read: targets of assignments do not count."""

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        return not isinstance(node.target, cst.Name)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if node.value is not None:
            node.value.visit(self)
        return False

    def visit_Global(self, node: cst.Global) -> bool:
        return False


class StopAdder(cst.CSTTransformer):
    """Adds a stop to the options of one name."""

    def __init__(self, name: str, stop: cst.BaseExpression) -> None:
        super().__init__()
        self.name = name
        self.stop = stop

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> Any:
        is_it = code_of(updated_node.targets[0].target) == self.name
        if not is_it or not isinstance(updated_node.value, cst.Dict):
            return updated_node
        text = code_of(updated_node.value).rstrip()[:-1].rstrip().rstrip(",")
        comma = "" if text.endswith("{") else ", "
        if "\n" in text:
            text = code_of(updated_node.value).rstrip()[:-1].rstrip()
            comma = "\n    "
        new = f'{text}{comma}"stop": [{code_of(self.stop)}]' + (",\n}" if "\n" in text else "}")
        return updated_node.with_changes(value=cst.parse_expression(new))


def with_stop(body: Sequence[Any], name: str, stop: cst.BaseExpression) -> list[Any]:
    changed = module_of(body).visit(StopAdder(name, stop))
    assert isinstance(changed, cst.Module)
    return list(changed.body)


class SeedDropper(cst.CSTTransformer):
    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        call = updated_node.value
        name = dotted(call.func) if isinstance(call, cst.Call) else ""
        if name.startswith("torch.") and "manual_seed" in name:
            return cst.RemoveFromParent()
        return updated_node


class EmptyIfDropper(cst.CSTTransformer):
    """Removes `if` whose body is gone."""

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        if updated_node.orelse is None and not updated_node.body.body:
            return cst.RemoveFromParent()
        return updated_node


def without_seeds(body: Sequence[Any]) -> list[Any]:
    changed = module_of(body).visit(SeedDropper())
    assert isinstance(changed, cst.Module)
    emptied = changed.visit(EmptyIfDropper())
    assert isinstance(emptied, cst.Module)
    return list(emptied.body)


def reads_of(body: Sequence[Any]) -> set[str]:
    uses = Uses()
    cst.Module(list(body)).visit(uses)
    return uses.found


def is_pure(node: cst.BaseExpression | None) -> bool:
    """Whether nothing is lost with an expression that nobody reads."""
    if node is None:
        return True
    for call in m.findall(node, m.Call()):
        assert isinstance(call, cst.Call)
        name = dotted(call.func)
        if name.endswith("GenerationConfig"):
            continue
        if ".tokenizer." not in name and ".from_pretrained" not in name and name not in PURE:
            return False
    return True


PURE = ("len", "list", "str", "int", "float", "load_engine", "dict", "tuple", "set",
        "torch.cuda.is_available", "torch.device")  # fmt: skip


class Dropper(cst.CSTTransformer):
    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        self.did = False

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> Any:
        target = updated_node.targets[0].target
        name = target.value if isinstance(target, cst.Name) else ""
        is_one = len(updated_node.targets) == 1
        if is_one and name in self.names and is_pure(updated_node.value):
            self.did = True
            return cst.RemoveFromParent()
        return updated_node

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> Any:
        name = updated_node.target
        is_idle = isinstance(name, cst.Name) and name.value in self.names
        if is_idle and is_pure(updated_node.value):
            self.did = True
            return cst.RemoveFromParent()
        return updated_node


def without_unused(body: Sequence[Any], names: set[str]) -> list[Any]:
    """Statements without assignments of such names that nothing reads."""
    module = cst.Module(list(body))
    while True:
        uses = Uses()
        module.visit(uses)
        dropper = Dropper({name for name in names if name not in uses.found})
        changed = module.visit(dropper)
        assert isinstance(changed, cst.Module)
        module = changed
        if not dropper.did:
            return list(module.body)


def without_unused_imports(
    body: Sequence[cst.BaseStatement], names: set[str], libraries: Sequence[str]
) -> list[cst.BaseStatement]:
    uses = Uses()
    module_of(s for s in body if not is_import(s)).visit(uses)
    kept: list[cst.BaseStatement] = []
    for statement in body:
        new = import_left(statement, uses.found, libraries)
        if new is not None:
            kept.append(new)
    return kept


def import_left(
    statement: cst.BaseStatement, used: set[str], libraries: Sequence[str]
) -> cst.BaseStatement | None:
    if not is_import(statement):
        return statement
    assert isinstance(statement, cst.SimpleStatementLine)
    one = statement.body[0]
    assert isinstance(one, (cst.Import, cst.ImportFrom))
    if isinstance(one.names, cst.ImportStar):
        return statement
    kept = []
    for alias in one.names:
        root = (
            dotted(one.module)
            if isinstance(one, cst.ImportFrom) and one.module
            else code_of(alias.name)
        )
        known = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
        is_ours = root.partition(".")[0] in (*libraries, "functools") and root != "__future__"
        if not is_ours or known in used:
            kept.append(alias)
    if not kept:
        return None
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return statement.with_changes(body=[one.with_changes(names=kept), *statement.body[1:]])


def plain_imports(module: cst.Module) -> set[str]:
    """What a module imports under its own name, as in `import torch`."""
    found: set[str] = set()
    for one in m.findall(module, m.Import()):
        names = cst.ensure_type(one, cst.Import).names
        found |= {alias.evaluated_name for alias in names if alias.asname is None}
    return found


# == What is added ==


@dataclass(frozen=True)
class Additions:
    """What a draft needs beside the old source.   words: what the draft calls its own functions;
    the old source may have such names itself.   made: factory -> its lines, the last of which is
    returned."""

    engine_module: str
    words: Mapping[str, str]
    made: Mapping[str, Sequence[str]]
    generation_options: str
    checkpoint_settings: str


AS_IT_LIES = '''
def as_it_lies(image):
    """The image without its EXIF: the old code did not turn images upright by it."""
    if isinstance(image, list):
        return [as_it_lies(one) for one in image]
    image = image.copy()
    image.getexif().clear()
    image.info.pop("exif", None)
    return image
'''


WHOLE_IDS = '''
def whole_ids(result):
    """Ids of the prompt and of the answer, as generate gives them."""
    return [*result.prompt_token_ids, *result.token_ids]
'''
SAMPLES_OF = '''
def samples_of(result):
    """All samples of a request: one without samples is its own."""
    return result.samples or (result,)
'''
VLLM_DTYPE = '''
def vllm_dtype(model, **fields):
    """The dtype in which vLLM runs a checkpoint. Its "auto" makes bfloat16 of float32."""
    from vllm import EngineArgs

    return str(EngineArgs(model, **fields).create_model_config().dtype).removeprefix("torch.")
'''
ENGINE_DTYPE = '''
def engine_dtype(dtype):
    """A dtype of from_pretrained as `load` takes it: None for the checkpoint's own, "auto"."""
    return None if dtype in (None, "auto") else str(dtype).removeprefix("torch.")
'''
AS_REQUESTS = '''
def as_requests(prompts, image=None):
    """Requests of what LLM.generate takes: texts, ids, mappings of either and of `image`s."""

    def request(prompt):
        if not isinstance(prompt, dict):
            prompt = {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}
        said = {name: value for name, value in prompt.items() if value is not None}
        text, ids = said.pop("prompt", None), said.pop("prompt_token_ids", None)
        made = {"prompt": text} if ids is None else {"prompt_token_ids": list(ids)}
        pixels = dict(said.pop("multi_modal_data", {})) if image else {}
        images = pixels.pop("image", [])
        images = images if isinstance(images, list) else [images]
        if said or pixels or (text is None and ids is None):
            raise ValueError(f"a prompt of {sorted(prompt)}: only texts, ids and images are moved")
        if images:
            made["images"] = [image(one) for one in images]
        return made

    is_one = isinstance(prompts, (str, dict)) or (prompts and isinstance(prompts[0], int))
    return [request(one) for one in ([prompts] if is_one else prompts)]
'''
HELPERS = {
    "as_requests": AS_REQUESTS,
    "vllm_dtype": VLLM_DTYPE,
    "engine_dtype": ENGINE_DTYPE,
    "thinks_unasked": THINKS_UNASKED,
    "as_it_lies": AS_IT_LIES,
    "whole_ids": WHOLE_IDS,
    "samples_of": SAMPLES_OF,
}
LIBRARIES = ("functools", "torch")  # of which a draft may use more than the old source
WORDS = (
    "load",
    "load_engine",
    "generation_options",
    "checkpoint_settings",
    *LIBRARIES,
    *HELPERS,
)


def with_additions(body: Sequence[cst.BaseStatement], more: Additions) -> list[cst.BaseStatement]:
    tail = [factory(name, lines) for name, lines in more.made.items()]
    word = more.words
    new: list[cst.BaseStatement] = []
    if word["load_engine"] in NamesIn.of(module_of(body)):
        line = f"{word['load_engine']} = {word['functools']}.cache({word['load']})\n"
        blank = cst.EmptyLine(indent=False)
        new.append(cst.parse_statement(line).with_changes(leading_lines=[blank]))
    read = NamesIn.of(module_of([*new, *body, *tail]))
    imports = [imported(name, word[name]) for name in LIBRARIES]
    imports.append(f"from {more.engine_module} {imported('load', word['load'])}")
    added = read - names_bound(body)
    new[:0] = [cst.parse_statement(one) for one in imports if one.split()[-1] in added]
    place = end_of_imports(body, set(word.values()))
    helpers = {"checkpoint_settings": more.checkpoint_settings, **HELPERS}
    for function, text in helpers.items():
        if word[function] in read:
            new.append(spaced(text.replace(function, word[function])))
    if word["generation_options"] in read:
        new.append(spaced(more.generation_options))
    if new and place < len(body):
        body = [
            *body[:place],
            with_blank_before(body[place], 2 if is_definition(body[place]) else 1),
            *body[place + 1 :],
        ]
    main = next((k for k, one in enumerate(body) if is_guard(one)), len(body))
    return [*body[:place], *new, *body[place:main], *tail, *body[main:]]


def imported(name: str, word: str) -> str:
    return f"import {name}\n" if word == name else f"import {name} as {word}\n"


def is_definition(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, (cst.FunctionDef, cst.ClassDef))


def with_blank_before(statement: cst.BaseStatement, lines: int) -> cst.BaseStatement:
    """A statement with so many blank lines before it, above its comments."""
    before = list(getattr(statement, "leading_lines", ()))
    while before and before[0].comment is None:
        before.pop(0)
    blanks = [cst.EmptyLine(indent=False)] * lines
    return statement.with_changes(leading_lines=[*blanks, *before])


def spaced(text: str) -> cst.BaseStatement:
    blank = cst.EmptyLine(indent=False)
    return parsed_statement(text).with_changes(leading_lines=[blank, blank])


def parsed_statement(text: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    return cst.parse_statement(text.strip("\n") + "\n")


def factory(name: str, lines: Sequence[str]) -> cst.BaseStatement:
    """A function that makes what a method is called on. The comments of the script stay there."""
    about = '"""For `parity check`: what the goldens were recorded on."""'
    *before, call = lines
    body = [parsed_statement(line) for line in (about, *before, f"return {call}")]
    bare = [statement.with_changes(leading_lines=[]) for statement in body]
    made = cst.ensure_type(spaced(f"def {name}(): pass"), cst.FunctionDef)
    return made.with_changes(body=cst.IndentedBlock(bare))


def end_of_imports(body: Sequence[cst.BaseStatement], names: set[str]) -> int:
    """Behind the last import that stands before the first statement with one of these names."""
    last = 0
    for place, statement in enumerate(body):
        if is_import(statement):
            last = place + 1
        elif NamesIn.of(statement) & names:
            break
        elif place == 0 and m.matches(statement, m.SimpleStatementLine(body=[m.Expr()])):
            last = 1
    return last


def is_changed(node: cst.CSTNode, name: str) -> bool:
    """Whether what a variable holds is changed in place: by a method, a part, an operator."""
    of = matcher(name)
    part: Any = m.OneOf(m.Subscript(value=of), m.Attribute(value=of))
    methods = m.OneOf(*(m.Name(method) for method in CHANGES))
    changes = m.OneOf(
        m.Call(func=m.Attribute(value=of, attr=methods)),
        m.Call(func=m.Name("setattr"), args=[m.Arg(value=of), m.ZeroOrMore()]),
        m.AssignTarget(target=part),
        m.AugAssign(target=m.OneOf(of, part)),
        m.Del(target=part),
    )
    return bool(m.findall(node, changes))


def is_fixed(node: cst.CSTNode, name: str) -> bool:
    """Whether a variable holds one thing, which nothing changes."""
    once = len(m.findall(node, m.AssignTarget(target=matcher(name)))) == 1
    return once and not is_changed(node, name)


def matcher(name: str) -> Any:
    """What matches a name, or `self.name`."""
    owner, _, last = name.rpartition(".")
    return m.Attribute(value=matcher(owner), attr=m.Name(last)) if owner else m.Name(last)


def defaults_of(node: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    every = [*node.params.posonly_params, *node.params.params, *node.params.kwonly_params]
    return {one.name.value: one.default for one in every if one.default is not None}


def single_mapping(function: cst.CSTNode, name: str) -> cst.Dict | None:
    """The mapping that a variable holds, where it is assigned once and nothing changes it."""
    assigned: list[cst.BaseExpression] = []
    mentions = 0
    stars = 0
    for node in m.findall(function, m.Name(name)):
        mentions += node is not None
    for node in m.findall(function, m.Assign(targets=[m.AssignTarget(target=m.Name(name))])):
        assert isinstance(node, cst.Assign)
        assigned.append(node.value)
    stars = len(m.findall(function, m.Arg(star="**", value=m.Name(name))))
    if len(assigned) != 1 or mentions != 1 + stars:
        return None
    node = assigned[0]
    if isinstance(node, cst.Dict):
        return node
    if not isinstance(node, cst.Call) or dotted(node.func) != "dict":
        return None
    if any(arg.keyword is None and arg.star != "**" for arg in node.args):
        return None
    return cst.Dict([dict_element(arg) for arg in node.args])


def dict_element(arg: cst.Arg) -> cst.BaseDictElement:
    if arg.keyword is None:
        return cst.StarredDictElement(arg.value)
    return cst.DictElement(cst.SimpleString(f'"{arg.keyword.value}"'), arg.value)
