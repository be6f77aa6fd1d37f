"""`make demo`: questions to a real model and to a tiny one that sees pictures, on transformers and on vLLM.

    make demo                                  the table of the tiny model, then eight questions to the real one
    make demo ASK="Why is the sea salty?"      your own question to the real one, too

The real model runs in bfloat16, where greedy answers part at near ties. Of each answer is said whether both backends
gave the same tokens, and if not, whether rounding explains where they part: both read the answer of transformers token
by token, as does float32 (parity.judge.numerics.referee).

Exit codes: 0 both backends agree, up to rounding in the real model, and every answer that can be right is; else 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen_engine import GenerationEngine, GenerationResult, load
from parity.diff import partings
from parity.environment.libraries import clone_file
from parity.judge.numerics import reading
from parity.models import real_model
from parity.models.tasks import Task, vision_tasks

MODEL = "golden/models/tiny-qwen3-vl"
BACKENDS: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 64, "max_num_seqs": 16}},  # as small as the model is
}
LEAST_COLUMNS = 72
MOST_COLUMNS = 120
BESIDE = 24  # columns of the table that hold no text: bars, and whether both agree and are right
PIXELS = {"max_pixels": 128 * 128}
OPTIONS = {"max_new_tokens": 80}


@dataclass(frozen=True)
class Question:
    """One row of the table. answer: None where a tiny model cannot be right."""

    shown: str
    messages: list[dict[str, Any]]
    answer: str | None

    @property
    def has_picture(self) -> bool:
        return any(not isinstance(message["content"], str) for message in self.messages)


def photograph() -> Any:
    """A real photograph: the portrait that matplotlib ships."""
    from matplotlib import cbook
    from PIL import Image

    return Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))


def shown(task: Task) -> str:
    """The question as a line, each picture as its size."""
    content = task.messages[-1]["content"]
    if isinstance(content, str):
        return content
    parts = [f"[{p['image'].width}x{p['image'].height}]" if p["type"] == "image" else p["text"] for p in content]
    return " ".join(parts)


def questions() -> list[Question]:
    """Drawings that were not trained on, one photograph, and chat: one of each kind, then more drawings."""
    tasks = [task for task in vision_tasks(60, seed=7) if not task.enable_thinking]
    kinds = list({task.kind: task for task in reversed(tasks)}.values())
    chosen = [*kinds, *[task for task in tasks if task not in kinds]][:10]
    asked = sorted(
        (Question(shown(t), t.messages, t.answer) for t in chosen), key=lambda question: not question.has_picture
    )
    drawings = sum(question.has_picture for question in asked)
    look = [{"type": "image", "image": photograph()}, {"type": "text", "text": "What do you see?"}]
    portrait = Question("[a real photograph, 512x600] What do you see?", [{"role": "user", "content": look}], None)
    return [*asked[:drawings], portrait, *asked[drawings:]]


def ask(engine: GenerationEngine, asked: Sequence[Question]) -> list[GenerationResult]:
    """Everything in two batches, one with pictures and one without, in the order asked."""
    pictures = [question for question in asked if question.has_picture]
    chats = [question for question in asked if not question.has_picture]
    answers = [
        *engine.generate_vlm_batch([{"messages": q.messages, "vlm": PIXELS} for q in pictures], OPTIONS),
        *engine.generate_text_batch([{"messages": q.messages} for q in chats], OPTIONS),
    ]
    by_question = dict(zip([id(question) for question in [*pictures, *chats]], answers))
    return [by_question[id(question)] for question in asked]


def run(backend: Any, asked: Sequence[Question]) -> tuple[list[GenerationResult], str]:
    """Load, warm up, ask: the answers and a line of figures."""
    print(f"loading {Path(MODEL).name} on {backend} ...", file=sys.stderr)
    began = time.perf_counter()
    with load(clone_file(MODEL), backend=backend, max_model_len=512, **BACKENDS[backend]) as engine:
        loaded = time.perf_counter() - began
        ask(engine, asked)
        began = time.perf_counter()
        answers = ask(engine, asked)
        seconds = time.perf_counter() - began
    tokens = sum(answer.completion_tokens for answer in answers)
    figures = f"{tokens} tokens in {seconds:.2f} s = {tokens / seconds:.0f} tokens/s   (loaded in {loaded:.1f} s)"
    return answers, f"{backend:5} {len(answers)} answers, {figures}"


def terminal_width() -> int:
    """Columns to print in: those of the terminal, in a range that can be read."""
    return min(MOST_COLUMNS, max(LEAST_COLUMNS, shutil.get_terminal_size((100, 24)).columns))


def table(asked: Sequence[Question], answers: dict[str, list[GenerationResult]]) -> str:
    """question | hf | vllm | agree | right, as wide as the terminal."""
    width = terminal_width()
    answer = (width - BESIDE) * 3 // 10
    widths = (width - BESIDE - 2 * answer, answer, answer)
    rule = "─" * width
    lines = [rule, row(["question", *answers], widths, "agree", "right"), rule]
    for question, *given in zip(asked, *answers.values()):
        texts = [answer.text for answer in given]
        agree = "yes" if len({answer.token_ids for answer in given}) == 1 else "NO"
        right = "-" if question.answer is None else "yes" if set(texts) == {question.answer} else "NO"
        lines += [row([question.shown, *texts], widths, agree, right)]
    return "\n".join([*lines, rule])


def row(cells: Sequence[str], widths: Sequence[int], *marks: str) -> str:
    wrapped = [textwrap.wrap(" ⏎ ".join(cell.split("\n")), width) or [""] for cell, width in zip(cells, widths)]
    height = max(map(len, wrapped))
    lines = []
    for level in range(height):
        texts = [(cell[level] if level < len(cell) else "").ljust(width) for cell, width in zip(wrapped, widths)]
        lines.append(
            " │ ".join([" " + texts[0], *texts[1:], *(mark.center(5) if level == 0 else " " * 5 for mark in marks)])
        )
    return "\n".join(line.rstrip() for line in lines)


def ask_tiny() -> bool:
    """The tiny model on both backends; prints the table. Returns whether all agree and are right."""
    asked = questions()
    answers: dict[str, list[GenerationResult]] = {}
    figures = []
    for backend in BACKENDS:
        answers[backend], line = run(backend, asked)
        figures.append(line)
    print(table(asked, answers))
    print("\n".join(figures))
    pairs = list(zip(*answers.values()))
    agree = sum(len({answer.token_ids for answer in pair}) == 1 for pair in pairs)
    gradable = [(q.answer, pair) for q, pair in zip(asked, pairs) if q.answer is not None]
    right = sum(all(answer.text == expected for answer in pair) for expected, pair in gradable)
    print(f"{agree} of {len(pairs)} agree, {right} of {len(gradable)} right (no model this small knows a photograph)")
    return agree == len(pairs) and right == len(gradable)


# == The real model ==

DTYPE: Any = "bfloat16"
REAL: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 160, "max_num_seqs": 16}},
}
REAL_OPTIONS = {"max_new_tokens": 80}
REAL_QUESTIONS = (
    "What is the capital of France?",
    "What is 17 + 25?",
    "Why is the sky blue?",
    "Tell me a short story about a lighthouse keeper who finds a message in a bottle.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Translate into French: The weather is beautiful today.",
    "Give me a JSON object with the fields name, age and city for a fictional person.",
    "List five things to take on a hike.",
)
MOST_LINES = 8  # of an answer; of one's own question it is shown whole


@dataclass(frozen=True)
class Compared:
    """The real model's answers to `asked`.   found: what the referee says of them, None where nothing parts."""

    asked: tuple[str, ...]
    old: list[GenerationResult]
    new: list[GenerationResult]
    found: partings.PairsJudged | None

    @property
    def is_fault(self) -> bool:
        return self.found is not None and self.found.outcome == "fault"


def ask_real(path: Path, asked: Sequence[str]) -> Compared:
    """Both backends, one after the other; then, where answers part, the referee. One model at a time."""
    requests = [{"messages": [{"role": "user", "content": question}]} for question in asked]
    with open_real(path, "hf") as engine:
        old = engine.generate_text_batch(requests, REAL_OPTIONS)
    with open_real(path, "vllm") as engine:
        new = engine.generate_text_batch(requests, REAL_OPTIONS)
        pairs = [partings.Pair(a.prompt_token_ids, a.token_ids, b.token_ids) for a, b in zip(old, new)]
        if all(pair.step is None for pair in pairs):
            return Compared(tuple(asked), old, new, None)
        say_step("vllm reads the answers of hf")
        rows = [partings.given_pair(pair) for pair in pairs]
        read = reading.read_engine(engine, rows)
    say_step(f"plain transformers reads them, in float32 and in {DTYPE}")
    reference = reading.read_reference(str(path), DTYPE, rows)
    return Compared(tuple(asked), old, new, partings.judge_pairs(pairs, rows, reference, read, dtype=DTYPE))


def open_real(path: Path, backend: Any) -> GenerationEngine:
    say_step(f"loading {path.name} on {backend}")
    return load(path, backend=backend, dtype=DTYPE, max_model_len=1024, progress=False, **REAL[backend])


def say_step(what: str) -> None:
    print(f"{what} ...", file=sys.stderr)


def describe_real(compared: Compared, own: str | None) -> str:
    """Each question with its answer, or with both where they part, and what is said of that."""
    lines = []
    for index, question in enumerate(compared.asked):
        row = compared.found.rows[index] if compared.found else partings.PairResult()
        most = None if question == own else MOST_LINES
        lines += ["", *wrapped(question, "▸ "), *answer_lines(compared, index, most)]
        lines.append(f"  {'!! ' if row.is_fault else ''}{row}{gap_words(row)}")
    return "\n".join([*lines, "", summary_of(compared)])


def answer_lines(compared: Compared, index: int, most: int | None) -> list[str]:
    """The answer; where the two part, their common beginning and how each goes on."""
    old = compared.old[index].text
    new = compared.new[index].text
    if old == new:
        return clipped(wrapped(old, "  "), most)
    shared = shared_words(old, new)
    lines = last_of(wrapped(old[:shared], "  "), most)
    for backend, text in (("hf", old), ("vllm", new)):
        part = wrapped(text[shared:], f"    {backend:4} │ ")
        lines += clipped(part, most and most // 2)
    return lines


def shared_words(old: str, new: str) -> int:
    """Characters of the common beginning, up to the end of a word."""
    shortest = min(len(old), len(new))
    common = next((k for k in range(shortest) if old[k] != new[k]), shortest)
    return max(old.rfind(" ", 0, common), old.rfind("\n", 0, common)) + 1


def wrapped(text: str, indent: str) -> list[str]:
    """A text's own lines, none empty, each wrapped to the terminal behind an indent."""
    width = terminal_width() - len(indent)
    lines = [part for line in text.splitlines() if line.strip() for part in wrap_line(line, width)]
    rest = indent if "│" in indent else " " * len(indent)
    return [(rest if number else indent) + line for number, line in enumerate(lines)]


def wrap_line(line: str, width: int) -> list[str]:
    """A line keeps the blanks at its beginning: code has a meaning in them."""
    blanks = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, width, subsequent_indent=blanks, drop_whitespace=True)


def clipped(lines: list[str], most: int | None) -> list[str]:
    return lines if most is None or len(lines) <= most else [*lines[: most - 1], lines[most - 1] + " …"]


def last_of(lines: list[str], most: int | None) -> list[str]:
    return lines if most is None or len(lines) <= most else ["  …", *lines[-(most // 2) :]]


def gap_words(row: partings.PairResult) -> str:
    if row.parted is None or not row.parted.within:
        return ""
    gap = row.parted.gap
    return f": float32 prefers one token by {gap:.2f} nats, rounding explains {row.parted.allowed:.2f}"


def summary_of(compared: Compared) -> str:
    if compared.found is None:
        return f"{len(compared.asked)} answers, all the same on both backends, token by token"
    same = sum(row.step is None for row in compared.found.rows)
    parted = len(compared.asked) - same
    counts = f"{len(compared.asked)} answers: {same} the same, {parted} part"
    if compared.found.outcome == "rounding":
        return f"{counts} by rounding"
    if compared.found.outcome == "fault":
        return f"!! {counts}, AND ROUNDING DOES NOT EXPLAIN IT: {compared.found.why}"
    return f"{counts}, each as rounding may make it; over all tokens the referee cannot tell"


# == The command ==


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--ask", metavar="QUESTION", help="your own question to the real model")
    chosen.add_argument("--tiny", action="store_true", help="only the tiny model")


def run_demo(args: argparse.Namespace) -> int:
    """Returns 0 if both backends give the same answers, up to rounding; else 1.

    Raises LookupError outside of a clone."""
    clone_file(MODEL)
    with real_model.quiet_libraries():
        return ask_models(args)


def ask_models(args: argparse.Namespace) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TQDM_DISABLE", "1")
    is_good = ask_tiny()
    if args.tiny:
        return 0 if is_good else 1
    try:
        path = real_model.folder()
    except real_model.BuildError as error:
        print(f"\n!! THE REAL MODEL WAS NOT ASKED: {error}")
        return 0 if is_good else 1
    asked = (args.ask, *REAL_QUESTIONS) if args.ask else REAL_QUESTIONS
    compared = ask_real(path, asked)
    print(f"\nSmolLM2-135M-Instruct in {DTYPE}, greedy, on hf and vllm")
    print(describe_real(compared, args.ask))
    return 0 if is_good and not compared.is_fault else 1


def add_demo(subparsers: Any) -> None:
    """In a clone only: the tiny models stand under golden/models."""
    parser = subparsers.add_parser(
        "demo",
        help="ask a tiny and a real model on both backends (in a clone)",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example: parity demo --ask "Why is the sea salty?"',
    )
    add_arguments(parser)
    parser.set_defaults(run=run_demo)
