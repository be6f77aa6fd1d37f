"""Streams: the results of the batch verbs, text that is never taken back, rows that are freed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gen_engine import (
    EngineError,
    GenEngineError,
    GenerationEngine,
    GenerationOptions,
    GenerationResult,
    Observer,
    OptionError,
    Plan,
    RowWatch,
    UnsupportedError,
    finish,
    load,
    make_plan,
)
from parity.companions.streaming import Answer, Live, Piece, Visible, could_begin, stream
from parity.models.tasks import drawing, text_tasks

from ..conftest import PROMPT, ROOT, TEXT, Load, chat, of_task, open_engine

COUNTS = [chat(f"Count to {n}.") for n in (5, 16, 12)]
OPTIONS: list[dict[str, Any]] = [
    {"max_new_tokens": 40},
    {"max_new_tokens": 200, "stop": [", 15", "5.", ", 1"], "min_new_tokens": 20},
    {"max_new_tokens": 60, "stop": {"strings": ["10"], "include_stop": True}, "decode": {"strip": True}},
    {"max_new_tokens": 30, "temperature": 1.5, "seed": 3, "logprobs": 1},
    {"max_new_tokens": 30, "decode": {"skip_special_tokens": False, "clean_up_tokenization_spaces": True}},
]


@pytest.fixture(autouse=True)
def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each token of an engine's thread, whoever reads the stream has its turn, however busy the machine is:
    what waits together comes as one piece."""
    push = RowWatch.push

    def paused(watch: RowWatch, token: int) -> bool:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.001)
        return push(watch, token)

    monkeypatch.setattr(RowWatch, "push", paused)


def joined(pieces: Sequence[Piece]) -> dict[int, tuple[str, tuple[int, ...], Any]]:
    """The text, ids and result of each answer of a stream."""
    answers: dict[int, tuple[str, tuple[int, ...], Any]] = {}
    for index, text, ids, result in pieces:
        old = answers.get(index, ("", (), None))
        assert old[2] is None, "a piece after the result"
        answers[index] = (old[0] + text, old[1] + ids, result)
    return answers


def check(pieces: Sequence[Piece], expected: Sequence[GenerationResult]) -> None:
    """The pieces are those of these answers, some of which came in several."""
    answers = joined(pieces)
    assert len(pieces) > len(expected)
    for index, result in enumerate(expected):
        assert answers[index] == (result.text, result.token_ids, result)


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_a_stream_gives_the_batch_verbs_results(text: GenerationEngine, options: dict[str, Any]) -> None:
    check(list(stream(text, COUNTS, options)), text.generate_text_batch(COUNTS, options))


def test_tools_and_structures_stream(text: GenerationEngine) -> None:
    requests = [of_task(task) for task in text_tasks(12)]
    requests.append(chat("Hi", structured={"regex": "[a-c]{30}"}))
    check(list(stream(text, requests)), text.generate_text_batch(requests))


def test_images_stream(vl: GenerationEngine) -> None:
    requests = []
    for color in ("red", "blue"):
        content = [{"type": "image", "image": drawing(color, "circle")}, {"type": "text", "text": "What do you see?"}]
        requests.append({"messages": [{"role": "user", "content": content}]})
    check(list(stream(vl, requests)), vl.generate_vlm_batch(requests))
    check(list(stream(vl, COUNTS[:1])), vl.generate_text_batch(COUNTS[:1]))


@functools.cache
def plan_of(model: str, stops: tuple[str, ...], clean: bool = False) -> Plan:
    checkpoint = load(ROOT / "golden/models" / model, backend="hf").checkpoint
    decode = {"clean_up_tokenization_spaces": clean}
    options = GenerationOptions(max_new_tokens=500, stop=stops, decode=decode)  # type: ignore[arg-type]
    return make_plan(options, checkpoint)


SAID = [" ", "é", "日", "🙂", "a b ", "do n't", " .", " , x", "\n", "1, 2", "<|im_end|>", "\ufffd", "ab", "abc"]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["tiny-qwen3", "random-llama", "random-mistral", "random-gpt2"]),
    st.lists(st.sampled_from(SAID), min_size=1, max_size=30).map("".join),
    st.lists(st.integers(3, 400), max_size=60),
    st.sampled_from([(), ("abcd", "b 日"), ("🙂🙂",), ("1, 23", "x")]),
    st.booleans(),
)
def test_what_is_shown_is_never_taken_back(
    model: str, said: str, noise: list[int], stops: tuple[str, ...], clean: bool
) -> None:
    plan = plan_of(model, stops, clean)
    encoded = plan.checkpoint.tokenizer(said, add_special_tokens=False)["input_ids"]
    ids = [i for i in [*encoded, *noise, *encoded] if i < plan.checkpoint.vocabulary and i not in plan.end_ids]
    watch, visible, shown = RowWatch(plan, PROMPT), Visible(plan), ""
    for token in ids[:499]:
        if watch.push(token):
            break
        text = visible.text(watch.ids)
        assert text.startswith(shown) and not any(stop in text for stop in stops)
        shown = text
    if not watch.over:
        assert plan.decode(watch.ids).startswith(shown)
        assert not clean or len(plan.decode(watch.ids)) - len(shown) < 40
        return
    assert finish(watch.completion(()), PROMPT, plan, "hf").text.startswith(shown)


@pytest.mark.parametrize(("text_", "held"), [("", 0), ("xa", 1), ("xab", 2), ("xb", 0), ("ab", 2), ("xabca", 1)])
def test_could_begin_finds_the_longest_beginning_of_a_stop(text_: str, held: int) -> None:
    assert could_begin(text_, ["abd", "ay", "abz"]) == held


def test_a_plugin_that_rewrites_the_text_shows_it_at_the_end(text: GenerationEngine) -> None:
    class Upper:
        def post_decode(self, text: str) -> str:
            return text.replace("1", "one")

    pieces = list(stream(text, COUNTS[:1], plugins=[Upper()]))
    check(pieces, text.generate_text_batch(COUNTS[:1], plugins=[Upper()]))
    assert {piece.text for piece in pieces[:-1]} == {""} and len(pieces) > 3


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "options", "error", "problem"),
    [
        (COUNTS, {"n": 2}, OptionError, "n is 2 in a stream"),
        (COUNTS, {"replay": [[1]] * 3}, OptionError, "replay in a stream. Use generate_text_batch"),
        (COUNTS, {"stopp": 1}, OptionError, "did you mean 'stop'"),
        ([COUNTS[0], {"promt": ""}], None, OptionError, "request 1: VlmGenerationRequest has no field 'promt'"),
        ([{"prompt": "x", "images": [drawing("red", "circle")]}], None, UnsupportedError, "text-only"),
    ],
)  # fmt: skip
def test_a_bad_call_is_refused_before_anything_runs(
    text: GenerationEngine, requests: Any, options: Any, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=f"(?i){problem}"):
        stream(text, requests, options)


class Fails:
    """A plugin that fails in the row whose answer contains a text."""

    name = "fails"

    def __init__(self, word: str) -> None:
        self.word = word

    def should_stop(self, ids: Sequence[int], text: str) -> bool:
        if self.word in text:
            raise ValueError(self.word)
        return False


def test_an_error_of_a_row_is_raised_with_its_index_or_returned(text: GenerationEngine) -> None:
    with pytest.raises(OptionError, match="request 1: plugin 'fails': should_stop raised ValueError"):
        list(stream(text, COUNTS, plugins=[Fails("15")]))
    answers = joined(list(stream(text, [*COUNTS, {"promt": ""}], plugins=[Fails("15")], on_error="return")))
    good = text.generate_text_batch([COUNTS[0], COUNTS[2]])
    assert [answers[k][2] for k in (0, 2)] == good
    assert isinstance(answers[1][2], OptionError) and isinstance(answers[3][2], OptionError)
    with pytest.raises(OptionError, match="no on_error 'retrun'. Did you mean 'return'?"):
        stream(text, COUNTS, on_error="retrun")  # type: ignore[arg-type]


def test_a_closed_engine_is_an_error_of_the_stream(shared: Load) -> None:
    engine = load(TEXT)
    pieces = stream(engine, COUNTS)
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        next(pieces)


def test_a_row_that_begins_anew_goes_on_where_it_was_shown(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf")
    options = {"temperature": 1.2, "max_new_tokens": 30}  # without a seed
    forward, calls = engine.model.forward, 0

    @functools.wraps(forward)
    def short(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise RuntimeError("CUDA out of memory")
        return forward(*args, **named)

    monkeypatch.setattr(engine.model, "forward", short)
    pieces = list(stream(engine, COUNTS, options))
    assert calls > 12
    for text, ids, result in joined(pieces).values():
        assert (text, ids) == (result.text, result.token_ids)


def test_a_row_that_begins_anew_with_other_ids_of_the_same_text_is_an_error(
    shared: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were shown are not those of its result."""
    engine = shared(TEXT, "hf")
    forward, step, is_anew = engine.model.forward, 0, False
    script = engine.tokenizer.encode(", ".join(map(str, range(1, 20))))
    hidden = engine.tokenizer.convert_tokens_to_ids("<|vision_start|>")

    @functools.wraps(forward)
    def scripted(*args: Any, **named: Any) -> Any:
        nonlocal step, is_anew
        step = 0 if named["input_ids"].shape[1] > 1 else step + 1
        if step == 10 and not is_anew:
            is_anew = True
            raise RuntimeError("CUDA out of memory")
        outputs = forward(*args, **named)
        answer = [hidden, *script] if is_anew else script
        outputs.logits[:, -1, answer[step]] = 1000.0
        return outputs

    monkeypatch.setattr(engine.model, "forward", scripted)
    with pytest.raises(EngineError, match="begins otherwise than what was shown.*begun anew after memory ran out"):
        list(stream(engine, COUNTS[1:], {"max_new_tokens": 20}))


# -- readers -----------------------------------------------------------------------------------------------------------


def is_idle(engine: GenerationEngine) -> bool:
    """No row is left, and no thread of a stream."""
    names = [thread.name for thread in threading.enumerate()]
    rows = [] if engine.backend.name == "hf" else engine.model.llm_engine.output_processor.request_states
    return "gen_engine stream" not in names and not rows


LONG = {"max_new_tokens": 900, "stop": {"ignore_eos": True}}


def test_a_stream_that_is_closed_early_frees_the_engine(text: GenerationEngine) -> None:
    expected = text.generate_text_batch(COUNTS)
    begun = time.monotonic()
    pieces = stream(text, COUNTS, LONG)
    assert next(pieces).result is None
    pieces.close()
    assert is_idle(text)
    for _ in stream(text, COUNTS, LONG):
        break
    assert is_idle(text)
    stream(text, COUNTS, LONG)  # that is never read
    assert is_idle(text)
    whole = len(list(stream(text, COUNTS, {**LONG, "max_new_tokens": 60})))
    assert whole and time.monotonic() - begun < 60
    assert text.generate_text_batch(COUNTS) == expected


def test_an_exception_of_the_reader_frees_the_engine(text: GenerationEngine) -> None:
    with pytest.raises(ZeroDivisionError), contextlib.closing(stream(text, COUNTS, LONG)) as pieces:
        for _ in pieces:
            raise ZeroDivisionError
    assert is_idle(text)


def test_a_reader_may_call_the_engine_and_draw_numbers(text: GenerationEngine) -> None:
    random.seed(7)
    expected_numbers = [random.random() for _ in range(200)]
    random.seed(7)
    expected = text.generate_text_batch(COUNTS)
    numbers = []
    for piece in stream(text, COUNTS):
        numbers.append(random.random())
        if piece.result is not None and piece.index == 0:
            assert text.generate_text_batch(COUNTS) == expected
    numbers += [random.random() for _ in range(200 - len(numbers))]
    assert numbers == expected_numbers


def test_two_streams_at_once_are_right(text: GenerationEngine) -> None:
    expected = text.generate_text_batch(COUNTS)
    pieces: dict[int, list[Piece]] = {}
    threads = [threading.Thread(target=lambda k=k: pieces.update({k: list(stream(text, COUNTS))})) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(pieces[0], expected)
    check(pieces[1], expected)


INTERRUPTED = """
import signal, sys
from gen_engine import load
from parity.companions.streaming import stream
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
engine = load(sys.argv[1])
chats = [{"messages": [{"role": "user", "content": "Count to 30."}]}]
try:
    for _ in stream(engine, chats, {"max_new_tokens": 1900, "stop": {"ignore_eos": True}}):
        print("piece", flush=True)
except KeyboardInterrupt:
    print(engine.generate_text_batch(chats, {"max_new_tokens": 8})[0].text, flush=True)
"""


@pytest.mark.usefixtures("forked_python")
def test_ctrl_c_ends_the_loop_and_the_engine_goes_on() -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(TEXT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "piece\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert rest.splitlines()[-1] == "1, 2, 3," and process.returncode == 0, errors


def test_the_engines_own_observer_sees_a_stream(text: GenerationEngine) -> None:
    class Counts(Observer):
        rows = steps = 0
        results: tuple[Any, ...] = ()

        def arrived(self, backend: str, rows: Sequence[RowWatch]) -> None:
            self.rows += len(rows)

        def stepped(self) -> None:
            self.steps += 1

        def answered(self, prompts: Sequence[Any], results: Sequence[Any]) -> None:
            self.results += tuple(results)

    counts = Counts()
    with text.observed(counts):
        answers = joined(list(stream(text, COUNTS)))
    assert counts.rows == 3 and counts.steps >= 50
    assert set(map(id, counts.results)) == {id(result) for _, _, result in answers.values()}


# -- asyncio -----------------------------------------------------------------------------------------------------------


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 120))


async def read(answer: Answer) -> list[Piece]:
    return [piece async for piece in answer]


def test_answers_that_are_submitted_are_the_batch_verbs(text: GenerationEngine) -> None:
    expected = text.generate_text_batch(COUNTS)

    async def main() -> None:
        async with Live(text) as live:
            answers = [await live.submit(request) for request in COUNTS]
            pieces = await asyncio.gather(*map(read, answers))
            check([piece for own in pieces for piece in own], expected)
            assert await (await live.submit(COUNTS[0])).result() == expected[0]
            other = await live.submit(COUNTS[0], {"max_new_tokens": 4})
            assert (await other.result()).finish_reason == "length"
            with pytest.raises(EngineError, match="the answer was read to its end already"):
                await other.result()

    run(main())
    assert is_idle(text)


def test_images_and_text_are_submitted_together(vl: GenerationEngine) -> None:
    content = [{"type": "image", "image": drawing("red", "circle")}, {"type": "text", "text": "What do you see?"}]
    image = {"messages": [{"role": "user", "content": content}]}
    expected = [vl.generate_vlm_batch([image])[0], vl.generate_text_batch(COUNTS[:1])[0]]

    async def main() -> list[GenerationResult]:
        async with Live(vl) as live:
            answers = [await live.submit(request) for request in (image, COUNTS[0])]
            return [await answer.result() for answer in answers]

    assert run(main()) == expected


def test_requests_join_those_that_run_and_a_cancelled_row_is_freed(text: GenerationEngine) -> None:
    options = {**LONG, "max_new_tokens": 200}
    [expected] = text.generate_text_batch(COUNTS[1:2], options)

    async def main() -> None:
        async with Live(text) as live:
            long = await live.submit(COUNTS[1], options)
            first = await anext(long)
            joins = await live.submit(COUNTS[0], LONG)
            assert (await anext(joins)).token_ids and first.result is None
            task = asyncio.create_task(read(joins))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(EngineError, match="the stream was closed"):
                await joins.result()
            assert not long.work.cancelled and not long._is_read
            assert (await long.result()).token_ids == expected.token_ids

    run(main())


def test_an_answer_that_is_lost_is_cancelled(text: GenerationEngine) -> None:
    async def main() -> None:
        async with Live(text, most=1) as live:
            async for _ in await live.submit(COUNTS[0], LONG):
                break
            assert (await (await live.submit(COUNTS[0])).result()).text == "1, 2, 3, 4, 5."

    begun = time.monotonic()
    run(main())
    assert time.monotonic() - begun < 30 and is_idle(text)


def test_submit_waits_for_its_turn(text: GenerationEngine) -> None:
    async def main() -> None:
        async with Live(text, most=1) as live:
            first = await live.submit(COUNTS[1])
            waits = asyncio.create_task(live.submit(COUNTS[0]))
            pieces = [await anext(first)]
            assert not waits.done()
            pieces += await read(first)
            assert pieces[-1].result is not None
            assert (await (await waits).result()).text == "1, 2, 3, 4, 5."
            for _ in range(3):  # a request that is refused gives its turn back
                with pytest.raises(GenEngineError):
                    await live.submit({"promt": ""})

    run(main())
    with pytest.raises(OptionError, match="most is 0"):
        run(Live(text, most=0).submit(COUNTS[0]))


def test_leaving_the_block_ends_what_runs(text: GenerationEngine) -> None:
    async def main() -> Answer:
        async with Live(text) as live:
            answer = await live.submit(COUNTS[0], LONG)
            await anext(answer)
        assert is_idle(text)
        with pytest.raises(EngineError, match="the stream was closed"):
            await answer.result()
        with pytest.raises(EngineError, match="the stream was closed"):
            await live.submit(COUNTS[0])
        return answer

    run(main())


def test_other_options_wait_and_none_is_starved(text: GenerationEngine) -> None:
    expected = [text.generate_text_batch(COUNTS[:1], {"max_new_tokens": n})[0] for n in (5, 6, 7)]

    async def main() -> list[Any]:
        async with Live(text) as live:
            answers = []
            for _ in range(4):
                answers += [await live.submit(COUNTS[0], {"max_new_tokens": n}) for n in (5, 6, 7)]
            return list(await asyncio.gather(*(answer.result() for answer in answers)))

    assert run(main()) == expected * 4


def test_an_error_of_a_row_is_raised_where_it_is_read(text: GenerationEngine) -> None:
    plugin = Fails("15")

    async def main() -> None:
        async with Live(text) as live:
            answers = [await live.submit(request, plugins=[plugin]) for request in COUNTS]
            with pytest.raises(OptionError, match="plugin 'fails'"):
                await answers[1].result()
            assert (await answers[0].result()).text == "1, 2, 3, 4, 5."
            importlib.import_module("gc").collect()
            assert (await answers[2].result()).finish_reason == "eos"

    run(main())


# -- weights that change under requests -------------------------------------------------------------------------------


def test_an_answer_that_is_aborted_keeps_what_there_is(text: GenerationEngine) -> None:
    options = {**LONG, "max_new_tokens": 200, "logprobs": 0}
    [whole] = text.generate_text_batch(COUNTS[1:2], options)

    async def main() -> GenerationResult:
        async with Live(text) as live:
            answer = await live.submit(COUNTS[1], options)
            await anext(answer)
            answer.abort()
            return await answer.result()

    part = run(main())
    count = part.completion_tokens
    assert part.finish_reason == "abort" and 0 < count < 200
    assert (part.token_ids, len(part.logprobs or ())) == (whole.token_ids[:count], count)
    assert whole.text.startswith(part.text)
    assert is_idle(text)


def test_pause_waits_a_bounded_time_and_resume_begins_what_waits(text: GenerationEngine) -> None:
    options = {**LONG, "max_new_tokens": 200}
    [expected] = text.generate_text_batch(COUNTS[1:2], options)

    async def main() -> None:
        async with Live(text) as live:
            long = await live.submit(COUNTS[1], options)
            await anext(long)
            with pytest.raises(EngineError, match="requests still run after 0.01 s. Wait longer, or end them"):
                await live.pause(timeout=0.01)
            assert (await long.result()).token_ids == expected.token_ids, "it went on"
            long = await live.submit(COUNTS[1], options)
            await anext(long)
            await live.pause(abort=True, timeout=30)
            assert (await long.result()).finish_reason == "abort"
            waits = await live.submit(COUNTS[0])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(waits), 0.2)
            again = await live.submit(COUNTS[0])
            live.resume()
            assert (await again.result()).text == "1, 2, 3, 4, 5."

    run(main())


def test_requests_with_other_options_run_side_by_side_on_vllm(shared: Load) -> None:
    engine = shared(TEXT, "vllm")
    [expected] = engine.generate_text_batch(COUNTS[:1], {"max_new_tokens": 5})

    async def main() -> None:
        async with Live(engine) as live:
            long = await live.submit(COUNTS[1], {**LONG, "max_new_tokens": 400})
            await anext(long)
            short = await live.submit(COUNTS[0], {"max_new_tokens": 5})
            sampled = await live.submit(COUNTS[0], {"max_new_tokens": 5, "temperature": 1.0, "seed": 3, "logprobs": 0})
            assert await short.result() == expected
            assert len((await sampled.result()).logprobs or ()) == 5
            assert not long.work.cancelled and long.work.result is None, "it still runs"

    run(main())


@pytest.mark.parametrize("through", ["engine", "live"])
def test_an_update_does_not_starve_behind_requests_and_no_answer_spans_it(backend: str, through: str) -> None:
    with open_engine(TEXT, backend) as engine:
        weights = dict(importlib.import_module("safetensors.torch").load_file(TEXT / "model.safetensors"))
        results: list[GenerationResult] = []

        async def ask(live: Live, updated: asyncio.Event) -> None:
            while not updated.is_set():
                results.append(await (await live.submit(COUNTS[1], {"max_new_tokens": 20})).result())

        async def main() -> None:
            updated = asyncio.Event()
            async with Live(engine) as live:
                asking = [asyncio.create_task(ask(live, updated)) for _ in range(3)]
                while len(results) < 3:
                    await asyncio.sleep(0.01)
                if through == "live":
                    await live.update_weights(weights, version="new", timeout=60)
                else:
                    await asyncio.to_thread(engine.update_weights, weights, version="new")
                results.append(await (await live.submit(COUNTS[0])).result())
                updated.set()
                await asyncio.gather(*asking)

        run(main())
        versions = [result.weight_version for result in results]
        assert versions[0] is None and versions[-1] == "new" and set(versions) == {None, "new"}
