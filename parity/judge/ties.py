"""Is it rounding? Both paths are made to read the golden's own tokens, and their logits are compared at every step.

Where the most likely token differs, a on the old path and b on the new one, the size of the disagreement is

    δ = [old(a) − old(b)] + [new(b) − new(a)]        (logits, or log-probabilities: a shift of all cancels out)

Both brackets are what each path would have to be wrong by. Rounding explains a case when δ ≤ τ at EVERY such step, not
only at the first; top-k membership, which is what is usually looked at, says nothing of the size of a gap. τ is 1e-3
for float32, two units in the last place of the logit for bfloat16 and float16, or what `calibrate` measures: how far an
engine is from itself, in a batch and alone.

The old path is plain transformers on the golden's checkpoint, in the golden's dtype. Samples are compared by the same
logits: after the golden's settings were applied to both, do they leave the same tokens, with the same probabilities?
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity import golden
from parity.judge.compare import entry, is_drawn, placeholder_in
from parity.judge.replay import budget_kwargs
from parity.record.rows import collapsed

Row = Mapping[str, Any]

FLOAT32_TAU = 1e-3
MANTISSA = {"bfloat16": 8, "float16": 11}
SAME_DRAWS = 1e-3  # total variation of two distributions that rounding alone makes unequal


@dataclass(frozen=True, slots=True)
class Gap:
    """One step at which the two paths would choose another token. delta, tau: logits (nats)."""

    row: int
    step: int
    old_id: int
    new_id: int
    delta: float
    tau: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What both paths made of one golden row's tokens. stale: the first step at which the old path, run here, would not
    choose what the golden says.   drift: the largest difference of any two log-probabilities of the chosen tokens."""

    gaps: tuple[Gap, ...]
    stale: int | None
    drift: float

    @property
    def is_tie(self) -> bool:
        return all(gap.delta <= gap.tau for gap in self.gaps)


def tau_of(dtype: str, logit: float, measured: float | None = None) -> float:
    """How much rounding may move a difference of logits."""
    if measured is not None:
        return measured
    if dtype in MANTISSA:
        import math

        return 2 * 2.0 ** (math.floor(math.log2(max(abs(logit), 1.0))) - MANTISSA[dtype] + 1)
    return FLOAT32_TAU


class OldPath:
    """Plain transformers on a golden's checkpoint."""

    def __init__(self, model: Mapping[str, Any], store: golden.Store) -> None:
        import torch
        import transformers

        self.store, self.path = store, model["path"]
        config = transformers.AutoConfig.from_pretrained(self.path)
        self.vision = hasattr(config, "vision_config")
        auto = transformers.AutoModelForImageTextToText if self.vision else transformers.AutoModelForCausalLM
        self.processor = transformers.AutoProcessor.from_pretrained(self.path) if self.vision else None
        dtype = getattr(torch, model.get("dtype", "float32"))
        self.model = auto.from_pretrained(self.path, dtype=dtype).eval()

    def logits(self, row: Row) -> Any:
        """Logits of each generated token of a row. float32 [tokens, vocabulary]."""
        import torch

        ids = [*row["prompt_ids"], *row["output_ids"]]
        given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        if row.get("images"):
            given.update(self._pictures(row, len(ids)))
        with torch.no_grad():
            logits = self.model(**given).logits[0].float()
        return logits[len(row["prompt_ids"]) - 1 : len(ids) - 1]

    def _pictures(self, row: Row, length: int) -> dict[str, Any]:
        import torch

        assert self.processor is not None
        images = pictures_of(row, self.store)
        text = [self.processor.image_token * len(images)]
        made = self.processor(text=text, images=[images], return_tensors="pt", **budget_kwargs(row))
        kept = {k: v for k, v in made.items() if k not in ("input_ids", "attention_mask", "mm_token_type_ids")}
        if "mm_token_type_ids" in made:
            place = placeholder_in(row)
            kinds = [int(i == place) for i in row["prompt_ids"]] + [0] * (length - len(row["prompt_ids"]))
            kept["mm_token_type_ids"] = torch.tensor([kinds])
        return kept


def pictures_of(row: Row, store: golden.Store) -> list[Any]:
    """A row's pictures out of the blobs. Raises GoldenError where the golden did not keep them."""
    if any("blob" not in picture for picture in row["images"]):
        raise golden.GoldenError("a picture of this case was too large to keep; its logits cannot be compared")
    return [store.restore({"$image": picture["blob"]}).convert("RGB") for picture in row["images"]]


def new_logits(engine: Any, rows: Sequence[Row], store: golden.Store) -> list[Any]:
    """Logits of the golden's tokens on the moved path. One float32 [tokens, vocabulary] per row."""
    pairs = []
    for row in rows:
        request: dict[str, Any] = {"prompt_token_ids": collapsed(row["prompt_ids"], placeholder_in(row))}
        if row.get("images"):
            request["images"] = pictures_of(row, store)
            least, most = row["images"][0].get("budget") or (None, None)
            request["vlm"] = {"min_pixels": least, "max_pixels": most} if most else {}
        pairs.append((request, row["output_ids"]))
    return [score.logits.float() for score in engine.score_batch(pairs, logits=True)]


def processed(logits: Any, row: Row, *, draw: bool = False) -> Any:
    """Logits as the token was chosen from: with the penalty, and for draws with temperature and cuts."""
    import torch
    from transformers.generation import logits_process as kit

    chain = []
    if (penalty := entry(row, "sampling", "repetition_penalty") or 1) != 1:
        chain.append(kit.RepetitionPenaltyLogitsProcessor(penalty))
    if draw:
        value = {name: entry(row, "sampling", name) for name in ("temperature", "min_p", "top_k", "top_p")}
        chain += [kit.TemperatureLogitsWarper(float(value["temperature"]))] if value["temperature"] != 1 else []
        chain += [kit.MinPLogitsWarper(value["min_p"])] if value["min_p"] else []
        chain += [kit.TopKLogitsWarper(value["top_k"])] if value["top_k"] else []
        chain += [kit.TopPLogitsWarper(value["top_p"])] if value["top_p"] < 1 else []
    steps = []
    for step, values in enumerate(logits):
        ids = torch.tensor([[*row["prompt_ids"], *row["output_ids"][:step]]])
        scores = values[None].clone()
        for processor in chain:
            scores = processor(ids, scores)
        steps.append(scores[0])
    return torch.stack(steps)


def unreadable(row: Row) -> str:
    """Why a row's choices cannot be computed again from its logits; "" if they can."""
    others = entry(row, "sampling", "processors")
    if others:
        return f"{', '.join(others)} changed the logits, which cannot be computed again"
    if (entry(row, "sampling", "num_beams") or 1) > 1:
        return "beams were searched"
    return "" if row["output_ids"] else "nothing was generated"


def read(number: int, row: Row, old: Any, new: Any, tau: float | None = None) -> Reading:
    """Compare two paths' logits of one greedy row. old, new: [tokens, vocabulary], raw."""
    mine, theirs = processed(old, row), processed(new, row)
    dtype = row.get("model", {}).get("dtype", "float32")
    gaps = []
    firsts, seconds = mine.argmax(-1).tolist(), theirs.argmax(-1).tolist()
    for step, (a, b) in enumerate(zip(firsts, seconds)):
        if a != b:
            delta = float(mine[step, a] - mine[step, b] + theirs[step, b] - theirs[step, a])
            gaps.append(Gap(number, step, a, b, delta, tau_of(dtype, float(mine[step, a]), tau)))
    chosen = row["output_ids"]
    stale = next((step for step, (a, said) in enumerate(zip(firsts, chosen)) if a != said), None)
    if stale is not None and near(mine[stale], chosen[stale], firsts[stale], dtype, tau):
        stale = None
    return Reading(tuple(gaps), stale, drift_of(old, new, chosen))


def near(logits: Any, one: int, other: int, dtype: str, tau: float | None) -> bool:
    return abs(float(logits[one] - logits[other])) <= tau_of(dtype, float(logits[one]), tau)


def drift_of(old: Any, new: Any, ids: Sequence[int]) -> float:
    """The largest difference of the log-probabilities that two paths give the chosen tokens."""
    import torch

    wanted = torch.tensor(list(ids))[:, None]
    return float((old.log_softmax(-1).gather(1, wanted) - new.log_softmax(-1).gather(1, wanted)).abs().max())


# == Samples ==


def same_draws(row: Row, old: Any, new: Any) -> tuple[bool, str]:
    """Whether both paths draw from one distribution at every step of the golden. Returns (same, what was seen)."""
    mine = processed(old, row, draw=True).softmax(-1)
    theirs = processed(new, row, draw=True).softmax(-1)
    distance = float((mine - theirs).abs().sum(-1).max() / 2)
    sizes = [int((p > 0).sum()) for p in mine], [int((p > 0).sum()) for p in theirs]
    said = (
        f"total variation ≤ {distance:.1e} over {len(mine)} steps, {max(sizes[0])} against {max(sizes[1])} tokens left"
    )
    return distance <= SAME_DRAWS, said


def permutation_p(
    old: Sequence[Sequence[str]], new: Sequence[Sequence[str]], *, rounds: int = 2000, seed: int = 0
) -> float:
    """How often chance alone makes two sets of texts as unlike as these. old, new: texts per prompt.

    The statistic is the mean over prompts of the distance between the two shares of every distinct text.
    """
    draw = random.Random(seed)

    def unlike(a: Sequence[str], b: Sequence[str]) -> float:
        return sum(abs(a.count(text) / len(a) - b.count(text) / len(b)) for text in {*a, *b}) / 2

    seen = sum(unlike(a, b) for a, b in zip(old, new))
    extreme = 0
    for _ in range(rounds):
        total = 0.0
        for a, b in zip(old, new):
            mixed = [*a, *b]
            draw.shuffle(mixed)
            total += unlike(mixed[: len(a)], mixed[len(a) :])
        extreme += total >= seen - 1e-12
    return (extreme + 1) / (rounds + 1)


# == Calibration ==


def calibrate(engine: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int = 32) -> dict[str, float]:
    """How far an engine is from itself: the same tokens read in one batch and one by one.

    Returns {"tau": the largest movement of a difference of two logits, doubled, and two float32 units of the largest
    logit at least; "steps": how many were looked at}.
    """
    requests = [{"prompt_token_ids": list(ids)} for ids in prompts]
    results = engine.generate_text_batch(requests, {"max_new_tokens": max_new_tokens})
    pairs = [(request, result.token_ids) for request, result in zip(requests, results)]
    together = engine.score_batch(pairs, logits=True)
    alone = [engine.score_batch([pair], logits=True)[0] for pair in pairs]
    moved, steps, largest = 0.0, 0, 1.0
    for a, b in zip(together, alone):
        best = a.logits.float().topk(2).indices
        gaps = [(side.logits.float().gather(1, best)).diff(dim=1) for side in (a, b)]
        moved, steps = max(moved, float((gaps[0] - gaps[1]).abs().max())), steps + len(best)
        largest = max(largest, float(a.logits.abs().max()))
    return {"tau": max(2 * moved, 2 * largest * 2.0**-23), "steps": steps}


def is_sampled(case: golden.Case) -> bool:
    return any(is_drawn(row) for row in case.rows)
