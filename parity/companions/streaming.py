# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Answers as they come, in a loop or from asyncio: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="streaming"`, and

    for index, text, token_ids, result in stream(engine, requests, options):
        print(text, end="", flush=True)

    async with Live(engine) as live:
        answer = await live.submit({"messages": chat}, options)
        async for index, text, token_ids, result in answer: ...
        await live.update_weights(state_dict, version="step 2", timeout=30)

The engine runs in a thread of its own and never waits for a reader: what was not read yet becomes
one longer piece. The texts of an answer joined are `result.text`, and its results are those of the
batch verbs.

    Work --Feeder: backend.complete--> Feed.stepped --Shown--> Work.add; Work.take --> Piece
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Answer", "Live", "Piece", "Visible", "stream"]

Request = ge.TextGenerationRequest | Mapping[str, Any]
Options = ge.GenerationOptions | Mapping[str, Any] | None


class Closed(ge.EngineError):
    """The stream was closed before the answer was whole."""


def closed_error() -> Closed:
    return Closed("the stream was closed", fix="open another one")


# == Text that may be shown: no stop, no half character ==

BROKEN = "\ufffd"  # what bytes of an unfinished character are decoded to
WINDOW = 24  # tokens that are decoded again at each step
OVERLAP = 6  # of them, those that the next window begins with
CLEANED = 8  # characters, the last of a text, that clean_up_tokenization_spaces may still change


def could_begin(text: str, stops: Iterable[str]) -> int:
    """How many characters at the end of a text may be the beginning of a stop string."""
    most = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), most, -1):
            if text.endswith(stop[:length]):
                most = length
                break
    return most


class Visible:
    """The text of a row that runs, as far as it will surely be in its result.

    A window of its last tokens is decoded at each step; what stands before it is decoded."""

    def __init__(self, plan: ge.Plan) -> None:
        self.plan = plan
        self.restart()

    def restart(self) -> None:
        """Forget the text: the row begins anew."""
        self._fixed = ""  # the text of all tokens but the window's new ones
        self._start = 0  # of the window
        self._known = 0  # characters of the window's text that are in `_fixed`

    def text(self, ids: Sequence[int]) -> str:
        """What may be shown of the text of these ids, the row's so far."""
        how = self.plan.options.decode
        window = self.plan.decode(ids[self._start :])
        text = self._fixed + window[self._known :]
        if len(ids) - self._start > WINDOW and not how.clean_up_tokenization_spaces:
            self._slide(ids, text)
        return self._without_open_end(text)

    def _slide(self, ids: Sequence[int], text: str) -> None:
        """Begin the window later, where that gives the same text."""
        start = len(ids) - OVERLAP
        begun = self.plan.decode(ids[start:])
        if begun and text.endswith(begun) and not text.endswith(BROKEN):
            self._fixed = text
            self._start = start
            self._known = len(begun)

    def _without_open_end(self, text: str) -> str:
        options = self.plan.options
        if any(plugin.post_decode for plugin in self.plan.plugins):
            return ""  # which may rewrite all of it at the end
        text = text.rstrip(BROKEN)
        if options.decode.clean_up_tokenization_spaces:
            text = text[:-CLEANED]
        text = text[: len(text) - could_begin(text, options.stop.strings)]
        return text.strip() if options.decode.strip else text


# == One answer: what the engine's thread puts in, a reader takes out ==


class Piece(NamedTuple):
    """What is new of an answer.

    index: the request's position.   text, token_ids: new since the piece before.
    result: with the last piece; with on_error="return" it may be the request's error."""

    index: int  # type: ignore[assignment]  # in place of tuple.index
    text: str
    token_ids: tuple[int, ...]
    result: ge.GenerationResult | ge.GenEngineError | None = None


@dataclass(eq=False)
class Work:
    """One prompt on its way, and what of its answer nobody has read yet.

    wake: called in the engine's thread when there is something to read, with whether it is over.
    cancelled: nobody will read it.   aborted: it ends with what there is."""

    index: int
    prompt: ge.Prompt
    plan: ge.Plan
    wake: Callable[[bool], None]
    cancelled: bool = False
    aborted: bool = False
    text: str = ""
    token_ids: tuple[int, ...] = ()
    result: ge.GenerationResult | ge.GenEngineError | None = None
    lock: Any = field(default_factory=threading.Lock)

    def add(self, text: str, token_ids: tuple[int, ...], result: Any = None) -> None:
        with self.lock:
            self.text += text
            self.token_ids += token_ids
            self.result = result
        self.wake(result is not None)

    def fail(self, error: ge.GenEngineError) -> None:
        """End with an error, of which each work gets its own."""
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        self.add("", (), own)

    def take(self) -> Piece | None:
        """All that is new, or None."""
        with self.lock:
            if not self.text and not self.token_ids and self.result is None:
                return None
            piece = Piece(self.index, self.text, self.token_ids, self.result)
            self.text = ""
            self.token_ids = ()
            self.result = None
            return piece


class Shown:
    """What a reader has been given of a work that runs.

    ids, text: all of it so far."""

    def __init__(self, work: Work, watch: ge.RowWatch) -> None:
        self.work = work
        self.watch = watch
        self.visible = Visible(work.plan)
        self.ids: tuple[int, ...] = ()
        self.text = ""
        self.restarted = False

    def step(self) -> None:
        """Give the reader what the latest step added."""
        watch = self.watch
        if watch.over:  # the rest comes with the result
            return
        if self.work.cancelled:
            watch.fail(closed_error())
            return
        if self.work.aborted:
            watch.abort()
            return
        count = len(self.ids)
        if len(watch.ids) <= count:  # begun anew, and not there yet
            return
        text = self.visible.text(watch.ids)
        if not self._goes_on(watch.ids, text):
            watch.fail(self._other_beginning())
            return
        self._add(tuple(watch.ids[count:]), text[len(self.text) :])

    def _goes_on(self, ids: Sequence[int], text: str) -> bool:
        """Whether these ids and this text go on from what has been given. A row that began anew may
        take another way at a near tie."""
        same_ids = not self.restarted or tuple(ids[: len(self.ids)]) == self.ids
        return same_ids and text.startswith(self.text)

    def _other_beginning(self) -> ge.EngineError:
        problem = "the answer begins otherwise than what was shown of it"
        if self.restarted:
            problem += ": it was begun anew after memory ran out"
        return ge.EngineError(problem, fix="use generate_text_batch, or a smaller batch")

    def _add(self, ids: tuple[int, ...], text: str, result: Any = None) -> None:
        self.ids += ids
        self.text += text
        self.work.add(text, ids, result)

    def end(self, result: ge.GenerationResult) -> None:
        """Give the reader the rest and the result."""
        if not self._goes_on(result.token_ids, result.text):
            raise self._other_beginning()
        rest = result.token_ids[len(self.ids) :]
        self._add(rest, result.text[len(self.text) :], result)


# == The engine's thread ==


class Feed(ge.Observer):
    """Follows the rows of one call, and passes on what the engine's own observer sees.

    handed: works that were given to the backend and have not arrived yet, in order.
    begun: whether any has arrived."""

    def __init__(self, feeder: Feeder, other: ge.Observer) -> None:
        self.feeder = feeder
        self.other = other
        self.handed: deque[Work] = deque()
        self.begun = False
        self.running: dict[int, Shown] = {}  # by the position in the call
        self._places = itertools.count()

    def plan_of(self, prompt: ge.Prompt) -> ge.Plan:
        """The plan of a prompt that was handed over."""
        return next(work.plan for work in self.handed if work.prompt is prompt)

    def arrived(self, backend: str, rows: Sequence[ge.RowWatch]) -> None:
        self.begun = True
        for watch in rows:
            self.running[next(self._places)] = Shown(self.handed.popleft(), watch)
        self.other.arrived(backend, rows)

    def stepped(self) -> None:
        if self.feeder.closed:
            raise closed_error()
        for shown in self.running.values():
            shown.work.aborted |= self.feeder.aborting
            shown.step()
        self.other.stepped()

    def restarted(self, rows: Iterable[ge.RowWatch]) -> None:
        watches = list(rows)
        for shown in self.running.values():
            if shown.watch in watches:
                shown.restarted = True
                shown.visible.restart()
        self.other.restarted(watches)

    def timed(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self.other.timed(what)

    def done(self, place: int, completion: ge.Completion) -> None:
        """A row is over: its reader gets the result, or the error."""
        shown = self.running.pop(place)
        work = shown.work
        try:
            result = self._finish(work, completion)
            shown.end(result)
        except ge.GenEngineError as error:
            work.fail(error)
            self.other.answered([work.prompt], [error])
        else:
            self.other.answered([work.prompt], [result])

    def _finish(self, work: Work, completion: ge.Completion) -> ge.GenerationResult:
        engine = self.feeder.engine
        how = {
            "fallback_from": engine.fallback_from,
            "weight_version": engine.weight_version,
        }
        return ge.finish(completion, work.prompt, work.plan, engine.backend.name, **how)

    def fail(self, error: ge.GenEngineError) -> None:
        """Nothing more comes: all that was handed over fails."""
        for work in [*(shown.work for shown in self.running.values()), *self.handed]:
            work.fail(error)


Lane = tuple[Any, ...]  # what works of one call of the backend have in common
UPDATE_POLL = 0.005  # seconds, between two looks whether new weights are in the engine


class Feeder:
    """A thread that keeps the engine running while there is work. Works join those that run, on hf
    such as have the same options; others wait until these are over. While new weights wait for the
    engine, none join.

    closed: no more is done; what runs is dropped at its next step.   paused: what waits is not
    begun.   aborting: what runs ends with what there is.   busy: the engine runs."""

    def __init__(self, engine: ge.GenerationEngine) -> None:
        self.engine = engine
        self.closed = False
        self.paused = False
        self.aborting = False
        self.busy = False
        self._lanes: dict[Lane, deque[Work]] = {}  # the first one is next
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="gen_engine stream", daemon=True)
        self._thread.start()

    def add(self, works: Iterable[Work]) -> None:
        """Give it works to do. Raises Closed."""
        with self._changed:
            if self.closed:
                raise closed_error()
            for work in works:
                self._lanes.setdefault(self._lane(work), deque()).append(work)
            self._changed.notify_all()

    def pause(self, *, abort: bool, timeout: float | None) -> None:
        """Begin nothing more, and wait until nothing runs. Raises EngineError where that takes
        longer than `timeout` seconds; then all goes on."""
        with self._changed:
            self.paused = True
            self.aborting = abort
            is_idle = self._changed.wait_for(lambda: not self.busy, timeout)
            self.aborting = False
            if is_idle:
                return
        self.resume()
        fix = "wait longer, or end them with abort=True"
        raise ge.EngineError(f"requests still run after {timeout} s", fix=fix)

    def resume(self) -> None:
        """Begin what waits."""
        with self._changed:
            self.paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Drop all work, and wait until the engine is free."""
        with self._changed:
            self.closed = True
            left = list(itertools.chain.from_iterable(self._lanes.values()))
            self._lanes.clear()
            self._changed.notify_all()
        for work in left:
            work.fail(closed_error())
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _lane(self, work: Work) -> Lane:
        prompt = work.prompt
        if self.engine.backend.name == "vllm":  # which mixes them
            return ()
        return work.plan, prompt.adapter, bool(prompt.images)

    def _run(self) -> None:
        while True:
            with self._changed:
                self.busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.closed or (self._lanes and not self.paused))
                if self.closed:
                    return
                if self.engine.updates_waiting:
                    self._changed.wait(UPDATE_POLL)
                    continue
                self.busy = True
                lane, works = next(iter(self._lanes.items()))
                plan = works[0].plan
            self._answer(lane, plan)

    def _joining(self, lane: Lane, feed: Feed) -> list[ge.Prompt]:
        """The prompts that join the call of a lane: all there are, unless others wait for the
        engine."""
        with self._changed:
            is_waited_for = self.paused or self.engine.updates_waiting
            if feed.begun and (is_waited_for or self._lanes.keys() - {lane}):
                return []
            works = self._lanes.pop(lane, ())
        new = []
        for work in works:
            if work.cancelled or work.aborted:
                work.fail(closed_error())
            else:
                new.append(work)
        feed.handed.extend(new)
        return [work.prompt for work in new]

    def _answer(self, lane: Lane, plan: ge.Plan) -> None:
        """One call of the backend, which other work of the lane joins."""
        feed = Feed(self, self.engine.observer)
        more = functools.partial(self._joining, lane, feed)
        plan_of = feed.plan_of if self.engine.backend.name == "vllm" else None
        call = ge.Call(plan, feed.done, feed, more, plan_of)
        try:
            with ge.wrapping_errors(ge.EngineError, "the engine failed", "see the cause"):
                prompts = more()
                if prompts:
                    with self.engine.bare(read_only=True):
                        self.engine.backend.complete(prompts, call)
        except ge.GenEngineError as error:
            feed.fail(error)


# == Requests ==


def check_options(options: ge.GenerationOptions) -> None:
    """Raise OptionError for what has no stream."""
    if options.n > 1:
        fix = "give each sample as a request of its own, with its seed"
        raise ge.OptionError(f"n is {options.n} in a stream", fix=fix)
    if options.replay is not None:
        raise ge.OptionError("replay in a stream", fix="use generate_text_batch")


MOST_PLANS = 64  # that are kept


class Plans:
    """Plans of an engine by their options and plugins: equal ones share a call."""

    def __init__(self, engine: ge.GenerationEngine) -> None:
        self.engine = engine
        self._plans: dict[Any, tuple[ge.Plan, Sequence[Any]]] = {}

    def of(self, options: Options, plugins: Sequence[Any]) -> ge.Plan:
        """The plan. Raises OptionError."""
        own = ge.build(ge.GenerationOptions, options)
        key = own, *map(id, plugins)
        if key not in self._plans:
            check_options(own)
            adopted = ge.adopt_plugins(plugins)
            plan = ge.make_plan(own, self.engine.checkpoint, adopted)
            while len(self._plans) >= MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan, plugins  # kept, so that their ids stay theirs
        return self._plans[key][0]

    def prompt(self, source: Request, plan: ge.Plan) -> ge.Prompt:
        """A prompt that this engine can answer. Raises GenEngineError.

        Its seed is fixed: after memory ran out, a row that begins anew gives the same sample."""
        request = ge.build(ge.VlmGenerationRequest, source)
        pictures = ge.holds_images(request)
        if pictures:
            _ = self.engine.checkpoint.vision  # or an UnsupportedError
        prompt = ge.prompt_of(request, plan)
        asked = ge.Asked(
            self.engine.config, plan.options, plan.plugins, pictures=pictures, prompts=[prompt]
        )
        refused = ge.refusal_of(asked)
        if refused is not None:
            raise refused
        if plan.options.temperature and prompt.seed is None:
            prompt = dataclasses.replace(prompt, seed=prompt.sampling_seed())
        return prompt


# == A loop over answers ==


def stream(
    engine: ge.GenerationEngine,
    requests: Iterable[Request],
    options: Options = None,
    *,
    plugins: Sequence[Any] = (),
    on_error: Literal["raise", "return"] = "raise",
) -> Generator[Piece, None, None]:
    """Pieces of the answers to requests, with or without images, as they come.

    requests, options, plugins: as for the batch verbs; n is 1. Everything is checked here, before
    anything runs. The engine's cache is not read. Where a plugin has a post_decode, the text comes
    with the result.
    on_error: "return" gives the error of a bad request as the result of its piece; "raise" raises
    the first one, with its index.
    `close()` drops what runs; so does a `break`, as soon as nothing refers to the iterator."""
    if on_error not in ("raise", "return"):
        fix = ge.did_you_mean(on_error, ("raise", "return"))
        raise ge.OptionError(f"no on_error {on_error!r}", fix=fix)
    plans = Plans(engine)
    plan = plans.of(options, plugins)
    ready = threading.Event()
    answers = list[Any](requests)
    errors = answers if on_error == "return" else None
    works = {}
    for index, source in enumerate(answers):
        with ge.at_request(index, errors):
            prompt = plans.prompt(source, plan)
            works[index] = Work(index, prompt, plan, lambda over: ready.set())
    failed = [Piece(k, "", (), answers[k]) for k in range(len(answers)) if k not in works]
    return read_all(engine, failed, works, ready, on_error)


def read_all(
    engine: ge.GenerationEngine,
    failed: Sequence[Piece],
    works: Mapping[int, Work],
    ready: threading.Event,
    on_error: str,
) -> Generator[Piece, None, None]:
    """The pieces of these works until all of them are over."""
    yield from failed
    left = dict(works)
    with contextlib.closing(Feeder(engine)) as feeder:
        feeder.add(works.values())
        while left:
            ready.wait()
            ready.clear()
            for index, work in list(left.items()):
                piece = work.take()
                if piece is None:
                    continue
                if piece.result is not None:
                    del left[index]
                if isinstance(piece.result, ge.GenEngineError) and on_error == "raise":
                    with ge.at_request(index):
                        raise piece.result
                yield piece


# == asyncio ==


class Answer(AsyncIterator[Piece]):
    """The answer to a request that was submitted: iterate over its pieces, or wait for `result`.

    Its row is freed by `cancel`, when a task that reads it is cancelled, and when nothing refers to
    it any more."""

    def __init__(self, work: Work, ready: asyncio.Event) -> None:
        self.work = work
        self._ready = ready
        self._is_read = False

    def cancel(self) -> None:
        """Free the row after the step that runs. Who reads on gets an EngineError."""
        self.work.cancelled = True

    def abort(self) -> None:
        """End the answer after the step that runs: its result has what there is, with the
        finish_reason "abort". Of one that has not begun, who reads on gets an EngineError."""
        self.work.aborted = True

    def __del__(self) -> None:
        self.cancel()

    async def __anext__(self) -> Piece:
        try:
            while not self._is_read:
                self._ready.clear()
                piece = self.work.take()
                if piece is not None:
                    return self._checked(piece)
                await self._ready.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        raise StopAsyncIteration

    def _checked(self, piece: Piece) -> Piece:
        self._is_read = piece.result is not None
        if isinstance(piece.result, ge.GenEngineError):
            raise piece.result
        return piece

    async def result(self) -> ge.GenerationResult:
        """The whole answer. Raises the request's error."""
        async for piece in self:
            if isinstance(piece.result, ge.GenerationResult):
                return piece.result
        fix = "keep the result of its last piece"
        raise ge.EngineError("the answer was read to its end already", fix=fix)


MOST_IN_WORK = 256


class Live:
    """An engine for asyncio code: `async with Live(engine) as live`, in the loop that uses it.

    On vllm requests join those that run, whatever their options; on hf those with the same options,
    plugins and adapter, and others wait until these are over. Leaving the block drops all that
    runs. The engine stays loaded.

    No answer spans two versions of the weights: `engine.update_weights` in another thread waits
    until what runs is over, and no request begins before it; `update_weights` here waits no longer
    than `timeout`.
    most: requests in work at a time, >= 1; `submit` waits for its turn. Default 256."""

    def __init__(self, engine: ge.GenerationEngine, *, most: int = MOST_IN_WORK) -> None:
        if type(most) is not int or most < 1:
            raise ge.OptionError(f"most is {most!r}", fix="it must be a whole number >= 1")
        self._plans = Plans(engine)
        self._feeder = Feeder(engine)
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Semaphore(most)
        self._indices = itertools.count()
        self._preparing = threading.Lock()

    async def __aenter__(self) -> Live:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._feeder.close)

    async def submit(
        self, request: Request, options: Options = None, *, plugins: Sequence[Any] = ()
    ) -> Answer:
        """The answer to a request, which begins to run. Raises GenEngineError for a request that
        cannot be served."""
        await self._turns.acquire()
        try:
            plan, prompt = await asyncio.to_thread(self._prepare, request, options, plugins)
            ready = asyncio.Event()
            wake = functools.partial(self._wake, ready)
            work = Work(next(self._indices), prompt, plan, wake)
            self._feeder.add([work])
        except BaseException:
            self._turns.release()
            raise
        return Answer(work, ready)

    async def pause(self, *, abort: bool = False, timeout: float | None = None) -> None:
        """Begin nothing more, and wait until nothing runs; `submit` still takes requests.

        abort: end what runs after this step: results have what there is, with the finish_reason
            "abort". Default False: wait until all of it is over.
        timeout: seconds to wait; after them all goes on, and EngineError is raised. Default None:
            as long as it takes."""
        await asyncio.to_thread(self._feeder.pause, abort=abort, timeout=timeout)

    def resume(self) -> None:
        """Begin what waits after `pause`."""
        self._feeder.resume()

    async def update_weights(
        self,
        weights: Any,
        *,
        version: str | None = None,
        abort: bool = False,
        timeout: float | None = None,
    ) -> None:
        """`pause`, the engine's `update_weights`, `resume`. Raises what they raise; requests go on
        in any case."""
        await self.pause(abort=abort, timeout=timeout)
        try:
            update = functools.partial(self._feeder.engine.update_weights, version=version)
            await asyncio.to_thread(update, weights)
        finally:
            self.resume()

    def _prepare(
        self, request: Request, options: Options, plugins: Sequence[Any]
    ) -> tuple[ge.Plan, ge.Prompt]:
        with self._preparing:
            plan = self._plans.of(options, plugins)
            return plan, self._plans.prompt(request, plan)

    def _wake(self, ready: asyncio.Event, over: bool) -> None:
        """In the engine's thread: let the loop look at an answer."""
        with contextlib.suppress(RuntimeError):  # the loop was closed, nobody reads any more
            self._loop.call_soon_threadsafe(ready.set)
            if over:
                self._loop.call_soon_threadsafe(self._turns.release)
