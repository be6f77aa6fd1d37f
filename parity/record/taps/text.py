"""Taps on chat templates and tokenizers: messages -> text -> ids, and ids -> text."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.record.calls import event_tap
from parity.record.events import Decode, Event, Events, Ids, Output, Template, Tokens
from parity.record.patching import Arguments, Invocation
from parity.record.rows import Fields, sourced


def id_lists(value: Any) -> list[list[int]]:
    """Ids in any shape as a list of lists."""
    value = as_list(value)
    if isinstance(value, int):
        return [[value]]
    if value and isinstance(value[0], int):
        return [list(value)]
    return [list(as_list(entry)) for entry in value]


def as_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def texts_of(text: Any) -> list[str]:
    """One text or several; one that was split into words is joined."""
    entries = [text] if isinstance(text, str) else list(text)
    return [entry if isinstance(entry, str) else " ".join(map(str, entry)) for entry in entries]


# == Chat templates ==

NOT_FOR_THE_TEMPLATE = {
    "conversation", "tokenize", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "tokenizer_kwargs", "chat_template", "return_assistant_tokens_mask", "kwargs",
    "processor_kwargs",
}  # fmt: skip
SWITCHES = {"enable_thinking"}  # where False says something that leaving it out does not


def read_template(call: Invocation, result: Any, inner: Events) -> Template:
    """A rendered chat template. Where its text went on to the tokenizer, that call has it."""
    given = call.arguments
    chat = given["conversation"]
    source = given.get("chat_template") or call.owner.chat_template or ""
    if not isinstance(source, str):
        source = json.dumps(source)
    first = result[0] if isinstance(result, list) and result else result
    texts = texts_of(result) if isinstance(first, str) else tokenized_texts(inner)
    chats = chat if chat and isinstance(chat[0], (list, tuple)) else [chat]
    return Template(
        [plain_chat(entry, "".join(texts)) for entry in chats],
        texts,
        hashlib.sha256(source.encode()).hexdigest(),
        plain_json(template_arguments(given)),
    )


def template_arguments(given: Arguments) -> Fields:
    """What the template was told beside the chat."""
    found = Fields()
    for name, value in given.items():
        if name in NOT_FOR_THE_TEMPLATE:
            continue
        if name in SWITCHES or value not in (None, False):
            found[name] = value
    return found


def plain_json(value: Any) -> Any:
    """A value as JSON has it; what it has no word for is named by its class."""
    return json.loads(json.dumps(value, default=lambda other: f"<{type(other).__name__}>"))


def plain_chat(chat: Any, text: str) -> list[Any]:
    """Messages as data. An image becomes {"type": "image"}, and a clip {"type": "video"}: their
    pixels are in the row's images."""
    found = []
    for entry in chat:
        fields = {**entry, "content": entry.get("content")}
        plain = {name: plain_content(value, text) for name, value in fields.items()}
        found.append(plain_json(plain))
    return found


def plain_content(content: Any, text: str) -> Any:
    """text: the template's. `~` in one writes the name of an enum whose members are strings, `+`
    the string."""
    if not isinstance(content, (list, tuple)):
        name = str(content)
        return name if isinstance(content, str) and name in text else content
    match [plain_part(part) for part in content]:
        case [{"type": "text", "text": text}]:
            return text  # two ways to write the same
        case parts:
            return parts


def plain_part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    kind = str(part.get("type", ""))
    shown = [name for name in ("image", "video") if kind.startswith(name)]
    return {"type": shown[0]} if shown else dict(part)


# == Tokens ==


def read_tokens(call: Invocation, result: Any, _: Events) -> Tokens | None:
    """None where there is no text, as of a call for labels."""
    text = call.args[1] if len(call.args) > 1 else call.kwargs.get("text")
    if text is None:
        return None
    texts = texts_of(text)
    if not hasattr(result, "keys"):
        return Tokens(texts, id_lists(result))
    rows = id_lists(result["input_ids"])
    if "attention_mask" in result:
        masks = id_lists(result["attention_mask"])
        rows = [[*itertools.compress(ids, mask)] for ids, mask in zip(rows, masks)]
    return Tokens(texts, rows)


def tokenized_texts(events: Iterable[Event]) -> list[str]:
    found = list[str]()
    for event in events:
        if isinstance(event, Tokens):
            found += event.texts
    return found


def known_ids(events: Iterable[Event]) -> set[Ids]:
    """Ids that a tokenizer gave, without padding."""
    found = set[Ids]()
    for event in events:
        if isinstance(event, Tokens):
            found.update(map(tuple, event.ids))
    return found


def joined_text(texts: Mapping[Ids, str], ids: Ids) -> str | None:
    """The text of ids that are those of some texts, one behind the other."""
    found = list[str]()
    begin = 0
    while begin < len(ids):
        part = longest_beginning(texts, ids[begin:])
        if not part:
            return None
        found.append(texts[part])
        begin += len(part)
    return "".join(found)


def longest_beginning(texts: Iterable[Ids], ids: Ids) -> Ids:
    """The longest of some texts that ids begin with; () for none."""
    beginnings = [text for text in texts if text == ids[: len(text)]]
    return max(beginnings, key=len, default=())


# A clip of Qwen3-VL's: the time of each group of frames, and its tokens between markers.
TIMES = re.compile(r"(<[\d.]+ seconds><\|vision_start\|>(<\|video_pad\|>)+<\|vision_end\|>)+")


def folded_images(text: str) -> str:
    """Text with each run of image tokens, and each clip, as one, whatever they are called."""
    text = TIMES.sub("<|video_pad|>", text)
    for name in ("<|image_pad|>", "<|video_pad|>", "<image>", "<image_soft_token>"):
        while name * 2 in text:
            text = text.replace(name * 2, name)
    return text


# == Decoding ==


def read_decode(call: Invocation, result: Any, _: Events) -> Decode:
    given = call.arguments
    clean = given.get("clean_up_tokenization_spaces")
    if clean is None:
        clean = getattr(call.owner, "clean_up_tokenization_spaces", False)
    how = {
        "skip_special_tokens": bool(given.get("skip_special_tokens", False)),
        "clean_up": bool(clean),
    }
    ids = given["token_ids"] if "token_ids" in given else given["sequences"]
    return Decode(id_lists(ids), texts_of(result), how)


def decoded_part(ids: list[int], output: Output) -> str | None:
    """Which part of a sequence was decoded, or None if none of it was."""
    if ids == output.whole:
        return "whole"
    if ids == output.output_ids:
        return "ended"
    if ids == output.new_ids:
        return "new"
    return "part" if len(ids) > 1 and ids == output.new_ids[: len(ids)] else None


def decodings(output: Output, later: Iterable[Event]) -> Iterator[Fields]:
    """What was decoded of a sequence: by the library itself, then by calls after the model's."""
    if "decode" in output.reported:
        yield {**output.reported["decode"], "text": output.reported.get("text")}
    for event in later:
        if not isinstance(event, Decode):
            continue
        for ids, text in zip(event.ids, event.texts):
            if part := decoded_part(ids, output):
                yield {"ids": part, **event.how, "text": text}
                break  # equal rows of one call have equal texts


def decode_stages(output: Output, later: Iterable[Event]) -> Fields:
    """The stages of decoding: the first one, and all where there are several."""
    found = [*decodings(output, later)]
    if output.reported.get("loop"):  # which decodes what it has so far, again and again
        found = [how for how in found if how["ids"] != "part"]
        found = [how for how in found if how["ids"] == "ended"] or found
    if not found:
        return {}
    first = dict(found[0])
    text = first.pop("text")
    stages = {"decode": first, "text": text}
    if len(found) > 1:
        stages["decodes"] = found
    return stages


# == The chat of an engine's request ==


def without_mark(event: Event, mark: str) -> Event:
    """A template without the mark that an engine puts into the special tokens of its messages."""
    if not isinstance(event, Template):
        return event
    chats = json.loads(json.dumps(event.chats).replace(mark, ""))
    texts = [text.replace(mark, "") for text in event.texts]
    return replace(event, chats=chats, texts=texts)


def chat_stages(made: Events) -> Fields:
    """The chat stages of one request, from what happened while its prompt was made."""
    for event in reversed(made):
        if isinstance(event, Template) and event.texts:
            return {
                "messages": event.chats[0],
                "prompt_text": event.texts[0],
                "template": event.stage,
            }
    texts = tokenized_texts(made)
    return {"prompt_text": texts[0]} if texts else {}


# An engine decodes at every step, and tells its text itself.
tap_decode = event_tap("decode", "a decode call", read_decode, unless="engine")
tap_template = event_tap("template", "a chat template", read_template)
tap_tokens = event_tap("tokens", "a tokenizer call", read_tokens)


def never_text(
    strings: Sequence[str], tokenizer: Any, skip_special: bool, ends: Collection[int] = ()
) -> Fields:
    """Of stop strings, those that never end a row: they hold a special token, which the searched
    text leaves out, or are the text of an id that ends the row by itself."""
    if not strings:
        return {}
    added = getattr(tokenizer, "added_tokens_decoder", {})
    of_ends = {added[token].content for token in ends if token in added}
    special = list[str]()
    if skip_special:
        special = [token.content for token in added.values() if token.special]
    found = list[str]()
    for text in strings:
        if text in of_ends or any(token in text for token in special):
            found.append(text)
    return {"never_text": sourced(found, "caller")} if found else {}


TAPS = {
    "transformers.tokenization_utils_base": {
        "PreTrainedTokenizerBase.apply_chat_template": tap_template,
        "PreTrainedTokenizerBase.__call__": tap_tokens,
        "PreTrainedTokenizerBase.encode": tap_tokens,
        "PreTrainedTokenizerBase.decode": tap_decode,
        "PreTrainedTokenizerBase.batch_decode": tap_decode,
    },
    "transformers.processing_utils": {"ProcessorMixin.apply_chat_template": tap_template},
}
