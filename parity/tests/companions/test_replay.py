"""Recorded answers are forced token by token, on both backends, or the call fails."""

from __future__ import annotations

import dataclasses
import importlib
import socket
from pathlib import Path
from typing import Any

import pytest

from gen_engine import (
    EngineError,
    GenerationEngine,
    OptionError,
    Plugin,
    RequestError,
    UnsupportedError,
)
from parity.companions import rollout
from parity.companions.rollout import Case, read_cases, replay, write_cases
from parity.models.tasks import text_tasks

from ..conftest import TEXT, Load, chat, of_task
from .test_speculative import SPECULATIVE

REQUESTS = [of_task(task) for task in text_tasks(5)]
SAMPLED = {"temperature": 1.5, "seed": 3, "max_new_tokens": 25, "logprobs": 0}


@pytest.fixture
def recorded(shared: Load) -> list[Any]:
    """Answers that no greedy run would give, with their log-probabilities."""
    return shared(TEXT, "hf").generate_text_batch(REQUESTS, SAMPLED)


def test_the_recorded_ids_come_back_with_their_logprobs(hooked: GenerationEngine, recorded: list[Any]) -> None:
    ids = [list(result.token_ids) for result in recorded]
    for sampling in ({}, {"temperature": 1.0, "top_k": 3, "repetition_penalty": 1.3, "min_new_tokens": 20}):
        results = hooked.generate_text_batch(REQUESTS, {"max_new_tokens": 25, "replay": ids, **sampling})
        for result, original in zip(results, recorded):
            assert result.token_ids == original.token_ids
            assert (result.text, result.finish_reason) == (original.text, original.finish_reason)
            assert result.logprobs == pytest.approx(original.logprobs, abs=1e-3)
    scores = hooked.score_batch([(request["messages"], ids_) for request, ids_ in zip(REQUESTS[:1], ids)])
    assert results[0].logprobs == pytest.approx(scores[0].logprobs, abs=1e-3)


def test_equal_requests_are_all_replayed(hooked: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (16, 11), (17, 11, 220)
    results = hooked.generate_text_batch([chat("Hi")] * 3, {"replay": [first, second, first]})
    assert [result.token_ids for result in results] == [first, second, first]
    assert [result.finish_reason for result in results] == ["length"] * 3


def test_a_replay_is_traced_and_read_back_from_a_case_file(hooked: GenerationEngine, tmp_path: Path) -> None:
    with rollout.trace(hooked, tmp_path) as trace:
        results = hooked.generate_text_batch([*REQUESTS, {"prompt": "Once"}], {"max_new_tokens": 30})
    trace.save_cases(tmp_path / "cases.parquet")
    cases = read_cases(tmp_path / "cases.parquet")
    assert cases == trace.cases
    assert [case.token_ids for case in cases] == [result.token_ids for result in results]
    assert cases[0].messages == tuple(REQUESTS[0]["messages"]) and cases[5].messages is None
    with rollout.trace(hooked, tmp_path / "again") as again:
        replayed = replay(hooked, tmp_path / "cases.parquet")
    assert [r.token_ids for r in replayed] == [r.token_ids for r in results]
    assert [r.prompt_token_ids for r in replayed] == [r.prompt_token_ids for r in results]
    assert [step.tokens for step in again.steps] == [step.tokens for step in trace.steps]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_guesses_are_judged_by_what_is_replayed(shared: Load, backend: str, method: str, tmp_path: Path) -> None:
    engine = shared(TEXT, backend, decoder=SPECULATIVE[method])
    greedy = engine.generate_text_batch([chat("Count to 9.")])[0].token_ids
    wrong = tuple(5 + k for k in range(len(greedy)))
    matched = []
    for ids in (greedy, wrong):
        with rollout.trace(engine, tmp_path) as trace:
            [result] = engine.generate_text_batch([chat("Count to 9.")], {"replay": [ids], "temperature": 1.0})
        assert result.token_ids == ids
        [score] = shared(TEXT, "hf").score_batch([(chat("Count to 9.")["messages"], ids)])
        assert result.logprobs == pytest.approx(score.logprobs, abs=1e-3)
        matched.append(sum(got.matched for _, _, got in trace.advances()))
    assert matched[0] > matched[1] + 3


def test_vllm_refuses_a_replay_that_it_could_not_follow(shared: Load) -> None:
    with pytest.raises(UnsupportedError, match="a replay without its hook"):
        shared(TEXT, "vllm").generate_text_batch([chat("Hi")], {"replay": [[5]]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replay": [[5], [6]]}, "1 requests, but replays for 2"),
        ({"replay": [[]]}, "one token id or more"),
        ({"replay": [["5"]]}, "one token id or more"),
        ({"replay": [[5]], "n": 2}, "replay does not go with n"),
        ({"replay": [[10**7]]}, "outside the vocabulary"),
        ({"replay": [[5, 6]], "max_new_tokens": 1}, "the options end a replay of .* after 1"),
        ({"replay": [[5, 6, 7]], "stop": {"token_ids": [6]}}, "after 2 \\(stop at 6\\)"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_runs(
    hooked: GenerationEngine, options: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooked.backend, "complete", None)
    with pytest.raises((OptionError, RequestError), match=said):
        hooked.generate_text_batch([chat("Hi")], options)


def test_an_end_inside_the_recording_is_refused_unless_it_is_ignored(hooked: GenerationEngine) -> None:
    eos = hooked.checkpoint.eos_ids[0]
    with pytest.raises(RequestError, match="request 0: the options end a replay of 3 tokens after 2"):
        hooked.generate_text_batch([chat("Hi")], {"replay": [[5, eos, 6]]})
    [result] = hooked.generate_text_batch([chat("Hi")], {"replay": [[5, eos, 6]], "stop": {"ignore_eos": True}})
    assert result.token_ids == (5, eos, 6)


def test_ids_that_the_model_has_and_its_tokenizer_lacks_are_replayed(hooked: GenerationEngine) -> None:
    last = hooked.checkpoint.vocabulary - 1
    assert last >= len(hooked.tokenizer)  # a model's vocabulary is often padded, and random weights say such ids
    [result] = hooked.generate_text_batch([chat("Hi")], {"replay": [[5, last, 6]]})
    assert result.token_ids == (5, last, 6)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        hooked.generate_text_batch([chat("Hi")], {"replay": [[last + 1]]})


def test_plugins_and_structures_do_not_go_with_a_replay(hooked: GenerationEngine) -> None:
    class Shout(Plugin):
        post_decode = staticmethod(str.upper)

    with pytest.raises(OptionError, match="replay does not go with plugins"):
        hooked.generate_text_batch([chat("Hi")], {"replay": [[5]]}, plugins=[Shout()])
    with pytest.raises(OptionError, match="replay, logprobs and logits of a structure"):
        hooked.generate_text_batch([chat("Hi", structured={"regex": "a"})], {"replay": [[5]]})


def test_a_backend_that_does_not_follow_is_found_out(hooked: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = hooked.backend.complete

    def other(prompts: Any, call: Any) -> Any:
        free = [dataclasses.replace(prompt, replay=None) for prompt in prompts]
        options = dataclasses.replace(call.plan.options, replay=None)
        return complete(free, dataclasses.replace(call, plan=dataclasses.replace(call.plan, options=options)))

    monkeypatch.setattr(hooked.backend, "complete", other)
    with pytest.raises(EngineError, match="did not follow the replay"):
        hooked.generate_text_batch([chat("Hi")], {"replay": [[5, 6, 7]]})


def test_a_case_file_is_whole_and_is_checked(tmp_path: Path, hooked: GenerationEngine) -> None:
    cases = [Case(0, "p", ({"role": "user", "content": "é"},), (1, 2), "t"), Case(1, "q", None, (), "")]
    write_cases(tmp_path / "c.parquet", cases)
    assert read_cases(tmp_path / "c.parquet") == cases
    assert [file.name for file in tmp_path.iterdir()] == ["c.parquet"]
    (tmp_path / "broken.parquet").write_bytes((tmp_path / "c.parquet").read_bytes()[:-9])
    for name in ("broken.parquet", "none.parquet"):
        with pytest.raises(RequestError, match="is no case file"):
            read_cases(tmp_path / name)
    with rollout.trace(hooked, tmp_path) as trace:
        hooked.generate_text_batch([{"prompt_token_ids": [72, 67, 75]}], {"max_new_tokens": 2})
    if trace.unwritable:
        with pytest.raises(RequestError, match="request 0: its prompt's ids are not those of their text"):
            trace.save_cases(tmp_path / "d.parquet")


@pytest.mark.parametrize("place", ["s3://bucket/cases.parquet", "gs://bucket/cases.parquet", "hdfs://host/cases"])
def test_a_case_file_is_of_this_machine_whatever_its_name(
    place: str, shared: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pyarrow opens the network for such a name, from C++: it is never given a name."""
    parquet, opened = importlib.import_module("pyarrow.parquet"), list[Any]()
    read, write = parquet.read_table, parquet.write_table
    monkeypatch.setattr(socket.socket, "connect", lambda *given: opened.append(given))

    def seen(file: Any) -> Any:
        opened.append(file)
        return file

    monkeypatch.setattr(parquet, "read_table", lambda file, **how: read(seen(file), **how))
    monkeypatch.setattr(parquet, "write_table", lambda table, file: write(table, seen(file)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="there is no case file"):
        replay(shared(TEXT, "hf"), place)
    with pytest.raises(EngineError, match="cannot be written to"):
        write_cases(place, [Case(0, "a", None, (5,), "b")])
    assert opened == []
    Path(place).parent.mkdir(parents=True)  # "s3:", a folder here
    write_cases(place, [Case(0, "a", None, (5,), "b")])
    assert read_cases(place) == [Case(0, "a", None, (5,), "b")]
    assert len(opened) == 2 and all(hasattr(file, "fileno") for file in opened)
