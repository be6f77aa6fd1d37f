"""A digest of the source that a recorded function runs, so that `check` knows whether it is still
the same code.

    source_digest("acme.answers:answer")

It covers the top-level statement that holds the function and, transitively, the statements whose
names that one uses: helpers, constants, classes, imports, also in other files of the user, but not
in installed libraries or in Python's own. Files are read; nothing is imported. Comments, blank
lines and the width of indents do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import io
import os
import sys
import token
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parity.record.patching import LIBRARIES, STANDARD_LIBRARY

DIGITS = 16  # hexadecimal digits of a sha256: against a slip of a hand, not against an attack
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}
# Since Python 3.12 an f-string is several tokens.
FORMATTED_BEGINS = {getattr(token, name, None) for name in ("FSTRING_START", "TSTRING_START")}
FORMATTED_ENDS = {getattr(token, name, None) for name in ("FSTRING_END", "TSTRING_END")}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def source_digest(function: str) -> str:
    """Of "pkg.mod:func", "pkg.mod:Class.method" or "path/script.py:func"; "" where its source
    cannot be read, or holds no such name."""
    module, _, attribute = function.rpartition(":")
    is_script = module.endswith(".py")
    folders = [str(Path(module).parent), *sys.path] if is_script else sys.path
    reader = SourceReader(folders)
    path = Path(module) if is_script else reader.find(module)
    if path is None:
        return ""
    name = attribute.partition(".")[0]
    try:
        reader.reach(path, "" if is_script else module, {name})
        is_there = any(name in statement.binds for statement in reader.file(path).statements)
    except (OSError, SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return ""
    if not is_there:
        return ""
    text = "\n\n".join(sorted(reader.reached))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def source_file(module: str) -> Path | None:
    """The file of "pkg.mod" or "path/script.py", as it is imported here; None for one of a library,
    or that is nowhere."""
    if module.endswith(".py"):
        return Path(module) if Path(module).is_file() else None
    return SourceReader(sys.path).find(module)


@dataclass(frozen=True, slots=True)
class Import:
    """`from module import name`, or with the name "" `import module`.   level: leading dots."""

    module: str
    name: str = ""
    level: int = 0


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at the top of a file.   binds, uses: names.   text: its lines."""

    binds: frozenset[str]
    uses: frozenset[str]
    imports: tuple[Import, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """attributes: names behind a dot anywhere in it, such as functions of an imported module."""

    statements: tuple[Statement, ...]
    attributes: frozenset[str]


@dataclass
class SourceReader:
    """Reads the files that a function's source leads to.   folders: where modules are looked for.
    reached: the code of the statements that it uses."""

    folders: Iterable[str]
    reached: set[str] = field(default_factory=set)
    files: dict[Path, SourceFile] = field(default_factory=dict)
    asked: set[tuple[Path, str]] = field(default_factory=set)
    found: dict[str, Path | None] = field(default_factory=dict)

    def find(self, module: str) -> Path | None:
        """The file of a module of the user; None for one of a library, or that is nowhere."""
        if module not in self.found:
            self.found[module] = self._find(module)
        return self.found[module]

    def _find(self, module: str) -> Path | None:
        name = module.replace(".", os.sep)
        for folder in self.folders:
            for path in (Path(folder, name, "__init__.py"), Path(folder, f"{name}.py")):
                if path.is_file():
                    return path if is_of_user(path.resolve()) else None
        return None

    def file(self, path: Path) -> SourceFile:
        if path not in self.files:
            self.files[path] = parse_file(path.read_bytes(), str(path))
        return self.files[path]

    def reach(self, path: Path, module: str, names: Iterable[str]) -> None:
        """Add the statements of a file that bind these names, and all that they use.   module: its
        name, "" of a script."""
        left = set(names)
        file = self.file(path)
        while left:
            name = left.pop()
            if (path, name) in self.asked:
                continue
            self.asked.add((path, name))
            for statement in file.statements:
                if name in statement.binds or "*" in statement.binds:
                    self.reached.add(code_of(statement.text))
                    left |= statement.uses
                    self.follow(statement.imports, path, module, name)

    def follow(self, imports: Iterable[Import], path: Path, module: str, name: str) -> None:
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for one in imports:
            base = one.module
            if one.level:
                if not package:
                    continue
                base = importlib.util.resolve_name("." * one.level + one.module, package)
            if one.name:
                wanted = name if one.name == "*" else one.name
                self.reach_module(base, {wanted})
                base = f"{base}.{wanted}"  # which may be a module itself
            self.reach_module(base, self.file(path).attributes)

    def reach_module(self, module: str, names: Iterable[str]) -> None:
        path = self.find(module)
        if path is not None:
            self.reach(path, module, names)


def is_of_user(path: Path) -> bool:
    text = str(path)
    is_library = any(part in text for part in LIBRARIES)
    return not is_library and not text.startswith(STANDARD_LIBRARY + os.sep)


# == One file ==


@functools.lru_cache(maxsize=512)
def parse_file(source: bytes, name: str) -> SourceFile:
    text = importlib.util.decode_source(source)
    tree = ast.parse(text, name)
    lines = text.split("\n")
    statements = []
    attributes = set[str]()
    for node in tree.body:
        attributes |= {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        if not is_main_block(node):
            statements.append(read_statement(node, lines))
    return SourceFile(tuple(statements), frozenset(attributes))


def is_main_block(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":`, which calls what others define."""
    if not isinstance(node, ast.If):
        return False
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))


def read_statement(node: ast.stmt, lines: Sequence[str]) -> Statement:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    text = "\n".join(lines[first - 1 : node.end_lineno])
    uses = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return Statement(frozenset(names_bound(node)), frozenset(uses), tuple(imports_in(node)), text)


def names_bound(node: ast.stmt) -> Iterator[str]:
    """Names of a file that a statement defines, or changes: `LIMITS["a"] = 1`, `LIMITS.clear()`."""
    if isinstance(node, DEFINITIONS):
        yield node.name
        return
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                yield root_name(inner)
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
                yield root_name(method)
            case ast.Import(names=names):
                yield from (a.asname or a.name.partition(".")[0] for a in names)
            case ast.ImportFrom(names=names):
                yield from (a.asname or a.name for a in names)


def root_name(node: ast.expr) -> str:
    """The name that an attribute or an item belongs to; "" where that is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def imports_in(node: ast.stmt) -> Iterator[Import]:
    for inner in ast.walk(node):
        match inner:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name)
            case ast.ImportFrom(module=module, names=names, level=level):
                for alias in names:
                    yield Import(module or "", alias.name, level)


@functools.lru_cache(maxsize=4096)
def code_of(text: str) -> str:
    """The tokens of a statement that are code, a line each with its depth in front."""
    words = list[str]()
    depth = 0
    is_first = True
    for found in whole_tokens(text):
        if found.type in NO_CODE:
            continue
        if found.type == tokenize.INDENT:
            depth += 1
        elif found.type == tokenize.DEDENT:
            depth -= 1
        elif found.type == tokenize.NEWLINE:
            is_first = True
        else:
            words.append(f"\n{depth} {found.string}" if is_first else found.string)
            is_first = False
    return " ".join(words)


def whole_tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Tokens, in which an f-string is one, as before Python 3.12."""
    lines = io.StringIO(text).readlines()
    begun = list[tokenize.TokenInfo]()
    for found in tokenize.generate_tokens(io.StringIO(text).readline):
        if found.type in FORMATTED_BEGINS:
            begun.append(found)
        elif found.type not in FORMATTED_ENDS:
            if not begun:
                yield found
        elif len(begun) > 1:
            begun.pop()
        else:
            start = begun.pop().start
            string = text_between(lines, start, found.end)
            yield found._replace(type=tokenize.STRING, string=string, start=start)


Position = tuple[int, int]  # line from 1, column from 0


def text_between(lines: Sequence[str], start: Position, end: Position) -> str:
    first, begin = start
    last, stop = end
    if first == last:
        return lines[first - 1][begin:stop]
    middle = lines[first : last - 1]
    return "".join([lines[first - 1][begin:], *middle, lines[last - 1][:stop]])
