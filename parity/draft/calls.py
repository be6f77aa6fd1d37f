"""Translates calls: loads, templates, tokenizers, generate, decode, vLLM, pipelines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence, Set
from dataclasses import replace

import libcst as cst

from parity.draft import run_time
from parity.draft.chats import CHAT, CHATS, Depths
from parity.draft.decisions import Decision, Decisions
from parity.draft.expressions import Expressions, NamesIn, Scope, kind_of, plain
from parity.draft.loads import (
    TOKENIZER_DROPPED,
    Load,
    keywords_of,
    left_to_load,
    part_of,
    transformers_load,
    vllm_load,
)
from parity.draft.observed import SCORED, Observed
from parity.draft.roles import (
    EVERY_TEXT,
    PLACES,
    Demote,
    Unsure,
    Value,
    assignment,
    code_of,
    constant,
    dotted,
    is_short,
    parse,
)
from parity.draft.settings import (
    NO_OPTION,
    POSSIBLE,
    GenerateOptions,
    Options,
    literal,
    mapping,
    sampling_params,
)

MOVES = ("to", "cuda", "cpu", "eval", "detach", "contiguous", "requires_grad_", "half", "float",
         "bfloat16", "tie_weights")  # fmt: skip
DTYPE_CALLS = {"half": "float16", "float": "float32", "bfloat16": "bfloat16"}
TEMPLATE_WORDS = {
    "conversation", "messages", "tokenize", "add_generation_prompt", "return_tensors",
    "return_dict", "enable_thinking", "tools", "continue_final_message", "padding",
    "return_attention_mask", "add_special_tokens", "return_assistant_tokens_mask",
}  # fmt: skip
TOKENIZER_WORDS = {
    "text", "return_tensors", "padding", "add_special_tokens", "return_attention_mask", "images",
    "return_token_type_ids", "truncation", "max_length", "videos", "padding_side",
}  # fmt: skip
SEEDS = ("torch.manual_seed", "set_seed", "transformers.set_seed", "torch.cuda.manual_seed",
         "torch.cuda.manual_seed_all", "torch.random.manual_seed")  # fmt: skip
OWN_TOKENS = "load() takes the tokenizer of its checkpoint, as it is"
# Keywords of generate that a request holds by itself.
BESIDE_IDS = ("attention_mask", "pixel_values", "image_grid_thw", "token_type_ids")
# Kinds of settings: a GenerationConfig of which the fields are known, and one that is not.
CONFIG, AT_RUN_TIME = "generation_config", "generation_config at run time"
CASTS = ("long", "int", "bool")
MISSING = "its meaning here is not known"
# Roles of what an engine answered.
DRAWN = (
    "results", "new", "outputs", "result", "new_row", "vllm_outputs", "vllm_output",
    "pipe_outputs", "pipe_output", "pipe_batch", "pipe_row", "pipe_chat", "pipe_message",
)  # fmt: skip
WHOLE = "[*{row}.prompt_token_ids, *{row}.token_ids]"
NEW = "list({row}.token_ids)"


def arguments(call: cst.Call, names: Sequence[str]) -> dict[str, cst.BaseExpression]:
    """Arguments by name; positional ones are called as in `names`. Raises Unsure for mappings."""
    found: dict[str, cst.BaseExpression] = {}
    rest = list(names)
    for arg in call.args:
        if arg.star:
            raise Unsure(f"`{code_of(call)}`", "what its mapping holds is not seen here")
        if arg.keyword is not None:
            found[arg.keyword.value] = arg.value
        elif rest:
            found[rest.pop(0)] = arg.value
        else:
            raise Unsure(f"`{code_of(call)}`", "it has more arguments than are known")
    return found


def is_dtype(arg: cst.Arg, place: int) -> bool:
    """Whether an argument of `.to(...)` is a dtype: `.to(device, dtype)`, `.to(torch.float32)`."""
    text = code_of(arg.value)
    if arg.keyword is not None:
        return arg.keyword.value == "dtype"
    return place == 1 or "dtype" in text or (text.startswith("torch.") and "device" not in text)


IN_ORDER = re.compile(r"lambda (\w+): int\(\1\.request_id\)")


def is_in_order(node: cst.Call) -> bool:
    """Whether vLLM's outputs are sorted as their requests are; not by texts ("10" is before "2"),
    and not the other way round."""
    keys = [arg.value for arg in node.args[1:] if arg.keyword and arg.keyword.value == "key"]
    is_of_key = len(node.args) == 2 and len(keys) == 1
    return is_of_key and IN_ORDER.fullmatch(code_of(keys[0])) is not None


class Calls(Expressions):
    seen: Observed
    ask: Decisions
    depths: Depths
    source: str
    stops: bool

    # What statements.py and module.py add.

    def function_call(self, node: cst.Call, scope: Scope) -> Value | None:
        raise NotImplementedError

    def loaded(self, load: Load, kind: str, scope: Scope) -> Value:
        raise NotImplementedError

    def variable(self, wanted: str, scope: Scope) -> str:
        raise NotImplementedError

    def settings_of(self, node: cst.BaseExpression, scope: Scope) -> dict[str, cst.BaseExpression]:
        raise NotImplementedError

    def note(self, text: str) -> None:
        raise NotImplementedError

    left: list[str]  # what the old code said of a load, and `load` decides; for a comment
    loads: list[Load]
    sources: list[str]  # where options come from that stand in one line; for a comment

    def word(self, name: str) -> str:
        raise NotImplementedError

    def criteria_of(self, node: cst.BaseExpression, scope: Scope) -> str:
        raise NotImplementedError

    def result_name(self, role: str, scope: Scope) -> str:
        raise NotImplementedError

    def call(self, node: cst.Call, scope: Scope) -> Value:
        """A call, translated once. Rows that it gives get a name in a statement of their own, so
        that whatever is drawn from them asks the engine once."""
        if node not in scope.calls:
            scope.calls[node] = self.named(self.called(node, scope), node, scope)
        return scope.calls[node]

    def named(self, value: Value, node: cst.Call, scope: Scope) -> Value:
        if value.role not in DRAWN or value.node is None or is_short(value.node):
            return value
        if node is scope.whole or not scope.has_room:  # it has a name, or is used once
            return value
        name = cst.Name(self.result_name(value.role, scope))
        scope.pending.append(cst.SimpleStatementLine([assignment(name, value.node)]))
        return replace(value, node=name)

    def called(self, node: cst.Call, scope: Scope) -> Value:
        name = dotted(node.func)
        if name == "len" and len(node.args) == 1:
            return self.length_of(node, scope)
        if name == "sorted" and is_in_order(node):
            value = self.translate(node.args[0].value, scope)
            if value.role == "vllm_outputs":
                return value  # results are in the order of their requests
        if name in ("torch.ones_like", "torch.ones") and self.is_of_ids(node, scope):
            return Value(None, "mask")
        made = self.made(node, name, scope) or self.function_call(node, scope)
        if made is not None:
            return made
        if isinstance(node.func, cst.Attribute) and name != "process_vision_info":
            found = self.method(node, node.func, scope)
            if found is not None:
                return found
        return self.called_value(node, scope) or self.others(node, scope)

    def is_of_ids(self, node: cst.Call, scope: Scope) -> bool:
        """Whether a tensor is as large as input ids."""
        values = [scope.find(name) for name in NamesIn.of(node)]
        return any(value is not None and value.role in ("inputs", "ids") for value in values)

    # == What is made ==

    def made(self, node: cst.Call, name: str, scope: Scope) -> Value | None:
        last = name.rpartition(".")[2]
        if last == "from_pretrained":
            return self.pretrained(node, name, scope)
        if last == "LLM" and scope.find(name) is None:
            return self.made_llm(node, scope)
        if last == "pipeline" and scope.find(name) is None:
            return self.made_pipeline(node, scope)
        if last == "SamplingParams":
            return self.made_params(node, scope)
        if last == "GenerationConfig":
            return self.made_config(node, scope)
        if last and last[0].isupper():
            part_of(last)  # raises for what the engine does not run
        if last in ("process_vision_info", "TextIteratorStreamer", "TextStreamer"):
            what = f"`{last}` is used"
            possible = "companions/streaming.py: stream(engine, requests, options)"
            raise Unsure(what, MISSING, possible if "Streamer" in last else "")
        return None

    def made_llm(self, node: cst.Call, scope: Scope) -> Value:
        other = ("tokenizer", "tokenizer_mode")
        words = [arg for arg in node.args if arg.keyword is None or arg.keyword.value not in other]
        dtype = self.word("vllm_dtype")
        is_free = not self.is_checkpoint_known
        load = vllm_load(node.with_changes(args=words), self.seen, dtype, is_free)
        said = keywords_of(node)
        self.note_tokenizer(said.get("tokenizer"), load, scope)
        if constant(said.get("tokenizer_mode", literal("auto"))) != "auto":
            self.note(f"LLM is told tokenizer_mode={code_of(said['tokenizer_mode'])}; {OWN_TOKENS}")
        return self.loaded(load, "llm", scope)

    def note_bare(self, base: Value) -> None:
        """Note that a prompt is made by a tokenizer of another checkpoint than all models."""
        path = base.details.get("path")
        if "bare" not in base.details or path is None or constant(path) in self.seen.models:
            return
        if code_of(path) not in {code_of(load.path) for load in self.loads}:
            self.note(f"a prompt is made by the tokenizer of {code_of(path)}; {OWN_TOKENS}")

    def note_tokenizer(self, node: cst.BaseExpression | None, load: Load, scope: Scope) -> None:
        """Note a tokenizer of another checkpoint than the model's."""
        if node is None or constant(node) is None:
            return
        path = self.translate(node, scope).details.get("path", node)
        if code_of(path) != code_of(load.path):
            self.note(
                f"the tokenizer is {code_of(path)}, the model {code_of(load.path)}; {OWN_TOKENS}"
            )

    def made_config(self, node: cst.Call, scope: Scope) -> Value:
        made = self.with_plain(node, scope)
        if any(arg.keyword is None for arg in node.args):
            return Value(made, "settings", AT_RUN_TIME)
        return Value(made, "settings", CONFIG, details=self.plain_all(arguments(node, ()), scope))

    def pretrained(self, node: cst.Call, name: str, scope: Scope) -> Value | None:
        owner = name.rpartition(".")[0].rpartition(".")[2]
        if owner == "GenerationConfig":
            return Value(self.with_plain(node, scope), "settings", AT_RUN_TIME)
        if owner in ("PeftModel", "AutoPeftModelForCausalLM"):
            what = f"`{code_of(node)}` loads an adapter"
            raise Unsure(what, "it is not written by itself", "load(..., adapters={...})")
        if self.is_remote(node, owner):
            what = f"`{code_of(node)}` runs code of the checkpoint"
            raise Unsure(
                what,
                "gen_engine loads transformers' own classes",
                "leave it; or use a checkpoint of the same model whose class transformers has",
            )
        part = part_of(owner)
        if not part:
            return None
        if part == "model":
            load = transformers_load(node, self.seen, self.word("engine_dtype"))
            return self.loaded(load, "model", scope)
        path = node.args[0].value
        details = {"path": self.plain_node(path, scope)}
        self.tokenizer_words(node)
        if part == "processor":
            details |= self.pixel_words(node, scope)
        return Value(scope.find_engine(), "engine", part, details=details)

    def tokenizer_words(self, node: cst.Call) -> None:
        """Say what a tokenizer or processor is told and the engine's own is not."""
        said = keywords_of(node)
        self.left += left_to_load(said, TOKENIZER_DROPPED)
        known = TOKENIZER_DROPPED | {"min_pixels", "max_pixels"}
        for name, value in said.items():
            if name not in known and constant(value) is not None:
                self.note(f"`{code_of(node.func)}` is told {name}={code_of(value)}; {OWN_TOKENS}")

    def is_remote(self, node: cst.Call, owner: str) -> bool:
        return owner == "AutoModel" and any(
            arg.keyword is not None
            and arg.keyword.value == "trust_remote_code"
            and constant(arg.value) is not False
            for arg in node.args
        )

    def pixel_words(self, node: cst.Call, scope: Scope) -> dict[str, cst.BaseExpression]:
        found = {}
        for arg in node.args:
            if arg.keyword is not None and arg.keyword.value in ("min_pixels", "max_pixels"):
                found[arg.keyword.value] = self.plain_node(arg.value, scope)
        return found

    def made_pipeline(self, node: cst.Call, scope: Scope) -> Value:
        said = arguments(node, ("task", "model"))
        task = constant(said.pop("task", None))
        if task not in ("text-generation", NotImplemented):
            raise Unsure(f"a pipeline for {task}", "only text-generation is drafted")
        model = said.pop("model", None)
        extra = said.pop("model_kwargs", None)
        if extra is not None:
            said |= self.mapping_words(extra, scope)
        if model is None:
            raise Unsure("the pipeline names no model", "the task chooses it", "name a model")
        value = self.translate(model, scope)
        if value.role == "engine":
            return replace(value, kind="pipeline")
        words = [cst.Arg(model)]
        words += [cst.Arg(v, cst.Name(k)) for k, v in said.items() if k != "tokenizer"]
        call = cst.Call(cst.Name("load"), words)
        load = transformers_load(call, self.seen, self.word("engine_dtype"))
        self.note_tokenizer(said.get("tokenizer"), load, scope)
        return self.loaded(load, "pipeline", scope)

    def made_params(self, node: cst.Call, scope: Scope) -> Value:
        said = self.plain_all(self.seen_words(node, ("n",), scope), scope)
        options = sampling_params(said)
        details = {} if options.samples is None else {"samples": options.samples}
        return Value(options.as_dict(), "settings", "sampling_params", details=details)

    def plain_all(
        self, said: dict[str, cst.BaseExpression], scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        return {
            name: self.plain_node(node, scope)
            for name, node in said.items()
            if name
            not in (
                "tokenizer",
                "pad_token_id",
                "streamer",
                "stopping_criteria",
                "logits_processor",
            )
        }

    # == Counting ==

    def length_of(self, node: cst.Call, scope: Scope) -> Value:
        value = self.translate(node.args[0].value, scope)
        if value.role == "ids_row":
            return replace(value, role="length", node=None)
        if value.role in ("new_row",) and value.node is not None:
            self.refuse_padded(value, node)
            return plain(parse("{n}.completion_tokens", n=value.node))
        if value.details.get("row") is not None:
            return plain(parse("{n}.completion_tokens", n=value.details["row"]))
        if value.role == "completions" and value.node:
            return plain(parse("len({n})", n=self.samples_of(value.node)))
        if value.role in ("request_list", "results", "new", "vllm_outputs") and value.node:
            return plain(parse("len({n})", n=value.node))
        return self.others(node, scope)

    def refuse_padded(self, row: Value, node: cst.Call) -> None:
        """A row of a batch has padding behind it, which a result has not."""
        if "many" in row.details:
            what = f"`{code_of(node)}` of a row of a batch"
            raise Unsure(what, "the old row has padding behind it", "result.token_ids has none")

    # == Methods ==

    def method(self, node: cst.Call, func: cst.Attribute, scope: Scope) -> Value | None:
        name = func.attr.value
        if name == "append" and self.appended(node, func, scope):
            return plain(self.appended_node(node, func, scope))
        base = self.translate(func.value, scope)
        if base.role == "engine":
            return self.engine_method(base, name, node, scope)
        if base.role in ("inputs", "ids", "ids_row", "mask", "results", "result") and name in MOVES:
            return base
        if base.role == "ids" and name in ("ne", "not_equal"):
            return replace(base, role="mask")
        if base.role == "mask" and name in CASTS:
            return base
        if base.role in ("shape", "ids", "mask") and name == "size":
            return replace(base, role="length")
        if base.role in ("outputs", "new", "new_row", "scores") and name in ("cpu", "detach", "to"):
            return base
        if name == "tolist" and base.role == "new_row" and base.node is not None:
            self.refuse_padded(base, node)
            row = parse("list({n}.token_ids)", n=base.node)
            return Value(row, "plain", "list", details={"row": base.node})
        return None

    def appended(self, node: cst.Call, func: cst.Attribute, scope: Scope) -> bool:
        """Whether `name.append(x)` makes a list of requests of `name`."""
        if not isinstance(func.value, cst.Name) or len(node.args) != 1:
            return False
        return self.translate(node.args[0].value, scope).role == "request"

    def appended_node(
        self, node: cst.Call, func: cst.Attribute, scope: Scope
    ) -> cst.BaseExpression:
        name = func.value.value if isinstance(func.value, cst.Name) else ""
        value = self.translate(node.args[0].value, scope)
        if name in self.demoted:
            return node.with_changes(args=[cst.Arg(self.as_text(value))])
        holder = scope
        while holder.is_inline and holder.outer is not None:
            holder = holder.outer
        holder.env[name] = Value(cst.Name(name), "request_list", name=name)
        assert value.node is not None
        return node.with_changes(args=[cst.Arg(value.node)])

    def engine_method(self, base: Value, name: str, node: cst.Call, scope: Scope) -> Value | None:
        if base.kind in ("tokenizer", "processor"):
            return self.tokenizer_method(base, name, node, scope)
        if base.kind == "llm":
            return self.llm_method(base, name, node, scope)
        if name in MOVES:
            return self.moved_model(base, name, node, scope)
        if name == "generate":
            return self.generated(base, node, scope)
        if name == "chat":
            what = "`model.chat` is code of the checkpoint"
            possible = "record the prompt that it renders, and give it as {'prompt': ...}"
            raise Unsure(what, "gen_engine does not run it", possible)
        if name == "compute_transition_scores":
            return self.transition_scores(base, node, scope)
        raise Unsure(f"`{code_of(node.func)}` is called", "the model is out of reach on vLLM")

    def moved_model(self, base: Value, name: str, node: cst.Call, scope: Scope) -> Value:
        """A device is left to `load`, a dtype is told it."""
        casts = [literal(DTYPE_CALLS[name])] if name in DTYPE_CALLS else []
        casts += [arg.value for place, arg in enumerate(node.args) if is_dtype(arg, place)]
        others = [code_of(arg) for place, arg in enumerate(node.args) if not is_dtype(arg, place)]
        if name in PLACES and (others or not casts):
            self.left.append(f".{name}({', '.join(text.strip(', ') for text in others)})")
        return self.cast(base, node, casts[0], scope) if casts else base

    def cast(self, base: Value, node: cst.Call, dtype: cst.BaseExpression, scope: Scope) -> Value:
        raise NotImplementedError

    def called_value(self, node: cst.Call, scope: Scope) -> Value | None:
        """`tokenizer(...)`, `pipe(...)`, `model(...)`."""
        if not isinstance(node.func, (cst.Name, cst.Attribute, cst.Call)):
            return None
        base = self.translate(node.func, scope)
        if base.role != "engine":
            return None
        if base.kind == "tokenizer" and "return_tensors" not in self.words(node):
            return None  # lists of ids, which are counted or looked at: no input of a model
        if base.kind in ("tokenizer", "processor"):
            return self.tokenized(base, node, scope)
        if base.kind == "pipeline":
            return self.piped(base, node, scope)
        what = f"`{code_of(node)}` reads the model's logits"
        possible = self.seen.instead or f"{SCORED}; else engine.bare()"
        raise Unsure(what, "a distribution is no text", possible)

    # == Templates ==

    def tokenizer_method(
        self, base: Value, name: str, node: cst.Call, scope: Scope
    ) -> Value | None:
        if name == "apply_chat_template":
            return self.rendered(base, node, scope)
        if name in ("decode", "batch_decode"):
            return self.decode(base, name, node, scope)
        if name == "encode":
            said = self.words(node)
            if "return_tensors" in said:
                value = self.tokenized(base, node, scope)
                return replace(value, role="ids")
        if name in ("to", "eval"):
            return base
        if base.node is None:
            raise Unsure(f"`{code_of(node)}`", "no model is loaded from the same checkpoint here")
        args = [self.with_plain(arg, scope) for arg in node.args]
        owner = self.tokenizer_node(base)
        return plain(node.with_changes(func=cst.Attribute(owner, cst.Name(name)), args=args))

    def words(self, node: cst.Call) -> dict[str, cst.BaseExpression]:
        return arguments(node, ("text",))

    def rendered(self, base: Value, node: cst.Call, scope: Scope) -> Value:
        self.note_bare(base)
        said = arguments(node, ("messages",))
        messages = said.get("messages", said.get("conversation"))
        if messages is None:
            raise Unsure(f"`{code_of(node)}`", "its messages are not seen")
        is_padded = constant(said.get("padding", literal(False))) is not False
        many = is_padded and self.are_several(messages, scope)
        many = many or self.depths.of(messages, scope.function) == CHATS
        tokenizes = said.get("tokenize")
        default = base.kind != "processor"  # a processor's default is a text
        is_text = constant(tokenizes) is False or (tokenizes is None and not default)
        old = self.old_call(base, node, scope)
        is_kept = EVERY_TEXT in self.demoted if is_text else self.are_ids_for_vllm(said)
        if is_kept:
            if old is None:
                what = "a rendered prompt is used as it is"
                raise Unsure(what, "no model is loaded from the same checkpoint here")
            return plain(old, "text" if is_text and not many else "list")
        chat_node = self.plain_node(messages, scope)
        if code_of(messages) in self.copied:
            chat_node = parse("list({n})", n=chat_node)
        fields = {"messages": cst.Name("chat") if many else chat_node}
        fields |= self.request_words(said, scope)
        chat = self.chat_options(said, base, scope)
        if chat:
            fields["chat"] = mapping(chat)
        is_silent = constant(chat.get("enable_thinking", literal(None))) is True
        is_silent = is_silent and "enable_thinking" not in said
        request = mapping(fields, {"chat": THINKS} if is_silent and not scope.is_inline else None)
        if is_silent and scope.is_inline:
            self.sources.append(f"enable_thinking: {THINKS}")
        if many:
            requests = parse("[{request} for chat in {chats}]", request=request, chats=chat_node)
        else:
            requests = cst.List([cst.Element(request)])
        if is_text:
            details = {"messages": messages}
            role = "request_list" if many else "request"
            return Value(requests if many else request, role, old=old, details=details)
        role = "inputs"
        returns_dict = said.get("return_dict")
        if returns_dict is not None and constant(returns_dict) is False:
            role = "ids"
        details = {"pixels": node} if base.kind == "processor" else {}
        return Value(requests, role, is_single=not many, details=details)

    def are_ids_for_vllm(self, said: dict[str, cst.BaseExpression]) -> bool:
        """Whether a template tokenizes to a list of ids, in a file that gives such to vLLM."""
        is_list = constant(said.get("return_dict")) is False and "return_tensors" not in said
        return is_list and "prompt_token_ids" in self.source

    def old_call(self, base: Value, node: cst.Call, scope: Scope) -> cst.BaseExpression | None:
        if base.node is None:
            return None
        owner = self.tokenizer_node(base)
        args = [self.with_plain(arg, scope) for arg in node.args]
        func = cst.Attribute(owner, cst.Name("apply_chat_template"))
        return node.with_changes(func=func, args=args)

    def request_words(
        self, said: dict[str, cst.BaseExpression], scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        found = {}
        if "tools" in said and constant(said["tools"]) is not None:
            found["tools"] = self.plain_node(said["tools"], scope)
        final = said.get("continue_final_message")
        if final is not None and constant(final) is not False:
            found["continue_final"] = self.plain_node(final, scope)
        return found

    def chat_options(
        self, said: dict[str, cst.BaseExpression], base: Value, scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        chat: dict[str, cst.BaseExpression] = {}
        if "enable_thinking" in said:
            if constant(said["enable_thinking"]) is not False:
                chat["enable_thinking"] = self.plain_node(said["enable_thinking"], scope)
        elif not self.is_checkpoint_known and base.node is not None:
            thinks = self.word("thinks_unasked") + "({owner})"
            chat["enable_thinking"] = parse(thinks, owner=self.tokenizer_node(base))
        elif self.seen.thinking():
            chat["enable_thinking"] = literal(True)
        prompt = said.get("add_generation_prompt")
        if "continue_final" not in said and "continue_final_message" not in said:
            if prompt is None:
                chat["add_generation_prompt"] = literal(False)
            elif constant(prompt) is not True:
                chat["add_generation_prompt"] = self.plain_node(prompt, scope)
        if "chat_template" in said:
            chat["template"] = self.plain_node(said["chat_template"], scope)
        further = {n: v for n, v in said.items() if n not in TEMPLATE_WORDS | {"chat_template"}}
        if further:
            chat["kwargs"] = mapping(self.plain_all(further, scope))
        return chat

    # == Tokenizers ==

    def tokenized(self, base: Value, node: cst.Call, scope: Scope) -> Value:
        self.note_bare(base)
        said = self.words(node)
        for name in said:
            if name not in TOKENIZER_WORDS:
                raise Unsure(f"`{code_of(node)}` is told {name}", MISSING)
        if "videos" in said and constant(said["videos"]) is not None:
            what = f"`{code_of(node)}` takes videos"
            raise Unsure(what, "videos are not drafted", "companions/video.py")
        longest = self.longest_prompt(base, said, node, scope)
        text = said.get("text")
        if text is None:
            raise Unsure(f"`{code_of(node)}`", "its text is not seen")
        value = self.translate(text, scope)
        requests = self.requests_of(value, text, said, base, scope)
        images = said.get("images")
        if images is not None and constant(images) is not None:
            requests = self.with_images(requests, images, base, scope)
        if longest is None:
            return requests
        return replace(requests, details={**requests.details, "longest": longest})

    def longest_prompt(
        self, base: Value, said: dict[str, cst.BaseExpression], node: cst.Call, scope: Scope
    ) -> cst.BaseExpression | None:
        """How many tokens a prompt has at most, of a tokenizer that cuts longer ones; None where
        none is cut, or where generate does not see what says how many. Raises Unsure."""
        truncation = said.get("truncation")
        if truncation is None or constant(truncation) in (False, None):
            return None
        limit = constant(said.get("max_length"))
        longest = max((len(row.get("prompt_ids", ())) for row in self.seen.rows), default=0)
        if isinstance(limit, int) and longest >= limit:
            what = f"`{code_of(node)}` cuts prompts that are too long"
            why = "the goldens may show cut prompts"
            raise Unsure(what, why, "cut prompt_token_ids as the old code did")
        most = said.get("max_length", literal(None))
        words = "model_max_length" if constant(most) is None else code_of(most)
        is_refused = isinstance(limit, int) or self.generates(scope)
        self.note(
            f"the tokenizer cut prompts of more than {words} tokens, which no golden shows; the "
            f"draft {'refuses those' if is_refused else 'neither cuts nor refuses those'}"
        )
        if not is_refused:
            return None
        if constant(most) is not None:
            return self.plain_node(most, scope)
        part = ".tokenizer" if base.kind == "processor" else ""
        code = f"min({{tokenizer}}{part}.model_max_length, 2**63 - 1)"
        return parse(code, tokenizer=self.tokenizer_node(base))

    def generates(self, scope: Scope) -> bool:
        """Whether the function itself calls generate."""
        raise NotImplementedError

    def requests_of(
        self,
        value: Value,
        text: cst.BaseExpression,
        said: dict[str, cst.BaseExpression],
        base: Value,
        scope: Scope,
    ) -> Value:
        """The list of requests that a tokenizer makes of what it is given."""
        special = said.get("add_special_tokens")
        adds = constant(special) is not False
        if value.role == "request" and value.node is not None:
            if adds and self.keeps_double_bos():
                return self.raw_requests(self.as_text(value), False, None, scope)
            return Value(
                cst.List([cst.Element(value.node)]),
                "inputs",
                is_single=True,
                old=value.old,
                count=None if value.old is None else self.count_of(value.old, special),
            )
        if value.role == "request_list" and value.node is not None:
            if adds and self.keeps_double_bos():
                return self.raw_requests(self.as_text(value), True, None, scope)
            return Value(value.node, "inputs", is_single=value.is_single)
        node = self.as_plain(value, text, scope)
        is_list = self.is_list(value, text, said)
        if special is None or constant(special) is True:
            special = None
        elif self.is_checkpoint_known and not self.seen.adds_special_tokens():
            special = None  # there are none
        if special is not None:
            special = self.plain_node(special, scope)
        return self.raw_requests(node, is_list, self.ids_of(base, special), scope)

    def ids_of(self, base: Value, special: cst.BaseExpression | None) -> str | None:
        """Code that tokenizes `{n}` as a call does that says add_special_tokens; None where it adds
        them, as the engine does to a "prompt"."""
        if special is None:
            return None
        owner = base if base.details.get("bare") else replace(base, kind="tokenizer")
        tokenizer = code_of(self.tokenizer_node(owner))
        return f'{tokenizer}({{n}}, add_special_tokens={code_of(special)})["input_ids"]'

    def keeps_double_bos(self) -> bool:
        """Whether rendered text is tokenized as a raw prompt, with the tokenizer's special tokens.

        Raises Demote where run time decides the checkpoint: whether its tokenizer adds a second BOS
        no golden shows, so that rendered prompts stay the texts that they were."""
        if not self.is_checkpoint_known:
            raise Demote(EVERY_TEXT)
        if not self.seen.has_double_bos():
            return False
        question = (
            "The rendered chat is tokenized again with special tokens, so that the goldens' "
            "prompts begin with two BOS. Keep both, or render it properly?"
        )
        return self.ask.choose(Decision("double_bos", question, ("keep", "one"))) == "keep"

    def raw_requests(
        self, node: cst.BaseExpression, is_list: bool, ids: str | None, scope: Scope
    ) -> Value:
        """Requests of text that is no chat.   ids: what tokenizes `{n}`, where the engine's own way
        is another."""
        if isinstance(node, cst.List) and len(node.elements) == 1:
            [element] = node.elements
            if isinstance(element, cst.Element):
                node, is_list = element.value, False
        if is_list:
            if isinstance(node, cst.Name) and self.may_be_text(node.value, scope):
                node = parse("([{n}] if isinstance({n}, str) else {n})", n=node)
            request = raw_request(cst.Name("prompt"), ids)
            made = parse("[{request} for prompt in {node}]", request=request, node=node)
            return Value(made, "inputs")
        count = None
        if isinstance(node, (cst.Name, cst.Attribute)):
            count = parse(f"len({ids})", n=node) if ids else self.count_of(node, None)
        request = cst.List([cst.Element(raw_request(node, ids))])
        return Value(request, "inputs", is_single=True, count=count)

    def may_be_text(self, name: str, scope: Scope) -> bool:
        """Whether a variable that is taken for a list of texts may be one text, too, as tokenizers
        and vLLM take them: a parameter of which nothing says more."""
        value = scope.find(name)
        return name in self.parameters(scope) and (value is None or not value.kind)

    def count_of(
        self, text: cst.BaseExpression, special: cst.BaseExpression | None
    ) -> cst.BaseExpression | None:
        """How many tokens a text has.   special: what the old code says of add_special_tokens."""
        words = "" if special is None else f", add_special_tokens={code_of(special)}"
        engine = self.current_engine()
        if engine is None:
            return None
        return parse(f'len({{e}}.tokenizer({{n}}{words})["input_ids"])', e=engine, n=text)

    def current_engine(self) -> cst.BaseExpression | None:
        raise NotImplementedError

    def is_list(
        self, value: Value, text: cst.BaseExpression, said: dict[str, cst.BaseExpression]
    ) -> bool:
        kind = value.kind or kind_of(text)
        if not kind and isinstance(text, cst.Name):
            kind = self.seen.argument_kind(text.value)
        if not kind:
            return "padding" in said and constant(said["padding"]) is not False
        return kind == "list"

    # == Images ==

    def with_images(
        self, requests: Value, images: cst.BaseExpression, base: Value, scope: Scope
    ) -> Value:
        given = self.plain_node(images, scope)
        if not requests.is_single or not isinstance(requests.node, cst.List):
            return self.with_image_each(requests, given, base)
        if not isinstance(given, (cst.List, cst.Name, cst.Attribute)):
            given = parse("[{given}]", given=given)
        if isinstance(given, cst.Name) and self.seen.argument_kind(given.value) != "list":
            kind = scope.find(given.value)
            if kind is None or kind.kind != "list":
                given = parse("[{given}]", given=given)
        request = requests.node.elements[0].value
        if not isinstance(request, (cst.Dict, cst.Name)):
            raise Unsure("images beside a prompt", MISSING)
        given = self.as_they_lie(given)
        parts = image_words(given, base)
        node = cst.parse_expression("[{**" + code_of(request) + ", " + ", ".join(parts) + "}]")
        if isinstance(request, cst.Dict):
            inner = code_of(request).strip()[1:-1].rstrip().rstrip(",")
            node = cst.parse_expression("[{" + inner + ", " + ", ".join(parts) + "}]")
        return replace(requests, node=node, details={"pixels": given}, count=None)

    def with_image_each(self, requests: Value, images: cst.BaseExpression, base: Value) -> Value:
        """Requests of a batch, each with its image. Raises Unsure unless each row had one."""
        if requests.node is None or not self.seen.has_image_each():
            raise Unsure("images of a batch", "the goldens' rows do not hold one image each")
        words = ", ".join(image_words(cst.parse_expression("image"), base))
        node = parse(
            "[{**request, " + words + "} for request, image in zip({rows}, {images}, strict=True)]",
            rows=requests.node,
            images=self.as_they_lie(images),
        )
        return replace(requests, node=node, details={"pixels": images}, count=None)

    def as_they_lie(self, images: cst.BaseExpression) -> cst.BaseExpression:
        """The images as the processor was given them: the engine turns upright what has EXIF."""
        question = (
            "The engine turns images upright as their EXIF says; nothing in the old code does. "
            "Keep them as they lie?"
        )
        if self.ask.choose(Decision("exif", question, ("keep", "turn"))) == "turn":
            return images
        if isinstance(images, cst.List):
            elements = [
                e.with_changes(value=parse(self.word("as_it_lies") + "({n})", n=e.value))
                for e in images.elements
            ]
            return images.with_changes(elements=elements)
        return parse(f"[{self.word('as_it_lies')}(image) for image in {{n}}]", n=images)

    generated_names: set[str]
    waiting: dict[str, str]
    copied: set[str]

    # == Generate ==

    def generated(self, base: Value, node: cst.Call, scope: Scope) -> Value:
        requests, said = self.generate_words(node, scope)
        self.waiting.clear()
        returns = constant(said.get("return_dict_in_generate"))
        if base.node is None or requests.node is None:
            raise Unsure(f"`{code_of(node)}`", "its model or its prompts are not seen")
        self.refuse_batches()
        wants_scores = any(
            constant(said.get(name)) is True for name in ("output_scores", "output_logits")
        )
        criteria = said.pop("stopping_criteria", None)
        if criteria is not None and constant(criteria) is not None:
            raise Unsure(
                f"`stopping_criteria={code_of(criteria)}`",
                "what it stops at is code of the old function",
                self.criteria_of(criteria, scope),
            )
        of_config: Set[str] = set()
        if "generation_config" in said:
            config = self.config_words(said.pop("generation_config"), scope)
            of_config = {name for name in config if not name.startswith("**")} - said.keys()
            said = {**config, **said}
        options = self.generate_options(said, requests, base.node, of_config, scope)
        self.add_seed(options, scope)
        if "longest" in requests.details:
            options.add_beside("max_prompt_tokens", requests.details["longest"])
        verb = "generate_vlm_batch" if "pixels" in requests.details else "generate_text_batch"
        if (wants_scores or options.whole is not None) and self.reads_scores(scope):
            self.add_logprobs(options)
        made = self.call_of(base.node, verb, requests.node, options.as_dict(), scope)
        made = self.all_samples(made, options, requests.is_single)
        keeps = {"keeps_stop": literal(True)} if options.keeps_stop else {}
        if isinstance(self.last_options, cst.Name) and not options.stop:
            keeps["options"] = self.last_options
        if options.samples is not None or not requests.is_single:
            keeps["many"] = literal(True)
        role = "outputs" if returns is True else "results"
        return Value(made, role, details=keeps)

    def generate_options(
        self,
        said: dict[str, cst.BaseExpression],
        requests: Value,
        engine: cst.BaseExpression,
        of_config: Set[str],
        scope: Scope,
    ) -> Options:
        """of_config: what of it a GenerationConfig says."""
        unmasked = self.unmasked_words(said, scope)
        said = self.plain_generate(said, scope)
        is_free = not self.is_checkpoint_known
        words = run_time.said_words({**unmasked, **said}, of_config)
        settings = parse(self.word("checkpoint_settings") + "({e}" + words + ")", e=engine)
        stars = [name for name in said if name.startswith("**")]
        if not stars:
            read = settings if is_free else None
            return self.named_options(said, requests, read, of_config, scope)
        run_time.refuse_unlisted(self.seen, self.source, ", ".join(stars), is_free)
        for name in run_time.without_option(self.source):
            self.note(
                f"`{', '.join(stars)}` may hold {name}, for which the draft raises, because "
                f"{NO_OPTION} ({POSSIBLE[name]})"
            )
        if run_time.is_key("max_length", self.source):
            self.note(
                f"`{', '.join(stars)}` may hold max_length, for which the draft raises, because it "
                "counts the prompt: say max_new_tokens"
            )
        function = self.word("generation_options")
        if is_free:
            text = f"{function}(**{code_of(settings)})"
            return self.run_time_options(cst.parse_expression(text))
        call = cst.parse_expression(function + keywords_text(said, stars))
        inherited = [f"{k}={v}" for k, v in self.seen.settings.items() if not k.endswith("_id")]
        if inherited:
            question = (
                "The keywords are known at run time only, and what they leave out comes from the "
                f"checkpoint: {', '.join(inherited)}. Keep it?"
            )
            self.ask.choose(Decision("inherited", question, ("keep",)))
        return self.run_time_options(call)

    def unmasked_words(
        self, said: dict[str, cst.BaseExpression], scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        """Of a call without a mask: that it has none, and what it pads with. generate then hides
        the pad token in its prompt."""
        if said.pop("attention_mask", None) is None:
            return {}
        words: dict[str, cst.BaseExpression] = {"attention_mask": literal(None)}
        if "pad_token_id" in said:
            with contextlib.suppress(Unsure):  # of the model: the checkpoint's own is asked
                words["pad_token_id"] = self.plain_node(said["pad_token_id"], scope)
        return words

    def named_options(
        self,
        said: dict[str, cst.BaseExpression],
        requests: Value,
        settings: cst.BaseExpression | None,
        of_config: Set[str],
        scope: Scope,
    ) -> Options:
        """Options of a call that names its keywords.   settings: what it and the checkpoint say,
        where run time decides which one that is."""
        name = cst.Name(self.variable("settings", scope)) if settings and scope.has_room else None
        optional = {one for one in self.parameters(scope) if self.may_be_none(one, scope)}
        read = name or settings
        builder = GenerateOptions(said, self.seen, self.ask, read, optional, of_config)
        options = builder.build(requests.count)
        if name is not None and settings is not None:
            scope.pending.append(cst.parse_statement(f"{name.value} = {code_of(settings)}\n"))
        for text in builder.notes:
            self.note(text)
        return options

    is_checkpoint_known: bool  # whether all that is loaded are checkpoints of the goldens

    def run_time_options(self, call: cst.BaseExpression) -> Options:
        """Options that are made at run time: whatever the draft's function takes may be among
        them."""
        names = run_time.keywords(self.seen, self.source, not self.is_checkpoint_known)
        return Options(
            whole=call,
            keeps_stop="stop_strings" in names,
            fields={"temperature": literal(0.0)},
            samples=cst.Name("n") if "num_return_sequences" in names else None,
        )

    def reads_scores(self, scope: Scope) -> bool:
        raise NotImplementedError

    def add_logprobs(self, options: Options) -> None:
        """The old scores are those after all processors; the engine's are the model's own."""
        is_raw = self.seen.values("sampling", "processors") in ([], [[]])
        penalties = self.seen.values("sampling", "repetition_penalty")
        if not is_raw or penalties not in ([], [1.0], [1]) or self.seen.is_sampled:
            raise Unsure(
                "the scores of generate are read",
                "they are those after penalties and temperature, the engine's are the model's own",
                "logprobs of an unpenalised greedy call; or companions/rollout.py: processed",
            )
        options.add_beside("logprobs", literal(0))

    def transition_scores(self, base: Value, node: cst.Call, scope: Scope) -> Value:
        said = arguments(node, ("sequences", "scores", "beam_indices"))
        if constant(said.get("normalize_logits")) is not True:
            raise Unsure(f"`{code_of(node)}`", "scores are log-probabilities only if normalized")
        rows = self.translate(said["sequences"], scope)
        if rows.role != "results" or rows.node is None:
            raise Unsure(f"`{code_of(node)}`", MISSING)
        made = parse(
            "[{torch}.tensor(result.logprobs) for result in {rows}]",
            torch=cst.Name(self.word("torch")),
            rows=rows.node,
        )
        return plain(made, "list")

    def refuse_batches(self) -> None:
        if self.seen.has_masked_bos():
            raise Unsure(
                "generate masks a token of the prompt",
                "it is given no mask, and the BOS is the pad id",
                'give "prompt_token_ids" without it, or pass the mask and record again',
            )
        if self.seen.is_padded_right():
            raise Unsure(
                "the goldens' batches are padded on the right",
                "the model then goes on after padding, and the engine pads on the left",
                "draft it, then accept the change of shorter rows; or record with one row a batch",
            )
        if self.seen.is_unmasked():
            raise Unsure(
                "padding is read as text, without a mask",
                "the engine masks it",
                "accept the change, or record with one row a batch",
            )

    def plain_generate(
        self, said: dict[str, cst.BaseExpression], scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        dropped = ("pad_token_id", "tokenizer")
        return {
            name: self.plain_node(node, scope) for name, node in said.items() if name not in dropped
        }

    def config_words(self, node: cst.BaseExpression, scope: Scope) -> dict[str, cst.BaseExpression]:
        """What a GenerationConfig says: its keywords, or a mapping of run time."""
        value = self.translate(node, scope)
        if value.role not in ("plain", "settings") or value.kind == "sampling_params":
            raise Unsure(f"`generation_config={code_of(node)}`", "what it holds is not seen here")
        if value.kind == CONFIG:
            return {name: one for name, one in value.details.items() if constant(one) is not None}
        fields = parse("{config}.to_diff_dict()", config=node)
        if isinstance(node, cst.Name) and self.may_be_none(node.value, scope):
            text = "({fields} if {config} is not None else {})"
            fields = parse(text, fields=fields, config=node)
        return {f"**{code_of(node)}": fields}

    def parameters(self, scope: Scope) -> set[str]:
        raise NotImplementedError

    def may_be_none(self, name: str, scope: Scope) -> bool:
        raise NotImplementedError

    def generate_words(
        self, node: cst.Call, scope: Scope
    ) -> tuple[Value, dict[str, cst.BaseExpression]]:
        """The requests of a call of generate, and its other keywords."""
        said = self.all_words(node, ("inputs", "generation_config"), scope)
        given = [said.pop(name) for name in ("input_ids", "inputs") if name in said]
        is_unmasked = constant(said.get("attention_mask", literal(None))) is None
        for name in BESIDE_IDS:
            said.pop(name, None)
        if is_unmasked:
            said["attention_mask"] = literal(None)
        requests = self.translate(given[0], scope) if given else None
        if requests is None or requests.role not in ("inputs", "ids"):
            raise Unsure(f"`{code_of(node)}`", "where its input ids come from is not seen")
        return requests, said

    def all_words(
        self, node: cst.Call, names: Sequence[str], scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        """Arguments by name, those of mappings, too; `**x` of one that run time makes."""
        words = [arg for arg in node.args if arg.star != "**"]
        said = arguments(node.with_changes(args=words), names)
        for arg in node.args:
            if arg.star == "**":
                said |= self.mapping_words(arg.value, scope)
        return said

    def seen_words(
        self, node: cst.Call, names: Sequence[str], scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        """The same, of a call whose keywords must be known."""
        said = self.all_words(node, names, scope)
        for name in said:
            if name.startswith("**"):
                raise Unsure(f"`{code_of(node)}`", f"what `{name}` holds is not seen here")
        return said

    def mapping_words(
        self, node: cst.BaseExpression, scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        """What `**node` holds: inputs, or keywords that the code names."""
        if isinstance(node, cst.Dict):
            return self.dict_words(node, scope)
        if self.translate(node, scope).role in ("inputs", "ids"):
            return {"input_ids": node, "attention_mask": node}
        return self.settings_of(node, scope)

    def dict_words(self, node: cst.Dict, scope: Scope) -> dict[str, cst.BaseExpression]:
        found: dict[str, cst.BaseExpression] = {}
        for element in node.elements:
            if isinstance(element, cst.StarredDictElement):
                for name, value in self.mapping_words(element.value, scope).items():
                    found.pop(name, None)
                    found[name] = value
                continue
            key = constant(element.key) if isinstance(element, cst.DictElement) else None
            if not isinstance(key, str):
                raise Unsure(f"`{code_of(node)}`", "a key is not written out")
            found.pop(key, None)
            found[key] = element.value
        kept = {n: v for n, v in found.items() if n not in ("input_ids", "inputs", *BESIDE_IDS)}
        if len(kept) < 2 or not any(name.startswith("**") for name in kept):
            return found
        given = {name: found[name] for name in found.keys() - kept.keys()}
        text = run_time.display_text(kept)  # at run time a later word of it is the one that counts
        return {**given, f"**{text}": cst.parse_expression(text)}

    def add_seed(self, options: Options, scope: Scope) -> None:
        """The seed that the old code gave the process before this call."""
        if "temperature" not in options.fields:
            return
        holder: Scope | None = scope
        while holder is not None and holder.seed is None:
            holder = holder.outer
        is_of_script = scope.function != "" and self.is_script_seeded()
        if (holder is None or holder.seed is None) and not is_of_script:
            return
        if holder is None or holder.seed is None or holder.function == "" != scope.function:
            self.note(
                "the seed is set once for all calls; the draft sets none, and its samples do not "
                "repeat from run to run"
            )
            return
        comment = SEEDS_APART if options.samples is not None else ""
        options.add_beside("seed", holder.seed, comment)
        holder.is_seed_used = True
        if scope.loops > holder.seed_depth:
            self.note(
                "the seed is set once for several calls of generate; the draft gives it to each, "
                "so that the first sample is the old one and later ones are others"
            )

    def is_script_seeded(self) -> bool:
        """Whether the module sets a seed outside its functions."""
        raise NotImplementedError

    def call_of(
        self,
        engine: cst.BaseExpression,
        verb: str,
        requests: cst.BaseExpression,
        options: cst.BaseExpression,
        scope: Scope,
    ) -> cst.BaseExpression:
        """The engine's call; its options stand in a statement of their own where there is room."""
        has_room = scope.has_room or not (scope.is_inline or NamesIn.of(options))
        if has_room and not isinstance(options, cst.Name):
            name = self.variable("options", scope)
            self.generated_names.add(name)  # dropped where a second translation has its own
            statement = cst.parse_statement(f"{name} = {code_of(options)}\n")
            scope.pending.append(statement)
            options = cst.Name(name)
        self.last_options = options
        if isinstance(options, cst.Dict):
            options = cst.parse_expression(" ".join(strip_comments(code_of(options)).split()))
        return parse("{e}." + verb + "({r}, {o})", e=engine, r=requests, o=options)

    def all_samples(
        self, made: cst.BaseExpression, options: Options, is_single: bool
    ) -> cst.BaseExpression:
        """One result for each sample, as generate returns rows."""
        if options.samples is None:
            return made
        many = isinstance(constant(options.samples), int)
        if is_single and many:
            return parse("{made}[0].samples", made=made)
        rows = "result.samples" if many else "result.samples or (result,)"
        return parse("[sample for result in {made} for sample in " + rows + "]", made=made)

    # == Decoding ==

    def decode(self, base: Value, name: str, node: cst.Call, scope: Scope) -> Value | None:
        said = arguments(node, ("token_ids", "skip_special_tokens", "clean_up_tokenization_spaces"))
        given = said.get("token_ids", said.get("sequences"))
        if given is None:
            return None
        value = self.translate(given, scope)
        if name == "decode" and value.role in ("results", "new"):
            value = self.row_at(value, cst.Integer("0"))
        row = value.details.get("row")
        if row is not None:
            value = Value(row, "new_row")
        if value.role in ("result", "new_row"):
            return self.decoded(base, value, node, scope)
        if name == "batch_decode" and value.role in ("results", "new") and value.node is not None:
            one = "new_row" if value.role == "new" else "result"
            text = self.decoded(
                base, Value(cst.Name("result"), one, details=value.details), node, scope
            )
            assert text.node is not None
            made = parse("[{text} for result in {rows}]", text=text.node, rows=value.node)
            return plain(made, "list")
        return None

    def decoded(self, owner: Value, row: Value, call: cst.Call, scope: Scope) -> Value:
        """The text of a result."""
        said = arguments(call, ("token_ids", "skip_special_tokens", "clean_up_tokenization_spaces"))
        skips = constant(said.get("skip_special_tokens"))
        cleans = said.get("clean_up_tokenization_spaces")
        assert row.node is not None
        if skips is not True:
            self.refuse_pads(row)
        if row.role == "result":
            return self.decoded_ids(owner, row, call, WHOLE, scope)
        if not self.is_checkpoint_known:  # the ends of another one may be text, and spaces tidied
            return self.decoded_ids(owner, row, call, NEW, scope)
        if self.decodes_alike(row, skips, cleans):
            details = {k: v for k, v in row.details.items() if k == "options"}
            return Value(parse("{row}.text", row=row.node), kind="text", details=details)
        is_bare = "skip_special_tokens" not in said or skips is False
        if is_bare and cleans is None and not self.cleans_up():
            return plain(parse("{row}.raw_text", row=row.node), "text")
        return self.decoded_ids(owner, row, call, NEW, scope)

    def cleans_up(self) -> bool:
        """Whether the tokenizer tidied spaces by itself."""
        return any(row.get("decode", {}).get("clean_up") for row in self.seen.rows)

    def decodes_alike(self, row: Value, skips: object, cleans: cst.BaseExpression | None) -> bool:
        """Whether a result's text is the old one: without special tokens, ends and stops."""
        if skips is not True or "keeps_stop" in row.details or not self.seen.has_special_ends():
            return False
        return not self.cleans_up() if cleans is None else constant(cleans) is False

    def refuse_pads(self, row: Value) -> None:
        """Rows of a batch end in padding, which is text where special tokens are kept."""
        if "many" in row.details:
            self.note(
                "texts with their special tokens end in padding where a row is shorter than its "
                "batch; the draft's end where the row ends"
            )

    def decoded_ids(
        self, owner: Value, row: Value, call: cst.Call, ids: str, scope: Scope
    ) -> Value:
        assert row.node is not None
        if owner.node is None:
            raise Unsure(f"`{code_of(call)}`", "no model is loaded from the same checkpoint here")
        part = self.tokenizer_node(
            replace(owner, kind="tokenizer") if not owner.details.get("bare") else owner
        )
        words = [
            arg
            for arg in call.args
            if arg.keyword is not None and arg.keyword.value not in ("token_ids", "sequences")
        ]
        words = [
            arg.with_changes(
                value=self.plain_node(arg.value, scope), comma=cst.MaybeSentinel.DEFAULT
            )
            for arg in words
        ]
        if ids == WHOLE and not is_short(row.node):  # written twice it would be asked twice
            ids = self.word("whole_ids") + "({row})"
        args = [cst.Arg(parse(ids, row=row.node)), *words]
        return plain(cst.Call(cst.Attribute(part, cst.Name("decode")), args), "text")

    def cut_by_hand(self, node: cst.Subscript, scope: Scope) -> Value | None:
        """With --stops, `decode(...).split("x")[0]` as the stop "x": the rules are the same for one
        stop."""
        call = node.value
        is_first = code_of(node).replace(" ", "").endswith("[0]")
        if not self.stops or not is_first or not isinstance(call, cst.Call) or not call.args:
            return None
        func = call.func
        stop = constant(call.args[0].value)
        is_split = isinstance(func, cst.Attribute) and func.attr.value == "split"
        if not is_split or not isinstance(stop, str) or not stop:
            return None
        assert isinstance(func, cst.Attribute)
        if not isinstance(func.value, (cst.Call, cst.Subscript)):
            return None
        text = self.translate(func.value, scope)
        options = text.details.get("options")
        if not isinstance(options, cst.Name):
            return None
        self.moved_stops[(scope.function, options.value)] = call.args[0].value
        return replace(text, details={})

    last_options: cst.BaseExpression | None = None
    moved_stops: dict[tuple[str, str], cst.BaseExpression]

    # == vLLM ==

    def llm_method(self, base: Value, name: str, node: cst.Call, scope: Scope) -> Value | None:
        if name == "get_tokenizer":
            return replace(base, kind="tokenizer")
        if name not in ("generate", "chat"):
            raise Unsure(f"`{code_of(node.func)}` is called", MISSING)
        first = "prompts" if name == "generate" else "messages"
        said = arguments(node, (first, "sampling_params"))
        said.pop("use_tqdm", None)
        given = said.pop(first, None)
        params = said.pop("sampling_params", None)
        if given is None:
            raise Unsure(f"`{code_of(node)}`", "its prompts are not seen")
        options, samples = self.vllm_options(params, scope)
        if name == "generate":
            requests = self.vllm_prompts(given, scope)
        else:
            requests = self.vllm_chats(given, said, base, scope)
        if said:
            raise Unsure(f"`{code_of(node)}` is told {', '.join(said)}", MISSING)
        assert base.node is not None
        has_images = name == "generate" and self.may_hold_images()
        verb = "generate_vlm_batch" if has_images else "generate_text_batch"
        made = self.call_of(base.node, verb, requests, options, scope)
        return Value(made, "vllm_outputs", details={} if samples is None else {"samples": samples})

    def vllm_options(
        self, params: cst.BaseExpression | None, scope: Scope
    ) -> tuple[cst.BaseExpression, cst.BaseExpression | None]:
        if params is None:
            what = "no SamplingParams are given"
            raise Unsure(what, "vLLM then takes the checkpoint's own settings", "write them out")
        value = self.translate(params, scope)
        if value.role != "settings" or value.node is None:
            raise Unsure(f"`{code_of(params)}`", "which SamplingParams these are is not seen here")
        return value.node, value.details.get("samples")

    def vllm_prompts(self, given: cst.BaseExpression, scope: Scope) -> cst.BaseExpression:
        value = self.translate(given, scope)
        is_rendered = value.role in ("request", "request_list")
        if is_rendered and value.node is not None and not self.keeps_double_bos():
            is_one = value.role == "request"
            return cst.List([cst.Element(value.node)]) if is_one else value.node
        node = self.as_plain(value, given, scope)
        if is_rendered or are_texts(given):
            is_list = value.role == "request_list" or kind_of(given) == "list"
            made = self.raw_requests(node, is_list, None, scope).node
            assert made is not None
            return made
        lies = f", {self.word('as_it_lies')}" if self.may_hold_images() else ""
        return parse(f"{self.word('as_requests')}({{node}}{lies})", node=node)

    def may_hold_images(self) -> bool:
        """Whether prompts of vLLM are mappings with images."""
        return "multi_modal_data" in self.source

    def vllm_chats(
        self,
        given: cst.BaseExpression,
        said: dict[str, cst.BaseExpression],
        base: Value,
        scope: Scope,
    ) -> cst.BaseExpression:
        node = self.plain_node(given, scope)
        chat = self.vllm_template(said, base, scope)
        if self.are_several(given, scope):
            return chat_requests(node, chat)
        return cst.List([cst.Element(chat_request(node, chat))])

    def vllm_template(
        self, said: dict[str, cst.BaseExpression], base: Value, scope: Scope
    ) -> dict[str, cst.BaseExpression]:
        words: dict[str, cst.BaseExpression] = {"add_generation_prompt": literal(True)}
        for name in ("add_generation_prompt", "continue_final_message", "chat_template"):
            if name in said:
                words[name] = said.pop(name)
        extra = said.pop("chat_template_kwargs", None)
        if extra is not None:
            if not isinstance(extra, cst.Dict):
                raise Unsure(f"`chat_template_kwargs={code_of(extra)}`", "its keys are not seen")
            words |= self.dict_words(extra, scope)
        return self.chat_options(words, base, scope)

    def are_several(self, chats: cst.BaseExpression, scope: Scope) -> bool:
        """Whether an expression is a list of chats, not one. Raises Unsure."""
        depth = self.depths.of(chats, scope.function)
        if depth in (CHAT, CHATS):
            return depth == CHATS
        if scope.loops == 0 and self.is_site(scope.function) and self.seen.has_several_prompts():
            return True
        what = f"whether `{code_of(chats)}` is one chat or several"
        raise Unsure(what, "neither the source nor a golden shows it", "build it in this file")

    def is_site(self, function: str) -> bool:
        raise NotImplementedError

    # == Pipelines ==

    def piped(self, base: Value, node: cst.Call, scope: Scope) -> Value:
        said = self.seen_words(node, ("text_inputs",), scope)
        if "input_ids" in said:
            raise Unsure(f"`{code_of(node)}`", MISSING)
        given = said.pop("text_inputs")
        full = said.pop("return_full_text", None)
        returns_prompt = full is None or constant(full) is not False
        if full is not None and constant(full) is NotImplemented:
            raise Unsure(f"`return_full_text={code_of(full)}`", "it is not written out")
        said.pop("clean_up_tokenization_spaces", None)
        said.pop("batch_size", None)
        builder = GenerateOptions(self.plain_generate(said, scope), self.seen, self.ask)
        self.pipeline_defaults(builder)
        options = builder.build(None)
        if not self.is_checkpoint_known:
            self.note(
                "what this call leaves out, its budget, too, is what "
                f"{self.seen.models[0]} and transformers say"
                f"{': ' * bool(builder.inherited)}{', '.join(builder.inherited)}; another "
                "checkpoint may say something else: say it in the call"
            )
        self.add_seed(options, scope)
        if options.samples is not None:
            raise Unsure("a pipeline with several samples", MISSING, "n in the options")
        value = self.pipeline_requests(given, returns_prompt, base, scope)
        assert base.node is not None and value.node is not None
        options_node = options.as_dict()
        made = self.call_of(base.node, "generate_text_batch", value.node, options_node, scope)
        return replace(value, node=made)

    def pipeline_defaults(self, builder: GenerateOptions) -> None:
        """A pipeline has a generation config of its own, which fills what nobody says."""
        for name, part in (
            ("do_sample", ""),
            ("temperature", "sampling"),
            ("max_new_tokens", "stop"),
        ):
            if name in builder.said or name in self.seen.settings:
                continue
            if name == "do_sample":
                value: object = self.seen.is_sampled
            else:
                values = self.seen.values(part, name)
                value = values[0] if len(values) == 1 else None
            if value is None or (name == "temperature" and not value):
                continue
            builder.said[name] = literal(value)

    def pipeline_requests(
        self, given: cst.BaseExpression, returns_prompt: bool, base: Value, scope: Scope
    ) -> Value:
        """The requests of a pipeline's call, as what it returns of them."""
        value = self.translate(given, scope)
        if value.role == "request" and value.node is not None:
            if not self.is_checkpoint_known:
                raise Demote(EVERY_TEXT)
            return one_output(value.node, value.old if returns_prompt else None)
        node = self.as_plain(value, given, scope)
        if self.holds_messages(given, value, scope):
            return self.pipeline_chats(given, node, returns_prompt, base, scope)
        if not self.is_list(value, given, {}):
            request = parse('{"prompt": {node}}', node=node)
            return one_output(request, node if returns_prompt else None)
        if returns_prompt:
            what = f"`{code_of(given)}` is a list, and each text holds its prompt"
            why = "which prompt a row had is not followed"
            raise Unsure(what, why, "return_full_text=False, and record again")
        requests = parse('[{"prompt": prompt} for prompt in {node}]', node=node)
        return Value(requests, "pipe_batch", "text")

    def holds_messages(self, given: cst.BaseExpression, value: Value, scope: Scope) -> bool:
        """Whether an expression is a chat or chats: by the source, or else by the goldens."""
        if self.depths.of(given, scope.function) in (CHAT, CHATS):
            return True
        rows = self.seen.rows if value.kind != "text" else ()
        return bool(rows) and all(row.get("messages") for row in rows)

    def pipeline_chats(
        self,
        given: cst.BaseExpression,
        node: cst.BaseExpression,
        returns_prompt: bool,
        base: Value,
        scope: Scope,
    ) -> Value:
        chat = self.chat_options({"add_generation_prompt": literal(True)}, base, scope)
        kind = "chat" if returns_prompt else "text"
        if self.are_several(given, scope):
            return Value(chat_requests(node, chat), "pipe_batch", kind)
        request = cst.List([cst.Element(chat_request(node, chat))])
        details = {"chat": node} if is_short(node) else {}
        return Value(request, "pipe_outputs", kind, details=details)


def image_words(images: cst.BaseExpression, processor: Value) -> list[str]:
    """What a request with images has beside its chat."""
    details = processor.details
    vlm = {name: details[name] for name in ("min_pixels", "max_pixels") if name in details}
    return [f'"images": {code_of(images)}', *([f'"vlm": {code_of(mapping(vlm))}'] if vlm else [])]


def are_texts(prompts: cst.BaseExpression) -> bool:
    """Whether the source shows that what vLLM is given is a text, or a list of texts."""
    if isinstance(prompts, cst.ListComp):
        return kind_of(prompts.elt) == "text"
    if isinstance(prompts, cst.List):
        return all(kind_of(element.value) == "text" for element in prompts.elements)
    return kind_of(prompts) == "text"


def raw_request(text: cst.BaseExpression, ids: str | None) -> cst.BaseExpression:
    """A request of text that is no chat.   ids: as `raw_requests` has it."""
    if ids is None:
        return parse('{"prompt": {n}}', n=text)
    return parse(f'{{"prompt_token_ids": {ids}}}', n=text)


def chat_request(
    messages: cst.BaseExpression, chat: dict[str, cst.BaseExpression]
) -> cst.BaseExpression:
    return mapping({"messages": messages, **({"chat": mapping(chat)} if chat else {})})


def chat_requests(
    chats: cst.BaseExpression, chat: dict[str, cst.BaseExpression]
) -> cst.BaseExpression:
    """A request for each of a list of chats."""
    request = chat_request(cst.Name("chat"), chat)
    return parse("[{request} for chat in {chats}]", request=request, chats=chats)


def one_output(request: cst.BaseExpression, prompt: cst.BaseExpression | None) -> Value:
    """The request of a pipeline's call with one text.   prompt: that its text begins with."""
    details = {} if prompt is None else {"prompt": prompt}
    return Value(cst.List([cst.Element(request)]), "pipe_outputs", "text", details=details)


def keywords_text(said: dict[str, cst.BaseExpression], stars: list[str]) -> str:
    """Arguments of a call; one mapping where a word is said again, which is later in it."""
    if len(said) > 1 and any(".to_diff_dict()" in code_of(said[star]) for star in stars):
        return f"(**{run_time.display_text(said)})"
    words = [f"{name}={code_of(node)}" for name, node in said.items() if name not in stars]
    return f"({', '.join([*words, *(f'**{code_of(said[star])}' for star in stars)])})"


SEEDS_APART = "samples have the seeds from this one on: keep those of other runs n apart"
THINKS = "the template thinks unless it is told not to"


def strip_comments(text: str) -> str:
    lines = []
    for line in text.split("\n"):
        lines.append(line.split("  # ")[0])
    return "\n".join(lines)
