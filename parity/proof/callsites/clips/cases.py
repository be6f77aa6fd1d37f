"""Clips as files and as frames, alone, several in a question, and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.proof.callsites.pictures import Pictures

MODEL = "golden/models/tiny-qwen3-video"
DIFFERS: dict[str, str] = {}
SAMPLED: frozenset[str] = frozenset()
COLOURS, END = "Which colors do you see?", "When does it end?"


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    pictures = Pictures(directory)
    sea, rust, moss = (
        pictures.clip(first, second, frames=frames, change=change, rate=rate)
        for first, second, frames, change, rate in (
            ("red", "blue", 40, 20, 8),
            ("green", "red", 24, 12, 12),
            ("yellow", "green", 20, 8, 5),
        )
    )
    circle = pictures.drawing("red", "circle")
    frames = pictures.frames("blue", "yellow", frames=8, change=4)

    def one(name: str, video: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "describe", {"model_path": MODEL, "video_path": video, **arguments}

    def chosen(name: str, paths: list[str], fps: float, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "describe_frames", {"model_path": MODEL, "frame_paths": paths, "fps": fps, **arguments}

    def several(name: str, videos: list[str], **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "compare", {"model_path": MODEL, "video_paths": videos, **arguments}

    def batch(name: str, videos: list[str], questions: list[str]) -> tuple[str, str, dict[str, Any]]:
        return name, "describe_batch", {"model_path": MODEL, "video_paths": videos, "questions": questions}

    return [
        one("file", sea),
        one("file-end", moss, question=END),
        one("slow", sea, question=END, fps=1),
        one("fast", rust, question=END, fps=4),
        one("cut-by-length", rust, max_new_tokens=3),
        chosen("frames", frames, 2),
        chosen("frames-odd", frames[:7], 2),
        chosen("frames-end", frames, 4, question=END),
        several("two-clips", [sea, moss]),
        several("picture-and-clip", [rust], image_path=circle),
        batch("batch", [sea, rust, moss], [COLOURS, END, COLOURS]),
        batch("batch-of-equals", [moss, moss], [COLOURS, COLOURS]),
    ]
