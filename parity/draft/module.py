"""The draft of a whole module: its functions, classes, imports and what they need further."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst
import libcst.matchers as m

from parity.draft import importing, parts, run_time
from parity.draft.calls import AT_RUN_TIME, CONFIG, SEEDS
from parity.draft.chats import Depths
from parity.draft.decisions import Decisions
from parity.draft.expressions import NamesIn, Scope
from parity.draft.loads import Load, dtype_value, loads_only, part_of
from parity.draft.observed import Observed
from parity.draft.roles import (
    Copy,
    Demote,
    Unsure,
    Value,
    bound_arguments,
    code_of,
    constant,
    dotted,
    parameter_names,
    parse,
)
from parity.draft.statements import Statements, is_no_grad

TODO = "# TODO parity: "
LEFT = "# left to load(): "
LIBRARIES = ("transformers", "torch", "vllm")
ENGINE_CLASSES = {"Processor": "processor", "LLM": "llm", "Pipeline": "pipeline",
                  "LLMEngine": "llm"}  # fmt: skip


@dataclass
class Function:
    """A function of the module.   roles: of its parameters.   gone: parameters that the draft does
    not take.   renamed: parameter -> its new name.   new: None until it is translated."""

    node: cst.FunctionDef
    class_name: str = ""
    roles: Mapping[str, Value] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    new: cst.FunctionDef | None = None
    returned: Value | None = None
    is_open: bool = False
    is_loader: bool = False


@dataclass(frozen=True)
class Todo:
    """Something that the draft leaves to a person.   line: of the old source."""

    text: str
    line: int = 0


@dataclass(frozen=True)
class Draft:
    """code: of the moved module.   todos: what is left.   factories: recorded function -> argument
    -> function of the draft that makes it.   is_moved: False where the old code was left as it is.
    changes: what the draft does beside moving the calls."""

    code: str
    todos: tuple[Todo, ...]
    factories: Mapping[str, Mapping[str, str]]
    is_moved: bool
    changes: tuple[str, ...] = ()


class ModuleDraft(Statements):
    """One attempt; a Demote that reaches `attempt` begins another one."""

    def __init__(
        self,
        module: cst.Module,
        seen: Observed,
        ask: Decisions,
        engine_module: str,
        demoted: set[str],
        copied: set[str],
    ) -> None:
        self.module = module
        self.seen = seen
        self.ask = ask
        self.source = module.code
        self.stops = False
        self.engine_module = engine_module
        self.demoted = demoted
        self.copied = copied
        self.generated_names = set()
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, Scope] = {}
        self.class_nodes: dict[str, cst.ClassDef] = {}
        self.scope = Scope()
        self.used = NamesIn.of(module) - (parts.plain_imports(module) & {*parts.LIBRARIES})
        self.used_outside = names_of_module(module)
        self.todo_at: dict[int, str] = {}
        self.todos: list[Todo] = []
        self.changes: list[str] = []
        self.notes: list[str] = []
        self.left = []
        self.sources = []
        self.stack: list[str] = []
        self.loads: list[Load] = []
        self.early: dict[int, Value] = {}
        self.factories: dict[str, dict[str, str]] = {}
        self.object_lines: dict[str, Sequence[str]] = {}
        self.methods: dict[str, str] = {}
        self.taken: dict[str, set[str]] = {}
        self.waiting: dict[str, str] = {}
        self.moved_stops = {}
        self.reused = {}
        self.collect()
        self.is_checkpoint_known = loads_only(module, seen.models)
        self.depths = Depths(module, {name: one.node for name, one in self.functions.items()}, seen)

    def collect(self) -> None:
        for statement in self.module.body:
            if isinstance(statement, cst.FunctionDef):
                self.functions[statement.name.value] = Function(statement)
            elif isinstance(statement, cst.ClassDef):
                self.collect_class(statement)

    def collect_class(self, statement: cst.ClassDef) -> None:
        name = statement.name.value
        self.class_nodes[name] = statement
        outer = self.scope
        for base in statement.bases:
            outer = self.classes.get(code_of(base.value), outer)
        self.classes[name] = Scope(outer=outer, class_name=name)
        for one in statement.body.body:
            if isinstance(one, cst.FunctionDef):
                self.functions[f"{name}.{one.name.value}"] = Function(one, name)

    # == Notes and TODOs ==

    def note(self, text: str) -> None:
        self.notes.append(text)

    def failed(self, statement: cst.CSTNode, error: Unsure) -> None:
        is_there = statement in self.places  # a line of `if x: y` has no place of its own
        if is_there and not getattr(error, "is_marked", False):
            error.possible = error.possible or self.seen.instead
            self.todo_at.setdefault(id(statement), error.text)
            error.is_marked = True  # type: ignore[attr-defined]

    def marked(
        self, statements: list[cst.BaseStatement], old: cst.BaseStatement | None = None
    ) -> list[cst.BaseStatement]:
        """Statements with what was noted of them as comments.   old: what they stand for."""
        texts = [*self.notes]
        if self.ask.is_open:
            texts += [f"decide: {decision.question}" for decision in self.ask.fresh]
        self.ask.fresh.clear()
        self.notes.clear()
        if not statements:
            self.notes += texts
            return statements
        for text in texts:
            self.todos.append(Todo(text, self.line_of(old)))
        comments = [*self.left_comment(), *(TODO + text for text in dict.fromkeys(texts))]
        return [with_comments(statements[0], comments), *statements[1:]] if comments else statements

    def say_left(self, before: list[cst.BaseStatement]) -> None:
        """At the statement before, where nothing stands for the one that said it."""
        if before:
            before[-1] = with_comments(before[-1], self.left_comment())

    def left_comment(self) -> list[str]:
        """Once: what the old code said of a load, and `load` decides by itself; where options come
        from that stand in one line."""
        said = ", ".join(dict.fromkeys(self.left))
        sources = [f"# {text}" for text in dict.fromkeys(self.sources)]
        self.left.clear()
        self.sources.clear()
        return [*([f"{LEFT}{said}"] if said else []), *sources]

    def line_of(self, node: cst.CSTNode | None) -> int:
        """A line of the old source; 0 where that is not known."""
        place = self.places.get(node) if node is not None else None
        return place.start.line if place is not None else 0

    @functools.cached_property
    def places(self) -> Mapping[cst.CSTNode, Any]:
        wrapper = cst.MetadataWrapper(self.module, unsafe_skip_copy=True)
        return wrapper.resolve(cst.metadata.PositionProvider)

    # == The whole ==

    def attempt(self) -> Draft:
        """Raises Demote."""
        try:
            body = self.translated()
        except Unsure as error:
            return self.left_as_it_is(error)
        self.note_problem()
        self.todos += [Todo(text) for text in self.notes]
        self.changes += [text.removeprefix("# ") for text in self.left_comment()]
        body = self.cleaned(body)
        module = self.module.with_changes(body=body)
        todos = tuple(self.todos)
        return Draft(
            module.code,
            todos,
            self.factories,
            is_moved=True,
            changes=tuple(dict.fromkeys(self.changes)),
        )

    def translated(self) -> list[cst.BaseStatement]:
        before = self.module_level(main=False)
        self.site_functions()
        after = self.module_level(main=True)
        new = {**before, **after}
        for name in list(self.functions):
            self.ensure(name, {})
        body: list[cst.BaseStatement] = []
        for statement in self.module.body:
            body += self.statement_of_module(statement, new)
        return body

    def statement_of_module(
        self, statement: cst.BaseStatement, new: Mapping[int, list[cst.BaseStatement]]
    ) -> list[cst.BaseStatement]:
        if isinstance(statement, cst.FunctionDef):
            made = self.functions[statement.name.value].new
            return [made] if made is not None else []
        if isinstance(statement, cst.ClassDef):
            return [self.new_class(statement)]
        return new[id(statement)]

    def new_class(self, statement: cst.ClassDef) -> cst.ClassDef:
        inside: list[cst.CSTNode] = []
        for one in statement.body.body:
            if isinstance(one, cst.FunctionDef):
                made = self.functions[f"{statement.name.value}.{one.name.value}"].new
                if made is not None:
                    inside.append(made)
            else:
                inside.append(one)
        return statement.with_changes(body=statement.body.with_changes(body=inside))

    def module_level(self, main: bool) -> dict[int, list[cst.BaseStatement]]:
        """Statements of the module itself; those that run as a script come last."""
        done = {}
        last: list[cst.BaseStatement] = []
        for statement in self.module.body:
            if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                continue
            if is_main(statement) is main:
                self.ahead = self.module.body
                new = self.statements([statement], self.scope)
                self.say_left([] if new else last)
                last = new or last
                done[id(statement)] = new
        return done

    def site_functions(self) -> None:
        for name in sorted(self.seen.classes):
            part_of(name)  # raises for what the engine does not run
        for function in self.seen.functions:
            name = function.rpartition(":")[2]
            if name not in self.functions:
                raise Unsure(f"{name} is recorded", "the source has no such function")
            roles = {}
            for parameter, kind in self.seen.objects(function).items():
                part = part_of_object(kind)
                if part and kind.rpartition(".")[2] not in self.classes:
                    roles[parameter] = Value(None, "engine", part)
            self.ensure(name, roles)
            self.add_factories(name, self.seen.objects(function))

    def left_as_it_is(self, error: Unsure) -> Draft:
        """The old source with a TODO where it could not be translated, or else at its top."""
        self.failed(self.module.body[0], error)
        marks = TodoMarks(self.todo_at)
        todos = []
        for node, place in self.places.items():
            if id(node) in self.todo_at:
                todos.append(Todo(self.todo_at[id(node)], place.start.line))
        todos = list({todo.text: todo for todo in todos}.values())
        changed = self.module.visit(marks)
        assert isinstance(changed, cst.Module)
        return Draft(changed.code, tuple(todos), {}, is_moved=False)

    # == Functions ==

    def is_site(self, function: str) -> bool:
        names = {name.rpartition(":")[2] for name in self.seen.functions}
        return function in names

    def parameters(self, scope: Scope) -> set[str]:
        known = self.functions.get(scope.function)
        return set(parameter_names(known.node)) if known else set()

    def ensure(self, name: str, roles: Mapping[str, Value]) -> Function:
        """A function, translated for such parameters. Raises Unsure where it has others."""
        known = self.functions[name]
        if known.new is not None or known.is_open:
            self.expect_roles(name, known, roles)
            return known
        if known.class_name:
            self.ensure_class(known, name)
            if known.new is not None:
                return known
        known.is_open = True
        known.roles = roles
        self.stack.append(name)
        try:
            if not roles and self.as_loader(name, known):
                return known
            self.translate_function(name, known)
        except Unsure as error:
            self.failed(known.node, error)
            raise
        finally:
            self.stack.pop()
            known.is_open = False
        return known

    def ensure_class(self, known: Function, name: str) -> None:
        first = f"{known.class_name}.__init__"
        if first != name and first in self.functions:
            init = self.functions[first]
            if init.new is None and not init.is_open:
                self.ensure(first, {})

    def expect_roles(self, name: str, known: Function, roles: Mapping[str, Value]) -> None:
        for parameter, value in roles.items():
            before = known.roles.get(parameter)
            if before is None or before.role != value.role:
                what = f"`{name}` takes {parameter}"
                raise Unsure(what, "its callers give different things")

    def translate_function(self, name: str, known: Function) -> None:
        outer = self.classes[known.class_name] if known.class_name else self.scope
        scope = Scope(name, outer=outer)
        node = self.bind_parameters(known, scope)
        body = known.node.body
        assert isinstance(body, (cst.IndentedBlock, cst.SimpleStatementSuite))
        new = self.block(body, scope)
        inside = new.body if new is not None else [cst.SimpleStatementLine([cst.Pass()])]
        statements = [one for one in inside if isinstance(one, cst.BaseStatement)]
        statements = self.without_seeds(statements, scope)
        statements = self.with_stops(statements, scope)
        idle = parts.reads_of([known.node]) - parts.reads_of(statements)
        kept = parts.without_unused(statements, self.generated_names | idle)
        decorators = [d for d in node.decorators if not is_no_grad(d.decorator)]
        old_body = body if isinstance(body, cst.IndentedBlock) else cst.IndentedBlock([])
        known.new = node.with_changes(body=old_body.with_changes(body=kept), decorators=decorators)
        known.returned = scope.returned

    def with_stops(
        self, statements: list[cst.BaseStatement], scope: Scope
    ) -> list[cst.BaseStatement]:
        """Options with the stops that were cut by hand."""
        for (function, options), stop in self.moved_stops.items():
            if function == scope.function:
                old = code_of(self.functions[function].node)
                if old.count("decode(") > 1:
                    raise Unsure("a cut by hand", "its text is decoded in two places", "no --stops")
                statements = parts.with_stop(statements, options, stop)
                self.changes.append(
                    f"the cut at {code_of(stop)} is a stop of the engine now: answers end there, so"
                    " that `check` reports stop.strings as LATENT until you accept it"
                )
        return statements

    def without_seeds(
        self, statements: list[cst.BaseStatement], scope: Scope
    ) -> list[cst.BaseStatement]:
        """Without torch's seeds where the engine is given them; a note where nobody is."""
        if scope.is_seed_used:
            return parts.without_seeds(statements)
        if scope.seed is not None and self.seen.is_sampled and statements:
            self.note("the seed that is set here reaches no call of generate in this function")
            return self.marked(statements)
        return statements

    def bind_parameters(self, known: Function, scope: Scope) -> cst.FunctionDef:
        """Bind what parameters hold; model and tokenizer become one engine."""
        node = known.node
        for parameter in parameter_names(node):
            scope.env.setdefault(parameter, Value(cst.Name(parameter)))
        engines = [p for p, v in known.roles.items() if v.role == "engine"]
        models = [
            p for p in engines if known.roles[p].kind in ("model", "llm", "pipeline", "tuple")
        ]
        gone = set()
        renamed = {}
        for parameter, value in known.roles.items():
            if value.role != "engine":
                scope.env[parameter] = replace(value, node=cst.Name(parameter), name=parameter)
            elif not models:
                bare = {"bare": cst.Name("True")}
                scope.env[parameter] = Value(
                    cst.Name(parameter), "engine", value.kind, details=bare, name=parameter
                )
            else:
                engine = cst.Name("engine")
                scope.engine = engine
                scope.env[parameter] = replace(value, node=engine, name=parameter, details={})
                if parameter == models[0]:
                    renamed[parameter] = "engine"
                else:
                    gone.add(parameter)
        known.gone = frozenset(gone)
        known.renamed = renamed
        return parts.with_parameters(node, gone, renamed)

    # == Calls of functions ==

    def function_call(self, node: cst.Call, scope: Scope) -> Value | None:
        name = self.called_name(node, scope)
        made = dotted(node.func)
        if name is None and made in self.classes:
            return replace(self.others(node, scope), details={"object": node.func})
        if name is None:
            self.refuse_unseen_method(node)
            return None
        known = self.functions[name]
        self.refuse_plugin(known.class_name)
        given = bound_arguments(node, known.node, is_method=bool(known.class_name))
        if given is None:
            self.ensure(name, {})
            return None
        values = {p: self.translate(v, scope) for p, v in given.items()}
        roles = {
            p: replace(v, node=None, name="")
            for p, v in values.items()
            if v.role not in ("plain", "settings")
        }
        for parameter, value in roles.items():
            if value.role in ("length", "mask", "device", "shape", "scores"):
                raise Unsure(f"`{code_of(node)}` is given {parameter}", "it has no tensor to give")
        known = self.ensure(name, roles)
        call = self.new_call(node, known, values, scope)
        if name.endswith(".__init__"):
            return Value(call, details={"object": node.func})
        returned = known.returned
        if returned is None or returned.role == "plain":
            return Value(call, kind=returned.kind if returned is not None else "")
        if returned.kind == CONFIG:  # its fields are known in that function only
            returned = replace(returned, kind=AT_RUN_TIME)
        return replace(returned, node=call, name="")

    def object_attribute(self, base: Value, name: str) -> Value | None:
        """`bot.model`, of an object whose class keeps an engine in place of it."""
        made = base.details.get("object")
        scope = self.classes.get(code_of(made)) if made is not None else None
        holder = scope
        while holder is not None and holder.class_name:
            if f"{holder.class_name}.__init__" in self.functions:
                self.ensure(f"{holder.class_name}.__init__", {})
            holder = holder.outer
        known = scope.find(f"self.{name}") if scope is not None else None
        if known is None or known.role != "engine" or known.node is None or base.node is None:
            return None
        attribute = dotted(known.node).removeprefix("self.")
        return replace(known, node=parse("{base}." + attribute, base=base.node), name="")

    def refuse_plugin(self, class_name: str) -> None:
        """Criteria and processors of the module are code that runs inside generate."""
        if class_name not in self.class_nodes:
            return
        bases = " ".join(code_of(base.value) for base in self.class_nodes[class_name].bases)
        if "StoppingCriteria" in bases:
            what = f"{class_name} stops generate"
            possible = "write it as a Plugin with should_stop(token_ids, text), or as stop strings"
            raise Unsure(what, "what it stops at is code that is not translated", possible)
        if "LogitsProcessor" in bases:
            what = f"{class_name} changes logits"
            possible = "write it as a Plugin with logits(token_ids, logits)"
            raise Unsure(what, "what it does is code that is not translated", possible)

    def called_name(self, node: cst.Call, scope: Scope) -> str | None:
        name = dotted(node.func)
        if name in self.functions and scope.find(name) is None:
            return name
        if name in self.classes:
            init = f"{name}.__init__"
            return init if init in self.functions else None
        if name.startswith("self.") and scope.function:
            owner = (
                self.functions[scope.function].class_name
                if scope.function in self.functions
                else ""
            )
            method = f"{owner}.{name.removeprefix('self.')}"
            return method if method in self.functions else None
        return None

    def refuse_unseen_method(self, node: cst.Call) -> None:
        """A method of an object, which may return what is no text in the draft."""
        if not isinstance(node.func, cst.Attribute) or dotted(node.func).startswith("self."):
            return
        for name, known in self.functions.items():
            returned = known.returned
            is_called = name.endswith(f".{node.func.attr.value}")
            if is_called and returned is not None and returned.role != "plain":
                raise Unsure(f"`{code_of(node)}`", "what it returns is no tensor in the draft")

    def new_call(
        self, node: cst.Call, known: Function, values: Mapping[str, Value], scope: Scope
    ) -> cst.Call:
        args = []
        names = parameter_names(known.node)[1 if known.class_name else 0 :]
        position = 0
        for arg in node.args:
            parameter = arg.keyword.value if arg.keyword else names[position]
            position += arg.keyword is None
            if parameter in known.gone:
                continue
            value = values[parameter]
            new = self.argument_node(value, arg.value, known, parameter, scope)
            keyword = arg.keyword
            if keyword is not None and parameter in known.renamed:
                keyword = cst.Name(known.renamed[parameter])
            args.append(arg.with_changes(value=new, keyword=keyword))
        if args:
            args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return node.with_changes(args=args)

    def argument_node(
        self, value: Value, old: cst.BaseExpression, known: Function, parameter: str, scope: Scope
    ) -> cst.BaseExpression:
        if value.role == "engine" and parameter in known.renamed:
            if value.node is None or "bare" in value.details:
                raise Unsure(f"`{code_of(old)}` is given on", "its engine is not seen")
            return value.node
        if parameter in known.renamed and value.role == "plain":
            what = (
                f"`{code_of(old)}` is given to {known.node.name.value}, which takes an engine now"
            )
            self.note(f"{what}: give it one, because what it holds is not seen here")
        if value.role in ("plain", "engine", "settings") or value.node is None:
            return self.as_plain(value, old, scope)
        return value.node

    # == Loads ==

    def loaded(self, load: Load, kind: str, scope: Scope) -> Value:
        path = self.plain_node(load.path, scope)
        keywords = {name: self.plain_node(node, scope) for name, node in load.keywords.items()}
        load = replace(load, path=path, keywords=keywords)
        self.loads.append(load)
        self.left += load.left
        self.note_problem()
        node = parts.load_call(load, self.load_name(load, scope))
        return Value(node, "engine", kind, details={"path": path})

    def cast(self, base: Value, node: cst.Call, dtype: cst.BaseExpression, scope: Scope) -> Value:
        """A model in another dtype: `load` makes it in that one. Behind the load it says so; a
        statement of its own is dropped where the goldens, and so `load`, have what it casts to."""
        wanted = dtype_value(self.plain_node(dtype, scope), self.word("engine_dtype"))
        is_behind = m.matches(node.func, m.Attribute(value=m.Call()))
        loads = (self.word("load"), self.word("load_engine"))
        is_load = is_behind and isinstance(base.node, cst.Call) and dotted(base.node.func) in loads
        is_shown = wanted is not None and constant(wanted) == self.seen.dtype()
        before = [
            load.keywords["dtype"]  # where the old code said it, and not its goldens
            for load in (self.loads[-1:] if is_load else self.loads)
            if "dtype" in load.keywords.keys() - load.comments.keys()
        ]
        why = "it is not moved into load()"
        if not self.seen.has_full_buffers():
            why = "it casts the model's buffers, too, which load() leaves in float32"
        elif any(wanted is None or code_of(one) != code_of(wanted) for one in before):
            why = "the weights were in another dtype before"
        elif wanted is not None and is_load:
            load = self.loads.pop()
            comments = {k: text for k, text in load.comments.items() if k != "dtype"}
            load = replace(load, keywords={**load.keywords, "dtype": wanted}, comments=comments)
            self.loads.append(load)
            return replace(base, node=parts.load_call(load, self.load_name(load, scope)))
        elif is_shown and not scope.branches:
            return base
        raise Unsure(f"`{code_of(node)}` changes the dtype", why, 'load(path, dtype="...")')

    def note_problem(self) -> None:
        """Once, at the first load, or else at the end: the checkpoint's files were not read."""
        if self.seen.problem and not self.is_problem_noted:
            self.note(f"what the checkpoint decides is not known: {self.seen.problem}")
            self.is_problem_noted = True

    is_problem_noted = False

    def load_name(self, load: Load, scope: Scope) -> str:
        """`load` where it is called once; `load_engine`, which keeps engines, elsewhere."""
        is_once = not scope.function or self.is_loader(scope.function)
        return self.word("load" if is_once or not load.is_hashable else "load_engine")

    def word(self, name: str) -> str:
        """What the draft calls something of its own: another name where the old source has it."""
        return free_name(name, self.used)

    def is_loader(self, function: str) -> bool:
        return function in self.functions and self.functions[function].is_loader

    def current_engine(self) -> cst.BaseExpression | None:
        return self.active.find_engine()

    @property
    def active(self) -> Scope:
        return self._active

    _active = Scope()

    def statement(self, statement: cst.BaseStatement, scope: Scope) -> list[cst.BaseStatement]:
        before = self._active
        self._active = scope
        try:
            return super().statement(statement, scope)
        finally:
            self._active = before

    def note_loaded(self, value: Value, engine: cst.BaseExpression) -> None:
        """An engine has its name."""

    def with_engine_ahead(self, value: Value, scope: Scope) -> Value:
        """A tokenizer whose model is loaded in a later statement of the same block."""
        path = value.details.get("path")
        for statement in self.ahead:
            found = load_in(statement)
            if found is None or path is None:
                continue
            call, whole, target = found
            if not call.args or code_of(call.args[0].value) != code_of(path):
                continue
            if id(whole) in self.early:
                continue
            loaded = self.called(whole, scope)
            if loaded.node is None:
                continue
            engine, lines = self.named_engine([target], loaded.node, scope)
            scope.pending.append(cst.SimpleStatementLine(lines))
            scope.engine = engine
            self.early[id(whole)] = replace(loaded, node=engine)
            return replace(value, node=engine)
        return value

    def made(self, node: cst.Call, name: str, scope: Scope) -> Value | None:
        if id(node) in self.early:
            return self.early[id(node)]
        return super().made(node, name, scope)

    def as_loader(self, name: str, known: Function) -> bool:
        """A function that only loads: its whole body becomes one cached `load`."""
        left, loads, sources = list(self.left), list(self.loads), list(self.sources)
        found = parts.Loader(self, known.node).found(Scope(name, outer=self.loader_scope(known)))
        if found is None:
            self.left, self.loads, self.sources = left, loads, sources
            self.taken.pop(name, None)
            return False
        for decorator in known.node.decorators:
            if not parts.is_cache(decorator):
                what = f"`{code_of(decorator).strip()}` stands at what loads a model"
                possible = "take it away, and call the function where a property was read"
                raise Unsure(what, "the draft keeps engines in a plain function", possible)
        value, kept = found
        known.returned = replace(value, node=None, name="")
        if value.node is None or "bare" in value.details:
            known.new = known.node
            return True
        new = parts.cached(known.node, kept, value.node, self.word)
        known.new = cst.ensure_type(with_comments(new, self.left_comment()), cst.FunctionDef)
        known.is_loader = True
        return True

    def loader_scope(self, known: Function) -> Scope:
        return self.classes[known.class_name] if known.class_name else self.scope

    # == What calls.py asks for ==

    def variable(self, wanted: str, scope: Scope) -> str:
        """A name that neither the function nor the module uses."""
        taken = self.taken.setdefault(scope.function, set())
        known = self.functions.get(scope.function)
        used = self.used if known is None else self.used_outside | NamesIn.of(known.node)
        name = free_name(wanted, used | taken)
        taken.add(name)
        return name

    def settings_of(self, node: cst.BaseExpression, scope: Scope) -> dict[str, cst.BaseExpression]:
        """Keywords that a variable holds: of a mapping that is written once and never changed, in
        the function, or of constants in the module. Any other one is known at run time only."""
        known = self.functions.get(scope.function)
        found = None
        if known is not None and isinstance(node, cst.Name):
            found = parts.single_mapping(known.node, node.value)
        if found is None and isinstance(node, cst.Name):
            found = parts.single_mapping(self.module, node.value)
            found = found if constant(found) is not NotImplemented else None
        if found is None:
            return {f"**{code_of(node)}": node}
        self.generated_names.add(code_of(node))
        return self.dict_words(found, scope)

    def is_for_generate(self, name: str, node: cst.BaseExpression, scope: Scope) -> bool:
        """Whether a mapping holds inputs, and is unpacked only: where it is, it is translated."""
        known = self.functions.get(scope.function)
        found = parts.single_mapping(known.node, name) if known is not None else None
        if found is None or not is_display(node):
            return False
        values = [element.value for element in found.elements]
        roles = {self.translate(value, scope).role for value in values}
        return bool(roles & {"inputs", "ids"})

    def is_changed(self, name: str, scope: Scope) -> bool:
        return parts.is_changed(self.reach(name, scope), name)

    def is_fixed(self, name: str, scope: Scope) -> bool:
        return parts.is_fixed(self.reach(name, scope), name)

    def reach(self, name: str, scope: Scope) -> cst.CSTNode:
        """Where a variable can be used: its function, or the module."""
        known = self.functions.get(scope.function)
        return self.module if known is None or "." in name else known.node

    def may_be_none(self, name: str, scope: Scope) -> bool:
        known = self.functions.get(scope.function)
        defaults = parts.defaults_of(known.node) if known is not None else {}
        return name in defaults and constant(defaults[name]) is None

    def criteria_of(self, node: cst.BaseExpression, scope: Scope) -> str:
        return "write it as a Plugin with should_stop, or as stop strings or ids"

    def reads_scores(self, scope: Scope) -> bool:
        text = self.text_around(scope)
        return ".scores" in text or ".logits" in text

    def generates(self, scope: Scope) -> bool:
        return ".generate(" in self.text_around(scope)

    def is_script_seeded(self) -> bool:
        kinds = (cst.FunctionDef, cst.ClassDef)
        script = [one for one in self.module.body if not isinstance(one, kinds)]
        calls = [call for one in script for call in m.findall(one, m.Call())]
        return any(dotted(cst.ensure_type(call, cst.Call).func) in SEEDS for call in calls)

    def text_around(self, scope: Scope) -> str:
        """The old source of a scope's function, or of the module."""
        known = self.functions.get(scope.function)
        return code_of(known.node) if known else self.module.code

    # == Factories ==

    def add_factories(self, name: str, objects: Mapping[str, str]) -> None:
        """Functions that make what a golden cannot hold, for `check`."""
        known = self.functions[name]
        engines = [p for p, value in known.roles.items() if value.role == "engine"]
        made = dict.fromkeys(engines, self.word("make_tokenizer"))
        if "engine" in known.renamed.values():
            made = {"engine": self.word("make_engine")}
        if made:
            self.factories.setdefault(name, {}).update(made)
        if known.class_name and "self" in objects:
            class_name = objects["self"].rpartition(".")[2]
            is_here = class_name in self.classes
            self.methods[name] = class_name if is_here else known.class_name

    def make_objects(self, body: Sequence[cst.BaseStatement]) -> None:
        """Let the draft make the objects of recorded methods, as the script did."""
        classes = list(dict.fromkeys(self.methods.values()))
        for class_name in classes:
            made = importing.made_as_script(body, class_name) or self.constructed(class_name)
            factory = self.word("make_self" if len(classes) == 1 else f"make_{class_name}")
            if made is None:
                what = f"say in sites.json what makes a {class_name}"
                self.todos.append(Todo(f"{what}, because how the script made it is not seen"))
                continue
            self.object_lines[factory] = made
            for function, of in self.methods.items():
                if of == class_name:
                    self.factories.setdefault(function, {})["self"] = factory

    def constructed(self, class_name: str) -> list[str] | None:
        """A call with the checkpoint of the goldens, where that is all that the class is given."""
        calls = m.findall(self.module, m.Call(func=m.Name(class_name)))
        if any(len(cst.ensure_type(call, cst.Call).args) > 1 for call in calls):
            return None
        init = self.functions.get(f"{class_name}.__init__")
        if init is None or not self.seen.models:
            return None
        required = [p.name.value for p in init.node.params.params[1:] if p.default is None]
        return [f"{class_name}({self.seen.models[0]!r})"] if len(required) == 1 else None

    # == Cleaning ==

    def cleaned(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Imports that are needed, none that is not, and the functions that the draft adds."""
        code = self.module.with_changes(body=body)
        kept = parts.without_unused_imports(body, NamesIn.of(code), LIBRARIES)
        kept = parts.without_unused(kept, self.unused_globals(body))
        kept = self.importable(kept)
        self.make_objects(kept)
        return parts.with_additions(kept, self.additions())

    def importable(self, body: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """The module with what runs it as a script under the guard: `check` imports it."""
        sites = {function.rpartition(":")[2].partition(".")[0] for function in self.seen.functions}
        found = importing.guarded(body, sites)
        if found.moved:
            self.changes.append(
                "what runs the script stands under"
                ' `if __name__ == "__main__":` now, because `check` imports the module'
            )
        if found.blocked:
            self.todos.append(
                Todo(
                    "each import of this module, by `check` too, runs all of it, because functions"
                    f" read `{found.blocked}`, which is made by what generates. Give it to them as"
                    ' an argument, and put the rest under `if __name__ == "__main__":`'
                )
            )
        return list(found.body)

    def unused_globals(self, body: Sequence[cst.BaseStatement]) -> set[str]:
        """Variables of the module that only a loader's cache used."""
        if not any(known.is_loader for known in self.functions.values()):
            return self.generated_names
        return self.generated_names | parts.assigned_names(self.module.body)

    def additions(self) -> parts.Additions:
        options = self.word("generation_options")
        return parts.Additions(
            engine_module=self.engine_module,
            words={name: self.word(name) for name in parts.WORDS},
            made={**self.engine_lines(), **self.object_lines},
            generation_options=run_time.generation_options(
                self.seen, self.source, options, not self.is_checkpoint_known
            ),
            checkpoint_settings=run_time.checkpoint_settings(),
        )

    def engine_lines(self) -> dict[str, Sequence[str]]:
        """What makes the engine, or the tokenizer, that a recorded function is given."""
        path = repr(self.seen.models[0]) if self.seen.models else ""
        words = dict(self.loads[0].keywords) if self.loads else {}
        dtype = words.get("dtype")
        if isinstance(dtype, cst.Call) and dotted(dtype.func) == self.word("vllm_dtype"):
            args = [dtype.args[0].with_changes(value=parse(path or "None")), *dtype.args[1:]]
            words["dtype"] = dtype.with_changes(args=args)
        said = "".join(f", {name}={code_of(node)}" for name, node in words.items())
        load = f"{self.word('load')}({path}{said})"
        tokenizer = f"{load}.tokenizer"
        lines = {self.word("make_engine"): [load], self.word("make_tokenizer"): [tokenizer]}
        wanted = {factory for made in self.factories.values() for factory in made.values()}
        return {factory: lines[factory] for factory in sorted(lines.keys() & wanted)}


def is_display(node: cst.BaseExpression) -> bool:
    is_call = isinstance(node, cst.Call) and dotted(node.func) == "dict"
    return is_call or isinstance(node, cst.Dict)


def free_name(wanted: str, used: set[str]) -> str:
    """A name that is not used: `wanted`, `wanted_2`, ..."""
    names = (wanted if number == 1 else f"{wanted}_{number}" for number in itertools.count(1))
    return next(name for name in names if name not in used)


def names_of_module(module: cst.Module) -> set[str]:
    """Names that functions of a module see: its own, not those of other functions."""
    found = set()
    for statement in module.body:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            found.add(statement.name.value)
        else:
            found |= NamesIn.of(statement)
    return found


class TodoMarks(cst.CSTTransformer):
    """Puts a comment before statements.   marks: id of the statement -> text."""

    def __init__(self, marks: Mapping[int, str]) -> None:
        super().__init__()
        self.marks = marks

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        text = self.marks.get(id(original_node))
        if text is None or not isinstance(updated_node, cst.BaseStatement):
            return updated_node
        return with_comments(updated_node, [TODO + text])


def with_comments(statement: cst.BaseStatement, comments: Sequence[str]) -> cst.BaseStatement:
    lines = [cst.EmptyLine(comment=cst.Comment(" ".join(text.split()))) for text in comments]
    before = list(getattr(statement, "leading_lines", ()))
    return statement.with_changes(leading_lines=[*before, *lines])


def is_main(statement: cst.BaseStatement) -> bool:
    """Whether a statement runs the script: it calls functions of the module, or is the guard."""
    if isinstance(statement, cst.SimpleStatementLine):
        is_call = isinstance(statement.body[0], cst.Expr)
        return is_call and "main" in NamesIn.of(statement)
    return importing.is_guard(statement)


def part_of_object(kind: str) -> str:
    """Which part of an engine an argument was, by the name of its class; "" for none."""
    name = kind.rpartition(".")[2]
    if "Tokenizer" in name or ".tokenization_" in kind:  # of transformers 5: TokenizersBackend
        return "tokenizer"
    for ending, part in ENGINE_CLASSES.items():
        if name.endswith(ending):
            return part
    is_model = "For" in name or name.endswith("Model") or "LMHead" in name
    return "model" if is_model else ""


def load_in(
    statement: cst.BaseStatement,
) -> tuple[cst.Call, cst.Call, cst.BaseExpression] | None:
    """Of `x = Class.from_pretrained(...)` of a model, also with `.to(...)` behind it: the load, all
    of the right side, and x."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    one = statement.body[0]
    if not isinstance(one, cst.Assign) or len(one.targets) != 1:
        return None
    node: cst.BaseExpression = one.value
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value == "from_pretrained":
            owner = dotted(node.func.value).rpartition(".")[2]
            is_other = owner.endswith(("Tokenizer", "Processor", "Config", "TokenizerFast"))
            whole = cst.ensure_type(one.value, cst.Call)
            return None if is_other else (node, whole, one.targets[0].target)
        node = node.func.value
    return None


def draft_module(
    source: str, seen: Observed, ask: Decisions, engine_module: str, is_cut_moved: bool = False
) -> Draft:
    """The draft of a module's source.   is_cut_moved: hand cuts that follow the engine's rule
    become stops."""
    module = cst.parse_module(source)
    demoted: set[str] = set()
    copied: set[str] = set()
    while True:
        try:
            attempt = ModuleDraft(module, seen, ask, engine_module, demoted, copied)
            attempt.stops = is_cut_moved
            return attempt.attempt()
        except Copy as copy:
            copied.add(copy.name)
        except Demote as demote:
            if demote.name in demoted:
                what = f"`{demote.name}` is a prompt and a text"
                error = Unsure(what, "both are used in a way that is not followed")
                return attempt.left_as_it_is(error)
            demoted.add(demote.name)


__all__ = ["Draft", "Todo", "draft_module", "parse"]
