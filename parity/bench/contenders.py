"""Who is measured: ours, and what the libraries do by themselves, each on the same loaded model.

Each takes one call's requests, all at once, and says what it answered and when this process held the first and the last
token of each request. That is seen without changing what runs: on vLLM in what its engine's core hands out, on
transformers in a stopping criterion that stops nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parity.bench import workloads
from parity.bench.values import Answer, Answered
from parity.bench.workloads import Work, engine_module

if TYPE_CHECKING:
    import gen_engine

GUESSING = "hf guessing"
PAGE = 256  # tokens of a block of generate_batch's cache, its default
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Stopwatch:
    """Seconds since it was made, the wall's or the processor's."""

    def __init__(self, clock: str = "wall") -> None:
        self.clock = clock
        self.start = CLOCKS[clock]()

    def __call__(self) -> float:
        return CLOCKS[self.clock]() - self.start


Door = Callable[[Work, int, Stopwatch], Answered]


@dataclass(frozen=True, slots=True)
class Contender:
    """run: (a call's work, max_new_tokens, seconds since it began) -> an answer per request, in order.
    forget: drops what earlier runs left.   engine: whose model it runs, as `Loaded.backend` names it."""

    name: str
    run: Door
    forget: Callable[[], object]
    engine: str


# == Ours ==


@dataclass(slots=True)
class RowTimes:
    """An Observer of gen_engine on transformers: when rows get their first token, and when they are over."""

    now: Stopwatch
    rows: list[Any] = field(default_factory=list)
    first: dict[int, float] = field(default_factory=dict)  # by the row's identity
    last: dict[int, float] = field(default_factory=dict)

    def arrived(self, backend: str, rows: Sequence[Any]) -> None:
        self.rows += rows

    def stepped(self) -> None:
        seconds = self.now()
        for watch in self.rows:
            if watch.ids:
                self.first.setdefault(id(watch), seconds)
            if watch.over:
                self.last.setdefault(id(watch), seconds)

    def restarted(self, rows: Iterable[Any]) -> None:
        for watch in rows:
            self.first.pop(id(watch), None)
            self.last.pop(id(watch), None)

    def answered(self, prompts: Sequence[Any], results: Sequence[Any]) -> None: ...

    def timed(self, what: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def options_of(work: Work, most: int) -> dict[str, Any]:
    return {"max_new_tokens": most, "stop": {"ignore_eos": True, "token_ids": sorted(work.ends)}}


def our_answers(engine: gen_engine.GenerationEngine, work: Work, most: int) -> list[Answer]:
    verb = engine.generate_vlm_batch if work.has_images else engine.generate_text_batch
    results = verb(list(work.requests), options_of(work, most), cache=False)
    return [Answer(result.prompt_token_ids, result.token_ids, result.text) for result in results]


def ours_on_hf(engine: gen_engine.GenerationEngine, work: Work, most: int, now: Stopwatch) -> Answered:
    times: Any = RowTimes(now)
    with engine.observed(times):
        answers = our_answers(engine, work, most)
    return Answered(answers, list(times.first.values()), list(times.last.values()))


def ours_on_vllm(engine: gen_engine.GenerationEngine, work: Work, most: int, now: Stopwatch) -> Answered:
    with vllm_times(engine, now) as (first, last):
        answers = our_answers(engine, work, most)
    return Answered(answers, list(first.values()), list(last.values()))


# == transformers ==


def prompt_ids(engine: gen_engine.GenerationEngine, request: Mapping[str, Any]) -> list[int]:
    """As plain code tokenizes: a template writes its own special tokens."""
    if "prompt_token_ids" in request:
        return list(request["prompt_token_ids"])
    if "prompt" in request:
        return list(engine.tokenizer(request["prompt"])["input_ids"])
    return list(engine.tokenizer(engine.render(request["messages"]), add_special_tokens=False)["input_ids"])


def images_of(work: Work) -> list[list[Any]]:
    return [[engine_module().load_image(image) for image in workloads.images_of(request)] for request in work.requests]


def plain_hf(engine: gen_engine.GenerationEngine, work: Work, most: int, now: Stopwatch) -> Answered:
    """model.generate on one static batch, padded on the left as every tutorial has it."""
    if work.has_images:
        texts = [engine.render(request["messages"]) for request in work.requests]
        given = {"text": texts, "images": images_of(work)}
        inputs = engine.checkpoint.vision(**given, padding=True, add_special_tokens=False, return_tensors="pt")
    else:
        ids = [prompt_ids(engine, request) for request in work.requests]
        inputs = engine.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
    criteria = importlib.import_module("transformers").StoppingCriteriaList
    steps: list[float] = []
    with engine.backend.isolated():  # its ends and penalties are not the checkpoint's
        outputs = engine.model.generate(
            **inputs.to(engine.model.device),
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=sorted(work.ends) or None,
            stopping_criteria=criteria([functools.partial(note_step, steps, now)]),
        )
    width = inputs["input_ids"].shape[1]
    rows = [row[: workloads.length_with(row, work.ends)] for row in outputs[:, width:].tolist()]  # no padding
    texts = engine.tokenizer.batch_decode(rows, skip_special_tokens=True)
    padded = zip(inputs["input_ids"].tolist(), inputs["attention_mask"].tolist())
    prompts = [tuple(token for token, is_seen in zip(ids, mask) if is_seen) for ids, mask in padded]
    answers = [Answer(prompt, tuple(row), text) for prompt, row, text in zip(prompts, rows, texts)]
    return Answered(answers, [steps[0]] * len(rows), [steps[len(row) - 1] for row in rows])


def note_step(steps: list[float], now: Stopwatch, ids: Any, scores: Any, **_: Any) -> Any:
    """A stopping criterion that stops no row. ids: [rows, tokens so far]."""
    ids[0, -1].item()  # once the accelerator has it; generate itself waits for that right behind this
    steps.append(now())
    return importlib.import_module("torch").zeros(len(ids), dtype=bool, device=ids.device)


def has_continuous_batching() -> bool:
    """Whether transformers' generate_batch can be told how much memory to take in these words, as of 5.18."""
    config = getattr(importlib.import_module("transformers"), "ContinuousBatchingConfig", None)
    return hasattr(config, "page_size")


def continuous_hf(engine: gen_engine.GenerationEngine, work: Work, most: int, now: Stopwatch) -> Answered:
    """model.generate_batch, with a cache for all rows of a call; by itself it takes nearly all memory. It notes times
    by the wall's clock only."""
    start = time.perf_counter() - now()
    transformers = importlib.import_module("transformers")
    prompts = [prompt_ids(engine, request) for request in work.requests]
    places = transformers.ContinuousBatchingConfig(
        num_blocks=sum((len(ids) + most) // PAGE + 1 for ids in prompts),
        page_size=PAGE,
        max_batch_tokens=sum(map(len, prompts)),
        max_requests_per_batch=len(prompts),
    )
    how = transformers.GenerationConfig(
        max_new_tokens=most,
        do_sample=False,
        eos_token_id=sorted(work.ends) or -1,
        pad_token_id=engine.checkpoint.pad_id,
    )
    with engine.backend.isolated():
        made = engine.model.generate_batch(
            prompts, generation_config=how, continuous_batching_config=places, record_timestamps=True
        )
    by_prompt = {tuple(output.prompt_ids): output for output in made.values()}
    outputs = [by_prompt[tuple(ids)] for ids in prompts]
    rows = [list(output.generated_tokens) for output in outputs]
    texts = engine.tokenizer.batch_decode(rows, skip_special_tokens=True)
    answers = [Answer(tuple(ids), tuple(row), text) for ids, row, text in zip(prompts, rows, texts)]
    if now.clock != "wall":
        return Answered(answers, [], [])
    first = [output.timestamps[0] - start for output in outputs]
    return Answered(answers, first, [output.timestamps[-1] - start for output in outputs])


# == vLLM ==


Times = dict[str, float]  # by request


@contextlib.contextmanager
def vllm_times(engine: gen_engine.GenerationEngine, now: Stopwatch) -> Iterator[tuple[Times, Times]]:
    """When the engine's core handed out the first and the last token of each request."""
    core = engine.model.llm_engine.engine_core
    get_output = core.get_output
    first: Times = {}
    last: Times = {}

    def noting() -> Any:
        outputs = get_output()
        seconds = now()
        for output in outputs.outputs:
            if output.new_token_ids:
                first.setdefault(output.request_id, seconds)
                last[output.request_id] = seconds
        return outputs

    core.get_output = noting
    try:
        yield first, last
    finally:
        del core.get_output  # the class's own is there again


def plain_vllm(engine: gen_engine.GenerationEngine, work: Work, most: int, now: Stopwatch) -> Answered:
    """LLM.generate, ids in."""
    params = importlib.import_module("vllm").SamplingParams(
        temperature=0.0, max_tokens=most, ignore_eos=True, stop_token_ids=sorted(work.ends)
    )
    prompts: list[dict[str, Any]] = [{"prompt_token_ids": prompt_ids(engine, request)} for request in work.requests]
    for prompt, images in zip(prompts, images_of(work)):
        if images:
            prompt["multi_modal_data"] = {"image": images}
    with vllm_times(engine, now) as (first, last):
        outputs = engine.model.generate(prompts, params, use_tqdm=False)
    answers = [
        Answer(tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids), output.outputs[0].text)
        for output in outputs
    ]
    return Answered(answers, list(first.values()), list(last.values()))


def forget_vllm(engine: gen_engine.GenerationEngine) -> None:
    """A second run must not find the first one's prompts in vLLM's caches."""
    engine.model.reset_prefix_cache()
    engine.model.reset_mm_cache()


# == All of them ==


def contenders(engine: gen_engine.GenerationEngine, *, raw: bool) -> list[Contender]:
    """Ours on a loaded engine, and with `raw` what its library does by itself on the same model."""
    if engine.config.decoder is not None:
        return [Contender(GUESSING, functools.partial(ours_on_hf, engine), gc.collect, GUESSING)]
    doors: dict[str, Callable[..., Answered]] = {}
    forget: Callable[[], object] = gc.collect
    if engine.backend.name == "hf":
        doors = {"hf": ours_on_hf, "hf plain": plain_hf}
        if has_continuous_batching():
            doors["hf continuous"] = continuous_hf
    else:
        doors = {"vllm": ours_on_vllm, "vllm generate": plain_vllm}
        forget = functools.partial(forget_vllm, engine)
    return [
        Contender(name, functools.partial(door, engine), forget, engine.backend.name)
        for name, door in doors.items()
        if raw or name == engine.backend.name
    ]


def fit_for(group: Sequence[Contender], work: Work) -> list[Contender]:
    """Those that can do the work: generate_batch takes no images."""
    return [contender for contender in group if not (work.has_images and contender.name == "hf continuous")]
