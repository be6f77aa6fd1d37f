"""Mistakes that somebody who moves trl's helpers could make: ten for each dtype."""

from __future__ import annotations

from parity.proof.foreign.material import Mistake

RETURNED = "    return [result.text for result in results]"
TINY = ("float32",)
REAL = ("bfloat16",)

MISTAKES = (
    Mistake(
        "texts-as-chats",
        "Makes a chat of prompts that are texts already.",
        '        return {"prompt": prompt}\n',
        '        return {"messages": [{"role": "user", "content": prompt}]}\n',
        ("prompt",),
        ("texts",),
    ),
    Mistake(
        "no-generation-prompt",
        "Renders the chats without the opening of the assistant's turn.",
        '"chat": {"enable_thinking": True}}',
        '"chat": {"enable_thinking": True, "add_generation_prompt": False}}',
        ("prompt",),
        ("chats",),
    ),
    Mistake(
        "vllm-budget",
        "Takes vLLM's default of 16 tokens for transformers' 20.",
        "TOKENS_OF_TRANSFORMERS = 20",
        "TOKENS_OF_TRANSFORMERS = 16",
        ("stop",),
        ("unsaid",),
    ),
    Mistake(
        "minimum-lost",
        "Does not say min_new_tokens.",
        '        "min_new_tokens": settings.get("min_new_tokens", 0),\n',
        "",
        ("stop", "sampling"),
        ("limited",),
        dtypes=TINY,
    ),
    Mistake(
        "ngrams-lost",
        "Does not say no_repeat_ngram_size.",
        '        "no_repeat_ngram_size": settings.get("no_repeat_ngram_size"),\n',
        "",
        ("sampling",),
        ("limited",),
    ),
    Mistake(
        "penalty-lost",
        "Does not say the repetition penalty that stands in the checkpoint.",
        'settings.get("repetition_penalty", defaults.repetition_penalty)',
        'settings.get("repetition_penalty", 1.0)',
        ("sampling",),
        ("chats",),
        dtypes=TINY,
    ),
    Mistake(
        "penalty-brought",
        "Brings the repetition penalty of another call site.",
        'settings.get("repetition_penalty", defaults.repetition_penalty)',
        'settings.get("repetition_penalty", 1.1)',
        ("sampling",),
        ("chats",),
        dtypes=REAL,
    ),
    Mistake(
        "top-p-lost",
        "Does not say top_p.",
        '        options["top_p"] = settings.get("top_p", defaults.top_p)\n',
        "",
        ("sampling",),
        ("sampled",),
    ),
    Mistake(
        "another-seed",
        "Adds the first row's index, counted from one, to the seed.",
        'options["seed"] = torch_seed\n',
        'options["seed"] = None if torch_seed is None else torch_seed + 1\n',
        ("sampling",),
        ("sampled-seeded",),
        dtypes=REAL,
    ),
    Mistake(
        "bos-of-the-completion",
        "Scores the completion behind its own blank, as a tokenizer for words would want it.",
        "tokenizer(completion, add_special_tokens=False).input_ids",
        'tokenizer(" " + completion, add_special_tokens=False).input_ids',
        ("prompt",),
        ("logprobs",),
    ),
    Mistake(
        "temperature-lost",
        "Gives log-probabilities at temperature 1.",
        "(score.logits / temperature)",
        "(score.logits / 1.0)",
        ("value", "calls", "sampling"),
        ("logprobs-warm",),
    ),
    Mistake(
        "first-token-lost",
        "Shifts once more: the first token's log-probability is left out.",
        "return [list(score.logprobs) for score in model.score_batch(items)]",
        "return [list(score.logprobs)[1:] for score in model.score_batch(items)]",
        (
            "value",
            "calls",
        ),
        ("logprobs",),
        dtypes=TINY,
    ),
    Mistake(
        "stripped",
        "Strips the completion.",
        RETURNED,
        "    return [result.text.strip() for result in results]",
        (
            "value",
            "decode",
        ),
        ("texts",),
        dtypes=REAL,
    ),
)
