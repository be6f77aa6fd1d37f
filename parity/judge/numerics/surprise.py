"""Do samples follow the distribution that their settings declare? No second run is needed.

Under the declared settings plain transformers gives p_t, the distribution of token t. Three tests
share one level over all of a site's cases (ALPHA):

    support   a token of probability zero is a fault at once; cuts are widened by what rounding
              may move
    surprise  z = sum(-log p_t(sampled) - H_t) / sqrt(sum Var_t), two-sided; standard normal where
              there is enough to add up
    faults    for each fault of a list (another temperature, a leaked top_k, a lost penalty, one
              sample n times) the likelihood ratio of the samples with it and without. Its mean
              under p is at most 1, whatever the model and wherever rows end, so the mean of all
              is >= 1/alpha in at most alpha of clean runs (Ville's inequality). Of a sure model,
              where z is anything but normal, this is the test that counts

Rows that share a seed share their random numbers: their ratios are averaged, not multiplied, and
their deviations are added before they are squared, which holds under any dependence.

`Evidence.power` is the factor by which a temperature must be wrong to be seen in these samples.
Where that is more than SEEN_FACTOR the answer is "cannot tell, needs about N more tokens" and the
verdict SAME-SETTINGS, which passes: all that can be compared was equal, and no code can change a
model that is too sure. Samples that are to show something are more, or of a higher temperature.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from parity.judge.numerics.processed import (
    OFF,
    Settings,
    Tensor,
    declared_settings,
    processed_logits,
    slack_of,
)
from parity.judge.row import Row, prompt_of
from parity.record.events import Ids

Stream = tuple[Any, ...]  # rows of one stream have the same random numbers
Texts = Sequence[Sequence[str]]  # of each prompt

ALPHA = 1e-3  # of all samples of a site, whatever the number of its cases
NORMAL = 50.0  # nats^2: with less variance than this a sum of surprises is not normal
SEEN_FACTOR = 1.5  # a factor of the temperature that samples must be able to show
CHUNK = 1 << 24  # logits that are processed at once

FACTORS = (0.5, 1 / 1.5, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0)  # of a wrong temperature
LEAKS: dict[str, tuple[float, ...]] = {
    "top_k": (1, 10, 20, 40, 50, 100),
    "top_p": (0.8, 0.9, 0.95),
    "min_p": (0.05, 0.1),
    "repetition_penalty": (1.05, 1.1),
}
SMALLER_IS_STRICTER = ("top_k", "top_p")
COPY = "one sample several times"
BEST = "top_k 1"  # nothing was sampled at all


# == Faults ==


def wrong_temperature(factor: float) -> str:
    return f"temperature × {factor:.2g}"


def faults_of(settings: Settings) -> dict[str, Settings]:
    """Name -> settings, of each fault that is looked for."""
    own = settings.temperature
    temperatures = {wrong_temperature(factor): own * factor for factor in FACTORS}
    if own != 1:
        temperatures["temperature applied twice"] = own**2
        temperatures["temperature not applied"] = 1.0
    faults = {}
    for name, value in temperatures.items():
        faults[name] = dataclasses.replace(settings, temperature=value)
    for setting in LEAKS:
        for name, value in leaks_of(settings, setting).items():
            faults[name] = dataclasses.replace(settings, **{setting: value})
    return faults


def leaks_of(settings: Settings, name: str) -> dict[str, float]:
    """Name of the fault -> the setting's value: lost, or a usual default that is stricter."""
    own = getattr(settings, name)
    off = getattr(OFF, name)
    leaks = {} if own == off else {f"no {name}": off}
    for value in LEAKS[name]:
        is_stricter = value < own if name in SMALLER_IS_STRICTER else value > own
        if own == off or is_stricter:
            leaks[f"{name} {value:g}"] = value
    return leaks


# == What is kept of a row ==


@dataclass(frozen=True, slots=True)
class Sample:
    """A row's samples, in sums over its tokens, nats.

    surprise: -log p of what was sampled.   entropy, variance: its mean and its variance under p.
    impossible: the first step whose token has probability zero.
    ratios: fault -> log of the likelihood ratio.   gains: its mean, were the fault there.
    prompt, ids: to see copies.   stream: rows with the same one have the same random numbers.
    """

    prompt: Ids
    ids: Ids
    stream: Stream
    surprise: float
    entropy: float
    variance: float
    impossible: int | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)


Streams = Sequence[Sequence[Sample]]  # samples with the same random numbers together


def sample_of(row: Row, logits: Tensor, stream: Stream) -> Sample:
    """logits: float32 [tokens, vocabulary], raw, before each of the row's own tokens."""
    import torch

    settings = declared_settings(row)
    faults = faults_of(settings)
    sums = torch.zeros(3, dtype=torch.float64)
    ratios = dict.fromkeys(faults, 0.0)
    gains = dict.fromkeys(faults, 0.0)
    impossible: int | None = None
    steps = max(1, CHUNK // logits.shape[-1])
    for first in range(0, len(logits), steps):
        part = logits[first : first + steps]
        ids = row["output_ids"][first : first + len(part)]
        tokens = torch.tensor(ids)[:, None]
        log_p = log_softmax(part, row, settings, first)
        sampled = log_p.gather(1, tokens)[:, 0]
        if impossible is None:
            widened = processed_logits(part, row, settings, first, slack_of(row))
            impossible = first_impossible(widened.gather(1, tokens)[:, 0], first)
        kept = sampled > -math.inf  # what only rounding may have let in says nothing
        sums += moments(log_p[kept], sampled[kept])
        for name, fault in faults.items():
            log_q = log_softmax(part, row, fault, first)
            ratio = log_q.gather(1, tokens)[:, 0] - sampled
            ratios[name] += float(ratio[kept].sum())
            gains[name] += gain(log_q[kept], log_p[kept])
    surprise, entropy, variance = sums.tolist()
    return Sample(
        prompt_of(row),
        tuple(row["output_ids"]),
        stream,
        surprise,
        entropy,
        variance,
        impossible,
        ratios,
        gains,
    )


def log_softmax(logits: Tensor, row: Row, settings: Settings, first: int) -> Tensor:
    """Log-probabilities under `settings`, float64 [steps, vocabulary]."""
    return processed_logits(logits, row, settings, first).log_softmax(-1).double()


def first_impossible(scores: Tensor, first: int) -> int | None:
    """scores: [steps], of the sampled tokens."""
    outside = (scores == -math.inf).nonzero()
    return first + int(outside[0]) if outside.numel() else None


def moments(log_p: Tensor, sampled: Tensor) -> Tensor:
    """Sums over steps of -log p of what was sampled, of its mean and of its variance."""
    import torch

    p = log_p.exp()
    finite = log_p.masked_fill(log_p == -math.inf, 0)
    mean = -(p * finite).sum(-1)
    variance = (p * finite**2).sum(-1) - mean**2
    variance = variance.clamp(min=0)
    return torch.stack([-sampled.sum(), mean.sum(), variance.sum()])


def gain(log_q: Tensor, log_p: Tensor) -> float:
    """KL(q | p), where a token that p excludes counts as enough by itself."""
    is_possible = log_q > -math.inf
    log_q = log_q[is_possible]
    difference = log_q - log_p[is_possible]
    enough = -math.log(ALPHA)
    return float((log_q.exp() * difference.clamp(max=enough)).sum())


# == Evidence ==


@dataclass(frozen=True, slots=True)
class Evidence:
    """What many samples say together.

    variance: of the surprises, nats^2.
    weight: log of how much likelier the samples are under some fault than as declared.
    fault: the one that fits best.   impossible: (sample, step) of a token of probability zero.
    power: the factor that a temperature must be wrong by, to be seen.   alpha: the level.
    """

    tokens: int
    z: float
    variance: float
    weight: float
    fault: str
    impossible: tuple[int, int] | None
    power: float
    alpha: float

    @property
    def critical(self) -> float:
        """Half of the level is z's, two-sided."""
        return NormalDist().inv_cdf(1 - self.alpha / 4)

    @property
    def is_fault(self) -> bool:
        is_surprising = self.variance >= NORMAL and abs(self.z) >= self.critical
        is_likelier = self.weight >= math.log(2 / self.alpha)
        return self.impossible is not None or is_surprising or is_likelier

    @property
    def can_tell(self) -> bool:
        """Whether what was not seen is not there."""
        return self.power <= SEEN_FACTOR

    @property
    def missing(self) -> int:
        """About how many tokens more, until a temperature wrong by SEEN_FACTOR would be seen."""
        if not math.isfinite(self.power):
            return 0
        times = math.log(self.power) / math.log(SEEN_FACTOR)
        return math.ceil(self.tokens * (times**2 - 1))

    def sentence(self) -> str:
        """What was found."""
        if self.impossible is not None:
            row, step = self.impossible
            return f"token {step} of row {row} cannot be sampled under the declared settings"
        seen = f"{self.tokens} tokens sampled, z = {self.z:.1f}"
        if self.variance < NORMAL and abs(self.z) > 2:
            seen += " (one unlikely token: of so few surprises z is not normal)"
        if self.is_fault:
            kind = "copies of one sample" if self.fault == COPY else self.fault
            fits = "no listed fault fits"
            if self.weight > 0:
                fits = f"{kind} fits them e^{self.weight:.0f} times better"
            allowed = f"where ±{self.critical:.1f} is allowed"
            return f"{seen}, {allowed}; {fits} than the declared settings"
        if self.can_tell:
            power = f"a temperature wrong by {self.power:.2f}× would be seen"
            return f"{seen}: they follow the declared settings; {power}"
        if not self.missing:
            return f"{seen}: cannot tell, the model leaves no choice at all"
        return f"{seen}: cannot tell, needs about {self.missing:,} more tokens"


def evidence_of(
    samples: Sequence[Sample], alpha: float = ALPHA, *, count_copies: bool = True
) -> Evidence:
    """count_copies: whether equal samples count; not where the golden's are equal as often."""
    streams = by_stream(samples)
    weights = likelihood_ratios(streams)
    if count_copies and len({s.prompt for s in samples}) < len(samples):
        weights[COPY] = copies(samples)
    variance = variance_of(streams)
    excess = sum(s.surprise - s.entropy for s in samples)
    return Evidence(
        tokens=sum(len(s.ids) for s in samples),
        z=excess / math.sqrt(variance) if variance > 1e-12 else 0.0,
        variance=variance,
        weight=log_mean(list(weights.values())) if weights else 0.0,
        fault=max(weights, key=weights.__getitem__, default=""),
        impossible=first_zero(samples),
        power=power_of(streams, len(weights), alpha),
        alpha=alpha,
    )


def variance_of(streams: Streams) -> float:
    """Of the sum of all surprises, nats^2, under any dependence within a stream."""
    variances = []
    for stream in streams:
        deviation = sum(math.sqrt(sample.variance) for sample in stream)
        variances.append(deviation**2)
    return sum(variances)


def first_zero(samples: Sequence[Sample]) -> tuple[int, int] | None:
    """(sample, step) of the first token of probability zero."""
    for number, sample in enumerate(samples):
        if sample.impossible is not None:
            return number, sample.impossible
    return None


def by_stream(samples: Sequence[Sample]) -> Streams:
    streams: dict[Stream, list[Sample]] = {}
    for sample in samples:
        streams.setdefault(sample.stream, []).append(sample)
    return list(streams.values())


def likelihood_ratios(streams: Streams) -> dict[str, float]:
    """Fault -> log of the likelihood ratio of all samples."""
    weights: dict[str, float] = {}
    for stream in streams:
        for sample in stream:
            weights.update(dict.fromkeys(sample.ratios, 0.0))
    for stream in streams:
        for name in weights:
            weights[name] += log_mean([s.ratios.get(name, 0.0) for s in stream])
    return weights


def log_mean(values: Sequence[float]) -> float:
    """The logarithm of the mean of exponentials."""
    best = max(values)
    if best == -math.inf:
        return best
    total = sum(math.exp(value - best) for value in values)
    return best + math.log(total / len(values))


def copies(samples: Sequence[Sample]) -> float:
    """Log of the likelihood ratio of "every other sample of a prompt is a copy of one before" and
    independent ones."""
    weight = 0.0
    earlier: dict[Ids, list[Ids]] = {}
    for sample in samples:
        others = earlier.setdefault(sample.prompt, [])
        share = others.count(sample.ids) / max(1, len(others))
        if others:  # log(1/2 + 1/2 share / p): of a sure model being equal says nothing
            times = math.exp(min(sample.surprise, 700))
            weight += math.log(0.5) + math.log1p(share * times)
        others.append(sample.ids)
    return weight


def power_of(streams: Streams, faults: int, alpha: float) -> float:
    """The factor that a temperature must be wrong by: KL(q | p) grows with the square of its
    logarithm."""
    needed = math.log(2 / alpha) + math.log(max(1, faults))
    worst = 0.0
    for factor in (SEEN_FACTOR, 1 / SEEN_FACTOR):
        name = wrong_temperature(factor)
        seen = 0.0
        for stream in streams:
            seen += min(sample.gains.get(name, 0.0) for sample in stream)
        if seen <= 1e-9:
            return math.inf
        worst = max(worst, math.sqrt(needed / seen))
    return math.exp(min(worst * math.log(SEEN_FACTOR), 700.0))


# == A site's samples together ==


@dataclass
class Ledger:
    """The samples of a site's cases on one backend.   cases: how many share the level.
    own: of custom decode loops, the old code's samples under the new code's settings."""

    cases: int = 1
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    own: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def alpha(self) -> float:
        """Of one case; the other half of the level is for all together."""
        return ALPHA / 2 / max(1, self.cases)

    def together(self) -> Evidence | None:
        """Of all cases; those with one source, prompt and ids once. One case was judged before."""
        return evidence_of_all(self.samples) if len(self.samples) > 1 else None

    def of_own_loops(self) -> Evidence | None:
        """Whether the old code sampled as the new code says, which nothing else can show."""
        return evidence_of_all(self.own) if self.own else None


def evidence_of_all(cases: Mapping[str, Sequence[Sample]]) -> Evidence:
    return evidence_of(list(distinct(cases.values())), ALPHA / 2, count_copies=False)


def distinct(groups: Iterable[Sequence[Sample]]) -> Iterator[Sample]:
    known = set()
    for samples in groups:
        for sample in samples:
            key = (sample.stream, sample.prompt, sample.ids)
            if key not in known:
                known.add(key)
                yield sample


# == Texts against texts ==


def permutation_p(old: Texts, new: Texts, *, rounds: int = 2000) -> float:
    """How often chance alone makes two sets of texts as unlike as these.   old, new: texts per
    prompt. The statistic: mean over prompts of the distance of the shares of each text."""
    chance = random.Random(0)
    seen = sum(map(unlikeness, old, new))
    extreme = 0
    for _ in range(rounds):
        total = 0.0
        for a, b in zip(old, new):
            mixed = [*a, *b]
            chance.shuffle(mixed)
            total += unlikeness(mixed[: len(a)], mixed[len(a) :])
        extreme += total >= seen - 1e-12
    return (extreme + 1) / (rounds + 1)


def unlikeness(a: Sequence[str], b: Sequence[str]) -> float:
    """Total variation of two sets of texts."""
    total = 0.0
    for text in {*a, *b}:
        total += abs(a.count(text) / len(a) - b.count(text) / len(b))
    return total / 2
