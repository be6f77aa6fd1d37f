# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""The tool calls in a model's text: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="tool_calls"`, and

    from acme.llm.tool_calls import parse_tool_calls

    for call in parse_tool_calls(result.text, tools=tools):
        print(call.error or (call.name, call.arguments))

gen_engine finds this file beside itself where messages hold tool calls.
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
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["ToolCall", "for_template", "parse_tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call in a model's text, well formed (`error` is None) or not.

    arguments: only what JSON can say, in every format; empty where the call is malformed.
    name: of a malformed call, "" where it did not get as far.
    raw_text: text[start:end], the call with its own tags, without the marker or the brackets of a
        list of calls.
    error: what is wrong, and at which character. Never run such a call."""

    name: str
    arguments: dict[str, Any]
    raw_text: str
    start: int
    end: int
    error: str | None = None


class BrokenCall(ValueError):
    """Why a call cannot be read; becomes ToolCall.error."""


# == How values are written ==


class Written(str):
    """A value without a type: its tool's schema gives it one; where that is silent, it is its
    text."""


class Bare(Written):
    """One that is what it says as JSON where no schema speaks."""


class Spelling(NamedTuple):
    """How values are written, as regular expressions whose group 1 counts."""

    value: str  # an atom, for `decode`, or an opening bracket
    keys: Mapping[str, str]  # opening bracket -> a key, "" where items have none
    after: str  # what follows an item, a comma or the END: the closing bracket
    decode: Callable[[str], Any]


def python_atom(token: str) -> Any:
    """A string, number, True, False or None. A string may hold line ends, as a shell script does,
    and NUL, which literal_eval refuses; and of an unknown escape, as in "\\d", it warns: doubled,
    that backslash means the same."""
    # Models mix Python's words with JSON's.
    token = {"true": "True", "false": "False", "null": "None"}.get(token, token)
    token = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", token)  # 07, as they write a month
    raw = {"\n": r"\n", "\r": r"\r", "\0": r"\x00", "\\": r"\\"}
    escape = r"""\\[\n\\'"abfnrtvNuUx0-7]|[\n\r\0\\]"""
    return ast.literal_eval(re.sub(escape, lambda found: raw.get(found[0], found[0]), token))


# Each pattern takes time linear in what it tries: no two runs that can share a character
# (\s*x?\s*) stand in a row.
WS = r"[ \t\n\r]*"  # JSON's; \s would also eat a no-break space at the end of a text
NAME = r"[^\W\d][\w.]*"
JSON_STRING = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
JSON_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"  # NaN and Infinity are none
PYTHON_STRING = r"""(?s:(?P<quote>'''|\"""|'|")(?:\\.|(?!(?P=quote))[^\\])*(?P=quote))"""
PYTHON_NUMBER = r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
LAST_STRINGS = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"\s*|\\)?' + "|" + r"'[^'\\]*(?:\\.[^'\\]*)*(?:'\s*|\\)?"
LAST_TOKEN = rf"(?s:\s*(?:{LAST_STRINGS}|[\w.+-]+\s*)?\Z)"
PYTHON_WORDS = "True|False|None|true|false|null"
JSON = Spelling(
    value=WS + r"([{\[]|" + JSON_STRING + "|" + JSON_NUMBER + "|true|false|null)",
    keys={"{": WS + "(" + JSON_STRING + ")" + WS + ":", "[": ""},
    after=WS + "(,|END)",
    decode=json.loads,
)
PYTHON = Spelling(
    value=rf"\s*([{{\[(]|{PYTHON_STRING}|{PYTHON_NUMBER}|{PYTHON_WORDS})",
    keys={
        "{": rf"\s*(?:({PYTHON_STRING})\s*:)?",
        "[": "",
        "(": "",
        "f(": r"\s*([^\W\d]\w*)\s*=",
    },
    after=r"\s*(?:,\s*(?=END))?(,|END)",  # a trailing comma is none
    decode=python_atom,
)


def gemma_atom(token: str) -> str:
    if token.startswith("<"):
        return token.split(">", 1)[1].rpartition("<")[0]
    return Bare(token.strip())


GEMMA_STRING = r'(?P<quote><\|"\|>|<escape>)(?s:.*?)(?P=quote)'
GEMMA_QUOTE = r'(?:<\|"\|>)?'
GEMMA = Spelling(
    value=rf"\s*([{{\[]|{GEMMA_STRING}|[^\s<,{{}}\[\]][^<,{{}}\[\]]*)",
    keys={"{": rf'\s*{GEMMA_QUOTE}([^\s<>|,:{{}}\[\]"]+){GEMMA_QUOTE}\s*:', "[": ""},
    after=r"\s*(,|END)",
    decode=gemma_atom,
)
CLOSING = {"{": "}", "[": "]", "(": ")", "f(": ")"}
NEVER = "(?!)"
CUT = r"(?:<[^<>{}]*)?\Z"  # a text may end in a closing tag: it was the stop
DEEPEST = 128  # levels of nesting: arguments have a handful; each takes two of Python's frames


class Cursor:
    """A position in a text that moves right only. A call that breaks is read no further than to
    where it broke, so the time is linear in the text, whatever that holds.

    Not raw_decode and ast.parse: a JSONDecodeError counts the lines before it, which makes many
    broken calls quadratic; a RecursionError does not say where it was; and both read numbers and
    names that JSON does not have.
    name, fault: of the call that is read; a fault leaves the text readable, but not the call.
    unheard: why no call is one from here on.
    held: whether the call that is read is to be one of the request's tools."""

    def __init__(self, text: str, types: Mapping[str, Schema] | None = None, at: int = 0) -> None:
        self.text = text
        self.types = types
        self.at = at
        self.calls: list[ToolCall] = []
        self.name = ""
        self.fault = ""
        self.unheard = ""
        self.held: re.Match[str] | None = None

    def take(self, pattern: str, expected: str) -> re.Match[str]:
        """Move over `pattern`, or raise BrokenCall."""
        match = re.compile(pattern).match(self.text, self.at)
        if not match:
            where = f"at character {self.at}"
            if re.compile(LAST_TOKEN).match(self.text, self.at):  # the text is cut, here or before
                where = "where the text ends"
                self.at = len(self.text)
            raise BrokenCall(f"{expected} expected {where}")
        self.at = match.end()
        return match

    def blame(self, what: str) -> None:
        """Note the first fault."""
        self.fault = self.fault or f"{what} before character {self.at}"

    def value(self, spelling: Spelling, depth: int = 0) -> Any:
        token = self.take(spelling.value, "a value")[1]
        if token in spelling.keys:
            return self.items(token, spelling, depth + 1)
        return self.decode(token, spelling)

    def decode(self, token: str, spelling: Spelling) -> Any:
        try:
            value = spelling.decode(token)
            if value in (1e999, -1e999):  # what Python makes of both is no number in JSON
                raise ValueError("number out of range")
            return value
        except (SyntaxError, ValueError) as error:
            # an unknown \N{name}, or more digits than Python converts
            self.blame(f"bad value, {error},")

    def items(self, opening: str, spelling: Spelling, depth: int = 0) -> Any:
        """What stands in brackets, the opening one taken already: a dict where items have keys,
        else a list."""
        self.take(NEVER if depth > DEEPEST else "", f"no more than {DEEPEST} levels")
        key_pattern = spelling.keys[opening]
        closing = "\\" + CLOSING[opening]
        keys: list[Any] = []
        values: list[Any] = []
        more = not self.take(f"{WS}({closing}?)", "")[1]
        while more:
            if key_pattern:
                keys.append(self.key(key_pattern, spelling))
            values.append(self.value(spelling, depth))
            after = spelling.after.replace("END", closing)
            more = self.take(after, f"a comma or {CLOSING[opening]}")[1] == ","
        if not key_pattern or set(keys) == {None}:  # JSON has no sets, nor tuples
            if opening == "(" and len(values) == 1:
                self.blame("a tuple of one, or none,")
            return values
        if len(set(keys)) < len(keys) or None in keys:
            self.blame("a key stands twice, or not at all,")
        return dict(zip(keys, values))

    def key(self, pattern: str, spelling: Spelling) -> Any:
        key = self.take(pattern, "a key")[1]
        is_quoted = bool(key) and key[0] in "\"'"
        return self.decode(key, spelling) if is_quoted else key

    def read(self, form: Notation, found: re.Match[str]) -> None:
        """Keep the calls at an opening; one that breaks is the last."""
        self.at = found.start()
        self.fault = ""
        self.held = re.compile(form.held).match(self.text, found.start())
        try:
            form.read(self, form)
        except BrokenCall as broken:
            start = max(found.start(), self.calls[-1].end if self.calls else 0)
            ends = re.compile(f"{form.ends}|(?={form.opening}|{ANSWER})")
            ending = ends.search(self.text, max(self.at, found.end()))
            self.at = ending.end() if ending else len(self.text)
            self.fault = self.fault or str(broken)
            self.call(start, {})

    def call(self, start: int, arguments: Any) -> None:
        """Keep the call from `start` to here."""
        types = self.types or {}
        self.name = without_namespace(self.name, types)
        if types and self.held and self.name not in types:
            self.blame("a tool of the request expected")
        values = self.fitted(arguments, types.get(self.name, Schema()))
        error = self.unheard or self.fault or None
        raw = self.text[start : self.at]
        kept = {} if error else values
        self.calls.append(ToolCall(self.name, kept, raw, start, self.at, error))
        self.name = ""
        self.fault = ""

    def fitted(self, arguments: Any, schema: Schema) -> Any:
        """The arguments by the tool's schema; where a model gave it a lone "arguments", which it
        has not, what stands in that. Where the model is held to the schema, only what that has,
        with all that it requires."""
        values = typed(arguments, schema)
        if not isinstance(values, dict):
            self.blame("an object of arguments expected")
            return {}
        nodes = schema.nodes()
        own = nodes[0] if nodes else {}
        is_strict = self.held is not None and self.held.lastgroup == "full"
        properties = own.get("properties")
        if isinstance(properties, dict):
            values = unwrapped(values, schema, properties, is_strict)
        if is_strict:
            return self.held_to(values, own)
        return values

    def held_to(self, values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        known = own.get("properties") or values
        values = {key: value for key, value in values.items() if key in known}
        for key in own.get("required") or ():
            if key not in values:
                self.blame(f"an argument {key!r} expected")
        return values


def without_namespace(name: str, types: Mapping[str, Schema]) -> str:
    """Muse Glimmer calls what is in no namespace "f.f"."""
    half = name[: len(name) // 2]
    is_doubled = name == f"{half}.{half}" and name not in types
    return half if is_doubled and half in types else name


def unwrapped(
    values: dict[str, Any],
    schema: Schema,
    properties: dict[str, Any],
    is_strict: bool,
) -> dict[str, Any]:
    """The arguments, or those in a lone argument that the tool does not have."""
    [alone] = values if len(values) == 1 else [""]
    if alone not in ("arguments", "input", "properties") or alone in properties:
        return values
    inner = typed(typed(values[alone], Schema({"type": "object"})), schema)
    if isinstance(inner, dict) and (is_strict or inner.keys() <= properties.keys()):
        return inner
    return values


def reading(text: str, spelling: Spelling = JSON) -> Any:
    """What a text says in a spelling, or the text itself."""
    cursor = Cursor(text)
    with suppress(BrokenCall):
        value = cursor.value(spelling)
        cursor.take(WS + r"\Z", "nothing more")
        return text if cursor.fault else value
    return text


# == Types, from the tool's schema ==

KINDS = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "array",
    "dict": "object",
}


def kind(value: Any) -> str:
    """JSON Schema's name of a value's type; "integer" for 3.0 too, as there."""
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return KINDS.get(type(value).__name__, "null")


class Schema(NamedTuple):
    """A JSON schema, if any, and the root that its references start from."""

    node: Any = None
    root: Any = None

    def nodes(self) -> list[dict[str, Any]]:
        """The schema itself, what it refers to, and its alternatives."""
        found: dict[int, dict[str, Any]] = {}
        todo = [self.node]
        for node in todo:
            if not isinstance(node, dict) or id(node) in found:
                continue
            found[id(node)] = node
            todo.append(self.target(node))
            for word in ("anyOf", "oneOf", "allOf"):
                todo += node.get(word) or ()
        return [*found.values()]

    def target(self, node: dict[str, Any]) -> Any:
        """What a node refers to."""
        target = self.root
        for step in str(node.get("$ref", ""))[2:].split("/"):  # behind "#/"
            target = target.get(step) if isinstance(target, dict) else None
        return target

    def kinds(self) -> set[str]:
        """The types that it allows; empty where it says nothing of them."""
        found: set[str] = set()
        for node in self.nodes():
            names = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
            for name in names:
                if isinstance(name, str):
                    found.add(KINDS.get(name, name))  # or Python's
            found |= {kind(value) for value in node.get("enum") or ()}
            if "const" in node:
                found.add(kind(node["const"]))
        return found | ({"integer"} if "number" in found else set())

    def under(self, key: str | None) -> Schema:
        """The schema of a property; or, for None, of a list's items."""
        for node in self.nodes():
            inner = node.get("items" if key is None else "additionalProperties")
            properties = node.get("properties")
            if isinstance(properties, dict):
                inner = properties.get(key, inner)
            if isinstance(inner, dict):
                return Schema(inner, self.root)
        return Schema()


def typed(value: Any, schema: Schema) -> Any:
    """A value with what is Written in it read as one of the types that are allowed; and text, where
    none may be."""
    if isinstance(value, tuple):
        value = untagged(value, schema)
    if isinstance(value, dict):
        return {key: typed(inner, schema.under(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner, schema.under(None)) for inner in value]
    if not isinstance(value, str):
        return value
    return typed_text(value, schema.kinds())


def untagged(pairs: tuple[Any, ...], schema: Schema) -> Any:
    """Names and what stands under each as a list, or as an object, with lists where several stand
    under one name."""
    if "array" in schema.kinds():
        return [part for _, named in pairs for part in named]
    return {name: named if named[1:] else named[0] for name, named in pairs}


def typed_text(value: str, allowed: set[str]) -> Any:
    is_written = isinstance(value, Written)
    if "string" in allowed and not is_written:
        return value
    text = str(value)
    if not allowed:
        return reading(text) if isinstance(value, Bare) else text
    return meant_by(text, allowed, is_written)


def meant_by(text: str, allowed: set[str], is_written: bool) -> Any:
    """What a text says as a value of one of these types, or the text itself."""
    is_empty = is_written and not text.strip() and "string" not in allowed
    empty: list[Any] = [[], {}] if is_empty else []
    # Templates print True and None, so models do.
    for meant in (reading(text), reading(text, PYTHON), *empty):
        if not isinstance(meant, str) and kind(meant) in allowed:
            return meant
    return text


# == How calls are written: the readers ==

NAME_KEYS = ("name", "tool", "function", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters", "args")


class Notation(NamedTuple):
    """One way to write calls; patterns are regular expressions.

    formats: who writes so: our names, and those of vLLM's parsers, which may have several ways.
    read: from the opening on; leaves the cursor behind the calls.
    opening: where a call begins, or a wrapper of calls with nothing in it that can be read.
    head: what stands before the arguments, with the name if that is there.
    parameter, close: what stands before and behind a value, where each has its own tags.
    foot: what stands behind the arguments.
    ends: where a malformed call ends, unless another begins or the text ends first.
    held: an opening of models that call tools of the request only; as `full`, by their schemas.
    block: what stands in each text that has such calls; without it they are reported."""

    formats: str
    read: Callable[[Cursor, Notation], None]
    opening: str
    head: str = ""
    parameter: str = ""
    close: str = ""
    foot: str = ""
    ends: str = NEVER
    held: str = NEVER
    block: str = ""


def values_of(keys: Sequence[str], record: Mapping[str, Any]) -> list[Any]:
    return [record[key] for key in keys if key in record]


def names_and_arguments(value: dict[str, Any], keyed: bool) -> tuple[list[Any], list[Any]]:
    if keyed:
        return [*value], [*value.values()]
    inner = value.get("function")
    owner = inner if isinstance(inner, dict) else value  # OpenAI's calls have it all in there
    return values_of(NAME_KEYS, owner), values_of(ARGUMENT_KEYS, owner)


def json_call(
    cursor: Cursor,
    start: int = -1,
    foot: str = "",
    keyed: bool = False,
    alone: bool = False,
) -> None:
    """The call that an object describes: one name and one set of arguments, which may be JSON
    inside a string; keyed, {"f": {"k": "v"}}; alone, any other object is none. It begins and ends
    the call, unless a start and a foot do."""
    brace = cursor.take(r"\s*(?=\{)", "an object").end()
    names, arguments = names_and_arguments(cursor.value(JSON), keyed)
    if alone and not (names and arguments):
        return
    cursor.name = names[0] if len(names) == 1 and isinstance(names[0], str) else ""
    if not cursor.name or len(arguments) != 1:
        cursor.blame("one name and one set of arguments expected")
    cursor.take(foot, "the closing tag")
    given = next(iter(arguments), None)
    begins = brace if start < 0 else start
    cursor.call(begins, reading(given) if isinstance(given, str) else given)


def python_call(cursor: Cursor) -> None:
    head = cursor.take(r"\s*(" + NAME + r")\s*\(", "a call")
    cursor.name = head[1]
    cursor.call(head.start(1), cursor.items("f(", PYTHON))


def read_list(one: Callable[..., None], cursor: Cursor, form: Notation) -> None:
    """Calls from the opening to the foot: a list, or one object, whose tags they are, or some
    without brackets."""
    start = cursor.take(form.opening, "the opening").start()
    bracket = cursor.take(r"\s*(\[?)", "")[1]
    comma = "," if one is python_call else ";"
    if form.foot and not bracket and one is not python_call:
        one(cursor, start, form.foot)
        return
    one(cursor)
    more = rf"(?:\s*(?:{comma}\s*)?(?=(\{{|{NAME}\s*\()))?"
    if bracket:
        more = r"\s*(?:(,)(?!\s*\])|(?:,\s*)?\])"
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
    """Values in tags that name them, up to the foot: pairs of a name and all values in its tags.
    Where the closing tag has the name again, a value may be such pairs, and a name may stand
    twice."""
    cursor.take(NEVER if depth > DEEPEST else "", f"no more than {DEEPEST} levels")
    values: dict[str, list[Any]] = {}
    nests = "(?P<again>" in form.close
    expected = "a parameter or the closing tag"
    next_tag = rf"\s*(?:{form.parameter}|{foot})"
    while key := (tag := cursor.take(next_tag, expected))["key"]:
        end = value_end(cursor, form, tag)
        value: Any
        if nests and is_next_parameter(cursor, end):
            value = tagged(cursor, form, form.close, depth + 1)
        else:
            value = tagged_text(cursor, tag, end)
        if nests and not cursor.text.endswith(f"/{key}>", 0, cursor.at):
            cursor.blame(f"parameter {key!r} is not closed by its own tag")
        values.setdefault(html.unescape(key), []).append(value)
    if not nests and any(named[1:] for named in values.values()):
        cursor.blame("a parameter stands twice")
    return tuple(values.items())


def value_end(cursor: Cursor, form: Notation, tag: re.Match[str]) -> re.Match[str] | None:
    """Where the value behind a tag ends: at its closing tag, or at the next parameter."""
    if tag.groupdict().get("xml"):
        closing = rf"\]\]>\s*(?P<close>{form.close})"
    else:
        closing = rf"(?P<close>{form.close})|{form.parameter}"
    return re.compile(closing).search(cursor.text, cursor.at)


def is_next_parameter(cursor: Cursor, end: re.Match[str] | None) -> bool:
    """Whether a value ends at the next parameter, with nothing before that."""
    if end is None or end["close"] is not None:
        return False
    return not cursor.text[cursor.at : end.start()].strip()


def tagged_text(cursor: Cursor, tag: re.Match[str], end: re.Match[str] | None) -> str:
    """The value behind a tag, as its text."""
    if end is None or end["close"] is None:
        # With the next one in it, the value would be wrong and well formed.
        cursor.at = cursor.at if end else len(cursor.text)
        where = "the next begins" if end else "the text ends"
        raise BrokenCall(f"parameter {tag['key']!r} is not closed where {where}")
    groups = tag.groupdict()
    value = cursor.text[cursor.at : end.start()]
    cursor.at = end.end()
    if groups.get("xml") == "":
        value = html.unescape(value)
    string = groups.get("string")
    if string in ("true", "string", ""):
        return value
    is_bare = bool(string) or groups.get("bare") is not None or cursor.types is None
    return Bare(value) if is_bare else Written(value)


def read_json(cursor: Cursor, form: Notation) -> None:
    """An object with a name and arguments, or the beginning of one; any other object is passed over
    whole."""
    keys = "|".join(NAME_KEYS + ARGUMENT_KEYS)
    begins = re.compile(rf'\{{\s*"(?:{keys})"\s*:').match(cursor.text, cursor.at)
    with nullcontext() if begins else suppress(BrokenCall):
        json_call(cursor, alone=True)


def read_unknown(cursor: Cursor, form: Notation) -> None:
    problem = "the marker of a call in a format that was not looked for"
    raise BrokenCall(f"{problem} at character {cursor.at}")


# == The formats ==

BLOCK = "<(?:minimax:tool_call|dots_function_call|SPACE(?:function_|tool_)?calls)>"
PLACES = {  # what stands in a template for what; the rest of it is a regular expression
    " ": r"\s*",
    "<|": r"<\|",
    "|>": r"\|>",
    # With a limit, or each of many openings would read the whole text.
    "NAME": r"(?P<name>[^\s<>{}\[\]]{1,256})",
    "TITLE": r'(?P<name>[^<>"]+?)',
    "KEY": r'(?P<key>[^<>"]+?)',
    "STRING": r'(?P<string>[^<>"]*)',
    "~>": r"(?::\w+)?>",
    "~": r"(?:ifm\|)?",
    "SPACE": "(?:｜DSML｜ ?|atem:)?",
    "BARE": "(?P<bare>(?=atem:))?",
    "«": r"<\|plamo:",
    "»": r":plamo\|>",
    "M3": r"\]<\]minimax\[>\[",
    "LIST": r"(?:tool_calls|longcat_tool_call|dots_function_call|ifm\|tool_call)",
}
BODIES: dict[str, Callable[[Cursor, Notation], None]] = {
    "CALLS": partial(read_list, json_call),
    "KEYED": partial(read_list, partial(json_call, keyed=True)),
    "PYTHON": partial(read_list, python_call),
    "OBJECT": partial(read_named, JSON),
    "GEMMA": partial(read_named, GEMMA),
}


def notation(formats: str, template: str, wrapper: str = NEVER, **more: str) -> Notation:
    """By a template: a head, a word of BODIES or between dots a parameter, a foot; white space may
    be any or none. The opening is what stands before the first space or the name, or a wrapper that
    is not followed by it."""
    head, body, foot = re.split(r" (\.\.\..+\.\.\.|" + "|".join(BODIES) + ") ?", template)
    begins = re.split(" |NAME|TITLE", head)[0]
    parameter, _, close = body.strip(".").partition("VALUE")
    parts = {
        "opening": f"{wrapper}(?! (?:{begins}))|{begins}",
        "head": head,
        "parameter": parameter,
        "close": close,
        "foot": f" (?:{foot}|{CUT})" if foot and body in BODIES else foot,
        "ends": foot or NEVER,
        **more,
    }
    filled = {name: with_places(part) for name, part in parts.items()}
    return Notation(formats, BODIES.get(body, partial(read_named, None)), **filled)


def with_places(template: str) -> str:
    places = "|".join(map(re.escape, PLACES))
    return re.sub(places, lambda place: PLACES[place[0]], template)


# Where two begin alike, the one that stands first takes the call.
# Objects are {"name": "f", "arguments": {"k": "v"}}.
MARKED = [
    notation(
        "hermes granite xlam granite4 qwen3_json ernie45",
        r"<tool_call>(?!\s*<function=|\s*[^\W\d][\w.:-]*\s*<(?:arg_key|tool_sep|/tool_call))"
        " CALLS </tool_call>",
    ),
    notation(
        "granite granite-20b-fc gigachat3 llama llama3_json llama4_json phi4_mini_json",
        r"(?:<|(?:tool_call|python_tag)|>|<|?function_call\|?>|function\scall<|role_sep|>"
        r"|functools(?=\[)) CALLS",
    ),
    notation(
        "jamba hunyuan_a13b longcat dots k2_horizon",
        r"<LIST>(?!\s*[^\s\[{]) CALLS </LIST>",
        held="<dots|<ifm",
    ),
    notation("internlm", r"<|action_start|>\s*<|plugin|> CALLS <|action_end|>"),
    notation(
        "cohere cohere_command3 cohere_command4",
        "<|START_ACTION|> CALLS <|END_ACTION|>",
    ),
    notation(
        "inkling",
        "<|content_invoke_tool_json|> CALLS (?:<|end_message|>|<|content_model_end_sampling|>)",
    ),
    notation(
        "mistral xlam",
        r"\[TOOL_CALLS\](?=\s*(?:\{|\[(?!TOOL_CALLS\]))) CALLS",
        ends=r"(?=\[TOOL_CALLS\])",
    ),
    notation("apertus", "<|tools_prefix|> KEYED <|tools_suffix|>"),  # {"f": {"k": "v"}}
    notation(
        "olmo3",
        r"<function_calls>(?=\s*(?:\[\s*)?[^\W\d][\w.]*\s*\() PYTHON </function_calls>",
    ),
    notation(
        "lfm2 llama4_pythonic llama",
        "<|(?:tool_call|python)_start|> PYTHON <|(?:tool_call|python)_end|>",
    ),
    notation(
        "mistral",
        r"\[TOOL_CALLS\] (?P<name>[^\s\[\]{}]+)(?:\[CALL_ID\][^\s\[{]*)?(?:\[ARGS\])?(?=\s*\{)"
        " OBJECT",
        opening=r"\[TOOL_CALLS\](?!\s*\[TOOL_CALLS\])",
    ),
    notation(
        "deepseek deepseek_v3 deepseek_v31",
        "<｜tool▁call▁begin｜> (?:function<｜tool▁sep｜>)?NAME (?:<｜tool▁sep｜>|```json)"
        " OBJECT (?:``` )?<｜tool▁call▁end｜>",  # v3 has a fence
        "<｜tool▁calls▁begin｜>",
    ),
    notation(
        "kimi kimi_k2",
        r"<|tool_call_begin|> (?:functions\.)?NAME:\d+ <|tool_call_argument_begin|>"
        " OBJECT <|tool_call_end|>",
        "<|tool_calls_section_begin|>",
    ),
    notation(
        "plamo3",
        "«begin_tool_request» «begin_tool_name»NAME«end_tool_name» «begin_tool_arguments»"
        "(?:«constrain|>json«msg|>)? OBJECT «end_tool_arguments»(?: «end_tool_request»)?",
        "«begin_tool_requests»",
    ),
    notation(
        "gemma gemma4 functiongemma",
        r"(?:<|tool_call>|<start_function_call>) (?:call)?: NAME(?=\s*\{) GEMMA "
        "(?:<tool_call|>|<end_function_call>)",
    ),
    notation(
        "openai",
        r"to=(?:functions\.)?NAME(?: <|channel|>\w+)? (?:<|constrain|>)?(?:json)?<|message|>"
        " OBJECT (?:<|call|>|<|end|>)",
        opening=r"\bto=functions\.|\bto=[\w.-]+\s(?:<|constrain|>)?json<|message|>",
    ),
    notation(
        "minimax_m3",
        """(?:M3<tool_call> )?M3<invoke name=["']?TITLE["']?> """
        "...M3<(?P<key>[^<>/][^<>]*)>VALUEM3</(?P<again>[^<>]*)>...M3</invoke>",
        opening="M3<(?:tool_call>|invoke )",
        block="M3<tool_call>",
    ),
    notation(
        "glm glm45 glm47 ling3 hy_v3 hy_v4 poolside_v1 k2_horizon",
        r"<~tool_call~>(?!\s*[{\[<]) NAME (?:<tool_sep~>)? "
        "...<~arg_key~>KEY</~arg_key~> (?:<~arg_type>STRING</~arg_type> )?<~arg_value~>VALUE"
        "</~arg_value~>...</~tool_call~>",
        held="<ifm",
    ),
    *(
        notation(
            formats,
            "(?:<(?:seed:)?tool_call> )?<function=TITLE> "
            f"...<parameter=KEY>{margin}</parameter>..."
            "</function>(?: </(?:seed:)?tool_call>)?",
            ends="</(?:seed:)?tool_call>",  # models forget one
            opening=r"<seed:tool_call>|<tool_call>(?!\s*[{\[])|<function=[^<>]+>(?!\s*\{)",
        )
        for formats, margin in (
            ("qwen_coder qwen3_coder qwen3_xml step3p5 seed_oss", r"\n?VALUE\n?"),
            ("mimo", "(?P<string>)VALUE"),  # word for word
        )
    ),
    notation("llama", "<function=TITLE> OBJECT </function>"),
    notation(
        "minicpm5",
        r"""<function[\sĠ]*name=["']TITLE["'][^<>]*> """
        r"""...<param[\sĠ]*name=["']KEY["'] >(?P<xml> <!\[CDATA\[|)VALUE</param>...</function>""",
        opening=r"<function[\sĠ]*name=",
        held="(?P<full>)",
    ),
    notation(
        "invoke minimax_m2 deepseek deepseek_v32 deepseek_v4 deepseek_v41 dots muse_glimmer",
        """<SPACEinvoke name=["']?TITLE["']?> """
        r"""...<BARESPACEparameter name=["']?KEY["']?(?:\sstring="STRING")?>VALUE"""
        "</SPACEparameter>...</SPACEinvoke>",
        rf"{BLOCK}(?! (?:{BLOCK}|<tool_call>|[\[{{]))",
        held="<invoke",
    ),
    notation(
        "step3",
        '<｜tool_call_begin｜> function<｜tool_sep｜> <steptml:invoke name="TITLE"> '
        '...<steptml:parameter name="KEY">VALUE</steptml:parameter>...'
        "</steptml:invoke>(?: <｜tool_call_end｜>)?",
        "<｜tool_calls_begin｜>",
    ),
    notation(
        "kimi_k3",
        '<|open|>call tool="(?P<name>[^"]+)"[^<>]*<|sep|> '
        '...<|open|>argument key="(?P<key>[^"]+)"(?: type="STRING")?<|sep|>VALUE'
        "<|close|>argument<|sep|>...<|close|>call<|sep|>",
        "<|open|>tools<|sep|>",
    ),
]
# {"name": "f", "arguments": {"k": "v"}}, in a fence, in a list, in prose
BARE_JSON = Notation(
    "json xlam llama llama3_json llama4_json phi4_mini_json",
    read_json,
    r'\{(?=\s*")',
    ends="(?=)",
)
# [f(k=1), g()], or f() at the start
PYTHON_OPENING = rf"(?=\[\s*{NAME}\s*\()|(?:\A|(?<=</think>))\s*(?={NAME}\s*\()"
BARE_PYTHON = Notation("pythonic llama4_pythonic", BODIES["PYTHON"], PYTHON_OPENING)
ANY = [*MARKED, BARE_JSON]
FORMATS = {"auto": ANY, "hf": ANY}  # hf: whatever the checkpoint's own template says
for form in [*ANY, BARE_PYTHON]:
    for name in form.formats.split():
        FORMATS.setdefault(name, []).append(form)

LIKE_CALLS = (
    r"[<\[][^\s<>\[\]/]{0,40}(?i:tool|function)[▁_-]?(?i:call|use|request)[^\s<>\[\]/]{0,40}[>\]]",
    r"<\|[^\s<>|/]{0,40}(?i:tool|function|invoke|action)[^\s<>|/]{0,40}\|>",
    r"<[\w:.-]{0,40}(?i:tool|function|invoke|call)\s+(?:name|tool)=",
)
UNKNOWN_OPENING = "|".join((*(form.opening for form in MARKED), *LIKE_CALLS))
UNKNOWN = Notation("", read_unknown, ends="(?=)", opening=UNKNOWN_OPENING)

THOUGHTS = {
    "<think>": "</think>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|channel>": "<channel|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|plamo:begin_think:plamo|>": "<|plamo:end_think:plamo|>",
    # and what is said to others than a tool, whose ends are those of calls too
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|content_thinking|>": "<|end_message|>",
    "to=self<|message|>": "<|eom|>",
    "to=user<|message|>": "<|eot|>",
}
ANSWER = "|".join(re.escape(end) for end in THOUGHTS.values() if not end.startswith("<|e"))
THOUGHT = "|".join(map(re.escape, THOUGHTS))


def calls_in(
    text: str,
    forms: Sequence[Notation],
    types: Mapping[str, Schema] | None = None,
) -> list[ToolCall]:
    """Each call, well formed or not, in text order. What a model thinks aloud holds none: not
    between the tags of a thought, nor before a closing one whose opening was in the prompt; in one
    that never closes, a call is an error."""
    patterns = [*(form.opening for form in forms), THOUGHT, ANSWER]
    opening = re.compile("|".join(f"({pattern})" for pattern in patterns))
    cursor = Cursor(text, types)
    while found := opening.search(text, cursor.at):
        which = int(found.lastindex or 0) - 1
        cursor.at = found.end()
        if which == len(forms):
            skip_thought(cursor, THOUGHTS[found[0]])
        elif which > len(forms):
            cursor.calls = []
            cursor.unheard = ""
        elif not (cursor.unheard and forms[which] is BARE_JSON):
            cursor.read(forms[which], found)
    return cursor.calls


def skip_thought(cursor: Cursor, closing: str) -> None:
    """Move behind a thought, if it ends; that it does not is found once only."""
    end = -1 if cursor.unheard else cursor.text.find(closing, cursor.at)
    cursor.unheard = "in a thought that is not closed" if end < 0 else ""
    cursor.at = max(cursor.at, end + len(closing))


def is_call_list(text: str, start: int) -> bool:
    """Whether a text is from there on nothing but calls in Python's way, or a malformed or cut off
    list of them."""
    cursor = Cursor(text, at=start)
    with suppress(BrokenCall):
        BARE_PYTHON.read(cursor, BARE_PYTHON)
        return not text[cursor.at :].strip()
    ends = cursor.at == len(text) or text.rstrip().endswith("]")
    return ends and re.compile(rf"\s*\[\s*{NAME}\s*\(").match(text, start) is not None


def schemas_of(tools: Sequence[Any]) -> dict[str, Schema]:
    """Name of a tool -> the schema of its arguments. Raises OptionError."""
    schemas: dict[str, Schema] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            problem = f"tools[{index}] is no description of a function"
            fix = 'pass {"type": "function", "function": {"name": ..., "parameters": {...}}}'
            raise ge.OptionError(problem, fix=fix)
        parameters = function.get("parameters")
        schemas[function["name"]] = Schema(parameters, parameters)
    return schemas


def is_pythonic(text: str) -> bool:
    """Whether the whole answer is calls in Python's way."""
    answer = max((found.end() for found in re.finditer(ANSWER, text)), default=0)
    return any(is_call_list(text, start) for start in {0, answer})


def parse_tool_calls(
    text: str,
    *,
    format: str = "auto",
    tools: Sequence[Any] | None = None,
) -> list[ToolCall]:
    """The tool calls in a model's text, in order. Nothing is evaluated, and a malformed or
    truncated call is one with an `error`, never a guess and never an exception; so is the marker of
    a call in a format that is not known, or not asked for, where nothing else is found. What stands
    in <think> is no call.

    format: a key of FORMATS, among them the names of vLLM's parsers; or "auto": "pythonic" where
    the whole answer is calls in Python's way, else every other format, each call in that of its
    opening.
    tools: as the request had them. They give types to the values of formats that write none
    (<parameter=k>5</parameter> is "5" where the schema says string, and where it says nothing);
    without, such a value is JSON if it can be. Some models are held to them: a call of another is
    an error. Linear in len(text). Raises OptionError for an unknown format, or a tool without a
    name. Where a marker is a special token ([TOOL_CALLS]), pass GenerationResult.raw_text."""
    if not isinstance(format, str) or format not in FORMATS:
        raise ge.OptionError(
            f"no tool call format {format!r}", fix=ge.did_you_mean(format, FORMATS)
        )
    schemas = None if tools is None else schemas_of(tools)
    forms = [form for form in FORMATS[format] if re.search(form.block, text)]
    if FORMATS[format] is ANY and is_pythonic(text):
        forms = [BARE_PYTHON]
    return calls_in(text, forms, schemas) or calls_in(text, [UNKNOWN])


# == Calls in a message ==


def for_template(calls: Sequence[Any], source: str) -> list[Any]:
    """Tool calls as the template wants them. OpenAI writes arguments as JSON text: a template that
    does not ask for their type walks over a mapping. Raises RequestError for text that is no
    JSON."""
    if re.search(r"arguments\S* is ", source):
        return list(calls)
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            fix = "write a JSON object"
            with ge.wrapping_errors(
                ge.RequestError, "the arguments of a tool call are no JSON", fix
            ):
                arguments = json.loads(function["arguments"])
            call = {**call, "function": {**function, "arguments": arguments}}
        parsed.append(call)
    return parsed
