"""What `parity bench` measured, for people and for programs: a console table, CSV, JSON, and one plot."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.bench.values import (
    DIFFERENT,
    IDENTICAL,
    OTHER_PROMPTS,
    PARTED,
    ROUNDING,
    UNREAD,
    Bench,
    Measured,
    Ratio,
    Result,
    Verdict,
)

COLOURS = {
    "hf": "#c2410c",
    "vllm": "#1d4ed8",
    "hf guessing": "#7c2d12",
    "hf plain": "#fb923c",
    "hf continuous": "#a8a29e",
    "vllm generate": "#60a5fa",
}
LABELS = {
    "hf": "gen_engine on transformers",
    "hf guessing": "gen_engine on transformers, guessing",
    "hf plain": "plain transformers: generate",
    "hf continuous": "plain transformers: generate_batch",
    "vllm": "gen_engine on vLLM",
    "vllm generate": "plain vLLM: LLM.generate",
}
MEGABYTE = 1 << 20
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
MARKS = {IDENTICAL: "equal", ROUNDING: "≈", PARTED: "?", UNREAD: "not judged", DIFFERENT: "DIFFERENT",
         OTHER_PROMPTS: "DIFFERENT PROMPTS"}  # fmt: skip
MEANINGS = {
    ROUNDING: "≈ answers part, and measured rounding explains where",
    PARTED: "? answers part, and too few tokens were read to tell why",
    UNREAD: "answers part, and were not judged",
    DIFFERENT: "DIFFERENT: by more than rounding, so there is no ratio",
    OTHER_PROMPTS: "DIFFERENT PROMPTS: so there is no ratio",
}


def seconds_text(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"


# == The table ==


def ratio_words(ratio: Ratio) -> str:
    """The ratio with its range; where the range has 1 in it no contender was faster."""
    pair = f"{ratio.contender} ÷ {ratio.against}"
    if not ratio.values:
        return f"{pair}: none"
    low, high = min(ratio.values), max(ratio.values)
    extent = f" ({low:.2f}–{high:.2f})" if len(ratio.values) > 1 else ""
    even = "" if ratio.has_winner or len(ratio.values) == 1 else " even"
    return f"{pair} {ratio.median:.2f}{extent}{even}"


def answers_words(ratio: Ratio) -> str:
    verdict = ratio.verdict
    mark = MARKS[verdict.name]
    mine, other = ratio.tokens
    lengths = "" if mine == other else f", {mine:,} and {other:,} tokens"
    return f"{mark}{lengths}" if verdict.name == IDENTICAL else f"{mark} {verdict.parted} part{lengths}"


HEAD = (
    f"  {'':13} {'tokens':>8} {'to first token, s':^20} {'whole request, s':^20} {'memory':>7}\n"
    f"  {'':13} {'per s':>8} {'p50':>6} {'p95':>6} {'p99':>6} {'p50':>6} {'p95':>6} {'p99':>6} {'MB':>7}"
    f"  {'ratio of tokens per s (range)':38} answers"
)


def row_text(result: Result, row: Measured) -> str:
    ratio = result.ratio_beside(row.contender)
    first = " ".join(f"{seconds_text(row.first_token(share)):>6}" for share in SHARES.values())
    whole = " ".join(f"{seconds_text(row.whole(share)):>6}" for share in SHARES.values())
    beside = "" if ratio is None else f"{ratio_words(ratio):38} {answers_words(ratio)}"
    unlike = "" if row.same else "   DOES NOT REPEAT ITSELF"
    return (
        f"  {row.contender:13} {statistics.median(row.speeds):>8,.0f} {first} {whole} {row.memory / MEGABYTE:>7,.0f}"
        f"  {beside}{unlike}"
    ).rstrip()


def work_text(result: Result) -> str:
    """One workload at one load."""
    answers = result.measured[0].answers
    sizes = [len(answer.ids) for answer in answers]
    prompts = [len(answer.prompt_ids or ()) for answer in answers]
    rounds = span(*sorted((min(len(m.runs) for m in result.measured), max(len(m.runs) for m in result.measured))))
    return (
        f"{result.work.label}: {len(answers)} requests of {span(min(prompts), max(prompts))} tokens, answers of "
        f"{span(min(sizes), max(sizes))}; rounds: {rounds}"
    )


def verdict_notes(results: Sequence[Result]) -> Iterator[str]:
    """What the marks of a table mean, and what each verdict rests on."""
    verdicts: dict[str, dict[tuple[str, str, str], Verdict]] = {}
    for result in results:
        for ratio in result.ratios:
            key = (result.work.name, ratio.contender, ratio.against)
            verdicts.setdefault(ratio.verdict.name, {})[key] = ratio.verdict
    for name, meaning in MEANINGS.items():
        if name in verdicts:
            yield meaning
            for (work, contender, against), verdict in verdicts[name].items():
                if verdict.why:
                    yield f"  {work}, {contender} ÷ {against}: {verdict.why}"


def table(bench: Bench) -> str:
    """Everything, as text."""
    lines = []
    for model, cost in bench.loads:
        lines.append(
            f"{model}: {cost.backend} loaded in {cost.seconds:.1f} s (+{cost.import_seconds:.1f} s of imports), "
            f"+{cost.memory / MEGABYTE:,.0f} MB"
        )
    for model in dict.fromkeys(result.model for result in bench.results):
        own = [result for result in bench.results if result.model == model]
        lines += ["", model, HEAD]
        for result in own:
            lines += [work_text(result), *(row_text(result, row) for row in result.measured)]
        lines += verdict_notes(own)
    whose = "the accelerator's" if bench.on_accelerator else "the process's"
    lines += ["", f"memory: {whose}, of loading the backend and of its highest run", *bench.notes]
    if bench.clock == "cpu":
        lines.append("seconds are the processor's, not the wall's")
    if not bench.results:
        lines.append("nothing was measured")
    if any(result.differs for result in bench.results):
        lines += ["", "ANSWERS DIFFER by more than rounding: the speed of another answer is no speed (exit 1)"]
    return "\n".join(lines).lstrip("\n")


# == For programs ==


def latencies(row: Measured) -> dict[str, dict[str, float | None]]:
    return {
        "first_token_seconds": {name: row.first_token(share) for name, share in SHARES.items()},
        "request_seconds": {name: row.whole(share) for name, share in SHARES.items()},
    }


def as_json(bench: Bench) -> dict[str, Any]:
    return {
        "environment": dict(bench.environment),
        "loads": [
            {"model": model, "backend": cost.backend, "seconds": cost.seconds, "import_seconds": cost.import_seconds,
             "memory_bytes": cost.memory}
            for model, cost in bench.loads
        ],
        "results": [result_json(result) for result in bench.results],
        "notes": list(bench.notes),
        "clock": bench.clock,
        "memory_of": "accelerator" if bench.on_accelerator else "process",
        "exit_code": bench.exit_code,
    }  # fmt: skip


def result_json(result: Result) -> dict[str, Any]:
    measured = {
        row.contender: {
            "tokens": row.tokens,
            "seconds": [run.seconds for run in row.runs],
            "tokens_per_second": statistics.median(row.speeds),
            **latencies(row),
            "first_tokens": [list(run.first) for run in row.runs],
            "last_tokens": [list(run.last) for run in row.runs],
            "memory_bytes": row.memory,
            "repeats_itself": row.same,
        }
        for row in result.measured
    }
    ratios = [
        {
            "contender": ratio.contender,
            "against": ratio.against,
            "verdict": ratio.verdict.name,
            "equal_rows": ratio.verdict.equal,
            "rows": ratio.verdict.rows,
            "why": ratio.verdict.why,
            "difference_measured": ratio.has_winner,
            "ratio": ratio.median if ratio.values else None,
            "values": list(ratio.values),
        }
        for ratio in result.ratios
    ]
    work = {"load": result.work.load, "requests": len(result.work.requests)}
    return {"model": result.model, "workload": result.work.name, **work, "contenders": measured, "ratios": ratios}


def csv_rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """A row for each contender at each load, as in the table."""
    for result in bench.results:
        for row in result.measured:
            values: dict[str, Any] = {
                "model": result.model,
                "workload": result.work.name,
                "load": result.work.load,
                "contender": row.contender,
                "rounds": len(row.runs),
                "answer_tokens": row.tokens,
                "tokens_per_second": statistics.median(row.speeds),
                "tokens_per_second_least": min(row.speeds),
                "tokens_per_second_most": max(row.speeds),
            }
            for name, shares in latencies(row).items():
                values.update({f"{name}_{share}": value for share, value in shares.items()})
            ratio = result.ratio_beside(row.contender)
            values |= {
                "memory_bytes": row.memory,
                "ratio_of": f"{ratio.contender} / {ratio.against}" if ratio else None,
                "ratio": ratio.median if ratio and ratio.values else None,
                "ratio_least": min(ratio.values) if ratio and ratio.values else None,
                "ratio_most": max(ratio.values) if ratio and ratio.values else None,
                "answers": ratio.verdict.name if ratio else None,
                "answers_parted": ratio.verdict.rows - ratio.verdict.equal if ratio else None,
                "answers_compared": ratio.verdict.rows if ratio else None,
            }
            yield values


# == The plot ==

PANELS = (
    ("speed", "answer tokens per {second}"),
    ("first", "{seconds} to the first token"),
    ("whole", "{seconds} of a whole request"),
)


def points_of(result: Result, contender: str, panel: str) -> tuple[float, float, float] | None:
    """(value, lower end, upper end): the median run and the range of runs, or p50 and p95 of requests."""
    row = next((row for row in result.measured if row.contender == contender), None)
    if row is None:
        return None
    if panel == "speed":
        return statistics.median(row.speeds), min(row.speeds), max(row.speeds)
    of = row.first_token if panel == "first" else row.whole
    middle, high = of(0.50), of(0.95)
    return None if middle is None or high is None else (middle, middle, high)


def draw_panel(axes: Any, results: Sequence[Result], panel: str, label: str) -> None:
    """One quantity of one workload against the load; contenders stand side by side at each."""
    names = [name for name in LABELS if any(row.contender == name for result in results for row in result.measured)]
    for number, name in enumerate(names):
        shift = 1.06 ** (number - (len(names) - 1) / 2)
        found = [(result.work.load, points_of(result, name, panel)) for result in results]
        points = [(load * shift, *point) for load, point in found if point is not None]
        if not points:
            continue
        loads, middles, lows, highs = zip(*points)
        errors = [
            [middle - low for middle, low in zip(middles, lows)],
            [high - middle for high, middle in zip(highs, middles)],
        ]
        own = name in ("hf", "vllm", "hf guessing")
        axes.errorbar(loads, middles, yerr=errors, color=COLOURS[name], marker="o" if own else "s", markersize=5,
                      linewidth=2 if own else 1.2, linestyle="-" if own else "--", capsize=2, elinewidth=1,
                      label=LABELS[name])  # fmt: skip
    ticks = [result.work.load for result in results]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("load: requests in one call")
    axes.set_ylabel(label)
    axes.grid(axis="y", color="#e5e7eb")
    axes.spines[["top", "right"]].set_visible(False)


def label_powers(axes: Any) -> None:
    """Ticks of a logarithmic axis that spans little: 1, 2 and 5 of each power, as plain numbers."""
    from matplotlib import ticker

    axes.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:,g}")


def draw(bench: Bench, path: Path) -> None:
    """A row of panels for each model and workload."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    keys = list(dict.fromkeys((result.model, result.work.name) for result in bench.results))
    figure, grid = pyplot.subplots(
        len(keys), len(PANELS), figsize=(13.5, 0.9 + 3.6 * len(keys)), squeeze=False, layout="constrained"
    )
    second = "second" if bench.clock == "wall" else "processor second"
    for (model, name), row in zip(keys, grid):
        own = [result for result in bench.results if (result.model, result.work.name) == (model, name)]
        for axes, (panel, label) in zip(row, PANELS):
            draw_panel(axes, own, panel, label.format(second=second, seconds=f"{second}s"))
            label_powers(axes)
        row[0].set_title(f"{Path(model).name}, {name}", fontsize=12, fontweight="bold", loc="left")
    names = [name for name in LABELS if any(m.contender == name for result in bench.results for m in result.measured)]
    shown = {label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels())}
    labels = [LABELS[name] for name in names if LABELS[name] in shown]
    figure.legend([shown[label] for label in labels], labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Same prompts, same work. Whiskers: range of rounds; p50 to p95 of requests", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write(bench: Bench, folder: Path) -> list[Path]:
    """bench.json, bench.csv and bench.png; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    values, sheet, plot = folder / "bench.json", folder / "bench.csv", folder / "bench.png"
    values.write_text(json.dumps(as_json(bench), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    rows = list(csv_rows(bench))
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    try:
        draw(bench, plot)
    except ModuleNotFoundError as gone:
        if gone.name != "matplotlib":
            raise
        return [values, sheet]
    return [values, sheet, plot]
