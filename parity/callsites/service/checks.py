"""What the service refuses before anything runs, each with the words that a caller needs to mend it."""

from __future__ import annotations

import base64
import difflib
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

CHAT = {"enable_thinking", "add_generation_prompt", "template", "kwargs", "special_tokens"}
FIELDS = {
    "request": {
        "messages", "prompt", "prompt_token_ids", "tools", "chat", "continue_final", "seed", "adapter", "structured",
        "images", "vlm",
    },
    "options": {
        "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n",
        "no_repeat_ngram_size", "seed", "logprobs", "logits", "stop", "decode", "max_prompt_tokens", "truncate_prompt",
    },
    "stop": {"strings", "token_ids", "include_stop", "ignore_eos"},
    "decode": {"skip_special_tokens", "clean_up_tokenization_spaces", "strip"},
    "chat": CHAT,
    "structured": {"json", "json_object", "regex", "choice", "grammar"},
    "load": {"model", "backend", "dtype", "max_model_len", "adapters"},
}  # fmt: skip
FORMS = ("messages", "prompt", "prompt_token_ids")
ROLES = ("system", "user", "assistant", "tool")
DTYPES = ("float32", "bfloat16", "float16")
BOUNDS = {  # least, most
    "max_new_tokens": (1, math.inf),
    "min_new_tokens": (0, math.inf),
    "temperature": (0, math.inf),
    "top_p": (1e-9, 1),
    "top_k": (1, math.inf),
    "min_p": (0, 1),
    "repetition_penalty": (1e-9, math.inf),
    "no_repeat_ngram_size": (1, math.inf),
    "n": (1, 16_384),
    "seed": (0, 2**63 - 1),
}
WHOLE = {"max_new_tokens", "min_new_tokens", "top_k", "no_repeat_ngram_size", "n", "seed"}
NOT_FAST: dict[str, Callable[[Any], bool]] = {  # what a faster library has no word for, or no room
    "no_repeat_ngram_size": lambda value: True,
    "temperature": lambda value: value > 2,
}


def check_fields(kind: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in FIELDS[kind]:
            [close] = difflib.get_close_matches(name, FIELDS[kind], 1) or [", ".join(sorted(FIELDS[kind]))]
            raise ValueError(f"{kind} has no field {name!r}, but {close}")
        if name in FIELDS and isinstance(value, Mapping):
            check_fields(name, value)


def check_bounds(options: Mapping[str, Any]) -> None:
    for name, (least, most) in BOUNDS.items():
        value = options.get(name, least)
        kinds = (int,) if name in WHOLE else (int, float)
        if not isinstance(value, kinds) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}, not between {least} and {most}")


def check_ids(ids: Sequence[int], model: Any, what: str) -> None:
    size = model.config.get_text_config().vocab_size
    for unknown in (i for i in ids if not 0 <= i < size):
        raise ValueError(f"{what} {unknown} is not among the {size} that there are")


def check_options(options: Mapping[str, Any], model: Any, tokenizer: Any, fast: bool) -> None:
    check_fields("options", options)
    check_bounds(options)
    if options.get("min_new_tokens", 0) > options.get("max_new_tokens", 256):
        raise ValueError("min_new_tokens is above max_new_tokens")
    if (options.get("logprobs") or 0) > model.config.get_text_config().vocab_size:
        raise ValueError(f"logprobs is {options['logprobs']}, more than there are tokens")
    stop = options.get("stop", {})
    check_ids(stop.get("token_ids", ()), model, "stop id")
    for text in stop.get("strings", ()):
        inside = [token for token in tokenizer.all_special_tokens if token in text and token != text]
        if not text or inside:
            raise ValueError(f"the stop {text!r} is never in a text")
    for name in NOT_FAST.keys() & options.keys() if fast else ():
        if NOT_FAST[name](options[name]):
            raise NotImplementedError(f"{name} is not for the fast library")


def check_message(message: Mapping[str, Any]) -> None:
    if message.get("role") not in ROLES:
        raise ValueError(f"there is no role {message.get('role')!r}")
    content = message.get("content")
    if content is None:
        raise ValueError("a message has no content")
    for part in () if isinstance(content, str) else content:
        if part["type"] != "text":
            raise ValueError(f"a part of type {part['type']!r} is no text")


def check_messages(request: Mapping[str, Any], tokenizer: Any) -> None:
    messages = request["messages"]
    if not messages:
        raise ValueError("messages is empty")
    for message in messages:
        check_message(message)
    if request.get("continue_final") and messages[-1]["role"] != "assistant":
        raise ValueError("continue_final, and nothing of the assistant's to go on with")
    if request.get("chat", {}).get("special_tokens") == "refuse":
        written = json.dumps(messages, ensure_ascii=False)
        for token in (one for one in tokenizer.all_special_tokens if one in written):
            raise ValueError(f"the messages hold {token}")


def check_picture(source: str) -> None:
    if source.startswith("https://"):
        raise ValueError(f"{source} is not on this machine")
    if not source.startswith("data:"):
        if not Path(source).is_file():
            raise ValueError(f"there is no file {source}")
        return
    try:
        Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
    except UnidentifiedImageError as error:
        raise ValueError("unreadable picture") from error


def check_pictures(request: Mapping[str, Any]) -> None:
    sources, budget = request.get("images", []), request.get("vlm", {})
    if not sources:
        raise ValueError("no picture in the request")
    if budget.get("min_pixels", 0) > budget.get("max_pixels", math.inf):
        raise ValueError("min_pixels is above max_pixels")
    parts = [part for message in request["messages"] for part in message["content"] if part["type"] == "image"]
    if len(parts) != len(sources):
        raise ValueError(f"{len(sources)} images for {len(parts)} places")
    for source in sources:
        check_picture(source)


def check_form(form: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if len(form) != 1:
        raise ValueError(f"{len(form)} forms of an answer, where one is wanted")
    for name in ("min_new_tokens", "logprobs"):
        if name in options:
            raise ValueError(f"{name} beside a form of the answer")
    for unseen in re.findall("multipleOf|uniqueItems", json.dumps(form)):
        raise ValueError(f"no grammar can be made of {unseen}")


def check_length(request: Mapping[str, Any], options: Mapping[str, Any], model: Any, tokenizer: Any) -> None:
    ids = request.get("prompt_token_ids", ())
    if "prompt" in request:
        ids = tokenizer(request["prompt"])["input_ids"]
    if not ids:
        raise ValueError("the prompt has no tokens")
    check_ids(ids, model, "token id")
    room = model.config.get_text_config().max_position_embeddings - options.get("max_new_tokens", 256)
    most = options.get("max_prompt_tokens", room)
    if len(ids) > min(most, room):
        raise ValueError(f"the prompt has {len(ids)} tokens, max_prompt_tokens are {most}, there is room for {room}")


def check_request(request: Mapping[str, Any], options: Mapping[str, Any], model: Any, tokenizer: Any) -> None:
    check_fields("request", request)
    forms = [name for name in FORMS if name in request]
    if len(forms) != 1:
        raise ValueError(f"{' and '.join(forms) or 'none'} of messages, prompt, prompt_token_ids")
    if request.get("adapter"):
        raise ValueError(f"there is no adapter {request['adapter']!r}")
    if "structured" in request:
        check_form(request["structured"], options)
    if forms == ["messages"]:
        check_messages(request, tokenizer)
        return
    if request.get("tools") or request.get("chat"):
        raise ValueError("tools and chat are for messages")
    check_length(request, options, model, tokenizer)


def check_response(prompt: str, response: Any, model: Any, tokenizer: Any) -> None:
    ids = response
    if isinstance(response, str):
        ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError("the response has no tokens")
    check_ids(ids, model, "token id")
    tokens = len(tokenizer(prompt)["input_ids"]) + len(ids)
    if tokens > model.config.get_text_config().max_position_embeddings:
        raise ValueError(f"prompt and response have {tokens} tokens")


def check_load(load: Mapping[str, Any]) -> None:
    check_fields("load", load)
    if load.get("dtype", DTYPES[0]) not in DTYPES:
        raise ValueError(f"there is no dtype {load['dtype']!r}")
    if load.get("max_model_len", 2) > 512:
        raise ValueError(f"max_model_len is {load['max_model_len']}, the checkpoint has 512")
    if "model" in load:
        raise RuntimeError(f"there is no model at {load['model']}")
