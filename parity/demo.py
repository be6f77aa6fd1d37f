"""`make demo`: the same questions, about pictures and in plain chat, to the tiny VLM on both backends, side by side.

Exit code 0 if both backends agree everywhere and every answer that can be right is; else 1.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen_engine import GenerationEngine, GenerationResult, load
from parity.tasks import Task, vision_tasks

MODEL = Path(__file__).parents[1] / "golden/models/tiny-qwen3-vl"
BACKENDS: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 64, "max_num_seqs": 16}},  # as small as the model is
}
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


def run(backend: str, asked: Sequence[Question]) -> tuple[list[GenerationResult], str]:
    """Load, warm up, ask: the answers and a line of figures."""
    print(f"loading {MODEL.name} on {backend} ...", file=sys.stderr)
    began = time.perf_counter()
    with load(MODEL, backend=backend, max_model_len=512, **BACKENDS[backend]) as engine:
        loaded = time.perf_counter() - began
        ask(engine, asked)
        began = time.perf_counter()
        answers = ask(engine, asked)
        seconds = time.perf_counter() - began
    tokens = sum(answer.completion_tokens for answer in answers)
    figures = f"{tokens} tokens in {seconds:.2f} s = {tokens / seconds:.0f} tokens/s   (loaded in {loaded:.1f} s)"
    return answers, f"{backend:5} {len(answers)} answers, {figures}"


def table(asked: Sequence[Question], answers: dict[str, list[GenerationResult]]) -> str:
    """question | hf | vllm | agree | right, wrapped to the widths below."""
    widths = (38, 32, 32)
    rule = "─" * (sum(widths) + 26)
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


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m parity.demo", description=__doc__, epilog="example: make demo"
    ).parse_args()  # fmt: skip
    warnings.simplefilter("ignore")  # of the libraries among themselves
    logging.disable(logging.WARNING)  # likewise: the table is what a person came for
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
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
    return 0 if agree == len(pairs) and right == len(gradable) else 1


if __name__ == "__main__":
    sys.exit(main())
