"""Pictures of every awkward kind, alone and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.proof.callsites.pictures import Pictures

MODEL = "golden/models/tiny-qwen3-vl"
DIFFERS: dict[str, str] = {}
SAMPLED: frozenset[str] = frozenset()


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    pictures = Pictures(directory)
    circle, square = pictures.drawing("red", "circle"), pictures.drawing("blue", "square", width=96, height=88, seed=4)
    triangle = pictures.drawing("green", "triangle", width=64, height=96, seed=2)
    yellow = pictures.drawing("yellow", "circle", width=88, height=72, seed=6)
    look, as_json = "What do you see?", "What is in the picture? Answer in JSON."

    def one(name: str, image: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "summarize_image", {"model_path": MODEL, "image_path": image, **arguments}

    def batch(name: str, images: list[str], questions: list[str], **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        many = {"model_path": MODEL, "image_paths": images, "questions": questions, **arguments}
        return name, "summarize_batch", many

    return [
        one("circle", circle),
        one("square-json", square, question=as_json),
        one("one-token", circle, max_new_tokens=1),
        one("cut-by-length", square, max_new_tokens=4),
        one("thinking", triangle, thinking=True),
        one("thinking-cut-short", triangle, thinking=True, max_new_tokens=8),
        one("empty-system", circle, system=""),
        one("blanks-around-question", circle, question="  What do you see?"),
        one("special-token-in-question", circle, question="<|endoftext|>What do you see?"),
        one("exif-turned", pictures.turned("green", "triangle", width=96, height=64, seed=2)),
        one("rgba", pictures.transparent("red", "square", width=88, height=64, seed=8)),
        one("palette", pictures.palette("blue", "circle", width=72, height=88, seed=10)),
        one("tiny", pictures.scaled("red", "circle", (9, 8))),
        one("huge", pictures.scaled("blue", "square", (2400, 1600))),
        one("photograph", pictures.photograph(), max_new_tokens=24),
        one("small-budget", pictures.drawing("red", "circle", width=96, height=96, seed=2), max_pixels=64 * 64),
        one("raised-floor", circle, min_pixels=96 * 96),
        batch("batch-of-equals", [circle, circle], [look, look]),
        batch("two-prompt-lengths", [circle, square], [look, as_json]),
        batch("sizes-mixed", [circle, triangle, square, yellow], [look] * 4),
        batch("last-batch-short", [circle, square, triangle], [look] * 3, batch_size=2),
        batch("one-by-one", [square, yellow], [as_json, look], batch_size=1),
        batch("batch-one-token", [circle, square], [look, look], max_new_tokens=1),
        batch("batch-thinking", [circle, square], [look, as_json], thinking=True),
        batch("batch-empty-system", [yellow, triangle], [look, look], system=""),
        batch("batch-small-budget", [square, yellow], [look, look], max_pixels=64 * 64),
    ]
