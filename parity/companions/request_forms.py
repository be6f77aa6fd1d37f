# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Requests as lines and rows hold them, in our own form and in OpenAI's, and results as OpenAI's
choices: a companion of gen_engine.py.

Copy both, and what requests may ask for, into your repository, `make vendor DEST=acme/llm
WITH="request_forms reasoning tool_calls penalties plugin_hooks structured"`, and

    wanted = read_body(body)  # of /v1/chat/completions
    options, settings = bind_options(wanted, GenerationOptions())
    plugins = make_plugins(engine, settings)
    request = bind_request(wanted, engine, VlmGenerationRequest(**wanted.request))
    [result] = engine.generate_vlm_batch([request], options, plugins=plugins)
    choices = Replies(engine).choices([result], wanted.tools)

batch_files.py and ray_data.py do this for lines and rows. OpenAI's bodies need reasoning.py, those
with tools tool_calls.py; penalties and a budget for the thought need penalties.py and
plugin_hooks.py; questions decisions.py. A field that is not carried is refused with its name.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = [
    "Replies",
    "Wanted",
    "bind_options",
    "bind_request",
    "make_plugins",
    "read_body",
    "read_decision_body",
    "read_fields",
]

Fields = dict[str, Any]
T = TypeVar("T", bound=ge.TextGenerationRequest)
PLUGINS = ("penalties", "thinking")  # fields of PenaltyOptions, keyword arguments of Thinking


@dataclass(frozen=True, eq=False)
class Wanted:
    """What a body, a line or a row asks for, in the engine's terms.

    request: fields of a request.   options: fields of GenerationOptions.
    plugins: settings by a name of PLUGINS.
    questions: of decisions.py, which are decided in place of an answer.
    is_openai: of a body. Its answer has OpenAI's shape, a structure stands behind its thought."""

    request: Fields
    options: Fields
    plugins: Mapping[str, Fields] = field(default_factory=dict)
    is_openai: bool = False
    questions: Sequence[Any] = ()

    @property
    def tools(self) -> Sequence[Any]:
        return self.request.get("tools") or ()


# == In: our own form ==

AS_JSON = ("messages", "tools", "chat", "structured", "vlm", "options", "questions", *PLUGINS)
LINE_FIELDS = ("options", "questions", *PLUGINS)  # beside those of a request


def parse_column(name: str, text: str) -> Any:
    """What a field says that is written as JSON text. Raises RequestError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ge.RequestError(
            f"{name} is not JSON: {why}", fix="write it as json.dumps does"
        ) from error


def read_fields(fields: Mapping[str, Any]) -> Wanted:
    """What the fields of a line or row ask for: those of a request, any of them that holds others
    as JSON text, and `options`, `penalties`, `thinking` and `questions`. Raises GenEngineError."""
    request = {name: value for name, value in fields.items() if value is not None}
    for name in AS_JSON:
        if isinstance(request.get(name), str):
            request[name] = parse_column(name, request[name])
    if "questions" in request:
        return decision_fields(request)
    options = request.pop("options", {})
    if not isinstance(options, Mapping):
        problem = f"options is {type(options).__name__}"
        raise ge.RequestError(problem, fix="give a mapping of GenerationOptions' fields")
    plugins = {name: request.pop(name) for name in PLUGINS if name in request}
    check_plugins(plugins)
    return wanted_of(request, options, plugins)


def decision_fields(request: Fields) -> Wanted:
    """What a line or row with questions asks for. Raises GenEngineError."""
    questions = request.pop("questions")
    for name in ("options", *PLUGINS):
        if name in request:
            raise ge.RequestError(f"{name} beside questions", fix="drop it: nothing is generated")
    given = ge.batch_of(questions, "questions")
    return Wanted(request, {}, questions=ge.companions.decisions.build_questions(given))


def read_decision_body(body: Any, models: Collection[str] = ()) -> Wanted:
    """What a body of /v1/decisions asks for. Raises GenEngineError for a field that would not be
    honoured.   models: names that it may use. Default: any."""
    request, questions = ge.companions.decisions.read_body(body)
    check_model(body, models)
    return Wanted(request, {}, is_openai=True, questions=questions)


def wanted_of(
    request: Fields, options: Mapping[str, Any], plugins: Mapping[str, Fields], **more: Any
) -> Wanted:
    """With the options' seed as the request's: requests with other options run apart."""
    own = {name: value for name, value in options.items() if name != "seed"}
    if options.get("seed") is not None:
        request = {"seed": options["seed"], **request}
    return Wanted(request, own, plugins, **more)


# == In: OpenAI's bodies ==

SAME_NAME = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n", "stop")
OPTIONS = {  # a field of a body -> a field of GenerationOptions; the later one counts
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    **{name: name for name in SAME_NAME},
}
PENALTIES = (
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
)
READ = (  # by name, below
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "response_format",
    "thinking_token_budget",
    "top_logprobs",
    *PENALTIES,
)
UNUSED = ("user", "metadata", "service_tier")  # they change no answer
NEUTRAL: dict[str, tuple[Any, ...]] = {  # values that ask for nothing
    "stream": (False,),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "logprobs": (False, True),
    "store": (False, True),
}


INSTEAD = {  # of a field that is not read; "" is any other
    "": "drop it: it would not be honoured",
    "reasoning_effort": "templates read it by other names: give theirs in chat_template_kwargs, or "
    "bound the thought with thinking_token_budget",
}


def read_body(body: Any, models: Collection[str] = ()) -> Wanted:
    """What a chat completion body asks for. Raises GenEngineError for a field that would not be
    honoured, or contradicts another.   models: names that it may use. Default: any."""
    if not isinstance(body, Mapping):
        problem = f"the body is {type(body).__name__}"
        raise ge.RequestError(problem, fix="give a JSON object")
    _ = ge.companions.reasoning  # raises: without it a thought would stand in the content
    body = {name: value for name, value in body.items() if value is not None}
    check_body(body)
    check_model(body, models)
    options = {OPTIONS[name]: body[name] for name in OPTIONS if name in body}
    if body.get("logprobs"):
        options["logprobs"] = body.get("top_logprobs", 0)
    request = {"messages": body.get("messages"), **chat_fields(body), **tool_fields(body)}
    structure = structured_field(body.get("response_format", {"type": "text"}))
    if structure and "structured" in request:
        problem = "body.response_format beside a body.tool_choice that asks for a call"
        raise ge.RequestError(problem, fix="drop one of them: an answer has one form")
    request |= structure
    return wanted_of(request, options, plugin_fields(body), is_openai=True)


def check_model(body: Mapping[str, Any], models: Collection[str]) -> None:
    """Raise RequestError for a body of another model."""
    if models and body.get("model", next(iter(models))) not in models:
        problem = f"body.model is {body['model']!r}"
        raise ge.RequestError(problem, fix=f"the model here is {' or '.join(models)}")


def check_body(body: Mapping[str, Any]) -> None:
    """Refuse the fields of an OpenAI body that would not be honoured, or contradict each other."""
    for name, value in body.items():
        is_known = name in OPTIONS or name in READ or name in UNUSED
        if not is_known and value not in NEUTRAL.get(name, ()):
            problem = f"body.{name} is {json.dumps(value)[:80]}"
            raise ge.UnsupportedError(problem, fix=INSTEAD.get(name, INSTEAD[""]))
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise ge.RequestError("body.top_logprobs without body.logprobs", fix="set logprobs to true")


def chat_fields(body: Mapping[str, Any]) -> Fields:
    """A body's way to render its messages, as a request's `chat` and `continue_final`."""
    kwargs = body.get("chat_template_kwargs", {})
    if not isinstance(kwargs, Mapping):
        problem = f"body.chat_template_kwargs is {ge.short_repr(kwargs)}"
        raise ge.RequestError(problem, fix="give an object of the template's variables")
    chat: Fields = {"kwargs": {name: kwargs[name] for name in kwargs if name != "enable_thinking"}}
    if "enable_thinking" in kwargs:
        chat["enable_thinking"] = kwargs["enable_thinking"]
    if "chat_template" in body:
        chat["template"] = body["chat_template"]
    return {"chat": chat, **turn_fields(body, chat)}


def turn_fields(body: Mapping[str, Any], chat: Fields) -> Fields:
    """Whether an answer goes on inside the last message; if it opens no turn, `chat` says so."""
    goes_on = bool(body.get("continue_final_message", False))
    opens_turn = bool(body.get("add_generation_prompt", not goes_on))
    if goes_on and opens_turn:
        problem = "body.continue_final_message beside body.add_generation_prompt"
        raise ge.RequestError(problem, fix="set one of them to false")
    if not goes_on:
        chat["add_generation_prompt"] = opens_turn
    return {"continue_final": goes_on}


def tool_fields(body: Mapping[str, Any]) -> Fields:
    """A body's tools, as the template is given them, none with the tool_choice "none"; and the form
    of an answer that must be a call."""
    tools = body.get("tools") or []
    choice = body.get("tool_choice", "auto")
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise ge.RequestError(
            f"body.tools is {ge.short_repr(tools)}", fix="give a list of functions"
        )
    ge.companions.tool_calls.parse_tool_calls("", tools=tools)  # raises for what describes no tool
    several = may_call_several(body)
    if choice not in ("none", "auto"):
        schemas = choosable(choice, tools)
        is_list = several and choice == "required"
        return {"tools": tools, "structured": {"json": call_schema(schemas, is_list=is_list)}}
    if choice == "none" or not tools:
        return {}
    if not several:
        fix = "take the first of the answer's tool_calls, or set tool_choice to 'required'"
        raise ge.UnsupportedError("body.parallel_tool_calls is false", fix=fix)
    return {"tools": tools}


def may_call_several(body: Mapping[str, Any]) -> bool:
    """The body's parallel_tool_calls. Raises RequestError."""
    several = body.get("parallel_tool_calls", True)
    if not isinstance(several, bool):
        problem = f"body.parallel_tool_calls is {ge.short_repr(several)}"
        raise ge.RequestError(problem, fix="give true or false")
    return several


def choosable(choice: Any, tools: Sequence[Any]) -> dict[str, Any]:
    """The functions that a tool_choice allows: name -> the schema of its arguments."""
    functions = [tool.get("function", tool) for tool in tools]
    schemas = {one["name"]: one.get("parameters") or {"type": "object"} for one in functions}
    if not schemas:
        raise ge.RequestError("body.tool_choice asks for a call of no tools", fix="give tools")
    if choice == "required":
        return schemas
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name is None:
        known = "none, auto, required, {'type': 'function', 'function': {'name': ...}}"
        problem = f"body.tool_choice is {ge.short_repr(choice)}"
        raise ge.UnsupportedError(problem, fix=f"known: {known}")
    if name not in schemas:
        problem = f"body.tool_choice is {ge.short_repr(name)}, which is none of the tools"
        raise ge.RequestError(problem, fix=ge.did_you_mean(str(name), schemas))
    return {name: schemas[name]}


def call_schema(schemas: Mapping[str, Any], *, is_list: bool) -> Fields:
    """The schema of a call of one of these functions, or of a list of one or more. What a schema
    defines for itself is defined for all."""
    calls = []
    names: Fields = {}
    for name, schema in schemas.items():
        own = dict(schema)
        for key in ("$defs", "definitions"):
            names.setdefault(key, {}).update(own.pop(key, {}))
        properties = {"name": {"const": name}, "arguments": own}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    defined = {key: value for key, value in names.items() if value}
    if is_list:
        return {"type": "array", "items": call, "minItems": 1, **defined}
    return {**call, **defined}


def structured_field(wanted: Any) -> Fields:
    """A body's response_format as a request's `structured`."""
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_schema" and isinstance(wanted.get("json_schema"), Mapping):
        return {"structured": {"json": wanted["json_schema"].get("schema")}}
    if kind == "json_object":
        return {"structured": {"json_object": True}}
    if kind != "text":
        problem = f"response_format is of type {kind!r}"
        raise ge.RequestError(problem, fix="known: text, json_object, json_schema")
    return {}


def plugin_fields(body: Mapping[str, Any]) -> dict[str, Fields]:
    """A body's penalties and the budget of its thought, as settings of plugins."""
    penalties = {name: body[name] for name in PENALTIES if body.get(name) not in (None, 0, {}, [])}
    plugins: dict[str, Fields] = {"penalties": penalties} if penalties else {}
    if "thinking_token_budget" in body:
        plugins["thinking"] = {"budget": body["thinking_token_budget"]}
    check_plugins(plugins)
    return plugins


def check_plugins(plugins: Mapping[str, Any]) -> None:
    """Raise OptionError for settings of plugins that no engine could take."""
    for name, settings in plugins.items():
        if not isinstance(settings, Mapping):
            problem = f"{name} is {ge.short_repr(settings)}"
            raise ge.OptionError(problem, fix="give a mapping of its settings")
    if "penalties" in plugins:
        penalties = ge.companions.penalties
        ge.build(penalties.PenaltyOptions, plugins["penalties"])
    if "thinking" in plugins:
        ge.build(ge.companions.reasoning.ThinkingOptions, plugins["thinking"])


# == What was asked, for an engine ==


def bind_options(
    wanted: Wanted, options: ge.GenerationOptions
) -> tuple[ge.GenerationOptions, Mapping[str, Fields]]:
    """(options, settings of plugins) of a call that answers what was asked.
    options: what it does not set.

    A repetition penalty beside other penalties becomes the plugin's, whose order is vLLM's."""
    if wanted.options:
        fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
        options = ge.build(ge.GenerationOptions, {**fields, **wanted.options})
    penalties = wanted.plugins.get("penalties")
    if penalties is None or options.repetition_penalty == 1:
        return options, wanted.plugins
    if "repetition_penalty" in penalties:
        problem = "repetition_penalty is set in the options and in penalties"
        raise ge.OptionError(problem, fix="give one of them")
    penalties = {**penalties, "repetition_penalty": options.repetition_penalty}
    options = dataclasses.replace(options, repetition_penalty=1.0)
    return options, {**wanted.plugins, "penalties": penalties}


def make_plugins(engine: ge.GenerationEngine, settings: Mapping[str, Fields]) -> list[Any]:
    """The plugins that have these settings. Raises OptionError for one that the vocabulary or the
    checkpoint does not go with."""
    plugins = []
    if "penalties" in settings:
        plugins.append(ge.companions.penalties.Penalties(engine, **settings["penalties"]))
    if "thinking" in settings:
        plugins.append(ge.companions.reasoning.Thinking(engine, **settings["thinking"]))
    return plugins


def bind_request(wanted: Wanted, engine: ge.GenerationEngine, request: T) -> T:
    """The request that was built of what was asked; a structure that a body asks of a model that
    thinks begins behind the thought."""
    if not (wanted.is_openai and request.structured and request.chat.enable_thinking):
        return request
    marker = ge.companions.reasoning.format_of(engine).closing.strip()
    return dataclasses.replace(request, structured={**request.structured, "after": marker})


# == Choices out ==


def byte_of() -> dict[str, int]:
    """The byte that each character stands for in the tokens of byte-level vocabularies (GPT-2's
    table): printable ones themselves, others characters from 256 on."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    shown += range(ord("®"), ord("ÿ") + 1)
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    table.update({chr(256 + place): byte for place, byte in enumerate(hidden)})
    return table


BYTE_OF = byte_of()
BROKEN = "\ufffd"  # what bytes of an unfinished character are decoded to
WORD_BEGIN = "▁"  # SentencePiece's sign of a space
TAG = re.compile(r"(?:<[^<>\n]{1,60}>|\[TOOL_CALLS\]|\[)\Z")  # what opens a list of calls
LONGEST_TAG = 64


def token_bytes(piece: str, text: str) -> bytes:
    """The bytes of a token.   piece: as it stands in the vocabulary.   text: what it is decoded to
    alone."""
    if BROKEN in text:  # a part of a character
        if re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes([int(piece[1:-1], 16)])
        if all(character in BYTE_OF for character in piece):
            return bytes(BYTE_OF[character] for character in piece)
    if piece.startswith(WORD_BEGIN) and not text.startswith(" "):
        text = " " + text  # which decoding takes from the beginning of a text
    return text.encode("utf-8", "replace")


def without_tags(text: str) -> str:
    """What stands before a list of calls, without the tags that open it."""
    text = text.rstrip()
    while found := TAG.search(text[-LONGEST_TAG:]):
        text = text[: len(text) - len(found[0])].rstrip()
    return text


def call_fields(calls: Sequence[Any], before: str) -> Fields:
    """What calls change of a message.   before: the answer before the first one."""
    if errors := [call.error for call in calls if call.error]:
        return {"tool_call_errors": errors}
    tool_calls = []
    for index, call in enumerate(calls):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        tool_calls.append({"id": f"call_{index}", "type": "function", "function": function})
    return {"content": without_tags(before) or None, "tool_calls": tool_calls}


class Replies:
    """Results as OpenAI's choices.

    A thought is the message's `reasoning`, calls are its `tool_calls`. If a call is malformed, none
    is given: the content holds the whole answer, and `tool_call_errors` say what is wrong."""

    def __init__(self, engine: ge.GenerationEngine) -> None:
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self.token = functools.lru_cache(maxsize=1 << 16)(self._token)

    @functools.cached_property
    def can_think(self) -> bool:
        """Whether the checkpoint has a marker of a thought."""
        try:
            ge.companions.reasoning.format_of(self.engine)
        except ge.UnsupportedError:
            return False
        return True

    def choices(
        self, results: Sequence[ge.GenerationResult], tools: Sequence[Any] = ()
    ) -> list[Fields]:
        """A choice for each sample.   tools: of the request, or none: then no calls are looked
        for."""
        return [self._choice(index, result, tools) for index, result in enumerate(results)]

    def _choice(self, index: int, result: ge.GenerationResult, tools: Sequence[Any]) -> Fields:
        message = self._message(result, tools)
        reason = "length" if result.finish_reason == "length" else "stop"
        choice = {
            "index": index,
            "message": message,
            "logprobs": None if result.logprobs is None else self._logprobs(result),
            "finish_reason": "tool_calls" if "tool_calls" in message else reason,
        }
        return {**choice, "notes": list(result.notes)} if result.notes else choice

    def _message(self, result: ge.GenerationResult, tools: Sequence[Any]) -> Fields:
        reasoning, answer = None, result.text
        if self.can_think:
            reasoning, answer = ge.companions.reasoning.split(result, self.engine)
        message: Fields = {"role": "assistant", "content": answer}
        if reasoning is None:
            message["content"] = answer or ""
        else:
            message["reasoning"] = reasoning
        if tools:
            message |= self._call_fields(result, answer or "", tools)
        return message

    def _call_fields(
        self, result: ge.GenerationResult, answer: str, tools: Sequence[Any]
    ) -> Fields:
        """What calls in an answer change of its message."""
        parse = functools.partial(ge.companions.tool_calls.parse_tool_calls, tools=tools)
        calls = parse(answer)
        if calls:
            return call_fields(calls, answer[: calls[0].start])
        # Their markers may be special tokens, which the text does not show.
        shown = result.raw_text
        if result.finish_reason == "stop" and isinstance(result.stop_reason, str):
            shown = ge.truncate_at_stops(shown, result.stop_reason)
        calls = parse(shown)
        return call_fields(calls, self._plain_before(shown[: calls[0].start])) if calls else {}

    def _plain_before(self, shown: str) -> str:
        """A part of a raw text as an answer shows it: behind the thought, without special
        tokens."""
        if self.can_think:
            reasoning = ge.companions.reasoning
            markers = reasoning.format_of(self.engine)
            shown = reasoning.split_text(shown, markers).answer or ""
        for special in self.tokenizer.all_special_tokens:
            shown = shown.replace(special, "")
        return shown

    def _logprobs(self, result: ge.GenerationResult) -> Fields:
        content = []
        tops = result.top_logprobs or ({},) * result.completion_tokens
        for token_id, logprob, top in zip(result.token_ids, result.logprobs or (), tops):
            others = [{**self.token(other), "logprob": value} for other, value in top.items()]
            entry = {**self.token(token_id), "logprob": logprob, "top_logprobs": others}
            content.append(entry)
        return {"content": content}

    def _token(self, token_id: int) -> Fields:
        """A token's text and bytes. The text of a part of a character is U+FFFD."""
        piece = str(self.tokenizer.convert_ids_to_tokens(token_id))
        raw = token_bytes(piece, self.tokenizer.decode([token_id]))
        return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw)}
