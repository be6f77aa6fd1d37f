"""trl: completions as its callback makes them, log-probabilities as its trainers read them."""

from __future__ import annotations

import functools
from typing import Any

from parity.proof.foreign.engines import as_generate, engine
from parity.proof.foreign.material import REAL, TINY, Case, Mistake
from parity.proof.foreign.prompts import ARITHMETIC, chat, chats, contexts


@functools.cache
def loaded(model_path: str, dtype: str) -> tuple[Any, Any]:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype)
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path, padding_side="left")
    return model.eval(), tokenizer


@functools.cache
def accelerator() -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def old_complete(
    model_path: str,
    dtype: str,
    prompts: list[Any],
    settings: dict[str, Any],
    batch_size: int = 2,
    torch_seed: int | None = None,
) -> list[str]:
    """prompts: chats or texts. settings: fields of a GenerationConfig."""
    import torch
    import transformers
    from trl.data_utils import maybe_apply_chat_template
    from trl.trainer.callbacks import _generate_completions

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
    options = {**as_generate(model_path, **settings), "seed": torch_seed}
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    return [result.text for result in results]


def request_of(prompt: Any) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    return {"messages": prompt, "chat": {"enable_thinking": True}}


def old_completion_logprobs(
    model_path: str, dtype: str, pairs: list[list[str]], temperature: float = 1.0
) -> list[list[float]]:
    """pairs: [prompt, completion], padded on the left and on the right, as its trainers pad."""
    import torch
    from trl.trainer.utils import pad, selective_log_softmax

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


def completion_logprobs(
    model_path: str, dtype: str, pairs: list[list[str]], temperature: float = 1.0
) -> list[list[float]]:
    model = engine(model_path, dtype)
    items = [
        (
            model.tokenizer(prompt).input_ids,
            model.tokenizer(said, add_special_tokens=False).input_ids,
        )
        for prompt, said in pairs
    ]
    return [list(score.logprobs) for score in model.score_batch(items, temperature=temperature)]


def cases(dtype: str) -> list[Case]:
    greedy = {"do_sample": False, "max_new_tokens": 32}
    sampled = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "max_new_tokens": 24}
    limited = {**greedy, "min_new_tokens": 12, "max_new_tokens": 24, "no_repeat_ngram_size": 3}
    texts, one = contexts(dtype), [chat("Is 17 even?", None)]
    said = (
        "The capital of France is Paris.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.",
        "apple, pear, plum",
        "17 is odd.",
    )
    pairs = [list(pair) for pair in zip(texts, said)]
    uneven = {"prompts": [*texts, ARITHMETIC], "settings": greedy, "batch_size": 3}
    seeded = {"prompts": one, "settings": sampled, "torch_seed": 42}
    return [
        Case("chats", "complete", {"prompts": chats(), "settings": greedy}),
        Case("texts", "complete", uneven),
        Case("limited", "complete", {"prompts": texts, "settings": limited}),
        Case("unsaid", "complete", {"prompts": texts[:2], "settings": {"do_sample": False}}),
        Case("sampled", "complete", {"prompts": chats(), "settings": sampled}),
        Case("sampled-seeded", "complete", seeded),
        Case("logprobs", "completion_logprobs", {"pairs": pairs}),
        Case("logprobs-warm", "completion_logprobs", {"pairs": pairs, "temperature": 0.7}),
    ]


SAID = "as_generate(model_path, **settings)"
CHAT = '{"enable_thinking": True}'
SCORES = "[list(score.logprobs) for"
TEXTS = "[result.text for result in results]"
MISTAKES = (
    Mistake(
        "texts-as-chats",
        "texts",
        "prompt",
        '{"prompt": prompt}\n    return',
        '{"messages": [{"role": "user", "content": prompt}]}\n    return',
    ),
    Mistake(
        "no-generation-prompt",
        "chats",
        "prompt",
        CHAT,
        '{"enable_thinking": True, "add_generation_prompt": False}',
    ),
    Mistake("vllm-budget", "unsaid", "stop", SAID, f'{SAID}, "max_new_tokens": 16'),
    Mistake(
        "minimum-lost",
        "limited",
        "stop sampling",
        SAID,
        f'{SAID}, "min_new_tokens": 0',
        dtypes=TINY,
    ),
    Mistake("ngrams-lost", "limited", "sampling", SAID, f'{SAID}, "no_repeat_ngram_size": None'),
    Mistake(
        "penalty-lost", "chats", "sampling", SAID, f'{SAID}, "repetition_penalty": 1.0', dtypes=TINY
    ),
    Mistake(
        "penalty-brought",
        "chats",
        "sampling",
        SAID,
        f'{SAID}, "repetition_penalty": 1.1',
        dtypes=REAL,
    ),
    Mistake("top-p-lost", "sampled", "sampling", SAID, f'{SAID}, "top_p": 1.0'),
    Mistake(
        "another-seed",
        "sampled-seeded",
        "sampling",
        '"seed": torch_seed}',
        '"seed": torch_seed and torch_seed + 1}',
        dtypes=REAL,
    ),
    Mistake(
        "bos-of-the-completion",
        "logprobs",
        "prompt",
        "model.tokenizer(said, add",
        'model.tokenizer(" " + said, add',
    ),
    Mistake(
        "temperature-lost",
        "logprobs-warm",
        "value calls sampling",
        "items, temperature=temperature",
        "items",
    ),
    Mistake(
        "first-token-lost",
        "logprobs",
        "value calls",
        SCORES,
        "[list(score.logprobs)[1:] for",
        dtypes=TINY,
    ),
    Mistake(
        "stripped",
        "texts",
        "value decode",
        TEXTS,
        "[result.text.strip() for result in results]",
        dtypes=REAL,
    ),
)
