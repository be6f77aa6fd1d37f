"""Taps on a vendored streaming.py: each answer of a stream is noted as a call of a model, where its
prompt was made, before its reader gets it. So its row is that of the batch verb.

The engine runs in a thread of its own, which may be older than the call of a site, and live longer:
what it was seen to do is copied to the calls whose answers it made.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.record.calls import ASKING, Call, Listener, ListenerTap
from parity.record.events import Event, Forward, Images, ModelCall, Params
from parity.record.patching import Invocation
from parity.record.taps.gen_engine import EngineReader, MadePrompt, field_of, listed_plugins

STREAMING = ("Feeder", "Visible")  # by which a copy of streaming.py is known


@dataclass(frozen=True, slots=True)
class StreamedPrompt:
    """A prompt that was made for a stream.

    plugins: as the caller gave them.   number: among those of its engine in this call.
    branch: of the call that it was made in."""

    engine: Any
    plugins: list[Any]
    made: MadePrompt
    number: int
    branch: Call


class Streamed(dict[int, StreamedPrompt]):
    """Prompts of streams that have no answer yet, by their identity."""


class Counted(Counter[Any]):
    """How many prompts a call has made with each maker of them."""


@dataclass(slots=True)
class Running:
    """A call of the backend in an engine's thread. mark: where its events begin."""

    mark: int = 0


def tap_stream_prompt(listener: Listener, call: Invocation) -> Any:
    """Where a request of a stream becomes a Prompt."""
    maker, request, plan = call.args
    mark = listener.mark()
    prompt = call.run()
    site = listener.thread.call
    if site is None:
        return prompt
    with listener.guarded("a prompt of a stream"), listener.lock:
        asked = prompt
        if field_of(request, "seed") is None and plan.options.seed is None:
            asked = dataclasses.replace(prompt, seed=None)  # one of the stream's own
        made = MadePrompt(request, asked, listener.events_since(mark))
        branch = Call(site.site, site.case, parent=site)
        site.branches.append((len(site.events), branch))
        counted = site.root.memory.of(Counted)
        plugins = next((given for kept, given in maker._plans.values() if kept is plan), ())
        number = counted[maker]
        streamed = StreamedPrompt(maker.engine, list(plugins), made, number, branch)
        counted[maker] += 1
        listener.memory.of(Streamed)[id(prompt)] = streamed
    return prompt


def tap_feed(listener: Listener, call: Invocation) -> None:
    """Works are given to an engine: the calls that they belong to last until they are answered."""
    feeder, works = call.args
    works = list(works)
    waiting = listener.memory.of(Streamed)
    asking = [waiting[id(work.prompt)] for work in works if id(work.prompt) in waiting]
    if listener.replay is not None:
        listener.replay.asks(feeder.engine)
    for one in asking:
        one.branch.depths[ASKING] = 1
    try:
        call.original(feeder, works)
    except BaseException:
        for one in asking:
            one.branch.depths[ASKING] = 0
        raise


def tap_answering(listener: Listener, call: Invocation) -> None:
    """One call of the backend in an engine's thread."""
    running = listener.thread.memory.of(Running)
    running.mark = listener.mark()
    with listener.inside("engine"):
        call.run()
    if not listener.in_site():  # nobody else needs what was noted meanwhile
        del listener.running().events[running.mark :]


def tap_answer(listener: Listener, call: Invocation) -> None:
    """What is new of an answer; with its result it is over."""
    work = call.args[0]
    result = call.arguments.get("result")
    streamed = None
    if result is not None:
        streamed = listener.memory.of(Streamed).pop(id(work.prompt), None)
    if streamed is not None:
        if hasattr(result, "finish_reason"):
            with listener.guarded("an answer of a stream"):
                note_answer(listener, streamed, work.plan, result)
        streamed.branch.depths[ASKING] = 0
    call.run()


def note_answer(listener: Listener, streamed: StreamedPrompt, plan: Any, result: Any) -> None:
    mark = listener.thread.memory.of(Running).mark
    below = [event for event in listener.events_since(mark) if is_of_answer(event, result)]
    given = {"options": plan.options, "plugins": streamed.plugins}
    prompts = {streamed.number: streamed.made}
    results = [None] * streamed.number + [result]
    events = [*streamed.made.events, *below]
    reader = EngineReader(streamed.engine, given, prompts, events, results)
    streamed.branch.events += [*below, reader.call()]


def is_of_answer(event: Event, result: Any) -> bool:
    """Whether an event of the engine's thread says something of this answer, or of all."""
    ids = tuple(result.prompt_token_ids)
    if isinstance(event, Params):
        return event.prompt_ids in ((), ids)
    if isinstance(event, Forward):
        return any(row.ids == ids for row in event.rows)
    return isinstance(event, (Images, ModelCall))


# == Counterfactual runs ==


def runs_natively(replay: Any, engine: Any, given: Mapping[str, Any]) -> bool:
    """Whether a replay changes nothing of what a stream asks, on an engine that can do it."""
    if replay is None:
        return True
    if replay.put_back:
        return False
    options = given.get("options")
    logits = None if options is None else field_of(options, "logits")
    hooked = replay.needs_hook({"logits": logits}, listed_plugins(given.get("plugins")))
    return replay.engine(engine, hooked=hooked) is engine


def batch_results(
    engine: Any, requests: Sequence[Any], options: Any, how: Mapping[str, Any]
) -> list[Any]:
    """What the batch verbs give, in order; requests with images and without are two calls."""
    with_images = list[int]()
    without = list[int]()
    contracts = sys.modules[type(engine).__module__]
    for place, one in enumerate(requests):
        request = contracts.build(contracts.VlmGenerationRequest, one)
        if contracts.holds_images(request):
            with_images.append(place)
        else:
            without.append(place)
    answers = list[Any](requests)
    verbs = ((without, engine.generate_text_batch), (with_images, engine.generate_vlm_batch))
    for places, verb in verbs:
        if places:
            results = verb([requests[place] for place in places], options, **how)
            for place, result in zip(places, results):
                answers[place] = result
    return answers


def tap_stream(listener: Listener, call: Invocation) -> Any:
    """`stream`: where a replay changes what is asked, its answers are those of the batch verb,
    which gives the same."""
    given = call.arguments
    engine = given["engine"]
    if runs_natively(listener.replay, engine, given):
        return call.run()
    module = sys.modules[call.original.__module__]
    names = ("plugins", "on_error")
    how: dict[str, Any] = {name: given[name] for name in names if name in given}
    results = batch_results(engine, list(given["requests"]), given.get("options"), how)
    return pieces(module, results)


def pieces(module: Any, results: Sequence[Any]) -> Iterator[Any]:
    for index, result in enumerate(results):
        text = getattr(result, "text", "")
        ids = getattr(result, "token_ids", ())
        yield module.Piece(index, text, ids, result)


def tap_submit(listener: Listener, call: Invocation) -> Any:
    """`Live.submit`, likewise."""
    live, request, *_ = call.args
    engine = live._plans.engine
    if runs_natively(listener.replay, engine, call.arguments):
        return call.run()
    return submitted(call, engine, request)


async def submitted(call: Invocation, engine: Any, request: Any) -> Any:
    given = call.arguments
    module = sys.modules[call.original.__module__]
    how = {"plugins": given.get("plugins", ())}
    [result] = batch_results(engine, [request], given.get("options"), how)
    work = module.Work(0, None, None, lambda over: None)
    work.text = result.text
    work.token_ids = result.token_ids
    work.result = result
    return module.Answer(work, module.asyncio.Event())


STREAMING_TAPS: dict[str, ListenerTap] = {
    "stream": tap_stream,
    "Live.submit": tap_submit,
    "Plans.prompt": tap_stream_prompt,
    "Feeder.add": tap_feed,
    "Feeder._answer": tap_answering,
    "Work.add": tap_answer,
}
