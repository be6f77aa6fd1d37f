"""The causes: one table. To add one, add a line here, and let the file of its stage
(parity/judge/stages/) yield a difference of its field.

A cause stands for a difference of one of its `fields` ("stage.field"), or of any field of a stage ("stage"); some are
found in other ways, and have none. `put_back` names what a counterfactual run restores of the golden: parts of a
request (parity/judge/replay.py and `restore` of stages), or "load.NAME", a field of the engine's load settings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One cause.   stage: of a call, that it belongs to."""

    name: str
    stage: str
    sentence: str
    fields: tuple[str, ...] = ()
    put_back: tuple[str, ...] = ()


def entry(name: str, stage: str, sentence: str, fields: str = "", put_back: str = "") -> Entry:
    return Entry(name, stage, sentence, tuple(fields.split()), tuple(put_back.split()))


# fmt: off
TABLE: tuple[Entry, ...] = (
    entry("prompt.messages", "prompt", "the chat, or the raw prompt, is another one", "", "prompts"),
    entry("prompt.template", "prompt", "the chat template, or what it was told, is another one", "", "prompts"),
    entry("prompt.clock", "prompt", "the prompt holds a date or a time", "", "prompts"),
    entry("prompt.double_bos", "prompt", "the beginning-of-text id stands twice", "", "prompts"),
    entry("prompt.tokenization", "prompt", "the same text became other ids", "", "prompts"),
    entry("prompt.truncation", "prompt", "a part of the prompt is missing", "", "prompts"),
    entry("batch.padding_side", "batch", "shorter rows are padded on the other side",
          "batch.side", "load.max_batch_size"),
    entry("batch.pad_unmasked", "batch", "padding is read as text", "batch.masked", "load.max_batch_size"),
    entry("batch.position_ids", "batch", "positions are counted otherwise", "batch.positions", "load.max_batch_size"),
    entry("batch.inputs", "batch", "other tensors reach the model beside the ids", "batch.keys batch.marks"),
    entry("batch.order", "identity", "an answer belongs to another request", "batch.order", "load.max_batch_size"),
    entry("batch.composition", "identity", "a row's answer depends on its neighbours", "", "load.max_batch_size"),
    entry("image.content", "images", "the picture itself is another one",
          "images.count images.sha256 images.fps images.indices images.times", "pictures"),
    entry("image.pixel_budget", "images", "the picture was resized to another budget", "images.budget", "pictures"),
    entry("image.values", "images", "the picture was normalised otherwise", "images.values images.tensors", "pictures"),
    entry("image.tokens", "images", "the picture became another number of tokens", "images.tokens", "pictures"),
    entry("model.weights", "model", "the weights are others",
          "model.class model.weights model.files model.adapters", "load.model"),
    entry("model.dtype", "model", "the weights have another type", "model.dtype model.buffers", "load.dtype"),
    entry("model.attn", "model", "attention is computed by another implementation",
          "model.attention", "load.attn_implementation"),
    entry("model.quant", "model", "the weights are quantized otherwise", "model.quantization", "load.hf_kwargs"),
    entry("env.version", "model", "a library has another version"),
    entry("cache.key", "identity", "one answer is kept for, or given to, requests that are not alike"),
    entry("sampling.mode", "sampling", "greedy on one side, drawn on the other", "sampling.mode", "sampling"),
    entry("sampling.leak", "sampling", "a sampling setting comes from the checkpoint on one side only", "", "sampling"),
    entry("sampling.processors", "sampling", "what is done to the logits before a token is chosen differs",
          "sampling", "sampling"),
    entry("sampling.draw", "sampling", "tokens are not drawn from the distribution that the settings say",
          "", "sampling"),
    entry("stop.eos_set", "stop", "other ids end the text", "stop.end_ids", "end_ids"),
    entry("stop.strings", "stop", "other strings end the text", "stop.strings stop.answer_strings", "strings"),
    entry("stop.rule", "stop", "a stop acts by another rule, or cuts at another place", "stop.criteria"),
    entry("stop.length", "stop", "another number of tokens is allowed",
          "stop.max_new_tokens stop.min_new_tokens", "length"),
    entry("decode.skip_special", "decode", "special tokens are kept on one side, dropped on the other"),
    entry("decode.cleanup", "decode", "spaces are tidied on one side only"),
    entry("post.strip", "value", "blanks at the ends are kept on one side only"),
    entry("post.trim", "value", "the text is cut elsewhere after decoding"),
    entry("post.other", "value", "what is made of the answer, its text or its numbers, differs"),
    entry("numeric.near_tie", "model", "two tokens were equally likely but for rounding"),
    entry("numeric.shift", "model", "the same input gives other logits than rounding explains"),
    entry("rng", "sampling", "another draw of the same distribution", "sampling.seed", "seed"),
    entry("nondeterminism", "value", "the old code does not repeat itself"),
    entry("golden.empty", "value", "the golden leaves out what it is there to compare"),
    entry("error", "value", "an exception"),
)
# fmt: on


def named(name: str) -> Entry:
    """Raises KeyError for a cause that the table has not."""
    return {known.name: known for known in TABLE}[name]


def cause_of_field(stage: str, field: str) -> str | None:
    """The cause that a difference of a field stands for; None where the table says none."""
    by_field = {own: known.name for known in TABLE for own in known.fields}
    return by_field.get(f"{stage}.{field}") or by_field.get(stage)
