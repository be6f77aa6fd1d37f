"""Stage B runner: let the model propose rules, one per line."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

END_OF_TURN = "<|im_end|>"

_model: Any = None
_tokenizer: Any = None
_path: str | None = None


def _load(model_path: str) -> tuple[Any, Any]:
    global _model, _tokenizer, _path
    if _path != model_path:
        _tokenizer = AutoTokenizer.from_pretrained(model_path)
        _tokenizer.padding_side = "left"
        _model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        _model.eval()
        _path = model_path
    return _model, _tokenizer


def _rules(text: str, stop: list[str], max_rules: int | None) -> list[str]:
    text = text.split(END_OF_TURN)[0]
    for s in stop:
        text = text.split(s)[0]
    lines = [line.strip().lstrip("-*").strip() for line in text.split("\n")]
    rules = [line for line in lines if line]
    return rules if max_rules is None else rules[:max_rules]


@torch.no_grad()  # type: ignore[untyped-decorator]
def propose_rules(
    model_path: str,
    prompts: list[str],
    system: str | None = None,
    stop: list[str] | None = None,
    max_new_tokens: int = 64,
    max_rules: int | None = None,
    thinking: bool = False,
) -> list[list[str]]:
    model, tokenizer = _load(model_path)
    texts = []
    for prompt in prompts:
        messages = [{"role": "user", "content": prompt.strip()}]
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        texts.append(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
            )
        )
    inputs = tokenizer(texts, return_tensors="pt", padding="longest", add_special_tokens=False)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        stop_strings=stop or None,
    )
    generated = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        generation_config=config,
        tokenizer=tokenizer,
    )
    new_tokens = generated[:, inputs["input_ids"].size(1) :]
    # special tokens are kept, to see where the turn ends
    decoded = tokenizer.batch_decode(new_tokens, skip_special_tokens=False)
    return [_rules(text.replace(tokenizer.pad_token, ""), stop or [], max_rules) for text in decoded]


def propose_one(model_path: str, prompt: str, **options: Any) -> str:
    """The first rule, or an empty string."""
    [rules] = propose_rules(model_path, [prompt], max_rules=1, **options)
    return rules[0] if rules else ""
