"""The inference module for RL on the engine: the old class surface, and nothing of its own below it."""

from __future__ import annotations

import functools
from typing import Any

from gen_engine import GenerationEngine, load
from parity.companions.answer_cache import AnswerCache
from parity.companions.tool_calls import parse_tool_calls


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path, logits_hooks=True, cache=AnswerCache(size=1000))


class InferenceModule:
    def __init__(self, model_path: str) -> None:
        self.engine = engine(model_path)
        self.cache_hits = 0

    def generate(
        self,
        prompts: str | list[Any],
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        num_samples: int = 1,
        seed: int = 0,
        stop_sequences: list[str] | None = None,
        return_logprobs: bool = False,
        use_cache: bool = False,
        tools: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        options = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k or None,
            "n": num_samples,
            "logprobs": 0 if return_logprobs else None,
        }
        prompts = [prompts] if isinstance(prompts, str) else prompts
        requests = [{**_prompt(prompt, tools), "seed": seed + num_samples * k} for k, prompt in enumerate(prompts)]
        answers = self.engine.generate_text_batch(requests, options, cache=use_cache)
        self.cache_hits += sum(answer.cached for answer in answers)
        rows = [row for answer in answers for row in answer.samples or (answer,)]
        longest = max((row.completion_tokens for row in rows), default=0)
        pad = self.engine.tokenizer.pad_token_id  # callers make a tensor of these
        result: dict[str, Any] = {
            "texts": [_cut(row.text, stop_sequences or []) for row in rows],
            "token_ids": [[*row.token_ids, *[pad] * (longest - row.completion_tokens)] for row in rows],
        }
        if return_logprobs:
            result["logprobs"] = [list(row.logprobs or ()) for row in rows]
        return result

    def get_logits(self, prompts: list[str], responses: list[str]) -> list[Any]:
        """A tensor [response, vocabulary] for each: row t is what token t of the response was drawn from."""
        return [score.logits for score in self.engine.score_batch(list(zip(prompts, responses)), logits=True)]

    def get_logprobs(self, prompts: list[str], responses: list[str]) -> list[list[float]]:
        """Of each token of each response."""
        return [list(score.logprobs) for score in self.engine.score_batch(list(zip(prompts, responses)))]

    def batch_generate_with_tools(
        self, prompts: list[Any], tools: list[dict[str, Any]], max_new_tokens: int = 64
    ) -> list[dict[str, Any]]:
        texts = self.generate(prompts, max_new_tokens=max_new_tokens, tools=tools)["texts"]
        return [{"text": text, "tool_calls": self.parse_tool_calls(text)} for text in texts]

    def parse_tool_calls(self, text: str) -> list[dict[str, Any]]:
        """The well formed ones, as plain mappings."""
        fields = ("name", "arguments", "raw_text", "start", "end")
        calls = [call for call in parse_tool_calls(text) if call.error is None]
        return [{field: getattr(call, field) for field in fields} for call in calls]

    def clear_cache(self) -> None:
        if self.engine.cache is not None:
            self.engine.cache.clear()
        self.cache_hits = 0


def _prompt(prompt: Any, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """A string is raw text, unless there are tools for a template to write down."""
    if isinstance(prompt, str) and tools is None:
        return {"prompt": prompt}
    return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt, "tools": tools}


def _cut(text: str, stops: list[str]) -> str:
    """The old rule: before the stop that begins first."""
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text


@functools.cache
def create_inference_module(model_path: str) -> InferenceModule:
    return InferenceModule(model_path)


def generate(model_path: str, prompts: list[Any], **options: Any) -> dict[str, Any]:
    return create_inference_module(model_path).generate(prompts, **options)


def repeated(model_path: str, prompts: list[Any], times: int = 2, clear: bool = False) -> dict[str, Any]:
    """The same call several times over the cache: the last answer, and how many prompts the cache served."""
    module = create_inference_module(model_path)
    module.clear_cache()
    for _ in range(times):
        texts = module.generate(prompts, use_cache=True)["texts"]
    hits = module.cache_hits
    if clear:
        module.clear_cache()
        module.generate(prompts, use_cache=True)
        hits = module.cache_hits
    return {"texts": texts, "hits": hits}


def logprobs(model_path: str, prompts: list[str], responses: list[str]) -> list[list[float]]:
    return create_inference_module(model_path).get_logprobs(prompts, responses)


def logits(model_path: str, prompts: list[str], responses: list[str]) -> dict[str, Any]:
    """What fits on a page: the shape, and for each position the best token and its logit; zeros after a short one."""
    scores = create_inference_module(model_path).get_logits(prompts, responses)
    longest = max(len(score) for score in scores)
    best = [[*score.argmax(-1).tolist(), *[0] * (longest - len(score))] for score in scores]
    top = [[*score.max(-1).values.tolist(), *[0.0] * (longest - len(score))] for score in scores]
    return {"shape": [len(scores), longest, scores[0].shape[-1]], "best": best, "top": top}


def tools(model_path: str, prompts: list[Any], tools: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    return create_inference_module(model_path).batch_generate_with_tools(prompts, tools, **options)


def parse(model_path: str, text: str) -> list[dict[str, Any]]:
    return create_inference_module(model_path).parse_tool_calls(text)
