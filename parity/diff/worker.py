"""One visit to one path: load, answer or read rows, close. Here, or in another environment.

visit(Job(path, model, prompts, tokens))                      greedy answers
visit(Job(..., first=answers_of_a))                           B: its answers, and what it reads
visit(Job(..., first=a, own=b))                               A again: what it reads
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen_engine import GenerationEngine, load, render

from parity.diff.instruments import (
    Answers,
    Scored,
    planted,
    read_rows,
    rows_between,
)
from parity.diff.other_env import CannotRunThere, own_code, run_there
from parity.diff.path import EnginePath
from parity.diff.prompts import Prompt
from parity.environment.kernels import known_biases

ADAPTER = "adapter"
MOST_MEMORY = 0.9  # of a device: vLLM's own default
FREE_PART = 0.8  # of what is free: other programs grow


@dataclass(frozen=True, slots=True)
class Job:
    """first, own: A's and B's answers, where they are known; with both, their rows are read."""

    path: EnginePath
    model: str
    prompts: Sequence[Prompt]
    tokens: int
    first: Answers | None = None
    own: Answers | None = None


@dataclass(frozen=True, slots=True)
class Visit:
    """answers: the path's own.   scores: of `rows_between`, empty without first answers.
    notes: kernels in use that are known to be biased."""

    answers: Answers
    scores: list[Scored]
    notes: tuple[str, ...] = ()


def visit(job: Job) -> Visit:
    """One model is loaded, and closed before this returns."""
    if job.path.python:
        return visit_elsewhere(job)
    with open_path(job.path, job.model) as engine:
        notes = known_biases(engine.backend.name, engine.checkpoint.dtype)
        answers = job.own or answer(engine, job)
        if job.first is None or job.first.prompts != answers.prompts:
            return Visit(answers, [], notes)
        rows = rows_between(job.first, answers)
        adapter = ADAPTER if job.path.adapter else None
        return Visit(answers, read_rows(engine, rows, f"{job.path.text} reads", adapter), notes)


@contextmanager
def open_path(path: EnginePath, model: str, **more: Any) -> Iterator[GenerationEngine]:
    """A path's engine, with its fault planted."""
    values: dict[str, Any] = {
        "backend": path.backend,
        "dtype": path.dtype,
        "progress": False,
        **more,
    }
    if path.adapter:
        values["adapters"] = {ADAPTER: path.adapter}
    if path.attention:
        values["attn_implementation"] = path.attention
    if path.backend == "vllm":
        values["vllm_kwargs"] = {**small_engine(), **path.settings, **more.get("vllm_kwargs", {})}
    with load(path.model or model, **values) as engine:
        if path.backend == "vllm":
            yield engine
            return
        with planted(engine.model, path.fault, path.amount):
            yield engine


def small_engine() -> dict[str, Any]:
    """Settings of vLLM beside other programs: of what is free now, not of all that there is."""
    free, total = memory()
    share = math.floor(min(MOST_MEMORY, FREE_PART * free / total) * 100) / 100
    return {"max_num_seqs": 64, "gpu_memory_utilization": share}


def memory() -> tuple[int, int]:
    """Bytes free and in all, where vLLM's engine would lie."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    sizes = {name: int(kilobytes) for name, kilobytes in re.findall(r"(\w+): +(\d+) kB", text)}
    return sizes["MemAvailable"], sizes["MemTotal"]


def answer(engine: GenerationEngine, job: Job) -> Answers:
    """Greedy answers to all prompts."""
    adapter = {"adapter": ADAPTER} if job.path.adapter else {}
    requests = [{**prompt, **adapter} for prompt in job.prompts]
    results = engine.generate_text_batch(requests, {"max_new_tokens": job.tokens})
    texts = [render(engine, p["messages"]) if "messages" in p else "" for p in job.prompts]
    return Answers(
        engine.checkpoint.dtype,
        tuple(engine.checkpoint.eos_ids),
        tuple(texts),
        tuple(tuple(result.prompt_token_ids) for result in results),
        tuple(tuple(result.token_ids) for result in results),
    )


# == Another environment ==


def visit_elsewhere(job: Job) -> Visit:
    """The same job in another interpreter, over two files. Raises CannotRunThere where it fails."""
    here = dataclasses.replace(job, path=dataclasses.replace(job.path, python=""))
    model = str(Path(job.model).resolve()) if Path(job.model).exists() else job.model
    with tempfile.TemporaryDirectory(prefix="diff-") as folder, own_code() as variables:
        asked = Path(folder, "job.json")
        answered = Path(folder, "visit.json")
        asked.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(here, model=model))))
        words = ["-m", "parity.diff.worker", str(asked), str(answered)]
        ran = run_there(job.path.python, words, variables)
        if ran.code:
            raise CannotRunThere(f"{job.path.text}: {ran.last_words}")
        return visit_from(json.loads(answered.read_text()))


def answers_from(value: dict[str, Any] | None) -> Answers | None:
    if value is None:
        return None
    rows = {name: tuple(map(tuple, value[name])) for name in ("prompts", "ids")}
    return Answers(value["dtype"], tuple(value["eos"]), tuple(value["texts"]), **rows)


def visit_from(value: dict[str, Any]) -> Visit:
    answers = answers_from(value["answers"])
    assert answers is not None
    scores = [Scored(**{k: tuple(v) for k, v in one.items()}) for one in value["scores"]]
    return Visit(answers, scores, tuple(value["notes"]))


def job_from(value: dict[str, Any]) -> Job:
    path = EnginePath(**value["path"])
    known = {name: answers_from(value[name]) for name in ("first", "own")}
    return Job(path, value["model"], value["prompts"], value["tokens"], **known)


def main(asked: str, answered: str) -> None:
    job = job_from(json.loads(Path(asked).read_text()))
    Path(answered).write_text(json.dumps(dataclasses.asdict(visit(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
