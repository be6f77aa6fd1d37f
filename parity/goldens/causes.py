"""What a cause is called, and what it means: one table.

A cause is the name of what differs first, `stage.field`: "sampling.top_p", "prompt.messages". Some
have no field: "error", "calls", "order", "cache", "value". What a name says to a person, and what a
run puts back to prove it, stands here once for its stage, or for one of its fields.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A stage, or a field of one.   put_back: what a run restores of the golden to prove it: a part
    of a request (parity/judge/replay.py), or "load.NAME", a field of the engine's load settings."""

    name: str
    sentence: str
    put_back: tuple[str, ...] = ()


def entry(name: str, sentence: str, put_back: str = "") -> Entry:
    return Entry(name, sentence, tuple(put_back.split()))


TABLE: tuple[Entry, ...] = (
    entry("error", "an exception"),
    entry("unstable", "the old code does not repeat itself"),
    entry("golden.empty", "the golden leaves out what it is there to compare"),
    entry("calls", "other requests reach the model, or another number of them"),
    entry("order", "an answer belongs to another request", "load.max_batch_size"),
    entry("cache", "one answer is kept for, or given to, requests that are not alike"),
    entry("prompt", "the prompt is another one", "prompts"),
    entry("prompt.messages", "the messages are others", "prompts"),
    entry("prompt.template", "the chat template, or what it was told, is another one", "prompts"),
    entry("prompt.text", "the text of the prompt is another one", "prompts"),
    entry("prompt.ids", "the same text became other ids, or a part is missing", "prompts"),
    entry("image", "the picture, or what was made of it, is another one", "pictures"),
    entry("batch", "a row's answer depends on its neighbours", "load.max_batch_size"),
    entry("batch.keys", "other tensors reach the model beside the ids"),
    entry("batch.marks", "other tensors reach the model beside the ids"),
    entry("model", "the model is another one"),
    entry("model.weights", "the weights are others", "load.model"),
    entry("model.config", "the checkpoint's config.json says something else", "load.model"),
    entry("model.class", "the model's class is another one", "load.model"),
    entry("model.adapters", "the adapter is another one", "load.model"),
    entry("model.dtype", "the weights have another type", "load.dtype"),
    entry("model.buffers", "buffers of the model have another type", "load.dtype"),
    entry(
        "model.attention",
        "attention is computed by another implementation",
        "load.attn_implementation",
    ),
    entry("model.quantization", "the weights are quantized otherwise", "load.hf_kwargs"),
    entry("model.version", "a library has another version"),
    entry("sampling", "what is done to the logits before a token is chosen differs", "sampling"),
    entry("sampling.mode", "greedy on one side, drawn on the other", "sampling"),
    entry("sampling.n", "another number of samples is asked for", "sampling"),
    entry("sampling.seed", "the seed is another one", "seed"),
    entry("sampling.draws", "tokens are not drawn as the settings say"),
    entry("stop", "an answer ends elsewhere"),
    entry("stop.end_ids", "other ids end the text", "end_ids"),
    entry("stop.strings", "other strings end the text", "strings"),
    entry("stop.answer_strings", "other strings end the answer behind a thought", "strings"),
    entry("stop.max_new_tokens", "another number of tokens is allowed", "length"),
    entry("stop.min_new_tokens", "another number of tokens is asked for at least", "length"),
    entry("decode", "equal ids became another text"),
    entry("value", "what is made of the answer, its text or its numbers, differs"),
    entry("numeric.near_tie", "two tokens were equally likely but for rounding"),
    entry("numeric.shift", "the same input gives other logits than rounding explains"),
)
ENTRIES = {known.name: known for known in TABLE}

# A difference's stage and field (parity.goldens.verdict.Difference) as a cause's name.
OF_STAGE = {
    "messages": "prompt.messages",
    "template": "prompt.template",
    "prompt_text": "prompt.text",
    "prompt_ids": "prompt.ids",
    "text": "decode",
}
OF_FIELD = {
    "images.sha256": "image.pixels",
    "images.indices": "image.frames",
    "batch.order": "order",
    "batch.masked": "batch.mask",
    "model.files": "model.weights",
    "model.tensors": "model.weights",
    "output_ids.rows": "calls",
    "output_ids.": "stop",
    "value.raised": "error",
    "value.": "value",
}


def cause_of_field(stage: str, field: str) -> str:
    """The cause that a difference of this field is."""
    if stage in OF_STAGE:
        return OF_STAGE[stage]
    name = f"{stage}.{field}"
    if name in OF_FIELD:
        return OF_FIELD[name]
    return name.replace("images.", "image.")


def stage_of(cause: str) -> str:
    """ "sampling" of "sampling.top_p"."""
    return cause.partition(".")[0]


def named(cause: str) -> Entry:
    """What the table says of a cause: of its field, else of its stage. Raises KeyError for a stage
    that it does not have."""
    return ENTRIES.get(cause) or ENTRIES[stage_of(cause)]


def meaning(cause: str) -> str:
    """A cause in words; "" of a name that is none, such as a report of an older release has."""
    known = ENTRIES.get(cause) or ENTRIES.get(stage_of(cause))
    return known.sentence if known else ""
