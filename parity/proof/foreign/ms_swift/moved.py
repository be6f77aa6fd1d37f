"""ms-swift's inference on the engine."""

from __future__ import annotations

from typing import Any

from parity.proof.foreign.engines import engine, sampling_defaults, saved_sampling

# ms-swift's own template "chatml": no default system prompt, unlike the checkpoint's.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ANSWER_PREFIXES = {"qwen3": "<think>\n\n</think>\n\n", "chatml": "", "qwen3_vl": ""}
IMAGE_TAG = "<image>"
PATCH = 16


def infer(
    model_path: str,
    dtype: str,
    template: str,
    chats: list[list[dict[str, Any]]],
    config: dict[str, Any],
    images: list[list[str]] | None = None,
    torch_seed: int | None = None,
) -> list[dict[str, Any]]:
    model = engine(model_path, dtype)
    options = options_of(model_path, config)
    options["seed"] = torch_seed
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
        for index, text in enumerate(message["content"].split(IMAGE_TAG)):
            if index:
                parts.append({"type": "image", "image": resized(left.pop(0))})
            if text:
                parts.append({"type": "text", "text": text})
        turns.append({"role": message["role"], "content": parts})
    return {"messages": turns, "chat": {"enable_thinking": True}, "vlm": {"do_resize": False}}


def resized(path: str) -> Any:
    """ms-swift resizes an image by Qwen's own package, and the processor takes it as it is."""
    from qwen_vl_utils import fetch_image

    return fetch_image({"image": path}, image_patch_size=PATCH)


def answer_of(result: Any, template: str, budget: int) -> dict[str, Any]:
    """The content keeps its stop string, and begins with the opening that the template gave it."""
    reason = "length" if result.completion_tokens >= budget else "stop"
    return {"content": ANSWER_PREFIXES[template] + result.text, "finish_reason": reason}


def options_of(model_path: str, config: dict[str, Any]) -> dict[str, Any]:
    """What RequestConfig does not say is the checkpoint's; a temperature of 0 is greedy."""
    defaults = sampling_defaults(model_path)
    penalty = config.get("repetition_penalty", defaults.repetition_penalty)
    options: dict[str, Any] = {
        "max_new_tokens": config["max_tokens"],
        "repetition_penalty": penalty,
        "stop": {"strings": config.get("stop", []), "include_stop": True},
        "decode": {"skip_special_tokens": False},
    }
    temperature = temperature_of(model_path, config)
    if temperature:
        options["temperature"] = temperature
        options["top_k"] = config.get("top_k", defaults.top_k)
        options["top_p"] = config.get("top_p", defaults.top_p)
    return options


def temperature_of(model_path: str, config: dict[str, Any]) -> float:
    saved = saved_sampling(model_path)
    if config.get("temperature") is not None:
        return float(config["temperature"])
    return saved.temperature if saved.do_sample else 0.0
