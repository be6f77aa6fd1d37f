"""Where a model generates or scores: calls of generate and chat, pipelines, decode loops,
log-likelihoods."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from parity.scan.evaluator import Evaluator
from parity.scan.index import (
    FUNCTIONS,
    Module,
    Position,
    Repository,
    Scope,
    called_name,
    dotted_name,
    end_of,
    start_of,
)
from parity.scan.kinds import GENERATES, Kinds, Thing
from parity.scan.values import (
    ClassValue,
    Dict,
    Function,
    Symbol,
    options_of,
    plain,
)

GENERATE = {
    "generate", "stream_generate", "generate_stream", "greedy_search", "contrastive_search",
    "beam_search",
    "assisted_decoding", "generate_batch",
}  # fmt: skip
CHAT = {"chat", "batch_chat", "stream_chat", "chat_stream", "beam_search", "multi_modal_chat"}
HF_SETTINGS = {
    "max_new_tokens", "do_sample", "num_beams", "input_ids", "attention_mask", "pad_token_id",
    "eos_token_id",
    "stopping_criteria", "generation_config", "return_dict_in_generate", "num_return_sequences",
    "inputs_embeds",
    "use_cache", "streamer", "output_scores", "logits_processor", "pixel_values", "synced_gpus",
    "max_length",
    "decoder_input_ids", "inputs",
}  # fmt: skip
MODEL_NAMES = re.compile(
    r"(^|_)(model|llm|lm|llama|policy|backbone|gpt|vlm|mllm|network|opt|t5)(_|$|\d)", re.IGNORECASE
)
PIPE_NAMES = re.compile(r"pipe|generator|llm|chain", re.IGNORECASE)
LOSSES = r"cross_entropy|CrossEntropyLoss|NLLLoss|logits_to_logp|batch_logps|perplexity"
RUNS = re.compile(r"(^|_)(model|llm|lm|llama|policy|backbone|gpt2?|net)$", re.IGNORECASE)
TRAINING = re.compile(
    r"(compute_loss|training_step|train_step|train_epoch|train_one_epoch|^train$|^forward$"
    r"|_forward$|prediction_step"
    r"|get_batch_loss|loss_fn|^step$|backward)"
)
NO_LANGUAGE_MODEL = re.compile(r"reward|critic|classif|value_model", re.IGNORECASE)
CHOOSES = re.compile(r"argmax|multinomial|topk|sampl|^max$|choice|decode_token|next_token")
LABELS = re.compile(
    r"yes|no_token|true_|false_|label|choice|option|candidate|tokens_to_ids|token_id|answer_id|\"[A-D]\"",
    re.I,
)
DECODES = {"decode", "batch_decode"}
INVOKES = {
    "invoke",
    "run",
    "predict",
    "batch",
    "stream",
    "ainvoke",
    "arun",
    "generate",
    "apply",
    "complete",
    "chat",
}


@dataclass(frozen=True, eq=False)
class Block:
    """A place where a local model generates or scores.

    library: "transformers", "vllm", "pipeline", "loop" or "score".   form: "generate", "chat",
    "call",
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


ANALYSIS_ERRORS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True)
class Failure:
    """A function or a block that a fault of the scanner kept from being analysed."""

    file: str
    line: int
    function: str
    reason: str


def failure_of(error: Exception, scope: Scope, line: int) -> Failure:
    reason = f"{type(error).__name__}: {error}"
    return Failure(scope.module.path, line, scope.qualname, reason)


@dataclass
class Sinks:
    """failures: functions that could not be searched."""

    blocks: list[Block] = field(default_factory=list)
    look_alikes: list[LookAlike] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


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
        self.pipelines: dict[str, bool] = {}

    def find(self) -> Sinks:
        for module in self.repository.modules:
            for scope in module.scopes if module.source.has_sink_words else ():
                try:
                    self.search(scope)
                except ANALYSIS_ERRORS as error:
                    line = scope.module.source.line(getattr(scope.node, "lineno", 1))
                    self.found.failures.append(failure_of(error, scope, line))
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

    def method_block(
        self, call: ast.Call, function: ast.Attribute, at: ast.Call, scope: Scope
    ) -> Block | None:
        """`model.generate(...)`, `llm.chat(...)`, `chain.invoke(...)`."""
        thing = self.thing(function.value, scope)
        if thing.kind in ("langchain", "pipeline") and function.attr in INVOKES:
            return self.make(at, scope, "pipeline", "call", thing)
        if function.attr not in GENERATE | CHAT:
            return None
        reason = self.reason_against(call, function, thing, scope)
        library = "" if reason else self.library_of(call, function, thing, scope)
        if not library:
            unknown = "an object of unknown kind, and nothing says that it is a model"
            self.note(at, scope, reason or unknown)
            return None
        form = function.attr if function.attr == "beam_search" else "generate"
        if function.attr in CHAT - {"beam_search"}:
            form = "chat"
        thing = thing.only("vllm" if library == "vllm" else "model") if thing.others else thing
        return self.make(at, scope, library, form if at is call else "thread", thing, function)

    def reason_against(
        self, call: ast.Call, function: ast.Attribute, thing: Thing, scope: Scope
    ) -> str:
        """Why a call of generate or chat is no block; "" where nothing is against it."""
        if is_super(function.value) or self.is_pass_through(call, scope):
            return "a wrapper that passes everything on"
        is_self = dotted_name(function.value) == scope.self_name
        is_own = thing.own is not None and thing.own is scope.self_class and is_self
        is_block_of_callers = bool((GENERATE | CHAT) & set(scope.qualname.split(".")))
        if is_own and (is_block_of_callers or thing.kind != "model"):
            return f"inside the code of the model class {thing.name}"
        is_model = thing.kind in ("model", "vllm")
        own = None if is_model else self.own_method(function, scope)
        if own is not None and not self.is_wrapper(own):
            return f"this repository's own {own.qualname}"
        if thing.kind in LOOK_ALIKES:
            return f"{LOOK_ALIKES[thing.kind]}: {thing.name}"
        return ""

    def own_method(self, function: ast.Attribute, scope: Scope) -> Scope | None:
        """The repository's own method that is called, where it is one."""
        value = self.evaluator.value(function, self.evaluator.frame(scope))
        for option in options_of(value):
            if isinstance(option, Function):
                return option.scope
        cls = self.thing(function.value, scope).own
        for own in self.evaluator.ancestors(cls) if cls is not None else ():
            if function.attr in own.methods:
                return own.methods[function.attr]
        return None

    def library_of(
        self, call: ast.Call, function: ast.Attribute, thing: Thing, scope: Scope
    ) -> str:
        """The library of a call of generate or chat; "" where nothing tells of a model."""
        if self.takes_sampling_params(call, scope):
            return "vllm"
        if thing.kind in ("model", "vllm") and not (thing.may_be("model") and thing.may_be("vllm")):
            return "vllm" if thing.kind == "vllm" else "transformers"
        receiver = dotted_name(function.value) or getattr(function.value, "attr", "")
        if thing.kind == "own":
            is_fed = self.is_fed(call, scope)
            return "transformers" if is_fed and self.may_delegate(thing, function.attr) else ""
        if self.is_named_engine(call, scope):
            return "vllm"
        if function.attr in CHAT - {"beam_search"}:
            is_model = MODEL_NAMES.search(receiver.rpartition(".")[2]) is not None
            is_hf = is_model and self.takes_tokenizer(call, scope)
        else:
            is_hf = self.is_fed(call, scope) or self.is_decoded(call, receiver, scope)
        if is_hf:
            return "transformers"
        return "vllm" if thing.may_be("vllm") else ""

    def is_fed(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call has settings of transformers, or what a tokenizer made."""
        is_set = any(keyword.arg in HF_SETTINGS for keyword in call.keywords)
        return is_set or self.takes_inputs(call, scope)

    def may_delegate(self, thing: Thing, name: str) -> bool:
        """Whether an object has methods that its class, of this repository, does not show, or hands
        all that this one is given on to a model."""
        assert thing.own is not None
        classes = list(self.evaluator.ancestors(thing.own))
        has_any = any("__getattr__" in cls.methods for cls in classes)
        wrappers = [cls.methods[name] for cls in classes if name in cls.methods]
        is_foreign = bool(self.evaluator.outer_bases(thing.own))
        return has_any or is_foreign or any(map(self.is_wrapper, wrappers))

    def is_wrapper(self, method: Scope) -> bool:
        return any(self.is_pass_through(call, method) for call in method.calls)

    def takes_sampling_params(self, call: ast.Call, scope: Scope) -> bool:
        nodes = [keyword.value for keyword in call.keywords if keyword.arg == "sampling_params"]
        return any(self.thing(node, scope).kind == "params" for node in (*nodes, *call.args[1:2]))

    def is_named_engine(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `model.generate(prompts, sampling_params)` is vLLM's: a thing that is called a
        model, and settings of that name, which are not known, no dictionary (of other engines)."""
        receiver = dotted_name(call.func).rpartition(".")[0].rpartition(".")[2]
        if not re.search(r"engine|vllm", receiver, re.I) and not MODEL_NAMES.search(receiver):
            return False
        nodes = [keyword.value for keyword in call.keywords if keyword.arg == "sampling_params"]
        nodes += [n for n in call.args[1:2] if "sampling_params" in ast.unparse(n)]
        values = [self.evaluator.value(node, self.evaluator.frame(scope)) for node in nodes[:1]]
        return any(not isinstance(plain(value), Dict) for value in values)

    def takes_tokenizer(self, call: ast.Call, scope: Scope) -> bool:
        for node in (
            *call.args[:1],
            *(keyword.value for keyword in call.keywords if keyword.arg == "tokenizer"),
        ):
            if (
                "tokenizer" in dotted_name(node).lower()
                or self.thing(node, scope).kind == "tokenizer"
            ):
                return True
        return any(keyword.arg in ("msgs", "tokenizer") for keyword in call.keywords)

    def takes_inputs(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call is given what a tokenizer or a processor made."""
        for node in [
            *call.args[:1],
            *(keyword.value for keyword in call.keywords if keyword.arg is None),
        ]:
            value = self.evaluator.value(node, self.evaluator.frame(scope))
            if self.kinds.is_encoded(value):
                return True
            if isinstance(plain(value), Dict) and set(plain(value).entries) & HF_SETTINGS:  # type: ignore[attr-defined]
                return True
        return False

    def is_decoded(self, call: ast.Call, receiver: str, scope: Scope) -> bool:
        """Whether a thing that is called a model gives what is decoded afterwards."""
        if not MODEL_NAMES.search(receiver.rpartition(".")[2]):
            return False
        if any(
            keyword.arg in ("messages", "prompt", "prompts", "system_prompt")
            for keyword in call.keywords
        ):
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
        ] or [
            keyword
            for keyword in call.keywords
            if keyword.arg not in ("target", "args", "daemon", "name")
        ]
        inner = ast.copy_location(ast.Call(target, [], keywords), call)
        return self.method_block(inner, target, call, scope)

    def called_object(self, call: ast.Call, scope: Scope) -> Block | None:
        """`pipe(...)`, `llm(...)` of LangChain."""
        if not self.may_be_object(call, scope):
            return None
        thing = self.called_thing(call, scope)
        name = f"{dotted_name(call.func)} {thing.argument}"
        if thing.kind == "pipeline" and not thing.task and re.search(r"reward|classif", name, re.I):
            self.note(call, scope, f"{LOOK_ALIKES['classifier']}, by its name")
            return None
        if thing.kind == "pipeline" or (thing.kind == "langchain" and call.args):
            return self.make(call, scope, "pipeline", "call", thing)
        if thing.kind == "classifier" and thing.task:
            self.note(call, scope, f"{LOOK_ALIKES['classifier']}: {thing.name}")
        return None

    def called_thing(self, call: ast.Call, scope: Scope) -> Thing:
        """What is called; of several kinds by a branch, the pipeline: vLLM's LLM is not called."""
        value = self.evaluator.value(call.func, self.evaluator.frame(scope))
        for option in options_of(plain(value)):
            thing = self.kinds.of(option)
            if thing.kind == "pipeline":
                return thing
        return self.kinds.of(value)

    def may_be_object(self, call: ast.Call, scope: Scope) -> bool:
        """Whether what is called may be a pipeline: a variable, in a file that tells of one."""
        name = dotted_name(call.func)
        if not name:
            return isinstance(call.func, (ast.Subscript, ast.Call))
        if name in scope.module.functions or name in scope.module.classes:
            return False
        if "." not in name and not self.is_variable(name, scope):
            return False
        return self.has_pipelines(scope.module) or PIPE_NAMES.search(name) is not None

    def has_pipelines(self, module: Module) -> bool:
        if module.path not in self.pipelines:
            self.pipelines[module.path] = (
                re.search(r"pipeline\(|\wPipeline\b", module.source.text) is not None
            )
        return self.pipelines[module.path]

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
        loops = [call for call in forwards if self.is_in_decode_loop(call, scope)]
        if loops and not has_optimizer(scope):
            thing = self.forward_thing(loops[-1], scope)
            self.found.blocks.append(self.make(loops[-1], scope, "loop", "loop", thing))
            return
        if is_training(scope):
            self.note(forwards[0], scope, "training, or a part of a network")
            return
        thing = self.forward_thing(forwards[0], scope)
        if scope.name.startswith("test_"):
            self.note(forwards[0], scope, "a test of a forward pass")
        elif self.is_read(scope, thing, forwards[0]):
            self.found.blocks.append(self.make(forwards[0], scope, "score", "score", thing))

    def forward_thing(self, call: ast.Call, scope: Scope) -> Thing:
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
            function = function.value
        return self.thing(function, scope)

    def is_forward(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call runs a language model once, by what is loaded, or by its name and its
        arguments."""
        name = dotted_name(call.func)
        last = name.rpartition(".")[2]
        if last in ("forward", "__call__"):
            name = name.rpartition(".")[0]
            last = name.rpartition(".")[2]
        if last[:1].isupper() or not (RUNS.search(last) or self.may_hold_model(name, scope)):
            return False
        callee = self.evaluator.value(call.func, self.evaluator.frame(scope))
        if any(
            isinstance(plain(option), (Function, Symbol, ClassValue))
            for option in options_of(callee)
        ):
            return False
        thing = self.forward_thing(call, scope)
        if thing.kind == "model":
            return True
        if not RUNS.search(last):
            return False
        if thing.kind == "classifier":
            self.note(call, scope, f"{LOOK_ALIKES['classifier']}: {thing.name}")
        names = {keyword.arg for keyword in call.keywords}
        is_named = bool(names & {"input_ids", "labels", "past_key_values", "inputs_embeds"})
        if thing.kind != "unknown":  # a caller may give a parameter another model than this wrapper
            return thing.kind == "own" and bool(thing.argument) and is_named
        is_fed = is_named or self.takes_inputs(call, scope)
        return (
            is_fed
            or is_asked_for_logits(call, scope)
            or (
                "token" in scope.module.source.text
                and re.search(r"input_ids|attention_mask", function_text(scope)) is not None
            )
        )

    def may_hold_model(self, name: str, scope: Scope) -> bool:
        """Whether a name is a variable, or an attribute of the object that a method belongs to."""
        head, _, rest = name.partition(".")
        if rest:
            return head == scope.self_name and "." not in rest
        is_imported = name in scope.module.imports and name not in scope.parameters
        return not is_imported and self.is_variable(name, scope)

    def is_in_decode_loop(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a forward pass stands in a loop that chooses a token and gives it to the model
        again."""
        position = start_of(call)
        for start, end in scope.loops:
            if start <= position <= end and self.feeds_itself(call, scope, (start, end)):
                chosen = [other for other in scope.calls if start <= start_of(other) <= end]
                return any(CHOOSES.search(called_name(other)) for other in chosen)
        return False

    @staticmethod
    def feeds_itself(call: ast.Call, scope: Scope, loop: tuple[Position, Position]) -> bool:
        """Whether what a call gives comes back to its arguments within a loop."""
        arguments = names_in(*call.args, *(keyword.value for keyword in call.keywords))
        function = dotted_name(call.func).partition(".")[0]
        bindings = [
            b
            for group in scope.bindings.values()
            for b in group
            if loop[0] <= b.position <= loop[1]
        ]
        bindings.sort(key=lambda binding: binding.position)
        reached = set[str]()
        for _ in range(2):
            for binding in bindings:
                head = binding.name.partition(".")[0]
                if binding.value is None or head == function:
                    continue
                is_output = start_of(binding.value) <= start_of(call) and end_of(call) <= end_of(
                    binding.value
                )
                if is_output or names_in(binding.value) & reached:
                    reached.add(head)
        return bool(reached & arguments)

    def is_read(self, scope: Scope, thing: Thing, forward: ast.Call) -> bool:
        """Whether a function reads probabilities or a loss out of a forward pass of a language
        model."""
        text = function_text(scope)
        is_language_model = any(GENERATES.search(load.name) for load in thing.loads)
        if not is_language_model and NO_LANGUAGE_MODEL.search(scope.qualname + thing.argument):
            return False
        is_labelled = "labels" in text or any(k.arg is None for k in forward.keywords)
        is_normalized = re.search(r"log_?softmax|logsumexp", text, re.IGNORECASE)
        is_last = re.search(r"logits[^\n]{0,40}\[[^\n]{0,40}-\s*1\b", text)
        reads = (
            is_normalized and re.search(r"gather|\blabels?\b|\[.*\]|max\(", text),
            re.search(r"\.loss\b|\[.loss.\]", text) and is_labelled,
            "softmax" in text and re.search(r"kl_?div|entropy|\.log\(\)", text),
            re.search(LOSSES, text),
            hands_on_logits(scope),
            is_last and LABELS.search(text),
        )
        return any(reads)

    # == Results ==

    def make(self, call: ast.Call, scope: Scope, library: str, form: str, thing: Thing,
             function: ast.Attribute | None = None) -> Block:  # fmt: skip
        source = call
        if form == "thread":
            keywords = [keyword for keyword in call.keywords if keyword.arg == "kwargs"]
            value = (
                self.evaluator.value(keywords[0].value, self.evaluator.frame(scope))
                if keywords
                else Dict({})
            )
            inner = plain(value)
            settings = inner if isinstance(inner, Dict) else Dict({}, (value,))
            if not keywords:
                settings = self.evaluator.keywords(call, self.evaluator.frame(scope))
        else:
            settings = self.evaluator.keywords(source, self.evaluator.frame(scope))
        receiver = ast.unparse(function.value) if function is not None else ast.unparse(call.func)
        return Block(scope.module, scope, call, library, form, settings, thing, receiver)

    def note(self, call: ast.Call, scope: Scope, reason: str) -> None:
        """Remember a call that looks like a block. There is no block of it: None."""
        line = scope.module.source.line(call.lineno)
        self.found.look_alikes.append(
            LookAlike(scope.module.path, line, ast.unparse(call.func)[:60], reason)
        )


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


def has_optimizer(scope: Scope) -> bool:
    return any(
        called_name(call) in ("backward", "zero_grad", "clip_grad_norm_") for call in scope.calls
    )


def is_training(scope: Scope) -> bool:
    """Whether a function trains, or is a part of a network."""
    if scope.name == "concatenated_forward":  # of DPO: a score where nothing trains
        trains = re.search(r"\.backward\(|Trainer\b", scope.module.source.text)
        return trains is not None
    if TRAINING.search(scope.name) or has_optimizer(scope):
        return True
    bases = (
        [dotted_name(base) for base in scope.owner.node.bases] if scope.owner is not None else []
    )
    return any(
        base.endswith(("Trainer", "nn.Module", "PreTrainedModel", "LightningModule"))
        for base in bases
    )


def function_text(scope: Scope) -> str:
    """The source of a scope."""
    lines = scope.module.source.text.split("\n")
    if not isinstance(scope.node, FUNCTIONS):
        return scope.module.source.text
    return "\n".join(lines[scope.node.lineno - 1 : scope.node.end_lineno])


def is_asked_for_logits(call: ast.Call, scope: Scope) -> bool:
    """Whether `.logits` of what a call gives is read at once, as only a language model has them."""
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Attribute) and node.attr == "logits" and node.value is call:
            return True
    return False


def hands_on_logits(scope: Scope) -> bool:
    """Whether logits leave a function: returned, yielded, or stored on its object."""
    bindings = [binding for group in scope.bindings.values() for binding in group]
    bindings.sort(key=lambda binding: binding.position)
    names = set[str]()
    for binding in bindings:
        node = binding.value
        if binding.kind == "call" and isinstance(node, ast.Call):  # parts.append(logits)
            node = ast.Tuple(node.args) if called_name(node) in ("append", "extend") else None
        if node is not None and holds_logits(node, names):
            names.add(binding.name)
    if any(name.startswith(f"{scope.self_name}.") for name in names if scope.self_name):
        return True
    return any(holds_logits(node, names) for node in (*scope.returns, *scope.yields))


def holds_logits(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression gives logits or what is computed of them, but not the choice of a
    token or a shape.   names: that hold logits."""
    if isinstance(node, ast.Call) and (CHOOSES.search(called_name(node)) or is_measure(node)):
        return False
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "device", "dtype"):
        return False
    is_attribute = isinstance(node, ast.Attribute) and node.attr == "logits"
    is_item = isinstance(node, ast.Subscript) and getattr(node.slice, "value", "") == "logits"
    if is_attribute or is_item or dotted_name(node) in names:
        return True
    return any(holds_logits(child, names) for child in ast.iter_child_nodes(node))


def is_measure(call: ast.Call) -> bool:
    return called_name(call) in ("len", "size")


def names_in(*nodes: ast.AST) -> set[str]:
    found = set[str]()
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found.add(part.id)
    return found
