"""A value as a fact: what it is, and where it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parity.scan.values import (
    Absent,
    Argument,
    Call,
    Changed,
    Choice,
    ClassValue,
    Dict,
    Element,
    Fallback,
    Function,
    Instance,
    Item,
    Items,
    Literal,
    Member,
    Option,
    Symbol,
    Unknown,
    Value,
    literal_of,
    options_of,
    plain,
)

CONFIG_NAMES = re.compile(
    r"(config|cfg|conf|args|opt|options|kwargs|params|settings|hparams|generation|sampling|env"
    r"|environ|request|payload"
    r"|defaults|arguments|flags|body|data|doc|spec)s?\d*$",
    re.IGNORECASE,
)
GROWS = {"append", "extend", "insert", "remove", "pop", "clear"}  # methods of lists
SYMBOLS = re.compile(r"^(torch|np|numpy|jnp|jax\.numpy)\.(\w+)$")


@dataclass(frozen=True)
class Fact:
    """What a block does about one thing.

    value: the constant; of an argument or a configuration its default, else None.
    source: "literal", "arg NAME", "computed", "config", "not said: <who decides>" or "inside the
    checkpoint's code".
    text: for people. line: where it is set, 0 where that is not one line.
    """

    value: Any
    source: str
    text: str = ""
    line: int = 0

    @property
    def is_said(self) -> bool:
        return (
            not self.source.startswith("not said") and self.source != "inside the checkpoint's code"
        )

    @property
    def is_literal(self) -> bool:
        return self.source == "literal"

    def __str__(self) -> str:
        if self.is_literal:
            return shown(self.value)
        if self.source.startswith("arg ") or self.source == "config":
            name = self.source if self.source.startswith("arg ") else self.text or "config"
            return name if self.value is None else f"{name}={shown(self.value)}"
        if self.source == "computed":
            return self.text or "computed"
        return "–" if self.source.startswith("not said") else "remote code"


def elided(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shown(value: Any) -> str:
    if isinstance(value, str):
        text = value if re.fullmatch(r"[\w.:/+-]{1,40}", value) else repr(value)
    elif isinstance(value, list):
        text = (
            "["
            + ", ".join(repr(item) if isinstance(item, str) else shown(item) for item in value)
            + "]"
        )
    else:
        text = str(value)
    return elided(text, 40)


def literal(value: Any, text: str = "") -> Fact:
    return Fact(value, "literal", text)


def not_said(decides: str) -> Fact:
    return Fact(None, f"not said: {decides}")


REMOTE = Fact(None, "inside the checkpoint's code")


def plain_constant(value: Any) -> Any:
    """A constant that JSON can hold."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_constant(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_constant(item) for key, item in value.items()}
    return repr(value)


def fact_of(value: Value | None, unsaid: Fact) -> Fact:
    """The fact of a value.   unsaid: what holds where it is not there."""
    if value is None or isinstance(value, Absent):
        return unsaid
    if isinstance(value, Changed) and any(e.method in GROWS for e in value.effects):
        inner = plain(value)
        if isinstance(inner, (Items, Literal)):
            return Fact(None, "computed", elided(f"{text_of(inner)}, and more"))
    value = symbolic(plain(value))
    is_known, constant = literal_of(value)
    if is_known:
        return literal(plain_constant(constant))
    read = READERS.get(type(value))
    if read is not None:
        return read(value, unsaid)
    return Fact(None, "computed", elided(text_of(value)))


def fact_of_rest(mapping: Value) -> Fact:
    """What stands for a setting that may be in a mapping of which the keys are not known."""
    inner = plain(mapping)
    fact = fact_of(inner, not_said("nobody"))
    source = fact.source if fact.source.startswith(("arg ", "config")) else "computed"
    return Fact(None, source, f"**{fact.text.removeprefix('config ')}")


def symbolic(value: Value) -> Value:
    """torch.bfloat16 as the constant "bfloat16"."""
    if isinstance(value, Symbol):
        found = SYMBOLS.match(value.name)
        if found:
            return Literal(found[2])
    if isinstance(value, Call) and isinstance(plain(value.callee), Symbol) and value.node.args:
        name = plain(value.callee).name  # type: ignore[attr-defined]
        if name in ("torch.device", "torch.dtype") and hasattr(value.node.args[0], "value"):
            return Literal(getattr(value.node.args[0], "value", None))
    if isinstance(value, Items):
        return Items(tuple(symbolic(plain(item)) for item in value.items))
    return value


def default_of(value: Value | None) -> Any:
    """The constant of a default; None where there is none, or it is not known."""
    if value is None:
        return None
    value = symbolic(plain(value))
    if isinstance(value, (Option, Argument)):
        return default_of(value.default)
    if isinstance(value, Fallback):
        inner = default_of(value.value)
        return default_of(value.default) if inner is None else inner
    is_known, constant = literal_of(value)
    return plain_constant(constant) if is_known else None


def of_argument(value: Argument, unsaid: Fact) -> Fact:
    return Fact(default_of(value.default), f"arg {value.name}", value.name)


def of_option(value: Option, unsaid: Fact) -> Fact:
    if value.is_argument:
        return Fact(default_of(value.default), f"arg {value.name}", value.name)
    return Fact(default_of(value.default), "config", f"config {value.name}")


def of_fallback(value: Fallback, unsaid: Fact) -> Fact:
    if isinstance(value.value, Absent):
        return fact_of(value.default, unsaid)
    first = fact_of(value.value, unsaid)
    if first.source == "literal" and first.value is None:
        return fact_of(value.default, unsaid)
    if first.source.startswith("arg ") or first.source == "config":
        constant = first.value if first.value is not None else default_of(value.default)
        return Fact(constant, first.source, first.text)
    return Fact(None, "computed", elided(text_of(value)))


def of_choice(value: Choice, unsaid: Fact) -> Fact:
    facts = [fact_of(option, unsaid) for option in options_of(value)]
    if all(fact == facts[0] for fact in facts):
        return facts[0]
    texts = list(dict.fromkeys(str(fact) for fact in facts))
    return Fact(None, "computed", elided(" or ".join(texts[:3])))


def of_path(value: Member | Item | Element, unsaid: Fact) -> Fact:
    """An attribute or an item: of something that holds settings, or computed."""
    if isinstance(value, Member) and value.default is not None:
        inner = fact_of(value.default, unsaid)
        if inner.source.startswith("arg ") or inner.source in ("config", "literal"):
            return (
                Fact(inner.value, "config", elided(text_of(value)))
                if inner.source == "literal"
                else inner
            )
    root: Value = value
    while isinstance(root, (Member, Item, Element, Changed)):
        root = root.base
    if isinstance(root, (Argument, Option)):
        if (
            isinstance(root, Argument)
            and root.is_rest
            and isinstance(value, Item)
            and value.base is root
        ):
            return Fact(None, f"arg {value.key}", str(value.key))
        if isinstance(root, Option) or CONFIG_NAMES.search(root.name) or has_config_path(value):
            return Fact(None, "config", elided(text_of(value)))
    if has_config_path(value):
        return Fact(None, "config", elided(text_of(value)))
    return Fact(None, "computed", elided(text_of(value)))


def has_config_path(value: Value) -> bool:
    while isinstance(value, (Member, Item, Element)):
        if isinstance(value, Member) and CONFIG_NAMES.search(value.name):
            return True
        value = value.base
    return isinstance(value, Symbol) and bool(
        re.search(r"environ|getenv|FLAGS|config|settings", value.name)
    )


READERS: dict[type[Value], Callable[[Any, Fact], Fact]] = {
    Argument: of_argument,
    Option: of_option,
    Fallback: of_fallback,
    Choice: of_choice,
    Member: of_path,
    Item: of_path,
    Element: of_path,
}


def text_of(value: Value) -> str:
    """An expression as a person would write it, short."""
    value = plain(value)
    write = WRITERS.get(type(value))
    return write(value) if write is not None else "…"


def text_of_item(value: Item) -> str:
    key = "…" if value.key is None else repr(value.key)
    return f"{text_of(value.base)}[{key}]"


def text_of_call(value: Call) -> str:
    name = text_of(value.callee)
    return "…" if "from_" in name else f"{name.rpartition('.')[2]}(…)"


def text_of_instance(value: Instance) -> str:
    return "self" if value.node is None else f"{value.cls.name}(…)"


def text_of_fallback(value: Fallback) -> str:
    return f"{text_of(value.value)}, else {text_of(value.default)}"


WRITERS: dict[type[Value], Callable[[Any], str]] = {
    Member: lambda value: f"{text_of(value.base)}.{value.name}",
    Item: text_of_item,
    Call: text_of_call,
    Instance: text_of_instance,
    Unknown: lambda value: str(value.text),
    Argument: lambda value: str(value.name),
    Option: lambda value: str(value.name),
    Symbol: lambda value: str(value.name),
    Function: lambda value: str(value.scope.name),
    ClassValue: lambda value: str(value.cls.name),
    Fallback: text_of_fallback,
    Choice: lambda value: " or ".join(text_of(option) for option in value.options[:3]),
    Literal: lambda value: shown(value.value),
    Dict: lambda value: "{…}",
    Items: lambda value: f"[{', '.join(map(text_of, value.items))}]",
}
