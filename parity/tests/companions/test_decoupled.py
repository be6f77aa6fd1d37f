"""Guessing and judging on workers of their own: answers of one engine, whoever dies; where drafters and requests go."""

from __future__ import annotations

import csv
import importlib
import itertools
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gen_engine
from gen_engine import EngineError, GenerationEngine, OptionError, UnsupportedError, load
from parity.__main__ import main
from parity.companions import decoupled, rollout
from parity.companions.decoupled import (
    Apart,
    Coordinator,
    Decoupled,
    Drafter,
    Staff,
    Verifier,
    moving,
    placed,
)
from parity.companions.speculation import Speculation
from parity.goldens.store import Store
from parity.models.tasks import text_tasks
from parity.proof.callsites.rollout_worker import cases, moved
from parity.rollout.report import disagreements, read_workers, summary

from ..conftest import ROOT, TEXT, VL, WINDOW, Load, chat, of_task

DRAFT = str(ROOT / cases.DRAFT)
REQUESTS = [of_task(task) for task in text_tasks(14, seed=3)]
COUNTS = [chat(f"Count to {number}.") for number in range(20, 30)]
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 80, "logprobs": 0},
    "stops": {"max_new_tokens": 40, "stop": [", 7", "\n\n", "ed "], "logprobs": 2},
    "penalty": {"max_new_tokens": 31, "repetition_penalty": 1.2, "min_new_tokens": 9, "stop": {"token_ids": [11]}},
    "seeded": {"max_new_tokens": 40, "temperature": 1.0, "top_p": 0.9, "seed": 5, "n": 2, "stop": ["ed "]},
}


def ends(results: Sequence[Any]) -> list[Any]:
    """What is the same on each path; log-probabilities are but for rounding."""
    return [(s.token_ids, s.text, s.finish_reason, s.stop_reason) for r in results for s in (r.samples or (r,))]


# == Without Ray: the loop of a verifier ==


class Desk:
    """What a verifier is to its loop, with a drafter in this process. along: place -> tokens said elsewhere."""

    def __init__(self, guesses: Speculation) -> None:
        self.drafter, self.along = Drafter(guesses, {"max_model_len": WINDOW}), dict[int, list[int]]()

    def ask(self, half: int, rows: Sequence[Any]) -> list[Any]:
        guesses, seconds = self.drafter.guess([[*row.ids, *row.watch.ids] for row in rows]) if rows else ([], 0.0)
        assert seconds >= 0
        return [(row.place, guess) for row, guess in zip(rows, guesses)]

    def collect(self, asked: Any) -> dict[int, list[int]]:
        return dict(asked)

    def said(self, row: Any) -> list[int]:
        return self.along.get(row.place, [])


@pytest.fixture(scope="module", params=["ngram", "draft_model"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(Speculation(request.param, num_tokens=3, model=DRAFT if request.param == "draft_model" else None))


@pytest.fixture(scope="module")
def halved(desk: Desk) -> Iterator[GenerationEngine]:
    """Seven rows at a time: rows of all lengths join and leave both halves."""
    with load(TEXT, max_model_len=WINDOW, max_batch_size=7, decoder=Apart(desk.drafter.guesses, desk)) as engine:
        yield engine


def check_halves(halved: GenerationEngine, alone: GenerationEngine, requests: Any, options: Any) -> None:
    results, expected = (engine.generate_text_batch(requests, options) for engine in (halved, alone))
    assert ends(results) == ends(expected)
    for result, one in zip(results, expected):
        assert result.logprobs == pytest.approx(one.logprobs, abs=1e-3)  # masks and places are right


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_in_two_halves_answer_as_in_one(halved: GenerationEngine, desk: Desk, shared: Load, name: str) -> None:
    desk.along.clear()
    check_halves(halved, shared(TEXT, "hf"), REQUESTS, OPTIONS[name])


def test_rows_that_overtake_each_other_leave_no_trace(halved: GenerationEngine, desk: Desk, shared: Load) -> None:
    """Of equal length at first, so that each is the longest for a while."""
    desk.along.clear()
    requests = [{"prompt_token_ids": [20 + (17 * k + 7 * i * k) % 400 for i in range(12)]} for k in range(1, 8)]
    options = {"max_new_tokens": 40, "stop": {"ignore_eos": True}, "logprobs": 0}
    check_halves(halved, shared(TEXT, "hf"), requests, options)


def test_rows_that_cannot_be_moved_get_on_together() -> None:
    """Mistral's window is 8 tokens: no row joins those that run, in either half."""
    requests = [{"prompt": "the lazy dog and the quick fox and " * count} for count in (2, 1, 4, 3, 2)]
    options, desk = {"max_new_tokens": 24, "logprobs": 0}, Desk(Speculation("ngram", num_tokens=3))
    sliding = ROOT / "golden/models/random-mistral"
    with load(sliding, max_batch_size=4) as alone, load(sliding, max_batch_size=4, decoder=Apart(
        desk.drafter.guesses, desk)) as halved:  # fmt: skip
        check_halves(halved, alone, requests, options)


def test_tokens_that_a_row_brings_along_are_judged_and_not_drafted(
    halved: GenerationEngine, desk: Desk, shared: Load, tmp_path: Path
) -> None:
    expected = shared(TEXT, "hf").generate_text_batch(REQUESTS[:4], OPTIONS["greedy"])
    ids = [list(result.token_ids) for result in expected]
    desk.along = {0: ids[0][:-2], 1: ids[1], 2: [*ids[2][:3], 5, 5, 5]}  # most of it, all of it, and what was not said
    with rollout.trace(halved, tmp_path) as trace:
        assert ends(halved.generate_text_batch(REQUESTS[:4], OPTIONS["greedy"])) == ends(expected)
    first = {number: got for number, step, got in reversed(trace.advances())}
    assert [first[k].delivered for k in range(4)] == [len(ids[0]) - 1, len(ids[1]), 4, 1]
    assert {got.drafted for got in first.values()} == {0}
    desk.along.clear()


# == Where drafters and requests go ==


def test_drafters_go_where_most_requests_have_the_fewest() -> None:
    assert placed({0: 4, 1: 4}, {0: None, 1: None}) == {0: 0, 1: 1}
    assert placed({0: 9, 1: 2}, {0: None, 1: None, 2: None}) == {0: 0, 1: 0, 2: 0}
    assert Counter(placed({0: 8, 1: 4}, dict.fromkeys(range(3))).values()) == {0: 2, 1: 1}
    assert placed({0: 0, 1: 5}, {0: 0, 1: 1}) == {0: 1, 1: 1}
    assert placed({0: 5, 1: 4}, {0: 1, 1: 0}) == {0: 1, 1: 0}  # nobody moves for nothing
    assert placed({1: 3}, {0: 0, 1: 1}) == {0: 1, 1: 1}  # 0 died
    assert placed({}, {0: 1}) == {0: None} and placed({0: 1}, {}) == {}


def test_requests_move_where_it_pays() -> None:
    assert moving({0: 6, 1: 0}) == (0, 1, 3) and moving({0: 1, 1: 4, 2: 3}) == (1, 0, 1)
    assert moving({0: 2, 1: 0}) == (0, 1, 1)  # the last two
    assert moving({0: 1, 1: 0}) is moving({0: 16, 1: 14}) is moving({0: 3, 1: 1}) is moving({0: 7}) is None


# == Workers that are lost, without Ray ==


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class RayTaskError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


@dataclass(eq=False)
class Reference:
    """What a remote call returns. It is there already, or never comes."""

    value: Any = None
    error: RayError | None = None
    comes: bool = True


class FakeRay:
    exceptions = SimpleNamespace(
        RayError=RayError,
        RayActorError=RayActorError,
        RayTaskError=RayTaskError,
        GetTimeoutError=GetTimeoutError,
    )

    def __init__(self) -> None:
        self.killed: list[Any] = []

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def wait(
        self,
        references: Sequence[Reference],
        num_returns: int = 1,
        timeout: float | None = None,
    ) -> tuple[list[Reference], list[Reference]]:
        ready = [reference for reference in references if reference.comes][:num_returns]
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if not reference.comes:
            raise GetTimeoutError
        if reference.error is not None:
            raise reference.error
        return reference.value


def remote(function: Callable[..., Reference]) -> Any:
    return SimpleNamespace(remote=function)


class FakeVerifier:
    """Answers each prompt at once, unless it has a fault: "dies", "silent" (its process does not
    reply), "stuck" (its loop makes no step), or "never starts"."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.news: list[Any] = []
        self.given: list[int] = []
        self.drafters: list[int] = []
        self.ready = remote(self._ready)
        self.running: list[Reference] = []
        self.run = remote(self._run)
        self.take = remote(self._take)
        self.give = remote(self._give)
        self.draft_with = remote(self._draft_with)

    def _ready(self) -> Reference:
        return Reference(error=RayActorError() if self.fault == "never starts" else None)

    def _run(self, call: int, options: Any, plugins: Any) -> Reference:
        self.running.append(Reference(comes=False))
        return self.running[-1]

    def _draft_with(self, drafters: dict[int, Any]) -> Reference:
        self.drafters = sorted(drafters)
        return Reference()

    def _give(self, call: int, what: str, *about: Any) -> Reference:
        if what == "prompt":
            self.given.append(about[0])
            if not self.fault:
                self.news.append((call, "done", about[0], f"answer {about[0]}"))
        if what == "end":
            self.running[-1].comes = True
        return Reference()

    def _take(self) -> Reference:
        if self.fault == "dies" and self.given:
            return Reference(error=RayActorError())
        if self.fault == "silent" and self.given:
            return Reference(comes=False)
        news = self.news
        self.news = []
        return Reference((99.0 if self.fault == "stuck" and self.given else 0.0, news))


@dataclass(frozen=True)
class FakePrompt:
    length: int
    messages: Any = None


@dataclass(eq=False)
class FakeGroup:
    """A coordinator over verifiers with these faults; those started later have those of `later`."""

    faults: Sequence[str]
    later: Sequence[str] = ()
    drafters: int = 0

    def __post_init__(self) -> None:
        self.ray = FakeRay()
        self.made: list[FakeVerifier] = []
        faults = iter([*self.faults, *self.later])

        def start() -> FakeVerifier:
            self.made.append(FakeVerifier(next(faults, "")))
            return self.made[-1]

        def start_drafter() -> Any:
            return SimpleNamespace(ready=remote(Reference))

        verifiers = Staff(self.ray, "verifier", start, len(self.faults))
        drafters = Staff(self.ray, "drafter", start_drafter, self.drafters)
        self.coordinator = Coordinator(self.ray, verifiers, drafters, patience=0.05)
        self.answers: dict[int, str] = {}

    def ask(self, count: int) -> dict[int, str]:
        """Index -> answer of each of so many prompts."""
        self.answers = {}
        plan = SimpleNamespace(options=SimpleNamespace(temperature=0.0), plugins=())
        done = self.answers.__setitem__
        call: Any = SimpleNamespace(plan=plan, places=itertools.count(), done=done)
        prompts: list[Any] = [FakePrompt(5) for _ in range(count)]
        self.coordinator.complete(prompts, call)
        return self.answers

    def reasons(self, what: str) -> list[str]:
        return [move[-1] for move in self.coordinator.moves if move[1] == what]


ANSWERS = {index: f"answer {index}" for index in range(6)}


@pytest.mark.parametrize(
    ("fault", "why"),
    [("dies", "RayActorError"), ("silent", "no reply for"), ("stuck", "no step for 99.0 s")],
)
def test_coordinator_whose_verifier_is_lost_runs_its_requests_elsewhere_and_starts_another(
    fault: str,
    why: str,
) -> None:
    group = FakeGroup(["", fault])
    assert group.ask(6) == ANSWERS
    lost, *again = group.reasons("verifier")
    assert why in lost
    assert again in ([], ["started again"])  # it may come too late for this call
    assert group.ask(6) == ANSWERS
    assert group.ray.killed == [group.made[1]]
    assert set(group.coordinator.verifiers) == {0, 1} and len(group.made) == 3


def test_coordinator_whose_only_verifier_is_lost_waits_for_the_next_one() -> None:
    group = FakeGroup(["silent"])
    assert group.ask(6) == ANSWERS
    assert group.made[1].given and "started again" in group.reasons("verifier")


def test_coordinator_whose_verifiers_die_of_a_request_gives_up() -> None:
    group = FakeGroup(["dies"], later=["dies", "never starts", "dies"])
    with pytest.raises(EngineError, match="no verifier is left"):
        group.ask(6)
    assert len(group.made) == 3 and not group.answers
    assert group.ask(6) == ANSWERS  # the next call starts others: one that dies, and a good one
    assert len(group.made) == 5


def test_coordinator_whose_drafter_is_lost_starts_one_with_another_number() -> None:
    group = FakeGroup([""], drafters=2)
    assert group.ask(2) == {0: "answer 0", 1: "answer 1"}
    group.made[0].news.append((2, "drafter", 0, "ActorDiedError"))
    group.ask(6)
    group.ask(6)
    assert group.made[0].drafters == [1, 2] == sorted(group.coordinator.drafters)
    group.made[0].news.append((4, "drafter", 0, "GetTimeoutError"))  # late news of the lost one
    group.ask(6)
    assert sorted(group.coordinator.drafters) == [1, 2]


def test_coordinator_gives_the_drafter_of_a_lost_verifier_to_the_next_one() -> None:
    group = FakeGroup(["silent"], drafters=1)
    assert group.ask(6) == ANSWERS
    group.ask(6)
    assert group.made[1].drafters == [0]


def test_verifier_that_waits_for_a_drafter_is_not_taken_for_one_that_hangs() -> None:
    verifier = Verifier.__new__(Verifier)
    verifier.ray = FakeRay()
    verifier.stepped = None
    began = time.monotonic()
    with pytest.raises(GetTimeoutError):
        verifier._fetch(Reference(comes=False), began + 0.05)
    assert verifier.stepped is not None and verifier.stepped >= began + 0.05


# == What does not go with it ==


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"backend": "vllm"}, "vllm cannot do judge what others guess. Use backend='hf'"),
        ({"adapters": {"a": "x"}}, "hf cannot do adapters with guesses made apart"),
        ({"model": str(VL)}, "a vision-language checkpoint"),
    ],
)
def test_what_verifiers_cannot_do_is_refused_before_any_starts(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        Decoupled(**{"model": str(TEXT), "guesses": Speculation("ngram"), **given})


def test_a_group_has_a_verifier() -> None:
    with pytest.raises(OptionError, match="0 verifiers and 1 drafters"):
        Decoupled(str(TEXT), Speculation("ngram"), verifiers=0)


@pytest.mark.parametrize("patience", [0, -1.0, math.nan])
def test_a_drafter_is_given_some_time(patience: float) -> None:
    with pytest.raises(OptionError, match="patience="):
        Decoupled(str(TEXT), Speculation("ngram"), drafters=1, patience=patience)


# == On Ray ==


class Started(Exception):
    pass


def test_it_says_that_it_waits_for_more_than_ray_has(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def remote(kind: type) -> None:
        raise Started

    ray = SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 2.0}, remote=remote)
    monkeypatch.setattr(decoupled, "ray_itself", lambda: ray)
    monkeypatch.setattr(decoupled.log, "warning", lambda text, *about: said.append(text % about))
    for drafters, warnings in ((1, 0), (2, 1)):
        with pytest.raises(Started):
            Decoupled(TEXT, Speculation("ngram", num_tokens=3), drafters=drafters)
        assert sum("ask for 3 CPUs and Ray has 2" in text for text in said) == warnings


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Places for two verifiers and two drafters, and for two workers of another group."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = importlib.import_module("ray")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # workers have not seen ours
    environment = {"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}}
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def group(ray: Any) -> Iterator[moved.DecoupledGroup]:
    """Two of each; the tests at the end of the file end one of each."""
    with (group := moved.DecoupledGroup(str(TEXT), spec_tokens=3, verifiers=2, drafters=2)):
        yield group


@pytest.mark.usefixtures("ray")
def test_two_workers_answer_in_order_and_report_stragglers(tmp_path: Path) -> None:
    prompts = [*cases.MANY, "Count to 12."]
    with moved.RolloutGroup(str(TEXT), workers=2, backend="hf", spec_tokens=3) as group:
        results = group.rollout(prompts, str(tmp_path / "free"))
        alone = group.rollout(cases.MANY[:1], str(tmp_path / "one"))
        fixed = [result["token_ids"][:4] for result in results]
        again = group.rollout(prompts, str(tmp_path / "fixed"), fixed=fixed)
    assert [result["text"] for result in results][2:4] == ["The capital of France is Paris.", results[3]["text"]]
    assert results[0]["text"].startswith("1, 2, 3") and alone == results[:1]
    assert [result["token_ids"] for result in again] == fixed
    workers = read_workers(tmp_path / "free")
    assert [len(worker.request) for worker in workers] == [5, 4]
    assert [fault for worker in workers for fault in disagreements(worker)] == []
    assert "straggler" in summary(workers) and "worker 1" in summary(workers)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_group_answers_as_one_engine(group: moved.DecoupledGroup, shared: Load, name: str) -> None:
    expected = shared(TEXT, "hf").generate_text_batch(REQUESTS, OPTIONS[name])
    assert ends(group.generate_text_batch(REQUESTS, OPTIONS[name])) == ends(expected)


def test_a_bad_request_is_an_error_in_its_place(group: moved.DecoupledGroup) -> None:
    requests = [chat("Name five planets."), {"prompt": ""}, {"messages": []}]
    good, *bad = group.generate_text_batch(requests, {"max_new_tokens": 4}, on_error="return")
    assert good.completion_tokens == 4 and all(isinstance(error, gen_engine.RequestError) for error in bad)


@pytest.mark.parametrize("name", [name for name, _, given in cases.cases(Path()) if not given.get("temperature")])
def test_the_rollout_workers_goldens_pass(group: moved.DecoupledGroup, name: str, tmp_path: Path) -> None:
    [given] = [dict(arguments) for case, _, arguments in cases.cases(tmp_path) if case == name]
    for own in ("model_path", "spec_tokens", "draft"):  # of the group that is there; guesses change no answer
        given.pop(own, None)
    results = group.rollout(**given)
    if name in cases.DIFFERS:
        assert [result["token_ids"] for result in results] == cases.FIXED
    else:
        golden = Store(ROOT / "golden").read("rollout_worker", name).value
        assert results == [{key: row[key] for key in ("text", "token_ids")} for row in golden]


def read_moves(directory: Path) -> list[dict[str, str]]:
    with (directory / "moves.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_both_ways_are_drawn_side_by_side(
    group: moved.DecoupledGroup, shared: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = shared(TEXT, "hf")
    with rollout.trace(engine, tmp_path, 0):
        plain = engine.generate_text_batch(COUNTS, OPTIONS["greedy"])
    with group.traced(tmp_path, rollout.Trace, first=1):
        assert ends(group.generate_text_batch(COUNTS, OPTIONS["greedy"])) == ends(plain)
    assert main(["trace", str(tmp_path)]) == 0 and "the figures agree" in capsys.readouterr().out
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
    alone, *judges = read_workers(tmp_path)
    assert sum(judge.tokens for judge in judges) == alone.tokens and len(judges) == 2
    for judge in judges:
        idle, verify, draft = (judge.column(f"{name}_time") for name in ("idle", "verify", "draft"))
        assert idle and verify and draft and max(draft) > 0 and min(idle) >= 0
        took = sum(row["step_interval"] for row in judge.perf)
        assert 0 < sum(idle) + sum(verify) <= took * 1.001  # guesses are made meanwhile, and are no part of it
    assert sum(row["spec_matched_total"] for judge in judges for row in judge.request) > 0
    assert {move["what"] for move in read_moves(tmp_path)} <= {"drafter", "request"}


def test_requests_move_to_the_verifier_that_has_nothing_to_do(
    group: moved.DecoupledGroup, shared: Load, tmp_path: Path
) -> None:
    """Every second answer is three tokens long, so that one of the verifiers soon has none left."""
    said = shared(TEXT, "hf").generate_text_batch(COUNTS, {"max_new_tokens": 120})
    fixed = [list(result.token_ids)[: 3 if place % 2 else 120] for place, result in enumerate(said)]
    results = group.rollout([count["messages"][0]["content"] for count in COUNTS], str(tmp_path), fixed=fixed)
    assert [result["token_ids"] for result in results] == fixed
    went = [move for move in read_moves(tmp_path) if move["what"] == "request"]
    # One that was taken from a verifier may find it the least loaded again, when it arrives.
    assert any(move["source"] != move["target"] for move in went)
    workers = read_workers(tmp_path)
    assert sum(worker.tokens for worker in workers) == sum(map(len, fixed))  # what moved is counted once
    assert main(["trace", str(tmp_path)]) == 0


def test_a_call_that_was_given_up_leaves_nothing_behind(
    group: moved.DecoupledGroup, shared: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*news: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(group.coordinator, "_hear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.generate_text_batch(COUNTS, OPTIONS["greedy"])
    expected = shared(TEXT, "hf").generate_text_batch(REQUESTS, OPTIONS["stops"])  # places of the other call, again
    assert ends(group.generate_text_batch(REQUESTS, OPTIONS["stops"])) == ends(expected)


def killing(group: Decoupled, monkeypatch: pytest.MonkeyPatch, which: Callable[[int], Any], kill: Any = None) -> None:
    """At the first answer of a call, kill an actor. which: the number of the verifier that gave it -> the actor."""
    heard, dead = group.coordinator._hear, list[Any]()

    def hear(number: int, what: str, *about: Any) -> None:
        heard(number, what, *about)
        if what == "done" and not dead:
            dead.append(which(number))
            (kill or group.coordinator.ray.kill)(dead[0])

    monkeypatch.setattr(group.coordinator, "_hear", hear)


def process_of(group: Decoupled, actor: Any) -> int:
    number: int = group.coordinator.ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return number


def check_ended(process: int) -> None:
    for _ in range(6000):
        if not Path(f"/proc/{process}").exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"the process {process} is there still")


def check_complete(group: Decoupled, shared: Load) -> None:
    """Workers that were lost are there again, and calls are answered meanwhile and afterwards."""
    expected = ends(shared(TEXT, "hf").generate_text_batch(REQUESTS[:4], OPTIONS["greedy"]))
    coordinator = group.coordinator
    for _ in range(600):
        results = group.generate_text_batch(REQUESTS[:4], OPTIONS["greedy"])
        assert ends(results) == expected
        if len(coordinator.verifiers) == 2 and len(coordinator.drafters) == 2:
            return
        time.sleep(1.0)
    raise AssertionError("a worker was not started again")


def check_lost_drafter(group: moved.DecoupledGroup, shared: Load, directory: Path, options: Any, why: str) -> None:
    victim, requests = max(group.coordinator.drafters), REQUESTS + COUNTS
    with group.traced(directory, rollout.Trace):
        results = group.generate_text_batch(requests, options)
    assert ends(results) == ends(shared(TEXT, "hf").generate_text_batch(requests, options))
    [lost] = [move for move in read_moves(directory) if move["what"] == "drafter" and not move["target"]]
    assert (lost["number"], lost["why"]) == (str(victim), why) and victim not in group.coordinator.drafters


def test_a_drafter_that_hangs_is_ended_and_costs_no_answer(
    group: moved.DecoupledGroup, shared: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = group.coordinator
    process = process_of(group, coordinator.drafters[max(coordinator.drafters)])
    for verifier in coordinator.verifiers.values():
        coordinator.ray.get(verifier.__ray_call__.remote(lambda self: setattr(self, "patience", 3.0)))
    killing(group, monkeypatch, lambda _: process, lambda process: os.kill(process, signal.SIGSTOP))
    check_lost_drafter(group, shared, tmp_path, OPTIONS["seeded"], "GetTimeoutError")
    check_ended(process)
    check_complete(group, shared)


def lost_verifier(moves: Sequence[dict[str, str]]) -> tuple[str, str]:
    """Number and reason of the one verifier that was lost; its requests ran again."""
    [lost] = [move for move in moves if move["what"] == "verifier" and not move["target"]]
    again = [move for move in moves if move["why"] == "runs again" and move["source"]]
    assert again and {move["source"] for move in again} == {lost["number"]}
    return lost["number"], lost["why"]


def test_a_verifier_that_dies_has_its_requests_run_again_and_is_started_again(
    group: moved.DecoupledGroup, shared: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded, so that what runs again must draw the same."""
    requests = REQUESTS + COUNTS
    with monkeypatch.context() as patch, group.traced(tmp_path, rollout.Trace):
        killing(group, patch, lambda number: group.coordinator.verifiers[number])
        results = group.generate_text_batch(requests, OPTIONS["seeded"])
    assert ends(results) == ends(shared(TEXT, "hf").generate_text_batch(requests, OPTIONS["seeded"]))
    number, why = lost_verifier(read_moves(tmp_path))
    assert why == "ActorDiedError"
    assert str(1 - int(number)) in {str(worker.number) for worker in read_workers(tmp_path)}
    check_complete(group, shared)


def test_without_a_verifier_that_can_be_started_a_call_fails(
    group: moved.DecoupledGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoupled, "RESTARTS", 0)
    for actor in group.coordinator.verifiers.values():
        group.coordinator.ray.kill(actor)
    for _ in range(2):
        with pytest.raises(gen_engine.EngineError, match="no verifier is left"):
            group.generate_text_batch(COUNTS, OPTIONS["greedy"])
