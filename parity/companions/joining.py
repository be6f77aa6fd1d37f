# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Rows that take the place of finished ones on transformers: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="joining"`, and write

    engine = load("Qwen/Qwen3-8B", decoder=Joining(), max_batch_size=16)

Answers are the same. Without it, what waits is the next batch, and a batch shrinks as its rows
finish: worth a try where there are more requests than places and answers differ in length. 64
ragged requests on 4 places of a 25 M model took 24 s in place of 30 on a CPU, on 16 places the
same; it has not been measured on a GPU. vLLM does it by itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["ElasticBatch", "Joining", "JoiningLoop"]

# == A batch that rows leave and join ==


class ElasticBatch:
    """Rows that decode side by side over one cache, padded on the left. Other batches join it, and
    its padding can come and go.

    ids, mask: [rows, columns], all tokens so far.   logits: [rows, vocabulary] of the latest
    forward.   rope: Qwen-VL's position offsets, [rows, 1]."""

    def __init__(self, model: Any, inputs: dict[str, Any]) -> None:
        """The first forward, of the prompts, by transformers' `generate`."""
        self.model = model
        self.ids = inputs["input_ids"]
        self.mask = inputs["attention_mask"]
        output = model.generate(
            **inputs,
            max_new_tokens=1,
            do_sample=False,
            use_cache=True,
            return_dict_in_generate=True,
            output_logits=True,
        )
        self.cache_name = "cache" if "cache" in output else "past_key_values"
        self.cache = output[self.cache_name]
        self.logits = output.logits[0]
        self.rope: Any = None
        for part in ge.with_rope_offsets(model):
            if part.rope_deltas is None:
                continue
            self.rope = part.rope_deltas
            if ge.installed("transformers<5"):  # there, the offset of a column
                self.rope = self.rope + self.ids.shape[1] - self.mask.sum(-1, keepdim=True)

    @functools.cached_property
    def takes_positions(self) -> bool:
        return "position_ids" in inspect.signature(self.model.forward).parameters

    @functools.cached_property
    def elastic(self) -> bool:
        """Whether padding can come and go: all that is held of a row is held by column, in plain
        cache layers, and the model is given its positions."""
        plain = ge.lazy_import("transformers.cache_utils").DynamicLayer
        layers = getattr(self.cache, "layers", [None])
        return self.takes_positions and all(type(layer) is plain for layer in layers)

    def forward(self, new: int = 1) -> Any:
        """The model's logits of each row's last `new` tokens: [rows, new, vocabulary]."""
        inputs = {"input_ids": self.ids[:, -new:], "attention_mask": self.mask}
        if self.takes_positions:
            positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -new:]
            if self.rope is not None:
                positions = (positions + self.rope).expand(3, -1, -1)
            inputs["position_ids"] = positions
        inputs[self.cache_name] = self.cache
        logits = self.model(**inputs, use_cache=True).logits
        self.logits = logits[:, -1]
        return logits

    def append(self, tokens: Any, mask: Any) -> None:
        """Put columns behind the rows. tokens, mask: [rows, columns]"""
        cat = ge.lazy_import("torch").cat
        self.ids = cat([self.ids, tokens], dim=1)
        self.mask = cat([self.mask, mask.to(self.mask.dtype)], dim=1)

    def keep(self, kept: Sequence[int]) -> None:
        """Take out all rows but these."""
        index = ge.lazy_import("torch").tensor(kept, device=self.ids.device)
        self.cache.reorder_cache(index)
        self.ids = self.ids[index]
        self.mask = self.mask[index]
        self.rope = None if self.rope is None else self.rope[index]

    def shift(self, columns: int) -> None:
        """Put so many columns of padding before all rows; below zero, take so many away."""
        pad = ge.lazy_import("torch").nn.functional.pad
        self.ids = pad(self.ids, (columns, 0))
        if columns > 0:  # as `collate` pads: with a token of the row itself
            self.ids[:, :columns] = self.ids[:, columns, None]
        self.mask = pad(self.mask, (columns, 0))
        for layer in self.cache.layers:
            layer.keys = pad(layer.keys, (0, 0, columns, 0))
            layer.values = pad(layer.values, (0, 0, columns, 0))

    def join(self, other: ElasticBatch) -> None:
        """Take in the rows of another batch. Both are elastic, and have had a forward since their
        latest tokens."""
        cat = ge.lazy_import("torch").cat
        both = (self, other)
        columns = max(batch.ids.shape[1] for batch in both)
        for batch in both:
            batch.shift(columns - batch.ids.shape[1])
        for layer, new in zip(self.cache.layers, other.cache.layers):
            layer.keys = cat([layer.keys, new.keys])
            layer.values = cat([layer.values, new.values])
        self.ids = cat([self.ids, other.ids])
        self.mask = cat([self.mask, other.mask])
        self.logits = cat([self.logits, other.logits])
        if self.rope is not None:
            self.rope = cat([self.rope, other.rope])


# == The loop ==


class JoiningLoop(ge.DecodeLoop):
    """DecodeLoop, where waiting rows take the place of those that are over.

    rigid: columns stay where they are: transformers' own objects in plugins were written for a loop
    where none comes or goes."""

    @property
    def rigid(self) -> bool:
        return any(p.hf_stopping_criteria or p.hf_logits_processors for p in self.plan.plugins)

    def run(self) -> None:
        """Decode until no row is left; fills the watch of each."""
        running = None
        while self.rows or self.waiting:
            with self.observer.timed("verify"):
                running = self._advance(running)
            self.batch[:] = self.rows
            running.append(self.decide(running.logits, running.ids), running.mask[:, -1:] | 1)
            self.observer.stepped()
            kept = [self.batch.index(row) for row in self.rows]
            if not kept:
                running = None
            elif len(kept) < len(self.batch):
                running.keep(kept)
                self._trim(running)

    def prepare(self, rows: Sequence[ge.Row]) -> ElasticBatch:
        """The first forward of these prompts."""
        inputs = ge.collate(rows, self.plan.checkpoint, self.model.device)
        return ElasticBatch(self.model, inputs)

    def decide(self, logits: Any, ids: Any) -> Any:
        """What `generate` does with the logits of a step: each row of the batch gets a token.
        Returns the tokens, [rows, 1].

        logits: [rows, vocabulary].   ids: [rows, all tokens so far]."""
        torch = ge.lazy_import("torch")
        scores = self.processors(ids, logits.to(torch.float32, copy=True))
        tokens = scores.argmax(-1, keepdim=True)
        self.push(torch.cat([ids, tokens], dim=1))
        return tokens

    def _advance(self, running: ElasticBatch | None) -> ElasticBatch:
        """The next forward of the rows that run, and the first one of those that join them."""
        if running is None:
            return self.prepare(self.admit())
        running.forward()
        if new := self.admit(running):
            running.join(self.prepare(new))
        return running

    def admit(self, running: ElasticBatch | None = None) -> list[ge.Row]:
        """Those of the waiting rows that run from now on. A forward of prompts holds up all other
        rows: none joins a batch unless a quarter of the places is free."""
        self.waiting.extend(sorted(self.call.more(), key=lambda row: -row.prompt.length))
        if not self.waiting or (running is not None and (self.rigid or not running.elastic)):
            return []
        room, places = self.room()
        if running is not None and room < min(places // 4 or 1, len(self.waiting)):
            return []
        return self.start(room)

    def _trim(self, running: ElasticBatch) -> None:
        """Take away columns that are padding in every row."""
        longest = max(len(row.ids) + len(row.watch.ids) for row in self.rows)
        spare = running.ids.shape[1] - longest
        if spare and running.elastic and not self.rigid:
            running.shift(-spare)


def is_always(asked: ge.Asked) -> bool:
    return True


class Joining:
    """The decoder of JoiningLoop, for `load(decoder=...)`; hf only."""

    refusals = (
        ge.Refusal(
            "vllm", "joining of rows by a decoder", is_always, "drop it: vLLM does so itself"
        ),
    )

    def __repr__(self) -> str:
        return "Joining()"

    def ready(self, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint) -> None:
        """It goes with every checkpoint: where columns cannot move, what waits is the next
        batch."""

    def hf_loop(
        self, model: Any, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint
    ) -> Callable[..., ge.DecodeLoop]:
        return JoiningLoop
