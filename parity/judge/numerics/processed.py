"""Logits after the settings of sampling: the distribution that a token was chosen from.

The processors are transformers' own, but for cuts that would be slow. A recorded row (Mapping) says
which settings it had.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parity.judge.row import Row, entry, has_beams, is_float32
from parity.record.rows import CHOSEN_BY_ITSELF, PENALTIES, STRUCTURED

Tensor = Any  # torch.Tensor


@dataclass(frozen=True, slots=True)
class Slack:
    """What rounding moves at most.   logit: nats.   share: of a sum of probabilities."""

    logit: float
    share: float


NONE = Slack(0.0, 0.0)
OF_FLOAT32 = Slack(1e-3, 1e-4)
OF_HALF = Slack(0.25, 0.02)  # every other dtype: 4 times the rounding of real models, 0.07 nats


@dataclass(frozen=True, slots=True)
class Settings:
    """What shapes the distribution of a row's samples; the defaults change nothing."""

    temperature: float
    top_k: float = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


OFF = Settings(1.0)
BEAMS = "beams were searched"


def declared_settings(row: Row) -> Settings:
    values = {}
    for field in dataclasses.fields(OFF):
        value = entry(row, "sampling", field.name)
        if value:
            values[field.name] = float(value)
    return Settings(**values)


def why_not_greedy(row: Row) -> str:
    """Why a row's greedy choices cannot be computed from its logits; "" if they can. They can under
    structured output, which only takes tokens away."""
    if row.get("loop") in CHOSEN_BY_ITSELF and not row.get("sampling"):
        return "code of its own chose other tokens than the likeliest"
    return why_not_processed(row, but=STRUCTURED)


def why_not_sampled(row: Row) -> str:
    """The same of a row's samples."""
    if why := why_not_processed(row):
        return why
    for name in PENALTIES:
        if entry(row, "sampling", name):
            return f"{name} was set"
    return "" if row["output_ids"] else "nothing was generated"


def why_not_processed(row: Row, but: str = "") -> str:
    others = [name for name in entry(row, "sampling", "processors") or () if name != but]
    if others:
        return f"{', '.join(others)} changed the logits, which cannot be computed again"
    return BEAMS if has_beams(row) else ""


def slack_of(row: Row) -> Slack:
    return OF_FLOAT32 if is_float32(row) else OF_HALF


def processed_logits(
    logits: Tensor, row: Row, settings: Settings, first: int = 0, slack: Slack = NONE
) -> Tensor:
    """Scores that the tokens first, first + 1, ... of a row were chosen from.

    logits: float32 [steps, vocabulary], raw.   slack: by how much each cut is widened; then min_p
    comes last, which leaves the most.
    """
    from transformers.generation.logits_process import MinPLogitsWarper

    scores = penalised_logits(logits, row, settings, first) / settings.temperature
    if settings.top_k:
        scores = cut_top_k(scores, int(settings.top_k), slack.logit / settings.temperature)
    cuts: list[Callable[[Tensor], Tensor]] = []
    least = settings.min_p * (1 - slack.share)
    if least:
        cuts.append(functools.partial(MinPLogitsWarper(least), None))
    share = settings.top_p + slack.share
    if share < 1:
        cuts.append(functools.partial(cut_top_p, share=share))
    for cut in cuts if slack is NONE else cuts[::-1]:
        scores = cut(scores)
    return scores


def penalised_logits(logits: Tensor, row: Row, settings: Settings, first: int) -> Tensor:
    """A copy without the tokens that the row's rules forbid, the seen ones penalised."""
    from transformers.generation import logits_process as processors

    scores = logits.clone()
    ids = ids_before(row, first, len(logits))
    prompt = len(row["prompt_ids"])
    if settings.repetition_penalty != 1:
        penalty = processors.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty)
        scores = penalty(ids, scores)
    if size := int(entry(row, "sampling", "no_repeat_ngram_size") or 0):
        forbid = processors.NoRepeatNGramLogitsProcessor(size)
        for k in range(len(scores)):
            before = ids[k : k + 1, : prompt + first + k]
            scores[k : k + 1] = forbid(before, scores[k : k + 1])
    least = int(entry(row, "stop", "min_new_tokens") or 0)
    early = max(0, least - first)
    eos = list(entry(row, "stop", "end_ids") or ())
    if eos:
        scores[:early, eos] = -math.inf
    return scores


def cut_top_k(scores: Tensor, k: int, slack: float) -> Tensor:
    """What is within `slack` of the k-th best score stays, too."""
    best = scores.topk(min(k, scores.shape[-1])).values
    least = best[:, -1:] - slack
    return scores.masked_fill(scores < least, -math.inf)


SORTED = 4096  # tokens; to sort a vocabulary takes ten times as long


def cut_top_p(scores: Tensor, share: float) -> Tensor:
    """The likeliest tokens whose chances together have the share. Equal chances stay or go
    together."""
    chances = scores.softmax(-1)
    best = chances.topk(min(SORTED, chances.shape[-1])).values
    if best.sum(-1).amin() < share:
        best = chances.sort(descending=True).values
    better = best.cumsum(-1) - best  # what the better ones have
    least = best.masked_fill(better >= share, 1.0).amin(-1, keepdim=True)
    return scores.masked_fill(chances < least, -math.inf)


def ids_before(row: Row, first: int, steps: int) -> Tensor:
    """The ids before each step, [steps, longest]; shorter ones end in the first id, which is seen
    anyhow."""
    import torch

    prompt = len(row["prompt_ids"])
    answer = row["output_ids"][: first + steps - 1]
    ids = torch.tensor([*row["prompt_ids"], *answer])
    length = prompt + first + torch.arange(steps)[:, None]
    is_before = torch.arange(len(ids))[None] < length
    return torch.where(is_before, ids[None], ids[0])
