"""A trace's three files: their columns and orders, figures that agree with each other and with vLLM's own counters, and
files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import inspect
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from gen_engine import (
    EngineError,
    GenerationEngine,
    GenerationResult,
    OptionError,
)
from parity.companions import rollout
from parity.companions.rollout import Trace
from parity.companions.speculation import Speculation
from parity.models.tasks import text_tasks

from ..conftest import BACKENDS, ROOT, TEXT, Load, of_task, open_engine

DRAFT = Speculation("draft_model", num_tokens=4, model=str(ROOT / "golden/models/tiny-qwen3-draft"))
REQUESTS = [of_task(task) for task in text_tasks(12)]
OPTIONS = {"max_new_tokens": 40, "stop": [", 7", "\n"]}
PERF = [
    "step_tgs", "step_tokens", "cur_acc_len", "step_batchsize", "step_ts", "step_interval", "draft_nstep",
    "draft_time", "verify_time", "idle_time", "running", "waiting", "preempted", "kv_cache_usage",
]  # fmt: skip
REQUEST = [
    "req_id", "rollout_time", "rollout_step", "prompt_length", "response_length", "spec_accept_rate",
    "spec_matched_total", "spec_draft_total", "spec_accepted_total",
]  # fmt: skip
MARKOV = ["acc_token_num", "draft_token_num", "verify_token_num", "cur_step", "req_id"]


Guesser = Callable[[str], GenerationEngine]


@pytest.fixture(scope="module")
def guesser() -> Iterator[Guesser]:
    """`guesser(backend)`: an engine that speculates, loaded where it is asked for."""
    kwargs = {"num_gpu_blocks_override": 96, "max_num_seqs": 5, "disable_log_stats": False}
    settings: dict[str, dict[str, Any]] = {"hf": {}, "vllm": {"vllm_kwargs": kwargs}}
    with contextlib.ExitStack() as stack:
        yield cache(lambda backend: stack.enter_context(open_engine(TEXT, backend, decoder=DRAFT, **settings[backend])))


@pytest.fixture(params=["plain", "guessing"])
def engine(request: pytest.FixtureRequest, backend: str, shared: Load, guesser: Guesser) -> GenerationEngine:
    return shared(TEXT, backend) if request.param == "plain" else guesser(backend)


def rows(file: Path) -> list[dict[str, float]]:
    with file.open(encoding="utf-8") as stream:
        return [{k: float(v) if v else float("nan") for k, v in row.items()} for row in csv.DictReader(stream)]


def traced(engine: GenerationEngine, directory: Path, options: Any = OPTIONS) -> tuple[Trace, list[GenerationResult]]:
    with rollout.trace(engine, directory) as trace:
        results = [
            *engine.generate_text_batch(REQUESTS[:8], options),
            *engine.generate_text_batch(REQUESTS[8:], options),
        ]
    return trace, results


def uncounted() -> set[str]:
    """What this vLLM does not count: 0.11 has no word of preemptions."""
    source = inspect.getsource(gen_engine.lazy_import("vllm.v1.request"))
    return set() if "num_preemptions" in source else {"preempted"}


def test_the_files_have_these_columns_in_this_order(engine: GenerationEngine, tmp_path: Path, backend: str) -> None:
    traced(engine, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["worker_0_markov.csv", "worker_0_perf.csv", "worker_0_request.csv"]
    plain = engine.config.decoder is None
    unmeasured = {"draft_time", "spec_accept_rate"} if plain else set()
    unmeasured |= {"preempted", "kv_cache_usage"} if backend == "hf" else uncounted()
    for name, columns in (("perf", PERF), ("request", REQUEST), ("markov", MARKOV)):
        header = (tmp_path / f"worker_0_{name}.csv").read_text().splitlines()[0]
        assert header.split(",") == [column for column in columns if column not in unmeasured]


def test_the_files_agree_with_each_other_and_with_the_results(engine: GenerationEngine, tmp_path: Path) -> None:
    trace, results = traced(engine, tmp_path)
    perf, request, markov = map(rows, trace.files)
    lengths = sorted(result.completion_tokens for result in results)
    assert [row["response_length"] for row in request] == lengths
    assert sum(row["step_tokens"] for row in perf) == sum(lengths)
    keys = [(row["response_length"], row["req_id"]) for row in request]
    assert keys == sorted(keys) and sorted(row["req_id"] for row in request) == list(range(len(REQUESTS)))
    keys = [(row["req_id"], row["cur_step"]) for row in markov]
    assert keys == sorted(keys)
    for row in request:
        own = [step for step in markov if step["req_id"] == row["req_id"]]
        assert row["rollout_step"] == len(own)
        assert row["response_length"] == sum(step["acc_token_num"] for step in own)
        assert row["spec_draft_total"] == sum(step["draft_token_num"] for step in own)
        assert row["prompt_length"] == results[int(row["req_id"])].prompt_tokens
        assert row["spec_accepted_total"] <= row["spec_matched_total"] <= row["spec_draft_total"]
    for number, step in enumerate(perf):
        own = [row for row in markov if row["cur_step"] == number]
        assert step["step_tokens"] == sum(row["acc_token_num"] for row in own)
        assert step["step_batchsize"] == sum(row["acc_token_num"] > 0 for row in own) <= step["running"]
        assert all(row["verify_token_num"] == row["draft_token_num"] + 1 for row in own)


def test_times_are_measured_and_add_up(engine: GenerationEngine, tmp_path: Path) -> None:
    trace, _ = traced(engine, tmp_path)
    perf, request, _ = map(rows, trace.files)
    assert perf[0]["step_ts"] == 0
    for step in perf:
        parts = step.get("draft_time", 0) + step["verify_time"] + step["idle_time"]
        assert parts == pytest.approx(step["step_interval"], abs=0.01)
        assert step["verify_time"] > 0 and step["idle_time"] >= 0
        served = step["step_batchsize"]
        if served:
            assert step["step_tgs"] == pytest.approx(step["step_tokens"] / served / step["step_interval"] * 1e3, 1e-3)
    if engine.config.decoder is not None:
        assert sum(step["draft_time"] for step in perf) > 0
    whole = perf[-1]["step_ts"] + perf[0]["step_interval"] / 1e3
    assert 0 < max(row["rollout_time"] for row in request) <= whole + 0.01


def test_what_is_traced_is_what_is_answered_without_a_trace(engine: GenerationEngine, tmp_path: Path) -> None:
    _, results = traced(engine, tmp_path)
    assert [r.token_ids for r in results] == [r.token_ids for r in engine.generate_text_batch(REQUESTS, OPTIONS)]


def test_acceptance_is_what_vllm_counted(guesser: Guesser, tmp_path: Path) -> None:
    engine = guesser("vllm")

    def counters() -> Counter[str]:
        said = {metric.name: metric.value for metric in engine.model.get_metrics() if hasattr(metric, "value")}
        return Counter({name: int(value) for name, value in said.items() if "spec_decode" in name})

    before = counters()
    trace, _ = traced(engine, tmp_path)
    _, request, markov = map(rows, trace.files)
    counted = counters() - before
    assert counted["vllm:spec_decode_num_draft_tokens"] == sum(row["spec_draft_total"] for row in request) > 0
    assert counted["vllm:spec_decode_num_accepted_tokens"] == sum(row["spec_matched_total"] for row in request) > 0
    assert counted["vllm:spec_decode_num_drafts"] == sum(row["draft_token_num"] > 0 for row in markov)


def test_both_backends_deliver_the_same_in_each_round(guesser: Guesser, tmp_path: Path) -> None:
    rounds = []
    for backend in BACKENDS:
        trace, _ = traced(guesser(backend), tmp_path / backend)
        rounds.append([(row["req_id"], row["acc_token_num"]) for row in rows(trace.files[2])])
    assert rounds[0] == rounds[1]


def test_requests_beyond_the_batch_wait(shared: Load, guesser: Guesser, tmp_path: Path) -> None:
    trace, _ = traced(guesser("vllm"), tmp_path)
    assert max(step.view["running"] for step in trace.steps) == 5
    assert trace.steps[0].view["waiting"] == 3
    with open_engine(TEXT, "hf", max_batch_size=2) as engine:
        trace, _ = traced(engine, tmp_path)
    assert {step.view["running"] + step.view["waiting"] for step in trace.steps[:2]} == {8}
    assert max(len(step.advances) for step in trace.steps) == 2


def test_no_file_is_left_by_a_block_that_raises(engine: GenerationEngine, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), rollout.trace(engine, tmp_path / "a"):
        engine.generate_text_batch(REQUESTS[:2], OPTIONS)
        raise ZeroDivisionError
    assert os.listdir(tmp_path / "a") == []
    with rollout.trace(engine, tmp_path / "a", 3) as trace:
        pass
    assert [file.name for file in trace.files] == ["worker_3_perf.csv", "worker_3_request.csv", "worker_3_markov.csv"]
    assert trace.files[2].read_text().strip() == ",".join(MARKOV)


def test_a_write_that_fails_leaves_the_old_files(text: GenerationEngine, tmp_path: Path, monkeypatch: Any) -> None:
    traced(text, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with pytest.raises(EngineError, match="planted"), rollout.trace(text, tmp_path) as trace:
        text.generate_text_batch(REQUESTS[:1], OPTIONS)
        tables = trace.tables()
        monkeypatch.setattr(trace, "tables", lambda: [*tables[:2], (MARKOV, PlantedFault())])
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


NAMES = ("one", "two", "three")
WRITES = """
import os, signal, sys
from pathlib import Path
from parity.companions.rollout import written_whole

replace, calls = os.replace, []

def killed(source, target):
    calls.append(target)
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = killed
with written_whole(*(Path(sys.argv[1]) / name for name in ("one", "two", "three"))) as parts:
    for part in parts:
        part.write_text("new")
    if sys.argv[2] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def rewrite(folder: Path, text: str) -> None:
    with rollout.written_whole(*(folder / name for name in NAMES)) as parts:
        for part in parts:
            part.write_text(text)


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("stood", [NAMES, NAMES[:1], ()], ids=len)
def test_a_rename_that_fails_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stood: tuple[str, ...], at: int
) -> None:
    for name in stood:
        (tmp_path / name).write_text("old")
    replace, calls = os.replace, itertools.count(1)

    def fails_once(source: Any, target: Any) -> None:
        if next(calls) == at:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails_once)
    if at <= len(stood) + len(NAMES):
        with pytest.raises(EngineError, match="cannot be written to: .*No space left.*no file was changed"):
            rewrite(tmp_path, "new")
        assert held(tmp_path) == dict.fromkeys(stood, "old")
    rewrite(tmp_path, "newer")
    assert held(tmp_path) == dict.fromkeys(sorted(NAMES), "newer")


def test_where_nothing_can_be_put_back_the_old_files_are_kept_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(tmp_path, "old")
    replace, calls = os.replace, itertools.count(1)

    def fails_from_then_on(source: Any, target: Any) -> None:
        if next(calls) >= 3:
            raise OSError(5, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patched, pytest.raises(EngineError, match="what stood there is kept as .one.old"):
        patched.setattr(os, "replace", fails_from_then_on)
        rewrite(tmp_path, "new")
    parts = {f".{name}.part": "new" for name in NAMES}
    assert held(tmp_path) == {".one.old": "old", ".two.old": "old", "three": "old", **parts}
    fails(tmp_path)
    assert held(tmp_path) == dict.fromkeys(sorted(NAMES), "old")


def fails(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), rollout.written_whole(*(folder / name for name in NAMES)):
        raise ZeroDivisionError


@pytest.mark.parametrize("at", range(8))  # in the writing, at each of six renames, and never
@pytest.mark.parametrize("stood", [NAMES, NAMES[:1]], ids=len)
def test_what_a_killed_process_leaves_costs_no_file_and_does_not_stay(
    tmp_path: Path, stood: tuple[str, ...], at: int
) -> None:
    for name in stood:
        (tmp_path / name).write_text("old")
    done = subprocess.run([sys.executable, "-c", WRITES, str(tmp_path), str(at)], cwd=ROOT, check=False)
    if killed := at <= len(stood) + len(NAMES):
        assert done.returncode == -signal.SIGKILL
    fails(tmp_path)  # and what fails behind it costs none either
    assert held(tmp_path) == (dict.fromkeys(stood, "old") if killed else dict.fromkeys(sorted(NAMES), "new"))
    rewrite(tmp_path, "newer")
    assert held(tmp_path) == dict.fromkeys(sorted(NAMES), "newer")


class PlantedFault:
    """Rows that cannot be written."""

    def __len__(self) -> int:
        raise OSError("planted")

    def __iter__(self) -> Iterator[Any]:
        raise OSError("planted")


def test_a_call_that_failed_leaves_nothing_in_the_trace(text: GenerationEngine, tmp_path: Path) -> None:
    class Fails:
        def should_stop(self, token_ids: Any, so_far: str) -> bool:
            if len(token_ids) > 3:
                raise ZeroDivisionError("planted")
            return False

    with rollout.trace(text, tmp_path) as trace:
        with pytest.raises(OptionError, match="ZeroDivisionError"):
            text.generate_text_batch(REQUESTS[:2], OPTIONS, plugins=[Fails()])
        [result] = text.generate_text_batch(REQUESTS[:1], OPTIONS)
    perf, request, _ = map(rows, trace.files)
    assert sum(row["step_tokens"] for row in perf) == result.completion_tokens
    assert [row["response_length"] for row in request] == [result.completion_tokens]


def test_rows_that_run_again_count_once(shared: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf")
    loop = engine.backend.loop
    failed: list[int] = []

    def runs_out_once(*given: Any) -> Any:
        made = loop(*given)
        push = made.push

        def act(ids: Any) -> None:
            if len(made.rows[0].watch.ids) == 4 and not failed:
                failed.append(len(made.rows))
                raise MemoryError
            push(ids)

        made.push = act
        return made

    monkeypatch.setattr(engine.backend, "loop", runs_out_once)
    trace, results = traced(engine, tmp_path)
    assert failed
    assert sum(step.tokens for step in trace.steps) == sum(result.completion_tokens for result in results)


def test_what_a_trace_cannot_be_is_refused(text: GenerationEngine, tmp_path: Path) -> None:
    running = pytest.raises(EngineError, match="this engine is observed already")
    with rollout.trace(text, tmp_path), running, rollout.trace(text, tmp_path):
        pass
    for worker in (-1, "0", True):
        with pytest.raises(OptionError, match="worker_id"), rollout.trace(text, tmp_path, worker_id=worker):  # type: ignore[arg-type]
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="no directory for a trace"), rollout.trace(text, tmp_path / "file"):
        pass
