"""How many tokens does each check need to see a fault of a real model: `python -m parity.proof power`.

    rows = read_real(64)            the old path, clean ones and faults, on the same rows
    found = alarms_of(rows, path)   how often each check alarms, over resampled sets of rows

Checks: this project's referee and five that others use (`CHECKS`). Faults: eight that others reported (`FAULTS`).
Each fault is on a path that also rounds otherwise than the old one, as a move to another library does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from parity.diff import plants
from parity.judge.numerics import probes, referee
from parity.judge.numerics.errors import Errors, Reading, errors_of, prefixes_of, robust_size
from parity.models import real_model
from parity.models.tasks import real_questions
from parity.proof.matrix import write_between

Array = Any  # numpy.ndarray
Plant = Callable[[Any], contextlib.AbstractContextManager[Any]]

QUESTIONS = 64
TOKENS = 40  # of an answer, at most
LIKELIEST = 50  # tokens that are kept of each step: as many as Token-DiFR samples from
AT_ONCE = 8  # rows in a batch; the old path reads four


# == Faults ==


@dataclass(frozen=True)
class Fault:
    """source: who reported it.   probe: ours that looks for it, or is close.   plant: into a loaded model.
    quantized_cache, lost, shifted: as in `read`."""

    source: str
    probe: str = ""
    plant: Plant = contextlib.nullcontext
    quantized_cache: bool = False
    lost: int = 0
    shifted: int = 0


def weights(change: Callable[[Any], Any]) -> Plant:
    return lambda model: plants.rewritten(model, change)


@contextlib.contextmanager
def small_epsilon(model: Any) -> Iterator[None]:
    """1e-6 in all norms, whatever the checkpoint says."""
    norms = [module for module in model.modules() if hasattr(module, "variance_epsilon")]
    before = [norm.variance_epsilon for norm in norms]
    for norm in norms:
        norm.variance_epsilon = 1e-6
    try:
        yield
    finally:
        for norm, value in zip(norms, before):
            norm.variance_epsilon = value


@contextlib.contextmanager
def coarse_frequencies(model: Any) -> Iterator[None]:
    """Rotary frequencies rounded to bfloat16."""
    frequencies = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    before = [buffer.clone() for buffer in frequencies]
    for buffer in frequencies:
        buffer.copy_(buffer.bfloat16().float())
    try:
        yield
    finally:
        for buffer, value in zip(frequencies, before):
            buffer.copy_(value)


def hotter(model: Any) -> contextlib.AbstractContextManager[Any]:
    return probes.moved_logits(model, 1 / 1.05)


FAULTS: Mapping[str, Fault] = {
    "RMSNorm epsilon 1e-6": Fault("llama.cpp #2373, transformers #38025", plant=small_epsilon),
    "rope in bfloat16": Fault("transformers #29285, sglang-jax #1472", "rope theta", coarse_frequencies),
    "temperature 1.05": Fault("Token-DiFR (1.1), trl #4159", "logits", hotter),
    "KV cache fp8": Fault("Token-DiFR, vLLM #54705", quantized_cache=True),
    "position off by one": Fault("vllm-mlx #311, transformers #43082", shifted=1),
    "fp8 weights": Fault("Token-DiFR", plant=weights(plants.fp8)),
    "4-bit weights": Fault("Token-DiFR", plant=weights(plants.int4)),
    "lost BOS": Fault("lm-eval #2052, vLLM #52304", lost=1),
}
CLEAN = ("eager attention, eights", "rows alone", "cached decoding")


# == Reading ==


@dataclass(frozen=True)
class Read:
    """A row on one path.   logprobs: of ids[1:], None where it has no such token.
    best, scores: [steps, LIKELIEST], of the answer: the likeliest tokens and their log-probabilities."""

    logprobs: list[float | None]
    best: Array
    scores: Array


@dataclass(frozen=True)
class Rows:
    """paths: "old", "exact" (float32), CLEAN and FAULTS, a Read per row.   probes: log-probabilities in float32."""

    prompts: list[list[int]]
    answers: list[list[int]]
    paths: dict[str, list[Read]]
    probes: dict[str, list[list[float | None]]]

    @property
    def tokens(self) -> float:
        """Of an answer, the mean."""
        return sum(map(len, self.answers)) / len(self.answers)


def read_real() -> Rows:
    """Loads the real model three times, one at a time."""
    import torch
    import transformers

    folder = real_model.folder()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)

    def load(dtype: Any, **how: Any) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **how).eval()

    chats = [[{"role": "user", "content": text}] for text in real_questions(QUESTIONS)]
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chats]
    model = load(torch.bfloat16)
    answers = [row for k in range(0, QUESTIONS, 16) for row in answers_of(model, prompts[k : k + 16])]
    rows = Rows(prompts, answers, {}, {})
    read_loaded(model, rows)
    read_moved(load(torch.bfloat16, attn_implementation="eager"), rows)
    read_exact(load(torch.float32), rows)
    return rows


def read_loaded(model: Any, rows: Rows) -> None:
    """The old path, and two that only round otherwise."""
    rows.paths["old"] = read(model, rows, at_once=4)
    rows.paths["rows alone"] = read(model, rows, at_once=1)
    rows.paths["cached decoding"] = read_cached(model, rows, at_once=16)


def read_moved(model: Any, rows: Rows) -> None:
    """Another attention and other batches: clean, and with each fault."""
    rows.paths[CLEAN[0]] = read(model, rows)
    for name, fault in FAULTS.items():
        how: dict[str, Any] = {"quantized_cache": fault.quantized_cache, "lost": fault.lost, "shifted": fault.shifted}
        with fault.plant(model):
            rows.paths[name] = read(model, rows, **how)


def read_exact(model: Any, rows: Rows) -> None:
    """The reference and its probes."""
    rows.paths["exact"] = read(model, rows)
    for name, move in probes.PROBES.items():
        with move(model, probes.PROBED):
            rows.probes[name] = [row.logprobs for row in read(model, rows)]


def answers_of(model: Any, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Greedy, padded on the left; up to the end of text, with it."""
    import torch

    end = model.generation_config.eos_token_id
    ids, mask = padded_left(prompts, end)
    how = {"attention_mask": mask, "max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": end}
    with torch.inference_mode():
        made = model.generate(ids, **how)[:, ids.shape[1] :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in made]


def padded_left(rows: Sequence[list[int]], pad: int) -> tuple[Any, Any]:
    """Ids and attention mask."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def read(
    model: Any,
    rows: Rows,
    *,
    at_once: int = AT_ONCE,
    quantized_cache: bool = False,
    lost: int = 0,
    shifted: int = 0,
) -> list[Read]:
    """Rows in batches, padded on the right: causal attention does not see what follows.

    quantized_cache: keys and values in fp8.   lost: first ids that the path leaves out.   shifted: by how much the
    positions of answers are too large.
    """
    import torch

    found = []
    for first in range(0, len(rows.answers), at_once):
        prompts = rows.prompts[first : first + at_once]
        answers = rows.answers[first : first + at_once]
        batch = [[*prompt[lost:], *answer] for prompt, answer in zip(prompts, answers)]
        longest = max(map(len, batch))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
        positions = torch.arange(longest).repeat(len(batch), 1)
        for k, prompt in enumerate(prompts):
            positions[k, len(prompt) - lost :] += shifted
        how = {"past_key_values": quantizing_cache()} if quantized_cache else {"use_cache": False}
        with torch.inference_mode():
            logits = model(input_ids=ids, position_ids=positions, **how).logits
        for row, answer, scores in zip(batch, answers, logits):
            found.append(read_of(scores[: len(row) - 1], row, len(answer), lost))
    return found


def read_cached(model: Any, rows: Rows, at_once: int) -> list[Read]:
    """As generation does: the prompt, then a token at a time."""
    import torch

    found = []
    end = model.generation_config.eos_token_id
    for first in range(0, len(rows.answers), at_once):
        prompts = rows.prompts[first : first + at_once]
        answers = rows.answers[first : first + at_once]
        ids, mask = padded_left(prompts, end)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = []
        cache = None
        for step in range(max(map(len, answers))):
            with torch.inference_mode():
                made = model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                )
            cache = made.past_key_values
            logits.append(made.logits)
            ids = torch.tensor([[*answer, *[end] * TOKENS][step : step + 1] for answer in answers])
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            positions = positions[:, -1:] + 1
        every = torch.cat(logits, 1)
        longest = max(map(len, prompts))
        for k, (prompt, answer) in enumerate(zip(prompts, answers)):
            row = [*prompt, *answer]
            start = longest - len(prompt)
            found.append(read_of(every[k, start : start + len(row) - 1], row, len(answer)))
    return found


def read_of(logits: Any, row: Sequence[int], steps: int, lost: int = 0) -> Read:
    """logits: [len(row) - 1, vocabulary]."""
    import torch

    scores = logits.float().log_softmax(-1)
    own = scores.gather(1, torch.tensor(row[1:])[:, None])[:, 0].tolist()
    best = scores[-steps:].topk(LIKELIEST)
    return Read([None] * lost + own, best.indices.numpy(), best.values.numpy())


def quantizing_cache() -> Any:
    """Keys and values are rounded to float8_e4m3fn as they are stored, with scale 1, vLLM's default."""
    import torch
    import transformers

    class QuantizingCache(transformers.DynamicCache):  # type: ignore[misc]
        def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
            rounded = [tensor.to(torch.float8_e4m3fn).to(tensor.dtype) for tensor in (keys, values)]
            return super().update(*rounded, *args, **kwargs)

    return QuantizingCache()


# == Resampled sets ==

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # rows
SETS = 1000  # of each size
JUDGED = 100  # of them, by the referee: 14 sizes x 3 clean paths x 100 = 4,200 clean sets
SURE = 0.95
FALSE = 0.01
APART = 1 << 32  # between the prefixes of a row and of its copy


def resampled(count: int) -> dict[int, Array]:
    """Size -> [SETS, size], rows by number. All paths and checks get the same sets."""
    chance = np.random.default_rng(0)
    return {size: chance.integers(0, count, (SETS, size)) for size in SIZES}


# == This project's check ==


@dataclass(frozen=True)
class Measured:
    """What the referee computes of each row by itself.   prefixes: of each step, the number of the ids up to there.
    shared: ids with which all rows begin."""

    rows: list[Errors]
    prefixes: list[Array]
    shared: int

    def of_set(self, chosen: Sequence[int]) -> Errors:
        """As `errors_of`: a prefix that rows share counts once. A row and its copy share only what all rows do."""
        parts = [self.rows[k] for k in chosen]
        copies = [list(chosen[:place]).count(k) for place, k in enumerate(chosen)]
        keys = [
            self.prefixes[k] + copy * APART * (self.rows[k].position >= self.shared) for k, copy in zip(chosen, copies)
        ]
        place = np.repeat(np.arange(len(parts)), [len(one) for one in keys])
        _, first, sharing = np.unique(np.concatenate(keys), return_index=True, return_counts=True)
        order = np.argsort(first)
        steps = first[order]
        pairs = np.stack([place[steps], sharing[order]])
        clusters, cluster = np.unique(pairs, axis=1, return_inverse=True)

        def column(values: Callable[[Errors], Array]) -> Array:
            return np.concatenate([values(part) for part in parts])[steps]

        fields = ("position", "is_answer", "logprob", "old", "new", "floor", "is_open")
        columns = {name: column(attrgetter(name)) for name in fields}
        probed = {name: column(lambda part: part.probes[name]) for name in parts[0].probes}  # noqa: B023
        size = robust_size(columns["old"][columns["is_open"]])
        return Errors(cluster=cluster.reshape(-1), rows=clusters[0].tolist(), probes=probed, size=size, **columns)


def readings(rows: Rows, path: str) -> list[Reading]:
    found = []
    for k, (prompt, answer) in enumerate(zip(rows.prompts, rows.answers)):
        found.append(
            Reading(
                rows.paths["exact"][k].logprobs,
                rows.paths["old"][k].logprobs,
                rows.paths[path][k].logprobs,
                prompt=len(prompt) - 1,
                probes={name: scores[k] for name, scores in rows.probes.items()},
                ids=[*prompt, *answer],
            )
        )
    return found


def measured(rows: Rows, path: str) -> Measured:
    """A row's step at position p is the id with that number."""
    every = readings(rows, path)
    errors = [errors_of([row]) for row in every]
    numbers = prefixes_of(every)
    prefixes = [np.array(own)[one.position.astype(int) - 1] for own, one in zip(numbers, errors)]
    return Measured(errors, prefixes, common_length(rows.prompts))


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """Of the beginning that all have: the template's own system message."""
    length = 0
    while len({row[length] for row in rows}) == 1:
        length += 1
    return length


def share_of_referee(errors: Measured, sets: Array) -> float:
    """Of sets in which it is an alarm."""
    outcomes = [referee.judge_errors(errors.of_set(one.tolist()), dtype="bfloat16").outcome for one in sets]
    return outcomes.count("shifted") / len(outcomes)


# == What others use ==

TOP = 5
TIE = 0.5  # nats
GATE = 1.05
CLIP = 0.5  # of a margin
NUCLEUS = 0.95


def parts_at(old: Read, new: Read) -> int | None:
    """The first step at which greedy answers part."""
    apart = np.flatnonzero(old.best[:, 0] != new.best[:, 0])
    return int(apart[0]) if len(apart) else None


def is_far(old: Read, new: Read, tie: float) -> bool:
    """vLLM's check_logprobs_close of one prompt: where answers part, each token is among the other's five best. Its
    pull request 57365 lets near ties pass, too; `tie` is our reading of that: so far below the other's best."""
    step = parts_at(old, new)
    if step is None:
        return False
    return any(is_missed(one, int(other.best[step, 0]), step, tie) for one, other in ((old, new), (new, old)))


def is_missed(read: Read, token: int, step: int, tie: float) -> bool:
    rank = np.flatnonzero(read.best[step] == token)
    if not len(rank):
        return True
    gap = read.scores[step, 0] - read.scores[step, rank[0]]
    return bool(rank[0] >= TOP and gap > tie)


def far_gaps(old: Read, new: Read, answer: Sequence[int]) -> float:
    """The sum of exp|delta log p| over an answer; RL frameworks gate its mean."""
    gaps = np.array(new.logprobs[-len(answer) :]) - np.array(old.logprobs[-len(answer) :])
    return float(np.exp(np.abs(gaps)).sum())


def margins(old: Read, new: Read, noise: Array) -> Array:
    """Token-DiFR (arXiv 2511.20621): the new path samples each step with this Gumbel noise [steps, vocabulary]; by how
    much its token is below the best of the old one's under the same noise, at most CLIP. Temperature 1, top_k 50,
    top_p 0.95 and CLIP are its authors' defaults. Steps follow the golden's ids, not the sampled ones."""
    token = noised(new, noise).argmax(1)
    token = new.best[np.arange(len(token)), token]
    scores = noised(old, noise)
    own = np.where(old.best == token[:, None], scores, -np.inf).max(1)
    return np.minimum(scores.max(1) - own, CLIP)


def noised(read: Read, noise: Array) -> Array:
    """[steps, LIKELIEST], -inf for tokens that top_p leaves out."""
    shares = np.exp(read.scores)
    shares = shares / shares.sum(1, keepdims=True)
    is_kept = shares.cumsum(1) - shares < NUCLEUS
    return np.where(is_kept, read.scores + np.take_along_axis(noise, read.best, 1), -np.inf)


def changed_answers(exact: Read, old: Read, new: Read) -> tuple[int, int]:
    """(spoilt, mended) steps of a row. Paired answers (arXiv 2602.10144) need a right answer to each question: here
    each step is a question, and float32's best token is the answer to it."""
    right = exact.best[:, 0]
    was = old.best[:, 0] == right
    now = new.best[:, 0] == right
    return int((was & ~now).sum()), int((now & ~was).sum())


def least_spoilt(most: int) -> Array:
    """For each number of changed answers, how many of them must be spoilt ones for McNemar's exact one-sided test to
    reject at FALSE."""
    needed = []
    for n in range(most + 1):
        logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)]
        tail = np.exp(np.array(logs) - n * math.log(2))[::-1].cumsum()[::-1]
        rejected = np.flatnonzero(tail <= FALSE)
        needed.append(rejected[0] if len(rejected) else n + 1)
    return np.array(needed)


@dataclass(frozen=True)
class Counts:
    """Of each row: is_far with and without near ties, sums for the gate and for Token-DiFR, changed answers, tokens."""

    far: Array
    far_untied: Array
    gate: Array
    margin: Array
    spoilt: Array
    mended: Array
    tokens: Array


def counts_of(rows: Rows) -> dict[str, Counts]:
    """Of each path, by one noise for all."""
    table: dict[str, list[tuple[float, ...]]] = {path: [] for path in (*CLEAN, *FAULTS)}
    vocabulary = 1 + max(int(read.best.max()) for reads in rows.paths.values() for read in reads)
    for k, answer in enumerate(rows.answers):
        noise = np.random.default_rng(k).gumbel(size=(len(answer), vocabulary))
        exact, old = rows.paths["exact"][k], rows.paths["old"][k]
        for path, lines in table.items():
            new = rows.paths[path][k]
            far = is_far(old, new, 0.0), is_far(old, new, TIE)
            gate = far_gaps(old, new, answer)
            margin = float(margins(old, new, noise).sum())
            lines.append((*far, gate, margin, *changed_answers(exact, old, new), len(answer)))
    return {path: Counts(*np.array(lines).T) for path, lines in table.items()}


def statistics_of(counts: Counts, sets: Array) -> dict[str, Array]:
    """Check -> [SETS], an alarm if it is above the check's limit."""
    tokens = counts.tokens[sets].sum(1)
    spoilt = counts.spoilt[sets].sum(1).astype(int)
    changed = spoilt + counts.mended[sets].sum(1).astype(int)
    return {
        "top 5": counts.far[sets].sum(1),
        "top 5, near ties": counts.far_untied[sets].sum(1),
        "gate 1.05": counts.gate[sets].sum(1) / tokens,
        "Token-DiFR": counts.margin[sets].sum(1) / tokens,
        "paired answers": spoilt - least_spoilt(int(changed.max()))[changed] + 1,
    }


# == Power ==

OURS = "this project"
LIMITS = {"top 5": 0.0, "top 5, near ties": 0.0, "gate 1.05": GATE, "paired answers": 0.0}  # published
CHECKS = (OURS, "top 5", "top 5, near ties", "gate 1.05", "Token-DiFR", "paired answers")
Shares = dict[str, dict[int, float]]  # check -> rows -> share of sets that are alarms


def shares_of(rows: Rows) -> dict[str, Shares]:
    """Of each path. Token-DiFR has no published limit: for each number of rows it gets the least one at which none of
    these clean paths has more than FALSE alarms."""
    sets = resampled(len(rows.answers))
    counts = counts_of(rows)
    limits = {}
    for size, some in sets.items():
        clean = [statistics_of(counts[path], some)["Token-DiFR"] for path in CLEAN]
        limits[size] = max(float(np.quantile(values, 1 - FALSE, method="higher")) for values in clean)
    found: dict[str, Shares] = {}
    for path in (*CLEAN, *FAULTS):
        errors = measured(rows, path)
        shares: Shares = {check: {} for check in CHECKS}
        for size, some in sets.items():
            shares[OURS][size] = share_of_referee(errors, some[:JUDGED])
            for check, values in statistics_of(counts[path], some).items():
                limit = LIMITS.get(check, limits[size])
                shares[check][size] = float((values > limit).mean())
        found[path] = shares
    return found


def false_alarms(found: Mapping[str, Shares], check: str) -> dict[int, float]:
    """Rows -> the share, of the clean path that has most."""
    return {size: max(found[path][check][size] for path in CLEAN) for size in SIZES}


def rows_needed(shares: Mapping[int, float], clean: Mapping[int, float]) -> int | None:
    """The fewest from which on a fault is seen surely, and at which a clean path hardly ever is one."""
    for k, size in enumerate(SIZES):
        if all(shares[more] >= SURE for more in SIZES[k:]) and clean[size] <= FALSE:
            return size
    return None


@dataclass(frozen=True)
class Line:
    """A fault.   rounding: nats of logit, root mean square, of the faulty path.   needed: rows by check, None if all
    are too few."""

    fault: str
    rounding: float
    needed: dict[str, int | None]


def lines_of(rows: Rows, found: Mapping[str, Shares]) -> list[Line]:
    lines = []
    for fault in FAULTS:
        noise = referee.noise_of(measured(rows, fault).of_set(range(len(rows.answers))))
        needed = {check: rows_needed(found[fault][check], false_alarms(found, check)) for check in CHECKS}
        lines.append(Line(fault, noise.new, needed))
    return lines


# == What is shown ==

PAGE = Path(__file__).parents[1] / "judge/rounding.md"
MARKS = "<!-- parity power: -->", "<!-- :parity power -->"
STYLES = {  # check -> colour and marker
    OURS: ("#2a7a4b", "o"),
    "top 5": ("#c9a300", "^"),
    "top 5, near ties": ("#c96a00", "v"),
    "gate 1.05": ("#3b6fb5", "s"),
    "Token-DiFR": ("#8a4fa0", "D"),
    "paired answers": ("#b03a48", "P"),
}


def markdown(rows: Rows, found: Mapping[str, Shares], lines: Sequence[Line]) -> str:
    """The fewest tokens of each fault are bold."""
    noise = referee.noise_of(measured(rows, CLEAN[0]).of_set(range(len(rows.answers))))
    head = ["fault", "reported by", f"error ({noise.old:.3f} before)", *CHECKS]
    shown = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for line in lines:
        fault = FAULTS[line.fault]
        fewest = min((size for size in line.needed.values() if size), default=0)
        cells = [cell(size, rows.tokens, size == fewest) for size in line.needed.values()]
        name = f"{line.fault} (probe: {fault.probe})" if fault.probe else line.fault
        shown.append(f"| {name} | {fault.source} | {line.rounding:.3f} | {' | '.join(cells)} |")
    for path in CLEAN:
        alarms = [list(found[path][check].values()) for check in CHECKS]
        cells = [f"{np.mean(shares):.1%}, at most {max(shares):.1%}" for shares in alarms]
        shown.append(f"| false alarms: {path} | | | {' | '.join(cells)} |")
    return "\n".join(shown)


def cell(size: int | None, tokens: float, is_best: bool) -> str:
    if size is None:
        return f"> {SIZES[-1] * tokens:,.0f}"
    count = f"{size * tokens:,.0f}"
    return f"**{count}**" if is_best else count


def draw(rows: Rows, lines: Sequence[Line], file: Path) -> None:
    """A row for each fault, a mark for each check; those that never see it stand at the right edge."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    axis: Any = figure.subplots()
    never = 2 * SIZES[-1] * rows.tokens
    for check in reversed(CHECKS):
        colour, marker = STYLES[check]
        offset = 0.14 * (CHECKS.index(check) - (len(CHECKS) - 1) / 2)
        places = [(line.needed[check] or 0) * rows.tokens or never for line in lines]
        heights = [k + offset for k in range(len(lines))]
        is_ours = check == OURS
        axis.plot(
            places,
            heights,
            linestyle="",
            marker=marker,
            color=colour,
            label=check,
            markersize=8 if is_ours else 5,
            zorder=3 if is_ours else 2,
        )
    names = [f"{line.fault} ({line.rounding:.2f} nats)" for line in lines]
    axis.set_yticks(range(len(lines)), names, fontsize=11)
    axis.invert_yaxis()
    axis.set_xscale("log")
    ticks = [40, 100, 200, 400, 1000, 2000, 4000]
    axis.set_xticks([*ticks, never], [*(f"{tick:,}" for tick in ticks), "not\nseen"], fontsize=11)
    axis.minorticks_off()
    axis.axvline(1.4 * SIZES[-1] * rows.tokens, color="#999", lw=0.8)
    axis.set_xlabel(f"answer tokens to see it in {SURE:.0%} of sets (at most {FALSE:.0%} false alarms)", fontsize=11)
    axis.set_ylabel("fault (error on the moved path)", fontsize=11)
    axis.grid(axis="x", color="#ddd", lw=0.6)
    for k in range(len(lines) - 1):
        axis.axhline(k + 0.5, color="#eee", lw=0.8)
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside upper center", ncols=len(CHECKS), fontsize=10, frameon=False
    )
    figure.savefig(file, dpi=100)


def run(args: argparse.Namespace) -> int:
    try:
        real_model.folder()
    except real_model.BuildError as error:
        print(f"power: {error}", file=sys.stderr)
        return 3
    rows = read_real()
    found = shares_of(rows)
    lines = lines_of(rows, found)
    table = markdown(rows, found, lines)
    print(table)
    if args.out:
        kept = {"tokens": rows.tokens, "lines": [asdict(line) for line in lines], "shares": found}
        args.out.with_suffix(".json").write_text(json.dumps(kept) + "\n")
        draw(rows, lines, args.out.with_suffix(".png"))
        write_between(MARKS, table, PAGE)
    return 0


def add_power(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "power",
        help="tokens that six checks need to see a fault of the real model",
        epilog="example: python -m parity.proof power --out parity/judge/power",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="writes FILE.json, FILE.png and the table in parity/judge/rounding.md"
    )
    parser.set_defaults(run=run)
