"""Prompts that the cases share: ragged chats under one system prompt, and few-shot text."""

from __future__ import annotations

__all__ = [
    "ARITHMETIC",
    "FACTS",
    "LETTERS",
    "QUESTIONS",
    "SYSTEM",
    "VISION",
    "VLLM_ROOM",
    "chat",
    "chats",
    "checkpoint",
    "contexts",
]

VISION = "golden/models/tiny-qwen3-vl"
VLLM_ROOM = {
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "num_gpu_blocks_override": 96,
    "gpu_memory_utilization": 0.1,
    "enforce_eager": True,
}
SYSTEM = "You are a helpful assistant. Answer briefly."
QUESTIONS = (
    "What is the capital of France?",
    "Count to 12.",
    "Name three fruits, and say of each of them in a few words where it grows and how it is eaten.",
    "Is 17 even?",
)
LETTERS = (" A", " B", " C", " D")
ARITHMETIC = "Question: What is 3 + 4?\nAnswer: 7\n\nQuestion: What is 12 + 30?\nAnswer: 42\n\n"
OPENED_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
FACTS = "Question: What is the capital of Norway?\nAnswer: Oslo\n\n"


def checkpoint(dtype: str) -> str:
    """float32 is asked of the tiny trained checkpoint, bfloat16 of a real model."""
    return "golden/models/tiny-qwen3" if dtype == "float32" else "build/models/smollm2"


def chat(question: str, system: str | None = SYSTEM) -> list[dict[str, str]]:
    turns = [] if system is None else [{"role": "system", "content": system}]
    return [*turns, {"role": "user", "content": question}]


def chats(count: int = len(QUESTIONS)) -> list[list[dict[str, str]]]:
    return [chat(question) for question in QUESTIONS[:count]]


def contexts(dtype: str) -> list[str]:
    """Contexts of different lengths, as few-shot tasks make them; chats for the tiny model."""
    if dtype == "float32":
        return [OPENED_CHAT.format(question) for question in QUESTIONS]
    return [
        ARITHMETIC + "Question: What is 5 + 6?\nAnswer:",
        FACTS + ARITHMETIC + "Question: What is the capital of Italy?\nAnswer:",
        "Question: Is 17 even?\nAnswer:",
    ]
