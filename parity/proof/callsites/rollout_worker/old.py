"""Rollout worker for speculative decoding experiments: vLLM, stepped by hand, with per-step metrics."""

from __future__ import annotations

import csv
import os
import time
from typing import Any

from transformers import AutoTokenizer

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

_workers: dict[Any, Any] = {}


def _fixed_class(base: Any) -> Any:
    """Forces the recorded response, token by token."""

    def new_req_logits_processor(self: Any, params: Any) -> Any:
        fixed: Any = (params.extra_args or {}).get("fixed")

        def force(output_ids: list[int], logits: Any) -> Any:
            if len(output_ids) < len(fixed):
                logits.fill_(float("-inf"))
                logits[fixed[len(output_ids)]] = 0.0
            return logits

        return force if fixed else None

    members = {"is_argmax_invariant": lambda self: False, "new_req_logits_processor": new_req_logits_processor}
    return type("FixedResult", (base,), members)


class RolloutWorker:
    def __init__(self, model_path: str, worker_id: int, spec_tokens: int, draft: str | None, batch: int) -> None:
        from vllm import LLM

        self.worker_id = worker_id
        self.spec = spec_tokens > 0
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        extra: dict[str, Any] = {}
        if self.spec:
            config = {"num_speculative_tokens": spec_tokens, "method": "draft_model" if draft else "ngram"}
            config |= {"model": draft} if draft else {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
            extra = {"speculative_config": config, "per_request_spec_decode_metrics": "detailed"}
        else:
            from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

            # vLLM does not load with both, so no fixed results while speculating (TODO)
            extra = {"logits_processors": [_fixed_class(AdapterLogitsProcessor)]}
        self.llm = LLM(
            model=model_path,
            dtype="float32",
            max_model_len=1024,
            max_num_seqs=batch,
            enforce_eager=True,
            num_gpu_blocks_override=64,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **extra,
        )

    def rollout(
        self, prompts: list[str], out_dir: str, max_tokens: int, fixed: Any, **sampling: Any
    ) -> list[dict[str, Any]]:
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        started, prompt_lens = time.perf_counter(), {}
        for i, prompt in enumerate(prompts):
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            prompt_lens[str(i)] = len(ids)
            params = SamplingParams(max_tokens=max_tokens, **sampling)
            if fixed:
                params.max_tokens = len(fixed[i])
                params.extra_args = {"fixed": list(fixed[i])}
            engine.add_request(str(i), {"prompt_token_ids": ids}, params)

        perf: list[Any] = []
        markov: list[Any] = []
        done, seen = {}, dict.fromkeys(prompt_lens, 0)
        first = last = None
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            first = first or now
            interval = (now - (last or started)) * 1000
            last, tokens = now, 0
            for output in outputs:
                new = len(output.outputs[0].token_ids) - seen[output.request_id]
                seen[output.request_id] += new
                tokens += new
                markov.append([new, 0, 1, len(perf), output.request_id])  # drafts per step are not known here
                if output.finished:
                    done[output.request_id] = (output, now - started)
            batch = max(1, len(outputs))
            perf.append([tokens / batch / interval * 1000, tokens, tokens / batch, batch, now - first, interval,
                         0, 0.0, interval, 0.0])  # fmt: skip
        return self._finish(done, prompt_lens, perf, markov, out_dir)

    def _finish(self, done: Any, prompt_lens: Any, perf: Any, markov: Any, out_dir: str) -> list[dict[str, Any]]:
        results, request = [], []
        for name in sorted(done, key=int):
            output, took = done[name]
            completion = output.outputs[0]
            metrics = getattr(completion, "spec_decode_metrics", None)
            drafted = metrics.num_draft_tokens if metrics else 0
            matched = sum(k * n for k, n in enumerate(metrics.histogram)) if metrics else 0
            steps = sum(row[4] == name for row in markov)
            ids = list(completion.token_ids)
            rate = matched / drafted if drafted else 0.0
            request.append([name, took, steps, prompt_lens[name], len(ids), rate, matched, drafted, matched])
            results.append({"text": completion.text, "token_ids": ids, "drafted": drafted, "matched": matched})
        os.makedirs(out_dir, exist_ok=True)
        self._write(out_dir, "perf", "step_tgs,step_tokens,cur_acc_len,step_batchsize,step_ts,step_interval,"
                    "draft_nstep,draft_time,verify_time,idle_time", perf)  # fmt: skip
        self._write(out_dir, "request", "req_id,rollout_time,rollout_step,prompt_length,response_length,"
                    "spec_accept_rate,spec_matched_total,spec_draft_total,spec_accepted_total",
                    sorted(request, key=lambda row: (row[4], int(row[0]))))  # fmt: skip
        self._write(out_dir, "markov", "acc_token_num,draft_token_num,verify_token_num,cur_step,req_id",
                    sorted(markov, key=lambda row: (int(row[4]), row[3])))  # fmt: skip
        return results

    def _write(self, out_dir: str, kind: str, header: str, rows: list[list[Any]]) -> None:
        with open(os.path.join(out_dir, f"worker_{self.worker_id}_{kind}.csv"), "w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(header.split(","))
            writer.writerows(rows)


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
    key = (model_path, worker_id, spec_tokens, draft, batch)
    if key not in _workers:
        _workers[key] = RolloutWorker(*key)
    sampling = {"temperature": temperature, "seed": seed}
    results: list[dict[str, Any]] = _workers[key].rollout(prompts, out_dir, max_tokens, fixed, **sampling)
    return results
