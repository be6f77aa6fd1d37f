"""What ms-swift is asked: chats with and without a system prompt, stops, sampling, and drawings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.models.tasks import drawing
from parity.proof.foreign.material import Case
from parity.proof.foreign.prompts import QUESTIONS, chat, chats, checkpoint

DRAWINGS = Path(__file__).parents[4] / "build/foreign/drawings"
VL = "golden/models/tiny-qwen3-vl"


def drawn(colour: str, shape: str, size: tuple[int, int]) -> str:
    """The path of a drawing, which is made where it is missing."""
    path = DRAWINGS / f"{colour}-{shape}-{size[0]}x{size[1]}.png"
    if not path.is_file():
        DRAWINGS.mkdir(parents=True, exist_ok=True)
        drawing(colour, shape).resize(size).save(path)
    return str(path)


def cases(dtype: str) -> list[Case]:
    template = "qwen3" if dtype == "float32" else "chatml"
    model = {"model_path": checkpoint(dtype), "dtype": dtype, "template": template}
    greedy = {"max_tokens": 32, "temperature": 0}
    warm = {"max_tokens": 24, "temperature": 0.8, "top_p": 0.95}
    bare = [chat(question, None) for question in QUESTIONS]
    stops = [", 7", " is", "apple", " 4"]
    unsaid = {"max_tokens": 24}
    turns = [*bare[0], {"role": "assistant", "content": "Paris."}, *bare[3]]
    text = [
        Case("chats", "infer", {**model, "chats": chats(), "config": greedy}),
        Case("no-system", "infer", {**model, "chats": bare, "config": greedy}),
        Case("turns", "infer", {**model, "chats": [turns], "config": greedy}),
        Case("stops", "infer", {**model, "chats": bare, "config": {**greedy, "stop": stops}}),
        Case("unsaid", "infer", {**model, "chats": bare[:2], "config": unsaid}),
        Case("sampled", "infer", {**model, "chats": chats(), "config": warm}),
        Case("seeded", "infer", {**model, "chats": bare[:1], "config": warm, "torch_seed": 3}),
    ]
    return [*text, *image_cases()] if dtype == "float32" else text


def image_cases() -> list[Case]:
    model = {"model_path": VL, "dtype": "float32", "template": "qwen3_vl"}
    question = [{"role": "user", "content": "<image>What do you see?"}]
    config: dict[str, Any] = {"max_tokens": 32, "temperature": 0}
    images = [
        [drawn("red", "circle", (96, 96))],
        [drawn("blue", "square", (64, 96))],
        [drawn("green", "triangle", (90, 70))],
    ]
    return [
        Case(
            "image",
            "infer",
            {**model, "chats": [question], "config": config, "images": images[:1]},
        ),
        Case(
            "images",
            "infer",
            {**model, "chats": [question] * 3, "config": config, "images": images},
        ),
    ]
