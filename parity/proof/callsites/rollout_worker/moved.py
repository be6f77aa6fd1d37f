"""The rollout worker on the engine, alone or as a group of Ray actors.

worker = RolloutWorker("golden/models/tiny-qwen3", worker_id=0, spec_tokens=4)
results = worker.rollout(["Count to 9."], "rollouts")      # writes rollouts/worker_0_*.csv

with RolloutGroup("golden/models/tiny-qwen3", workers=2) as group:      # needs ray
    results = group.rollout(prompts, "rollouts")      # python -m parity trace rollouts: who held up the rest

with DecoupledGroup("golden/models/tiny-qwen3", spec_tokens=3, verifiers=2, drafters=2) as group:      # the same, and
    results = group.rollout(prompts, "rollouts")      # rollouts/moves.csv: guesses are made apart, requests move
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gen_engine import GenerationEngine, ModelLoadConfig, load
from parity.companions.decoupled import Decoupled
from parity.companions.rollout import Trace, trace
from parity.companions.speculation import Speculation


def speculation(spec_tokens: int, draft: str | None) -> Speculation | None:
    if not spec_tokens:
        return None
    return Speculation("draft_model" if draft else "ngram", num_tokens=spec_tokens, model=draft)


def config(
    model_path: str, backend: Any, spec_tokens: int, draft: str | None, fixed: bool, batch: int
) -> ModelLoadConfig:
    """Fixed results need vLLM's logits hook, which it neither takes nor needs while it guesses."""
    own = {"vllm_kwargs": {"max_num_seqs": batch, "num_gpu_blocks_override": 64}}
    return ModelLoadConfig(
        model_path,
        backend=backend,
        max_model_len=1024,
        decoder=speculation(spec_tokens, draft),
        logits_hooks=fixed and not spec_tokens,
        **(own if backend == "vllm" else {"max_batch_size": batch}),
    )


def asked(
    prompts: Sequence[str], max_tokens: int, fixed: Sequence[Sequence[int]] | None, **sampling: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Requests and options."""
    options: dict[str, Any] = {"max_new_tokens": max_tokens, **sampling}
    if fixed is not None:
        options |= {"replay": fixed, "max_new_tokens": max(map(len, fixed))}
    return [{"messages": [{"role": "user", "content": prompt}]} for prompt in prompts], options


class RolloutWorker:
    """Prompts in, answers and three files out; with `fixed`, each answer is the recorded one, or the call fails."""

    def __init__(
        self,
        model_path: str,
        worker_id: int = 0,
        spec_tokens: int = 0,
        draft: str | None = None,
        batch: int = 4,
        backend: str = "vllm",
        fixed: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self.engine: GenerationEngine = load(config(model_path, backend, spec_tokens, draft, fixed, batch))

    def rollout(
        self,
        prompts: Sequence[str],
        out_dir: str,
        max_tokens: int = 64,
        fixed: Sequence[Sequence[int]] | None = None,
        **sampling: Any,
    ) -> list[dict[str, Any]]:
        with trace(self.engine, out_dir, self.worker_id) as traced:
            results = self.engine.generate_text_batch(*asked(prompts, max_tokens, fixed, **sampling))
        return [
            {"text": result.text, "token_ids": list(result.token_ids), **counts}
            for result, counts in zip(results, guesses(traced))
        ]

    def close(self) -> None:
        self.engine.close()


def guesses(traced: Trace) -> list[dict[str, int]]:
    """Per request, in order: guesses judged, and guesses that the model agreed with."""
    counts = [{"drafted": 0, "matched": 0} for _ in traced.requests]
    for number, _, got in traced.advances():
        counts[number]["drafted"] += got.drafted
        counts[number]["matched"] += got.matched
    return counts


class RolloutGroup:
    """N workers, each an actor of its own on Ray; prompts are dealt to them in turn, results come back in order.

    resources: Ray's options for one actor, such as {"num_gpus": 1}.   settings: RolloutWorker's.
    """

    def __init__(
        self, model_path: str, workers: int, *, resources: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.ray = importlib.import_module("ray")
        root = str(Path(__file__).parents[4])  # actors are processes that have not seen our path
        actor = self.ray.remote(RolloutWorker).options(
            runtime_env={"env_vars": {"PYTHONPATH": root}}, **(resources or {"num_cpus": 1})
        )
        self.workers = [actor.remote(model_path, worker_id=number, **settings) for number in range(workers)]

    def rollout(
        self, prompts: Sequence[str], out_dir: str, max_tokens: int = 64, fixed: Sequence[Sequence[int]] | None = None
    ) -> list[dict[str, Any]]:
        """All answers, in the order of the prompts; each worker that had some leaves its three files in `out_dir`."""
        step = len(self.workers)
        calls = [
            worker.rollout.remote(
                list(prompts[k::step]), out_dir, max_tokens, None if fixed is None else list(fixed[k::step])
            )
            for k, worker in enumerate(self.workers)
            if prompts[k::step]
        ]
        parts = self.ray.get(calls)
        return [parts[place % step][place // step] for place in range(len(prompts))]

    def close(self) -> None:
        for worker in self.workers:
            self.ray.kill(worker)

    def __enter__(self) -> RolloutGroup:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DecoupledGroup(Decoupled):
    """The same on verifiers and drafters of their own, each an actor; on hf. how: Decoupled's."""

    def __init__(self, model_path: str, spec_tokens: int, draft: str | None = None, batch: int = 4, **how: Any) -> None:
        settings = {"max_model_len": 1024, "max_batch_size": batch, "progress": False}
        super().__init__(model_path, speculation(spec_tokens, draft), **{**settings, **how})

    def rollout(
        self, prompts: Sequence[str], out_dir: str, max_tokens: int = 64, fixed: Sequence[Sequence[int]] | None = None
    ) -> list[dict[str, Any]]:
        """All answers, in the order of the prompts; each verifier leaves its three files in `out_dir`."""
        with self.traced(out_dir, Trace):
            results = self.generate_text_batch(*asked(prompts, max_tokens, fixed))
        return [{"text": result.text, "token_ids": list(result.token_ids)} for result in results]


@functools.cache
def worker(
    model_path: str, worker_id: int, spec_tokens: int, draft: str | None, batch: int, fixed: bool
) -> RolloutWorker:
    return RolloutWorker(model_path, worker_id, spec_tokens, draft, batch, fixed=fixed)


def rollout(
    model_path: str,
    prompts: list[str],
    out_dir: str,
    spec_tokens: int = 0,
    draft: str | None = None,
    fixed: list[list[int]] | None = None,
    max_tokens: int = 64,
    worker_id: int = 0,
    batch: int = 4,
    temperature: float = 0.0,
    seed: int | None = None,
) -> list[dict[str, Any]]:
    own = worker(model_path, worker_id, spec_tokens, draft, batch, fixed is not None)
    return own.rollout(prompts, out_dir, max_tokens, fixed, temperature=temperature, seed=seed)
