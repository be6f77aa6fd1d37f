# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Forced decoding: recorded ids, token by token: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="forcing"`, and write

    engine.generate_text_batch(requests, {"replay": [recorded.token_ids for recorded in results]})

gen_engine finds this file beside itself. The model computes what it would compute if it had chosen
these ids: their log-probabilities, logits and timings are its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Forced", "check_count", "check_options", "forced_prompt", "without_sampling"]

REFUSALS = (
    ge.Refusal(
        "vllm",
        "a replay without its hook",
        lambda asked: not asked.config.logits_hooks and asked.config.decoder is None,
        ge.WITH_HOOK,
    ),
)

# == What may be forced ==


def check_options(options: ge.GenerationOptions, plugins: Sequence[Any]) -> None:
    """Raise OptionError for what does not go with ids to force."""
    if plugins:
        problem = "replay does not go with plugins, which could change it"
        raise ge.OptionError(problem, fix="drop one of the two")
    if options.n > 1:
        fix = "give each sample as a request of its own"
        raise ge.OptionError(f"replay does not go with n {options.n}", fix=fix)


def check_replay(replay: Sequence[int], plan: ge.Plan) -> None:
    """Raise RequestError for ids to force that are no tokens, or of which the options allow only
    the beginning."""
    what = "a token id to replay"
    ge.check_known(replay, plan.checkpoint, what, "replay what this model recorded")
    ending = ge.find_ending(replay, plan)
    if ending is not None and ending.count < len(replay):
        why: str = ending.reason
        if ending.stop_reason is not None:
            why += f" at {ending.stop_reason!r}"
        problem = f"the options end a replay of {len(replay)} tokens after {ending.count} ({why})"
        raise ge.RequestError(problem, fix="replay with the options that it was recorded with")


def check_count(replays: Sequence[Any], requests: Sequence[Any]) -> None:
    """Raise OptionError where there are not as many replays as requests."""
    if len(replays) != len(requests):
        problem = f"{len(requests)} requests, but replays for {len(replays)}"
        raise ge.OptionError(problem, fix="give one each")


def forced_prompt(prompt: ge.Prompt, replay: tuple[int, ...], plan: ge.Plan) -> ge.Prompt:
    """The prompt with the ids that it shall answer. Raises RequestError for ids that cannot be
    forced."""
    check_replay(replay, plan)
    return dataclasses.replace(prompt, replay=replay)


def without_sampling(options: ge.GenerationOptions) -> ge.GenerationOptions:
    """Options under which sampling has no say."""
    return dataclasses.replace(
        options, temperature=0, top_p=1, top_k=None, min_p=0, repetition_penalty=1
    )


# == Forcing ==


class Forced:
    """What a Plan calls in place of plugins where ids are forced; see plugin_hooks.py's Hooks."""

    def __iter__(self) -> Iterator[ge.Plugin]:
        return iter(())

    def refusal(self, backend: str, kind: str) -> None:
        """It is for all."""

    def end_row(self, watch: ge.RowWatch) -> bool:
        """Whether the row has all of its ids."""
        if len(watch.ids) < len(watch.replay):
            return False
        watch.plugin_end = ge.PluginEnd(len(watch.ids), None)
        return True

    def change_logits(
        self, watch: ge.RowWatch, prompt_ids: Sequence[int], token_ids: Sequence[int], logits: Any
    ) -> Any:
        """One row's logits, in which only the next id is possible. logits: [vocabulary]."""
        if len(token_ids) >= len(watch.replay):  # vLLM may be a step ahead
            return logits
        forced = logits.new_full(logits.shape, -math.inf)
        forced[watch.replay[len(token_ids)]] = 0
        return forced

    def post_decode(self, text: str) -> str:
        return text

    def hf_processors(self, rows: Sequence[ge.Row]) -> list[Callable[[Any, Any], Any]]:
        return []

    def stop_rows(self, rows: Sequence[ge.Row], input_ids: Any) -> None:
        """Nothing but its ids ends a row."""
