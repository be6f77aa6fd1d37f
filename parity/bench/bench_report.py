"""What `parity bench` measured, for people and for programs: a console table, JSON, and one picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.bench.values import Bench, Measured, Ratio, Result

COLOURS = {
    "hf": "#c2410c",
    "vllm": "#1d4ed8",
    "hf guessing": "#7c2d12",
    "hf plain": "#fdba74",
    "hf continuous": "#fed7aa",
    "vllm generate": "#93c5fd",
    "vllm chat": "#bfdbfe",
}
LABELS = {
    "hf": "gen_engine on transformers",
    "hf guessing": "gen_engine on transformers, guessing",
    "hf plain": "plain transformers: generate",
    "hf continuous": "plain transformers: generate_batch",
    "vllm": "gen_engine on vLLM",
    "vllm generate": "plain vLLM: LLM.generate",
    "vllm chat": "plain vLLM: LLM.chat",
}
MEGABYTE = 1 << 20


def spread(values: Sequence[float], form: str) -> str:
    """The median and the range of values."""
    low, middle, high = (format(v, form) for v in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def lengths(result: Result) -> str:
    """Shortest, mean and longest answer of the first contender."""
    counts = [len(answer.ids) for answer in result.measured[0].answers]
    ends = str(counts[0]) if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"
    return f"{len(counts)} requests, answers of {ends} tokens (mean {statistics.mean(counts):.0f})"


def row_text(row: Measured) -> str:
    decode = "–" if row.decode_speed is None else f"{row.decode_speed:,.0f}"
    unlike = "" if row.same else "   DOES NOT REPEAT ITSELF"
    return (
        f"  {row.contender:14} {row.tokens:>7,} {spread(row.speeds, ',.0f'):>26} {row.prefill_speed:>10,.0f}"
        f" {decode:>10} {row.peak / MEGABYTE:>9,.0f}{unlike}"
    )


def ratio_words(ratio: Ratio) -> str:
    """The ratio with its range; where the range has 1 in it no contender was faster."""
    if not ratio.values:
        return "no speed-up: the answers differ"
    if ratio.has_winner or len(ratio.values) == 1:
        return f"× {spread(ratio.values, '.2f')}"
    return f"no difference measured ({min(ratio.values):.2f}–{max(ratio.values):.2f})"


def ratio_text(ratio: Ratio) -> str:
    mine, other = ratio.tokens
    lengths = "" if mine == other else f"; {mine:,} and {other:,} tokens, each by its own"
    return f"  {ratio.contender} ÷ {ratio.against:14} {ratio_words(ratio):36} [{ratio.verdict}{lengths}]"


def table(bench: Bench) -> str:
    """Everything, as text of 100 columns or so."""
    lines = []
    for model, cost in bench.loads:
        memory = cost.memory / MEGABYTE
        lines.append(
            f"{model}: {cost.backend} loaded in {cost.seconds:.1f} s (+{cost.import_seconds:.1f} s of imports), "
            f"+{memory:,.0f} MB"
        )
    head = f"  {'':14} {'tokens':>7} {'tokens/s (range)':>26} {'prefill/s':>10} {'decode/s':>10} {'peak MB':>9}"
    for result in bench.results:
        lines += ["", f"{result.model} · {result.work.name}: {lengths(result)}", head]
        lines += map(row_text, result.measured)
        lines += map(ratio_text, result.ratios)
    notes = [*bench.notes, *(["seconds are the processor's, not the wall's"] if bench.clock == "cpu" else [])]
    lines += ["", *notes] if notes else []
    if any(result.differs for result in bench.results):
        lines += ["", "ANSWERS DIFFER by more than rounding: the speed of another answer is no speed (exit 1)"]
    return "\n".join(lines)


def as_json(bench: Bench) -> dict[str, Any]:
    return {
        "environment": dict(bench.environment),
        "loads": [
            {"model": model, "backend": cost.backend, "seconds": cost.seconds, "import_seconds": cost.import_seconds,
             "rss_bytes": cost.memory}
            for model, cost in bench.loads
        ],
        "results": [result_json(result) for result in bench.results],
        "notes": list(bench.notes),
        "clock": bench.clock,
        "exit_code": bench.exit_code,
    }  # fmt: skip


def result_json(result: Result) -> dict[str, Any]:
    contenders = {
        row.contender: {
            "tokens": row.tokens,
            "prompt_tokens": row.prompt_tokens,
            "seconds": row.full,
            "first_token_seconds": row.first,
            "tokens_per_second": statistics.median(row.speeds),
            "prefill_tokens_per_second": row.prefill_speed,
            "decode_tokens_per_second": row.decode_speed,
            "peak_rss_bytes": row.peak,
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
            "ratio": statistics.median(ratio.values) if ratio.values else None,
            "values": list(ratio.values),
        }
        for ratio in result.ratios
    ]
    work = {"requests": len(result.work.requests), "max_new_tokens": result.work.max_new_tokens}
    return {"model": result.model, "workload": result.work.name, **work, "contenders": contenders, "ratios": ratios}


# == The picture ==


def bar_label(row: Measured, result: Result) -> str:
    """ "1,234", and for ours how much that is of the plain library's."""
    speed = f"{statistics.median(row.speeds):,.0f}"
    own = [ratio for ratio in result.ratios if ratio.contender == row.contender and ratio.against != "hf"]
    if not own:
        return speed
    if not own[0].values:
        return f"{speed}   answers differ"
    return f"{speed}   ×{statistics.median(own[0].values):.2f}" if own[0].has_winner else f"{speed}   no difference"


def draw_panel(axes: Any, results: Sequence[Result]) -> None:
    """One model: a group of bars for each workload, the first on top."""
    place, ticks, longest = 0.0, [], 1.0
    for result in results:
        start = place
        for row in result.measured:
            low, middle, high = min(row.speeds), statistics.median(row.speeds), max(row.speeds)
            axes.barh(place, middle, height=0.86, color=COLOURS[row.contender])
            axes.errorbar(middle, place, xerr=[[middle - low], [high - middle]], color="#374151", lw=1, capsize=2)
            weight = "bold" if row.contender in ("hf", "vllm") else "normal"
            label = bar_label(row, result)
            axes.annotate(
                label, (high, place), (5, 0), textcoords="offset points", va="center", fontsize=9, fontweight=weight
            )
            longest, place = max(longest, high), place + 1
        ticks.append(((start + place - 1) / 2, result.work.name))
        place += 0.8
    axes.set_yticks([tick for tick, _ in ticks], [name.replace("/", "\n") for _, name in ticks], fontsize=11)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.42)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(Path(results[0].model).name, fontsize=13, fontweight="bold", loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw(bench: Bench, path: Path) -> None:
    """One picture of all models, for a slide."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(result.model for result in bench.results))
    by_model = [[result for result in bench.results if result.model == model] for model in models]
    tallest = max(sum(len(result.measured) + 0.8 for result in results) for results in by_model)
    size = (max(9.0, 5.6 * len(models)), max(3.6, 0.27 * tallest + 1.9))
    figure, panels = pyplot.subplots(1, len(models), figsize=size, squeeze=False, layout="constrained")
    for axes, results in zip(panels[0], by_model):
        draw_panel(axes, results)
    shown = {row.contender for result in bench.results for row in result.measured}
    names = [name for name in LABELS if name in shown]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in names]
    labels, columns = [LABELS[name] for name in names], 5 if len(models) > 2 else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    second = "second" if bench.clock == "wall" else "processor second"
    figure.suptitle(f"Same prompts, same work: tokens per {second} (median, range; × against the plain library)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def write(bench: Bench, folder: Path) -> list[Path]:
    """bench.json and bench.png; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    values, picture = folder / "bench.json", folder / "bench.png"
    values.write_text(json.dumps(as_json(bench), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    try:
        draw(bench, picture)
    except ModuleNotFoundError as gone:
        if gone.name != "matplotlib":
            raise
        return [values]
    return [values, picture]
