"""`python -m parity schedule`: what vLLM's scheduler does, asked of three short traced runs with small limits.

    python -m parity schedule                       # the tiny checkpoint, half a minute
    python -m parity schedule --out build/schedule  # also keeps the traces, for `python -m parity trace`

Twelve requests of 100 prompt tokens and 60 new ones, three times: with room for all (ample), with max_num_seqs=4 and
max_num_batched_tokens=64 (limits), and with a KV cache of 8 blocks of 128 tokens (memory). What it prints is the same
each time, for all of it is counted and nothing timed; with vLLM 0.32 on a CPU:

  run     steps  most_running  most_waiting  most_computed  idle_running  read_in_parts  gaps  preempted  kv_max  tokens
  ample      60            12             0           1200             0              0     0          0    38 %     720
  limits    189             4            11             64             0             16     0          0    13 %     720
  memory    151             8             8            800             0              0   124          4   100 %     720

- Each running request advances in each step: 12 of 12 in all of 60 steps; `idle_running` counts exceptions, 0.
- max_num_seqs bounds the requests that run (4 at most, 11 waited); max_num_batched_tokens the tokens that a step
  computes, prompts and answers together (64 at most), so that a prompt of 100 is read in parts (`read_in_parts`)
  while those that answer miss no step (`gaps` 0).
- When the KV cache is full (100 %), new requests wait (8) though 64 might run, and running ones are preempted (4
  times): they give their blocks back, wait, and are read again (`gaps`: 124 request-steps without a token). More rows
  do not help: it took 151 steps in place of 60. The answers are the same ids in all three runs.

`--decoupled` asks another question, of a simulator: when it pays to guess on workers of their own (rollout/overlap.py).

    python -m parity schedule --decoupled                   # costs of a step assumed, and said
    python -m parity schedule --decoupled --costs rollouts  # as a trace that guessed measured them

Exit codes: 0 every answer holds, 1 one does not, 2 usage, 3 vLLM cannot be run, or a trace not be read.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen_engine import GenEngineError, load
from parity.companions.rollout import Trace, trace
from parity.environment.libraries import clone_file
from parity.environment.output_paths import folder_to_write
from parity.rollout import overlap
from parity.rollout.report import UnreadableTrace, table

MODEL = "golden/models/tiny-qwen3"
REQUESTS, PROMPT, ANSWER = 12, 100, 60  # how many, and tokens of each
LIMITS: dict[str, dict[str, int]] = {
    "ample": {"max_num_seqs": 64, "num_gpu_blocks_override": 64},
    "limits": {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 64},
    "memory": {"max_num_seqs": 64, "num_gpu_blocks_override": 9},  # vLLM keeps one of them for itself
}


@dataclass(frozen=True)
class Run:
    """What one run showed. idle_running: request-steps in which a running request, its prompt read, got no token.

    read_in_parts: request-steps in which a running request was still reading its prompt.   gaps: steps without a token
    between a request's first and last one; while it was preempted, or passed over.
    """

    steps: int
    most_running: int
    most_waiting: int
    most_computed: int
    idle_running: int
    read_in_parts: int
    gaps: int
    preempted: int
    kv_max: str
    tokens: int


@contextlib.contextmanager
def counted(scheduler: Any) -> Iterator[list[dict[str, int]]]:
    """What each step computes: internal request id -> tokens."""
    schedule, steps = scheduler.schedule, []

    def act(*args: Any) -> Any:
        output = schedule(*args)
        if output.total_num_scheduled_tokens:
            steps.append(dict(output.num_scheduled_tokens))
        return output

    scheduler.schedule = act
    yield steps
    del scheduler.schedule


def run_once(directory: Path, limits: dict[str, int]) -> tuple[Run, list[tuple[int, ...]]]:
    """The same requests under these limits: what was counted, and the answers."""
    requests = [{"prompt_token_ids": [20 + (7 * k + i) % 400 for i in range(PROMPT)]} for k in range(REQUESTS)]
    options = {"max_new_tokens": ANSWER, "stop": {"ignore_eos": True}}
    kwargs = {"enable_prefix_caching": False, **limits}
    with load(clone_file(MODEL), backend="vllm", max_model_len=512, vllm_kwargs=kwargs) as engine:
        core = engine.model.llm_engine.engine_core.engine_core
        with counted(core.scheduler) as computed, trace(engine, directory) as traced:
            results = engine.generate_text_batch(requests, options)
    return look(traced, computed), [result.token_ids for result in results]


def look(traced: Trace, computed: Sequence[dict[str, int]]) -> Run:
    """Count in a trace, beside what each of its steps computed."""
    idle = reading = 0
    for step, tokens in zip(traced.steps, computed):
        missed = int(step.view["running"]) - len(step.advances)
        partly = len(tokens) - len(step.advances)  # computed something, and got no token: still reading
        reading += partly
        idle += missed - partly
    places: dict[int, list[int]] = {}
    for number, k, _ in traced.advances():
        places.setdefault(number, []).append(k)
    return Run(
        steps=len(traced.steps),
        most_running=int(max(step.view["running"] for step in traced.steps)),
        most_waiting=int(max(step.view["waiting"] for step in traced.steps)),
        most_computed=max(sum(tokens.values()) for tokens in computed),
        idle_running=idle,
        read_in_parts=reading,
        gaps=sum(own[-1] - own[0] + 1 - len(own) for own in places.values()),
        preempted=int(sum(step.view["preempted"] for step in traced.steps)),
        kv_max=f"{100 * max(step.view['kv_cache_usage'] for step in traced.steps):.0f} %",
        tokens=sum(step.tokens for step in traced.steps),
    )


def answers(runs: dict[str, Run], same: bool) -> list[tuple[bool, str]]:
    """(it holds, sentence) of what people ask."""
    ample, limits, memory = runs["ample"], runs["limits"], runs["memory"]
    return [
        (
            ample.idle_running == ample.gaps == 0,
            "Does each running request advance in each step? Yes: once its prompt is read, a running request got a "
            f"token in every one of {ample.steps} steps ({ample.idle_running} exceptions).",
        ),
        (
            limits.most_running <= 4 and limits.idle_running == 0,
            f"max_num_seqs=4 bounds the requests that run: {limits.most_running} at most, while "
            f"{limits.most_waiting} waited.",
        ),
        (
            limits.most_computed <= 64 and limits.read_in_parts > 0 and limits.gaps == 0,
            "max_num_batched_tokens=64 bounds the tokens that a step computes, prompts and answers together: "
            f"{limits.most_computed} at most. A prompt of {PROMPT} is read in parts ({limits.read_in_parts} times a "
            "request ran and got no token yet); those that answer are served first and miss no step.",
        ),
        (
            memory.preempted > 0 and memory.gaps > 0 and memory.most_waiting > 0 and memory.idle_running == 0,
            f"A full KV cache ({memory.kv_max} used): {memory.most_waiting} requests waited though 64 might run; "
            f"{memory.preempted} times a running one was preempted, gave its blocks back and waited, {memory.gaps} "
            "request-steps in all. No running request stood still.",
        ),
        (
            same and memory.tokens == REQUESTS * ANSWER,
            f"What was preempted is read again and its tokens are not repeated: {memory.tokens} tokens came, and the "
            "answers are the same ids in all three runs.",
        ),
    ]


def report(out: Path) -> int:
    """Run all three, print the table and the answers."""
    runs, ids = {}, []
    for name, limits in LIMITS.items():
        runs[name], said = run_once(out / name, limits)
        ids.append(said)
    print(table({name: dict(vars(run)) for name, run in runs.items()}, "run"))
    found = answers(runs, all(said == ids[0] for said in ids))
    print()
    for holds, sentence in found:
        print(("" if holds else "DOES NOT HOLD: ") + sentence)
    return 0 if all(holds for holds, _ in found) else 1


def add_schedule(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "schedule",
        help="what vLLM's scheduler does, in three small runs",
        description=__doc__,
        epilog="example: python -m parity schedule --out build/schedule",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=folder_to_write, help="keep the traces here; with --decoupled the picture (build/schedule)"
    )
    parser.add_argument("--decoupled", action="store_true", help="simulate when guessing apart pays; runs no model")
    parser.add_argument("--costs", type=Path, metavar="DIR", help="with --decoupled: a trace that guessed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 every answer holds, 1 one does not, 2 usage, 3 vLLM cannot be run, or a trace not be read."""
    if args.costs is not None and not args.decoupled:
        raise ValueError("--costs goes with --decoupled")
    for name, value in (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_LOGGING_LEVEL", "ERROR")):
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")  # of the libraries among themselves
    logging.disable(logging.WARNING)
    try:
        if args.decoupled:
            return overlap.report(args.out or Path("build/schedule"), args.costs)
        if args.out is not None:
            return report(args.out)
        with tempfile.TemporaryDirectory() as directory:
            return report(Path(directory))
    except (GenEngineError, UnreadableTrace, OSError) as error:
        print(f"parity schedule: {error}", file=sys.stderr)
        return 3
