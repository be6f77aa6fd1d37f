"""Stage A: what is on a picture, in a sentence. One at a time for the annotation page, in batches for the data set."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image, ImageOps
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig

MIN_PIXELS = 64 * 64
MAX_PIXELS = 128 * 128

_LOADED: dict[str, tuple[Any, Any]] = {}


def _load(model_path: str) -> tuple[Any, Any]:
    if model_path not in _LOADED:
        processor = AutoProcessor.from_pretrained(model_path)
        processor.tokenizer.padding_side = "left"
        model = AutoModelForImageTextToText.from_pretrained(model_path, dtype="auto")
        _LOADED[model_path] = model.eval(), processor
    return _LOADED[model_path]


def _open(image_path: str) -> Any:
    return ImageOps.exif_transpose(Image.open(image_path)).convert("RGB")


def _prompt(processor: Any, question: str, system: str | None, thinking: bool) -> str:
    content = [{"type": "image"}, {"type": "text", "text": question}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    text: str = processor.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    return text


def _set_pixel_budget(processor: Any, min_pixels: int, max_pixels: int) -> None:
    # the number of image tokens, and with it the memory, depends on this alone
    processor.image_processor.size = {"shortest_edge": min_pixels, "longest_edge": max_pixels}


def _without_thoughts(text: str) -> str:
    return text.split("</think>")[-1].strip()


@torch.no_grad()  # type: ignore[untyped-decorator]
def summarize_image(
    model_path: str,
    image_path: str,
    question: str = "What do you see?",
    system: str | None = None,
    max_new_tokens: int = 64,
    min_pixels: int = MIN_PIXELS,
    max_pixels: int = MAX_PIXELS,
    thinking: bool = False,
) -> str:
    model, processor = _load(model_path)
    _set_pixel_budget(processor, min_pixels, max_pixels)
    text = _prompt(processor, question, system, thinking)
    inputs = processor(text=[text], images=[_open(image_path)], return_tensors="pt").to(model.device)
    generated_ids = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    trimmed = [out[len(ids) :] for ids, out in zip(inputs.input_ids, generated_ids)]
    output = processor.batch_decode(trimmed, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return _without_thoughts(output[0])


@torch.no_grad()  # type: ignore[untyped-decorator]
def summarize_batch(
    model_path: str,
    image_paths: list[str],
    questions: list[str],
    system: str | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 4,
    min_pixels: int = MIN_PIXELS,
    max_pixels: int = MAX_PIXELS,
    thinking: bool = False,
) -> list[str]:
    model, processor = _load(model_path)
    _set_pixel_budget(processor, min_pixels, max_pixels)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        repetition_penalty=1.0,
        eos_token_id=processor.tokenizer.eos_token_id,
        pad_token_id=processor.tokenizer.pad_token_id,
    )
    summaries: list[str] = []
    for start in range(0, len(image_paths), batch_size):
        images = [_open(path) for path in image_paths[start : start + batch_size]]
        texts = [_prompt(processor, q, system, thinking) for q in questions[start : start + batch_size]]
        inputs = processor(text=texts, images=images, padding=True, return_tensors="pt").to(model.device)
        output_ids = model.generate(**inputs, generation_config=config)
        answers = output_ids[:, inputs.input_ids.shape[1] :]
        for answer in processor.tokenizer.batch_decode(answers, skip_special_tokens=True):
            summaries.append(_without_thoughts(answer))
    return summaries
