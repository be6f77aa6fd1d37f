"""Translates statements: what holds requests and results, what is left out, what stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from parity.draft.calls import AT_RUN_TIME, CONFIG, SEEDS, Calls
from parity.draft.expressions import CHANGES, NamesIn, Scope, plain
from parity.draft.importing import statements_of
from parity.draft.roles import (
    Copy,
    Demote,
    Unsure,
    Value,
    assignment,
    code_of,
    constant,
    dotted,
    is_of_self,
    is_short,
    parse,
)

# Roles of which a variable holds nothing in the draft.
ERASED = ("length", "mask", "shape", "device", "scores", "ids_row", "mask_row")
HELD = {  # role -> what its variable is called
    "request": "request",
    "request_list": "requests",
    "inputs": "requests",
    "ids": "requests",
    "results": "results",
    "new": "results",
    "outputs": "results",
    "result": "result",
    "new_row": "result",
    "vllm_outputs": "results",
    "vllm_output": "result",
    "pipe_outputs": "results",
    "pipe_output": "result",
    "pipe_batch": "results",
    "pipe_row": "result",
    "pipe_chat": "result",
    "pipe_message": "result",
}
# Attributes of a tokenizer that say how it pads and cuts; the engine does that by itself.
PADDING = ("padding_side", "pad_token", "pad_token_id", "truncation_side", "model_max_length")
IDLE_CONFIG = ("config.pad_token_id", "generation_config.pad_token_id", "config.use_cache",
               "generation_config.use_cache")  # fmt: skip
NO_GRAD = ("torch.no_grad", "torch.inference_mode", "no_grad", "inference_mode")


class Statements(Calls):
    generated_names: set[str]

    def say_left(self, before: list[cst.BaseStatement]) -> None:
        raise NotImplementedError

    def failed(self, statement: cst.CSTNode, error: Unsure) -> None:
        raise NotImplementedError

    def marked(
        self, statements: list[cst.BaseStatement], old: cst.BaseStatement | None = None
    ) -> list[cst.BaseStatement]:
        raise NotImplementedError

    def statements(
        self, body: Sequence[cst.BaseStatement], scope: Scope
    ) -> list[cst.BaseStatement]:
        """The statements of a block. Raises Unsure where one is not translated."""
        done: list[cst.BaseStatement] = []
        for statement in body:
            outside = scope.pending
            scope.pending = []
            if len(body) > 1:
                self.ahead = body
            try:
                new = self.statement(statement, scope)
            except Unsure as error:
                self.failed(statement, error)
                raise
            self.say_left(done if not (new or scope.pending) else [])
            done += self.marked([*scope.pending, *new], statement)
            scope.pending = outside
        return done

    ahead: Sequence[cst.BaseStatement] = ()
    reused: dict[str, Value]

    def block(self, body: cst.BaseSuite, scope: Scope) -> cst.BaseSuite | None:
        """A block; None where nothing of it is left."""
        new = self.statements(statements_of(body), scope)
        if not new:
            return None
        old = body if isinstance(body, cst.IndentedBlock) else cst.IndentedBlock([])
        return old.with_changes(body=new)

    def statement(self, statement: cst.BaseStatement, scope: Scope) -> list[cst.BaseStatement]:
        if isinstance(statement, cst.SimpleStatementLine):
            return self.line(statement, scope)
        if isinstance(statement, cst.If):
            return self.if_statement(statement, scope)
        if isinstance(statement, cst.For):
            return self.for_statement(statement, scope)
        if isinstance(statement, cst.While):
            with scope.lazily():
                test = self.plain_node(statement.test, scope)
            body = self.loop_body(statement.body, scope)
            return [statement.with_changes(test=test, body=body or PASS)]
        if isinstance(statement, cst.With):
            return self.with_statement(statement, scope)
        if isinstance(statement, cst.Try):
            return self.try_statement(statement, scope)
        return self.definition(statement, scope)

    def definition(self, statement: cst.BaseStatement, scope: Scope) -> list[cst.BaseStatement]:
        """A function or class inside a function."""
        for name in NamesIn.of(statement):
            value = scope.find(name)
            if value is not None and value.role != "plain":
                raise Unsure(f"`{name}` is used inside an inner function", "it is not translated")
        return [statement]

    # == Lines ==

    def line(self, line: cst.SimpleStatementLine, scope: Scope) -> list[cst.BaseStatement]:
        small: list[cst.BaseSmallStatement] = []
        for one in line.body:
            small += self.small(one, scope)
        return [line.with_changes(body=small)] if small else []

    def small(self, one: cst.BaseSmallStatement, scope: Scope) -> list[cst.BaseSmallStatement]:
        scope.target, scope.whole = "", None
        if isinstance(one, cst.Assign):
            return self.assign(one, scope)
        if isinstance(one, cst.AnnAssign):
            return self.annotated(one, scope)
        if isinstance(one, cst.AugAssign):
            return self.augmented(one, scope)
        if isinstance(one, cst.Expr):
            return self.expression(one, scope)
        if isinstance(one, cst.Return):
            return self.returned(one, scope)
        if isinstance(one, (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal, cst.Pass)):
            return [one]
        if isinstance(one, cst.Del):
            return self.deleted(one, scope)
        return [self.with_plain(one, scope)]

    def deleted(self, one: cst.Del, scope: Scope) -> list[cst.BaseSmallStatement]:
        for name in NamesIn.of(one):
            value = scope.find(name)
            if value is not None and value.role != "plain":
                return []
        return [one]

    def augmented(self, one: cst.AugAssign, scope: Scope) -> list[cst.BaseSmallStatement]:
        if isinstance(one.target, cst.Name):
            value = scope.find(one.target.value)
            if value is not None and value.role in ("request", "request_list"):
                raise Demote(one.target.value)
            if value is not None and value.role not in ("plain",):
                raise Unsure(f"`{code_of(one)}`", "what it changes is no tensor in the draft")
        return [one.with_changes(value=self.plain_node(one.value, scope))]

    def annotated(self, one: cst.AnnAssign, scope: Scope) -> list[cst.BaseSmallStatement]:
        if one.value is None:
            return [one]
        assign = assignment(one.target, one.value)
        made = self.assign(assign, scope)
        if len(made) == 1 and isinstance(made[0], cst.Assign):
            target = made[0].targets[0].target
            if code_of(target) == code_of(one.target):
                return [one.with_changes(value=made[0].value)]
        return made

    def expression(self, one: cst.Expr, scope: Scope) -> list[cst.BaseSmallStatement]:
        if isinstance(one.value, cst.Call) and dotted(one.value.func) in SEEDS:
            return self.seeded(one, one.value, scope)
        if isinstance(one.value, cst.Call) and self.only_pads(one.value, scope):
            return []
        self.copy_changed(one.value)
        scope.whole = one.value
        value = self.translate(one.value, scope)
        if value.role == "plain" or (value.node is not None and value.role in HELD):
            return [one.with_changes(value=value.node)]
        return []

    def copy_changed(self, node: cst.BaseExpression) -> None:
        """Raise Copy where messages of a request that waits for its generate are changed."""
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return
        name = code_of(node.func.value)
        if (
            node.func.attr.value in CHANGES
            and name in self.waiting.values()
            and name not in self.copied
        ):
            raise Copy(name)

    def only_pads(self, call: cst.Call, scope: Scope) -> bool:
        """`tokenizer.add_special_tokens({"pad_token": ...})`, `model.resize_token_embeddings`."""
        if not isinstance(call.func, cst.Attribute):
            return False
        name = call.func.attr.value
        if name not in ("add_special_tokens", "resize_token_embeddings", "add_tokens"):
            return False
        if self.translate(call.func.value, scope).role != "engine":
            return False
        if "pad_token" in code_of(call) or name == "resize_token_embeddings":
            return True
        raise Unsure(f"`{code_of(call)}`", "the engine's tokenizer stays the checkpoint's own")

    def seeded(self, one: cst.Expr, call: cst.Call, scope: Scope) -> list[cst.BaseSmallStatement]:
        if call.args:
            scope.seed = self.plain_node(call.args[0].value, scope)
            scope.seed_depth = scope.loops
            scope.is_seed_used = False
        return [one]

    def returned(self, one: cst.Return, scope: Scope) -> list[cst.BaseSmallStatement]:
        if one.value is None:
            return [one]
        scope.whole = one.value
        value = self.translate(one.value, scope)
        is_site = self.is_site(scope.function)
        if value.role != "plain" and (is_site or value.role in ERASED or value.node is None):
            value = Value(self.as_plain(value, one.value, scope))
        if {"prompt", "chat"} & value.details.keys():
            raise Unsure(
                f"`{code_of(one)}`", "it returns texts with their prompt, as a pipeline does"
            )
        if value.role not in ("plain", "engine") and value.name in self.demoted:
            raise Demote(value.name)
        before = scope.returned
        if before is not None and before.role != value.role:
            requests = [v for v in (before, value) if v.role in ("request", "request_list")]
            if requests and requests[0].name:
                raise Demote(requests[0].name)
            raise Unsure(f"`{code_of(one)}`", "it returns another thing than an earlier return")
        scope.returned = replace(value, node=None)
        return [one.with_changes(value=value.node)]

    # == Assignments ==

    def assign(self, one: cst.Assign, scope: Scope) -> list[cst.BaseSmallStatement]:
        if len(one.targets) != 1:
            value = self.translate(one.value, scope)
            return [one.with_changes(value=self.as_plain(value, one.value, scope))]
        target = one.targets[0].target
        if isinstance(target, cst.Attribute) and self.sets_engine(target, one, scope):
            return []
        if isinstance(target, (cst.Tuple, cst.List)):
            return self.unpacked(target, one, scope)
        scope.target, scope.whole = code_of(target), one.value
        if self.is_for_generate(code_of(target), one.value, scope):
            self.bind_name(target, Value(None, "keywords"), scope)
            return []
        value = self.translate(one.value, scope)
        return self.held(target, value, one, scope)

    def sets_engine(self, target: cst.Attribute, one: cst.Assign, scope: Scope) -> bool:
        """Whether an assignment only says how the tokenizer pads. Raises Unsure for others."""
        path = dotted(target)
        base = self.owner_of(target, scope)
        if base is None or base.role != "engine":
            return False
        name = target.attr.value
        if base.kind in ("tokenizer", "processor", "pipeline") and name in PADDING:
            return True
        if path.endswith(IDLE_CONFIG):
            return True
        raise Unsure(f"`{code_of(one)}`", "it changes the model or its tokenizer after loading")

    def owner_of(self, target: cst.Attribute, scope: Scope) -> Value | None:
        """The engine whose attribute, at any depth, is assigned."""
        node: cst.BaseExpression = target.value
        while True:
            known = scope.find(dotted(node)) if dotted(node) else None
            if known is not None:
                return known
            if not isinstance(node, cst.Attribute):
                return None
            node = node.value

    def unpacked(
        self, target: cst.Tuple | cst.List, one: cst.Assign, scope: Scope
    ) -> list[cst.BaseSmallStatement]:
        value = self.translate(one.value, scope)
        names = [element.value for element in target.elements]
        are_names = isinstance(one.value, cst.Tuple) and all(
            isinstance(element.value, cst.Name) for element in one.value.elements
        )
        if value.role == "engine" and len(value.items) == len(names) and not are_names:
            return self.unpacked_engine(names, value, one, scope)
        is_mixed = any(item.role != "plain" for item in value.items)
        if is_mixed and len(value.items) == len(names) and isinstance(one.value, cst.Tuple):
            lines: list[cst.BaseSmallStatement] = []
            for name, element in zip(names, one.value.elements):
                single = assignment(name, element.value)
                lines += self.held(name, self.translate(element.value, scope), single, scope)
            return lines
        if value.role in ("results", "new", "request_list", "vllm_outputs") and len(names) == 1:
            assert value.node is not None
            row = parse("{n}[0]", n=value.node)
            roles = {"results": "result", "new": "new_row", "request_list": "request"}
            item = Value(row, roles.get(value.role, "vllm_output"), details=value.details)
            return self.held(names[0], item, one, scope)
        node = self.as_plain(value, one.value, scope)
        for name in names:
            if isinstance(name, cst.Name):
                scope.env[name.value] = Value(name)
        return [one.with_changes(value=node)]

    def unpacked_engine(
        self, names: list[cst.BaseExpression], value: Value, one: cst.Assign, scope: Scope
    ) -> list[cst.BaseSmallStatement]:
        lines: list[cst.BaseSmallStatement] = []
        engine = value.node
        assert engine is not None
        if not isinstance(engine, (cst.Name, cst.Attribute)):
            engine, lines = self.named_engine(names, engine, scope)
            scope.engine = engine
        for name, item in zip(names, value.items):
            bound = replace(item, node=engine, details={})
            self.bind_name(name, bound, scope)
        return lines

    def engine_target(self, old: cst.BaseExpression, scope: Scope) -> cst.BaseExpression:
        if is_of_self(old):
            return cst.Attribute(cst.Name("self"), cst.Name("engine"))
        if isinstance(old, cst.Attribute):  # what asks whether it is there asks for this name
            return old
        return cst.Name(self.variable("engine", scope))

    def named_engine(
        self, targets: Sequence[cst.BaseExpression], node: cst.BaseExpression, scope: Scope
    ) -> tuple[cst.BaseExpression, list[cst.BaseSmallStatement]]:
        """(what the draft calls the engine that the old code holds in `targets`, the line that
        assigns it). A class has one, `self.engine`. Raises Unsure where it would hold another."""
        engine = self.engine_target(targets[0], scope)
        line = assignment(engine, node)
        if not is_of_self(targets[0]):
            return engine, [line]
        holder = scope.outer if scope.outer is not None else scope
        known = holder.env.get("self.engine")
        names = {code_of(target): target for target in targets}
        holder.engine = engine
        if known is None:
            details = {**names, "held": node}
            holder.env["self.engine"] = Value(
                engine, "engine", "tuple", details=details, name="self.engine"
            )
        elif names.keys() & known.details.keys():
            return engine, [line]  # the same attribute, in a branch or anew
        elif not isinstance(node, cst.Name) or code_of(node) != code_of(known.details["held"]):
            what = f"`{code_of(targets[0])}` holds another model"
            why = f"a class of a draft has one engine, here `{code_of(known.details['held'])}`"
            raise Unsure(what, why, "a class of its own for each")
        else:
            return engine, []  # the tokenizer of it
        return engine, [line]

    def bind_name(self, target: cst.BaseExpression, value: Value, scope: Scope) -> None:
        name = code_of(target)
        holder = scope
        if name.startswith("self.") and scope.outer is not None and scope.outer.class_name:
            holder = scope.outer
        while holder.is_inline and holder.outer is not None:
            holder = holder.outer
        holder.env[name] = replace(value, name=name)

    def held(
        self, target: cst.BaseExpression, value: Value, one: cst.Assign, scope: Scope
    ) -> list[cst.BaseSmallStatement]:
        """An assignment of one value to one target."""
        known = scope.find(code_of(target))
        if value.role in ("pipe_chat", "pipe_message") and known and known.role == "plain":
            value = plain(self.as_plain(value, one.value, scope), "list")
        if value.role == "engine":
            return self.held_engine(target, value, one, scope)
        if value.role == "plain":
            return self.held_plain(target, value, one, scope)
        name = code_of(target)
        if value.role in ("request", "request_list") and name in self.demoted:
            node = self.as_text(replace(value, name=""))
            kind = "list" if value.role == "request_list" else "text"
            self.bind_name(target, Value(target, kind=kind), scope)
            return [one.with_changes(value=node)]
        if value.role in ERASED:
            self.bind_name(target, value, scope)
            return []
        if value.role == "settings":
            return self.held_settings(target, value, one, scope)
        if not isinstance(target, cst.Name):
            raise Unsure(f"`{code_of(one)}`", "what it keeps is no tensor in the draft")
        if value.node is None or is_short(value.node):
            self.bind_name(target, value, scope)
            return []
        return [self.held_row(target, value, scope)]

    def held_row(self, target: cst.Name, value: Value, scope: Scope) -> cst.Assign:
        """Requests or results in a variable that is named after them."""
        new = cst.Name(self.result_name(value.role, scope))
        if value.role == "request" and "messages" in value.details:
            self.waiting[new.value] = code_of(value.details["messages"])
        details = value.details
        if "pixels" in details:
            details = {**details, "pixels": new}
        self.bind_name(target, replace(value, node=new, details=details), scope)
        assert value.node is not None
        return assignment(new, value.node)

    def result_name(self, role: str, scope: Scope) -> str:
        """A name for requests or results; that of the other branch, where it assigns the same."""
        twin = self.reused.pop(scope.target, None)
        names = NamesIn.of(twin.node) if twin is not None and twin.node is not None else set()
        is_same = len(names) == 1 and names <= self.generated_names
        name = names.pop() if is_same else self.variable(HELD[role], scope)
        self.generated_names.add(name)
        return name

    def held_plain(
        self, target: cst.BaseExpression, value: Value, one: cst.Assign, scope: Scope
    ) -> list[cst.BaseSmallStatement]:
        details = dict(value.details)
        if self.is_changed(code_of(target), scope):
            details.pop("row", None)
        if isinstance(target, cst.Name):
            self.bind_name(target, Value(target, kind=value.kind, details=details), scope)
            if "row" in details:
                self.generated_names.add(target.value)
        elif isinstance(target, cst.Attribute):
            known = scope.find(code_of(target))
            if known is not None and known.role != "plain":
                raise Unsure(f"`{code_of(one)}`", "it changes what was loaded")
        new_target: cst.BaseExpression = target
        if isinstance(target, cst.Subscript):
            new_target = self.with_plain(target, scope)
        assert value.node is not None
        targets = [one.targets[0].with_changes(target=new_target)]
        return [one.with_changes(targets=targets, value=value.node)]

    def is_for_generate(self, name: str, node: cst.BaseExpression, scope: Scope) -> bool:
        raise NotImplementedError

    def is_fixed(self, name: str, scope: Scope) -> bool:
        raise NotImplementedError

    def is_changed(self, name: str, scope: Scope) -> bool:
        raise NotImplementedError

    def held_settings(
        self, target: cst.BaseExpression, value: Value, one: cst.Assign, scope: Scope
    ) -> list[cst.BaseSmallStatement]:
        if value.kind == CONFIG:
            self.generated_names.add(
                code_of(target)
            )  # dropped where its fields are all that is read
            names = {name for node in value.details.values() for name in NamesIn.of(node)}
            is_local = not isinstance(target, cst.Name) and any(map(scope.find, names))
            if is_local or not self.is_fixed(code_of(target), scope):
                value = replace(value, kind=AT_RUN_TIME)
        assert value.node is not None
        self.bind_name(target, replace(value, node=target), scope)
        return [one.with_changes(value=value.node)]

    def held_engine(
        self, target: cst.BaseExpression, value: Value, one: cst.Assign, scope: Scope
    ) -> list[cst.BaseSmallStatement]:
        name = code_of(target)
        if value.kind in ("tokenizer", "processor") and value.node is None:
            value = self.with_engine_ahead(value, scope)
        if value.kind in ("tokenizer", "processor") and value.node is None:
            details = {**value.details, "bare": cst.Name("True")}
            self.bind_name(target, replace(value, node=target, details=details), scope)
            self.generated_names.add(name)
            return [one]
        if isinstance(target, cst.Subscript):
            raise Unsure(f"`{code_of(one)}`", "where loaded models are kept is not followed")
        node = value.node
        lines: list[cst.BaseSmallStatement] = []
        if node is None:
            raise Unsure(f"`{code_of(one)}`", "what it loads is not seen")
        if "bare" in value.details and not isinstance(node, (cst.Name, cst.Attribute)):
            self.bind_name(target, replace(value, node=target), scope)
            self.generated_names.add(name)
            return [one.with_changes(value=node)]
        keeps_self = is_of_self(target) and not code_of(node).startswith("self.")
        if not isinstance(node, (cst.Name, cst.Attribute)) or keeps_self:
            node, lines = self.named_engine([target], node, scope)
            scope.engine = node
            self.note_loaded(value, node)
        self.bind_name(target, replace(value, node=node), scope)
        return lines

    def note_loaded(self, value: Value, engine: cst.BaseExpression) -> None:
        raise NotImplementedError

    def with_engine_ahead(self, value: Value, scope: Scope) -> Value:
        raise NotImplementedError

    # == Blocks ==

    def if_statement(self, statement: cst.If, scope: Scope) -> list[cst.BaseStatement]:
        test = self.plain_node(statement.test, scope)
        return self.branches(statement, test, scope)

    def branches(
        self, statement: cst.If, test: cst.BaseExpression, scope: Scope
    ) -> list[cst.BaseStatement]:
        seed_before = scope.seed
        before = dict(scope.env)
        scope.branches += 1
        body = self.block(statement.body, scope)
        after_body = dict(scope.env)
        seed = scope.seed
        orelse: cst.Else | cst.If | None = None
        if statement.orelse is not None:
            scope.env = dict(before)
            outside = self.reused
            self.reused = {k: v for k, v in after_body.items() if before.get(k) is not v}
            orelse = self.orelse(statement.orelse, scope)
            self.reused = outside
        scope.branches -= 1
        scope.env = self.merged_env(
            before, after_body, dict(scope.env) if statement.orelse else before
        )
        if seed is not seed_before and seed is not None:
            scope.seed = conditional_seed(seed, test, seed_before)
        if body is None and orelse is None:
            return []
        if body is None and isinstance(orelse, cst.Else):
            negated = parse("not ({test})", test=test)
            return [statement.with_changes(test=negated, body=orelse.body, orelse=None)]
        return [statement.with_changes(test=test, body=body or PASS, orelse=orelse)]

    def orelse(self, orelse: cst.Else | cst.If, scope: Scope) -> cst.Else | cst.If | None:
        if isinstance(orelse, cst.If):
            with scope.lazily():
                test = self.plain_node(orelse.test, scope)
            new = self.branches(orelse, test, scope)
            return new[0] if new and isinstance(new[0], cst.If) else None
        body = self.block(orelse.body, scope)
        return orelse.with_changes(body=body) if body is not None else None

    def merged_env(
        self, before: dict[str, Value], one: dict[str, Value], other: dict[str, Value]
    ) -> dict[str, Value]:
        """What variables hold behind a branch. Raises Demote where one branch holds a text."""
        merged = {**other, **one}
        for name in one.keys() & other.keys():
            roles = {one[name].role, other[name].role}
            if len(roles) == 1:
                merged[name] = self.same(one[name], other[name])
                continue
            if name in before and one[name] is before[name]:
                merged[name] = other[name]
            if roles & {"request", "request_list"}:
                raise Demote(name)
            if "plain" not in roles:
                raise Unsure(f"`{name}` is one of two things", "the branches before differ")
        return merged

    def same(self, one: Value, other: Value) -> Value:
        nodes = {code_of(v.node) if v.node is not None else "" for v in (one, other)}
        if len(nodes) > 1 and one.role != "plain":
            raise Unsure(f"`{one.name}` is made in two branches", "the draft follows one")
        return replace(
            one,
            kind=one.kind if one.kind == other.kind else "",
            details={**other.details, **one.details}
            if one.role != "plain"
            else one.details
            if one.details == other.details
            else {},
        )

    def for_statement(self, statement: cst.For, scope: Scope) -> list[cst.BaseStatement]:
        target, over = self.bind_loop(statement.target, statement.iter, scope, scope)
        if target is None or over is None:
            raise Unsure(
                f"`for {code_of(statement.target)} in ...`", "nothing it goes over is left"
            )
        if isinstance(target, cst.Name) and scope.find(target.value) is None:
            scope.env[target.value] = Value(target)
        body = self.loop_body(statement.body, scope)
        orelse = statement.orelse
        if orelse is not None:
            new = self.block(orelse.body, scope)
            orelse = orelse.with_changes(body=new) if new is not None else None
        changed = statement.with_changes(target=target, iter=over, body=body or PASS, orelse=orelse)
        return [changed]

    def loop_body(self, body: cst.BaseSuite, scope: Scope) -> cst.BaseSuite | None:
        """The body of a loop. Raises Unsure where a variable holds another thing in its next
        round than in its first."""
        before = dict(scope.env)
        scope.loops += 1
        new = self.block(body, scope)
        scope.loops -= 1
        for name, value in before.items():
            after = scope.env.get(name, value)
            if after.role == "request_list" and value.role == "plain":
                continue
            nodes = [code_of(v.node) if v.node is not None else "" for v in (value, after)]
            is_other = after.role != "plain" and nodes[0] != nodes[1]
            if after.role != value.role or is_other:
                raise Unsure(f"`{name}` changes in a loop", "its first round reads another thing")
        return new

    def with_statement(self, statement: cst.With, scope: Scope) -> list[cst.BaseStatement]:
        items = [item for item in statement.items if not is_no_grad(item.item)]
        for item in items:
            if "autocast" in code_of(item.item):
                raise Unsure(f"`{code_of(item.item)}`", "it changes the dtype", "load(dtype=...)")
        if not items:
            assert isinstance(statement.body, (cst.IndentedBlock, cst.SimpleStatementSuite))
            body = self.block(statement.body, scope)
            inside = body.body if body is not None else []
            return [one for one in inside if isinstance(one, cst.BaseStatement)]
        new = [item.with_changes(item=self.plain_node(item.item, scope)) for item in items]
        body = self.block(statement.body, scope)
        return [statement.with_changes(items=new, body=body or PASS)]

    def try_statement(self, statement: cst.Try, scope: Scope) -> list[cst.BaseStatement]:
        body = self.block(statement.body, scope) or PASS
        handlers = []
        for handler in statement.handlers:
            inside = self.block(handler.body, scope) or PASS
            handlers.append(handler.with_changes(body=inside))
        orelse = statement.orelse
        if orelse is not None:
            orelse = orelse.with_changes(body=self.block(orelse.body, scope) or PASS)
        final = statement.finalbody
        if final is not None:
            final = final.with_changes(body=self.block(final.body, scope) or PASS)
        return [
            statement.with_changes(body=body, handlers=handlers, orelse=orelse, finalbody=final)
        ]


PASS = cst.IndentedBlock([cst.SimpleStatementLine([cst.Pass()])])


def is_no_grad(node: cst.BaseExpression) -> bool:
    func = node.func if isinstance(node, cst.Call) else node
    return dotted(func) in NO_GRAD


def conditional_seed(
    seed: cst.BaseExpression, test: cst.BaseExpression, before: cst.BaseExpression | None
) -> cst.BaseExpression:
    """The seed behind `if test: manual_seed(seed)`."""
    text = code_of(test)
    if text in (f"{code_of(seed)} is not None", code_of(seed)):
        return seed
    other = before if before is not None else cst.Name("None")
    if constant(other) is None and "temperature" in text:
        return seed  # without it nothing is sampled
    return parse("{seed} if {test} else {other}", seed=seed, test=test, other=other)
