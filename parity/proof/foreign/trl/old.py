"""trl's helpers: completions as its callback makes them, log-probabilities as its trainers do."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from trl.data_utils import maybe_apply_chat_template
from trl.trainer.callbacks import _generate_completions
from trl.trainer.utils import pad, selective_log_softmax


@functools.cache
def loaded(model_path: str, dtype: str) -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype)
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path, padding_side="left")
    return model.eval(), tokenizer


@functools.cache
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def complete(
    model_path: str,
    dtype: str,
    prompts: list[Any],
    settings: dict[str, Any],
    batch_size: int = 2,
    torch_seed: int | None = None,
) -> list[str]:
    """prompts: chats or texts. settings: fields of a GenerationConfig."""
    model, tokenizer = loaded(model_path, dtype)
    texts = [
        maybe_apply_chat_template({"prompt": prompt}, tokenizer)["prompt"] for prompt in prompts
    ]
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    answers: list[str] = _generate_completions(
        prompts=texts,
        model=model,
        tokenizer=tokenizer,
        accelerator=accelerator(),
        generation_config=transformers.GenerationConfig(**settings),
        batch_size=batch_size,
    )
    return answers


def completion_logprobs(
    model_path: str, dtype: str, pairs: list[list[str]], temperature: float = 1.0
) -> list[list[float]]:
    """pairs: [prompt, completion], padded on the left and on the right, as its trainers pad."""
    model, tokenizer = loaded(model_path, dtype)
    prompt_ids = [torch.tensor(tokenizer(prompt).input_ids) for prompt, _ in pairs]
    completion_ids = [
        torch.tensor(tokenizer(said, add_special_tokens=False).input_ids) for _, said in pairs
    ]
    prompts = pad(prompt_ids, padding_value=tokenizer.pad_token_id, padding_side="left")
    completions = pad(completion_ids, padding_value=tokenizer.pad_token_id, padding_side="right")
    prompt_mask = pad([torch.ones_like(ids) for ids in prompt_ids], padding_side="left")
    completion_mask = pad([torch.ones_like(ids) for ids in completion_ids], padding_side="right")
    kept = completions.shape[1]
    with torch.no_grad():
        logits = model(
            input_ids=torch.cat([prompts, completions], dim=1),
            attention_mask=torch.cat([prompt_mask, completion_mask], dim=1),
        ).logits.float()  # as accelerate's mixed precision gives them
    scaled = logits[:, -kept - 1 : -1] / temperature
    logprobs = selective_log_softmax(scaled, completions)
    return [row[: len(ids)].tolist() for row, ids in zip(logprobs, completion_ids, strict=True)]
