"""`python -m parity trace DIR`: what a traced rollout did, as a table and one picture; `demo` makes traces to look at.

    python -m parity trace rollouts/            # a table, and rollouts/trace.png
    python -m parity trace demo --out build/traces

DIR holds what `trace(engine, DIR, worker_id)` of companions/rollout.py wrote, of one worker or more. `demo` runs the
tiny checkpoints plainly, with n-grams and with a draft model on each backend, and compares the figures.

Exit codes: 0 the figures agree with each other, 1 they do not, 2 usage, 3 nothing to read, or not readable.

How to read the table. A step is one forward pass of the model (with guesses: one round). tokens/s counts generated
tokens from the first call's begin to the last step's end; draft, verify and idle are shares of the steps' time.
Accepted by position k: of the rounds with k guesses or more, those that delivered k of them. A straggler is a request
that took more than twice the median, or the last worker to end.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import re
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gen_engine import GenEngineError, GenerationResult, load
from parity.companions.rollout import trace
from parity.companions.speculation import Speculation
from parity.environment.libraries import clone_file
from parity.environment.output_paths import file_to_write, folder_to_write
from parity.models.tasks import text_tasks

MODEL = "golden/models/tiny-qwen3"
DRAFT_MODEL = "golden/models/tiny-qwen3-draft"
KINDS = ("perf", "request", "markov")
WORKER_FILE = re.compile(r"worker_(\d+)_(perf|request|markov)\.csv")

Row = dict[str, float]


class UnreadableTrace(Exception):
    """A directory that holds no whole trace."""


# == Reading ==


@dataclass
class Span:
    """One request on the time axis, in seconds since the worker's first call began.

    served: (begin, end) of each step that gave it tokens.
    """

    number: int
    arrived: float
    ended: float
    tokens: int
    served: list[tuple[float, float]]

    @property
    def waited(self) -> float:
        return max(0.0, self.served[0][0] - self.arrived) if self.served else 0.0


@dataclass
class Worker:
    """One worker's three files."""

    number: int
    perf: list[Row]
    request: list[Row]
    markov: list[Row]
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        steps: dict[float, list[Row]] = {row["req_id"]: [] for row in self.request}
        for row in self.markov:
            steps.setdefault(row["req_id"], []).append(row)
        for row in sorted(self.request, key=lambda row: row["req_id"]):
            own = [int(step["cur_step"]) for step in steps[row["req_id"]] if step["acc_token_num"]]
            served = [(self.end_of(k) - self.perf[k]["step_interval"] / 1e3, self.end_of(k)) for k in own]
            ended = served[-1][1] if served else 0.0
            begun = ended - row["rollout_time"]
            self.spans.append(Span(int(row["req_id"]), begun, ended, int(row["response_length"]), served))

    def end_of(self, step: int) -> float:
        return self.perf[step]["step_ts"] + self.perf[0]["step_interval"] / 1e3

    @property
    def seconds(self) -> float:
        return self.end_of(-1) if self.perf else 0.0

    @property
    def tokens(self) -> int:
        return int(sum(row["step_tokens"] for row in self.perf))

    def column(self, name: str) -> list[float] | None:
        """The values of a column of the perf file, or None where it was not measured."""
        return [row[name] for row in self.perf] if self.perf and name in self.perf[0] else None


def read_table(file: Path) -> list[Row]:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = [dict(row) for row in csv.DictReader(stream)]
        return [{name: float(value) if value else float("nan") for name, value in row.items()} for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise UnreadableTrace(f"{file}: {error}") from error


def read_workers(directory: Path) -> list[Worker]:
    """Every worker whose three files lie in `directory`. Raises UnreadableTrace."""
    found: dict[int, set[str]] = {}
    for file in directory.glob("worker_*.csv"):
        if match := WORKER_FILE.fullmatch(file.name):
            found.setdefault(int(match[1]), set()).add(match[2])
    if not found:
        raise UnreadableTrace(f"{directory}: no worker_<id>_perf.csv; write one with `with trace(engine, DIR):`")
    for number, kinds in found.items():
        if missing := set(KINDS) - kinds:
            raise UnreadableTrace(f"{directory}: worker {number} lacks {', '.join(sorted(missing))}")
    workers = []
    for number in sorted(found):
        tables = [read_table(directory / f"worker_{number}_{kind}.csv") for kind in KINDS]
        try:
            workers.append(Worker(number, tables[0], tables[1], tables[2]))
        except (KeyError, IndexError) as error:
            raise UnreadableTrace(f"{directory}: worker {number} is no whole trace: {error!r}") from error
    if not any(worker.perf for worker in workers):
        raise UnreadableTrace(f"{directory}: nothing was generated inside the trace")
    return workers


# == Judging ==


def disagreements(worker: Worker) -> Iterator[str]:
    """Figures of one worker's files that should be equal and are not."""
    steps = [0.0] * len(worker.perf)
    own: dict[float, list[Row]] = {row["req_id"]: [] for row in worker.request}
    for row in worker.markov:
        steps[int(row["cur_step"])] += row["acc_token_num"]
        own.setdefault(row["req_id"], []).append(row)
    if steps != [row["step_tokens"] for row in worker.perf]:
        yield f"worker {worker.number}: tokens per step differ between perf and markov"
    for row in worker.request:
        mine = own[row["req_id"]]
        sums = len(mine), sum(r["acc_token_num"] for r in mine), sum(r["draft_token_num"] for r in mine)
        if sums != (row["rollout_step"], row["response_length"], row["spec_draft_total"]):
            yield f"worker {worker.number}: request {row['req_id']:.0f} differs between request and markov: {sums}"
        if not row["spec_accepted_total"] <= row["spec_matched_total"] <= row["spec_draft_total"]:
            yield f"worker {worker.number}: request {row['req_id']:.0f} accepted more than was guessed"


def acceptance_by_position(markov: Sequence[Row]) -> list[float]:
    """[k-1]: of the rounds with k guesses or more, the share that delivered k of them."""
    rounds = [(int(row["draft_token_num"]), int(row["acc_token_num"]) - 1) for row in markov if row["draft_token_num"]]
    deepest = max((drafted for drafted, _ in rounds), default=0)
    shares = []
    for k in range(1, deepest + 1):
        tried = [accepted for drafted, accepted in rounds if drafted >= k]
        shares.append(sum(accepted >= k for accepted in tried) / len(tried))
    return shares


def share(worker: Worker, name: str) -> float | None:
    """A time's part of all steps' time."""
    values = worker.column(name)
    known = [value for value in values or () if value == value]
    return sum(known) / sum(row["step_interval"] for row in worker.perf) if known else None


def mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if value == value]  # an empty cell is read as nan
    return round(statistics.fmean(known), 2) if known else None


def figures(worker: Worker) -> dict[str, Any]:
    """The row of the table; None where it was not measured."""
    drafted = sum(row["spec_draft_total"] for row in worker.request)
    matched = sum(row["spec_matched_total"] for row in worker.request)
    usage, preempted, waiting = (worker.column(name) for name in ("kv_cache_usage", "preempted", "waiting"))
    return {
        "requests": len(worker.request),
        "tokens": worker.tokens,
        "steps": len(worker.perf),
        "seconds": round(worker.seconds, 3),
        "tokens/s": round(worker.tokens / worker.seconds, 1) if worker.seconds else None,
        "batch": mean([row["step_batchsize"] for row in worker.perf]),
        "acc len": mean([row["cur_acc_len"] for row in worker.perf]),
        "accepted": percent(matched / drafted if drafted else None),
        "draft": percent(share(worker, "draft_time")),
        "verify": percent(share(worker, "verify_time")),
        "idle": percent(share(worker, "idle_time")),
        "waiting": int(max(waiting)) if waiting else None,
        "preempted": int(sum(preempted)) if preempted else None,
        "kv max": percent(max(usage)) if usage else None,
    }


def percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


# == The table ==


def table(rows: Mapping[str, Mapping[str, Any]], corner: str) -> str:
    """Name -> figures as aligned text; "-" is what was not measured."""
    columns = list(next(iter(rows.values())))
    lines = [[corner, *columns]]
    lines += [[name, *("-" if row[c] is None else str(row[c]) for c in columns)] for name, row in rows.items()]
    widths = [max(map(len, column)) for column in zip(*lines)]
    drawn = ["  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(r, widths))) for r in lines]
    return "\n".join([drawn[0], "─" * len(drawn[0]), *drawn[1:]])


def straggler_lines(workers: Sequence[Worker], most: int = 5) -> Iterator[str]:
    """The slowest requests, and the workers that the others wait for."""
    spans = [(worker.number, span) for worker in workers for span in worker.spans]
    if not spans:
        return
    middle = statistics.median(span.ended - span.arrived for _, span in spans)
    slow = sorted(spans, key=lambda pair: pair[1].arrived - pair[1].ended)[:most]
    yield f"slowest requests (median {middle:.3f} s):"
    for number, span in slow:
        took = span.ended - span.arrived
        yield (
            f"  worker {number} request {span.number:<4} {took:.3f} s = {took / middle if middle else 1:.1f} x, "
            f"{span.tokens} tokens, waited {span.waited:.3f} s{'   straggler' if took > 2 * middle else ''}"
        )
    if len(workers) > 1:
        yield from worker_lines(workers)


def worker_lines(workers: Sequence[Worker]) -> Iterator[str]:
    last = max(workers, key=lambda worker: worker.seconds)
    yield "workers, by when they ended:"
    for worker in sorted(workers, key=lambda worker: -worker.seconds):
        idle = last.seconds - worker.seconds
        what = "straggler" if worker is last else f"waited {idle:.3f} s for worker {last.number}"
        yield f"  worker {worker.number}: {worker.seconds:.3f} s, {worker.tokens} tokens   {what}"


def summary(workers: Sequence[Worker]) -> str:
    lines = [table({str(worker.number): figures(worker) for worker in workers}, "worker"), ""]
    shares = acceptance_by_position([row for worker in workers for row in worker.markov])
    if shares:
        lines += ["accepted by position: " + "  ".join(f"{k}: {100 * s:.0f} %" for k, s in enumerate(shares, 1)), ""]
    return "\n".join([*lines, *straggler_lines(workers)])


# == The picture ==

INK, GREY, BLUE, ORANGE, GREEN, RED = "#1f2933", "#c3ccd5", "#2f6fb3", "#e08e2b", "#3c9d6b", "#c8442f"
PALETTE = (BLUE, ORANGE, GREEN, RED, "#7a5ea8", "#4aa3a3")


def draw(workers: Sequence[Worker], file: Path, title: str) -> None:
    """One PNG, wide enough for a slide."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY,
             "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK}  # fmt: skip
    with pyplot.rc_context(style):
        figure = pyplot.figure(figsize=(13.3, 7.5), dpi=120, layout="constrained")
        grid = figure.add_gridspec(3, 3, width_ratios=(1, 1, 1.1))
        figure.suptitle(title, fontsize=15, fontweight="bold", x=0.01, ha="left")
        figure.text(0.99, 0.975, headline(workers), ha="right", va="center", fontsize=11, color=INK)
        series(figure.add_subplot(grid[0, :2]), workers, "step_tokens", "tokens per step")
        series(figure.add_subplot(grid[1, :2]), workers, "step_batchsize", "requests served per step")
        memory(figure.add_subplot(grid[2, :2]), workers)
        lengths(figure.add_subplot(grid[0, 2]), workers)
        timeline(figure.add_subplot(grid[1:, 2]), workers)
        figure.savefig(file)
        pyplot.close(figure)


def headline(workers: Sequence[Worker]) -> str:
    """The figures that one would say aloud."""
    tokens, seconds = sum(w.tokens for w in workers), max((w.seconds for w in workers), default=0.0)
    said = [f"{sum(len(w.request) for w in workers)} requests", f"{tokens} tokens"]
    said += [f"{tokens / seconds:,.0f} tokens/s"] if seconds else []
    drafted = sum(row["spec_draft_total"] for worker in workers for row in worker.request)
    matched = sum(row["spec_matched_total"] for worker in workers for row in worker.request)
    said += [f"{100 * matched / drafted:.0f} % of {drafted:.0f} guesses held"] if drafted else []
    if len(workers) == 1:
        parts = {name: share(workers[0], f"{name}_time") for name in ("draft", "verify", "idle")}
        said += [f"{name} {100 * part:.0f} %" for name, part in parts.items() if part is not None]
    return "  ·  ".join(said)


def along_time(axes: Any, workers: Sequence[Worker]) -> None:
    axes.set_xlim(0, 1.01 * max((worker.seconds for worker in workers), default=1.0) or 1.0)


def colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


def series(axes: Any, workers: Sequence[Worker], name: str, label: str) -> None:
    """A column of the perf file over time, one line per worker, each step as long as it took."""
    for place, worker in enumerate(workers):
        times = [0.0, *(worker.end_of(k) for k in range(len(worker.perf)))]
        values = [row[name] for row in worker.perf]
        axes.stairs(values, times, color=colour(place), alpha=0.15, fill=True)
        axes.stairs(values, times, color=colour(place), linewidth=1.4, label=f"worker {worker.number}")
    axes.set_title(label, loc="left", fontsize=11)
    axes.set_ylim(bottom=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    along_time(axes, workers)
    if len(workers) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper right", ncols=len(workers))


def memory(axes: Any, workers: Sequence[Worker]) -> None:
    """KV-cache use where it is known, and how many requests wait."""
    axes.set_xlabel("seconds since the first call")
    known = any(worker.column("kv_cache_usage") for worker in workers)
    waits = axes.twinx() if known else axes
    for place, worker in enumerate(workers):
        times = [0.0, *(worker.end_of(k) for k in range(len(worker.perf)))]
        if (usage := worker.column("kv_cache_usage")) is not None:
            axes.stairs([100 * value for value in usage], times, color=colour(place), linewidth=1.4, baseline=None)
        if (waiting := worker.column("waiting")) is not None:
            waits.stairs(waiting, times, fill=True, color=GREY, alpha=0.5)
    waits.set_ylim(0, max(1.0, 1.05 * waits.get_ylim()[1]))
    waits.yaxis.get_major_locator().set_params(integer=True)
    along_time(axes, workers)
    axes.set_title("requests waiting (grey)", loc="left", fontsize=11)
    if known:
        axes.set_title("KV cache in use, % (line) and requests waiting (grey, right)", loc="left", fontsize=11)
        axes.set_ylim(0, 105)
        axes.set_zorder(waits.get_zorder() + 1)
        axes.patch.set_visible(False)
        waits.spines["right"].set_visible(True)


def lengths(axes: Any, workers: Sequence[Worker]) -> None:
    """How many tokens a request got in a step: its own, or guesses that held and one more."""
    counts = [int(row["acc_token_num"]) for worker in workers for row in worker.markov if row["acc_token_num"]]
    most = max(counts, default=1)
    heights = [100 * counts.count(k) / max(1, len(counts)) for k in range(1, most + 1)]
    bars = axes.bar(range(1, most + 1), heights, color=BLUE, width=0.7)
    axes.bar_label(bars, fmt="%.0f", fontsize=9, padding=2)
    axes.set_title(f"tokens per request and step, % of steps (mean {mean(counts)})", loc="left", fontsize=11)
    axes.set_xticks(range(1, most + 1))
    axes.set_xlim(0.4, max(most, 3) + 0.6)
    axes.set_ylim(0, max([*heights, 1]) * 1.15)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def timeline(axes: Any, workers: Sequence[Worker]) -> None:
    """A line per request: grey while it waits, coloured while it gets tokens, a dot where it ends."""
    level, names = 0, {}  # type: int, dict[float, str]
    for place, worker in enumerate(workers):
        first = level
        for span in sorted(worker.spans, key=lambda span: (span.served[0] if span.served else (0, 0), span.number)):
            axes.hlines(level, span.arrived, span.ended, color=GREY, linewidth=1)
            axes.hlines([level] * len(span.served), *zip(*span.served), color=colour(place), linewidth=3)
            axes.plot(span.ended, level, "o", color=INK, markersize=2.5)
            if len(workers) == 1 and len(worker.spans) <= 32:
                names[level] = str(span.number)
            level += 1
        if len(workers) > 1:
            names[(first + level - 1) / 2] = f"worker {worker.number}"
        level += 1
    axes.invert_yaxis()
    axes.set_yticks(list(names), list(names.values()), fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_title("requests: waiting (grey), served, ended (dot)", loc="left", fontsize=11)
    axes.set_xlabel("seconds since the first call")
    along_time(axes, workers)


# == The demonstration ==

METHODS = ("plain", "ngram", "draft_model")
SMALL: dict[str, dict[str, Any]] = {
    "hf": {"max_batch_size": 8},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 32, "max_num_seqs": 8}},
}


def speculation(method: str) -> Speculation | None:
    """The decoder of one of METHODS."""
    if method == "plain":
        return None
    if method == "ngram":
        return Speculation("ngram", num_tokens=4)
    return Speculation("draft_model", num_tokens=4, model=str(clone_file(DRAFT_MODEL)))


def demo_run(backend: Any, method: str, out: Path) -> list[GenerationResult]:
    """Trace one setting into `out`, after a warm-up, and draw it."""
    asked = {repr(task.messages): {"messages": task.messages, "tools": task.tools} for task in text_tasks(26, seed=1)}
    requests = list(asked.values())  # equal ones would be generated once
    options = {"max_new_tokens": 160}
    model, decoder = clone_file(MODEL), speculation(method)
    with load(model, backend=backend, max_model_len=1024, decoder=decoder, **SMALL[backend]) as engine:
        engine.generate_text_batch(requests[:9], options)
        with trace(engine, out) as traced:
            results = engine.generate_text_batch(requests, options)
        traced.save_cases(out / "cases.parquet")
    draw(read_workers(out), out / "trace.png", f"tiny-qwen3, {backend}, {method}")
    return results


def demo(out: Path) -> int:
    """Every method on every backend: files, pictures, one table; 0 if all gave the same and the figures agree."""
    for name, value in (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_LOGGING_LEVEL", "ERROR")):
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")  # of the libraries among themselves
    logging.disable(logging.WARNING)
    answers, rows, faults = {}, {}, []
    for backend in SMALL:
        for method in METHODS:
            print(f"{backend} {method} ...", file=sys.stderr)
            directory = out / f"{backend}-{method}"
            answers[backend, method] = [result.token_ids for result in demo_run(backend, method, directory)]
            [worker] = read_workers(directory)
            rows[f"{backend} {method}"] = figures(worker)
            faults += [f"{backend} {method}: {fault}" for fault in disagreements(worker)]
            if sum(map(len, answers[backend, method])) != worker.tokens:
                faults.append(f"{backend} {method}: the trace has not the tokens of the answers")
    faults += [f"{' '.join(key)}: other ids than plain hf" for key in answers if answers[key] != answers["hf", "plain"]]
    print(table(rows, "tiny-qwen3"))
    print(f"files and pictures: {out}/<backend>-<method>/")
    return verdict(faults)


def verdict(faults: Sequence[str]) -> int:
    print("the figures agree" if not faults else "THE FIGURES DO NOT AGREE\n  " + "\n  ".join(faults))
    return 1 if faults else 0


# == Command line ==


def add_trace(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "trace",
        help="what a traced rollout did, as a table and a picture",
        description=__doc__,
        epilog="example: python -m parity trace rollouts/ --png slide.png",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", help="where the traces are, or the word demo")
    parser.add_argument("--png", type=file_to_write, help="the picture (default: trace.png in the directory)")
    parser.add_argument("--title", help="what stands over the picture (default: the directory's name)")
    parser.add_argument(
        "--out", type=folder_to_write, default=Path("build/traces"), help="demo only (default build/traces)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 the figures agree, 1 they do not, 3 nothing could be read or run."""
    try:
        if args.directory == "demo":
            return demo(args.out)
        directory = Path(args.directory)
        workers = read_workers(directory)
        print(summary(workers))
        png = args.png or directory / "trace.png"
        draw(workers, png, args.title or directory.resolve().name)
        print(f"picture: {png}")
        return verdict([fault for worker in workers for fault in disagreements(worker)])
    except (UnreadableTrace, GenEngineError, OSError) as error:
        print(f"parity trace: {error}", file=sys.stderr)
        return 3
