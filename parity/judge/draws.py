"""Do draws follow the distribution that they are said to come from? Draws are judged by themselves: no second run.

Under the declared settings plain transformers gives p_t, the distribution that token t was drawn from. Three tests, and
one level for all of a site's cases together (ALPHA):

    support     a token that no draw can give is a fault at once (cuts are widened by what rounding may move)
    surprise    z = Σ(−log p_t(drawn) − H_t) / √ΣVar_t, two-sided; standard normal where there is enough to add up
    faults      for each fault of a list (another temperature, a leaked top_k, a lost penalty, one sample n times) the
                likelihood ratio of the draws with it and without. Its mean under p is at most 1 whatever the model and
                wherever rows end, so the mean of all of them is ≥ 1/α in at most α of clean runs (Ville's inequality);
                of a sure model, where z is anything but normal, this is the test that counts

Rows that share a seed share their random numbers: their ratios are averaged, not multiplied, and their deviations are
added before they are squared, which holds under any dependence.

What a test did not see it may have been unable to see: `Evidence.power` says by which factor a temperature must be
wrong to be seen in these draws. Where that is more than SEEN, the answer is "cannot tell, needs about N more tokens"
and the verdict is SAME-SETTINGS, never SAME-DISTRIBUTION. It passes, also in a strict check, with this note: all that
can be compared (settings, and the processed distribution at the golden's own prefixes) was compared and is equal, and
no moved code can do anything about a model that is too sure. Goldens of samples that are to show something are drawn
at a higher temperature, or are more. A site's draws are also judged together, which sees more than each case.

SEEDS. All of this is for samples that may differ. Equal ids are owed where both sides run on the same backend, library
versions, device and dtype, and a row has the same seed on both:
    hf      a seeded row takes Exp(1) numbers q from a generator of its own and chooses argmax log p_t - log q_t. So
            its ids can be computed (`first_off_seed`), whatever the batch around it. Where the golden's are those of
            its seed, the new ones must be too. They are not where the process's generator served a batch of several
            rows, or went on from an earlier call: then no engine can give these ids, and none is asked to.
    vLLM    how it makes numbers of a seed is up to its release, so ids are compared. In half precision, where a batch
            moves rounding, only if the rows were asked in the same order and number.
Other ids there are `rng`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from parity.judge.row import entry
from parity.judge.stages.sampling import PENALTIES

Row = Mapping[str, Any]
Stream = tuple[Any, ...]  # rows of one stream have the same random numbers

ALPHA = 1e-3  # of all draws of a site, whatever the number of its cases
NORMAL = 50.0  # nats²: with less variance than this a sum of surprises is not normal
SEEN = 1.5  # a factor of the temperature that draws must be able to show, to be said to follow it
CHUNK = 1 << 24  # logits that are worked on at once
SLACK = {"float32": (1e-3, 1e-4)}  # dtype -> what rounding moves: a logit (nats), a sum of probabilities
COARSE = (0.25, 0.02)  # of every other dtype

FACTORS = (0.5, 1 / 1.5, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0)
LEAKS: dict[str, tuple[float, ...]] = {
    "top_k": (1, 10, 20, 40, 50, 100),
    "top_p": (0.8, 0.9, 0.95),
    "min_p": (0.05, 0.1),
    "repetition_penalty": (1.05, 1.1),
}
OFF: dict[str, float] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


# == The processed distribution ==


def declared(row: Row) -> dict[str, float]:
    """The settings that shape a row's draws."""
    values = {name: float(entry(row, "sampling", name) or OFF[name]) for name in OFF}
    return {"temperature": float(entry(row, "sampling", "temperature")), **values}


def times(factor: float) -> str:
    return f"temperature × {factor:.2g}"


def faults(settings: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Name -> settings, of each fault that is looked for."""
    own, found = settings["temperature"], dict[str, dict[str, float]]()
    for factor in FACTORS:
        found[times(factor)] = {**settings, "temperature": own * factor}
    if own != 1:
        found["temperature applied twice"] = {**settings, "temperature": own**2}
        found["temperature not applied"] = {**settings, "temperature": 1.0}
    for name, values in LEAKS.items():
        declares = settings[name] != OFF[name]
        if declares:
            found[f"no {name}"] = {**settings, name: OFF[name]}
        for value in values:
            stricter = value < settings[name] if name in ("top_k", "top_p") else value > settings[name]
            if value != settings[name] and (stricter or not declares):
                found[f"{name} {value:g}"] = {**settings, name: value}
    return found


def unreadable(row: Row) -> str:
    """Why the distribution of a row's draws cannot be computed; "" if it can."""
    if others := entry(row, "sampling", "processors"):
        return f"{', '.join(others)} changed the logits, which cannot be computed again"
    for name in PENALTIES:
        if entry(row, "sampling", name):
            return f"{name} was set"
    if (entry(row, "sampling", "num_beams") or 1) > 1:
        return "beams were searched"
    return "" if row["output_ids"] else "nothing was generated"


def processed(logits: Any, row: Row, settings: Mapping[str, float], first: int = 0, *, widened: bool = False) -> Any:
    """Scores that tokens first, first + 1, … of a row were drawn from. logits: float32 [steps, vocabulary], raw.

    The processors are transformers' own. widened: with what rounding at most adds to each cut, and min_p last, which
    leaves the most.
    """
    from transformers.generation import logits_process as kit

    slack, share = SLACK.get(row.get("model", {}).get("dtype", "float32"), COARSE) if widened else (0.0, 0.0)
    ids, scores = seen_ids(row, first, len(logits)), logits.clone()
    if settings["repetition_penalty"] != 1:
        scores = kit.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"])(ids, scores)
    if size := int(entry(row, "sampling", "no_repeat_ngram_size") or 0):
        for k in range(len(scores)):
            before = ids[k : k + 1, : len(row["prompt_ids"]) + first + k]
            scores[k : k + 1] = kit.NoRepeatNGramLogitsProcessor(size)(before, scores[k : k + 1])
    early = max(0, int(entry(row, "stop", "min_new_tokens") or 0) - first)
    if ends := list(entry(row, "stop", "end_ids") or ()):
        scores[:early, ends] = -math.inf
    scores = scores / settings["temperature"]
    chain = []
    if top_k := int(settings["top_k"]):
        scores = top(scores, top_k, slack / settings["temperature"])
    if settings["top_p"] + share < 1:
        chain.append(kit.TopPLogitsWarper(settings["top_p"] + share))
    if least := settings["min_p"] * (1 - share):
        chain.insert(len(chain) if widened else 0, kit.MinPLogitsWarper(least))
    for processor in chain:
        scores = processor(ids, scores)
    return scores


def top(scores: Any, k: int, slack: float) -> Any:
    """TopKLogitsWarper, that lets in what is within slack of the last one."""
    least = scores.topk(min(k, scores.shape[-1])).values[:, -1:] - slack
    return scores.masked_fill(scores < least, -math.inf)


def seen_ids(row: Row, first: int, steps: int) -> Any:
    """The ids before each step, [steps, longest]; shorter ones are filled up with the first id, seen anyhow."""
    import torch

    ids = torch.tensor([*row["prompt_ids"], *row["output_ids"][: first + steps - 1]])
    place, length = torch.arange(len(ids))[None], len(row["prompt_ids"]) + first + torch.arange(steps)[:, None]
    return torch.where(place < length, ids[None].expand(steps, -1), ids[0])


# == Seeds ==


def own_seed(row: Row) -> int | None:
    """The seed of a row's own sample; None where it has none, or only the recorder's."""
    said = row.get("sampling", {}).get("seed") or {}
    value = None if said.get("from") in ("nobody", "script") else said.get("value")
    found: int | None = (row.get("request") or {}).get("seed", value)
    return found


def first_off_seed(row: Row, logits: Any, seed: int) -> int | None:
    """The first step whose token is not the one that torch.multinomial takes with a fresh generator of this seed; None
    if all are, up to what rounding moves.   logits: float32 [tokens, vocabulary], raw, of the row's own tokens."""
    import torch

    settings = declared(row)
    slack, _ = SLACK.get(row.get("model", {}).get("dtype", "float32"), COARSE)
    slack /= settings["temperature"]
    generator = torch.Generator().manual_seed(seed)
    for step, chosen in enumerate(row["output_ids"]):
        part = logits[step : step + 1]
        noise = torch.empty_like(part).exponential_(generator=generator).log()
        best = (processed(part, row, settings, step) - noise).max()
        own = (processed(part, row, settings, step, widened=True) - noise)[0, chosen]
        if own < best - slack:
            return step
    return None


# == What is kept of a row ==


@dataclass(frozen=True, slots=True)
class Sample:
    """What a row's draws say, in sums over its tokens.

    surprise: −log p of what was drawn; entropy and variance: its mean and its variance under p.   impossible: the first
    step whose token no draw can give.   ratios: fault -> log of the likelihood ratio; gains: its mean, were the fault
    there.   ids, prompt: to see copies.   stream: rows with the same one have the same random numbers.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    stream: Stream
    surprise: float
    entropy: float
    variance: float
    impossible: int | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return len(self.ids)


def sample_of(row: Row, logits: Any, stream: Stream) -> Sample:
    """logits: float32 [tokens, vocabulary], raw, of the row's own tokens."""
    import torch

    settings, vocabulary = declared(row), logits.shape[-1]
    listed = faults(settings)
    sums = torch.zeros(3, dtype=torch.float64)
    ratios, gains = (dict.fromkeys(listed, 0.0) for _ in range(2))
    impossible, steps = None, max(1, CHUNK // vocabulary)
    for first in range(0, len(logits), steps):
        part = logits[first : first + steps]
        chosen = torch.tensor(row["output_ids"][first : first + len(part)])[:, None]
        log_p = processed(part, row, settings, first).log_softmax(-1).double()
        drawn = log_p.gather(1, chosen)[:, 0]
        wide = processed(part, row, settings, first, widened=True).gather(1, chosen)[:, 0]
        if impossible is None and (outside := (wide == -math.inf).nonzero()).numel():
            impossible = first + int(outside[0])
        kept = drawn > -math.inf  # what rounding alone may have let in says nothing
        sums += moments(log_p[kept], drawn[kept])
        for name, changed in listed.items():
            log_q = processed(part, row, changed, first).log_softmax(-1).double()
            ratio = log_q.gather(1, chosen)[:, 0] - drawn
            ratios[name] += float(ratio[kept].sum())
            gains[name] += float(gain(log_q[kept], log_p[kept]))
    surprise, entropy, variance = sums.tolist()
    ids, prompt = tuple(row["output_ids"]), tuple(row["prompt_ids"])
    return Sample(prompt, ids, stream, surprise, entropy, variance, impossible, ratios, gains)


def moments(log_p: Any, drawn: Any) -> Any:
    """Sums over steps of −log p of what was drawn, of its mean and of its variance."""
    import torch

    p, finite = log_p.exp(), log_p.masked_fill(log_p == -math.inf, 0)
    mean = -(p * finite).sum(-1)
    variance = (p * finite**2).sum(-1) - mean**2
    return torch.stack([-drawn.sum(), mean.sum(), variance.clamp(min=0).sum()])


def gain(log_q: Any, log_p: Any) -> Any:
    """KL(q ‖ p), where a token that p cannot give counts as enough by itself."""
    difference = (log_q - log_p).masked_fill(log_q == -math.inf, 0).clamp(max=-math.log(ALPHA))
    return (log_q.exp() * difference).sum()


def streams(rows: Sequence[Row]) -> list[Stream]:
    """The source of each row's random numbers, as far as it is known.

    A generator of the process serves all rows of a call, one after the other, and begins each case with the same seed.
    A seed of a request is its own: rows with the same one, and the same turn with it, draw the same numbers.
    """
    found: list[Stream] = []
    for number, row in enumerate(rows):
        said = row.get("sampling", {}).get("seed") or {}
        own = (row.get("request") or {}).get("seed", said.get("value"))
        if own is None:
            found.append(("unseeded", object()))
        elif said.get("from") in ("process", "nobody", "script"):
            found.append(("process", said["value"], number))
        else:
            found.append(("request", own))
    return found


# == Evidence ==


@dataclass(frozen=True, slots=True)
class Evidence:
    """What many samples say together. fault: the one that fits best.   weight: log of how much likelier the draws are
    under some fault than under the declared settings.   power: the factor that a temperature must be wrong by, to be
    seen.   alpha: the level of this evidence."""

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
        return NormalDist().inv_cdf(1 - self.alpha / 4)  # half of the level is z's, two-sided

    @property
    def breaks(self) -> bool:
        surprised = self.variance >= NORMAL and abs(self.z) >= self.critical
        return self.impossible is not None or surprised or self.weight >= math.log(2 / self.alpha)

    @property
    def tells(self) -> bool:
        """Whether what was not seen is not there."""
        return self.power <= SEEN

    @property
    def needed(self) -> int:
        """About how many tokens more, until a temperature that is wrong by SEEN would be seen."""
        if not math.isfinite(self.power):
            return 0
        return math.ceil(self.tokens * ((math.log(self.power) / math.log(SEEN)) ** 2 - 1))

    def sentence(self) -> str:
        """What was found."""
        if self.impossible is not None:
            row, step = self.impossible
            return f"token {step} of row {row} cannot be drawn under the declared settings"
        seen = f"{self.tokens} tokens drawn, z = {self.z:.1f}"
        if self.variance < NORMAL and abs(self.z) > 2:
            seen += " (one unlikely token: of so few surprises z is not normal)"
        if self.breaks:
            kind = "copies of one sample" if self.fault == COPY else self.fault
            fits = f"{kind} fits them e^{self.weight:.0f} times better" if self.weight > 0 else "no listed fault fits"
            return f"{seen}, where ±{self.critical:.1f} is allowed; {fits} than the declared settings"
        if self.tells:
            return f"{seen}: they follow the declared settings; a temperature wrong by {self.power:.2f}× would be seen"
        more = f"needs about {self.needed:,} more tokens" if self.needed else "the model leaves no choice at all"
        return f"{seen}: cannot tell, {more}"


COPY = "one sample several times"
BEST = "top_k 1"  # nothing was drawn at all


def log_mean(values: Sequence[float]) -> float:
    best = max(values)
    return best if best == -math.inf else best + math.log(sum(math.exp(v - best) for v in values) / len(values))


def by_stream(samples: Sequence[Sample]) -> list[list[Sample]]:
    found: dict[Stream, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.stream, []).append(sample)
    return list(found.values())


def copies(samples: Sequence[Sample]) -> float:
    """Log of the likelihood ratio of "every other sample of a prompt is a copy of one before" and independent ones."""
    weight, before = 0.0, dict[tuple[int, ...], list[Sample]]()
    for sample in samples:
        others = before.setdefault(sample.prompt, [])
        if others:
            share = sum(other.ids == sample.ids for other in others) / len(others)
            # log(½ + ½ share/p): of sure samples p is nearly 1, and being equal says nothing
            weight += math.log(0.5) + (math.log1p(share * math.exp(min(sample.surprise, 700))) if share else 0.0)
        others.append(sample)
    return weight


def evidence_of(samples: Sequence[Sample], alpha: float = ALPHA, *, copied: bool = True) -> Evidence:
    """copied: whether equal samples count; not where the golden's own are equal as often."""
    groups = by_stream(samples)
    names = list(dict.fromkeys(name for sample in samples for name in sample.ratios))
    weights = {name: sum(log_mean([s.ratios.get(name, 0.0) for s in group]) for group in groups) for name in names}
    if copied and len({s.prompt for s in samples}) < len(samples):
        weights[COPY] = copies(samples)
    fault = max(weights, key=lambda name: weights[name], default="")
    variance = sum(sum(math.sqrt(s.variance) for s in group) ** 2 for group in groups)
    moved = sum(s.surprise - s.entropy for s in samples)
    impossible = next(((k, s.impossible) for k, s in enumerate(samples) if s.impossible is not None), None)
    return Evidence(
        sum(s.tokens for s in samples),
        moved / math.sqrt(variance) if variance > 1e-12 else 0.0,
        variance,
        log_mean(list(weights.values())) if weights else 0.0,
        fault,
        impossible,
        power_of(groups, len(weights), alpha),
        alpha,
    )  # fmt: skip


def power_of(groups: Sequence[Sequence[Sample]], listed: int, alpha: float) -> float:
    """The factor that a temperature must be wrong by. KL(q ‖ p) grows with the square of the factor's logarithm."""
    needed = math.log(2 / alpha) + math.log(max(1, listed))
    worst = 0.0
    for factor in (SEEN, 1 / SEEN):
        seen = sum(min(s.gains.get(times(factor), 0.0) for s in group) for group in groups)
        if seen <= 1e-9:
            return math.inf
        worst = max(worst, math.sqrt(needed / seen))
    return math.exp(min(worst * math.log(SEEN), 700.0))


# == A site's draws together ==


@dataclass
class Ledger:
    """The draws of a site's cases on one backend. cases: how many of them are drawn; the level is shared by them.
    own: of loops of the old code's own, its draws under the settings that the new code declares."""

    cases: int = 1
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    own: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def alpha(self) -> float:
        """Of one case; the other half of the level is for all together."""
        return ALPHA / 2 / max(1, self.cases)

    def add(self, case: str, samples: Sequence[Sample]) -> None:
        self.samples[case] = list(samples)

    def together(self) -> Evidence | None:
        """All cases' draws; those with one source, prompt and ids once. None where there is one case: it was judged."""
        if len(self.samples) < 2:
            return None
        return evidence_of(list(distinct(self.samples.values())), ALPHA / 2, copied=False)

    def of_own_loops(self) -> Evidence | None:
        """Whether the old code drew as the new code says, which nothing else can show."""
        return evidence_of(list(distinct(self.own.values())), ALPHA / 2, copied=False) if self.own else None


def distinct(groups: Iterable[Sequence[Sample]]) -> Iterator[Sample]:
    known = set()
    for samples in groups:
        for sample in samples:
            key = sample.stream, sample.prompt, sample.ids
            if key not in known:
                known.add(key)
                yield sample
