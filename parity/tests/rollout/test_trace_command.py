"""`parity trace` and `parity schedule`: what they print, the picture, and exit codes that CI can trust."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.cli.command_line import Parsers
from parity.companions import rollout
from parity.rollout import report, schedule

from ..companions.test_speculative import SPECULATIVE
from ..companions.test_trace import REQUESTS
from ..conftest import TEXT, Load


@pytest.fixture(scope="module")
def recorded(shared: Load, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two workers, one of which guessed."""
    directory = tmp_path_factory.mktemp("traces")
    for number, settings in enumerate(({}, {"decoder": SPECULATIVE["ngram"]})):
        engine = shared(TEXT, "hf", **settings)
        with rollout.trace(engine, directory, number):
            engine.generate_text_batch(REQUESTS, {"max_new_tokens": 30})
    return directory


def trace(*words: str | Path) -> int:
    """`python -m parity trace ...`."""
    return main(["trace", *map(str, words)])


@pytest.fixture
def directory(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "rollouts"))


def test_a_trace_is_summed_up_and_drawn(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(directory) == 0
    said = capsys.readouterr().out
    for part in ("tokens/s", "accepted by position: 1:", "slowest requests", "straggler", "waited", "figures agree"):
        assert part in said
    assert (directory / "trace.png").read_bytes().startswith(b"\x89PNG")
    assert trace(directory, "--png", directory / "slide.png", "--title", "A title") == 0
    assert (directory / "slide.png").stat().st_size > 20_000


def test_figures_are_those_of_the_files(directory: Path) -> None:
    plain, guessing = report.read_workers(directory)
    assert report.figures(plain)["accepted"] is None and report.figures(plain)["kv max"] is None
    assert plain.tokens == guessing.tokens == report.figures(guessing)["tokens"]
    shares = report.acceptance_by_position(guessing.markov)
    assert shares == sorted(shares, reverse=True) and 0 < shares[0] < 1
    for worker in (plain, guessing):
        assert max(span.ended for span in worker.spans) == pytest.approx(worker.seconds)
        assert all(span.arrived <= span.served[0][0] + 1e-4 for span in worker.spans)


@pytest.mark.parametrize(("kind", "column"), [("markov", 0), ("request", 7), ("perf", 1)])
def test_figures_that_disagree_are_exit_code_1(
    directory: Path, kind: str, column: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / f"worker_1_{kind}.csv"
    header, first, *rest = file.read_text().splitlines()
    cells = first.split(",")
    cells[column] = str(int(cells[column]) + 1)
    file.write_text("\n".join([header, ",".join(cells), *rest]) + "\n")
    assert trace(directory) == 1
    assert "THE FIGURES DO NOT AGREE" in capsys.readouterr().out


def test_what_cannot_be_read_is_exit_code_3(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(directory / "nothing") == 3
    (directory / "worker_0_markov.csv").unlink()
    assert trace(directory) == 3
    assert "worker 0 lacks markov" in capsys.readouterr().err
    (directory / "worker_0_markov.csv").write_text("a,b\n1,x\n")
    assert trace(directory) == 3
    (directory / "worker_0_markov.csv").write_text("acc_token_num\n1\n")
    assert trace(directory) == 3
    with pytest.raises(SystemExit) as usage:
        trace()
    assert usage.value.code == 2


def test_an_empty_trace_does_not_pass(shared: Load, tmp_path: Path, directory: Path) -> None:
    with rollout.trace(shared(TEXT, "hf"), tmp_path / "empty"):
        pass
    assert trace(tmp_path / "empty") == 3
    with rollout.trace(shared(TEXT, "hf"), directory, 7):
        pass
    assert trace(directory) == 0  # one idle worker among others is no fault


def test_a_schedule_is_a_command_too(tmp_path: Path) -> None:
    assert Parsers().parse(["schedule", "--out", str(tmp_path / "x")]).run is schedule.run


def test_a_full_cache_makes_requests_wait_and_others_preempted(tmp_path: Path) -> None:
    run, answers = schedule.run_once(tmp_path, schedule.LIMITS["memory"])
    assert (run.tokens, run.idle_running, run.kv_max) == (720, 0, "100 %")
    assert run.preempted > 0 and run.gaps > 0 and run.most_running == 8
    assert {len(ids) for ids in answers} == {schedule.ANSWER}
    runs = dict.fromkeys(schedule.LIMITS, run)
    assert [holds for holds, _ in schedule.answers(runs, same=True)] == [False, False, False, True, True]
    still = dataclasses.replace(run, idle_running=3)
    assert not schedule.answers({**runs, "memory": still}, same=True)[3][0]
