# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""The tool calls in a model's text: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="tool_calls"`, and

    from acme.llm.tool_calls import parse_tool_calls

    for call in parse_tool_calls(result.text):
        print(call.error or (call.name, call.arguments))
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import OptionError
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import OptionError

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


@dataclass(frozen=True, slots=True)
class Spelling:
    """How values are written, as regular expressions whose group 1 counts.

    value: an atom, for `decode`, or an opening bracket.   keys: opening bracket -> a key, where items have keys.
    after: what follows an item, a comma or a closing bracket.
    """

    value: str
    keys: Mapping[str, str]
    after: str
    decode: Callable[[str], Any]


def python_atom(token: str) -> Any:
    """A string, number, True, False or None. literal_eval warns of an unknown escape, as in "\\d"; with its backslash
    doubled it means the same."""
    escape = r"""\\([\n\\'"abfnrtvNuUx0-7])?"""
    return ast.literal_eval(re.sub(escape, lambda found: found[0] if found[1] else r"\\", token))


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
    keys={"{": WS + "(" + JSON_STRING + ")" + WS + ":"},
    after=WS + r"([,}\]])",
    decode=json.loads,
)


PYTHON = Spelling(
    value=r"\s*([{\[]|" + PYTHON_STRING + "|" + PYTHON_NUMBER + "|True|False|None)",
    keys={"{": r"\s*(" + PYTHON_STRING + r")\s*:", "(": r"\s*([^\W\d]\w*)\s*="},
    after=r"\s*(?:,\s*(?=[}\])]))?([,}\])])",  # a trailing comma is none
    decode=python_atom,
)


CLOSING = {"{": "}", "[": "]", "(": ")"}


DEEPEST = 100  # levels of nesting: arguments have a handful, and each level takes two frames of Python's stack


class Cursor:
    """A place in a text that moves right only. A call that breaks is read no further than to where it broke, so the
    time is linear in the text, whatever that holds.

    Not raw_decode and ast.parse: a JSONDecodeError counts the lines before it, which makes many broken calls quadratic;
    a RecursionError does not say where it was; and both read numbers and names that JSON does not have.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.name, self.fault = "", ""  # of the call being read; a fault leaves the text readable, but not the call

    def take(self, pattern: str, expected: str) -> re.Match[str]:
        """Move over `pattern`, or raise BrokenCall."""
        match = re.compile(pattern).match(self.text, self.at)
        if match is None:
            if re.compile(LAST_TOKEN).match(self.text, self.at):
                self.at = len(self.text)  # the text was cut off in it or behind it
            cut = self.at == len(self.text)
            raise BrokenCall(f"{expected} expected {'where the text ends' if cut else f'at character {self.at}'}")
        self.at = match.end()
        return match

    def until(self, end: str) -> str:
        """Move over `end`; what stands before it."""
        start, found = self.at, self.text.find(end, self.at)
        self.at = len(self.text) if found < 0 else found + len(end)
        if found < 0:
            raise BrokenCall(f"{end} expected where the text ends")
        return self.text[start:found]

    def value(self, spelling: Spelling, depth: int = 0) -> Any:
        token = self.take(spelling.value, "a value")[1]
        return self.items(token, spelling, depth + 1) if token in CLOSING else self.decode(token, spelling)

    def decode(self, token: str, spelling: Spelling) -> Any:
        try:
            value = spelling.decode(token)
        except (SyntaxError, ValueError) as error:  # an unknown \N{name}, more digits than Python converts
            value, self.fault = None, self.fault or f"bad value before character {self.at}: {error}"
        if value in (math.inf, -math.inf):  # what Python makes of 1e999
            self.fault = self.fault or f"number out of range before character {self.at}"
        return value

    def items(self, opening: str, spelling: Spelling, depth: int = 0) -> Any:
        """What stands in brackets, the opening one taken already: a dict where items have keys, else a list."""
        if depth > DEEPEST:
            raise BrokenCall(f"no more than {DEEPEST} levels expected at character {self.at}")
        keys: list[str] = []
        values: list[Any] = []
        mark = self.take(WS + r"([}\])]?)", "")[1] or ","
        while mark == ",":
            if opening in spelling.keys:
                key = self.take(spelling.keys[opening], "a key")[1]
                keys.append(self.decode(key, spelling) if key[0] in "\"'" else key)
            values.append(self.value(spelling, depth))
            mark = self.take(spelling.after, f"a comma or {CLOSING[opening]}")[1]
        if mark != CLOSING[opening]:
            raise BrokenCall(f"{CLOSING[opening]} expected before character {self.at}")
        if len(set(keys)) < len(keys):
            self.fault = self.fault or f"a key stands twice before character {self.at}"
        return dict(zip(keys, values)) if opening in spelling.keys else values

    def call(self, start: int, arguments: Any) -> ToolCall:
        """The call from `start` to here."""
        if self.fault or not isinstance(arguments, dict):
            raise BrokenCall(self.fault or f"an object of arguments expected before character {self.at}")
        return ToolCall(self.name, arguments, self.text[start : self.at], start, self.at)


def json_or_text(text: str) -> Any:
    """What a text says as JSON, or the text itself."""
    cursor = Cursor(text)
    try:
        value = cursor.value(JSON)
        cursor.take(WS + r"\Z", "nothing more")
    except BrokenCall:
        return text
    return text if cursor.fault else value


NAME_KEYS, ARGUMENT_KEYS = ("name", "tool", "function"), ("arguments", "parameters")


def said(value: Any, keys: Sequence[str]) -> list[Any]:
    """What an object has under these keys; OpenAI's calls have it all under "function"."""
    inner = value.get("function") if isinstance(value, dict) else None
    owner = inner if isinstance(inner, dict) else value
    return [owner[key] for key in keys if key in owner] if isinstance(owner, dict) else []


def call_said(cursor: Cursor, start: int, value: Any) -> ToolCall:
    """The call that an object describes: one name and one set of arguments, which may be JSON inside a string."""
    names, arguments = said(value, NAME_KEYS), said(value, ARGUMENT_KEYS)
    cursor.name = names[0] if len(names) == 1 and isinstance(names[0], str) else ""
    if not cursor.name or len(arguments) != 1:
        raise BrokenCall(f"one name and one set of arguments expected before character {cursor.at}")
    return cursor.call(start, json_or_text(arguments[0]) if isinstance(arguments[0], str) else arguments[0])


def json_call(cursor: Cursor) -> ToolCall:
    start = cursor.take(r"\s*(?=\{)", "an object").end()
    return call_said(cursor, start, cursor.value(JSON))


def python_call(cursor: Cursor) -> ToolCall:
    head = cursor.take(r"\s*(" + NAME + r")\s*\(", "a call")
    cursor.name = head[1]
    return cursor.call(head.start(1), cursor.items("(", PYTHON))


def several(cursor: Cursor, read: Callable[[Cursor], ToolCall], more: str) -> Iterator[ToolCall]:
    """Calls for as long as group 1 of `more` follows."""
    yield read(cursor)
    while cursor.take(more, "a comma or ]")[1]:
        cursor.name = ""
        yield read(cursor)


def read_parameters(cursor: Cursor, parameter: str, foot: str, margin: str = "") -> dict[str, Any]:
    """Tagged values up to `foot`: JSON where a value is JSON, else its text, less one `margin` at each end."""
    arguments: dict[str, Any] = {}
    while key := cursor.take(rf"\s*(?:{parameter}|{foot})", "a parameter or the closing tag")[1]:
        if key in arguments:
            cursor.fault = f"parameter {key!r} stands twice before character {cursor.at}"
        arguments[key] = json_or_text(cursor.until("</parameter>").removeprefix(margin).removesuffix(margin))
    return arguments


def read_hermes(cursor: Cursor) -> Iterator[ToolCall]:
    start = cursor.take("<tool_call>", "<tool_call>").start()
    call = json_call(cursor)
    cursor.take(r"\s*</tool_call>", "</tool_call>")
    yield cursor.call(start, call.arguments)


def read_qwen_coder(cursor: Cursor) -> Iterator[ToolCall]:
    head = cursor.take(r"(<tool_call>)?\s*<function=([^<>]+)>", "<function=name>")
    cursor.name = head[2]
    foot = r"</function>\s*</tool_call>" if head[1] else r"</function>(?:\s*</tool_call>)?"  # it forgets the opening
    yield cursor.call(head.start(), read_parameters(cursor, "<parameter=([^<>]+)>", foot, margin="\n"))


def read_invoke(cursor: Cursor) -> Iterator[ToolCall]:
    head = cursor.take('<invoke name="([^"<>]+)">', '<invoke name="...">')
    cursor.name = head[1]
    yield cursor.call(head.start(), read_parameters(cursor, '<parameter name="([^"<>]+)">', "</invoke>"))


def read_llama(cursor: Cursor) -> Iterator[ToolCall]:
    head = cursor.take(r"<\|python_tag\|>|<function=([^<>]+)>", "<function=name>")
    if head[1] is None:
        yield from several(cursor, json_call, r"(?:\s*(;)(?=\s*\{))?")
        return
    cursor.name, arguments = head[1], cursor.value(JSON)
    cursor.take(r"\s*</function>", "</function>")
    yield cursor.call(head.start(), arguments)


def read_mistral(cursor: Cursor) -> Iterator[ToolCall]:
    head = cursor.take(r"\[TOOL_CALLS\]\s*(\[?)", "[TOOL_CALLS]")
    if head[1]:
        yield from several(cursor, json_call, r"\s*(?:(,)|\])")
        return
    cursor.name = cursor.take(r"([^\s\[\]{}]+)(?:\[CALL_ID\][^\s\[\]{}]*)?\[ARGS\]", "name[ARGS]")[1]
    arguments = cursor.value(JSON)
    yield cursor.call(head.start(), arguments)


def read_json(cursor: Cursor) -> Iterator[ToolCall]:
    """An object with a name and arguments, or the beginning of one; any other object is passed over whole."""
    start = cursor.at
    try:
        value = cursor.value(JSON)
    except BrokenCall:
        if re.compile(r'\{\s*"(?:' + "|".join(NAME_KEYS + ARGUMENT_KEYS) + r')"\s*:').match(cursor.text, start):
            raise
        return
    if said(value, NAME_KEYS) and said(value, ARGUMENT_KEYS):
        yield call_said(cursor, start, value)


def read_pythonic(cursor: Cursor) -> Iterator[ToolCall]:
    listed = cursor.take(r"\s*(\[?)", "")[1]
    yield from several(cursor, python_call, r"\s*(?:(,)(?!\s*\])|(?:,\s*)?\])" if listed else "()")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """opening, closing: where a call begins; where a malformed one ends, unless another begins or the text ends first.

    read: yields the calls at the cursor, which stands at the opening, and leaves it behind them.
    """

    opening: str
    closing: str
    read: Callable[[Cursor], Iterator[ToolCall]]


NEVER = "(?!)"


FORMATS = {
    # <tool_call>{"name": "f", "arguments": {"k": "v"}}</tool_call>
    "hermes": ToolFormat(r"<tool_call>(?!\s*<function=)", "</tool_call>", read_hermes),
    # <tool_call><function=f><parameter=k>v</parameter></function></tool_call>
    "qwen_coder": ToolFormat(r"<tool_call>(?!\s*\{)|<function=[^<>]+>(?!\s*\{)", "</tool_call>", read_qwen_coder),
    # <function_calls><invoke name="f"><parameter name="k">v</parameter></invoke></function_calls>
    "invoke": ToolFormat(r"<function_calls>(?!\s*<invoke )|<invoke ", "</invoke>", read_invoke),
    # <|python_tag|>{"name": "f", "parameters": {"k": "v"}}; {...}      <function=f>{"k": "v"}</function>
    "llama": ToolFormat(r"<\|python_tag\|>|<function=", "</function>", read_llama),
    # [TOOL_CALLS][{"name": "f", "arguments": {"k": "v"}}, {...}]      [TOOL_CALLS]f[ARGS]{"k": "v"}
    "mistral": ToolFormat(r"\[TOOL_CALLS\]", NEVER, read_mistral),
    # {"name": "f", "arguments": {"k": "v"}}, in a fence, in a list, in prose
    "json": ToolFormat(r'\{(?=\s*")', "", read_json),
    # [f(k="v"), g()], or f(k="v") where the text begins
    "pythonic": ToolFormat(rf"\[\s*{NAME}\s*\(|\A\s*{NAME}\s*\(", NEVER, read_pythonic),
}


def calls_in(text: str, formats: Mapping[str, ToolFormat]) -> Iterator[tuple[str, ToolCall]]:
    """(format, call) of each call, well formed or not, in text order."""
    opening = re.compile("|".join(f"(?P<{name}>{form.opening})" for name, form in formats.items()))
    cursor = Cursor(text)
    while found := opening.search(text, cursor.at):
        name, start = str(found.lastgroup), found.start()
        cursor.at, cursor.name, cursor.fault = start, "", ""
        try:
            for call in formats[name].read(cursor):
                start = call.end
                yield name, call
        except BrokenCall as broken:
            ending = re.compile(f"{formats[name].closing}|(?={formats[name].opening})")
            end = ending.search(text, max(cursor.at, found.end()))
            cursor.at = end.end() if end else len(text)
            yield name, ToolCall(cursor.name, {}, text[start : cursor.at], start, cursor.at, str(broken))


def is_call_list(text: str) -> bool:
    """Whether a text is nothing but calls in Python's way, or a malformed or cut off list of them."""
    cursor = Cursor(text)
    try:
        list(read_pythonic(cursor))
    except BrokenCall:
        ends = cursor.at == len(text) or text.rstrip().endswith("]")
        return ends and re.match(rf"\s*\[\s*{NAME}\s*\(", text) is not None
    return not text[cursor.at :].strip()


def parse_tool_calls(text: str, *, format: str = "auto") -> list[ToolCall]:
    """The tool calls in a model's text, in order. Nothing is evaluated, and a malformed or truncated call is one with
    an `error`, never a guess and never an exception.

    format: a key of FORMATS, or "auto": "pythonic" where the whole text is calls in Python's way, else the format of
    the call that begins first. Not the first of a list of formats whose marker is there: a quoted <tool_call> inside
    an argument must not become a call. Raises OptionError for an unknown format. Linear in len(text).
    Where a marker is a special token ([TOOL_CALLS], <|python_tag|>), pass GenerationResult.raw_text.
    """
    if format not in ("auto", *FORMATS):
        close = difflib.get_close_matches(str(format), ["auto", *FORMATS], n=1)
        fix = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(["auto", *FORMATS])
        raise OptionError(f"no tool call format {format!r}", fix=fix)
    if format == "auto" and is_call_list(text):
        format = "pythonic"
    elif format == "auto":
        others = {name: form for name, form in FORMATS.items() if name != "pythonic"}
        format, _ = next(calls_in(text, others), ("json", None))
    return [call for _, call in calls_in(text, {format: FORMATS[format]})]
