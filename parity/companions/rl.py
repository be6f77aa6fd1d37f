# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Numbers of a policy-gradient loss, and turns without rendering anew: a companion of
gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="rl"`, and

    ratio = importance_ratio(new, old)                      # tensors [tokens] of one answer
    weight = rollout_weights(old, result.logprobs, "token_truncate", high=2.0)
    loss = (clipped_loss(ratio, advantage) * weight).sum()

    episode = Episode.of(result)                            # then, after the tool was called
    [result] = engine.generate_text_batch([episode.request(engine, tool_messages)], options)
    episode = episode.extended(result)                      # ids, and which of them were sampled

All functions take one answer: nothing is padded, so that there is no padding to mask. rl.md shows a
GRPO step on them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Clipped", "Episode", "clipped_loss", "clipped_tokens", "group_advantages",
           "importance_ratio", "rollout_weights"]  # fmt: skip

# == Ratios and clips ==

EPSILON = 0.2  # of PPO's clip, the default of TRL and verl
Level = Literal["token", "sequence"]


def check_choice(name: str, what: str, names: Sequence[str]) -> None:
    if name not in names:
        raise ge.OptionError(f"no {what} {name!r}", fix=ge.did_you_mean(name, names))


def as_tensors(*values: Any) -> list[Any]:
    """Float tensors [tokens] on one device. Raises RequestError for other lengths, or numbers that
    are not finite."""
    torch = ge.lazy_import("torch")
    tensors = [torch.as_tensor(value) for value in values]
    device = tensors[0].device
    tensors = [tensor.to(device, torch.promote_types(tensor.dtype, torch.float32))
               for tensor in tensors]  # fmt: skip
    lengths = [tuple(tensor.shape) for tensor in tensors]
    if len(set(lengths)) > 1 or len(lengths[0]) != 1 or not lengths[0][0]:
        fix = "give one number for each token of one answer, on both sides"
        raise ge.RequestError(f"log-probabilities of the shapes {lengths}", fix=fix)
    if not all(tensor.isfinite().all() for tensor in tensors):
        fix = "leave such answers out; of a token that top_p cut away it is -inf"
        raise ge.RequestError("a log-probability is not finite", fix=fix)
    return tensors


def importance_ratio(new: Any, old: Any, level: Level = "token") -> Any:
    """How much more likely the new policy makes each token: exp(new - old), [tokens].

    new, old: log-probabilities of one answer's tokens.
    level: TRL's `importance_sampling_level`. "token": GRPO and PPO. "sequence": GSPO's, exp of the
        mean over the tokens, the same for all of them.
    """
    check_choice(level, "level", ("token", "sequence"))
    new, old = as_tensors(new, old)
    gap = new - old
    if level == "sequence":
        gap = gap.mean().expand(len(gap))
    return gap.exp()


class Clipped(NamedTuple):
    """Tokens whose gradient the clip removes: bool tensors [tokens]."""

    low: Any
    high: Any


def clipped_tokens(
    ratio: Any, advantage: float, low: float = EPSILON, high: float = EPSILON
) -> Clipped:
    """TRL's `clip_ratio/low` and `/high`, verl's `pg_clipfrac` by sides: a ratio below 1 - low
    where the advantage is negative, above 1 + high where it is positive."""
    return Clipped((ratio < 1 - low) & (advantage < 0), (ratio > 1 + high) & (advantage > 0))


def clipped_loss(ratio: Any, advantage: float, low: float = EPSILON, high: float = EPSILON) -> Any:
    """PPO's loss of each token, [tokens]: -min(ratio * advantage, clip(ratio) * advantage).

    low, high: TRL's `epsilon` and `epsilon_high`, verl's `clip_ratio_low` and `clip_ratio_high`."""
    torch = ge.lazy_import("torch")
    bounded = ratio.clamp(1 - low, 1 + high)
    return -torch.minimum(ratio * advantage, bounded * advantage)


def group_advantages(rewards: Sequence[float], *, scale: bool = True) -> list[float]:
    """GRPO's advantages of the answers to one prompt: reward - mean, over the standard deviation +
    1e-4, as TRL has it.   scale: False leaves the deviation out (Dr. GRPO). Default True."""
    if len(rewards) < 2 or not all(map(math.isfinite, rewards)):
        fix = "give the finite rewards of two or more answers to one prompt"
        raise ge.RequestError(f"the rewards are {ge.short_repr(rewards)}", fix=fix)
    mean = sum(rewards) / len(rewards)
    gaps = [reward - mean for reward in rewards]
    if not scale:
        return gaps
    deviation = math.sqrt(sum(gap * gap for gap in gaps) / (len(gaps) - 1))
    return [gap / (deviation + 1e-4) for gap in gaps]


# == The trainer beside the rollout: weights and masks ==

Mode = Literal[
    "token_truncate",
    "token_mask",
    "sequence_truncate",
    "sequence_mask",
    "geometric_mask",
    "worst_token_mask",
]
MODES = Mode.__args__  # type: ignore[attr-defined]


def rollout_weights(
    trainer: Any, rollout: Any, mode: Mode = "token_truncate", *, high: float, low: float = 0.0
) -> Any:
    """Weights of one answer's tokens that correct for a rollout by other kernels or older weights,
    [tokens], without gradient. r = exp(trainer - rollout) of each token.

    trainer, rollout: log-probabilities of the same tokens, after the same temperature and cuts.
    mode: "token_truncate": min(r, high). "token_mask": r, and 0 outside low to high.
        "sequence_truncate", "sequence_mask": the same of the product of all r.
        "geometric_mask", "worst_token_mask": r of each token, and 0 for the whole answer where the
        geometric mean, or any one r, is outside low to high.

    | here | TRL `vllm_importance_sampling_mode` | verl `rollout_correction` | prime-rl |
    | token_truncate | token_truncate | rollout_is=token | - |
    | token_mask | token_mask (no low) | rollout_is=token, low_high | token_mask_low/high |
    | sequence_truncate | sequence_truncate | rollout_is=sequence | sequence_clip_high |
    | sequence_mask | sequence_mask (no low) | rollout_rs=seq_sum_k1 | - |
    | geometric_mask | - | rollout_rs=seq_mean_k1 | geo_mask_low/high |
    | worst_token_mask | - | rollout_rs=seq_max_k1 | sequence_mask_low/high |

    high: TRL's `vllm_importance_sampling_cap`, verl's thresholds. Theirs differ: there is no
        default here.   low: default 0."""
    check_choice(mode, "mode", MODES)
    if not 0 <= low < high:
        raise ge.OptionError(f"low is {low}, high {high}", fix="give 0 <= low < high")
    trainer, rollout = as_tensors(trainer, rollout)
    gaps = (trainer - rollout).detach()
    ratio = gaps.exp()
    weights = ratio
    if mode.startswith("sequence_"):
        weights = gaps.sum().exp().expand(len(gaps))
    if mode.endswith("_truncate"):
        return weights.clamp(max=high)
    judged = weights
    if mode == "geometric_mask":
        judged = gaps.mean().exp().expand(len(gaps))
    is_kept = (judged >= low) & (judged <= high)
    if mode == "worst_token_mask":
        is_kept = is_kept.all().expand(len(gaps))
    return weights.masked_fill(~is_kept, 0.0)


# == Turns: token in, token out ==

ANSWER = "\u2402answer\u2402"  # stands for an answer in a rendered chat; in no template


def continuation_ids(
    engine: ge.GenerationEngine, messages: Sequence[Mapping[str, Any]], **how: Any
) -> tuple[int, ...]:
    """The ids that the chat template writes behind an answer: what closes it, these messages, and
    the opening of the next answer.   how: as engine.render takes it, e.g. tools. Raises
    RequestError where the template does not write an answer as it is."""
    chat = [{"role": "user", "content": "."}, {"role": "assistant", "content": ANSWER}]
    text = engine.render([*chat, *messages], **how)
    _, answer, rest = text.rpartition(ANSWER)
    if not answer or text.count(ANSWER) != 1:
        problem = "the chat template does not write an answer once and as it is"
        raise ge.RequestError(problem, fix="give the next prompt as token ids")
    return ge.encode(engine.checkpoint, rest, False)


@dataclass(frozen=True)
class Episode:
    """A conversation as the model saw it: ids are never rendered or tokenized again. Text only.

    token_ids: all of it, the first prompt too.   sampled: which of them the model sampled.
    logprobs: of those, as the rollout had them; 0 for the others. Each is [tokens]."""

    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]

    @classmethod
    def of(cls, result: ge.GenerationResult) -> Episode:
        """The episode of a first answer."""
        return cls((), (), ()).extended(result)

    def request(
        self, engine: ge.GenerationEngine, messages: Sequence[Mapping[str, Any]], **how: Any
    ) -> dict[str, Any]:
        """The next request: all ids so far, then these messages (a tool's result, a user's turn)
        and the opening of the next answer.   how: as engine.render takes it, e.g. tools."""
        new = continuation_ids(engine, messages, **how)
        ends = engine.checkpoint.eos_ids
        if self.token_ids[-1] in ends and new[0] in ends:
            new = new[1:]  # the model closed its answer itself
        return {"prompt_token_ids": (*self.token_ids, *new)}

    def extended(self, result: ge.GenerationResult) -> Episode:
        """The episode with an answer to its `request`. Raises RequestError for the answer to
        another prompt, such as one whose history was rendered and tokenized anew."""
        prompt = result.prompt_token_ids
        parting = first_difference(self.token_ids, prompt)
        if parting is not None:
            problem = (
                f"its prompt is not what the model saw and sampled: the ids part at {parting} "
                f"of {len(self.token_ids)}; history was tokenized again"
            )
            raise ge.RequestError(problem, fix="ask with episode.request(engine, messages)")
        given = len(prompt) - len(self.token_ids)
        count = len(result.token_ids)
        logprobs = result.logprobs or (0.0,) * count
        return dataclasses.replace(
            self,
            token_ids=(*prompt, *result.token_ids),
            sampled=(*self.sampled, *(False,) * given, *(True,) * count),
            logprobs=(*self.logprobs, *(0.0,) * given, *logprobs),
        )


def first_difference(start: Sequence[int], ids: Sequence[int]) -> int | None:
    """Where ids do not begin with `start`; None where they do."""
    for index, token_id in enumerate(start):
        if index >= len(ids) or ids[index] != token_id:
            return index
    return None
