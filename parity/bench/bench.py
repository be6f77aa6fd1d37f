"""python -m parity bench: how fast each backend answers the same requests, and whether the answers are the same.

Every contender gets the same prompts (the token ids are compared) and the same output budget. One run each to warm up,
then in turn, A B A B, each time once with one new token (the prefill) and once with all. Tokens are counted in what
came back. A ratio is printed between contenders that did the same work: the speed of another answer is no speed. Where
answers part, as they do in half precision, the baseline's are forced through both contenders and through float32, and
the ratio stands if the errors that were measured explain where they part.

    hf, vllm              ours: chats in, texts out
    hf guessing           ours with --guess: guessed tokens, judged together
    hf plain              transformers' own generate, in static batches sorted by length
    hf continuous         transformers' own generate_batch: continuous batching, text only
    vllm generate, chat   vLLM's own LLM.generate (ids in) and LLM.chat (chats in), on the same loaded engine

Exit codes: 0 measured, 1 answers differ by more than rounding, 2 usage, 3 could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.bench import bench_report, parted, workloads
from parity.bench.values import (
    IDENTICAL,
    OTHER_PROMPTS,
    UNREAD,
    Answer,
    Bench,
    Loaded,
    Measured,
    Ratio,
    Result,
    Verdict,
)
from parity.bench.workloads import Work, engine_module
from parity.environment.output_paths import folder_to_write
from parity.goldens.store import environment

if TYPE_CHECKING:
    import gen_engine

BACKENDS = ("hf", "vllm")
GUESSING = "hf guessing"
BASELINES = {
    "hf": ("hf plain", "hf continuous"),
    GUESSING: ("hf",),
    "vllm": ("vllm generate", "vllm chat", "hf"),
}  # what a contender is told against
USAGE, FAILED = 2, 3
PAGE = 256  # tokens of a block of generate_batch's cache, its default
ROOM = 3  # times the weights that must be free for two backends side by side: weights, cache, work


# == Contenders ==


@dataclass(frozen=True, slots=True)
class Contender:
    """run: (work, max_new_tokens) -> an answer per request, in order.   forget: drops what earlier runs left."""

    name: str
    run: Callable[[Work, int], list[Answer]]
    forget: Callable[[], object]


def options_of(work: Work, most: int) -> dict[str, Any]:
    return {"max_new_tokens": most, "stop": {"ignore_eos": True, "token_ids": sorted(work.ends)}}


def ours(engine: gen_engine.GenerationEngine, work: Work, most: int) -> list[Answer]:
    verb = engine.generate_vlm_batch if work.has_pictures else engine.generate_text_batch
    results = verb(list(work.requests), options_of(work, most), cache=False)
    return [Answer(result.prompt_token_ids, result.token_ids, result.text) for result in results]


def prompt_texts(engine: gen_engine.GenerationEngine, work: Work) -> list[str]:
    return [engine.render(request["messages"]) for request in work.requests]


def prompt_ids(engine: gen_engine.GenerationEngine, request: Mapping[str, Any]) -> list[int]:
    """As plain code tokenizes: a template writes its own special tokens."""
    if "prompt_token_ids" in request:
        return list(request["prompt_token_ids"])
    if "prompt" in request:
        return list(engine.tokenizer(request["prompt"])["input_ids"])
    return list(engine.tokenizer(engine.render(request["messages"]), add_special_tokens=False)["input_ids"])


def pictures_of(work: Work) -> list[list[Any]]:
    return [
        [engine_module().load_image(image) for image in workloads.pictures_of(request)] for request in work.requests
    ]


def plain_hf(engine: gen_engine.GenerationEngine, batch: int, work: Work, most: int) -> list[Answer]:
    """model.generate on static batches, padded on the left as every tutorial has it, longest prompts first."""
    order = list(range(len(work.requests)))
    if work.has_pictures:
        texts, images = prompt_texts(engine, work), pictures_of(work)
    else:
        ids = [prompt_ids(engine, request) for request in work.requests]
        order.sort(key=lambda place: -len(ids[place]))
    answers: dict[int, Answer] = {}
    for places in (order[start : start + batch] for start in range(0, len(order), batch)):
        if work.has_pictures:
            given = {"text": [texts[k] for k in places], "images": [images[k] for k in places]}
            inputs = engine.checkpoint.vision(**given, padding=True, add_special_tokens=False, return_tensors="pt")
        else:
            inputs = engine.tokenizer.pad({"input_ids": [ids[k] for k in places]}, return_tensors="pt")
        answers.update(zip(places, plain_hf_batch(engine, inputs, work, most)))
    return [answers[place] for place in range(len(order))]


def plain_hf_batch(engine: gen_engine.GenerationEngine, inputs: Any, work: Work, most: int) -> list[Answer]:
    with engine.backend.isolated():  # its ends and penalties are not the checkpoint's
        outputs = engine.model.generate(
            **inputs.to(engine.model.device),
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=sorted(work.ends) or None,
        )
    width = inputs["input_ids"].shape[1]
    rows = [row[: workloads.length_with(row, work.ends)] for row in outputs[:, width:].tolist()]  # no padding
    texts = engine.tokenizer.batch_decode(rows, skip_special_tokens=True)
    given = zip(inputs["input_ids"].tolist(), inputs["attention_mask"].tolist())
    prompts = [tuple(i for i, seen in zip(ids, mask) if seen) for ids, mask in given]
    return [Answer(prompt, tuple(row), text) for prompt, row, text in zip(prompts, rows, texts)]


def has_continuous_batching() -> bool:
    """Whether transformers' generate_batch can be told how much memory to take in these words, as of 5.18."""
    config = getattr(importlib.import_module("transformers"), "ContinuousBatchingConfig", None)
    return hasattr(config, "page_size")


def continuous_hf(engine: gen_engine.GenerationEngine, batch: int, work: Work, most: int) -> list[Answer]:
    """model.generate_batch, with a cache for `batch` of the longest rows; by itself it takes nearly all memory."""
    transformers = importlib.import_module("transformers")
    prompts = [prompt_ids(engine, request) for request in work.requests]
    longest = sorted(map(len, prompts))[-batch:]
    places = transformers.ContinuousBatchingConfig(
        num_blocks=sum((size + most) // PAGE + 1 for size in longest),
        page_size=PAGE,
        max_batch_tokens=sum(longest),
        max_requests_per_batch=batch,
    )
    how = transformers.GenerationConfig(
        max_new_tokens=most,
        do_sample=False,
        eos_token_id=sorted(work.ends) or -1,
        pad_token_id=engine.checkpoint.pad_id,
    )
    with engine.backend.isolated():
        outputs = engine.model.generate_batch(prompts, generation_config=how, continuous_batching_config=places)
    made = {tuple(output.prompt_ids): list(output.generated_tokens) for output in outputs.values()}
    rows = [made[tuple(ids)] for ids in prompts]
    texts = engine.tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [Answer(tuple(ids), tuple(row), text) for ids, row, text in zip(prompts, rows, texts)]


def vllm_params(work: Work, most: int) -> Any:
    params = importlib.import_module("vllm").SamplingParams
    return params(temperature=0.0, max_tokens=most, ignore_eos=True, stop_token_ids=sorted(work.ends))


def vllm_answers(outputs: Sequence[Any]) -> list[Answer]:
    return [
        Answer(tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids), output.outputs[0].text)
        for output in outputs
    ]


def plain_vllm(engine: gen_engine.GenerationEngine, work: Work, most: int) -> list[Answer]:
    prompts: list[dict[str, Any]] = [{"prompt_token_ids": prompt_ids(engine, request)} for request in work.requests]
    for prompt, images in zip(prompts, pictures_of(work)):
        prompt.update({"multi_modal_data": {"image": images}} if images else {})
    return vllm_answers(engine.model.generate(prompts, vllm_params(work, most), use_tqdm=False))


def chat_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """LLM.chat has a word of its own for a PIL image."""
    return (
        part
        if part["type"] == "text"
        else {"type": "image_pil", "image_pil": engine_module().load_image(part["image"])}
    )


def chat_vllm(engine: gen_engine.GenerationEngine, work: Work, most: int) -> list[Answer]:
    chats = [
        [
            m if isinstance(m["content"], str) else {**m, "content": [chat_part(part) for part in m["content"]]}
            for m in request["messages"]
        ]
        for request in work.requests
    ]
    no_thinking = {"enable_thinking": False}  # as ours has it
    return vllm_answers(
        engine.model.chat(chats, vllm_params(work, most), use_tqdm=False, chat_template_kwargs=no_thinking)
    )


def forget_vllm(engine: gen_engine.GenerationEngine) -> None:
    """A second run must not find the first one's prompts in vLLM's caches."""
    engine.model.reset_prefix_cache()
    engine.model.reset_mm_cache()


def contenders(engine: gen_engine.GenerationEngine, *, raw: bool, batch: int) -> list[Contender]:
    """Ours on a loaded engine, and with `raw` what its libraries do by themselves on the same model."""
    if engine.config.decoder is not None:
        return [Contender(GUESSING, lambda work, most: ours(engine, work, most), gc.collect)]
    if engine.backend.name == "hf":
        doors: dict[str, Callable[[Work, int], list[Answer]]] = {
            "hf": lambda work, most: ours(engine, work, most),
            "hf plain": lambda work, most: plain_hf(engine, batch, work, most),
        }
        if has_continuous_batching():
            doors["hf continuous"] = lambda work, most: continuous_hf(engine, batch, work, most)
        forget: Callable[[], object] = gc.collect
    else:
        doors = {
            "vllm": lambda work, most: ours(engine, work, most),
            "vllm generate": lambda work, most: plain_vllm(engine, work, most),
            "vllm chat": lambda work, most: chat_vllm(engine, work, most),
        }
        forget = functools.partial(forget_vllm, engine)
    return [Contender(name, run, forget) for name, run in doors.items() if raw or name == engine.backend.name]


# == Measuring ==


def memory_now() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say (only Linux has /proc)."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


class Peak:
    """The most memory that was in use inside a with block, looked at every 20 ms."""

    def __enter__(self) -> Peak:
        self.bytes, self._over = memory_now(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.02):  # 10 µs each: 0.05 % of a processor
            self.bytes = max(self.bytes, memory_now())

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self.bytes = max(self.bytes, memory_now())


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def timed(contender: Contender, work: Work, most: int, clock: str) -> tuple[list[Answer], float, int]:
    """(answers, seconds, peak memory)."""
    contender.forget()
    with Peak() as peak:
        start = CLOCKS[clock]()
        answers = contender.run(work, most)
        seconds = CLOCKS[clock]() - start
    return answers, seconds, peak.bytes


def measure(
    group: Sequence[Contender],
    work: Work,
    *,
    repeats: int,
    clock: str = "wall",
    step: Callable[[], object] = lambda: None,
) -> list[Measured]:
    """Warm up, then A B A B. step: called after each run."""
    rows = [Measured(contender.name) for contender in group]
    for repeat in range(repeats + 1):  # the first one warms up
        for contender, row in zip(group, rows):
            _, first, peak = timed(contender, work, 1, clock)
            answers, full, higher = timed(contender, work, work.max_new_tokens, clock)
            step()
            row.peak = max(row.peak, peak, higher)
            row.same = row.same and (not row.answers or [a.ids for a in answers] == [a.ids for a in row.answers])
            row.answers = answers
            if repeat:
                row.first.append(first)
                row.full.append(full)
    return rows


# == Judging ==


def baselines(rows: Sequence[Measured]) -> Iterator[tuple[Measured, Measured]]:
    """(contender of ours, what it is told against), of those that were measured."""
    by_name = {row.contender: row for row in rows}
    for contender, others in BASELINES.items():
        for against in others:
            if contender in by_name and against in by_name:
                yield by_name[contender], by_name[against]


def compare_ids(contender: Measured, against: Measured) -> Verdict | None:
    """What token ids alone say: equal answers, or other prompts. None where answers part: that is the referee's."""
    rows = list(zip(contender.answers, against.answers))
    for index, (new, old) in enumerate(rows):
        if new.prompt_ids is not None and old.prompt_ids is not None and new.prompt_ids != old.prompt_ids:
            return Verdict(OTHER_PROMPTS, 0, len(rows), f"row {index} was given other token ids")
    if all(new.ids == old.ids for new, old in rows):
        return Verdict(IDENTICAL, len(rows), len(rows))
    return None


def questions_of(works: Sequence[Work], rows: Mapping[str, list[Measured]], engine: Any) -> list[parted.Question]:
    """What the referee is asked of one engine's contenders."""
    names = {contender.name for contender in contenders(engine, raw=True, batch=1)}
    return [
        parted.question_of(work, contender, against, engine.checkpoint.placeholder_id)
        for work in works
        for contender, against in baselines(rows[work.name])
        if contender.contender in names and compare_ids(contender, against) is None
    ]


def ratios_of(work: str, rows: Sequence[Measured], judged: Mapping[parted.Key, Verdict]) -> list[Ratio]:
    """judged: what the referee said of the answers that part."""
    ratios = []
    for contender, against in baselines(rows):
        key = (work, contender.contender, against.contender)
        verdict = compare_ids(contender, against) or judged.get(key) or Verdict(UNREAD, 0, len(contender.answers))
        is_fair = not verdict.is_fault and contender.same and against.same
        values = tuple(a / b for a, b in zip(contender.speeds, against.speeds)) if is_fair else ()
        tokens = (contender.tokens, against.tokens)
        ratios.append(Ratio(contender.contender, against.contender, verdict, values, tokens))
    return ratios


# == One model ==


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command was asked for."""

    backends: tuple[str, ...]
    kinds: tuple[str, ...]
    shapes: tuple[str, ...]
    prompts: Path | None
    requests: int
    max_new_tokens: int
    repeats: int
    raw: bool
    batch: int
    clock: str
    guess: str | None
    ignore_eos: bool
    engine: Mapping[str, Any]  # fields of ModelLoadConfig


def decoder_of(guess: str) -> Any:
    """What --guess names."""
    speculation = importlib.import_module("parity.companions.speculation").Speculation
    return speculation("ngram") if guess == "ngram" else speculation("draft_model", model=guess)


def load_one(model: str, name: str, settings: Settings) -> tuple[gen_engine.GenerationEngine, Loaded]:
    backend = name.partition(" ")[0]
    start = time.perf_counter()
    for library in ("torch", "transformers", *(("vllm",) if backend == "vllm" else ())):
        engine_module().lazy_import(library)
    imported, before = time.perf_counter(), memory_now()
    other = "max_batch_size" if backend == "vllm" else "vllm_kwargs"
    extra = {field: value for field, value in settings.engine.items() if field != other}
    if name == GUESSING:
        extra["decoder"] = decoder_of(str(settings.guess))
    engine = engine_module().load(model, backend=backend, progress=False, **extra)
    seconds = time.perf_counter() - imported
    return engine, Loaded(name, seconds, imported - start, memory_now() - before)


def fits_side_by_side(model: str, backends: int) -> bool:
    """Whether the weights fit several times over. A model that is not on this disk, or a system that does not tell
    its free memory, is believed to."""
    weights = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return True
    free = next(int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)
    return weights * ROOM * backends < free


def works_for(engine: gen_engine.GenerationEngine, settings: Settings) -> list[Work]:
    """The workloads that this checkpoint can do, with their ends."""
    own = frozenset(engine.checkpoint.eos_ids)
    if settings.prompts is not None:
        ends = frozenset() if settings.ignore_eos else own
        return [replace(workloads.read_prompts(settings.prompts, settings.max_new_tokens), ends=ends)]
    works = []
    for kind in settings.kinds:
        if kind == "pictures" and engine.processor is None:
            continue
        for shape in settings.shapes:
            work = workloads.make_work(kind, shape, settings.requests, settings.max_new_tokens)
            if shape == "ragged":
                free = ours(engine, work, work.max_new_tokens)
                work = workloads.with_ends(work, [answer.ids for answer in free], own)
            works.append(work)
    return works


@contextlib.contextmanager
def opened(model: str, backends: Sequence[str], settings: Settings) -> Iterator[list[tuple[Any, Loaded]]]:
    with contextlib.ExitStack() as stack:
        pairs = []
        for backend in backends:
            engine, cost = load_one(model, backend, settings)
            stack.callback(engine.close)
            pairs.append((engine, cost))
        yield pairs


def fit_for(group: Sequence[Contender], work: Work) -> list[Contender]:
    """Those that can do the work: LLM.chat takes chats only, generate_batch no images."""
    unfit = set() if work.is_chat else {"vllm chat"}
    if work.has_pictures:
        unfit.add("hf continuous")
    return [contender for contender in group if contender.name not in unfit]


def measure_all(
    engines: Sequence[gen_engine.GenerationEngine], works: Sequence[Work], settings: Settings, label: str, bar: Any
) -> dict[str, list[Measured]]:
    """Workload -> what each contender on these engines took."""
    everyone = [c for engine in engines for c in contenders(engine, raw=settings.raw, batch=settings.batch)]
    rows = {}
    for number, work in enumerate(works):
        group = fit_for(everyone, work)
        bar.set_description(f"{label}: {work.name}")
        bar.total = bar.n + len(group) * (settings.repeats + 1) * (len(works) - number)
        rows[work.name] = measure(group, work, repeats=settings.repeats, clock=settings.clock, step=bar.update)
    return rows


def groups_of(backends: Sequence[str], *, together: bool) -> list[tuple[str, ...]]:
    """Which backends are loaded at the same time. One by one, a baseline comes before what is told against it."""
    if together:
        return [tuple(backends)]
    return [(backend,) for backend in BASELINES if backend in backends]


def bench_model(model: str, path: str, settings: Settings, bar: Any) -> Bench:
    """Every workload on one model: backends side by side if memory allows it, else one after the other."""
    together = fits_side_by_side(path, len(settings.backends))
    works: list[Work] = []
    rows: dict[str, list[Measured]] = {}
    loads: list[tuple[str, Loaded]] = []
    questions: list[parted.Question] = []
    dtype = "float32"
    for backends in groups_of(settings.backends, together=together):
        bar.set_description(f"{model}: load {', '.join(backends)}")
        with opened(path, backends, settings) as pairs:
            engines = [engine for engine, _ in pairs]
            loads += [(model, cost) for _, cost in pairs]
            works = works or works_for(engines[0], settings)
            dtype = str(engines[0].checkpoint.dtype)
            for name, found in measure_all(engines, works, settings, model, bar).items():
                rows.setdefault(name, []).extend(found)
            for engine in engines:
                asked = questions_of(works, rows, engine)
                for question in asked:
                    bar.set_description(f"{model}: {question.contender} reads answers that part")
                    parted.read_new(question, engine)
                questions += asked
    note = "" if together else f"{model}: too large for two backends side by side; measured one after the other"
    if questions:
        bar.set_description(f"{model}: float32 reads answers that part")
    judged = parted.judge_questions(questions, path, dtype)
    results = [
        Result(model, work, tuple(rows[work.name]), tuple(ratios_of(work.name, rows[work.name], judged)))
        for work in works
    ]
    return Bench(tuple(results), tuple(loads), environment(), (note,) if note else ())


# == The command ==


@contextlib.contextmanager
def checkpoint(model: str) -> Iterator[str]:
    """A model's path; "random-25m" and "repeating-25m" are made in a temporary folder."""
    if model not in workloads.MADE:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="parity-bench-") as folder:
        yield str(workloads.make_random_model(Path(folder), workloads.MADE[model]))


def words(text: str, known: Sequence[str], flag: str) -> tuple[str, ...]:
    """ "a,b" -> ("a", "b"), each one of `known`. Raises WorkError."""
    given = tuple(dict.fromkeys(text.split(",")))
    unknown = [word for word in given if word not in known]
    if unknown:
        raise workloads.WorkError(f"{flag}: no {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return given


def settings_of(args: argparse.Namespace) -> Settings:
    for flag in ("repeats", "requests", "max_new_tokens", "batch"):
        if getattr(args, flag) < 1:
            raise workloads.WorkError(f"--{flag.replace('_', '-')} is {getattr(args, flag)}; it must be 1 or more")
    backends = words(args.backends, BACKENDS, "--backends")
    if args.guess and "hf" not in backends:
        raise workloads.WorkError("--guess is told against hf, which --backends leaves out; add it")
    engine: dict[str, Any] = {name: getattr(args, name) for name in ("dtype", "max_model_len") if getattr(args, name)}
    engine["max_batch_size"] = args.batch
    if args.blocks:
        engine["vllm_kwargs"] = {"num_gpu_blocks_override": args.blocks}
    if args.prompts is not None:
        workloads.read_prompts(args.prompts, args.max_new_tokens)  # a bad file is said before a model is loaded
    return Settings(
        backends=backends + ((GUESSING,) if args.guess else ()),
        kinds=words(args.kinds, workloads.KINDS, "--kinds"),
        shapes=words(args.workload, workloads.SHAPES, "--workload"),
        prompts=args.prompts,
        requests=args.requests,
        max_new_tokens=args.max_new_tokens,
        repeats=args.repeats,
        raw=args.raw,
        batch=args.batch,
        clock=args.clock,
        guess=args.guess,
        ignore_eos=args.ignore_eos,
        engine=engine,
    )


def joined(parts: Sequence[Bench], clock: str) -> Bench:
    return Bench(
        tuple(result for part in parts for result in part.results),
        tuple(load for part in parts for load in part.loads),
        parts[-1].environment,
        tuple(note for part in parts for note in part.notes),
        clock,
    )


def run(args: argparse.Namespace) -> int:
    try:
        failures = (engine_module().GenEngineError, ImportError)
        settings = settings_of(args)
    except workloads.WorkError as error:
        print(f"parity bench: {error}", file=sys.stderr)
        return USAGE
    except ImportError as error:
        print(f"parity bench: could not run: {error}", file=sys.stderr)
        return FAILED
    parts = []
    try:
        from tqdm import tqdm

        with tqdm(desc="bench", unit="run", disable=None, leave=False) as bar:
            for model in args.model:
                with checkpoint(model) as path:
                    parts.append(bench_model(model, path, settings, bar))
    except failures as error:
        print(f"parity bench: could not run: {error}", file=sys.stderr)
        return FAILED
    bench = joined(parts, settings.clock)
    if not bench.results:
        print("parity bench: nothing to measure: the model sees no pictures; leave --kinds out", file=sys.stderr)
        return USAGE
    print(bench_report.table(bench))
    if args.out is not None:
        for file in bench_report.write(bench, args.out):
            print(f"written: {file}")
    return bench.exit_code


def add_bench(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="how fast each backend answers the same requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m parity bench --model Qwen/Qwen3-0.6B --backends hf,vllm --raw --out bench/",
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        required=True,
        metavar="M",
        help=f"a checkpoint; may stand several times; {' and '.join(workloads.MADE)} are made on the spot",
    )
    add("--backends", default="hf,vllm", metavar="A,B", help="default hf,vllm")
    add(
        "--prompts",
        type=Path,
        metavar="F.jsonl",
        help='your own requests, one a line: {"messages": [...]}, {"prompt": "..."} or a JSON string',
    )
    add("--raw", action="store_true", help="the plain libraries, too: model.generate, LLM.generate, LLM.chat")
    add(
        "--workload",
        default=",".join(workloads.SHAPES),
        metavar="A,B",
        help=f"of {', '.join(workloads.SHAPES)}; default all",
    )
    add("--kinds", default=",".join(workloads.KINDS), metavar="A,B", help="text, pictures; default what the model can")
    add("--requests", type=int, default=32, metavar="N", help="in each workload (default 32)")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="the longest answer (default 128)")
    add("--ignore-eos", action="store_true", help="with --prompts: every answer is as long as --max-new-tokens")
    add("--repeats", type=int, default=3, metavar="N", help="measured runs after one to warm up (default 3)")
    add(
        "--batch",
        type=int,
        default=64,
        metavar="N",
        help="rows at a time on transformers, ours and its own (default 64)",
    )
    add(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu: processor seconds of this process, for a machine that others use too and has no accelerator",
    )
    add("--guess", metavar="ngram|M", help="ours on transformers with guesses, too: n-grams, or a draft checkpoint")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the checkpoint's")
    add("--max-model-len", type=int, metavar="N", help="default: the checkpoint's")
    add("--blocks", type=int, metavar="N", help="vLLM's num_gpu_blocks_override: a small cache for a small model")
    add("--out", type=folder_to_write, metavar="DIR", help="write bench.json and bench.png there")
    parser.set_defaults(run=run)  # fmt: skip
