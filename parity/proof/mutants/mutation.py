"""Mutants of source files, made by mutmut's operators.

Why mutmut: it mutates arguments, strings and defaults as well as operators, and what this code asks
of the libraries are arguments; cosmic-ray exchanges operators and numbers only. Its runner is not
used: it puts all mutants of a function into one file, so that definitions and defaults are not the
file's own, and it knows by function only which tests reach a mutant.

What is not mutated: what [tool.mutmut] in pyproject.toml names (`raise`, warnings, `__all__`), what
mutmut leaves out (annotations, decorated functions), and sentences for people.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, create_mutations

from parity.proof.mutants.reach import statement_lines

SENTENCE = re.compile(r"[A-Za-z,;:] [A-Za-z]")  # a blank between words


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one file.

    text: the whole file with the change.   original, mutated: the lines that differ, joined.
    lines: first and last line of the statement.   function: of the function around it, if any.
    """

    file: str
    text: str
    original: str
    mutated: str
    lines: tuple[int, int]
    function: tuple[int, int]

    @property
    def key(self) -> tuple[str, str, str]:
        """Names it in the list of equivalent mutants: an edit elsewhere does not change it."""
        return self.file, self.original, self.mutated


class Source:
    """A file and mutmut's mutations of it."""

    def __init__(self, root: Path, file: str) -> None:
        self.file = file
        self.text = (root / file).read_text()
        module, mutations, _, _ = create_mutations(file, self.text)
        self.module = module
        self.mutations = [one for one in mutations if not is_sentence(one.original_node)]
        # In parts, one for each top statement: to write all anew takes two seconds a mutant.
        self.parts = [module.code_for_node(part) for part in module.body]
        self.head, _, self.footer = self.text.partition("".join(self.parts))
        self.part_of = dict[libcst.CSTNode, int]()
        for at, part in enumerate(module.body):
            self.part_of.update(dict.fromkeys(nodes_in(part), at))
        self.statements = statement_lines(self.text)
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.positions = wrapper.resolve(PositionProvider)

    def mutant(self, mutation: Mutation) -> Mutant | None:
        """None where the result is no Python, or no change."""
        text = self.text_with(mutation)
        try:
            compile(text, self.file, "exec")
        except SyntaxError:
            return None
        if text == self.text:
            return None
        old, new = self.text.splitlines(), text.splitlines()
        head = common_length(old, new)
        tail = min(common_length(old[::-1], new[::-1]), len(old) - head, len(new) - head)
        lines = self.statements.get(head + 1, (head + 1, head + 1))
        return Mutant(
            file=self.file,
            text=text,
            original=joined(old[head : len(old) - tail]),
            mutated=joined(new[head : len(new) - tail]),
            lines=lines,
            function=self.function_lines(mutation.contained_by_top_level_function) or lines,
        )

    def text_with(self, mutation: Mutation) -> str:
        at = self.part_of[mutation.original_node]
        old = self.module.body[at]
        changed: Any = old.deep_replace(mutation.original_node, mutation.mutated_node)
        parts = [*self.parts[:at], self.module.code_for_node(changed), *self.parts[at + 1 :]]
        return "".join([self.head, *parts, self.footer])

    def function_lines(self, function: libcst.CSTNode | None) -> tuple[int, int] | None:
        if not isinstance(function, libcst.FunctionDef):
            return None
        position: Any = self.positions[function]
        return position.start.line, position.end.line


def nodes_in(node: libcst.CSTNode) -> Iterator[libcst.CSTNode]:
    yield node
    for child in node.children:
        yield from nodes_in(child)


def is_sentence(node: libcst.CSTNode) -> bool:
    value = getattr(node, "evaluated_value", None)
    return isinstance(value, str) and SENTENCE.search(value) is not None


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other))
    return sum(1 for _ in same)


def joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines)


def sample(root: Path, files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of these files, each with the same chance. The working directory must be one
    whose pyproject.toml has [tool.mutmut]."""
    pairs = list[tuple[Source, Mutation]]()
    for file in files:
        source = Source(root, file)
        pairs += [(source, mutation) for mutation in source.mutations]
    random.Random(seed).shuffle(pairs)
    found = (source.mutant(mutation) for source, mutation in pairs)
    return list(itertools.islice((one for one in found if one is not None), count))
