"""When guessing apart pays: verifying and drafting, simulated from what single steps cost.

One verifier and its drafters are replayed, event by event: the verifier judges one group of rows after the other; each
judged group's rows are dealt to its drafters, and their guesses come back over the network. Three ways, the same work:

  plain     no guesses: one group, one token for each row and step
  in turn   one group: the verifier waits while the drafters guess, then judges all rows
  overlap   two groups: while one is judged, guesses for the other are made (companions/decoupled.py)

It knows rounds, queues and waiting, nothing else: no prompts are read, and acceptance is one chance per guess. Overlap
judges half the rows at a time, so that what a step costs however few its rows are is paid twice: it pays where that is
less than the wait that it hides.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from parity.rollout.report import BLUE, GREY, INK, ORANGE, Row, UnreadableTrace, Worker, read_workers, table

LENGTHS = tuple(random.Random(0).choices(range(64, 448), k=64))  # tokens of an answer, where no trace says


class Line(NamedTuple):
    """ms = fixed + each * how many."""

    fixed: float
    each: float

    def of(self, count: float) -> float:
        return self.fixed + self.each * count


@dataclass(frozen=True)
class Setting:
    """What is replayed. The defaults are assumed, not measured: roughly 8 B parameters and a draft of 0.6 B on a GPU.

    verify: ms of a forward, by the tokens in it.   draft: ms of all guesses of a round, by the rows of one drafter.
    guesses: in a round.   accepted: the chance that a guess is right where those before it were.
    delay: ms on the network, each way.   rows: that run at a time.   lengths: tokens of each answer, four for a row or
    more: they come again until they are.
    """

    verify: Line = field(default=Line(20.0, 0.02))
    draft: Line = field(default=Line(15.0, 0.1))
    guesses: int = 4
    accepted: float = 0.7
    drafters: int = 1
    delay: float = 0.5
    rows: int = 128
    lengths: tuple[int, ...] = LENGTHS

    @property
    def answers(self) -> list[int]:
        return list(self.lengths) * max(1, -(-4 * self.rows // len(self.lengths)))


class Outcome(NamedTuple):
    """seconds: until the last answer.   idle: the share of them in which the verifier waited for guesses."""

    seconds: float
    tokens: int
    rounds: int
    idle: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def simulate(setting: Setting, groups: int, seed: int = 0) -> Outcome:
    """groups: 0 is plain, 1 in turn, 2 overlap. The same setting and seed give the same."""
    draws, waiting = random.Random(seed), deque(setting.answers)
    guesses = setting.guesses if groups else 0
    most = [len(range(k, setting.rows, max(1, groups))) for k in range(max(1, groups))]
    held: list[list[int]] = [[] for _ in most]  # tokens that each row of a group still needs
    free = [0.0] * setting.drafters
    own = [range(k, len(free), len(most)) or range(len(free)) for k in range(len(most))]  # drafters of each group
    now, idle, rounds = 0.0, 0.0, 0
    ready = [(0.0, k) for k in range(len(most))]  # (ms, group) whose guesses are there; the first round has none
    while ready:
        arrived, group = heapq.heappop(ready)
        rows = held[group]
        idle, now = idle + max(0.0, arrived - now), max(arrived, now)
        if rows:
            now += setting.verify.of(len(rows) * (1 + guesses))
            rounds += 1
            rows[:] = [left for left in (left - gained(setting, guesses, draws) for left in rows) if left > 0]
        while waiting and len(rows) < most[group]:
            rows.append(waiting.popleft())
        if rows:
            back = now if not guesses else guessed(setting, len(rows), now, free, own[group])
            heapq.heappush(ready, (back, group))
    return Outcome(now / 1e3, sum(setting.answers), rounds, idle / now if now else 0.0)


def gained(setting: Setting, guesses: int, draws: random.Random) -> int:
    """Tokens that a row gets in a round: those guessed right, and the model's own."""
    right = 0
    while right < guesses and draws.random() < setting.accepted:
        right += 1
    return 1 + right


def guessed(setting: Setting, rows: int, asked: float, free: list[float], own: Sequence[int]) -> float:
    """When guesses for these rows are there. free: ms from which on each drafter is; changed. own: who guesses."""
    back = asked
    for k, drafter in enumerate(own):
        if share := len(range(k, rows, len(own))):
            free[drafter] = max(free[drafter], asked + setting.delay) + setting.draft.of(share)
            back = max(back, free[drafter] + setting.delay)
    return back


# == What was measured ==


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    """Least squares through (how many, ms), neither part below zero."""
    counts, times = [x for x, _ in points], [y for _, y in points]
    each = 0.0
    if len(set(counts)) > 1:
        each = max(0.0, statistics.linear_regression(counts, times).slope)
    return Line(max(0.0, statistics.fmean(times) - each * statistics.fmean(counts)), each)


def measured(directory: Path, setting: Setting) -> Setting:
    """The setting with the costs, guesses, acceptance, rows and lengths of a trace that guessed.

    A draft's time is taken as that of one drafter that had all rows of the step.   Raises UnreadableTrace.
    """
    workers = read_workers(directory)
    verify, draft, right, tried, most = [], [], 0, 0, 0
    for worker in workers:
        for step, row in enumerate(worker.perf):
            judged = [m for m in worker.markov if int(m["cur_step"]) == step]
            drafted = sum(m["draft_token_num"] for m in judged)
            if not drafted:
                continue  # prompts were read
            verify.append((drafted + len(judged), row["verify_time"]))
            draft.append((float(len(judged)), row["draft_time"]))
            most = max(most, int(row["draft_nstep"]))
        hits, rounds = chances(worker)
        right, tried = right + hits, tried + rounds
    if not verify:
        raise UnreadableTrace(f"{directory}: nobody guessed there; trace a run with a decoder")
    return replace(
        setting,
        verify=fitted(verify),
        draft=fitted(draft),
        guesses=most,
        accepted=right / tried,
        rows=max(2, *(int(max(row["step_batchsize"] for row in worker.perf)) for worker in workers if worker.perf)),
        lengths=tuple(int(row["response_length"]) for worker in workers for row in worker.request),
    )


def chances(worker: Worker) -> tuple[int, int]:
    """(guesses that were right, guesses whose predecessors were)."""

    def accepted(row: Row) -> int:
        return int(min(row["acc_token_num"] - 1, row["draft_token_num"]))

    rows = [row for row in worker.markov if row["draft_token_num"]]
    right = sum(map(accepted, rows))
    return right, right + sum(accepted(row) < row["draft_token_num"] for row in rows)


# == Table and picture ==

WAYS = {"plain": 0, "in turn": 1, "overlap": 2}
COLOURS = {"plain": GREY, "in turn": ORANGE, "overlap": BLUE}
PERCENT = "{:.0f} %".format


def scaled(line: Line, ratio: float, setting: Setting) -> Line:
    """A draft of half the rows that takes `ratio` times what judging them does."""
    half = (setting.rows + 1) // 2
    factor = ratio * setting.verify.of(half * (1 + setting.guesses)) / line.of(half) if line.of(half) else 0.0
    return Line(line.fixed * factor, line.each * factor)


def sweeps(base: Setting) -> dict[str, list[tuple[str, float, Setting]]]:
    """What is varied -> (label, value, setting), the rest as in the base."""
    step = base.verify.of((base.rows + 1) // 2 * (1 + base.guesses))
    dear = replace(base, draft=scaled(base.draft, 2, base))  # or one drafter would do
    return {
        "draft time / verify time": [
            (f"draft {x:g} x verify", x, replace(base, draft=scaled(base.draft, x, base)))
            for x in (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
        ],
        "acceptance of a guess": [
            (f"accepted {x:g}", x, replace(base, accepted=x)) for x in (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
        ],
        "drafters, draft 2 x verify": [
            (f"draft 2 x verify, drafters {n}", n, replace(dear, drafters=n)) for n in (1, 2, 3, 4)
        ],
        "network delay / verify time": [
            (f"delay {x:g} x verify", x, replace(base, delay=x * step)) for x in (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
        ],
        "rows at a time": [(f"rows {n}", n, replace(base, rows=n)) for n in (2, 8, 32, 128, 256, 512)],
    }


def figures(setting: Setting) -> dict[str, Any]:
    found = {way: simulate(setting, groups) for way, groups in WAYS.items()}
    return {
        **{f"{way} tok/s": round(one.rate) for way, one in found.items()},
        "overlap / in turn": f"{found['overlap'].rate / found['in turn'].rate:.2f}",
        "overlap / plain": f"{found['overlap'].rate / found['plain'].rate:.2f}",
        "idle in turn": PERCENT(100 * found["in turn"].idle),
        "idle overlap": PERCENT(100 * found["overlap"].idle),
    }


def described(setting: Setting) -> str:
    """What was assumed or measured, in one line."""
    return (
        f"verify {setting.verify.fixed:.3g} + {setting.verify.each:.3g} ms per token, "
        f"draft {setting.draft.fixed:.3g} + {setting.draft.each:.3g} ms per row, {setting.guesses} guesses, "
        f"{setting.accepted:.2f} accepted, drafters {setting.drafters}, delay {setting.delay:.3g} ms, "
        f"{setting.rows} rows, {len(setting.answers)} answers"
    )


def draw(base: Setting, file: Path, title: str) -> None:
    """tokens/s, as multiples of plain, above, and the idle share below, over each of what is varied."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY,
             "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK}  # fmt: skip
    with pyplot.rc_context(style):
        varied = sweeps(base)
        figure, axes = pyplot.subplots(2, len(varied), figsize=(13.3, 7.0), dpi=120, layout="constrained", sharey="row")
        figure.suptitle(f"{title}\n{described(base)}", fontsize=11, x=0.01, ha="left")
        for place, (name, points) in enumerate(varied.items()):
            values = [value for _, value, _ in points]
            plain = [simulate(setting, 0).rate for _, _, setting in points]
            for way, groups in WAYS.items():
                found = [simulate(setting, groups) for _, _, setting in points]
                rates, idle = [one.rate / bare for one, bare in zip(found, plain)], [100 * one.idle for one in found]
                axes[0, place].plot(values, rates, color=COLOURS[way], linewidth=2, marker="o", markersize=3, label=way)
                axes[1, place].plot(values, idle, color=COLOURS[way], linewidth=2, marker="o", markersize=3)
            axes[1, place].set_xlabel(name)
            if max(values) > 100:
                axes[1, place].sharex(axes[0, place])
                axes[0, place].set_xscale("log", base=2)
        axes[0, 0].set_ylabel("tokens/s, multiples of plain (simulated)")
        axes[1, 0].set_ylabel("verifier idle, %")
        axes[0, 0].set_ylim(bottom=0)
        axes[1, 0].set_ylim(-2, 102)
        axes[0, 0].legend(frameon=False, fontsize=9)
        figure.savefig(file)
        pyplot.close(figure)


def report(out: Path, costs: Path | None) -> int:
    """Print the table and draw the picture."""
    base = Setting() if costs is None else measured(costs, Setting())
    source = "costs assumed" if costs is None else f"costs measured in {costs}"
    rows = {"base": figures(base)}
    rows |= {label: figures(setting) for points in sweeps(base).values() for label, _, setting in points}
    print(f"simulated, {source}: {described(base)}\n")
    print(table(rows, "varied"))
    out.mkdir(parents=True, exist_ok=True)
    draw(base, out / "decoupled.png", f"Guessing apart, simulated; {source}")
    print(f"\npicture: {out / 'decoupled.png'}")
    return 0
