# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Log-probabilities of given responses, the same on both backends: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="scoring"`, and write

    [score] = engine.score_batch([("The capital of France is", " Paris.")])

gen_engine finds this file beside itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["ScoreOptions", "hf_scores", "score_batch", "vllm_scores"]

Pairs = Sequence[tuple[ge.Prompt, tuple[int, ...]]]  # prompts with the responses to score

# == Items: (prompt, response) -> token ids ==


def response_ids(response: Any, plan: ge.Plan) -> tuple[int, ...]:
    """The ids of a response. A string is tokenized by itself: the boundary to the prompt is between
    ids, not inside a token."""
    ids: tuple[int, ...]
    if isinstance(response, str):
        ge.check_characters(response, plan, "the response")
        ids = ge.encode(plan.checkpoint, response, False)
    else:
        ids = ge.checked_ids("the response", () if response is None else response)
    if not ids:
        raise ge.RequestError("the response has no tokens", fix="give it some text or ids")
    return ids


def scored_request(prompt: Any) -> ge.VlmGenerationRequest:
    """The prompt of a pair: a string, messages, token ids or a request."""
    if isinstance(prompt, str):
        prompt = {"prompt": prompt}
    elif isinstance(prompt, (list, tuple)) and prompt and ge.are_ids(prompt):
        prompt = {"prompt_token_ids": prompt}
    elif not isinstance(prompt, Mapping) and not dataclasses.is_dataclass(prompt):
        prompt = {"messages": prompt}
    request = ge.build(ge.VlmGenerationRequest, prompt)
    if request.structured is not None or request.seed is not None:
        problem = "structured and seed are for generating, not for scoring"
        raise ge.RequestError(problem, fix="drop them")
    return request


def joined_ids(prompt: Any, response: Any, plan: ge.Plan) -> tuple[dict[str, Any], tuple[int, ...]]:
    """(request, response ids) of two strings that are tokenized as one text, as lm-eval does it:
    what is beyond the prompt's own ids is the response, with the blanks at the prompt's end."""
    if not isinstance(prompt, str) or not isinstance(response, str):
        fix = "give strings, or boundary='ids'"
        raise ge.RequestError(
            "boundary='text' needs a prompt and a response that are text", fix=fix
        )
    ge.check_characters(prompt + response, plan, "the pair")
    ids = ge.encode(plan.checkpoint, prompt.rstrip(), True)
    joined = ge.encode(plan.checkpoint, prompt + response, True)
    return {"prompt_token_ids": ids}, joined[len(ids) :]


def scored_pair(
    item: Any, plan: ge.Plan, spare: int, boundary: str
) -> tuple[ge.Prompt, tuple[int, ...]]:
    """(prompt, response ids) of an item of score_batch.

    spare: tokens of the window that the backend needs for itself."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        problem = f"expected (prompt, response), got {type(item).__name__}"
        raise ge.RequestError(problem, fix="give a prompt or messages, and a response")
    source, response = item
    if boundary == "text":
        source, response = joined_ids(source, response, plan)
    response = response_ids(response, plan)
    prompt = ge.prompt_of(scored_request(source), plan)
    ge.check_ids((*prompt.token_ids, *response), prompt.images, plan.checkpoint)
    window = plan.checkpoint.window
    length = prompt.length + len(response)
    if window and length + spare > window:
        problem = f"prompt and response have {length} tokens, the window has {window - spare}"
        raise ge.PromptTooLongError(problem, fix="shorten one of them")
    return prompt, response


def scored_pairs(
    items: Sequence[Any], checkpoint: ge.Checkpoint, backend: str, boundary: str = "ids"
) -> Pairs:
    """The pairs of a call. Raises the error of the first invalid one."""
    plan = ge.make_plan(ge.GenerationOptions(max_new_tokens=1), checkpoint)
    spare = 1 if backend == "vllm" else 0  # vLLM always generates a token
    pairs = []
    for index, item in enumerate(items):
        with ge.at_request(index):
            pairs.append(scored_pair(item, plan, spare, boundary))
    return pairs


def with_numbers(scores: Sequence[ge.ScoreResult]) -> list[ge.ScoreResult]:
    """The scores. Raises EngineError for the first one that is not a number."""
    as_tensor = ge.lazy_import("torch").as_tensor
    for index, score in enumerate(scores):
        with ge.at_request(index):
            if as_tensor(score.logprobs).isnan().any():
                raise ge.no_token(True, False)
    return list(scores)


# == Options ==


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """How to score, as `GenerationEngine.score_batch` describes it."""

    logits: bool = False
    grad: bool = False
    boundary: str = "ids"
    temperature: float = 1.0
    entropy: bool = False

    def __post_init__(self) -> None:
        ge.check_bools(self, "logits", "grad", "entropy")
        ge.check_choice(self, "boundary", ("ids", "text"))
        ge.check_float(self, "temperature", "a finite number above 0", lambda value: value > 0)

    def needs_logits(self, backend: str) -> bool:
        """Whether all logits of a token must be seen: vLLM's own log-probabilities are raw."""
        return self.logits or (backend == "vllm" and (self.temperature != 1 or self.entropy))


# == transformers: teacher forcing ==

LEAST_LOGPROB = -1e4  # in place of -inf, which times a probability of 0 is NaN
SCORED_LOGITS = 1 << 28  # logits in one batch, float32: 1 GiB


def hf_scores(backend: Any, pairs: Pairs, how: ScoreOptions) -> list[ge.ScoreResult]:
    """Scores by one forward of prompt and response, padded on the right: what stands there is
    masked, and comes after all that counts."""
    rows = []
    for place, (prompt, response) in enumerate(pairs):
        rows.append(ge.Row(prompt, place=place, response=response))
    scores: dict[int, ge.ScoreResult] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(backend.adapt, backend.adapter)  # a plugin may call the engine that runs it
        for adapter in {row.prompt.adapter for row in rows}:
            backend.adapt(adapter)
            if how.grad and adapter is not None:
                ge.companions.adapters.train_hf(backend.model, adapter)
            group = [row for row in rows if row.prompt.adapter == adapter]
            scores.update(group_scores(backend, group, how))
    return [scores[place] for place in range(len(rows))]


def group_scores(backend: Any, rows: list[ge.Row], how: ScoreOptions) -> dict[int, ge.ScoreResult]:
    """Scores of the rows of one adapter by position, in batches that are halved where memory runs
    out."""
    scores: dict[int, ge.ScoreResult] = {}
    longest = max(row.prompt.length + len(row.response) for row in rows)
    size = max(1, SCORED_LOGITS // (backend.checkpoint.vocabulary * longest))
    while rows:
        batch = rows[:size]
        try:
            results = batch_scores(backend, batch, how)
        except (RuntimeError, MemoryError) as error:
            if not ge.is_oom(error):
                raise
            if len(batch) == 1:
                raise ge.oom_error(error, batch[0]) from error
            size = len(batch) // 2
            ge.free_memory()
        else:
            scores.update(zip((row.place for row in batch), results))
            rows = rows[size:]
    return scores


def scored_columns(rows: Sequence[ge.Row]) -> list[int]:
    """Positions whose logits are needed, in a batch that is padded on the right."""
    needed: set[int] = set()
    for row in rows:
        needed.update(range(len(row.ids) - len(row.response) - 1, len(row.ids) - 1))
    return sorted(needed)


def logprobs_of(logits: Any, wanted: Any, temperature: float) -> Any:
    """Log-probabilities of ids. logits: [tokens, vocabulary], wanted: [tokens] -> [tokens]."""
    return (logits / temperature).log_softmax(-1).gather(1, wanted[:, None])[:, 0]


def as_floats(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(values.tolist())


def entropies_of(logits: Any, temperature: float) -> Any:
    """Entropy of each token's distribution, in nats. logits: [tokens, vocabulary] -> [tokens]."""
    logprobs = (logits / temperature).log_softmax(-1)
    return -(logprobs.exp() * logprobs.clamp(min=LEAST_LOGPROB)).sum(-1)


def batch_scores(backend: Any, rows: Sequence[ge.Row], how: ScoreOptions) -> list[ge.ScoreResult]:
    """Scores of rows in one forward, which makes no logits of a prompt that nobody reads."""
    torch = ge.lazy_import("torch")
    model = backend.model
    results = []
    with torch.set_grad_enabled(how.grad):
        inputs = ge.collate(rows, backend.checkpoint, model.device, side="right")
        columns = list(range(inputs["input_ids"].shape[1]))
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            columns = scored_columns(rows)
            inputs["logits_to_keep"] = torch.tensor(columns, device=model.device)
        output = model(**inputs, use_cache=False).logits
        for row, scores in zip(rows, output):
            begin = len(row.ids) - len(row.response)
            # [response, vocabulary]: position t - 1 predicts token t.
            first = columns.index(begin - 1)
            own = scores[first : first + len(row.response)].float()
            wanted = torch.tensor(row.response, device=own.device)
            logprobs = logprobs_of(own, wanted, how.temperature)
            kept = None
            if how.logits:
                kept = own if how.grad else own.cpu().clone()  # not a view of the whole batch
            entropies = entropies_of(own, how.temperature) if how.entropy else None
            results.append(
                ge.ScoreResult(
                    token_ids=row.response,
                    prompt_token_ids=row.ids[:begin],
                    logprobs=logprobs if how.grad else tuple(logprobs.tolist()),
                    logits=kept,
                    entropies=entropies if how.grad else as_floats(entropies),
                    adapter=row.prompt.adapter,
                )
            )
    return results


# == vLLM: its own prompt log-probabilities, or forced decoding ==


def vllm_scores(backend: Any, pairs: Pairs, how: ScoreOptions) -> list[ge.ScoreResult]:
    """By prompt_logprobs; what needs full logits, and scores beside adapters, by forced
    decoding."""
    if how.needs_logits("vllm") or backend.checkpoint.settings.adapters:
        return forced_scores(backend, pairs, how)
    kit = ge.lazy_import("vllm.sampling_params")
    params = kit.SamplingParams(
        max_tokens=1,
        prompt_logprobs=0,
        temperature=0.0,
        detokenize=False,
        output_kind=kit.RequestOutputKind.FINAL_ONLY,
    )
    rows = []
    for place, (prompt, response) in enumerate(pairs):
        joined = dataclasses.replace(prompt, token_ids=prompt.token_ids + response)
        rows.append(ge.Row(joined, place=place, response=response, params=params))
    scores: dict[int, ge.ScoreResult] = {}
    backend.run(rows, functools.partial(take_score, scores), ge.NOBODY)
    return [scores[place] for place in range(len(rows))]


def take_score(scores: dict[int, ge.ScoreResult], row: ge.Row, output: Any) -> bool:
    """Keep the score of a row whose prompt and response vLLM has read. The row is over."""
    with ge.at_request(row.place):
        if isinstance(output, ge.GenEngineError):
            raise output
    count = len(row.response)  # counted from the end: images make the beginning longer
    entries = zip(output.prompt_logprobs[-count:], row.response)
    logprobs = tuple(entry[token_id].logprob for entry, token_id in entries)
    prompt_ids = tuple(output.prompt_token_ids[:-count])
    scores[row.place] = ge.ScoreResult(row.response, prompt_ids, logprobs)
    return True


def forced_scores(backend: Any, pairs: Pairs, how: ScoreOptions) -> list[ge.ScoreResult]:
    """Score responses by generating them token by token."""
    torch = ge.lazy_import("torch")
    # Of a forced token that is 0.
    is_processed = backend.checkpoint.settings.logprobs_mode == "processed"
    replay = tuple(response for _, response in pairs)
    options = ge.GenerationOptions(
        max_new_tokens=max(map(len, replay)),
        replay=replay,
        logits=how.needs_logits("vllm") or is_processed,
        stop=ge.StopOptions(ignore_eos=True),
    )
    plan = ge.make_plan(options, backend.checkpoint)
    prompts = [dataclasses.replace(prompt, replay=response) for prompt, response in pairs]
    done: dict[int, ge.Completion] = {}
    backend.complete(prompts, ge.Call(plan, done.__setitem__, ge.NOBODY))
    scores = []
    for place, prompt in enumerate(prompts):
        with ge.at_request(place):
            result = ge.finish(done[place], prompt, plan, backend.name)
        logprobs = result.logprobs
        entropies = None
        if how.temperature != 1 or is_processed:
            wanted = torch.tensor(result.token_ids)
            logprobs = tuple(logprobs_of(result.logits, wanted, how.temperature).tolist())
        if how.entropy:
            entropies = entropies_of(result.logits, how.temperature)
        scores.append(
            ge.ScoreResult(
                token_ids=result.token_ids,
                prompt_token_ids=result.prompt_token_ids,
                logprobs=logprobs,
                logits=result.logits if how.logits else None,
                entropies=as_floats(entropies),
                adapter=prompt.adapter,
            )
        )
    return scores


# == The call ==


def score_batch(engine: Any, items: Sequence[Any], options: ScoreOptions) -> list[ge.ScoreResult]:
    """What `GenerationEngine.score_batch` returns."""
    items = ge.batch_of(items, "items")
    generation = ge.GenerationOptions(logits=options.needs_logits(engine.backend.name))
    refused = ge.refusal_of(ge.Asked(engine.config, generation, scoring=True, grad=options.grad))
    if refused is not None:
        scores = score_batch(engine.fall_back(refused), items, options)
        name = engine.backend.name
        return [dataclasses.replace(score, fallback_from=name) for score in scores]
    pairs = scored_pairs(items, engine.checkpoint, engine.backend.name, options.boundary)
    if not pairs:
        return []
    return with_numbers(engine.backend.score(pairs, options))
