"""How many tokens three criteria need to see a fault of the real model: `python -m parity.proof power`.

    read = read_real(64)               the old path, clean ones and faults, on the same rows
    curves = [curve(read, ...), ...]   how often each criterion alarms, over resampled rows

The referee is this project's. "top-5" is vLLM's check_logprobs_close by its description: at the first step at which
greedy answers part, each side's token must be among the other's five best. "gate" is mean exp|delta log p| > 1.05.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.diff import plants
from parity.judge.numerics import probes, referee
from parity.judge.numerics.errors import Reading
from parity.models import real_model
from parity.models.tasks import real_questions

TOP = 5
GATE = 1.05
TOKENS = 40  # of an answer, at most
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)  # rows
MOST_JUDGED = 128  # rows that the referee is given
JUDGED, COUNTED = 40, 1000  # resampled sets: of the referee, and of the two that cost nothing
SURE, FALSE = 0.95, 0.01
CLEAN = "clean (eager attention)"
FAULTS = ("attention scale x 1.01", "int8", "fp8", "4 bit", "head x 1.01")
CRITERIA = ("referee", "top-5", "gate")
APART = 1 << 20  # added to the ids of a row that is sampled again: it shares no prefix but the first


# == Reading ==


@dataclass(frozen=True)
class Read:
    """A row on one path.   logprobs: of ids[1:].   best: the top tokens at each step of the answer."""

    logprobs: list[float]
    best: list[list[int]]


@dataclass(frozen=True)
class Rows:
    """paths: "old", CLEAN and FAULTS, a Read per row.   truth, probes: log-probabilities in float32."""

    prompts: list[list[int]]
    answers: list[list[int]]
    paths: dict[str, list[Read]]
    truth: list[list[float]]
    probes: dict[str, list[list[float]]]

    @property
    def tokens(self) -> float:
        """Of an answer, the mean."""
        return sum(map(len, self.answers)) / len(self.answers)


def read_real(count: int) -> Rows:
    """Loads the real model three times, one at a time."""
    import torch
    import transformers

    folder = real_model.folder()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)

    def load(dtype: Any, **how: Any) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **how).eval()

    chats = [[{"role": "user", "content": text}] for text in real_questions(count)]
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chats]
    model = load(torch.bfloat16)
    answers = [row for k in range(0, count, 8) for row in answers_of(model, prompts[k : k + 8])]
    paths = {"old": read(model, prompts, answers, 4)}
    for fault in FAULTS:
        with planted(model, fault):
            paths[fault] = read(model, prompts, answers, 8)
    del model
    paths[CLEAN] = read(load(torch.bfloat16, attn_implementation="eager"), prompts, answers, 8)
    exact = load(torch.float32)
    truth = logprobs_of(read(exact, prompts, answers, 8))
    moved = {}
    for name, move in probes.PROBES.items():
        with move(exact, probes.PROBED):
            moved[name] = logprobs_of(read(exact, prompts, answers, 8))
    return Rows(prompts, answers, paths, truth, moved)


def logprobs_of(rows: Sequence[Read]) -> list[list[float]]:
    return [row.logprobs for row in rows]


@contextlib.contextmanager
def planted(model: Any, fault: str) -> Iterator[None]:
    weights: dict[str, Callable[[Any], Any]] = {"int8": plants.int8, "fp8": plants.fp8, "4 bit": plants.int4}
    with contextlib.ExitStack() as stack:
        if fault in weights:
            stack.enter_context(plants.rewritten(model, weights[fault]))
        elif fault.startswith("attention"):
            stack.enter_context(probes.moved_attention(model, 1.01))
        else:
            stack.enter_context(probes.moved_logits(model, 1.01))
        yield


def answers_of(model: Any, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Greedy, padded on the left; up to the end of text, with it."""
    import torch

    longest = max(map(len, prompts))
    end = model.generation_config.eos_token_id
    ids = torch.tensor([[end] * (longest - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
    how = {"attention_mask": mask, "max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": end}
    with torch.inference_mode():
        made = model.generate(ids, **how)[:, longest:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in made]


def read(model: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]], at_once: int) -> list[Read]:
    """Rows in batches, padded on the right: causal attention does not see what follows."""
    import torch

    found = []
    rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers)]
    for first in range(0, len(rows), at_once):
        batch = rows[first : first + at_once]
        longest = max(map(len, batch))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
        with torch.inference_mode():
            scores = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        for k, row in enumerate(batch):
            own = scores[k, : len(row) - 1]
            tokens = torch.tensor(row[1:])[:, None]
            steps = len(answers[first + k])
            best = own[-steps:].topk(TOP).indices.tolist()
            found.append(Read(own.gather(1, tokens)[:, 0].tolist(), best))
    return found


# == Criteria ==


def is_seen_by_referee(rows: Rows, path: str, chosen: Sequence[int]) -> bool:
    readings = []
    shared = common_length(rows.prompts)
    for place, k in enumerate(chosen):
        prompt = rows.prompts[k]
        copy = list(chosen[:place]).count(k)
        ids = [*prompt, *rows.answers[k]]
        ids = [token + copy * APART * (n >= shared) for n, token in enumerate(ids)]
        readings.append(
            Reading(
                rows.truth[k],
                rows.paths["old"][k].logprobs,
                rows.paths[path][k].logprobs,
                prompt=len(prompt) - 1,
                probes={name: scores[k] for name, scores in rows.probes.items()},
                ids=ids,
            )
        )
    return referee.judge(readings, dtype="bfloat16").outcome == "shifted"


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """Of the beginning that all have: the template's own system message."""
    length = 0
    while len({row[length] for row in rows}) == 1:
        length += 1
    return length


def is_far_at_parting(old: Read, new: Read) -> bool:
    """vLLM's check of one prompt."""
    for one, other in zip(old.best, new.best):
        if one[0] != other[0]:
            return one[0] not in other or other[0] not in one
    return False


def alarms_of(rows: Rows, path: str) -> dict[str, Any]:
    """Per row: whether top-5 alarms; the sum of exp|delta log p| over its answer, and its tokens."""
    import numpy as np

    far, sums, tokens = [], [], []
    for old, new, answer in zip(rows.paths["old"], rows.paths[path], rows.answers):
        far.append(is_far_at_parting(old, new))
        gaps = np.subtract(new.logprobs[-len(answer) :], old.logprobs[-len(answer) :])
        sums.append(float(np.exp(np.abs(gaps)).sum()))
        tokens.append(len(answer))
    return {"far": np.array(far), "sums": np.array(sums), "tokens": np.array(tokens)}


# == Power ==


def curves_of(rows: Rows, path: str) -> dict[str, list[tuple[int, float]]]:
    """Criterion -> (rows, share of resampled sets that are alarms)."""
    import numpy as np

    chance = np.random.default_rng(0)
    count = len(rows.answers)
    measured = alarms_of(rows, path)
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in CRITERIA}
    for size in SIZES:
        chosen = chance.integers(0, count, (COUNTED, size))
        means = measured["sums"][chosen].sum(1) / measured["tokens"][chosen].sum(1)
        found["top-5"].append((size, float(measured["far"][chosen].any(1).mean())))
        found["gate"].append((size, float((means > GATE).mean())))
        if size <= MOST_JUDGED:
            found["referee"].append((size, judged_share(rows, path, size)))
    return found


def judged_share(rows: Rows, path: str, size: int) -> float:
    """Sets without a row twice where there are enough rows."""
    draw = random.Random(size)
    every = range(len(rows.answers))
    again = size > len(every) // 2
    seen = 0
    for _ in range(JUDGED):
        chosen = draw.choices(every, k=size) if again else draw.sample(every, size)
        seen += is_seen_by_referee(rows, path, chosen)
    return seen / JUDGED


def needed(curve: Sequence[tuple[int, float]], clean: Sequence[tuple[int, float]]) -> int | None:
    """The fewest rows from which on the fault is seen surely, and a clean path hardly ever."""
    alarms = dict(clean)
    for k, (size, _) in enumerate(curve):
        rest = curve[k:]
        if all(share >= SURE for _, share in rest) and alarms[size] <= FALSE:
            return size
    return None


def table(found: dict[str, Any], tokens: float) -> str:
    clean = found[CLEAN]
    lines = [f"answer tokens for {SURE:.0%} power at {FALSE:.0%} alarms; {tokens:.1f} tokens a row"]
    for fault in FAULTS:
        cells = []
        for name in CRITERIA:
            rows = needed(found[fault][name], clean[name])
            cells.append(f"{name} {'never' if rows is None else f'{rows * tokens:,.0f}'}")
        lines.append(f"{fault:24} {', '.join(cells)}")
    alarms = {name: max(share for _, share in clean[name]) for name in CRITERIA}
    most = ", ".join(f"{name} {share:.1%}" for name, share in alarms.items())
    return "\n".join([*lines, f"alarms of a clean path, at most: {most}"])


def draw_curves(found: dict[str, Any], tokens: float, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.6), layout="constrained")
    axes: Any = figure.subplots(1, len(FAULTS) + 1, sharey=True)
    styles = {"referee": "#2a7a4b", "top-5": "#c96a00", "gate": "#3b6fb5"}
    for axis, path in zip(axes, (*FAULTS, CLEAN)):
        for name in CRITERIA:
            sizes, shares = zip(*found[path][name])
            axis.plot([size * tokens for size in sizes], shares, color=styles[name], label=name, lw=1.8)
        axis.set(xscale="log", ylim=(-0.03, 1.03), title=path)
        axis.title.set_fontsize(9)
        axis.axhline(SURE, color="#999", lw=0.6, ls=":")
        axis.tick_params(labelsize=8)
    axes[0].set_ylabel("share of alarms")
    axes[2].set_xlabel("answer tokens")
    axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(file, dpi=90)


def run(args: argparse.Namespace) -> int:
    rows = read_real(args.rows)
    found = {path: curves_of(rows, path) for path in (*FAULTS, CLEAN)}
    print(table(found, rows.tokens))
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps({"tokens": rows.tokens, "curves": found}) + "\n")
        draw_curves(found, rows.tokens, args.out.with_suffix(".png"))
    return 0


def add_power(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "power",
        help="tokens that three criteria need to see a fault of the real model",
        epilog="example: python -m parity.proof power --out parity/judge/power",
    )
    parser.add_argument("--rows", type=int, default=64, help="prompts, at most 64")
    parser.add_argument("--out", type=Path, metavar="FILE", help="writes FILE.json and FILE.png")
    parser.set_defaults(run=run)
