"""Is a row's answer the same whatever stands beside it? One path, the same prompts, other batches.

    for one in audit("hf", model, prompts, tokens): ...

"Within rounding" means: where ids are the same, log-probabilities moved by at most twice what the
rows alone are off from float32; where they part, float32 prefers neither token by more than that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parity.companions.speculation import Speculation
from parity.diff.comparison import Progress
from parity.diff.instruments import Scored, read_exact, row_of
from parity.diff.path import EnginePath
from parity.diff.prompts import Prompt
from parity.diff.worker import open_path

ROWS = 64
PREFIX = (
    "You answer briefly and exactly. " * 24
)  # longer than a block of vLLM's cache on a CPU (128)
CHUNK = 96  # tokens of a step: prompts of 170 and more are read in pieces


@dataclass(frozen=True, slots=True)
class Answered:
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One other way to ask.   exact: every id and number is the same, bit by bit.   most: the
    largest |delta log p| of the shared beginnings, nats.   parted: (row, step) where ids part.
    within: rounding explains it."""

    name: str
    rows: int
    exact: bool
    most: float
    parted: tuple[tuple[int, int], ...]
    within: bool


def audit(backend: str, model: str, prompts: Sequence[Prompt], tokens: int) -> list[Variant]:
    """Every variant against each row alone."""
    path = EnginePath(backend, backend)
    is_cached = backend == "vllm"
    asked = many_prompts(prompts, PREFIX if is_cached else "")
    progress = Progress(9 if is_cached else 7)  # the variants, alone, and float32
    runs = runs_of(path, model, asked, tokens, progress)
    alone = runs.pop("alone")
    others: list[list[tuple[int, int]]] = [[] for _ in alone]
    for made in runs.values():
        for row, step in parted_rows(alone, made):
            others[row] += candidates(alone[row], made[row], step)
    rows = [row_of(one.prompt, one.ids, asked) for one, asked in zip(alone, others)]
    progress.step("float32 reads each row")
    truth = read_exact(model, rows)
    exact = [dict(zip(asked, one.others)) for asked, one in zip(others, truth)]
    largest = largest_error(alone, truth)
    return [variant(name, alone, made, exact, largest) for name, made in runs.items()]


def many_prompts(prompts: Sequence[Prompt], beginning: str) -> list[Prompt]:
    """ROWS prompts. beginning: of all; a long one gives work to a prefix cache and to chunks."""
    found: list[Prompt] = []
    for k in range(ROWS):
        prompt = prompts[k % len(prompts)]
        again = f" ({k // len(prompts) + 1})" if k >= len(prompts) else ""
        text = prompt["prompt"] if "prompt" in prompt else prompt["messages"][-1]["content"]
        if not isinstance(text, str):
            raise ValueError(f"--invariance: prompt {k} is no text. Give prompts without images.")
        found.append({"prompt": beginning + text + again})
    return found


def runs_of(
    path: EnginePath, model: str, prompts: Sequence[Prompt], tokens: int, progress: Progress
) -> dict[str, list[Answered]]:
    """Name of a variant -> answers, in the order of the prompts; one engine after the other."""
    runs: dict[str, list[Answered]] = {}
    cold = {"vllm_kwargs": {"enable_prefix_caching": False}} if path.backend == "vllm" else {}
    with open_path(path, model, **cold) as engine:
        for name, size in (
            ("alone", 1),
            ("batches of 2", 2),
            ("batches of 8", 8),
            ("batch of 64", 64),
        ):
            progress.step(f"{path.backend}: {name}")
            runs[name] = ask(engine, prompts, tokens, size)
        progress.step(f"{path.backend}: other order")
        order = list(range(len(prompts)))
        random.Random(0).shuffle(order)
        made = ask(engine, [prompts[k] for k in order], tokens, 8)
        runs["batches of 8, other order"] = [made[order.index(k)] for k in range(len(order))]
    if path.backend == "vllm":
        runs.update(cached_runs(path, model, prompts, tokens, progress))
    progress.step(f"{path.backend}: speculated")
    with open_path(path, model, decoder=Speculation("ngram", num_tokens=4)) as engine:
        runs["speculated (ngram)"] = ask(engine, prompts, tokens, 8)
    return runs


def cached_runs(
    path: EnginePath, model: str, prompts: Sequence[Prompt], tokens: int, progress: Progress
) -> dict[str, list[Answered]]:
    runs = {}
    progress.step("vllm: prefix cache")
    with open_path(path, model, vllm_kwargs={"enable_prefix_caching": True}) as engine:
        ask(engine, prompts[:1], tokens, 1)
        runs["alone, after a prefix-cache hit"] = ask(engine, prompts, tokens, 1)
    progress.step("vllm: chunked prefill")
    chunks = {"enable_chunked_prefill": True, "max_num_batched_tokens": CHUNK}
    with open_path(path, model, vllm_kwargs={**chunks, "enable_prefix_caching": False}) as engine:
        runs["alone, prefill in chunks"] = ask(engine, prompts, tokens, 1)
    return runs


def ask(engine: Any, prompts: Sequence[Prompt], tokens: int, size: int) -> list[Answered]:
    """Greedy answers, `size` rows at a time."""
    found = []
    options = {"max_new_tokens": tokens, "logprobs": 0}
    for start in range(0, len(prompts), size):
        for result in engine.generate_text_batch(list(prompts[start : start + size]), options):
            ids = tuple(result.token_ids)
            found.append(Answered(tuple(result.prompt_token_ids), ids, tuple(result.logprobs)))
    return found


def parted_rows(alone: Sequence[Answered], made: Sequence[Answered]) -> Iterator[tuple[int, int]]:
    for row, (one, other) in enumerate(zip(alone, made)):
        if one.ids != other.ids:
            yield row, shared_steps(one, other)


def shared_steps(one: Answered, other: Answered) -> int:
    shortest = min(len(one.ids), len(other.ids))
    return next((k for k in range(shortest) if one.ids[k] != other.ids[k]), shortest)


def candidates(one: Answered, other: Answered, step: int) -> list[tuple[int, int]]:
    """(step, id) of both sides; none where one answer is the beginning of the other."""
    if step >= min(len(one.ids), len(other.ids)):
        return []
    return [(step, one.ids[step]), (step, other.ids[step])]


def largest_error(alone: Sequence[Answered], truth: Sequence[Scored]) -> float:
    pairs = [(a, b) for one, true in zip(alone, truth) for a, b in zip(one.logprobs, true.logprobs)]
    return max(abs(a - b) for a, b in pairs if b is not None)


def variant(
    name: str,
    alone: Sequence[Answered],
    made: Sequence[Answered],
    exact: Sequence[dict[tuple[int, int], float | None]],
    largest: float,
) -> Variant:
    most = 0.0
    for one, other in zip(alone, made):
        steps = shared_steps(one, other)
        gaps = [abs(a - b) for a, b in zip(one.logprobs[:steps], other.logprobs[:steps])]
        most = max([most, *gaps])
    parted = tuple(parted_rows(alone, made))
    is_exact = all(one == other for one, other in zip(alone, made))
    near = all(
        is_near_tie(alone[row], made[row], step, exact[row], largest) for row, step in parted
    )
    return Variant(name, len(made), is_exact, most, parted, near and most <= 2 * largest)


def is_near_tie(
    one: Answered,
    other: Answered,
    step: int,
    exact: dict[tuple[int, int], float | None],
    largest: float,
) -> bool:
    """Whether float32 prefers neither of the two tokens by more than rounding moves both."""
    values = [exact.get(candidate) for candidate in candidates(one, other, step)]
    known = [value for value in values if value is not None]
    return len(known) == 2 and abs(known[0] - known[1]) <= 2 * largest


def table(found: Sequence[Variant]) -> str:
    lines = [
        f"{'against each row alone':33} bit by bit   within rounding   max |delta log p|   "
        "ids part (row:step)"
    ]
    for one in found:
        parted = " ".join(f"{row}:{step}" for row, step in one.parted[:8])
        more = f" and {len(one.parted) - 8} more" if len(one.parted) > 8 else ""
        marks = f"{yes(one.exact):10}   {yes(one.within):15}"
        lines.append(f"{one.name:33} {marks}   {one.most:17.1e}   {parted or 'none'}{more}")
    return "\n".join(lines)


def yes(value: bool) -> str:
    return "yes" if value else "no"
