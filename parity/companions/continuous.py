# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""transformers' own continuous batching as the decoder: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="continuous"`, and write

    engine = load("Qwen/Qwen3-8B", decoder=Continuous())

Greedy calls on text only; what it cannot do is refused. Where its kernels are better than padded
batches (paged attention and CUDA graphs on a GPU) it may be faster; on a CPU it was as fast with 32
ragged requests and slower with even ones, see parity/bench/README.md. It has not been measured on a
GPU. vLLM batches so by itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Continuous", "ContinuousLoop"]

# == What it cannot do ==

WITHOUT = "load without the decoder"


def is_always(asked: ge.Asked) -> bool:
    return True


def changes_logits(asked: ge.Asked) -> bool:
    """Whether something but the model decides which token is the likeliest."""
    options = asked.options
    return bool(options.repetition_penalty != 1 or options.min_new_tokens or asked.plugins)


def reads_logits(asked: ge.Asked) -> bool:
    return asked.options.logits or asked.options.logprobs is not None


REFUSALS = (
    ge.Refusal(
        "vllm", "transformers' continuous batching", is_always, "drop it: vLLM does so itself"
    ),
    ge.Refusal(
        "hf",
        "continuous batching as this companion needs it",
        is_always,
        "install transformers>=5.19, or load without the decoder",
        "transformers<5.19",
    ),
    ge.Refusal(
        "hf",
        "forced decoding with continuous batching",
        lambda asked: asked.options.replay or any(prompt.replay for prompt in asked.prompts),
        WITHOUT,
    ),
    ge.Refusal("hf", "images with continuous batching", lambda asked: asked.pictures, WITHOUT),
    ge.Refusal(
        "hf",
        "sampling with continuous batching",
        lambda asked: asked.options.temperature > 0,
        "its rows have no seeds of their own: use temperature=0, or load without the decoder",
    ),
    ge.Refusal(
        "hf",
        "penalties, min_new_tokens or plugins with continuous batching",
        changes_logits,
        WITHOUT,
    ),
    ge.Refusal("hf", "logprobs or logits with continuous batching", reads_logits, WITHOUT),
    ge.Refusal(
        "hf",
        "structured output with continuous batching",
        lambda asked: any(prompt.structured for prompt in asked.prompts),
        WITHOUT,
    ),
)

# == The loop ==

PAGE = 256  # tokens of a page of its cache, the library's default
MOST_FED = 2048  # tokens that a forward is given: a CPU's attention mask has a row for each
WAIT = 0.1  # seconds for a result, until it is asked whether its thread is alive


class ContinuousLoop(ge.DecodeLoop):
    """DecodeLoop, where transformers' manager runs the rows in a thread of its own.

    A row that is longer than its cache was made for waits for the next manager."""

    def run(self) -> None:
        """Decode until no row is left; fills the watch of each."""
        while self.waiting:
            width = self.waiting[0].prompt.length + self.options.max_new_tokens
            places = self.room()[1]
            with self._manager(width, places) as manager:
                self._serve(manager, width, places)
            self.waiting.extend(self.call.more())

    def _serve(self, manager: Any, width: int, places: int) -> None:
        """Hand rows of at most `width` tokens over, and take their tokens."""
        while True:
            self.waiting.extend(self.call.more())
            self._begin(manager, width, places)
            if not self.rows:
                return
            with self.observer.timed("verify"):
                result = manager.get_result(timeout=WAIT)
            if result is not None:
                self._take(manager, result)
            elif not manager.is_running():
                raise RuntimeError("continuous batching ended before its rows; see its log")

    def _begin(self, manager: Any, width: int, places: int) -> None:
        """Hand over as many of the waiting rows as may run."""
        most_new = self.options.max_new_tokens
        is_watched = bool(self.options.stop.strings) or self.observer is not ge.NOBODY
        while self.waiting and len(self.rows) < places:
            if self.waiting[0].prompt.length + most_new > width:
                return
            [row] = self.start(1)
            row.ids = row.prompt.token_ids
            manager.add_request(
                list(row.ids),
                request_id=str(row.place),
                max_new_tokens=most_new,
                streaming=is_watched,
                eos_token_id=list(self.plan.end_ids) or -1,
            )

    def _take(self, manager: Any, result: Any) -> None:
        """Give a row the tokens that are new in a result. One that is over by a stop string is
        cancelled; what still comes of it finds no row."""
        row = self._row_of(result.request_id)
        if row is None:
            return
        if result.error is not None:
            raise RuntimeError(result.error)
        self._push_new(row, result)
        if row.watch.over and not result.is_finished():
            manager.cancel_request(result.request_id)
        elif result.is_finished() and not row.watch.over:
            row.watch.fail(
                ge.EngineError(
                    f"continuous batching ended a row after {len(row.watch.ids)} tokens",
                    fix="report it; load without the decoder",
                    index=row.place,
                )
            )
        self.answer_ended()
        self.observer.stepped()

    def _push_new(self, row: ge.Row, result: Any) -> None:
        """Give a row the tokens that it has not got yet, up to its end."""
        begun = len(row.watch.ids)
        for token, logprob in zip(result.generated_tokens[begun:], result.logprobs[begun:]):
            if math.isnan(logprob):
                row.watch.fail(ge.no_token(True, False))
            if row.watch.over or row.watch.push(token):
                return

    def _row_of(self, request_id: str) -> ge.Row | None:
        return next((row for row in self.rows if str(row.place) == request_id), None)

    @contextlib.contextmanager
    def _manager(self, width: int, places: int) -> Iterator[Any]:
        """transformers' manager with a cache for `places` rows of `width` tokens. Nothing of it
        runs on once the context is left."""
        transformers = ge.lazy_import("transformers")
        manager = self.model.init_continuous_batching(
            transformers.GenerationConfig(
                do_sample=False,
                max_new_tokens=self.options.max_new_tokens,
                eos_token_id=-1,
                pad_token_id=self.plan.checkpoint.pad_id,
            ),
            transformers.ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=places * (width // PAGE + 1),
                max_batch_tokens=max(places, min(MOST_FED, places * width)),
                max_requests_per_batch=places,
                auto_switch_to_flash=False,  # the attention is the one that was loaded
                return_logprobs=True,  # a NaN shows there only
            ),
        )
        try:
            manager.warmup()
            manager.start()
            yield manager
        finally:
            for row in self.rows:
                manager.cancel_request(str(row.place))
            if manager.is_running():
                manager.stop(hard_stop=True)
            manager.destroy()


class Continuous:
    """The decoder of ContinuousLoop, for `load(decoder=...)`; hf only."""

    refusals = REFUSALS

    def __repr__(self) -> str:
        return "Continuous()"

    def ready(self, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint) -> None:
        """It goes with every checkpoint that transformers batches so; others are an error of its
        own at the first call."""

    def hf_loop(
        self, model: Any, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint
    ) -> Callable[..., ge.DecodeLoop]:
        return ContinuousLoop
