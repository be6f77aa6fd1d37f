"""Tool calls: what a format can say parses back to itself, what is malformed is reported, hostile text is no slower."""

from __future__ import annotations

import json
import re
import time
import warnings
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gen_engine import OptionError
from parity.companions import tool_calls
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
    """A parameter's text: a string bare, unless it would be read as JSON or hold a parameter's tags."""
    if isinstance(value, str) and not re.search("</?parameter", value):
        try:
            json.loads(value)
        except ValueError:
            return value
    return dumps(value, safe=True).replace("<parameter", "\\u003cparameter")


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
attributes = st.from_regex(r'[^<>"&]{1,8}', fullmatch=True)  # an ampersand begins an entity
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
    needed = {"hermes": "}", "llama": "}", "qwen_coder": "</function>"}.get(format)  # what follows may be cut off
    last = text.rindex(needed, 0, call.end) if needed else call.end - 1
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


# -- the formats of today: the same two calls in each ------------------------------------------------------------------

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    },
    {"name": "now"},
]
CALLS = [("get_weather", {"city": "Oslo", "days": 5}), ("now", {})]
OBJECTS = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in CALLS]
LIST, PYTHON = f"[{', '.join(OBJECTS)}]", "[get_weather(city='Oslo', days=5), now()]"
WEATHER, NOW = (json.dumps(arguments) for _, arguments in CALLS)
QWEN = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n5\n</parameter>\n</function>"
INVOKE = (
    '<invoke name="get_weather"><parameter name="city">Oslo</parameter><parameter name="days">5</parameter></invoke>'
)
BOTH_INVOKED = INVOKE + '\n<invoke name="now">\n</invoke>'
DSML = re.sub("(</?)", r"\1｜DSML｜", BOTH_INVOKED).replace('city"', 'city" string="true"')
STEP, ATEM = (re.sub("(</?)", rf"\1{name}:", BOTH_INVOKED) for name in ("steptml", "atem"))
KIMI = """<|open|>call tool="get_weather" index="1"<|sep|>
<|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>
<|open|>argument key="days" type="number"<|sep|>5<|close|>argument<|sep|>
<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|>"""
MINIMAX = re.sub(
    "<",
    "]<]minimax[>[<",
    '<tool_call>\n<invoke name="get_weather">\n<city>Oslo</city><days>5</days></invoke>'
    '\n<invoke name="now">\n</invoke>\n</tool_call>',
)
GLM = "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>5</arg_value>\n"
WRITTEN = {
    "hermes": "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in OBJECTS),
    "qwen3_json": "".join(f"<tool_call>{text}</tool_call>" for text in OBJECTS),
    "xlam": f"<tool_call>{LIST}</tool_call>",
    "granite": f"<|tool_call|> {LIST}",
    "granite-20b-fc": "\n".join(f"<function_call> {text}" for text in OBJECTS),
    "qwen3_coder": f"<tool_call>\n{QWEN}\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "seed_oss": f"<seed:tool_call>\n{QWEN}\n<function=now>\n</function></seed:tool_call>",
    "glm45": f"<tool_call>get_weather\n{GLM}</tool_call>\n<tool_call>now\n</tool_call>",
    "glm47": f"<tool_call>get_weather{GLM}</tool_call><tool_call>now</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜>" + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in CALLS
    ) + "<｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>" + "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in CALLS
    ) + "<｜tool▁calls▁end｜>",
    "deepseek_v32": f"<｜DSML｜function_calls>\n{DSML}\n</｜DSML｜function_calls>",
    "deepseek_v4": f"<｜DSML｜tool_calls>\n{DSML}\n</｜DSML｜tool_calls>",
    "deepseek_v41": f"<｜DSML｜calls>\n{DSML}\n</｜DSML｜calls>".replace("｜DSML｜", "｜DSML｜ "),
    "kimi_k2": "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(CALLS)
    ) + "<|tool_calls_section_end|>",
    "minimax_m2": f"<minimax:tool_call>\n{BOTH_INVOKED}\n</minimax:tool_call>",
    "minimax_m3": MINIMAX,
    "step3": f"<｜tool_calls_begin｜>{STEP}<｜tool_calls_end｜>".replace(
        "<steptml:invoke", "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke"
    ).replace("invoke>", "invoke><｜tool_call_end｜>"),
    "muse_glimmer": f" to=get_weather<|message|><atem:function_calls>\n{ATEM}\n</atem:function_calls><|eom|>",
    "muse_glimmer without its channel": ATEM,
    "minicpm5": '<function name="get_weather"><param name="city">Oslo</param>'
    """<param name='days'>5</param></function><function name="now"></function>""",
    "kimi_k3": f"<|open|>tools<|sep|>{KIMI}<|close|>tools<|sep|>",
    "plamo3": re.sub("<<(.*?)>>", r"<|plamo:\1:plamo|>", "<<begin_tool_requests>>" + "".join(
        f"<<begin_tool_request>><<begin_tool_name>>{name}<<end_tool_name>><<begin_tool_arguments>><|plamo:constrain|>"
        f"json<|plamo:msg|>{json.dumps(arguments)}<<end_tool_arguments>><<end_tool_request>>"
        for name, arguments in CALLS
    ) + "<<end_tool_requests>>"),
    "cohere_command3": "<|START_ACTION|>\n" + json.dumps(
        [{"tool_call_id": "0", "tool_name": name, "parameters": arguments} for name, arguments in CALLS]
    ) + "<|END_ACTION|>",
    "apertus": f"<|tools_prefix|>{json.dumps([{name: arguments} for name, arguments in CALLS])}<|tools_suffix|>",
    "inkling": "".join(
        f"<|message_model|><|content_invoke_tool_json|>{text.replace('arguments', 'args')}<|end_message|>"
        for text in OBJECTS
    ),
    "gigachat3": "\n".join(f"function call<|role_sep|>\n{text}" for text in OBJECTS),
    "gigachat3 since 3.1": "\n".join(f"<|function_call|>{text}" for text in OBJECTS),
    "ling3": f"<tool_call>get_weather{GLM}</tool_call><tool_call>now</tool_call>",
    "hy_v4": re.sub(r"(</?\w+)>", r"\1:6124c78e>", f"<tool_calls><tool_call>get_weather{GLM}</tool_call>"
                    "<tool_call>now</tool_call></tool_calls>"),
    "k2_horizon": re.sub("(</?)", r"\1ifm|", f"<tool_calls><tool_call>get_weather{GLM}</tool_call>"
                         "<tool_call>now</tool_call></tool_calls>"),
    "k2_horizon in JSON": "".join(f"<ifm|tool_call>{text}</ifm|tool_call>" for text in OBJECTS),
    "hf": f"<tool_call>{OBJECTS[0]}</tool_call><tool_call>{OBJECTS[1]}</tool_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:5}<tool_call|><|tool_call>call:now{}<tool_call|>',
    "functiongemma": "".join(
        f"<start_function_call>call:{call}<end_function_call>"
        for call in ("get_weather{city:<escape>Oslo<escape>,days:5}", "now{}")
    ),
    "mistral": f"[TOOL_CALLS] {LIST}",
    "mistral since v11": f"[TOOL_CALLS]get_weather{WEATHER}[TOOL_CALLS]now[ARGS]{NOW}",
    "llama3_json": f"<|python_tag|>{'; '.join(OBJECTS)}",
    "llama3_json without its token": "; ".join(OBJECTS).replace("arguments", "parameters"),
    "llama4_pythonic": f"<|python_start|>{PYTHON}<|python_end|>",
    "llama4_pythonic without its tokens": PYTHON,
    "pythonic": PYTHON,
    "lfm2": f"<|tool_call_start|>{PYTHON}<|tool_call_end|>",
    "olmo3": "<function_calls>get_weather(city='Oslo', days=5)\nnow()</function_calls>",
    "jamba": f"<tool_calls>{LIST}</tool_calls>",
    "phi4_mini_json": f"functools{LIST}",
    "longcat": "".join(f"<longcat_tool_call>{text}</longcat_tool_call>" for text in OBJECTS),
    "internlm": "".join(f"<|action_start|><|plugin|>{text}<|action_end|>" for text in OBJECTS),
    "openai": "".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
        for name, arguments in CALLS
    ),
    "openai with bare names": "".join(
        f"<|channel|>commentary to={name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
        for name, arguments in CALLS
    ),
    "openai in a thought": "".join(
        f" to=functions.{name}<|channel|>analysis <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
        for name, arguments in CALLS
    ),
}  # fmt: skip
MARKED = [name for name in WRITTEN if "without" not in name and name != "pythonic"]


def pairs(calls: list[ToolCall]) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in calls if call.error is None]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_model_s_calls_are_found_with_and_without_the_format_s_name(name: str) -> None:
    for format in ("auto", name.split()[0]):
        found = parse_tool_calls(WRITTEN[name], format=format, tools=TOOLS)
        assert pairs(found) == CALLS and len(found) == 2
    if name in MARKED:
        assert pairs(parse_tool_calls(f"Let me see.\n{WRITTEN[name]}\nThat is all.", tools=TOOLS)) == CALLS


@pytest.mark.parametrize("name", WRITTEN)
def test_a_text_cut_off_anywhere_gives_no_other_call_and_hides_none(name: str) -> None:
    text = WRITTEN[name]
    starts = [call.start for call in parse_tool_calls(text, tools=TOOLS)]
    for cut in range(len(text)):
        found = parse_tool_calls(text[:cut], format=name.split()[0], tools=TOOLS)
        good = pairs(found)
        assert good == CALLS[: len(good)]
        head = len("to=get_weather <|constrain|>json<|message|>")  # of what looks like a call the latest
        if name in MARKED and len(good) < len(CALLS) and cut > starts[len(good)] + head:
            assert len(found) > len(good), text[:cut]


def test_the_formats_of_one_text_are_all_read() -> None:
    text = "\n\n".join([*(WRITTEN[name] for name in MARKED), OBJECTS[0]])
    found = parse_tool_calls(text, tools=TOOLS)
    assert pairs(found) == CALLS * len(MARKED) + CALLS[:1] and len(found) == 2 * len(MARKED) + 1


@pytest.mark.parametrize(
    "text",
    [
        f"<think>{{}}{OBJECTS[1]} or {WRITTEN['hermes']}</think>%s",
        f"I could say {WRITTEN['hermes']} or <tool_call>.\n</think>\n\n%s",  # the opening tag was in the prompt
        f"<seed:think>{WRITTEN['hermes']}</seed:think>%s",
        f"[THINK]{WRITTEN['mistral']}[/THINK]%s",
        f"<|channel>thought\n{WRITTEN['gemma4']}<channel|>%s",
        f"<|START_THINKING|>{WRITTEN['cohere_command3']}<|END_THINKING|>%s",
        f"<|channel|>analysis<|message|>{WRITTEN['hermes']}<|end|>%s",
        f"<|message_model|><|content_thinking|>{WRITTEN['inkling'][:90]}<|end_message|>%s",
        f" to=self<|message|>{WRITTEN['muse_glimmer without its channel']}<|eom|>%s",
        f"%s<|start|>assistant to=user<|message|>{WRITTEN['muse_glimmer without its channel']}<|eot|>",
    ],
)
@pytest.mark.parametrize("name", ["hermes", "llama3_json", "pythonic", "mistral"])
def test_what_a_model_thinks_aloud_is_no_call(text: str, name: str) -> None:
    if name != "pythonic" or "</think>" in text or text.startswith("<|START"):
        assert pairs(parse_tool_calls(text % WRITTEN[name], tools=TOOLS)) == CALLS
    assert parse_tool_calls(text % "No tool is needed.", tools=TOOLS) == []


def test_a_call_in_a_thought_that_never_closes_is_not_run() -> None:
    found = parse_tool_calls(f"<think>I could say {WRITTEN['hermes']} or {OBJECTS[0]}")
    assert [call.error for call in found] == ["in a thought that is not closed"] * 2
    before, inside = parse_tool_calls("<think>".join(f"<tool_call>{text}</tool_call>" for text in OBJECTS))
    assert before.error is None and inside.error == "in a thought that is not closed"
    quoted = json.dumps({"name": "f", "arguments": {"text": "<think></think>"}})
    assert pairs(parse_tool_calls(f"<tool_call>{quoted}</tool_call>")) == [("f", {"text": "<think></think>"})]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, '"5"', '"5"'),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '  {"a": 1}\n', '  {"a": 1}\n'),
        ({"enum": ["1", "none"]}, "1", "1"),
        ({}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "5", 5),
        ({"type": "float"}, "0.5", 0.5),
        ({"type": "boolean"}, "True", True),
        ({"type": ["integer", "null"]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
        ({"type": "object"}, "{'a': (1)}", "{'a': (1)}"),
        ({"type": "object"}, "{'a': 1}", {"a": 1}),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"$ref": "#/$defs/point"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/endless"}, "1", "1"),
        ({"type": "integer"}, "1e999", "1e999"),
    ],
)
def test_the_schema_says_what_a_written_value_is(schema: dict[str, Any], text: str, value: Any) -> None:
    definitions = {"point": {"type": "object"}, "endless": {"$ref": "#/$defs/endless"}}
    tool = {"name": "f", "parameters": {"properties": {"a": schema}, "$defs": definitions}}
    for written in (
        f"<tool_call><function=f><parameter=a>\n{text}\n</parameter></function></tool_call>",
        f'<minimax:tool_call><invoke name="f"><parameter name="a">{text}</parameter></invoke></minimax:tool_call>',
        f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>",
    ):
        [call] = parse_tool_calls(written, tools=[tool])
        assert call.arguments == {"a": value} and type(call.arguments["a"]) is type(value)


def test_a_schema_types_what_stands_in_tags_in_tags() -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer"}, "label": {"$ref": "#/$defs/text"}}}
    properties = {"points": {"type": "array", "items": point}, "at": {"anyOf": [{"type": "null"}, point]}}
    more = {"empty": {"type": "array"}, "note": {"type": "string"}, "free": {"type": "object"}}
    schema = {"type": "object", "properties": properties | more, "$defs": {"text": {"type": "string"}}}
    tags = """<tool_call><invoke name="f"><points>
        <item><x>1</x><label>5</label></item>
        <item><x>2</x><label>six</label></item></points>
        <at><label> 7</label></at><empty></empty><note>a < b</note><free><k>v</k><k>w</k></free></invoke>"""
    text = re.sub("<(?! b)", "]<]minimax[>[<", tags)
    points = [{"x": 1, "label": "5"}, {"x": 2, "label": "six"}]
    typed = {"points": points, "at": {"label": " 7"}, "empty": [], "note": "a < b", "free": {"k": ["v", "w"]}}
    assert pairs(parse_tool_calls(text, tools=[{"name": "f", "parameters": schema}])) == [("f", typed)]


def test_entities_and_cdata_are_what_they_are_in_xml() -> None:
    code = "if a < b && c: print('<param name=\"x\"></param>')"
    text = f'<function name="f"><param name="a">1 &lt; 2 &amp;&amp; x</param><param name="b"><![CDATA[{code}]]></param>'
    assert pairs(parse_tool_calls(text + "</function>")) == [("f", {"a": "1 < 2 && x", "b": code})]


@pytest.mark.parametrize("inner", ['{"city": "Oslo"}', "{'city': 'Oslo'}"])
@pytest.mark.parametrize("key", ["arguments", "input", "properties"])
def test_arguments_in_an_argument_that_the_tool_has_not_are_its_own(key: str, inner: str) -> None:
    text = f'<invoke name="get_weather"><parameter name="{key}">{inner}</parameter></invoke>'
    assert pairs(parse_tool_calls(text, tools=TOOLS)) == [("get_weather", {"city": "Oslo"})]
    tool = {"name": "get_weather", "parameters": {"properties": {key: {"type": "string"}}}}
    assert pairs(parse_tool_calls(text, tools=[tool])) == [("get_weather", {key: inner})]
    for other in ("Oslo", '{"town": "Oslo"}'):
        assert pairs(parse_tool_calls(text.replace(inner, other), tools=TOOLS)) == [("get_weather", {key: other})]


def test_a_string_in_json_is_read_by_a_schema_that_allows_none() -> None:
    types = {"a": {"type": "integer"}, "b": {"type": ["string", "integer"]}, "c": {"items": {"type": "boolean"}}}
    text = '{"name": "f", "arguments": {"a": "2", "b": "2", "c": ["true", "yes"], "d": "2"}}'
    [call] = parse_tool_calls(text, tools=[{"name": "f", "parameters": {"properties": types}}])
    assert call.arguments == {"a": 2, "b": "2", "c": [True, "yes"], "d": "2"}
    assert parse_tool_calls(text)[0].arguments["a"] == "2"


def test_mimo_s_values_are_word_for_word() -> None:
    text = "<tool_call><function=f><parameter=a>\n5\n</parameter><parameter=b>5</parameter></function></tool_call>"
    assert pairs(parse_tool_calls(text, format="mimo")) == [("f", {"a": "\n5\n", "b": "5"})]
    tool = {"name": "f", "parameters": {"properties": {"b": {"type": "integer"}}}}
    assert pairs(parse_tool_calls(text, format="mimo", tools=[tool])) == [("f", {"a": "\n5\n", "b": 5})]


def test_names_in_attributes_are_what_they_are_in_xml() -> None:
    argument = '<|open|>argument key="k&amp;q" type="string"<|sep|>a &amp; b<|close|>argument<|sep|>'
    text = f'<|open|>call tool="a&amp;b&quot;c" index="1"<|sep|>{argument}<|close|>call<|sep|>'
    assert pairs(parse_tool_calls(text)) == [('a&b"c', {"k&q": "a &amp; b"})]


def test_a_tool_in_no_namespace_may_be_called_as_its_own() -> None:
    for name, called in (("now.now", "now"), ("get.now", "get.now"), ("new.new", "new.new")):
        text = f'<atem:function_calls><atem:invoke name="{name}"></atem:invoke></atem:function_calls>'
        assert pairs(parse_tool_calls(text, tools=TOOLS)) == [(called, {})]


@pytest.mark.parametrize(
    ("name", "held"),
    [("minimax_m2", True), ("k2_horizon", True), ("k2_horizon in JSON", True), ("minicpm5", True), ("glm45", False),
     ("deepseek_v4", False), ("hermes", False)],
)  # fmt: skip
def test_some_models_are_held_to_the_tools_of_the_request(name: str, held: bool) -> None:
    for format in ("auto", name.split()[0]):
        first, second = parse_tool_calls(WRITTEN[name], format=format, tools=TOOLS[:1])
        assert pairs([first]) == CALLS[:1] and second.name == "now"
        assert ("a tool of the request expected" in str(second.error)) == held == (second.error is not None)
        assert pairs(parse_tool_calls(WRITTEN[name], format=format, tools=[]))[1] == CALLS[1]


@pytest.mark.parametrize(
    ("params", "arguments"),
    [
        ({"city": "Oslo", "mood": "fine"}, {"city": "Oslo"}),
        ({"arguments": '{"city": "Oslo", "mood": "fine"}'}, {"city": "Oslo"}),
        ({"City": "Oslo"}, None),
        ({"properties": '{"town": "Oslo"}'}, None),
    ],
)
def test_minicpm_is_held_to_the_schema_s_arguments_too(params: dict[str, str], arguments: dict[str, Any]) -> None:
    schema = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
    inner = "".join(f'<param name="{key}">{value}</param>' for key, value in params.items())
    [call] = parse_tool_calls(f'<function name="f">{inner}</function>', tools=[{"name": "f", "parameters": schema}])
    assert (call.arguments, call.error is None) == (arguments or {}, arguments is not None)
    assert arguments or "an argument 'city' expected" in str(call.error)


def test_minimax_m3_and_step3_call_in_their_blocks_only() -> None:
    begins = {"minimax_m3": "]<]minimax[>[<tool_call>", "step3": "<｜tool_call_begin｜>function<｜tool_sep｜>"}
    for name, text in ((name, WRITTEN[name].replace(begin, "")) for name, begin in begins.items()):
        for found in (parse_tool_calls(text, format=format, tools=TOOLS) for format in ("auto", name)):
            assert found and all(call.error for call in found)
    stopped = WRITTEN["step3"].split("<｜tool_call_end｜>")[0]
    assert pairs(parse_tool_calls(stopped, tools=TOOLS)) == CALLS[:1]


def test_muse_glimmer_s_values_are_json_where_no_schema_speaks() -> None:
    text = WRITTEN["muse_glimmer without its channel"].replace("get_weather", "now")
    assert pairs(parse_tool_calls(text, tools=TOOLS))[0] == ("now", {"city": "Oslo", "days": 5})
    other = text.replace("atem:", "")
    assert pairs(parse_tool_calls(other, tools=TOOLS))[0] == ("now", {"city": "Oslo", "days": "5"})


def test_what_follows_a_call_that_is_wrong_in_a_list_is_read() -> None:
    text = '<|python_tag|>[{"name": "f", "arguments": {"a": 1, "a": 2}}, {"name": "g", "arguments": {}}]'
    wrong, right = parse_tool_calls(text)
    assert wrong.error and (wrong.name, wrong.raw_text) == ("f", '{"name": "f", "arguments": {"a": 1, "a": 2}}')
    assert (right.name, right.arguments, right.error) == ("g", {}, None)


def test_deepseek_says_itself_what_is_a_string() -> None:
    for string, value in (("true", "5"), ("false", 5)):
        parameter = f'<｜DSML｜parameter name="a" string="{string}">5</｜DSML｜parameter>'
        [call] = parse_tool_calls(f'<｜DSML｜invoke name="f">{parameter}</｜DSML｜invoke>')
        assert call.arguments == {"a": value}


def test_a_tool_that_is_no_description_is_refused() -> None:
    with pytest.raises(OptionError, match=r"tools\[1\] is no description of a function"):
        parse_tool_calls("", tools=[TOOLS[0], {"function": "f"}])


# -- reported, not guessed ---------------------------------------------------------------------------------------------

MALFORMED = {
    "broken JSON": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>', "a value expected at"),
    "a brace too few": ("hermes", '<tool_call>{"name": "f", "arguments": {}</tool_call>', "a comma or } expected"),
    "the wrong bracket": ("hermes", '<tool_call>{"name": "f", "arguments": [1}}</tool_call>', "a comma or ] expected"),
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
        "the closing tag expected",
    ),
    "an opening alone": ("auto", "I will call <tool_call>", "where the text ends"),
    "an opening of a list alone": ("jamba", "<tool_calls>", "an object expected where the text ends"),
    "a parameter that is not closed": (
        "qwen_coder",
        "<tool_call><function=f><parameter=a>1<parameter=b>2</parameter></function></tool_call>",
        "parameter 'a' is not closed where the next begins",
    ),
    "a value that is not closed": (
        "glm",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1<arg_key>b</arg_key><arg_value>2</arg_value></tool_call>",
        "parameter 'a' is not closed where the next begins",
    ),
    "text among tags": (
        "minimax_m3",
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>]<]minimax[>[<b>1'
        "]<]minimax[>[</b>so]<]minimax[>[</a>]<]minimax[>[</invoke>",
        "a parameter or the closing tag",
    ),
    "another closing tag": (
        "minimax_m3",
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</b>'
        "]<]minimax[>[</invoke>",
        "parameter 'a' is not closed by its own tag",
    ),
    "two names in one": ("apertus", '<|tools_prefix|>[{"f": {}, "g": {}}]<|tools_suffix|>', "one name and one set"),
    "an object with no closing quote": ("gemma", '<|tool_call>call:f{a:<|"|>x}<tool_call|>', "a value expected"),
    "no name in a call's marker": (
        "kimi",
        "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "a name",
    ),
    "a section without a call": ("kimi", "<|tool_calls_section_begin|>f(a=1)", "a name and its marker expected"),
    "DeepSeek's section without a call": ("deepseek", "<｜tool▁calls▁begin｜>f(a=1)", "a name and its marker expected"),
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
    "a wrapper alone": ("invoke", "<function_calls>\n", "a name and its marker expected"),
    "code behind the python tag": ("llama", "<|python_tag|>print(1)", "an object expected"),
    "a name alone": ("mistral", "[TOOL_CALLS]f", "a name and its marker expected"),
    "an import": ("pythonic", '[f(a=__import__("os").system("false"))]', "a value expected"),
    "an operator": ("pythonic", "[f(a=1 + 1)]", "a comma or ) expected"),
    "an f-string": ("pythonic", '[f(a=f"{1}")]', "a value expected"),
    "a name for a value": ("pythonic", "[f(a=b)]", "a value expected"),
    "half a set": ("pythonic", "[f(a={1, 'b': 2})]", "a key stands twice, or not at all"),
    "brackets around one": ("pythonic", "[f(a=(1))]", "a tuple of one, or none"),
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
    listed = re.sub(r"^(<.*>)?\[|\](<.*>)?$", "", text)  # where it can be read, if not run
    assert call.raw_text in (text, text.strip("[ "), listed, text.removeprefix("I will call "))
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
        ('[TOOL_CALLS]{"a": 1}', "[TOOL_CALLS]g{}"),
        ("<tool_call><function=f><parameter=a>1<parameter=b>2</parameter></tool_call>", "<tool_call>g</tool_call>"),
        ('{"name": "f", "arguments": {a}}', '{"name": "g", "arguments": {}}'),
    ],
)
def test_a_malformed_call_does_not_hide_the_next(bad: str, good: str) -> None:
    first, second = parse_tool_calls(bad + "\n" + good)
    assert first.error and first.start in (0, len("[TOOL_CALLS]")) and first.end <= len(bad) + 1
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


def test_python_s_tuples_and_sets_are_lists() -> None:
    [call] = parse_tool_calls(
        "[f(a=(800, 600), b={'urgent', 'bug'}, c=(), d={}, e=((1, 2), {3},), g={'k': (None, 1)})]"
    )
    lists = {"a": [800, 600], "b": ["urgent", "bug"], "c": [], "d": {}, "e": [[1, 2], [3]], "g": {"k": [None, 1]}}
    assert call.arguments == lists


def test_python_s_own_spellings_are_read() -> None:
    text = r"[f(a='\d\n\x41\'', b=True, c=None, d=-.5, e={'k': [1_000,],}, g=" + '"""a\n"b""",), h.i()]'
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of the escape \\d
        first, second = parse_tool_calls(text)
    assert first.arguments == {"a": "\\d\nA'", "b": True, "c": None, "d": -0.5, "e": {"k": [1000]}, "g": 'a\n"b'}
    assert (second.name, second.arguments) == ("h.i", {})


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("auto", "<new_tool_call>f(1)</new_tool_call>"),
        ("auto", "[TOOL_REQUEST_CALL] f"),
        ("auto", "So: <|tool_use_begin|>f"),
        ("auto", "<|START_INVOKE|>f()<|END_INVOKE|>"),
        ("auto", "<|new_tools|>[f(1)]"),
        ("auto", '<new:invoke name="f">'),
        ("auto", '<tool name="f"><arg>1</arg></tool>'),
        ("hermes", WRITTEN["cohere_command3"]),
        ("hermes", WRITTEN["apertus"]),
        ("hermes", WRITTEN["kimi_k3"]),
        ("hermes", WRITTEN["minicpm5"]),
        ("hermes", WRITTEN["muse_glimmer without its channel"]),
        ("hermes", WRITTEN["deepseek_v31"]),
        ("deepseek", WRITTEN["hermes"]),
        ("pythonic", WRITTEN["mistral"]),
    ],
)
def test_a_marker_that_is_not_known_or_not_asked_for_is_an_error_and_no_silence(format: str, text: str) -> None:
    found = parse_tool_calls(text, format=format)
    assert found and all("was not looked for at character" in str(call.error) for call in found)


VLLM = """apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots
ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hf hunyuan_a13b hy_v3 hy_v4
inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json llama4_pythonic longcat mimo
minicpm5 minimax_m2 minimax_m3 mistral muse_glimmer olmo3 openai phi4_mini_json plamo3 poolside_v1 pythonic qwen3_coder
qwen3_json qwen3_xml seed_oss step3 step3p5 xlam"""


def test_each_parser_of_vllm_0_32_is_known_by_its_name() -> None:
    assert len(VLLM.split()) == 54 and set(VLLM.split()) <= tool_calls.FORMATS.keys()


def test_an_unknown_format_is_refused_with_a_guess() -> None:
    with pytest.raises(OptionError, match="Did you mean 'hermes'"):
        parse_tool_calls("", format="hermess")


# -- hostile text ------------------------------------------------------------------------------------------------------

HOSTILE = [
    "{", '{"', "[", "[f(", "f(", '{"name": ', '{"name": {"a', '{"a": 1}', '{"a\\q', '{"a" ', "{   ", '{"a": "\\',
    '{"name": "f", "arguments": {"a": "', "<tool_call>", "<tool_call>\n", '<tool_call>{"a": ', '<tool_call>{"a',
    "<tool_call><function=f><parameter=a>", "<function=", '<invoke name="f">', "<function_calls>", "[TOOL_CALLS]",
    "[TOOL_CALLS][", "[TOOL_CALLS]f", '<|python_tag|>{"', "[f(a=[", '[f(a="', "[f(a='''", "[f(),", "[f()", "[ ", "a.",
    "<think>", "</think>", "[THINK]<think>", "<tool_call>f<arg_key>k</arg_key><arg_value>", "<tool_call>f",
    "<｜tool▁call▁begin｜>f", "<｜tool▁calls▁begin｜>", "<|tool_call_begin|>f:0", "f:0", '<|tool_call>call:f{a:<|"|>',
    "<|tool_call>call:f{a:<escape>", "<|tool_call_start|>[f(", "<function_calls>f()", "to=functions.f", "<my_tool_",
    "[tool_call", "<function_call>[", "<tool_calls>", '<｜DSML｜invoke name="f">',
    '<invoke name="f"><parameter name="a">', '<function name="f"><param name="k"><![CDATA[', "]]>", "<|tools_prefix|>[",
    ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<k>x', "]<]minimax[>[<k>",
    '<|open|>call tool="f"<|sep|>', "<｜tool_call_begin｜>function<｜tool_sep｜>",
    "<|START_ACTION|>", "<|plamo:begin_tool_request:plamo|>", "to=self<|message|>", "<tool ", "to=f json",
    'to=functions.f"',
]  # fmt: skip


class Work:
    """The module `re` for the parser, with a count of what it is asked to look at: it stands for time, which no test
    can trust. What a pattern does inside itself is not seen."""

    def __init__(self) -> None:
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(re, name)

    def compile(self, pattern: str) -> Any:
        work, compiled = self, re.compile(pattern)

        class Counted:
            def match(self, text: str, at: int) -> re.Match[str] | None:
                found = compiled.match(text, at)
                work.characters += found.end() - at if found else 1
                return found

            def search(self, text: str, at: int) -> re.Match[str] | None:
                found = compiled.search(text, at)
                work.characters += (found.end() if found else len(text)) - at
                return found

        return Counted()


@pytest.mark.parametrize("format", ["auto", "pythonic", "json", "hermes"])
def test_hostile_text_takes_linear_work(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(text: str) -> int:
        counter = Work()
        monkeypatch.setattr(tool_calls, "re", counter)
        parse_tool_calls(text, format=format)
        return counter.characters

    for piece in HOSTILE:
        repeated = (piece * (size // len(piece)) for size in (1_000, 2_000))
        stretched = (piece + " " * size + '" x y' for size in (1_000, 2_000))
        for half, whole in (repeated, stretched):
            assert work(whole) < 2.5 * work(half) + 500, piece


@pytest.mark.parametrize(
    "piece", ['to=functions.f"', 'to=functions.f\\"', "to=functions.f:", "<|tool_call_begin|>functions.f"]
)
def test_hostile_text_of_64_kb_takes_seconds_at_most(piece: str) -> None:
    """What a pattern does inside itself: each opening read a name of the whole rest, 26 s in all."""
    began = time.process_time()
    parse_tool_calls(piece * (65_536 // len(piece)))
    assert time.process_time() - began < 6


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}")])
def test_deep_nesting_is_an_error_and_not_a_recursion(opening: str, closing: str) -> None:
    def nested(depth: int) -> str:
        return f'{{"name": "f", "arguments": {{"a": {opening * depth}1{closing * depth}}}}}'

    for text in (f"<tool_call>{nested(100_000)}</tool_call>", f"[f(a={opening * 100_000}1{closing * 100_000})]"):
        [call] = parse_tool_calls(text)
        assert call.error and "128 levels" in call.error
    [call] = parse_tool_calls(nested(120))
    assert call.error is None
    tags = (piece * 128 for piece in ("]<]minimax[>[<k>", "]<]minimax[>[</k>"))
    [whole, deeper] = parse_tool_calls(
        "]<]minimax[>[<tool_call>{0}{1}1{2}{3}{0}{1}{1}1{2}{2}{3}".format(
            ']<]minimax[>[<invoke name="f">', *tags, "]<]minimax[>[</invoke>"
        )
    )
    assert whole.error is None and deeper.error and "128 levels" in deeper.error
