"""The files of a scan: which are read, and their source. Notebooks become one module of their code
cells."""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parity.goldens.folder import read_regular

SKIPPED = {  # folders that hold other people's code, or copies of one's own
    ".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", "env", "virtualenv", "node_modules",
    "site-packages", "dist-packages", "build", "dist", "__pycache__", ".ipynb_checkpoints",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".eggs",
}  # fmt: skip
SINK_WORDS = (  # a file without any of them calls no model
    ".generate", "generate_stream", "stream_generate", "generate_batch", "chat", "ipeline",
    "pipe(", "logits",
    "beam_search", "_search(", ".loss", "['loss']", '["loss"]', "invoke(",
    "log_softmax", "logprob", "log_prob",
)  # fmt: skip
LOADERS = (
    "from_pretrained",
    "LLM(",
    "load_model",
    "load_pretrained_model",
)  # and none of these loads one
ENGINE = "the gen_engine authors"  # at the head of what call sites are moved onto
MOST_BYTES = 256 << 20  # of a file; a notebook may hold images
MAGIC = re.compile(r"^\s*(?:[!%?]|\w+\s*\?)")  # of IPython: no Python


@dataclass
class Source:
    """A Python file or a notebook.   path: as shown.   lines, cells: of a notebook, the line in
    its file
    and the cell for each line of the code.   problem: why it was not read. The tree is there after
    `parse`."""

    path: str
    text: str = ""
    tree: ast.Module | None = None
    lines: Sequence[int] = ()
    cells: Sequence[int] = ()
    problem: str = ""
    has_sink_words: bool = False
    has_loaders: bool = False
    data: bytes = b""

    @property
    def has_words(self) -> bool:
        """Whether it may call or load a model."""
        return self.has_sink_words or self.has_loaders

    @property
    def is_notebook(self) -> bool:
        return self.path.endswith(".ipynb")

    def line(self, line: int) -> int:
        """The line in the file of a line of the code."""
        return self.lines[line - 1] if self.lines else line

    def cell(self, line: int) -> int:
        """The code cell, counted from 1; 0 in a file that is no notebook."""
        return self.cells[line - 1] if self.cells else 0


@dataclass
class Found:
    """Files of all given paths.   skipped: folders that were not entered, and vendored copies of
    the engine and its companions."""

    sources: list[Source] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def line_count(self) -> int:
        return sum(source.text.count("\n") for source in self.sources)


def is_skipped(folder: str, name: str) -> bool:
    if name in SKIPPED or name.endswith(".egg-info"):
        return True
    return os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def walk(root: str, skipped: list[str]) -> Iterator[str]:
    """The Python files and notebooks below a folder, sorted."""
    for folder, folders, names in os.walk(root):
        entered = []
        for name in sorted(folders):
            if is_skipped(folder, name):
                skipped.append(os.path.normpath(os.path.join(folder, name)))
            else:
                entered.append(name)
        folders[:] = entered
        for name in sorted(names):
            if name.endswith((".py", ".ipynb")):
                yield os.path.normpath(os.path.join(folder, name))


def find_files(paths: Sequence[str]) -> Found:
    """Read the files of paths, each once. Raises ValueError for a path that is not there."""
    found = Found()
    names = dict[str, None]()
    own = set(map(os.path.normpath, paths))
    for path in paths:
        if not os.path.exists(path):
            raise ValueError(f"there is no file or folder {path}; check its path")
        if os.path.isdir(path):
            names.update(dict.fromkeys(walk(path, found.skipped)))
        else:
            names[os.path.normpath(path)] = None
    for source in map(read, names):
        if ENGINE in source.text[:400] and source.path not in own:
            found.skipped.append(source.path)
        else:
            found.sources.append(source)
    return found


def read(path: str) -> Source:
    """A file as text. What is wrong with it stands in `problem`."""
    try:
        return source_of(path, read_regular(Path(path), MOST_BYTES, follow=True))
    except OSError as error:
        return Source(path, problem=error.strerror or str(error))


def source_of(path: str, data: bytes) -> Source:
    """A file by its content."""
    source = Source(path, data=data)
    try:
        if source.is_notebook:
            source.text, source.lines, source.cells = notebook_code(data.decode("utf-8"))
        else:
            source.text = data.decode("utf-8-sig", errors="replace")
    except ValueError as error:
        source.problem = str(error)
    source.has_sink_words = any(word in source.text for word in SINK_WORDS)
    source.has_loaders = any(word in source.text for word in LOADERS)
    return source


def parse(source: Source) -> None:
    """Give a source its tree, or say what is wrong with it."""
    if source.tree is not None or source.problem:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # invalid escapes of the user's code are not ours to report
            source.tree = ast.parse(source.text if source.is_notebook else source.data, source.path)
    except SyntaxError as error:
        line = source.line(error.lineno) if error.lineno else 0
        source.problem = f"line {line}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        source.problem = str(error) or type(error).__name__


# == Notebooks ==


def notebook_code(text: str) -> tuple[str, list[int], list[int]]:
    """The code of a notebook's cells as one module; for each of its lines the line in the
    notebook's file
    and the number of its cell. Raises ValueError for what is no notebook."""
    try:
        book = json.loads(text)
    except RecursionError:
        raise ValueError("this is no notebook: its JSON is nested too deep") from None
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError("this is no notebook: it has no cells")
    raw = text.split("\n")
    code = list[str]()
    lines = list[int]()
    numbers = list[int]()
    at = 0
    for number, cell in enumerate(cells, 1):
        if cell.get("cell_type") != "code":
            continue
        for line in cell_lines(cell):
            at = find_line(raw, line, at)
            code.append(line)
            lines.append(at + 1)
            numbers.append(number)
    return "\n".join(code) + "\n", lines, numbers


def cell_lines(cell: dict[str, object]) -> list[str]:
    """The lines of a cell; one that Python cannot read becomes comments, so that the others keep
    their lines."""
    source = cell.get("source", "")
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    lines = text.split("\n")
    magic = text.split()[0] if text.strip() else ""
    if magic.startswith("%%") and magic not in ("%%time", "%%timeit", "%%capture"):
        return [f"# {line}" for line in lines]  # of another language
    lines = [plain_line(line) for line in lines]
    try:
        ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [f"# {line}" for line in lines]
    return lines


def plain_line(line: str) -> str:
    """A line without IPython's own syntax: a magic becomes `pass`."""
    if not MAGIC.match(line):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass  # {line.strip()}"


def find_line(raw: Sequence[str], line: str, start: int) -> int:
    """Where a line of code stands in the notebook's JSON, at or behind `start`; `start` where it
    is not found."""
    plain = line.partition("pass  # ")[2] if line.lstrip().startswith("pass  # ") else line
    if not plain.strip():
        return start
    for escaped in (json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]):
        for index in range(start, len(raw)):
            if escaped in raw[index]:
                return index
    return start
