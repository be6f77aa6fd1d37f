"""The notebook's calls on the engine: all rows of a call in one batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from gen_engine import GenerationEngine, load

PLACES = 3  # rows at a time, so that rows of a case join those that are under way
OPTIONS = {
    "max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "n", "logprobs",
}  # fmt: skip


@functools.cache
def engine(model_path: str, dtype: str, hooks: bool, cached: bool) -> GenerationEngine:
    cache: dict[str, str] | None = {} if cached else None
    return load(model_path, dtype=dtype, max_batch_size=PLACES, logits_hooks=hooks, cache=cache)


def request_of(row: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {"seed": how.get("seed", 0)}
    if "messages" in row:
        chat = {"enable_thinking": how.get("thinking", False), "add_generation_prompt": how.get("opening", True)}
        request |= {"messages": row["messages"], "chat": {**chat, "template": how.get("template")}}
        request |= {"tools": row.get("tools"), "continue_final": bool(row.get("continue"))}
    else:
        request["prompt"] = row["prompt"]
    if row.get("images"):
        request["images"] = row["images"]
        if pixels := how.get("pixels"):
            request["vlm"] = {"min_pixels": pixels["shortest_edge"], "max_pixels": pixels["longest_edge"]}
    if how.get("form"):
        request["structured"] = how["form"]
    return request


def options_of(how: Mapping[str, Any]) -> dict[str, Any]:
    stop = {"strings": how.get("stop", ()), "include_stop": how.get("include_stop", False)}
    stop |= {"token_ids": how.get("stop_ids", ()), "ignore_eos": bool(how.get("go_on"))}
    decode = {"skip_special_tokens": how.get("skip_special", True), "strip": bool(how.get("strip"))}
    decode["clean_up_tokenization_spaces"] = how.get("clean_up", False)
    cut = {"max_prompt_tokens": how["keep_last"], "truncate_prompt": True} if how.get("keep_last") else {}
    own = {name: how[name] for name in OPTIONS & how.keys()}
    return {"max_new_tokens": 24, **own, **cut, "stop": stop, "decode": decode}


class Without:
    """A plugin that never lets these ids be chosen."""

    name = "without"

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        logits[self.ids] = -float("inf")
        return logits


def told(result: Any, how: Mapping[str, Any]) -> dict[str, Any]:
    said = {"text": result.text, "tokens": result.completion_tokens, "prompt": result.prompt_tokens}
    said |= {"reason": result.finish_reason, "stop": result.stop_reason}
    if "logprobs" in how:
        said["logprobs"] = list(result.logprobs)
        said["top"] = [{str(i): v for i, v in best.items()} for best in result.top_logprobs or () if best]
    return said


def ask(
    model_path: str, rows: list[dict[str, Any]], settings: dict[str, Any], cached: bool = False
) -> list[list[dict[str, Any]]]:
    banned = settings.get("banned", ())
    model = engine(model_path, settings.get("dtype", "float32"), bool(banned), cached)
    requests = [request_of(row, {**settings, **row}) for row in rows]
    generate = model.generate_vlm_batch if any(row.get("images") for row in rows) else model.generate_text_batch
    results = generate(requests, options_of(settings), plugins=[Without(banned)] if banned else ())
    return [[told(sample, settings) for sample in result.samples or (result,)] for result in results]


def ask_often(model_path: str, calls: list[dict[str, Any]]) -> list[list[list[dict[str, Any]]]]:
    """Several calls in a row over one cache, which answers none of them for another."""
    dtype = calls[0]["settings"].get("dtype", "float32")
    cache = engine(model_path, dtype, False, True).cache
    assert cache is not None
    cache.clear()
    return [ask(model_path, call["rows"], call["settings"], cached=True) for call in calls]


def score(model_path: str, pairs: list[dict[str, Any]], dtype: str = "float32") -> list[dict[str, Any]]:
    """Log-probability of each token of each given response."""
    model = engine(model_path, dtype, False, False)
    requests = [({k: v for k, v in request_of(pair, pair).items() if k != "seed"}, pair["response"]) for pair in pairs]
    return [{"tokens": len(s.token_ids), "logprobs": list(s.logprobs)} for s in model.score_batch(requests)]
