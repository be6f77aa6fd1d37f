"""The call site that the self-test breaks where the project's sites have no fitting case: any options, and what an
engine tells beside its texts, which no old code has."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gen_engine import Observer, load, truncate_at_stops

TEXT, VL, LLAMA = (f"golden/models/{name}" for name in ("tiny-qwen3", "tiny-qwen3-vl", "random-llama"))


@functools.cache
def engine(model_path: str, places: int | None = None, spare: Literal["hf"] | None = None, hooks: bool = False) -> Any:
    return load(model_path, max_batch_size=places, fallback_backend=spare, logits_hooks=hooks, dtype="float32")


class Crowd(Observer):
    """Counts the rows that run together."""

    most = 0

    def arrived(self, backend: str, rows: Sequence[Any]) -> None:
        self.rows = rows

    def stepped(self) -> None:
        self.most = max(self.most, sum(bool(row.ids) and not row.over for row in self.rows))


def ask(
    model_path: str,
    questions: list[str],
    options: dict[str, Any],
    system: str | None = None,
    image_path: str | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> list[str]:
    head = [] if system is None else [{"role": "system", "content": system}]
    pictures = [] if image_path is None else [{"type": "image", "image": Path(image_path)}]
    requests: list[dict[str, Any]] = []
    for question in questions:
        content: Any = [*pictures, {"type": "text", "text": question}] if pictures else question
        requests.append({"messages": [*head, {"role": "user", "content": content}], "tools": tools})
    model = engine(model_path)
    generate = model.generate_vlm_batch if pictures else model.generate_text_batch
    return [result.text for result in generate(requests, options)]


def tell(
    model_path: str, prompts: list[str], options: dict[str, Any], places: int | None = None, chat: bool = False
) -> dict[str, Any]:
    """What is told beside the texts.   places: rows that may run together."""
    crowd, model = Crowd(), engine(model_path, places, hooks="replay" in options)
    requests: list[Mapping[str, Any]] = [{"prompt": prompt} for prompt in prompts]
    if chat:
        requests = [{"messages": [{"role": "user", "content": prompt}]} for prompt in prompts]
    with model.observed(crowd):
        results = model.generate_text_batch(requests, options)
    return {
        "together": places and crowd.most,
        "notes": [list(result.notes) for result in results],
        "reasons": [result.finish_reason for result in results],
        "top": [[sorted(step) for step in result.top_logprobs or ()] for result in results],
    }


def learn(model_path: str, prompt: str, response: str) -> bool:
    """Whether a score can be learned from; on vLLM, which has no gradients, by the spare backend."""
    [score] = engine(model_path, spare="hf").score_batch([(prompt, response)], grad=True)
    return bool(getattr(score.logprobs, "requires_grad", False))


def remember(model_path: str, calls: list[list[str]]) -> list[list[bool]]:
    """Which answers of each call come from a cache."""
    with load(model_path, dtype="float32", cache={}) as model:
        asked = [model.generate_text_batch([{"prompt": one} for one in call], {"max_new_tokens": 4}) for call in calls]
    return [[result.cached for result in results] for results in asked]


def fill(model_path: str, question: str, structured: dict[str, Any]) -> str:
    request = {"messages": [{"role": "user", "content": question}], "structured": structured}
    [result] = engine(model_path).generate_text_batch([request], {"max_new_tokens": 24})
    return str(result.text)


def cut(texts: list[str], stops: list[str]) -> list[str]:
    return [truncate_at_stops(text, stops) for text in texts]


def cases(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(case, function, its arguments)."""
    yield (
        "noted",
        "tell",
        {"model_path": LLAMA, "prompts": ["Hello", "No"], "options": {"max_new_tokens": 4}, "chat": True},
    )
    yield (
        "one-by-one",
        "tell",
        {"model_path": TEXT, "prompts": ["One", "1, 2"], "options": {"max_new_tokens": 6}, "places": 1},
    )
    replay = {"replay": [[16, 11], [11, 16, 11]], "logprobs": 2, "max_new_tokens": 6}
    yield "replayed", "tell", {"model_path": LLAMA, "prompts": ["One", "1, 2"], "options": replay}
    yield "learned", "learn", {"model_path": LLAMA, "prompt": "One", "response": " two"}
    yield "remembered", "remember", {"model_path": LLAMA, "calls": [["One"], ["Two", "One"], ["One", "Three", "Two"]]}
    anna = "Give me a JSON object for Anna, 31, from Oslo."
    yield "filled", "fill", {"model_path": TEXT, "question": anna, "structured": {"json_object": True}}
    yield "filled-openly", "fill", {"model_path": TEXT, "question": anna, "structured": {"json": {"type": "object"}}}
    yield "cut", "cut", {"texts": ["abXYZ", "a YX", "aXYZY"], "stops": ["XYZ", "Y", "YX"]}
    for name, arguments in asked(folder):
        yield name, "ask", arguments


def asked(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from parity.models.tasks import TOOLS, drawing

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
