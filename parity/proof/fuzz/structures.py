"""Whether an answer is what its structure allows. A structure that an engine does not refuse is one
that it follows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema
from jsonschema.exceptions import SchemaError, UnknownType
from referencing.exceptions import Unresolvable


def follows_schema(schema: Any, text: str) -> bool:
    value = json.loads(text)
    if isinstance(schema, str):
        schema = json.loads(schema)
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))
    except (SchemaError, UnknownType, Unresolvable, re.error):  # no one can say
        return True


def follows_regex(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text, re.DOTALL | re.ASCII) is not None
    except re.error:  # a word that Python's regular expressions do not have
        return True


RULES: dict[str, Callable[[Any, str], bool]] = {
    "json": follows_schema,
    "json_object": lambda _, text: isinstance(json.loads(text), dict),
    "regex": follows_regex,
    "choice": lambda choices, text: text in choices,
}


def words_of(structured: Any) -> list[str]:
    """The names in a structure, by which failures are told apart."""
    words = set()
    todo = [structured]
    while todo:
        value = todo.pop()
        if isinstance(value, Mapping):
            words |= set(map(str, value))
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return sorted(words)


def follows(structured: Mapping[str, Any], text: str) -> bool:
    """Whether a whole answer is one that the structure allows; a grammar's is not looked at."""
    for name, given in structured.items():
        if name in RULES and given is not None:
            try:
                return RULES[name](given, text)
            except ValueError:  # the text is no JSON
                return False
    return True
