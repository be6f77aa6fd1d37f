"""python -m parity bench: how fast each backend answers the same requests, and whether the answers are the same.

Every contender gets the same prompts (the token ids are compared) and answers with the same number of tokens, whatever
it would end at. At load × 16 it is given sixteen requests in one call, and the next sixteen when all are answered. A
small run of everything warms up and says how much fits into --minutes; then contenders run in turn, A B C A B C.

    to the first token    from the call until this process holds the request's first token, the prompt's rendering and
                          tokenizing included; whole request: until it holds the last one
    ratio                 of tokens a second, in each round; its median and range. It is printed between contenders that
                          did the same work: the speed of another answer is no speed. Where answers part, as they do in
                          half precision, the baseline's are forced through both contenders and through float32, and
                          the ratio stands if the errors that were measured explain where they part

    hf, vllm              ours: chats in, texts out
    hf guessing           ours with --guess: guessed tokens, judged together
    hf plain              transformers' own generate, the call as one static batch
    hf continuous         transformers' own generate_batch: continuous batching, text only
    vllm generate         vLLM's own LLM.generate, on the same loaded engine

Ctrl-C ends it with what was measured. Exit codes: 0 measured, 1 answers differ by more than rounding, 2 usage, 3 could
not run, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.bench import bench_report, contenders, measuring, parted, planning, workloads
from parity.bench.contenders import CLOCKS, GUESSING, Contender, fit_for
from parity.bench.planning import Key, Plan, Trial
from parity.bench.values import (
    IDENTICAL,
    OTHER_PROMPTS,
    OURS,
    UNREAD,
    Bench,
    Loaded,
    Measured,
    Ratio,
    Result,
    Verdict,
    coverage,
)
from parity.bench.workloads import Work, engine_module
from parity.environment.output_paths import folder_to_write
from parity.goldens.store import environment

if TYPE_CHECKING:
    import gen_engine

BACKENDS = ("hf", "vllm")
BASELINES = {
    "hf": ("hf plain", "hf continuous"),
    GUESSING: ("hf",),
    "vllm": ("vllm generate", "hf"),
}  # what a contender is told against
USAGE, FAILED = 2, 3
LOADS = "1,4,16,64"
ROOM = 3  # times the weights that must be free for two backends side by side: weights, cache, work
HALF = 0.45  # of an accelerator's memory, for vLLM beside another backend: by itself it takes 0.9 of it


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command was asked for.   kinds, repeats, tokens: None where they are to be chosen."""

    backends: tuple[str, ...]
    loads: tuple[int, ...]
    kinds: tuple[str, ...] | None
    shapes: tuple[str, ...]
    prompts: Path | None
    tokens: int | None
    repeats: int | None
    minutes: float
    raw: bool
    clock: str
    guess: str | None
    engine: Mapping[str, Any]  # fields of ModelLoadConfig

    @property
    def longest(self) -> int:
        return self.tokens or max(planning.LENGTHS)


class Progress:
    """A bar on a terminal; elsewhere a line for each run. Both on stderr."""

    def __init__(self) -> None:
        tqdm = importlib.import_module("tqdm").tqdm
        self.bar = tqdm(unit="run", disable=None, leave=False, bar_format="{desc} {n_fmt} runs, {elapsed}")
        self.is_bar = not self.bar.disable

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.is_bar:
            self.bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def step(self, text: str, *, runs: int = 0) -> None:
        """What is done now, or a run that was."""
        if self.is_bar:
            self.bar.set_description_str(text)
            self.bar.update(runs)
        else:
            self.say(f"  {text}")

    def close(self) -> None:
        self.bar.close()


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


def questions_of(
    works: Sequence[Work], rows: Mapping[str, list[Measured]], engine: Any, tokens: int
) -> list[parted.Question]:
    """What the referee is asked of one engine's contenders.   tokens: that may be read of each."""
    names = {contender.name for contender in contenders.contenders(engine, raw=True)}
    sides: dict[parted.Key, list[tuple[Work, tuple[Measured, Measured]]]] = {}
    for work in works:
        for contender, against in baselines(rows[work.label]):
            if contender.contender in names:
                key = (work.name, contender.contender, against.contender)
                sides.setdefault(key, []).append((work, (contender, against)))
    return [
        parted.question_of([work for work, _ in own], [two for _, two in own], engine.checkpoint.placeholder_id, tokens)
        for own in sides.values()
        if any(compare_ids(*two) is None for _, two in own)
    ]


def verdict_of(work: Work, contender: Measured, against: Measured, judged: Mapping[parted.Key, Verdict]) -> Verdict:
    """At one load, from what the referee said of all of them."""
    verdict = compare_ids(contender, against)
    if verdict is not None:
        return verdict
    equal = sum(new.ids == old.ids for new, old in zip(contender.answers, against.answers))
    whole = judged.get((work.name, contender.contender, against.contender), Verdict(UNREAD, 0, 0))
    return Verdict(whole.name, equal, len(contender.answers), whole.why)


def ratios_of(work: Work, rows: Sequence[Measured], judged: Mapping[parted.Key, Verdict]) -> list[Ratio]:
    """judged: what the referee said of the answers that part."""
    ratios = []
    for contender, against in baselines(rows):
        verdict = verdict_of(work, contender, against, judged)
        is_fair = not verdict.is_fault and contender.same and against.same
        values = tuple(a / b for a, b in zip(contender.speeds, against.speeds)) if is_fair else ()
        tokens = (contender.tokens, against.tokens)
        ratios.append(Ratio(contender.contender, against.contender, verdict, values, tokens))
    return ratios


# == Engines ==


def decoder_of(guess: str) -> Any:
    """What --guess names."""
    speculation = importlib.import_module("parity.companions.speculation").Speculation
    return speculation("ngram") if guess == "ngram" else speculation("draft_model", model=guess)


def load_one(model: str, name: str, settings: Settings, *, alone: bool) -> tuple[gen_engine.GenerationEngine, Loaded]:
    """alone: no other backend is loaded beside it."""
    backend = "hf" if name == GUESSING else name
    start = time.perf_counter()
    for library in ("torch", "transformers", *(("vllm",) if backend == "vllm" else ())):
        engine_module().lazy_import(library)
    imported, before = time.perf_counter(), measuring.memory_now()
    other = "max_batch_size" if backend == "vllm" else "vllm_kwargs"
    extra = {name: value for name, value in settings.engine.items() if name != other}
    if backend == "vllm" and not alone and measuring.accelerator() is not None:
        extra["vllm_kwargs"] = {"gpu_memory_utilization": HALF, **extra.get("vllm_kwargs", {})}
    if name == GUESSING:
        extra["decoder"] = decoder_of(str(settings.guess))
    engine = engine_module().load(model, backend=backend, progress=False, **extra)
    seconds = time.perf_counter() - imported
    return engine, Loaded(name, seconds, imported - start, measuring.memory_now() - before)


def free_memory() -> int | None:
    """Bytes for models, the accelerator's where there is one; None where the system does not say."""
    cuda = measuring.accelerator()
    if cuda is not None:
        return int(cuda.mem_get_info()[0] * HALF)
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    return next(int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)


def fits_side_by_side(model: str, backends: int) -> bool:
    """Whether the weights fit several times over. A model that is not on this disk, or a system that does not tell
    its free memory, is believed to."""
    weights = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    free = free_memory()
    return free is None or weights * ROOM * backends < free


@contextlib.contextmanager
def opened(model: str, backends: Sequence[str], settings: Settings) -> Iterator[list[tuple[Any, Loaded]]]:
    with contextlib.ExitStack() as stack:
        pairs = []
        for backend in backends:
            engine, cost = load_one(model, backend, settings, alone=len(backends) == 1)
            stack.callback(engine.close)
            pairs.append((engine, cost))
        yield pairs


def groups_of(backends: Sequence[str], *, together: bool) -> list[tuple[str, ...]]:
    """Which backends are loaded at the same time. One by one, a baseline comes before what is told against it."""
    if together:
        return [tuple(backends)]
    return [(backend,) for backend in BASELINES if backend in backends]


# == One model ==


def works_for(engine: gen_engine.GenerationEngine, settings: Settings) -> list[Work]:
    """The workloads that this checkpoint can do, each with the requests of the greatest load. Raises WorkError."""
    if settings.prompts is not None:
        work = workloads.read_prompts(settings.prompts, settings.longest)
        return [replace(work, name=f"{work.name}/{shape}") for shape in settings.shapes]
    kinds = settings.kinds or (("images",) if engine.processor is not None else ("text",))
    if "images" in kinds and engine.processor is None:
        raise workloads.WorkError("nothing to measure: the model sees no images; leave --kinds out")
    count = workloads.requests_at(max(settings.loads))
    return [workloads.make_work(kind, shape, count, settings.longest) for kind in kinds for shape in settings.shapes]


def at_loads(works: Sequence[Work], loads: Sequence[int]) -> tuple[list[Work], str]:
    """Every workload at each load for which it has requests, and what is said of the others."""
    cells = [work.at_load(load) for work in works for load in loads if load <= len(work.requests)]
    missing = [load for load in loads if all(load > len(work.requests) for work in works)]
    if not missing:
        return cells, ""
    fewest = min(len(work.requests) for work in works)
    return cells, f"load {', '.join(map(str, missing))} left out: the prompts file has {fewest} requests"


def with_ends(work: Work, engine: gen_engine.GenerationEngine) -> Work:
    """A ragged workload with the ids that end its answers: of a prompts file the checkpoint's own."""
    if not work.name.endswith("/ragged"):
        return work
    own = frozenset(engine.checkpoint.eos_ids)
    if work.name.partition("/")[0] not in workloads.KINDS:
        return replace(work, ends=own)
    free = contenders.our_answers(engine, work, work.max_new_tokens)
    return workloads.with_ends(work, [answer.ids for answer in free], own)


@dataclass(slots=True)
class Session:
    """What is known of one model so far: what Ctrl-C keeps.   deadline: by time.perf_counter.
    rows: of each workload's label."""

    model: str
    path: str
    settings: Settings
    progress: Progress
    deadline: float
    plan: Plan | None = None
    trials: dict[Key, Trial] = field(default_factory=dict)
    room: dict[Key, int] = field(default_factory=dict)  # bytes of the small run
    warm: dict[str, int] = field(default_factory=dict)  # engine -> bytes that its warm-up took, and often keeps
    rows: dict[str, list[Measured]] = field(default_factory=dict)
    loads: list[tuple[str, Loaded]] = field(default_factory=list)
    questions: list[parted.Question] = field(default_factory=list)
    judged: dict[parted.Key, Verdict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    dtype: str = "float32"
    started: float = field(default_factory=time.perf_counter)
    interrupted: bool = False

    @property
    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def note(self, text: str) -> None:
        self.notes.append(f"{self.model}: {text}")

    def results(self) -> list[Result]:
        found = []
        for work in self.plan.works if self.plan else ():
            rows = [row for row in self.rows.get(work.label, ()) if row.runs]
            if rows:
                found.append(Result(self.model, work, tuple(rows), tuple(ratios_of(work, rows, self.judged))))
        return found


def try_all(session: Session, group: Sequence[Contender], works: Sequence[Work]) -> list[Work]:
    """The small run of every contender, from the smallest load on. Returns the workloads that it reached: a load whose
    small run alone would take the time is left out."""
    progress = session.progress
    loads = sorted({work.load for work in works})
    for contender in fit_for(group, works[0]):
        progress.step(f"warm-up: {contender.name}")
        _, run = measuring.try_once(contender, works[0])
        session.warm[contender.engine] = max(run.memory, session.warm.get(contender.engine, 0))
    tried = []
    for number, load in enumerate(loads):
        start = time.perf_counter()
        for work in (work for work in works if work.load == load):
            for contender in fit_for(group, work):
                key = (work.label, contender.name)
                trial, run = measuring.try_once(contender, work)
                session.trials[key] = trial
                session.room[key] = run.memory
                progress.step(f"small run: {work.label}, {contender.name}: {run.seconds:.2f} s", runs=1)
            tried.append(work)
        if session.plan is None and session.settings.repeats is None and number + 1 < len(loads):
            tried_seconds = time.perf_counter() - start
            following = planning.next_trial_seconds(tried_seconds, load, loads[number + 1])
            if following * (1 + planning.LEAST) > session.left:
                break
    return tried


def judging_of(session: Session, works: Sequence[Work], engines: Sequence[Any]) -> tuple[float, int]:
    """(seconds for judging answers that part, tokens that it reads in them). In float32 none are expected to."""
    if session.dtype == "float32":
        return 0.0, sys.maxsize
    largest = max(works, key=lambda work: work.load)
    [call] = list(largest.calls())[:1]
    prompts = sum(len(contenders.prompt_ids(engines[0], request)) for request in call.requests)
    firsts = [trial.first for (label, name), trial in session.trials.items() if label == largest.label and name in OURS]
    a_token = planning.PASSES * max(firsts) / prompts
    rows = sum(len(work.requests) for work in works)
    everything = int(rows * (prompts / len(call.requests) + planning.LENGTHS[0]))
    loading = 2 * session.loads[0][1].seconds
    seconds = min(planning.JUDGING * 60 * session.settings.minutes, loading + a_token * everything)
    return seconds, int(max(0.0, seconds - loading) / a_token)


def plan_all(session: Session, works: Sequence[Work], engines: Sequence[Any], groups: int) -> Plan:
    """What fits.   groups: of backends that are measured one after the other."""
    settings = session.settings
    judging, judged_tokens = judging_of(session, works, engines)
    free = sum(  # of a ragged workload, a run that shows which ids end its answers
        session.trials[(work.label, engine_name(engines[0]))].seconds(1, settings.longest)
        for work in works
        if work.name.endswith("/ragged") and work.load == max(one.load for one in works)
    )
    return planning.make_plan(
        works,
        session.trials,
        (session.left - judging - free) / groups,
        tokens=settings.tokens,
        repeats=settings.repeats,
        judging=judging,
        judged_tokens=judged_tokens,
    )


def engine_name(engine: Any) -> str:
    return GUESSING if engine.config.decoder is not None else str(engine.backend.name)


def words_of(session: Session, plan: Plan, names: Sequence[str], groups: int) -> str:
    """What will be done, and how long it takes in all."""
    gone = time.perf_counter() - session.started
    total = gone + plan.seconds * plan.repeats * groups + plan.judging
    loads = ", ".join(str(load) for load in sorted({work.load for work in plan.works}))
    shapes = ", ".join(dict.fromkeys(work.name for work in plan.works))
    judging = f"; up to {plan.judging:.0f} s to judge answers that part" if plan.judging else ""
    minutes = session.settings.minutes
    more = (
        "" if total <= 60 * minutes * 1.05 else f" (more than --minutes {minutes:g}: that is the least, or asked for)"
    )
    return (
        f"{session.model}, {session.dtype}: about {total / 60:.1f} min in all{more}, of which {gone:.0f} s are over\n"
        f"  {shapes} × {loads}; {', '.join(names)}; answers of {plan.tokens} tokens\n"
        f"  {plan.repeats} rounds of {plan.seconds:.0f} s{judging}; fewer with --minutes {max(1, minutes // 2):g}"
    )


def measure_rounds(session: Session, plan: Plan, group: Sequence[Contender]) -> None:
    """Round after round over all workloads, each contender in turn, until they are done or the time is over."""
    memory = {cost.backend: cost.memory for _, cost in session.loads}
    for work in plan.works:
        rows = session.rows.setdefault(work.label, [])
        for contender in fit_for(group, work):
            room = max(session.room[(work.label, contender.name)], session.warm[contender.engine])
            rows.append(Measured(contender.name, [], memory[contender.engine], room))
    names = [contender.name for contender in group]
    longest = 0.0
    for number in range(1, plan.repeats + 1):
        start = time.perf_counter()
        for work in plan.works:
            own = [row for row in session.rows[work.label] if row.contender in names]

            def done(row: Measured, label: str = work.label, number: int = number) -> None:
                speed = f"{row.runs[-1].speed:,.0f} tokens/s, {row.runs[-1].seconds:.2f} s"
                session.progress.step(f"round {number} of {plan.repeats}: {label}, {row.contender}: {speed}", runs=1)

            measuring.measure(fit_for(group, work), work, own, session.settings.clock, done)
        longest = max(longest, time.perf_counter() - start)
        is_late = longest + plan.judging > session.left
        if is_late and not plan.asked and number < plan.repeats:
            session.note(f"{number} of {plan.repeats} rounds: the time was over")
            return


def decide(session: Session, group: Sequence[Contender], engines: Sequence[Any], groups: int) -> Plan:
    """Try everything, decide what fits, and say it."""
    works, missing = at_loads(works_for(engines[0], session.settings), session.settings.loads)
    if missing:
        session.note(missing)
    tried = try_all(session, group, works)
    plan = plan_all(session, tried, engines, groups)
    lost = sorted({work.load for work in works} - {work.load for work in plan.works})
    if lost:
        session.note(f"load {', '.join(map(str, lost))} left out: no time for it; give more --minutes")
    session.progress.say(words_of(session, plan, [contender.name for contender in group], groups))
    return replace(plan, works=with_all_ends(plan.works, engines[0]))


def bench_model(session: Session) -> None:
    """Every workload on one model: backends side by side if memory allows it, else one after the other."""
    settings, progress = session.settings, session.progress
    together = fits_side_by_side(session.path, len(settings.backends))
    groups = groups_of(settings.backends, together=together)
    if not together:
        session.note("too large for two backends side by side; measured one after the other")
    for backends in groups:
        progress.step(f"{session.model}: load {', '.join(backends)}")
        with opened(session.path, backends, settings) as pairs:
            engines = [engine for engine, _ in pairs]
            session.loads += [(session.model, cost) for _, cost in pairs]
            session.dtype = str(engines[0].checkpoint.dtype).removeprefix("torch.")
            group = [c for engine in engines for c in contenders.contenders(engine, raw=settings.raw)]
            if session.plan is None:
                session.plan = decide(session, group, engines, len(groups))
            else:
                try_all(session, group, session.plan.works)
            measure_rounds(session, session.plan, group)
            ask_referee(session, session.plan, engines)
    if session.questions:
        progress.step(f"{session.model}: float32 reads answers that part")
    session.judged = parted.judge_questions(session.questions, session.path, session.dtype)


def with_all_ends(works: Sequence[Work], engine: gen_engine.GenerationEngine) -> tuple[Work, ...]:
    """The same ends at each load: those of the greatest."""
    ends: dict[str, frozenset[int]] = {}
    for work in sorted(works, key=lambda work: -work.load):
        if work.name not in ends:
            ends[work.name] = with_ends(work, engine).ends
    return tuple(replace(work, ends=ends[work.name]) for work in works)


def ask_referee(session: Session, plan: Plan, engines: Sequence[Any]) -> None:
    """Read answers that part through the engines that are loaded."""
    counts = [len(questions_of(plan.works, session.rows, engine, 0)) for engine in engines]
    for engine in engines:
        for question in questions_of(plan.works, session.rows, engine, plan.judged_tokens // max(1, sum(counts))):
            session.progress.step(f"{session.model}: {question.contender} reads answers that part")
            parted.read_new(question, engine)
            session.questions.append(question)


def finish(session: Session) -> None:
    """Measure; what Ctrl-C leaves is kept."""
    try:
        bench_model(session)
    except KeyboardInterrupt:
        session.interrupted = True
        session.note("stopped by Ctrl-C; what was measured until then is here, not judged where answers part")


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


def loads_in(text: str) -> tuple[int, ...]:
    """ "1,16" -> (1, 16). Raises WorkError."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise workloads.WorkError(f"--load {text}: expected numbers of requests, such as {LOADS}")
    return tuple(sorted(set(map(int, parts))))


def settings_of(args: argparse.Namespace) -> Settings:
    for flag in ("repeats", "max_new_tokens", "minutes"):
        value = getattr(args, flag)
        if value is not None and not value > 0:
            raise workloads.WorkError(f"--{flag.replace('_', '-')} is {value}; it must be more than 0")
    backends = words(args.backends, BACKENDS, "--backends")
    if args.guess and "hf" not in backends:
        raise workloads.WorkError("--guess is told against hf, which --backends leaves out; add it")
    loads = loads_in(args.load)
    shapes = words(args.workload, workloads.SHAPES, "--workload")
    engine: dict[str, Any] = {name: getattr(args, name) for name in ("dtype", "max_model_len") if getattr(args, name)}
    engine["max_batch_size"] = max(loads)
    if args.blocks and "vllm" not in backends:
        raise workloads.WorkError("--blocks are vLLM's, which --backends leaves out; add it, or leave --blocks out")
    if args.clock == "cpu" and measuring.accelerator() is not None:
        raise workloads.WorkError("--clock cpu sees no accelerator, and there is one; leave it out")
    if args.blocks:
        engine["vllm_kwargs"] = {"num_gpu_blocks_override": args.blocks}
    if args.prompts is not None:
        if {"shared", "repeated"} & set(shapes) or args.kinds:
            raise workloads.WorkError("--prompts: its requests are even or ragged; leave out --kinds, shared, repeated")
        workloads.read_prompts(args.prompts, 1)  # a bad file is said before a model is loaded
    return Settings(
        backends=backends + ((GUESSING,) if args.guess else ()),
        loads=loads,
        kinds=words(args.kinds, workloads.KINDS, "--kinds") if args.kinds else None,
        shapes=shapes,
        prompts=args.prompts,
        tokens=args.max_new_tokens,
        repeats=args.repeats,
        minutes=args.minutes,
        raw=args.raw,
        clock=args.clock,
        guess=args.guess,
        engine=engine,
    )


def joined(sessions: Sequence[Session], clock: str) -> Bench:
    repeats = max((len(m.runs) for s in sessions for rows in s.rows.values() for m in rows), default=0)
    notes = [note for session in sessions for note in session.notes]
    if repeats > 1:
        chance = 100 * coverage(repeats)
        notes.append(f"a range of {repeats} ratios holds their true median with a probability of {chance:.0f} %")
    return Bench(
        tuple(result for session in sessions for result in session.results()),
        tuple(load for session in sessions for load in session.loads),
        environment(),
        tuple(notes),
        clock,
        measuring.accelerator() is not None,
        any(session.interrupted for session in sessions),
    )


def measure_models(models: Sequence[str], settings: Settings, progress: Progress) -> list[Session]:
    """Each model gets an equal share of the time that is left."""
    sessions: list[Session] = []
    end = time.perf_counter() + 60 * settings.minutes
    for number, model in enumerate(models):
        now = time.perf_counter()
        share = (end - now) / (len(models) - number)
        with checkpoint(model) as path:
            session = Session(model, path, settings, progress, now + share)
            sessions.append(session)
            finish(session)
        if session.interrupted:
            break
    return sessions


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
    with contextlib.closing(Progress()) as progress:
        progress.say(f"parity bench: at most {settings.minutes:g} minutes; loads, tries a few tokens, says what fits")
        try:
            sessions = measure_models(args.model, settings, progress)
        except workloads.WorkError as error:
            progress.say(f"parity bench: {error}")
            return USAGE
        except failures as error:
            progress.say(f"parity bench: could not run: {error}")
            return FAILED
    bench = joined(sessions, settings.clock)
    print(bench_report.table(bench))
    if args.out is not None and bench.results:
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
    made = " and ".join(workloads.MADE)
    shapes = ", ".join(workloads.SHAPES)
    add(
        "--model",
        action="append",
        required=True,
        metavar="M",
        help=f"a checkpoint; may stand several times; {made} are made on the spot",
    )
    add("--backends", default="hf,vllm", metavar="A,B", help="default hf,vllm")
    add("--raw", action="store_true", help="the plain libraries, too: model.generate, generate_batch, LLM.generate")
    add(
        "--minutes",
        type=float,
        default=10.0,
        metavar="N",
        help="in all, with loading and judging (default 10): fewer rounds, shorter answers, smaller loads fit into it",
    )
    add("--load", default=LOADS, metavar="A,B", help=f"requests in one call (default {LOADS})")
    add(
        "--prompts",
        type=Path,
        metavar="F.jsonl",
        help='your own requests, one a line: {"messages": [...]}, {"prompt": "..."} or a JSON string',
    )
    add(
        "--workload",
        default="even",
        metavar="A,B",
        help=f"of {shapes}; default even: answers of equal length. ragged, of a prompts file: they end where they end",
    )
    add("--kinds", metavar="A,B", help="text, images; default images where the model sees them, else text")
    add("--max-new-tokens", type=int, metavar="N", help="answer tokens (default what fits, at most 128)")
    add("--repeats", type=int, metavar="N", help="rounds, whatever time they take (default what fits, 3 to 10)")
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
    add("--out", type=folder_to_write, metavar="DIR", help="write bench.json, bench.csv and bench.png there")
    parser.set_defaults(run=run)  # fmt: skip
