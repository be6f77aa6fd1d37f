"""A golden's rows, read by a loaded engine: logits, and what a batch does to log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from parity.goldens.store import Case, GoldenError, Store, environment
from parity.goldens.verdict import equal
from parity.judge.numerics.processed import Tensor
from parity.judge.numerics.reading import TokenRow, request_for, token_row
from parity.judge.replay import adapter_named, stored_pictures
from parity.judge.row import Row, backends_of, placeholders_in

Others = tuple[tuple[int, int], ...]  # (position, id), as in TokenRow


def is_recorded_here(golden: Case, store: Store) -> bool:
    """Whether a golden was recorded with this machine's libraries and kind of device."""
    there = store.environment_of(golden)
    if not there:
        return False
    here = environment()
    names = {"torch", "transformers", "device", "machine"}
    if "vllm" in backends_of(*golden.rows):
        names.add("vllm")
    return all(there.get(name) == here.get(name) for name in names)


def token_row_of(
    row: Row, store: Store, *, with_prompt: bool = False, others: Others = ()
) -> TokenRow:
    """Raises GoldenError where its images were not kept."""
    prompt = row["prompt_ids"]
    answer = row["output_ids"]
    if not row.get("images"):
        return token_row(prompt, answer, with_prompt=with_prompt, others=others)
    budget = row["images"][0].get("budget")
    return token_row(
        prompt,
        answer,
        others=others,
        images=tuple(stored_pictures(row, store)),
        placeholder=placeholders_in(row).image,
        budget=tuple(budget) if budget else None,
    )


def readable_row(row: Row, store: Store, others: Others) -> TokenRow | None:
    """With its prompt's tokens; None where no token can be read, or its images were not kept."""
    prompt = row["prompt_ids"]
    answer = row["output_ids"]
    has_step = bool(answer) if row.get("images") else len(prompt) + len(answer) > 1
    if not prompt or not has_step:
        return None
    try:
        return token_row_of(row, store, with_prompt=True, others=others)
    except GoldenError:
        return None


def engine_request(row: Row, store: Store) -> dict[str, Any]:
    """A golden's prompt as a request of gen_engine, by its ids and images."""
    return request_for(token_row_of(row, store), len(row["prompt_ids"]))


def engine_logits(
    engine: Any, rows: Sequence[Row], store: Store, adapter: str = ""
) -> Iterator[Tensor]:
    """Logits of the golden's tokens on the moved path, one float32 [tokens, vocabulary] per row: of
    all together they could fill the memory.   adapter: a folder."""
    more = {"adapter": adapter_named(engine, adapter)} if adapter else {}
    for row in rows:
        request = engine_request(row, store) | more
        [scored] = engine.score_batch([(request, row["output_ids"])], logits=True)
        yield scored.logits.float()


def has_logits_of_its_logprobs(engine: Any, rows: Sequence[Row], store: Store) -> bool:
    """Whether an engine's logits are those of its log-probabilities, which vLLM reports by another
    way."""
    pairs = [(engine_request(row, store), row["output_ids"]) for row in rows]
    answers = engine.score_batch(pairs)
    for scored, logits in zip(answers, engine_logits(engine, rows, store)):
        by_logits = logits.log_softmax(-1)
        expected = [float(by_logits[step, token]) for step, token in enumerate(scored.token_ids)]
        if not equal(list(scored.logprobs), expected):
            return False
    return True
