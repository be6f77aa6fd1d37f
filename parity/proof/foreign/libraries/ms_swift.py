"""ms-swift: its inference engine for transformers, with and without images."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from parity.models.tasks import drawing
from parity.proof.foreign.engines import as_generate, engine, saved
from parity.proof.foreign.material import REAL, TINY, Case, Mistake
from parity.proof.foreign.prompts import QUESTIONS, VISION, chat, chats

DRAWINGS = Path(__file__).parents[4] / "build/foreign/drawings"
MODEL_TYPES = {"qwen3": "qwen3", "chatml": "llama", "qwen3_vl": "qwen3_vl"}
# ms-swift's own template "chatml": no default system prompt, unlike the checkpoint's.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ANSWER_PREFIXES = {"qwen3": "<think>\n\n</think>\n\n", "chatml": "", "qwen3_vl": ""}


@functools.cache
def loaded(model_path: str, dtype: str, template: str) -> Any:
    import torch
    from swift.infer_engine import TransformersEngine

    swift = TransformersEngine(
        model_path,
        model_type=MODEL_TYPES[template],
        template_type=template,
        torch_dtype=getattr(torch, dtype),
        max_batch_size=4,
        device_map="cpu",
    )
    if template == "qwen3_vl":  # its class holds the number that Qwen's own vocabulary has
        swift.template.image_token_id = swift.model.config.image_token_id
    return swift


def old_infer(
    model_path: str,
    dtype: str,
    template: str,
    chats: list[Any],
    config: dict[str, Any],
    images: list[list[str]] | None = None,
    torch_seed: int | None = None,
) -> list[dict[str, Any]]:
    """config: fields of RequestConfig. images: paths for each chat, for its <image> tags."""
    import torch
    from swift.infer_engine import InferRequest, RequestConfig

    swift = loaded(model_path, dtype, template)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    requests = [
        InferRequest(messages=chat, images=images[index] if images else [])
        for index, chat in enumerate(chats)
    ]
    responses = swift.infer(requests, RequestConfig(**config), use_tqdm=False)
    choices = [response.choices[0] for response in responses]
    return [
        {"content": choice.message.content, "finish_reason": choice.finish_reason}
        for choice in choices
    ]


def infer(
    model_path: str,
    dtype: str,
    template: str,
    chats: list[Any],
    config: dict[str, Any],
    images: list[list[str]] | None = None,
    torch_seed: int | None = None,
) -> list[dict[str, Any]]:
    model = engine(model_path, dtype)
    options = options_of(model_path, config) | {"seed": torch_seed}
    if images:
        requests = [image_request(*each) for each in zip(chats, images, strict=True)]
        results = model.generate_vlm_batch(requests, options)
    else:
        chat = {"template": CHATML} if template == "chatml" else {"enable_thinking": False}
        requests = [{"messages": messages, "chat": chat} for messages in chats]
        results = model.generate_text_batch(requests, options)
    return [answer_of(result, template, config["max_tokens"]) for result in results]


def image_request(messages: list[dict[str, Any]], images: list[str]) -> dict[str, Any]:
    """Each tag becomes an image part. ms-swift's template for images lets the model think."""
    turns = []
    left = list(images)
    for message in messages:
        parts: list[dict[str, Any]] = []
        for index, text in enumerate(message["content"].split("<image>")):
            if index:
                parts.append({"type": "image", "image": resized(left.pop(0))})
            if text:
                parts.append({"type": "text", "text": text})
        turns.append({"role": message["role"], "content": parts})
    return {"messages": turns, "chat": {"enable_thinking": True}, "vlm": {"do_resize": False}}


def resized(path: str) -> Any:
    """ms-swift resizes an image by Qwen's own package, and the processor takes it as it is."""
    from qwen_vl_utils import fetch_image

    return fetch_image({"image": path}, image_patch_size=16)


def answer_of(result: Any, template: str, budget: int) -> dict[str, Any]:
    """The content keeps its stop string, and begins with the opening that the template gave it."""
    reason = "length" if result.completion_tokens >= budget else "stop"
    return {"content": ANSWER_PREFIXES[template] + result.text, "finish_reason": reason}


def options_of(model_path: str, config: dict[str, Any]) -> dict[str, Any]:
    """What RequestConfig does not say is the checkpoint's; a temperature of 0 is greedy."""
    said = {name: config[name] for name in ("temperature", "top_p") if name in config}
    do_sample = bool(config.get("temperature", saved(model_path).do_sample))
    options = as_generate(
        model_path, max_new_tokens=config["max_tokens"], do_sample=do_sample, **said
    )
    options["stop"] = {"strings": config.get("stop", []), "include_stop": True}
    options["decode"] = {"skip_special_tokens": False}
    return options


def drawn(colour: str, shape: str, size: tuple[int, int]) -> str:
    """The path of a drawing, which is made where it is missing."""
    path = DRAWINGS / f"{colour}-{shape}-{size[0]}x{size[1]}.png"
    if not path.is_file():
        DRAWINGS.mkdir(parents=True, exist_ok=True)
        drawing(colour, shape).resize(size).save(path)
    return str(path)


def cases(dtype: str) -> list[Case]:
    template = {"template": "qwen3" if dtype == "float32" else "chatml"}
    greedy = {"max_tokens": 32, "temperature": 0}
    warm = {"max_tokens": 24, "temperature": 0.8, "top_p": 0.95}
    bare = [chat(question, None) for question in QUESTIONS]
    stops = {**greedy, "stop": [", 7", " is", "apple", " 4"]}
    turns = [*bare[0], {"role": "assistant", "content": "Paris."}, *bare[3]]
    one = {**template, "chats": bare[:1], "config": warm, "torch_seed": 3}
    text = [
        Case("chats", "infer", {**template, "chats": chats(), "config": greedy}),
        Case("no-system", "infer", {**template, "chats": bare, "config": greedy}),
        Case("turns", "infer", {**template, "chats": [turns], "config": greedy}),
        Case("stops", "infer", {**template, "chats": bare, "config": stops}),
        Case("unsaid", "infer", {**template, "chats": bare[:2], "config": {"max_tokens": 24}}),
        Case("sampled", "infer", {**template, "chats": chats(), "config": warm}),
        Case("seeded", "infer", one),
    ]
    if dtype == "bfloat16":
        return text
    images = [
        [drawn("red", "circle", (96, 96))],
        [drawn("blue", "square", (64, 96))],
        [drawn("green", "triangle", (90, 70))],
    ]
    question = [{"role": "user", "content": "<image>What do you see?"}]
    shown = {"model_path": VISION, "template": "qwen3_vl", "config": greedy}
    return [
        *text,
        Case("image", "infer", {**shown, "chats": [question], "images": images[:1]}),
        Case("images", "infer", {**shown, "chats": [question] * 3, "images": images}),
    ]


SEED = ' | {"seed": torch_seed}'
SAMPLE = 'bool(config.get("temperature", saved(model_path).do_sample))'
MISTAKES = (
    Mistake("stop-cut-off", "stops", "stop decode", ', "include_stop": True'),
    Mistake(
        "own-template",
        "no-system",
        "prompt",
        '{"template": CHATML} if template == "chatml" else',
        dtypes=REAL,
    ),
    Mistake(
        "thinking-on",
        "chats",
        "prompt",
        'else {"enable_thinking": False}',
        'else {"enable_thinking": True}',
        dtypes=TINY,
    ),
    Mistake(
        "prefix-lost",
        "chats",
        "value calls decode",
        "ANSWER_PREFIXES[template] + ",
        dtypes=TINY,
    ),
    Mistake(
        "other-end",
        "chats",
        "value calls",
        '"length" if result.completion_tokens >= budget else "stop"',
        "result.finish_reason",
        dtypes=REAL,
    ),
    Mistake(
        "last-turn",
        "turns",
        "prompt",
        '{"messages": messages, "chat": chat}',
        '{"messages": messages[-1:], "chat": chat}',
    ),
    Mistake(
        "budget-doubled",
        "no-system",
        "stop",
        'max_new_tokens=config["max_tokens"]',
        'max_new_tokens=2 * config["max_tokens"]',
    ),
    Mistake(
        "penalty-lost",
        "no-system",
        "sampling",
        SEED,
        f'{SEED} | {{"repetition_penalty": 1.0}}',
        dtypes=TINY,
    ),
    Mistake(
        "greedy-by-default",
        "unsaid",
        "sampling",
        SAMPLE,
        'bool(config.get("temperature"))',
        dtypes=TINY,
    ),
    Mistake(
        "sampled-by-default",
        "unsaid",
        "sampling",
        SAMPLE,
        'bool(config.get("temperature", 1.0))',
        dtypes=REAL,
    ),
    Mistake("seed-lost", "seeded", "sampling", SEED, dtypes=REAL),
    Mistake("top-p-lost", "sampled", "sampling", SEED, f'{SEED} | {{"top_p": 1.0}}', dtypes=REAL),
    Mistake(
        "same-image",
        "images",
        "image",
        "zip(chats, images, strict=True)",
        "zip(chats, [images[0]] * len(images), strict=True)",
        dtypes=TINY,
    ),
    Mistake(
        "image-behind-the-text",
        "image",
        "prompt",
        '"content": parts})',
        '"content": parts[::-1]})',
        dtypes=TINY,
    ),
    Mistake(
        "small-images",
        "images",
        "image",
        '{"do_resize": False}',
        '{"max_pixels": 64 * 64}',
        dtypes=TINY,
    ),
    Mistake(
        "sorted-answers",
        "no-system",
        "order",
        "for messages in chats]",
        "for messages in sorted(chats, key=lambda chat: len(str(chat)))]",
        dtypes=REAL,
    ),
    Mistake(
        "penalty-brought",
        "chats",
        "sampling",
        SEED,
        f'{SEED} | {{"repetition_penalty": 1.1}}',
        dtypes=REAL,
    ),
)
