"""Samples: do both paths draw from one distribution? Both read the golden's tokens, and after the golden's settings are
applied to the logits of both: do they leave the same tokens, with the same probabilities? Else, texts against texts.

The old path is plain transformers on the golden's checkpoint, in the golden's dtype.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parity import golden
from parity.judge.replay import adapter_named, budget_kwargs, pictures_of
from parity.judge.row import entry, is_drawn, placeholder_in
from parity.record.rows import collapsed
from parity.verdict import equal

Row = Mapping[str, Any]

SAME_DRAWS = 1e-3  # total variation of two distributions that rounding alone makes unequal


class OldPath:
    """Plain transformers on a golden's checkpoint."""

    def __init__(self, model: Mapping[str, Any], store: golden.Store, adapter: str = "") -> None:
        import torch
        import transformers

        self.store, self.path = store, model["path"]
        here = {"local_files_only": True}  # a golden names the path
        config = transformers.AutoConfig.from_pretrained(self.path, **here)
        self.vision = hasattr(config, "vision_config")
        auto = transformers.AutoModelForImageTextToText if self.vision else transformers.AutoModelForCausalLM
        self.processor = transformers.AutoProcessor.from_pretrained(self.path, **here) if self.vision else None
        dtype = getattr(torch, model.get("dtype", "float32"))
        self.model = auto.from_pretrained(self.path, dtype=dtype, **here)
        if adapter:
            self.model.load_adapter(adapter)
        self.model.eval()

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


def new_logits(engine: Any, rows: Sequence[Row], store: golden.Store, adapter: str = "") -> Iterator[Any]:
    """Logits of the golden's tokens on the moved path, one float32 [tokens, vocabulary] per row. adapter: a folder.
    A row at a time: of all of them together they could fill the memory."""
    named = {"adapter": adapter_named(engine, adapter)} if adapter else {}
    for row in rows:
        [score] = engine.score_batch([({**request_of(row, store), **named}, row["output_ids"])], logits=True)
        yield score.logits.float()


def tells_its_logits(engine: Any, rows: Sequence[Row], store: golden.Store) -> bool:
    """Whether the logits that an engine tells are those of its log-probabilities, which vLLM tells by another way."""
    pairs = [(request_of(row, store), row["output_ids"]) for row in rows]
    for one, logits in zip(engine.score_batch(pairs), new_logits(engine, rows, store)):
        by_logits = logits.log_softmax(-1)
        told = [float(by_logits[place, token]) for place, token in enumerate(one.token_ids)]
        if not equal(list(one.logprobs), told):
            return False
    return True


def request_of(row: Row, store: golden.Store) -> dict[str, Any]:
    """A request for the golden's prompt, by its ids and pictures."""
    request: dict[str, Any] = {"prompt_token_ids": collapsed(row["prompt_ids"], placeholder_in(row))}
    if row.get("images"):
        request["images"] = pictures_of(row, store)
        least, most = row["images"][0].get("budget") or (None, None)
        request["vlm"] = {"min_pixels": least, "max_pixels": most} if most else {}
    return request


def moved_by_company(engine: Any, rows: Sequence[Row], store: golden.Store) -> float:
    """How far the log-probabilities of the golden's tokens are apart between rows side by side and each alone, in nats;
    rows leave and join as they did. Raises GoldenError where rows went through adapters, whose names it does not hold.
    """
    if any(any(row.get("inputs", {}).get("adapters", ())) for row in rows):
        raise golden.GoldenError("rows went through adapters")
    generate = engine.generate_vlm_batch if any(row.get("images") for row in rows) else engine.generate_text_batch

    def read(some: Sequence[Row]) -> list[Any]:
        ids = [row["output_ids"] for row in some]
        how = {"replay": ids, "max_new_tokens": max(map(len, ids)), "stop": {"ignore_eos": True}}
        answers = generate([request_of(row, store) for row in some], how, cache=False)
        return [value for answer in answers for value in answer.logprobs]

    told = [row for row in rows if row["output_ids"]]
    alone = [value for row in told for value in read([row])]
    return max((abs(a - b) for a, b in zip(read(told), alone, strict=True)), default=0.0)


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


def is_sampled(case: golden.Case) -> bool:
    return any(is_drawn(row) for row in case.rows)
