"""`python -m parity.proof.fuzz.schemas`: answers under generated JSON schemas, validated by jsonschema.

A schema is refused, or every answer that ends by itself is valid. `make fuzz` runs it on both
backends; `--suite DIR` also asks the schemas of a checkout of the public JSON Schema Test Suite.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.exceptions import SchemaError, UnknownType
from referencing.exceptions import Unresolvable

from gen_engine import GenEngineError, GenerationEngine, GenerationResult, load

Schema = dict[str, Any] | bool

BACKENDS = ("hf", "vllm")
MODEL = "golden/models/tiny-qwen3"
LOADED: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 512, "max_num_seqs": 128}},
}
PROMPT = "Write some JSON: "
MOST_TOKENS = 96
AT_ONCE = 32  # schemas in one call
DEEPEST = 3
RARE = 0.04  # how often a schema gets a keyword that few engines follow

# == Schemas ==

NAMES = ("a", "b", "c", "name", "city", "é", "a b", "x-y", "0", "")
ODD_NAMES = ('"', "\\", "\n", "\u2028", "</think>", "😀")
STRINGS = (*NAMES, *ODD_NAMES, "true", "null", "1", "[]", "ß fe", "\x7f", "日本")
NUMBERS = (0, 1, -1, 7, 10, 99, 1000, -100, 0.5, -2.5, 1e3, 3.25, 123456789)
PATTERNS = (
    "^[a-z]{2,4}$",
    "[0-9]+",
    "^a|b$",
    "(ab)*c",
    "^\\d{3}-\\d{2}$",
    "^[^a-c]{1,3}$",
    "^(yes|no)$",
    "^.{0,5}$",
    "^\\w+@\\w+$",
    "^[A-Z][a-z]*( [A-Z][a-z]*)?$",
    "x",
    "^$",
    "a{0,3}b?",
    "^é+$",
    "^[\\s]?z",
    '^"a"$',
    "^\\\\$",
    "^\\.$",
    "^[\\-+]?1$",
    "(?=a)a",
    "a(?!b)",
    "(a)\\1",
    "\\bfoo\\b",
)
FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "odd")
RARE_WORDS: dict[str, Any] = {
    "multipleOf": 3,
    "uniqueItems": True,
    "contains": {"type": "integer"},
    "not": {"type": "string"},
    "if": {"type": "string"},
    "then": {"maxLength": 2},
    "dependentRequired": {"a": ["b"]},
    "propertyNames": {"maxLength": 2},
    "minProperties": 1,
    "maxProperties": 2,
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "$ref": "other.json",
    "$dynamicRef": "#a",
    "patternProperties": {"^x": {"type": "integer"}},
    "minLength": 2,
    "maximum": 5,
    "required": ["z"],
    "dependencies": {"a": ["b"]},
    "additionalItems": False,
    "nullable": True,
}


class SchemaMaker:
    """Makes JSON schemas, the same ones from the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kinds: tuple[Callable[[int], Schema], ...] = (
            self.string,
            self.number,
            self.values,
            self.simple,
            self.array,
            self.object,
            self.object,
            self.branches,
        )

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def whole(self) -> dict[str, Any]:
        """A schema, some of its parts by reference."""
        schema = self.part(0)
        if not isinstance(schema, dict):
            return {"allOf": [schema]}
        if self.chance(0.15):
            name = self.random.choice(("d", "node", "a/b", "a~b", "a b"))
            path = name.replace("~", "~0").replace("/", "~1").replace(" ", "%20")
            reference = {"$ref": self.random.choice((f"#/$defs/{path}", "#"))}
            inner = {"type": "object", "properties": {"next": reference, "is": schema}}
            return {**inner, "$defs": {name: self.part(1)}}
        return schema

    def part(self, depth: int) -> Schema:
        if depth >= DEEPEST:
            return self.random.choice((self.string, self.number, self.values, self.simple))(depth)
        schema = self.random.choice(self.kinds)(depth)
        if isinstance(schema, dict):
            if self.chance(RARE):
                word = self.random.choice(list(RARE_WORDS))
                schema = {**schema, word: RARE_WORDS[word]}
            if self.chance(0.1):
                schema = {**schema, "title": "A part", "description": 'said "so"', "default": {"type": 1}}
        return schema

    def bounds(self, least: str, most: str, largest: int) -> dict[str, Any]:
        """Two limits, one of them, or none."""
        low = self.random.randint(0, largest)
        high = self.random.randint(low, largest)
        limits = {least: low, most: high}
        return {name: limits[name] for name in limits if self.chance(0.6)}

    def string(self, depth: int) -> Schema:
        how = self.random.random()
        if how < 0.35:
            return {"type": "string", **self.bounds("minLength", "maxLength", 6)}
        if how < 0.65:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        if how < 0.8:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        return {"type": "string"}

    def number(self, depth: int) -> Schema:
        schema: dict[str, Any] = {"type": self.random.choice(("integer", "number"))}
        low = self.random.choice(NUMBERS)
        if self.chance(0.5):
            schema[self.random.choice(("minimum", "exclusiveMinimum"))] = low
        if self.chance(0.5):
            schema[self.random.choice(("maximum", "exclusiveMaximum"))] = low + self.random.choice((1, 2, 50, 1e4))
        return schema

    def value(self) -> Any:
        make = (
            lambda: self.random.choice(STRINGS),
            lambda: self.random.choice(NUMBERS),
            lambda: self.random.choice((True, False, None, [], {}, [1, "a"], {"a": [None], "b": "é"})),
        )
        return self.random.choice(make)()

    def values(self, depth: int) -> Schema:
        if self.chance(0.5):
            return {"const": self.value()}
        return {"enum": [self.value() for _ in range(self.random.randint(1, 4))]}

    def simple(self, depth: int) -> Schema:
        names = ("string", "number", "integer", "boolean", "null", "array", "object")
        if self.chance(0.3):
            return {"type": self.random.sample(names, self.random.randint(1, 3))}
        if self.chance(0.1):
            return self.random.choice(({}, True, False))
        return {"type": self.random.choice(names)}

    def array(self, depth: int) -> Schema:
        schema: dict[str, Any] = {"type": "array", **self.bounds("minItems", "maxItems", 3)}
        if self.chance(0.3):
            schema["prefixItems"] = [self.part(depth + 1) for _ in range(self.random.randint(1, 3))]
        if self.chance(0.8):
            schema["items"] = self.part(depth + 1)
        return schema

    def object(self, depth: int) -> Schema:
        names = list(NAMES)
        if self.chance(0.1):
            names += ODD_NAMES
        chosen = self.random.sample(names, self.random.randint(0, 4))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self.part(depth + 1) for name in chosen}}
        if self.chance(0.7):
            schema["required"] = [name for name in chosen if self.chance(0.7)]
        if self.chance(0.7):
            schema["additionalProperties"] = False
        elif self.chance(0.4):
            schema["additionalProperties"] = self.part(depth + 1)
        return schema

    def branches(self, depth: int) -> Schema:
        word = self.random.choice(("anyOf", "anyOf", "oneOf", "allOf"))
        most = 1 if word == "allOf" and self.chance(0.7) else 3
        return {word: [self.part(depth + 1) for _ in range(self.random.randint(1, most))]}


def generated(seed: int, count: int) -> list[Any]:
    maker = SchemaMaker(seed)
    return [maker.whole() for _ in range(count)]


def suite_schemas(folder: Path) -> list[Any]:
    """The schemas of a checkout of the JSON Schema Test Suite, draft 2020-12."""
    schemas = []
    for file in sorted((folder / "tests" / "draft2020-12").rglob("*.json")):
        schemas += [group["schema"] for group in json.loads(file.read_text(encoding="utf-8"))]
    return schemas


# == Answers ==


@dataclass
class Tally:
    """What came of schemas.

    counts: refused, answered and unanswerable schemas, and ended, cut and invalid answers.
    invalid: (schema, answer) of each invalid answer."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    invalid: list[tuple[Any, str]] = field(default_factory=list)

    def add(self, schema: Any, result: GenerationResult | GenEngineError) -> None:
        if isinstance(result, GenEngineError):
            self.counts["refused"] += 1
            self.reasons[result.problem.partition("'")[0][:60]] += 1
            return
        self.counts["answered"] += 1
        for sample in result.samples or (result,):
            if sample.finish_reason != "eos":
                self.counts["cut"] += 1
            elif is_valid(schema, sample.text):
                self.counts["ended"] += 1
            else:
                self.counts["ended"] += 1
                self.counts["invalid"] += 1
                self.invalid.append((schema, sample.text))


def is_valid(schema: Any, text: str) -> bool:
    """Whether an answer is JSON that a schema allows; nobody can say for a broken schema. A format
    is an annotation, as it is by default in jsonschema and in the specification."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))
    except (SchemaError, UnknownType, Unresolvable):
        return True


def requests_of(schemas: Sequence[Any], first: int) -> Iterator[dict[str, Any]]:
    for number, schema in enumerate(schemas, start=first):
        yield {"prompt": PROMPT, "seed": number, "structured": {"json": json.dumps(schema)}}


def ask(engine: GenerationEngine, schemas: Sequence[Any], samples: int) -> Tally:
    """Ask for answers under schemas, and validate them."""
    tally = Tally()
    options = {"max_new_tokens": MOST_TOKENS, "temperature": 1.0, "n": samples}
    began = told = time.monotonic()
    for first in range(0, len(schemas), AT_ONCE):
        batch = schemas[first : first + AT_ONCE]
        requests = list(requests_of(batch, first * samples))
        results: list[Any] = engine.generate_text_batch(requests, options, on_error="return")
        for schema, result in zip(batch, results, strict=True):
            tally.add(schema, result)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(
                f"{first + len(batch):,} of {len(schemas):,} schemas, {told - began:.0f} s: {dict(tally.counts)}",
                flush=True,
            )
    return tally


def report(backend: str, schemas: int, tally: Tally) -> None:
    for schema, text in tally.invalid:
        print(f"invalid: {json.dumps(schema)}\n  answered by {text!r}")
    for reason, count in tally.reasons.most_common(12):
        print(f"  refused {count:>5,}: {reason}")
    names = ("refused", "answered", "ended", "cut", "invalid")
    figures = ", ".join(f"{tally.counts[name]:,} {name}" for name in names)
    print(f"{backend}: {schemas:,} schemas: {figures}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    about: dict[str, Any] = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="python -m parity.proof.fuzz.schemas", **about)
    add = parser.add_argument
    add("--count", type=int, default=2_000, metavar="N", help="schemas (default 2000)")
    add("--samples", type=int, default=4, metavar="N", help="answers of each (default 4)")
    add("--backend", choices=BACKENDS, help="default: both")
    add("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="default: the date")
    add("--suite", type=Path, metavar="DIR", help="a checkout of JSON-Schema-Test-Suite, asked first")
    args = parser.parse_args(argv)
    schemas = suite_schemas(args.suite) if args.suite else []
    schemas += generated(args.seed, args.count)
    has_invalid = False
    for backend in [args.backend] if args.backend else BACKENDS:
        with load({"model": MODEL, "backend": backend, "progress": False, **LOADED[backend]}) as engine:
            tally = ask(engine, schemas, args.samples)
        report(backend, len(schemas), tally)
        has_invalid = has_invalid or bool(tally.invalid)
    return int(has_invalid)


if __name__ == "__main__":
    sys.exit(main())
