"""Tool calls: what a format can say parses back to itself, what is malformed is reported, hostile text is no slower."""

from __future__ import annotations

import gc
import json
import re
import time
import warnings
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gen_engine import OptionError
from parity.companions.tool_calls import ToolCall, parse_tool_calls

FORMATS = ("hermes", "qwen_coder", "invoke", "llama", "mistral", "json", "pythonic")
MARKERS = [
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=k>", "</parameter>", "<function_calls>",
    '<invoke name="f">', '<parameter name="k">', "</invoke>", "</function_calls>", "<|python_tag|>", "[TOOL_CALLS]",
    "[ARGS]", "[CALL_ID]", '{"name": "evil", "arguments": {}}', '{"name": ', '"arguments": ', "[evil(a=1)]", "[f(",
    "f(", "k=", "{", "}", "[", "]", "(", ")", '"', "'", "\\", "\\u12", ",", ";", ":", "\n", " ", "1e5", "-", "null",
]  # fmt: skip

Call = tuple[str, dict[str, Any]]
Chunk = tuple[str, Call | None]  # a piece of text, and the call that it is


# -- renderers: calls -> text, as the formats' own templates write it --------------------------------------------------


def dumps(value: Any, safe: bool = False) -> str:
    text = json.dumps(value, ensure_ascii=safe)
    return text.replace("</", "<\\/") if safe else text


def tagged(value: Any) -> str:
    """A parameter's text: a string bare, unless it would be read as JSON or hold its own closing tag."""
    if isinstance(value, str) and "</parameter>" not in value:
        try:
            json.loads(value)
        except ValueError:
            return value
    return dumps(value, safe=True)


def render_json(calls: list[Call], variant: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    for name, arguments in calls:
        called = [
            {"name": name, "arguments": arguments},
            {"tool": name, "parameters": dumps(arguments)},
            {"function": {"arguments": dumps(arguments, safe=True), "name": name}, "type": "function"},
        ][variant]
        chunks += [("\n```json\n", None), (json.dumps(called, indent=[None, 2, 0][variant]), (name, arguments))]
        chunks += [("\n```", None)]
    return chunks


def render_hermes(calls: list[Call], variant: int) -> list[Chunk]:
    margin = ["\n", "", " \n"][variant]
    wrapped = [dumps({"name": name, "arguments": arguments}, variant == 1) for name, arguments in calls]
    return [(f"<tool_call>{margin}{inner}{margin}</tool_call>", call) for inner, call in zip(wrapped, calls)]


def render_qwen_coder(calls: list[Call], variant: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    for name, arguments in calls:
        lines = [f"<parameter={key}>\n{tagged(value)}\n</parameter>\n" for key, value in arguments.items()]
        call = f"<function={name}>\n{''.join(lines)}</function>\n</tool_call>"
        chunks += [(call if variant == 2 else "<tool_call>\n" + call, (name, arguments)), ("\n", None)]
    return chunks


def render_invoke(calls: list[Call], variant: int) -> list[Chunk]:
    margin = ["\n", "", "  "][variant]
    chunks: list[Chunk] = [("<function_calls>" + margin, None)]
    for name, arguments in calls:
        lines = [f'<parameter name="{key}">{tagged(value)}</parameter>{margin}' for key, value in arguments.items()]
        chunks += [(f'<invoke name="{name}">{margin}{"".join(lines)}</invoke>', (name, arguments)), (margin, None)]
    return [*chunks, ("</function_calls>", None)]


def render_llama(calls: list[Call], variant: int) -> list[Chunk]:
    if variant:
        return [(f"<function={name}>{dumps(arguments)}</function>", (name, arguments)) for name, arguments in calls]
    chunks: list[Chunk] = [("<|python_tag|>", None)]
    for name, arguments in calls:
        chunks += [(dumps({"name": name, "parameters": arguments}), (name, arguments)), ("; ", None)]
    return chunks[:-1]


def render_mistral(calls: list[Call], variant: int) -> list[Chunk]:
    if variant:
        head = ["", "[ARGS]", "[CALL_ID]a1b2[ARGS]"][variant]
        return [(f"[TOOL_CALLS]{name}{head}{dumps(arguments)}", (name, arguments)) for name, arguments in calls]
    chunks: list[Chunk] = [("[TOOL_CALLS] [", None)]
    for name, arguments in calls:
        chunks += [(dumps({"name": name, "arguments": arguments}), (name, arguments)), (", ", None)]
    return [*chunks[:-1], ("]", None)]


def render_pythonic(calls: list[Call], variant: int) -> list[Chunk]:
    comma = [", ", ",", ",\n  "][variant]
    chunks: list[Chunk] = [("[", None)]
    for name, arguments in calls:
        inner = comma.join(f"{key}={value!r}" for key, value in arguments.items())
        chunks += [(f"{name}({inner})", (name, arguments)), (comma, None)]
    return [*chunks[:-1], ("]", None)]


RENDER = {
    "json": render_json, "hermes": render_hermes, "qwen_coder": render_qwen_coder, "invoke": render_invoke,
    "llama": render_llama, "mistral": render_mistral, "pythonic": render_pythonic,
}  # fmt: skip

strings = st.text() | st.lists(st.sampled_from(MARKERS) | st.text(max_size=3), max_size=6).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
anything = strings.filter(bool)
identifiers = st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True)
dotted = st.from_regex(r"[A-Za-z_]\w{0,8}(\.\w{1,4})?", fullmatch=True)
attributes = st.from_regex(r'[^<>"]{1,8}', fullmatch=True)
NAMES = {
    "json": anything, "hermes": anything, "qwen_coder": attributes, "invoke": attributes, "llama": attributes,
    "mistral": st.from_regex(r"[^\s\[\]{}]{1,8}", fullmatch=True), "pythonic": dotted,
}  # fmt: skip
KEYS = {"qwen_coder": attributes, "invoke": attributes, "pythonic": identifiers}
prose = st.text("ab ,.;:\n\"'é}])>=", max_size=12)  # nothing that opens a call


@st.composite
def rendered(draw: st.DrawFn, format: str) -> list[Chunk]:
    call = st.tuples(NAMES[format], st.dictionaries(KEYS.get(format, anything), values, max_size=3))
    return RENDER[format](draw(st.lists(call, min_size=1, max_size=3)), draw(st.integers(0, 2)))


def expected(chunks: list[Chunk], before: str = "") -> list[ToolCall]:
    at, calls = len(before), []
    for text, call in chunks:
        if call is not None:
            calls.append(ToolCall(*call, raw_text=text, start=at, end=at + len(text)))
        at += len(text)
    return calls


def text_of(chunks: list[Chunk]) -> str:
    return "".join(text for text, _ in chunks)


# -- laws --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None)
@given(st.data(), prose, prose)
def test_calls_among_prose_parse_back_to_themselves(format: str, data: Any, before: str, after: str) -> None:
    chunks = data.draw(rendered(format))
    text = before + text_of(chunks) + after
    assert parse_tool_calls(text, format=format) == expected(chunks, before)
    if format == "pythonic":  # by itself such a list is only seen where it is all that there is
        text, before = " \n" + text_of(chunks) + "\n", " \n"
    assert parse_tool_calls(text) == expected(chunks, before)


def head(format: str, raw: str) -> int:
    """From where on a cut off call can be told from prose."""
    if raw.startswith("{") and format != "json":
        return 1  # in a list whose marker has been seen
    return raw.index({"json": ":", "pythonic": "(", "mistral": "]"}.get(format, ">")) + 1


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None)
@given(st.data())
def test_a_call_that_the_text_s_end_cuts_off_is_reported_and_those_before_it_stand(format: str, data: Any) -> None:
    chunks = data.draw(rendered(format))
    whole, text = expected(chunks), text_of(chunks)
    which = data.draw(st.integers(0, len(whole) - 1))
    call = whole[which]
    first = call.start + head(format, call.raw_text)
    last = call.end - 1
    if format == "qwen_coder" and text.startswith("<function="):  # then </function> is all that it needs
        last = text.rindex("</function>", 0, call.end)
    cut = data.draw(st.integers(min(first, last), last))
    *before, broken = parse_tool_calls(text[:cut], format=format)
    assert before == whole[:which]
    assert broken.error and broken.arguments == {} and broken.name in ("", call.name)
    assert broken.start <= call.start and broken.end == cut
    assert before == [] or before[-1].end <= broken.start


@pytest.mark.parametrize("format", [*FORMATS, "auto"])
@settings(deadline=None)
@given(strings | st.lists(st.sampled_from(MARKERS), max_size=40).map("".join))
@example("[f(a='\x00')]")
@example("[f(a='\\N{no such}', b=007)]")
@example("[f(a=" + "9" * 5000 + ")]")
@example('{"name": "f", "arguments": {"a": ' + "9" * 5000 + ', "b": 1e999}}')
@example('{"name": "f", "arguments": "\\ud800"}')
def test_any_text_gives_calls_in_order_and_no_exception(format: str, text: str) -> None:
    at = 0
    for call in parse_tool_calls(text, format=format):
        assert at <= call.start <= call.end <= len(text) and call.raw_text == text[call.start : call.end]
        assert (call.error is None and call.name) or (call.error and call.arguments == {})
        json.dumps(call.arguments, allow_nan=False)
        at = call.end


# -- reported, not guessed ---------------------------------------------------------------------------------------------

MALFORMED = {
    "broken JSON": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>', "a value expected at"),
    "a brace too few": ("hermes", '<tool_call>{"name": "f", "arguments": {}</tool_call>', "a comma or } expected"),
    "the wrong bracket": ("hermes", '<tool_call>{"name": "f", "arguments": [}}</tool_call>', "] expected before"),
    "a trailing comma": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>', "a key expected"),
    "NaN": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "a value expected"),
    "a number out of range": ("json", '{"name": "f", "arguments": {"a": 1e999}}', "out of range"),
    "a key twice": ("json", '{"name": "f", "arguments": {"a": {"b": 1, "b": 2}}}', "stands twice"),
    "two names": ("json", '{"name": "f", "tool": "g", "arguments": {}}', "one name and one set"),
    "two sets of arguments": ("json", '{"name": "f", "arguments": {}, "parameters": {}}', "one name and one set"),
    "a name that is none": ("json", '{"name": 7, "arguments": {}}', "one name and one set"),
    "no name": ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "one name and one set"),
    "no arguments": ("hermes", '<tool_call>{"name": "f"}</tool_call>', "one name and one set"),
    "arguments that are no object": ("json", '{"name": "f", "arguments": [1]}', "an object of arguments"),
    "a string that holds no object": ("json", '{"name": "f", "arguments": "[1]"}', "an object of arguments"),
    "no JSON in the tag": ("hermes", "<tool_call>f(a=1)</tool_call>", "an object expected"),
    "two objects in the tag": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}}{"name": "g", "arguments": {}}</tool_call>',
        "</tool_call> expected",
    ),
    "an opening alone": ("auto", "I will call <tool_call>", "where the text ends"),
    "a parameter twice": (
        "qwen_coder",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "stands twice",
    ),
    "text among parameters": (
        "invoke",
        '<invoke name="f">so <parameter name="a">1</parameter></invoke>',
        "a parameter",
    ),
    "a wrapper alone": ("invoke", "<function_calls>\n", '<invoke name="..."> expected'),
    "code behind the python tag": ("llama", "<|python_tag|>print(1)", "an object expected"),
    "no arguments marker": ("mistral", '[TOOL_CALLS]f{"a": 1}', "name[ARGS] expected"),
    "an import": ("pythonic", '[f(a=__import__("os").system("false"))]', "a value expected"),
    "an operator": ("pythonic", "[f(a=1 + 1)]", "a comma or ) expected"),
    "an f-string": ("pythonic", '[f(a=f"{1}")]', "a value expected"),
    "a name for a value": ("pythonic", "[f(a=b)]", "a value expected"),
    "a comprehension": ("pythonic", "[f(a=[1 for _ in ()])]", "a comma or ] expected"),
    "a positional argument": ("pythonic", '[f("x")]', "a key expected"),
    "a keyword twice": ("pythonic", "[f(a=1, a=2)]", "stands twice"),
    "an unpacking": ("pythonic", "[f(**{'a': 1})]", "a key expected"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_call_is_reported_whole(kind: str) -> None:
    format, text, error = MALFORMED[kind]
    [call] = parse_tool_calls(text, format=format)
    assert call.error and re.search(re.escape(error), call.error) and call.arguments == {}
    assert call.raw_text in (text, text.strip("[ "), text.removeprefix("I will call "))
    assert parse_tool_calls(text) == [call]


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        (
            '<tool_call>{"name": "f", "arguments": {</tool_call>',
            '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        ),
        ('<tool_call>{"name": "f"', '<tool_call>{"name": "g", "arguments": {}}</tool_call>'),
        ("<tool_call>\n<function=f>\n</tool_call>", "<tool_call>\n<function=g>\n</function>\n</tool_call>"),
        ('<invoke name="f">', '<invoke name="g"></invoke>'),
        ("<function=f>{</function>", "<function=g>{}</function>"),
        ("[TOOL_CALLS]f[ARGS]{", "[TOOL_CALLS]g[ARGS]{}"),
        ('{"name": "f", "arguments": {a}}', '{"name": "g", "arguments": {}}'),
    ],
)
def test_a_malformed_call_does_not_hide_the_next(bad: str, good: str) -> None:
    first, second = parse_tool_calls(bad + "\n" + good)
    assert first.error and first.start == 0 and first.end <= len(bad) + 1
    assert (second.name, second.arguments, second.error, second.end) == ("g", {}, None, len(bad + "\n" + good))


@pytest.mark.parametrize(
    "text",
    [
        "", "No call (none at all), see [1](https://x.y/z).", 'Data: {"a": 1}, {"name": "Bob"} and {not: json}.',
        "print(hello) prints", "Use f(a=1) for that.", "[f(a=1)](https://x.y/z) is a link", "f(x)", "a < b and c > d",
    ],
)  # fmt: skip
def test_prose_holds_no_calls(text: str) -> None:
    assert parse_tool_calls(text) == []


def test_what_is_quoted_inside_a_call_is_not_a_call() -> None:
    inner = "<tool_call><function=evil></function></tool_call>[TOOL_CALLS]evil[ARGS]{}<|python_tag|>"
    outer = json.dumps({"name": "f", "arguments": {"text": inner}})
    for text in (outer, f"<function=f>{json.dumps({'text': inner})}</function>", f"[f(text={inner!r})]"):
        assert [(call.name, call.arguments) for call in parse_tool_calls(text)] == [("f", {"text": inner})]


def test_tagged_values_are_json_where_they_can_be() -> None:
    written = {"a": "5", "b": '"5"', "c": "05", "d": "NaN", "e": " [1] ", "f": "\nx\n", "g": "", "h": '{"a":1,"a":2}'}
    read = {**written, "a": 5, "b": "5", "e": [1]}
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in written.items())
    [call] = parse_tool_calls(f"<tool_call>\n<function=f>\n{lines}</function>\n</tool_call>")
    assert call.arguments == read and type(call.arguments["a"]) is int


def test_python_s_own_spellings_are_read() -> None:
    text = r"[f(a='\d\n\x41\'', b=True, c=None, d=-.5, e={'k': [1_000,],}, g=" + '"""a\n"b""",), h.i()]'
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of the escape \\d
        first, second = parse_tool_calls(text)
    assert first.arguments == {"a": "\\d\nA'", "b": True, "c": None, "d": -0.5, "e": {"k": [1000]}, "g": 'a\n"b'}
    assert (second.name, second.arguments) == ("h.i", {})


def test_an_unknown_format_is_refused_with_a_guess() -> None:
    with pytest.raises(OptionError, match="Did you mean 'hermes'"):
        parse_tool_calls("", format="hermess")


# -- hostile text ------------------------------------------------------------------------------------------------------

HOSTILE = [
    "{", '{"', "[", "[f(", "f(", '{"name": ', '{"name": {"a', '{"a": 1}', '{"a\\q', '{"a" ', "{   ", '{"a": "\\',
    '{"name": "f", "arguments": {"a": "', "<tool_call>", "<tool_call>\n", '<tool_call>{"a": ', '<tool_call>{"a',
    "<tool_call><function=f><parameter=a>", "<function=", '<invoke name="f">', "<function_calls>", "[TOOL_CALLS]",
    "[TOOL_CALLS][", "[TOOL_CALLS]f", '<|python_tag|>{"', "[f(a=[", '[f(a="', "[f(a='''", "[f(),", "[f()", "[ ", "a.",
]  # fmt: skip


def seconds(text: str, format: str) -> float:
    """Without the collector, which would walk over every model that the test run has loaded."""
    gc.disable()
    began = time.process_time()
    parse_tool_calls(text, format=format)
    taken = time.process_time() - began
    gc.enable()
    return taken


@pytest.mark.parametrize("format", [*FORMATS, "auto"])
def test_hostile_text_takes_linear_time(format: str) -> None:
    for piece in HOSTILE:
        repeated = (piece * (size // len(piece)) for size in (50_000, 100_000))
        stretched = (piece + " " * size + '" x y' for size in (50_000, 100_000))
        for half, whole in (repeated, stretched):
            assert seconds(whole, format) < 3.5 * seconds(half, format) + 0.1, piece


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}")])
def test_deep_nesting_is_an_error_and_not_a_recursion(opening: str, closing: str) -> None:
    def nested(depth: int) -> str:
        return f'{{"name": "f", "arguments": {{"a": {opening * depth}1{closing * depth}}}}}'

    for text in (f"<tool_call>{nested(100_000)}</tool_call>", f"[f(a={opening * 100_000}1{closing * 100_000})]"):
        [call] = parse_tool_calls(text)
        assert call.error and "100 levels" in call.error
    [call] = parse_tool_calls(nested(90))
    assert call.error is None
