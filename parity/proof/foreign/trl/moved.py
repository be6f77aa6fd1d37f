"""trl's helpers on the engine."""

from __future__ import annotations

from typing import Any

from parity.proof.foreign.engines import engine, sampling_defaults

TOKENS_OF_TRANSFORMERS = 20


def complete(
    model_path: str,
    dtype: str,
    prompts: list[Any],
    settings: dict[str, Any],
    batch_size: int = 2,
    torch_seed: int | None = None,
) -> list[str]:
    """batch_size is of no matter to the engine."""
    requests = [request_of(prompt) for prompt in prompts]
    options = options_of(model_path, settings)
    options["seed"] = torch_seed
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    return [result.text for result in results]


def request_of(prompt: Any) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    return {"messages": prompt, "chat": {"enable_thinking": True}}


def options_of(model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A GenerationConfig's fields, with what `generate` fills in from the checkpoint."""
    defaults = sampling_defaults(model_path)
    options: dict[str, Any] = {
        "max_new_tokens": settings.get("max_new_tokens", TOKENS_OF_TRANSFORMERS),
        "min_new_tokens": settings.get("min_new_tokens", 0),
        "repetition_penalty": settings.get("repetition_penalty", defaults.repetition_penalty),
        "no_repeat_ngram_size": settings.get("no_repeat_ngram_size"),
    }
    if settings.get("do_sample"):
        options["temperature"] = settings["temperature"]
        options["top_k"] = settings.get("top_k", defaults.top_k)
        options["top_p"] = settings.get("top_p", defaults.top_p)
    return options


def completion_logprobs(
    model_path: str, dtype: str, pairs: list[list[str]], temperature: float = 1.0
) -> list[list[float]]:
    model = engine(model_path, dtype)
    items = [item_of(model.tokenizer, prompt, completion) for prompt, completion in pairs]
    if temperature == 1.0:
        return [list(score.logprobs) for score in model.score_batch(items)]
    return [scaled(score, temperature) for score in model.score_batch(items, logits=True)]


def item_of(tokenizer: Any, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    prompt_ids = tokenizer(prompt).input_ids
    return prompt_ids, tokenizer(completion, add_special_tokens=False).input_ids


def scaled(score: Any, temperature: float) -> list[float]:
    import torch

    logprobs = (score.logits / temperature).log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(score.token_ids).unsqueeze(1))
    values: list[float] = chosen.squeeze(1).tolist()
    return values
