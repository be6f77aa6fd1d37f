"""Which rows owe the same ids, and whether ids are those of their seed.

Equal ids are owed where both sides run on the same backend, library versions, device and dtype, and
a row has the same seed on both:

    hf      a seeded row takes Exp(1) numbers q from a generator of its own and chooses
            argmax log p_t - log q_t. So its ids can be computed (`first_off_seed`), whatever the
            batch around it. Where the golden's are those of its seed, the new ones must be, too.
            They are not where the process's generator served a batch of several rows, or went on
            from an earlier call: then no engine can give these ids, and none is asked to.
    vLLM    how it makes numbers of a seed is up to its release, so ids are compared; in float32
            alone: in half precision what else is computed beside a row moves its rounding, and
            there samples of one request and requests of one sample part by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from parity.judge.numerics.processed import (
    Tensor,
    declared_settings,
    processed_logits,
    slack_of,
)
from parity.judge.numerics.surprise import Stream
from parity.judge.row import (
    Row,
    is_drawn,
    model_in,
    recorded_seed,
    request_of,
    same_prompt,
    seed_source,
)


def requested_seed(row: Row, otherwise: int | None) -> int | None:
    seed: int | None = request_of(row).get("seed", otherwise)
    return seed


def own_seed(row: Row) -> int | None:
    """The seed of a row's own sample; None where it has none, or only the recorder's."""
    is_own = seed_source(row) not in ("nobody", "script")
    return requested_seed(row, recorded_seed(row) if is_own else None)


def streams(rows: Sequence[Row]) -> list[Stream]:
    """The source of each row's random numbers, as far as it is known.

    A generator of the process serves all rows of a call, one after the other, and begins each case
    with the same seed. A seed of a request is its own: rows with the same one sample with the same
    numbers.
    """
    found: list[Stream] = []
    for number, row in enumerate(rows):
        seed = requested_seed(row, recorded_seed(row))
        if seed is None:
            found.append(("unseeded", object()))
        elif seed_source(row) in ("process", "nobody", "script"):
            found.append(("process", recorded_seed(row), number))
        else:
            found.append(("request", seed))
    return found


def owes_ids(old: Row, new: Row, seed: int) -> bool:
    """Whether two sampled rows are to have the same ids, of one prompt and seed, on one backend in
    one dtype. On the new side the seed must be the row's own: one of the process serves a batch,
    and what came before it."""
    if not (is_drawn(old) and is_drawn(new)):
        return False
    if seed_source(new) != "caller" or own_seed(new) != seed:
        return False
    old_model = model_in(old)
    new_model = model_in(new)
    for name in ("backend", "dtype"):
        if old_model.get(name) != new_model.get(name):
            return False
    return same_prompt(old, new)


def first_off_seed(row: Row, logits: Tensor, seed: int) -> int | None:
    """The first step whose token is not the one that torch.multinomial takes with a fresh generator
    of this seed; None if all are, up to what rounding moves.

    logits: float32 [tokens, vocabulary], raw, before each of the row's own tokens.
    """
    import torch

    settings = declared_settings(row)
    slack = slack_of(row)
    generator = torch.Generator().manual_seed(seed)
    for step, token in enumerate(row["output_ids"]):
        part = logits[step : step + 1]
        noise = torch.empty_like(part).exponential_(generator=generator).log()
        scores = processed_logits(part, row, settings, step) - noise
        widened = processed_logits(part, row, settings, step, slack) - noise
        if widened[0, token] < scores.max() - slack.logit / settings.temperature:
            return step
    return None
