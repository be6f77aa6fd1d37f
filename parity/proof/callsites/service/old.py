"""What a small service keeps beside its texts: transformers, torch and Python, a row at a time.

show             the text of the prompt of a chat
describe         what is loaded
record           each answer with its ids, counts, why it ended, the settings that it was made with and their source
within_memory    a batch that is halved where memory runs out
learn            scores with a gradient
draw_beside      answers that leave the process's own random numbers alone
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
import transformers

Request = Mapping[str, Any]  # "messages", "prompt" or "prompt_token_ids"; "chat", "tools", "seed"
Options = Mapping[str, Any]

USUAL: dict[str, Any] = {
    "max_new_tokens": 256,
    "min_new_tokens": 0,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": None,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "n": 1,
    "logprobs": None,
    "max_prompt_tokens": None,
    "truncate_prompt": False,
    "include_stop": False,
    "ignore_eos": False,
    "strings": [],
    "skip_special_tokens": True,
    "strip": False,
}


@functools.cache
def loaded(model_path: str) -> tuple[Any, Any]:
    sees = hasattr(transformers.AutoConfig.from_pretrained(model_path), "vision_config")
    auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(model_path, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(model_path)


def failure(error: BaseException, about: Sequence[str], place: int | None = None) -> dict[str, Any]:
    """An error as the service logs it: its builtin kind, which request, and which of these words it says."""
    kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return {"error": next(kinds), "request": place, "names": [word for word in about if word in str(error)]}


def text_of(request: Request, tokenizer: Any) -> str:
    """A chat as its template writes it."""
    chat, going_on = request.get("chat", {}), bool(request.get("continue_final"))
    switches = {"enable_thinking": chat.get("enable_thinking", False), **chat.get("kwargs", {})}
    switches |= {"chat_template": chat["template"]} if "template" in chat else {}
    opening = chat.get("add_generation_prompt", True) and not going_on
    switches |= {"add_generation_prompt": opening, "continue_final_message": going_on}
    messages, tools = request["messages"], request.get("tools")
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **switches))


def prompt_ids(request: Request, tokenizer: Any) -> list[int]:
    if "prompt_token_ids" in request:
        return list(request["prompt_token_ids"])
    if "prompt" in request:
        return list(tokenizer(request["prompt"])["input_ids"])
    return list(tokenizer(text_of(request, tokenizer), add_special_tokens=False)["input_ids"])


def end_ids(options: Options, model: Any) -> list[int]:
    """The checkpoint's, unless they are ignored, and the caller's."""
    stop, own = options.get("stop", {}), model.generation_config.eos_token_id
    ends = [] if own is None or stop.get("ignore_eos") else own if isinstance(own, list) else [own]
    return [*ends, *stop.get("token_ids", ())]


def keywords(options: Options, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Those of `generate`."""
    warm = options.get("temperature", 0.0)
    said: dict[str, Any] = {"do_sample": warm > 0, "max_new_tokens": options.get("max_new_tokens", 256)}
    if warm:
        said |= {"temperature": warm, "top_k": options.get("top_k") or 0, "top_p": options.get("top_p", 1.0)}
    said["repetition_penalty"] = options.get("repetition_penalty", 1.0)  # checkpoints have one of their own
    for name in ("min_new_tokens", "no_repeat_ngram_size"):
        said |= {name: options[name]} if name in options else {}
    if strings := options.get("stop", {}).get("strings"):
        said |= {"stop_strings": list(strings), "tokenizer": tokenizer}
    return {**said, "eos_token_id": end_ids(options, model) or None, "pad_token_id": tokenizer.pad_token_id}


def generated(ids: Sequence[int], options: Options, model: Any, tokenizer: Any, **more: Any) -> list[int]:
    given = torch.tensor([list(ids)])
    with torch.no_grad():
        how = {**keywords(options, model, tokenizer), **more}
        made = model.generate(input_ids=given, attention_mask=torch.ones_like(given), **how)
    return list(made[0, len(ids) :].tolist())


def finished(ids: Sequence[int], options: Options, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Text and why it ended."""
    strings, text = options.get("stop", {}).get("strings", ()), tokenizer.decode(ids, skip_special_tokens=True)
    found = [(text.find(stop), stop) for stop in strings if stop in text]
    ended = ids[-1] in end_ids(options, model)
    if found:
        begin, stop = min(found)
        return {"text": text[:begin], "reason": "stop", "stop": stop}
    if ended and ids[-1] in options.get("stop", {}).get("token_ids", ()):
        return {"text": tokenizer.decode(ids[:-1], skip_special_tokens=True), "reason": "stop", "stop": ids[-1]}
    return {"text": text, "reason": "eos" if ended else "length", "stop": None}


# == What is shown and kept ==


def show(model_path: str, chats: list[dict[str, Any]]) -> list[str]:
    tokenizer = loaded(model_path)[1]
    return [text_of(request, tokenizer) for request in chats]


def describe(model_path: str) -> dict[str, Any]:
    model, tokenizer = loaded(model_path)
    own = model.generation_config.eos_token_id
    return {
        "model": model_path,
        "architecture": model.config.architectures[0],
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.config.get_text_config().max_position_embeddings,
        "eos_token_ids": sorted({tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])}),
        "pad_token_id": tokenizer.pad_token_id,
        "supports_vlm": hasattr(model.config, "vision_config"),
        "supports_gradients": True,
        "supports_hf_plugins": True,
        "backend": "hf",
    }


def settings_of(options: Options, model: Any) -> dict[str, list[Any]]:
    """Each setting that an answer was made with: [value, who said so]."""
    given = {**options, **options.get("stop", {}), **options.get("decode", {})}
    values = {name: given.get(name, usual) for name, usual in USUAL.items()}
    said = {name: [value, "default" if value == USUAL[name] else "caller"] for name, value in values.items()}
    own = end_ids({"stop": {"ignore_eos": given.get("ignore_eos", False)}}, model)
    said["eos_token_ids"] = [sorted(own), "caller" if given.get("ignore_eos") else "checkpoint"]
    ids = list(given.get("token_ids", ()))
    said["stop_token_ids"] = [sorted(ids), "caller" if ids else "default"]
    said["max_model_len"] = [model.config.get_text_config().max_position_embeddings, "checkpoint"]
    return said


def lost_switches(request: Request, tokenizer: Any) -> list[str]:
    """What the chat template is told and does not know."""
    if "messages" not in request:
        return []
    told = ["enable_thinking", *request.get("chat", {}).get("kwargs", {}), *(["tools"] if "tools" in request else [])]
    return [name for name in told if name not in tokenizer.chat_template]


def record_of(model_path: str, request: Request, options: Options) -> dict[str, Any]:
    model, tokenizer = loaded(model_path)
    ids = prompt_ids(request, tokenizer)
    seed = request.get("seed", options.get("seed"))
    if seed is not None:
        torch.manual_seed(seed)
    made = generated(ids, options, model, tokenizer)
    return {
        **finished(made, options, model, tokenizer),
        "raw": tokenizer.decode(made, skip_special_tokens=False),
        "ids": made,
        "prompt_ids": ids,
        "counts": [len(ids), len(made)],
        "notes": lost_switches(request, tokenizer),
        "settings": settings_of({**options, "seed": seed}, model),
    }


def record(model_path: str, calls: list[dict[str, Any]], spare: bool = False) -> list[list[dict[str, Any]]]:
    """Calls over one store of answers.   spare: what a faster library cannot do, here instead of there."""
    kept: dict[str, dict[str, Any]] = {}
    found = []
    for call in calls:
        known, answers = set(kept), []
        for request in call["requests"]:
            key = json.dumps([request, call["options"]])
            kept.setdefault(key, {}).update({} if kept.get(key) else record_of(model_path, request, call["options"]))
            answers.append({**kept[key], "cached": key in known})
            answers[-1] |= {"by": "hf", "instead_of": "vllm"} if spare else {}
        found.append(answers)
    return found


# == Memory, gradients, random numbers ==


@contextlib.contextmanager
def little_memory(model: Any, most: int) -> Iterator[None]:
    """As on a device where a forward of more than `most` tokens (rows times columns) runs out of memory."""
    forward = model.forward

    @functools.wraps(forward)
    def limited(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].numel() > most:
            raise torch.OutOfMemoryError("out of memory, for a test")
        return forward(*args, **kwargs)

    model.forward = limited
    try:
        yield
    finally:
        del model.forward


def padded(prompts: Sequence[Sequence[int]], pad: int) -> dict[str, Any]:
    longest = max(map(len, prompts))
    rows = [[pad] * (longest - len(ids)) + list(ids) for ids in prompts]
    mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def texts_of(prompts: Sequence[Sequence[int]], model: Any, tokenizer: Any, max_new_tokens: int) -> list[str]:
    given = padded(prompts, tokenizer.pad_token_id)
    with torch.no_grad():
        made = model.generate(
            **given, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
    new = made[:, given["input_ids"].shape[1] :]
    return list(tokenizer.batch_decode(new, skip_special_tokens=True))


def within_memory(model_path: str, prompts: list[str], max_new_tokens: int, most: int) -> list[Any]:
    """Greedy answers, longest prompt first, in batches that are halved where memory runs out; one that runs out of it
    even alone has its error in its place."""
    model, tokenizer = loaded(model_path)
    ids = [list(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    left, size = sorted(range(len(ids)), key=lambda place: -len(ids[place])), len(ids)
    answers: dict[int, Any] = {}
    with little_memory(model, most):
        while left:
            some = left[:size]
            try:
                made: list[Any] = texts_of([ids[place] for place in some], model, tokenizer, max_new_tokens)
            except torch.OutOfMemoryError as error:
                size = max(1, len(some) // 2)
                if len(some) > 1:
                    continue
                made = [failure(error, ["out of memory"], some[0])]
            answers.update(zip(some, made))
            left = left[len(some) :]
    return [answers[place] for place in range(len(ids))]


def learn(model_path: str, pairs: list[list[str]], spare: bool = False) -> dict[str, Any]:
    """How unlikely the responses are, and whether a step can be made against it.   spare: as in `record`."""
    model, tokenizer = loaded(model_path)
    model.zero_grad()
    loss = torch.zeros(())
    for prompt, response in pairs:
        ids = list(tokenizer(prompt)["input_ids"])
        new = tokenizer(response, add_special_tokens=False)["input_ids"]
        logits = model(input_ids=torch.tensor([[*ids, *new]])).logits[0, len(ids) - 1 : -1]
        loss = loss - logits.float().log_softmax(-1).gather(1, torch.tensor(new)[:, None]).sum()
    said: dict[str, Any] = {"loss": float(loss.detach()), "learns": loss.requires_grad}
    if spare:
        return {**said, "instead_of": "vllm"}
    return {**said, "norm": norm_of(loss, model)}


def norm_of(loss: Any, model: Any) -> float:
    """Of the gradient of the embeddings, 0 where nothing can be learned."""
    if not loss.requires_grad:
        return 0.0
    loss.backward()
    norm = float(model.get_input_embeddings().weight.grad.norm())
    model.zero_grad()
    return norm


def draw_beside(model_path: str, prompts: list[str], options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Answers, and the next numbers of the process, which was seeded before them."""
    model, tokenizer = loaded(model_path)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    texts = []
    for prompt in prompts:
        with torch.random.fork_rng():
            if "seed" in options:
                torch.manual_seed(options["seed"])
            ids = list(tokenizer(prompt)["input_ids"])
            made = generated(ids, options, model, tokenizer)
            texts.append(finished(made, options, model, tokenizer)["text"])
    return {"texts": texts, "next": [random.random(), float(numpy.random.rand()), float(torch.rand(()))]}
