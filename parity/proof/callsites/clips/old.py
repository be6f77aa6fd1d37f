"""Notes on clips: which colours a clip shows and when it ends. Plain transformers, frames read with OpenCV."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

COLOURS = "Which colors do you see?"

_LOADED: dict[str, tuple[Any, Any]] = {}


def _load(model_path: str) -> tuple[Any, Any]:
    if model_path not in _LOADED:
        processor = AutoProcessor.from_pretrained(model_path)
        processor.tokenizer.padding_side = "left"
        model = AutoModelForImageTextToText.from_pretrained(model_path, dtype="auto")
        _LOADED[model_path] = model.eval(), processor
    return _LOADED[model_path]


def _read(video_path: str) -> tuple[Any, float]:
    """All frames, RGB, and how many there are in a second."""
    reader = cv2.VideoCapture(video_path)
    rate = reader.get(cv2.CAP_PROP_FPS)
    frames = []
    is_there, frame = reader.read()
    while is_there:
        frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
        is_there, frame = reader.read()
    reader.release()
    return np.stack(frames), rate


def _metadata(frames: Any, rate: float) -> dict[str, Any]:
    count = len(frames)
    return {"fps": rate, "total_num_frames": count, "duration": count / rate, "frames_indices": list(range(count))}


def _prompt(processor: Any, kinds: list[str], question: str) -> str:
    content = [{"type": kind} for kind in kinds] + [{"type": "text", "text": question}]
    text: str = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    return text


def _answer(model_path: str, texts: list[str], max_new_tokens: int, **seen: Any) -> list[str]:
    model, processor = _load(model_path)
    inputs = processor(text=texts, padding=True, return_tensors="pt", **seen).to(model.device)
    inputs.pop("video_metadata", None)
    with torch.no_grad():
        output_ids = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    answers = output_ids[:, inputs["input_ids"].shape[1] :]
    texts = processor.tokenizer.batch_decode(answers, skip_special_tokens=True)
    return [text.strip() for text in texts]


def describe(
    model_path: str, video_path: str, question: str = COLOURS, fps: float | None = None, max_new_tokens: int = 24
) -> str:
    """One file, at `fps` frames a second or at the processor's rate."""
    _, processor = _load(model_path)
    frames, rate = _read(video_path)
    sampling = {} if fps is None else {"fps": fps}
    text = _prompt(processor, ["video"], question)
    seen = {"videos": [frames], "video_metadata": [_metadata(frames, rate)], "do_sample_frames": True, **sampling}
    [answer] = _answer(model_path, [text], max_new_tokens, **seen)
    return answer


def describe_frames(
    model_path: str, frame_paths: list[str], fps: float, question: str = COLOURS, max_new_tokens: int = 24
) -> str:
    """Frames that somebody has chosen, taken `fps` times a second."""
    _, processor = _load(model_path)
    frames = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in frame_paths])
    text = _prompt(processor, ["video"], question)
    seen = {"videos": [frames], "video_metadata": [_metadata(frames, fps)], "do_sample_frames": False}
    [answer] = _answer(model_path, [text], max_new_tokens, **seen)
    return answer


def compare(
    model_path: str, video_paths: list[str], image_path: str = "", question: str = COLOURS, max_new_tokens: int = 24
) -> str:
    """Several files in one question, behind a picture if there is one."""
    _, processor = _load(model_path)
    read = [_read(path) for path in video_paths]
    kinds = ["image"] * bool(image_path) + ["video"] * len(read)
    seen: dict[str, Any] = {"images": [Image.open(image_path).convert("RGB")]} if image_path else {}
    seen["videos"] = [frames for frames, _ in read]
    seen["video_metadata"] = [_metadata(frames, rate) for frames, rate in read]
    seen["do_sample_frames"] = True
    [answer] = _answer(model_path, [_prompt(processor, kinds, question)], max_new_tokens, **seen)
    return answer


def describe_batch(
    model_path: str, video_paths: list[str], questions: list[str], max_new_tokens: int = 24
) -> list[str]:
    _, processor = _load(model_path)
    read = [_read(path) for path in video_paths]
    texts = [_prompt(processor, ["video"], question) for question in questions]
    seen = {
        "videos": [frames for frames, _ in read],
        "video_metadata": [_metadata(frames, rate) for frames, rate in read],
        "do_sample_frames": True,
    }
    return _answer(model_path, texts, max_new_tokens, **seen)
