"""Taps on a vendored decisions.py: each position at which it reads a distribution is noted as ids
that are only read, as code that reads a model's last logits by itself is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.record.calls import Listener, ListenerTap, model_tap
from parity.record.events import Events, Forward, Ids, ModelCall
from parity.record.patching import Invocation
from parity.record.taps.gen_engine import Below, noting_reads
from parity.record.taps.loops import scored_call, scored_output

DECISIONS = ("decide_all", "label_logprobs")  # by which a copy of decisions.py is known


@dataclass(slots=True)
class ReadCall:
    """A call of `decide` under way.   reads: what its backend has read, in order."""

    reads: list[Any] = field(default_factory=list)


def expanded_ids(engine: Any, prompt: Any, below: Below, events: Events) -> Ids:
    """The ids that the model read: of a prompt with images, with their tokens, as a forward got
    them; or, where vLLM's was not seen or a prefix was read once, as many as the engine counts."""
    ids = tuple(prompt.token_ids)
    if not prompt.images:
        return ids
    for event in events:
        rows = event.rows if isinstance(event, Forward) else ()
        for row in rows:
            if below.collapsed(row.ids) == ids:
                return row.ids
    checkpoint = engine.checkpoint
    image_tokens = sys.modules[type(engine).__module__].image_tokens
    images = iter(prompt.images)
    found = list[int]()
    for token in ids:
        is_image = token in checkpoint.placeholder_ids
        count = image_tokens(next(images), prompt.image_kwargs, checkpoint) if is_image else 1
        found += [token] * count
    return tuple(found)


def read_decisions(engine: Any, reads: Sequence[Any], events: Events) -> ModelCall:
    """reads: of decisions.py, in order."""
    below = Below(engine, events)
    outputs = []
    for read in reads:
        ids = expanded_ids(engine, read.prompt, below, events)
        images = below.pictures(read.prompt, ids, tuple(read.prompt.token_ids))
        request = below.adapter_stage(read.prompt)
        outputs.append(scored_output(ids, images, request))
    return scored_call(engine.model, outputs, below.placeholders)


@model_tap
def tap_decide(listener: Listener, call: Invocation) -> Any:
    """All requests of a call of `decide`."""

    def made(engine: Any, running: Any, events: Events, decisions: Any) -> ModelCall:
        return read_decisions(engine, running.reads, events)

    return noting_reads(listener, call, ReadCall, made)


def tap_reads(listener: Listener, call: Invocation) -> Any:
    """Where `decide` hands its reads to a backend."""
    if listener.in_site():
        with listener.guarded("reads of labels"):
            listener.thread.memory.of(ReadCall).reads += call.arguments["reads"]
    return call.run()


DECISIONS_TAPS: dict[str, ListenerTap] = {"decide_all": tap_decide, "read_labels": tap_reads}
