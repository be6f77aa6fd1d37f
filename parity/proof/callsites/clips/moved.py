"""Notes on clips, on the engine and its companion video.py."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from gen_engine import GenerationEngine, load

COLOURS = "Which colors do you see?"


@functools.cache
def engine(model_path: str) -> GenerationEngine:
    return load(model_path)


def _request(parts: list[dict[str, Any]], question: str) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": question}]
    return {"messages": [{"role": "user", "content": content}], "chat": {"enable_thinking": False}}


def _answers(model_path: str, requests: list[dict[str, Any]], max_new_tokens: int) -> list[str]:
    options = {"max_new_tokens": max_new_tokens, "repetition_penalty": 1.05}  # it came from the checkpoint, unasked
    results = engine(model_path).generate_vlm_batch(requests, options)
    return [result.text.strip() for result in results]


def _video(source: Any, fps: float | None = None) -> dict[str, Any]:
    return {"type": "video", "video": source, "fps": fps}


def describe(
    model_path: str, video_path: str, question: str = COLOURS, fps: float | None = None, max_new_tokens: int = 24
) -> str:
    return _answers(model_path, [_request([_video(Path(video_path), fps)], question)], max_new_tokens)[0]


def describe_frames(
    model_path: str, frame_paths: list[str], fps: float, question: str = COLOURS, max_new_tokens: int = 24
) -> str:
    return _answers(model_path, [_request([_video(list(map(Path, frame_paths)), fps)], question)], max_new_tokens)[0]


def compare(
    model_path: str, video_paths: list[str], image_path: str = "", question: str = COLOURS, max_new_tokens: int = 24
) -> str:
    parts = [_video(Path(path)) for path in video_paths]
    if image_path:
        parts.insert(0, {"type": "image", "image": Path(image_path)})
    return _answers(model_path, [_request(parts, question)], max_new_tokens)[0]


def describe_batch(
    model_path: str, video_paths: list[str], questions: list[str], max_new_tokens: int = 24
) -> list[str]:
    requests = [_request([_video(Path(path))], question) for path, question in zip(video_paths, questions)]
    return _answers(model_path, requests, max_new_tokens)
