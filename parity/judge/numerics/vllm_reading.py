"""Log-probabilities of given tokens by vLLM itself, for code on vLLM whose engine is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from parity.judge.numerics.made import MovedPath
from parity.judge.numerics.reading import CannotJudge, Rows, Scored, asked_of, scored_rows


@contextlib.contextmanager
def vllm_path(path: str, dtype: str) -> Iterator[MovedPath]:
    """Rows of text, by a model that is loaded for them. Raises CannotJudge for rows with images,
    and what vLLM raises."""
    import vllm
    from vllm.platforms import current_platform

    is_eager = current_platform.is_cpu()  # compiling takes longer than all else there
    model = vllm.LLM(path, dtype=dtype, generation_config="vllm", enforce_eager=is_eager)
    try:
        window = window_of(model)
        yield MovedPath(lambda rows: read_rows(model, rows), model.get_tokenizer, window)
    finally:
        model.llm_engine.engine_core.shutdown()


def window_of(model: Any) -> int:
    """It always generates a token."""
    return int(model.llm_engine.model_config.max_model_len) - 1


def read_rows(model: Any, rows: Rows) -> list[Scored]:
    """By a vllm.LLM: what is read of a row is sent as the end of a prompt."""
    import vllm

    if any(row.images for row in rows):
        raise CannotJudge("its engine has ended, and images are not given to another one")
    window = window_of(model)
    asked = list(asked_of(rows, window, {}))
    prompts = []
    for request, tokens in asked:
        ids = [*request["prompt_token_ids"], *tokens]
        prompts.append({"prompt_token_ids": ids})
    how = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    outputs = model.generate(prompts, how)
    logprobs = []
    for (_, tokens), output in zip(asked, outputs):
        entries = output.prompt_logprobs[-len(tokens) :]
        own = [entry[token].logprob for entry, token in zip(entries, tokens)]
        logprobs.append(own)
    return scored_rows(rows, window, logprobs)
