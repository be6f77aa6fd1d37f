"""What people write in notebooks: transformers' generate, a row at a time, with whatever setting is wanted today.

Every setting of it is a keyword of transformers or a line of torch; nothing is kept between two calls.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from PIL import Image, ImageOps

Row = Mapping[str, Any]  # "prompt", "ids" or "messages"; "images": paths; and what differs from the settings


@functools.cache
def loaded(model_path: str, dtype: str) -> tuple[Any, Any, Any]:
    """(model, tokenizer, processor of pictures or None)"""
    config = transformers.AutoConfig.from_pretrained(model_path)
    pictures = hasattr(config, "vision_config")
    auto = transformers.AutoModelForImageTextToText if pictures else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(model_path, dtype=getattr(torch, dtype)).eval()
    processor = transformers.AutoProcessor.from_pretrained(model_path) if pictures else None
    return model, transformers.AutoTokenizer.from_pretrained(model_path), processor


@functools.cache
def adapted(model_path: str, adapter: str, dtype: str) -> Any:
    from peft import PeftModel

    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, dtype))
    return PeftModel.from_pretrained(model, adapter).eval()


def joined(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose text is one string, for templates that know nothing of parts."""
    return {**message, "content": "".join(part["text"] for part in message["content"])}


@contextlib.contextmanager
def templates_of(how: Mapping[str, Any], tokenizer: Any) -> Iterator[None]:
    """The checkpoint's chat templates, by name, are these: the one named "tool_use" is for requests with tools."""
    own = tokenizer.chat_template
    tokenizer.chat_template = how.get("templates", own)
    try:
        yield
    finally:
        tokenizer.chat_template = own


def inputs_of(row: Row, how: Mapping[str, Any], tokenizer: Any, processor: Any) -> dict[str, Any]:
    if "ids" in row:
        ids = torch.tensor([row["ids"]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "messages" in row:
        switches = {"enable_thinking": how.get("thinking", False), "add_generation_prompt": how.get("opening", True)}
        if how.get("template"):
            switches["chat_template"] = how["template"]
        if row.get("continue"):
            switches |= {"continue_final_message": True, "add_generation_prompt": False}
        switches |= how.get("variables", {})
        messages = list(map(joined, row["messages"])) if how.get("joined") else row["messages"]
        with templates_of(how, tokenizer):
            text = tokenizer.apply_chat_template(messages, tools=row.get("tools"), tokenize=False, **switches)
    else:
        text = row["prompt"]
    special = "prompt" in row
    if how.get("markers_as_text"):  # what somebody writes ends no turn
        [said] = [message["content"] for message in row["messages"]]
        before, _, after = text.partition(said)
        parts = ((before, False), (said, True), (after, False))
        own = [tokenizer(part, add_special_tokens=False, split_special_tokens=split) for part, split in parts]
        ids = torch.tensor([[i for one in own for i in one["input_ids"]]])
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    elif not row.get("images"):
        given = dict(tokenizer(text, return_tensors="pt", add_special_tokens=special))
    else:
        images = [ImageOps.exif_transpose(Image.open(path)).convert("RGB") for path in row["images"]]
        budget: dict[str, Any] = {}
        if how.get("pixels"):  # what is not said is the checkpoint's
            own = processor.image_processor.size
            edges = {edge: how["pixels"].get(edge, own[edge]) for edge in ("shortest_edge", "longest_edge")}
            budget = {"size": {**edges, "longest_edge": max(edges.values())}}
        budget |= {"do_resize": False} if how.get("as_it_is") else {}
        given = dict(processor(text=[text], images=[images], return_tensors="pt", **budget))
    if how.get("keep_last") or how.get("window"):  # which is to hold the answer, too
        room = how["window"] - how.get("max_new_tokens", 24) if how.get("window") else how["keep_last"]
        last = min(how.get("keep_last", room), room)
        given = {name: value[:, -last:] for name, value in given.items()}
    return given


def settings_of(how: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Keywords of `generate`: what the checkpoint asks for in its generation_config counts for nothing here."""
    warm = how.get("temperature", 0.0)
    penalty = 1.0 if how.get("centred") else how.get("repetition_penalty", 1.0)
    said: dict[str, Any] = {"do_sample": warm > 0, "repetition_penalty": penalty}
    if warm:
        said |= {"temperature": warm, "top_k": how.get("top_k", 0), "top_p": how.get("top_p", 1.0)}
        said |= {"min_p": how["min_p"]} if "min_p" in how else {}
    said |= {"max_new_tokens": how.get("max_new_tokens", 24)}
    for name in ("min_new_tokens", "no_repeat_ngram_size"):
        said |= {name: how[name]} if name in how else {}
    return said


def ends_of(how: Mapping[str, Any], model: Any) -> list[int]:
    own = model.generation_config.eos_token_id
    own = [] if own is None or how.get("go_on") else own if isinstance(own, list) else [own]
    return [*own, *how.get("stop_ids", ())]


def cut(text: str, how: Mapping[str, Any], least: int = 0) -> tuple[str, str | None]:
    """Before (or behind) the stop that is complete first, behind the first `least` characters."""
    found = []
    for stop in how.get("stop", ()):
        start = text.find(stop, max(0, least - len(stop) + 1))
        found += [(start + len(stop), stop)] if start >= 0 else []
    if not found:
        return text, None
    end, stop = min(found, key=lambda one: (one[0], -len(one[1])))
    return text[: end if how.get("include_stop") else end - len(stop)], stop


def enough(how: Mapping[str, Any]) -> int | None:
    """How many tokens are, if any: not before the least number."""
    return max(how["enough"], how.get("min_new_tokens", 0)) if how.get("enough") else None


class Enough(transformers.StoppingCriteria):  # type: ignore[misc]
    """After so many tokens of the answer."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.tokens)


class Until(transformers.StoppingCriteria):  # type: ignore[misc]
    """As soon as the answer says this."""

    def __init__(self, said: str, length: int, tokenizer: Any) -> None:
        self.said, self.length, self.tokenizer = said, length, tokenizer

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        [text] = self.tokenizer.batch_decode(input_ids[:, self.length :], skip_special_tokens=True)
        return torch.tensor([self.said in text])


class NeverTwice(transformers.LogitsProcessor):  # type: ignore[misc]
    """No token of the answer comes again in it; those of the prompt may."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores.scatter(1, input_ids[:, self.length :], -float("inf"))


class Centred(transformers.LogitsProcessor):  # type: ignore[misc]
    """The likeliest token has 0, all others are below it: a penalty for repeating acts otherwise on them."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores - scores.amax(-1, keepdim=True)


def processors_of(how: Mapping[str, Any], length: int, model: Any, tokenizer: Any, ends: Sequence[int]) -> list[Any]:
    """What acts on the logits beside the keywords of `generate`, in this order."""
    found: list[Any] = []
    if how.get("centred"):  # `generate` would put its own penalty before it
        penalty = transformers.RepetitionPenaltyLogitsProcessor(how.get("repetition_penalty", 1.0))
        found += [Centred(), penalty]
    if how.get("form"):
        found.append(grammar(how["form"], model, tokenizer, ends))
    if how.get("never_twice"):
        found.append(NeverTwice(length))
    return found


def answer(model_path: str, row: Row, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The samples of one row."""
    how = {**settings, **row}
    dtype = how.get("dtype", "float32")
    model, tokenizer, processor = loaded(model_path, dtype)
    model = adapted(model_path, how["adapter"], dtype) if how.get("adapter") else model
    given, ends = inputs_of(row, how, tokenizer, processor), ends_of(how, model)
    length, samples = given["input_ids"].shape[1], []
    if length > how.get("most", length):
        return [{"error": "too long"}]
    for number in range(how.get("n", 1)):
        if how.get("seed") is not None:
            torch.manual_seed(how["seed"] + number)
        more: dict[str, Any] = {}
        if how.get("stop") and not how.get("min_new_tokens"):  # which that criterion does not heed
            more = {"stop_strings": list(how["stop"]), "tokenizer": tokenizer}
        if how.get("enough"):
            more["stopping_criteria"] = [Enough(length + enough(how))]
        if how.get("until"):
            more["stopping_criteria"] = [Until(how["until"], length, tokenizer)]
        more["logits_processor"] = processors_of(how, length, model, tokenizer, ends)
        if how.get("banned"):
            more["bad_words_ids"] = [[i] for i in how["banned"]]
        with torch.no_grad():
            made = model.generate(
                **given, **settings_of(how, tokenizer), **more, eos_token_id=ends or None,
                pad_token_id=tokenizer.pad_token_id, return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        samples.append(told(made, length, ends, how, tokenizer))
    return [*samples, *samples[:1]] if how.get("first_again") else samples


def until_stop(ids: list[int], how: Mapping[str, Any], tokenizer: Any) -> list[int]:
    """Ids up to the first stop that is complete behind the least number of tokens."""
    least = how["min_new_tokens"]
    texts = [tokenizer.decode(ids[:k], skip_special_tokens=True) for k in range(len(ids) + 1)]
    found = (k for k in range(least + 1, len(ids) + 1) if cut(texts[k], how, len(texts[least]))[1])
    return ids[: next(found, len(ids))]


def reason_of(tokens: int, text: str, end: int | None, how: Mapping[str, Any]) -> tuple[str, Any]:
    """Why an answer without a stop string ends, at the id `end` if it is one. A rule of the caller's counts last."""
    if end is not None:
        return ("stop", end) if end in how.get("stop_ids", ()) or how.get("go_on") else ("eos", None)
    if tokens == how.get("max_new_tokens", 24):
        return "length", None
    if tokens == enough(how):
        return "plugin", "enough"
    return ("plugin", "until") if how.get("until") and how["until"] in text else ("length", None)


def told(made: Any, length: int, ends: Sequence[int], how: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """What one wants to know of an answer."""
    ids = made.sequences[0, length:].tolist()
    if how.get("stop") and how.get("min_new_tokens"):
        ids = until_stop(ids, how, tokenizer)
    ended = bool(ids) and ids[-1] in ends
    kept = how.get("include_stop") and ended and ids[-1] in how.get("stop_ids", ())
    body = ids[:-1] if ended and not kept else ids
    text = tokenizer.decode(
        body,
        skip_special_tokens=how.get("skip_special", True),
        clean_up_tokenization_spaces=how.get("clean_up", False),
    )
    added = tokenizer.added_tokens_decoder.get(ids[-1]) if kept else None
    if added is not None and added.special:  # a stop that is to be kept is no marker
        text += added.content
    least = len(
        tokenizer.decode(ids[: how.get("min_new_tokens", 0)], skip_special_tokens=how.get("skip_special", True))
    )
    whole, stop = cut(text, how, least)
    whole = whole.strip() if how.get("strip") else whole
    for change in how.get("then", ()):
        whole = whole.upper() if change == "upper" else whole + change
    said: dict[str, Any] = {"text": whole, "tokens": len(ids), "prompt": length}
    said["raw"] = tokenizer.decode(ids, skip_special_tokens=False)
    end = ids[-1] if ended else None
    said["reason"], said["stop"] = ("stop", stop) if stop else reason_of(len(ids), text, end, how)
    if how.get("best"):
        said["best"] = torch.stack(made.logits, dim=1)[0, : len(ids)].argmax(-1).tolist()
    if "logprobs" in how:
        steps = torch.stack(made.logits, dim=1)[0].float().log_softmax(-1)  # [tokens, vocabulary]
        said["logprobs"] = [float(step[i]) for step, i in zip(steps, ids)]
        best = [step.topk(how["logprobs"]) for step in steps] if how["logprobs"] else []
        said["top"] = [[[int(i), float(v)] for v, i in zip(step.values, step.indices)] for step in best]
    return said


def grammar(form: Mapping[str, Any], model: Any, tokenizer: Any, ends: Sequence[int]) -> Any:
    """A logits processor of xgrammar's: "json" a schema, "json_object" any, "regex", "choice" of strings, "grammar"."""
    import xgrammar
    from xgrammar.contrib.hf import LogitsProcessor

    size = model.config.get_text_config().vocab_size
    known = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=list(ends))
    compiler = xgrammar.GrammarCompiler(known)
    if form.get("grammar"):
        return LogitsProcessor(compiler.compile_grammar(form["grammar"]))
    if schema := form.get("json") or (form.get("json_object") and {"type": "object"}):
        return LogitsProcessor(
            compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, separators=(",", ":"))
        )
    return LogitsProcessor(compiler.compile_regex(form.get("regex") or "|".join(map(re.escape, form["choice"]))))


def ask(model_path: str, rows: list[dict[str, Any]], settings: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [answer(model_path, row, settings) for row in rows]


def ask_often(model_path: str, calls: list[dict[str, Any]]) -> list[list[list[dict[str, Any]]]]:
    """Several calls in a row, each {"rows": ..., "settings": ..., "model_path": another one}."""
    return [ask(call.get("model_path", model_path), call["rows"], call["settings"]) for call in calls]


def chat(model_path: str, questions: list[str]) -> list[str]:
    """Answers with nothing set: greedy, as long as they get."""
    rows = [{"messages": [{"role": "user", "content": question}]} for question in questions]
    return [answer(model_path, row, {"max_new_tokens": 256})[0]["text"] for row in rows]


def score(
    model_path: str, pairs: list[dict[str, Any]], dtype: str = "float32", best: bool = False
) -> list[dict[str, Any]]:
    """Log-probability of each token of each given response. best: and the token that the model would have said."""
    model, tokenizer, processor = loaded(model_path, dtype)
    found = []
    for pair in pairs:
        given = inputs_of(pair, pair, tokenizer, processor)
        reader = adapted(model_path, pair["adapter"], dtype) if pair.get("adapter") else model
        response = tokenizer(pair["response"], add_special_tokens=False)["input_ids"]
        ids = torch.tensor([[*given["input_ids"][0].tolist(), *response]])
        more = {k: v for k, v in given.items() if k not in ("input_ids", "attention_mask", "mm_token_type_ids")}
        if "mm_token_type_ids" in given:
            kinds = given["mm_token_type_ids"][0].tolist()
            more["mm_token_type_ids"] = torch.tensor([[*kinds, *[0] * len(response)]])
        with torch.no_grad():
            logits = reader(input_ids=ids, attention_mask=torch.ones_like(ids), **more).logits
        length, steps = given["input_ids"].shape[1], logits[0].float().log_softmax(-1)
        values = [float(steps[length - 1 + k, i]) for k, i in enumerate(response)]
        found.append({"prompt": length, "tokens": len(response), "logprobs": values})
        if pair.get("types"):  # numbers, which a report can be made of
            found[-1]["types"] = sorted({type(value).__name__ for value in values})
        if best:
            found[-1]["best"] = steps[length - 1 : -1].argmax(-1).tolist()
    return found
