# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Structured output by xgrammar, the same on both backends: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="structured"`, and write

    engine.generate_text_batch([{"messages": chat, "structured": {"json": schema}}])

gen_engine finds this file beside itself. A schema keyword that xgrammar ignores is refused. Of a
model that thinks first, `"after": "</think>"` says where the structure begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = [
    "Grammars",
    "StructuredOptions",
    "grammar_for",
    "grammar_of",
    "mask_logits",
    "set_compiler",
]

# == What a request asks for, and where it is refused ==


def schema_text(value: Any) -> Any:
    """A JSON schema as a string. What cannot be JSON stays as it is, for the rule to refuse."""
    if isinstance(value, Mapping):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            return json.dumps(value)
    return value


def is_string(value: Any) -> bool:
    return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class StructuredOptions:
    """What the text must look like: exactly one of these forms.

    json: a JSON schema (mapping or string).   json_object: any JSON object.
    regex: a regular expression.   choice: one of these strings.   grammar: EBNF with a rule `root`.
    after: the marker that it stands behind, as "</think>": before it anything may be said, and two
        line ends may follow it. Default None: it begins at once, and is refused for a chat with
        enable_thinking=True, of which it would leave no thought; "" begins at once there, too.
    xgrammar constrains both backends. JSON has no white space between its tokens."""

    json: Any = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        if self.json is not None:
            meaning = "a JSON schema as a mapping or a string"
            ge.check_field(self, "json", meaning, ge.is_text, schema_text)
        ge.check_bools(self, "json_object")
        ge.check_texts(self, "regex", "grammar", optional=True)
        if self.choice is not None:
            ge.check_text_list(self, "choice")
        if self.after is not None:
            ge.check_field(self, "after", "a marker as '</think>', or ''", is_string)
        if len(self.forms()) != 1:
            problem = f"StructuredOptions has {len(self.forms())} forms"
            raise ge.OptionError(problem, fix="give exactly one")
        if self.after and (not ge.is_text(self.after) or self.after[0] in self.after[1:]):
            problem = f"StructuredOptions.after is {ge.short_repr(self.after)}"
            raise ge.OptionError(problem, fix="give a marker whose first character is in it once")

    def forms(self) -> dict[str, Any]:
        names = [f.name for f in dataclasses.fields(self) if f.name != "after"]
        values = {name: getattr(self, name) for name in names}
        return {name: values[name] for name in values if values[name] not in (None, False, ())}


def mixes_structures(asked: ge.Asked) -> bool:
    return len({prompt.structured is None for prompt in asked.prompts}) == 2


REFUSALS = (
    ge.Refusal(
        "vllm",
        "structures beside free rows on a CPU",  # 0.14.1 pins memory then, which takes a GPU
        lambda asked: mixes_structures(asked) and ge.vllm_is_on_cpu(),
        ge.OTHER_VLLM,
        "vllm>=0.12,<0.20",
    ),
    ge.Refusal(
        "vllm",
        "structures in a process of its own",  # where they are compiled
        ge.has_own_process,
        "unset VLLM_ENABLE_V1_MULTIPROCESSING, or use backend='hf'",
        "vllm<0.32",
    ),
    ge.Refusal(
        "vllm",
        "logits plugins beside structures",
        lambda asked: any(plugin.logits for plugin in asked.plugins),
        ge.OTHER_VLLM,
        "vllm>=0.11,<0.14",
    ),
)

# == Schemas: what xgrammar ignores is refused ==

NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")  # keys are names
IGNORED = {
    "$dynamicRef",
    "$recursiveRef",
    "multipleOf",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
}
HARMLESS = {
    "uniqueItems": False,
    "not": False,
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
}
BOUNDS = {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "minProperties",
    "maxProperties",
}
SHAPES = {
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "items",
    "minItems",
    "maxItems",
}
LENGTHS = {"minLength", "maxLength"}
ALONE = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}  # xgrammar reads no word beside these
CHOICES = ("anyOf", "oneOf", "allOf", "enum", "type")  # of one or more
TYPES: dict[str, tuple[type[Any], ...]] = {  # of JSON -> of Python's values
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
ANY_TYPE = frozenset(itertools.chain.from_iterable(TYPES.values()))
DATA = ("const", "default", "enum", "examples")  # hold values, not schemas
DEEPEST = 100
LONGEST = 1 << 18  # characters of EBNF


def allowed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of `const` or `enum`; None where it has neither."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def types_of(schema: Any) -> frozenset[type[Any]]:
    """Python's types of the values that a schema allows; all of them where it is not told here."""
    if not isinstance(schema, dict):
        return frozenset() if schema is False else ANY_TYPE
    values = allowed_values(schema)
    if values is not None:
        return frozenset(map(type, values))
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return frozenset(itertools.chain.from_iterable(TYPES.get(name, ()) for name in names))
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return frozenset[type[Any]]().union(*map(types_of, schema[word]))
    return ANY_TYPE


def told_apart_by(schema: Any) -> dict[str, set[str]]:
    """The properties that an object must have with one of a few strings: name -> strings."""
    apart = {}
    for name, inner in schema.get("properties", {}).items():
        values = allowed_values(inner) if isinstance(inner, dict) else None
        are_strings = values is not None and set(map(type, values)) == {str}
        if are_strings and name in schema.get("required", ()):
            apart[name] = set(values or ())
    return apart


def are_disjoint(one: Any, other: Any) -> bool:
    """Whether no value follows both schemas, as far as types and such properties tell."""
    common = types_of(one) & types_of(other)
    if not common:
        return True
    if common != {dict}:
        return False
    values = told_apart_by(other)
    shared = [(own, values[name]) for name, own in told_apart_by(one).items() if name in values]
    return any(not own & others for own, others in shared)


def overlapping(schema: Mapping[str, Any]) -> bool:
    """Whether branches of oneOf may hold for one value: xgrammar takes it for anyOf."""
    pairs = itertools.combinations(schema.get("oneOf", ()), 2)
    return not all(are_disjoint(one, other) for one, other in pairs)


def crossing(schema: Mapping[str, Any]) -> bool:
    """Whether the name of a property may follow two schemas, of which xgrammar sees one."""
    patterns = schema.get("patternProperties", ())
    return len(patterns) > 1 or bool(patterns and schema.get("properties"))


def beside_alone(schema: Mapping[str, Any]) -> set[str]:
    """The keywords that xgrammar does not read beside one of ALONE; a type that allows what that
    one allows says nothing more."""
    alone = schema.keys() & ALONE
    ignored = schema.keys() & (BOUNDS | SHAPES | {"format"})
    if len(alone) > 1:
        ignored |= alone
    others = {name: schema[name] for name in alone}
    if "type" in schema and not types_of(others) <= types_of({"type": schema["type"]}):
        ignored.add("type")
    return ignored


def ignored_words(schema: Mapping[str, Any]) -> set[str]:
    """Keywords and names of one schema that xgrammar would ignore."""
    words = set(schema)
    names = set(schema.get("properties", ()))
    ignored = {word for word in IGNORED & words if schema[word] is not HARMLESS.get(word)}
    ignored |= set(schema.get("required", ())) - names
    if words & ALONE:
        ignored |= beside_alone(schema)
    elif "type" not in words:
        ignored |= words & BOUNDS
    if words & {"pattern", "format"}:
        ignored |= words & LENGTHS
    if len(schema.get("allOf", ())) > 1:
        ignored.add("allOf")
    if crossing(schema):
        ignored.add("patternProperties")
    if overlapping(schema):
        ignored.add("oneOf")
    if not re.fullmatch("#(/.*)?", schema.get("$ref", "#")):
        ignored.add("$ref")
    # Releases before 0.2 do not escape names.
    ignored |= {name for name in names if json.dumps(name, ensure_ascii=False) != f'"{name}"'}
    return ignored


# A NUL in a regular expression or in EBNF (group 1), but for those that xgrammar keeps: in a
# negated class, and at the beginning of a range.
NUL = re.compile(r"\\\\|\[\^(?:\\.|[^\]\\])*\]|\\(?:0|x00|u0000)-|(\\(?:0|x00|u0000)|\0)")


def check_nul(form: str, value: Any) -> None:
    """Raise RequestError for a NUL that xgrammar would lose."""
    if form == "choice":
        is_lost = any("\0" in one for one in value)
    else:
        is_lost = any(found[1] for found in NUL.finditer(value))
    if is_lost:
        problem = f"the {form} has a NUL character, which xgrammar loses"
        raise ge.RequestError(problem, fix="take it out")


ESCAPES = frozenset("dDwWsSnrtfvxuc")  # letters and digits that xgrammar reads behind a backslash
NOT_PLAIN = frozenset('"\\') | frozenset(map(chr, range(32)))  # a JSON string holds them escaped
PIECE = re.compile(
    r"\\x(?P<hex>..)|\\u(?P<code>....)|\\c(?P<control>.)|\\(?P<escaped>.)"
    r"|(?P<group>\(\?(?!:|<\w).?)|(?P<plain>.)",
    re.DOTALL,
)
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


def character_of(piece: re.Match[str]) -> str:
    """The character that a piece of a regular expression stands for; "" of a class or a group."""
    parts = piece.groupdict()
    if parts["hex"] or parts["code"]:
        return chr(int(parts["hex"] or parts["code"], 16))
    if parts["control"]:
        return chr(ord(parts["control"]) % 32)
    if parts["escaped"]:
        escaped = parts["escaped"]
        return CONTROLS.get(escaped, "" if escaped in ESCAPES else escaped)
    return parts["plain"] or ""


def is_misplaced(anchor: str, before: str, after: str, depth: int) -> bool:
    """Whether ^ or $ stands where xgrammar ignores it: inside the expression or a group."""
    is_outer = before == "" or before.endswith("|")
    if anchor == "$":
        is_outer = after == "" or after.startswith("|")
    return depth > 0 or not is_outer


def is_unread(piece: re.Match[str]) -> bool:
    """Whether xgrammar takes it for something else, as \\A for the letter, or ignores it."""
    escaped = piece["escaped"] or ""
    return bool(piece["group"]) or (escaped.isalnum() and escaped not in ESCAPES)


def misread_piece(pattern: str, is_json: bool) -> str | None:
    """The first piece of a regular expression that xgrammar reads otherwise than ECMA does, or that
    would write what a JSON string cannot hold as it is."""
    depth = 0
    in_class = False
    for piece in PIECE.finditer(pattern):
        text = piece[0]
        if is_unread(piece) or (is_json and character_of(piece) in NOT_PLAIN):
            return text
        if in_class:
            in_class = text != "]"
            continue
        in_class = text == "["
        depth += (text == "(") - (text == ")")
        around = (pattern[: piece.start()], pattern[piece.end() :])
        if text in ("^", "$") and is_misplaced(text, *around, depth):
            return text
    return None


@functools.cache
def escapes_patterns() -> bool:
    """Whether xgrammar writes what follows a pattern as a JSON string holds it. Releases before 0.2
    write it as it is: a quote for `.`, a line end for `[^a]`, of `a|b` an a without its second
    quote."""
    schema = '{"type": "string", "pattern": "."}'
    return "json_string" in str(ge.lazy_import("xgrammar").Grammar.from_json_schema(schema))


# A piece (group 1) that a quote, a backslash or a control character may follow; other pieces.
WIDE = re.compile(r"(\\[DSWs]|\[\^|\.)|\\.|\[(?:\\[^DSWs]|[^\]\\])*\]|[()|]", re.DOTALL)


def wide_piece(pattern: str) -> str | None:
    """The first piece of a pattern that would be written as a JSON string does not hold it."""
    depth = 0
    for piece in WIDE.finditer(pattern):
        depth += (piece[0] == "(") - (piece[0] == ")")
        if piece[1] or (piece[0] == "|" and depth == 0):
            return piece[0]
    return None


def check_pattern(pattern: str, *, is_json: bool) -> None:
    """Raise RequestError for a regular expression that xgrammar does not follow."""
    piece = misread_piece(pattern, is_json)
    if piece is None and is_json and not escapes_patterns():
        piece = wide_piece(pattern)
    if piece is not None:
        problem = f"xgrammar cannot follow {piece!r} in the pattern {ge.short_repr(pattern)}"
        raise ge.RequestError(problem, fix="write it without")


def check_choices(schema: Mapping[str, Any]) -> None:
    """Raise RequestError for a choice of nothing."""
    for word in CHOICES:
        if schema.get(word) == []:
            problem = f"nothing satisfies an empty {word!r}"
            raise ge.RequestError(problem, fix="say what may stand there")


def check_schema(schema: Any, depth: int = 1) -> None:
    """Raise RequestError for what xgrammar ignores, at any depth."""
    if depth > DEEPEST:
        problem = f"xgrammar would take minutes for a schema more than {DEEPEST} deep"
        raise ge.RequestError(problem, fix="make it flatter")
    if isinstance(schema, list):
        for item in schema:
            check_schema(item, depth + 1)
    if not isinstance(schema, dict):
        return
    check_choices(schema)
    ignored = ignored_words(schema)
    if ignored:
        problem = f"xgrammar ignores the schema keyword {min(ignored)!r}"
        raise ge.RequestError(problem, fix="take it out of the schema")
    for pattern in (schema.get("pattern", ""), *schema.get("patternProperties", ())):
        check_pattern(pattern, is_json=True)
    for word, value in schema.items():
        if word in NAMED_SCHEMAS:
            check_schema(list(value.values()), depth + 1)
        elif word not in DATA:
            check_schema(value, depth + 1)


# == Grammars: every form as EBNF ==


def fix_hex_escapes(text: str) -> str:
    """EBNF in which \\xNN is \\u00NN: xgrammar writes the one, and reads it as far as there are
    hexadecimal digits ("\\xdfe" of "ße")."""
    return re.sub(r"(\\\\)|\\x(..)", lambda found: found[1] or rf"\u00{found[2]}", text)


RAW_CHARACTER = r"[^\"\\\r\n]"  # of a string with a length, as xgrammar writes it: also a tab
JSON_CHARACTER = r'([^\0-\x1f\"\\] | "\\" [\"\\/bfnrt])'


def json_grammar(schema: str) -> str:
    """The EBNF of a JSON schema."""
    check_schema(json.loads(schema))
    grammar = ge.lazy_import("xgrammar").Grammar
    ebnf = str(grammar.from_json_schema(schema, any_whitespace=False, separators=(",", ":")))
    ebnf = ebnf.replace(RAW_CHARACTER, JSON_CHARACTER)
    # Where anything may stand, xgrammar forgets the separators.
    return re.sub(r'(?<!\\)", "', '","', ebnf)


# Not xgrammar's own, of which each release has another one.
JSON_OBJECT = r"""
root ::= object
object ::= "{" (member ("," member)*)? "}"
member ::= string ":" value
value ::= object | array | string | number | "true" | "false" | "null"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" character* "\""
character ::= [^"\\\u0000-\u001f] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex ::= [0-9A-Fa-f]
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+\-]? [0-9]+)?
"""


def choice_grammar(choices: Sequence[str]) -> str:
    """The EBNF of one of these strings."""
    return "root ::= " + " | ".join(json.dumps(one, ensure_ascii=False) for one in choices)


def ebnf_of(form: str, value: Any) -> str:
    """The EBNF of a form, as xgrammar writes it."""
    grammar = ge.lazy_import("xgrammar").Grammar
    if form == "json":
        return json_grammar(value)
    if form == "json_object":
        return str(grammar.from_ebnf(JSON_OBJECT))
    if form == "regex":
        check_pattern(value, is_json=False)
    check_nul(form, value)
    if form == "regex":
        return str(grammar.from_regex(fix_hex_escapes(value)))
    return str(grammar.from_ebnf(choice_grammar(value) if form == "choice" else value))


def none_of(characters: str) -> str:
    """EBNF of any other character."""
    return "[^" + "".join(f"\\u{ord(one):04x}" for one in characters) + "]"


def text_before(marker: str) -> str:
    """The EBNF of any text up to a marker, whose first character occurs in it once, and of two line
    ends behind it.

    The text is other characters and beginnings of the marker that are not completed: each is
    followed by a character that does not go on in it, or by another beginning."""
    first = marker[0]
    beginnings = [marker[:size] for size in range(1, len(marker))]
    broken = [json.dumps(one) + " " + none_of(first + marker[len(one)]) for one in beginnings]
    rules = {
        "root": f"(other | begun* broken)* begun* {json.dumps(marker)} [\\n]{{0,2}}",
        "other": none_of(first),
        "begun": " | ".join(map(json.dumps, beginnings)) or '""',
        "broken": " | ".join(broken) or "other",
    }
    return "\n".join(f"{name} ::= {rule}" for name, rule in rules.items())


def behind(marker: str, ebnf: str) -> str:
    """The EBNF of any text, a marker, and a structure."""
    grammar = ge.lazy_import("xgrammar").Grammar
    before = grammar.from_ebnf(text_before(marker))
    return str(grammar.concat(before, grammar.from_ebnf(fix_hex_escapes(ebnf))))


# The clock and the place in xgrammar's source that its messages begin with.
LOG_PREFIX = re.compile(r"\[[\d:]+\] \S+:\d+: ")


@functools.lru_cache(64)
def grammar_of(structured: StructuredOptions) -> str:
    """The EBNF of a structure, for both backends: each release of vLLM has its own for JSON and
    choices. Raises RequestError."""
    [(form, value)] = structured.forms().items()
    try:
        with ge.wrapping_errors(ge.RequestError, f"xgrammar refused the {form}", "correct it"):
            ebnf = ebnf_of(form, value)
            if structured.after:
                ebnf = behind(structured.after, ebnf)
    except ge.RequestError as error:  # the same from run to run
        raise ge.RequestError(LOG_PREFIX.sub("", error.problem), fix=error.fix) from error
    if len(ebnf) > LONGEST:
        size = f"{len(ebnf)} characters of EBNF"
        problem = f"xgrammar would take minutes for the {form}, {size}"
        raise ge.RequestError(problem, fix="shorten it")
    return fix_hex_escapes(ebnf)


def grammar_for(request: ge.TextGenerationRequest, plan: ge.Plan) -> str:
    """The EBNF of a request's structure under these options. Raises GenEngineError where they
    contradict it."""
    structured = ge.build(StructuredOptions, request.structured)
    options = plan.options
    thinks = request.chat.enable_thinking and not request.continue_final
    if thinks and structured.after is None:
        fix = "say structured={..., 'after': '</think>'}, or 'after': '' for no thought"
        raise ge.RequestError("the structure leaves no room for the thought", fix=fix)
    if not plan.checkpoint.eos_ids:
        problem = "a structure needs an EOS id, and the checkpoint has none"
        raise ge.UnsupportedError(problem, fix="name the end-of-text id in config.json")
    if options.min_new_tokens or options.stop.ignore_eos:
        problem = "min_new_tokens or ignore_eos with a structure, which says where it ends"
        raise ge.OptionError(problem, fix="drop one")
    if options.logprobs is not None or options.logits:  # forced decoding has logprobs
        problem = "replay, logprobs and logits of a structure are not raw"
        raise ge.OptionError(problem, fix="use score_batch on the answer")
    return grammar_of(structured)


# == Masks: what a row may sample next ==


class Matcher:
    """One row's position in its grammar; after the grammar's end everything is allowed."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def accept(self, token: int) -> bool:
        """Whether the grammar allows this token, which is the row's next."""
        return bool(self.matcher.is_terminated() or self.matcher.accept_token(token))

    def fill(self, mask: Any, place: int) -> None:
        """Write what is allowed next into row `place` of a bit mask."""
        if not self.matcher.is_terminated():
            self.matcher.fill_next_token_bitmask(mask, place)


KEPT = 32 << 20  # bytes of compiled grammars, of which each takes 0.4 MB or more
# Bytes that UTF-8 does not have. xgrammar up to 0.2.3 lets them through where a class is negated.
NO_TEXT = re.compile(rb"[\xc0\xc1\xf5-\xff]")


class Compiler:
    """Compiles structures that end in any of a checkpoint's EOS ids; it keeps the latest few.

    A special token is no text, and is not in the text of an answer, so none may stand in a
    structure; it may before one, where the marker may be special. A token of bytes that no text has
    may stand nowhere."""

    def __init__(self, checkpoint: ge.Checkpoint) -> None:
        xgrammar = ge.lazy_import("xgrammar")
        ends = {"vocab_size": checkpoint.vocabulary, "stop_token_ids": list(checkpoint.eos_ids)}
        whole = xgrammar.TokenizerInfo.from_huggingface(checkpoint.tokenizer, **ends)
        words = [b"" if NO_TEXT.search(word) else word for word in whole.decoded_vocab]

        def compiler_of(words: list[bytes]) -> Any:
            space = {"add_prefix_space": whole.add_prefix_space}
            known = xgrammar.TokenizerInfo(words, xgrammar.VocabType.RAW, **ends, **space)
            return xgrammar.GrammarCompiler(known, cache_limit_bytes=KEPT)

        self.behind = compiler_of(words)
        for token, added in getattr(checkpoint.tokenizer, "added_tokens_decoder", {}).items():
            if added.special and token < len(words):
                words[token] = b""
        self.text = compiler_of(words)

    def compile_grammar(self, ebnf: str) -> Any:
        is_behind = "begun ::=" in ebnf  # a rule of text_before
        return (self.behind if is_behind else self.text).compile_grammar(ebnf)


class Grammars:
    """Matchers of structures, for a checkpoint's tokens."""

    def __init__(self, checkpoint: ge.Checkpoint) -> None:
        self.compiler: Any = Compiler(checkpoint)

    def matcher(self, ebnf: str) -> Matcher:
        compiled = self.compiler.compile_grammar(ebnf)
        return Matcher(ge.lazy_import("xgrammar").GrammarMatcher(compiled))


def mask_logits(matchers: Sequence[Matcher | None], logits: Any) -> None:
    """Set what a row's grammar does not allow next to -inf, in place. logits: [rows, vocabulary];
    a row without a matcher stays as it is."""
    xgrammar = ge.lazy_import("xgrammar")
    mask = xgrammar.allocate_token_bitmask(len(matchers), logits.shape[-1])
    mask.fill_(-1)
    for place, matcher in enumerate(matchers):
        if matcher is not None:
            matcher.fill(mask, place)
    xgrammar.apply_token_bitmask_inplace(logits, mask.to(logits.device))


def set_compiler(engine: Any, checkpoint: ge.Checkpoint) -> None:
    """Give a vLLM engine in this process our compiler: before 0.32 its own knows one end id
    only."""
    manager = engine.engine_core.engine_core.structured_output_manager
    if manager.backend is None:
        module = ge.lazy_import("vllm.v1.structured_output.backend_xgrammar")
        config = engine.vllm_config
        size = config.model_config.get_vocab_size()
        manager.backend = module.XgrammarBackend(config, manager.tokenizer, size)
        manager.backend.compiler = Grammars(checkpoint).compiler
