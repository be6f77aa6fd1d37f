# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""The tool calls in a model's text: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="tool_calls"`, and

    from acme.llm.tool_calls import parse_tool_calls

    for call in parse_tool_calls(result.text, tools=tools):
        print(call.error or (call.name, call.arguments))
"""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import OptionError, did_you_mean
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import OptionError, did_you_mean

__version__ = "0.2.0"

__all__ = ["ToolCall", "parse_tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call in a model's text, well formed (`error` is None) or not.

    arguments: only what JSON can say, in every format; empty where the call is malformed.
    name: of a malformed call, "" where it did not get as far.
    raw_text: text[start:end], the call with its own tags, without the marker or the brackets of a list of calls.
    error: what is wrong, and at which character. Never run such a call.
    """

    name: str
    arguments: dict[str, Any]
    raw_text: str
    start: int
    end: int
    error: str | None = None


class BrokenCall(ValueError):
    """Why a call cannot be read; becomes ToolCall.error."""


# -- how values are written --------------------------------------------------------------------------------------------


class Written(str):
    """A value without a type: its tool's schema gives it one; where that is silent, it is its text."""


class Bare(Written):
    """One that is what it says as JSON where no schema speaks."""


class Spelling(NamedTuple):
    """How values are written, as regular expressions whose group 1 counts."""

    value: str  # an atom, for `decode`, or an opening bracket
    keys: Mapping[str, str]  # opening bracket -> a key, "" where items have none
    after: str  # what follows an item, a comma or the END: the closing bracket
    decode: Callable[[str], Any]


def python_atom(token: str) -> Any:
    """A string, number, True, False or None. A string may hold line ends, as a shell script does, and NUL, which
    literal_eval refuses; and of an unknown escape, as in "\\d", it warns: doubled, that backslash means the same."""
    token = {"true": "True", "false": "False", "null": "None"}.get(token, token)  # models mix the two
    token = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", token)  # 07, as they write a month
    raw = {"\n": r"\n", "\r": r"\r", "\0": r"\x00", "\\": r"\\"}
    escape = r"""\\[\n\\'"abfnrtvNuUx0-7]|[\n\r\0\\]"""
    return ast.literal_eval(re.sub(escape, lambda found: raw.get(found[0], found[0]), token))


# Each pattern takes time linear in what it tries: no two runs that can share a character (\s*x?\s*) stand in a row.
WS = r"[ \t\n\r]*"  # JSON's; \s would also eat a no-break space at the end of a text
NAME = r"[^\W\d][\w.]*"
JSON_STRING = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
JSON_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"  # NaN and Infinity are none
PYTHON_STRING = r"""(?s:(?P<quote>'''|\"""|'|")(?:\\.|(?!(?P=quote))[^\\])*(?P=quote))"""
PYTHON_NUMBER = r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
LAST_TOKEN = r"""(?s:\s*(?:"[^"\\]*(?:\\.[^"\\]*)*(?:"\s*|\\)?|'[^'\\]*(?:\\.[^'\\]*)*(?:'\s*|\\)?|[\w.+-]+\s*)?\Z)"""
JSON = Spelling(
    value=WS + r"([{\[]|" + JSON_STRING + "|" + JSON_NUMBER + "|true|false|null)",
    keys={"{": WS + "(" + JSON_STRING + ")" + WS + ":", "[": ""}, after=WS + "(,|END)", decode=json.loads,
)  # fmt: skip
PYTHON = Spelling(
    value=r"\s*([{\[(]|" + PYTHON_STRING + "|" + PYTHON_NUMBER + "|True|False|None|true|false|null)",
    keys={"{": r"\s*(?:(" + PYTHON_STRING + r")\s*:)?", "[": "", "(": "", "f(": r"\s*([^\W\d]\w*)\s*="},
    after=r"\s*(?:,\s*(?=END))?(,|END)", decode=python_atom,  # a trailing comma is none
)  # fmt: skip
GEMMA = Spelling(
    value=r'\s*([{\[]|(?P<quote><\|"\|>|<escape>)(?s:.*?)(?P=quote)|[^\s<,{}\[\]][^<,{}\[\]]*)',
    keys={"{": r'\s*(?:<\|"\|>)?([^\s<>|,:{}\[\]"]+)(?:<\|"\|>)?\s*:', "[": ""}, after=r"\s*(,|END)",
    decode=lambda token: token.split(">", 1)[1].rpartition("<")[0] if token[0] == "<" else Bare(token.strip()),
)  # fmt: skip
CLOSING = {"{": "}", "[": "]", "(": ")", "f(": ")"}
NEVER = "(?!)"
CUT = r"(?:<[^<>{}]*)?\Z"  # a text may end in a closing tag: it was the stop
DEEPEST = 128  # levels of nesting: arguments have a handful, and each level takes two frames of Python's stack


class Cursor:
    """A place in a text that moves right only. A call that breaks is read no further than to where it broke, so the
    time is linear in the text, whatever that holds.

    Not raw_decode and ast.parse: a JSONDecodeError counts the lines before it, which makes many broken calls quadratic;
    a RecursionError does not say where it was; and both read numbers and names that JSON does not have.
    """

    def __init__(self, text: str, types: Mapping[str, Schema] | None = None, at: int = 0) -> None:
        self.text, self.types, self.at, self.calls = text, types, at, list[ToolCall]()
        self.name, self.fault = "", ""  # of the call being read; a fault leaves the text readable, but not the call
        self.unheard = ""  # why no call is one from here on
        self.held: re.Match[str] | None = None  # whether the call being read is to be one of the request's tools

    def take(self, pattern: str, expected: str) -> re.Match[str]:
        """Move over `pattern`, or raise BrokenCall."""
        if not (match := re.compile(pattern).match(self.text, self.at)):
            cut = re.compile(LAST_TOKEN).match(self.text, self.at)  # in it, or behind it
            self.at = len(self.text) if cut else self.at
            raise BrokenCall(f"{expected} expected {'where the text ends' if cut else f'at character {self.at}'}")
        self.at = match.end()
        return match

    def blame(self, what: str) -> None:
        """Note the first fault."""
        self.fault = self.fault or f"{what} before character {self.at}"

    def value(self, spelling: Spelling, depth: int = 0) -> Any:
        token = self.take(spelling.value, "a value")[1]
        return self.items(token, spelling, depth + 1) if token in spelling.keys else self.decode(token, spelling)

    def decode(self, token: str, spelling: Spelling) -> Any:
        try:
            value = spelling.decode(token)
            if value in (1e999, -1e999):  # what Python makes of both is no number in JSON
                raise ValueError("number out of range")
            return value
        except (SyntaxError, ValueError) as error:  # an unknown \N{name}, more digits than Python converts
            self.blame(f"bad value, {error},")

    def items(self, opening: str, spelling: Spelling, depth: int = 0) -> Any:
        """What stands in brackets, the opening one taken already: a dict where items have keys, else a list."""
        self.take(NEVER if depth > DEEPEST else "", f"no more than {DEEPEST} levels")
        keys, values, end = list[Any](), list[Any](), "\\" + CLOSING[opening]
        more = not self.take(f"{WS}({end}?)", "")[1]
        while more:
            if pattern := spelling.keys[opening]:
                key = self.take(pattern, "a key")[1]
                keys.append(self.decode(key, spelling) if key and key[0] in "\"'" else key)
            values.append(self.value(spelling, depth))
            more = self.take(spelling.after.replace("END", end), f"a comma or {CLOSING[opening]}")[1] == ","
        if not spelling.keys[opening] or set(keys) == {None}:  # JSON has no sets, nor tuples
            if opening == "(" and len(values) == 1:
                self.blame("a tuple of one, or none,")
            return values
        if len(set(keys)) < len(keys) or None in keys:
            self.blame("a key stands twice, or not at all,")
        return dict(zip(keys, values))

    def read(self, form: Notation, found: re.Match[str]) -> None:
        """Keep the calls at an opening; one that breaks is the last."""
        self.at, self.fault, self.held = found.start(), "", re.compile(form.held).match(self.text, found.start())
        try:
            form.read(self, form)
        except BrokenCall as broken:
            start = max(found.start(), self.calls[-1].end if self.calls else 0)
            ending = re.compile(f"{form.ends}|(?={form.opening}|{ANSWER})").search(self.text, max(self.at, found.end()))
            self.at, self.fault = ending.end() if ending else len(self.text), self.fault or str(broken)
            self.call(start, {})

    def call(self, start: int, arguments: Any) -> None:
        """Keep the call from `start` to here."""
        types, half = self.types or {}, self.name[: len(self.name) // 2]
        if self.name == f"{half}.{half}" and self.name not in types and half in types:
            self.name = half  # so Muse Glimmer calls what is in no namespace
        if types and self.held and self.name not in types:
            self.blame("a tool of the request expected")
        values = self.fitted(arguments, types.get(self.name, Schema()))
        error, raw = self.unheard or self.fault or None, self.text[start : self.at]
        self.calls.append(ToolCall(self.name, {} if error else values, raw, start, self.at, error))
        self.name = self.fault = ""

    def fitted(self, arguments: Any, schema: Schema) -> Any:
        """The arguments by the tool's schema; where a model gave it a lone "arguments", which it has not, what stands
        in that. Where the model is held to the schema, only what that has, with all that it requires."""
        values, own = typed(arguments, schema), [*schema.nodes(), {}][0]
        if not isinstance(values, dict):
            self.blame("an object of arguments expected")
            return {}
        given, strict = own.get("properties"), self.held is not None and self.held.lastgroup == "full"
        [alone] = values if len(values) == 1 else [""]
        if isinstance(given, dict) and alone in ("arguments", "input", "properties") and alone not in given:
            inner = typed(typed(values[alone], Schema({"type": "object"})), schema)
            values = inner if isinstance(inner, dict) and (strict or inner.keys() <= given.keys()) else values
        if strict:
            values = {key: value for key, value in values.items() if key in (given or values)}
            if missing := [key for key in own.get("required") or () if key not in values]:
                self.blame(f"an argument {missing[0]!r} expected")
        return values


def reading(text: str, spelling: Spelling = JSON) -> Any:
    """What a text says in a spelling, or the text itself."""
    cursor = Cursor(text)
    with suppress(BrokenCall):
        value = cursor.value(spelling)
        cursor.take(WS + r"\Z", "nothing more")
        return text if cursor.fault else value
    return text


# -- types, from the tool's schema -------------------------------------------------------------------------------------

KINDS = {"bool": "boolean", "int": "integer", "float": "number", "str": "string", "list": "array", "dict": "object"}


def kind(value: Any) -> str:
    """JSON Schema's name of a value's type; "integer" for 3.0 too, as there."""
    return "integer" if isinstance(value, float) and value.is_integer() else KINDS.get(type(value).__name__, "null")


class Schema(NamedTuple):
    """A JSON schema, if any, and the root that its references start from."""

    node: Any = None
    root: Any = None

    def nodes(self) -> list[dict[str, Any]]:
        """The schema itself, what it refers to, and its alternatives."""
        found, todo = dict[int, dict[str, Any]](), [self.node]
        for node in todo:
            if isinstance(node, dict) and id(node) not in found:
                found[id(node)], target = node, self.root
                for step in str(node.get("$ref", ""))[2:].split("/"):  # behind "#/"
                    target = target.get(step) if isinstance(target, dict) else None
                todo += [target, *(choice for word in ("anyOf", "oneOf", "allOf") for choice in node.get(word) or ())]
        return [*found.values()]

    def kinds(self) -> set[str]:
        """The types that it allows; empty where it says nothing of them."""
        found = set[str]()
        for node in self.nodes():
            names = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
            found |= {KINDS.get(name, name) for name in names if isinstance(name, str)}  # or Python's
            found |= {kind(value) for value in node.get("enum") or ()}
            found |= {kind(node["const"])} if "const" in node else set()
        return found | ({"integer"} if "number" in found else set())

    def under(self, key: str | None) -> Schema:
        """The schema of a property; or, for None, of a list's items."""
        for node in self.nodes():
            inner, given = node.get("items" if key is None else "additionalProperties"), node.get("properties")
            inner = given.get(key, inner) if isinstance(given, dict) else inner
            if isinstance(inner, dict):
                return Schema(inner, self.root)
        return Schema()


def typed(value: Any, schema: Schema) -> Any:
    """A value with what is Written in it read as one of the types that are allowed; and text, where none may be."""
    allowed = schema.kinds()
    if isinstance(value, tuple):  # of names and what stands under each: a list, or an object, with lists where several
        parts = [part for _, named in value for part in named]
        value = parts if "array" in allowed else {name: named if named[1:] else named[0] for name, named in value}
    if isinstance(value, dict):
        return {key: typed(inner, schema.under(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner, schema.under(None)) for inner in value]
    if not isinstance(value, str) or ("string" in allowed and not isinstance(value, Written)):
        return value
    text = str(value)
    if not allowed:
        return reading(text) if isinstance(value, Bare) else text
    empty: list[Any] = [[], {}] if isinstance(value, Written) and not text.strip() and "string" not in allowed else []
    meanings = (reading(text), reading(text, PYTHON), *empty)  # templates print True and None, so models do
    return next((meant for meant in meanings if not isinstance(meant, str) and kind(meant) in allowed), text)


# -- how calls are written: the readers --------------------------------------------------------------------------------

NAME_KEYS, ARGUMENT_KEYS = ("name", "tool", "function", "tool_name"), ("arguments", "parameters", "args")


class Notation(NamedTuple):
    """One way to write calls; patterns are regular expressions."""

    formats: str  # who writes so: our names, and those of vLLM's parsers, which may have several ways each
    read: Callable[[Cursor, Notation], None]  # from the opening on; leaves the cursor behind the calls
    opening: str  # where a call begins, or a wrapper of calls with nothing in it that can be read
    head: str = ""  # what stands before the arguments, with the name if that is there
    parameter: str = ""  # what stands before a value, where each has its own tags
    close: str = ""  # and behind it
    foot: str = ""  # what stands behind the arguments
    ends: str = NEVER  # where a malformed call ends, unless another begins or the text ends first
    held: str = NEVER  # an opening of models that call tools of the request only; as `full`, by their schemas only
    block: str = ""  # what stands in each text that has such calls; without it they are reported


def json_call(cursor: Cursor, start: int = -1, foot: str = "", keyed: bool = False, alone: bool = False) -> None:
    """The call that an object describes: one name and one set of arguments, which may be JSON inside a string; keyed,
    {"f": {"k": "v"}}; alone, any other object is none. It begins and ends the call, unless a start and a foot do."""
    brace = cursor.take(r"\s*(?=\{)", "an object").end()
    value = cursor.value(JSON)
    owner = value["function"] if isinstance(value.get("function"), dict) else value  # OpenAI's calls have it all there
    told = ([owner[key] for key in keys if key in owner] for keys in (NAME_KEYS, ARGUMENT_KEYS))
    names, arguments = ([*value], [*value.values()]) if keyed else told
    if alone and not (names and arguments):
        return
    cursor.name = names[0] if len(names) == 1 and isinstance(names[0], str) else ""
    if not cursor.name or len(arguments) != 1:
        cursor.blame("one name and one set of arguments expected")
    cursor.take(foot, "the closing tag")
    given = arguments[0] if arguments else None
    cursor.call(brace if start < 0 else start, reading(given) if isinstance(given, str) else given)


def python_call(cursor: Cursor) -> None:
    head = cursor.take(r"\s*(" + NAME + r")\s*\(", "a call")
    cursor.name = head[1]
    cursor.call(head.start(1), cursor.items("f(", PYTHON))


def read_list(one: Callable[..., None], cursor: Cursor, form: Notation) -> None:
    """Calls from the opening to the foot: a list, or one object, whose tags they are, or some without brackets."""
    start = cursor.take(form.opening, "the opening").start()
    bracket, comma = cursor.take(r"\s*(\[?)", "")[1], "," if one is python_call else ";"
    if form.foot and not bracket and one is not python_call:
        one(cursor, start, form.foot)
        return
    one(cursor)
    more = r"\s*(?:(,)(?!\s*\])|(?:,\s*)?\])" if bracket else rf"(?:\s*(?:{comma}\s*)?(?=(\{{|{NAME}\s*\()))?"
    while cursor.take(more, "a comma or ]")[1]:
        one(cursor)
    cursor.take(f"(?:{form.foot})?" if bracket else form.foot, "the closing tag")


def read_named(spelling: Spelling | None, cursor: Cursor, form: Notation) -> None:
    """A head with the name, the arguments, in tags if in no spelling, a foot."""
    found = cursor.take(form.head, "a name and its marker")
    cursor.name = html.unescape(found["name"])
    arguments = cursor.value(spelling) if spelling else tagged(cursor, form, form.foot)
    cursor.take(form.foot if spelling else "", "the closing tag")
    cursor.call(found.start(), arguments)


def tagged(cursor: Cursor, form: Notation, foot: str, depth: int = 0) -> Any:
    """Values in tags that name them, up to the foot: pairs of a name and all values in its tags. Where the closing tag
    has the name again, a value may be such pairs, and a name may stand twice."""
    values, nests = dict[str, list[Any]](), "(?P<again>" in form.close
    cursor.take(NEVER if depth > DEEPEST else "", f"no more than {DEEPEST} levels")
    while key := (tag := cursor.take(rf"\s*(?:{form.parameter}|{foot})", "a parameter or the closing tag"))["key"]:
        xml, bare, string = map(tag.groupdict().get, ("xml", "bare", "string"))
        closing = rf"\]\]>\s*(?P<close>{form.close})" if xml else rf"(?P<close>{form.close})|{form.parameter}"
        end = re.compile(closing).search(cursor.text, cursor.at)
        value: Any = cursor.text[cursor.at : end.start()] if end else ""
        if end and end["close"] is not None:
            cursor.at = end.end()
            value = html.unescape(value) if xml == "" else value
            if string not in ("true", "string", ""):
                value = Bare(value) if string or bare is not None or cursor.types is None else Written(value)
        elif end and nests and not value.strip():
            value = tagged(cursor, form, form.close, depth + 1)
        else:  # with the next one in it, the value would be wrong and well formed
            cursor.at = cursor.at if end else len(cursor.text)
            raise BrokenCall(f"parameter {key!r} is not closed where {'the next begins' if end else 'the text ends'}")
        if nests and not cursor.text.endswith(f"/{key}>", 0, cursor.at):
            cursor.blame(f"parameter {key!r} is not closed by its own tag")
        values.setdefault(html.unescape(key), []).append(value)
    if not nests and any(named[1:] for named in values.values()):
        cursor.blame("a parameter stands twice")
    return tuple(values.items())


def read_json(cursor: Cursor, form: Notation) -> None:
    """An object with a name and arguments, or the beginning of one; any other object is passed over whole."""
    begins = re.compile(r'\{\s*"(?:' + "|".join(NAME_KEYS + ARGUMENT_KEYS) + r')"\s*:').match(cursor.text, cursor.at)
    with nullcontext() if begins else suppress(BrokenCall):
        json_call(cursor, alone=True)


def read_unknown(cursor: Cursor, form: Notation) -> None:
    raise BrokenCall(f"the marker of a call in a format that was not looked for at character {cursor.at}")


# -- the formats -------------------------------------------------------------------------------------------------------

BLOCK = "<(?:minimax:tool_call|dots_function_call|SPACE(?:function_|tool_)?calls)>"
PLACES = {  # what stands in a template for what; the rest of it is a regular expression
    " ": r"\s*", "<|": r"<\|", "|>": r"\|>", "NAME": r"(?P<name>[^\s<>{}\[\]]+)", "TITLE": r'(?P<name>[^<>"]+?)',
    "KEY": r'(?P<key>[^<>"]+?)', "STRING": r'(?P<string>[^<>"]*)', "~>": r"(?::\w+)?>", "~": r"(?:ifm\|)?",
    "SPACE": "(?:｜DSML｜ ?|atem:)?", "BARE": "(?P<bare>(?=atem:))?", "«": r"<\|plamo:", "»": r":plamo\|>",
    "M3": r"\]<\]minimax\[>\[", "LIST": r"(?:tool_calls|longcat_tool_call|dots_function_call|ifm\|tool_call)",
}  # fmt: skip
BODIES: dict[str, Callable[[Cursor, Notation], None]] = {
    "CALLS": partial(read_list, json_call), "KEYED": partial(read_list, partial(json_call, keyed=True)),
    "PYTHON": partial(read_list, python_call), "OBJECT": partial(read_named, JSON), "GEMMA": partial(read_named, GEMMA),
}  # fmt: skip


def notation(formats: str, template: str, wrapper: str = NEVER, **more: str) -> Notation:
    """By a template: a head, a word of BODIES or between dots a parameter, a foot; white space may be any or none.
    The opening is what stands before the first space or the name, or a wrapper that is not followed by it."""
    head, body, foot = re.split(r" (\.\.\..+\.\.\.|" + "|".join(BODIES) + ") ?", template)
    begins = re.split(" |NAME|TITLE", head)[0]
    parts = {"opening": f"{wrapper}(?! (?:{begins}))|{begins}", "head": head, "ends": foot or NEVER}
    parts["parameter"], _, parts["close"] = body.strip(".").partition("VALUE")
    parts["foot"] = f" (?:{foot}|{CUT})" if foot and body in BODIES else foot
    places = "|".join(map(re.escape, PLACES))
    filled = {key: re.sub(places, lambda place: PLACES[place[0]], part) for key, part in (parts | more).items()}
    return Notation(formats, BODIES.get(body, partial(read_named, None)), **filled)


# Where two begin alike, the one that stands first takes the call. Objects are {"name": "f", "arguments": {"k": "v"}}.
MARKED = [
    notation("hermes granite xlam granite4 qwen3_json ernie45",
             r"<tool_call>(?!\s*<function=|\s*[^\W\d][\w.:-]*\s*<(?:arg_key|tool_sep|/tool_call)) CALLS </tool_call>"),
    notation("granite granite-20b-fc gigachat3 llama llama3_json llama4_json phi4_mini_json",
             r"(?:<|(?:tool_call|python_tag)|>|<|?function_call\|?>|function\scall<|role_sep|>|functools(?=\[)) CALLS"),
    notation("jamba hunyuan_a13b longcat dots k2_horizon", r"<LIST>(?!\s*[^\s\[{]) CALLS </LIST>", held="<dots|<ifm"),
    notation("internlm", r"<|action_start|>\s*<|plugin|> CALLS <|action_end|>"),
    notation("cohere cohere_command3 cohere_command4", "<|START_ACTION|> CALLS <|END_ACTION|>"),
    notation("inkling", "<|content_invoke_tool_json|> CALLS (?:<|end_message|>|<|content_model_end_sampling|>)"),
    notation("mistral xlam", r"\[TOOL_CALLS\](?=\s*(?:\{|\[(?!TOOL_CALLS\]))) CALLS", ends=r"(?=\[TOOL_CALLS\])"),
    notation("apertus", "<|tools_prefix|> KEYED <|tools_suffix|>"),  # {"f": {"k": "v"}}
    notation("olmo3", r"<function_calls>(?=\s*(?:\[\s*)?[^\W\d][\w.]*\s*\() PYTHON </function_calls>"),
    notation("lfm2 llama4_pythonic llama", "<|(?:tool_call|python)_start|> PYTHON <|(?:tool_call|python)_end|>"),
    notation("mistral", r"\[TOOL_CALLS\] (?P<name>[^\s\[\]{}]+)(?:\[CALL_ID\][^\s\[{]*)?(?:\[ARGS\])?(?=\s*\{) OBJECT",
             opening=r"\[TOOL_CALLS\](?!\s*\[TOOL_CALLS\])"),
    notation("deepseek deepseek_v3 deepseek_v31", "<｜tool▁call▁begin｜> (?:function<｜tool▁sep｜>)?"  # v3 has a fence
             "NAME (?:<｜tool▁sep｜>|```json) OBJECT (?:``` )?<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>"),
    notation("kimi kimi_k2", r"<|tool_call_begin|> (?:functions\.)?NAME:\d+ <|tool_call_argument_begin|> OBJECT "
             "<|tool_call_end|>", "<|tool_calls_section_begin|>"),
    notation("plamo3", "«begin_tool_request» «begin_tool_name»NAME«end_tool_name» «begin_tool_arguments»"
             "(?:«constrain|>json«msg|>)? OBJECT «end_tool_arguments»(?: «end_tool_request»)?",
             "«begin_tool_requests»"),
    notation("gemma gemma4 functiongemma", r"(?:<|tool_call>|<start_function_call>) (?:call)?: NAME(?=\s*\{) GEMMA "
             "(?:<tool_call|>|<end_function_call>)"),
    notation("openai", r"to=(?:functions\.)?NAME(?: <|channel|>\w+)? (?:<|constrain|>)?(?:json)?<|message|> OBJECT "
             "(?:<|call|>|<|end|>)", opening=r"\bto=functions\.|\bto=[\w.-]+\s(?:<|constrain|>)?json<|message|>"),
    notation("minimax_m3", """(?:M3<tool_call> )?M3<invoke name=["']?TITLE["']?> ...M3<(?P<key>[^<>/][^<>]*)>VALUE"""
             "M3</(?P<again>[^<>]*)>...M3</invoke>", opening="M3<(?:tool_call>|invoke )", block="M3<tool_call>"),
    notation("glm glm45 glm47 ling3 hy_v3 hy_v4 poolside_v1 k2_horizon",
             r"<~tool_call~>(?!\s*[{\[<]) NAME (?:<tool_sep~>)? ...<~arg_key~>KEY</~arg_key~> "
             "(?:<~arg_type>STRING</~arg_type> )?<~arg_value~>VALUE</~arg_value~>...</~tool_call~>", held="<ifm"),
    *(notation(formats, f"(?:<(?:seed:)?tool_call> )?<function=TITLE> ...<parameter=KEY>{margin}</parameter>..."
               "</function>(?: </(?:seed:)?tool_call>)?", ends="</(?:seed:)?tool_call>",  # models forget one
               opening=r"<seed:tool_call>|<tool_call>(?!\s*[{\[])|<function=[^<>]+>(?!\s*\{)")
      for formats, margin in {"qwen_coder qwen3_coder qwen3_xml step3p5 seed_oss": r"\n?VALUE\n?",
                              "mimo": "(?P<string>)VALUE"}.items()),  # word for word
    notation("llama", "<function=TITLE> OBJECT </function>"),
    notation("minicpm5", r"""<function[\sĠ]*name=["']TITLE["'][^<>]*> ...<param[\sĠ]*name=["']KEY["'] >"""
             r"(?P<xml> <!\[CDATA\[|)VALUE</param>...</function>", opening=r"<function[\sĠ]*name=", held="(?P<full>)"),
    notation("invoke minimax_m2 deepseek deepseek_v32 deepseek_v4 deepseek_v41 dots muse_glimmer",
             r"""<SPACEinvoke name=["']?TITLE["']?> ...<BARESPACEparameter name=["']?KEY["']?(?:\sstring="STRING")?>"""
             "VALUE</SPACEparameter>...</SPACEinvoke>", rf"{BLOCK}(?! (?:{BLOCK}|<tool_call>|[\[{{]))", held="<invoke"),
    notation("step3", '<｜tool_call_begin｜> function<｜tool_sep｜> <steptml:invoke name="TITLE"> ...'
             '<steptml:parameter name="KEY">VALUE</steptml:parameter>...</steptml:invoke>(?: <｜tool_call_end｜>)?',
             "<｜tool_calls_begin｜>"),
    notation("kimi_k3", '<|open|>call tool="(?P<name>[^"]+)"[^<>]*<|sep|> ...<|open|>argument key="(?P<key>[^"]+)"'
             '(?: type="STRING")?<|sep|>VALUE<|close|>argument<|sep|>...<|close|>call<|sep|>', "<|open|>tools<|sep|>"),
]  # fmt: skip
# {"name": "f", "arguments": {"k": "v"}}, in a fence, in a list, in prose
BARE_JSON = Notation("json xlam llama llama3_json llama4_json phi4_mini_json", read_json, r'\{(?=\s*")', ends="(?=)")
PYTHON_OPENING = rf"(?=\[\s*{NAME}\s*\()|(?:\A|(?<=</think>))\s*(?={NAME}\s*\()"  # [f(k=1), g()], or f() at the start
BARE_PYTHON = Notation("pythonic llama4_pythonic", BODIES["PYTHON"], PYTHON_OPENING)
ANY = [*MARKED, BARE_JSON]
FORMATS = {"auto": ANY, "hf": ANY}  # hf: whatever the checkpoint's own template says
for form in [*ANY, BARE_PYTHON]:
    for name in form.formats.split():
        FORMATS.setdefault(name, []).append(form)

UNKNOWN = Notation("", read_unknown, ends="(?=)", opening="|".join((
    *(form.opening for form in MARKED),  # and what looks like one
    r"[<\[][^\s<>\[\]/]{0,40}(?i:tool|function)[▁_-]?(?i:call|use|request)[^\s<>\[\]/]{0,40}[>\]]",
    r"<\|[^\s<>|/]{0,40}(?i:tool|function|invoke|action)[^\s<>|/]{0,40}\|>",
    r"<[\w:.-]{0,40}(?i:tool|function|invoke|call)\s+(?:name|tool)=",
)))  # fmt: skip

THOUGHTS = {
    "<think>": "</think>", "<seed:think>": "</seed:think>", "[THINK]": "[/THINK]", "<|channel>": "<channel|>",
    "<|START_THINKING|>": "<|END_THINKING|>", "<|plamo:begin_think:plamo|>": "<|plamo:end_think:plamo|>",
    # and what is said to others than a tool, whose ends are those of calls too
    "<|channel|>analysis<|message|>": "<|end|>", "<|content_thinking|>": "<|end_message|>",
    "to=self<|message|>": "<|eom|>", "to=user<|message|>": "<|eot|>",
}  # fmt: skip
ANSWER = "|".join(re.escape(end) for end in THOUGHTS.values() if not end.startswith("<|e"))
THOUGHT = "|".join(map(re.escape, THOUGHTS))


def calls_in(text: str, forms: Sequence[Notation], types: Mapping[str, Schema] | None = None) -> list[ToolCall]:
    """Each call, well formed or not, in text order. What a model thinks aloud holds none: not between the tags of a
    thought, nor before a closing one whose opening was in the prompt; in one that never closes, a call is an error."""
    opening = re.compile("|".join(f"({pattern})" for pattern in [*(form.opening for form in forms), THOUGHT, ANSWER]))
    cursor = Cursor(text, types)
    while found := opening.search(text, cursor.at):
        which, cursor.at = int(found.lastindex or 0) - 1, found.end()
        if which == len(forms):
            end = -1 if cursor.unheard else text.find(THOUGHTS[found[0]], cursor.at)  # looked for in vain once only
            cursor.unheard = "in a thought that is not closed" if end < 0 else ""
            cursor.at = max(cursor.at, end + len(THOUGHTS[found[0]]))
        elif which > len(forms):
            cursor.calls, cursor.unheard = [], ""
        elif not (cursor.unheard and forms[which] is BARE_JSON):
            cursor.read(forms[which], found)
    return cursor.calls


def is_call_list(text: str, start: int) -> bool:
    """Whether a text is from there on nothing but calls in Python's way, or a malformed or cut off list of them."""
    cursor = Cursor(text, at=start)
    with suppress(BrokenCall):
        BARE_PYTHON.read(cursor, BARE_PYTHON)
        return not text[cursor.at :].strip()
    ends = cursor.at == len(text) or text.rstrip().endswith("]")
    return ends and re.compile(rf"\s*\[\s*{NAME}\s*\(").match(text, start) is not None


def parse_tool_calls(text: str, *, format: str = "auto", tools: Sequence[Any] | None = None) -> list[ToolCall]:
    """The tool calls in a model's text, in order. Nothing is evaluated, and a malformed or truncated call is one with
    an `error`, never a guess and never an exception; so is the marker of a call in a format that is not known, or not
    asked for, where nothing else is found. What stands in <think> is no call.

    format: a key of FORMATS, among them the names of vLLM's parsers; or "auto": "pythonic" where the whole answer is
    calls in Python's way, else every other format, each call in that of its opening.
    tools: as the request had them. They give types to the values of formats that write none (<parameter=k>5</parameter>
    is "5" where the schema says string, and where it says nothing); without, such a value is JSON if it can be. Some
    models are held to them: a call of another is an error. Linear in len(text). Raises OptionError for an unknown
    format, or a tool without a name. Where a marker is a special token ([TOOL_CALLS]), pass GenerationResult.raw_text.
    """
    if not isinstance(format, str) or format not in FORMATS:
        raise OptionError(f"no tool call format {format!r}", fix=did_you_mean(format, FORMATS))
    types = dict[str, Schema]()
    for index, tool in enumerate(tools or ()):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            fix = 'pass {"type": "function", "function": {"name": ..., "parameters": {...}}}'
            raise OptionError(f"tools[{index}] is no description of a function", fix=fix)
        types[function["name"]] = Schema(function.get("parameters"), function.get("parameters"))
    answer = max((found.end() for found in re.finditer(ANSWER, text)), default=0)
    pythonic = FORMATS[format] is ANY and any(is_call_list(text, start) for start in {0, answer})
    forms = [BARE_PYTHON] if pythonic else [form for form in FORMATS[format] if re.search(form.block, text)]
    return calls_in(text, forms, None if tools is None else types) or calls_in(text, [UNKNOWN])
