"""Further tokens, where a site's goldens hold too few to tell rounding from a fault.

How much a path rounds is a matter of the path, not of a site's prompts. So the moved path, while it
is loaded, continues the golden's own prompts and reads these tokens, and then texts of our own;
the reference reads as many of these rows as a verdict needs (groups.py).

Continuations are sampled: a greedy token lies high by the rounding of the path that chose it, a
sampled one by a twentieth of that.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.judge.numerics import reading
from parity.judge.numerics.errors import SURE
from parity.judge.numerics.own_texts import own_rows
from parity.judge.numerics.reading import Scored, TokenRow

SHARE = 1 / 3  # of the time, for the moved path: it is one of six readings, and is read first
CONTINUED = 8  # prompts of the golden, the shortest
CONTINUED_IDS = 1024  # a longer prompt costs more than its tokens tell
NEW_TOKENS = 32  # of each
CHUNK = 8  # rows between two looks at the clock
ENOUGH = {"float32": 400}  # unsure tokens with the golden's: float32 rounds too little to need more
ENOUGH_ELSE = 4000  # bfloat16 and float16; the hardest case seen asked for 3,700

CANNOT_MAKE = (OSError, ImportError, LookupError, ValueError, RuntimeError)


@dataclass
class MovedPath:
    """The new path, while it can be asked.

    read: rows, in order.   tokenizer: its checkpoint's.   window: ids that it reads.
    continue_rows: samples behind rows' prompts, or None where it cannot.
    errors: what it raises.
    """

    read: Callable[[Sequence[TokenRow]], list[Scored]]
    tokenizer: Callable[[], Any]
    window: float
    continue_rows: Callable[[Sequence[TokenRow]], list[TokenRow]] | None = None
    errors: tuple[type[Exception], ...] = CANNOT_MAKE


@dataclass
class Made:
    """Rows beyond a golden's, with what the moved path reads of them.

    continued: how many continue its prompts; the others are texts of our own.
    used: how many the reference read, too.   seconds: spent by the moved path and the reference.
    why: what could not be made.
    """

    rows: list[TokenRow] = field(default_factory=list)
    new: list[Scored] = field(default_factory=list)
    continued: int = 0
    used: int = 0
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        """What was read beyond the golden."""
        own = self.used - min(self.used, self.continued)
        parts = []
        if self.used > own:
            parts.append(f"{self.used - own} that continue its prompts")
        if own:
            parts.append(f"{own} of our own texts")
        return f"{' and '.join(parts)} (in {self.seconds:.0f} s)" if parts else ""


def unsure_tokens(scored: Scored) -> int:
    """Those at which rounding shows."""
    known = [value for value in scored.logprobs if value is not None and math.isfinite(value)]
    return sum(-math.expm1(min(value, 0.0)) > SURE for value in known)


def make_rows(
    golden: Sequence[TokenRow],
    scores: Sequence[Scored],
    path: MovedPath,
    dtype: str,
    seconds: float,
) -> Made:
    """golden: a site's rows, and what the moved path reads of them.   seconds: for all readings of
    what is made."""
    made = Made()
    began = time.monotonic()
    wanted = ENOUGH.get(dtype, ENOUGH_ELSE) - sum(map(unsure_tokens, scores))
    try:
        for rows in chunks_of(golden, path, made):
            if wanted <= 0 or time.monotonic() - began > seconds * SHARE:
                break
            new = path.read(rows)
            made.rows += rows
            made.new += new
            wanted -= sum(map(unsure_tokens, new))
    except path.errors as error:
        made.why = f"further tokens could not be made: {error}"
    made.continued = min(made.continued, len(made.rows))
    made.seconds = time.monotonic() - began
    return made


def chunks_of(
    golden: Sequence[TokenRow], path: MovedPath, made: Made
) -> Iterator[Sequence[TokenRow]]:
    """First the golden's prompts, continued, then texts of our own."""
    prompts = prompts_of(golden, path.window)
    if path.continue_rows is not None and prompts:
        rows = path.continue_rows(prompts)
        made.continued = len(rows)
        yield rows
    texts = own_rows(path.tokenizer(), path.window)
    while rows := list(itertools.islice(texts, CHUNK)):
        yield rows


def prompts_of(golden: Sequence[TokenRow], window: float) -> list[TokenRow]:
    """A row of each distinct prompt that has room behind it, the shortest first."""
    most = min(window - NEW_TOKENS, CONTINUED_IDS)
    distinct: dict[Any, TokenRow] = {}
    has_images = any(row.images for row in golden)
    for row in golden:
        is_of_kind = bool(row.images) == has_images  # one call asks for one kind
        if is_of_kind and 0 < row.answer <= most:
            distinct.setdefault(row.ids[: row.answer], row)
    return sorted(distinct.values(), key=lambda row: row.answer)[:CONTINUED]


def continuation(row: TokenRow, ids: Sequence[int]) -> TokenRow:
    """A row's prompt with other ids behind it, which alone are read: the prompt has been."""
    whole = (*row.ids[: row.answer], *ids)
    return dataclasses.replace(row, ids=whole, start=row.answer, others=())


def engine_path(engine: Any, adapter: str | None, errors: type[Exception]) -> MovedPath:
    """Of a loaded gen_engine.   adapter: its name there."""
    more = {"adapter": adapter} if adapter else {}

    def read(rows: Sequence[TokenRow]) -> list[Scored]:
        return reading.read_engine(engine, rows, adapter=adapter, what="further tokens")

    def continue_rows(rows: Sequence[TokenRow]) -> list[TokenRow]:
        stop = {"ignore_eos": True}
        options = {"max_new_tokens": NEW_TOKENS, "temperature": 1.0, "seed": 1, "stop": stop}
        asked = [reading.request_for(row, row.answer) | more for row in rows]
        has_images = bool(rows[0].images)
        ask = engine.generate_vlm_batch if has_images else engine.generate_text_batch
        results = ask(asked, options, cache=False)
        return [continuation(row, result.token_ids) for row, result in zip(rows, results)]

    window = reading.window_of(engine)
    both = (*CANNOT_MAKE, errors)
    return MovedPath(read, lambda: engine.tokenizer, window, continue_rows, both)
