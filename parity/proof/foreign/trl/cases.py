"""What trl is asked: completions of an evaluation set, and log-probabilities of completions."""

from __future__ import annotations

from parity.proof.foreign.material import Case
from parity.proof.foreign.prompts import ARITHMETIC, chat, chats, checkpoint, contexts

GREEDY = {"do_sample": False, "max_new_tokens": 32}
COMPLETIONS = (
    "The capital of France is Paris.",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.",
    "apple, pear, plum",
    "17 is odd.",
)


def cases(dtype: str) -> list[Case]:
    model = {"model_path": checkpoint(dtype), "dtype": dtype}
    texts = contexts(dtype)
    pairs = [list(pair) for pair in zip(texts, COMPLETIONS)]
    sampled = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "max_new_tokens": 24}
    limited = {**GREEDY, "min_new_tokens": 12, "max_new_tokens": 24, "no_repeat_ngram_size": 3}
    one = [chat("Is 17 even?", None)]
    return [
        Case("chats", "complete", {**model, "prompts": chats(), "settings": GREEDY}),
        Case(
            "texts",
            "complete",
            {**model, "prompts": [*texts, ARITHMETIC], "settings": GREEDY, "batch_size": 3},
        ),
        Case("limited", "complete", {**model, "prompts": texts, "settings": limited}),
        Case(
            "unsaid", "complete", {**model, "prompts": texts[:2], "settings": {"do_sample": False}}
        ),
        Case("sampled", "complete", {**model, "prompts": chats(), "settings": sampled}),
        Case(
            "sampled-seeded",
            "complete",
            {**model, "prompts": one, "settings": sampled, "torch_seed": 42},
        ),
        Case("logprobs", "completion_logprobs", {**model, "pairs": pairs}),
        Case("logprobs-warm", "completion_logprobs", {**model, "pairs": pairs, "temperature": 0.7}),
    ]
