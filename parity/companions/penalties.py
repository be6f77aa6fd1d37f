# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""OpenAI's penalties and token bans, with vLLM's meaning on both backends: for gen_engine.py.

Copy them into your repository, `make vendor DEST=acme/llm WITH="penalties plugin_hooks"`, and

    from acme.llm.penalties import Penalties

    recipe = Penalties(engine, presence_penalty=1.5, bad_words=["sorry"])
    engine.generate_text_batch([{"messages": chat}], options, plugins=[recipe])

It is a logits plugin: on vllm, load with logits_hooks=True. It acts on every row of its call, and
log-probabilities in results stay raw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Penalties", "PenaltyOptions"]


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Raise OptionError for what is no number in these bounds."""
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not is_number or not least <= value <= most:
        fix = f"it must be a number, {least} to {most}"
        raise ge.OptionError(f"{name} is {ge.short_repr(value)}", fix=fix)


def biases(value: Any) -> dict[int, float]:
    """A checked logit_bias. Its keys are ids; JSON writes them as strings."""
    if not isinstance(value, Mapping):
        raise ge.OptionError(
            f"logit_bias is {ge.short_repr(value)}", fix="map token ids to numbers"
        )
    checked = {}
    for key, bias in value.items():
        is_id = type(key) is int or (isinstance(key, str) and key.isascii() and key.isdigit())
        if not is_id:
            fix = "its keys are token ids"
            raise ge.OptionError(f"logit_bias has the key {ge.short_repr(key)}", fix=fix)
        check_number(f"logit_bias of token {key}", bias, -100, 100)
        checked[int(key)] = float(bias)
    return checked


@dataclass(frozen=True, slots=True)
class PenaltyOptions:
    """What Penalties takes beside the engine.

    presence_penalty: subtracted from the logit of each token that the answer contains. -2 to 2.
    frequency_penalty: subtracted once for each time that the answer contains it. -2 to 2.
    repetition_penalty: 0.01 to 100. GenerationOptions' own acts after this plugin; vLLM has it
        before the two above: to combine them as vLLM does, give it here. Default 1 does nothing.
    logit_bias: token id -> what is added to its logit. -100 to 100; keys may be decimal strings.
    bad_words: strings whose last token is never chosen after the others, as vLLM tokenizes them: at
        the beginning of a text and, where that gives one other token, after a space.
    allowed_token_ids: no other token is chosen. Default None: all."""

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        object.__setattr__(self, "logit_bias", biases(self.logit_bias))
        ge.check_text_list(self, "bad_words")
        if self.allowed_token_ids is not None:
            ge.check_ids_field(self, "allowed_token_ids")
        if self.allowed_token_ids == ():
            raise ge.OptionError("allowed_token_ids is empty", fix="name a token, or drop it")


def check_vocabulary(name: str, ids: Sequence[int], checkpoint: ge.Checkpoint) -> None:
    """Raise OptionError for ids that the model does not have."""
    unknown = [i for i in ids if not 0 <= i < checkpoint.vocabulary]
    if unknown:
        problem = f"{name} is outside the vocabulary of {checkpoint.vocabulary}"
        raise ge.OptionError(f"{problem}: {ge.short_repr(unknown)}", fix="check the ids")


def bad_word_ids(words: Sequence[str], checkpoint: ge.Checkpoint) -> list[tuple[int, ...]]:
    """The token sequences of bad words, by vLLM's rule: a word at the beginning of a text and,
    where it is as long and begins otherwise, after a space."""
    sequences = []
    for word in words:
        bare = ge.encode(checkpoint, word.lstrip(), False)
        spaced = ge.encode(checkpoint, " " + word.lstrip(), False)
        if not bare:
            fix = "give a word that has a token"
            raise ge.OptionError(f"the bad word {ge.short_repr(word)} has no tokens", fix=fix)
        sequences.append(bare)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            sequences.append(spaced)
    return sequences


def settings_of(options: PenaltyOptions) -> dict[str, Any]:
    """What the options change, as plain values, for who records a call."""
    changed = {}
    for f in fields(options):
        value = getattr(options, f.name)
        neutral = 1 if f.name == "repetition_penalty" else 0
        if value and value != neutral:
            changed[f.name] = list(value) if isinstance(value, tuple) else value
    if "logit_bias" in changed:
        changed["logit_bias"] = {str(i): bias for i, bias in options.logit_bias.items()}
    return changed


class Penalties(ge.Plugin):
    """A plugin for `plugins=[...]`.

    engine: the engine that it is for.   settings: fields of PenaltyOptions.
    Raises OptionError for a setting that is invalid, or that this vocabulary does not go with."""

    name = "penalties"

    def __init__(self, engine: ge.GenerationEngine, **settings: Any) -> None:
        checkpoint = engine.checkpoint
        self.options = ge.build(PenaltyOptions, settings)
        allowed = self.options.allowed_token_ids
        check_vocabulary("allowed_token_ids", allowed or (), checkpoint)
        check_vocabulary("logit_bias", tuple(self.options.logit_bias), checkpoint)
        self._bad_words = bad_word_ids(self.options.bad_words, checkpoint)
        self.settings = settings_of(self.options)

    def logits(
        self, token_ids: Sequence[int], logits: Any, *, prompt_token_ids: Sequence[int]
    ) -> Any:
        """logits after vLLM's steps, in vLLM's order. [vocabulary] -> [vocabulary]."""
        options = self.options
        if options.allowed_token_ids is not None:
            kept = list(options.allowed_token_ids)
            only = ge.lazy_import("torch").full_like(logits, -math.inf)
            only[kept] = logits[kept]
            logits = only
        for word in self._bad_words:
            begun = len(word) - 1
            if begun <= len(token_ids) and (*token_ids, 0)[-1 - begun : -1] == word[:-1]:
                logits[word[-1]] = -math.inf
        for token_id, bias in options.logit_bias.items():
            logits[token_id] += bias
        if options.repetition_penalty != 1:
            logits = self._divided({*prompt_token_ids, *token_ids}, logits)
        return self._subtracted(token_ids, logits)

    def _divided(self, seen: set[int], logits: Any) -> Any:
        """Logits after the repetition penalty of these tokens."""
        ids = sorted(i for i in seen if i < len(logits))  # an image's placeholder may be above
        penalty = self.options.repetition_penalty
        own = logits[ids]
        logits[ids] = ge.lazy_import("torch").where(own > 0, own / penalty, own * penalty)
        return logits

    def _subtracted(self, token_ids: Sequence[int], logits: Any) -> Any:
        """Logits less the penalties of presence and frequency."""
        options = self.options
        if not token_ids or not (options.frequency_penalty or options.presence_penalty):
            return logits
        torch = ge.lazy_import("torch")
        ids = torch.tensor(token_ids, device=logits.device)
        counts = torch.bincount(ids, minlength=len(logits))
        logits = logits - options.frequency_penalty * counts
        return logits - options.presence_penalty * (counts > 0)
