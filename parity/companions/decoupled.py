# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Drafting apart from verifying, on workers that Ray starts: a companion of gen_engine.py.

Copy them into your repository, `make vendor DEST=acme/llm WITH="decoupled speculation joining"`
(and rollout, to trace), and

    guesses = Speculation("draft_model", model="Qwen/Qwen3-0.6B")
    workers = {"verifiers": 2, "drafters": 3, "verifier_on": {"num_gpus": 1}}
    with Decoupled("Qwen/Qwen3-8B", guesses, **workers) as group:
        with group.traced("rollouts", Trace):                   # python -m parity trace rollouts
            results = group.generate_text_batch(requests, options)

    requests --the engine's checks--> Prompt --Coordinator--> Verifier: half A │ half B │ half A ...
    results <--the engine's finish-- Completion <------------ Drafters: for B  │ for A  │ for B ...

Answers are those of `load(model)`: each token is decided as DecodeLoop decides it, whatever the
draft was. So a drafter that dies or hangs costs drafts; what a verifier that dies or hangs had not
answered runs again elsewhere; and a request that moves to another verifier takes its tokens along
as a draft, which is verified in one forward. Workers that are lost are started again.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import importlib
import itertools
import logging
import os
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Decoupled", "Verifier", "Drafter", "placed", "moving"]

log = logging.getLogger("gen_engine")

WAIT = 0.2  # seconds that one wait for news takes at most
RESTARTS = 2  # of each worker in one call: a request that ends each verifier must end the call
SLOWEST_ORDER = 60.0  # seconds that a verifier may take to open or write a trace
MOVES = ("seconds", "what", "number", "source", "target", "why")


def ray_itself() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as gone:
        problem = f"{gone.name} is not installed"
        raise ge.BackendMissing(problem, fix="run: pip install ray") from gone


# == Drafting ==


class Drafter:
    """An actor that drafts. A draft model is an engine of its own: on hf each draft reads its row
    anew; on vLLM (`draft_load={"backend": "vllm"}`) the prefix cache keeps what was read."""

    def __init__(self, guesses: Any, settings: Mapping[str, Any]) -> None:
        self.guesses = guesses
        self.engine = None
        if guesses.model is not None:
            self.engine = ge.load({"progress": False, **settings, "model": guesses.model})

    def ready(self) -> None: ...

    def guess(self, rows: Sequence[Sequence[int]]) -> tuple[list[list[int]], float]:
        """All ids of each row so far -> draft tokens of each, and the seconds that it took."""
        began = time.perf_counter()
        if self.engine is None:
            drafts = [self.guesses.lookup(ids) for ids in rows]
        else:
            drafts = self._continue(self.engine, rows)
        return drafts, time.perf_counter() - began

    def _continue(self, engine: Any, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        requests = [{"prompt_token_ids": ids} for ids in rows]
        options = {"max_new_tokens": self.guesses.num_tokens, "stop": {"ignore_eos": True}}
        how = {"on_error": "return", "cache": False}
        results = engine.generate_text_batch(requests, options, **how)
        return [list(getattr(result, "token_ids", ())) for result in results]  # an error: too long


# == Verifying ==

PLUGIN_FIX = "write should_stop and logits"


def has_transformers_hooks(asked: Any) -> bool:
    hooks = [(plugin.hf_stopping_criteria, plugin.hf_logits_processors) for plugin in asked.plugins]
    return any(map(any, hooks))


@dataclasses.dataclass(frozen=True, eq=False)
class Apart:
    """A gen_engine.Decoder: rows in two halves. desk: the Verifier, which has the drafts."""

    guesses: Any
    desk: Any = dataclasses.field(default=None, repr=False)
    refusals = (
        ge.Refusal("vllm", "judge what others guess", lambda asked: True, "use backend='hf'"),
        ge.Refusal(
            "hf",
            "adapters with guesses made apart",
            lambda asked: asked.config.adapters,
            "merge one, or use load()",
        ),
        ge.Refusal(
            "hf",
            "pictures with guesses made apart",
            lambda asked: asked.pictures,
            "use load()",
        ),
        ge.Refusal(
            "hf",
            "plugins that hold transformers objects with guesses made apart",
            has_transformers_hooks,
            PLUGIN_FIX,
        ),
    )

    def ready(self, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint) -> None:
        if checkpoint.processor is not None:
            problem = "a vision-language checkpoint with guesses made apart"
            raise ge.UnsupportedError(problem, fix="use load()")
        self.guesses.ready(config, checkpoint)

    def hf_loop(
        self,
        model: Any,
        config: ge.ModelLoadConfig,
        checkpoint: ge.Checkpoint,
    ) -> Callable[..., Any]:
        return functools.partial(Halves, half=self.guesses.loop, desk=self.desk)


class Errand:
    """Where a half has its drafts from: they are asked for after a turn of the half, and collected
    when its next one begins."""

    def __init__(self, desk: Any, number: int) -> None:
        self.desk = desk
        self.number = number
        self.asked: list[Any] = []

    def ask(self, rows: Sequence[Any]) -> None:
        self.asked = self.desk.ask(self.number, rows)

    def __call__(self, rows: Sequence[Any], most: Sequence[int]) -> list[Sequence[int]]:
        found = self.desk.collect(self.asked)
        return [found.get(row.place, [])[:limit] for row, limit in zip(rows, most)]


class Halves:
    """While one half is verified, others draft for the other half. What HfBackend runs in place of
    DecodeLoop.   half: makes a SpeculativeLoop."""

    def __init__(
        self,
        model: Any,
        waiting: Iterable[Any],
        places: Callable[[int], int],
        call: ge.Call,
        *,
        half: Callable[..., Any],
        desk: Any,
    ) -> None:
        self.rows: list[Any] = []
        self.waiting = deque(waiting)
        self.places = places
        self.halves = []
        for number in (0, 1):
            own_places = functools.partial(self._places, number)
            errand = Errand(desk, number)
            loop = half(model, (), own_places, call, drafter=errand, known=desk.said)
            loop.waiting = self.waiting
            self.halves.append(loop)
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
        rows = len(self.running()) + len(self.waiting)
        return (min(self.places(width), rows) + 1 - half) // 2


class Left(ge.GenEngineError):
    """Ends a row here, because another verifier goes on with it."""


class Ended(Exception):
    """The call is over, or given up."""


class Verifier:
    """An actor that holds the model and verifies drafts. Several threads are in it: one runs, the
    others give and take."""

    def __init__(self, settings: Mapping[str, Any], guesses: Any, patience: float) -> None:
        self.ray = ray_itself()
        self.patience = patience
        self.engine = ge.load({"progress": False, **settings, "decoder": Apart(guesses, self)})
        self.call = 0  # orders and news say of which call they are: others come too late
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.drafters: Mapping[int, Any] = {}
        # index in our call -> (index in the coordinator's, tokens that were generated elsewhere)
        self.work: dict[int, tuple[int, Sequence[int]]] = {}
        self.loop: Halves | None = None
        self.trace: Any = None
        self.watching = contextlib.ExitStack()
        self.stepped: float | None = None  # when the loop last moved; None while it has no work

    def ready(self) -> None: ...

    # -- for the coordinator --

    def run(self, call: int, options: ge.GenerationOptions, plugins: Sequence[Any]) -> None:
        """Answer what comes until the call is over."""
        self.call = call
        self.plan = ge.make_plan(options, self.engine.checkpoint, ge.adopt_plugins(plugins))
        try:
            with contextlib.suppress(Ended), self.engine.bare(read_only=True):
                while True:
                    self.numbers = 0
                    self.work = {}
                    self.loop = None
                    if prompts := self._arrived(wait=True):
                        self._complete(prompts)
        finally:
            self.stepped = None

    def give(self, call: int, *order: Any) -> None:
        """ "prompt", index, prompt, tokens generated elsewhere; "leave", how many; or "end"."""
        self.inbox.put((call, *order))

    def take(self) -> tuple[float, list[Any]]:
        """Seconds since the loop moved, 0 where it has no work; and news, each (call, "done",
        index, completion), (.., "leaving", indices), (.., "left", index, tokens) or
        (.., "drafter", number, why)."""
        news = []
        with contextlib.suppress(queue.Empty):
            news.append(self.outbox.get(timeout=WAIT))
            while True:
                news.append(self.outbox.get_nowait())
        stepped = self.stepped
        return (0.0 if stepped is None else time.monotonic() - stepped), news

    def draft_with(self, drafters: Mapping[int, Any]) -> None:
        self.drafters = drafters

    def watch(self, kind: Any, directory: str, number: int) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self.trace = kind(self.engine, directory, number, idle=True)
        self.watching.enter_context(self.engine.observed(self.trace))

    def write(self, keep: bool) -> None:
        """End the trace, and write it or not."""
        self.watching.close()
        trace = self.trace
        self.trace = None
        if keep:
            trace.write()

    # -- for its own loop --

    def ask(self, half: int, rows: Sequence[Any]) -> list[Any]:
        """Ask for drafts of these rows, to be collected later. Each half has drafters of its own
        where there are two, and each row has the same one, which may have kept what it read."""
        self.stepped = time.monotonic()
        everyone = list(self.drafters.items())
        drafters = everyone[half::2] or everyone
        if not drafters:
            return []
        shares: dict[int, list[Any]] = {}
        for row in rows:
            shares.setdefault(row.place % len(drafters), []).append(row)
        asked = []
        for position, share in shares.items():
            number, drafter = drafters[position]
            reference = drafter.guess.remote([[*row.ids, *row.watch.ids] for row in share])
            asked.append((number, [row.place for row in share], reference))
        return asked

    def collect(self, asked: Iterable[Any]) -> dict[int, list[int]]:
        """Index -> draft. A drafter that fails, or is late, is used no more."""
        found: dict[int, list[int]] = {}
        longest = 0.0
        until = time.monotonic() + self.patience
        for number, indices, reference in asked:
            try:
                with self.engine.observer.timed("idle"):
                    drafts, seconds = self._fetch(reference, until)
            except self.ray.exceptions.RayError as error:
                left = {other: actor for other, actor in self.drafters.items() if other != number}
                self.drafters = left
                self._tell("drafter", number, type(error).__name__)
                continue
            found.update(zip(indices, drafts))
            longest = max(longest, seconds)
        if self.trace is not None:
            self.trace.spend("draft", longest)
        return found

    def _fetch(self, reference: Any, until: float) -> Any:
        """A drafter's reply. While it is waited for, this verifier does not hang."""
        while True:
            self.stepped = now = time.monotonic()
            try:
                return self.ray.get(reference, timeout=max(0.0, min(WAIT, until - now)))
            except self.ray.exceptions.GetTimeoutError:
                if now >= until:
                    raise

    def said(self, row: Any) -> Sequence[int]:
        return self.work[row.place][1]

    def _complete(self, prompts: Sequence[ge.Prompt]) -> None:
        def more() -> list[ge.Prompt]:
            if self.trace is not None:
                self.trace.joins = True
            return self._arrived(wait=False)

        if self.trace is not None:
            self.trace.joins = False
        call = ge.Call(self.plan, self._done, self.engine.observer, more)
        self.engine.backend.complete(prompts, call)

    def _arrived(self, *, wait: bool) -> list[ge.Prompt]:
        """The prompts among the orders; the other orders are carried out. wait: for the first."""
        prompts = []
        self.stepped = None if wait else time.monotonic()
        with contextlib.suppress(queue.Empty):
            while True:
                call, what, *about = self.inbox.get(block=wait)
                if call != self.call:
                    continue
                wait = False
                if what == "end":
                    raise Ended
                if what == "leave":
                    self._leave(*about)
                else:
                    index, prompt, said = about
                    self.work[self.numbers] = index, said
                    self.numbers += 1
                    prompts.append(prompt)
        self.stepped = time.monotonic()
        return prompts

    def _leave(self, count: int) -> None:
        """Let requests go to another verifier. Those that wait come first: they lose nothing. Rows
        that run leave at the next turn of their half."""
        loop = self.loop
        waiting = []
        running = []
        if loop is not None:
            waiting = list(loop.waiting)[-count:]
            running = [row for row in loop.running() if not row.watch.over]
        leaving = [*waiting, *running[: count - len(waiting)]]
        self._tell("leaving", [self.work[row.place][0] for row in leaving])
        for row in leaving:
            row.watch.fail(Left("it goes on elsewhere"))
        for row in waiting:
            loop.waiting.remove(row)  # type: ignore[union-attr]  # there is none without a loop
            self._done(row.place, row.watch.completion(row.ids))

    def _done(self, own_index: int, completion: ge.Completion) -> None:
        index, said = self.work.pop(own_index)
        if isinstance(completion.error, Left):
            self._tell("left", index, completion.token_ids or said)
        else:
            self._tell("done", index, completion)

    def _tell(self, *news: Any) -> None:
        self.outbox.put((self.call, *news))


# == Where drafters and requests go ==


def placed(
    loads: Mapping[int, int],
    drafters: Mapping[int, int | None],
) -> dict[int, int | None]:
    """Which verifier each drafter shall draft for.

    loads: open requests of each verifier.   drafters: where each is now.
    One after the other goes to the verifier with the most requests per drafter, the one that comes
    counted; drafters stay where they are as far as that allows."""
    if not loads:
        return dict.fromkeys(drafters)
    wanted: Counter[int] = Counter()

    def need(verifier: int) -> tuple[float, int, int]:
        return loads[verifier] / (wanted[verifier] + 1), -wanted[verifier], -verifier

    for _ in drafters:
        wanted[max(loads, key=need)] += 1
    places: dict[int, int | None] = {}
    for drafter, now in drafters.items():
        if now is not None and wanted[now] > 0:
            places[drafter] = now
            wanted[now] -= 1
    left = wanted.elements()
    return {drafter: places[drafter] if drafter in places else next(left) for drafter in drafters}


def moving(loads: Mapping[int, int]) -> tuple[int, int, int] | None:
    """(source, target, how many requests), from the most to the least loaded verifier; None where
    it does not pay: what moves is read anew, so the one must have twice the other's, and two more.
    """
    most = max(loads, key=lambda verifier: loads[verifier])
    least = min(loads, key=lambda verifier: loads[verifier])
    if loads[most] < 2 * loads[least] + 2:
        return None
    return most, least, (loads[most] - loads[least]) // 2


# == Coordinating ==


class Staff:
    """The actors of one kind.

    name: of the kind.   start: makes an actor.   alive: number -> actor.   starting: what to wait
    for until a new one is ready -> (number, actor).   restarts: how many more may be started."""

    def __init__(self, ray: Any, name: str, start: Callable[[], Any], size: int) -> None:
        self.ray = ray
        self.name = name
        self.size = size
        self.restarts = 0
        self._start = start
        self.alive = {number: start() for number in range(size)}
        self.starting: dict[Any, tuple[int, Any]] = {}

    def ready(self) -> list[Any]:
        """What to wait for until all are ready."""
        return [actor.ready.remote() for actor in self.alive.values()]

    def is_gone(self) -> bool:
        return not self.alive and not self.starting

    def end(self, number: int) -> None:
        """One that hangs, too, so that it does not hold its place for ever."""
        self.ray.kill(self.alive.pop(number))

    def refill(self, numbers: Iterable[int]) -> None:
        """Start actors in the places of those that are gone. numbers: of new ones, in order."""
        known = {*self.alive, *(number for number, _ in self.starting.values())}
        unused = (number for number in numbers if number not in known)
        while self.restarts > 0 and len(self.alive) + len(self.starting) < self.size:
            self.restarts -= 1
            actor = self._start()
            self.starting[actor.ready.remote()] = next(unused), actor

    def admit(self, reference: Any) -> int | None:
        """The number of a new actor that is ready, or None if it could not start."""
        number, actor = self.starting.pop(reference)
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            log.warning("%s %d cannot be started again: %s", self.name, number, error)
            return None
        self.alive[number] = actor
        return number

    def close(self) -> None:
        for actor in (*self.alive.values(), *(actor for _, actor in self.starting.values())):
            self.ray.kill(actor)


@dataclasses.dataclass(frozen=True)
class Tracing:
    """What each verifier is told to write. first: the number of the first one's worker."""

    kind: Any
    directory: str
    first: int


class Coordinator:
    """Deals prompts to verifiers and drafters to verifiers, again and again: a backend of
    gen_engine's engine.

    open: index -> prompt of requests without an answer.   where: which verifier has each.
    unplaced: those that wait for a verifier -> tokens that they take along.
    at: which verifier each drafter drafts for.   leaving: requests that move.
    ordered: the verifier that shall name some to leave."""

    name = "hf"
    model = None
    healthy = staticmethod(contextlib.nullcontext)
    was_trained = staticmethod(lambda: False)  # the workers' models are out of reach

    def __init__(self, ray: Any, verifiers: Staff, drafters: Staff, patience: float) -> None:
        self.ray = ray
        self.verifier_staff = verifiers
        self.drafter_staff = drafters
        self.patience = patience
        self.verifiers = verifiers.alive
        self.drafters = drafters.alive
        self.at: dict[int, int | None] = dict.fromkeys(self.drafters)
        self.call: ge.Call | None = None
        self.calls = 0
        self.open: dict[int, ge.Prompt] = {}
        self.where: dict[int, int] = {}
        self.unplaced: dict[int, Sequence[int]] = {}
        self.leaving: set[int] = set()
        self.ordered: int | None = None
        self.runs: dict[Any, int] = {}  # what is awaited -> of which verifier
        self.takes: dict[Any, int] = {}
        self.heard: dict[int, float] = {}  # when each verifier last replied
        self.tracing: Tracing | None = None
        self.traced: set[int] = set()
        self.moves: list[tuple[Any, ...]] = []
        self.began = time.perf_counter()
        self._new_drafters = itertools.count(drafters.size)

    # -- a backend --

    def complete(self, prompts: Sequence[ge.Prompt], call: ge.Call) -> None:
        if call.plan.options.temperature > 0:  # what runs again elsewhere draws the same
            prompts = [
                dataclasses.replace(prompt, seed=prompt.sampling_seed()) for prompt in prompts
            ]
        self._begin(call)
        for prompt in prompts:
            self.open[next(call.places)] = dataclasses.replace(prompt, messages=None)
        try:
            for number in self.verifiers:
                self._employ(number)
            for index in sorted(self.open, key=lambda index: -self.open[index].length):
                self._give(index, ())
            while self.open:
                self._balance()
                self._listen()
                self._end_hung()
        except self.ray.exceptions.RayTaskError as error:  # what a verifier cannot go on after
            raise error.cause from error
        finally:
            self._end()

    def score(self, pairs: Any, **how: Any) -> Any:
        raise ge.UnsupportedError("verifiers do not score", fix="use load()")

    def close(self) -> None:
        self.verifier_staff.close()
        self.drafter_staff.close()

    # -- traces --

    def begin_trace(self, tracing: Tracing) -> None:
        self.moves = []
        self.began = time.perf_counter()
        self.tracing = tracing
        self.traced = set()
        for number in list(self.verifiers):
            self._watch(number)

    def end_trace(self, keep: bool) -> None:
        self.tracing = None
        for number in self.traced & self.verifiers.keys():
            self._order(number, self.verifiers[number].write.remote(keep))

    def note(
        self,
        what: str,
        number: int,
        source: int | None,
        target: int | None,
        why: str,
    ) -> None:
        seconds = round(time.perf_counter() - self.began, 6)
        self.moves.append((seconds, what, number, source, target, why))

    def _watch(self, number: int) -> None:
        tracing = self.tracing
        if tracing is not None:
            self.traced.add(number)
            worker = tracing.first + number
            actor = self.verifiers[number]
            self._order(number, actor.watch.remote(tracing.kind, tracing.directory, worker))

    def _order(self, number: int, reference: Any) -> None:
        """Wait until a verifier has done what it was told outside a call."""
        try:
            self.ray.get(reference, timeout=max(self.patience, SLOWEST_ORDER))
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self.ray.exceptions.RayError as error:
            self._bury(number, type(error).__name__)

    # -- a call --

    def _begin(self, call: ge.Call) -> None:
        self.call = call
        self.calls += 1
        self.open = {}
        self.where = {}
        self.unplaced = {}
        self.leaving = set()
        self.ordered = None
        for staff in (self.verifier_staff, self.drafter_staff):
            staff.restarts = RESTARTS * staff.size
        self._refill()

    def _refill(self) -> None:
        """A verifier takes over the number of a lost one, which is in the names of its trace's
        files; a drafter has a new one, since news of the lost one may come later."""
        self.verifier_staff.refill(range(self.verifier_staff.size))
        self.drafter_staff.refill(self._new_drafters)

    def _employ(self, number: int) -> None:
        """Let a verifier run what it is given in this call."""
        assert self.call is not None  # or there is no call
        plan = self.call.plan
        actor = self.verifiers[number]
        self.runs[actor.run.remote(self.calls, plan.options, [*plan.plugins])] = number
        self.takes[actor.take.remote()] = number
        self.heard[number] = time.monotonic()

    def _listen(self) -> None:
        """Wait for news, and for workers that start."""
        if self.verifier_staff.is_gone():
            fix = "see why in the warnings and in Ray's logs; the next call starts them again"
            raise ge.EngineError("no verifier is left", fix=fix)
        starting = [*self.verifier_staff.starting, *self.drafter_staff.starting]
        awaited = [*starting, *self.runs, *self.takes]  # what is rare first
        ready, _ = self.ray.wait(awaited, num_returns=1, timeout=WAIT)
        for reference in ready:
            if reference in starting:
                self._admit(reference)
            else:
                self._hear_from(reference)

    def _hear_from(self, reference: Any) -> None:
        """A verifier's news. Of a run there are only errors, which are raised."""
        number = (self.takes | self.runs)[reference]
        try:
            seconds, news = self.ray.get(reference)
        except self.ray.exceptions.RayActorError as error:
            self._bury(number, type(error).__name__)
            return
        del self.takes[reference]
        self.takes[self.verifiers[number].take.remote()] = number
        self.heard[number] = time.monotonic()
        for of_call, *one in news:
            if of_call == self.calls:
                self._hear(number, *one)
        if seconds > self.patience:
            self._bury(number, f"no step for {seconds:.1f} s")

    def _hear(self, number: int, what: str, about: Any, detail: Any = None) -> None:
        if what == "done":
            assert self.call is not None  # or the news is of another call
            del self.open[about]
            del self.where[about]
            self.call.done(about, detail)
        elif what == "leaving":
            self.leaving = set(about)
            self.ordered = None
        elif what == "left":
            self.leaving.discard(about)
            del self.where[about]
            target = self._give(about, detail)
            self.note("request", about, number, target, f"{len(detail)} tokens along")
        elif about in self.drafters:
            del self.at[about]
            self.drafter_staff.end(about)
            log.warning("drafter %d is lost (%s); a new one is started", about, detail)
            self.note("drafter", about, number, None, detail)
            self._refill()

    def _end_hung(self) -> None:
        """End verifiers that do not reply at all."""
        for reference, number in list(self.takes.items()):
            silent = time.monotonic() - self.heard[number]
            if silent > self.patience and not self.ray.wait([reference], timeout=0)[0]:
                self._bury(number, f"no reply for {silent:.1f} s")

    def _admit(self, reference: Any) -> None:
        """A worker is ready, or cannot start: then another one may."""
        if reference in self.drafter_staff.starting:
            number = self.drafter_staff.admit(reference)
            if number is not None:
                self.at[number] = None
        else:
            number = self.verifier_staff.admit(reference)
            if number is not None:
                self._admit_verifier(number)
        self._refill()

    def _admit_verifier(self, number: int) -> None:
        self.note("verifier", number, None, number, "started again")
        self._watch(number)
        if number in self.verifiers:
            self._employ(number)
            for index, said in list(self.unplaced.items()):
                self.note("request", index, None, self._give(index, said), "runs again")

    def _give(self, index: int, said: Sequence[int]) -> int | None:
        """Give a request to the least loaded verifier, which is returned; it waits if there is
        none."""
        self.unplaced.pop(index, None)
        if not self.verifiers:
            self.unplaced[index] = said
            return None
        loads = self._loads()
        number = min(self.verifiers, key=lambda verifier: loads[verifier])
        self.where[index] = number
        actor = self.verifiers[number]
        actor.give.remote(self.calls, "prompt", index, self.open[index], said)
        return number

    def _bury(self, number: int, why: str) -> None:
        """End a verifier that is lost, and run again elsewhere what it had not answered."""
        if number not in self.verifiers:
            return
        self.verifier_staff.end(number)
        self.traced.discard(number)
        self.runs = {one: owner for one, owner in self.runs.items() if owner != number}
        self.takes = {one: owner for one, owner in self.takes.items() if owner != number}
        for drafter, owner in self.at.items():
            if owner == number:
                self.at[drafter] = None
        again = [index for index, owner in self.where.items() if owner == number]
        log.warning("verifier %d is lost (%s); %d requests run again", number, why, len(again))
        self.note("verifier", number, number, None, why)
        self.leaving -= set(again)
        self.ordered = None if self.ordered == number else self.ordered
        for index in again:
            del self.where[index]
        for index in again:
            self.note("request", index, number, self._give(index, ()), "runs again")
        self._refill()

    def _loads(self) -> Counter[int]:
        loads = Counter(dict.fromkeys(self.verifiers, 0))
        loads.update(self.where.values())
        return loads

    def _balance(self) -> None:
        """Move drafters, and requests, to where they are needed more."""
        loads = self._loads()
        before = self.at
        self.at = placed(loads, before)
        moved = [drafter for drafter in before if self.at[drafter] != before[drafter]]
        why = " ".join(f"{verifier}:{loads[verifier]}" for verifier in sorted(loads))
        changed = set()
        for drafter in moved:
            source = before[drafter]
            target = self.at[drafter]
            self.note("drafter", drafter, source, target, f"open requests {why}")
            changed |= {source, target}
        for number, actor in self.verifiers.items():
            if number in changed:
                own = {drafter: self.drafters[drafter] for drafter in self._drafters_of(number)}
                actor.draft_with.remote(own)
        self._order_moves(loads)

    def _drafters_of(self, number: int) -> list[int]:
        return [drafter for drafter, verifier in self.at.items() if verifier == number]

    def _order_moves(self, loads: Mapping[int, int]) -> None:
        """Let the verifier with the most requests name some to leave."""
        if self.leaving or self.ordered is not None or not loads:
            return
        move = moving(loads)
        if move is not None:
            self.ordered, _, count = move
            self.verifiers[self.ordered].give.remote(self.calls, "leave", count)

    def _end(self) -> None:
        """No thread of a verifier is in this call any more."""
        for actor in self.verifiers.values():
            actor.give.remote(self.calls, "end")
        self.open = {}
        self.where = {}
        until = time.monotonic() + self.patience
        for reference, number in [*self.runs.items(), *self.takes.items()]:
            try:
                self.ray.get(reference, timeout=max(0.0, until - time.monotonic()))
            except (self.ray.exceptions.GetTimeoutError, self.ray.exceptions.RayActorError) as lost:
                self._bury(number, type(lost).__name__)
            except self.ray.exceptions.RayError:
                continue  # of a call that has failed with it
        self.runs = {}
        self.takes = {}
        self.call = None


# == The group ==


def check_numbers(verifiers: int, drafters: int, patience: float) -> None:
    if verifiers < 1 or drafters < 0:
        problem = f"{verifiers} verifiers and {drafters} drafters"
        raise ge.OptionError(problem, fix="give one verifier or more")
    if not patience > 0:
        problem = f"patience={patience}"
        raise ge.OptionError(
            problem, fix="say for how many seconds a worker may be silent, above 0"
        )


def warn_of_few_cpus(ray: Any, wanted: float) -> None:
    available = ray.cluster_resources().get("CPU", 0)
    if wanted > available:
        text = "the workers ask for %g CPUs and Ray has %g: the group waits until it has more"
        log.warning(text, wanted, available)


class Decoupled(contextlib.AbstractContextManager["Decoupled"]):
    """A group of verifiers and drafters behind the engine's verb for text; a context manager.

    guesses: a Speculation.   settings: what each verifier loads, fields of ModelLoadConfig;
    backend="hf" only.   draft_load: the same of each drafter that has a model.
    verifier_on, drafter_on: Ray's options for one actor.
    patience: seconds; a drafter whose drafts come later than that, and a verifier that has work and
    makes no step for so long, is ended. The longest step is the first one of the longest prompts.
    A worker that is lost is started again, at most twice for each worker in one call.
    The process that makes the group reads the checkpoint without its weights (transformers needs
    accelerate for that). Raises LoadError where a worker cannot start, and what `load` raises."""

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
        check_numbers(verifiers, drafters, patience)
        ray = ray_itself()
        settings = {**settings, "model": os.fspath(model)}
        without_weights = {"device": None, "hf_kwargs": {"device_map": "meta"}}
        self.engine = ge.load({**settings, **without_weights, "decoder": Apart(guesses)})
        settings.pop("cache", None)  # the front has it
        on_verifier = {"num_cpus": 1, "max_concurrency": 4, **(verifier_on or {})}
        on_drafter = {"num_cpus": 1, **(drafter_on or {})}
        if not ray.is_initialized():
            ray.init()
        cpus = verifiers * on_verifier["num_cpus"] + drafters * on_drafter["num_cpus"]
        warn_of_few_cpus(ray, cpus)

        def start_verifier() -> Any:
            kind = ray.remote(Verifier).options(**on_verifier)
            return kind.remote(settings, guesses, patience)

        def start_drafter() -> Any:
            return ray.remote(Drafter).options(**on_drafter).remote(guesses, draft_load or {})

        verifier_staff = Staff(ray, "verifier", start_verifier, verifiers)
        drafter_staff = Staff(ray, "drafter", start_drafter, drafters)
        self.coordinator = Coordinator(ray, verifier_staff, drafter_staff, patience)
        self.engine.backend = self.coordinator
        try:
            ray.get([*verifier_staff.ready(), *drafter_staff.ready()])
        except ray.exceptions.RayError as error:
            self.close()
            fix = "see what it says, and what Ray has"
            raise ge.LoadError(f"a worker cannot start: {error}", fix=fix) from error

    def generate_text_batch(
        self,
        requests: Any,
        options: Any = None,
        **how: Any,
    ) -> list[ge.GenerationResult]:
        """What GenerationEngine.generate_text_batch takes and gives. Raises also EngineError: no
        verifier is left."""
        return self.engine.generate_text_batch(requests, options, **how)

    @contextlib.contextmanager
    def traced(
        self,
        directory: str | os.PathLike[str],
        kind: Any,
        first: int = 0,
    ) -> Iterator[None]:
        """Let each verifier write what it does inside the block, as worker `first`, first + 1, ...;
        and the moves.

        kind: the class `Trace` of the companion rollout.py, whose three files they are, with the
        times that drafters took, and idle: waited for drafts. Files are written where the verifier
        runs; one that was lost has none, one that was started in its place writes as its worker.
        moves.csv, written here: seconds, what moved (drafter, request, verifier), its number, from,
        to, why; requests are numbered as the call has them. No file is written if the block raises.
        """
        path = Path(directory).absolute()
        keep = False
        self.coordinator.begin_trace(Tracing(kind, str(path), first))
        try:
            yield
            keep = True
        finally:
            self.coordinator.end_trace(keep)
        part = path / ".moves.csv.part"
        with part.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([MOVES, *self.coordinator.moves])
        os.replace(part, path / "moves.csv")

    def close(self) -> None:
        """End all workers."""
        self.engine.close()

    def __exit__(self, *exc: object) -> None:
        self.close()
