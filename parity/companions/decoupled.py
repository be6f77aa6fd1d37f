# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Guessing apart from judging, on workers of their own that Ray starts: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="decoupled"` (and speculation, rollout), and

    guesses = Speculation("draft_model", model="Qwen/Qwen3-0.6B")
    with Decoupled("Qwen/Qwen3-8B", guesses, verifiers=2, drafters=3, verifier_on={"num_gpus": 1}) as group:
        with group.traced("rollouts", Trace):                   # python -m parity trace rollouts
            results = group.generate_text_batch(requests, options)

    requests --the engine's own checks--> Prompt --Coordinator--> Verifier: half A is judged │ half B is judged │ ...
    results <--the engine's own finish-- Completion <------------ Drafters: guesses for B    │ guesses for A    │ ...

Answers are those of `load(model)`: each place of an answer is decided as DecodeLoop decides it, whatever was guessed.
So a drafter that dies or hangs costs guesses; what a dead verifier had not answered runs again elsewhere; and a request
that moves to another verifier takes its tokens along as guesses, to be judged again in one forward.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import importlib
import logging
import os
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import (
        BackendMissing,
        Call,
        Checkpoint,
        Completion,
        EngineError,
        GenEngineError,
        GenerationOptions,
        GenerationResult,
        LoadError,
        ModelLoadConfig,
        OptionError,
        Prompt,
        Refusal,
        UnsupportedError,
        load,
        make_plan,
    )
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import (
        BackendMissing,
        Call,
        Checkpoint,
        Completion,
        EngineError,
        GenEngineError,
        GenerationOptions,
        GenerationResult,
        LoadError,
        ModelLoadConfig,
        OptionError,
        Prompt,
        Refusal,
        UnsupportedError,
        load,
        make_plan,
    )

__version__ = "0.2.0"

__all__ = ["Decoupled", "Verifier", "Drafter", "placed", "moving"]

log = logging.getLogger("gen_engine")
WAIT = 0.2  # s that a verifier waits for news before it says that there are none
MOVES = ("seconds", "what", "number", "source", "target", "why")


def ray_itself() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as gone:
        raise BackendMissing(f"{gone.name} is not installed", fix="run: pip install ray") from gone


# == Guessing ==


class Drafter:
    """An actor that guesses. A draft model is an engine of its own: on hf each guess reads its row anew, on vLLM
    (`draft_load={"backend": "vllm"}`) the prefix cache keeps what was read.
    """

    def __init__(self, guesses: Any, settings: Mapping[str, Any]) -> None:
        self.guesses = guesses
        given = {"progress": False, **settings, "model": guesses.model}
        self.engine = load(given) if guesses.model is not None else None

    def ready(self) -> None: ...

    def guess(self, rows: Sequence[Sequence[int]]) -> tuple[list[list[int]], float]:
        """All ids of each row so far -> what may follow, and the seconds that it took."""
        began, how = time.perf_counter(), self.guesses
        if self.engine is None:
            guesses = list(map(how.lookup, rows))
        else:
            asked = [{"prompt_token_ids": ids} for ids in rows]
            options = {"max_new_tokens": how.num_tokens, "stop": {"ignore_eos": True}}
            found = self.engine.generate_text_batch(asked, options, on_error="return", cache=False)
            guesses = [list(getattr(result, "token_ids", ())) for result in found]  # an error: it is too long, say
        return guesses, time.perf_counter() - began


# == Judging ==


@dataclasses.dataclass(frozen=True, eq=False)
class Apart:
    """A gen_engine.Decoder: rows in two halves. desk: the Verifier, which has the guesses."""

    guesses: Any
    desk: Any = dataclasses.field(default=None, repr=False)
    refusals = (
        Refusal("vllm", "judge what others guess", lambda a: True, "use backend='hf'"),
        Refusal("hf", "adapters with guesses made apart", lambda a: a.config.adapters, "merge one, or use load()"),
        Refusal("hf", "pictures with guesses made apart", lambda a: a.pictures, "use load()"),
        Refusal("hf", "plugins that hold transformers objects with guesses made apart",
                lambda a: any(p.hf_stopping_criteria or p.hf_logits_processors for p in a.plugins),
                "write should_stop and logits"),
    )  # fmt: skip

    def ready(self, config: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        if checkpoint.processor is not None:
            raise UnsupportedError("a vision-language checkpoint with guesses made apart", fix="use load()")
        self.guesses.ready(config, checkpoint)

    def hf_loop(self, model: Any, config: ModelLoadConfig, checkpoint: Checkpoint) -> Callable[..., Any]:
        return functools.partial(Halves, half=self.guesses.loop, desk=self.desk)


class Errand:
    """What a half has its guesses from: they are asked for after a turn, and fetched when the next one begins."""

    def __init__(self, desk: Any, number: int) -> None:
        self.desk, self.number, self.asked = desk, number, list[Any]()

    def ask(self, rows: Sequence[Any]) -> None:
        self.asked = self.desk.ask(self.number, rows)

    def __call__(self, rows: Sequence[Any], most: Sequence[int]) -> list[Sequence[int]]:
        found = self.desk.collect(self.asked)
        return [found.get(row.place, [])[:limit] for row, limit in zip(rows, most)]


class Halves:
    """While one half is judged, others guess for the other half. What HfBackend runs in DecodeLoop's place.

    half: makes a SpeculativeLoop.
    """

    def __init__(
        self,
        model: Any,
        waiting: Iterable[Any],
        places: Callable[[int], int],
        call: Call,
        *,
        half: Callable[..., Any],
        desk: Any,
    ) -> None:
        self.rows, self.waiting, self.places = list[Any](), deque(waiting), places
        errands = [Errand(desk, number) for number in (0, 1)]
        self.halves = [
            half(model, (), functools.partial(self._places, errand.number), call, drafter=errand, known=desk.said)
            for errand in errands
        ]
        for each in self.halves:
            each.waiting = self.waiting
        desk.loop = self

    def run(self) -> None:
        try:
            while self.waiting or self.running():
                for half in self.halves:
                    half.turn()
                    half.drafter.ask(half.rows)
        finally:  # for whoever lets the unfinished ones begin anew
            self.rows = [row for row in self.running() if not row.watch.over]

    def running(self) -> list[Any]:
        return [row for half in self.halves for row in half.rows]

    def _places(self, half: int, width: int) -> int:
        """Both halves have something to do as long as two rows are left to begin."""
        return (min(self.places(width), len(self.running()) + len(self.waiting)) + 1 - half) // 2


class Left(GenEngineError):
    """Ends a row here, because another verifier goes on with it."""


class Ended(Exception):
    """The call is over, or given up."""


class Verifier:
    """An actor that holds the model and judges guesses. Several threads are in it: one runs, others give and take."""

    def __init__(self, settings: Mapping[str, Any], guesses: Any, patience: float) -> None:
        self.ray, self.patience = ray_itself(), patience
        self.engine = load({"progress": False, **settings, "decoder": Apart(guesses, self)})
        self.call = 0  # orders and news say which they are of: others come too late
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.drafters: Mapping[int, Any] = {}
        self.work: dict[int, tuple[int, Sequence[int]]] = {}  # place in our call -> (place in theirs, tokens said)
        self.loop: Halves | None = None
        self.trace: Any = None
        self.watching = contextlib.ExitStack()

    def ready(self) -> None: ...

    # -- for the coordinator --

    def run(self, call: int, options: GenerationOptions, plugins: Sequence[Any]) -> None:
        """Answer what comes until the call is over."""
        self.call, self.plan = call, make_plan(options, self.engine.checkpoint, plugins)
        with contextlib.suppress(Ended), self.engine.bare(read_only=True):
            while True:
                self.numbers, self.work, self.loop = 0, {}, None
                if prompts := self._arrived(wait=True):
                    self._complete(prompts)

    def give(self, call: int, *order: Any) -> None:
        """ "prompt", place, prompt, tokens said elsewhere; "leave", how many; or "end"."""
        self.inbox.put((call, *order))

    def take(self) -> list[Any]:
        """(call, "done", place, completion), (.., "leaving", places), (.., "left", place, tokens) or
        (.., "drafter", number, why)."""
        news = []
        with contextlib.suppress(queue.Empty):
            news.append(self.outbox.get(timeout=WAIT))
            while True:
                news.append(self.outbox.get_nowait())
        return news

    def draft_with(self, drafters: Mapping[int, Any]) -> None:
        self.drafters = drafters

    def watch(self, kind: Any, directory: str, number: int) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self.trace = kind(self.engine, directory, number, idle=True)
        self.watching.enter_context(self.engine.observed(self.trace))

    def write(self, keep: bool) -> None:
        """End the trace, and write it or not."""
        self.watching.close()
        trace, self.trace = self.trace, None
        if keep:
            trace.write()

    # -- for its own loop --

    def ask(self, half: int, rows: Sequence[Any]) -> list[Any]:
        """Guesses for these rows, to be collected later. Each half has drafters of its own where there are two, and
        each row goes to the same one, which may have kept what it read."""
        every, shares = list(self.drafters.items()), dict[int, list[Any]]()
        drafters = every[half::2] or every
        for row in rows if drafters else ():
            shares.setdefault(row.place % len(drafters), []).append(row)
        return [
            (drafters[k][0], [row.place for row in share],
             drafters[k][1].guess.remote([[*row.ids, *row.watch.ids] for row in share]))
            for k, share in shares.items()
        ]  # fmt: skip

    def collect(self, asked: Iterable[Any]) -> dict[int, list[int]]:
        """Place -> guess. A drafter that fails, or lets us wait for too long, is used no more."""
        found, longest = dict[int, list[int]](), 0.0
        for number, places, reference in asked:
            try:
                with self.engine.observer.timed("idle"):
                    guesses, seconds = self.ray.get(reference, timeout=self.patience)
            except self.ray.exceptions.RayError as error:
                self.drafters = {other: drafter for other, drafter in self.drafters.items() if other != number}
                self._tell("drafter", number, type(error).__name__)
                continue
            found.update(zip(places, guesses))
            longest = max(longest, seconds)
        if self.trace is not None:
            self.trace.spend("draft", longest)
        return found

    def said(self, row: Any) -> Sequence[int]:
        return self.work[row.place][1]

    def _complete(self, prompts: Sequence[Prompt]) -> None:
        def more() -> list[Prompt]:
            if self.trace is not None:
                self.trace.joins = True
            return self._arrived(wait=False)

        if self.trace is not None:
            self.trace.joins = False
        call = Call(self.plan, self._done, self.engine.observer, more)
        self.engine.backend.complete(prompts, call)

    def _arrived(self, *, wait: bool) -> list[Prompt]:
        """The prompts among the orders; the other orders are carried out. wait: until there is one."""
        prompts = []
        with contextlib.suppress(queue.Empty):
            while True:
                call, what, *given = self.inbox.get(block=wait)
                if call != self.call:
                    continue
                wait = False
                if what == "end":
                    raise Ended
                if what == "leave":
                    self._leave(*given)
                else:
                    place, prompt, said = given
                    self.work[self.numbers] = place, said
                    self.numbers += 1
                    prompts.append(prompt)
        return prompts

    def _leave(self, count: int) -> None:
        """Those that wait first: they lose nothing. Rows that run leave at their half's next turn."""
        loop = self.loop
        waiting = [] if loop is None else list(loop.waiting)[-count:]
        running = [] if loop is None else [row for row in loop.running() if not row.watch.over]
        leaving = [*waiting, *running[: count - len(waiting)]]
        self._tell("leaving", [self.work[row.place][0] for row in leaving])
        for row in leaving:
            row.watch.fail(Left("it goes on elsewhere"))
        for row in waiting:
            loop.waiting.remove(row)  # type: ignore[union-attr]  # there is none without a loop
            self._done(row.place, row.watch.completion(row.ids))

    def _done(self, place: int, completion: Completion) -> None:
        theirs, said = self.work.pop(place)
        if isinstance(completion.error, Left):
            self._tell("left", theirs, completion.token_ids or said)
        else:
            self._tell("done", theirs, completion)

    def _tell(self, *news: Any) -> None:
        self.outbox.put((self.call, *news))


# == Coordinating ==


def placed(loads: Mapping[int, int], drafters: Mapping[int, int | None]) -> dict[int, int | None]:
    """Which verifier each drafter shall guess for. loads: open requests of each verifier. drafters: where each is now.

    One after the other goes to the verifier with the most requests per drafter, the one that comes counted; drafters
    stay where they are as far as that allows.
    """
    if not loads:
        return dict.fromkeys(drafters)
    wanted: Counter[int] = Counter()
    for _ in drafters:
        wanted[max(loads, key=lambda v: (loads[v] / (wanted[v] + 1), -wanted[v], -v))] += 1
    places: dict[int, int | None] = {}
    for drafter, now in drafters.items():
        if now is not None and wanted[now] > 0:
            places[drafter] = now
            wanted[now] -= 1
    left = wanted.elements()
    return {drafter: places[drafter] if drafter in places else next(left) for drafter in drafters}


def moving(loads: Mapping[int, int]) -> tuple[int, int, int] | None:
    """(source, target, how many requests), from the most to the least loaded verifier; None where it does not pay: what
    moves is read anew, so the one must have twice the other's, and two more.
    """
    most, least = max(loads, key=lambda v: loads[v]), min(loads, key=lambda v: loads[v])
    if loads[most] < 2 * loads[least] + 2:
        return None
    return most, least, (loads[most] - loads[least]) // 2


class Coordinator:
    """Deals prompts to verifiers, drafters to verifiers, and both anew: a backend of gen_engine's engine."""

    name, model = "hf", None
    healthy = staticmethod(contextlib.nullcontext)

    def __init__(self, ray: Any, verifiers: Mapping[int, Any], drafters: Mapping[int, Any]) -> None:
        self.ray, self.verifiers, self.drafters = ray, dict(verifiers), dict(drafters)
        self.at: dict[int, int | None] = dict.fromkeys(drafters)  # which verifier each drafter guesses for
        self.open: dict[int, Prompt] = {}
        self.where: dict[int, int] = {}  # of open requests: which verifier has each
        self.leaving: set[int] = set()
        self.ordered: int | None = None  # the verifier that shall name some to leave
        self.calls = 0
        self.moves: list[tuple[Any, ...]] = []
        self.began = time.perf_counter()

    def complete(self, prompts: Sequence[Prompt], call: Call) -> None:
        options, plugins = call.plan.options, call.plan.plugins
        if options.temperature > 0:  # what runs again elsewhere draws the same
            prompts = [dataclasses.replace(prompt, seed=prompt.sampling_seed()) for prompt in prompts]
        self.open = {next(call.places): dataclasses.replace(prompt, messages=None) for prompt in prompts}
        self.where, self.leaving, self.ordered, self.calls = {}, set(), None, self.calls + 1
        runs = {verifier.run.remote(self.calls, options, plugins): n for n, verifier in self.verifiers.items()}
        takes = {verifier.take.remote(): n for n, verifier in self.verifiers.items()}
        try:
            for place in sorted(self.open, key=lambda place: -self.open[place].length):
                self._give(place, ())
            while self.open:
                self._balance()
                self._listen(runs, takes, call)
        except self.ray.exceptions.RayTaskError as error:  # of a verifier's run: what it cannot go on after
            raise error.cause from error
        finally:
            self._end([*runs, *takes])
            self.open, self.where = {}, {}

    def score(self, pairs: Any, **how: Any) -> Any:
        raise UnsupportedError("verifiers do not score", fix="use load()")

    def close(self) -> None:
        for actor in (*self.verifiers.values(), *self.drafters.values()):
            self.ray.kill(actor)

    def note(self, what: str, number: int, source: int | None, target: int | None, why: str) -> None:
        self.moves.append((round(time.perf_counter() - self.began, 6), what, number, source, target, why))

    def tell_all(self, tell: Callable[[int, Any], Any]) -> None:
        """Outside calls. tell: a verifier's number and handle -> what to wait for."""
        for number, verifier in list(self.verifiers.items()):
            try:
                self.ray.get(tell(number, verifier))
            except self.ray.exceptions.RayActorError:
                self._bury(number)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from error

    def _listen(self, runs: dict[Any, int], takes: dict[Any, int], call: Call) -> None:
        """Wait until a verifier has news, or none. runs, takes: what is awaited -> of which verifier."""
        [reference], _ = self.ray.wait([*takes, *runs], num_returns=1)
        number = (takes | runs)[reference]
        try:
            news = self.ray.get(reference)  # of a run only an error, which is raised
        except self.ray.exceptions.RayActorError:
            for references in (takes, runs):
                for gone in [one for one, n in references.items() if n == number]:
                    del references[gone]
            self._bury(number)
            return
        del takes[reference]
        takes[self.verifiers[number].take.remote()] = number
        for of_call, *one in news:
            if of_call == self.calls:
                self._hear(number, call, *one)

    def _end(self, references: Iterable[Any]) -> None:
        """No thread of a verifier is in this call any more."""
        for verifier in self.verifiers.values():
            verifier.give.remote(self.calls, "end")
        for reference in references:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.get(reference)

    def _loads(self) -> Counter[int]:
        loads = Counter(dict.fromkeys(self.verifiers, 0))
        loads.update(self.where.values())
        return loads

    def _give(self, place: int, said: Sequence[int]) -> int:
        """To the least loaded verifier, which is returned."""
        if not self.verifiers:
            raise EngineError("no verifier is left", fix="make the group anew")
        loads = self._loads()
        number = self.where[place] = min(self.verifiers, key=lambda v: loads[v])
        self.verifiers[number].give.remote(self.calls, "prompt", place, self.open[place], said)
        return number

    def _hear(self, number: int, call: Call, what: str, about: Any, detail: Any = None) -> None:
        if what == "done":
            del self.open[about], self.where[about]
            call.done(about, detail)
        elif what == "leaving":
            self.leaving, self.ordered = set(about), None
        elif what == "left":
            self.leaving.discard(about)
            del self.where[about]
            self.note("request", about, number, self._give(about, detail), f"{len(detail)} tokens along")
        elif about in self.drafters:
            del self.at[about]
            self.ray.kill(self.drafters.pop(about))  # one that hangs would hold its place for ever
            log.warning("drafter %d is lost (%s); answers go on with fewer guesses", about, detail)
            self.note("drafter", about, number, None, detail)

    def _bury(self, number: int) -> None:
        """A verifier is gone: what it had not answered runs again elsewhere."""
        if number not in self.verifiers:
            return
        del self.verifiers[number]
        again = [place for place, at in self.where.items() if at == number]
        log.warning("verifier %d is lost; %d requests run again", number, len(again))
        self.note("verifier", number, number, None, "lost")
        for place in again:
            del self.where[place]
        for place in again:
            self.note("request", place, number, self._give(place, ()), "runs again")
        self.leaving -= set(again)
        self.ordered = None if self.ordered == number else self.ordered

    def _balance(self) -> None:
        loads = self._loads()
        wanted, before = placed(loads, self.at), dict(self.at)
        for drafter in [d for d in wanted if wanted[d] != before[d]]:
            why = " ".join(f"{verifier}:{loads[verifier]}" for verifier in sorted(loads))
            self.note("drafter", drafter, before[drafter], wanted[drafter], f"open requests {why}")
        self.at = wanted
        for number in {v for d in wanted if wanted[d] != before[d] for v in (wanted[d], before[d])} & {*self.verifiers}:
            own = {d: self.drafters[d] for d, at in wanted.items() if at == number}
            self.verifiers[number].draft_with.remote(own)  # type: ignore[index]
        if not self.leaving and self.ordered is None and (move := moving(loads)):
            self.ordered, _, count = move
            self.verifiers[self.ordered].give.remote(self.calls, "leave", count)


class Decoupled(contextlib.AbstractContextManager["Decoupled"]):
    """A group of verifiers and drafters with the engine's verb for text in front; a context manager.

    guesses: a Speculation.   settings: what each verifier loads, fields of ModelLoadConfig; backend="hf" only.
    draft_load: the same of each drafter that has a model.   verifier_on, drafter_on: Ray's options for one actor.
    patience: s; a drafter whose guesses come later than that is ended.
    The process that makes the group reads the checkpoint without its weights (transformers needs accelerate for that).
    Raises LoadError where a worker cannot start, and what `load` raises.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        guesses: Any,
        *,
        verifiers: int = 1,
        drafters: int = 1,
        verifier_on: Mapping[str, Any] | None = None,
        drafter_on: Mapping[str, Any] | None = None,
        draft_load: Mapping[str, Any] | None = None,
        patience: float = 60.0,
        **settings: Any,
    ) -> None:
        if verifiers < 1 or drafters < 0:
            raise OptionError(f"{verifiers} verifiers and {drafters} drafters", fix="give one verifier or more")
        if not patience > 0:
            raise OptionError(f"patience={patience}", fix="say for how many seconds a drafter may be silent, above 0")
        ray, settings = ray_itself(), {**settings, "model": os.fspath(model)}
        without_weights = {"device": None, "hf_kwargs": {"device_map": "meta"}, "decoder": Apart(guesses)}
        self.engine = load({**settings, **without_weights})
        settings.pop("cache", None)  # the front has it
        judging = {"num_cpus": 1, "max_concurrency": 4, **(verifier_on or {})}
        guessing = {"num_cpus": 1, **(drafter_on or {})}
        asked = verifiers * judging["num_cpus"] + drafters * guessing["num_cpus"]
        if not ray.is_initialized():
            ray.init()
        if asked > (has := ray.cluster_resources().get("CPU", 0)):
            log.warning("the workers ask for %g CPUs and Ray has %g: the group waits until it has more", asked, has)
        judges = {
            n: ray.remote(Verifier).options(**judging).remote(settings, guesses, patience) for n in range(verifiers)
        }
        guessers = {
            n: ray.remote(Drafter).options(**guessing).remote(guesses, draft_load or {}) for n in range(drafters)
        }
        self.coordinator = self.engine.backend = Coordinator(ray, judges, guessers)
        try:
            ray.get([actor.ready.remote() for actor in (*judges.values(), *guessers.values())])
        except ray.exceptions.RayError as error:
            self.close()
            raise LoadError(f"a worker cannot start: {error}", fix="see what it says, and what Ray has") from error

    def generate_text_batch(self, requests: Any, options: Any = None, **how: Any) -> list[GenerationResult]:
        """What GenerationEngine.generate_text_batch takes and gives. Raises also EngineError: no verifier is left."""
        return self.engine.generate_text_batch(requests, options, **how)

    @contextlib.contextmanager
    def traced(self, directory: str | os.PathLike[str], kind: Any, first: int = 0) -> Iterator[None]:
        """Let each verifier write what it does inside the block, as worker `first`, first + 1, ...; and the moves.

        kind: the class `Trace` of the companion rollout.py, whose three files they are, with the times that drafters
        took, and idle: waited for guesses. Files are written where the verifier runs; one that died has none.
        moves.csv, written here: seconds, what moved (drafter, request, verifier), its number, from, to, why; requests
        are numbered as the call has them.   No file is written if the block raises.
        """
        group, place, keep = self.coordinator, str(Path(directory).absolute()), False
        group.moves, group.began = [], time.perf_counter()
        group.tell_all(lambda number, verifier: verifier.watch.remote(kind, place, first + number))
        try:
            yield
            keep = True
        finally:
            group.tell_all(lambda _, verifier: verifier.write.remote(keep))
        path = Path(place, "moves.csv")
        part = path.with_name(f".{path.name}.part")
        with part.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([MOVES, *group.moves])
        os.replace(part, path)

    def close(self) -> None:
        """End all workers."""
        self.engine.close()

    def __exit__(self, *exc: object) -> None:
        self.close()
