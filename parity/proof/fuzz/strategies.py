"""What `make fuzz` generates: mostly what an engine should answer, and now and then anything in the
place of a value. Each value shrinks to a plain one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from gen_engine import ROLES
from parity.proof.fuzz.values import SPECIALS, Case, Json, special

Values = st.SearchStrategy[Any]

# What templates, tokenizers and grammars may take for their own.
WORDS = (
    "Hi",
    "What is the capital of Peru?",
    "1 + 1",
    "",
    " ",
    "\n",
    "\0",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|image_pad|>",
    "<|vision_start|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "{{ 1 }}",
    "{% raw %}",
    '"',
    "\\",
    "é",
    "\u0301",
    "\ufffd",
    "\u202e",
    "\U0001f468\u200d\U0001f469",
    "\ud800",
    "x" * 3000,
)


@st.composite
def mostly(draw: st.DrawFn, /, usual: Values, other: Values, one_in: int = 30) -> Any:
    """Mostly `usual`, else `other`; it shrinks to `usual`."""
    is_other = draw(st.integers(0, one_in - 1)) == one_in - 1
    return draw(other if is_other else usual)


TEXT = st.one_of(
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS[:-1]), max_size=5).map("".join),
    st.text(max_size=20),
)
SPECIAL = st.sampled_from(sorted(SPECIALS)).map(special)
LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    SPECIAL,
)


def containers(parts: Values) -> Values:
    names = st.sampled_from(("role", "content", "type", "text", "a", ""))
    return st.one_of(st.lists(parts, max_size=3), st.dictionaries(names, parts, max_size=3))


ANYTHING = st.recursive(LEAF, containers, max_leaves=6)


def or_anything(usual: Values) -> Values:
    return mostly(usual, ANYTHING)


@st.composite
def some_of(draw: st.DrawFn, /, fields: Mapping[str, Values], **always: Values) -> Any:
    """A mapping with a quarter of these fields, each of which may be anything."""
    record = {name: draw(values) for name, values in always.items()}
    for name, values in fields.items():
        if draw(st.integers(0, 3)) == 3:
            record[name] = draw(or_anything(values))
    return record


# == Images ==

IMAGE = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(("RGB", "L", "1", "P", "LA", "RGBA", "CMYK", "I", "F")),
        "size": st.lists(st.sampled_from((28, 1, 2, 3, 56, 113, 300)), min_size=2, max_size=2),
        "color": st.sampled_from((0, 1)),
        "form": mostly(
            st.sampled_from(("pil", "png", "url")),
            st.sampled_from(("cut", "missing", "remote")),
            one_in=8,
        ),
    }
).map(lambda spec: {"$image": spec})
VLM = some_of(
    {
        "min_pixels": st.sampled_from((1, 784, 3136, 10**7)),
        "max_pixels": st.sampled_from((784, 3136, 1, 10**7)),
        "do_resize": st.booleans(),
    }
)

# == Structured output ==

ATOMS = (
    "a",
    "b",
    "é",
    ".",
    "\\d",
    "\\w",
    "[0-9]",
    "[^a]",
    "(ab|c)",
    "(?:x)",
    '"',
    "\\\\",
)
ODD_ATOMS = (
    "^",
    "$",
    "\\b",
    "(?=a)",
    "(?!a)",
    "(",
    "[",
    "\\1",
    "\\A",
    "\\p{L}",
    "\\Z",
    "*",
)
COUNTS = (
    "",
    "?",
    "*",
    "+",
    "{2}",
    "{1,3}",
    "{0,}",
)
ODD_COUNTS = (
    "{3,1}",
    "{999}",
    "??",
    "{",
    "{0}",
)


ATOM = mostly(st.sampled_from(ATOMS), st.sampled_from(ODD_ATOMS))
REGEX_PART = st.tuples(ATOM, mostly(st.sampled_from(COUNTS), st.sampled_from(ODD_COUNTS)))
REGEX = st.lists(REGEX_PART.map("".join), min_size=1, max_size=4)
NUMBER = st.one_of(st.integers(-5, 5), st.floats(-5, 5))
NAME = st.sampled_from(("a", "b", "é", '"', "\n", "", "$ref"))
STRING_LIMITS = {"minLength": st.integers(0, 4), "maxLength": st.integers(0, 6)}
FORMATS = st.sampled_from(("date", "email", "uri", "odd"))
REFERENCES = (
    {"$ref": "#/$defs/a"},
    {"$ref": "#"},
    {"$ref": "other.json"},
)
SCALAR = st.one_of(
    some_of(STRING_LIMITS, type=st.just("string")),
    some_of({"pattern": REGEX.map("".join)}, type=st.just("string")),
    some_of({"format": FORMATS}, type=st.just("string")),
    some_of({"minimum": NUMBER, "maximum": NUMBER}, type=st.just("integer")),
    some_of({"exclusiveMinimum": NUMBER, "multipleOf": NUMBER}, type=st.just("number")),
    some_of({}, type=st.sampled_from(("boolean", "null", "odd"))),
    some_of({}, type=st.just(["string", "null"])),
    some_of({}, enum=st.lists(st.one_of(NAME, NUMBER, st.none()), max_size=3)),
    some_of({}, const=st.one_of(NAME, NUMBER, st.just({"a": [1]}))),
    st.sampled_from(({}, True, False, *REFERENCES)),
)


def schemas_of(parts: Values) -> Values:
    limits = {"minItems": st.integers(0, 3), "maxItems": st.integers(0, 3)}
    properties = st.dictionaries(NAME, parts, max_size=3)
    required = st.lists(NAME, max_size=2)
    more = {"required": required, "additionalProperties": parts, "$defs": properties}
    return st.one_of(
        some_of(limits, type=st.just("array"), items=parts),
        some_of(more, type=st.just("object"), properties=properties),
        some_of({}, anyOf=st.lists(parts, max_size=3)),
        some_of({}, allOf=st.lists(parts, max_size=2)),
    )


SCHEMA = st.recursive(SCALAR, schemas_of, max_leaves=5)
GRAMMAR = st.sampled_from(
    (
        'root ::= "a" | "b"',
        "root ::= [0-9]+",
        'root ::= "é" root | ""',
        "root ::= root",
        "root ::= other",
        'start: "a"',
        "",
        "root ::= [",
    )
)
STRUCTURED = st.one_of(
    st.fixed_dictionaries({"json": or_anything(SCHEMA)}),
    st.fixed_dictionaries({"regex": or_anything(REGEX.map("".join))}),
    st.fixed_dictionaries({"choice": or_anything(st.lists(TEXT, max_size=3))}),
    st.fixed_dictionaries({"grammar": or_anything(GRAMMAR)}),
    st.fixed_dictionaries({"json_object": or_anything(st.just(True))}),
)

# == Messages ==

ARGUMENTS = st.one_of(st.dictionaries(NAME, LEAF, max_size=2), st.just('{"city": "Oslo"}'), TEXT)
FUNCTION = some_of({}, name=st.one_of(st.just("get_weather"), TEXT), arguments=ARGUMENTS)
TOOL_CALL = some_of({"id": TEXT}, type=st.just("function"), function=FUNCTION)
DECLARED = some_of({"parameters": SCHEMA, "description": TEXT}, name=st.just("get_weather"))
TOOLS = st.lists(some_of({}, type=st.just("function"), function=DECLARED), max_size=2)
TEXT_PART = st.fixed_dictionaries({"type": st.just("text"), "text": or_anything(TEXT)})
IMAGE_PART = st.one_of(
    st.fixed_dictionaries({"type": st.just("image"), "image": or_anything(IMAGE)}),
    st.fixed_dictionaries({"type": st.just("image")}),
    IMAGE.map(lambda image: {"type": "image_url", "image_url": {"url": image}}),
)


def messages_of(parts: Values) -> Values:
    content = st.one_of(TEXT, st.lists(or_anything(parts), max_size=3))
    more = {
        "tool_calls": st.lists(TOOL_CALL, max_size=2),
        "reasoning_content": TEXT,
        "name": TEXT,
        "tool_call_id": TEXT,
    }
    plain = st.fixed_dictionaries({"role": st.just("user"), "content": content})
    roles = st.sampled_from(ROLES)
    full = some_of(more, role=or_anything(roles), content=or_anything(content))
    several = st.lists(or_anything(st.one_of(plain, full)), min_size=1, max_size=4)
    return mostly(several, st.just([]))


TEMPLATE = st.one_of(
    st.just("{{ messages[0].content }}"),
    TEXT.map(lambda text: "{{ messages }}" + text),
    st.sampled_from(("{{ a.b.c }}", "{% for m in messages %}", "{{ raise_exception('no') }}", "{")),
)
CHAT = some_of(
    {
        "enable_thinking": st.booleans(),
        "add_generation_prompt": st.booleans(),
        "template": TEMPLATE,
        "kwargs": st.dictionaries(NAME, LEAF, max_size=2),
        "special_tokens": st.sampled_from(("keep", "refuse", "escape")),
    }
)

# == Requests ==

SEED = st.integers(0, 2**32)
IDS = st.lists(mostly(st.integers(0, 300), st.integers(-1, 2**40)), max_size=12)


COMMON: dict[str, Values] = {"seed": SEED, "structured": STRUCTURED}
OF_CHATS = {**COMMON, "tools": TOOLS, "chat": CHAT, "continue_final": st.booleans()}
RARE = {"adapter": TEXT, "unknown": TEXT, "prompt": TEXT, "images": st.lists(ANYTHING, max_size=1)}
TEXT_MESSAGES = messages_of(TEXT_PART)
TEXT_REQUEST = mostly(
    st.one_of(
        some_of(OF_CHATS, messages=TEXT_MESSAGES),
        some_of(COMMON, messages=TEXT_MESSAGES),
        some_of(COMMON, prompt=or_anything(TEXT)),
        some_of(COMMON, prompt_token_ids=or_anything(IDS)),
    ),
    st.one_of(some_of({**OF_CHATS, **RARE}, messages=TEXT_MESSAGES), ANYTHING),
)


def with_image(first: Json, others: list[Json]) -> list[Json]:
    """Messages of which the first has an image."""
    return [{"role": "user", "content": [first, {"type": "text", "text": "What?"}]}, *others]


def with_pads(images: list[Json], text: str) -> dict[str, Json]:
    """A raw prompt with a place for each image."""
    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    return {"prompt": pad * len(images) + text, "images": images}


OWN_IMAGE = st.fixed_dictionaries({"type": st.just("image"), "image": or_anything(IMAGE)})
ANY_MESSAGES = messages_of(st.one_of(TEXT_PART, IMAGE_PART))
IMAGE_MESSAGES = st.builds(with_image, OWN_IMAGE, mostly(st.just([]), ANY_MESSAGES, one_in=3))
RAW_IMAGES = st.builds(with_pads, st.lists(IMAGE, min_size=1, max_size=2), TEXT)
VLM_REQUEST = mostly(
    st.one_of(
        some_of({**COMMON, "vlm": VLM}, messages=IMAGE_MESSAGES),
        some_of({**OF_CHATS, "vlm": VLM}, messages=IMAGE_MESSAGES),
        RAW_IMAGES,
    ),
    st.one_of(some_of({**OF_CHATS, **RARE, "vlm": VLM}, messages=ANY_MESSAGES), ANYTHING),
)

# == Options ==

SHORT_TEXT = st.sampled_from(("a", "\n", " ", "is", "é", "\ud800", ""))
STOPS = st.lists(mostly(SHORT_TEXT, TEXT), max_size=3)
STOP = st.one_of(
    STOPS,
    some_of(
        {
            "strings": STOPS,
            "token_ids": IDS,
            "include_stop": st.booleans(),
            "ignore_eos": st.booleans(),
        }
    ),
)
DECODE = some_of({"skip_special_tokens": st.booleans(), "strip": st.booleans()})
FEW = st.integers(1, 8)  # tokens: answers are short, so that many can be asked
OPTION_FIELDS: dict[str, Values] = {
    "min_new_tokens": st.integers(0, 8),
    "temperature": st.sampled_from((0.0, 1.0, 0.5, 1e-6, 1e6)),
    "top_p": st.sampled_from((1.0, 0.9, 1e-9)),
    "top_k": st.sampled_from((1, 5, 10**6)),
    "min_p": st.sampled_from((0.0, 0.1, 1.0)),
    "repetition_penalty": st.sampled_from((1.0, 1.2, 0.5, 1e-9, 1e9)),
    "no_repeat_ngram_size": st.integers(1, 4),
    "n": st.integers(1, 3),
    "logprobs": st.integers(0, 3),
    "logits": st.booleans(),
    "stop": STOP,
    "decode": DECODE,
    "max_prompt_tokens": st.sampled_from((1, 20, 500)),
    "truncate_prompt": st.booleans(),
}
FIXED_OPTIONS = (
    {"max_new_tokens": 6},
    {"max_new_tokens": 8, "temperature": 1.0, "seed": 1},
    {"max_new_tokens": 40, "temperature": 1.0, "seed": 1},  # a structure that is short ends
)
ODD_COUNT = st.sampled_from((0, -1, None, "6", 10**9, special("nan"), special("many digits")))
OPTIONS = st.one_of(
    st.sampled_from(FIXED_OPTIONS),
    some_of(OPTION_FIELDS, max_new_tokens=mostly(FEW, ODD_COUNT), seed=or_anything(SEED)),
    mostly(st.sampled_from(FIXED_OPTIONS), ANYTHING),
)


def cases_of(verb: str, requests: st.SearchStrategy[Json]) -> st.SearchStrategy[Case]:
    batch = st.lists(requests, min_size=1, max_size=6).map(tuple)
    return st.builds(Case, st.just(verb), batch, OPTIONS)


CASES = st.one_of(
    cases_of("text", TEXT_REQUEST),
    cases_of("text", TEXT_REQUEST),
    cases_of("vlm", VLM_REQUEST),
)
