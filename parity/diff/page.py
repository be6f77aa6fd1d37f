"""A comparison as one HTML file that needs nothing beside it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parity.diff.comparison import Comparison

BINS = 41
HEIGHT = 160
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.2rem } .verdict { font-size: 1.3rem; padding: .6rem 1rem;
border-left: .4rem solid }
.equal, .rounding { border-color: #2a7 } .differs { border-color: #c33 }
.cannot { border-color: #c90 }
table { border-collapse: collapse; width: 100% } td { padding: .2rem .6rem; vertical-align: top;
border-top: 1px solid #8884; overflow-wrap: anywhere } td:first-child { width: 40% }
svg { width: 100%; height: auto } figure { margin: 1.5rem 0 } figcaption { color: #777 }
mark { background: #fd6 } .bar { fill: #48a } .parted { fill: #c33 } .row { fill: #8883 }
"""


def page(title: str, found: Comparison) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
        f"<h1>parity diff: {html.escape(title)}</h1>",
        f"<p class='verdict {found.outcome}'>{html.escape(found.sentence)}</p>",
        *(f"<p>note: {html.escape(note)}</p>" for note in found.notes),
        *figures(found),
        f"<p>{html.escape(found.proof)}</p></html>",
    ]
    return "\n".join(parts) + "\n"


def figures(found: Comparison) -> Iterator[str]:
    m = found.mismatch
    if m is None:
        return
    rows = (
        ("answer tokens read by both", f"{m.tokens}"),
        ("mean, max |Δ log p|", f"{m.mean:.2e}, {m.most:.2e} nats"),
        ("k3 KL", f"{m.k3:.2e}"),
        ("mean exp|Δ log p|", f"{m.tmpe:.5f}"),
        ("effective sample size", f"{m.ess:.1%} of the tokens"),
    )
    cells = [f"<tr><td>{name}<td>{value}" for name, value in rows]
    before, _, rest = html.escape(found.worst).partition("[[")
    token, _, after = rest.partition("]]")
    cells.append(f"<tr><td>worst token<td>{before}<mark>{token}</mark>{after}")
    yield f"<table>{''.join(cells)}</table>"
    yield histogram(found.deltas, m.most)
    yield parting_rows(found.partings)


def histogram(deltas: Sequence[float], most: float) -> str:
    """Counts of Δ log p, on a scale of square roots, so that single tokens show."""
    reach = most or 1.0
    counts = [0] * BINS
    for delta in deltas:
        counts[min(BINS - 1, int((delta + reach) / (2 * reach) * BINS))] += 1
    tallest = max(counts) ** 0.5
    bars = []
    for k, count in enumerate(counts):
        height = HEIGHT * count**0.5 / tallest
        place = f"x={k * 10} y={HEIGHT - height:.1f} width=9 height={height:.1f}"
        bars.append(f"<rect class=bar {place}><title>{count} tokens</title></rect>")
    picture = f"<svg viewBox='0 0 {BINS * 10} {HEIGHT}'>{''.join(bars)}</svg>"
    said = f"Δ log p of {len(deltas)} tokens, from {-reach:.2g} to {reach:.2g} nats; square roots"
    return f"<figure>{picture}<figcaption>{said}</figcaption></figure>"


def parting_rows(partings: Sequence[int | None]) -> str:
    """A bar for each row, as long as its answers are the same; red ends where they part."""
    longest = max([step for step in partings if step is not None], default=0) + 1
    width = 400
    bars = []
    for row, step in enumerate(partings):
        length = width if step is None else width * step / longest
        bars.append(f"<rect class=row x=0 y={row * 8} width={length:.1f} height=6 />")
        if step is not None:
            mark = f"<title>row {row} parts at step {step}</title>"
            bars.append(
                f"<rect class=parted x={length:.1f} y={row * 8} width=3 height=6>{mark}</rect>"
            )
    picture = f"<svg viewBox='0 0 {width + 4} {len(partings) * 8}'>{''.join(bars)}</svg>"
    parted = sum(step is not None for step in partings)
    said = f"{parted} of {len(partings)} rows part (red), the last one at step {longest - 1}"
    return f"<figure>{picture}<figcaption>{said}</figcaption></figure>"
