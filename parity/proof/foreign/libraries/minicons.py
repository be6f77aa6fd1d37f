"""minicons: log-probabilities of sentences, of continuations, and of the next word."""

from __future__ import annotations

import functools
from typing import Any

from parity.proof.foreign.engines import engine
from parity.proof.foreign.material import Case, Mistake


@functools.cache
def loaded(model_path: str, dtype: str) -> Any:
    import torch
    import transformers
    from minicons import scorer

    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype)
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    return scorer.IncrementalLMScorer(model.eval(), "cpu", tokenizer=tokenizer)


def old_sentences(model_path: str, dtype: str, texts: list[str]) -> list[float]:
    scores: list[float] = loaded(model_path, dtype).sequence_score(texts)
    return scores


def sentences(model_path: str, dtype: str, texts: list[str]) -> list[float]:
    """The mean over all tokens but the first, which nothing stands before."""
    model = engine(model_path, dtype)
    encoded = [model.tokenizer(text).input_ids for text in texts]
    scores = model.score_batch([(ids[:1], ids[1:]) for ids in encoded])
    return [sum(score.logprobs) / len(score.logprobs) for score in scores]


def old_continuations(
    model_path: str, dtype: str, prefixes: list[str], texts: list[str]
) -> list[float]:
    scores: list[float] = loaded(model_path, dtype).conditional_score(
        prefixes, texts, reduction=lambda logprobs: logprobs.sum(0).item()
    )
    return scores


def continuations(
    model_path: str, dtype: str, prefixes: list[str], texts: list[str]
) -> list[float]:
    """The whole text is encoded, and split where the prefix's own ids end."""
    model = engine(model_path, dtype)
    pairs = []
    for prefix, text in zip(prefixes, texts, strict=True):
        ids = model.tokenizer(prefix + " " + text).input_ids
        length = len(model.tokenizer(prefix).input_ids)
        pairs.append((ids[:length], ids[length:]))
    return [sum(score.logprobs) for score in model.score_batch(pairs)]


def old_surprisals(model_path: str, dtype: str, texts: list[str]) -> list[list[float]]:
    """Of each token, in bits, the first as 0."""
    scores = loaded(model_path, dtype).token_score(texts, surprisal=True, base_two=True)
    return [[value for _, value in each] for each in scores]


def surprisals(model_path: str, dtype: str, texts: list[str]) -> list[list[float]]:
    import math

    model = engine(model_path, dtype)
    encoded = [model.tokenizer(text).input_ids for text in texts]
    scores = model.score_batch([(ids[:1], ids[1:]) for ids in encoded])
    return [[0.0, *(-each / math.log(2) for each in score.logprobs)] for score in scores]


TEXTS = [
    "The keys to the cabinet are on the table.",
    "The keys to the cabinet is on the table.",
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "1, 2, 3, 4, 5, 6, 7.",
]
PREFIXES = ["The capital of France is", "The capital of France is", "She put the kettle on and"]
ENDINGS = ["Paris.", "a very large city.", "waited until the water was boiling."]


def cases(dtype: str) -> list[Case]:
    return [
        Case("sentences", "sentences", {"texts": TEXTS}),
        Case("continuations", "continuations", {"prefixes": PREFIXES, "texts": ENDINGS}),
        Case("surprisals", "surprisals", {"texts": TEXTS[:3]}),
    ]


MISTAKES = (
    Mistake(
        "mean-over-all-tokens",
        "sentences",
        "value",
        "/ len(score.logprobs) for",
        "/ (len(score.logprobs) + 1) for",
    ),
    Mistake(
        "separator-lost", "continuations", "prompt.text", 'prefix + " " + text', "prefix + text"
    ),
    Mistake(
        "mean-for-sum",
        "continuations",
        "value",
        "[sum(score.logprobs) for score",
        "[sum(score.logprobs) / len(score.logprobs) for score",
    ),
    Mistake("nats-for-bits", "surprisals", "value", " / math.log(2)"),
)
