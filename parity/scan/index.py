"""The names of a repository: modules, classes, functions, imports, and where each name is bound."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from parity.scan.files import Source, parse

Position = tuple[int, int]  # line, column
END: Position = (10**9, 0)
MAX_OTHERS = 12  # modules that mention no model, and are read for the calls of one function
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
RARE = {ast.NamedExpr, ast.Yield, ast.YieldFrom, *COMPREHENSIONS}
LEAVES = {
    ast.Constant, ast.Name, ast.Load, ast.Store, ast.Del, ast.And, ast.Or, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot,
    ast.In, ast.NotIn, ast.Not, ast.USub,
}  # fmt: skip
SEEDERS = (
    r"manual_seed|manual_seed_all|set_seed|seed_everything|seed_all|fix_seed|setup_seed"
    r"|enable_full_determinism"
)
SEEDS = re.compile(rf"(^|[._])({SEEDERS})$")
MAY_SEED = re.compile(rf"({SEEDERS})\(")
BASES = {"assign", "unpack", "element", "unknown", "augment"}  # bindings that give a name a value
EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True, eq=False)
class Arm:
    """One arm of a branch: it may not run.   exits: whether nothing behind the branch is reached
    from it."""

    branch: ast.AST
    number: int
    start: Position
    end: Position
    exits: bool
    test: ast.expr | None
    arms: int  # how many arms the branch has; 0: it may run none of them

    def contains(self, position: Position) -> bool:
        return self.start <= position <= self.end


@dataclass(frozen=True, eq=False)
class Binding:
    """What happens to a name.

    kind: "assign" (value), "unpack" (value, key: index path), "item" (key, value), "update"
    (value),
    "call" (node: a method called for its effect), "pop" (key), "element" (of an iterable),
    "unknown".
    name: dotted, as written: "tokenizer.padding_side".
    """

    name: str
    kind: str
    position: Position
    value: ast.expr | None = None
    key: ast.expr | tuple[int, ...] | None = None
    owner: Scope | None = None


def dotted_name(node: ast.AST) -> str:
    """ "a.b.c" of nested attributes of a name; "" of anything else."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def start_of(node: ast.AST) -> Position:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def end_of(node: ast.AST) -> Position:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


@dataclass(eq=False)
class Scope:
    """A module or a function: its own statements, without those of nested functions.

    qualname: "Class.method", "function", "outer.inner"; "" of a module.
    owner: the class that a method belongs to.
    """

    module: Module
    node: ast.AST
    qualname: str = ""
    owner: Class | None = None
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    arms: list[Arm] = field(default_factory=list)
    loops: list[tuple[Position, Position]] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    returns: list[ast.expr] = field(default_factory=list)
    yields: list[ast.expr] = field(default_factory=list)
    nested: list[Scope] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.qualname.rpartition(".")[2]

    @property
    def is_generator(self) -> bool:
        return bool(self.yields)

    @property
    def arguments(self) -> ast.arguments | None:
        return getattr(self.node, "args", None)

    @cached_property
    def parameters(self) -> dict[str, ast.arg]:
        if self.arguments is None:
            return {}
        given = self.arguments
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        every += [arg for arg in (given.vararg, given.kwarg) if arg is not None]
        return {arg.arg: arg for arg in every}

    @cached_property
    def positional(self) -> list[str]:
        if self.arguments is None:
            return []
        return [arg.arg for arg in (*self.arguments.posonlyargs, *self.arguments.args)]

    @cached_property
    def defaults(self) -> dict[str, ast.expr]:
        if self.arguments is None:
            return {}
        given = self.arguments
        last = self.positional[len(self.positional) - len(given.defaults) :]
        found = dict(zip(last, given.defaults))
        for arg, default in zip(given.kwonlyargs, given.kw_defaults):
            if default is not None:
                found[arg.arg] = default
        return found

    @property
    def keyword_rest(self) -> str:
        """The name of `**kwargs`; "" where there is none."""
        if self.arguments is None or self.arguments.kwarg is None:
            return ""
        return self.arguments.kwarg.arg

    @property
    def decorators(self) -> list[str]:
        return [dotted_name(node) for node in getattr(self.node, "decorator_list", ())]

    @property
    def is_method(self) -> bool:
        return self.owner is not None and "staticmethod" not in self.decorators

    @property
    def self_name(self) -> str:
        """What a method calls its object; of a nested function, what the method around it does."""
        scope: Scope | None = self
        while scope is not None:
            if scope.is_method and scope.positional:
                return scope.positional[0]
            scope = scope.parent
        return ""

    @property
    def self_class(self) -> Class | None:
        scope: Scope | None = self
        while scope is not None:
            if scope.is_method:
                return scope.owner
            scope = scope.parent
        return None

    @cached_property
    def below(self) -> dict[str, list[str]]:
        """A dotted name -> the bound names below it: "tokenizer" -> ["tokenizer.padding_side"]."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.bindings:
            head = name
            while "." in head:
                head = head.rpartition(".")[0]
                found[head].append(name)
        return found

    def arms_at(self, position: Position) -> list[Arm]:
        return [arm for arm in self.arms if arm.contains(position)]


@dataclass(eq=False)
class Class:
    """fields: name -> (annotation, default) of class attributes, in order."""

    module: Module
    node: ast.ClassDef
    qualname: str
    methods: dict[str, Scope] = field(default_factory=dict)
    fields: dict[str, tuple[ast.expr | None, ast.expr | None]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_dataclass(self) -> bool:
        names = {dotted_name(getattr(node, "func", node)) for node in self.node.decorator_list}
        return any("dataclass" in name or name in ("define", "attrs", "attr.s") for name in names)


@dataclass(eq=False)
class Module:
    """imports: local name -> dotted target, absolute where that is known.   stars: modules of
    `import *`."""

    source: Source
    name: str
    scope: Scope = field(init=False, repr=False)
    functions: dict[str, Scope] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.source.path

    @property
    def package(self) -> str:
        if os.path.basename(self.path) == "__init__.py":
            return self.name
        return self.name.rpartition(".")[0]


class Builder:
    """Walks a module once and fills its scopes."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def build(self, tree: ast.Module) -> None:
        scope = Scope(self.module, tree)
        self.module.scope = scope
        self.module.scopes.append(scope)
        self.block(tree.body, scope, "")

    def block(self, body: Sequence[ast.stmt], scope: Scope, prefix: str) -> None:
        for statement in body:
            self.statement(statement, scope, prefix)

    def statement(self, node: ast.stmt, scope: Scope, prefix: str) -> None:
        visit = getattr(self, f"visit_{type(node).__name__}", None)
        if visit is not None:
            visit(node, scope, prefix)
        else:
            self.expressions(node, scope, prefix)

    # -- definitions --

    def visit_FunctionDef(self, node: ast.FunctionDef, scope: Scope, prefix: str) -> None:
        self.function(node, scope, prefix, None)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef, scope: Scope, prefix: str) -> None:
        self.function(node, scope, prefix, None)

    def function(self, node: ast.AST, scope: Scope, prefix: str, owner: Class | None) -> None:
        name = f"{prefix}{node.name}"  # type: ignore[attr-defined]
        inner = Scope(self.module, node, name, owner, scope)
        scope.nested.append(inner)
        self.module.scopes.append(inner)
        self.module.functions.setdefault(name, inner)
        if owner is not None:
            owner.methods[node.name] = inner  # type: ignore[attr-defined]
        for decorator in node.decorator_list:  # type: ignore[attr-defined]
            self.expression(decorator, scope, prefix)
        self.block(node.body, inner, f"{name}.")  # type: ignore[attr-defined]

    def visit_ClassDef(self, node: ast.ClassDef, scope: Scope, prefix: str) -> None:
        name = f"{prefix}{node.name}"
        found = Class(self.module, node, name)
        self.module.classes.setdefault(name, found)
        for statement in node.body:
            if isinstance(statement, FUNCTIONS):
                self.function(statement, scope, f"{name}.", found)
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found.fields[statement.target.id] = statement.annotation, statement.value
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        found.fields[target.id] = None, statement.value
            elif isinstance(statement, ast.ClassDef):
                self.visit_ClassDef(statement, scope, f"{name}.")

    # -- imports --

    def visit_Import(self, node: ast.Import, scope: Scope, prefix: str) -> None:
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            target = alias.name if alias.asname else local
            self.module.imports[local] = target
            scope.imports[local] = target

    def visit_ImportFrom(self, node: ast.ImportFrom, scope: Scope, prefix: str) -> None:
        base = node.module or ""
        if node.level:
            parts = self.module.package.split(".") if self.module.package else []
            parts = parts[: len(parts) - (node.level - 1)]
            base = ".".join([*parts, *([base] if base else [])])
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(base)
            else:
                target = f"{base}.{alias.name}" if base else alias.name
                self.module.imports[alias.asname or alias.name] = target
                scope.imports[alias.asname or alias.name] = target

    # -- branches --

    def arm(
        self,
        scope: Scope,
        branch: ast.AST,
        body: Sequence[ast.stmt],
        about: tuple[int, int, ast.expr | None],
    ) -> None:
        number, arms, test = about
        if body:
            exits = isinstance(body[-1], EXITS)
            scope.arms.append(
                Arm(branch, number, start_of(body[0]), end_of(body[-1]), exits, test, arms)
            )

    def visit_If(self, node: ast.If, scope: Scope, prefix: str) -> None:
        self.expression(node.test, scope, prefix)
        arms = 2 if node.orelse else 0
        is_main = isinstance(node.test, ast.Compare) and dotted_name(node.test.left) == "__name__"
        if not is_main:  # of a script, it runs
            self.arm(scope, node, node.body, (0, arms, node.test))
        self.arm(scope, node, node.orelse, (1, arms, node.test))
        self.block(node.body, scope, prefix)
        self.block(node.orelse, scope, prefix)

    def visit_Try(self, node: ast.Try, scope: Scope, prefix: str) -> None:
        self.block(node.body, scope, prefix)
        for number, handler in enumerate(node.handlers):
            self.arm(scope, node, handler.body, (number, 0, None))
            self.block(handler.body, scope, prefix)
        self.block(node.orelse, scope, prefix)
        self.block(node.finalbody, scope, prefix)

    def visit_Match(self, node: ast.Match, scope: Scope, prefix: str) -> None:
        self.expression(node.subject, scope, prefix)
        for number, case in enumerate(node.cases):
            self.arm(scope, node, case.body, (number, 0, None))
            self.block(case.body, scope, prefix)

    def visit_For(self, node: ast.For, scope: Scope, prefix: str) -> None:
        self.expression(node.iter, scope, prefix)
        self.bind_elements(node.target, node.iter, scope, end_of(node.iter))
        scope.loops.append((start_of(node), end_of(node)))
        self.block(node.body, scope, prefix)
        self.block(node.orelse, scope, prefix)

    visit_AsyncFor = visit_For  # noqa: N815 - named by ast

    def visit_While(self, node: ast.While, scope: Scope, prefix: str) -> None:
        self.expression(node.test, scope, prefix)
        scope.loops.append((start_of(node), end_of(node)))
        self.block(node.body, scope, prefix)
        self.block(node.orelse, scope, prefix)

    def visit_With(self, node: ast.With, scope: Scope, prefix: str) -> None:
        for item in node.items:
            self.expression(item.context_expr, scope, prefix)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, item.context_expr, scope, end_of(item.optional_vars))
        self.block(node.body, scope, prefix)

    visit_AsyncWith = visit_With  # noqa: N815 - named by ast

    # -- bindings --

    def add(
        self,
        scope: Scope,
        name: str,
        kind: str,
        position: Position,
        value: ast.expr | None = None,
        key: ast.expr | tuple[int, ...] | None = None,
    ) -> None:
        if not name:
            return
        binding = Binding(name, kind, position, value, key, scope)
        scope.bindings[name].append(binding)
        if name.partition(".")[0] in scope.globals:
            self.module.scope.bindings[name].append(binding)

    def visit_Global(self, node: ast.Global, scope: Scope, prefix: str) -> None:
        scope.globals.update(node.names)

    def bind(self, target: ast.AST, value: ast.expr, scope: Scope, position: Position,
             path: tuple[int, ...] = ()) -> None:  # fmt: skip
        if isinstance(target, (ast.Tuple, ast.List)):
            pairs = paired_elements(target, value)
            for element, own in pairs:
                self.bind(element, own, scope, position, path)
            for index, element in enumerate(() if pairs else target.elts):
                self.bind(element, value, scope, position, (*path, index))
        elif isinstance(target, ast.Starred):
            self.add(scope, dotted_name(target.value), "unknown", position)
        elif isinstance(target, ast.Subscript):
            self.add(scope, dotted_name(target.value), "item", position, value, target.slice)
        else:
            self.add(
                scope,
                dotted_name(target),
                "unpack" if path else "assign",
                position,
                value,
                path or None,
            )

    def bind_elements(
        self, target: ast.AST, iterable: ast.expr, scope: Scope, position: Position
    ) -> None:
        for node in ast.walk(target):
            if isinstance(node, (ast.Name, ast.Attribute)):
                self.add(scope, dotted_name(node), "element", position, iterable)

    def visit_Assign(self, node: ast.Assign, scope: Scope, prefix: str) -> None:
        self.expression(node.value, scope, prefix)
        for target in node.targets:
            self.bind(target, node.value, scope, end_of(node))

    def visit_AnnAssign(self, node: ast.AnnAssign, scope: Scope, prefix: str) -> None:
        if node.value is not None:
            self.expression(node.value, scope, prefix)
            self.bind(node.target, node.value, scope, end_of(node))

    def visit_AugAssign(self, node: ast.AugAssign, scope: Scope, prefix: str) -> None:
        self.expression(node.value, scope, prefix)
        kind = "update" if isinstance(node.op, ast.BitOr) else "augment"
        self.add(scope, dotted_name(node.target), kind, end_of(node), node.value)

    def visit_Delete(self, node: ast.Delete, scope: Scope, prefix: str) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self.add(scope, dotted_name(target.value), "pop", end_of(node), None, target.slice)

    def visit_Expr(self, node: ast.Expr, scope: Scope, prefix: str) -> None:
        self.expression(node.value, scope, prefix)
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call):
            return
        function = call.func
        if dotted_name(function) == "setattr" and len(call.args) == 3:
            attribute = getattr(call.args[1], "value", None)
            if isinstance(attribute, str):
                name = f"{dotted_name(call.args[0])}.{attribute}"
                self.add(scope, name, "assign", end_of(node), call.args[2])
        elif isinstance(function, ast.Attribute):
            self.method_effect(function, call, scope, end_of(node))

    def method_effect(
        self, function: ast.Attribute, call: ast.Call, scope: Scope, position: Position
    ) -> None:
        """A method that is called for what it does to its object."""
        name = dotted_name(function.value)
        if function.attr == "update":
            self.add(scope, name, "update", position, call)
        elif function.attr == "setdefault" and len(call.args) == 2:
            self.add(scope, name, "setdefault", position, call.args[1], call.args[0])
        elif function.attr != "pop":
            self.add(scope, name, "call", position, call)

    def visit_Return(self, node: ast.Return, scope: Scope, prefix: str) -> None:
        if node.value is not None:
            self.expression(node.value, scope, prefix)
            scope.returns.append(node.value)

    # -- expressions --

    def expressions(self, node: ast.AST, scope: Scope, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.statement(child, scope, prefix)
            else:
                self.expression(child, scope, prefix)

    def expression(self, node: ast.AST, scope: Scope, prefix: str) -> None:
        """Calls, pops, walrus assignments and lambdas of an expression."""
        todo = [node]
        while todo:
            node = todo.pop()
            kind = type(node)
            if kind is ast.Call:
                scope.calls.append(node)  # type: ignore[arg-type]
                self.pop_effect(node, scope)  # type: ignore[arg-type]
            elif kind in RARE:
                self.rare_expression(node, scope)
            for name in node._fields:
                child = getattr(node, name, None)
                if type(child) is list:
                    todo += [
                        item
                        for item in child
                        if isinstance(item, ast.AST) and type(item) not in LEAVES
                    ]
                elif isinstance(child, ast.AST) and type(child) not in LEAVES:
                    todo.append(child)

    def rare_expression(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.NamedExpr):
            self.bind(node.target, node.value, scope, end_of(node))
        elif isinstance(node, (ast.Yield, ast.YieldFrom)):
            scope.yields.append(node.value or ast.Constant(None))
        elif isinstance(node, COMPREHENSIONS):
            line, column = end_of(node)  # where a statement ends that ends with it
            end = line, column - 1
            arm = Arm(node, 0, start_of(node), end, exits=True, test=None, arms=0)
            scope.arms.append(arm)  # its names are seen within it only
            for part in node.generators:
                self.bind_elements(part.target, part.iter, scope, start_of(node))

    def pop_effect(self, node: ast.Call, scope: Scope) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "pop" and node.args:
            self.add(scope, dotted_name(function.value), "pop", end_of(node), None, node.args[0])


def paired_elements(
    target: ast.Tuple | ast.List, value: ast.expr
) -> list[tuple[ast.expr, ast.expr]]:
    """What `a, b = 1, 2` assigns to each; empty where that is not seen."""
    if not isinstance(value, (ast.Tuple, ast.List)) or len(value.elts) != len(target.elts):
        return []
    if any(isinstance(one, ast.Starred) for one in (*target.elts, *value.elts)):
        return []
    return list(zip(target.elts, value.elts))


@dataclass(eq=False)
class Repository:
    """All modules of a scan. One that mentions no call of a model is read when something asks for
    it.

    by_tail: the last part of a module's dotted name -> sources.
    """

    sources: Sequence[Source]

    def __post_init__(self) -> None:
        self.by_tail: dict[str, list[tuple[str, Source]]] = defaultdict(list)
        self.called: dict[str, list[tuple[Scope, ast.Call]]] = {}
        self.starred_names: dict[str, dict[str, Module]] = {}
        self.built: dict[str, Module | None] = {}
        for source in self.sources:
            name = module_name(source.path)
            self.by_tail[name.rpartition(".")[2]].append((name, source))
        self.modules: list[Module] = []  # that call or load a model
        for source in self.sources:
            module = self.module(source) if source.has_words else None
            if module is not None:
                self.modules.append(module)

    def module(self, source: Source) -> Module | None:
        """The module of a source; None where it cannot be parsed."""
        if source.path not in self.built:
            parse(source)
            self.built[source.path] = None
            try:
                self.built[source.path] = build_module(source) if source.tree is not None else None
            except RecursionError:
                source.problem = "its statements are nested too deep to be followed"
        return self.built[source.path]

    def callers(self, name: str) -> list[tuple[Scope, ast.Call]]:
        """The calls of what has this last name, in the modules that call or load a model, and in a
        few others."""
        if name not in self.called:
            found = list(self.known_calls.get(name, ()))
            needle = f"{name}("
            others = [
                source for source in self.sources if not source.has_words and needle in source.text
            ]
            for source in others[:MAX_OTHERS]:
                module = self.module(source)
                for scope in module.scopes if module is not None else ():
                    found += [(scope, call) for call in scope.calls if called_name(call) == name]
            self.called[name] = found
        return self.called[name]

    @cached_property
    def known_calls(self) -> dict[str, list[tuple[Scope, ast.Call]]]:
        found: dict[str, list[tuple[Scope, ast.Call]]] = defaultdict(list)
        for scope in self.scopes():
            for call in scope.calls:
                found[called_name(call)].append((scope, call))
        return found

    @cached_property
    def seeding_functions(self) -> set[str]:
        """The last names of functions that call what seeds torch."""
        found = set[str]()
        for source in self.sources:
            module = self.module(source) if MAY_SEED.search(source.text) else None
            for scope in module.scopes if module is not None else ():
                if any(SEEDS.search(dotted_name(call.func)) for call in scope.calls):
                    found.add(scope.name)
        return found - {"", "main", "__init__"}

    @cached_property
    def subclasses(self) -> dict[str, list[Class]]:
        """The last name of a base -> classes that name it as theirs."""
        found: dict[str, list[Class]] = defaultdict(list)
        for module in self.modules:
            for cls in module.classes.values():
                for base in cls.node.bases:
                    found[dotted_name(base).rpartition(".")[2]].append(cls)
        return found

    @cached_property
    def importers(self) -> dict[str, list[Module]]:
        """A part of a dotted name -> the modules that import something of that name."""
        found: dict[str, list[Module]] = defaultdict(list)
        for module in self.modules:
            parts = {part for target in module.imports.values() for part in target.split(".")}
            for part in parts:
                found[part].append(module)
        return found

    def scopes(self) -> Iterator[Scope]:
        for module in self.modules:
            yield from module.scopes

    def find_module(self, dotted: str, importer: Module) -> Module | None:
        """The module of an absolute name, which may be seen from any folder above it; of several,
        the one
        nearest to the importer."""
        if not dotted:
            return None
        near = list[Source]()
        for name, source in self.by_tail.get(dotted.rpartition(".")[2], ()):
            if name == dotted or name.endswith(f".{dotted}"):
                near.append(source)
        if not near:
            return None
        return self.module(max(near, key=lambda source: shared_length(source.path, importer.path)))

    def find(
        self, dotted: str, importer: Module, depth: int = 0
    ) -> Scope | Class | Module | tuple[Module, str] | None:
        """What an imported name is: a module, a class, a function or a (module, global variable);
        None: not here."""
        if depth > 6:
            return None
        if module := self.find_module(dotted, importer):
            return module
        base, _, name = dotted.rpartition(".")
        module = self.find_module(base, importer)
        if module is not None:
            return self.member(module, name, depth)
        outer = self.find(base, importer, depth + 1) if base else None
        if isinstance(outer, Class):
            return outer.methods.get(name)
        return None

    def member(
        self, module: Module, name: str, depth: int = 0
    ) -> Scope | Class | Module | tuple[Module, str] | None:
        """A name of a module, through what it imports itself."""
        is_own = any(name in names for names in own_names(module))
        owner = module if is_own else self.starred(module).get(name)
        if owner is None:
            return None
        if name in owner.functions:
            return owner.functions[name]
        if name in owner.classes:
            return owner.classes[name]
        kinds = {binding.kind for binding in owner.scope.bindings.get(name, ())}
        if kinds & BASES and not is_failed_import(owner.scope, name):
            return owner, name
        if name not in owner.imports:
            return None
        return self.find(owner.imports[name], owner, depth + 1) if depth < 6 else None

    def starred(self, module: Module) -> dict[str, Module]:
        """The names that a module has of `from x import *`, and the modules that they are of. Of
        two, the one that is imported later."""
        if module.path not in self.starred_names:
            found: dict[str, Module] = {}
            seen = {module.path}
            waiting = [module]
            while waiting:
                one = waiting.pop()
                if one is not module:
                    names = itertools.chain(*own_names(one))
                    found = dict.fromkeys(names, one) | found
                for star in one.stars:
                    inner = self.find_module(star, one)
                    if inner is not None and inner.path not in seen:
                        seen.add(inner.path)
                        waiting.append(inner)
            self.starred_names[module.path] = found
        return self.starred_names[module.path]


def own_names(module: Module) -> tuple[Mapping[str, Any], ...]:
    """What a module defines, or imports by name."""
    return module.functions, module.classes, module.scope.bindings, module.imports


def is_failed_import(scope: Scope, name: str) -> bool:
    """Whether a scope binds an imported name to None alone, where its import fails."""
    if name not in scope.module.imports:
        return False
    values = [binding.value for binding in scope.bindings[name]]
    return all(isinstance(value, ast.Constant) and value.value is None for value in values)


def shared_length(one: str, other: str) -> int:
    """How many folders two paths share from their beginning."""
    parts = zip(one.split("/"), other.split("/"))
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], parts)))


def called_name(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def module_name(path: str) -> str:
    """The dotted name of a file as its path spells it: "pkg.sub.mod"."""
    parts = path.replace(os.sep, "/").removesuffix(".py").removesuffix(".ipynb").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(part for part in parts if part not in ("", ".", ".."))


def build_module(source: Source) -> Module:
    module = Module(source, module_name(source.path))
    assert source.tree is not None
    Builder(module).build(source.tree)
    return module
