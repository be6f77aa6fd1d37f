"""What lm-eval is asked: few-shot generation, chats, MMLU-like rows and longer continuations."""

from __future__ import annotations

from typing import Any

from parity.proof.foreign.material import Case
from parity.proof.foreign.prompts import ARITHMETIC, FACTS, LETTERS, chats, checkpoint, contexts

VLLM = ("vllm",)
GREEDY = {"until": ["\n\n", "Question:"], "max_gen_toks": 32, "do_sample": False}
STOPS = [", 7", " is", "apple", "."]
MULTIPLE_CHOICE = (
    "The following are multiple choice questions (with answers).\n\n"
    "What is the capital of Norway?\nA. Oslo\nB. Rome\nC. Paris\nD. Bergen\nAnswer: A\n\n"
)
CHOICES = (
    "What is 3 + 4?\nA. 5\nB. 6\nC. 7\nD. 8\nAnswer:",
    "What is the capital of the country whose flag is blue, white and red, from left to right?\n"
    "A. Rome\nB. Paris\nC. Oslo\nD. Madrid\nAnswer:",
)
ENDINGS = (
    ["The capital of France is", " Paris."],
    ["The capital of France is", " a very large city in the north of the country."],
    ["Count to five: 1, 2, 3, ", "4, 5."],
    ["She put the kettle on and waited until the water", " was boiling, then she made tea."],
)


def requests(contexts: list[str], **gen_kwargs: Any) -> list[dict[str, Any]]:
    return [{"context": context, "gen_kwargs": {**GREEDY, **gen_kwargs}} for context in contexts]


def mmlu() -> list[list[str]]:
    rows = []
    for question in CHOICES:
        rows += [[MULTIPLE_CHOICE + question, letter] for letter in LETTERS]
    return rows


def cases(dtype: str) -> list[Case]:
    model = {"model_path": checkpoint(dtype), "dtype": dtype}
    return [*hf_cases(model, contexts(dtype)), *vllm_cases(model, contexts(dtype))]


def hf_cases(model: dict[str, Any], texts: list[str]) -> list[Case]:
    sampling = {"do_sample": True, "temperature": 0.8}
    mixed = requests(texts[:2]) + requests(texts[2:], until=["e"], max_gen_toks=12)
    answers = {**GREEDY, "until": ["\n\n"], "max_gen_toks": 40}
    long = [FACTS * 6 + context for context in texts]
    no_context = [["", " Paris"], ["", " 4, 5."], [ARITHMETIC, "Question"]]
    first = texts[:1]
    return [
        Case("few-shot", "generate_until", {**model, "requests": requests(texts)}),
        Case("stops", "generate_until", {**model, "requests": requests(texts, until=STOPS)}),
        Case("mixed-settings", "generate_until", {**model, "requests": mixed}),
        Case("chat", "chat_until", {**model, "chats": chats(), "gen_kwargs": answers}),
        Case(
            "truncated",
            "generate_until",
            {**model, "requests": requests(long), "max_length": 128},
        ),
        Case("sampled", "generate_until", {**model, "requests": requests(texts, **sampling)}),
        Case(
            "sampled-seeded",
            "generate_until",
            {**model, "requests": requests(first, **sampling), "torch_seed": 1234},
        ),
        Case("mmlu", "loglikelihood", {**model, "pairs": mmlu()}),
        Case("endings", "loglikelihood", {**model, "pairs": [list(pair) for pair in ENDINGS]}),
        Case("no-context", "loglikelihood", {**model, "pairs": no_context}),
        Case("own-softmax", "loglikelihood", {**model, "pairs": mmlu()[:4], "softmax_dtype": None}),
    ]


def vllm_cases(model: dict[str, Any], texts: list[str]) -> list[Case]:
    seeded = requests(texts, do_sample=True, temperature=0.8, top_p=0.9, seed=11)
    how = {"until": ["\n\n"], "max_gen_toks": 24}
    unsaid = [{"context": text, "gen_kwargs": how} for text in texts]
    return [
        Case("vllm-few-shot", "vllm_generate_until", {**model, "requests": requests(texts)}, VLLM),
        Case("vllm-seeded", "vllm_generate_until", {**model, "requests": seeded}, VLLM),
        Case("vllm-unsaid", "vllm_generate_until", {**model, "requests": unsaid}, VLLM),
        Case("vllm-mmlu", "vllm_loglikelihood", {**model, "pairs": mmlu()}, VLLM),
    ]
