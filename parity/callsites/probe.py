"""The call site that the self-test breaks where the project's sites have no fitting case: one function, any options."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gen_engine import GenerationEngine, load

TEXT, VL = "golden/models/tiny-qwen3", "golden/models/tiny-qwen3-vl"


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path)


def ask(
    model_path: str,
    questions: list[str],
    options: dict[str, Any],
    system: str | None = None,
    image_path: str | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> list[str]:
    head = [] if system is None else [{"role": "system", "content": system}]
    pictures = [] if image_path is None else [{"type": "image", "image": image_path}]
    requests: list[dict[str, Any]] = []
    for question in questions:
        content: Any = [*pictures, {"type": "text", "text": question}] if pictures else question
        requests.append({"messages": [*head, {"role": "user", "content": content}], "tools": tools})
    model = engine(model_path)
    generate = model.generate_vlm_batch if pictures else model.generate_text_batch
    return [result.text for result in generate(requests, options)]


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(case, arguments of `ask`)."""
    from parity.tasks import TOOLS, drawing

    count, capital, fruits = "Count to 12.", "What is the capital of France?", "Name three fruits."
    picture = folder / "triangle.png"
    drawing("green", "triangle", width=96, height=72, seed=3).save(picture)
    greedy = {"max_new_tokens": 64}
    text = {"model_path": TEXT, "options": greedy}
    yield "plain", {**text, "questions": [capital]}
    yield "ragged", {**text, "questions": [capital, count, "Is 17 even?"]}
    yield "two-stops", {**text, "questions": [count], "options": {**greedy, "stop": [", 7", ", 4"]}}
    yield "stop-first", {**text, "questions": [count], "options": {**greedy, "stop": ["1,", ", 5"]}}
    yield "stops-at-once", {**text, "questions": [count], "options": {**greedy, "stop": ["6", "5, 6"]}}
    yield "stop-twice", {**text, "questions": [count], "options": {**greedy, "stop": [", "]}}
    yield "blank-at-end", {**text, "questions": [count], "options": {**greedy, "stop": ["5"]}}
    yield "lines", {**text, "questions": [fruits]}
    yield "dated", {**text, "questions": [capital], "system": "Today is 2026-11-20. Answer briefly."}
    yield "tools", {**text, "questions": ["What is the weather in Oslo?"], "tools": TOOLS}
    drawn = {**greedy, "temperature": 1.0, "seed": 5}
    yield "drawn", {**text, "questions": [capital, "Name a colour."], "options": drawn}
    yield "drawn-cut", {**text, "questions": [capital, "Draw a star."], "options": {**drawn, "top_k": 3, "top_p": 0.9}}
    yield "penalised", {**text, "questions": [count], "options": {**greedy, "repetition_penalty": 1.1}}
    yield (
        "picture",
        {"model_path": VL, "options": greedy, "questions": ["What do you see?"], "image_path": str(picture)},
    )
