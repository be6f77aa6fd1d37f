"""Where a model generates or scores: calls of generate and chat, pipelines, decode loops, log-likelihoods."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from parity.scan.evaluator import Evaluator
from parity.scan.index import END, FUNCTIONS, Module, Repository, Scope, dotted_name, end_of, start_of
from parity.scan.kinds import UNKNOWN, Kinds, Thing
from parity.scan.values import (
    Call,
    ClassValue,
    Dict,
    Function,
    Member,
    Symbol,
    Value,
    literal_of,
    options_of,
    plain,
)

GENERATE = {
    "generate", "stream_generate", "generate_stream", "greedy_search", "contrastive_search", "beam_search",
    "assisted_decoding", "generate_batch",
}  # fmt: skip
CHAT = {"chat", "batch_chat", "stream_chat", "chat_stream", "beam_search", "multi_modal_chat"}
HF_SETTINGS = {
    "max_new_tokens", "do_sample", "num_beams", "input_ids", "attention_mask", "pad_token_id", "eos_token_id",
    "stopping_criteria", "generation_config", "return_dict_in_generate", "num_return_sequences", "inputs_embeds",
    "use_cache", "streamer", "output_scores", "logits_processor", "pixel_values", "synced_gpus", "max_length",
    "decoder_input_ids", "inputs",
}  # fmt: skip
MODEL_NAMES = re.compile(r"(^|_)(model|llm|lm|llama|policy|backbone|gpt|vlm|mllm|network|opt|t5)(_|$|\d)", re.IGNORECASE)
RUNS = re.compile(r"(^|_)(model|llm|lm|llama|policy|backbone|gpt2?|net)$", re.IGNORECASE)
TRAINING = re.compile(
    r"(compute_loss|training_step|train_step|train_epoch|train_one_epoch|^train$|^forward$|_forward$|prediction_step"
    r"|get_batch_loss|concatenated_forward|loss_fn|^step$|backward)"
)
READS = {  # functions that read probabilities out of logits
    "log_softmax", "softmax", "cross_entropy", "CrossEntropyLoss", "selective_log_softmax", "gather", "logsumexp",
    "argmax", "topk",
}  # fmt: skip
DECODES = {"decode", "batch_decode"}
INVOKES = {"invoke", "run", "predict", "batch", "stream", "ainvoke", "arun", "generate", "apply", "complete", "chat"}


@dataclass(frozen=True, eq=False)
class Block:
    """A place where a local model generates or scores.

    library: "transformers", "vllm", "pipeline", "loop" or "score".   form: "generate", "chat", "call",
    "thread", "loop", "score", "beam_search".   settings: the keyword arguments.   thing: the model.
    receiver: the expression of the model, as written.
    """

    module: Module
    scope: Scope
    node: ast.Call
    library: str
    form: str
    settings: Dict
    thing: Thing
    receiver: str
    anchor: ast.AST | None = None
    wrappers: list[tuple[str, int]] = field(default_factory=list)

    @property
    def line(self) -> int:
        return self.module.source.line(self.node.lineno)

    @property
    def function(self) -> str:
        return self.scope.qualname

    @property
    def is_remote(self) -> bool:
        """Whether the checkpoint's own code renders and decodes."""
        return self.form == "chat" and self.library == "transformers"


@dataclass(frozen=True)
class LookAlike:
    """A call that looks like a block.   reason: what it is."""

    file: str
    line: int
    call: str
    reason: str


@dataclass
class Sinks:
    blocks: list[Block] = field(default_factory=list)
    look_alikes: list[LookAlike] = field(default_factory=list)


LOOK_ALIKES = {
    "api": "an API client",
    "engine": "another engine",
    "classifier": "a classifier or a reward model",
    "encoder": "embeddings",
    "diffusers": "image generation",
    "tokenizer": "a tokenizer",
    "processor": "a processor",
}


class Finder:
    """Finds the blocks of a repository."""

    def __init__(self, repository: Repository, evaluator: Evaluator, kinds: Kinds) -> None:
        self.repository = repository
        self.evaluator = evaluator
        self.kinds = kinds
        self.found = Sinks()

    def find(self) -> Sinks:
        for module in self.repository.modules:
            for scope in module.scopes:
                self.search(scope)
        order = {module.path: number for number, module in enumerate(self.repository.modules)}
        self.found.blocks.sort(key=lambda block: (order[block.module.path], block.node.lineno))
        return self.found

    def search(self, scope: Scope) -> None:
        taken = set[int]()
        for call in scope.calls:
            block = self.block_of(call, scope)
            if block is not None:
                taken.add(id(call))
                self.found.blocks.append(block)
        self.search_forwards(scope, taken)

    def block_of(self, call: ast.Call, scope: Scope) -> Block | None:
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in (GENERATE | CHAT | INVOKES):
            found = self.method_block(call, function, call, scope)
            if found is not None:
                return found
        deferred = deferred_target(call)
        if deferred is not None:
            return self.deferred_block(call, deferred, scope)
        return self.called_object(call, scope)

    def thing(self, node: ast.expr, scope: Scope) -> Thing:
        return self.kinds.of(self.evaluator.value(node, self.evaluator.frame(scope)))

    # == Methods ==

    def method_block(self, call: ast.Call, function: ast.Attribute, at: ast.Call, scope: Scope) -> Block | None:
        """`model.generate(...)`, `llm.chat(...)`, `chain.invoke(...)`."""
        thing = self.thing(function.value, scope)
        if thing.kind in ("langchain", "pipeline") and function.attr in INVOKES:
            return self.make(at, scope, "pipeline", "call", thing)
        if function.attr not in GENERATE | CHAT:
            return None
        if is_super(function.value) or self.is_pass_through(call, scope):
            return self.note(at, scope, "a wrapper that passes everything on")
        own = self.own_method(function, scope)
        if own is not None:
            return self.note(at, scope, f"this repository's own {own.qualname}")
        if thing.kind in LOOK_ALIKES:
            return self.note(at, scope, f"{LOOK_ALIKES[thing.kind]}: {thing.name}")
        library = self.library_of(call, function, thing, scope)
        if not library:
            return self.note(at, scope, "an object of unknown kind, and nothing says that it is a model")
        form = function.attr if function.attr == "beam_search" else "generate"
        if function.attr in CHAT - {"beam_search"}:
            form = "chat"
        if at is not call:
            form = "thread"
        return self.make(at, scope, library, form, thing, function)

    def own_method(self, function: ast.Attribute, scope: Scope) -> Scope | None:
        """The repository's own method that is called, where it is one."""
        value = self.evaluator.value(function, self.evaluator.frame(scope))
        for option in options_of(value):
            if isinstance(option, Function):
                return option.scope
        return None

    def library_of(self, call: ast.Call, function: ast.Attribute, thing: Thing, scope: Scope) -> str:
        """The library of a call of generate or chat; "" where nothing says that a model is called."""
        if thing.kind in ("model", "base"):
            return "transformers"
        if thing.kind == "vllm":
            return "vllm"
        names = {keyword.arg for keyword in call.keywords if keyword.arg}
        receiver = dotted_name(function.value) or getattr(function.value, "attr", "")
        if thing.kind == "own" and not names & HF_SETTINGS:
            return ""
        if self.takes_sampling_params(call, scope):
            return "vllm"
        if function.attr in CHAT - {"beam_search"}:
            is_remote = self.takes_tokenizer(call, scope) and MODEL_NAMES.search(receiver)
            return "transformers" if is_remote else ""
        if names & HF_SETTINGS or self.takes_inputs(call, scope):
            return "transformers"
        return "transformers" if self.is_decoded(call, receiver, scope) else ""

    def takes_sampling_params(self, call: ast.Call, scope: Scope) -> bool:
        nodes = [keyword.value for keyword in call.keywords if keyword.arg == "sampling_params"] + call.args[1:2]
        for node in nodes:
            for option in options_of(self.evaluator.value(node, self.evaluator.frame(scope))):
                inner = plain(option)
                if isinstance(inner, Call) and isinstance(plain(inner.callee), Symbol):
                    if plain(inner.callee).name.rpartition(".")[2] in ("SamplingParams", "BeamSearchParams"):  # type: ignore[attr-defined]
                        return True
        return False

    def takes_tokenizer(self, call: ast.Call, scope: Scope) -> bool:
        for node in (*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "tokenizer")):
            if "tokenizer" in dotted_name(node).lower() or self.thing(node, scope).kind == "tokenizer":
                return True
        return any(keyword.arg in ("msgs", "tokenizer") for keyword in call.keywords)

    def takes_inputs(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call is given what a tokenizer or a processor made."""
        for node in [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg is None)]:
            value = self.evaluator.value(node, self.evaluator.frame(scope))
            if self.is_encoded(value):
                return True
            if isinstance(plain(value), Dict) and set(plain(value).entries) & HF_SETTINGS:  # type: ignore[attr-defined]
                return True
        return False

    def is_encoded(self, value: Value, depth: int = 0) -> bool:
        """Whether a value comes out of a tokenizer or a processor."""
        if depth > 6:
            return False
        for option in options_of(value):
            option = plain(option)
            if isinstance(option, Call):
                callee = plain(option.callee)
                if self.kinds.of(callee).kind in ("tokenizer", "processor"):
                    return True
                if isinstance(callee, Member) and self.is_encoded(callee.base, depth + 1):
                    return True
            elif isinstance(option, Member) and option.name in ("input_ids", "input_features", "pixel_values"):
                return True
            elif hasattr(option, "base") and self.is_encoded(option.base, depth + 1):
                return True
        return False

    def is_decoded(self, call: ast.Call, receiver: str, scope: Scope) -> bool:
        """Whether a thing that is called a model gives what is decoded afterwards."""
        if not MODEL_NAMES.search(receiver.rpartition(".")[2]):
            return False
        if any(keyword.arg in ("messages", "prompt", "prompts", "system_prompt") for keyword in call.keywords):
            return False
        after = [other for other in scope.calls if start_of(other) > start_of(call)]
        return any(isinstance(c.func, ast.Attribute) and c.func.attr in DECODES for c in after)

    def is_pass_through(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a method of the same name hands all of its arguments on."""
        if scope.name not in GENERATE or not scope.keyword_rest or not call.keywords:
            return False
        others = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
        for keyword in call.keywords:
            if keyword.arg is not None or dotted_name(keyword.value) != scope.keyword_rest:
                return False
        return not others

    # == Calls that are deferred, and objects that are called ==

    def deferred_block(self, call: ast.Call, target: ast.Attribute, scope: Scope) -> Block | None:
        """`Thread(target=model.generate, kwargs=...)`, `executor.submit(model.generate, ...)`."""
        if target.attr not in GENERATE | CHAT:
            return None
        keywords = [
            ast.keyword(None, keyword.value) for keyword in call.keywords if keyword.arg == "kwargs"
        ] or [keyword for keyword in call.keywords if keyword.arg not in ("target", "args", "daemon", "name")]
        inner = ast.copy_location(ast.Call(target, [], keywords), call)
        return self.method_block(inner, target, call, scope)

    def called_object(self, call: ast.Call, scope: Scope) -> Block | None:
        """`pipe(...)`, `llm(...)` of LangChain."""
        name = dotted_name(call.func)
        if not name and not isinstance(call.func, (ast.Subscript, ast.Call)):
            return None
        if name and (name in scope.module.functions or name in scope.module.classes):
            return None
        if name and "." not in name and name not in scope.bindings and not self.is_variable(name, scope):
            return None
        if "pipeline" not in scope.module.source.text and "Pipeline" not in scope.module.source.text:
            if not re.search(r"pipe|generator|llm", name):
                return None
        thing = self.thing(call.func, scope)
        if thing.kind == "pipeline" or (thing.kind == "langchain" and call.args):
            return self.make(call, scope, "pipeline", "call", thing)
        if thing.kind == "classifier" and thing.task:
            return self.note(call, scope, f"{LOOK_ALIKES['classifier']}: {thing.name}")
        return None

    @staticmethod
    def is_variable(name: str, scope: Scope) -> bool:
        around: Scope | None = scope
        while around is not None:
            if name in around.bindings or name in around.parameters:
                return True
            around = around.parent
        return name in scope.module.imports

    # == Forward passes ==

    def search_forwards(self, scope: Scope, taken: set[int]) -> None:
        """Decode loops and log-likelihoods over `model(...)`."""
        text = function_text(scope)
        if "logits" not in text and "loss" not in text and "log_prob" not in text:
            return
        forwards = [call for call in scope.calls if self.is_forward(call, scope)]
        if not forwards:
            return
        loops = list[ast.Call]()
        for call in forwards:
            if self.is_in_decode_loop(call, scope):
                loops.append(call)
        if loops:
            call = loops[-1]
            self.found.blocks.append(self.make(call, scope, "loop", "loop", self.forward_thing(call, scope)))
            return
        self.search_scores(scope, forwards)

    def search_scores(self, scope: Scope, forwards: list[ast.Call]) -> None:
        if is_training(scope):
            for call in forwards:
                self.note(call, scope, "training, or a part of a network")
            return
        reader = self.reader_of(scope)
        if reader:
            self.found.blocks.append(
                self.make(forwards[0], scope, "score", "score", self.forward_thing(forwards[0], scope))
            )

    def forward_thing(self, call: ast.Call, scope: Scope) -> Thing:
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
            function = function.value
        return self.thing(function, scope)

    def is_forward(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call runs a language model once, by what is loaded, or by its name and its arguments."""
        name = dotted_name(call.func)
        last = name.rpartition(".")[2]
        if last in ("forward", "__call__"):
            name = name.rpartition(".")[0]
            last = name.rpartition(".")[2]
        if not RUNS.search(last) or last[:1].isupper():
            return False
        callee = self.evaluator.value(call.func, self.evaluator.frame(scope))
        if any(isinstance(plain(option), (Function, Symbol, ClassValue)) for option in options_of(callee)):
            return False
        thing = self.forward_thing(call, scope)
        if thing.kind in ("model", "base"):
            return True
        if thing.kind == "classifier":
            self.note(call, scope, f"{LOOK_ALIKES['classifier']}: {thing.name}")
        if thing.kind != "unknown":
            return False
        names = {keyword.arg for keyword in call.keywords}
        is_fed = bool(names & {"input_ids", "labels", "past_key_values", "inputs_embeds"}) or self.takes_inputs(call, scope)
        return is_fed or "token" in scope.module.source.text and "input_ids" in function_text(scope)

    def is_in_decode_loop(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a forward pass stands in a loop that chooses a token and goes on with it."""
        position = start_of(call)
        for node in own_nodes(scope):
            if isinstance(node, (ast.For, ast.While)) and start_of(node) <= position <= end_of(node):
                if chooses_token(node) and goes_on(node):
                    return True
        return False

    def reader_of(self, scope: Scope) -> bool:
        """Whether a function reads probabilities or a loss out of a forward pass."""
        text = function_text(scope)
        if re.search(r"log_softmax|log_probs?\b|logsoftmax|selective_log_softmax", text) and "logits" in text:
            return True
        if re.search(r"\.loss\b|\[.loss.\]", text) and re.search(r"labels\s*=", text):
            return True
        if re.search(r"cross_entropy|CrossEntropyLoss|NLLLoss", text) and "logits" in text:
            return True
        is_last = re.search(r"logits[^\n]{0,40}\[\s*(:|0|\.\.\.|i)?\s*,?\s*(-1|last|seq)", text)
        return bool(is_last and re.search(r"softmax|argmax|topk|sigmoid|token_id|_id\]", text))

    # == Results ==

    def make(self, call: ast.Call, scope: Scope, library: str, form: str, thing: Thing,
             function: ast.Attribute | None = None) -> Block:  # fmt: skip
        source = call
        if form == "thread":
            keywords = [keyword for keyword in call.keywords if keyword.arg == "kwargs"]
            value = self.evaluator.value(keywords[0].value, self.evaluator.frame(scope)) if keywords else Dict({})
            inner = plain(value)
            settings = inner if isinstance(inner, Dict) else Dict({}, (value,))
            if not keywords:
                settings = self.evaluator.keywords(call, self.evaluator.frame(scope))
        else:
            settings = self.evaluator.keywords(source, self.evaluator.frame(scope))
        receiver = ast.unparse(function.value) if function is not None else ast.unparse(call.func)
        return Block(scope.module, scope, call, library, form, settings, thing, receiver)

    def note(self, call: ast.Call, scope: Scope, reason: str) -> None:
        line = scope.module.source.line(call.lineno)
        self.found.look_alikes.append(LookAlike(scope.module.path, line, ast.unparse(call.func)[:60], reason))


def deferred_target(call: ast.Call) -> ast.Attribute | None:
    """The method that a thread, a pool or a partial will call."""
    name = dotted_name(call.func).rpartition(".")[2] or getattr(call.func, "attr", "")
    if name in ("Thread", "Process"):
        nodes = [keyword.value for keyword in call.keywords if keyword.arg == "target"]
    elif name in ("submit", "partial", "to_thread", "run_sync"):
        nodes = list(call.args[:1])
    elif name == "run_in_executor":
        nodes = list(call.args[1:2])
    else:
        return None
    return nodes[0] if nodes and isinstance(nodes[0], ast.Attribute) else None


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted_name(node.func) == "super"


def is_training(scope: Scope) -> bool:
    """Whether a function trains, or is a part of a network."""
    if TRAINING.search(scope.name):
        return True
    for call in scope.calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if last in ("backward", "zero_grad", "clip_grad_norm_"):
            return True
    bases = [dotted_name(base) for base in scope.owner.node.bases] if scope.owner is not None else []
    return any(base.endswith(("Trainer", "nn.Module", "PreTrainedModel", "LightningModule")) for base in bases)


def own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """The nodes of a scope, without nested functions and classes."""
    todo = list(ast.iter_child_nodes(scope.node))
    while todo:
        node = todo.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


def function_text(scope: Scope) -> str:
    """The source of a scope."""
    lines = scope.module.source.text.split("\n")
    if not isinstance(scope.node, FUNCTIONS):
        return scope.module.source.text
    return "\n".join(lines[scope.node.lineno - 1 : scope.node.end_lineno])


def chooses_token(loop: ast.AST) -> bool:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if last in ("argmax", "multinomial", "topk", "sample", "max") or "sample" in last:
                return True
    return False


def goes_on(loop: ast.AST) -> bool:
    """Whether a loop adds the token that it chose, or gives it to the model with a cache."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if last in ("cat", "concat", "concatenate", "hstack", "append", "extend"):
                return True
            if any(keyword.arg == "past_key_values" for keyword in node.keywords):
                return True
    return False


