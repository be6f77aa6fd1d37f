"""`python -m parity.proof.soak`: one engine per backend, called by eight threads for an hour.

Mixed calls: greedy, seeded, several samples, structures, adapters, stops, scores, cached answers,
requests that are refused, plugins that raise, and calls that are given up half way. Each outcome is
compared with that of the same call alone, before the threads began; memory, file descriptors and
threads must not grow after the warm-up. Each backend has a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gen_engine import GenEngineError, GenerationEngine, GenerationResult, Plugin, load
from parity.companions.answer_cache import AnswerCache
from parity.models.tasks import text_tasks

EXAMPLE = """example:
  make soak SOAK="--minutes 10 --backend hf"
exit codes: 0 flat and right, 1 not, 2 usage
"""
BACKENDS = ("hf", "vllm")
MODELS = Path("golden/models")
ADAPTERS = {name: str(MODELS / "random-adapters" / name) for name in ("one", "two")}
SETTINGS: dict[str, Any] = {
    "hf": {"max_batch_size": 16},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 16}},
}
THREADS = 8
CACHED = 32  # answers that the cache holds: fewer than are asked, so that some are forgotten
PATIENCE = 300.0  # seconds in which one call at least must end
WARM_UP = 0.25  # of the time: allocators, caches of plans and grammars, and SQLite's files fill
SLICES = 12  # rows of the table
MOST_SAMPLES = 600

# What the end of a run may lie above the end of its warm-up. Idle processes of this kind move by
# some MiB as the allocator gives pages back; a leak of 1 KiB a call would be 40 MiB in an hour.
MEMORY_GROWTH = 24 << 20
FILE_GROWTH = 2
THREAD_GROWTH = 2


# == What is asked ==


class GivenUp(BaseException):
    """A caller that gives up a call half way; no `except Exception` holds it."""


class GivesUp(Plugin):
    name = "gives up"

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        if len(token_ids) >= 3:
            raise GivenUp
        return False


class Raises(Plugin):
    name = "raises"

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return len(token_ids) >= 3 and 1 / 0 > 0


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


CLOCK = re.compile(r"\[\d\d:\d\d:\d\d\] ")  # xgrammar's errors begin with the time


def essence(outcome: Any) -> Any:
    """What must be the same each time: ids and texts of answers, types and words of errors."""
    if isinstance(outcome, GenEngineError):
        return type(outcome).__name__, CLOCK.sub("", str(outcome))
    if isinstance(outcome, GenerationResult):
        samples = outcome.samples or (outcome,)
        return [(sample.token_ids, sample.text, sample.finish_reason) for sample in samples]
    return outcome.token_ids, [round(value, 3) for value in outcome.logprobs]


@dataclass(frozen=True)
class Job:
    """One call. verb: of the engine."""

    name: str
    given: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=lambda: {"max_new_tokens": 12})
    how: Mapping[str, Any] = field(default_factory=dict)
    verb: str = "generate_text_batch"

    def run(self, engine: GenerationEngine) -> Any:
        """The essence of what comes of it."""
        try:
            return [essence(outcome) for outcome in self._call(engine)]
        except GenEngineError as error:
            return essence(error)
        except GivenUp:
            return "given up"

    def _call(self, engine: GenerationEngine) -> Sequence[Any]:
        if self.verb == "score_batch":
            return engine.score_batch(list(self.given))
        how: dict[str, Any] = {"on_error": "return", "cache": False, **self.how}
        return engine.generate_text_batch(list(self.given), dict(self.options), **how)


def make_jobs() -> list[Job]:
    chats = [{"messages": task.messages} for task in text_tasks(60, seed=7)]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    structured = [
        chat("Name a colour.", structured={"choice": ["red", "green"]}),
        chat("Say a number.", structured={"regex": "[0-9]{2}"}),
        chat("Say JSON.", structured={"json": schema}),
    ]
    tuned = [chat("Count to 7.", adapter=name) for name in ("one", "two", None)]
    refused = [
        chat("Hi"),
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"prompt": "x " * 5000},
        chat("Hi", adapter="three"),
        chat("Hi", structured={"regex": "("}),
        {"prompt_token_ids": [10**9]},
        chat("Count to 9."),
    ]
    drawn = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 0.9, "seed": 11, "n": 2}
    stops = {"max_new_tokens": 24, "stop": ["3", "e ", "\n"], "logprobs": 2}
    jobs = [
        Job("stops", chats[:6], stops),
        Job("samples", chats[6:9], drawn),
        Job("structures", structured),
        Job("adapters", tuned),
        Job("refused rows", refused),
        Job("refused call", chats[:1], {"temperature": -1}),
        Job("raising plugin", chats[:3], how={"plugins": [Raises()]}),
        Job("given up", chats[:3], how={"plugins": [GivesUp()]}),
        Job("scores", [("The capital", " of France"), ("a b", " c")], verb="score_batch"),
    ]
    for first in range(12, 60, 4):
        rows = chats[first : first + 4]
        jobs.append(Job("plain", rows))
        jobs.append(Job("cached", rows, how={"cache": True}))
    return jobs


# == What is measured ==


@dataclass(frozen=True)
class Usage:
    """seconds: since the start.   memory: bytes resident, of this process and its children."""

    seconds: float
    calls: int
    memory: int
    files: int
    threads: int


def process_tree(process: int) -> Iterator[int]:
    yield process
    for task in Path(f"/proc/{process}/task").iterdir():
        children = task / "children"
        if children.exists():
            for child in children.read_text().split():
                yield from process_tree(int(child))


def usage(seconds: float, calls: int) -> Usage:
    memory = 0
    files = 0
    threads = 0
    for process in process_tree(os.getpid()):
        folder = Path(f"/proc/{process}")
        memory += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        files += len(os.listdir(folder / "fd"))
        threads += len(os.listdir(folder / "task"))
    return Usage(seconds, calls, memory, files, threads)


def median_of(samples: Sequence[Usage], name: str) -> float:
    values: list[float] = [getattr(sample, name) for sample in samples]
    return statistics.median(values)


def growth_problems(samples: Sequence[Usage]) -> list[str]:
    """What has grown after the warm-up, by the medians of the first and the last quarter of the
    time that is left."""
    steady = samples[int(len(samples) * WARM_UP) :]
    quarter = max(1, len(steady) // 4)
    limits = {"memory": MEMORY_GROWTH, "files": FILE_GROWTH, "threads": THREAD_GROWTH}
    problems = []
    for name, limit in limits.items():
        before = median_of(steady[:quarter], name)
        after = median_of(steady[-quarter:], name)
        if after - before > limit:
            problems.append(f"{name} grew from {before:,.0f} to {after:,.0f}")
    return problems


def table_of(samples: Sequence[Usage]) -> str:
    lines = [f"{'minute':>8}{'calls':>10}{'MiB':>10}{'files':>8}{'threads':>9}"]
    step = max(1, len(samples) // SLICES)
    for start in range(0, len(samples), step):
        part = samples[start : start + step]
        minute = f"{part[-1].seconds / 60:>8.1f}{part[-1].calls:>10,}"
        memory = f"{median_of(part, 'memory') / (1 << 20):>10,.1f}"
        counts = f"{median_of(part, 'files'):>8.0f}{median_of(part, 'threads'):>9.0f}"
        lines.append(minute + memory + counts)
    return "\n".join(lines)


# == A run ==


@dataclass
class Soak:
    """Threads at work on one engine. expected: what each job gives alone."""

    engine: GenerationEngine
    jobs: Sequence[Job]
    expected: Sequence[Any]
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, seconds: float) -> list[Usage]:
        """The usage over the time; it ends early where something is wrong."""
        threads = []
        for number in range(THREADS):
            threads.append(threading.Thread(target=self._work, args=[number], daemon=True))
            threads[-1].start()
        samples = self._watch(seconds)
        self.stopped.set()
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self._report(f"a call did not end in {PATIENCE:g} s")
        return samples

    def _watch(self, seconds: float) -> list[Usage]:
        began = time.monotonic()
        samples: list[Usage] = []
        moved = began
        told = began
        while (now := time.monotonic()) - began < seconds and not self.problems:
            calls = self.counts.total()
            if samples and calls != samples[-1].calls:
                moved = now
            if now - moved > PATIENCE:
                self._report(f"no call ended in {PATIENCE:g} s")
            samples.append(usage(now - began, calls))
            if now - told > 60:
                told = now
                print(table_of(samples[-1:]).splitlines()[-1], flush=True)
            self.stopped.wait(max(0.2, seconds / MOST_SAMPLES))
        return samples

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        while not self.stopped.is_set():
            index = chance.randrange(len(self.jobs))
            self._try(index)

    def _try(self, index: int) -> None:
        job = self.jobs[index]
        try:
            outcome = job.run(self.engine)
        except Exception as error:  # noqa: BLE001 - any error that is not the engine's own is a find
            self._report(f"{job.name}: {type(error).__name__}: {error}")
            return
        if outcome != self.expected[index]:
            text = f"{job.name}: {outcome!r:.500} is not what it was alone: "
            self._report(f"{text}{self.expected[index]!r:.500}")
        with self._lock:
            self.counts[job.name] += 1

    def _report(self, problem: str) -> None:
        with self._lock:
            self.problems.append(problem)


def soak(backend: str, seconds: float, seed: int) -> int:
    """The child's part: 0 flat and right, 1 not."""
    jobs = make_jobs()
    own = {"backend": backend, "max_model_len": 1024, "adapters": ADAPTERS, "progress": False}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cache = stack.enter_context(AnswerCache(Path(folder, "answers.sqlite"), CACHED))
        settings = {**own, **SETTINGS[backend], "cache": cache}
        engine = stack.enter_context(load(MODELS / "tiny-qwen3", **settings))
        expected = [job.run(engine) for job in jobs]
        work = Soak(engine, jobs, expected, seed)
        samples = work.run(seconds)
    print(f"\n{backend}: {work.counts.total():,} calls in {samples[-1].seconds / 60:.1f} minutes")
    print(table_of(samples))
    print(", ".join(f"{name} {count:,}" for name, count in sorted(work.counts.items())))
    problems = work.problems or growth_problems(samples)
    for problem in problems[:10]:
        print(f"{backend}: {problem}")
    print(f"{backend}: {'NOT flat and right' if problems else 'flat, and right throughout'}")
    return int(bool(problems))


def run(args: argparse.Namespace) -> int:
    if args.child:
        return soak(args.backend, args.minutes * 60, args.seed)
    code = 0
    for backend in [args.backend] if args.backend else BACKENDS:
        own = ["--backend", backend, "--minutes", str(args.minutes), "--seed", str(args.seed)]
        command = [sys.executable, "-m", "parity.proof.soak", "--child", *own]
        code = max(code, min(1, abs(subprocess.run(command, check=False).returncode)))
    return code


def minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < 24 * 60:
        raise argparse.ArgumentTypeError("give minutes above 0, less than a day")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    about: dict[str, Any] = {"description": __doc__, "epilog": EXAMPLE, "formatter_class": form}
    parser = argparse.ArgumentParser(prog="python -m parity.proof.soak", **about)
    add = parser.add_argument
    add("--minutes", type=minutes, default=60.0, metavar="N", help="for each backend (default 60)")
    add("--backend", choices=BACKENDS, help="default: both")
    add("--seed", type=int, default=0, help="of the order of calls")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
