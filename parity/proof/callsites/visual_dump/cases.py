"""Pictures that end in a balanced object, in the end of a turn, at the limit, or in a repetition that is forbidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.proof.callsites.pictures import Pictures

MODEL = "golden/models/tiny-qwen3-vl"
DIFFERS = {"exif-turned": "the old tool ignored EXIF: it saw, and measured, a picture lying on its side"}
SAMPLED: frozenset[str] = frozenset()


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    pictures = Pictures(directory)
    circle, square = pictures.drawing("red", "circle"), pictures.drawing("blue", "square", width=96, height=88, seed=4)
    triangle = pictures.drawing("green", "triangle", width=64, height=96, seed=2)
    look = "What do you see?"

    def case(name: str, *images: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "dump", {"model_path": MODEL, "image_paths": list(images), **arguments}

    def each(name: str, *images: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "dump_each", {"model_path": MODEL, "image_paths": list(images), **arguments}

    return [
        case("object", circle),
        case("object-of-a-square", square),
        case("no-object-ends-with-the-turn", circle, question=look),
        case("one-new-token", circle, max_new_tokens=1),
        case("cut-inside-the-object", circle, max_new_tokens=28),
        case("cut-inside-the-thought", circle, max_new_tokens=6),
        case("no-repeat-of-one-token", circle, question=look, no_repeat=1),
        case("no-repeat-of-two", circle, no_repeat=2),
        case("no-repeat-of-three", square, no_repeat=3),
        case("no-repeat-that-never-bites", triangle, no_repeat=12),
        case("same-picture-twice", circle, circle, question=look),
        case("same-picture-twice-no-repeat", circle, circle, question=look, no_repeat=2, max_new_tokens=40),
        case("two-pictures", circle, square, question=look),
        case("empty-system", circle, system=""),
        case("blanks-around-the-question", circle, question="  What is in the picture? Answer in JSON."),
        case("special-token-in-the-question", square, question=look + "<|endoftext|>"),
        case("exif-turned", pictures.turned("green", "triangle", width=96, height=64, seed=2)),
        case("rgba", pictures.transparent("red", "square", width=88, height=64, seed=8)),
        case("tiny", pictures.scaled("red", "circle", (9, 8))),
        case("huge", pictures.scaled("blue", "square", (2400, 1600))),
        case("photograph", pictures.photograph(), max_new_tokens=24),
        each("each-of-three", circle, square, triangle),
        each("each-without-repeats", circle, square, no_repeat=6),
        each("each-of-none"),
    ]
