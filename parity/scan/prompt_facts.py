"""How a block's prompt is made: tokenizer, chat template, batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from parity.scan.blocks import function_text, names_in
from parity.scan.checkpoint_files import doubles_bos
from parity.scan.context import Encoding
from parity.scan.index import Scope, called_name, dotted_name, end_of, start_of
from parity.scan.kinds import TOKENIZERS, Load, Thing
from parity.scan.load_facts import LoadFacts
from parity.scan.origins import (
    REMOTE,
    Fact,
    default_of,
    fact_of,
    fact_of_rest,
    literal,
    not_said,
)
from parity.scan.values import (
    Argument,
    Call,
    Dict,
    Element,
    Function,
    Item,
    Items,
    Literal,
    Member,
    Unknown,
    Value,
    is_literal,
    literal_of,
    options_of,
    plain,
    table_of,
)

TOKENIZER_CONFIG = not_said("the checkpoint's tokenizer_config.json")
VLLM_PADDING = not_said("vLLM, which pads nothing")
ONE = literal(False, "one at a time")
AS_GIVEN = Fact(None, "computed", "as many as are given")
REMOTE_TOKENIZER = not_said("the checkpoint's code")
HAND_WRITTEN = re.compile(
    r"<\|im_start\|>|\[INST\]|### ?(Instruction|Response|Human|Assistant|Input)|USER:|ASSISTANT:"
    r"|Human:|Assistant:|<\|user\|>|<\|assistant\|>|<start_of_turn>|<\|start_header_id\|>|<s>"
    r"|<image>|<\|begin_of_text\|>|<\|image|get_conversation_template|conv_templates"
    r"|\.get_prompt\(|append_message|get_conv_template|Conversation\(|PromptTemplate"
    r"|DEFAULT_IMAGE_TOKEN|IMAGE_TOKEN"
)
CHECKPOINT = ("pretrained_model_name_or_path", "model")  # parameters of loaders
NO_BOS = re.compile(r"qwen|smollm", re.IGNORECASE)  # families whose tokenizers add none
ENCODERS = ("tokenizer", "processor", "unknown")
TEXT_MAKERS = {"join", "format", "list", "str", "stack", "cat", "repeat"}
MAX_PROMPTS = 60
MAX_PARTS = 8  # parts of parts that are followed from what a model is given to what encoded it
RENDERS = ("apply_chat_template", "apply_chat_template_batch", "render_chat")
ENCODES = {"encode", "batch_encode_plus", "encode_plus", "apply_chat_template", "__call__"}


class PromptFacts(LoadFacts):
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
        if thing.kind == "unknown" and TOKENIZERS.search(last):
            return thing
        return None

    @cached_property
    def encodings(self) -> list[Encoding]:
        """Calls of tokenizers and processors near the block, the nearest first; those before it
        only."""
        found = self.encodings_in(self.around.near) or self.encodings_in(self.around.callers)
        return found or self.encodings_in(self.around.item_makers)

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
        frame = self.evaluator.frame(self.block.scope)
        for name in self.block.scope.parameters:
            if TOKENIZERS.search(name):
                things.append(self.kinds.of(self.evaluator.parameter(name, frame)))
        loaded = [thing for thing in things if thing.loads and thing.kind in ENCODERS]
        given = [thing for thing in things if thing.argument]
        return next(iter([*loaded, *given]), Thing("unknown"))

    @cached_property
    def doubled_bos(self) -> list[bool | None]:
        """For each checkpoint that the tokenizer may be of: whether a chat that is rendered as
        text, then tokenized, begins with two BOS; None where that is not known."""
        found = list[bool | None]()
        for load in self.tokenizer.loads or self.loads:
            settings = load.settings.entries
            names = [settings[key] for key in CHECKPOINT if key in settings]
            if not names and load.call is not None and load.call.node and load.call.node.args:
                node, frame = load.call.node.args[0], load.call.frame
                names = [self.evaluator.value(node, frame)] if frame is not None else []
            found += [doubled_bos_of(name) for name in map(default_of, names[:1])] or [None]
        return found

    def tokenizer_fact(self, read: Callable[[Load], Value | None], unsaid: Fact) -> Fact:
        thing = self.tokenizer
        elsewhere = unsaid
        if thing.argument:
            elsewhere = not_said(f"whoever makes the argument {thing.argument}")
        facts = [elsewhere] if not thing.loads else []
        for load in thing.loads:
            decides = unsaid if load.call is not None else elsewhere
            facts.append(fact_of(read(load), self.load_rest(load) or decides))
        if all(fact == facts[0] for fact in facts):
            return facts[0]
        return Fact(None, "computed", " or ".join(dict.fromkeys(str(fact) for fact in facts)))

    def encoding_setting(self, name: str) -> Value | None:
        """A setting of the nearest call of a tokenizer that has it."""
        for encoding in self.encodings:
            if name in encoding.settings.entries:
                return encoding.settings.entries[name]
        return None

    def read_padding_side(self) -> Fact:
        if self.block.is_remote or self.block.library == "vllm":
            return REMOTE_TOKENIZER if self.block.is_remote else VLLM_PADDING
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
        unsaid = not_said("the library (False)")
        for encoding in self.encodings:
            if "truncation" not in encoding.settings.entries and encoding.settings.rest:
                unsaid = fact_of_rest(encoding.settings.rest[0])
                break
        return fact_of(self.encoding_setting("truncation"), unsaid)

    # == Template ==

    @cached_property
    def template_call(self) -> tuple[ast.Call, Scope] | None:
        if self.known_prompt:
            return None
        for scopes in (self.around.near, self.around.callers):
            for call, scope in self.around.calls(scopes, renders):
                return call, scope
        for value in self.prompts:
            if isinstance(value, Call) and renders(value.node):
                return value.node, value.frame.scope
        return None

    @cached_property
    def known_prompt(self) -> str:
        """The text of a prompt that is written in full where it is encoded, or given to the
        model; "" of any other."""
        if self.block.library in ("vllm", "pipeline"):
            nodes = [(node, self.block.scope) for node in self.prompt_nodes()]
        else:
            used = [e for e in self.encodings if e.node.args and self.is_made_by(e.node)]
            nodes = [(e.node.args[0], e.scope) for e in used if not renders(e.node)]
        texts = list[object]()
        for node, scope in nodes:
            _, text = literal_of(self.evaluator.value(node, self.evaluator.frame(scope)))
            texts += text if isinstance(text, list) else [text]
        known = [text for text in texts if isinstance(text, str)]
        return "\n".join(known) if len(known) == len(texts) else ""

    def is_made_by(self, encoding: ast.Call) -> bool:
        """Whether the model is given what a call of a tokenizer made."""
        call = self.block.node
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        frame = self.evaluator.frame(self.block.scope)
        return any(comes_from(self.evaluator.value(node, frame), encoding, 0) for node in given)

    @cached_property
    def prompts(self) -> list[Value]:
        """What the prompt of the block is made of, followed through tokenizers, methods of texts
        and parameters, to the callers of its function."""
        nodes = [(node, self.block.scope) for node in self.prompt_nodes()]
        for encoding in self.encodings[:3]:
            texts = [*encoding.node.args[:1], *keywords_named(encoding.node, "text", "prompt")]
            nodes += [(node, encoding.scope) for node in texts]
        todo = [self.evaluator.value(node, self.evaluator.frame(scope)) for node, scope in nodes]
        found = list[Value]()
        seen = set[tuple[int, str]]()
        while todo and len(found) < MAX_PROMPTS:
            for option in options_of(plain(todo.pop())):
                found.append(plain(option))
                todo += self.made_of(plain(option), seen)
        return found

    def made_of(self, value: Value, seen: set[tuple[int, str]]) -> Sequence[Value]:
        """What a text is made of, or comes from."""
        if isinstance(value, Argument):
            key = id(value.scope), value.name
            is_new = key not in seen
            seen.add(key)
            return self.kinds.given(value.scope, value.name) if is_new else ()
        if isinstance(value, Unknown):
            return value.parts
        if isinstance(value, Items):
            return value.items[:2]
        if isinstance(value, (Element, Item, Member)):
            return [value.base]
        if isinstance(value, Call):
            return self.given_to(value)
        is_prompt = isinstance(value, Dict) and "prompt" in value.entries
        return [value.entries["prompt"]] if is_prompt else ()  # type: ignore[attr-defined]

    def given_to(self, value: Call) -> list[Value]:
        """What a call makes a text, or the ids of it, of."""
        callee = plain(value.callee)
        node, frame = value.node, value.frame
        if isinstance(callee, Function):
            values = self.evaluator.bind_arguments(callee.scope, node, frame, callee.bound)
            return [self.evaluator.returned(callee.scope, values, frame.depth + 1)]
        found = [callee.base] if isinstance(callee, Member) else []
        if called_name(node) in TEXT_MAKERS or self.is_encoding(node, frame.scope):
            found += [self.evaluator.value(argument, frame) for argument in node.args[:1]]
        return found

    def read_template(self) -> Fact:
        if self.block.is_remote:
            return REMOTE
        return self.chat_template() or self.other_template()

    def chat_template(self) -> Fact | None:
        """The chat template of a tokenizer; None where none is rendered."""
        if self.is_vllm_chat:
            return literal("apply_chat_template", "inside vLLM's chat")
        if self.template_call is not None:
            if self.is_template_conditional():
                return Fact(None, "computed", "apply_chat_template, or another prompt")
            return literal("apply_chat_template")
        if self.block.library == "pipeline" and self.is_given_messages():
            return literal("apply_chat_template", "inside the pipeline")
        return None

    def other_template(self) -> Fact:
        """How a prompt is made without a chat template."""
        if self.known_prompt:
            is_written = HAND_WRITTEN.search(self.known_prompt)
            return literal("hand-written" if is_written else "none")
        if self.renders_in_checkpoint():
            return REMOTE
        if self.is_hand_written():
            return literal("hand-written")
        if self.may_be_templated():
            return Fact(None, "computed", "a prompt that is made elsewhere")
        return literal("none")

    def is_template_conditional(self) -> bool:
        """Whether a branch around the chat template, or around the call of the function that
        renders it, has another arm that renders none."""
        assert self.template_call is not None
        call, scope = self.template_call
        if has_other_arm(call, scope) or gives_back_early(call, scope):
            return True
        own = self.block.scope
        helpers = [c for c in own.calls if called_name(c) == scope.name and scope is not own]
        return any(has_other_arm(helper, own) for helper in helpers)

    def renders_in_checkpoint(self) -> bool:
        """Whether a method of the model, which the checkpoint's code defines, makes the inputs."""
        method = r"\b(model|chat_model)\.(build_\w+|text_process\w*|process\w*|prepare_inputs\w*)\("
        return re.search(method, function_text(self.block.scope)) is not None

    def may_be_templated(self) -> bool:
        """Whether something near a block speaks of a template or formats a prompt, or a function
        that is not followed makes the prompt."""
        made = [called_name(value.node) for value in self.prompts if isinstance(value, Call)]
        if any(re.search(r"prompt|template|format|conversation", name) for name in made):
            return True
        words = re.compile(r"template|conv\b|<img>|(prompt|PROMPT)\w*\.format\(|f['\"].*\bprompt")
        scopes = [*self.around.near, *self.around.callers]
        return any(words.search(function_text(scope)) for scope in scopes if scope.qualname)

    @property
    def is_vllm_chat(self) -> bool:
        return self.block.library == "vllm" and self.block.form == "chat"

    def is_hand_written(self) -> bool:
        scopes = [scope for scope in self.around.near if scope.qualname]
        scopes += [scope for scope in self.around.callers if scope.qualname]
        if not self.block.scope.qualname:
            scopes.append(self.block.scope)
        has_marker = any(HAND_WRITTEN.search(function_text(scope)) for scope in scopes)
        return has_marker or any(has_words(value) for value in self.prompts)

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

    def template_setting(self, name: str, unsaid: Fact) -> Fact:
        """A switch of the chat template, given to it or among chat_template_kwargs."""
        if self.block.is_remote:
            return REMOTE_TOKENIZER if name == "enable_thinking" else REMOTE
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
        return fact_of_rest(settings.rest[0])

    def read_add_generation_prompt(self) -> Fact:
        default = "vLLM (True)" if self.is_vllm_chat else "the library (False)"
        return self.template_setting("add_generation_prompt", not_said(default))

    def read_enable_thinking(self) -> Fact:
        return self.template_setting("enable_thinking", not_said("the chat template"))

    # == Batch ==

    def read_batch(self) -> Fact:
        size = self.batch_size()
        if size is not None:
            return size
        if self.block.library == "vllm":
            return self.batch_of_vllm()
        padding = self.encoding_setting("padding")
        is_padded = padding is not None and not is_literal(padding, False, None)
        is_looped = self.outcome.is_looped or self.outcome.is_decoded_together
        if self.takes_list() and (is_padded or is_looped):
            return Fact(None, "computed", "many")
        return ONE if self.is_single() else AS_GIVEN

    def batch_size(self) -> Fact | None:
        for name in ("batch_size",):
            if self.block.library == "pipeline" and name in self.settings.entries:
                return self.setting(not_said("the pipeline (1)"), name)
        scope: Scope | None = self.block.scope
        pattern = re.compile(r"(^|[._])(batch_size|batch_size_per_gpu|bs|bsz|batchsize)$")
        while scope is not None and scope.qualname:
            nodes: list[ast.AST] = [scope.node]
            if self.block.library == "vllm":  # it makes batches by itself, unless code cuts them
                nodes = [node for node in ast.walk(scope.node) if cuts_batches(node)]
            names = {
                dotted_name(node)
                for inside in nodes
                for node in ast.walk(inside)
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

    def batch_of_vllm(self) -> Fact:
        if any(self.is_comprehension(node) for node in self.prompt_nodes()):
            return literal(True, "many")
        return ONE if self.is_single() else AS_GIVEN

    def is_comprehension(self, node: ast.expr) -> bool:
        """Whether an argument is a list comprehension, or a name that holds nothing else."""
        if isinstance(node, ast.ListComp):
            return True
        bindings = self.block.scope.bindings.get(dotted_name(node), [])
        return bool(bindings) and all(isinstance(b.value, ast.ListComp) for b in bindings)

    def is_single(self) -> bool:
        """Whether a call is surely given one prompt or one conversation."""
        block = self.block
        if block.is_remote:
            function = block.node.func
            return not (isinstance(function, ast.Attribute) and function.attr == "batch_chat")
        if block.library == "score":
            return False
        if block.form == "thread" or "streamer" in block.settings.entries:
            return True  # a streamer takes one row
        if self.outcome.is_indexed and not self.outcome.is_looped:
            return True
        if block.library in ("vllm", "pipeline"):
            return any(self.is_one_prompt(node) for node in self.prompt_nodes())
        return False

    def prompt_nodes(self) -> list[ast.expr]:
        nodes = [*self.block.node.args[:1]]
        for keyword in self.block.node.keywords:
            if keyword.arg in ("prompts", "messages", "inputs"):
                nodes.append(keyword.value)
        return nodes

    def is_one_prompt(self, node: ast.expr) -> bool:
        """Whether an argument is a text, a dictionary, a conversation, or a list of one."""
        value = plain(self.evaluator.value(node, self.evaluator.frame(self.block.scope)))
        if isinstance(value, Items) and value.items:
            return len(value.items) == 1 or is_message(value.items[0])
        if isinstance(value, Literal):
            return isinstance(value.value, str)
        return isinstance(node, ast.JoinedStr) or (isinstance(value, Dict) and bool(value.entries))

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
                    return len(value.items) > 1 and not is_message(value.items[0])
                if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
                    return True
                if re.search(
                    r"(prompts|texts|inputs|questions|batch\w*|contexts|sentences|examples|chats)$",
                    dotted_name(node),
                ):
                    return True
        return False


def renders(call: ast.Call) -> bool:
    return called_name(call) in RENDERS


def comes_from(value: Value, call: ast.Call, depth: int) -> bool:
    """Whether a value is what a call gives, or a part of it."""
    for option in map(plain, options_of(value)):
        inner: list[Value] = []
        if isinstance(option, Call):
            if option.node is call:
                return True
            callee = plain(option.callee)
            inner = [callee.base] if isinstance(callee, Member) else []
        elif isinstance(option, Unknown):
            inner = list(option.parts)
        elif isinstance(option, (Member, Item, Element)):
            inner = [option.base]
        if depth < MAX_PARTS and any(comes_from(part, call, depth + 1) for part in inner):
            return True
    return False


def has_other_arm(call: ast.Call, scope: Scope) -> bool:
    """Whether a call stands in an arm of a branch, and none of the same name in the other arm."""
    positions = [start_of(c) for c in scope.calls if called_name(c) == called_name(call)]
    for arm in scope.arms_at(start_of(call)):
        others = [o for o in scope.arms if o.branch is arm.branch and o is not arm]
        is_met = any(other.contains(at) for other in others for at in positions)
        is_met |= arm.exits and any(at > arm.end for at in positions)
        if arm.test is not None and not is_met:
            return True
    return False


def gives_back_early(call: ast.Call, scope: Scope) -> bool:
    """Whether a function returns what it is given, in some other way, before it comes to a call."""
    for node in scope.returns:
        made = {called_name(part) for part in ast.walk(node) if isinstance(part, ast.Call)}
        is_given = bool(names_in(node) & set(scope.parameters))
        in_arm = bool(scope.arms_at(start_of(node)))
        if in_arm and is_given and end_of(node) < start_of(call) and called_name(call) not in made:
            return True
    return False


def attribute_of(load: Load, name: str) -> Value | None:
    """An attribute of a tokenizer: set on it, on its tokenizer, or given to its loader."""
    for key in (name, f"tokenizer.{name}"):
        if key in load.attributes:
            return load.attributes[key]
    return load.settings.entries.get(name)


def is_message(value: Value) -> bool:
    inner = plain(value)
    return isinstance(inner, Dict) and "role" in inner.entries


def has_words(value: Value) -> bool:
    """Whether a value is a text with words around something that is put in."""
    if isinstance(value, Literal):
        return isinstance(value.value, str) and HAND_WRITTEN.search(value.value) is not None
    if isinstance(value, Call):
        return called_name(value.node) in ("format", "format_map")
    if not isinstance(value, Unknown):
        return False
    is_text = re.match(r"^[fF]?[rR]?['\"]", value.text) is not None or "format" in value.text
    if is_text and re.search(r"[A-Za-z]{3,}.*[{%]|[}].*[A-Za-z]{3,}", value.text):
        return True
    texts = [str(part.value) for part in value.parts if isinstance(part, Literal)]
    is_sum = len(texts) < len(value.parts) and re.search(r" \+ | changed by ", value.text)
    return bool(is_sum) and any(re.search(r"[A-Za-z]{3,}", text) for text in texts)


def keywords_named(call: ast.Call, *names: str) -> list[ast.expr]:
    return [keyword.value for keyword in call.keywords if keyword.arg in names]


def cuts_batches(node: ast.AST) -> bool:
    """Whether a node goes over things some at a time: range(0, n, size), rows[k : k + size]."""
    is_range = isinstance(node, ast.Call) and called_name(node) in ("range", "DataLoader")
    return is_range or isinstance(node, ast.Slice)


def doubled_bos_of(checkpoint: object) -> bool | None:
    """Whether a rendered chat begins with two BOS, by a checkpoint's folder or name."""
    if not isinstance(checkpoint, str):
        return None
    is_doubled = doubles_bos(Path(checkpoint))
    return False if is_doubled is None and NO_BOS.search(checkpoint) else is_doubled
