# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Beam search, each library's own: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="beams"`, and

    [answer] = beam_search(engine, [{"messages": chat}], num_beams=4, max_new_tokens=64)

It keeps whole answers in play, so nothing that decides token by token goes with it: no sampling,
penalties, stops, plugins or structures; answers end by end-of-text ids and by length only. The
libraries' rules of length differ a little, so here, and only here, the backends need not agree.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["beam_search"]

MOST_BEAMS = 256  # each is a row; more than a few dozen find nothing better


def beam_search(
    engine: ge.GenerationEngine,
    requests: Iterable[ge.TextGenerationRequest | Mapping[str, Any]],
    *,
    num_beams: int,
    max_new_tokens: int = 256,
) -> list[ge.GenerationResult]:
    """The best answer of `num_beams` to each text request, in order.

    Raises OptionError, RequestError, and UnsupportedError for what does not go with it."""
    if type(num_beams) is not int or not 2 <= num_beams <= MOST_BEAMS:
        problem = f"num_beams is {ge.short_repr(num_beams)}"
        raise ge.OptionError(problem, fix=f"it must be a whole number, 2 to {MOST_BEAMS}")
    plan = ge.make_plan(ge.GenerationOptions(max_new_tokens=max_new_tokens), engine.checkpoint)
    prompts = [prepared(request, index, plan) for index, request in enumerate(requests)]
    backend = engine.config.backend
    search = searched_by_vllm if backend == "vllm" else searched_by_hf
    with engine.bare(read_only=True) as model:
        found = search(engine, model, prompts, num_beams, max_new_tokens) if prompts else []
    results = []
    for prompt, ids in zip(prompts, found):
        watch = ge.RowWatch(plan, prompt)
        any(map(watch.push, ids))  # up to the end; what stands behind it is padding
        completion = watch.completion(prompt.token_ids)
        results.append(ge.finish(completion, prompt, plan, backend))
    return results


def prepared(given: Any, index: int, plan: ge.Plan) -> ge.Prompt:
    try:
        request = ge.build(ge.TextGenerationRequest, given)
        for name in ("structured", "adapter", "seed"):
            if getattr(request, name) is not None:
                problem = f"beam search does not go with {name}"
                raise ge.UnsupportedError(problem, fix="drop one of the two")
        return ge.prompt_of(request, plan)
    except ge.GenEngineError as error:
        error.index = index
        raise


def searched_by_hf(
    engine: ge.GenerationEngine,
    model: Any,
    prompts: Sequence[ge.Prompt],
    num_beams: int,
    most: int,
) -> list[list[int]]:
    """Token ids of the best answers, padding behind them. Prompts are padded on the left."""
    torch = importlib.import_module("torch")
    about = engine.describe()
    longest = max(len(prompt.token_ids) for prompt in prompts)
    rows = []
    masks = []
    for prompt in prompts:
        pads = longest - len(prompt.token_ids)
        rows.append([about["pad_token_id"]] * pads + list(prompt.token_ids))
        masks.append([0] * pads + [1] * len(prompt.token_ids))
    with engine.backend.isolated():
        sequences = model.generate(
            input_ids=torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(masks, device=model.device),
            num_beams=num_beams,
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=about["eos_token_ids"],
        )
    found: list[list[int]] = sequences[:, longest:].tolist()
    return found


def searched_by_vllm(
    engine: ge.GenerationEngine,
    model: Any,
    prompts: Sequence[ge.Prompt],
    num_beams: int,
    most: int,
) -> list[list[int]]:
    kit = importlib.import_module("vllm.sampling_params")
    params = kit.BeamSearchParams(beam_width=num_beams, max_tokens=most)
    asked = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
    found = []
    for output, prompt in zip(model.beam_search(asked, params), prompts):
        found.append(list(output.sequences[0].tokens[len(prompt.token_ids) :]))
    return found
