"""mineru-vl-utils: its clients of a vision-language model, in transformers and in vLLM."""

from __future__ import annotations

import functools
from typing import Any

from parity.models.tasks import drawing
from parity.proof.foreign.engines import as_generate, as_vllm, engine
from parity.proof.foreign.material import Case, Mistake
from parity.proof.foreign.prompts import SYSTEM, VISION, VLLM_ROOM


@functools.cache
def loaded(kind: str, model_path: str, dtype: str) -> Any:
    import torch
    import transformers
    from mineru_vl_utils.vlm_client.transformers_client import TransformersVlmClient
    from mineru_vl_utils.vlm_client.vllm_engine_client import VllmEngineVlmClient

    settings: dict[str, Any] = {
        "system_prompt": SYSTEM,
        "use_tqdm": False,
        "allow_truncated_content": True,  # under other rounding an answer may not end
    }
    if kind == "vllm":
        from vllm import LLM

        model = LLM(model_path, dtype=dtype, limit_mm_per_prompt={"image": 1}, **VLLM_ROOM)
        return VllmEngineVlmClient(model, **settings)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        model_path, dtype=getattr(torch, dtype)
    )
    processor = transformers.AutoProcessor.from_pretrained(model_path)
    return TransformersVlmClient(model.eval(), processor, batch_size=1, **settings)


def sampling(settings: dict[str, Any]) -> Any:
    from mineru_vl_utils.vlm_client import SamplingParams

    return SamplingParams(**settings)


def old_read(
    model_path: str, dtype: str, images: list[Any], prompts: list[str], settings: dict[str, Any]
) -> list[str]:
    client = loaded("hf", model_path, dtype)
    answers: list[str] = client.batch_predict(images, prompts, sampling(settings))
    return answers


def read(
    model_path: str, dtype: str, images: list[Any], prompts: list[str], settings: dict[str, Any]
) -> list[str]:
    """It samples only where both a temperature and a top_k are given, and then says top_p, too."""
    do_sample = bool(settings.get("temperature")) and settings.get("top_k", 1) > 1
    said = {"top_p": 1.0, **settings, "do_sample": do_sample}
    options = as_generate(model_path, **said)
    return answers_of(model_path, dtype, images, prompts, options)


def answers_of(
    model_path: str, dtype: str, images: list[Any], prompts: list[str], options: dict[str, Any]
) -> list[str]:
    """The image stands before the prompt. Special tokens stay in the text, but for ends."""
    options["decode"] = {"skip_special_tokens": False}
    requests = []
    for image, prompt in zip(images, prompts, strict=True):
        content = [{"type": "image", "image": image}, {"type": "text", "text": prompt}]
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        requests.append({"messages": turns, "chat": {"enable_thinking": True}})
    results = engine(model_path, dtype).generate_vlm_batch(requests, options)
    return [result.text for result in results]


def old_vllm_read(
    model_path: str, dtype: str, images: list[Any], prompts: list[str], settings: dict[str, Any]
) -> list[str]:
    client = loaded("vllm", model_path, dtype)
    answers: list[str] = client.batch_predict(images, prompts, sampling(settings))
    return answers


def vllm_read(
    model_path: str, dtype: str, images: list[Any], prompts: list[str], settings: dict[str, Any]
) -> list[str]:
    """Without a temperature it draws, by vLLM's own default."""
    options = as_vllm(max_tokens=settings["max_new_tokens"])
    return answers_of(model_path, dtype, images, prompts, options)


PROMPTS = ("What do you see?", "What color is it?", "Describe the picture.")


def cases(dtype: str) -> list[Case]:
    images = [drawing("red", "circle"), drawing("blue", "square"), drawing("green", "triangle")]
    shown = {"model_path": VISION, "images": images, "prompts": list(PROMPTS)}
    greedy = {"max_new_tokens": 24}
    warm = {"max_new_tokens": 24, "temperature": 0.8, "top_k": 20}
    ngrams = {"max_new_tokens": 24, "no_repeat_ngram_size": 2}
    return [
        Case("greedy", "read", {**shown, "settings": greedy}),
        Case("ngrams", "read", {**shown, "settings": ngrams}),
        Case("sampled", "read", {**shown, "settings": warm}),
        Case("vllm", "vllm_read", {**shown, "settings": greedy}, ("vllm",)),
    ]


MISTAKES = (
    Mistake(
        "prompt-before-image",
        "greedy",
        "prompt.messages",
        '[{"type": "image", "image": image}, {"type": "text", "text": prompt}]',
        '[{"type": "text", "text": prompt}, {"type": "image", "image": image}]',
    ),
    Mistake(
        "small-images",
        "greedy",
        "image.pixels",
        '"image": image}',
        '"image": image.resize((64, 64))}',
    ),
    Mistake(
        "images-of-the-first",
        "greedy",
        "image.pixels",
        "for image, prompt in zip(images, prompts, strict=True)",
        "for image, prompt in zip(images[:1] * len(prompts), prompts, strict=True)",
    ),
    Mistake(
        "settings-lost",
        "ngrams",
        "sampling.no_repeat_ngram_size",
        '{"top_p": 1.0, **settings, ',
        '{"top_p": 1.0, "max_new_tokens": settings["max_new_tokens"], ',
    ),
    Mistake(
        "top-p-of-the-checkpoint",
        "sampled",
        "sampling.top_p",
        '{"top_p": 1.0, **settings',
        "{**settings",
    ),
)
